/* Expressions over the fields of a record and the statistics of its text:
 *
 *   expression  = all { "or" all }
 *   all         = one { "and" one }
 *   one         = "not" one | "(" expression ")" | operand [ compares operand | "in" "[" operand { "," operand } "]" ]
 *   compares    = "<" | "<=" | ">" | ">=" | "==" | "!="
 *   operand     = number | "text" | 'text' | true | false | null | name { "." name }
 *   name        = letters, digits and _ | `any characters`
 *
 * An absent field is null. Values of two kinds are different, and neither is less than the other;
 * but text that is a decimal number compares with numbers as that number. A single operand holds if it is
 * true. The nodes of an expression refer to each other by index; a parent comes after its
 * children. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/memory.h"
#include "filter/filter_internal.h"

enum { DEPTH = 64, PATH_PARTS = 16 };

typedef enum ExpressionKind { NODE_OR, NODE_AND, NODE_NOT, NODE_COMPARE, NODE_IN, NODE_LIST, NODE_VALUE, NODE_NAME } ExpressionKind;
typedef enum Compare { LESS, AT_MOST, GREATER, AT_LEAST, EQUAL, DIFFERENT } Compare;
typedef struct ExpressionNode {
    ExpressionKind kind;
    Compare compare;
    int left, right; /* children; of an element of a list, the element and the rest of the list; -1: none */
    Content value;   /* of NODE_VALUE; its text is owned by the expression */
    FieldName name;
    size_t start, end; /* in the text */
} ExpressionNode;

struct Expression {
    char *text;
    ExpressionNode *nodes;
    size_t count, capacity;
    int *parts; /* the nodes that `and` joins at the top */
    size_t part_count;
};

typedef struct ExpressionParser {
    Expression *own;
    const char *text;
    size_t at, after; /* the next byte; the end of the last token */
    FindName *find;
    void *context;
    int depth;
    Error *error;
} ExpressionParser;

/* -- Reading ----------------------------------------------------------------------------------------------------------- */

static int parse_or(ExpressionParser *parser);

static int refuse_expression(const ExpressionParser *parser, const char *what) {
    error_set(parser->error, ERROR_USAGE, "%s, at character %zu of \"%s\"", what, parser->at + 1, parser->text);
    return -1;
}

static void skip_spaces(ExpressionParser *parser) {
    while (isspace((unsigned char)parser->text[parser->at])) parser->at++;
}

static bool is_name_byte(char c) { return isalnum((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80; }

/* Steps over a token if it comes next; a word must end there. */
static bool take(ExpressionParser *parser, const char *token) {
    skip_spaces(parser);
    size_t length = strlen(token);
    if (strncmp(parser->text + parser->at, token, length) != 0) return false;
    if (is_name_byte(token[0]) && is_name_byte(parser->text[parser->at + length])) return false;
    parser->after = parser->at += length;
    return true;
}

static int add_node(ExpressionParser *parser, ExpressionNode node) {
    Expression *own = parser->own;
    array_reserve(own->nodes, own->capacity, own->count + 1);
    node.end = parser->after;
    own->nodes[own->count] = node;
    return (int)own->count++;
}

/* Joins two nodes; fails if either failed. */
static int join(ExpressionParser *parser, ExpressionKind kind, Compare compare, int left, int right) {
    if (left < 0 || right < 0) return -1;
    return add_node(
        parser, (ExpressionNode){.kind = kind, .compare = compare, .left = left, .right = right, .start = parser->own->nodes[left].start});
}

static int parse_text(ExpressionParser *parser, size_t start) {
    char quote = parser->text[parser->at], *text = memory_allocate(strlen(parser->text) + 1);
    size_t size = 0;
    for (parser->at++; parser->text[parser->at] && parser->text[parser->at] != quote; parser->at++) {
        if (parser->text[parser->at] == '\\' && parser->text[parser->at + 1]) parser->at++;
        text[size++] = parser->text[parser->at];
    }
    bool closed = parser->text[parser->at] == quote;
    parser->after = parser->at += closed;
    int node = add_node(parser, (ExpressionNode){.kind = NODE_VALUE, .value = {CONTENT_TEXT, 0, text, size}, .start = start});
    return closed ? node : refuse_expression(parser, "a text does not end: close its quote");
}

/* Copies the next part of a name. Returns NULL if there is none. */
static char *take_part(ExpressionParser *parser) {
    const char *start = parser->text + parser->at;
    size_t length = 0;
    bool quoted = *start == '`';
    if (quoted) length = strcspn(++start, "`");
    else
        while (is_name_byte(start[length])) length++;
    if (length == 0 || (quoted && !start[length])) return NULL;
    parser->after = parser->at = (size_t)(start - parser->text) + length + quoted;
    return memory_format("%.*s", (int)length, start);
}

static int parse_name(ExpressionParser *parser, size_t start) {
    char *parts[PATH_PARTS];
    size_t count = 0;
    FieldName name = {0};
    bool good = true;
    do {
        parts[count] = count < PATH_PARTS - 1 ? take_part(parser) : NULL;
        good = parts[count];
        count += good;
    } while (good && parser->text[parser->at] == '.' && (parser->at++, true));
    int node = -1;
    if (!good) refuse_expression(parser, count == 0 ? "a name or a value is missing" : "a name ends with a point or is too long");
    else if (parser->find(parser->context, (const char *const *)parts, count, &name, parser->error))
        node = add_node(parser, (ExpressionNode){.kind = NODE_NAME, .name = name, .start = start});
    while (count > 0) free(parts[--count]);
    return node;
}

static int parse_operand(ExpressionParser *parser) {
    static const struct {
        const char *word;
        Content value;
    } words[] = {{"true", {CONTENT_BOOL, 1, NULL, 0}}, {"false", {CONTENT_BOOL, 0, NULL, 0}}, {"null", {CONTENT_NULL, 0, NULL, 0}}};
    skip_spaces(parser);
    size_t start = parser->at;
    const char *text = parser->text + start;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (take(parser, words[i].word))
            return add_node(parser, (ExpressionNode){.kind = NODE_VALUE, .value = words[i].value, .start = start});
    if (*text == '"' || *text == '\'') return parse_text(parser, start);
    if (isdigit((unsigned char)*text) || ((*text == '-' || *text == '+' || *text == '.') && text[1])) {
        char *end;
        double number = strtod(text, &end);
        if (end == text || is_name_byte(*end)) return refuse_expression(parser, "this is not a number");
        parser->after = parser->at += (size_t)(end - text);
        return add_node(parser, (ExpressionNode){.kind = NODE_VALUE, .value = {CONTENT_NUMBER, number, NULL, 0}, .start = start});
    }
    return parse_name(parser, start);
}

/* The elements of a list from the first on, after its "[". */
static int parse_list(ExpressionParser *parser) {
    int operands[256], count = 0;
    do {
        if (count == 256) return refuse_expression(parser, "a list has more than 256 elements");
        if ((operands[count++] = parse_operand(parser)) < 0) return -1;
    } while (take(parser, ","));
    if (!take(parser, "]")) return refuse_expression(parser, "a list does not end: close it with ]");
    int list = -1;
    while (count > 0) {
        int operand = operands[--count];
        list = add_node(
            parser, (ExpressionNode){.kind = NODE_LIST, .left = operand, .right = list, .start = parser->own->nodes[operand].start});
    }
    return list;
}

static int parse_compare(ExpressionParser *parser) {
    static const struct {
        const char *sign;
        Compare compare;
    } signs[] = {{"<=", AT_MOST}, {">=", AT_LEAST}, {"==", EQUAL}, {"!=", DIFFERENT}, {"<", LESS}, {">", GREATER}};
    int left = parse_operand(parser);
    if (left < 0) return -1;
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (take(parser, signs[i].sign)) return join(parser, NODE_COMPARE, signs[i].compare, left, parse_operand(parser));
    if (!take(parser, "in")) return left;
    if (!take(parser, "[")) return refuse_expression(parser, "after \"in\" comes a list, as in [\"en\", \"de\"]");
    return join(parser, NODE_IN, EQUAL, left, parse_list(parser));
}

static int parse_one(ExpressionParser *parser) {
    if (parser->depth == DEPTH) return refuse_expression(parser, "parentheses and \"not\" are nested too deep");
    parser->depth++;
    skip_spaces(parser);
    size_t start = parser->at;
    int node;
    if (take(parser, "not")) {
        int one = parse_one(parser);
        node = one < 0 ? -1 : add_node(parser, (ExpressionNode){.kind = NODE_NOT, .left = one, .right = -1, .start = start});
    } else if (take(parser, "(")) {
        node = parse_or(parser);
        if (node >= 0 && !take(parser, ")")) node = refuse_expression(parser, "\")\" is missing");
        if (node >= 0) parser->own->nodes[node].start = start;
        if (node >= 0) parser->own->nodes[node].end = parser->after;
    } else node = parse_compare(parser);
    parser->depth--;
    return node;
}

static int parse_and(ExpressionParser *parser) {
    int node = parse_one(parser);
    while (node >= 0 && take(parser, "and")) node = join(parser, NODE_AND, EQUAL, node, parse_one(parser));
    return node;
}

static int parse_or(ExpressionParser *parser) {
    int node = parse_and(parser);
    while (node >= 0 && take(parser, "or")) node = join(parser, NODE_OR, EQUAL, node, parse_and(parser));
    return node;
}

static void collect_parts(Expression *own, int node) {
    if (own->nodes[node].kind == NODE_AND) {
        collect_parts(own, own->nodes[node].left);
        collect_parts(own, own->nodes[node].right);
    } else array_append(own->parts, own->part_count, node);
}

Expression *expression_open(const char *text, FindName *find, void *context, Error *error) {
    Expression *own = memory_allocate(sizeof *own);
    own->text = memory_copy_string(text);
    ExpressionParser parser = {.own = own, .text = own->text, .find = find, .context = context, .error = error};
    int root = parse_or(&parser);
    skip_spaces(&parser);
    if (root >= 0 && text[parser.at] == '=') root = refuse_expression(&parser, "\"=\" is not a comparison: write ==");
    else if (root >= 0 && text[parser.at]) root = refuse_expression(&parser, "\"and\", \"or\" or the end is expected");
    if (root >= 0) collect_parts(own, root);
    if (root >= 0) return own;
    expression_free(own);
    return NULL;
}

void expression_free(Expression *own) {
    if (!own) return;
    for (size_t i = 0; i < own->count; i++) {
        free((char *)own->nodes[i].value.text);
        free(own->nodes[i].name.path);
    }
    free(own->nodes);
    free(own->parts);
    free(own->text);
    free(own);
}

int expression_parts(const Expression *own) { return (int)own->part_count; }

char *expression_part(const Expression *own, int part) {
    const ExpressionNode *node = &own->nodes[own->parts[part]];
    return memory_format("%.*s", (int)(node->end - node->start), own->text + node->start);
}

/* -- Evaluating -------------------------------------------------------------------------------------------------------- */

typedef struct ExpressionRun {
    const Expression *own;
    ReadName *read;
    void *context;
    Content *first;
    bool named; /* `first` is set */
} ExpressionRun;

/* Reads text that is a decimal number and nothing else. */
static bool text_number(const Content *value, double *number) {
    char copy[64], *end;
    if (value->size == 0 || value->size >= sizeof copy) return false;
    memcpy(copy, value->text, value->size);
    copy[value->size] = 0;
    if (strspn(copy, "0123456789+-.eE") != value->size) return false;
    *number = strtod(copy, &end);
    return *end == 0 && isfinite(*number);
}

/* Gives a text beside a number the kind of the number. */
static void match_kinds(Content *left, Content *right) {
    double number;
    if (left->kind == CONTENT_TEXT && right->kind == CONTENT_NUMBER && text_number(left, &number))
        *left = (Content){CONTENT_NUMBER, number, NULL, 0};
    if (right->kind == CONTENT_TEXT && left->kind == CONTENT_NUMBER && text_number(right, &number))
        *right = (Content){CONTENT_NUMBER, number, NULL, 0};
}

static bool is_equal(Content left, Content right) {
    match_kinds(&left, &right);
    if (left.kind != right.kind || left.kind == CONTENT_OTHER) return false;
    if (left.kind == CONTENT_TEXT) return left.size == right.size && !memcmp(left.text, right.text, left.size);
    return left.kind == CONTENT_NULL || left.number == right.number;
}

static bool holds_comparison(Compare compare, Content left, Content right) {
    if (compare == EQUAL || compare == DIFFERENT) return is_equal(left, right) == (compare == EQUAL);
    match_kinds(&left, &right);
    if (left.kind != right.kind || (left.kind != CONTENT_NUMBER && left.kind != CONTENT_TEXT)) return false;
    double a = left.number, b = right.number;
    if (left.kind == CONTENT_TEXT) {
        size_t shorter = left.size < right.size ? left.size : right.size;
        int order = memcmp(left.text, right.text, shorter);
        a = order ? order : (double)left.size - (double)right.size;
        b = 0;
    }
    return compare == LESS ? a < b : compare == AT_MOST ? a <= b : compare == GREATER ? a > b : a >= b;
}

static Content read_operand(ExpressionRun *run, int at) {
    const ExpressionNode *node = &run->own->nodes[at];
    if (node->kind == NODE_VALUE) return node->value;
    Content value = run->read(run->context, &node->name);
    if (!run->named) *run->first = value;
    run->named = true;
    return value;
}

static bool holds(ExpressionRun *run, int at) {
    const ExpressionNode *node = &run->own->nodes[at];
    switch (node->kind) {
    case NODE_OR: return holds(run, node->left) || holds(run, node->right);
    case NODE_AND: return holds(run, node->left) && holds(run, node->right);
    case NODE_NOT: return !holds(run, node->left);
    case NODE_COMPARE: {
        Content left = read_operand(run, node->left);
        return holds_comparison(node->compare, left, read_operand(run, node->right));
    }
    case NODE_IN: {
        Content value = read_operand(run, node->left);
        for (int list = node->right; list >= 0; list = run->own->nodes[list].right)
            if (is_equal(value, read_operand(run, run->own->nodes[list].left))) return true;
        return false;
    }
    default: {
        Content value = read_operand(run, at);
        return value.kind == CONTENT_BOOL && value.number != 0;
    }
    }
}

bool expression_holds(const Expression *own, int part, ReadName *read, void *context, Content *first) {
    ExpressionRun run = {own, read, context, first, false};
    *first = (Content){0};
    return holds(&run, own->parts[part]);
}
