/* Puts the folder of a part into a bucket, shard by shard. Shards leave the local folder when they
 * are in the bucket. A PackUpload owns its connection and its name. Called by pack.c. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/pack_internal.h"

PackUpload *pack_upload_open(const char *where, Error *error) {
    const char *name = where + strlen(S3_SCHEME), *slash = strchr(name, '/');
    SCOPED_FREE char *bucket = memory_format("%.*s", (int)strcspn(name, "/"), name);
    if (!slash || !slash[1])
        return error_set(error, ERROR_USAGE, "OUTPUT %s names no folder in the bucket: add one, as in %s/NAME", where, where), NULL;
    S3 *s3 = s3_open(bucket, error);
    if (!s3) return NULL;
    PackUpload *upload = memory_allocate(sizeof *upload);
    *upload = (PackUpload){.s3 = s3, .where = memory_copy_string(where)};
    upload->key = upload->where + (slash + 1 - where);
    return upload;
}

void pack_upload_close(PackUpload *upload) {
    if (!upload) return;
    s3_close(upload->s3);
    free(upload->where);
    free(upload);
}

/* -- Objects ------------------------------------------------------------------------------------------------------- */

static bool list_objects_below(const PackUpload *upload, S3Listing *listing, Error *error) {
    SCOPED_FREE char *prefix = memory_format("%s/", upload->key);
    return s3_list(upload->s3, prefix, true, upload->where, listing, error) || error_recode(error, ERROR_DATA);
}

static bool put_bytes(const PackUpload *upload, const char *name, const void *bytes, size_t size, Error *error) {
    SCOPED_FREE char *key = memory_format("%s/%s", upload->key, name), *path = memory_format("%s/%s", upload->where, name);
    StoreSpan span = {.data = bytes, .bytes = (int64_t)size};
    return s3_put(upload->s3, key, path, &span, 1, error) || error_recode(error, ERROR_DATA);
}

static bool put_file(const PackUpload *upload, const char *folder, const char *name, Error *error) {
    SCOPED(file_unmap) FileMap map = {0};
    SCOPED_FREE char *path = memory_format("%s/%s", folder, name);
    return file_map(&map, path, error) && put_bytes(upload, name, map.bytes, map.size, error);
}

bool pack_upload_text(const PackUpload *upload, const char *name, const char *text, Error *error) {
    return put_bytes(upload, name, text, strlen(text), error);
}

static bool remove_object(const PackUpload *upload, const char *name, Error *error) {
    SCOPED(s3_reply_free) S3Reply reply = {0};
    SCOPED_FREE char *key = memory_format("%s/%s", upload->key, name), *path = memory_format("%s/%s", upload->where, name);
    bool absent;
    return s3_send(upload->s3, (S3Request){.method = "DELETE", .key = key, .path = path}, &reply, &absent, error) ||
           error_recode(error, ERROR_DATA);
}

void pack_upload_clean(const PackUpload *upload) {
    Error ignored = {0};
    s3_abort_uploads(upload->s3, upload->key, "", upload->where, &ignored);
}

bool pack_upload_begin(const PackUpload *upload, bool overwrite, bool (*is_own)(const char *name), Error *error) {
    SCOPED(s3_listing_free) S3Listing listing = {0};
    if (!list_objects_below(upload, &listing, error)) return false;
    if (listing.count > 0 && !overwrite)
        return error_set(error, ERROR_USAGE, "%s has objects: give another OUTPUT, or overwrite=true to replace a packing", upload->where);
    for (size_t i = 0; i < listing.count; i++)
        if (!is_own(listing.entries[i].name) && !starts_with(listing.entries[i].name, "tokenizer/"))
            return error_set(error, ERROR_USAGE,
                "%s contains %s, which smelt data pack did not write: choose another OUTPUT, or move the object", upload->where,
                listing.entries[i].name);
    for (size_t i = 0; i < listing.count; i++)
        if (!remove_object(upload, listing.entries[i].name, error)) return false;
    return true;
}

/* -- The folder ---------------------------------------------------------------------------------------------------- */

/* Returns the number of the shard whose index has this name, or -1. */
static int64_t number_of_index(const char *name) {
    static const char start[] = "shard-";
    char *end;
    if (!starts_with(name, start)) return -1;
    long long number = strtoll(name + strlen(start), &end, 10);
    return strcmp(end, ".idx") ? -1 : number;
}

/* The local index is removed first: while it exists, both files do. */
static bool send_shard(const PackUpload *upload, const char *folder, int64_t number, Error *error) {
    SCOPED_FREE char *tokens = memory_format("shard-%05" PRId64 ".bin", number), *index = memory_format("shard-%05" PRId64 ".idx", number);
    SCOPED_FREE char *local_tokens = memory_format("%s/%s", folder, tokens), *local_index = memory_format("%s/%s", folder, index);
    return put_file(upload, folder, tokens, error) && put_file(upload, folder, index, error) && file_remove(local_index, error) &&
           file_sync_name(local_index, error) && file_remove(local_tokens, error);
}

bool pack_upload_shards(const PackUpload *upload, const char *folder, int64_t count, Error *error) {
    SCOPED(file_list_free) FileList list = {0};
    if (!file_list(folder, &list, error)) return false;
    for (size_t i = 0; i < list.count; i++) {
        int64_t number = number_of_index(list.entries[i].name);
        if (number >= 0 && number < count && !send_shard(upload, folder, number, error)) return false;
    }
    return true;
}

bool pack_upload_rest(const PackUpload *upload, const char *folder, const char *const *names, Error *error) {
    SCOPED(file_list_free) FileList tokenizer = {0};
    SCOPED_FREE char *place = memory_format("%s/tokenizer", folder);
    for (; *names; names++) {
        SCOPED_FREE char *path = memory_format("%s/%s", folder, *names);
        if (file_exists(path) && !put_file(upload, folder, *names, error)) return false;
    }
    if (!file_list(place, &tokenizer, error)) return false;
    for (size_t i = 0; i < tokenizer.count; i++) {
        SCOPED_FREE char *name = memory_format("tokenizer/%s", tokenizer.entries[i].name);
        if (!put_file(upload, folder, name, error)) return false;
    }
    return true;
}

bool pack_upload_check(const PackUpload *upload, int64_t count, Error *error) {
    SCOPED(s3_listing_free) S3Listing listing = {0};
    int64_t found = 0, tokens = 0;
    if (!list_objects_below(upload, &listing, error)) return false;
    for (size_t i = 0; i < listing.count; i++) {
        const char *name = listing.entries[i].name;
        int64_t number = number_of_index(name);
        found += number >= 0 && number < count;
        tokens += starts_with(name, "shard-") && ends_with(name, ".bin");
    }
    return (found == count && tokens >= count) ||
           error_set(error, ERROR_DATA,
               "%s has %" PRId64 " of %" PRId64 " shards, although all were uploaded: remove the local folder and pack again",
               upload->where, found, count);
}
