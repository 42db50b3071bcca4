/* The three GEMMs of fp8_linear_cross_entropy over a chunk of rows, for both back ends. The
 * quantized values of a line are contiguous along each sum, and every matrix has one scale. */
#pragma once

#include "ops/loss/loss.h"

/* Rows first .. first + rows - 1 of x, and their quantized d_logits in e5m2. */
typedef struct LossFp8 {
    int64_t first, rows, stride; /* stride: between rows of `by_rows` */
    uint8_t *by_rows;            /* [rows, vocabulary] */
    uint8_t *by_columns;         /* [vocabulary, rows] */
    float *scale;
} LossFp8;

static inline Gemm loss_fp8_gemm(GemmType input, int64_t m, int64_t n, int64_t k) {
    return (Gemm){.transpose_b = true,
        .input = input,
        .m = m,
        .n = n,
        .k = k,
        .lda = k,
        .ldb = k,
        .ldc = n,
        .scaling_a = GEMM_SCALE_TENSOR,
        .scaling_b = GEMM_SCALE_TENSOR};
}

/* logits = x w^T. Here and below, callers set the type of C; for logits they also set the row
 * stride. */
static inline Gemm loss_fp8_forward(const OpCall *call, const LossFp8 *c, void *logits) {
    int64_t columns = call->in_shape[LOSS_X][1];
    Gemm g = loss_fp8_gemm(GEMM_E4M3, c->rows, call->in_shape[LOSS_W][0], columns);
    g.a = (const uint8_t *)call->in[LOSS_X] + c->first * columns, g.scale_a = call->in[LOSS_X_SCALE];
    g.b = call->in[LOSS_W], g.scale_b = call->in[LOSS_W_SCALE];
    g.c = logits;
    return g;
}

/* d_x = d_logits w */
static inline Gemm loss_fp8_grad_input(const OpCall *call, const LossFp8 *c, void *d_x) {
    Gemm g = loss_fp8_gemm(GEMM_E5M2, c->rows, call->in_shape[LOSS_X][1], call->in_shape[LOSS_W][0]);
    g.a = c->by_rows, g.lda = c->stride, g.scale_a = c->scale;
    g.b = call->in[LOSS_W_COLUMNS], g.scale_b = call->in[LOSS_W_SCALE];
    g.c = d_x;
    return g;
}

/* d_w += d_logits^T x, or d_w = d_logits^T x if nothing was added yet. */
static inline Gemm loss_fp8_grad_weight(const OpCall *call, const LossFp8 *c) {
    Gemm g = loss_fp8_gemm(GEMM_E5M2, call->in_shape[LOSS_W][0], call->in_shape[LOSS_X][1], c->rows);
    g.a = c->by_columns, g.scale_a = c->scale;
    g.b = (const uint8_t *)call->in[LOSS_X_COLUMNS] + c->first, g.ldb = call->in_shape[LOSS_X][0], g.scale_b = call->in[LOSS_X_SCALE];
    g.c = call->out[LOSS_D_W], g.accumulate = c->first > 0 || !call->overwrite;
    return g;
}
