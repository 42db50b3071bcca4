/* Internals of the interpreter. A template becomes tokens (jinja_lex.c), then a tree
 * (jinja_parse.c), which runs (jinja_run.c, jinja_evaluate.c) over values of Python's types
 * (jinja_value.c). Filters, tests, functions and methods are tables (jinja_filters.c,
 * jinja_methods.c).
 *
 * Memory: the tree is in the pool of its template; all values of a rendering are in the pool of
 * that rendering, which is freed at its end. Nothing in a pool is freed individually. The first
 * failure is recorded (jinja_fail), and every later function returns quickly, so expressions need
 * no check after each operand. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "jinja/template.h"

/* Limits for hostile templates. */
enum {
    JINJA_SOURCE_BYTES = 1 << 20,
    JINJA_DEPTH = 200,                          /* nesting of statements, expressions, and data */
    JINJA_CALL_DEPTH = 600,                     /* nesting while macros call each other */
    JINJA_STEP = 64,                            /* the cost of running a node, or of reading an element, in bytes of text */
    JINJA_WORK = 20 * 1000 * 1000 * JINJA_STEP, /* per rendering; every byte that is read or written costs 1 */
    JINJA_POOL_BYTES = 1 << 28,                 /* per rendering */
    JINJA_OUTPUT_BYTES = 1 << 28,
};

/* -- Pools (jinja_value.c) --------------------------------------------------------------------------------------- */

typedef struct Pool {
    struct PoolChunk *chunk;
    size_t used, total; /* bytes used of the newest chunk, and bytes of all chunks */
} Pool;
void *pool_take(Pool *pool, size_t bytes); /* zeroed */
void pool_free(Pool *pool);

/* -- Values (jinja_value.c) -------------------------------------------------------------------------------------- */

typedef enum ValueKind {
    VALUE_UNDEFINED, /* a name or member that does not exist */
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_REAL,
    VALUE_WIDE, /* an integer of data beyond 64 bits, by its digits: it can only be compared and written */
    VALUE_TEXT,
    VALUE_LIST,
    VALUE_TUPLE,
    VALUE_VIEW,      /* result of range() and of a dict's keys(), values() and items(): it can only be iterated and counted */
    VALUE_GENERATOR, /* result of filters such as map: iterated once; always true */
    VALUE_DICT,
    VALUE_NAMESPACE,
    VALUE_FUNCTION,
    VALUE_METHOD,
    VALUE_MACRO,
    VALUE_LOOP,
} ValueKind;

/* UTF-8, without a NUL at the end. */
typedef struct Text {
    const char *bytes;
    size_t size;
} Text;
#define TEXT(literal) ((Text){literal, sizeof(literal) - 1})

typedef struct Value Value;
typedef struct Items {
    Value *at;
    size_t count, capacity;
} Items;
/* A dict, in insertion order of the keys. */
typedef struct Map { Items keys, values; } Map;

typedef struct JinjaFunction JinjaFunction;
typedef struct Method Method;
typedef struct Macro Macro;
typedef struct LoopState LoopState;
struct Value {
    ValueKind kind;
    bool markup; /* the text is the result of `safe`, or derived from one: text that is added to it is escaped */
    union {
        bool truth;
        int64_t integer;
        double real;
        Text text;    /* also the name of an undefined value, and the digits of a wide integer */
        Items *items; /* for the kinds from list to generator */
        Map *map;     /* for dicts and namespaces */
        const JinjaFunction *function;
        const Method *method;
        const Macro *macro;
        const LoopState *loop;
    };
};

/* -- The tree (jinja_parse.c) -------------------------------------------------------------------------------------- */

typedef enum NodeKind {
    /* Expressions. */
    NODE_CONSTANT,
    NODE_NAME,        /* text */
    NODE_LIST,        /* items */
    NODE_TUPLE,       /* items */
    NODE_DICT,        /* items: keys, each with its value in `right` */
    NODE_ATTRIBUTE,   /* left.text */
    NODE_ITEM,        /* left[right] */
    NODE_SLICE,       /* left[condition:right:otherwise]; each may be NULL */
    NODE_CALL,        /* left(items): an argument is the `left` of an item, with an optional name in text */
    NODE_FILTER,      /* left|text(items) */
    NODE_TEST,        /* left is text(items) */
    NODE_NOT,         /* left */
    NODE_NEGATIVE,    /* left */
    NODE_POSITIVE,    /* left */
    NODE_AND,         /* left, right */
    NODE_OR,          /* left, right */
    NODE_BINARY,      /* left text right */
    NODE_JOIN,        /* left ~ right */
    NODE_COMPARE,     /* left, and items: each compares with its `right` by the operator in its text */
    NODE_CONDITIONAL, /* left if condition else right, which may be NULL */
    /* Statements. */
    NODE_TEXT,       /* text */
    NODE_OUTPUT,     /* left */
    NODE_IF,         /* condition, items, otherwise */
    NODE_FOR,        /* for left in right if condition: items, else otherwise */
    NODE_SET,        /* left = right, or, if right is NULL, = the output of items */
    NODE_MACRO,      /* text; parameters; items */
    NODE_GENERATION, /* items */
    NODE_BREAK,
    NODE_CONTINUE,
} NodeKind;

typedef struct JinjaNode JinjaNode;
struct JinjaNode {
    NodeKind kind;
    int line;
    Text text;
    Value constant;
    JinjaNode *left, *right, *condition, *otherwise;
    JinjaNode *items;            /* the first of a list, linked by `next` */
    JinjaNode *parameters;       /* of a macro: text, and `right`, the default, or NULL */
    const struct Filter *filter; /* for NODE_FILTER */
    const struct Test *test;     /* for NODE_TEST */
    JinjaNode *next;
};

struct ChatTemplate {
    char *name, *source;
    Pool pool;
    JinjaNode *statements;
    bool marks;
};

/* -- Tokens (jinja_lex.c) ------------------------------------------------------------------------------------------ */

typedef enum TokenKind {
    TOKEN_TEXT,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_VARIABLE_BEGIN,
    TOKEN_VARIABLE_END,
    TOKEN_NAME,
    TOKEN_STRING, /* text: with escapes resolved */
    TOKEN_INTEGER,
    TOKEN_REAL,
    TOKEN_OPERATOR,
    TOKEN_END,
} TokenKind;
typedef struct Token {
    TokenKind kind;
    int line;
    Text text;
    Value number;
} Token;
typedef struct Tokens {
    Token *at;
    size_t count;
} Tokens;
/* Cuts a template into tokens, whose texts are in the pool. ERROR_USAGE. The caller frees `at`. */
bool jinja_lex(const char *name, Text source, Pool *pool, Tokens *tokens, Error *error);
/* Sets the error "NAME, line 3: ...". Returns false. */
bool jinja_refuse(Error *error, const char *name, int line, const char *format, ...) __attribute__((format(printf, 4, 5)));
bool jinja_parse(ChatTemplate *template, Text source, Error *error);

/* -- Rendering (jinja_run.c) --------------------------------------------------------------------------------------- */

/* Names of one level: the template, an iteration of a loop, a macro, or a `generation`. */
typedef struct Scope {
    struct Scope *parent;
    Map names;
} Scope;

struct Macro {
    const JinjaNode *node;
    Scope *scope; /* the scope of its definition */
};
struct LoopState {
    const Items *items;
    size_t at;
};
/* A method bound to a value, "text".strip. */
struct Method {
    Value self;
    const struct MethodEntry *entry;
};

typedef struct SequenceBuilder SequenceBuilder;
typedef struct Render {
    const ChatTemplate *template;
    Pool pool;
    Error *error;
    bool failed;
    int line;                /* of the running node */
    int64_t work, work_done; /* the budget, and the part that is spent */
    int depth;
    time_t now;
    Scope *scope;
    Scope *globals;
    SequenceBuilder *capture; /* destination of statements; NULL: the text */
    ChatText *text;
    enum { CONTROL_NONE, CONTROL_BREAK, CONTROL_CONTINUE } control;
} Render;

/* Record the first failure; jinja_unknown is for a feature that jinja2 may support. */
Value jinja_fail(Render *render, const char *format, ...) __attribute__((format(printf, 2, 3)));
Value jinja_unknown(Render *render, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Spends work; every function that reads `bytes` of a text calls it. Returns false if the budget is
 * spent or the rendering has failed. */
bool jinja_charge(Render *render, size_t bytes);
/* Charges nodes or elements in the same way. */
static inline bool jinja_step(Render *render, size_t steps) { return jinja_charge(render, steps * JINJA_STEP); }
/* Returns memory of the rendering; NULL after a failure. The budget is charged for its bytes
 * here, so the caller does not call jinja_charge to write them. */
void *jinja_take(Render *render, size_t bytes);
/* Returns memory for a struct in the same way, but not NULL after a failure. */
void *jinja_take_struct(Render *render, size_t bytes);
/* Like chat_template_render, with a given budget. */
bool jinja_render(const ChatTemplate *template, const json_t *variables, time_t now, int64_t work, ChatText *text, Error *error);

/* Arguments of a call: positional ones, then named ones. */
typedef struct Arguments {
    Items positional;
    Map named; /* keys are texts */
} Arguments;
/* Returns argument number `at`, or the argument called `name`; `otherwise` if there is none. */
Value argument(const Arguments *arguments, size_t at, const char *name, Value otherwise);
/* Fails unless there are at most `most` positional arguments, and no named ones except those in
 * `names` ("a|b"). */
bool arguments_check(Render *render, const Arguments *arguments, const char *what, size_t most, const char *names);

Value jinja_evaluate(Render *render, const JinjaNode *node);
Value jinja_lookup(Render *render, Text name); /* undefined if it does not exist */
Value jinja_call_macro(Render *render, const Macro *macro, const Arguments *arguments);

/* -- Work on values ------------------------------------------------------------------------------------------------ */

static inline Value value_none(void) { return (Value){.kind = VALUE_NONE}; }
static inline Value value_bool(bool truth) { return (Value){.kind = VALUE_BOOL, .truth = truth}; }
static inline Value value_int(int64_t integer) { return (Value){.kind = VALUE_INT, .integer = integer}; }
static inline Value value_real(double real) { return (Value){.kind = VALUE_REAL, .real = real}; }
static inline Value value_text(Text text) { return (Value){.kind = VALUE_TEXT, .text = text}; }
/* Returns `text` as derived from `value`: with its markup flag. */
static inline Value value_like(Value value, Text text) { return (Value){.kind = VALUE_TEXT, .markup = value.markup, .text = text}; }
static inline Value value_undefined(Text name) { return (Value){.kind = VALUE_UNDEFINED, .text = name}; }
static inline bool value_is_text(Value value) { return value.kind == VALUE_TEXT; }
static inline bool value_is_sequence(Value value) { return value.kind == VALUE_LIST || value.kind == VALUE_TUPLE; }
static inline bool value_is_number(Value value) { return value.kind == VALUE_BOOL || value.kind == VALUE_INT || value.kind == VALUE_REAL; }
bool value_as_integer(Value value, int64_t *integer); /* also for a bool */
double value_as_real(Value value);
const char *value_kind_name(Value value); /* "list" */
bool value_truth(Value value);
bool value_equal(Render *render, Value a, Value b);
/* Returns -1, 0 or 1; fails if Python cannot compare the values. */
int value_compare(Render *render, Value a, Value b);
Value value_items(Render *render, ValueKind kind); /* an empty list or tuple */
void items_append(Render *render, Items *items, Value value);
Value value_map(Render *render, ValueKind kind);            /* an empty dict or namespace */
Value *map_find(Render *render, const Map *map, Value key); /* NULL: not found */
Value *map_find_text(Render *render, const Map *map, Text key);
void map_set(Render *render, Map *map, Value key, Value value);
/* Returns the items that `for` iterates over: a list itself, the keys of a dict, the characters of
 * a text. NULL: the value is not iterable. */
const Items *value_iterate(Render *render, Value value);
bool value_can_iterate(Value value);
/* Return Python's str() and repr(). */
Text value_string(Render *render, Value value);
Text value_repr(Render *render, Value value);
/* The style of Python's json.dumps. */
typedef struct JsonStyle {
    bool ascii, sorted;
    Text indent; /* per level; only with `lines` */
    bool lines;
    Text item_separator, key_separator;
} JsonStyle;
Text value_json(Render *render, Value value, const JsonStyle *style);
Value value_from_json(Render *render, const json_t *json, int depth);

/* -- Texts (jinja_text.c): Python's rules for characters ----------------------------------------------------------- */

/* A text that grows in the pool. */
struct SequenceBuilder {
    Render *render;
    char *bytes;
    size_t size, capacity;
};
void build(SequenceBuilder *builder, Text text);
void build_format(SequenceBuilder *builder, const char *format, ...) __attribute__((format(printf, 2, 3)));
static inline Text built(const SequenceBuilder *builder) { return (Text){builder->bytes ? builder->bytes : "", builder->size}; }

static inline bool str_is(Text text, const char *other) { return text.size == strlen(other) && !memcmp(text.bytes, other, text.size); }
static inline Text str_of(const char *string) { return (Text){string, strlen(string)}; }
bool str_equal(Text a, Text b);
int str_compare(Text a, Text b);
int64_t str_length(Render *render, Text text); /* in characters */
Text str_character(Text text, size_t at);      /* at a byte offset */
uint32_t str_code(Text character);
bool str_is_space(Text character);
int64_t str_find(Text text, Text part, size_t from);                   /* byte offset; -1: not found */
int64_t str_search(Render *render, Text text, Text part, size_t from); /* the same, charged */
enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };
/* Strips white space, or the characters of `set` unless it is NULL, from the ends. */
Text str_strip(Text text, const Text *set, int sides);
Text str_trim(Render *render, Text text, const Text *set, int sides); /* the same, charged */
Value str_slice(Render *render, Text text, int64_t start, int64_t step, int64_t count);
Value str_split(Render *render, Text text, const Text *separator, int64_t most, bool from_right);
Value str_split_lines(Render *render, Text text, bool keep);
Text str_replace(Render *render, Text text, Text old, Text by, int64_t most);
typedef enum TextCase { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_CAPITAL } TextCase;
/* Changes the case of ASCII letters; other letters are refused. */
Text str_case(Render *render, Text text, TextCase which);

/* -- Filters, tests, functions, members ---------------------------------------------------------------------------- */

typedef struct Filter {
    const char *name;
    Value (*apply)(Render *render, Value value, const Arguments *arguments);
    size_t most; /* positional arguments */
    const char *names;
} Filter;
typedef struct Test {
    const char *name;
    bool (*holds)(Render *render, Value value, Value other);
    bool compares; /* takes one argument; otherwise none */
} Test;
/* The tables end with a row without a name. */
extern const Filter jinja_filters[];
extern const Test jinja_tests[];
const Filter *jinja_filter(Text name); /* NULL: not supported */
const Test *jinja_test(Text name);

struct JinjaFunction {
    const char *name;
    Value (*call)(Render *render, const Arguments *arguments);
    size_t most;
    const char *names; /* NULL: any */
};
extern const JinjaFunction jinja_functions[];
void jinja_define_functions(Render *render);

typedef struct MethodEntry {
    const char *name;
    Value (*call)(Render *render, Value self, const Arguments *arguments); /* NULL: not supported */
    size_t least, most;                                                    /* numbers of arguments */
    const char *names;
} MethodEntry;
extern const MethodEntry jinja_text_methods[], jinja_dict_methods[], jinja_list_methods[];
/* Return value.name and value[key]; undefined if it does not exist. */
Value jinja_attribute(Render *render, Value value, Text name);
Value jinja_item(Render *render, Value value, Value key);
Value jinja_call_method(Render *render, const Method *method, const Arguments *arguments);
