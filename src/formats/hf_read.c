/* Reads Hugging Face folders and GGUF files. A reader keeps the files mapped while it converts
 * their tensors into the caller's memory, one parameter at a time and each with all threads. The
 * files are thus read once and in order. The reader drops pages after use, so a model of any size
 * takes no more memory than its largest parameter. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bf16.h"
#include "base/file.h"
#include "base/element.h"
#include "base/json_reader.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "ckpt/ckpt.h"
#include "data/byte_tokenizer.h"
#include "formats/hf_internal.h"

enum { FILE_LIMIT = 10000 }; /* files per folder */

static bool has_file(const char *folder, const char *name) {
    char *path = memory_format("%s/%s", folder, name);
    bool there = file_exists(path);
    free(path);
    return there;
}

static json_t *read_json(const char *folder, const char *name, Error *error) {
    SCOPED_FREE char *path = memory_format("%s/%s", folder, name);
    return json_read(path, ERROR_CHECKPOINT, error);
}

bool hf_is_model(const char *folder) { return has_file(folder, "config.json") || gguf_is_file(folder); }

/* -- The files ----------------------------------------------------------------------------------------------------- */

typedef struct WeightEntry {
    const StoredTensor *tensor;
    const GgufType *type; /* for GGUF, whose StoredTensor has a type only if it is BF16; NULL: safetensors */
    const char *path;     /* of the tensor's file */
    bool used;
} WeightEntry;

/* The files of a model: safetensors, or one GGUF file. */
typedef struct Folder {
    Safetensors *files;
    Gguf gguf;
    StoredTensor *gguf_tensors;
    char **paths;
    size_t count;
    WeightEntry *entries; /* of all files, sorted by name */
    size_t entry_count;
} Folder;

struct HfReader {
    Folder folder;
    const Graph *graph;
    HfTensorList list;     /* items to read, in parameter order */
    WeightEntry **entries; /* the entry of each item */
    WeightEntry **scales;  /* of each item in FP8 (hf_fp8.c); NULL for others */
    int *first;            /* the first item of each parameter, followed by the end */
    double scale;          /* factor of the logits, applied to parameter `scaled` */
    const char *scaled;
    const ModelConfig *config;
};

static int compare_entries(const void *left, const void *right) {
    return strcmp(((const WeightEntry *)left)->tensor->name, ((const WeightEntry *)right)->tensor->name);
}

static WeightEntry *find_tensor_file(const Folder *folder, const char *name) {
    StoredTensor wanted = {.name = name};
    WeightEntry key = {.tensor = &wanted};
    return folder->entry_count ? bsearch(&key, folder->entries, folder->entry_count, sizeof key, compare_entries) : NULL;
}

static void folder_close(Folder *folder) {
    for (size_t i = 0; i < folder->count; i++) {
        if (folder->files) safetensors_close(&folder->files[i]);
        free(folder->paths[i]);
    }
    gguf_close(&folder->gguf);
    free(folder->gguf_tensors);
    free(folder->files);
    free(folder->paths);
    free(folder->entries);
}

static bool open_weight_file(Folder *folder, const char *name, const char *file, Error *error) {
    folder->files = memory_resize(folder->files, (folder->count + 1) * sizeof *folder->files);
    folder->paths = memory_resize(folder->paths, (folder->count + 1) * sizeof *folder->paths);
    folder->files[folder->count] = (Safetensors){0};
    folder->paths[folder->count] = memory_format("%s/%s", name, file);
    if (safetensors_open(&folder->files[folder->count], folder->paths[folder->count], error)) return ++folder->count;
    free(folder->paths[folder->count]);
    return false;
}

/* Opens each file of the index once. Names with a slash are refused, because they would lead out of
 * the folder. */
static bool open_weight_files(Folder *folder, const char *name, const json_t *map, Error *error) {
    const char *tensor;
    json_t *value, *opened = json_object();
    bool good = true;
    json_object_foreach((json_t *)map, tensor, value) {
        const char *file = json_string_value(value);
        if (!name_is_plain(tensor) || (file && !name_is_plain(file)))
            good = error_set(error, ERROR_CHECKPOINT, "weight_map has a name with a control character");
        else if (!file || !file[0] || strchr(file, '/'))
            good = error_set(error, ERROR_CHECKPOINT, "weight_map maps tensor %s to something other than a file of this folder", tensor);
        else if (!json_object_get(opened, file))
            good = (folder->count < FILE_LIMIT || error_set(error, ERROR_CHECKPOINT, "the index names more than %d files", FILE_LIMIT)) &&
                   open_weight_file(folder, name, file, error) && json_object_set_new(opened, file, json_true()) == 0;
        if (!good) break;
    }
    json_decref(opened);
    return good;
}

/* The index must agree with the files. */
static bool check_index(const Folder *folder, const char *name, const json_t *map, Error *error) {
    const char *tensor;
    json_t *value;
    json_object_foreach((json_t *)map, tensor, value) {
        const WeightEntry *entry = find_tensor_file(folder, tensor);
        const char *file = json_string_value(value);
        if (!entry || strcmp(strrchr(entry->path, '/') + 1, file))
            return error_set(error, ERROR_CHECKPOINT, "%s/%s: tensor %s is missing, although the index lists it there", name, file, tensor);
    }
    for (size_t i = 0; i < folder->entry_count; i++)
        if (!json_object_get(map, folder->entries[i].tensor->name))
            return error_set(
                error, ERROR_CHECKPOINT, "%s: tensor %s is not in the index", folder->entries[i].path, folder->entries[i].tensor->name);
    return true;
}

static bool list_entries(Folder *folder, Error *error) {
    size_t total = 0;
    for (size_t i = 0; i < folder->count; i++) total += folder->files[i].count;
    folder->entries = memory_allocate((total + 1) * sizeof *folder->entries);
    for (size_t i = 0; i < folder->count; i++)
        for (size_t j = 0; j < folder->files[i].count; j++)
            folder->entries[folder->entry_count++] = (WeightEntry){.tensor = &folder->files[i].tensors[j], .path = folder->paths[i]};
    qsort(folder->entries, total, sizeof *folder->entries, compare_entries);
    for (size_t i = 1; i < total; i++)
        if (!compare_entries(&folder->entries[i - 1], &folder->entries[i]))
            return error_set(error, ERROR_CHECKPOINT, "%s: tensor %s is also in %s", folder->entries[i].path,
                folder->entries[i].tensor->name, folder->entries[i - 1].path);
    return true;
}

static bool open_indexed(Folder *folder, const char *name, const char *index_name, Error *error) {
    json_t *index = read_json(name, index_name, error);
    const json_t *map = json_object_get(index, "weight_map");
    bool good = index && (json_object_size(map) > 0 || error_set(error, ERROR_CHECKPOINT, "the index has no weight_map"));
    good = good && open_weight_files(folder, name, map, error);
    if (index && !good) error_context(error, "%s/%s", name, index_name);
    good = good && list_entries(folder, error) && check_index(folder, name, map, error);
    json_decref(index);
    return good;
}

static bool open_gguf(Folder *folder, const char *name, Error *error) {
    if (!gguf_open(&folder->gguf, name, error)) return false;
    folder->paths = memory_allocate(sizeof *folder->paths);
    folder->paths[folder->count++] = memory_copy_string(name);
    folder->gguf_tensors = memory_allocate((folder->gguf.tensor_count + 1) * sizeof *folder->gguf_tensors);
    folder->entries = memory_allocate((folder->gguf.tensor_count + 1) * sizeof *folder->entries);
    for (; folder->entry_count < folder->gguf.tensor_count; folder->entry_count++) {
        const GgufTensor *from = &folder->gguf.tensors[folder->entry_count];
        StoredTensor *tensor = &folder->gguf_tensors[folder->entry_count];
        bool bf16 = from->type == gguf_type_named("BF16");
        *tensor = (StoredTensor){.name = from->name, .type = bf16 ? STORED_BF16 : STORED_F32, .rank = from->rank, .data = from->data};
        memcpy(tensor->shape, from->shape, sizeof from->shape);
        folder->entries[folder->entry_count] = (WeightEntry){.tensor = tensor, .type = from->type, .path = folder->paths[0]};
    }
    return true;
}

static bool folder_open(Folder *folder, const char *name, const ModelConfig *config, Error *error) {
    *folder = (Folder){0};
    if (gguf_is_file(name)) return open_gguf(folder, name, error);
    SCOPED_FREE char *file = memory_format("%s.safetensors", hf_stem(config)), *index = memory_format("%s.index.json", file);
    if (has_file(name, file)) return open_weight_file(folder, name, file, error) && list_entries(folder, error);
    if (has_file(name, index)) return open_indexed(folder, name, index, error);
    return error_set(error, ERROR_CHECKPOINT, "%s has neither %s nor %s", name, file, index);
}

/* -- The configuration of a folder -------------------------------------------------------------------------------- */

/* Returns the prefix of the names of layers. */
static const char *layers_prefix(const Folder *folder, const ModelConfig *config) {
    return folder->gguf_tensors ? "blk" : family_of(config)->layers;
}

static bool has_prediction_layer(const Folder *folder, const ModelConfig *config, int64_t layer) {
    SCOPED_FREE char *mark =
        memory_format("%s.%lld.%seh_proj.weight", layers_prefix(folder, config), (long long)layer, folder->gguf_tensors ? "nextn." : "");
    return find_tensor_file(folder, mark);
}

/* Returns whether the tensor belongs to a layer for multi-token prediction after the model's own
 * layers (DeepSeek-V3). transformers does not load such layers either. */
static bool is_for_prediction(const Folder *folder, const char *name, const ModelConfig *config) {
    const char *layers = layers_prefix(folder, config);
    size_t length = strlen(layers);
    char *end;
    if (!hf_class(config)->skips_prediction) return false;
    if (starts_with(name, "mtp.")) return true;
    if (!starts_with(name, layers) || name[length] != '.') return false;
    long long layer = strtoll(name + length + 1, &end, 10);
    return end > name + length + 1 && *end == '.' && layer >= config->layers && has_prediction_layer(folder, config, layer);
}

/* Describes the tensors for multi-token prediction of a folder, none of which is read; NULL: there are none. */
static char *describe_unread_prediction(const Folder *folder, const ModelConfig *config) {
    const char *first = NULL;
    size_t count = 0;
    for (size_t i = 0; i < folder->entry_count; i++) {
        const char *name = folder->entries[i].tensor->name;
        if (!is_for_prediction(folder, name, config)) continue;
        if (!count++) first = name;
    }
    if (!count) return NULL;
    bool several = has_prediction_layer(folder, config, config->layers) && has_prediction_layer(folder, config, config->layers + 1);
    return memory_format(
        "%zu tensors for multi-token prediction (%s%s) are not read%s: training and generation work without them, but models "
        "that smelt writes from these weights do not have them",
        count, first, count > 1 ? ", ..." : "", several ? ", because smelt reads only models with one such layer" : "");
}

/* Sets model.mtp if the folder has one layer for multi-token prediction that its family reads. config.json counts it also
 * where transformers has dropped the layer. A folder without weights has none. */
static void find_prediction_layer(const char *name, HfModel *model) {
    Folder folder;
    Error unread = {0};
    ModelConfig *config = &model->config;
    if (!hf_class(config)->skips_prediction) return;
    if (folder_open(&folder, name, config, &unread)) {
        config->mtp = !folder.gguf_tensors && family_has(family_of(config), "model.mtp") &&
                      has_prediction_layer(&folder, config, config->layers) && !has_prediction_layer(&folder, config, config->layers + 1);
        if (!config->mtp) model->unread = describe_unread_prediction(&folder, config);
    }
    folder_close(&folder);
}

/* diffusers does not record the type of a folder's tensors. */
static bool read_stored_precision(const char *name, HfModel *model, Error *error) {
    Folder folder;
    bool opened = folder_open(&folder, name, &model->config, error);
    if (opened) model->precision = folder.entry_count && folder.entries[0].tensor->type != STORED_F32 ? PRECISION_BF16 : PRECISION_FP32;
    folder_close(&folder);
    return opened;
}

bool hf_read(const char *folder, HfModel *model, Error *error) {
    if (gguf_is_file(folder)) return gguf_read_model(folder, model, error) && (find_prediction_layer(folder, model), true);
    *model = (HfModel){.content = read_json(folder, "config.json", error)};
    if (!model->content) return false;
    if (!hf_parse_config(model->content, &model->config, &model->precision, &model->warnings, error)) {
        hf_release(model);
        return error_context(error, "%s/config.json", folder);
    }
    if (byte_tokenizer_is(folder, &model->bytes, error) &&
        (hf_class(&model->config)->model_type || read_stored_precision(folder, model, error)))
        return find_prediction_layer(folder, model), true;
    hf_release(model);
    return false;
}

void hf_release(HfModel *model) {
    json_decref(model->content);
    free(model->warnings);
    free(model->unread);
    model->content = NULL;
    model->warnings = model->unread = NULL;
}

/* -- Converting ---------------------------------------------------------------------------------------------------- */

/* Loads element `index` of a file's tensor, which may be unaligned. */
static inline __attribute__((always_inline)) float load(StoredType type, const char *source, int64_t index) {
    uint16_t half;
    float value;
    if (type == STORED_F32) return memcpy(&value, source + index * 4, 4), value;
    memcpy(&half, source + index * 2, 2);
    return type == STORED_BF16 ? bf16_to_float(half) : fp16_to_float(half);
}

/* Converts on all threads. Compiled once for each pair of types in hf_convert, so that its loop has
 * no branches. */
static inline __attribute__((always_inline)) void convert(size_t to, void *target, StoredType from, const char *source, int64_t count) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++) element_set(to, target, i, load(from, source, i));
}

void hf_convert(size_t to, void *target, StoredType from, const char *source, int64_t count) {
    if (to == sizeof(float) && from == STORED_F32) convert(sizeof(float), target, STORED_F32, source, count);
    else if (to == sizeof(float) && from == STORED_BF16) convert(sizeof(float), target, STORED_BF16, source, count);
    else if (to == sizeof(float)) convert(sizeof(float), target, STORED_F16, source, count);
    else if (to == sizeof(uint16_t) && from == STORED_F32) convert(sizeof(uint16_t), target, STORED_F32, source, count);
    else if (to == sizeof(uint16_t) && from == STORED_BF16) memcpy(target, source, (size_t)count * sizeof(uint16_t));
    else if (to == sizeof(uint16_t)) convert(sizeof(uint16_t), target, STORED_F16, source, count);
    else convert(to, target, from, source, count);
}

/* Converts matrices that are stored in another order. A thread takes tiles whose stored elements it
 * reads again while they are in its cache. */
static void convert_rearranged(size_t to, void *target, StoredType from, const char *source, const HfTensor *item) {
    enum { TILE = 64 };
    const int64_t rows = hf_rows(item), columns = hf_columns(item), matrices = item->count / (rows * columns);
#pragma omp parallel for collapse(3) schedule(static)
    for (int64_t m = 0; m < matrices; m++)
        for (int64_t top = 0; top < rows; top += TILE)
            for (int64_t left = 0; left < columns; left += TILE)
                for (int64_t r = top; r < rows && r < top + TILE; r++)
                    for (int64_t c = left; c < columns && c < left + TILE; c++)
                        element_set(to, target, (m * rows + r) * columns + c,
                            load(from, source, m * rows * columns + hf_stored_element(item, r, c)));
}

/* Converts a row of a GGUF tensor, whose blocks do not cross rows. `space` holds a row of
 * floats. */
static void convert_row(size_t to, char *target, const GgufType *type, const unsigned char *blocks, int64_t columns, float *space) {
    if (to == sizeof *space) {
        type->decode(blocks, (float *)target, columns);
        return;
    }
    type->decode(blocks, space, columns);
    for (int64_t i = 0; i < columns; i++) element_set(to, target, i, space[i]);
}

/* The same for a GGUF row that is stored in another order or form. */
static void restore_row(
    size_t to, char *target, const WeightEntry *entry, const unsigned char *blocks, const HfTensor *item, float *space) {
    int64_t columns = item->shape[item->rank - 1];
    entry->type->decode(blocks, space, columns);
    for (int64_t i = 0; i < columns; i++) {
        float stored = space[hf_stored_column(item, i, columns)];
        element_set(to, target, i, item->decays ? (float)log(-(double)stored) : stored);
    }
}

static void convert_blocks(size_t to, char *target, const WeightEntry *entry, const HfTensor *item) {
    int64_t columns = item->shape[item->rank - 1], row_bytes = gguf_bytes(entry->type, columns);
    const unsigned char *blocks = (const unsigned char *)entry->tensor->data + gguf_bytes(entry->type, item->offset);
#pragma omp parallel
    {
        SCOPED_FREE float *space = memory_allocate((size_t)columns * sizeof *space);
#pragma omp for schedule(static)
        for (int64_t r = 0; r < item->count / columns; r++) {
            char *row = target + r * columns * (int64_t)to;
            const unsigned char *stored = blocks + hf_stored_row(item, r) * row_bytes;
            if (hf_changes_rows(item)) restore_row(to, row, entry, stored, item, space);
            else convert_row(to, row, entry->type, stored, columns, space);
        }
    }
}

/* -- Weights ------------------------------------------------------------------------------------------------------- */

static void format_shape(char text[128], int rank, const int64_t *shape) {
    int used = snprintf(text, 128, "[");
    for (int i = 0; i < rank && used < 100; i++) used += snprintf(text + used, 128 - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
    snprintf(text + used, 128 - used, "]");
}

static int64_t stored_elements(const HfTensor *wanted) {
    int64_t elements = 1;
    for (int i = 0; i < wanted->rank; i++) elements *= wanted->shape[i];
    return elements;
}

/* GGUF files may have leading dimensions of 1 that smelt does not write. */
static bool same_shape(const WeightEntry *entry, const HfTensor *wanted) {
    const StoredTensor *tensor = entry->tensor;
    int extra = 0;
    while (entry->type && extra < tensor->rank - wanted->rank && tensor->shape[extra] == 1) extra++;
    return tensor->rank - extra == wanted->rank && !memcmp(tensor->shape + extra, wanted->shape, wanted->rank * sizeof *wanted->shape);
}

static bool check_wanted_tensor(const WeightEntry *entry, const HfTensor *wanted, bool in_fp8, Error *error) {
    const StoredTensor *tensor = entry->tensor;
    char stored[128], expected[128];
    bool quantized = wanted->form != HF_NUMBERS;
    if (quantized && tensor->type != STORED_U8)
        return error_set(error, ERROR_CHECKPOINT, "%s: tensor %s has type %s, but values in MXFP4 must be U8", entry->path, tensor->name,
            stored_type_name(tensor->type));
    if (wanted->form == HF_FP4 && stored_elements(wanted) * 2 != wanted->count)
        return error_set(error, ERROR_CHECKPOINT, "%s: tensor %s is in MXFP4, but the rows of its matrices are not multiples of 32 columns",
            entry->path, tensor->name);
    if (!quantized && !in_fp8 && tensor->type != STORED_F32 && tensor->type != STORED_BF16 && tensor->type != STORED_F16)
        return error_set(error, ERROR_CHECKPOINT, "%s: tensor %s has type %s, but weights must be F32, BF16 or F16", entry->path,
            tensor->name, stored_type_name(tensor->type));
    if (same_shape(entry, wanted)) return true;
    format_shape(stored, tensor->rank, tensor->shape);
    format_shape(expected, wanted->rank, wanted->shape);
    return error_set(error, ERROR_CHECKPOINT, "%s: tensor %s has shape %s, but %s %s", entry->path, tensor->name, stored,
        entry->type ? "the file's keys require" : "config.json requires", expected);
}

/* Finds the scales of a tensor in FP8; *scales is NULL for other tensors. */
static bool match_scales(const Folder *folder, const WeightEntry *entry, const HfTensor *wanted, WeightEntry **scales, Error *error) {
    *scales = NULL;
    if (entry->type || wanted->form != HF_NUMBERS || entry->tensor->type != STORED_F8_E4M3) return true;
    SCOPED_FREE char *name = memory_format("%s_scale_inv", wanted->name);
    HfTensor grid = *wanted;
    grid.name = name;
    if (!(*scales = find_tensor_file(folder, name)))
        return error_set(
            error, ERROR_CHECKPOINT, "%s: tensor %s is in FP8, but its scales, %s, are missing", entry->path, wanted->name, name);
    if (wanted->rank < 2 || hf_is_rearranged(wanted))
        return error_set(
            error, ERROR_CHECKPOINT, "%s: tensor %s is in FP8, which smelt reads only for matrices [out, in]", entry->path, wanted->name);
    for (int i = wanted->rank - 2; i < wanted->rank; i++) grid.shape[i] = hf_fp8_blocks(wanted->shape[i]);
    (*scales)->used = true;
    return check_wanted_tensor(*scales, &grid, false, error);
}

/* Finds and checks the tensor of every item of the list. */
static bool match_tensors(HfReader *reader, const char *name, Error *error) {
    Folder *folder = &reader->folder;
    reader->entries = memory_allocate((reader->list.count + 1) * sizeof *reader->entries);
    reader->scales = memory_allocate((reader->list.count + 1) * sizeof *reader->scales);
    for (size_t i = 0; i < reader->list.count; i++) {
        const HfTensor *wanted = &reader->list.items[i];
        WeightEntry *entry = reader->entries[i] = find_tensor_file(folder, wanted->name);
        if (!entry)
            return error_set(error, ERROR_CHECKPOINT, "%s: tensor %s is missing, but %s it", folder->count == 1 ? folder->paths[0] : name,
                wanted->name, folder->gguf_tensors ? "the file's keys require" : "config.json requires");
        if (!match_scales(folder, entry, wanted, &reader->scales[i], error)) return false;
        if (!check_wanted_tensor(entry, wanted, reader->scales[i], error)) return false;
        entry->used = true;
    }
    return true;
}

/* Returns the embedding table among the model's tensors (`used`): another family's tensor of such a
 * name was never checked. */
static const WeightEntry *embedding_of(const Folder *folder) {
    static const char *const names[] = {"model.embed_tokens.weight", "transformer.wte.weight", "wte.weight", "token_embd.weight"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const WeightEntry *entry = find_tensor_file(folder, names[i]);
        if (entry && entry->used) return entry;
    }
    return NULL;
}

/* Returns the bytes of `count` elements of a tensor; with MXFP4, `count` is in bytes of the file. */
static int64_t entry_bytes(const WeightEntry *entry, int64_t count) {
    return entry->type ? gguf_bytes(entry->type, count) : count * (int64_t)stored_type_bytes(entry->tensor->type);
}

static bool same_matrix(const WeightEntry *left, const WeightEntry *right) {
    const StoredTensor *a = left->tensor, *b = right->tensor;
    bool same_form = a->rank == 2 && b->rank == 2 && left->type == right->type && a->type == b->type &&
                     !memcmp(a->shape, b->shape, 2 * sizeof *a->shape);
    return same_form && !memcmp(a->data, b->data, (size_t)entry_bytes(left, a->shape[0] * a->shape[1]));
}

static bool is_head(const WeightEntry *entry) {
    return !strcmp(entry->tensor->name, "lm_head.weight") || (entry->type && !strcmp(entry->tensor->name, "output.weight"));
}

/* Files may hold a copy of the table as the head of a tied model, and buffers of older programs:
 * frequencies and masks. A GGUF file's frequencies were read with its configuration. */
static bool is_redundant(const Folder *folder, const WeightEntry *entry, const ModelConfig *config) {
    const StoredTensor *tensor = entry->tensor;
    const WeightEntry *table = embedding_of(folder);
    if (ends_with(tensor->name, ".rotary_emb.inv_freq") || (entry->type && !strcmp(tensor->name, GGUF_ROPE_FACTORS))) return true;
    for (const char *const *end = hf_class(config)->buffers; end && *end; end++)
        if (ends_with(tensor->name, *end)) return true;
    if (is_for_prediction(folder, tensor->name, config)) return true;
    return config->tied && is_head(entry) && table && same_matrix(table, entry);
}

/* Checks the layer for multi-token prediction, which is read: it has no other tensors than the graph, except copies of the
 * model's embedding and head. */
static bool check_prediction_layer(const HfReader *reader, Error *error) {
    const Folder *folder = &reader->folder;
    const ModelConfig *config = reader->config;
    SCOPED_FREE char *layer = memory_format("%s.%lld.", family_of(config)->layers, (long long)config->layers);
    SCOPED_FREE char *mark = memory_format("%seh_proj.weight", layer);
    if (graph_find_parameter(reader->graph, mark) < 0) return true;
    for (size_t i = 0; i < folder->entry_count; i++) {
        const WeightEntry *entry = &folder->entries[i];
        const char *name = entry->tensor->name;
        if (entry->used || !starts_with(name, layer)) continue;
        bool table = !strcmp(name + strlen(layer), HF_PREDICTION_TABLE), head = !strcmp(name + strlen(layer), HF_PREDICTION_HEAD);
        const WeightEntry *of = find_tensor_file(folder, table || config->tied ? HF_TABLE : HF_HEAD);
        if ((table || head) && of && same_matrix(of, entry)) continue;
        return error_set(error, ERROR_CHECKPOINT,
            "%s: tensor %s %s: leave out the layer for multi-token prediction (smelt train model.mtp=0, smelt convert mtp=false)",
            entry->path, name,
            table || head ? "differs from the model's, but smelt shares it with the model"
                          : "is not part of the layer that smelt computes");
    }
    return true;
}

static bool check_rest(const Folder *folder, const ModelConfig *config, Error *error) {
    for (size_t i = 0; i < folder->entry_count; i++) {
        const WeightEntry *entry = &folder->entries[i];
        if (entry->used || is_redundant(folder, entry, config)) continue;
        return error_set(error, ERROR_CHECKPOINT, "%s: tensor %s %s", entry->path, entry->tensor->name,
            config->tied && is_head(entry) ? "differs from the embedding, but config.json says that they are tied"
            : entry->type                  ? "is not part of the model that the file's keys describe"
                                           : "is not part of the model that config.json describes");
    }
    return true;
}

/* Reads the factor of HfClass.scaled. */
static bool read_fp8_scale(HfReader *reader, const char *name, const ModelConfig *config, Error *error) {
    HfModel model;
    reader->scale = 1;
    if (!hf_class(config)->logit_scale) return true;
    if (!hf_read(name, &model, error)) return false;
    reader->scale = hf_class(config)->logit_scale(model.content, config);
    reader->scaled = hf_class(config)->scaled;
    hf_release(&model);
    return true;
}

static bool is_scaled(const HfReader *reader, int parameter) {
    return reader->scale != 1 && !strcmp(reader->graph->parameters[parameter].name, reader->scaled);
}

/* values = values * scale + offset */
static void change_values(Precision precision, void *values, int64_t count, double scale, double offset) {
    for (int64_t i = 0; i < count; i++) {
        if (precision == PRECISION_FP64) ((double *)values)[i] = ((double *)values)[i] * scale + offset;
        else ((float *)values)[i] = ((float *)values)[i] * (float)scale + (float)offset;
    }
}

/* GGUF files have gains without an offset. */
static double gain_offset(const HfReader *reader, int parameter) {
    return reader->folder.gguf_tensors ? 0 : hf_gain_offset(reader->config, &reader->graph->parameters[parameter]);
}

/* The list is in parameter order. */
static void index_parameters(HfReader *reader) {
    int count = reader->graph->parameter_count, at = 0;
    reader->first = memory_allocate((count + 1) * sizeof *reader->first);
    for (int i = 0; i <= count; i++) {
        while ((size_t)at < reader->list.count && reader->list.items[at].parameter < i) at++;
        reader->first[i] = at;
    }
}

static bool has_mark(const Folder *folder, const char *mark) {
    if (*mark != '.') return find_tensor_file(folder, mark);
    for (size_t i = 0; i < folder->entry_count; i++)
        if (ends_with(folder->entries[i].tensor->name, mark)) return true;
    return false;
}

/* Returns the lister for the tensor names of a folder. */
static HfLister *folder_layout(const Folder *folder, const ModelConfig *config) {
    if (folder->gguf_tensors) return hf_list_gguf;
    for (const HfLayout *layout = hf_class(config)->layouts; layout->mark; layout++)
        if (has_mark(folder, layout->mark)) return layout->list;
    return NULL;
}

HfReader *hf_reader_open(const char *name, const ModelConfig *config, const Graph *graph, Error *error) {
    HfReader *reader = memory_allocate(sizeof *reader);
    *reader = (HfReader){.graph = graph, .config = config};
    bool good = folder_open(&reader->folder, name, config, error);
    if (good) {
        reader->list = hf_tensors(config, graph, folder_layout(&reader->folder, config));
        index_parameters(reader);
        good = match_tensors(reader, name, error) && check_rest(&reader->folder, config, error) && check_prediction_layer(reader, error) &&
               read_fp8_scale(reader, name, config, error);
    }
    if (good) return reader;
    hf_reader_close(reader);
    return NULL;
}

void hf_reader_close(HfReader *reader) {
    if (!reader) return;
    hf_tensors_free(&reader->list);
    folder_close(&reader->folder);
    free(reader->entries);
    free(reader->scales);
    free(reader->first);
    free(reader);
}

/* Drops the whole pages of an item from memory; a later use reads them from the file again. */
static void drop_tensor_pages(const WeightEntry *entry, const HfTensor *item) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)entry->tensor->data + entry_bytes(entry, item->offset),
              end = begin + entry_bytes(entry, hf_elements(item));
    begin = (begin + page - 1) / page * page;
    end = end / page * page;
    if (begin < end) madvise((void *)begin, end - begin, MADV_DONTNEED);
}

static void convert_fp8(size_t to, void *target, const StoredTensor *values, const StoredTensor *stored, const HfTensor *item) {
    int64_t count = hf_fp8_blocks(hf_rows(item)) * hf_fp8_blocks(hf_columns(item)) * (item->count / (hf_rows(item) * hf_columns(item)));
    SCOPED_FREE float *scales = memory_allocate((size_t)count * sizeof *scales);
    hf_convert(sizeof *scales, scales, stored->type, stored->data, count);
    hf_fp8_read(to, target, item, values->data, scales);
}

/* Converts a parameter to elements of `to` bytes (base/element.h). */
static void read_parameter_values(const HfReader *reader, int parameter, size_t to, void *values) {
    for (int i = reader->first[parameter]; i < reader->first[parameter + 1]; i++) {
        const HfTensor *item = &reader->list.items[i];
        const WeightEntry *entry = reader->entries[i];
        const StoredTensor *tensor = entry->tensor;
        char *target = (char *)values + item->first * (int64_t)to;
        if (item->form == HF_FP4) hf_read_mxfp4(to, target, item, tensor->data, reader->entries[i + 1]->tensor->data);
        else if (item->form == HF_FP4_SCALES) continue; /* read with the values */
        else if (entry->type) convert_blocks(to, target, entry, item);
        else if (reader->scales[i]) convert_fp8(to, target, entry->tensor, reader->scales[i]->tensor, item);
        else if (hf_is_rearranged(item)) convert_rearranged(to, target, tensor->type, tensor->data, item);
        else hf_convert(to, target, tensor->type, tensor->data, item->count);
        drop_tensor_pages(entry, item);
    }
}

void hf_reader_load(const HfReader *reader, int parameter, void *values) {
    const Parameter *p = &reader->graph->parameters[parameter];
    Precision precision = reader->graph->precision;
    size_t to = precision_bytes(precision, TYPE_WIDE);
    if (reader->first[parameter] == reader->first[parameter + 1]) memset(values, 0, p->count * to);
    read_parameter_values(reader, parameter, to, values);
    double scale = is_scaled(reader, parameter) ? reader->scale : 1, offset = gain_offset(reader, parameter);
    if (scale != 1 || offset != 0) change_values(precision, values, p->count, scale, offset);
}

void hf_reader_load_bf16(const HfReader *reader, int parameter, uint16_t *values) {
    assert(!is_scaled(reader, parameter) && gain_offset(reader, parameter) == 0 && reader->first[parameter] < reader->first[parameter + 1]);
    read_parameter_values(reader, parameter, sizeof *values, values);
}

/* Consecutive items of the list are parts of one parameter. GGUF tensors are never used as they
 * are. */
static int find_item(const HfReader *reader, const HfTensor *wanted) {
    if (reader->folder.gguf_tensors || is_scaled(reader, wanted->parameter)) return -1;
    for (int i = reader->first[wanted->parameter]; i < reader->first[wanted->parameter + 1]; i++) {
        const HfTensor *item = &reader->list.items[i];
        if (reader->scales[i]) continue;
        bool same_order = item->transposed == wanted->transposed && item->paired == wanted->paired && item->form == wanted->form;
        if (item->first == wanted->first && item->count == wanted->count && same_order) return i;
    }
    return -1;
}

const StoredTensor *hf_reader_stored(const HfReader *reader, const HfTensor *wanted) {
    int item = find_item(reader, wanted);
    return item < 0 ? NULL : reader->entries[item]->tensor;
}

StoredType hf_reader_type(const HfReader *reader, int parameter) {
    int item = reader->first[parameter];
    if (item >= reader->first[parameter + 1]) return STORED_F32;
    bool quantized = reader->list.items[item].form == HF_FP4 || reader->scales[item];
    return quantized ? STORED_BF16 : reader->entries[item]->tensor->type; /* transformers also dequantizes to bf16 */
}

void hf_reader_done(const HfReader *reader, const HfTensor *wanted) {
    int item = find_item(reader, wanted);
    if (item >= 0) drop_tensor_pages(reader->entries[item], wanted);
}

bool hf_load_weights(const char *folder, const ModelConfig *config, const Graph *graph, void *master, Error *error) {
    HfReader *reader = hf_reader_open(folder, config, graph, error);
    for (int i = 0; i < graph->parameter_count && reader; i++) hf_reader_load(reader, i, parameter_in(&graph->parameters[i], master));
    bool loaded = reader != NULL;
    hf_reader_close(reader);
    return loaded;
}
