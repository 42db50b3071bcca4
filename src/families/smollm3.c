/* SmolLM3 (huggingface.co/blog/smollm3): Llama's layers, of which every Nth has no RoPE (NoPE, arXiv
 * 2501.18795), and may have a window. */
#include "formats/hf_class.h"
#include "model/layer_spec.h"

static LayerSpec layer(Builder *b, int index) {
    LayerSpec spec = builder_llama_layer(b, index);
    spec.attention.output_biased = b->config->qkv_bias;
    return spec;
}

static Trunk build(Builder *b) { return builder_llama_decoder(b, layer); }

/* -- The class of transformers ------------------------------------------------------------------------------------- */

static void read_padding(HfFieldReader *r, const char *name, const json_t *value) { hf_read_padding_or(r, name, value, 128004); }

/* Finds the period of the layers without RoPE in a list with a number per layer, 0 for these layers. */
static void read_period(HfFieldReader *r, const char *name, const json_t *list) {
    ModelConfig *c = r->model;
    c->nope_period = hf_integer_or(r, "no_rope_layer_interval", 1, 4);
    if (c->nope_period > c->layers) c->nope_period = 0;
    if (!list || json_is_null(list)) return;
    int64_t first = 0, entries = (int64_t)json_array_size(list);
    for (int64_t i = 0; i < entries; i++)
        if (!json_is_integer(json_array_get(list, (size_t)i))) hf_refuse(r, name, "is not a list of integers");
    if (entries < c->layers) hf_refuse(r, name, "does not have a number per layer (num_hidden_layers)");
    if (!r->good) return;
    while (first < c->layers && json_integer_value(json_array_get(list, (size_t)first))) first++;
    c->nope_period = first < c->layers ? first + 1 : 0;
    for (int64_t i = 0; i < c->layers; i++)
        if (model_has_rope(c, i) != !!json_integer_value(json_array_get(list, (size_t)i)))
            hf_refuse(r, name, "is 0 in layers other than every Nth, which is not supported");
}

/* Without layer_types, the layers without RoPE have the window. Needs these layers. */
static void read_layers(HfFieldReader *r, const char *name, const json_t *value) {
    enum { MOST_LAYERS = 10000 };
    ModelConfig *c = r->model;
    bool slides = hf_boolean_or(r, "use_sliding_window", false);
    const json_t *window = hf_field(r, "sliding_window");
    int64_t rows = window && !json_is_null(window) ? hf_integer_or(r, "sliding_window", 1, 0) : 0;
    json_auto_t *usual = json_array();
    if (c->layers > MOST_LAYERS) return; /* refused by its bounds */
    for (int64_t i = 0; i < c->layers; i++)
        json_array_append_new(
            usual, json_string(slides && rows && !model_has_rope(c, i) ? hf_sliding_names.sliding : hf_sliding_names.full));
    const json_t *types = value && !json_is_null(value) ? value : usual;
    int64_t sliding = r->good ? hf_read_windows(r, name, types, &hf_sliding_names, c->nope_period, true) : 0;
    if (sliding > 0 && !(slides && rows)) hf_refuse(r, name, "has a window, which needs use_sliding_window and sliding_window");
    c->window = sliding > 0 ? rows : 0;
}

static const HfField fields[] = {
    INTEGER("vocab_size", vocabulary, "128256"),
    INTEGER("hidden_size", width, "2048"),
    INTEGER("intermediate_size", ffn, "11008"),
    INTEGER("num_hidden_layers", layers, "36"),
    INTEGER("num_attention_heads", heads, "16"),
    INTEGER("num_key_value_heads", kv_heads, "4 null"),
    INTEGER("head_dim", head_dim, "0"),
    BOOLEAN("tie_word_embeddings", tied, "true"),
    BOOLEAN("attention_bias", qkv_bias, "false"),
    FIXED("mlp_bias", "false"),
    READ("pad_token_id", read_padding),
    READ("no_rope_layers", read_period), /* reads the next field too */
    NO_EFFECT("no_rope_layer_interval"),
    READ("layer_types", read_layers), /* reads the next fields too */
    NO_EFFECT("use_sliding_window"),
    NO_EFFECT("sliding_window"),
    NO_EFFECT("pretraining_tp"),
    END,
};

static void put(json_t *object, const ModelConfig *c) {
    json_t *rotated = json_array();
    hf_put_decoder(object, c);
    hf_put_rope(object, c);
    hf_put_integer(object, "intermediate_size", c->ffn);
    hf_put(object, "attention_bias", json_boolean(c->qkv_bias));
    hf_put(object, "mlp_bias", json_false());
    hf_put(object, "no_rope_layers", rotated);
    for (int64_t i = 0; i < c->layers; i++) json_array_append_new(rotated, json_integer(model_has_rope(c, i)));
    hf_put(object, "use_sliding_window", json_boolean(c->window > 0));
    hf_put(object, "sliding_window", c->window ? json_integer(c->window) : json_null());
    hf_put_layer_types(object, c, &hf_sliding_names);
}

/* The default of pad_token_id is a token. */
static bool read_gguf(const GgufKeys *keys) {
    hf_put(keys->object, "pad_token_id", json_null());
    return true;
}

static bool check_gguf(const ModelConfig *c, Error *error) {
    for (int64_t i = 0; i < c->layers; i++)
        if (model_has_rope(c, i) != ((i + 1) % 4 != 0))
            return error_set(error, ERROR_USAGE,
                "model.nope_period=%lld: llama.cpp's smollm3 has RoPE in all layers but every 4th; write a folder",
                (long long)c->nope_period);
    if (c->window && c->window_period > 1)
        return error_set(error, ERROR_USAGE, "model.window=%lld in some layers: llama.cpp's smollm3 has no window; write a folder",
            (long long)c->window);
    return !c->qkv_bias || error_set(error, ERROR_USAGE, "model.qkv_bias=true: llama.cpp's smollm3 has no such biases; write a folder");
}

static const GgufClass gguf_smollm3 = {.architecture = "smollm3", .rotary = true, .pairs = true, .read = read_gguf, .check = check_gguf};
static const HfClass class = {.model_type = "smollm3",
    .architecture = "SmolLM3ForCausalLM",
    .tables = {{fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields}},
    .rope_theta = 2e6,
    .put = put,
    .gguf = &gguf_smollm3};
static const HfClass *const classes[] = {&class, NULL};

/* -- The rule ------------------------------------------------------------------------------------------------------ */

static const char *const settings[] = {
    "activation", "nope_period", "padding", "qkv_bias", "rope_factor", "rope_theta", "window_first", "window_period", "window_skips", NULL};

const FamilyRule family_smollm3 = {.name = "smollm3", .settings = settings, .repeats_key_heads = true, FAMILY_SWIGLU_DECODER};
