/* The local folder of a source in a bucket: CACHE/HASH has whole copies of its indexes, tokenizer
 * and record of packing, and REMOTE_RECORD, which lists the token objects and their cache. To all
 * other code it is a folder of shards (shard_set.c). For texts, which the run packs from the
 * bucket, the folder has only the record. A file is fetched again when its ETag changes.
 * The first process of the node makes the folder under a lock, and the others find it complete; an
 * existing folder is used when the store does not answer. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/thread.h"
#include "base/file.h"
#include "data/remote.h"
#include "data/remote_internal.h"

enum { PART_BYTES = 8 << 20, RECORD_LIMIT = 64 << 20 };

bool remote_is(const char *path) { return starts_with(path, S3_SCHEME); }

char *remote_folder(const char *cache, const char *url) {
    return memory_format("%s/%016" PRIx64, cache, hash_bytes(url, path_length(url)));
}

/* State while the folder is made. */
typedef struct Mirror {
    const char *url;
    char *folder, *bucket, *prefix; /* "" or "PREFIX/" */
    S3 *s3;
    S3Listing listing;
    json_t *before; /* the previous record, or NULL */
} Mirror;

static void mirror_free(Mirror *mirror) {
    s3_listing_free(&mirror->listing);
    s3_close(mirror->s3);
    json_decref(mirror->before);
    free(mirror->folder);
    free(mirror->bucket);
    free(mirror->prefix);
}

/* -- Copied files -------------------------------------------------------------------------------------------------- */

/* Returns whether a file is copied: indexes and records of the folder itself, and files of
 * tokenizers in its subfolders. Names with other dots and slashes, which might lead elsewhere, do
 * not belong to a set of shards. */
static bool is_copied(const char *name) {
    const char *slash = strchr(name, '/'), *file = slash ? slash + 1 : name;
    if (*name == '.' || *file == '.' || !*file || strchr(file, '/')) return false;
    if (!slash) return ends_with(name, ".idx") || ends_with(name, "pack.json");
    size_t length = (size_t)(slash - name);
    const char *const folder = "tokenizer";
    size_t most = strlen(folder);
    return length >= most && !strncmp(slash - most, folder, most) && (length == most || slash[-1 - (int64_t)most] == '.');
}

static bool is_tokens(const char *name) { return !strchr(name, '/') && *name != '.' && ends_with(name, ".bin"); }

static json_t *known(const Mirror *mirror, const char *name) {
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(mirror->before, "copies"), i, item) {
        const char *other = json_string_value(json_object_get(item, "name"));
        if (other && !strcmp(other, name)) return item;
    }
    return NULL;
}

static bool is_here(const Mirror *mirror, const S3Entry *entry) {
    SCOPED_FREE char *path = memory_format("%s/%s", mirror->folder, entry->name);
    const char *etag = json_string_value(json_object_get(known(mirror, entry->name), "etag"));
    int64_t bytes;
    return etag && !strcmp(etag, entry->etag) && file_kind(path, &bytes) == FILE_REGULAR && bytes == entry->bytes;
}

/* Copies in parts, so that a broken connection costs one part. */
static bool copy_parts(const Mirror *mirror, const S3Entry *entry, const File *file, Error *error) {
    SCOPED_FREE char *buffer = memory_allocate(PART_BYTES), *key = memory_format("%s%s", mirror->prefix, entry->name);
    SCOPED_FREE char *path = memory_format("%s/%s", mirror->url, entry->name);
    Progress progress = progress_start("fetching an index", "bytes", entry->bytes);
    bool good = true;
    for (int64_t at = 0, part; good && at < entry->bytes; at += part) {
        part = int_min(PART_BYTES, entry->bytes - at);
        SCOPED(s3_reply_free) S3Reply reply = {0};
        S3Request get = {.method = "GET",
            .key = key,
            .headers = {memory_format("Range: bytes=%" PRId64 "-%" PRId64, at, at + part - 1), memory_format("If-Match: %s", entry->etag)},
            .target = buffer,
            .target_bytes = part,
            .path = path};
        good = s3_send(mirror->s3, get, &reply, NULL, error) && file_write_at(file, buffer, part, at, error);
        progress_update(&progress, at + part);
    }
    progress_finish(&progress);
    return good;
}

static bool copy_object(const Mirror *mirror, const S3Entry *entry, Error *error) {
    SCOPED_FREE char *path = memory_format("%s/%s", mirror->folder, entry->name);
    SCOPED(file_close) File file = {0};
    return is_here(mirror, entry) || (file_make_parents(path, error) && file_replace_begin(&file, path, error) &&
                                         copy_parts(mirror, entry, &file, error) && file_replace_commit(&file, error));
}

/* Removes copies of files that the source no longer has. */
static bool remove_others(const Mirror *mirror, Error *error) {
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(mirror->before, "copies"), i, item) {
        const char *name = json_string_value(json_object_get(item, "name"));
        bool stays = !name || !is_copied(name);
        for (size_t j = 0; j < mirror->listing.count && !stays; j++) stays = !strcmp(mirror->listing.entries[j].name, name);
        SCOPED_FREE char *path = memory_format("%s/%s", mirror->folder, name ? name : "");
        if (!stays && !file_remove(path, error)) return false;
    }
    return true;
}

/* -- The source ---------------------------------------------------------------------------------------------------- */

static const S3Entry *find_object(const Mirror *mirror, const char *name) {
    for (size_t i = 0; i < mirror->listing.count; i++)
        if (!strcmp(mirror->listing.entries[i].name, name)) return &mirror->listing.entries[i];
    return NULL;
}

static bool is_index(const char *name) { return !strchr(name, '/') && *name != '.' && ends_with(name, ".idx"); }

/* Returns whether the source is texts: objects, none of which is a file of a shard. */
static bool holds_texts(const Mirror *mirror) {
    for (size_t i = 0; i < mirror->listing.count; i++)
        if (is_tokens(mirror->listing.entries[i].name) || is_index(mirror->listing.entries[i].name)) return false;
    return mirror->listing.count > 0;
}

static bool is_any(const char *name) { return name != NULL; }

/* Checks that each shard has both of its files. */
static bool check_shard_files(const Mirror *mirror, Error *error) {
    int64_t shards = 0;
    for (size_t i = 0; i < mirror->listing.count; i++) {
        const char *name = mirror->listing.entries[i].name;
        bool tokens = is_tokens(name), index = is_index(name);
        SCOPED_FREE char *other = memory_format("%.*s%s", (int)strlen(name) - 4, name, tokens ? ".idx" : ".bin");
        if ((tokens || index) && !find_object(mirror, other))
            return error_set(error, ERROR_DATA,
                "%s has %s but not %s: a shard in a bucket needs both files (Megatron's format): upload the missing file", mirror->url,
                name, other);
        shards += tokens;
    }
    return shards > 0 ||
           error_set(error, ERROR_DATA,
               "%s contains neither texts nor token shards: give a folder with text files, or with NAME.bin and NAME.idx", mirror->url);
}

static json_t *describe_objects(const Mirror *mirror, bool which(const char *name)) {
    json_t *list = json_array();
    for (size_t i = 0; i < mirror->listing.count; i++) {
        const S3Entry *entry = &mirror->listing.entries[i];
        if (which(entry->name))
            json_array_append_new(
                list, json_pack("{s:s, s:I, s:s}", "name", entry->name, "bytes", (json_int_t)entry->bytes, "etag", entry->etag));
    }
    return list;
}

/* Takes over the lists; `texts` may be NULL. */
static bool write_mirror_record(
    const Mirror *mirror, const RemoteOptions *options, json_t *objects, json_t *copies, json_t *texts, Error *error) {
    SCOPED_FREE char *path = memory_format("%s/%s", mirror->folder, REMOTE_RECORD);
    json_auto_t *record = json_pack("{s:s, s:s, s:s, s:s, s:I, s:f, s:o, s:o}", "url", mirror->url, "bucket", mirror->bucket, "prefix",
        mirror->prefix, "cache", options->cache, "cache_bytes", (json_int_t)options->bytes, "patience", options->patience, "objects",
        objects, "copies", copies);
    if (record && texts) json_object_set_new(record, REMOTE_TEXTS, texts);
    else json_decref(texts);
    SCOPED_FREE char *text = record ? json_dumps(record, JSON_INDENT(1)) : NULL;
    if (!text) return error_set(error, ERROR_MEMORY, "out of memory for %s", path);
    return file_write(path, text, (int64_t)strlen(text), error);
}

static bool update_mirror(Mirror *mirror, const RemoteOptions *options, Error *error) {
    if (holds_texts(mirror))
        return remove_others(mirror, error) &&
               write_mirror_record(mirror, options, json_array(), json_array(), describe_objects(mirror, is_any), error);
    if (!check_shard_files(mirror, error) || !remove_others(mirror, error)) return false;
    for (size_t i = 0; i < mirror->listing.count; i++)
        if (is_copied(mirror->listing.entries[i].name) && !copy_object(mirror, &mirror->listing.entries[i], error)) return false;
    return write_mirror_record(mirror, options, describe_objects(mirror, is_tokens), describe_objects(mirror, is_copied), NULL, error);
}

/* Continues with the existing folder when the store does not answer. */
static bool go_on(const Mirror *mirror, const RemoteOptions *options, Error *error) {
    if (!mirror->before) return false;
    log_warn("%s does not answer: using the data that was fetched before (%s)", mirror->url, error->message);
    *error = (Error){0};
    return write_mirror_record(mirror, options, json_incref(json_object_get(mirror->before, "objects")),
        json_incref(json_object_get(mirror->before, "copies")), json_incref(json_object_get(mirror->before, REMOTE_TEXTS)), error);
}

static bool mirror_open(Mirror *mirror, const RemoteOptions *options, const char *url, Error *error) {
    const char *bucket = url + strlen(S3_SCHEME), *slash = strchr(bucket, '/');
    SCOPED_FREE char *record = NULL;
    *mirror = (Mirror){.url = url, .folder = remote_folder(options->cache, url)};
    mirror->bucket = memory_format("%.*s", (int)strcspn(bucket, "/"), bucket);
    mirror->prefix = memory_format("%s%s", slash ? slash + 1 : "", slash && slash[1] ? "/" : "");
    record = memory_format("%s/%s", mirror->folder, REMOTE_RECORD);
    SCOPED_FREE char *text = file_read(record, RECORD_LIMIT, NULL, error);
    if (!text && error->finding != FINDING_ABSENT) return error_recode(error, ERROR_DATA);
    mirror->before = text ? json_loads(text, 0, NULL) : NULL;
    mirror->s3 = s3_open(mirror->bucket, error);
    return mirror->s3 && file_make_folder(mirror->folder, error);
}

/* Lists the objects below the prefix, or the one object of that name. */
static bool list_source(Mirror *mirror, Error *error) {
    bool absent;
    size_t length = strlen(mirror->prefix);
    SCOPED_FREE char *key = memory_format("%.*s", length ? (int)length - 1 : 0, mirror->prefix);
    return s3_list(mirror->s3, mirror->prefix, true, mirror->url, &mirror->listing, error) &&
           (mirror->listing.count > 0 || !*key || s3_find(mirror->s3, key, mirror->url, &mirror->listing, &absent, error));
}

static bool mirror_make(const RemoteOptions *options, const char *url, Error *error) {
    SCOPED(block_cache_close) BlockCache cache = {0};
    SCOPED(mirror_free) Mirror mirror;
    if (!mirror_open(&mirror, options, url, error)) return false;
    bool listed = list_source(&mirror, error), texts = listed ? holds_texts(&mirror) : json_object_get(mirror.before, REMOTE_TEXTS) != NULL;
    Error unlisted = *error;
    if (!texts && !block_cache_open(&cache, options->cache, options->bytes, error)) return false;
    if (!listed) *error = unlisted;
    return listed ? update_mirror(&mirror, options, error) : go_on(&mirror, options, error);
}

json_t *remote_identity_of_texts(const char *folder, Error *error) {
    SCOPED_FREE char *path = memory_format("%s/%s", folder, REMOTE_RECORD);
    SCOPED_FREE char *text = file_read(path, RECORD_LIMIT, NULL, error);
    if (!text) return error_recode(error, ERROR_DATA), NULL;
    json_auto_t *record = json_loads(text, 0, NULL);
    SCOPED_FREE char *list = json_dumps(json_object_get(record, REMOTE_TEXTS), JSON_COMPACT);
    if (list) return json_sprintf("xxh3 %016" PRIx64, hash_bytes(list, strlen(list)));
    error_set(error, ERROR_DATA, "%s is not a record of texts in a bucket: remove it and restart", path);
    return NULL;
}

bool remote_mirror(const RemoteOptions *options, const char *path, Error *error) {
    const double moment = 0.05;
    SCOPED_FREE char *url = memory_format("%.*s", (int)path_length(path), path);
    int lock;
    if (!file_make_folder(options->cache, error)) return false;
    while (!file_lock(options->cache, &lock)) {
        if (errno != EWOULDBLOCK) return file_fail(error, "lock", options->cache) || error_recode(error, ERROR_DATA);
        thread_sleep(moment);
    }
    bool made = mirror_make(options, url, error);
    if (lock >= 0) close(lock);
    return made || error->code == ERROR_USAGE || error->code == ERROR_MEMORY ? made : error_recode(error, ERROR_DATA);
}
