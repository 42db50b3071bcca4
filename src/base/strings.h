/* What <string.h> lacks. */
#pragma once

#include <stdbool.h>
#include <string.h>

static inline bool starts_with(const char *text, const char *start) { return !strncmp(text, start, strlen(start)); }
static inline bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && !strcmp(text + length - tail, end);
}
