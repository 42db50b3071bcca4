/* The state of fp8.scaling=delayed: the largest magnitudes that the operands of each layer in fp8 had in the last
 * fp8.amax_history_len steps: its input, its weights (each expert's), and the gradient of its output. Before a step, the
 * largest of an operand's history becomes the amax that it is cast with, in all microbatches; after it, the largest that the
 * casts of all microbatches have seen on any rank joins the history in place of the oldest. So every layout, and every
 * share of microbatches, casts with the same scales. What exceeds them saturates.
 *
 * An operand without a history is cast with the multiplier 1, and a gradient with 1 / the weight of a target in the loss,
 * since a mean over many targets makes gradients that e5m2 does not reach. After a step with NaN or infinity, whose update is
 * left out, zeros join. This is DelayedScaling of Transformer Engine with amax_compute_algo="max" and margin 0, but for the
 * gradients of the first step, and with one entry for a step, however many microbatches it has.
 *
 * Owned by the session, written by the training loop alone: evaluation and generation scale by the current numbers. */
#pragma once

#include "graph/graph.h"

typedef struct AmaxHistory AmaxHistory;

/* Empty. NULL where the program has no operand with delayed scaling; the functions below do nothing with NULL. */
AmaxHistory *amax_history_create(const Graph *graph, int64_t length);
void amax_history_free(AmaxHistory *history);
/* Host memory of one. */
int64_t amax_history_bytes(const Graph *graph, int64_t length);

/* Before a run of the program: writes its amax inputs. `target` is the weight of a target in the loss (Model.scale). */
void amax_history_put(const AmaxHistory *history, Executor *executor, double target);
/* After the step's last run: takes what its casts have seen, and agrees with the other ranks that have a part of these
 * layers. Collective over all axes but AXIS_PP. */
bool amax_history_agree(AmaxHistory *history, const Executor *executor, Error *error);
/* Whether what was agreed on is free of NaN and infinity, which a saturating cast hides. */
bool amax_history_is_finite(const AmaxHistory *history);
/* Step `step` is done: what was agreed on joins or, where its update was left out, zeros. */
void amax_history_note(AmaxHistory *history, int64_t step, bool updated);

/* The history of one operand, for checkpoints: fp32 [magnitudes, length], of step s at s % length. */
typedef struct AmaxTensor {
    const char *name; /* "amax_history/x/model.layers.0.mlp.down_proj.weight" */
    int64_t magnitudes, length;
    float *values;
} AmaxTensor;
int amax_history_tensors(const AmaxHistory *history);
AmaxTensor amax_history_tensor(const AmaxHistory *history, int index);
/* Replaces the history of operand `index` by values [magnitudes, length] which ended with `step`: as much of it as fits. */
void amax_history_take(AmaxHistory *history, int index, const float *values, int64_t length, int64_t step);
