/* Internals of filters: expressions, the values that they read, and the models behind some. */
#pragma once

#include <stdint.h>

#include "base/file.h"
#include "filter/filter.h"

/* -- Words (words.c) --------------------------------------------------------------------------------------------------- */

/* Returns the character at `at` and steps over it; a byte that is not UTF-8 counts as U+FFFD. */
uint32_t utf8_character(const char *text, size_t size, size_t *at);
bool is_wide_space(uint32_t character); /* as str.split of Python */
bool is_letter(uint32_t character);     /* Unicode category L */
bool is_symbol(uint32_t character);     /* category P or S */
int64_t count_characters(const char *text, size_t size);
/* Finds the next word, a run without spaces, at or after *at. Returns false if there is none. */
bool next_text_word(const char *text, size_t size, size_t *at, size_t *start);

/* -- Statistics (statistics.c) --------------------------------------------------------------------------------------- */

int statistic_find(const char *name, size_t length); /* -1: there is none */
void statistic_names(char *names, size_t room);      /* "bytes, characters, ..." for a message */

/* The statistics of a text, each group of them computed when one of it is read first. */
typedef struct TextStatistics TextStatistics;
TextStatistics *statistics_open(void);
void statistics_free(TextStatistics *statistics);
void statistics_start(TextStatistics *statistics, const char *text, size_t size); /* the text is borrowed */
double statistics_read(TextStatistics *statistics, int statistic);

/* -- Models (fasttext.c) --------------------------------------------------------------------------------------------- */

typedef struct Fasttext Fasttext;
/* Reads a model for classification. ERROR_DATA: it is damaged, or of a kind that is not read. */
Fasttext *fasttext_open(const char *path, Error *error);
void fasttext_free(Fasttext *model); /* NULL is fine */
int32_t fasttext_labels(const Fasttext *model);
const char *fasttext_label(const Fasttext *model, int32_t label); /* without "__label__" */
int32_t fasttext_width(const Fasttext *model);                    /* of `hidden` */
uint64_t fasttext_identity(const Fasttext *model);                /* XXH3 of its file */
/* Computes the probability of each label, as fastText's predict prints it: [fasttext_labels].
 * `hidden` is scratch. A text without a known word has 0 for every label. */
void fasttext_score(const Fasttext *model, const char *text, size_t size, float *hidden, float *scores);

/* -- Expressions (expression.c) -------------------------------------------------------------------------------------- */

typedef enum ContentKind { CONTENT_NULL, CONTENT_BOOL, CONTENT_NUMBER, CONTENT_TEXT, CONTENT_OTHER } ContentKind;
typedef struct Content {
    ContentKind kind;
    double number;    /* of a number; 0 or 1 of a boolean */
    const char *text; /* of a text; borrowed */
    size_t size;
} Content;

typedef enum FieldNameKind { NAME_FIELD, NAME_STATISTIC, NAME_LABEL, NAME_SCORE, NAME_LABEL_SCORE } FieldNameKind;
/* The meaning of a name in an expression. */
typedef struct FieldName {
    FieldNameKind kind;
    char *path;    /* of a field: its members with NUL between them, and one more NUL at the end; owned */
    int index;     /* of a statistic; else of the model */
    int32_t label; /* of NAME_LABEL_SCORE */
} FieldName;

typedef struct Expression Expression;
/* Finds what a name stands for: [parts] members. ERROR_USAGE. */
typedef bool FindName(void *context, const char *const *parts, size_t count, FieldName *name, Error *error);
typedef Content ReadName(void *context, const FieldName *name);
/* Reads an expression. ERROR_USAGE names the place. */
Expression *expression_open(const char *text, FindName *find, void *context, Error *error);
void expression_free(Expression *expression);                  /* NULL is fine */
int expression_parts(const Expression *expression);            /* the number of parts that `and` joins at its top */
char *expression_part(const Expression *expression, int part); /* its own text; the caller frees */
/* Returns whether a part holds. `*first` gets the first name of the part that was read, as the part
 * saw it. */
bool expression_holds(const Expression *expression, int part, ReadName *read, void *context, Content *first);

/* -- Sets of rules (named_rules.c) ----------------------------------------------------------------------------------------- */

/* A rule and its expression. `set` is the name that several rules share. */
typedef struct NamedRule { const char *set, *name, *expression; } NamedRule;
extern const NamedRule named_rules[];
extern const int named_rule_count;

/* -- Lines (lines.c) -------------------------------------------------------------------------------------------------- */

unsigned line_rules_find(const char *name); /* a bit for each rule of this name or set; 0: there is none */
size_t lines_edit(unsigned rules, char *text, size_t size, int32_t counts[LINE_RULES]);

/* -- Phrases (phrases.c) ----------------------------------------------------------------------------------------------- */

typedef struct Phrases Phrases;
/* Reads a list with a word or phrase on each line, or the runs of words of all texts of `records`,
 * JSON lines. ERROR_DATA. */
Phrases *phrases_open(const char *path, bool records, Error *error);
void phrases_free(Phrases *phrases); /* NULL is fine */
uint64_t phrases_identity(const Phrases *phrases);
/* Finds the first word or phrase of the list in a text, and copies it. */
bool phrases_find(const Phrases *phrases, const char *text, size_t size, char *found, size_t room);
