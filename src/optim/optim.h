/* Optimizers over arenas. They see parameters as intervals of the master arena, never the graph's
 * program. All arenas are in the memory of one device. On a GPU the work of an optimizer is queued
 * on the device's stream.
 *
 * AdamW (arXiv 1711.05101) in one fused pass over master, gradient, moments and compute weights.
 * Muon (Jordan 2024; scaling and decay of arXiv 2502.16982) for matrices, each projection of a
 * fused or stacked parameter by itself; AdamW for all other parameters. Lion (arXiv 2302.06675) in
 * one pass too, with the momentum as its only state. AdamW with moments in 8 bits (arXiv 2110.02861). The routers' load-balancing biases use AdamW
 * without decay, at their own rate, on the load error that the router left in their gradient. Their
 * gradients are integers (ops/router/rule.c); optimizer_set_load_unit sets the unit. */
#pragma once

#include "base/precise_sum.h"
#include "config/optimizer_rule.h"
#include "device/device.h"
#include "graph/graph.h"

typedef struct Optimizer Optimizer;

/* Returns whether the optimizer updates the parameter's matrices, each as a whole (Muon); otherwise
 * it updates each element by itself. */
bool optimizer_takes_matrices(const OptimizerConfig *config, const Parameter *parameter);
/* Returns the bytes of state per element of the parameter. */
double optimizer_element_bytes(const OptimizerConfig *config, const Parameter *parameter);
/* Returns the elements of state dtype that an update moves per element of the parameter
 * (OptimizerRule.moves). */
double optimizer_moves(const OptimizerConfig *config, const Parameter *parameter);

/* A matrix that Muon updates by itself: one projection of one parameter, or of one expert in it. */
typedef struct MuonMatrix {
    int64_t first, held;   /* the elements of the parameter that this rank holds of the matrix */
    int64_t rows, columns; /* of the whole matrix; it is cut if rows x columns exceeds `held` */
    bool by_columns;       /* whether a cut matrix is cut along its columns or its rows */
} MuonMatrix;
/* Return the number of matrices of a parameter, and matrix `index` in memory order. */
int64_t optimizer_matrices(const Parameter *parameter);
MuonMatrix optimizer_matrix(const Mesh *mesh, const Parameter *parameter, int64_t index);

/* Elements of one parameter that this rank holds (layout/layout.h). Muon updates whole matrices, so
 * intervals of its parameters consist of whole matrices (MuonMatrix). */
typedef struct ShardInterval {
    ParameterInterval elements;
    int64_t offset;      /* of the first element in the rank's own MASTER arena and in its momentum */
    int bucket;          /* bucket of the layout; ascending in a list */
    int holders, holder; /* number of ranks that hold the elements, and this rank's index; holder 0 counts them in norms */
} ShardInterval;

/* Offload: the state of all elements but vectors is in pinned host memory, and so are their master
 * weights if the program does not read these. An update copies both into one of two buffers in
 * device memory, portion by portion, and back (offload.c). Vectors are small, and the program reads
 * their master weights. */
typedef struct OptimizerOffload {
    int64_t portion_bytes; /* limit of a portion's state and master weights, unless a bucket of Muon has more; 0: no offload */
    int64_t resident;      /* lower offsets belong to vectors */
    bool masters;          /* master weights from `resident` on are in host memory (optimizer_set_masters) */
} OptimizerOffload;

/* The elements that an optimizer updates: all that one rank holds. Its master weights and momentum
 * are arenas of `bytes` bytes with offsets of their own, called local. Weights and gradients use
 * the offsets of the whole model, unless they are local too. */
typedef struct OptimizerShard {
    ShardInterval *intervals;
    int interval_count, bucket_count;
    int64_t bytes;
    bool local_weights, local_gradients;
    OptimizerOffload offload;
} OptimizerShard;

/* Below, `shard` NULL means everything: one rank, and all offsets are the parameters' offsets. */

/* Return the bytes of state that optimizer_create will allocate, for the memory table; the part of
 * them that offload puts into host memory; and the bytes of scratch and buffers in device memory.
 * Scratch is larger on a GPU. */
int64_t optimizer_state_bytes(const Graph *graph, const OptimizerConfig *config, const OptimizerShard *shard);
int64_t optimizer_host_bytes(const Graph *graph, const OptimizerConfig *config, const OptimizerShard *shard);
int64_t optimizer_workspace_bytes(const Graph *graph, const OptimizerConfig *config, const OptimizerShard *shard, const Device *device);

/* Creates an optimizer whose state is zero. Graph and device must outlive it; on a GPU the graph's
 * precision is bf16 or pure_bf16. ERROR_MEMORY if memory is refused. */
Optimizer *optimizer_create(const Graph *graph, const OptimizerConfig *config, const OptimizerShard *shard, Device *device, Error *error);
void optimizer_free(Optimizer *optimizer);
/* With OptimizerOffload.masters: sets the host memory of the master weights from offset `resident`
 * on. Update.master and the arenas of master weights below are then those of vectors. */
void optimizer_set_masters(Optimizer *optimizer, void *masters);
/* Waits until state and master weights in host memory are those after the latest update. Call it
 * before the host, or another stream than the optimizer's, reads or writes them. */
void optimizer_settle(const Optimizer *optimizer);

/* Returns the sum of squares of all gradients except those of load-balancing biases, over the
 * intervals of which this rank is holder 0. The bits do not depend on threads, and on a CPU not on
 * the shards. NaN or infinity if any gradient is. Waits for a GPU. */
PreciseSum optimizer_gradient_squares(Optimizer *optimizer, const void *gradients);
/* Adds the sum of squares of each parameter's elements, of which this rank is holder 0, to squares[parameter]: of gradients, or else of the
 * master weights in `arena`. Waits for a GPU, once for each parameter. */
void optimizer_parameter_squares(Optimizer *optimizer, const void *arena, bool gradients, double *squares);
/* Compute the same bits in two steps, when not all gradients are there at once.
 * optimizer_note_squares notes the squares of one bucket, on a GPU without waiting.
 * optimizer_noted_squares sums the latest note of every bucket. */
void optimizer_note_squares(Optimizer *optimizer, int bucket, const void *gradients);
PreciseSum optimizer_noted_squares(const Optimizer *optimizer);
/* Returns whether all master weights are finite. Waits for a GPU. */
bool optimizer_is_finite(Optimizer *optimizer, const void *master);

/* The arenas and numbers of one update. Writes master and the same elements of `weights`, rounded,
 * unless the arenas are the same. Within an optimizer, all arenas use the offsets of the current
 * chunks, and `weights` is NULL if the program reads the master weights. */
typedef struct Update {
    void *master, *weights;
    const void *gradients;
    int64_t step; /* from 1, for the bias correction */
    double lr;    /* the scheduled rate */
    double scale; /* of gradients, which clips them */
} Update;
void optimizer_step(Optimizer *optimizer, const Update *update);
/* Performs the update of one bucket. The updates of all buckets, in any order, give the same bits
 * as optimizer_step. */
void optimizer_step_bucket(Optimizer *optimizer, int bucket, const Update *update);
/* Sets the load error that 1 in the gradient of a balancing bias stands for in later steps;
 * initially 1. */
void optimizer_set_load_unit(Optimizer *optimizer, double unit);
/* `updated` is called for each bucket when the update of its intervals, if any, is queued. */
typedef void (*OptimizerHook)(void *context, int bucket);
void optimizer_set_hook(Optimizer *optimizer, OptimizerHook updated, void *context);

/* The state as named intervals in device or host memory, for checkpoints: "momentum" for all, "variance" if
 * the optimizer keeps one; or quantized values and scales of both. */
typedef enum StateForm { STATE_WIDE, STATE_QUANTIZED, STATE_SCALES } StateForm; /* in the state dtype; bytes; fp32 */
typedef struct OptimizerState {
    const char *kind;
    StateForm form;
    int64_t each; /* elements per number of the state; `elements` consists of multiples of it */
    ParameterInterval elements;
    void *data;
    bool in_host;        /* `data` is host memory, although the device's memory is not: see optimizer_settle */
    int holders, holder; /* as in ShardInterval */
} OptimizerState;
size_t optimizer_states(const Optimizer *optimizer, OptimizerState *states, size_t capacity); /* returns their number */

/* Returns the learning rate of `step` (from 1): linear warmup, then the schedule
 * (optim/schedule.c). */
double schedule_lr(const ScheduleConfig *schedule, double peak, int64_t step, int64_t steps);
/* Returns the tokens of the step's global batch: a multiple of `microbatch` that grows linearly
 * from ramp_tokens to tokens over ramp_steps. */
int64_t schedule_batch_tokens(const BatchConfig *batch, int64_t microbatch, int64_t step);
/* Returns the samples (sequences) that the steps before `step` (from 1) draw in this
 * configuration. */
int64_t schedule_samples_before(const BatchConfig *batch, int64_t length, int64_t step);
