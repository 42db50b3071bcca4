/* The up-projection of low-rank adapters (LoRA, arXiv 2106.09685): y +
 * [u_1 b_1^T | u_2 b_2^T | ...]. Linear layers that share their input are one GEMM (graph_fuse),
 * whose output y [R, out] holds their columns side by side; some or all of them have an adapter.
 * Adapter i reads its `rank` columns of u and columns[i].count rows of b. The sum may reuse y's
 * memory. The down-projection, u = x a^T, is an ordinary linear layer. Gradients, per adapter: d_u
 * = d_y b, d_b += d_y^T u. lora_groups is the same for generation, where rows have adapters of
 * several models.
 *
 * A frozen layer and its adapters are one operation, y = x w^T + bias + [u_1 b_1^T | ...] with u =
 * factor x a^T. A kernel can then compute the sum in one pass over y, and d_x = d_y w + d_v a, with
 * v = x a^T, in one pass over d_x. */
#include <string.h>

#include "ops/activation/activation.h"
#include "ops/linear/linear.h"
#include "ops/lora/lora.h"

/* Checks the columns of adapters of y [R, out] against their u and b; offset TENSOR_NONE: one group. */
static LoraAttributes lora_attributes(const Graph *graph, int64_t out, const LoraGroups *lora) {
    const LoraColumns *columns = lora->columns;
    const int64_t groups = lora->offset ? graph_elements(graph, lora->offset) - 1 : 1;
    const int adapters = lora->adapters;
    LoraAttributes attributes = {.adapters = adapters};
    int64_t sum = 0;
    assert(adapters > 0 && adapters <= LORA_MAX_ADAPTERS);
    for (int64_t i = 0, end = 0; i < adapters; i++) {
        assert(columns[i].first >= end && columns[i].count > 0 && columns[i].first + columns[i].count <= out);
        end = columns[i].first + columns[i].count;
        attributes.columns[i] = columns[i];
        sum += columns[i].count;
    }
    assert(graph_get(graph, lora->u)->type == TYPE_COMPUTE && graph_rows(graph, lora->b) == groups * sum);
    assert(graph_columns(graph, lora->u) == adapters * graph_columns(graph, lora->b));
    return attributes;
}

TensorId op_lora(Graph *graph, TensorId y, TensorId u, TensorId b, const LoraColumns *columns, int adapters) {
    int64_t rows = graph_rows(graph, y), out = graph_columns(graph, y);
    LoraGroups one = {.u = u, .b = b, .adapters = adapters};
    memcpy(one.columns, columns, (size_t)adapters * sizeof *columns);
    LoraAttributes attributes = lora_attributes(graph, out, &one);
    assert(graph_get(graph, y)->type == TYPE_COMPUTE);
    TensorId adapted = graph_activation(graph, TYPE_COMPUTE, rows, out, "adapted");
    graph_node(graph, OP_lora, (Inputs){[LORA_Y] = y, [LORA_U] = u, [LORA_B] = b}, (Outputs){[LORA_ADAPTED] = adapted}, &attributes,
        sizeof attributes);
    return adapted;
}

TensorId op_lora_groups(Graph *graph, TensorId y, const LoraGroups *groups) {
    int64_t out = graph_columns(graph, y);
    LoraAttributes attributes = lora_attributes(graph, out, groups);
    assert(graph_get(graph, y)->type == TYPE_COMPUTE && graph_get(graph, groups->b)->type == TYPE_COMPUTE);
    TensorId adapted = graph_activation(graph, TYPE_COMPUTE, graph_rows(graph, y), out, "adapted");
    Inputs in = {[LORA_GROUPS_Y] = y, [LORA_GROUPS_U] = groups->u, [LORA_GROUPS_B] = groups->b, [LORA_GROUPS_OFFSET] = groups->offset};
    graph_node(graph, OP_lora_groups, in, (Outputs){[LORA_GROUPS_ADAPTED] = adapted}, &attributes, sizeof attributes);
    return adapted;
}

/* Adds to the gradient of b; returns the gradient of u. */
static TensorId up_gradient(Graph *graph, TensorId d_adapted, TensorId u, TensorId b, const LoraAttributes *attributes) {
    graph_node(graph, OP_lora_grad_weight, (Inputs){[LORA_GRAD_WEIGHT_D_ADAPTED] = d_adapted, [LORA_GRAD_WEIGHT_U] = u},
        (Outputs){[LORA_GRAD_WEIGHT_D_B] = graph_parameter_gradient(graph, b)}, attributes, sizeof *attributes);
    TensorId d_u = graph_activation(graph, TYPE_COMPUTE, graph_rows(graph, u), graph_columns(graph, u), "d_u");
    graph_node(graph, OP_lora_grad_input, (Inputs){[LORA_GRAD_INPUT_D_ADAPTED] = d_adapted, [LORA_GRAD_INPUT_B] = b},
        (Outputs){[LORA_GRAD_INPUT_D_U] = d_u}, attributes, sizeof *attributes);
    return d_u;
}

static void lora_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    d_in[LORA_Y] = d_out[LORA_ADAPTED];
    d_in[LORA_U] = up_gradient(graph, d_out[LORA_ADAPTED], node->in[LORA_U], node->in[LORA_B], node->attributes);
}

/* -- A frozen layer and its adapters ------------------------------------------------------------------------------- */

TensorId op_adapted_linear(Graph *graph, TensorId x, const AdaptedLinear *layer) {
    int64_t out = graph_rows(graph, layer->w), in = graph_columns(graph, layer->w);
    LoraGroups one = {.u = layer->u, .b = layer->b, .adapters = layer->adapters};
    memcpy(one.columns, layer->columns, sizeof one.columns);
    AdaptedLinearAttributes attributes = {
        .lora = lora_attributes(graph, out, &one),
        .sum = layer->sum,
        .lasts = graph_is_parameter(graph, layer->w),
        .factor = layer->factor,
    };
    assert(graph_get(graph, x)->type == TYPE_COMPUTE && graph_columns(graph, x) == in && graph_columns(graph, layer->a) == in);
    assert(graph_rows(graph, layer->a) == graph_columns(graph, layer->u));
    assert(layer->bias == TENSOR_NONE || graph_elements(graph, layer->bias) == out);
    TensorId y = graph_activation(graph, TYPE_COMPUTE, graph_rows(graph, x), out, "adapted_linear");
    Inputs inputs = {[ADAPTED_LINEAR_X] = x,
        [ADAPTED_LINEAR_W] = layer->w,
        [ADAPTED_LINEAR_BIAS] = layer->bias,
        [ADAPTED_LINEAR_U] = layer->u,
        [ADAPTED_LINEAR_B] = layer->b,
        [ADAPTED_LINEAR_A] = layer->a};
    graph_node(graph, OP_adapted_linear, inputs, (Outputs){[ADAPTED_LINEAR_Y] = y}, &attributes, sizeof attributes);
    return y;
}

/* u gets no gradient: this computes the gradient of a directly. */
static void adapted_linear_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    AdaptedLinearAttributes attributes = *(const AdaptedLinearAttributes *)node->attributes;
    TensorId d_y = d_out[ADAPTED_LINEAR_Y], x = node->in[ADAPTED_LINEAR_X], a = node->in[ADAPTED_LINEAR_A];
    assert(!graph_parameter_gradient(graph, node->in[ADAPTED_LINEAR_W]) && !graph_parameter_gradient(graph, node->in[ADAPTED_LINEAR_BIAS]));
    TensorId d_u = up_gradient(graph, d_y, node->in[ADAPTED_LINEAR_U], node->in[ADAPTED_LINEAR_B], &attributes.lora);
    if (attributes.factor != 1) d_u = op_scale(graph, d_u, attributes.factor);
    graph_node(graph, OP_linear_grad_weight, (Inputs){[LINEAR_GRAD_WEIGHT_D_Y] = d_u, [LINEAR_GRAD_WEIGHT_X] = x},
        (Outputs){[LINEAR_GRAD_WEIGHT_D_W] = graph_parameter_gradient(graph, a)}, &(LinearAttributes){0}, sizeof(LinearAttributes));
    TensorId d_x = d_in[ADAPTED_LINEAR_X] = graph_activation_like(graph, TYPE_COMPUTE, x, "d_x");
    Inputs inputs = {[ADAPTED_LINEAR_GRAD_INPUT_D_Y] = d_y,
        [ADAPTED_LINEAR_GRAD_INPUT_W] = node->in[ADAPTED_LINEAR_W],
        [ADAPTED_LINEAR_GRAD_INPUT_D_U] = d_u,
        [ADAPTED_LINEAR_GRAD_INPUT_A] = a};
    graph_node(graph, OP_adapted_linear_grad_input, inputs, (Outputs){[ADAPTED_LINEAR_GRAD_INPUT_D_X] = d_x}, NULL, 0);
}

LinearShape adapted_linear_shape(const Graph *graph, const Node *node) {
    static_assert((int)ADAPTED_LINEAR_X == (int)ADAPTED_LINEAR_GRAD_INPUT_D_Y && (int)ADAPTED_LINEAR_W == (int)ADAPTED_LINEAR_GRAD_INPUT_W,
        "both have R rows and w");
    TensorId w = node->in[ADAPTED_LINEAR_W];
    return (LinearShape){.rows = graph_rows(graph, node->in[ADAPTED_LINEAR_X]), .in = graph_columns(graph, w), .out = graph_rows(graph, w)};
}

/* -- Costs --------------------------------------------------------------------------------------------------------- */

/* Returns the flops of the GEMMs of all adapters. */
static double lora_gemm_flops(const Graph *graph, TensorId y, TensorId b) { return 2.0 * graph_rows(graph, y) * graph_elements(graph, b); }

static double lora_flops(const Graph *graph, const Node *node) { return lora_gemm_flops(graph, node->in[LORA_Y], node->in[LORA_B]); }
static double lora_groups_flops(const Graph *graph, const Node *node) {
    double all = lora_gemm_flops(graph, node->in[LORA_GROUPS_Y], node->in[LORA_GROUPS_B]);
    return all / (double)(graph_elements(graph, node->in[LORA_GROUPS_OFFSET]) - 1);
}
static double grad_input_flops(const Graph *graph, const Node *node) {
    return lora_gemm_flops(graph, node->in[LORA_GRAD_INPUT_D_ADAPTED], node->in[LORA_GRAD_INPUT_B]);
}
static double frozen_flops(const Graph *graph, const Node *node) {
    LinearShape s = adapted_linear_shape(graph, node);
    return 2.0 * s.rows * s.in * s.out;
}
static double adapted_linear_flops(const Graph *graph, const Node *node) {
    return frozen_flops(graph, node) + lora_gemm_flops(graph, node->in[ADAPTED_LINEAR_X], node->in[ADAPTED_LINEAR_B]);
}
static double adapted_linear_grad_input_flops(const Graph *graph, const Node *node) {
    return frozen_flops(graph, node) +
           lora_gemm_flops(graph, node->in[ADAPTED_LINEAR_GRAD_INPUT_D_Y], node->in[ADAPTED_LINEAR_GRAD_INPUT_A]);
}
static double grad_weight_flops(const Graph *graph, const Node *node) {
    return lora_gemm_flops(graph, node->in[LORA_GRAD_WEIGHT_D_ADAPTED], node->out[LORA_GRAD_WEIGHT_D_B]);
}

const Op op_rule_lora = {.name = "lora", .in_place = OPERAND(LORA_Y), .gradient = lora_gradient, .flops = lora_flops};
const Op op_rule_lora_groups = {.name = "lora_groups", .in_place = OPERAND(LORA_GROUPS_Y), .flops = lora_groups_flops};
const Op op_rule_lora_grad_input = {.name = "lora_grad_input", .flops = grad_input_flops};
const Op op_rule_lora_grad_weight = {
    .name = "lora_grad_weight",
    .adds_to = OPERAND(LORA_GRAD_WEIGHT_D_B),
    .overwrites = OPERAND(LORA_GRAD_WEIGHT_D_B),
    .flops = grad_weight_flops,
};
const Op op_rule_adapted_linear = {.name = "adapted_linear", .gradient = adapted_linear_gradient, .flops = adapted_linear_flops};
const Op op_rule_adapted_linear_grad_input = {.name = "adapted_linear_grad_input", .flops = adapted_linear_grad_input_flops};
