/* Options. One table row per setting (name, type, range, choices, unit, help) drives the YAML reader, the `key=value`
 * overrides, `--help`, the printed configuration and the manual, so they cannot drift apart. Nested YAML mappings are
 * dotted names: `model: {width: 256}` and `model.width=256` set the same row. Values live in a plain struct of the
 * caller; a row holds the offset of its field. Strings are owned by the struct's `OptionStrings` pool. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

typedef enum OptionType {
    OPTION_BOOL,   /* bool    */
    OPTION_INT,    /* int64_t; accepts 4096, 1e6, 1.5k; k, M, G, T are powers of 1000, Ki, Mi, Gi, Ti of 1024 */
    OPTION_REAL,   /* double, finite; same notation; -INFINITY and INFINITY as limits mean none */
    OPTION_STRING, /* const char * (never NULL; "" if unset) */
    OPTION_CHOICE, /* int: index into `choices` */
    OPTION_REALS,  /* RealList: "1,1.5,2"; "" is an empty list */
} OptionType;

/* `items` at `count` and after are 0. */
enum { REAL_LIST_MOST = 128 };
typedef struct RealList {
    int64_t count;
    double items[REAL_LIST_MOST];
} RealList;

/* For settings of a run: the effect of a change after the run has started. */
typedef enum OptionClass {
    OPTION_FIXED,   /* the run keeps its initial value */
    OPTION_CHANGES, /* results depend on it from the step at which it changes, which is recorded */
    OPTION_FREE,    /* no result depends on it */
    OPTION_ONCE,    /* applies to one start only: a run does not remember it */
} OptionClass;

typedef struct Option {
    const char *name; /* "optimizer.lr" */
    OptionType type;
    size_t offset;           /* of the field */
    const char *initial;     /* the default, as text, parsed by the same code as user input */
    double minimum, maximum; /* inclusive range of OPTION_INT, OPTION_REAL and each item of OPTION_REALS */
    const char *choices;     /* OPTION_CHOICE: "none|norm|attention|block" */
    const char *unit;        /* "tokens", "steps", "" (not NULL) */
    const char *help;        /* one line (not NULL) */
    OptionClass class;
    bool state; /* determines which tensors a checkpoint holds: a run cannot continue with another value */
    bool path;  /* OPTION_STRING: names a file, a folder or a URL; "none" names nothing */
} Option;

/* Returns whether results depend on the setting, so that a run remembers its value. */
static inline bool option_decides(const Option *option) { return option->class == OPTION_FIXED || option->class == OPTION_CHANGES; }

/* Rows of a table, with the columns that their type needs; the setting has the name of its field.
 * The file defines FIELD(path) as offsetof(Struct, path): `INT_OPTION(seed, "1", 0, 1e15, "",
 * "decides data order")`. More arguments are designated initializers: `.class = OPTION_FREE`. */
#define BOOL_OPTION(path, initial, help, ...) {#path, OPTION_BOOL, FIELD(path), initial, 0, 0, NULL, "", help, ##__VA_ARGS__}
#define INT_OPTION(path, initial, minimum, maximum, unit, help, ...) {#path, OPTION_INT, FIELD(path), initial, minimum, maximum, NULL, unit, help, ##__VA_ARGS__}
#define REAL_OPTION(path, initial, minimum, maximum, unit, help, ...) {#path, OPTION_REAL, FIELD(path), initial, minimum, maximum, NULL, unit, help, ##__VA_ARGS__}
#define REALS_OPTION(path, minimum, maximum, unit, help, ...) {#path, OPTION_REALS, FIELD(path), "", minimum, maximum, NULL, unit, help, ##__VA_ARGS__}
#define STRING_OPTION(path, initial, unit, help, ...) {#path, OPTION_STRING, FIELD(path), initial, 0, 0, NULL, unit, help, ##__VA_ARGS__}
#define CHOICE_OPTION(path, initial, choices, help, ...) {#path, OPTION_CHOICE, FIELD(path), initial, 0, 0, choices, "", help, ##__VA_ARGS__}

/* All strings that users gave; options_free_strings frees them together. Zero-initialize. */
typedef struct OptionStrings {
    char **items;
    size_t count;
} OptionStrings;

/* Rows of one group, whose names agree up to the first dot, must be adjacent. */
typedef struct OptionTable {
    const Option *rows;
    size_t count;
    void (*explain)(const Option *option, char *text, size_t size); /* the row's other requirements, in a few words or ""; NULL: none */
    size_t zeroed; /* bytes of the struct that options_defaults zeroes first, for its fields that are not settings; 0: none */
} OptionTable;
#define OPTION_TABLE(array, ...) {(array), sizeof(array) / sizeof *(array), ##__VA_ARGS__}

/* Zeroes OptionTable.zeroed bytes and sets every field to its default; asserts that each row accepts its default. */
void options_defaults(const OptionTable *table, void *values, OptionStrings *strings);
/* Reads a YAML mapping; omitted keys keep their value. Unknown keys, duplicate keys, wrong types
 * and out-of-range values are ERROR_USAGE naming file, line, key, value and what is allowed. For an
 * unknown key the message suggests the setting with this name in other programs, or the nearest
 * spelling. Lists, anchors, aliases, tags and null values are refused. A file holds at most 1 MiB.
 * After an error, keys before it may have been set. */
bool options_read_yaml(const OptionTable *table, void *values, OptionStrings *strings, const char *path, Error *error);
/* Like options_read_yaml, from memory; `origin` names the source in errors. */
bool options_parse_yaml(
    const OptionTable *table, void *values, OptionStrings *strings, const char *text, size_t length, const char *origin, Error *error);
/* One of the lists in a YAML file whose top level has nothing but lists of mappings: "sources:
 * [{name: web}, {name: code}]". */
typedef struct OptionList {
    const char *const *keys;  /* all keys of the file, NULL-terminated; others are refused */
    const char *key;          /* the list to read; others are skipped */
    const OptionTable *table; /* of an item */
    void *items;              /* room for `most` structs of item_size bytes; items that are read start from the table's defaults */
    size_t item_size;
    int most, count; /* count: output, 0 if the file lacks the key */
} OptionList;
/* Reads one list with the messages of options_read_yaml. */
bool options_read_yaml_list(OptionList *list, OptionStrings *strings, const char *path, Error *error);
/* Returns the row with this name, of `length` bytes; NULL: none. */
const Option *options_find(const OptionTable *table, const char *name, size_t length);
/* Returns the name of the row that was probably meant: the nearest spelling, else the same setting
 * of another group ("lr" for "optimizer.lr"); NULL if nothing is near. */
const char *options_nearest(const OptionTable *table, const char *name, size_t length);
/* Applies one "key=value"; on error nothing changes. */
bool options_set(const OptionTable *table, void *values, OptionStrings *strings, const char *assignment, Error *error);
/* Applies all of them; the error tells each that is wrong. */
bool options_set_all(const OptionTable *table, void *values, OptionStrings *strings, const OptionStrings *assignments, Error *error);
/* Returns whether the value of a row is its default. */
bool options_is_initial(const Option *option, const void *values);
/* Writes the value of a row in a form that options_set reads back exactly, truncated if `size` is
 * too small. OPTIONS_REALS bytes are enough for any list of numbers. */
enum { OPTIONS_REALS = REAL_LIST_MOST * 25 };
void options_format_value(const Option *option, const void *values, char *text, size_t size);
/* Writes all rows as YAML that options_read_yaml reads back exactly (comments contain help, unit
 * and requirements). */
void options_write_yaml(const OptionTable *table, const void *values, FILE *file);
/* Writes the help of a row of the table, with its unit, range or choices, and its requirements:
 * "width of a head (channels, 1 to 1024)". */
enum { OPTIONS_EXPLANATION = 1024 };
void options_explain(const OptionTable *table, const Option *option, char text[OPTIONS_EXPLANATION]);
/* Prints the table for --help in 80 columns: NAME=DEFAULT, and help with unit and range or choices;
 * grouped by the part before the dot. */
void options_print_help(const OptionTable *table, FILE *file);
/* Writes the rows whose values differ between two structs as "key: old -> new" lines to `text`
 * (truncated if it is full). Returns their number. */
int options_difference(const OptionTable *table, const void *old_values, const void *new_values, char *text, size_t size);
/* Quotes a text as 'text' for a one-line message: control and invalid bytes as \xNN, truncated with
 * "...". Returns `quoted`. */
enum { OPTIONS_QUOTED = 128 };
const char *options_quote(char quoted[OPTIONS_QUOTED], const char *text, size_t length);
/* Makes "text", "./text" and "text/" absolute: "/folder/text"; a URL or "none" is unchanged. The
 * caller frees it. */
char *options_absolute_path(const char *path);
/* Resets rows of OPTION_ONCE to their defaults, and makes relative paths absolute (not URLs): the
 * values that a run remembers, with the same meaning from any folder. */
void options_remember(const OptionTable *table, void *values, OptionStrings *strings);
void options_free_strings(OptionStrings *strings);
