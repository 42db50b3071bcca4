/* The folder of checkpoints in a store: names, and which checkpoints are complete. If the store can
 * rename folders, a checkpoint with a final name is complete, and folders with a temporary name can
 * be removed:
 *   step-00000040                complete
 *   step-00000040.partial-ID     being written, or being removed
 *   step-00000040.replaced       a complete one that is replaced by a new one of its step, until
 *   the new one was read back;
 *                                it gets its name back if the replacement was interrupted
 *   step-00000040.damaged-ID     a damaged one, which no save counts or removes
 *   probe-00002                  rank 2's test of whether it can write
 * In a bucket, a checkpoint is complete once it has its manifest, which is put last and removed first. Called by save.c
 * and load.c. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "base/log.h"
#include "base/scope.h"
#include "base/strings.h"
#include "ckpt/ckpt_internal.h"

static const char FOLDER[] = "checkpoints";
static const char PARTIAL[] = ".partial";
static const char REPLACED[] = ".replaced";
static const char PROBE[] = "probe-";

StorePath folder_step(int64_t step) { return store_format("%s/step-%08lld", FOLDER, (long long)step); }

StorePath folder_draft(int64_t step, uint64_t attempt) {
    return store_format("%s/step-%08lld%s-%llx", FOLDER, (long long)step, PARTIAL, (unsigned long long)attempt);
}

StorePath folder_aside(int64_t step) { return store_format("%s/step-%08lld%s", FOLDER, (long long)step, REPLACED); }

StorePath folder_damaged(int64_t step, uint64_t attempt) {
    return store_format("%s/step-%08lld.damaged-%llx", FOLDER, (long long)step, (unsigned long long)attempt);
}

StorePath folder_probe(int rank) { return store_format("%s/%s%05d", FOLDER, PROBE, rank); }

StorePath folder_manifest(const char *folder) { return store_format("%s/%s", folder, FOLDER_MANIFEST); }

void folder_listing_free(FolderListing *listing) {
    free(listing->leftovers);
    free(listing->steps);
    free(listing->replaced);
    *listing = (FolderListing){0};
}

static bool has_manifest(Store *store, const char *folder, bool *found, Error *error) {
    SCOPED(file_list_free) FileList objects = {0};
    bool good = store_list(store, folder, &objects, error);
    *found = file_list_has(&objects, FOLDER_MANIFEST);
    return good;
}

/* Adds a folder with a final name. It is complete, unless folders of this store are complete by
 * their manifest and it has none. */
static bool add_final(FolderListing *listing, Store *store, int64_t step, Error *error) {
    bool complete = true;
    StorePath folder = folder_step(step);
    if (!store_renames(store) && !has_manifest(store, folder.text, &complete, error)) return false;
    if (complete) array_append(listing->steps, listing->count, step);
    else array_append(listing->leftovers, listing->leftover_count, folder);
    return true;
}

/* Sorts one entry into the listing; other names are ignored. */
static bool add_listed(FolderListing *listing, Store *store, const char *name, Error *error) {
    static const char prefix[] = "step-";
    const size_t prefix_length = sizeof prefix - 1;
    size_t digits = strncmp(name, prefix, prefix_length) == 0 ? strspn(name + prefix_length, "0123456789") : 0;
    if (digits < 8 || digits > 18 || (digits > 8 && name[prefix_length] == '0')) return true;
    int64_t step = strtoll(name + prefix_length, NULL, 10);
    const char *suffix = name + prefix_length + digits;
    if (*suffix == '\0') return add_final(listing, store, step, error);
    if (strcmp(suffix, REPLACED) == 0) array_append(listing->replaced, listing->replaced_count, step);
    else if (strncmp(suffix, PARTIAL, sizeof PARTIAL - 1) == 0)
        array_append(listing->leftovers, listing->leftover_count, store_format("%s/%s", FOLDER, name));
    return true;
}

bool folder_has(const FolderListing *listing, int64_t step) {
    for (size_t i = 0; i < listing->count; i++)
        if (listing->steps[i] == step) return true;
    return false;
}

/* Restores the name of a replaced checkpoint if its successor was not completed. */
static bool recover(FolderListing *listing, Store *store, int64_t step, Error *error) {
    StorePath replaced = folder_aside(step), final = folder_step(step);
    if (folder_has(listing, step)) return true;
    if (!store_rename(store, replaced.text, final.text, NULL, error)) return false;
    log_warn("%s was restored, because its replacement was not completed", final.text);
    array_append(listing->steps, listing->count, step);
    return true;
}

static int newest_first(const void *left, const void *right) {
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
    return (a < b) - (a > b);
}

bool folder_list(Store *store, FolderListing *listing, Error *error) {
    *listing = (FolderListing){0};
    SCOPED(file_list_free) FileList entries = {0};
    bool good = store_list(store, FOLDER, &entries, error);
    for (const FileEntry *entry = entries.entries; entry < entries.entries + entries.count && good; entry++) {
        if (entry->kind == FILE_FOLDER) good = add_listed(listing, store, entry->name, error);
        else if (starts_with(entry->name, PROBE))
            array_append(listing->leftovers, listing->leftover_count, store_format("%s/%s", FOLDER, entry->name));
    }
    for (size_t i = 0; i < listing->replaced_count && good; i++) good = recover(listing, store, listing->replaced[i], error);
    if (listing->count > 0) qsort(listing->steps, listing->count, sizeof *listing->steps, newest_first);
    if (!good) folder_listing_free(listing);
    return good;
}
