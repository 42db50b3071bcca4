/* MPT (MosaicML, 2023): pre-norm attention with ALiBi (arXiv 2108.12409) in place of position
 * embeddings, LayerNorm and linear layers without biases, GELU MLP. Optional features that its
 * models use: clamped queries, keys and values; LayerNorm over all queries and over all keys (arXiv
 * 2302.05442); fewer key heads. */
#include <math.h>
#include <string.h>

#include "base/json_reader.h"
#include "formats/hf_class.h"
#include "model/layer_spec.h"

static LayerSpec layer(Builder *b, int index) {
    const ModelConfig *c = b->config;
    (void)index;
    LayerSpec spec = {.before_attention = "norm_1",
        .before_mlp = "norm_2",
        .attention = {.queries = "attn.Wqkv",
            .output = "attn.out_proj",
            .clip = c->clip_qkv,
            .scores = {.window = c->window, .scale = c->softmax_scale, .alibi = c->alibi_max}},
        .mlp = {.up = "ffn.up_proj", .down = "ffn.down_proj"}};
    if (c->qk_norm) spec.attention.query_norm = "attn.q_ln", spec.attention.key_norm = "attn.k_ln";
    return spec;
}

static Trunk build_mpt(Builder *b) {
    static const Decoder decoder = {.embedding = "transformer.wte.weight",
        .last_norm = "transformer.norm_f",
        .norm = NORM_LAYER,
        .scales_outputs = true,
        .layer = layer};
    return builder_decoder(b, &decoder);
}

/* -- Class of transformers ----------------------------------------------------------------------------------------- */

static void read_expansion(HfFieldReader *r, const char *name, const json_t *value) {
    (void)value;
    if (__builtin_mul_overflow(hf_integer_or(r, name, 1, 4), r->model->width, &r->model->ffn)) hf_refuse(r, name, "is too large");
}

static double logit_scale(const json_t *object, const ModelConfig *c) {
    const json_t *value = json_object_get(object, "logit_scale");
    if (!value || json_is_null(value)) return 1;
    if (json_is_finite(value)) return json_finite_value(value);
    return json_is_string(value) && !strcmp(json_string_value(value), "inv_sqrt_d_model") ? 1 / sqrt((double)c->width) : NAN;
}

/* MosaicML's own code computes these two fields as configured; transformers ignores them. */
static const char mpt_own[] = "is applied as in llm-foundry; transformers ignores it";

static void read_logit_scale(HfFieldReader *r, const char *name, const json_t *value) {
    (void)value;
    double scale = logit_scale(r->object, r->model);
    if (!isfinite(scale) || scale == 0) hf_refuse(r, name, "is neither a nonzero number nor \"inv_sqrt_d_model\"");
    if (scale != 1) hf_warn(r, "%s %s", name, mpt_own);
}

static void read_alibi(HfFieldReader *r, const char *name, const json_t *value) {
    if (value && !(json_finite_value(value) > 0)) hf_refuse(r, name, "is not a positive number");
    r->model->alibi_max = value ? json_finite_value(value) : 8;
    if (r->model->alibi_max != 8) hf_warn(r, "%s%s %s", r->path, name, mpt_own);
}

static void read_mpt_scale(HfFieldReader *r, const char *name, const json_t *value) {
    bool given = value && !json_is_null(value);
    if (given && !(json_finite_value(value) > 0)) hf_refuse(r, name, "is not a positive number");
    r->model->softmax_scale = given ? json_finite_value(value) : 0;
}

static void read_key_heads(HfFieldReader *r, const char *name, const json_t *value) {
    const char *type = value ? json_string_value(value) : "multihead_attention";
    bool one = type && !strcmp(type, "multiquery_attention"), all = type && !strcmp(type, "multihead_attention");
    if (!one && !all && (!type || strcmp(type, "grouped_query_attention"))) hf_refuse(r, name, "is not a supported kind of attention");
    r->model->kv_heads = one ? 1 : hf_integer_or(r, "kv_n_heads", 1, r->model->heads);
}

/* The fields of mpt's object attn_config. */
static const HfField attention_fields[] = {
    REAL("clip_qkv", clip_qkv, "0 null"),
    READ("softmax_scale", read_mpt_scale),
    READ("alibi_bias_max", read_alibi),
    READ("attn_type", read_key_heads), /* reads kv_n_heads too */
    NO_EFFECT("kv_n_heads"),
    BOOLEAN("qk_ln", qk_norm, "false"),
    FIXED("alibi", "true"),
    FIXED("prefix_lm", "false"),
    FIXED("attn_uses_sequence_id", "false"),
    FIXED("qk_gn", "false"),
    FIXED("rope", "false"),
    FIXED("attn_logit_softcapping", "null"),
    FIXED("sliding_window_size", "-1"),
    NO_EFFECT("attn_impl"),
    NO_EFFECT("attn_pdrop"),
    END,
};

static void read_attention(HfFieldReader *r, const char *name, const json_t *value) {
    static const HfTables tables = {{attention_fields, hf_metadata_fields}};
    HfFieldReader inner = *r;
    json_t *none = json_object();
    bool given = value && !json_is_null(value);
    if (given && !json_is_object(value)) hf_refuse(r, name, "is not an object");
    inner.object = given && json_is_object(value) ? value : none;
    inner.path = "attn_config.";
    hf_read_fields(&inner, &tables);
    if (r->good) r->good = inner.good;
    json_decref(none);
}

/* Whatever these fields say, transformers uses no biases, an MLP of four times the width, and
 * LayerNorm. Models of MosaicML's own code, llm-foundry, do the same for the field values that are
 * accepted here. */
static const HfField fields[] = {
    INTEGER("vocab_size", vocabulary, "50368"),
    INTEGER("d_model", width, "2048"),
    SYNONYM("hidden_size", "d_model"),
    INTEGER("n_heads", heads, "16"),
    SYNONYM("num_attention_heads", "n_heads"),
    INTEGER("n_layers", layers, "24"),
    SYNONYM("num_hidden_layers", "n_layers"),
    INTEGER("max_seq_len", context, "2048"),
    REAL("layer_norm_epsilon", norm_epsilon, "1e-5"),
    BOOLEAN("tie_word_embeddings", tied, "true"),
    READ("expansion_ratio", read_expansion),
    READ("logit_scale", read_logit_scale),
    READ("attn_config", read_attention),
    FIXED("no_bias", "true"),
    FIXED("norm_type", "low_precision_layernorm layernorm"),
    FIXED("embedding_fraction", "1.0 1"), /* scales the embedding's gradient */
    FIXED("ffn_config", "null {}"),
    NO_EFFECT("learned_pos_emb"), /* no effect if alibi is true */
    NO_EFFECT("resid_pdrop"),
    NO_EFFECT("emb_pdrop"),
    NO_EFFECT("init_device"),
    NO_EFFECT("init_config"),
    NO_EFFECT("verbose"),
    NO_EFFECT("head_dim"),
    NO_EFFECT("layer_types"),
    NO_EFFECT("rope_parameters"),
    NO_EFFECT("rope_scaling"),
    END,
};

static bool check_mpt_class(const ModelConfig *c, const char *architecture, Error *error) {
    if (c->qk_norm)
        return error_set(
            error, ERROR_USAGE, "model.qk_norm=true does not work for %s, which has no such norms: set model.qk_norm=false", architecture);
    if (c->window)
        return error_set(error, ERROR_USAGE, "model.window=%lld must be 0, because %s has no window", (long long)c->window, architecture);
    if (c->kv_heads != c->heads)
        return error_set(error, ERROR_USAGE, "model.kv_heads=%lld must equal model.heads, because %s has no grouped-query attention",
            (long long)c->kv_heads, architecture);
    if (c->alibi_max != 8) return error_set(error, ERROR_USAGE, "model.alibi_max=%g must be 8 for %s", c->alibi_max, architecture);
    return c->ffn == 4 * c->width ||
           error_set(error, ERROR_USAGE, "model.ffn=%lld must be 4 x model.width for %s", (long long)c->ffn, architecture);
}

static void put_mpt(json_t *object, const ModelConfig *c) {
    json_t *attention = json_object();
    hf_put_integer(object, "d_model", c->width);
    hf_put_integer(object, "n_heads", c->heads);
    hf_put_integer(object, "n_layers", c->layers);
    hf_put_integer(object, "expansion_ratio", c->ffn / c->width);
    hf_put_integer(object, "max_seq_len", c->context);
    hf_put(object, "layer_norm_epsilon", json_real(c->norm_epsilon));
    hf_put(object, "no_bias", json_true());
    hf_put(object, "learned_pos_emb", json_false());
    hf_put_text(attention, "attn_type", "multihead_attention");
    hf_put(attention, "alibi", json_true());
    hf_put(
        attention, "alibi_bias_max", c->alibi_max == (int64_t)c->alibi_max ? json_integer((int64_t)c->alibi_max) : json_real(c->alibi_max));
    hf_put(attention, "clip_qkv", c->clip_qkv > 0 ? json_real(c->clip_qkv) : json_null());
    hf_put(attention, "softmax_scale", c->softmax_scale > 0 ? json_real(c->softmax_scale) : json_null());
    hf_put(attention, "qk_ln", json_boolean(c->qk_norm));
    hf_put(object, "attn_config", attention);
}

static const GgufName gguf_names[] = {
    {"transformer.wte.", "token_embd."},
    {"transformer.norm_f.", "output_norm."},
    {"norm_1.", "attn_norm."},
    {"norm_2.", "ffn_norm."},
    {"attn.Wqkv.", "attn_qkv."},
    {"attn.q_ln.", "attn_q_norm."},
    {"attn.k_ln.", "attn_k_norm."},
    {"attn.out_proj.", "attn_output."},
    {"ffn.up_proj.", "ffn_up."},
    {"ffn.down_proj.", "ffn_down."},
    {NULL, NULL},
};
static const GgufRow gguf_rows[] = {
    {"context_length", ROW_INTEGER, GGUF_AT(context), true, "max_seq_len"},
    {"feed_forward_length", ROW_INTEGER, GGUF_AT(ffn), true, NULL},
    {"attention.layer_norm_epsilon", ROW_REAL, GGUF_AT(norm_epsilon), true, "layer_norm_epsilon"},
    {"attention.clamp_kqv", ROW_REAL, GGUF_AT(clip_qkv), false, NULL},
    {"attention.max_alibi_bias", ROW_REAL, GGUF_AT(alibi_max), false, NULL},
    {NULL, ROW_READ, 0, false, NULL},
};

static bool read_mpt_gguf(const GgufKeys *keys) {
    int64_t ffn = 0, width = gguf_field(keys, "hidden_size"), key_heads = gguf_field(keys, "num_attention_heads");
    double clip = 0, alibi = 0;
    if (!gguf_key_integer(keys, "attention.head_count_kv", &key_heads) || !gguf_key_integer(keys, "feed_forward_length", &ffn) ||
        !gguf_key_real(keys, "attention.clamp_kqv", &clip) || !gguf_key_real(keys, "attention.max_alibi_bias", &alibi))
        return false;
    if (ffn % width) return gguf_key_refuse(keys, "feed_forward_length", "is not a multiple of embedding_length");
    if (!(alibi > 0))
        return gguf_key_refuse(keys, "attention.max_alibi_bias", "must be above 0, because smelt's mpt has only ALiBi positions");
    json_t *attention = json_object();
    hf_put_text(attention, "attn_type", "grouped_query_attention");
    hf_put_integer(attention, "kv_n_heads", key_heads);
    hf_put(attention, "alibi_bias_max", json_real(gguf_shortest(alibi)));
    hf_put(attention, "clip_qkv", clip > 0 ? json_real(gguf_shortest(clip)) : json_null());
    hf_put(attention, "qk_ln", json_boolean(gguf_tensor(keys->file, "blk.0.attn_q_norm.weight") != NULL));
    hf_put(keys->object, "attn_config", attention);
    hf_put_integer(keys->object, "expansion_ratio", ffn / width);
    return true;
}

static bool check_gguf(const ModelConfig *c, Error *error) {
    return c->softmax_scale <= 0 || c->softmax_scale == 1 / sqrt((double)c->head_dim) ||
           error_set(error, ERROR_USAGE, "model.softmax_scale=%g must be 0, because llama.cpp uses 1 / sqrt(head_dim)", c->softmax_scale);
}

static const GgufClass gguf = {.architecture = "mpt", .rows = gguf_rows, .names = gguf_names, .read = read_mpt_gguf, .check = check_gguf};
static const HfClass class = {.model_type = "mpt",
    .architecture = "MptForCausalLM",
    .tables = {{fields, hf_shared_fields, hf_metadata_fields}},
    .check = check_mpt_class,
    .put = put_mpt,
    .layouts = {{"wte.weight", hf_list_bare}},
    .logit_scale = logit_scale,
    .scaled = "transformer.norm_f.weight",
    .gguf = &gguf};
static const HfClass *const classes[] = {&class, NULL};

/* -- The rule ------------------------------------------------------------------------------------------------------ */

static const char *const settings[] = {"alibi_max", "clip_qkv", "qk_norm", "softmax_scale", NULL};

const FamilyRule family_mpt = {.name = "mpt",
    .settings = settings,
    .norms_all_heads = true,
    .activation = ACTIVATION_gelu,
    .check = family_check_width,
    .layers = "transformer.blocks",
    .classes = classes,
    .build = build_mpt};
