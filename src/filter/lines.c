/* Rules that remove lines of a document, as C4 does: Raffel et al., "Exploring the Limits of
 * Transfer Learning with a Unified Text-to-Text Transformer", 2020, section 2.2; where the paper
 * leaves something open, as datatrove does. Lines end as in str.splitlines of Python, and lose the
 * spaces around them. The rules are tried in the order of the table, and the first that a line
 * breaks removes it. Owns nothing. */
#include <string.h>
#include <strings.h>

#include "base/strings.h"
#include "filter/filter_internal.h"

enum { LONGEST_WORD = 1000, FEWEST_WORDS = 3 };

/* A line without the spaces around it. */
typedef struct TextLine {
    char *text;
    size_t size;
    int words; /* before citation marks are removed; at most FEWEST_WORDS */
} TextLine;

/* -- The rules ------------------------------------------------------------------------------------------------------- */

static bool holds(TextLine line, const char *phrase) {
    size_t size = strlen(phrase);
    for (size_t at = 0; at + size <= line.size; at++)
        if (!strncasecmp(line.text + at, phrase, size)) return true;
    return false;
}

static bool ends(TextLine line, const char *ending) {
    size_t size = strlen(ending);
    return line.size >= size && !memcmp(line.text + line.size - size, ending, size);
}

static int64_t has_long_word(TextLine *line) {
    for (size_t at = 0, start; next_text_word(line->text, line->size, &at, &start);)
        if (at - start > LONGEST_WORD && count_characters(line->text + start, at - start) > LONGEST_WORD) return 1;
    return 0;
}

/* Returns the bytes of a citation mark, as in Wikipedia, at a place: [1], [], [edit]; 0: there is none. */
static size_t citation_bytes(TextLine line, size_t at) {
    static const char *const marks[] = {"[edit]", "[citation needed]"};
    size_t end = at + 1;
    if (line.text[at] != '[') return 0;
    while (end < line.size && line.text[end] >= '0' && line.text[end] <= '9') end++;
    if (end < line.size && line.text[end] == ']') return end + 1 - at;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (line.size - at >= strlen(marks[i]) && !memcmp(line.text + at, marks[i], strlen(marks[i]))) return strlen(marks[i]);
    return 0;
}

/* Removes citation marks, and returns their number. The line stays. */
static int64_t remove_citations(TextLine *line) {
    int64_t count = 0;
    size_t kept = 0;
    for (size_t at = 0; at < line->size;) {
        size_t bytes = citation_bytes(*line, at);
        at += bytes;
        count += bytes > 0;
        if (bytes == 0) line->text[kept++] = line->text[at++];
    }
    line->size = kept;
    return count;
}

static int64_t is_open(TextLine *line) {
    bool closed = line->size > 0 && strchr(".?!\"'", line->text[line->size - 1]);
    return !closed || ends(*line, "...");
}

static int64_t has_few_words(TextLine *line) { return line->words < FEWEST_WORDS; }

static int64_t names_javascript(TextLine *line) { return holds(*line, "javascript"); }

static int64_t is_policy(TextLine *line) {
    static const char *const phrases[] = {
        "terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies"};
    for (size_t i = 0; i < sizeof phrases / sizeof *phrases; i++)
        if (holds(*line, phrases[i])) return 1;
    return 0;
}

static const struct {
    const char *set, *name;
    int64_t (*breaks)(TextLine *line); /* returns how often the rule applies */
    bool stays;                        /* the rule edits the line and does not remove it */
} line_rules[LINE_RULES] = {
    {"c4", "c4.long_words", has_long_word, false},
    {"c4", "c4.citations", remove_citations, true},
    {"c4", "c4.open_lines", is_open, false},
    {"c4", "c4.few_words", has_few_words, false},
    {"c4", "c4.javascript", names_javascript, false},
    {"c4", "c4.policy", is_policy, false},
};

const char *line_rule_name(int rule) { return line_rules[rule].name; }

unsigned line_rules_find(const char *name) {
    unsigned found = 0;
    for (int i = 0; i < LINE_RULES; i++)
        if (!strcmp(line_rules[i].set, name) || !strcmp(line_rules[i].name, name)) found |= 1u << i;
    return found;
}

/* -- Editing --------------------------------------------------------------------------------------------------------- */

/* Returns the bytes of the line end that begins here; 0: none does. */
static size_t line_end_bytes(const char *text, size_t size) {
    unsigned char first = (unsigned char)*text;
    if (first == '\r') return size > 1 && text[1] == '\n' ? 2 : 1;
    if ((first >= '\n' && first <= '\f') || (first >= 0x1c && first <= 0x1e)) return 1;
    if (first == 0xc2 && size > 1 && (unsigned char)text[1] == 0x85) return 2;
    bool separator = first == 0xe2 && size > 2 && (unsigned char)text[1] == 0x80 && ((unsigned char)text[2] | 1) == 0xa9;
    return separator ? 3 : 0;
}

/* Returns a text without the spaces around it. */
static TextLine without_spaces(char *text, size_t size) {
    size_t at = 0, start, first, end = 0;
    if (!next_text_word(text, size, &at, &first)) return (TextLine){text, 0, 0};
    int words = 0;
    do {
        end = at;
        words += words < FEWEST_WORDS;
    } while (next_text_word(text, size, &at, &start));
    return (TextLine){text + first, end - first, words};
}

static bool keeps_line(unsigned rules, TextLine *line, int32_t counts[LINE_RULES]) {
    for (int i = 0; i < LINE_RULES; i++) {
        int64_t count = rules & 1u << i ? line_rules[i].breaks(line) : 0;
        counts[i] += (int32_t)count;
        if (count > 0 && !line_rules[i].stays) return false;
    }
    return true;
}

size_t lines_edit(unsigned rules, char *text, size_t size, int32_t counts[LINE_RULES]) {
    size_t kept = 0;
    bool first = true;
    for (size_t at = 0, end, next; at < size; at = next) {
        for (end = at; end < size && !line_end_bytes(text + end, size - end);) end++;
        next = end < size ? end + line_end_bytes(text + end, size - end) : size;
        TextLine line = without_spaces(text + at, end - at);
        if (!keeps_line(rules, &line, counts)) continue;
        if (!first) text[kept++] = '\n';
        first = false;
        memmove(text + kept, line.text, line.size);
        kept += line.size;
    }
    TextLine whole = without_spaces(text, kept);
    memmove(text, whole.text, whole.size);
    return whole.size;
}
