/* Finds and loads checkpoints. A pass over a checkpoint reads whole stored chunks, so that hashing
 * and reading are spread over the cores. A rank that needs part of a large tensor reads little more
 * than this part. A chunk that is needed whole is read directly into the caller's memory. Owns no
 * memory beyond a call. Called by the training loop and the commands. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/thread.h"
#include "ckpt/ckpt_internal.h"

/* -- Reading and verifying ---------------------------------------------------------------------------------------- */

/* A pass over a checkpoint that fills the `wanted` intervals, sorted by name. */
typedef struct LoadReading {
    Store *store;
    const char *folder;
    const Manifest *manifest;
    const Interval *wanted;
    size_t wanted_count;
} LoadReading;

int interval_compare(const void *left, const void *right) {
    const Interval *a = left, *b = right;
    int order = strcmp(a->name, b->name);
    return order != 0 ? order : (a->slice.first > b->slice.first) - (a->slice.first < b->slice.first);
}

bool interval_same_tensor(const Interval *a, const Interval *b) {
    return a->type == b->type && a->rank == b->rank && memcmp(a->shape, b->shape, (size_t)a->rank * sizeof a->shape[0]) == 0;
}

/* Returns the wanted intervals of a tensor, which are adjacent. */
static const Interval *wanted_find(const LoadReading *reading, const char *name, size_t *count) {
    size_t low = 0, high = reading->wanted_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(reading->wanted[middle].name, name) < 0) low = middle + 1;
        else high = middle;
    }
    for (*count = 0; low + *count < reading->wanted_count; ++*count)
        if (strcmp(reading->wanted[low + *count].name, name) != 0) break;
    return reading->wanted + low;
}

/* Returns the address to read a whole stored interval into; NULL if no wanted interval contains
 * it. */
static char *place_find(const Interval *stored, const Interval *wanted, size_t count) {
    int64_t element = (int64_t)stored_type_bytes(stored->type);
    for (size_t i = 0; i < count; i++) {
        int64_t number = slice_within(&wanted[i].slice, &stored->slice);
        if (number >= 0) return (char *)wanted[i].data + number * element;
    }
    return NULL;
}

/* Copies the part of a block of a stored interval that `wanted` needs, unless the block was read in
 * place. */
static void block_copy(const Interval *wanted, const Slice *part, const char *block) {
    int64_t element = (int64_t)stored_type_bytes(wanted->type), number = slice_within(&wanted->slice, part);
    if (number < 0 || (char *)wanted->data + number * element != block)
        slice_copy(&wanted->slice, wanted->data, part, block, (size_t)element);
}

/* Reads one stored chunk, copies its parts to `wanted` and checks its hash. `scratch` has room for
 * a block of the store. */
static bool chunk_read(
    const StoreObject *shard, const ManifestInterval *chunk, const Interval *wanted, size_t wanted_count, char *scratch, Error *error) {
    const int64_t block_bytes = store_block_bytes(shard->store);
    XXH3_state_t *hash = XXH3_createState();
    if (!hash) return error_set(error, ERROR_MEMORY, "%s: out of memory for a checksum", shard->path.text);
    XXH3_64bits_reset(hash);
    const Interval *interval = &chunk->interval;
    const int64_t element = (int64_t)stored_type_bytes(interval->type), bytes = chunk->range.end - chunk->range.begin;
    char *place = place_find(interval, wanted, wanted_count);
    bool good = true;
    for (int64_t done = 0; done < bytes && good; done += block_bytes) {
        int64_t length = int_min(bytes - done, block_bytes);
        char *block = place ? place + done : scratch;
        good = store_object_read(shard, block, length, chunk->range.begin + done, error);
        if (!good) break;
        XXH3_64bits_update(hash, block, (size_t)length);
        Slice part = slice_part(&interval->slice, done / element, length / element);
        for (size_t i = 0; i < wanted_count; i++) block_copy(&wanted[i], &part, block);
    }
    if (good && XXH3_64bits_digest(hash) != chunk->range.hash)
        good = error_set(error, ERROR_CHECKPOINT, "%s is damaged: the checksum of bytes %lld to %lld (%s) does not match", shard->path.text,
                   (long long)chunk->range.begin, (long long)chunk->range.end, interval->name) ||
               error_find(error, FINDING_DAMAGED);
    XXH3_freeState(hash);
    return good;
}

static bool chunk_needed(const LoadReading *reading, const Interval *chunk) {
    size_t count;
    const Interval *wanted = wanted_find(reading, chunk->name, &count);
    for (size_t i = 0; i < count; i++)
        if (slices_meet(&wanted[i].slice, &chunk->slice)) return true;
    return false;
}

static bool chunks_read(
    const LoadReading *reading, const StoreObject *shard, const ManifestInterval *const *chunks, size_t count, Error *error) {
    bool good = true;
#pragma omp parallel num_threads(store_parallelism(reading->store)) if (shard -> bytes >= PARALLEL_BYTES)
    {
        SCOPED_FREE char *scratch = memory_allocate((size_t)store_block_bytes(reading->store));
#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < count; i++) {
            Error failure = {0};
            size_t wanted_count;
            const Interval *wanted = wanted_find(reading, chunks[i]->interval.name, &wanted_count);
            if (loop_going(&good) && !chunk_read(shard, chunks[i], wanted, wanted_count, scratch, &failure))
                loop_fail(&good, &failure, error);
        }
    }
    return good;
}

/* Checks the bits of a shard's header. The header is not parsed, because the manifest has all its
 * information. */
static bool shard_header_check(const StoreObject *shard, const ManifestFile *listed, Error *error) {
    ManifestInterval header = {
        .interval = {.name = "the header", .type = STORED_U8, .slice.count = listed->header.end}, .range = listed->header};
    SCOPED_FREE char *scratch = memory_allocate((size_t)store_block_bytes(shard->store));
    return chunk_read(shard, &header, NULL, 0, scratch, error);
}

/* Sets the finding after an object of a checkpoint was missing. It is absent only if the listing of
 * the folder agrees. A folder with other objects is damaged. Returns false. */
static bool settle_absence(Store *store, const char *folder, const char *name, Error *error) {
    SCOPED(file_list_free) FileList objects = {0};
    Error unlisted = {0};
    if (error->finding != FINDING_ABSENT) return false;
    bool sure = store_list(store, folder, &objects, &unlisted) && !file_list_has(&objects, name);
    return error_find(error, !sure ? FINDING_UNREADABLE : objects.count ? FINDING_DAMAGED : FINDING_ABSENT);
}

/* Opens a shard and checks its size. Call store_object_close afterwards, even after a failure. */
static bool shard_open(StoreObject *shard, Store *store, const char *folder, const ManifestFile *listed, Error *error) {
    if (!store_object_open(store, store_format("%s/%s", folder, listed->name).text, shard, error))
        return settle_absence(store, folder, listed->name, error);
    return shard->bytes == listed->bytes ||
           error_set(error, ERROR_CHECKPOINT, "%s is damaged: it has %lld bytes, but %lld were written", shard->path.text,
               (long long)shard->bytes, (long long)listed->bytes) ||
           error_find(error, FINDING_DAMAGED);
}

static bool shard_read(const LoadReading *reading, size_t file, const ManifestInterval *const *chunks, size_t count, Error *error) {
    const ManifestFile *listed = &reading->manifest->files[file];
    SCOPED(store_object_close) StoreObject shard;
    return shard_open(&shard, reading->store, reading->folder, listed, error) && shard_header_check(&shard, listed, error) &&
           chunks_read(reading, &shard, chunks, count, error);
}

/* Sorts by file, then in the manifest's order, which is the order of the addresses. */
static int chunk_compare(const void *left, const void *right) {
    const ManifestInterval *a = *(const ManifestInterval *const *)left, *b = *(const ManifestInterval *const *)right;
    return a->file != b->file ? (a->file > b->file) - (a->file < b->file) : (a > b) - (a < b);
}

/* Reads the chunks that the pass needs, file by file. */
static bool shards_read(const LoadReading *reading, Error *error) {
    const Manifest *manifest = reading->manifest;
    SCOPED_FREE const ManifestInterval **chunks = memory_allocate((manifest->interval_count + 1) * sizeof *chunks);
    size_t needed = 0;
    for (size_t i = 0; i < manifest->interval_count; i++)
        if (chunk_needed(reading, &manifest->intervals[i].interval)) chunks[needed++] = &manifest->intervals[i];
    qsort(chunks, needed, sizeof *chunks, chunk_compare);
    for (size_t file = 0, begin = 0, end = 0; file < manifest->file_count; file++, begin = end) {
        while (end < needed && chunks[end]->file == (int64_t)file) end++;
        if (end > begin && !shard_read(reading, file, chunks + begin, end - begin, error)) return false;
    }
    return true;
}

/* Reads the manifest of a step; fails if the manifest is of another step. */
static bool step_manifest_read(Manifest *manifest, Store *store, const char *folder, int64_t step, Error *error) {
    if (!manifest_read(manifest, store, folder_manifest(folder).text, error)) return settle_absence(store, folder, FOLDER_MANIFEST, error);
    if (manifest->step == step) return true;
    error_set(error, ERROR_CHECKPOINT, "%s holds step %lld, which does not match its name: rename it back", store_path(store, folder).text,
        (long long)manifest->step);
    manifest_free(manifest);
    return error_find(error, FINDING_DAMAGED);
}

bool checkpoint_open(Manifest *manifest, Store *store, int64_t step, Error *error) {
    StorePath folder = folder_step(step);
    bool good = step_manifest_read(manifest, store, folder.text, step, error);
    for (size_t i = 0; good && i < manifest->file_count; i++) {
        SCOPED(store_object_close) StoreObject shard;
        good = shard_open(&shard, store, folder.text, &manifest->files[i], error);
    }
    if (!good) manifest_free(manifest);
    return good;
}

/* Sets the finding after a checkpoint could not be read. It is absent only if its step is no longer
 * listed, because the run has removed it. Returns false. */
static bool settle_failure(Store *store, int64_t step, Error *error) {
    SCOPED(folder_listing_free) FolderListing listing = {0};
    Error unlisted = {0};
    if (!folder_list(store, &listing, &unlisted)) return error_find(error, FINDING_UNREADABLE);
    if (!folder_has(&listing, step)) return error_find(error, FINDING_ABSENT);
    return error_find(error, error->finding == FINDING_DAMAGED ? FINDING_DAMAGED : FINDING_UNREADABLE);
}

void checkpoint_report_leftovers(const char *where) {
    Error ignored = {0};
    SCOPED(store_release) Store *store = store_open(where, &ignored);
    SCOPED(folder_listing_free) FolderListing listing = {0};
    if (!store || !folder_list(store, &listing, &ignored)) return;
    for (size_t i = 0; i < listing.leftover_count; i++)
        log_warn(
            "skipping %s, which was not completely written; the next save removes it", store_path(store, listing.leftovers[i].text).text);
}

bool checkpoint_list(const char *where, int64_t **steps, size_t *count, Error *error) {
    SCOPED(store_release) Store *store = store_open(where, error);
    SCOPED(folder_listing_free) FolderListing listing = {0};
    if (!store) return false;
    for (int attempts = 0; !folder_list(store, &listing, error);)
        if (!thread_try_again(error, &attempts)) return false;
    *steps = listing.steps;
    *count = listing.count;
    listing.steps = NULL; /* owned by the caller now */
    return true;
}

/* -- Loading ------------------------------------------------------------------------------------------------------ */

typedef char TensorText[160];

/* "F32 [4, 8]" */
static const char *tensor_format(const Interval *interval, TensorText text) {
    int at = snprintf(text, sizeof(TensorText), "%s [", stored_type_name(interval->type));
    for (int i = 0; i < interval->rank; i++)
        at += snprintf(text + at, sizeof(TensorText) - (size_t)at, "%s%lld", i > 0 ? ", " : "", (long long)interval->shape[i]);
    snprintf(text + at, sizeof(TensorText) - (size_t)at, "]");
    return text;
}

/* Returns how many elements of the tensor from `element` on one stored interval has; the intervals
 * are sorted by their lowest element. */
static int64_t elements_covered(const Interval *stored, const Interval *end, int64_t element) {
    for (; stored < end && stored->slice.first <= element; stored++) {
        int64_t number = slice_below(&stored->slice, element);
        if (number < stored->slice.count && slice_at(&stored->slice, number) == element) return slice_follow(&stored->slice, number);
    }
    return 0;
}

static bool lies_below(const Slice *slice, int64_t element) { return slice_below(slice, element) == slice->count; }

/* Checks that the stored intervals of the tensor, from `stored` on sorted by their lowest element,
 * leave no gap. */
static bool coverage_check(const Interval *wanted, const Interval *stored, const Interval *end, const char *folder, Error *error) {
    const Interval *behind = stored;
    bool absent = stored == end || strcmp(stored->name, wanted->name) != 0;
    if (absent && wanted->optional) return true;
    if (wanted->slice.count > 0 && absent)
        return error_set(
            error, ERROR_CHECKPOINT, "%s has no tensor %s: the configured model differs from the saved one", folder, wanted->name);
    for (; behind < end && strcmp(behind->name, wanted->name) == 0; behind++) {
        TensorText in_checkpoint, in_model;
        if (!interval_same_tensor(behind, wanted))
            return error_set(error, ERROR_CHECKPOINT,
                "%s: tensor %s is %s in the checkpoint and %s in the configured model: use the configuration of the saved model", folder,
                wanted->name, tensor_format(behind, in_checkpoint), tensor_format(wanted, in_model));
    }
    for (int64_t number = 0, covered; number < wanted->slice.count; number += int_min(covered, slice_follow(&wanted->slice, number))) {
        int64_t element = slice_at(&wanted->slice, number);
        while (stored < behind && lies_below(&stored->slice, element)) stored++;
        covered = elements_covered(stored, behind, element);
        if (covered == 0)
            return error_set(error, ERROR_CHECKPOINT, "%s: tensor %s lacks element %lld: a rank's shard is missing", folder, wanted->name,
                (long long)element);
    }
    return true;
}

static bool coverages_check(const LoadReading *reading, Error *error) {
    size_t count = reading->manifest->interval_count;
    SCOPED_FREE Interval *stored = memory_allocate((count + 1) * sizeof *stored);
    const Interval *at = stored, *end = stored + count;
    for (size_t i = 0; i < count; i++) stored[i] = reading->manifest->intervals[i].interval;
    qsort(stored, count, sizeof *stored, interval_compare);
    for (size_t i = 0; i < reading->wanted_count; i++) {
        while (at < end && strcmp(at->name, reading->wanted[i].name) < 0) at++;
        if (!coverage_check(&reading->wanted[i], at, end, reading->folder, error)) return false;
    }
    return true;
}

bool checkpoint_load(const char *where, int64_t step, const Interval *intervals, size_t count, json_t **metadata, Error *error) {
    SCOPED(store_release) Store *store = store_open(where, error);
    SCOPED(manifest_free) Manifest manifest = {0};
    SCOPED_FREE Interval *wanted = memory_allocate((count + 1) * sizeof *wanted);
    StorePath folder = folder_step(step);
    if (!store) return false;
    if (!step_manifest_read(&manifest, store, folder.text, step, error)) return settle_failure(store, step, error);
    if (count > 0) memcpy(wanted, intervals, count * sizeof *wanted);
    qsort(wanted, count, sizeof *wanted, interval_compare);
    LoadReading reading = {.store = store, .folder = folder.text, .manifest = &manifest, .wanted = wanted, .wanted_count = count};
    if (!coverages_check(&reading, error)) return error_find(error, FINDING_DAMAGED);
    if (!shards_read(&reading, error)) return settle_failure(store, step, error);
    if (metadata) *metadata = json_incref(manifest.metadata);
    return true;
}

bool checkpoint_annotate(const char *where, int64_t step, json_t *members, Error *error) {
    SCOPED(store_release) Store *store = store_open(where, error);
    SCOPED(manifest_free) Manifest manifest = {0};
    StorePath folder = folder_step(step);
    int64_t bytes;
    if (!store || !step_manifest_read(&manifest, store, folder.text, step, error)) return false;
    json_auto_t *metadata = manifest.metadata ? json_copy(manifest.metadata) : json_object();
    json_object_update(metadata, members);
    manifest.metadata = metadata;
    return manifest_write(&manifest, store, folder_manifest(folder.text).text, &bytes, error);
}

json_t *checkpoint_metadata(const char *where, int64_t step, Error *error) {
    SCOPED(store_release) Store *store = store_open(where, error);
    SCOPED(manifest_free) Manifest manifest = {0};
    if (!store) return NULL;
    if (checkpoint_open(&manifest, store, step, error)) return manifest.metadata ? json_deep_copy(manifest.metadata) : json_object();
    settle_failure(store, step, error);
    return NULL;
}
