/* Attention: builders, attributes and operands of op attention, its gradient, and attention over a key-value cache in
 * generation. */
#pragma once

#include "graph/op.h"
#include "ops/attention/block_cyclic.h"
#include "ops/attention/scores.h"
#include "ops/attention/tokens.h"
#include "ops/heads.h"

/* Sequences are stored one after another, `length` rows each. Row r attends to rows r -
 * positions[r] .. r of its sequence, so positions that restart at 0 form the document mask; with
 * scores.window > 0, only to the last `window` of these. ops/attention/scores.h has the formulas of
 * scores and weights.
 *
 * Bidirectional attention, for encoders and image models, also sees later rows: r - positions[r] to
 * the end of the sequence. A shorter sequence is at the end of its `length` rows, with positions
 * that count from its first row, so that none of its rows sees earlier rows. It has no window,
 * ALiBi, sinks or context parallelism. */
typedef struct AttentionSpec {
    Heads heads;
    int64_t length;
    AttentionScores scores;
    bool bidirectional;
    /* For slopes: the index of the first head here among all heads of the model, and their number.
     * 0 of 0: all heads are here. */
    int64_t first_head, all_heads;
    /* Under context parallelism: the rank, and number of ranks, of the rows of queries and of keys
     * (ops/attention/tokens.h). 0 of 0: the rows are whole sequences. op_attention sets them from
     * the mesh. */
    struct { int64_t rank, ranks; } queries, keys;
} AttentionSpec;

static inline int64_t attention_all_heads(const AttentionSpec *spec) { return spec->all_heads ? spec->all_heads : spec->heads.heads; }

/* Appends attention with grouped queries over packed qkv [R, heads_columns]; the output is COMPUTE
 * [R, heads_out_columns]. If the mesh has several ranks on AXIS_CP, R is this rank's rows of the
 * sequences (ops/attention/tokens.h), which see the keys of the other ranks too. */
TensorId op_attention(Graph *graph, TensorId qkv, TensorId positions, const AttentionSpec *spec);

/* The same for queries [R, heads_query_columns] and keys and values `kv` [R', heads_kv_columns]
 * that are different rows of the same sequences; spec->queries and spec->keys identify them. A
 * query that sees none of the keys gets zeros. Ranks that have different keys of the same queries
 * count a sink once: only one of them has sinks. */
TensorId op_attention_over(Graph *graph, TensorId queries, TensorId positions, TensorId kv, const AttentionSpec *spec);
/* op_attention_over with the keys and values of all ranks of AXIS_CP; each rank supplies its
 * own. */
TensorId op_attention_ring(Graph *graph, TensorId queries, TensorId positions, TensorId kv, const AttentionSpec *spec);
/* Returns how many messages a rank sends to the next one, one after the other and beside its own compute,
 * in a run of a node of either pass; 0: an operation without such messages. */
int64_t ring_messages(const Graph *graph, const Node *node);

/* Splits packed qkv [R, heads_columns] into queries [R, heads_query_columns] and keys with values
 * [R, heads_kv_columns]. */
typedef struct AttentionParts { TensorId queries, kv; } AttentionParts;
AttentionParts op_attention_split(Graph *graph, TensorId qkv, const Heads *heads);
/* Reorders rows of `ranks` ranks, one rank after another, into whole sequences of `length` rows. */
TensorId op_attention_order(Graph *graph, TensorId x, int64_t length, int64_t ranks);

/* Appends attention of new rows in generation: spec->length consecutive rows of each of S
 * sequences. Writes the keys and values of row r to row first_rows[s] + positions[r] of `cache`,
 * STATE COMPUTE [cache rows, heads_kv_columns], and attends to the cache rows of positions 0 ..
 * positions[r] (the last `window` of them). first_rows, INT32 [S], gives the cache row of position
 * 0 of each sequence; sequences do not overlap. TENSOR_NONE: there is one sequence, from row 0 on.
 * No gradient.
 *
 * The ranks of AXIS_CP divide the cache (ops/attention/block_cyclic.h): `cache` is a rank's part,
 * [attention_cache_rows, ...]. Every rank computes all new rows, attends to its part of the keys,
 * and gathers the results of all ranks; each rank then computes the same output (tree attention,
 * arXiv 2408.04093). A rank sends R heads (v_dim + 1) numbers for a sequence of any length. One
 * all-gather takes one latency; all-reduces of the maximum and then of the sums would take two. The
 * all-gather moves `ranks` times as much, still a few KiB per row with 8 ranks. Several sequences
 * have whole caches. */
TensorId op_attention_cached(
    Graph *graph, TensorId qkv, TensorId positions, TensorId cache, TensorId first_rows, const AttentionSpec *spec);
/* Returns the rows of this rank's part of a cache for `context` positions; the same on all ranks of
 * AXIS_CP. */
int64_t attention_cache_rows(const Graph *graph, int64_t context);
/* The two computing halves of op_attention_cached over ranks, for tests. A part is WIDE
 * [R, heads * (v_dim + 1)]: the outputs of all heads over the rank's keys, then the
 * log2-sum-exp2 of their scores, -inf without a key. Rank 0 counts the sinks. The second half joins parts WIDE
 * [ranks * R, heads * (v_dim + 1)] -> COMPUTE [R, heads_out_columns]. */
TensorId op_attention_part(Graph *graph, TensorId qkv, TensorId positions, TensorId cache, const AttentionSpec *spec);
TensorId op_attention_combine(Graph *graph, TensorId parts, const AttentionSpec *spec);

/* qkv COMPUTE [R, heads_columns], or only queries if kv is given; positions int32 [R] within the
 * document; kv as in op_attention_over, or none; sinks WIDE [heads], or none -> out COMPUTE [R,
 * heads_out_columns]; log_sum WIDE [R, heads], the natural log-sum-exp of each row's scores and sink,
 * only in training; optional amax of out (Op.amax) */
enum { ATTENTION_QKV, ATTENTION_POSITIONS, ATTENTION_KV, ATTENTION_SINKS };
enum { ATTENTION_OUT, ATTENTION_LOG_SUM, ATTENTION_AMAX };

/* ATTENTION_QKV to ATTENTION_SINKS, so that both passes use the same names; d_out like out; the
 * forward outputs -> d_qkv like qkv, d_kv like kv, d_sinks, which is added to */
enum { ATTENTION_GRAD_D_OUT = ATTENTION_SINKS + 1, ATTENTION_GRAD_OUT, ATTENTION_GRAD_LOG_SUM };
enum { ATTENTION_GRAD_D_QKV, ATTENTION_GRAD_D_KV, ATTENTION_GRAD_D_SINKS };

/* operands of op_attention_split, and of its gradient, which joins the parts again */
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

/* operands of attention_sum, which joins two attention results over different keys, without a
 * gradient: the sum of SUM, WIDE or none yet, and PART, COMPUTE, both [R, heads_out_columns], weighted
 * by their log-sum-exps, WIDE [R, heads]; a plain sum without these. The result is NEXT if it is WIDE,
 * LAST if it is COMPUTE. */
enum { ATTENTION_SUM_SUM, ATTENTION_SUM_LOG, ATTENTION_SUM_PART, ATTENTION_SUM_PART_LOG };
enum { ATTENTION_SUM_NEXT, ATTENTION_SUM_NEXT_LOG, ATTENTION_SUM_LAST };

/* ATTENTION_QKV, ATTENTION_SINKS, ATTENTION_POSITIONS within the sequence, and first_rows or none -> out as
 * above, or a part of op_attention_part if ranks divide the cache; cache as in op_attention_cached */
enum { ATTENTION_CACHED_FIRST_ROWS = ATTENTION_SINKS + 1 };
enum { ATTENTION_CACHED_OUT, ATTENTION_CACHED_CACHE };

/* operands of op_attention_combine */
enum { ATTENTION_COMBINE_PARTS };
enum { ATTENTION_COMBINE_OUT };

static inline int64_t attention_part_columns(const Heads *heads) { return heads->heads * (heads->v_dim + 1); }
/* Returns the rank's share of the block-cyclic cache. */
static inline BlockCyclic attention_block_cyclic(const Mesh *mesh) {
    return (BlockCyclic){mesh_index(mesh, MESH(AXIS_CP)), mesh_size(mesh, MESH(AXIS_CP))};
}
