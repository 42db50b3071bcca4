/* Converts JSON to values, and values to the JSON of Python's json.dumps. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_reader.h"
#include "jinja/jinja_internal.h"

/* -- Reading ----------------------------------------------------------------------------------------------------------- */

static Text copy_json_text(Render *render, const char *bytes, size_t size) {
    char *copy = jinja_take(render, size + 1);
    if (copy && size) memcpy(copy, bytes, size);
    return (Text){copy, copy ? size : 0};
}

static Value from_array(Render *render, const json_t *json, int depth) {
    Value list = value_items(render, VALUE_LIST);
    for (size_t i = 0; i < json_array_size(json) && !render->failed; i++)
        items_append(render, list.items, value_from_json(render, json_array_get(json, i), depth + 1));
    return list;
}

/* The names of an object are distinct, so no lookup is needed. */
static Value from_object(Render *render, const json_t *json, int depth) {
    Value dict = value_map(render, VALUE_DICT);
    const char *name;
    size_t size;
    json_t *member;
    json_object_keylen_foreach((json_t *)json, name, size, member) {
        if (render->failed) break;
        items_append(render, &dict.map->keys, value_text(copy_json_text(render, name, size)));
        items_append(render, &dict.map->values, value_from_json(render, member, depth + 1));
    }
    return dict;
}

static Value from_wide(Render *render, const char *number) {
    if (number[strspn(number, "-0123456789")]) return value_real(strtod(number, NULL)); /* NaN or infinity */
    return (Value){.kind = VALUE_WIDE, .text = copy_json_text(render, number, strlen(number))};
}

Value value_from_json(Render *render, const json_t *json, int depth) {
    if (depth > JINJA_DEPTH / 2) return jinja_fail(render, "data is nested more than %d levels deep", JINJA_DEPTH / 2);
    if (!jinja_step(render, 1)) return value_none();
    switch (json_typeof(json)) {
    case JSON_OBJECT: return json_wide_number(json) ? from_wide(render, json_wide_number(json)) : from_object(render, json, depth);
    case JSON_ARRAY: return from_array(render, json, depth);
    case JSON_STRING: return value_text(copy_json_text(render, json_string_value(json), json_string_length(json)));
    case JSON_INTEGER: return value_int(json_integer_value(json));
    case JSON_REAL: return value_real(json_real_value(json));
    case JSON_TRUE: return value_bool(true);
    case JSON_FALSE: return value_bool(false);
    default: return value_none();
    }
}

/* -- Writing ----------------------------------------------------------------------------------------------------------- */

static void build_escaped(SequenceBuilder *builder, uint32_t code) {
    if (code < 0x10000) return build_format(builder, "\\u%04x", code);
    code -= 0x10000;
    build_format(builder, "\\u%04x\\u%04x", 0xd800 + (code >> 10), 0xdc00 + (code & 0x3ff));
}

static void build_string(SequenceBuilder *builder, Text text, bool ascii) {
    static const char letters[] = "\"\\\n\r\t\f\b", meanings[] = "\"\\nrtfb";
    build(builder, TEXT("\""));
    for (size_t at = 0, from = 0; at <= text.size;) {
        Text character = at < text.size ? str_character(text, at) : TEXT("");
        uint32_t code = at < text.size ? str_code(character) : 0;
        const char *letter = code && code < 0x80 ? strchr(letters, (char)code) : NULL;
        bool plain = at < text.size && !letter && code >= 0x20 && !(ascii && code >= 0x7f);
        if (!plain) build(builder, (Text){text.bytes + from, at - from});
        if (at == text.size) break;
        if (letter) build_format(builder, "\\%c", meanings[letter - letters]);
        else if (!plain) build_escaped(builder, code);
        at += character.size;
        if (!plain) from = at;
    }
    build(builder, TEXT("\""));
}

static void build_line(SequenceBuilder *builder, const JsonStyle *style, int level) {
    if (!style->lines) return;
    build(builder, TEXT("\n"));
    for (int i = 0; i < level; i++) build(builder, style->indent);
}

static void build_json(SequenceBuilder *builder, Value value, const JsonStyle *style, int level);

static void build_array(SequenceBuilder *builder, const Items *items, const JsonStyle *style, int level) {
    if (items->count == 0) return build(builder, TEXT("[]"));
    build(builder, TEXT("["));
    for (size_t i = 0; i < items->count && !builder->render->failed; i++) {
        if (i > 0) build(builder, style->item_separator);
        build_line(builder, style, level + 1);
        build_json(builder, items->at[i], style, level + 1);
    }
    build_line(builder, style, level);
    build(builder, TEXT("]"));
}

static int compare_keys(const void *a, const void *b) {
    const Value *const *left = a, *const *right = b;
    return str_compare((*left)->text, (*right)->text);
}

/* Returns the keys in the order of writing. Only keys that are texts are supported; Python also
 * writes numbers as keys. */
static const Value **ordered_keys(SequenceBuilder *builder, const Map *map, bool sorted) {
    const Value **keys = jinja_take(builder->render, (map->keys.count + 1) * sizeof *keys);
    size_t work = 0; /* cost of one comparison of each key */
    for (size_t i = 0; i < map->keys.count && keys; i++) {
        keys[i] = &map->keys.at[i];
        if (!value_is_text(*keys[i]))
            return jinja_unknown(builder->render, "JSON of a dict whose keys are not strings is not supported"), NULL;
        work += JINJA_STEP + keys[i]->text.size;
    }
    if (sorted && keys && !jinja_charge(builder->render, work * (size_t)(64 - __builtin_clzll(map->keys.count | 1)))) return NULL;
    if (sorted && keys) qsort(keys, map->keys.count, sizeof *keys, compare_keys);
    return keys;
}

static void build_object(SequenceBuilder *builder, const Map *map, const JsonStyle *style, int level) {
    const Value **keys = ordered_keys(builder, map, style->sorted);
    if (!keys) return;
    if (map->keys.count == 0) return build(builder, TEXT("{}"));
    build(builder, TEXT("{"));
    for (size_t i = 0; i < map->keys.count && !builder->render->failed; i++) {
        if (i > 0) build(builder, style->item_separator);
        build_line(builder, style, level + 1);
        build_string(builder, keys[i]->text, style->ascii);
        build(builder, style->key_separator);
        build_json(builder, map->values.at[keys[i] - map->keys.at], style, level + 1);
    }
    build_line(builder, style, level);
    build(builder, TEXT("}"));
}

static void build_number(SequenceBuilder *builder, Value value) {
    if (value.kind == VALUE_REAL && !isfinite(value.real))
        build(builder, isnan(value.real) ? TEXT("NaN") : value.real > 0 ? TEXT("Infinity") : TEXT("-Infinity"));
    else build(builder, value_repr(builder->render, value));
}

static void build_json(SequenceBuilder *builder, Value value, const JsonStyle *style, int level) {
    if (level > JINJA_DEPTH) jinja_fail(builder->render, "data is nested more than %d levels deep", JINJA_DEPTH);
    if (!jinja_step(builder->render, 1)) return;
    if (value.kind == VALUE_NONE) build(builder, TEXT("null"));
    else if (value.kind == VALUE_BOOL) build(builder, value.truth ? TEXT("true") : TEXT("false"));
    else if (value_is_number(value) || value.kind == VALUE_WIDE) build_number(builder, value);
    else if (value_is_text(value)) build_string(builder, value.text, style->ascii);
    else if (value_is_sequence(value)) build_array(builder, value.items, style, level);
    else if (value.kind == VALUE_DICT) build_object(builder, value.map, style, level);
    else jinja_fail(builder->render, "%s cannot be written as JSON", value_kind_name(value));
}

Text value_json(Render *render, Value value, const JsonStyle *style) {
    SequenceBuilder builder = {.render = render};
    build_json(&builder, value, style, 0);
    return built(&builder);
}
