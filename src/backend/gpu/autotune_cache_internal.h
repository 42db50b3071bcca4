/* Which algorithm of a vendor's library was quickest for a product, remembered from run to run in a text file that all
 * runs of a user share: one line DEVICE <tab> LIBRARY <tab> SHAPE <tab> ALGORITHM in hexadecimal, the last line of a
 * shape counts. Anybody may have written it, so lines that are not exactly of this form are passed over, and whoever
 * asks must still compare the answer with what the library offers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { GEMM_ALGORITHM_MOST_BYTES = 64, AUTOTUNE_CACHE_MOST_BYTES = 4 << 20 };

typedef struct AutotuneCache AutotuneCache;

/* $XDG_CACHE_HOME/smelt/gemm-autotune, else ~/.cache/smelt/gemm-choices; NULL without a home. The caller frees. */
char *autotune_cache_default_path(void);

/* The lines of this device and library whose algorithms have `algorithm_bytes`. A file that is missing or cannot be
 * read holds none; with a NULL path nothing is read or written. Never NULL. */
AutotuneCache *autotune_cache_open(const char *path, const char *device, const char *library, size_t algorithm_bytes);
void autotune_cache_close(AutotuneCache *choices);

bool autotune_cache_find(const AutotuneCache *choices, const char *shape, void *algorithm);
/* Appends a line, making the folder where it is missing. A file that cannot be written, or one of
 * AUTOTUNE_CACHE_MOST_BYTES, stays as it is. */
void autotune_cache_add(AutotuneCache *choices, const char *shape, const void *algorithm);
