/* Phi-3 (arXiv 2404.14219) and Phi-4: Llama's layers with one matrix for queries, keys and values and
 * one for gate and up projection. RoPE rotates a part of a head's channels, and LongRoPE scales it. */
#include "formats/hf_class.h"
#include "model/layer_spec.h"

static LayerSpec layer(Builder *b, int index) {
    LayerSpec spec = builder_llama_layer(b, index);
    spec.attention.queries = "self_attn.qkv_proj", spec.attention.keys = NULL;
    spec.mlp = (MlpLayer){.up = "mlp.gate_up_proj", .down = "mlp.down_proj"};
    return spec;
}

static Trunk build(Builder *b) { return builder_llama_decoder(b, layer); }

/* -- The class of transformers ------------------------------------------------------------------------------------- */

enum { ORIGINAL_CONTEXT = 4096 };

static void read_padding(HfFieldReader *r, const char *name, const json_t *value) { hf_read_padding_or(r, name, value, 32000); }

static const HfField fields[] = {
    INTEGER("vocab_size", vocabulary, "32064"),
    INTEGER("hidden_size", width, "3072"),
    INTEGER("intermediate_size", ffn, "8192"),
    INTEGER("num_key_value_heads", kv_heads, "0 null"),
    INTEGER("head_dim", head_dim, "0"),
    INTEGER("max_position_embeddings", context, "4096"),
    REAL("rms_norm_eps", norm_epsilon, "1e-5"),
    INTEGER("sliding_window", window, "0 null"),
    READ("pad_token_id", read_padding),
    NO_EFFECT("resid_pdrop"),
    NO_EFFECT("embd_pdrop"),
    FIXED("attention_bias", "false"), /* in published folders, like the next field; transformers does not read them */
    FIXED("mlp_bias", "false"),
    END,
};

static bool check_class(const ModelConfig *c, const char *architecture, Error *error) {
    return c->rope_factor == 1 || c->rope_scaling == ROPE_LONGROPE ||
           error_set(error, ERROR_USAGE,
               "model.rope_scaling: %s has only longrope: set model.rope_scaling=longrope, or model.rope_factor=1", architecture);
}

static void put(json_t *object, const ModelConfig *c) {
    hf_put_decoder(object, c);
    hf_put_rope(object, c);
    hf_put(object, "partial_rotary_factor", json_real(c->rope_fraction));
    hf_put_integer(object, "original_max_position_embeddings", hf_is_scaled(c) ? c->rope_original_context : ORIGINAL_CONTEXT);
    hf_put_integer(object, "intermediate_size", c->ffn);
    hf_put(object, "sliding_window", c->window ? json_integer(c->window) : json_null());
    hf_put(object, "resid_pdrop", json_real(0));
    hf_put(object, "embd_pdrop", json_real(0));
}

static const GgufName gguf_names[] = {{"self_attn.qkv_proj.", "attn_qkv."}, {"mlp.gate_up_proj.", "ffn_up."}, {NULL, NULL}};
static const GgufClass gguf = {
    .architecture = "phi3", .rotary = true, .names = gguf_names, .read = gguf_read_padding, .check = gguf_check_scaling};

static const HfClass class = {.model_type = "phi3",
    .architecture = "Phi3ForCausalLM",
    .tables = {{fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}},
    .rotates_part = true,
    .has_only_longrope = true,
    .original_context = ORIGINAL_CONTEXT,
    .check = check_class,
    .put = put,
    .gguf = &gguf};
static const HfClass *const classes[] = {&class, NULL};

/* -- The rule ------------------------------------------------------------------------------------------------------ */

static const char *const settings[] = {"activation", "padding", "rope_factor", "rope_fraction", "rope_theta", NULL};

const FamilyRule family_phi3 = {
    .name = "phi3", .settings = settings, .restarts_longrope = true, .check = family_check_width, FAMILY_SWIGLU_DECODER};
