/* Qwen3.5 (the text models): layers with the gated delta rule (arXiv 2412.06464) and, every
 * model.attention_period-th, layers with attention whose output a gate multiplies. Attention has norms of query and
 * key heads, and RoPE on a part of each head. The MLP is dense, or a mixture of experts beside a shared one with a gate.
 * transformers stores gains of norms minus 1, except those of layers with the delta rule. */
#include <string.h>

#include "formats/hf_class.h"
#include "model/layer_spec.h"
#include "ops/convolution/convolution.h"
#include "ops/delta/delta.h"
#include "ops/gate/gate.h"
#include "ops/join/join.h"
#include "ops/rope/rope.h"
#include "ops/slots/slots.h"

/* -- Attention ----------------------------------------------------------------------------------------------------- */

/* Queries and gates are the output of one layer, head after head. */
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

/* transformers draws decay rates from 0 to 16; their logarithms have this mean, and a deviation of 1. */
static const double log_rate = 1.7725887222397812; /* ln 16 - 1 */

static TensorId delta_layer(Builder *b, TensorId x, const AttentionLayer *layer) {
    const ModelConfig *c = b->config;
    Graph *graph = b->graph;
    int64_t ranks = mesh_size(graph->mesh, AXES_TENSOR), heads = c->delta_heads / ranks;
    int64_t keys = c->delta_key_heads * c->delta_key_dim, values = c->delta_heads * c->delta_value_dim;
    const Stacked gates[] = {{"linear_attn.in_proj_z", values, AXES_TENSOR}, {"linear_attn.in_proj_b", c->delta_heads, AXES_TENSOR},
        {"linear_attn.in_proj_a", c->delta_heads, AXES_TENSOR}};
    const Cut cut = {.axes = AXES_TENSOR, .blocks = 3, .rows = {keys, keys, values}};
    Linear input = builder_split_output(b, layer->queries, cut.rows, 3, c->width, c->init_std, false);
    Linear gate = builder_stacked(b, gates, 3, c->width, false);
    Linear output = builder_split_input(b, layer->output, c->width, values, c->init_std, false);
    DeltaInputs in = {.rates = declare_per_head(b, "linear_attn.A_log", log_rate, 1), .positions = b->positions};
    in.bias = declare_per_head(b, "linear_attn.dt_bias", 1, 0);
    /* not PARAMETER_NORM: folders store this gain itself */
    Norm norm = {.kind = NORM_RMS, .epsilon = c->norm_epsilon};
    norm.gain = builder_vector(b, "linear_attn.norm.weight", PARAMETER_BIAS, c->delta_value_dim, 1, NULL);
    TensorId qkv = builder_linear(b, x, &input, LORA_ATTENTION), parts[2];
    DeltaSpec spec = {.key_heads = c->delta_key_heads / ranks,
        .value_heads = heads,
        .key_dim = c->delta_key_dim,
        .value_dim = c->delta_value_dim,
        .sequences = graph_rows(graph, qkv) / b->length};
    DeltaState state = {.slots = b->slots.slots, .lasts = b->slots.lasts};
    int64_t states = b->slots.slots ? b->slot_sizes.slots : 1;
    op_split_columns(graph, builder_linear(b, x, &gate, LORA_ATTENTION), (int64_t[]){values / ranks, 2 * heads}, parts, 2);
    in.x = convolve(b, qkv, spec.sequences, &cut), in.gates = parts[1];
    if (b->mode == MODEL_GENERATE)
        state.state = graph_tensor(
            graph, ARENA_STATE, TYPE_WIDE, 2, (int64_t[]){states * heads * c->delta_key_dim, c->delta_value_dim}, "delta_state");
    TensorId y = op_norm(graph, op_delta(graph, &in, &state, &spec), &norm);
    return builder_linear(b, op_gate(graph, parts[0], y, GATE_SILU), &output, LORA_ATTENTION);
}

/* -- Layers -------------------------------------------------------------------------------------------------------- */

static LayerSpec layer(Builder *b, int index) {
    const ModelConfig *c = b->config;
    LayerSpec spec = llama_names;
    if (model_has_attention(c, index)) {
        spec.attention.rope_table = builder_rope_table(b, c->rope_theta, true);
        spec.attention.build = gated_attention;
    } else
        spec.attention = (AttentionLayer){
            .queries = "linear_attn.in_proj_qkv", .output = "linear_attn.out_proj", .rope_table = TENSOR_NONE, .build = delta_layer};
    if (c->experts)
        spec.mlp = (MlpLayer){.gate = "mlp.shared_expert.gate_proj",
            .up = "mlp.shared_expert.up_proj",
            .down = "mlp.shared_expert.down_proj",
            .router = "mlp.gate",
            .experts = "mlp.experts",
            .shared_gate = "mlp.shared_expert_gate"};
    return spec;
}

static Trunk build(Builder *b) { return builder_llama_decoder(b, layer); }

/* -- Classes of transformers --------------------------------------------------------------------------------------- */

static void read_partial_rope(HfFieldReader *r, const char *name, const json_t *value) { hf_read_rope_part(r, name, value, 0.25); }

static void read_balance_loss(HfFieldReader *r, const char *name, const json_t *value) { hf_read_router_loss(r, name, value, 0.001); }

static const char attention_name[] = "full_attention", delta_name[] = "linear_attention";

/* Without layer_types, every full_attention_interval-th layer has attention. */
static void read_delta_layers(HfFieldReader *r, const char *name, const json_t *types) {
    ModelConfig *c = r->model;
    int64_t first = 0, entries = (int64_t)json_array_size(types);
    c->attention_period = 4;
    if (!types || json_is_null(types)) c->attention_period = hf_integer_or(r, "full_attention_interval", 1, 4);
    else if (entries != c->layers) hf_refuse(r, name, "does not have a name per layer (num_hidden_layers)");
    if (!r->good || !entries) return;
    for (int64_t i = entries - 1; i >= 0; i--) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        bool attends = type && !strcmp(type, attention_name);
        if (!attends && (!type || strcmp(type, delta_name) != 0))
            hf_refuse(r, name, "holds a name other than \"%s\" and \"%s\"", attention_name, delta_name);
        if (attends) first = i + 1;
    }
    c->attention_period = first ? first : c->layers + 1;
    for (int64_t i = 0; i < entries; i++)
        if (model_has_attention(c, i) != !strcmp(json_string_value(json_array_get(types, (size_t)i)), attention_name) && r->good)
            hf_refuse(r, name, "has \"%s\" in layers other than every Nth, which is not supported", attention_name);
}

/* The width of the shared expert is a multiple of that of a routed one. */
static void read_shared_width(HfFieldReader *r, const char *name, const json_t *value) {
    ModelConfig *c = r->model;
    (void)value;
    int64_t width = hf_integer_or(r, name, 1, 512);
    if (!r->good || c->ffn < 1) return;
    if (width % c->ffn) hf_refuse(r, name, "is not a multiple of moe_intermediate_size, which is not supported");
    c->shared_experts = width / c->ffn;
}

static const HfField common_fields[] = {
    INTEGER("vocab_size", vocabulary, "248320"),
    INTEGER("num_attention_heads", heads, "16"),
    INTEGER("head_dim", head_dim, "256"),
    INTEGER("max_position_embeddings", context, "32768"),
    READ("rope_parameters", read_partial_rope),
    FIXED("attention_bias", "false"),
    FIXED("hidden_act", "silu swish"), /* the convolutions have it too */
    INTEGER("linear_num_value_heads", delta_heads, "32"),
    INTEGER("linear_num_key_heads", delta_key_heads, "16"),
    INTEGER("linear_key_head_dim", delta_key_dim, "128"),
    INTEGER("linear_value_head_dim", delta_value_dim, "128"),
    INTEGER("linear_conv_kernel_dim", delta_taps, "4"),
    READ("layer_types", read_delta_layers), /* reads the next field too */
    NO_EFFECT("full_attention_interval"),
    NO_EFFECT("attn_output_gate"), /* other programs read it; this and the next fields are in published folders */
    NO_EFFECT("mamba_ssm_dtype"),
    NO_EFFECT("mtp_num_hidden_layers"),
    NO_EFFECT("mtp_use_dedicated_embeddings"),
    END,
};
static const HfField dense_fields[] = {
    INTEGER("hidden_size", width, "4096"),
    INTEGER("intermediate_size", ffn, "12288"),
    INTEGER("num_hidden_layers", layers, "32"),
    INTEGER("num_key_value_heads", kv_heads, "4"),
    END,
};
static const HfField moe_fields[] = {
    INTEGER("hidden_size", width, "2048"),
    INTEGER("num_hidden_layers", layers, "40"),
    INTEGER("num_key_value_heads", kv_heads, "2"),
    INTEGER("moe_intermediate_size", ffn, "512"),
    NO_EFFECT("intermediate_size"),
    READ("shared_expert_intermediate_size", read_shared_width),
    INTEGER("num_experts_per_tok", experts_per_token, "8"),
    INTEGER("num_experts", experts, "256"),
    READ("router_aux_loss_coef", read_balance_loss),
    NO_EFFECT("output_router_logits"),
    END,
};

static void put(json_t *object, const ModelConfig *c) {
    json_t *types = json_array();
    hf_put_decoder(object, c);
    hf_put_rope(object, c);
    hf_put_rows(object, c, common_fields);
    hf_put_rows(object, c, c->experts ? moe_fields : dense_fields);
    hf_put(object, "partial_rotary_factor", json_real(c->rope_fraction));
    hf_put(object, "layer_types", types);
    for (int64_t i = 0; i < c->layers; i++)
        json_array_append_new(types, json_string(model_has_attention(c, i) ? attention_name : delta_name));
    if (!c->experts) return;
    hf_put_integer(object, "shared_expert_intermediate_size", c->shared_experts * c->ffn);
    hf_put_router(object, c);
}

static void start_moe(ModelConfig *c) { c->renormalise = true; }
static bool fits_moe(const ModelConfig *c) { return c->experts; }

static const HfClass moe = {.model_type = "qwen3_5_moe_text",
    .architecture = "Qwen3_5MoeForCausalLM",
    .tables = {{moe_fields, common_fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}},
    .rotates_part = true,
    .gain_offset = 1,
    .lacks_router_biases = true,
    .router_is_parameter = true,
    .skips_prediction = true,
    .start = start_moe,
    .fits = fits_moe,
    .put = put,
    .list = hf_list_experts,
    .layouts = {HF_STACKED}};
static const HfClass dense = {.model_type = "qwen3_5_text",
    .architecture = "Qwen3_5ForCausalLM",
    .tables = {{dense_fields, common_fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}},
    .rotates_part = true,
    .gain_offset = 1,
    .skips_prediction = true,
    .put = put};
static const HfClass *const classes[] = {&moe, &dense, NULL};

/* -- The rule ------------------------------------------------------------------------------------------------------ */

static bool check(const ModelConfig *c, Error *error) {
    if (c->delta_heads % c->delta_key_heads)
        return error_set(error, ERROR_USAGE, "model.delta_key_heads=%lld does not divide model.delta_heads=%lld: change one of them",
            (long long)c->delta_key_heads, (long long)c->delta_heads);
    if (!c->experts != !c->shared_experts)
        return error_set(error, ERROR_USAGE, "model.experts=%lld, model.shared_experts=%lld: family qwen3_5 has both or none: change one",
            (long long)c->experts, (long long)c->shared_experts);
    if (c->window)
        return error_set(
            error, ERROR_USAGE, "model.window=%lld: attention of family qwen3_5 has no window: set it to 0", (long long)c->window);
    return !c->experts || family_check_gates(c, "family qwen3_5", error);
}

static const char *const settings[] = {"attention_period", "delta_heads", "delta_key_dim", "delta_key_heads", "delta_taps",
    "delta_value_dim", "experts", "padding", "rope_factor", "rope_fraction", "rope_theta", "shared_experts", NULL};

const FamilyRule family_qwen3_5 = {.name = "qwen3_5",
    .settings = settings,
    .repeats_key_heads = true,
    .keeps_states = true,
    .check = check,
    .activation = ACTIVATION_swiglu,
    .layers = "model.layers",
    .classes = classes,
    .build = build};
