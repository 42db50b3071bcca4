/* Cuts a template into tokens and removes the white space that jinja2 removes: with trim_blocks the
 * newline after a block or comment, with lstrip_blocks the white space before one on its line, and
 * the white space that `-` removes. Owns nothing: tokens' texts are in the pool or in the
 * source. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/strings.h"
#include "jinja/jinja_internal.h"

typedef struct Lexer {
    const char *name;
    Text source;
    Pool *pool;
    Tokens *tokens;
    Error *error;
    size_t at;
    int line;
    bool line_starting; /* the last token ended a line */
} Lexer;

bool jinja_refuse(Error *error, const char *name, int line, const char *format, ...) {
    char what[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return error_set(error, ERROR_USAGE, "%s, line %d: %s", name, line, one_line(what));
}

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_blank(char c) { return c && strchr(" \t\n\r\v\f", c); }

static char peek_byte(const Lexer *lexer, size_t ahead) {
    return lexer->at + ahead < lexer->source.size ? lexer->source.bytes[lexer->at + ahead] : '\0';
}

static void step_bytes(Lexer *lexer, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) lexer->line += lexer->source.bytes[lexer->at + i] == '\n';
    lexer->at += bytes;
}

static void add_lexeme(Lexer *lexer, TokenKind kind, Text text) {
    array_append(lexer->tokens->at, lexer->tokens->count, ((Token){.kind = kind, .line = lexer->line, .text = text}));
}

static void skip_space(Lexer *lexer) {
    while (lexer->at < lexer->source.size && is_blank(peek_byte(lexer, 0))) step_bytes(lexer, 1);
}

/* -- Text between tags ----------------------------------------------------------------------------------------------- */

/* Returns the text before a tag that begins with `kind` and `sign`, without the white space that
 * belongs to the tag. */
static Text trim_before(const Lexer *lexer, Text text, char kind, char sign) {
    if (sign == '-') return str_strip(text, NULL, STRIP_RIGHT);
    if (sign == '+' || kind == '{') return text; /* lstrip_blocks applies only to blocks and comments */
    size_t start = text.size;
    while (start > 0 && text.bytes[start - 1] != '\n') start--;
    if (start == 0 && !lexer->line_starting) return text;
    Text rest = {text.bytes + start, text.size - start};
    return str_strip(rest, NULL, STRIP_RIGHT).size == 0 ? (Text){text.bytes, start} : text;
}

/* Skips the end of a tag, with or without a sign before it, and the white space that the tag
 * removes. */
static void step_over_end(Lexer *lexer, char kind) {
    char sign = peek_byte(lexer, 0);
    bool signed_end = sign == '-' || sign == '+';
    size_t first = lexer->at;
    step_bytes(lexer, signed_end ? 3 : 2);
    if (sign == '-') {
        Text rest = {lexer->source.bytes + lexer->at, lexer->source.size - lexer->at};
        step_bytes(lexer, rest.size - str_strip(rest, NULL, STRIP_LEFT).size);
    } else if (!signed_end && kind != '{' && peek_byte(lexer, 0) == '\n') {
        step_bytes(lexer, 1);
    }
    lexer->line_starting = lexer->at > first && lexer->source.bytes[lexer->at - 1] == '\n';
}

static bool skip_comment(Lexer *lexer) {
    int64_t end = str_find(lexer->source, TEXT("#}"), lexer->at);
    if (end < 0) return jinja_refuse(lexer->error, lexer->name, lexer->line, "a comment {# is not closed by #}");
    size_t stop = (size_t)end;
    if (stop > lexer->at && strchr("-+", lexer->source.bytes[stop - 1])) stop--;
    step_bytes(lexer, stop - lexer->at);
    step_over_end(lexer, '#');
    return true;
}

/* Returns the byte at which the next tag begins; the source's size: there is none. */
static size_t find_tag(const Lexer *lexer) {
    size_t at = lexer->at;
    for (; at + 1 < lexer->source.size; at++)
        if (lexer->source.bytes[at] == '{' && strchr("{%#", lexer->source.bytes[at + 1])) return at;
    return lexer->source.size;
}

/* -- Inside a tag ------------------------------------------------------------------------------------------------------ */

static void put_code(char **out, uint32_t code) {
    if (code < 0x80) *(*out)++ = (char)code;
    else if (code < 0x800) *(*out)++ = (char)(0xc0 | code >> 6), *(*out)++ = (char)(0x80 | (code & 63));
    else if (code < 0x10000)
        *(*out)++ = (char)(0xe0 | code >> 12), *(*out)++ = (char)(0x80 | (code >> 6 & 63)), *(*out)++ = (char)(0x80 | (code & 63));
    else
        *(*out)++ = (char)(0xf0 | code >> 18), *(*out)++ = (char)(0x80 | (code >> 12 & 63)), *(*out)++ = (char)(0x80 | (code >> 6 & 63)),
        *(*out)++ = (char)(0x80 | (code & 63));
}

/* Resolves \x41, \u00e9, \U0001f600: `digits` hexadecimal digits after the letter. */
static bool put_hexadecimal(Lexer *lexer, const char **at, const char *end, int digits, char **out) {
    uint32_t code = 0;
    for (int i = 0; i < digits; i++, (*at)++) {
        const char *hexadecimal = "0123456789abcdef", *found = *at < end && **at ? strchr(hexadecimal, **at | 0x20) : NULL;
        if (!found || !**at) return jinja_refuse(lexer->error, lexer->name, lexer->line, "an escape in a string has too few digits");
        code = code * 16 + (uint32_t)(found - hexadecimal);
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return jinja_refuse(lexer->error, lexer->name, lexer->line, "an escape in a string is not a valid character");
    put_code(out, code);
    return true;
}

/* Resolves the escapes of Python's strings. \N and octal escapes are refused. */
static bool unescape(Lexer *lexer, Text raw, Text *text) {
    static const char letters[] = "ntr\\'\"abfv", meanings[] = "\n\t\r\\'\"\a\b\f\v";
    char *out = pool_take(lexer->pool, raw.size + 1), *start = out;
    for (const char *at = raw.bytes, *end = at + raw.size; at < end;) {
        if (*at != '\\') {
            *out++ = *at++;
            continue;
        }
        char letter = *++at;
        const char *known = letter ? strchr(letters, letter) : NULL;
        at++;
        if (known) *out++ = meanings[known - letters];
        else if (letter == 'x' || letter == 'u' || letter == 'U') {
            if (!put_hexadecimal(lexer, &at, end, letter == 'x' ? 2 : letter == 'u' ? 4 : 8, &out)) return false;
        } else if (is_digit(letter) || letter == 'N') {
            return jinja_refuse(lexer->error, lexer->name, lexer->line, "the escape \\%c in a string is not supported", letter);
        } else if (letter != '\n') {
            *out++ = '\\';
            *out++ = letter;
        }
    }
    *text = (Text){start, (size_t)(out - start)};
    return true;
}

static bool lex_string(Lexer *lexer) {
    char quote = peek_byte(lexer, 0);
    size_t end = lexer->at + 1;
    while (end < lexer->source.size && lexer->source.bytes[end] != quote) end += lexer->source.bytes[end] == '\\' ? 2 : 1;
    if (end >= lexer->source.size) return jinja_refuse(lexer->error, lexer->name, lexer->line, "a string is not closed");
    Text raw = {lexer->source.bytes + lexer->at + 1, end - lexer->at - 1}, text;
    if (!unescape(lexer, raw, &text)) return false;
    add_lexeme(lexer, TOKEN_STRING, text);
    step_bytes(lexer, end + 1 - lexer->at);
    return true;
}

static bool lex_number(Lexer *lexer) {
    size_t size = 0, limit = 30;
    bool real = false, member = lexer->at > 0 && lexer->source.bytes[lexer->at - 1] == '.';
    while (is_digit(peek_byte(lexer, size))) size++;
    if (!member && peek_byte(lexer, size) == '.' && is_digit(peek_byte(lexer, size + 1))) {
        real = true;
        size++;
        while (is_digit(peek_byte(lexer, size))) size++;
    }
    if (size > limit || is_letter(peek_byte(lexer, size)) || (size > 1 && !real && peek_byte(lexer, 0) == '0'))
        return jinja_refuse(lexer->error, lexer->name, lexer->line, "this form of a number is not supported");
    char digits[32] = {0};
    memcpy(digits, lexer->source.bytes + lexer->at, size);
    add_lexeme(lexer, real ? TOKEN_REAL : TOKEN_INTEGER, (Text){lexer->source.bytes + lexer->at, size});
    if (!real && size > 18) return jinja_refuse(lexer->error, lexer->name, lexer->line, "a number is too large");
    lexer->tokens->at[lexer->tokens->count - 1].number = real ? value_real(strtod(digits, NULL)) : value_int(strtoll(digits, NULL, 10));
    step_bytes(lexer, size);
    return true;
}

static bool lex_operator(Lexer *lexer, char *open, int *depth) {
    static const char *const operators[] = {"==", "!=", ">=", "<=", "//", "**"};
    char c = peek_byte(lexer, 0);
    size_t size = strchr("+-*/%~[](){}<>=.:|,", c) && c ? 1 : 0;
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (c == operators[i][0] && peek_byte(lexer, 1) == operators[i][1]) size = 2;
    if (size == 0) return jinja_refuse(lexer->error, lexer->name, lexer->line, "'%c' is not supported here", c);
    if (strchr("([{", c)) {
        if (*depth == JINJA_DEPTH)
            return jinja_refuse(lexer->error, lexer->name, lexer->line, "more than %d brackets are open", JINJA_DEPTH);
        open[(*depth)++] = c;
    } else if (strchr(")]}", c)) {
        char wanted = c == ')' ? '(' : c == ']' ? '[' : '{';
        if (*depth == 0 || open[--*depth] != wanted)
            return jinja_refuse(lexer->error, lexer->name, lexer->line, "'%c' has no opening bracket", c);
    }
    add_lexeme(lexer, TOKEN_OPERATOR, (Text){lexer->source.bytes + lexer->at, size});
    step_bytes(lexer, size);
    return true;
}

static bool at_end(const Lexer *lexer, char closing) {
    size_t sign = peek_byte(lexer, 0) == '-' || (closing == '%' && peek_byte(lexer, 0) == '+');
    return peek_byte(lexer, sign) == closing && peek_byte(lexer, sign + 1) == '}';
}

/* Reads the tokens of a tag after its start. */
static bool lex_tag(Lexer *lexer, char kind) {
    char open[JINJA_DEPTH], closing = kind == '{' ? '}' : '%';
    int depth = 0;
    for (;;) {
        skip_space(lexer);
        char c = peek_byte(lexer, 0);
        if (lexer->at >= lexer->source.size) return jinja_refuse(lexer->error, lexer->name, lexer->line, "a tag is not closed");
        if (depth == 0 && at_end(lexer, closing)) break;
        if (is_letter(c)) {
            size_t size = 0;
            while (is_letter(peek_byte(lexer, size)) || is_digit(peek_byte(lexer, size))) size++;
            add_lexeme(lexer, TOKEN_NAME, (Text){lexer->source.bytes + lexer->at, size});
            step_bytes(lexer, size);
        } else if (is_digit(c) ? !lex_number(lexer) : c == '"' || c == '\'' ? !lex_string(lexer) : !lex_operator(lexer, open, &depth)) {
            return false;
        }
    }
    add_lexeme(lexer, kind == '{' ? TOKEN_VARIABLE_END : TOKEN_BLOCK_END, TEXT(""));
    step_over_end(lexer, kind);
    return true;
}

/* -- Whole template ---------------------------------------------------------------------------------------------------- */

static bool lex_next(Lexer *lexer) {
    size_t tag = find_tag(lexer), first = lexer->at;
    Text text = {lexer->source.bytes + first, tag - first};
    if (tag == lexer->source.size) {
        if (text.size) add_lexeme(lexer, TOKEN_TEXT, text);
        lexer->at = tag;
        return true;
    }
    char kind = lexer->source.bytes[tag + 1], sign = tag + 2 < lexer->source.size ? lexer->source.bytes[tag + 2] : '\0';
    text = trim_before(lexer, text, kind, sign);
    if (text.size) add_lexeme(lexer, TOKEN_TEXT, text);
    step_bytes(lexer, tag - first);
    step_bytes(lexer, sign == '-' || sign == '+' ? 3 : 2);
    if (kind == '#') return skip_comment(lexer);
    add_lexeme(lexer, kind == '{' ? TOKEN_VARIABLE_BEGIN : TOKEN_BLOCK_BEGIN, TEXT(""));
    return lex_tag(lexer, kind);
}

/* Converts every line end to \n, and drops a final one. */
static Text normalize(Text source, Pool *pool) {
    char *out = pool_take(pool, source.size + 1), *start = out;
    for (size_t i = 0; i < source.size; i++) {
        bool pair = source.bytes[i] == '\r' && i + 1 < source.size && source.bytes[i + 1] == '\n';
        if (!pair) *out++ = source.bytes[i] == '\r' ? '\n' : source.bytes[i];
    }
    if (out > start && out[-1] == '\n') out--;
    return (Text){start, (size_t)(out - start)};
}

bool jinja_lex(const char *name, Text source, Pool *pool, Tokens *tokens, Error *error) {
    Lexer lexer = {name, normalize(source, pool), pool, tokens, error, 0, 1, true};
    while (lexer.at < lexer.source.size)
        if (!lex_next(&lexer)) return false;
    add_lexeme(&lexer, TOKEN_END, TEXT(""));
    return true;
}
