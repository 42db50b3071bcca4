/* Tables of the members of values, including methods, and of the functions that a template may
 * call. A member that Python has and the table lacks is refused when it is called. */
#include <stdlib.h>
#include <string.h>

#include "jinja/jinja_internal.h"

static Value first_argument(const Arguments *arguments) { return argument(arguments, 0, "", value_none()); }

/* -- Methods of texts -------------------------------------------------------------------------------------------------- */

static Value strip_method(Render *render, Value self, const Arguments *arguments, int sides) {
    Value set = first_argument(arguments);
    if (set.kind != VALUE_NONE && !value_is_text(set)) return jinja_fail(render, "strip takes a string");
    return value_text(str_trim(render, self.text, value_is_text(set) ? &set.text : NULL, sides));
}

static Value method_strip(Render *render, Value self, const Arguments *arguments) {
    return strip_method(render, self, arguments, STRIP_LEFT | STRIP_RIGHT);
}
static Value method_lstrip(Render *render, Value self, const Arguments *arguments) {
    return strip_method(render, self, arguments, STRIP_LEFT);
}
static Value method_rstrip(Render *render, Value self, const Arguments *arguments) {
    return strip_method(render, self, arguments, STRIP_RIGHT);
}

static Value split_text(Render *render, Value self, const Arguments *arguments, bool from_right) {
    Value separator = argument(arguments, 0, "sep", value_none()), most = argument(arguments, 1, "maxsplit", value_int(-1));
    int64_t limit;
    if ((separator.kind != VALUE_NONE && !value_is_text(separator)) || !value_as_integer(most, &limit))
        return jinja_fail(render, "split takes a string and an integer");
    return str_split(render, self.text, value_is_text(separator) ? &separator.text : NULL, limit, from_right);
}

static Value method_split(Render *render, Value self, const Arguments *arguments) { return split_text(render, self, arguments, false); }
static Value method_rsplit(Render *render, Value self, const Arguments *arguments) { return split_text(render, self, arguments, true); }

static Value method_splitlines(Render *render, Value self, const Arguments *arguments) {
    return str_split_lines(render, self.text, value_truth(argument(arguments, 0, "keepends", value_bool(false))));
}

static bool at_side(Render *render, Text text, Text part, bool end) {
    if (part.size > text.size || !jinja_charge(render, part.size)) return false;
    return part.size == 0 || !memcmp(text.bytes + (end ? text.size - part.size : 0), part.bytes, part.size);
}

/* Returns whether the text has `part` at its start or end; for a tuple, whether it has one of its
 * texts there. */
static Value has_side(Render *render, Value self, const Arguments *arguments, bool end) {
    Value part = first_argument(arguments);
    if (value_is_text(part)) return value_bool(at_side(render, self.text, part.text, end));
    bool found = false, texts = part.kind == VALUE_TUPLE;
    for (size_t i = 0; texts && i < part.items->count && jinja_step(render, 1); i++) {
        texts = value_is_text(part.items->at[i]);
        found = found || (texts && at_side(render, self.text, part.items->at[i].text, end));
    }
    return texts ? value_bool(found) : jinja_fail(render, "startswith and endswith take a string or a tuple of strings");
}

static Value method_startswith(Render *render, Value self, const Arguments *arguments) { return has_side(render, self, arguments, false); }
static Value method_endswith(Render *render, Value self, const Arguments *arguments) { return has_side(render, self, arguments, true); }

static Value remove_side(Render *render, Value self, const Arguments *arguments, bool end) {
    Value part = first_argument(arguments);
    if (!value_is_text(part)) return jinja_fail(render, "removeprefix and removesuffix take a string");
    if (!at_side(render, self.text, part.text, end)) return self;
    return value_text((Text){self.text.bytes + (end ? 0 : part.text.size), self.text.size - part.text.size});
}

static Value method_removeprefix(Render *render, Value self, const Arguments *arguments) {
    return remove_side(render, self, arguments, false);
}
static Value method_removesuffix(Render *render, Value self, const Arguments *arguments) {
    return remove_side(render, self, arguments, true);
}

static Value method_replace(Render *render, Value self, const Arguments *arguments) {
    Value old = argument(arguments, 0, "", value_none()), by = argument(arguments, 1, "", value_none());
    Value count = argument(arguments, 2, "count", value_int(-1));
    int64_t most;
    if (!value_is_text(old) || !value_is_text(by) || !value_as_integer(count, &most))
        return jinja_fail(render, "replace takes two strings and an integer count");
    return value_text(str_replace(render, self.text, old.text, by.text, most));
}

static Value method_upper(Render *render, Value self, const Arguments *arguments) {
    (void)arguments;
    return value_text(str_case(render, self.text, CASE_UPPER));
}

static Value method_lower(Render *render, Value self, const Arguments *arguments) {
    (void)arguments;
    return value_text(str_case(render, self.text, CASE_LOWER));
}

static Value method_title(Render *render, Value self, const Arguments *arguments) {
    (void)arguments;
    return value_text(str_case(render, self.text, CASE_TITLE));
}

static Value method_capitalize(Render *render, Value self, const Arguments *arguments) {
    (void)arguments;
    return value_text(str_case(render, self.text, CASE_CAPITAL));
}

static Value method_join(Render *render, Value self, const Arguments *arguments) {
    SequenceBuilder builder = {.render = render};
    const Items *items = value_iterate(render, first_argument(arguments));
    for (size_t i = 0; items && i < items->count && jinja_step(render, 1); i++) {
        if (!value_is_text(items->at[i])) return jinja_fail(render, "join takes strings, not %s", value_kind_name(items->at[i]));
        if (i > 0) build(&builder, self.text);
        build(&builder, items->at[i].text);
    }
    return value_text(built(&builder));
}

static Value method_find(Render *render, Value self, const Arguments *arguments) {
    Value part = first_argument(arguments);
    if (!value_is_text(part)) return jinja_fail(render, "find takes a string");
    int64_t at = str_search(render, self.text, part.text, 0);
    return value_int(at < 0 ? -1 : str_length(render, (Text){self.text.bytes, (size_t)at}));
}

static Value method_count(Render *render, Value self, const Arguments *arguments) {
    Value part = first_argument(arguments);
    if (!value_is_text(part) || part.text.size == 0) return jinja_fail(render, "count takes a non-empty string");
    int64_t count = 0;
    for (int64_t at = 0; (at = str_search(render, self.text, part.text, (size_t)at)) >= 0; at += (int64_t)part.text.size) count++;
    return value_int(count);
}

const MethodEntry jinja_text_methods[] = {
    {"capitalize", method_capitalize, 0, 0, ""},
    {"count", method_count, 1, 1, ""},
    {"endswith", method_endswith, 1, 1, ""},
    {"find", method_find, 1, 1, ""},
    {"join", method_join, 1, 1, ""},
    {"lower", method_lower, 0, 0, ""},
    {"lstrip", method_lstrip, 0, 1, ""},
    {"removeprefix", method_removeprefix, 1, 1, ""},
    {"removesuffix", method_removesuffix, 1, 1, ""},
    {"replace", method_replace, 2, 3, "count"},
    {"rsplit", method_rsplit, 0, 2, "sep|maxsplit"},
    {"rstrip", method_rstrip, 0, 1, ""},
    {"split", method_split, 0, 2, "sep|maxsplit"},
    {"splitlines", method_splitlines, 0, 1, "keepends"},
    {"startswith", method_startswith, 1, 1, ""},
    {"strip", method_strip, 0, 1, ""},
    {"title", method_title, 0, 0, ""},
    {"upper", method_upper, 0, 0, ""},
    {"casefold"},
    {"center"},
    {"encode"},
    {"expandtabs"},
    {"format"},
    {"format_map"},
    {"index"},
    {"isalnum"},
    {"isalpha"},
    {"isascii"},
    {"isdecimal"},
    {"isdigit"},
    {"isidentifier"},
    {"islower"},
    {"isnumeric"},
    {"isprintable"},
    {"isspace"},
    {"istitle"},
    {"isupper"},
    {"ljust"},
    {"maketrans"},
    {"partition"},
    {"rfind"},
    {"rindex"},
    {"rjust"},
    {"rpartition"},
    {"swapcase"},
    {"translate"},
    {"zfill"},
    {NULL},
};

/* -- Methods of dicts and lists ---------------------------------------------------------------------------------------- */

static Value method_get(Render *render, Value self, const Arguments *arguments) {
    const Value *found = map_find(render, self.map, first_argument(arguments));
    return found ? *found : argument(arguments, 1, "", value_none());
}

static Value method_keys(Render *render, Value self, const Arguments *arguments) {
    (void)render, (void)arguments;
    return (Value){.kind = VALUE_VIEW, .items = &self.map->keys};
}

static Value method_values(Render *render, Value self, const Arguments *arguments) {
    (void)render, (void)arguments;
    return (Value){.kind = VALUE_VIEW, .items = &self.map->values};
}

static Value method_items(Render *render, Value self, const Arguments *arguments) {
    Value items = jinja_filter(TEXT("items"))->apply(render, self, arguments);
    items.kind = VALUE_VIEW;
    return items;
}

const MethodEntry jinja_dict_methods[] = {
    {"get", method_get, 1, 2, ""},
    {"items", method_items, 0, 0, ""},
    {"keys", method_keys, 0, 0, ""},
    {"values", method_values, 0, 0, ""},
    {"clear"},
    {"copy"},
    {"fromkeys"},
    {"pop"},
    {"popitem"},
    {"setdefault"},
    {"update"},
    {NULL},
};
const MethodEntry jinja_list_methods[] = {
    {"append"}, {"clear"}, {"copy"}, {"count"}, {"extend"}, {"index"}, {"insert"}, {"pop"}, {"remove"}, {"reverse"}, {"sort"}, {NULL}};
static const MethodEntry no_methods[] = {{NULL}};

static Value find_method(Render *render, Value self, Text name) {
    const MethodEntry *entry = value_is_text(self)       ? jinja_text_methods
                               : self.kind == VALUE_DICT ? jinja_dict_methods
                               : value_is_sequence(self) ? jinja_list_methods
                                                         : no_methods;
    while (entry->name && !str_is(name, entry->name)) entry++;
    if (!entry->name) return value_undefined(name);
    if (self.markup) return jinja_unknown(render, "methods of the result of safe are not supported");
    Method *method = jinja_take(render, sizeof *method);
    if (!method) return value_none();
    *method = (Method){self, entry};
    return (Value){.kind = VALUE_METHOD, .method = method};
}

Value jinja_call_method(Render *render, const Method *method, const Arguments *arguments) {
    const MethodEntry *entry = method->entry;
    if (!entry->call) return jinja_unknown(render, "the method %s of %s is not supported", entry->name, value_kind_name(method->self));
    if (!arguments_check(render, arguments, entry->name, entry->most, entry->names)) return value_none();
    if (arguments->positional.count < entry->least) return jinja_fail(render, "%s needs more arguments", entry->name);
    return entry->call(render, method->self, arguments);
}

/* -- Members ----------------------------------------------------------------------------------------------------------- */

static Value loop_item(const LoopState *loop, bool there, size_t at, Text name) {
    return there ? loop->items->at[at] : value_undefined(name);
}

static Value loop_member(Render *render, const LoopState *loop, Text name) {
    size_t count = loop->items->count, at = loop->at;
    if (str_is(name, "index")) return value_int((int64_t)at + 1);
    if (str_is(name, "index0")) return value_int((int64_t)at);
    if (str_is(name, "first")) return value_bool(at == 0);
    if (str_is(name, "last")) return value_bool(at + 1 == count);
    if (str_is(name, "length")) return value_int((int64_t)count);
    if (str_is(name, "revindex")) return value_int((int64_t)(count - at));
    if (str_is(name, "revindex0")) return value_int((int64_t)(count - at) - 1);
    if (str_is(name, "previtem")) return loop_item(loop, at > 0, at - 1, name);
    if (str_is(name, "nextitem")) return loop_item(loop, at + 1 < count, at + 1, name);
    if (str_is(name, "depth")) return value_int(1); /* recursive loops are not supported */
    if (str_is(name, "depth0")) return value_int(0);
    if (str_is(name, "cycle") || str_is(name, "changed"))
        return jinja_unknown(render, "loop.%.*s is not supported", (int)name.size, name.bytes);
    return value_undefined(name);
}

static Value refuse_undefined(Render *render, Value value) {
    return jinja_fail(render, "'%.*s' is undefined", (int)value.text.size, value.text.bytes);
}

Value jinja_attribute(Render *render, Value value, Text name) {
    const Value *found = NULL;
    if (value.kind == VALUE_UNDEFINED) return refuse_undefined(render, value);
    if (value.kind == VALUE_LOOP) return loop_member(render, value.loop, name);
    if (value.kind == VALUE_MACRO || value.kind == VALUE_FUNCTION)
        return jinja_unknown(render, "attributes of %s are not supported", value_kind_name(value));
    if (value.kind == VALUE_NAMESPACE) found = map_find_text(render, value.map, name);
    else {
        Value method = find_method(render, value, name);
        if (method.kind != VALUE_UNDEFINED) return method;
        if (value.kind == VALUE_DICT) found = map_find(render, value.map, value_text(name));
    }
    return found ? *found : value_undefined(name);
}

static Value take_element(Render *render, Value value, int64_t at) {
    int64_t count = value_is_text(value) ? str_length(render, value.text) : (int64_t)value.items->count;
    if (at < 0) at += count;
    if (at < 0 || at >= count) return value_undefined(TEXT("an index outside the list"));
    return value_is_text(value) ? value_like(value, str_slice(render, value.text, at, 1, 1).text) : value.items->at[at];
}

Value jinja_item(Render *render, Value value, Value key) {
    int64_t at;
    if (value.kind == VALUE_UNDEFINED) return refuse_undefined(render, value);
    if (value.kind == VALUE_VIEW) return jinja_unknown(render, "indexing a view is not supported: convert it with list first");
    if (value.kind == VALUE_DICT) {
        const Value *found = map_find(render, value.map, key);
        if (found) return *found;
        return value_is_text(key) ? find_method(render, value, key.text) : value_undefined(TEXT("a key missing from the dict"));
    }
    if ((value_is_sequence(value) || value_is_text(value)) && value_as_integer(key, &at)) return take_element(render, value, at);
    return value_is_text(key) ? jinja_attribute(render, value, key.text) : value_undefined(TEXT("an item of a value without items"));
}

/* -- Functions --------------------------------------------------------------------------------------------------------- */

static Value function_raise(Render *render, const Arguments *arguments) {
    Text message = value_string(render, argument(arguments, 0, "message", value_text(TEXT(""))));
    return jinja_fail(render, "the template rejects the conversation: %.*s", (int)(message.size < 500 ? message.size : 500), message.bytes);
}

static Value function_strftime(Render *render, const Arguments *arguments) {
    Value format = argument(arguments, 0, "format", value_none());
    char *text = jinja_take(render, 1024);
    if (!value_is_text(format) || format.text.size > 200 || !text)
        return jinja_fail(render, "strftime_now takes a string of at most 200 bytes");
    char *pattern = jinja_take(render, format.text.size + 1);
    struct tm local;
    if (!pattern || !localtime_r(&render->now, &local)) return jinja_fail(render, "the local time is not available");
    memcpy(pattern, format.text.bytes, format.text.size);
    return value_text((Text){text, strftime(text, 1024, pattern, &local)});
}

static Value make_map(Render *render, const Arguments *arguments, ValueKind kind) {
    Value made = value_map(render, kind), from = first_argument(arguments);
    if (arguments->positional.count && from.kind != VALUE_DICT)
        return jinja_unknown(render, "dict and namespace are supported only with a dict and keyword arguments");
    const Map *maps[] = {arguments->positional.count ? from.map : NULL, &arguments->named};
    for (int i = 0; i < 2; i++)
        for (size_t k = 0; maps[i] && k < maps[i]->keys.count; k++) map_set(render, made.map, maps[i]->keys.at[k], maps[i]->values.at[k]);
    return made;
}

static Value function_namespace(Render *render, const Arguments *arguments) { return make_map(render, arguments, VALUE_NAMESPACE); }
static Value function_dict(Render *render, const Arguments *arguments) { return make_map(render, arguments, VALUE_DICT); }

static Value function_range(Render *render, const Arguments *arguments) {
    enum { MOST = 100000 }; /* the limit of jinja2's sandbox */
    int64_t bounds[3] = {0, 0, 1};
    size_t count = arguments->positional.count;
    for (size_t i = 0; i < count; i++)
        if (arguments->positional.at[i].kind != VALUE_INT || !value_as_integer(arguments->positional.at[i], &bounds[count == 1 ? 1 : i]))
            return jinja_fail(render, "range takes integers");
    if (count == 0 || bounds[2] == 0) return jinja_fail(render, "range takes one to three integers, and a step other than 0");
    Value list = value_items(render, VALUE_VIEW);
    for (int64_t at = bounds[0]; bounds[2] > 0 ? at < bounds[1] : at > bounds[1];) {
        if (list.items->count == MOST) return jinja_fail(render, "range is limited to %d elements", MOST);
        items_append(render, list.items, value_int(at));
        if (__builtin_add_overflow(at, bounds[2], &at) || render->failed) break;
    }
    return list;
}

const JinjaFunction jinja_functions[] = {
    {"dict", function_dict, 1, NULL},
    {"namespace", function_namespace, 1, NULL},
    {"raise_exception", function_raise, 1, "message"},
    {"range", function_range, 3, ""},
    {"strftime_now", function_strftime, 1, "format"},
    {NULL},
};

void jinja_define_functions(Render *render) {
    for (const JinjaFunction *each = jinja_functions; each->name; each++)
        map_set(render, &render->globals->names, value_text(str_of(each->name)), (Value){.kind = VALUE_FUNCTION, .function = each});
}
