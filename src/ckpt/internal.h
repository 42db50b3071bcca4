/* What the files of this module share and nobody else needs: checked input and output on files, the byte layout that
 * the safetensors writer reports, and the manifest. Strings in a Manifest belong to its `json` after reading, and to
 * the caller when it is written. */
#ifndef SMELT_CKPT_INTERNAL_H
#define SMELT_CKPT_INTERNAL_H

#include "ckpt/ckpt.h"

/* Data moves and is hashed in blocks that stay in a core's cache between the two. */
enum { BLOCK_BYTES = 1 << 20 };
/* Below this, waking the other cores costs more than they help. */
enum { PARALLEL_BYTES = 4 * BLOCK_BYTES };

/* -- files.c ------------------------------------------------------------------------------------------------------- */

/* "cannot ACTION PATH: reason of the errno `code`; what to do", as ERROR_CHECKPOINT. */
bool files_fail(Error *error, const char *action, const char *path, int code);
/* Opens a regular file and tells its size in bytes; -1 on failure. */
int files_open_read(const char *path, int64_t *size, Error *error);
/* Creates or empties a file; -1 on failure. */
int files_open_write(const char *path, Error *error);
/* All `bytes` at `offset` or failure: EINTR and short transfers are continued, and end of file is an error. */
bool files_write_at(int file, const char *path, const void *data, int64_t bytes, int64_t offset, Error *error);
bool files_read_at(int file, const char *path, void *data, int64_t bytes, int64_t offset, Error *error);
/* Syncs when `good` and closes in any case. */
bool files_sync_close(int file, const char *path, bool good, Error *error);
bool files_sync_folder(const char *path, Error *error);

/* -- safetensors.c ------------------------------------------------------------------------------------------------- */

typedef struct StoredRange {
    int64_t begin, end; /* bytes of the file */
    uint64_t hash;      /* XXH3_64bits of them */
} StoredRange;

/* safetensors_write that also tells where everything went: `header` covers length, JSON and padding, `ranges` has
 * `count` items, and together they tile the file. */
bool safetensors_write_ranges(const char *path, const StoredTensor *tensors, size_t count, json_t *metadata,
                              StoredRange *header, StoredRange *ranges, Error *error);
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

/* Writes FOLDER/manifest.json, synced. `bytes` receives its size. */
bool manifest_write(const Manifest *manifest, const char *folder, int64_t *bytes, Error *error);
/* Reads and checks it: its own checksum, every field, every byte range against the size of its file as listed. */
bool manifest_read(Manifest *manifest, const char *folder, Error *error);
void manifest_free(Manifest *manifest); /* after manifest_read */

#endif
