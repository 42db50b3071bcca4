/* The upward half of low-rank adapters (LoRA, arXiv 2106.09685): y + [u_1 b_1^T | u_2 b_2^T | ...]. Linear layers that share their input are one product here
 * (graph_fuse), with an adapter for each: the parts of y. Part p reads its own columns of u and its own rows of b. y is added to where it lies, when nothing
 * else reads it. The downward half is a linear layer like any other. */
#include "op/lora.h"
#include "op/kernel.h"

#ifdef KERNEL_VARIANT

void KERNEL(lora)(const OpCall *call) {
    const LoraAttributes *attributes = call->attributes;
    int64_t rows = call->in_shape[0][0], out = call->in_shape[0][1], width = call->in_shape[1][1], rank = call->in_shape[2][1];
    if (call->out[0] != call->in[0]) memcpy(call->out[0], call->in[0], rows * out * sizeof(T));
    for (int64_t p = 0, column = 0; p < attributes->parts; column += attributes->columns[p++])
        gemm(&(Gemm){.transpose_b = true, .accumulate = true, .input = KERNEL_GEMM_COMPUTE, .output = KERNEL_GEMM_COMPUTE, .m = rows,
                     .n = attributes->columns[p], .k = rank, .a = (const T *)call->in[1] + p * rank, .lda = width,
                     .b = (const T *)call->in[2] + column * rank, .ldb = rank, .c = (T *)call->out[0] + column, .ldc = out});
}

void KERNEL(lora_grad_input)(const OpCall *call) {
    const LoraAttributes *attributes = call->attributes;
    int64_t rows = call->in_shape[0][0], out = call->in_shape[0][1], rank = call->in_shape[1][1], width = call->out_shape[0][1];
    for (int64_t p = 0, column = 0; p < attributes->parts; column += attributes->columns[p++])
        gemm(&(Gemm){.input = KERNEL_GEMM_COMPUTE, .output = KERNEL_GEMM_COMPUTE, .m = rows, .n = rank, .k = attributes->columns[p],
                     .a = (const T *)call->in[0] + column, .lda = out, .b = (const T *)call->in[1] + column * rank, .ldb = rank,
                     .c = (T *)call->out[0] + p * rank, .ldc = width});
}

void KERNEL(lora_grad_weight)(const OpCall *call) {
    const LoraAttributes *attributes = call->attributes;
    int64_t rows = call->in_shape[0][0], out = call->in_shape[0][1], width = call->in_shape[1][1], rank = call->out_shape[0][1];
    int64_t row = rank * (int64_t)(call->narrow ? sizeof(T) : sizeof(W));
    for (int64_t p = 0, column = 0; p < attributes->parts; column += attributes->columns[p++])
        gemm(&(Gemm){.transpose_a = true, .accumulate = !call->fresh, .input = KERNEL_GEMM_COMPUTE, .output = kernel_gemm_kept(call),
                     .m = attributes->columns[p], .n = rank, .k = rows, .a = (const T *)call->in[0] + column, .lda = out,
                     .b = (const T *)call->in[1] + p * rank, .ldb = width, .c = (char *)call->out[0] + column * row, .ldc = rank});
}

#else

TensorId op_lora(Graph *graph, TensorId y, TensorId u, TensorId b, const int64_t *columns, int parts) {
    LoraAttributes attributes = {.parts = parts};
    int64_t shape[] = {graph_rows(graph, y), graph_columns(graph, y)}, sum = 0;
    assert(parts > 0 && parts <= LORA_PARTS && graph_get(graph, y)->type == TYPE_COMPUTE && graph_get(graph, u)->type == TYPE_COMPUTE);
    for (int i = 0; i < parts; i++) sum += attributes.columns[i] = columns[i];
    assert(sum == shape[1] && graph_rows(graph, b) == sum && graph_columns(graph, u) == parts * graph_columns(graph, b));
    TensorId adapted = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "adapted");
    graph_node(graph, OP_lora, (TensorId[]){y, u, b}, 3, &adapted, 1, &attributes, sizeof attributes);
    return adapted;
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId u = node->in[1], b = node->in[2], d_b = graph_parameter_gradient(graph, b);
    int64_t shape[] = {graph_rows(graph, u), graph_columns(graph, u)};
    graph_node(graph, OP_lora_grad_weight, (TensorId[]){d_out[0], u}, 2, &d_b, 1, node->attributes, sizeof(LoraAttributes));
    d_in[0] = d_out[0];
    d_in[1] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "d_u");
    graph_node(graph, OP_lora_grad_input, (TensorId[]){d_out[0], b}, 2, &d_in[1], 1, node->attributes, sizeof(LoraAttributes));
}

static Cost cost(const Graph *graph, const Node *node) {
    TensorId b = node->op == OP_lora ? node->in[2] : node->op == OP_lora_grad_input ? node->in[1] : node->out[0];
    return (Cost){.flops = 2.0 * graph_rows(graph, node->in[0]) * graph_elements(graph, b), .bytes = op_tensor_bytes(graph, node)};
}

const Op op_rule_lora = {.name = "lora", .in_place = 1, .gradient = gradient, .cost = cost};
const Op op_rule_lora_grad_input = {.name = "lora_grad_input", .cost = cost};
const Op op_rule_lora_grad_weight = {.name = "lora_grad_weight", .adds_to = 1, .begins = 1, .cost = cost};

#endif
