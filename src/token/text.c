/* Characters: well-formed UTF-8, white space, and GPT-2's byte alphabet; and the growing buffer for
 * the module's text. Owns nothing; called by every file of the tokenizer. */
#include <utf8proc.h>

#include "base/array.h"
#include "token/token_internal.h"

void buffer_append(Buffer *buffer, const char *bytes, size_t size) {
    array_reserve(buffer->bytes, buffer->capacity, buffer->size + size);
    if (size > 0) memcpy(buffer->bytes + buffer->size, bytes, size);
    buffer->size += size;
}

void text_replace(Buffer *out, Span text, Span from, Span to) {
    for (size_t at = 0, end; at < text.size; at = end + from.size) {
        const char *found = memmem(text.bytes + at, text.size - at, from.bytes, from.size);
        end = found ? (size_t)(found - text.bytes) : text.size;
        buffer_append(out, text.bytes + at, end - at);
        if (found) buffer_append(out, to.bytes, to.size);
    }
}

/* Reads the well-formed character that `text` begins with; returns its bytes, 0 if it is
 * ill-formed. */
static size_t read_character(const char *text, size_t left, utf8proc_int32_t *character) {
    utf8proc_ssize_t size = utf8proc_iterate((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)left, character);
    return size > 0 ? (size_t)size : 0;
}

size_t text_well_formed(const char *text, size_t length) {
    size_t at = 0, size;
    utf8proc_int32_t character;
    while (at < length) {
        uint64_t eight;
        while (length - at >= sizeof eight && (memcpy(&eight, text + at, sizeof eight), (eight & 0x8080808080808080u) == 0))
            at += sizeof eight;
        if (at == length || (size = read_character(text + at, length - at, &character)) == 0) break;
        at += size;
    }
    return at;
}

size_t text_character_size(const char *text, size_t length) {
    utf8proc_int32_t character;
    return (signed char)text[0] >= 0 ? 1 : read_character(text, length, &character);
}

size_t text_ill_formed(const char *text, size_t length) {
    size_t at = 0;
    utf8proc_int32_t character;
    while (at < length && read_character(text + at, length - at, &character) == 0) at++;
    return at;
}

uint32_t text_character(const char *text, size_t *size) {
    utf8proc_int32_t character;
    *size = read_character(text, 4, &character);
    return (uint32_t)character;
}

/* Unicode's White_Space */
static bool is_space(uint32_t character) {
    return (character >= 0x9 && character <= 0xD) || character == 0x20 || character == 0x85 || character == 0xA0 || character == 0x1680 ||
           (character >= 0x2000 && character <= 0x200A) || character == 0x2028 || character == 0x2029 || character == 0x202F ||
           character == 0x205F || character == 0x3000;
}

/* text_spaces and text_trailing_spaces also accept ill-formed text; ill-formed bytes are not white
 * space. */
size_t text_spaces(const char *text, size_t length) {
    size_t at = 0, size;
    utf8proc_int32_t character;
    while (at < length && (size = read_character(text + at, length - at, &character)) > 0 && is_space((uint32_t)character)) at += size;
    return at;
}

size_t text_trailing_spaces(const char *text, size_t length) {
    size_t end = length;
    utf8proc_int32_t character;
    for (size_t start; end > 0; end = start) {
        start = end - 1;
        while (start > 0 && end - start < 4 && (text[start] & 0xC0) == 0x80) start--;
        if (read_character(text + start, end - start, &character) != end - start || !is_space((uint32_t)character)) break;
    }
    return length - end;
}

/* Printable bytes of Latin-1 represent themselves; the other 68 are mapped to U+0100 and up, in
 * order. */
static bool stands_for_itself(int byte) { return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE; }

uint32_t text_byte_character(int byte) {
    if (stands_for_itself(byte)) return (uint32_t)byte;
    if (byte <= 0x20) return 0x100 + (uint32_t)byte;
    return byte == 0xAD ? 0x143 : 0x100 + 0x21 + (uint32_t)byte - 0x7F;
}

size_t tokenizer_spell_byte(int byte, char out[5]) {
    utf8proc_ssize_t size = utf8proc_encode_char((utf8proc_int32_t)text_byte_character(byte), (utf8proc_uint8_t *)out);
    out[size] = '\0';
    return (size_t)size;
}

/* Returns the byte that a character represents, or -1. */
static int character_byte(uint32_t character) {
    if (character < 0x100) return stands_for_itself((int)character) ? (int)character : -1;
    if (character <= 0x120) return (int)character - 0x100;
    if (character < 0x143) return (int)character - 0x121 + 0x7F;
    return character == 0x143 ? 0xAD : -1;
}

bool text_from_alphabet(const char *text, size_t length, char *out, size_t *size) {
    *size = 0;
    for (size_t at = 0, step; at < length; at += step) {
        int byte = character_byte(text_character(text + at, &step));
        if (byte < 0) return false;
        out[(*size)++] = (char)byte;
    }
    return true;
}

static int base64_digit(char letter) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *found = letter ? strchr(digits, letter) : NULL;
    return found ? (int)(found - digits) : -1;
}

bool text_from_base64(const char *text, size_t length, char *out, size_t *size) {
    while (length > 0 && text[length - 1] == '=') length--;
    uint32_t bits = 0;
    *size = 0;
    for (size_t i = 0; i < length; i++) {
        int value = base64_digit(text[i]);
        if (value < 0) return false;
        bits = bits << 6 | (uint32_t)value;
        if (i % 4 != 0) out[(*size)++] = (char)(bits >> (6 - i % 4 * 2));
    }
    return length % 4 != 1;
}
