/* Shared by the files of this module only: writing files from spans, the byte layout of safetensors
 * files, the manifest, the chunks of a shard, and the folder of checkpoints. Strings in a Manifest
 * belong to its `json` after reading, and to the caller when it is written. */
#pragma once

#include "ckpt/ckpt.h"
#include "ckpt/store_internal.h"

enum {
    BLOCK_BYTES = 1 << 20,            /* data is hashed and moved in blocks that fit a core's cache */
    PARALLEL_BYTES = 4 * BLOCK_BYTES, /* below this size, waking the other cores costs more than it gains */
    CHUNK_BYTES = 16 * BLOCK_BYTES,   /* of an interval: the unit of hashing, sharing and requests */
};

/* -- store_files.c ------------------------------------------------------------------------------------------------- */

/* Creates or replaces a file from spans, on several threads; as durable as file_write. */
bool file_write_spans(const char *path, const StoreSpan *spans, size_t count, Error *error);

/* -- safetensors.c ------------------------------------------------------------------------------------------------- */

typedef struct StoredRange {
    int64_t begin, end; /* bytes of the file */
    uint64_t hash;      /* XXH3_64bits of these bytes */
} StoredRange;

/* Lays out a safetensors file: count + 1 spans and `ranges`, which tile the file. The first span is
 * the header (length, JSON and padding) with its bytes and hash filled in; the others are the
 * tensors in their order. The caller frees the spans, which also frees the header. `path` is for
 * messages. NULL on failure. */
StoreSpan *safetensors_layout(
    const char *path, const StoredTensor *tensors, size_t count, json_t *metadata, StoredRange *ranges, Error *error);
bool stored_type_parse(const char *name, StoredType *type);
json_t *stored_shape_to_json(const int64_t *shape, int rank);
/* Returns false unless `json` is an array of at most STORED_MAX_RANK nonnegative integers. */
bool stored_shape_parse(const json_t *json, int64_t shape[STORED_MAX_RANK], int *rank);
/* Computes the bytes of a whole tensor; returns false if they overflow int64_t. */
bool stored_bytes(StoredType type, const int64_t *shape, int rank, int64_t *bytes);

/* -- manifest.c ---------------------------------------------------------------------------------------------------- */

typedef struct ManifestFile {
    const char *name; /* inside the checkpoint's folder */
    int64_t bytes;
    StoredRange header;
} ManifestFile;

typedef struct ManifestInterval {
    Interval interval; /* `data` is unused */
    int64_t file;      /* index into `files` */
    StoredRange range;
} ManifestInterval;

typedef struct Manifest {
    int64_t step;
    json_t *metadata; /* borrowed; NULL if none was given */
    ManifestFile *files;
    size_t file_count;
    ManifestInterval *intervals;
    size_t interval_count;
    json_t *json;
} Manifest;

/* Writes the object `name`. `bytes` receives its size. */
bool manifest_write(const Manifest *manifest, Store *store, const char *name, int64_t *bytes, Error *error);
/* Reads and checks a manifest: its own checksum, every field, every byte range against the listed
 * size of its file. If its checksum fails, the finding is FINDING_DAMAGED. A manifest with a good
 * checksum and unknown content was written by another program. */
bool manifest_read(Manifest *manifest, Store *store, const char *name, Error *error);
void manifest_free(Manifest *manifest); /* after manifest_read */

/* -- chunks.c ------------------------------------------------------------------------------------------------------ */

/* A chunk is up to CHUNK_BYTES of an interval, stored in files[entry.file]. File 0 is the shard
 * that this rank writes; the others are files of an older checkpoint that already have the
 * chunk. */
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
/* Finds the files of an older checkpoint that hold unchanged chunks, and links them into `folder`.
 * After a failure the caller must cut the chunks again. */
bool chunks_share(Chunks *chunks, Store *store, const Manifest *older, const char *folder, Error *error);
/* Writes the shard with all other chunks. `shard` is its name in `folder`; the pointer is kept. */
bool chunks_write(Chunks *chunks, Store *store, const char *folder, const char *shard, Error *error);

/* -- folder.c ------------------------------------------------------------------------------------------------------ */

StorePath folder_step(int64_t step);                      /* "checkpoints/step-00000040" */
StorePath folder_draft(int64_t step, uint64_t attempt);   /* temporary name in a store that can rename folders */
StorePath folder_aside(int64_t step);                     /* name of a checkpoint that is being replaced */
StorePath folder_damaged(int64_t step, uint64_t attempt); /* name of a checkpoint that failed its checksum */
StorePath folder_probe(int rank);
#define FOLDER_MANIFEST "manifest.json"
StorePath folder_manifest(const char *folder); /* FOLDER/manifest.json */

typedef struct FolderListing {
    int64_t *steps; /* complete, newest first */
    size_t count;
    StorePath *leftovers; /* folders of half-written checkpoints */
    size_t leftover_count;
    int64_t *replaced; /* steps whose former checkpoint still exists */
    size_t replaced_count;
} FolderListing;

/* Sorts the entries of the folder of checkpoints; undoes an interrupted replacement. */
bool folder_list(Store *store, FolderListing *listing, Error *error);
bool folder_has(const FolderListing *listing, int64_t step); /* returns whether the step is complete */
void folder_listing_free(FolderListing *listing);

/* -- load.c -------------------------------------------------------------------------------------------------------- */

/* For qsort of intervals, or of structs that begin with one: by name, then by lowest element. */
int interval_compare(const void *left, const void *right);
/* Returns whether the types and shapes of the tensors are equal. */
bool interval_same_tensor(const Interval *a, const Interval *b);
/* Reads the manifest of a step and checks the step and the sizes of all files. This is cheap and
 * detects everything except flipped data. The finding is FINDING_DAMAGED if the manifest was read
 * completely and fails its checksum, or if a file is missing or has another size. */
bool checkpoint_open(Manifest *manifest, Store *store, int64_t step, Error *error);
