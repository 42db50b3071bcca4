/* The merge of a block's output into the residual stream, and the norm in front of the next block, in one pass over
 * memory. ZAYA1's learned merge (arXiv 2605.05365, in the form of the released code: the bias is added before the scale) or a
 * plain sum. The stream is WIDE: a bf16 stream loses early layers after 80 scalings.
 *
 * Backward: with ds = d_stream' + the norm's gradient,
 *     d_block = ds * block_scale,       d_block_scale += sum of ds * (block + block_bias),     d_block_bias += block_scale * sum of ds,
 * and the same for the stream. So four column sums suffice: of dy * n, ds * block, ds * stream and ds. */
#include "op/kernel.h"
#include "op/norm.h"
#include "op/residual_norm.h"

#ifdef KERNEL_VARIANT

static void merge_row(W *restrict merged, const T *restrict block, const W *restrict stream, void *const *affine, int64_t columns) {
    const W *restrict block_scale = affine[BLOCK_SCALE], *restrict block_bias = affine[BLOCK_BIAS];
    const W *restrict stream_scale = affine[STREAM_SCALE], *restrict stream_bias = affine[STREAM_BIAS];
    if (block_scale)
        for (int64_t j = 0; j < columns; j++)
            merged[j] = (widen(block[j]) + block_bias[j]) * block_scale[j] + (stream[j] + stream_bias[j]) * stream_scale[j];
    else
        for (int64_t j = 0; j < columns; j++) merged[j] = widen(block[j]) + stream[j];
}

void KERNEL(residual_norm)(const OpCall *call) {
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
static void merge_row_grad(T *restrict d_block, W *restrict d_stream, W *restrict sums, const T *restrict block,
                           const W *restrict stream, void *const *affine, int64_t columns) {
    const W *restrict block_scale = affine[BLOCK_SCALE], *restrict stream_scale = affine[STREAM_SCALE];
    W *restrict sum_block = sums, *restrict sum_stream = sums + columns, *restrict sum = sums + 2 * columns;
    for (int64_t j = 0; j < columns; j++) {
        W ds = d_stream[j];
        sum_block[j] += ds * widen(block[j]);
        sum_stream[j] += ds * stream[j];
        sum[j] += ds;
        d_block[j] = narrow(ds * block_scale[j]);
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

void KERNEL(residual_norm_grad)(const OpCall *call) {
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
        for (int64_t r = b * KERNEL_BLOCK; r < kernel_min(rows, (b + 1) * KERNEL_BLOCK); r++) {
            int64_t at = r * columns;
            if (d_merged) memcpy(d_stream + at, d_merged + at, columns * sizeof(W));
            else memset(d_stream + at, 0, columns * sizeof(W));
            if (d_normed)
                norm_row_grad(attributes->kind, d_stream + at, partial, bias_sum, d_normed + at, merged + at, gain, statistics + r * kept, columns);
            if (affine)
                merge_row_grad(d_block + at, d_stream + at, partial + columns, block + at, stream + at, &call->in[GRAD_AFFINE], columns);
            else
                for (int64_t j = 0; j < columns; j++) d_block[at + j] = narrow(d_stream[at + j]);
        }
    }
    memset(sums, 0, width * sizeof(W));
    kernel_add_partials(sums, partials, blocks, width);
    W *d_gain = call->out[GRAD_OUT_GAIN];
    for (int64_t j = 0; j < columns && d_gain; j++) d_gain[j] += sums[j];
    if (d_bias) kernel_add_partials(d_bias, biases, blocks, columns);
    if (call->out[GRAD_OUT_AFFINE]) affine_grad(call, sums + columns, columns);
}

#else

ResidualNorm op_residual_norm(Graph *graph, TensorId block, TensorId stream, const TensorId affine[4], const Norm *norm) {
    int64_t rows = graph_rows(graph, stream), columns = graph_columns(graph, stream), kept = norm_statistics(norm->kind);
    assert(graph_elements(graph, block) == rows * columns && graph_elements(graph, norm->gain) == columns);
    assert(norm->bias == TENSOR_NONE || (norm->kind == NORM_LAYER && graph_elements(graph, norm->bias) == columns));
    int64_t shape[] = {rows, columns};
    TensorId merged = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, shape, "stream");
    TensorId normed = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "normed");
    TensorId statistics = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, (int64_t[]){rows, kept}, "statistics");
    NormAttributes attributes = {.kind = norm->kind, .epsilon = norm->epsilon};
    TensorId in[] = {block, stream, norm->gain, norm->bias, TENSOR_NONE, TENSOR_NONE, TENSOR_NONE, TENSOR_NONE};
    for (int i = 0; affine && i < 4; i++) in[IN_AFFINE + i] = affine[i];
    graph_node(graph, OP_residual_norm, in, 8, (TensorId[]){merged, normed, statistics}, 3, &attributes, sizeof attributes);
    return (ResidualNorm){.stream = merged, .normed = normed};
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    const TensorId *affine = &node->in[IN_AFFINE];
    bool scaled = affine[0] != TENSOR_NONE;
    int64_t shape[] = {graph_rows(graph, node->in[IN_STREAM]), graph_columns(graph, node->in[IN_STREAM])};
    TensorId in[] = {d_out[OUT_STREAM], d_out[OUT_NORMED], scaled ? node->in[IN_BLOCK] : TENSOR_NONE,
                     scaled ? node->in[IN_STREAM] : TENSOR_NONE, node->out[OUT_STREAM], node->out[OUT_STATISTICS], node->in[IN_GAIN],
                     affine[0], affine[1], affine[2], affine[3]};
    TensorId out[GRAD_OUT_AFFINE + 4];
    out[GRAD_OUT_BLOCK] = d_in[IN_BLOCK] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "d_block");
    out[GRAD_OUT_STREAM] = d_in[IN_STREAM] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, shape, "d_stream");
    out[GRAD_OUT_GAIN] = graph_parameter_gradient(graph, node->in[IN_GAIN]);
    out[GRAD_OUT_BIAS] = graph_parameter_gradient(graph, node->in[IN_BIAS]);
    for (int i = 0; i < 4; i++) out[GRAD_OUT_AFFINE + i] = graph_parameter_gradient(graph, affine[i]);
    graph_node(graph, OP_residual_norm_grad, in, 11, out, 8, node->attributes, sizeof(NormAttributes));
}

/* The stream is kept; the norm is made again from it. */
static TensorId recompute(Graph *graph, const Node *node, int index) {
    const NormAttributes *attributes = node->attributes;
    if (index != OUT_NORMED) return TENSOR_NONE;
    Norm norm = {.kind = attributes->kind, .gain = node->in[IN_GAIN], .bias = node->in[IN_BIAS], .epsilon = attributes->epsilon};
    return op_norm(graph, node->out[OUT_STREAM], &norm);
}

/* A norm: four operations an element, two more for a mean. */
static double norm_operations(const Node *node) {
    const NormAttributes *attributes = node->attributes;
    return attributes->kind == NORM_LAYER ? 6 : 4;
}

/* Merge: four operations (one when plain), and the norm. */
static Cost cost(const Graph *graph, const Node *node) {
    double elements = graph_elements(graph, node->in[IN_STREAM]);
    return (Cost){.flops = ((node->in[IN_AFFINE] ? 4 : 1) + norm_operations(node)) * elements, .bytes = op_tensor_bytes(graph, node)};
}

static Cost grad_cost(const Graph *graph, const Node *node) {
    double elements = graph_elements(graph, node->in[GRAD_MERGED]);
    return (Cost){.flops = ((node->in[GRAD_AFFINE] ? 7 : 0) + 2 * norm_operations(node)) * elements, .bytes = op_tensor_bytes(graph, node)};
}

static int64_t grad_workspace(const Graph *graph, const Node *node) {
    int64_t rows = graph_rows(graph, node->in[GRAD_MERGED]), columns = graph_columns(graph, node->in[GRAD_MERGED]);
    int64_t bias = node->out[GRAD_OUT_BIAS] ? op_partials_bytes(graph, rows, columns) : 0;
    return op_partials_bytes(graph, rows + KERNEL_BLOCK, node->in[GRAD_AFFINE] ? 4 * columns : columns) + bias; /* one more for the sums */
}

const Op op_rule_residual_norm = {.name = "residual_norm", .class = OP_CLASS_NORM, .gradient = gradient, .recompute = recompute, .cost = cost};
const Op op_rule_residual_norm_grad = {.name = "residual_norm_grad", .adds_to = 0xfc, .cost = grad_cost, .workspace = grad_workspace};

#endif
