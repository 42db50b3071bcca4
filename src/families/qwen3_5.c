/* Qwen3.5 (the text models): layers with the gated delta rule (arXiv 2412.06464) and, every
 * model.attention_period-th, layers with attention whose output a gate multiplies. Attention has norms of query and
 * key heads, and RoPE on a part of each head. The MLP is dense, or a mixture of experts beside a shared one with a gate.
 * transformers stores gains of norms minus 1, except those of layers with the delta rule. */
#include "base/memory.h"
#include "base/scope.h"
#include "formats/hf_class.h"
#include "model/layer_spec.h"

/* -- Layers -------------------------------------------------------------------------------------------------------- */

static LayerSpec layer(Builder *b, int index) {
    LayerSpec spec = builder_delta_layer(b, index);
    if (b->config->experts) spec.mlp = qwen_experts;
    return spec;
}

static Trunk build(Builder *b) { return builder_llama_decoder(b, layer); }

/* -- Fields of config.json ------------------------------------------------------------------------------------------- */

static const HfField dense_fields[] = {
    INTEGER("vocab_size", vocabulary, "248320"),
    INTEGER("hidden_size", width, "4096"),
    INTEGER("intermediate_size", ffn, "12288"),
    INTEGER("num_hidden_layers", layers, "32"),
    INTEGER("num_key_value_heads", kv_heads, "4"),
    END,
};
static const HfField moe_fields[] = {
    INTEGER("vocab_size", vocabulary, "248320"),
    INTEGER("num_hidden_layers", layers, "40"),
    NO_EFFECT("intermediate_size"),
    INTEGER("num_experts_per_tok", experts_per_token, "8"),
    INTEGER("num_experts", experts, "256"),
    END,
};

static void put(json_t *object, const ModelConfig *c) {
    hf_put_delta(object, c);
    hf_put_rows(object, c, c->experts ? moe_fields : dense_fields);
}

/* -- GGUF ---------------------------------------------------------------------------------------------------------- */

/* llama.cpp rotates channel pair i by the position that belongs to axis i % 3 of images, if i is below 3 times the section of the
 * axis. The positions of a text are the same on all axes. */
enum { AXES = 3 };
static const char sections_key[] = "rope.dimension_sections";

static bool read_qwen35_gguf(const GgufKeys *keys) {
    int64_t rotated = gguf_field(keys, "head_dim");
    const GgufValue *sections = gguf_key_value(keys, sections_key);
    if (!hf_read_delta_gguf(keys) || !gguf_key_integer(keys, "rope.dimension_count", &rotated)) return false;
    for (int64_t i = 0; i < rotated / 2; i++) {
        double section = 0;
        if (!gguf_item(sections, (uint64_t)(i % AXES), &section) || (double)i >= AXES * section)
            return gguf_key_refuse(keys, sections_key, "is missing or has no section for a rotated channel");
    }
    return true;
}

static void put_qwen35_gguf(GgufWriter *writer, const ModelConfig *c) {
    int64_t pairs = (int64_t)model_rotated(c) / 2;
    SCOPED_FREE char *key = memory_format("%s.%s", hf_class(c)->gguf->architecture, sections_key);
    hf_put_delta_gguf(writer, c);
    gguf_put_array(writer, key, GGUF_I32, AXES + 1);
    for (int axis = 0; axis < AXES; axis++) gguf_append_integer(writer, GGUF_I32, (pairs + AXES - 1 - axis) / AXES);
    gguf_append_integer(writer, GGUF_I32, 0);
}

#define GGUF_SECTIONS {sections_key, ROW_READ, 0, false, NULL}
static const GgufRow gguf_rows[] = {GGUF_DELTA_ROWS, GGUF_SECTIONS, {NULL, ROW_READ, 0, false, NULL}};
static const GgufRow gguf_moe_rows[] = {GGUF_DELTA_ROWS, GGUF_DELTA_EXPERT_ROWS, GGUF_SECTIONS, {NULL, ROW_READ, 0, false, NULL}};
static const GgufName gguf_names[] = {GGUF_DELTA_NAMES, {NULL, NULL}};
#define GGUF_QWEN \
    .rotary = true, .tiles_heads = true, .names = gguf_names, .list = hf_list_delta_gguf, .read = read_qwen35_gguf, .put = put_qwen35_gguf, \
    .check = hf_check_delta_gguf
static const GgufClass gguf = {GGUF_QWEN, .architecture = "qwen35", .rows = gguf_rows};
static const GgufClass gguf_moe = {GGUF_QWEN, .architecture = "qwen35moe", .experts = true, .rows = gguf_moe_rows};

/* -- The classes ------------------------------------------------------------------------------------------------------ */

static void start_moe(ModelConfig *c) { c->renormalise = true; }
static bool fits_moe(const ModelConfig *c) { return c->experts; }

#define TABLES hf_delta_fields, hf_decoder_fields, hf_shared_fields, hf_metadata_fields
static const HfClass moe = {.model_type = "qwen3_5_moe_text",
    .architecture = "Qwen3_5MoeForCausalLM",
    .tables = {{moe_fields, hf_delta_expert_fields, TABLES}},
    .rotates_part = true,
    .gain_offset = 1,
    .lacks_router_biases = true,
    .skips_prediction = true,
    .start = start_moe,
    .fits = fits_moe,
    .put = put,
    HF_SPLIT_EXPERTS,
    .gguf = &gguf_moe};
static const HfClass dense = {.model_type = "qwen3_5_text",
    .architecture = "Qwen3_5ForCausalLM",
    .tables = {{dense_fields, TABLES}},
    .rotates_part = true,
    .gain_offset = 1,
    .skips_prediction = true,
    .put = put,
    .gguf = &gguf};
static const HfClass *const classes[] = {&moe, &dense, NULL};

/* -- The rule ------------------------------------------------------------------------------------------------------ */

static bool check(const ModelConfig *c, Error *error) {
    if (!c->experts != !c->shared_experts)
        return error_set(error, ERROR_USAGE, "model.experts=%lld, model.shared_experts=%lld: family qwen3_5 has both or none: change one",
            (long long)c->experts, (long long)c->shared_experts);
    if (!family_check_delta(c, error)) return false;
    return !c->experts || family_check_gates(c, "family qwen3_5", error);
}

static const char *const settings[] = {"attention_period", "delta_heads", "delta_key_dim", "delta_key_heads", "delta_taps",
    "delta_value_dim", "experts", "padding", "rope_factor", "rope_fraction", "rope_theta", "shared_experts", NULL};

const FamilyRule family_qwen3_5 = {
    .name = "qwen3_5", .settings = settings, .repeats_key_heads = true, .keeps_states = true, .check = check, FAMILY_SWIGLU_DECODER};
