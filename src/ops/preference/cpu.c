/* preference on a CPU, one thread per pair. Tokens of an answer, and pairs, are added in order, in
 * double. Scratch: loss and rewards of each pair. */
#include "backend/cpu/kernel.h"
#include "ops/preference/preference.h"

static int64_t preference_cpu_workspace(const Graph *graph, const Node *node) {
    return graph_rows(graph, node->in[PREFERENCE_PAIRS]) * PAIR_NUMBERS * (int64_t)precision_bytes(graph->precision, TYPE_WIDE);
}

/* The log-probability of an answer, and its factor in the margin. */
typedef struct CpuAnswer { W sum, share; } CpuAnswer;

static CpuAnswer add_tokens(const W *losses, const int32_t *targets, int64_t first, int64_t end, bool mean) {
    double sum = 0;
    int64_t tokens = 0;
    for (int64_t r = first; r < end; r++) {
        sum -= losses[r];
        tokens += targets[r] >= 0;
    }
    return (CpuAnswer){(W)sum, mean && tokens ? 1 / (W)tokens : 1};
}

/* log(1 + e^x), without overflow. */
static double softplus(double x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }

/* Returns the loss of a pair, given its margin, and its derivative. */
static double pair_loss(const PreferenceConfig *config, double margin, double *slope) {
    double smoothing = config->label_smoothing, distance = (margin - 0.5) / config->beta;
    if (config->loss == PREFERENCE_IPO) {
        *slope = 2 * distance / config->beta;
        return distance * distance;
    }
    *slope = smoothing - exp(-softplus(margin));
    return (1 - smoothing) * softplus(-margin) + smoothing * softplus(margin);
}

static void fill_rows(W *weights, int64_t first, int64_t end, W weight) {
    for (int64_t r = first; r < end; r++) weights[r] = weight;
}

/* Destination of the numbers of a pair; `weights` NULL: not wanted. */
typedef struct PairResult { W *answers, *numbers, *weights; } PairResult;

static void finish_pair(const OpCall *call, const int32_t *pair, const W *reference, const PairResult *result) {
    const PreferenceConfig *config = call->attributes;
    const W *losses = call->in[PREFERENCE_LOSSES], *scale = call->in[PREFERENCE_SCALE];
    const int32_t *targets = call->in[PREFERENCE_TARGETS];
    bool mean = config->loss == PREFERENCE_IPO;
    CpuAnswer chosen = add_tokens(losses, targets, pair[PAIR_FIRST], pair[PAIR_MIDDLE], mean);
    CpuAnswer rejected = add_tokens(losses, targets, pair[PAIR_MIDDLE], pair[PAIR_END], mean);
    double chosen_reward = config->beta * (chosen.sum - reference[0]), rejected_reward = config->beta * (rejected.sum - reference[1]);
    double slope, margin = chosen_reward * chosen.share - rejected_reward * rejected.share;
    result->answers[0] = chosen.sum;
    result->answers[1] = rejected.sum;
    result->numbers[PAIR_LOSS] = (W)pair_loss(config, margin, &slope);
    result->numbers[REWARD_CHOSEN] = (W)chosen_reward;
    result->numbers[REWARD_REJECTED] = (W)rejected_reward;
    result->numbers[REWARD_WINS] = chosen_reward > rejected_reward;
    if (!result->weights) return;
    double weight = slope * config->beta * *scale;
    fill_rows(result->weights, pair[PAIR_FIRST], pair[PAIR_MIDDLE], (W)(-weight * chosen.share));
    fill_rows(result->weights, pair[PAIR_MIDDLE], pair[PAIR_END], (W)(weight * rejected.share));
}

static double add_pairs(const W *numbers, int64_t pairs, int which) {
    double sum = 0;
    for (int64_t p = 0; p < pairs; p++) sum += numbers[p * PAIR_NUMBERS + which];
    return sum;
}

CPU_OP(preference, preference_cpu_workspace) {
    const int32_t *pairs = call->in[PREFERENCE_PAIRS];
    const W *reference = call->in[PREFERENCE_REFERENCE], *scale = call->in[PREFERENCE_SCALE];
    W *loss = call->out[PREFERENCE_LOSS], *rewards = call->out[PREFERENCE_REWARDS], *answers = call->out[PREFERENCE_ANSWERS];
    W *weights = call->out[PREFERENCE_WEIGHTS], *numbers = call->workspace;
    int64_t rows = call->in_shape[PREFERENCE_LOSSES][0], count = call->in_shape[PREFERENCE_PAIRS][0];
    memset(numbers, 0, (size_t)(count * PAIR_NUMBERS) * sizeof *numbers);
    memset(answers, 0, (size_t)(2 * count) * sizeof *answers);
    if (weights) memset(weights, 0, (size_t)rows * sizeof *weights);
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < count; p++) {
        const int32_t *pair = pairs + p * PAIR_BOUNDS;
        PairResult result = {answers + 2 * p, numbers + p * PAIR_NUMBERS, weights};
        if (pair[PAIR_END] > pair[PAIR_FIRST]) finish_pair(call, pair, reference + 2 * p, &result);
    }
    if (mesh_index(call->mesh, AXES_TENSOR) > 0) return; /* all ranks have the same pairs */
    *loss += (W)(*scale * add_pairs(numbers, count, PAIR_LOSS));
    for (int i = 0; i < REWARD_COUNT; i++) rewards[i] += (W)add_pairs(numbers, count, i);
}
