/* Shared by the rules of attention in this folder. */
#pragma once

#include "ops/attention/attention.h"

/* op_attention for several ranks on AXIS_CP (context_rule.c). */
TensorId attention_of_context(Graph *graph, TensorId qkv, TensorId positions, const AttentionSpec *spec);
/* Appends the gradient node `op` of a node with the operands of op attention (rule.c). */
void attention_append_gradient(Graph *graph, int op, const Node *node, const TensorId *d_out, TensorId *d_in);
double attention_flops(const Graph *graph, const Node *node);
double attention_grad_flops(const Graph *graph, const Node *node);
