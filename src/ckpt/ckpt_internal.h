/* What the files of this module share and no other needs: writing files from spans, the byte layout of safetensors
 * files, the manifest, the chunks of a shard, and the folder of checkpoints. Strings in a Manifest belong to its `json`
 * after reading, and to the caller when it is written. */
#pragma once

#include "ckpt/ckpt.h"
#include "ckpt/store_internal.h"

enum {
    BLOCK_BYTES = 1 << 20,            /* data is hashed and moved in blocks that fit a core's cache */
    PARALLEL_BYTES = 4 * BLOCK_BYTES, /* below this, waking the other cores costs more than they help */
    CHUNK_BYTES = 16 * BLOCK_BYTES,   /* of an interval: what is hashed, shared and requested as one */
};

/* For parallel loops: whether no iteration has failed yet, and how one that fails ends the others. */
static inline bool loop_going(const bool *good) { return __atomic_load_n(good, __ATOMIC_RELAXED); }
static inline void loop_fail(bool *good, const Error *failure, Error *error) {
#pragma omp critical(checkpoint_loop_fail)
    *error = *failure;
    __atomic_store_n(good, false, __ATOMIC_RELAXED);
}

/* -- store_files.c ------------------------------------------------------------------------------------------------- */

/* Creates or replaces a file from spans, on several threads; as durable as file_write. */
bool file_write_spans(const char *path, const StoreSpan *spans, size_t count, Error *error);

/* -- safetensors.c ------------------------------------------------------------------------------------------------- */

typedef struct StoredRange {
    int64_t begin, end; /* bytes of the file */
    uint64_t hash;      /* XXH3_64bits of them */
} StoredRange;

/* Lays out a safetensors file: count + 1 spans and `ranges`, which tile the file. The first is the header (length,
 * JSON and padding), whose bytes and hash are filled in; the others are the tensors in their order. The caller frees
 * the spans, and the header with them. `path` is for messages. NULL on failure. */
StoreSpan *safetensors_layout(
    const char *path, const StoredTensor *tensors, size_t count, json_t *metadata, StoredRange *ranges, Error *error);
bool stored_type_parse(const char *name, StoredType *type);
json_t *stored_shape_to_json(const int64_t *shape, int rank);
/* False unless `json` is an array of at most STORED_MAX_RANK integers, none negative. */
bool stored_shape_parse(const json_t *json, int64_t shape[STORED_MAX_RANK], int *rank);
/* Bytes of a whole tensor; false when that overflows int64_t. */
bool stored_bytes(StoredType type, const int64_t *shape, int rank, int64_t *bytes);

/* -- manifest.c ---------------------------------------------------------------------------------------------------- */

typedef struct ManifestFile {
    const char *name; /* inside the checkpoint's folder */
    int64_t bytes;
    StoredRange header;
} ManifestFile;

typedef struct ManifestInterval {
    Interval interval; /* `data` is unused */
    size_t file;       /* index into `files` */
    StoredRange range;
} ManifestInterval;

typedef struct Manifest {
    int64_t step;
    json_t *metadata; /* borrowed; NULL when none was given */
    ManifestFile *files;
    size_t file_count;
    ManifestInterval *intervals;
    size_t interval_count;
    json_t *json;
} Manifest;

/* Writes the object `name`. `bytes` receives its size. */
bool manifest_write(const Manifest *manifest, Store *store, const char *name, int64_t *bytes, Error *error);
/* Reads and checks it: its own checksum, every field, every byte range against the size of its file as listed. One that
 * fails its checksum is FINDING_DAMAGED; one that passes it, but says what this program does not know, is another
 * program's. */
bool manifest_read(Manifest *manifest, Store *store, const char *name, Error *error);
void manifest_free(Manifest *manifest); /* after manifest_read */

/* -- chunks.c ------------------------------------------------------------------------------------------------------ */

/* A chunk is up to CHUNK_BYTES of an interval. Each lies in files[entry.file]: file 0 is the shard that this rank
 * writes, the others are files of an older checkpoint that have it already. */
typedef struct Chunks {
    ManifestInterval *entries; /* their intervals point into the caller's memory */
    size_t count;
    ManifestFile *files;
    size_t file_count; /* at least 1 */
    int64_t shared;    /* bytes of chunks that are not written */
    bool hashed;
} Chunks;

Chunks chunks_cut(const Interval *intervals, size_t count);
void chunks_free(Chunks *chunks);
/* Finds the files of an older checkpoint that hold unchanged chunks, and links them into `folder`. After a failure the
 * chunks must be cut again. */
bool chunks_share(Chunks *chunks, Store *store, const Manifest *older, const char *folder, Error *error);
/* Writes the shard with all other chunks. `shard` is its name in `folder` and is kept. */
bool chunks_write(Chunks *chunks, Store *store, const char *folder, const char *shard, Error *error);

/* -- folder.c ------------------------------------------------------------------------------------------------------ */

StorePath folder_step(int64_t step);                      /* "checkpoints/step-00000040" */
StorePath folder_draft(int64_t step, uint64_t attempt);   /* its temporary name in a store that renames folders */
StorePath folder_aside(int64_t step);                     /* the name of what is being replaced */
StorePath folder_damaged(int64_t step, uint64_t attempt); /* the name of what failed its checksum */
StorePath folder_probe(int rank);
#define FOLDER_MANIFEST "manifest.json"
StorePath folder_manifest(const char *folder); /* FOLDER/manifest.json */

typedef struct FolderListing {
    int64_t *steps; /* complete, newest first */
    size_t count;
    StorePath *leftovers; /* folders of what was half-written */
    size_t leftover_count;
    int64_t *replaced; /* steps of which a former checkpoint is still there */
    size_t replaced_count;
} FolderListing;

/* Sorts what lies in the folder of checkpoints; gives an interrupted replacement its name back. */
bool folder_list(Store *store, FolderListing *listing, Error *error);
bool folder_has(const FolderListing *listing, int64_t step); /* whether the step is complete */
void folder_listing_free(FolderListing *listing);

/* -- load.c -------------------------------------------------------------------------------------------------------- */

/* For qsort of intervals, or of what begins with one: by name, then by lowest element. */
int interval_compare(const void *left, const void *right);
/* Whether the types and shapes of the tensors are equal. */
bool interval_same_tensor(const Interval *a, const Interval *b);
/* Reads the manifest of a step and checks the step and the sizes of all files: cheap, and sees everything but flipped
 * data. The finding of a failure is FINDING_DAMAGED where the manifest was read whole and fails its checksum, or a file
 * is not there or has another size. */
bool checkpoint_open(Manifest *manifest, Store *store, int64_t step, Error *error);
