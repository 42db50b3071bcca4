/* How a test names a message: by its error code and the values in it, not by its sentences. */
#pragma once

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

/* Returns the first place of a value in a text, not within a longer word or number; NULL: none. */
static inline const char *find_value(const char *text, const char *value, size_t length) {
    for (const char *at = text; *at; at++) {
        bool begins = !isalnum((unsigned char)*value) || at == text || !isalnum((unsigned char)at[-1]);
        if (begins && !strncmp(at, value, length) && !(isalnum((unsigned char)value[length - 1]) && isalnum((unsigned char)at[length])))
            return at;
    }
    return NULL;
}

/* Returns whether the text contains the values, which are separated by spaces, in their order. */
static inline bool mentions(const char *text, const char *values) {
    size_t length;
    for (const char *value = values + strspn(values, " "); *value; value += length + strspn(value + length, " ")) {
        length = strcspn(value, " ");
        text = find_value(text, value, length);
        if (!text) return false;
        text += length;
    }
    return true;
}

/* Fails unless the text contains the values in their order. */
#define assert_mentions(text, values)                                                                                                      \
    do {                                                                                                                                   \
        if (!mentions(text, values)) fail_msg("\"%s\" does not mention %s", text, values);                                                 \
    } while (0)
