/* Elementwise functions: builders, operands and attributes, for the rule and the kernels of both back ends. All
 * tensors are COMPUTE. */
#pragma once

#include "graph/op.h"

/* GELU_EXACT: y = x Phi(x), with Phi of the normal distribution. GELU_TANH: GPT-2's approximation,
 * 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). */
typedef enum GeluKind { GELU_EXACT, GELU_TANH, GELU_KINDS } GeluKind;
TensorId op_gelu(Graph *graph, TensorId x, GeluKind kind);

/* Returns [a | y] with y = gelu(x) by the tanh approximation: [R, A] and [R, D] -> [R, A + D]. */
TensorId op_join_gelu(Graph *graph, TensorId a, TensorId x);

/* y = x / (1 + e^-x) */
TensorId op_silu(Graph *graph, TensorId x);

/* y = silu(x[:, :F]) * x[:, F:], [R, 2F] -> [R, F]. */
TensorId op_swiglu(Graph *graph, TensorId x);

/* y = x clamped to -limit .. limit. */
TensorId op_clamp(Graph *graph, TensorId x, double limit);

/* y = factor * x */
TensorId op_scale(Graph *graph, TensorId x, double factor);

/* Operands of all functions except join_gelu, and of their gradients; scale has no gradient
 * operation of its own. */
typedef enum ActivationOperand {
    ACTIVATION_X,     /* [R, D], for swiglu [R, 2F] */
    ACTIVATION_Y = 0, /* [R, D], for swiglu [R, F] */
    ACTIVATION_AMAX,  /* WIDE [1], for gelu and swiglu, optional: the amax of y (Op.amax) */
} ActivationOperand;

typedef enum ActivationGradOperand {
    ACTIVATION_GRAD_D_Y,     /* like y */
    ACTIVATION_GRAD_X,       /* like x */
    ACTIVATION_GRAD_D_X = 0, /* like x */
    ACTIVATION_GRAD_AMAX,    /* like ACTIVATION_AMAX, for d_x */
} ActivationGradOperand;

typedef enum JoinGeluOperand {
    JOIN_GELU_A,         /* [R, A] */
    JOIN_GELU_X,         /* [R, D] */
    JOIN_GELU_WHOLE = 0, /* [R, A + D] */
} JoinGeluOperand;

typedef enum JoinGeluGradOperand {
    JOIN_GELU_GRAD_D_WHOLE, /* like whole */
    JOIN_GELU_GRAD_X,       /* like x */
    JOIN_GELU_GRAD_D_A = 0, /* like a */
    JOIN_GELU_GRAD_D_X,     /* like x */
} JoinGeluGradOperand;

/* Attributes of all functions except join_gelu, and of their gradients. */
typedef struct ActivationAttributes {
    GeluKind kind;    /* for gelu */
    double parameter; /* limit of clamp, factor of scale */
} ActivationAttributes;
