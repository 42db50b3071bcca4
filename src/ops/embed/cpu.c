/* embed on a CPU. For the gradient, rows of the same token are chained first; then threads share out columns,
 * KERNEL_BLOCK at a time, and each adds up all chains in them: no atomics, and sums in row order. */
#include "backend/cpu/kernel.h"
#include "ops/embed/embed.h"

static int64_t grad_workspace(const Graph *graph, const Node *node) {
    return (2 * graph_elements(graph, node->in[EMBED_GRAD_TOKENS]) + graph_rows(graph, node->in[EMBED_GRAD_TABLE])) *
           (int64_t)sizeof(int32_t);
}

CPU_OP(embed) {
    const int32_t *tokens = call->in[EMBED_TOKENS];
    const T *table = call->in[EMBED_TABLE];
    const W *bias = call->in[EMBED_BIAS], *scale = call->in[EMBED_SCALE];
    W *stream = call->out[EMBED_STREAM];
    int64_t rows = call->out_shape[EMBED_STREAM][0], columns = call->out_shape[EMBED_STREAM][1];
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

/* Chains the rows of each token: next[r] is the next row with the token of row r, or -1. Returns how many tokens
 * occur, with their first rows in `firsts`. `last` [vocabulary] is scratch. */
static int64_t chain_rows(const int32_t *tokens, int64_t count, int32_t *next, int32_t *firsts, int32_t *last, int64_t vocabulary) {
    int64_t found = 0;
    memset(last, -1, vocabulary * sizeof *last);
    for (int64_t r = 0; r < count; r++) {
        int32_t before = last[tokens[r]];
        if (before < 0) firsts[found++] = (int32_t)r;
        else next[before] = (int32_t)r;
        next[r] = -1;
        last[tokens[r]] = (int32_t)r;
    }
    return found;
}

/* Adds the rows of one token's chain to its entry, and to the sums of bias and scale, in columns `first` to `end` -
 * 1. */
static void add_chain(const OpCall *call, int64_t row, const int32_t *next, int64_t first, int64_t end) {
    const W *d_stream = call->in[EMBED_GRAD_D_STREAM], *bias = call->in[EMBED_GRAD_BIAS], *scale = call->in[EMBED_GRAD_SCALE];
    const int32_t *tokens = call->in[EMBED_GRAD_TOKENS];
    W *d_bias = call->out[EMBED_GRAD_D_BIAS], *d_scale = call->out[EMBED_GRAD_D_SCALE], sum[KERNEL_BLOCK] = {0};
    int64_t columns = call->in_shape[EMBED_GRAD_D_STREAM][1], token = tokens[row], at = token * columns + first;
    const T *restrict entry = (const T *)call->in[EMBED_GRAD_TABLE] + at;
    for (; row >= 0; row = next[row]) {
        const W *restrict d_row = d_stream + row * columns + first;
        for (int64_t j = 0; j < end - first; j++) sum[j] += d_row[j];
    }
    for (int64_t j = 0; j < end - first && scale; j++) {
        W d_scaled = sum[j] * scale[first + j];
        d_scale[first + j] += sum[j] * (to_wide(entry[j]) + bias[first + j]);
        d_bias[first + j] += d_scaled;
        sum[j] = d_scaled;
    }
    if (token != ((const EmbedAttributes *)call->attributes)->padding)
        kernel_add_to_gradient(call, call->out[EMBED_GRAD_D_TABLE], at, sum, end - first);
}

CPU_OP(embed_grad, grad_workspace) {
    int64_t count = call->in_shape[EMBED_GRAD_D_STREAM][0], columns = call->in_shape[EMBED_GRAD_D_STREAM][1];
    int64_t vocabulary = call->in_shape[EMBED_GRAD_TABLE][0];
    int32_t *next = call->workspace, *firsts = next + count, *last = firsts + count;
    int64_t tokens = chain_rows(call->in[EMBED_GRAD_TOKENS], count, next, firsts, last, vocabulary);
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < columns; first += KERNEL_BLOCK)
        for (int64_t i = 0; i < tokens; i++) add_chain(call, firsts[i], next, first, int_min(columns, first + KERNEL_BLOCK));
}
