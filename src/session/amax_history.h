/* The state of fp8.scaling=delayed: the amax of the operands of each FP8 layer in the last
 * fp8.amax_history_len steps. The operands are its input, its weights (each expert's), and the
 * gradient of its output. Before a step, the maximum of an operand's history becomes the amax of
 * its casts, in all microbatches. After the step, the largest value that the casts of all
 * microbatches have seen on any rank replaces the oldest entry. So every layout, and every division
 * into microbatches, uses the same scales. Larger values saturate.
 *
 * An operand without a history is cast with the multiplier 1. A gradient without one is cast with 1
 * / the weight of a target in the loss, since a mean over many targets makes gradients too small
 * for e5m2. After a step with NaN or infinity, whose update is skipped, zeros are added. This is
 * DelayedScaling of Transformer Engine with amax_compute_algo="max" and margin 0, except for the
 * gradients of the first step, and with one entry per step for any number of microbatches.
 *
 * Owned by the session, written only by the training loop: evaluation and generation scale by the
 * current values. */
#pragma once

#include "graph/graph.h"

typedef struct AmaxHistory AmaxHistory;

/* Makes an empty history. Returns NULL if the program has no operand with delayed scaling; the
 * functions below do nothing with NULL. */
AmaxHistory *amax_history_create(const Graph *graph, int64_t length);
void amax_history_free(AmaxHistory *history);
/* Returns the host memory of one history. */
int64_t amax_history_bytes(const Graph *graph, int64_t length);

/* Writes the program's amax inputs before a run. `target` is the weight of a target in the loss
 * (Model.scale). */
void amax_history_put(const AmaxHistory *history, Executor *executor, double target);
/* After the step's last run: reads the amax values of its casts, and takes their maximum over the
 * other ranks that have a part of these layers. Collective over all axes except AXIS_PP. */
bool amax_history_agree(AmaxHistory *history, const Executor *executor, Error *error);
/* Returns whether the agreed values are free of NaN and infinity, which a saturating cast hides. */
bool amax_history_is_finite(const AmaxHistory *history);
/* Ends step `step`: adds the agreed values, or zeros if its update was skipped. */
void amax_history_note(AmaxHistory *history, int64_t step, bool updated);

/* The history of one operand, for checkpoints: fp32 [amax values, length], step s at s % length. */
typedef struct AmaxTensor {
    const char *name; /* "amax_history/x/model.layers.0.mlp.down_proj.weight" */
    int64_t matrices, length;
    float *values;
} AmaxTensor;
int amax_history_tensors(const AmaxHistory *history);
AmaxTensor amax_history_tensor(const AmaxHistory *history, int index);
/* Replaces the history of operand `index` by values [amax values, length] that end with `step`, as
 * far as they fit. */
void amax_history_take(AmaxHistory *history, int index, const float *values, int64_t length, int64_t step);
