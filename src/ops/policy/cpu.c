/* policy on a CPU, one thread per sequence. Tokens of a sequence, and sequences, are added in order,
 * in double. Scratch: sums and loss of each sequence. */
#include "backend/cpu/kernel.h"
#include "ops/policy/policy.h"

#define POLICY_REAL double
#define POLICY_INLINE static inline
#define POLICY_EXP exp
#include "ops/policy/token_kernels.h"

static int64_t policy_cpu_workspace(const Graph *graph, const Node *node) {
    return graph_rows(graph, node->in[POLICY_SEQUENCES]) * SEQUENCE_NUMBERS * (int64_t)precision_bytes(graph->precision, TYPE_WIDE);
}

static PolicyNumbers policy_numbers(const PolicyAttributes *a) {
    return (PolicyNumbers){
        a->low, a->high, a->dual, a->kl, a->entropy, a->penalty, a->value_clip, a->value_coefficient, a->objective, a->ratio};
}

/* The rows of a call. */
typedef struct PolicyRows {
    const W *losses, *terms;
    const int32_t *targets;
    const W *values;       /* NULL: none */
    W *weights, *d_values; /* NULL: not wanted */
} PolicyRows;

static double log_ratio(const PolicyRows *rows, int64_t r) {
    return (double)-rows->losses[r] - (double)rows->terms[r * POLICY_TERMS + POLICY_OLD];
}

/* The log ratio of a whole sequence, and the derivative of its loss with respect to that of a token. */
typedef struct CpuSequenceRatio { double d, slope; } CpuSequenceRatio;

static CpuSequenceRatio sequence_ratio(const PolicyNumbers *n, const PolicyRows *rows, const int32_t *bounds) {
    CpuSequenceRatio sequence = {0};
    int64_t tokens = 0;
    for (int64_t r = bounds[SEQUENCE_FIRST]; r < bounds[SEQUENCE_END]; r++) {
        if (rows->targets[r] < 0) continue;
        sequence.d += log_ratio(rows, r);
        tokens++;
    }
    double part = n->ratio == RATIO_OF_MEAN && tokens ? 1 / (double)tokens : 1;
    sequence.d *= part;
    for (int64_t r = bounds[SEQUENCE_FIRST]; r < bounds[SEQUENCE_END]; r++) {
        const W *terms = rows->terms + r * POLICY_TERMS;
        if (rows->targets[r] < 0) continue;
        sequence.slope += part * terms[POLICY_SHARE] * policy_objective(n, sequence.d, -rows->losses[r], terms[POLICY_ADVANTAGE]).slope;
    }
    return sequence;
}

static PolicyLoss value_loss(const PolicyNumbers *n, const PolicyRows *rows, int64_t r) {
    const W *terms = rows->terms + r * POLICY_TERMS;
    return rows->values ? policy_value_loss(n->value_clip, rows->values[r], terms[POLICY_OLD_VALUE], terms[POLICY_RETURN])
                        : (PolicyLoss){0};
}

static void finish_sequence(const PolicyNumbers *n, const PolicyRows *rows, const int32_t *bounds, W *numbers) {
    double sums[SEQUENCE_NUMBERS] = {0};
    bool whole = n->ratio != RATIO_OF_TOKEN;
    CpuSequenceRatio sequence = whole ? sequence_ratio(n, rows, bounds) : (CpuSequenceRatio){0};
    for (int64_t r = bounds[SEQUENCE_FIRST]; r < bounds[SEQUENCE_END]; r++) {
        const W *terms = rows->terms + r * POLICY_TERMS;
        if (rows->targets[r] < 0) continue;
        double l = -rows->losses[r], d = log_ratio(rows, r), share = terms[POLICY_SHARE];
        PolicyLoss loss = policy_objective(n, whole ? sequence.d : d, l, terms[POLICY_ADVANTAGE]), value = value_loss(n, rows, r);
        double to_reference = n->kl > 0 ? (double)terms[POLICY_REFERENCE] - l : 0;
        double slope = whole ? sequence.slope : loss.slope * share;
        if (n->kl > 0) slope += share * n->kl * (1 - exp(to_reference > 20 ? 20 : to_reference));
        slope += share * n->entropy * l;
        if (rows->weights) rows->weights[r] = (W)-slope;
        if (rows->d_values) rows->d_values[r] = (W)(share * n->value_coefficient * value.slope);
        sums[SEQUENCE_LOSS] += share * (loss.value + n->kl * policy_k3(to_reference) + n->entropy * l + n->value_coefficient * value.value);
        sums[POLICY_TOKENS]++;
        sums[POLICY_SURPRISE] -= l;
        sums[POLICY_CLIPPED] += loss.clipped;
        sums[POLICY_MISMATCH] += policy_k3(d);
        sums[POLICY_DIFFERENT] += d != 0;
        sums[POLICY_KL] += policy_k3(to_reference);
        sums[POLICY_VALUE_LOSS] += value.value;
        sums[POLICY_VALUE_CLIPPED] += value.clipped;
    }
    for (int i = 0; i < SEQUENCE_NUMBERS; i++) numbers[i] = (W)sums[i];
}

static double add_sequences(const W *numbers, int64_t count, int which) {
    double sum = 0;
    for (int64_t s = 0; s < count; s++) sum += numbers[s * SEQUENCE_NUMBERS + which];
    return sum;
}

CPU_OP(policy, policy_cpu_workspace) {
    const PolicyNumbers numbers = policy_numbers(call->attributes);
    const int32_t *sequences = call->in[POLICY_SEQUENCES];
    const PolicyRows rows = {call->in[POLICY_LOSSES_IN], call->in[POLICY_ROWS], call->in[POLICY_TARGETS], call->in[POLICY_VALUES],
        call->out[POLICY_WEIGHTS], call->out[POLICY_D_VALUES]};
    W *loss = call->out[POLICY_LOSS], *sums = call->out[POLICY_SUM], *scratch = call->workspace;
    int64_t all = call->in_shape[POLICY_LOSSES_IN][0], count = call->in_shape[POLICY_SEQUENCES][0];
    memset(scratch, 0, (size_t)(count * SEQUENCE_NUMBERS) * sizeof *scratch);
    if (rows.weights) memset(rows.weights, 0, (size_t)all * sizeof *rows.weights);
    if (rows.d_values) memset(rows.d_values, 0, (size_t)all * sizeof *rows.d_values);
#pragma omp parallel for schedule(static)
    for (int64_t s = 0; s < count; s++) {
        const int32_t *bounds = sequences + s * SEQUENCE_BOUNDS;
        if (bounds[SEQUENCE_END] > bounds[SEQUENCE_FIRST]) finish_sequence(&numbers, &rows, bounds, scratch + s * SEQUENCE_NUMBERS);
    }
    if (mesh_index(call->mesh, AXES_TENSOR) > 0) { /* all ranks have the same sequences, and add up their gradients of values */
        if (rows.d_values) memset(rows.d_values, 0, (size_t)all * sizeof *rows.d_values);
        return;
    }
    *loss += (W)add_sequences(scratch, count, SEQUENCE_LOSS);
    for (int i = 0; i < POLICY_SUMS; i++) sums[i] += (W)add_sequences(scratch, count, i);
}
