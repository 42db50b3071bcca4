/* The upward half of low-rank adapters (LoRA, arXiv 2106.09685): y + [u_1 b_1^T | u_2 b_2^T | ...]. Linear layers that share their input are one product here
 * (graph_fuse), with an adapter for each: the parts of y. Part p reads its own columns of u and its own rows of b. y is added to where it lies, when nothing
 * else reads it. The downward half is a linear layer like any other. */
#include "ops/lora/lora.h"

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

const Op op_rule_lora = {.name = "lora", .in_place = OPERAND(0), .gradient = gradient, .cost = cost};

const Op op_rule_lora_grad_input = {.name = "lora_grad_input", .cost = cost};

const Op op_rule_lora_grad_weight = {.name = "lora_grad_weight", .adds_to = 1, .overwrites = OPERAND(0), .cost = cost};
