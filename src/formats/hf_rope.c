/* RoPE settings of config.json, read and written as transformers 5 does (modeling_rope_utils.py).
 * rope_scaling takes precedence over rope_parameters, and a rope_theta inside the object over the
 * one beside it. Supported scalings: llama3, linear, dynamic, yarn and longrope. Called by the readers of
 * fields and the writer of config.json; owns nothing. */
#include <math.h>
#include <string.h>

#include "base/json_reader.h"
#include "formats/hf_internal.h"

/* Indexed by RopeScaling. */
static const char *const types[] = {"llama3", "linear", "dynamic", "yarn", "longrope"};
enum { TYPES = sizeof types / sizeof *types, UNSCALED = -1 };

static const char *const fields[] = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "factor",
    "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "attention_factor", "beta_fast", "beta_slow", "mscale",
    "mscale_all_dim", "truncate", "short_factor", "long_factor", "llama_4_scaling_beta", "max_position_embeddings", "mrope_section",
    "mrope_interleaved"};

/* Returns a RopeScaling or UNSCALED. */
static int read_type(HfFieldReader *r, const json_t *rope) {
    const json_t *value = json_object_get(rope, "rope_type") ? json_object_get(rope, "rope_type") : json_object_get(rope, "type");
    const char *type = value ? json_string_value(value) : "default";
    if (type && !strcmp(type, "default")) return UNSCALED;
    if (type && r->class->has_only_longrope && (!strcmp(type, "su") || !strcmp(type, "yarn"))) return ROPE_LONGROPE;
    for (int i = r->class->has_only_longrope ? ROPE_LONGROPE : 0; type && i < TYPES; i++)
        if (!strcmp(type, types[i])) return i;
    hf_refuse(r, "rope_type", "is not a RoPE scaling that smelt supports: default, llama3, linear, dynamic, yarn, longrope");
    return UNSCALED;
}

static double real(HfFieldReader *r, const json_t *rope, const char *name) {
    const json_t *value = json_object_get(rope, name);
    if (!json_is_finite(value)) hf_refuse(r, name, value ? "is not a number" : "is missing");
    return json_finite_value(value);
}

/* Reads an option of yarn; null and 0 mean the default. */
static double real_or(HfFieldReader *r, const json_t *rope, const char *name, double fallback) {
    const json_t *value = json_object_get(rope, name);
    if (!value || json_is_null(value)) return fallback;
    double number = real(r, rope, name);
    return number != 0 ? number : fallback;
}

/* The field beside the object takes precedence, as in standardize_rope_params. */
static int64_t read_original_context(HfFieldReader *r, const json_t *rope) {
    static const char name[] = "original_max_position_embeddings";
    const json_t *beside = json_object_get(r->object, name);
    int64_t usual = r->class->original_context;
    const json_t *value = beside || usual ? beside : json_object_get(rope, name);
    if (!value) return usual ? usual : r->model->context;
    if (!json_is_integer(value) || json_integer_value(value) < 1) hf_refuse(r, name, "is not a positive integer");
    return json_integer_value(value);
}

static double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1; }

static void read_attention_factor(HfFieldReader *r, const json_t *rope, double fallback) {
    ModelConfig *c = r->model;
    const json_t *given = json_object_get(rope, "attention_factor");
    c->rope_attention_factor = given && !json_is_null(given) ? real(r, rope, "attention_factor") : fallback;
    if (!(c->rope_attention_factor > 0)) hf_refuse(r, "attention_factor", "is not positive");
    if (r->class->scales_no_attention && c->rope_attention_factor != 1)
        hf_refuse(r, "attention_factor", "is %g, but smelt supports only 1 for this class", c->rope_attention_factor);
}

static double context_ratio(const ModelConfig *c) { return (double)c->context / (double)c->rope_original_context; }

static void read_yarn(HfFieldReader *r, const json_t *rope) {
    ModelConfig *c = r->model;
    const json_t *truncate = json_object_get(rope, "truncate");
    c->rope_factor = json_is_null(json_object_get(rope, "factor")) ? context_ratio(c) : real(r, rope, "factor");
    double mscale = real_or(r, rope, "mscale", 0), all = real_or(r, rope, "mscale_all_dim", 0);
    bool both = mscale != 0 && all != 0;
    read_attention_factor(
        r, rope, both ? yarn_mscale(c->rope_factor, mscale) / yarn_mscale(c->rope_factor, all) : yarn_mscale(c->rope_factor, 1));
    c->rope_beta_fast = real_or(r, rope, "beta_fast", 32);
    c->rope_beta_slow = real_or(r, rope, "beta_slow", 1);
    if (truncate && !json_is_boolean(truncate)) hf_refuse(r, "truncate", "is not true or false");
    c->rope_truncate = !truncate || json_is_true(truncate) || r->class->rounds_rope_bounds;
}

/* config_check compares the count with the head's channels. */
static void read_divisors(HfFieldReader *r, const json_t *rope, const char *name, RealList *list) {
    const json_t *given = json_object_get(rope, name), *value;
    size_t index;
    *list = (RealList){0};
    if (!json_is_array(given) || json_array_size(given) > REAL_LIST_MOST) {
        hf_refuse(r, name, given ? "is not a list of at most %d numbers" : "is missing", REAL_LIST_MOST);
        return;
    }
    json_array_foreach(given, index, value) {
        if (!json_is_finite(value)) hf_refuse(r, name, "has an item that is not a number");
        list->items[list->count++] = json_finite_value(value);
    }
}

static void read_longrope(HfFieldReader *r, const json_t *rope) {
    ModelConfig *c = r->model;
    const json_t *factor = json_object_get(rope, "factor");
    c->rope_factor = !factor || json_is_null(factor) ? context_ratio(c) : real(r, rope, "factor");
    if (!(c->rope_factor >= 1) && !(factor && !json_is_null(factor)))
        hf_refuse(r, "factor", "is missing, and max_position_embeddings / original_max_position_embeddings=%lld is below 1",
            (long long)c->rope_original_context);
    if (c->rope_factor == 1) hf_refuse(r, "factor", "is 1, but smelt applies short_factor and long_factor only if it is above 1");
    read_attention_factor(r, rope, sqrt(1 + log(c->rope_factor) / log((double)c->rope_original_context)));
    read_divisors(r, rope, "short_factor", &c->rope_short_factors);
    read_divisors(r, rope, "long_factor", &c->rope_long_factors);
}

/* Dynamic scaling begins after max_position_embeddings, so the model's context is `factor` times as
 * long. */
static void read_dynamic(HfFieldReader *r) {
    ModelConfig *c = r->model;
    const double most = 1 << 24;
    c->rope_original_context = c->context;
    c->context = (int64_t)fmin(fmax((double)c->context, floor(c->rope_factor * (double)c->context)), most);
}

static void read_score_scale(HfFieldReader *r, const json_t *rope) {
    r->model->rope_mscale = real_or(r, rope, "mscale_all_dim", 0);
    if (r->model->rope_mscale < 0) hf_refuse(r, "mscale_all_dim", "is below 0");
    if (r->model->rope_mscale != 0) real(r, rope, "factor"); /* transformers derives no factor here */
}

/* transformers does not run these classes without the field. */
static void read_query_scale(HfFieldReader *r, const json_t *rope) {
    r->model->rope_query_scale = real(r, rope, "llama_4_scaling_beta");
    if (r->model->rope_query_scale < 0) hf_refuse(r, "llama_4_scaling_beta", "is below 0");
}

static void read_scaling(HfFieldReader *r, const json_t *rope, RopeScaling scaling) {
    ModelConfig *c = r->model;
    c->rope_scaling = scaling;
    if (r->class->demands_scaled_head_dim && !c->head_dim && (scaling == ROPE_YARN || scaling == ROPE_DYNAMIC || scaling == ROPE_LONGROPE))
        hf_refuse(r, "rope_type", "is %s without head_dim, but transformers' %s requires it", types[scaling], r->class->architecture);
    if (scaling != ROPE_LINEAR && scaling != ROPE_DYNAMIC) c->rope_original_context = read_original_context(r, rope);
    if (r->class->scales_scores) read_score_scale(r, rope);
    if (r->class->scales_queries) read_query_scale(r, rope);
    if (scaling == ROPE_YARN) read_yarn(r, rope);
    else if (scaling == ROPE_LONGROPE) read_longrope(r, rope);
    else c->rope_factor = real(r, rope, "factor");
    if (!(c->rope_factor >= 1)) hf_refuse(r, "factor", "is below 1");
    if (scaling == ROPE_DYNAMIC && r->good) read_dynamic(r);
    if (scaling != ROPE_LLAMA3) return;
    c->rope_low_frequency = real(r, rope, "low_freq_factor");
    c->rope_high_frequency = real(r, rope, "high_freq_factor");
}

/* Refuses RoPE settings by layer type; warns of fields that a later transformers may add. */
static void check_rope_fields(HfFieldReader *r, const json_t *rope) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)rope, name, value) {
        bool known = false;
        for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) known |= !strcmp(name, fields[i]);
        if (!known && json_is_object(value))
            hf_refuse(r, name, "holds RoPE settings per layer type, but smelt supports one object for all layers");
        else if (!known) hf_warn(r, "ignoring a field that is not a RoPE parameter: %.60s", name);
    }
}

static void read_fraction(HfFieldReader *r, double fraction) {
    ModelConfig *c = r->model;
    double head = c->head_dim ? (double)c->head_dim : (double)c->width / (double)c->heads, rotated = fraction * head;
    if (!(rotated >= 2) || fmod(rotated, 2) != 0)
        hf_refuse(r, "partial_rotary_factor",
            "rotates %g of %g channels of a head (head_dim, or hidden_size / num_attention_heads), not an even number of at least 2",
            rotated, head);
    c->rope_fraction = fraction;
}

static void read_object(HfFieldReader *r, const json_t *rope, double theta, double fraction) {
    ModelConfig *c = r->model;
    int scaling = read_type(r, rope);
    const json_t *given = json_object_get(rope, "partial_rotary_factor");
    double rotated = given ? json_finite_value(given) : fraction;
    check_rope_fields(r, rope);
    if (given && !json_is_finite(given)) hf_refuse(r, "partial_rotary_factor", "is not a number");
    c->rope_theta = json_object_get(rope, "rope_theta") ? real(r, rope, "rope_theta") : theta;
    if (isnan(c->rope_theta)) hf_refuse(r, "rope_theta", "is missing or not a number");
    if (r->class->rotates_part) read_fraction(r, rotated);
    else if ((scaling != UNSCALED || r->class->rotates_whole) && rotated != 1)
        hf_refuse(r, "partial_rotary_factor", "is %g%s, which transformers does not support", rotated,
            scaling != UNSCALED ? " together with RoPE scaling" : "");
    if (r->class->scales_queries && (scaling == UNSCALED || scaling == ROPE_LINEAR || scaling == ROPE_DYNAMIC))
        hf_refuse(r, "rope_type", "is %s, but smelt supports only llama3, yarn and longrope for this class",
            scaling < 0 ? "default" : types[scaling]);
    if (scaling != UNSCALED) read_scaling(r, rope, (RopeScaling)scaling);
}

void hf_read_rope_object(HfFieldReader *r, const char *path, const json_t *rope, double theta, double fraction) {
    HfFieldReader inner = *r;
    inner.path = path;
    read_object(&inner, rope, theta, fraction);
    r->good = inner.good;
}

/* Returns whether Python counts the value as false. */
static bool is_empty_rope(const json_t *value) {
    return !value || json_is_null(value) || json_is_false(value) || (json_is_object(value) && !json_object_size(value)) ||
           (json_is_array(value) && !json_array_size(value));
}

static double number_or(const json_t *value, double fallback) {
    if (!value) return fallback;
    return json_is_finite(value) ? json_finite_value(value) : NAN;
}

/* Without scaling, classes that do not rotate a part rotate whole heads whatever partial_rotary_factor says. */
void hf_read_rope_part(HfFieldReader *r, const char *name, const json_t *value, double usual) {
    const json_t *scaling = json_object_get(r->object, "rope_scaling"), *fraction = json_object_get(r->object, "partial_rotary_factor");
    bool scaled = !is_empty_rope(scaling);
    const json_t *rope = scaled ? scaling : value;
    double theta = number_or(json_object_get(r->object, "rope_theta"), r->class->rope_theta > 0 ? r->class->rope_theta : 1e4);
    if (rope && !json_is_null(rope) && !json_is_object(rope)) hf_refuse(r, scaled ? "rope_scaling" : name, "is not an object");
    else
        hf_read_rope_object(r, scaled ? "rope_scaling." : "rope_parameters.", json_is_object(rope) ? rope : NULL, theta,
            number_or(json_is_null(fraction) && !r->class->rotates_part ? NULL : fraction, usual));
}

void hf_read_rope(HfFieldReader *r, const char *name, const json_t *value) { hf_read_rope_part(r, name, value, 1); }

/* -- Writing ------------------------------------------------------------------------------------------------------- */

static void put_divisors(json_t *rope, const char *name, const RealList *list) {
    json_t *items = json_array();
    for (int64_t i = 0; i < list->count; i++) json_array_append_new(items, json_real(list->items[i]));
    hf_put(rope, name, items);
}

void hf_put_scaling(json_t *rope, const ModelConfig *c) {
    hf_put(rope, "rope_type", json_string(types[c->rope_scaling]));
    hf_put(rope, "factor", json_real(c->rope_factor));
    if (c->rope_scaling != ROPE_LINEAR && c->rope_scaling != ROPE_DYNAMIC)
        hf_put_integer(rope, "original_max_position_embeddings", c->rope_original_context);
    if (c->rope_scaling == ROPE_LLAMA3) {
        hf_put(rope, "low_freq_factor", json_real(c->rope_low_frequency));
        hf_put(rope, "high_freq_factor", json_real(c->rope_high_frequency));
    }
    if (c->rope_scaling == ROPE_YARN || c->rope_scaling == ROPE_LONGROPE)
        hf_put(rope, "attention_factor", json_real(c->rope_attention_factor));
    if (c->rope_scaling == ROPE_LONGROPE) {
        put_divisors(rope, "short_factor", &c->rope_short_factors);
        put_divisors(rope, "long_factor", &c->rope_long_factors);
    }
    if (c->rope_query_scale > 0) hf_put(rope, "llama_4_scaling_beta", json_real(c->rope_query_scale));
    if (c->rope_mscale > 0) hf_put(rope, "mscale_all_dim", json_real(c->rope_mscale));
    if (c->rope_scaling == ROPE_YARN) {
        hf_put(rope, "beta_fast", json_real(c->rope_beta_fast));
        hf_put(rope, "beta_slow", json_real(c->rope_beta_slow));
        hf_put(rope, "truncate", json_boolean(c->rope_truncate));
    }
}

void hf_read_layer_ropes(HfFieldReader *r, const HfLayerThetas *thetas) {
    const char *full = hf_sliding_names.full, *sliding = hf_sliding_names.sliding;
    const json_t *all = hf_field(r, "rope_parameters"), *scaling = hf_field(r, "rope_scaling"), *base = hf_field(r, "rope_theta"),
                 *part = hf_field(r, "partial_rotary_factor"), *local = thetas->field ? hf_field(r, thetas->field) : NULL;
    bool given = all && !json_is_null(all), scaled = scaling && !json_is_null(scaling);
    const json_t *of_full = json_object_get(all, full), *of_sliding = json_object_get(all, sliding);
    bool both = json_is_object(of_full) && json_is_object(of_sliding);
    if (given && !both) hf_refuse(r, "rope_parameters", "does not hold an object for each of \"%s\" and \"%s\"", full, sliding);
    if (scaled && !json_is_object(scaling)) hf_refuse(r, "rope_scaling", "is not an object");
    if (base && !json_is_finite(base)) hf_refuse(r, "rope_theta", "is not a number");
    if (local && !json_is_finite(local)) hf_refuse(r, thetas->field, "is not a number");
    if (!r->good) return;
    json_auto_t *merged = given ? json_deep_copy(of_full) : json_object();
    if (scaled) json_object_update(merged, (json_t *)scaling);
    HfFieldReader inner = *r;
    inner.object = NULL; /* fields beside rope_parameters have no effect */
    hf_read_rope_object(&inner, "rope_parameters.full_attention.", merged, base ? json_finite_value(base) : thetas->full,
        part && !json_is_null(part) ? json_finite_value(part) : 1);
    ModelConfig windowed = *r->model;
    windowed.rope_factor = windowed.rope_attention_factor = 1;
    inner.model = &windowed;
    hf_read_rope_object(&inner, "rope_parameters.sliding_attention.", of_sliding, local ? json_finite_value(local) : thetas->sliding, 1);
    r->good = inner.good;
    if (hf_is_scaled(&windowed)) hf_refuse(r, "rope_parameters", "scales RoPE in \"%s\"", sliding);
    r->model->window_rope_theta = r->model->window && windowed.rope_theta != r->model->rope_theta ? windowed.rope_theta : 0;
}
