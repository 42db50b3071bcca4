/* What the end-to-end tests of `smelt train` share: a folder in memory per test with a text to train on, tiny models
 * that take milliseconds per step on the CPU, and a look at what a run left behind. Everything is static inline, so
 * a test program uses what it needs. */
#pragma once

#include <jansson.h>
#include <math.h>

#include "base/rng.h"
#include "ckpt/ckpt.h"
#include "each_isa.h"
#include "files.h"
#include "process.h"
#include "mentions.h"

#define TINY                                                                                                                               \
    "data.train=text model.family=zaya model.width=32 model.layers=2 model.heads=2 model.kv_heads=1 model.ffn=32 model.experts=4 model.router_width=8 "      \
    "data.length=32 batch.sequences=4 batch.tokens=256 optimizer.lr=5e-3 schedule.warmup=4 steps=40 threads=2 tensorboard=false device=cpu"

/* -- The text ---------------------------------------------------------------------------------------------------- */

/* Sentences of random words: letters that depend on letters, so that there is something to learn. */
static inline void write_corpus(const char *path, int words) {
    static const char *const list[] = {"the", "checkpoint", "of", "a", "model", "holds", "every", "weight", "and", "no", "step", "is",
        "lost", "when", "machine", "stops", "because", "bytes", "are", "on", "disk", "before", "it", "says", "so"};
    enum { WORDS = sizeof list / sizeof *list, SENTENCE = 9 };
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = 0; i < words; i++)
        fprintf(file, "%s%s", list[rng_bits(3, 1, (uint64_t)i).word[0] % WORDS], i % SENTENCE == SENTENCE - 1 ? ".\n" : " ");
    assert_int_equal(fclose(file), 0);
}

static inline int train_setup(void **state) {
    if (enter_folder(state) != 0) return -1;
    write_corpus("text", 10000);
    return 0;
}

#define TRAIN_TEST(test) cmocka_unit_test_setup_teardown(test, train_setup, leave_folder)

/* -- Starting smelt ---------------------------------------------------------------------------------------------- */

enum { MOST_ARGUMENTS = 80 };

/* The program with "WORD WORD ...", cut at the blanks. */
static inline Process words_start(char *program, const char *words) {
    char *text = memory_copy_string(words), *arguments[MOST_ARGUMENTS] = {program}, *rest = text;
    int count = 1;
    for (char *word; (word = strtok_r(rest, " ", &rest));) {
        assert_true(count < MOST_ARGUMENTS - 1);
        arguments[count++] = word;
    }
    Process process = process_start(arguments);
    free(text);
    return process;
}

static inline bool computes(const char *words) {
    static const char *const commands[] = {"train ", "eval ", "generate "};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strncmp(words, commands[i], strlen(commands[i])) == 0) return true;
    return false;
}

/* Starts smelt with "COMMAND WORD ..." or "launch WORD ... -- COMMAND WORD ...", on the CPU unless the words name a device: tests give
 * the same on every machine. $SMELT is an absolute path by then (train_main). */
static inline Process smelt_start(const char *words) {
    const char *launched = strncmp(words, "launch ", 7) == 0 ? strstr(words, " -- ") : NULL;
    const char *command = launched ? launched + 4 : words;
    if (!computes(command) || strstr(words, "device=")) return words_start(getenv("SMELT"), words);
    const char *dashes = strstr(command, " -- "); /* words after the dashes are not settings */
    int settings = dashes ? (int)(dashes - words) : (int)strlen(words);
    char *on_cpu = memory_format("%.*s device=cpu%s", settings, words, words + settings);
    Process process = words_start(getenv("SMELT"), on_cpu);
    free(on_cpu);
    return process;
}

static inline ProcessResult smelt(const char *words) {
    Process process = smelt_start(words);
    return process_finish(&process);
}

/* Runs smelt until the file `mark` exists, and kills it. */
static inline void smelt_kill_at(const char *words, const char *mark) {
    Process process = smelt_start(words);
    WAIT_UNTIL(file_exists(mark), "no %s", mark);
    kill(process.id, SIGKILL);
    ProcessResult result = process_finish(&process);
    process_free(&result);
}

/* Runs smelt and demands the exit code 0. */
static inline void smelt_good(const char *words) {
    ProcessResult result = smelt(words);
    if (result.code || result.signal) fail_msg("%s: exit code %d, signal %d:\n%s", words, result.code, result.signal, result.errors);
    process_free(&result);
}

/* Runs smelt with these words and demands this exit code, and `fragment` on stdout or stderr. */
__attribute__((format(printf, 3, 4))) static inline void smelt_says(int code, const char *fragment, const char *format, ...) {
    char *words = NULL;
    va_list values;
    va_start(values, format);
    assert_true(vasprintf(&words, format, values) >= 0);
    va_end(values);
    ProcessResult result = smelt(words);
    if (result.code != code) fail_msg("%s: exit code %d instead of %d:\n%s", words, result.code, code, result.errors);
    if (!mentions(result.output, fragment) && !mentions(result.errors, fragment))
        fail_msg("%s: \"%s\" is not in:\n%s\nnor in:\n%s", words, fragment, result.output, result.errors);
    process_free(&result);
    free(words);
}

/* The tiny model with more settings, which win. */
static inline Process train_start(const char *settings) {
    char *words = memory_format("train %s %s", TINY, settings);
    Process process = smelt_start(words);
    free(words);
    return process;
}

/* Rank `rank` of two that meet over TCP at `port`, with the tiny model and more settings, which win. */
static inline Process rank_start(int rank, int port, const char *settings) {
    char *words = memory_format("RANK=%d LOCAL_RANK=%d WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d %s train %s %s", rank, rank, port,
        getenv("SMELT"), TINY, settings);
    Process process = words_start("/usr/bin/env", words);
    free(words);
    return process;
}

static inline void expect_code(const ProcessResult *result, int code, const char *settings) {
    if (result->code != code || result->signal)
        fail_msg("%s: exit code %d, signal %d instead of %d:\n%s", settings, result->code, result->signal, code, result->errors);
}

/* The caller frees the result. */
static inline ProcessResult train_result(int code, const char *format, va_list values) {
    char *settings = NULL;
    assert_true(vasprintf(&settings, format, values) >= 0);
    Process process = train_start(settings);
    ProcessResult result = process_finish(&process);
    expect_code(&result, code, settings);
    free(settings);
    return result;
}

/* Trains and demands the exit code 0. */
__attribute__((format(printf, 1, 2))) static inline void train_good(const char *format, ...) {
    va_list values;
    va_start(values, format);
    ProcessResult result = train_result(ERROR_NONE, format, values);
    va_end(values);
    process_free(&result);
}

/* Trains and demands this exit code, `fragment` on stdout or stderr, and (unless the code is 0) exactly one line that
 * is an error. */
__attribute__((format(printf, 3, 4))) static inline void train_says(int code, const char *fragment, const char *format, ...) {
    va_list values;
    va_start(values, format);
    ProcessResult result = train_result(code, format, values);
    va_end(values);
    if (!mentions(result.errors, fragment) && !mentions(result.output, fragment))
        fail_msg("\"%s\" is not in:\n%s\nnor in:\n%s", fragment, result.errors, result.output);
    assert_int_equal(process_lines(result.errors, "error: "), code != 0);
    process_free(&result);
}

/* A validation loss that a test can rely on: chance decides neither its course nor where it is lowest. An evaluation follows
 * every second step. With FALLING each of them up to step BEST is lower than the one before, by 0.4 of 5. With RISING,
 * which a run may go on with, weights of some hundredths move by up to 10 a step: losses are then above 100. */
#define TURNING "schedule.kind=constant schedule.warmup=0 optimizer.clip=0 optimizer.weight_decay=0 eval.every=2 "
#define FALLING TURNING "optimizer.lr=5e-3 "
#define RISING TURNING "optimizer.lr=10 "
enum { BEST = 8 };

/* Trains while the loss falls, one step past the lowest evaluation, so that no checkpoint is saved at BEST for another
 * reason. Go on with RISING. */
static inline void train_to_best(const char *settings) { train_good("%s " FALLING "stop_at=%d", settings, BEST + 1); }

/* -- What a run left behind ---------------------------------------------------------------------------------------- */

static inline char *checkpoint_file(const char *run, int64_t step, const char *name) {
    return memory_format("%s/checkpoints/step-%08lld/%s", run, (long long)step, name);
}

static inline char *shard_path(const char *run, int64_t step) { return checkpoint_file(run, step, "shard-00000-of-00001.safetensors"); }

static inline bool has_checkpoint(const char *run, int64_t step) {
    char *path = checkpoint_file(run, step, "manifest.json");
    bool there = access(path, F_OK) == 0;
    free(path);
    return there;
}

static inline bool same_bytes(const char *path, const char *other) {
    size_t length, other_length;
    unsigned char *bytes = read_bytes(path, &length), *other_bytes = read_bytes(other, &other_length);
    bool same = length == other_length && memcmp(bytes, other_bytes, length) == 0;
    free(bytes);
    free(other_bytes);
    return same;
}

/* All tensors of a checkpoint: weights and optimizer state. */
static inline bool same_checkpoint(const char *run, const char *other, int64_t step) {
    char *path = shard_path(run, step), *other_path = shard_path(other, step);
    bool same = same_bytes(path, other_path);
    free(path);
    free(other_path);
    return same;
}

static inline void flip_bit(const char *path) {
    size_t length;
    unsigned char *bytes = read_bytes(path, &length);
    bytes[length / 2] ^= 1;
    write_bytes(path, bytes, length);
    free(bytes);
}

static inline void damage_checkpoint(const char *run, int64_t step) {
    char *path = shard_path(run, step);
    flip_bit(path);
    free(path);
}

/* The records of RUN/metrics.jsonl of one kind; each line of the file must be JSON. The caller drops the reference. */
static inline json_t *records(const char *run, const char *kind) {
    char *path = memory_format("%s/metrics.jsonl", run), *line = NULL;
    size_t capacity = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    json_t *list = json_array();
    while (getline(&line, &capacity, file) > 0) {
        json_t *record = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        if (!record) fail_msg("%s: not JSON: %s", path, line);
        if (strcmp(json_string_value(json_object_get(record, "kind")), kind) == 0) json_array_append(list, record);
        json_decref(record);
    }
    free(line);
    fclose(file);
    free(path);
    return list;
}

static inline double number(const json_t *record, const char *name) {
    json_t *value = json_object_get(record, name);
    if (!json_is_number(value)) fail_msg("a record has no number %s", name);
    return json_number_value(value);
}

/* The value of a record, by kind and position (from the end when negative). */
static inline double recorded(const char *run, const char *kind, int index, const char *name) {
    json_t *list = records(run, kind);
    int count = (int)json_array_size(list), at = index < 0 ? count + index : index;
    if (at < 0 || at >= count) fail_msg("%s has %d records of kind %s, not number %d", run, count, kind, index);
    double value = number(json_array_get(list, (size_t)at), name);
    json_decref(list);
    return value;
}

static inline int count_records(const char *run, const char *kind) {
    json_t *list = records(run, kind);
    int count = (int)json_array_size(list);
    json_decref(list);
    return count;
}

/* What each step reported that does not depend on time, as text: the numbers to the last digit. Demands that the
 * steps are 1, 2, 3, ... without gap or repetition. The caller frees. */
static inline char *steps_text(const char *run) {
    static const char *const fields[] = {"step", "loss", "auxiliary", "grad_norm", "lr", "tokens", "tokens_seen"};
    json_t *list = records(run, "step"), *record;
    char *text = NULL;
    size_t length, index;
    FILE *stream = open_memstream(&text, &length);
    json_array_foreach(list, index, record) {
        assert_int_equal(json_integer_value(json_object_get(record, "step")), index + 1);
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) fprintf(stream, "%s %.17g ", fields[i], number(record, fields[i]));
        fputc('\n', stream);
    }
    fclose(stream);
    json_decref(list);
    return text;
}

static inline void assert_same_steps(const char *run, const char *other) {
    char *text = steps_text(run), *other_text = steps_text(other);
    assert_true(process_lines(text, "step") > 0);
    char *rest = text, *other_rest = other_text;
    while (rest || other_rest) {
        char *line = strsep(&rest, "\n"), *other_line = strsep(&other_rest, "\n");
        if (!line || !other_line || strcmp(line, other_line) != 0)
            fail_msg("%s: %s\n%s: %s", run, line ? line : "", other, other_line ? other_line : "");
    }
    free(text);
    free(other_text);
}

/* Values [magnitudes, length] of a tensor "amax_history/..." in a checkpoint, for the caller to free. */
static inline float *amax_history_of(const char *run, int64_t step, const char *name, int64_t magnitudes, int64_t length) {
    Error error = {0};
    float *values = memory_allocate((size_t)(magnitudes * length) * sizeof *values);
    Interval interval = {.name = name,
        .type = STORED_F32,
        .rank = 2,
        .shape = {magnitudes, length},
        .slice = {.count = magnitudes * length},
        .data = values};
    if (!checkpoint_load(run, step, &interval, 1, NULL, &error)) fail_msg("%s", error.message);
    return values;
}

/* The absolute path of a tokenizer of tests/golden/tokenizers; call it in main, before a test works elsewhere. */
static inline char *golden_tokenizer(const char *name) {
    char *path = memory_format("tests/golden/tokenizers/%s.json", name), *absolute = realpath(path, NULL);
    free(path);
    assert_non_null(absolute);
    return absolute;
}

/* Makes $SMELT absolute, since each test works in a folder of its own; call it first in main. */
static inline void train_main(void) {
    char *path = process_smelt();
    setenv("SMELT", path, 1);
    free(path);
}
