/* Layers of Qwen3-Next and Qwen3.5: attention with a gate on its output; and a short convolution, then the gated delta rule
 * (arXiv 2412.06464), then a norm and a gate. Families use them as AttentionLayer.build. Owns nothing. */
#include "model/layer_spec.h"
#include "ops/convolution/convolution.h"
#include "ops/delta/delta.h"
#include "ops/gate/gate.h"
#include "ops/join/join.h"
#include "ops/rope/rope.h"
#include "ops/slots/slots.h"

/* -- Attention ----------------------------------------------------------------------------------------------------- */

/* One linear layer computes queries and gates; its output has a query and a gate per head. */
static TensorId gated_attention(Builder *b, TensorId x, const AttentionLayer *layer) {
    const ModelConfig *c = b->config;
    Heads heads = builder_heads(b);
    int64_t keys = c->kv_heads * c->head_dim, queries = heads_query_columns(&heads);
    const Stacked projections[] = {
        {layer->queries, 2 * c->heads * c->head_dim, AXES_TENSOR}, {layer->keys, keys, AXES_KEYS}, {layer->values, keys, AXES_KEYS}};
    Linear input = builder_stacked(b, projections, 3, c->width, false);
    Linear output = builder_split_input(b, layer->output, c->width, c->heads * c->head_dim, c->init_std, false);
    Norm query = builder_norm(b, "self_attn.q_norm", NORM_RMS, false, c->head_dim);
    Norm key = builder_norm(b, "self_attn.k_norm", NORM_RMS, false, c->head_dim);
    TensorId packed = builder_linear(b, x, &input, LORA_ATTENTION), parts[2], halves[2];
    op_split_columns(b->graph, packed, (int64_t[]){2 * queries, heads_columns(&heads) - queries}, parts, 2);
    op_split_heads(b->graph, parts[0], heads.heads, (int64_t[]){c->head_dim, c->head_dim}, halves, 2);
    TensorId qkv = op_join_columns(b->graph, (TensorId[]){halves[0], parts[1]}, 2);
    qkv = op_qk_norm(b->graph, qkv, &query, &key, &heads);
    qkv = op_rope(b->graph, qkv, b->positions, layer->rope_table, &heads, ROPE_HALVES);
    TensorId y = op_gate(b->graph, halves[1], builder_attention(b, qkv, &layer->scores), GATE_SIGMOID);
    return builder_linear(b, y, &output, LORA_ATTENTION);
}

/* -- The gated delta rule ------------------------------------------------------------------------------------------ */

/* The convolution over the projections of the rank's heads, with the state of generation. */
static TensorId convolve(Builder *b, TensorId x, int64_t sequences, const Cut *cut) {
    const ModelConfig *c = b->config;
    int64_t channels = 0, past = c->delta_taps - 1, states = b->slots.slots ? b->slot_sizes.slots : 1;
    for (int i = 0; i < cut->blocks; i++) channels += cut->rows[i];
    TensorId weight =
        builder_parameter(b, "linear_attn.conv1d.weight", PARAMETER_CONVOLUTION, 3, (int64_t[]){channels, 1, c->delta_taps}, cut);
    if (b->mode != MODEL_GENERATE) return op_convolution(b->graph, x, weight, b->positions, TENSOR_NONE, sequences);
    int64_t shape[] = {states * past, graph_columns(b->graph, x)};
    TensorId state = graph_tensor(b->graph, ARENA_STATE, TYPE_COMPUTE, 2, shape, "convolution_state");
    if (!b->slots.slots) return op_convolution(b->graph, x, weight, b->positions, state, sequences);
    TensorId history = op_slot_read(b->graph, state, b->slots.slots, past);
    TensorId y = op_convolution(b->graph, x, weight, b->positions, history, sequences);
    op_slot_write(b->graph, state, b->slots.slots, b->slots.lasts, history, x);
    return y;
}

/* Declares a vector with a number per value head. */
static TensorId declare_per_head(Builder *b, const char *name, double value, double deviation) {
    int64_t heads = b->config->delta_heads;
    TensorId vector = builder_vector(b, name, PARAMETER_BIAS, heads, value, &(Cut){.axes = AXES_TENSOR, .blocks = 1, .rows = {heads}});
    b->graph->parameters[b->graph->parameter_count - 1].init_std = deviation;
    return vector;
}

/* transformers draws decay rates uniformly from 0 to 16. Their logarithms have this mean and a standard deviation of 1. */
static const double log_rate = 1.7725887222397812; /* ln 16 - 1 */

/* The projections of the layer's input: queries, keys and values before the convolution; the output gate; the gates of the rule
 * (DELTA_GATES). */
typedef struct DeltaProjections { TensorId qkv, output_gate, gates; } DeltaProjections;

static DeltaProjections project_separately(Builder *b, TensorId x, const AttentionLayer *layer, const Cut *cut) {
    const ModelConfig *c = b->config;
    int64_t ranks = mesh_size(b->graph->mesh, AXES_TENSOR), values = c->delta_heads * c->delta_value_dim;
    const Stacked gates[] = {{"linear_attn.in_proj_z", values, AXES_TENSOR}, {"linear_attn.in_proj_b", c->delta_heads, AXES_TENSOR},
        {"linear_attn.in_proj_a", c->delta_heads, AXES_TENSOR}};
    Linear input = builder_split_output(b, layer->queries, cut->rows, 3, c->width, c->init_std, false);
    Linear gate = builder_stacked(b, gates, 3, c->width, false);
    TensorId parts[2], qkv = builder_linear(b, x, &input, LORA_ATTENTION);
    op_split_columns(
        b->graph, builder_linear(b, x, &gate, LORA_ATTENTION), (int64_t[]){values / ranks, 2 * c->delta_heads / ranks}, parts, 2);
    return (DeltaProjections){.qkv = qkv, .output_gate = parts[0], .gates = parts[1]};
}

/* The rows of both matrices are grouped by key head. The first matrix has the head's query, its key, and the values and output
 * gates of its value heads. The second has both gates of the rule for these value heads. */
static DeltaProjections project_heads(Builder *b, TensorId x, const AttentionLayer *layer) {
    const ModelConfig *c = b->config;
    int64_t heads = c->delta_key_heads, group = c->delta_heads / heads, values = group * c->delta_value_dim;
    int64_t own = heads / mesh_size(b->graph->mesh, AXES_TENSOR), columns = 2 * c->delta_key_dim + 2 * values;
    const Stacked projections[] = {{layer->queries, heads * columns, AXES_TENSOR}, {layer->keys, 2 * c->delta_heads, AXES_TENSOR}};
    Linear input = builder_stacked(b, projections, 2, c->width, false);
    TensorId both[2], inputs[4], gates[2];
    op_split_columns(b->graph, builder_linear(b, x, &input, LORA_ATTENTION), (int64_t[]){own * columns, 2 * own * group}, both, 2);
    op_split_heads(b->graph, both[0], own, (int64_t[]){c->delta_key_dim, c->delta_key_dim, values, values}, inputs, 4);
    op_split_heads(b->graph, both[1], own, (int64_t[]){group, group}, gates, 2);
    return (DeltaProjections){
        .qkv = op_join_columns(b->graph, inputs, 3), .output_gate = inputs[3], .gates = op_join_columns(b->graph, gates, 2)};
}

static TensorId delta(Builder *b, TensorId x, const AttentionLayer *layer) {
    const ModelConfig *c = b->config;
    Graph *graph = b->graph;
    int64_t ranks = mesh_size(graph->mesh, AXES_TENSOR), heads = c->delta_heads / ranks;
    int64_t keys = c->delta_key_heads * c->delta_key_dim, values = c->delta_heads * c->delta_value_dim;
    const Cut cut = {.axes = AXES_TENSOR, .blocks = 3, .rows = {keys, keys, values}};
    DeltaProjections projections = layer->keys ? project_heads(b, x, layer) : project_separately(b, x, layer, &cut);
    Linear output = builder_split_input(b, layer->output, c->width, values, c->init_std, false);
    DeltaInputs in = {
        .gates = projections.gates, .rates = declare_per_head(b, "linear_attn.A_log", log_rate, 1), .positions = b->positions};
    in.bias = declare_per_head(b, "linear_attn.dt_bias", 1, 0);
    /* not PARAMETER_NORM: folders store this gain itself */
    Norm norm = {.kind = NORM_RMS, .epsilon = c->norm_epsilon};
    norm.gain = builder_vector(b, "linear_attn.norm.weight", PARAMETER_BIAS, c->delta_value_dim, 1, NULL);
    DeltaSpec spec = {.key_heads = c->delta_key_heads / ranks,
        .value_heads = heads,
        .key_dim = c->delta_key_dim,
        .value_dim = c->delta_value_dim,
        .sequences = graph_rows(graph, projections.qkv) / b->length};
    DeltaState state = {.slots = b->slots.slots, .lasts = b->slots.lasts};
    int64_t states = b->slots.slots ? b->slot_sizes.slots : 1;
    in.x = convolve(b, projections.qkv, spec.sequences, &cut);
    if (b->mode == MODEL_GENERATE)
        state.state = graph_tensor(
            graph, ARENA_STATE, TYPE_WIDE, 2, (int64_t[]){states * heads * c->delta_key_dim, c->delta_value_dim}, "delta_state");
    TensorId y = op_norm(graph, op_delta(graph, &in, &state, &spec), &norm);
    return builder_linear(b, op_gate(graph, projections.output_gate, y, GATE_SILU), &output, LORA_ATTENTION);
}

LayerSpec builder_delta_layer(Builder *b, int index) {
    LayerSpec spec = llama_names;
    if (model_has_attention(b->config, index)) {
        spec.attention.rope_table = builder_rope_table(b, b->config->rope_theta, true);
        spec.attention.build = gated_attention;
    } else
        spec.attention = (AttentionLayer){
            .queries = "linear_attn.in_proj_qkv", .output = "linear_attn.out_proj", .rope_table = TENSOR_NONE, .build = delta};
    return spec;
}
