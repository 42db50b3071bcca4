/* Fast hashes of samples of a file, at any size, and checksums of whole files. Used for the
 * identities of runs. */
#include "base/hash.h"

#include "base/file.h"

bool hash_file_samples(const char *path, XXH3_state_t *hash, Error *error) {
    enum { BLOCK = 64 << 10, BLOCKS = 64 };
    FileMap map;
    if (!file_map(&map, path, error)) return false;
    XXH3_64bits_update(hash, &map.size, sizeof map.size);
    bool whole = map.size <= (size_t)BLOCK * BLOCKS;
    if (whole) XXH3_64bits_update(hash, map.bytes, map.size);
    for (size_t i = 0; i < BLOCKS && !whole; i++) XXH3_64bits_update(hash, map.bytes + (map.size - BLOCK) / (BLOCKS - 1) * i, BLOCK);
    file_unmap(&map);
    return true;
}

bool hash_file(const char *path, uint64_t *checksum, Error *error) {
    FileMap map;
    if (!file_map(&map, path, error)) return false;
    *checksum = hash_bytes(map.bytes, map.size);
    file_unmap(&map);
    return true;
}
