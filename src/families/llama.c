/* Llama (arXiv 2302.13971, 2407.21783): pre-norm attention with rotary embedding and grouped queries, SwiGLU MLP,
 * plain residual sums; and what differs from it by a setting: Mistral's sliding window (arXiv 2310.06825), Qwen2's
 * biases of queries, keys and values (arXiv 2407.10671), Qwen3's norms of each query and key head before the
 * rotation (arXiv 2505.09388), and Mixtral's top-k mixture of experts with softmax routing in place of the MLP
 * (arXiv 2401.04088). */
#include "model/builder.h"
#include "ops/activation/activation.h"
#include "ops/linear/linear.h"
#include "ops/rope/rope.h"

static TensorId attention(Builder *b, TensorId x) {
    const ModelConfig *c = b->config;
    Heads heads = builder_heads(b);
    int64_t queries = c->heads * c->head_dim, keys = c->kv_heads * c->head_dim;
    const Stacked projections[] = {
        {"self_attn.q_proj", queries, AXES_TENSOR}, {"self_attn.k_proj", keys, AXES_KEYS}, {"self_attn.v_proj", keys, AXES_KEYS}};
    Linear input = builder_stacked(b, projections, 3, c->width, c->qkv_bias);
    Linear output = builder_split_input(b, "self_attn.o_proj", c->width, queries, c->init_std, false);
    TensorId qkv = builder_linear(b, x, &input, LORA_ATTENTION); /* [R, queries + 2 keys] */
    if (c->qk_norm) {
        Norm query = builder_norm(b, "self_attn.q_norm", NORM_RMS, false, c->head_dim);
        Norm key = builder_norm(b, "self_attn.k_norm", NORM_RMS, false, c->head_dim);
        qkv = op_qk_norm(b->graph, qkv, &query, &key, &heads);
    }
    qkv = op_rope(b->graph, qkv, b->positions, b->rope_table, &heads, ROPE_HALVES);
    return builder_linear(b, builder_attention(b, qkv), &output, LORA_ATTENTION);
}

static TensorId mlp(Builder *b, TensorId x) {
    const ModelConfig *c = b->config;
    const Stacked projections[] = {{"mlp.gate_proj", c->ffn, AXES_TENSOR}, {"mlp.up_proj", c->ffn, AXES_TENSOR}};
    Linear gate_up = builder_stacked(b, projections, 2, c->width, false); /* [2F, D] */
    Linear down = builder_split_input(b, "mlp.down_proj", c->width, c->ffn, c->init_std, false);
    return builder_linear(b, op_swiglu(b->graph, builder_linear(b, x, &gate_up, LORA_MLP)), &down, LORA_MLP);
}

static TensorId experts(Builder *b, TensorId x) {
    const ModelConfig *c = b->config;
    TensorId logits = builder_router_linear(b, x, "mlp.gate", c->experts, false, true); /* [R, E] */
    TensorId biases = builder_vector(b, "mlp.gate.balancing_biases", PARAMETER_BALANCE_BIAS, c->experts, 0, NULL);
    return builder_experts(b, "mlp.experts", x, builder_router(b, logits, biases, false));
}

static Trunk build(Builder *b) {
    const Layers layers = {"input_layernorm", "post_attention_layernorm", "model.norm", NORM_RMS, .attention = attention,
        .mlp = b->config->experts ? experts : mlp};
    b->rope_table = builder_rope_table(b, b->config->rope_theta);
    TensorId embedding = builder_embedding(b, "model.embed_tokens.weight");
    TensorId stream = TENSOR_NONE; /* [R, D] */
    if (embedding)
        stream =
            builder_scatter(b, builder_embed(b, b->tokens, embedding, b->config->vocabulary, TENSOR_NONE, TENSOR_NONE, b->config->padding));
    TensorId normed = builder_layers(b, stream, &layers);
    return (Trunk){.normed = normed, .head = builder_head(b, "model.embed_tokens.weight", embedding)};
}

static const char *const settings[] = {"experts", "padding", "qk_norm", "qkv_bias", "rope_factor", "rope_fraction", "rope_theta", NULL};

const FamilyRule family_llama = {.name = "llama", .settings = settings, .repeats_key_heads = true, .build = build};
