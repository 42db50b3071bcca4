/* gpt-oss (arXiv 2508.10925): Llama's norms around attention and a mixture of experts. Attention has
 * a sink per head and, in every second layer, a window; its projections, the router and the experts
 * have biases; experts use a clamped SwiGLU. The gates of a token are the softmax over the logits
 * of its chosen experts, which equals the softmax over all logits, renormalized. */
#include "base/json_reader.h"
#include "formats/hf_class.h"
#include "model/layer_spec.h"

static LayerSpec layer(Builder *b, int index) {
    LayerSpec spec = builder_llama_layer(b, index);
    spec.attention.output_biased = b->config->qkv_bias;
    spec.attention.sinks = "self_attn.sinks";
    spec.mlp = (MlpLayer){.router = "mlp.router", .experts = "mlp.experts", .biased = true, .interleaved = true};
    return spec;
}

static Trunk build(Builder *b) { return builder_llama_decoder(b, layer); }

/* -- The class of transformers ------------------------------------------------------------------------------------- */

static void read_layers(HfFieldReader *r, const char *name, const json_t *value) { hf_read_usual_windows(r, name, value, 2, 128); }

/* Without rope_parameters, transformers scales RoPE by these. */
static void read_rope(HfFieldReader *r, const char *name, const json_t *value) {
    json_auto_t *usual = json_pack("{s:s, s:f, s:f, s:f, s:b, s:i}", "rope_type", "yarn", "factor", 32.0, "beta_fast", 32.0, "beta_slow",
        1.0, "truncate", 0, "original_max_position_embeddings", 4096);
    hf_read_rope(r, name, value && !json_is_null(value) ? value : usual);
}

static void read_term(HfFieldReader *r, const char *name, const json_t *value, double fallback, double *term) {
    if (value && !json_is_real(value)) hf_refuse(r, name, "is not a real number");
    *term = value ? json_real_value(value) : fallback;
}

static void read_alpha(HfFieldReader *r, const char *name, const json_t *value) {
    read_term(r, name, value, 1.702, &r->model->swiglu_alpha);
}
static void read_limit(HfFieldReader *r, const char *name, const json_t *value) { read_term(r, name, value, 7, &r->model->swiglu_limit); }
static void read_router_loss(HfFieldReader *r, const char *name, const json_t *value) { hf_read_router_loss(r, name, value, 0.001); }

static const HfField fields[] = {
    INTEGER("vocab_size", vocabulary, "201088"),
    INTEGER("hidden_size", width, "2880"),
    INTEGER("intermediate_size", ffn, "2880"),
    INTEGER("num_hidden_layers", layers, "36"),
    INTEGER("num_attention_heads", heads, "64"),
    INTEGER("num_key_value_heads", kv_heads, "8 null"),
    INTEGER("head_dim", head_dim, "64 null"),
    INTEGER("max_position_embeddings", context, "131072"),
    REAL("rms_norm_eps", norm_epsilon, "1e-5"),
    BOOLEAN("attention_bias", qkv_bias, "true"),
    READ("layer_types", read_layers), /* reads the next field too */
    NO_EFFECT("sliding_window"),
    READ("rope_parameters", read_rope),
    NO_EFFECT("hidden_act"),
    READ("swiglu_alpha", read_alpha),
    READ("swiglu_limit", read_limit),
    INTEGER("num_local_experts", experts, "128"),
    SYNONYM("num_experts", "num_local_experts"),
    INTEGER("num_experts_per_tok", experts_per_token, "4"),
    READ("router_aux_loss_coef", read_router_loss),
    NO_EFFECT("output_router_logits"),
    NO_EFFECT("experts_per_token"), /* in OpenAI's folders */
    NO_EFFECT("initial_context_length"),
    END,
};

static void put(json_t *object, const ModelConfig *c) {
    hf_put_decoder(object, c);
    hf_put_text(object, "hidden_act", "silu"); /* not read */
    hf_put_integer(object, "intermediate_size", c->ffn);
    hf_put(object, "attention_bias", json_boolean(c->qkv_bias));
    hf_put_integer(object, "sliding_window", c->window ? c->window : 128);
    hf_put_layer_types(object, c, &hf_sliding_names);
    hf_put(object, "rope_parameters", hf_rope_object(c, false, true));
    hf_put(object, "swiglu_alpha", json_real(c->swiglu_alpha));
    hf_put(object, "swiglu_limit", json_real(c->swiglu_limit));
    hf_put_integer(object, "num_local_experts", c->experts);
    hf_put_router(object, c);
}

/* In llama.cpp, alpha and limit are constants, and all projections have biases. */
static bool check_gguf(const ModelConfig *c, Error *error) {
    if (c->swiglu_alpha != 1.702 || c->swiglu_limit != 7)
        return error_set(error, ERROR_USAGE,
            "model.swiglu_alpha=%g and model.swiglu_limit=%g: llama.cpp computes 1.702 and 7 only: export a folder instead",
            c->swiglu_alpha, c->swiglu_limit);
    if (!c->qkv_bias || c->tied)
        return error_set(error, ERROR_USAGE,
            "model.qkv_bias=%s and model.tied=%s: llama.cpp's gpt-oss has biases and an LM head of its own: export a folder instead",
            c->qkv_bias ? "true" : "false", c->tied ? "true" : "false");
    return gguf_check_scaling(c, error);
}

static const GgufRow gguf_rows[] = {
    {"expert_feed_forward_length", ROW_INTEGER, GGUF_AT(ffn), true, "intermediate_size"},
    {"expert_count", ROW_INTEGER, GGUF_AT(experts), true, "num_local_experts"},
    {"expert_used_count", ROW_INTEGER, GGUF_AT(experts_per_token), true, "num_experts_per_tok"},
    {NULL, ROW_READ, 0, false, NULL},
};
static const GgufName gguf_names[] = {
    {"post_attention_layernorm.", "post_attention_norm."},
    {"self_attn.sinks", "attn_sinks.weight"},
    {"mlp.router.", "ffn_gate_inp."},
    {NULL, NULL},
};
static const GgufClass gguf = {.architecture = "gpt-oss",
    .experts = true,
    .rotary = true,
    .rounds_bounds = true,
    .window_period = 2,
    .rows = gguf_rows,
    .names = gguf_names,
    .check = check_gguf};

static void start(ModelConfig *c) { c->renormalise = true; }

static const HfClass class = {.model_type = "gpt_oss",
    .architecture = "GptOssForCausalLM",
    .tables = {{fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}},
    .rope_theta = 150000,
    .lacks_router_biases = true,
    .router_is_parameter = true,
    .reads_mxfp4 = true,
    .start = start,
    .put = put,
    .list = hf_list_stacked,
    .layouts = {{".mlp.experts.gate_up_proj_blocks", hf_list_mxfp4}},
    .gguf = &gguf};
static const HfClass *const classes[] = {&class, NULL};

/* -- The rule ------------------------------------------------------------------------------------------------------ */

static bool check(const ModelConfig *c, Error *error) {
    if (!c->experts)
        return error_set(error, ERROR_USAGE,
            "model.experts=0, but model.family=gpt_oss is a mixture of experts: set model.experts, or a dense family such as "
            "model.family=llama");
    return family_check_gates(c, "family gpt_oss", error);
}

static const char *const settings[] = {"experts", "padding", "qkv_bias", "rope_factor", "rope_theta", "swiglu_alpha", "swiglu_limit",
    "window_first", "window_period", "window_skips", NULL};

const FamilyRule family_gpt_oss = {.name = "gpt_oss",
    .settings = settings,
    .repeats_key_heads = true,
    .check = check,
    .activation = ACTIVATION_swiglu_clamped,
    .layers = "model.layers",
    .classes = classes,
    .build = build};
