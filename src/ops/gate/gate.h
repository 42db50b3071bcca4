/* Gates: y = f(gate) x, where each gate multiplies one element or a whole row. Builder, operands and attributes. */
#pragma once

#include "graph/op.h"

/* GATE_SIGMOID: f(g) = 1 / (1 + e^-g). GATE_SILU: f(g) = g / (1 + e^-g). */
typedef enum GateFunction { GATE_SIGMOID, GATE_SILU } GateFunction;

/* `gate` COMPUTE [R, D] for x COMPUTE with as many elements in the same order, or [R, 1] for x [R, D]. The result is
 * COMPUTE [R, D]. */
TensorId op_gate(Graph *graph, TensorId gate, TensorId x, GateFunction function);

enum { GATE_GATE, GATE_X };
enum { GATE_Y };
/* d_y like y, gate, x -> d_gate, d_x */
enum { GATE_GRAD_D_Y, GATE_GRAD_GATE, GATE_GRAD_X };
enum { GATE_GRAD_D_GATE, GATE_GRAD_D_X };

typedef struct GateAttributes {
    GateFunction function;
    int64_t gates, width; /* a gate multiplies `width` consecutive elements */
} GateAttributes;
