/* The CPU kernels of narrow. */
#include "backend/cpu/kernel.h"
#include "ops/narrow/narrow.h"

CPU_OP(narrow) {
    const W *x = call->in[NARROW_X];
    T *y = call->out[NARROW_Y];
    int64_t elements = call->in_shape[NARROW_X][0] * call->in_shape[NARROW_X][1];
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < elements; i++) y[i] = to_compute(x[i]);
}

CPU_OP(widen) {
    const T *x = call->in[WIDEN_X];
    W *y = call->out[WIDEN_Y];
    int64_t elements = call->in_shape[WIDEN_X][0] * call->in_shape[WIDEN_X][1];
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < elements; i++) y[i] = to_wide(x[i]);
}
