/* What the files of options share: names, messages and single rows. Not for other modules. */
#pragma once

#include "base/options.h"

enum {
    OPTIONS_NAME_LIMIT = 127, /* bytes of a full dotted name */
    OPTIONS_QUOTED = 128,     /* a hostile text as it is shown in a message */
};

/* What another program calls a setting, in lower case, without the groups that it puts before it; a table that lacks the
 * row `ours` does not know the name. The last one is {NULL}. */
typedef struct OtherName { const char *other, *ours; } OtherName;
extern const OtherName options_other_names[];

/* Bytes of the first character (1 to 4), or 0 when it is not valid UTF-8. */
int options_decode_utf8(const char *text, size_t length, uint32_t *code_point);
/* NULL, or what is wrong with the text at byte *at: invalid UTF-8 or a NUL byte. */
const char *options_check_utf8(const char *text, size_t length, size_t *at);
/* 'text' for a one-line message: control and invalid bytes as \xNN, cut with "...". Returns `quoted`. */
const char *options_quote(char quoted[OPTIONS_QUOTED], const char *text, size_t length);

/* Parses `text` (length bytes and a NUL after them) into the row's field. `where`, for messages: "at x.yaml:3". */
bool options_set_row(
    const Option *option, void *values, OptionStrings *strings, const char *text, size_t length, const char *where, Error *error);
/* Why a row takes no such value, where another setting is meant; NULL: it is none of these. */
const char *options_reason_of_value(const char *name, const char *value);
/* Sets the error of an unknown key, with the nearest known one; returns false. */
bool options_unknown(const OptionTable *table, const char *name, size_t length, const char *where, Error *error);

/* What a value may be, for people: "1 to 8", "at least 0", "a|b|c", "true|false"; "" for any text. */
void options_format_limits(const Option *option, char text[512]);
const char *options_string(const Option *option, const void *values); /* the value of an OPTION_STRING */

/* The group of a row is its name up to the first dot (length 0 when there is none). */
size_t options_group_length(const char *name);
/* Whether the row is of another group than the one before it. */
bool options_opens_group(const OptionTable *table, size_t row);
