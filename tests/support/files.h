/* Whole files, and a temporary folder per test that is the working directory meanwhile. Everything is static inline,
 * so a test program uses what it needs. */
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

#include "base/memory.h"

/* In memory where that exists: finished files are flushed to their disk, which is slow on a busy one. */
static inline int enter_folder(void **state) {
    char *name = memory_format("%s/smelt-test-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
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

static inline void assert_holds(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("\"%s\" does not contain \"%s\"", text, part);
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

/* The whole file with a NUL behind it. The caller frees. */
static inline char *read_text(const char *path) {
    size_t size;
    return (char *)read_bytes(path, &size);
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

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, enter_folder, leave_folder)
