/* cca: builders, and what the rule and the kernels of both back ends share. */
#pragma once

#include "graph/op.h"
#include "ops/heads.h"

/* Compressed convolutional attention's prologue (arXiv 2510.04476, as in the ZAYA1 code): from raw projections
 * u = [q | k | v of this token | v of the next] to rotated, normalised, packed qkv. Depthwise then grouped causal convolution over time (kernel 2 each),
 * qk-mean, L2 norm to sqrt(head_dim), key temperature, partial rotary embedding, value shift by one token; all reset where
 * positions[r] is 0. `state` (TENSOR_NONE in training): STATE COMPUTE [2, columns of u], the two rows before row 0, replaced by the last two. */
typedef struct CcaParameters {
    TensorId depthwise_weight, depthwise_bias; /* [C, 1, 2] and [C]; C = (heads + kv_heads) * head_dim; tap 1 is the current token */
    TensorId grouped_weight, grouped_bias;     /* [C, head_dim, 2] and [C]; one group per head */
    TensorId temperature;                      /* [kv_heads] */
} CcaParameters;
TensorId op_cca(
    Graph *graph, TensorId u, TensorId positions, TensorId rope_table, const CcaParameters *parameters, TensorId state, const Heads *heads);

/* Columns of u and of qkv: `convolved` for queries and keys, then `values`. */
typedef struct CcaShape { int64_t rows, heads, kv_heads, group, dim, convolved, values, columns; } CcaShape;

static inline CcaShape cca_shape(const Heads *heads, int64_t rows) {
    int64_t convolved = (heads->heads + heads->kv_heads) * heads->head_dim, values = heads->kv_heads * heads->head_dim;
    return (CcaShape){.rows = rows,
        .heads = heads->heads,
        .kv_heads = heads->kv_heads,
        .group = heads->heads / heads->kv_heads,
        .dim = heads->head_dim,
        .convolved = convolved,
        .values = values,
        .columns = convolved + values};
}
