/* The router of a mixture of experts: its builder, operands and attributes, for its rule and the kernels of both
 * back ends. */
#pragma once

#include "graph/op.h"

enum { ROUTER_MAX_CLASSES = 512 };

typedef struct RouterSpec {
    int64_t experts, k; /* k experts of so many for each row */
    bool skip;          /* one class more, the last: index == experts skips the experts */
    bool renormalise;   /* gates of a row sum to 1 */
    double auxiliary;   /* weight of the load-balancing loss, 0: none */
} RouterSpec;
typedef struct Routing { TensorId index, gate; } Routing; /* INT32 and WIDE [R, k] */

/* Chooses experts (rule.c). `bias` may be TENSOR_NONE; the auxiliary loss is added to loss[1]. */
Routing op_router(Graph *graph, TensorId logits, TensorId bias, TensorId share, TensorId loss, const RouterSpec *spec);

typedef enum RouterOperand {
    ROUTER_LOGITS,        /* WIDE [R, classes] */
    ROUTER_BIAS,          /* WIDE [classes], the load-balancing bias, optional */
    ROUTER_SHARE,         /* INPUT WIDE [1]: 1 / microbatches in the step */
    ROUTER_INDEX = 0,     /* INT32 [R, k]: chosen classes */
    ROUTER_GATE,          /* WIDE [R, k]: their probabilities */
    ROUTER_PROBABILITIES, /* WIDE [R, classes] */
    ROUTER_COUNT,         /* INT32 [classes]: rows that chose a class; in training */
    ROUTER_D_BIAS,        /* gradient of bias, added to; in training, if bias is a parameter */
    ROUTER_LOSS,          /* METRIC WIDE [2 or more], added to [1]; in training with auxiliary loss */
} RouterOperand;

typedef enum RouterGradOperand {
    ROUTER_GRAD_D_GATE,        /* like gate, optional */
    ROUTER_GRAD_PROBABILITIES, /* these three are outputs of router */
    ROUTER_GRAD_INDEX,
    ROUTER_GRAD_COUNT,
    ROUTER_GRAD_SHARE,        /* an input of router */
    ROUTER_GRAD_D_LOGITS = 0, /* WIDE [R, classes] */
} RouterGradOperand;
