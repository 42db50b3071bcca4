/* Saving, finding and loading checkpoints; ckpt.h describes the folder. A save becomes visible by one rename of a
 * folder whose contents are on disk; whatever carries a temporary name is half-written and can be removed:
 *   step-00000040               complete
 *   step-00000040.partial-PID   being written, or being removed
 *   step-00000040.replaced      a complete one that makes way for a new one of its step, on file systems that cannot
 *                               exchange two names; it gets its name back if that was interrupted
 * Intervals are stored in pieces, so that hashing and reading spread over cores, and a rank that needs a part of a
 * large tensor reads little more than that part. Data moves between file and the caller's memory without a copy where
 * a piece is wanted whole. Owns no memory beyond a call. Called by the training loop and the commands. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/log.h"
#include "base/memory.h"
#include "ckpt/internal.h"

enum { PIECE_BYTES = 16 * BLOCK_BYTES };
static const char SHARD_NAME[] = "shard-00000-of-00001.safetensors";
static const char PARTIAL[] = ".partial";
static const char REPLACED[] = ".replaced";

static char *checkpoints_path(const char *run)
{
    return memory_format("%s/checkpoints", run);
}

static char *step_path(const char *run, int64_t step)
{
    return memory_format("%s/checkpoints/step-%08lld", run, (long long)step);
}

static char *partial_path(const char *run, int64_t step)
{
    return memory_format("%s/checkpoints/step-%08lld%s-%ld", run, (long long)step, PARTIAL, (long)getpid());
}

/* -- The folder of checkpoints ------------------------------------------------------------------------------------ */

typedef struct Listing {
    int64_t *steps; /* complete, newest first */
    size_t count;
    char **leftovers; /* paths of what was half-written */
    size_t leftover_count;
    int64_t *replaced; /* steps with a .replaced folder */
    size_t replaced_count;
} Listing;

static void steps_append(int64_t **steps, size_t *count, int64_t step)
{
    *steps = memory_resize(*steps, (*count + 1) * sizeof **steps);
    (*steps)[(*count)++] = step;
}

static void leftovers_append(Listing *listing, char *path)
{
    listing->leftovers = memory_resize(listing->leftovers, (listing->leftover_count + 1) * sizeof *listing->leftovers);
    listing->leftovers[listing->leftover_count++] = path;
}

static void listing_free(Listing *listing)
{
    for (size_t i = 0; i < listing->leftover_count; i++)
        free(listing->leftovers[i]);
    free(listing->leftovers);
    free(listing->steps);
    free(listing->replaced);
    *listing = (Listing){0};
}

/* Sorts one folder entry into the listing; foreign names are none of our business. */
static void listing_add(Listing *listing, const char *run, const char *name)
{
    static const char prefix[] = "step-";
    const size_t prefix_length = sizeof prefix - 1;
    size_t digits = strncmp(name, prefix, prefix_length) == 0 ? strspn(name + prefix_length, "0123456789") : 0;
    if (digits < 8 || digits > 18 || (digits > 8 && name[prefix_length] == '0'))
        return;
    int64_t step = strtoll(name + prefix_length, NULL, 10);
    const char *suffix = name + prefix_length + digits;
    if (*suffix == '\0')
        steps_append(&listing->steps, &listing->count, step);
    else if (strcmp(suffix, REPLACED) == 0)
        steps_append(&listing->replaced, &listing->replaced_count, step);
    else if (strncmp(suffix, PARTIAL, sizeof PARTIAL - 1) == 0)
        leftovers_append(listing, memory_format("%s/checkpoints/%s", run, name));
}

static bool listing_has(const Listing *listing, int64_t step)
{
    for (size_t i = 0; i < listing->count; i++)
        if (listing->steps[i] == step)
            return true;
    return false;
}

/* Gives a replaced checkpoint its name back when its successor never got it. */
static bool replaced_recover(Listing *listing, const char *run, Error *error)
{
    bool good = true;
    for (size_t i = 0; i < listing->replaced_count && good; i++) {
        int64_t step = listing->replaced[i];
        char *final = step_path(run, step), *replaced = memory_format("%s%s", final, REPLACED);
        if (listing_has(listing, step)) {
            leftovers_append(listing, memory_copy_string(replaced));
        } else if (rename(replaced, final) == 0) {
            log_warn("%s is in use again; its replacement was not completed", final);
            steps_append(&listing->steps, &listing->count, step);
        } else {
            good = files_fail(error, "restore", replaced, errno);
        }
        free(replaced);
        free(final);
    }
    return good;
}

static int newest_first(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a < b) - (a > b);
}

static bool listing_read(Listing *listing, const char *run, Error *error)
{
    *listing = (Listing){0};
    char *path = checkpoints_path(run);
    DIR *folder = opendir(path);
    bool good = folder || errno == ENOENT || files_fail(error, "open folder", path, errno);
    if (folder) {
        struct dirent *entry;
        while (errno = 0, (entry = readdir(folder)))
            listing_add(listing, run, entry->d_name);
        good = errno == 0 || files_fail(error, "read folder", path, errno);
        closedir(folder);
    }
    free(path);
    good = good && replaced_recover(listing, run, error);
    if (listing->count > 0)
        qsort(listing->steps, listing->count, sizeof *listing->steps, newest_first);
    if (!good)
        listing_free(listing);
    return good;
}

/* -- Reading and verifying ---------------------------------------------------------------------------------------- */

/* What a pass over a checkpoint is for: verifying `everything`, or filling the `wanted` intervals, sorted by name. */
typedef struct Reading {
    const char *folder;
    const Manifest *manifest;
    bool everything;
    const Interval *wanted;
    size_t wanted_count;
} Reading;

static int interval_compare(const void *left, const void *right)
{
    const Interval *a = left, *b = right;
    int order = strcmp(a->name, b->name);
    return order != 0 ? order : (a->first > b->first) - (a->first < b->first);
}

static bool intervals_meet(const Interval *a, const Interval *b)
{
    return a->first < b->first + b->count && b->first < a->first + a->count;
}

/* The wanted intervals of a tensor: they are neighbours. */
static const Interval *wanted_find(const Reading *reading, const char *name, size_t *count)
{
    size_t low = 0, high = reading->wanted_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(reading->wanted[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (*count = 0; low + *count < reading->wanted_count; ++*count)
        if (strcmp(reading->wanted[low + *count].name, name) != 0)
            break;
    return reading->wanted + low;
}

/* Where a whole stored interval can be read to in place; NULL when no wanted one contains it. */
static char *place_find(const Interval *stored, const Interval *wanted, size_t count)
{
    int64_t element = (int64_t)stored_type_bytes(stored->type);
    for (size_t i = 0; i < count; i++)
        if (wanted[i].first <= stored->first && stored->first + stored->count <= wanted[i].first + wanted[i].count)
            return (char *)wanted[i].data + (stored->first - wanted[i].first) * element;
    return NULL;
}

/* Copies what `wanted` needs of a block that starts at byte `at` of the tensor. */
static void block_copy(const Interval *wanted, const char *block, int64_t at, int64_t bytes)
{
    int64_t element = (int64_t)stored_type_bytes(wanted->type);
    int64_t begin = wanted->first * element, end = begin + wanted->count * element;
    int64_t from = begin > at ? begin : at, to = end < at + bytes ? end : at + bytes;
    char *target = (char *)wanted->data + (from - begin);
    if (from < to && target != block + (from - at))
        memcpy(target, block + (from - at), (size_t)(to - from));
}

/* Reads one stored interval, hands its parts to `wanted` and checks its hash. `scratch` has BLOCK_BYTES. */
static bool piece_read(int file, const char *path, const ManifestInterval *stored, const Interval *wanted,
                       size_t wanted_count, char *scratch, Error *error)
{
    XXH3_state_t *hash = XXH3_createState();
    if (!hash)
        return error_set(error, ERROR_MEMORY, "%s: no memory for a checksum", path);
    XXH3_64bits_reset(hash);
    const Interval *interval = &stored->interval;
    int64_t origin = interval->first * (int64_t)stored_type_bytes(interval->type);
    int64_t bytes = stored->range.end - stored->range.begin;
    char *place = place_find(interval, wanted, wanted_count);
    bool good = true;
    for (int64_t done = 0; done < bytes && good; done += BLOCK_BYTES) {
        int64_t length = bytes - done < BLOCK_BYTES ? bytes - done : BLOCK_BYTES;
        char *block = place ? place + done : scratch;
        good = files_read_at(file, path, block, length, stored->range.begin + done, error);
        if (!good)
            break;
        XXH3_64bits_update(hash, block, (size_t)length);
        for (size_t i = 0; i < wanted_count; i++)
            block_copy(&wanted[i], block, origin + done, length);
    }
    if (good && XXH3_64bits_digest(hash) != stored->range.hash)
        good = error_set(error, ERROR_CHECKPOINT,
                         "%s is damaged: bytes %lld to %lld (%s) do not match their checksum", path,
                         (long long)stored->range.begin, (long long)stored->range.end, interval->name);
    XXH3_freeState(hash);
    return good;
}

/* Reads the interval `index` of the manifest if the pass needs it. */
static bool piece_visit(const Reading *reading, size_t index, int file, const char *path, char *scratch, Error *error)
{
    const ManifestInterval *stored = &reading->manifest->intervals[index];
    size_t count;
    const Interval *wanted = wanted_find(reading, stored->interval.name, &count);
    bool needed = reading->everything;
    for (size_t i = 0; i < count && !needed; i++)
        needed = intervals_meet(&wanted[i], &stored->interval);
    return !needed || piece_read(file, path, stored, wanted, count, scratch, error);
}

static bool pieces_read(const Reading *reading, size_t file_index, int file, const char *path, Error *error)
{
    bool good = true;
#pragma omp parallel if (reading->manifest->files[file_index].bytes >= PARALLEL_BYTES)
    {
        char *scratch = memory_allocate(BLOCK_BYTES);
#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < reading->manifest->interval_count; i++) {
            bool going;
#pragma omp atomic read
            going = good;
            Error own = {0};
            if (going && reading->manifest->intervals[i].file == file_index &&
                !piece_visit(reading, i, file, path, scratch, &own)) {
#pragma omp critical(checkpoint_read_error)
                {
                    *error = own;
#pragma omp atomic write
                    good = false;
                }
            }
        }
        free(scratch);
    }
    return good;
}

/* The header of a shard needs no parsing, the manifest says it all, but a flipped bit must be noticed here too. */
static bool shard_header_check(int file, const char *path, const ManifestFile *shard, Error *error)
{
    ManifestInterval header = {
        .interval = {.name = "the header", .type = STORED_U8, .count = shard->header.end}, .range = shard->header};
    char *scratch = memory_allocate(BLOCK_BYTES);
    bool good = piece_read(file, path, &header, NULL, 0, scratch, error);
    free(scratch);
    return good;
}

static bool shard_read(const Reading *reading, size_t index, Error *error)
{
    const ManifestFile *shard = &reading->manifest->files[index];
    char *path = memory_format("%s/%s", reading->folder, shard->name);
    int64_t size;
    int file = files_open_read(path, &size, error);
    bool good = file >= 0;
    if (good) {
        good = shard_header_check(file, path, shard, error) && pieces_read(reading, index, file, path, error);
        close(file);
    }
    free(path);
    return good;
}

static bool shards_read(const Reading *reading, Error *error)
{
    for (size_t i = 0; i < reading->manifest->file_count; i++)
        if (!shard_read(reading, i, error))
            return false;
    return true;
}

static bool shard_size_check(const char *folder, const ManifestFile *shard, Error *error)
{
    char *path = memory_format("%s/%s", folder, shard->name);
    int64_t size;
    int file = files_open_read(path, &size, error);
    bool good = file >= 0;
    if (good)
        close(file);
    if (good && size != shard->bytes)
        good = error_set(error, ERROR_CHECKPOINT, "%s has %lld bytes, but was written with %lld; it is damaged", path,
                         (long long)size, (long long)shard->bytes);
    free(path);
    return good;
}

/* Reads the manifest and checks the step and the sizes of all files: cheap, and sees everything but flipped data. */
static bool checkpoint_open(Manifest *manifest, const char *folder, int64_t step, Error *error)
{
    if (!manifest_read(manifest, folder, error))
        return false;
    bool good = manifest->step == step;
    if (!good)
        error_set(error, ERROR_CHECKPOINT, "%s holds step %lld; it was renamed", folder, (long long)manifest->step);
    for (size_t i = 0; i < manifest->file_count && good; i++)
        good = shard_size_check(folder, &manifest->files[i], error);
    if (!good)
        manifest_free(manifest);
    return good;
}

static bool checkpoint_verify(const char *folder, int64_t step, Error *error)
{
    Manifest manifest;
    if (!checkpoint_open(&manifest, folder, step, error))
        return false;
    bool good = shards_read(&(Reading){.folder = folder, .manifest = &manifest, .everything = true}, error);
    manifest_free(&manifest);
    return good;
}

int64_t checkpoint_latest(const char *run, bool *failed, Error *error)
{
    Listing listing;
    *failed = !listing_read(&listing, run, error);
    if (*failed)
        return -1;
    for (size_t i = 0; i < listing.leftover_count; i++)
        log_warn("%s is half-written and skipped; the next save removes it", listing.leftovers[i]);
    int64_t found = -1;
    Error reason = {0};
    for (size_t i = 0; i < listing.count && found < 0; i++) {
        char *folder = step_path(run, listing.steps[i]);
        if (checkpoint_verify(folder, listing.steps[i], &reason))
            found = listing.steps[i];
        else
            log_warn("checkpoint of step %lld is skipped: %s", (long long)listing.steps[i], reason.message);
        free(folder);
    }
    *failed = found < 0 && listing.count > 0;
    if (*failed)
        error_set(error, ERROR_CHECKPOINT, "%s/checkpoints has %zu checkpoints and none is good; the oldest: %s", run,
                  listing.count, reason.message);
    listing_free(&listing);
    return found;
}

bool checkpoint_list(const char *run, int64_t **steps, size_t *count, Error *error)
{
    Listing listing;
    if (!listing_read(&listing, run, error))
        return false;
    *steps = listing.steps;
    *count = listing.count;
    listing.steps = NULL;
    listing_free(&listing);
    return true;
}

/* -- Loading ------------------------------------------------------------------------------------------------------ */

typedef char TensorText[160];

/* "F32 [4, 8]" */
static const char *tensor_format(const Interval *interval, TensorText text)
{
    int at = snprintf(text, sizeof(TensorText), "%s [", stored_type_name(interval->type));
    for (int i = 0; i < interval->rank; i++)
        at += snprintf(text + at, sizeof(TensorText) - (size_t)at, "%s%lld", i > 0 ? ", " : "",
                       (long long)interval->shape[i]);
    snprintf(text + at, sizeof(TensorText) - (size_t)at, "]");
    return text;
}

static bool same_tensor(const Interval *a, const Interval *b)
{
    return a->type == b->type && a->rank == b->rank &&
           memcmp(a->shape, b->shape, (size_t)a->rank * sizeof a->shape[0]) == 0;
}

/* Checks that the stored intervals of the tensor, from `stored` on in order of their first element, leave no gap. */
static bool coverage_check(const Interval *wanted, const Interval *stored, const Interval *end, const char *folder,
                           Error *error)
{
    if (wanted->count > 0 && (stored == end || strcmp(stored->name, wanted->name) != 0))
        return error_set(error, ERROR_CHECKPOINT, "%s has no tensor %s; the model is not the one that was saved",
                         folder, wanted->name);
    int64_t reached = wanted->first;
    for (; stored < end && strcmp(stored->name, wanted->name) == 0; stored++) {
        TensorText in_checkpoint, in_model;
        if (!same_tensor(stored, wanted))
            return error_set(error, ERROR_CHECKPOINT,
                             "%s: tensor %s is %s there and %s here; the model is not the one that was saved", folder,
                             wanted->name, tensor_format(stored, in_checkpoint), tensor_format(wanted, in_model));
        if (stored->first <= reached && stored->first + stored->count > reached)
            reached = stored->first + stored->count;
    }
    if (reached - wanted->first < wanted->count)
        return error_set(error, ERROR_CHECKPOINT, "%s: tensor %s lacks element %lld; some rank's part is missing",
                         folder, wanted->name, (long long)reached);
    return true;
}

static bool coverages_check(const Reading *reading, Error *error)
{
    size_t count = reading->manifest->interval_count;
    Interval *stored = memory_allocate((count + 1) * sizeof *stored), *end = stored + count;
    for (size_t i = 0; i < count; i++)
        stored[i] = reading->manifest->intervals[i].interval;
    qsort(stored, count, sizeof *stored, interval_compare);
    const Interval *at = stored;
    bool good = true;
    for (size_t i = 0; i < reading->wanted_count && good; i++) {
        while (at < end && strcmp(at->name, reading->wanted[i].name) < 0)
            at++;
        good = coverage_check(&reading->wanted[i], at, end, reading->folder, error);
    }
    free(stored);
    return good;
}

bool checkpoint_load(const char *run, int64_t step, const Interval *intervals, size_t count, json_t **metadata,
                     Error *error)
{
    char *folder = step_path(run, step);
    Manifest manifest;
    bool good = checkpoint_open(&manifest, folder, step, error);
    if (good) {
        Interval *wanted = memory_allocate((count + 1) * sizeof *wanted);
        if (count > 0)
            memcpy(wanted, intervals, count * sizeof *wanted);
        qsort(wanted, count, sizeof *wanted, interval_compare);
        Reading reading = {.folder = folder, .manifest = &manifest, .wanted = wanted, .wanted_count = count};
        good = coverages_check(&reading, error) && shards_read(&reading, error);
        if (good && metadata)
            *metadata = json_incref(manifest.metadata);
        free(wanted);
        manifest_free(&manifest);
    }
    free(folder);
    return good;
}

/* -- Saving ------------------------------------------------------------------------------------------------------- */

/* The intervals cut into pieces: the same pieces as tensors of the shard and as entries of the manifest. */
typedef struct Pieces {
    StoredTensor *tensors;
    ManifestInterval *entries;
    size_t count;
} Pieces;

static int64_t piece_elements(const Interval *interval)
{
    return PIECE_BYTES / (int64_t)stored_type_bytes(interval->type);
}

static void piece_append(Pieces *pieces, const Interval *interval, int64_t offset)
{
    Interval *piece = &pieces->entries[pieces->count].interval;
    *piece = *interval;
    piece->first = interval->first + offset;
    piece->count = interval->count - offset;
    if (piece->count > piece_elements(interval))
        piece->count = piece_elements(interval);
    pieces->tensors[pieces->count++] = (StoredTensor){
        .name = memory_format("%s[%lld:%lld]", interval->name, (long long)piece->first,
                              (long long)(piece->first + piece->count)),
        .type = interval->type,
        .rank = 1,
        .shape = {piece->count},
        .data = (const char *)interval->data + offset * (int64_t)stored_type_bytes(interval->type),
    };
}

static Pieces pieces_cut(const Interval *intervals, size_t count)
{
    size_t total = 0;
    for (size_t i = 0; i < count; i++)
        total += (size_t)(intervals[i].count / piece_elements(&intervals[i])) + 1;
    Pieces pieces = {.tensors = memory_allocate((total + 1) * sizeof *pieces.tensors),
                     .entries = memory_allocate((total + 1) * sizeof *pieces.entries)};
    for (size_t i = 0; i < count; i++)
        for (int64_t offset = 0; offset < intervals[i].count; offset += piece_elements(&intervals[i]))
            piece_append(&pieces, &intervals[i], offset);
    return pieces;
}

static void pieces_free(Pieces *pieces)
{
    for (size_t i = 0; i < pieces->count; i++)
        free((char *)pieces->tensors[i].name);
    free(pieces->tensors);
    free(pieces->entries);
}

/* Writes shard and manifest into an existing folder, and syncs them and it. `bytes` receives the size of both. */
static bool contents_write(const char *folder, int64_t step, const Interval *intervals, size_t count, json_t *metadata,
                           int64_t *bytes, Error *error)
{
    Pieces pieces = pieces_cut(intervals, count);
    StoredRange *ranges = memory_allocate((pieces.count + 1) * sizeof *ranges);
    char *path = memory_format("%s/%s", folder, SHARD_NAME);
    ManifestFile shard = {.name = SHARD_NAME};
    Manifest manifest = {.step = step, .metadata = metadata, .files = &shard, .file_count = 1,
                         .intervals = pieces.entries, .interval_count = pieces.count};
    bool good = safetensors_write_ranges(path, pieces.tensors, pieces.count, NULL, &shard.header, ranges, error);
    if (good) {
        shard.bytes = pieces.count > 0 ? ranges[pieces.count - 1].end : shard.header.end;
        for (size_t i = 0; i < pieces.count; i++)
            pieces.entries[i].range = ranges[i];
        good = manifest_write(&manifest, folder, bytes, error); /* syncs the folder too */
        *bytes += shard.bytes;
    }
    free(path);
    free(ranges);
    pieces_free(&pieces);
    return good;
}

/* Gives a new checkpoint its final name. An old one of that name ends up as `partial` or `replaced`. */
static bool publish(const char *partial, const char *final, const char *replaced, Error *error)
{
    if (rename(partial, final) == 0)
        return true;
    if (errno != ENOTEMPTY && errno != EEXIST)
        return files_fail(error, "rename", partial, errno);
    if (renameat2(AT_FDCWD, partial, AT_FDCWD, final, RENAME_EXCHANGE) == 0)
        return true;
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
        return files_fail(error, "replace", final, errno);
    if (rename(final, replaced) != 0)
        return files_fail(error, "rename", final, errno);
    if (rename(partial, final) == 0)
        return true;
    int code = errno;
    if (rename(replaced, final) != 0)
        log_warn("%s could not be put back; the next start does", final);
    return files_fail(error, "rename", partial, code);
}

static void remove_or_warn(const char *path)
{
    Error error = {0};
    if (!files_remove_tree(path, &error))
        log_warn("%s", error.message);
}

static void leftovers_remove(const char *run)
{
    Listing listing;
    Error error = {0};
    if (!listing_read(&listing, run, &error)) {
        log_warn("%s", error.message);
        return;
    }
    for (size_t i = 0; i < listing.leftover_count; i++)
        remove_or_warn(listing.leftovers[i]);
    listing_free(&listing);
}

/* Removes a checkpoint under a temporary name, so that an interruption does not leave what looks like a damaged one. */
static void checkpoint_discard(const char *run, int64_t step)
{
    char *final = step_path(run, step), *partial = partial_path(run, step);
    if (rename(final, partial) == 0)
        remove_or_warn(partial);
    else
        log_warn("cannot remove the old checkpoint %s", final);
    free(partial);
    free(final);
}

static void checkpoints_prune(const char *run, int64_t newest, int keep)
{
    Listing listing;
    Error error = {0};
    if (!listing_read(&listing, run, &error)) {
        log_warn("%s", error.message);
        return;
    }
    int kept = 0;
    for (size_t i = 0; i < listing.count; i++) {
        int64_t step = listing.steps[i];
        if (step > newest)
            continue;
        char *folder = step_path(run, step);
        Manifest manifest = {0};
        if (kept < keep && checkpoint_open(&manifest, folder, step, &error))
            kept++;
        else
            checkpoint_discard(run, step);
        manifest_free(&manifest);
        free(folder);
    }
    listing_free(&listing);
}

/* Adds what was attempted, and the room on the disk, to the reason of a failure. */
static void failure_explain(Error *error, const char *checkpoints, int64_t step, const Interval *intervals,
                            size_t count)
{
    double needed = 0;
    for (size_t i = 0; i < count; i++)
        needed += (double)intervals[i].count * (double)stored_type_bytes(intervals[i].type);
    char needed_text[32], free_text[32] = "an unknown amount";
    log_format_bytes(needed, needed_text);
    struct statvfs disk;
    if (statvfs(checkpoints, &disk) == 0)
        log_format_bytes((double)disk.f_bavail * (double)disk.f_frsize, free_text);
    error_context(error, "the checkpoint of step %lld was not saved (%s needed, %s free; older ones are untouched)",
                  (long long)step, needed_text, free_text);
}

bool checkpoint_save(const char *run, int64_t step, const Interval *intervals, size_t count, json_t *metadata, int keep,
                     CheckpointStats *stats, Error *error)
{
    assert(step >= 0 && keep >= 1);
    double start = log_seconds();
    int64_t bytes = 0;
    char *checkpoints = checkpoints_path(run), *final = step_path(run, step), *partial = partial_path(run, step);
    char *replaced = memory_format("%s%s", final, REPLACED);
    leftovers_remove(run);
    bool good = files_make_folder(partial, error) &&
                contents_write(partial, step, intervals, count, metadata, &bytes, error) &&
                publish(partial, final, replaced, error) && files_sync_folder(checkpoints, error);
    remove_or_warn(partial);
    if (good) {
        remove_or_warn(replaced);
        checkpoints_prune(run, step, keep);
        if (stats)
            *stats = (CheckpointStats){.seconds = log_seconds() - start, .bytes = bytes};
    } else {
        failure_explain(error, checkpoints, step, intervals, count);
    }
    free(replaced);
    free(partial);
    free(final);
    free(checkpoints);
    return good;
}
