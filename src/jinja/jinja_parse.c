/* Builds a tree from a template's tokens, by the grammar of jinja2's parser.py. Unsupported
 * statements, filters and tests are refused here, with their line, before anything is rendered. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "jinja/jinja_internal.h"

typedef struct Parser {
    ChatTemplate *template;
    Tokens tokens;
    size_t at;
    int depth, loops, functions; /* functions: macros and similar blocks around the loops */
    Error *error;
} Parser;

static const Token *peek_token(const Parser *parser) { return &parser->tokens.at[parser->at]; }
static const Token *peek_behind(const Parser *parser) { return peek_token(parser) + (peek_token(parser)->kind != TOKEN_END); }
static void take_token(Parser *parser) { parser->at += peek_token(parser)->kind != TOKEN_END; }

static JinjaNode *refuse_syntax(Parser *parser, const char *what) {
    const Token *token = peek_token(parser);
    static const char *const kinds[] = {[TOKEN_TEXT] = "text",
        [TOKEN_BLOCK_BEGIN] = "{%",
        [TOKEN_BLOCK_END] = "%}",
        [TOKEN_VARIABLE_BEGIN] = "{{",
        [TOKEN_VARIABLE_END] = "}}",
        [TOKEN_END] = "the end of the template"};
    if (parser->error->code != ERROR_NONE) return NULL;
    if (kinds[token->kind]) jinja_refuse(parser->error, parser->template->name, token->line, "%s, got %s", what, kinds[token->kind]);
    else jinja_refuse(parser->error, parser->template->name, token->line, "%s, got '%.*s'", what, (int)token->text.size, token->text.bytes);
    return NULL;
}

static bool is_operator(const Token *token, const char *text) { return token->kind == TOKEN_OPERATOR && str_is(token->text, text); }
static bool is_name(const Token *token, const char *text) { return token->kind == TOKEN_NAME && str_is(token->text, text); }

static bool skip_operator(Parser *parser, const char *text) {
    bool there = is_operator(peek_token(parser), text);
    if (there) take_token(parser);
    return there;
}

static bool skip_name(Parser *parser, const char *text) {
    bool there = is_name(peek_token(parser), text);
    if (there) take_token(parser);
    return there;
}

static bool expect_operator(Parser *parser, const char *text) {
    char what[32];
    snprintf(what, sizeof what, "expected '%s'", text);
    return skip_operator(parser, text) || refuse_syntax(parser, what);
}

static bool expect_token(Parser *parser, TokenKind kind, const char *what) {
    if (peek_token(parser)->kind != kind) return refuse_syntax(parser, what) != NULL;
    take_token(parser);
    return true;
}

static JinjaNode *make_node(Parser *parser, NodeKind kind) {
    JinjaNode *node = pool_take(&parser->template->pool, sizeof *node);
    node->kind = kind;
    node->line = peek_token(parser)->line;
    return node;
}

static JinjaNode *make_pair(Parser *parser, NodeKind kind, Text text, JinjaNode *left, JinjaNode *right) {
    if (!left || !right) return NULL;
    JinjaNode *node = make_node(parser, kind);
    node->line = left->line;
    node->text = text;
    node->left = left;
    node->right = right;
    return node;
}

/* -- Expressions ------------------------------------------------------------------------------------------------------- */

static JinjaNode *parse_expression(Parser *parser);
static JinjaNode *parse_unary(Parser *parser, bool with_filter);
static JinjaNode *parse_primary(Parser *parser);
static JinjaNode *parse_postfix(Parser *parser, JinjaNode *node);

/* Enters one level of nesting; the caller leaves it. */
static bool enter(Parser *parser) {
    if (parser->depth++ < JINJA_DEPTH) return true;
    if (parser->error->code == ERROR_NONE)
        jinja_refuse(parser->error, parser->template->name, peek_token(parser)->line, "nesting exceeds %d levels", JINJA_DEPTH);
    return false;
}

static void append_child(JinjaNode ***last, JinjaNode *node) {
    **last = node;
    *last = &node->next;
}

/* Parses comma-separated expressions up to `closing`, which is consumed. */
static bool parse_elements(Parser *parser, const char *closing, JinjaNode **items, bool *comma) {
    JinjaNode **last = items;
    *comma = false;
    while (!is_operator(peek_token(parser), closing)) {
        if (last != items && !expect_operator(parser, ",")) return false;
        *comma = *comma || last != items;
        if (is_operator(peek_token(parser), closing)) break;
        JinjaNode *item = parse_expression(parser);
        if (!item) return false;
        append_child(&last, item);
    }
    take_token(parser);
    return true;
}

static JinjaNode *parse_list(Parser *parser) {
    bool comma;
    JinjaNode *node = make_node(parser, NODE_LIST);
    take_token(parser);
    return parse_elements(parser, "]", &node->items, &comma) ? node : NULL;
}

/* Parses parentheses: (a) is a, (a,) and () are tuples. */
static JinjaNode *parse_parentheses(Parser *parser) {
    bool comma;
    JinjaNode *node = make_node(parser, NODE_TUPLE);
    take_token(parser);
    if (!parse_elements(parser, ")", &node->items, &comma)) return NULL;
    return node->items && !comma ? node->items : node;
}

static JinjaNode *parse_dict(Parser *parser) {
    JinjaNode *node = make_node(parser, NODE_DICT), **last = &node->items;
    take_token(parser);
    while (!is_operator(peek_token(parser), "}")) {
        if (last != &node->items && !expect_operator(parser, ",")) return NULL;
        if (is_operator(peek_token(parser), "}")) break;
        JinjaNode *pair = make_node(parser, NODE_DICT);
        pair->left = parse_expression(parser);
        if (!pair->left || !expect_operator(parser, ":")) return NULL;
        pair->right = parse_expression(parser);
        if (!pair->right) return NULL;
        append_child(&last, pair);
    }
    take_token(parser);
    return node;
}

static JinjaNode *parse_constant(Parser *parser, Value value) {
    JinjaNode *node = make_node(parser, NODE_CONSTANT);
    node->constant = value;
    take_token(parser);
    return node;
}

/* Concatenates adjacent strings. */
static JinjaNode *parse_strings(Parser *parser) {
    JinjaNode *node = make_node(parser, NODE_CONSTANT);
    const Token *first = peek_token(parser);
    size_t size = 0;
    for (const Token *each = first; each->kind == TOKEN_STRING; each++) size += each->text.size;
    char *joined = pool_take(&parser->template->pool, size + 1), *out = joined;
    for (const Token *each; (each = peek_token(parser))->kind == TOKEN_STRING; take_token(parser))
        if (each->text.size) out = (char *)memcpy(out, each->text.bytes, each->text.size) + each->text.size;
    node->constant = value_text((Text){joined, size});
    return node;
}

static JinjaNode *parse_name(Parser *parser) {
    const Token *token = peek_token(parser);
    if (str_is(token->text, "true") || str_is(token->text, "True")) return parse_constant(parser, value_bool(true));
    if (str_is(token->text, "false") || str_is(token->text, "False")) return parse_constant(parser, value_bool(false));
    if (str_is(token->text, "none") || str_is(token->text, "None")) return parse_constant(parser, value_none());
    JinjaNode *node = make_node(parser, NODE_NAME);
    node->text = token->text;
    take_token(parser);
    return node;
}

static JinjaNode *parse_primary(Parser *parser) {
    const Token *token = peek_token(parser);
    if (token->kind == TOKEN_NAME) return parse_name(parser);
    if (token->kind == TOKEN_STRING) return parse_strings(parser);
    if (token->kind == TOKEN_INTEGER || token->kind == TOKEN_REAL) return parse_constant(parser, token->number);
    JinjaNode *node = NULL;
    if (!enter(parser)) return NULL;
    if (is_operator(token, "(")) node = parse_parentheses(parser);
    else if (is_operator(token, "[")) node = parse_list(parser);
    else if (is_operator(token, "{")) node = parse_dict(parser);
    else refuse_syntax(parser, "expected an expression");
    parser->depth--;
    return node;
}

/* Parses the arguments of a call after its parenthesis. */
static bool parse_arguments(Parser *parser, JinjaNode **arguments) {
    JinjaNode **last = arguments;
    bool named = false;
    while (!is_operator(peek_token(parser), ")")) {
        if (last != arguments && !expect_operator(parser, ",")) return false;
        if (is_operator(peek_token(parser), ")")) break;
        JinjaNode *argument = make_node(parser, NODE_CALL);
        if (peek_token(parser)->kind == TOKEN_NAME && is_operator(peek_behind(parser), "=")) {
            argument->text = peek_token(parser)->text;
            take_token(parser);
            take_token(parser);
            named = true;
        } else if (named) {
            return refuse_syntax(parser, "expected a keyword argument") != NULL;
        }
        argument->left = parse_expression(parser);
        if (!argument->left) return false;
        append_child(&last, argument);
    }
    take_token(parser);
    return true;
}

static JinjaNode *parse_call(Parser *parser, JinjaNode *function) {
    JinjaNode *node = make_node(parser, NODE_CALL);
    node->left = function;
    take_token(parser);
    return parse_arguments(parser, &node->items) ? node : NULL;
}

static JinjaNode *parse_attribute(Parser *parser, JinjaNode *of) {
    JinjaNode *node = make_node(parser, NODE_ATTRIBUTE);
    take_token(parser);
    node->left = of;
    node->text = peek_token(parser)->text;
    if (peek_token(parser)->kind == TOKEN_INTEGER) {
        node->kind = NODE_ITEM;
        node->right = parse_constant(parser, peek_token(parser)->number);
        return node;
    }
    return expect_token(parser, TOKEN_NAME, "expected an attribute name") ? node : NULL;
}

/* Parses one part of [a:b:c], which may be absent. */
static bool parse_bound(Parser *parser, JinjaNode **bound) {
    const Token *token = peek_token(parser);
    if (is_operator(token, ":") || is_operator(token, "]")) return true;
    *bound = parse_expression(parser);
    return *bound != NULL;
}

static JinjaNode *parse_subscript(Parser *parser, JinjaNode *of) {
    JinjaNode *node = make_node(parser, NODE_ITEM);
    take_token(parser);
    node->left = of;
    if (!parse_bound(parser, &node->right)) return NULL;
    if (skip_operator(parser, ":")) {
        node->kind = NODE_SLICE;
        node->condition = node->right;
        node->right = NULL;
        if (!parse_bound(parser, &node->right)) return NULL;
        if (skip_operator(parser, ":") && !parse_bound(parser, &node->otherwise)) return NULL;
    } else if (!node->right) {
        return refuse_syntax(parser, "expected an index");
    }
    return expect_operator(parser, "]") ? node : NULL;
}

static JinjaNode *parse_postfix(Parser *parser, JinjaNode *node) {
    int depth = parser->depth;
    while (node) {
        const Token *token = peek_token(parser);
        if (!enter(parser)) return NULL; /* each link of a chain counts as a level */
        if (is_operator(token, ".")) node = parse_attribute(parser, node);
        else if (is_operator(token, "[")) node = parse_subscript(parser, node);
        else if (is_operator(token, "(")) node = parse_call(parser, node);
        else break;
    }
    parser->depth = depth;
    return node;
}

static JinjaNode *parse_filter(Parser *parser, JinjaNode *of) {
    JinjaNode *node = make_node(parser, NODE_FILTER);
    take_token(parser);
    node->left = of;
    node->text = peek_token(parser)->text;
    node->filter = jinja_filter(node->text);
    if (peek_token(parser)->kind == TOKEN_NAME && !node->filter) return refuse_syntax(parser, "expected a supported filter");
    if (!expect_token(parser, TOKEN_NAME, "expected the name of a filter")) return NULL;
    return !skip_operator(parser, "(") || parse_arguments(parser, &node->items) ? node : NULL;
}

/* Returns whether the argument of a test follows without parentheses. */
static bool begins_operand(const Token *token) {
    if (token->kind == TOKEN_NAME) return !is_name(token, "else") && !is_name(token, "or") && !is_name(token, "and");
    return token->kind == TOKEN_STRING || token->kind == TOKEN_INTEGER || token->kind == TOKEN_REAL || is_operator(token, "(") ||
           is_operator(token, "[") || is_operator(token, "{");
}

static JinjaNode *parse_test(Parser *parser, JinjaNode *of) {
    JinjaNode *node = make_node(parser, NODE_TEST);
    take_token(parser);
    bool negated = skip_name(parser, "not");
    node->left = of;
    node->text = peek_token(parser)->text;
    node->test = jinja_test(node->text);
    if (peek_token(parser)->kind == TOKEN_NAME && !node->test) return refuse_syntax(parser, "expected a supported test");
    if (!expect_token(parser, TOKEN_NAME, "expected the name of a test")) return NULL;
    if (skip_operator(parser, "(")) {
        if (!parse_arguments(parser, &node->items)) return NULL;
    } else if (begins_operand(peek_token(parser))) {
        if (is_name(peek_token(parser), "is")) return refuse_syntax(parser, "expected one test; combine tests with 'and'");
        node->items = make_node(parser, NODE_CALL);
        node->items->left = parse_postfix(parser, parse_primary(parser));
        if (!node->items->left) return NULL;
    }
    bool one = node->items && !node->items->next;
    if (node->test->compares ? !one : node->items != NULL)
        return refuse_syntax(parser, "the preceding test takes a different number of arguments");
    if (!negated) return node;
    JinjaNode *negation = make_node(parser, NODE_NOT);
    negation->left = node;
    return negation;
}

static JinjaNode *parse_filters(Parser *parser, JinjaNode *node) {
    int depth = parser->depth;
    while (node) {
        const Token *token = peek_token(parser);
        if (!enter(parser)) return NULL;
        if (is_operator(token, "|")) node = parse_filter(parser, node);
        else if (is_name(token, "is")) node = parse_test(parser, node);
        else if (is_operator(token, "(")) node = parse_call(parser, node);
        else break;
    }
    parser->depth = depth;
    return node;
}

static JinjaNode *parse_sign(Parser *parser, NodeKind kind) {
    JinjaNode *node = make_node(parser, kind);
    take_token(parser);
    node->left = parse_unary(parser, false);
    return node->left ? node : NULL;
}

static JinjaNode *parse_unary(Parser *parser, bool with_filter) {
    const Token *token = peek_token(parser);
    JinjaNode *node = NULL;
    if (!enter(parser)) return NULL;
    if (is_operator(token, "-")) node = parse_sign(parser, NODE_NEGATIVE);
    else if (is_operator(token, "+")) node = parse_sign(parser, NODE_POSITIVE);
    else node = parse_primary(parser);
    node = parse_postfix(parser, node);
    if (with_filter) node = parse_filters(parser, node);
    parser->depth--;
    return node;
}

/* The binary operators, from the tightest level to the loosest; all are left-associative. */
static const char *const levels[][5] = {{"**"}, {"*", "/", "//", "%"}, {"~"}, {"+", "-"}};

static JinjaNode *parse_level(Parser *parser, int level) {
    JinjaNode *left = level < 0 ? parse_unary(parser, true) : parse_level(parser, level - 1);
    int depth = parser->depth;
    while (left && level >= 0) {
        Text text = peek_token(parser)->text;
        bool found = false;
        for (int i = 0; levels[level][i]; i++) found = found || is_operator(peek_token(parser), levels[level][i]);
        if (!found) break;
        if (!enter(parser)) return NULL;
        take_token(parser);
        left = make_pair(parser, str_is(text, "~") ? NODE_JOIN : NODE_BINARY, text, left, parse_level(parser, level - 1));
    }
    parser->depth = depth;
    return left;
}

static JinjaNode *parse_sum(Parser *parser) { return parse_level(parser, 3); }

/* Consumes the comparison that begins here and returns it; {NULL}: none. */
static Text parse_comparison(Parser *parser) {
    static const char *const operators[] = {"==", "!=", "<", "<=", ">", ">="};
    const Token *token = peek_token(parser);
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (skip_operator(parser, operators[i])) return token->text;
    if (skip_name(parser, "in")) return TEXT("in");
    if (!is_name(token, "not") || !is_name(peek_behind(parser), "in")) return (Text){NULL, 0};
    take_token(parser);
    take_token(parser);
    return TEXT("not in");
}

static JinjaNode *parse_compare(Parser *parser) {
    JinjaNode *left = parse_sum(parser), *node = NULL, **last = NULL;
    for (Text text; left && (text = parse_comparison(parser)).bytes;) {
        if (!node) {
            node = make_node(parser, NODE_COMPARE);
            node->left = left;
            last = &node->items;
        }
        JinjaNode *other = make_node(parser, NODE_COMPARE);
        other->text = text;
        other->right = parse_sum(parser);
        if (!other->right) return NULL;
        append_child(&last, other);
    }
    return node ? node : left;
}

static JinjaNode *parse_not(Parser *parser) {
    if (!is_name(peek_token(parser), "not")) return parse_compare(parser);
    JinjaNode *node = make_node(parser, NODE_NOT);
    if (!enter(parser)) return NULL;
    take_token(parser);
    node->left = parse_not(parser);
    parser->depth--;
    return node->left ? node : NULL;
}

static JinjaNode *parse_logic(Parser *parser, NodeKind kind) {
    JinjaNode *left = kind == NODE_OR ? parse_logic(parser, NODE_AND) : parse_not(parser);
    int depth = parser->depth;
    while (left && skip_name(parser, kind == NODE_OR ? "or" : "and")) {
        if (!enter(parser)) return NULL;
        left = make_pair(parser, kind, TEXT(""), left, kind == NODE_OR ? parse_logic(parser, NODE_AND) : parse_not(parser));
    }
    parser->depth = depth;
    return left;
}

static JinjaNode *parse_expression(Parser *parser) {
    int depth = parser->depth;
    if (!enter(parser)) return NULL;
    JinjaNode *left = parse_logic(parser, NODE_OR);
    while (left && skip_name(parser, "if")) {
        JinjaNode *node = make_node(parser, NODE_CONDITIONAL);
        if (!enter(parser)) return NULL;
        node->left = left;
        node->condition = parse_logic(parser, NODE_OR);
        if (!node->condition) return NULL;
        if (skip_name(parser, "else") && !(node->right = parse_expression(parser))) return NULL;
        left = node;
    }
    parser->depth = depth;
    return left;
}

/* Parses a tuple that may lack parentheses: {% for a in b, c %}. */
static JinjaNode *parse_tuple(Parser *parser) {
    JinjaNode *first = parse_expression(parser), *node = NULL, **last = NULL;
    while (first && skip_operator(parser, ",")) {
        if (!node) {
            node = make_node(parser, NODE_TUPLE);
            node->items = first;
            last = &first->next;
        }
        if (peek_token(parser)->kind == TOKEN_BLOCK_END || peek_token(parser)->kind == TOKEN_VARIABLE_END) break;
        JinjaNode *item = parse_expression(parser);
        if (!item) return NULL;
        append_child(&last, item);
    }
    return node ? node : first;
}

/* -- Statements -------------------------------------------------------------------------------------------------------- */

static bool parse_statements(Parser *parser, JinjaNode **items, const char *const *ends);

static JinjaNode *parse_target_name(Parser *parser, bool members) {
    JinjaNode *node = make_node(parser, NODE_NAME);
    node->text = peek_token(parser)->text;
    if (!expect_token(parser, TOKEN_NAME, "expected a variable name")) return NULL;
    if (!members || !is_operator(peek_token(parser), ".")) return node;
    JinjaNode *member = make_node(parser, NODE_ATTRIBUTE);
    take_token(parser);
    member->left = node;
    member->text = peek_token(parser)->text;
    return expect_token(parser, TOKEN_NAME, "expected an attribute name") ? member : NULL;
}

/* Parses "a", "a, b", "(a, b)", or a namespace's member. */
static JinjaNode *parse_target(Parser *parser, bool members) {
    bool parentheses = skip_operator(parser, "(");
    JinjaNode *first = parse_target_name(parser, members), *node = NULL, **last = NULL;
    while (first && skip_operator(parser, ",")) {
        if (!node) {
            node = make_node(parser, NODE_TUPLE);
            node->items = first;
            last = &first->next;
        }
        if (peek_token(parser)->kind != TOKEN_NAME || is_name(peek_token(parser), "in")) break;
        JinjaNode *item = parse_target_name(parser, members);
        if (!item) return NULL;
        append_child(&last, item);
    }
    if (first && parentheses && !expect_operator(parser, ")")) return NULL;
    return node ? node : first;
}

static bool end_tag(Parser *parser) { return expect_token(parser, TOKEN_BLOCK_END, "expected %}"); }

static JinjaNode *parse_if(Parser *parser) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    JinjaNode *node = make_node(parser, NODE_IF), *each = node;
    for (;;) {
        take_token(parser); /* if or elif */
        each->condition = parse_tuple(parser);
        if (!each->condition || !end_tag(parser) || !parse_statements(parser, &each->items, ends)) return NULL;
        if (!is_name(peek_token(parser), "elif")) break;
        each = each->otherwise = make_node(parser, NODE_IF);
    }
    if (skip_name(parser, "else")) {
        static const char *const last[] = {"endif", NULL};
        if (!end_tag(parser) || !parse_statements(parser, &each->otherwise, last)) return NULL;
    }
    take_token(parser);
    return end_tag(parser) ? node : NULL;
}

static JinjaNode *parse_for(Parser *parser) {
    static const char *const ends[] = {"else", "endfor", NULL}, *const last[] = {"endfor", NULL};
    JinjaNode *node = make_node(parser, NODE_FOR);
    take_token(parser);
    node->left = parse_target(parser, false);
    if (!node->left) return NULL;
    if (!skip_name(parser, "in")) return refuse_syntax(parser, "expected 'in'");
    /* An `if` after the list filters it; a conditional expression needs parentheses here. */
    node->right = parse_logic(parser, NODE_OR);
    if (!node->right) return NULL;
    if (is_operator(peek_token(parser), ",")) return refuse_syntax(parser, "expected a list in brackets");
    if (skip_name(parser, "if") && !(node->condition = parse_expression(parser))) return NULL;
    parser->loops++;
    bool body = end_tag(parser) && parse_statements(parser, &node->items, ends);
    parser->loops--;
    if (!body) return NULL;
    if (skip_name(parser, "else") && (!end_tag(parser) || !parse_statements(parser, &node->otherwise, last))) return NULL;
    take_token(parser);
    return end_tag(parser) ? node : NULL;
}

static JinjaNode *parse_set(Parser *parser) {
    static const char *const ends[] = {"endset", NULL};
    JinjaNode *node = make_node(parser, NODE_SET);
    take_token(parser);
    node->left = parse_target(parser, true);
    if (!node->left) return NULL;
    if (skip_operator(parser, "=")) {
        node->right = parse_tuple(parser);
        return node->right && end_tag(parser) ? node : NULL;
    }
    if (!end_tag(parser) || !parse_statements(parser, &node->items, ends)) return NULL;
    take_token(parser);
    return end_tag(parser) ? node : NULL;
}

/* Parses a body in which break and continue do not see the loops around it. */
static bool parse_body(Parser *parser, JinjaNode **items, const char *const *ends) {
    int loops = parser->loops;
    parser->loops = 0;
    bool good = parse_statements(parser, items, ends);
    parser->loops = loops;
    if (good) take_token(parser);
    return good && end_tag(parser);
}

static JinjaNode *parse_macro(Parser *parser) {
    static const char *const ends[] = {"endmacro", NULL};
    JinjaNode *node = make_node(parser, NODE_MACRO), **last = &node->parameters;
    take_token(parser);
    node->text = peek_token(parser)->text;
    if (!expect_token(parser, TOKEN_NAME, "expected the name of a macro") || !expect_operator(parser, "(")) return NULL;
    while (!is_operator(peek_token(parser), ")")) {
        if (last != &node->parameters && !expect_operator(parser, ",")) return NULL;
        JinjaNode *parameter = parse_target_name(parser, false);
        if (!parameter || (skip_operator(parser, "=") && !(parameter->right = parse_expression(parser)))) return NULL;
        append_child(&last, parameter);
    }
    take_token(parser);
    parser->functions++;
    bool good = end_tag(parser) && parse_body(parser, &node->items, ends);
    parser->functions--;
    return good ? node : NULL;
}

static JinjaNode *parse_generation(Parser *parser) {
    static const char *const ends[] = {"endgeneration", NULL};
    JinjaNode *node = make_node(parser, NODE_GENERATION);
    if (parser->functions) return refuse_syntax(parser, "generation is supported only outside macros");
    take_token(parser);
    parser->template->marks = true;
    return end_tag(parser) && parse_body(parser, &node->items, ends) ? node : NULL;
}

static JinjaNode *parse_jump(Parser *parser, NodeKind kind) {
    if (parser->loops == 0) return refuse_syntax(parser, "expected an enclosing loop");
    JinjaNode *node = make_node(parser, kind);
    take_token(parser);
    return end_tag(parser) ? node : NULL;
}

static JinjaNode *parse_statement(Parser *parser) {
    const Token *token = peek_token(parser);
    if (is_name(token, "if")) return parse_if(parser);
    if (is_name(token, "for")) return parse_for(parser);
    if (is_name(token, "set")) return parse_set(parser);
    if (is_name(token, "macro")) return parse_macro(parser);
    if (is_name(token, "generation")) return parse_generation(parser);
    if (is_name(token, "break")) return parse_jump(parser, NODE_BREAK);
    if (is_name(token, "continue")) return parse_jump(parser, NODE_CONTINUE);
    return refuse_syntax(parser, "expected a supported statement");
}

static JinjaNode *parse_output(Parser *parser) {
    JinjaNode *node = make_node(parser, NODE_OUTPUT);
    take_token(parser);
    node->left = parse_tuple(parser);
    return node->left && expect_token(parser, TOKEN_VARIABLE_END, "expected }}") ? node : NULL;
}

static JinjaNode *parse_text(Parser *parser) {
    JinjaNode *node = make_node(parser, NODE_TEXT);
    node->text = peek_token(parser)->text;
    take_token(parser);
    return node;
}

/* Parses statements up to a tag that begins with one of `ends`, and stops at its name, or up to the
 * end of the template. */
static bool parse_statements(Parser *parser, JinjaNode **items, const char *const *ends) {
    JinjaNode **last = items;
    if (!enter(parser)) return false;
    while (peek_token(parser)->kind != TOKEN_END) {
        TokenKind kind = peek_token(parser)->kind;
        if (kind == TOKEN_BLOCK_BEGIN) {
            take_token(parser);
            for (const char *const *end = ends; *end; end++)
                if (is_name(peek_token(parser), *end)) return parser->depth--, true;
        }
        JinjaNode *node = kind == TOKEN_TEXT             ? parse_text(parser)
                          : kind == TOKEN_VARIABLE_BEGIN ? parse_output(parser)
                                                         : parse_statement(parser);
        if (!node) return false;
        append_child(&last, node);
    }
    parser->depth--;
    return !*ends || refuse_syntax(parser, "expected the end of the previous block");
}

bool jinja_parse(ChatTemplate *template, Text source, Error *error) {
    static const char *const ends[] = {NULL};
    Parser parser = {.template = template, .error = error};
    bool good =
        jinja_lex(template->name, source, &template->pool, &parser.tokens, error) && parse_statements(&parser, &template->statements, ends);
    free(parser.tokens.at);
    return good;
}
