/* The rules of a filter, and their verdict on a document. A rule is a part of an expression; the
 * parts of `where` and each named rule become rules in this order, after those of bad words and of the evaluation set. A DocumentFilter
 * owns expressions, models and names; a FilterJudge owns the scratch of one thread. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/json_reader.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "filter/filter_internal.h"

typedef struct FilterRule {
    char *name;                   /* owned */
    const Expression *expression; /* NULL: `phrases` decide */
    int part;                     /* -1: all parts */
    const Phrases *phrases;
} FilterRule;

typedef struct ScoreModel {
    char *name;
    Fasttext *fasttext;
} ScoreModel;

struct DocumentFilter {
    char *where, *rules_setting; /* as given */
    Expression **expressions;
    size_t expression_count;
    FilterRule *rules;
    size_t rule_count;
    ScoreModel *models;
    size_t model_count;
    Phrases *bad_words, *evaluation;
    char *lines_setting;
    unsigned lines; /* a bit for each rule */
    char **fields;
    size_t field_count;
    bool reads_text;
};

/* -- Names --------------------------------------------------------------------------------------------------------------- */

/* Notes that a rule reads a member of records. */
static void note_field(DocumentFilter *filter, const char *field) {
    for (size_t i = 0; i < filter->field_count; i++)
        if (!strcmp(filter->fields[i], field)) return;
    char *copy = memory_copy_string(field);
    array_append(filter->fields, filter->field_count, copy);
}

static bool find_statistic(DocumentFilter *filter, const char *const *parts, size_t count, FieldName *name, Error *error) {
    char names[1024];
    name->kind = NAME_STATISTIC;
    name->index = count == 2 ? statistic_find(parts[1], strlen(parts[1])) : -1;
    filter->reads_text = true;
    if (name->index >= 0) return true;
    statistic_names(names, sizeof names);
    return error_set(error, ERROR_USAGE, "text.%s is not a statistic of texts: choose of %s", parts[1], names);
}

static bool find_score(DocumentFilter *filter, int index, const char *const *parts, size_t count, FieldName *name, Error *error) {
    const Fasttext *model = filter->models[index].fasttext;
    filter->reads_text = true;
    *name = (FieldName){.kind = NAME_LABEL_SCORE, .index = index, .label = -1};
    if (count != 2) return error_set(error, ERROR_USAGE, "%s is a model: name its label, its score, or a label of it", parts[0]);
    if (!strcmp(parts[1], "label")) name->kind = NAME_LABEL;
    else if (!strcmp(parts[1], "score")) name->kind = NAME_SCORE;
    else
        for (int32_t i = 0; i < fasttext_labels(model) && name->label < 0; i++)
            if (!strcmp(fasttext_label(model, i), parts[1])) name->label = i;
    if (name->kind != NAME_LABEL_SCORE || name->label >= 0) return true;
    char names[512];
    size_t used = 0;
    for (int32_t i = 0; i < fasttext_labels(model) && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", fasttext_label(model, i));
    return error_set(error, ERROR_USAGE, "%s has no label %s: choose of %s", parts[0], parts[1], names);
}

static bool find_name(void *context, const char *const *parts, size_t count, FieldName *name, Error *error) {
    DocumentFilter *filter = context;
    if (count > 1 && !strcmp(parts[0], "text")) return find_statistic(filter, parts, count, name, error);
    for (size_t i = 0; i < filter->model_count; i++)
        if (!strcmp(filter->models[i].name, parts[0])) return find_score(filter, (int)i, parts, count, name, error);
    size_t size = 1;
    for (size_t i = 0; i < count; i++) size += strlen(parts[i]) + 1;
    char *at = name->path = memory_allocate(size);
    for (size_t i = 0; i < count; i++) at = stpcpy(at, parts[i]) + 1;
    note_field(filter, parts[0]);
    return true;
}

/* -- Opening ------------------------------------------------------------------------------------------------------------- */

static Expression *add_expression(DocumentFilter *filter, const char *text, const char *setting, Error *error) {
    Expression *expression = expression_open(text, find_name, filter, error);
    if (!expression) return error_context(error, "%s", setting), NULL;
    array_append(filter->expressions, filter->expression_count, expression);
    return expression;
}

/* Adds a rule, once. */
static void add_rule(DocumentFilter *filter, char *name, const Expression *expression, int part) {
    for (size_t i = 0; i < filter->rule_count; i++)
        if (!strcmp(filter->rules[i].name, name)) return free(name);
    array_append(filter->rules, filter->rule_count, ((FilterRule){.name = name, .expression = expression, .part = part}));
}

/* Returns whether a rule that is not of `where` may have this name. */
static bool is_taken(const char *name) {
    for (int i = 0; i < named_rule_count; i++)
        if (!strcmp(named_rules[i].name, name)) return true;
    return !strcmp(name, "bad_words") || !strcmp(name, "decontaminate");
}

static bool add_where(DocumentFilter *filter, Error *error) {
    if (!*filter->where) return true;
    Expression *expression = add_expression(filter, filter->where, "where", error);
    for (int part = 0; expression && part < expression_parts(expression); part++) {
        SCOPED_FREE char *text = expression_part(expression, part);
        add_rule(filter, memory_format(is_taken(text) ? "%s == true" : "%s", text), expression, part);
    }
    return expression;
}

/* Calls `take` with each element of a list with commas. */
static bool each_element(DocumentFilter *filter, const char *list, bool (*take)(DocumentFilter *, const char *, Error *), Error *error) {
    bool good = true;
    for (const char *at = list; *at && good;) {
        size_t length = strcspn(at, ",");
        SCOPED_FREE char *element = memory_format("%.*s", (int)length, at);
        good = take(filter, element, error);
        at += length + (at[length] == ',');
    }
    return good;
}

/* Says which rules have names: the sets, each once, with what is in them. */
static bool refuse_rule(const char *name, Error *error) {
    char sets[1536];
    size_t used = 0;
    for (int i = 0; i < named_rule_count && used < sizeof sets; i++) {
        bool first = i == 0 || strcmp(named_rules[i].set, named_rules[i - 1].set) != 0;
        const char *before = !first ? ", " : i ? "; " : "";
        used += (size_t)snprintf(sets + used, sizeof sets - used, "%s%s%s%s", before, first ? named_rules[i].set : "",
            first ? " for all of " : "", named_rules[i].name);
    }
    return error_set(error, ERROR_USAGE, "rules: %s is not known: choose of %s", name, sets);
}

static bool add_named(DocumentFilter *filter, const char *name, Error *error) {
    bool found = false;
    name += strspn(name, " ");
    for (int i = 0; i < named_rule_count; i++) {
        const NamedRule *rule = &named_rules[i];
        if (strcmp(rule->set, name) != 0 && strcmp(rule->name, name) != 0) continue;
        Expression *expression = add_expression(filter, rule->expression, rule->name, error);
        if (!expression) return false;
        add_rule(filter, memory_copy_string(rule->name), expression, -1);
        found = true;
    }
    return found || refuse_rule(name, error);
}

static bool add_line_rules(DocumentFilter *filter, const char *name, Error *error) {
    char names[512];
    size_t used = 0;
    name += strspn(name, " ");
    unsigned found = line_rules_find(name);
    filter->lines |= found;
    filter->reads_text = true;
    for (int i = 0; i < LINE_RULES && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, ", %s", line_rule_name(i));
    return found || error_set(error, ERROR_USAGE, "lines: %s is not known: choose of c4 for all%s", name, names);
}

/* Adds the rule of a file of words, or of an evaluation set. */
static Phrases *add_phrases(DocumentFilter *filter, const char *path, const char *setting, bool records, Error *error) {
    Phrases *phrases = phrases_open(path, records, error);
    FilterRule rule = {.name = memory_copy_string(setting), .phrases = phrases};
    array_append(filter->rules, filter->rule_count, rule);
    filter->reads_text = true;
    return phrases;
}

static bool add_model(DocumentFilter *filter, const char *element, Error *error) {
    size_t length = strcspn(element, ":");
    if (!element[length] || length == 0 || !element[length + 1])
        return error_set(error, ERROR_USAGE, "fasttext=%s is not NAME:FILE: give the model a name, as in lang:lid.176.bin", element);
    SCOPED_FREE char *name = memory_format("%.*s", (int)length, element);
    bool taken = !strcmp(name, "text");
    for (size_t i = 0; i < filter->model_count; i++) taken = taken || !strcmp(filter->models[i].name, name);
    if (taken) return error_set(error, ERROR_USAGE, "fasttext=%s: the name %s is taken: give the model another one", element, name);
    ScoreModel model = {memory_copy_string(name), fasttext_open(element + length + 1, error)};
    array_append(filter->models, filter->model_count, model);
    return model.fasttext;
}

bool filter_open(const FilterOptions *options, DocumentFilter **opened, Error *error) {
    *opened = NULL;
    const char *lines = options->lines ? options->lines : "";
    if (!*options->where && !*options->rules && !*options->bad_words && !*options->decontaminate && !*lines)
        return !*options->fasttext || error_set(error, ERROR_USAGE, "fasttext= names a model that no rule reads: set where=");
    DocumentFilter *filter = memory_allocate(sizeof *filter);
    filter->where = memory_copy_string(options->where);
    filter->rules_setting = memory_copy_string(options->rules);
    filter->lines_setting = memory_copy_string(lines);
    bool good = each_element(filter, options->fasttext, add_model, error) && each_element(filter, lines, add_line_rules, error);
    if (good && *options->bad_words) good = (filter->bad_words = add_phrases(filter, options->bad_words, "bad_words", false, error));
    if (good && *options->decontaminate)
        good = (filter->evaluation = add_phrases(filter, options->decontaminate, "decontaminate", true, error));
    good = good && add_where(filter, error) && each_element(filter, options->rules, add_named, error);
    if (good) *opened = filter;
    else filter_free(filter);
    return good;
}

void filter_free(DocumentFilter *filter) {
    if (!filter) return;
    for (size_t i = 0; i < filter->rule_count; i++) free(filter->rules[i].name);
    for (size_t i = 0; i < filter->expression_count; i++) expression_free(filter->expressions[i]);
    for (size_t i = 0; i < filter->model_count; i++) {
        fasttext_free(filter->models[i].fasttext);
        free(filter->models[i].name);
    }
    for (size_t i = 0; i < filter->field_count; i++) free(filter->fields[i]);
    phrases_free(filter->bad_words);
    phrases_free(filter->evaluation);
    free(filter->where);
    free(filter->rules_setting);
    free(filter->lines_setting);
    free(filter->expressions);
    free(filter->rules);
    free(filter->models);
    free(filter->fields);
    free(filter);
}

int filter_rules(const DocumentFilter *filter) { return (int)filter->rule_count; }
const char *filter_rule(const DocumentFilter *filter, int rule) { return filter->rules[rule].name; }
size_t filter_field_count(const DocumentFilter *filter) { return filter->field_count; }
const char *filter_field(const DocumentFilter *filter, size_t field) { return filter->fields[field]; }
bool filter_reads_text(const DocumentFilter *filter) { return filter->reads_text; }

static json_t *describe_phrases(const Phrases *phrases) {
    return phrases ? json_sprintf("xxh3 %016" PRIx64, phrases_identity(phrases)) : json_null();
}

json_t *filter_describe(const DocumentFilter *filter) {
    json_t *models = json_object();
    for (size_t i = 0; i < filter->model_count; i++)
        json_object_set_new(
            models, filter->models[i].name, json_sprintf("xxh3 %016" PRIx64, fasttext_identity(filter->models[i].fasttext)));
    json_t *description = json_pack("{ss ss so so so}", "where", filter->where, "rules", filter->rules_setting, "bad_words",
        describe_phrases(filter->bad_words), "decontaminate", describe_phrases(filter->evaluation), "fasttext", models);
    if (filter->lines) json_object_set_new(description, "lines", json_string(filter->lines_setting));
    return description;
}

bool filter_edits(const DocumentFilter *filter) { return filter->lines; }

size_t filter_edit(const DocumentFilter *filter, char *text, size_t size, int32_t counts[LINE_RULES]) {
    return lines_edit(filter->lines, text, size, counts);
}

/* -- Judging ------------------------------------------------------------------------------------------------------------- */

struct FilterJudge {
    const DocumentFilter *filter;
    const json_t *record;
    const char *text;
    size_t size;
    TextStatistics *statistics;
    float **scores, *hidden; /* of each model */
    bool *scored;
};

FilterJudge *filter_judge_open(const DocumentFilter *filter) {
    FilterJudge *judge = memory_allocate(sizeof *judge);
    int32_t width = 1;
    judge->filter = filter;
    judge->statistics = statistics_open();
    judge->scores = memory_allocate((filter->model_count + 1) * sizeof *judge->scores);
    judge->scored = memory_allocate((filter->model_count + 1) * sizeof *judge->scored);
    for (size_t i = 0; i < filter->model_count; i++) {
        const Fasttext *model = filter->models[i].fasttext;
        judge->scores[i] = memory_allocate((size_t)fasttext_labels(model) * sizeof **judge->scores);
        if (fasttext_width(model) > width) width = fasttext_width(model);
    }
    judge->hidden = memory_allocate((size_t)width * sizeof *judge->hidden);
    return judge;
}

void filter_judge_free(FilterJudge *judge) {
    if (!judge) return;
    statistics_free(judge->statistics);
    for (size_t i = 0; i < judge->filter->model_count; i++) free(judge->scores[i]);
    free(judge->scores);
    free(judge->scored);
    free(judge->hidden);
    free(judge);
}

static Content number_value(double number) { return (Content){CONTENT_NUMBER, number, NULL, 0}; }

static Content json_value(const json_t *json) {
    if (json_is_string(json)) return (Content){CONTENT_TEXT, 0, json_string_value(json), json_string_length(json)};
    if (json_is_boolean(json)) return (Content){CONTENT_BOOL, json_is_true(json), NULL, 0};
    const char *wide = json_wide_number(json);
    if (wide || json_is_number(json)) return number_value(wide ? strtod(wide, NULL) : json_number_value(json));
    return (Content){json && !json_is_null(json) ? CONTENT_OTHER : CONTENT_NULL, 0, NULL, 0};
}

static Content read_field(const json_t *record, const char *path) {
    const json_t *json = record;
    for (; *path; path += strlen(path) + 1) json = json_object_get(json, path);
    return json_value(json);
}

/* Returns the scores of the text's labels; the best label in *best. */
static const float *read_scores(FilterJudge *judge, int index, int32_t *best) {
    const Fasttext *model = judge->filter->models[index].fasttext;
    float *scores = judge->scores[index];
    if (!judge->scored[index]) fasttext_score(model, judge->text, judge->size, judge->hidden, scores);
    judge->scored[index] = true;
    *best = 0;
    for (int32_t i = 1; i < fasttext_labels(model); i++)
        if (scores[i] > scores[*best]) *best = i;
    return scores;
}

static Content read_name(void *context, const FieldName *name) {
    FilterJudge *judge = context;
    int32_t best;
    if (name->kind == NAME_FIELD) return read_field(judge->record, name->path);
    if (name->kind == NAME_STATISTIC) return number_value(statistics_read(judge->statistics, name->index));
    const float *scores = read_scores(judge, name->index, &best);
    if (name->kind == NAME_SCORE) return number_value((double)scores[best]);
    if (name->kind == NAME_LABEL_SCORE) return number_value((double)scores[name->label]);
    const char *label = fasttext_label(judge->filter->models[name->index].fasttext, best);
    return (Content){CONTENT_TEXT, 0, label, strlen(label)};
}

/* Makes a JSON string of at most 24 bytes, with U+FFFD for each byte that is not UTF-8. */
static json_t *json_short_text(const char *text, size_t size) {
    char good[3 * 24];
    size_t used = 0;
    for (size_t at = 0, start = 0; at < size; start = at) {
        bool bad = utf8_character(text, size, &at) == 0xfffd;
        size_t bytes = bad ? 3 : at - start;
        memcpy(good + used, bad ? "\xef\xbf\xbd" : text + start, bytes);
        used += bytes;
    }
    return json_stringn(good, used);
}

/* Writes a value as JSON; a text that is too long is cut between characters. */
static void print_value(const Content *value, char to[FILTER_VALUE]) {
    static const char *const words[] = {[CONTENT_NULL] = "null", [CONTENT_OTHER] = "\"a list or an object\""};
    size_t size = value->size < 24 ? value->size : 24;
    while (size > 0 && size < value->size && ((unsigned char)value->text[size] & 0xc0) == 0x80) size--;
    json_auto_t *json = value->kind == CONTENT_TEXT   ? json_short_text(value->text, size)
                        : value->kind == CONTENT_BOOL ? json_boolean(value->number != 0)
                                                      : NULL;
    SCOPED_FREE char *text = json ? json_dumps(json, JSON_ENCODE_ANY | JSON_ENSURE_ASCII) : NULL;
    if (value->kind == CONTENT_NUMBER && !(value->number - value->number == 0)) snprintf(to, FILTER_VALUE, "\"not finite\"");
    else if (value->kind == CONTENT_NUMBER) snprintf(to, FILTER_VALUE, "%.9g", value->number);
    else snprintf(to, FILTER_VALUE, "%s", text ? text : words[value->kind]);
}

static bool holds_rule(FilterJudge *judge, const FilterRule *rule, char value[FILTER_VALUE]) {
    Content first;
    char found[FILTER_VALUE / 4];
    if (!rule->expression) {
        if (!phrases_find(rule->phrases, judge->text, judge->size, found, sizeof found)) return true;
        first = (Content){CONTENT_TEXT, 0, found, strlen(found)};
        return print_value(&first, value), false;
    }
    int from = rule->part < 0 ? 0 : rule->part, end = rule->part < 0 ? expression_parts(rule->expression) : rule->part + 1;
    for (int part = from; part < end; part++)
        if (!expression_holds(rule->expression, part, read_name, judge, &first)) return print_value(&first, value), false;
    return true;
}

int filter_judge(FilterJudge *judge, const json_t *record, const char *text, size_t size, char value[FILTER_VALUE]) {
    judge->record = record;
    judge->text = text;
    judge->size = size;
    statistics_start(judge->statistics, text, size);
    memset(judge->scored, 0, judge->filter->model_count * sizeof *judge->scored);
    for (size_t i = 0; i < judge->filter->rule_count; i++)
        if (!holds_rule(judge, &judge->filter->rules[i], value)) return (int)i;
    return -1;
}
