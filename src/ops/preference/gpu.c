/* preference on a GPU: zeros for rows without a pair, one block per pair, whose threads add its
 * tokens in a fixed order, then one block that adds the pairs. Scratch: loss and rewards of each
 * pair. */
#include "backend/gpu/gpu.h"
#include "ops/preference/pair.h"

enum { THREADS = 256 };

typedef struct PreferenceArguments {
    const float GLOBAL *losses, *reference, *scale;
    const int32_t GLOBAL *targets, *pairs;
    float GLOBAL *numbers, *answers, *weights; /* weights NULL: not wanted */
    float GLOBAL *loss, *rewards;
    float beta, smoothing;
    int32_t count, squared; /* squared: ipo */
} PreferenceArguments;

#ifdef GPU_DEVICE

/* The log-probability of an answer, and its factor in the margin. */
typedef struct GpuAnswer { float sum, share; } GpuAnswer;

/* Returns the answer of rows [first, end), in every thread. */
INLINE GpuAnswer add_tokens(const PreferenceArguments *a, int32_t first, int32_t end) {
    static SHARED float scratch[THREADS / WAVE];
    float sum = 0, tokens = 0;
    for (int32_t r = first + thread_id(); r < end; r += THREADS) {
        sum -= a->losses[r];
        tokens += a->targets[r] >= 0 ? 1 : 0;
    }
    sum = block_sum(sum, scratch, THREADS);
    tokens = block_sum(tokens, scratch, THREADS);
    return (GpuAnswer){sum, a->squared && tokens > 0 ? 1 / tokens : 1};
}

/* log(1 + e^x), without overflow. */
INLINE float softplus(float x) { return __builtin_fmaxf(x, 0) + fast_log2(1 + fast_exp(-__builtin_fabsf(x))) * LN_2; }

/* Returns the loss of a pair, given its margin, and its derivative. */
INLINE float pair_loss(const PreferenceArguments *a, float margin, float *slope) {
    float distance = (margin - 0.5f) / a->beta;
    *slope = a->squared ? 2 * distance / a->beta : a->smoothing - fast_exp(-softplus(margin));
    return a->squared ? distance * distance : (1 - a->smoothing) * softplus(-margin) + a->smoothing * softplus(margin);
}

INLINE void fill_rows(float GLOBAL *weights, int32_t first, int32_t end, float weight) {
    for (int32_t r = first + thread_id(); r < end; r += THREADS) weights[r] = weight;
}

KERNEL(preference_pair, PreferenceArguments) {
    const int32_t GLOBAL *pair = a.pairs + block_x() * PAIR_BOUNDS;
    float GLOBAL *numbers = a.numbers + block_x() * PAIR_NUMBERS, *answers = a.answers + block_x() * 2;
    const float GLOBAL *reference = a.reference + block_x() * 2;
    if (pair[PAIR_END] <= pair[PAIR_FIRST]) return;
    GpuAnswer chosen = add_tokens(&a, pair[PAIR_FIRST], pair[PAIR_MIDDLE]), rejected = add_tokens(&a, pair[PAIR_MIDDLE], pair[PAIR_END]);
    float chosen_reward = a.beta * (chosen.sum - reference[0]), rejected_reward = a.beta * (rejected.sum - reference[1]);
    float slope, loss = pair_loss(&a, chosen_reward * chosen.share - rejected_reward * rejected.share, &slope),
                 weight = slope * a.beta * *a.scale;
    if (thread_id() == 0) {
        answers[0] = chosen.sum;
        answers[1] = rejected.sum;
        numbers[PAIR_LOSS] = loss;
        numbers[REWARD_CHOSEN] = chosen_reward;
        numbers[REWARD_REJECTED] = rejected_reward;
        numbers[REWARD_WINS] = chosen_reward > rejected_reward ? 1 : 0;
    }
    if (!a.weights) return;
    fill_rows(a.weights, pair[PAIR_FIRST], pair[PAIR_MIDDLE], -weight * chosen.share);
    fill_rows(a.weights, pair[PAIR_MIDDLE], pair[PAIR_END], weight * rejected.share);
}

INLINE float add_pairs(const PreferenceArguments *a, int which) {
    static SHARED float scratch[THREADS / WAVE];
    float sum = 0;
    for (int32_t p = thread_id(); p < a->count; p += THREADS) sum += a->numbers[p * PAIR_NUMBERS + which];
    return block_sum(sum, scratch, THREADS);
}

/* Runs in one block. */
KERNEL(preference_sums, PreferenceArguments) {
    float loss = add_pairs(&a, PAIR_LOSS);
    if (thread_id() == 0) a.loss[0] += *a.scale * loss;
    for (int i = 0; i < REWARD_COUNT; i++) {
        float sum = add_pairs(&a, i);
        if (thread_id() == 0) a.rewards[i] += sum;
    }
}

#else

#include "backend/gpu/kernel_launch.h"
#include "ops/preference/preference.h"

LAUNCHER(preference_pair, PreferenceArguments)
LAUNCHER(preference_sums, PreferenceArguments)

static int64_t preference_gpu_workspace(const Graph *graph, const Node *node) {
    return graph_rows(graph, node->in[PREFERENCE_PAIRS]) * PAIR_NUMBERS * (int64_t)sizeof(float);
}

GPU_OP(preference, preference_gpu_workspace) {
    const PreferenceConfig *config = call->attributes;
    int64_t rows = call->in_shape[PREFERENCE_LOSSES][0], count = call->in_shape[PREFERENCE_PAIRS][0];
    PreferenceArguments arguments = {.losses = call->in[PREFERENCE_LOSSES],
        .reference = call->in[PREFERENCE_REFERENCE],
        .scale = call->in[PREFERENCE_SCALE],
        .targets = call->in[PREFERENCE_TARGETS],
        .pairs = call->in[PREFERENCE_PAIRS],
        .numbers = call->workspace,
        .answers = call->out[PREFERENCE_ANSWERS],
        .weights = call->out[PREFERENCE_WEIGHTS],
        .loss = call->out[PREFERENCE_LOSS],
        .rewards = call->out[PREFERENCE_REWARDS],
        .beta = (float)config->beta,
        .smoothing = (float)config->label_smoothing,
        .count = (int32_t)count,
        .squared = config->loss == PREFERENCE_IPO};
    device_fill(call->device, arguments.numbers, 0, count * PAIR_NUMBERS * (int64_t)sizeof(float));
    device_fill(call->device, arguments.answers, 0, 2 * count * (int64_t)sizeof(float));
    if (arguments.weights) device_fill(call->device, arguments.weights, 0, rows * (int64_t)sizeof(float));
    launch_preference_pair(call->device, (LaunchShape){.x = count, .threads = THREADS}, &arguments);
    if (mesh_index(call->mesh, AXES_TENSOR) > 0) return; /* all ranks have the same pairs */
    launch_preference_sums(call->device, (LaunchShape){.x = 1, .threads = THREADS}, &arguments);
}

#endif
