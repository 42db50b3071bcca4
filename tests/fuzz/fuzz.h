/* What the fuzz programs share. Each tests/fuzz/NAME.c has one entry, FUZZ(NAME), which must survive any bytes.
 * libFuzzer finds bytes:
 *
 *   make BUILD=fuzz CC=clang SANITIZE="-fsanitize=fuzzer-no-link,address,undefined" CFLAGS="-O1 -g" WARNINGS=-w \
 *       fuzz/libsmelt.a
 *   clang -std=gnu17 -D_GNU_SOURCE -Isrc -g -fsanitize=fuzzer,address,undefined -o fuzz/NAME tests/fuzz/NAME.c \
 *       fuzz/libsmelt.a -fopenmp -lyaml -ljansson -lxxhash -lpcre2-8 -lutf8proc -lcrypto -ldl -lm -lpthread
 *   fuzz/NAME -max_total_time=600 NEW tests/corpus/NAME
 *
 * tests/fuzz/test_corpus.c replays tests/corpus: what broke something once, and inputs that together reach every
 * branch that fuzzing has found. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#ifdef FUZZ_REPLAY
#define FUZZ(name) static void fuzz_##name(const uint8_t *data, size_t size)
#else
#define FUZZ(name)                                                                                                                        \
    static void fuzz_##name(const uint8_t *data, size_t size);                                                                            \
    int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);                                                                         \
    int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {                                                                        \
        fuzz_##name(data, size);                                                                                                          \
        return 0;                                                                                                                         \
    }                                                                                                                                     \
    static void fuzz_##name(const uint8_t *data, size_t size)
#endif

static inline void require(bool condition) {
    if (!condition) abort();
}
