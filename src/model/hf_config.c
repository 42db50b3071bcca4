/* config.json in both directions: the classes of transformers that we know, the fields that are read by functions
 * rather than by a row of hf_fields.c's tables, and what is written. What our models cannot compute is refused by
 * name, never ignored. Owns nothing. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_reader.h"
#include "base/math.h"
#include "base/memory.h"
#include "data/data.h"
#include "model/hf_fields_internal.h"

typedef struct Class {
    const char *model_type, *architecture;
    int family;
} Class;

static const Class classes[HF_CLASS_COUNT] = {
    [HF_ZAYA] = {"zaya", "ZayaForCausalLM", FAMILY_zaya},
    [HF_LLAMA] = {"llama", "LlamaForCausalLM", FAMILY_llama},
    [HF_MISTRAL] = {"mistral", "MistralForCausalLM", FAMILY_llama},
    [HF_MIXTRAL] = {"mixtral", "MixtralForCausalLM", FAMILY_llama},
    [HF_QWEN2] = {"qwen2", "Qwen2ForCausalLM", FAMILY_llama},
    [HF_QWEN3] = {"qwen3", "Qwen3ForCausalLM", FAMILY_llama},
    [HF_MPT] = {"mpt", "MptForCausalLM", FAMILY_mpt},
    [HF_GPT2] = {"gpt2", "GPT2LMHeadModel", FAMILY_gpt2},
    [HF_FLUX] = {NULL, "FluxTransformer2DModel", FAMILY_flux},
};

const char *hf_architecture(HfClass class) { return classes[class].architecture; }

const char *hf_model_type(HfClass class) { return classes[class].model_type; }

const char *hf_stem(const ModelConfig *c) { return hf_class(c) == HF_FLUX ? "diffusion_pytorch_model" : "model"; }

/* Llama's class has no window and demands that the heads divide the width; Mistral's is the same model otherwise. */
HfClass hf_class(const ModelConfig *c) {
    if (c->family == FAMILY_zaya) return HF_ZAYA;
    if (c->family == FAMILY_mpt) return HF_MPT;
    if (c->family == FAMILY_gpt2) return HF_GPT2;
    if (c->family == FAMILY_flux) return HF_FLUX;
    if (c->experts) return HF_MIXTRAL;
    if (c->qk_norm) return HF_QWEN3;
    if (c->qkv_bias) return HF_QWEN2;
    return c->window || c->width % c->heads ? HF_MISTRAL : HF_LLAMA;
}

bool hf_check(const ModelConfig *c, Error *error) {
    HfClass class = hf_class(c);
    const char *name = hf_architecture(class);
    if (classes[class].family != c->family)
        return error_set(error, ERROR_USAGE, "transformers has no class for this model.family that smelt knows: %s is another one", name);
    if (class == HF_ZAYA && c->experts_per_token != 1)
        return error_set(
            error, ERROR_USAGE, "model.experts_per_token=%lld: %s has one expert per token", (long long)c->experts_per_token, name);
    if (class == HF_ZAYA && c->renormalise)
        return error_set(error, ERROR_USAGE, "model.renormalise=true: %s keeps the probability of the chosen expert as its gate", name);
    if (class == HF_MIXTRAL && !c->renormalise)
        return error_set(error, ERROR_USAGE, "model.renormalise=false: the gates of %s sum to 1", name);
    if (c->family == FAMILY_llama && c->rope_fraction != 1)
        return error_set(error, ERROR_USAGE, "model.rope_fraction=%g: %s rotates whole heads", c->rope_fraction, name);
    if (c->qkv_bias && class != HF_QWEN2) return error_set(error, ERROR_USAGE, "model.qkv_bias=true: %s has no such biases", name);
    if (c->qk_norm && class != HF_QWEN3) return error_set(error, ERROR_USAGE, "model.qk_norm=true: %s has no such norms", name);
    if (c->window && (class == HF_MPT || class == HF_GPT2))
        return error_set(error, ERROR_USAGE, "model.window=%lld: %s has no window", (long long)c->window, name);
    if (class == HF_MPT && c->kv_heads != c->heads)
        return error_set(error, ERROR_USAGE, "model.kv_heads=%lld: %s has as many key heads as query heads", (long long)c->kv_heads, name);
    if (class == HF_MPT && c->alibi_max != 8)
        return error_set(error, ERROR_USAGE, "model.alibi_max=%g: %s computes with 8 always", c->alibi_max, name);
    if ((class == HF_MPT || class == HF_FLUX) && c->ffn != 4 * c->width)
        return error_set(error, ERROR_USAGE, "model.ffn=%lld: %s has four times model.width", (long long)c->ffn, name);
    if (class == HF_FLUX && (c->norm_epsilon != 1e-6 || c->rope_theta != 10000))
        return error_set(error, ERROR_USAGE, "model.norm_epsilon=%g, model.rope_theta=%g: %s computes with 1e-6 and 10000 always",
            c->norm_epsilon, c->rope_theta, name);
    return true;
}

/* -- Fields that are read by functions ----------------------------------------------------------------------------- */

static const json_t *field(const HfFieldReader *r, const char *name) { return json_object_get(r->object, name); }

/* A field that may be absent, which is at least `least`. */
static int64_t integer_or(HfFieldReader *r, const char *name, int64_t least, int64_t fallback) {
    const json_t *value = field(r, name);
    if (!value) return fallback;
    if (!json_is_integer(value) || json_integer_value(value) < least)
        hf_refuse(r, name, "is not an integer from %lld on", (long long)least);
    return json_integer_value(value);
}

static bool boolean_or(HfFieldReader *r, const char *name, bool fallback) {
    const json_t *value = field(r, name);
    if (value && !json_is_boolean(value)) hf_refuse(r, name, "is neither true nor false");
    return value ? json_is_true(value) : fallback;
}

/* PyTorch counts negative indices of an embedding from its end. */
void hf_read_padding(HfFieldReader *r, const char *name, const json_t *value) {
    int64_t vocabulary = r->model->vocabulary, token = json_integer_value(value);
    r->model->padding = -1;
    if (!value || json_is_null(value)) return;
    if (!json_is_integer(value) || token < -vocabulary || token >= vocabulary) hf_refuse(r, name, "is no token of the vocabulary");
    else r->model->padding = token < 0 ? token + vocabulary : token;
}

void hf_read_zaya_padding(HfFieldReader *r, const char *name, const json_t *value) {
    if (value) hf_read_padding(r, name, value);
    else r->model->padding = 0;
}

/* The one type of all layers in a list with an entry for each; NULL after a refusal. */
static const char *layer_type(HfFieldReader *r, const char *name, const json_t *types, const char *full, const char *sliding) {
    const json_t *first = json_array_get(types, 0), *type;
    size_t index;
    const char *text = json_string_value(first);
    if (!json_is_array(types) || (int64_t)json_array_size(types) != r->model->layers || !text) {
        hf_refuse(r, name, "does not hold one name for each of num_hidden_layers");
        return NULL;
    }
    json_array_foreach(types, index, type) if (!json_equal(type, first))
        hf_refuse(r, name, "differ from layer to layer, and smelt's models have layers of one type");
    if (!strcmp(text, full) || !strcmp(text, sliding)) return text;
    hf_refuse(r, name, "holds something else than \"%s\" and \"%s\"", full, sliding);
    return NULL;
}

/* Takes the window away from layers of full attention; those of the other type must have one. */
static void apply_layer_type(HfFieldReader *r, const char *name, const json_t *types) {
    static const char full[] = "full_attention", sliding[] = "sliding_attention";
    const char *type = layer_type(r, name, types, full, sliding);
    if (!type) return;
    if (!strcmp(type, full)) r->model->window = 0;
    else if (!r->model->window) hf_refuse(r, name, "holds \"%s\", and the model has no sliding_window", sliding);
}

void hf_read_unused_layers(HfFieldReader *r, const char *name, const json_t *value) {
    if (value && !json_is_null(value) && (int64_t)json_array_size(value) != r->model->layers)
        hf_refuse(r, name, "does not hold one name for each of num_hidden_layers");
}

void hf_read_ministral_layers(HfFieldReader *r, const char *name, const json_t *value) {
    if (value && !r->model->window) hf_refuse(r, name, "stands beside a sliding_window of null, with which transformers does not run");
    if (value && !json_is_null(value)) apply_layer_type(r, name, value);
}

void hf_read_qwen_layers(HfFieldReader *r, const char *name, const json_t *value) {
    ModelConfig *c = r->model;
    const json_t *window = field(r, "sliding_window");
    int64_t first = integer_or(r, "max_window_layers", INT64_MIN, 28);
    c->window = json_is_null(window) ? 0 : integer_or(r, "sliding_window", 1, 4096);
    if (!boolean_or(r, "use_sliding_window", false)) c->window = 0;
    if (value && !json_is_null(value)) apply_layer_type(r, name, value);
    else if (c->window && first >= c->layers) c->window = 0;
    else if (c->window && first > 0)
        hf_refuse(r, "max_window_layers", "gives a window to some of the layers, and smelt's models have layers of one type");
}

/* load_balancing_loss_func of transformers' Mixtral: one loss over the tokens of all layers, E sum over e of f_e P_e
 * with f the choices per token, k in all; ours has their shares, 1 in all. */
void hf_read_router_loss(HfFieldReader *r, const char *name, const json_t *value) {
    if (value && !json_is_finite(value)) hf_refuse(r, name, "is not a number");
    double weight = value ? json_finite_value(value) : 0.001;
    r->model->auxiliary_scope = AUXILIARY_MODEL;
    r->model->auxiliary_loss = boolean_or(r, "output_router_logits", false) ? weight * r->model->experts_per_token : 0;
    if (r->model->auxiliary_loss < 0) hf_refuse(r, name, "is below 0");
}

/* One layer of `window_period` has a window, layer `window_first` first; a period of 0: none has. False after a refusal. */
static bool read_window_layers(HfFieldReader *r, const char *name, const json_t *types, const char *full, const char *sliding) {
    ModelConfig *c = r->model;
    int64_t first = -1, second = -1;
    if (!json_is_array(types) || (int64_t)json_array_size(types) != c->layers) {
        hf_refuse(r, name, "does not hold one name for each of num_hidden_layers");
        return false;
    }
    for (int64_t i = 0; i < c->layers && second < 0; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        if (!type || strcmp(type, sliding) != 0) continue;
        if (first < 0) first = i;
        else second = i;
    }
    c->window_period = first < 0 ? 0 : second < 0 ? c->layers : second - first;
    c->window_first = int_max(first, 0);
    for (int64_t i = 0; i < c->layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        bool slides = c->window_period && i % c->window_period == c->window_first;
        if (type && !strcmp(type, slides ? sliding : full)) continue;
        if (type && (!strcmp(type, full) || !strcmp(type, sliding))) hf_refuse(r, name, "hold \"%s\" at no even distance", sliding);
        else hf_refuse(r, name, "holds something else than \"%s\" and \"%s\"", full, sliding);
        return false;
    }
    return true;
}

/* The base of layers with a window, whose other rotary settings are those of the others. */
static void read_window_theta(HfFieldReader *r, const json_t *sliding, const json_t *full, bool absent) {
    const char *key;
    json_t *value;
    r->model->window_rope_theta = absent ? 1e4 : json_finite_value(json_object_get(sliding, "rope_theta"));
    if (absent) return;
    if (!json_is_object(sliding) || !(r->model->window_rope_theta > 0)) {
        hf_refuse(r, "rope_parameters", "has no rope_theta for \"hybrid_sliding\"");
        return;
    }
    json_object_foreach((json_t *)sliding, key, value) if (strcmp(key, "rope_theta") != 0 && !json_equal(value, json_object_get(full, key)))
        hf_refuse(r, "rope_parameters", "differ between \"hybrid\" and \"hybrid_sliding\" in more than rope_theta");
    if (json_object_size(sliding) != json_object_size(full))
        hf_refuse(r, "rope_parameters", "differ between \"hybrid\" and \"hybrid_sliding\" in more than rope_theta");
}

/* Rotary positions stand in rope_parameters by type of layer, each with all that it needs. */
void hf_read_zaya_layers(HfFieldReader *r, const char *name, const json_t *value) {
    static const char full[] = "hybrid", sliding[] = "hybrid_sliding";
    ModelConfig *c = r->model;
    const json_t *window = field(r, "sliding_window"), *rope = field(r, "rope_parameters");
    c->window_period = 1;
    if (value && !json_is_null(value) && !read_window_layers(r, name, value, full, sliding)) return;
    bool given_types = value && !json_is_null(value), slides = given_types && c->window_period > 0, mixed = slides && c->window_period > 1;
    const char *type = slides && !mixed ? sliding : full;
    int64_t given = json_is_null(window) ? 0 : integer_or(r, "sliding_window", 1, 0);
    if (slides && !given) hf_refuse(r, "sliding_window", "is missing, and layer_types holds \"%s\"", sliding);
    c->window = slides ? given : 0;
    if (!slides) c->window_period = 1;
    bool scaling = field(r, "rope_scaling") != NULL, absent = !scaling && (!rope || json_is_null(rope));
    if (scaling) rope = field(r, "rope_scaling");
    const json_t *of_type = json_object_get(rope, type);
    if (!absent && !json_is_object(of_type)) hf_refuse(r, scaling ? "rope_scaling" : "rope_parameters", "has no object \"%s\"", type);
    else hf_read_rope_object(r, "rope_parameters.", of_type, !absent ? NAN : slides && !mixed ? 1e4 : 5e6, absent ? 0.5 : 1);
    if (mixed && r->good) read_window_theta(r, json_object_get(rope, sliding), of_type, absent);
}

/* An integer, or the largest of a list with one entry per step: entries are 0 where the field does not apply. */
static int64_t largest(HfFieldReader *r, const char *name) {
    const json_t *value = field(r, name), *item;
    size_t index;
    int64_t most = 0;
    if (json_is_integer(value)) return json_integer_value(value);
    if (!json_is_array(value)) hf_refuse(r, name, value ? "is not an integer" : "is missing");
    json_array_foreach(value, index, item) {
        if (!json_is_integer(item)) hf_refuse(r, name, "holds something else than integers");
        else if (json_integer_value(item) > most) most = json_integer_value(item);
    }
    return most;
}

/* Steps of attention and of experts take turns: "a", experts, "a", experts ... */
static int64_t read_first_steps(HfFieldReader *r, const json_t *steps) {
    const json_t *step;
    size_t index;
    r->model->experts = json_is_array(steps) ? json_integer_value(json_array_get(steps, 1)) : largest(r, "num_experts");
    if (!json_is_array(steps)) return largest(r, "num_hidden_layers");
    json_array_foreach(steps, index, step) {
        bool attention = json_is_string(step) && !strcmp(json_string_value(step), "a");
        if (index % 2 ? json_integer_value(step) != r->model->experts : !attention)
            hf_refuse(r, "zaya_layers", "is not \"a\" and the number of experts in turns");
    }
    return (int64_t)json_array_size(steps);
}

static int64_t first_of(HfFieldReader *r, const char *const *names) {
    while (names[1] && !field(r, names[0])) names++;
    return largest(r, names[0]);
}

/* ffn_hidden_size counts gate and upward rows; num_attention_heads is wrong in folders that have cca_num_q_heads. */
void hf_read_first_zaya(HfFieldReader *r, const char *name, const json_t *value) {
    static const char *const heads[] = {"cca_num_q_heads", "num_attention_heads", NULL}, *const dims[] = {"kv_channels", "head_dim", NULL},
                             *const key_heads[] = {"num_query_groups_list", "num_query_groups", "num_key_value_heads", NULL},
                             *const rows[] = {"ffn_hidden_size_list", "ffn_hidden_size", NULL};
    ModelConfig *c = r->model;
    int64_t steps = read_first_steps(r, value), gate_up = first_of(r, rows);
    (void)name;
    if (steps % 2) hf_refuse(r, "num_hidden_layers", "is odd, and steps of attention and experts take turns");
    if (gate_up % 2) hf_refuse(r, "ffn_hidden_size", "is odd, and half of it are the rows of the gate");
    c->layers = steps / 2;
    c->ffn = gate_up / 2;
    c->heads = first_of(r, heads);
    c->kv_heads = first_of(r, key_heads);
    c->head_dim = first_of(r, dims);
    if (field(r, "swa_layers") && largest(r, "swa_layers"))
        hf_refuse(r, "swa_layers", "is set, which smelt reads in the layout of transformers only");
    if (!field(r, "rope_theta")) hf_refuse(r, "rope_theta", "is missing");
    const json_t *fraction = field(r, "partial_rotary_factor");
    hf_read_rope_object(r, "rope_scaling.", field(r, "rope_scaling"), json_finite_value(field(r, "rope_theta")),
        fraction ? json_finite_value(fraction) : 0.5);
}

void hf_read_mpt_expansion(HfFieldReader *r, const char *name, const json_t *value) {
    (void)value;
    if (__builtin_mul_overflow(integer_or(r, name, 1, 4), r->model->width, &r->model->ffn)) hf_refuse(r, name, "is too large");
}

double hf_logit_scale(const json_t *object, const ModelConfig *c) {
    const json_t *value = json_object_get(object, "logit_scale");
    if (!value || json_is_null(value)) return 1;
    if (json_is_finite(value)) return json_finite_value(value);
    return json_is_string(value) && !strcmp(json_string_value(value), "inv_sqrt_d_model") ? 1 / sqrt((double)c->width) : NAN;
}

/* MosaicML's own code computes these two as they say, transformers ignores them. */
static const char mpt_own[] = "is computed as llm-foundry does; transformers ignores it";

void hf_read_mpt_logit_scale(HfFieldReader *r, const char *name, const json_t *value) {
    (void)value;
    double scale = hf_logit_scale(r->object, r->model);
    if (!isfinite(scale) || scale == 0) hf_refuse(r, name, "is neither a number other than 0 nor \"inv_sqrt_d_model\"");
    if (scale != 1) hf_warn(r, "%s %s", name, mpt_own);
}

void hf_read_mpt_alibi(HfFieldReader *r, const char *name, const json_t *value) {
    if (value && !(json_finite_value(value) > 0)) hf_refuse(r, name, "is not a number above 0");
    r->model->alibi_max = value ? json_finite_value(value) : 8;
    if (r->model->alibi_max != 8) hf_warn(r, "%s%s %s", r->path, name, mpt_own);
}

void hf_read_mpt_scale(HfFieldReader *r, const char *name, const json_t *value) {
    bool given = value && !json_is_null(value);
    if (given && !(json_finite_value(value) > 0)) hf_refuse(r, name, "is not a number above 0");
    r->model->softmax_scale = given ? json_finite_value(value) : 0;
}

void hf_read_mpt_key_heads(HfFieldReader *r, const char *name, const json_t *value) {
    const char *type = value ? json_string_value(value) : "multihead_attention";
    bool one = type && !strcmp(type, "multiquery_attention"), all = type && !strcmp(type, "multihead_attention");
    if (!one && !all && (!type || strcmp(type, "grouped_query_attention"))) hf_refuse(r, name, "is no kind of attention that smelt has");
    r->model->kv_heads = one ? 1 : integer_or(r, "kv_n_heads", 1, r->model->heads);
}

void hf_read_mpt_attention(HfFieldReader *r, const char *name, const json_t *value) {
    HfFieldReader inner = *r;
    json_t *none = json_object();
    bool given = value && !json_is_null(value);
    if (given && !json_is_object(value)) hf_refuse(r, name, "is not an object");
    inner.object = given && json_is_object(value) ? value : none;
    inner.path = "attn_config.";
    hf_read_fields(&inner, hf_mpt_attention_tables());
    if (r->good) r->good = inner.good;
    json_decref(none);
}

/* Channels of a head that each of three coordinates turns: ours share what the first leaves. */
void hf_read_flux_axes(HfFieldReader *r, const char *name, const json_t *value) {
    static const int64_t initial[] = {16, 56, 56};
    int64_t axes[3];
    if (value && (!json_is_array(value) || json_array_size(value) != 3)) hf_refuse(r, name, "is not a list of three numbers");
    for (size_t i = 0; i < 3; i++) axes[i] = value ? json_integer_value(json_array_get(value, i)) : initial[i];
    int64_t dim = r->model->head_dim;
    if (axes[0] < 2 || axes[0] >= dim || axes[1] != axes[2] || axes[1] < 2 || axes[1] >= dim || axes[0] + 2 * axes[1] != dim)
        hf_refuse(r, name, "are not two equal numbers after a first one, with attention_head_dim as their sum");
    r->model->rope_first = axes[0];
}

/* num_layers counts the blocks of two streams alone; the width is that of all heads. */
void hf_read_flux_sizes(HfFieldReader *r, const char *name, const json_t *value) {
    ModelConfig *c = r->model;
    (void)value;
    c->single_layers = integer_or(r, name, 0, 38);
    if (__builtin_mul_overflow(c->heads, c->head_dim, &c->width)) hf_refuse(r, "num_attention_heads", "is too large");
    if (__builtin_add_overflow(c->layers, c->single_layers, &c->layers)) hf_refuse(r, name, "is too large");
    c->norm_epsilon = 1e-6;
    c->rope_theta = 10000;
}

/* -- Reading the file ---------------------------------------------------------------------------------------------- */

static bool find_class(const json_t *object, HfClass *class, Error *error) {
    const char *type = json_string_value(json_object_get(object, "model_type"));
    const char *architecture = json_string_value(json_object_get(object, "_class_name")); /* as diffusers names it */
    char known[256] = "";
    for (int i = 0; i < HF_CLASS_COUNT; i++) {
        *class = (HfClass)i;
        bool diffusers = !classes[i].model_type;
        const char *given = diffusers ? architecture : type, *name = diffusers ? classes[i].architecture : classes[i].model_type;
        if (given && !strcmp(given, name)) return true;
        strncat(known, i ? ", " : "", sizeof known - strlen(known) - 1);
        strncat(known, name, sizeof known - strlen(known) - 1);
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
    Config config = {0};
    OptionStrings strings = {0};
    options_defaults(&config_table, &config, &strings);
    config.model = *model;
    config.data.length = config.batch.tokens = model_least_length(model);
    config.batch.sequences = 1;
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

/* What is the class's own, and zeros where fields, or what is derived from others, come after. */
static ModelConfig start_model(HfClass class) {
    Config defaults;
    OptionStrings strings = {0};
    options_defaults(&config_table, &defaults, &strings);
    options_free_strings(&strings);
    ModelConfig model = defaults.model;
    model.family = classes[class].family;
    model.kv_heads = model.head_dim = model.ffn = 0;
    model.qkv_bias = class == HF_QWEN2;
    model.qk_norm = class == HF_QWEN3;
    model.renormalise = class == HF_MIXTRAL;
    return model;
}

/* As many key heads as query heads, and GPT-2's hidden width, where no field says otherwise. */
static void derive_sizes(HfFieldReader *r) {
    ModelConfig *c = r->model;
    if (!c->kv_heads) c->kv_heads = c->heads;
    if (!c->ffn && __builtin_mul_overflow(4, c->width, &c->ffn)) hf_refuse(r, "n_embd", "is too large");
}

static bool mentions(const char *text, const char *setting) {
    const char *at = strstr(text, setting);
    char after = at ? at[strlen(setting)] : '_';
    return !isalnum((unsigned char)after) && after != '_';
}

/* Puts the fields from which settings were read in front of a message about these settings. The width of a head may
 * come from two of them. */
static bool name_fields(const HfTables *tables, const json_t *object, Error *error) {
    char names[256] = "";
    bool derived = mentions(error->message, "model.head_dim");
    for (size_t i = 0; i < config_table.count; i++) {
        const Option *row = &config_table.rows[i];
        bool part = derived && (!strcmp(row->name, "model.width") || !strcmp(row->name, "model.heads"));
        const HfField *f = hf_find_member(tables, row->offset - offsetof(Config, model));
        if (!f || (!part && !mentions(error->message, row->name))) continue;
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", names[0] ? ", " : "", hf_used_name(tables, object, f->name));
    }
    return names[0] ? error_context(error, "%s", names) : false;
}

bool hf_parse_config(const json_t *object, ModelConfig *model, Precision *precision, char **warnings, Error *error) {
    HfFieldReader reader = {.object = object, .path = "", .model = model, .warnings = warnings, .error = error, .good = true};
    *warnings = NULL;
    if (!json_is_object(object)) return error_set(error, ERROR_CHECKPOINT, "it is not a JSON object");
    if (!find_class(object, &reader.class, error)) return false;
    *model = start_model(reader.class);
    hf_read_fields(&reader, hf_tables(reader.class, object));
    derive_sizes(&reader);
    *precision = read_precision(object);
    return reader.good && (check_model(model, error) || name_fields(hf_tables(reader.class, object), object, error));
}

/* -- Writing ------------------------------------------------------------------------------------------------------- */

void hf_put(json_t *object, const char *key, json_t *value) {
    if (json_object_set_new(object, key, value)) memory_refused(strlen(key)); /* the strings are ours and valid */
}

static void put_string(json_t *object, const char *key, const char *value) { hf_put(object, key, json_string(value)); }

/* The spelling that transformers 4 and other readers know too; transformers 5 turns it into rope_parameters. */
static void put_rope(json_t *object, const ModelConfig *c) {
    json_t *scaling = json_null();
    if (hf_is_scaled(c)) hf_put_scaling(scaling = json_object(), c);
    hf_put(object, "rope_theta", json_real(c->rope_theta));
    hf_put(object, "rope_scaling", scaling);
}

static json_t *zaya_rope(const ModelConfig *c, bool slides) {
    json_t *rope = json_object();
    put_string(rope, "rope_type", "default");
    if (hf_is_scaled(c)) hf_put_scaling(rope, c);
    hf_put(rope, "rope_theta", json_real(slides && c->window_rope_theta > 0 ? c->window_rope_theta : c->rope_theta));
    hf_put(rope, "partial_rotary_factor", json_real(c->rope_fraction));
    return rope;
}

static void put_zaya(json_t *object, const ModelConfig *c) {
    static const char *const names[] = {"hybrid", "hybrid_sliding"};
    json_t *by_type = json_object(), *types = json_array();
    for (int64_t i = 0; i < c->layers; i++) {
        bool slides = model_has_window(c, i);
        json_array_append_new(types, json_string(names[slides]));
        if (!json_object_get(by_type, names[slides])) hf_put(by_type, names[slides], zaya_rope(c, slides));
    }
    hf_put(object, "rope_parameters", by_type);
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

/* As read; of the losses of single layers, whose sum stands for it, the weight with the same sum where layers are
 * alike. */
static double router_loss_weight(const ModelConfig *c) {
    double weight = c->auxiliary_loss / (double)c->experts_per_token;
    return c->auxiliary_scope == AUXILIARY_MODEL ? weight : weight * (double)c->layers;
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
        hf_put(object, "router_aux_loss_coef", json_real(router_loss_weight(c)));
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

/* As diffusers saves it: the class is named, and types are those of the tensors. */
static json_t *describe_flux(const ModelConfig *c) {
    json_t *object = json_object();
    int64_t other = (c->head_dim - c->rope_first) / 2;
    put_string(object, "_class_name", hf_architecture(HF_FLUX));
    hf_put(object, "axes_dims_rope", json_pack("[I, I, I]", (json_int_t)c->rope_first, (json_int_t)other, (json_int_t)other));
    hf_put_integer(object, "patch_size", 1);
    hf_put_integer(object, "in_channels", c->channels);
    hf_put(object, "out_channels", json_null());
    hf_put_integer(object, "num_layers", c->layers - c->single_layers);
    hf_put_integer(object, "num_single_layers", c->single_layers);
    hf_put_integer(object, "attention_head_dim", c->head_dim);
    hf_put_integer(object, "num_attention_heads", c->heads);
    hf_put_integer(object, "joint_attention_dim", c->text_width);
    hf_put_integer(object, "pooled_projection_dim", c->pooled_width);
    hf_put(object, "guidance_embeds", json_boolean(c->guidance));
    return object;
}

static void put_sizes(json_t *object, const ModelConfig *c, HfClass class) {
    hf_put_integer(object, "hidden_size", c->width);
    hf_put_integer(object, "num_hidden_layers", c->layers);
    hf_put_integer(object, "num_attention_heads", c->heads);
    hf_put_integer(object, "num_key_value_heads", c->kv_heads);
    hf_put_integer(object, "head_dim", c->head_dim);
    put_string(object, "hidden_act", "silu");
    hf_put_integer(
        object, "max_position_embeddings", c->rope_factor > 1 && c->rope_scaling == ROPE_DYNAMIC ? c->rope_original_context : c->context);
    hf_put(object, "rms_norm_eps", json_real(c->norm_epsilon));
    hf_put(object, "attention_dropout", json_real(0));
    if (class != HF_LLAMA) hf_put(object, "sliding_window", c->window ? json_integer(c->window) : json_null());
    if ((class == HF_QWEN2 || class == HF_QWEN3) && c->window) {
        hf_put(object, "use_sliding_window", json_true());
        hf_put_integer(object, "max_window_layers", 0);
    }
    if (class == HF_ZAYA) put_zaya(object, c);
    else put_llama(object, c, class);
}

static void put_token_ids(json_t *object, const HfExport *export) {
    static const char *const keys[] = {"bos_token_id", "eos_token_id"};
    for (int i = 0; i < 2; i++) {
        json_t *value = json_object_get(export->origin, keys[i]);
        hf_put(object, keys[i], value ? json_incref(value) : json_null());
    }
    json_t *padding = json_object_get(export->origin, "pad_token_id");
    if (export->config->padding >= 0) hf_put_integer(object, "pad_token_id", export->config->padding);
    else hf_put(object, "pad_token_id", padding ? json_incref(padding) : json_null());
    if (export->bytes) hf_put_integer(object, "eos_token_id", BYTE_SEPARATOR);
}

/* A folder whose tensors keep their types keeps what it says of them. */
static json_t *dtype(const HfExport *export) {
    json_t *stored = json_object_get(export->origin, "dtype");
    if (!stored) stored = json_object_get(export->origin, "torch_dtype");
    if (export->keep && json_is_string(stored)) return json_incref(stored);
    return json_string(export->precision == PRECISION_BF16 ? "bfloat16" : "float32");
}

static json_t *describe(const HfExport *export, HfClass class) {
    const ModelConfig *c = export->config;
    if (class == HF_FLUX) return describe_flux(c);
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

/* A folder's own description holds for its copy, in its own class. The scale of logits has gone into the weights; the
 * types of tensors may have changed, and new tokens have rows. */
static json_t *describe_copy(const HfExport *export) {
    json_t *object = json_deep_copy(export->origin);
    if (!object) memory_refused(sizeof *object);
    if (json_object_get(object, "logit_scale")) hf_put(object, "logit_scale", json_null());
    json_object_del(object, "torch_dtype");
    if (export->new_tokens) hf_put_integer(object, "vocab_size", export->config->vocabulary);
    if (hf_class(export->config) != HF_FLUX) hf_put(object, "dtype", dtype(export));
    return object;
}

json_t *hf_config(const HfExport *export) {
    bool described = json_object_get(export->origin, "model_type") || json_object_get(export->origin, "_class_name");
    bool copied = described && !hf_is_first_zaya(export->origin);
    json_t *object = copied ? describe_copy(export) : describe(export, hf_class(export->config));
    if (export->fp8) hf_put(object, "quantization_config", hf_fp8_config());
    return object;
}
