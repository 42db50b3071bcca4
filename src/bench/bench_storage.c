/* Storage: a folder's file system as training uses it. Checkpoints are written in order and made durable; data shards are read in order and, by samplers, in small
 * pieces anywhere. The file has no name while it is measured, so nothing is left behind however this ends. Pages that the system keeps in memory are dropped
 * before cold reads. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/rng.h"
#include "bench/bench.h"

typedef struct StorageOptions {
    BenchOptions common;
    int64_t bytes, block, reads;
} StorageOptions;

#define FIELD(name) offsetof(StorageOptions, name)
static const Option rows[] = {
    BENCH_OUTPUT_ROWS,
    INT_OPTION(bytes, "1Gi", 4096, 1e15, "bytes", "of the file"),
    INT_OPTION(block, "8Mi", 4096, 1 << 30, "bytes", "of one sequential read or write"),
    INT_OPTION(reads, "2000", 1, 1e9, "", "of 4 KiB at random places, and of small durable writes a tenth of it"),
};
#undef FIELD

static const BenchColumn columns[] = {
    {"test", BENCH_TEXT, 22},
    {"bytes", 0, 14},
    {"block", 0, 10},
    {"operations", 0, 11},
    {"seconds", 4, 10},
    {"gbps", 3, 8},
    {"per_second", 1, 12},
    {"us", 1, 11},
};

enum { PAGE = 4096 };

typedef struct File {
    int descriptor;
    int64_t bytes, block;
    char *buffer; /* one block, page aligned */
    const char *folder;
} File;

static bool fail(const File *file, const char *what, Error *error) {
    return error_set(error, ERROR_DATA, "%s: %s failed: %s", file->folder, what, strerror(errno));
}

/* -- Opening ------------------------------------------------------------------------------------------------------- */

static bool open_unnamed(File *file, Error *error) {
    char *path = memory_format("%s/.smelt-bench-XXXXXX", file->folder);
    file->descriptor = mkostemp(path, O_CLOEXEC);
    bool made = file->descriptor >= 0 && unlink(path) == 0;
    free(path);
    return made || fail(file, "making a file", error);
}

static bool check_space(const File *file, Error *error) {
    struct statvfs place;
    if (fstatvfs(file->descriptor, &place)) return fail(file, "asking for its free space", error);
    double available = (double)place.f_bavail * (double)place.f_frsize;
    return (double)file->bytes < available ||
           error_set(error, ERROR_DATA, "%s has %.0f bytes free and bytes=%lld are to be written: give fewer", file->folder, available,
               (long long)file->bytes);
}

/* Random bits: file systems that compress, or find blocks of zeros, gain nothing. */
static void fill_block(const File *file) {
    uint32_t *words = (uint32_t *)file->buffer;
    for (int64_t i = 0; i < file->block / 16; i++) {
        RngBits bits = rng_bits(1, RNG_STREAM_BENCH, (uint64_t)i);
        memcpy(words + 4 * i, &bits, sizeof bits);
    }
}

/* -- Tests --------------------------------------------------------------------------------------------------------- */

static void add_row(Bench *bench, const char *test, int64_t bytes, int64_t block, int64_t operations, double seconds) {
    bench_row(bench,
        (BenchCell[]){TEXT(test), NUMBER(bytes), NUMBER(block), NUMBER(operations), NUMBER(seconds), NUMBER((double)bytes / seconds / 1e9),
            NUMBER((double)operations / seconds), NUMBER(1e6 * seconds / (double)operations)});
}

static int64_t length_at(const File *file, int64_t at) { return file->bytes - at < file->block ? file->bytes - at : file->block; }
static int64_t blocks_of(const File *file) { return (file->bytes + file->block - 1) / file->block; }

/* The first 8 bytes of a block say where it lies. */
static bool write_all(const File *file, Error *error) {
    for (int64_t at = 0; at < file->bytes; at += file->block) {
        memcpy(file->buffer, &at, sizeof at);
        int64_t length = length_at(file, at);
        for (int64_t done = 0; done < length;) {
            ssize_t written = pwrite(file->descriptor, file->buffer + done, (size_t)(length - done), at + done);
            if (written < 0 && errno == EINTR) continue;
            if (written <= 0) return fail(file, "writing", error);
            done += written;
        }
    }
    return true;
}

static bool read_fully(const File *file, char *to, int64_t length, int64_t at, Error *error) {
    for (int64_t done = 0; done < length;) {
        ssize_t got = pread(file->descriptor, to + done, (size_t)(length - done), at + done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return fail(file, "reading", error);
        done += got;
    }
    return true;
}

static bool read_all(const File *file, Error *error) {
    for (int64_t at = 0; at < file->bytes; at += file->block) {
        int64_t length = length_at(file, at), found = at;
        if (!read_fully(file, file->buffer, length, at, error)) return false;
        if (length >= (int64_t)sizeof found) memcpy(&found, file->buffer, sizeof found);
        if (found != at)
            return error_set(error, ERROR_DATA, "%s gave back other bytes than were written, at %lld: do not keep data there", file->folder,
                (long long)at);
    }
    return true;
}

static bool test_write(Bench *bench, const File *file, Error *error) {
    double start = log_seconds();
    if (!write_all(file, error)) return false;
    double written = log_seconds();
    if (fsync(file->descriptor)) return fail(file, "fsync", error);
    add_row(bench, "write", file->bytes, file->block, blocks_of(file), written - start);
    add_row(bench, "write and fsync", file->bytes, file->block, blocks_of(file), log_seconds() - start);
    return true;
}

static bool test_read(Bench *bench, const File *file, const char *name, Error *error) {
    double start = log_seconds();
    if (!read_all(file, error)) return false;
    add_row(bench, name, file->bytes, file->block, blocks_of(file), log_seconds() - start);
    return true;
}

static bool test_random_reads(Bench *bench, const File *file, Error *error) {
    int64_t reads = ((const StorageOptions *)bench->options)->reads, pages = file->bytes / PAGE;
    double start = log_seconds();
    for (int64_t i = 0; i < reads; i++) {
        int64_t page = (int64_t)rng_permute(2, RNG_STREAM_BENCH, (uint64_t)(i % pages), (uint64_t)pages);
        if (!read_fully(file, file->buffer, PAGE, page * PAGE, error)) return false;
    }
    add_row(bench, "random reads, cold", reads * PAGE, PAGE, reads, log_seconds() - start);
    return true;
}

/* What the marker at the end of a checkpoint costs. */
static bool test_small_writes(Bench *bench, const File *file, Error *error) {
    int64_t writes = (((const StorageOptions *)bench->options)->reads + 9) / 10;
    double start = log_seconds();
    for (int64_t i = 0; i < writes; i++)
        if (pwrite(file->descriptor, file->buffer, PAGE, i % (file->bytes / PAGE) * PAGE) != PAGE || fdatasync(file->descriptor))
            return fail(file, "a small write", error);
    add_row(bench, "small writes, each sync", writes * PAGE, PAGE, writes, log_seconds() - start);
    return true;
}

static void drop_pages(const File *file, int advice) {
    if (posix_fadvise(file->descriptor, 0, 0, POSIX_FADV_DONTNEED) || posix_fadvise(file->descriptor, 0, 0, advice))
        log_warn("%s: the system keeps what it read: cold reads may come from memory", file->folder);
}

static bool run_tests(Bench *bench, const File *file, Error *error) {
    if (!test_write(bench, file, error)) return false;
    drop_pages(file, POSIX_FADV_SEQUENTIAL);
    if (!test_read(bench, file, "read, cold", error) || !test_read(bench, file, "read, in memory", error)) return false;
    drop_pages(file, POSIX_FADV_RANDOM);
    return test_random_reads(bench, file, error) && test_small_writes(bench, file, error);
}

static bool run(Bench *bench, Error *error) {
    const StorageOptions *options = (const StorageOptions *)bench->options;
    File file = {.descriptor = -1, .bytes = options->bytes, .block = options->block / PAGE * PAGE, .folder = bench->positional};
    if (!open_unnamed(&file, error)) return false;
    bool good = check_space(&file, error) && (file.buffer = memory_map((size_t)file.block, error));
    if (good) {
        fill_block(&file);
        good = run_tests(bench, &file, error);
    }
    memory_unmap(file.buffer, (size_t)file.block);
    close(file.descriptor);
    return good;
}

const Benchmark bench_storage = {
    .name = "storage",
    .summary = "a folder's file system: durable writes, reads in order and at random",
    .explanation = "Writes a file without a name into FOLDER, makes it durable, reads it without and with the help of the page cache, "
                   "reads pages at random, and\n"
                   "writes small pieces that are each made durable. Give bytes above the memory of the machine where the system keeps "
                   "pages that it was told to drop.\n",
    .positional = "FOLDER",
    .table = OPTION_TABLE(rows),
    BENCH_COLUMNS(columns),
    .plot = {.title = "Storage",
        .x = "block",
        .y = "gbps",
        .series = {"test"},
        .x_label = "bytes of an operation",
        .y_label = "GB/s",
        .x_logarithmic = true,
        .y_logarithmic = true},
    .options_size = sizeof(StorageOptions),
    .run = run,
};
