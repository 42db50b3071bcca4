/* The GEMM of the CPU: every instruction set this CPU runs against a loop in double precision, and against oneDNN
 * where it is installed; the same bits from every number of threads and every entry point.
 *
 * Tolerance: a sum of k products in precision u, in any order, is off by at most about k u sum|a b|; storing as bf16
 * adds half a unit in its last place. With inputs uniform in 1/16 to 1, of either sign, a wrong sign or a lost
 * product is off by about 0.5, thousands of times that bound. bf16 operands within such a factor are multiplied
 * exactly (gemm.h); tests of their own give them wider ranges. */

#include <dlfcn.h>
#include <float.h>
#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <oneapi/dnnl/dnnl.h>

#include "device/gemm.h"
#include "support/check.h"

enum { PADDING = 5 };

static uint64_t random_state = 1;

static uint32_t random_bits(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}
static int64_t random_below(int64_t n) { return random_bits() % n; }
static double random_signed(void) {
    double magnitude = 0.0625 + 0.9375 * random_bits() / 2147483648.0;
    return random_bits() & 1 ? magnitude : -magnitude;
}

static size_t bytes_of(GemmType type) { return type == GEMM_BF16 ? 2 : type == GEMM_F32 ? 4 : 8; }

static uint16_t bf16_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (x != x) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double get(const void *data, GemmType type, int64_t i) {
    if (type == GEMM_F64) return ((const double *)data)[i];
    if (type == GEMM_F32) return ((const float *)data)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static void set(void *data, GemmType type, int64_t i, double x) {
    if (type == GEMM_F64) ((double *)data)[i] = x;
    else if (type == GEMM_F32) ((float *)data)[i] = (float)x;
    else ((uint16_t *)data)[i] = bf16_of((float)x);
}

static void *new_matrix(GemmType type, int64_t rows, int64_t ld, bool poison) {
    int64_t count = rows * ld;
    void *data = malloc((size_t)count * bytes_of(type) + 1);
    assert_non_null(data);
    for (int64_t i = 0; i < count; i++) set(data, type, i, poison ? NAN : random_signed());
    return data;
}

/* A GEMM with random operands; C starts as NaN unless it is accumulated into. Free with free_gemm. */
static Gemm new_gemm(
    GemmType input, GemmType output, bool transpose_a, bool transpose_b, bool accumulate, bool bias, int64_t m, int64_t n, int64_t k) {
    Gemm g = {.transpose_a = transpose_a,
        .transpose_b = transpose_b,
        .accumulate = accumulate,
        .input = input,
        .output = output,
        .m = m,
        .n = n,
        .k = k};
    g.lda = (transpose_a ? m : k) + random_below(PADDING);
    g.ldb = (transpose_b ? k : n) + random_below(PADDING);
    g.ldc = n + random_below(PADDING);
    g.a = new_matrix(input, transpose_a ? k : m, g.lda, false);
    g.b = new_matrix(input, transpose_b ? n : k, g.ldb, false);
    g.c = new_matrix(output, m, g.ldc, !accumulate);
    if (bias) g.bias = new_matrix(input == GEMM_F64 ? GEMM_F64 : GEMM_F32, 1, n, false);
    return g;
}

static void free_gemm(Gemm *g) {
    free((void *)g->a);
    free((void *)g->b);
    free(g->c);
    free((void *)g->bias);
}

static void *copy_of_c(const Gemm *g) {
    size_t bytes = (size_t)(g->m * g->ldc) * bytes_of(g->output);
    void *copy = malloc(bytes + 1);
    assert_non_null(copy);
    memcpy(copy, g->c, bytes);
    return copy;
}

static bool same_c(const Gemm *g, const void *other) { return !memcmp(g->c, other, (size_t)(g->m * g->ldc) * bytes_of(g->output)); }

/* A as m x k or B as n x k, in double. */
static double *lines_of(const Gemm *g, const void *data, int64_t lines, int64_t ld, bool depth_contiguous) {
    double *all = malloc((size_t)(lines * g->k) * sizeof *all + 1);
    assert_non_null(all);
    for (int64_t i = 0; i < lines; i++)
        for (int64_t p = 0; p < g->k; p++) all[i * g->k + p] = get(data, g->input, depth_contiguous ? i * ld + p : p * ld + i);
    return all;
}

static void expect_element(const Gemm *g, const double *a, const double *b, const void *before, int64_t i, int64_t j) {
    double sum = 0, magnitude = 0, unit = g->input == GEMM_F64 ? DBL_EPSILON / 2 : FLT_EPSILON / 2;
    for (int64_t p = 0; p < g->k; p++) {
        double product = a[i * g->k + p] * b[j * g->k + p];
        sum += product;
        magnitude += fabs(product);
    }
    if (g->accumulate) sum += get(before, g->output, i * g->ldc + j), magnitude += fabs(get(before, g->output, i * g->ldc + j));
    if (g->bias) sum += get(g->bias, g->input == GEMM_F64 ? GEMM_F64 : GEMM_F32, j), magnitude += 1;
    /* doubled for f64, where the reference rounds as much as we do */
    double tolerance = 2 * (double)(g->k + 3) * unit * magnitude + (g->output == GEMM_BF16 ? 1.01 / 256 * fabs(sum) : 0);
    double got = get(g->c, g->output, i * g->ldc + j);
    if (!(fabs(got - sum) <= tolerance))
        fail_msg("m %ld n %ld k %ld transposes %d%d types %d->%d accumulate %d bias %d: C[%ld][%ld] = %.9g, expected %.9g +- %.2g",
            (long)g->m, (long)g->n, (long)g->k, g->transpose_a, g->transpose_b, g->input, g->output, g->accumulate, g->bias != NULL,
            (long)i, (long)j, got, sum, tolerance);
}

/* All elements of small GEMMs, 500 of large ones, the corners always; and what lies between rows of C is as it was. */
static void expect_gemm(const Gemm *g, const void *before) {
    double *a = lines_of(g, g->a, g->m, g->lda, !g->transpose_a), *b = lines_of(g, g->b, g->n, g->ldb, g->transpose_b);
    if (g->m * g->n <= 1000)
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t j = 0; j < g->n; j++) expect_element(g, a, b, before, i, j);
    else
        for (int i = 0; i < 500; i++)
            expect_element(
                g, a, b, before, i < 4 ? i % 2 * (g->m - 1) : random_below(g->m), i < 4 ? i / 2 * (g->n - 1) : random_below(g->n));
    free(a);
    free(b);
    size_t size = bytes_of(g->output);
    for (int64_t i = 0; i < g->m; i++) {
        size_t gap = (size_t)(i * g->ldc + g->n) * size;
        assert_memory_equal((const char *)g->c + gap, (const char *)before + gap, (size_t)(g->ldc - g->n) * size);
    }
}

typedef void Run(const Gemm *g);
static void run_as_batch(const Gemm *g) { gemm_batch(g, 1); }

/* Runs the GEMM every way there is and expects the same bits of all, then checks them. */
static void check(Gemm *g) {
    static Run *const runs[] = {gemm, run_as_batch, gemm};
    static const int threads[] = {2, 2, 1};
    void *before = copy_of_c(g);
    gemm_serial(g);
    expect_gemm(g, before);
    void *serial = copy_of_c(g);
    for (int i = 0; i < 3; i++) {
        memcpy(g->c, before, (size_t)(g->m * g->ldc) * bytes_of(g->output));
        omp_set_num_threads(threads[i]);
        runs[i](g);
        assert_true(same_c(g, serial));
    }
    omp_set_num_threads(2);
    free(serial);
    free(before);
    free_gemm(g);
}

typedef struct Types { GemmType input, output; } Types;
static const Types all_types[] = {
    {GEMM_F32, GEMM_F32}, {GEMM_F32, GEMM_BF16}, {GEMM_BF16, GEMM_F32}, {GEMM_BF16, GEMM_BF16}, {GEMM_F64, GEMM_F64}};
enum { TYPES = sizeof all_types / sizeof *all_types };

/* Every transpose, accumulation and bias that the contract allows for these types and sizes. */
static void check_all_forms(Types types, int64_t m, int64_t n, int64_t k) {
    for (int form = 0; form < 16; form++) {
        Gemm g = new_gemm(types.input, types.output, form & 1, form & 2, form & 4, form & 8, m, n, k);
        check(&g);
    }
}

static void for_each_isa(void (*body)(void)) {
    FOR_EACH_ISA (isa) {
        print_message("           on %s\n", cpu_isa_name(isa));
        assert_string_equal(gemm_variant(), cpu_isa_name(isa));
        body();
    }
}

static void small_sizes(void) {
    static const int64_t sizes[][3] = {
        {1, 1, 1}, {1, 17, 3}, {3, 1, 33}, {14, 32, 16}, {15, 33, 17}, {13, 31, 15}, {28, 64, 65}, {29, 16, 31}, {5, 48, 2}, {64, 49, 7}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int t = 0; t < TYPES; t++) check_all_forms(all_types[t], sizes[i][0], sizes[i][1], sizes[i][2]);
}

static void several_blocks(void) {
    static const int64_t sizes[][3] = {{37, 45, 385}, {17, 19, 1027}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int t = 0; t < TYPES; t++) check_all_forms(all_types[t], sizes[i][0], sizes[i][1], sizes[i][2]);
}

/* K so long that with A transposed pieces of it are added up: two, four and eight. */
static void several_pieces(void) {
    static const int64_t sizes[][3] = {{37, 45, 2049}, {9, 32, 4099}, {15, 17, 8200}, {1, 1, 9000}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int t = 0; t < TYPES; t++)
            for (int form = 0; form < 8; form++) {
                if (all_types[t].output == GEMM_BF16) continue;
                Gemm g = new_gemm(all_types[t].input, all_types[t].output, form & 1, form & 2, form & 4, form == 5, sizes[i][0],
                    sizes[i][1], sizes[i][2]);
                check(&g);
            }
}

static void empty_sizes(void) {
    static const int64_t sizes[][3] = {{0, 5, 7}, {5, 0, 7}, {5, 7, 0}, {40, 70, 0}, {0, 0, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int t = 0; t < TYPES; t++) check_all_forms(all_types[t], sizes[i][0], sizes[i][1], sizes[i][2]);
}

static void random_sizes(void) {
    for (int i = 0; i < 60; i++) {
        Types types = all_types[random_below(TYPES)];
        bool accumulate = random_below(2);
        Gemm g = new_gemm(types.input, types.output, random_below(2), random_below(2), accumulate, random_below(2), random_below(150),
            random_below(150), random_below(700));
        check(&g);
    }
}

/* More rows and columns than one tile, so tiles' borders are met. */
static void several_tiles(void) {
    for (int t = 0; t < TYPES; t++)
        for (int form = t % 2; form < 4; form += 2) {
            Gemm g = new_gemm(all_types[t].input, all_types[t].output, form & 1, form & 2, form == 1 && all_types[t].output != GEMM_BF16,
                form == 2, 1063, 70 + 1030 * (form == 3 || t == 0), form == 3 ? 400 : 20);
            check(&g);
        }
}

static void small_gemms_match_a_plain_loop(void **state) { (void)state, for_each_isa(small_sizes); }
static void gemms_of_several_blocks_match(void **state) { (void)state, for_each_isa(several_blocks); }
static void gemms_of_several_pieces_match(void **state) { (void)state, for_each_isa(several_pieces); }
static void empty_gemms_give_zero_bias_or_c(void **state) { (void)state, for_each_isa(empty_sizes); }
static void random_gemms_match(void **state) { (void)state, for_each_isa(random_sizes); }
static void gemms_of_several_tiles_match(void **state) { (void)state, for_each_isa(several_tiles); }

/* One GEMM far larger than the rest, empty ones between, all types: as run one by one. */
static void mixed_batch(void) {
    enum { COUNT = 300 };
    static Gemm gemms[COUNT];
    void *before[COUNT], *alone[COUNT];
    for (int i = 0; i < COUNT; i++) {
        Types types = all_types[i % TYPES];
        bool large = i == 7, empty = i % 11 == 0;
        gemms[i] = new_gemm(types.input, types.output, i & 1, i & 2, types.output != GEMM_BF16 && (i & 4), i & 8,
            large   ? 600
            : empty ? 0
                    : 1 + random_below(60),
            large ? 500 : 1 + random_below(60), large ? 300 : random_below(60));
        before[i] = copy_of_c(&gemms[i]);
        gemm_serial(&gemms[i]);
        alone[i] = copy_of_c(&gemms[i]);
    }
    for (int threads = 1; threads <= 3; threads++) {
        int count = threads == 2 ? 200 : COUNT; /* few GEMMs are planned on the stack, many on the heap */
        for (int i = 0; i < COUNT; i++) memcpy(gemms[i].c, before[i], (size_t)(gemms[i].m * gemms[i].ldc) * bytes_of(gemms[i].output));
        omp_set_num_threads(threads);
        gemm_batch(gemms, count);
        for (int i = 0; i < COUNT; i++) assert_true(same_c(&gemms[i], i < count ? alone[i] : before[i]));
    }
    omp_set_num_threads(2);
    for (int i = 0; i < COUNT; i++) free(before[i]), free(alone[i]), free_gemm(&gemms[i]);
}
static void a_batch_gives_the_bits_of_its_gemms_alone(void **state) { (void)state, for_each_isa(mixed_batch); }

/* Few rows of A have kernels of their own, which must add in the order of the others. The rows of a GEMM
 * of 66 rows, computed again 1 to 33 at a time, over operands of 16 powers of two. */
static void few_rows_body(void) {
    enum { ROWS = 66, COUNTS = 14 };
    static const int64_t counts[COUNTS] = {1, 5, 16, 2, 8, 32, 3, 9, 17, 4, 13, 24, 7, 33};
    static const int64_t sizes[][2] = {
        {1, 1}, {16, 32}, {7, 31}, {33, 2}, {50, 129}, {40, 515}, {70, 1200}, {19, 1203}, {17, 2049}, {18, 4224}};
    for (int i = 0; i < 10 * TYPES * 2; i++) {
        const int64_t n = sizes[i % 10][0], k = sizes[i % 10][1], rows = counts[(i + i / 10) % COUNTS];
        Types types = all_types[i / 10 % TYPES];
        Gemm whole = new_gemm(types.input, types.output, false, true, i / 50, (i + i / 10) & 1, ROWS, n, k);
        for (int64_t j = 0; j < n * whole.ldb; j++) set((void *)whole.b, types.input, j, ldexp(random_signed(), (int)random_below(16)));
        set((void *)whole.b, types.input, (n - 1) * whole.ldb + k - 1, i % 3 ? 1 : INFINITY);
        Gemm few = whole;
        few.c = copy_of_c(&whole);
        gemm_serial(&whole);
        for (int64_t row = 0; row < ROWS; row += rows) {
            Gemm g = few;
            g.m = row + rows <= ROWS ? rows : ROWS - row;
            g.a = (const char *)few.a + (size_t)(row * few.lda) * bytes_of(types.input);
            g.c = (char *)few.c + (size_t)(row * few.ldc) * bytes_of(types.output);
            gemm(&g);
        }
        assert_true(same_c(&whole, few.c));
        free(few.c);
        free_gemm(&whole);
    }
}
static void few_rows_have_the_bits_of_many(void **state) { (void)state, for_each_isa(few_rows_body); }

/* GEMMs of the same shape; three share their rows, and the second of these has a B that must be packed. A
 * thread keeps the rows of A that it packed last. */
static void rows_of_a_batch_body(void) {
    enum { COUNT = 12 };
    for (int t = 0; t < TYPES; t++) {
        Gemm gemms[COUNT];
        void *alone[COUNT];
        for (int i = 0; i < COUNT; i++) {
            Gemm *g = &gemms[i];
            *g = new_gemm(all_types[t].input, all_types[t].output, false, i % 3 != 1, false, false, 7, 48, 130);
            free((void *)g->a);
            g->ldc = 48, g->lda = 130, g->a = i % 3 ? g[-1].a : new_matrix(g->input, g->m, g->lda, false);
            gemm_serial(g);
            alone[i] = copy_of_c(g);
            memset(g->c, 0x7f, (size_t)(g->m * g->ldc) * bytes_of(g->output));
        }
        gemm_batch(gemms, COUNT);
        for (int i = 0; i < COUNT; i++) assert_true(same_c(&gemms[i], alone[i])), free(alone[i]);
        for (int i = 0; i < COUNT; i++) {
            if (i % 3) gemms[i].a = NULL;
            free_gemm(&gemms[i]);
        }
    }
}
static void a_batch_keeps_its_few_rows_apart(void **state) { (void)state, for_each_isa(rows_of_a_batch_body); }

/* Each of these needs nearly all the room for partial sums. */
static void partial_sums_of_a_batch_do_not_run_out(void **state) {
    (void)state;
    enum { COUNT = 3 };
    Gemm gemms[COUNT];
    void *before[COUNT], *alone[COUNT];
    for (int i = 0; i < COUNT; i++) {
        gemms[i] = new_gemm(GEMM_F32, GEMM_F32, true, false, true, false, 930, 1070, 2100);
        before[i] = copy_of_c(&gemms[i]);
        gemm_serial(&gemms[i]);
        alone[i] = copy_of_c(&gemms[i]);
        memcpy(gemms[i].c, before[i], (size_t)(gemms[i].m * gemms[i].ldc) * 4);
    }
    gemm_batch(gemms, COUNT);
    expect_gemm(&gemms[1], before[1]);
    for (int i = 0; i < COUNT; i++) assert_true(same_c(&gemms[i], alone[i])), free(before[i]), free(alone[i]), free_gemm(&gemms[i]);
}

static void an_empty_batch_does_nothing(void **state) {
    (void)state;
    gemm_batch(NULL, 0);
}

static void serial_gemms_run_side_by_side(void **state) {
    (void)state;
    enum { COUNT = 16 };
    Gemm gemms[COUNT];
    void *before[COUNT];
    for (int i = 0; i < COUNT; i++)
        gemms[i] = new_gemm(GEMM_F32, GEMM_F32, i & 1, i & 2, false, false, 50 + i, 64, 300), before[i] = copy_of_c(&gemms[i]);
    omp_set_num_threads(4);
#pragma omp parallel for
    for (int i = 0; i < COUNT; i++) gemm_serial(&gemms[i]);
    omp_set_num_threads(2);
    for (int i = 0; i < COUNT; i++) expect_gemm(&gemms[i], before[i]), free(before[i]), free_gemm(&gemms[i]);
}

/* A GEMM by the identity (m = k = 1, a = 1) shows how a result is rounded. */
static void rounding_body(void) {
    static const struct {
        float in;
        uint16_t out;
    } cases[] = {
        {1.0f, 0x3f80},
        {0x1.01p0f, 0x3f80},
        {0x1.03p0f, 0x3f82},
        {0x1.010002p0f, 0x3f81},
        {-0x1.03p0f, 0xbf82},
        {FLT_MAX, 0x7f80},
        {-FLT_MAX, 0xff80},
        {INFINITY, 0x7f80},
        {-INFINITY, 0xff80},
        {0x1p-130f, 0x0008},
    };
    enum { COUNT = sizeof cases / sizeof *cases, WIDE = 64 };
    float one = 1, b[COUNT + 1], wide[WIDE];
    uint16_t c[COUNT + 1], wide_c[WIDE];
    for (int i = 0; i < WIDE; i++) wide[i] = cases[i % COUNT].in; /* without a NaN and in whole vectors, another path */
    gemm_serial(
        &(Gemm){.output = GEMM_BF16, .m = 1, .n = WIDE, .k = 1, .a = &one, .lda = 1, .b = wide, .ldb = WIDE, .c = wide_c, .ldc = WIDE});
    for (int i = 0; i < WIDE; i++) assert_int_equal(wide_c[i], cases[i % COUNT].out);
    for (int i = 0; i < COUNT; i++) b[i] = cases[i].in;
    uint32_t nan_low_bits = 0x7f800001; /* rounding this up as a number would give infinity */
    memcpy(&b[COUNT], &nan_low_bits, 4);
    gemm_serial(&(Gemm){
        .output = GEMM_BF16, .m = 1, .n = COUNT + 1, .k = 1, .a = &one, .lda = 1, .b = b, .ldb = COUNT + 1, .c = c, .ldc = COUNT + 1});
    for (int i = 0; i < COUNT; i++) assert_int_equal(c[i], cases[i].out);
    assert_true(isnan(get(c, GEMM_BF16, COUNT)));
}
static void bf16_rounds_to_nearest_even_and_keeps_nan(void **state) { (void)state, for_each_isa(rounding_body); }

static void nan_body(void) {
    for (int t = 0; t < TYPES; t++) {
        Gemm g = new_gemm(all_types[t].input, all_types[t].output, false, true, false, false, 40, 70, 300);
        set((void *)g.a, g.input, 17 * g.lda + 299, NAN);
        gemm_serial(&g);
        for (int64_t i = 0; i < g.m; i++)
            for (int64_t j = 0; j < g.n; j++) assert_int_equal(isnan(get(g.c, g.output, i * g.ldc + j)) != 0, i == 17);
        free_gemm(&g);
    }
}
static void a_nan_reaches_its_row_and_no_other(void **state) { (void)state, for_each_isa(nan_body); }

/* Elements of a line from 2^-20 to 1 times a power of two of its own, 2^40 at most from 2^middle. */
static void spread_lines(void *data, GemmType type, int64_t lines, int64_t ld, int64_t k, bool depth_contiguous, int middle) {
    for (int64_t i = 0; i < lines; i++) {
        int exponent = middle + (int)random_below(80) - 40;
        for (int64_t p = 0; p < k; p++)
            set(data, type, depth_contiguous ? i * ld + p : p * ld + i, ldexp(random_signed(), exponent - (int)random_below(17)));
    }
}

static double largest(const double *line, int64_t k) {
    double most = 0;
    for (int64_t p = 0; p < k; p++) most = fmax(most, fabs(line[p]));
    return most;
}

/* Each GEMM's operands are off by up to `rounding` of the largest of their lines, each for itself: 6 times the root
 * of the sum of squares of what these make is 10 deviations, or 7 where lines are so far from 1 that their squares
 * leave fp32. */
static void wide_ranges_body(void) {
    for (int form = 0; form < 32; form++) {
        GemmType output = form & 16 ? GEMM_BF16 : GEMM_F32;
        int64_t k = form % 3 == 0 ? 1 + random_below(128) : 1 + random_below(3000);
        int middle = form % 5 == 0 ? 65 : form % 5 == 1 ? -65 : 0;
        Gemm g = new_gemm(GEMM_BF16, output, form & 1, form & 2, false, false, 1 + random_below(40), 1 + random_below(80), k);
        spread_lines((void *)g.a, g.input, g.m, g.lda, k, !g.transpose_a, middle);
        spread_lines((void *)g.b, g.input, g.n, g.ldb, k, g.transpose_b, -middle);
        gemm(&g);
        double *a = lines_of(&g, g.a, g.m, g.lda, !g.transpose_a), *b = lines_of(&g, g.b, g.n, g.ldb, g.transpose_b),
               rounding = gemm_rounding(g.input);
        for (int64_t i = 0; i < g.m; i++)
            for (int64_t j = 0; j < g.n; j++) {
                const double *x = a + i * k, *y = b + j * k;
                double sum = 0, magnitude = 0, squares = 0, off_x = rounding * largest(x, k), off_y = rounding * largest(y, k);
                for (int64_t p = 0; p < k; p++) {
                    sum += x[p] * y[p], magnitude += fabs(x[p] * y[p]);
                    squares += pow(off_x * y[p], 2) + pow(off_y * x[p], 2) + pow(off_x * off_y, 2);
                }
                double tolerance = 6 * sqrt(squares) + 2 * (double)(k + 3) * FLT_EPSILON / 2 * magnitude +
                                   (output == GEMM_BF16 ? 1.01 / 256 * fabs(sum) : 0);
                double got = get(g.c, output, i * g.ldc + j);
                if (!(fabs(got - sum) <= tolerance))
                    fail_msg(
                        "form %d k %ld: C[%ld][%ld] = %.9g, expected %.9g +- %.2g", form, (long)k, (long)i, (long)j, got, sum, tolerance);
            }
        free(a), free(b), free_gemm(&g);
    }
}
static void operands_of_wide_ranges_match(void **state) { (void)state, for_each_isa(wide_ranges_body); }

/* Then tolerances have no part for the rounding of operands. */
static void exact_gemms_round_no_operand(void **state) {
    (void)state;
    gemm_exact(true);
    assert_true(gemm_rounding(GEMM_BF16) == 0);
    wide_ranges_body();
    gemm_exact(false);
}

static double random_normal(void) {
    return sqrt(-2 * log((random_bits() + 1) / 2147483649.0)) * cos(2 * M_PI * random_bits() / 2147483648.0);
}

/* GEMMs of operands in bf16 are off by what rounding normal numbers to bf16 does, and hardly more where one in a
 * hundred is a hundred times as large, as in some activations of language models. */
static void bf16_body(void) {
    enum { M = 60, N = 70, K = 1000 };
    for (int outliers = 0; outliers < 2; outliers++) {
        Gemm g = new_gemm(GEMM_BF16, GEMM_F32, false, true, false, false, M, N, K);
        double *exact[2] = {malloc(M * K * sizeof(double)), malloc(N * K * sizeof(double))}, by_rounding = 0, in_all = 0;
        assert_true(exact[0] && exact[1]);
        for (int side = 0; side < 2; side++)
            for (int64_t i = 0; i < (side ? N : M) * K; i++) {
                double x = random_normal() * (outliers && random_below(100) == 0 ? 100 : 1);
                exact[side][i] = x;
                set(side ? (void *)g.b : (void *)g.a, GEMM_BF16, side ? i / K * g.ldb + i % K : i / K * g.lda + i % K, x);
            }
        gemm(&g);
        for (int64_t i = 0; i < M; i++)
            for (int64_t j = 0; j < N; j++) {
                double sum = 0, rounded = 0;
                for (int64_t p = 0; p < K; p++) {
                    sum += exact[0][i * K + p] * exact[1][j * K + p];
                    rounded += get(g.a, GEMM_BF16, i * g.lda + p) * get(g.b, GEMM_BF16, j * g.ldb + p);
                }
                by_rounding += pow(rounded - sum, 2);
                in_all += pow(get(g.c, GEMM_F32, i * g.ldc + j) - sum, 2);
            }
        print_message(
            "             error %.3f times that of operands in bf16%s\n", sqrt(in_all / by_rounding), outliers ? ", with outliers" : "");
        assert_true(sqrt(in_all / by_rounding) <= (outliers ? 1.02 : 1.002));
        free(exact[0]), free(exact[1]), free_gemm(&g);
    }
}
static void bf16_gemms_are_as_near_as_their_operands(void **state) { (void)state, for_each_isa(bf16_body); }

/* Lines times themselves are the largest sums that integers of their squares' size can make: of all significands,
 * where so many of 128 are large and the others are 2^-12 of them, in powers of two beyond what fp32 holds the
 * squares of as well. */
static void extremes_body(void) {
    enum { K = 384, LINES = 128 };
    static const int larges[] = {1, 2, 5, 31, 32, 33, 100, 128}, powers[] = {-54, -52, -51, -50, -49, -48, -47, 0, 57, 58};
    static uint16_t a[LINES * K];
    static float c[LINES * LINES];
    for (size_t i = 0; i < sizeof larges / sizeof *larges; i++)
        for (size_t j = 0; j < sizeof powers / sizeof *powers; j++) {
            double sums[LINES] = {0};
            for (int line = 0; line < LINES; line++)
                for (int p = 0; p < K; p++) {
                    double x = ldexp((128 + line) / 128.0, powers[j] - (p % 128 < larges[i] ? 0 : 12));
                    a[line * K + p] = bf16_of((float)x), sums[line] += x * x;
                }
            gemm(&(Gemm){.transpose_b = true,
                .input = GEMM_BF16,
                .output = GEMM_F32,
                .m = LINES,
                .n = LINES,
                .k = K,
                .a = a,
                .lda = K,
                .b = a,
                .ldb = K,
                .c = c,
                .ldc = LINES});
            for (int line = 0; line < LINES; line++)
                if (!(fabs(c[line * LINES + line] - sums[line]) <= 1e-3 * sums[line]))
                    fail_msg("significand %d, %d large, 2^%d: %g, expected %g", 128 + line, larges[i], powers[j], c[line * LINES + line],
                        sums[line]);
        }
}
static void the_largest_sums_do_not_overflow(void **state) { (void)state, for_each_isa(extremes_body); }

/* Beside one element the 127 others of its scale are 2^-10, as a head's gradients are; the other line has nothing
 * where the large one is. Each of them is off by 2^-15 at most: their sum, 127 * 2^-10, by 0.2% in the mean, of
 * which 5 times is 1%. Twelve bits had cost 1.3%. */
static void spike_body(void) {
    enum { K = 128, LINES = 40 };
    uint16_t a[LINES * K], b[K];
    float c[LINES];
    double sums[LINES] = {0};
    for (int p = 0; p < K; p++) b[p] = bf16_of(p == 77 ? 0 : 1);
    for (int line = 0; line < LINES; line++)
        for (int p = 0; p < K; p++) {
            a[line * K + p] = bf16_of(p == 77 ? -1 : ldexpf(1 + 0.5f * (float)random_signed(), -10));
            if (p != 77) sums[line] += get(a, GEMM_BF16, line * K + p);
        }
    gemm(&(Gemm){.transpose_b = true,
        .input = GEMM_BF16,
        .output = GEMM_F32,
        .m = LINES,
        .n = 1,
        .k = K,
        .a = a,
        .lda = K,
        .b = b,
        .ldb = K,
        .c = c,
        .ldc = 1});
    for (int line = 0; line < LINES; line++) assert_true(fabs(c[line] - sums[line]) <= 0.01 * sums[line]);
}
static void what_stands_beside_a_large_element_is_kept(void **state) { (void)state, for_each_isa(spike_body); }

static void infinity_body(void) {
    Gemm g = new_gemm(GEMM_BF16, GEMM_F32, false, true, false, false, 20, 40, 300);
    set((void *)g.a, g.input, 3 * g.lda + 200, INFINITY);
    set((void *)g.b, g.input, 33 * g.ldb, -INFINITY);
    gemm_serial(&g);
    for (int64_t i = 0; i < g.m; i++)
        for (int64_t j = 0; j < g.n; j++) assert_int_equal(isfinite(get(g.c, g.output, i * g.ldc + j)) != 0, i != 3 && j != 33);
    free_gemm(&g);
}
static void an_infinity_is_never_lost(void **state) { (void)state, for_each_isa(infinity_body); }

typedef typeof(dnnl_sgemm) Sgemm;

/* bf16 operands are cast to fp32 for oneDNN, which changes no value. */
static float *as_fp32(const void *data, GemmType type, int64_t count) {
    float *wide = malloc((size_t)count * 4 + 1);
    assert_non_null(wide);
    for (int64_t i = 0; i < count; i++) wide[i] = (float)get(data, type, i);
    return wide;
}

static Sgemm *onednn_sgemm;

static void onednn_body(void) {
    for (int i = 0; i < 24; i++) {
        GemmType type = i & 8 ? GEMM_BF16 : GEMM_F32;
        Gemm g = new_gemm(type, GEMM_F32, i & 1, i & 2, i & 4, false, 1 + random_below(300), 1 + random_below(300), 1 + random_below(900));
        float *a = as_fp32(g.a, type, (g.transpose_a ? g.k : g.m) * g.lda), *b = as_fp32(g.b, type, (g.transpose_b ? g.n : g.k) * g.ldb),
              *c = copy_of_c(&g);
        gemm(&g);
        assert_int_equal(onednn_sgemm(g.transpose_a ? 'T' : 'N', g.transpose_b ? 'T' : 'N', g.m, g.n, g.k, 1, a, g.lda, b, g.ldb,
                             g.accumulate, c, g.ldc),
            dnnl_success);
        /* both may be off by k u sum|a b| <= k^2 u; roundings are as good as random, which leaves k u */
        float tolerance = 4 * (float)(g.k + 3) * FLT_EPSILON;
        for (int64_t row = 0; row < g.m; row++)
            for (int64_t column = 0; column < g.n; column++)
                assert_true(fabsf(((float *)g.c)[row * g.ldc + column] - c[row * g.ldc + column]) <= tolerance);
        free(a), free(b), free(c), free_gemm(&g);
    }
}

static void gemms_match_onednn(void **state) {
    (void)state;
    void *library = dlopen("libdnnl.so.2", RTLD_NOW);
    if (!library) skip();
    *(void **)&onednn_sgemm = dlsym(library, "dnnl_sgemm");
    assert_non_null(onednn_sgemm);
    for_each_isa(onednn_body);
}

/* LeakSanitizer stops with an error of its own in a process that has opened oneDNN; addresses and behavior are
 * still checked. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "detect_leaks=0"; }

int main(void) {
    omp_set_dynamic(0);
    omp_set_num_threads(2);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_gemms_match_a_plain_loop),
        cmocka_unit_test(gemms_of_several_blocks_match),
        cmocka_unit_test(gemms_of_several_pieces_match),
        cmocka_unit_test(empty_gemms_give_zero_bias_or_c),
        cmocka_unit_test(random_gemms_match),
        cmocka_unit_test(gemms_of_several_tiles_match),
        cmocka_unit_test(a_batch_gives_the_bits_of_its_gemms_alone),
        cmocka_unit_test(few_rows_have_the_bits_of_many),
        cmocka_unit_test(a_batch_keeps_its_few_rows_apart),
        cmocka_unit_test(partial_sums_of_a_batch_do_not_run_out),
        cmocka_unit_test(an_empty_batch_does_nothing),
        cmocka_unit_test(serial_gemms_run_side_by_side),
        cmocka_unit_test(bf16_rounds_to_nearest_even_and_keeps_nan),
        cmocka_unit_test(a_nan_reaches_its_row_and_no_other),
        cmocka_unit_test(operands_of_wide_ranges_match),
        cmocka_unit_test(exact_gemms_round_no_operand),
        cmocka_unit_test(bf16_gemms_are_as_near_as_their_operands),
        cmocka_unit_test(the_largest_sums_do_not_overflow),
        cmocka_unit_test(what_stands_beside_a_large_element_is_kept),
        cmocka_unit_test(an_infinity_is_never_lost),
        cmocka_unit_test(gemms_match_onednn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
