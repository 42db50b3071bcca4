/* llm.c's GPT-2 files: the header and the order of the parameters, both versions there and back, and files that lie. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/memory.h"
#include "ckpt/ckpt.h"
#include "formats/llmc.h"
#include "run/source.h"
#include "session/weights.h"
#include "support/mentions.h"

/* The GPT-2 of tests/golden (vocabulary 64, 2 layers, width 32, 64 positions) as a file. */
typedef struct Fixture {
    char folder[64];
    char *path;
    Config config;
    OptionStrings strings;
    Model model;
    float *master;
} Fixture;

static void start(Fixture *f, Precision precision) {
    *f = (Fixture){.folder = "/tmp/smelt-test-llmc-XXXXXX"};
    Error error = {0};
    int64_t step;
    assert_non_null(mkdtemp(f->folder));
    f->path = memory_format("%s/model.bin", f->folder);
    assert_true(source_read_config("tests/golden/gpt2", &f->config, &f->strings, &error));
    f->model = model_build(&f->config.model, PRECISION_FP32, MODEL_SCORE, 1, 1, RECOMPUTE_NONE);
    f->master = memory_allocate(f->model.graph->parameter_bytes);
    assert_true(weights_load("tests/golden/gpt2", &f->config, f->model.graph, f->master, &step, &error));
    if (!llmc_write(f->path, &f->config.model, precision, f->master, false, &error)) fail_msg("%s", error.message);
}

static void stop(Fixture *f) {
    Error error = {0};
    assert_true(file_remove(f->folder, &error));
    model_free(&f->model);
    options_free_strings(&f->strings);
    free(f->master);
    free(f->path);
}

static void the_file_is_laid_out_as_llm_c_reads_it(void **state) {
    (void)state;
    Fixture f;
    Error error = {0};
    int64_t length;
    start(&f, PRECISION_FP32);
    char *content = file_read(f.path, 1 << 24, &length, &error);
    const int32_t expected[] = {20240326, 3, 64, 64, 2, 4, 32, 128};
    assert_memory_equal(content, expected, sizeof expected);
    assert_int_equal(length, 1024 + 4 * 32 * (128 + 64 + 2 * (12 * 32 + 13) + 2));
    /* the first layer's matrix of queries, keys and values: after tables, norms' gains and norms' biases of both
     * layers */
    int64_t at = 1024 + 4 * 32 * (128 + 64 + 2 + 2);
    for (int i = 0; i < f.model.graph->parameter_count; i++)
        if (!strcmp(f.model.graph->parameters[i].name, "transformer.h.0.attn.c_attn.weight"))
            assert_memory_equal(content + at, parameter_in(&f.model.graph->parameters[i], f.master), 4 * 3 * 32 * 32);
    free(content);
    stop(&f);
}

static void both_versions_come_back(void **state) {
    (void)state;
    for (Precision precision = PRECISION_BF16; precision <= PRECISION_FP32; precision++) {
        Fixture f;
        Config config;
        Error error = {0};
        int64_t step;
        start(&f, precision);
        assert_true(llmc_is_model(f.path));
        assert_true(source_read_config(f.path, &config, &f.strings, &error));
        assert_int_equal(config.precision, precision);
        assert_int_equal(config.model.vocabulary, 64);
        assert_int_equal(config.model.ffn, 128);
        float *master = memory_allocate(f.model.graph->parameter_bytes);
        assert_true(weights_load(f.path, &config, f.model.graph, master, &step, &error));
        for (int i = 0; i < f.model.graph->parameter_count; i++) {
            const Parameter *p = &f.model.graph->parameters[i];
            const float *given = parameter_in(p, f.master), *loaded = parameter_in(p, master);
            for (int64_t j = 0; j < p->count; j++) {
                float scale = given[j] < 0 ? -given[j] : given[j], off = loaded[j] - given[j];
                float allowed = precision == PRECISION_FP32 ? 0 : scale / 256; /* half a unit of the eighth bit */
                if (!(off <= allowed && -off <= allowed)) fail_msg("%s differs", p->name);
            }
        }
        free(master);
        stop(&f);
    }
}

static void headers_that_lie_are_refused(void **state) {
    (void)state;
    const struct {
        int index;
        int32_t value;
        const char *message;
    } cases[] = {
        {0, 7, "llm.c"},
        {1, 4, "version 4"},
        {2, -1, "positive"},
        {4, 0, "positive"},
        {4, INT32_MAX, "truncated"},
        {6, INT32_MAX, "truncated"},
        {7, 63, "truncated"},
        {5, 5, "model.width=32"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Fixture f;
        ModelConfig model;
        Precision precision;
        Error error = {0};
        int64_t length;
        start(&f, PRECISION_FP32);
        char *content = file_read(f.path, 1 << 24, &length, &error);
        memcpy(content + 4 * cases[i].index, &cases[i].value, 4);
        assert_true(file_write(f.path, content, length, &error));
        assert_false(llmc_read(f.path, &model, &precision, &error));
        assert_int_equal(error.code, ERROR_CHECKPOINT);
        if (!mentions(error.message, cases[i].message)) fail_msg("\"%s\" does not contain \"%s\"", error.message, cases[i].message);
        free(content);
        stop(&f);
    }
}

static void a_file_that_exists_and_other_models_are_refused(void **state) {
    (void)state;
    Fixture f;
    Error error = {0};
    start(&f, PRECISION_FP32);
    assert_false(llmc_write(f.path, &f.config.model, PRECISION_FP32, f.master, false, &error));
    assert_int_equal(error.code, ERROR_USAGE);
    assert_true(llmc_write(f.path, &f.config.model, PRECISION_FP32, f.master, true, &error));
    f.config.model.ffn = 100;
    assert_false(llmc_write(f.path, &f.config.model, PRECISION_FP32, f.master, true, &error));
    assert_int_equal(error.code, ERROR_USAGE);
    stop(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_file_is_laid_out_as_llm_c_reads_it),
        cmocka_unit_test(both_versions_come_back),
        cmocka_unit_test(headers_that_lie_are_refused),
        cmocka_unit_test(a_file_that_exists_and_other_models_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
