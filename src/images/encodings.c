/* Encodings of images and texts in safetensors files. A file is a bucket: all its images have one
 * resolution. A file is checked completely when it is opened, so that samples can be read without
 * further checks. An EncodingSet owns its maps; the system reads pages when samples need them.
 * Called by training, evaluation and sampling. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "images/encodings.h"
#include "model/model.h"

static bool refuse_encoding(const char *path, const StoredTensor *tensor, const char *wanted, Error *error) {
    char shape[128] = "";
    size_t used = 0;
    for (int i = 0; i < tensor->rank; i++)
        used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%" PRId64, i ? ", " : "", tensor->shape[i]);
    return error_set(error, ERROR_DATA, "%s: tensor %s is %s [%s], but this model needs F32, BF16 or F16 %s", path, tensor->name,
        stored_type_name(tensor->type), shape, wanted);
}

/* Finds a tensor of this rank with these sizes (-1: any); NULL if it differs. */
static const StoredTensor *find_tensor(
    const EncodingFile *file, const char *path, const char *name, int rank, const int64_t *sizes, const char *wanted, Error *error) {
    const StoredTensor *tensor = safetensors_find(&file->file, name);
    if (!tensor) {
        error_set(error, ERROR_DATA, "%s has no tensor %s: give a file of encodings (docs/flux.md describes its tensors)", path, name);
        return NULL;
    }
    if (tensor->rank == rank && tensor->shape[0] == 0) {
        error_set(error, ERROR_DATA, "%s has 0 samples in tensor %s: remove the file, or encode the images again", path, name);
        return NULL;
    }
    bool good = tensor->rank == rank && tensor->type <= STORED_F16;
    for (int i = 0; good && i < rank; i++) good = sizes[i] < 0 ? tensor->shape[i] > 0 : tensor->shape[i] == sizes[i];
    if (good) return tensor;
    refuse_encoding(path, tensor, wanted, error);
    return NULL;
}

/* `tokens` -1: any number. */
static bool take_encoding_text(EncodingFile *file, const char *path, const ModelConfig *model, int64_t tokens, Error *error) {
    char wanted[128], length[32] = "tokens";
    if (tokens >= 0) snprintf(length, sizeof length, "%" PRId64, tokens);
    snprintf(wanted, sizeof wanted, "[samples, %s, %" PRId64 "] (text tokens, model.text_width)", length, model->text_width);
    file->text = find_tensor(file, path, ENCODING_TEXT, 3, (const int64_t[]){-1, tokens, model->text_width}, wanted, error);
    if (!file->text) return false;
    file->samples = file->text->shape[0];
    snprintf(wanted, sizeof wanted, "[%" PRId64 ", %" PRId64 "] (samples, model.pooled_width)", file->samples, model->pooled_width);
    file->pooled = find_tensor(file, path, ENCODING_POOLED, 2, (const int64_t[]){file->samples, model->pooled_width}, wanted, error);
    return file->pooled;
}

static bool take_empty_text(EncodingFile *file, const char *path, const ModelConfig *model, Error *error) {
    char wanted[128];
    const int64_t tokens = file->text->shape[1];
    if (!safetensors_find(&file->file, ENCODING_EMPTY_TEXT) && !safetensors_find(&file->file, ENCODING_EMPTY_POOLED)) return true;
    snprintf(wanted, sizeof wanted, "[1, %" PRId64 ", %" PRId64 "] (text tokens, model.text_width)", tokens, model->text_width);
    file->empty_text = find_tensor(file, path, ENCODING_EMPTY_TEXT, 3, (const int64_t[]){1, tokens, model->text_width}, wanted, error);
    snprintf(wanted, sizeof wanted, "[1, %" PRId64 "] (model.pooled_width)", model->pooled_width);
    file->empty_pooled = !file->empty_text
                             ? NULL
                             : find_tensor(file, path, ENCODING_EMPTY_POOLED, 2, (const int64_t[]){1, model->pooled_width}, wanted, error);
    return file->empty_pooled;
}

static bool take_latents(EncodingFile *file, const char *path, const ModelConfig *model, Error *error) {
    char wanted[160];
    int64_t channels = model->channels / 4, most = 2 * (int64_t)IMAGE_GRID;
    snprintf(wanted, sizeof wanted,
        "[%" PRId64 ", %" PRId64 ", height, width] (samples, model.channels / 4; height and width even and at most %" PRId64 ")",
        file->samples, channels, most);
    const StoredTensor *latents =
        find_tensor(file, path, ENCODING_LATENTS, 4, (const int64_t[]){file->samples, channels, -1, -1}, wanted, error);
    if (!latents) return false;
    file->height = latents->shape[2];
    file->width = latents->shape[3];
    if (file->height % 2 || file->width % 2 || file->height > most || file->width > most)
        return refuse_encoding(path, latents, wanted, error);
    file->latents = latents;
    return true;
}

/* Refuses tensors that training does not read, such as a mask of the text, because users would
 * expect an effect. */
static bool check_tensor_names(const EncodingFile *file, Error *error) {
    static const char *const names[] = {ENCODING_LATENTS, ENCODING_TEXT, ENCODING_POOLED, ENCODING_EMPTY_TEXT, ENCODING_EMPTY_POOLED};
    for (size_t i = 0; i < file->file.count; i++) {
        const char *name = file->file.tensors[i].name;
        bool known = false;
        for (size_t k = 0; k < sizeof names / sizeof *names; k++) known = known || !strcmp(name, names[k]);
        if (!known)
            return error_set(error, ERROR_DATA, "%s: tensor %s is not used: remove it; encodings have only %s, %s and %s", file->path, name,
                names[0], names[1], names[2]);
    }
    return true;
}

static bool open_encoding_file(
    EncodingFile *file, const char *path, const ModelConfig *model, EncodingUse use, int64_t tokens, Error *error) {
    file->path = memory_copy_string(path);
    if (!safetensors_open(&file->file, path, error)) return error_recode(error, ERROR_DATA);
    bool latents = use == ENCODINGS_TRAIN || safetensors_find(&file->file, ENCODING_LATENTS);
    return take_encoding_text(file, path, model, tokens, error) && take_empty_text(file, path, model, error) &&
           (!latents || take_latents(file, path, model, error)) && (use != ENCODINGS_TRAIN || check_tensor_names(file, error));
}

/* File names copied from other systems may be in capitals. */
static bool is_encodings(const char *name) {
    static const char end[] = ".safetensors";
    size_t length = strlen(name);
    return length > strlen(end) && !strcasecmp(name + length - strlen(end), end);
}

/* Lists the paths of the set's files. */
static bool list_files(const char *path, FileList *paths, Error *error) {
    SCOPED(file_list_free) FileList list = {0};
    if (file_kind(path, NULL) != FILE_FOLDER) {
        file_list_add(paths, memory_copy_string(path), FILE_REGULAR);
        return true;
    }
    if (!file_list(path, &list, error)) return false;
    for (size_t i = 0; i < list.count; i++) {
        const FileEntry *entry = &list.entries[i];
        if (entry->name[0] == '.') continue; /* hidden: created by editors and copies */
        if (entry->kind == FILE_FOLDER)
            return error_set(error, ERROR_DATA,
                "%s/%s is a folder, but encodings are not read from subfolders: move its files up, or move it elsewhere", path,
                entry->name);
        if (is_encodings(entry->name)) file_list_add(paths, memory_format("%s/%s", path, entry->name), FILE_REGULAR);
    }
    return paths->count || error_set(error, ERROR_DATA, "%s has no .safetensors files: give a folder of encodings, or one file", path);
}

static bool open_files(EncodingSet *set, const ModelConfig *model, EncodingUse use, Error *error) {
    SCOPED(file_list_free) FileList paths = {0};
    if (!list_files(set->path, &paths, error)) return error_recode(error, ERROR_DATA);
    set->files = memory_allocate(paths.count * sizeof *set->files);
    set->first_sample = memory_allocate((paths.count + 1) * sizeof *set->first_sample);
    for (size_t i = 0; i < paths.count; i++) {
        EncodingFile *file = &set->files[set->file_count++];
        int64_t text = use == ENCODINGS_TRAIN ? model->text_tokens : i ? set->text_tokens : -1;
        if (!open_encoding_file(file, paths.entries[i].name, model, use, text, error)) return false;
        int64_t tokens = file->height / 2 * (file->width / 2);
        if (tokens > set->most_tokens) set->most_tokens = tokens;
        set->samples += file->samples;
        set->text_tokens = file->text->shape[1];
        set->first_sample[set->file_count] = set->samples;
    }
    return true;
}

bool encodings_open(EncodingSet *set, const char *path, const ModelConfig *model, EncodingUse use, Error *error) {
    *set = (EncodingSet){0};
    if (model->channels % 4)
        return error_set(error, ERROR_USAGE,
            "model.channels=%" PRId64 " is not a multiple of 4, although a token is 2 x 2 latents: use a multiple of 4", model->channels);
    set->path = memory_copy_string(path);
    if (open_files(set, model, use, error)) return true;
    encodings_close(set);
    return false;
}

void encodings_close(EncodingSet *set) {
    for (int64_t i = 0; i < set->file_count; i++) {
        safetensors_close(&set->files[i].file);
        free(set->files[i].path);
    }
    free(set->files);
    free(set->first_sample);
    free(set->path);
    *set = (EncodingSet){0};
}

const EncodingFile *encodings_find(const EncodingSet *set, int64_t sample, int64_t *index) {
    int64_t low = 0, high = set->file_count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        *(set->first_sample[middle] <= sample ? &low : &high) = middle;
    }
    *index = sample - set->first_sample[low];
    return &set->files[low];
}

/* Returns a tensor of one sample of `tensor`. */
static StoredTensor encoding_row(const StoredTensor *tensor, int64_t row, int64_t *bytes) {
    StoredTensor part = *tensor;
    *bytes = (int64_t)stored_type_bytes(tensor->type);
    for (int d = 1; d < tensor->rank; d++) *bytes *= tensor->shape[d];
    part.shape[0] = 1;
    part.data = (const char *)tensor->data + row * *bytes;
    return part;
}

bool encodings_are_finite(const EncodingSet *set, int64_t sample, char *text, size_t size) {
    int64_t row, bytes;
    const EncodingFile *file = encodings_find(set, sample, &row);
    const StoredTensor *const tensors[] = {file->latents, file->text, file->pooled, file->empty_text, file->empty_pooled};
    for (int i = 0; i < 5; i++) {
        Error error = {0};
        if (!tensors[i]) continue;
        StoredTensor part = encoding_row(tensors[i], i < 3 ? row : 0, &bytes);
        if (stored_check_finite(&part, &error)) continue;
        snprintf(text, size, "%s of sample %" PRId64 " of %s", part.name, row, file->path);
        return false;
    }
    return true;
}

bool encodings_need_empty_text(const EncodingSet *set, Error *error) {
    for (int64_t i = 0; i < set->file_count; i++)
        if (!set->files[i].empty_text)
            return error_set(error, ERROR_DATA,
                "%s has no tensor " ENCODING_EMPTY_TEXT ", which flow.caption_dropout needs: encode the images again with encode-images.py",
                set->files[i].path);
    return true;
}

void encodings_prefetch(const EncodingSet *set, int64_t sample) {
    int64_t row, bytes;
    const EncodingFile *file = encodings_find(set, sample, &row);
    const StoredTensor *const tensors[] = {file->latents, file->text, file->pooled};
    for (int i = 0; i < 3; i++) {
        if (!tensors[i]) continue;
        StoredTensor part = encoding_row(tensors[i], row, &bytes);
        file_map_prefetch(part.data, (size_t)bytes);
    }
}

bool encodings_checksum(const EncodingSet *set, uint64_t *checksum, Error *error) {
    SCOPED(file_list_free) FileList paths = {0};
    XXH3_state_t *hash = XXH3_createState();
    if (!hash) return error_set(error, ERROR_MEMORY, "no memory for the checksum of %s: free some memory", set->path);
    XXH3_64bits_reset(hash);
    bool good = list_files(set->path, &paths, error);
    for (size_t i = 0; good && i < paths.count; i++) good = hash_file_samples(paths.entries[i].name, hash, error);
    *checksum = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return good || error_recode(error, ERROR_DATA);
}
