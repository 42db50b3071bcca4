/* GEMM of one row (gemv.h). Called by gpu_gemm.c, never replaced by a vendor's library
 * (vendor_gemm.c). Owns no memory. */
#include "backend/gpu/gemv.h"

typedef struct GemvArguments {
    Gemv gemv;
    GLOBAL void *y;
    GLOBAL const float *bias; /* NULL: none */
    int32_t wide, accumulate; /* y is fp32; y is added to */
} GemvArguments;

#ifdef GPU_DEVICE

INLINE void write_gemv_element(const GemvArguments *a, int32_t column, float sum) {
    GLOBAL float *wide = (GLOBAL float *)a->y + column;
    GLOBAL bf16 *narrow = (GLOBAL bf16 *)a->y + column;
    if (a->bias) sum += a->bias[column];
    if (a->accumulate) sum += a->wide ? *wide : to_float(*narrow);
    if (a->wide) *wide = sum;
    else *narrow = to_bf16(sum);
}

/* Computes `lines` elements of y. */
INLINE void make_elements(const GemvArguments *a, const int lines) {
    int32_t first = block_x() * lines;
    float sums[GEMV_MOST_LINES];
    gemv_block(&a->gemv, first, lines, sums);
    float sum = add_threads(sums, lines);
    if (thread_id() < lines && first + thread_id() < a->gemv.n) write_gemv_element(a, first + thread_id(), sum);
}

KERNEL(gemv_4, GemvArguments) { make_elements(&a, 4); }
KERNEL(gemv_8, GemvArguments) { make_elements(&a, 8); }

#else

#include "backend/gpu/gpu_gemm.h"
#include "backend/gpu/kernel_launch.h"

LAUNCHERS(gemv, GemvArguments, gemv_4, gemv_8)

bool gpu_gemv_serves(const Gemm *gemm) {
    bool types = gemm->input == GEMM_BF16 && (gemm->output == GEMM_BF16 || gemm->output == GEMM_F32);
    bool sizes = gemm->m == 1 && gemm->n > 0 && gemm->n <= INT32_MAX && gemm->ldb % GEMV_CHUNK == 0;
    return types && sizes && !gemm->transpose_a && gemm->transpose_b &&
           gemv_reads(gemm->k, (int64_t)((uintptr_t)gemm->a | (uintptr_t)gemm->b));
}

void gpu_gemv(Device *device, const Gemm *gemm) {
    GemvArguments arguments = {.gemv = gemv_of(gemm->a, gemm->b, gemm->n, gemm->k, gemm->b_lasts),
        .y = gemm->c,
        .bias = gemm->bias,
        .wide = gemm->output == GEMM_F32,
        .accumulate = gemm->accumulate};
    arguments.gemv.ldb = gemm->ldb;
    launch_gemv(device, gemv_is_shallow(gemm->k), gemv_shape(&arguments.gemv), &arguments);
}

#endif
