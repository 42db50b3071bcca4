/* Norms of rows: builders, attributes and operands of ops norm, residual_norm (residual add, then
 * norm) and qk_norm. */
#pragma once

#include "graph/op.h"
#include "ops/heads.h"
#include "ops/norm/affine.h"

/* NORM_RMS: y = x / sqrt(mean(x^2) + epsilon) * gain. NORM_LAYER: y = (x - mean(x)) / sqrt(variance(x) + epsilon) *
 * gain + bias; the bias may be TENSOR_NONE. */
typedef enum NormKind { NORM_RMS, NORM_LAYER } NormKind;
typedef struct Norm {
    NormKind kind;
    TensorId gain, bias;
    double epsilon;
} Norm;
/* x is WIDE [R, D]; the result COMPUTE [R, D]. */
TensorId op_norm(Graph *graph, TensorId x, const Norm *norm);

/* Vectors [D] of ZAYA1's learned affine residual add. */
typedef struct AffineResidual { TensorId vectors[AFFINE_VECTORS]; } AffineResidual;

/* Appends residual add and norm in one pass, for block COMPUTE [R, D] and stream WIDE [R, D]:
 *     residual = (block + block bias) * block scale + (stream + stream bias) * stream scale
 *              or block + stream if affine is NULL
 *     normed = norm(residual)
 * residual is WIDE and becomes the stream; normed is COMPUTE. */
typedef struct ResidualNorm { TensorId stream, normed; } ResidualNorm;
ResidualNorm op_residual_norm(Graph *graph, TensorId block, TensorId stream, const AffineResidual *affine, const Norm *norm);

/* Appends the RMSNorm of a block's output and the residual add after it, in one pass:
 *     residual = stream + norm(block)
 *     normed = residual rounded to COMPUTE
 * Operands as in op_residual_norm. D is a multiple of 4 and at most FUSED_NORM_MOST_COLUMNS. */
enum { FUSED_NORM_MOST_COLUMNS = 8192 };
ResidualNorm op_post_norm(Graph *graph, TensorId block, TensorId stream, const Norm *norm);

/* Normalizes queries and keys in packed qkv; values are copied. A gain's length is the number of
 * columns of one norm: qk_dim for a norm per head (Qwen3), all columns of the heads for one norm
 * over all of them (MPT), or any divisor of these. */
TensorId op_qk_norm(Graph *graph, TensorId qkv, const Norm *query, const Norm *key, const Heads *heads);

/* Adaptive LayerNorm with gates (AdaLN-Zero, arXiv 2212.09748) of samples of R / S rows each, in
 * one pass:
 *     residual = stream + gate * block                  the stream itself without a block
 *     normed = layernorm(residual) * (1 + scale) + shift     TENSOR_NONE if `shift` and `scale` are: a gated residual add
 * block COMPUTE [R, D], stream WIDE [R, D]; gate, shift and scale are vectors of each sample, WIDE
 * [S, D]; the LayerNorm has neither gain nor bias. D is a multiple of 4 and at most
 * FUSED_NORM_MOST_COLUMNS. */
typedef struct Modulation { TensorId shift, scale; } Modulation;
ResidualNorm op_adaptive_norm(Graph *graph, TensorId block, TensorId gate, TensorId stream, Modulation modulation, double epsilon);

/* -- Attributes ---------------------------------------------------------------------------------------------------- */

typedef struct NormAttributes {
    NormKind kind;
    double epsilon;
} NormAttributes;

/* Returns the number of statistics that a norm keeps for the backward pass: rstd, and LayerNorm's
 * mean. */
static inline int64_t norm_statistics(NormKind kind) { return kind == NORM_LAYER ? 2 : 1; }

/* Returns the flops per element in the forward pass: square, sum, scale, gain; LayerNorm subtracts
 * a mean and adds a bias. The backward pass has twice as many. */
static inline double norm_flops(const NormAttributes *attributes) { return attributes->kind == NORM_LAYER ? 6 : 4; }

/* The two parts of a qkv row that qk_norm normalizes. */
typedef enum QkPart { QK_QUERIES, QK_KEYS, QK_PARTS } QkPart;
typedef struct QkNormAttributes {
    NormAttributes norm[QK_PARTS];
    Heads heads;
} QkNormAttributes;

/* The columns of a part, and its first column; QK_PARTS: the first column of the values. */
static inline int64_t qk_columns(const Heads *h, int part) { return part == QK_QUERIES ? heads_query_columns(h) : heads_key_columns(h); }
static inline int64_t qk_begin(const Heads *h, int part) {
    return (part > QK_QUERIES ? heads_query_columns(h) : 0) + (part > QK_KEYS ? heads_key_columns(h) : 0);
}

/* Asserts that gain and bias fit norms of `columns` columns. */
static inline void norm_assert_vectors(const Graph *graph, const Norm *norm, int64_t columns) {
    assert(graph_elements(graph, norm->gain) == columns);
    assert(norm->bias == TENSOR_NONE || (norm->kind == NORM_LAYER && graph_elements(graph, norm->bias) == columns));
}

/* -- One row, in the kernel of the GEMM that reads it (backend/gpu/gemv.h) ----------------------------------------- */

/* Returns 1 if the kernel of node `reader` can also compute the node before it: a residual_norm with
 * RMSNorm, a plain sum and at most `most` columns, whose norm only `reader` reads; otherwise 0. Later
 * nodes may read the residual. */
int norm_leads_row(const Graph *graph, int reader, int64_t most);
/* Sets the operands of a residual_norm for such a kernel; in residual_gpu.c. */
struct GemvNorm;
void norm_of_row(const OpCall *norm, struct GemvNorm *operands);

/* -- Operands ------------------------------------------------------------------------------------------------------ */

/* x WIDE [R, D], gain WIDE [D], bias WIDE [D] or none -> y COMPUTE [R, D], statistics WIDE
 * [R, norm_statistics]; optional, WIDE [1], the amax of y (Op.amax) */
enum { NORM_X, NORM_GAIN, NORM_BIAS };
enum { NORM_Y, NORM_STATISTICS, NORM_AMAX };

/* d_y like y, the forward operands -> d_x like x; d_gain and d_bias, which are added to */
enum { NORM_GRAD_D_Y, NORM_GRAD_X, NORM_GRAD_GAIN, NORM_GRAD_STATISTICS };
enum { NORM_GRAD_D_X, NORM_GRAD_D_GAIN, NORM_GRAD_D_BIAS };

/* block COMPUTE [R, D], stream WIDE [R, D], gain and bias as above, the vectors of an affine
 * residual add WIDE [D] or none, by AffineVector -> residual WIDE [R, D], normed COMPUTE [R, D],
 * statistics as above, and optional amax of normed */
enum { RESIDUAL_NORM_BLOCK, RESIDUAL_NORM_STREAM, RESIDUAL_NORM_GAIN, RESIDUAL_NORM_BIAS, RESIDUAL_NORM_AFFINE };
enum { RESIDUAL_NORM_RESIDUAL, RESIDUAL_NORM_NORMED, RESIDUAL_NORM_STATISTICS, RESIDUAL_NORM_AMAX };

/* d_residual like residual and d_normed like normed, or none: zero; the forward operands, block and
 * stream only for an affine residual add -> d_block like block, d_stream like stream; the gradients
 * of the parameters, which are added to; optional amax of d_block */
enum {
    RESIDUAL_NORM_GRAD_D_RESIDUAL,
    RESIDUAL_NORM_GRAD_D_NORMED,
    RESIDUAL_NORM_GRAD_BLOCK,
    RESIDUAL_NORM_GRAD_STREAM,
    RESIDUAL_NORM_GRAD_RESIDUAL,
    RESIDUAL_NORM_GRAD_STATISTICS,
    RESIDUAL_NORM_GRAD_GAIN,
    RESIDUAL_NORM_GRAD_AFFINE
};
enum {
    RESIDUAL_NORM_GRAD_D_BLOCK,
    RESIDUAL_NORM_GRAD_D_STREAM,
    RESIDUAL_NORM_GRAD_D_GAIN,
    RESIDUAL_NORM_GRAD_D_BIAS,
    RESIDUAL_NORM_GRAD_D_AFFINE,
    RESIDUAL_NORM_GRAD_AMAX = RESIDUAL_NORM_GRAD_D_AFFINE + AFFINE_VECTORS
};

/* block COMPUTE [R, D], stream WIDE [R, D], gain WIDE [D] -> residual WIDE [R, D], narrow COMPUTE
 * [R, D], statistics WIDE [R, 1]. The attributes are NormAttributes. */
enum { POST_NORM_BLOCK, POST_NORM_STREAM, POST_NORM_GAIN };
enum { POST_NORM_RESIDUAL, POST_NORM_NARROW, POST_NORM_STATISTICS };

/* d_residual and d_narrow, or none: zero; the forward operands -> d_block like block, d_stream like
 * stream; d_gain, which is added to */
enum { POST_NORM_GRAD_D_RESIDUAL, POST_NORM_GRAD_D_NARROW, POST_NORM_GRAD_BLOCK, POST_NORM_GRAD_GAIN, POST_NORM_GRAD_STATISTICS };
enum { POST_NORM_GRAD_D_BLOCK, POST_NORM_GRAD_D_STREAM, POST_NORM_GRAD_D_GAIN };

/* as in op_adaptive_norm -> residual WIDE [R, D] and normed COMPUTE [R, D], or none; statistics WIDE
 * [R, 2] with normed. The attributes are NormAttributes. */
enum { ADAPTIVE_NORM_BLOCK, ADAPTIVE_NORM_GATE, ADAPTIVE_NORM_STREAM, ADAPTIVE_NORM_SHIFT, ADAPTIVE_NORM_SCALE };
enum { ADAPTIVE_NORM_RESIDUAL, ADAPTIVE_NORM_NORMED, ADAPTIVE_NORM_STATISTICS };

/* d_residual and d_normed, or none: zero; the forward operands, with the stream as `residual` if there
 * was no block -> d_block and d_gate if there was a block; d_stream, d_shift and d_scale if there
 * was a norm. Without a norm d_stream is d_residual. */
enum {
    ADAPTIVE_NORM_GRAD_D_RESIDUAL,
    ADAPTIVE_NORM_GRAD_D_NORMED,
    ADAPTIVE_NORM_GRAD_BLOCK,
    ADAPTIVE_NORM_GRAD_GATE,
    ADAPTIVE_NORM_GRAD_RESIDUAL,
    ADAPTIVE_NORM_GRAD_SCALE,
    ADAPTIVE_NORM_GRAD_STATISTICS
};
enum {
    ADAPTIVE_NORM_GRAD_D_BLOCK,
    ADAPTIVE_NORM_GRAD_D_GATE,
    ADAPTIVE_NORM_GRAD_D_STREAM,
    ADAPTIVE_NORM_GRAD_D_SHIFT,
    ADAPTIVE_NORM_GRAD_D_SCALE
};

/* qkv COMPUTE [R, heads_columns], gain and bias (or none) WIDE [columns of a norm] -> out like qkv,
 * statistics WIDE [R, norms per row, norm_statistics]. Operands of keys follow those of queries:
 * NAME + part. */
enum { QK_NORM_QKV, QK_NORM_GAIN, QK_NORM_KEY_GAIN, QK_NORM_BIAS, QK_NORM_KEY_BIAS };
enum { QK_NORM_OUT, QK_NORM_STATISTICS, QK_NORM_KEY_STATISTICS };

/* d_out like out, the forward operands -> d_qkv like qkv; the gradients of the parameters, which
 * are added to; optional amax of d_qkv */
enum {
    QK_NORM_GRAD_D_OUT,
    QK_NORM_GRAD_QKV,
    QK_NORM_GRAD_GAIN,
    QK_NORM_GRAD_KEY_GAIN,
    QK_NORM_GRAD_STATISTICS,
    QK_NORM_GRAD_KEY_STATISTICS
};
enum { QK_NORM_GRAD_D_QKV, QK_NORM_GRAD_D_GAIN, QK_NORM_GRAD_D_KEY_GAIN, QK_NORM_GRAD_D_BIAS, QK_NORM_GRAD_D_KEY_BIAS, QK_NORM_GRAD_AMAX };
