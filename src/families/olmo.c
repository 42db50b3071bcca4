/* OLMo 2 (arXiv 2501.00656): Llama's attention and MLP without norms before them. The output of each
 * is normalized before it is added to the stream, and so are all queries and all keys of a token
 * before RoPE. */
#include "formats/hf_class.h"
#include "model/layer_spec.h"

static LayerSpec layer(Builder *b, int index) {
    const ModelConfig *c = b->config;
    (void)index;
    return (LayerSpec){.after_attention = "post_attention_layernorm",
        .after_mlp = "post_feedforward_layernorm",
        .attention = {.queries = "self_attn.q_proj",
            .keys = "self_attn.k_proj",
            .values = "self_attn.v_proj",
            .output = "self_attn.o_proj",
            .query_norm = "self_attn.q_norm",
            .key_norm = "self_attn.k_norm",
            .rope_table = builder_rope_table(b, c->rope_theta),
            .scores = {.window = c->window}},
        .mlp = {.gate = "mlp.gate_proj", .up = "mlp.up_proj", .down = "mlp.down_proj"}};
}

static Trunk build(Builder *b) {
    static const Decoder decoder = {.embedding = "model.embed_tokens.weight", .last_norm = "model.norm", .norm = NORM_RMS, .layer = layer};
    return builder_decoder(b, &decoder);
}

/* -- Class of transformers ----------------------------------------------------------------------------------------- */

static void read_padding(HfFieldReader *r, const char *name, const json_t *value) {
    if (value) hf_read_padding(r, name, value);
    else r->model->padding = 1;
}

static const HfField fields[] = {
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

static bool check_class(const ModelConfig *c, const char *architecture, Error *error) {
    return !c->window || error_set(error, ERROR_USAGE, "model.window=%lld: %s has no window", (long long)c->window, architecture);
}

static void put(json_t *object, const ModelConfig *c) {
    hf_put_decoder(object, c);
    hf_put_rope(object, c);
    hf_put_integer(object, "intermediate_size", c->ffn);
    hf_put(object, "attention_bias", json_false());
}

static const GgufName gguf_names[] = {
    {"post_attention_layernorm.", "post_attention_norm."},
    {"post_feedforward_layernorm.", "post_ffw_norm."},
    {NULL, NULL},
};
/* The default of pad_token_id is a token. */
static bool read_gguf(const GgufKeys *keys) {
    hf_put(keys->object, "pad_token_id", json_null());
    return true;
}

static const GgufClass gguf = {.architecture = "olmo2", .rotary = true, .names = gguf_names, .read = read_gguf};
static const HfClass class = {.model_type = "olmo2",
    .architecture = "Olmo2ForCausalLM",
    .tables = {{fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}},
    .check = check_class,
    .put = put,
    .gguf = &gguf};
static const HfClass *const classes[] = {&class, NULL};

/* -- The rule ------------------------------------------------------------------------------------------------------ */

static const char *const settings[] = {"activation", "padding", "rope_factor", "rope_theta", NULL};

const FamilyRule family_olmo = {.name = "olmo",
    .settings = settings,
    .repeats_key_heads = true,
    .norms_all_heads = true,
    .check = family_check_fused_norms,
    .activation = ACTIVATION_swiglu,
    .layers = "model.layers",
    .classes = classes,
    .build = build};
