/* norm: builders, and what the rule and the kernels of both back ends share. */
#pragma once

#include "graph/op.h"
#include "ops/heads.h"
#include "ops/norm/affine.h"

/* NORM_RMS: y = x / sqrt(mean(x^2) + epsilon) * gain. NORM_LAYER: y = (x - mean(x)) / sqrt(variance(x) + epsilon) * gain + bias, the bias may be
 * TENSOR_NONE. */
typedef enum NormKind { NORM_RMS, NORM_LAYER } NormKind;
typedef struct Norm {
    NormKind kind;
    TensorId gain, bias;
    double epsilon;
} Norm;
/* Of the rows of x, WIDE [R, D]; COMPUTE. */
TensorId op_norm(Graph *graph, TensorId x, const Norm *norm);

/* The merge of a block's output with the residual stream and the norm that follows, in one pass:
 * stream' = (block + block_bias) * block_scale + (stream + stream_bias) * stream_scale, WIDE; normed = norm(stream') COMPUTE.
 * `affine` holds block_scale, block_bias, stream_scale, stream_bias, or is NULL for a plain sum. */
typedef struct ResidualNorm { TensorId stream, normed; } ResidualNorm;
ResidualNorm op_residual_norm(Graph *graph, TensorId block, TensorId stream, const TensorId affine[4], const Norm *norm);

/* Norms of queries and keys; values pass through. The gain of `query` (`key`) tells the columns of one norm: head_dim for a norm per head (Qwen3), all of the
 * heads' columns for one norm over them together (MPT), or any divisor of these. */
TensorId op_qk_norm(Graph *graph, TensorId qkv, const Norm *query, const Norm *key, const Heads *heads);

typedef struct NormAttributes {
    NormKind kind;
    double epsilon;
} NormAttributes;

/* What is kept of a row for its gradient: rstd, and LayerNorm's mean. */
static inline int64_t norm_statistics(NormKind kind) { return kind == NORM_LAYER ? 2 : 1; }

typedef struct QkNormAttributes {
    NormAttributes norm[2];
    Heads heads;
} QkNormAttributes; /* of queries, then of keys */

enum { IN_QKV, IN_QUERY_GAIN, IN_QUERY_BIAS, IN_KEY_GAIN, IN_KEY_BIAS };
enum { OUT_QKV, OUT_QUERY_STATISTICS, OUT_KEY_STATISTICS };
enum { GRAD_D_QKV, GRAD_QKV, GRAD_QUERY_GAIN, GRAD_KEY_GAIN, GRAD_QUERY_STATISTICS, GRAD_KEY_STATISTICS };
enum { GRAD_OUT_QKV, GRAD_OUT_QUERY_GAIN, GRAD_OUT_QUERY_BIAS, GRAD_OUT_KEY_GAIN, GRAD_OUT_KEY_BIAS };

/* Columns of the queries (part 0) or keys (part 1) of a row, and the first of them. */
static inline int64_t part_columns(const Heads *heads, int part) { return (part ? heads->kv_heads : heads->heads) * heads->head_dim; }
static inline int64_t part_begin(const Heads *heads, int part) { return part * part_columns(heads, 0); }

enum { IN_BLOCK, IN_STREAM, IN_GAIN, IN_BIAS, IN_AFFINE };
enum { OUT_STREAM, OUT_NORMED, OUT_STATISTICS };
enum { GRAD_D_STREAM, GRAD_D_NORMED, GRAD_BLOCK, GRAD_STREAM, GRAD_MERGED, GRAD_STATISTICS, GRAD_GAIN, GRAD_AFFINE };
enum { GRAD_OUT_BLOCK, GRAD_OUT_STREAM, GRAD_OUT_GAIN, GRAD_OUT_BIAS, GRAD_OUT_AFFINE };
