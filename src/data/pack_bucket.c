/* Lists the objects of an INPUT in a bucket: all below a prefix, or a single one. A PackBucket owns
 * the connection that reads them. Called by pack_files.c. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/pack_internal.h"

static int compare_entries(const void *left, const void *right) {
    return strcmp(((const S3Entry *)left)->name, ((const S3Entry *)right)->name);
}

/* Drops folders, and the empty objects that stand for them. */
static void keep_objects(S3Listing *listing) {
    size_t kept = 0;
    for (size_t i = 0; i < listing->count; i++) {
        S3Entry *entry = &listing->entries[i];
        if (!entry->folder) listing->entries[kept++] = *entry;
        else free(entry->name), free(entry->etag);
    }
    listing->count = kept;
    if (kept > 0) qsort(listing->entries, kept, sizeof *listing->entries, compare_entries);
}

bool pack_bucket_open(PackBucket *bucket, const char *url, bool *folder, Error *error) {
    const char *name = url + strlen(S3_SCHEME), *slash = strchr(name, '/'), *key = slash ? slash + 1 : "";
    SCOPED_FREE char *host = memory_format("%.*s", (int)strcspn(name, "/"), name);
    SCOPED_FREE char *prefix = memory_format("%s%s", key, *key && !ends_with(key, "/") ? "/" : "");
    bool absent = false;
    bucket->s3 = s3_open(host, error);
    if (!bucket->s3) return false;
    if (!s3_list(bucket->s3, prefix, true, url, &bucket->listing, error)) return error_recode(error, ERROR_DATA);
    keep_objects(&bucket->listing);
    *folder = bucket->listing.count > 0 || !*key || ends_with(key, "/");
    bucket->root = *folder ? memory_format("%s%s/%s", S3_SCHEME, host, prefix) : memory_copy_string(url);
    if (!*folder && !s3_find(bucket->s3, key, url, &bucket->listing, &absent, error)) return error_recode(error, ERROR_DATA);
    if (bucket->listing.count > 0) return true;
    error_set(error, ERROR_DATA, "%s contains no objects: give a text file, or a folder of text files, in the bucket", url);
    return error_find(error, FINDING_ABSENT);
}

void pack_bucket_close(PackBucket *bucket) {
    s3_listing_free(&bucket->listing);
    s3_close(bucket->s3);
    free(bucket->root);
}
