/* Saves checkpoints; ckpt.h describes the folder. A rank writes its shard, then its rank manifest:
 * a manifest of that shard alone. Rank 0 joins the rank manifests. A single rank writes the
 * manifest directly. On a file system the folder has a temporary name until its last byte is on
 * disk. A bucket cannot rename, so the objects of each attempt have different names, and an attempt
 * that fails leaves an older checkpoint of its step intact. A job owns its thread and nothing else
 * beyond a call. Called by the training loop. */
#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/thread.h"
#include "ckpt/ckpt_internal.h"

struct CheckpointJob {
    CheckpointPlan plan;
    CheckpointStats stats;
    Error error;
    bool saved;
    atomic_bool done;
    atomic_bool given_up; /* rank 0 stops waiting; the reason is written before this is set */
    char reason[1024];
    bool threaded;
    pthread_t thread;
};

/* A save in progress: its names, and the state that all steps need. */
typedef struct Save {
    const CheckpointPlan *plan;
    Store *store;
    CheckpointJob *job;            /* NULL: none; such a save cannot be given up */
    StorePath draft, final, aside; /* folders; equal draft and final if the store cannot rename */
    char suffix[24];               /* of an attempt's names if two attempts could share a folder, else "" */
    int64_t bytes, shared;
} Save;

/* -- One rank's shard --------------------------------------------------------------------------------------------- */

/* Returns the path of a file in the draft. */
static StorePath draft_path(const Save *save, const char *name) { return store_format("%s/%s", save->draft.text, name); }

static StorePath rank_manifest_name(const Save *save, int rank) { return store_format("rank-%05d%s.json", rank, save->suffix); }

/* Opens the newest good checkpoint before this step; returns false if there is none. */
static bool older_read(const Save *save, Manifest *older) {
    SCOPED(folder_listing_free) FolderListing listing = {0};
    Error ignored = {0};
    if (!folder_list(save->store, &listing, &ignored)) return false;
    for (size_t i = 0; i < listing.count; i++)
        if (listing.steps[i] < save->plan->step && checkpoint_open(older, save->store, listing.steps[i], &ignored)) return true;
    return false;
}

/* Shares unchanged chunks with an older checkpoint. Without one, or if sharing fails, everything is
 * written. */
static void share_older(Save *save, Chunks *chunks) {
    SCOPED(manifest_free) Manifest older = {0};
    Error error = {0};
    if (!save->plan->share || !older_read(save, &older)) return;
    if (!chunks_share(chunks, save->store, &older, save->draft.text, &error)) {
        log_warn("%s: unchanged chunks are not reused", error.message);
        chunks_free(chunks);
        *chunks = chunks_cut(save->plan->intervals, save->plan->count);
    }
    save->shared = chunks->shared;
}

/* Writes a manifest into the draft. */
static bool manifest_put(Save *save, const Manifest *manifest, StorePath name, Error *error) {
    int64_t bytes = 0;
    bool good = manifest_write(manifest, save->store, draft_path(save, name.text).text, &bytes, error);
    save->bytes += bytes;
    return good;
}

/* Writes this rank's shard and describes it: in the manifest if it is the only rank, else in its
 * rank manifest. */
static bool shard_write(Save *save, Error *error) {
    const CheckpointPlan *plan = save->plan;
    StorePath shard = store_format("shard-%05d-of-%05d%s.safetensors", plan->rank, plan->ranks, save->suffix);
    SCOPED(chunks_free) Chunks chunks = chunks_cut(plan->intervals, plan->count);
    share_older(save, &chunks);
    if (!chunks_write(&chunks, save->store, save->draft.text, shard.text, error)) return false;
    const bool alone = plan->ranks == 1;
    Manifest manifest = {.step = plan->step,
        .metadata = alone ? plan->metadata : NULL,
        .files = chunks.files,
        .file_count = chunks.file_count,
        .intervals = chunks.entries,
        .interval_count = chunks.count};
    for (size_t i = 0; i < chunks.file_count; i++) save->bytes += chunks.files[i].bytes;
    return manifest_put(save, &manifest, alone ? store_format("manifest.json") : rank_manifest_name(save, plan->rank), error);
}

/* -- Joining the rank manifests, on rank 0 ------------------------------------------------------------------------ */

/* Retries while the lease is unreadable. */
static bool store_is_ours(const Save *save, Error *error) {
    Lease *lease = save->plan->lease;
    for (int attempts = 0; lease && !lease_check(lease, error);)
        if (!thread_try_again(error, &attempts)) return false;
    return true;
}

/* Counts the rank manifests that exist; `missing` is the first rank without one. */
static bool ranks_count(const Save *save, int *there, int *missing, Error *error) {
    SCOPED(file_list_free) FileList listing = {0};
    for (int attempts = 0; !store_list(save->store, save->draft.text, &listing, error);)
        if (!thread_try_again(error, &attempts)) return false;
    *there = 0;
    *missing = -1;
    for (int rank = 0; rank < save->plan->ranks; rank++) {
        bool found = file_list_has(&listing, rank_manifest_name(save, rank).text);
        *there += found;
        if (!found && *missing < 0) *missing = rank;
    }
    return true;
}

static bool ranks_wait(const Save *save, Error *error) {
    const double longest_pause = 1, start = log_seconds();
    for (double pause = 0.01;; pause = pause * 2 < longest_pause ? pause * 2 : longest_pause) {
        int there, missing;
        if (atomic_load(&save->job->given_up)) return error_set(error, ERROR_CHECKPOINT, "%s", save->job->reason);
        if (!ranks_count(save, &there, &missing, error) || !store_is_ours(save, error)) return false;
        if (there == save->plan->ranks) return true;
        if (log_seconds() - start > save->plan->timeout)
            return error_set(error, ERROR_CHECKPOINT, "only %d of %d ranks wrote their shards within %g s; the first missing rank is %d",
                there, save->plan->ranks, save->plan->timeout, missing);
        thread_sleep(pause);
    }
}

/* Returns the index of the file in `joined`, and adds it unless another rank shares it too. */
static size_t file_join(Manifest *joined, const ManifestFile *file) {
    for (size_t i = 0; i < joined->file_count; i++)
        if (strcmp(joined->files[i].name, file->name) == 0) return i;
    array_append(joined->files, joined->file_count, *file);
    return joined->file_count - 1;
}

static void manifest_join(Manifest *joined, const Manifest *one) {
    SCOPED_FREE size_t *files = memory_allocate((one->file_count + 1) * sizeof *files);
    for (size_t i = 0; i < one->file_count; i++) files[i] = file_join(joined, &one->files[i]);
    for (size_t i = 0; i < one->interval_count; i++) {
        ManifestInterval entry = one->intervals[i];
        entry.file = files[entry.file];
        array_append(joined->intervals, joined->interval_count, entry);
    }
}

/* Reads the listed manifest of a rank. */
static bool rank_manifest_read(const Save *save, int rank, Manifest *manifest, Error *error) {
    StorePath name = draft_path(save, rank_manifest_name(save, rank).text);
    for (int attempts = 0; !manifest_read(manifest, save->store, name.text, error);)
        if (error->finding == FINDING_DAMAGED || !thread_pause(&attempts)) return error_context(error, "rank %d", rank);
    return true;
}

static bool ranks_join(Save *save, Error *error) {
    const CheckpointPlan *plan = save->plan;
    SCOPED(manifest_free) Manifest joined = {.step = plan->step, .metadata = plan->metadata, .json = json_array()};
    if (!ranks_wait(save, error)) return false;
    for (int rank = 0; rank < plan->ranks; rank++) {
        SCOPED(manifest_free) Manifest one = {0};
        if (!rank_manifest_read(save, rank, &one, error)) return false;
        manifest_join(&joined, &one);
        json_array_append(joined.json, one.json); /* the strings of `joined` belong to it */
    }
    save->bytes = 0;
    for (size_t i = 0; i < joined.file_count; i++) save->bytes += joined.files[i].bytes;
    return manifest_put(save, &joined, store_format("manifest.json"), error);
}

/* -- The folder, on rank 0 ---------------------------------------------------------------------------------------- */

static void remove_or_warn(Store *store, const char *name) {
    Error error = {0};
    if (!store_remove(store, name, &error)) log_warn("%s", error.message);
}

static bool list_or_warn(const Save *save, FolderListing *listing) {
    Error error = {0};
    if (folder_list(save->store, listing, &error)) return true;
    log_warn("%s", error.message);
    return false;
}

/* Returns true if a folder is known to have no manifest. In a bucket, the folder of a checkpoint
 * has its final name from its first object on. */
static bool is_unfinished(Store *store, const char *folder) {
    SCOPED(store_object_close) StoreObject manifest = {0};
    Error error = {0};
    return store_renames(store) ||
           (!store_object_open(store, folder_manifest(folder).text, &manifest, &error) && error.finding == FINDING_ABSENT);
}

static void leftovers_remove(const Save *save) {
    SCOPED(folder_listing_free) FolderListing listing = {0};
    Error error = {0};
    if (!list_or_warn(save, &listing)) return;
    for (size_t i = 0; i < listing.leftover_count; i++) {
        const char *folder = listing.leftovers[i].text;
        if (strcmp(folder, save->draft.text) != 0 /* other ranks may have begun */ && is_unfinished(save->store, folder))
            remove_or_warn(save->store, folder);
    }
    if (!store_clean(save->store, "checkpoints", save->suffix, &error)) log_warn("%s", error.message);
}

static bool manifest_lists(const Manifest *manifest, const char *name) {
    bool listed = strcmp(name, "manifest.json") == 0;
    for (size_t i = 0; i < manifest->file_count && !listed; i++) listed = strcmp(manifest->files[i].name, name) == 0;
    return listed;
}

/* Removes everything in the folder that its manifest does not list: rank manifests, and remains of
 * earlier attempts. */
static void draft_sweep(const Save *save) {
    SCOPED(manifest_free) Manifest manifest = {0};
    SCOPED(file_list_free) FileList listing = {0};
    Error error = {0};
    if (manifest_read(&manifest, save->store, folder_manifest(save->draft.text).text, &error) &&
        store_list(save->store, save->draft.text, &listing, &error))
        for (size_t i = 0; i < listing.count; i++)
            if (!manifest_lists(&manifest, listing.entries[i].name))
                remove_or_warn(save->store, draft_path(save, listing.entries[i].name).text);
}

/* -- Older checkpoints, on rank 0 ---------------------------------------------------------------------------------- */

/* Proves that a checkpoint was read back from the store after it was written. Every removal of
 * another checkpoint requires a proof. Made only by read_back. */
typedef struct Proof {
    bool good;
    StorePath folder;
    char reason[256]; /* if not good: why it could not be read */
} Proof;

/* The only function that removes checkpoints. The proof guarantees that another checkpoint is
 * whole. An interruption does not leave an apparently damaged checkpoint. The temporary name
 * contains the checkpoint's own step, so it never meets the remains of another failed removal. */
static void checkpoint_discard(const Save *save, StorePath folder, int64_t step, const Proof *other) {
    assert(other->good && strcmp(other->folder.text, folder.text) != 0);
    StorePath draft = folder_draft(step, save->plan->attempt);
    Error error = {0};
    if (!store_renames(save->store)) {
        remove_or_warn(save->store, folder_manifest(folder.text).text);
        remove_or_warn(save->store, folder.text);
    } else if (store_rename(save->store, folder.text, draft.text, NULL, &error)) {
        remove_or_warn(save->store, draft.text);
    } else {
        log_warn("an old checkpoint was not removed: %s", error.message);
    }
}

/* Renames a damaged checkpoint so that starts and saves ignore it; a bucket, which cannot rename,
 * keeps it. */
static void set_damaged_aside(const Save *save, int64_t step, const char *reason) {
    StorePath final = folder_step(step), aside = folder_damaged(step, save->plan->attempt);
    Error error = {0};
    bool moved = store_renames(save->store) && store_rename(save->store, final.text, aside.text, NULL, &error);
    log_warn("the checkpoint of step %lld is damaged and was %s%s: %s", (long long)step,
        moved ? "renamed to " : "not removed; checkpoint.keep does not count it", moved ? store_path(save->store, aside.text).text : "",
        reason);
}

/* Reads the new checkpoint. Returns false if it is known to be damaged or missing. A checkpoint
 * that cannot be read now counts as saved, but gives no proof. */
static bool read_back(const Save *save, Proof *proof, Error *error) {
    SCOPED(manifest_free) Manifest manifest = {0};
    int64_t step = save->plan->step;
    *proof = (Proof){.folder = folder_step(step)};
    for (int attempts = 0; !proof->good;) {
        proof->good = checkpoint_open(&manifest, save->store, step, error);
        if (!proof->good && (error->finding == FINDING_DAMAGED || !store_is_ours(save, error) || !thread_pause(&attempts))) break;
    }
    if (proof->good) return true;
    if (error->finding == FINDING_DAMAGED) set_damaged_aside(save, step, error->message);
    snprintf(proof->reason, sizeof proof->reason, "%.250s", error->message);
    return error->finding == FINDING_UNREADABLE || error_context(error, "it was written, but does not read back identically");
}

static bool stays(const CheckpointPlan *plan, int64_t step) {
    return step > plan->step || step == plan->protect[0] || step == plan->protect[1] || (plan->keep_every && step % plan->keep_every == 0);
}

/* Returns true if a checkpoint counts as one of the `keep` good ones. A damaged one is set aside.
 * An unreadable one is kept and not counted. */
static bool is_intact(const Save *save, int64_t step, bool *known) {
    SCOPED(manifest_free) Manifest manifest = {0};
    Error error = {0};
    bool good = checkpoint_open(&manifest, save->store, step, &error);
    *known = good || error.finding == FINDING_DAMAGED;
    if (!good && *known) set_damaged_aside(save, step, error.message);
    if (!*known) log_warn("the checkpoint of step %lld is not readable now and was not removed: %s", (long long)step, error.message);
    return good;
}

/* Removes the checkpoints that checkpoint.keep does not keep, once the new checkpoint is proven;
 * otherwise the next save removes them. */
static void checkpoints_prune(const Save *save, const Proof *proof) {
    SCOPED(folder_listing_free) FolderListing listing = {0};
    const CheckpointPlan *plan = save->plan;
    if (!proof->good) {
        log_warn(
            "the checkpoint of step %lld was written but is not readable now, so older checkpoints are not removed until a later save: %s",
            (long long)plan->step, proof->reason);
        return;
    }
    if (!list_or_warn(save, &listing)) return;
    int kept = 1;
    for (size_t i = 0; i < listing.count; i++) {
        int64_t step = listing.steps[i];
        bool known = true;
        if (step >= plan->step) continue;
        if (kept < plan->keep) kept += is_intact(save, step, &known);
        else if (!stays(plan, step)) checkpoint_discard(save, folder_step(step), step, proof);
    }
    for (size_t i = 0; i < listing.replaced_count; i++)
        if (folder_has(&listing, listing.replaced[i]))
            checkpoint_discard(save, folder_aside(listing.replaced[i]), listing.replaced[i], proof);
}

/* -- A whole save ------------------------------------------------------------------------------------------------- */

/* Adds the attempted size and the free disk space to the reason of a failure. */
static void failure_explain(const Save *save, Error *error) {
    double needed = 0;
    for (size_t i = 0; i < save->plan->count; i++)
        needed += (double)save->plan->intervals[i].slice.count * (double)stored_type_bytes(save->plan->intervals[i].type);
    char amount[32], room[96];
    log_format_bytes(needed, amount);
    snprintf(room, sizeof room, "%s needed", amount);
    store_append_free(save->store, room, sizeof room);
    error_context(error, "the checkpoint of step %lld was not saved (%s; older ones are untouched)", (long long)save->plan->step, room);
}

static bool publish(const Save *save, Error *error) {
    if (!store_renames(save->store)) return true; /* its manifest exists */
    if (save->plan->ranks > 1 || save->plan->share) draft_sweep(save);
    return store_rename(save->store, save->draft.text, save->final.text, save->aside.text, error);
}

static bool save_first_rank(Save *save, Error *error) {
    Proof proof;
    if (!store_is_ours(save, error)) return false;
    leftovers_remove(save);
    bool written = shard_write(save, error) && (save->plan->ranks == 1 || ranks_join(save, error)) && store_is_ours(save, error);
    bool good = written && publish(save, error) && read_back(save, &proof, error);
    if (!written && store_renames(save->store)) remove_or_warn(save->store, save->draft.text);
    if (good) {
        if (proof.good && !store_renames(save->store)) draft_sweep(save);
        if (save->plan->lease) lease_note_saved(save->plan->lease, save->plan->step);
        checkpoints_prune(save, &proof);
    } else {
        store_is_ours(save, error); /* if the folder was moved away, that caused the failure */
    }
    return good;
}

static bool save_run(CheckpointJob *job) {
    const CheckpointPlan *plan = &job->plan;
    Error *error = &job->error;
    assert(plan->step >= 0 && plan->keep >= 1 && plan->rank >= 0 && plan->rank < plan->ranks);
    double start = log_seconds();
    Save save = {.plan = plan, .job = job, .store = store_open(plan->where, error)};
    if (!save.store) return false;
    if (!store_renames(save.store)) snprintf(save.suffix, sizeof save.suffix, "-%llx", (unsigned long long)plan->attempt);
    save.final = folder_step(plan->step);
    save.draft = store_renames(save.store) ? folder_draft(plan->step, plan->attempt) : save.final;
    save.aside = folder_aside(plan->step);
    bool good = plan->rank == 0 ? save_first_rank(&save, error) : shard_write(&save, error);
    if (!good) failure_explain(&save, error);
    else job->stats = (CheckpointStats){.seconds = log_seconds() - start, .bytes = save.bytes, .shared = save.shared};
    store_close(save.store);
    return good;
}

bool checkpoint_probe(const char *where, int rank, Error *error) {
    SCOPED(store_release) Store *store = store_open(where, error);
    StorePath name = folder_probe(rank);
    StoreSpan span = {.data = name.text, .bytes = (int64_t)strlen(name.text)};
    int64_t length;
    if (!store || !store_put(store, name.text, &span, 1, error)) return false;
    SCOPED_FREE char *text = store_get(store, name.text, span.bytes, &length, error);
    if (!text) return error_context(error, "a test object that was just written is not readable");
    if (length != span.bytes || memcmp(text, span.data, (size_t)length) != 0)
        return error_set(
            error, ERROR_CHECKPOINT, "%s does not read back as it was written: the store is unusable", store_path(store, name.text).text);
    return store_remove(store, name.text, error);
}

/* -- In a thread -------------------------------------------------------------------------------------------------- */

static void *job_run(void *context) {
    CheckpointJob *job = context;
    job->saved = save_run(job);
    atomic_store(&job->done, true);
    return NULL;
}

CheckpointJob *checkpoint_start(const CheckpointPlan *plan) {
    CheckpointJob *job = memory_allocate(sizeof *job);
    job->plan = *plan;
    job->threaded = thread_start(&job->thread, job_run, job) == 0;
    if (!job->threaded) job_run(job);
    return job;
}

bool checkpoint_is_done(const CheckpointJob *job) { return atomic_load(&job->done); }

const Error *checkpoint_failure(const CheckpointJob *job) { return checkpoint_is_done(job) && !job->saved ? &job->error : NULL; }

void checkpoint_give_up(CheckpointJob *job, const char *reason) {
    if (atomic_load(&job->given_up)) return;
    snprintf(job->reason, sizeof job->reason, "%s", reason);
    atomic_store(&job->given_up, true);
}

bool checkpoint_finish(CheckpointJob *job, CheckpointStats *stats, Error *error) {
    if (job->threaded) pthread_join(job->thread, NULL);
    bool saved = job->saved;
    if (saved && stats) *stats = job->stats;
    if (!saved) *error = job->error;
    free(job);
    return saved;
}
