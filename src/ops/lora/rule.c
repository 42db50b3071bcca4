/* The up-projection of low-rank adapters (LoRA, arXiv 2106.09685): y + [u_1 b_1^T | u_2 b_2^T | ...]. Linear layers
 * that share their input are one GEMM (graph_fuse) whose output y [R, out] holds their columns side by side; some or all
 * have an adapter. Adapter i reads its `rank` columns of u and columns[i].count rows of b. The sum may take y's memory.
 * The down-projection, u = x a^T, is an ordinary linear layer. Gradients, per adapter: d_u = d_y b, d_b += d_y^T u. */
#include "ops/lora/lora.h"

TensorId op_lora(Graph *graph, TensorId y, TensorId u, TensorId b, const LoraColumns *columns, int adapters) {
    LoraAttributes attributes = {.adapters = adapters};
    int64_t rows = graph_rows(graph, y), out = graph_columns(graph, y), sum = 0;
    assert(adapters > 0 && adapters <= LORA_MAX_ADAPTERS);
    assert(graph_get(graph, y)->type == TYPE_COMPUTE && graph_get(graph, u)->type == TYPE_COMPUTE);
    for (int64_t i = 0, end = 0; i < adapters; i++) {
        assert(columns[i].first >= end && columns[i].count > 0 && columns[i].first + columns[i].count <= out);
        end = columns[i].first + columns[i].count;
        attributes.columns[i] = columns[i];
        sum += columns[i].count;
    }
    assert(graph_rows(graph, b) == sum && graph_columns(graph, u) == adapters * graph_columns(graph, b));
    TensorId adapted = graph_activation(graph, TYPE_COMPUTE, rows, out, "adapted");
    graph_node(graph, OP_lora, (Inputs){[LORA_Y] = y, [LORA_U] = u, [LORA_B] = b}, (Outputs){[LORA_ADAPTED] = adapted}, &attributes,
        sizeof attributes);
    return adapted;
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId d_adapted = d_out[LORA_ADAPTED], u = node->in[LORA_U], b = node->in[LORA_B];
    graph_node(graph, OP_lora_grad_weight, (Inputs){[LORA_GRAD_WEIGHT_D_ADAPTED] = d_adapted, [LORA_GRAD_WEIGHT_U] = u},
        (Outputs){[LORA_GRAD_WEIGHT_D_B] = graph_parameter_gradient(graph, b)}, node->attributes, 0);
    d_in[LORA_Y] = d_adapted;
    TensorId d_u = d_in[LORA_U] = graph_activation(graph, TYPE_COMPUTE, graph_rows(graph, u), graph_columns(graph, u), "d_u");
    graph_node(graph, OP_lora_grad_input, (Inputs){[LORA_GRAD_INPUT_D_ADAPTED] = d_adapted, [LORA_GRAD_INPUT_B] = b},
        (Outputs){[LORA_GRAD_INPUT_D_U] = d_u}, node->attributes, 0);
}

/* The GEMMs of all adapters, of rows x out x rank in all. */
static double gemm_flops(const Graph *graph, TensorId y, TensorId b) { return 2.0 * graph_rows(graph, y) * graph_elements(graph, b); }

static double flops(const Graph *graph, const Node *node) { return gemm_flops(graph, node->in[LORA_Y], node->in[LORA_B]); }
static double grad_input_flops(const Graph *graph, const Node *node) {
    return gemm_flops(graph, node->in[LORA_GRAD_INPUT_D_ADAPTED], node->in[LORA_GRAD_INPUT_B]);
}
static double grad_weight_flops(const Graph *graph, const Node *node) {
    return gemm_flops(graph, node->in[LORA_GRAD_WEIGHT_D_ADAPTED], node->out[LORA_GRAD_WEIGHT_D_B]);
}

const Op op_rule_lora = {.name = "lora", .in_place = OPERAND(LORA_Y), .gradient = gradient, .flops = flops};
const Op op_rule_lora_grad_input = {.name = "lora_grad_input", .flops = grad_input_flops};
const Op op_rule_lora_grad_weight = {
    .name = "lora_grad_weight",
    .adds_to = OPERAND(LORA_GRAD_WEIGHT_D_B),
    .overwrites = OPERAND(LORA_GRAD_WEIGHT_D_B),
    .flops = grad_weight_flops,
};
