/* The records of a run: JSON lines in RUN/metrics.jsonl, scalars in RUN/tensorboard/. A Metrics
 * owns both files. Nothing is buffered, so that all reports survive kill -9. Records are synced
 * before a checkpoint is saved, so that a checkpoint that survives a power cut has the records of
 * all its steps. JSON has no NaN: a number that is not finite is null, and "finite": false then
 * marks the record. Null alone means unknown. Called by the training loop. */
#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "run/metrics.h"
#include "run/tensorboard_internal.h"

/* Summary of the records that were kept. */
typedef struct KeptRecords {
    int64_t checkpoint;         /* step of the latest one; -1: none */
    int64_t step, missing, gap; /* the latest step; number of earlier steps without a record, and the first of them */
} KeptRecords;

struct Metrics {
    File journal;
    KeptRecords kept;
    Tensorboard *tensorboard; /* NULL if disabled */
};

/* -- Opening ------------------------------------------------------------------------------------------------------- */

/* Notes a record of step `at`, which follows the last noted step unless records are missing. */
static void note_step(KeptRecords *kept, int64_t at) {
    if (at <= kept->step) return;
    if (at > kept->step + 1 && !kept->missing) kept->gap = kept->step + 1;
    kept->missing += at - kept->step - 1;
    kept->step = at;
}

/* The records to keep: starts, and records up to `step`. A fork keeps only its origin's starts
 * before `step`. */
typedef struct RecordCut {
    int64_t step;
    bool fork, evaluates; /* evaluates: drop the evaluation and sample of `step` */
} RecordCut;

/* Returns whether a line is kept. Records begin as record_new and json_dumps write them, so
 * hundreds of megabytes need no parser before the first step. Lines with another beginning are
 * unknown and kept, unless they contain zeros, which a power cut leaves in unsynced records.
 * Incomplete records are dropped. */
static bool keeps(const FileReader *reader, RecordCut cut, KeptRecords *kept) {
    char kind[16];
    long long at;
    if (memchr(reader->line, '\0', reader->length)) return false;
    bool ours = sscanf(reader->line, "{\"kind\": \"%15[a-z]\", \"step\": %18lld", kind, &at) == 2;
    if (!ours) return true;
    if (reader->line[reader->length - 1] != '}') return false;
    if (strcmp(kind, "start") == 0) return !cut.fork || at < cut.step;
    bool evaluation = !strcmp(kind, "evaluation") || !strcmp(kind, "sample");
    bool again = !strcmp(kind, "phase") || (cut.evaluates && evaluation); /* will be written again */
    if (at > cut.step || (at == cut.step && again)) return false;
    if (strcmp(kind, "step") == 0) note_step(kept, at);
    if (strcmp(kind, "checkpoint") == 0) kept->checkpoint = at;
    return true;
}

/* Copies the lines that are kept to `copy`, if it is not NULL. `*dropped`: there are other lines.
 * `*kept`: the summary of the kept ones. */
static bool filter(const char *path, RecordCut cut, File *copy, bool *dropped, KeptRecords *kept, Error *error) {
    FileReader reader;
    bool good = true;
    if (!file_reader_open(&reader, path, error)) return false;
    *dropped = false;
    for (FileLine line; good && (line = file_reader_next(&reader)) != FILE_LINE_END;) {
        if (line != FILE_LINE_WHOLE || !keeps(&reader, cut, kept)) {
            *dropped = true;
        } else if (copy) {
            reader.line[reader.length] = '\n';
            good = file_append(copy, reader.line, (int64_t)reader.length + 1, error);
        }
    }
    return file_reader_close(&reader, error) && good;
}

/* Other processes see either the old file or the new one. */
static bool rewrite_records(const char *from, const char *to, RecordCut cut, Error *error) {
    SCOPED(file_close) File copy = {0};
    bool dropped;
    KeptRecords kept = {0};
    return file_replace_begin(&copy, to, error) && filter(from, cut, &copy, &dropped, &kept, error) && file_replace_commit(&copy, error);
}

static bool drop_later_records(const char *path, RecordCut cut, KeptRecords *kept, Error *error) {
    bool dropped = false;
    *kept = (KeptRecords){.checkpoint = -1};
    return !file_exists(path) || (filter(path, cut, NULL, &dropped, kept, error) && (!dropped || rewrite_records(path, path, cut, error)));
}

bool metrics_last_checkpoint(const char *run, int64_t *step, Error *error) {
    SCOPED_FREE char *path = memory_format("%s/metrics.jsonl", run);
    KeptRecords kept = {.checkpoint = -1};
    bool dropped;
    if (file_exists(path) && !filter(path, (RecordCut){.step = INT64_MAX}, NULL, &dropped, &kept, error)) return false;
    *step = kept.checkpoint > 0 ? kept.checkpoint : 0;
    return true;
}

bool metrics_fork(const char *base, const char *run, int64_t step, Error *error) {
    SCOPED_FREE char *from = memory_format("%s/metrics.jsonl", base), *to = memory_format("%s/metrics.jsonl", run);
    return !file_exists(from) || rewrite_records(from, to, (RecordCut){.step = step, .fork = true}, error);
}

/* Reports draw no line over missing records. */
static void warn_of_gaps(const char *path, int64_t step, KeptRecords *kept) {
    note_step(kept, step + 1);
    if (kept->missing)
        log_warn("%s has no records for %lld of the %lld steps so far, from step %lld on: it was removed or damaged, or its disk was full; "
                 "training continues, and reports show a gap",
            path, (long long)kept->missing, (long long)step, (long long)kept->gap);
}

Metrics *metrics_open(const char *run, int64_t step, bool evaluates, bool tensorboard, Error *error) {
    Metrics *metrics = memory_allocate(sizeof *metrics);
    SCOPED_FREE char *path = memory_format("%s/metrics.jsonl", run), *folder = memory_format("%s/tensorboard", run);
    if (file_make_folder(run, error) &&
        drop_later_records(path, (RecordCut){.step = step, .evaluates = evaluates}, &metrics->kept, error) &&
        file_open_journal(&metrics->journal, path, error) && file_sync_name(path, error) &&
        (!tensorboard || (metrics->tensorboard = tensorboard_open(folder, step, log_unix_seconds(), error)))) {
        warn_of_gaps(path, step, &metrics->kept);
        return metrics;
    }
    metrics_close(metrics);
    return NULL;
}

int64_t metrics_saved(const Metrics *metrics) { return metrics->kept.checkpoint; }

bool metrics_sync(const Metrics *metrics, Error *error) { return file_sync_data(&metrics->journal, error); }

void metrics_close(Metrics *metrics) {
    if (!metrics) return;
    file_close(&metrics->journal);
    tensorboard_close(metrics->tensorboard);
    free(metrics);
}

/* -- JSON lines ---------------------------------------------------------------------------------------------------- */

static json_t *record_new(const char *kind, int64_t step) {
    json_t *record = json_object();
    json_object_set_new(record, "kind", json_string(kind));
    json_object_set_new(record, "step", json_integer(step));
    return record;
}

static void put_integer(json_t *record, const char *name, int64_t value) { json_object_set_new(record, name, json_integer(value)); }

/* Writes null if the value is not finite. */
static void put_known(json_t *record, const char *name, double value) {
    json_object_set_new(record, name, isfinite(value) ? json_real(value) : json_null());
}

/* Like put_known, for values that are finite in a healthy run. */
static void put_finite(json_t *record, const char *name, double value) {
    put_known(record, name, value);
    if (!isfinite(value)) json_object_set_new(record, "finite", json_false());
}

/* If the file was removed, records continue in a new file. */
static bool reopen_removed(Metrics *metrics, Error *error) {
    bool lost;
    if (!file_follow_name(&metrics->journal, &lost, error)) return false;
    if (lost)
        log_warn("%s was removed or replaced during training: its earlier records are lost, and reports show a gap", metrics->journal.path);
    return true;
}

/* Takes ownership of the record. */
static bool record_write(Metrics *metrics, json_t *record, double time, Error *error) {
    enum { DIGITS = 15 }; /* survive a double, so 0.1 is written as 0.1 */
    json_object_set_new(record, "time", json_real(time));
    SCOPED_FREE char *text = json_dumps(record, JSON_REAL_PRECISION(DIGITS));
    json_decref(record);
    assert(text);
    size_t length = strlen(text);
    if (length > FILE_LINE_LIMIT)
        return error_set(error, ERROR_INTERNAL, "a record of %zu bytes for %s exceeds the limit of %d bytes", length, metrics->journal.path,
            (int)FILE_LINE_LIMIT);
    text[length] = '\n'; /* replaces the NUL */
    return reopen_removed(metrics, error) && file_append(&metrics->journal, text, length + 1, error);
}

/* -- Rates ---------------------------------------------------------------------------------------------------------- */

StepRates metrics_rates(const StepMetrics *step) {
    bool timed = step->seconds > 0 && isfinite(step->seconds);
    double flops = timed && step->flops > 0 ? step->flops / step->seconds : NAN;
    return (StepRates){
        .tokens_per_second = timed ? (double)step->tokens / step->seconds : NAN,
        .images_per_second = timed && step->images ? (double)step->images / step->seconds : NAN,
        .tflops = flops * 1e-12,
        .peak_percent = step->peak_flops > 0 ? 100 * flops / step->peak_flops : NAN,
        .best_percent = step->measured_flops > 0 ? 100 * flops / step->measured_flops : NAN,
    };
}

/* -- Pairs of answers ------------------------------------------------------------------------------------------------ */

/* The tags follow TRL. */
static bool write_rewards(Metrics *metrics, int64_t step, double time, const Rewards *rewards, bool validation, Error *error) {
    static const char *const tags[2][4] = {{"rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies"},
        {"rewards/chosen/validation", "rewards/rejected/validation", "rewards/margins/validation", "rewards/accuracies/validation"}};
    const double values[] = {rewards->chosen, rewards->rejected, rewards->chosen - rewards->rejected, rewards->accuracy};
    TensorboardScalar scalars[4];
    for (int i = 0; i < 4; i++) scalars[i] = (TensorboardScalar){tags[validation][i], values[i]};
    return !rewards->pairs || tensorboard_write(metrics->tensorboard, step, time, scalars, 4, error);
}

static void put_rewards(json_t *record, const Rewards *rewards) {
    if (!rewards->pairs) return;
    put_integer(record, "pairs", rewards->pairs);
    put_finite(record, "reward_chosen", rewards->chosen);
    put_finite(record, "reward_rejected", rewards->rejected);
    put_finite(record, "reward_margin", rewards->chosen - rewards->rejected);
    put_finite(record, "reward_accuracy", rewards->accuracy);
}

/* -- Reinforcement learning ------------------------------------------------------------------------------------------- */

/* A number of a step: its name in records, and its tag, which follows TRL. */
typedef struct PolicyColumn {
    const char *name, *tag;
    double value;
    bool first; /* only in the first step of a rollout */
} PolicyColumn;
enum { POLICY_COLUMNS = 21 };

static int policy_columns(const PolicyMetrics *m, PolicyColumn columns[POLICY_COLUMNS]) {
    const PolicyColumn all[] = {{"reward", "reward", m->reward, false}, {"reward_deviation", "reward_std", m->deviation, false},
        {"equal_groups", "frac_reward_zero_std", m->equal_groups, false}, {"sample_length", "completions/mean_length", m->length, false},
        {"cut_share", "completions/clipped_ratio", m->cut, false}, {"failed_share", "completions/failed_ratio", m->failed, false},
        {"turns", "completions/mean_turns", m->turns, false}, {"entropy", "entropy", m->entropy, false}, {"kl", "kl", m->kl, false},
        {"clipped_share", "clip_ratio/region_mean", m->clipped, false},
        {m->first ? "mismatch_kl" : "policy_kl", m->first ? "mismatch_kl" : "policy_kl", m->mismatch, false},
        {m->first ? "mismatch_share" : "policy_share", m->first ? "mismatch_share" : "policy_share", m->different, false},
        {"value", "val/mean", m->value, false}, {"explained_variance", "val/explained_variance", m->explained, false},
        {"value_loss", "loss/value_avg", m->value_loss, false}, {"value_clipped_share", "val/clipfrac_avg", m->value_clipped, false},
        {"drawn_tokens", "drawn_tokens", (double)m->drawn, true},
        {"generating_milliseconds", "generating_milliseconds", m->generating * 1e3, true},
        {"judging_milliseconds", "judging_milliseconds", m->judging * 1e3, true},
        {"scoring_milliseconds", "scoring_milliseconds", m->scoring * 1e3, true}};
    int count = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all && m->samples; i++)
        if (!isnan(all[i].value) && (m->first || !all[i].first)) columns[count++] = all[i];
    return count;
}

static void put_policy(json_t *record, const PolicyMetrics *policy) {
    PolicyColumn columns[POLICY_COLUMNS];
    int count = policy_columns(policy, columns);
    if (policy->samples) put_integer(record, "samples", policy->samples);
    for (int i = 0; i < count; i++) put_finite(record, columns[i].name, columns[i].value);
    if (policy->rewards) json_object_set(record, "rewards", (json_t *)policy->rewards);
}

static bool write_reward_means(Metrics *metrics, int64_t step, double time, const json_t *rewards, Error *error) {
    const char *name;
    json_t *mean;
    json_object_foreach((json_t *)rewards, name, mean) {
        SCOPED_FREE char *tag = memory_format("rewards/%s/mean", name);
        if (!tensorboard_write(metrics->tensorboard, step, time, &(TensorboardScalar){tag, json_number_value(mean)}, 1, error))
            return false;
    }
    return true;
}

static bool write_policy(Metrics *metrics, int64_t step, double time, const PolicyMetrics *policy, Error *error) {
    PolicyColumn columns[POLICY_COLUMNS];
    TensorboardScalar scalars[POLICY_COLUMNS];
    int count = policy_columns(policy, columns);
    for (int i = 0; i < count; i++) scalars[i] = (TensorboardScalar){columns[i].tag, columns[i].value};
    return (!count || tensorboard_write(metrics->tensorboard, step, time, scalars, (size_t)count, error)) &&
           write_reward_means(metrics, step, time, policy->rewards, error);
}

/* -- Events -------------------------------------------------------------------------------------------------------- */

bool metrics_step(Metrics *metrics, const StepMetrics *step, Error *error) {
    StepRates rates = metrics_rates(step);
    double time = log_unix_seconds();
    json_t *record = record_new("step", step->step);
    put_finite(record, "loss", step->loss);
    put_finite(record, "auxiliary", step->auxiliary);
    if (!isnan(step->mtp_loss)) put_finite(record, "mtp_loss", step->mtp_loss);
    put_finite(record, "grad_norm", step->gradient_norm);
    put_finite(record, "lr", step->lr);
    put_known(record, "milliseconds", step->seconds > 0 ? round(step->seconds * 1e6) * 1e-3 : NAN);
    put_integer(record, "tokens", step->tokens);
    put_integer(record, "tokens_seen", step->tokens_seen);
    put_known(record, "tokens_per_second", rates.tokens_per_second);
    if (step->images) put_integer(record, "images", step->images);
    if (step->images) put_known(record, "images_per_second", rates.images_per_second);
    put_known(record, "tflops", rates.tflops);
    put_known(record, "peak_percent", rates.peak_percent);
    put_known(record, "best_percent", rates.best_percent);
    json_object_set_new(record, "memory_bytes", step->memory > 0 ? json_integer(step->memory) : json_null());
    put_known(record, "waiting_milliseconds", round(step->waiting * 1e6) * 1e-3);
    json_object_set_new(record, "skipped", json_boolean(step->skipped));
    put_rewards(record, &step->rewards);
    put_policy(record, &step->policy);
    const TensorboardScalar scalars[] = {
        {"loss/train", step->loss},
        {"grad_norm", step->gradient_norm},
        {"learning_rate", step->lr},
        {"tokens_per_second", rates.tokens_per_second},
    };
    return record_write(metrics, record, time, error) &&
           tensorboard_write(metrics->tensorboard, step->step, time, scalars, isnan(rates.tokens_per_second) ? 3 : 4, error) &&
           write_rewards(metrics, step->step, time, &step->rewards, false, error) &&
           write_policy(metrics, step->step, time, &step->policy, error);
}

static bool write_imbalance(
    Metrics *metrics, int64_t step, double time, int64_t layers, int64_t experts, const double *load, Error *error) {
    SCOPED_FREE TensorboardScalar *scalars = memory_allocate((size_t)layers * sizeof *scalars);
    size_t count = 0;
    for (int64_t layer = 0; layer < layers; layer++) {
        double most = 0, sum = 0;
        for (int64_t expert = 0; expert < experts; expert++) {
            most = fmax(most, load[layer * experts + expert]);
            sum += load[layer * experts + expert];
        }
        if (sum > 0)
            scalars[count++] = (TensorboardScalar){
                memory_format("expert_load_max_over_mean/layer_%02lld", (long long)layer), most * (double)experts / sum};
    }
    bool good = tensorboard_write(metrics->tensorboard, step, time, scalars, count, error);
    for (size_t i = 0; i < count; i++) free((char *)scalars[i].tag);
    return good;
}

bool metrics_load(Metrics *metrics, int64_t step, int64_t layers, int64_t experts, const double *load, Error *error) {
    const double digits = 1e6; /* finer than one token in a million is noise */
    double time = log_unix_seconds();
    json_t *record = record_new("load", step), *rows = json_array();
    for (int64_t layer = 0; layer < layers; layer++) {
        json_t *row = json_array();
        for (int64_t expert = 0; expert < experts; expert++) {
            double part = load[layer * experts + expert];
            json_array_append_new(row, isfinite(part) ? json_real(round(part * digits) / digits) : json_null());
        }
        json_array_append_new(rows, row);
    }
    json_object_set_new(record, "load", rows);
    return record_write(metrics, record, time, error) &&
           (!metrics->tensorboard || write_imbalance(metrics, step, time, layers, experts, load, error));
}

void norm_histogram_add(NormHistogram *histogram, double norm) {
    if (!(norm > 0 && isfinite(norm))) return;
    int bin = ilogb(norm) - NORM_FIRST;
    histogram->tensors[bin < 0 ? 0 : bin < NORM_BINS ? bin : NORM_BINS - 1]++;
}

/* Puts {"first": exponent of the first bin, "tensors": [...]} without empty bins at both ends. */
static void put_histogram(json_t *record, const char *name, const NormHistogram *histogram) {
    int first = 0, last = NORM_BINS - 1;
    while (first < last && !histogram->tensors[first]) first++;
    while (last > first && !histogram->tensors[last]) last--;
    json_t *counts = json_array();
    for (int i = first; i <= last; i++) json_array_append_new(counts, json_integer(histogram->tensors[i]));
    json_object_set_new(record, name, json_pack("{s:i, s:o}", "first", first + NORM_FIRST, "tensors", counts));
}

bool metrics_layers(Metrics *metrics, int64_t step, int64_t layers, LayerNorms gradients, LayerNorms weights, Error *error) {
    const struct {
        const char *name, *outside, *histogram, *tag;
        LayerNorms of;
    } kinds[] = {{"gradient", "outside_gradient", "gradient_histogram", "norms/gradient_log2", gradients},
        {"weight", "outside_weight", "weight_histogram", "norms/weight_log2", weights}};
    json_t *record = record_new("layers", step);
    double time = log_unix_seconds();
    bool good = true;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const NormHistogram *histogram = kinds[k].of.histogram;
        json_t *list = json_array();
        for (int64_t layer = 0; layer < layers; layer++)
            json_array_append_new(list, isfinite(kinds[k].of.norms[layer]) ? json_real(kinds[k].of.norms[layer]) : json_null());
        json_object_set_new(record, kinds[k].name, list);
        put_finite(record, kinds[k].outside, kinds[k].of.norms[layers]);
        if (histogram) put_histogram(record, kinds[k].histogram, histogram);
        if (histogram && good)
            good = tensorboard_write_histogram(
                metrics->tensorboard, step, time, kinds[k].tag, NORM_FIRST, histogram->tensors, NORM_BINS, error);
    }
    return record_write(metrics, record, time, error) && good;
}

bool metrics_evaluation(Metrics *metrics, const EvaluationMetrics *evaluation, Error *error) {
    double time = log_unix_seconds(), bits = evaluation->bits_per_byte;
    json_t *record = record_new("evaluation", evaluation->step);
    put_finite(record, "loss", evaluation->loss);
    put_known(record, "bits_per_byte", bits);
    put_integer(record, "tokens", evaluation->tokens);
    put_integer(record, "length", evaluation->length);
    put_rewards(record, &evaluation->rewards);
    if (!isnan(evaluation->reward)) put_finite(record, "reward", evaluation->reward);
    put_known(record, "milliseconds", round(evaluation->seconds * 1e6) * 1e-3);
    const TensorboardScalar scalars[] = {{"loss/validation", evaluation->loss}, {"bits_per_byte/validation", bits}};
    return record_write(metrics, record, time, error) &&
           tensorboard_write(metrics->tensorboard, evaluation->step, time, scalars, isnan(bits) ? 1 : 2, error) &&
           write_rewards(metrics, evaluation->step, time, &evaluation->rewards, true, error);
}

/* Writes a code block of indented lines, so that the model's text cannot end the block. */
static bool write_text_block(Metrics *metrics, int64_t step, double time, const char *prompt, const char *text, Error *error) {
    static const char indent[] = "    ";
    const char *const parts[] = {prompt, text};
    char *block = NULL;
    size_t size;
    if (!metrics->tensorboard) return true;
    FILE *out = open_memstream(&block, &size);
    if (!out) memory_refused(0);
    fputs(indent, out);
    for (int i = 0; i < 2; i++)
        for (const char *at = parts[i]; *at; at++) {
            putc(*at, out);
            if (*at == '\n') fputs(indent, out);
        }
    fclose(out);
    bool good = tensorboard_write_text(metrics->tensorboard, step, time, "sample", block, error);
    free(block);
    return good;
}

bool metrics_sample(Metrics *metrics, int64_t step, const char *prompt, const char *text, int64_t tokens, double seconds, Error *error) {
    double time = log_unix_seconds();
    json_t *record = record_new("sample", step);
    json_object_set_new(record, "prompt", json_string(prompt));
    json_object_set_new(record, "text", json_string(text));
    put_integer(record, "tokens", tokens);
    put_known(record, "milliseconds", round(seconds * 1e6) * 1e-3);
    return record_write(metrics, record, time, error) && write_text_block(metrics, step, time, prompt, text, error);
}

bool metrics_checkpoint(Metrics *metrics, int64_t step, double seconds, int64_t bytes, Error *error) {
    json_t *record = record_new("checkpoint", step);
    put_known(record, "milliseconds", round(seconds * 1e6) * 1e-3);
    json_object_set_new(record, "bytes", bytes >= 0 ? json_integer(bytes) : json_null());
    return record_write(metrics, record, log_unix_seconds(), error);
}

static bool write_details(Metrics *metrics, const char *kind, int64_t step, json_t *details, Error *error) {
    json_t *record = record_new(kind, step);
    json_object_update_missing(record, details);
    return record_write(metrics, record, log_unix_seconds(), error);
}

bool metrics_start(Metrics *metrics, int64_t step, json_t *details, Error *error) {
    return write_details(metrics, "start", step, details, error);
}

bool metrics_phase(Metrics *metrics, int64_t step, json_t *details, Error *error) {
    return write_details(metrics, "phase", step, details, error);
}

bool metrics_mixture(Metrics *metrics, int64_t step, json_t *phases, Error *error) {
    json_t *record = record_new("mixture", step);
    json_object_set_new(record, "phases", phases);
    return record_write(metrics, record, log_unix_seconds(), error);
}

/* Puts a number with one decimal. */
static json_t *tenths_or_null(double value) { return isfinite(value) ? json_real(round(value * 10) / 10) : json_null(); }
static json_t *rounded_or_null(double value) { return isfinite(value) ? json_integer((json_int_t)round(value)) : json_null(); }

/* Puts a list with a number of each GPU, unless it is unknown for all. */
static void put_gpus(json_t *record, const char *name, const SensorReading *reading, size_t offset, json_t *(*number)(double value)) {
    json_t *list = json_array();
    bool known = false;
    for (int i = 0; i < reading->gpu_count; i++) {
        double value = *(const double *)((const char *)&reading->gpus[i] + offset);
        known = known || isfinite(value);
        json_array_append_new(list, number(value));
    }
    if (known) json_object_set_new(record, name, list);
    else json_decref(list);
}

bool metrics_system(Metrics *metrics, int64_t step, const SensorReading *reading, Error *error) {
    json_t *record = record_new("system", step);
    double time = log_unix_seconds();
    json_object_set_new(record, "cpu_percent", tenths_or_null(reading->cpu_percent));
    json_object_set_new(record, "machine_memory_bytes", rounded_or_null(reading->memory_bytes));
    json_object_set_new(record, "disk_read_bytes_per_second", rounded_or_null(reading->read_bytes));
    json_object_set_new(record, "disk_written_bytes_per_second", rounded_or_null(reading->written_bytes));
    json_object_set_new(record, "network_received_bytes_per_second", rounded_or_null(reading->received_bytes));
    json_object_set_new(record, "network_sent_bytes_per_second", rounded_or_null(reading->sent_bytes));
    put_gpus(record, "gpu_percent", reading, offsetof(GpuReading, percent), tenths_or_null);
    put_gpus(record, "gpu_memory_bytes", reading, offsetof(GpuReading, memory_bytes), rounded_or_null);
    put_gpus(record, "gpu_watts", reading, offsetof(GpuReading, watts), tenths_or_null);
    put_gpus(record, "gpu_celsius", reading, offsetof(GpuReading, celsius), tenths_or_null);
    if (isfinite(reading->joules)) json_object_set_new(record, "joules", tenths_or_null(reading->joules));
    return record_write(metrics, record, time, error);
}

bool metrics_event(Metrics *metrics, int64_t step, const char *event, const char *message, Error *error) {
    json_t *record = record_new("event", step), *text = json_string(message);
    json_object_set_new(record, "event", json_string(event));
    json_object_set_new(record, "message", text ? text : json_string(""));
    return record_write(metrics, record, log_unix_seconds(), error);
}

bool metrics_end(Metrics *metrics, int64_t step, const char *state, int code, const char *message, Error *error) {
    json_t *record = record_new("end", step), *text = json_string(message);
    json_object_set_new(record, "state", json_string(state));
    put_integer(record, "code", code);
    json_object_set_new(record, "message", text ? text : json_string("")); /* a message that is not UTF-8 is in log.txt */
    return record_write(metrics, record, log_unix_seconds(), error);
}
