/* A libFuzzer entry for the autotune cache: other lines are skipped, and what is added is found, also by the next
 * reader. Owns a file in the entries' folder. */
#include "backend/gpu/autotune_cache_internal.h"
#include "base/memory.h"
#include "fuzz.h"

FUZZ(autotune) {
    enum { BYTES_OF_ALGORITHM = 16 };
    static const unsigned char algorithm[BYTES_OF_ALGORITHM] = {1, 2, 255};
    unsigned char found[GEMM_ALGORITHM_MOST_BYTES];
    char *text = memory_format("%.*s\n", (int)size, (const char *)data);
    const char *path = fuzz_file("autotune", text, strlen(text));
    for (int i = 0; i < 2; i++) {
        AutotuneCache *cache = autotune_cache_open(path, "H200", "cublasLt 1", BYTES_OF_ALGORITHM);
        bool there = autotune_cache_find(cache, "bf16 1 2 3", found);
        require(i == 0 || (there && !memcmp(found, algorithm, sizeof algorithm)));
        if (i == 0) autotune_cache_add(cache, "bf16 1 2 3", algorithm);
        autotune_cache_close(cache);
    }
    free(text);
}
