/* Replays tests/corpus: every file of tests/corpus/NAME goes through the entry of tests/fuzz/NAME.c, which aborts
 * when something is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/memory.h"
#include "fuzz.h"

typedef struct Entry {
    const char *name;
    void (*fuzz)(const uint8_t *data, size_t size);
} Entry;

#define DECLARE(name) void fuzz_##name(const uint8_t *data, size_t size);
FUZZ_ENTRIES(DECLARE)
#define ENTRY(name) {#name, fuzz_##name},
static const Entry entries[] = {FUZZ_ENTRIES(ENTRY)};
enum { ENTRIES = sizeof entries / sizeof *entries };

/* A block of just the file's size, so that AddressSanitizer sees a read behind it. */
static void replay_file(void (*fuzz)(const uint8_t *data, size_t size), const char *path) {
    Error error = {0};
    int64_t length;
    char *content = file_read(path, 1 << 20, &length, &error);
    assert_non_null(content);
    uint8_t *exact = memory_allocate(length > 0 ? (size_t)length : 1);
    memcpy(exact, content, (size_t)length);
    free(content);
    fuzz(exact, (size_t)length);
    free(exact);
}

/* Ends the program by the entry's abort, after the name of the file. */
static void replay(void **state) {
    const Entry *entry = *state;
    FileList list;
    Error error = {0};
    char *folder = memory_format("tests/corpus/%s", entry->name);
    assert_true(file_list(folder, &list, &error));
    assert_true(list.count > 0);
    for (size_t i = 0; i < list.count; i++) {
        char *path = memory_format("%s/%s", folder, list.entries[i].name);
        print_message("%s\n", path);
        replay_file(entry->fuzz, path);
        free(path);
    }
    file_list_free(&list);
    free(folder);
}

int main(void) {
    struct CMUnitTest tests[ENTRIES];
    for (int i = 0; i < ENTRIES; i++)
        tests[i] = (struct CMUnitTest){.name = entries[i].name, .test_func = replay, .initial_state = (void *)&entries[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
