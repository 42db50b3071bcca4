/* OLMo 2 (arXiv 2501.00656): Llama's attention and MLP without norms before them. The output of each
 * is normalized before it is added to the stream. All queries and all keys of a token are
 * normalized before RoPE. OLMo 3 has a window in three layers of four, and scales RoPE only in the
 * other layers. OLMoE (arXiv 2409.02060), a model with experts, has the same norms of queries and
 * keys, a bound of queries, keys and values after them, and Llama's norms before attention and
 * experts. */
#include <string.h>

#include "base/json_reader.h"
#include "base/math.h"
#include "formats/hf_class.h"
#include "model/layer_spec.h"

static LayerSpec layer(Builder *b, int index) {
    const ModelConfig *c = b->config;
    bool slides = model_has_window(c, index);
    LayerSpec spec = llama_names;
    spec.attention.query_norm = "self_attn.q_norm", spec.attention.key_norm = "self_attn.k_norm";
    spec.attention.clip_normed = c->clip_qkv;
    spec.attention.rope_table = builder_rope_table(b, model_rope_theta(c, slides), !slides);
    spec.attention.scores.window = slides ? c->window : 0;
    if (c->experts) spec.mlp = (MlpLayer){.router = "mlp.gate", .experts = "mlp.experts"};
    if (c->experts) return spec;
    spec.before_attention = spec.before_mlp = NULL;
    spec.after_attention = "post_attention_layernorm", spec.after_mlp = "post_feedforward_layernorm";
    return spec;
}

static Trunk build(Builder *b) {
    static const Decoder decoder = {.embedding = "model.embed_tokens.weight", .last_norm = "model.norm", .norm = NORM_RMS, .layer = layer};
    return builder_decoder(b, &decoder);
}

/* -- Classes of transformers --------------------------------------------------------------------------------------- */

static void read_padding(HfFieldReader *r, const char *name, const json_t *value) { hf_read_padding_or(r, name, value, 1); }

static const HfField olmo2_fields[] = {
    INTEGER("vocab_size", vocabulary, "50304"),
    INTEGER("intermediate_size", ffn, "11008"),
    INTEGER("num_key_value_heads", kv_heads, "0 null"),
    INTEGER("head_dim", head_dim, "0"),
    INTEGER("max_position_embeddings", context, "2048"),
    REAL("rms_norm_eps", norm_epsilon, "1e-5"),
    READ("pad_token_id", read_padding),
    FIXED("attention_bias", "false"),
    END,
};

/* By default, every fourth layer has full attention. */
static void read_olmo3_layers(HfFieldReader *r, const char *name, const json_t *value) {
    static const HfLayerThetas thetas = {.full = 5e5, .sliding = 5e5};
    hf_read_usual_windows(r, name, value, 4, 4096);
    if (r->good) hf_read_layer_ropes(r, &thetas);
}

static const HfField olmo3_fields[] = {
    READ("layer_types", read_olmo3_layers), /* reads the next fields too */
    NO_EFFECT("sliding_window"),
    NO_EFFECT("rope_parameters"),
    END,
};

/* PyTorch's clamp sets every value to a bound of 0 or below. */
static void read_clip(HfFieldReader *r, const char *name, const json_t *value) {
    bool given = value && !json_is_null(value);
    if (given && !(json_is_real(value) && json_real_value(value) > 0)) hf_refuse(r, name, "is not a positive real number");
    r->model->clip_qkv = given ? json_real_value(value) : 0;
}

static void read_olmoe_loss(HfFieldReader *r, const char *name, const json_t *value) { hf_read_router_loss(r, name, value, 0.01); }

static const HfField olmoe_fields[] = {
    INTEGER("vocab_size", vocabulary, "50304"),
    INTEGER("hidden_size", width, "2048"),
    INTEGER("intermediate_size", ffn, "2048"),
    INTEGER("num_hidden_layers", layers, "16"),
    INTEGER("num_attention_heads", heads, "16"),
    INTEGER("num_key_value_heads", kv_heads, "0 null"),
    INTEGER("head_dim", head_dim, "0"),
    INTEGER("max_position_embeddings", context, "4096"),
    REAL("rms_norm_eps", norm_epsilon, "1e-5"),
    READ("pad_token_id", read_padding),
    FIXED("attention_bias", "false"),
    READ("clip_qkv", read_clip),
    FIXED("sliding_window", "null"), /* some of transformers' attention functions apply it, others do not */
    INTEGER("num_experts", experts, "64"),
    SYNONYM("num_local_experts", "num_experts"),
    INTEGER("num_experts_per_tok", experts_per_token, "8"),
    BOOLEAN("norm_topk_prob", renormalise, "false"),
    READ("router_aux_loss_coef", read_olmoe_loss),
    NO_EFFECT("output_router_logits"),
    END,
};

static bool check_olmo2(const ModelConfig *c, const char *architecture, Error *error) {
    return c->clip_qkv == 0 ||
           error_set(error, ERROR_USAGE, "model.clip_qkv=%g: %s has no such bound: set model.clip_qkv=0", c->clip_qkv, architecture);
}

static bool check_olmoe(const ModelConfig *c, const char *architecture, Error *error) {
    if (c->window) return error_set(error, ERROR_USAGE, "model.window=%lld: %s has no window", (long long)c->window, architecture);
    return family_check_width(c, error);
}

static void put_olmo2(json_t *object, const ModelConfig *c) {
    hf_put_decoder(object, c);
    hf_put_rope(object, c);
    hf_put_integer(object, "intermediate_size", c->ffn);
    hf_put(object, "attention_bias", json_false());
}

static void put_olmo3(json_t *object, const ModelConfig *c) {
    hf_put_decoder(object, c);
    hf_put_integer(object, "intermediate_size", c->ffn);
    hf_put(object, "attention_bias", json_false());
    hf_put_sliding_layers(object, c);
}

static void put_olmoe(json_t *object, const ModelConfig *c) {
    put_olmo2(object, c);
    hf_put(object, "clip_qkv", c->clip_qkv > 0 ? json_real(c->clip_qkv) : json_null());
    hf_put_integer(object, "num_experts", c->experts);
    hf_put(object, "norm_topk_prob", json_boolean(c->renormalise));
    hf_put_router(object, c);
}

static bool fits_olmoe(const ModelConfig *c) { return c->experts; }
static bool fits_olmo3(const ModelConfig *c) { return c->window; }

static const GgufName gguf_olmo2_names[] = {
    {"post_attention_layernorm.", "post_attention_norm."},
    {"post_feedforward_layernorm.", "post_ffw_norm."},
    {NULL, NULL},
};
static const GgufRow gguf_olmoe_rows[] = {
    {"expert_count", ROW_INTEGER, GGUF_AT(experts), true, "num_experts"},
    {"expert_used_count", ROW_INTEGER, GGUF_AT(experts_per_token), true, "num_experts_per_tok"},
    {NULL, ROW_READ, 0, false, NULL},
};
/* The default of pad_token_id is a token. */
static bool read_gguf(const GgufKeys *keys) {
    hf_put(keys->object, "pad_token_id", json_null());
    return true;
}

static bool check_olmoe_gguf(const ModelConfig *c, Error *error) {
    if (c->renormalise)
        return error_set(error, ERROR_USAGE, "model.renormalise=true: llama.cpp's olmoe does not normalize gates; write a folder");
    if (c->clip_qkv > 0)
        return error_set(error, ERROR_USAGE, "model.clip_qkv=%g: llama.cpp's olmoe has no such bound; write a folder", c->clip_qkv);
    if (c->kv_heads != c->heads)
        return error_set(error, ERROR_USAGE, "model.kv_heads=%lld: llama.cpp's olmoe has as many key heads as query heads; write a folder",
            (long long)c->kv_heads);
    return !c->tied || error_set(error, ERROR_USAGE, "model.tied=true: llama.cpp's olmoe has a head of its own; write a folder");
}

static const GgufClass gguf_olmo2 = {.architecture = "olmo2", .rotary = true, .names = gguf_olmo2_names, .read = read_gguf};
static const GgufClass gguf_olmoe = {
    .architecture = "olmoe", .experts = true, .rotary = true, .rows = gguf_olmoe_rows, .read = read_gguf, .check = check_olmoe_gguf};
static const HfClass olmo2 = {.model_type = "olmo2",
    .architecture = "Olmo2ForCausalLM",
    .tables = {{olmo2_fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}},
    .check = check_olmo2,
    .put = put_olmo2,
    .gguf = &gguf_olmo2};
static const HfClass olmo3 = {.model_type = "olmo3",
    .architecture = "Olmo3ForCausalLM",
    .tables = {{olmo3_fields, olmo2_fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}},
    .fits = fits_olmo3,
    .check = check_olmo2,
    .put = put_olmo3};
static const HfClass olmoe = {.model_type = "olmoe",
    .architecture = "OlmoeForCausalLM",
    .tables = {{olmoe_fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}},
    .lacks_router_biases = true,
    .fits = fits_olmoe,
    .check = check_olmoe,
    .put = put_olmoe,
    HF_SPLIT_EXPERTS,
    .gguf = &gguf_olmoe};
static const HfClass *const classes[] = {&olmoe, &olmo3, &olmo2, NULL};

/* -- The rule ------------------------------------------------------------------------------------------------------ */

/* Norms after attention and MLP have kernels of these widths. */
static bool check_norm_widths(const ModelConfig *c, Error *error) { return c->experts || family_check_fused_norms(c, error); }

static const char *const settings[] = {"activation", "clip_qkv", "experts", "padding", "rope_factor", "rope_theta", "window_first",
    "window_period", "window_rope_theta", "window_skips", NULL};

const FamilyRule family_olmo = {.name = "olmo",
    .settings = settings,
    .repeats_key_heads = true,
    .norms_all_heads = true,
    .check = check_norm_widths,
    FAMILY_SWIGLU_DECODER};
