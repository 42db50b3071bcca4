/* router: builders, and what the rule and the kernels of both back ends share. */
#pragma once

#include "graph/op.h"

/* Picks experts. probabilities = softmax(logits) over E experts (and the skip class when `skip`, the last column); chosen = the top k of
 * probabilities + bias; gate = their unbiased probabilities, renormalised to sum 1 when asked. Adds to bias_gradient (graph_parameter_gradient of bias) the
 * microbatch's share of (fraction of tokens sent to e) / k - 1/E for the balancing controller, for the E experts. With auxiliary > 0 it is also a loss:
 * auxiliary * E * sum_e f_e P_e / k (Switch, arXiv 2101.03961), added to loss[1]. share: INPUT WIDE [1], 1 / microbatches in the step. */
typedef struct RouterSpec {
    int64_t experts, k;
    bool skip, renormalise;
    double auxiliary;
} RouterSpec;
typedef struct Routing { TensorId index, gate; } Routing; /* INT32 and WIDE [R, k]; index == experts means skipped */
Routing op_router(Graph *graph, TensorId logits, TensorId bias, TensorId share, TensorId loss, const RouterSpec *spec);

enum { ROUTER_MAX_CLASSES = 512 };
