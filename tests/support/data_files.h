/* What the tests of the data module share: a temporary folder per test, whole files, shards, and one shard written out
 * by hand. Everything is static inline, so a test program uses what it needs. */
#pragma once

#include <dirent.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/memory.h"
#include "data/data.h"

/* In memory where that exists: every finished shard is flushed to its disk, which is slow on a busy one. */
static inline int enter_folder(void **state) {
    char *name = memory_format("%s/smelt-test-data-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(name) || chdir(name) != 0) return -1;
    *state = name;
    return 0;
}

static inline int remove_entry(const char *path, const struct stat *status, int type, struct FTW *place) {
    (void)status, (void)type, (void)place;
    return remove(path);
}

static inline int leave_folder(void **state) {
    int failed = chdir("/") != 0 || nftw(*state, remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0;
    free(*state);
    return failed ? -1 : 0;
}

static inline void write_bytes(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static inline void write_text(const char *path, const char *text) { write_bytes(path, text, strlen(text)); }

/* The caller frees. */
static inline unsigned char *read_bytes(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *size = (size_t)ftell(file);
    rewind(file);
    unsigned char *bytes = memory_allocate(*size + 1);
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

/* How many names the test's folder holds. */
static inline int count_entries(void) {
    DIR *folder = opendir(".");
    assert_non_null(folder);
    int count = -2; /* "." and ".." */
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

static inline void write_shard(const char *prefix, int token_bytes, const int32_t *tokens, const int64_t *lengths, int64_t documents) {
    Error error = {0};
    ShardWriter *writer = shard_writer_open(prefix, token_bytes, &error);
    assert_non_null(writer);
    for (int64_t i = 0; i < documents; i++) {
        assert_true(shard_writer_document(writer, tokens, lengths[i], &error));
        tokens += lengths[i];
    }
    assert_true(shard_writer_finish(writer, &error));
}

static inline Shard open_shard(const char *prefix) {
    Shard shard;
    Error error = {0};
    if (!shard_open(&shard, prefix, &error)) fail_msg("%s", error.message);
    return shard;
}

/* Written out from the format's definition: 3 sequences in 2 documents, the first document being sequences 0 and 1. */
static const unsigned char hand_index[] = {
    'M',
    'M',
    'I',
    'D',
    'I',
    'D',
    'X',
    0,
    0, /* magic */
    1,
    0,
    0,
    0,
    0,
    0,
    0,
    0, /* version */
    4, /* int32 */
    3,
    0,
    0,
    0,
    0,
    0,
    0,
    0, /* sequences */
    3,
    0,
    0,
    0,
    0,
    0,
    0,
    0, /* document entries: documents + 1 */
    2,
    0,
    0,
    0,
    1,
    0,
    0,
    0,
    3,
    0,
    0,
    0, /* lengths */
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0, /* byte offsets */
    8,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    12,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0, /* document index */
    2,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    3,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
};
static const unsigned char hand_tokens[] = {
    5,
    0,
    0,
    0,
    6,
    1,
    0,
    0,
    7,
    0,
    2,
    0,
    8,
    0,
    0,
    0,
    9,
    0,
    0,
    0,
    10,
    0,
    0,
    0,
};

static inline void write_hand_shard(void) {
    write_bytes("m.idx", hand_index, sizeof hand_index);
    write_bytes("m.bin", hand_tokens, sizeof hand_tokens);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, enter_folder, leave_folder)
