/* ZAYA1 (arXiv 2605.05365 and 2511.17127, in the form of the released code): per layer compressed convolutional
 * attention (CCA) and a top-1 mixture of experts, both merged into an fp32 residual stream by learned scales and
 * biases. The router is a small MLP whose state is averaged over depth; its load-balancing biases are updated from
 * the experts' loads, not by the gradient. Attention of some layers may see a window, with rotary positions of a base of
 * their own (ZAYA1-74B-preview: every second layer).
 *
 *     h = (embedding[token] + bias) * scale
 *     per layer:  h = merge(CCA(norm(h)), h);  h = merge(MoE(norm(h)), h)
 *     merge(a, h) = (a + b1) * s1 + (h + b2) * s2
 *     logits = norm(h) embedding^T */
#include <stdio.h>

#include "base/math.h"
#include "model/builder.h"
#include "ops/activation/activation.h"
#include "ops/add/add.h"
#include "ops/cca/cca.h"
#include "ops/halo/halo.h"
#include "ops/linear/linear.h"

/* Scales start as 1, biases as 0: no change. */
static AffineMerge merge(Builder *b, bool after_mlp) {
    static const char *const parts[AFFINE_VECTORS] = {"hidden_states_scale", "hidden_states_bias", "residual_scale", "residual_bias"};
    AffineMerge merge;
    char name[96];
    for (int i = 0; i < AFFINE_VECTORS; i++) {
        bool scale = i == BLOCK_SCALE || i == STREAM_SCALE;
        snprintf(name, sizeof name, "%s.%s", after_mlp ? "post_mlp_residual_scale" : "post_attention_residual_scale", parts[i]);
        merge.vectors[i] = builder_vector(b, name, scale ? PARAMETER_NORM : PARAMETER_BIAS, b->config->width, scale, NULL);
    }
    return merge;
}

/* A convolution over queries and keys of this token and the one before: weight [channels, inputs, 2]. */
static TensorId declare_convolution(Builder *b, const char *name, int64_t channels, int64_t inputs, const Cut *cut) {
    return builder_parameter(b, name, PARAMETER_CONVOLUTION, 3, (int64_t[]){channels, inputs, 2}, cut);
}

/* Ranks share out the key heads, each with its group of queries. The values of a head come from the current token in the
 * first half of the key heads and from the one before it in the second, so a rank may need rows of one of two matrices
 * alone: all ranks hold both whole, and multiply by the rows of their own heads. Sets how many of these are delayed. */
static void take_values(Builder *b, Linear *input, int64_t values, int64_t *delayed) {
    const Mesh *mesh = b->graph->mesh;
    CutShare share = cut_share(values, mesh_index(mesh, AXES_KEYS), mesh_size(mesh, AXES_KEYS));
    *delayed = int_min(share.count, int_max(0, share.first + share.count - values / 2));
    if (input->parts[1].w) input->rows[1] = share;
}

static TensorId attention(Builder *b, TensorId x) {
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
    take_values(b, &input, keys, &spec.delayed);
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
    TensorId halo = b->mode == MODEL_GENERATE
                        ? graph_tensor(b->graph, ARENA_STATE, TYPE_COMPUTE, 2, (int64_t[]){CCA_HALO_ROWS, columns}, "cca_state")
                        : op_halo(b->graph, u, &halos);
    TensorId qkv =
        op_cca(b->graph, u, b->positions, model_has_window(c, b->layer) ? b->window_rope_table : b->rope_table, &cca, halo, &spec);
    return builder_linear(b, builder_attention(b, qkv), &output, LORA_ATTENTION);
}

/* The router's state [R, router_width]; the layers after the first add that of the layer before, scaled. */
static TensorId router_state(Builder *b, TensorId x) {
    int64_t width = b->config->router_width;
    TensorId state = builder_router_linear(b, x, "mlp.gate.down_proj", width, true, true);
    if (b->router_state != TENSOR_NONE) {
        TensorId scale = builder_vector(b, "mlp.gate.router_states_scale", PARAMETER_NORM, width, 1, NULL);
        state = op_scale_add(b->graph, state, b->router_state, scale);
    }
    return b->router_state = state;
}

/* Class E of the E + 1 that the router chooses among skips the experts. */
static TensorId experts(Builder *b, TensorId x) {
    static const char *const hidden_layers[] = {"mlp.gate.router_mlp.fc1", "mlp.gate.router_mlp.fc2"};
    const ModelConfig *c = b->config;
    Graph *graph = b->graph;
    int64_t width = c->router_width, classes = c->experts + 1;
    TensorId state = router_state(b, x);
    Norm norm = builder_norm(b, "mlp.gate.router_mlp.norm", NORM_RMS, false, width);
    TensorId hidden = op_norm(graph, state, &norm);
    for (int i = 0; i < 2; i++) hidden = op_gelu(graph, builder_router_linear(b, hidden, hidden_layers[i], width, true, false), GELU_EXACT);
    TensorId logits = builder_router_linear(b, hidden, "mlp.gate.router_mlp.out_proj", classes, false, true); /* [R, E + 1] */
    TensorId biases = builder_vector(b, "mlp.gate.balancing_biases", PARAMETER_BALANCE_BIAS, classes, 0, NULL);
    return builder_experts(b, "mlp.experts", x, builder_router(b, logits, biases, true));
}

static Trunk build(Builder *b) {
    static const Layers layers = {
        "input_layernorm", "post_attention_layernorm", "model.norm", NORM_RMS, .attention = attention, .mlp = experts, .merge = merge};
    const ModelConfig *c = b->config;
    b->rope_table = b->window_rope_table = builder_rope_table(b, c->rope_theta);
    if (c->window_rope_theta > 0 && c->window_rope_theta != c->rope_theta)
        b->window_rope_table = builder_rope_table(b, c->window_rope_theta);
    TensorId embedding = builder_embedding(b, "model.embed_tokens.weight");
    TensorId stream = TENSOR_NONE; /* [R, D] */
    if (embedding) {
        TensorId scale = builder_vector(b, "model.input_hidden_states_scale", PARAMETER_NORM, b->config->width, 1, NULL);
        TensorId bias = builder_vector(b, "model.input_hidden_states_bias", PARAMETER_BIAS, b->config->width, 0, NULL);
        stream = builder_scatter(b, builder_embed(b, b->tokens, embedding, b->config->vocabulary, bias, scale, b->config->padding));
    }
    TensorId head = builder_head(b, "model.embed_tokens.weight", embedding);
    return (Trunk){.normed = builder_layers(b, stream, &layers), .head = head};
}

static const char *const settings[] = {"experts", "padding", "rope_factor", "rope_fraction", "rope_theta", "router_width", "window_first",
    "window_period", "window_rope_theta", NULL};

static bool check(const ModelConfig *c, Error *error) {
    if (c->experts == 0)
        return error_set(error, ERROR_USAGE,
            "model.experts=0: model.family=zaya is a mixture of experts: give model.experts, or a family that may have none, such as "
            "model.family=llama");
    if (c->experts == 512)
        return error_set(error, ERROR_USAGE, "model.experts=512: family zaya has at most 511, one class of its routers is to skip them");
    if (c->kv_heads * c->head_dim % 2)
        return error_set(error, ERROR_USAGE,
            "model.kv_heads * model.head_dim = %lld must be even: half of the values are of the token before",
            (long long)(c->kv_heads * c->head_dim));
    return c->rope_attention_factor == 1 ||
           error_set(error, ERROR_USAGE, "model.rope_attention_factor=%g: family zaya computes with 1 only", c->rope_attention_factor);
}

const FamilyRule family_zaya = {.name = "zaya",
    .settings = settings,
    .skips_experts = true,
    .chains_routers = true,
    .looks_back = true,
    .check = check,
    .build = build};
