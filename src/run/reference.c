/* The file of a reference: its pairs, by token, then a ReferenceFooter. A file is valid if its
 * checksum is correct and the pairs account for every byte. A Reference owns its mapping. Called by
 * corpora and when a run starts. */
#include "run/reference.h"

#include <stddef.h>
#include <string.h>

#include <xxhash.h>

#define REFERENCE_MAGIC "SMELTRF1"

typedef struct ReferenceFooter {
    char magic[8];
    ReferenceKey key;
    int64_t count;
    uint64_t weights;
    uint64_t checksum; /* XXH3 of all bytes before it */
} ReferenceFooter;

static bool is_in_order(const Reference *reference) {
    for (int64_t i = 1; i < reference->count; i++)
        if (reference->pairs[i].token <= reference->pairs[i - 1].token) return false;
    return true;
}

static bool map_reference(Reference *reference, const ReferenceKey *key) {
    ReferenceFooter footer;
    size_t size = reference->map.size;
    if (size < sizeof footer || (size - sizeof footer) % sizeof(ReferencePair)) return false;
    memcpy(&footer, reference->map.bytes + size - sizeof footer, sizeof footer);
    int64_t count = (int64_t)((size - sizeof footer) / sizeof(ReferencePair));
    if (memcmp(footer.magic, REFERENCE_MAGIC, sizeof footer.magic) != 0 || footer.count != count || !count) return false;
    if (footer.key.content != key->content || footer.key.length != key->length) return false;
    if (XXH3_64bits(reference->map.bytes, size - sizeof footer.checksum) != footer.checksum) return false;
    reference->pairs = (const ReferencePair *)reference->map.bytes;
    reference->count = count;
    reference->weights = footer.weights;
    reference->checksum = footer.checksum;
    return is_in_order(reference);
}

bool reference_open(Reference *reference, const char *path, const ReferenceKey *key, Error *error) {
    *reference = (Reference){0};
    if (!file_map(&reference->map, path, error)) return error->finding == FINDING_ABSENT;
    if (!map_reference(reference, key)) reference_close(reference);
    return true;
}

void reference_close(Reference *reference) {
    file_unmap(&reference->map);
    *reference = (Reference){0};
}

bool reference_is_open(const Reference *reference) { return reference->count > 0; }

bool reference_write(const char *path, const ReferenceKey *key, uint64_t weights, const ReferencePair *pairs, int64_t count, Error *error) {
    File file = {0};
    ReferenceFooter footer = {.magic = REFERENCE_MAGIC, .key = *key, .count = count, .weights = weights};
    int64_t bytes = count * (int64_t)sizeof *pairs;
    XXH3_state_t *hash = XXH3_createState();
    if (!hash) return error_set(error, ERROR_MEMORY, "no memory to write %s: free some memory", path);
    XXH3_64bits_reset(hash);
    XXH3_64bits_update(hash, pairs, (size_t)bytes);
    XXH3_64bits_update(hash, &footer, offsetof(ReferenceFooter, checksum));
    footer.checksum = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    bool written = file_replace_begin(&file, path, error) && file_append(&file, pairs, bytes, error) &&
                   file_append(&file, &footer, sizeof footer, error) && file_replace_commit(&file, error);
    file_close(&file);
    return written;
}

const ReferencePair *reference_find(const Reference *reference, int64_t token) {
    int64_t low = 0, high = reference->count - 1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (reference->pairs[middle].token >= token) high = middle;
        else low = middle + 1;
    }
    return low <= high && reference->pairs[low].token == token ? &reference->pairs[low] : NULL;
}
