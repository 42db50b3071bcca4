/* Qwen3-Next: the layers of Qwen3.5 (qwen3_5.c), but the delta rule has two input projections instead of four, whose rows are
 * grouped by key head. All layers have experts, or every Nth layer has experts and the others are dense. */
#include "formats/hf_class.h"
#include "model/layer_spec.h"

static LayerSpec layer(Builder *b, int index) {
    LayerSpec spec = builder_delta_layer(b, index);
    if (!model_has_attention(b->config, index)) {
        spec.attention.queries = "linear_attn.in_proj_qkvz";
        spec.attention.keys = "linear_attn.in_proj_ba";
    }
    if (model_layer_has_experts(b->config, index)) spec.mlp = qwen_experts;
    return spec;
}

static Trunk build(Builder *b) { return builder_llama_decoder(b, layer); }

/* -- The class of transformers ------------------------------------------------------------------------------------- */

static const HfField fields[] = {
    INTEGER("vocab_size", vocabulary, "151936"),
    INTEGER("num_hidden_layers", layers, "48"),
    INTEGER("intermediate_size", dense_ffn, "5632"),
    INTEGER("num_experts_per_tok", experts_per_token, "10"),
    INTEGER("num_experts", experts, "512"),
    BOOLEAN("norm_topk_prob", renormalise, "true"),
    READ("mlp_only_layers", hf_read_sparse_layers),
    NO_EFFECT("decoder_sparse_step"), /* read with mlp_only_layers */
    END,
};

static void put(json_t *object, const ModelConfig *c) {
    hf_put_delta(object, c);
    hf_put_rows(object, c, fields);
    hf_put_sparse_layers(object, c);
}

static bool check_qwen3next_gguf(const ModelConfig *c, Error *error) {
    if (model_mixes_layers(c))
        return error_set(error, ERROR_USAGE,
            "model.experts_first=%lld, model.experts_period=%lld: llama.cpp's qwen3next has experts in all layers: export a folder instead",
            (long long)c->experts_first, (long long)c->experts_period);
    if (!c->renormalise)
        return error_set(error, ERROR_USAGE, "model.renormalise=false: gates of llama.cpp's qwen3next sum to 1: export a folder instead");
    return hf_check_delta_gguf(c, error);
}

static bool read_qwen3next_gguf(const GgufKeys *keys) {
    hf_put(keys->object, "norm_topk_prob", json_true());
    return hf_read_delta_gguf(keys);
}

static const GgufRow gguf_rows[] = {GGUF_DELTA_ROWS, GGUF_DELTA_EXPERT_ROWS, {NULL, ROW_READ, 0, false, NULL}};
static const GgufName gguf_names[] = {GGUF_DELTA_NAMES, {NULL, NULL}};
static const GgufClass gguf = {.architecture = "qwen3next",
    .experts = true,
    .rotary = true,
    .rows = gguf_rows,
    .names = gguf_names,
    .list = hf_list_delta_gguf,
    .read = read_qwen3next_gguf,
    .put = hf_put_delta_gguf,
    .check = check_qwen3next_gguf};

static const HfClass class = {.model_type = "qwen3_next",
    .architecture = "Qwen3NextForCausalLM",
    .tables = {{fields, hf_delta_expert_fields, hf_delta_fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}},
    .rotates_part = true,
    .gain_offset = 1,
    .lacks_router_biases = true,
    .skips_prediction = true,
    .put = put,
    HF_SPLIT_EXPERTS,
    .gguf = &gguf};
static const HfClass *const classes[] = {&class, NULL};

/* -- The rule ------------------------------------------------------------------------------------------------------ */

static bool check(const ModelConfig *c, Error *error) {
    if (!c->experts || !c->shared_experts)
        return error_set(error, ERROR_USAGE,
            "model.experts=%lld, model.shared_experts=%lld: family qwen3_next needs routed and shared experts: set both to at least 1",
            (long long)c->experts, (long long)c->shared_experts);
    return family_check_delta(c, error);
}

static const char *const settings[] = {"attention_period", "delta_heads", "delta_key_dim", "delta_key_heads", "delta_taps",
    "delta_value_dim", "dense_ffn", "experts", "experts_first", "experts_period", "padding", "rope_factor", "rope_fraction", "rope_theta",
    "shared_experts", NULL};

const FamilyRule family_qwen3_next = {
    .name = "qwen3_next", .settings = settings, .repeats_key_heads = true, .keeps_states = true, .check = check, FAMILY_SWIGLU_DECODER};
