/* MPT (MosaicML, 2023): pre-norm attention with ALiBi (arXiv 2108.12409) in place of positions, LayerNorm and linears without biases, GELU MLP. Options
 * that its models use: clamped queries, keys and values, LayerNorm over all queries and over all keys (arXiv 2302.05442), fewer key heads. */
#include "model/model_internal.h"
#include "ops/activation/activation.h"
#include "ops/embed/embed.h"
#include "ops/heads.h"
#include "ops/norm/norm.h"

static TensorId attention(Builder *b, TensorId x) {
    const ModelConfig *c = b->config;
    Heads heads = {c->heads, c->kv_heads, c->head_dim};
    TensorId qkv = builder_linear(b, "attn.Wqkv", x, (c->heads + 2 * c->kv_heads) * c->head_dim, c->init_std, LORA_ATTENTION);
    if (c->clip_qkv > 0) qkv = op_clamp(b->graph, qkv, c->clip_qkv);
    if (c->qk_norm) {
        Norm query = builder_norm(b, "attn.q_ln", NORM_LAYER, false, c->heads * c->head_dim);
        Norm key = builder_norm(b, "attn.k_ln", NORM_LAYER, false, c->kv_heads * c->head_dim);
        qkv = op_qk_norm(b->graph, qkv, &query, &key, &heads);
    }
    return builder_linear(b, "attn.out_proj", builder_attention(b, qkv), c->width, builder_residual_std(b), LORA_ATTENTION);
}

static TensorId mlp(Builder *b, TensorId x) {
    TensorId hidden = op_gelu(b->graph, builder_linear(b, "ffn.up_proj", x, b->config->ffn, b->config->init_std, LORA_MLP), GELU_EXACT);
    return builder_linear(b, "ffn.down_proj", hidden, b->config->width, builder_residual_std(b), LORA_MLP);
}

Trunk mpt_build(Builder *b) {
    static const Layers layers = {
        .first = "norm_1", .second = "norm_2", .last = "transformer.norm_f", .norm = NORM_LAYER, .attention = attention, .mlp = mlp};
    b->layer_names = "transformer.blocks";
    TensorId table = builder_table(b, "transformer.wte.weight");
    TensorId normed = builder_layers(b, op_embed(b->graph, b->tokens, table, TENSOR_NONE, TENSOR_NONE), &layers);
    return (Trunk){.normed = normed, .head = b->config->tied ? table : builder_table(b, "lm_head.weight")};
}
