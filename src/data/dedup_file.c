/* The file of a packing with dedup= that has the hashes and keys of its documents, with the file and
 * line of each, so that a later packing can leave these documents out (against=).
 *
 * The file has pairs of a hash and a place, the names of the files with a NUL after each, and a
 * trailer. A place is the number of a file, from 1, above PLACE_LINE_BITS bits of a line; 0 is
 * unknown. */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/pack_internal.h"

static const char magic[8] = "SMELTDUP";
typedef struct DedupTrailer {
    uint64_t entries, name_bytes;
    uint32_t near, version;
    char magic[sizeof magic];
    uint64_t hash; /* XXH3 of all bytes before */
} DedupTrailer;
enum { DEDUP_VERSION = 1 };

/* -- Writing ------------------------------------------------------------------------------------------------------------- */

typedef struct DedupWriter {
    File file;
    XXH3_state_t *hash;
    DedupTrailer trailer;
    uint64_t own_files, buffer[1 << 13];
    size_t used;
} DedupWriter;

static bool put_bytes(DedupWriter *writer, const void *bytes, size_t size, Error *error) {
    XXH3_64bits_update(writer->hash, bytes, size);
    return size == 0 || file_append(&writer->file, bytes, (int64_t)size, error);
}

static bool put_entries(DedupWriter *writer, Error *error) {
    size_t bytes = writer->used * sizeof *writer->buffer;
    writer->used = 0;
    return put_bytes(writer, writer->buffer, bytes, error);
}

/* Adds an entry, unless it is that of another packing. */
static bool put_entry(void *context, uint64_t hash, uint64_t place, Error *error) {
    DedupWriter *writer = context;
    if (place >> PLACE_LINE_BITS > writer->own_files) return true;
    writer->buffer[writer->used++] = hash;
    writer->buffer[writer->used++] = place;
    writer->trailer.entries++;
    return writer->used < sizeof writer->buffer / sizeof *writer->buffer || put_entries(writer, error);
}

static bool put_all(DedupWriter *writer, const HashSet *seen, const FileList *files, Error *error) {
    bool good = hash_set_each(seen, put_entry, writer, error) && put_entries(writer, error);
    for (size_t i = 0; i < files->count && good; i++) {
        size_t size = strlen(files->entries[i].name) + 1;
        writer->trailer.name_bytes += size;
        good = put_bytes(writer, files->entries[i].name, size, error);
    }
    if (!good || !put_bytes(writer, &writer->trailer, offsetof(DedupTrailer, hash), error)) return false;
    uint64_t hash = XXH3_64bits_digest(writer->hash);
    return file_append(&writer->file, &hash, sizeof hash, error) && file_replace_commit(&writer->file, error);
}

bool dedup_write(const char *path, const HashSet *seen, bool near, const FileList *files, Error *error) {
    DedupWriter *writer = memory_allocate(sizeof *writer);
    writer->trailer = (DedupTrailer){.near = near, .version = DEDUP_VERSION};
    memcpy(writer->trailer.magic, magic, sizeof magic);
    writer->own_files = files->count;
    writer->hash = XXH3_createState();
    if (!writer->hash) memory_refused(sizeof(XXH64_hash_t));
    XXH3_64bits_reset(writer->hash);
    bool good = file_replace_begin(&writer->file, path, error) && put_all(writer, seen, files, error);
    file_close(&writer->file);
    XXH3_freeState(writer->hash);
    free(writer);
    return good;
}

/* -- Reading ------------------------------------------------------------------------------------------------------------- */

bool dedup_is(const char *path) {
    SCOPED(file_unmap) FileMap map = {0};
    Error ignored = {0};
    DedupTrailer trailer;
    if (!file_map(&map, path, &ignored) || map.size < sizeof trailer) return false;
    memcpy(&trailer, map.bytes + map.size - sizeof trailer, sizeof trailer);
    return !memcmp(trailer.magic, magic, sizeof magic);
}

/* Finds the file of a packing, by the names that its output may have. The caller frees. */
static char *find_dedup(const char *packing) {
    static const char *const endings[] = {"/" PACK_DEDUP_NAME, "." PACK_DEDUP_NAME, "-train/" PACK_DEDUP_NAME, "-train." PACK_DEDUP_NAME};
    int length = (int)path_length(packing);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        char *path = memory_format("%.*s%s", length, packing, endings[i]);
        if (file_kind(path, NULL) != FILE_ABSENT) return path;
        free(path);
    }
    return NULL;
}

/* Reads the trailer of a mapped file, and checks everything. */
static bool check_dedup(const FileMap *map, const char *path, DedupTrailer *trailer, Error *error) {
    bool good = map->size >= sizeof *trailer;
    if (good) memcpy(trailer, map->bytes + map->size - sizeof *trailer, sizeof *trailer);
    good = good && !memcmp(trailer->magic, magic, sizeof magic);
    if (good && trailer->version != DEDUP_VERSION)
        return error_set(error, ERROR_DATA, "%s has the format %u of another version of smelt: pack again", path, trailer->version);
    size_t rest = map->size - sizeof *trailer;
    good = good && trailer->name_bytes <= rest && trailer->entries == (rest - trailer->name_bytes) / 16 &&
           (rest - trailer->name_bytes) % 16 == 0 && (!trailer->name_bytes || !map->bytes[rest - 1]) &&
           XXH3_64bits(map->bytes, map->size - sizeof trailer->hash) == trailer->hash;
    return good || error_set(error, ERROR_DATA, "%s is damaged: pack again", path);
}

static bool take_dedup(DedupAgainst *against, const FileMap *map, const DedupTrailer *trailer, HashSet *seen, Error *error) {
    uint64_t before = against->first_file + against->names.count, entry[2];
    const char *name = (const char *)map->bytes + trailer->entries * sizeof entry, *end = name + trailer->name_bytes;
    bool good = true, known;
    for (; name < end; name += strlen(name) + 1) file_list_add(&against->names, memory_copy_string(name), FILE_REGULAR);
    for (uint64_t i = 0; i < trailer->entries && good; i++) {
        memcpy(entry, map->bytes + i * sizeof entry, sizeof entry);
        uint64_t file = entry[1] >> PLACE_LINE_BITS, all = file ? file + before : PLACE_FILES;
        if (all > PLACE_FILES) all = PLACE_FILES;
        good = hash_set_add(seen, entry[0], all << PLACE_LINE_BITS | (entry[1] & PLACE_LINES), &known, NULL, error);
    }
    against->identity = XXH3_64bits_withSeed(&trailer->hash, sizeof trailer->hash, against->identity);
    return good;
}

static bool read_dedup(DedupAgainst *against, const char *packing, bool near, HashSet *seen, Error *error) {
    SCOPED_FREE char *path = find_dedup(packing), *own = find_dedup(against->output);
    SCOPED(file_unmap) FileMap map = {0};
    DedupTrailer trailer = {0};
    if (!path)
        return error_set(
            error, ERROR_USAGE, "against: %s was not packed with dedup=, which leaves the hashes of its documents: pack it again", packing);
    if (own && file_same(path, own))
        return error_set(error, ERROR_USAGE, "against: %s is OUTPUT, whose documents would all be dropped: name other packings", packing);
    if (!file_map(&map, path, error) || !check_dedup(&map, path, &trailer, error)) return error_recode(error, ERROR_DATA);
    if (near && !trailer.near)
        return error_set(
            error, ERROR_USAGE, "against: %s was packed with dedup=exact: pack it with dedup=near, or set dedup=exact", packing);
    return take_dedup(against, &map, &trailer, seen, error);
}

bool dedup_read(DedupAgainst *against, const char *packings, bool near, HashSet *seen, Error *error) {
    bool good = true;
    for (const char *at = packings; *at && good;) {
        size_t length = strcspn(at, ",");
        SCOPED_FREE char *packing = memory_format("%.*s", (int)length, at);
        good = read_dedup(against, packing, near, seen, error);
        at += length + (at[length] == ',');
    }
    return good;
}
