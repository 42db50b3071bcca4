/* Convolutions on a CPU. Forward, threads divide the rows; backward, blocks of channels. Scratch: sums before SiLU,
 * and of the backward pass their gradients [R, C]. */
#include "backend/cpu/kernel.h"
#include "ops/convolution/convolution.h"

/* Returns how many rows before row r are in its document, or at most `most`. A history reaches before the sequence. */
static inline int64_t rows_before(const ConvolutionAttributes *a, const int32_t *positions, int64_t r, bool history) {
    int64_t most = int_min(a->taps - 1, positions[r]);
    return history ? most : int_min(most, r % a->length);
}

/* sums[c] = the sums of row r before SiLU for channels [first, end). */
static void convolve_row(const OpCall *call, int64_t r, int64_t first, int64_t end, W *restrict sums) {
    const ConvolutionAttributes *a = call->attributes;
    const T *x = call->in[CONVOLUTION_X], *weight = call->in[CONVOLUTION_WEIGHT], *history = call->in[CONVOLUTION_HISTORY];
    int64_t before = rows_before(a, call->in[CONVOLUTION_POSITIONS], r, history), past = a->taps - 1;
    for (int64_t c = first; c < end; c++) sums[c - first] = 0;
    for (int64_t k = 0; k <= before; k++) {
        bool inside = r % a->length >= k;
        const T *row = inside ? x + (r - k) * a->columns : history + ((r / a->length + 1) * past + r % a->length - k) * a->columns;
        for (int64_t c = first; c < end; c++) sums[c - first] += to_wide(weight[c * a->taps + past - k]) * to_wide(row[c]);
    }
}

/* The last rows of (history, x) become the history. */
static void keep_last_rows(T *state, const T *x, const ConvolutionAttributes *a) {
    int64_t past = a->taps - 1, kept = int_min(a->rows, past);
    memmove(state, state + kept * a->columns, (past - kept) * a->columns * sizeof(T));
    memcpy(state + (past - kept) * a->columns, x + (a->rows - kept) * a->columns, kept * a->columns * sizeof(T));
}

static int64_t sums_bytes(const Graph *graph, const Node *node) {
    const ConvolutionAttributes *a = node->attributes;
    return a->rows * a->columns * (int64_t)precision_bytes(graph->precision, TYPE_WIDE);
}

CPU_OP(convolution, sums_bytes) {
    const ConvolutionAttributes *a = call->attributes;
    T *y = call->out[CONVOLUTION_Y];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->rows; r++) {
        W *sums = (W *)call->workspace + r * a->columns;
        convolve_row(call, r, 0, a->columns, sums);
        for (int64_t c = 0; c < a->columns; c++) y[r * a->columns + c] = to_compute(sums[c] / (1 + wide_exp(-sums[c])));
    }
    if (call->out[CONVOLUTION_STATE]) keep_last_rows(call->out[CONVOLUTION_STATE], call->in[CONVOLUTION_X], a);
}

/* The operands of the gradient as those of the forward pass, for convolve_row. */
static OpCall forward_call(const OpCall *call) {
    OpCall forward = {.attributes = call->attributes};
    forward.in[CONVOLUTION_X] = call->in[CONVOLUTION_GRAD_X], forward.in[CONVOLUTION_WEIGHT] = call->in[CONVOLUTION_GRAD_WEIGHT];
    forward.in[CONVOLUTION_POSITIONS] = call->in[CONVOLUTION_GRAD_POSITIONS];
    return forward;
}

/* Adds the parts of channels [first, end) of row r to d_weight, sums [K, channels]; dz is d_y times SiLU's slope. */
static void add_tap_products(const OpCall *call, int64_t r, int64_t first, int64_t end, const W *restrict dz, W *restrict sums) {
    const ConvolutionAttributes *a = call->attributes;
    const T *x = call->in[CONVOLUTION_GRAD_X];
    int64_t before = rows_before(a, call->in[CONVOLUTION_GRAD_POSITIONS], r, false), channels = end - first;
    for (int64_t k = 0; k <= before; k++)
        for (int64_t c = 0; c < channels; c++) sums[k * channels + c] += dz[c] * to_wide(x[(r - k) * a->columns + first + c]);
}

/* d_x of row r for channels [first, end). */
static void convolve_back(const OpCall *call, int64_t r, int64_t first, int64_t end, const W *dz) {
    const ConvolutionAttributes *a = call->attributes;
    const T *weight = call->in[CONVOLUTION_GRAD_WEIGHT];
    const int32_t *positions = call->in[CONVOLUTION_GRAD_POSITIONS];
    W sums[KERNEL_BLOCK] = {0};
    for (int64_t k = 0; k < a->taps && r % a->length + k < a->length && positions[r + k] >= k; k++)
        for (int64_t c = first; c < end; c++)
            sums[c - first] += to_wide(weight[c * a->taps + a->taps - 1 - k]) * dz[(r + k) * a->columns + c];
    T *d_x = call->out[CONVOLUTION_GRAD_D_X];
    for (int64_t c = first; c < end; c++) d_x[r * a->columns + c] = to_compute(sums[c - first]);
}

/* Rows in document order: a row with position p belongs to the document of the row before it if p > 0. */
CPU_OP(convolution_grad, sums_bytes) {
    const ConvolutionAttributes *a = call->attributes;
    const T *d_y = call->in[CONVOLUTION_GRAD_D_Y];
    OpCall forward = forward_call(call);
    W *all = call->workspace;
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < a->columns; first += KERNEL_BLOCK) {
        int64_t end = int_min(a->columns, first + KERNEL_BLOCK), channels = end - first;
        W taps[CONVOLUTION_MOST_TAPS * KERNEL_BLOCK] = {0};
        for (int64_t r = 0; r < a->rows; r++) {
            W *dz = all + r * a->columns + first;
            convolve_row(&forward, r, first, end, dz);
            for (int64_t c = 0; c < channels; c++) {
                W z = dz[c], s = 1 / (1 + wide_exp(-z));
                dz[c] = to_wide(d_y[r * a->columns + first + c]) * (s + z * s * (1 - s));
            }
            add_tap_products(call, r, first, end, dz, taps);
        }
        for (int64_t r = 0; r < a->rows; r++) convolve_back(call, r, first, end, all);
        for (int64_t c = 0; c < channels; c++) {
            W sums[CONVOLUTION_MOST_TAPS];
            for (int64_t k = 0; k < a->taps; k++) sums[a->taps - 1 - k] = taps[k * channels + c];
            kernel_add_to_gradient(call, call->out[CONVOLUTION_GRAD_D_WEIGHT], (first + c) * a->taps, sums, a->taps);
        }
    }
}
