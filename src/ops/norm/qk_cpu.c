/* Norms of queries and keys on a CPU, one thread per KERNEL_BLOCK rows. A group of columns is
 * cast to WIDE in scratch and goes through the row functions of all other norms. Scratch: one
 * such group per block; in the backward pass two, and per block the sums of the gains' and
 * biases' gradients. */
#include "backend/cpu/kernel.h"
#include "ops/norm/cpu_rows_kernels.h"
#include "ops/norm/norm.h"

static int64_t qk_cpu_workspace(const Graph *graph, const Node *node) {
    int64_t query = graph_elements(graph, node->in[QK_NORM_GAIN]), key = graph_elements(graph, node->in[QK_NORM_KEY_GAIN]);
    return kernel_partials_bytes(graph, graph_rows(graph, node->in[QK_NORM_QKV]), int_max(query, key));
}

static int64_t qk_grad_cpu_workspace(const Graph *graph, const Node *node) {
    int64_t query = graph_elements(graph, node->in[QK_NORM_GRAD_GAIN]), key = graph_elements(graph, node->in[QK_NORM_GRAD_KEY_GAIN]);
    return kernel_partials_bytes(graph, graph_rows(graph, node->in[QK_NORM_GRAD_QKV]), 2 * (query + key + int_max(query, key)));
}

/* Processes one part of one row; `buffer` holds a group. */
static void part_row(const OpCall *call, int part, int64_t row, W *restrict buffer) {
    const QkNormAttributes *attributes = call->attributes;
    int64_t columns = call->in_shape[QK_NORM_QKV][1], group = call->in_shape[QK_NORM_GAIN + part][0];
    int64_t begin = row * columns + qk_begin(&attributes->heads, part), width = qk_columns(&attributes->heads, part);
    int64_t kept = norm_statistics(attributes->norm[part].kind);
    const T *x = (const T *)call->in[QK_NORM_QKV] + begin;
    T *y = (T *)call->out[QK_NORM_OUT] + begin;
    W *statistics = (W *)call->out[QK_NORM_STATISTICS + part] + row * (width / group) * kept;
    for (int64_t at = 0; at < width; at += group, statistics += kept) {
        for (int64_t j = 0; j < group; j++) buffer[j] = to_wide(x[at + j]);
        norm_row(&attributes->norm[part], y + at, statistics, buffer, call->in[QK_NORM_GAIN + part], call->in[QK_NORM_BIAS + part], group);
    }
}

CPU_OP(qk_norm, qk_cpu_workspace) {
    const QkNormAttributes *attributes = call->attributes;
    int64_t rows = call->in_shape[QK_NORM_QKV][0], columns = call->in_shape[QK_NORM_QKV][1];
    int64_t values = qk_begin(&attributes->heads, QK_PARTS);
    int64_t width = int_max(call->in_shape[QK_NORM_GAIN][0], call->in_shape[QK_NORM_KEY_GAIN][0]);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < kernel_blocks(rows); block++)
        for (int64_t r = block * KERNEL_BLOCK; r < int_min(rows, (block + 1) * KERNEL_BLOCK); r++) {
            for (int part = 0; part < QK_PARTS; part++) part_row(call, part, r, (W *)call->workspace + block * width);
            memcpy((T *)call->out[QK_NORM_OUT] + r * columns + values, (const T *)call->in[QK_NORM_QKV] + r * columns + values,
                (columns - values) * sizeof(T));
        }
}

/* Sums of a block for one part. */
typedef struct PartSums { W *gain, *bias; } PartSums;

/* `buffer` holds two groups: x, and the gradient. */
static void part_row_grad(const OpCall *call, int part, int64_t row, W *restrict buffer, const PartSums *sums) {
    const QkNormAttributes *attributes = call->attributes;
    int64_t columns = call->in_shape[QK_NORM_GRAD_QKV][1], group = call->in_shape[QK_NORM_GRAD_GAIN + part][0];
    int64_t begin = row * columns + qk_begin(&attributes->heads, part), width = qk_columns(&attributes->heads, part);
    int64_t kept = norm_statistics(attributes->norm[part].kind);
    const T *dy = (const T *)call->in[QK_NORM_GRAD_D_OUT] + begin, *x = (const T *)call->in[QK_NORM_GRAD_QKV] + begin;
    T *dx = (T *)call->out[QK_NORM_GRAD_D_QKV] + begin;
    const W *statistics = (const W *)call->in[QK_NORM_GRAD_STATISTICS + part] + row * (width / group) * kept;
    W *restrict wide = buffer + group;
    for (int64_t at = 0; at < width; at += group, statistics += kept) {
        for (int64_t j = 0; j < group; j++) {
            buffer[j] = to_wide(x[at + j]);
            wide[j] = 0;
        }
        norm_row_grad(attributes->norm[part].kind, wide, sums->gain, sums->bias, dy + at, buffer, call->in[QK_NORM_GRAD_GAIN + part],
            statistics, group);
        for (int64_t j = 0; j < group; j++) dx[at + j] = to_compute(wide[j]);
    }
}

/* Scratch: for each part the sums of all blocks, gain then bias; then two groups per block. */
CPU_OP(qk_norm_grad, qk_grad_cpu_workspace) {
    const QkNormAttributes *attributes = call->attributes;
    int64_t rows = call->in_shape[QK_NORM_GRAD_QKV][0], columns = call->in_shape[QK_NORM_GRAD_QKV][1], blocks = kernel_blocks(rows);
    int64_t values = qk_begin(&attributes->heads, QK_PARTS);
    int64_t groups[2] = {call->in_shape[QK_NORM_GRAD_GAIN][0], call->in_shape[QK_NORM_GRAD_KEY_GAIN][0]},
            width = int_max(groups[0], groups[1]);
    PartSums all[2] = {{.gain = call->workspace}};
    all[0].bias = all[0].gain + blocks * groups[0];
    all[1].gain = all[0].bias + blocks * groups[0];
    all[1].bias = all[1].gain + blocks * groups[1];
    W *buffers = all[1].bias + blocks * groups[1];
    memset(call->workspace, 0, (buffers - (W *)call->workspace) * sizeof(W));
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++)
        for (int64_t r = block * KERNEL_BLOCK; r < int_min(rows, (block + 1) * KERNEL_BLOCK); r++) {
            for (int part = 0; part < QK_PARTS; part++) {
                PartSums sums = {.gain = all[part].gain + block * groups[part]};
                if (call->out[QK_NORM_GRAD_D_BIAS + part]) sums.bias = all[part].bias + block * groups[part];
                part_row_grad(call, part, r, buffers + block * 2 * width, &sums);
            }
            memcpy((T *)call->out[QK_NORM_GRAD_D_QKV] + r * columns + values,
                (const T *)call->in[QK_NORM_GRAD_D_OUT] + r * columns + values, (columns - values) * sizeof(T));
        }
    for (int part = 0; part < QK_PARTS; part++) {
        kernel_add_partials(call->out[QK_NORM_GRAD_D_GAIN + part], all[part].gain, blocks, groups[part]);
        kernel_add_partials(call->out[QK_NORM_GRAD_D_BIAS + part], all[part].bias, blocks, groups[part]);
    }
    kernel_put_amax(call, QK_NORM_GRAD_D_QKV, QK_NORM_GRAD_AMAX);
}
