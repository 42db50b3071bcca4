/* What the fuzz programs share. Each tests/fuzz/NAME.c has one entry, FUZZ(NAME), which must survive any bytes: whatever
 * reads them refuses them with one line, or gives something whole. `make fuzz` runs the entries under libFuzzer and
 * sanitizers, which find bytes; tests/fuzz/test_corpus.c replays tests/corpus: what broke something once, and inputs
 * that together reach every branch that fuzzing has found. */
#pragma once

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"

/* Each NAME stands in FUZZ_ENTRIES too. libFuzzer calls the weak function; the program that replays has it many times. */
#define FUZZ(name)                                                                                                                        \
    void fuzz_##name(const uint8_t *data, size_t size);                                                                                   \
    __attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);                                                   \
    __attribute__((weak)) int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {                                                  \
        fuzz_##name(data, size);                                                                                                          \
        return 0;                                                                                                                         \
    }                                                                                                                                     \
    void fuzz_##name(const uint8_t *data, size_t size)

#define FUZZ_ENTRIES(ENTRY)                                                                                                               \
    ENTRY(autotune) ENTRY(channel) ENTRY(chat) ENTRY(documents) ENTRY(encodings) ENTRY(fasttext) ENTRY(filter) ENTRY(gguf) ENTRY(hf_config) ENTRY(hf_index) ENTRY(label) ENTRY(lease) ENTRY(llmc) ENTRY(manifest) ENTRY(measured) ENTRY(mixture) ENTRY(not_text) ENTRY(options) ENTRY(parquet) ENTRY(peft) ENTRY(place)   \
    ENTRY(records) ENTRY(reference) ENTRY(rendezvous) ENTRY(reward) ENTRY(s3_answer) ENTRY(safetensors) ENTRY(sentencepiece) ENTRY(serve) ENTRY(shard) ENTRY(shard_file) ENTRY(tokenizer) ENTRY(vae)

/* A llama of one layer; `...` are further fields. */
#define FUZZ_MODEL(...)                                                                                                                   \
    {.family = FAMILY_llama, .layers = 1, .width = 8, .heads = 1, .kv_heads = 1, .head_dim = 8, .ffn = 8, .vocabulary = 8, .context = 8,  \
        .rope_theta = 1e4, .rope_fraction = 1, .rope_factor = 1, .rope_attention_factor = 1, .norm_epsilon = 1e-5, .padding = -1,         \
        .tied = true, __VA_ARGS__}

static inline void require(bool condition) {
    if (!condition) abort();
}

/* An error has a code, and a message of one line. */
static inline void require_line(const Error *error) {
    require(error->code != ERROR_NONE && *error->message && !strchr(error->message, '\n'));
}

static char fuzz_folder_path[32];
static inline void fuzz_folder_remove(void) {
    Error ignored;
    file_remove(fuzz_folder_path, &ignored);
}

/* A folder for the files of an entry, in memory, which lasts as long as the program. */
static inline const char *fuzz_folder(void) {
    if (!*fuzz_folder_path) {
        snprintf(fuzz_folder_path, sizeof fuzz_folder_path, "/dev/shm/smelt-fuzz-XXXXXX");
        require(mkdtemp(fuzz_folder_path) && atexit(fuzz_folder_remove) == 0);
    }
    return fuzz_folder_path;
}

/* Writes FOLDER/NAME anew and returns its path, which is valid until the next call but one. */
static inline const char *fuzz_file(const char *name, const void *data, size_t size) {
    static char paths[2][96];
    static int next;
    char *path = paths[next = !next];
    snprintf(path, sizeof *paths, "%s/%s", fuzz_folder(), name);
    unlink(path); /* a map of the former stays whole */
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    require(file >= 0 && write(file, data, size) == (ssize_t)size && close(file) == 0);
    return path;
}
