/* Intervals cut into pieces: what is hashed, shared and read as one. A rank's pieces become tensors of its shard and
 * entries of its part of the manifest. When an older checkpoint is given, pieces that it has with the same contents refer
 * to its files instead, which get a name in the new checkpoint's folder too. Owns the names and arrays of a Pieces.
 * Called by save.c. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/array.h"
#include "base/memory.h"
#include "ckpt/pieces.h"

static int64_t piece_elements(const Interval *interval) { return PIECE_BYTES / (int64_t)stored_type_bytes(interval->type); }

static int64_t piece_bytes(const Interval *piece) { return piece->count * (int64_t)stored_type_bytes(piece->type); }

static void piece_append(Pieces *pieces, const Interval *interval, int64_t offset) {
    Interval *piece = &pieces->entries[pieces->count++].interval;
    *piece = *interval;
    piece->first = interval->first + offset;
    piece->count = interval->count - offset;
    if (piece->count > piece_elements(interval)) piece->count = piece_elements(interval);
    piece->data = (char *)interval->data + offset * (int64_t)stored_type_bytes(interval->type);
}

Pieces pieces_cut(const Interval *intervals, size_t count) {
    size_t total = 0;
    for (size_t i = 0; i < count; i++) total += (size_t)(intervals[i].count / piece_elements(&intervals[i])) + 1;
    Pieces pieces = {.entries = memory_allocate((total + 1) * sizeof *pieces.entries)};
    for (size_t i = 0; i < count; i++)
        for (int64_t offset = 0; offset < intervals[i].count; offset += piece_elements(&intervals[i]))
            piece_append(&pieces, &intervals[i], offset);
    array_append(pieces.files, pieces.file_count, (ManifestFile){0}); /* the shard of this rank */
    return pieces;
}

void pieces_free(Pieces *pieces) {
    for (size_t i = 1; i < pieces->file_count; i++) free((char *)pieces->files[i].name);
    free(pieces->files);
    free(pieces->entries);
    *pieces = (Pieces){0};
}

/* -- Sharing ------------------------------------------------------------------------------------------------------ */

static int entry_compare(const void *left, const void *right) {
    const Interval *a = &(*(ManifestInterval *const *)left)->interval, *b = &(*(ManifestInterval *const *)right)->interval;
    int order = strcmp(a->name, b->name);
    return order != 0 ? order : (a->first > b->first) - (a->first < b->first);
}

/* Pointers to the older checkpoint's entries in order of name and first element. */
static ManifestInterval **entries_sort(const Manifest *older) {
    ManifestInterval **sorted = memory_allocate((older->interval_count + 1) * sizeof *sorted);
    for (size_t i = 0; i < older->interval_count; i++) sorted[i] = &older->intervals[i];
    if (older->interval_count > 0) qsort(sorted, older->interval_count, sizeof *sorted, entry_compare);
    return sorted;
}

static bool same_contents(const ManifestInterval *a, const ManifestInterval *b) {
    const Interval *x = &a->interval, *y = &b->interval;
    return a->range.hash == b->range.hash && x->type == y->type && x->count == y->count && x->rank == y->rank &&
           memcmp(x->shape, y->shape, (size_t)x->rank * sizeof x->shape[0]) == 0;
}

static void pieces_hash(Pieces *pieces) {
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < pieces->count; i++)
        pieces->entries[i].range.hash = XXH3_64bits(pieces->entries[i].interval.data, (size_t)piece_bytes(&pieces->entries[i].interval));
    pieces->hashed = true;
}

/* Where the older checkpoint has each piece unchanged, or NULL; `used` adds up the bytes per file. */
static const ManifestInterval **pieces_match(const Pieces *pieces, const Manifest *older, int64_t *used) {
    const ManifestInterval **matches = memory_allocate((pieces->count + 1) * sizeof *matches);
    ManifestInterval **sorted = entries_sort(older);
    for (size_t i = 0; i < pieces->count && older->interval_count > 0; i++) {
        const ManifestInterval *key = &pieces->entries[i];
        ManifestInterval **found = bsearch(&key, sorted, older->interval_count, sizeof *sorted, entry_compare);
        if (!found || !same_contents(*found, key)) continue;
        matches[i] = *found;
        used[(*found)->file] += piece_bytes(&key->interval);
    }
    free(sorted);
    return matches;
}

/* The name that a file of the older checkpoint gets in later ones: it tells where it came from. */
static char *shared_name(const Manifest *older, const char *name) {
    static const char prefix[] = "step-";
    if (strncmp(name, prefix, sizeof prefix - 1) == 0) return memory_copy_string(name);
    return memory_format("%s%08lld-%s", prefix, (long long)older->step, name);
}

/* The index of an older file among those of this part, which it enters when at least half of it is used. 0: it is not. */
static size_t file_share(Pieces *pieces, const Manifest *older, size_t file, int64_t used, size_t *index) {
    const ManifestFile *listed = &older->files[file];
    if (index[file] > 0 || used < listed->bytes / 2) return index[file];
    array_append(pieces->files, pieces->file_count, *listed);
    index[file] = pieces->file_count - 1;
    pieces->files[index[file]].name = shared_name(older, listed->name);
    return index[file];
}

void pieces_share(Pieces *pieces, const Manifest *older) {
    pieces_hash(pieces);
    int64_t *used = memory_allocate((older->file_count + 1) * sizeof *used);
    size_t *index = memory_allocate((older->file_count + 1) * sizeof *index);
    const ManifestInterval **matches = pieces_match(pieces, older, used);
    for (size_t i = 0; i < pieces->count; i++) {
        ManifestInterval *entry = &pieces->entries[i];
        entry->file = matches[i] ? file_share(pieces, older, matches[i]->file, used[matches[i]->file], index) : 0;
        if (entry->file > 0) {
            entry->range = matches[i]->range;
            pieces->shared += piece_bytes(&entry->interval);
        }
    }
    free(matches);
    free(index);
    free(used);
}

static bool shared_link(
    Store *store, const char *from_folder, const Manifest *older, const char *folder, const ManifestFile *file, Error *error) {
    for (size_t i = 0; i < older->file_count; i++) {
        char *name = shared_name(older, older->files[i].name);
        bool same = strcmp(name, file->name) == 0;
        free(name);
        if (!same) continue;
        char *from = memory_format("%s/%s", from_folder, older->files[i].name);
        char *to = memory_format("%s/%s", folder, file->name);
        bool good = store_link(store, from, to, error);
        free(to);
        free(from);
        return good;
    }
    return true;
}

bool pieces_link(const Pieces *pieces, Store *store, const Manifest *older, const char *folder, Error *error) {
    char *from = folder_step(older->step);
    bool good = true;
    for (size_t i = 1; i < pieces->file_count && good; i++) good = shared_link(store, from, older, folder, &pieces->files[i], error);
    free(from);
    return good;
}

/* -- Writing ------------------------------------------------------------------------------------------------------ */

/* The pieces that go into this rank's shard, as its tensors; `indices` tells which they are. */
static size_t tensors_list(const Pieces *pieces, StoredTensor *tensors, size_t *indices) {
    size_t count = 0;
    for (size_t i = 0; i < pieces->count; i++) {
        const Interval *piece = &pieces->entries[i].interval;
        if (pieces->entries[i].file != 0) continue;
        indices[count] = i;
        tensors[count++] = (StoredTensor){
            .name = memory_format("%s[%lld:%lld]", piece->name, (long long)piece->first, (long long)(piece->first + piece->count)),
            .type = piece->type,
            .rank = 1,
            .shape = {piece->count},
            .data = piece->data};
    }
    return count;
}

static bool tensors_put(
    Pieces *pieces, Store *store, const char *name, const StoredTensor *tensors, const size_t *indices, size_t count, Error *error) {
    ManifestFile *shard = &pieces->files[0];
    StoredRange *ranges = memory_allocate((count + 1) * sizeof *ranges);
    StoreSpan *spans = memory_allocate((count + 1) * sizeof *spans);
    char *path = store_path(store, name);
    char *header = safetensors_layout(path, tensors, count, NULL, &shard->header, ranges, error);
    shard->bytes = count > 0 ? ranges[count - 1].end : shard->header.end;
    spans[0] = (StoreSpan){.data = header, .bytes = shard->header.end};
    for (size_t i = 0; i < count && header; i++) {
        StoredRange *range = &pieces->entries[indices[i]].range;
        *range = (StoredRange){.begin = ranges[i].begin, .end = ranges[i].end, .hash = range->hash};
        spans[i + 1] =
            (StoreSpan){.data = tensors[i].data, .bytes = range->end - range->begin, .hash = pieces->hashed ? NULL : &range->hash};
    }
    bool good = header && store_put(store, name, spans, count + 1, error);
    free(header);
    free(path);
    free(spans);
    free(ranges);
    return good;
}

bool pieces_put(Pieces *pieces, Store *store, const char *folder, const char *shard, Error *error) {
    StoredTensor *tensors = memory_allocate((pieces->count + 1) * sizeof *tensors);
    size_t *indices = memory_allocate((pieces->count + 1) * sizeof *indices);
    size_t count = tensors_list(pieces, tensors, indices);
    char *name = memory_format("%s/%s", folder, shard);
    pieces->files[0].name = shard;
    bool good = tensors_put(pieces, store, name, tensors, indices, count, error);
    for (size_t i = 0; i < count; i++) free((char *)tensors[i].name);
    free(name);
    free(indices);
    free(tensors);
    return good;
}
