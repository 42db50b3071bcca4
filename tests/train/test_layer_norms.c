/* End to end: norms of layers (metrics.layers) are those of the tensors in checkpoints, add up to the gradient norm, and do not depend on ranks. */
#include "run/metrics.h"
#include "support/ranks_run.h"

enum { LAYERS = 2 };
#define NORMS "metrics.layers=1 checkpoint.every=1 checkpoint.keep=100 steps=3 schedule.warmup=0 eval.every=0 "

/* The norms of one step: of each layer, then of all other parameters. */
static void read_norms(const char *run, int64_t step, const char *kind, double norms[LAYERS + 1]) {
    json_auto_t *list = records(run, "layers");
    const json_t *record = json_array_get(list, (size_t)step - 1), *layers = json_object_get(record, kind);
    char *outside = memory_format("outside_%s", kind);
    assert_int_equal(json_array_size(layers), LAYERS);
    for (size_t i = 0; i < LAYERS; i++) norms[i] = json_number_value(json_array_get(layers, i));
    norms[LAYERS] = number(record, outside);
    free(outside);
}

/* The same from the tensors of a checkpoint whose names begin with `prefix` ("": of the weights), without biases for load balancing, which the gradient norm leaves out. */
static void tensor_norms(const char *run, int64_t step, const char *prefix, double norms[LAYERS + 1]) {
    json_auto_t *shapes = checkpoint_shapes(run, step);
    const char *name;
    json_t *shape;
    for (int i = 0; i <= LAYERS; i++) norms[i] = 0;
    json_object_foreach(shapes, name, shape) {
        int64_t count;
        const char *layer = strstr(name, "layers.");
        bool wanted = *prefix ? !strncmp(name, prefix, strlen(prefix)) : !strchr(name, '/');
        if (!wanted || strstr(name, "balanc")) continue;
        float *values = checkpoint_tensor(run, step, name, shape, &count);
        for (int64_t i = 0; i < count; i++) norms[layer ? layer[strlen("layers.")] - '0' : LAYERS] += (double)values[i] * values[i];
        free(values);
    }
    for (int i = 0; i <= LAYERS; i++) norms[i] = sqrt(norms[i]);
}

static void assert_norms(const double *norms, const double *expected, double tolerance) {
    for (int i = 0; i <= LAYERS; i++)
        if (!(expected[i] > 0 && fabs(norms[i] / expected[i] - 1) <= tolerance))
            fail_msg("group %d: %.12g instead of %.12g", i, norms[i], expected[i]);
}

/* A record has the weights before its update, which the checkpoint of the step before has. The momentum of the first step is a tenth of its clipped
 * gradient. */
static void they_are_the_norms_of_tensors(void **state) {
    (void)state;
    double norms[LAYERS + 1], expected[LAYERS + 1], whole = 0;
    train_ranks(0, "run=run optimizer.beta1=0.9 optimizer.clip=1 " NORMS);
    read_norms("run", 3, "weight", norms);
    tensor_norms("run", 2, "", expected);
    assert_norms(norms, expected, 1e-6);
    read_norms("run", 1, "gradient", norms);
    tensor_norms("run", 1, "optimizer/momentum/", expected);
    for (int i = 0; i <= LAYERS; i++) whole += norms[i] * norms[i];
    double norm = recorded("run", "step", 0, "grad_norm"), clip = norm > 1 ? 1 / norm : 1;
    assert_true(fabs(sqrt(whole) / norm - 1) < 1e-9);
    for (int i = 0; i <= LAYERS; i++) expected[i] *= 10 / clip;
    assert_norms(norms, expected, 1e-5);
}

/* The tensors in each bin of a record's histogram; returns how many there are in all. -1: it has none. */
static int64_t read_bins(const char *run, int64_t step, const char *name, int64_t bins[NORM_BINS]) {
    json_auto_t *list = records(run, "layers");
    const json_t *histogram = json_object_get(json_array_get(list, (size_t)step - 1), name),
                 *tensors = json_object_get(histogram, "tensors"), *one;
    const json_int_t first = json_integer_value(json_object_get(histogram, "first")) - NORM_FIRST;
    int64_t all = 0;
    size_t i;
    if (!histogram) return -1;
    memset(bins, 0, NORM_BINS * sizeof *bins);
    assert_true(first >= 0 && (size_t)first + json_array_size(tensors) <= NORM_BINS);
    json_array_foreach((json_t *)tensors, i, one) all += bins[(size_t)first + i] = json_integer_value(one);
    return all;
}

static void histograms_count_the_norms_of_tensors(void **state) {
    (void)state;
    train_ranks(0, "run=run " NORMS);
    json_auto_t *shapes = checkpoint_shapes("run", 2);
    NormHistogram expected = {0};
    int64_t bins[NORM_BINS], all = read_bins("run", 3, "weight_histogram", bins),
                             gradients = read_bins("run", 3, "gradient_histogram", bins);
    assert_true(gradients > 0);
    assert_int_equal(read_bins("run", 3, "weight_histogram", bins), all);
    const char *name;
    json_t *shape;
    json_object_foreach(shapes, name, shape) {
        int64_t count;
        double squares = 0;
        if (strchr(name, '/') || strstr(name, "balanc")) continue;
        float *values = checkpoint_tensor("run", 2, name, shape, &count);
        for (int64_t i = 0; i < count; i++) squares += (double)values[i] * values[i];
        norm_histogram_add(&expected, sqrt(squares));
        free(values);
    }
    for (int i = 0; i < NORM_BINS; i++) assert_int_equal(bins[i], expected.tensors[i]);
}

/* Both ends are open; 0 and what is not finite are not counted. */
static void bins_are_powers_of_two(void **state) {
    (void)state;
    NormHistogram histogram = {0};
    const double norms[] = {1, 1.99, 2, 0.5, 0, NAN, INFINITY, 1e-30, 1e30};
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) norm_histogram_add(&histogram, norms[i]);
    assert_int_equal(histogram.tensors[-NORM_FIRST], 2);
    assert_int_equal(histogram.tensors[1 - NORM_FIRST], 1);
    assert_int_equal(histogram.tensors[-1 - NORM_FIRST], 1);
    assert_int_equal(histogram.tensors[0], 1);
    assert_int_equal(histogram.tensors[NORM_BINS - 1], 1);
}

static void ranks_of_any_layout_record_the_same(void **state) {
    (void)state;
    static const struct {
        const char *layout, *model;
    } cases[] = {{"layout.zero=0", ""}, {"layout.zero=2", ""}, {"layout.zero=3", ""}, {"layout.tp=2", "model.kv_heads=2"},
        {"layout.pp=2", ""}, {"layout.ep=2", ""}, {"layout.zero=1", "optimizer.name=muon"}};
    if (!has_mpi()) skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(system("rm -rf one many"), 0);
        train_ranks(0, "run=one %s " NORMS, cases[i].model);
        train_ranks(2, "run=many %s %s " NORMS, cases[i].model, cases[i].layout);
        for (int64_t step = 1; step <= 3; step++) {
            double norms[LAYERS + 1], expected[LAYERS + 1];
            read_norms("one", step, "gradient", expected);
            read_norms("many", step, "gradient", norms);
            assert_norms(norms, expected, 1e-4);
            read_norms("one", step, "weight", expected);
            read_norms("many", step, "weight", norms);
            assert_norms(norms, expected, 1e-5);
            int64_t bins[NORM_BINS], of_one = read_bins("one", step, "gradient_histogram", bins);
            assert_int_equal(read_bins("many", step, "gradient_histogram", bins), strstr(cases[i].layout, "pp=") ? -1 : of_one);
        }
    }
}

/* They change no bit of training, and updates within the backward pass have no gradients to measure. */
static void they_change_nothing_and_need_whole_gradients(void **state) {
    (void)state;
    train_ranks(0, "run=with metrics.layers=2 steps=4");
    train_ranks(0, "run=without steps=4");
    assert_same_steps("with", "without");
    assert_int_equal(count_records("with", "layers"), 2);
    assert_int_equal(count_records("without", "layers"), 0);
    smelt_says(ERROR_USAGE, "optimizer.in_backward=true metrics.layers=1 metrics.layers=0",
        "train " TINY " batch.tokens=128 optimizer.clip=0 optimizer.in_backward=true metrics.layers=1 run=r");
}

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(they_are_the_norms_of_tensors),
        TRAIN_TEST(histograms_count_the_norms_of_tensors),
        cmocka_unit_test(bins_are_powers_of_two),
        TRAIN_TEST(ranks_of_any_layout_record_the_same),
        TRAIN_TEST(they_change_nothing_and_need_whole_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
