/* The autotune cache: the fastest algorithm of a vendor's library for each GEMM shape, kept between
 * runs in a text file that all runs of a user share. A line is DEVICE <tab> LIBRARY <tab> SHAPE
 * <tab> ALGORITHM in hexadecimal; the last line of a shape counts. The file is not trusted: invalid
 * lines are skipped. Callers check that the library still offers the algorithm, and compare its
 * results with those of the algorithm that decides the shape's bits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { GEMM_ALGORITHM_MOST_BYTES = 64, AUTOTUNE_CACHE_MOST_BYTES = 4 << 20 };

typedef struct AutotuneCache AutotuneCache;

/* Returns $XDG_CACHE_HOME/smelt/gemm-autotune, or ~/.cache/smelt/gemm-autotune; NULL without a
 * home. The caller frees it. */
char *autotune_cache_default_path(void);

/* Reads the lines of this device and library whose algorithms have `algorithm_bytes` bytes. A file
 * that is missing or unreadable counts as empty; with a NULL path nothing is read or written. Never
 * returns NULL. */
AutotuneCache *autotune_cache_open(const char *path, const char *device, const char *library, size_t algorithm_bytes);
void autotune_cache_close(AutotuneCache *cache);

bool autotune_cache_find(const AutotuneCache *cache, const char *shape, void *algorithm);
/* Appends a line; creates the folder if it is missing. A full file (AUTOTUNE_CACHE_MOST_BYTES) is
 * not changed. */
void autotune_cache_add(AutotuneCache *cache, const char *shape, const void *algorithm);
