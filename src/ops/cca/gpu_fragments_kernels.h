/* CCA of heads of 128 channels on NVIDIA: a warp owns 16 rows of a head, and all their values stay
 * in its registers from the projections to the result. The head's weights are in shared memory once
 * per block, and no barrier separates its warps: while one waits for memory, others multiply.
 *
 * The mapping from channels to columns of a matmul is free as long as both operands agree. Here
 * lane 4 g + t has the same 32 channels of rows g and g + 8 on both sides of the matmul: in chunk q
 * of four, the eight channels from 32 q + 8 t on. So a chunk is 16 bytes of memory, norms are sums
 * over four lanes, RoPE pairs channels of one lane, and:
 *     column 8 j + 2 t + e of the sums     is channel 32 (j / 4) + 8 t + 2 (j % 4) + e;
 *     step s of 16 along k, operand word h is the pair of taps of channel
 *         32 (s / 4) + 8 t + 2 (s % 4) + h if the taps are interleaved, or of two channels from
 *         32 (s / 2) + 8 t + 4 (s % 2) + 2 h on if they are not.
 * (mma.h has the layout of mma.m16n8k16.) */
#pragma once

#include "ops/cca/gpu_shared_kernels.h"

enum {
    FRAGMENT_DIM = 128,
    FRAGMENT_WARPS = 4,
    FRAGMENT_THREADS = FRAGMENT_WARPS * 32,
    FRAGMENT_BLOCKS = 3, /* blocks that share a multiprocessor */
    FRAGMENT_ROWS = 16,  /* rows per warp */
    FRAGMENT_CHUNKS = FRAGMENT_DIM / 32,
    FRAGMENT_COLUMNS = FRAGMENT_DIM / 8,                            /* 8 x 8 blocks of sums */
    FRAGMENT_STEPS = 2 * FRAGMENT_DIM / 32,                         /* steps of 32 along k */
    FRAGMENT_WEIGHTS = FRAGMENT_COLUMNS * FRAGMENT_STEPS * 32 * 16, /* bytes of a head's weights */
};

#if defined __NVPTX__

/* [columns][steps of 32][lanes]: the right operands of two steps of 16. */
extern LOCAL u32x4 fragment_weights[] __attribute__((aligned(128)));
INLINE int fragment_at(int column, int step, int lane) { return (column * FRAGMENT_STEPS + step) * 32 + lane; }

/* A lane's sums of its two rows. */
typedef struct FragmentSums { f32x4 x[FRAGMENT_COLUMNS]; } FragmentSums;
/* A lane's channels of its two rows. */
typedef struct FragmentRows { u32x4 x[2][FRAGMENT_CHUNKS]; } FragmentRows;

INLINE int fragment_row(int r) { return lane_id() / 4 + r * 8; }
INLINE int fragment_channel(int q) { return q * 32 + lane_id() % 4 * CHUNK; }

INLINE f32x8 fragment_chunk(const FragmentSums *sums, int q, int r) {
    f32x8 x;
    UNROLL for (int i = 0; i < CHUNK; i++) x[i] = sums->x[q * 4 + i / 2][r * 2 + i % 2];
    return x;
}
INLINE void fragment_set(FragmentSums *sums, int q, int r, f32x8 x) {
    UNROLL for (int i = 0; i < CHUNK; i++) sums->x[q * 4 + i / 2][r * 2 + i % 2] = x[i];
}

/* sums += a times the operands of the step's first half + b times those of its second half. */
INLINE void fragment_multiply(FragmentSums *sums, const uint32_t a[4], const uint32_t b[4], int step) {
    enum { TOGETHER = 4 };
    UNROLL for (int j = 0; j < FRAGMENT_COLUMNS; j += TOGETHER) {
        u32x4 w[TOGETHER];
        UNROLL for (int i = 0; i < TOGETHER; i++) w[i] = fragment_weights[fragment_at(j + i, step, lane_id())];
        UNROLL for (int i = 0; i < TOGETHER; i++) sums->x[j + i] = mma_16x8x16(sums->x[j + i], a, w[i].x, w[i].y);
        UNROLL for (int i = 0; i < TOGETHER; i++) sums->x[j + i] = mma_16x8x16(sums->x[j + i], b, w[i].z, w[i].w);
    }
}

/* Loads the chunks of head `head` of both rows, all in flight at once. */
INLINE void load_fragment_rows(FragmentRows *rows, const bf16 GLOBAL *from, const RowPlace row[2], int64_t columns, int head) {
    UNROLL for (int r = 0; r < 2; r++) UNROLL for (int q = 0; q < FRAGMENT_CHUNKS; q++) rows->x[r][q] =
        *(const u32x4 GLOBAL *)(from + offset_of(row[r].row, columns) + head * FRAGMENT_DIM + fragment_channel(q));
}

INLINE void add_fragment_rows(FragmentSums *sums, const bf16 GLOBAL *from, const RowPlace row[2], int64_t columns, int head) {
    FragmentRows rows;
    load_fragment_rows(&rows, from, row, columns, head);
    UNROLL for (int r = 0; r < 2; r++) UNROLL for (int q = 0; q < FRAGMENT_CHUNKS; q++)
        fragment_set(sums, q, r, fragment_chunk(sums, q, r) + to_float8(rows.x[r][q]));
}

/* Adds all heads that share key head `key`. */
INLINE void add_fragment_queries(
    FragmentSums *sums, const CcaInput *in, const bf16 GLOBAL *from, const RowPlace row[2], int64_t columns, int key) {
    for (int h = key * in->group; h < (key + 1) * in->group; h++) add_fragment_rows(sums, from, row, columns, h);
}

#elif !defined GPU_DEVICE

/* Returns whether these kernels support it: RoPE pairs no channels of two lanes, and no chunk of
 * values is partly delayed. */
static inline bool cca_in_fragments(const Device *device, const CcaInput *in) {
    return device_info(device)->wave == 32 && in->whole && in->dim == FRAGMENT_DIM && in->rotated % 64 == 0 && in->current % CHUNK == 0;
}

#endif
