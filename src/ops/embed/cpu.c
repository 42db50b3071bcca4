/* The CPU kernels of embed. */
#include "backend/cpu/kernel.h"
#include "ops/embed/embed.h"

static int64_t grad_workspace(const Graph *graph, const Node *node) {
    return (2 * graph_elements(graph, node->in[1]) + graph_rows(graph, node->in[2])) * (int64_t)sizeof(int32_t);
}

CPU_OP(embed) {
    const int32_t *tokens = call->in[0];
    const T *table = call->in[1];
    const W *bias = call->in[2], *scale = call->in[3];
    W *stream = call->out[0];
    int64_t rows = call->out_shape[0][0], columns = call->out_shape[0][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const T *restrict entry = table + tokens[r] * columns;
        W *restrict row = stream + r * columns;
        if (scale)
            for (int64_t j = 0; j < columns; j++) row[j] = (to_wide(entry[j]) + bias[j]) * scale[j];
        else
            for (int64_t j = 0; j < columns; j++) row[j] = to_wide(entry[j]);
    }
}

/* rows[r]: the next row with the token of row r, -1: none. Returns how many tokens there are, and their first rows in `firsts`. `last` has room for the vocabulary. */
static int64_t chain_rows(const int32_t *tokens, int64_t count, int32_t *rows, int32_t *firsts, int32_t *last, int64_t vocabulary) {
    int64_t found = 0;
    memset(last, -1, vocabulary * sizeof *last);
    for (int64_t r = 0; r < count; r++) {
        int32_t before = last[tokens[r]];
        if (before < 0) firsts[found++] = (int32_t)r;
        else rows[before] = (int32_t)r;
        rows[r] = -1;
        last[tokens[r]] = (int32_t)r;
    }
    return found;
}

/* Adds the rows of one token's chain to its entry, and to the sums of bias and scale, in columns `first` to `end` - 1. */
static void add_chain(const OpCall *call, int64_t row, const int32_t *rows, int64_t first, int64_t end) {
    const W *d_stream = call->in[0], *bias = call->in[3], *scale = call->in[4];
    W *d_bias = call->out[1], *d_scale = call->out[2], sum[KERNEL_BLOCK] = {0};
    int64_t columns = call->in_shape[0][1], at = ((const int32_t *)call->in[1])[row] * columns + first;
    const T *restrict entry = (const T *)call->in[2] + at;
    for (; row >= 0; row = rows[row]) {
        const W *restrict d_row = d_stream + row * columns + first;
        for (int64_t j = 0; j < end - first; j++) sum[j] += d_row[j];
    }
    for (int64_t j = 0; j < end - first && scale; j++) {
        W d_scaled = sum[j] * scale[first + j];
        d_scale[first + j] += sum[j] * (to_wide(entry[j]) + bias[first + j]);
        d_bias[first + j] += d_scaled;
        sum[j] = d_scaled;
    }
    kernel_add_to_gradient(call, call->out[0], at, sum, end - first);
}

CPU_OP(embed_grad, grad_workspace) {
    int64_t count = call->in_shape[0][0], columns = call->in_shape[0][1], vocabulary = call->in_shape[2][0];
    int32_t *rows = call->workspace, *firsts = rows + count;
    int64_t tokens = chain_rows(call->in[1], count, rows, firsts, firsts + count, vocabulary);
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < columns; first += KERNEL_BLOCK)
        for (int64_t i = 0; i < tokens; i++) add_chain(call, firsts[i], rows, first, int_min(columns, first + KERNEL_BLOCK));
}
