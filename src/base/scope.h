/* Locals that are released at the end of their scope, on every path (the cleanup attribute of gcc
 * and clang). A return value is computed before the release. The last local declared is released
 * first.
 *
 *     SCOPED_FREE char *path = memory_format("%s/metrics.jsonl", run);
 *     SCOPED(options_free_strings) OptionStrings strings = {0}; */
#pragma once

#include <stdlib.h>
#include <string.h>

/* Calls `release` with the address of the local. */
#define SCOPED(release) __attribute__((cleanup(release)))

/* For pointers to be released with free(). */
#define SCOPED_FREE SCOPED(scoped_free)
static inline void scoped_free(void *local) {
    void *block;
    memcpy(&block, local, sizeof block);
    free(block);
}
