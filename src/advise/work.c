/* From nodes to time. Shapes are read from the node's tensors; operations and bytes come from the
 * operation's cost rule. Owns nothing. */
#include "advise/work.h"

#include <math.h>

#include "graph/op.h"
#include "ops/attention/attention.h"
#include "ops/fp8/fp8.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/linear/linear.h"
#include "ops/lora/lora.h"
#include "ops/loss/loss.h"

const char *work_class_name(WorkClass class) {
    static const char *const names[WORK_CLASSES] = {"GEMMs", "head", "GEMMs of experts", "gradients of experts", "attention, forward",
        "attention, backward", "convolutions of CCA", "memory-bound operations"};
    return names[class];
}

/* Return the shapes of a GEMM over tokens and of a weight gradient. The widths are lengths of
 * rows in memory (GemmShape.rows); the number of tokens, the k of a weight gradient, is not. */
static GemmShape of_tokens(int64_t tokens, int64_t to, int64_t from, int64_t count) {
    return (GemmShape){tokens, to, from, count, to | from};
}
static GemmShape of_weights(int64_t out, int64_t in, int64_t tokens, int64_t count) {
    return (GemmShape){out, in, tokens, count, out | in};
}

static GemmShape linear_gemm_shape(const Graph *graph, const Node *node) {
    LinearShape s = linear_node_shape(graph, node);
    if (node->op == OP_linear_grad_weight) return of_weights(s.out, s.in, s.rows, 1);
    return node->op == OP_linear ? of_tokens(s.rows, s.out, s.in, 1) : of_tokens(s.rows, s.in, s.out, 1);
}

/* Returns the shape of the frozen layer's GEMM, because the adapters' GEMMs are thin. */
static GemmShape adapted_gemm_shape(const Graph *graph, const Node *node) {
    LinearShape s = adapted_linear_shape(graph, node);
    return node->op == OP_adapted_linear ? of_tokens(s.rows, s.out, s.in, 1) : of_tokens(s.rows, s.in, s.out, 1);
}

/* Returns one GEMM per expert, with the rows of an even load. */
static GemmShape expert_gemm_shape(const Graph *graph, const Node *node) {
    LinearShape s = grouped_linear_node_shape(graph, node);
    int64_t experts = graph_get(graph, grouped_linear_node_weight(node))->shape[0], tokens = (s.rows + experts - 1) / experts;
    if (node->op == OP_grouped_linear_grad_weight) return of_weights(s.out, s.in, tokens, experts);
    return node->op == OP_grouped_linear ? of_tokens(tokens, s.out, s.in, experts) : of_tokens(tokens, s.in, s.out, experts);
}

/* A [m, k] and B [n, k]; with experts B is [experts, n, k]. */
static GemmShape fp8_gemm_shape(const Graph *graph, const Node *node) {
    const Fp8LinearAttributes *attributes = node->attributes;
    const Tensor *a = graph_get(graph, node->in[FP8_LINEAR_A]), *b = graph_get(graph, node->in[FP8_LINEAR_B]);
    TensorId offset = node->in[FP8_LINEAR_OFFSET];
    int64_t n = b->shape[b->rank - 2], experts = offset ? graph_elements(graph, offset) - 1 : 1;
    int64_t tokens = (attributes->rows + experts - 1) / experts;
    if (node->op == OP_fp8_linear_grad_weight) return of_weights(a->shape[0], n, tokens, experts);
    return of_tokens(tokens, n, b->shape[b->rank - 1], experts);
}

static WorkClass fp8_class(const Node *node) {
    if (!node->in[FP8_LINEAR_OFFSET]) return WORK_GEMM;
    return node->op == OP_fp8_linear_grad_weight ? WORK_EXPERT_WEIGHTS : WORK_EXPERTS;
}

static GemmShape head_gemm_shape(const Graph *graph, const Node *node) {
    TensorId x = node->in[LOSS_X], w = node->in[LOSS_W];
    return of_tokens(graph_rows(graph, x), graph_rows(graph, w), graph_columns(graph, x), 1);
}

int64_t work_head_width(int64_t head_dim) {
    int64_t width = 32;
    while (width < head_dim) width *= 2;
    return width;
}

Work work_of_node(const Graph *graph, const Node *node) {
    Cost cost = op_cost(graph, node);
    const AttentionSpec *spec = node->attributes;
    Work work = {.class = WORK_MEMORY, .flops = cost.flops, .bytes = cost.bytes};
    switch (node->op) {
    case OP_linear:
    case OP_linear_grad_input:
    case OP_linear_grad_weight:
        work.class = WORK_GEMM;
        work.gemm = linear_gemm_shape(graph, node);
        break;
    case OP_adapted_linear:
    case OP_adapted_linear_grad_input:
        work.class = WORK_GEMM;
        work.gemm = adapted_gemm_shape(graph, node);
        break;
    case OP_grouped_linear:
    case OP_grouped_linear_grad_input:
    case OP_grouped_linear_grad_weight:
        work.class = node->op == OP_grouped_linear_grad_weight ? WORK_EXPERT_WEIGHTS : WORK_EXPERTS;
        work.gemm = expert_gemm_shape(graph, node);
        break;
    case OP_fp8_linear:
    case OP_fp8_linear_grad_weight:
        work.class = fp8_class(node);
        work.gemm = fp8_gemm_shape(graph, node);
        work.fp8 = true;
        break;
    case OP_linear_cross_entropy:
    case OP_fp8_linear_cross_entropy:
        work.class = WORK_HEAD;
        work.fp8 = node->op == OP_fp8_linear_cross_entropy;
        work.gemm = head_gemm_shape(graph, node);
        break;
    case OP_attention:
    case OP_attention_ring:
    case OP_attention_grad:
    case OP_attention_ring_grad:
        work.class = node->op == OP_attention || node->op == OP_attention_ring ? WORK_ATTENTION : WORK_ATTENTION_GRADIENT;
        work.length = spec->length;
        work.padding = (double)(work_head_width(spec->heads.qk_dim) + work_head_width(spec->heads.v_dim)) /
                       (double)(spec->heads.qk_dim + spec->heads.v_dim);
        break;
    case OP_cca:
    case OP_cca_grad: work.class = WORK_CONVOLUTION; break;
    }
    return work;
}

bool work_is_collective(const Graph *graph, const Node *node) {
    return op_table[node->op]->communicates && work_of_node(graph, node).class == WORK_MEMORY;
}

static double computing_seconds(const Work *work, const Hardware *hardware, const Measured *measured) {
    const Rates *rates = &hardware->rates;
    double length = (double)work->length, gain = work->fp8 ? hardware->fp8_gain : 1;
    switch (work->class) {
    case WORK_GEMM: return gemm_seconds(&work->gemm, hardware, rates->gemm, measured) / gain;
    case WORK_HEAD: return gemm_seconds(&work->gemm, hardware, rates->head, NULL) * (work->flops / gemm_shape_flops(&work->gemm)) / gain;
    case WORK_EXPERTS: return gemm_seconds(&work->gemm, hardware, rates->experts, NULL) / gain;
    case WORK_EXPERT_WEIGHTS: return gemm_seconds(&work->gemm, hardware, rates->expert_weights, NULL) / gain;
    case WORK_ATTENTION: return work->padding * work->flops / (rates->attention * length / (length + rates->attention_rows));
    case WORK_ATTENTION_GRADIENT:
        return work->padding * work->flops / (rates->attention_gradient * length / (length + rates->attention_gradient_rows));
    case WORK_CONVOLUTION: return work->flops / rates->convolution;
    default: return 0;
    }
}

double work_seconds(const Work *work, const Hardware *hardware, const Measured *measured) {
    return fmax(computing_seconds(work, hardware, measured), work->bytes / hardware->rates.memory) + hardware->rates.launch;
}

WorkTimes work_times(const Graph *graph, const Hardware *hardware, const Measured *measured) {
    WorkTimes times = {0};
    for (int i = 0; i < graph->node_count; i++) {
        const Node *node = &graph->nodes[i];
        if (op_table[node->op]->once || work_is_collective(graph, node)) continue;
        Work work = work_of_node(graph, node);
        double seconds = work_seconds(&work, hardware, measured);
        if (op_runs_once_a_step(graph, node)) {
            times.once += seconds;
            continue;
        }
        times.seconds[work.class] += seconds;
        times.total += seconds;
        if (node->backward) times.backward += seconds;
    }
    return times;
}
