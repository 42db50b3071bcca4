/* Checkpoints: an acknowledged step survives kill -9, a full disk and a torn write.
 *
 * A checkpoint is a folder checkpoints/step-00000040 of a store (store_internal.h) with safetensors
 * shards and manifest.json. A shard holds intervals: (tensor name, slice) of flattened tensors. A
 * slice is contiguous elements, or runs at equal distances (base/slice.h). Ranks in any layout
 * write intervals, and ranks in any other layout load them by intersecting slices. Every rank
 * writes a shard and, once the shard is durable, a manifest of it. Rank 0 waits for all rank
 * manifests and joins them to the manifest of the checkpoint. The manifest lists every interval
 * with its file, byte range and xxh3, and the caller's metadata. On a file system everything is
 * written to a folder with a temporary name and synced, the manifest last; then the folder is
 * renamed, so a folder with the final name is complete. In a bucket, a folder with a manifest is
 * complete.
 *
 * `where` is a run folder, another folder, or s3://BUCKET/PREFIX (store_internal.h). The caller's
 * strings are not kept. Every failure is ERROR_CHECKPOINT with the path and the reason. A failure
 * to read a checkpoint also carries a finding (ErrorFinding). Absent: a later save has removed it.
 * Damaged: it was read completely and fails a checksum or lacks a file. Unreadable: its state is
 * unknown now, and no caller may treat it as absent or damaged. One job at a time saves into a
 * run. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"
#include "base/slice.h"
#include "ckpt/lease.h"

/* -- safetensors files (safetensors.c) ---------------------------------------------------------------------------- */

enum { STORED_MAX_RANK = 5 };
typedef enum StoredType {
    STORED_F32,
    STORED_BF16,
    STORED_F16,
    STORED_F64,
    STORED_I32,
    STORED_I64,
    STORED_U8,
    STORED_F8_E4M3, /* OCP's e4m3 (base/float8.h) */
} StoredType;
size_t stored_type_bytes(StoredType type);
const char *stored_type_name(StoredType type); /* "F32", as in the file format */

typedef struct StoredTensor {
    const char *name;
    StoredType type;
    int rank;
    int64_t shape[STORED_MAX_RANK];
    const void *data; /* to write; or inside the mapped file, possibly unaligned, after reading */
} StoredTensor;

/* Returns whether all elements are finite; ERROR_NUMERICS names the tensor and its first NaN or
 * infinity. */
bool stored_check_finite(const StoredTensor *tensor, Error *error);

/* Converts elements first .. first + count - 1 of an F32, BF16 or F16 tensor. */
void stored_to_floats(const StoredTensor *tensor, int64_t first, int64_t count, float *values);

/* Writes header and data in the given order to `path`, atomically and synced. `metadata` (may be
 * NULL) becomes __metadata__ and may hold only strings. */
bool safetensors_write(const char *path, const StoredTensor *tensors, size_t count, json_t *metadata, Error *error);

typedef struct Safetensors {
    StoredTensor *tensors; /* sorted by name */
    size_t count;
    json_t *metadata; /* borrowed from `header`; may be NULL */
    FileMap map;
    json_t *header; /* owns the names */
} Safetensors;

/* Maps a file; every name, type, shape and byte range of the header is checked against the file size. */
bool safetensors_open(Safetensors *file, const char *path, Error *error);
void safetensors_close(Safetensors *file);
bool safetensors_is_file(const char *path);                                      /* whether it can be opened */
const StoredTensor *safetensors_find(const Safetensors *file, const char *name); /* NULL if absent */

/* -- Checkpoints (save.c, load.c) --------------------------------------------------------------------------------- */

/* One interval of one tensor in memory. */
typedef struct Interval {
    const char *name;
    StoredType type;
    int rank;
    int64_t shape[STORED_MAX_RANK]; /* of the whole tensor */
    Slice slice;                    /* of the flattened tensor */
    void *data;                     /* slice.count elements: read by save, filled by load */
    bool optional;                  /* if the checkpoint has no such tensor, load leaves `data` unchanged */
} Interval;

typedef struct CheckpointStats {
    double seconds;
    int64_t bytes;  /* of all files of the checkpoint that this rank knows: all files on rank 0, the shard on others */
    int64_t shared; /* of these, the bytes that were not written again */
} CheckpointStats;

/* The data that one rank saves. The intervals of all ranks together must cover the whole state,
 * without overlap. */
typedef struct CheckpointPlan {
    const char *where;
    int64_t step;
    const Interval *intervals;
    size_t count;
    json_t *metadata;   /* rank 0's is kept; may be NULL */
    int keep;           /* number of newest good checkpoints to keep, at least 1 */
    int64_t protect[2]; /* steps whose checkpoints are kept too; 0: none */
    int64_t keep_every; /* checkpoints at multiples of this step are kept too; 0: none */
    int rank, ranks;
    uint64_t attempt; /* equal on all ranks, different for every save; part of temporary names */
    bool share;       /* do not rewrite chunks that are unchanged since the newest older checkpoint */
    Lease *lease;     /* rank 0's, checked before anything is written and before the checkpoint is published; NULL: none */
    double timeout;   /* seconds that rank 0 waits for the other ranks' shards after its own */
} CheckpointPlan;

/* Saves a step into a store whose folder exists (lease_take makes it). Half-written checkpoints of
 * earlier attempts are removed first, to make room. Complete checkpoints are not touched until the
 * new one is complete, synced and read back. Then checkpoints before `step` are removed, except the
 * newest good ones (`keep` including the new one) and the steps named by `protect` and
 * `keep_every`. Good means an intact manifest and correct file sizes. Among the newest, an
 * unreadable checkpoint is not counted and is kept, and a damaged one is renamed to
 * step-00000040.damaged-ID. If the new checkpoint cannot be read back now, a later save removes the
 * older ones. The disk needs room for one checkpoint more than are kept. An existing checkpoint of
 * the same step is replaced atomically. On rank 0, success means that the checkpoint is complete; on
 * other ranks, that their shard is.
 *
 * Sharing applies to whole files of the older checkpoint; at least half of a file must be
 * unchanged. A file system links the file, and a bucket's server copies it. So every checkpoint is
 * complete in its own folder, whichever others are removed. Damage to a hard-linked file damages
 * all checkpoints that share it.
 *
 * The job runs in a thread. The data that `plan` points to must not change until
 * checkpoint_finish. */
typedef struct CheckpointJob CheckpointJob;
CheckpointJob *checkpoint_start(const CheckpointPlan *plan);
bool checkpoint_is_done(const CheckpointJob *job);
/* Returns why the job has failed; NULL: it has not failed so far. Owned by the job. */
const Error *checkpoint_failure(const CheckpointJob *job);
/* Makes rank 0's job fail with the reason instead of waiting for the other ranks' shards, after one
 * of these ranks has failed. */
void checkpoint_give_up(CheckpointJob *job, const char *reason);
/* Waits for the end of the job and frees it. `stats` may be NULL. */
bool checkpoint_finish(CheckpointJob *job, CheckpointStats *stats, Error *error);

/* Lists the steps of all complete checkpoints, newest first, without verifying them. The caller
 * frees *steps. A listing that fails is retried for 12 seconds. */
bool checkpoint_list(const char *where, int64_t **steps, size_t *count, Error *error);

/* Atomically replaces the members of an object in the metadata of a complete checkpoint. */
bool checkpoint_annotate(const char *where, int64_t step, json_t *members, Error *error);

/* Writes an object of this rank, reads it back and removes it, so that a store that cannot be
 * written or read is detected before the first step. */
bool checkpoint_probe(const char *where, int rank, Error *error);

/* Lists the half-written checkpoints with log_warn. The caller must hold the run's lock, because a
 * save in progress looks the same. */
void checkpoint_report_leftovers(const char *where);

/* Fills every interval from the checkpoint. All elements must be present with the same type and
 * tensor shape, except the elements of optional tensors; otherwise ERROR_CHECKPOINT names the
 * tensor, with FINDING_DAMAGED. Only needed data is read, and all of it is verified against its
 * checksum. After a failure the contents of the intervals are undefined. `metadata` (may be NULL)
 * receives a new reference to the saved metadata, or NULL if none was saved. */
bool checkpoint_load(const char *where, int64_t step, const Interval *intervals, size_t count, json_t **metadata, Error *error);

/* Returns the saved metadata of a step, {} if there is none; reads and checks only the manifest.
 * The caller owns the reference. NULL on failure. */
json_t *checkpoint_metadata(const char *where, int64_t step, Error *error);
