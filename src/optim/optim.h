/* Optimizers over arenas. They know parameters as intervals of the master arena, never the graph's program. All
 * arenas are memory of one device. On a GPU the work of an optimizer is queued on the device's stream.
 *
 * AdamW (arXiv 1711.05101) in one fused pass over master, gradient, moments and compute weights. Muon (Jordan 2024;
 * scaling and decay of arXiv 2502.16982) for matrices, each projection of a fused or stacked parameter by itself;
 * AdamW for all other parameters. Lion (arXiv 2302.06675) in one pass too, with the momentum as its only state. The routers' load-balancing biases use AdamW without decay, at their own rate, on
 * the load error that the router left in their gradient. Those gradients count in integers (ops/router/rule.c);
 * optimizer_set_load_unit gives their unit. */
#pragma once

#include "base/precise_sum.h"
#include "config/optimizer_rule.h"
#include "device/device.h"
#include "graph/graph.h"

typedef struct Optimizer Optimizer;

/* Whether the optimizer updates the parameter's matrices, each whole (Muon); else each element by itself. */
bool optimizer_takes_matrices(const OptimizerConfig *config, const Parameter *parameter);
/* States of the parameter: 1: momentum, 2: and variance. */
int optimizer_state_count(const OptimizerConfig *config, const Parameter *parameter);
/* Elements of state dtype that its update moves for each of its own (OptimizerRule.moves). */
double optimizer_moves(const OptimizerConfig *config, const Parameter *parameter);

/* A matrix that Muon takes by itself: one projection of a parameter, of one expert. */
typedef struct MuonMatrix {
    int64_t first, held;   /* elements of the parameter that this rank has of it */
    int64_t rows, columns; /* of the whole matrix; it is cut where these are more than `held` */
    bool by_columns;       /* a cut one is cut along its columns, else along its rows */
} MuonMatrix;
/* How many a parameter has, and number `index` in the order of memory. */
int64_t optimizer_matrices(const Parameter *parameter);
MuonMatrix optimizer_matrix(const Mesh *mesh, const Parameter *parameter, int64_t index);

/* Elements of one parameter that this rank holds (layout/layout.h). Muon updates whole matrices: of what it updates,
 * intervals are whole ones (MuonMatrix). */
typedef struct ShardInterval {
    ParameterInterval elements;
    int64_t offset;      /* of the first one in the rank's own MASTER arena, and in its momentum */
    int bucket;          /* of the layout, ascending in a list */
    int holders, holder; /* how many ranks hold them, and this one's number: number 0 counts them in norms */
} ShardInterval;

/* What an optimizer updates: all that one rank holds. Its master weights and momentum are arenas of `bytes` with
 * offsets of their own, called local; weights and gradients are those of the whole model, at the parameters' offsets,
 * unless they are local too. */
typedef struct OptimizerShard {
    ShardInterval *intervals;
    int interval_count, bucket_count;
    int64_t bytes;
    bool local_weights, local_gradients;
} OptimizerShard;

/* In all that follows, `shard` NULL means everything: one rank, with all offsets those of the parameters. */

/* Bytes of state that optimizer_create will take, for the memory table, and of scratch, which is larger on a GPU. */
int64_t optimizer_state_bytes(const Graph *graph, const OptimizerConfig *config, const OptimizerShard *shard);
int64_t optimizer_workspace_bytes(const Graph *graph, const OptimizerConfig *config, const OptimizerShard *shard, const Device *device);

/* State starts at zero. Graph and device must outlive it; on a GPU the graph's precision is bf16. ERROR_MEMORY when
 * refused. */
Optimizer *optimizer_create(const Graph *graph, const OptimizerConfig *config, const OptimizerShard *shard, Device *device, Error *error);
void optimizer_free(Optimizer *optimizer);

/* The sum of squares over all gradients but those of load-balancing biases, of intervals as holder 0: independent of
 * threads, and on a CPU of the shards. NaN or infinity if any gradient is. Waits for a GPU. */
PreciseSum optimizer_gradient_squares(Optimizer *optimizer, const void *gradients);
/* The same bits in two steps, where gradients are not all there at once: notes the squares of a bucket's, on a GPU without
 * waiting; the sum of those that were noted last of each bucket. */
void optimizer_note_squares(Optimizer *optimizer, int bucket, const void *gradients);
PreciseSum optimizer_noted_squares(const Optimizer *optimizer);
/* Whether all master weights are finite. Waits for a GPU. */
bool optimizer_is_finite(Optimizer *optimizer, const void *master);

/* One update. `step` counts from 1 (bias correction). `lr` is the scheduled rate, `scale` multiplies gradients
 * (clipping). Writes master and the same elements of `weights`, rounded, unless the arenas are the same. */
void optimizer_step(Optimizer *optimizer, void *master, void *weights, const void *gradients, int64_t step, double lr, double scale);
/* Its part for one bucket; in whatever order, those of all buckets give the same bits. */
void optimizer_step_bucket(
    Optimizer *optimizer, int bucket, void *master, void *weights, const void *gradients, int64_t step, double lr, double scale);
/* The load error that 1 in the gradient of a balancing bias stands for in the steps that follow; 1 at first. */
void optimizer_set_load_unit(Optimizer *optimizer, double unit);
/* `updated` is called for each bucket when the update of its intervals, if there are any, is queued. */
typedef void (*OptimizerHook)(void *context, int bucket);
void optimizer_set_hook(Optimizer *optimizer, OptimizerHook updated, void *context);

/* The state as named intervals, in the device's memory, for checkpoints: "momentum" of all, "variance" where
 * the optimizer keeps one. */
typedef struct OptimizerState {
    const char *kind;
    ParameterInterval elements;
    void *data;
    int holders, holder; /* as in ShardInterval */
} OptimizerState;
size_t optimizer_states(const Optimizer *optimizer, OptimizerState *states, size_t capacity); /* returns how many there are */

/* Learning rate of `step` (from 1): linear warmup, then the schedule (optim/schedule.c). */
double schedule_lr(const ScheduleConfig *schedule, double peak, int64_t step, int64_t steps);
/* Tokens of the step's global batch: a multiple of `microbatch` growing linearly from ramp_tokens to tokens over
 * ramp_steps. */
int64_t schedule_batch_tokens(const BatchConfig *batch, int64_t microbatch, int64_t step);
/* Samples (sequences) that the steps before `step` (from 1) draw in this configuration. */
int64_t schedule_samples_before(const BatchConfig *batch, int64_t length, int64_t step);
