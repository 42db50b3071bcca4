/* Filters: rules that drop documents of a corpus, each with the value that it saw.
 *
 * A rule is an expression that a document must fulfill (expression.c): over the fields of its record
 * (`language_score > 0.8`), over statistics of its text (`text.words >= 50`, statistics.c), and over
 * what fastText models say of it (`lang.label == "en"`, fasttext.c). Sets of such rules have names
 * (gopher, c4, fineweb: named_rules.c). Everything is a function of the record and the settings alone, so
 * threads judge documents in any order. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* Borrowed strings; "" leaves a setting out. */
typedef struct FilterOptions {
    const char *where;         /* an expression; what `and` joins at the top are rules of their own */
    const char *rules;         /* names of rules or of sets of them, with commas between them */
    const char *bad_words;     /* a file with a word or phrase on each line; a document with one of them is dropped */
    const char *fasttext;      /* NAME:FILE, with commas between models */
    const char *decontaminate; /* an evaluation set as JSON lines; a document that shares 13 words in a row is dropped */
    const char *lines;         /* names of rules that remove lines, or of sets of them, with commas; NULL: none */
} FilterOptions;

typedef struct DocumentFilter DocumentFilter;
/* Reads the rules, words and models; *filter is NULL if no rule is given. ERROR_USAGE: an expression
 * or a name is not known; ERROR_DATA: a file cannot be read. */
bool filter_open(const FilterOptions *options, DocumentFilter **filter, Error *error);
void filter_free(DocumentFilter *filter); /* NULL is fine */

int filter_rules(const DocumentFilter *filter); /* how many there are */
const char *filter_rule(const DocumentFilter *filter, int rule);
/* The members of a record that rules read: the first names of their paths. */
size_t filter_field_count(const DocumentFilter *filter);
const char *filter_field(const DocumentFilter *filter, size_t field);
bool filter_reads_text(const DocumentFilter *filter); /* whether a rule reads the text of a document */
/* Returns the settings with the content of their files, as a new object: equal for equal verdicts. */
json_t *filter_describe(const DocumentFilter *filter);

/* Removes, in place, the lines of a text that break the rules of `lines`; returns the bytes that are
 * left. Adds to `counts` how often each rule applied. */
enum { LINE_RULES = 6 };
size_t filter_edit(const DocumentFilter *filter, char *text, size_t size, int32_t counts[LINE_RULES]);
bool filter_edits(const DocumentFilter *filter);
const char *line_rule_name(int rule); /* of LINE_RULES */

/* What one thread needs to judge documents. */
typedef struct FilterJudge FilterJudge;
FilterJudge *filter_judge_open(const DocumentFilter *filter);
void filter_judge_free(FilterJudge *judge); /* NULL is fine */
/* Returns the first rule that a document breaks, or -1. `record` is the object that it comes from,
 * or NULL; `text` is UTF-8 and need not end with NUL. `value` gets what the rule saw, as JSON. */
enum { FILTER_VALUE = 160 };
int filter_judge(FilterJudge *judge, const json_t *record, const char *text, size_t size, char value[FILTER_VALUE]);
