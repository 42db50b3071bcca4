/* Shared by the files of the optimizer and their tests. What GPU kernels share with them is in chunk.h; the launches are in optim_gpu.h. */
#pragma once

#include "base/cpu_isa.h"
#include "device/device.h"
#include "optim/optim_gpu.h"
#include "optim/optim.h"

/* The quintic of Jordan 2024: steepest at zero among those that keep singular values within about 0.7 to 1.2. */
#define NEWTON_SCHULZ_A 3.4445
#define NEWTON_SCHULZ_B -4.7750
#define NEWTON_SCHULZ_C 2.0315

/* A matrix that Muon updates. Its scratch (in the COMPUTE type; on the CPU `square` in the WIDE type) lies at byte offsets that the matrices of
 * one group share out. X and Y are rows x columns, Gram and square are order x order with order = min(rows, columns). On a GPU all matrices of
 * a group have one shape, and lie have their scratch at one distance from each other. */
typedef struct Matrix {
    int64_t offset; /* in the rank's MASTER arena */
    int64_t rows, columns, order;
    int64_t first_chunk, end_chunk;
    int64_t x, y, gram, square; /* offsets in scratch */
    int group, interval;        /* a group has one segment's matrices */
} Matrix;

/* Chunks [first, end), which have one state dtype. In arenas of the whole model their gradients lie `shift` bytes after the local offsets of their master
 * weights, and their weights precision_weight_offset(shift) bytes. */
typedef struct Segment {
    int64_t first, end;
    int64_t shift;
    int bucket;
    bool primary, pure_bf16;
} Segment;

/* The CPU's passes over memory, for one precision and instruction set (passes_cpu.c): T is the COMPUTE type, W the WIDE type and that of all arithmetic.
 * Counts are in elements; nothing overlaps but `weights` and `master`, which may be one where T is W. */
typedef struct OptimKernels {
    GemmType compute, wide;
    /* The whole AdamW update of `count` elements, weights included. */
    void (*adamw)(
        const AdamwRates *rates, int64_t count, void *master, void *weights, const void *gradient, void *momentum, void *variance);
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

/* The variant for an instruction set; NULL where there is none. */
const OptimKernels *optim_kernels(Precision precision, CpuIsa isa);

/* Chunks are those of the load-balancing biases, then other AdamW chunks, then Muon's, matrix by matrix. Segments follow their order. */
struct Optimizer {
    const Graph *graph;
    OptimizerConfig config;
    Device *device;
    bool gpu;
    const OptimKernels *kernels; /* the CPU's */
    size_t wide, compute;        /* bytes of W and T */
    OptimizerShard shard;        /* with a list of the optimizer's own */
    int64_t *variance_offset;    /* per interval; -1 where Muon updates */
    OptimizerHook updated;       /* or NULL */
    void *updated_context;
    Chunk *chunks;
    int64_t balance_end, adamw_end, chunk_count, chunk_room;
    Segment *segments;
    int balance_segments, adamw_segments, segment_count; /* ends in the list */
    Matrix *matrices;
    int matrix_count; /* in groups that use the scratch one after another */
    Gemm *products;   /* as many as the largest group needs; CPU */
    int64_t busy;     /* elements of a matrix whose products keep the GPU busy by themselves */

    /* In the device's memory. Scratch is Muon's, then `partials`, `norms` and, on a GPU, `device_chunks`. */
    void *momentum, *variance, *scratch; /* momentum has the offsets of the master arena */
    int64_t momentum_bytes, variance_bytes, muon_bytes, scratch_bytes;
    double *partials;     /* one per chunk */
    double *norms;        /* one per matrix and, after them, of the gradients of each segment */
    Chunk *device_chunks; /* a copy of the list */
};

static inline void *optim_at(const void *arena, int64_t element, size_t width) { return (char *)arena + element * (int64_t)width; }
static inline size_t optim_state_bytes(const Optimizer *optimizer, const Segment *segment) {
    return segment->pure_bf16 ? optimizer->compute : optimizer->wide;
}

/* One update: what optimizer_step was given, shifted so that all arenas have the offsets of the chunks at hand. `weights` is NULL where the master weights are
 * what the program reads. */
typedef struct Update {
    void *master, *weights;
    const void *gradients;
    int64_t step;
    double lr, scale;
} Update;

/* AdamW over a segment of its chunks (adamw.c). */
void adamw_step(const Optimizer *optimizer, const Segment *segment, const Update *update);

/* Muon (muon.c). Lists the intervals' matrices with groups and scratch, without chunks: sets matrices, matrix_count, products and muon_bytes. */
void muon_lay_out(Optimizer *optimizer);
/* Over the matrices whose chunks are in the segment. */
void muon_step(const Optimizer *optimizer, const Segment *segment, const Update *update);
/* What the direction of such a matrix is multiplied by. */
double muon_rate(const Matrix *matrix, double lr);
/* The step of matrices first .. end - 1, a group, on a GPU (muon_gpu.c). */
void muon_step_group_gpu(const Optimizer *optimizer, const Segment *segment, int first, int end, const Update *update);

/* The kernels' passes over a chunk in bf16, a block of elements at a time: cast to fp32, updated, cast back with stochastic rounding (pure_bf16.c). Memory is
 * that of the chunk's elements, all bf16. */
void bf16_adamw(const OptimKernels *kernels, const AdamwRates *rates, const Chunk *chunk, uint32_t seed, uint16_t *master,
    uint16_t *weights, const uint16_t *gradient, uint16_t *momentum, uint16_t *variance);
double bf16_sum_squares(const OptimKernels *kernels, int64_t count, const uint16_t *gradient);
double bf16_momentum(const OptimKernels *kernels, double decay, double scale, const Chunk *chunk, uint32_t seed, uint16_t *momentum,
    const uint16_t *gradient);
void bf16_direction(const OptimKernels *kernels, double decay, double scale, double factor, int64_t count, uint16_t *x,
    const uint16_t *momentum, const uint16_t *gradient);
void bf16_apply(const OptimKernels *kernels, double keep, double rate, const Chunk *chunk, uint32_t seed, uint16_t *master,
    uint16_t *weights, const uint16_t *x);

/* What GPU kernels take. */
static inline OptimArenas optim_arenas(const Optimizer *optimizer, const Segment *segment, const Update *update) {
    return (OptimArenas){
        update->master, update->weights, update->gradients, optimizer->momentum, optimizer->variance, update->step, segment->pure_bf16};
}
