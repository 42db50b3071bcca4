/* Converts between the keys of a GGUF file and a model's configuration. Reading makes a config.json
 * and lets hf_parse_config check it, so both kinds of files pass the same checks. A key of the
 * architecture without a row here is refused, because it could change the result. Writing uses the
 * same rows. Keys are those of llama.cpp (gguf-py, constants.py). Owns nothing; called by the
 * reader and the writer of models. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/byte_tokenizer.h"
#include "formats/hf_internal.h"
#include "ops/rope/rope.h"

/* -- The table ----------------------------------------------------------------------------------------------------- */

/* Rows of every architecture. */
static const GgufRow shared_rows[] = {
    {"block_count", ROW_INTEGER, GGUF_AT(layers), true, "num_hidden_layers"},
    {"embedding_length", ROW_INTEGER, GGUF_AT(width), true, "hidden_size"},
    {"attention.head_count", ROW_INTEGER, GGUF_AT(heads), true, "num_attention_heads"},
    {"attention.head_count_kv", ROW_INTEGER, GGUF_AT(kv_heads), false, NULL},
    {"vocab_size", ROW_READ, 0, false, NULL},
    {"tensor_data_layout", ROW_READ, 0, false, NULL},
    {NULL, ROW_READ, 0, false, NULL},
};

/* Rows of architectures with RoPE. */
static const GgufRow rotary_rows[] = {
    {"context_length", ROW_INTEGER, GGUF_AT(context), true, "max_position_embeddings"},
    {"feed_forward_length", ROW_INTEGER, GGUF_AT(ffn), true, "intermediate_size"},
    {"attention.key_length", ROW_INTEGER, GGUF_AT(head_dim), false, NULL},
    {"attention.value_length", ROW_INTEGER, GGUF_AT(head_dim), false, NULL},
    {"rope.dimension_count", ROW_READ, 0, false, NULL},
    {"attention.layer_norm_rms_epsilon", ROW_REAL, GGUF_AT(norm_epsilon), true, "rms_norm_eps"},
    {"rope.freq_base", ROW_REAL, GGUF_AT(rope_theta), false, NULL},
    {"rope.scaling.type", ROW_READ, 0, false, NULL},
    {"rope.scaling.factor", ROW_READ, 0, false, NULL},
    {"rope.scaling.original_context_length", ROW_READ, 0, false, NULL},
    {"rope.scaling.attn_factor", ROW_READ, 0, false, NULL},
    {"rope.scaling.yarn_beta_fast", ROW_READ, 0, false, NULL},
    {"rope.scaling.yarn_beta_slow", ROW_READ, 0, false, NULL},
    {"rope.scaling.finetuned", ROW_READ, 0, false, NULL}, /* no effect */
    {NULL, ROW_READ, 0, false, NULL},
};

/* The tables of a class; NULL: none. */
enum { GGUF_TABLES = 3 };
typedef struct GgufTables { const GgufRow *rows[GGUF_TABLES]; } GgufTables;
static GgufTables gguf_tables(const GgufClass *class) {
    return (GgufTables){{shared_rows, class->rotary ? rotary_rows : NULL, class->rows}};
}

/* Returns whether a row of the class replaces the row of a table of several classes. */
static bool is_replaced(const GgufClass *class, int table, const char *key) {
    const GgufRow *row = table < GGUF_TABLES - 1 ? class->rows : NULL;
    while (row && row->key && strcmp(row->key, key) != 0) row++;
    return row && row->key;
}

/* Loops over the rows of `class`; `row` is the current one. */
#define EACH_ROW(class, row) \
    for (GgufTables all_ = gguf_tables(class), *once_ = &all_; once_; once_ = NULL) \
        for (int table_ = 0; table_ < GGUF_TABLES; table_++) \
            for (const GgufRow *row = all_.rows[table_]; row && row->key; row++) \
                if (!is_replaced(class, table_, row->key))

static const char window_key[] = "attention.sliding_window";

static bool has_key(const GgufClass *class, const char *key) {
    if (class->window_period && !strcmp(key, window_key)) return true;
    EACH_ROW(class, row)
    if (!strcmp(row->key, key)) return true;
    return false;
}

/* -- Reading ------------------------------------------------------------------------------------------------------- */

const GgufValue *gguf_key_value(const GgufKeys *r, const char *key) {
    SCOPED_FREE char *full = memory_format("%s.%s", r->class->gguf->architecture, key);
    return gguf_find(r->file, full);
}

bool gguf_key_refuse(const GgufKeys *r, const char *key, const char *reason) {
    return error_set(r->error, ERROR_CHECKPOINT, "%s.%s %s", r->class->gguf->architecture, key, reason);
}

bool gguf_key_real(const GgufKeys *r, const char *key, double *number) {
    const GgufValue *value = gguf_key_value(r, key);
    return !value || gguf_real(value, number) || gguf_key_refuse(r, key, "is not a number");
}

bool gguf_key_integer(const GgufKeys *r, const char *key, int64_t *number) {
    const GgufValue *value = gguf_key_value(r, key);
    return !value || (gguf_integer(value, number) && *number > 0) || gguf_key_refuse(r, key, "is not a positive integer");
}

bool gguf_key_count(const GgufKeys *r, const char *key, int64_t *number) {
    const GgufValue *value = gguf_key_value(r, key);
    return !value || (gguf_integer(value, number) && *number >= 0) || gguf_key_refuse(r, key, "is not a count");
}

bool gguf_check_scores(const GgufKeys *r, bool sigmoid) {
    int64_t function = GGUF_SOFTMAX, wanted = sigmoid ? GGUF_SIGMOID : GGUF_SOFTMAX;
    if (!gguf_key_count(r, "expert_gating_func", &function)) return false;
    return function == wanted || gguf_key_refuse(r, "expert_gating_func", sigmoid ? "must be 2 (sigmoid)" : "must be 1 (softmax)");
}

/* Returns the number with the fewest digits within `tolerance` of `value`. A 1e-5 that was stored
 * in fp32 thus reads as 1e-5 again. */
static double shortest_within(double value, double tolerance) {
    for (int digits = 6; digits < 9; digits++) {
        char text[40];
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (fabs(strtod(text, NULL) - value) <= tolerance * fabs(value)) return strtod(text, NULL);
    }
    return value;
}

/* A number rounded to fp32 differs from it by up to 2^-24 of its size. */
double gguf_shortest(double value) { return shortest_within(value, 0x1p-24); }

static bool read_gguf_boolean(const GgufKeys *r, const GgufRow *row) {
    const GgufValue *value = gguf_key_value(r, row->key);
    bool boolean = false;
    if (value && !gguf_boolean(value, &boolean)) return gguf_key_refuse(r, row->key, "is not a boolean");
    hf_put(r->object, row->field, json_boolean(boolean));
    return true;
}

static bool read_gguf_row(const GgufKeys *r, const GgufRow *row) {
    int64_t integer = 0;
    double real = 0;
    if (row->use == ROW_BOOLEAN) return read_gguf_boolean(r, row);
    if (!gguf_key_value(r, row->key)) return !row->required || gguf_key_refuse(r, row->key, "is missing");
    if (row->use == ROW_INTEGER ? !gguf_key_integer(r, row->key, &integer) : !gguf_key_real(r, row->key, &real)) return false;
    if (row->field) hf_put(r->object, row->field, row->use == ROW_INTEGER ? json_integer(integer) : json_real(gguf_shortest(real)));
    return true;
}

bool gguf_read_dense(const GgufKeys *r) {
    int64_t layers = 0, width = 0;
    if (!gguf_key_integer(r, "feed_forward_length", &width) || !gguf_key_count(r, "leading_dense_block_count", &layers)) return false;
    if (!width) return gguf_key_refuse(r, "feed_forward_length", "is missing");
    hf_put_integer(r->object, "intermediate_size", width);
    hf_put_integer(r->object, "first_k_dense_replace", layers);
    return true;
}

bool gguf_read_prediction(const GgufKeys *r) {
    static const char key[] = "nextn_predict_layers";
    int64_t layers = gguf_field(r, "num_hidden_layers"), skipped = 0;
    if (!gguf_key_count(r, key, &skipped)) return false;
    if (skipped >= layers) return gguf_key_refuse(r, key, "is not below block_count");
    hf_put_integer(r->object, "num_hidden_layers", layers - skipped);
    return true;
}

bool gguf_read_padding(const GgufKeys *r) {
    int64_t id;
    bool padded = gguf_integer(gguf_find(r->file, "tokenizer.ggml.padding_token_id"), &id);
    hf_put(r->object, "pad_token_id", padded ? json_integer(id) : json_null());
    return true;
}

/* Reads the number of key heads, and the columns of a head if the architecture does not derive
 * them. */
static bool read_heads(const GgufKeys *r) {
    int64_t heads = gguf_field(r, "num_attention_heads"), key_heads = heads, columns = gguf_field(r, "hidden_size") / heads, values,
            rotated;
    if (!gguf_key_integer(r, "attention.head_count_kv", &key_heads)) return false;
    if (!gguf_key_integer(r, "attention.key_length", &columns)) return false;
    values = rotated = columns;
    if (!gguf_key_integer(r, "attention.value_length", &values) || !gguf_key_integer(r, "rope.dimension_count", &rotated)) return false;
    if (values != columns)
        return gguf_key_refuse(r, "attention.value_length", "differs from attention.key_length, but smelt needs equal head dimensions");
    if (rotated != columns && !r->class->rotates_part)
        return gguf_key_refuse(r, "rope.dimension_count", "is not the head dimension, but smelt rotates whole heads of this model");
    if (r->class->rotates_part) hf_put(r->object, "partial_rotary_factor", json_real((double)rotated / (double)columns));
    hf_put_integer(r->object, "num_key_value_heads", key_heads);
    hf_put_integer(r->object, "head_dim", columns);
    return true;
}

/* -- Scaled positions ---------------------------------------------------------------------------------------------- */

static RopeSpec llama3_spec(double theta, int64_t columns, double factor, double low, double high, int64_t original) {
    return (RopeSpec){.theta = theta,
        .dimensions = columns,
        .scaling = ROPE_LLAMA3,
        .factor = factor,
        .low_frequency = low,
        .high_frequency = high,
        .original_positions = original};
}

/* Returns the divisor of the frequency of channel pair i. */
static float rope_divisor(const RopeSpec *spec, int64_t i) {
    return (float)(pow(spec->theta, -2.0 * (double)i / (double)spec->dimensions) / rope_frequency(spec, i, 0));
}

/* Returns the original context for which a channel pair between the two bounds has this divisor:
 * the inverse of rope_llama3. */
static int64_t original_context(RopeSpec spec, int64_t i, double divisor) {
    double smooth = (1 / divisor - 1 / spec.factor) / (1 - 1 / spec.factor);
    double turns = spec.low_frequency + smooth * (spec.high_frequency - spec.low_frequency);
    double positions = turns * 2 * M_PI * pow(spec.theta, 2.0 * (double)i / (double)spec.dimensions);
    return (int64_t)fmin(smooth > 1e-6 ? round(positions) : floor(positions), 1 << 30);
}

static float divisor_at(const GgufTensor *divisors, int64_t i) {
    float divisor;
    memcpy(&divisor, divisors->data + i * (int64_t)sizeof divisor, sizeof divisor);
    return divisor;
}

/* A file stores Llama 3's scaling only as a divisor per channel pair. The longest wave gives the
 * factor. A wave between the bounds gives the original context; without one, the original context
 * is the longest with the same divisors. The bounds are 1 and 4, as in all published models. All
 * divisors must follow from these values. */
static bool read_llama3(const GgufKeys *r, json_t *rope, double theta) {
    const GgufTensor *divisors = gguf_tensor(r->file, GGUF_ROPE_FACTORS);
    int64_t columns = gguf_field(r, "head_dim");
    if (divisors->type != gguf_type_named("F32") || divisors->rank != 1 || divisors->shape[0] != columns / 2)
        return error_set(
            r->error, ERROR_CHECKPOINT, "tensor %s is not F32 with half as many elements as the head dimension", divisors->name);
    RopeSpec spec = llama3_spec(theta, columns, divisor_at(divisors, columns / 2 - 1), 1, 4, 0);
    for (int64_t i = 0; i < columns / 2 && !spec.original_positions; i++)
        if (divisor_at(divisors, i) > 1.001) spec.original_positions = original_context(spec, i, divisor_at(divisors, i));
    for (int64_t i = 0; i < columns / 2; i++) {
        float wanted = rope_divisor(&spec, i);
        if (!(fabsf(divisor_at(divisors, i) - wanted) <= 1e-5F * wanted))
            return error_set(r->error, ERROR_CHECKPOINT,
                "tensor %s does not match Llama 3's RoPE scaling with low_freq_factor 1 and high_freq_factor 4", divisors->name);
    }
    hf_put(rope, "rope_type", json_string("llama3"));
    hf_put(rope, "factor", json_real(spec.factor));
    hf_put(rope, "low_freq_factor", json_real(spec.low_frequency));
    hf_put(rope, "high_freq_factor", json_real(spec.high_frequency));
    hf_put_integer(rope, "original_max_position_embeddings", spec.original_positions);
    return true;
}

/* yarn_log_multiplier of a file is mscale_all_dim times this. llama.cpp then does not scale queries and keys. */
#define YARN_LOG_UNIT 0.1

/* llama.cpp multiplies queries and keys by attn_factor times the value of yarn's paper. */
static double yarn_attention(double factor) { return 1 + 0.1 * log(factor); }

static bool read_gguf_yarn(const GgufKeys *r, json_t *rope, double factor) {
    int64_t original = gguf_field(r, "max_position_embeddings");
    double attention = 1, fast = 32, slow = 1, log_multiplier = 0;
    if (!gguf_key_real(r, "rope.scaling.yarn_log_multiplier", &log_multiplier) ||
        !gguf_key_integer(r, "rope.scaling.original_context_length", &original) ||
        !gguf_key_real(r, "rope.scaling.attn_factor", &attention) || !gguf_key_real(r, "rope.scaling.yarn_beta_fast", &fast) ||
        !gguf_key_real(r, "rope.scaling.yarn_beta_slow", &slow))
        return false;
    hf_put_integer(rope, "original_max_position_embeddings", original);
    if (r->class->scales_scores) {
        if (attention != 1) return gguf_key_refuse(r, "rope.scaling.attn_factor", "must be 1");
        hf_put(rope, "attention_factor", json_real(1));
        hf_put(rope, "mscale_all_dim", json_real(gguf_shortest(gguf_shortest(log_multiplier) / YARN_LOG_UNIT)));
    } else if (r->class->scales_queries) {
        if (log_multiplier == 0) return gguf_key_refuse(r, "rope.scaling.yarn_log_multiplier", "is missing or 0");
        if (attention != 1) return gguf_key_refuse(r, "rope.scaling.attn_factor", "must be 1");
        hf_put(rope, "attention_factor", json_real(1));
    } else
        hf_put(rope, "attention_factor",
            json_real(attention == 1 ? yarn_attention(factor) : shortest_within(attention * yarn_attention(factor), 0x1p-23)));
    if (r->class->gguf->rounds_bounds) hf_put(rope, "truncate", json_false());
    hf_put(rope, "beta_fast", json_real(gguf_shortest(fast)));
    hf_put(rope, "beta_slow", json_real(gguf_shortest(slow)));
    return true;
}

static bool gguf_text_is(GgufText text, const char *wanted) {
    return text.size == strlen(wanted) && !memcmp(text.bytes, wanted, text.size);
}

static bool read_positions(const GgufKeys *r) {
    const GgufValue *type_value = gguf_key_value(r, "rope.scaling.type");
    GgufText type = {"none", strlen("none")};
    double theta = 10000, factor = 1;
    json_t *rope = json_object();
    hf_put(r->object, "rope_parameters", rope);
    if (type_value && !gguf_text(type_value, &type)) return gguf_key_refuse(r, "rope.scaling.type", "is not a string");
    if (!gguf_key_real(r, "rope.freq_base", &theta) || !gguf_key_real(r, "rope.scaling.factor", &factor)) return false;
    theta = gguf_shortest(theta);
    hf_put(rope, "rope_theta", json_real(theta));
    bool none = gguf_text_is(type, "none"), linear = gguf_text_is(type, "linear"), yarn = gguf_text_is(type, "yarn");
    if (!none && !linear && !yarn) return gguf_key_refuse(r, "rope.scaling.type", "is not none, linear or yarn");
    if (gguf_tensor(r->file, GGUF_ROPE_FACTORS))
        return none ? read_llama3(r, rope, theta)
                    : gguf_key_refuse(r, "rope.scaling.type", "must be none, because the file has rope_freqs.weight");
    if (none) return true;
    hf_put(rope, "rope_type", json_string(linear ? "linear" : "yarn"));
    hf_put(rope, "factor", json_real(gguf_shortest(factor)));
    return linear || read_gguf_yarn(r, rope, factor);
}

/* -- Windows ------------------------------------------------------------------------------------------------------- */

/* Returns whether llama.cpp has the window in a layer: in all but the last of each period. */
static bool gguf_has_window(const GgufClass *class, int64_t layer) { return layer % class->window_period < class->window_period - 1; }

static bool read_window(const GgufKeys *r) {
    int64_t window = 0;
    json_t *types = json_array();
    hf_put(r->object, "layer_types", types);
    if (!gguf_key_integer(r, window_key, &window)) return false;
    if (!window) return gguf_key_refuse(r, window_key, "is missing");
    hf_put_integer(r->object, "sliding_window", window);
    for (int64_t i = 0; i < gguf_field(r, "num_hidden_layers"); i++)
        json_array_append_new(types, json_string(gguf_has_window(r->class->gguf, i) ? "sliding_attention" : "full_attention"));
    return true;
}

static bool check_windows(const ModelConfig *c, const GgufClass *gguf, Error *error) {
    for (int64_t i = 0; i < c->layers; i++)
        if ((model_has_window(c, i) != 0) != gguf_has_window(gguf, i))
            return error_set(error, ERROR_USAGE,
                "model.window=%lld, model.window_period=%lld: llama.cpp's %s has a window in all layers but every %lld%s: export a folder "
                "instead",
                (long long)c->window, (long long)c->window_period, gguf->architecture, (long long)gguf->window_period,
                gguf->window_period == 2 ? "nd" : "th");
    return true;
}

/* -- The whole ----------------------------------------------------------------------------------------------------- */

static bool has_experts(const Gguf *file, const char *architecture) {
    SCOPED_FREE char *key = memory_format("%s.expert_count", architecture);
    int64_t experts;
    return gguf_integer(gguf_find(file, key), &experts) && experts > 0;
}

static bool has_scores(const Gguf *file, const GgufClass *class) {
    SCOPED_FREE char *key = memory_format("%s.expert_gating_func", class->architecture);
    int64_t function = GGUF_SOFTMAX;
    return !class->scores || !gguf_find(file, key) || (gguf_integer(gguf_find(file, key), &function) && function == class->scores);
}

/* Returns the class of a file's architecture. If several classes match the architecture and the
 * presence of experts, the last one wins: it has no condition. NULL with an error. */
static const HfClass *find_gguf_class(const Gguf *file, Error *error) {
    GgufText text;
    char name[32], known[512] = "";
    const HfClass *found = NULL;
    if (!gguf_text(gguf_find(file, "general.architecture"), &text)) {
        error_set(error, ERROR_CHECKPOINT, "general.architecture is missing");
        return NULL;
    }
    snprintf(name, sizeof name, "%.*s", (int)(text.size < sizeof name ? text.size : sizeof name - 1), text.bytes);
    blank_controls(name, '?', false);
    for (int i = 0; i < family_count; i++)
        for (const HfClass *const *class = family_rules[i]->classes; *class; class++) {
            const GgufClass *gguf = (*class)->gguf;
            if (!gguf) continue;
            if (!strcmp(gguf->architecture, name) && gguf->experts == has_experts(file, name) && has_scores(file, gguf)) found = *class;
            size_t used = strlen(known);
            if (!strstr(known, gguf->architecture))
                snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", gguf->architecture);
        }
    if (!found) error_set(error, ERROR_CHECKPOINT, "general.architecture is %s, but smelt reads only %s", name, known);
    return found;
}

/* Refuses keys of the architecture that no row knows. */
static bool check_keys(const GgufKeys *r) {
    const char *architecture = r->class->gguf->architecture;
    size_t length = strlen(architecture);
    for (size_t i = 0; i < r->file->value_count; i++) {
        const char *key = r->file->values[i].key;
        if (!strncmp(key, architecture, length) && key[length] == '.' && !has_key(r->class->gguf, key + length + 1))
            return error_set(r->error, ERROR_CHECKPOINT, "smelt does not support key %s", key);
    }
    return true;
}

/* A head that is present and differs from the table is not tied. */
static bool read_table(const GgufKeys *r) {
    const GgufTensor *table = gguf_tensor(r->file, "token_embd.weight"), *head = gguf_tensor(r->file, "output.weight");
    if (!table || table->rank != 2) return error_set(r->error, ERROR_CHECKPOINT, "tensor token_embd.weight is missing or is not a matrix");
    bool tied =
        !head || (head->type == table->type && head->bytes == table->bytes && !memcmp(head->data, table->data, (size_t)head->bytes));
    hf_put_integer(r->object, "vocab_size", table->shape[0]);
    hf_put(r->object, "tie_word_embeddings", json_boolean(tied));
    return true;
}

/* Returns the type of a matrix in a layer. */
static const GgufType *gguf_model_type(const Gguf *file) {
    for (size_t i = 0; i < file->tensor_count; i++)
        if (file->tensors[i].rank > 1 && starts_with(file->tensors[i].name, "blk.")) return file->tensors[i].type;
    return gguf_type_named("F32");
}

static bool read_keys(GgufKeys *r, ModelConfig *config, Precision *precision, char **warnings) {
    const GgufClass *gguf;
    if (!(r->class = find_gguf_class(r->file, r->error)) || !check_keys(r) || !read_table(r)) return false;
    gguf = r->class->gguf;
    EACH_ROW(gguf, row)
    if (row->use != ROW_READ && !read_gguf_row(r, row)) return false;
    hf_put_text(r->object, "model_type", r->class->model_type);
    if ((gguf->rotary && ((!gguf->latent && !read_heads(r)) || !read_positions(r))) || (gguf->window_period && !read_window(r)))
        return false;
    if (gguf->read && !gguf->read(r)) return false;
    return hf_parse_config(r->object, config, precision, warnings, r->error);
}

/* Reads the tokens that begin, end and pad a text into the fields of config.json. */
static void read_token_ids(const Gguf *file, json_t *content) {
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    json_t *list = json_array();
    int64_t id;
    if (gguf_integer(gguf_find(file, "tokenizer.ggml.bos_token_id"), &id)) hf_put_integer(content, "bos_token_id", id);
    if (gguf_integer(gguf_find(file, "tokenizer.ggml.padding_token_id"), &id)) hf_put_integer(content, "pad_token_id", id);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (gguf_integer(gguf_find(file, ends[i]), &id)) json_array_append_new(list, json_integer(id));
    if (json_array_size(list) > 1) hf_put(content, "eos_token_id", json_incref(list));
    else if (json_array_size(list)) hf_put(content, "eos_token_id", json_incref(json_array_get(list, 0)));
    json_decref(list);
}

bool gguf_read_model(const char *path, HfModel *model, Error *error) {
    SCOPED(gguf_close) Gguf file = {0};
    json_auto_t *object = json_object();
    GgufKeys reader = {.file = &file, .object = object, .error = error};
    *model = (HfModel){0};
    int64_t parts = 1;
    if (!gguf_open(&file, path, error)) return false;
    if (gguf_integer(gguf_find(&file, "split.count"), &parts) && parts > 1)
        return error_set(error, ERROR_CHECKPOINT, "%s is one of %lld files of a split model: join them (llama-gguf-split --merge)", path,
            (long long)parts);
    if (!read_keys(&reader, &model->config, &model->precision, &model->warnings)) {
        hf_release(model);
        return error_context(error, "%s", path);
    }
    const GgufType *type = gguf_model_type(&file);
    bool bf16 = type == gguf_type_named("BF16");
    model->precision = type == gguf_type_named("F32") ? PRECISION_FP32 : PRECISION_BF16;
    const GgufValue *merges = gguf_find(&file, "tokenizer.ggml.merges");
    if (merges && merges->count == 0 && !byte_tokenizer_is(path, &model->bytes, error)) return hf_release(model), false;
    model->content = json_pack("{s:s}", "dtype", bf16 ? "bfloat16" : "float32");
    read_token_ids(&file, model->content);
    return true;
}

/* -- Writing ------------------------------------------------------------------------------------------------------- */

bool gguf_check(const ModelConfig *c, Error *error) {
    const HfClass *class = hf_class(c);
    const GgufClass *gguf = class->gguf;
    if (!hf_check(c, error)) return false;
    if (!gguf)
        return error_set(
            error, ERROR_USAGE, "GGUF has no architecture for %s that smelt writes: export a folder instead", class->architecture);
    if (model_activation(c) != family_of(c)->activation)
        return error_set(error, ERROR_USAGE, "model.activation=%s: llama.cpp supports only %s for this family: export a folder instead",
            activation_rules[c->activation].name, activation_rules[family_of(c)->activation].name);
    bool scaled = c->rope_factor > 1 && gguf->rotary;
    bool dynamic = c->rope_scaling == ROPE_DYNAMIC, longrope = c->rope_scaling == ROPE_LONGROPE;
    if (scaled && (dynamic || longrope))
        return error_set(error, ERROR_USAGE, "model.rope_scaling=%s: llama.cpp %s: export a folder instead",
            dynamic ? "dynamic" : "longrope",
            dynamic ? "does not support this RoPE scaling"
                    : "chooses between the factors by the size of its context, transformers by the length of each text");
    if (scaled && c->rope_scaling == ROPE_YARN && c->rope_truncate == gguf->rounds_bounds)
        return error_set(error, ERROR_USAGE, "model.rope_truncate=%s: GGUF files of %s imply the opposite: export a folder instead",
            c->rope_truncate ? "true" : "false", gguf->architecture);
    if (gguf->rotary && !scaled && c->rope_attention_factor != 1)
        return error_set(error, ERROR_USAGE,
            "model.rope_attention_factor=%g without model.rope_factor: llama.cpp does not support it: export a folder instead",
            c->rope_attention_factor);
    if (gguf->window_period && !check_windows(c, gguf, error)) return false;
    return !gguf->check || gguf->check(c, error);
}

bool gguf_check_scaling(const ModelConfig *c, Error *error) {
    return !(c->rope_factor > 1 && c->rope_scaling == ROPE_LLAMA3) ||
           error_set(error, ERROR_USAGE, "model.rope_scaling=llama3: llama.cpp's %s does not read it: export a folder instead",
               hf_class(c)->gguf->architecture);
}

void gguf_put_number(GgufWriter *writer, const ModelConfig *model, const char *key, int64_t number) {
    SCOPED_FREE char *full = memory_format("%s.%s", hf_class(model)->gguf->architecture, key);
    gguf_put_integer(writer, full, GGUF_U32, number);
}

void gguf_put_dense(GgufWriter *writer, const ModelConfig *model) {
    gguf_put_number(writer, model, "feed_forward_length", model_mixes_layers(model) ? model->dense_ffn : model->ffn);
    gguf_put_number(writer, model, "leading_dense_block_count", model->experts_first);
}

void gguf_put_scores(GgufWriter *writer, const ModelConfig *model) {
    gguf_put_number(writer, model, "expert_gating_func", model->router_scores == SCORES_SIGMOID ? GGUF_SIGMOID : GGUF_SOFTMAX);
}

static void put_scaling(GgufWriter *writer, const ModelConfig *c, const char *architecture) {
    char key[96];
#define KEY(name) (snprintf(key, sizeof key, "%s.rope.scaling.%s", architecture, name), key)
    const char *type = c->rope_scaling == ROPE_YARN ? "yarn" : "linear";
    gguf_put_text(writer, KEY("type"), type, strlen(type));
    gguf_put_real(writer, KEY("factor"), c->rope_factor);
    if (c->rope_scaling != ROPE_YARN) return;
    gguf_put_integer(writer, KEY("original_context_length"), GGUF_U32, c->rope_original_context);
    if (hf_class(c)->scales_scores) gguf_put_real(writer, KEY("yarn_log_multiplier"), YARN_LOG_UNIT * c->rope_mscale);
    else if (hf_class(c)->scales_queries) gguf_put_real(writer, KEY("yarn_log_multiplier"), 1);
    else gguf_put_real(writer, KEY("attn_factor"), c->rope_attention_factor / yarn_attention(c->rope_factor));
    gguf_put_real(writer, KEY("yarn_beta_fast"), c->rope_beta_fast);
    gguf_put_real(writer, KEY("yarn_beta_slow"), c->rope_beta_slow);
#undef KEY
}

void gguf_put_model(GgufWriter *writer, const ModelConfig *config) {
    ModelConfig written = *config;
    const GgufClass *gguf = hf_class(config)->gguf;
    const char *architecture = gguf->architecture;
    if (!gguf->window_period && config->window && config->window < config->context) written.context = config->window;
    gguf_put_text(writer, "general.architecture", architecture, strlen(architecture));
    EACH_ROW(gguf, row) {
        const void *member = (const char *)&written + row->offset;
        if (row->use == ROW_READ) continue;
        SCOPED_FREE char *key = memory_format("%s.%s", architecture, row->key);
        if (row->use == ROW_INTEGER) gguf_put_integer(writer, key, GGUF_U32, *(const int64_t *)member);
        else if (row->use == ROW_BOOLEAN) gguf_put_boolean(writer, key, *(const bool *)member);
        else if (*(const double *)member != 0 || row->required) gguf_put_real(writer, key, *(const double *)member);
    }
    if (gguf->rotary) gguf_put_number(writer, config, "rope.dimension_count", (int64_t)model_rotated(config));
    if (gguf->window_period) gguf_put_number(writer, config, window_key, config->window);
    gguf_put_number(writer, config, "vocab_size", config->vocabulary);
    if (gguf->put) gguf->put(writer, config);
    if (gguf->rotary && config->rope_factor > 1 && config->rope_scaling != ROPE_LLAMA3) put_scaling(writer, config, architecture);
}

bool gguf_rope_factors(const ModelConfig *c, float *divisors) {
    const GgufClass *gguf = hf_class(c)->gguf;
    if (!gguf || !gguf->rotary || !(c->rope_factor > 1) || c->rope_scaling != ROPE_LLAMA3) return false;
    RopeSpec spec =
        llama3_spec(c->rope_theta, c->head_dim, c->rope_factor, c->rope_low_frequency, c->rope_high_frequency, c->rope_original_context);
    for (int64_t i = 0; divisors && i < c->head_dim / 2; i++) divisors[i] = rope_divisor(&spec, i);
    return true;
}
