/* Attention: builders, attributes and operands of op attention, its gradient, and attention over a key-value cache in
 * generation. */
#pragma once

#include "graph/op.h"
#include "ops/heads.h"

/* Sequences lie after one another, `length` rows each. Row r attends to rows r - positions[r] .. r of its sequence, so
 * positions that restart at 0 are the document mask; with window > 0 to the last `window` of these. With alibi > 0 the
 * score of the key d rows back is lowered by d * slope of the head (ALiBi, arXiv 2108.12409). With n = heads of the
 * model rounded up to a power of two, slopes are 2^(-alibi * i / n), i = 1 .. n; where n != heads, heads take those of
 * even i first, then those of odd i (as MPT does). */
typedef struct AttentionSpec {
    Heads heads;
    int64_t length, window; /* window 0: no limit */
    double scale;           /* of scores; 0: 1 / sqrt(head_dim) */
    double alibi;           /* 0: no bias */
    /* For slopes: which of how many heads of the model the first one here is. 0 of 0: all of them are here. */
    int64_t first_head, all_heads;
} AttentionSpec;

static inline int64_t attention_all_heads(const AttentionSpec *spec) { return spec->all_heads ? spec->all_heads : spec->heads.heads; }

/* Causal attention with grouped queries over packed qkv [R, heads_columns]; the output is COMPUTE [R, heads *
 * head_dim]. */
TensorId op_attention(Graph *graph, TensorId qkv, TensorId positions, const AttentionSpec *spec);

/* Attention of new rows of one sequence in generation: writes their keys and values to rows positions[r] of `cache`,
 * STATE COMPUTE [context, 2 * kv_heads * head_dim], and attends to cache rows 0 .. positions[r] (the last `window` of
 * them). No gradient. */
TensorId op_attention_cached(Graph *graph, TensorId qkv, TensorId positions, TensorId cache, const AttentionSpec *spec);

/* qkv COMPUTE [R, heads_columns], positions int32 [R] within the document -> out COMPUTE [R, heads * head_dim], log_sum
 * WIDE [R, heads]: natural log-sum-exp of each row's scores, in training only */
enum { ATTENTION_QKV, ATTENTION_POSITIONS };
enum { ATTENTION_OUT, ATTENTION_LOG_SUM };

/* ATTENTION_QKV and ATTENTION_POSITIONS, so that both passes read them by the same names; d_out like out; the forward
 * outputs -> d_qkv like qkv */
enum { ATTENTION_GRAD_D_OUT = ATTENTION_POSITIONS + 1, ATTENTION_GRAD_OUT, ATTENTION_GRAD_LOG_SUM };
enum { ATTENTION_GRAD_D_QKV };

/* ATTENTION_QKV, and ATTENTION_POSITIONS as rows of the cache -> out as above, cache as in op_attention_cached */
enum { ATTENTION_CACHED_OUT, ATTENTION_CACHED_CACHE };
