/* Listings of a bucket, page by page. A server that repeats pages, announces one empty page after
 * another, or invents names without end is refused, so that every listing ends. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/array.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "store/s3.h"

enum {
    MOST_PAGES = 10000,
    MOST_NAMES = 1000000,
    IDLE_PAGES = 100, /* consecutive pages without a new name: a server may omit deleted objects from its pages */
    MEAN_NAMES = 10,  /* minimum per page on average, after IDLE_PAGES: servers fill a page with 1,000 */
};

/* The hashes of the first names of all pages of a listing, and the number of consecutive pages without a new name. */
typedef struct Pages {
    uint64_t *beginnings;
    size_t count;
    int idle;
} Pages;

static void pages_free(Pages *pages) { free(pages->beginnings); }

/* Notes a page with the entries of `listing` from index `first` on. It is new if no earlier page
 * began with the same name. */
static void pages_note(Pages *pages, const S3Listing *listing, size_t first) {
    pages->idle++;
    if (first == listing->count) return;
    uint64_t hash = XXH3_64bits(listing->entries[first].name, strlen(listing->entries[first].name));
    for (size_t i = 0; i < pages->count; i++)
        if (pages->beginnings[i] == hash) return;
    array_append(pages->beginnings, pages->count, hash);
    pages->idle = 0;
}

/* Appends the entries of one answer under <outer><inner>. */
static void entries_append(S3Listing *listing, const char *text, const char *outer, const char *inner, const char *prefix) {
    size_t skipped = strlen(prefix);
    for (char *block; (block = s3_next_tag(&text, outer)); free(block)) {
        const char *at = block, *also = block, *too = block;
        SCOPED_FREE char *key = s3_next_tag(&at, inner), *size = s3_next_tag(&also, "Size"), *etag = s3_next_tag(&too, "ETag");
        if (!key || !name_is_plain(key) || strncmp(key, prefix, skipped) != 0 || key[skipped] == '\0') continue;
        size_t length = strlen(key + skipped);
        bool folder = key[skipped + length - 1] == '/';
        S3Entry entry = {.name = memory_format("%.*s", (int)(length - folder), key + skipped),
            .folder = folder,
            .bytes = size ? strtoll(size, NULL, 10) : 0,
            .etag = memory_copy_string(etag ? etag : "")};
        array_append(listing->entries, listing->count, entry);
    }
}

bool s3_list(S3 *s3, const char *prefix, bool deep, const char *path, S3Listing *listing, Error *error) {
    SCOPED_FREE char *encoded = s3_encode(prefix, false), *token = memory_copy_string("");
    SCOPED(pages_free) Pages pages = {0};
    bool more = true;
    for (int page = 0; more; page++) {
        size_t first = listing->count;
        SCOPED(s3_reply_free) S3Reply reply = {0};
        char *query = memory_format("%s%s%s%slist-type=2&prefix=%s", token[0] ? "continuation-token=" : "", token, token[0] ? "&" : "",
            deep ? "" : "delimiter=%2F&", encoded);
        if (!s3_send(s3, (S3Request){.method = "GET", .key = "", .query = query, .path = path}, &reply, NULL, error)) return false;
        const char *text = reply.text ? reply.text : "", *at = text;
        entries_append(listing, text, "Contents", "Key", prefix);
        entries_append(listing, text, "CommonPrefixes", "Prefix", prefix);
        SCOPED_FREE char *next = s3_next_tag(&at, "NextContinuationToken"), *before = token;
        more = next != NULL;
        token = s3_encode(more ? next : "", false);
        pages_note(&pages, listing, first);
        bool repeats = strcmp(token, before) == 0 || pages.idle == IDLE_PAGES;
        bool invents = (page >= IDLE_PAGES && listing->count < (size_t)page * MEAN_NAMES) || listing->count > MOST_NAMES;
        if (more && (repeats || invents || page == MOST_PAGES))
            return error_set(error, ERROR_CHECKPOINT,
                "the listing of %s does not end: after page %d and %zu names the server announces another page, and the last %d pages had "
                "no new names. A listing has at most %d pages and %d names, and on average at least %d names per page. Check the bucket's "
                "server, or use a folder with fewer objects",
                path, page + 1, listing->count, pages.idle, MOST_PAGES, MOST_NAMES, MEAN_NAMES);
    }
    return true;
}

bool s3_find(S3 *s3, const char *key, const char *path, S3Listing *listing, bool *absent, Error *error) {
    SCOPED(s3_reply_free) S3Reply reply = {0};
    if (!s3_send(s3, (S3Request){.method = "HEAD", .key = key, .path = path}, &reply, absent, error)) return false;
    if (*absent) return true;
    S3Entry entry = {.name = memory_copy_string(""), .bytes = reply.length, .etag = memory_copy_string(reply.etag)};
    array_append(listing->entries, listing->count, entry);
    return true;
}

void s3_listing_free(S3Listing *listing) {
    for (size_t i = 0; i < listing->count; i++) {
        free(listing->entries[i].name);
        free(listing->entries[i].etag);
    }
    free(listing->entries);
    *listing = (S3Listing){0};
}
