/* Gemma 2 (arXiv 2408.00118) and 3 (arXiv 2503.19786): Llama's attention and MLP with a norm before
 * and after each, and GeGLU. Embeddings are multiplied by sqrt(width). Gemma 2 has soft-caps of
 * attention scores and logits, and a window in every second layer. Gemma 3 has norms of query and
 * key heads instead, and a window and a RoPE base of their own in five of six layers. transformers
 * stores gains of norms minus 1. */
#include <math.h>

#include "formats/hf_class.h"
#include "model/layer_spec.h"

static LayerSpec layer(Builder *b, int index) {
    const ModelConfig *c = b->config;
    bool slides = model_has_window(c, index);
    LayerSpec spec = llama_names;
    spec.after_attention = "post_attention_layernorm";
    spec.before_mlp = "pre_feedforward_layernorm", spec.after_mlp = "post_feedforward_layernorm";
    spec.attention.rope_table = builder_rope_table(b, model_rope_theta(c, slides), !slides || !c->qk_norm);
    spec.attention.scores = (AttentionScores){.window = slides ? c->window : 0, .scale = c->softmax_scale, .cap = c->score_cap};
    if (c->qk_norm) spec.attention.query_norm = "self_attn.q_norm", spec.attention.key_norm = "self_attn.k_norm";
    return spec;
}

static Trunk build(Builder *b) {
    static const Decoder decoder = {.embedding = "model.embed_tokens.weight",
        .last_norm = "model.norm",
        .norm = NORM_RMS,
        .norms_heads = true,
        .scales_embeddings = true,
        .layer = layer};
    return builder_decoder(b, &decoder);
}

/* -- Classes of transformers --------------------------------------------------------------------------------------- */

static void read_padding(HfFieldReader *r, const char *name, const json_t *value) { hf_read_padding_or(r, name, value, 0); }

static void read_gemma2_layers(HfFieldReader *r, const char *name, const json_t *value) { hf_read_usual_windows(r, name, value, 2, 4096); }

/* Older files have sliding_window_pattern instead of layer_types. */
static void read_gemma3_layers(HfFieldReader *r, const char *name, const json_t *value) {
    static const HfLayerThetas thetas = {.full = 1e6, .sliding = 1e4, .field = "rope_local_base_freq"};
    int64_t period = hf_integer_or(r, "sliding_window_pattern", 1, 6);
    if (r->good) hf_read_usual_windows(r, name, value, period, 4096);
    if (r->good) hf_read_layer_ropes(r, &thetas);
}

/* Attention scores are divided by the square root of query_pre_attn_scalar. */
static void read_scalar(HfFieldReader *r, const char *name, const json_t *value) {
    (void)value;
    int64_t scalar = hf_integer_or(r, name, 1, 256);
    r->model->softmax_scale = scalar == r->model->head_dim ? 0 : 1 / sqrt((double)scalar);
}

/* Reads a soft-cap; transformers refuses integers. */
static double read_cap(HfFieldReader *r, const char *name, const json_t *value, double fallback) {
    if (!value) return fallback;
    if (json_is_null(value)) return 0;
    if (!json_is_real(value) || !(json_real_value(value) > 0)) hf_refuse(r, name, "is not a positive real number");
    return json_real_value(value);
}

static void read_score_cap(HfFieldReader *r, const char *name, const json_t *value) { r->model->score_cap = read_cap(r, name, value, 50); }
static void read_logit_cap(HfFieldReader *r, const char *name, const json_t *value) { r->model->logit_cap = read_cap(r, name, value, 30); }

static const HfField gemma2_fields[] = {
    INTEGER("vocab_size", vocabulary, "256000"),
    INTEGER("max_position_embeddings", context, "8192"),
    READ("layer_types", read_gemma2_layers), /* reads the next field too */
    NO_EFFECT("sliding_window"),
    READ("final_logit_softcapping", read_logit_cap),
    READ("attn_logit_softcapping", read_score_cap),
    END,
};

static const HfField gemma3_fields[] = {
    INTEGER("vocab_size", vocabulary, "262208"),
    INTEGER("max_position_embeddings", context, "131072"),
    READ("layer_types", read_gemma3_layers), /* reads the next fields too */
    NO_EFFECT("sliding_window"),
    NO_EFFECT("sliding_window_pattern"),
    NO_EFFECT("_sliding_window_pattern"), /* which transformers writes and does not read */
    NO_EFFECT("rope_parameters"),
    NO_EFFECT("rope_local_base_freq"),
    FIXED("final_logit_softcapping", "null"),
    FIXED("attn_logit_softcapping", "null"),
    END,
};

static const HfField fields[] = {
    INTEGER("hidden_size", width, "2304"),
    INTEGER("intermediate_size", ffn, "9216"),
    INTEGER("num_hidden_layers", layers, "26"),
    INTEGER("num_attention_heads", heads, "8"),
    INTEGER("num_key_value_heads", kv_heads, "4"),
    INTEGER("head_dim", head_dim, "256"),
    BOOLEAN("tie_word_embeddings", tied, "true"),
    READ("hidden_activation", hf_read_activation),
    NO_EFFECT("hidden_act"),
    READ("pad_token_id", read_padding),
    READ("query_pre_attn_scalar", read_scalar),
    FIXED("attention_bias", "false"),
    FIXED("use_bidirectional_attention", "false null"),
    NO_EFFECT("cache_implementation"),
    END,
};

/* Returns the query_pre_attn_scalar that gives softmax_scale. */
static double scalar_of(const ModelConfig *c) {
    return c->softmax_scale > 0 ? round(1 / (c->softmax_scale * c->softmax_scale)) : (double)c->head_dim;
}

static bool check_scale(const ModelConfig *c, const char *architecture, Error *error) {
    return fabs(c->softmax_scale * sqrt(scalar_of(c)) - 1) < 1e-12 || c->softmax_scale == 0 ||
           error_set(
               error, ERROR_USAGE, "model.softmax_scale=%g is not 1 / sqrt(N) for a whole N, as %s has it", c->softmax_scale, architecture);
}

static bool check_gemma2(const ModelConfig *c, const char *architecture, Error *error) {
    if (c->window_rope_theta > 0)
        return error_set(error, ERROR_USAGE,
            "model.window_rope_theta=%g: %s has one RoPE base: set model.window_rope_theta=0, or model.qk_norm=true", c->window_rope_theta,
            architecture);
    return hf_check_divided_width(c, architecture, error) && check_scale(c, architecture, error);
}

static bool check_gemma3(const ModelConfig *c, const char *architecture, Error *error) {
    if (c->score_cap > 0 || c->logit_cap > 0)
        return error_set(error, ERROR_USAGE,
            "model.score_cap=%g and model.logit_cap=%g: %s has no soft-caps: set both to 0, or model.qk_norm=false", c->score_cap,
            c->logit_cap, architecture);
    return check_scale(c, architecture, error);
}

static void put_common(json_t *object, const ModelConfig *c) {
    hf_put_decoder(object, c);
    json_object_del(object, "hidden_act");
    hf_put_activation(object, "hidden_activation", c);
    hf_put_integer(object, "intermediate_size", c->ffn);
    hf_put(object, "attention_bias", json_false());
    hf_put_integer(object, "query_pre_attn_scalar", (int64_t)scalar_of(c));
}

static json_t *cap_or_null(double cap) { return cap > 0 ? json_real(cap) : json_null(); }

static void put_gemma2(json_t *object, const ModelConfig *c) {
    put_common(object, c);
    hf_put_rope(object, c);
    hf_put_integer(object, "sliding_window", c->window ? c->window : 4096);
    hf_put_layer_types(object, c, &hf_sliding_names);
    hf_put(object, "final_logit_softcapping", cap_or_null(c->logit_cap));
    hf_put(object, "attn_logit_softcapping", cap_or_null(c->score_cap));
}

static void put_gemma3(json_t *object, const ModelConfig *c) {
    put_common(object, c);
    hf_put_sliding_layers(object, c);
}

/* -- GGUF ----------------------------------------------------------------------------------------------------------- */

/* llama.cpp divides scores by sqrt(head_dim), but in the largest model by sqrt(width / heads). Returns the radicand. */
static int64_t gguf_scalar(int64_t layers, int64_t largest, int64_t width, int64_t heads, int64_t head_dim) {
    return layers == largest ? width / heads : head_dim;
}
enum { LARGEST_GEMMA2 = 46, LARGEST_GEMMA3 = 62 }; /* layers of the models with 27B parameters */

static bool check_gguf(const ModelConfig *c, Error *error) {
    int64_t scalar = gguf_scalar(c->layers, c->qk_norm ? LARGEST_GEMMA3 : LARGEST_GEMMA2, c->width, c->heads, c->head_dim);
    if ((int64_t)scalar_of(c) != scalar)
        return error_set(error, ERROR_USAGE,
            "model.softmax_scale=%g: llama.cpp divides scores of a model with these sizes by sqrt(%lld): export a folder instead",
            c->softmax_scale, (long long)scalar);
    return gguf_check_scaling(c, error);
}

static bool check_gemma2_gguf(const ModelConfig *c, Error *error) {
    if (!c->tied)
        return error_set(error, ERROR_USAGE, "model.tied=false: llama.cpp's gemma2 has no LM head of its own: export a folder instead");
    if (!(c->score_cap > 0) || !(c->logit_cap > 0))
        return error_set(error, ERROR_USAGE,
            "model.score_cap=%g and model.logit_cap=%g: llama.cpp's gemma2 has both: export a folder instead", c->score_cap, c->logit_cap);
    return check_gguf(c, error);
}

static bool read_gguf(const GgufKeys *keys, int64_t largest) {
    int64_t heads = gguf_field(keys, "num_attention_heads");
    hf_put_integer(keys->object, "query_pre_attn_scalar",
        gguf_scalar(gguf_field(keys, "num_hidden_layers"), largest, gguf_field(keys, "hidden_size"), heads, gguf_field(keys, "head_dim")));
    return gguf_read_padding(keys);
}
static bool read_gemma2_gguf(const GgufKeys *keys) { return read_gguf(keys, LARGEST_GEMMA2); }

/* RoPE scaling applies only to layers without the window. */
static bool read_gemma3_gguf(const GgufKeys *keys) {
    json_t *rope = json_incref(json_object_get(keys->object, "rope_parameters"));
    json_object_del(keys->object, "rope_parameters");
    hf_put(keys->object, "rope_theta", json_incref(json_object_get(rope, "rope_theta")));
    json_object_del(rope, "rope_theta");
    if (json_object_size(rope)) hf_put(keys->object, "rope_scaling", json_incref(rope));
    json_decref(rope);
    double theta = 10000;
    if (!gguf_key_real(keys, "rope.freq_base_swa", &theta)) return false;
    hf_put(keys->object, "rope_local_base_freq", json_real(gguf_shortest(theta)));
    return read_gguf(keys, LARGEST_GEMMA3);
}

/* Writes rope_theta of layers with the window; without the key, llama.cpp takes 10000. */
static void put_gemma3_gguf(GgufWriter *writer, const ModelConfig *c) {
    gguf_put_real(writer, "gemma3.rope.freq_base_swa", model_rope_theta(c, true));
}

static const GgufRow gemma2_rows[] = {
    {"attn_logit_softcapping", ROW_REAL, GGUF_AT(score_cap), true, "attn_logit_softcapping"},
    {"final_logit_softcapping", ROW_REAL, GGUF_AT(logit_cap), true, "final_logit_softcapping"},
    {NULL, ROW_READ, 0, false, NULL},
};
static const GgufRow gemma3_rows[] = {
    {"rope.freq_base_swa", ROW_READ, 0, false, NULL},
    {NULL, ROW_READ, 0, false, NULL},
};
static const GgufName gguf_names[] = {
    {"post_attention_layernorm.", "post_attention_norm."},
    {"pre_feedforward_layernorm.", "ffn_norm."},
    {"post_feedforward_layernorm.", "post_ffw_norm."},
    {NULL, NULL},
};
static const GgufClass gguf_gemma2 = {.architecture = "gemma2",
    .rotary = true,
    .window_period = 2,
    .rows = gemma2_rows,
    .names = gguf_names,
    .read = read_gemma2_gguf,
    .check = check_gemma2_gguf};
static const GgufClass gguf_gemma3 = {.architecture = "gemma3",
    .rotary = true,
    .window_period = 6,
    .rows = gemma3_rows,
    .names = gguf_names,
    .read = read_gemma3_gguf,
    .put = put_gemma3_gguf,
    .check = check_gguf};

/* -- The classes ----------------------------------------------------------------------------------------------------- */

static void start_gemma3(ModelConfig *c) { c->qk_norm = true; }
static bool fits_gemma3(const ModelConfig *c) { return c->qk_norm; }

static const HfClass gemma2 = {.model_type = "gemma2",
    .architecture = "Gemma2ForCausalLM",
    .tables = {{gemma2_fields, fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}},
    .gain_offset = 1,
    .check = check_gemma2,
    .put = put_gemma2,
    .gguf = &gguf_gemma2};
static const HfClass gemma3 = {.model_type = "gemma3_text",
    .architecture = "Gemma3ForCausalLM",
    .tables = {{gemma3_fields, fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}},
    .gain_offset = 1,
    .start = start_gemma3,
    .fits = fits_gemma3,
    .check = check_gemma3,
    .put = put_gemma3,
    .gguf = &gguf_gemma3};
static const HfClass *const classes[] = {&gemma3, &gemma2, NULL};

/* -- The rule ------------------------------------------------------------------------------------------------------ */

static const char *const settings[] = {"activation", "logit_cap", "padding", "qk_norm", "rope_factor", "rope_theta", "score_cap",
    "softmax_scale", "window_first", "window_period", "window_rope_theta", "window_skips", NULL};

const FamilyRule family_gemma = {.name = "gemma",
    .settings = settings,
    .repeats_key_heads = true,
    .check = family_check_fused_norms,
    .activation = ACTIVATION_geglu_tanh,
    .layers = "model.layers",
    .classes = classes,
    .build = build};
