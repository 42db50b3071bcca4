/* What every field of config.json means. Each class of transformers has tables of all fields that its configuration
 * class or its code reads: fields that a model is computed from, fields that have no effect on it, and fields that
 * must have the one value with which our models compute the same. hf_read_fields goes through the tables; what is
 * no row, a table's function reads. Fields that no table has are named in a warning, since transformers ignores them.
 * Owns nothing; called by hf_parse_config.
 *
 * Rules of all rows: an absent field has the default of transformers' class; null is taken where that class takes it;
 * a field that is refused is named. The first of several tables that has a field decides. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_reader.h"
#include "base/memory.h"
#include "base/strings.h"
#include "base/scope.h"
#include "model/hf_fields_internal.h"

/* -- Rows ---------------------------------------------------------------------------------------------------------- */

#define INTEGER(name, member, values) {name, FIELD_INTEGER, values, offsetof(ModelConfig, member), NULL}
#define REAL(name, member, values) {name, FIELD_REAL, values, offsetof(ModelConfig, member), NULL}
#define BOOLEAN(name, member, values) {name, FIELD_BOOLEAN, values, offsetof(ModelConfig, member), NULL}
#define FIXED(name, values) {name, FIELD_FIXED, values, 0, NULL}
#define READ(name, function) {name, FIELD_READ, "", 0, function}
#define NO_EFFECT(name) {name, FIELD_NO_EFFECT, "", 0, NULL}
#define SYNONYM(name, of) {name, FIELD_SYNONYM, of, 0, NULL}
#define END {NULL, FIELD_NO_EFFECT, "", 0, NULL}

/* Weights that are codes: of FP8 (hf_fp8.c), or another program's. */
static void read_quantization(HfFieldReader *r, const char *name, const json_t *value) {
    const char *method = json_string_value(json_object_get(value, "quant_method"));
    if (!value || json_is_null(value)) return;
    hf_refuse(r, name,
        "says that weights are quantized (%.32s), and smelt reads F32, BF16 and F16: give the model that this folder was made of; smelt "
        "convert with dtype=same writes one from a run",
        method && name_is_plain(method) ? method : "by no quant_method");
}

/* Of every class. */
static const HfField shared[] = {
    INTEGER("vocab_size", vocabulary, "32000"),
    REAL("initializer_range", init_std, "0.02"),
    FIXED("is_causal", "true"),
    READ("quantization_config", read_quantization),
    FIXED("per_layer_config", "null {}"),
    FIXED("fusion_config", "null"),
    FIXED("transformers_weights", "null"),
    END,
};

/* PreTrainedConfig's, and those that any of its objects may carry. Probabilities of dropout stand in the classes'
 * tables: transformers applies them while it trains, and our models have none. */
static const HfField metadata[] = {
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
    /* of generation, which generation_config.json decides */
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

/* What ZAYA1, Llama and its relatives share. */
static const HfField decoder[] = {
    INTEGER("hidden_size", width, "4096"),
    INTEGER("num_hidden_layers", layers, "32"),
    INTEGER("num_attention_heads", heads, "32"),
    INTEGER("intermediate_size", ffn, "14336"),
    INTEGER("max_position_embeddings", context, "32768"),
    REAL("rms_norm_eps", norm_epsilon, "1e-6"),
    BOOLEAN("tie_word_embeddings", tied, "false"),
    FIXED("hidden_act", "silu swish"),
    READ("pad_token_id", hf_read_padding),
    READ("rope_parameters", hf_read_rope), /* with rope_scaling, and the fields after it */
    NO_EFFECT("rope_scaling"),
    NO_EFFECT("rope_theta"),
    NO_EFFECT("partial_rotary_factor"),
    NO_EFFECT("original_max_position_embeddings"),
    NO_EFFECT("attention_dropout"),
    READ("layer_types", hf_read_unused_layers),
    END,
};

static const HfField llama[] = {
    INTEGER("intermediate_size", ffn, "11008"),
    INTEGER("num_key_value_heads", kv_heads, "0 null"),
    INTEGER("head_dim", head_dim, "0 null"),
    INTEGER("max_position_embeddings", context, "2048"),
    FIXED("attention_bias", "false"),
    FIXED("mlp_bias", "false"),
    NO_EFFECT("pretraining_tp"),
    END,
};

/* A mistral with layer_types is transformers' Ministral, whose layers are of one type each. */
static const HfField mistral[] = {
    INTEGER("num_key_value_heads", kv_heads, "8"),
    INTEGER("head_dim", head_dim, "0 null"),
    INTEGER("max_position_embeddings", context, "131072"),
    INTEGER("sliding_window", window, "4096 null"),
    READ("layer_types", hf_read_ministral_layers),
    END,
};

static const HfField mixtral[] = {
    INTEGER("num_key_value_heads", kv_heads, "8"),
    INTEGER("head_dim", head_dim, "0 null"),
    INTEGER("max_position_embeddings", context, "131072"),
    REAL("rms_norm_eps", norm_epsilon, "1e-5"),
    INTEGER("sliding_window", window, "0 null"),
    INTEGER("num_local_experts", experts, "8"),
    SYNONYM("num_experts", "num_local_experts"),
    INTEGER("num_experts_per_tok", experts_per_token, "2"),
    READ("router_aux_loss_coef", hf_read_router_loss),
    FIXED("router_jitter_noise", "0.0 0"),
    NO_EFFECT("output_router_logits"),
    END,
};

/* Qwen's layers from max_window_layers on have the window where use_sliding_window is true. */
static const HfField qwen[] = {
    INTEGER("vocab_size", vocabulary, "151936"),
    INTEGER("intermediate_size", ffn, "22016"),
    INTEGER("num_key_value_heads", kv_heads, "32 null"),
    READ("layer_types", hf_read_qwen_layers), /* with the three after it */
    NO_EFFECT("use_sliding_window"),
    NO_EFFECT("sliding_window"),
    NO_EFFECT("max_window_layers"),
    END,
};
static const HfField qwen2[] = {INTEGER("head_dim", head_dim, "0"), END};
static const HfField qwen3[] = {INTEGER("head_dim", head_dim, "128"), FIXED("attention_bias", "false"), END};

static const HfField zaya[] = {
    INTEGER("vocab_size", vocabulary, "262272"),
    INTEGER("hidden_size", width, "2048"),
    INTEGER("num_hidden_layers", layers, "40"),
    INTEGER("num_attention_heads", heads, "8"),
    INTEGER("num_key_value_heads", kv_heads, "2"),
    INTEGER("head_dim", head_dim, "128"),
    INTEGER("max_position_embeddings", context, "131072"),
    REAL("rms_norm_eps", norm_epsilon, "1e-5"),
    BOOLEAN("tie_word_embeddings", tied, "true"),
    INTEGER("moe_intermediate_size", ffn, "2048"),
    INTEGER("num_experts", experts, "16"),
    FIXED("num_experts_per_tok", "1"),
    INTEGER("router_hidden_size", router_width, "256"),
    FIXED("cca_time0", "2"),
    FIXED("cca_time1", "2"),
    FIXED("attention_bias", "false"),
    FIXED("lm_head_bias", "false"),
    READ("pad_token_id", hf_read_zaya_padding),
    READ("layer_types", hf_read_zaya_layers), /* with sliding_window, and rope_parameters of the type */
    NO_EFFECT("sliding_window"),
    NO_EFFECT("rope_parameters"),
    NO_EFFECT("intermediate_size"),
    NO_EFFECT("output_router_logits"),
    END,
};

/* Zyphra's first folders, before transformers had the class: steps of attention and of experts take turns. */
static const HfField first_zaya[] = {
    INTEGER("vocab_size", vocabulary, "262272"),
    BOOLEAN("tie_word_embeddings", tied, "true"),
    REAL("norm_epsilon", norm_epsilon, "1e-5"),
    INTEGER("zaya_mlp_expansion", router_width, "256"),
    FIXED("moe_router_topk", "1"),
    FIXED("cca_time0", "2"),
    FIXED("cca_time1", "2"),
    FIXED("cca", "true"),
    FIXED("zaya_use_eda", "true"),
    FIXED("zaya_use_mod", "true"),
    FIXED("scale_residual_merge", "true"),
    FIXED("gated_linear_unit", "true"),
    FIXED("residual_in_fp32", "true"),
    FIXED("clamp_temp", "false"),
    FIXED("add_bias_linear", "false"),
    FIXED("attention_bias", "false"),
    FIXED("lm_head_bias", "false"),
    FIXED("sliding_window", "null 0"),
    READ("zaya_layers", hf_read_first_zaya), /* with the fields after it */
    NO_EFFECT("num_experts"),
    NO_EFFECT("num_hidden_layers"),
    NO_EFFECT("cca_num_q_heads"),
    NO_EFFECT("num_attention_heads"),
    NO_EFFECT("num_query_groups_list"),
    NO_EFFECT("num_query_groups"),
    NO_EFFECT("num_key_value_heads"),
    NO_EFFECT("kv_channels"),
    NO_EFFECT("head_dim"),
    NO_EFFECT("ffn_hidden_size"),
    NO_EFFECT("ffn_hidden_size_list"),
    NO_EFFECT("swa_layers"),
    NO_EFFECT("rope_parameters"),
    NO_EFFECT("intermediate_size"),
    NO_EFFECT("rms_norm_eps"),
    END,
};

/* transformers has no biases, four times the width in the MLP and LayerNorm whatever these fields say; so have the
 * models of MosaicML's own code, llm-foundry, where the fields have the values that are taken here. */
static const HfField mpt[] = {
    INTEGER("vocab_size", vocabulary, "50368"),
    INTEGER("d_model", width, "2048"),
    SYNONYM("hidden_size", "d_model"),
    INTEGER("n_heads", heads, "16"),
    SYNONYM("num_attention_heads", "n_heads"),
    INTEGER("n_layers", layers, "24"),
    SYNONYM("num_hidden_layers", "n_layers"),
    INTEGER("max_seq_len", context, "2048"),
    REAL("layer_norm_epsilon", norm_epsilon, "1e-5"),
    BOOLEAN("tie_word_embeddings", tied, "true"),
    READ("expansion_ratio", hf_read_mpt_expansion),
    READ("logit_scale", hf_read_mpt_logit_scale),
    READ("attn_config", hf_read_mpt_attention),
    FIXED("no_bias", "true"),
    FIXED("norm_type", "low_precision_layernorm layernorm"),
    FIXED("embedding_fraction", "1.0 1"), /* of the embedding's gradient */
    FIXED("ffn_config", "null {}"),
    NO_EFFECT("learned_pos_emb"), /* where alibi is true */
    NO_EFFECT("resid_pdrop"),
    NO_EFFECT("emb_pdrop"),
    NO_EFFECT("init_device"),
    NO_EFFECT("init_config"),
    NO_EFFECT("verbose"),
    NO_EFFECT("head_dim"),
    NO_EFFECT("layer_types"),
    NO_EFFECT("rope_parameters"),
    NO_EFFECT("rope_scaling"),
    END,
};

/* The object attn_config of mpt. */
static const HfField mpt_attention[] = {
    REAL("clip_qkv", clip_qkv, "0 null"),
    READ("softmax_scale", hf_read_mpt_scale),
    READ("alibi_bias_max", hf_read_mpt_alibi),
    READ("attn_type", hf_read_mpt_key_heads), /* with kv_n_heads */
    NO_EFFECT("kv_n_heads"),
    BOOLEAN("qk_ln", qk_norm, "false"),
    FIXED("alibi", "true"),
    FIXED("prefix_lm", "false"),
    FIXED("attn_uses_sequence_id", "false"),
    FIXED("qk_gn", "false"),
    FIXED("rope", "false"),
    FIXED("attn_logit_softcapping", "null"),
    FIXED("sliding_window_size", "-1"),
    NO_EFFECT("attn_impl"),
    NO_EFFECT("attn_pdrop"),
    END,
};

static const HfField gpt2[] = {
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
    FIXED("activation_function", "gelu_new gelu_pytorch_tanh gelu_fast"), /* three spellings of one formula */
    FIXED("scale_attn_weights", "true"),
    FIXED("scale_attn_by_inverse_layer_idx", "false"),
    FIXED("add_cross_attention", "false"),
    NO_EFFECT("reorder_and_upcast_attn"), /* scores are fp32 here */
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

/* FluxTransformer2DModel of diffusers, whose widths of MLPs, epsilon and theta are constants. */
static const HfField flux[] = {
    INTEGER("in_channels", channels, "64"),
    INTEGER("num_layers", layers, "19"),
    INTEGER("attention_head_dim", head_dim, "128"),
    INTEGER("num_attention_heads", heads, "24"),
    INTEGER("joint_attention_dim", text_width, "4096"),
    INTEGER("pooled_projection_dim", pooled_width, "768"),
    BOOLEAN("guidance_embeds", guidance, "false"),
    READ("num_single_layers", hf_read_flux_sizes),
    READ("axes_dims_rope", hf_read_flux_axes),
    FIXED("patch_size", "1"),
    FIXED("out_channels", "null"),
    FIXED("quantization_config", "null"),
    NO_EFFECT("_class_name"),
    NO_EFFECT("_diffusers_version"),
    END,
};

static const HfTables tables[HF_CLASS_COUNT] = {
    [HF_ZAYA] = {{zaya, decoder, shared, metadata}},
    [HF_LLAMA] = {{llama, decoder, shared, metadata}},
    [HF_MISTRAL] = {{mistral, decoder, shared, metadata}},
    [HF_MIXTRAL] = {{mixtral, decoder, shared, metadata}},
    [HF_QWEN2] = {{qwen2, qwen, decoder, shared, metadata}},
    [HF_QWEN3] = {{qwen3, qwen, decoder, shared, metadata}},
    [HF_MPT] = {{mpt, shared, metadata}},
    [HF_GPT2] = {{gpt2, shared, metadata}},
    [HF_FLUX] = {{flux, metadata}},
};
static const HfTables first_zaya_tables = {{first_zaya, decoder, shared, metadata}};
static const HfTables mpt_attention_tables = {{mpt_attention, metadata}};

bool hf_is_first_zaya(const json_t *object) { return json_object_get(object, "zaya_layers") || json_object_get(object, "ffn_hidden_size"); }

const HfTables *hf_tables(HfClass class, const json_t *object) {
    return class == HF_ZAYA && hf_is_first_zaya(object) ? &first_zaya_tables : &tables[class];
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

/* Whether `word` is one of the words of `values`. */
static bool has_word(const char *values, const char *word) {
    size_t length = strlen(word);
    for (const char *at = values; *at; at += strspn(at, " ")) {
        size_t found = strcspn(at, " ");
        if (found == length && !memcmp(at, word, length)) return true;
        at += found;
    }
    return false;
}

static void read_number(HfFieldReader *r, const HfField *f, const json_t *value) {
    bool whole = f->use == FIELD_INTEGER, absent = !value || (json_is_null(value) && has_word(f->values, "null"));
    double number = !value ? strtod(f->values, NULL) : absent ? 0 : json_finite_value(value);
    if (!absent && (whole ? !json_is_integer(value) : !json_is_finite(value)))
        hf_refuse(r, f->name, whole ? "is not an integer" : "is not a number");
    else if (!absent && whole && json_integer_value(value) < 1) hf_refuse(r, f->name, "is less than 1");
    else if (whole) *(int64_t *)((char *)r->model + f->offset) = absent ? (int64_t)number : json_integer_value(value);
    else *(double *)((char *)r->model + f->offset) = number;
}

static void read_boolean(HfFieldReader *r, const HfField *f, const json_t *value) {
    if (value && !json_is_boolean(value)) hf_refuse(r, f->name, "is neither true nor false");
    *(bool *)((char *)r->model + f->offset) = value ? json_is_true(value) : !strcmp(f->values, "true");
}

static void check_fixed(HfFieldReader *r, const HfField *f, const json_t *value) {
    if (!value) return;
    SCOPED_FREE char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    const char *word = json_is_string(value) ? json_string_value(value) : text;
    if (!word || !has_word(f->values, word))
        hf_refuse(
            r, f->name, "is %.64s, and smelt computes with %.*s only", text ? text : "unreadable", (int)strcspn(f->values, " "), f->values);
}

/* transformers sets synonyms last, so they win. */
const char *hf_used_name(const HfTables *t, const json_t *object, const char *name) {
    for (int i = 0; i < HF_TABLES && t->rows[i]; i++)
        for (const HfField *f = t->rows[i]; f->name; f++)
            if (f->use == FIELD_SYNONYM && !strcmp(f->values, name) && json_object_get(object, f->name)) return f->name;
    return name;
}

static void read_row(HfFieldReader *r, const HfTables *t, const HfField *f) {
    HfField used = *f;
    used.name = hf_used_name(t, r->object, f->name);
    const json_t *value = json_object_get(r->object, used.name);
    switch (f->use) {
    case FIELD_INTEGER:
    case FIELD_REAL: read_number(r, &used, value); break;
    case FIELD_BOOLEAN: read_boolean(r, &used, value); break;
    case FIELD_FIXED: check_fixed(r, &used, value); break;
    case FIELD_READ: f->read(r, f->name, value); break;
    case FIELD_SYNONYM:
    case FIELD_NO_EFFECT: break;
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
    if (used) hf_warn(r, "no field of transformers' class, so without effect: %s", list);
}

/* Functions read what rows have set, so they come last. */
void hf_read_fields(HfFieldReader *r, const HfTables *t) {
    for (int functions = 0; functions < 2; functions++)
        for (int i = 0; i < HF_TABLES && t->rows[i]; i++)
            for (const HfField *f = t->rows[i]; f->name; f++)
                if ((f->use == FIELD_READ) == functions && hf_find_field(t, f->name) == f) read_row(r, t, f);
    warn_of_unknown_fields(r, t);
}

const HfTables *hf_mpt_attention_tables(void) { return &mpt_attention_tables; }
