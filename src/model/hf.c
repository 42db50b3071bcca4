/* Writing Hugging Face folders. Parameter names are those of the folder already; only Mixtral's experts are stored one by one there, which is
 * a matter of names, since the parts of our stacked matrices are contiguous. Called by `smelt export`. */
#include "model/hf.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "ckpt/ckpt.h"
#include "data/data.h"

typedef enum HfClass { HF_ZAYA, HF_LLAMA, HF_MISTRAL, HF_MIXTRAL } HfClass;

static const struct { const char *model_type, *architecture; } classes[] = {
    [HF_ZAYA] = {"zaya", "ZayaForCausalLM"},
    [HF_LLAMA] = {"llama", "LlamaForCausalLM"},
    [HF_MISTRAL] = {"mistral", "MistralForCausalLM"},
    [HF_MIXTRAL] = {"mixtral", "MixtralForCausalLM"},
};

/* Llama's class has no window and demands that the heads divide the width; Mistral's is the same model otherwise. */
static HfClass class_of(const ModelConfig *c) {
    if (c->family == FAMILY_ZAYA) return HF_ZAYA;
    if (c->experts) return HF_MIXTRAL;
    return c->window || c->width % c->heads ? HF_MISTRAL : HF_LLAMA;
}

bool hf_check(const ModelConfig *c, Error *error) {
    HfClass class = class_of(c);
    const char *name = classes[class].architecture;
    if (class == HF_ZAYA && c->experts_per_token != 1)
        return error_set(error, ERROR_USAGE, "model.experts_per_token=%lld: %s has one expert per token", (long long)c->experts_per_token, name);
    if (class == HF_ZAYA && c->renormalise)
        return error_set(error, ERROR_USAGE, "model.renormalise=true: %s keeps the probability of the chosen expert as its gate", name);
    if (class == HF_MIXTRAL && !c->renormalise)
        return error_set(error, ERROR_USAGE, "model.renormalise=false: the gates of %s sum to 1", name);
    if (class != HF_ZAYA && c->rope_fraction != 1)
        return error_set(error, ERROR_USAGE, "model.rope_fraction=%g: %s rotates whole heads", c->rope_fraction, name);
    return true;
}

/* -- config.json ---------------------------------------------------------------------------------------------------- */

/* Sets `key` and takes over the reference. */
static void put(json_t *object, const char *key, json_t *value) {
    int failed = json_object_set_new(object, key, value);
    if (failed) abort(); /* out of memory: the strings are ours and valid */
}

static void put_integer(json_t *object, const char *key, int64_t value) { put(object, key, json_integer(value)); }
static void put_string(json_t *object, const char *key, const char *value) { put(object, key, json_string(value)); }

static void put_scaling(json_t *rope, const ModelConfig *c) {
    put_string(rope, "rope_type", "llama3");
    put(rope, "factor", json_real(c->rope_factor));
    put(rope, "low_freq_factor", json_real(c->rope_low_frequency));
    put(rope, "high_freq_factor", json_real(c->rope_high_frequency));
    put_integer(rope, "original_max_position_embeddings", c->rope_original_context);
}

/* The spelling that transformers 4 and other readers know too; transformers 5 turns it into rope_parameters. */
static void put_rope(json_t *object, const ModelConfig *c) {
    json_t *scaling = json_null();
    if (c->rope_factor > 1) put_scaling(scaling = json_object(), c);
    put(object, "rope_theta", json_real(c->rope_theta));
    put(object, "rope_scaling", scaling);
}

static void put_zaya(json_t *object, const ModelConfig *c) {
    const char *layer_type = c->window ? "hybrid_sliding" : "hybrid";
    json_t *rope = json_object(), *by_type = json_object(), *types = json_array();
    put_string(rope, "rope_type", "default");
    if (c->rope_factor > 1) put_scaling(rope, c);
    put(rope, "rope_theta", json_real(c->rope_theta));
    put(rope, "partial_rotary_factor", json_real(c->rope_fraction));
    put(by_type, layer_type, rope);
    put(object, "rope_parameters", by_type);
    for (int64_t i = 0; i < c->layers; i++) json_array_append_new(types, json_string(layer_type));
    put(object, "layer_types", types);
    put_integer(object, "moe_intermediate_size", c->ffn);
    put_integer(object, "num_experts", c->experts);
    put_integer(object, "num_experts_per_tok", c->experts_per_token);
    put_integer(object, "router_hidden_size", c->router_width);
    put_integer(object, "cca_time0", 2);
    put_integer(object, "cca_time1", 2);
    put(object, "attention_bias", json_false());
    put(object, "lm_head_bias", json_false());
}

static void put_llama(json_t *object, const ModelConfig *c, HfClass class) {
    put_rope(object, c);
    put_integer(object, "intermediate_size", c->ffn);
    if (class == HF_LLAMA) {
        put(object, "attention_bias", json_false());
        put(object, "mlp_bias", json_false());
    }
    if (class == HF_MIXTRAL) {
        put_integer(object, "num_local_experts", c->experts);
        put_integer(object, "num_experts_per_tok", c->experts_per_token);
        put(object, "router_aux_loss_coef", json_real(c->auxiliary_loss));
    }
}

json_t *hf_config(const HfExport *export) {
    const ModelConfig *c = export->config;
    HfClass class = class_of(c);
    json_t *object = json_object();
    put(object, "architectures", json_pack("[s]", classes[class].architecture));
    put_string(object, "model_type", classes[class].model_type);
    put_string(object, "dtype", export->precision == PRECISION_BF16 ? "bfloat16" : "float32");
    put_integer(object, "vocab_size", c->vocabulary);
    put_integer(object, "hidden_size", c->width);
    put_integer(object, "num_hidden_layers", c->layers);
    put_integer(object, "num_attention_heads", c->heads);
    put_integer(object, "num_key_value_heads", c->kv_heads);
    put_integer(object, "head_dim", c->head_dim);
    put_string(object, "hidden_act", "silu");
    put_integer(object, "max_position_embeddings", c->context);
    put(object, "initializer_range", json_real(c->init_std));
    put(object, "rms_norm_eps", json_real(c->norm_epsilon));
    put(object, "tie_word_embeddings", json_boolean(c->tied));
    put(object, "attention_dropout", json_real(0));
    put(object, "use_cache", json_true());
    put(object, "bos_token_id", json_null());
    put(object, "eos_token_id", export->bytes ? json_integer(BYTE_SEPARATOR) : json_null());
    put(object, "pad_token_id", json_null());
    if (class != HF_LLAMA) put(object, "sliding_window", c->window ? json_integer(c->window) : json_null());
    if (class == HF_ZAYA) put_zaya(object, c);
    else put_llama(object, c, class);
    return object;
}

/* Stops at a document's end; padding is masked by its user, so any token serves. */
static json_t *generation_config(const HfExport *export) {
    json_t *object = json_object();
    if (export->bytes) {
        put_integer(object, "eos_token_id", BYTE_SEPARATOR);
        put_integer(object, "pad_token_id", BYTE_SEPARATOR);
    }
    return object;
}

/* -- The byte tokenizer --------------------------------------------------------------------------------------------- */

/* The printable character that stands for a byte in byte-level BPE vocabularies (GPT-2): the byte itself where Latin-1 shows it, and for the
 * others the characters from U+0100 on, in order. */
static void byte_character(int byte, char text[3]) {
    int code = 0x100;
    for (int b = 0; b <= byte; b++) {
        bool shown = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
        if (b == byte && shown) code = b;
        else if (b < byte && !shown) code++;
    }
    int length = 0;
    if (code < 0x80) {
        text[length++] = (char)code;
    } else {
        text[length++] = (char)(0xc0 | code >> 6);
        text[length++] = (char)(0x80 | (code & 0x3f));
    }
    text[length] = '\0';
}

json_t *hf_tokenizer(void) {
    json_t *vocabulary = json_object();
    for (int byte = 0; byte < BYTE_SEPARATOR; byte++) {
        char text[3];
        byte_character(byte, text);
        put_integer(vocabulary, text, byte);
    }
    json_t *separator = json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", BYTE_SEPARATOR, "content", HF_SEPARATOR, "single_word", 0, "lstrip", 0,
                                  "rstrip", 0, "normalized", 0, "special", 1);
    json_t *level = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0, "use_regex", 0);
    json_t *model = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:[]}", "type", "BPE", "dropout", "unk_token", "continuing_subword_prefix",
                              "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0, "ignore_merges", 0, "vocab", vocabulary, "merges");
    return json_pack("{s:s, s:n, s:n, s:[o], s:n, s:O, s:n, s:o, s:o}", "version", "1.0", "truncation", "padding", "added_tokens", separator, "normalizer",
                     "pre_tokenizer", level, "post_processor", "decoder", level, "model", model);
}

static json_t *tokenizer_config(const ModelConfig *config) {
    return json_pack("{s:s, s:s, s:s, s:I, s:b}", "tokenizer_class", "PreTrainedTokenizerFast", "eos_token", HF_SEPARATOR, "pad_token", HF_SEPARATOR,
                     "model_max_length", (json_int_t)config->context, "clean_up_tokenization_spaces", 0);
}

/* -- Tensors -------------------------------------------------------------------------------------------------------- */

typedef struct TensorList { StoredTensor *items; size_t count; } TensorList;

/* Takes over `name`. */
static void append(TensorList *list, char *name, StoredType type, int rank, const int64_t *shape, const void *data) {
    list->items = memory_resize(list->items, (list->count + 1) * sizeof *list->items);
    StoredTensor *tensor = &list->items[list->count++];
    *tensor = (StoredTensor){.name = name, .type = type, .rank = rank, .data = data};
    memcpy(tensor->shape, shape, rank * sizeof *shape);
}

static void list_free(TensorList *list) {
    for (size_t i = 0; i < list->count; i++) free((char *)list->items[i].name);
    free(list->items);
}

/* One stack of matrices [experts, rows, columns] as Mixtral's w1 and w3 (rows in halves) or w2. */
static void append_experts(TensorList *list, const Parameter *p, StoredType type, const char *data, int layer, bool gate_up) {
    int64_t parts = gate_up ? 2 : 1, shape[] = {p->shape[1] / parts, p->shape[2]}, bytes = shape[0] * shape[1] * (int64_t)stored_type_bytes(type);
    for (int64_t i = 0; i < p->shape[0] * parts; i++) {
        const char *matrix = !gate_up ? "w2" : i % 2 ? "w3" : "w1";
        char *name = memory_format("model.layers.%d.block_sparse_moe.experts.%lld.%s.weight", layer, (long long)(i / parts), matrix);
        append(list, name, type, 2, shape, data + i * bytes);
    }
}

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && !strcmp(text + length - tail, end);
}

/* Mixtral chooses by probability alone. Its parameters other than the MoE block's keep their names. */
static void append_mixtral(TensorList *list, const Parameter *p, StoredType type, const char *data) {
    int layer = -1;
    bool in_layer = sscanf(p->name, "model.layers.%d.", &layer) == 1;
    if (p->kind == PARAMETER_CONTROLLER) return;
    if (in_layer && p->rank == 3) append_experts(list, p, type, data, layer, ends_with(p->name, "gate_up_proj"));
    else if (in_layer && ends_with(p->name, "mlp.gate.weight"))
        append(list, memory_format("model.layers.%d.block_sparse_moe.gate.weight", layer), type, p->rank, p->shape, data);
    else append(list, memory_copy_string(p->name), type, p->rank, p->shape, data);
}

/* `weights` is the arena in the compute type: the master arena itself for fp32. */
static TensorList list_tensors(const HfExport *export, const Graph *graph, const void *weights) {
    TensorList list = {0};
    StoredType compute = export->precision == PRECISION_BF16 ? STORED_BF16 : STORED_F32;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        StoredType type = p->kind == PARAMETER_CONTROLLER ? STORED_F32 : compute;
        const char *arena = p->kind == PARAMETER_CONTROLLER ? (const char *)export->master : weights;
        const char *data = arena + p->offset * stored_type_bytes(type);
        if (class_of(export->config) == HF_MIXTRAL) append_mixtral(&list, p, type, data);
        else append(&list, memory_copy_string(p->name), type, p->rank, p->shape, data);
    }
    return list;
}

/* Biases that are equal for all experts choose nothing; others cannot be left out. */
static bool check_biases(const HfExport *export, const Graph *graph, Error *error) {
    if (class_of(export->config) != HF_MIXTRAL) return true;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        for (int64_t j = 1; p->kind == PARAMETER_CONTROLLER && j < p->count; j++)
            if (export->master[p->offset + j] != export->master[p->offset])
                return error_set(error, ERROR_USAGE,
                                 "%s differs between experts, and MixtralForCausalLM has no such bias: train with optimizer.controller_lr=0 "
                                 "and model.auxiliary_loss instead", p->name);
    }
    return true;
}

static bool write_tensors(const HfExport *export, const Graph *graph, const char *path, Error *error) {
    bool cast = export->precision == PRECISION_BF16;
    size_t bytes = cast ? graph->parameter_extent * sizeof(uint16_t) : 0;
    void *copy = cast ? memory_map(bytes, error) : NULL;
    if (cast && !copy) return false;
    if (cast) model_cast_weights(graph, export->master, copy);
    TensorList list = list_tensors(export, graph, cast ? copy : export->master);
    json_t *metadata = json_pack("{s:s}", "format", "pt");
    bool written = safetensors_write(path, list.items, list.count, metadata, error);
    json_decref(metadata);
    list_free(&list);
    memory_unmap(copy, bytes);
    return written;
}

/* -- The folder ----------------------------------------------------------------------------------------------------- */

static const char *const file_names[] = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"};

static bool is_ours(const char *name) {
    for (size_t i = 0; i < sizeof file_names / sizeof *file_names; i++)
        if (!strcmp(name, file_names[i])) return true;
    return false;
}

/* Whether `folder` may be replaced; *exists tells whether there is one. */
static bool check_folder(const char *folder, bool overwrite, bool *exists, Error *error) {
    DIR *stream = opendir(folder);
    *exists = stream != NULL;
    if (!stream && errno == ENOENT) return true;
    if (!stream) return error_set(error, ERROR_CHECKPOINT, "cannot open folder %s: %s", folder, strerror(errno));
    bool good = true;
    for (struct dirent *entry; good && (entry = readdir(stream));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (!overwrite) good = error_set(error, ERROR_USAGE, "%s is not empty: give another folder, or overwrite=true to replace an export", folder);
        else if (!is_ours(entry->d_name))
            good = error_set(error, ERROR_USAGE, "%s holds %s, which no export writes: give another folder", folder, entry->d_name);
    }
    closedir(stream);
    return good;
}

/* Takes over `content`. */
static bool write_json(const char *folder, const char *name, json_t *content, Error *error) {
    char *path = memory_format("%s/%s", folder, name), *text = json_dumps(content, JSON_INDENT(2));
    json_decref(content);
    bool written = text ? files_write_atomic(path, text, strlen(text), error) : error_set(error, ERROR_INTERNAL, "%s: no memory", path);
    free(text);
    free(path);
    return written;
}

static bool write_files(const HfExport *export, const Graph *graph, const char *folder, Error *error) {
    char *tensors = memory_format("%s/model.safetensors", folder);
    bool written = files_make_folder(folder, error) && write_json(folder, "config.json", hf_config(export), error) &&
                   write_json(folder, "generation_config.json", generation_config(export), error) && write_tensors(export, graph, tensors, error);
    if (written && export->bytes)
        written = write_json(folder, "tokenizer.json", hf_tokenizer(), error) &&
                  write_json(folder, "tokenizer_config.json", tokenizer_config(export->config), error);
    free(tensors);
    return written;
}

/* Puts `fresh` in the place of `folder`. Between removal and renaming the complete export has its temporary name. */
static bool replace_folder(const char *fresh, const char *folder, bool exists, Error *error) {
    if (exists && !files_remove_tree(folder, error)) return false;
    return rename(fresh, folder) == 0 || error_set(error, ERROR_CHECKPOINT, "cannot rename %s to %s: %s", fresh, folder, strerror(errno));
}

bool hf_write(const HfExport *export, const char *folder, bool overwrite, Error *error) {
    bool exists;
    if (!hf_check(export->config, error) || !check_folder(folder, overwrite, &exists, error)) return false;
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/') length--;
    char *target = memory_format("%.*s", (int)length, folder), *fresh = memory_format("%s.partial-%ld", target, (long)getpid());
    Model model = model_build(export->config, export->precision, MODEL_SCORE, 1, 1, RECOMPUTE_NONE);
    bool written = check_biases(export, model.graph, error) && write_files(export, model.graph, fresh, error) &&
                   replace_folder(fresh, target, exists, error);
    Error ignored = {0};
    if (!written) files_remove_tree(fresh, &ignored);
    model_free(&model);
    free(fresh);
    free(target);
    return written;
}
