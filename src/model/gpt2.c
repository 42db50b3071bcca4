/* GPT-2 (Radford et al., 2019): learned positions, LayerNorm before attention and MLP, tanh GELU, biases everywhere, head and embedding the same. Its
 * released code stores the matrices of linears as [in, out]. */
#include "model/model_internal.h"
#include "ops/activation/activation.h"
#include "ops/add/add.h"
#include "ops/embed/embed.h"
#include "ops/norm/norm.h"

static TensorId linear(Builder *b, const char *name, TensorId x, int64_t out, double std, LoraTargets kind) {
    char full[64];
    snprintf(full, sizeof full, "%s.weight", name);
    TensorId weight = builder_parameter(b, full, PARAMETER_MATRIX, 2, (int64_t[]){out, graph_columns(b->graph, x)}, 0, std, false);
    b->graph->parameters[b->graph->parameter_count - 1].transposed = true;
    snprintf(full, sizeof full, "%s.bias", name);
    return builder_adaptable(b, x, weight, builder_vector(b, full, PARAMETER_BIAS, out, 0), kind);
}

static TensorId attention(Builder *b, TensorId x) {
    TensorId qkv = linear(b, "attn.c_attn", x, 3 * b->config->width, b->config->init_std, LORA_ATTENTION);
    return linear(b, "attn.c_proj", builder_attention(b, qkv), b->config->width, builder_residual_std(b), LORA_ATTENTION);
}

static TensorId mlp(Builder *b, TensorId x) {
    TensorId hidden = op_gelu(b->graph, linear(b, "mlp.c_fc", x, b->config->ffn, b->config->init_std, LORA_MLP), GELU_TANH);
    return linear(b, "mlp.c_proj", hidden, b->config->width, builder_residual_std(b), LORA_MLP);
}

Trunk gpt2_build(Builder *b) {
    static const Layers layers = {.first = "ln_1",
        .second = "ln_2",
        .last = "transformer.ln_f",
        .norm = NORM_LAYER,
        .biased = true,
        .attention = attention,
        .mlp = mlp};
    b->layer_names = "transformer.h";
    TensorId table = builder_table(b, "transformer.wte.weight");
    int64_t shape[] = {b->config->context, b->config->width};
    TensorId places = builder_parameter(b, "transformer.wpe.weight", PARAMETER_EMBEDDING, 2, shape, 0, b->config->init_std, false);
    TensorId token = op_embed(b->graph, b->tokens, table, TENSOR_NONE, TENSOR_NONE);
    TensorId place = op_embed(b->graph, b->positions, places, TENSOR_NONE, TENSOR_NONE);
    TensorId normed = builder_layers(b, op_add(b->graph, token, place), &layers);
    return (Trunk){.normed = normed, .head = b->config->tied ? table : builder_table(b, "lm_head.weight")};
}
