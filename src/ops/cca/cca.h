/* Prologue of compressed convolutional attention (CCA): builder, operands and shapes of op cca and
 * its gradient. */
#pragma once

#include "graph/op.h"
#include "ops/heads.h"

/* C = (heads + kv_heads) * qk_dim; heads have one width, qk_dim = v_dim. */
typedef struct CcaParameters {
    TensorId depthwise_weight, depthwise_bias; /* [C, 1, 2], tap 1 is the current token; [C] */
    TensorId grouped_weight, grouped_bias;     /* [C, qk_dim, 2] and [C]; one group per head */
    TensorId temperature;                      /* [kv_heads] */
} CcaParameters;

/* Heads of a row, and the number of delayed value columns: the last ones, taken from the previous
 * token. It is half of the values if a row has all heads of the model. */
typedef struct CcaSpec {
    Heads heads;
    int64_t delayed;
} CcaSpec;

/* Computes rotated, normalized, packed qkv, COMPUTE [R, heads_columns], from raw
 * projections u = [q | k | v] (arXiv 2510.04476, as in the ZAYA1 code). `halo`, COMPUTE
 * [chunks * 2, columns of u], has the two rows before each of the equal chunks of u (op_halo);
 * TENSOR_NONE: u is one chunk with nothing before it. In generation it is a tensor of the state
 * arena for one chunk, replaced by the last two rows of u. */
TensorId op_cca(
    Graph *graph, TensorId u, TensorId positions, TensorId rope_table, const CcaParameters *parameters, TensorId halo, const CcaSpec *spec);

/* u COMPUTE [R, columns], positions int32 [R] within the document, rope_table CONSTANT WIDE
 * [positions, rotated channels of a head], halo, CcaParameters (weights COMPUTE, the others WIDE)
 * -> qkv COMPUTE [R, columns]; in training unit_keys COMPUTE [R, heads_key_columns], rotated keys
 * before their temperature, and head_scales WIDE [R, heads + kv_heads], the factor of each head's
 * norm; in generation the updated halo, as a state */
enum {
    CCA_U,
    CCA_POSITIONS,
    CCA_ROPE_TABLE,
    CCA_HALO,
    CCA_DEPTHWISE_WEIGHT,
    CCA_DEPTHWISE_BIAS,
    CCA_GROUPED_WEIGHT,
    CCA_TEMPERATURE,
    CCA_GROUPED_BIAS
};
enum { CCA_HALO_ROWS = 2 }; /* how far a row looks back: both convolutions have two taps */
enum { CCA_QKV, CCA_UNIT_KEYS, CCA_HEAD_SCALES, CCA_STATE };

/* The inputs of cca before CCA_GROUPED_BIAS, so that both passes use the same names; d_qkv like
 * qkv, the forward outputs -> d_u like u; the gradients of the parameters, in their order, which
 * are added to; d_halo like the halo */
enum { CCA_GRAD_D_QKV = CCA_GROUPED_BIAS, CCA_GRAD_QKV, CCA_GRAD_UNIT_KEYS, CCA_GRAD_HEAD_SCALES };
enum {
    CCA_GRAD_D_U,
    CCA_GRAD_D_DEPTHWISE_WEIGHT,
    CCA_GRAD_D_DEPTHWISE_BIAS,
    CCA_GRAD_D_GROUPED_WEIGHT,
    CCA_GRAD_D_TEMPERATURE,
    CCA_GRAD_D_GROUPED_BIAS,
    CCA_GRAD_D_HALO
};

/* Columns of a row of u and of qkv: `convolved` (C) for queries and keys, then `values`; the first
 * `current` values are not delayed. `group` query heads share a key-value head. */
typedef struct CcaShape { int64_t rows, heads, kv_heads, group, dim, convolved, values, current, columns; } CcaShape;

static inline CcaShape cca_shape(const CcaSpec *spec, int64_t rows) {
    const Heads *heads = &spec->heads;
    assert(heads->kv_heads > 0 && heads->heads % heads->kv_heads == 0 && heads->qk_dim == heads->v_dim && rows >= 0);
    int64_t convolved = heads_query_columns(heads) + heads_key_columns(heads), values = heads_value_columns(heads);
    return (CcaShape){.rows = rows,
        .heads = heads->heads,
        .kv_heads = heads->kv_heads,
        .group = heads->heads / heads->kv_heads,
        .dim = heads->qk_dim,
        .convolved = convolved,
        .values = values,
        .current = values - spec->delayed,
        .columns = convolved + values};
}

/* Returns the lower limit of the norm by which a head is divided: the distance from 1 to the next
 * number of the compute type, which has `bytes` bytes (ZayaQKNorm in transformers). */
static inline double cca_least_norm(size_t bytes) { return bytes == 2 ? 0x1p-7 : bytes == 4 ? 0x1p-23 : 0x1p-52; }

/* Returns the shape of a node of either op. */
static inline CcaShape cca_node_shape(const Graph *graph, const Node *node) {
    return cca_shape(node->attributes, graph_rows(graph, node->in[CCA_U]));
}
