/* Saving checkpoints; ckpt.h describes the folder. A rank writes its shard, then its part: a manifest of that shard
 * alone. Rank 0 joins the parts. A single rank writes the manifest at once. On a file system the folder has a temporary
 * name until its last byte is on disk; in a bucket, where nothing can be renamed, the objects of an attempt have names of
 * their own, so that an attempt that fails leaves an older checkpoint of its step alone. A job owns its thread and
 * nothing else beyond a call. Called by the training loop. */
#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "ckpt/pieces.h"

/* A save under way: its names, and what it needs everywhere. */
typedef struct Save {
    const CheckpointPlan *plan;
    Store *store;
    char *draft, *final, *aside; /* folders; draft is final where nothing can be renamed */
    int64_t bytes, shared;
} Save;

/* -- Names -------------------------------------------------------------------------------------------------------- */

/* Names of one attempt differ from another's where both could lie in one folder. */
static char *attempt_suffix(const Save *save) {
    if (store_renames(save->store)) return memory_copy_string("");
    return memory_format("-%llx", (unsigned long long)save->plan->attempt);
}

static char *shard_name(const Save *save) {
    char *suffix = attempt_suffix(save);
    char *name = memory_format("shard-%05d-of-%05d%s.safetensors", save->plan->rank, save->plan->ranks, suffix);
    free(suffix);
    return name;
}

static char *part_name(const Save *save, int rank) {
    char *suffix = attempt_suffix(save), *name = memory_format("part-%05d%s.json", rank, suffix);
    free(suffix);
    return name;
}

static char *in_draft(const Save *save, char *name) {
    char *path = memory_format("%s/%s", save->draft, name);
    free(name);
    return path;
}

/* -- One rank's part ---------------------------------------------------------------------------------------------- */

/* The newest good checkpoint before this step; false when there is none. */
static bool older_read(const Save *save, Manifest *older) {
    FolderListing listing;
    Error ignored = {0};
    if (!folder_list(save->store, &listing, &ignored)) return false;
    bool found = false;
    for (size_t i = 0; i < listing.count && !found; i++)
        found = listing.steps[i] < save->plan->step && checkpoint_open(older, save->store, listing.steps[i], &ignored);
    folder_listing_free(&listing);
    return found;
}

/* Refers to what an older checkpoint has; without one, or when that fails, everything is written. */
static void share_older(Save *save, Pieces *pieces) {
    Manifest older;
    Error error = {0};
    if (!save->plan->share || !older_read(save, &older)) return;
    pieces_share(pieces, &older);
    if (!pieces_link(pieces, save->store, &older, save->draft, &error)) {
        log_warn("%s: unchanged parts are written again", error.message);
        pieces_free(pieces);
        *pieces = pieces_cut(save->plan->intervals, save->plan->count);
    }
    save->shared = pieces->shared;
    manifest_free(&older);
}

static bool manifest_put(Save *save, const Manifest *manifest, char *name, Error *error) {
    char *path = in_draft(save, name);
    int64_t bytes = 0;
    bool good = manifest_write(manifest, save->store, path, &bytes, error);
    save->bytes += bytes;
    free(path);
    return good;
}

/* Writes this rank's shard and describes it: in the manifest if there are no other ranks, else in its part. */
static bool part_write(Save *save, Error *error) {
    const CheckpointPlan *plan = save->plan;
    char *shard = shard_name(save);
    Pieces pieces = pieces_cut(plan->intervals, plan->count);
    share_older(save, &pieces);
    bool good = pieces_put(&pieces, save->store, save->draft, shard, error);
    if (good) {
        Manifest manifest = {.step = plan->step,
            .metadata = plan->ranks == 1 ? plan->metadata : NULL,
            .files = pieces.files,
            .file_count = pieces.file_count,
            .intervals = pieces.entries,
            .interval_count = pieces.count};
        for (size_t i = 0; i < pieces.file_count; i++) save->bytes += pieces.files[i].bytes;
        good = manifest_put(save, &manifest, plan->ranks == 1 ? memory_copy_string("manifest.json") : part_name(save, plan->rank), error);
    }
    pieces_free(&pieces);
    free(shard);
    return good;
}

/* Tells rank 0 that there is nothing to wait for. */
static void part_write_failure(Save *save, const Error *reason) {
    Error ignored = {0};
    json_t *metadata = json_pack("{s:s}", "failure", reason->message);
    Manifest manifest = {.step = save->plan->step, .metadata = metadata};
    manifest_put(save, &manifest, part_name(save, save->plan->rank), &ignored);
    json_decref(metadata);
}

/* -- Joining the parts, on rank 0 --------------------------------------------------------------------------------- */

/* How many of the parts are there; `missing` is the first rank whose part is not. */
static bool parts_count(const Save *save, int *there, int *missing, Error *error) {
    FileList listing;
    if (!store_list(save->store, save->draft, &listing, error)) return false;
    *there = 0;
    *missing = -1;
    for (int rank = 0; rank < save->plan->ranks; rank++) {
        char *name = part_name(save, rank);
        bool found = false;
        for (size_t i = 0; i < listing.count && !found; i++) found = strcmp(listing.entries[i].name, name) == 0;
        free(name);
        *there += found;
        if (!found && *missing < 0) *missing = rank;
    }
    file_list_free(&listing);
    return true;
}

static bool parts_wait(const Save *save, Error *error) {
    const double longest_pause = 1;
    double start = log_seconds(), pause = 0.01;
    for (;;) {
        int there, missing;
        if (!parts_count(save, &there, &missing, error)) return false;
        if (there == save->plan->ranks) return true;
        if (log_seconds() - start > save->plan->patience)
            return error_set(error, ERROR_CHECKPOINT, "%d of %d ranks wrote their part within %g s, rank %d is the first that did not",
                there, save->plan->ranks, save->plan->patience, missing);
        nanosleep(&(struct timespec){.tv_sec = (time_t)pause, .tv_nsec = (long)((pause - (time_t)pause) * 1e9)}, NULL);
        pause = pause * 2 < longest_pause ? pause * 2 : longest_pause;
    }
}

/* The index of the file in `joined`, which it enters unless another rank shares it too. */
static size_t file_join(Manifest *joined, const ManifestFile *file) {
    for (size_t i = 0; i < joined->file_count; i++)
        if (strcmp(joined->files[i].name, file->name) == 0) return i;
    array_append(joined->files, joined->file_count, *file);
    return joined->file_count - 1;
}

static void part_join(Manifest *joined, const Manifest *part) {
    size_t *files = memory_allocate((part->file_count + 1) * sizeof *files);
    for (size_t i = 0; i < part->file_count; i++) files[i] = file_join(joined, &part->files[i]);
    for (size_t i = 0; i < part->interval_count; i++) {
        array_append(joined->intervals, joined->interval_count, part->intervals[i]);
        ManifestInterval *entry = &joined->intervals[joined->interval_count - 1];
        entry->file = files[entry->file];
    }
    free(files);
}

/* Reads the part of a rank; fails with the rank's own reason if it failed there. */
static bool part_read(const Save *save, int rank, Manifest *part, Error *error) {
    char *name = in_draft(save, part_name(save, rank));
    bool good = manifest_read(part, save->store, name, error);
    free(name);
    const char *failure = good ? json_string_value(json_object_get(part->metadata, "failure")) : NULL;
    if (!failure) return good || error_context(error, "rank %d", rank);
    error_set(error, ERROR_CHECKPOINT, "rank %d: %s", rank, failure);
    manifest_free(part);
    return false;
}

static bool parts_join(Save *save, Error *error) {
    const CheckpointPlan *plan = save->plan;
    Manifest joined = {.step = plan->step, .metadata = plan->metadata};
    Manifest *parts = memory_allocate((size_t)plan->ranks * sizeof *parts);
    int read = 0;
    bool good = parts_wait(save, error);
    while (good && read < plan->ranks) {
        good = part_read(save, read, &parts[read], error);
        if (good) part_join(&joined, &parts[read++]);
    }
    save->bytes = 0;
    for (size_t i = 0; i < joined.file_count; i++) save->bytes += joined.files[i].bytes;
    good = good && manifest_put(save, &joined, memory_copy_string("manifest.json"), error);
    while (read > 0) manifest_free(&parts[--read]);
    free(parts);
    free(joined.files);
    free(joined.intervals);
    return good;
}

/* -- The folder, on rank 0 ---------------------------------------------------------------------------------------- */

static void remove_or_warn(Store *store, const char *name) {
    Error error = {0};
    if (!store_remove(store, name, &error)) log_warn("%s", error.message);
}

static void leftovers_remove(const Save *save) {
    FolderListing listing;
    Error error = {0};
    if (!folder_list(save->store, &listing, &error)) {
        log_warn("%s", error.message);
        return;
    }
    for (size_t i = 0; i < listing.leftover_count; i++)
        if (strcmp(listing.leftovers[i], save->draft) != 0) /* other ranks may have begun */
            remove_or_warn(save->store, listing.leftovers[i]);
    folder_listing_free(&listing);
    char *suffix = attempt_suffix(save);
    if (!store_clean(save->store, "checkpoints", suffix, &error)) log_warn("%s", error.message);
    free(suffix);
}

static bool is_listed(const Manifest *manifest, const char *name) {
    bool listed = strcmp(name, "manifest.json") == 0;
    for (size_t i = 0; i < manifest->file_count && !listed; i++) listed = strcmp(manifest->files[i].name, name) == 0;
    return listed;
}

/* Removes what is in the folder but not in its manifest: parts, and whatever earlier attempts left. */
static void draft_sweep(const Save *save) {
    Manifest manifest;
    FileList listing = {0};
    Error error = {0};
    char *name = folder_manifest(save->draft);
    if (manifest_read(&manifest, save->store, name, &error) && store_list(save->store, save->draft, &listing, &error))
        for (size_t i = 0; i < listing.count; i++)
            if (!is_listed(&manifest, listing.entries[i].name)) {
                char *stray = memory_format("%s/%s", save->draft, listing.entries[i].name);
                remove_or_warn(save->store, stray);
                free(stray);
            }
    file_list_free(&listing);
    manifest_free(&manifest);
    free(name);
}

/* Removes a checkpoint so that an interruption does not leave what looks like a damaged one. */
static void checkpoint_discard(const Save *save, int64_t step) {
    char *final = folder_step(step), *draft = folder_draft(step, save->plan->attempt), *manifest = folder_manifest(final);
    Error error = {0};
    if (!store_renames(save->store)) {
        remove_or_warn(save->store, manifest);
        remove_or_warn(save->store, final);
    } else if (store_rename(save->store, final, draft, draft, &error)) {
        remove_or_warn(save->store, draft);
    } else {
        log_warn("an old checkpoint stays: %s", error.message);
    }
    free(manifest);
    free(draft);
    free(final);
}

static void checkpoints_prune(const Save *save) {
    FolderListing listing;
    Error error = {0};
    if (!folder_list(save->store, &listing, &error)) {
        log_warn("%s", error.message);
        return;
    }
    int kept = 0;
    for (size_t i = 0; i < listing.count; i++) {
        Manifest manifest = {0};
        if (listing.steps[i] > save->plan->step) continue;
        if (kept < save->plan->keep && checkpoint_open(&manifest, save->store, listing.steps[i], &error)) kept++;
        else checkpoint_discard(save, listing.steps[i]);
        manifest_free(&manifest);
    }
    folder_listing_free(&listing);
}

static bool publish(const Save *save, Error *error) {
    if (save->plan->ranks > 1 || save->plan->share || !store_renames(save->store)) draft_sweep(save);
    return !store_renames(save->store) || store_rename(save->store, save->draft, save->final, save->aside, error);
}

/* -- A whole save ------------------------------------------------------------------------------------------------- */

/* Adds what was attempted, and the room on the disk, to the reason of a failure. */
static void failure_explain(const Save *save, Error *error) {
    double needed = 0;
    for (size_t i = 0; i < save->plan->count; i++)
        needed += (double)save->plan->intervals[i].count * (double)stored_type_bytes(save->plan->intervals[i].type);
    char amount[32], room[96];
    log_format_bytes(needed, amount);
    snprintf(room, sizeof room, "%s needed", amount);
    store_append_free(save->store, room, sizeof room);
    error_context(error, "the checkpoint of step %lld was not saved (%s; older ones are untouched)", (long long)save->plan->step, room);
}

static bool save_first_rank(Save *save, Error *error) {
    leftovers_remove(save);
    bool good = part_write(save, error) && (save->plan->ranks == 1 || parts_join(save, error)) && publish(save, error);
    if (store_renames(save->store)) {
        remove_or_warn(save->store, save->draft); /* what failed, or what was replaced */
        if (good) remove_or_warn(save->store, save->aside);
    }
    if (good) checkpoints_prune(save);
    return good;
}

static bool save_other_rank(Save *save, Error *error) {
    bool good = part_write(save, error);
    if (!good) part_write_failure(save, error);
    return good;
}

bool checkpoint_write(const CheckpointPlan *plan, CheckpointStats *stats, Error *error) {
    assert(plan->step >= 0 && plan->keep >= 1 && plan->rank >= 0 && plan->rank < plan->ranks);
    double start = log_seconds();
    Save save = {.plan = plan, .store = store_open(plan->where, error)};
    if (!save.store) return false;
    save.final = folder_step(plan->step);
    save.draft = store_renames(save.store) ? folder_draft(plan->step, plan->attempt) : memory_copy_string(save.final);
    save.aside = folder_aside(plan->step);
    bool good = plan->rank == 0 ? save_first_rank(&save, error) : save_other_rank(&save, error);
    if (!good) failure_explain(&save, error);
    else if (stats) *stats = (CheckpointStats){.seconds = log_seconds() - start, .bytes = save.bytes, .shared = save.shared};
    free(save.aside);
    free(save.draft);
    free(save.final);
    store_close(save.store);
    return good;
}

bool checkpoint_save(const char *where, int64_t step, const Interval *intervals, size_t count, json_t *metadata, int keep,
    CheckpointStats *stats, Error *error) {
    CheckpointPlan plan = {.where = where,
        .step = step,
        .intervals = intervals,
        .count = count,
        .metadata = metadata,
        .keep = keep,
        .ranks = 1,
        .attempt = (uint64_t)getpid()};
    return checkpoint_write(&plan, stats, error);
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

bool checkpoint_probe(const char *where, Error *error) {
    static const char name[] = "checkpoints/probe";
    Store *store = store_open(where, error);
    StoreSpan span = {.data = name, .bytes = sizeof name};
    bool good = store && store_put(store, name, &span, 1, error) && store_remove(store, name, error);
    store_close(store);
    return good;
}

CheckpointJob *checkpoint_start(const CheckpointPlan *plan) {
    CheckpointJob *job = memory_allocate(sizeof *job);
    job->plan = *plan;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are for the training loop's thread */
    job->threaded = pthread_create(&job->thread, NULL, job_run, job) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
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
