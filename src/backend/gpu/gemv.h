/* y = x B for one row x [k], with B stored [n, k], as in generation. The kernels read B once, so they
 * are bound by memory bandwidth. Tiled GEMM kernels, and algorithms that split k over several
 * kernels, do not saturate memory. A group of lines of B is one block's work at a time. The block's
 * threads divide k, each with loads of all of the group's lines in flight, and their sums are added
 * in a fixed order. The caller decides what to do with the sums: gpu_gemv.c stores them, others
 * compute on (ops/activation, ops/attention). The first chunks of B may be loaded before the
 * preceding kernel has made x.
 *
 * Up to a k of GEMV_HELD the kernel fills the GPU once. Its blocks hold x, go from group to group,
 * and load the next group while they sum the current one. x may then be the RMSNorm of a residual add,
 * which each block computes itself (GemvNorm). The sums are scaled after they are added: with s = block +
 * stream,
 *     y = (s gain / rms(s)) B = ((s gain) B) / rms(s),
 * and s gain is rounded to bf16 where the norm's own kernel rounds s gain / rms(s). */
#pragma once

#include "backend/gpu/vector.h"

/* The operands of residual_norm (ops/norm/norm.h), a plain sum and RMSNorm, whose result is x. */
typedef struct GemvNorm {
    GLOBAL const bf16 *block;
    GLOBAL const float *stream, *gain; /* stream NULL: x is given */
    GLOBAL float *residual;
    float epsilon;
} GemvNorm;

typedef struct Gemv {
    GLOBAL const bf16 *x, *b;
    GemvNorm norm;
    int64_t ldb;
    int32_t n, k;
    int32_t b_lasts;        /* Gemm.b_lasts */
    int32_t groups, blocks; /* groups of lines, and blocks in the grid: gemv_shape sets both */
} Gemv;

enum {
    GEMV_THREADS = 256,
    GEMV_CHUNK = 8, /* elements per load */
    GEMV_STEP = GEMV_THREADS * GEMV_CHUNK,
    GEMV_LOADS = 8,                /* of B in flight per thread: of 8 lines, or of 4 */
    GEMV_HELD = 4096,              /* up to this k a block holds x */
    GEMV_BLOCKS_PER_PROCESSOR = 2, /* as many as fit on one */
};

#ifdef GPU_DEVICE

INLINE float dot_chunk(u32x4 x, u32x4 y, float sum) {
    UNROLL for (int i = 0; i < GEMV_CHUNK / 2; i++) {
        sum = __builtin_fmaf(to_float_low(x[i]), to_float_low(y[i]), sum);
        sum = __builtin_fmaf(to_float_high(x[i]), to_float_high(y[i]), sum);
    }
    return sum;
}

/* Returns a chunk of a row of k elements; zeros after k. */
INLINE u32x4 load_chunk(GLOBAL const bf16 *row, int32_t at, int32_t k) {
    return at < k ? *(GLOBAL const u32x4 *)(row + at) : (u32x4){0, 0, 0, 0};
}

/* -- Groups of lines ----------------------------------------------------------------------------------------------- */

/* Returns the first line of a group. Lines may be in pairs, such as a gate and its up projection, or
 * channels that RoPE rotates together: in each 2 * half lines, line i < half pairs with line half + i,
 * and a group has lines / 2 consecutive first lines, then their partners. half % 4 == 0, so they
 * belong to the same 2 * half lines. half == 0: consecutive lines. */
INLINE int32_t first_of_group(int32_t group, int32_t half, const int lines) {
    int32_t pair = group * (lines / 2);
    return half ? pair / half * 2 * half + pair % half : group * lines;
}

/* Returns where line l of a group begins; lines after the last one repeat it. */
INLINE GLOBAL const bf16 *line_of_group(const Gemv *a, int32_t group, int32_t half, const int lines, int l) {
    int32_t line = first_of_group(group, half, lines) + (half ? l % (lines / 2) + (l < lines / 2 ? 0 : half) : l);
    return a->b + (line < a->n ? line : a->n - 1) * a->ldb;
}

typedef float GemvParts[GEMV_THREADS / WAVE][GEMV_LOADS]; /* the sums of the waves */

/* Returns the block's sum of line thread_id() in the threads that have one, 0 in others. */
INLINE float add_threads(const float *sums, const int lines, LOCAL GemvParts *parts) {
    UNROLL for (int l = 0; l < lines; l++) {
        float sum = wave_sum(sums[l]);
        if (lane_id() == 0) (*parts)[wave_id()][l] = sum;
    }
    barrier();
    float sum = 0;
    for (int w = 0; w < GEMV_THREADS / WAVE && thread_id() < lines; w++) sum += (*parts)[w][thread_id()];
    return sum;
}

/* The sums of a pair of lines. */
typedef struct GemvPair { float first, second; } GemvPair;

/* Returns the sums of pair thread_id() of a group, in the threads of the first wave that have one,
 * from what each thread has of its line. */
INLINE GemvPair pair_of_sums(float sum, const int lines) { return (GemvPair){sum, shuffle_float(sum, (lane_id() + lines / 2) % WAVE)}; }

/* Multiplies a group by x, for any k. Returns the block's sum of line thread_id(). All threads call it;
 * `parts` is free. */
INLINE float multiply_group(const Gemv *a, int32_t group, int32_t half, const int lines, LOCAL GemvParts *parts) {
    GLOBAL const bf16 *line[GEMV_LOADS];
    u32x4 next[GEMV_LOADS];
    float sums[GEMV_LOADS];
    int32_t at = thread_id() * GEMV_CHUNK;
    UNROLL for (int l = 0; l < lines; l++) line[l] = line_of_group(a, group, half, lines, l), sums[l] = 0;
    if (a->b_lasts) UNROLL for (int l = 0; l < lines; l++) next[l] = load_chunk(line[l], at, a->k);
    await_kernel_ahead();
    if (!a->b_lasts) UNROLL for (int l = 0; l < lines; l++) next[l] = load_chunk(line[l], at, a->k);
    u32x4 next_x = load_chunk(a->x, at, a->k);
    for (; at < a->k; at += GEMV_STEP) {
        u32x4 x = next_x, b[GEMV_LOADS];
        UNROLL for (int l = 0; l < lines; l++) b[l] = next[l];
        UNROLL for (int l = 0; l < lines; l++) next[l] = load_chunk(line[l], at + GEMV_STEP, a->k);
        next_x = load_chunk(a->x, at + GEMV_STEP, a->k);
        UNROLL for (int l = 0; l < lines; l++) sums[l] = dot_chunk(x, b[l], sums[l]);
    }
    return add_threads(sums, lines, parts);
}

/* -- Blocks that go from group to group ---------------------------------------------------------------------------- */

/* How a kernel divides its work. A group has `lines` lines, and a thread has `chunks` chunks of each
 * line: lines * chunks == GEMV_LOADS. Without chunks, a block has one group, of any k. */
typedef struct GemvForm {
    int lines, chunks;
    bool normed; /* x is computed from Gemv.norm */
} GemvForm;

typedef struct GemvStream {
    u32x4 x[GEMV_LOADS], next[GEMV_LOADS];
    float scale; /* of sums: 1 / rms(s), or 1 */
    int turn;    /* the half of the shared memory in use */
} GemvStream;

/* Returns a chunk of s gain, and adds the squares of s to *squares. The grid's first block writes s. */
INLINE u32x4 make_chunk(const Gemv *a, int32_t at, float *squares) {
    const GemvNorm *norm = &a->norm;
    u32x4 x = {0, 0, 0, 0};
    if (at >= a->k) return x;
    u32x4 block = load_chunk(norm->block, at, a->k);
    UNROLL for (int half = 0; half < 2; half++) {
        int32_t from = at + 4 * half;
        f32x4 s = to_float4((u32x2){block[2 * half], block[2 * half + 1]}) + load4_wide(norm->stream + from, 4);
        if (block_x() == 0) store4_wide(norm->residual + from, s, 4);
        *squares += sum4(s * s);
        s *= load4_wide(norm->gain + from, 4);
        x[2 * half] = to_bf16_pair(s.x, s.y), x[2 * half + 1] = to_bf16_pair(s.z, s.w);
    }
    return x;
}

INLINE void load_group(GemvStream *s, const Gemv *a, int32_t group, int32_t half, GemvForm form) {
    UNROLL for (int l = 0; l < form.lines; l++) UNROLL for (int c = 0; c < form.chunks; c++) s->next[l * form.chunks + c] =
        load_chunk(line_of_group(a, group, half, form.lines, l), c * GEMV_STEP + thread_id() * GEMV_CHUNK, a->k);
}

/* Loads x and starts to load the block's first group. */
INLINE GemvStream stream_begin(const Gemv *a, int32_t half, GemvForm form) {
    static SHARED float scratch[GEMV_THREADS / WAVE];
    GemvStream s = {.scale = 1, .turn = 0};
    float squares = 0;
    if (!form.chunks) return s;
    if (a->b_lasts) load_group(&s, a, block_x(), half, form);
    await_kernel_ahead();
    if (!a->b_lasts) load_group(&s, a, block_x(), half, form);
    UNROLL for (int c = 0; c < form.chunks; c++) {
        int32_t at = c * GEMV_STEP + thread_id() * GEMV_CHUNK;
        s.x[c] = form.normed ? make_chunk(a, at, &squares) : load_chunk(a->x, at, a->k);
    }
    if (form.normed) s.scale = fast_rsqrt(block_sum(squares, scratch, GEMV_THREADS) / (float)a->k + a->norm.epsilon);
    return s;
}

/* Returns the block's sum of line thread_id() of a group, and begins to load the next one. */
INLINE float stream_next(GemvStream *s, const Gemv *a, int32_t group, int32_t half, GemvForm form) {
    static SHARED GemvParts parts[2];
    if (!form.chunks) return multiply_group(a, group, half, form.lines, &parts[0]);
    u32x4 b[GEMV_LOADS];
    float sums[GEMV_LOADS];
    UNROLL for (int i = 0; i < GEMV_LOADS; i++) b[i] = s->next[i];
    if (group + a->blocks < a->groups) load_group(s, a, group + a->blocks, half, form);
    UNROLL for (int l = 0; l < form.lines; l++) {
        sums[l] = 0;
        UNROLL for (int c = 0; c < form.chunks; c++) sums[l] = dot_chunk(s->x[c], b[l * form.chunks + c], sums[l]);
    }
    s->turn ^= 1;
    return s->scale * add_threads(sums, form.lines, &parts[s->turn]);
}

/* The groups of a block. */
#define FOR_GROUPS(group, gemv) for (int32_t group = block_x(); group < (gemv)->groups; group += (gemv)->blocks)

/* X(name, suffix, form): the forms in which a kernel exists, in the order of gemv_kernel. */
#define GEMV_FORMS(X, name) X(name, deep, ((GemvForm){4, 0, false})) X(name, 4, ((GemvForm){4, 2, false})) X(name, 8, ((GemvForm){8, 1, false}))
#define GEMV_NORMED_FORMS(X, name) X(name, normed_4, ((GemvForm){4, 2, true})) X(name, normed_8, ((GemvForm){8, 1, true}))

#else

static inline Gemv gemv_of(const void *x, const void *b, int64_t n, int64_t k, bool b_lasts) {
    return (Gemv){.x = x, .b = b, .ldb = k, .n = (int32_t)n, .k = (int32_t)k, .b_lasts = b_lasts};
}

static inline int gemv_lines(int64_t k) { return k > GEMV_STEP ? 4 : 8; }

/* Returns the index in GEMV_FORMS, then GEMV_NORMED_FORMS. */
static inline int gemv_kernel(const Gemv *gemv) {
    return (gemv->k > GEMV_HELD ? 0 : gemv_lines(gemv->k) / 4) + (gemv->norm.stream ? 2 : 0);
}

/* Returns the grid for a GPU with `processors` processors, and sets the gemv's groups and blocks. */
static inline LaunchShape gemv_shape(int processors, Gemv *gemv) {
    int64_t fitting = GEMV_BLOCKS_PER_PROCESSOR * (int64_t)processors;
    gemv->groups = (int32_t)divide_up(gemv->n, gemv_lines(gemv->k));
    gemv->blocks = gemv->k > GEMV_HELD || gemv->groups < fitting ? gemv->groups : (int32_t)fitting;
    return (LaunchShape){.x = gemv->blocks, .threads = GEMV_THREADS};
}

/* Returns whether lines of k elements, the first starting at byte offset `byte`, can be read in
 * whole loads. */
static inline bool gemv_reads(int64_t k, int64_t byte) { return k % GEMV_CHUNK == 0 && k <= INT32_MAX && byte % 16 == 0; }

#endif
