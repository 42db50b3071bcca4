/* Shared by the files of the optimizer and their tests: the optimizer's struct, its two back ends, and the CPU's
 * kernels. What GPU kernels share with them is in chunk_internal.h. */
#pragma once

#include "base/cpu_isa.h"
#include "device/device.h"
#include "optim/chunk_internal.h"
#include "optim/optim.h"

/* The quintic of Jordan 2024: steepest at zero among those that keep singular values within about 0.7 to 1.2. */
#define NEWTON_SCHULZ_A 3.4445
#define NEWTON_SCHULZ_B -4.7750
#define NEWTON_SCHULZ_C 2.0315

/* A matrix that Muon updates. Its scratch (in the COMPUTE type; on the CPU `square` in the WIDE type) lies at byte
 * offsets that the matrices of one group share out. X and Y are rows x columns, Gram and square are order x order with
 * order = min(rows, columns). On a GPU all matrices of a group have one shape, and lie have their scratch at one
 * distance from each other. */
typedef struct Matrix {
    int64_t offset; /* in the rank's MASTER arena */
    int64_t rows, columns, order;
    int64_t first_chunk, end_chunk;
    int64_t x, y, gram, square; /* offsets in scratch */
    int group, interval;        /* a group has one segment's matrices */
} Matrix;

/* Chunks [first, end), which have one state dtype. In arenas of the whole model their gradients lie `shift` bytes after
 * the local offsets of their master weights, and their weights precision_weight_offset(shift) bytes. */
typedef struct Segment {
    int64_t first, end;
    int64_t shift;
    int bucket;
    bool primary, pure_bf16;
} Segment;

/* The CPU's passes over the elements of a chunk. */
typedef enum OptimPass {
    PASS_ADAMW,     /* the whole AdamW update, weights included */
    PASS_SQUARES,   /* the sum of squares of the gradient, in double: no finite fp32 gradient overflows */
    PASS_MOMENTUM,  /* m = decay m + scale g; the sum of squares of Muon's direction u = scale g + decay m */
    PASS_DIRECTION, /* x = factor u, with u of the updated momentum */
    PASS_APPLY,     /* p = keep p - rate x, weights included */
    PASS_COUNT
} OptimPass;

/* The numbers of the formulas above. */
typedef struct PassRates {
    const AdamwRates *adamw;
    double decay, scale, factor, keep, rate;
} PassRates;

/* Memory of a chunk: W, but for `weights` and `x`, which are T. Nothing overlaps but `weights` and `master`, which may
 * be one where T is W. What a pass does not use may be NULL. */
typedef struct PassMemory {
    int64_t count; /* elements */
    void *master, *weights, *momentum, *variance, *x;
    const void *gradient;
} PassMemory;

/* The CPU's kernels for one precision and instruction set (passes_cpu.c): T is the COMPUTE type, W the WIDE type and
 * that of all arithmetic. */
typedef struct OptimKernels {
    GemmType compute, wide;
    double (*pass[PASS_COUNT])(const PassRates *rates, const PassMemory *memory); /* returns the sum of squares, or 0 */
    /* Rows `first` to `end` of the lower triangle of gram become a I + b gram + c square. */
    void (*polynomial)(void *gram, const void *square, int64_t order, int64_t first, int64_t end);
    /* Copies the part of these rows that is left of the diagonal to its mirror image. */
    void (*mirror)(void *gram, int64_t order, int64_t first, int64_t end);
} OptimKernels;

/* The variant for an instruction set, NULL where there is none (optim_cpu.c); and the best that this CPU runs. */
const OptimKernels *optim_kernels(Precision precision, CpuIsa isa);
const OptimKernels *optim_best_kernels(Precision precision);

typedef struct OptimBackend OptimBackend;

/* Chunks are those of the load-balancing biases, then other AdamW chunks, then Muon's, matrix by matrix. Segments
 * follow their order. */
struct Optimizer {
    const Graph *graph;
    OptimizerConfig config;
    Device *device;
    const OptimBackend *backend;
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
    int64_t busy;     /* elements of a matrix whose GEMMs keep a GPU busy by themselves */

    /* In the device's memory. Scratch is Muon's, then `partials`, `norms` and, where the back end reads it,
     * `device_chunks`. */
    void *momentum, *variance, *scratch; /* momentum has the offsets of the master arena */
    int64_t momentum_bytes, variance_bytes, muon_bytes, scratch_bytes;
    double *partials;     /* one per chunk */
    double *norms;        /* one per matrix and, after them, of the gradients of each segment */
    Chunk *device_chunks; /* a copy of the list */
};

/* The address of an element in an arena; NULL in NULL. */
static inline void *optim_at(const void *arena, int64_t element, size_t width) {
    return arena ? (char *)arena + element * (int64_t)width : NULL;
}
static inline size_t optim_state_bytes(const Optimizer *optimizer, const Segment *segment) {
    return segment->pure_bf16 ? optimizer->compute : optimizer->wide;
}

/* The gradients of a segment's chunks: an address to which the chunks' offsets are added. */
static inline const void *optim_gradients(const Optimizer *optimizer, const Segment *segment, const void *gradients) {
    return (const char *)gradients + (optimizer->shard.local_gradients ? 0 : segment->shift);
}

/* One update: what optimizer_step was given, shifted so that all arenas have the offsets of the chunks at hand.
 * `weights` is NULL where the master weights are what the program reads. */
typedef struct Update {
    void *master, *weights;
    const void *gradients;
    int64_t step;
    double lr, scale;
} Update;

/* squares[k] = the sum of squares of segment k for every k >= first: of its chunks at their offsets from `arena`, or of
 * their `gradients` in it. Waits. */
typedef void SumSquares(const Optimizer *optimizer, int first, const void *arena, bool gradients, double *squares);
typedef void AdamwStep(const Optimizer *optimizer, const Segment *segment, const Update *update, const AdamwRates rates[RATES_COUNT]);
/* One step of the matrices first .. end - 1, which are a group. */
typedef void MuonStep(const Optimizer *optimizer, const Segment *segment, const Update *update, int first, int end);

/* How one back end runs the passes over a segment's chunks, as OpKernel is for operations. The two are listed in
 * optimizer.c. */
struct OptimBackend {
    SumSquares *sum_squares;
    AdamwStep *adamw;
    MuonStep *muon;
    int64_t group_bytes;   /* most scratch of a group; a single matrix may need more */
    bool uniform_groups;   /* the matrices of a group have one shape */
    bool wide_square;      /* the square of gram is of the WIDE type, else of the COMPUTE type */
    bool chunks_on_device; /* kernels read `device_chunks` */
};

/* The methods: the CPU's are in optim_cpu.c, a GPU's in gradient_norm_gpu.c, adamw_gpu.c and muon_gpu.c. */
SumSquares cpu_sum_squares, gpu_sum_squares;
AdamwStep cpu_adamw, gpu_adamw;
MuonStep cpu_muon, gpu_muon;

/* Updates a segment of AdamW's chunks (adamw.c). */
void adamw_step(const Optimizer *optimizer, const Segment *segment, const Update *update);

/* Lists the matrices that Muon updates with their groups and scratch, without chunks: sets matrices, matrix_count and
 * muon_bytes (muon.c). */
void muon_lay_out(Optimizer *optimizer);
/* Updates the matrices whose chunks are in the segment. */
void muon_step(const Optimizer *optimizer, const Segment *segment, const Update *update);
/* What the direction of such a matrix is multiplied by. */
double muon_rate(const Matrix *matrix, double lr);
/* The GEMMs of an iteration, of whole matrices of one type but for `wide`, the square's. */
Gemm muon_gram_gemm(const Matrix *matrix, GemmType type, const void *x, void *gram);
Gemm muon_square_gemm(const Matrix *matrix, GemmType type, GemmType wide, const void *gram, void *square);
Gemm muon_update_gemm(const Matrix *matrix, GemmType type, const void *x, const void *polynomial, void *y);

/* A pass where all of the chunk's memory is bf16, a block of elements at a time: cast to fp32, updated, cast back with
 * stochastic rounding by the noise of `seed` and the chunk's place in its parameter (pure_bf16.c). */
double bf16_pass(
    const OptimKernels *kernels, OptimPass pass, const PassRates *rates, const PassMemory *memory, uint32_t seed, int64_t first);
