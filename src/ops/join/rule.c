/* join and split: with G groups, part i having n_i elements in each,
 *     whole[g, n_0 + ... + n_(i - 1) + j] = part_i[g, j],  j < n_i.
 * A group is a row when columns are joined, and a sample when rows are joined. Each is the other's
 * gradient. The whole is cheap to compute and large to keep, so the recompute policies treat it
 * like norms. */
#include "ops/join/join.h"

static JoinAttributes describe_join(const Graph *graph, const TensorId *parts, int count, int64_t groups) {
    JoinAttributes a = {.wide = graph_get(graph, parts[0])->type == TYPE_WIDE, .count = count, .groups = groups};
    assert(count > 0 && count <= JOIN_MOST_PARTS);
    for (int i = 0; i < count; i++) {
        assert(graph_get(graph, parts[i])->type == graph_get(graph, parts[0])->type && graph_elements(graph, parts[i]) % groups == 0);
        a.elements[i] = graph_elements(graph, parts[i]) / groups;
        a.rows[i] = graph_rows(graph, parts[i]);
    }
    return a;
}

static TensorId append_join(Graph *graph, const TensorId *parts, int64_t rows, const JoinAttributes *a) {
    Inputs in = {0};
    int64_t elements = 0;
    for (int i = 0; i < a->count; i++) {
        in[JOIN_PART + i] = parts[i];
        elements += a->elements[i];
    }
    TensorId whole = graph_activation(graph, a->wide ? TYPE_WIDE : TYPE_COMPUTE, rows, elements * a->groups / rows, "joined");
    graph_node(graph, OP_join, in, (Outputs){[JOIN_WHOLE] = whole}, a, sizeof *a);
    return whole;
}

static void append_split(Graph *graph, TensorId whole, TensorId *parts, const JoinAttributes *a) {
    Outputs out = {0};
    for (int i = 0; i < a->count; i++)
        out[SPLIT_PART + i] = parts[i] =
            graph_activation(graph, a->wide ? TYPE_WIDE : TYPE_COMPUTE, a->rows[i], a->elements[i] * a->groups / a->rows[i], "part");
    graph_node(graph, OP_split, (Inputs){[SPLIT_WHOLE] = whole}, out, a, sizeof *a);
}

TensorId op_join_rows(Graph *graph, const TensorId *parts, int count, int64_t samples) {
    JoinAttributes a = describe_join(graph, parts, count, samples);
    int64_t rows = 0;
    for (int i = 0; i < count; i++) rows += a.rows[i];
    return append_join(graph, parts, rows, &a);
}

TensorId op_join_columns(Graph *graph, const TensorId *parts, int count) {
    int64_t rows = graph_rows(graph, parts[0]);
    JoinAttributes a = describe_join(graph, parts, count, rows);
    return append_join(graph, parts, rows, &a);
}

void op_split_heads(Graph *graph, TensorId x, int64_t heads, const int64_t *columns, TensorId *parts, int count) {
    int64_t rows = graph_rows(graph, x), all = 0;
    JoinAttributes a = {.wide = graph_get(graph, x)->type == TYPE_WIDE, .count = count, .groups = rows * heads};
    assert(count <= JOIN_MOST_PARTS);
    for (int i = 0; i < count; i++) {
        all += a.elements[i] = columns[i];
        a.rows[i] = rows;
    }
    assert(all * heads == graph_columns(graph, x));
    append_split(graph, x, parts, &a);
}

void op_split_columns(Graph *graph, TensorId x, const int64_t *columns, TensorId *parts, int count) {
    op_split_heads(graph, x, 1, columns, parts, count);
}

void op_split_rows(Graph *graph, TensorId x, const int64_t *rows, TensorId *parts, int count, int64_t samples) {
    JoinAttributes a = {.wide = graph_get(graph, x)->type == TYPE_WIDE, .count = count, .groups = samples};
    int64_t all = 0;
    assert(count <= JOIN_MOST_PARTS);
    for (int i = 0; i < count; i++) {
        a.elements[i] = rows[i] * graph_columns(graph, x);
        a.rows[i] = rows[i] * samples;
        all += a.rows[i];
    }
    assert(all == graph_rows(graph, x));
    append_split(graph, x, parts, &a);
}

static void join_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    append_split(graph, d_out[JOIN_WHOLE], d_in + JOIN_PART, node->attributes);
}

static void join_split_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    d_in[SPLIT_WHOLE] = append_join(graph, d_out + SPLIT_PART, graph_rows(graph, node->in[SPLIT_WHOLE]), node->attributes);
}

const Op op_rule_join = {.name = "join", .class = OP_CLASS_NORM, .gradient = join_gradient};
const Op op_rule_split = {.name = "split", .gradient = join_split_gradient};
