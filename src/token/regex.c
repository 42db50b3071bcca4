/* Regular expressions by PCRE2, with the meaning that they have for the files' authors.
 * `tokenizers` uses Oniguruma (Ruby's syntax), tiktoken uses Rust's fancy-regex. A pattern is
 * rewritten if PCRE2 reads it differently, and refused if it cannot be rewritten. White space is
 * spelled out, because PCRE2 counts U+180E as white space. A Regex is read-only; matching needs a
 * RegexScratch per thread.
 *
 * An untrusted expression may backtrack forever, or look at all of the text from each place. The
 * total time of its matches in one text is therefore bounded. A match is first tried within a short
 * window and few steps. PCRE2 reports a try that touched the end of the window
 * (PCRE2_PARTIAL_HARD), so a window never changes a result. A try that does not suffice is repeated
 * by code that charges each item of the expression, and each character that it passes, to the
 * text's budget. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "base/math.h"
#include "base/memory.h"
#include "base/strings.h"
#include "token/token_internal.h"

enum {
    JIT_STACK_START = 1 << 15,
    JIT_STACK_LIMIT = 1 << 24,
    HEAP_LIMIT_KIB = 1 << 20,
    WINDOW = 128,    /* bytes that the first try may look at */
    TRY_STEPS = 128, /* steps of the first try */
    BUDGET = 1 << 25,
    BUDGET_PER_BYTE = 256, /* items and characters per byte of text that further tries may pass */
};

struct Regex {
    char *pattern;              /* from the file, up to 200 bytes, for messages */
    pcre2_code *code, *counted; /* counted: NULL for a known expression */
    bool jit;
    RegexDivision division;
};

struct RegexScratch {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    uint32_t steps; /* the limits set in `context`; 0: PCRE2's defaults */
};

void tokenizer_unicode(char *text, size_t size) {
    char classes[64];
    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, classes);
    snprintf(text, size, "%s in normal forms (utf8proc), %s in classes of characters (PCRE2)", utf8proc_unicode_version(), classes);
}

/* -- Known patterns ------------------------------------------------------------------------------------------------ */

#define CONTRACTIONS "'(?i:[sdmt]|ll|ve|re)"
#define O200K_START "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K_END "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define BY_DIGITS(digits)                                                                                                                  \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const KnownPattern known[] = {
    {"gpt2", "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", NULL},
    {"llama3", BY_DIGITS("\\p{N}{1,3}"), NULL},
    {"qwen", BY_DIGITS("\\p{N}"), NULL},
    {"cl100k", NULL,
        CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|\\s+(?!\\S)|\\s"},
    {"o200k", NULL,
        O200K_START "*" O200K_END "+" O200K_CONTRACTIONS "|" O200K_START "+" O200K_END "*" O200K_CONTRACTIONS
                    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
};

const KnownPattern *known_pattern(const char *name) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0) return &known[i];
    return NULL;
}

/* Expressions without a name: DeepSeek's three, Mistral's, single digits, white space. */
static const struct {
    const char *pattern;
    RegexDivision division;
} known_parts[] = {
    {"\\p{N}{1,3}", DIVIDES_OTHER},
    {"[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+", DIVIDES_OTHER},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
     "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
        DIVIDES_WORDS},
    {O200K_START "*" O200K_END "+|" O200K_START "+" O200K_END "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        DIVIDES_WORDS},
    {"\\p{N}", DIVIDES_OTHER},
    {"\\s", DIVIDES_SPACES},
};

static bool is_same(const char *text, Span pattern) {
    return text && strlen(text) == pattern.size && memcmp(text, pattern.bytes, pattern.size) == 0;
}

static RegexDivision division_of(Span pattern) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (is_same(known[i].json, pattern) || is_same(known[i].tiktoken, pattern)) return DIVIDES_WORDS;
    for (size_t i = 0; i < sizeof known_parts / sizeof *known_parts; i++)
        if (is_same(known_parts[i].pattern, pattern)) return known_parts[i].division;
    return DIVIDES_UNKNOWN;
}

RegexDivision regex_division(const Regex *regex) { return regex->division; }

/* -- Rewriting ----------------------------------------------------------------------------------------------------- */

#define SPACES "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NOT_SPACES                                                                                                                         \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}"  \
    "\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
/* Alphabetic characters, marks, decimal digits and connectors; circled letters count as
 * alphabetic. */
#define WORDS "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"

typedef struct Rewriter {
    const char *pattern;
    size_t length, at;
    bool in_class;
    Buffer out;
} Rewriter;

static void put_pattern(Rewriter *rewriter, const char *text) { buffer_append(&rewriter->out, text, strlen(text)); }

static void put_set(Rewriter *rewriter, const char *set) {
    if (!rewriter->in_class) put_pattern(rewriter, "[");
    put_pattern(rewriter, set);
    if (!rewriter->in_class) put_pattern(rewriter, "]");
}

/* Rewrites \p{Han} to \p{sc:Han}, because PCRE2 would include script extensions. */
static void put_property(Rewriter *rewriter) {
    const char *name = rewriter->pattern + rewriter->at, *end = memchr(name, '}', rewriter->length - rewriter->at);
    buffer_append(&rewriter->out, name - 2, 2);
    if (rewriter->at == rewriter->length || name[0] != '{' || !end) return;
    size_t size = (size_t)(end - name) + 1;
    rewriter->at += size;
    if (size > 4 && !memchr(name, '=', size) && !memchr(name, ':', size) && name[1] != '^') {
        put_pattern(rewriter, "{sc:");
        buffer_append(&rewriter->out, name + 1, size - 1);
    } else {
        buffer_append(&rewriter->out, name, size);
    }
}

static bool put_escape(Rewriter *rewriter, Error *error) {
    char letter = rewriter->at + 1 < rewriter->length ? rewriter->pattern[rewriter->at + 1] : '\0';
    rewriter->at += 2;
    if (strchr("WbBhHRXKyY", letter)) /* or NUL */
        return error_set(error, ERROR_DATA, "\\%c is not supported in a regular expression", letter ? letter : ' ');
    switch (letter) {
    case 's': put_set(rewriter, SPACES); break;
    case 'S': put_set(rewriter, NOT_SPACES); break;
    case 'd': put_pattern(rewriter, "\\p{Nd}"); break;
    case 'D': put_pattern(rewriter, "\\P{Nd}"); break;
    case 'w': put_set(rewriter, WORDS); break;
    case 'p':
    case 'P': put_property(rewriter); break;
    default: buffer_append(&rewriter->out, rewriter->pattern + rewriter->at - 2, 2);
    }
    return true;
}

/* In Ruby, {1,3}+ repeats; in PCRE2 and Rust it is possessive. */
static bool check_interval(const Rewriter *rewriter, Error *error) {
    const char *end = memchr(rewriter->pattern + rewriter->at, '}', rewriter->length - rewriter->at);
    if (end && end + 1 < rewriter->pattern + rewriter->length && end[1] == '+')
        return error_set(error, ERROR_DATA, "+ after {...} is not supported in a regular expression");
    if (end && rewriter->at + 1 < rewriter->length && rewriter->pattern[rewriter->at + 1] == ',')
        return error_set(error, ERROR_DATA, "{,n} is not supported in a regular expression; write {0,n}");
    return true;
}

static bool rewrite_pattern(Rewriter *rewriter, RegexSyntax syntax, Error *error) {
    while (rewriter->at < rewriter->length) {
        char byte = rewriter->pattern[rewriter->at];
        if (byte == '\\') {
            if (!put_escape(rewriter, error)) return false;
            continue;
        }
        if (byte == '{' && !rewriter->in_class && syntax == REGEX_ONIGURUMA && !check_interval(rewriter, error)) return false;
        if (rewriter->in_class && (byte == '[' || (byte == '&' && rewriter->pattern[rewriter->at - 1] == '&')))
            return error_set(error, ERROR_DATA, "nested sets ([...[...]] or &&) are not supported in a regular expression");
        if (byte == '[') {
            rewriter->in_class = true;
            buffer_append(&rewriter->out, &byte, 1);
            if (++rewriter->at < rewriter->length && rewriter->pattern[rewriter->at] == '^') {
                put_pattern(rewriter, "^");
                rewriter->at++;
            }
            continue;
        }
        if (byte == ']') rewriter->in_class = false;
        buffer_append(&rewriter->out, &byte, 1);
        rewriter->at++;
    }
    return true;
}

/* -- Compiling and matching ---------------------------------------------------------------------------------------- */

static pcre2_code *compile(Span pattern, RegexSyntax syntax, uint32_t options, Error *error) {
    int code;
    size_t offset;
    options |= PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    /* $ matches at the end of the text (Rust) or of a line */
    options |= syntax == REGEX_RUST ? PCRE2_DOLLAR_ENDONLY : PCRE2_MULTILINE;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, 100);
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern.bytes, pattern.size, options, &code, &offset, context);
    pcre2_compile_context_free(context);
    if (!compiled) {
        PCRE2_UCHAR message[200];
        pcre2_get_error_message(code, message, sizeof message);
        error_set(
            error, ERROR_DATA, "the regular expression is invalid at byte %zu of %zu: %s", offset, pattern.size, (const char *)message);
    }
    return compiled;
}

/* Only an unknown expression needs code that tries a window and code that counts. */
static bool compile_all(Regex *regex, Span pattern, RegexSyntax syntax, Error *error) {
    bool unknown = regex->division == DIVIDES_UNKNOWN;
    if (!(regex->code = compile(pattern, syntax, 0, error))) return false;
    if (unknown && !(regex->counted = compile(pattern, syntax, PCRE2_AUTO_CALLOUT, error))) return false;
    regex->jit = pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE | (unknown ? PCRE2_JIT_PARTIAL_HARD : 0)) == 0 &&
                 (!unknown || pcre2_jit_compile(regex->counted, PCRE2_JIT_COMPLETE) == 0);
    return true;
}

Regex *regex_open(const char *pattern, size_t length, RegexSyntax syntax, Error *error) {
    Rewriter rewriter = {.pattern = pattern, .length = length};
    Regex *regex = memory_allocate(sizeof *regex);
    regex->pattern = memory_format("%.*s", length < 200 ? (int)length : 200, pattern);
    regex->division = division_of((Span){pattern, length});
    bool good = rewrite_pattern(&rewriter, syntax, error);
    good = good && compile_all(regex, (Span){rewriter.out.bytes ? rewriter.out.bytes : "", rewriter.out.size}, syntax, error);
    free(rewriter.out.bytes);
    if (good) return regex;
    error_context(error, "/%s/", regex->pattern);
    regex_free(regex);
    return NULL;
}

void regex_free(Regex *regex) {
    if (!regex) return;
    pcre2_code_free(regex->code);
    pcre2_code_free(regex->counted);
    free(regex->pattern);
    free(regex);
}

RegexScratch *regex_scratch_open(void) {
    RegexScratch *scratch = memory_allocate(sizeof *scratch);
    scratch->data = pcre2_match_data_create(1, NULL);
    scratch->context = pcre2_match_context_create(NULL);
    scratch->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_LIMIT, NULL);
    pcre2_jit_stack_assign(scratch->context, NULL, scratch->stack);
    pcre2_set_heap_limit(scratch->context, HEAP_LIMIT_KIB);
    return scratch;
}

void regex_scratch_free(RegexScratch *scratch) {
    if (!scratch) return;
    pcre2_match_data_free(scratch->data);
    pcre2_match_context_free(scratch->context);
    pcre2_jit_stack_free(scratch->stack);
    free(scratch);
}

/* The items and characters that a counted try has passed. */
typedef struct Count { size_t work, budget, position; } Count;

/* PCRE2 calls this before each item of the expression. */
static int count_item(pcre2_callout_block *block, void *data) {
    Count *count = data;
    count->work += 1 + (block->current_position > count->position ? block->current_position - count->position : 0);
    count->position = block->current_position;
    return count->work > count->budget ? PCRE2_ERROR_CALLOUT : 0;
}

/* Runs one try of the code. `options`: PCRE2_PARTIAL_HARD or 0. Returns PCRE2's result. */
static int try_match(
    const Regex *regex, const pcre2_code *code, RegexScratch *scratch, Span text, size_t from, uint32_t options, uint32_t steps) {
    PCRE2_SPTR subject = (PCRE2_SPTR)text.bytes;
    int result = PCRE2_ERROR_JIT_STACKLIMIT;
    options |= PCRE2_NO_UTF_CHECK;
    if (scratch->steps != steps) { /* setting both limits for each word would cost 2% of the speed */
        pcre2_set_match_limit(scratch->context, steps);
        pcre2_set_depth_limit(scratch->context, steps);
        scratch->steps = steps;
    }
    if (regex->jit) result = pcre2_jit_match(code, subject, text.size, from, options, scratch->data, scratch->context);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT)
        result = pcre2_match(code, subject, text.size, from, options | PCRE2_NO_JIT, scratch->data, scratch->context);
    return result;
}

/* Returns the text up to the end of a window, moved back to a whole character. */
static Span cut_window(Span text, size_t end) {
    while (((unsigned char)text.bytes[end] & 0xc0) == 0x80) end--;
    return (Span){text.bytes, end};
}

static int match_counted(const Regex *regex, RegexSearch *search, size_t from) {
    Count count = {.work = search->work, .budget = BUDGET + search->text.size * BUDGET_PER_BYTE, .position = from};
    pcre2_set_callout(search->scratch->context, count_item, &count);
    int result = try_match(regex, regex->counted, search->scratch, search->text, from, 0, UINT32_MAX);
    search->work = count.work;
    return result;
}

/* Returns PCRE2's result; PCRE2_ERROR_CALLOUT: the text's budget is spent. */
static int match_within_budget(const Regex *regex, RegexSearch *search, size_t from) {
    bool whole = search->text.size - from <= WINDOW;
    /* Known expressions pass each character a few times at most. They need no bound, which would
     * cost a fifth of their speed. */
    if (regex->division != DIVIDES_UNKNOWN) return try_match(regex, regex->code, search->scratch, search->text, from, 0, UINT32_MAX);
    Span seen = whole ? search->text : cut_window(search->text, from + WINDOW);
    int result = try_match(regex, regex->code, search->scratch, seen, from, whole ? 0 : PCRE2_PARTIAL_HARD, TRY_STEPS);
    if (result > 0 || (whole && result == PCRE2_ERROR_NOMATCH)) return result;
    return match_counted(regex, search, from);
}

static int refuse_text(const Regex *regex, Span text, size_t from, int code, Error *error) {
    PCRE2_UCHAR message[200] = "it backtracks or looks ahead too far. Remove this text, or use another expression";
    char excerpt[41];
    if (code != PCRE2_ERROR_CALLOUT) pcre2_get_error_message(code, message, sizeof message);
    snprintf(excerpt, sizeof excerpt, "%.*s", (int)int_min((int64_t)(text.size - from), 40), text.bytes + from);
    error_set(error, ERROR_DATA, "the tokenizer's regular expression /%s/ fails at byte %zu of a text of %zu bytes, at \"%s\": %s",
        regex->pattern, from, text.size, one_line(excerpt), (const char *)message);
    return -1;
}

int regex_find(const Regex *regex, RegexSearch *search, size_t from, size_t *start, size_t *end, Error *error) {
    int code = match_within_budget(regex, search, from);
    if (code == PCRE2_ERROR_NOMATCH) return 0;
    if (code < 0) return refuse_text(regex, search->text, from, code, error);
    const size_t *bounds = pcre2_get_ovector_pointer(search->scratch->data);
    *start = bounds[0];
    *end = bounds[1] > bounds[0] ? bounds[1] : bounds[0]; /* \K is refused, so a match never ends before it starts */
    return 1;
}

int pattern_find(const Pattern *pattern, RegexSearch *search, size_t from, size_t *start, size_t *end, Error *error) {
    Span text = search->text;
    if (pattern->regex) return regex_find(pattern->regex, search, from, start, end, error);
    const char *found = memmem(text.bytes + from, text.size - from, pattern->text.bytes, pattern->text.size);
    if (!found) return 0;
    *start = (size_t)(found - text.bytes);
    *end = *start + pattern->text.size;
    return 1;
}

void pattern_free(Pattern *pattern) {
    regex_free(pattern->regex);
    free(pattern->text.bytes);
}
