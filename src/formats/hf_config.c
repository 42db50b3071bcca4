/* Reads and writes config.json: the known classes of transformers, the fields that functions rather
 * than table rows of hf_fields.c read, and the output. Settings that our models cannot compute are
 * refused by name, never ignored. Owns nothing. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_reader.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "data/byte_tokenizer.h"
#include "formats/hf_internal.h"

const HfClass *hf_class(const ModelConfig *c) {
    const HfClass *const *class = family_of(c)->classes;
    while ((*class)->fits && !(*class)->fits(c)) class++;
    return *class;
}

const char *hf_stem(const ModelConfig *c) { return hf_class(c)->model_type ? "model" : "diffusion_pytorch_model"; }

bool hf_check(const ModelConfig *c, Error *error) {
    const HfClass *class = hf_class(c);
    return !class->check || class->check(c, class->architecture, error);
}

bool hf_check_divided_width(const ModelConfig *c, const char *architecture, Error *error) {
    return c->width % c->heads == 0 || error_set(error, ERROR_USAGE, "model.width=%lld is not a multiple of model.heads=%lld, as in %s",
                                           (long long)c->width, (long long)c->heads, architecture);
}

/* -- Fields that are read by functions ----------------------------------------------------------------------------- */

int64_t hf_integer_or(HfFieldReader *r, const char *name, int64_t least, int64_t fallback) {
    const json_t *value = hf_field(r, name);
    if (!value) return fallback;
    if (!json_is_integer(value) || json_integer_value(value) < least)
        hf_refuse(r, name, "is not an integer of at least %lld", (long long)least);
    return json_integer_value(value);
}

bool hf_boolean_or(HfFieldReader *r, const char *name, bool fallback) {
    const json_t *value = hf_field(r, name);
    if (value && !json_is_boolean(value)) hf_refuse(r, name, "is not true or false");
    return value ? json_is_true(value) : fallback;
}

/* PyTorch counts negative indices of an embedding from the end. */
void hf_read_padding(HfFieldReader *r, const char *name, const json_t *value) {
    int64_t vocabulary = r->model->vocabulary, token = json_integer_value(value);
    r->model->padding = -1;
    if (!value || json_is_null(value)) return;
    if (!json_is_integer(value) || token < -vocabulary || token >= vocabulary) hf_refuse(r, name, "is not a token of the vocabulary");
    else r->model->padding = token < 0 ? token + vocabulary : token;
}

void hf_read_padding_or(HfFieldReader *r, const char *name, const json_t *value, int64_t fallback) {
    if (!value && fallback >= r->model->vocabulary)
        hf_refuse(r, name, "is missing, and its default, %lld, is not a token of the vocabulary", (long long)fallback);
    if (value) hf_read_padding(r, name, value);
    else r->model->padding = fallback;
}

static bool check_layer_count(HfFieldReader *r, const char *name, const json_t *types) {
    if ((int64_t)json_array_size(types) != r->model->layers) hf_refuse(r, name, "does not have one name per layer (num_hidden_layers)");
    return r->good;
}

static bool has_layer_name(const json_t *types, int64_t layer, const char *name) {
    const char *given = json_string_value(json_array_get(types, (size_t)layer));
    return given && !strcmp(given, name);
}

/* Returns the number of layers with the window in a list with one name per layer; -1 after a
 * refusal. */
static int64_t count_windows(HfFieldReader *r, const char *name, const json_t *types, const HfLayerNames *names) {
    int64_t sliding = 0;
    if (!check_layer_count(r, name, types)) return -1;
    for (int64_t i = 0; i < r->model->layers; i++) {
        bool slides = has_layer_name(types, i, names->sliding);
        sliding += slides;
        if (!slides && !has_layer_name(types, i, names->full))
            hf_refuse(r, name, "holds a name other than \"%s\" and \"%s\"", names->full, names->sliding);
    }
    return r->good ? sliding : -1;
}

void hf_read_layer_types(HfFieldReader *r, const char *name, const json_t *types) {
    static const HfLayerNames names = {"full_attention", "sliding_attention"};
    int64_t sliding = count_windows(r, name, types, &names);
    if (sliding < 0) return;
    if (sliding == 0) r->model->window = 0;
    else if (sliding < r->model->layers) hf_refuse(r, name, "differ between layers, but smelt needs one type for all layers");
    else if (!r->model->window) hf_refuse(r, name, "holds \"%s\", but the model has no sliding_window", names.sliding);
}

void hf_read_unused_layers(HfFieldReader *r, const char *name, const json_t *value) {
    if (value && !json_is_null(value)) check_layer_count(r, name, value);
}

/* Finds the period and the first one of the layers with a name; returns whether they are at even
 * distances. */
static bool find_period(ModelConfig *c, const json_t *types, const char *name, int64_t period) {
    int64_t first = 0;
    while (first < c->layers && !has_layer_name(types, first, name)) first++;
    int64_t second = first + 1;
    while (second < c->layers && !has_layer_name(types, second, name)) second++;
    c->window_first = first;
    c->window_period = second < c->layers ? second - first : int_max(c->layers, period);
    for (int64_t i = 0; i < c->layers; i++)
        if (has_layer_name(types, i, name) != (i % c->window_period == first)) return false;
    return true;
}

int64_t hf_read_windows(HfFieldReader *r, const char *name, const json_t *types, const HfLayerNames *names, int64_t period, bool skips) {
    ModelConfig *c = r->model;
    int64_t sliding = count_windows(r, name, types, names);
    c->window_period = 1, c->window_first = 0;
    if (sliding <= 0 || sliding == c->layers) return sliding;
    c->window_skips = skips && find_period(c, types, names->full, period);
    if (c->window_skips || find_period(c, types, names->sliding, period)) return sliding;
    hf_refuse(r, name, "does not have \"%s\" at even distances", names->sliding);
    return -1;
}

const HfLayerNames hf_sliding_names = {"full_attention", "sliding_attention"};

/* More layers than MOST_LAYERS are refused. */
void hf_read_usual_windows(HfFieldReader *r, const char *name, const json_t *types, int64_t period, int64_t window) {
    enum { MOST_LAYERS = 10000 };
    const HfLayerNames *names = &hf_sliding_names;
    ModelConfig *c = r->model;
    json_auto_t *usual = json_array();
    for (int64_t i = 0; i < int_min(c->layers, MOST_LAYERS); i++)
        json_array_append_new(usual, json_string((i + 1) % period ? names->sliding : names->full));
    int64_t sliding = hf_read_windows(r, name, types && !json_is_null(types) ? types : usual, names, period, true);
    if (json_is_null(hf_field(r, "sliding_window"))) hf_refuse(r, "sliding_window", "is null, which transformers does not run");
    c->window = sliding > 0 ? hf_integer_or(r, "sliding_window", 1, window) : 0;
}

void hf_read_dense_layers(HfFieldReader *r, const char *name, int64_t fallback) {
    ModelConfig *c = r->model;
    c->experts_first = hf_integer_or(r, name, 0, fallback);
    if (c->experts_first >= c->layers) hf_refuse(r, name, "leaves no layer with experts, which is not supported");
    if (!model_mixes_layers(c)) c->dense_ffn = 0;
}

/* Clears the entries of `experts` that the list names. transformers ignores other numbers. */
static void clear_dense_layers(HfFieldReader *r, const char *name, const json_t *list, bool *experts) {
    size_t index;
    json_t *layer;
    if (list && !json_is_null(list) && !json_is_array(list)) hf_refuse(r, name, "is not a list of layers");
    json_array_foreach((json_t *)list, index, layer) {
        json_int_t at = json_integer_value(layer);
        if (!json_is_integer(layer)) hf_refuse(r, name, "is not a list of layers");
        else if (at >= 0 && at < r->model->layers) experts[at] = false;
    }
}

void hf_read_sparse_layers(HfFieldReader *r, const char *name, const json_t *value) {
    ModelConfig *c = r->model;
    int64_t step = hf_integer_or(r, "decoder_sparse_step", 1, 1), first = 0, second;
    if (!r->good || c->layers > (int64_t)config_find("model.layers")->maximum) return; /* refused by its bounds */
    SCOPED_FREE bool *experts = memory_allocate((size_t)c->layers);
    for (int64_t i = 0; i < c->layers; i++) experts[i] = (i + 1) % step == 0;
    clear_dense_layers(r, name, value, experts);
    while (first < c->layers && !experts[first]) first++;
    for (second = first + 1; second < c->layers && !experts[second];) second++;
    if (first == c->layers) hf_refuse(r, name, "and decoder_sparse_step give no layer experts, which is not supported");
    c->experts_first = first;
    c->experts_period = second < c->layers ? second - first : int_max(step, c->layers - first);
    for (int64_t i = 0; i < c->layers; i++)
        if (experts[i] != model_layer_has_experts(c, i))
            hf_refuse(r, name, "and decoder_sparse_step do not give experts to every Nth layer; other patterns are not supported");
    if (!model_mixes_layers(c)) c->dense_ffn = 0;
}

void hf_put_sparse_layers(json_t *object, const ModelConfig *c) {
    bool steps = c->experts_first == c->experts_period - 1;
    json_t *dense = json_array();
    hf_put_integer(object, "intermediate_size", model_mixes_layers(c) ? c->dense_ffn : c->ffn);
    hf_put_integer(object, "decoder_sparse_step", steps ? c->experts_period : 1);
    hf_put(object, "mlp_only_layers", dense);
    for (int64_t i = 0; i < c->layers && !steps; i++)
        if (!model_layer_has_experts(c, i)) json_array_append_new(dense, json_integer(i));
}

/* load_balancing_loss_func of transformers is one loss over the tokens of all layers: E times the sum
 * over e of f_e P_e. Its f counts choices per token, which add up to k; our f are shares, which add
 * up to 1. */
void hf_read_router_loss(HfFieldReader *r, const char *name, const json_t *value, double fallback) {
    if (value && !json_is_finite(value)) hf_refuse(r, name, "is not a number");
    double weight = value ? json_finite_value(value) : fallback;
    r->model->auxiliary_scope = AUXILIARY_MODEL;
    r->model->auxiliary_loss = hf_boolean_or(r, "output_router_logits", false) ? weight * r->model->experts_per_token : 0;
    if (r->model->auxiliary_loss < 0) hf_refuse(r, name, "is below 0");
}

/* -- Reading the file ---------------------------------------------------------------------------------------------- */

/* Finds the class of an object, and its family, by model_type, or by _class_name for diffusers. */
static const HfClass *find_class(const json_t *object, int *family, Error *error) {
    const char *type = json_string_value(json_object_get(object, "model_type"));
    const char *architecture = json_string_value(json_object_get(object, "_class_name"));
    SCOPED_FREE char *known = NULL;
    for (int i = 0; i < family_count; i++)
        for (const HfClass *const *class = family_rules[i]->classes; *class; class++) {
            bool diffusers = !(*class)->model_type;
            const char *given = diffusers ? architecture : type, *name = diffusers ? (*class)->architecture : (*class)->model_type;
            if (given && !strcmp(given, name)) {
                *family = i;
                return *class;
            }
            char *before = known;
            known = before ? memory_format("%s, %s", before, name) : memory_copy_string(name);
            free(before);
        }
    SCOPED_FREE char *shown = type ? json_dumps(json_object_get(object, "model_type"), JSON_ENCODE_ANY | JSON_ENSURE_ASCII) : NULL;
    error_set(error, ERROR_CHECKPOINT, "model_type is %.64s, but smelt supports only %s", shown ? shown : "missing", known);
    return NULL;
}

/* Applies the bounds of the settings. */
static bool check_bounds(const Config *config, Error *error) {
    for (size_t i = 0; i < config_table.count; i++) {
        const Option *row = &config_table.rows[i];
        const char *at = (const char *)config + row->offset;
        if (strncmp(row->name, "model.", 6)) continue;
        const RealList *list = (const RealList *)at;
        int64_t count = row->type == OPTION_REALS ? list->count : row->type == OPTION_INT || row->type == OPTION_REAL;
        for (int64_t j = 0; j < count; j++) {
            double value = row->type == OPTION_REALS ? list->items[j]
                           : row->type == OPTION_INT ? (double)*(const int64_t *)at
                                                     : *(const double *)at;
            if (!(value >= row->minimum && value <= row->maximum))
                return error_set(error, ERROR_CHECKPOINT, "%s would be %g, but smelt allows only %g to %g", row->name, value, row->minimum,
                    row->maximum);
        }
    }
    return true;
}

/* Checks the bounds, and the conditions of config_check. */
static bool check_readable(ModelConfig *model, Error *error) {
    Config config = {0};
    OptionStrings strings = {0};
    options_defaults(&config_table, &config, &strings);
    config.model = *model;
    config.data.length = config.batch.tokens = model_least_length(model);
    config.batch.sequences = 1;
    bool good = check_bounds(&config, error) && config_check(&config, error) &&
                check_bounds(&config, error); /* the second call checks derived values */
    options_free_strings(&strings);
    *model = config.model;
    if (!good) error->code = ERROR_CHECKPOINT;
    return good;
}

static Precision read_precision(const json_t *object) {
    const char *type = json_string_value(json_object_get(object, "dtype"));
    if (!type) type = json_string_value(json_object_get(object, "torch_dtype"));
    if (!type && json_is_object(json_object_get(object, "quantization_config"))) return PRECISION_BF16;
    return type && (!strcmp(type, "bfloat16") || !strcmp(type, "float16")) ? PRECISION_BF16 : PRECISION_FP32;
}

/* Sets the class's own values, and zeros for fields that are read or derived later. */
static ModelConfig start_model(const HfClass *class, int family) {
    Config defaults = {0}; /* not every field is a setting */
    OptionStrings strings = {0};
    options_defaults(&config_table, &defaults, &strings);
    options_free_strings(&strings);
    ModelConfig model = defaults.model;
    model.family = family;
    model.kv_heads = model.head_dim = model.ffn = 0;
    if (class->start) class->start(&model);
    return model;
}

/* Derives key heads (as many as query heads) and GPT-2's hidden width if no field gives them. */
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

/* Prepends the fields from which settings were read to a message about these settings. The width of
 * a head may come from two fields. */
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
    if (!json_is_object(object)) return error_set(error, ERROR_CHECKPOINT, "the file is not a JSON object");
    int family;
    if (!(reader.class = find_class(object, &family, error))) return false;
    *model = start_model(reader.class, family);
    hf_read_fields(&reader, hf_tables(reader.class, object));
    derive_sizes(&reader);
    *precision = read_precision(object);
    return reader.good && (check_readable(model, error) || name_fields(hf_tables(reader.class, object), object, error));
}

/* -- Writing ------------------------------------------------------------------------------------------------------- */

void hf_put(json_t *object, const char *key, json_t *value) {
    if (json_object_set_new(object, key, value)) memory_refused(strlen(key)); /* the strings are ours and valid */
}

void hf_put_activation(json_t *object, const char *key, const ModelConfig *c) {
    const char *spellings = activation_rules[model_activation(c)].hf;
    hf_put(object, key, json_stringn(spellings, strcspn(spellings, " ")));
}

/* Uses the spelling that transformers 4 and other readers also know; transformers 5 converts it to
 * rope_parameters. */
void hf_put_rope(json_t *object, const ModelConfig *c) {
    json_t *scaling = json_null();
    if (hf_is_scaled(c)) hf_put_scaling(scaling = json_object(), c);
    hf_put(object, "rope_theta", json_real(c->rope_theta));
    hf_put(object, "rope_scaling", scaling);
}

json_t *hf_rope_object(const ModelConfig *c, bool window, bool scaled) {
    json_t *rope = json_object();
    hf_put_text(rope, "rope_type", "default");
    if (scaled && hf_is_scaled(c)) hf_put_scaling(rope, c);
    hf_put(rope, "rope_theta", json_real(model_rope_theta(c, window)));
    return rope;
}

void hf_put_layer_types(json_t *object, const ModelConfig *c, const HfLayerNames *names) {
    json_t *types = json_array();
    for (int64_t i = 0; i < c->layers; i++)
        json_array_append_new(types, json_string(model_has_window(c, i) ? names->sliding : names->full));
    hf_put(object, "layer_types", types);
}

/* transformers does not run models without sliding_window. */
void hf_put_sliding_layers(json_t *object, const ModelConfig *c) {
    json_t *rope = json_object();
    hf_put(rope, hf_sliding_names.full, hf_rope_object(c, false, true));
    hf_put(rope, hf_sliding_names.sliding, hf_rope_object(c, true, false));
    hf_put_integer(object, "sliding_window", c->window ? c->window : 4096);
    hf_put_layer_types(object, c, &hf_sliding_names);
    hf_put(object, "rope_parameters", rope);
}

void hf_put_decoder(json_t *object, const ModelConfig *c) {
    hf_put_integer(object, "hidden_size", c->width);
    hf_put_integer(object, "num_hidden_layers", c->layers);
    hf_put_integer(object, "num_attention_heads", c->heads);
    hf_put_integer(object, "num_key_value_heads", c->kv_heads);
    hf_put_integer(object, "head_dim", c->head_dim);
    hf_put_activation(object, "hidden_act", c);
    hf_put_integer(
        object, "max_position_embeddings", c->rope_factor > 1 && c->rope_scaling == ROPE_DYNAMIC ? c->rope_original_context : c->context);
    hf_put(object, "rms_norm_eps", json_real(c->norm_epsilon));
    hf_put(object, "attention_dropout", json_real(0));
}

/* Writes the coefficient as read. For a sum of per-layer losses, writes the one that gives the same
 * sum if the layers are alike. */
void hf_put_router(json_t *object, const ModelConfig *c) {
    double weight = c->auxiliary_loss / (double)c->experts_per_token;
    if (c->auxiliary_scope == AUXILIARY_LAYER) weight *= (double)model_expert_layers(c, c->layers);
    hf_put_integer(object, "num_experts_per_tok", c->experts_per_token);
    hf_put(object, "output_router_logits", json_boolean(c->auxiliary_loss > 0));
    hf_put(object, "router_aux_loss_coef", json_real(weight));
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

/* A folder whose tensors keep their types keeps its dtype field. */
static json_t *dtype(const HfExport *export) {
    json_t *stored = json_object_get(export->origin, "dtype");
    if (!stored) stored = json_object_get(export->origin, "torch_dtype");
    if (export->keep && json_is_string(stored)) return json_incref(stored);
    return json_string(export->precision == PRECISION_BF16 ? "bfloat16" : "float32");
}

static json_t *describe_config(const HfExport *export) {
    const ModelConfig *c = export->config;
    const HfClass *class = hf_class(c);
    json_t *object = json_object();
    if (class->model_type) {
        hf_put(object, "architectures", json_pack("[s]", class->architecture));
        hf_put_text(object, "model_type", class->model_type);
        hf_put(object, "dtype", dtype(export));
        hf_put_integer(object, "vocab_size", c->vocabulary);
        hf_put(object, "initializer_range", json_real(c->init_std));
        hf_put(object, "tie_word_embeddings", json_boolean(c->tied));
        hf_put(object, "use_cache", json_true());
        put_token_ids(object, export);
    } else hf_put_text(object, "_class_name", class->architecture);
    class->put(object, c);
    return object;
}

/* Copies a folder's own description in its own class. The logit scale is already in the weights;
 * tensor types may have changed; new tokens have rows. */
static json_t *describe_copy(const HfExport *export) {
    json_t *object = json_deep_copy(export->origin);
    if (!object) memory_refused(sizeof *object);
    if (json_object_get(object, "logit_scale")) hf_put(object, "logit_scale", json_null());
    json_object_del(object, "torch_dtype");
    json_object_del(object, "quantization_config");
    if (export->new_tokens) hf_put_integer(object, "vocab_size", export->config->vocabulary);
    if (hf_class(export->config)->model_type) hf_put(object, "dtype", dtype(export));
    return object;
}

json_t *hf_config(const HfExport *export) {
    bool described = json_object_get(export->origin, "model_type") || json_object_get(export->origin, "_class_name");
    const HfClass *class = hf_class(export->config);
    bool copied = described && hf_tables(class, export->origin) == &class->tables;
    json_t *object = copied ? describe_copy(export) : describe_config(export);
    if (export->fp8) hf_put(object, "quantization_config", hf_fp8_config());
    if (export->mxfp4) hf_put(object, "quantization_config", hf_mxfp4_config());
    return object;
}
