/* Errors: formats messages into the caller's Error. Owns no memory; called from every module that
 * can fail. A message that does not fit is cut and ends in "...", so that a hostile value cannot
 * hide the truncation. */
#include "base/error.h"

#include <assert.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Formats into a copy, because an argument may point into error->message. A text that is too long ends in "...". */
static void format_message(Error *error, const char *format, va_list arguments) {
    char text[sizeof error->message];
    int needed = vsnprintf(text, sizeof text, format, arguments);
    if (needed < 0) {
        snprintf(text, sizeof text, "an error occurred, but its message could not be formatted");
    } else if ((size_t)needed >= sizeof text) {
        size_t end = sizeof text - 4;
        while (end > 0 && ((unsigned char)text[end] & 0xC0) == 0x80) /* do not cut inside a UTF-8 character */
            end--;
        memcpy(text + end, "...", 4);
    }
    memcpy(error->message, text, sizeof text);
}

bool error_set(Error *error, ErrorCode code, const char *format, ...) {
    assert(error && code != ERROR_NONE);
    va_list arguments;
    va_start(arguments, format);
    format_message(error, format, arguments);
    va_end(arguments);
    error->code = code;
    error->finding = FINDING_UNREADABLE;
    return false;
}

bool error_also(Error *all, const Error *more) {
    if (all->code) return error_set(all, all->code, "%s; also: %s", all->message, more->message);
    *all = *more;
    return false;
}

bool error_find(Error *error, ErrorFinding finding) {
    assert(error && error->code != ERROR_NONE);
    error->finding = finding;
    return false;
}

bool error_recode(Error *error, ErrorCode code) {
    assert(error && error->code != ERROR_NONE);
    error->code = code;
    return false;
}

bool error_context(Error *error, const char *format, ...) {
    assert(error && error->code != ERROR_NONE);
    Error context;
    va_list arguments;
    va_start(arguments, format);
    format_message(&context, format, arguments);
    va_end(arguments);
    ErrorFinding finding = error->finding;
    error_set(error, error->code, "%s: %s", context.message, error->message);
    return error_find(error, finding);
}
