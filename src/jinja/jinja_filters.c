/* Filters (`value|name`) and tests (`value is name`): two tables with the supported names and
 * numbers of arguments. jinja2's documentation describes their behavior. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "jinja/jinja_internal.h"

/* -- Texts ------------------------------------------------------------------------------------------------------------- */

static Value filter_trim(Render *render, Value value, const Arguments *arguments) {
    Value set = argument(arguments, 0, "chars", value_none());
    return value_like(
        value, str_trim(render, value_string(render, value), value_is_text(set) ? &set.text : NULL, STRIP_LEFT | STRIP_RIGHT));
}

static Value filter_upper(Render *render, Value value, const Arguments *arguments) {
    (void)arguments;
    return value_like(value, str_case(render, value_string(render, value), CASE_UPPER));
}

static Value filter_lower(Render *render, Value value, const Arguments *arguments) {
    (void)arguments;
    return value_like(value, str_case(render, value_string(render, value), CASE_LOWER));
}

static Value filter_capitalize(Render *render, Value value, const Arguments *arguments) {
    (void)arguments;
    return value_like(value, str_case(render, value_string(render, value), CASE_CAPITAL));
}

/* Capitalizes words. A word begins after a blank, a hyphen or an opening bracket, but not after an
 * apostrophe. */
static Value filter_title(Render *render, Value value, const Arguments *arguments) {
    (void)arguments;
    Text text = str_case(render, value_string(render, value), CASE_LOWER);
    char *out = jinja_take(render, text.size + 1);
    for (size_t i = 0; i < text.size && out; i++) {
        bool first = i == 0 || strchr("-({[<", text.bytes[i - 1]) || str_is_space((Text){text.bytes + i - 1, 1});
        out[i] = (char)(first && text.bytes[i] >= 'a' && text.bytes[i] <= 'z' ? text.bytes[i] - 32 : text.bytes[i]);
    }
    return value_text((Text){out, out ? text.size : 0});
}

static Value filter_replace(Render *render, Value value, const Arguments *arguments) {
    Value old = argument(arguments, 0, "old", value_undefined(TEXT("old"))),
          by = argument(arguments, 1, "new", value_undefined(TEXT("new")));
    Value count = argument(arguments, 2, "count", value_none());
    int64_t most = -1;
    if (count.kind != VALUE_NONE && !value_as_integer(count, &most))
        return jinja_fail(render, "the count of replace must be an integer, but it is %s", value_kind_name(count));
    if (old.kind == VALUE_UNDEFINED || by.kind == VALUE_UNDEFINED) return jinja_fail(render, "replace needs two arguments");
    return value_text(str_replace(render, value_string(render, value), value_string(render, old), value_string(render, by), most));
}

static Value filter_string(Render *render, Value value, const Arguments *arguments) {
    (void)arguments;
    return value_like(value, value_string(render, value));
}

static Value filter_safe(Render *render, Value value, const Arguments *arguments) {
    Value text = filter_string(render, value, arguments);
    text.markup = true;
    return text;
}

static Text join_texts(Render *render, const Items *items, Text separator, Value attribute) {
    SequenceBuilder builder = {.render = render};
    for (size_t i = 0; items && i < items->count && jinja_step(render, 1); i++) {
        Value item = items->at[i];
        if (value_is_text(attribute)) item = jinja_item(render, item, attribute);
        if (i > 0) build(&builder, separator);
        build(&builder, value_string(render, item));
    }
    return built(&builder);
}

static Value filter_join(Render *render, Value value, const Arguments *arguments) {
    Value separator = argument(arguments, 0, "d", value_text(TEXT(""))), attribute = argument(arguments, 1, "attribute", value_none());
    return value_text(join_texts(render, value_iterate(render, value), value_string(render, separator), attribute));
}

static Value filter_tojson(Render *render, Value value, const Arguments *arguments) {
    Value ascii = argument(arguments, 0, "ensure_ascii", value_bool(false)), indent = argument(arguments, 1, "indent", value_none());
    Value separators = argument(arguments, 2, "separators", value_none()), sorted = argument(arguments, 3, "sort_keys", value_bool(false));
    JsonStyle style = {.ascii = value_truth(ascii),
        .sorted = value_truth(sorted),
        .lines = indent.kind != VALUE_NONE,
        .item_separator = indent.kind == VALUE_NONE ? TEXT(", ") : TEXT(","),
        .key_separator = TEXT(": ")};
    SequenceBuilder level = {.render = render};
    int64_t width = 0;
    if (value_is_text(indent)) style.indent = indent.text;
    else if (style.lines && !value_as_integer(indent, &width))
        return jinja_fail(render, "the indent of tojson must be an integer, but it is %s", value_kind_name(indent));
    for (int64_t i = 0; i < width && jinja_step(render, 1); i++) build(&level, TEXT(" "));
    if (!value_is_text(indent)) style.indent = built(&level);
    if (separators.kind != VALUE_NONE) {
        bool two = value_is_sequence(separators) && separators.items->count == 2 && value_is_text(separators.items->at[0]) &&
                   value_is_text(separators.items->at[1]);
        if (!two) return jinja_fail(render, "the separators of tojson must be two strings");
        style.item_separator = separators.items->at[0].text;
        style.key_separator = separators.items->at[1].text;
    }
    return value_text(value_json(render, value, &style));
}

/* -- Any value --------------------------------------------------------------------------------------------------------- */

static Value filter_length(Render *render, Value value, const Arguments *arguments) {
    (void)arguments;
    if (value_is_text(value)) return value_int(str_length(render, value.text));
    if (value_is_sequence(value) || value.kind == VALUE_VIEW) return value_int((int64_t)value.items->count);
    if (value.kind == VALUE_DICT) return value_int((int64_t)value.map->keys.count);
    if (value.kind == VALUE_UNDEFINED) return value_int(0);
    return jinja_fail(render, "%s has no length", value_kind_name(value));
}

static Value filter_default(Render *render, Value value, const Arguments *arguments) {
    (void)render;
    Value otherwise = argument(arguments, 0, "default_value", value_text(TEXT("")));
    bool falsehood = value_truth(argument(arguments, 1, "boolean", value_bool(false)));
    return value.kind == VALUE_UNDEFINED || (falsehood && !value_truth(value)) ? otherwise : value;
}

static Value filter_int(Render *render, Value value, const Arguments *arguments) {
    Value otherwise = argument(arguments, 0, "default", value_int(0));
    int64_t integer;
    if (value_as_integer(value, &integer)) return value_int(integer);
    if (value.kind == VALUE_REAL) return fabs(value.real) < 9e18 ? value_int((int64_t)value.real) : otherwise;
    if (!value_is_text(value)) return otherwise;
    Text text = str_trim(render, value.text, NULL, STRIP_LEFT | STRIP_RIGHT);
    size_t sign = text.size > 0 && strchr("+-", text.bytes[0]);
    if (text.size == sign || text.size > sign + 18)
        return text.size == sign ? otherwise : jinja_unknown(render, "int of a long string is not supported");
    for (integer = 0; sign < text.size; sign++) {
        if (text.bytes[sign] < '0' || text.bytes[sign] > '9')
            return jinja_unknown(render, "int of a string that is not a decimal number is not supported");
        integer = 10 * integer + text.bytes[sign] - '0';
    }
    return value_int(text.bytes[0] == '-' ? -integer : integer);
}

static Value filter_float(Render *render, Value value, const Arguments *arguments) {
    (void)arguments;
    return value_is_number(value) ? value_real(value_as_real(value))
                                  : jinja_unknown(render, "float of %s is not supported", value_kind_name(value));
}

static Value filter_abs(Render *render, Value value, const Arguments *arguments) {
    (void)arguments;
    int64_t integer;
    if (value_as_integer(value, &integer)) return value_int(integer < 0 ? -integer : integer);
    return value.kind == VALUE_REAL ? value_real(fabs(value.real)) : jinja_fail(render, "%s has no absolute value", value_kind_name(value));
}

/* -- Lists ------------------------------------------------------------------------------------------------------------- */

static Value copy_items(Render *render, ValueKind kind, const Items *items) {
    Value list = value_items(render, kind);
    for (size_t i = 0; items && i < items->count && jinja_step(render, 1); i++) items_append(render, list.items, items->at[i]);
    return list;
}

static Value filter_list(Render *render, Value value, const Arguments *arguments) {
    (void)arguments;
    return copy_items(render, VALUE_LIST, value_iterate(render, value));
}

static Value filter_items(Render *render, Value value, const Arguments *arguments) {
    (void)arguments;
    Value list = value_items(render, VALUE_GENERATOR);
    if (value.kind == VALUE_UNDEFINED) return list;
    if (value.kind != VALUE_DICT) return jinja_fail(render, "%s has no items", value_kind_name(value));
    for (size_t i = 0; i < value.map->keys.count && jinja_step(render, 1); i++) {
        Value pair = value_items(render, VALUE_TUPLE);
        items_append(render, pair.items, value.map->keys.at[i]);
        items_append(render, pair.items, value.map->values.at[i]);
        items_append(render, list.items, pair);
    }
    return list;
}

static Value filter_first(Render *render, Value value, const Arguments *arguments) {
    (void)arguments;
    if (value.kind == VALUE_GENERATOR) return jinja_unknown(render, "first of a generator is not supported: convert it with list first");
    const Items *items = value_iterate(render, value);
    return items && items->count ? items->at[0] : value_undefined(TEXT("first of an empty sequence"));
}

static Value filter_last(Render *render, Value value, const Arguments *arguments) {
    (void)arguments;
    if (value.kind == VALUE_GENERATOR) return jinja_fail(render, "last of a generator is not supported: convert it with list first");
    const Items *items = value_iterate(render, value);
    if (!items || !items->count) return value_undefined(TEXT("last of an empty sequence"));
    Value last = items->at[items->count - 1];
    return value_is_text(value) ? value_like(value, last.text) : last;
}

static Value filter_reverse(Render *render, Value value, const Arguments *arguments) {
    (void)arguments;
    if (value_is_text(value)) {
        int64_t length = str_length(render, value.text);
        return value_like(value, str_slice(render, value.text, length - 1, -1, length).text);
    }
    if (value.kind == VALUE_GENERATOR) return jinja_unknown(render, "reverse of a generator is not supported: convert it with list first");
    const Items *items = value_iterate(render, value);
    Value list = value_items(render, VALUE_GENERATOR);
    for (size_t i = items ? items->count : 0; i > 0 && jinja_step(render, 1); i--) items_append(render, list.items, items->at[i - 1]);
    return list;
}

/* Follows a path such as "a.b.0": the member of a member. */
static Value take_path(Render *render, Value value, Value path) {
    if (!value_is_text(path)) return jinja_item(render, value, path);
    Text dot = TEXT(".");
    Value parts = str_split(render, path.text, &dot, -1, false);
    for (size_t i = 0; !render->failed && i < parts.items->count; i++) {
        Text part = parts.items->at[i].text;
        if (part.size && part.bytes[0] >= '0' && part.bytes[0] <= '9')
            return jinja_unknown(render, "a number in an attribute path is not supported");
        value = jinja_item(render, value, parts.items->at[i]);
    }
    return value;
}

/* Applies the test that argument number `at` names; without a name, the value's truth. */
static bool chosen(Render *render, Value value, const Arguments *arguments, size_t at) {
    if (arguments->positional.count <= at) return value_truth(value);
    Value name = arguments->positional.at[at];
    const Test *test = value_is_text(name) ? jinja_test(name.text) : NULL;
    size_t given = arguments->positional.count - at - 1;
    if (!test) return jinja_unknown(render, "this test is not supported as an argument of a filter"), false;
    if (given != (test->compares ? 1 : 0))
        return jinja_fail(render, "the test %s takes a different number of arguments", test->name), false;
    return test->holds(render, value, test->compares ? arguments->positional.at[at + 1] : value_none());
}

static Value choose_items(Render *render, Value value, const Arguments *arguments, bool member, bool keep) {
    const Items *items = value_iterate(render, value);
    Value list = value_items(render, VALUE_GENERATOR);
    if (member && !arguments->positional.count) return jinja_fail(render, "the attribute name is missing");
    for (size_t i = 0; items && i < items->count && jinja_step(render, 1); i++) {
        Value judged = member ? take_path(render, items->at[i], arguments->positional.at[0]) : items->at[i];
        if (chosen(render, judged, arguments, member) == keep) items_append(render, list.items, items->at[i]);
    }
    return list;
}

static Value filter_select(Render *render, Value value, const Arguments *arguments) {
    return choose_items(render, value, arguments, false, true);
}
static Value filter_reject(Render *render, Value value, const Arguments *arguments) {
    return choose_items(render, value, arguments, false, false);
}
static Value filter_selectattr(Render *render, Value value, const Arguments *arguments) {
    return choose_items(render, value, arguments, true, true);
}
static Value filter_rejectattr(Render *render, Value value, const Arguments *arguments) {
    return choose_items(render, value, arguments, true, false);
}

static Value map_one(Render *render, Value value, const Arguments *arguments, Value attribute, Value otherwise) {
    if (attribute.kind != VALUE_NONE) {
        Value member = take_path(render, value, attribute);
        return member.kind == VALUE_UNDEFINED && otherwise.kind != VALUE_UNDEFINED ? otherwise : member;
    }
    Value name = argument(arguments, 0, "", value_none());
    const Filter *filter = value_is_text(name) ? jinja_filter(name.text) : NULL;
    if (!filter) return jinja_unknown(render, "this filter is not supported as an argument of map");
    Arguments rest = {.positional = {arguments->positional.at + 1, arguments->positional.count - 1, 0}, .named = arguments->named};
    return arguments_check(render, &rest, filter->name, filter->most, filter->names) ? filter->apply(render, value, &rest) : value_none();
}

static Value filter_map(Render *render, Value value, const Arguments *arguments) {
    Value attribute = argument(arguments, SIZE_MAX, "attribute", value_none());
    Value otherwise = argument(arguments, SIZE_MAX, "default", value_undefined(TEXT("")));
    const Items *items = value_iterate(render, value);
    Value list = value_items(render, VALUE_GENERATOR);
    for (size_t i = 0; items && i < items->count && jinja_step(render, 1); i++)
        items_append(render, list.items, map_one(render, items->at[i], arguments, attribute, otherwise));
    return list;
}

/* -- Sorting ----------------------------------------------------------------------------------------------------------- */

static Value fold_case(Render *render, Value value, bool sensitive) {
    return value_is_text(value) && !sensitive ? value_text(str_case(render, value.text, CASE_LOWER)) : value;
}

/* Sorts `items` by `keys`, in place and stably, by merge sort. */
static void sort_by(Render *render, Value *keys, Value *items, Value *spare, size_t count, bool reverse) {
    if (count < 2 || !jinja_step(render, count)) return;
    size_t half = count / 2, left = 0, right = half;
    sort_by(render, keys, items, spare, half, reverse);
    sort_by(render, keys + half, items + half, spare, count - half, reverse);
    for (size_t i = 0; i < count; i++) {
        int order = left < half && right < count ? value_compare(render, keys[left], keys[right]) : left < half ? -1 : 1;
        bool first = left < half && (right == count || (reverse ? order >= 0 : order <= 0));
        size_t from = first ? left++ : right++;
        spare[2 * i] = keys[from];
        spare[2 * i + 1] = items[from];
    }
    for (size_t i = 0; i < count; i++) {
        keys[i] = spare[2 * i];
        items[i] = spare[2 * i + 1];
    }
}

/* Sorts a list. `at` is the element of each item that is its key; -1: the item, or its member
 * `attribute`. */
static Value sort_items(Render *render, Value list, int at, Value attribute, bool sensitive, bool reverse) {
    size_t count = list.items->count;
    Value *keys = jinja_take(render, (count + 1) * sizeof *keys), *spare = jinja_take(render, (2 * count + 1) * sizeof *spare);
    if (!keys || !spare) return list;
    for (size_t i = 0; i < count; i++) {
        Value item = list.items->at[i];
        keys[i] = at >= 0 ? item.items->at[at] : attribute.kind == VALUE_NONE ? item : take_path(render, item, attribute);
        keys[i] = fold_case(render, keys[i], sensitive);
    }
    sort_by(render, keys, list.items->at, spare, count, reverse);
    return list;
}

static Value filter_sort(Render *render, Value value, const Arguments *arguments) {
    bool reverse = value_truth(argument(arguments, 0, "reverse", value_bool(false)));
    bool sensitive = value_truth(argument(arguments, 1, "case_sensitive", value_bool(false)));
    Value list = copy_items(render, VALUE_LIST, value_iterate(render, value));
    return sort_items(render, list, -1, argument(arguments, 2, "attribute", value_none()), sensitive, reverse);
}

static Value filter_dictsort(Render *render, Value value, const Arguments *arguments) {
    bool sensitive = value_truth(argument(arguments, 0, "case_sensitive", value_bool(false)));
    Value by = argument(arguments, 1, "by", value_text(TEXT("key")));
    bool reverse = value_truth(argument(arguments, 2, "reverse", value_bool(false)));
    bool values = value_is_text(by) && str_is(by.text, "value");
    if (value.kind != VALUE_DICT) return jinja_fail(render, "dictsort needs a dict, but got %s", value_kind_name(value));
    Value list = copy_items(render, VALUE_LIST, filter_items(render, value, arguments).items);
    return sort_items(render, list, values, value_none(), sensitive, reverse);
}

const Filter jinja_filters[] = {
    {"abs", filter_abs, 0, ""},
    {"capitalize", filter_capitalize, 0, ""},
    {"count", filter_length, 0, ""},
    {"d", filter_default, 2, "default_value|boolean"},
    {"default", filter_default, 2, "default_value|boolean"},
    {"dictsort", filter_dictsort, 3, "case_sensitive|by|reverse"},
    {"first", filter_first, 0, ""},
    {"float", filter_float, 0, ""},
    {"int", filter_int, 1, "default"},
    {"items", filter_items, 0, ""},
    {"join", filter_join, 2, "d|attribute"},
    {"last", filter_last, 0, ""},
    {"length", filter_length, 0, ""},
    {"list", filter_list, 0, ""},
    {"lower", filter_lower, 0, ""},
    {"map", filter_map, 8, "attribute|default"},
    {"reject", filter_reject, 8, ""},
    {"rejectattr", filter_rejectattr, 8, ""},
    {"replace", filter_replace, 3, "old|new|count"},
    {"reverse", filter_reverse, 0, ""},
    {"safe", filter_safe, 0, ""},
    {"select", filter_select, 8, ""},
    {"selectattr", filter_selectattr, 8, ""},
    {"sort", filter_sort, 3, "reverse|case_sensitive|attribute"},
    {"string", filter_string, 0, ""},
    {"title", filter_title, 0, ""},
    {"tojson", filter_tojson, 4, "ensure_ascii|indent|separators|sort_keys"},
    {"trim", filter_trim, 1, "chars"},
    {"upper", filter_upper, 0, ""},
    {NULL},
};

const Filter *jinja_filter(Text name) {
    for (const Filter *each = jinja_filters; each->name; each++)
        if (str_is(name, each->name)) return each;
    return NULL;
}

/* -- Tests ------------------------------------------------------------------------------------------------------------- */

#define TEST(name) static bool test_##name(Render *render, Value value, Value other)
#define UNUSED (void)render, (void)value, (void)other

TEST(defined) { return UNUSED, value.kind != VALUE_UNDEFINED; }
TEST(undefined) { return UNUSED, value.kind == VALUE_UNDEFINED; }
TEST(none) { return UNUSED, value.kind == VALUE_NONE; }
TEST(boolean) { return UNUSED, value.kind == VALUE_BOOL; }
TEST(true) { return UNUSED, value.kind == VALUE_BOOL && value.truth; }
TEST(false) { return UNUSED, value.kind == VALUE_BOOL && !value.truth; }
TEST(integer) { return UNUSED, value.kind == VALUE_INT || value.kind == VALUE_WIDE; }
TEST(float) { return UNUSED, value.kind == VALUE_REAL; }
TEST(number) { return UNUSED, value_is_number(value) || value.kind == VALUE_WIDE; }
TEST(string) { return UNUSED, value_is_text(value); }
TEST(mapping) { return UNUSED, value.kind == VALUE_DICT; }
TEST(iterable) { return UNUSED, value_can_iterate(value); }
TEST(callable) {
    return UNUSED, value.kind == VALUE_FUNCTION || value.kind == VALUE_METHOD || value.kind == VALUE_MACRO || value.kind == VALUE_UNDEFINED;
}
TEST(equal) { return UNUSED, value_equal(render, value, other); }
TEST(not_equal) { return UNUSED, !value_equal(render, value, other); }
TEST(less) { return UNUSED, value_compare(render, value, other) < 0; }
TEST(at_most) { return UNUSED, value_compare(render, value, other) <= 0; }
TEST(greater) { return UNUSED, value_compare(render, value, other) > 0; }
TEST(at_least) { return UNUSED, value_compare(render, value, other) >= 0; }

TEST(sequence) {
    UNUSED;
    return value_is_text(value) || value_is_sequence(value) || value.kind == VALUE_DICT || value.kind == VALUE_UNDEFINED;
}

TEST(same) {
    if (value.kind != other.kind) return false;
    if (value.kind == VALUE_BOOL) return value.truth == other.truth;
    if (value.kind == VALUE_NONE) return true;
    return jinja_unknown(render, "sameas is supported only for none, true and false"), false;
}

TEST(in) {
    if (value_is_text(other)) {
        if (!value_is_text(value)) return jinja_fail(render, "'in' on a string needs a string, but got %s", value_kind_name(value)), false;
        return str_search(render, other.text, value.text, 0) >= 0;
    }
    if (other.kind == VALUE_DICT) return map_find(render, other.map, value) != NULL;
    const Items *items = value_iterate(render, other);
    bool found = false;
    for (size_t i = 0; items && i < items->count && !found; i++) found = value_equal(render, items->at[i], value);
    return found;
}

TEST(odd) {
    int64_t integer;
    (void)other;
    return value_as_integer(value, &integer)
               ? integer % 2 != 0
               : (jinja_fail(render, "odd and even need an integer, but got %s", value_kind_name(value)), false);
}

TEST(even) { return !test_odd(render, value, other); }

TEST(divisible) {
    int64_t integer, by;
    bool first = value_as_integer(value, &integer), second = value_as_integer(other, &by);
    if (!first || !second || by == 0) return jinja_fail(render, "divisibleby needs integers, and a divisor other than 0"), false;
    return by == -1 || integer % by == 0;
}

const Test jinja_tests[] = {
    {"boolean", test_boolean, false},
    {"callable", test_callable, false},
    {"defined", test_defined, false},
    {"divisibleby", test_divisible, true},
    {"eq", test_equal, true},
    {"equalto", test_equal, true},
    {"even", test_even, false},
    {"false", test_false, false},
    {"float", test_float, false},
    {"ge", test_at_least, true},
    {"greaterthan", test_greater, true},
    {"gt", test_greater, true},
    {"in", test_in, true},
    {"integer", test_integer, false},
    {"iterable", test_iterable, false},
    {"le", test_at_most, true},
    {"lessthan", test_less, true},
    {"lt", test_less, true},
    {"mapping", test_mapping, false},
    {"ne", test_not_equal, true},
    {"none", test_none, false},
    {"number", test_number, false},
    {"odd", test_odd, false},
    {"sameas", test_same, true},
    {"sequence", test_sequence, false},
    {"string", test_string, false},
    {"true", test_true, false},
    {"undefined", test_undefined, false},
    /* Names by which filters such as select call these tests. */
    {"==", test_equal, true},
    {"!=", test_not_equal, true},
    {"<", test_less, true},
    {"<=", test_at_most, true},
    {">", test_greater, true},
    {">=", test_at_least, true},
    {NULL},
};

const Test *jinja_test(Text name) {
    for (const Test *each = jinja_tests; each->name; each++)
        if (str_is(name, each->name)) return each;
    return NULL;
}
