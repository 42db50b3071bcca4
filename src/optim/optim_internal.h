/* Shared by the files of the optimizer and their tests: the optimizer's struct, its two back ends, and the CPU's
 * kernels. What GPU kernels share with them is in chunk_internal.h. */
#pragma once

#include "base/cpu_isa.h"
#include "base/precise_sum.h"
#include "device/device.h"
#include "optim/chunk_internal.h"
#include "config/optimizer_rule.h"
#include "optim/optim.h"

/* The quintic of Jordan 2024: steepest at zero among those that keep singular values within about 0.7 to 1.2. */
#define NEWTON_SCHULZ_A 3.4445
#define NEWTON_SCHULZ_B -4.7750
#define NEWTON_SCHULZ_C 2.0315

/* A matrix that Muon updates, or of which this rank updates a slice. Its scratch (in the COMPUTE type; on the CPU `square`
 * in the WIDE type) lies at byte offsets that the matrices of one group share out. X and Y are rows x columns, Gram and
 * square are order x order with order = min(rows, columns). On a GPU all matrices of a group have one shape, and have
 * their scratch at one distance from each other. Of a cut matrix only its owner among the ranks of the cut has X to
 * square. */
typedef struct Matrix {
    int64_t offset;               /* in the rank's MASTER arena */
    int64_t rows, columns, order; /* of the whole matrix */
    int64_t held;                 /* elements that this rank has of it */
    int64_t first_chunk, end_chunk;
    int64_t x, y, gram, square; /* offsets in scratch */
    int group, interval;        /* a group has one segment's matrices */
    int exchange;               /* index in the optimizer's list; -1: this rank has the whole matrix */
    bool by_columns;            /* a cut one is cut along its columns, else along its rows */
    int64_t packed;             /* of a cut one: where this rank's slice of the direction lies, in elements of scratch */
} Matrix;

/* How the ranks of a cut bring together the slices of a segment's matrices: rank r owns, which means iterates, matrices
 * [owned[r], owned[r + 1]). A slice takes a multiple of 8 elements. What a rank sends lies in the order of the matrices, so
 * that of each owner is together; what an owner receives lies rank by rank, and of each rank in the order of its
 * matrices. */
typedef struct MuonExchange {
    MeshAxes axes;
    int rank, size;
    int *owned;               /* [size + 1] indices of matrices */
    int64_t *sent, *received; /* [size + 1] shards in elements */
    int64_t gathered, behind; /* offsets in scratch, which begins with this rank's slices: of all slices of what it owns; of their X */
} MuonExchange;

/* Chunks [first, end), which have one state dtype and one optimizer. In arenas of the whole model their gradients lie `shift` bytes after
 * the local offsets of their master weights, and their weights precision_weight_offset(shift) bytes. */
typedef struct Segment {
    int64_t first, end;
    int64_t shift;
    int bucket, optimizer; /* an OptimizerName */
    bool primary, pure_bf16;
    int exchange; /* of its matrices; or -1 */
} Segment;

/* The CPU's passes over the elements of a chunk. */
typedef enum OptimPass {
    PASS_SQUARES,   /* the sum of squares of the gradient, in doubles: no finite fp32 gradient overflows */
    PASS_MOMENTUM,  /* m = decay m + scale g; the sum of squares of Muon's direction u = scale g + decay m */
    PASS_DIRECTION, /* x = factor u, with u of the updated momentum */
    PASS_APPLY,     /* p = keep p - rate x, weights included */
    PASS_UPDATE,    /* plus an OptimizerName: the whole update of an optimizer of elements, weights included */
    PASS_COUNT = PASS_UPDATE + OPTIMIZER_COUNT
} OptimPass;

/* The numbers of the formulas above. */
typedef struct PassRates {
    const ElementRates *elements;
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
    PreciseSum (*pass[PASS_COUNT])(const PassRates *rates, const PassMemory *memory); /* returns the sum of squares, or 0 */
    /* Rows `first` to `end` of the lower triangle of gram become a I + b gram + c square. */
    void (*polynomial)(void *gram, const void *square, int64_t order, int64_t first, int64_t end);
    /* Copies the part of these rows that is left of the diagonal to its mirror image. */
    void (*mirror)(void *gram, int64_t order, int64_t first, int64_t end);
} OptimKernels;

/* The variant for an instruction set, NULL where there is none (optim_cpu.c); and the best that cpu_isa_runs. */
const OptimKernels *optim_kernels(Precision precision, CpuIsa isa);
const OptimKernels *optim_best_kernels(Precision precision);

typedef struct OptimBackend OptimBackend;

/* Chunks are those of the load-balancing biases, then of other parameters whose elements are updated by themselves, then Muon's,
 * matrix by matrix. Segments follow their order. */
struct Optimizer {
    const Graph *graph;
    OptimizerConfig config;
    Device *device;
    const OptimBackend *backend;
    const OptimKernels *kernels; /* the CPU's */
    size_t wide, compute;        /* bytes of W and T */
    OptimizerShard shard;        /* with a list of the optimizer's own */
    int64_t *variance_offset;    /* per interval; -1 where its optimizer keeps none */
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
    int64_t busy; /* elements of a matrix whose GEMMs keep a GPU busy by themselves */

    /* In the device's memory. Scratch is Muon's, then `segment_squares`, `partials`, `squares` and, where the back end reads it,
     * `device_chunks`. */
    void *momentum, *variance, *scratch; /* momentum has the offsets of the master arena */
    int64_t momentum_bytes, variance_bytes, muon_bytes, scratch_bytes;
    PreciseSum *segment_squares; /* of each segment's gradients, or of what else was asked for last; a GPU sets `high` alone */
    void *partials;              /* one per chunk: PreciseSum, on a GPU double */
    double *squares;             /* of each matrix's direction */
    Chunk *device_chunks;        /* a copy of the list */
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

/* *sum = the sum of squares of what lies at the offsets of a segment's chunks from `arena`. */
typedef void SumSquares(const Optimizer *optimizer, const Segment *segment, const void *arena, PreciseSum *sum);
typedef void ElementStep(const Optimizer *optimizer, const Segment *segment, const Update *update, const ElementRates rates[RATES_COUNT]);
/* What Muon does with the matrices first .. end - 1, or with this rank's slices of them. On a GPU they have one shape. */
typedef void MuonPass(const Optimizer *optimizer, const Segment *segment, const Update *update, int first, int end);
/* Newton-Schulz on their X in scratch, which they leave where muon_iterated says. They are a group. */
typedef void MuonIterate(const Optimizer *optimizer, int first, int end);
/* Copies a rank's slices of matrices first .. end - 1, which have one shape, into their X, or `back` from where it is after
 * the iterations. A slice is rows x columns elements and begins at element `at` of the matrix; slices begin `distance`
 * elements apart, the first at `slices`. */
typedef struct MuonMove {
    int first, end;
    bool back;
    int64_t at, rows, columns, distance;
    void *slices;
} MuonMove;
typedef void MuonPlace(const Optimizer *optimizer, const MuonMove *move);

/* How one back end runs the passes over a segment's chunks, as OpKernel is for operations. The two are listed in
 * optimizer.c. */
struct OptimBackend {
    SumSquares *sum_squares;
    ElementStep *elements;
    MuonPass *muon_momenta;    /* momenta, and sums of squares of directions */
    MuonPass *muon_directions; /* x = u / |u|, to X or among the slices to be sent */
    MuonIterate *muon_iterate;
    MuonPass *muon_apply; /* moves the parameters along the result */
    MuonPlace *muon_place;
    int64_t group_bytes;   /* most scratch of a group; a single matrix may need more */
    bool uniform_groups;   /* the matrices of a group have one shape */
    bool wide_square;      /* the square of gram is of the WIDE type, else of the COMPUTE type */
    bool chunks_on_device; /* kernels read `device_chunks` */
};

/* The methods: the CPU's are in cpu_loops.c, a GPU's in gradient_norm_gpu.c and muon_gpu.c. gpu_elements calls the launcher of the
 * segment's optimizer, gpu_update_NAME in NAME_gpu.c. */
SumSquares cpu_sum_squares, gpu_sum_squares;
ElementStep cpu_elements, gpu_elements;
MuonPass cpu_muon_momenta, cpu_muon_directions, cpu_muon_apply, gpu_muon_momenta, gpu_muon_directions, gpu_muon_apply;
MuonIterate cpu_muon_iterate, gpu_muon_iterate;
MuonPlace cpu_muon_place, gpu_muon_place;

/* What the rates of an update depend on beside the settings: the scheduled rate, decay, what gradients are multiplied by. */
typedef struct RateTerms {
    double lr, decay, scale;
    int64_t step; /* from 1 */
} RateTerms;
/* AdamW's rates with these moments (adamw.c). */
ElementRates adamw_rates(double beta1, double beta2, double epsilon, const RateTerms *terms);

/* Lists the matrices that Muon updates with their exchanges, groups and scratch, without chunks: sets matrices, exchanges,
 * their counts and muon_bytes (muon.c). */
void muon_lay_out(Optimizer *optimizer);
void muon_free(Optimizer *optimizer);
/* What chunks' second_index counts from: where the direction of a matrix, or this rank's slices of directions, lie; and
 * where they lie after the iterations. */
void *muon_direction(const Optimizer *optimizer, const Matrix *matrix);
void *muon_result(const Optimizer *optimizer, const Matrix *matrix);
/* Where X lies after the iterations. */
void *muon_iterated(const Optimizer *optimizer, const Matrix *matrix);
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
PreciseSum bf16_pass(
    const OptimKernels *kernels, OptimPass pass, const PassRates *rates, const PassMemory *memory, uint32_t seed, int64_t first);
