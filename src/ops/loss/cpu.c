/* The CPU kernels of cross_entropy. */
#include "backend/cpu/kernel.h"
#include "ops/loss/loss.h"

/* Rows of a chunk: about four million logits, by shape alone. */
static inline int64_t chunk_rows(int64_t rows, int64_t vocabulary) {
    return int_min(rows, int_max(16, int_min(1024, ((int64_t)1 << 22) / vocabulary)));
}

static int64_t workspace(const Graph *graph, const Node *node) {
    int64_t rows = graph_rows(graph, node->in[0]), vocabulary = graph_rows(graph, node->in[1]), chunk = chunk_rows(rows, vocabulary);
    int64_t wide = precision_bytes(graph->precision, TYPE_WIDE), compute = precision_bytes(graph->precision, TYPE_COMPUTE);
    return (chunk * vocabulary + rows) * wide + (node->out[1] ? chunk * vocabulary * compute : 0);
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

CPU_OP(linear_cross_entropy, workspace) {
    const T *x = call->in[0], *w = call->in[1];
    const int32_t *targets = call->in[2];
    const W *scale = call->in[3];
    W *loss = call->out[0];
    T *d_x = call->out[1];
    int64_t rows = call->in_shape[0][0], columns = call->in_shape[0][1], vocabulary = call->in_shape[1][0];
    int64_t chunk = chunk_rows(rows, vocabulary);
    W *logits = call->workspace, *row_losses = logits + chunk * vocabulary;
    T *d_logits = (T *)(row_losses + rows);
    for (int64_t first = 0; first < rows; first += chunk) {
        int64_t count = int_min(chunk, rows - first);
        gemm(&(Gemm){.transpose_b = true,
            .input = KERNEL_GEMM_COMPUTE,
            .output = KERNEL_GEMM_WIDE,
            .m = count,
            .n = vocabulary,
            .k = columns,
            .a = x + first * columns,
            .lda = columns,
            .b = w,
            .ldb = columns,
            .c = logits,
            .ldc = vocabulary});
#pragma omp parallel for schedule(static)
        for (int64_t r = 0; r < count; r++)
            row_losses[first + r] =
                row_loss(d_x ? d_logits + r * vocabulary : NULL, logits + r * vocabulary, targets[first + r], *scale, vocabulary);
        if (!d_x) continue;
        gemm(&(Gemm){.input = KERNEL_GEMM_COMPUTE,
            .output = KERNEL_GEMM_COMPUTE,
            .m = count,
            .n = columns,
            .k = vocabulary,
            .a = d_logits,
            .lda = vocabulary,
            .b = w,
            .ldb = columns,
            .c = d_x + first * columns,
            .ldc = columns});
        if (!call->out[2]) continue;
        gemm(&(Gemm){.transpose_a = true,
            .accumulate = first > 0 || !call->overwrite,
            .input = KERNEL_GEMM_COMPUTE,
            .output = kernel_gradient_type(call),
            .m = vocabulary,
            .n = columns,
            .k = count,
            .a = d_logits,
            .lda = vocabulary,
            .b = x + first * columns,
            .ldb = columns,
            .c = call->out[2],
            .ldc = columns});
    }
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) sum += row_losses[r];
    *loss += (W)(sum * *scale);
}

CPU_OP(last_row) {
    int64_t rows = call->in_shape[0][0], columns = call->in_shape[0][1];
    memcpy(call->out[0], (const T *)call->in[0] + (rows - 1) * columns, columns * sizeof(T));
}
