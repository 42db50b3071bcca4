/* Options as YAML. The reader walks libyaml's events, so no tree is built in memory and hostile
 * text is refused immediately: lists other than those of options_read_yaml_list, anchors, aliases,
 * tags, deep nesting, a second document. The parser's memory is freed before returning; strings go
 * to the caller's OptionStrings. Called by commands for configurations and checkpoints, and by the
 * reader of mixtures. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/options.h"
#include "base/options_internal.h"

enum {
    TEXT_LIMIT = 1 << 20, /* bytes of a configuration */
    DEPTH_LIMIT = 8,      /* parts of a dotted name, and so nested mappings */
    WHERE_SIZE = 512,
    MOST_LISTS = 8, /* maximum keys of a file of lists */
};

/* The line where each row and group first appeared, for messages about duplicates; 0: not yet. A
 * group is identified by its first row and the number of parts of its name. */
typedef struct Seen {
    size_t row_line;
    size_t group_line[DEPTH_LIMIT];
} Seen;

typedef struct YamlReader {
    yaml_parser_t parser;
    const OptionTable *table;
    void *values;
    OptionStrings *strings;
    const char *text;
    const char *origin;
    Seen *seen;
    OptionList *list;                            /* the list to read from a file of lists; NULL: the file is one mapping */
    bool lists;                                  /* a list is allowed here */
    size_t key_line[MOST_LISTS];                 /* like Seen, for the keys of lists */
    char name[OPTIONS_NAME_LIMIT + 1];           /* full name of the present key; groups keep their prefix of it */
    char where[WHERE_SIZE], key[OPTIONS_QUOTED]; /* for messages, by at_line and quoted_name */
    Error *error;
    Error wrong; /* of all keys and values so far, after which reading went on */
} YamlReader;

static const char *at_line(YamlReader *reader, size_t line) {
    snprintf(reader->where, WHERE_SIZE, "at %.480s:%zu", reader->origin, line);
    return reader->where;
}

static const char *quoted_name(YamlReader *reader) { return options_quote(reader->key, reader->name, strlen(reader->name)); }

static size_t line_at(const char *text, size_t offset) {
    size_t line = 1;
    for (size_t i = 0; i < offset; i++) line += text[i] == '\n';
    return line;
}

static size_t event_line(const yaml_event_t *event) { return event->start_mark.line + 1; }

static bool parser_failed(YamlReader *reader) {
    const yaml_parser_t *parser = &reader->parser;
    if (parser->error == YAML_MEMORY_ERROR) return error_set(reader->error, ERROR_MEMORY, "out of memory while reading %s", reader->origin);
    bool offset_known = parser->error == YAML_READER_ERROR;
    size_t line = offset_known ? line_at(reader->text, parser->problem_offset) : parser->problem_mark.line + 1;
    const char *where = at_line(reader, line);
    if (parser->error == YAML_SCANNER_ERROR && *parser->buffer.pointer == '\t')
        return error_set(reader->error, ERROR_USAGE, "invalid YAML %s: YAML is indented with spaces, not tabs", where);
    error_set(reader->error, ERROR_USAGE, "invalid YAML %s: %s", where, parser->problem ? parser->problem : "unknown problem");
    bool elsewhere = parser->context && !offset_known && parser->context_mark.line + 1 != line;
    if (elsewhere)
        error_set(reader->error, ERROR_USAGE, "%s %s that begins on line %zu", reader->error->message, parser->context,
            parser->context_mark.line + 1);
    return false;
}

static const char *refused_property(const void *anchor, const void *tag) {
    return anchor ? "an anchor (&name) is not supported" : tag ? "a tag (!name) is not supported" : NULL;
}

/* Returns what this YAML must not contain, or NULL. Aliases could expand a small text enormously,
 * and tags could request other types. */
static const char *refused(const yaml_event_t *event, bool lists) {
    switch (event->type) {
    case YAML_ALIAS_EVENT: return "an alias (*name) is not supported";
    case YAML_SEQUENCE_START_EVENT:
        return lists ? refused_property(event->data.sequence_start.anchor, event->data.sequence_start.tag) : "a list is not supported";
    case YAML_SCALAR_EVENT: return refused_property(event->data.scalar.anchor, event->data.scalar.tag);
    case YAML_MAPPING_START_EVENT: return refused_property(event->data.mapping_start.anchor, event->data.mapping_start.tag);
    default: return NULL;
    }
}

/* Returns the first row inside the group of this name; NULL if there is no such group. */
static const Option *first_of_group(const OptionTable *table, const char *name) {
    size_t length = strlen(name);
    for (size_t i = 0; i < table->count; i++)
        if (strncmp(table->rows[i].name, name, length) == 0 && table->rows[i].name[length] == '.') return &table->rows[i];
    return NULL;
}

/* Reads the next event, which the caller deletes if the result is true. */
static bool next_event(YamlReader *reader, yaml_event_t *event) {
    if (!yaml_parser_parse(&reader->parser, event)) return parser_failed(reader);
    const char *thing = refused(event, reader->lists);
    if (!thing) return true;
    const char *where = at_line(reader, event_line(event));
    bool list = !reader->lists && event->type == YAML_SEQUENCE_START_EVENT,
         known = options_find(reader->table, reader->name, strlen(reader->name));
    yaml_event_delete(event);
    if (list && *reader->name && !known && !first_of_group(reader->table, reader->name))
        return options_unknown(reader->table, reader->name, strlen(reader->name), where, reader->error);
    if (!*reader->name) return error_set(reader->error, ERROR_USAGE, "%s %s; write 'key: value' lines and groups of them", thing, where);
    return error_set(
        reader->error, ERROR_USAGE, "%s %s, at key %s; write a single value or a group of 'key: value'", thing, where, quoted_name(reader));
}

static bool is_null(const yaml_event_t *event) {
    static const char *const spellings[] = {"", "~", "null", "Null", "NULL"};
    if (event->type != YAML_SCALAR_EVENT || event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE) return false;
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++)
        if (strcmp((const char *)event->data.scalar.value, spellings[i]) == 0) return true;
    return false;
}

/* Stores the line of the first occurrence; fails at the second. */
static bool first_time(YamlReader *reader, size_t *first_line, size_t line) {
    if (*first_line)
        return error_set(reader->error, ERROR_USAGE, "duplicate key %s %s; line %zu already sets it: keep one", quoted_name(reader),
            at_line(reader, line), *first_line);
    *first_line = line;
    return true;
}

static bool read_scalar(YamlReader *reader, const yaml_event_t *event, size_t line) {
    const OptionTable *table = reader->table;
    char value[OPTIONS_QUOTED];
    const char *where = at_line(reader, line), *text = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    const Option *option = options_find(table, reader->name, strlen(reader->name));
    const Option *member = first_of_group(table, reader->name);
    if (!option && member)
        return error_set(reader->error, ERROR_USAGE, "%s %s is a group of settings such as %s, but its value is %s", reader->name, where,
            member->name, options_quote(value, text, length));
    if (!option) return options_unknown(table, reader->name, strlen(reader->name), where, reader->error);
    if (is_null(event))
        return error_set(reader->error, ERROR_USAGE, "%s %s has no value; leave the key out to keep the default %s%s", reader->name, where,
            options_quote(value, option->initial, strlen(option->initial)),
            option->type == OPTION_STRING ? ", or write '' for an empty text" : "");
    if (!first_time(reader, &reader->seen[option - table->rows].row_line, line)) return false;
    bool plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (plain && option->type != OPTION_STRING && event->end_mark.line > event->start_mark.line)
        return error_set(reader->error, ERROR_USAGE,
            "the value of %s %s continues on line %zu, because that line is indented more than the key: indent all keys of a group equally",
            reader->name, where, event->end_mark.line + 1);
    return options_set_row(option, reader->values, reader->strings, text, length, where, reader->error);
}

/* Appends a key to the group name in reader->name[0 .. prefix). */
static bool append_key(YamlReader *reader, size_t prefix, const yaml_event_t *event) {
    const char *where = at_line(reader, event_line(event));
    if (event->type != YAML_SCALAR_EVENT)
        return error_set(reader->error, ERROR_USAGE, "a key %s is not a plain name; write 'key: value'", where);
    const char *key = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    const char *shown = options_quote(reader->key, key, length);
    if (length == 0 || memchr(key, 0, length))
        return error_set(reader->error, ERROR_USAGE, "key %s %s is empty or contains a NUL byte; --help lists all keys", shown, where);
    if (prefix + 1 + length > OPTIONS_NAME_LIMIT)
        return error_set(reader->error, ERROR_USAGE, "key %s %s makes a name longer than %d bytes; --help lists all keys", shown, where,
            OPTIONS_NAME_LIMIT);
    if (prefix) reader->name[prefix++] = '.';
    memcpy(reader->name + prefix, key, length);
    reader->name[prefix + length] = '\0';
    return true;
}

static bool open_option_group(YamlReader *reader, size_t line, int depth) {
    if (depth >= DEPTH_LIMIT)
        return error_set(reader->error, ERROR_USAGE, "key %s %s is nested more than %d levels deep; --help lists all keys",
            quoted_name(reader), at_line(reader, line), DEPTH_LIMIT);
    const Option *first = first_of_group(reader->table, reader->name);
    if (!first) return true; /* the first key inside will get the suggestion */
    size_t dots = 0;
    for (const char *c = reader->name; *c; c++) dots += *c == '.';
    assert(dots < DEPTH_LIMIT);
    return first_time(reader, &reader->seen[first - reader->table->rows].group_line[dots], line);
}

/* Keeps the error of a setting. Returns whether the next one can be read: its event was the whole value. */
static bool keeps_reading(YamlReader *reader, const yaml_event_t *event) {
    if (event->type != YAML_SCALAR_EVENT) return false;
    error_also(&reader->wrong, reader->error);
    return true;
}

/* Reads the keys of a mapping up to and including its end. DEPTH_LIMIT bounds the recursion. */
static bool read_mapping(YamlReader *reader, size_t line, int depth) {
    size_t prefix = strlen(reader->name);
    bool empty = true;
    for (;;) {
        yaml_event_t event;
        reader->name[prefix] = '\0';
        if (!next_event(reader, &event)) return false;
        if (event.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&event);
            break;
        }
        empty = false;
        size_t key_line = event_line(&event);
        bool good = append_key(reader, prefix, &event);
        yaml_event_delete(&event);
        if (!good || !next_event(reader, &event)) return false;
        if (event.type == YAML_MAPPING_START_EVENT)
            good = open_option_group(reader, key_line, depth + 1) && read_mapping(reader, key_line, depth + 1);
        else good = read_scalar(reader, &event, key_line) || keeps_reading(reader, &event);
        yaml_event_delete(&event);
        if (!good) return false;
    }
    if (empty && prefix && !first_of_group(reader->table, reader->name))
        return options_unknown(reader->table, reader->name, prefix, at_line(reader, line), reader->error);
    return true;
}

/* Skips the rest of a value; its start event was read and deleted. */
static bool skip_rest(YamlReader *reader) {
    for (int64_t depth = 1; depth > 0;) {
        yaml_event_t event;
        if (!next_event(reader, &event)) return false;
        depth += event.type == YAML_MAPPING_START_EVENT || event.type == YAML_SEQUENCE_START_EVENT;
        depth -= event.type == YAML_MAPPING_END_EVENT || event.type == YAML_SEQUENCE_END_EVENT;
        yaml_event_delete(&event);
    }
    return true;
}

/* Reads an item whose mapping has begun. */
static bool read_item(YamlReader *reader, size_t line) {
    OptionList *list = reader->list;
    if (list->count == list->most)
        return error_set(reader->error, ERROR_USAGE, "%s %s has more than %d items", list->key, at_line(reader, line), list->most);
    reader->values = (char *)list->items + (size_t)list->count++ * list->item_size;
    memset(reader->seen, 0, list->table->count * sizeof *reader->seen);
    options_defaults(list->table, reader->values, reader->strings);
    reader->name[0] = '\0';
    reader->lists = false;
    bool good = read_mapping(reader, line, 0);
    reader->lists = true;
    return good;
}

/* Reads the items of the wanted list, up to and including its end. */
static bool read_items(YamlReader *reader) {
    for (;;) {
        yaml_event_t event;
        if (!next_event(reader, &event)) return false;
        size_t line = event_line(&event);
        yaml_event_type_t type = event.type;
        yaml_event_delete(&event);
        if (type == YAML_SEQUENCE_END_EVENT) return true;
        if (type != YAML_MAPPING_START_EVENT)
            return error_set(reader->error, ERROR_USAGE, "an item of %s %s is not a group; write '- {key: value, ...}'", reader->list->key,
                at_line(reader, line));
        if (!read_item(reader, line)) return false;
    }
}

/* Reads the value of the key in reader->name. */
static bool read_list(YamlReader *reader, size_t line) {
    const char *const *keys = reader->list->keys;
    int key = 0;
    while (keys[key] && strcmp(keys[key], reader->name) != 0) key++;
    assert(key < MOST_LISTS);
    if (!keys[key]) {
        error_set(reader->error, ERROR_USAGE, "unknown key %s %s; the known keys are", quoted_name(reader), at_line(reader, line));
        for (key = 0; keys[key]; key++) error_set(reader->error, ERROR_USAGE, "%s%s %s", reader->error->message, key ? "," : "", keys[key]);
        return false;
    }
    yaml_event_t event;
    if (!first_time(reader, &reader->key_line[key], line) || !next_event(reader, &event)) return false;
    yaml_event_type_t type = event.type;
    yaml_event_delete(&event);
    if (type != YAML_SEQUENCE_START_EVENT)
        return error_set(reader->error, ERROR_USAGE, "%s %s is not a list; write '- {key: value, ...}' for each item", reader->name,
            at_line(reader, line));
    return strcmp(keys[key], reader->list->key) ? skip_rest(reader) : read_items(reader);
}

/* Reads the keys of a file of lists, up to and including its end. */
static bool read_lists(YamlReader *reader) {
    for (;;) {
        yaml_event_t event;
        reader->lists = true;
        reader->name[0] = '\0';
        if (!next_event(reader, &event)) return false;
        size_t line = event_line(&event);
        bool end = event.type == YAML_MAPPING_END_EVENT, good = end || append_key(reader, 0, &event);
        yaml_event_delete(&event);
        if (end || !good) return good;
        if (!read_list(reader, line)) return false;
    }
}

/* Reads a stream without a document, or with one that is a mapping or null. */
static bool read_yaml_stream(YamlReader *reader) {
    yaml_event_t event;
    bool good = true, rooted = false;
    for (bool more = true; good && more;) {
        if (!next_event(reader, &event)) return false;
        const char *where = at_line(reader, event_line(&event));
        more = event.type != YAML_STREAM_END_EVENT;
        if (event.type == YAML_DOCUMENT_START_EVENT && rooted)
            good = error_set(reader->error, ERROR_USAGE, "a second YAML document starts %s; a configuration is a single document", where);
        else if (event.type == YAML_MAPPING_START_EVENT)
            good = reader->list ? read_lists(reader) : read_mapping(reader, event_line(&event), 0);
        else if (event.type == YAML_SCALAR_EVENT && !is_null(&event))
            good = error_set(
                reader->error, ERROR_USAGE, "a configuration consists of 'key: value' lines, but there is a value without a key %s", where);
        rooted = rooted || event.type == YAML_DOCUMENT_START_EVENT;
        yaml_event_delete(&event);
    }
    return good;
}

/* libyaml's messages say less, and it accepts UTF-16. */
static bool check_yaml_text(const char *text, size_t length, const char *origin, Error *error) {
    if (length > TEXT_LIMIT)
        return error_set(error, ERROR_USAGE, "%s is larger than %d bytes, the limit for a configuration", origin, TEXT_LIMIT);
    size_t at;
    const char *reason = options_check_utf8(text, length, &at);
    if (!reason) return true;
    if (text[at] == '\0')
        return error_set(error, ERROR_USAGE, "there is a NUL byte at %s:%zu; a configuration is UTF-8 text", origin, line_at(text, at));
    return error_set(
        error, ERROR_USAGE, "byte 0x%02x at %s:%zu %s; save the file as UTF-8", (unsigned char)text[at], origin, line_at(text, at), reason);
}

/* `reader` has the table, the destinations of values and strings, and the name of the text in
 * errors. */
static bool parse_yaml(YamlReader *reader, const char *text, size_t length) {
    static const char byte_order_mark[] = "\xEF\xBB\xBF";
    Error *error = reader->error;
    if (!check_yaml_text(text, length, reader->origin, error)) return false;
    size_t skipped = length >= 3 && memcmp(text, byte_order_mark, 3) == 0 ? 3 : 0;
    SCOPED_FREE Seen *seen = memory_allocate(reader->table->count * sizeof *seen);
    reader->seen = seen;
    reader->text = text + skipped;
    if (!yaml_parser_initialize(&reader->parser)) return error_set(error, ERROR_MEMORY, "out of memory while reading %s", reader->origin);
    yaml_parser_set_encoding(&reader->parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&reader->parser, (const unsigned char *)reader->text, length - skipped);
    if (!read_yaml_stream(reader)) error_also(&reader->wrong, error);
    yaml_parser_delete(&reader->parser);
    if (reader->wrong.code) *error = reader->wrong;
    return !reader->wrong.code;
}

static bool parse_yaml_file(YamlReader *reader) {
    SCOPED_FREE char *text = memory_allocate(TEXT_LIMIT + 2); /* one byte more than allowed reveals a file that is too large; and a NUL */
    int64_t length = file_read_start(reader->origin, text, TEXT_LIMIT + 2);
    if (length < 0)
        return error_set(reader->error, ERROR_USAGE, "cannot read the configuration %s: %s", reader->origin,
            errno == EINVAL ? "not a regular file" : strerror(errno));
    return parse_yaml(reader, text, (size_t)length);
}

bool options_parse_yaml(
    const OptionTable *table, void *values, OptionStrings *strings, const char *text, size_t length, const char *origin, Error *error) {
    YamlReader reader = {.table = table, .values = values, .strings = strings, .origin = origin, .error = error};
    return parse_yaml(&reader, text, length);
}

bool options_read_yaml(const OptionTable *table, void *values, OptionStrings *strings, const char *path, Error *error) {
    YamlReader reader = {.table = table, .values = values, .strings = strings, .origin = path, .error = error};
    return parse_yaml_file(&reader);
}

bool options_read_yaml_list(OptionList *list, OptionStrings *strings, const char *path, Error *error) {
    YamlReader reader = {.table = list->table, .list = list, .strings = strings, .origin = path, .error = error};
    list->count = 0;
    return parse_yaml_file(&reader);
}

/* -- Writing ---------------------------------------------------------------------------------------------------- */

/* Writes text in double quotes and escapes what YAML would refuse or fold: controls, line breaks,
 * byte order marks. */
static int write_quoted(const char *text, FILE *file) {
    size_t length = strlen(text);
    int written = fprintf(file, "\"");
    for (size_t at = 0; at < length;) {
        uint32_t code_point = 0;
        int size = options_decode_utf8(text + at, length - at, &code_point);
        assert(size > 0);
        bool special = code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0) || code_point == 0x2028 || code_point == 0x2029 ||
                       code_point == 0xFEFF || code_point == 0xFFFE || code_point == 0xFFFF;
        if (special) written += fprintf(file, "\\u%04" PRIX32, code_point);
        else written += fprintf(file, "%s%.*s", code_point == '"' || code_point == '\\' ? "\\" : "", size, text + at);
        at += (size_t)size;
    }
    return written + fprintf(file, "\"");
}

/* Writes "help [unit; requirements]". */
static void write_comment(const OptionTable *table, const Option *option, FILE *file) {
    char needs[512] = "";
    if (table->explain) table->explain(option, needs, sizeof needs);
    bool ranged = *option->unit || *needs;
    fprintf(file, "# %s%s%s%s%s%s", option->help, ranged ? " [" : "", option->unit, *option->unit && *needs ? "; " : "", needs,
        ranged ? "]" : "");
}

static void write_row(const OptionTable *table, const Option *option, const void *values, const char *key, int indent, FILE *file) {
    enum { COMMENT_COLUMN = 40 };
    int column = fprintf(file, "%*s%s: ", indent, "", key);
    char text[OPTIONS_REALS];
    if (option->type != OPTION_STRING) options_format_value(option, values, text, sizeof text);
    if (option->type == OPTION_STRING) column += write_quoted(options_string(option, values), file);
    else column += option->type == OPTION_REALS ? write_quoted(text, file) : fprintf(file, "%s", text);
    if (*option->help || *option->unit) {
        fprintf(file, "%*s", column < COMMENT_COLUMN ? COMMENT_COLUMN - column : 1, "");
        write_comment(table, option, file);
    }
    fprintf(file, "\n");
}

void options_write_yaml(const OptionTable *table, const void *values, FILE *file) {
    for (size_t i = 0; i < table->count; i++) {
        const Option *option = &table->rows[i];
        size_t group = options_group_length(option->name);
        if (first_of_group(table, option->name)) continue; /* a value for the whole group, whose settings follow */
        if (group && options_opens_group(table, i)) fprintf(file, "%.*s:\n", (int)group, option->name);
        write_row(table, option, values, option->name + (group ? group + 1 : 0), group ? 2 : 0, file);
    }
}
