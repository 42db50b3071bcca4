/* Characters and words of UTF-8 text, as the rules of filters count them. */
#include <string.h>

#include <utf8proc.h>

#include "filter/filter_internal.h"

uint32_t utf8_character(const char *text, size_t size, size_t *at) {
    utf8proc_int32_t character = (unsigned char)text[*at];
    if (character < 0x80) return ++*at, (uint32_t)character;
    size_t left = size - *at;
    utf8proc_ssize_t bytes = utf8proc_iterate((const utf8proc_uint8_t *)text + *at, (utf8proc_ssize_t)(left < 4 ? left : 4), &character);
    *at += bytes > 0 ? (size_t)bytes : 1;
    return bytes > 0 ? (uint32_t)character : 0xfffd;
}

bool is_wide_space(uint32_t c) {
    if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

bool is_letter(uint32_t c) {
    if (c < 0x80) return (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool is_symbol(uint32_t c) {
    if (c < 0x80) return c > ' ' && c < 0x7f && !is_letter(c) && !(c >= '0' && c <= '9');
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_SO;
}

int64_t count_characters(const char *text, size_t size) {
    int64_t count = 0;
#pragma omp simd reduction(+ : count)
    for (size_t i = 0; i < size; i++) count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

bool next_text_word(const char *text, size_t size, size_t *at, size_t *start) {
    size_t next = *at;
    do {
        *start = next;
        if (next == size) return false;
    } while (is_wide_space(utf8_character(text, size, &next)));
    *at = size;
    for (size_t end = next; end < size;) {
        next = end;
        if (!is_wide_space(utf8_character(text, size, &end))) continue;
        *at = next;
        break;
    }
    return true;
}
