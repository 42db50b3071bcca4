/* The three GEMMs of a linear layer y = x w^T over contiguous row-major matrices x [rows, in], w
 * [out, in], y [rows, out], for the operations that contain such a layer. Callers change output
 * type, leading dimensions and bias as needed. */
#pragma once

#include "device/gemm.h"

typedef struct LinearShape { int64_t rows, in, out; } LinearShape;

/* y = x w^T */
static inline Gemm linear_gemm(LinearShape s, GemmType type, const void *x, const void *w, void *y) {
    return (Gemm){
        .transpose_b = true,
        .input = type,
        .output = type,
        .m = s.rows,
        .n = s.out,
        .k = s.in,
        .a = x,
        .lda = s.in,
        .b = w,
        .ldb = s.in,
        .c = y,
        .ldc = s.out,
    };
}

/* d_x = d_y w */
static inline Gemm linear_grad_input_gemm(LinearShape s, GemmType type, const void *d_y, const void *w, void *d_x) {
    return (Gemm){
        .input = type,
        .output = type,
        .m = s.rows,
        .n = s.in,
        .k = s.out,
        .a = d_y,
        .lda = s.out,
        .b = w,
        .ldb = s.in,
        .c = d_x,
        .ldc = s.in,
    };
}

/* d_w += d_y^T x, or d_w = d_y^T x if `overwrite`. The caller sets `output`, the type of d_w. */
static inline Gemm linear_grad_weight_gemm(LinearShape s, GemmType type, const void *d_y, const void *x, void *d_w, bool overwrite) {
    return (Gemm){
        .transpose_a = true,
        .accumulate = !overwrite,
        .input = type,
        .output = type,
        .m = s.out,
        .n = s.in,
        .k = s.rows,
        .a = d_y,
        .lda = s.out,
        .b = x,
        .ldb = s.in,
        .c = d_w,
        .ldc = s.in,
    };
}
