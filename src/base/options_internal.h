/* Shared by the files of options: names, messages and single rows. Not for other modules. */
#pragma once

#include "base/options.h"

enum {
    OPTIONS_NAME_LIMIT = 127, /* bytes of a full dotted name */
};

/* Another program's name of a setting, in lower case, without its groups; ignored in a table
 * without the row `ours`. The last one is {NULL}. */
typedef struct OtherName { const char *other, *ours; } OtherName;
extern const OtherName options_other_names[];

/* Returns the bytes of the first character (1 to 4), or 0 if it is not valid UTF-8. */
int options_decode_utf8(const char *text, size_t length, uint32_t *code_point);
/* Returns NULL, or what is wrong with the text at byte *at: invalid UTF-8 or a NUL byte. */
const char *options_check_utf8(const char *text, size_t length, size_t *at);

/* Parses `text` (length bytes and a NUL after them) into the row's field. `where`, for messages: "at x.yaml:3". */
bool options_set_row(
    const Option *option, void *values, OptionStrings *strings, const char *text, size_t length, const char *where, Error *error);
/* Returns why a row does not take such a value, if another setting is meant; NULL: not such a
 * value. */
const char *options_reason_of_value(const char *name, const char *value);
/* Sets the error of an unknown key, with the nearest known one; returns false. */
bool options_unknown(const OptionTable *table, const char *name, size_t length, const char *where, Error *error);

/* Writes the allowed values for people: "1 to 8", "at least 0", "a|b|c", "true|false"; "" for any
 * text. */
void options_format_limits(const Option *option, char text[512]);
const char *options_string(const Option *option, const void *values); /* the value of an OPTION_STRING */

/* Returns the length of the row's group, its name up to the first dot (0 if there is none). */
size_t options_group_length(const char *name);
/* Returns whether the row's group differs from the previous row's. */
bool options_opens_group(const OptionTable *table, size_t row);
