/* The CPU kernels of residual_norm. */
#include "backend/cpu/kernel.h"
#include "ops/norm/cpu_rows.h"
#include "ops/norm/norm.h"

static int64_t grad_workspace(const Graph *graph, const Node *node) {
    int64_t rows = graph_rows(graph, node->in[GRAD_MERGED]), columns = graph_columns(graph, node->in[GRAD_MERGED]);
    int64_t bias = node->out[GRAD_OUT_BIAS] ? kernel_partials_bytes(graph, rows, columns) : 0;
    return kernel_partials_bytes(graph, rows + KERNEL_BLOCK, node->in[GRAD_AFFINE] ? 4 * columns : columns) +
           bias; /* one more for the sums */
}

static void merge_row(W *restrict merged, const T *restrict block, const W *restrict stream, void *const *affine, int64_t columns) {
    const W *restrict block_scale = affine[BLOCK_SCALE], *restrict block_bias = affine[BLOCK_BIAS];
    const W *restrict stream_scale = affine[STREAM_SCALE], *restrict stream_bias = affine[STREAM_BIAS];
    if (block_scale)
        for (int64_t j = 0; j < columns; j++)
            merged[j] = (to_wide(block[j]) + block_bias[j]) * block_scale[j] + (stream[j] + stream_bias[j]) * stream_scale[j];
    else
        for (int64_t j = 0; j < columns; j++) merged[j] = to_wide(block[j]) + stream[j];
}

CPU_OP(residual_norm) {
    const NormAttributes *attributes = call->attributes;
    const T *block = call->in[IN_BLOCK];
    const W *stream = call->in[IN_STREAM];
    W *merged = call->out[OUT_STREAM], *statistics = call->out[OUT_STATISTICS];
    T *normed = call->out[OUT_NORMED];
    int64_t rows = call->in_shape[IN_STREAM][0], columns = call->in_shape[IN_STREAM][1], kept = call->out_shape[OUT_STATISTICS][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = r * columns;
        kernel_prefetch(block + at + columns, columns);
        kernel_prefetch(stream + at + columns, columns);
        merge_row(merged + at, block + at, stream + at, &call->in[IN_AFFINE], columns);
        norm_row(attributes, normed + at, statistics + r * kept, merged + at, call->in[IN_GAIN], call->in[IN_BIAS], columns);
    }
}

/* From ds in d_stream: the gradients of both branches, and the column sums. */
static void merge_row_grad(T *restrict d_block, W *restrict d_stream, W *restrict sums, const T *restrict block, const W *restrict stream,
    void *const *affine, int64_t columns) {
    const W *restrict block_scale = affine[BLOCK_SCALE], *restrict stream_scale = affine[STREAM_SCALE];
    W *restrict sum_block = sums, *restrict sum_stream = sums + columns, *restrict sum = sums + 2 * columns;
    for (int64_t j = 0; j < columns; j++) {
        W ds = d_stream[j];
        sum_block[j] += ds * to_wide(block[j]);
        sum_stream[j] += ds * stream[j];
        sum[j] += ds;
        d_block[j] = to_compute(ds * block_scale[j]);
        d_stream[j] = ds * stream_scale[j];
    }
}

static void affine_grad(const OpCall *call, const W *sums, int64_t columns) {
    void *const *affine = &call->in[GRAD_AFFINE], *const *gradient = &call->out[GRAD_OUT_AFFINE];
    const W *sum = sums + 2 * columns;
    for (int branch = 0; branch < 2; branch++) { /* the block, then the stream */
        const W *scale = affine[2 * branch], *bias = affine[2 * branch + 1], *weighted = sums + branch * columns;
        W *d_scale = gradient[2 * branch], *d_bias = gradient[2 * branch + 1];
        for (int64_t j = 0; j < columns; j++) {
            d_scale[j] += weighted[j] + bias[j] * sum[j];
            d_bias[j] += scale[j] * sum[j];
        }
    }
}

CPU_OP(residual_norm_grad, grad_workspace) {
    const NormAttributes *attributes = call->attributes;
    const W *d_merged = call->in[GRAD_D_STREAM], *stream = call->in[GRAD_STREAM], *merged = call->in[GRAD_MERGED];
    const W *statistics = call->in[GRAD_STATISTICS], *gain = call->in[GRAD_GAIN];
    const T *d_normed = call->in[GRAD_D_NORMED], *block = call->in[GRAD_BLOCK];
    T *d_block = call->out[GRAD_OUT_BLOCK];
    W *d_stream = call->out[GRAD_OUT_STREAM], *d_bias = call->out[GRAD_OUT_BIAS];
    bool affine = call->in[GRAD_AFFINE] != NULL;
    int64_t rows = call->in_shape[GRAD_MERGED][0], columns = call->in_shape[GRAD_MERGED][1], blocks = kernel_blocks(rows);
    int64_t width = affine ? 4 * columns : columns; /* of the partial sums: gain, then block, stream and plain */
    int64_t kept = call->in_shape[GRAD_STATISTICS][1];
    W *partials = call->workspace, *sums = partials + blocks * width, *biases = sums + width;
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        W *partial = partials + b * width, *bias_sum = d_bias ? biases + b * columns : NULL;
        memset(partial, 0, width * sizeof(W));
        if (bias_sum) memset(bias_sum, 0, columns * sizeof(W));
        for (int64_t r = b * KERNEL_BLOCK; r < int_min(rows, (b + 1) * KERNEL_BLOCK); r++) {
            int64_t at = r * columns;
            if (d_merged) memcpy(d_stream + at, d_merged + at, columns * sizeof(W));
            else memset(d_stream + at, 0, columns * sizeof(W));
            if (d_normed)
                norm_row_grad(
                    attributes->kind, d_stream + at, partial, bias_sum, d_normed + at, merged + at, gain, statistics + r * kept, columns);
            if (affine)
                merge_row_grad(d_block + at, d_stream + at, partial + columns, block + at, stream + at, &call->in[GRAD_AFFINE], columns);
            else
                for (int64_t j = 0; j < columns; j++) d_block[at + j] = to_compute(d_stream[at + j]);
        }
    }
    memset(sums, 0, width * sizeof(W));
    kernel_add_partials(sums, partials, blocks, width);
    W *d_gain = call->out[GRAD_OUT_GAIN];
    for (int64_t j = 0; j < columns && d_gain; j++) d_gain[j] += sums[j];
    if (d_bias) kernel_add_partials(d_bias, biases, blocks, columns);
    if (call->out[GRAD_OUT_AFFINE]) affine_grad(call, sums + columns, columns);
}
