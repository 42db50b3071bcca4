/* gate: y = f(gate) x. With s = sigmoid(gate) the slope of f is s (1 - s) for GATE_SIGMOID, and
 * s + gate s (1 - s) for GATE_SILU; d_gate = slope * sum of x d_y over the elements of the gate. */
#include "ops/gate/gate.h"

TensorId op_gate(Graph *graph, TensorId gate, TensorId x, GateFunction function) {
    GateAttributes attributes = {.function = function, .gates = graph_elements(graph, gate)};
    attributes.width = graph_elements(graph, x) / attributes.gates;
    assert(graph_get(graph, gate)->type == TYPE_COMPUTE && graph_get(graph, x)->type == TYPE_COMPUTE);
    assert(attributes.width * attributes.gates == graph_elements(graph, x));
    assert(attributes.width == 1 || (graph_columns(graph, gate) == 1 && graph_columns(graph, x) == attributes.width));
    TensorId y = graph_activation_like(graph, TYPE_COMPUTE, attributes.width == 1 ? gate : x, "gated");
    graph_node(graph, OP_gate, (Inputs){[GATE_GATE] = gate, [GATE_X] = x}, (Outputs){[GATE_Y] = y}, &attributes, sizeof attributes);
    return y;
}

static void gate_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId gate = node->in[GATE_GATE], x = node->in[GATE_X];
    d_in[GATE_GATE] = graph_activation_like(graph, TYPE_COMPUTE, gate, "d_gate");
    d_in[GATE_X] = graph_activation_like(graph, TYPE_COMPUTE, x, "d_x");
    graph_node(graph, OP_gate_grad, (Inputs){[GATE_GRAD_D_Y] = d_out[GATE_Y], [GATE_GRAD_GATE] = gate, [GATE_GRAD_X] = x},
        (Outputs){[GATE_GRAD_D_GATE] = d_in[GATE_GATE], [GATE_GRAD_D_X] = d_in[GATE_X]}, node->attributes, 0);
}

const Op op_rule_gate = {.name = "gate", .class = OP_CLASS_NORM, .gradient = gate_gradient, .element_flops = 6};
const Op op_rule_gate_grad = {.name = "gate_grad", .element_flops = 12};
