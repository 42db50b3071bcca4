/* Checkpoints of one layout read in another: a run is forked from layout to layout without a step between, so that each
 * reads what the one before wrote and writes it anew, and weights and optimizer state must keep their bits. */
#include "support/ranks_run.h"

#define MODEL                                                                                                                             \
    "model.heads=4 model.head_dim=8 model.kv_heads=2 batch.tokens=512 optimizer.name=muon eval.every=0 layout.bucket_mb=0.01 "

enum { STEP = 3 };

typedef struct Layout {
    int ranks; /* 0: one process */
    const char *settings;
} Layout;

/* Runs `smelt` with words, as ranks under mpirun where there are any. */
__attribute__((format(printf, 2, 3))) static void run_as(int ranks, const char *format, ...) {
    char *words = NULL;
    va_list values;
    va_start(values, format);
    assert_true(vasprintf(&words, format, values) >= 0);
    va_end(values);
    SCOPED_FREE char *start = ranks ? memory_format("mpirun -n %d --oversubscribe --allow-run-as-root ", ranks) : memory_format(" ");
    SCOPED_FREE char *text = memory_format("ASAN_OPTIONS=detect_leaks=0 OMP_WAIT_POLICY=passive %s%s %s", start, getenv("SMELT"), words);
    Process process = words_start("/usr/bin/env", text);
    ProcessResult result = process_finish(&process);
    expect_code(&result, 0, words);
    process_free(&result);
    free(words);
}

/* Every layout begins where the one before stopped: run-1 is forked from run-0, and so on. */
static void check_chain(const char *settings, const Layout *layouts, int count) {
    if (!has_mpi()) skip();
    run_as(layouts[0].ranks, "train %s %s " MODEL "%s stop_at=%d %s run=run-0", TINY, RANKS_SETTINGS, settings, STEP, layouts[0].settings);
    for (int i = 1; i < count; i++) {
        char run[16];
        snprintf(run, sizeof run, "run-%d", i);
        run_as(layouts[i].ranks, "train run-%d fork=%s from=%d stop_at=%d layout.tp=1 layout.pp=1 layout.ep=1 layout.cp=1 %s", i - 1, run,
            STEP, STEP, layouts[i].settings);
        assert_same_tensors(run, "run-0", STEP, "", 0);
    }
}
#define CHECK_CHAIN(settings, ...)                                                                                                        \
    do {                                                                                                                                  \
        static const Layout layouts[] = {__VA_ARGS__};                                                                                    \
        check_chain(settings, layouts, (int)(sizeof layouts / sizeof *layouts));                                                          \
    } while (0)

static void zaya_keeps_its_bits_from_layout_to_layout(void **state) {
    (void)state;
    CHECK_CHAIN("", {8, "layout.tp=2 layout.pp=2 layout.ep=2"}, {0, ""}, {3, "layout.zero=3"}, {2, "layout.tp=2"},
        {4, "layout.cp=2 layout.tp=2 layout.zero=2"}, {4, "layout.ep=4"}, {4, "layout.pp=2 layout.zero=1"});
}

/* The tables are shared out by vocabulary, the last stage has one of its own, and adamw's shards end inside of rows. */
static void llama_keeps_its_bits_from_layout_to_layout(void **state) {
    (void)state;
    CHECK_CHAIN("model.family=llama model.experts=0 model.tied=false optimizer.name=adamw", {4, "layout.tp=2 layout.zero=3"},
        {6, "layout.tp=2 layout.zero=1"}, {0, ""}, {4, "layout.pp=2 layout.tp=2"}, {2, "layout.zero=2"});
}

/* A tied table is on the first and the last stage, and is written once. */
static void a_tied_model_keeps_its_bits_from_layout_to_layout(void **state) {
    (void)state;
    CHECK_CHAIN("model.family=mpt model.experts=0 model.kv_heads=4 model.tied=true", {4, "layout.pp=2 layout.tp=2"}, {0, ""},
        {4, "layout.tp=4"}, {4, "layout.tp=2 layout.zero=1"});
}

/* Moments in 8 bits: shards of ranks begin inside of rows, at blocks of quantized values. */
static void coded_moments_keep_their_bits_from_layout_to_layout(void **state) {
    (void)state;
    CHECK_CHAIN("model.family=llama model.experts=0 model.width=128 model.head_dim=32 model.ffn=128 optimizer.name=adamw_8bit",
        {4, "layout.tp=2 layout.zero=3"}, {3, "layout.zero=1"}, {0, ""}, {4, "layout.pp=2 layout.tp=2"}, {2, "layout.zero=0"});
}

/* The whole weights of a run in layouts are what one process trains, to the rounding of sums. */
static void an_export_of_shared_out_weights_is_that_of_one_process(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    static const char *const runs[] = {"one", "two"};
    for (int i = 0; i < 2; i++) {
        run_as(2 * i, "train %s %s " MODEL "model.family=llama model.experts=0 stop_at=3 %s run=%s", TINY, RANKS_SETTINGS,
            i ? "layout.tp=2" : "", runs[i]);
        run_as(0, "convert %s %s-model", runs[i], runs[i]);
    }
    Safetensors one, two;
    Error error = {0};
    if (!safetensors_open(&one, "one-model/model.safetensors", &error) || !safetensors_open(&two, "two-model/model.safetensors", &error))
        fail_msg("%s", error.message);
    assert_true(one.count > 10 && one.count == two.count);
    for (size_t t = 0; t < one.count; t++) {
        const StoredTensor *a = &one.tensors[t], *b = safetensors_find(&two, a->name);
        int64_t count = 1;
        assert_non_null(b);
        assert_int_equal(a->type, STORED_F32);
        for (int i = 0; i < a->rank; i++) assert_int_equal(a->shape[i], b->shape[i]), count *= a->shape[i];
        for (int64_t i = 0; i < count; i++) {
            float x, y;
            memcpy(&x, (const char *)a->data + 4 * i, 4);
            memcpy(&y, (const char *)b->data + 4 * i, 4);
            /* Updates of Muon are about 1e-2 here; Newton-Schulz makes more of rounding where a gradient is nearly singular. */
            if (!(fabsf(x - y) <= 1e-4F)) fail_msg("element %lld of %s: %.9g instead of %.9g", (long long)i, a->name, y, x);
        }
    }
    safetensors_close(&one);
    safetensors_close(&two);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(zaya_keeps_its_bits_from_layout_to_layout),
        TRAIN_TEST(llama_keeps_its_bits_from_layout_to_layout),
        TRAIN_TEST(a_tied_model_keeps_its_bits_from_layout_to_layout),
        TRAIN_TEST(coded_moments_keep_their_bits_from_layout_to_layout),
        TRAIN_TEST(an_export_of_shared_out_weights_is_that_of_one_process),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
