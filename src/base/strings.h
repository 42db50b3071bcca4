/* What <string.h> lacks. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline bool starts_with(const char *text, const char *start) { return !strncmp(text, start, strlen(start)); }
static inline bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && !strcmp(text + length - tail, end);
}
/* The ending of a noun behind its count: "1 file", "2 files". */
static inline const char *plural(int64_t count) { return count == 1 ? "" : "s"; }
