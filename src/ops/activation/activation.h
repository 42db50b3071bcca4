/* Elementwise functions: builders, operands and attributes, for the rule and the kernels of both back ends. All
 * tensors are COMPUTE. */
#pragma once

#include "config/activation_rule.h"
#include "graph/op.h"

/* y = a function of config/activation_list.h: [R, D] -> [R, D]; if it is gated, [R, 2F] -> [R, F]. */
TensorId op_activation(Graph *graph, TensorId x, Activation function);
/* The same for any function, with its constants. */
TensorId op_activation_with(Graph *graph, TensorId x, Activation function, ActivationTerms terms);

/* Returns [a | y] with y = gelu(x) by the tanh approximation: [R, A] and [R, D] -> [R, A + D]. */
TensorId op_join_gelu(Graph *graph, TensorId a, TensorId x);

/* y = x clamped to -limit .. limit. */
TensorId op_clamp(Graph *graph, TensorId x, double limit);

/* y = factor * x */
TensorId op_scale(Graph *graph, TensorId x, double factor);

/* Operands of all functions except join_gelu, and of their gradients; scale has no gradient
 * operation of its own. */
typedef enum ActivationOperand {
    ACTIVATION_X,     /* [R, D], for gated_activation [R, 2F] */
    ACTIVATION_Y = 0, /* [R, D], for gated_activation [R, F] */
    ACTIVATION_AMAX,  /* WIDE [1], not for clamp and scale, optional: the amax of y (Op.amax) */
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
    Activation function; /* unless clamp or scale */
    ActivationTerms terms;
    double parameter; /* limit of clamp, factor of scale */
} ActivationAttributes;
