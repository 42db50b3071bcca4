/* The meaning of every field of config.json. Each class of transformers has tables of all fields
 * that its configuration class or its code reads: fields that define the model, fields without
 * effect, and fields with only one supported value. hf_read_fields walks the tables; functions read
 * what rows cannot. Fields that no table has only cause a warning, because transformers ignores
 * them. Owns nothing; called by hf_parse_config.
 *
 * Rules of all rows: an absent field has the default of transformers' class; null is accepted if
 * the class accepts it; a refused field is named. The first of several tables that has a field
 * decides. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_reader.h"
#include "base/memory.h"
#include "base/strings.h"
#include "base/scope.h"
#include "formats/hf_internal.h"

/* -- Rows ---------------------------------------------------------------------------------------------------------- */

/* Weights that are quantized: in FP8 (hf_fp8.c), in MXFP4 (hf_mxfp4.c), or by another program. */
static void read_quantization(HfFieldReader *r, const char *name, const json_t *value) {
    const char *method = json_string_value(json_object_get(value, "quant_method"));
    if (!value || json_is_null(value) || hf_fp8_reads(value) || (method && r->class->reads_mxfp4 && !strcmp(method, "mxfp4"))) return;
    hf_refuse(r, name,
        "says that the weights are quantized (%.32s), but smelt reads only F32, BF16, F16, and FP8 in blocks of 128 x 128 (quant_method "
        "fp8): use the original model; for a run, smelt "
        "convert with dtype=same writes one",
        method && name_is_plain(method) ? method : "no quant_method");
}

/* Fields of every class. */
const HfField hf_shared_fields[] = {
    INTEGER("vocab_size", vocabulary, "32000"),
    REAL("initializer_range", init_std, "0.02"),
    FIXED("is_causal", "true"),
    READ("quantization_config", read_quantization),
    FIXED("per_layer_config", "null {}"),
    FIXED("fusion_config", "null"),
    FIXED("transformers_weights", "null"),
    END,
};

/* Fields of PreTrainedConfig, and fields that any configuration may carry. Dropout probabilities
 * are in the classes' tables: transformers applies them in training, and smelt has no dropout. */
const HfField hf_metadata_fields[] = {
    NO_EFFECT("output_attentions"),
    NO_EFFECT("output_hidden_states"),
    NO_EFFECT("return_dict"),
    NO_EFFECT("use_cache"),
    NO_EFFECT("model_type"),
    NO_EFFECT("architectures"),
    NO_EFFECT("dtype"),
    NO_EFFECT("torch_dtype"),
    NO_EFFECT("transformers_version"),
    NO_EFFECT("chunk_size_feed_forward"),
    NO_EFFECT("bos_token_id"),
    NO_EFFECT("eos_token_id"),
    NO_EFFECT("pad_token_id"),
    NO_EFFECT("sep_token_id"),
    NO_EFFECT("decoder_start_token_id"),
    NO_EFFECT("id2label"),
    NO_EFFECT("label2id"),
    NO_EFFECT("num_labels"),
    NO_EFFECT("problem_type"),
    NO_EFFECT("tokenizer_class"),
    NO_EFFECT("task_specific_params"),
    NO_EFFECT("auto_map"),
    NO_EFFECT("name_or_path"),
    NO_EFFECT("_name_or_path"),
    NO_EFFECT("_commit_hash"),
    NO_EFFECT("attn_implementation"),
    NO_EFFECT("_attn_implementation"),
    NO_EFFECT("experts_implementation"),
    NO_EFFECT("gradient_checkpointing"),
    NO_EFFECT("generator"),
    NO_EFFECT("decoder"),
    NO_EFFECT("text_config"),
    NO_EFFECT("vision_aspect_ratio"),
    NO_EFFECT("vision_feature_layer"),
    NO_EFFECT("vision_feature_select_strategy"),
    NO_EFFECT("mtp_layer_types"),
    NO_EFFECT("mlp_layer_types"),
    NO_EFFECT("num_heads"),
    NO_EFFECT("pruned_heads"),
    NO_EFFECT("is_decoder"),
    NO_EFFECT("is_encoder_decoder"),
    NO_EFFECT("torchscript"),
    NO_EFFECT("tf_legacy_loss"),
    NO_EFFECT("use_bfloat16"),
    NO_EFFECT("tie_last_hidden_states"),
    /* fields of generation; generation_config.json decides */
    NO_EFFECT("bad_words_ids"),
    NO_EFFECT("begin_suppress_tokens"),
    NO_EFFECT("diversity_penalty"),
    NO_EFFECT("do_sample"),
    NO_EFFECT("early_stopping"),
    NO_EFFECT("encoder_no_repeat_ngram_size"),
    NO_EFFECT("exponential_decay_length_penalty"),
    NO_EFFECT("forced_bos_token_id"),
    NO_EFFECT("forced_eos_token_id"),
    NO_EFFECT("length_penalty"),
    NO_EFFECT("max_length"),
    NO_EFFECT("min_length"),
    NO_EFFECT("no_repeat_ngram_size"),
    NO_EFFECT("num_beam_groups"),
    NO_EFFECT("num_beams"),
    NO_EFFECT("num_return_sequences"),
    NO_EFFECT("output_scores"),
    NO_EFFECT("remove_invalid_values"),
    NO_EFFECT("repetition_penalty"),
    NO_EFFECT("return_dict_in_generate"),
    NO_EFFECT("suppress_tokens"),
    NO_EFFECT("temperature"),
    NO_EFFECT("top_k"),
    NO_EFFECT("top_p"),
    NO_EFFECT("typical_p"),
    END,
};

const HfField hf_decoder_fields[] = {
    INTEGER("hidden_size", width, "4096"),
    INTEGER("num_hidden_layers", layers, "32"),
    INTEGER("num_attention_heads", heads, "32"),
    INTEGER("intermediate_size", ffn, "14336"),
    INTEGER("max_position_embeddings", context, "32768"),
    REAL("rms_norm_eps", norm_epsilon, "1e-6"),
    BOOLEAN("tie_word_embeddings", tied, "false"),
    READ("hidden_act", hf_read_activation),
    READ("pad_token_id", hf_read_padding),
    READ("rope_parameters", hf_read_rope), /* reads rope_scaling and the next fields too */
    NO_EFFECT("rope_scaling"),
    NO_EFFECT("rope_theta"),
    NO_EFFECT("partial_rotary_factor"),
    NO_EFFECT("original_max_position_embeddings"),
    NO_EFFECT("attention_dropout"),
    READ("layer_types", hf_read_unused_layers),
    END,
};

const HfTables *hf_tables(const HfClass *class, const json_t *object) {
    const HfTables *others = class->tables_of ? class->tables_of(object) : NULL;
    return others ? others : &class->tables;
}

const HfField *hf_find_field(const HfTables *t, const char *name) {
    for (int i = 0; i < HF_TABLES && t->rows[i]; i++)
        for (const HfField *f = t->rows[i]; f->name; f++)
            if (!strcmp(f->name, name)) return f;
    return NULL;
}

const HfField *hf_find_member(const HfTables *t, size_t offset) {
    for (int i = 0; i < HF_TABLES && t->rows[i]; i++)
        for (const HfField *f = t->rows[i]; f->name; f++)
            if (f->use <= FIELD_BOOLEAN && f->offset == offset) return f;
    return NULL;
}

/* -- Reading ------------------------------------------------------------------------------------------------------- */

void hf_refuse(HfFieldReader *r, const char *name, const char *format, ...) {
    char reason[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    if (!r->good) return;
    r->good = error_set(r->error, ERROR_CHECKPOINT, "%s%.80s %s", r->path, name, reason);
    blank_controls(r->error->message, '?', false);
}

void hf_warn(HfFieldReader *r, const char *format, ...) {
    char line[400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    blank_controls(line, '?', false);
    char *before = *r->warnings;
    *r->warnings = before ? memory_format("%s; %s", before, line) : memory_copy_string(line);
    free(before);
}

/* Returns whether `word` is one of the words of `values`. */
static bool has_word(const char *values, const char *word) {
    size_t length = strlen(word);
    for (const char *at = values; *at; at += strspn(at, " ")) {
        size_t found = strcspn(at, " ");
        if (found == length && !memcmp(at, word, length)) return true;
        at += found;
    }
    return false;
}

static void read_number_field(HfFieldReader *r, const HfField *f, const json_t *value) {
    bool whole = f->use == FIELD_INTEGER, absent = !value || (json_is_null(value) && has_word(f->values, "null"));
    double number = !value ? strtod(f->values, NULL) : absent ? 0 : json_finite_value(value);
    if (!absent && (whole ? !json_is_integer(value) : !json_is_finite(value)))
        hf_refuse(r, f->name, whole ? "is not an integer" : "is not a number");
    else if (!absent && whole && json_integer_value(value) < 1) hf_refuse(r, f->name, "is less than 1");
    else if (whole) *(int64_t *)((char *)r->model + f->offset) = absent ? (int64_t)number : json_integer_value(value);
    else *(double *)((char *)r->model + f->offset) = number;
}

static void read_boolean(HfFieldReader *r, const HfField *f, const json_t *value) {
    if (value && !json_is_boolean(value)) hf_refuse(r, f->name, "is not true or false");
    *(bool *)((char *)r->model + f->offset) = value ? json_is_true(value) : !strcmp(f->values, "true");
}

static void check_fixed(HfFieldReader *r, const HfField *f, const json_t *value) {
    if (!value) return;
    SCOPED_FREE char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    const char *word = json_is_string(value) ? json_string_value(value) : text;
    if (!word || !has_word(f->values, word))
        hf_refuse(
            r, f->name, "is %.64s, but smelt supports only %.*s", text ? text : "unreadable", (int)strcspn(f->values, " "), f->values);
}

void hf_read_activation(HfFieldReader *r, const char *name, const json_t *value) {
    const ActivationRule *usual = &activation_rules[family_of(r->model)->activation];
    bool chooses = family_has(family_of(r->model), "model.activation");
    const char *word = json_string_value(value);
    char known[200] = "";
    if (!value) return;
    for (int i = 1; i < ACTIVATION_COUNT; i++) {
        const ActivationRule *rule = &activation_rules[i];
        if (rule != usual && (!chooses || rule->gated != usual->gated)) continue;
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%.*s", used ? ", " : "", (int)strcspn(rule->hf, " "), rule->hf);
        if (!word || !has_word(rule->hf, word)) continue;
        r->model->activation = rule == usual ? ACTIVATION_AUTO : i;
        return;
    }
    SCOPED_FREE char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    hf_refuse(r, name, "is %.64s, but smelt supports only %s", text ? text : "unreadable", known);
}

/* transformers sets synonyms last, so they take precedence. */
const char *hf_used_name(const HfTables *t, const json_t *object, const char *name) {
    for (int i = 0; i < HF_TABLES && t->rows[i]; i++)
        for (const HfField *f = t->rows[i]; f->name; f++)
            if (f->use == FIELD_SYNONYM && !strcmp(f->values, name) && json_object_get(object, f->name)) return f->name;
    return name;
}

static void read_field_row(HfFieldReader *r, const HfTables *t, const HfField *f) {
    HfField used = *f;
    used.name = hf_used_name(t, r->object, f->name);
    const json_t *value = json_object_get(r->object, used.name);
    switch (f->use) {
    case FIELD_INTEGER:
    case FIELD_REAL: read_number_field(r, &used, value); break;
    case FIELD_BOOLEAN: read_boolean(r, &used, value); break;
    case FIELD_FIXED: check_fixed(r, &used, value); break;
    case FIELD_READ: f->read(r, f->name, value); break;
    case FIELD_SYNONYM:
    case FIELD_NO_EFFECT: break;
    }
}

void hf_put_rows(json_t *object, const ModelConfig *c, const HfField *rows) {
    for (const HfField *f = rows; f->name; f++) {
        const void *at = (const char *)c + f->offset;
        if (f->use == FIELD_REAL) hf_put(object, f->name, json_real(*(const double *)at));
        if (f->use == FIELD_BOOLEAN) hf_put(object, f->name, json_boolean(*(const bool *)at));
        if (f->use != FIELD_INTEGER) continue;
        int64_t value = *(const int64_t *)at;
        hf_put(object, f->name, value || !has_word(f->values, "null") ? json_integer(value) : json_null());
    }
}

static void warn_of_unknown_fields(HfFieldReader *r, const HfTables *t) {
    const char *name;
    json_t *value;
    char list[300] = "";
    size_t used = 0;
    json_object_foreach((json_t *)r->object, name, value) {
        if (hf_find_field(t, name)) continue;
        int more = snprintf(list + used, sizeof list - used, "%s%s%.60s", used ? ", " : "", r->path, name);
        used = used + (size_t)more < sizeof list ? used + (size_t)more : sizeof list - 1;
    }
    if (used) hf_warn(r, "ignoring fields that transformers' class does not have: %s", list);
}

/* Functions run last, because they use fields that rows have read. */
void hf_read_fields(HfFieldReader *r, const HfTables *t) {
    for (int functions = 0; functions < 2; functions++)
        for (int i = 0; i < HF_TABLES && t->rows[i]; i++)
            for (const HfField *f = t->rows[i]; f->name; f++)
                if ((f->use == FIELD_READ) == functions && hf_find_field(t, f->name) == f) read_field_row(r, t, f);
    warn_of_unknown_fields(r, t);
}
