/* Tests of the order of samples: exact shares, every token once per epoch, and bits that do not change. */
#include <math.h>

#include "support/files.h"

#include "data/mixture.h"
#include "support/mentions.h"

enum { MOST = 4 };

/* Sources, phases and weights of a test; the last phase may have 0 samples, which is without end. */
typedef struct Case {
    int sources, phases;
    int64_t inputs[MOST];
    OrderPhase phase[MOST];
    double weights[MOST][MOST];
} Case;

static Order *create(const Case *c, uint64_t seed) {
    static const char *const names[] = {"web", "code", "math", "books"};
    OrderPhase phases[MOST];
    Error error = {0};
    for (int i = 0; i < c->phases; i++) {
        phases[i] = c->phase[i];
        phases[i].name = "phase";
        phases[i].weights = c->weights[i];
    }
    OrderOptions options = {.seed = seed,
        .shuffle = true,
        .source_count = c->sources,
        .phase_count = c->phases,
        .inputs = c->inputs,
        .names = names,
        .phases = phases};
    Order *order = order_create(&options, &error);
    if (!order) fail_msg("%s", error.message);
    return order;
}

/* Written down when the order was introduced, before there were mixtures: a run must go on as it began. */
static void one_source_has_the_bits_of_the_first_version(void **state) {
    (void)state;
    static const int64_t starts[3][10] = {{85, 201, 718, 705, 209, 947, 305, 843, 343, 762},
        {261, 987, 476, 716, 508, 401, 570, 961, 799, 897}, {581, 701, 610, 296, 35, 1, 848, 794, 404, 402}};
    static const int64_t large[] = {526263093, 422460493, 678892172, 850219386, 602064742, 349642486};
    Error error = {0};
    Order *order = order_of_one(42, true, "web", 1000 * 16, 16, &error);
    assert_non_null(order);
    for (int epoch = 0; epoch < 3; epoch++)
        for (int i = 0; i < 10; i++) {
            int64_t n = epoch * 1000 + i * 111;
            Draw draw = order_draw(order, n);
            assert_int_equal(draw.start, starts[epoch][i] * 16);
            assert_int_equal(draw.count, 16);
            assert_int_equal(draw.epoch, n / 1000);
        }
    order_free(order);
    order = order_of_one(7, true, "web", 1000000007, 1, &error);
    for (int i = 0; i < 6; i++) assert_int_equal(order_draw(order, 1000000007l * i).start, large[i]);
    order_free(order);
}

static void the_order_depends_on_the_seed(void **state) {
    (void)state;
    Error error = {0};
    Order *one = order_of_one(1, true, "web", 100, 1, &error), *other = order_of_one(2, true, "web", 100, 1, &error);
    int differences = 0;
    for (int64_t n = 0; n < 100; n++) {
        assert_int_equal(order_draw(one, n).start, order_draw(one, n).start);
        differences += order_draw(one, n).start != order_draw(other, n).start;
    }
    assert_true(differences > 80); /* two random orders of 100 agree at about one place */
    order_free(one);
    order_free(other);
}

static void a_tail_comes_last_and_leaves_the_first_epoch_as_it_was(void **state) {
    (void)state;
    Error error = {0};
    Order *whole = order_of_one(3, true, "web", 100 * 8, 8, &error), *tail = order_of_one(3, true, "web", 100 * 8 + 5, 8, &error);
    for (int64_t n = 0; n < 100; n++) assert_int_equal(order_draw(whole, n).start, order_draw(tail, n).start);
    Draw draw = order_draw(tail, 100);
    assert_int_equal(draw.start, 800);
    assert_int_equal(draw.count, 5);
    assert_int_equal(draw.epoch, 0);
    for (int64_t n = 0; n < 100; n++) assert_int_equal(order_draw(whole, 100 + n).start, order_draw(tail, 101 + n).start);
    order_free(whole);
    order_free(tail);
}

static void without_a_shuffle_a_source_is_read_from_its_start(void **state) {
    (void)state;
    Error error = {0};
    Order *order = order_of_one(1, false, "web", 10, 4, &error);
    for (int64_t n = 0; n < 9; n++) {
        Draw draw = order_draw(order, n);
        assert_int_equal(draw.start, n % 3 * 4);
        assert_int_equal(draw.count, n % 3 == 2 ? 2 : 4);
        assert_int_equal(draw.epoch, n / 3);
    }
    order_free(order);
}

static const Case zaya = {.sources = 4,
    .phases = 1,
    .inputs = {1ll << 40, 1ll << 36, 1ll << 30, 1000003},
    .phase = {{.length = 4096}},
    .weights = {{0.861, 0.057, 0.030, 0.052}}};

static void every_block_has_exact_counts(void **state) {
    (void)state;
    Order *order = create(&zaya, 5);
    static const int64_t counts[] = {56426, 3736, 1966, 3408}; /* 56,426.50, 3,735.55, 1,966.08 and 3,407.87 */
    for (int64_t block = 0; block < 3; block++) {
        int64_t drawn[MOST] = {0};
        for (int64_t i = 0; i < ORDER_BLOCK; i++) drawn[order_draw(order, (block * 1000003) * ORDER_BLOCK + i).source]++;
        for (int i = 0; i < MOST; i++) assert_int_equal(drawn[i], counts[i]);
    }
    order_free(order);
}

static void a_million_sequences_realise_the_mixture_within_a_thousandth(void **state) {
    (void)state;
    enum { SEQUENCES = 1000000 };
    Order *order = create(&zaya, 6);
    int64_t drawn[MOST] = {0};
    for (int64_t n = 0; n < SEQUENCES; n++) drawn[order_draw(order, n).source]++;
    for (int i = 0; i < MOST; i++) {
        assert_true(fabs((double)drawn[i] / SEQUENCES - zaya.weights[0][i]) < 0.001);
        assert_int_equal(order_samples(order, i, SEQUENCES), drawn[i]);
    }
    order_free(order);
}

/* Sources take turns evenly, so that also a thousand samples have about the shares: within 5 deviations of a draw. */
static void shares_hold_inside_a_block(void **state) {
    (void)state;
    Order *order = create(&zaya, 7);
    for (int64_t window = 0; window < 65; window++) {
        int64_t drawn = 0;
        for (int64_t i = 0; i < 1000; i++) drawn += order_draw(order, window * 1000 + i).source == 0;
        assert_in_range(drawn, 861 - 55, 861 + 55);
    }
    order_free(order);
}

static void a_phase_that_ends_has_exact_counts_at_its_end(void **state) {
    (void)state;
    Case c = zaya;
    c.phases = 2;
    c.phase[0].samples = ORDER_BLOCK + 1000;
    c.phase[1] = (OrderPhase){.samples = 10, .length = 4096};
    c.weights[1][1] = 1;
    Order *order = create(&c, 8);
    assert_int_equal(order_samples(order, 0, ORDER_BLOCK + 1000) - order_samples(order, 0, ORDER_BLOCK), 861);
    assert_int_equal(order_samples(order, 1, ORDER_BLOCK + 1010), 3736 + 57 + 10);
    assert_int_equal(order_phase(order, ORDER_BLOCK + 999), 0);
    assert_int_equal(order_phase(order, ORDER_BLOCK + 1000), 1);
    assert_int_equal(order_phase_start(order, 1), ORDER_BLOCK + 1000);
    assert_int_equal(order_phase_start(order, 2), ORDER_BLOCK + 1010);
    for (int64_t n = ORDER_BLOCK + 1000; n < ORDER_BLOCK + 1010; n++) assert_int_equal(order_draw(order, n).source, 1);
    order_free(order);
}

/* Reads all samples of a run whose phases end: each source was read some whole times, and part of it once more. */
static void assert_each_once_per_epoch(const Case *c, uint64_t seed) {
    Order *order = create(c, seed);
    int64_t end = order_phase_start(order, c->phases), padded = 0, most_padded = 0;
    int *times[MOST];
    for (int i = 0; i < c->sources; i++) times[i] = memory_allocate((size_t)c->inputs[i] * sizeof(int));
    int64_t inputs[MOST] = {0};
    for (int64_t n = 0; n < end; n++) {
        Draw draw = order_draw(order, n);
        int64_t length = order_phase_length(order, draw.phase);
        assert_true(draw.count >= 1 && draw.count <= length && draw.start >= 0 && draw.start + draw.count <= c->inputs[draw.source]);
        assert_int_equal(draw.phase, order_phase(order, n));
        padded += draw.count < length;
        inputs[draw.source] += draw.count;
        for (int64_t i = 0; i < draw.count; i++) assert_true(++times[draw.source][draw.start + i] >= 1);
    }
    for (int s = 0; s < c->sources; s++) {
        double epochs = order_epochs(order, s, end);
        assert_true(fabs(epochs - (double)inputs[s] / (double)c->inputs[s]) < 1e-12);
        for (int64_t i = 0; i < c->inputs[s]; i++) assert_in_range(times[s][i], (int)epochs, (int)ceil(epochs));
        free(times[s]);
        most_padded += (int)epochs + c->phases;
    }
    assert_true(padded <= most_padded); /* the last of an epoch and the first of a phase alone */
    order_free(order);
}

static void each_input_is_read_once_per_epoch(void **state) {
    (void)state;
    Case c = {.sources = 3,
        .phases = 1,
        .inputs = {1000 * 8, 333 * 8 + 3, 77},
        .phase = {{.samples = 4000, .length = 8}},
        .weights = {{5, 3, 0.1}}};
    for (uint64_t seed = 0; seed < 5; seed++) assert_each_once_per_epoch(&c, seed);
}

static void each_input_is_read_once_per_epoch_over_phases_of_other_lengths(void **state) {
    (void)state;
    static const int64_t lengths[][4] = {{8, 8, 32, 64}, {64, 8, 32, 4}, {1, 64, 2, 16}, {16, 16, 16, 16}};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        Case c = {.sources = 3, .phases = 4, .inputs = {5000 * 8 + 5, 64 * 40, 1203}};
        for (int p = 0; p < 4; p++) {
            c.phase[p] = (OrderPhase){.samples = 41003 / lengths[i][p] + p, .length = lengths[i][p]};
            for (int s = 0; s < 3; s++) c.weights[p][s] = (p + 2 * s) % 4;
        }
        for (uint64_t seed = 0; seed < 5; seed++) assert_each_once_per_epoch(&c, seed);
    }
}

/* The pieces of a unit come far apart when a phase has shorter sequences: neighbors would be of one document. */
static void pieces_of_a_unit_are_shuffled(void **state) {
    (void)state;
    Case c = {.sources = 1,
        .phases = 2,
        .inputs = {32 * 10000},
        .phase = {{.samples = 40000, .length = 4}, {.length = 32}},
        .weights = {{1}, {1}}};
    Order *order = create(&c, 9);
    int neighbors = 0;
    for (int64_t n = 1; n < 40000; n++) neighbors += order_draw(order, n).start / 32 == order_draw(order, n - 1).start / 32;
    assert_true(neighbors < 40); /* by chance 7 of 40,000 */
    order_free(order);
}

static void sources_of_equal_size_have_orders_of_their_own(void **state) {
    (void)state;
    Case c = {.sources = 2,
        .phases = 2,
        .inputs = {1000, 1000},
        .phase = {{.samples = 1000, .length = 1}, {.samples = 1000, .length = 1}},
        .weights = {{1, 0}, {0, 1}}};
    Order *order = create(&c, 10);
    int same = 0;
    for (int64_t n = 0; n < 1000; n++) same += order_draw(order, n).start == order_draw(order, 1000 + n).start;
    assert_true(same < 10); /* two random orders agree at about one place */
    order_free(order);
}

static void a_source_that_is_read_too_often_is_refused_with_what_fits(void **state) {
    (void)state;
    Case c = {.sources = 2, .phases = 1, .inputs = {100000, 1000}, .phase = {{.samples = 10000, .length = 10}}, .weights = {{95, 5}}};
    Order *order = create(&c, 11);
    Error error = {0};
    assert_true(order_check_epochs(order, (const double[]){1, 5}, 10000, &error));
    assert_false(order_check_epochs(order, (const double[]){1, 2}, 10000, &error));
    assert_int_equal(error.code, ERROR_USAGE);
    assert_mentions(error.message, "code (1001 5 epochs: 2 2: epochs: 5");
    const char *most = strstr(error.message, "at most ");
    int64_t tokens = strtoll(most + 8, NULL, 10);
    assert_true(order_epochs(order, 1, tokens / 10) <= 2 && order_epochs(order, 1, tokens / 10 + 1) > 2);
    assert_int_equal(order_tokens(order, tokens / 10), tokens);
    order_free(order);
}

static void lengths_that_do_not_divide_the_longest_are_refused(void **state) {
    (void)state;
    static const double weights[] = {1, 1}, other[] = {0, 1};
    OrderPhase phases[] = {{"pretrain", 10, 48, weights}, {"midtrain", 10, 64, weights}};
    OrderOptions options = {.shuffle = true,
        .source_count = 2,
        .phase_count = 2,
        .inputs = (const int64_t[]){1000, 1000},
        .names = (const char *const[]){"web", "code"},
        .phases = phases};
    Error error = {0};
    assert_null(order_create(&options, &error));
    assert_int_equal(error.code, ERROR_USAGE);
    assert_mentions(error.message, "pretrain web 48 64");
    phases[0].weights = (const double[]){1, 0};
    phases[1].weights = other; /* no source is read in both lengths */
    Order *order = order_create(&options, &error);
    assert_non_null(order);
    order_free(order);
    options.inputs = (const int64_t[]){0, 1000};
    assert_null(order_create(&options, &error));
    assert_int_equal(error.code, ERROR_DATA);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_source_has_the_bits_of_the_first_version),
        cmocka_unit_test(the_order_depends_on_the_seed),
        cmocka_unit_test(a_tail_comes_last_and_leaves_the_first_epoch_as_it_was),
        cmocka_unit_test(without_a_shuffle_a_source_is_read_from_its_start),
        cmocka_unit_test(every_block_has_exact_counts),
        cmocka_unit_test(a_million_sequences_realise_the_mixture_within_a_thousandth),
        cmocka_unit_test(shares_hold_inside_a_block),
        cmocka_unit_test(a_phase_that_ends_has_exact_counts_at_its_end),
        cmocka_unit_test(each_input_is_read_once_per_epoch),
        cmocka_unit_test(each_input_is_read_once_per_epoch_over_phases_of_other_lengths),
        cmocka_unit_test(pieces_of_a_unit_are_shuffled),
        cmocka_unit_test(sources_of_equal_size_have_orders_of_their_own),
        cmocka_unit_test(a_source_that_is_read_too_often_is_refused_with_what_fits),
        cmocka_unit_test(lengths_that_do_not_divide_the_longest_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
