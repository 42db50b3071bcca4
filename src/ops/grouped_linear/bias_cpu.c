/* grouped_bias on a CPU. In the gradient a thread takes some columns of one expert and adds sums of
 * KERNEL_BLOCK rows in order, so the bits do not depend on the number of threads. */
#include "backend/cpu/kernel.h"
#include "ops/grouped_linear/grouped_linear.h"

CPU_OP(grouped_bias) {
    const T *x = call->in[GROUPED_BIAS_X];
    const W *bias = call->in[GROUPED_BIAS_BIAS];
    const int32_t *offset = call->in[GROUPED_BIAS_OFFSET];
    T *y = call->out[GROUPED_BIAS_Y];
    const int64_t *shape = call->in_shape[GROUPED_BIAS_X];
    int64_t experts = call->in_shape[GROUPED_BIAS_BIAS][0], columns = shape[1];
    if (x != y) memcpy(y, x, shape[0] * columns * sizeof *y);
    if (!grouped_bias_is_added(call)) return;
    for (int64_t e = 0; e < experts; e++)
#pragma omp parallel for schedule(static)
        for (int64_t s = offset[e]; s < offset[e + 1]; s++)
            for (int64_t i = 0; i < columns; i++) y[s * columns + i] = to_compute(to_wide(y[s * columns + i]) + bias[e * columns + i]);
}

/* Adds the sums of rows begin .. end - 1 of some columns to d_bias. */
static void add_rows(W *d_bias, const T *d_y, int64_t stride, int64_t begin, int64_t end, int64_t columns) {
    W sums[KERNEL_BLOCK] = {0};
    for (int64_t r = begin; r < end; r++)
        for (int64_t i = 0; i < columns; i++) sums[i] += to_wide(d_y[r * stride + i]);
    for (int64_t i = 0; i < columns; i++) d_bias[i] += sums[i];
}

CPU_OP(grouped_bias_grad) {
    const T *d_y = call->in[GROUPED_BIAS_GRAD_D_Y];
    const int32_t *offset = call->in[GROUPED_BIAS_GRAD_OFFSET];
    W *d_bias = call->out[GROUPED_BIAS_GRAD_D_BIAS];
    int64_t experts = call->out_shape[GROUPED_BIAS_GRAD_D_BIAS][0], columns = call->out_shape[GROUPED_BIAS_GRAD_D_BIAS][1];
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int64_t e = 0; e < experts; e++)
        for (int64_t first = 0; first < columns; first += KERNEL_BLOCK)
            for (int64_t r = offset[e]; r < offset[e + 1]; r += KERNEL_BLOCK)
                add_rows(d_bias + e * columns + first, d_y + first, columns, r, int_min(r + KERNEL_BLOCK, offset[e + 1]),
                    int_min(KERNEL_BLOCK, columns - first));
}
