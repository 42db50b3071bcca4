/* Attention: builders, attributes and operands of op attention, its gradient, and attention over a key-value cache in
 * generation. */
#pragma once

#include "graph/op.h"
#include "ops/attention/deal.h"
#include "ops/attention/tokens.h"
#include "ops/heads.h"

/* Sequences lie after one another, `length` rows each. Row r attends to rows r - positions[r] .. r of its sequence, so
 * positions that restart at 0 are the document mask; with window > 0 to the last `window` of these. With alibi > 0 the
 * score of the key d rows back is lowered by d * slope of the head (ALiBi, arXiv 2108.12409). With n = heads of the
 * model rounded up to a power of two, slopes are 2^(-alibi * i / n), i = 1 .. n; where n != heads, heads take those of
 * even i first, then those of odd i (as MPT does).
 *
 * Bidirectional attention, of encoders and image models, also sees the rows that come after: r - positions[r] to the end of
 * the sequence. A shorter sequence lies at the end of its `length` rows, with positions that count from its first row: none of
 * its rows sees those before it. There is neither a window nor ALiBi then, nor context parallelism. */
typedef struct AttentionSpec {
    Heads heads;
    int64_t length, window; /* window 0: no limit */
    double scale;           /* of scores; 0: 1 / sqrt(head_dim) */
    double alibi;           /* 0: no bias */
    bool bidirectional;
    /* For slopes: which of how many heads of the model the first one here is. 0 of 0: all of them are here. */
    int64_t first_head, all_heads;
    /* Under context parallelism: which rank of how many the rows of queries, and those of keys, belong to
     * (ops/attention/tokens.h). 0 of 0: the rows are whole sequences. op_attention sets them by the mesh. */
    struct { int64_t rank, ranks; } queries, keys;
} AttentionSpec;

static inline int64_t attention_all_heads(const AttentionSpec *spec) { return spec->all_heads ? spec->all_heads : spec->heads.heads; }

/* Attention with grouped queries over packed qkv [R, heads_columns]; the output is COMPUTE [R, heads *
 * head_dim]. Where the mesh has several ranks on AXIS_CP, R are this rank's rows of the sequences (ops/attention/tokens.h),
 * which see the keys of the other ranks too. */
TensorId op_attention(Graph *graph, TensorId qkv, TensorId positions, const AttentionSpec *spec);

/* The same where queries [R, heads * head_dim] and keys and values `kv` [R', 2 * kv_heads * head_dim] are other rows of the
 * same sequences: spec->queries and spec->keys say which. A query that sees none of the keys gets zeros. */
TensorId op_attention_over(Graph *graph, TensorId queries, TensorId positions, TensorId kv, const AttentionSpec *spec);
/* op_attention_over with the keys and values of all ranks of AXIS_CP, of which each brings its own. */
TensorId op_attention_ring(Graph *graph, TensorId queries, TensorId positions, TensorId kv, const AttentionSpec *spec);

/* Packed qkv [R, heads_columns] as queries [R, heads * head_dim] and keys with values [R, 2 * kv_heads * head_dim]. */
typedef struct AttentionParts { TensorId queries, kv; } AttentionParts;
AttentionParts op_attention_split(Graph *graph, TensorId qkv, const Heads *heads);
/* Rows of `ranks` ranks, one rank's after the other's, to whole sequences of `length` rows. */
TensorId op_attention_order(Graph *graph, TensorId x, int64_t length, int64_t ranks);
/* The attention over more keys than each of two results is about: the sum of `sum`, WIDE or none yet, and `part`, COMPUTE,
 * both [R, heads * head_dim], weighted by their log-sum-exps, WIDE [R, heads]. It has the type `type`. No gradient. */
TensorId op_attention_sum(Graph *graph, TensorId sum, TensorId log, TensorId part, TensorId part_log, TypeClass type);

/* Attention of new rows of one sequence in generation: writes their keys and values to rows positions[r] of `cache`,
 * STATE COMPUTE [context, 2 * kv_heads * head_dim], and attends to cache rows 0 .. positions[r] (the last `window` of
 * them). No gradient.
 *
 * The ranks of AXIS_CP share the cache (ops/attention/deal.h): `cache` is a rank's part, [attention_cache_rows, ...]. Every
 * rank computes all new rows, attends with its part of the keys, and gathers the results of all, of which each rank
 * makes the same output (tree attention, arXiv 2408.04093): R heads (head_dim + 1) numbers from each rank, however
 * long the sequence is. One all-gather takes one latency where all-reduces of the maximum, and then of the sums, take
 * two; it brings ranks times as much, which up to 8 ranks is still a few KiB a row. */
TensorId op_attention_cached(Graph *graph, TensorId qkv, TensorId positions, TensorId cache, const AttentionSpec *spec);
/* Rows of this rank's part of a cache for `context` positions; the same on all ranks of AXIS_CP. */
int64_t attention_cache_rows(const Graph *graph, int64_t context);
/* The two computing halves of op_attention_cached over ranks, for tests. A part is WIDE [R, heads * (head_dim + 1)]: the
 * outputs of all heads over the rank's keys, then the log2-sum-exp2 of their scores, -inf without a key. parts WIDE [ranks
 * * R, heads * (head_dim + 1)] -> COMPUTE [R, heads * head_dim]. */
TensorId op_attention_part(Graph *graph, TensorId qkv, TensorId positions, TensorId cache, const AttentionSpec *spec);
TensorId op_attention_merge(Graph *graph, TensorId parts, const AttentionSpec *spec);

/* qkv COMPUTE [R, heads_columns], or queries alone where kv is given; positions int32 [R] within the document; kv as in
 * op_attention_over, or none -> out COMPUTE [R, heads * head_dim], log_sum WIDE [R, heads]: natural log-sum-exp of each
 * row's scores, in training only; optional the largest magnitude of out (Op.amax) */
enum { ATTENTION_QKV, ATTENTION_POSITIONS, ATTENTION_KV };
enum { ATTENTION_OUT, ATTENTION_LOG_SUM, ATTENTION_AMAX };

/* ATTENTION_QKV, ATTENTION_POSITIONS and ATTENTION_KV, so that both passes read them by the same names; d_out like out;
 * the forward outputs -> d_qkv like qkv, d_kv like kv */
enum { ATTENTION_GRAD_D_OUT = ATTENTION_KV + 1, ATTENTION_GRAD_OUT, ATTENTION_GRAD_LOG_SUM };
enum { ATTENTION_GRAD_D_QKV, ATTENTION_GRAD_D_KV };

/* of op_attention_split, and of its gradient, which joins them again */
enum { ATTENTION_SPLIT_QKV };
enum { ATTENTION_SPLIT_QUERIES, ATTENTION_SPLIT_KV };
enum { ATTENTION_JOIN_QUERIES, ATTENTION_JOIN_KV };
enum { ATTENTION_JOIN_QKV };

enum { ATTENTION_ORDER_X };
enum { ATTENTION_ORDER_Y };
typedef struct AttentionOrder {
    int64_t length, ranks;
    bool back; /* from sequences to ranks */
} AttentionOrder;

/* of op_attention_sum, as NEXT where it is WIDE, as LAST where it is COMPUTE; without log-sum-exps a plain sum */
enum { ATTENTION_SUM_SUM, ATTENTION_SUM_LOG, ATTENTION_SUM_PART, ATTENTION_SUM_PART_LOG };
enum { ATTENTION_SUM_NEXT, ATTENTION_SUM_NEXT_LOG, ATTENTION_SUM_LAST };

/* ATTENTION_QKV, and ATTENTION_POSITIONS as rows of the cache -> out as above, or where ranks share the cache a part of
 * op_attention_part; cache as in op_attention_cached */
enum { ATTENTION_CACHED_OUT, ATTENTION_CACHED_CACHE };

/* of op_attention_merge */
enum { ATTENTION_MERGE_PARTS };
enum { ATTENTION_MERGE_OUT };

static inline int64_t attention_part_columns(const Heads *heads) { return heads->heads * (heads->head_dim + 1); }
/* How the cache of a rank of the mesh is dealt. */
static inline Deal attention_deal(const Mesh *mesh) { return (Deal){mesh_index(mesh, MESH(AXIS_CP)), mesh_size(mesh, MESH(AXIS_CP))}; }
