/* GLM-4.5 (arXiv 2508.06471): Llama's layers with RoPE on a part of each head, optional norms of query
 * and key heads, and, from model.experts_first on, DeepSeek-V3's mixture of routed and shared experts. */
#include "formats/hf_class.h"
#include "model/layer_spec.h"

static LayerSpec layer(Builder *b, int index) {
    LayerSpec spec = builder_llama_layer(b, index);
    if (model_layer_has_experts(b->config, index)) spec.mlp = deepseek_experts;
    return spec;
}

static Trunk build(Builder *b) { return builder_llama_decoder(b, layer); }

/* -- The class of transformers ------------------------------------------------------------------------------------- */

static void read_dense_layers(HfFieldReader *r, const char *name, const json_t *value) {
    (void)value;
    hf_read_dense_layers(r, name, 1);
}

static void read_rope(HfFieldReader *r, const char *name, const json_t *value) { hf_read_rope_part(r, name, value, 0.5); }

static const HfField fields[] = {
    INTEGER("vocab_size", vocabulary, "151552"),
    INTEGER("intermediate_size", dense_ffn, "10944"),
    INTEGER("num_hidden_layers", layers, "46"),
    INTEGER("num_attention_heads", heads, "96"),
    INTEGER("num_key_value_heads", kv_heads, "8"),
    INTEGER("head_dim", head_dim, "0"),
    INTEGER("max_position_embeddings", context, "131072"),
    REAL("rms_norm_eps", norm_epsilon, "1e-5"),
    BOOLEAN("attention_bias", qkv_bias, "false"),
    BOOLEAN("use_qk_norm", qk_norm, "false"),
    READ("rope_parameters", read_rope),
    INTEGER("moe_intermediate_size", ffn, "1408"),
    INTEGER("n_routed_experts", experts, "128"),
    SYNONYM("num_local_experts", "n_routed_experts"),
    INTEGER("num_experts_per_tok", experts_per_token, "8"),
    INTEGER("n_shared_experts", shared_experts, "1"),
    REAL("routed_scaling_factor", gate_scale, "1"),
    INTEGER("n_group", expert_groups, "1"),
    INTEGER("topk_group", groups_chosen, "1"),
    BOOLEAN("norm_topk_prob", renormalise, "true"),
    READ("first_k_dense_replace", read_dense_layers),
    NO_EFFECT("output_router_logits"),     /* the class has no router loss */
    NO_EFFECT("num_nextn_predict_layers"), /* the tensors of a folder tell whether it has the layer (model.mtp) */
    NO_EFFECT("num_mtp_layers"),
    END,
};

static void put(json_t *object, const ModelConfig *c) {
    hf_put_rows(object, c, fields);
    hf_put_decoder(object, c);
    hf_put_rope(object, c);
    hf_put(object, "partial_rotary_factor", json_real(c->rope_fraction));
    hf_put_integer(object, "intermediate_size", model_mixes_layers(c) ? c->dense_ffn : c->ffn);
    hf_put_integer(object, "first_k_dense_replace", c->experts_first);
    hf_put_integer(object, "num_nextn_predict_layers", c->mtp);
}

static bool check_gguf(const ModelConfig *c, Error *error) {
    if (c->expert_groups > 1)
        return error_set(error, ERROR_USAGE,
            "model.expert_groups=%lld: llama.cpp's glm4moe has no groups of experts: export a folder instead", (long long)c->expert_groups);
    return gguf_check_scaling(c, error);
}

static bool read_gguf(const GgufKeys *keys) {
    if (!gguf_read_dense(keys) || !gguf_read_prediction(keys)) return false;
    hf_put(keys->object, "attention_bias", json_boolean(gguf_tensor(keys->file, "blk.0.attn_q.bias") != NULL));
    hf_put(keys->object, "use_qk_norm", json_boolean(gguf_tensor(keys->file, "blk.0.attn_q_norm.weight") != NULL));
    return gguf_check_scores(keys, true);
}

static void put_gguf(GgufWriter *writer, const ModelConfig *c) {
    gguf_put_dense(writer, c);
    gguf_put_scores(writer, c);
}

static const GgufRow gguf_rows[] = {
    {"feed_forward_length", ROW_READ, 0, false, NULL},
    GGUF_SHARED_EXPERT_ROWS,
    {"leading_dense_block_count", ROW_READ, 0, false, NULL},
    {"nextn_predict_layers", ROW_READ, 0, false, NULL},
    {NULL, ROW_READ, 0, false, NULL},
};
static const GgufName gguf_names[] = {
    {"post_attention_layernorm.", "post_attention_norm."},
    GGUF_SHARED_EXPERT_NAMES,
    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {NULL, NULL},
};
static const GgufClass gguf = {.architecture = "glm4moe",
    .experts = true,
    .rotary = true,
    .rows = gguf_rows,
    .names = gguf_names,
    .read = read_gguf,
    .put = put_gguf,
    .check = check_gguf};

static void start(ModelConfig *c) { c->router_scores = SCORES_SIGMOID; }

static const HfClass class = {.model_type = "glm4_moe",
    .architecture = "Glm4MoeForCausalLM",
    .tables = {{fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}},
    .rotates_part = true,
    .skips_prediction = true,
    .start = start,
    .put = put,
    HF_SPLIT_EXPERTS,
    .gguf = &gguf};
static const HfClass *const classes[] = {&class, NULL};

/* -- The rule ------------------------------------------------------------------------------------------------------ */

static bool check(const ModelConfig *c, Error *error) {
    return (c->experts && c->shared_experts && c->router_scores == SCORES_SIGMOID) ||
           error_set(error, ERROR_USAGE,
               "model.experts=%lld, model.shared_experts=%lld: family glm has experts, shared experts, and a router with sigmoid scores: "
               "set "
               "them, and model.router_scores=sigmoid",
               (long long)c->experts, (long long)c->shared_experts);
}

static const char *const settings[] = {"activation", "dense_ffn", "expert_groups", "experts", "experts_first", "gate_scale",
    "groups_chosen", "mtp", "padding", "qk_norm", "qkv_bias", "rope_factor", "rope_fraction", "rope_theta", "router_scores",
    "shared_experts", NULL};

const FamilyRule family_glm = {.name = "glm", .settings = settings, .repeats_key_heads = true, .check = check, FAMILY_SWIGLU_DECODER};
