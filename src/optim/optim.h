/* Optimizers over arenas. They know parameters as intervals of the master arena, never the graph's program. All arenas, theirs and those they are
 * given, are memory of one device; on a GPU their work is queued on its stream like any other.
 *
 * AdamW (arXiv 1711.05101) in one fused pass over master, gradient, moments and compute weights. Muon (Jordan 2024; scaling and decay of
 * arXiv 2502.16982) for matrices, each matrix of a fused or stacked parameter by itself, AdamW for everything else. The routers'
 * balancing biases are AdamW without decay at their own rate, on the load error that the router left in their gradient. */
#ifndef SMELT_OPTIM_OPTIM_H
#define SMELT_OPTIM_OPTIM_H

#include "config.h"
#include "device/device.h"
#include "graph/graph.h"

typedef struct Optimizer Optimizer;

/* Bytes of state that optimizer_create will take, for the memory table, and its scratch, which is larger on a GPU. */
int64_t optimizer_state_bytes(const Graph *graph, const OptimizerConfig *config);
int64_t optimizer_workspace_bytes(const Graph *graph, const OptimizerConfig *config, bool gpu);

/* State starts at zero. Graph and device must outlive it; on a GPU the graph's precision is bf16. ERROR_MEMORY when refused. */
Optimizer *optimizer_create(const Graph *graph, const OptimizerConfig *config, Device *device, Error *error);
void optimizer_free(Optimizer *optimizer);

/* sqrt of the sum of squares over all gradients but the controllers', in fixed blocks and order: independent of threads. NaN or
 * infinity if any gradient is. Waits for a GPU. */
double optimizer_gradient_norm(const Optimizer *optimizer, const void *gradients);

/* One update. `step` counts from 1 (bias correction). `lr` is the scheduled rate, `scale` multiplies gradients (clipping). Writes master and, in
 * bf16, the same elements of `weights` rounded (the arenas are the same otherwise). */
void optimizer_step(Optimizer *optimizer, void *master, void *weights, const void *gradients, int64_t step, double lr, double scale);

/* The state as named pieces of the device's memory, each over one parameter, for checkpoints: "momentum" of all, "variance" of what AdamW updates. */
typedef struct OptimizerState { const char *kind; int parameter; void *data; } OptimizerState;
size_t optimizer_states(const Optimizer *optimizer, OptimizerState *states, size_t capacity); /* returns how many there are */

/* Learning rate of `step` (from 1): linear warmup, then the schedule (optim/schedule.c). */
double schedule_lr(const ScheduleConfig *schedule, double peak, int64_t step, int64_t steps);
/* Tokens of the step's global batch: a multiple of `microbatch` growing linearly from ramp_tokens to tokens over ramp_steps. */
int64_t schedule_batch_tokens(const BatchConfig *batch, int64_t microbatch, int64_t step);
/* Samples (sequences) drawn before `step` (from 1): what resuming needs, a pure function of the configuration. */
int64_t schedule_samples_before(const BatchConfig *batch, int64_t length, int64_t step);

#endif
