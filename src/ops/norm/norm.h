/* Norms of rows: builders, attributes and operands of ops norm, residual_norm (merge into the residual stream, then
 * norm) and qk_norm. */
#pragma once

#include "graph/op.h"
#include "ops/heads.h"

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

/* Vectors [D] of ZAYA1's learned merge of a block's output into the residual stream. */
typedef struct AffineMerge { TensorId block_scale, block_bias, stream_scale, stream_bias; } AffineMerge;

/* In one pass, for block COMPUTE [R, D] and stream WIDE [R, D]:
 *     merged = (block + block_bias) * block_scale + (stream + stream_bias) * stream_scale
 *              or block + stream where affine is NULL
 *     normed = norm(merged)
 * merged is WIDE and the stream that follows; normed is COMPUTE. */
typedef struct ResidualNorm { TensorId stream, normed; } ResidualNorm;
ResidualNorm op_residual_norm(Graph *graph, TensorId block, TensorId stream, const AffineMerge *affine, const Norm *norm);

/* Norms of queries and keys in packed qkv; values are copied. A gain's length is the number of columns of one norm:
 * head_dim for a norm per head (Qwen3), all columns of the heads for one norm over them together (MPT), or any divisor
 * of these. */
TensorId op_qk_norm(Graph *graph, TensorId qkv, const Norm *query, const Norm *key, const Heads *heads);

/* -- Attributes ---------------------------------------------------------------------------------------------------- */

typedef struct NormAttributes {
    NormKind kind;
    double epsilon;
} NormAttributes;

/* Statistics kept of each norm for the backward pass: rstd, and LayerNorm's mean. */
static inline int64_t norm_statistics(NormKind kind) { return kind == NORM_LAYER ? 2 : 1; }

/* Flops of one element in the forward pass: square, sum, scale, gain; LayerNorm subtracts a mean and adds a bias. The
 * backward pass has twice as many. */
static inline double norm_flops(const NormAttributes *attributes) { return attributes->kind == NORM_LAYER ? 6 : 4; }

/* The two parts of a qkv row that qk_norm normalises. */
typedef enum QkPart { QK_QUERIES, QK_KEYS, QK_PARTS } QkPart;
typedef struct QkNormAttributes {
    NormAttributes norm[QK_PARTS];
    Heads heads;
} QkNormAttributes;

/* Columns of a part, and its first column; QK_PARTS: that of the values. */
static inline int64_t qk_columns(const Heads *h, int part) { return (part == QK_QUERIES ? h->heads : h->kv_heads) * h->head_dim; }
static inline int64_t qk_begin(const Heads *h, int part) {
    return part == QK_QUERIES ? 0 : (h->heads + (part - 1) * h->kv_heads) * h->head_dim;
}

/* -- Operands ------------------------------------------------------------------------------------------------------ */

typedef enum NormOperand {
    NORM_X,    /* WIDE [R, D] */
    NORM_GAIN, /* WIDE [D] */
    NORM_BIAS, /* WIDE [D], or none */
    NORM_INPUTS,
    NORM_Y = 0,      /* COMPUTE [R, D] */
    NORM_STATISTICS, /* WIDE [R, norm_statistics] */
    NORM_OUTPUTS
} NormOperand;

typedef enum NormGradOperand {
    NORM_GRAD_D_Y, /* COMPUTE [R, D] */
    NORM_GRAD_X,   /* the forward operands */
    NORM_GRAD_GAIN,
    NORM_GRAD_STATISTICS,
    NORM_GRAD_INPUTS,
    NORM_GRAD_D_X = 0, /* WIDE [R, D] */
    NORM_GRAD_D_GAIN,  /* WIDE [D], added to */
    NORM_GRAD_D_BIAS,
    NORM_GRAD_OUTPUTS
} NormGradOperand;

typedef enum ResidualNormOperand {
    RESIDUAL_NORM_BLOCK,       /* COMPUTE [R, D] */
    RESIDUAL_NORM_STREAM,      /* WIDE [R, D] */
    RESIDUAL_NORM_GAIN,        /* WIDE [D] */
    RESIDUAL_NORM_BIAS,        /* WIDE [D], or none */
    RESIDUAL_NORM_BLOCK_SCALE, /* WIDE [D]; these four: or none of them */
    RESIDUAL_NORM_BLOCK_BIAS,
    RESIDUAL_NORM_STREAM_SCALE,
    RESIDUAL_NORM_STREAM_BIAS,
    RESIDUAL_NORM_INPUTS,
    RESIDUAL_NORM_MERGED = 0, /* WIDE [R, D] */
    RESIDUAL_NORM_NORMED,     /* COMPUTE [R, D] */
    RESIDUAL_NORM_STATISTICS, /* WIDE [R, norm_statistics] */
    RESIDUAL_NORM_OUTPUTS
} ResidualNormOperand;

typedef enum ResidualNormGradOperand {
    RESIDUAL_NORM_GRAD_D_MERGED, /* WIDE [R, D], or none: zero */
    RESIDUAL_NORM_GRAD_D_NORMED, /* COMPUTE [R, D], or none: zero */
    RESIDUAL_NORM_GRAD_BLOCK,    /* the forward operands; block and stream only of an affine merge */
    RESIDUAL_NORM_GRAD_STREAM,
    RESIDUAL_NORM_GRAD_MERGED,
    RESIDUAL_NORM_GRAD_STATISTICS,
    RESIDUAL_NORM_GRAD_GAIN,
    RESIDUAL_NORM_GRAD_BLOCK_SCALE,
    RESIDUAL_NORM_GRAD_BLOCK_BIAS,
    RESIDUAL_NORM_GRAD_STREAM_SCALE,
    RESIDUAL_NORM_GRAD_STREAM_BIAS,
    RESIDUAL_NORM_GRAD_INPUTS,
    RESIDUAL_NORM_GRAD_D_BLOCK = 0, /* COMPUTE [R, D] */
    RESIDUAL_NORM_GRAD_D_STREAM,    /* WIDE [R, D] */
    RESIDUAL_NORM_GRAD_D_GAIN,      /* WIDE [D], added to, as are those that follow */
    RESIDUAL_NORM_GRAD_D_BIAS,
    RESIDUAL_NORM_GRAD_D_BLOCK_SCALE,
    RESIDUAL_NORM_GRAD_D_BLOCK_BIAS,
    RESIDUAL_NORM_GRAD_D_STREAM_SCALE,
    RESIDUAL_NORM_GRAD_D_STREAM_BIAS,
    RESIDUAL_NORM_GRAD_OUTPUTS
} ResidualNormGradOperand;

/* Operands of keys follow those of queries: NAME + part. */
typedef enum QkNormOperand {
    QK_NORM_QKV,  /* COMPUTE [R, heads_columns] */
    QK_NORM_GAIN, /* WIDE [columns of a norm], of queries */
    QK_NORM_KEY_GAIN,
    QK_NORM_BIAS, /* likewise, or none */
    QK_NORM_KEY_BIAS,
    QK_NORM_INPUTS,
    QK_NORM_OUT = 0,    /* COMPUTE [R, heads_columns] */
    QK_NORM_STATISTICS, /* WIDE [R, norms of a row, norm_statistics], of queries */
    QK_NORM_KEY_STATISTICS,
    QK_NORM_OUTPUTS
} QkNormOperand;

typedef enum QkNormGradOperand {
    QK_NORM_GRAD_D_OUT, /* COMPUTE [R, heads_columns] */
    QK_NORM_GRAD_QKV,   /* the forward operands */
    QK_NORM_GRAD_GAIN,
    QK_NORM_GRAD_KEY_GAIN,
    QK_NORM_GRAD_STATISTICS,
    QK_NORM_GRAD_KEY_STATISTICS,
    QK_NORM_GRAD_INPUTS,
    QK_NORM_GRAD_D_QKV = 0, /* COMPUTE [R, heads_columns] */
    QK_NORM_GRAD_D_GAIN,    /* WIDE, added to, as are those that follow */
    QK_NORM_GRAD_D_KEY_GAIN,
    QK_NORM_GRAD_D_BIAS,
    QK_NORM_GRAD_D_KEY_BIAS,
    QK_NORM_GRAD_OUTPUTS
} QkNormGradOperand;
