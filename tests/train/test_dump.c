/* dump=FOLDER and init=FOLDER: what a step opens of itself agrees with itself, and a run starts where the weights
 * that it was given are. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/memory.h"
#include "ckpt/ckpt.h"
#include "comm/comm.h"
#include "base/file.h"
#include "base/stop.h"
#include "data/shard_writer_internal.h"
#include "run/source.h"
#include "support/data_files.h"
#include "train/train.h"

enum { TOKENS = 400 };

typedef struct Fixture {
    char folder[64];
    char *shard, *run, *dump;
    Config config;
    OptionStrings strings;
} Fixture;

static void set(Fixture *f, const char *key, const char *value) {
    Error error = {0};
    char *assignment = memory_format("%s=%s", key, value);
    if (!options_set(&config_table, &f->config, &f->strings, assignment, &error)) fail_msg("%s", error.message);
    free(assignment);
}

/* A run of one step of several microbatches from the weights of a folder of tests/golden, on tokens below its vocabulary
 * of 64, with settings "KEY=VALUE ...". */
static void start(Fixture *f, const char *model, const char *more) {
    *f = (Fixture){.folder = "/tmp/smelt-test-dump-XXXXXX"};
    Error error = {0};
    int32_t tokens[TOKENS];
    assert_non_null(mkdtemp(f->folder));
    f->shard = memory_format("%s/tokens", f->folder);
    f->run = memory_format("%s/run", f->folder);
    f->dump = memory_format("%s/dump", f->folder);
    for (int i = 0; i < TOKENS; i++) tokens[i] = (i * i * 7 + i * 3) % 61;
    ShardWriter *writer = shard_writer_open(f->shard, 2, &error);
    assert_true(writer && shard_writer_document(writer, tokens, TOKENS, &error) && shard_writer_finish(writer, &error));
    assert_true(source_read_config(model, &f->config, &f->strings, &error));
    const char *const settings[][2] = {{"run", f->run}, {"init", model}, {"dump", f->dump}, {"steps", "1"}, {"data.train", f->shard},
        {"data.tokenizer", "none"}, {"data.valid_fraction", "0"}, {"data.length", "16"}, {"batch.sequences", "2"}, {"batch.tokens", "64"},
        {"tensorboard", "false"}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) set(f, settings[i][0], settings[i][1]);
    char *words = memory_copy_string(more);
    for (char *word = strtok(words, " "), *value; word; word = strtok(NULL, " ")) {
        assert_non_null(value = strchr(word, '='));
        *value = '\0';
        set(f, word, value + 1);
    }
    free(words);
    assert_true(config_check(&f->config, &error));
    StopRequest request = {0};
    Console *console = console_create(0);
    if (!train(&f->config, device_cpu(), comm_alone(), &(TrainHost){.said = &f->config, .stop = &request, .console = console}, &error))
        fail_msg("%s", error.message);
    console_close(console);
}

static void stop(Fixture *f) {
    Error error = {0};
    assert_true(file_remove(f->folder, &error));
    options_free_strings(&f->strings);
    free(f->dump);
    free(f->run);
    free(f->shard);
}

static Safetensors open_file(const char *folder, const char *name) {
    Safetensors file;
    Error error = {0};
    char *path = memory_format("%s/%s", folder, name);
    if (!safetensors_open(&file, path, &error)) fail_msg("%s", error.message);
    free(path);
    return file;
}

static double real(const StoredTensor *tensor, int64_t index) {
    float value;
    memcpy(&value, (const char *)tensor->data + index * sizeof value, sizeof value);
    return value;
}

static int32_t integer(const StoredTensor *tensor, int64_t index) {
    int32_t value;
    memcpy(&value, (const char *)tensor->data + index * sizeof value, sizeof value);
    return value;
}

/* The mean of -log softmax(logits)[target] over the rows of the dump that have a target. */
static double loss_of_logits(const Safetensors *file, int64_t rows, int *counted) {
    const StoredTensor *logits = safetensors_find(file, "logits"), *targets = safetensors_find(file, "targets");
    double sum = 0;
    *counted = 0;
    assert_int_equal(logits->shape[0], rows);
    assert_int_equal(logits->shape[1], 64);
    for (int64_t r = 0; r < rows; r++) {
        double total = 0;
        int32_t target = integer(targets, r);
        for (int64_t c = 0; c < 64; c++) total += exp(real(logits, r * 64 + c));
        if (target >= 0) sum += log(total) - real(logits, r * 64 + target), (*counted)++;
    }
    return sum / *counted;
}

/* The logits are those of the program that made the loss, whatever it computes in fp8. */
static void the_logits_have_the_loss(void **state) {
    (void)state;
    static const struct {
        const char *model, *settings;
        int64_t rows;
    } cases[] = {
        {"zaya", "", 64},
        {"zaya", "recompute=block", 64},
        {"zaya", "precision=bf16", 64},
        {"zaya", "precision=pure_bf16", 64},
        {"zaya", "fp8.recipe=tensor fp8.min_size=0", 64},
        {"zaya", "fp8.recipe=tensor fp8.min_size=0 fp8.head=true", 64},
        {"zaya", "fp8.recipe=row fp8.min_size=12 fp8.head=true precision=bf16", 64}, /* experts by their rows */
        {"llama", "fp8.recipe=tensor fp8.min_size=0 fp8.head=true", 64},
        {"llama", "fp8.recipe=tensor fp8.min_size=0 fp8.head=true fp8.scaling=delayed", 64},
        {"llama", "fp8.recipe=tensor fp8.min_size=0 fp8.head=true batch.sequences=1 data.length=12 batch.tokens=48", 48},
        {"mixtral", "fp8.recipe=tensor fp8.min_size=0 fp8.head=true batch.sequences=1 data.length=12 batch.tokens=48", 48},
        {"gpt2", "fp8.recipe=mxfp8 fp8.min_size=0 fp8.head=true", 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Fixture f;
        int counted;
        char *model = memory_format("tests/golden/%s", cases[i].model);
        start(&f, model, cases[i].settings);
        Safetensors file = open_file(f.dump, "step.safetensors");
        double own = loss_of_logits(&file, cases[i].rows, &counted), loss = real(safetensors_find(&file, "loss"), 0);
        assert_true(counted > 32);
        if (!(fabs(own - loss) < 1e-5)) /* fp32 sums over the rows */
            fail_msg("%s %s: the logits have a loss of %.7f, and it is %.7f", cases[i].model, cases[i].settings, own, loss);
        safetensors_close(&file);
        free(model);
        stop(&f);
    }
}

/* Each expert's share of all choices, less 1 / experts: they sum to 0 with the skip class's. */
static void gradients_of_balancing_biases_are_load_errors(void **state) {
    (void)state;
    Fixture f;
    start(&f, "tests/golden/mixtral", "");
    Safetensors gradients = open_file(f.dump, "gradients.safetensors");
    int found = 0;
    for (size_t t = 0; t < gradients.count; t++) {
        const StoredTensor *g = &gradients.tensors[t];
        double choices = 64.0 * (double)f.config.model.experts_per_token, sum = 0;
        if (!strstr(g->name, "balancing_biases")) continue;
        for (int64_t e = 0; e < g->shape[0]; e++) {
            double count = choices * (real(g, e) + 1.0 / (double)g->shape[0]);
            assert_float_equal(count, round(count), 1e-4);
            sum += real(g, e);
        }
        assert_float_equal(sum, 0, 1e-7);
        found++;
    }
    assert_true(found > 0);
    safetensors_close(&gradients);
    stop(&f);
}

/* GPT-2's folder holds matrices the other way round, and so does the dump. */
static void weights_and_gradients_have_the_names_and_shapes_of_the_folder(void **state) {
    (void)state;
    const char *const folders[] = {"tests/golden/zaya", "tests/golden/gpt2"};
    for (int i = 0; i < 2; i++) {
        Fixture f;
        start(&f, folders[i], "");
        Safetensors model = open_file(folders[i], "model.safetensors"), weights = open_file(f.dump, "weights.safetensors");
        Safetensors gradients = open_file(f.dump, "gradients.safetensors");
        assert_int_equal(weights.count, model.count);
        assert_int_equal(gradients.count, model.count);
        for (size_t t = 0; t < model.count; t++) {
            const StoredTensor *a = &model.tensors[t], *b = safetensors_find(&weights, a->name), *g = safetensors_find(&gradients, a->name);
            int64_t count = 1;
            double sum = 0;
            assert_true(b && g && a->rank == b->rank && a->rank == g->rank);
            assert_memory_equal(a->shape, b->shape, a->rank * sizeof *a->shape);
            assert_memory_equal(a->shape, g->shape, a->rank * sizeof *a->shape);
            for (int d = 0; d < a->rank; d++) count *= a->shape[d];
            assert_memory_equal(a->data, b->data, count * sizeof(float));
            for (int64_t j = 0; j < count; j++) sum += fabs(real(g, j));
            assert_true(isfinite(sum) && sum > 0);
        }
        safetensors_close(&gradients);
        safetensors_close(&weights);
        safetensors_close(&model);
        stop(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_logits_have_the_loss),
        cmocka_unit_test(gradients_of_balancing_biases_are_load_errors),
        cmocka_unit_test(weights_and_gradients_have_the_names_and_shapes_of_the_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
