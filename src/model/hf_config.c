/* config.json in both directions. A class of transformers is a row of `classes`: its name, what holds where a file
 * is silent, and the function that reads what is its own. Reading keeps the first error and goes on with zeros, so
 * that the readers are lists of fields; what our models cannot compute is refused by name, never ignored. Owns
 * nothing. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "data/data.h"
#include "model/hf_internal.h"

typedef struct Reader {
    const json_t *object;
    HfClass class;
    ModelConfig *model;
    Error *error;
    bool good;
} Reader;

typedef struct Class {
    const char *model_type, *architecture;
    int family;
    bool tied;      /* where tie_word_embeddings is absent */
    double theta;   /* where rope_theta is absent */
    int64_t window; /* where sliding_window is absent */
    void (*read)(Reader *reader);
} Class;

static void read_zaya(Reader *r);
static void read_llama(Reader *r);
static void read_mistral(Reader *r);
static void read_mixtral(Reader *r);
static void read_qwen2(Reader *r);
static void read_qwen3(Reader *r);
static void read_mpt(Reader *r);
static void read_gpt2(Reader *r);

static const Class classes[HF_CLASS_COUNT] = {
    [HF_ZAYA] = {"zaya", "ZayaForCausalLM", FAMILY_ZAYA, true, 5e6, 0, read_zaya},
    [HF_LLAMA] = {"llama", "LlamaForCausalLM", FAMILY_LLAMA, false, 1e4, 0, read_llama},
    [HF_MISTRAL] = {"mistral", "MistralForCausalLM", FAMILY_LLAMA, false, 1e4, 4096, read_mistral},
    [HF_MIXTRAL] = {"mixtral", "MixtralForCausalLM", FAMILY_LLAMA, false, 1e6, 0, read_mixtral},
    [HF_QWEN2] = {"qwen2", "Qwen2ForCausalLM", FAMILY_LLAMA, false, 1e4, 0, read_qwen2},
    [HF_QWEN3] = {"qwen3", "Qwen3ForCausalLM", FAMILY_LLAMA, false, 1e4, 0, read_qwen3},
    [HF_MPT] = {"mpt", "MptForCausalLM", FAMILY_MPT, true, 0, 0, read_mpt},
    [HF_GPT2] = {"gpt2", "GPT2LMHeadModel", FAMILY_GPT2, true, 0, 0, read_gpt2},
};

const char *hf_architecture(HfClass class) { return classes[class].architecture; }

/* Llama's class has no window and demands that the heads divide the width; Mistral's is the same model otherwise. */
HfClass hf_class(const ModelConfig *c) {
    if (c->family == FAMILY_ZAYA) return HF_ZAYA;
    if (c->family == FAMILY_MPT) return HF_MPT;
    if (c->family == FAMILY_GPT2) return HF_GPT2;
    if (c->experts) return HF_MIXTRAL;
    if (c->qk_norm) return HF_QWEN3;
    if (c->qkv_bias) return HF_QWEN2;
    return c->window || c->width % c->heads ? HF_MISTRAL : HF_LLAMA;
}

bool hf_check(const ModelConfig *c, Error *error) {
    HfClass class = hf_class(c);
    const char *name = hf_architecture(class);
    if (class == HF_ZAYA && c->experts_per_token != 1)
        return error_set(
            error, ERROR_USAGE, "model.experts_per_token=%lld: %s has one expert per token", (long long)c->experts_per_token, name);
    if (class == HF_ZAYA && c->renormalise)
        return error_set(error, ERROR_USAGE, "model.renormalise=true: %s keeps the probability of the chosen expert as its gate", name);
    if (class == HF_MIXTRAL && !c->renormalise)
        return error_set(error, ERROR_USAGE, "model.renormalise=false: the gates of %s sum to 1", name);
    if (c->family == FAMILY_LLAMA && c->rope_fraction != 1)
        return error_set(error, ERROR_USAGE, "model.rope_fraction=%g: %s rotates whole heads", c->rope_fraction, name);
    if (c->qkv_bias && class != HF_QWEN2) return error_set(error, ERROR_USAGE, "model.qkv_bias=true: %s has no such biases", name);
    if (c->qk_norm && class != HF_QWEN3) return error_set(error, ERROR_USAGE, "model.qk_norm=true: %s has no such norms", name);
    if (c->window && (class == HF_QWEN2 || class == HF_QWEN3 || class == HF_MPT || class == HF_GPT2))
        return error_set(error, ERROR_USAGE, "model.window=%lld: %s has no window in all layers", (long long)c->window, name);
    if (class == HF_MPT && c->kv_heads != c->heads)
        return error_set(error, ERROR_USAGE, "model.kv_heads=%lld: %s has as many key heads as query heads", (long long)c->kv_heads, name);
    if (class == HF_MPT && c->alibi_max != 8)
        return error_set(error, ERROR_USAGE, "model.alibi_max=%g: %s computes with 8 always", c->alibi_max, name);
    if (class == HF_MPT && c->ffn != 4 * c->width)
        return error_set(error, ERROR_USAGE, "model.ffn=%lld: %s has four times model.width", (long long)c->ffn, name);
    return true;
}

/* -- Reading fields ------------------------------------------------------------------------------------------------ */

/* NULL for absent fields and for null. */
static const json_t *field(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static bool has(const Reader *r, const char *key) { return field(r->object, key) != NULL; }

static void fail(Reader *r, const char *key, const char *reason) {
    if (r->good) r->good = error_set(r->error, ERROR_CHECKPOINT, "%s %s", key, reason);
}

/* Fields that must be there; in lists with one entry per layer, the largest: entries are 0 where the field does not
 * apply. */
static int64_t integer(Reader *r, const char *key) {
    const json_t *value = field(r->object, key), *item;
    size_t index;
    int64_t largest = 0;
    if (json_is_integer(value)) return json_integer_value(value);
    if (!json_is_array(value)) fail(r, key, value ? "is not an integer" : "is missing");
    json_array_foreach(value, index, item) {
        if (!json_is_integer(item)) fail(r, key, "holds something else than integers");
        else if (json_integer_value(item) > largest) largest = json_integer_value(item);
    }
    return largest;
}

static int64_t integer_or(Reader *r, const char *key, int64_t fallback) { return has(r, key) ? integer(r, key) : fallback; }

static double real_of(Reader *r, const json_t *object, const char *key) {
    const json_t *value = field(object, key);
    if (!json_is_number(value)) fail(r, key, value ? "is not a number" : "is missing");
    return json_number_value(value);
}

static double real_or(Reader *r, const json_t *object, const char *key, double fallback) {
    return field(object, key) ? real_of(r, object, key) : fallback;
}

static bool boolean_or(Reader *r, const char *key, bool fallback) {
    const json_t *value = field(r->object, key);
    if (value && !json_is_boolean(value)) fail(r, key, "is neither true nor false");
    return value ? json_is_true(value) : fallback;
}

static void require_boolean(Reader *r, const char *key, bool wanted) {
    if (boolean_or(r, key, wanted) != wanted)
        fail(r, key, wanted ? "is false, and smelt's model has it" : "is true, and smelt's model does not have it");
}

static void require_integer(Reader *r, const char *key, int64_t wanted, const char *reason) {
    if (integer_or(r, key, wanted) != wanted) fail(r, key, reason);
}

/* -- Reading classes ----------------------------------------------------------------------------------------------- */

/* Both spellings: rope_parameters with all in it (transformers 5), or rope_scaling beside rope_theta. `rope` may be
 * NULL. */
static void read_rope(Reader *r, const json_t *rope) {
    ModelConfig *c = r->model;
    const json_t *type = field(rope, "rope_type") ? field(rope, "rope_type") : field(rope, "type");
    c->rope_theta = real_or(r, rope, "rope_theta", real_or(r, r->object, "rope_theta", classes[r->class].theta));
    c->rope_fraction =
        real_or(r, rope, "partial_rotary_factor", real_or(r, r->object, "partial_rotary_factor", r->class == HF_ZAYA ? 0.5 : 1));
    if (!type || (json_is_string(type) && !strcmp(json_string_value(type), "default"))) return;
    if (!json_is_string(type) || strcmp(json_string_value(type), "llama3")) {
        fail(r, "rope_type", "is another scaling of positions than llama3, the only one that smelt has");
        return;
    }
    c->rope_factor = real_of(r, rope, "factor");
    c->rope_low_frequency = real_of(r, rope, "low_freq_factor");
    c->rope_high_frequency = real_of(r, rope, "high_freq_factor");
    c->rope_original_context = json_integer_value(field(rope, "original_max_position_embeddings"));
    if (c->rope_original_context < 1) fail(r, "original_max_position_embeddings", "is not a positive integer");
}

static const json_t *rope_object(Reader *r) {
    const json_t *rope = field(r->object, "rope_parameters");
    if (!rope) rope = field(r->object, "rope_scaling");
    if (json_is_false(rope)) rope = NULL;
    if (rope && !json_is_object(rope)) fail(r, "rope_parameters", "is not an object");
    return rope;
}

static void read_heads(Reader *r) {
    ModelConfig *c = r->model;
    c->heads = integer(r, "num_attention_heads");
    c->kv_heads = integer_or(r, "num_key_value_heads", c->heads);
    c->head_dim = integer_or(r, "head_dim", 0);
}

static void require_string(Reader *r, const char *key, const char *wanted) {
    const json_t *value = field(r->object, key);
    if (value && (!json_is_string(value) || strcmp(json_string_value(value), wanted)))
        fail(r, key, "has another value than the one that smelt's models have");
}

/* What every class spells the same way. */
static void read_common(Reader *r) {
    ModelConfig *c = r->model;
    c->vocabulary = integer(r, "vocab_size");
    c->tied = boolean_or(r, "tie_word_embeddings", classes[r->class].tied);
    c->init_std = real_or(r, r->object, "initializer_range", 0.02);
    if (has(r, "quantization_config")) fail(r, "quantization_config", "is set, and smelt reads weights that are not quantised only");
}

/* And what ZAYA1 and Llama's relatives do. */
static void read_sizes(Reader *r) {
    ModelConfig *c = r->model;
    c->width = integer(r, "hidden_size");
    c->context = integer(r, "max_position_embeddings");
    require_string(r, "hidden_act", "silu");
    require_boolean(r, "attention_bias", false);
}

static void read_llama(Reader *r) {
    ModelConfig *c = r->model;
    read_sizes(r);
    read_heads(r);
    c->layers = integer(r, "num_hidden_layers");
    c->ffn = integer(r, "intermediate_size");
    c->norm_epsilon = real_or(r, r->object, "rms_norm_eps", 1e-6);
    require_boolean(r, "mlp_bias", false);
    read_rope(r, rope_object(r));
}

static void read_mistral(Reader *r) {
    read_llama(r);
    bool absent = !json_object_get(r->object, "sliding_window");
    r->model->window = integer_or(r, "sliding_window", absent ? classes[r->class].window : 0);
}

/* What transformers' coefficient of the router's loss is times ours. Both sum E f_e P_e, but it has means over all
 * layers' tokens together, with f the choices per token, k in all; we have a loss for each layer, with f their
 * shares, 1 in all. */
static double router_loss_ratio(const ModelConfig *c) { return (double)c->layers / (double)c->experts_per_token; }

static void read_mixtral(Reader *r) {
    ModelConfig *c = r->model;
    read_mistral(r);
    c->norm_epsilon = real_or(r, r->object, "rms_norm_eps", 1e-5);
    c->experts = integer(r, "num_local_experts");
    if (c->experts < 1) fail(r, "num_local_experts", "is less than 1");
    c->experts_per_token = integer(r, "num_experts_per_tok");
    c->renormalise = true;
    c->auxiliary_loss =
        boolean_or(r, "output_router_logits", false) ? real_or(r, r->object, "router_aux_loss_coef", 0.001) / router_loss_ratio(c) : 0;
}

static void read_qwen2(Reader *r) {
    read_llama(r);
    r->model->qkv_bias = true;
    require_boolean(r, "use_sliding_window", false);
}

static void read_qwen3(Reader *r) {
    read_llama(r);
    r->model->head_dim = integer_or(r, "head_dim", 128);
    r->model->qk_norm = true;
    require_boolean(r, "use_sliding_window", false);
}

static void read_mpt_attention(Reader *r) {
    ModelConfig *c = r->model;
    require_boolean(r, "alibi", true);
    require_boolean(r, "prefix_lm", false);
    require_boolean(r, "rope", false);
    c->alibi_max = real_or(r, r->object, "alibi_bias_max", 8);
    c->clip_qkv = real_or(r, r->object, "clip_qkv", 0);
    c->softmax_scale = real_or(r, r->object, "softmax_scale", 0);
    c->qk_norm = boolean_or(r, "qk_ln", false);
    const char *type = json_string_value(field(r->object, "attn_type"));
    c->kv_heads = type && !strcmp(type, "multiquery_attention") ? 1 : integer_or(r, "kv_n_heads", c->heads);
}

double hf_logit_scale(const json_t *object, const ModelConfig *c) {
    const json_t *value = field(object, "logit_scale");
    if (!value || json_is_number(value)) return value ? json_number_value(value) : 1;
    return json_is_string(value) && !strcmp(json_string_value(value), "inv_sqrt_d_model") ? 1 / sqrt((double)c->width) : NAN;
}

/* learned_pos_emb says nothing where alibi is true. */
static void read_mpt(Reader *r) {
    ModelConfig *c = r->model;
    c->width = integer(r, "d_model");
    c->heads = c->kv_heads = integer(r, "n_heads");
    c->head_dim = 0;
    c->layers = integer(r, "n_layers");
    c->context = integer(r, "max_seq_len");
    c->norm_epsilon = real_or(r, r->object, "layer_norm_epsilon", 1e-5);
    if (__builtin_mul_overflow(integer_or(r, "expansion_ratio", 4), c->width, &c->ffn)) fail(r, "expansion_ratio", "is too large");
    require_boolean(r, "no_bias", true);
    const char *norm = json_string_value(field(r->object, "norm_type"));
    if (norm && strcmp(norm, "low_precision_layernorm") && strcmp(norm, "layernorm")) fail(r, "norm_type", "is no LayerNorm");
    double scale = hf_logit_scale(r->object, c);
    if (!isfinite(scale) || scale == 0) fail(r, "logit_scale", "is neither a number other than 0 nor \"inv_sqrt_d_model\"");
    Reader inner = *r;
    inner.object = field(r->object, "attn_config");
    read_mpt_attention(&inner);
    r->good = inner.good;
}

static void read_gpt2(Reader *r) {
    ModelConfig *c = r->model;
    c->width = integer(r, "n_embd");
    c->heads = c->kv_heads = integer(r, "n_head");
    c->head_dim = 0;
    c->layers = integer(r, "n_layer");
    c->context = integer(r, "n_positions");
    c->norm_epsilon = real_or(r, r->object, "layer_norm_epsilon", 1e-5);
    c->ffn = integer_or(r, "n_inner", 0);
    if (c->ffn == 0 && __builtin_mul_overflow(4, c->width, &c->ffn)) fail(r, "n_embd", "is too large");
    require_string(r, "activation_function", "gelu_new");
    require_boolean(r, "scale_attn_weights", true);
    require_boolean(r, "scale_attn_by_inverse_layer_idx", false);
    require_boolean(r, "add_cross_attention", false);
}

/* All layers must be of one type: "hybrid", or "hybrid_sliding" with a window. */
static const char *read_layer_type(Reader *r) {
    const json_t *types = field(r->object, "layer_types"), *first = json_array_get(types, 0), *type;
    size_t index;
    if (!types) return "hybrid";
    if (!json_is_string(first) || (int64_t)json_array_size(types) != r->model->layers) {
        fail(r, "layer_types", "does not hold one name for each of num_hidden_layers");
        return "hybrid";
    }
    json_array_foreach(types, index, type) if (!json_equal(type, first))
        fail(r, "layer_types", "differ from layer to layer, and smelt's models have layers of one type");
    if (strcmp(json_string_value(first), "hybrid") && strcmp(json_string_value(first), "hybrid_sliding"))
        fail(r, "layer_types", "holds something else than \"hybrid\" and \"hybrid_sliding\"");
    return json_string_value(first);
}

static void read_native_zaya(Reader *r) {
    ModelConfig *c = r->model;
    read_heads(r);
    c->layers = integer(r, "num_hidden_layers");
    const char *type = read_layer_type(r);
    const json_t *rope = rope_object(r), *of_type = field(rope, type);
    c->window = !strcmp(type, "hybrid_sliding") ? integer(r, "sliding_window") : 0;
    c->norm_epsilon = real_or(r, r->object, "rms_norm_eps", 1e-5);
    c->ffn = integer(r, "moe_intermediate_size");
    c->experts = integer(r, "num_experts");
    c->experts_per_token = integer_or(r, "num_experts_per_tok", 1);
    c->router_width = integer(r, "router_hidden_size");
    read_rope(r, of_type ? of_type : rope);
}

/* Steps of attention and of experts take turns: "a", experts, "a", experts ... */
static int64_t read_legacy_steps(Reader *r, int64_t *experts) {
    const json_t *steps = field(r->object, "zaya_layers"), *step;
    size_t index;
    *experts = json_is_array(steps) ? json_integer_value(json_array_get(steps, 1)) : integer(r, "num_experts");
    if (!json_is_array(steps)) return integer(r, "num_hidden_layers");
    json_array_foreach(steps, index, step) {
        bool attention = json_is_string(step) && !strcmp(json_string_value(step), "a");
        if (index % 2 ? json_integer_value(step) != *experts : !attention)
            fail(r, "zaya_layers", "is not \"a\" and the number of experts in turns");
    }
    return (int64_t)json_array_size(steps);
}

/* ffn_hidden_size counts gate and upward rows; num_attention_heads is wrong in folders that have cca_num_q_heads. */
static void read_legacy_zaya(Reader *r) {
    static const char *const true_flags[] = {
        "cca", "zaya_use_eda", "zaya_use_mod", "scale_residual_merge", "gated_linear_unit", "residual_in_fp32"};
    static const char *const false_flags[] = {"clamp_temp", "add_bias_linear", "lm_head_bias"};
    ModelConfig *c = r->model;
    for (size_t i = 0; i < sizeof true_flags / sizeof *true_flags; i++) require_boolean(r, true_flags[i], true);
    for (size_t i = 0; i < sizeof false_flags / sizeof *false_flags; i++) require_boolean(r, false_flags[i], false);
    int64_t steps = read_legacy_steps(r, &c->experts);
    if (steps % 2) fail(r, "num_hidden_layers", "is odd, and steps of attention and experts take turns");
    c->layers = steps / 2;
    c->heads = integer(r, has(r, "cca_num_q_heads") ? "cca_num_q_heads" : "num_attention_heads");
    c->kv_heads = integer(r, has(r, "num_query_groups_list") ? "num_query_groups_list"
                             : has(r, "num_query_groups")    ? "num_query_groups"
                                                             : "num_key_value_heads");
    c->head_dim = integer(r, has(r, "kv_channels") ? "kv_channels" : "head_dim");
    int64_t rows = integer(r, has(r, "ffn_hidden_size_list") ? "ffn_hidden_size_list" : "ffn_hidden_size");
    if (rows % 2) fail(r, "ffn_hidden_size", "is odd, and half of it are the rows of the gate");
    c->ffn = rows / 2;
    c->router_width = integer(r, "zaya_mlp_expansion");
    c->experts_per_token = integer_or(r, "moe_router_topk", 1);
    c->norm_epsilon = real_or(r, r->object, "norm_epsilon", 1e-5);
    if (!has(r, "rope_theta")) fail(r, "rope_theta", "is missing");
    if (integer_or(r, "sliding_window", 0) || (has(r, "swa_layers") && integer(r, "swa_layers")))
        fail(r, "sliding_window", "is set, which smelt reads in the layout of transformers only");
    read_rope(r, rope_object(r));
}

static void read_zaya(Reader *r) {
    ModelConfig *c = r->model;
    read_sizes(r);
    require_integer(r, "cca_time0", 2, "is not 2, the width of smelt's convolutions");
    require_integer(r, "cca_time1", 2, "is not 2, the width of smelt's convolutions");
    require_boolean(r, "lm_head_bias", false);
    if (has(r, "zaya_layers") || has(r, "ffn_hidden_size")) read_legacy_zaya(r);
    else read_native_zaya(r);
    if (c->experts_per_token != 1) fail(r, "num_experts_per_tok", "is not 1");
}

/* -- Reading the file ---------------------------------------------------------------------------------------------- */

static bool find_class(const json_t *object, HfClass *class, Error *error) {
    const char *type = json_string_value(json_object_get(object, "model_type"));
    for (int i = 0; type && i < HF_CLASS_COUNT; i++) {
        *class = (HfClass)i;
        if (!strcmp(type, classes[i].model_type)) return true;
    }
    char known[256] = "";
    for (int i = 0; i < HF_CLASS_COUNT; i++) {
        strncat(known, i ? ", " : "", sizeof known - strlen(known) - 1);
        strncat(known, classes[i].model_type, sizeof known - strlen(known) - 1);
    }
    char *shown = type ? json_dumps(json_object_get(object, "model_type"), JSON_ENCODE_ANY | JSON_ENSURE_ASCII) : NULL;
    error_set(error, ERROR_CHECKPOINT, "model_type is %.64s; smelt has %s", shown ? shown : "missing", known);
    free(shown);
    return false;
}

/* The bounds that hold for settings hold here too. */
static bool check_bounds(const Config *config, Error *error) {
    for (size_t i = 0; i < config_table.count; i++) {
        const Option *row = &config_table.rows[i];
        const char *at = (const char *)config + row->offset;
        if (strncmp(row->name, "model.", 6) || (row->type != OPTION_INT && row->type != OPTION_REAL)) continue;
        double value = row->type == OPTION_INT ? (double)*(const int64_t *)at : *(const double *)at;
        if (!(value >= row->minimum && value <= row->maximum))
            return error_set(
                error, ERROR_CHECKPOINT, "%s would be %g, and smelt takes %g to %g", row->name, value, row->minimum, row->maximum);
    }
    return true;
}

/* Bounds, and what config_check demands of models. */
static bool check_model(ModelConfig *model, Error *error) {
    Config config;
    OptionStrings strings = {0};
    options_defaults(&config_table, &config, &strings);
    config.model = *model;
    config.data.length = config.batch.sequences = config.batch.tokens = 1;
    bool good = check_bounds(&config, error) && config_check(&config, error) &&
                check_bounds(&config, error); /* the second time for what is derived */
    options_free_strings(&strings);
    *model = config.model;
    if (!good) error->code = ERROR_CHECKPOINT;
    return good;
}

static Precision read_precision(const json_t *object) {
    const char *type = json_string_value(json_object_get(object, "dtype"));
    if (!type) type = json_string_value(json_object_get(object, "torch_dtype"));
    return type && (!strcmp(type, "bfloat16") || !strcmp(type, "float16")) ? PRECISION_BF16 : PRECISION_FP32;
}

bool hf_parse_config(const json_t *object, ModelConfig *model, Precision *precision, Error *error) {
    Config defaults;
    OptionStrings strings = {0};
    Reader reader = {.object = object, .model = model, .error = error, .good = true};
    if (!json_is_object(object)) return error_set(error, ERROR_CHECKPOINT, "it is not a JSON object");
    if (!find_class(object, &reader.class, error)) return false;
    options_defaults(&config_table, &defaults, &strings);
    options_free_strings(&strings);
    *model = defaults.model;
    model->family = classes[reader.class].family;
    read_common(&reader);
    classes[reader.class].read(&reader);
    *precision = read_precision(object);
    return reader.good && check_model(model, error);
}

/* -- Writing ------------------------------------------------------------------------------------------------------- */

void hf_put(json_t *object, const char *key, json_t *value) {
    if (json_object_set_new(object, key, value)) memory_refused(strlen(key)); /* the strings are ours and valid */
}

static void put_string(json_t *object, const char *key, const char *value) { hf_put(object, key, json_string(value)); }

static void put_scaling(json_t *rope, const ModelConfig *c) {
    put_string(rope, "rope_type", "llama3");
    hf_put(rope, "factor", json_real(c->rope_factor));
    hf_put(rope, "low_freq_factor", json_real(c->rope_low_frequency));
    hf_put(rope, "high_freq_factor", json_real(c->rope_high_frequency));
    hf_put_integer(rope, "original_max_position_embeddings", c->rope_original_context);
}

/* The spelling that transformers 4 and other readers know too; transformers 5 turns it into rope_parameters. */
static void put_rope(json_t *object, const ModelConfig *c) {
    json_t *scaling = json_null();
    if (c->rope_factor > 1) put_scaling(scaling = json_object(), c);
    hf_put(object, "rope_theta", json_real(c->rope_theta));
    hf_put(object, "rope_scaling", scaling);
}

static void put_zaya(json_t *object, const ModelConfig *c) {
    const char *layer_type = c->window ? "hybrid_sliding" : "hybrid";
    json_t *rope = json_object(), *by_type = json_object(), *types = json_array();
    put_string(rope, "rope_type", "default");
    if (c->rope_factor > 1) put_scaling(rope, c);
    hf_put(rope, "rope_theta", json_real(c->rope_theta));
    hf_put(rope, "partial_rotary_factor", json_real(c->rope_fraction));
    hf_put(by_type, layer_type, rope);
    hf_put(object, "rope_parameters", by_type);
    for (int64_t i = 0; i < c->layers; i++) json_array_append_new(types, json_string(layer_type));
    hf_put(object, "layer_types", types);
    hf_put_integer(object, "moe_intermediate_size", c->ffn);
    hf_put_integer(object, "num_experts", c->experts);
    hf_put_integer(object, "num_experts_per_tok", c->experts_per_token);
    hf_put_integer(object, "router_hidden_size", c->router_width);
    hf_put_integer(object, "cca_time0", 2);
    hf_put_integer(object, "cca_time1", 2);
    hf_put(object, "attention_bias", json_false());
    hf_put(object, "lm_head_bias", json_false());
}

static void put_llama(json_t *object, const ModelConfig *c, HfClass class) {
    put_rope(object, c);
    hf_put_integer(object, "intermediate_size", c->ffn);
    if (class == HF_LLAMA) {
        hf_put(object, "attention_bias", json_false());
        hf_put(object, "mlp_bias", json_false());
    }
    if (class == HF_MIXTRAL) {
        hf_put_integer(object, "num_local_experts", c->experts);
        hf_put_integer(object, "num_experts_per_tok", c->experts_per_token);
        hf_put(object, "output_router_logits", json_boolean(c->auxiliary_loss > 0));
        hf_put(object, "router_aux_loss_coef", json_real(c->auxiliary_loss * router_loss_ratio(c)));
    }
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
    put_string(attention, "attn_type", "multihead_attention");
    hf_put(attention, "alibi", json_true());
    hf_put(
        attention, "alibi_bias_max", c->alibi_max == (int64_t)c->alibi_max ? json_integer((int64_t)c->alibi_max) : json_real(c->alibi_max));
    hf_put(attention, "clip_qkv", c->clip_qkv > 0 ? json_real(c->clip_qkv) : json_null());
    hf_put(attention, "softmax_scale", c->softmax_scale > 0 ? json_real(c->softmax_scale) : json_null());
    hf_put(attention, "qk_ln", json_boolean(c->qk_norm));
    hf_put(object, "attn_config", attention);
}

/* Dropout is a setting of training there, and we have none. */
static void put_gpt2(json_t *object, const ModelConfig *c) {
    hf_put_integer(object, "n_embd", c->width);
    hf_put_integer(object, "n_head", c->heads);
    hf_put_integer(object, "n_layer", c->layers);
    hf_put_integer(object, "n_inner", c->ffn);
    hf_put_integer(object, "n_positions", c->context);
    hf_put(object, "layer_norm_epsilon", json_real(c->norm_epsilon));
    put_string(object, "activation_function", "gelu_new");
    hf_put(object, "attn_pdrop", json_real(0));
    hf_put(object, "embd_pdrop", json_real(0));
    hf_put(object, "resid_pdrop", json_real(0));
}

static void put_sizes(json_t *object, const ModelConfig *c, HfClass class) {
    hf_put_integer(object, "hidden_size", c->width);
    hf_put_integer(object, "num_hidden_layers", c->layers);
    hf_put_integer(object, "num_attention_heads", c->heads);
    hf_put_integer(object, "num_key_value_heads", c->kv_heads);
    hf_put_integer(object, "head_dim", c->head_dim);
    put_string(object, "hidden_act", "silu");
    hf_put_integer(object, "max_position_embeddings", c->context);
    hf_put(object, "rms_norm_eps", json_real(c->norm_epsilon));
    hf_put(object, "attention_dropout", json_real(0));
    if (class != HF_LLAMA) hf_put(object, "sliding_window", c->window ? json_integer(c->window) : json_null());
    if (class == HF_ZAYA) put_zaya(object, c);
    else put_llama(object, c, class);
}

static void put_token_ids(json_t *object, const HfExport *export) {
    static const char *const keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    for (int i = 0; i < 3; i++) {
        json_t *value = json_object_get(export->origin, keys[i]);
        hf_put(object, keys[i], value ? json_incref(value) : json_null());
    }
    if (export->bytes) hf_put_integer(object, "eos_token_id", BYTE_SEPARATOR);
}

/* A folder whose tensors keep their types keeps what it says of them. */
static json_t *dtype(const HfExport *export) {
    json_t *stored = json_object_get(export->origin, "dtype");
    if (!stored) stored = json_object_get(export->origin, "torch_dtype");
    if (export->keep && json_is_string(stored)) return json_incref(stored);
    return json_string(export->precision == PRECISION_BF16 ? "bfloat16" : "float32");
}

json_t *hf_config(const HfExport *export) {
    const ModelConfig *c = export->config;
    HfClass class = hf_class(c);
    json_t *object = json_object();
    hf_put(object, "architectures", json_pack("[s]", hf_architecture(class)));
    put_string(object, "model_type", classes[class].model_type);
    hf_put(object, "dtype", dtype(export));
    hf_put_integer(object, "vocab_size", c->vocabulary);
    hf_put(object, "initializer_range", json_real(c->init_std));
    hf_put(object, "tie_word_embeddings", json_boolean(c->tied));
    hf_put(object, "use_cache", json_true());
    put_token_ids(object, export);
    if (class == HF_MPT) put_mpt(object, c);
    else if (class == HF_GPT2) put_gpt2(object, c);
    else put_sizes(object, c, class);
    return object;
}
