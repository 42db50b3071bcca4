/* Llama (arXiv 2302.13971, 2407.21783): pre-norm attention with rotary embedding and grouped queries, SwiGLU MLP, plain residual sums; and what differs
 * from it by a setting: Mistral's sliding window (arXiv 2310.06825), Qwen2's biases of queries, keys and values (arXiv 2407.10671), Qwen3's norms of
 * each query and key head before the rotation (arXiv 2505.09388), and Mixtral's top-k mixture of experts with softmax routing in place of the MLP
 * (arXiv 2401.04088). */
#include "model/model_internal.h"
#include "ops/activation/activation.h"
#include "ops/embed/embed.h"
#include "ops/heads.h"
#include "ops/linear/linear.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "ops/router/router.h"

/* One bias after the other, viewed as one. */
static TensorId qkv_bias(Builder *b, int64_t queries, int64_t keys) {
    TensorId biases[] = {
        builder_parameter(b, "self_attn.q_proj.bias", PARAMETER_BIAS, 1, &queries, 0, 0, false),
        builder_parameter(b, "self_attn.k_proj.bias", PARAMETER_BIAS, 1, &keys, 0, 0, true),
        builder_parameter(b, "self_attn.v_proj.bias", PARAMETER_BIAS, 1, &keys, 0, 0, true),
    };
    return graph_fuse(b->graph, biases, 3);
}

static TensorId attention(Builder *b, TensorId x) {
    const ModelConfig *c = b->config;
    int64_t queries = c->heads * c->head_dim, keys = c->kv_heads * c->head_dim;
    TensorId projections[] = {
        builder_matrix(b, "self_attn.q_proj.weight", queries, c->width, false),
        builder_matrix(b, "self_attn.k_proj.weight", keys, c->width, true),
        builder_matrix(b, "self_attn.v_proj.weight", keys, c->width, true),
    };
    TensorId bias = c->qkv_bias ? qkv_bias(b, queries, keys) : TENSOR_NONE;
    TensorId output = builder_matrix(b, "self_attn.o_proj.weight", c->width, queries, false);
    TensorId qkv = builder_adaptable(b, x, graph_fuse(b->graph, projections, 3), bias, LORA_ATTENTION);
    Heads heads = {c->heads, c->kv_heads, c->head_dim};
    if (c->qk_norm) {
        Norm query = builder_norm(b, "self_attn.q_norm", NORM_RMS, false, c->head_dim);
        Norm key = builder_norm(b, "self_attn.k_norm", NORM_RMS, false, c->head_dim);
        qkv = op_qk_norm(b->graph, qkv, &query, &key, &heads);
    }
    return builder_adaptable(
        b, builder_attention(b, op_rope(b->graph, qkv, b->positions, b->rope_table, &heads)), output, TENSOR_NONE, LORA_ATTENTION);
}

static TensorId mlp(Builder *b, TensorId x) {
    const ModelConfig *c = b->config;
    TensorId gate_up[] = {
        builder_matrix(b, "mlp.gate_proj.weight", c->ffn, c->width, false),
        builder_matrix(b, "mlp.up_proj.weight", c->ffn, c->width, true),
    };
    TensorId down = builder_matrix(b, "mlp.down_proj.weight", c->width, c->ffn, false);
    TensorId hidden = op_swiglu(b->graph, builder_adaptable(b, x, graph_fuse(b->graph, gate_up, 2), TENSOR_NONE, LORA_MLP));
    return builder_adaptable(b, hidden, down, TENSOR_NONE, LORA_MLP);
}

static TensorId experts(Builder *b, TensorId x) {
    const ModelConfig *c = b->config;
    TensorId logits = op_linear(b->graph, x, builder_matrix(b, "mlp.gate.weight", c->experts, c->width, false), TENSOR_NONE, true);
    TensorId biases = builder_vector(b, "mlp.gate.balancing_biases", PARAMETER_BALANCE_BIAS, c->experts, 0);
    RouterSpec spec = {.experts = c->experts, .k = c->experts_per_token, .renormalise = c->renormalise, .auxiliary = c->auxiliary_loss};
    return builder_experts(b, "mlp.experts", x, op_router(b->graph, logits, biases, b->share, b->loss, &spec));
}

Trunk llama_build(Builder *b) {
    const Layers layers = {.first = "input_layernorm",
        .second = "post_attention_layernorm",
        .last = "model.norm",
        .norm = NORM_RMS,
        .attention = attention,
        .mlp = b->config->experts ? experts : mlp};
    b->rope_table = builder_rope_table(b);
    TensorId table = builder_table(b, "model.embed_tokens.weight");
    TensorId normed = builder_layers(b, op_embed(b->graph, b->tokens, table, TENSOR_NONE, TENSOR_NONE), &layers);
    return (Trunk){.normed = normed, .head = b->config->tied ? table : builder_table(b, "lm_head.weight")};
}
