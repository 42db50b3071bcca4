/* What the files of the optimizer say to each other. Nobody else includes this but their tests.
 *
 * Work is cut into chunks once, at creation: pieces of at most OPTIM_CHUNK elements of one parameter, or of one matrix under Muon. Every
 * pass is one parallel loop over chunks, so that thousands of tiny vectors cost no more than one large matrix, and partial sums are kept
 * per chunk and added in chunk order, so that the bits do not depend on the number of threads. */
#ifndef SMELT_OPTIM_INTERNAL_H
#define SMELT_OPTIM_INTERNAL_H

#include "device/gemm.h"
#include "optim/optim.h"

enum { OPTIM_CHUNK = 1 << 14 };

/* One AdamW update as the kernels need it: g is multiplied by `scale`, p by `keep` (decay), and moves by step_size * m / (sqrt(v) *
 * inverse_root_bias2 + epsilon), which is torch.optim.AdamW with step_size = lr / bias1. */
typedef struct AdamwRates {
    double scale, beta1, beta2, step_size, inverse_root_bias2, epsilon, keep;
} AdamwRates;

typedef enum RateGroup { RATES_CONTROLLER, RATES_PLAIN, RATES_DECAYED, RATES_COUNT } RateGroup;

typedef struct Chunk {
    int64_t offset, count; /* elements of the master arena */
    int64_t variance;      /* its first element in the variance arena; AdamW only */
    RateGroup rates;       /* AdamW only */
} Chunk;

/* A matrix that Muon updates. Its scratch (kernels' T, `square` in W) lies at byte offsets that the matrices of one group share out. X and
 * Y are rows x columns, Gram and square are order x order with order = min(rows, columns). */
typedef struct Matrix {
    int64_t offset, rows, columns, order;
    int64_t first_chunk, end_chunk;
    int64_t x, y, gram, square;
    int group;
} Matrix;

/* The passes over memory, for one precision and instruction set: T is the COMPUTE type, W the WIDE type and that of all arithmetic. Counts
 * are in elements; nothing overlaps but `weights` and `master`, which are one where T is W. */
typedef struct OptimKernels {
    const char *isa;
    bool (*supported)(void);
    Precision precision;
    GemmType compute, wide;
    /* The whole AdamW update of `count` elements, weights included. */
    void (*adamw)(const AdamwRates *rates, int64_t count, void *master, void *weights, const void *gradient, void *momentum,
                  void *variance);
    /* Sums of squares are taken in double: no finite fp32 gradient overflows. */
    double (*sum_squares)(int64_t count, const void *gradient);
    /* m = decay m + scale g; the sum of squares of Muon's direction u = scale g + decay m. */
    double (*momentum)(double decay, double scale, int64_t count, void *momentum, const void *gradient);
    /* X = factor u, with u of the updated momentum. */
    void (*direction)(double decay, double scale, double factor, int64_t count, void *x, const void *momentum, const void *gradient);
    /* Rows `first` to `end` of the lower triangle of gram become a I + b gram + c square. */
    void (*polynomial)(void *gram, const void *square, int64_t order, int64_t first, int64_t end);
    /* Copies the part of these rows that is left of the diagonal to its mirror image. */
    void (*mirror)(void *gram, int64_t order, int64_t first, int64_t end);
    /* p = keep p - rate x, weights included. */
    void (*apply)(double keep, double rate, int64_t count, void *master, void *weights, const void *x);
} OptimKernels;

/* All that are compiled in, per precision best first; the last of each runs anywhere. */
extern const OptimKernels optim_kernels[];
extern const int optim_kernels_count;

struct Optimizer {
    const Graph *graph;
    OptimizerConfig config;
    const OptimKernels *kernels;
    size_t wide, compute;      /* bytes of W and T */
    void *momentum, *variance; /* momentum has the offsets of the master arena */
    int64_t *variance_offset;  /* per parameter; -1 where Muon updates */
    Chunk *chunks;             /* controllers', then other AdamW chunks, then Muon's */
    int64_t controller_end, adamw_end, chunk_count;
    double *partials; /* one per chunk */
    Matrix *matrices;
    int matrix_count; /* in groups that use the scratch one after another */
    Gemm *products;   /* as many as the largest group needs */
    void *scratch;
    int64_t momentum_bytes, variance_bytes, scratch_bytes;
};

static inline void *optim_at(const void *arena, int64_t element, size_t width) { return (char *)arena + element * (int64_t)width; }

bool optim_uses_muon(const OptimizerConfig *config, const Parameter *parameter);

/* AdamW over the chunks that are its own (adamw.c). */
void adamw_step(const Optimizer *optimizer, void *master, void *weights, const void *gradients, int64_t step, double lr, double scale);

/* Muon (muon.c). The list of its matrices with groups and scratch offsets, without chunks; allocated, NULL when there are none. */
Matrix *muon_matrices(const Graph *graph, const OptimizerConfig *config, int *count, int64_t *scratch_bytes);
int64_t muon_most_products(const Matrix *matrices, int count);
void muon_step(const Optimizer *optimizer, void *master, void *weights, const void *gradients, double lr, double scale);

#endif
