/* Llama (arXiv 2302.13971, 2407.21783): pre-norm attention with RoPE and grouped queries, SwiGLU
 * MLP, plain residual adds. Settings select its variants: Mistral's sliding window (arXiv
 * 2310.06825), Qwen2's biases of queries, keys and values (arXiv 2407.10671), Qwen3's norms of each
 * query and key head before RoPE (arXiv 2505.09388), and the top-k mixture of experts with softmax
 * routing in place of the MLP of all layers (Mixtral, arXiv 2401.04088) or of some (Qwen3-MoE). */
#include "formats/hf_class.h"
#include "model/layer_spec.h"

static LayerSpec layer(Builder *b, int index) {
    LayerSpec spec = builder_llama_layer(b, index);
    if (model_layer_has_experts(b->config, index)) spec.mlp = (MlpLayer){.router = "mlp.gate", .experts = "mlp.experts"};
    return spec;
}

static Trunk build(Builder *b) { return builder_llama_decoder(b, layer); }

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
    if (value && !r->model->window)
        hf_refuse(r, name, "is set, but sliding_window is null, and transformers fails on this: set sliding_window");
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

static void read_ministral3_padding(HfFieldReader *r, const char *name, const json_t *value) { hf_read_padding_or(r, name, value, 11); }

/* Without rope_parameters, transformers scales RoPE by these. */
static void read_ministral3_rope(HfFieldReader *r, const char *name, const json_t *value) {
    json_auto_t *usual = json_pack("{s:s, s:f, s:f, s:i, s:f, s:f, s:f, s:f, s:f}", "rope_type", "yarn", "rope_theta", 1e6, "factor", 16.0,
        "original_max_position_embeddings", 16384, "beta_fast", 32.0, "beta_slow", 1.0, "mscale_all_dim", 1.0, "mscale", 1.0,
        "llama_4_scaling_beta", 0.1);
    hf_read_rope(r, name, value && !json_is_null(value) ? value : usual);
}

static const HfField ministral3_fields[] = {
    INTEGER("vocab_size", vocabulary, "131072"),
    INTEGER("intermediate_size", ffn, "14336"),
    INTEGER("num_hidden_layers", layers, "34"),
    INTEGER("num_key_value_heads", kv_heads, "8 null"),
    INTEGER("head_dim", head_dim, "128 null"),
    INTEGER("max_position_embeddings", context, "262144"),
    REAL("rms_norm_eps", norm_epsilon, "1e-5"),
    READ("pad_token_id", read_ministral3_padding),
    INTEGER("sliding_window", window, "0 null"),
    READ("rope_parameters", read_ministral3_rope),
    NO_EFFECT("layer_types"), /* transformers reads it, and only warns */
    END,
};

static void read_router_loss(HfFieldReader *r, const char *name, const json_t *value) { hf_read_router_loss(r, name, value, 0.001); }

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

/* All layers have the window if use_sliding_window is true. */
static void read_qwen_window(HfFieldReader *r, const char *name, const json_t *value) {
    int64_t window = value && json_is_null(value) ? 0 : hf_integer_or(r, name, 1, 4096);
    r->model->window = hf_boolean_or(r, "use_sliding_window", false) ? window : 0;
}

static const HfField qwen3_moe_fields[] = {
    INTEGER("vocab_size", vocabulary, "151936"),
    INTEGER("hidden_size", width, "2048"),
    INTEGER("intermediate_size", dense_ffn, "6144"),
    INTEGER("num_hidden_layers", layers, "24"),
    INTEGER("num_key_value_heads", kv_heads, "4"),
    INTEGER("head_dim", head_dim, "0"),
    READ("sliding_window", read_qwen_window),
    NO_EFFECT("use_sliding_window"), /* read with sliding_window */
    FIXED("attention_bias", "false"),
    INTEGER("moe_intermediate_size", ffn, "768"),
    INTEGER("num_experts", experts, "128"),
    SYNONYM("num_local_experts", "num_experts"),
    INTEGER("num_experts_per_tok", experts_per_token, "8"),
    BOOLEAN("norm_topk_prob", renormalise, "false"),
    READ("mlp_only_layers", hf_read_sparse_layers),
    NO_EFFECT("decoder_sparse_step"), /* read with mlp_only_layers */
    READ("router_aux_loss_coef", read_router_loss),
    NO_EFFECT("output_router_logits"),
    END,
};

static bool fits_ministral3(const ModelConfig *c) { return c->rope_query_scale > 0 && !c->experts && !c->qk_norm && !c->qkv_bias; }

/* Refuses settings that other classes of the family support and this one does not. */
static bool check_llama_class(const ModelConfig *c, const char *architecture, Error *error) {
    if (c->rope_fraction != 1)
        return error_set(
            error, ERROR_USAGE, "model.rope_fraction=%g must be 1, because %s applies RoPE to whole heads", c->rope_fraction, architecture);
    if (c->qkv_bias && (c->experts || c->qk_norm))
        return error_set(error, ERROR_USAGE, "model.qkv_bias=true does not work for %s, which has no such biases: set model.qkv_bias=false",
            architecture);
    return !(c->rope_query_scale > 0) || fits_ministral3(c) ||
           error_set(error, ERROR_USAGE, "model.rope_query_scale=%g: %s has no such scale: set it to 0", c->rope_query_scale, architecture);
}

static bool check_mixtral(const ModelConfig *c, const char *architecture, Error *error) {
    if (!family_check_gates(c, architecture, error)) return false;
    if (model_mixes_layers(c))
        return error_set(error, ERROR_USAGE,
            "model.experts_first=%lld and model.experts_period=%lld must be 0 and 1 for %s, which has experts in all layers: change them, "
            "or set model.qk_norm=true",
            (long long)c->experts_first, (long long)c->experts_period, architecture);
    return check_llama_class(c, architecture, error);
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

static void put_mixtral(json_t *object, const ModelConfig *c) {
    put_sizes(object, c, true);
    hf_put_integer(object, "num_local_experts", c->experts);
    hf_put_router(object, c);
}

static void put_qwen3_moe(json_t *object, const ModelConfig *c) {
    put_sizes(object, c, true);
    hf_put(object, "use_sliding_window", json_boolean(c->window > 0));
    hf_put_integer(object, "moe_intermediate_size", c->ffn);
    hf_put_integer(object, "num_experts", c->experts);
    hf_put(object, "norm_topk_prob", json_boolean(c->renormalise));
    hf_put_router(object, c);
    hf_put_sparse_layers(object, c);
}

static void start_mixtral(ModelConfig *c) { c->renormalise = true; }
static void start_qwen2(ModelConfig *c) { c->qkv_bias = true; }
static void start_qwen3(ModelConfig *c) { c->qk_norm = true; }

static bool fits_qwen3_moe(const ModelConfig *c) { return c->experts && c->qk_norm; }
static bool fits_mixtral(const ModelConfig *c) { return c->experts; }
static bool fits_qwen3(const ModelConfig *c) { return c->qk_norm; }
static bool fits_qwen2(const ModelConfig *c) { return c->qkv_bias; }
/* Llama's class has no window and requires that the heads divide the width. Mistral's class is
 * otherwise the same model. */
static bool fits_mistral(const ModelConfig *c) { return c->window || c->width % c->heads; }

static void list_mixtral(HfTensorList *list, const HfParameter *parameter) {
    hf_list_split_experts(list, parameter, "block_sparse_moe", (const char *const[]){"w1", "w3", "w2"});
}

static const char query_scale_key[] = "attention.temperature_scale";
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
static const GgufRow gguf_qwen3_moe_rows[] = {
    {"expert_count", ROW_INTEGER, GGUF_AT(experts), true, "num_experts"},
    {"expert_used_count", ROW_INTEGER, GGUF_AT(experts_per_token), true, "num_experts_per_tok"},
    {"expert_feed_forward_length", ROW_INTEGER, GGUF_AT(ffn), true, "moe_intermediate_size"},
    {NULL, ROW_READ, 0, false, NULL},
};

/* llama.cpp's models have experts in all layers and gates that sum to 1. */
static bool read_qwen3_moe_gguf(const GgufKeys *keys) {
    hf_put(keys->object, "norm_topk_prob", json_true());
    return true;
}

static bool check_qwen3_moe_gguf(const ModelConfig *c, Error *error) {
    if (model_mixes_layers(c))
        return error_set(error, ERROR_USAGE,
            "model.experts_first=%lld, model.experts_period=%lld: llama.cpp's qwen3moe has experts in all layers; write a folder",
            (long long)c->experts_first, (long long)c->experts_period);
    return c->renormalise ||
           error_set(error, ERROR_USAGE, "model.renormalise=false: gates of llama.cpp's qwen3moe sum to 1; write a folder");
}

/* llama.cpp scales queries by the positions that are beyond the original context of yarn. */
static bool check_ministral3_gguf(const ModelConfig *c, Error *error) {
    if (!(c->rope_factor > 1) || c->rope_scaling != ROPE_YARN)
        return error_set(error, ERROR_USAGE,
            "model.rope_query_scale=%g without model.rope_scaling=yarn: llama.cpp's mistral3 has both: export a folder instead",
            c->rope_query_scale);
    return c->rope_attention_factor == 1 ||
           error_set(error, ERROR_USAGE, "model.rope_attention_factor=%g: llama.cpp's mistral3 computes 1 only: export a folder instead",
               c->rope_attention_factor);
}

static bool read_ministral3_gguf(const GgufKeys *keys) {
    json_t *rope = json_object_get(keys->object, "rope_parameters");
    double scale = 0;
    if (!gguf_key_real(keys, query_scale_key, &scale)) return false;
    if (!(scale > 0)) return gguf_key_refuse(keys, query_scale_key, "is missing or not positive");
    hf_put(rope, "llama_4_scaling_beta", json_real(gguf_shortest(scale)));
    return gguf_read_padding(keys);
}

static const GgufRow gguf_ministral3_rows[] = {
    {query_scale_key, ROW_REAL, GGUF_AT(rope_query_scale), true, NULL},
    {"rope.scaling.yarn_log_multiplier", ROW_READ, 0, false, NULL},
    {NULL, ROW_READ, 0, false, NULL},
};

static const GgufClass gguf_llama = {.architecture = "llama", .rotary = true, .pairs = true, .rows = gguf_dense_rows};
static const GgufClass gguf_mixtral = {.architecture = "llama", .experts = true, .rotary = true, .pairs = true, .rows = gguf_expert_rows};
static const GgufClass gguf_ministral3 = {.architecture = "mistral3",
    .rotary = true,
    .pairs = true,
    .rows = gguf_ministral3_rows,
    .read = read_ministral3_gguf,
    .check = check_ministral3_gguf};
static const GgufClass gguf_qwen2 = {.architecture = "qwen2", .rotary = true};
static const GgufClass gguf_qwen3 = {.architecture = "qwen3", .rotary = true};
static const GgufClass gguf_qwen3_moe = {.architecture = "qwen3moe",
    .experts = true,
    .rotary = true,
    .rows = gguf_qwen3_moe_rows,
    .read = read_qwen3_moe_gguf,
    .check = check_qwen3_moe_gguf};

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
static const HfClass ministral3 = {.model_type = "ministral3",
    .architecture = "Ministral3ForCausalLM",
    .tables = {{ministral3_fields, TABLES}},
    .scales_queries = true,
    .fits = fits_ministral3,
    .check = check_llama_class,
    .put = put_mistral,
    .gguf = &gguf_ministral3};
static const HfClass mixtral = {.model_type = "mixtral",
    .architecture = "MixtralForCausalLM",
    .tables = {{mixtral_fields, TABLES}},
    .rope_theta = 1e6,
    .demands_scaled_head_dim = true,
    .lacks_router_biases = true,
    .router_is_parameter = true,
    .start = start_mixtral,
    .fits = fits_mixtral,
    .check = check_mixtral,
    .put = put_mixtral,
    .list = list_mixtral,
    .layouts = {HF_STACKED},
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
static const HfClass qwen3_moe = {.model_type = "qwen3_moe",
    .architecture = "Qwen3MoeForCausalLM",
    .tables = {{qwen3_moe_fields, TABLES}},
    .lacks_router_biases = true,
    .start = start_qwen3,
    .fits = fits_qwen3_moe,
    .check = check_llama_class,
    .put = put_qwen3_moe,
    HF_SPLIT_EXPERTS,
    .gguf = &gguf_qwen3_moe};
static const HfClass *const classes[] = {&ministral3, &qwen3_moe, &mixtral, &qwen3, &qwen2, &mistral, &llama, NULL};

/* -- The rule ------------------------------------------------------------------------------------------------------ */

static const char *const settings[] = {"activation", "dense_ffn", "experts", "experts_first", "experts_period", "padding", "qk_norm",
    "qkv_bias", "rope_factor", "rope_fraction", "rope_query_scale", "rope_theta", NULL};

const FamilyRule family_llama = {.name = "llama", .settings = settings, .repeats_key_heads = true, FAMILY_SWIGLU_DECODER};
