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

/* Computes the elements of y of the block's groups. */
INLINE void make_elements(const GemvArguments *a, GemvForm form) {
    GemvStream stream = stream_begin(&a->gemv, 0, form);
    FOR_GROUPS(group, &a->gemv) {
        float sum = stream_next(&stream, &a->gemv, group, 0, form);
        int32_t column = group * form.lines + thread_id();
        if (thread_id() < form.lines && column < a->gemv.n) write_gemv_element(a, column, sum);
    }
}

#define GEMV_KERNEL(name, end, form) \
    KERNEL(name##_##end, GemvArguments) { make_elements(&a, form); }
GEMV_FORMS(GEMV_KERNEL, gemv)

#else

#include "backend/gpu/gpu_gemm.h"
#include "backend/gpu/kernel_launch.h"

LAUNCHERS(gemv, GemvArguments, gemv_deep, gemv_4, gemv_8)

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
    LaunchShape shape = gemv_shape(device_info(device)->processors, &arguments.gemv);
    launch_gemv(device, gemv_kernel(&arguments.gemv), shape, &arguments);
}

#endif
