/* GEMM of one row, y = x B with B stored [n, k], as in generation: it reads B once, so it is bound by memory, which tiles
 * and algorithms that cut k into several kernels do not keep busy. A block makes some elements of y; its threads share out
 * k, each with loads from all of its lines in flight, and their sums are added in one order. Called by gpu_gemm.c; a
 * vendor's library is not asked (vendor_gemm.c). Owns no memory. */
#include "backend/gpu/vector.h"

typedef struct GemvArguments {
    GLOBAL const bf16 *x, *b;
    GLOBAL void *y;
    GLOBAL const float *bias; /* NULL: none */
    int64_t ldb;
    int32_t n, k;
    int32_t wide, accumulate; /* y is fp32; is added to */
    int32_t b_lasts;          /* Gemm.b_lasts */
} GemvArguments;

enum { THREADS = 256, CHUNK = 8, MOST_LINES = 8 };

#ifdef GPU_DEVICE

INLINE float dot_chunk(u32x4 x, u32x4 y, float sum) {
    UNROLL for (int i = 0; i < CHUNK / 2; i++) {
        sum = __builtin_fmaf(to_float_low(x[i]), to_float_low(y[i]), sum);
        sum = __builtin_fmaf(to_float_high(x[i]), to_float_high(y[i]), sum);
    }
    return sum;
}

INLINE void write_element(const GemvArguments *a, int32_t column, float sum) {
    GLOBAL float *wide = (GLOBAL float *)a->y + column;
    GLOBAL bf16 *narrow = (GLOBAL bf16 *)a->y + column;
    if (a->bias) sum += a->bias[column];
    if (a->accumulate) sum += a->wide ? *wide : to_float(*narrow);
    if (a->wide) *wide = sum;
    else *narrow = to_bf16(sum);
}

/* A chunk of each line; those beyond k are zeros. */
INLINE void load_chunks(u32x4 *chunks, GLOBAL const bf16 *const *line, const int lines, int32_t at, int32_t k) {
    UNROLL for (int l = 0; l < lines; l++) chunks[l] = at < k ? *(GLOBAL const u32x4 *)(line[l] + at) : (u32x4){0, 0, 0, 0};
}

/* `lines` elements of y; lines of B beyond the last one are the last one again. The first chunks of B may come before the
 * kernel ahead has made x. */
INLINE void multiply_lines(const GemvArguments *a, const int lines) {
    static SHARED float parts[THREADS / WAVE][MOST_LINES];
    int32_t first = block_x() * lines, at = thread_id() * CHUNK;
    GLOBAL const bf16 *line[MOST_LINES];
    u32x4 next[MOST_LINES];
    float sums[MOST_LINES];
    UNROLL for (int l = 0; l < lines; l++) {
        line[l] = a->b + (first + l < a->n ? first + l : a->n - 1) * a->ldb;
        sums[l] = 0;
    }
    if (a->b_lasts) load_chunks(next, line, lines, at, a->k);
    await_kernel_ahead();
    if (!a->b_lasts) load_chunks(next, line, lines, at, a->k);
    for (; at < a->k; at += THREADS * CHUNK) {
        u32x4 x = *(GLOBAL const u32x4 *)(a->x + at), b[MOST_LINES];
        UNROLL for (int l = 0; l < lines; l++) b[l] = next[l];
        load_chunks(next, line, lines, at + THREADS * CHUNK, a->k);
        UNROLL for (int l = 0; l < lines; l++) sums[l] = dot_chunk(x, b[l], sums[l]);
    }
    UNROLL for (int l = 0; l < lines; l++) {
        float sum = wave_sum(sums[l]);
        if (lane_id() == 0) parts[wave_id()][l] = sum;
    }
    barrier();
    if (thread_id() >= lines || first + thread_id() >= a->n) return;
    float sum = 0;
    for (int w = 0; w < THREADS / WAVE; w++) sum += parts[w][thread_id()];
    write_element(a, first + thread_id(), sum);
}

KERNEL(gemv_4, GemvArguments) { multiply_lines(&a, 4); }
KERNEL(gemv_8, GemvArguments) { multiply_lines(&a, 8); }

#else

#include "backend/gpu/gpu_gemm.h"
#include "backend/gpu/kernel_launch.h"

LAUNCHERS(gemv, GemvArguments, gemv_4, gemv_8)

/* From this depth on a thread has several chunks of a line. */
enum { DEEP = 4096 };

bool gpu_gemv_serves(const Gemm *gemm) {
    bool types = gemm->input == GEMM_BF16 && (gemm->output == GEMM_BF16 || gemm->output == GEMM_F32);
    bool sizes = gemm->m == 1 && gemm->n > 0 && gemm->n <= INT32_MAX && gemm->k <= INT32_MAX && (gemm->k | gemm->ldb) % CHUNK == 0;
    return types && sizes && !gemm->transpose_a && gemm->transpose_b && ((uintptr_t)gemm->a | (uintptr_t)gemm->b) % 16 == 0;
}

void gpu_gemv(Device *device, const Gemm *gemm) {
    bool shallow = gemm->k < DEEP;
    launch_gemv(device, shallow, (LaunchShape){.x = divide_up(gemm->n, shallow ? 8 : 4), .threads = THREADS},
        &(GemvArguments){.x = gemm->a,
            .b = gemm->b,
            .y = gemm->c,
            .bias = gemm->bias,
            .ldb = gemm->ldb,
            .n = (int32_t)gemm->n,
            .k = (int32_t)gemm->k,
            .wide = gemm->output == GEMM_F32,
            .accumulate = gemm->accumulate,
            .b_lasts = gemm->b_lasts});
}

#endif
