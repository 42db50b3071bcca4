/* String functions that <string.h> lacks. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline bool starts_with(const char *text, const char *start) { return !strncmp(text, start, strlen(start)); }
static inline bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && !strcmp(text + length - tail, end);
}
/* Returns the ending of a noun after its count: "1 file", "2 files". */
static inline const char *plural(int64_t count) { return count == 1 ? "" : "s"; }
/* Returns the bytes of a path without trailing slashes; 1 for "/". */
static inline size_t path_length(const char *path) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    return length;
}

/* Returns whether a name has no control characters, which a terminal would interpret. */
static inline bool name_is_plain(const char *name) {
    for (const unsigned char *c = (const unsigned char *)name; *c; c++)
        if (*c < 0x20 || *c == 0x7f) return false;
    return true;
}

/* Replaces terminal control characters in an untrusted text by `mark`: control characters and C1
 * (U+0080 to U+009F, in UTF-8 C2 and a byte). A newline is kept if `lines` is set. */
static inline void blank_controls(char *text, char mark, bool lines) {
    for (unsigned char *c = (unsigned char *)text; *c; c++) {
        bool c1 = c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0;
        if ((*c < 0x20 && !(lines && *c == '\n')) || *c == 0x7f || c1) *c = (unsigned char)mark;
        if (c1) c[1] = (unsigned char)mark;
    }
}
/* Replaces controls by blanks in place, for a library's message that quotes unreadable input. */
static inline const char *one_line(char *text) {
    blank_controls(text, ' ', false);
    return text;
}
/* Copies a text, cut at a boundary of UTF-8 characters if it does not fit into `size` bytes. */
static inline void copy_cut(char *to, size_t size, const char *from) {
    size_t length = strlen(from);
    if (length >= size) {
        length = size - 1;
        while (length > 0 && ((unsigned char)from[length] & 0xC0) == 0x80) length--;
    }
    memcpy(to, from, length);
    to[length] = '\0';
}
