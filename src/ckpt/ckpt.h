/* Checkpoints: a step that was acknowledged survives kill -9, a full disk and a torn write.
 *
 * A checkpoint is a folder checkpoints/step-00000040 of a store (store_internal.h) with safetensors shards and
 * manifest.json. A shard holds intervals: (tensor name, slice) of flattened tensors. A slice is contiguous elements,
 * or runs at equal distances (base/slice.h). Ranks in any layout write intervals, and ranks in any other layout load
 * them by intersecting slices. Every rank writes a shard and, once the shard is durable, a manifest of it. Rank 0
 * waits for all of these and joins them to the manifest of the checkpoint. The manifest lists every interval with its
 * file, byte range and xxh3, and the caller's metadata. On a file system everything is written to a folder with a
 * temporary name and synced, the manifest last; then the folder is renamed, so a folder with the final name is
 * complete. In a bucket, a folder with a manifest is complete.
 *
 * `where` is a run folder, another folder, or s3://BUCKET/PREFIX (store_internal.h). Strings of the caller are not
 * kept. Every failure is ERROR_CHECKPOINT with the path and the reason. A failure to read a checkpoint also carries a
 * finding (ErrorFinding). Absent: a later save has removed it. Damaged: it was read whole, and fails a checksum or
 * lacks a file. Unreadable: nothing is known now, and no caller may take it for absent or damaged. One job at a time
 * saves into a run. */
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
    STORED_F8_E4M3, /* OCP's (base/float8.h) */
} StoredType;
size_t stored_type_bytes(StoredType type);
const char *stored_type_name(StoredType type); /* "F32", as in the file format */

typedef struct StoredTensor {
    const char *name;
    StoredType type;
    int rank;
    int64_t shape[STORED_MAX_RANK];
    const void *data; /* to write; or inside the mapped file after reading, where it may be unaligned */
} StoredTensor;

/* Whether no element is NaN or infinite; ERROR_NUMERICS names the tensor and its first such element. */
bool stored_check_finite(const StoredTensor *tensor, Error *error);

/* Elements first .. first + count - 1 of a tensor of F32, BF16 or F16. */
void stored_to_floats(const StoredTensor *tensor, int64_t first, int64_t count, float *values);

/* Writes header and data in the given order to `path`, which appears whole and synced or stays what it was. `metadata`
 * (may be NULL) becomes __metadata__ and may hold only strings. */
bool safetensors_write(const char *path, const StoredTensor *tensors, size_t count, json_t *metadata, Error *error);

typedef struct Safetensors {
    StoredTensor *tensors; /* in order of name */
    size_t count;
    json_t *metadata; /* borrowed from `header`; may be NULL */
    FileMap map;
    json_t *header; /* owns the names */
} Safetensors;

/* Maps a file; every name, type, shape and byte range of the header is checked against the file size. */
bool safetensors_open(Safetensors *file, const char *path, Error *error);
void safetensors_close(Safetensors *file);
const StoredTensor *safetensors_find(const Safetensors *file, const char *name); /* NULL when absent */

/* -- Checkpoints (save.c, load.c) --------------------------------------------------------------------------------- */

/* One interval of one tensor in memory. */
typedef struct Interval {
    const char *name;
    StoredType type;
    int rank;
    int64_t shape[STORED_MAX_RANK]; /* of the whole tensor */
    Slice slice;                    /* of the flattened tensor */
    void *data;                     /* slice.count elements: read by save, filled by load */
    bool optional;                  /* load leaves `data` as it is where the checkpoint has no such tensor */
} Interval;

typedef struct CheckpointStats {
    double seconds;
    int64_t bytes;  /* of all files of the checkpoint that this rank knows: all on rank 0, its shard on others */
    int64_t shared; /* of these, bytes that were not written again */
} CheckpointStats;

/* What one rank saves. The intervals of all ranks together must be those of the whole state, without overlap. */
typedef struct CheckpointPlan {
    const char *where;
    int64_t step;
    const Interval *intervals;
    size_t count;
    json_t *metadata;   /* rank 0's is kept; may be NULL */
    int keep;           /* newest good checkpoints that stay, at least 1 */
    int64_t protect[2]; /* steps whose checkpoints stay as well; 0: none */
    int64_t keep_every; /* so do those of multiples of it; 0: none */
    int rank, ranks;
    uint64_t attempt; /* equal on all ranks, another one for every save: names what is temporary */
    bool share;       /* chunks that did not change since the newest older checkpoint are not written again */
    Lease *lease;     /* rank 0's, checked before anything is written and before the checkpoint is published; NULL: none */
    double timeout;   /* seconds that rank 0 waits for the other ranks' shards after its own */
} CheckpointPlan;

/* Saves a step into a store whose folder exists (lease_take makes it). Half-written checkpoints of earlier attempts are
 * removed first, to make room. Complete ones are not touched before the new one is complete, synced and read back: then
 * those before `step` are removed, but for the newest good ones, which are `keep` with the new one, and what `protect`
 * and `keep_every` name. Good means an intact manifest and the right file sizes. Among the newest, one that cannot be
 * read now is not counted and stays, and a damaged one gets another name, step-00000040.damaged-ID. If the new one cannot
 * be read back now, a later save removes the older ones. The disk must hold one more than stay. An existing checkpoint of
 * the same step is replaced atomically. On rank 0, true means that the checkpoint is complete; on others, that their
 * shard is. `stats` may be NULL.
 *
 * What is shared are whole files of the older checkpoint, of which at least half must be unchanged: another name of
 * them in a file system, a copy made by the server in a bucket. So every checkpoint stays complete in its own folder,
 * whichever others are removed; but damage to a shared file damages all that share it. */
bool checkpoint_write(const CheckpointPlan *plan, CheckpointStats *stats, Error *error);

/* checkpoint_write in a thread. What `plan` points to must stay as it is until checkpoint_finish. */
typedef struct CheckpointJob CheckpointJob;
CheckpointJob *checkpoint_start(const CheckpointPlan *plan);
bool checkpoint_is_done(const CheckpointJob *job);
/* Why the job has failed; NULL: it has not, or not yet. Belongs to the job. */
const Error *checkpoint_failure(const CheckpointJob *job);
/* Rank 0's job fails with the reason instead of waiting for the other ranks' shards: one of them has failed. */
void checkpoint_give_up(CheckpointJob *job, const char *reason);
/* Waits for its end and frees it. */
bool checkpoint_finish(CheckpointJob *job, CheckpointStats *stats, Error *error);

/* The steps of all complete checkpoints, newest first, without verifying them. The caller frees *steps. A listing
 * that fails is tried again for 12 seconds. */
bool checkpoint_list(const char *where, int64_t **steps, size_t *count, Error *error);

/* Replaces the members of an object in the metadata of a complete checkpoint, which appears whole or stays as it was. */
bool checkpoint_annotate(const char *where, int64_t step, json_t *members, Error *error);

/* Writes an object of this rank, reads it back and removes it, so that a store that cannot be written or read is found
 * before the first step. */
bool checkpoint_probe(const char *where, int rank, Error *error);

/* Names the half-written checkpoints with log_warn. The caller holds the run: to others a save in progress looks the
 * same. */
void checkpoint_report_leftovers(const char *where);

/* Fills every interval from the checkpoint. All elements must be present with the same type and tensor shape, except
 * those of optional tensors; otherwise ERROR_CHECKPOINT names the tensor, with FINDING_DAMAGED. Nothing else is read,
 * and what is read is verified against its checksum. After a failure the intervals hold anything. `metadata` (may be
 * NULL) receives a new reference to the saved metadata, or NULL if none was saved. */
bool checkpoint_load(const char *where, int64_t step, const Interval *intervals, size_t count, json_t **metadata, Error *error);

/* The saved metadata of a step, {} when none was; only the manifest is read, and checked. The caller owns the
 * reference. NULL on failure. */
json_t *checkpoint_metadata(const char *where, int64_t step, Error *error);
