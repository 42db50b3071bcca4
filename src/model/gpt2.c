/* GPT-2 (Radford et al., 2019): learned positions, LayerNorm before attention and MLP, tanh GELU, biases everywhere,
 * head and embedding the same. Its released code stores the matrices of linear layers as [in, out]. */
#include "model/model_internal.h"
#include "ops/activation/activation.h"
#include "ops/add/add.h"
#include "ops/embed/embed.h"

/* [R, in] to [R, out] */
static TensorId linear(Builder *b, const char *name, TensorId x, int64_t out, double std, LoraTargets kind) {
    TensorId weight = builder_matrix(b, name, out, graph_columns(b->graph, x), std);
    b->graph->parameters[b->graph->parameter_count - 1].transposed = true;
    return builder_linear(b, x, weight, builder_bias(b, name, out), kind);
}

static TensorId attention(Builder *b, TensorId x) {
    TensorId qkv = linear(b, "attn.c_attn", x, 3 * b->config->width, b->config->init_std, LORA_ATTENTION); /* [R, 3D] */
    return linear(b, "attn.c_proj", builder_attention(b, qkv), b->config->width, builder_residual_std(b), LORA_ATTENTION);
}

static TensorId mlp(Builder *b, TensorId x) {
    TensorId hidden = linear(b, "mlp.c_fc", x, b->config->ffn, b->config->init_std, LORA_MLP); /* [R, F] */
    return linear(b, "mlp.c_proj", op_gelu(b->graph, hidden, GELU_TANH), b->config->width, builder_residual_std(b), LORA_MLP);
}

Trunk gpt2_build(Builder *b) {
    static const Layers layers = {"ln_1", "ln_2", "transformer.ln_f", NORM_LAYER, .biased = true, .attention = attention, .mlp = mlp};
    b->layer_names = "transformer.h";
    TensorId tokens = builder_embedding(b, "transformer.wte.weight"), stream = TENSOR_NONE; /* [R, D] */
    if (tokens) {
        int64_t shape[] = {b->config->context, b->config->width};
        TensorId places = builder_parameter(b, "transformer.wpe.weight", PARAMETER_EMBEDDING, 2, shape);
        TensorId token = op_embed(b->graph, b->tokens, tokens, TENSOR_NONE, TENSOR_NONE, &(EmbedSpec){.padding = -1});
        TensorId place = op_embed(b->graph, b->positions, places, TENSOR_NONE, TENSOR_NONE, &(EmbedSpec){.padding = -1});
        stream = op_add(b->graph, token, place);
    }
    TensorId normed = builder_layers(b, stream, &layers);
    return (Trunk){normed, builder_head(b, "transformer.wte.weight", tokens)};
}
