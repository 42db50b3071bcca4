/* Characters: well-formed UTF-8, white space, and GPT-2's alphabet of bytes; and the growing buffer that the
 * module's text lies in. Owns nothing; called by every file of the tokenizer. */
#include <stdlib.h>

#include "base/array.h"
#include "token/token_internal.h"

void buffer_append(Buffer *buffer, const char *bytes, size_t size) {
    array_reserve(buffer->bytes, buffer->capacity, buffer->size + size);
    if (size > 0) memcpy(buffer->bytes + buffer->size, bytes, size);
    buffer->size += size;
}

/* The bytes of the well-formed character that `text` begins with; 0 when it is ill-formed. */
static size_t character_size(const unsigned char *text, size_t left) {
    unsigned char lead = text[0];
    if (lead < 0x80) return 1;
    if (lead < 0xC2 || lead > 0xF4) return 0;
    size_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (left < size) return 0;
    unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80, high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (text[1] < low || text[1] > high) return 0;
    for (size_t i = 2; i < size; i++)
        if ((text[i] & 0xC0) != 0x80) return 0;
    return size;
}

size_t text_well_formed(const char *text, size_t length) {
    const unsigned char *bytes = (const unsigned char *)text;
    size_t at = 0, size;
    while (at < length) {
        uint64_t eight;
        while (length - at >= sizeof eight && (memcpy(&eight, bytes + at, sizeof eight), (eight & 0x8080808080808080u) == 0))
            at += sizeof eight;
        if (at == length || (size = character_size(bytes + at, length - at)) == 0) break;
        at += size;
    }
    return at;
}

size_t text_ill_formed(const char *text, size_t length) {
    size_t at = 0;
    while (at < length && character_size((const unsigned char *)text + at, length - at) == 0) at++;
    return at;
}

uint32_t text_character(const char *text, size_t *size) {
    const unsigned char *bytes = (const unsigned char *)text;
    uint32_t lead = bytes[0];
    if (lead < 0x80) return *size = 1, lead;
    if (lead < 0xE0) return *size = 2, (lead & 0x1F) << 6 | (bytes[1] & 0x3F);
    uint32_t three = (uint32_t)(bytes[1] & 0x3F) << 6 | (bytes[2] & 0x3F);
    if (lead < 0xF0) return *size = 3, (lead & 0xF) << 12 | three;
    return *size = 4, (lead & 0x7) << 18 | three << 6 | (bytes[3] & 0x3F);
}

size_t text_put_character(uint32_t character, char out[4]) {
    if (character < 0x80) return out[0] = (char)character, 1;
    size_t size = character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
    for (size_t i = size - 1; i > 0; i--, character >>= 6) out[i] = (char)(0x80 | (character & 0x3F));
    out[0] = (char)((size == 2 ? 0xC0 : size == 3 ? 0xE0 : 0xF0) | character);
    return size;
}

bool text_is_space(uint32_t character) {
    return (character >= 0x9 && character <= 0xD) || character == 0x20 || character == 0x85 || character == 0xA0 || character == 0x1680 ||
           (character >= 0x2000 && character <= 0x200A) || character == 0x2028 || character == 0x2029 || character == 0x202F ||
           character == 0x205F || character == 0x3000;
}

/* Both may stand in ill-formed text, between which and a token lies no white space. */
size_t text_spaces(const char *text, size_t length) {
    size_t at = 0, size;
    while (at < length && (size = character_size((const unsigned char *)text + at, length - at)) > 0) {
        if (!text_is_space(text_character(text + at, &size))) break;
        at += size;
    }
    return at;
}

size_t text_trailing_spaces(const char *text, size_t length) {
    size_t end = length;
    while (end > 0) {
        size_t start = end - 1, size;
        while (start > 0 && end - start < 4 && (text[start] & 0xC0) == 0x80) start--;
        if (character_size((const unsigned char *)text + start, end - start) != end - start) break;
        if (!text_is_space(text_character(text + start, &size))) break;
        end = start;
    }
    return length - end;
}

/* Printable bytes of Latin-1 stand for themselves; the 68 others follow from U+0100 on, in order. */
static bool stands_for_itself(int byte) { return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE; }

uint32_t text_byte_character(int byte) {
    if (stands_for_itself(byte)) return (uint32_t)byte;
    if (byte <= 0x20) return 0x100 + (uint32_t)byte;
    return byte == 0xAD ? 0x143 : 0x100 + 0x21 + (uint32_t)byte - 0x7F;
}

size_t tokenizer_spell_byte(int byte, char out[5]) {
    size_t size = text_put_character(text_byte_character(byte), out);
    out[size] = '\0';
    return size;
}

/* The byte that a character stands for, or -1. */
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
