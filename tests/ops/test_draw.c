/* Draws of tokens, on the CPU by each instruction set and in fp64, and on the GPU of SMELT_TEST_DEVICE: thousands of
 * random rows against a plain definition in double that sorts; frequencies; broken rows; the same bits alone, in a
 * batch and with any number of threads.
 *
 * Thresholds and running sums are sums of rounded weights, so fp32 may draw the neighbor of the exact token. A token is
 * right if the definition draws it with bounds of top_p and min_p and a uniform that are off by at most `slack`: 4e-6,
 * since weights and sums in fp32 have relative errors below 1e-6; 1e-12 in fp64. */
#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "backend/cpu/cpu_device.h"
#include "base/element.h"
#include "base/memory.h"
#include "base/rng.h"
#include "ops/draw/draw.h"
#include "support/check.h"

enum { MOST_TOP = 5, VALUES = DRAW_VALUES + 2 * MOST_TOP };
static const double BELOW_ONE = 1 - 0x1p-24; /* the largest fp32 below 1 */

/* A graph of one draw. */
typedef struct Draws {
    int64_t rows, columns;
    Precision precision;
    TensorId logits, penalized, choice, limit, y;
    Program program;
} Draws;

static Draws open_draws(int64_t rows, int64_t columns, Precision precision) {
    Draws d = {.rows = rows, .columns = columns, .precision = check_device() ? PRECISION_BF16 : precision};
    Graph *graph = graph_create(d.precision, false);
    d.logits = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 2, (int64_t[]){rows, columns}, "logits");
    d.choice = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 2, (int64_t[]){rows, DRAW_CHOICE_VALUES}, "choice");
    d.limit = graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 1, (int64_t[]){1}, "limit");
    d.penalized = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 2, (int64_t[]){rows, columns}, "penalized");
    d.y = op_draw(graph, d.logits, d.penalized, d.choice, d.limit, MOST_TOP);
    graph->tensors[d.y].keep = true;
    d.program = check_program((Model){.graph = graph}, check_device() ? check_device() : device_cpu());
    return d;
}

static void put(const Draws *d, TensorId tensor, int64_t index, double value) {
    void *data = executor_tensor(d->program.executor, tensor);
    if (d->precision == PRECISION_FP64) ((double *)data)[index] = value;
    else ((float *)data)[index] = (float)value;
}
static double get(const Draws *d, TensorId tensor, int64_t index) {
    const void *data = executor_tensor(d->program.executor, tensor);
    return d->precision == PRECISION_FP64 ? ((const double *)data)[index] : (double)((const float *)data)[index];
}
static void put_limit(const Draws *d, int64_t limit) { *(int32_t *)executor_tensor(d->program.executor, d->limit) = (int32_t)limit; }
static void put_choice(const Draws *d, int64_t row, const double choice[DRAW_CHOICE_VALUES]) {
    for (int i = 0; i < DRAW_CHOICE_VALUES; i++) put(d, d->choice, row * DRAW_CHOICE_VALUES + i, choice[i]);
}

/* Runs the graph; y [rows, VALUES]. */
static void run_draws(const Draws *d, double *y) {
    char memory[d->rows * VALUES * (int64_t)sizeof(double)];
    executor_run(d->program.executor);
    executor_read(d->program.executor, d->y, memory);
    for (int64_t i = 0; i < d->rows * VALUES; i++)
        y[i] = d->precision == PRECISION_FP64 ? ((double *)memory)[i] : (double)((float *)memory)[i];
}

/* -- The definition ------------------------------------------------------------------------------------------------ */

typedef struct Row {
    int64_t columns, limit;
    double *logits, *from, *weights; /* from: what is drawn from */
    int64_t *order;                  /* tokens below the limit, the largest logit first */
    double choice[DRAW_CHOICE_VALUES];
} Row;

static const double *sorted_logits;
static int larger_first(const void *a, const void *b) {
    double x = sorted_logits[*(const int64_t *)a], y = sorted_logits[*(const int64_t *)b];
    int64_t i = *(const int64_t *)a, j = *(const int64_t *)b;
    return x == y ? (i > j) - (i < j) : (x < y) - (x > y);
}

static double log_probability(const Row *row, int64_t token) {
    double most = -INFINITY, sum = 0;
    bool broken = false;
    for (int64_t j = 0; j < row->columns; j++) {
        broken |= isnan(row->logits[j]) || row->logits[j] == INFINITY;
        most = fmax(most, row->logits[j]);
    }
    if (broken || most == -INFINITY) return NAN;
    for (int64_t j = 0; j < row->columns; j++) sum += exp(row->logits[j] - most);
    return row->logits[token] - most - log(sum);
}

/* Returns how many of row->order top_k keeps, and of these top_p. */
static int64_t count_kept(const Row *row, double top_p) {
    int64_t k = (int64_t)row->choice[DRAW_TOP_K], kept = row->limit, end = 0;
    double total = 0, sum = 0;
    if (k > 0 && k < row->limit)
        for (kept = k; kept < row->limit && row->from[row->order[kept]] == row->from[row->order[k - 1]];) kept++;
    if (row->choice[DRAW_TOP_P] == 1) return kept;
    for (int64_t i = 0; i < kept; i++) total += row->weights[row->order[i]];
    while (end < kept && (end == 0 || sum < top_p * total)) {
        double tied = row->from[row->order[end]];
        for (; end < kept && row->from[row->order[end]] == tied; end++) sum += row->weights[row->order[end]];
    }
    return end;
}

/* Returns whether the definition with these bounds draws the token for a uniform within `slack`. */
static bool draws(const Row *row, int64_t token, double top_p, double min_p, double slack) {
    int64_t count = count_kept(row, top_p);
    double total = 0, before = 0, place = row->choice[DRAW_UNIFORM];
    bool kept = false;
    for (int64_t i = 0; i < count; i++) {
        int64_t j = row->order[i];
        double weight = row->weights[j] >= fmin(min_p, 1) ? row->weights[j] : 0;
        total += weight;
        if (j < token) before += weight;
        kept |= j == token && weight > 0;
    }
    return kept && before <= (place + slack) * total && before + row->weights[token] > (place - slack) * total;
}

static bool token_is_right(const Row *row, int64_t token, double slack) {
    double temperature = row->choice[DRAW_TEMPERATURE];
    if (row->choice[DRAW_GIVEN] > 0) return (double)token == row->choice[DRAW_GIVEN] - 1;
    if (token < 0 || token >= row->limit) return false;
    for (int64_t j = 0; j < row->limit; j++) row->order[j] = j;
    sorted_logits = row->from;
    qsort(row->order, (size_t)row->limit, sizeof *row->order, larger_first);
    double most = row->from[row->order[0]];
    if (temperature == 0) {
        int64_t first = 0;
        while (row->from[first] != most) first++;
        return token == first;
    }
    for (int64_t j = 0; j < row->limit; j++) row->weights[j] = exp((row->from[j] - most) / temperature);
    for (int p = -1; p <= 1; p++)
        for (int m = -1; m <= 1; m++)
            if (draws(row, token, row->choice[DRAW_TOP_P] * (1 + p * slack), row->choice[DRAW_MIN_P] * (1 + m * slack), slack)) return true;
    return false;
}

static void check_log_probability(const Row *row, int64_t token, double got, double slack) {
    double expected = log_probability(row, token);
    bool right = isinf(expected) ? got == expected : fabs(got - expected) <= slack * (1 + fabs(expected));
    if (!right) fail_msg("log-probability %.9g, expected %.9g", got, expected);
}

/* The likeliest tokens are those of a sort by logit, then by token; the drawn and the likeliest token have the same bits there. */
static void check_top(const Row *row, const double *y, double slack) {
    const double *pairs = y + DRAW_VALUES;
    for (int64_t j = 0; j < row->limit; j++) row->order[j] = j;
    sorted_logits = row->logits;
    qsort(row->order, (size_t)row->limit, sizeof *row->order, larger_first);
    for (int64_t i = 0; i < MOST_TOP; i++) {
        bool listed = i < row->limit && (double)i < row->choice[DRAW_TOP];
        assert_int_equal((int64_t)pairs[2 * i], listed ? row->order[i] : -1);
        if (!listed) continue;
        check_log_probability(row, row->order[i], pairs[2 * i + 1], slack);
        if (row->order[i] == (int64_t)y[DRAW_TOKEN]) assert_true(pairs[2 * i + 1] == y[DRAW_LOG_PROBABILITY]);
        if (i == 0) assert_true(pairs[1] == y[DRAW_LIKELIEST_LOG_PROBABILITY]);
    }
}

static void check_rows(const Draws *d, const double *y) {
    double slack = d->precision == PRECISION_FP64 ? 1e-12 : 4e-6;
    Row row = {.columns = d->columns, .limit = *(int32_t *)executor_tensor(d->program.executor, d->limit)};
    row.logits = memory_allocate((size_t)d->columns * sizeof(double));
    row.from = memory_allocate((size_t)d->columns * sizeof(double));
    row.weights = memory_allocate((size_t)d->columns * sizeof(double));
    row.order = memory_allocate((size_t)d->columns * sizeof(int64_t));
    for (int64_t r = 0; r < d->rows; r++) {
        for (int i = 0; i < DRAW_CHOICE_VALUES; i++) row.choice[i] = get(d, d->choice, r * DRAW_CHOICE_VALUES + i);
        for (int64_t j = 0; j < d->columns; j++) {
            row.logits[j] = get(d, d->logits, r * d->columns + j);
            row.from[j] = row.choice[DRAW_PENALIZED] > 0 ? get(d, d->penalized, r * d->columns + j) : row.logits[j];
        }
        int64_t token = (int64_t)y[r * VALUES + DRAW_TOKEN];
        const double *c = row.choice;
        if (!token_is_right(&row, token, slack))
            fail_msg("row %lld of %lld logits, limit %lld, temperature %g, top_k %g, top_p %g, min_p %g, uniform %.9g: drew %lld",
                (long long)r, (long long)d->columns, (long long)row.limit, c[DRAW_TEMPERATURE], c[DRAW_TOP_K], c[DRAW_TOP_P], c[DRAW_MIN_P],
                c[DRAW_UNIFORM], (long long)token);
        check_log_probability(&row, token, y[r * VALUES + DRAW_LOG_PROBABILITY], slack);
        int64_t likeliest = 0;
        for (int64_t j = 1; j < row.limit; j++) likeliest = row.logits[j] > row.logits[likeliest] ? j : likeliest;
        assert_int_equal((int64_t)y[r * VALUES + DRAW_LIKELIEST], likeliest);
        check_log_probability(&row, likeliest, y[r * VALUES + DRAW_LIKELIEST_LOG_PROBABILITY], slack);
        check_top(&row, y + r * VALUES, slack);
    }
    free(row.logits);
    free(row.from);
    free(row.weights);
    free(row.order);
}

/* -- Random rows --------------------------------------------------------------------------------------------------- */

static uint64_t pick(uint64_t *index, uint64_t count) { return rng_bits(11, 0, (*index)++).word[0] % count; }
static double pick_of(uint64_t *index, int count, const double *values) { return values[pick(index, (uint64_t)count)]; }
#define PICK(index, ...) pick_of(index, sizeof((double[]){__VA_ARGS__}) / sizeof(double), (const double[]){__VA_ARGS__})

/* Smooth logits or few different ones, close or far apart, some of them -infinity. */
static void put_random_rows(const Draws *d, uint64_t seed) {
    uint64_t at = seed << 32;
    put_limit(d, pick(&at, 2) ? d->columns : 1 + (int64_t)pick(&at, (uint64_t)d->columns));
    for (int64_t r = 0; r < d->rows; r++) {
        double spread = PICK(&at, 0, 0.01, 1, 3, 20), shift = PICK(&at, 0, -50, 30), unit = PICK(&at, 0, 0, 0.5);
        uint64_t absent = (uint64_t)PICK(&at, 1, 1, 2); /* one logit in `absent` stays; token 0 always */
        for (int64_t j = 0; j < d->columns; j++) {
            double x = shift + spread * rng_normal(13, seed * 1000 + (uint64_t)r, (uint64_t)j);
            put(d, d->logits, r * d->columns + j, j > 0 && pick(&at, absent) ? -INFINITY : unit > 0 ? unit * round(x / unit) : x);
            put(d, d->penalized, r * d->columns + j, shift + spread * rng_normal(14, seed * 1000 + (uint64_t)r, (uint64_t)j));
        }
        double k = PICK(&at, 0, 0, 1, 2, 5, 50, (double)(d->columns / 2), (double)d->columns, (double)d->columns + 7);
        double choice[] = {[DRAW_TEMPERATURE] = PICK(&at, 0, 1e-39, 0.01, 0.7, 1, 1, 1.5, 100),
            [DRAW_TOP_K] = k,
            [DRAW_TOP_P] = PICK(&at, 1, 1, 1, 0.95, 0.5, 0.9999, 1e-6, 0),
            [DRAW_MIN_P] = PICK(&at, 0, 0, 0.05, 0.5, 1),
            [DRAW_UNIFORM] = PICK(&at, 0, BELOW_ONE, rng_uniform(12, 0, at), rng_uniform(12, 1, at), rng_uniform(12, 2, at)),
            [DRAW_GIVEN] = PICK(&at, 0, 0, 0, 1 + (double)pick(&at, (uint64_t)d->columns)),
            [DRAW_PENALIZED] = PICK(&at, 0, 0, 1),
            [DRAW_TOP] = PICK(&at, 0, 0, 1, 2, MOST_TOP)};
        put_choice(d, r, choice);
    }
}

static void check_random_rows(Precision precision, int64_t rows, int64_t columns, int repeats) {
    Draws d = open_draws(rows, columns, precision);
    double y[rows * VALUES];
    for (int i = 0; i < repeats; i++) {
        put_random_rows(&d, (uint64_t)(columns * 100 + i));
        run_draws(&d, y);
        check_rows(&d, y);
    }
    program_free(&d.program);
}

static void check_random_shapes(Precision precision) {
    static const int64_t columns[] = {1, 2, 3, 7, 64, 65, 300, 511, 512, 513, 1025, 3001};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        check_random_rows(precision, check_device() ? 12 : 40, columns[i], check_device() ? 2 : 6);
    check_random_rows(precision, 4, 49157, 2);
}

static void random_rows_agree_with_sorting(void **state) {
    (void)state;
    if (check_device()) check_random_shapes(PRECISION_BF16);
    else {
        FOR_EACH_ISA (isa) check_random_shapes(PRECISION_FP32);
        check_random_shapes(PRECISION_FP64);
    }
}

/* -- Single properties --------------------------------------------------------------------------------------------- */

/* Pearson's chi-square of tokens' frequencies against their probabilities, which must be below the value that chance
 * exceeds once in 10,000: about n + 5.3 sqrt(n) + 9 for the n = 1 .. 20 degrees of freedom here. */
static void check_frequencies(const double choice[DRAW_CHOICE_VALUES], const double *probability, int64_t columns, const double *logits) {
    enum { ROWS = 500, MOST = 32 };
    const int runs = check_device() ? 1 : 40;
    Draws d = open_draws(ROWS, columns, PRECISION_FP32);
    double y[ROWS * VALUES], chi_square = 0;
    int64_t counts[MOST] = {0}, freedom = -1;
    put_limit(&d, columns);
    for (int run = 0; run < runs; run++) {
        for (int64_t r = 0; r < ROWS; r++) {
            put_choice(&d, r, choice);
            put(&d, d.choice, r * DRAW_CHOICE_VALUES + DRAW_UNIFORM, rng_uniform(17, (uint64_t)run, (uint64_t)r));
            for (int64_t j = 0; j < columns; j++) put(&d, d.logits, r * columns + j, logits[j]);
        }
        run_draws(&d, y);
        for (int64_t r = 0; r < ROWS; r++) counts[(int64_t)y[r * VALUES + DRAW_TOKEN]]++;
    }
    for (int64_t j = 0; j < columns; j++) {
        double expected = probability[j] * ROWS * runs, off = (double)counts[j] - expected;
        if (expected == 0) assert_int_equal(counts[j], 0);
        else {
            chi_square += off * off / expected;
            freedom++;
        }
    }
    double bound = (double)freedom + 5.3 * sqrt((double)freedom) + 9;
    if (chi_square > bound) fail_msg("chi-square %.3g of %lld degrees of freedom (bound %.3g)", chi_square, (long long)freedom, bound);
    program_free(&d.program);
}

/* Weights are 1 to 21 in another order than the tokens; comments show which of them each choice keeps. */
static void tokens_have_their_frequencies(void **state) {
    (void)state;
    enum { COLUMNS = 21 };
    double logits[COLUMNS], all[COLUMNS], squares[COLUMNS], five[COLUMNS] = {0}, half[COLUMNS] = {0};
    double sum_squares = 0;
    for (int j = 0; j < COLUMNS; j++) {
        int weight = 1 + j * 8 % COLUMNS; /* 1 .. 21 in another order */
        logits[j] = log(weight);
        all[j] = weight / 231.0; /* 21 * 22 / 2 */
        sum_squares += squares[j] = weight * weight;
        if (weight > 16) five[j] = weight / 95.0;  /* 17 + ... + 21 */
        if (weight > 14) half[j] = weight / 126.0; /* 15 + ... + 21 >= 231 / 2 > 16 + ... + 21 */
    }
    for (int j = 0; j < COLUMNS; j++) squares[j] /= sum_squares;
    check_frequencies((double[DRAW_CHOICE_VALUES]){1, 0, 1, 0, 0}, all, COLUMNS, logits);
    check_frequencies((double[DRAW_CHOICE_VALUES]){0.5, 0, 1, 0, 0}, squares, COLUMNS, logits);
    check_frequencies((double[DRAW_CHOICE_VALUES]){1, 5, 1, 0, 0}, five, COLUMNS, logits);
    check_frequencies((double[DRAW_CHOICE_VALUES]){1, 0, 0.5, 0, 0}, half, COLUMNS, logits);
    check_frequencies((double[DRAW_CHOICE_VALUES]){1, 0, 1, 0.8, 0}, five, COLUMNS, logits); /* 17 / 21 = 0.81 */
    check_frequencies(
        (double[DRAW_CHOICE_VALUES]){1, 7, 0.7, 0, 0}, five, COLUMNS, logits); /* 17 + ... + 21 >= 0.7 * 126 > 18 + ... + 21 */
}

/* A batch of 33 rows and each of its rows alone, by one thread and by two. */
static void check_bits(void) {
    enum { ROWS = 33, COLUMNS = 1027 };
    Draws batch = open_draws(ROWS, COLUMNS, PRECISION_FP32), alone = open_draws(1, COLUMNS, PRECISION_FP32);
    double y[ROWS * VALUES], again[ROWS * VALUES], one[VALUES];
    int threads = omp_get_max_threads();
    put_random_rows(&batch, 99);
    put_limit(&batch, COLUMNS - 5);
    put_limit(&alone, COLUMNS - 5);
    omp_set_num_threads(1);
    run_draws(&batch, y);
    omp_set_num_threads(2);
    run_draws(&batch, again);
    omp_set_num_threads(threads);
    assert_memory_equal(y, again, sizeof y);
    for (int64_t r = 0; r < ROWS; r++) {
        for (int64_t j = 0; j < COLUMNS; j++) {
            put(&alone, alone.logits, j, get(&batch, batch.logits, r * COLUMNS + j));
            put(&alone, alone.penalized, j, get(&batch, batch.penalized, r * COLUMNS + j));
        }
        for (int i = 0; i < DRAW_CHOICE_VALUES; i++) put(&alone, alone.choice, i, get(&batch, batch.choice, r * DRAW_CHOICE_VALUES + i));
        run_draws(&alone, one);
        assert_memory_equal(one, y + r * VALUES, sizeof one);
    }
    program_free(&batch.program);
    program_free(&alone.program);
}

static void a_row_has_the_same_bits_in_every_batch(void **state) {
    (void)state;
    if (check_device()) check_bits();
    else
        FOR_EACH_ISA (isa) check_bits();
}

static void broken_rows_have_no_log_probability(void **state) {
    (void)state;
    enum { ROWS = 12, COLUMNS = 700, LIMIT = 600 };
    static const double choices[][DRAW_CHOICE_VALUES] = {{1, 0, 1, 0, 0.5}, {0, 0, 1, 0, 0}, {0.7, 5, 0.9, 0.1, 0.999}};
    Draws d = open_draws(ROWS, COLUMNS, PRECISION_FP32);
    double y[ROWS * VALUES];
    put_limit(&d, LIMIT);
    for (int r = 0; r < ROWS; r++) {
        put_choice(&d, r, choices[r % 3]);
        for (int j = 0; j < COLUMNS; j++)
            put(&d, d.logits, r * COLUMNS + j, r / 3 == 3 ? -INFINITY : rng_normal(5, (uint64_t)r, (uint64_t)j));
        if (r / 3 == 0) put(&d, d.logits, r * COLUMNS + 50, NAN);
        if (r / 3 == 1) put(&d, d.logits, r * COLUMNS + 50, INFINITY);
        if (r / 3 == 2) put(&d, d.logits, r * COLUMNS + LIMIT + 50, NAN);
    }
    run_draws(&d, y);
    for (int r = 0; r < ROWS; r++) {
        double token = y[r * VALUES + DRAW_TOKEN];
        assert_true(token >= 0 && token < LIMIT && token == floor(token));
        assert_true(isnan(y[r * VALUES + DRAW_LOG_PROBABILITY]));
    }
    program_free(&d.program);
}

/* Equal logits: the sums are integers, which fp32 adds exactly. */
static void the_largest_vocabulary_is_drawn_exactly(void **state) {
    (void)state;
    const int64_t columns = check_device() ? 1 << 18 : 1 << 24;
    Draws d = open_draws(1, columns, PRECISION_FP32);
    double y[VALUES];
    put_limit(&d, columns);
    put_choice(&d, 0, (double[DRAW_CHOICE_VALUES]){1, (double)columns - 1, 0.5, 1, 0.71875});
    for (int64_t j = 0; j < columns; j++) put(&d, d.logits, j, -3);
    run_draws(&d, y);
    assert_true(y[DRAW_TOKEN] == 0.71875 * (double)columns);
    assert_true(fabs(y[DRAW_LOG_PROBABILITY] + log((double)columns)) < 4e-6 * log((double)columns));
    put_choice(&d, 0, (double[DRAW_CHOICE_VALUES]){1, (double)columns - 1, 0.5, 1, BELOW_ONE});
    run_draws(&d, y);
    assert_true(y[DRAW_TOKEN] == (double)columns - 1);
    program_free(&d.program);
}

/* -- Penalties ----------------------------------------------------------------------------------------------------- */

/* A graph of one op_penalize. */
typedef struct Penalized {
    TensorId logits, tokens, slots, choice, state, y;
    Program program;
} Penalized;

static Penalized open_penalized(int64_t rows, int64_t columns, int64_t slots, Precision precision) {
    Penalized p = {0};
    Graph *graph = graph_create(precision, false);
    p.logits = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 2, (int64_t[]){rows, columns}, "logits");
    p.tokens = graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 1, &rows, "tokens");
    p.slots = graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 1, &rows, "slots");
    p.choice = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 2, (int64_t[]){rows, PENALTY_CHOICE_VALUES}, "penalties");
    p.state = graph_tensor(graph, ARENA_STATE, TYPE_WIDE, 2, (int64_t[]){slots * PENALTY_STATE_ROWS, columns}, "counts");
    p.y = op_penalize(graph, p.logits, p.tokens, p.slots, p.choice, p.state);
    graph->tensors[p.y].keep = true;
    p.program = check_program((Model){.graph = graph}, check_device() ? check_device() : device_cpu());
    return p;
}

/* Biases, then the penalty of tokens that the text has, then those of drawn tokens by count. */
static double penalized(double x, double bias, bool in_prompt, int drawn, const double *choice) {
    x += bias;
    if (in_prompt || drawn) x = x > 0 ? x / choice[PENALTY_REPETITION] : x * choice[PENALTY_REPETITION];
    return x - choice[PENALTY_FREQUENCY] * drawn - choice[PENALTY_PRESENCE] * (drawn > 0);
}

/* Three rows in other slots than their own, one of them without penalties, over several tokens. */
static void check_penalties(Precision precision, int64_t columns) {
    enum { ROWS = 3, SLOTS = 4, STEPS = 6, UNUSED = 1 };
    static const int32_t slots[ROWS] = {3, 0, 1};
    static const double choices[ROWS][PENALTY_CHOICE_VALUES] = {{1, 0, 1.3, 0, 0.5}, {0, 1, 2, 2, 2}, {1, 0, 0.8, -1.5, -0.25}};
    Penalized p = open_penalized(ROWS, columns, SLOTS, check_device() ? PRECISION_BF16 : precision);
    Executor *executor = p.program.executor;
    size_t bytes = precision_bytes(p.program.model.graph->precision, TYPE_WIDE);
    int64_t elements = SLOTS * PENALTY_STATE_ROWS * columns;
    char *state = memory_allocate((size_t)elements * bytes), *y = memory_allocate((size_t)(ROWS * columns) * bytes);
    int *drawn = memory_allocate((size_t)(ROWS * columns) * sizeof *drawn);
    uint64_t at = 71;
    for (int64_t i = 0; i < elements; i++) {
        bool counts = i / columns % PENALTY_STATE_ROWS == PENALTY_COUNT;
        element_set(bytes, state, i, counts ? (pick(&at, 3) ? 0 : 0.5) : pick(&at, 4) ? 0 : 0.25 * (double)pick(&at, 20) - 2);
    }
    device_upload(
        check_device() ? check_device() : device_cpu(), executor_device_tensor(executor, p.state), state, elements * (int64_t)bytes);
    for (int step = 0; step < STEPS; step++) {
        int32_t *tokens = executor_tensor(executor, p.tokens);
        for (int64_t r = 0; r < ROWS; r++) {
            float choice[PENALTY_CHOICE_VALUES];
            ((int32_t *)executor_tensor(executor, p.slots))[r] = slots[r];
            tokens[r] = (int32_t)pick(&at, step % 2 ? 2 : (uint64_t)columns) % (int32_t)columns;
            for (int i = 0; i < PENALTY_CHOICE_VALUES; i++) choice[i] = (float)choices[r][i];
            choice[PENALTY_COUNTED] = step > 0;
            if (step > 0 && r != UNUSED) drawn[r * columns + tokens[r]]++;
            executor_set_values(executor, p.choice, r * PENALTY_CHOICE_VALUES, choice, PENALTY_CHOICE_VALUES);
            for (int64_t j = 0; j < columns; j++) {
                float x = (float)rng_normal(19, (uint64_t)(step * 10 + r), (uint64_t)j);
                executor_set_values(executor, p.logits, r * columns + j, &x, 1);
            }
        }
        executor_run(executor);
        executor_read(executor, p.y, y);
        for (int64_t i = 0; i < ROWS * columns; i++) {
            int64_t r = i / columns, j = i % columns, first = slots[r] * PENALTY_STATE_ROWS * columns + j;
            double x = (double)(float)rng_normal(19, (uint64_t)(step * 10 + r), (uint64_t)j), choice[PENALTY_CHOICE_VALUES];
            if (r == UNUSED) continue;
            for (int k = 0; k < PENALTY_CHOICE_VALUES; k++) choice[k] = (double)(float)choices[r][k];
            double expected = penalized(x, element_get(bytes, state, first + PENALTY_BIAS * columns),
                element_get(bytes, state, first + PENALTY_COUNT * columns) > 0, drawn[i], choice);
            double got = element_get(bytes, y, i);
            if (fabs(got - expected) > (bytes == sizeof(double) ? 1e-14 : 1e-6) * (1 + fabs(expected)))
                fail_msg("step %d, row %d, token %d of %d: %.9g, expected %.9g", step, (int)r, (int)j, (int)columns, got, expected);
        }
    }
    free(state), free(y), free(drawn);
    program_free(&p.program);
}

static void penalties_follow_their_definition(void **state) {
    (void)state;
    static const int64_t columns[] = {1, 3, 64, 259, 2052};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        if (check_device()) check_penalties(PRECISION_BF16, columns[i]);
        else {
            FOR_EACH_ISA (isa) check_penalties(PRECISION_FP32, columns[i]);
            check_penalties(PRECISION_FP64, columns[i]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_rows_agree_with_sorting),
        cmocka_unit_test(tokens_have_their_frequencies),
        cmocka_unit_test(a_row_has_the_same_bits_in_every_batch),
        cmocka_unit_test(broken_rows_have_no_log_probability),
        cmocka_unit_test(the_largest_vocabulary_is_drawn_exactly),
        cmocka_unit_test(penalties_follow_their_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
