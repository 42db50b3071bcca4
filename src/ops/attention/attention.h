/* attention: builders, and what the rule and the kernels of both back ends share. */
#pragma once

#include "graph/op.h"
#include "ops/heads.h"

/* Causal attention with grouped queries over packed qkv; row r attends to rows r - positions[r] .. r of its sequence (that is the document mask), at
 * most `window` of them when window > 0. Memory is linear in `length`. COMPUTE [R, heads * head_dim]. With alibi > 0 the score of a key that lies d rows back
 * is lowered by d times the head's slope (ALiBi, arXiv 2108.12409): with n the least power of two that is not below `heads`, slopes are
 * 2^(-alibi * i / n) for i = 1 .. n, of which n != heads takes those of even i first, then those of odd i (as MPT does). */
typedef struct AttentionSpec {
    Heads heads;
    int64_t length, window;
    double scale; /* of scores; 0: 1 / sqrt(head_dim) */
    double alibi; /* 0: no bias */
} AttentionSpec;
TensorId op_attention(Graph *graph, TensorId qkv, TensorId positions, const AttentionSpec *spec);

/* The same for new rows of one sequence in generation: appends their keys and values to `cache`, STATE COMPUTE [context, 2 * kv_heads * head_dim], at
 * row positions[r], and attends to all earlier ones. */
TensorId op_attention_cached(Graph *graph, TensorId qkv, TensorId positions, TensorId cache, const AttentionSpec *spec);
