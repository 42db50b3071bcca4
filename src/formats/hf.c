/* Writes Hugging Face folders. The tensors of one file are built in memory in the folder's type and
 * written together, so only one file needs memory besides the weights. Tensors of another folder
 * that need no conversion are copied from file to file. Called by `smelt convert`. */
#include "backend/cpu/cpu_device.h"
#include "base/bf16.h"
#include "formats/hf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/element.h"
#include "base/file.h"
#include "base/json_reader.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "ckpt/ckpt.h"
#include "data/byte_tokenizer.h"
#include "formats/hf_internal.h"
#include "token/tokenizer.h"

/* -- Tensors ------------------------------------------------------------------------------------------------------- */

/* Biases that are equal for all experts have no effect; others cannot be omitted. */
bool hf_check_biases(const HfExport *export, const Graph *graph, Error *error) {
    if (!hf_class(export->config)->lacks_router_biases || !export->master) return true;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        const float *biases = parameter_in(p, export->master);
        for (int64_t j = 1; p->kind == PARAMETER_BALANCE_BIAS && j < p->count; j++)
            if (biases[j] != biases[0])
                return error_set(error, ERROR_USAGE,
                    "%s differs between experts, but %s has no such bias: train with optimizer.balance_lr=0 and model.auxiliary_loss "
                    "instead",
                    p->name, hf_class(export->config)->architecture);
    }
    return true;
}

/* Rearranged tensors stay bf16 or become fp32, which also holds fp16. */
static StoredType rearranged_type(const HfWriter *w, const HfTensor *tensor) {
    const HfExport *export = w->export;
    if (w->graph->parameters[tensor->parameter].kind == PARAMETER_BALANCE_BIAS) return STORED_F32;
    if (export->keep) return hf_reader_type(export->reader, tensor->parameter) == STORED_BF16 ? STORED_BF16 : STORED_F32;
    return export->precision == PRECISION_BF16 ? STORED_BF16 : STORED_F32;
}

/* Returns the tensor of a reader's folder that can be written unchanged, or NULL. */
static const StoredTensor *find_stored(const HfWriter *w, const HfTensor *tensor) {
    if (tensor->form == HF_QUANTIZED || tensor->form == HF_SCALES) return NULL;
    const StoredTensor *stored = w->export->reader ? hf_reader_stored(w->export->reader, tensor) : NULL;
    return stored && (w->export->keep || stored->type == rearranged_type(w, tensor)) ? stored : NULL;
}

static StoredType written_type(const HfWriter *w, const HfTensor *tensor) {
    const StoredTensor *stored = find_stored(w, tensor);
    if (tensor->form == HF_FP4 || tensor->form == HF_FP4_SCALES) return STORED_U8;
    if (tensor->form != HF_NUMBERS) return tensor->form == HF_QUANTIZED ? STORED_F8_E4M3 : STORED_F32;
    return stored ? stored->type : rearranged_type(w, tensor);
}

static int64_t hf_tensor_bytes(const HfWriter *w, const HfTensor *tensor) {
    return hf_elements(tensor) * (int64_t)stored_type_bytes(written_type(w, tensor));
}

/* Returns how many tensors from `first` on fit into one file; sets *bytes to their bytes. */
static size_t shard_count(const HfWriter *w, const HfTensorList *list, size_t first, int64_t *bytes) {
    size_t count = 0;
    *bytes = 0;
    while (first + count < list->count) {
        int64_t more = hf_tensor_bytes(w, &list->items[first + count]);
        if (count && w->export->shard_bytes && *bytes + more > w->export->shard_bytes) break;
        *bytes += more;
        count++;
    }
    return count;
}

/* Copies a tensor from the order of its parameter to the order of the file. */
static void rearrange(const HfTensor *item, const char *from, char *to, size_t unit) {
    enum { TILE = 64 };
    const int64_t rows = hf_rows(item), columns = hf_columns(item), matrices = item->count / (rows * columns);
#pragma omp parallel for collapse(3) schedule(static)
    for (int64_t m = 0; m < matrices; m++)
        for (int64_t top = 0; top < rows; top += TILE)
            for (int64_t left = 0; left < columns; left += TILE)
                for (int64_t r = top; r < rows && r < top + TILE; r++)
                    for (int64_t c = left; c < columns && c < left + TILE; c++)
                        memcpy(to + (m * rows * columns + hf_stored_element(item, r, c)) * (int64_t)unit,
                            from + ((m * rows + r) * columns + c) * (int64_t)unit, unit);
}

void hf_reorder(const Parameter *parameter, const char *from, char *to, size_t unit) {
    const HfTensor stored = hf_tensor(parameter);
    rearrange(&stored, from, to, unit);
}

static void load_written_values(HfWriter *w, int parameter) {
    const HfExport *export = w->export;
    const ParameterInterval all = {parameter, 0, w->graph->parameters[parameter].count};
    if (export->reader) hf_reader_load(export->reader, parameter, w->values);
    else model_initialize_interval(w->graph, export->config, export->seed, &all, device_cpu(), w->values);
    w->loaded = parameter;
}

const float *hf_writer_values(HfWriter *w, int parameter) {
    if (w->export->master) return parameter_in(&w->graph->parameters[parameter], w->export->master);
    if (w->loaded != parameter) load_written_values(w, parameter);
    return w->values;
}

/* Points `tensor` at the `bytes` bytes at *copy and advances *copy past them. */
static char *take_copy(StoredTensor *tensor, char **copy, int64_t bytes) {
    char *target = *copy;
    tensor->data = target;
    *copy += bytes;
    return target;
}

/* Uses the master's memory or a stored tensor if type and order agree; otherwise fills `copy`.
 * Rearranged matrices take twice their space. */
static StoredTensor make_tensor(HfWriter *w, const HfTensor *from, char **copy) {
    const StoredTensor *stored = find_stored(w, from);
    StoredTensor tensor = {.name = from->name, .type = written_type(w, from), .rank = from->rank};
    int64_t unit = (int64_t)stored_type_bytes(tensor.type), bytes = hf_elements(from) * unit;
    memcpy(tensor.shape, from->shape, sizeof from->shape);
    if (stored) {
        tensor.data = stored->data;
        return tensor;
    }
    const float *values = hf_writer_values(w, from->parameter) + from->first;
    const Parameter *p = &w->graph->parameters[from->parameter];
    if (from->form != HF_NUMBERS) {
        void *made = take_copy(&tensor, copy, bytes);
        bool quantized = from->form == HF_QUANTIZED, half = rearranged_type(w, from) == STORED_BF16;
        int64_t columns = p->shape[p->rank - 1];
        if (tensor.type == STORED_U8) hf_write_mxfp4(from, values, columns, half, made);
        else hf_fp8_cast(values, from->shape[0], columns, half, quantized ? made : NULL, quantized ? NULL : made);
        return tensor;
    }
    double offset = hf_gain_offset(w->export->config, &w->graph->parameters[from->parameter]);
    if (offset != 0) {
        void *gains = take_copy(&tensor, copy, bytes);
        for (int64_t i = 0; i < from->count; i++) element_set((size_t)unit, gains, i, (float)(values[i] - offset));
        return tensor;
    }
    tensor.data = values;
    if (tensor.type == STORED_BF16) bf16_from_floats((uint16_t *)take_copy(&tensor, copy, bytes), values, from->count);
    else if (!w->export->master) memcpy(take_copy(&tensor, copy, bytes), values, bytes);
    if (hf_is_rearranged(from)) {
        const char *rows = tensor.data;
        rearrange(from, rows, take_copy(&tensor, copy, bytes), (size_t)unit);
    }
    return tensor;
}

/* Bytes of MXFP4 do not tell whether the values were finite. */
static bool check_values(HfWriter *w, const HfTensor *from, Error *error) {
    StoredTensor values = {.name = from->name, .type = STORED_F32, .rank = 1, .shape = {from->count}};
    if (find_stored(w, from)) return true;
    values.data = hf_writer_values(w, from->parameter);
    return stored_check_finite(&values, error);
}

static bool write_shard(HfWriter *w, const HfTensor *from, size_t count, int64_t bytes, const char *path, Error *error) {
    size_t copied = 2 * (size_t)bytes; /* upper bound: untouched pages cost nothing */
    char *copy = memory_map(copied, error), *next = copy;
    if (!copy) return false;
    StoredTensor *tensors = memory_allocate((count + 1) * sizeof *tensors);
    bool finite = true;
    for (size_t i = 0; i < count && finite; i++) {
        tensors[i] = make_tensor(w, &from[i], &next);
        finite = (from[i].form != HF_FP4 || check_values(w, &from[i], error)) && stored_check_finite(&tensors[i], error);
    }
    json_t *metadata = json_pack("{s:s}", "format", "pt");
    bool written = finite && safetensors_write(path, tensors, count, metadata, error);
    json_decref(metadata);
    free(tensors);
    memory_unmap(copy, copied);
    for (size_t i = 0; i < count && w->export->reader; i++) hf_reader_done(w->export->reader, &from[i]);
    return written;
}

/* Allocates room for the largest parameter unless there is a master. */
bool hf_writer_start(HfWriter *w, const HfExport *export, const Graph *graph, Error *error) {
    *w = (HfWriter){.export = export, .graph = graph, .loaded = -1};
    if (export->master) return true;
    for (int i = 0; i < graph->parameter_count; i++)
        if (graph->parameters[i].count > w->capacity) w->capacity = graph->parameters[i].count;
    return (w->values = memory_map((size_t)w->capacity * sizeof *w->values, error)) != NULL;
}

void hf_writer_end(HfWriter *w) { memory_unmap(w->values, (size_t)w->capacity * sizeof *w->values); }

/* -- The folder ---------------------------------------------------------------------------------------------------- */

/* Tokenizer and generation files in other programs' folders. */
static const char *const copied_files[] = {
    "tokenizer.json", "generation_config.json", "tokenizer.model", "tekken.json", "vocab.json", "merges.txt"};
enum { COPIED_FILES = sizeof copied_files / sizeof *copied_files, COPY_LIMIT = 1 << 30 };

/* STEM.safetensors, its shards and their index, with STEM from hf_stem. */
static bool is_weights(const char *name) {
    static const char diffusers[] = "diffusion_pytorch_";
    int used = 0;
    if (starts_with(name, diffusers)) name += strlen(diffusers);
    return !strcmp(name, "model.safetensors") || !strcmp(name, "model.safetensors.index.json") ||
           (sscanf(name, "model-%*5[0-9]-of-%*5[0-9].safetensors%n", &used), used && !name[used]);
}

bool hf_is_tokenizer_file(const char *name) {
    for (int i = 0; i < COPIED_FILES; i++)
        if (!strcmp(name, copied_files[i])) return true;
    return tokenizer_copies(name);
}

static bool is_written_by_us(const char *name) { return is_weights(name) || hf_is_tokenizer_file(name) || !strcmp(name, "config.json"); }

/* Checks that `folder` may be replaced. */
static bool check_model_folder(const char *folder, bool overwrite, Error *error) {
    FileList list;
    bool good = file_list(folder, &list, error) || error->finding == FINDING_ABSENT;
    for (size_t i = 0; good && i < list.count; i++) {
        const char *name = list.entries[i].name;
        if (!overwrite)
            good =
                error_set(error, ERROR_USAGE, "%s is not empty: choose another folder, or set overwrite=true to replace an export", folder);
        else if (!is_written_by_us(name))
            good = error_set(error, ERROR_USAGE, "%s contains %s, which is not part of an export: choose another folder", folder, name);
    }
    file_list_free(&list);
    return good;
}

/* Takes ownership of `content`. */
static bool write_model_json(const char *folder, const char *name, json_t *content, Error *error) {
    char *path = memory_format("%s/%s", folder, name), *text = json_format(content);
    json_decref(content);
    bool written = text ? file_write(path, text, (int64_t)strlen(text), error) : error_set(error, ERROR_INTERNAL, "%s: no memory", path);
    free(text);
    free(path);
    return written;
}

/* Generation stops at the end of a document. Any token can pad, because users of padding mask
 * it. */
static json_t *generation_config(const HfExport *export) {
    json_t *object = export->generation ? json_copy((json_t *)export->generation) : json_object();
    json_t *end = json_object_get(object, "eos_token_id");
    if (!end && export->bytes) hf_put(object, "eos_token_id", json_integer(BYTE_SEPARATOR));
    else if (!end && json_object_get(export->origin, "eos_token_id"))
        hf_put(object, "eos_token_id", json_incref(json_object_get(export->origin, "eos_token_id")));
    end = json_object_get(object, "eos_token_id");
    if (end && !json_object_get(object, "pad_token_id"))
        hf_put(object, "pad_token_id", json_incref(json_is_array(end) ? json_array_get(end, 0) : end));
    return object;
}

static char *shard_name(const char *stem, size_t index, size_t shards) {
    if (shards == 1) return memory_format("%s.safetensors", stem);
    return memory_format("%s-%05zu-of-%05zu.safetensors", stem, index + 1, shards);
}

static size_t count_shards(const HfWriter *w, const HfTensorList *list) {
    size_t shards = 0;
    int64_t bytes;
    for (size_t at = 0; at < list->count; shards++) at += shard_count(w, list, at, &bytes);
    return shards;
}

/* Writes all files of tensors. If there are several files, also writes the index from tensors to
 * files. */
static bool write_hf_tensors(HfWriter *w, const HfTensorList *list, const char *folder, Error *error) {
    const char *stem = hf_stem(w->export->config);
    size_t shards = count_shards(w, list), first = 0;
    json_t *map = json_object();
    int64_t total = 0, bytes;
    bool written = shards < 100000 || error_set(error, ERROR_USAGE, "the export would have %zu files: set a larger file size", shards);
    for (size_t i = 0; i < shards && written; i++) {
        size_t count = shard_count(w, list, first, &bytes);
        char *name = shard_name(stem, i, shards), *path = memory_format("%s/%s", folder, name);
        for (size_t j = first; j < first + count; j++) hf_put(map, list->items[j].name, json_string(name));
        written = write_shard(w, &list->items[first], count, bytes, path, error);
        total += bytes;
        first += count;
        free(path);
        free(name);
    }
    SCOPED_FREE char *index = memory_format("%s.safetensors.index.json", stem);
    if (shards > 1 && written)
        written = write_model_json(
            folder, index, json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)total, "weight_map", map), error);
    json_decref(map);
    return written;
}

/* Appends the copies of the embedding and the head that published folders have in the layer for multi-token prediction. */
static void append_prediction_copies(HfTensorList *list, const ModelConfig *config, const Graph *graph) {
    const char *head = config->tied ? HF_TABLE : HF_HEAD;
    const struct { const char *name, *of; } copies[] = {{HF_PREDICTION_TABLE, HF_TABLE}, {HF_PREDICTION_HEAD, head}};
    for (int i = 0; i < 2 && config->mtp; i++) {
        HfParameter parameter = {.index = graph_find_parameter(graph, copies[i].of), .config = config};
        parameter.p = &graph->parameters[parameter.index];
        hf_append(list, memory_format("%s.%lld.%s", family_of(config)->layers, (long long)config->layers, copies[i].name), &parameter);
    }
}

static bool write_weights(const HfExport *export, const Graph *graph, const char *folder, Error *error) {
    HfWriter writer;
    HfTensorList numbers = hf_tensors(export->config, graph, export->mxfp4 ? hf_list_mxfp4 : NULL), list;
    append_prediction_copies(&numbers, export->config, graph);
    list = numbers;
    if (export->fp8) list = hf_fp8_tensors(&numbers, graph);
    bool written = hf_writer_start(&writer, export, graph, error) && write_hf_tensors(&writer, &list, folder, error);
    hf_writer_end(&writer);
    if (export->fp8) hf_tensors_free(&list);
    hf_tensors_free(&numbers);
    return written;
}

static bool copy_file(const char *from, const char *to, const char *name, Error *error) {
    int64_t length;
    char *source = memory_format("%s/%s", from, name), *target = memory_format("%s/%s", to, name);
    bool there = file_exists(source);
    char *content = there ? file_read(source, COPY_LIMIT, &length, error) : NULL;
    bool copied = !there || (content && file_write(target, content, length, error));
    free(content);
    free(target);
    free(source);
    return copied;
}

/* Writes the file unless it was copied. Takes ownership of `content`. */
static bool write_missing(const char *folder, const char *name, json_t *content, Error *error) {
    SCOPED_FREE char *path = memory_format("%s/%s", folder, name);
    FileKind kind = file_kind(path, NULL);
    if (kind == FILE_ABSENT) return write_model_json(folder, name, content, error);
    json_decref(content);
    return kind != FILE_UNREADABLE || file_fail(error, "look for", path);
}

/* A copy of a folder has the same files; a GGUF file's tokenizer is converted to files. A run's
 * tokenizer may lack tokenizer_config.json; without it transformers would split text as the class's
 * usual tokenizer does. */
bool hf_write_tokenizer(const HfExport *export, const char *folder, Error *error) {
    bool file = export->source && file_kind(export->source, NULL) == FILE_REGULAR, written = true;
    for (int i = 0; export->source && !file && i < COPIED_FILES && written; i++)
        written = copy_file(export->source, folder, copied_files[i], error);
    if (export->source && !file && written) written = tokenizer_copy_side_files(export->source, folder, error);
    bool has_tokenizer = file && (!gguf_is_file(export->source) || gguf_has_tokenizer(export->source));
    if (has_tokenizer && !export->bytes) written = tokenizer_copy(export->source, folder, error);
    if ((export->reader && !file) || !written || model_makes_images(export->config)) return written;
    const char *end = export->bytes ? BYTE_SEPARATOR_TEXT : json_string_value(json_object_get(export->origin, "eos_token"));
    SCOPED_FREE char *tokenizer = memory_format("%s/tokenizer.json", folder);
    return write_missing(folder, "generation_config.json", generation_config(export), error) &&
           (!export->bytes || write_model_json(folder, "tokenizer.json", byte_tokenizer(), error)) &&
           (!file_exists(tokenizer) || write_missing(folder, "tokenizer_config.json", hf_tokenizer_config(export->config, end), error));
}

static bool write_files(const HfExport *export, const Graph *graph, const char *folder, Error *error) {
    return write_model_json(folder, "config.json", hf_config(export), error) && hf_write_tokenizer(export, folder, error) &&
           (!export->new_tokens || tokenizer_add_new(folder, export->new_tokens, export->first_new, error)) &&
           write_weights(export, graph, folder, error);
}

bool hf_write(const HfExport *export, const char *folder, bool overwrite, Error *error) {
    if (!hf_check(export->config, error) || (export->fp8 && !hf_check_fp8(export->config, error)) ||
        (export->mxfp4 && !hf_check_mxfp4(export->config, error)) || !check_model_folder(folder, overwrite, error))
        return false;
    SCOPED(file_folder_close) FolderDraft draft = {0};
    Model model = model_describe(export->config, NULL, export->precision);
    bool written = hf_check_biases(export, model.graph, error) && file_folder_begin(&draft, folder, error) &&
                   write_files(export, model.graph, draft.temporary, error) && file_folder_commit(&draft, error);
    model_free(&model);
    return written;
}
