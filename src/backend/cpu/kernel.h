/* The common definitions of CPU kernels. Every src/ops/NAME/cpu.c is compiled once per variant, a
 * precision and an instruction set, with KERNEL_VARIANT (the suffix of its symbols) and one of
 * KERNEL_BF16, KERNEL_FP32, KERNEL_FP64 defined:
 *     T  storage of COMPUTE tensors: bf16 bits, float or double
 *     W  WIDE tensors, arithmetic and sums: float; double for fp64, the precision of the gradient checks
 * Loops over columns are plain C that the compiler vectorizes for the variant's instruction set.
 * The order of every sum depends only on shapes: parallel loops run over fixed blocks of
 * KERNEL_BLOCK rows, and partial sums of blocks are added in block order. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/bf16.h"
#include "base/math.h"
#include "device/gemm.h"
#include "graph/op.h"

#define KERNEL_PASTE_(a, b) a##_##b
#define KERNEL_PASTE(a, b) KERNEL_PASTE_(a, b)
#define KERNEL(name) KERNEL_PASTE(kernel_##name, KERNEL_VARIANT)

/* Defines the CPU kernel of an operation and, if it needs scratch, names the function that returns
 * its size: CPU_OP(norm_grad, workspace) { ... call->in ... } */
#define CPU_OP(name, ...) \
    static void run_##name(const OpCall *call); \
    const OpKernel KERNEL(name) = {run_##name, __VA_ARGS__}; \
    static void run_##name(const OpCall *call)

/* Returns the vector of elements i, j, ... (constants) of a followed by b: VECTOR_SHUFFLE(a, b, i,
 * j, ...). gcc 11 (Ubuntu 22.04) takes the indices as a vector of integers. */
#if __has_builtin(__builtin_shufflevector)
#define VECTOR_SHUFFLE __builtin_shufflevector
#else
#define VECTOR_SHUFFLE(a, b, ...)                                                                                                  \
    ({                                                                                                                              \
        typedef __typeof__(__builtin_choose_expr(sizeof((a)[0]) == 8, (int64_t)0, (int32_t)0)) Index __attribute__((vector_size(sizeof(a)))); \
        __builtin_shuffle(a, b, (Index){__VA_ARGS__});                                                                              \
    })
#endif

enum { KERNEL_BLOCK = 64 };

static inline int64_t kernel_blocks(int64_t rows) { return (rows + KERNEL_BLOCK - 1) / KERNEL_BLOCK; }
/* Returns the bytes of WIDE partial sums [blocks, columns], one row per KERNEL_BLOCK rows. */
static inline int64_t kernel_partials_bytes(const Graph *graph, int64_t rows, int64_t columns) {
    return kernel_blocks(rows) * columns * (int64_t)precision_bytes(graph->precision, TYPE_WIDE);
}

#if defined KERNEL_BF16
typedef uint16_t T;
typedef float W;
#define KERNEL_GEMM_COMPUTE GEMM_BF16
#define KERNEL_GEMM_WIDE GEMM_F32
static inline W to_wide(T x) { return bf16_to_float(x); }
static inline T to_compute(W x) { return bf16_from_float(x); }
#elif defined KERNEL_FP32
typedef float T;
typedef float W;
#define KERNEL_GEMM_COMPUTE GEMM_F32
#define KERNEL_GEMM_WIDE GEMM_F32
static inline W to_wide(T x) { return x; }
static inline T to_compute(W x) { return x; }
#elif defined KERNEL_FP64
typedef double T;
typedef double W;
#define KERNEL_GEMM_COMPUTE GEMM_F64
#define KERNEL_GEMM_WIDE GEMM_F64
static inline W to_wide(T x) { return x; }
static inline T to_compute(W x) { return x; }
#endif

#if defined KERNEL_FP64
static inline W wide_exp(W x) { return exp(x); }
static inline W wide_erf(W x) { return erf(x); }
static inline W wide_tanh(W x) { return tanh(x); }
static inline W wide_sqrt(W x) { return sqrt(x); }
#elif defined KERNEL_VARIANT
/* Returns e^x within 2 ulp, without branches or calls, so that loops vectorize: x = n ln 2 + r, |r|
 * <= ln 2 / 2, a degree-6 Taylor-like polynomial for e^r, and 2^n by its exponent bits, 0 below
 * -87.7, infinity above 88.4. NaN stays NaN. */
static inline W wide_exp(W x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    float least = x < -88.0f ? -88.0f : x;
    float clamped = least > 88.7f ? 88.7f : least;
    float shifted = clamped * 1.44269504f + magic;
    float n = shifted - magic;
    float r = clamped - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * float_from_bits((float_to_bits(shifted) << 23) + 0x3f800000);
}
/* Returns erf within 2e-7 absolute (Abramowitz and Stegun 7.1.26). */
static inline W wide_erf(W x) {
    float a = fabsf(x);
    float t = 1.0f / (1.0f + 0.3275911f * a);
    float p = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    return copysignf(1.0f - p * wide_exp(-a * a), x);
}
static inline W wide_tanh(W x) { return tanhf(x); }
static inline W wide_sqrt(W x) { return sqrtf(x); }
#endif

#if defined KERNEL_VARIANT
/* Returns the type of a COMPUTE parameter's gradient. */
static inline GemmType kernel_gradient_type(const OpCall *call) { return call->compute_gradients ? KERNEL_GEMM_COMPUTE : KERNEL_GEMM_WIDE; }

/* Prefetches `count` elements of a later row if the hardware prefetcher would be too late: rows
 * that take long to compute or are far apart. */
#define kernel_prefetch(row, count) kernel_prefetch_bytes(row, (count) * (int64_t)sizeof *(row))
static inline void kernel_prefetch_bytes(const void *from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch((const char *)from + at);
}

/* Returns the amax of x [count]; NaN if an element is NaN. The order of elements does not change a
 * maximum. */
static inline W kernel_amax(const T *x, int64_t count) {
    W most = 0;
    int nan = 0;
#pragma omp parallel for simd schedule(static) reduction(max : most) reduction(| : nan)
    for (int64_t i = 0; i < count; i++) {
        W magnitude = (W)fabs((double)to_wide(x[i]));
        most = magnitude > most ? magnitude : most;
        nan |= magnitude != magnitude;
    }
    return nan ? (W)NAN : most;
}
/* Writes the amax of output `made` [R, D] to output `amax`, if the node has one (Op.amax). */
static inline void kernel_put_amax(const OpCall *call, int made, int amax) {
    if (call->out[amax]) *(W *)call->out[amax] = kernel_amax(call->out[made], call->out_shape[made][0] * call->out_shape[made][1]);
}

/* Zeroes the unused slots, those from offset[experts] on, of [count, columns]. */
static inline void kernel_zero_unused(T *slots, const int32_t *offset, int64_t experts, int64_t count, int64_t columns) {
    memset(slots + offset[experts] * columns, 0, (count - offset[experts]) * columns * sizeof(T));
}

/* target[j] += sum over blocks of partials[block, j], in block order: the second step of every sum
 * over rows. No effect if target is NULL (a frozen parameter). */
static inline void kernel_add_partials(W *target, const W *partials, int64_t blocks, int64_t columns) {
    if (!target) return;
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < columns; first += KERNEL_BLOCK) {
        int64_t end = int_min(columns, first + KERNEL_BLOCK);
        for (int64_t block = 0; block < blocks; block++)
            for (int64_t j = first; j < end; j++) target[j] += partials[block * columns + j];
    }
}

/* target[at + j] += sum[j]; target is the gradient of a COMPUTE parameter. No effect if target is
 * NULL (a frozen parameter). */
static inline void kernel_add_to_gradient(const OpCall *call, void *target, int64_t at, const W *restrict sum, int64_t count) {
    if (!target) return;
    W *restrict wide = (W *)target + at;
    T *restrict compute = (T *)target + at;
    if (call->compute_gradients)
        for (int64_t j = 0; j < count; j++) compute[j] = to_compute(to_wide(compute[j]) + sum[j]);
    else
        for (int64_t j = 0; j < count; j++) wide[j] += sum[j];
}
#endif
