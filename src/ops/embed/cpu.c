/* embed on a CPU. For the gradient, rows of the same token are chained first. Then threads divide
 * columns, KERNEL_BLOCK at a time, and each adds all chains in its columns: no atomics, and sums in
 * row order. */
#include "backend/cpu/kernel.h"
#include "ops/embed/embed.h"

static int64_t embed_grad_cpu_workspace(const Graph *graph, const Node *node) {
    return (2 * graph_elements(graph, node->in[EMBED_GRAD_TOKENS]) + graph_rows(graph, node->in[EMBED_GRAD_TABLE])) *
           (int64_t)sizeof(int32_t);
}

/* Returns the row of a token in the table, which has `entries` rows; -1: none. */
static inline int64_t table_row(const OpCall *call, int32_t token, int64_t entries) {
    int64_t at = token - ((const EmbedSpec *)call->attributes)->first;
    return at < entries ? int_max(at, -1) : -1;
}

CPU_OP(embed) {
    const int32_t *tokens = call->in[EMBED_TOKENS];
    const T *table = call->in[EMBED_TABLE];
    const W *bias = call->in[EMBED_BIAS], *scale = call->in[EMBED_SCALE];
    W *stream = call->out[EMBED_STREAM], factor = (W)embed_factor(call->attributes);
    int64_t rows = call->out_shape[EMBED_STREAM][0], columns = call->out_shape[EMBED_STREAM][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = table_row(call, tokens[r], call->in_shape[EMBED_TABLE][0]);
        const T *restrict entry = table + at * columns;
        W *restrict row = stream + r * columns;
        if (at < 0) memset(row, 0, columns * sizeof(W));
        else if (scale)
            for (int64_t j = 0; j < columns; j++) row[j] = (to_wide(entry[j]) + bias[j]) * scale[j];
        else
            for (int64_t j = 0; j < columns; j++) row[j] = to_wide(entry[j]) * factor;
    }
}

CPU_OP(put_rows) {
    const TokenRuns *runs = call->attributes;
    const T *rows = call->in[PUT_ROWS_ROWS];
    T *table = call->out[PUT_ROWS_TABLE];
    int64_t columns = call->out_shape[PUT_ROWS_TABLE][1];
    for (const TokenRun *run = runs->items; run < runs->items + runs->count; run++)
        memcpy(table + run->first * columns, rows + run->row * columns, (size_t)(run->count * columns) * sizeof *rows);
}

/* Chains the rows of each token that the table has: next[r] is the next row with the token of row r, or -1. Returns how
 * many such tokens occur, with their first rows in `firsts`. `last` [entries] is scratch. */
static int64_t chain_rows(const OpCall *call, int64_t count, int32_t *next, int32_t *firsts, int32_t *last, int64_t entries) {
    const int32_t *tokens = call->in[EMBED_GRAD_TOKENS];
    int64_t found = 0;
    memset(last, -1, entries * sizeof *last);
    for (int64_t r = 0; r < count; r++) {
        int64_t entry = table_row(call, tokens[r], entries);
        if (entry < 0) continue;
        if (last[entry] < 0) firsts[found++] = (int32_t)r;
        else next[last[entry]] = (int32_t)r;
        next[r] = -1;
        last[entry] = (int32_t)r;
    }
    return found;
}

/* Adds the rows of one token's chain to its entry, and to the sums of bias and scale, in columns
 * `first` to `end` - 1. */
static void add_chain(const OpCall *call, int64_t row, const int32_t *next, int64_t first, int64_t end) {
    const W *d_stream = call->in[EMBED_GRAD_D_STREAM], *bias = call->in[EMBED_GRAD_BIAS], *scale = call->in[EMBED_GRAD_SCALE];
    const int32_t *tokens = call->in[EMBED_GRAD_TOKENS];
    W *d_bias = call->out[EMBED_GRAD_D_BIAS], *d_scale = call->out[EMBED_GRAD_D_SCALE], sum[KERNEL_BLOCK] = {0};
    W factor = (W)embed_factor(call->attributes);
    int64_t columns = call->in_shape[EMBED_GRAD_D_STREAM][1], token = tokens[row];
    int64_t at = table_row(call, tokens[row], call->in_shape[EMBED_GRAD_TABLE][0]) * columns + first;
    const T *restrict entry = (const T *)call->in[EMBED_GRAD_TABLE] + at;
    for (; row >= 0; row = next[row]) {
        const W *restrict d_row = d_stream + row * columns + first;
        for (int64_t j = 0; j < end - first; j++) sum[j] += d_row[j];
    }
    for (int64_t j = 0; j < end - first && scale; j++) {
        W d_scaled = sum[j] * scale[first + j];
        if (d_scale) d_scale[first + j] += sum[j] * (to_wide(entry[j]) + bias[first + j]);
        if (d_bias) d_bias[first + j] += d_scaled;
        sum[j] = d_scaled;
    }
    for (int64_t j = 0; j < end - first && !scale; j++) sum[j] *= factor;
    if (token != ((const EmbedSpec *)call->attributes)->padding)
        kernel_add_to_gradient(call, call->out[EMBED_GRAD_D_TABLE], at, sum, end - first);
}

CPU_OP(embed_grad, embed_grad_cpu_workspace) {
    int64_t count = call->in_shape[EMBED_GRAD_D_STREAM][0], columns = call->in_shape[EMBED_GRAD_D_STREAM][1];
    int64_t entries = call->in_shape[EMBED_GRAD_TABLE][0];
    int32_t *next = call->workspace, *firsts = next + count, *last = firsts + count;
    int64_t tokens = chain_rows(call, count, next, firsts, last, entries);
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < columns; first += KERNEL_BLOCK)
        for (int64_t i = 0; i < tokens; i++) add_chain(call, firsts[i], next, first, int_min(columns, first + KERNEL_BLOCK));
}
