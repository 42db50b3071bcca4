/* The router of a mixture of experts: softmax over the expert classes, the choice of the top k by biased probability,
 * and what balances the experts. The bias only steers the choice (as in arXiv 2408.15664): the gate is the unbiased
 * probability, and the bias's "gradient" is the excess load of each expert, which a controller feeds to AdamW. The
 * auxiliary loss is Switch's (arXiv 2101.03961, equation 4), with f constant in its gradient.
 *
 * A row has few classes, so the forward pass works on one vector of rows at a time, class by class, on stack buffers.
 * Loads are integers counted per block of rows; sums of probabilities are added in block order. */
#include "op/kernel.h"

enum { ROUTER_MAX_CLASSES = 512 };

#ifdef KERNEL_VARIANT

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

/* The class of the highest score per lane, the lower one of equals; class 0 where every score is NaN. */
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
static void lanes_choose(int32_t *restrict index, W *restrict gate, const Lanes *restrict p, const W *restrict bias,
                         int64_t rows, int64_t classes, const RouterSpec *spec) {
    Lanes score;
    int32_t best[LANES];
    for (int64_t c = 0; c < classes; c++)
        for (int l = 0; l < LANES; l++) score.value[c][l] = p->value[c][l] + (bias ? bias[c] : 0);
    for (int64_t j = 0; j < spec->k; j++) {
        lanes_best(best, &score, classes);
        for (int64_t l = 0; l < rows; l++) {
            index[l * spec->k + j] = best[l];
            gate[l * spec->k + j] = p->value[best[l]][l];
            score.value[best[l]][l] = -(W)INFINITY;
        }
    }
    if (!spec->renormalise) return;
    for (int64_t l = 0; l < rows; l++, gate += spec->k) {
        W sum = 0;
        for (int64_t j = 0; j < spec->k; j++) sum += gate[j];
        for (int64_t j = 0; j < spec->k; j++) gate[j] /= sum;
    }
}

/* auxiliary * E * sum over experts of f_e * P_e, from counts and summed probabilities. */
static W auxiliary_loss(const int32_t *count, const W *probability_sum, int64_t rows, const RouterSpec *spec) {
    W dot = 0;
    for (int64_t e = 0; e < spec->experts; e++) dot += (W)count[e] * probability_sum[e];
    return (W)spec->auxiliary * spec->experts * dot / ((W)rows * spec->k * rows);
}

void KERNEL(router)(const OpCall *call) {
    const RouterSpec *spec = call->attributes;
    const W *logits = call->in[0], *bias = call->in[1], *share = call->in[2];
    int32_t *index = call->out[0], *count = call->out[3];
    W *gate = call->out[1], *probabilities = call->out[2], *bias_gradient = call->out[4], *loss = call->out[5];
    int64_t rows = call->in_shape[0][0], classes = call->in_shape[0][1], k = spec->k, blocks = kernel_blocks(rows);
    W *sums = call->workspace;                                    /* [blocks + 1, classes], the total last */
    int32_t *counts = (int32_t *)(sums + (blocks + 1) * classes); /* [blocks, classes] */
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t begin = block * KERNEL_BLOCK, end = kernel_min(rows, begin + KERNEL_BLOCK);
        Lanes p;
        for (int64_t r = begin; r < end; r += LANES) {
            int64_t width = kernel_min(LANES, end - r);
            lanes_load(&p, logits + r * classes, width, classes);
            lanes_softmax(&p, classes);
            lanes_store(probabilities + r * classes, &p, width, classes);
            lanes_choose(index + r * k, gate + r * k, &p, bias, width, classes, spec);
        }
        memset(counts + block * classes, 0, classes * sizeof *counts);
        for (int64_t i = begin * k; i < end * k; i++) counts[block * classes + index[i]]++;
        if (!loss) continue;
        memset(sums + block * classes, 0, classes * sizeof *sums);
        for (int64_t r = begin; r < end; r++)
            for (int64_t c = 0; c < classes; c++) sums[block * classes + c] += probabilities[r * classes + c];
    }
    if (!count) return;
    memset(count, 0, classes * sizeof *count);
    for (int64_t block = 0; block < blocks; block++)
        for (int64_t c = 0; c < classes; c++) count[c] += counts[block * classes + c];
    for (int64_t e = 0; bias_gradient && e < spec->experts; e++)
        bias_gradient[e] += share[0] * ((W)count[e] / (W)(rows * k) - 1 / (W)spec->experts);
    if (!loss) return;
    W *total = sums + blocks * classes;
    memset(total, 0, classes * sizeof *total);
    kernel_add_partials(total, sums, blocks, classes);
    loss[1] += share[0] * auxiliary_loss(count, total, rows, spec);
}

/* With d_p the gradient of the probabilities: d_logits = p * (d_p - <d_p, p>). d_p is `pull` (the auxiliary loss, equal
 * for all rows; NULL: zero) plus one number for each of the chosen classes: d_gate, or, where gates are renormalised,
 * (d_gate - <d_gate, gate>) / sum of the chosen p. The dot product of the latter with p is zero. */
static void router_row_grad(W *restrict d_logits, const W *restrict d_gate, const W *restrict p,
                            const int32_t *restrict index, const W *restrict pull, int64_t classes,
                            const RouterSpec *spec) {
    W chosen = 0, gate_dot = 0, dot = 0, scale = 1, shift = 0;
    for (int64_t j = 0; d_gate && j < spec->k; j++) {
        chosen += p[index[j]];
        gate_dot += d_gate[j] * p[index[j]];
    }
    if (d_gate && spec->renormalise) {
        scale = 1 / chosen;
        shift = gate_dot * scale;
    } else {
        dot = gate_dot;
    }
    if (pull) {
#pragma omp simd reduction(+ : dot)
        for (int64_t c = 0; c < classes; c++) dot += pull[c] * p[c];
        for (int64_t c = 0; c < classes; c++) d_logits[c] = p[c] * (pull[c] - dot);
    } else {
        for (int64_t c = 0; c < classes; c++) d_logits[c] = -p[c] * dot;
    }
    for (int64_t j = 0; d_gate && j < spec->k; j++) d_logits[index[j]] += p[index[j]] * (d_gate[j] - shift) * scale;
}

void KERNEL(router_grad)(const OpCall *call) {
    const RouterSpec *spec = call->attributes;
    const W *d_gate = call->in[0], *probabilities = call->in[1], *share = call->in[4];
    const int32_t *index = call->in[2], *count = call->in[3];
    W *d_logits = call->out[0], pull[ROUTER_MAX_CLASSES] = {0};
    int64_t rows = call->in_shape[1][0], classes = call->in_shape[1][1], k = spec->k;
    if (spec->auxiliary > 0) {
        W scale = share[0] * (W)spec->auxiliary * spec->experts / ((W)rows * k * rows);
        for (int64_t e = 0; e < spec->experts; e++) pull[e] = scale * count[e];
    }
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        router_row_grad(d_logits + r * classes, d_gate ? d_gate + r * k : NULL, probabilities + r * classes,
                        index + r * k, spec->auxiliary > 0 ? pull : NULL, classes, spec);
}

#else

Routing op_router(Graph *graph, TensorId logits, TensorId bias, TensorId share, TensorId loss, const RouterSpec *spec) {
    int64_t rows = graph_rows(graph, logits), classes = spec->experts + spec->skip;
    assert(graph_get(graph, logits)->type == TYPE_WIDE && graph_columns(graph, logits) == classes);
    assert(classes <= ROUTER_MAX_CLASSES && spec->k >= 1 && spec->k <= classes && rows * spec->k <= INT32_MAX);
    assert(bias == TENSOR_NONE || graph_elements(graph, bias) == classes);
    bool balanced = graph->training && graph_is_parameter(graph, bias);
    bool auxiliary = graph->training && spec->auxiliary > 0;
    assert(!auxiliary || graph_elements(graph, loss) >= 2);
    int64_t chosen[] = {rows, spec->k}, all[] = {rows, classes};
    Routing routing = {.index = graph_tensor(graph, ARENA_ACTIVATION, TYPE_INT32, 2, chosen, "index"),
                       .gate = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, chosen, "gate")};
    TensorId probabilities = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, all, "probabilities");
    TensorId count = TENSOR_NONE;
    if (graph->training) count = graph_tensor(graph, ARENA_ACTIVATION, TYPE_INT32, 1, &classes, "count");
    TensorId bias_gradient = balanced ? graph_parameter_gradient(graph, bias) : TENSOR_NONE;
    TensorId out[] = {routing.index, routing.gate, probabilities, count, bias_gradient, auxiliary ? loss : TENSOR_NONE};
    graph_node(graph, OP_router, (TensorId[]){logits, bias, share}, 3, out, 6, spec, sizeof *spec);
    return routing;
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    const RouterSpec *spec = node->attributes;
    TensorId logits = node->in[0], d_gate = d_out[1];
    if (d_gate == TENSOR_NONE && node->out[5] == TENSOR_NONE) return;
    d_in[0] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, graph_get(graph, logits)->shape, "d_logits");
    TensorId in[] = {d_gate, node->out[2], node->out[0], node->out[3], node->in[2]};
    graph_node(graph, OP_router_grad, in, 5, &d_in[0], 1, spec, sizeof *spec);
}

/* Maximum, subtract, exponential (about ten), sum, scale, and one comparison for each of the k. */
static Cost cost(const Graph *graph, const Node *node) {
    const RouterSpec *spec = node->attributes;
    double logits = graph_elements(graph, node->in[0]);
    return (Cost){.flops = (14.0 + spec->k) * logits, .bytes = op_tensor_bytes(graph, node)};
}

static Cost grad_cost(const Graph *graph, const Node *node) {
    return (Cost){.flops = 4.0 * graph_elements(graph, node->out[0]), .bytes = op_tensor_bytes(graph, node)};
}

static int64_t workspace(const Graph *graph, const Node *node) {
    int64_t rows = graph_rows(graph, node->in[0]), classes = graph_columns(graph, node->in[0]);
    int64_t wide = (int64_t)precision_bytes(graph->precision, TYPE_WIDE);
    int64_t counts = kernel_blocks(rows) * classes * (int64_t)sizeof(int32_t);
    return op_partials_bytes(graph, rows, classes) + classes * wide + counts;
}

const Op op_rule_router = {.name = "router", .adds_to = 1 << 4 | 1 << 5, .loss = true, .gradient = gradient,
                           .cost = cost, .workspace = workspace};
const Op op_rule_router_grad = {.name = "router_grad", .cost = grad_cost};

#endif
