/* mla_pack: packed qkv of multi-head latent attention (MLA, arXiv 2405.04434, section 2.1) from its
 * projections: builder, attributes and operands, for the rule and the kernels of both back ends. */
#pragma once

#include "graph/op.h"
#include "ops/heads.h"

/* The projections of R rows. Queries and keys of a head have qk_dim = plain + rotated channels, and
 * values v_dim. All heads share the rotated channels of keys. */
typedef struct MlaProjections {
    TensorId queries;     /* COMPUTE [R, heads * (plain + rotated)] */
    TensorId keys_values; /* COMPUTE [R, heads * (plain + v_dim)]: keys and values of a head side by side */
    TensorId shared_key;  /* COMPUTE [R, rotated] */
} MlaProjections;

/* Returns packed qkv (ops/heads.h), COMPUTE [R, heads_columns], of as many key heads as query heads. The
 * rotated channels are the first of each query and key, where op_rope rotates them. */
TensorId op_mla_pack(Graph *graph, const MlaProjections *from, const Heads *heads);

typedef enum MlaPackOperand {
    MLA_PACK_QUERIES,
    MLA_PACK_KEYS_VALUES,
    MLA_PACK_SHARED_KEY,
    MLA_PACK_QKV = 0,
} MlaPackOperand;

typedef enum MlaPackGradOperand {
    MLA_PACK_GRAD_D_QKV,         /* like qkv */
    MLA_PACK_GRAD_D_QUERIES = 0, /* like the inputs of mla_pack */
    MLA_PACK_GRAD_D_KEYS_VALUES,
    MLA_PACK_GRAD_D_SHARED_KEY, /* the sum over the heads */
} MlaPackGradOperand;

/* Both operations have these attributes. */
typedef struct MlaPackAttributes {
    Heads heads;
    int64_t rotated;
} MlaPackAttributes;
