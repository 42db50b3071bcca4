/* The record of a packing: inputs, settings, results, and samples of bad records. It is stored
 * beside the shards as JSON, so that the training data of a model can be identified later. In a
 * folder of shards it also says, until the packing is complete, where to resume after a kill.
 * Nothing in it depends on time or machine. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/memory.h"
#include "base/scope.h"
#include "base/version.h"
#include "data/pack_internal.h"

/* -- Tables -------------------------------------------------------------------------------------------------------- */

static const char *const bad_names[PACK_BAD_KINDS] = {
    "", "invalid UTF-8", "broken JSON", "missing field", "broken row", "empty", "too long", "no conversation", "no pair", "damaged file"};

const char *pack_bad_name(PackBad kind) { return bad_names[kind]; }

typedef struct ReportNumber {
    const char *name;
    size_t offset;
} ReportNumber;
#define RESULT(name) {#name, offsetof(PackReport, result.name)}
#define LOST(name, part) {"lost_" #name, offsetof(PackReport, result.lost[part])}
static const ReportNumber numbers[] = {RESULT(documents), RESULT(train_tokens), RESULT(valid_tokens), RESULT(trained_train),
    RESULT(trained_valid), RESULT(records), RESULT(filtered), RESULT(text_bytes), RESULT(files), RESULT(bytes), RESULT(duplicates),
    RESULT(empty_answers), RESULT(decoded_arguments), RESULT(text_arguments), RESULT(near), RESULT(left_out), RESULT(shards),
    LOST(tool_calls, CHAT_TOOL_CALLS), LOST(tools, CHAT_TOOLS), LOST(thoughts, CHAT_THOUGHTS), LOST(history, CHAT_HISTORY),
    LOST(documents, CHAT_DOCUMENTS), LOST(functions, CHAT_FUNCTIONS), LOST(function_call, CHAT_FUNCTION_CALL), LOST(names, CHAT_NAMES),
    LOST(conversations, CHAT_CONVERSATIONS), LOST(prompts, CHAT_PROMPTS), {"valid_shards", offsetof(PackReport, valid_shards)}};
static const ReportNumber places[] = {{"file", offsetof(PackReport, position.file)}, {"byte", offsetof(PackReport, position.byte)},
    {"line", offsetof(PackReport, position.line)}, {"document", offsetof(PackReport, position.document)},
    {"hashes", offsetof(PackReport, hashes)}};
enum { NUMBERS = sizeof numbers / sizeof *numbers, PLACES = sizeof places / sizeof *places };

static json_t *write_numbers(const PackReport *report, const ReportNumber *table, size_t count) {
    json_t *object = json_object();
    for (size_t i = 0; i < count; i++) {
        int64_t value;
        memcpy(&value, (const char *)report + table[i].offset, sizeof value);
        json_object_set_new(object, table[i].name, json_integer(value));
    }
    return object;
}

static bool read_report_numbers(PackReport *report, const ReportNumber *table, size_t count, const json_t *object) {
    for (size_t i = 0; i < count; i++) {
        const json_t *number = json_object_get(object, table[i].name);
        int64_t value = json_integer_value(number);
        bool old = table == numbers && !number; /* a count that an older smelt did not keep */
        if (!(old || json_is_integer(number)) || value < 0) return false;
        memcpy((char *)report + table[i].offset, &value, sizeof value);
    }
    return true;
}

json_t *pack_json_text(const char *text) {
    size_t size;
    SCOPED_FREE char *good = utf8_replace(text, strlen(text), &size);
    return json_string(good);
}

/* -- Making a record ----------------------------------------------------------------------------------------------- */

/* Returns a number that changes with the content of a file: its time, or the hash of its ETag. */
static int64_t version_of(const ObjectPlace *place) {
    return place->s3 ? (int64_t)XXH3_64bits(place->etag, strlen(place->etag)) : file_modified(place->path);
}

/* Describes an input at the start of the packing: another size, name or time of any of its files
 * makes another input. NULL: it cannot be read. */
static json_t *describe_input(const char *input, const PackFiles *files, size_t *at, Error *error) {
    int64_t bytes = 0, size = 0;
    size_t first = *at;
    uint64_t sum = 0;
    do {
        const char *path = files->list.entries[*at].name;
        const ObjectPlace *place = &files->items[*at].place;
        FileKind kind = place->s3 ? FILE_REGULAR : strcmp(path, "-") ? file_kind(path, &size) : FILE_OTHER;
        if (place->s3) size = place->bytes;
        if (kind == FILE_UNREADABLE || kind == FILE_ABSENT) return file_fail(error, "read", path), NULL;
        bool file = kind == FILE_REGULAR;
        int64_t facts[] = {(int64_t)sum, file ? size : 0, file ? version_of(place) : 0, (int64_t)XXH3_64bits(path, strlen(path))};
        sum = XXH3_64bits(facts, sizeof facts);
        bytes += file ? size : 0;
        ++*at;
    } while (*at < files->list.count && !files->items[first].named && !files->items[*at].named);
    return json_pack("{so sI sI so}", "path", pack_json_text(input), "files", (json_int_t)(*at - first), "bytes", (json_int_t)bytes,
        "state", json_sprintf("xxh3 %016" PRIx64, sum));
}

bool pack_report_open(PackReport *report, const PackOptions *options, PackFiles *files, Error *error) {
    *report = (PackReport){.files = files,
        .inputs = json_array(),
        .samples = json_array(),
        .position = {.line = 1},
        .filtered = memory_allocate((options->filter ? (size_t)filter_rules(options->filter) : 0) * sizeof(int64_t) + 1)};
    for (size_t i = 0, at = 0; options->inputs[i] && at < files->list.count; i++) {
        json_t *input = describe_input(options->inputs[i], files, &at, error);
        if (!input) return error_recode(error, ERROR_DATA);
        json_array_append_new(report->inputs, input);
    }
    return true;
}

void pack_report_name(PackReport *report, const PackOptions *options, PackFiles *files) {
    pack_report_free(report);
    *report = (PackReport){.files = files, .inputs = json_array(), .samples = json_array(), .named = true};
    for (const char *const *input = options->inputs; *input; input++)
        json_array_append_new(report->inputs, json_pack("{so}", "path", pack_json_text(*input)));
}

void pack_report_bad(PackReport *report, const Record *record, const char *file) {
    if (report->result.bad[record->bad]++ >= PACK_SAMPLES) return;
    json_array_append_new(report->samples, json_pack("{ss so sI so}", "kind", bad_names[record->bad], "file", pack_json_text(file), "line",
                                               (json_int_t)record->line, "what", pack_json_text(record->what)));
}

void pack_report_free(PackReport *report) {
    json_decref(report->inputs);
    json_decref(report->samples);
    free(report->filtered);
}

/* -- On disk ------------------------------------------------------------------------------------------------------- */

/* Returns one choice of "a|b|c". */
static json_t *choice_text(const char *choices, int index) {
    for (; index > 0; index--) choices += strcspn(choices, "|") + 1;
    return json_stringn(choices, strcspn(choices, "|"));
}

bool pack_logs_drops(const PackOptions *options) { return options->filter || options->dedup != PACK_DEDUP_NONE; }

json_t *pack_report_settings(const PackReport *report, const PackOptions *options) {
    json_t *settings = json_pack("{sf so so so so so sb sb sI so}", "valid", options->valid_fraction, "separator",
        pack_json_text(options->separator), "field", pack_json_text(options->field), "format",
        choice_text(PACK_FORMATS, (int)options->format), "invalid", choice_text(PACK_INVALIDS, (int)options->invalid), "dedup",
        choice_text(PACK_DEDUPS, (int)options->dedup), "special", options->special, "bos", report->bos, "shard_tokens",
        (json_int_t)options->shard_tokens, "chat", report->chat ? json_sprintf("xxh3 %016" PRIx64, report->chat) : json_null());
    if (options->tokens) json_object_set_new(settings, "tokens", pack_json_text(options->tokens));
    if (options->filter) json_object_set_new(settings, "filter", filter_describe(options->filter));
    if (pack_logs_drops(options)) json_object_set_new(settings, "dropped", json_string(PACK_DROPPED));
    if (report->against) json_object_set_new(settings, "against", json_sprintf("xxh3 %016" PRIx64, report->against));
    if (report->restore) json_object_set_new(settings, "restore", json_sprintf("xxh3 %016" PRIx64, report->restore));
    return settings;
}

/* Counts by rule. */
static json_t *describe_filtered(const PackReport *report, const PackOptions *options) {
    json_t *counts = json_object();
    for (int i = 0; options->filter && i < filter_rules(options->filter); i++)
        json_object_set_new(counts, filter_rule(options->filter, i), json_integer(report->filtered[i]));
    return counts;
}

/* Describes how often each rule over lines applied. */
static json_t *describe_edits(const PackReport *report) {
    json_t *counts = json_object();
    for (int i = 0; i < LINE_RULES; i++) json_object_set_new(counts, line_rule_name(i), json_integer(report->edits[i]));
    return counts;
}

static json_t *describe_bad(const PackResult *result) {
    json_t *bad = json_object();
    for (int i = 1; i < PACK_BAD_KINDS; i++) json_object_set_new(bad, bad_names[i], json_integer(result->bad[i]));
    return bad;
}

static json_t *print_length_table(const PackResult *result) {
    json_t *lengths = json_array();
    for (int i = 0; i < PACK_LENGTHS; i++) json_array_append_new(lengths, json_integer(result->lengths[i]));
    return lengths;
}

char *pack_report_text(const PackReport *report, const PackOptions *options, bool complete) {
    const char *tokenizer = options->tokenizer && *options->tokenizer ? options->tokenizer : "bytes";
    json_auto_t *record = json_pack("{ss sb so so sO so so so sO sO sO}", "smelt", SMELT_VERSION, "complete", complete, "settings",
        pack_report_settings(report, options), "tokenizer", pack_json_text(tokenizer), "inputs", report->inputs, "counts",
        write_numbers(report, numbers, NUMBERS), "bad", describe_bad(&report->result), "document_lengths",
        print_length_table(&report->result), "samples", report->samples, "files_taken", report->files->taken, "files_left_out",
        report->files->left_out);
    if (record && options->filter) json_object_set_new(record, "rules", describe_filtered(report, options));
    if (record && options->filter && filter_edits(options->filter)) json_object_set_new(record, "lines", describe_edits(report));
    if (record && !complete) {
        json_t *position = write_numbers(report, places, PLACES);
        json_object_set_new(position, "dropped_bytes", json_integer(report->dropped_bytes));
        json_object_set_new(record, "position", position);
    }
    char *text = record ? json_dumps(record, JSON_INDENT(1)) : NULL;
    if (!text) memory_refused(1 << 20);
    return text;
}

static bool same_input(const PackReport *report, const json_t *old, const json_t *now) {
    if (!report->named) return json_equal(old, now);
    return json_equal(json_object_get(old, "path"), json_object_get(now, "path"));
}

/* Returns the first setting, or input, that has changed. */
static char *find_difference(const PackReport *report, const PackOptions *options, const json_t *record) {
    json_auto_t *settings = pack_report_settings(report, options);
    const json_t *old = json_object_get(record, "settings"), *value;
    const char *key;
    json_object_foreach((json_t *)old, key, value) {
        if (!json_object_get(settings, key)) return memory_format("the setting %s", key);
    }
    json_object_foreach(settings, key, value) {
        if (!json_equal(value, json_object_get(old, key))) return memory_format("the setting %s", key);
    }
    const json_t *inputs = json_object_get(record, "inputs");
    if (json_array_size(inputs) != json_array_size(report->inputs)) return memory_copy_string("the number of inputs");
    for (size_t i = 0; i < json_array_size(inputs); i++)
        if (!same_input(report, json_array_get(inputs, i), json_array_get(report->inputs, i)))
            return memory_format("the input %s", json_string_value(json_object_get(json_array_get(report->inputs, i), "path")));
    const char *version = json_string_value(json_object_get(record, "smelt"));
    return version && !strcmp(version, SMELT_VERSION) ? NULL : memory_copy_string("the version of smelt");
}

/* Computes the number of records that a packing read, because packing records of an older smelt do
 * not have this count. */
static int64_t count_records(const PackReport *report, const PackOptions *options) {
    const PackResult *result = &report->result;
    int64_t count = result->documents + result->filtered + result->left_out;
    for (int i = 1; i < PACK_BAD_KINDS; i++)
        if (i != PACK_BAD_UTF8 || options->invalid == PACK_INVALID_SKIP || options->invalid == PACK_INVALID_STOP) count += result->bad[i];
    return count;
}

static bool take_counts(PackReport *report, const PackOptions *options, const json_t *record, bool whole) {
    const json_t *bad = json_object_get(record, "bad"), *lengths = json_object_get(record, "document_lengths");
    bool good = read_report_numbers(report, numbers, NUMBERS, json_object_get(record, "counts")) &&
                (whole || read_report_numbers(report, places, PLACES, json_object_get(record, "position")));
    for (int i = 1; i < PACK_BAD_KINDS; i++) report->result.bad[i] = json_integer_value(json_object_get(bad, bad_names[i]));
    for (int i = 0; i < PACK_LENGTHS; i++) report->result.lengths[i] = json_integer_value(json_array_get(lengths, (size_t)i));
    if (!json_object_get(json_object_get(record, "counts"), "records")) report->result.records = count_records(report, options);
    for (int i = 0; options->filter && i < filter_rules(options->filter); i++)
        report->filtered[i] = json_integer_value(json_object_get(json_object_get(record, "rules"), filter_rule(options->filter, i)));
    for (int i = 0; i < LINE_RULES; i++)
        report->edits[i] = json_integer_value(json_object_get(json_object_get(record, "lines"), line_rule_name(i)));
    report->dropped_bytes = json_integer_value(json_object_get(json_object_get(record, "position"), "dropped_bytes"));
    json_t *taken = json_object_get(record, "files_taken"), *left_out = json_object_get(record, "files_left_out");
    json_array_clear(report->files->taken);
    json_array_clear(report->files->left_out);
    json_array_extend(report->files->taken, taken);
    json_array_extend(report->files->left_out, left_out);
    json_decref(report->samples);
    report->samples = json_deep_copy(json_object_get(record, "samples"));
    return good && json_is_array(report->samples);
}

/* Reads a record. *record is NULL if there is none; otherwise the caller owns it. */
static bool read_report_record(const char *path, json_t **record, PackFound *found, Error *error) {
    enum { RECORD_BYTES = 64 << 20 };
    SCOPED_FREE char *text = file_read(path, RECORD_BYTES, NULL, error);
    *record = NULL;
    *found = PACK_FOUND_NOTHING;
    if (!text) return error->finding == FINDING_ABSENT || error_recode(error, ERROR_DATA);
    *record = json_loads(text, 0, NULL);
    const json_t *complete = json_object_get(*record, "complete");
    if (!json_is_boolean(complete)) {
        error_set(error, ERROR_DATA, "%s is not a record of smelt data pack: choose another OUTPUT", path);
        return error_find(error, FINDING_DAMAGED);
    }
    *found = json_is_true(complete) ? PACK_FOUND_WHOLE : PACK_FOUND_PART;
    return true;
}

bool pack_report_find(const char *path, PackFound *found, Error *error) {
    json_t *record;
    bool good = read_report_record(path, &record, found, error);
    json_decref(record);
    return good;
}

bool pack_report_read(PackReport *report, const PackOptions *options, const char *path, PackFound *found, char **difference, Error *error) {
    json_t *read;
    bool good = read_report_record(path, &read, found, error);
    json_auto_t *record = read;
    if (!good || *found == PACK_FOUND_NOTHING) return good;
    char *other = find_difference(report, options, record);
    if (other) {
        free(*difference);
        *difference = other;
    }
    return *difference || take_counts(report, options, record, *found == PACK_FOUND_WHOLE) ||
           error_set(error, ERROR_DATA, "%s is damaged: set overwrite=true to start over", path);
}
