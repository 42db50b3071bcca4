/* Norms of queries and keys inside packed qkv rows: of each head (Qwen3), or of all heads together (MPT's qk_ln). The columns of one norm are a group;
 * all groups of queries share a gain, and those of keys theirs. A group is widened into scratch of its block of rows and goes through the same row functions as
 * every other norm (norm.h). Values are copied. */
#include "op/qk_norm.h"

#ifdef KERNEL_VARIANT

/* One part of one row; `buffer` holds a group. */
static void part_row(const OpCall *call, int part, int64_t row, W *restrict buffer) {
    const QkNormAttributes *attributes = call->attributes;
    int64_t columns = call->in_shape[IN_QKV][1], group = call->in_shape[IN_QUERY_GAIN + 2 * part][0];
    int64_t begin = row * columns + part_begin(&attributes->heads, part), width = part_columns(&attributes->heads, part);
    int64_t kept = norm_statistics(attributes->norm[part].kind);
    const T *x = (const T *)call->in[IN_QKV] + begin;
    T *y = (T *)call->out[OUT_QKV] + begin;
    W *statistics = (W *)call->out[OUT_QUERY_STATISTICS + part] + row * (width / group) * kept;
    for (int64_t at = 0; at < width; at += group, statistics += kept) {
        for (int64_t j = 0; j < group; j++) buffer[j] = widen(x[at + j]);
        norm_row(&attributes->norm[part], y + at, statistics, buffer, call->in[IN_QUERY_GAIN + 2 * part], call->in[IN_QUERY_BIAS + 2 * part], group);
    }
}

void KERNEL(qk_norm)(const OpCall *call) {
    const QkNormAttributes *attributes = call->attributes;
    int64_t rows = call->in_shape[IN_QKV][0], columns = call->in_shape[IN_QKV][1];
    int64_t values = part_begin(&attributes->heads, 1) + part_columns(&attributes->heads, 1);
    int64_t width = kernel_max(call->in_shape[IN_QUERY_GAIN][0], call->in_shape[IN_KEY_GAIN][0]);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < kernel_blocks(rows); block++)
        for (int64_t r = block * KERNEL_BLOCK; r < kernel_min(rows, (block + 1) * KERNEL_BLOCK); r++) {
            for (int part = 0; part < 2; part++) part_row(call, part, r, (W *)call->workspace + block * width);
            memcpy((T *)call->out[OUT_QKV] + r * columns + values, (const T *)call->in[IN_QKV] + r * columns + values, (columns - values) * sizeof(T));
        }
}

/* Sums of a block for one part. */
typedef struct PartSums { W *gain, *bias; } PartSums;

/* `buffer` holds two groups: x, and the gradient. */
static void part_row_grad(const OpCall *call, int part, int64_t row, W *restrict buffer, const PartSums *sums) {
    const QkNormAttributes *attributes = call->attributes;
    int64_t columns = call->in_shape[GRAD_QKV][1], group = call->in_shape[GRAD_QUERY_GAIN + part][0];
    int64_t begin = row * columns + part_begin(&attributes->heads, part), width = part_columns(&attributes->heads, part);
    int64_t kept = norm_statistics(attributes->norm[part].kind);
    const T *dy = (const T *)call->in[GRAD_D_QKV] + begin, *x = (const T *)call->in[GRAD_QKV] + begin;
    T *dx = (T *)call->out[GRAD_OUT_QKV] + begin;
    const W *statistics = (const W *)call->in[GRAD_QUERY_STATISTICS + part] + row * (width / group) * kept;
    W *restrict wide = buffer + group;
    for (int64_t at = 0; at < width; at += group, statistics += kept) {
        for (int64_t j = 0; j < group; j++) {
            buffer[j] = widen(x[at + j]);
            wide[j] = 0;
        }
        norm_row_grad(attributes->norm[part].kind, wide, sums->gain, sums->bias, dy + at, buffer, call->in[GRAD_QUERY_GAIN + part], statistics, group);
        for (int64_t j = 0; j < group; j++) dx[at + j] = narrow(wide[j]);
    }
}

/* Scratch: of each part the sums of all blocks, gain then bias; then two groups for each block. */
void KERNEL(qk_norm_grad)(const OpCall *call) {
    const QkNormAttributes *attributes = call->attributes;
    int64_t rows = call->in_shape[GRAD_QKV][0], columns = call->in_shape[GRAD_QKV][1], blocks = kernel_blocks(rows);
    int64_t values = part_begin(&attributes->heads, 1) + part_columns(&attributes->heads, 1);
    int64_t groups[2] = {call->in_shape[GRAD_QUERY_GAIN][0], call->in_shape[GRAD_KEY_GAIN][0]}, width = kernel_max(groups[0], groups[1]);
    PartSums all[2] = {{.gain = call->workspace}};
    all[0].bias = all[0].gain + blocks * groups[0];
    all[1].gain = all[0].bias + blocks * groups[0];
    all[1].bias = all[1].gain + blocks * groups[1];
    W *buffers = all[1].bias + blocks * groups[1];
    memset(call->workspace, 0, (buffers - (W *)call->workspace) * sizeof(W));
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++)
        for (int64_t r = block * KERNEL_BLOCK; r < kernel_min(rows, (block + 1) * KERNEL_BLOCK); r++) {
            for (int part = 0; part < 2; part++) {
                PartSums sums = {.gain = all[part].gain + block * groups[part]};
                if (call->out[GRAD_OUT_QUERY_BIAS + 2 * part]) sums.bias = all[part].bias + block * groups[part];
                part_row_grad(call, part, r, buffers + block * 2 * width, &sums);
            }
            memcpy((T *)call->out[GRAD_OUT_QKV] + r * columns + values, (const T *)call->in[GRAD_D_QKV] + r * columns + values,
                   (columns - values) * sizeof(T));
        }
    for (int part = 0; part < 2; part++) {
        W *d_bias = call->out[GRAD_OUT_QUERY_BIAS + 2 * part];
        kernel_add_partials(call->out[GRAD_OUT_QUERY_GAIN + 2 * part], all[part].gain, blocks, groups[part]);
        if (d_bias) kernel_add_partials(d_bias, all[part].bias, blocks, groups[part]);
    }
}

#else

static void assert_norm(const Graph *graph, const Norm *norm, int64_t columns) {
    int64_t group = graph_elements(graph, norm->gain);
    assert(group > 0 && columns % group == 0);
    assert(norm->bias == TENSOR_NONE || (norm->kind == NORM_LAYER && graph_elements(graph, norm->bias) == group));
    (void)group;
    (void)columns;
}

static TensorId append_statistics(Graph *graph, const Norm *norm, int64_t rows, int64_t columns) {
    int64_t shape[] = {rows, columns / graph_elements(graph, norm->gain), norm_statistics(norm->kind)};
    return graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 3, shape, "statistics");
}

TensorId op_qk_norm(Graph *graph, TensorId qkv, const Norm *query, const Norm *key, const Heads *heads) {
    int64_t shape[] = {graph_rows(graph, qkv), graph_columns(graph, qkv)};
    assert(graph_get(graph, qkv)->type == TYPE_COMPUTE && shape[1] == (heads->heads + 2 * heads->kv_heads) * heads->head_dim);
    assert_norm(graph, query, part_columns(heads, 0));
    assert_norm(graph, key, part_columns(heads, 1));
    TensorId out[] = {graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "qk_normed"),
                      append_statistics(graph, query, shape[0], part_columns(heads, 0)), append_statistics(graph, key, shape[0], part_columns(heads, 1))};
    QkNormAttributes attributes = {.norm = {{query->kind, query->epsilon}, {key->kind, key->epsilon}}, .heads = *heads};
    graph_node(graph, OP_qk_norm, (TensorId[]){qkv, query->gain, query->bias, key->gain, key->bias}, 5, out, 3, &attributes, sizeof attributes);
    return out[0];
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId in[] = {d_out[0], node->in[IN_QKV], node->in[IN_QUERY_GAIN], node->in[IN_KEY_GAIN], node->out[OUT_QUERY_STATISTICS],
                     node->out[OUT_KEY_STATISTICS]};
    int64_t shape[] = {graph_rows(graph, node->in[IN_QKV]), graph_columns(graph, node->in[IN_QKV])};
    TensorId out[5] = {d_in[0] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "d_qkv")};
    for (int i = IN_QUERY_GAIN; i <= IN_KEY_BIAS; i++) out[i] = graph_parameter_gradient(graph, node->in[i]);
    graph_node(graph, OP_qk_norm_grad, in, 6, out, 5, node->attributes, sizeof(QkNormAttributes));
}

/* At most six operations for every column of queries and keys; twice that on the way back. */
static Cost cost(const Graph *graph, const Node *node) {
    const QkNormAttributes *attributes = node->attributes;
    double columns = part_columns(&attributes->heads, 0) + part_columns(&attributes->heads, 1);
    return (Cost){.flops = (node->op == OP_qk_norm ? 6 : 12) * columns * graph_rows(graph, node->in[0]), .bytes = op_tensor_bytes(graph, node)};
}

static int64_t workspace(const Graph *graph, const Node *node) {
    int64_t query = graph_elements(graph, node->in[IN_QUERY_GAIN]), key = graph_elements(graph, node->in[IN_KEY_GAIN]);
    return op_partials_bytes(graph, graph_rows(graph, node->in[IN_QKV]), kernel_max(query, key));
}

static int64_t grad_workspace(const Graph *graph, const Node *node) {
    int64_t query = graph_elements(graph, node->in[GRAD_QUERY_GAIN]), key = graph_elements(graph, node->in[GRAD_KEY_GAIN]);
    return op_partials_bytes(graph, graph_rows(graph, node->in[GRAD_QKV]), 2 * (query + key + kernel_max(query, key)));
}

const Op op_rule_qk_norm = {.name = "qk_norm", .class = OP_CLASS_NORM, .gradient = gradient, .cost = cost, .workspace = workspace};
const Op op_rule_qk_norm_grad = {.name = "qk_norm_grad", .adds_to = 0x1e, .cost = cost, .workspace = grad_workspace};

#endif
