/* Chunks: intervals cut into units of hashing, sharing and reading. A rank's chunks become tensors
 * of its shard and entries of its manifest. If an older checkpoint has a chunk with equal contents,
 * the chunk refers to that file, and the file is linked into the new checkpoint's folder. Owns the
 * names and arrays of a Chunks. Called by save.c. */
#include "ckpt/ckpt_internal.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/array.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"

static int64_t interval_bytes(const Interval *interval) { return interval->slice.count * (int64_t)stored_type_bytes(interval->type); }

Chunks chunks_cut(const Interval *intervals, size_t count) {
    Chunks chunks = {0};
    for (size_t i = 0; i < count; i++) {
        const int64_t element = (int64_t)stored_type_bytes(intervals[i].type), limit = CHUNK_BYTES / element;
        const Slice *whole = &intervals[i].slice;
        for (int64_t offset = 0; offset < whole->count; offset += limit) {
            Interval chunk = intervals[i];
            chunk.slice = slice_part(whole, offset, int_min(whole->count - offset, limit));
            chunk.data = (char *)chunk.data + offset * element;
            array_append(chunks.entries, chunks.count, (ManifestInterval){.interval = chunk});
        }
    }
    array_append(chunks.files, chunks.file_count, (ManifestFile){0}); /* the shard of this rank */
    return chunks;
}

void chunks_free(Chunks *chunks) {
    for (size_t i = 1; i < chunks->file_count; i++) free((char *)chunks->files[i].name);
    free(chunks->files);
    free(chunks->entries);
    *chunks = (Chunks){0};
}

/* -- Sharing ------------------------------------------------------------------------------------------------------ */

/* A file of the older checkpoint: the bytes of its unchanged chunks, and its index among the files
 * of the new checkpoint; 0 until it is linked. */
typedef struct OlderFile {
    int64_t unchanged_bytes;
    size_t index;
} OlderFile;

static int compare_chunks(const void *left, const void *right) {
    return interval_compare(*(ManifestInterval *const *)left, *(ManifestInterval *const *)right);
}

static bool same_contents(const ManifestInterval *a, const ManifestInterval *b) {
    return a->range.hash == b->range.hash && slice_equal(&a->interval.slice, &b->interval.slice) &&
           interval_same_tensor(&a->interval, &b->interval);
}

static void chunks_hash(Chunks *chunks) {
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < chunks->count; i++)
        chunks->entries[i].range.hash = XXH3_64bits(chunks->entries[i].interval.data, (size_t)interval_bytes(&chunks->entries[i].interval));
    chunks->hashed = true;
}

/* Returns the older checkpoint's entry for each unchanged chunk, else NULL. The caller frees it. */
static const ManifestInterval **chunks_match(const Chunks *chunks, const Manifest *older, OlderFile *files) {
    const ManifestInterval **matches = memory_allocate((chunks->count + 1) * sizeof *matches);
    SCOPED_FREE const ManifestInterval **sorted = memory_allocate((older->interval_count + 1) * sizeof *sorted);
    for (size_t i = 0; i < older->interval_count; i++) sorted[i] = &older->intervals[i];
    qsort(sorted, older->interval_count, sizeof *sorted, compare_chunks);
    for (size_t i = 0; i < chunks->count; i++) {
        const ManifestInterval *key = &chunks->entries[i];
        const ManifestInterval **found = bsearch(&key, sorted, older->interval_count, sizeof *sorted, compare_chunks);
        if (!found || !same_contents(*found, key)) continue;
        matches[i] = *found;
        files[(*found)->file].unchanged_bytes += interval_bytes(&key->interval);
    }
    return matches;
}

/* Returns the name of a shared file in later checkpoints, which begins with the step that wrote
 * it. */
static char *shared_name(const Manifest *older, const char *name) {
    static const char prefix[] = "step-";
    if (strncmp(name, prefix, sizeof prefix - 1) == 0) return memory_copy_string(name);
    return memory_format("%s%08lld-%s", prefix, (long long)older->step, name);
}

/* Adds a file of the older checkpoint to the files of the new one, and links it into the new
 * folder. */
static bool file_share(Chunks *chunks, Store *store, const Manifest *older, size_t file, const char *folder, Error *error) {
    ManifestFile shared = older->files[file];
    StorePath from = store_format("%s/%s", folder_step(older->step).text, shared.name);
    shared.name = shared_name(older, shared.name);
    array_append(chunks->files, chunks->file_count, shared);
    return store_link(store, from.text, store_format("%s/%s", folder, shared.name).text, error);
}

bool chunks_share(Chunks *chunks, Store *store, const Manifest *older, const char *folder, Error *error) {
    SCOPED_FREE OlderFile *files = memory_allocate((older->file_count + 1) * sizeof *files);
    chunks_hash(chunks);
    SCOPED_FREE const ManifestInterval **matches = chunks_match(chunks, older, files);
    for (size_t i = 0; i < chunks->count; i++) {
        if (!matches[i]) continue;
        ManifestInterval *entry = &chunks->entries[i];
        OlderFile *file = &files[matches[i]->file];
        if (file->unchanged_bytes < older->files[matches[i]->file].bytes / 2) continue;
        if (file->index == 0) {
            file->index = chunks->file_count;
            if (!file_share(chunks, store, older, matches[i]->file, folder, error)) return false;
        }
        entry->file = file->index;
        entry->range = matches[i]->range;
        chunks->shared += interval_bytes(&entry->interval);
    }
    return true;
}

/* -- Writing ------------------------------------------------------------------------------------------------------ */

/* Writes the header and the tensors of this rank's shard; tensor i is the chunk entries[i]. */
static bool tensors_write(
    Chunks *chunks, Store *store, const char *name, const StoredTensor *tensors, ManifestInterval **entries, size_t count, Error *error) {
    ManifestFile *shard = &chunks->files[0];
    SCOPED_FREE StoredRange *ranges = memory_allocate((count + 1) * sizeof *ranges);
    SCOPED_FREE StoreSpan *spans = safetensors_layout(store_path(store, name).text, tensors, count, NULL, ranges, error);
    if (!spans) return false;
    shard->header = ranges[0];
    shard->bytes = ranges[count].end;
    for (size_t i = 0; i < count; i++) {
        StoredRange *range = &entries[i]->range;
        range->begin = ranges[i + 1].begin;
        range->end = ranges[i + 1].end;
        if (!chunks->hashed) spans[i + 1].hash = &range->hash;
    }
    return store_put(store, name, spans, count + 1, error);
}

/* Formats the tensor's name in the shard: NAME[FIRST:END], or NAME[FIRST:END, RUN of STRIDE] for
 * runs. The caller frees it. */
static char *format_part(const Interval *part) {
    const Slice *slice = &part->slice;
    long long first = slice->first, end = slice_at(slice, slice->count - 1) + 1;
    if (slice->run == 0) return memory_format("%s[%lld:%lld]", part->name, first, end);
    return memory_format("%s[%lld:%lld, %lld of %lld]", part->name, first, end, (long long)slice->run, (long long)slice->stride);
}

bool chunks_write(Chunks *chunks, Store *store, const char *folder, const char *shard, Error *error) {
    SCOPED_FREE StoredTensor *tensors = memory_allocate((chunks->count + 1) * sizeof *tensors);
    SCOPED_FREE ManifestInterval **entries = memory_allocate((chunks->count + 1) * sizeof *entries);
    size_t count = 0;
    for (size_t i = 0; i < chunks->count; i++) {
        const Interval *chunk = &chunks->entries[i].interval;
        if (chunks->entries[i].file != 0) continue;
        entries[count] = &chunks->entries[i];
        tensors[count++] = (StoredTensor){format_part(chunk), chunk->type, 1, {chunk->slice.count}, chunk->data};
    }
    chunks->files[0].name = shard;
    bool good = tensors_write(chunks, store, store_format("%s/%s", folder, shard).text, tensors, entries, count, error);
    for (size_t i = 0; i < count; i++) free((char *)tensors[i].name);
    return good;
}
