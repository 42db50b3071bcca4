/* Storage: a folder's file system as training uses it. Checkpoints are written in order and synced.
 * Data shards are read in order and, by samplers, in small pieces at random positions. The file is
 * unnamed while it is measured, so nothing remains however the benchmark ends. The page cache is
 * dropped before cold reads. */
#include <fcntl.h>
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/rng.h"
#include "bench/bench.h"

typedef struct StorageOptions {
    BenchOptions common;
    int64_t bytes, block, reads, step_tokens, token_bytes;
    double scatter;
} StorageOptions;

#define FIELD(name) offsetof(StorageOptions, name)
static const Option rows[] = {
    BENCH_OUTPUT_ROWS,
    INT_OPTION(bytes, "1Gi", 4096, 1e15, "bytes", "size of the file"),
    INT_OPTION(block, "8Mi", 4096, 1 << 30, "bytes", "size of one sequential read or write"),
    INT_OPTION(reads, "2000", 1, 1e9, "", "number of random reads of 4 KiB; there are a tenth as many small durable writes"),
    INT_OPTION(step_tokens, "16Mi", 1, 1e15, "tokens", "tokens that all GPUs of this machine read per training step"),
    INT_OPTION(token_bytes, "2", 1, 8, "bytes", "bytes per token"),
    REAL_OPTION(scatter, "2", 1, 1e6, "", "bytes read over bytes needed: 1 to 2 for long sequences, up to 8 for short or fragmented ones"),
};

static const BenchColumn columns[] = {{"test", BENCH_TEXT, 22}, {"bytes", 0, 14}, {"block", 0, 10}, {"operations", 0, 11},
    {"seconds", 4, 10}, {"gbps", 3, 8}, {"per_second", 1, 12}, {"us", 1, 11}, {"step_s", 3, 9}};

enum { PAGE = 4096 };

typedef struct Disk {
    File file; /* unnamed */
    int64_t bytes, block, reads, writes;
    char *buffer; /* one block, page aligned */
} Disk;

/* -- Opening ------------------------------------------------------------------------------------------------------- */

static bool check_space(const Disk *disk, Error *error) {
    double available = file_free_bytes(disk->file.path);
    return available < 0 || (double)disk->bytes < available ||
           error_set(error, ERROR_DATA, "%s has only %.0f free bytes, but bytes=%lld: reduce bytes", disk->file.path, available,
               (long long)disk->bytes);
}

/* Fills the block with random bits, so that compression and detection of zero blocks gain
 * nothing. */
static void fill_block(const Disk *disk) {
    uint32_t *words = (uint32_t *)disk->buffer;
    for (int64_t i = 0; i < disk->block / 16; i++) {
        RngBits bits = rng_bits(1, RNG_STREAM_BENCH, (uint64_t)i);
        memcpy(words + 4 * i, &bits, sizeof bits);
    }
}

/* -- Tests --------------------------------------------------------------------------------------------------------- */

static int64_t length_at(const Disk *disk, int64_t at) { return int_min(disk->bytes - at, disk->block); }

/* The first 8 bytes of a block are its offset. */
static bool write_whole_file(const Disk *disk, Error *error) {
    for (int64_t at = 0; at < disk->bytes; at += disk->block) {
        memcpy(disk->buffer, &at, sizeof at);
        int64_t length = length_at(disk, at);
        if (!file_write_at(&disk->file, disk->buffer, length, at, error)) return false;
    }
    return true;
}

static bool read_whole_file(const Disk *disk, Error *error) {
    for (int64_t at = 0; at < disk->bytes; at += disk->block) {
        int64_t length = length_at(disk, at), found = at;
        if (!file_read_at(&disk->file, disk->buffer, length, at, error)) return false;
        if (length >= (int64_t)sizeof found) memcpy(&found, disk->buffer, sizeof found);
        if (found != at)
            return error_set(
                error, ERROR_DATA, "%s returned wrong data at offset %lld: do not store anything there", disk->file.path, (long long)at);
    }
    return true;
}

/* Times only the sync; the row also has the time of write_all. */
static bool sync_all(const Disk *disk, Error *error) { return file_sync(&disk->file, error); }

static int64_t random_place(const Disk *disk, uint64_t order, int64_t i) {
    int64_t pages = disk->bytes / PAGE;
    return (int64_t)rng_permute(order, RNG_STREAM_BENCH, (uint64_t)(i % pages), (uint64_t)pages) * PAGE;
}

static bool read_pages(const Disk *disk, Error *error) {
    for (int64_t i = 0; i < disk->reads; i++)
        if (!file_read_at(&disk->file, disk->buffer, PAGE, random_place(disk, 2, i), error)) return false;
    return true;
}

/* Prefetches as far ahead as the loader does. */
static bool read_pages_ahead(const Disk *disk, Error *error) {
    enum { AHEAD = 256 };
    for (int64_t i = 0, asked = 0; i < disk->reads; i++) {
        for (; asked < int_min(i + AHEAD, disk->reads); asked++) file_prefetch(&disk->file, random_place(disk, 3, asked), PAGE);
        if (!file_read_at(&disk->file, disk->buffer, PAGE, random_place(disk, 3, i), error)) return false;
    }
    return true;
}

/* Measures the cost of the marker at the end of a checkpoint. */
static bool write_pages(const Disk *disk, Error *error) {
    for (int64_t i = 0; i < disk->writes; i++)
        if (!file_write_at(&disk->file, disk->buffer, PAGE, i % (disk->bytes / PAGE) * PAGE, error) || !file_sync_data(&disk->file, error))
            return false;
    return true;
}

static void drop_disk_pages(const Disk *disk, int advice) {
    if (posix_fadvise(disk->file.descriptor, 0, 0, POSIX_FADV_DONTNEED) || posix_fadvise(disk->file.descriptor, 0, 0, advice))
        log_warn("%s: the page cache keeps this file, so cold reads may come from memory", disk->file.path);
}

/* Returns the shortest step that reading at this rate does not delay: scatter * tokens * bytes per
 * token over the rate, the break-even step time of ZAYA1's system report, appendix B. NaN for a
 * test that writes. */
static double break_even(const StorageOptions *options, bool reads, double bytes_per_second) {
    double bytes = options->scatter * (double)options->step_tokens * (double)options->token_bytes;
    return reads ? bytes / bytes_per_second : NAN;
}

static bool run_tests(Bench *bench, const Disk *disk, Error *error) {
    const int64_t blocks = divide_up(disk->bytes, disk->block), reads = disk->reads, writes = disk->writes;
    const struct {
        const char *name;
        bool (*run)(const Disk *disk, Error *error);
        int64_t bytes, block, operations;
        int cold; /* access hint after the page cache was dropped; -1: keep the cache */
        bool reads;
    } tests[] = {{"write", write_whole_file, disk->bytes, disk->block, blocks, -1, false},
        {"write and fsync", sync_all, disk->bytes, disk->block, blocks, -1, false},
        {"read, cold", read_whole_file, disk->bytes, disk->block, blocks, POSIX_FADV_SEQUENTIAL, true},
        {"read, in memory", read_whole_file, disk->bytes, disk->block, blocks, -1, true},
        {"random reads, cold", read_pages, reads * PAGE, PAGE, reads, POSIX_FADV_RANDOM, true},
        {"the same, 256 ahead", read_pages_ahead, reads * PAGE, PAGE, reads, POSIX_FADV_RANDOM, true},
        {"small writes, each sync", write_pages, writes * PAGE, PAGE, writes, -1, false}};
    double start = 0;
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (tests[i].cold >= 0) drop_disk_pages(disk, tests[i].cold);
        if (tests[i].run != sync_all) start = log_seconds();
        if (!tests[i].run(disk, error)) return false;
        double seconds = log_seconds() - start, bytes = (double)tests[i].bytes, operations = (double)tests[i].operations;
        bench_row(bench, (BenchCell[]){TEXT(tests[i].name), NUMBER(bytes), NUMBER(tests[i].block), NUMBER(operations), NUMBER(seconds),
                             NUMBER(bytes / seconds / 1e9), NUMBER(operations / seconds), NUMBER(1e6 * seconds / operations),
                             NUMBER(break_even(bench->options, tests[i].reads, bytes / seconds))});
    }
    return true;
}

static bool run_storage(Bench *bench, Error *error) {
    const StorageOptions *options = bench->options;
    Disk disk = {
        .bytes = options->bytes, .block = options->block / PAGE * PAGE, .reads = options->reads, .writes = divide_up(options->reads, 10)};
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
    .summary = "a folder's file system: durable writes, sequential and random reads",
    .explanation =
        "Writes an unnamed file into FOLDER and syncs it, reads it from disk and from the page cache, reads random pages, and\n"
        "writes small pieces with a sync after each. If the file system ignores requests to drop cached pages, set bytes above the size of "
        "memory. step_s: if a training step reads step_tokens and takes less time than step_s, storage is the bottleneck.\n",
    .positional = "FOLDER",
    BENCH_PARTS(StorageOptions, run_storage),
    .plot = {"Storage", "block", "gbps", {"test"}, "bytes per operation", "GB/s", .x_logarithmic = true, .y_logarithmic = true},
};
