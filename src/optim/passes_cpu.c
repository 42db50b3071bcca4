/* The optimizer's passes over memory on the CPU; compiled once per precision and instruction set
 * (Makefile: VARIANTS). T is the COMPUTE type; W is the WIDE type and the type of all arithmetic.
 * The table of variants is in cpu_loops.c. Owns no memory. */
#include "optim/pass_cpu_internal.h"

enum { MIRROR_SIDE = 16 }; /* rows and columns of a mirrored tile */

/* Computes eight sums side by side, one per lane of a vector of doubles. */
static PreciseSum sum_squares(const PassRates *rates, const PassMemory *memory) {
    enum { LANES = 8 };
    (void)rates;
    const W *g = memory->gradient;
    int64_t count = memory->count, whole = count / LANES * LANES;
    double high[LANES] = {0}, low[LANES] = {0};
    for (int64_t i = 0; i < whole; i += LANES)
#pragma omp simd
        for (int lane = 0; lane < LANES; lane++) {
            PreciseSum sum = {high[lane], low[lane]};
            precise_add(&sum, (double)g[i + lane] * (double)g[i + lane]);
            high[lane] = sum.high, low[lane] = sum.low;
        }
    PreciseSum sum = {0};
    for (int lane = 0; lane < LANES; lane++) precise_join(&sum, (PreciseSum){high[lane], low[lane]});
    for (int64_t i = whole; i < count; i++) precise_add(&sum, (double)g[i] * (double)g[i]);
    return sum;
}

static PreciseSum update_momentum(const PassRates *rates, const PassMemory *memory) {
    const W *restrict g = memory->gradient;
    W *restrict m = memory->momentum, d = (W)rates->decay, s = (W)rates->scale;
    int64_t count = memory->count;
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
        W scaled = s * g[i];
        m[i] = d * m[i] + scaled;
        double u = (double)(scaled + d * m[i]);
        sum += u * u;
    }
    return (PreciseSum){.high = sum};
}

static PreciseSum load_direction(const PassRates *rates, const PassMemory *memory) {
    const W *restrict g = memory->gradient, *restrict m = memory->momentum;
    T *restrict x = memory->x;
    W d = (W)rates->decay, s = (W)rates->scale, f = (W)rates->factor;
    int64_t count = memory->count;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) x[i] = to_compute((s * g[i] + d * m[i]) * f);
    return (PreciseSum){0};
}

static void polynomial(void *gram, const void *square, int64_t order, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i++) {
        T *restrict row = (T *)gram + i * order;
        const W *restrict square_row = (const W *)square + i * order;
        W diagonal = (W)NEWTON_SCHULZ_A + (W)NEWTON_SCHULZ_B * to_wide(row[i]) + (W)NEWTON_SCHULZ_C * square_row[i];
#pragma omp simd
        for (int64_t j = 0; j < i; j++) row[j] = to_compute((W)NEWTON_SCHULZ_B * to_wide(row[j]) + (W)NEWTON_SCHULZ_C * square_row[j]);
        row[i] = to_compute(diagonal);
    }
}

/* Copies row[j] to column[j * order]. Whole tiles have a constant count, which compilers unroll:
 * otherwise the speed of such a short loop depends on the alignment of its code. */
static inline void mirror_row(const T *row, T *column, int64_t order, int64_t count) {
    if (count >= MIRROR_SIDE)
        for (int64_t j = 0; j < MIRROR_SIDE; j++) column[j * order] = row[j];
    else
        for (int64_t j = 0; j < count; j++) column[j * order] = row[j];
}

/* Works tile by tile, so that the cache lines of a tile's rows and of its mirror image stay in the
 * L1 cache. */
static void mirror(void *gram, int64_t order, int64_t first, int64_t end) {
    T *matrix = gram;
    for (int64_t row = first; row < end; row += MIRROR_SIDE)
        for (int64_t column = 0; column < int_min(row + MIRROR_SIDE, end); column += MIRROR_SIDE)
            for (int64_t i = row; i < int_min(row + MIRROR_SIDE, end); i++)
                mirror_row(matrix + i * order + column, matrix + column * order + i, order, i - column);
}

static PreciseSum apply_direction(const PassRates *rates, const PassMemory *memory) {
    W *restrict p = memory->master, k = (W)rates->keep, r = (W)rates->rate;
    const T *restrict x = memory->x;
    int64_t count = memory->count;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) p[i] = k * p[i] - r * to_wide(x[i]);
    cast_weights(count, p, memory->weights);
    return (PreciseSum){0};
}

/* The updates of optimizers of elements. */
#define DECLARE_ELEMENTS(name) PreciseSum KERNEL(update_##name)(const PassRates *rates, const PassMemory *memory);
#define DECLARE_MATRICES(name)
#define OPTIMIZER(name, kind) DECLARE_##kind(name)
#include "config/optimizer_list.h"
#undef OPTIMIZER

extern const OptimKernels KERNEL(optim);
const OptimKernels KERNEL(optim) = {.compute = KERNEL_GEMM_COMPUTE,
    .wide = KERNEL_GEMM_WIDE,
    .pass =
        {
            [PASS_SQUARES] = sum_squares,
            [PASS_MOMENTUM] = update_momentum,
            [PASS_DIRECTION] = load_direction,
            [PASS_APPLY] = apply_direction,
#define ROW_ELEMENTS(name) [PASS_UPDATE + OPTIMIZER_##name] = KERNEL(update_##name),
#define ROW_MATRICES(name)
#define OPTIMIZER(name, kind) ROW_##kind(name)
#include "config/optimizer_list.h"
#undef OPTIMIZER
        },
    .polynomial = polynomial,
    .mirror = mirror};
