/* Rotary position embedding (arXiv 2104.09864) in the rotate-half layout of GPT-NeoX and Llama: channel i of a head is paired with
 * channel i + dimensions / 2. A row of the table holds the cosines of one position, then its sines. The gradient of a rotation is the rotation
 * by the negative angle, so forward and backward are one kernel with a sign. Angles are computed in double: at position 100,000 an
 * angle in fp32 is already wrong in the third digit. */
#include "ops/rope/rope.h"
#include "ops/heads.h"

TensorId op_rope_table(Graph *graph, const RopeSpec *spec) {
    assert(spec->dimensions > 0 && spec->dimensions % 2 == 0 && spec->positions > 0 && spec->theta > 0);
    assert(!(spec->factor > 1) || (spec->high_frequency > spec->low_frequency && spec->original_positions > 0));
    TensorId table = graph_tensor(graph, ARENA_CONSTANT, TYPE_WIDE, 2, (int64_t[]){spec->positions, spec->dimensions}, "rope_table");
    graph_node(graph, OP_rope_table, (TensorId[]){TENSOR_NONE}, 0, &table, 1, spec, sizeof *spec);
    return table;
}

static TensorId rotate(Graph *graph, TensorId x, TensorId positions, TensorId table, const Heads *heads, double sign) {
    TensorId y = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, graph_get(graph, x)->shape, sign > 0 ? "rotated" : "d_qkv");
    RopeAttributes attributes = {.heads = *heads, .sign = sign};
    graph_node(graph, OP_rope, (TensorId[]){x, positions, table}, 3, &y, 1, &attributes, sizeof attributes);
    return y;
}

TensorId op_rope(Graph *graph, TensorId qkv, TensorId positions, TensorId table, const Heads *heads) {
    assert(graph_get(graph, qkv)->type == TYPE_COMPUTE && graph_get(graph, table)->type == TYPE_WIDE);
    assert(graph_columns(graph, qkv) == (heads->heads + 2 * heads->kv_heads) * heads->head_dim);
    assert(graph_elements(graph, positions) == graph_rows(graph, qkv));
    assert(graph_columns(graph, table) % 2 == 0 && graph_columns(graph, table) <= heads->head_dim);
    return rotate(graph, qkv, positions, table, heads, 1);
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    const RopeAttributes *attributes = node->attributes;
    d_in[0] = rotate(graph, d_out[0], node->in[1], node->in[2], &attributes->heads, -attributes->sign);
}

/* Two products and a sum for each rotated channel; of the table, a row per row. In place only what turns is touched. */
static Cost cost(const Graph *graph, const Node *node) {
    const RopeAttributes *attributes = node->attributes;
    double angles = (double)graph_rows(graph, node->in[0]) * graph_columns(graph, node->in[2]);
    double rotated = angles * (attributes->heads.heads + attributes->heads.kv_heads);
    double moved = op_in_place(graph, node) ? rotated : (double)graph_elements(graph, node->in[0]);
    return (Cost){.flops = 3 * rotated,
        .bytes = 2 * moved * precision_bytes(graph->precision, TYPE_COMPUTE) + angles * precision_bytes(graph->precision, TYPE_WIDE)};
}

const Op op_rule_rope_table = {.name = "rope_table", .once = true};

const Op op_rule_rope = {.name = "rope", .class = OP_CLASS_ATTENTION, .in_place = OPERAND(0), .gradient = gradient, .cost = cost};
