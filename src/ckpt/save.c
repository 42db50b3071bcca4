/* Saving checkpoints; ckpt.h describes the folder. A rank writes its shard, then its rank manifest: a manifest of that
 * shard alone. Rank 0 joins the rank manifests. A single rank writes the manifest at once. On a file system the folder
 * has a temporary name until its last byte is on disk; in a bucket, where nothing can be renamed, the objects of an
 * attempt have names of their own, so that an attempt that fails leaves an older checkpoint of its step alone. A job
 * owns its thread and nothing else beyond a call. Called by the training loop. */
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

/* A save under way: its names, and what it needs everywhere. */
typedef struct Save {
    const CheckpointPlan *plan;
    Store *store;
    StorePath draft, final, aside; /* folders; draft is final where nothing can be renamed */
    char suffix[24];               /* of the names of an attempt, where two attempts could share a folder; else "" */
    int64_t bytes, shared;
} Save;

/* -- One rank's shard --------------------------------------------------------------------------------------------- */

/* The name of a file in the draft. */
static StorePath draft_path(const Save *save, const char *name) { return store_format("%s/%s", save->draft.text, name); }

static StorePath rank_manifest_name(const Save *save, int rank) { return store_format("rank-%05d%s.json", rank, save->suffix); }

/* The newest good checkpoint before this step; false when there is none. */
static bool older_read(const Save *save, Manifest *older) {
    SCOPED(folder_listing_free) FolderListing listing = {0};
    Error ignored = {0};
    if (!folder_list(save->store, &listing, &ignored)) return false;
    for (size_t i = 0; i < listing.count; i++)
        if (listing.steps[i] < save->plan->step && checkpoint_open(older, save->store, listing.steps[i], &ignored)) return true;
    return false;
}

/* Refers to what an older checkpoint has; without one, or when that fails, everything is written. */
static void share_older(Save *save, Chunks *chunks) {
    SCOPED(manifest_free) Manifest older = {0};
    Error error = {0};
    if (!save->plan->share || !older_read(save, &older)) return;
    if (!chunks_share(chunks, save->store, &older, save->draft.text, &error)) {
        log_warn("%s: unchanged chunks are written again", error.message);
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

/* Writes this rank's shard and describes it: in the manifest if there are no other ranks, else in its rank manifest. */
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

/* Lets rank 0 know that there is nothing to wait for. */
static void failure_write(Save *save, const Error *reason) {
    Error ignored = {0};
    json_auto_t *metadata = json_pack("{s:s}", "failure", reason->message);
    Manifest manifest = {.step = save->plan->step, .metadata = metadata};
    manifest_put(save, &manifest, rank_manifest_name(save, save->plan->rank), &ignored);
}

/* -- Joining the rank manifests, on rank 0 ------------------------------------------------------------------------ */

static bool is_ours(const Save *save, Error *error) { return !save->plan->lease || lease_check(save->plan->lease, error); }

/* How many of the rank manifests are there; `missing` is the first rank whose is not. */
static bool ranks_count(const Save *save, int *there, int *missing, Error *error) {
    SCOPED(file_list_free) FileList listing = {0};
    if (!store_list(save->store, save->draft.text, &listing, error)) return false;
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
        if (!ranks_count(save, &there, &missing, error) || !is_ours(save, error)) return false;
        if (there == save->plan->ranks) return true;
        if (log_seconds() - start > save->plan->timeout)
            return error_set(error, ERROR_CHECKPOINT, "%d of %d ranks wrote their shard within %g s, rank %d is the first that did not",
                there, save->plan->ranks, save->plan->timeout, missing);
        thread_sleep(pause);
    }
}

/* The index of the file in `joined`, which it enters unless another rank shares it too. */
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

/* Reads the manifest of a rank; fails with the rank's reason if it failed there. */
static bool rank_manifest_read(const Save *save, int rank, Manifest *manifest, Error *error) {
    bool good = manifest_read(manifest, save->store, draft_path(save, rank_manifest_name(save, rank).text).text, error);
    const char *failure = good ? json_string_value(json_object_get(manifest->metadata, "failure")) : NULL;
    if (!failure) return good || error_context(error, "rank %d", rank);
    return error_set(error, ERROR_CHECKPOINT, "rank %d: %s", rank, failure);
}

static bool ranks_join(Save *save, Error *error) {
    const CheckpointPlan *plan = save->plan;
    SCOPED(manifest_free) Manifest joined = {.step = plan->step, .metadata = plan->metadata, .json = json_array()};
    if (!ranks_wait(save, error)) return false;
    for (int rank = 0; rank < plan->ranks; rank++) {
        SCOPED(manifest_free) Manifest one = {0};
        if (!rank_manifest_read(save, rank, &one, error)) return false;
        manifest_join(&joined, &one);
        json_array_append(joined.json, one.json); /* the strings of `joined` lie there */
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

static void leftovers_remove(const Save *save) {
    SCOPED(folder_listing_free) FolderListing listing = {0};
    Error error = {0};
    if (!list_or_warn(save, &listing)) return;
    for (size_t i = 0; i < listing.leftover_count; i++)
        if (strcmp(listing.leftovers[i].text, save->draft.text) != 0) /* other ranks may have begun */
            remove_or_warn(save->store, listing.leftovers[i].text);
    if (!store_clean(save->store, "checkpoints", save->suffix, &error)) log_warn("%s", error.message);
}

static bool is_listed(const Manifest *manifest, const char *name) {
    bool listed = strcmp(name, "manifest.json") == 0;
    for (size_t i = 0; i < manifest->file_count && !listed; i++) listed = strcmp(manifest->files[i].name, name) == 0;
    return listed;
}

/* Removes what is in the folder but not in its manifest: rank manifests, and whatever earlier attempts left. */
static void draft_sweep(const Save *save) {
    SCOPED(manifest_free) Manifest manifest = {0};
    SCOPED(file_list_free) FileList listing = {0};
    Error error = {0};
    if (manifest_read(&manifest, save->store, folder_manifest(save->draft.text).text, &error) &&
        store_list(save->store, save->draft.text, &listing, &error))
        for (size_t i = 0; i < listing.count; i++)
            if (!is_listed(&manifest, listing.entries[i].name)) remove_or_warn(save->store, draft_path(save, listing.entries[i].name).text);
}

/* Removes a checkpoint so that an interruption does not leave what looks like a damaged one. */
static void checkpoint_discard(const Save *save, int64_t step) {
    StorePath final = folder_step(step), draft = folder_draft(step, save->plan->attempt);
    Error error = {0};
    if (!store_renames(save->store)) {
        remove_or_warn(save->store, folder_manifest(final.text).text);
        remove_or_warn(save->store, final.text);
    } else if (store_rename(save->store, final.text, draft.text, draft.text, &error)) {
        remove_or_warn(save->store, draft.text);
    } else {
        log_warn("an old checkpoint stays: %s", error.message);
    }
}

static bool stays(const CheckpointPlan *plan, int64_t step) {
    return step > plan->step || step == plan->protect[0] || step == plan->protect[1] || (plan->keep_every && step % plan->keep_every == 0);
}

static void checkpoints_prune(const Save *save) {
    SCOPED(folder_listing_free) FolderListing listing = {0};
    Error error = {0};
    if (!list_or_warn(save, &listing)) return;
    int kept = 0;
    for (size_t i = 0; i < listing.count; i++) {
        SCOPED(manifest_free) Manifest manifest = {0};
        bool newer = listing.steps[i] > save->plan->step;
        if (!newer && kept < save->plan->keep && checkpoint_open(&manifest, save->store, listing.steps[i], &error)) kept++;
        else if (!stays(save->plan, listing.steps[i])) checkpoint_discard(save, listing.steps[i]);
    }
}

static bool publish(const Save *save, Error *error) {
    if (save->plan->ranks > 1 || save->plan->share || !store_renames(save->store)) draft_sweep(save);
    return !store_renames(save->store) || store_rename(save->store, save->draft.text, save->final.text, save->aside.text, error);
}

/* -- A whole save ------------------------------------------------------------------------------------------------- */

/* Adds what was attempted, and the room on the disk, to the reason of a failure. */
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

static bool save_first_rank(Save *save, Error *error) {
    if (!is_ours(save, error)) return false;
    leftovers_remove(save);
    bool good =
        shard_write(save, error) && (save->plan->ranks == 1 || ranks_join(save, error)) && is_ours(save, error) && publish(save, error);
    if (store_renames(save->store)) {
        remove_or_warn(save->store, save->draft.text); /* what failed, or what was replaced */
        if (good) remove_or_warn(save->store, save->aside.text);
    }
    if (good) checkpoints_prune(save);
    else is_ours(save, error); /* where the folder was moved away, that is the reason of what failed */
    return good;
}

static bool save_other_rank(Save *save, Error *error) {
    bool good = shard_write(save, error);
    if (!good) failure_write(save, error);
    return good;
}

bool checkpoint_write(const CheckpointPlan *plan, CheckpointStats *stats, Error *error) {
    assert(plan->step >= 0 && plan->keep >= 1 && plan->rank >= 0 && plan->rank < plan->ranks);
    double start = log_seconds();
    Save save = {.plan = plan, .store = store_open(plan->where, error)};
    if (!save.store) return false;
    if (!store_renames(save.store)) snprintf(save.suffix, sizeof save.suffix, "-%llx", (unsigned long long)plan->attempt);
    save.final = folder_step(plan->step);
    save.draft = store_renames(save.store) ? folder_draft(plan->step, plan->attempt) : save.final;
    save.aside = folder_aside(plan->step);
    bool good = plan->rank == 0 ? save_first_rank(&save, error) : save_other_rank(&save, error);
    if (!good) failure_explain(&save, error);
    else if (stats) *stats = (CheckpointStats){.seconds = log_seconds() - start, .bytes = save.bytes, .shared = save.shared};
    store_close(save.store);
    return good;
}

bool checkpoint_probe(const char *where, Error *error) {
    static const char name[] = "checkpoints/probe";
    SCOPED(store_release) Store *store = store_open(where, error);
    StoreSpan span = {.data = name, .bytes = sizeof name};
    return store && store_put(store, name, &span, 1, error) && store_remove(store, name, error);
}

/* -- In a thread -------------------------------------------------------------------------------------------------- */

struct CheckpointJob {
    CheckpointPlan plan;
    CheckpointStats stats;
    Error error;
    bool saved;
    atomic_bool done;
    bool threaded;
    pthread_t thread;
};

static void *job_run(void *context) {
    CheckpointJob *job = context;
    job->saved = checkpoint_write(&job->plan, &job->stats, &job->error);
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

bool checkpoint_finish(CheckpointJob *job, CheckpointStats *stats, Error *error) {
    if (job->threaded) pthread_join(job->thread, NULL);
    bool saved = job->saved;
    if (saved && stats) *stats = job->stats;
    if (!saved) *error = job->error;
    free(job);
    return saved;
}
