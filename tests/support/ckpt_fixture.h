/* What the tests of checkpoints and of safetensors files share: a scratch folder per test, whole files, and warnings
 * collected in FOLDER/log instead of on the screen. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/memory.h"
#include "ckpt/ckpt_internal.h"
#include "checkpoint.h"
#include "files.h"
#include "mentions.h"

typedef struct Fixture {
    char folder[256];
    char *run;      /* FOLDER/run */
    int old_stderr; /* warnings go to FOLDER/log meanwhile */
    off_t log_seen; /* bytes of it */
} Fixture;

/* TMPDIR, or else memory where there is room, because syncs to a busy disk would take most of the time. */
static inline const char *fixture_base(void) {
    const double needed = 512e6;
    struct statvfs disk;
    if (getenv("TMPDIR")) return getenv("TMPDIR");
    bool room = statvfs("/dev/shm", &disk) == 0 && (double)disk.f_bavail * (double)disk.f_frsize > needed;
    return room && access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
}

static inline int fixture_setup(void **state) {
    Fixture *fixture = memory_allocate(sizeof *fixture);
    snprintf(fixture->folder, sizeof fixture->folder, "%s/smelt-test-ckpt-XXXXXX", fixture_base());
    assert_non_null(mkdtemp(fixture->folder));
    fixture->run = memory_format("%s/run", fixture->folder);
    assert_int_equal(mkdir(fixture->run, 0700), 0);
    fixture->old_stderr = dup(STDERR_FILENO);
    char *path = memory_format("%s/log", fixture->folder);
    int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_true(log >= 0);
    dup2(log, STDERR_FILENO);
    close(log);
    free(path);
    *state = fixture;
    return 0;
}

/* Prints the messages of fail_msg, which the log has. */
static inline void fixture_print_failure(const Fixture *fixture) {
    char *path = memory_format("%s/log", fixture->folder), line[4096];
    FILE *log = fopen(path, "re");
    while (log && fgets(line, sizeof line, log))
        if (strncmp(line, "ERROR: ", 7) == 0) fputs(line, stderr);
    if (log) fclose(log);
    free(path);
}

static inline int fixture_teardown(void **state) {
    Fixture *fixture = *state;
    fflush(stderr);
    dup2(fixture->old_stderr, STDERR_FILENO);
    close(fixture->old_stderr);
    fixture_print_failure(fixture);
    Error error = {0};
    umount2(fixture->run, MNT_DETACH); /* fails where nothing is mounted, and that is fine */
    bool removed = file_remove(fixture->folder, &error);
    free(fixture->run);
    free(fixture);
    return removed ? 0 : -1;
}

/* Not over an old file: ext4 flushes one that was emptied and written again, which is slow. */
static inline void fixture_write(const char *path, const void *data, size_t length) {
    unlink(path);
    write_bytes(path, data, length);
}

/* Whether a warning since the last call contains `fragment`. */
static inline bool warned(Fixture *fixture, const char *fragment) {
    char text[1 << 14];
    fflush(stderr);
    char *path = memory_format("%s/log", fixture->folder);
    int log = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(lseek(log, fixture->log_seen, SEEK_SET), fixture->log_seen);
    ssize_t length = read(log, text, sizeof text - 1);
    assert_true(length >= 0);
    text[length] = '\0';
    fixture->log_seen += length;
    close(log);
    free(path);
    return mentions(text, fragment);
}

static inline void assert_message(const Error *error, const char *fragment) {
    assert_int_equal(error->code, ERROR_CHECKPOINT);
    if (!mentions(error->message, fragment)) fail_msg("\"%s\" does not contain \"%s\"", error->message, fragment);
}

/* Starts this program with --save-forever RUN, which writes every step that was saved to its output as an int64_t;
 * waits for the first and kills it `delay` later. Returns the last such step. */
static inline int64_t fixture_kill_saver(const char *run, struct timespec delay) {
    int ends[2], status;
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    pid_t victim = fork();
    assert_true(victim >= 0);
    if (victim == 0) {
        dup2(ends[1], STDOUT_FILENO);
        execl("/proc/self/exe", "saver", "--save-forever", run, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    int64_t step, acknowledged;
    assert_int_equal(read(ends[0], &acknowledged, sizeof acknowledged), sizeof acknowledged);
    nanosleep(&delay, NULL);
    assert_int_equal(kill(victim, SIGKILL), 0);
    assert_int_equal(waitpid(victim, &status, 0), victim);
    assert_true(WIFSIGNALED(status));
    while (read(ends[0], &step, sizeof step) == sizeof step) acknowledged = step;
    close(ends[0]);
    return acknowledged;
}

/* Whether all files have their sizes and every interval can be loaded, so that its checksum is right. */
static inline bool checkpoint_verify(const char *where, int64_t step, Error *error) {
    Manifest manifest = {0};
    Store *store = store_open(where, error);
    bool good = store && checkpoint_open(&manifest, store, step, error);
    Interval *all = memory_allocate((manifest.interval_count + 1) * sizeof *all);
    for (size_t i = 0; i < manifest.interval_count; i++) {
        all[i] = manifest.intervals[i].interval;
        all[i].data = memory_allocate((size_t)all[i].slice.count * stored_type_bytes(all[i].type));
    }
    good = good && checkpoint_load(where, step, all, manifest.interval_count, NULL, error);
    for (size_t i = 0; i < manifest.interval_count; i++) free(all[i].data);
    free(all);
    manifest_free(&manifest);
    store_close(store);
    return good;
}

/* The newest good checkpoint's step, -1 without one. `failed`: there are some, `error` says what is wrong with the
 * oldest. Warns of what is half-written or damaged, as a run does that resumes. */
static inline int64_t checkpoint_latest(const char *where, bool *failed, Error *error) {
    int64_t *steps = NULL, found = -1;
    size_t count = 0;
    checkpoint_report_leftovers(where);
    *failed = !checkpoint_list(where, &steps, &count, error);
    for (size_t i = 0; i < count && found < 0; i++) {
        if (checkpoint_verify(where, steps[i], error)) found = steps[i];
        else log_warn("checkpoint of step %lld is skipped: %s", (long long)steps[i], error->message);
    }
    *failed = *failed || (found < 0 && count > 0);
    free(steps);
    return found;
}

/* The newest good checkpoint's step, -1 without one. */
static inline int64_t latest_good(const char *run) {
    Error error = {0};
    bool failed;
    int64_t step = checkpoint_latest(run, &failed, &error);
    if (failed) fail_msg("%s", error.message);
    return step;
}
