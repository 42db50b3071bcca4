/* smelt's GEMM on the GPU of SMELT_TEST_DEVICE (hip or cuda; skipped without it) against a loop in double precision:
 * all layouts and types, sizes that fill tiles and sizes that do not, batches, symmetric GEMMs, grouped GEMMs of
 * experts; and always the same bits. With SMELT_TEST_SPEED set, how fast they are, beside the vendor's.
 *
 * What must not be read or written is NaN: the gaps between rows, slots without an expert, C before it is written.
 *
 * Tolerance: a sum of k products in fp32, in any order, is off by at most about k / 2^24 of the sum of their
 * magnitudes; storing as bf16 adds half a unit in the last place, 1/256. Operands are uniform in (-1, 1): a wrong
 * sign or a lost product is off by about 0.3, thousands of times the first bound. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/rng.h"
#include "base/scope.h"
#include "support/check.h"
#include "support/launches.h"
#include "backend/gpu/gpu_gemm.h"
#include "backend/gpu/kernel_launch.h"
#include "ops/grouped_linear/grouped_linear.h"

enum { SAMPLES = 400, PADDING = 8 };

static uint64_t random_index;
static double random_signed(void) { return 2 * rng_uniform(7, 1, random_index++) - 1; }
static int64_t random_below(int64_t n) { return (int64_t)(rng_uniform(7, 1, random_index++) * n); }

/* -- Matrices on both sides ---------------------------------------------------------------------------------------- */

typedef struct Matrix {
    GemmType type;
    int64_t rows, columns, ld;
    char *host, *device; /* the device's copy of the host's */
} Matrix;

static int64_t element_bytes(GemmType type) { return type == GEMM_BF16 ? 2 : 4; }
static int64_t matrix_bytes(const Matrix *m) { return m->rows * m->ld * element_bytes(m->type); }

static double matrix_get(const Matrix *m, int64_t row, int64_t column) {
    int64_t i = row * m->ld + column;
    union {
        uint32_t bits;
        float value;
    } u = {.bits = m->type == GEMM_BF16 ? (uint32_t)((uint16_t *)m->host)[i] << 16 : ((uint32_t *)m->host)[i]};
    return u.value;
}

static void matrix_set(Matrix *m, int64_t row, int64_t column, double x) {
    int64_t i = row * m->ld + column;
    union {
        float value;
        uint32_t bits;
    } u = {.value = (float)x};
    if (m->type == GEMM_F32) ((uint32_t *)m->host)[i] = u.bits;
    else ((uint16_t *)m->host)[i] = (uint16_t)(x != x ? 0x7fc0 : (u.bits + 0x7fff + (u.bits >> 16 & 1)) >> 16);
}

static void matrix_upload(const Matrix *m) { device_upload(check_device(), m->device, m->host, matrix_bytes(m)); }
static void matrix_download(const Matrix *m) { device_download(check_device(), m->host, m->device, matrix_bytes(m)); }

/* `random`: the elements; the gaps are NaN always. */
static Matrix matrix_new(GemmType type, int64_t rows, int64_t columns, int64_t ld, bool random) {
    Error error = {0};
    Matrix m = {.type = type, .rows = rows, .columns = columns, .ld = ld};
    m.host = memory_allocate((size_t)matrix_bytes(&m) + 1);
    m.device = device_allocate(check_device(), matrix_bytes(&m), &error);
    if (!m.device) fail_msg("%s", error.message);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < ld; j++) matrix_set(&m, i, j, random && j < columns ? random_signed() : NAN);
    matrix_upload(&m);
    return m;
}

static void matrix_free(Matrix *m) {
    device_free(check_device(), m->device, matrix_bytes(m));
    free(m->host);
}

static Matrix matrix_copy(const Matrix *m) {
    Matrix copy = *m;
    copy.host = memory_allocate((size_t)matrix_bytes(m) + 1);
    memcpy(copy.host, m->host, (size_t)matrix_bytes(m));
    return copy;
}

static void expect_no_failure(void) {
    Error error = {0};
    if (!device_ok(check_device(), &error)) fail_msg("%s", error.message);
}

/* -- The reference ------------------------------------------------------------------------------------------------- */

/* One GEMM of which the rows of C begin at c_row; A's and B's elements by functions of (line, depth). */
typedef struct Expected {
    const Matrix *a, *b, *c, *d; /* d: C before or another matrix, NULL: none */
    const float *bias;
    bool transpose_a, transpose_b;
    int64_t m, n, k, a_line, a_depth, b_line, b_depth, c_row; /* where this GEMM begins in the matrices */
    double alpha, beta;
} Expected;

static double line_get(const Matrix *m, bool depth_in_rows, int64_t line, int64_t depth) {
    return depth_in_rows ? matrix_get(m, depth, line) : matrix_get(m, line, depth);
}

static void expect_element(const Expected *e, int64_t i, int64_t j) {
    double sum = 0, magnitude = 0, extra = 0;
    for (int64_t p = 0; p < e->k; p++) {
        double product =
            line_get(e->a, e->transpose_a, e->a_line + i, e->a_depth + p) * line_get(e->b, !e->transpose_b, e->b_line + j, e->b_depth + p);
        sum += product;
        magnitude += fabs(product);
    }
    if (e->d) extra = e->beta * matrix_get(e->d, e->c_row + i, j);
    if (e->bias) extra += e->bias[j];
    sum = e->alpha * sum + extra;
    double got = matrix_get(e->c, e->c_row + i, j);
    double tolerance = (double)(e->k + 4) / (1 << 24) * (fabs(e->alpha) * magnitude + fabs(extra)) +
                       (e->c->type == GEMM_BF16 ? 1.01 / 256 * fabs(sum) : 0);
    if (!(fabs(got - sum) <= tolerance))
        fail_msg("m %ld n %ld k %ld, A%s B%s, C %s%s%s: C[%ld][%ld] is %.9g, expected %.9g +- %.2g", (long)e->m, (long)e->n, (long)e->k,
            e->transpose_a ? "^T" : "", e->transpose_b ? "^T" : "", e->c->type == GEMM_BF16 ? "bf16" : "fp32", e->d ? " + D" : "",
            e->bias ? " + bias" : "", (long)i, (long)j, got, sum, tolerance);
}

/* All elements of a small C; of a large one the corners and a sample. */
static void expect_gemm(const Expected *e) {
    if (e->m * e->n <= SAMPLES)
        for (int64_t i = 0; i < e->m * e->n; i++) expect_element(e, i / e->n, i % e->n);
    else
        for (int i = 0; i < SAMPLES; i++)
            expect_element(e, i < 4 ? i % 2 * (e->m - 1) : random_below(e->m), i < 4 ? i / 2 * (e->n - 1) : random_below(e->n));
}

static void expect_gaps_unchanged(const Matrix *c) {
    for (int64_t i = 0; i < c->rows; i++)
        for (int64_t j = c->columns; j < c->ld; j++) assert_true(isnan(matrix_get(c, i, j)));
}

/* -- One GEMM ------------------------------------------------------------------------------------------------------ */

typedef struct Size {
    int64_t m, n, k;
    bool padded;
} Size;
typedef struct Form { bool transpose_a, transpose_b, wide, accumulate, bias; } Form;

static int64_t padded(int64_t columns, bool by_eight) { return columns + (by_eight ? 8 : random_below(PADDING)); }

static void check_gemm(const Size *s, const Form *f) {
    int64_t m = s->m, n = s->n, k = s->k;
    Matrix a =
        f->transpose_a ? matrix_new(GEMM_BF16, k, m, padded(m, s->padded), true) : matrix_new(GEMM_BF16, m, k, padded(k, s->padded), true);
    Matrix b =
        f->transpose_b ? matrix_new(GEMM_BF16, n, k, padded(k, s->padded), true) : matrix_new(GEMM_BF16, k, n, padded(n, s->padded), true);
    Matrix c = matrix_new(f->wide ? GEMM_F32 : GEMM_BF16, m, n, padded(n, s->padded), f->accumulate), before = matrix_copy(&c);
    Matrix bias = matrix_new(GEMM_F32, 1, n, n, true);
    Gemm gemm = {.transpose_a = f->transpose_a,
        .transpose_b = f->transpose_b,
        .accumulate = f->accumulate,
        .input = GEMM_BF16,
        .output = c.type,
        .m = m,
        .n = n,
        .k = k,
        .a = a.device,
        .lda = a.ld,
        .b = b.device,
        .ldb = b.ld,
        .c = c.device,
        .ldc = c.ld,
        .bias = f->bias ? bias.device : NULL};
    launches_begin_gemm(m, n, k);
    gpu_gemm(check_device(), &gemm);
    matrix_download(&c);
    expect_no_failure();
    Expected expected = {.a = &a,
        .b = &b,
        .c = &c,
        .d = f->accumulate ? &before : NULL,
        .bias = f->bias ? (const float *)bias.host : NULL,
        .transpose_a = f->transpose_a,
        .transpose_b = f->transpose_b,
        .m = m,
        .n = n,
        .k = k,
        .alpha = 1,
        .beta = 1};
    expect_gemm(&expected);
    expect_gaps_unchanged(&c);
    Matrix first = matrix_copy(&c);
    matrix_upload(&before);
    gpu_gemm(check_device(), &gemm);
    matrix_download(&c);
    assert_memory_equal(c.host, first.host, (size_t)matrix_bytes(&c));
    free(first.host), free(before.host);
    matrix_free(&a), matrix_free(&b), matrix_free(&c), matrix_free(&bias);
}

/* Every layout, writing bf16 with a bias and adding to fp32. */
static void check_sizes(const Size *sizes, size_t count) {
    check_gpu();
    for (size_t i = 0; i < count; i++)
        for (int layout = 0; layout < 4; layout++) {
            bool transpose_a = layout & 1, transpose_b = layout & 2;
            check_gemm(&sizes[i], &(Form){transpose_a, transpose_b, .wide = i % 2, .accumulate = i % 2});
            check_gemm(&sizes[i], &(Form){transpose_a, transpose_b, .wide = i % 2 == 0, .bias = true});
        }
}

static void gemms_of_aligned_sizes_match_a_loop(void **state) {
    (void)state;
    static const Size sizes[] = {{8, 8, 8, true}, {128, 256, 64, true}, {136, 264, 72, true}, {16, 520, 200, true}, {392, 40, 136, true},
        {136, 264, 840, true}}; /* the last is as deep as makes AMD split the depth of a tile */
    check_sizes(sizes, sizeof sizes / sizeof *sizes);
}

static void gemms_of_odd_sizes_match_a_loop(void **state) {
    (void)state;
    static const Size sizes[] = {{1, 1, 1, false}, {3, 5, 7, false}, {129, 31, 65, false}, {17, 257, 130, false}, {20, 12, 16, true}};
    check_sizes(sizes, sizeof sizes / sizeof *sizes);
}

/* Few rows or columns: one step along k and many, ends within a step and within a block, and more than half of the most lines. */
static void narrow_gemms_match_a_loop(void **state) {
    (void)state;
    static const Size sizes[] = {
        {8, 200, 136, true}, {200, 24, 840, true}, {64, 328, 264, true}, {264, 40, 1096, true}, {16, 16, 64, true}, {48, 8, 8, true}};
    check_sizes(sizes, sizeof sizes / sizeof *sizes);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) check_gemm(&sizes[i], &(Form){.transpose_b = i % 2, .accumulate = true});
}

/* Whose kernel has several chunks of a line a thread, less than one, and blocks that are not full. */
static void gemms_of_one_row_match_a_loop(void **state) {
    (void)state;
    static const Size sizes[] = {{1, 8, 8, true}, {1, 37, 264, true}, {1, 130, 2048, true}, {1, 61, 4104, true}, {1, 4, 10256, true}};
    check_gpu();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int form = 0; form < 8; form++)
            check_gemm(&sizes[i], &(Form){.transpose_b = true, .wide = form & 1, .accumulate = form & 2, .bias = form & 4});
}

static void one_row_is_for_the_kernel_that_reads_whole_lines(void **state) {
    (void)state;
    _Alignas(16) static uint16_t data[16];
    Gemm gemm = {
        .transpose_b = true, .input = GEMM_BF16, .output = GEMM_F32, .m = 1, .n = 4, .k = 8, .a = data, .lda = 8, .b = data, .ldb = 8};
    assert_true(gpu_gemv_serves(&gemm));
    Gemm rows = gemm, odd = gemm, lines = gemm, shifted = gemm, quantized = gemm;
    rows.m = 2, odd.ldb = 9, lines.transpose_b = false, shifted.b = data + 1, quantized.input = GEMM_E4M3;
    const Gemm *others[] = {&rows, &odd, &lines, &shifted, &quantized};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) assert_false(gpu_gemv_serves(others[i]));
}

/* More tiles than any processor count, so that those of NVIDIA make several each. */
static void a_gemm_of_many_tiles_matches_a_loop(void **state) {
    (void)state;
    check_gpu();
    check_gemm(&(Size){1544, 2832, 136, true}, &(Form){.transpose_b = true});
}

/* On AMD these have large tiles of 128 to 256 rows, as many as there are processors; the last row and column of tiles are not full, and
 * the last row has less height than the others. */
static void gemms_of_large_tiles_match_a_loop(void **state) {
    (void)state;
    check_gpu();
    int64_t columns = 16, down = device_info(check_device())->processors / columns;
    for (int i = 0; i < 5; i++)
        check_gemm(&(Size){(128 + 32 * i) * down - 88, columns * 256 - 8, 72, true},
            &(Form){i & 1, i & 2, .wide = i % 3 == 1, .accumulate = i == 1, .bias = i == 2});
}

/* More large tiles than processors: on AMD blocks go from tile to tile. */
static void a_gemm_of_many_large_tiles_matches_a_loop(void **state) {
    (void)state;
    check_gpu();
    int64_t columns = 16, down = device_info(check_device())->processors / columns + 2;
    check_gemm(&(Size){256 * down - 8, columns * 256 - 8, 64, true}, &(Form){.transpose_b = true});
}

/* AMD casts to bf16 in another way where no sum of a wave is NaN. */
static void a_row_of_nan_stays_nan(void **state) {
    (void)state;
    check_gpu();
    enum { SIDE = 136, ROW = 70 };
    Matrix a = matrix_new(GEMM_BF16, SIDE, SIDE, SIDE, true), b = matrix_new(GEMM_BF16, SIDE, SIDE, SIDE, true),
           c = matrix_new(GEMM_BF16, SIDE, SIDE, SIDE, false);
    matrix_set(&a, ROW, 5, NAN);
    matrix_upload(&a);
    gpu_gemm(check_device(), &(Gemm){.transpose_b = true,
                                 .input = GEMM_BF16,
                                 .output = GEMM_BF16,
                                 .m = SIDE,
                                 .n = SIDE,
                                 .k = SIDE,
                                 .a = a.device,
                                 .lda = SIDE,
                                 .b = b.device,
                                 .ldb = SIDE,
                                 .c = c.device,
                                 .ldc = SIDE});
    matrix_download(&c);
    expect_no_failure();
    for (int64_t i = 0; i < SIDE; i++)
        for (int64_t j = 0; j < SIDE; j++) assert_true(isnan(matrix_get(&c, i, j)) == (i == ROW));
    matrix_free(&a), matrix_free(&b), matrix_free(&c);
}

static void a_gemm_without_depth_is_zero_or_the_bias(void **state) {
    (void)state;
    check_gpu();
    check_gemm(&(Size){40, 24, 0, true}, &(Form){0});
    check_gemm(&(Size){5, 9, 0, false}, &(Form){.wide = true, .bias = true});
    check_gemm(&(Size){40, 24, 0, true}, &(Form){.wide = true, .accumulate = true});
}

static void a_gemm_without_rows_or_columns_touches_nothing(void **state) {
    (void)state;
    check_gpu();
    gpu_gemm(check_device(), &(Gemm){.input = GEMM_BF16, .output = GEMM_BF16, .n = 8, .k = 8, .ldb = 8, .ldc = 8});
    gpu_gemm(check_device(), &(Gemm){.input = GEMM_BF16, .output = GEMM_BF16, .m = 8, .k = 8, .lda = 8});
    device_synchronize(check_device());
    expect_no_failure();
}

/* -- Batches ------------------------------------------------------------------------------------------------------- */

/* Matrices lie below one another in A, B, C and D, which is there where the products are scaled. */
static void check_batch(int64_t count, const Size *s, bool wide, bool scaled) {
    int64_t m = s->m, n = s->n, k = s->k;
    Matrix a = matrix_new(GEMM_BF16, count * m, k, padded(k, s->padded), true),
           b = matrix_new(GEMM_BF16, count * k, n, padded(n, s->padded), true);
    Matrix c = matrix_new(wide ? GEMM_F32 : GEMM_BF16, count * m, n, padded(n, s->padded), false),
           d = matrix_new(c.type, count * m, n, c.ld, true);
    Gemm first = {.input = GEMM_BF16,
        .output = c.type,
        .m = m,
        .n = n,
        .k = k,
        .a = a.device,
        .lda = a.ld,
        .b = b.device,
        .ldb = b.ld,
        .c = c.device,
        .ldc = c.ld};
    gpu_gemm_batch(check_device(), &(GemmBatch){.first = first,
                                       .count = count,
                                       .stride_a = m * a.ld,
                                       .stride_b = k * b.ld,
                                       .stride_c = m * c.ld,
                                       .alpha = scaled ? -1.5 : 1,
                                       .beta = 0.75,
                                       .d = scaled ? d.device : NULL});
    matrix_download(&c);
    expect_no_failure();
    for (int64_t i = 0; i < count; i++)
        expect_gemm(&(Expected){.a = &a,
            .b = &b,
            .c = &c,
            .d = scaled ? &d : NULL,
            .m = m,
            .n = n,
            .k = k,
            .a_line = i * m,
            .b_depth = i * k,
            .c_row = i * m,
            .alpha = scaled ? -1.5 : 1,
            .beta = 0.75});
    expect_gaps_unchanged(&c);
    matrix_free(&a), matrix_free(&b), matrix_free(&c), matrix_free(&d);
}

static void gemms_of_a_batch_are_scaled_and_added_to_d(void **state) {
    (void)state;
    check_gpu();
    check_batch(3, &(Size){136, 72, 40, true}, false, true);
    check_batch(2, &(Size){24, 264, 80, true}, true, true);
    check_batch(3, &(Size){33, 19, 21, false}, false, true);
    check_batch(2, &(Size){168, 328, 72, true}, true, true);
    check_batch(3, &(Size){16, 136, 200, true}, false, false);
    check_batch(2, &(Size){136, 48, 80, true}, true, false);
}

/* alpha X X^T + beta D, D symmetric. */
static void check_symmetric(int64_t count, int64_t order, int64_t k, bool by_eight) {
    Matrix x = matrix_new(GEMM_BF16, count * order, k, padded(k, by_eight), true),
           d = matrix_new(GEMM_BF16, count * order, order, padded(order, by_eight), true);
    Matrix c = matrix_new(GEMM_BF16, count * order, order, d.ld, false);
    for (int64_t i = 0; i < count * order; i++)
        for (int64_t j = 0; j < i % order; j++) matrix_set(&d, i, j, matrix_get(&d, i / order * order + j, i % order));
    matrix_upload(&d);
    Gemm first = {.transpose_b = true,
        .input = GEMM_BF16,
        .output = GEMM_BF16,
        .m = order,
        .n = order,
        .k = k,
        .a = x.device,
        .lda = x.ld,
        .b = x.device,
        .ldb = x.ld,
        .c = c.device,
        .ldc = c.ld};
    gpu_gemm_batch(check_device(), &(GemmBatch){.first = first,
                                       .count = count,
                                       .stride_a = order * x.ld,
                                       .stride_b = order * x.ld,
                                       .stride_c = order * c.ld,
                                       .alpha = 0.5,
                                       .beta = -2,
                                       .d = d.device,
                                       .symmetric = true});
    matrix_download(&c);
    expect_no_failure();
    for (int64_t p = 0; p < count; p++) {
        int64_t row = p * order;
        expect_gemm(&(Expected){.a = &x,
            .b = &x,
            .c = &c,
            .d = &d,
            .transpose_b = true,
            .m = order,
            .n = order,
            .k = k,
            .a_line = row,
            .b_line = row,
            .c_row = row,
            .alpha = 0.5,
            .beta = -2});
        for (int64_t i = 0; i < order; i++)
            for (int64_t j = 0; j < i; j++) assert_true(matrix_get(&c, row + i, j) == matrix_get(&c, row + j, i));
    }
    expect_gaps_unchanged(&c);
    matrix_free(&x), matrix_free(&c), matrix_free(&d);
}

static void symmetric_gemms_are_whole_and_symmetric_to_the_bit(void **state) {
    (void)state;
    check_gpu();
    check_symmetric(1, 8, 16, true);
    check_symmetric(2, 328, 40, true);
    check_symmetric(2, 520, 72, true);
    check_symmetric(1, 200, 840, true);
    check_symmetric(2, 65, 33, false);
}

/* -- Experts ------------------------------------------------------------------------------------------------------- */

typedef struct Experts {
    int64_t experts, slots, in, out;
    const int32_t *offset;
} Experts;

typedef struct Call {
    OpCall call;
    Matrix x, w, y;
    int32_t *offset;
} Call;

static void set_shape(int64_t *shape, int rank, const int64_t *dimensions) {
    for (int i = 0; i < TENSOR_MAX_RANK; i++) shape[i] = i < rank ? dimensions[i] : 1;
}

static void set_input(OpCall *call, int operand, void *memory, int rank, const int64_t *dimensions) {
    call->in[operand] = memory;
    set_shape(call->in_shape[operand], rank, dimensions);
}

static void set_output(OpCall *call, int operand, void *memory, int rank, const int64_t *dimensions) {
    call->out[operand] = memory;
    set_shape(call->out_shape[operand], rank, dimensions);
}

static int32_t *upload_offsets(const Experts *e) {
    Error error = {0};
    int64_t bytes = (e->experts + 1) * (int64_t)sizeof(int32_t);
    int32_t *offset = device_allocate(check_device(), bytes, &error);
    if (!offset) fail_msg("%s", error.message);
    device_upload(check_device(), offset, e->offset, bytes);
    return offset;
}

/* x [slots, in], w [experts, out, in], y [slots, out]; rows of x and y that no expert has are NaN. */
static Call new_call(const Experts *e, GemmType weight) {
    Call c = {.x = matrix_new(GEMM_BF16, e->slots, e->in, e->in, true),
        .y = matrix_new(GEMM_BF16, e->slots, e->out, e->out, true),
        .w = matrix_new(weight, e->experts * e->out, e->in, e->in, true),
        .offset = upload_offsets(e),
        .call.device = check_device()};
    for (int64_t s = e->offset[e->experts]; s < e->slots; s++) {
        for (int64_t j = 0; j < e->in; j++) matrix_set(&c.x, s, j, NAN);
        for (int64_t j = 0; j < e->out; j++) matrix_set(&c.y, s, j, NAN);
    }
    matrix_upload(&c.x), matrix_upload(&c.y);
    return c;
}

static void free_call(const Experts *e, Call *c) {
    device_free(check_device(), c->offset, (e->experts + 1) * (int64_t)sizeof(int32_t));
    matrix_free(&c->x), matrix_free(&c->w), matrix_free(&c->y);
}

static void run_twice(const Call *c, void (*run)(const OpCall *call), Matrix *result, const Matrix *before) {
    run(&c->call);
    matrix_download(result);
    expect_no_failure();
    Matrix first = matrix_copy(result);
    matrix_upload(before);
    run(&c->call);
    matrix_download(result);
    assert_memory_equal(first.host, result->host, (size_t)matrix_bytes(result));
    free(first.host);
}

static void expect_unused_are_zero(const Experts *e, const Matrix *m) {
    for (int64_t s = e->offset[e->experts]; s < e->slots; s++)
        for (int64_t j = 0; j < m->columns; j++) assert_true(matrix_get(m, s, j) == 0);
}

/* The three operations; `result` is what is written. */
static void check_forward(const Experts *e) {
    Call c = new_call(e, GEMM_BF16);
    Matrix result = matrix_new(GEMM_BF16, e->slots, e->out, e->out, false), before = matrix_copy(&result);
    set_input(&c.call, GROUPED_LINEAR_X, c.x.device, 2, (int64_t[]){e->slots, e->in});
    set_input(&c.call, GROUPED_LINEAR_W, c.w.device, 3, (int64_t[]){e->experts, e->out, e->in});
    set_output(&c.call, GROUPED_LINEAR_Y, result.device, 2, (int64_t[]){e->slots, e->out});
    set_input(&c.call, GROUPED_LINEAR_OFFSET, c.offset, 1, (int64_t[]){e->experts + 1});
    run_twice(&c, gpu_kernels[OP_grouped_linear]->run, &result, &before);
    for (int64_t i = 0; i < e->experts; i++)
        expect_gemm(&(Expected){.a = &c.x,
            .b = &c.w,
            .c = &result,
            .transpose_b = true,
            .m = e->offset[i + 1] - e->offset[i],
            .n = e->out,
            .k = e->in,
            .a_line = e->offset[i],
            .b_line = i * e->out,
            .c_row = e->offset[i],
            .alpha = 1});
    expect_unused_are_zero(e, &result);
    free(before.host), matrix_free(&result), free_call(e, &c);
}

static void check_grad_input(const Experts *e) {
    Call c = new_call(e, GEMM_BF16);
    Matrix result = matrix_new(GEMM_BF16, e->slots, e->in, e->in, false), before = matrix_copy(&result);
    set_input(&c.call, GROUPED_LINEAR_GRAD_INPUT_D_Y, c.y.device, 2, (int64_t[]){e->slots, e->out});
    set_input(&c.call, GROUPED_LINEAR_GRAD_INPUT_W, c.w.device, 3, (int64_t[]){e->experts, e->out, e->in});
    set_output(&c.call, GROUPED_LINEAR_GRAD_INPUT_D_X, result.device, 2, (int64_t[]){e->slots, e->in});
    set_input(&c.call, GROUPED_LINEAR_GRAD_INPUT_OFFSET, c.offset, 1, (int64_t[]){e->experts + 1});
    run_twice(&c, gpu_kernels[OP_grouped_linear_grad_input]->run, &result, &before);
    for (int64_t i = 0; i < e->experts; i++)
        expect_gemm(&(Expected){.a = &c.y,
            .b = &c.w,
            .c = &result,
            .m = e->offset[i + 1] - e->offset[i],
            .n = e->in,
            .k = e->out,
            .a_line = e->offset[i],
            .b_depth = i * e->out,
            .c_row = e->offset[i],
            .alpha = 1});
    expect_unused_are_zero(e, &result);
    free(before.host), matrix_free(&result), free_call(e, &c);
}

static void check_grad_weight(const Experts *e, bool overwrite) {
    Call c = new_call(e, GEMM_F32);
    if (overwrite) {
        for (int64_t i = 0; i < c.w.rows; i++)
            for (int64_t j = 0; j < c.w.ld; j++) matrix_set(&c.w, i, j, NAN);
        matrix_upload(&c.w);
    }
    Matrix before = matrix_copy(&c.w);
    c.call.overwrite = overwrite;
    set_input(&c.call, GROUPED_LINEAR_GRAD_WEIGHT_D_Y, c.y.device, 2, (int64_t[]){e->slots, e->out});
    set_input(&c.call, GROUPED_LINEAR_GRAD_WEIGHT_X, c.x.device, 2, (int64_t[]){e->slots, e->in});
    set_output(&c.call, GROUPED_LINEAR_GRAD_WEIGHT_D_W, c.w.device, 3, (int64_t[]){e->experts, e->out, e->in});
    set_input(&c.call, GROUPED_LINEAR_GRAD_WEIGHT_OFFSET, c.offset, 1, (int64_t[]){e->experts + 1});
    run_twice(&c, gpu_kernels[OP_grouped_linear_grad_weight]->run, &c.w, &before);
    for (int64_t i = 0; i < e->experts; i++)
        expect_gemm(&(Expected){.a = &c.y,
            .b = &c.x,
            .c = &c.w,
            .d = overwrite ? NULL : &before,
            .transpose_a = true,
            .m = e->out,
            .n = e->in,
            .k = e->offset[i + 1] - e->offset[i],
            .a_depth = e->offset[i],
            .b_depth = e->offset[i],
            .c_row = i * e->out,
            .alpha = 1,
            .beta = 1});
    free(before.host), free_call(e, &c);
}
static void check_grad_weight_added(const Experts *e) { check_grad_weight(e, false); }
static void check_grad_weight_begun(const Experts *e) { check_grad_weight(e, true); }

static const Experts expert_cases[] = {
    {.experts = 4,
        .slots = 340,
        .in = 72,
        .out = 40,
        .offset = (const int32_t[]){0, 0, 131, 132, 331}}, /* one without slots, one with a single one */
    {.experts = 3, .slots = 60, .in = 264, .out = 136, .offset = (const int32_t[]){0, 60, 60, 60}}, /* one has all */
    {.experts = 2, .slots = 9, .in = 16, .out = 24, .offset = (const int32_t[]){0, 0, 0}},          /* none has any */
    {.experts = 3, .slots = 50, .in = 33, .out = 21, .offset = (const int32_t[]){0, 7, 30, 49}},    /* odd */
};

/* Several rounds of tiles for every processor; experts' last rows fill more than half a tile, less, nothing, or are
 * all they have. Too much for an emulator. */
static const Experts many_tiles = {
    .experts = 5, .slots = 6000, .in = 264, .out = 2048, .offset = (const int32_t[]){0, 1000, 2300, 2300, 2364, 5900}};

static void check_experts(void (*check)(const Experts *e)) {
    check_gpu();
    for (size_t i = 0; i < sizeof expert_cases / sizeof *expert_cases; i++) check(&expert_cases[i]);
    if (device_info(check_device())->kind == DEVICE_CUDA) check(&many_tiles);
}
static void gemms_of_experts_match_a_loop(void **state) { (void)state, check_experts(check_forward); }
static void input_gradients_of_experts_match_a_loop(void **state) { (void)state, check_experts(check_grad_input); }
static void weight_gradients_of_experts_are_added_to(void **state) { (void)state, check_experts(check_grad_weight_added); }
static void weight_gradients_of_experts_begin_without_what_was_there(void **state) { (void)state, check_experts(check_grad_weight_begun); }

/* -- Adding to bf16 ------------------------------------------------------------------------------------------------ */

/* The same elements in fp32. */
static Matrix matrix_as_fp32(const Matrix *m) {
    Matrix wide = matrix_new(GEMM_F32, m->rows, m->columns, m->ld, false);
    for (int64_t i = 0; i < m->rows; i++)
        for (int64_t j = 0; j < m->columns; j++) matrix_set(&wide, i, j, matrix_get(m, i, j));
    matrix_upload(&wide);
    return wide;
}

/* What was made in bf16 is what was made in fp32, rounded: so it was rounded once. */
static void expect_rounded(Matrix *narrow, Matrix *wide) {
    matrix_download(narrow), matrix_download(wide);
    expect_no_failure();
    Matrix rounded = matrix_copy(narrow);
    for (int64_t i = 0; i < wide->rows; i++)
        for (int64_t j = 0; j < wide->ld; j++) matrix_set(&rounded, i, j, matrix_get(wide, i, j));
    assert_memory_equal(narrow->host, rounded.host, (size_t)matrix_bytes(narrow));
    free(rounded.host);
}

/* C += A B in bf16 and in fp32, from the same C, where `run` makes one or more GEMMs of which `first` is the first. */
static void check_rounded_once(Gemm first, Matrix *c, void (*run)(const Gemm *first, const void *more), const void *more) {
    Matrix wide = matrix_as_fp32(c);
    first.input = GEMM_BF16, first.accumulate = true;
    first.output = GEMM_BF16, first.c = c->device, first.ldc = c->ld;
    run(&first, more);
    first.output = GEMM_F32, first.c = wide.device;
    run(&first, more);
    expect_rounded(c, &wide);
    matrix_free(&wide);
}

static void run_one(const Gemm *first, const void *more) { (void)more, gpu_gemm(check_device(), first); }
static void run_batch_in_place(const Gemm *first, const void *more) {
    GemmBatch batch = *(const GemmBatch *)more;
    batch.first = *first, batch.first.accumulate = false, batch.d = first->c;
    gpu_gemm_batch(check_device(), &batch);
}
static void run_experts(const Gemm *first, const void *more) {
    GemmGrouped grouped = *(const GemmGrouped *)more;
    grouped.first = *first;
    gpu_gemm_grouped(check_device(), &grouped);
}

static void a_gemm_is_added_to_bf16_and_rounded_once(void **state) {
    (void)state;
    check_gpu();
    static const Size sizes[] = {{136, 264, 72, true}, {65, 31, 17, false}, {24, 40, 0, true}};
    for (int i = 0; i < 12; i++) {
        const Size *s = &sizes[i / 4];
        bool transpose_a = i & 1, transpose_b = i & 2;
        Matrix a = matrix_new(GEMM_BF16, transpose_a ? s->k : s->m, transpose_a ? s->m : s->k, transpose_a ? s->m : s->k, true);
        Matrix b = matrix_new(GEMM_BF16, transpose_b ? s->n : s->k, transpose_b ? s->k : s->n, transpose_b ? s->k : s->n, true);
        Matrix c = matrix_new(GEMM_BF16, s->m, s->n, padded(s->n, s->padded), true);
        Gemm gemm = {.transpose_a = transpose_a,
            .transpose_b = transpose_b,
            .m = s->m,
            .n = s->n,
            .k = s->k,
            .a = a.device,
            .lda = a.ld,
            .b = b.device,
            .ldb = b.ld};
        check_rounded_once(gemm, &c, run_one, NULL);
        matrix_free(&a), matrix_free(&b), matrix_free(&c);
    }
}

static void a_batch_is_added_to_bf16_and_rounded_once(void **state) {
    (void)state;
    check_gpu();
    enum { COUNT = 3, M = 136, N = 72, K = 40 };
    Matrix a = matrix_new(GEMM_BF16, COUNT * M, K, K, true), b = matrix_new(GEMM_BF16, COUNT * K, N, N, true),
           c = matrix_new(GEMM_BF16, COUNT * M, N, N, true);
    GemmBatch batch = {.count = COUNT, .stride_a = M * K, .stride_b = K * N, .stride_c = M * N, .alpha = 0.75, .beta = -1.25};
    check_rounded_once((Gemm){.m = M, .n = N, .k = K, .a = a.device, .lda = K, .b = b.device, .ldb = N}, &c, run_batch_in_place, &batch);
    matrix_free(&a), matrix_free(&b), matrix_free(&c);
}

/* Outputs, then gradients of weights. */
static void check_experts_rounded_once(const Experts *e) {
    Call c = new_call(e, GEMM_BF16);
    Matrix y = matrix_new(GEMM_BF16, e->slots, e->out, e->out, true), g = matrix_new(GEMM_BF16, e->experts * e->out, e->in, e->in, true);
    GemmGrouped grouped = {.offset = c.offset, .experts = e->experts};
    Gemm forward = {
        .transpose_b = true, .m = e->slots, .n = e->out, .k = e->in, .a = c.x.device, .lda = e->in, .b = c.w.device, .ldb = e->in};
    Gemm grad_weight = {
        .transpose_a = true, .m = e->out, .n = e->in, .k = e->slots, .a = c.y.device, .lda = e->out, .b = c.x.device, .ldb = e->in};
    check_rounded_once(forward, &y, run_experts, &grouped);
    grouped.slots_are_depth = true;
    check_rounded_once(grad_weight, &g, run_experts, &grouped);
    matrix_free(&y), matrix_free(&g), free_call(e, &c);
}
static void gemms_of_experts_are_added_to_bf16_and_rounded_once(void **state) { (void)state, check_experts(check_experts_rounded_once); }

/* -- Two products -------------------------------------------------------------------------------------------------- */

typedef struct TwoSize {
    int64_t m, n, k, rank;
    int count;
    GemmPart parts[GEMM_MOST_PARTS];
} TwoSize;

/* The second product of an element; its depth is that of the part which has the column. */
static double second_product(const TwoSize *s, bool transpose_b, const Matrix *a, const Matrix *b, int64_t i, int64_t j) {
    int64_t line = 0;
    double sum = 0;
    for (int part = 0; part < s->count; line += s->parts[part++].count) {
        int64_t column = j - s->parts[part].first;
        for (int64_t p = 0; p < s->rank && column >= 0 && column < s->parts[part].count; p++)
            sum += matrix_get(a, i, part * s->rank + p) * line_get(b, !transpose_b, line + column, p);
    }
    return sum;
}

static Matrix two_operand(bool transposed, int64_t lines, int64_t depth) {
    return transposed ? matrix_new(GEMM_BF16, lines, depth, padded(depth, true), true)
                      : matrix_new(GEMM_BF16, depth, lines, padded(lines, true), true);
}

static void expect_two(const TwoSize *s, bool transpose_b, const Matrix operands[4], const Matrix *bias, const Matrix *c) {
    for (int at = 0; at < SAMPLES; at++) {
        int64_t i = random_below(s->m), j = random_below(s->n);
        double sum = bias ? matrix_get(bias, 0, j) : 0;
        for (int64_t p = 0; p < s->k; p++) sum += matrix_get(&operands[0], i, p) * line_get(&operands[1], !transpose_b, j, p);
        sum += second_product(s, transpose_b, &operands[2], &operands[3], i, j);
        double got = matrix_get(c, i, j),
               tolerance = (double)(s->k + s->rank + 4) / (1 << 24) * (double)(s->k + s->rank) + 1.01 / 256 * fabs(sum);
        if (!(fabs(got - sum) <= tolerance))
            fail_msg("m %ld n %ld k %ld rank %ld: C[%ld][%ld] is %.9g, expected %.9g +- %.2g", (long)s->m, (long)s->n, (long)s->k,
                (long)s->rank, (long)i, (long)j, got, sum, tolerance);
    }
}

/* False where there is no kernel: then C is as it was. */
static bool check_two(const TwoSize *s, bool transpose_b, bool biased) {
    int64_t lines = 0;
    for (int i = 0; i < s->count; i++) lines += s->parts[i].count;
    Matrix operands[] = {two_operand(true, s->m, s->k), two_operand(transpose_b, s->n, s->k), two_operand(true, s->m, s->count * s->rank),
        two_operand(transpose_b, lines, s->rank)};
    Matrix bias = matrix_new(GEMM_F32, 1, s->n, s->n, true), c = matrix_new(GEMM_BF16, s->m, s->n, padded(s->n, true), false),
           before = matrix_copy(&c);
    const Matrix *a = &operands[0], *b = &operands[1], *a2 = &operands[2], *b2 = &operands[3];
    Gemm gemm = {.transpose_b = transpose_b,
        .input = GEMM_BF16,
        .output = GEMM_BF16,
        .m = s->m,
        .n = s->n,
        .k = s->k,
        .a = a->device,
        .lda = a->ld,
        .b = b->device,
        .ldb = b->ld,
        .c = c.device,
        .ldc = c.ld,
        .bias = biased ? bias.device : NULL};
    GemmSecond second = {.a = a2->device, .b = b2->device, .lda = a2->ld, .ldb = b2->ld, .k = s->rank, .count = s->count};
    memcpy(second.parts, s->parts, sizeof second.parts);
    bool done = gpu_gemm_two(check_device(), &gemm, &second);
    matrix_download(&c);
    expect_no_failure();
    if (done) {
        expect_two(s, transpose_b, operands, biased ? &bias : NULL, &c);
        expect_gaps_unchanged(&c);
        Matrix first = matrix_copy(&c);
        matrix_upload(&before);
        gpu_gemm_two(check_device(), &gemm, &second);
        matrix_download(&c);
        assert_memory_equal(c.host, first.host, (size_t)matrix_bytes(&c));
        free(first.host);
    } else {
        assert_memory_equal(c.host, before.host, (size_t)matrix_bytes(&c));
    }
    free(before.host);
    for (int i = 0; i < 4; i++) matrix_free(&operands[i]);
    matrix_free(&bias), matrix_free(&c);
    return done;
}

/* One part of all columns; three of adapters of depth 16, and of more than a stage; gaps between parts; tiles that are not full. */
static void two_products_match_a_loop(void **state) {
    (void)state;
    check_gpu();
    static const TwoSize sizes[] = {
        {136, 264, 72, 16, 1, {{0, 264}}},
        {8, 8, 8, 8, 1, {{0, 8}}},
        {392, 776, 200, 16, 3, {{0, 256}, {256, 256}, {512, 264}}},
        {200, 1288, 136, 72, 2, {{256, 512}, {1024, 264}}},
        {1544, 2832, 136, 48, 1, {{0, 2832}}},
        {4608, 3072, 256, 128, 1, {{0, 3072}}},
    };
    bool hopper = !strcmp(device_info(check_device())->target, "sm_90a");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int form = 0; form < 4; form++) assert_true(check_two(&sizes[i], form & 1, form & 2) == hopper);
}

static void two_products_whose_parts_cut_tiles_are_left_alone(void **state) {
    (void)state;
    check_gpu();
    assert_false(check_two(&(TwoSize){64, 512, 64, 16, 2, {{0, 128}, {128, 384}}}, true, false));
    assert_false(check_two(&(TwoSize){64, 512, 64, 16, 1, {{0, 136}}}, true, false));
}

/* -- Exact rows ---------------------------------------------------------------------------------------------------- */

/* With device_set_exact a row of C = A B^T has the same bits among any number of rows, though tiles differ. */
static void expect_exact_rows(int64_t n, GemmType output, bool biased, bool added) {
    enum { ROWS = 700, DEPTH = 520 }; /* more stages than a ring of any kernel has */
    static const int64_t rows[] = {ROWS, 1, 40, 64, 65, 200, 300};
    Matrix a = matrix_new(GEMM_BF16, ROWS, DEPTH, DEPTH, true), b = matrix_new(GEMM_BF16, n, DEPTH, DEPTH, true);
    Matrix bias = matrix_new(GEMM_F32, 1, n, n, true), before = matrix_new(output, ROWS, n, n, true),
           c = matrix_new(output, ROWS, n, n, false);
    Gemm gemm = {.transpose_b = true,
        .input = GEMM_BF16,
        .output = output,
        .n = n,
        .k = DEPTH,
        .a = a.device,
        .lda = DEPTH,
        .b = b.device,
        .ldb = DEPTH,
        .c = c.device,
        .ldc = n,
        .bias = biased ? (const float *)bias.device : NULL,
        .accumulate = added};
    SCOPED_FREE char *expected = memory_allocate((size_t)matrix_bytes(&c));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        device_upload(check_device(), c.device, before.host, matrix_bytes(&c));
        gemm.m = rows[i];
        gpu_gemm(check_device(), &gemm);
        matrix_download(&c);
        size_t bytes = (size_t)(rows[i] * n * element_bytes(output));
        if (i == 0) memcpy(expected, c.host, bytes);
        if (memcmp(c.host, expected, bytes) != 0) fail_msg("%lld rows of %lld columns differ", (long long)rows[i], (long long)n);
    }
    matrix_free(&a), matrix_free(&b), matrix_free(&bias), matrix_free(&before), matrix_free(&c);
}

static void exact_rows_have_the_same_bits_among_any_rows(void **state) {
    (void)state;
    const int64_t columns[] = {8, 72, 264, 4224, 8448}; /* the last is cut into 64, 128 and 256 columns on an H200 */
    if (!check_device()) skip();
    bool emulated = device_info(check_device())->emulated;
    device_set_exact(check_device(), true);
    for (int i = 0; i < (emulated ? 2 : 5); i++) {
        expect_exact_rows(columns[i], GEMM_BF16, false, false);
        expect_exact_rows(columns[i], GEMM_BF16, true, true);
        expect_exact_rows(columns[i], GEMM_F32, true, true);
    }
    if (!emulated) check_experts(check_forward);
    device_set_exact(check_device(), false);
}

/* -- Speed --------------------------------------------------------------------------------------------------------- */

/* Random numbers of one sign or the other: what the clock does under load depends on the data. */
static void *speed_memory(int64_t elements, bool random) {
    Error error = {0};
    void *memory = device_allocate(check_device(), elements * 2, &error);
    uint16_t *values = random ? memory_allocate((size_t)elements * 2) : NULL;
    if (!memory) fail_msg("%s", error.message);
    for (int64_t i = 0; values && i < elements; i++) values[i] = (uint16_t)(0x3f00 + (i * 2654435761u >> 13 & 0x80ff));
    if (values) device_upload(check_device(), memory, values, elements * 2);
    free(values);
    return memory;
}

static void run_gemm(const void *what) { gpu_gemm(check_device(), what); }
static void run_vendors(const void *what) { device_gemm(check_device(), what); }
static void run_batch(const void *what) { gpu_gemm_batch(check_device(), what); }
static void run_grouped(const void *what) { gpu_gemm_grouped(check_device(), what); }

static void print_speed(const char *name, const Gemm *p, double seconds, double gemms) {
    double flops = 2.0 * p->m * p->n * p->k * gemms;
    print_message("%-22s %6ld x %6ld x %6ld %s%s  %8.1f us  %7.1f TFLOP/s\n", name, (long)p->m, (long)p->n, (long)p->k,
        p->transpose_a ? "T" : "N", p->transpose_b ? "T" : "N", seconds * 1e6, flops / seconds / 1e12);
}

/* As a linear layer, and its two gradients. */
static void speed_of_layer(int64_t rows, int64_t out, int64_t in) {
    void *x = speed_memory(rows * in, true), *w = speed_memory(out * in, true), *y = speed_memory(rows * out, true),
         *g = speed_memory(2 * out * in, false);
    Gemm forms[] = {
        {.transpose_b = true, .m = rows, .n = out, .k = in, .a = x, .lda = in, .b = w, .ldb = in, .c = y, .ldc = out, .output = GEMM_BF16},
        {.m = rows, .n = in, .k = out, .a = y, .lda = out, .b = w, .ldb = in, .c = x, .ldc = in, .output = GEMM_BF16},
        {.transpose_a = true,
            .m = out,
            .n = in,
            .k = rows,
            .a = y,
            .lda = out,
            .b = x,
            .ldb = in,
            .c = g,
            .ldc = in,
            .output = GEMM_F32,
            .accumulate = true},
    };
    for (int i = 0; i < 3; i++) {
        forms[i].input = GEMM_BF16;
        print_speed("linear", &forms[i], check_median_seconds(run_gemm, &forms[i]), 1);
        print_speed("  the vendor's", &forms[i], check_median_seconds(run_vendors, &forms[i]), 1);
    }
    device_free(check_device(), x, rows * in * 2), device_free(check_device(), w, out * in * 2);
    device_free(check_device(), y, rows * out * 2), device_free(check_device(), g, out * in * 4);
}

/* ZAYA1's experts: shares of 16,384 slots between a half and one and a half of the mean. */
static void speed_of_experts(int64_t out, int64_t in) {
    enum { EXPERTS = 16, SLOTS = 16384 };
    int32_t offset[EXPERTS + 1] = {0};
    for (int i = 0; i < EXPERTS; i++)
        offset[i + 1] = i == EXPERTS - 1 ? SLOTS : offset[i] + SLOTS / EXPERTS / 2 + i * 5 % EXPERTS * (SLOTS / EXPERTS) / (EXPERTS - 1);
    Experts e = {.experts = EXPERTS, .offset = offset};
    int32_t *device_offset = upload_offsets(&e);
    int64_t weights = EXPERTS * out * in;
    void *x = speed_memory(SLOTS * in, true), *w = speed_memory(weights, true), *y = speed_memory(SLOTS * out, true),
         *g = speed_memory(2 * weights, false);
    GemmGrouped forms[6] = {
        {.first = {.transpose_b = true,
             .m = SLOTS,
             .n = out,
             .k = in,
             .a = x,
             .lda = in,
             .b = w,
             .ldb = in,
             .c = y,
             .ldc = out,
             .output = GEMM_BF16}},
        {.first = {.m = SLOTS, .n = in, .k = out, .a = y, .lda = out, .b = w, .ldb = in, .c = x, .ldc = in, .output = GEMM_BF16}},
        {.first = {.transpose_a = true,
             .m = out,
             .n = in,
             .k = SLOTS,
             .a = y,
             .lda = out,
             .b = x,
             .ldb = in,
             .c = g,
             .ldc = in,
             .output = GEMM_F32,
             .accumulate = true},
            .slots_are_depth = true},
    };
    static const char *const names[] = {
        "16 experts", "16 experts", "16 experts, fp32 +=", "16 experts, fp32", "16 experts, bf16 +=", "16 experts, bf16"};
    forms[3] = forms[4] = forms[5] = forms[2];
    forms[3].first.accumulate = forms[5].first.accumulate = false, forms[4].first.output = forms[5].first.output = GEMM_BF16;
    for (int i = 0; i < 6; i++) {
        forms[i].first.input = GEMM_BF16, forms[i].offset = device_offset, forms[i].experts = EXPERTS;
        print_speed(names[i], &forms[i].first, check_median_seconds(run_grouped, &forms[i]), 1);
    }
    device_free(check_device(), x, SLOTS * in * 2), device_free(check_device(), w, weights * 2),
        device_free(check_device(), device_offset, sizeof offset);
    device_free(check_device(), y, SLOTS * out * 2), device_free(check_device(), g, weights * 4);
}

static void speed_of_symmetric(int64_t order, int64_t count) {
    void *x = speed_memory(count * order * order, true), *c = speed_memory(count * order * order, false);
    Gemm first = {.transpose_b = true,
        .input = GEMM_BF16,
        .output = GEMM_BF16,
        .m = order,
        .n = order,
        .k = order,
        .a = x,
        .lda = order,
        .b = x,
        .ldb = order,
        .c = c,
        .ldc = order};
    GemmBatch batch = {.first = first,
        .count = count,
        .stride_a = order * order,
        .stride_b = order * order,
        .stride_c = order * order,
        .alpha = 1,
        .symmetric = true};
    print_speed("symmetric (as whole)", &first, check_median_seconds(run_batch, &batch), (double)count);
    device_free(check_device(), x, count * order * order * 2), device_free(check_device(), c, count * order * order * 2);
}

static void run_two(const void *what) {
    const Gemm *const *gemms = what;
    const GemmSecond *second = (const GemmSecond *)gemms[1];
    gpu_gemm_two(check_device(), gemms[0], second);
}
/* As adapters are added where there is no kernel for both. */
static void run_one_after_the_other(const void *what) {
    const Gemm *const *gemms = what;
    const GemmSecond *second = (const GemmSecond *)gemms[1];
    device_gemm(check_device(), gemms[0]);
    for (int64_t i = 0, line = 0; i < second->count; line += second->parts[i++].count) {
        Gemm part = *gemms[0];
        part.n = second->parts[i].count, part.k = second->k, part.bias = NULL, part.accumulate = true;
        part.a = (const uint16_t *)second->a + i * second->k, part.lda = second->lda;
        part.b = (const uint16_t *)second->b + line * (part.transpose_b ? second->ldb : 1), part.ldb = second->ldb;
        part.c = (uint16_t *)part.c + second->parts[i].first;
        device_gemm(check_device(), &part);
    }
}

/* A frozen layer of `count` equal parts with adapters: forward, and the gradient of its input. Beside them the products that its
 * adapters have besides. */
static void speed_of_adapted(int64_t rows, int64_t out, int64_t in, int count, int64_t rank) {
    int64_t width = count * rank;
    void *x = speed_memory(rows * in, true), *w = speed_memory(out * in, true), *y = speed_memory(rows * out, true),
         *u = speed_memory(rows * width, true), *a = speed_memory(width * in, true), *b = speed_memory(out * rank, true),
         *g = speed_memory(2 * (out > in ? out : in) * width, false), *bias = speed_memory(2 * out, false);
    Gemm forms[] = {
        {.transpose_b = true, .m = rows, .n = out, .k = in, .a = x, .lda = in, .b = w, .ldb = in, .c = y, .ldc = out, .bias = bias},
        {.m = rows, .n = in, .k = out, .a = y, .lda = out, .b = w, .ldb = in, .c = x, .ldc = in},
    };
    GemmSecond seconds[] = {{.a = u, .b = b, .lda = width, .ldb = rank, .k = rank, .count = count},
        {.a = u, .b = a, .lda = width, .ldb = in, .k = width, .count = 1, .parts = {{0, in}}}};
    for (int i = 0; i < count; i++) seconds[0].parts[i] = (GemmPart){out / count * i, out / count};
    for (int i = 0; i < 2; i++) {
        forms[i].input = forms[i].output = GEMM_BF16;
        const void *both[] = {&forms[i], &seconds[i]};
        print_speed("frozen layer alone", &forms[i], check_median_seconds(run_vendors, &forms[i]), 1);
        print_speed("then its adapters", &forms[i], check_median_seconds(run_one_after_the_other, both), 1);
        if (gpu_gemm_two(check_device(), &forms[i], &seconds[i]))
            print_speed("both at once", &forms[i], check_median_seconds(run_two, both), 1);
    }
    Gemm narrow[] = {
        {.transpose_b = true, .m = rows, .n = width, .k = in, .a = x, .lda = in, .b = a, .ldb = in, .c = u, .ldc = width},
        {.m = rows, .n = rank, .k = out / count, .a = y, .lda = out, .b = b, .ldb = rank, .c = u, .ldc = width},
        {.transpose_a = true, .m = width, .n = in, .k = rows, .a = u, .lda = width, .b = x, .ldb = in, .c = g, .ldc = in},
        {.transpose_a = true, .m = out / count, .n = rank, .k = rows, .a = y, .lda = out, .b = u, .ldb = width, .c = g, .ldc = rank},
    };
    static const char *const names[] = {"u = x a^T", "d_u = d_y b", "d_a = d_u^T x", "d_b = d_y^T u"};
    for (int i = 0; i < 4; i++) {
        narrow[i].input = narrow[i].output = GEMM_BF16;
        double seconds_of = check_median_seconds(run_vendors, &narrow[i]);
        print_speed(names[i], &narrow[i], seconds_of, 1);
        print_message("%-22s %8.0f GB/s\n", "",
            2.0 * (double)(narrow[i].m * narrow[i].k + narrow[i].k * narrow[i].n + narrow[i].m * narrow[i].n) / seconds_of / 1e9);
    }
    void *all[] = {x, w, y, u, a, b, g, bias};
    int64_t elements[] = {
        rows * in, out * in, rows * out, rows * width, width * in, out * rank, 2 * (out > in ? out : in) * width, 2 * out};
    for (int i = 0; i < 8; i++) device_free(check_device(), all[i], elements[i] * 2);
}

/* Adapters of FLUX.1 at 1024 x 1024: of a block of one stream, then of the MLP of images. */
static void speed_of_adapters(void **state) {
    (void)state;
    check_gpu();
    if (!getenv("SMELT_TEST_SPEED")) skip();
    speed_of_adapted(4608, 9216, 3072, 3, 16);
    speed_of_adapted(4608, 12288, 3072, 1, 16);
    speed_of_adapted(4608, 3072, 15360, 1, 16);
    speed_of_adapted(4096, 3072, 3072, 1, 16);
    speed_of_adapted(512, 12288, 3072, 1, 16);
    expect_no_failure();
}

static void speed(void **state) {
    (void)state;
    check_gpu();
    if (!getenv("SMELT_TEST_SPEED")) skip();
    speed_of_layer(8192, 8192, 8192);
    speed_of_layer(16384, 4096, 2048);
    speed_of_layer(16384, 2048, 8192);
    speed_of_experts(4096, 2048);
    speed_of_experts(2048, 2048);
    speed_of_symmetric(2048, 16);
    expect_no_failure();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemms_of_aligned_sizes_match_a_loop),
        cmocka_unit_test(gemms_of_odd_sizes_match_a_loop),
        cmocka_unit_test(narrow_gemms_match_a_loop),
        cmocka_unit_test(gemms_of_one_row_match_a_loop),
        cmocka_unit_test(one_row_is_for_the_kernel_that_reads_whole_lines),
        cmocka_unit_test(a_gemm_of_many_tiles_matches_a_loop),
        cmocka_unit_test(gemms_of_large_tiles_match_a_loop),
        cmocka_unit_test(a_gemm_of_many_large_tiles_matches_a_loop),
        cmocka_unit_test(a_row_of_nan_stays_nan),
        cmocka_unit_test(a_gemm_without_depth_is_zero_or_the_bias),
        cmocka_unit_test(a_gemm_without_rows_or_columns_touches_nothing),
        cmocka_unit_test(gemms_of_a_batch_are_scaled_and_added_to_d),
        cmocka_unit_test(symmetric_gemms_are_whole_and_symmetric_to_the_bit),
        cmocka_unit_test(gemms_of_experts_match_a_loop),
        cmocka_unit_test(input_gradients_of_experts_match_a_loop),
        cmocka_unit_test(weight_gradients_of_experts_are_added_to),
        cmocka_unit_test(weight_gradients_of_experts_begin_without_what_was_there),
        cmocka_unit_test(a_gemm_is_added_to_bf16_and_rounded_once),
        cmocka_unit_test(a_batch_is_added_to_bf16_and_rounded_once),
        cmocka_unit_test(gemms_of_experts_are_added_to_bf16_and_rounded_once),
        cmocka_unit_test(two_products_match_a_loop),
        cmocka_unit_test(two_products_whose_parts_cut_tiles_are_left_alone),
        cmocka_unit_test(exact_rows_have_the_same_bits_among_any_rows),
        cmocka_unit_test(speed_of_adapters),
        cmocka_unit_test(speed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
