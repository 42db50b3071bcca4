/* ZAYA1 (arXiv 2605.05365 and 2511.17127, in the form of the released code): per layer compressed
 * convolutional attention (CCA) and a top-1 mixture of experts, both added to an fp32 residual
 * stream with learned scales and biases. The router is a small MLP whose state is averaged over
 * depth; its load-balancing biases are updated from the experts' loads, not by the gradient.
 * Attention in some layers may have a window and its own RoPE base (ZAYA1-74B-preview: every second
 * layer).
 *
 *     h = (embedding[token] + bias) * scale
 *     per layer:  h = add(CCA(norm(h)), h);  h = add(MoE(norm(h)), h)
 *     add(a, h) = (a + b1) * s1 + (h + b2) * s2
 *     logits = norm(h) embedding^T */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/math.h"
#include "base/memory.h"
#include "base/strings.h"
#include "base/json_reader.h"
#include "formats/hf_class.h"
#include "model/layer_spec.h"
#include "ops/activation/activation.h"
#include "ops/add/add.h"
#include "ops/cca/cca.h"
#include "ops/halo/halo.h"
#include "ops/linear/linear.h"
#include "ops/slots/slots.h"

/* Declares the vectors of a residual add. Scales start at 1 and biases at 0: no change. */
static AffineResidual residual_add_zaya(Builder *b, bool after_mlp) {
    static const char *const parts[AFFINE_VECTORS] = {"hidden_states_scale", "hidden_states_bias", "residual_scale", "residual_bias"};
    AffineResidual add;
    char name[96];
    for (int i = 0; i < AFFINE_VECTORS; i++) {
        bool scale = i == BLOCK_SCALE || i == STREAM_SCALE;
        snprintf(name, sizeof name, "%s.%s", after_mlp ? "post_mlp_residual_scale" : "post_attention_residual_scale", parts[i]);
        add.vectors[i] = builder_vector(b, name, scale ? PARAMETER_NORM : PARAMETER_BIAS, b->config->width, scale, NULL);
    }
    return add;
}

/* Declares a convolution over queries and keys of this token and the previous one: weight
 * [channels, inputs, 2]. */
static TensorId declare_convolution(Builder *b, const char *name, int64_t channels, int64_t inputs, const Cut *cut) {
    return builder_parameter(b, name, PARAMETER_CONVOLUTION, 3, (int64_t[]){channels, inputs, 2}, cut);
}

/* Ranks divide the key heads, each with its group of queries. Values come from the current token in
 * the first half of the key heads and from the previous token in the second half. A rank may
 * therefore need rows of only one of the two value matrices. All ranks hold both matrices whole and
 * multiply by the rows of their own heads. Sets the number of delayed columns. */
static void split_values(Builder *b, Linear *input, int64_t values, int64_t *delayed) {
    const Mesh *mesh = b->graph->mesh;
    CutShare share = cut_share(values, mesh_index(mesh, AXES_KEYS), mesh_size(mesh, AXES_KEYS));
    *delayed = int_min(share.count, int_max(0, share.first + share.count - values / 2));
    if (input->parts[1].w) input->rows[1] = share;
}

static TensorId zaya_attention(Builder *b, TensorId x, const AttentionLayer *layer) {
    const ModelConfig *c = b->config;
    int64_t queries = c->heads * c->head_dim, keys = c->kv_heads * c->head_dim, channels = queries + keys;
    const Stacked projections[] = {
        {"self_attn.qkv_proj.q_proj", queries, AXES_KEYS},
        {"self_attn.qkv_proj.k_proj", keys, AXES_KEYS},
        {"self_attn.qkv_proj.v_proj_current", keys / 2, 0},
        {"self_attn.qkv_proj.v_proj_delayed", keys / 2, 0},
    };
    const Cut cut = {.axes = AXES_KEYS, .dimension = 0, .blocks = 2, .rows = {queries, keys}},
              by_head = {.axes = AXES_KEYS, .dimension = 0, .blocks = 1, .rows = {c->kv_heads}};
    CcaSpec spec = {.heads = builder_heads(b)};
    Linear input = builder_stacked(b, projections, 4, c->width, false);
    split_values(b, &input, keys, &spec.delayed);
    CcaParameters cca;
    cca.depthwise_weight = declare_convolution(b, "self_attn.qkv_proj.conv_qk_depthwise.weight", channels, 1, &cut);
    cca.depthwise_bias = builder_bias(b, "self_attn.qkv_proj.conv_qk_depthwise", channels, &cut);
    cca.grouped_weight = declare_convolution(b, "self_attn.qkv_proj.conv_qk_grouped.weight", channels, c->head_dim, &cut);
    cca.grouped_bias = builder_bias(b, "self_attn.qkv_proj.conv_qk_grouped", channels, &cut);
    cca.temperature = builder_vector(b, "self_attn.qk_norm.temp", PARAMETER_NORM, c->kv_heads, 1, &by_head);
    Linear output = builder_split_input(b, "self_attn.o_proj", c->width, queries, c->init_std, false);
    TensorId u = builder_linear(b, x, &input, LORA_ATTENTION); /* [R, queries + 2 keys] */
    HaloSpec halos = {.sequences = graph_rows(b->graph, u) * b->graph->mesh->size[AXIS_CP] / b->length, .rows = CCA_HALO_ROWS};
    int64_t columns = heads_columns(&spec.heads);
    int64_t states = b->slots.slots ? b->slot_sizes.slots : 1;
    TensorId state = TENSOR_NONE;
    if (b->mode == MODEL_GENERATE)
        state = graph_tensor(b->graph, ARENA_STATE, TYPE_COMPUTE, 2, (int64_t[]){states * CCA_HALO_ROWS, columns}, "cca_state");
    TensorId halo = !state           ? op_halo(b->graph, u, &halos)
                    : b->slots.slots ? op_slot_read(b->graph, state, b->slots.slots, CCA_HALO_ROWS)
                                     : state;
    TensorId qkv = op_cca(b->graph, u, b->positions, layer->rope_table, &cca, halo, &spec);
    if (b->slots.slots) op_slot_write(b->graph, state, b->slots.slots, b->slots.lasts, halo, u);
    return builder_linear(b, builder_attention(b, qkv, &layer->scores), &output, LORA_ATTENTION);
}

/* Returns the router's state [R, router_width]. Layers after the first add the scaled state of the
 * previous layer. */
static TensorId router_state(Builder *b, TensorId x) {
    int64_t width = b->config->router_width;
    TensorId state = builder_router_linear(b, x, "mlp.gate.down_proj", width, true, true);
    if (b->router_state != TENSOR_NONE) {
        TensorId scale = builder_vector(b, "mlp.gate.router_states_scale", PARAMETER_NORM, width, 1, NULL);
        state = op_scale_add(b->graph, state, b->router_state, scale);
    }
    return b->router_state = state;
}

/* The router chooses among E + 1 classes; class E skips the experts. */
static TensorId zaya_experts(Builder *b, TensorId x) {
    static const char *const hidden_layers[] = {"mlp.gate.router_mlp.fc1", "mlp.gate.router_mlp.fc2"};
    const ModelConfig *c = b->config;
    Graph *graph = b->graph;
    int64_t width = c->router_width, classes = c->experts + 1;
    TensorId state = router_state(b, x);
    Norm norm = builder_norm(b, "mlp.gate.router_mlp.norm", NORM_RMS, false, width);
    TensorId hidden = op_norm(graph, state, &norm);
    for (int i = 0; i < 2; i++)
        hidden = op_activation(graph, builder_router_linear(b, hidden, hidden_layers[i], width, true, false), ACTIVATION_gelu);
    TensorId logits = builder_router_linear(b, hidden, "mlp.gate.router_mlp.out_proj", classes, false, true); /* [R, E + 1] */
    TensorId biases = builder_vector(b, "mlp.gate.balancing_biases", PARAMETER_BALANCE_BIAS, classes, 0, NULL);
    return builder_experts(b, &(ExpertsSpec){.prefix = "mlp.experts"}, x, builder_router(b, logits, biases, true));
}

static TensorId embed(Builder *b, TensorId table) {
    const ModelConfig *c = b->config;
    TensorId scale = builder_vector(b, "model.input_hidden_states_scale", PARAMETER_NORM, c->width, 1, NULL);
    TensorId bias = builder_vector(b, "model.input_hidden_states_bias", PARAMETER_BIAS, c->width, 0, NULL);
    Lookup lookup = {.ids = b->tokens, .table = table, .entries = c->vocabulary, .padding = c->padding, .bias = bias, .scale = scale};
    return builder_embed(b, &lookup);
}

static LayerSpec layer(Builder *b, int index) {
    const ModelConfig *c = b->config;
    bool slides = model_has_window(c, index);
    return (LayerSpec){.before_attention = "input_layernorm",
        .before_mlp = "post_attention_layernorm",
        .attention = {.rope_table = builder_rope_table(b, model_rope_theta(c, slides), true),
            .scores = {.window = slides ? c->window : 0},
            .build = zaya_attention},
        .mlp = {.build = zaya_experts}};
}

static Trunk build_zaya(Builder *b) {
    static const Decoder decoder = {.embedding = "model.embed_tokens.weight",
        .last_norm = "model.norm",
        .norm = NORM_RMS,
        .residual_add = residual_add_zaya,
        .embed = embed,
        .layer = layer};
    return builder_decoder(b, &decoder);
}

/* -- Class of transformers ----------------------------------------------------------------------------------------- */

static void read_padding(HfFieldReader *r, const char *name, const json_t *value) { hf_read_padding_or(r, name, value, 0); }

static const HfLayerNames zaya_layers = {"hybrid", "hybrid_sliding"};

/* Reads the RoPE base of layers with a window. Their other RoPE settings are those of the other
 * layers. */
static void read_window_theta(HfFieldReader *r, const json_t *sliding, const json_t *full, bool absent) {
    const char *key;
    json_t *value;
    r->model->window_rope_theta = absent ? 1e4 : json_finite_value(json_object_get(sliding, "rope_theta"));
    if (absent) return;
    if (!json_is_object(sliding) || !(r->model->window_rope_theta > 0)) {
        hf_refuse(r, "rope_parameters", "has no rope_theta for \"hybrid_sliding\"");
        return;
    }
    json_object_foreach((json_t *)sliding, key, value) if (strcmp(key, "rope_theta") != 0 && !json_equal(value, json_object_get(full, key)))
        hf_refuse(r, "rope_parameters", "differ between \"hybrid\" and \"hybrid_sliding\" in more than rope_theta");
    if (json_object_size(sliding) != json_object_size(full))
        hf_refuse(r, "rope_parameters", "differ between \"hybrid\" and \"hybrid_sliding\" in more than rope_theta");
}

/* rope_parameters holds complete RoPE settings for each layer type. */
static void read_layers(HfFieldReader *r, const char *name, const json_t *value) {
    ModelConfig *c = r->model;
    const json_t *window = hf_field(r, "sliding_window"), *rope = hf_field(r, "rope_parameters");
    bool types = value && !json_is_null(value);
    int64_t sliding = types ? hf_read_windows(r, name, value, &zaya_layers, 1, false) : 0;
    int64_t given = json_is_null(window) ? 0 : hf_integer_or(r, "sliding_window", 1, 0);
    if (sliding < 0) return;
    bool slides = sliding > 0, mixed = slides && sliding < c->layers;
    const char *type = slides && !mixed ? zaya_layers.sliding : zaya_layers.full;
    if (slides && !given) hf_refuse(r, "sliding_window", "is missing, but layer_types contains \"%s\"", zaya_layers.sliding);
    if (!types) c->window_period = 1;
    c->window = slides ? given : 0;
    bool scaling = hf_field(r, "rope_scaling") != NULL, absent = !scaling && (!rope || json_is_null(rope));
    if (scaling) rope = hf_field(r, "rope_scaling");
    const json_t *of_type = json_object_get(rope, type);
    if (!absent && !json_is_object(of_type)) hf_refuse(r, scaling ? "rope_scaling" : "rope_parameters", "has no object \"%s\"", type);
    else hf_read_rope_object(r, "rope_parameters.", of_type, !absent ? NAN : slides && !mixed ? 1e4 : 5e6, absent ? 0.5 : 1);
    if (mixed && r->good) read_window_theta(r, json_object_get(rope, zaya_layers.sliding), of_type, absent);
}

/* Returns an integer, or the largest entry of a list with one entry per step. Entries are 0 if the
 * field does not apply to the step. */
static int64_t largest(HfFieldReader *r, const char *name) {
    const json_t *value = hf_field(r, name), *item;
    size_t index;
    int64_t most = 0;
    if (json_is_integer(value)) return json_integer_value(value);
    if (!json_is_array(value)) hf_refuse(r, name, value ? "is not an integer" : "is missing");
    json_array_foreach(value, index, item) {
        if (!json_is_integer(item)) hf_refuse(r, name, "contains values other than integers");
        else if (json_integer_value(item) > most) most = json_integer_value(item);
    }
    return most;
}

/* Attention and expert steps alternate: "a", experts, "a", experts ... */
static int64_t read_first_steps(HfFieldReader *r, const json_t *steps) {
    const json_t *step;
    size_t index;
    r->model->experts = json_is_array(steps) ? json_integer_value(json_array_get(steps, 1)) : largest(r, "num_experts");
    if (!json_is_array(steps)) return largest(r, "num_hidden_layers");
    json_array_foreach(steps, index, step) {
        bool attention = json_is_string(step) && !strcmp(json_string_value(step), "a");
        if (index % 2 ? json_integer_value(step) != r->model->experts : !attention)
            hf_refuse(r, "zaya_layers", "does not alternate between \"a\" and the number of experts");
    }
    return (int64_t)json_array_size(steps);
}

static int64_t read_first_of(HfFieldReader *r, const char *const *names) {
    while (names[1] && !hf_field(r, names[0])) names++;
    return largest(r, names[0]);
}

/* ffn_hidden_size counts gate and up rows; num_attention_heads is wrong in folders that have
 * cca_num_q_heads. */
static void read_first_layers(HfFieldReader *r, const char *name, const json_t *value) {
    static const char *const heads[] = {"cca_num_q_heads", "num_attention_heads", NULL}, *const dims[] = {"kv_channels", "head_dim", NULL},
                             *const key_heads[] = {"num_query_groups_list", "num_query_groups", "num_key_value_heads", NULL},
                             *const rows[] = {"ffn_hidden_size_list", "ffn_hidden_size", NULL};
    ModelConfig *c = r->model;
    int64_t steps = read_first_steps(r, value), gate_up = read_first_of(r, rows);
    (void)name;
    if (steps % 2) hf_refuse(r, "num_hidden_layers", "is odd, but attention and experts alternate");
    if (gate_up % 2) hf_refuse(r, "ffn_hidden_size", "is odd, but half of its rows belong to the gate");
    c->layers = steps / 2;
    c->ffn = gate_up / 2;
    c->heads = read_first_of(r, heads);
    c->kv_heads = read_first_of(r, key_heads);
    c->head_dim = read_first_of(r, dims);
    if (hf_field(r, "swa_layers") && largest(r, "swa_layers"))
        hf_refuse(r, "swa_layers", "is set, which smelt supports only in the layout of transformers");
    if (!hf_field(r, "rope_theta")) hf_refuse(r, "rope_theta", "is missing");
    const json_t *fraction = hf_field(r, "partial_rotary_factor");
    hf_read_rope_object(r, "rope_scaling.", hf_field(r, "rope_scaling"), json_finite_value(hf_field(r, "rope_theta")),
        fraction ? json_finite_value(fraction) : 0.5);
}

static const HfField fields[] = {
    INTEGER("vocab_size", vocabulary, "262272"),
    INTEGER("hidden_size", width, "2048"),
    INTEGER("num_hidden_layers", layers, "40"),
    INTEGER("num_attention_heads", heads, "8"),
    INTEGER("num_key_value_heads", kv_heads, "2"),
    INTEGER("head_dim", head_dim, "128"),
    INTEGER("max_position_embeddings", context, "131072"),
    REAL("rms_norm_eps", norm_epsilon, "1e-5"),
    BOOLEAN("tie_word_embeddings", tied, "true"),
    INTEGER("moe_intermediate_size", ffn, "2048"),
    INTEGER("num_experts", experts, "16"),
    FIXED("num_experts_per_tok", "1"),
    INTEGER("router_hidden_size", router_width, "256"),
    FIXED("cca_time0", "2"),
    FIXED("cca_time1", "2"),
    FIXED("attention_bias", "false"),
    FIXED("lm_head_bias", "false"),
    READ("pad_token_id", read_padding),
    READ("layer_types", read_layers), /* reads sliding_window and rope_parameters too */
    NO_EFFECT("sliding_window"),
    NO_EFFECT("rope_parameters"),
    NO_EFFECT("intermediate_size"),
    NO_EFFECT("output_router_logits"),
    END,
};

/* Zyphra's first folders, written before transformers had the class: attention and expert steps
 * alternate. */
static const HfField first_fields[] = {
    INTEGER("vocab_size", vocabulary, "262272"),
    BOOLEAN("tie_word_embeddings", tied, "true"),
    REAL("norm_epsilon", norm_epsilon, "1e-5"),
    INTEGER("zaya_mlp_expansion", router_width, "256"),
    FIXED("moe_router_topk", "1"),
    FIXED("cca_time0", "2"),
    FIXED("cca_time1", "2"),
    FIXED("cca", "true"),
    FIXED("zaya_use_eda", "true"),
    FIXED("zaya_use_mod", "true"),
    FIXED("scale_residual_merge", "true"),
    FIXED("gated_linear_unit", "true"),
    FIXED("residual_in_fp32", "true"),
    FIXED("clamp_temp", "false"),
    FIXED("add_bias_linear", "false"),
    FIXED("attention_bias", "false"),
    FIXED("lm_head_bias", "false"),
    FIXED("sliding_window", "null 0"),
    READ("zaya_layers", read_first_layers), /* reads the next fields too */
    NO_EFFECT("num_experts"),
    NO_EFFECT("num_hidden_layers"),
    NO_EFFECT("cca_num_q_heads"),
    NO_EFFECT("num_attention_heads"),
    NO_EFFECT("num_query_groups_list"),
    NO_EFFECT("num_query_groups"),
    NO_EFFECT("num_key_value_heads"),
    NO_EFFECT("kv_channels"),
    NO_EFFECT("head_dim"),
    NO_EFFECT("ffn_hidden_size"),
    NO_EFFECT("ffn_hidden_size_list"),
    NO_EFFECT("swa_layers"),
    NO_EFFECT("rope_parameters"),
    NO_EFFECT("intermediate_size"),
    NO_EFFECT("rms_norm_eps"),
    END,
};

static const HfTables *zaya_tables(const json_t *object) {
    static const HfTables first = {{first_fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}};
    return json_object_get(object, "zaya_layers") || json_object_get(object, "ffn_hidden_size") ? &first : NULL;
}

static bool check_zaya_class(const ModelConfig *c, const char *architecture, Error *error) {
    if (c->experts_per_token != 1)
        return error_set(
            error, ERROR_USAGE, "model.experts_per_token=%lld must be 1 for %s", (long long)c->experts_per_token, architecture);
    return !c->renormalise || error_set(error, ERROR_USAGE,
                                  "model.renormalise=true does not work for %s, whose gate is the probability of the chosen expert: set "
                                  "model.renormalise=false",
                                  architecture);
}

static void put_zaya(json_t *object, const ModelConfig *c) {
    json_t *by_type = json_object();
    for (int64_t i = 0; i < c->layers; i++) {
        bool slides = model_has_window(c, i);
        const char *type = slides ? zaya_layers.sliding : zaya_layers.full;
        json_t *rope = json_object_get(by_type, type) ? NULL : hf_rope_object(c, slides, true);
        if (rope) hf_put(rope, "partial_rotary_factor", json_real(c->rope_fraction));
        if (rope) hf_put(by_type, type, rope);
    }
    hf_put_decoder(object, c);
    hf_put(object, "sliding_window", c->window ? json_integer(c->window) : json_null());
    hf_put(object, "rope_parameters", by_type);
    hf_put_layer_types(object, c, &zaya_layers);
    hf_put_integer(object, "moe_intermediate_size", c->ffn);
    hf_put_integer(object, "num_experts", c->experts);
    hf_put_integer(object, "num_experts_per_tok", c->experts_per_token);
    hf_put_integer(object, "router_hidden_size", c->router_width);
    hf_put_integer(object, "cca_time0", 2);
    hf_put_integer(object, "cca_time1", 2);
    hf_put(object, "attention_bias", json_false());
    hf_put(object, "lm_head_bias", json_false());
}

/* A tensor that only Zyphra's first folders have. They count attention and experts as separate
 * layers. */
#define FIRST_MARK "model.final_norm.weight"

/* Prefixes of names in layer N, and in layer 2 N + step of Zyphra's first folders; the first match
 * counts. The vectors of a residual add belong to the step after its block. */
static const struct {
    const char *today, *first;
    int step;
} first_names[] = {
    {"input_layernorm.", "input_norm.", 0},
    {"self_attn.qkv_proj.q_proj.", "self_attn.qkv.linear_q.", 0},
    {"self_attn.qkv_proj.k_proj.", "self_attn.qkv.linear_k.", 0},
    {"self_attn.qkv_proj.v_proj_current.", "self_attn.qkv.val_proj1.", 0},
    {"self_attn.qkv_proj.v_proj_delayed.", "self_attn.qkv.val_proj2.", 0},
    {"self_attn.qkv_proj.conv_qk_depthwise.", "self_attn.qkv.conv_qk.0.", 0},
    {"self_attn.qkv_proj.conv_qk_grouped.", "self_attn.qkv.conv_qk.1.", 0},
    {"self_attn.qk_norm.", "self_attn.qkv.", 0},
    {"self_attn.o_proj.", "self_attn.o_proj.", 0},
    {"post_attention_residual_scale.", "res_scale.", 1},
    {"post_attention_layernorm.", "input_norm.", 1},
    {"mlp.gate.router_mlp.norm.", "zaya_block.router.rmsnorm_eda.", 1},
    {"mlp.gate.router_mlp.fc1.", "zaya_block.router.router_mlp.0.", 1},
    {"mlp.gate.router_mlp.fc2.", "zaya_block.router.router_mlp.2.", 1},
    {"mlp.gate.router_mlp.out_proj.", "zaya_block.router.router_mlp.4.", 1},
    {"mlp.gate.", "zaya_block.router.", 1},
    {"post_mlp_residual_scale.", "res_scale.", 2},
};

static char *first_name(const HfParameter *parameter) {
    static const char entry[] = "model.input_hidden_states_";
    const char *name = parameter->p->name, *rest;
    int64_t layers = parameter->config->layers;
    int layer = hf_split_layer(parameter, &rest);
    if (starts_with(name, entry)) return memory_format("model.layers.0.res_scale.hidden_states_%s", name + strlen(entry));
    if (!strcmp(name, "model.norm.weight")) return memory_copy_string(FIRST_MARK);
    for (size_t i = 0; layer >= 0 && i < sizeof first_names / sizeof *first_names; i++) {
        size_t length = strlen(first_names[i].today);
        int64_t step = 2 * (int64_t)layer + first_names[i].step;
        if (strncmp(rest, first_names[i].today, length)) continue;
        if (step == 2 * layers) return memory_format("model.%s%s", first_names[i].first, rest + length);
        return memory_format("model.layers.%lld.%s%s", (long long)step, first_names[i].first, rest + length);
    }
    return memory_copy_string(name);
}

static void list_first(HfTensorList *list, const HfParameter *parameter) {
    const char *rest;
    const Parameter *p = parameter->p;
    int layer = hf_split_layer(parameter, &rest);
    if (!starts_with(rest, "mlp.experts.")) {
        hf_append(list, first_name(parameter), parameter);
        return;
    }
    for (int64_t i = 0; i < p->shape[0]; i++)
        hf_append_part(list,
            memory_format("model.layers.%d.zaya_block.experts.local_experts.%lld.linear_fc%d.weight", 2 * layer + 1, (long long)i,
                ends_with(rest, "down_proj") ? 2 : 1),
            parameter, i, p->shape[0]);
}

static const HfClass class = {.model_type = "zaya",
    .architecture = "ZayaForCausalLM",
    .tables = {{fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}},
    .tables_of = zaya_tables,
    .rotates_part = true,
    .rounds_rope_bounds = true,
    .scales_no_attention = true,
    .check = check_zaya_class,
    .put = put_zaya,
    .layouts = {{FIRST_MARK, list_first}}};
static const HfClass *const classes[] = {&class, NULL};

/* -- The rule ------------------------------------------------------------------------------------------------------ */

static const char *const settings[] = {"experts", "padding", "rope_factor", "rope_fraction", "rope_theta", "router_width", "window_first",
    "window_period", "window_rope_theta", NULL};

static bool check_zaya(const ModelConfig *c, Error *error) {
    if (c->experts == 0)
        return error_set(error, ERROR_USAGE,
            "model.experts=0, but model.family=zaya is a mixture of experts: set model.experts, or a dense family such as "
            "model.family=llama");
    if (c->experts == 512)
        return error_set(error, ERROR_USAGE,
            "model.experts=512, but family zaya has at most 511, because its routers have one class that skips all experts");
    if (c->kv_heads * c->head_dim % 2)
        return error_set(error, ERROR_USAGE,
            "model.kv_heads x model.head_dim = %lld must be even, because half of the values come from the previous token",
            (long long)(c->kv_heads * c->head_dim));
    return c->rope_attention_factor == 1 ||
           error_set(error, ERROR_USAGE, "model.rope_attention_factor=%g must be 1 in family zaya", c->rope_attention_factor);
}

const FamilyRule family_zaya = {.name = "zaya",
    .settings = settings,
    .skips_experts = true,
    .chains_routers = true,
    .looks_back = true,
    .check = check_zaya,
    .activation = ACTIVATION_swiglu,
    .layers = "model.layers",
    .classes = classes,
    .build = build_zaya};
