/* The router on a CPU. A row has few classes, so the forward pass works on one vector of rows at a
 * time, class by class, on stack buffers. Loads are integers counted per KERNEL_BLOCK of rows; sums
 * of probabilities are added in block order. */
#include "backend/cpu/kernel.h"
#include "ops/router/router.h"

static int64_t router_cpu_workspace(const Graph *graph, const Node *node) {
    int64_t rows = graph_rows(graph, node->in[ROUTER_LOGITS]), classes = graph_columns(graph, node->in[ROUTER_LOGITS]);
    int64_t counts = kernel_blocks(rows) * classes * (int64_t)sizeof(int32_t);
    return kernel_partials_bytes(graph, rows, classes) + counts;
}

enum { LANES = 64 / sizeof(W) };

/* LANES rows side by side: value[c][lane]. */
typedef struct Lanes { W value[ROUTER_MAX_CLASSES][LANES]; } Lanes;

static void lanes_load(Lanes *restrict to, const W *restrict from, int64_t rows, int64_t classes) {
    for (int64_t lane = 0; lane < LANES; lane++)
        for (int64_t c = 0; c < classes; c++) to->value[c][lane] = lane < rows ? from[lane * classes + c] : 0;
}

static void lanes_store(W *restrict to, const Lanes *restrict from, int64_t rows, int64_t classes) {
    for (int64_t lane = 0; lane < rows; lane++)
        for (int64_t c = 0; c < classes; c++) to[lane * classes + c] = from->value[c][lane];
}

static void lanes_softmax(Lanes *restrict p, int64_t classes) {
    W top[LANES], sum[LANES] = {0};
    memcpy(top, p->value[0], sizeof top);
    for (int64_t c = 1; c < classes; c++)
        for (int l = 0; l < LANES; l++) top[l] = p->value[c][l] > top[l] ? p->value[c][l] : top[l];
    for (int64_t c = 0; c < classes; c++)
        for (int l = 0; l < LANES; l++) {
            p->value[c][l] = wide_exp(p->value[c][l] - top[l]);
            sum[l] += p->value[c][l];
        }
    for (int l = 0; l < LANES; l++) sum[l] = 1 / sum[l];
    for (int64_t c = 0; c < classes; c++)
        for (int l = 0; l < LANES; l++) p->value[c][l] *= sum[l];
}

static void lanes_sigmoid(Lanes *restrict p, int64_t classes) {
    for (int64_t c = 0; c < classes; c++)
        for (int l = 0; l < LANES; l++) p->value[c][l] = 1 / (1 + wide_exp(-p->value[c][l]));
}

/* Returns the score of a group: its highest one, or with `two` the sum of its two highest. */
static W group_score(const Lanes *score, int64_t first, int64_t size, int lane, bool two) {
    W best = -(W)INFINITY, second = -(W)INFINITY;
    for (int64_t c = first; c < first + size; c++) {
        W x = score->value[c][lane];
        second = x > best ? best : x > second ? x : second;
        best = x > best ? x : best;
    }
    return two ? best + second : best;
}

/* Sets the scores of classes outside the chosen groups to minus infinity. Of equal groups the first
 * one is chosen. */
static void lanes_limit(Lanes *restrict score, const RouterSpec *spec) {
    int64_t size = spec->experts / spec->groups;
    for (int l = 0; l < LANES; l++) {
        W groups[ROUTER_MAX_GROUPS];
        for (int64_t g = 0; g < spec->groups; g++) groups[g] = group_score(score, g * size, size, l, spec->sigmoid);
        for (int64_t g = 0; g < spec->groups; g++) {
            int64_t above = 0;
            for (int64_t other = 0; other < spec->groups; other++)
                above += groups[other] > groups[g] || (groups[other] == groups[g] && other < g);
            for (int64_t c = g * size; above >= spec->groups_chosen && c < (g + 1) * size; c++) score->value[c][l] = -(W)INFINITY;
        }
    }
}

/* Finds the class of the highest score per lane, the lowest of equals; class 0 if every score is
 * NaN. */
static void lanes_best(int32_t *restrict best, const Lanes *restrict score, int64_t classes) {
    W top[LANES];
    for (int l = 0; l < LANES; l++) {
        top[l] = -(W)INFINITY;
        best[l] = 0;
    }
    for (int64_t c = 0; c < classes; c++)
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            best[l] = score->value[c][l] > top[l] ? (int32_t)c : best[l];
            top[l] = score->value[c][l] > top[l] ? score->value[c][l] : top[l];
        }
}

/* Fills index and gate of up to LANES rows from their probabilities. */
static void lanes_choose(int32_t *restrict index, W *restrict gate, const Lanes *restrict p, const W *restrict bias, int64_t rows,
    int64_t classes, const RouterSpec *spec) {
    Lanes score;
    int32_t best[LANES];
    memcpy(score.value, p->value, (size_t)classes * sizeof *p->value);
    for (int64_t c = 0; c < classes && bias; c++)
        for (int l = 0; l < LANES; l++) score.value[c][l] += bias[c];
    if (spec->groups > 1) lanes_limit(&score, spec);
    for (int64_t j = 0; j < spec->k; j++) {
        lanes_best(best, &score, classes);
        for (int64_t l = 0; l < rows; l++) {
            index[l * spec->k + j] = best[l];
            gate[l * spec->k + j] = p->value[best[l]][l];
            score.value[best[l]][l] = -(W)INFINITY;
        }
    }
    W scale = (W)router_scale(spec);
    for (int64_t l = 0; spec->renormalise && l < rows; l++) {
        W sum = (W)router_epsilon(spec);
        for (int64_t j = 0; j < spec->k; j++) sum += gate[l * spec->k + j];
        for (int64_t j = 0; j < spec->k; j++) gate[l * spec->k + j] /= sum;
    }
    for (int64_t i = 0; scale != 1 && i < rows * spec->k; i++) gate[i] *= scale;
}

/* Computes softmax, choice and gates of rows begin .. end - 1. */
static void route_rows(const OpCall *call, int64_t begin, int64_t end) {
    const RouterSpec *spec = call->attributes;
    const W *logits = call->in[ROUTER_LOGITS];
    int32_t *index = call->out[ROUTER_INDEX];
    W *gate = call->out[ROUTER_GATE], *probabilities = call->out[ROUTER_PROBABILITIES];
    int64_t classes = call->in_shape[ROUTER_LOGITS][1], k = spec->k;
    Lanes p;
    for (int64_t r = begin; r < end; r += LANES) {
        int64_t width = int_min(LANES, end - r);
        lanes_load(&p, logits + r * classes, width, classes);
        (spec->sigmoid ? lanes_sigmoid : lanes_softmax)(&p, classes);
        lanes_store(probabilities + r * classes, &p, width, classes);
        lanes_choose(index + r * k, gate + r * k, &p, call->in[ROUTER_BIAS], width, classes, spec);
    }
}

/* Counts, over rows begin .. end - 1, how often each class was chosen and, for the loads, sums its
 * probabilities. */
static void sum_rows(const OpCall *call, int64_t begin, int64_t end, int32_t *count, W *sum) {
    const int32_t *index = call->out[ROUTER_INDEX];
    const W *probabilities = call->out[ROUTER_PROBABILITIES];
    int64_t classes = call->in_shape[ROUTER_LOGITS][1], k = ((const RouterSpec *)call->attributes)->k;
    memset(count, 0, classes * sizeof *count);
    for (int64_t i = begin * k; i < end * k; i++) count[index[i]]++;
    if (!call->out[ROUTER_LOADS]) return;
    memset(sum, 0, classes * sizeof *sum);
    for (int64_t r = begin; r < end; r++)
        for (int64_t c = 0; c < classes; c++) sum[c] += probabilities[r * classes + c];
}

CPU_OP(router, router_cpu_workspace) {
    const RouterSpec *spec = call->attributes;
    const W *share = call->in[ROUTER_SHARE];
    int32_t *count = call->out[ROUTER_COUNT];
    W *d_bias = call->out[ROUTER_D_BIAS], *loads = call->out[ROUTER_LOADS];
    int64_t rows = call->in_shape[ROUTER_LOGITS][0], classes = call->in_shape[ROUTER_LOGITS][1], blocks = kernel_blocks(rows);
    W *sums = call->workspace;                              /* [blocks, classes] */
    int32_t *counts = (int32_t *)(sums + blocks * classes); /* [blocks, classes] */
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t begin = block * KERNEL_BLOCK, end = int_min(rows, begin + KERNEL_BLOCK);
        route_rows(call, begin, end);
        sum_rows(call, begin, end, counts + block * classes, sums + block * classes);
    }
    if (!count) return;
    memset(count, 0, classes * sizeof *count);
    for (int64_t block = 0; block < blocks; block++)
        for (int64_t c = 0; c < classes; c++) count[c] += counts[block * classes + c];
    for (int64_t e = 0; d_bias && share[0] > 0 && e < spec->experts; e++) d_bias[e] += (W)(count[e] * spec->experts - rows * spec->k);
    if (!loads) return;
    for (int64_t c = 0; c < classes; c++) loads[c] = (W)count[c];
    memset(loads + classes, 0, classes * sizeof *loads);
    kernel_add_partials(loads + classes, sums, blocks, classes);
}

/* With d_p the gradient of the probabilities: d_logits = p * (d_p - <d_p, p>). d_p is `pull` (the
 * gradient of the loads, equal for all rows; NULL: zero) plus one number per chosen class: d_gate,
 * or, with renormalized gates, (d_gate - <d_gate, gate>) / sum of the chosen p. With renormalized
 * gates the dot product with p is zero. */
static void router_row_grad(W *restrict d_logits, const W *restrict d_gate, const W *restrict p, const int32_t *restrict index,
    const W *restrict pull, int64_t classes, const RouterSpec *spec) {
    W chosen = 0, gate_dot = 0, dot = 0, scale = 1, shift = 0, gate_scale = (W)router_scale(spec);
    for (int64_t j = 0; d_gate && j < spec->k; j++) {
        chosen += p[index[j]];
        gate_dot += d_gate[j] * p[index[j]];
    }
    if (d_gate && spec->renormalise) {
        scale = 1 / chosen;
        shift = gate_dot * scale;
    } else {
        dot = gate_dot * gate_scale;
    }
    if (pull) {
#pragma omp simd reduction(+ : dot)
        for (int64_t c = 0; c < classes; c++) dot += pull[c] * p[c];
        for (int64_t c = 0; c < classes; c++) d_logits[c] = p[c] * (pull[c] - dot);
    } else {
        for (int64_t c = 0; c < classes; c++) d_logits[c] = -p[c] * dot;
    }
    for (int64_t j = 0; d_gate && j < spec->k; j++) d_logits[index[j]] += p[index[j]] * (d_gate[j] - shift) * (scale * gate_scale);
}

/* For sigmoids: d_logits = p (1 - p) d_p, with d_p as above, so zero for classes that were not
 * chosen. */
static void sigmoid_row_grad(W *restrict d_logits, const W *restrict d_gate, const W *restrict p, const int32_t *restrict index,
    int64_t classes, const RouterSpec *spec) {
    W chosen = (W)router_epsilon(spec), gate_dot = 0, scale = (W)router_scale(spec), shift = 0;
    for (int64_t j = 0; j < spec->k; j++) {
        chosen += p[index[j]];
        gate_dot += d_gate[j] * p[index[j]];
    }
    if (spec->renormalise) {
        scale /= chosen;
        shift = gate_dot / chosen;
    }
    memset(d_logits, 0, classes * sizeof *d_logits);
    for (int64_t j = 0; j < spec->k; j++) d_logits[index[j]] = p[index[j]] * (1 - p[index[j]]) * (d_gate[j] - shift) * scale;
}

CPU_OP(router_grad) {
    const RouterSpec *spec = call->attributes;
    const W *d_gate = call->in[ROUTER_GRAD_D_GATE], *probabilities = call->in[ROUTER_GRAD_PROBABILITIES];
    const W *d_loads = call->in[ROUTER_GRAD_D_LOADS];
    const int32_t *index = call->in[ROUTER_GRAD_INDEX];
    const int64_t *shape = call->in_shape[ROUTER_GRAD_PROBABILITIES];
    W *d_logits = call->out[ROUTER_GRAD_D_LOGITS];
    int64_t rows = shape[0], classes = shape[1], k = spec->k;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        if (spec->sigmoid)
            sigmoid_row_grad(d_logits + r * classes, d_gate + r * k, probabilities + r * classes, index + r * k, classes, spec);
        else
            router_row_grad(d_logits + r * classes, d_gate ? d_gate + r * k : NULL, probabilities + r * classes, index + r * k,
                d_loads ? d_loads + classes : NULL, classes, spec);
}
