/* Evaluates expressions: a tree becomes a value, with Python's results. */
#include <stdlib.h>

#include "jinja/jinja_internal.h"

/* -- Names ------------------------------------------------------------------------------------------------------------- */

Value jinja_lookup(Render *render, Text name) {
    for (const Scope *scope = render->scope; scope; scope = scope->parent) {
        const Value *found = map_find_text(render, &scope->names, name);
        if (found) return *found;
    }
    return value_undefined(name);
}

/* -- Arguments --------------------------------------------------------------------------------------------------------- */

Value argument(const Arguments *arguments, size_t at, const char *name, Value otherwise) {
    if (at < arguments->positional.count) return arguments->positional.at[at];
    for (size_t i = 0; i < arguments->named.keys.count; i++)
        if (str_is(arguments->named.keys.at[i].text, name)) return arguments->named.values.at[i];
    return otherwise;
}

/* Returns whether `names`, such as "a|b", contains the name. */
static bool is_among(const char *names, Text name) {
    for (const char *at = names; *at;) {
        size_t size = strcspn(at, "|");
        if (size == name.size && !memcmp(at, name.bytes, size)) return true;
        at += size + (at[size] == '|');
    }
    return false;
}

bool arguments_check(Render *render, const Arguments *arguments, const char *what, size_t most, const char *names) {
    if (render->failed) return false;
    if (arguments->positional.count > most)
        return jinja_unknown(render, "%s with more than %zu arguments is not supported", what, most), false;
    for (size_t i = 0; i < arguments->named.keys.count && names; i++) {
        Text name = arguments->named.keys.at[i].text;
        if (!is_among(names, name))
            return jinja_unknown(render, "the argument %.*s of %s is not supported", (int)name.size, name.bytes, what), false;
    }
    return true;
}

static Arguments evaluate_arguments(Render *render, const JinjaNode *items) {
    Arguments arguments = {0};
    for (const JinjaNode *node = items; node && !render->failed; node = node->next) {
        Value value = jinja_evaluate(render, node->left);
        if (node->text.size) map_set(render, &arguments.named, value_text(node->text), value);
        else items_append(render, &arguments.positional, value);
    }
    return arguments;
}

static Value call(Render *render, Value function, const Arguments *arguments) {
    if (render->failed) return value_none();
    if (function.kind == VALUE_METHOD) return jinja_call_method(render, function.method, arguments);
    if (function.kind == VALUE_MACRO) return jinja_call_macro(render, function.macro, arguments);
    if (function.kind == VALUE_UNDEFINED)
        return jinja_fail(render, "'%.*s' is undefined and cannot be called", (int)function.text.size, function.text.bytes);
    if (function.kind != VALUE_FUNCTION) return jinja_fail(render, "%s cannot be called", value_kind_name(function));
    const JinjaFunction *known = function.function;
    return arguments_check(render, arguments, known->name, known->most, known->names) ? known->call(render, arguments) : value_none();
}

static Value evaluate_call(Render *render, const JinjaNode *node) {
    Value function = jinja_evaluate(render, node->left);
    Arguments arguments = evaluate_arguments(render, node->items);
    return call(render, function, &arguments);
}

static Value evaluate_filter(Render *render, const JinjaNode *node) {
    Value value = jinja_evaluate(render, node->left);
    Arguments arguments = evaluate_arguments(render, node->items);
    const Filter *filter = node->filter;
    if (!arguments_check(render, &arguments, filter->name, filter->most, filter->names)) return value_none();
    render->line = node->line;
    return filter->apply(render, value, &arguments);
}

static Value evaluate_test(Render *render, const JinjaNode *node) {
    Value value = jinja_evaluate(render, node->left);
    Value other = node->items ? jinja_evaluate(render, node->items->left) : value_none();
    return render->failed ? value_none() : value_bool(node->test->holds(render, value, other));
}

/* -- Elements ---------------------------------------------------------------------------------------------------------- */

static Value evaluate_items(Render *render, const JinjaNode *node, ValueKind kind) {
    Value list = value_items(render, kind);
    for (const JinjaNode *item = node->items; item && !render->failed; item = item->next)
        items_append(render, list.items, jinja_evaluate(render, item));
    return list;
}

static Value evaluate_dict(Render *render, const JinjaNode *node) {
    Value dict = value_map(render, VALUE_DICT);
    for (const JinjaNode *pair = node->items; pair && !render->failed; pair = pair->next) {
        Value key = jinja_evaluate(render, pair->left), value = jinja_evaluate(render, pair->right);
        bool fits = value_is_text(key) || value_is_number(key) || key.kind == VALUE_NONE;
        if (!fits) return jinja_unknown(render, "%s as a key of a dict is not supported", value_kind_name(key));
        map_set(render, dict.map, key, value);
    }
    return dict;
}

/* Evaluates a bound of a slice; returns false if it is absent. */
static bool take_bound(Render *render, const JinjaNode *node, int64_t *bound) {
    Value value = node ? jinja_evaluate(render, node) : value_none();
    if (value.kind == VALUE_NONE) return false;
    if (!value_as_integer(value, bound)) jinja_fail(render, "%s cannot be a bound of a slice", value_kind_name(value));
    return true;
}

/* Clamps a bound as Python does: a negative one counts from the end. */
static int64_t clamp_bound(int64_t bound, int64_t count, int64_t low, int64_t high) {
    if (bound < 0) bound = bound < -count ? low : bound + count;
    return bound < low ? low : bound > high ? high : bound;
}

static Value evaluate_slice(Render *render, const JinjaNode *node) {
    Value value = jinja_evaluate(render, node->left);
    int64_t start = 0, stop = 0, step = 1;
    bool from = take_bound(render, node->condition, &start), to = take_bound(render, node->right, &stop);
    take_bound(render, node->otherwise, &step);
    if (render->failed) return value_none();
    if (!value_is_text(value) && !value_is_sequence(value)) return jinja_fail(render, "%s cannot be sliced", value_kind_name(value));
    if (step == 0 || step == INT64_MIN) return jinja_fail(render, "the step of a slice is %s", step ? "too large" : "0");
    int64_t count = value_is_text(value) ? str_length(render, value.text) : (int64_t)value.items->count;
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? count : count - 1;
    start = from ? clamp_bound(start, count, low, high) : step > 0 ? low : high;
    stop = to ? clamp_bound(stop, count, low, high) : step > 0 ? high : low;
    int64_t distance = step > 0 ? stop - start : start - stop, stride = step > 0 ? step : -step;
    int64_t taken = distance > 0 ? (distance - 1) / stride + 1 : 0;
    if (value_is_text(value)) return value_like(value, str_slice(render, value.text, start, step, taken).text);
    Value list = value_items(render, value.kind);
    for (int64_t i = 0; i < taken && jinja_step(render, 1); i++) items_append(render, list.items, value.items->at[start + i * step]);
    return list;
}

/* -- Operators --------------------------------------------------------------------------------------------------------- */

static Value refuse_operands(Render *render, Text operator, Value left, Value right) {
    const Value *undefined = left.kind == VALUE_UNDEFINED ? &left : right.kind == VALUE_UNDEFINED ? &right : NULL;
    if (undefined) return jinja_fail(render, "'%.*s' is undefined", (int)undefined->text.size, undefined->text.bytes);
    return jinja_fail(render, "the operation %s %.*s %s is not supported", value_kind_name(left), (int)operator.size, operator.bytes,
        value_kind_name(right));
}

/* Appends a text with the characters that markupsafe escapes. */
static void build_escaped(SequenceBuilder *builder, Text text) {
    static const struct {
        char character;
        const char *escaped;
    } escapes[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
    size_t from = 0;
    for (size_t i = 0; i < text.size && jinja_charge(builder->render, 1); i++)
        for (size_t k = 0; k < sizeof escapes / sizeof *escapes; k++) {
            if (text.bytes[i] != escapes[k].character) continue;
            build(builder, (Text){text.bytes + from, i - from});
            build(builder, str_of(escapes[k].escaped));
            from = i + 1;
        }
    build(builder, (Text){text.bytes + from, text.size - from});
}

/* If one of them is marked as safe, the other is escaped. */
static Value add_texts(Render *render, Value left, Value right) {
    SequenceBuilder builder = {.render = render};
    bool markup = left.markup || right.markup;
    for (int i = 0; i < 2; i++) {
        Value part = i ? right : left;
        if (markup && !part.markup) build_escaped(&builder, part.text);
        else build(&builder, part.text);
    }
    return (Value){.kind = VALUE_TEXT, .markup = markup, .text = built(&builder)};
}

static Value add_values(Render *render, Value left, Value right) {
    if (value_is_text(left) && value_is_text(right)) return add_texts(render, left, right);
    if (!value_is_sequence(left) || left.kind != right.kind) return refuse_operands(render, TEXT("+"), left, right);
    Value list = value_items(render, left.kind);
    for (size_t i = 0; i < left.items->count && jinja_step(render, 1); i++) items_append(render, list.items, left.items->at[i]);
    for (size_t i = 0; i < right.items->count && jinja_step(render, 1); i++) items_append(render, list.items, right.items->at[i]);
    return list;
}

static Value repeat_value(Render *render, Value value, int64_t count) {
    if (!value_truth(value)) return value;
    if (value_is_text(value)) {
        SequenceBuilder builder = {.render = render};
        for (int64_t i = 0; i < count && jinja_step(render, 1); i++) build(&builder, value.text);
        return value_like(value, built(&builder));
    }
    Value list = value_items(render, value.kind);
    for (int64_t i = 0; i < count && !render->failed; i++)
        for (size_t k = 0; k < value.items->count && jinja_step(render, 1); k++) items_append(render, list.items, value.items->at[k]);
    return list;
}

static Value integer_result(Render *render, bool overflow, const int64_t *result) {
    return overflow ? jinja_unknown(render, "integers of more than 64 bits are not supported") : value_int(*result);
}

/* Division rounds down, as Python's does. */
static Value compute_integers(Render *render, Text operator, int64_t left, int64_t right) {
    int64_t result = 0;
    if (str_is(operator, "+")) return integer_result(render, __builtin_add_overflow(left, right, &result), &result);
    if (str_is(operator, "-")) return integer_result(render, __builtin_sub_overflow(left, right, &result), &result);
    if (str_is(operator, "*")) return integer_result(render, __builtin_mul_overflow(left, right, &result), &result);
    if (str_is(operator, "**")) {
        bool overflow = right < 0 || right > 64;
        for (result = 1; right > 0 && !overflow; right--) overflow = __builtin_mul_overflow(result, left, &result);
        return integer_result(render, overflow, &result);
    }
    if (right == 0) return jinja_fail(render, "division by zero");
    if (str_is(operator, "/")) return value_real((double)left / (double)right);
    if (right == -1)
        return str_is(operator, "%") ? value_int(0) : integer_result(render, __builtin_sub_overflow(0, left, &result), &result);
    int64_t rest = left % right, adjust = rest != 0 && (rest < 0) != (right < 0);
    return value_int(str_is(operator, "%") ? rest + (adjust ? right : 0) : left / right - adjust);
}

static Value compute_reals(Render *render, Text operator, double left, double right) {
    if (str_is(operator, "+")) return value_real(left + right);
    if (str_is(operator, "-")) return value_real(left - right);
    if (str_is(operator, "*")) return value_real(left * right);
    if (!str_is(operator, "/")) return jinja_unknown(render, "%.*s of floats is not supported", (int)operator.size, operator.bytes);
    return right != 0 ? value_real(left / right) : jinja_fail(render, "division by zero");
}

static Value evaluate_binary(Render *render, const JinjaNode *node) {
    Value left = jinja_evaluate(render, node->left), right = jinja_evaluate(render, node->right);
    int64_t a, b;
    if (render->failed) return value_none();
    bool first = value_as_integer(left, &a), second = value_as_integer(right, &b), integers = first && second;
    if (integers) return compute_integers(render, node->text, a, b);
    if (value_is_number(left) && value_is_number(right))
        return compute_reals(render, node->text, value_as_real(left), value_as_real(right));
    if (str_is(node->text, "+")) return add_values(render, left, right);
    bool times = str_is(node->text, "*");
    if (times && value_as_integer(right, &b) && (value_is_text(left) || value_is_sequence(left))) return repeat_value(render, left, b);
    if (times && value_as_integer(left, &a) && (value_is_text(right) || value_is_sequence(right))) return repeat_value(render, right, a);
    if (str_is(node->text, "%") && value_is_text(left)) return jinja_unknown(render, "formatting with %% is not supported");
    return refuse_operands(render, node->text, left, right);
}

static Value evaluate_join(Render *render, const JinjaNode *node) {
    SequenceBuilder builder = {.render = render};
    build(&builder, value_string(render, jinja_evaluate(render, node->left)));
    build(&builder, value_string(render, jinja_evaluate(render, node->right)));
    return value_text(built(&builder));
}

static Value evaluate_sign(Render *render, const JinjaNode *node) {
    Value value = jinja_evaluate(render, node->left);
    int64_t sign = node->kind == NODE_NEGATIVE ? -1 : 1, integer;
    if (value.kind == VALUE_REAL) return value_real((double)sign * value.real);
    if (!value_as_integer(value, &integer)) return jinja_fail(render, "a sign before %s is not supported", value_kind_name(value));
    int64_t result = 0;
    return integer_result(render, __builtin_mul_overflow(sign, integer, &result), &result);
}

static bool comparison_holds(Render *render, Text operator, Value left, Value right) {
    if (str_is(operator, "==")) return value_equal(render, left, right);
    if (str_is(operator, "!=")) return !value_equal(render, left, right);
    if (str_is(operator, "in")) return jinja_test(TEXT("in"))->holds(render, left, right);
    if (str_is(operator, "not in")) return !jinja_test(TEXT("in"))->holds(render, left, right);
    if (left.kind == VALUE_UNDEFINED || right.kind == VALUE_UNDEFINED) return refuse_operands(render, operator, left, right), false;
    int order = value_compare(render, left, right);
    return operator.bytes[0] == '<' ? order < (operator.size > 1) : order > -(operator.size > 1);
}

/* Evaluates a < b < c as a < b and b < c. */
static Value evaluate_compare(Render *render, const JinjaNode *node) {
    Value left = jinja_evaluate(render, node->left);
    for (const JinjaNode *each = node->items; each && !render->failed; each = each->next) {
        Value right = jinja_evaluate(render, each->right);
        if (render->failed || !comparison_holds(render, each->text, left, right)) return value_bool(false);
        left = right;
    }
    return value_bool(true);
}

static Value evaluate_logic(Render *render, const JinjaNode *node) {
    Value left = jinja_evaluate(render, node->left);
    return value_truth(left) == (node->kind == NODE_OR) ? left : jinja_evaluate(render, node->right);
}

static Value evaluate_conditional(Render *render, const JinjaNode *node) {
    if (value_truth(jinja_evaluate(render, node->condition))) return jinja_evaluate(render, node->left);
    return node->right ? jinja_evaluate(render, node->right) : value_undefined(TEXT("a conditional without else"));
}

static Value evaluate_member(Render *render, const JinjaNode *node) {
    Value value = jinja_evaluate(render, node->left);
    if (node->kind == NODE_ATTRIBUTE) return render->failed ? value_none() : jinja_attribute(render, value, node->text);
    Value key = jinja_evaluate(render, node->right);
    return render->failed ? value_none() : jinja_item(render, value, key);
}

static Value dispatch(Render *render, const JinjaNode *node) {
    switch (node->kind) {
    case NODE_CONSTANT: return node->constant;
    case NODE_NAME: return jinja_lookup(render, node->text);
    case NODE_LIST: return evaluate_items(render, node, VALUE_LIST);
    case NODE_TUPLE: return evaluate_items(render, node, VALUE_TUPLE);
    case NODE_DICT: return evaluate_dict(render, node);
    case NODE_ATTRIBUTE:
    case NODE_ITEM: return evaluate_member(render, node);
    case NODE_SLICE: return evaluate_slice(render, node);
    case NODE_CALL: return evaluate_call(render, node);
    case NODE_FILTER: return evaluate_filter(render, node);
    case NODE_TEST: return evaluate_test(render, node);
    case NODE_NOT: return value_bool(!value_truth(jinja_evaluate(render, node->left)));
    case NODE_NEGATIVE:
    case NODE_POSITIVE: return evaluate_sign(render, node);
    case NODE_AND:
    case NODE_OR: return evaluate_logic(render, node);
    case NODE_BINARY: return evaluate_binary(render, node);
    case NODE_JOIN: return evaluate_join(render, node);
    case NODE_COMPARE: return evaluate_compare(render, node);
    default: return evaluate_conditional(render, node);
    }
}

Value jinja_evaluate(Render *render, const JinjaNode *node) {
    if (!jinja_step(render, 1)) return value_none();
    if (render->depth >= JINJA_CALL_DEPTH) return jinja_fail(render, "nesting exceeds %d levels", JINJA_CALL_DEPTH);
    render->line = node->line;
    render->depth++;
    Value value = dispatch(render, node);
    render->depth--;
    return value;
}
