/* Runs statements and whole renderings; implements template.h. A rendering owns its pool and a
 * chain of scopes in it; the caller owns the text and its marks. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <utf8proc.h>

#include "base/array.h"
#include "base/memory.h"
#include "base/strings.h"
#include "jinja/jinja_internal.h"

/* -- Failures and limits ----------------------------------------------------------------------------------------------- */

static void note_error(Render *render, ErrorCode code, const char *format, va_list arguments) {
    char what[1024];
    if (render->failed) return;
    render->failed = true;
    vsnprintf(what, sizeof what, format, arguments);
    error_set(render->error, code, "%s, line %d: %s", render->template->name, render->line, one_line(what));
}

Value jinja_fail(Render *render, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    note_error(render, ERROR_DATA, format, arguments);
    va_end(arguments);
    return value_none();
}

Value jinja_unknown(Render *render, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    note_error(render, ERROR_USAGE, format, arguments);
    va_end(arguments);
    return value_none();
}

bool jinja_charge(Render *render, size_t bytes) {
    if (bytes > (size_t)(render->work - render->work_done)) {
        jinja_fail(render, "the template takes more than %lld steps (one per node, list element and %d bytes of text)",
            (long long)render->work / JINJA_STEP, JINJA_STEP);
        bytes = (size_t)(render->work - render->work_done);
    }
    render->work_done += (int64_t)bytes;
    return !render->failed;
}

void *jinja_take(Render *render, size_t bytes) {
    if (bytes > JINJA_POOL_BYTES || render->pool.total + bytes > JINJA_POOL_BYTES)
        jinja_fail(render, "the template needs more than %d MiB of memory", JINJA_POOL_BYTES >> 20);
    return jinja_charge(render, bytes) ? pool_take(&render->pool, bytes) : NULL;
}

void *jinja_take_struct(Render *render, size_t bytes) {
    void *taken = jinja_take(render, bytes);
    return taken ? taken : pool_take(&render->pool, bytes);
}

/* -- Output ------------------------------------------------------------------------------------------------------------ */

static void append_text(Render *render, ChatText *out, Text text) {
    if (!jinja_charge(render, text.size)) return;
    if (out->size + text.size > JINJA_OUTPUT_BYTES) {
        jinja_fail(render, "the output exceeds %d MiB", JINJA_OUTPUT_BYTES >> 20);
        return;
    }
    array_reserve(out->bytes, out->capacity, out->size + text.size + 1);
    if (text.size) memcpy(out->bytes + out->size, text.bytes, text.size);
    out->size += text.size;
    out->bytes[out->size] = '\0';
}

static void put_output(Render *render, Text text) {
    if (render->capture) build(render->capture, text);
    else append_text(render, render->text, text);
}

/* -- Scopes ------------------------------------------------------------------------------------------------------------ */

static Scope *open_scope(Render *render, Scope *parent) {
    Scope *scope = jinja_take_struct(render, sizeof *scope);
    scope->parent = parent;
    return scope;
}

static void assign_member(Render *render, const JinjaNode *target, Value value) {
    Value namespace = jinja_lookup(render, target->left->text);
    if (namespace.kind != VALUE_NAMESPACE) jinja_fail(render, "only attributes of a namespace can be set");
    else if (target->text.bytes[0] == '_') jinja_fail(render, "an attribute of a namespace cannot begin with _");
    else map_set(render, namespace.map, value_text(target->text), value);
}

/* Binds `target`: a name, a tuple of names, or a namespace's member. */
static void assign(Render *render, const JinjaNode *target, Value value) {
    if (render->failed) return;
    if (target->kind == NODE_NAME) return map_set(render, &render->scope->names, value_text(target->text), value);
    if (target->kind == NODE_ATTRIBUTE) return assign_member(render, target, value);
    const Items *items = value_iterate(render, value);
    size_t count = 0, at = 0;
    if (!items) return;
    for (const JinjaNode *each = target->items; each; each = each->next) count++;
    if (items->count != count) jinja_fail(render, "cannot assign %zu values to %zu names", items->count, count);
    for (const JinjaNode *each = target->items; each && !render->failed; each = each->next) assign(render, each, items->at[at++]);
}

/* -- Statements -------------------------------------------------------------------------------------------------------- */

static void run_statements(Render *render, const JinjaNode *items);

static void run_scoped(Render *render, const JinjaNode *items) {
    Scope *outer = render->scope;
    render->scope = open_scope(render, outer);
    run_statements(render, items);
    render->scope = outer;
}

/* Returns the output of statements as a text. */
static Text capture(Render *render, const JinjaNode *items) {
    SequenceBuilder builder = {.render = render}, *outer = render->capture;
    render->capture = &builder;
    run_scoped(render, items);
    render->capture = outer;
    return built(&builder);
}

static void run_if(Render *render, const JinjaNode *node) {
    while (!value_truth(jinja_evaluate(render, node->condition)) && !render->failed) {
        const JinjaNode *otherwise = node->otherwise;
        /* An elif is stored as a single `if` in otherwise, just like an `else` that contains one
         * `if`. */
        if (!otherwise || otherwise->kind != NODE_IF || otherwise->next) return run_statements(render, otherwise);
        node = otherwise;
    }
    run_statements(render, node->items);
}

/* Returns the items of a loop that meet its condition. */
static const Items *loop_items(Render *render, const JinjaNode *node, const Items *all) {
    if (!node->condition || !all) return all;
    Value list = value_items(render, VALUE_LIST);
    Scope *outer = render->scope;
    for (size_t i = 0; i < all->count && jinja_step(render, 1); i++) {
        render->scope = open_scope(render, outer);
        assign(render, node->left, all->at[i]);
        if (value_truth(jinja_evaluate(render, node->condition))) items_append(render, list.items, all->at[i]);
    }
    render->scope = outer;
    return list.items;
}

static void run_for(Render *render, const JinjaNode *node) {
    const Items *items = loop_items(render, node, value_iterate(render, jinja_evaluate(render, node->right)));
    Scope *outer = render->scope;
    if (render->failed) return;
    LoopState *loop = jinja_take(render, sizeof *loop);
    bool completed = false; /* an iteration ended without break or continue: jinja2 runs `else` if none did */
    for (size_t i = 0; i < items->count && jinja_step(render, 1) && render->control != CONTROL_BREAK; i++) {
        *loop = (LoopState){items, i};
        render->control = CONTROL_NONE;
        render->scope = open_scope(render, outer);
        map_set(render, &render->scope->names, value_text(TEXT("loop")), (Value){.kind = VALUE_LOOP, .loop = loop});
        assign(render, node->left, items->at[i]);
        run_statements(render, node->items);
        completed = completed || render->control == CONTROL_NONE;
    }
    render->control = CONTROL_NONE;
    render->scope = outer;
    if (!completed) run_scoped(render, node->otherwise);
}

static void run_set(Render *render, const JinjaNode *node) {
    Value value = node->right ? jinja_evaluate(render, node->right) : value_text(capture(render, node->items));
    assign(render, node->left, value);
}

static void define_macro(Render *render, const JinjaNode *node) {
    Macro *macro = jinja_take(render, sizeof *macro);
    if (!macro) return;
    *macro = (Macro){node, render->scope};
    map_set(render, &render->scope->names, value_text(node->text), (Value){.kind = VALUE_MACRO, .macro = macro});
}

/* Binds parameters in order; a default may refer to earlier ones. */
static void bind_parameters(Render *render, const JinjaNode *node, const Arguments *arguments) {
    size_t at = 0, named = 0;
    for (const JinjaNode *parameter = node->parameters; parameter && !render->failed; parameter = parameter->next, at++) {
        const Value *by_name = map_find_text(render, &arguments->named, parameter->text);
        bool by_place = at < arguments->positional.count;
        named += by_name != NULL;
        if (by_name && by_place) jinja_fail(render, "an argument of %.*s is given twice", (int)node->text.size, node->text.bytes);
        Value value = by_place           ? arguments->positional.at[at]
                      : by_name          ? *by_name
                      : parameter->right ? jinja_evaluate(render, parameter->right)
                                         : value_undefined(parameter->text);
        map_set(render, &render->scope->names, value_text(parameter->text), value);
    }
    if (arguments->positional.count > at || named < arguments->named.keys.count)
        jinja_fail(render, "%.*s does not have this argument", (int)node->text.size, node->text.bytes);
}

Value jinja_call_macro(Render *render, const Macro *macro, const Arguments *arguments) {
    Scope *outer = render->scope;
    int control = render->control;
    render->scope = open_scope(render, macro->scope);
    bind_parameters(render, macro->node, arguments);
    Text text = render->failed ? TEXT("") : capture(render, macro->node->items);
    render->scope = outer;
    render->control = control;
    return value_text(text);
}

static void run_generation(Render *render, const JinjaNode *node) {
    ChatText *text = render->text;
    size_t start = text->size;
    if (render->capture) return (void)jinja_unknown(render, "generation inside set is not supported");
    run_scoped(render, node->items);
    array_reserve(text->marked, text->marked_capacity, text->marked_count + 1);
    text->marked[text->marked_count++] = (ChatSpan){start, text->size};
}

static void run_statement(Render *render, const JinjaNode *node) {
    render->line = node->line;
    switch (node->kind) {
    case NODE_TEXT: return put_output(render, node->text);
    case NODE_OUTPUT: return put_output(render, value_string(render, jinja_evaluate(render, node->left)));
    case NODE_IF: return run_if(render, node);
    case NODE_FOR: return run_for(render, node);
    case NODE_SET: return run_set(render, node);
    case NODE_MACRO: return define_macro(render, node);
    case NODE_GENERATION: return run_generation(render, node);
    default: render->control = node->kind == NODE_BREAK ? CONTROL_BREAK : CONTROL_CONTINUE;
    }
}

static void run_statements(Render *render, const JinjaNode *items) {
    if (render->depth >= JINJA_CALL_DEPTH) {
        jinja_fail(render, "nesting exceeds %d levels", JINJA_CALL_DEPTH);
        return;
    }
    render->depth++;
    for (const JinjaNode *node = items; node && render->control == CONTROL_NONE && jinja_step(render, 1); node = node->next)
        run_statement(render, node);
    render->depth--;
}

/* -- Templates --------------------------------------------------------------------------------------------------------- */

static bool is_utf8(const char *source, size_t size) {
    utf8proc_int32_t code;
    for (utf8proc_ssize_t at = 0, bytes; at < (utf8proc_ssize_t)size; at += bytes)
        if ((bytes = utf8proc_iterate((const utf8proc_uint8_t *)source + at, (utf8proc_ssize_t)size - at, &code)) <= 0) return false;
    return true;
}

ChatTemplate *chat_template_parse(const char *source, size_t size, const char *name, Error *error) {
    ChatTemplate *template = memory_allocate(sizeof *template);
    template->name = memory_copy_string(name);
    bool good =
        size <= JINJA_SOURCE_BYTES ||
        error_set(error, ERROR_USAGE, "%s has %zu bytes, but a chat template has at most %d: shorten it", name, size, JINJA_SOURCE_BYTES);
    good = good && (is_utf8(source, size) || error_set(error, ERROR_USAGE, "%s is not valid UTF-8: convert it", name));
    if (good && jinja_parse(template, (Text){source, size}, error)) return template;
    chat_template_free(template);
    return NULL;
}

void chat_template_free(ChatTemplate *template) {
    if (!template) return;
    pool_free(&template->pool);
    free(template->name);
    free(template);
}

bool chat_template_marks(const ChatTemplate *template) { return template->marks; }

void chat_text_free(ChatText *text) {
    free(text->bytes);
    free(text->marked);
    *text = (ChatText){0};
}

static void define_variables(Render *render, const json_t *variables) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)variables, name, value) {
        Value made = value_from_json(render, value, 0);
        if (!render->failed) map_set(render, &render->globals->names, value_text(str_of(name)), made);
    }
}

bool jinja_render(const ChatTemplate *template, const json_t *variables, time_t now, int64_t work, ChatText *text, Error *error) {
    Render render = {.template = template, .error = error, .now = now, .text = text, .line = 1, .work = work};
    text->size = text->marked_count = 0;
    append_text(&render, text, TEXT(""));
    render.scope = render.globals = open_scope(&render, NULL);
    jinja_define_functions(&render);
    define_variables(&render, variables);
    render.scope = open_scope(&render, render.globals);
    run_statements(&render, template->statements);
    pool_free(&render.pool);
    return !render.failed;
}

bool chat_template_render(const ChatTemplate *template, const json_t *variables, time_t now, ChatText *text, Error *error) {
    return jinja_render(template, variables, now, JINJA_WORK, text, error);
}
