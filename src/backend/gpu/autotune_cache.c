/* See autotune_cache_internal.h. Owns a copy of its device and library's lines. Used by vendor_gemm.c. */
#include "backend/gpu/autotune_cache_internal.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"

typedef struct AutotuneEntry {
    char *shape;
    unsigned char algorithm[GEMM_ALGORITHM_MOST_BYTES];
} AutotuneEntry;

struct AutotuneCache {
    char *path, *prefix; /* prefix: DEVICE <tab> LIBRARY <tab> */
    size_t algorithm_bytes;
    AutotuneEntry *items;
    int count;
};

char *autotune_cache_default_path(void) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && cache[0] == '/') return memory_format("%s/smelt/gemm-autotune", cache);
    return home && home[0] == '/' ? memory_format("%s/.cache/smelt/gemm-autotune", home) : NULL;
}

/* -- Reading ------------------------------------------------------------------------------------------------------- */

static bool read_algorithm(const char *text, size_t bytes, unsigned char *algorithm) {
    if (strlen(text) != 2 * bytes || strspn(text, "0123456789abcdef") != 2 * bytes) return false;
    for (size_t i = 0; i < bytes; i++) sscanf(text + 2 * i, "%2hhx", &algorithm[i]);
    return true;
}

static AutotuneEntry *find_entry(const AutotuneCache *cache, const char *shape) {
    for (int i = 0; i < cache->count; i++)
        if (!strcmp(cache->items[i].shape, shape)) return &cache->items[i];
    return NULL;
}

static void keep_entry(AutotuneCache *cache, const char *shape, const unsigned char *algorithm) {
    AutotuneEntry *entry = find_entry(cache, shape);
    if (!entry) {
        array_append(cache->items, cache->count, (AutotuneEntry){.shape = memory_copy_string(shape)});
        entry = &cache->items[cache->count - 1];
    }
    memcpy(entry->algorithm, algorithm, cache->algorithm_bytes);
}

static void read_cache_line(AutotuneCache *cache, char *line) {
    size_t prefix = strlen(cache->prefix);
    unsigned char algorithm[GEMM_ALGORITHM_MOST_BYTES];
    if (strncmp(line, cache->prefix, prefix)) return;
    char *shape = line + prefix, *tab = strchr(shape, '\t');
    if (!tab || !read_algorithm(tab + 1, cache->algorithm_bytes, algorithm)) return;
    *tab = '\0';
    keep_entry(cache, shape, algorithm);
}

AutotuneCache *autotune_cache_open(const char *path, const char *device, const char *library, size_t algorithm_bytes) {
    AutotuneCache *cache = memory_allocate(sizeof *cache);
    *cache = (AutotuneCache){.prefix = memory_format("%s\t%s\t", device, library), .algorithm_bytes = algorithm_bytes};
    if (!path) return cache;
    Error ignored;
    int64_t bytes = 0;
    SCOPED_FREE char *text = file_read(path, 2 * (int64_t)AUTOTUNE_CACHE_MOST_BYTES, &bytes, &ignored);
    cache->path = memory_copy_string(path);
    for (char *line = text, *end; text && (end = memchr(line, '\n', (size_t)(text + bytes - line))); line = end + 1) {
        *end = '\0';
        read_cache_line(cache, line);
    }
    return cache;
}

void autotune_cache_close(AutotuneCache *cache) {
    for (int i = 0; i < cache->count; i++) free(cache->items[i].shape);
    free(cache->items);
    free(cache->path);
    free(cache->prefix);
    free(cache);
}

bool autotune_cache_find(const AutotuneCache *cache, const char *shape, void *algorithm) {
    const AutotuneEntry *entry = find_entry(cache, shape);
    if (entry) memcpy(algorithm, entry->algorithm, cache->algorithm_bytes);
    return entry != NULL;
}

/* -- Writing ------------------------------------------------------------------------------------------------------- */

/* Writes the line at once, so that lines of several processes do not mix. A line that is not
 * written is only measured again. */
static void append_line(const char *path, const char *line) {
    File file;
    Error ignored;
    if (!file_open_append(&file, path, false, &ignored) &&
        !(ignored.finding == FINDING_ABSENT && file_make_parents(path, &ignored) && file_open_append(&file, path, false, &ignored)))
        return;
    if (file.bytes < AUTOTUNE_CACHE_MOST_BYTES) file_append(&file, line, (int64_t)strlen(line), &ignored);
    file_close(&file);
}

void autotune_cache_add(AutotuneCache *cache, const char *shape, const void *algorithm) {
    char hexadecimal[2 * GEMM_ALGORITHM_MOST_BYTES + 1] = "";
    const unsigned char *bytes = algorithm;
    keep_entry(cache, shape, bytes);
    if (!cache->path) return;
    for (size_t i = 0; i < cache->algorithm_bytes; i++) snprintf(hexadecimal + 2 * i, 3, "%02x", bytes[i]);
    SCOPED_FREE char *line = memory_format("%s%s\t%s\n", cache->prefix, shape, hexadecimal);
    append_line(cache->path, line);
}
