/* policy on a GPU: zeros for rows without a sequence, one block per sequence, whose threads add its
 * tokens in a fixed order, then one block that adds the sequences. Scratch: sums and loss of each
 * sequence. */
#include "backend/gpu/gpu.h"

#define POLICY_REAL float
#ifdef GPU_DEVICE
#define POLICY_INLINE INLINE
#define POLICY_EXP fast_exp
#else
#define POLICY_INLINE static inline
#define POLICY_EXP __builtin_expf
#endif
#include "ops/policy/token_kernels.h"

enum { THREADS = 256 };

typedef struct PolicyArguments {
    const float GLOBAL *losses, *terms, *values; /* values NULL: none */
    const int32_t GLOBAL *targets, *sequences;
    float GLOBAL *numbers, *weights, *d_values; /* weights, d_values NULL: not wanted */
    float GLOBAL *loss, *sums;
    PolicyNumbers settings;
    int32_t count, whole, mean; /* whole: ratios of sequences; mean: of their mean */
} PolicyArguments;

#ifdef GPU_DEVICE

INLINE float log_ratio(const PolicyArguments *a, int32_t r) { return -a->losses[r] - a->terms[r * POLICY_TERMS + POLICY_OLD]; }

/* The log ratio of a whole sequence, and the derivative of its loss with respect to that of a token, in
 * every thread. */
typedef struct GpuSequenceRatio { float d, slope; } GpuSequenceRatio;

INLINE GpuSequenceRatio sequence_ratio(const PolicyArguments *a, int32_t first, int32_t end, LOCAL float *scratch) {
    float d = 0, tokens = 0, slope = 0;
    for (int32_t r = first + thread_id(); r < end; r += THREADS) {
        if (a->targets[r] < 0) continue;
        d += log_ratio(a, r);
        tokens += 1;
    }
    d = block_sum(d, scratch, THREADS);
    tokens = block_sum(tokens, scratch, THREADS);
    float part = a->mean && tokens > 0 ? 1 / tokens : 1;
    d *= part;
    for (int32_t r = first + thread_id(); r < end; r += THREADS) {
        const float GLOBAL *terms = a->terms + r * POLICY_TERMS;
        if (a->targets[r] < 0) continue;
        slope += part * terms[POLICY_SHARE] * policy_objective(&a->settings, d, -a->losses[r], terms[POLICY_ADVANTAGE]).slope;
    }
    return (GpuSequenceRatio){d, block_sum(slope, scratch, THREADS)};
}

INLINE PolicyLoss value_loss(const PolicyArguments *a, int32_t r) {
    const float GLOBAL *terms = a->terms + r * POLICY_TERMS;
    if (!a->values) return (PolicyLoss){0};
    return policy_value_loss(a->settings.value_clip, a->values[r], terms[POLICY_OLD_VALUE], terms[POLICY_RETURN]);
}

KERNEL(policy_sequence, PolicyArguments) {
    static SHARED float scratch[THREADS / WAVE];
    const int32_t GLOBAL *bounds = a.sequences + block_x() * SEQUENCE_BOUNDS;
    float GLOBAL *numbers = a.numbers + block_x() * SEQUENCE_NUMBERS;
    int32_t first = bounds[SEQUENCE_FIRST], end = bounds[SEQUENCE_END];
    float sums[SEQUENCE_NUMBERS] = {0};
    GpuSequenceRatio sequence = {0};
    if (end <= first) return;
    if (a.whole) sequence = sequence_ratio(&a, first, end, scratch);
    for (int32_t r = first + thread_id(); r < end; r += THREADS) {
        const float GLOBAL *terms = a.terms + r * POLICY_TERMS;
        if (a.targets[r] < 0) continue;
        float l = -a.losses[r], d = log_ratio(&a, r), share = terms[POLICY_SHARE];
        PolicyLoss loss = policy_objective(&a.settings, a.whole ? sequence.d : d, l, terms[POLICY_ADVANTAGE]), value = value_loss(&a, r);
        float to_reference = a.settings.kl > 0 ? terms[POLICY_REFERENCE] - l : 0;
        float slope = a.whole ? sequence.slope : loss.slope * share;
        if (a.settings.kl > 0) slope += share * a.settings.kl * (1 - fast_exp(to_reference > 20 ? 20 : to_reference));
        slope += share * a.settings.entropy * l;
        if (a.weights) a.weights[r] = -slope;
        if (a.d_values) a.d_values[r] = share * a.settings.value_coefficient * value.slope;
        sums[SEQUENCE_LOSS] += share * (loss.value + a.settings.kl * policy_k3(to_reference) + a.settings.entropy * l +
                                           a.settings.value_coefficient * value.value);
        sums[POLICY_TOKENS] += 1;
        sums[POLICY_SURPRISE] -= l;
        sums[POLICY_CLIPPED] += (float)loss.clipped;
        sums[POLICY_MISMATCH] += policy_k3(d);
        sums[POLICY_DIFFERENT] += d != 0 ? 1 : 0;
        sums[POLICY_KL] += policy_k3(to_reference);
        sums[POLICY_VALUE_LOSS] += value.value;
        sums[POLICY_VALUE_CLIPPED] += (float)value.clipped;
    }
    UNROLL for (int i = 0; i < SEQUENCE_NUMBERS; i++) {
        float sum = block_sum(sums[i], scratch, THREADS);
        if (thread_id() == 0) numbers[i] = sum;
    }
}

INLINE float add_sequences(const PolicyArguments *a, int which, LOCAL float *scratch) {
    float sum = 0;
    for (int32_t s = thread_id(); s < a->count; s += THREADS) sum += a->numbers[s * SEQUENCE_NUMBERS + which];
    return block_sum(sum, scratch, THREADS);
}

/* Runs in one block. */
KERNEL(policy_sums, PolicyArguments) {
    static SHARED float scratch[THREADS / WAVE];
    for (int i = 0; i < SEQUENCE_NUMBERS; i++) {
        float sum = add_sequences(&a, i, scratch);
        if (thread_id() == 0) *(i == SEQUENCE_LOSS ? a.loss : a.sums + i) += sum;
    }
}

#else

#include "backend/gpu/kernel_launch.h"
#include "ops/policy/policy.h"

LAUNCHER(policy_sequence, PolicyArguments)
LAUNCHER(policy_sums, PolicyArguments)

static int64_t policy_gpu_workspace(const Graph *graph, const Node *node) {
    return graph_rows(graph, node->in[POLICY_SEQUENCES]) * SEQUENCE_NUMBERS * (int64_t)sizeof(float);
}

GPU_OP(policy, policy_gpu_workspace) {
    const PolicyAttributes *config = call->attributes;
    bool first = mesh_index(call->mesh, AXES_TENSOR) == 0; /* all ranks have the same sequences, and add up their gradients of values */
    int64_t rows = call->in_shape[POLICY_LOSSES_IN][0], count = call->in_shape[POLICY_SEQUENCES][0];
    PolicyArguments arguments = {.losses = call->in[POLICY_LOSSES_IN],
        .terms = call->in[POLICY_ROWS],
        .targets = call->in[POLICY_TARGETS],
        .sequences = call->in[POLICY_SEQUENCES],
        .values = call->in[POLICY_VALUES],
        .numbers = call->workspace,
        .weights = call->out[POLICY_WEIGHTS],
        .d_values = first ? call->out[POLICY_D_VALUES] : NULL,
        .loss = call->out[POLICY_LOSS],
        .sums = call->out[POLICY_SUM],
        .settings = {(float)config->low, (float)config->high, (float)config->dual, (float)config->kl, (float)config->entropy,
            (float)config->penalty, (float)config->value_clip, (float)config->value_coefficient, config->objective, config->ratio},
        .count = (int32_t)count,
        .whole = config->ratio != RATIO_OF_TOKEN,
        .mean = config->ratio == RATIO_OF_MEAN};
    device_fill(call->device, arguments.numbers, 0, count * SEQUENCE_NUMBERS * (int64_t)sizeof(float));
    if (arguments.weights) device_fill(call->device, arguments.weights, 0, rows * (int64_t)sizeof(float));
    if (call->out[POLICY_D_VALUES]) device_fill(call->device, call->out[POLICY_D_VALUES], 0, rows * (int64_t)sizeof(float));
    launch_policy_sequence(call->device, (LaunchShape){.x = count, .threads = THREADS}, &arguments);
    if (first) launch_policy_sums(call->device, (LaunchShape){.x = 1, .threads = THREADS}, &arguments);
}

#endif
