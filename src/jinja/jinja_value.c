/* Values of Python's types, and the operations that Python has for all of them: truth, equality,
 * order, str() and repr(). Values are copied freely. The data that they point to is in a pool and
 * never changes once it is shared, except in namespaces. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "base/memory.h"
#include "jinja/jinja_internal.h"

/* -- Pools ------------------------------------------------------------------------------------------------------------- */

typedef struct PoolChunk {
    struct PoolChunk *before;
    size_t size;
    _Alignas(16) char bytes[];
} PoolChunk;

void *pool_take(Pool *pool, size_t bytes) {
    enum { CHUNK_BYTES = 1 << 16 };
    bytes = (bytes + 15) / 16 * 16;
    if (!pool->chunk || pool->chunk->size - pool->used < bytes) {
        size_t size = bytes > CHUNK_BYTES / 4 ? bytes : CHUNK_BYTES;
        PoolChunk *chunk = memory_allocate(sizeof *chunk + size);
        *chunk = (PoolChunk){.before = pool->chunk, .size = size};
        *pool = (Pool){.chunk = chunk, .total = pool->total + size};
    }
    void *taken = pool->chunk->bytes + pool->used;
    pool->used += bytes;
    return taken;
}

void pool_free(Pool *pool) {
    for (PoolChunk *chunk = pool->chunk, *before; chunk; chunk = before) {
        before = chunk->before;
        free(chunk);
    }
    *pool = (Pool){0};
}

/* -- Lists and dicts --------------------------------------------------------------------------------------------------- */

Value value_items(Render *render, ValueKind kind) { return (Value){.kind = kind, .items = jinja_take_struct(render, sizeof(Items))}; }

void items_append(Render *render, Items *items, Value value) {
    if (!items->at || items->count == items->capacity) {
        size_t capacity = items->capacity ? 2 * items->capacity : 4;
        Value *at = jinja_take(render, capacity * sizeof *at);
        if (!at) return;
        if (items->count) memcpy(at, items->at, items->count * sizeof *at);
        items->at = at;
        items->capacity = capacity;
    }
    items->at[items->count++] = value;
}

Value value_map(Render *render, ValueKind kind) { return (Value){.kind = kind, .map = jinja_take_struct(render, sizeof(Map))}; }

Value *map_find_text(Render *render, const Map *map, Text key) {
    enum { KEY = 4 }; /* the cost of reading the size of a key */
    size_t work = KEY;
    Value *found = NULL;
    for (size_t i = 0; i < map->keys.count && !found; i++) {
        const Value *each = &map->keys.at[i];
        bool compares = value_is_text(*each) && each->text.size == key.size;
        work += KEY + (compares ? key.size : 0);
        if (compares && str_equal(each->text, key)) found = &map->values.at[i];
    }
    return jinja_charge(render, work) ? found : NULL;
}

Value *map_find(Render *render, const Map *map, Value key) {
    if (value_is_text(key)) return map_find_text(render, map, key.text);
    for (size_t i = 0; i < map->keys.count && !render->failed; i++)
        if (value_equal(render, map->keys.at[i], key)) return &map->values.at[i];
    return NULL;
}

void map_set(Render *render, Map *map, Value key, Value value) {
    Value *there = map_find(render, map, key);
    if (there) *there = value;
    if (there || render->failed) return;
    items_append(render, &map->keys, key);
    items_append(render, &map->values, value);
    if (map->values.count < map->keys.count) map->keys.count = map->values.count;
}

/* -- Kinds ------------------------------------------------------------------------------------------------------------- */

const char *value_kind_name(Value value) {
    static const char *const names[] = {"an undefined value", "None", "a bool", "an int", "a float", "an int beyond 64 bits", "a string",
        "a list", "a tuple", "a view of a dict", "a generator", "a dict", "a namespace", "a function", "a method", "a macro", "a loop"};
    return names[value.kind];
}

bool value_as_integer(Value value, int64_t *integer) {
    *integer = value.kind == VALUE_BOOL ? value.truth : value.integer;
    return value.kind == VALUE_BOOL || value.kind == VALUE_INT;
}

double value_as_real(Value value) {
    return value.kind == VALUE_REAL ? value.real : value.kind == VALUE_BOOL ? value.truth : (double)value.integer;
}

bool value_truth(Value value) {
    switch (value.kind) {
    case VALUE_UNDEFINED:
    case VALUE_NONE: return false;
    case VALUE_BOOL: return value.truth;
    case VALUE_INT: return value.integer != 0;
    case VALUE_REAL: return value.real != 0;
    case VALUE_TEXT: return value.text.size > 0;
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_VIEW: return value.items->count > 0;
    case VALUE_DICT: return value.map->keys.count > 0;
    default: return true;
    }
}

static bool items_equal(Render *render, const Items *a, const Items *b) {
    bool equal = a->count == b->count;
    for (size_t i = 0; i < a->count && equal; i++) equal = value_equal(render, a->at[i], b->at[i]);
    return equal;
}

static bool maps_equal(Render *render, const Map *a, const Map *b) {
    bool equal = a->keys.count == b->keys.count;
    for (size_t i = 0; i < a->keys.count && equal; i++) {
        const Value *other = map_find(render, b, a->keys.at[i]);
        equal = other && value_equal(render, a->values.at[i], *other);
    }
    return equal;
}

static bool numbers_equal(Value a, Value b) {
    int64_t left, right;
    bool first = value_as_integer(a, &left), second = value_as_integer(b, &right);
    return first && second ? left == right : value_as_real(a) == value_as_real(b);
}

bool value_equal(Render *render, Value a, Value b) {
    bool texts = value_is_text(a) && value_is_text(b) && a.text.size == b.text.size;
    if (!jinja_charge(render, JINJA_STEP + (texts ? a.text.size : 0))) return false;
    if (value_is_number(a) && value_is_number(b)) return numbers_equal(a, b);
    if (a.kind != b.kind) return false;
    bool equal = false;
    if (render->depth++ >= JINJA_DEPTH) jinja_fail(render, "data is nested more than %d levels deep", JINJA_DEPTH);
    else if (a.kind == VALUE_TEXT || a.kind == VALUE_WIDE) equal = str_equal(a.text, b.text);
    else if (value_is_sequence(a)) equal = items_equal(render, a.items, b.items);
    else if (a.kind == VALUE_DICT) equal = maps_equal(render, a.map, b.map);
    else equal = a.kind == VALUE_NONE || a.kind == VALUE_UNDEFINED || a.items == b.items;
    render->depth--;
    return equal;
}

static int compare_numbers(Value a, Value b) {
    int64_t left, right;
    bool first = value_as_integer(a, &left), second = value_as_integer(b, &right);
    if (first && second) return (left > right) - (left < right);
    return (value_as_real(a) > value_as_real(b)) - (value_as_real(a) < value_as_real(b));
}

int value_compare(Render *render, Value a, Value b) {
    if (value_is_number(a) && value_is_number(b)) return compare_numbers(a, b);
    if (value_is_text(a) && value_is_text(b))
        return jinja_charge(render, a.text.size < b.text.size ? a.text.size : b.text.size) ? str_compare(a.text, b.text) : 0;
    if (a.kind != b.kind || !value_is_sequence(a))
        jinja_fail(render, "%s and %s cannot be compared", value_kind_name(a), value_kind_name(b));
    else jinja_unknown(render, "comparing lists is not supported");
    return 0;
}

bool value_can_iterate(Value value) {
    return value_is_text(value) || value_is_sequence(value) || value.kind == VALUE_DICT || value.kind == VALUE_UNDEFINED ||
           value.kind == VALUE_VIEW || value.kind == VALUE_GENERATOR;
}

const Items *value_iterate(Render *render, Value value) {
    if (value_is_sequence(value) || value.kind == VALUE_VIEW) return value.items;
    if (value.kind == VALUE_DICT) return &value.map->keys;
    Value list = value_items(render, VALUE_LIST);
    if (value.kind == VALUE_GENERATOR) {
        *list.items = *value.items;
        *value.items = (Items){0};
        return list.items;
    }
    if (!value_can_iterate(value)) return jinja_fail(render, "%s cannot be iterated", value_kind_name(value)), NULL;
    for (size_t at = 0; value_is_text(value) && at < value.text.size && jinja_step(render, 1);) {
        Text character = str_character(value.text, at);
        items_append(render, list.items, value_text(character));
        at += character.size;
    }
    return list.items;
}

/* -- Text -------------------------------------------------------------------------------------------------------------- */

/* Builds the shortest digits that give the number back, in Python's form. */
static void build_real(SequenceBuilder *builder, double real) {
    enum { WORK = 4096 }; /* cost of 17 conversions */
    char digits[40];
    if (!jinja_charge(builder->render, WORK)) return;
    if (!isfinite(real)) return build(builder, isnan(real) ? TEXT("nan") : real > 0 ? TEXT("inf") : TEXT("-inf"));
    int precision = 1;
    do snprintf(digits, sizeof digits, "%.*e", precision - 1, real);
    while (strtod(digits, NULL) != real && ++precision <= 17);
    int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent >= 16 || exponent < -4) {
        char *e = strchr(digits, 'e');
        *e = '\0';
        build_format(builder, "%se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent));
    } else {
        int decimals = precision - 1 - exponent;
        build_format(builder, "%.*f", decimals > 1 ? decimals : 1, real);
    }
}

/* Implements str.isprintable(). repr() escapes the other characters. */
static bool is_printable(uint32_t code) {
    if (code == ' ') return true;
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

static void build_quoted(SequenceBuilder *builder, Text text) {
    bool single = text.size && memchr(text.bytes, '\'', text.size), both = single && memchr(text.bytes, '"', text.size);
    char quote = single && !both ? '"' : '\'';
    build(builder, (Text){&quote, 1});
    for (size_t at = 0; at < text.size;) {
        Text character = str_character(text, at);
        uint32_t code = str_code(character);
        if (code == (uint32_t)quote || code == '\\') build_format(builder, "\\%c", (char)code);
        else if (code == '\n' || code == '\r' || code == '\t') build_format(builder, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
        else if (is_printable(code)) build(builder, character);
        else build_format(builder, code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
        at += character.size;
    }
    build(builder, (Text){&quote, 1});
}

static void build_repr(SequenceBuilder *builder, Value value);

static void build_items(SequenceBuilder *builder, Value value) {
    bool tuple = value.kind == VALUE_TUPLE;
    build(builder, tuple ? TEXT("(") : TEXT("["));
    for (size_t i = 0; i < value.items->count; i++) {
        if (i > 0) build(builder, TEXT(", "));
        build_repr(builder, value.items->at[i]);
    }
    if (tuple && value.items->count == 1) build(builder, TEXT(","));
    build(builder, tuple ? TEXT(")") : TEXT("]"));
}

static void build_dict(SequenceBuilder *builder, const Map *map) {
    build(builder, TEXT("{"));
    for (size_t i = 0; i < map->keys.count; i++) {
        if (i > 0) build(builder, TEXT(", "));
        build_repr(builder, map->keys.at[i]);
        build(builder, TEXT(": "));
        build_repr(builder, map->values.at[i]);
    }
    build(builder, TEXT("}"));
}

static void build_repr(SequenceBuilder *builder, Value value) {
    Render *render = builder->render;
    if (!jinja_step(render, 1)) return;
    if (render->depth++ >= JINJA_DEPTH) jinja_fail(render, "data is nested more than %d levels deep", JINJA_DEPTH);
    else if (value.kind == VALUE_NONE) build(builder, TEXT("None"));
    else if (value.kind == VALUE_UNDEFINED) build(builder, TEXT("Undefined"));
    else if (value.kind == VALUE_BOOL) build(builder, value.truth ? TEXT("True") : TEXT("False"));
    else if (value.kind == VALUE_INT) build_format(builder, "%" PRId64, value.integer);
    else if (value.kind == VALUE_REAL) build_real(builder, value.real);
    else if (value.kind == VALUE_WIDE) build(builder, value.text);
    else if (value.kind == VALUE_TEXT) build_quoted(builder, value.text);
    else if (value_is_sequence(value)) build_items(builder, value);
    else if (value.kind == VALUE_DICT) build_dict(builder, value.map);
    else jinja_unknown(render, "converting %s to text is not supported", value_kind_name(value));
    render->depth--;
}

Text value_repr(Render *render, Value value) {
    SequenceBuilder builder = {.render = render};
    build_repr(&builder, value);
    return built(&builder);
}

Text value_string(Render *render, Value value) {
    if (value.kind == VALUE_TEXT) return value.text;
    return value.kind == VALUE_UNDEFINED ? TEXT("") : value_repr(render, value);
}
