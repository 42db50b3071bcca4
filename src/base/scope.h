/* Locals that are released where their scope ends, whichever way leads out of it (the cleanup attribute of gcc and
 * clang). What a return statement computes is computed before. The last one declared is released first.
 *
 *     SCOPED_FREE char *path = memory_format("%s/metrics.jsonl", run);
 *     SCOPED(options_free_strings) OptionStrings strings = {0}; */
#pragma once

#include <stdlib.h>
#include <string.h>

/* `release` is called with the address of the local. */
#define SCOPED(release) __attribute__((cleanup(release)))

/* For pointers that free() takes. */
#define SCOPED_FREE SCOPED(scoped_free)
static inline void scoped_free(void *local) {
    void *block;
    memcpy(&block, local, sizeof block);
    free(block);
}
