/* The optimizer's passes on a GPU, with one block of OPTIM_THREADS for each chunk: what src/optim calls on the host, and below it what the kernels
 * of squares.c, adamw.c and muon.c share. The formulas are those of optim/kernel_template.h, in fp32, with sums of squares in double. Owns no
 * memory: all pointers are device memory; lists of chunks are parts of the one that optimizer_create has put there. */
#ifndef SMELT_KERNEL_OPTIM_H
#define SMELT_KERNEL_OPTIM_H

#include "kernel/gpu.h"
#include "optim/chunk.h"

enum { OPTIM_THREADS = 256 };

/* fp32 but for the weights; `variance` has its own offsets (Chunk.inner), the others share theirs. */
typedef struct OptimArenas {
    float GLOBAL *master;
    bf16 GLOBAL *weights;
    const float GLOBAL *gradients;
    float GLOBAL *momentum, *variance;
} OptimArenas;

/* What Muon does before and after the products with a group of `matrices` of one shape, cut into `chunks_each` chunks each. */
typedef struct MuonGroup {
    OptimArenas arenas;
    const Chunk GLOBAL *chunks; /* of these matrices alone */
    double GLOBAL *partials;    /* one for each chunk */
    double GLOBAL *norms;       /* one for each matrix */
    bf16 GLOBAL *x;             /* the first matrix's direction, 16-byte aligned */
    int64_t stride;             /* elements from one direction to the next, a multiple of 8 */
    int64_t matrices, chunks_each;
    int32_t first_matrix;       /* index in the list of matrices */
    float momentum, scale;      /* what the momentum keeps; what gradients are multiplied by */
    float keep, rate;           /* p = keep p - rate x */
} MuonGroup;

#ifndef GPU_DEVICE

#include "device/device.h"

/* *norm = sqrt of the sum of squares of `gradients` over `count` chunks. `partials` takes a double for each chunk. */
void gpu_gradient_norm(Device *device, const Chunk *chunks, int64_t count, const float *gradients, double *partials, double *norm);
/* norms[i] = sqrt of the sum of partials[i * each .. (i + 1) * each - 1], for i < count. */
void gpu_norms_of_partials(Device *device, int64_t each, int64_t count, const double *partials, double *norms);

/* The whole AdamW update of `count` chunks, `rates` by RateGroup. */
void gpu_adamw(Device *device, const Chunk *chunks, int64_t count, const OptimArenas *arenas, const AdamwRates rates[RATES_COUNT]);

/* m = momentum m + scale g, and x = u / |u| of u = scale g + momentum m, matrix by matrix. */
void gpu_muon_load(Device *device, const MuonGroup *group);
/* Adds `identity` times I to `count` matrices linear gram + quadratic gram^2, which stand in `square` in bf16. Diagonals are made anew from the rows
 * of gram, so that they too are rounded once. Both are order x order, matrices `stride` elements apart. */
void gpu_muon_add_identity(Device *device, const bf16 *gram, bf16 *square, int64_t order, int64_t count, int64_t stride, double identity,
                           double linear, double quadratic);
/* p = keep p - rate x, weights included. */
void gpu_muon_apply(Device *device, const MuonGroup *group);

#else

#include "kernel/vector.h"

/* A thread walks its chunk four elements at a time (vector.h's unit) where the chunk starts at a multiple of four, as most do; what is left goes one
 * by one. How many elements go by fours: */
INLINE int64_t chunk_fours(const Chunk GLOBAL *chunk) { return (chunk->offset | chunk->inner) % 4 == 0 ? chunk->count / 4 * 4 : 0; }

enum { OPTIM_STEP = 4 * OPTIM_THREADS }; /* elements that a block walks by fours at once */

INLINE double add_squares(double sum, f32x4 x) {
    UNROLL for (int i = 0; i < 4; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

/* The sum over the block, in thread 0: lanes by a fixed tree, then waves in order. Once per kernel. */
INLINE double block_sum_double(double x) {
    static SHARED double sums[OPTIM_THREADS / WAVE];
    UNROLL for (int mask = WAVE / 2; mask > 0; mask /= 2) {
        u32x2 words = __builtin_bit_cast(u32x2, x);
        words = (u32x2){shuffle(words.x, lane_id() ^ mask), shuffle(words.y, lane_id() ^ mask)};
        x += __builtin_bit_cast(double, words);
    }
    if (lane_id() == 0) sums[wave_id()] = x;
    barrier();
    x = 0;
    UNROLL for (int i = 0; i < OPTIM_THREADS / WAVE; i++) x += sums[i];
    return x;
}

#endif
#endif
