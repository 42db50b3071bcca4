/* The inputs of a pair-loss program besides its tokens, and its outputs: bounds of pairs,
 * log-probabilities of the reference, sums of rewards. Owns nothing. Called by steps and
 * evaluations. */
#include "eval/pairs.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/element.h"
#include "base/memory.h"

void pairs_allocate(StepInputs *inputs, const Model *model, int64_t microbatches) {
    if (!model->rewards) return;
    size_t count = (size_t)(microbatches * preference_most_pairs(model->rows));
    inputs->pairs = memory_allocate(count * PAIR_BOUNDS * sizeof *inputs->pairs);
    inputs->reference = memory_allocate(count * 2 * sizeof *inputs->reference);
}

void pairs_free(StepInputs *inputs) {
    free(inputs->pairs);
    free(inputs->reference);
}

int64_t pairs_take(
    StepInputs *inputs, const Model *model, int64_t microbatch, const Batch *batch, int64_t rows, const Reference *reference) {
    if (!model->rewards) return 0;
    int64_t most = preference_most_pairs(model->rows), taken = 0;
    int32_t *pairs = inputs->pairs + microbatch * most * PAIR_BOUNDS;
    double *log_probabilities = inputs->reference + microbatch * most * 2;
    memset(pairs, 0, (size_t)(most * PAIR_BOUNDS) * sizeof *pairs);
    memset(log_probabilities, 0, (size_t)(most * 2) * sizeof *log_probabilities);
    for (int64_t i = 0; batch && i < batch->pair_count; i++) {
        const BatchPair *pair = &batch->pairs[i];
        const ReferencePair *known = reference ? reference_find(reference, pair->token) : NULL;
        if (pair->first >= rows) continue;
        assert(taken < most && (known || !reference));
        int32_t *bounds = pairs + taken * PAIR_BOUNDS;
        bounds[PAIR_FIRST] = pair->first;
        bounds[PAIR_MIDDLE] = pair->middle;
        bounds[PAIR_END] = pair->end;
        log_probabilities[2 * taken] = known ? known->chosen : 0;
        log_probabilities[2 * taken + 1] = known ? known->rejected : 0;
        taken++;
    }
    return taken;
}

void pairs_load(const StepInputs *inputs, const Program *program, int64_t microbatch) {
    const Model *model = &program->model;
    if (!model->rewards) return;
    int64_t most = preference_most_pairs(model->rows);
    int32_t *pairs = executor_tensor(program->executor, model->preference.pairs);
    void *reference = executor_tensor(program->executor, model->preference.reference);
    size_t bytes = precision_bytes(model->graph->precision, TYPE_WIDE);
    if (microbatch < 0) {
        memset(pairs, 0, (size_t)(most * PAIR_BOUNDS) * sizeof *pairs);
        return;
    }
    memcpy(pairs, inputs->pairs + microbatch * most * PAIR_BOUNDS, (size_t)(most * PAIR_BOUNDS) * sizeof *pairs);
    for (int64_t i = 0; i < 2 * most; i++) element_set(bytes, reference, i, inputs->reference[microbatch * most * 2 + i]);
}

void pairs_add_rewards(const Program *program, double sums[REWARD_COUNT]) {
    TensorId rewards = program->model.rewards;
    for (int i = 0; rewards && i < REWARD_COUNT; i++) sums[i] += executor_get_metric(program->executor, rewards, i);
}

Rewards pairs_mean(const double sums[REWARD_COUNT], int64_t pairs) {
    double count = (double)pairs;
    return (Rewards){pairs, sums[REWARD_CHOSEN] / count, sums[REWARD_REJECTED] / count, sums[REWARD_WINS] / count};
}
