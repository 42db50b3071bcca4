/* Losses of reinforcement learning over sequences that the model itself has drawn: the builder, and
 * the operands that rule and kernels share. */
#pragma once

#include "config/policy_rule.h"
#include "graph/op.h"
#include "ops/policy/sequence.h"

/* Returns the most sequences of a microbatch of R rows: each has at least two. */
static inline int64_t policy_most_sequences(int64_t rows) { return rows < 2 ? 1 : rows / 2; }

/* The caller's tensors for P = policy_most_sequences(R) sequences; unused ones are empty. */
typedef struct PolicyTensors {
    TensorId targets;   /* INT32 [R]; negative: a token that the model has not drawn, or that is not trained */
    TensorId sequences; /* INT32 [P, SEQUENCE_BOUNDS] */
    TensorId terms;     /* WIDE [R, POLICY_TERMS] */
    TensorId values;    /* WIDE [R, 1]: output of the value head; TENSOR_NONE: none */
    TensorId loss;      /* METRIC WIDE [1 or more]; the first is added to */
    TensorId sums;      /* METRIC WIDE [POLICY_SUMS], added to */
} PolicyTensors;

/* Appends the head and the loss: tensors->loss[0] += sum over rows with a target of share * loss of
 * `config` on x w^T, with x COMPUTE [R, D] and w [vocabulary, D]; computes gradients in training.
 * Returns -log p of all rows, WIDE [R], which stay until the program ends; 0 without a target. */
TensorId op_policy(Graph *graph, TensorId x, TensorId w, const PolicyTensors *tensors, const PolicyConfig *config, int64_t vocabulary);

typedef enum PolicyOperand {
    POLICY_LOSSES_IN, /* WIDE [R]: -log-probabilities of tokens, 0 without a target */
    POLICY_TARGETS,   /* as in PolicyTensors, like the next two */
    POLICY_SEQUENCES,
    POLICY_ROWS,
    POLICY_VALUES,   /* WIDE [R, 1], optional */
    POLICY_LOSS = 0, /* METRIC WIDE [1 or more]; the first is added to */
    POLICY_SUM,      /* METRIC WIDE [POLICY_SUMS], added to */
    POLICY_WEIGHTS,  /* WIDE [R]: the gradient of the loss with respect to each token's -log p; in training */
    POLICY_D_VALUES, /* like values; in training */
} PolicyOperand;

/* The attributes: the numbers of a rule and of the settings. */
typedef struct PolicyAttributes {
    int objective, ratio; /* PolicyObjective, PolicyRatio */
    double low, high, dual, kl, entropy, penalty, value_clip, value_coefficient;
} PolicyAttributes;
