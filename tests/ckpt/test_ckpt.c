/* Checkpoints: what was saved comes back, in any cut, and nothing that happens to disk or process makes a damaged
 * checkpoint pass for a good one or costs an older one. Some tests make system calls fail: the wrappers below stand in
 * front of the C library's. Two tests mount a small disk in a mount namespace of their own and are skipped where that
 * is not permitted. Run with `--save-forever RUN`, the program is the victim of the kill test. */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "base/scope.h"
#include "support/ckpt_fixture.h"

/* -- System calls that fail on demand ------------------------------------------------------------------------------ */

static struct {
    atomic_int countdown; /* the call that brings it to zero fails with `code`, or finds `folder` moved to `elsewhere` */
    int code;
    const char *folder, *elsewhere;
    bool short_transfers; /* at most 1000 bytes at a time, and every other attempt is interrupted */
    bool no_exchange;     /* the file system cannot exchange two names */
    bool garbles;         /* what is written of manifests is not what was given */
    bool hurries;         /* pauses take no time */
    atomic_int interruptions;
} fault;

/* Files whose path has this ending fail to open for reading, `times` times; -1: always. */
static struct {
    const char *ends[8];
    int code;
    atomic_int times;
} unreadable;

static bool is_unreadable(const char *path) {
    for (const char *const *end = unreadable.ends; *end; end++)
        if (strlen(path) > strlen(*end) && !strcmp(path + strlen(path) - strlen(*end), *end)) {
            errno = unreadable.code;
            return unreadable.times < 0 || atomic_fetch_sub(&unreadable.times, 1) > 0;
        }
    return false;
}

int open(const char *path, int flags, ...) {
    va_list values;
    va_start(values, flags);
    mode_t mode = flags & O_CREAT ? va_arg(values, mode_t) : 0;
    va_end(values);
    return (flags & O_ACCMODE) == O_RDONLY && is_unreadable(path) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int nanosleep(const struct timespec *time, struct timespec *left) { return fault.hurries ? 0 : (int)syscall(SYS_nanosleep, time, left); }

static bool fault_hits(void) {
    if ((fault.code == 0 && !fault.folder) || atomic_fetch_sub(&fault.countdown, 1) != 1) return false;
    if (fault.folder) syscall(SYS_rename, fault.folder, fault.elsewhere);
    errno = fault.code;
    return fault.code;
}

static bool fault_shortens(size_t *bytes) {
    if (fault.short_transfers && *bytes > 1000) *bytes = 1000;
    errno = EINTR;
    return fault.short_transfers && atomic_fetch_add(&fault.interruptions, 1) % 2 == 0;
}

/* A disk that keeps other bytes. */
static ssize_t write_garbled(int file, const void *data, size_t bytes, off_t offset) {
    char *copy = memory_allocate(bytes);
    memcpy(copy, data, bytes);
    copy[bytes / 2] ^= 1;
    ssize_t written = syscall(SYS_pwrite64, file, copy, bytes, offset);
    free(copy);
    return written;
}

ssize_t pwrite(int file, const void *data, size_t bytes, off_t offset) {
    if (fault.garbles && memmem(data, bytes, "manifest_xxh3", 13)) return write_garbled(file, data, bytes, offset);
    return fault_hits() || fault_shortens(&bytes) ? -1 : syscall(SYS_pwrite64, file, data, bytes, offset);
}

ssize_t pread(int file, void *data, size_t bytes, off_t offset) {
    return fault_shortens(&bytes) ? -1 : syscall(SYS_pread64, file, data, bytes, offset);
}

int fallocate(int file, int mode, off_t offset, off_t bytes) {
    return fault_hits() ? -1 : (int)syscall(SYS_fallocate, file, mode, offset, bytes);
}

int fsync(int file) { return fault_hits() ? -1 : (int)syscall(SYS_fsync, file); }

int mkdir(const char *path, mode_t mode) { return fault_hits() ? -1 : (int)syscall(SYS_mkdir, path, mode); }

int rename(const char *from, const char *to) { return fault_hits() ? -1 : (int)syscall(SYS_rename, from, to); }

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    errno = EINVAL;
    return fault.no_exchange || fault_hits() ? -1 : (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}

/* -- A model whose every element is the step ----------------------------------------------------------------------- */

enum { MODEL_TENSORS = 3, SMALL = 35, LARGE = 1 << 18 };
typedef struct Model {
    Interval intervals[MODEL_TENSORS];
    int64_t *weights, counter;
    uint16_t bias[9];
} Model;

static Model *model_new(int64_t elements, int64_t value) {
    Model *model = memory_allocate(sizeof *model);
    model->weights = memory_allocate((size_t)elements * sizeof *model->weights);
    for (int64_t i = 0; i < elements; i++) model->weights[i] = value;
    for (int i = 0; i < 9; i++) model->bias[i] = (uint16_t)value;
    model->counter = value;
    model->intervals[0] = (Interval){.name = "weights",
        .type = STORED_I64,
        .rank = 2,
        .shape = {elements / 5, 5},
        .slice.count = elements / 5 * 5,
        .data = model->weights};
    model->intervals[1] = (Interval){.name = "bias", .type = STORED_BF16, .rank = 1, .shape = {9}, .slice.count = 9, .data = model->bias};
    model->intervals[2] = (Interval){.name = "counter", .type = STORED_I64, .slice.count = 1, .data = &model->counter};
    return model;
}

static void model_free(Model *model) {
    free(model->weights);
    free(model);
}

static bool model_save(const char *run, int64_t step, int64_t elements, int64_t value, int keep, Error *error) {
    Model *model = model_new(elements, value);
    bool good = checkpoint_save(run, step, model->intervals, MODEL_TENSORS, NULL, keep, NULL, error);
    model_free(model);
    return good;
}

static void save_good(const char *run, int64_t step, int keep) {
    Error error = {0};
    if (!model_save(run, step, SMALL, step, keep, &error)) fail_msg("%s", error.message);
}

/* The common value of all elements of a checkpoint. */
static int64_t model_load(const char *run, int64_t step, int64_t elements) {
    Model *model = model_new(elements, -1);
    Error error = {0};
    if (!checkpoint_load(run, step, model->intervals, MODEL_TENSORS, NULL, &error)) fail_msg("%s", error.message);
    int64_t value = model->counter;
    for (int64_t i = 0; i < elements / 5 * 5; i++) assert_int_equal(model->weights[i], value);
    for (int i = 0; i < 9; i++) assert_int_equal(model->bias[i], (uint16_t)value);
    model_free(model);
    return value;
}

static size_t entries_count(const char *run) {
    char *command = memory_format("ls -A %s/checkpoints | wc -l", run);
    FILE *pipe = popen(command, "r");
    size_t count = 0;
    assert_int_equal(fscanf(pipe, "%zu", &count), 1);
    pclose(pipe);
    free(command);
    return count;
}

/* -- Saving and loading -------------------------------------------------------------------------------------------- */

static void a_checkpoint_comes_back_with_its_metadata(void **state) {
    Fixture *fixture = *state;
    Model *model = model_new(SMALL, 40);
    json_t *metadata = json_pack("{s:I, s:{s:f}}", "cursor", (json_int_t)1 << 60, "nested", "lr", 0.1), *loaded = NULL;
    CheckpointStats stats = {0};
    Error error = {0};
    assert_true(checkpoint_save(fixture->run, 40, model->intervals, MODEL_TENSORS, metadata, 2, &stats, &error));
    assert_true(stats.seconds > 0);
    assert_true(stats.bytes > (int64_t)(SMALL * sizeof(int64_t)));
    assert_int_equal(latest_good(fixture->run), 40);
    assert_int_equal(model_load(fixture->run, 40, SMALL), 40);
    assert_true(checkpoint_load(fixture->run, 40, NULL, 0, &loaded, &error));
    assert_true(json_equal(metadata, loaded));
    json_decref(loaded);
    json_decref(metadata);
    model_free(model);
}

static void a_checkpoint_without_tensors_or_metadata_is_fine(void **state) {
    Fixture *fixture = *state;
    json_t *loaded = (json_t *)fixture;
    Error error = {0};
    assert_true(checkpoint_save(fixture->run, 0, NULL, 0, NULL, 1, NULL, &error));
    assert_int_equal(latest_good(fixture->run), 0);
    assert_true(checkpoint_load(fixture->run, 0, NULL, 0, &loaded, &error));
    assert_null(loaded);
}

/* Saves a tensor in `save_parts` intervals and loads it in `load_parts`, at cuts that do not coincide. */
static void cut_and_recut(const char *run, uint16_t *values, uint16_t *loaded, int64_t elements, int save_parts, int load_parts) {
    Interval parts[16];
    Error error = {0};
    const Interval whole = {.name = "arena", .type = STORED_F16, .rank = 2, .shape = {elements / 2, 2}};
    for (int i = 0; i < save_parts; i++) {
        /* in reverse order, as ranks may finish in any */
        Interval *part = &parts[save_parts - 1 - i];
        *part = whole;
        part->slice.first = elements * i / save_parts;
        part->slice.count = elements * (i + 1) / save_parts - part->slice.first;
        part->data = values + part->slice.first;
    }
    if (!checkpoint_save(run, 1, parts, (size_t)save_parts, NULL, 1, NULL, &error)) fail_msg("%s", error.message);
    memset(loaded, 0, (size_t)elements * sizeof *loaded);
    for (int i = 0; i < load_parts; i++) {
        parts[i] = whole;
        parts[i].slice.first = elements * i / load_parts;
        parts[i].slice.count = elements * (i + 1) / load_parts - parts[i].slice.first;
        parts[i].data = loaded + parts[i].slice.first;
    }
    if (!checkpoint_load(run, 1, parts, (size_t)load_parts, NULL, &error)) fail_msg("%s", error.message);
    assert_memory_equal(values, loaded, (size_t)elements * sizeof *loaded);
}

static void any_number_of_ranks_loads_what_any_other_number_saved(void **state) {
    Fixture *fixture = *state;
    enum { ELEMENTS = 1000 };
    uint16_t values[ELEMENTS], loaded[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++) values[i] = (uint16_t)(i * 7 + 1);
    for (int save_parts = 1; save_parts <= 4; save_parts++)
        for (int load_parts = 1; load_parts <= 5; load_parts++)
            cut_and_recut(fixture->run, values, loaded, ELEMENTS, save_parts, load_parts);
}

static void a_tensor_larger_than_a_piece_survives_new_cuts(void **state) {
    Fixture *fixture = *state;
    const int64_t elements = (20 << 20) + 6; /* 40 MiB and a little */
    uint16_t *values = memory_allocate((size_t)elements * sizeof *values);
    uint16_t *loaded = memory_allocate((size_t)elements * sizeof *loaded);
    for (int64_t i = 0; i < elements; i++) values[i] = (uint16_t)(i * 40503u >> 7);
    cut_and_recut(fixture->run, values, loaded, elements, 1, 1);
    cut_and_recut(fixture->run, values, loaded, elements, 3, 4);
    free(values);
    free(loaded);
}

static void overlapping_parts_of_a_tensor_are_loaded_into_both_places(void **state) {
    Fixture *fixture = *state;
    unsigned char values[10] = "0123456789", low[8] = {0}, high[9] = {0};
    Interval whole = {.name = "v", .type = STORED_U8, .rank = 1, .shape = {10}, .slice.count = 10, .data = values};
    Error error = {0};
    assert_true(checkpoint_save(fixture->run, 1, &whole, 1, NULL, 1, NULL, &error));
    Interval parts[2] = {whole, whole};
    parts[0].slice.first = 1, parts[0].slice.count = 8, parts[0].data = low;
    parts[1].slice.first = 0, parts[1].slice.count = 9, parts[1].data = high;
    assert_true(checkpoint_load(fixture->run, 1, parts, 2, NULL, &error));
    assert_memory_equal(low, "12345678", 8);
    assert_memory_equal(high, "012345678", 9);
}

static void loading_names_the_tensor_that_does_not_fit(void **state) {
    Fixture *fixture = *state;
    unsigned char values[10] = {0};
    Interval stored[2] = {{.name = "v", .type = STORED_U8, .rank = 1, .shape = {10}, .slice.count = 4, .data = values},
        {.name = "v", .type = STORED_U8, .rank = 1, .shape = {10}, .slice.first = 5, .slice.count = 5, .data = values}};
    Error error = {0};
    assert_true(checkpoint_save(fixture->run, 1, stored, 2, NULL, 1, NULL, &error));
    Interval wanted = stored[0];
    assert_true(checkpoint_load(fixture->run, 1, &wanted, 1, NULL, &error));
    wanted.slice.count = 10;
    assert_false(checkpoint_load(fixture->run, 1, &wanted, 1, NULL, &error));
    assert_message(&error, "tensor v lacks element 4");
    wanted.slice.first = 5, wanted.slice.count = 6;
    assert_false(checkpoint_load(fixture->run, 1, &wanted, 1, NULL, &error));
    assert_message(&error, "tensor v lacks element 10");
    wanted = stored[0], wanted.shape[0] = 11;
    assert_false(checkpoint_load(fixture->run, 1, &wanted, 1, NULL, &error));
    assert_message(&error, "tensor v U8 [10] U8 [11]");
    wanted = stored[0], wanted.type = STORED_BF16;
    assert_false(checkpoint_load(fixture->run, 1, &wanted, 1, NULL, &error));
    assert_message(&error, "tensor v U8 [10] BF16 [10]");
    wanted = stored[0], wanted.name = "absent";
    assert_false(checkpoint_load(fixture->run, 1, &wanted, 1, NULL, &error));
    assert_message(&error, "no tensor absent");
    assert_false(checkpoint_load(fixture->run, 2, &stored[0], 1, NULL, &error));
    assert_message(&error, "step-00000002/manifest.json");
}

static void a_run_without_checkpoints_has_no_latest_and_an_empty_list(void **state) {
    Fixture *fixture = *state;
    Error error = {0};
    bool failed = true;
    int64_t *steps;
    size_t count = 1;
    assert_int_equal(checkpoint_latest(fixture->run, &failed, &error), -1);
    assert_false(failed);
    assert_true(checkpoint_list(fixture->run, &steps, &count, &error));
    assert_int_equal(count, 0);
    free(steps);
}

static void the_list_is_newest_first_and_ignores_foreign_names(void **state) {
    Fixture *fixture = *state;
    Error error = {0};
    for (int64_t step = 3; step <= 300000000; step *= 10) save_good(fixture->run, step, 20);
    static const char *const foreign[] = {"step-12", "step-000000001", "step-00000001x", "notes", "step-"};
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        char *path = memory_format("%s/checkpoints/%s", fixture->run, foreign[i]);
        assert_true(file_make_folder(path, &error));
        free(path);
    }
    int64_t *steps, expected = 300000000;
    size_t count;
    assert_true(checkpoint_list(fixture->run, &steps, &count, &error));
    assert_int_equal(count, 9);
    for (size_t i = 0; i < count; i++, expected /= 10) assert_int_equal(steps[i], expected);
    free(steps);
}

static void the_newest_ones_are_kept_and_later_steps_are_left_alone(void **state) {
    Fixture *fixture = *state;
    Error error = {0};
    save_good(fixture->run, 99, 1);
    for (int64_t step = 1; step <= 6; step++) save_good(fixture->run, step, 3);
    int64_t *steps;
    size_t count;
    assert_true(checkpoint_list(fixture->run, &steps, &count, &error));
    static const int64_t expected[] = {99, 6, 5, 4};
    assert_int_equal(count, 4);
    assert_memory_equal(steps, expected, sizeof expected);
    free(steps);
    save_good(fixture->run, 7, 1);
    assert_int_equal(entries_count(fixture->run), 2);
}

static void assert_steps(const char *run, const int64_t *expected, size_t count) {
    Error error = {0};
    int64_t *steps;
    size_t found;
    assert_true(checkpoint_list(run, &steps, &found, &error));
    assert_int_equal(found, count);
    assert_memory_equal(steps, expected, count * sizeof *expected);
    free(steps);
}

static void damaged_checkpoints_do_not_count_among_the_kept(void **state) {
    Fixture *fixture = *state;
    for (int64_t step = 1; step <= 3; step++) save_good(fixture->run, step, 3);
    char *path = memory_format("%s/checkpoints/step-00000003/manifest.json", fixture->run);
    assert_int_equal(unlink(path), 0);
    save_good(fixture->run, 4, 2);
    static const int64_t expected[] = {4, 2};
    assert_steps(fixture->run, expected, 2);
    assert_true(warned(fixture, "checkpoint 3 damaged"));
    assert_int_equal(entries_count(fixture->run), 3); /* it is set aside, not removed */
    free(path);
}

/* -- What cannot be read now --------------------------------------------------------------------------------------- */

/* Every error of a read that says nothing of the file, and two that say that it is gone although it is listed. */
static const int read_errors[] = {
    EIO, ESTALE, EACCES, EPERM, EAGAIN, ENOTCONN, ETIMEDOUT, EHOSTDOWN, ENODEV, EMFILE, ENOMEM, ELOOP, ENOENT, ENOTDIR};
enum { READ_ERRORS = sizeof read_errors / sizeof *read_errors };

static int reads_are_good(void **state) {
    memset(&unreadable, 0, sizeof unreadable);
    fault.garbles = fault.hurries = false;
    return fixture_teardown(state);
}

#define READ_TEST(test) cmocka_unit_test_setup_teardown(test, fixture_setup, reads_are_good)

static void a_checkpoint_that_cannot_be_read_now_stays_and_is_not_counted(void **state) {
    Fixture *fixture = *state;
    static const int64_t all[] = {5, 4, 3, 2, 1}, newest[] = {6, 5};
    for (int i = 0; i < READ_ERRORS; i++) {
        Error error = {0};
        assert_true(file_remove(fixture->run, &error) && file_make_folder(fixture->run, &error));
        for (int64_t step = 1; step <= 4; step++) save_good(fixture->run, step, 9);
        unreadable.ends[0] = "step-00000001/manifest.json";
        unreadable.ends[1] = "step-00000002/manifest.json";
        unreadable.ends[2] = "step-00000003/manifest.json";
        unreadable.ends[3] = "step-00000004/manifest.json";
        unreadable.code = read_errors[i];
        unreadable.times = -1;
        save_good(fixture->run, 5, 2);
        assert_true(warned(fixture, "step 4"));
        assert_steps(fixture->run, all, 5);
        memset(&unreadable, 0, sizeof unreadable);
        save_good(fixture->run, 6, 2);
        assert_steps(fixture->run, newest, 2);
    }
}

/* Also with keep=1, where the new one is all that would be left. */
static void nothing_is_removed_before_the_new_checkpoint_was_read_back(void **state) {
    Fixture *fixture = *state;
    static const int64_t both[] = {2, 1}, last[] = {3};
    fault.hurries = true;
    for (int i = 0; i < READ_ERRORS; i++) {
        Error error = {0};
        assert_true(file_remove(fixture->run, &error) && file_make_folder(fixture->run, &error));
        save_good(fixture->run, 1, 1);
        unreadable.ends[0] = i % 2 ? "step-00000002/manifest.json" : "step-00000002/shard-00000-of-00001.safetensors";
        unreadable.code = read_errors[i];
        unreadable.times = -1;
        save_good(fixture->run, 2, 1);
        assert_true(warned(fixture, "checkpoint 2 written"));
        assert_steps(fixture->run, both, 2);
        memset(&unreadable, 0, sizeof unreadable);
        assert_int_equal(model_load(fixture->run, 1, SMALL), 1);
        save_good(fixture->run, 3, 1);
        assert_steps(fixture->run, last, 1);
    }
}

static void a_read_back_that_fails_for_a_moment_is_made_again(void **state) {
    Fixture *fixture = *state;
    static const int64_t last[] = {2};
    fault.hurries = true;
    for (int i = 0; i < READ_ERRORS; i++)
        for (int times = 1; times <= 4; times++) {
            Error error = {0};
            assert_true(file_remove(fixture->run, &error) && file_make_folder(fixture->run, &error));
            save_good(fixture->run, 1, 1);
            unreadable.ends[0] = "step-00000002/manifest.json";
            unreadable.code = read_errors[i];
            unreadable.times = times;
            save_good(fixture->run, 2, 1);
            assert_false(warned(fixture, "read"));
            assert_steps(fixture->run, last, 1);
        }
}

static void a_save_that_reads_back_damaged_has_failed_and_costs_no_other(void **state) {
    Fixture *fixture = *state;
    Error error = {0};
    static const int64_t first[] = {1};
    save_good(fixture->run, 1, 1);
    fault.garbles = true;
    assert_false(model_save(fixture->run, 2, SMALL, 2, 1, &error));
    assert_message(&error, "step 2 saved");
    assert_message(&error, "identically");
    assert_true(warned(fixture, "step-00000002.damaged-"));
    assert_steps(fixture->run, first, 1);
    assert_int_equal(model_load(fixture->run, 1, SMALL), 1);
}

/* The finding of a failed read: a checkpoint is absent only once its step is no longer listed. */
static void a_failed_read_tells_what_is_known(void **state) {
    Fixture *fixture = *state;
    Error error = {0};
    save_good(fixture->run, 1, 2);
    save_good(fixture->run, 2, 2);
    unreadable.ends[0] = "step-00000002/manifest.json";
    unreadable.times = -1;
    for (int i = 0; i < READ_ERRORS; i++) {
        unreadable.code = read_errors[i];
        assert_null(checkpoint_metadata(fixture->run, 2, &error));
        assert_int_equal(error.finding, FINDING_UNREADABLE);
    }
    memset(&unreadable, 0, sizeof unreadable);
    assert_null(checkpoint_metadata(fixture->run, 3, &error));
    assert_int_equal(error.finding, FINDING_ABSENT);
    char *path = memory_format("%s/checkpoints/step-00000002/manifest.json", fixture->run);
    fixture_write(path, "{}\n", 3);
    assert_null(checkpoint_metadata(fixture->run, 2, &error));
    assert_int_equal(error.finding, FINDING_DAMAGED);
    assert_int_equal(unlink(path), 0);
    assert_null(checkpoint_metadata(fixture->run, 2, &error));
    assert_int_equal(error.finding, FINDING_DAMAGED);
    free(path);
}

static void a_store_whose_writes_cannot_be_read_fails_the_probe(void **state) {
    Fixture *fixture = *state;
    Error error = {0};
    assert_true(checkpoint_probe(fixture->run, 1, &error));
    assert_int_equal(entries_count(fixture->run), 0);
    unreadable.ends[0] = "checkpoints/probe-00001";
    unreadable.code = EACCES;
    unreadable.times = -1;
    assert_false(checkpoint_probe(fixture->run, 1, &error));
    assert_message(&error, "written");
    char *left = memory_format("%s/checkpoints/probe-00001.partial-7", fixture->run);
    fixture_write(left, "left by a kill", 14);
    save_good(fixture->run, 1, 1);
    assert_int_equal(entries_count(fixture->run), 1);
    free(left);
}

/* -- Damage -------------------------------------------------------------------------------------------------------- */

static const char *const checkpoint_files[] = {"manifest.json", "shard-00000-of-00001.safetensors"};

static void assert_older_is_chosen(Fixture *fixture, const char *what, size_t at) {
    int64_t step = latest_good(fixture->run);
    if (step != 1 || !warned(fixture, "step 2 skipped"))
        fail_msg("damage of %s at byte %zu: step %lld was chosen, or without a warning", what, at, (long long)step);
}

static void a_flipped_bit_anywhere_is_noticed_and_the_older_checkpoint_chosen(void **state) {
    Fixture *fixture = *state;
    save_good(fixture->run, 1, 2);
    save_good(fixture->run, 2, 2);
    for (size_t i = 0; i < 2; i++) {
        char *path = memory_format("%s/checkpoints/step-00000002/%s", fixture->run, checkpoint_files[i]);
        size_t length;
        char *bytes = (char *)read_bytes(path, &length);
        int file = open(path, O_WRONLY);
        for (size_t at = 0; at < length; at++) {
            char flipped = (char)(bytes[at] ^ 1 << at % 8);
            assert_int_equal(pwrite(file, &flipped, 1, (off_t)at), 1);
            assert_older_is_chosen(fixture, checkpoint_files[i], at);
            assert_int_equal(pwrite(file, &bytes[at], 1, (off_t)at), 1);
        }
        close(file);
        assert_int_equal(latest_good(fixture->run), 2);
        free(bytes);
        free(path);
    }
    assert_int_equal(model_load(fixture->run, 1, SMALL), 1);
}

static void a_truncated_file_is_noticed_and_the_older_checkpoint_chosen(void **state) {
    Fixture *fixture = *state;
    save_good(fixture->run, 1, 2);
    save_good(fixture->run, 2, 2);
    for (size_t i = 0; i < 2; i++) {
        char *path = memory_format("%s/checkpoints/step-00000002/%s", fixture->run, checkpoint_files[i]);
        size_t length;
        char *bytes = (char *)read_bytes(path, &length);
        for (size_t sixteenth = 0; sixteenth < 16; sixteenth++) {
            fixture_write(path, bytes, length * sixteenth / 16);
            assert_older_is_chosen(fixture, checkpoint_files[i], length * sixteenth / 16);
        }
        unlink(path);
        assert_older_is_chosen(fixture, checkpoint_files[i], 0);
        fixture_write(path, bytes, length);
        free(bytes);
        free(path);
    }
}

static void loading_a_damaged_checkpoint_fails_and_names_the_tensor(void **state) {
    Fixture *fixture = *state;
    save_good(fixture->run, 1, 1);
    char *path = memory_format("%s/checkpoints/step-00000001/%s", fixture->run, checkpoint_files[1]);
    size_t length;
    char *bytes = (char *)read_bytes(path, &length);
    bytes[length - 1 - sizeof(int64_t)] ^= 1; /* in the tensor before the last */
    fixture_write(path, bytes, length);
    Model *model = model_new(SMALL, 0);
    Error error = {0};
    assert_false(checkpoint_load(fixture->run, 1, model->intervals, MODEL_TENSORS, NULL, &error));
    assert_message(&error, "(bias)");
    model_free(model);
    free(bytes);
    free(path);
}

static void a_checkpoint_under_another_step_is_damaged(void **state) {
    Fixture *fixture = *state;
    save_good(fixture->run, 1, 1);
    char *from = memory_format("%s/checkpoints/step-00000001", fixture->run);
    char *to = memory_format("%s/checkpoints/step-00000002", fixture->run);
    assert_int_equal(rename(from, to), 0);
    bool failed;
    Error error = {0};
    assert_int_equal(checkpoint_latest(fixture->run, &failed, &error), -1);
    assert_true(failed);
    assert_message(&error, "holds step 1");
    free(from);
    free(to);
}

static void when_no_checkpoint_is_good_that_is_an_error(void **state) {
    Fixture *fixture = *state;
    save_good(fixture->run, 1, 2);
    save_good(fixture->run, 2, 2);
    for (int step = 1; step <= 2; step++) {
        char *path = memory_format("%s/checkpoints/step-%08d/manifest.json", fixture->run, step);
        fixture_write(path, "{}\n", 3);
        free(path);
    }
    bool failed = false;
    Error error = {0};
    assert_int_equal(checkpoint_latest(fixture->run, &failed, &error), -1);
    assert_true(failed);
    assert_message(&error, "step-00000001/manifest.json");
}

static void a_half_written_checkpoint_is_skipped_and_removed_by_the_next_save(void **state) {
    Fixture *fixture = *state;
    save_good(fixture->run, 1, 2);
    char *from = memory_format("%s/checkpoints/step-00000001", fixture->run);
    char *to = memory_format("%s/checkpoints/step-00000009.partial-77", fixture->run);
    assert_int_equal(rename(from, to), 0);
    save_good(fixture->run, 1, 2);
    assert_int_not_equal(access(to, F_OK), 0);
    assert_int_equal(mkdir(to, 0700), 0);
    assert_int_equal(latest_good(fixture->run), 1);
    assert_true(warned(fixture, "step-00000009.partial-77"));
    save_good(fixture->run, 2, 2);
    assert_int_equal(entries_count(fixture->run), 2);
    free(from);
    free(to);
}

/* -- Replacing ----------------------------------------------------------------------------------------------------- */

static void saving_a_step_again_replaces_it(void **state) {
    Fixture *fixture = *state;
    Error error = {0};
    save_good(fixture->run, 5, 2);
    assert_true(model_save(fixture->run, 5, SMALL, 55, 2, &error));
    assert_int_equal(model_load(fixture->run, 5, SMALL), 55);
    assert_int_equal(entries_count(fixture->run), 1);
}

static void replacing_works_where_names_cannot_be_exchanged(void **state) {
    Fixture *fixture = *state;
    Error error = {0};
    fault.no_exchange = true;
    save_good(fixture->run, 5, 2);
    assert_true(model_save(fixture->run, 5, SMALL, 55, 2, &error));
    assert_int_equal(model_load(fixture->run, 5, SMALL), 55);
    assert_int_equal(entries_count(fixture->run), 1);
}

static void a_checkpoint_whose_replacement_was_interrupted_is_in_use_again(void **state) {
    Fixture *fixture = *state;
    save_good(fixture->run, 5, 2);
    char *final = memory_format("%s/checkpoints/step-00000005", fixture->run);
    char *replaced = memory_format("%s.replaced", final);
    assert_int_equal(rename(final, replaced), 0);
    assert_int_equal(latest_good(fixture->run), 5);
    assert_true(warned(fixture, "restored"));
    assert_int_equal(model_load(fixture->run, 5, SMALL), 5);
    free(replaced);
    free(final);
}

/* -- Faults -------------------------------------------------------------------------------------------------------- */

static void short_and_interrupted_transfers_are_continued(void **state) {
    Fixture *fixture = *state;
    Error error = {0};
    fault.short_transfers = true;
    assert_true(model_save(fixture->run, 1, LARGE, 7, 1, &error));
    assert_int_equal(latest_good(fixture->run), 1);
    assert_int_equal(model_load(fixture->run, 1, LARGE), 7);
    assert_true(fault.interruptions > 1000);
}

/* Fails the first, second, ... system call of saving `step` over a run that holds step 1, until none is left to fail.
 * Whatever happens, a whole checkpoint is found afterwards: the new one if the save was acknowledged. */
static int saves_survive(const Fixture *fixture, int64_t step, int code) {
    for (int call = 1;; call++) {
        Error error = {0};
        assert_true(file_remove(fixture->run, &error) && file_make_folder(fixture->run, &error));
        save_good(fixture->run, 1, 2);
        fault.code = code;
        fault.countdown = call;
        bool saved = model_save(fixture->run, step, SMALL, 200, 2, &error);
        bool reached = fault.countdown <= 0;
        fault.code = 0;
        int64_t latest = latest_good(fixture->run), value = model_load(fixture->run, latest, SMALL);
        assert_true(value == 200 ? latest == step : value == 1 && latest == 1);
        if (saved) assert_int_equal(value, 200);
        else assert_message(&error, "saved");
        if (!reached) {
            assert_true(saved);
            return call - 1;
        }
    }
}

static void no_failing_system_call_costs_a_checkpoint(void **state) {
    /* fallocate, three writes of tensors, header, manifest, syncs and renames: fewer would mean that faults miss. */
    enum { LEAST_CALLS = 12 };
    assert_true(saves_survive(*state, 2, ENOSPC) >= LEAST_CALLS);
    assert_true(saves_survive(*state, 2, EIO) >= LEAST_CALLS);
    assert_true(saves_survive(*state, 1, EIO) >= LEAST_CALLS);
    fault.no_exchange = true;
    assert_true(saves_survive(*state, 1, EIO) >= LEAST_CALLS);
}

static void no_failing_system_call_of_an_annotation_costs_a_checkpoint(void **state) {
    Fixture *fixture = *state;
    enum { LEAST_CALLS = 4 }; /* a write, two syncs, a rename */
    save_good(fixture->run, 3, 2);
    int call = 0;
    for (bool reached = true; reached;) {
        Error error = {0};
        fault.code = EIO;
        fault.countdown = ++call;
        json_auto_t *members = json_pack("{s:i}", "note", call);
        bool added = checkpoint_annotate(fixture->run, 3, members, &error);
        reached = fault.countdown <= 0;
        fault.code = 0;
        assert_true(added || reached);
        assert_int_equal(model_load(fixture->run, 3, SMALL), 3);
        json_auto_t *metadata = checkpoint_metadata(fixture->run, 3, &error);
        assert_non_null(metadata);
        if (added) assert_int_equal(json_integer_value(json_object_get(metadata, "note")), call);
    }
    assert_true(call > LEAST_CALLS);
    Error error = {0};
    assert_false(checkpoint_annotate(fixture->run, 4, NULL, &error));
    assert_int_equal(error.code, ERROR_CHECKPOINT);
}

/* Saves step 2 while the folder is moved away at the system call of number `call`; false: the save has no such call. */
static bool save_while_moved(const Fixture *fixture, const char *elsewhere, int call) {
    Error error = {0};
    Lease *lease = lease_take(fixture->run, "number", fixture->run, &error);
    assert_non_null(lease);
    Model *model = model_new(SMALL, 200);
    CheckpointPlan plan = {
        .where = fixture->run, .step = 2, .intervals = model->intervals, .count = MODEL_TENSORS, .keep = 2, .ranks = 1, .lease = lease};
    fault.countdown = call;
    fault.folder = fixture->run;
    fault.elsewhere = elsewhere;
    bool saved = checkpoint_write(&plan, NULL, &error), reached = fault.countdown <= 0;
    fault.folder = NULL;
    if (!saved) assert_message(&error, "lease.json");
    assert_int_equal(access(fixture->run, F_OK) == 0, !reached);
    if (reached) assert_int_equal(rename(elsewhere, fixture->run), 0);
    int64_t latest = latest_good(fixture->run); /* it may have been complete when the folder went */
    assert_true(latest == 2 || (latest == 1 && !saved));
    lease_release(lease);
    model_free(model);
    return reached;
}

static void a_folder_that_is_moved_away_at_any_moment_of_a_save_is_not_made_again(void **state) {
    enum { LEAST_CALLS = 12 };
    Fixture *fixture = *state;
    char *elsewhere = memory_format("%s/elsewhere", fixture->folder);
    int calls = 0;
    for (bool reached = true; reached; calls++) {
        Error error = {0};
        assert_true(file_remove(fixture->run, &error) && file_make_folder(fixture->run, &error));
        save_good(fixture->run, 1, 2);
        reached = save_while_moved(fixture, elsewhere, calls + 1);
    }
    assert_true(calls > LEAST_CALLS);
    free(elsewhere);
}

static void mount_small_or_skip(const Fixture *fixture) {
    Error error = {0};
    assert_true(file_make_folder(fixture->run, &error));
    if (mount("smelt-test", fixture->run, "tmpfs", 0, "size=1m") == 0) return;
    print_message("a 1 MiB disk cannot be mounted here (%s): skipped; run as root to include it\n", strerror(errno));
    skip();
}

static void a_full_disk_costs_nothing_but_the_new_checkpoint(void **state) {
    Fixture *fixture = *state;
    mount_small_or_skip(fixture);
    Error error = {0};
    enum { FITS_ONCE = 100000 }; /* elements: 800,000 bytes of the disk's 1,048,576 */
    assert_true(model_save(fixture->run, 1, FITS_ONCE, 1, 2, &error));
    assert_false(model_save(fixture->run, 2, FITS_ONCE, 2, 2, &error));
    assert_message(&error, "2 saved 781.28 needed");
    assert_message(&error, "shard-00000-of-00001.safetensors: No space left on device");
    assert_int_equal(entries_count(fixture->run), 1);
    assert_int_equal(latest_good(fixture->run), 1);
    assert_int_equal(model_load(fixture->run, 1, FITS_ONCE), 1);
    assert_true(model_save(fixture->run, 3, SMALL, 3, 2, &error));
}

static void a_read_only_folder_is_reported_with_its_path(void **state) {
    Fixture *fixture = *state;
    mount_small_or_skip(fixture);
    save_good(fixture->run, 1, 2);
    assert_int_equal(mount(NULL, fixture->run, NULL, MS_REMOUNT | MS_RDONLY, "size=1m"), 0);
    Error error = {0};
    assert_false(model_save(fixture->run, 2, SMALL, 2, 2, &error));
    assert_message(&error, "step-00000002.partial");
    assert_message(&error, "Read-only file system");
    assert_int_equal(latest_good(fixture->run), 1);
}

static int save_forever(const char *run) {
    Error error = {0};
    bool failed;
    for (int64_t step = checkpoint_latest(run, &failed, &error) + 1;; step++) {
        if (failed || !model_save(run, step, LARGE, step, 2, &error)) return 1;
        if (write(STDOUT_FILENO, &step, sizeof step) != sizeof step) return 2;
    }
}

static void kill_at_any_moment_keeps_every_acknowledged_step(void **state) {
    Fixture *fixture = *state;
    srand(2);
    for (int round = 0; round < 30; round++) {
        struct timespec delay = {.tv_nsec = rand() % 40000000};
        int64_t acknowledged = fixture_kill_saver(fixture->run, delay), latest = latest_good(fixture->run);
        assert_true(latest >= acknowledged);
        assert_int_equal(model_load(fixture->run, latest, LARGE), latest);
    }
}

/* -- Small files --------------------------------------------------------------------------------------------------- */

static void a_small_file_is_replaced_whole_or_not_at_all(void **state) {
    Fixture *fixture = *state;
    char *path = memory_format("%s/note", fixture->folder);
    Error error = {0};
    assert_true(file_write(path, "old", 3, &error));
    for (int call = 1, reached = 1; reached; call++) {
        fault.code = EIO;
        fault.countdown = call;
        bool good = file_write(path, "newer", 5, &error);
        reached = fault.countdown <= 0;
        fault.code = 0;
        size_t length;
        char *text = (char *)read_bytes(path, &length);
        assert_true(strcmp(text, "newer") == 0 || (!good && strcmp(text, "old") == 0));
        assert_int_equal(good, !reached);
        free(text);
    }
    free(path);
}

static void a_tree_is_removed_without_following_links(void **state) {
    Fixture *fixture = *state;
    Error error = {0};
    char *deep = memory_format("%s/tree//a/b/c/", fixture->folder), *tree = memory_format("%s/tree", fixture->folder);
    char *link = memory_format("%s/tree/a/link", fixture->folder), *kept = memory_format("%s/kept", fixture->folder);
    char *inside = memory_format("%s/kept/file", fixture->folder);
    assert_true(file_make_folder(deep, &error));
    assert_true(file_make_folder(deep, &error));
    assert_true(file_make_folder(kept, &error));
    fixture_write(inside, "x", 1);
    assert_int_equal(symlink(kept, link), 0);
    assert_true(file_remove(tree, &error));
    assert_int_not_equal(access(tree, F_OK), 0);
    assert_int_equal(access(inside, F_OK), 0);
    assert_true(file_remove(tree, &error));
    assert_false(file_make_folder(inside, &error));
    assert_message(&error, "File exists");
    free(deep), free(tree), free(link), free(kept), free(inside);
}

/* tests/reliability/io_faults.cells has the names that the system calls absent although they are listed. */
static void a_name_that_no_folder_lists_is_absent(void **state) {
    static const char *const names[] = {"none", "none/", "none/deeper/", "file/none", "link", "./none"};
    Fixture *fixture = *state;
    Error error = {0};
    FileList list;
    SCOPED_FREE char *file = memory_format("%s/file", fixture->folder), *link = memory_format("%s/link", fixture->folder);
    fixture_write(file, "x", 1);
    assert_int_equal(symlink("none", link), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        SCOPED_FREE char *path = memory_format("%s/%s", fixture->folder, names[i]);
        assert_int_equal(file_kind(path, NULL), FILE_ABSENT);
        assert_null(file_read(path, 1, NULL, &error));
        assert_int_equal(error.finding, FINDING_ABSENT);
        assert_false(file_list(path, &list, &error));
        assert_int_equal(error.finding, FINDING_ABSENT);
    }
    assert_int_equal(file_kind("", NULL), FILE_ABSENT);
    assert_int_equal(file_kind(".", NULL), FILE_FOLDER);
    assert_int_equal(file_kind("/", NULL), FILE_FOLDER);
}

static int setup(void **state) {
    memset(&fault, 0, sizeof fault);
    return fixture_setup(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--save-forever") == 0) return save_forever(argv[2]);
    /* What is mounted below stays invisible outside and vanishes with this process. Without the right to do so, mount
     * fails too, and its tests are skipped. */
    if (unshare(CLONE_NEWNS) == 0) mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
    const struct CMUnitTest tests[] = {
        TEST(a_checkpoint_comes_back_with_its_metadata),
        TEST(a_checkpoint_without_tensors_or_metadata_is_fine),
        TEST(any_number_of_ranks_loads_what_any_other_number_saved),
        TEST(a_tensor_larger_than_a_piece_survives_new_cuts),
        TEST(overlapping_parts_of_a_tensor_are_loaded_into_both_places),
        TEST(loading_names_the_tensor_that_does_not_fit),
        TEST(a_run_without_checkpoints_has_no_latest_and_an_empty_list),
        TEST(the_list_is_newest_first_and_ignores_foreign_names),
        TEST(the_newest_ones_are_kept_and_later_steps_are_left_alone),
        TEST(damaged_checkpoints_do_not_count_among_the_kept),
        READ_TEST(a_checkpoint_that_cannot_be_read_now_stays_and_is_not_counted),
        READ_TEST(nothing_is_removed_before_the_new_checkpoint_was_read_back),
        READ_TEST(a_read_back_that_fails_for_a_moment_is_made_again),
        READ_TEST(a_save_that_reads_back_damaged_has_failed_and_costs_no_other),
        READ_TEST(a_failed_read_tells_what_is_known),
        READ_TEST(a_store_whose_writes_cannot_be_read_fails_the_probe),
        TEST(a_flipped_bit_anywhere_is_noticed_and_the_older_checkpoint_chosen),
        TEST(a_truncated_file_is_noticed_and_the_older_checkpoint_chosen),
        TEST(loading_a_damaged_checkpoint_fails_and_names_the_tensor),
        TEST(a_checkpoint_under_another_step_is_damaged),
        TEST(when_no_checkpoint_is_good_that_is_an_error),
        TEST(a_half_written_checkpoint_is_skipped_and_removed_by_the_next_save),
        TEST(saving_a_step_again_replaces_it),
        TEST(replacing_works_where_names_cannot_be_exchanged),
        TEST(a_checkpoint_whose_replacement_was_interrupted_is_in_use_again),
        TEST(short_and_interrupted_transfers_are_continued),
        TEST(no_failing_system_call_costs_a_checkpoint),
        TEST(no_failing_system_call_of_an_annotation_costs_a_checkpoint),
        TEST(a_folder_that_is_moved_away_at_any_moment_of_a_save_is_not_made_again),
        TEST(a_full_disk_costs_nothing_but_the_new_checkpoint),
        TEST(a_read_only_folder_is_reported_with_its_path),
        TEST(kill_at_any_moment_keeps_every_acknowledged_step),
        TEST(a_small_file_is_replaced_whole_or_not_at_all),
        TEST(a_tree_is_removed_without_following_links),
        TEST(a_name_that_no_folder_lists_is_absent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
