/* Storage: a folder's file system as training uses it. Checkpoints are written in order and made durable; data
 * shards are read in order and, by samplers, in small pieces anywhere. The file has no name while it is measured, so
 * nothing is left behind however this ends. Pages that the system keeps in memory are dropped before cold reads. */
#include <fcntl.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/math.h"
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

static const BenchColumn columns[] = {{"test", BENCH_TEXT, 22}, {"bytes", 0, 14}, {"block", 0, 10}, {"operations", 0, 11},
    {"seconds", 4, 10}, {"gbps", 3, 8}, {"per_second", 1, 12}, {"us", 1, 11}};

enum { PAGE = 4096 };

typedef struct Disk {
    File file; /* without a name */
    int64_t bytes, block;
    char *buffer; /* one block, page aligned */
} Disk;

/* -- Opening ------------------------------------------------------------------------------------------------------- */

static bool check_space(const Disk *disk, Error *error) {
    double available = file_free_bytes(disk->file.path);
    return available < 0 || (double)disk->bytes < available ||
           error_set(error, ERROR_DATA, "%s has %.0f bytes free and bytes=%lld are to be written: give fewer", disk->file.path, available,
               (long long)disk->bytes);
}

/* Random bits: file systems that compress, or find blocks of zeros, gain nothing. */
static void fill_block(const Disk *disk) {
    uint32_t *words = (uint32_t *)disk->buffer;
    for (int64_t i = 0; i < disk->block / 16; i++) {
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

static int64_t length_at(const Disk *disk, int64_t at) { return int_min(disk->bytes - at, disk->block); }
static int64_t blocks_of(const Disk *disk) { return divide_up(disk->bytes, disk->block); }

/* The first 8 bytes of a block say where it lies. */
static bool write_all(const Disk *disk, Error *error) {
    for (int64_t at = 0; at < disk->bytes; at += disk->block) {
        memcpy(disk->buffer, &at, sizeof at);
        int64_t length = length_at(disk, at);
        if (!file_write_at(&disk->file, disk->buffer, length, at, error)) return false;
    }
    return true;
}

static bool read_all(const Disk *disk, Error *error) {
    for (int64_t at = 0; at < disk->bytes; at += disk->block) {
        int64_t length = length_at(disk, at), found = at;
        if (!file_read_at(&disk->file, disk->buffer, length, at, error)) return false;
        if (length >= (int64_t)sizeof found) memcpy(&found, disk->buffer, sizeof found);
        if (found != at)
            return error_set(error, ERROR_DATA, "%s gave back other bytes than were written, at %lld: do not keep data there",
                disk->file.path, (long long)at);
    }
    return true;
}

static bool test_write(Bench *bench, const Disk *disk, Error *error) {
    double start = log_seconds();
    if (!write_all(disk, error)) return false;
    double written = log_seconds();
    if (!file_sync(&disk->file, error)) return false;
    add_row(bench, "write", disk->bytes, disk->block, blocks_of(disk), written - start);
    add_row(bench, "write and fsync", disk->bytes, disk->block, blocks_of(disk), log_seconds() - start);
    return true;
}

static bool test_read(Bench *bench, const Disk *disk, const char *name, Error *error) {
    double start = log_seconds();
    if (!read_all(disk, error)) return false;
    add_row(bench, name, disk->bytes, disk->block, blocks_of(disk), log_seconds() - start);
    return true;
}

static bool test_random_reads(Bench *bench, const Disk *disk, Error *error) {
    int64_t reads = ((const StorageOptions *)bench->options)->reads, pages = disk->bytes / PAGE;
    double start = log_seconds();
    for (int64_t i = 0; i < reads; i++) {
        int64_t page = (int64_t)rng_permute(2, RNG_STREAM_BENCH, (uint64_t)(i % pages), (uint64_t)pages);
        if (!file_read_at(&disk->file, disk->buffer, PAGE, page * PAGE, error)) return false;
    }
    add_row(bench, "random reads, cold", reads * PAGE, PAGE, reads, log_seconds() - start);
    return true;
}

/* What the marker at the end of a checkpoint costs. */
static bool test_small_writes(Bench *bench, const Disk *disk, Error *error) {
    int64_t writes = (((const StorageOptions *)bench->options)->reads + 9) / 10;
    double start = log_seconds();
    for (int64_t i = 0; i < writes; i++)
        if (!file_write_at(&disk->file, disk->buffer, PAGE, i % (disk->bytes / PAGE) * PAGE, error) || !file_sync_data(&disk->file, error))
            return false;
    add_row(bench, "small writes, each sync", writes * PAGE, PAGE, writes, log_seconds() - start);
    return true;
}

static void drop_pages(const Disk *disk, int advice) {
    if (posix_fadvise(disk->file.descriptor, 0, 0, POSIX_FADV_DONTNEED) || posix_fadvise(disk->file.descriptor, 0, 0, advice))
        log_warn("%s: the system keeps what it read: cold reads may come from memory", disk->file.path);
}

static bool run_tests(Bench *bench, const Disk *disk, Error *error) {
    if (!test_write(bench, disk, error)) return false;
    drop_pages(disk, POSIX_FADV_SEQUENTIAL);
    if (!test_read(bench, disk, "read, cold", error) || !test_read(bench, disk, "read, in memory", error)) return false;
    drop_pages(disk, POSIX_FADV_RANDOM);
    return test_random_reads(bench, disk, error) && test_small_writes(bench, disk, error);
}

static bool run(Bench *bench, Error *error) {
    const StorageOptions *options = bench->options;
    Disk disk = {.bytes = options->bytes, .block = options->block / PAGE * PAGE};
    bool good = file_open_unnamed(&disk.file, bench->positional, error) && check_space(&disk, error) &&
                (disk.buffer = memory_map((size_t)disk.block, error));
    if (good) {
        fill_block(&disk);
        good = run_tests(bench, &disk, error);
    }
    memory_unmap(disk.buffer, (size_t)disk.block);
    file_close(&disk.file);
    return good || error->code == ERROR_MEMORY || error_recode(error, ERROR_DATA);
}

const Benchmark bench_storage = {
    .name = "storage",
    .summary = "a folder's file system: durable writes, reads in order and at random",
    .explanation = "Writes a file without a name into FOLDER, makes it durable, reads it without and with the help of the page cache, "
                   "reads pages at random, and\n"
                   "writes small pieces that are each made durable. Give bytes above the memory of the machine where the system keeps "
                   "pages that it was told to drop.\n",
    .positional = "FOLDER",
    BENCH_PARTS(StorageOptions),
    .plot = {"Storage", "block", "gbps", {"test"}, "bytes of an operation", "GB/s", .x_logarithmic = true, .y_logarithmic = true},
};
