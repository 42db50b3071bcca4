/* GPT-2 (Radford et al., 2019): learned positions, LayerNorm before attention and MLP, tanh GELU,
 * biases everywhere, head tied to the embedding. Its released code stores the matrices of linear
 * layers as [in, out]. */
#include "formats/hf_class.h"
#include "model/layer_spec.h"

/* Adds the rows of a table of positions. */
static TensorId embed(Builder *b, TensorId tokens) {
    const ModelConfig *c = b->config;
    Cut cut = {.axes = AXES_TENSOR, .dimension = 0, .blocks = 1, .rows = {c->context}};
    TensorId places = builder_parameter(b, "transformer.wpe.weight", PARAMETER_EMBEDDING, 2, (int64_t[]){c->context, c->width}, &cut);
    Lookup token = {.ids = b->tokens, .table = tokens, .entries = c->vocabulary, .padding = -1};
    Lookup place = {.ids = b->positions, .table = places, .entries = c->context, .padding = -1};
    TensorId rows = builder_embed(b, &token);
    return op_add(b->graph, rows, builder_embed(b, &place));
}

static LayerSpec layer(Builder *b, int index) {
    (void)index;
    return (LayerSpec){.before_attention = "ln_1",
        .before_mlp = "ln_2",
        .attention = {.queries = "attn.c_attn",
            .output = "attn.c_proj",
            .biased = true,
            .output_biased = true,
            .scores = {.window = b->config->window}},
        .mlp = {.up = "mlp.c_fc", .down = "mlp.c_proj", .biased = true}};
}

static Trunk build_gpt2(Builder *b) {
    static const Decoder decoder = {.embedding = "transformer.wte.weight",
        .last_norm = "transformer.ln_f",
        .norm = NORM_LAYER,
        .norm_biased = true,
        .transposed = true,
        .scales_outputs = true,
        .embed = embed,
        .layer = layer};
    return builder_decoder(b, &decoder);
}

/* -- Class of transformers ----------------------------------------------------------------------------------------- */

static const HfField fields[] = {
    INTEGER("vocab_size", vocabulary, "50257"),
    INTEGER("n_embd", width, "768"),
    SYNONYM("hidden_size", "n_embd"),
    INTEGER("n_head", heads, "12"),
    SYNONYM("num_attention_heads", "n_head"),
    INTEGER("n_layer", layers, "12"),
    SYNONYM("num_hidden_layers", "n_layer"),
    INTEGER("n_positions", context, "1024"),
    SYNONYM("max_position_embeddings", "n_positions"),
    INTEGER("n_inner", ffn, "0 null"),
    REAL("layer_norm_epsilon", norm_epsilon, "1e-5"),
    BOOLEAN("tie_word_embeddings", tied, "true"),
    READ("activation_function", hf_read_activation),
    FIXED("scale_attn_weights", "true"),
    FIXED("scale_attn_by_inverse_layer_idx", "false"),
    FIXED("add_cross_attention", "false"),
    NO_EFFECT("reorder_and_upcast_attn"), /* scores are always fp32 here */
    NO_EFFECT("resid_pdrop"),
    NO_EFFECT("embd_pdrop"),
    NO_EFFECT("attn_pdrop"),
    NO_EFFECT("summary_type"),
    NO_EFFECT("summary_use_proj"),
    NO_EFFECT("summary_activation"),
    NO_EFFECT("summary_proj_to_labels"),
    NO_EFFECT("summary_first_dropout"),
    NO_EFFECT("output_cross_attentions"),
    NO_EFFECT("n_ctx"),
    NO_EFFECT("head_dim"),
    NO_EFFECT("layer_types"),
    NO_EFFECT("rope_parameters"),
    NO_EFFECT("rope_scaling"),
    END,
};

static bool check_gpt2_class(const ModelConfig *c, const char *architecture, Error *error) {
    return !c->window ||
           error_set(error, ERROR_USAGE, "model.window=%lld must be 0, because %s has no window", (long long)c->window, architecture);
}

/* transformers applies dropout while it trains; smelt does not. */
static void put_gpt2(json_t *object, const ModelConfig *c) {
    hf_put_integer(object, "n_embd", c->width);
    hf_put_integer(object, "n_head", c->heads);
    hf_put_integer(object, "n_layer", c->layers);
    hf_put_integer(object, "n_inner", c->ffn);
    hf_put_integer(object, "n_positions", c->context);
    hf_put(object, "layer_norm_epsilon", json_real(c->norm_epsilon));
    hf_put_activation(object, "activation_function", c);
    hf_put(object, "attn_pdrop", json_real(0));
    hf_put(object, "embd_pdrop", json_real(0));
    hf_put(object, "resid_pdrop", json_real(0));
}

static const GgufName gguf_names[] = {
    {"transformer.wte.", "token_embd."},
    {"transformer.wpe.", "position_embd."},
    {"transformer.ln_f.", "output_norm."},
    {"ln_1.", "attn_norm."},
    {"ln_2.", "ffn_norm."},
    {"attn.c_attn.", "attn_qkv."},
    {"attn.c_proj.", "attn_output."},
    {"mlp.c_fc.", "ffn_up."},
    {"mlp.c_proj.", "ffn_down."},
    {NULL, NULL},
};
static const GgufRow gguf_rows[] = {
    {"context_length", ROW_INTEGER, GGUF_AT(context), true, "max_position_embeddings"},
    {"feed_forward_length", ROW_INTEGER, GGUF_AT(ffn), true, "n_inner"},
    {"attention.layer_norm_epsilon", ROW_REAL, GGUF_AT(norm_epsilon), true, "layer_norm_epsilon"},
    {NULL, ROW_READ, 0, false, NULL},
};

static bool read_gpt2_gguf(const GgufKeys *keys) {
    int64_t heads = gguf_field(keys, "num_attention_heads"), key_heads = heads;
    return gguf_key_integer(keys, "attention.head_count_kv", &key_heads) &&
           (key_heads == heads || gguf_key_refuse(keys, "attention.head_count_kv", "must equal attention.head_count"));
}

static const char *const buffers[] = {".attn.bias", ".attn.masked_bias", NULL};
static const GgufClass gguf = {.architecture = "gpt2", .rows = gguf_rows, .names = gguf_names, .read = read_gpt2_gguf};
static const HfClass class = {.model_type = "gpt2",
    .architecture = "GPT2LMHeadModel",
    .tables = {{fields, hf_shared_fields, hf_metadata_fields}},
    .is_llmc = true,
    .check = check_gpt2_class,
    .put = put_gpt2,
    .layouts = {{"wte.weight", hf_list_bare}},
    .buffers = buffers,
    .gguf = &gguf};
static const HfClass *const classes[] = {&class, NULL};

/* -- The rule ------------------------------------------------------------------------------------------------------ */

static const char *const settings[] = {"activation", NULL};

static bool check_gpt2(const ModelConfig *c, Error *error) { return family_check_width(c, error) && family_check_key_heads(c, error); }

const FamilyRule family_gpt2 = {.name = "gpt2",
    .settings = settings,
    .learns_positions = true,
    .activation = ACTIVATION_gelu_tanh,
    .check = check_gpt2,
    .layers = "transformer.h",
    .classes = classes,
    .build = build_gpt2};
