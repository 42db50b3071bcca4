/* What the keys of a GGUF file say of a model, in both directions. Reading makes a config.json of them and lets
 * hf_parse_config judge it, so that both kinds of files pass the same checks; a key of the architecture that no row
 * here knows is refused, because it could change what is computed. Writing puts the same rows. Keys are those of
 * llama.cpp (gguf-py, constants.py). Owns nothing; called by the reader and the writer of models. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/data.h"
#include "model/hf_internal.h"
#include "ops/rope/rope.h"

/* -- The table ----------------------------------------------------------------------------------------------------- */

enum {
    LLAMA = 1 << HF_LLAMA | 1 << HF_MISTRAL,
    MIXTRAL = 1 << HF_MIXTRAL,
    QWEN = 1 << HF_QWEN2 | 1 << HF_QWEN3,
    ROTARY = LLAMA | MIXTRAL | QWEN,
    MPT = 1 << HF_MPT,
    GPT2 = 1 << HF_GPT2,
    ALL = ROTARY | MPT | GPT2,
};

/* By HfClass; NULL: llama.cpp has no such model. Mixtral is its llama with experts. */
static const char *const architectures[HF_CLASS_COUNT] = {
    [HF_LLAMA] = "llama",
    [HF_MISTRAL] = "llama",
    [HF_MIXTRAL] = "llama",
    [HF_QWEN2] = "qwen2",
    [HF_QWEN3] = "qwen3",
    [HF_MPT] = "mpt",
    [HF_GPT2] = "gpt2",
};

typedef enum RowUse {
    ROW_INTEGER,
    ROW_REAL,
    ROW_READ, /* by a function below */
} RowUse;

/* A key, without its architecture, and the setting that it is. */
typedef struct Row {
    const char *key;
    RowUse use;
    size_t offset;     /* in ModelConfig */
    unsigned classes;  /* that have it, a bit for each HfClass */
    bool required;     /* without it a file is refused */
    const char *field; /* of config.json; NULL: a function puts it there */
} Row;

#define AT(member) offsetof(ModelConfig, member)
static const Row rows[] = {
    {"block_count", ROW_INTEGER, AT(layers), ALL, true, "num_hidden_layers"},
    {"embedding_length", ROW_INTEGER, AT(width), ALL, true, "hidden_size"},
    {"context_length", ROW_INTEGER, AT(context), ROTARY | GPT2, true, "max_position_embeddings"},
    {"context_length", ROW_INTEGER, AT(context), MPT, true, "max_seq_len"},
    {"feed_forward_length", ROW_INTEGER, AT(ffn), ROTARY, true, "intermediate_size"},
    {"feed_forward_length", ROW_INTEGER, AT(ffn), GPT2, true, "n_inner"},
    {"feed_forward_length", ROW_INTEGER, AT(ffn), MPT, true, NULL},
    {"attention.head_count", ROW_INTEGER, AT(heads), ALL, true, "num_attention_heads"},
    {"attention.head_count_kv", ROW_INTEGER, AT(kv_heads), ALL, false, NULL},
    {"attention.key_length", ROW_INTEGER, AT(head_dim), ROTARY, false, NULL},
    {"attention.value_length", ROW_INTEGER, AT(head_dim), ROTARY, false, NULL},
    {"rope.dimension_count", ROW_INTEGER, AT(head_dim), ROTARY, false, NULL},
    {"attention.layer_norm_rms_epsilon", ROW_REAL, AT(norm_epsilon), ROTARY, true, "rms_norm_eps"},
    {"attention.layer_norm_epsilon", ROW_REAL, AT(norm_epsilon), MPT | GPT2, true, "layer_norm_epsilon"},
    {"rope.freq_base", ROW_REAL, AT(rope_theta), ROTARY, false, NULL},
    {"expert_count", ROW_INTEGER, AT(experts), MIXTRAL, true, "num_local_experts"},
    {"expert_used_count", ROW_INTEGER, AT(experts_per_token), MIXTRAL, true, "num_experts_per_tok"},
    {"attention.clamp_kqv", ROW_REAL, AT(clip_qkv), MPT, false, NULL},
    {"attention.max_alibi_bias", ROW_REAL, AT(alibi_max), MPT, false, NULL},
    /* of scaled positions, and without effect */
    {"rope.scaling.type", ROW_READ, 0, ROTARY, false, NULL},
    {"rope.scaling.factor", ROW_READ, 0, ROTARY, false, NULL},
    {"rope.scaling.original_context_length", ROW_READ, 0, ROTARY, false, NULL},
    {"rope.scaling.attn_factor", ROW_READ, 0, ROTARY, false, NULL},
    {"rope.scaling.yarn_beta_fast", ROW_READ, 0, ROTARY, false, NULL},
    {"rope.scaling.yarn_beta_slow", ROW_READ, 0, ROTARY, false, NULL},
    {"rope.scaling.finetuned", ROW_READ, 0, ROTARY, false, NULL},
    {"expert_count", ROW_READ, 0, LLAMA, false, NULL}, /* 0 */
    {"expert_used_count", ROW_READ, 0, LLAMA, false, NULL},
    {"vocab_size", ROW_READ, 0, ALL, false, NULL},
    {"tensor_data_layout", ROW_READ, 0, ALL, false, NULL},
};
enum { ROWS = sizeof rows / sizeof *rows };

static const Row *find_row(HfClass class, const char *key) {
    for (int i = 0; i < ROWS; i++)
        if (rows[i].classes >> class & 1 && !strcmp(rows[i].key, key)) return &rows[i];
    return NULL;
}

/* -- Reading ------------------------------------------------------------------------------------------------------- */

typedef struct KeyReader {
    const Gguf *file;
    char architecture[32];
    HfClass class;
    json_t *object; /* the config.json that is made */
    Error *error;
} KeyReader;

static const GgufValue *value_of(const KeyReader *r, const char *key) {
    SCOPED_FREE char *full = memory_format("%s.%s", r->architecture, key);
    return gguf_find(r->file, full);
}

static bool refuse(const KeyReader *r, const char *key, const char *reason) {
    return error_set(r->error, ERROR_CHECKPOINT, "%s.%s %s", r->architecture, key, reason);
}

/* A number of a key that may be absent: *number stays then. */
static bool read_real(const KeyReader *r, const char *key, double *number) {
    const GgufValue *value = value_of(r, key);
    return !value || gguf_real(value, number) || refuse(r, key, "is no number");
}

static bool read_integer(const KeyReader *r, const char *key, int64_t *number) {
    const GgufValue *value = value_of(r, key);
    return !value || (gguf_integer(value, number) && *number > 0) || refuse(r, key, "is no integer from 1 on");
}

/* The number with the fewest digits that is `value` within `tolerance` of it: what was 1e-5 before it became fp32 is 1e-5
 * again. */
static double shortest_within(double value, double tolerance) {
    for (int digits = 6; digits < 9; digits++) {
        char text[40];
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (fabs(strtod(text, NULL) - value) <= tolerance * fabs(value)) return strtod(text, NULL);
    }
    return value;
}

static double shortest(double value) { return shortest_within(value, 0x1p-25); }

static bool read_row(const KeyReader *r, const Row *row) {
    int64_t integer = 0;
    double real = 0;
    if (!value_of(r, row->key)) return !row->required || refuse(r, row->key, "is missing");
    if (row->use == ROW_INTEGER ? !read_integer(r, row->key, &integer) : !read_real(r, row->key, &real)) return false;
    if (row->field) hf_put(r->object, row->field, row->use == ROW_INTEGER ? json_integer(integer) : json_real(shortest(real)));
    return true;
}

static int64_t integer_of(const KeyReader *r, const char *field) { return json_integer_value(json_object_get(r->object, field)); }

/* The heads of keys, and the columns of a head where the architecture does not derive them. */
static bool read_heads(const KeyReader *r) {
    int64_t heads = integer_of(r, "num_attention_heads"), key_heads = heads, columns = integer_of(r, "hidden_size") / heads, values,
            rotated;
    if (!read_integer(r, "attention.head_count_kv", &key_heads)) return false;
    if (r->class == HF_GPT2 && key_heads != heads) return refuse(r, "attention.head_count_kv", "is not attention.head_count");
    if (!(1 << r->class & ROTARY)) {
        if (r->class == HF_MPT)
            hf_put(r->object, "attn_config",
                json_pack("{s:s, s:I}", "attn_type", "grouped_query_attention", "kv_n_heads", (json_int_t)key_heads));
        return true;
    }
    if (!read_integer(r, "attention.key_length", &columns)) return false;
    values = rotated = columns;
    if (!read_integer(r, "attention.value_length", &values) || !read_integer(r, "rope.dimension_count", &rotated)) return false;
    if (values != columns) return refuse(r, "attention.value_length", "is not attention.key_length");
    if (rotated != columns) return refuse(r, "rope.dimension_count", "is not the width of a head, and smelt rotates whole heads");
    hf_put_integer(r->object, "num_key_value_heads", key_heads);
    hf_put_integer(r->object, "head_dim", columns);
    return true;
}

static bool read_mpt(const KeyReader *r) {
    int64_t ffn = 0, width = integer_of(r, "hidden_size");
    double clip = 0, alibi = 0;
    json_t *attention = json_object_get(r->object, "attn_config");
    if (!read_integer(r, "feed_forward_length", &ffn) || !read_real(r, "attention.clamp_kqv", &clip) ||
        !read_real(r, "attention.max_alibi_bias", &alibi))
        return false;
    if (ffn % width) return refuse(r, "feed_forward_length", "is no multiple of embedding_length");
    if (!(alibi > 0)) return refuse(r, "attention.max_alibi_bias", "is not above 0, and smelt's mpt has no other positions");
    hf_put_integer(r->object, "expansion_ratio", ffn / width);
    hf_put(attention, "alibi_bias_max", json_real(shortest(alibi)));
    hf_put(attention, "clip_qkv", clip > 0 ? json_real(shortest(clip)) : json_null());
    hf_put(attention, "qk_ln", json_boolean(gguf_tensor(r->file, "blk.0.attn_q_norm.weight") != NULL));
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

/* What the frequency of channel pair i is divided by. */
static float rope_divisor(const RopeSpec *spec, int64_t i) {
    return (float)(pow(spec->theta, -2.0 * (double)i / (double)spec->dimensions) / rope_frequency(spec, i, 0));
}

/* The original context with which a pair of channels between the two bounds has its divisor: rope_llama3, solved for
 * it. */
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

/* Llama 3's scaling stands in a file only as a divisor for each pair of channels. The longest wave is divided by the
 * factor, the original context follows from a wave between the bounds, or else is the longest with the same divisors, and
 * the bounds are those of all published models; all divisors must follow from these. */
static bool read_llama3(const KeyReader *r, json_t *rope, double theta) {
    const GgufTensor *divisors = gguf_tensor(r->file, GGUF_ROPE_FACTORS);
    int64_t columns = integer_of(r, "head_dim");
    if (divisors->type != gguf_type_named("F32") || divisors->rank != 1 || divisors->shape[0] != columns / 2)
        return error_set(r->error, ERROR_CHECKPOINT, "tensor %s is no F32 of half the width of a head", divisors->name);
    RopeSpec spec = llama3_spec(theta, columns, divisor_at(divisors, columns / 2 - 1), 1, 4, 0);
    for (int64_t i = 0; i < columns / 2 && !spec.original_positions; i++)
        if (divisor_at(divisors, i) > 1.001) spec.original_positions = original_context(spec, i, divisor_at(divisors, i));
    for (int64_t i = 0; i < columns / 2; i++) {
        float wanted = rope_divisor(&spec, i);
        if (!(fabsf(divisor_at(divisors, i) - wanted) <= 1e-5F * wanted))
            return error_set(r->error, ERROR_CHECKPOINT,
                "tensor %s is not Llama 3's scaling of positions with low_freq_factor 1 and high_freq_factor 4", divisors->name);
    }
    hf_put(rope, "rope_type", json_string("llama3"));
    hf_put(rope, "factor", json_real(spec.factor));
    hf_put(rope, "low_freq_factor", json_real(spec.low_frequency));
    hf_put(rope, "high_freq_factor", json_real(spec.high_frequency));
    hf_put_integer(rope, "original_max_position_embeddings", spec.original_positions);
    return true;
}

/* llama.cpp multiplies queries and keys with attn_factor times what yarn's paper gives. */
static double yarn_attention(double factor) { return 1 + 0.1 * log(factor); }

static bool read_yarn(const KeyReader *r, json_t *rope, double factor) {
    int64_t original = integer_of(r, "max_position_embeddings");
    double attention = 1, fast = 32, slow = 1;
    if (!read_integer(r, "rope.scaling.original_context_length", &original) || !read_real(r, "rope.scaling.attn_factor", &attention) ||
        !read_real(r, "rope.scaling.yarn_beta_fast", &fast) || !read_real(r, "rope.scaling.yarn_beta_slow", &slow))
        return false;
    hf_put_integer(rope, "original_max_position_embeddings", original);
    hf_put(rope, "attention_factor",
        json_real(attention == 1 ? yarn_attention(factor) : shortest_within(attention * yarn_attention(factor), 0x1p-23)));
    hf_put(rope, "beta_fast", json_real(shortest(fast)));
    hf_put(rope, "beta_slow", json_real(shortest(slow)));
    return true;
}

static bool text_is(GgufText text, const char *wanted) { return text.size == strlen(wanted) && !memcmp(text.bytes, wanted, text.size); }

static bool read_positions(const KeyReader *r) {
    const GgufValue *type_value = value_of(r, "rope.scaling.type");
    GgufText type = {"none", strlen("none")};
    double theta = 10000, factor = 1;
    json_t *rope = json_object();
    hf_put(r->object, "rope_parameters", rope);
    if (type_value && !gguf_text(type_value, &type)) return refuse(r, "rope.scaling.type", "is no text");
    if (!read_real(r, "rope.freq_base", &theta) || !read_real(r, "rope.scaling.factor", &factor)) return false;
    theta = shortest(theta);
    hf_put(rope, "rope_theta", json_real(theta));
    bool none = text_is(type, "none"), linear = text_is(type, "linear"), yarn = text_is(type, "yarn");
    if (!none && !linear && !yarn) return refuse(r, "rope.scaling.type", "is none of none, linear and yarn");
    if (gguf_tensor(r->file, GGUF_ROPE_FACTORS))
        return none ? read_llama3(r, rope, theta) : refuse(r, "rope.scaling.type", "stands beside rope_freqs.weight");
    if (none) return true;
    hf_put(rope, "rope_type", json_string(linear ? "linear" : "yarn"));
    hf_put(rope, "factor", json_real(shortest(factor)));
    return linear || read_yarn(r, rope, factor);
}

/* -- The whole ----------------------------------------------------------------------------------------------------- */

static bool find_class(KeyReader *r) {
    char *name = r->architecture;
    int64_t experts;
    GgufText text;
    if (!gguf_text(gguf_find(r->file, "general.architecture"), &text))
        return error_set(r->error, ERROR_CHECKPOINT, "general.architecture is missing");
    snprintf(name, sizeof r->architecture, "%.*s", (int)(text.size < sizeof r->architecture ? text.size : sizeof r->architecture - 1),
        text.bytes);
    blank_controls(name, '?', false);
    for (int i = 0; i < HF_CLASS_COUNT; i++) {
        r->class = (HfClass)i;
        if (!architectures[i] || strcmp(architectures[i], name)) continue;
        if (i == HF_LLAMA && gguf_integer(value_of(r, "expert_count"), &experts) && experts > 0) r->class = HF_MIXTRAL;
        return true;
    }
    return error_set(r->error, ERROR_CHECKPOINT,
        "general.architecture is %s, and smelt reads llama (with experts too), qwen2, qwen3, mpt and gpt2", name);
}

/* Keys of the architecture that nothing here knows. */
static bool check_keys(const KeyReader *r) {
    size_t length = strlen(r->architecture);
    for (size_t i = 0; i < r->file->value_count; i++) {
        const char *key = r->file->values[i].key;
        if (!strncmp(key, r->architecture, length) && key[length] == '.' && !find_row(r->class, key + length + 1))
            return error_set(r->error, ERROR_CHECKPOINT, "%s is a key that smelt does not know", key);
    }
    return true;
}

/* A head that is there and is not a copy of the table is one of its own. */
static bool read_table(const KeyReader *r) {
    const GgufTensor *table = gguf_tensor(r->file, "token_embd.weight"), *head = gguf_tensor(r->file, "output.weight");
    if (!table || table->rank != 2) return error_set(r->error, ERROR_CHECKPOINT, "tensor token_embd.weight is missing or no matrix");
    bool tied =
        !head || (head->type == table->type && head->bytes == table->bytes && !memcmp(head->data, table->data, (size_t)head->bytes));
    hf_put_integer(r->object, "vocab_size", table->shape[0]);
    hf_put(r->object, "tie_word_embeddings", json_boolean(tied));
    return true;
}

/* The type of a matrix in a layer. */
static const GgufType *type_of(const Gguf *file) {
    for (size_t i = 0; i < file->tensor_count; i++)
        if (file->tensors[i].rank > 1 && starts_with(file->tensors[i].name, "blk.")) return file->tensors[i].type;
    return gguf_type_named("F32");
}

static bool read_keys(KeyReader *r, ModelConfig *config, Precision *precision, char **warnings) {
    if (!find_class(r) || !check_keys(r) || !read_table(r)) return false;
    for (int i = 0; i < ROWS; i++)
        if (rows[i].classes >> r->class & 1 && rows[i].use != ROW_READ && !read_row(r, &rows[i])) return false;
    hf_put(r->object, "model_type", json_string(hf_model_type(r->class)));
    if (!read_heads(r) || (r->class == HF_MPT && !read_mpt(r)) || (1 << r->class & ROTARY && !read_positions(r))) return false;
    return hf_parse_config(r->object, config, precision, warnings, r->error);
}

/* The tokens that begin and end a text, as config.json has them. */
static void read_token_ids(const Gguf *file, json_t *content) {
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    json_t *list = json_array();
    int64_t id;
    if (gguf_integer(gguf_find(file, "tokenizer.ggml.bos_token_id"), &id)) hf_put_integer(content, "bos_token_id", id);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (gguf_integer(gguf_find(file, ends[i]), &id)) json_array_append_new(list, json_integer(id));
    if (json_array_size(list) > 1) hf_put(content, "eos_token_id", json_incref(list));
    else if (json_array_size(list)) hf_put(content, "eos_token_id", json_incref(json_array_get(list, 0)));
    json_decref(list);
}

bool gguf_read_model(const char *path, HfModel *model, Error *error) {
    SCOPED(gguf_close) Gguf file = {0};
    json_auto_t *object = json_object();
    KeyReader reader = {.file = &file, .object = object, .error = error};
    *model = (HfModel){0};
    int64_t parts = 1;
    if (!gguf_open(&file, path, error)) return false;
    if (gguf_integer(gguf_find(&file, "split.count"), &parts) && parts > 1)
        return error_set(
            error, ERROR_CHECKPOINT, "%s is one of %lld files of a model: join them (llama-gguf-split --merge)", path, (long long)parts);
    if (!read_keys(&reader, &model->config, &model->precision, &model->warnings)) {
        hf_release(model);
        return error_context(error, "%s", path);
    }
    const GgufType *type = type_of(&file);
    bool bf16 = type == gguf_type_named("BF16");
    model->precision = type == gguf_type_named("F32") ? PRECISION_FP32 : PRECISION_BF16;
    const GgufValue *merges = gguf_find(&file, "tokenizer.ggml.merges");
    model->bytes = merges && merges->count == 0 && byte_tokenizer_is(path);
    model->content = json_pack("{s:s}", "dtype", bf16 ? "bfloat16" : "float32");
    read_token_ids(&file, model->content);
    return true;
}

/* -- Writing ------------------------------------------------------------------------------------------------------- */

bool gguf_check(const ModelConfig *c, Error *error) {
    HfClass class = hf_class(c);
    bool scaled = c->rope_factor > 1 && 1 << class & ROTARY;
    if (!hf_check(c, error)) return false;
    if (!architectures[class])
        return error_set(
            error, ERROR_USAGE, "GGUF has no architecture for %s, so llama.cpp could not run it: write a folder", hf_architecture(class));
    if (scaled && c->rope_scaling == ROPE_DYNAMIC)
        return error_set(error, ERROR_USAGE, "model.rope_scaling=dynamic: GGUF has no such scaling of positions");
    if (scaled && c->rope_scaling == ROPE_YARN && !c->rope_truncate)
        return error_set(error, ERROR_USAGE, "model.rope_truncate=false: llama.cpp computes with whole channels only");
    if (1 << class & ROTARY && !scaled && c->rope_attention_factor != 1)
        return error_set(
            error, ERROR_USAGE, "model.rope_attention_factor=%g without model.rope_factor: llama.cpp has none", c->rope_attention_factor);
    if (class == HF_MPT && c->softmax_scale > 0 && c->softmax_scale != 1 / sqrt((double)c->head_dim))
        return error_set(error, ERROR_USAGE, "model.softmax_scale=%g: llama.cpp computes with 1 / sqrt(head_dim)", c->softmax_scale);
    return true;
}

static void put_scaling(GgufWriter *writer, const ModelConfig *c, const char *architecture) {
    char key[96];
#define KEY(name) (snprintf(key, sizeof key, "%s.rope.scaling.%s", architecture, name), key)
    const char *type = c->rope_scaling == ROPE_YARN ? "yarn" : "linear";
    gguf_put_text(writer, KEY("type"), type, strlen(type));
    gguf_put_real(writer, KEY("factor"), c->rope_factor);
    if (c->rope_scaling != ROPE_YARN) return;
    gguf_put_integer(writer, KEY("original_context_length"), GGUF_U32, c->rope_original_context);
    gguf_put_real(writer, KEY("attn_factor"), c->rope_attention_factor / yarn_attention(c->rope_factor));
    gguf_put_real(writer, KEY("yarn_beta_fast"), c->rope_beta_fast);
    gguf_put_real(writer, KEY("yarn_beta_slow"), c->rope_beta_slow);
#undef KEY
}

void gguf_put_model(GgufWriter *writer, const ModelConfig *config) {
    ModelConfig written = *config;
    HfClass class = hf_class(config);
    const char *architecture = architectures[class];
    if (config->window && config->window < config->context) written.context = config->window;
    gguf_put_text(writer, "general.architecture", architecture, strlen(architecture));
    for (int i = 0; i < ROWS; i++) {
        const Row *row = &rows[i];
        const void *member = (const char *)&written + row->offset;
        if (!(row->classes >> class & 1) || row->use == ROW_READ) continue;
        SCOPED_FREE char *key = memory_format("%s.%s", architecture, row->key);
        if (row->use == ROW_INTEGER) gguf_put_integer(writer, key, GGUF_U32, *(const int64_t *)member);
        else if (*(const double *)member != 0 || row->required) gguf_put_real(writer, key, *(const double *)member);
    }
    SCOPED_FREE char *vocabulary = memory_format("%s.vocab_size", architecture);
    gguf_put_integer(writer, vocabulary, GGUF_U32, config->vocabulary);
    if (1 << class & ROTARY && config->rope_factor > 1 && config->rope_scaling != ROPE_LLAMA3) put_scaling(writer, config, architecture);
}

bool gguf_rope_factors(const ModelConfig *c, float *divisors) {
    if (!(1 << hf_class(c) & ROTARY) || !(c->rope_factor > 1) || c->rope_scaling != ROPE_LLAMA3) return false;
    RopeSpec spec =
        llama3_spec(c->rope_theta, c->head_dim, c->rope_factor, c->rope_low_frequency, c->rope_high_frequency, c->rope_original_context);
    for (int64_t i = 0; divisors && i < c->head_dim / 2; i++) divisors[i] = rope_divisor(&spec, i);
    return true;
}
