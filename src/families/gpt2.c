/* GPT-2 (Radford et al., 2019): learned positions, LayerNorm before attention and MLP, tanh GELU, biases everywhere,
 * head and embedding the same. Its released code stores the matrices of linear layers as [in, out]. */
#include "model/builder.h"
#include "ops/activation/activation.h"
#include "ops/add/add.h"

/* [R, in] to [R, out]: the linear layer, whose matrix was declared just before its bias. */
static TensorId apply(Builder *b, TensorId x, const Linear *linear, LoraGroup group) {
    b->graph->parameters[b->graph->parameter_count - 2].transposed = true;
    return builder_linear(b, x, linear, group);
}

static TensorId attention(Builder *b, TensorId x) {
    int64_t width = b->config->width;
    Linear input = builder_split_output(b, "attn.c_attn", (int64_t[]){width, width, width}, 3, width, b->config->init_std, true);
    TensorId qkv = apply(b, x, &input, LORA_ATTENTION); /* [R, 3D] */
    Linear output = builder_split_input(b, "attn.c_proj", width, width, builder_residual_std(b), true);
    return apply(b, builder_attention(b, qkv), &output, LORA_ATTENTION);
}

static TensorId mlp(Builder *b, TensorId x) {
    const ModelConfig *c = b->config;
    Linear up = builder_split_output(b, "mlp.c_fc", &c->ffn, 1, c->width, c->init_std, true);
    TensorId hidden = apply(b, x, &up, LORA_MLP); /* [R, F] */
    Linear down = builder_split_input(b, "mlp.c_proj", c->width, c->ffn, builder_residual_std(b), true);
    return apply(b, op_gelu(b->graph, hidden, GELU_TANH), &down, LORA_MLP);
}

static Trunk build(Builder *b) {
    static const Layers layers = {"ln_1", "ln_2", "transformer.ln_f", NORM_LAYER, .biased = true, .attention = attention, .mlp = mlp};
    b->layer_names = "transformer.h";
    const ModelConfig *c = b->config;
    TensorId tokens = builder_embedding(b, "transformer.wte.weight"), stream = TENSOR_NONE; /* [R, D] */
    if (tokens) {
        Cut cut = {.axes = AXES_TENSOR, .dimension = 0, .blocks = 1, .rows = {c->context}};
        TensorId places = builder_parameter(b, "transformer.wpe.weight", PARAMETER_EMBEDDING, 2, (int64_t[]){c->context, c->width}, &cut);
        TensorId token = builder_embed(b, b->tokens, tokens, c->vocabulary, TENSOR_NONE, TENSOR_NONE, -1);
        TensorId place = builder_embed(b, b->positions, places, c->context, TENSOR_NONE, TENSOR_NONE, -1);
        stream = builder_scatter(b, op_add(b->graph, token, place));
    }
    TensorId normed = builder_layers(b, stream, &layers);
    return (Trunk){.normed = normed, .head = builder_head(b, "transformer.wte.weight", tokens)};
}

static const char *const settings[] = {NULL};

static bool check(const ModelConfig *c, Error *error) { return family_check_width(c, error) && family_check_key_heads(c, error); }

const FamilyRule family_gpt2 = {.name = "gpt2", .settings = settings, .learns_positions = true, .check = check, .build = build};
