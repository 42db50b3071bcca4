/* The router of a mixture of experts: its builder, operands and attributes, for its rule and the kernels of both
 * back ends. */
#pragma once

#include "graph/op.h"

enum { ROUTER_MAX_CLASSES = 512, ROUTER_MAX_GROUPS = 32 };

typedef struct RouterSpec {
    int64_t experts, k; /* each row chooses k of `experts` experts */
    bool skip;          /* one more class, the last: index == experts skips the experts */
    bool renormalise;   /* gates of a row sum to 1 */
    bool sigmoid;       /* p = sigmoid(logits), not softmax(logits); without load-balancing losses */
    /* Consecutive experts form `groups` groups; a row chooses in `groups_chosen` of them. 0 or 1: in
     * all experts. Not together with `skip`. */
    int64_t groups, groups_chosen;
    double scale;     /* factor of the gates; 0: 1 */
    double auxiliary; /* weight of a load-balancing loss over these rows; 0: none */
    bool loads;       /* in training: return the loads, for a loss over several routers */
} RouterSpec;

static inline double router_scale(const RouterSpec *spec) { return spec->scale > 0 ? spec->scale : 1; }
/* Returns what is added to the sum that divides gates: sigmoids may all be zero. */
static inline double router_epsilon(const RouterSpec *spec) { return spec->sigmoid ? 1e-20 : 0; }

/* index INT32 [R, k], gate WIDE [R, k]; loads WIDE [2, classes] or TENSOR_NONE: how often each
 * class was chosen, and the sum of its probabilities. */
typedef struct Routing { TensorId index, gate, loads; } Routing;

/* Chooses experts (rule.c). `bias` may be TENSOR_NONE; the auxiliary loss is added to loss[1]. */
Routing op_router(Graph *graph, TensorId logits, TensorId bias, TensorId share, TensorId loss, const RouterSpec *spec);

/* A load-balancing loss over `tokens` rows of one router, or of several with summed loads
 * (rule.c). */
typedef struct BalanceLossSpec {
    int64_t experts, k, tokens;
    double weight;
} BalanceLossSpec;
/* Adds the loss to loss[1]; only in training. */
void op_balance_loss(Graph *graph, TensorId loads, TensorId share, TensorId loss, const BalanceLossSpec *spec);

typedef enum RouterOperand {
    ROUTER_LOGITS,        /* WIDE [R, classes] */
    ROUTER_BIAS,          /* WIDE [classes], the load-balancing bias, optional */
    ROUTER_SHARE,         /* INPUT WIDE [1]: 1 / microbatches in the step */
    ROUTER_INDEX = 0,     /* INT32 [R, k]: chosen classes */
    ROUTER_GATE,          /* WIDE [R, k]: their p, times the scale */
    ROUTER_PROBABILITIES, /* WIDE [R, classes]: p */
    ROUTER_COUNT,         /* INT32 [classes]: rows that chose a class; in training */
    ROUTER_D_BIAS,        /* gradient of bias, added to, in integers (rule.c); in training, if bias is a parameter */
    ROUTER_LOADS,         /* WIDE [2, classes]: counts, sums of probabilities; in training with a load-balancing loss */
} RouterOperand;

typedef enum RouterGradOperand {
    ROUTER_GRAD_D_GATE,        /* like gate, optional */
    ROUTER_GRAD_PROBABILITIES, /* this and the next are outputs of router */
    ROUTER_GRAD_INDEX,
    ROUTER_GRAD_D_LOADS,      /* like loads, optional; its first row is not read */
    ROUTER_GRAD_D_LOGITS = 0, /* WIDE [R, classes] */
} RouterGradOperand;

typedef enum BalanceLossOperand {
    BALANCE_LOSS_LOADS,    /* WIDE [2, classes] */
    BALANCE_LOSS_SHARE,    /* as in router */
    BALANCE_LOSS_LOSS = 0, /* METRIC WIDE [2 or more], added to [1] */
} BalanceLossOperand;

typedef enum BalanceLossGradOperand {
    BALANCE_LOSS_GRAD_LOADS,
    BALANCE_LOSS_GRAD_SHARE,
    BALANCE_LOSS_GRAD_D_LOADS = 0, /* like loads; zeros for the counts and for classes that are not experts */
} BalanceLossGradOperand;
