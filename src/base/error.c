/* Errors: formatting into the caller's Error. Owns no memory; called from every module that can fail. A message that
 * does not fit is cut and ends in "...", so a hostile value cannot hide that something is missing. */
#include "base/error.h"

#include <assert.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Ends a text of `size` bytes that needed more in "...". Callers format into a scratch buffer, because an argument may
 * point into error->message. */
static void mark_cut(char *text, size_t size, int needed) {
    if (needed < 0) {
        snprintf(text, size, "an error whose message could not be formatted");
    } else if ((size_t)needed >= size) {
        size_t end = size - 4;
        while (end > 0 && ((unsigned char)text[end] & 0xC0) == 0x80) /* not inside a UTF-8 character */
            end--;
        memcpy(text + end, "...", 4);
    }
}

bool error_set(Error *error, ErrorCode code, const char *format, ...) {
    assert(error && code != ERROR_NONE);
    char message[sizeof error->message];
    va_list arguments;
    va_start(arguments, format);
    int needed = vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    mark_cut(message, sizeof message, needed);
    memcpy(error->message, message, sizeof message);
    error->code = code;
    return false;
}

bool error_recode(Error *error, ErrorCode code) {
    assert(error && error->code != ERROR_NONE);
    error->code = code;
    return false;
}

bool error_context(Error *error, const char *format, ...) {
    assert(error && error->code != ERROR_NONE);
    char context[sizeof error->message];
    va_list arguments;
    va_start(arguments, format);
    int needed = vsnprintf(context, sizeof context, format, arguments);
    va_end(arguments);
    mark_cut(context, sizeof context, needed);
    return error_set(error, error->code, "%s: %s", context, error->message);
}
