/* ZAYA1 (arXiv 2605.05365 and 2511.17127, in the form of the released code): per layer compressed convolutional attention and a top-1
 * mixture of experts, both merged into an fp32 residual stream by learned scales and biases. The router is a small MLP whose state is
 * averaged over depth; its balancing biases are steered by a controller, not by the loss.
 *
 *     h = (embedding[token] + bias) * scale
 *     per layer:  h = merge(CCA(norm(h)), h);  h = merge(MoE(norm(h)), h)        merge(a, h) = (a + b1) * s1 + (h + b2) * s2
 *     logits = norm(h) embedding^T
 * Each norm is fused with the merge before it, so the stream is read and written once per block. */
#include <stdio.h>

#include "model/model_internal.h"
#include "ops/activation/activation.h"
#include "ops/add/add.h"
#include "ops/cca/cca.h"
#include "ops/embed/embed.h"
#include "ops/heads.h"
#include "ops/linear/linear.h"
#include "ops/norm/norm.h"
#include "ops/router/router.h"

static ResidualNorm merge(Builder *b, const char *name, TensorId block, TensorId stream, const Norm *next) {
    static const char *const parts[] = {"hidden_states_scale", "hidden_states_bias", "residual_scale", "residual_bias"};
    TensorId affine[4];
    char full[96];
    for (int i = 0; i < 4; i++) {
        snprintf(full, sizeof full, "%s.%s", name, parts[i]);
        affine[i] = builder_vector(b, full, i % 2 ? PARAMETER_BIAS : PARAMETER_NORM, b->config->width, i % 2 ? 0 : 1);
    }
    AffineMerge merge = {.block_scale = affine[0], .block_bias = affine[1], .stream_scale = affine[2], .stream_bias = affine[3]};
    return op_residual_norm(b->graph, block, stream, &merge, next);
}

static TensorId attention(Builder *b, TensorId x) {
    const ModelConfig *c = b->config;
    int64_t queries = c->heads * c->head_dim, keys = c->kv_heads * c->head_dim, channels = queries + keys;
    TensorId projections[] = {
        builder_matrix(b, "self_attn.qkv_proj.q_proj.weight", queries, c->width, false),
        builder_matrix(b, "self_attn.qkv_proj.k_proj.weight", keys, c->width, true),
        builder_matrix(b, "self_attn.qkv_proj.v_proj_current.weight", keys / 2, c->width, true),
        builder_matrix(b, "self_attn.qkv_proj.v_proj_delayed.weight", keys / 2, c->width, true),
    };
    CcaParameters cca = {
        .depthwise_weight = builder_parameter(
            b, "self_attn.qkv_proj.conv_qk_depthwise.weight", PARAMETER_CONVOLUTION, 3, (int64_t[]){channels, 1, 2}, 0, c->init_std, false),
        .depthwise_bias = builder_vector(b, "self_attn.qkv_proj.conv_qk_depthwise.bias", PARAMETER_BIAS, channels, 0),
        .grouped_weight = builder_parameter(b, "self_attn.qkv_proj.conv_qk_grouped.weight", PARAMETER_CONVOLUTION, 3,
            (int64_t[]){channels, c->head_dim, 2}, 0, c->init_std, false),
        .grouped_bias = builder_vector(b, "self_attn.qkv_proj.conv_qk_grouped.bias", PARAMETER_BIAS, channels, 0),
        .temperature = builder_vector(b, "self_attn.qk_norm.temp", PARAMETER_NORM, c->kv_heads, 1),
    };
    TensorId output = builder_matrix(b, "self_attn.o_proj.weight", c->width, queries, false);
    TensorId u = builder_adaptable(b, x, graph_fuse(b->graph, projections, 4), TENSOR_NONE, LORA_ATTENTION), state = TENSOR_NONE;
    if (b->mode == MODEL_GENERATE)
        state = graph_tensor(b->graph, ARENA_STATE, TYPE_COMPUTE, 2, (int64_t[]){2, channels + keys}, "cca_state");
    Heads heads = {c->heads, c->kv_heads, c->head_dim};
    TensorId qkv = op_cca(b->graph, u, b->positions, b->rope_table, &cca, state, &heads);
    return builder_adaptable(b, builder_attention(b, qkv), output, TENSOR_NONE, LORA_ATTENTION);
}

/* Sets *router_state to this layer's, which the next layer's router adds to its own. */
static TensorId experts(Builder *b, TensorId x, TensorId *router_state) {
    const ModelConfig *c = b->config;
    Graph *graph = b->graph;
    int64_t width = c->router_width;
    TensorId down = builder_matrix(b, "mlp.gate.down_proj.weight", width, c->width, false);
    TensorId down_bias = builder_vector(b, "mlp.gate.down_proj.bias", PARAMETER_BIAS, width, 0);
    TensorId state = op_linear(graph, x, down, down_bias, true);
    if (*router_state)
        state = op_scale_add(graph, state, *router_state, builder_vector(b, "mlp.gate.router_states_scale", PARAMETER_NORM, width, 1));
    *router_state = state;
    Norm norm = builder_norm(b, "mlp.gate.router_mlp.norm", NORM_RMS, false, width);
    TensorId hidden = op_norm(graph, state, &norm);
    for (int i = 1; i <= 2; i++) {
        char weight[64], bias[64];
        snprintf(weight, sizeof weight, "mlp.gate.router_mlp.fc%d.weight", i);
        snprintf(bias, sizeof bias, "mlp.gate.router_mlp.fc%d.bias", i);
        TensorId w = builder_matrix(b, weight, width, width, false);
        hidden = op_gelu(graph, op_linear(graph, hidden, w, builder_vector(b, bias, PARAMETER_BIAS, width, 0), false), GELU_EXACT);
    }
    TensorId out = builder_matrix(b, "mlp.gate.router_mlp.out_proj.weight", c->experts + 1, width, false);
    TensorId logits = op_linear(graph, hidden, out, TENSOR_NONE, true);
    TensorId biases = builder_vector(b, "mlp.gate.balancing_biases", PARAMETER_BALANCE_BIAS, c->experts + 1, 0);
    RouterSpec spec = {
        .experts = c->experts, .k = c->experts_per_token, .skip = true, .renormalise = c->renormalise, .auxiliary = c->auxiliary_loss};
    return builder_experts(b, "mlp.experts", x, op_router(graph, logits, biases, b->share, b->loss, &spec));
}

Trunk zaya_build(Builder *b) {
    const ModelConfig *c = b->config;
    b->rope_table = builder_rope_table(b);
    TensorId table = builder_parameter(
        b, "model.embed_tokens.weight", PARAMETER_EMBEDDING, 2, (int64_t[]){c->vocabulary, c->width}, 0, c->init_std, false);
    TensorId entry_scale = builder_vector(b, "model.input_hidden_states_scale", PARAMETER_NORM, c->width, 1);
    TensorId entry_bias = builder_vector(b, "model.input_hidden_states_bias", PARAMETER_BIAS, c->width, 0);
    TensorId stream = op_embed(b->graph, b->tokens, table, entry_bias, entry_scale), normed = TENSOR_NONE, router_state = TENSOR_NONE;
    TensorId head = c->tied ? table
                            : builder_parameter(
                                  b, "lm_head.weight", PARAMETER_EMBEDDING, 2, (int64_t[]){c->vocabulary, c->width}, 0, c->init_std, false);
    for (int layer = 0; layer < c->layers; layer++) {
        builder_layer(b, layer);
        if (layer == 0) {
            Norm first = builder_norm(b, "input_layernorm", NORM_RMS, false, c->width);
            normed = op_norm(b->graph, stream, &first);
        }
        TensorId block = attention(b, normed);
        Norm norm = builder_norm(b, "post_attention_layernorm", NORM_RMS, false, c->width);
        ResidualNorm middle = merge(b, "post_attention_residual_scale", block, stream, &norm);
        block = experts(b, middle.normed, &router_state);
        builder_layer(b, layer + 1 < c->layers ? layer + 1 : -1);
        norm = builder_norm(b, layer + 1 < c->layers ? "input_layernorm" : "model.norm", NORM_RMS, false, c->width);
        builder_layer(b, layer);
        ResidualNorm end = merge(b, "post_mlp_residual_scale", block, middle.stream, &norm);
        stream = end.stream;
        normed = end.normed;
    }
    return (Trunk){.normed = normed, .head = head};
}
