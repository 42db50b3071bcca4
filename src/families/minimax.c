/* MiniMax-M2 (huggingface.co/MiniMaxAI/MiniMax-M2): Llama's layers with RoPE on a part of each head,
 * norms over all queries and all keys of a token before RoPE, and a mixture of experts with
 * DeepSeek-V3's router in all layers. */
#include "base/memory.h"
#include "formats/hf_class.h"
#include "model/layer_spec.h"

static LayerSpec layer(Builder *b, int index) {
    LayerSpec spec = builder_llama_layer(b, index);
    spec.attention.query_norm = "self_attn.q_norm", spec.attention.key_norm = "self_attn.k_norm";
    spec.mlp = (MlpLayer){.router = "mlp.gate", .experts = "mlp.experts", .balancing = "mlp.e_score_correction_bias"};
    return spec;
}

static Trunk build(Builder *b) {
    static const Decoder decoder = {.embedding = "model.embed_tokens.weight", .last_norm = "model.norm", .norm = NORM_RMS, .layer = layer};
    return builder_decoder(b, &decoder);
}

/* -- The class of transformers ------------------------------------------------------------------------------------- */

/* Older files give the rotated channels of a head. */
static void read_rope(HfFieldReader *r, const char *name, const json_t *value) {
    int64_t head = r->model->head_dim, rotated = json_is_null(hf_field(r, "rotary_dim")) ? head : hf_integer_or(r, "rotary_dim", 1, head);
    if (rotated > head) hf_refuse(r, "rotary_dim", "is more than head_dim=%lld", (long long)head);
    hf_read_rope_part(r, name, value, (double)rotated / (double)head);
}

static const HfField fields[] = {
    INTEGER("vocab_size", vocabulary, "200064"),
    INTEGER("hidden_size", width, "3072"),
    INTEGER("intermediate_size", ffn, "1536"),
    INTEGER("num_hidden_layers", layers, "62"),
    INTEGER("num_attention_heads", heads, "48"),
    INTEGER("num_key_value_heads", kv_heads, "8"),
    INTEGER("head_dim", head_dim, "128"),
    INTEGER("max_position_embeddings", context, "196608"),
    READ("rope_parameters", read_rope), /* reads the next field too */
    NO_EFFECT("rotary_dim"),
    INTEGER("num_local_experts", experts, "256"),
    SYNONYM("num_experts", "num_local_experts"),
    INTEGER("num_experts_per_tok", experts_per_token, "8"),
    FIXED("output_router_logits", "false"), /* a loss over softmax scores, which the model does not have */
    NO_EFFECT("router_aux_loss_coef"),
    FIXED("router_jitter_noise", "0.0 0"),
    FIXED("scoring_func", "sigmoid"), /* in MiniMax's folders, like the next fields; transformers does not read them */
    FIXED("qk_norm_type", "per_layer"),
    FIXED("use_qk_norm", "true"),
    FIXED("use_routing_bias", "true"),
    FIXED("shared_intermediate_size", "0"),
    END,
};

static void put(json_t *object, const ModelConfig *c) {
    hf_put_rows(object, c, fields);
    hf_put_decoder(object, c);
    hf_put_rope(object, c);
    hf_put_integer(object, "rotary_dim", (int64_t)(c->rope_fraction * (double)c->head_dim));
}

static void list_experts(HfTensorList *list, const HfParameter *parameter) {
    const char *rest;
    int layer = hf_split_layer(parameter, &rest);
    if (parameter->p->kind == PARAMETER_BALANCE_BIAS)
        hf_append(list, memory_format("model.layers.%d.block_sparse_moe.e_score_correction_bias", layer), parameter);
    else hf_list_split_experts(list, parameter, "block_sparse_moe", (const char *const[]){"w1", "w3", "w2"});
}

static void start(ModelConfig *c) { c->router_scores = SCORES_SIGMOID, c->renormalise = true; }

static bool check_gguf(const ModelConfig *c, Error *error) {
    if (c->tied)
        return error_set(error, ERROR_USAGE, "model.tied=true: llama.cpp's minimax-m2 has an LM head of its own: export a folder instead");
    return gguf_check_scaling(c, error);
}
static bool read_gguf(const GgufKeys *keys) { return gguf_check_scores(keys, true); }

static const GgufRow gguf_rows[] = {
    {"expert_feed_forward_length", ROW_INTEGER, GGUF_AT(ffn), true, "intermediate_size"},
    {"expert_count", ROW_INTEGER, GGUF_AT(experts), true, "num_local_experts"},
    {"expert_used_count", ROW_INTEGER, GGUF_AT(experts_per_token), true, "num_experts_per_tok"},
    {"expert_gating_func", ROW_READ, 0, false, NULL},
    {NULL, ROW_READ, 0, false, NULL},
};
static const GgufName gguf_names[] = {{"mlp.e_score_correction_bias", "exp_probs_b.bias"}, {NULL, NULL}};
static const GgufClass gguf = {.architecture = "minimax-m2",
    .experts = true,
    .rotary = true,
    .rows = gguf_rows,
    .names = gguf_names,
    .read = read_gguf,
    .put = gguf_put_scores,
    .check = check_gguf};

static const HfClass class = {.model_type = "minimax_m2",
    .architecture = "MiniMaxM2ForCausalLM",
    .tables = {{fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}},
    .rope_theta = 5e6,
    .rotates_part = true,
    .router_is_parameter = true,
    .start = start,
    .put = put,
    .list = list_experts,
    .layouts = {HF_STACKED},
    .gguf = &gguf};
static const HfClass *const classes[] = {&class, NULL};

/* -- The rule ------------------------------------------------------------------------------------------------------ */

static bool check(const ModelConfig *c, Error *error) {
    if (!c->experts || c->router_scores != SCORES_SIGMOID)
        return error_set(error, ERROR_USAGE,
            "model.experts=%lld: family minimax has experts, and a router with sigmoid scores: set model.experts and "
            "model.router_scores=sigmoid",
            (long long)c->experts);
    return family_check_gates(c, "family minimax", error);
}

static const char *const settings[] = {
    "activation", "experts", "padding", "rope_factor", "rope_fraction", "rope_theta", "router_scores", NULL};

const FamilyRule family_minimax = {
    .name = "minimax", .settings = settings, .repeats_key_heads = true, .norms_all_heads = true, .check = check, FAMILY_SWIGLU_DECODER};
