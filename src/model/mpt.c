/* MPT (MosaicML, 2023): pre-norm attention with ALiBi (arXiv 2108.12409) in place of positions, LayerNorm and linear
 * layers without biases, GELU MLP. Options that its models use: clamped queries, keys and values, LayerNorm over all
 * queries and over all keys (arXiv 2302.05442), fewer key heads. */
#include "model/model_internal.h"
#include "ops/activation/activation.h"
#include "ops/embed/embed.h"

/* [R, in] to [R, out] */
static TensorId linear(Builder *b, const char *name, TensorId x, int64_t out, double std, LoraTargets kind) {
    return builder_linear(b, x, builder_matrix(b, name, out, graph_columns(b->graph, x), std), TENSOR_NONE, kind);
}

static TensorId attention(Builder *b, TensorId x) {
    const ModelConfig *c = b->config;
    Heads heads = {c->heads, c->kv_heads, c->head_dim};
    TensorId qkv = linear(b, "attn.Wqkv", x, heads_columns(&heads), c->init_std, LORA_ATTENTION);
    if (c->clip_qkv > 0) qkv = op_clamp(b->graph, qkv, c->clip_qkv);
    if (c->qk_norm) {
        Norm query = builder_norm(b, "attn.q_ln", NORM_LAYER, false, c->heads * c->head_dim);
        Norm key = builder_norm(b, "attn.k_ln", NORM_LAYER, false, c->kv_heads * c->head_dim);
        qkv = op_qk_norm(b->graph, qkv, &query, &key, &heads);
    }
    return linear(b, "attn.out_proj", builder_attention(b, qkv), c->width, builder_residual_std(b), LORA_ATTENTION);
}

static TensorId mlp(Builder *b, TensorId x) {
    TensorId hidden = linear(b, "ffn.up_proj", x, b->config->ffn, b->config->init_std, LORA_MLP); /* [R, F] */
    return linear(b, "ffn.down_proj", op_gelu(b->graph, hidden, GELU_EXACT), b->config->width, builder_residual_std(b), LORA_MLP);
}

Trunk mpt_build(Builder *b) {
    static const Layers layers = {"norm_1", "norm_2", "transformer.norm_f", NORM_LAYER, .attention = attention, .mlp = mlp};
    b->layer_names = "transformer.blocks";
    b->alibi = b->config->alibi_max;
    TensorId embedding = builder_embedding(b, "transformer.wte.weight");
    TensorId stream = TENSOR_NONE; /* [R, D] */
    if (embedding) stream = op_embed(b->graph, b->tokens, embedding, TENSOR_NONE, TENSOR_NONE, &(EmbedSpec){.padding = -1});
    TensorId normed = builder_layers(b, stream, &layers);
    return (Trunk){normed, builder_head(b, "transformer.wte.weight", embedding)};
}
