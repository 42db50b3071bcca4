/* y = x B for one row x [k], with B stored [n, k], as in generation. The kernel reads B once, so it
 * is bound by memory bandwidth. Tiled GEMM kernels, and algorithms that split k over several
 * kernels, do not saturate memory. A block computes the sums of some lines of B. Its threads divide
 * k, each with loads of all of the block's lines in flight, and their sums are added in a fixed
 * order. The kernel decides what to do with the sums: gpu_gemv.c stores them, others compute on
 * (ops/activation, ops/attention). The first chunks of B may be loaded before the preceding kernel
 * has made x. */
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
    GEMV_CHUNK = 8, /* elements per load */
    GEMV_MOST_LINES = 8,
    GEMV_DEEP = 4096, /* from this k on, a thread has several chunks of a line, and a block has 4 lines instead of 8 */
};

#ifdef GPU_DEVICE

INLINE float dot_chunk(u32x4 x, u32x4 y, float sum) {
    UNROLL for (int i = 0; i < GEMV_CHUNK / 2; i++) {
        sum = __builtin_fmaf(to_float_low(x[i]), to_float_low(y[i]), sum);
        sum = __builtin_fmaf(to_float_high(x[i]), to_float_high(y[i]), sum);
    }
    return sum;
}

/* Loads a chunk of each line; zeros after k. */
INLINE void load_chunks(u32x4 *chunks, GLOBAL const bf16 *const *line, const int lines, int32_t at, int32_t k) {
    UNROLL for (int l = 0; l < lines; l++) chunks[l] = at < k ? *(GLOBAL const u32x4 *)(line[l] + at) : (u32x4){0, 0, 0, 0};
}

/* Computes this thread's part of the products with `lines` lines. */
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

/* Runs multiply_lines for the lines from `first` on; lines after the last one repeat it. */
INLINE void gemv_block(const Gemv *a, int32_t first, const int lines, float *sums) {
    GLOBAL const bf16 *line[GEMV_MOST_LINES];
    UNROLL for (int l = 0; l < lines; l++) line[l] = a->b + (first + l < a->n ? first + l : a->n - 1) * a->ldb;
    multiply_lines(a, line, lines, sums);
}

/* Returns the block's sum of line thread_id() in the threads that have one, 0 in others. */
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

/* Lines in pairs, such as a gate and its up projection, or channels that RoPE rotates together: in
 * each group of 2 * half lines, line i < half pairs with line half + i. A block has lines / 2
 * consecutive pairs. half % 4 == 0, so they belong to one group. */
INLINE int32_t first_line_of_pairs(int32_t half, const int lines) {
    int32_t pair = block_x() * (lines / 2);
    return pair / half * 2 * half + pair % half;
}

typedef struct GemvPair { float first, second; } GemvPair;

/* Returns the block's sums of pair thread_id(), in the threads of the first wave that have one. */
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

/* Returns whether blocks have 8 lines, not 4: the form of LAUNCHERS(name_4, name_8). */
static inline bool gemv_is_shallow(int64_t k) { return k < GEMV_DEEP; }
static inline LaunchShape gemv_shape(const Gemv *gemv) {
    return (LaunchShape){.x = divide_up(gemv->n, gemv_is_shallow(gemv->k) ? 8 : 4), .threads = GEMV_THREADS};
}
/* Returns whether lines of k elements, the first starting at byte offset `byte`, can be read in
 * whole loads. */
static inline bool gemv_reads(int64_t k, int64_t byte) { return k % GEMV_CHUNK == 0 && k <= INT32_MAX && byte % 16 == 0; }

#endif
