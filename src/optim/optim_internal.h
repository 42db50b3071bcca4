/* Shared by the files of the optimizer and their tests: the optimizer's struct, its two back ends,
 * and the CPU's kernels. chunk_internal.h has what GPU kernels share with them. */
#pragma once

#include "base/cpu_isa.h"
#include "base/precise_sum.h"
#include "device/device.h"
#include "optim/chunk_internal.h"
#include "config/optimizer_rule.h"
#include "optim/optim.h"

/* The quintic of Jordan 2024: among polynomials that keep singular values within about 0.7 to 1.2,
 * the steepest at zero. */
#define NEWTON_SCHULZ_A 3.4445
#define NEWTON_SCHULZ_B -4.7750
#define NEWTON_SCHULZ_C 2.0315

/* A matrix that Muon updates, or of which this rank updates a slice. Its scratch is in the COMPUTE
 * type (on the CPU `square` is WIDE), at byte offsets within the group's scratch. X and Y are rows
 * x columns; Gram and square are order x order with order = min(rows, columns). On a GPU all
 * matrices of a group have one shape and a constant stride in scratch. Only the owner of a cut
 * matrix, one of the ranks of the cut, has X to square. */
typedef struct Matrix {
    int64_t offset;               /* in the rank's MASTER arena */
    int64_t rows, columns, order; /* of the whole matrix */
    int64_t held;                 /* elements that this rank holds */
    int64_t first_chunk, end_chunk;
    int64_t x, y, gram, square; /* byte offsets in scratch */
    int group, interval;        /* all matrices of a group belong to one segment */
    int exchange;               /* index in the optimizer's list; -1: this rank has the whole matrix */
    bool by_columns;            /* whether a cut matrix is cut along its columns or its rows */
    int64_t packed;             /* for a cut matrix: offset of this rank's slice of the direction, in elements of scratch */
} Matrix;

/* How the ranks of a cut gather the slices of a segment's matrices. Rank r owns (iterates) matrices
 * [owned[r], owned[r + 1]). A slice takes a multiple of 8 elements. A rank sends its slices in
 * matrix order, so the slices for each owner are contiguous. An owner receives slices rank by rank,
 * and in matrix order within a rank. */
typedef struct MuonExchange {
    MeshAxes axes;
    int rank, size;
    int *owned;               /* [size + 1] indices of matrices */
    int64_t *sent, *received; /* [size + 1] shards in elements */
    int64_t gathered, behind; /* offsets in scratch of all slices of this rank's matrices, and of their X */
} MuonExchange;

/* Chunks [first, end), which have one state dtype and one optimizer. In arenas of the whole model,
 * their gradients lie `shift` bytes after the local offsets of their master weights, and their
 * weights lie precision_weight_offset(shift) bytes after. */
typedef struct Segment {
    int64_t first, end;
    int64_t shift;
    int64_t momentum_shift; /* their momentum lies this many bytes after these offsets */
    int bucket, optimizer;  /* an OptimizerName */
    bool primary, pure_bf16;
    bool hosted;  /* their state is in host memory (OptimizerOffload) */
    int exchange; /* of its matrices, or -1 */
} Segment;

/* The CPU's passes over the elements of a chunk. */
typedef enum OptimPass {
    PASS_SQUARES,   /* the sum of squares of the gradient, in doubles, so that no finite fp32 gradient overflows */
    PASS_MOMENTUM,  /* m = decay m + scale g; returns the sum of squares of Muon's direction u = scale g + decay m */
    PASS_DIRECTION, /* x = factor u, where u uses the updated momentum */
    PASS_APPLY,     /* p = keep p - rate x, weights included */
    PASS_UPDATE,    /* plus an OptimizerName: the whole update of an optimizer of elements, weights included */
    PASS_COUNT = PASS_UPDATE + OPTIMIZER_COUNT
} OptimPass;

/* The coefficients of the formulas above. */
typedef struct PassRates {
    const ElementRates *elements;
    double decay, scale, factor, keep, rate;
} PassRates;

/* Memory of a chunk. All arrays are W, except `weights` and `x`, which are T. Arrays do not
 * overlap, except that `weights` and `master` may be the same if T is W. Arrays that a pass does
 * not use may be NULL. */
typedef struct PassMemory {
    int64_t count; /* elements */
    void *master, *weights, *momentum, *variance, *x;
    float *momentum_scales, *variance_scales; /* if both moments are quantized (quantized_moments_internal.h): one per block */
    const void *gradient;
} PassMemory;

/* The CPU's kernels for one precision and instruction set (passes_cpu.c). T is the COMPUTE type; W
 * is the WIDE type and the type of all arithmetic. */
typedef struct OptimKernels {
    GemmType compute, wide;
    /* Replaces rows `first` to `end` of the lower triangle of gram by a I + b gram + c square. */
    void (*polynomial)(void *gram, const void *square, int64_t order, int64_t first, int64_t end);
    /* Copies the part of these rows left of the diagonal to its mirror image. */
    void (*mirror)(void *gram, int64_t order, int64_t first, int64_t end);
    PreciseSum (*pass[PASS_COUNT])(const PassRates *rates, const PassMemory *memory); /* returns the sum of squares, or 0 */
} OptimKernels;

/* optim_kernels returns the variant for an instruction set, or NULL if there is none
 * (cpu_loops.c). optim_best_kernels returns the best variant that cpu_isa_runs allows. */
const OptimKernels *optim_kernels(Precision precision, CpuIsa isa);
const OptimKernels *optim_best_kernels(Precision precision);

typedef struct OptimBackend OptimBackend;
typedef struct Offload Offload;

/* The place of an interval's state; -1: it has no such state. */
typedef struct StatePlace {
    int64_t momentum, variance; /* byte offsets in their arenas */
    int64_t quantized;          /* first element among those whose moments are quantized, a multiple of MOMENT_BLOCK */
} StatePlace;

/* Moments of matrices in 8 bits (quantized_moments_internal.h). */
typedef struct QuantizedMoments {
    uint8_t *momentum, *variance;
    float *momentum_scales, *variance_scales; /* one per MOMENT_BLOCK elements */
} QuantizedMoments;

/* Chunks are ordered: load-balancing biases, then other parameters that are updated by element,
 * then Muon's chunks matrix by matrix. Segments follow the same order. */
struct Optimizer {
    const Graph *graph;
    OptimizerConfig config;
    Device *device;
    const OptimBackend *backend;
    const OptimKernels *kernels; /* of the CPU */
    size_t wide, compute;        /* bytes of W and T */
    OptimizerShard shard;        /* its list belongs to the optimizer */
    StatePlace *places;          /* by interval */
    double load_unit;            /* of gradients of balancing biases */
    OptimizerHook updated;       /* or NULL */
    void *updated_context;
    Chunk *chunks;
    int64_t balance_end, elements_end, chunk_count, chunk_room;
    Segment *segments;
    int balance_segments, element_segments, segment_count; /* ends in the list */
    Matrix *matrices;
    int matrix_count; /* in groups that use the scratch one after another */
    MuonExchange *exchanges;
    int exchange_count;
    int64_t busy; /* elements of a matrix whose GEMMs alone keep a GPU busy */

    /* Device memory. Scratch holds Muon's scratch, then `segment_squares`, `partials`, `squares`
     * and, if the back end reads it, `device_chunks`. */
    void *momentum, *variance, *scratch; /* momentum has the offsets of the master arena, unless moments are quantized */
    QuantizedMoments quantized;          /* one arena, which starts with the momentum */
    Offload *offload;                    /* NULL: all state is in these arenas; else only that of vectors (offload_internal.h) */
    int64_t momentum_bytes, variance_bytes, coded, muon_bytes, scratch_bytes; /* coded: elements whose moments are quantized */
    PreciseSum *segment_squares; /* of each segment's gradients, or of the latest other sum; a GPU sets only `high` */
    void *partials;              /* one per chunk: PreciseSum; double on a GPU */
    double *squares;             /* of each matrix's direction */
    Chunk *device_chunks;        /* a copy of `chunks` */
};

/* Returns the address of an element in an arena; NULL if the arena is NULL. */
static inline void *optim_at(const void *arena, int64_t element, size_t width) {
    return arena ? (char *)arena + element * (int64_t)width : NULL;
}
static inline size_t optim_state_bytes(const Optimizer *optimizer, const Segment *segment) {
    return segment->pure_bf16 ? optimizer->compute : optimizer->wide;
}

/* Returns the gradients of a segment's chunks: the address to which the chunks' offsets are
 * added. */
static inline const void *optim_gradients(const Optimizer *optimizer, const Segment *segment, const void *gradients) {
    return (const char *)gradients + (optimizer->shard.local_gradients ? 0 : segment->shift);
}

/* Returns the address to which the chunks' offsets of their momentum are added. */
static inline void *optim_momentum(const Optimizer *optimizer, const Segment *segment) {
    return (char *)optimizer->momentum + segment->momentum_shift;
}

/* *sum = the sum of squares of the elements of a segment's chunks in `arena`. */
typedef void SumSquares(const Optimizer *optimizer, const Segment *segment, const void *arena, PreciseSum *sum);
typedef void ElementStep(const Optimizer *optimizer, const Segment *segment, const Update *update, const ElementRates rates[RATES_COUNT]);
/* A pass of Muon over the matrices first .. end - 1, or over this rank's slices of them. On a GPU
 * they have one shape. */
typedef void MuonPass(const Optimizer *optimizer, const Segment *segment, const Update *update, int first, int end);
/* Runs Newton-Schulz on the X of a group of matrices in scratch; muon_iterated returns the result's
 * address. */
typedef void MuonIterate(const Optimizer *optimizer, int first, int end);
/* Copies a rank's slices of matrices first .. end - 1, which have one shape, into their X, or with
 * `back` from the result of the iterations. A slice has rows x columns elements and begins at
 * element `at` of the matrix; slices are `distance` elements apart, the first at `slices`. */
typedef struct MuonMove {
    int first, end;
    bool back;
    int64_t at, rows, columns, distance;
    void *slices;
} MuonMove;
typedef void MuonPlace(const Optimizer *optimizer, const MuonMove *move);

/* How one back end runs the passes over a segment's chunks, as OpKernel does for operations.
 * optimizer.c lists both back ends. */
struct OptimBackend {
    SumSquares *sum_squares;
    ElementStep *elements;
    MuonPass *muon_momenta;    /* momenta, and sums of squares of directions */
    MuonPass *muon_directions; /* x = u / |u|, written to X or to the slices to be sent */
    MuonIterate *muon_iterate;
    MuonPass *muon_apply; /* moves the parameters along the result */
    MuonPlace *muon_place;
    int64_t group_bytes;   /* most scratch of a group; a single matrix may need more */
    bool uniform_groups;   /* the matrices of a group have one shape */
    bool wide_square;      /* whether the square of gram is WIDE or COMPUTE */
    bool chunks_on_device; /* kernels read `device_chunks` */
};

/* The methods: cpu_loops.c has the CPU's; gradient_norm_gpu.c and muon_gpu.c have a GPU's.
 * gpu_elements calls the launcher of the segment's optimizer, gpu_update_NAME in NAME_gpu.c. */
SumSquares cpu_sum_squares, gpu_sum_squares;
ElementStep cpu_elements, gpu_elements;
MuonPass cpu_muon_momenta, cpu_muon_directions, cpu_muon_apply, gpu_muon_momenta, gpu_muon_directions, gpu_muon_apply;
MuonIterate cpu_muon_iterate, gpu_muon_iterate;
MuonPlace cpu_muon_place, gpu_muon_place;

/* The inputs of an update's rates besides the settings: the scheduled rate, decay, and the factor
 * of gradients. */
typedef struct RateTerms {
    double lr, decay, scale;
    int64_t step; /* from 1 */
} RateTerms;
/* Returns AdamW's rates with these moments (adamw.c). */
ElementRates adamw_rates(double beta1, double beta2, double epsilon, const RateTerms *terms);

/* Lists the matrices that Muon updates with their exchanges, groups and scratch, without chunks.
 * Sets matrices, exchanges, their counts and muon_bytes (muon.c). */
void muon_lay_out(Optimizer *optimizer);
void muon_free(Optimizer *optimizer);
/* The base address for second_index of chunks: the direction of a matrix or this rank's slices of
 * directions, before and after the iterations. */
void *muon_direction(const Optimizer *optimizer, const Matrix *matrix);
void *muon_result(const Optimizer *optimizer, const Matrix *matrix);
/* Returns the address of X after the iterations. */
void *muon_iterated(const Optimizer *optimizer, const Matrix *matrix);
/* Updates the matrices whose chunks are in the segment. */
void muon_step(const Optimizer *optimizer, const Segment *segment, const Update *update);
/* Returns the factor of the direction of a matrix. */
double muon_rate(const Matrix *matrix, double lr);
/* The GEMMs of an iteration, on whole matrices of type `type`; the square is of type `wide`. */
Gemm muon_gram_gemm(const Matrix *matrix, GemmType type, const void *x, void *gram);
Gemm muon_square_gemm(const Matrix *matrix, GemmType type, GemmType wide, const void *gram, void *square);
Gemm muon_update_gemm(const Matrix *matrix, GemmType type, const void *x, const void *polynomial, void *y);

/* Runs a pass over a chunk whose memory is all bf16, a block of elements at a time: cast to fp32,
 * updated, cast back with stochastic rounding. `seed` and the chunk's position in its parameter
 * give the noise (pure_bf16.c). */
PreciseSum bf16_pass(
    const OptimKernels *kernels, OptimPass pass, const PassRates *rates, const PassMemory *memory, uint32_t seed, int64_t first);
