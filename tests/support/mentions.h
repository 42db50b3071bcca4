/* How a test names a message: by its error code and the values in it, not by its sentences. */
#pragma once

#include <stdbool.h>
#include <string.h>

/* Returns whether the text contains the values, which are separated by spaces, in their order. */
static inline bool mentions(const char *text, const char *values) {
    for (const char *value = values + strspn(values, " "); *value; value += strspn(value, " ")) {
        size_t length = strcspn(value, " ");
        while (*text && strncmp(text, value, length) != 0) text++;
        if (!*text) return false;
        text += length;
        value += length;
    }
    return true;
}

/* Fails unless the text contains the values in their order. */
#define assert_mentions(text, values)                                                                                                      \
    do {                                                                                                                                   \
        if (!mentions(text, values)) fail_msg("\"%s\" does not mention %s", text, values);                                                 \
    } while (0)
