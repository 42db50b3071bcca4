/* What the tests of Hugging Face folders share: a model of random weights in memory, and a scratch folder for its
 * exports. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "formats/hf.h"
#include "random_run.h"

enum { FIXTURE_SETTINGS = 28 };

/* A model's settings, closed by NULL when they are fewer. */
typedef const char *const FixtureSettings[FIXTURE_SETTINGS];

static FixtureSettings llama = {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=40",
    "model.layers=2", "model.tied=false", "model.rope_factor=8", "model.rope_original_context=16"};

/* `out` is a folder in `folder` that exports go to; it is not made. */
typedef struct Fixture {
    Config config;
    OptionStrings strings;
    Model model;
    HfExport export;
    char folder[64];
    char *out;
} Fixture;

static inline void fixture_start(Fixture *f, const char *const *settings, Precision precision) {
    *f = (Fixture){.folder = "/tmp/smelt-test-hf-XXXXXX"};
    assert_non_null(mkdtemp(f->folder));
    f->out = memory_format("%s/out", f->folder);
    int count = 0;
    while (count < FIXTURE_SETTINGS && settings[count]) count++;
    Error error = {0};
    if (!random_run_configure(&f->config, &f->strings, settings, count, &error)) fail_msg("%s", error.message);
    f->model = model_describe(&f->config.model, NULL, precision);
    float *master = memory_allocate(f->model.graph->parameter_bytes);
    random_run_weights(f->model.graph, &f->config.model, master);
    f->export = (HfExport){.config = &f->config.model, .precision = precision, .master = master, .bytes = true};
}

static inline void fixture_stop(Fixture *f) {
    Error error = {0};
    assert_true(file_remove(f->folder, &error));
    free((void *)f->export.master);
    model_free(&f->model);
    options_free_strings(&f->strings);
    free(f->out);
}
