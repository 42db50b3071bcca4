/* How the optimizer's work is cut: the part that its CPU loops (optim/internal.h) and its GPU kernels (kernel/optim.h) share.
 *
 * A chunk is a piece of at most OPTIM_CHUNK elements of one parameter, or of one matrix under Muon. Chunks are listed once, at creation. Every
 * pass is one parallel loop over chunks, or one grid of a block for each, so that thousands of tiny vectors cost no more than one large
 * matrix; partial sums are kept per chunk and added in an order that the list alone decides. */
#ifndef SMELT_OPTIM_CHUNK_H
#define SMELT_OPTIM_CHUNK_H

#include <stdint.h>

enum { OPTIM_CHUNK = 1 << 14 };

/* One AdamW update as the kernels need it: g is multiplied by `scale`, p by `keep` (decay), and moves by step_size * m / (sqrt(v) *
 * inverse_root_bias2 + epsilon), which is torch.optim.AdamW with step_size = lr / bias1. */
typedef struct AdamwRates {
    double scale, beta1, beta2, step_size, inverse_root_bias2, epsilon, keep;
} AdamwRates;

typedef enum RateGroup { RATES_CONTROLLER, RATES_PLAIN, RATES_DECAYED, RATES_COUNT } RateGroup;

typedef struct Chunk {
    int64_t offset, count; /* elements of the master arena */
    int64_t inner;         /* its first element in the variance arena under AdamW, in its matrix under Muon */
    int32_t rates;         /* a RateGroup; AdamW only */
    int32_t matrix;        /* its index in the list of matrices; Muon only */
} Chunk;

/* Added to the Frobenius norm of Muon's direction, so that a zero gradient's stays zero. */
#define MUON_EPSILON 1e-7

#endif
