/* The prologue of compressed convolutional attention (arXiv 2510.04476, in the form of the ZAYA1 code): raw projections
 * u = [q | k | v] become rotated, normalised, packed qkv in one pass. Work is cut into blocks of rows x heads, which are
 * independent; while a block is in cache it is convolved over time twice (depthwise, then a matrix product per head), mixed with
 * the mean of q and k before convolution, brought to length sqrt(head_dim), scaled (keys) and rotated. Half of the value columns
 * come from the previous token.
 *
 * Training keeps one factor per head and row, and the rotated keys before their temperature (which may be zero, so that they
 * cannot be found again from qkv); with those and qkv itself the backward pass need not repeat the matrix product. */
#include <omp.h>

#include "op/cca.h"

/* A task is a block of rows of one head, or of the values. */
static int64_t task_count(const CcaShape *s) { return cca_blocks(s->rows, CCA_BLOCK) * (s->heads + s->kv_heads + 1); }

static CcaScratch forward_scratch(const CcaShape *s, int64_t compute, int64_t wide) {
    int64_t tall = kernel_min(s->rows, CCA_BLOCK);
    return cca_scratch(s->dim, tall, tall, s->dim, compute, wide);
}

#ifdef KERNEL_VARIANT

/* y += the mean of q and k before convolution, for head `head` of the row. */
static void mix(W *restrict y, const T *restrict u, int64_t head, const CcaShape *s) {
    const T *keys = u + s->heads * s->dim;
    int64_t dim = s->dim;
    if (head < s->heads) {
        const T *q = u + head * dim, *k = keys + head / s->group * dim;
        for (int64_t i = 0; i < dim; i++) y[i] += (widen(q[i]) + widen(k[i])) / 2;
        return;
    }
    const T *k = keys + (head - s->heads) * dim, *q = u + (head - s->heads) * s->group * dim;
    W share = (W)0.5 / s->group;
    for (int64_t i = 0; i < dim; i++) y[i] += widen(k[i]) / 2;
    for (int64_t h = 0; h < s->group; h++, q += dim)
        for (int64_t i = 0; i < dim; i++) y[i] += widen(q[i]) * share;
}

static W sum_of_squares(const W *restrict y, int64_t dim) {
    W sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < dim; i++) sum += y[i] * y[i];
    return sum;
}

/* out = y * scale with the first `rotated` channels turned by the angles of one row of the table. */
static void rotate(T *restrict out, const W *restrict y, W scale, const W *restrict table, int64_t rotated, int64_t dim) {
    int64_t half = rotated / 2;
#pragma omp simd simdlen(8)
    for (int64_t i = 0; i < half; i++) {
        W a = y[i] * scale, b = y[half + i] * scale, c = table[i], s = table[half + i];
        out[i] = narrow(a * c - b * s);
        out[half + i] = narrow(b * c + a * s);
    }
    for (int64_t i = rotated; i < dim; i++) out[i] = narrow(y[i] * scale);
}

/* What the kernel was given; `units` and `scales` are NULL outside training. */
typedef struct Forward {
    CcaShape s;
    CcaRows rows;
    const T *depthwise, *grouped;
    const W *table, *depthwise_bias, *grouped_bias, *temperature;
    int64_t rotated;
    T *qkv, *units;
    W *scales;
} Forward;

/* From the mixed row y of one head to its place in qkv. */
static void finish_row(const Forward *f, W *y, int64_t r, int64_t head) {
    const CcaShape *s = &f->s;
    const W *angles = f->table + f->rows.positions[r] * f->rotated;
    W scale = wide_sqrt(s->dim) / wide_sqrt(sum_of_squares(y, s->dim) + (W)1e-12);
    if (f->scales) f->scales[r * (s->heads + s->kv_heads) + head] = scale;
    T *out = f->qkv + r * s->columns + head * s->dim;
    if (head < s->heads) {
        rotate(out, y, scale, angles, f->rotated, s->dim);
        return;
    }
    int64_t g = head - s->heads;
    if (f->units) rotate(f->units + r * s->values + g * s->dim, y, scale, angles, f->rotated, s->dim);
    rotate(out, y, scale * f->temperature[g], angles, f->rotated, s->dim);
}

static void shift_values(const Forward *f, int64_t r) {
    const CcaShape *s = &f->s;
    int64_t half = s->values / 2;
    T *out = f->qkv + r * s->columns + s->convolved;
    memcpy(out, cca_row(&f->rows, r) + s->convolved, half * sizeof(T));
    if (cca_history(&f->rows, r)) memcpy(out + half, cca_row(&f->rows, r - 1) + s->convolved + half, half * sizeof(T));
    else memset(out + half, 0, half * sizeof(T));
}

static void convolve_block(const Forward *f, int64_t first, int64_t end, int64_t head, char *scratch, const CcaScratch *layout) {
    int64_t dim = f->s.dim, column = head * dim;
    W *taps = (W *)(scratch + layout->taps), *products = (W *)(scratch + layout->products);
    T *pairs = (T *)(scratch + layout->pairs), *zeros = (T *)(scratch + layout->zeros);
    cca_split_taps(taps, f->depthwise + 2 * column, dim);
    memset(zeros, 0, dim * sizeof(T));
    cca_pairs(pairs, &f->rows, column, first, end, taps, f->depthwise_bias + column, dim, (T *)(scratch + layout->rows), zeros);
    gemm_serial(&(Gemm){.transpose_b = true, .input = KERNEL_GEMM_COMPUTE, .output = KERNEL_GEMM_WIDE, .m = end - first, .n = dim,
                        .k = 2 * dim, .a = pairs, .lda = 2 * dim, .b = f->grouped + column * 2 * dim, .ldb = 2 * dim, .c = products,
                        .ldc = dim, .bias = f->grouped_bias + column});
    for (int64_t r = first; r < end; r++) mix(products + (r - first) * dim, cca_row(&f->rows, r), head, &f->s);
    for (int64_t r = first; r < end; r++) {
        if (r + CCA_AHEAD < end) kernel_prefetch(f->qkv + (r + CCA_AHEAD) * f->s.columns + column, dim);
        finish_row(f, products + (r - first) * dim, r, head);
    }
}

/* state = the last two rows of (state, u). */
static void keep_last(T *state, const T *u, const CcaShape *s) {
    if (s->rows == 1) memcpy(state, state + s->columns, s->columns * sizeof(T));
    int64_t kept = kernel_min(s->rows, 2);
    memcpy(state + (2 - kept) * s->columns, u + (s->rows - kept) * s->columns, kept * s->columns * sizeof(T));
}

void KERNEL(cca)(const OpCall *call) {
    CcaShape s = cca_shape(call->attributes, call->in_shape[0][0]);
    Forward f = {.s = s, .rows = {.u = call->in[0], .positions = call->in[1], .columns = s.columns, .state = call->out[3]},
                 .table = call->in[2], .rotated = call->in_shape[2][1], .depthwise = call->in[3], .depthwise_bias = call->in[4],
                 .grouped = call->in[5], .grouped_bias = call->in[6], .temperature = call->in[7],
                 .qkv = call->out[0], .units = call->out[1], .scales = call->out[2]};
    CcaScratch layout = forward_scratch(&s, sizeof(T), sizeof(W));
    int64_t tasks = task_count(&s), next = 0;
#pragma omp parallel if (cca_parallel(&s))
    if (omp_get_thread_num() < cca_lanes(tasks)) {
        char *scratch = (char *)call->workspace + omp_get_thread_num() * layout.bytes;
        for (int64_t task; (task = cca_take(&next)) < tasks;) {
            int64_t head = task % (s.heads + s.kv_heads + 1), first = task / (s.heads + s.kv_heads + 1) * CCA_BLOCK;
            int64_t end = kernel_min(s.rows, first + CCA_BLOCK);
            if (head < s.heads + s.kv_heads) convolve_block(&f, first, end, head, scratch, &layout);
            else for (int64_t r = first; r < end; r++) shift_values(&f, r);
        }
    }
    if (call->out[3]) keep_last(call->out[3], f.rows.u, &s);
}

#else

static void assert_shapes(const Graph *graph, TensorId u, TensorId rope_table, const CcaParameters *parameters, TensorId state,
                          const Heads *heads) {
    CcaShape s = cca_shape(heads, graph_rows(graph, u));
    assert(heads->heads % heads->kv_heads == 0 && s.values % 2 == 0 && graph_columns(graph, u) == s.columns);
    assert(graph_columns(graph, rope_table) % 2 == 0 && graph_columns(graph, rope_table) <= s.dim);
    assert(graph_elements(graph, parameters->depthwise_weight) == s.convolved * 2);
    assert(graph_elements(graph, parameters->depthwise_bias) == s.convolved);
    assert(graph_elements(graph, parameters->grouped_weight) == s.convolved * s.dim * 2);
    assert(graph_elements(graph, parameters->grouped_bias) == s.convolved);
    assert(graph_elements(graph, parameters->temperature) == s.kv_heads);
    assert(state == TENSOR_NONE || (!graph->training && graph_elements(graph, state) == 2 * s.columns));
    (void)s, (void)graph, (void)rope_table, (void)parameters, (void)state;
}

TensorId op_cca(Graph *graph, TensorId u, TensorId positions, TensorId rope_table, const CcaParameters *parameters, TensorId state,
                const Heads *heads) {
    assert_shapes(graph, u, rope_table, parameters, state, heads);
    CcaShape s = cca_shape(heads, graph_rows(graph, u));
    TensorId out[4] = {graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, (int64_t[]){s.rows, s.columns}, "qkv")};
    if (graph->training) {
        out[1] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, (int64_t[]){s.rows, s.values}, "unit_keys");
        out[2] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, (int64_t[]){s.rows, s.heads + s.kv_heads}, "head_scales");
    }
    out[3] = state;
    TensorId in[] = {u, positions, rope_table, parameters->depthwise_weight, parameters->depthwise_bias, parameters->grouped_weight,
                     parameters->grouped_bias, parameters->temperature};
    graph_node(graph, OP_cca, in, 8, out, 4, heads, sizeof *heads);
    return out[0];
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    if (d_out[0] == TENSOR_NONE) return;
    TensorId u = node->in[0];
    d_in[0] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, graph_get(graph, u)->shape, "d_u");
    TensorId in[] = {d_out[0], u, node->in[1], node->in[2], node->in[3], node->in[4], node->in[5], node->in[7],
                     node->out[0], node->out[1], node->out[2]};
    TensorId out[6] = {d_in[0]};
    for (int i = 3; i < 8; i++) out[i - 2] = graph_parameter_gradient(graph, node->in[i]);
    graph_node(graph, OP_cca_grad, in, 11, out, 6, node->attributes, sizeof(Heads));
}

static CcaShape node_shape(const Graph *graph, const Node *node) { return cca_shape(node->attributes, graph_rows(graph, node->in[0])); }

/* The grouped convolution; and per channel the depthwise one (4), the mean (3), the norm (4) and the rotation (3). */
static Cost cost(const Graph *graph, const Node *node) {
    CcaShape s = node_shape(graph, node);
    return (Cost){.flops = s.rows * s.convolved * (4.0 * s.dim + 14), .bytes = op_tensor_bytes(graph, node)};
}

static int64_t workspace(const Graph *graph, const Node *node) {
    CcaShape s = node_shape(graph, node);
    int64_t compute = precision_bytes(graph->precision, TYPE_COMPUTE), wide = precision_bytes(graph->precision, TYPE_WIDE);
    return cca_lanes(task_count(&s)) * forward_scratch(&s, compute, wide).bytes;
}

const Op op_rule_cca = {.name = "cca", .class = OP_CLASS_ATTENTION, .adds_to = 1 << 3, .gradient = gradient, .cost = cost,
                        .workspace = workspace};

#endif
