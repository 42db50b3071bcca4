/* What the tests of power cuts share: a recorded program, all the disks that a power cut can leave of its work
 * (disk_log.h), each as the folder "cut" of the test's folder, and a small model. Everything is static inline, so a
 * test program uses what it needs. */
#pragma once

#include "base/file.h"
#include "base/scope.h"
#include "disk_log.h"
#include "train_run.h"

#define MODEL                                                                                                             \
    "data.train=text model.family=zaya model.width=16 model.layers=1 model.heads=2 model.kv_heads=1 model.ffn=16 model.experts=2 "          \
    "model.router_width=8 data.length=32 batch.sequences=2 batch.tokens=128 optimizer.lr=5e-3 schedule.warmup=4 steps=9 " \
    "threads=2 tensorboard=false device=cpu checkpoint.every=3"

/* Runs smelt, which must succeed. */
static inline void make(const char *words) {
    ProcessResult result = smelt(words);
    expect_code(&result, ERROR_NONE, words);
    process_free(&result);
}

/* -- Trees of files ------------------------------------------------------------------------------------------------ */

static inline bool is_absent(const char *path) { return access(path, F_OK) != 0; }

/* Whether `path` holds what `truth` does, to the last byte; a folder may hold more. Absence is like absence. */
static inline bool holds(const char *path, const char *truth) {
    FileKind kind = file_kind(truth, NULL);
    if (file_kind(path, NULL) != kind) return false;
    if (kind != FILE_FOLDER) return kind == FILE_ABSENT || same_bytes(path, truth);
    SCOPED(file_list_free) FileList list = {0};
    Error error = {0};
    bool same = true;
    assert_true(file_list(truth, &list, &error));
    for (size_t i = 0; i < list.count && same; i++) {
        SCOPED_FREE char *below = memory_format("%s/%s", path, list.entries[i].name);
        SCOPED_FREE char *true_below = memory_format("%s/%s", truth, list.entries[i].name);
        same = holds(below, true_below);
    }
    return same;
}

static inline void copy_tree(const char *from, const char *to) {
    char *command = memory_format("cp -r '%s' '%s'", from, to);
    assert_int_equal(system(command), 0);
    free(command);
}

static inline void make_absent(const char *path) {
    Error error = {0};
    if (!file_remove(path, &error)) fail_msg("%s", error.message);
}

/* -- Power cuts ---------------------------------------------------------------------------------------------------- */

static const DiskChance chances[] = {
    {.name = "nothing that was not synced is left"},
    {.name = "everything is left", .names = 1, .contents = 1, .sizes = 1},
    {.name = "names without contents are left", .names = 1},
    {.name = "names and sizes are left, and zeros", .names = 1, .sizes = 1},
    {.name = "contents without names are left", .contents = 1, .sizes = 1},
    {.name = "half is left", .names = 0.5, .contents = 0.5, .sizes = 0.5},
    {.name = "most names and few contents are left", .names = 0.8, .contents = 0.2, .sizes = 0.5},
    {.name = "few names and most contents are left", .names = 0.2, .contents = 0.8, .sizes = 0.8},
};
enum { CHANCES = sizeof chances / sizeof *chances, SURE = 5 }; /* the first ones leave nothing to chance */

/* A disk after a power cut: the folder "cut". */
typedef struct Case {
    const char *name; /* of what was recorded */
    const DiskLog *log;
    size_t cut;
    const DiskChance *chance;
    bool ended; /* the program had ended */
} Case;

__attribute__((format(printf, 2, 3))) static inline void case_fail(const Case *c, const char *format, ...) {
    char reason[1024];
    va_list values;
    va_start(values, format);
    vsnprintf(reason, sizeof reason, format, values);
    va_end(values);
    char *next = disk_log_describe(c->log, c->cut), *last = c->cut ? disk_log_describe(c->log, c->cut - 1) : memory_copy_string("start");
    fail_msg("%s, power cut %zu of %zu, between \"%s\" and \"%s\", %s: %s", c->name, c->cut, disk_log_count(c->log), last, next,
        c->chance->name, reason);
}

/* A program that changes files below the folder `root` of the test's folder. */
static inline DiskLog *record(const char *root, const char *program, const char *words) {
    char *text = memory_copy_string(words), *arguments[MOST_ARGUMENTS] = {(char *)program}, *rest = text;
    int count = 1;
    for (char *word; (word = strtok_r(rest, " ", &rest));) {
        assert_true(count < MOST_ARGUMENTS - 1);
        arguments[count++] = word;
    }
    char *path = realpath(root, NULL);
    assert_non_null(path);
    DiskLog *log = disk_log_record(path, arguments);
    free(path);
    free(text);
    if (!log) skip();
    if (disk_log_exit_code(log) != 0)
        fail_msg("%s: exit code %d: %s", words, disk_log_exit_code(log), disk_log_output(log, disk_log_count(log)));
    assert_true(disk_log_is_complete(log, "scratch"));
    return log;
}

/* Makes every power cut, with so many draws where chance decides, and checks what is left. */
static inline void check_cuts(const char *name, const DiskLog *log, size_t draws, void (*check)(const Case *, void *), void *context) {
    const size_t cuts = disk_log_count(log) + 1, cases = SURE + draws * (CHANCES - SURE);
    double start = log_seconds();
    for (size_t i = 0; i < cuts * cases; i++) {
        size_t cut = i / cases, kind = i % cases;
        DiskChance chance = chances[kind < SURE ? kind : SURE + (kind - SURE) % (CHANCES - SURE)];
        chance.seed = i;
        disk_log_cut(log, cut, &chance, "cut");
        check(&(Case){name, log, cut, &chance, cut == cuts - 1}, context);
    }
    print_message("%s: %zu power cuts, each in %zu ways, in %.1f s\n", name, cuts, cases, log_seconds() - start);
}
