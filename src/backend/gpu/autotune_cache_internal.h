/* The autotune cache: the fastest algorithm of a vendor's library for each shape of GEMM, kept from run to run in a
 * text file that all runs of a user share. A line is DEVICE <tab> LIBRARY <tab> SHAPE <tab> ALGORITHM in hexadecimal;
 * the last line of a shape counts. The file is not trusted: other lines are skipped, and callers compare an answer with
 * what the library offers, and its results with those of the algorithm that decides the shape's bits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { GEMM_ALGORITHM_MOST_BYTES = 64, AUTOTUNE_CACHE_MOST_BYTES = 4 << 20 };

typedef struct AutotuneCache AutotuneCache;

/* $XDG_CACHE_HOME/smelt/gemm-autotune, else ~/.cache/smelt/gemm-autotune; NULL without a home. The caller frees. */
char *autotune_cache_default_path(void);

/* The lines of this device and library whose algorithms have `algorithm_bytes`. A file that is missing or cannot be
 * read holds none; with a NULL path nothing is read or written. Never NULL. */
AutotuneCache *autotune_cache_open(const char *path, const char *device, const char *library, size_t algorithm_bytes);
void autotune_cache_close(AutotuneCache *cache);

bool autotune_cache_find(const AutotuneCache *cache, const char *shape, void *algorithm);
/* Appends a line, making the folder where it is missing. A full file (AUTOTUNE_CACHE_MOST_BYTES) stays as it is. */
void autotune_cache_add(AutotuneCache *cache, const char *shape, const void *algorithm);
