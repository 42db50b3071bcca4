/* Writes GGUF files for llama.cpp and programs based on it: keys, tokenizer and tensors as
 * llama.cpp's converter writes them. Tensors are encoded and written one part of a parameter at
 * a time, so only the largest parameter needs memory besides the weights. Called by `smelt
 * convert`. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json_reader.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/byte_tokenizer.h"
#include "formats/hf_internal.h"
#include "token/tokenizer.h"

/* -- Tensors ------------------------------------------------------------------------------------------------------- */

/* Vectors, positions, routers and convolutions stay in fp32, as llama.cpp expects; rows that are not whole blocks
 * become fp16. */
static const GgufType *export_type(const GgufType *wanted, const HfTensor *tensor) {
    bool wide = tensor->rank == 1 || ends_with(tensor->name, ".bias") || ends_with(tensor->name, ".ffn_gate_inp.weight") ||
                ends_with(tensor->name, ".ssm_conv1d.weight") || !strcmp(tensor->name, "position_embd.weight");
    if (wide) return gguf_type_named("F32");
    return tensor->shape[tensor->rank - 1] % wanted->elements ? gguf_type_named("F16") : wanted;
}

static void add_tensors(GgufWriter *writer, const HfTensorList *list, const GgufType *type) {
    for (size_t i = 0; i < list->count; i++) {
        const HfTensor *tensor = &list->items[i];
        if (tensor->offset == 0) gguf_add_tensor(writer, tensor->name, export_type(type, tensor), tensor->rank, tensor->shape);
    }
}

/* Puts a row of a parameter into the order and form of the file. */
static void change_row(const HfTensor *tensor, const float *row, float *stored, int64_t columns) {
    for (int64_t i = 0; i < columns; i++)
        stored[hf_stored_column(tensor, i, columns)] = tensor->decays ? (float)-exp((double)row[i]) : row[i];
}

/* Encodes a part of a tensor row by row; returns its amax, or infinity if it has a NaN. */
static float encode_tensor(const HfTensor *tensor, const GgufType *type, const float *values, unsigned char *blocks) {
    int64_t columns = tensor->shape[tensor->rank - 1], row_bytes = gguf_bytes(type, columns);
    bool changes = hf_changes_rows(tensor);
    float most = 0;
#pragma omp parallel reduction(max : most)
    {
        SCOPED_FREE float *space = changes ? memory_allocate((size_t)columns * sizeof *space) : NULL;
#pragma omp for schedule(static)
        for (int64_t r = 0; r < tensor->count / columns; r++) {
            const float *row = values + r * columns;
            float here = 0;
            if (changes) row = (change_row(tensor, row, space, columns), space);
            for (int64_t i = 0; i < columns; i++) here = isfinite(row[i]) ? fmaxf(here, fabsf(row[i])) : INFINITY;
            if (here <= type->most) type->encode(row, blocks + hf_stored_row(tensor, r) * row_bytes, columns);
            most = fmaxf(most, here);
        }
    }
    return most;
}

static bool write_tensor_part(GgufWriter *writer, const HfTensor *tensor, const GgufType *type, const float *values, Error *error) {
    size_t bytes = (size_t)gguf_bytes(type, tensor->count);
    unsigned char *blocks = memory_map(bytes, error);
    if (!blocks) return false;
    const StoredTensor stored = {.name = tensor->name, .type = STORED_F32, .rank = 1, .shape = {tensor->count}, .data = values};
    float most = encode_tensor(tensor, type, values, blocks);
    bool good = isfinite(most) || stored_check_finite(&stored, error);
    good = good && (most <= type->most ||
                       error_set(error, ERROR_NUMERICS, "tensor %s contains %g, which exceeds the range of %s: set dtype=bf16 or fp32",
                           tensor->name, (double)most, type->name));
    good = good && gguf_append_data(writer, blocks, (int64_t)bytes, error);
    memory_unmap(blocks, bytes);
    return good;
}

static bool write_gguf_tensors(GgufWriter *writer, HfWriter *values, const HfTensorList *list, const GgufType *type, Error *error) {
    for (size_t i = 0; i < list->count; i++) {
        const HfTensor *tensor = &list->items[i];
        bool last = i + 1 == list->count || tensor[1].offset == 0;
        if (!write_tensor_part(
                writer, tensor, export_type(type, tensor), hf_writer_values(values, tensor->parameter) + tensor->first, error) ||
            (last && !gguf_end_tensor(writer, error)))
            return false;
    }
    return true;
}

static bool write_rope_factors(GgufWriter *writer, const ModelConfig *config, Error *error) {
    if (!gguf_rope_factors(config, NULL)) return true;
    int64_t bytes = config->head_dim / 2 * (int64_t)sizeof(float);
    SCOPED_FREE float *divisors = memory_allocate((size_t)bytes);
    gguf_rope_factors(config, divisors);
    return gguf_append_data(writer, divisors, bytes, error) && gguf_end_tensor(writer, error);
}

/* -- Tokenizer ----------------------------------------------------------------------------------------------------- */

/* Returns the special token ids of a model; generation_config.json takes precedence over
 * config.json. */
static json_t *token_ids(const HfExport *export) {
    static const char *const names[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
    json_t *ids = export->origin ? json_copy((json_t *)export->origin) : json_object();
    for (int i = 0; i < 3; i++) {
        json_t *id = json_object_get(export->generation, names[i]);
        if (id && !json_is_null(id)) hf_put(ids, names[i], json_incref(id));
    }
    return ids;
}

static const char *const held_settings[] = {
    "bos_token_id", "eos_token_id", "pad_token_id", "transformers_version", "_from_model_config", NULL};
static const char *const held_fields[] = {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token",
    "add_bos_token", "add_eos_token", "added_tokens_decoder", "additional_special_tokens", "chat_template", NULL};
static const char *const held_parts[] = {
    "version", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model", NULL}; /* or refused by name */

/* Returns the names of the members of an object that a GGUF file cannot hold, separated by commas,
 * for the caller to free. Members that are null, false or empty do not count. "": none. */
static char *left_out(const json_t *object, const char *const *held) {
    const char *name;
    json_t *value;
    char *list = memory_copy_string("");
    json_object_foreach((json_t *)object, name, value) {
        bool holds = json_is_null(value) || json_is_false(value) ||
                     ((json_is_array(value) || json_is_object(value)) && !json_array_size(value) && !json_object_size(value));
        for (int i = 0; held[i] && !holds; i++) holds = !strcmp(held[i], name);
        if (holds) continue;
        char *longer = memory_format("%s%s%.60s", list, *list ? ", " : "", name);
        free(list);
        list = longer;
    }
    return list;
}

/* llama.cpp takes these from its user. */
static void warn_of_settings(const HfExport *export) {
    SCOPED_FREE char *list = left_out(export->generation, held_settings);
    if (*list) log_warn("GGUF cannot store these settings of generation_config.json: pass them to llama.cpp: %s", list);
}

/* None of these decides ids, or the tokenizer was refused. */
static void name_unwritten(const json_t *tokenizer, const json_t *config) {
    SCOPED_FREE char *parts = left_out(tokenizer, held_parts), *fields = left_out(config, held_fields);
    if (*parts || *fields)
        log_info("GGUF cannot store these fields of the tokenizer: %s%s%s", parts, *parts && *fields ? ", " : "", fields);
}

/* Writes the tokenizer of `source`. It was opened before, so it is known to be complete. */
static bool put_source(GgufWriter *writer, const HfExport *export, Error *error) {
    SCOPED(tokenizer_files_free) TokenizerFiles files = {0};
    Error unread;
    if (!tokenizer_files(&files, export->source, error)) return false;
    json_auto_t *tokenizer = json_parse(files.tokens, (size_t)files.bytes, 0, &unread);
    if (!tokenizer)
        return error_set(error, ERROR_USAGE,
            "%s has no tokenizer.json, but a GGUF tokenizer is made from one: add it, or set tokenizer=none", export->source);
    json_auto_t *ids = token_ids(export);
    name_unwritten(tokenizer, files.config);
    return (files.made || tokenizer_add_side_tokens(tokenizer, files.config, error)) &&
           gguf_put_tokenizer(writer, tokenizer, files.config, ids, export->config->vocabulary, error);
}

static bool put_tokenizer(GgufWriter *writer, const HfExport *export, Error *error) {
    SCOPED_FREE char *found = export->source ? tokenizer_find(export->source) : NULL;
    if (export->bytes) {
        json_auto_t *tokenizer = byte_tokenizer(), *end = json_pack("{s:i}", "eos_token_id", BYTE_SEPARATOR);
        return gguf_put_tokenizer(writer, tokenizer, NULL, end, export->config->vocabulary, error);
    }
    if (!found && !(export->source && gguf_has_tokenizer(export->source))) {
        gguf_put_text(writer, "tokenizer.ggml.model", "none", strlen("none"));
        return true;
    }
    Tokenizer *tokenizer = tokenizer_open(export->source, error);
    bool good = tokenizer != NULL;
    tokenizer_free(tokenizer);
    return good && put_source(writer, export, error);
}

/* -- The file ------------------------------------------------------------------------------------------------------ */

static bool put_keys(GgufWriter *writer, const HfExport *export, const GgufType *type, Error *error) {
    const ModelConfig *c = export->config;
    if (hf_class(c)->gguf->rounds_bounds && c->rope_factor > 1)
        log_warn(
            "llama.cpp rounds the bounds of yarn to whole channels (model.rope_truncate), so it computes this model a little differently");
    if (!hf_class(c)->gguf->window_period && c->window && c->window < c->context)
        log_warn("llama.cpp does not support an attention window for this model: the file's context is set to the window, %lld positions",
            (long long)c->window);
    if (c->mtp) log_warn("the file does not have the model's layer for multi-token prediction (model.mtp): write a folder to keep it");
    gguf_put_model(writer, c);
    gguf_put_text(writer, "general.type", "model", strlen("model"));
    gguf_put_integer(writer, "general.file_type", GGUF_U32, type->file_type);
    if (type->elements > 1) gguf_put_integer(writer, "general.quantization_version", GGUF_U32, 2);
    warn_of_settings(export);
    return put_tokenizer(writer, export, error);
}

static bool write_gguf_file(
    GgufWriter *writer, const HfExport *export, const Graph *graph, const GgufType *type, const char *path, Error *error) {
    HfTensorList list = hf_tensors(export->config, graph, hf_list_gguf);
    HfWriter values = {0};
    if (gguf_rope_factors(export->config, NULL))
        gguf_add_tensor(writer, GGUF_ROPE_FACTORS, gguf_type_named("F32"), 1, (int64_t[]){export->config->head_dim / 2});
    add_tensors(writer, &list, type);
    bool good = hf_writer_start(&values, export, graph, error) && gguf_begin(writer, path, error) &&
                write_rope_factors(writer, export->config, error) && write_gguf_tensors(writer, &values, &list, type, error) &&
                gguf_commit(writer, error);
    hf_writer_end(&values);
    hf_tensors_free(&list);
    return good;
}

bool hf_write_gguf(const HfExport *export, const GgufType *type, const char *path, bool overwrite, Error *error) {
    SCOPED(gguf_writer_close) GgufWriter writer = {0};
    if (!gguf_check(export->config, error)) return false;
    if (!file_check_overwrite(path, overwrite, gguf_is_file, "a GGUF file", error)) return false;
    SCOPED(model_free) Model model = model_describe(export->config, NULL, export->precision);
    return hf_check_biases(export, model.graph, error) && put_keys(&writer, export, type, error) &&
           write_gguf_file(&writer, export, model.graph, type, path, error);
}
