/* y = x B of one row x [k], with B stored [n, k], as in generation. It reads B once, so it is bound by memory, which tiles
 * and algorithms that cut k into several kernels do not keep busy. A block makes the sums of some lines of B; its threads
 * share out k, each with loads from all of its lines in flight, and their sums are added in one order. What becomes of the
 * sums is the kernel's: gpu_gemv.c stores them, others go on with them (ops/activation, ops/attention). The first chunks of
 * B may come before the kernel ahead has made x. */
#pragma once

#include "backend/gpu/vector.h"

typedef struct Gemv {
    GLOBAL const bf16 *x, *b;
    int64_t ldb;
    int32_t n, k;
    int32_t b_lasts; /* Gemm.b_lasts */
} Gemv;

enum {
    GEMV_THREADS = 256,
    GEMV_CHUNK = 8, /* elements of a load */
    GEMV_MOST_LINES = 8,
    GEMV_DEEP = 4096, /* from this k on a thread has several chunks of a line, and a block 4 lines, not 8 */
};

#ifdef GPU_DEVICE

INLINE float dot_chunk(u32x4 x, u32x4 y, float sum) {
    UNROLL for (int i = 0; i < GEMV_CHUNK / 2; i++) {
        sum = __builtin_fmaf(to_float_low(x[i]), to_float_low(y[i]), sum);
        sum = __builtin_fmaf(to_float_high(x[i]), to_float_high(y[i]), sum);
    }
    return sum;
}

/* A chunk of each line; those beyond k are zeros. */
INLINE void load_chunks(u32x4 *chunks, GLOBAL const bf16 *const *line, const int lines, int32_t at, int32_t k) {
    UNROLL for (int l = 0; l < lines; l++) chunks[l] = at < k ? *(GLOBAL const u32x4 *)(line[l] + at) : (u32x4){0, 0, 0, 0};
}

/* What each thread has of the products with `lines` lines. */
INLINE void multiply_lines(const Gemv *a, GLOBAL const bf16 *const *line, const int lines, float *sums) {
    int32_t at = thread_id() * GEMV_CHUNK;
    u32x4 next[GEMV_MOST_LINES];
    UNROLL for (int l = 0; l < lines; l++) sums[l] = 0;
    if (a->b_lasts) load_chunks(next, line, lines, at, a->k);
    await_kernel_ahead();
    if (!a->b_lasts) load_chunks(next, line, lines, at, a->k);
    for (; at < a->k; at += GEMV_THREADS * GEMV_CHUNK) {
        u32x4 x = *(GLOBAL const u32x4 *)(a->x + at), b[GEMV_MOST_LINES];
        UNROLL for (int l = 0; l < lines; l++) b[l] = next[l];
        load_chunks(next, line, lines, at + GEMV_THREADS * GEMV_CHUNK, a->k);
        UNROLL for (int l = 0; l < lines; l++) sums[l] = dot_chunk(x, b[l], sums[l]);
    }
}

/* multiply_lines for the lines from `first` on; those beyond the last one are the last one again. */
INLINE void multiply_block(const Gemv *a, int32_t first, const int lines, float *sums) {
    GLOBAL const bf16 *line[GEMV_MOST_LINES];
    UNROLL for (int l = 0; l < lines; l++) line[l] = a->b + (first + l < a->n ? first + l : a->n - 1) * a->ldb;
    multiply_lines(a, line, lines, sums);
}

/* The block's sum of line thread_id(), in the threads that have one; in others 0. */
INLINE float add_threads(const float *sums, const int lines) {
    static SHARED float parts[GEMV_THREADS / WAVE][GEMV_MOST_LINES];
    UNROLL for (int l = 0; l < lines; l++) {
        float sum = wave_sum(sums[l]);
        if (lane_id() == 0) parts[wave_id()][l] = sum;
    }
    barrier();
    float sum = 0;
    for (int w = 0; w < GEMV_THREADS / WAVE && thread_id() < lines; w++) sum += parts[w][thread_id()];
    return sum;
}

/* Lines in pairs, as they are for a gate and what it opens, or for channels that are turned together: of each 2 * half lines,
 * line i < half and line half + i. A block has lines / 2 pairs that follow each other; half % 4 == 0, so of one such group. */
INLINE int32_t first_line_of_pairs(int32_t half, const int lines) {
    int32_t pair = block_x() * (lines / 2);
    return pair / half * 2 * half + pair % half;
}

typedef struct GemvPair { float first, second; } GemvPair;

/* The block's sums of pair thread_id(), in the threads that have one, which are of the first wave. */
INLINE GemvPair multiply_pairs(const Gemv *a, int32_t half, const int lines) {
    int32_t first = first_line_of_pairs(half, lines);
    GLOBAL const bf16 *line[GEMV_MOST_LINES];
    float sums[GEMV_MOST_LINES];
    UNROLL for (int l = 0; l < lines; l++) line[l] = a->b + (first + l % (lines / 2) + (l < lines / 2 ? 0 : half)) * a->ldb;
    multiply_lines(a, line, lines, sums);
    float sum = add_threads(sums, lines);
    return (GemvPair){sum, shuffle_float(sum, (lane_id() + lines / 2) % WAVE)};
}

#else

static inline Gemv gemv_of(const void *x, const void *b, int64_t n, int64_t k, bool b_lasts) {
    return (Gemv){.x = x, .b = b, .ldb = k, .n = (int32_t)n, .k = (int32_t)k, .b_lasts = b_lasts};
}

/* Whether the kernels have 8 lines a block, not 4: the form of LAUNCHERS(name_4, name_8). */
static inline bool gemv_is_shallow(int64_t k) { return k < GEMV_DEEP; }
static inline LaunchShape gemv_shape(const Gemv *gemv) {
    return (LaunchShape){.x = divide_up(gemv->n, gemv_is_shallow(gemv->k) ? 8 : 4), .threads = GEMV_THREADS};
}
/* Whether lines of k elements, of which the first begins at a byte, are read by whole loads. */
static inline bool gemv_reads(int64_t k, int64_t byte) { return k % GEMV_CHUNK == 0 && k <= INT32_MAX && byte % 16 == 0; }

#endif
