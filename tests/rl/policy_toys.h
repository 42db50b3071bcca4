/* Toys of reinforcement learning: words to reverse and sums, and the runs that learn them first from examples, then from rewards.
 * Everything is static inline, so a test program uses what it needs. */
#pragma once

#include "base/file.h"
#include "support/ranks_run.h"

/* Words of three to five letters. The pretrained model has seen them copied in 7 of 10 cases and reversed in 3, so it knows
 * both and reverses with this probability. */
static inline void write_words(const char *name, int count, uint64_t seed, bool completed) {
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    for (int i = 0; i < count; i++) {
        char word[8] = "", reversed[8] = "";
        RngBits bits = rng_bits(seed, 1, (uint64_t)i);
        int length = 3 + (int)(bits.word[0] % 3);
        for (int c = 0; c < length; c++) word[c] = reversed[length - 1 - c] = (char)('a' + (bits.word[1] >> 3 * c) % 8);
        bool copies = completed && bits.word[2] % 10 < 7;
        fprintf(file, "{\"prompt\": \"%s=\", \"%s\": \"%s\"}\n", word, completed ? "completion" : "answer", copies ? word : reversed);
    }
    assert_int_equal(fclose(file), 0);
}

/* Sums of two digits; the pretrained model has seen the right one in 3 of 10 cases. */
static inline void write_sums(const char *name, int count, uint64_t seed, bool completed) {
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    for (int i = 0; i < count; i++) {
        RngBits bits = rng_bits(seed, 2, (uint64_t)i);
        int a = (int)(bits.word[0] % 7), b = (int)(bits.word[1] % 7), wrong = completed && bits.word[2] % 10 < 7;
        fprintf(file, "{\"prompt\": \"%d+%d=\", \"%s\": \"%d\"}\n", a, b, completed ? "completion" : "answer",
            wrong ? (int)(bits.word[3] % 13) : a + b);
    }
    assert_int_equal(fclose(file), 0);
}

#define PRETRAIN                                                                                                                           \
    "train model.layers=2 model.width=64 model.heads=4 model.kv_heads=4 model.ffn=192 data.packing=best_fit data.length=64 "               \
    "batch.sequences=16 batch.tokens=1024 steps=800 optimizer.lr=3e-3 schedule.warmup=20 threads=2 precision=bf16 checkpoint.every=800 "     \
    "tensorboard=false eval.sample_tokens=0 "
#define POLICY                                                                                                                             \
    "train data.length=64 batch.sequences=16 rl.tokens=8 rl.prompts=16 rl.samples=8 precision=bf16 threads=2 schedule.warmup=0 "             \
    "optimizer.weight_decay=0 tensorboard=false "
#define WORDS_FILES "init=words data.train=prompts.jsonl data.valid=valid.jsonl rl.reward=exact "
#define SUMS_FILES "init=sums data.train=tasks.jsonl data.valid=checks.jsonl rl.reward=last_number "

static inline int setup_words(void **state) {
    if (enter_folder(state) != 0) return -1;
    write_words("words.jsonl", 10000, 1, true);
    write_words("prompts.jsonl", 1000, 2, false);
    write_words("valid.jsonl", 64, 3, false);
    smelt_good(PRETRAIN "run=words data.train=words.jsonl");
    return 0;
}

/* Trains run=one in one process, and runs of several ranks in the layouts that a policy has; `check` compares each run with it. */
static inline void compare_policy_layouts(const char *settings, void (*check)(const char *run)) {
    static const struct {
        int ranks;
        const char *layout;
    } layouts[] = {{2, "layout.zero=0"}, {3, "layout.zero=1"}, {2, "layout.zero=2"}, {2, "layout.tp=2"}, {4, "layout.tp=2 layout.zero=1"}};
    smelt_says(ERROR_NONE, "", "%sprecision=fp64 run=one rl.slots=3", settings);
    for (int i = 0; i < 5; i++) {
        char run[16];
        snprintf(run, sizeof run, "ranks-%d", i);
        smelt_says(ERROR_NONE, "", "launch -n %d -- %sprecision=fp64 batch.sequences=1 %s run=%s", layouts[i].ranks, settings,
            layouts[i].layout, run);
        compare_records_within(run, "one", "step", "grad_norm", 1e-8);
        compare_records_within(run, "one", "step", "reward", 0);
        check(run);
    }
}

static inline void setup_sums(void) {
    write_sums("sums.jsonl", 10000, 1, true);
    write_sums("tasks.jsonl", 1000, 2, false);
    write_sums("checks.jsonl", 64, 3, false);
    smelt_good(PRETRAIN "run=sums data.train=sums.jsonl");
}

/* On a CPU, tokens are drawn with the log-probabilities that training computes. */
static inline void assert_no_mismatch(const char *run) {
    json_auto_t *steps = records(run, "step");
    for (size_t i = 0; i < json_array_size(steps); i++) {
        assert_true(number(json_array_get(steps, i), "mismatch_kl") == 0);
        assert_true(number(json_array_get(steps, i), "mismatch_share") == 0);
    }
}

static inline double reward_of(const char *run, const char *kind, int at) { return recorded(run, kind, at, "reward"); }
