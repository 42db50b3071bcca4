/* DeepSeek-V2 (arXiv 2405.04434) and V3 (arXiv 2412.19437): Llama's layers with multi-head latent
 * attention (model/latent.c) and, from model.experts_first on, a mixture of experts beside shared
 * ones. V2's router is a softmax, V3's a sigmoid per expert. Moonlight has V3's class; Kimi-K2 and GLM-4.7-Flash are V3's model. */
#include <string.h>

#include "formats/hf_class.h"
#include "model/layer_spec.h"

static LayerSpec layer(Builder *b, int index) {
    const ModelConfig *c = b->config;
    LayerSpec spec = builder_llama_layer(b, index);
    AttentionLayer *attention = &spec.attention;
    attention->query_latents = "self_attn.q_a_proj";
    attention->query_norm = "self_attn.q_a_layernorm";
    if (c->q_lora_rank) attention->queries = "self_attn.q_b_proj";
    attention->keys = "self_attn.kv_a_proj_with_mqa";
    attention->key_norm = "self_attn.kv_a_layernorm";
    attention->values = "self_attn.kv_b_proj";
    attention->build = builder_latent_attention;
    if (model_layer_has_experts(c, index)) spec.mlp = deepseek_experts;
    return spec;
}

static Trunk build(Builder *b) { return builder_llama_decoder(b, layer); }

/* -- Classes of transformers --------------------------------------------------------------------------------------- */

/* Reads the channels of a head that RoPE does not rotate. In config.json, head_dim counts the others. */
static void read_channels_or(HfFieldReader *r, const char *name, int64_t fallback) {
    ModelConfig *c = r->model;
    int64_t plain = hf_integer_or(r, name, 1, fallback);
    if (c->head_dim && c->head_dim != c->rope_dim) hf_refuse(r, "head_dim", "differs from qk_rope_head_dim, which is not supported");
    if (plain % 2 || __builtin_add_overflow(plain, c->rope_dim, &c->head_dim)) hf_refuse(r, name, "is odd or too large");
}

static void read_channels(HfFieldReader *r, const char *name, const json_t *value) {
    (void)value;
    read_channels_or(r, name, 128);
}
static void read_lite_channels(HfFieldReader *r, const char *name, const json_t *value) {
    (void)value;
    read_channels_or(r, name, 192);
}

static void read_dense_layers(HfFieldReader *r, const char *name, const json_t *value) {
    (void)value;
    hf_read_dense_layers(r, name, r->model->router_scores == SCORES_SIGMOID ? 3 : 0);
}

/* Groups have no effect with "greedy". */
static void read_choice(HfFieldReader *r, const char *name, const json_t *value) {
    ModelConfig *c = r->model;
    const char *word = value ? json_string_value(value) : "greedy";
    bool limited = word && !strcmp(word, "group_limited_greedy");
    if (!limited && (!word || strcmp(word, "greedy") != 0)) hf_refuse(r, name, "is neither \"greedy\" nor \"group_limited_greedy\"");
    if (limited && (!c->expert_groups || !c->groups_chosen)) hf_refuse(r, name, "needs n_group and topk_group");
    if (!limited) c->expert_groups = c->groups_chosen = 1;
}

static const HfField latent_fields[] = {
    READ("qk_nope_head_dim", read_channels),
    INTEGER("qk_rope_head_dim", rope_dim, "64"),
    INTEGER("v_head_dim", value_dim, "128"),
    INTEGER("q_lora_rank", q_lora_rank, "1536 null"),
    INTEGER("kv_lora_rank", kv_lora_rank, "512"),
    INTEGER("head_dim", head_dim, "0 null"),
    READ("first_k_dense_replace", read_dense_layers),
    NO_EFFECT("qk_head_dim"),
    FIXED("attention_bias", "false"),
    FIXED("moe_layer_freq", "1"), /* a field of DeepSeek's own code, like scoring_func */
    NO_EFFECT("pretraining_tp"),
    NO_EFFECT("output_router_logits"), /* these classes have no router loss */
    END,
};

static const HfField v2_fields[] = {
    INTEGER("vocab_size", vocabulary, "102400"),
    INTEGER("max_position_embeddings", context, "2048"),
    INTEGER("intermediate_size", dense_ffn, "11008"),
    INTEGER("num_key_value_heads", kv_heads, "0 null"),
    INTEGER("moe_intermediate_size", ffn, "1407"),
    INTEGER("n_routed_experts", experts, "64"),
    SYNONYM("num_experts", "n_routed_experts"),
    INTEGER("num_experts_per_tok", experts_per_token, "0 null"),
    INTEGER("n_shared_experts", shared_experts, "2"),
    REAL("routed_scaling_factor", gate_scale, "1"),
    READ("topk_method", read_choice),
    INTEGER("n_group", expert_groups, "0 null"),
    INTEGER("topk_group", groups_chosen, "0 null"),
    FIXED("norm_topk_prob", "false null"), /* DeepSeek's own code reads it, transformers does not */
    FIXED("scoring_func", "softmax"),
    FIXED("mlp_bias", "false"),
    END,
};

static const HfField v3_fields[] = {
    INTEGER("vocab_size", vocabulary, "129280"),
    INTEGER("hidden_size", width, "7168"),
    INTEGER("num_hidden_layers", layers, "61"),
    INTEGER("num_attention_heads", heads, "128"),
    INTEGER("max_position_embeddings", context, "4096"),
    INTEGER("intermediate_size", dense_ffn, "18432"),
    INTEGER("num_key_value_heads", kv_heads, "128 null"),
    INTEGER("moe_intermediate_size", ffn, "2048"),
    INTEGER("n_routed_experts", experts, "256"),
    SYNONYM("num_local_experts", "n_routed_experts"),
    INTEGER("num_experts_per_tok", experts_per_token, "8"),
    INTEGER("n_shared_experts", shared_experts, "1"),
    REAL("routed_scaling_factor", gate_scale, "2.5"),
    INTEGER("n_group", expert_groups, "8"),
    INTEGER("topk_group", groups_chosen, "4"),
    BOOLEAN("norm_topk_prob", renormalise, "true"),
    BOOLEAN("rope_interleave", rope_interleave, "true"),
    FIXED("topk_method", "noaux_tc"),
    FIXED("scoring_func", "sigmoid"),
    NO_EFFECT("num_nextn_predict_layers"), /* the tensors of a folder tell whether it has the layer (model.mtp) */
    NO_EFFECT("num_mtp_layers"),
    END,
};

/* Reads a list with "sparse" for each layer that has experts, and "dense" for each layer before them. */
static void read_layer_kinds(HfFieldReader *r, const char *name, const json_t *kinds) {
    ModelConfig *c = r->model;
    size_t layers = json_array_size(kinds);
    bool given = kinds && !json_is_null(kinds);
    if (given && (int64_t)layers != c->layers) hf_refuse(r, name, "does not have one name per layer (num_hidden_layers)");
    c->experts_first = !given;
    for (size_t i = 0; i < layers && r->good; i++) {
        const char *kind = json_string_value(json_array_get(kinds, i));
        bool dense = kind && !strcmp(kind, "dense");
        if (!dense && (!kind || strcmp(kind, "sparse") != 0)) hf_refuse(r, name, "holds a name other than \"dense\" and \"sparse\"");
        if (dense && c->experts_first < (int64_t)i) hf_refuse(r, name, "has \"dense\" after \"sparse\", which is not supported");
        c->experts_first += dense;
    }
    if (c->experts_first >= c->layers) hf_refuse(r, name, "leaves no layer with experts, which is not supported");
    if (!model_mixes_layers(c)) c->dense_ffn = 0;
}

static const HfField lite_fields[] = {
    INTEGER("vocab_size", vocabulary, "154880"),
    INTEGER("hidden_size", width, "2048"),
    INTEGER("num_hidden_layers", layers, "47"),
    INTEGER("num_attention_heads", heads, "20"),
    INTEGER("max_position_embeddings", context, "202752"),
    REAL("rms_norm_eps", norm_epsilon, "1e-5"),
    INTEGER("intermediate_size", dense_ffn, "10240"),
    INTEGER("num_key_value_heads", kv_heads, "20"),
    INTEGER("moe_intermediate_size", ffn, "1536"),
    INTEGER("n_routed_experts", experts, "64"),
    INTEGER("num_experts_per_tok", experts_per_token, "4"),
    REAL("routed_scaling_factor", gate_scale, "1.8"),
    INTEGER("n_group", expert_groups, "1"),
    INTEGER("topk_group", groups_chosen, "1"),
    INTEGER("v_head_dim", value_dim, "256"),
    INTEGER("q_lora_rank", q_lora_rank, "768 null"),
    READ("qk_nope_head_dim", read_lite_channels),
    READ("mlp_layer_types", read_layer_kinds),
    NO_EFFECT("first_k_dense_replace"), /* in published folders */
    END,
};

static bool fits_v3(const ModelConfig *c) { return c->router_scores == SCORES_SIGMOID; }

static bool check_class(const ModelConfig *c, const char *architecture, Error *error) {
    if (!c->shared_experts) return error_set(error, ERROR_USAGE, "model.shared_experts=0: %s has at least one", architecture);
    if (fits_v3(c)) return true;
    if (c->renormalise || !c->rope_interleave)
        return error_set(error, ERROR_USAGE,
            "model.renormalise must be false and model.rope_interleave true for %s: change them, or set model.router_scores=sigmoid",
            architecture);
    return hf_check_divided_width(c, architecture, error);
}

static void put(json_t *object, const ModelConfig *c) {
    bool v3 = fits_v3(c);
    hf_put_rows(object, c, v3 ? v3_fields : v2_fields);
    hf_put_rows(object, c, latent_fields);
    hf_put_decoder(object, c);
    hf_put_rope(object, c);
    hf_put_integer(object, "head_dim", c->rope_dim);
    hf_put_integer(object, "qk_nope_head_dim", c->head_dim - c->rope_dim);
    hf_put_integer(object, "intermediate_size", model_mixes_layers(c) ? c->dense_ffn : c->ffn);
    hf_put_integer(object, "first_k_dense_replace", c->experts_first);
    hf_put_text(object, "topk_method", v3 ? "noaux_tc" : c->expert_groups > 1 ? "group_limited_greedy" : "greedy");
    hf_put_text(object, "scoring_func", v3 ? "sigmoid" : "softmax");
    if (v3) hf_put_integer(object, "num_nextn_predict_layers", c->mtp);
}

/* -- GGUF ----------------------------------------------------------------------------------------------------------- */

static bool check_gguf(const ModelConfig *c, Error *error) {
    if (!c->rope_interleave)
        return error_set(
            error, ERROR_USAGE, "model.rope_interleave=false: llama.cpp's deepseek2 rotates neighboring channels: export a folder instead");
    if (c->rope_attention_factor != 1)
        return error_set(error, ERROR_USAGE,
            "model.rope_attention_factor=%g: llama.cpp's deepseek2 computes 1 only: export a folder instead", c->rope_attention_factor);
    if (c->norm_epsilon != 1e-6)
        return error_set(error, ERROR_USAGE,
            "model.norm_epsilon=%g: llama.cpp's deepseek2 applies it to latents too, where transformers has 1e-6: export a folder "
            "instead",
            c->norm_epsilon);
    if ((c->layers == 26 || c->layers == 27) != !c->q_lora_rank)
        return error_set(error, ERROR_USAGE,
            "model.q_lora_rank=%lld and model.layers=%lld: llama.cpp's deepseek2 has no latents of queries with 26 or 27 layers, and has "
            "them otherwise: export a folder instead",
            (long long)c->q_lora_rank, (long long)c->layers);
    if (!fits_v3(c) && c->expert_groups > 1)
        return error_set(error, ERROR_USAGE,
            "model.expert_groups=%lld: llama.cpp chooses groups of experts as DeepSeek-V3 does only: export a folder instead",
            (long long)c->expert_groups);
    return gguf_check_scaling(c, error);
}

static bool read_gguf(const GgufKeys *keys) {
    int64_t query_latents = 0, groups = 1, chosen = 1, columns = 0, rotated = 0, key_heads = 0;
    int64_t heads = gguf_field(keys, "num_attention_heads");
    json_t *object = keys->object;
    if (!gguf_read_dense(keys) || !gguf_read_prediction(keys) || !gguf_key_integer(keys, "attention.q_lora_rank", &query_latents) ||
        !gguf_key_integer(keys, "expert_group_count", &groups) || !gguf_key_integer(keys, "expert_group_used_count", &chosen) ||
        !gguf_key_integer(keys, "attention.key_length", &columns) || !gguf_key_integer(keys, "rope.dimension_count", &rotated) ||
        !gguf_key_integer(keys, "attention.head_count_kv", &key_heads))
        return false;
    if (key_heads != heads)
        return gguf_key_refuse(
            keys, "attention.head_count_kv", "is not attention.head_count: smelt reads attn_kv_b, not attn_k_b and attn_v_b");
    if (columns <= rotated || !rotated) return gguf_key_refuse(keys, "attention.key_length", "is not above rope.dimension_count");
    hf_put_integer(object, "num_key_value_heads", heads);
    hf_put_integer(object, "qk_nope_head_dim", columns - rotated);
    hf_put_integer(object, "qk_rope_head_dim", rotated);
    hf_put(object, "q_lora_rank", query_latents ? json_integer(query_latents) : json_null());
    hf_put_integer(object, "n_group", groups);
    hf_put_integer(object, "topk_group", chosen);
    return true;
}

/* The router of DeepSeek-V2 does not renormalize gates. */
static bool read_v2_gguf(const GgufKeys *keys) {
    if (json_is_true(json_object_get(keys->object, "norm_topk_prob")))
        return gguf_key_refuse(keys, "expert_weights_norm", "must be false with softmax scores");
    return read_gguf(keys);
}

static void put_gguf(GgufWriter *writer, const ModelConfig *c) {
    gguf_put_dense(writer, c);
    if (c->q_lora_rank) gguf_put_number(writer, c, "attention.q_lora_rank", c->q_lora_rank);
    if (c->expert_groups > 1) {
        gguf_put_number(writer, c, "expert_group_count", c->expert_groups);
        gguf_put_number(writer, c, "expert_group_used_count", c->groups_chosen);
    }
    gguf_put_scores(writer, c);
}

static const GgufRow gguf_rows[] = {
    {"feed_forward_length", ROW_READ, 0, false, NULL},
    {"leading_dense_block_count", ROW_READ, 0, false, NULL},
    {"attention.value_length", ROW_INTEGER, GGUF_AT(value_dim), true, "v_head_dim"},
    {"attention.q_lora_rank", ROW_READ, 0, false, NULL},
    {"attention.kv_lora_rank", ROW_INTEGER, GGUF_AT(kv_lora_rank), true, "kv_lora_rank"},
    GGUF_SHARED_EXPERT_ROWS,
    {"expert_group_count", ROW_READ, 0, false, NULL},
    {"expert_group_used_count", ROW_READ, 0, false, NULL},
    {"rope.scaling.yarn_log_multiplier", ROW_READ, 0, false, NULL},
    {"nextn_predict_layers", ROW_READ, 0, false, NULL},
    {NULL, ROW_READ, 0, false, NULL},
};
static const GgufName gguf_names[] = {
    {"self_attn.q_a_proj.", "attn_q_a."},
    {"self_attn.q_a_layernorm.", "attn_q_a_norm."},
    {"self_attn.q_b_proj.", "attn_q_b."},
    {"self_attn.kv_a_proj_with_mqa.", "attn_kv_a_mqa."},
    {"self_attn.kv_a_layernorm.", "attn_kv_a_norm."},
    {"self_attn.kv_b_proj.", "attn_kv_b."},
    GGUF_SHARED_EXPERT_NAMES,
    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {NULL, NULL},
};
#define GGUF_DEEPSEEK \
    .architecture = "deepseek2", .experts = true, .rotary = true, .latent = true, .rows = gguf_rows, .names = gguf_names, \
    .put = put_gguf, .check = check_gguf
static const GgufClass gguf_v2 = {GGUF_DEEPSEEK, .scores = GGUF_SOFTMAX, .read = read_v2_gguf};
static const GgufClass gguf_v3 = {GGUF_DEEPSEEK, .scores = GGUF_SIGMOID, .read = read_gguf};

/* -- The classes ----------------------------------------------------------------------------------------------------- */

static void start_v3(ModelConfig *c) { c->router_scores = SCORES_SIGMOID; }

static const HfClass v2 = {.model_type = "deepseek_v2",
    .architecture = "DeepseekV2ForCausalLM",
    .tables = {{v2_fields, latent_fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}},
    .scales_scores = true,
    .lacks_router_biases = true,
    .check = check_class,
    .put = put,
    HF_SPLIT_EXPERTS,
    .gguf = &gguf_v2};
static const HfClass v3 = {.model_type = "deepseek_v3",
    .architecture = "DeepseekV3ForCausalLM",
    .tables = {{v3_fields, latent_fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}},
    .scales_scores = true,
    .skips_prediction = true,
    .start = start_v3,
    .fits = fits_v3,
    .check = check_class,
    .put = put,
    HF_SPLIT_EXPERTS,
    .gguf = &gguf_v3};

/* V3's model in a folder of Kimi-K2, and with the fields of GLM-4.7-Flash. */
static const HfClass kimi_k2 = {.model_type = "kimi_k2",
    .architecture = "DeepseekV3ForCausalLM",
    .tables = {{v3_fields, latent_fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}},
    .scales_scores = true,
    .skips_prediction = true,
    .start = start_v3,
    HF_SPLIT_EXPERTS};
static const HfClass glm4_moe_lite = {.model_type = "glm4_moe_lite",
    .architecture = "Glm4MoeLiteForCausalLM",
    .tables = {{lite_fields, v3_fields, latent_fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}},
    .rotates_whole = true,
    .scales_scores = true,
    .skips_prediction = true,
    .start = start_v3,
    HF_SPLIT_EXPERTS};
static const HfClass *const classes[] = {&v3, &v2, &kimi_k2, &glm4_moe_lite, NULL};

/* -- The rule ------------------------------------------------------------------------------------------------------ */

static bool check(const ModelConfig *c, Error *error) {
    if (!c->experts) return error_set(error, ERROR_USAGE, "model.experts=0: family deepseek has experts: set model.experts");
    if (c->mtp && !fits_v3(c))
        return error_set(error, ERROR_USAGE,
            "model.mtp=%lld: only DeepSeek-V3 has layers for multi-token prediction: set model.router_scores=sigmoid, or model.mtp=0",
            (long long)c->mtp);
    return family_check_key_heads(c, error);
}

static const char *const settings[] = {"activation", "dense_ffn", "expert_groups", "experts", "experts_first", "gate_scale",
    "groups_chosen", "kv_lora_rank", "mtp", "padding", "q_lora_rank", "rope_dim", "rope_factor", "rope_interleave", "rope_mscale",
    "rope_theta", "router_scores", "shared_experts", "value_dim", NULL};

const FamilyRule family_deepseek = {.name = "deepseek", .settings = settings, .check = check, FAMILY_SWIGLU_DECODER};
