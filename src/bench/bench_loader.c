/* The loader alone: its speed in reading batches from token shards, and the load on the disk. The
 * order is training's, so samples are scattered over the shards. The page cache is dropped before
 * the cold reading; then the same samples are read again from memory. Tokens are checked against
 * the shard's checksums as in training. */
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "bench/bench.h"
#include "data/loader.h"

typedef struct LoaderBenchOptions {
    BenchOptions common;
    int64_t length, sequences, samples, step_tokens, seed;
} LoaderBenchOptions;

#define FIELD(name) offsetof(LoaderBenchOptions, name)
static const Option rows[] = {
    BENCH_OUTPUT_ROWS,
    INT_OPTION(length, "4096", 1, 1 << 24, "tokens", "length of a sequence"),
    INT_OPTION(sequences, "16", 1, 1 << 24, "sequences", "sequences per batch"),
    INT_OPTION(samples, "16384", 1, 1e12, "sequences", "batches to read, first cold, then from memory"),
    INT_OPTION(step_tokens, "16Mi", 1, 1e15, "tokens", "tokens that this machine reads per training step"),
    INT_OPTION(seed, "1", 0, 1e15, "", "seed of the sampler"),
};

static const BenchColumn columns[] = {{"test", BENCH_TEXT, 6}, {"length", 0, 8}, {"sequences", 0, 9}, {"samples", 0, 9}, {"seconds", 3, 9},
    {"tokens_per_s", 0, 13}, {"cpu_tokens_per_s", 0, 16}, {"read_mb", 1, 10}, {"pages_per_s", 0, 11}, {"scatter", 2, 8}, {"step_s", 3, 8}};

enum { PAGE = 4096 };

/* -- What the system says ------------------------------------------------------------------------------------------ */

/* Returns the bytes that this process has read from disks; -1: the system does not say. */
static int64_t disk_bytes(void) {
    char text[1024];
    if (file_read_start("/proc/self/io", text, sizeof text) < 0) return -1;
    const char *at = strstr(text, "\nread_bytes: ");
    return at ? strtoll(at + strlen("\nread_bytes: "), NULL, 10) : -1;
}

static double cpu_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static bool drop_file(const char *path, Error *error) {
    SCOPED(file_close) File file = {0};
    if (!file_open(&file, path, error)) return false;
    if (posix_fadvise(file.descriptor, 0, 0, POSIX_FADV_DONTNEED))
        log_warn("%s: the page cache keeps this file, so cold reads may come from memory", path);
    return true;
}

/* Drops the cached pages of a shard, or of the shards in a folder, while it is not mapped. */
static bool drop_file_pages(const char *path, Error *error) {
    SCOPED(file_list_free) FileList list = {0};
    SCOPED_FREE char *single = memory_format("%s.bin", path);
    if (file_kind(path, NULL) != FILE_FOLDER) return drop_file(single, error);
    bool good = file_list(path, &list, error);
    for (size_t i = 0; good && i < list.count; i++) {
        SCOPED_FREE char *file = memory_format("%s/%s", path, list.entries[i].name);
        good = list.entries[i].kind != FILE_REGULAR || !ends_with(file, ".bin") || drop_file(file, error);
    }
    return good;
}

/* -- Reading ------------------------------------------------------------------------------------------------------- */

static bool read_samples(const LoaderBenchOptions *options, const ShardSet *set, Error *error) {
    LoaderSource source = {.set = set};
    Order *order = order_of_one((uint64_t)options->seed, true, set->path, set->token_count - 1, options->length, error);
    if (!order) return false;
    LoaderOptions loading = {.order = order,
        .sources = &source,
        .sequences = options->sequences,
        .vocabulary = INT32_MAX,
        .separator = -1,
        .document_mask = true};
    Loader *loader = loader_open(&loading, 0, error);
    bool good = loader;
    for (int64_t i = 0; good && i < options->samples; i += options->sequences) good = loader_next(loader, error);
    loader_close(loader);
    order_free(order);
    return good;
}

/* `token_bytes` is the mean of the set. Without reads from a disk, the disk's columns are
 * unknown. */
static void report_rate(Bench *bench, const char *test, double seconds, double cpu, double disk, double token_bytes) {
    const LoaderBenchOptions *options = bench->options;
    double samples = (double)round_up(options->samples, options->sequences), tokens = samples * (double)options->length;
    double pages = disk > 0 ? disk / PAGE / seconds : NAN, scatter = disk > 0 ? disk / (tokens * token_bytes) : NAN;
    bench_row(bench, (BenchCell[]){TEXT(test), NUMBER(options->length), NUMBER(options->sequences), NUMBER(samples), NUMBER(seconds),
                         NUMBER(tokens / seconds), NUMBER(tokens / cpu), NUMBER(disk / 1e6), NUMBER(pages), NUMBER(scatter),
                         NUMBER((double)options->step_tokens / (tokens / seconds))});
}

static bool run_loader(Bench *bench, Error *error) {
    static const char *const tests[] = {"cold", "warm"};
    for (int i = 0; i < 2; i++) {
        SCOPED(shard_set_close) ShardSet set = {0};
        if (i == 0 && !drop_file_pages(bench->positional, error)) return error_recode(error, ERROR_DATA);
        if (!shard_set_open(&set, bench->positional, error)) return false;
        int64_t disk = disk_bytes();
        double start = log_seconds(), cpu = cpu_seconds();
        if (!read_samples(bench->options, &set, error)) return false;
        double seconds = log_seconds() - start, token_bytes = (double)shard_set_bytes(&set) / (double)set.token_count;
        report_rate(bench, tests[i], seconds, cpu_seconds() - cpu, disk < 0 ? NAN : (double)(disk_bytes() - disk), token_bytes);
    }
    return true;
}

const Benchmark bench_loader = {
    .name = "loader",
    .summary = "batches from token shards, read from disk and from memory",
    .explanation = "Reads token shards (SHARDS: a prefix or a folder) as training does, without training. Prints tokens/s by wall time and "
                   "by CPU time, pages\n"
                   "read from disk per second, the scatter factor (bytes read over bytes needed), and step_s: if a training step on this "
                   "machine reads step_tokens and\n"
                   "takes less time than step_s, storage is the bottleneck.\n",
    .positional = "SHARDS",
    BENCH_PARTS(LoaderBenchOptions, run_loader),
    .plot = {"Loader", "length", "tokens_per_s", {"test"}, "tokens per sequence", "tokens/s", .x_logarithmic = true, .y_logarithmic = true},
};
