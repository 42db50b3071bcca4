/* Attention: builders, attributes and operands of op attention, its gradient, and attention over a key-value cache in
 * generation. */
#pragma once

#include "graph/op.h"
#include "ops/heads.h"

/* Sequences lie after one another, `length` rows each. Row r attends to rows r - positions[r] .. r of its sequence, so
 * positions that restart at 0 are the document mask; with window > 0 to the last `window` of these. With alibi > 0 the
 * score of the key d rows back is lowered by d * slope of the head (ALiBi, arXiv 2108.12409). With n = heads rounded
 * up to a power of two, slopes are 2^(-alibi * i / n), i = 1 .. n; where n != heads, heads take those of even i first,
 * then those of odd i (as MPT does). */
typedef struct AttentionSpec {
    Heads heads;
    int64_t length, window; /* window 0: no limit */
    double scale;           /* of scores; 0: 1 / sqrt(head_dim) */
    double alibi;           /* 0: no bias */
} AttentionSpec;

/* Causal attention with grouped queries over packed qkv [R, heads_columns]; the output is COMPUTE [R, heads *
 * head_dim]. */
TensorId op_attention(Graph *graph, TensorId qkv, TensorId positions, const AttentionSpec *spec);

/* Attention of new rows of one sequence in generation: writes their keys and values to rows positions[r] of `cache`,
 * STATE COMPUTE [context, 2 * kv_heads * head_dim], and attends to cache rows 0 .. positions[r] (the last `window` of
 * them). No gradient. */
TensorId op_attention_cached(Graph *graph, TensorId qkv, TensorId positions, TensorId cache, const AttentionSpec *spec);

typedef enum AttentionOperand {
    ATTENTION_QKV,       /* COMPUTE [R, heads_columns] */
    ATTENTION_POSITIONS, /* int32 [R], within the document */
    ATTENTION_INPUTS,
    ATTENTION_OUT = 0, /* COMPUTE [R, heads * head_dim] */
    ATTENTION_LOG_SUM, /* WIDE [R, heads]: natural log-sum-exp of each row's scores; training only */
    ATTENTION_OUTPUTS
} AttentionOperand;

typedef enum AttentionGradOperand {
    ATTENTION_GRAD_D_OUT, /* COMPUTE [R, heads * head_dim] */
    ATTENTION_GRAD_QKV,   /* the forward operands */
    ATTENTION_GRAD_POSITIONS,
    ATTENTION_GRAD_OUT,
    ATTENTION_GRAD_LOG_SUM,
    ATTENTION_GRAD_INPUTS,
    ATTENTION_GRAD_D_QKV = 0, /* COMPUTE [R, heads_columns] */
    ATTENTION_GRAD_OUTPUTS
} AttentionGradOperand;

typedef enum AttentionCachedOperand {
    ATTENTION_CACHED_QKV,       /* COMPUTE [R, heads_columns] */
    ATTENTION_CACHED_POSITIONS, /* int32 [R], rows of the cache */
    ATTENTION_CACHED_INPUTS,
    ATTENTION_CACHED_OUT = 0, /* COMPUTE [R, heads * head_dim] */
    ATTENTION_CACHED_CACHE,   /* STATE COMPUTE [context, 2 * kv_heads * head_dim] */
    ATTENTION_CACHED_OUTPUTS
} AttentionCachedOperand;
