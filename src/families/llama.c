/* Llama (arXiv 2302.13971, 2407.21783): pre-norm attention with RoPE and grouped queries, SwiGLU
 * MLP, plain residual adds. Settings select its variants: Mistral's sliding window (arXiv
 * 2310.06825), Qwen2's biases of queries, keys and values (arXiv 2407.10671), Qwen3's norms of each
 * query and key head before RoPE (arXiv 2505.09388), and Mixtral's top-k mixture of experts with
 * softmax routing in place of the MLP (arXiv 2401.04088). */
#include "base/memory.h"
#include "base/strings.h"
#include "base/json_reader.h"
#include "formats/hf_class.h"
#include "model/layer_spec.h"

static LayerSpec layer(Builder *b, int index) {
    const ModelConfig *c = b->config;
    (void)index;
    LayerSpec spec = {.before_attention = "input_layernorm",
        .before_mlp = "post_attention_layernorm",
        .attention = {.queries = "self_attn.q_proj",
            .keys = "self_attn.k_proj",
            .values = "self_attn.v_proj",
            .output = "self_attn.o_proj",
            .biased = c->qkv_bias,
            .rope_table = builder_rope_table(b, c->rope_theta),
            .scores = {.window = c->window}}};
    if (c->qk_norm) spec.attention.query_norm = "self_attn.q_norm", spec.attention.key_norm = "self_attn.k_norm";
    if (c->experts) spec.mlp = (MlpLayer){.router = "mlp.gate", .experts = "mlp.experts"};
    else spec.mlp = (MlpLayer){.gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj"};
    return spec;
}

static Trunk build_llama(Builder *b) {
    static const Decoder decoder = {
        .embedding = "model.embed_tokens.weight", .last_norm = "model.norm", .norm = NORM_RMS, .norms_heads = true, .layer = layer};
    return builder_decoder(b, &decoder);
}

/* -- Classes of transformers --------------------------------------------------------------------------------------- */

static const HfField llama_fields[] = {
    INTEGER("intermediate_size", ffn, "11008"),
    INTEGER("num_key_value_heads", kv_heads, "0 null"),
    INTEGER("head_dim", head_dim, "0 null"),
    INTEGER("max_position_embeddings", context, "2048"),
    FIXED("attention_bias", "false"),
    FIXED("mlp_bias", "false"),
    NO_EFFECT("pretraining_tp"),
    END,
};

/* A mistral config with layer_types is transformers' Ministral, in which each layer has its own
 * type. */
static void read_ministral_layers(HfFieldReader *r, const char *name, const json_t *value) {
    if (value && !r->model->window) hf_refuse(r, name, "is set together with sliding_window null, which fails in transformers");
    if (value && !json_is_null(value)) hf_read_layer_types(r, name, value);
}

static const HfField mistral_fields[] = {
    INTEGER("num_key_value_heads", kv_heads, "8"),
    INTEGER("head_dim", head_dim, "0 null"),
    INTEGER("max_position_embeddings", context, "131072"),
    INTEGER("sliding_window", window, "4096 null"),
    READ("layer_types", read_ministral_layers),
    END,
};

/* load_balancing_loss_func of transformers' Mixtral is one loss over the tokens of all layers: E
 * times the sum over e of f_e P_e. Its f counts choices per token, which add up to k; our f are
 * shares, which add up to 1. */
static void read_router_loss(HfFieldReader *r, const char *name, const json_t *value) {
    if (value && !json_is_finite(value)) hf_refuse(r, name, "is not a number");
    double weight = value ? json_finite_value(value) : 0.001;
    r->model->auxiliary_scope = AUXILIARY_MODEL;
    r->model->auxiliary_loss = hf_boolean_or(r, "output_router_logits", false) ? weight * r->model->experts_per_token : 0;
    if (r->model->auxiliary_loss < 0) hf_refuse(r, name, "is below 0");
}

static const HfField mixtral_fields[] = {
    INTEGER("num_key_value_heads", kv_heads, "8"),
    INTEGER("head_dim", head_dim, "0 null"),
    INTEGER("max_position_embeddings", context, "131072"),
    REAL("rms_norm_eps", norm_epsilon, "1e-5"),
    INTEGER("sliding_window", window, "0 null"),
    INTEGER("num_local_experts", experts, "8"),
    SYNONYM("num_experts", "num_local_experts"),
    INTEGER("num_experts_per_tok", experts_per_token, "2"),
    READ("router_aux_loss_coef", read_router_loss),
    FIXED("router_jitter_noise", "0.0 0"),
    NO_EFFECT("output_router_logits"),
    END,
};

/* Qwen's layers from max_window_layers on have the window if use_sliding_window is true. */
static void read_qwen_layers(HfFieldReader *r, const char *name, const json_t *value) {
    ModelConfig *c = r->model;
    const json_t *window = hf_field(r, "sliding_window");
    int64_t first = hf_integer_or(r, "max_window_layers", INT64_MIN, 28);
    c->window = json_is_null(window) ? 0 : hf_integer_or(r, "sliding_window", 1, 4096);
    if (!hf_boolean_or(r, "use_sliding_window", false)) c->window = 0;
    if (value && !json_is_null(value)) hf_read_layer_types(r, name, value);
    else if (c->window && first >= c->layers) c->window = 0;
    else if (c->window && first > 0) hf_refuse(r, "max_window_layers", "gives a window to only some layers, which is not supported");
}

static const HfField qwen_fields[] = {
    INTEGER("vocab_size", vocabulary, "151936"),
    INTEGER("intermediate_size", ffn, "22016"),
    INTEGER("num_key_value_heads", kv_heads, "32 null"),
    READ("layer_types", read_qwen_layers), /* reads the next three fields too */
    NO_EFFECT("use_sliding_window"),
    NO_EFFECT("sliding_window"),
    NO_EFFECT("max_window_layers"),
    END,
};
static const HfField qwen2_fields[] = {INTEGER("head_dim", head_dim, "0"), END};
static const HfField qwen3_fields[] = {INTEGER("head_dim", head_dim, "128"), FIXED("attention_bias", "false"), END};

/* Refuses settings that other classes of the family support and this one does not. */
static bool check_llama_class(const ModelConfig *c, const char *architecture, Error *error) {
    if (c->rope_fraction != 1)
        return error_set(
            error, ERROR_USAGE, "model.rope_fraction=%g must be 1, because %s applies RoPE to whole heads", c->rope_fraction, architecture);
    if (c->experts && !c->renormalise)
        return error_set(error, ERROR_USAGE,
            "model.renormalise=false does not work for %s, whose gates sum to 1: set model.renormalise=true", architecture);
    if (c->qkv_bias && (c->experts || c->qk_norm))
        return error_set(error, ERROR_USAGE, "model.qkv_bias=true does not work for %s, which has no such biases: set model.qkv_bias=false",
            architecture);
    return !(c->qk_norm && c->experts) ||
           error_set(error, ERROR_USAGE, "model.qk_norm=true does not work for %s, which has no such norms: set model.qk_norm=false",
               architecture);
}

static void put_sizes(json_t *object, const ModelConfig *c, bool window) {
    hf_put_decoder(object, c);
    if (window) hf_put(object, "sliding_window", c->window ? json_integer(c->window) : json_null());
    hf_put_rope(object, c);
    hf_put_integer(object, "intermediate_size", c->ffn);
}

static void put_llama(json_t *object, const ModelConfig *c) {
    put_sizes(object, c, false);
    hf_put(object, "attention_bias", json_false());
    hf_put(object, "mlp_bias", json_false());
}

static void put_mistral(json_t *object, const ModelConfig *c) { put_sizes(object, c, true); }

static void put_qwen(json_t *object, const ModelConfig *c) {
    put_sizes(object, c, true);
    if (!c->window) return;
    hf_put(object, "use_sliding_window", json_true());
    hf_put_integer(object, "max_window_layers", 0);
}

/* Returns the weight as read. For a sum of per-layer losses, returns the weight that gives the same
 * sum if the layers are alike. */
static double router_loss_weight(const ModelConfig *c) {
    double weight = c->auxiliary_loss / (double)c->experts_per_token;
    return c->auxiliary_scope == AUXILIARY_MODEL ? weight : weight * (double)c->layers;
}

static void put_mixtral(json_t *object, const ModelConfig *c) {
    put_sizes(object, c, true);
    hf_put_integer(object, "num_local_experts", c->experts);
    hf_put_integer(object, "num_experts_per_tok", c->experts_per_token);
    hf_put(object, "output_router_logits", json_boolean(c->auxiliary_loss > 0));
    hf_put(object, "router_aux_loss_coef", json_real(router_loss_weight(c)));
}

static void start_mixtral(ModelConfig *c) { c->renormalise = true; }
static void start_qwen2(ModelConfig *c) { c->qkv_bias = true; }
static void start_qwen3(ModelConfig *c) { c->qk_norm = true; }

static bool fits_mixtral(const ModelConfig *c) { return c->experts; }
static bool fits_qwen3(const ModelConfig *c) { return c->qk_norm; }
static bool fits_qwen2(const ModelConfig *c) { return c->qkv_bias; }
/* Llama's class has no window and requires that the heads divide the width. Mistral's class is
 * otherwise the same model. */
static bool fits_mistral(const ModelConfig *c) { return c->window || c->width % c->heads; }

/* Lists experts one by one; routers have no biases. w1 is the gate, w3 the up and w2 the down
 * projection. */
static void list_mixtral(HfTensorList *list, const HfParameter *parameter) {
    const char *rest;
    const Parameter *p = parameter->p;
    int layer = hf_split_layer(parameter, &rest);
    if (p->kind == PARAMETER_BALANCE_BIAS) return;
    if (!strcmp(rest, "mlp.gate.weight")) {
        hf_append(list, memory_format("model.layers.%d.block_sparse_moe.gate.weight", layer), parameter);
        return;
    }
    if (p->rank != 3) {
        hf_list_native(list, parameter);
        return;
    }
    bool down = ends_with(p->name, "down_proj");
    int64_t parts = p->shape[0] * (down ? 1 : 2);
    for (int64_t i = 0; i < parts; i++)
        hf_append_part(list,
            memory_format("model.layers.%d.block_sparse_moe.experts.%lld.%s.weight", layer, (long long)(down ? i : i / 2),
                down    ? "w2"
                : i % 2 ? "w3"
                        : "w1"),
            parameter, i, parts);
}

static const GgufRow gguf_dense_rows[] = {
    {"expert_count", ROW_READ, 0, false, NULL}, /* 0 */
    {"expert_used_count", ROW_READ, 0, false, NULL},
    {NULL, ROW_READ, 0, false, NULL},
};
static const GgufRow gguf_expert_rows[] = {
    {"expert_count", ROW_INTEGER, GGUF_AT(experts), true, "num_local_experts"},
    {"expert_used_count", ROW_INTEGER, GGUF_AT(experts_per_token), true, "num_experts_per_tok"},
    {NULL, ROW_READ, 0, false, NULL},
};
static const GgufClass gguf_llama = {.architecture = "llama", .rotary = true, .pairs = true, .rows = gguf_dense_rows};
static const GgufClass gguf_mixtral = {.architecture = "llama", .experts = true, .rotary = true, .pairs = true, .rows = gguf_expert_rows};
static const GgufClass gguf_qwen2 = {.architecture = "qwen2", .rotary = true};
static const GgufClass gguf_qwen3 = {.architecture = "qwen3", .rotary = true};

#define TABLES hf_decoder_fields, hf_shared_fields, hf_metadata_fields
static const HfClass llama = {.model_type = "llama",
    .architecture = "LlamaForCausalLM",
    .tables = {{llama_fields, TABLES}},
    .runs_fp8 = true,
    .check = check_llama_class,
    .put = put_llama,
    .gguf = &gguf_llama};
static const HfClass mistral = {.model_type = "mistral",
    .architecture = "MistralForCausalLM",
    .tables = {{mistral_fields, TABLES}},
    .runs_fp8 = true,
    .fits = fits_mistral,
    .check = check_llama_class,
    .put = put_mistral,
    .gguf = &gguf_llama};
static const HfClass mixtral = {.model_type = "mixtral",
    .architecture = "MixtralForCausalLM",
    .tables = {{mixtral_fields, TABLES}},
    .rope_theta = 1e6,
    .demands_scaled_head_dim = true,
    .lacks_router_biases = true,
    .router_is_parameter = true,
    .start = start_mixtral,
    .fits = fits_mixtral,
    .check = check_llama_class,
    .put = put_mixtral,
    .list = list_mixtral,
    .gguf = &gguf_mixtral};
static const HfClass qwen2 = {.model_type = "qwen2",
    .architecture = "Qwen2ForCausalLM",
    .tables = {{qwen2_fields, qwen_fields, TABLES}},
    .runs_fp8 = true,
    .start = start_qwen2,
    .fits = fits_qwen2,
    .check = check_llama_class,
    .put = put_qwen,
    .gguf = &gguf_qwen2};
static const HfClass qwen3 = {.model_type = "qwen3",
    .architecture = "Qwen3ForCausalLM",
    .tables = {{qwen3_fields, qwen_fields, TABLES}},
    .runs_fp8 = true,
    .start = start_qwen3,
    .fits = fits_qwen3,
    .check = check_llama_class,
    .put = put_qwen,
    .gguf = &gguf_qwen3};
static const HfClass *const classes[] = {&mixtral, &qwen3, &qwen2, &mistral, &llama, NULL};

/* -- The rule ------------------------------------------------------------------------------------------------------ */

static const char *const settings[] = {
    "activation", "experts", "padding", "qk_norm", "qkv_bias", "rope_factor", "rope_fraction", "rope_theta", NULL};

const FamilyRule family_llama = {.name = "llama",
    .settings = settings,
    .repeats_key_heads = true,
    .activation = ACTIVATION_swiglu,
    .layers = "model.layers",
    .classes = classes,
    .build = build_llama};
