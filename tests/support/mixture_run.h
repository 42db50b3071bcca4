/* A run of three phases of different lengths over two sources, for end-to-end tests of mixtures. Everything is static
 * inline, so a test program uses what it needs. */
#pragma once

#include <sys/stat.h>

#include "base/scope.h"
#include "train_run.h"

/* 10 steps of 16 sequences, then of 82 sequences 4 steps of 4, 8 of 8 and one of 2, then 10 steps of 4. */
static const char *const mixture_text = "sources:\n"
                                        "  - {name: prose, path: prose, epochs: 100}\n"
                                        "  - {name: code, path: code, epochs: 1000000}\n"
                                        "phases:\n"
                                        "  - {name: short, tokens: 2560, length: 16, weights: {prose: 75, code: 25}}\n"
                                        "  - {name: middle, tokens: 2600, length: 32, rope_theta: 1M, weights: {prose: 1, code: 1}, "
                                        "batch: {ramp_tokens: 128, ramp_steps: 4}}\n"
                                        "  - {name: long, tokens: 2560, length: 64, rope_theta: 5M, weights: {code: 1}}\n";
enum { SHORT_END = 10, MIDDLE_END = 23, STEPS = 33 };
#define MIXED "data.train=mix.yaml data.length=16 batch.sequences=8 steps=33 data.valid=text eval.every=7 "

static inline int mixture_setup(void **state) {
    if (train_setup(state)) return -1;
    write_corpus("prose", 6000);
    FILE *file = fopen("code", "w");
    for (int i = 0; i < 3000; i++) fprintf(file, "x%d = f(%d);\n", i % 97, i * 31 % 101);
    fclose(file);
    write_text("mix.yaml", mixture_text);
    return 0;
}
#define PHASES_TEST(test) cmocka_unit_test_setup_teardown(test, mixture_setup, leave_folder)

/* `text` with `from` replaced by `to`; the caller frees. */
static inline char *replaced(const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    assert_non_null(at);
    return memory_format("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
}

/* The mixture with `from` replaced by `to`. */
static inline void change_mixture(const char *from, const char *to) {
    SCOPED_FREE char *text = replaced(mixture_text, from, to);
    write_text("mix.yaml", text);
}
