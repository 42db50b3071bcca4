/* The router on a GPU. 32 lanes, an NVIDIA warp or half an AMD wavefront, take a row. A lane holds
 * every 32nd class in registers (functions take their number as the constant `own`), so that
 * softmax, choice and gates only need shuffles. Loads are integers counted per block of rows. Sums
 * of probabilities are added in row order within a group of lanes, then over groups, then over
 * blocks, all in fixed order. Scratch belongs to the call.
 *
 * The kernels router_other and router_other_grad implement sigmoids, groups of experts and a scale
 * of the gates. Routers without these have kernels of their own, which need fewer registers. */
#include "backend/gpu/gpu.h"

enum {
    THREADS = 256,
    LANES = 32, /* lanes that share a row */
    GROUPS = THREADS / LANES,
    ROWS = 64,             /* per block in the forward pass */
    OWN = 16,              /* most classes per lane */
    CLASSES = LANES * OWN, /* most classes */
};

/* counts [classes, blocks] and sums [classes, blocks] are per block of ROWS rows; `sums` is NULL
 * without loads, `counts` outside training. */
typedef struct RouterArguments {
    const float GLOBAL *logits, *bias;
    int32_t GLOBAL *index, *counts;
    float GLOBAL *gate, *probabilities, *sums;
    int32_t rows, blocks, classes, k, renormalise;
    /* for router_other: as in RouterSpec, and the classes of a group */
    int32_t sigmoid, groups, groups_chosen, group_size;
    float scale, epsilon;
} RouterArguments;

/* Arguments for computing the totals of each class, and the gradient of the biases (NULL: none),
 * from the blocks' counts and sums. */
typedef struct RouterTotalsArguments {
    const int32_t GLOBAL *counts;
    const float GLOBAL *sums, *share;
    int32_t GLOBAL *count;
    float GLOBAL *loads, *d_bias; /* loads [2, classes] */
    int32_t rows, blocks, classes, experts, k;
} RouterTotalsArguments;

/* `d_gate` and `d_loads` may be NULL: zeros. */
typedef struct RouterGradArguments {
    const float GLOBAL *d_gate, *probabilities, *d_loads;
    const int32_t GLOBAL *index;
    float GLOBAL *d_logits;
    int32_t rows, classes, k, renormalise;
    int32_t sigmoid; /* for router_other_grad, as the next two */
    float scale, epsilon;
} RouterGradArguments;

#ifdef GPU_DEVICE

INLINE int lane_of_row(void) { return thread_id() % LANES; }
/* Returns the value of x in lane `from` of the same row. */
INLINE float row_shuffle(float x, int from) { return shuffle_float(x, lane_id() / LANES * LANES + from); }

INLINE float row_sum(float x) {
    UNROLL for (int mask = LANES / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
    return x;
}

INLINE float row_max(float x) {
    UNROLL for (int mask = LANES / 2; mask > 0; mask /= 2) x = __builtin_fmaxf(x, shuffle_xor(x, mask));
    return x;
}

/* -- Forward ------------------------------------------------------------------------------------------------------- */

/* Sets p[i] to the probability of class i * LANES + lane; an input of minus infinity means no
 * class. */
INLINE void softmax(float *p, const int own) {
    float top = p[0], sum = 0;
    UNROLL for (int i = 1; i < own; i++) top = __builtin_fmaxf(top, p[i]);
    top = row_max(top);
    UNROLL for (int i = 0; i < own; i++) {
        p[i] = fast_exp(p[i] - top);
        sum += p[i];
    }
    float share = 1 / row_sum(sum);
    UNROLL for (int i = 0; i < own; i++) p[i] *= share;
}

/* Returns the class of the highest score of the row, the lowest of equals; class 0 if every score
 * is NaN. */
INLINE int32_t best_class(const float *score, const int own) {
    float top = -__builtin_inff();
    int32_t best = 0;
    UNROLL for (int i = 0; i < own; i++) if (score[i] > top) {
        top = score[i];
        best = i * LANES + lane_of_row();
    }
    UNROLL for (int mask = LANES / 2; mask > 0; mask /= 2) {
        float other = shuffle_xor(top, mask);
        int32_t class = (int32_t)shuffle(best, lane_id() ^ mask);
        bool wins = other > top || (other == top && class < best);
        top = wins ? other : top;
        best = wins ? class : best;
    }
    return best;
}

/* Sets p[i] to the sigmoid of the logit; an input of minus infinity gives 0. */
INLINE void sigmoids(float *p, const int own) { UNROLL for (int i = 0; i < own; i++) p[i] = 1 / (1 + fast_exp(-p[i])); }

/* Returns the score of a group: its highest one, or of sigmoids the sum of its two highest. */
INLINE float group_score(const RouterArguments *a, const float *score, int group, const int own) {
    float best = -__builtin_inff(), second = best;
    UNROLL for (int i = 0; i < own; i++) {
        int c = i * LANES + lane_of_row();
        float x = c / a->group_size == group ? score[i] : -__builtin_inff();
        second = __builtin_fmaxf(second, __builtin_fminf(best, x));
        best = __builtin_fmaxf(best, x);
    }
    UNROLL for (int mask = LANES / 2; mask > 0; mask /= 2) {
        float other = shuffle_xor(best, mask), other_second = shuffle_xor(second, mask);
        second = __builtin_fmaxf(__builtin_fminf(best, other), __builtin_fmaxf(second, other_second));
        best = __builtin_fmaxf(best, other);
    }
    return a->sigmoid ? best + second : best;
}

/* Sets the scores of classes outside the chosen groups to minus infinity. Lane i holds the score of
 * group i. */
INLINE void limit_groups(const RouterArguments *a, float *score, const int own) {
    uint32_t chosen = 0;
    float groups = -__builtin_inff();
    for (int group = 0; group < a->groups; group++) {
        float of_group = group_score(a, score, group, own);
        if (lane_of_row() == group) groups = of_group;
    }
    for (int j = 0; j < a->groups_chosen; j++) {
        int32_t best = best_class(&groups, 1);
        if (lane_of_row() == best) groups = -__builtin_inff();
        chosen |= 1u << best;
    }
    UNROLL for (int i = 0; i < own; i++) {
        int group = (i * LANES + lane_of_row()) / a->group_size;
        if (group >= a->groups || !(chosen >> group & 1)) score[i] = -__builtin_inff();
    }
}

/* Writes index and gate of a row and counts its choices. Lane j % LANES writes and renormalizes
 * choice j. */
INLINE void choose_expert(
    const RouterArguments *a, int64_t r, bool there, const float *p, float *score, LOCAL int32_t *count, const int own, const bool other) {
    float sum = other ? a->epsilon : 0;
    for (int32_t j = 0; j < a->k; j++) {
        int32_t best = best_class(score, own);
        float gate = 0;
        UNROLL for (int i = 0; i < own; i++) if (best == i * LANES + lane_of_row()) {
            gate = p[i];
            score[i] = -__builtin_inff();
        }
        gate = row_shuffle(gate, best % LANES);
        sum += gate;
        if (!there || lane_of_row() != j % LANES) continue;
        a->index[r * a->k + j] = best;
        a->gate[r * a->k + j] = other && !a->renormalise ? gate * a->scale : gate;
        __atomic_fetch_add(&count[best], 1, __ATOMIC_RELAXED);
    }
    if (!a->renormalise || !there) return;
    for (int32_t j = lane_of_row(); j < a->k; j += LANES) {
        float gate = a->gate[r * a->k + j] / sum;
        a->gate[r * a->k + j] = other ? gate * a->scale : gate;
    }
}

/* Adds the sums of a class over the groups in order and stores the block's sum. */
INLINE void store_expert_sums(const RouterArguments *a, const float *own_sums, LOCAL float (*sums)[CLASSES], const int own) {
    UNROLL for (int i = 0; i < own; i++) sums[thread_id() / LANES][i * LANES + lane_of_row()] = own_sums[i];
    barrier();
    for (int c = thread_id(); c < a->classes; c += THREADS) {
        float sum = 0;
        UNROLL for (int group = 0; group < GROUPS; group++) sum += sums[group][c];
        a->sums[(int64_t)c * a->blocks + block_x()] = sum;
    }
}

/* Lanes after the last row participate, because shuffles need the whole wavefront; `there` is false
 * for them. */
INLINE void route(const RouterArguments *a, LOCAL int32_t *count, LOCAL float (*sums)[CLASSES], const int own, const bool other) {
    float total[OWN], bias[OWN];
    for (int c = thread_id(); c < a->classes; c += THREADS) count[c] = 0;
    UNROLL for (int i = 0; i < own; i++) {
        int c = i * LANES + lane_of_row();
        total[i] = 0;
        bias[i] = a->bias && c < a->classes ? a->bias[c] : 0;
    }
    barrier();
    for (int step = 0; step < ROWS / GROUPS; step++) {
        int64_t r = (int64_t)block_x() * ROWS + step * GROUPS + thread_id() / LANES;
        bool there = r < a->rows;
        float p[OWN], score[OWN];
        UNROLL for (int i = 0; i < own; i++) {
            int c = i * LANES + lane_of_row();
            p[i] = there && c < a->classes ? a->logits[r * a->classes + c] : -__builtin_inff();
        }
        if (other && a->sigmoid) sigmoids(p, own);
        else softmax(p, own);
        UNROLL for (int i = 0; i < own; i++) {
            int c = i * LANES + lane_of_row();
            score[i] = c < a->classes ? p[i] + bias[i] : -__builtin_inff();
            if (!there || c >= a->classes) continue;
            a->probabilities[r * a->classes + c] = p[i];
            total[i] += p[i];
        }
        if (other && a->groups > 1) limit_groups(a, score, own);
        choose_expert(a, r, there, p, score, count, own, other);
    }
    barrier();
    for (int c = thread_id(); a->counts && c < a->classes; c += THREADS) a->counts[(int64_t)c * a->blocks + block_x()] = count[c];
    if (a->sums) store_expert_sums(a, total, sums, own);
}

#define ROUTER(name, own, other) \
    KERNEL(name, RouterArguments) { \
        static SHARED int32_t count[CLASSES]; \
        static SHARED float sums[GROUPS][CLASSES]; \
        route(&a, count, sums, own, other); \
    }
ROUTER(router_32, 1, false)
ROUTER(router_128, 4, false)
ROUTER(router_512, 16, false)
ROUTER(router_other_32, 1, true)
ROUTER(router_other_128, 4, true)
ROUTER(router_other_512, 16, true)

/* LANES lanes add the blocks of a class. */
KERNEL(router_totals, RouterTotalsArguments) {
    int32_t c = block_x() * GROUPS + thread_id() / LANES, own = c < a.classes ? c : a.classes - 1, count = 0;
    float total = 0;
    for (int32_t block = lane_of_row(); block < a.blocks; block += LANES) {
        count += a.counts[(int64_t)own * a.blocks + block];
        if (a.sums) total += a.sums[(int64_t)own * a.blocks + block];
    }
    UNROLL for (int mask = LANES / 2; mask > 0; mask /= 2) count += (int32_t)shuffle(count, lane_id() ^ mask);
    total = row_sum(total);
    if (c >= a.classes || lane_of_row() > 0) return;
    a.count[c] = count;
    if (a.sums) {
        a.loads[c] = (float)count;
        a.loads[a.classes + c] = total;
    }
    if (a.d_bias && *a.share > 0 && c < a.experts) a.d_bias[c] += (float)((int64_t)count * a.experts - (int64_t)a.rows * a.k);
}

/* -- Backward ------------------------------------------------------------------------------------------------------ */

/* With d_p the gradient of the probabilities: d_logits = p * (d_p - <d_p, p>). d_p is the gradient
 * of the loads, equal for all rows, plus one number per chosen class: d_gate, or, with renormalized
 * gates, (d_gate - <d_gate, gate>) / sum of the chosen p. With renormalized gates the dot product
 * with p is zero. For sigmoids: d_logits = p (1 - p) d_p. */
INLINE void route_grad(const RouterGradArguments *a, const int own, const bool other) {
    int64_t r = (int64_t)block_x() * GROUPS + thread_id() / LANES, row = r < a->rows ? r : a->rows - 1;
    const float GLOBAL *probabilities = a->probabilities + row * a->classes, *d_gate = a->d_gate + row * a->k;
    const int32_t GLOBAL *index = a->index + row * a->k;
    float p[OWN], d[OWN], chosen = other ? a->epsilon : 0, gate_dot = 0, dot = 0, scale = 1, shift = 0;
    UNROLL for (int i = 0; i < own; i++) {
        int c = i * LANES + lane_of_row();
        p[i] = c < a->classes ? probabilities[c] : 0;
        d[i] = a->d_loads && c < a->classes ? a->d_loads[a->classes + c] : 0;
        dot += d[i] * p[i];
    }
    dot = row_sum(dot);
    int32_t k = a->d_gate ? a->k : 0;
    for (int32_t j = 0; j < k; j++) {
        chosen += probabilities[index[j]];
        gate_dot += d_gate[j] * probabilities[index[j]];
    }
    if (k > 0 && a->renormalise) {
        scale = 1 / chosen;
        shift = gate_dot * scale;
    } else {
        dot += other ? gate_dot * a->scale : gate_dot;
    }
    bool sigmoid = other && a->sigmoid;
    UNROLL for (int i = 0; i < own; i++) d[i] = sigmoid ? 0 : d[i] - dot;
    if (other) scale *= a->scale;
    for (int32_t j = 0; j < k; j++) {
        float add = (d_gate[j] - shift) * scale;
        UNROLL for (int i = 0; i < own; i++) d[i] += index[j] == i * LANES + lane_of_row() ? add : 0;
    }
    UNROLL for (int i = 0; i < own; i++) {
        int c = i * LANES + lane_of_row();
        if (r < a->rows && c < a->classes) a->d_logits[r * a->classes + c] = sigmoid ? p[i] * (1 - p[i]) * d[i] : p[i] * d[i];
    }
}

KERNEL(router_grad_32, RouterGradArguments) { route_grad(&a, 1, false); }
KERNEL(router_grad_128, RouterGradArguments) { route_grad(&a, 4, false); }
KERNEL(router_grad_512, RouterGradArguments) { route_grad(&a, 16, false); }
KERNEL(router_other_grad_32, RouterGradArguments) { route_grad(&a, 1, true); }
KERNEL(router_other_grad_128, RouterGradArguments) { route_grad(&a, 4, true); }
KERNEL(router_other_grad_512, RouterGradArguments) { route_grad(&a, 16, true); }

#else

#include "backend/gpu/kernel_launch.h"
#include "ops/router/router.h"

LAUNCHERS(router, RouterArguments, router_32, router_128, router_512, router_other_32, router_other_128, router_other_512)
LAUNCHER(router_totals, RouterTotalsArguments)
LAUNCHERS(router_grad, RouterGradArguments, router_grad_32, router_grad_128, router_grad_512, router_other_grad_32, router_other_grad_128,
    router_other_grad_512)

/* Returns which of the kernels fits the router and this number of classes. */
static int form(const RouterSpec *spec, int64_t classes) {
    bool other = spec->sigmoid || spec->groups > 1 || router_scale(spec) != 1;
    return 3 * other + (classes > 32) + (classes > 128);
}

static int64_t router_gpu_workspace(const Graph *graph, const Node *node) {
    TensorId logits = node->in[ROUTER_LOGITS];
    int64_t classes = graph_columns(graph, logits), blocks = divide_up(graph_rows(graph, logits), ROWS);
    return classes * 2 * blocks * (int64_t)sizeof(float);
}

/* Workspace: counts [classes, blocks], sums [classes, blocks]; 4 bytes each. */
GPU_OP(router, router_gpu_workspace) {
    const RouterSpec *spec = call->attributes;
    int64_t rows = call->in_shape[ROUTER_LOGITS][0], classes = call->in_shape[ROUTER_LOGITS][1], blocks = divide_up(rows, ROWS);
    int32_t *count = call->out[ROUTER_COUNT], *counts = call->workspace;
    float *loads = call->out[ROUTER_LOADS], *sums = (float *)(counts + classes * blocks);
    RouterArguments arguments = {.logits = call->in[ROUTER_LOGITS],
        .bias = call->in[ROUTER_BIAS],
        .index = call->out[ROUTER_INDEX],
        .gate = call->out[ROUTER_GATE],
        .probabilities = call->out[ROUTER_PROBABILITIES],
        .counts = count ? counts : NULL,
        .sums = loads ? sums : NULL,
        .rows = (int32_t)rows,
        .blocks = (int32_t)blocks,
        .classes = (int32_t)classes,
        .k = (int32_t)spec->k,
        .renormalise = spec->renormalise,
        .sigmoid = spec->sigmoid,
        .groups = (int32_t)spec->groups,
        .groups_chosen = (int32_t)spec->groups_chosen,
        .group_size = (int32_t)(spec->experts / int_max(spec->groups, 1)),
        .scale = (float)router_scale(spec),
        .epsilon = (float)router_epsilon(spec)};
    launch_router(call->device, form(spec, classes), (LaunchShape){.x = blocks, .threads = THREADS}, &arguments);
    if (!count) return;
    RouterTotalsArguments totals = {.counts = counts,
        .sums = arguments.sums,
        .share = call->in[ROUTER_SHARE],
        .count = count,
        .loads = loads,
        .d_bias = call->out[ROUTER_D_BIAS],
        .rows = (int32_t)rows,
        .blocks = (int32_t)blocks,
        .classes = (int32_t)classes,
        .experts = (int32_t)spec->experts,
        .k = (int32_t)spec->k};
    launch_router_totals(call->device, (LaunchShape){.x = divide_up(classes, GROUPS), .threads = THREADS}, &totals);
}

GPU_OP(router_grad) {
    const RouterSpec *spec = call->attributes;
    int64_t rows = call->in_shape[ROUTER_GRAD_PROBABILITIES][0], classes = call->in_shape[ROUTER_GRAD_PROBABILITIES][1];
    RouterGradArguments arguments = {.d_gate = call->in[ROUTER_GRAD_D_GATE],
        .probabilities = call->in[ROUTER_GRAD_PROBABILITIES],
        .index = call->in[ROUTER_GRAD_INDEX],
        .d_loads = call->in[ROUTER_GRAD_D_LOADS],
        .d_logits = call->out[ROUTER_GRAD_D_LOGITS],
        .rows = (int32_t)rows,
        .classes = (int32_t)classes,
        .k = (int32_t)spec->k,
        .renormalise = spec->renormalise,
        .sigmoid = spec->sigmoid,
        .scale = (float)router_scale(spec),
        .epsilon = (float)router_epsilon(spec)};
    launch_router_grad(call->device, form(spec, classes), (LaunchShape){.x = divide_up(rows, GROUPS), .threads = THREADS}, &arguments);
}

#endif
