/* linear_cross_entropy on a CPU, a chunk of rows at a time: a GEMM to WIDE logits, a thread per row for its loss and
 * gradient, and two GEMMs that use the gradient. The losses of rows are summed in order, in double. Also last_row. */
#include "backend/cpu/kernel.h"
#include "ops/linear_gemm.h"
#include "ops/loss/loss.h"

/* Rows of a chunk: about four million logits, by shape alone. */
static inline int64_t chunk_rows(int64_t rows, int64_t vocabulary) {
    return int_min(rows, int_max(16, int_min(1024, ((int64_t)1 << 22) / vocabulary)));
}

static int64_t workspace(const Graph *graph, const Node *node) {
    int64_t rows = graph_rows(graph, node->in[LOSS_X]), vocabulary = graph_rows(graph, node->in[LOSS_W]),
            chunk = chunk_rows(rows, vocabulary);
    int64_t wide = precision_bytes(graph->precision, TYPE_WIDE), compute = precision_bytes(graph->precision, TYPE_COMPUTE);
    return (chunk * vocabulary + rows) * wide + (node->out[LOSS_D_X] ? chunk * vocabulary * compute : 0);
}

/* Returns -log softmax(logits)[target], 0 where target < 0; writes its gradient times scale when d_logits is given. */
static W row_loss(T *restrict d_logits, W *restrict logits, int32_t target, W scale, int64_t vocabulary) {
    if (target < 0) {
        if (d_logits) memset(d_logits, 0, vocabulary * sizeof(T));
        return 0;
    }
    W most = logits[0], sum = 0, picked = logits[target];
#pragma omp simd reduction(max : most)
    for (int64_t j = 0; j < vocabulary; j++) most = logits[j] > most ? logits[j] : most;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < vocabulary; j++) {
        W e = wide_exp(logits[j] - most);
        logits[j] = e;
        sum += e;
    }
    if (d_logits) {
        W factor = scale / sum;
        for (int64_t j = 0; j < vocabulary; j++) d_logits[j] = to_compute(logits[j] * factor);
        d_logits[target] = to_compute((logits[target] / sum - 1) * scale);
    }
    return (W)log(sum) - (picked - most);
}

/* Workspace: logits WIDE [chunk, vocabulary], losses WIDE [R], d_logits COMPUTE [chunk, vocabulary]. */
CPU_OP(linear_cross_entropy, workspace) {
    const T *x = call->in[LOSS_X], *w = call->in[LOSS_W];
    const int32_t *targets = call->in[LOSS_TARGETS];
    const W *scale = call->in[LOSS_SCALE];
    W *loss = call->out[LOSS_LOSS];
    T *d_x = call->out[LOSS_D_X];
    void *d_w = call->out[LOSS_D_W];
    int64_t rows = call->in_shape[LOSS_X][0], columns = call->in_shape[LOSS_X][1], vocabulary = call->in_shape[LOSS_W][0];
    int64_t chunk = chunk_rows(rows, vocabulary);
    W *logits = call->workspace, *row_losses = logits + chunk * vocabulary;
    T *d_logits = (T *)(row_losses + rows);
    for (int64_t first = 0; first < rows; first += chunk) {
        LinearShape shape = {.rows = int_min(chunk, rows - first), .in = columns, .out = vocabulary};
        const T *x_chunk = x + first * columns;
        Gemm forward = linear_gemm(shape, KERNEL_GEMM_COMPUTE, x_chunk, w, logits);
        forward.output = KERNEL_GEMM_WIDE;
        gemm(&forward);
#pragma omp parallel for schedule(static)
        for (int64_t r = 0; r < shape.rows; r++)
            row_losses[first + r] =
                row_loss(d_x ? d_logits + r * vocabulary : NULL, logits + r * vocabulary, targets[first + r], *scale, vocabulary);
        if (!d_x) continue;
        Gemm grad_input = linear_grad_input_gemm(shape, KERNEL_GEMM_COMPUTE, d_logits, w, d_x + first * columns);
        gemm(&grad_input);
        if (!d_w) continue;
        Gemm grad_weight = linear_grad_weight_gemm(shape, KERNEL_GEMM_COMPUTE, d_logits, x_chunk, d_w, first == 0 && call->overwrite);
        grad_weight.output = kernel_gradient_type(call);
        gemm(&grad_weight);
    }
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) sum += row_losses[r];
    *loss += (W)(sum * *scale);
}

CPU_OP(last_row) {
    const T *x = call->in[LAST_ROW_X];
    int64_t rows = call->in_shape[LAST_ROW_X][0], columns = call->in_shape[LAST_ROW_X][1];
    memcpy(call->out[LAST_ROW_Y], x + (rows - 1) * columns, columns * sizeof(T));
}
