/* MPT (MosaicML, 2023): pre-norm attention with ALiBi (arXiv 2108.12409) in place of positions, LayerNorm and linear
 * layers without biases, GELU MLP. Options that its models use: clamped queries, keys and values, LayerNorm over all
 * queries and over all keys (arXiv 2302.05442), fewer key heads. */
#include "model/builder.h"
#include "ops/activation/activation.h"

static TensorId attention(Builder *b, TensorId x) {
    const ModelConfig *c = b->config;
    Heads heads = builder_heads(b);
    int64_t queries = c->heads * c->head_dim, keys = c->kv_heads * c->head_dim;
    Linear input = builder_split_output(b, "attn.Wqkv", (int64_t[]){queries, keys, keys}, 3, c->width, c->init_std, false);
    TensorId qkv = builder_linear(b, x, &input, LORA_ATTENTION); /* [R, queries + 2 keys] */
    if (c->clip_qkv > 0) qkv = op_clamp(b->graph, qkv, c->clip_qkv);
    if (c->qk_norm) {
        Norm query = builder_norm(b, "attn.q_ln", NORM_LAYER, false, c->heads * c->head_dim);
        Norm key = builder_norm(b, "attn.k_ln", NORM_LAYER, false, c->kv_heads * c->head_dim);
        qkv = op_qk_norm(b->graph, qkv, &query, &key, &heads);
    }
    Linear output = builder_split_input(b, "attn.out_proj", c->width, queries, builder_residual_std(b), false);
    return builder_linear(b, builder_attention(b, qkv), &output, LORA_ATTENTION);
}

static TensorId mlp(Builder *b, TensorId x) {
    const ModelConfig *c = b->config;
    Linear up = builder_split_output(b, "ffn.up_proj", &c->ffn, 1, c->width, c->init_std, false);
    TensorId hidden = builder_linear(b, x, &up, LORA_MLP); /* [R, F] */
    Linear down = builder_split_input(b, "ffn.down_proj", c->width, c->ffn, builder_residual_std(b), false);
    return builder_linear(b, op_gelu(b->graph, hidden, GELU_EXACT), &down, LORA_MLP);
}

static Trunk build(Builder *b) {
    static const Layers layers = {"norm_1", "norm_2", "transformer.norm_f", NORM_LAYER, .attention = attention, .mlp = mlp};
    b->layer_names = "transformer.blocks";
    b->alibi = b->config->alibi_max;
    TensorId embedding = builder_embedding(b, "transformer.wte.weight");
    TensorId stream = TENSOR_NONE; /* [R, D] */
    if (embedding) stream = builder_scatter(b, builder_embed(b, b->tokens, embedding, b->config->vocabulary, TENSOR_NONE, TENSOR_NONE, -1));
    TensorId normed = builder_layers(b, stream, &layers);
    return (Trunk){.normed = normed, .head = builder_head(b, "transformer.wte.weight", embedding)};
}

static const char *const settings[] = {"alibi_max", "clip_qkv", "qk_norm", "softmax_scale", NULL};

const FamilyRule family_mpt = {.name = "mpt", .settings = settings, .norms_all_heads = true, .check = family_check_width, .build = build};
