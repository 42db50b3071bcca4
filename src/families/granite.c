/* Granite 3 (github.com/ibm-granite/granite-3.0-language-models): Llama's layers, dense or with a
 * mixture of experts, and four multipliers: of embeddings, of attention scores, of the outputs of
 * attention and MLP, and a divisor of logits (muP, arXiv 2203.03466). */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "formats/hf_class.h"
#include "model/layer_spec.h"

static LayerSpec layer(Builder *b, int index) {
    const ModelConfig *c = b->config;
    LayerSpec spec = builder_llama_layer(b, index);
    spec.attention.output_biased = c->qkv_bias;
    spec.attention.scores.scale = c->softmax_scale;
    if (c->experts) spec.mlp = (MlpLayer){.router = "block_sparse_moe.router", .experts = "block_sparse_moe.experts"};
    return spec;
}

static Trunk build(Builder *b) { return builder_llama_decoder(b, layer); }

/* -- Classes of transformers --------------------------------------------------------------------------------------- */

static void read_scale(HfFieldReader *r, const char *name, const json_t *value) {
    double scale = value ? json_number_value(value) : 1;
    if (!(scale > 0)) hf_refuse(r, name, "is not a positive number");
    r->model->softmax_scale = scale;
}

static void read_router_loss(HfFieldReader *r, const char *name, const json_t *value) { hf_read_router_loss(r, name, value, 0.001); }

static const HfField fields[] = {
    INTEGER("intermediate_size", ffn, "11008"),
    INTEGER("num_key_value_heads", kv_heads, "0 null"),
    INTEGER("head_dim", head_dim, "0"),
    INTEGER("max_position_embeddings", context, "2048"),
    BOOLEAN("attention_bias", qkv_bias, "false"),
    REAL("embedding_multiplier", embedding_scale, "1"),
    REAL("residual_multiplier", residual_scale, "1"),
    REAL("logits_scaling", logit_divisor, "1"),
    READ("attention_multiplier", read_scale),
    END,
};
static const HfField dense_fields[] = {FIXED("mlp_bias", "false"), END};
static const HfField expert_fields[] = {
    INTEGER("num_local_experts", experts, "8"),
    INTEGER("num_experts_per_tok", experts_per_token, "2"),
    READ("router_aux_loss_coef", read_router_loss),
    NO_EFFECT("output_router_logits"),
    END,
};

static void put(json_t *object, const ModelConfig *c) {
    hf_put_rows(object, c, fields);
    hf_put_decoder(object, c);
    hf_put_rope(object, c);
    hf_put(object, "attention_multiplier", json_real(c->softmax_scale > 0 ? c->softmax_scale : 1 / sqrt((double)c->head_dim)));
    if (!c->experts) hf_put(object, "mlp_bias", json_false());
    else {
        hf_put_integer(object, "num_local_experts", c->experts);
        hf_put_router(object, c);
    }
}

/* Folders have other names than the modules of transformers. */
static void list_experts(HfTensorList *list, const HfParameter *parameter) {
    static const char *const names[][2] = {{"block_sparse_moe.router.weight", "block_sparse_moe.router.layer.weight"},
        {"block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.input_linear.weight"},
        {"block_sparse_moe.experts.down_proj", "block_sparse_moe.output_linear.weight"}};
    const char *rest;
    int layer = hf_split_layer(parameter, &rest);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(rest, names[i][0])) {
            hf_append(list, memory_format("model.layers.%d.%s", layer, names[i][1]), parameter);
            return;
        }
    hf_list_stacked(list, parameter);
}

static void start_experts(ModelConfig *c) { c->renormalise = true; }
static bool fits_experts(const ModelConfig *c) { return c->experts; }

static bool check_window(const ModelConfig *c, const char *architecture, Error *error) {
    return !c->window || error_set(error, ERROR_USAGE, "model.window=%lld: %s has no window", (long long)c->window, architecture);
}

static bool check_gguf(const ModelConfig *c, Error *error) {
    if (!(c->softmax_scale > 0)) return error_set(error, ERROR_USAGE, "model.softmax_scale=0: llama.cpp's granite stores a scale; set one");
    return !c->qkv_bias ||
           error_set(error, ERROR_USAGE, "model.qkv_bias=true: smelt writes no such biases of granite for llama.cpp; write a folder");
}

#define GGUF_SCALES \
    {"embedding_scale", ROW_REAL, GGUF_AT(embedding_scale), true, "embedding_multiplier"}, \
        {"residual_scale", ROW_REAL, GGUF_AT(residual_scale), true, "residual_multiplier"}, \
        {"logit_scale", ROW_REAL, GGUF_AT(logit_divisor), true, "logits_scaling"}, \
        {"attention.scale", ROW_REAL, GGUF_AT(softmax_scale), true, "attention_multiplier"}
static const GgufRow gguf_rows[] = {GGUF_SCALES, {NULL, ROW_READ, 0, false, NULL}};
static const GgufRow gguf_expert_rows[] = {
    GGUF_SCALES,
    {"expert_count", ROW_INTEGER, GGUF_AT(experts), true, "num_local_experts"},
    {"expert_used_count", ROW_INTEGER, GGUF_AT(experts_per_token), true, "num_experts_per_tok"},
    {NULL, ROW_READ, 0, false, NULL},
};
static const GgufName gguf_names[] = {{"block_sparse_moe.router.", "ffn_gate_inp."}, {NULL, NULL}};
static const GgufClass gguf_granite = {.architecture = "granite", .rotary = true, .pairs = true, .rows = gguf_rows, .check = check_gguf};
static const GgufClass gguf_granitemoe = {.architecture = "granitemoe",
    .experts = true,
    .rotary = true,
    .pairs = true,
    .rows = gguf_expert_rows,
    .names = gguf_names,
    .check = check_gguf};

static const HfClass granite = {.model_type = "granite",
    .architecture = "GraniteForCausalLM",
    .tables = {{dense_fields, fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}},
    .check = check_window,
    .put = put,
    .gguf = &gguf_granite};
static const HfClass granitemoe = {.model_type = "granitemoe",
    .architecture = "GraniteMoeForCausalLM",
    .tables = {{expert_fields, fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}},
    .lacks_router_biases = true,
    .router_is_parameter = true,
    .start = start_experts,
    .fits = fits_experts,
    .check = check_window,
    .put = put,
    .list = list_experts,
    .layouts = {{".block_sparse_moe.experts.gate_up_proj", hf_list_stacked}},
    .gguf = &gguf_granitemoe};
static const HfClass *const classes[] = {&granitemoe, &granite, NULL};

/* -- The rule ------------------------------------------------------------------------------------------------------ */

static bool check(const ModelConfig *c, Error *error) { return !c->experts || family_check_gates(c, "family granite", error); }

static const char *const settings[] = {"activation", "embedding_scale", "experts", "logit_divisor", "padding", "qkv_bias", "residual_scale",
    "rope_factor", "rope_theta", "softmax_scale", NULL};

const FamilyRule family_granite = {
    .name = "granite", .settings = settings, .repeats_key_heads = true, .check = check, FAMILY_SWIGLU_DECODER};
