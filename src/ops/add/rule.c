/* The two sums that are separate operations. a + b adds the gradients of a tensor with several
 * readers. x + previous * scale, with WIDE x and previous [R, D] and scale [D], averages a ZAYA1
 * router's states over depth (exponential depth averaging, arXiv 2605.05365 eq. 2; one factor per
 * channel as in the code). Gradients of this average: d_x = d_sum, d_previous = d_sum * scale,
 * d_scale += sum over rows of d_sum * previous. */
#include "ops/add/add.h"

TensorId op_add(Graph *graph, TensorId a, TensorId b) {
    Tensor like = *graph_get(graph, a);
    assert(like.type == graph_get(graph, b)->type && graph_elements(graph, a) == graph_elements(graph, b));
    AddAttributes attributes = {.wide = like.type == TYPE_WIDE};
    TensorId sum = graph_tensor(graph, ARENA_ACTIVATION, like.type, like.rank, like.shape, "sum");
    graph_node(graph, OP_add, (Inputs){[ADD_A] = a, [ADD_B] = b}, (Outputs){[ADD_SUM] = sum}, &attributes, sizeof attributes);
    return sum;
}

static void add_rule_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    (void)graph;
    (void)node;
    d_in[ADD_A] = d_in[ADD_B] = d_out[ADD_SUM];
}

void op_add_run(const Backend *backend, void *sum, const void *other, int64_t count, bool wide) {
    OpCall call = {.in = {[ADD_A] = sum, [ADD_B] = (void *)other},
        .out = {[ADD_SUM] = sum},
        .in_shape = {[ADD_A] = {count, 1, 1, 1}, [ADD_B] = {count, 1, 1, 1}},
        .out_shape = {[ADD_SUM] = {count, 1, 1, 1}},
        .attributes = &(AddAttributes){.wide = wide},
        .device = backend->device};
    if (count) backend->kernels[OP_add]->run(&call);
}

TensorId op_scale_add(Graph *graph, TensorId x, TensorId previous, TensorId scale) {
    int64_t rows = graph_rows(graph, x), columns = graph_columns(graph, x);
    assert(graph_elements(graph, previous) == rows * columns && graph_elements(graph, scale) == columns);
    TensorId sum = graph_activation(graph, TYPE_WIDE, rows, columns, "scale_add");
    Inputs in = {[SCALE_ADD_X] = x, [SCALE_ADD_PREVIOUS] = previous, [SCALE_ADD_SCALE] = scale};
    graph_node(graph, OP_scale_add, in, (Outputs){[SCALE_ADD_SUM] = sum}, NULL, 0);
    return sum;
}

static void scale_add_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId previous = node->in[SCALE_ADD_PREVIOUS], scale = node->in[SCALE_ADD_SCALE], d_sum = d_out[SCALE_ADD_SUM];
    TensorId d_previous = graph_activation(graph, TYPE_WIDE, graph_rows(graph, previous), graph_columns(graph, previous), "d_previous");
    Inputs in = {[SCALE_ADD_GRAD_D_SUM] = d_sum, [SCALE_ADD_GRAD_PREVIOUS] = previous, [SCALE_ADD_GRAD_SCALE] = scale};
    Outputs out = {[SCALE_ADD_GRAD_D_PREVIOUS] = d_previous, [SCALE_ADD_GRAD_D_SCALE] = graph_parameter_gradient(graph, scale)};
    graph_node(graph, OP_scale_add_grad, in, out, NULL, 0);
    d_in[SCALE_ADD_X] = d_sum;
    d_in[SCALE_ADD_PREVIOUS] = d_previous;
}

const Op op_rule_add = {.name = "add", .in_place = OPERAND(ADD_A), .gradient = add_rule_gradient, .element_flops = 1};
const Op op_rule_scale_add = {.name = "scale_add", .in_place = OPERAND(SCALE_ADD_X), .gradient = scale_add_gradient, .element_flops = 2};
const Op op_rule_scale_add_grad = {.name = "scale_add_grad", .adds_to = OPERAND(SCALE_ADD_GRAD_D_SCALE), .element_flops = 3};
