/* Rotary position embedding (arXiv 2104.09864), in the rotate-half layout of GPT-NeoX and Llama, or
 * in the paper's layout, which pairs neighboring channels. In the rotate-half layout channel i of a
 * head is paired with channel i + dimensions / 2, and with angle a = position * frequency[i]
 *     y[i] = x[i] cos a - x[i + dimensions / 2] sin a
 *     y[i + dimensions / 2] = x[i + dimensions / 2] cos a + x[i] sin a
 * Angles are computed in double: at position 100,000 an angle in fp32 is already wrong in the third
 * digit. */
#include "ops/rope/rope.h"

TensorId op_rope_table(Graph *graph, const RopeSpec *spec) {
    assert(spec->dimensions > 0 && spec->dimensions % 2 == 0 && spec->positions > 0 && spec->theta > 0);
    assert(spec->attention_factor >= 0 && spec->length >= 0);
    assert(!(spec->factor > 1) || spec->scaling == ROPE_LINEAR || spec->original_positions > 0);
    assert(!(spec->factor > 1) || spec->scaling != ROPE_LLAMA3 || spec->high_frequency > spec->low_frequency);
    assert(!(spec->factor > 1) || spec->scaling != ROPE_DYNAMIC || spec->dimensions > 2);
    assert(!(spec->factor > 1) || spec->scaling != ROPE_LONGROPE ||
           (spec->short_factors.count == spec->dimensions / 2 && spec->long_factors.count == spec->dimensions / 2));
    assert(!spec->grid || (!(spec->factor > 1) && spec->axes[0] + spec->axes[1] + spec->axes[2] == spec->dimensions));
    for (int i = 0; i < ROPE_AXES; i++) assert(spec->axes[i] % 2 == 0);
    TensorId table = graph_tensor(graph, ARENA_CONSTANT, TYPE_WIDE, 2, (int64_t[]){spec->positions, spec->dimensions}, "rope_table");
    graph_node(graph, OP_rope_table, (Inputs){0}, (Outputs){[ROPE_TABLE_OUT] = table}, spec, sizeof *spec);
    return table;
}

static TensorId append_rope(Graph *graph, TensorId x, TensorId positions, TensorId table, const RopeAttributes *attributes) {
    TensorId y = graph_activation_like(graph, TYPE_COMPUTE, x, attributes->sign > 0 ? "rotated" : "d_qkv");
    graph_node(graph, OP_rope, (Inputs){[ROPE_X] = x, [ROPE_POSITIONS] = positions, [ROPE_TABLE] = table}, (Outputs){[ROPE_Y] = y},
        attributes, sizeof *attributes);
    return y;
}

TensorId op_rope(Graph *graph, TensorId qkv, TensorId positions, TensorId table, const Heads *heads, RopePairs pairs) {
    assert(graph_get(graph, qkv)->type == TYPE_COMPUTE && graph_get(graph, table)->type == TYPE_WIDE);
    assert(graph_columns(graph, qkv) == heads_columns(heads));
    assert(graph_elements(graph, positions) == graph_rows(graph, qkv));
    assert(pairs == ROPE_HALVES || heads->qk_dim % 2 == 0);
    assert(graph_columns(graph, table) % 2 == 0 && graph_columns(graph, table) <= heads->qk_dim);
    return append_rope(graph, qkv, positions, table, &(RopeAttributes){.heads = *heads, .sign = 1, .pairs = pairs});
}

static void rope_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    RopeAttributes attributes = *(const RopeAttributes *)node->attributes;
    attributes.sign = -attributes.sign;
    d_in[ROPE_X] = append_rope(graph, d_out[ROPE_Y], node->in[ROPE_POSITIONS], node->in[ROPE_TABLE], &attributes);
}

static TensorId append_query_scale(Graph *graph, TensorId x, TensorId positions, const QueryScaleAttributes *attributes) {
    TensorId y = graph_activation_like(graph, TYPE_COMPUTE, x, "scaled_queries");
    graph_node(graph, OP_query_scale, (Inputs){[QUERY_SCALE_X] = x, [QUERY_SCALE_POSITIONS] = positions}, (Outputs){[QUERY_SCALE_Y] = y},
        attributes, sizeof *attributes);
    return y;
}

TensorId op_query_scale(Graph *graph, TensorId qkv, TensorId positions, const Heads *heads, const QueryScale *scale) {
    assert(graph_get(graph, qkv)->type == TYPE_COMPUTE && graph_columns(graph, qkv) == heads_columns(heads));
    assert(graph_elements(graph, positions) == graph_rows(graph, qkv) && scale->period > 0);
    return append_query_scale(graph, qkv, positions, &(QueryScaleAttributes){.scale = *scale, .columns = heads_query_columns(heads)});
}

static void query_scale_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    d_in[QUERY_SCALE_X] = append_query_scale(graph, d_out[QUERY_SCALE_Y], node->in[QUERY_SCALE_POSITIONS], node->attributes);
}

static double angles(const Graph *graph, const Node *node) {
    return (double)graph_rows(graph, node->in[ROPE_X]) * graph_columns(graph, node->in[ROPE_TABLE]);
}
static double rotated(const Graph *graph, const Node *node) {
    const RopeAttributes *attributes = node->attributes;
    return angles(graph, node) * (attributes->heads.heads + attributes->heads.kv_heads);
}

/* Counts two multiplications and an addition per rotated channel, and a row of the table per row.
 * In place only rotated channels move; for the amax all channels are read. */
static double rope_flops(const Graph *graph, const Node *node) { return 3 * rotated(graph, node); }
static double rope_bytes(const Graph *graph, const Node *node) {
    double all = (double)graph_elements(graph, node->in[ROPE_X]), moved = op_in_place(graph, node) ? rotated(graph, node) : all;
    double read = op_amax(node) ? all : moved, written = graph_get(graph, node->out[ROPE_Y])->elided ? 0 : moved;
    return (read + written) * precision_bytes(graph->precision, TYPE_COMPUTE) +
           angles(graph, node) * precision_bytes(graph->precision, TYPE_WIDE);
}

const Op op_rule_rope_table = {.name = "rope_table", .once = true};
const Op op_rule_rope = {.name = "rope",
    .class = OP_CLASS_ATTENTION,
    .measured = OPERAND(ROPE_Y),
    .amax = OPERAND(ROPE_AMAX),
    .in_place = OPERAND(ROPE_X),
    .gradient = rope_gradient,
    .flops = rope_flops,
    .bytes = rope_bytes};
const Op op_rule_query_scale = {
    .name = "query_scale", .class = OP_CLASS_ATTENTION, .in_place = OPERAND(QUERY_SCALE_X), .gradient = query_scale_gradient};
