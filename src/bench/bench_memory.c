/* Memory bandwidth: STREAM's four kernels (McCalpin), and reading and writing alone, over working
 * sets from the L1 cache to most of memory; on a GPU also copies to and from the host's memory,
 * pageable and pinned. Bytes are counted as in STREAM: the bytes that a kernel reads and writes.
 * Cache lines fetched before an overwrite do not count. On the CPU each thread works repeatedly on
 * its own part, so that the speed of thread barriers does not dominate small sets. */
#include <omp.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/gpu/kernel_launch.h"
#include "base/math.h"
#include "base/memory.h"
#include "bench/bench.h"
#include "bench/stream_internal.h"

typedef struct MemoryOptions {
    BenchOptions common;
    const char *bytes;
    int kernel, pages;
} MemoryOptions;

enum { PAGES_PLAIN, PAGES_HUGE }; /* pages= */

#define FIELD(name) offsetof(MemoryOptions, name)
static const Option rows[] = {
    BENCH_ROWS,
    STRING_OPTION(bytes, "", "bytes",
        "total bytes of a kernel's arrays: numbers or ranges such as 16Ki..1Gi; empty: 16Ki to four times the last-level cache, and half "
        "of the free memory"),
    CHOICE_OPTION(pages, "plain", "plain|huge", "pages of CPU memory; huge: as training requests them"),
    CHOICE_OPTION(kernel, "all", "all|copy|scale|add|triad|read|write|driver_copy|upload|download|upload_pinned|download_pinned",
        "kernel to measure; driver_copy and the following ones need a GPU"),
};

/* In the order of kernel=. From DRIVER_COPY on, a GPU's driver makes the copies. */
typedef enum Kernel {
    KERNEL_COPY,
    KERNEL_SCALE,
    KERNEL_ADD,
    KERNEL_TRIAD,
    KERNEL_READ,
    KERNEL_WRITE,
    DRIVER_COPY,
    UPLOAD,
    DOWNLOAD,
    UPLOAD_PINNED,
    DOWNLOAD_PINNED,
    KERNEL_COUNT
} Kernel;
enum { MOST_ARRAYS = 3 };
/* In adjacent arrays of equal length, equal elements would be in the same memory bank and the same
 * cache set; SKEW separates them. */
enum { ALIGNMENT = 4096, SKEW = 3 * 4096 + 21 * 64 };
static const double FACTOR = 3;

/* -- On the CPU ---------------------------------------------------------------------------------------------------- */

/* A cache line of doubles, which the compiler maps to the widest instructions of each target. */
typedef double Line __attribute__((vector_size(64)));

/* The data of one thread. */
typedef struct MemoryPart {
    Line *a, *b, *c;
    int64_t lines; /* a multiple of 8 */
} MemoryPart;

/* Not under ThreadSanitizer, whose runtime starts after the resolvers of clones have run. */
#if defined __x86_64__ && !defined __SANITIZE_THREAD__
#define FOR_EACH_CPU __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define FOR_EACH_CPU
#endif

#define STREAM(name, statement)                                                                                                           \
    FOR_EACH_CPU static void name(const MemoryPart *part) {                                                                                   \
        for (int64_t i = 0; i < part->lines; i++) statement;                                                                             \
    }
STREAM(cpu_scale, part->b[i] = FACTOR * part->c[i])
STREAM(cpu_add, part->c[i] = part->a[i] + part->b[i])
STREAM(cpu_triad, part->a[i] = part->b[i] + FACTOR * part->c[i])
STREAM(cpu_write, part->a[i] = FACTOR - (Line){0})

static void copy_on_cpu(const MemoryPart *part) { memcpy(part->c, part->a, (size_t)part->lines * sizeof(Line)); }

/* Uses several sums, so that no sum waits for the previous one. */
FOR_EACH_CPU static void cpu_read(const MemoryPart *part) {
    Line s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0}, s4 = {0}, s5 = {0}, s6 = {0}, s7 = {0};
    const Line *from = part->a;
    for (int64_t i = 0; i < part->lines; i += 8) {
        s0 += from[i], s1 += from[i + 1], s2 += from[i + 2], s3 += from[i + 3];
        s4 += from[i + 4], s5 += from[i + 5], s6 += from[i + 6], s7 += from[i + 7];
    }
    Line sum = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7;
    __asm__ volatile("" : : "m"(sum));
}

/* For each kernel: the number of its device arrays, which of them are a, b and c of STREAM, and its
 * implementations for CPU and GPU. */
static const struct {
    const char *name;
    int arrays, order[MOST_ARRAYS];
    void (*cpu)(const MemoryPart *part);
    GpuKernel gpu;
} kernels[KERNEL_COUNT] = {
    [KERNEL_COPY] = {"copy", 2, {0, 0, 1}, copy_on_cpu, {"stream", "stream_copy"}},
    [KERNEL_SCALE] = {"scale", 2, {0, 0, 1}, cpu_scale, {"stream", "stream_scale"}},
    [KERNEL_ADD] = {"add", 3, {0, 1, 2}, cpu_add, {"stream", "stream_add"}},
    [KERNEL_TRIAD] = {"triad", 3, {0, 1, 2}, cpu_triad, {"stream", "stream_triad"}},
    [KERNEL_READ] = {"read", 1, {0, 0, 0}, cpu_read, {"stream", "stream_read"}},
    [KERNEL_WRITE] = {"write", 1, {0, 0, 0}, cpu_write, {"stream", "stream_write"}},
    [DRIVER_COPY] = {.name = "driver_copy", .arrays = 2},
    [UPLOAD] = {.name = "upload", .arrays = 1},
    [DOWNLOAD] = {.name = "download", .arrays = 1},
    [UPLOAD_PINNED] = {.name = "upload_pinned", .arrays = 1},
    [DOWNLOAD_PINNED] = {.name = "download_pinned", .arrays = 1},
};

/* Returns whether the device uses the kernels of stream_gpu.c and driver copies. */
static bool is_gpu(const Device *device) { return !device_info(device)->host_memory; }

/* -- A measurement ------------------------------------------------------------------------------------------------- */

typedef struct MemoryWork {
    Device *device;
    Kernel kernel;
    char *arrays[MOST_ARRAYS];
    int64_t bytes;  /* of one array */
    int64_t passes; /* over the arrays in one call */
    void *host;     /* for copies between host and device */
} MemoryWork;

static void run_cpu(void *context, int64_t call) {
    const MemoryWork *work = context;
    (void)call;
#pragma omp parallel
    {
        const int64_t unit = 8 * sizeof(Line);
        int64_t units = work->bytes / unit, threads = omp_get_num_threads(), thread = omp_get_thread_num();
        int64_t first = units * thread / threads, last = units * (thread + 1) / threads;
        MemoryPart part = {(Line *)(work->arrays[0] + first * unit), (Line *)(work->arrays[1] + first * unit),
            (Line *)(work->arrays[2] + first * unit), 8 * (last - first)};
        for (int64_t pass = 0; pass < work->passes; pass++) {
            kernels[work->kernel].cpu(&part);
            __asm__ volatile("" : : : "memory"); /* prevents the compiler from merging passes */
        }
    }
}

static void run_gpu(void *context, int64_t call) {
    enum { READERS_A_PROCESSOR = 8, MOST_BLOCKS = 1 << 22, BLOCK_BYTES = 16 * STREAM_THREADS };
    const MemoryWork *work = context;
    (void)call;
    StreamArguments arguments = {.a = (float *)work->arrays[0],
        .b = (float *)work->arrays[1],
        .c = (float *)work->arrays[2],
        .factor = (float)FACTOR,
        .count = work->bytes / (int64_t)sizeof(float)};
    int64_t blocks = (work->bytes + BLOCK_BYTES - 1) / BLOCK_BYTES;
    arguments.blocks = blocks < MOST_BLOCKS ? (int32_t)blocks : MOST_BLOCKS;
    if (work->kernel == KERNEL_READ) { /* reads the second array, writes sums to the first */
        arguments.a = (float *)work->arrays[MOST_ARRAYS - 1];
        arguments.b = (float *)work->arrays[0];
        arguments.blocks = device_info(work->device)->processors * READERS_A_PROCESSOR;
    }
    gpu_launch(work->device, &kernels[work->kernel].gpu, (LaunchShape){.x = arguments.blocks, .threads = STREAM_THREADS}, &arguments);
}

static void run_copy(void *context, int64_t call) {
    const MemoryWork *work = context;
    bool up = work->kernel == UPLOAD || work->kernel == UPLOAD_PINNED;
    (void)call;
    if (work->kernel == DRIVER_COPY) device_copy(work->device, work->arrays[1], work->arrays[0], work->bytes);
    else if (up) device_upload(work->device, work->arrays[0], work->host, work->bytes);
    else device_download(work->device, work->host, work->arrays[0], work->bytes);
}

/* -- Rows ---------------------------------------------------------------------------------------------------------- */

static const BenchColumn columns[] = {
    {"kernel", BENCH_TEXT, 15}, {"bytes", 0, 13}, {"level", BENCH_TEXT, 6}, {"us", 2, 13}, {"gbps", 2, 9}, {"best_gbps", 2, 9}};

/* Returns the smallest cache that holds the data of each thread, or of all threads together in the
 * last-level cache. */
static const char *level_of(const Device *device, int64_t bytes) {
    if (is_gpu(device)) return bytes <= device_info(device)->cache_bytes ? "cache" : "memory";
    int64_t each = bytes / omp_get_max_threads();
    if (each <= sysconf(_SC_LEVEL1_DCACHE_SIZE)) return "L1";
    if (each <= sysconf(_SC_LEVEL2_CACHE_SIZE)) return "L2";
    return bytes <= sysconf(_SC_LEVEL3_CACHE_SIZE) ? "L3" : "memory";
}

static bool add_memory_row(Bench *bench, const MemoryWork *work, BenchWork run, Error *error) {
    BenchTime time;
    if (!bench_time(bench, run, (void *)work, &time, error)) return false;
    int64_t set = kernels[work->kernel].arrays * work->bytes;
    double seconds = time.seconds / (double)work->passes, best = time.best / (double)work->passes;
    bench_row(bench, (BenchCell[]){TEXT(kernels[work->kernel].name), NUMBER(set), TEXT(work->host ? "host" : level_of(work->device, set)),
                         NUMBER(1e6 * seconds), NUMBER((double)set / seconds / 1e9), NUMBER((double)set / best / 1e9)});
    return true;
}

/* The memory to measure: the device's, and the host's pageable and pinned memory. The host's is
 * NULL if nothing is copied between host and device. */
typedef struct Room {
    Device *device;
    char *memory, *pageable, *pinned;
    int64_t bytes, host_bytes;
} Room;

static bool measure_kernel(Bench *bench, const Room *room, int64_t set, Kernel kernel, Error *error) {
    const int64_t worth = 256 << 20; /* minimum bytes per call: a millisecond in the L1 cache */
    int64_t each = set / kernels[kernel].arrays / ALIGNMENT * ALIGNMENT;
    if (each == 0) return true;
    bool gpu = is_gpu(bench->device);
    MemoryWork work = {.device = bench->device, .kernel = kernel, .bytes = each, .passes = gpu ? 1 : divide_up(worth, set)};
    for (int i = 0; i < MOST_ARRAYS; i++) work.arrays[i] = room->memory + kernels[kernel].order[i] * (each + SKEW);
    if (gpu && kernel == KERNEL_READ) work.arrays[MOST_ARRAYS - 1] = room->memory + bench_round(each);
    return add_memory_row(bench, &work, gpu ? run_gpu : run_cpu, error);
}

/* Measures the driver's copies of half of the set, like STREAM's copy. Copies from and to the
 * host are skipped if they exceed its allocated memory. */
static bool measure_copy(Bench *bench, const Room *room, int64_t set, Kernel kernel, Error *error) {
    int64_t each = set / 2 / ALIGNMENT * ALIGNMENT;
    if (each == 0 || (kernel != DRIVER_COPY && each > room->host_bytes)) return true;
    MemoryWork work = {
        .device = bench->device, .kernel = kernel, .arrays = {room->memory, room->memory + each}, .bytes = each, .passes = 1};
    if (kernel != DRIVER_COPY) work.host = kernel == UPLOAD || kernel == DOWNLOAD ? room->pageable : room->pinned;
    return add_memory_row(bench, &work, run_copy, error);
}

/* -- The benchmark ------------------------------------------------------------------------------------------------- */

/* Lists powers of two up to four times the last-level cache, and half of the free memory. */
static void default_sizes(BenchList *sizes, const Device *device) {
    int64_t free_bytes = device_available(device), most = 4 * device_info(device)->cache_bytes, largest = 0;
    sizes->count = 0;
    for (int64_t size = bench_sizes(device)->memory_least; size <= most && (free_bytes < 0 || size <= free_bytes / 2); size *= 2)
        sizes->numbers[sizes->count++] = largest = size;
    if (free_bytes / 2 > largest) sizes->numbers[sizes->count++] = free_bytes / 2 / ALIGNMENT * ALIGNMENT;
}

static bool wants_kernel(const Bench *bench, Kernel kernel) {
    int option = ((const MemoryOptions *)bench->options)->kernel;
    return (option == 0 || option == (int)kernel + 1) && (kernel < DRIVER_COPY || is_gpu(bench->device));
}

/* Touches each page first on the thread that will use it. The values are far from zero, because
 * tiny values may be slow to add. */
static void touch(char *memory, int64_t bytes) {
    double *values = (double *)memory;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < bytes / (int64_t)sizeof *values; i++) values[i] = 1;
}

static bool open_room(Room *room, const Bench *bench, int64_t most, Error *error) {
    const int64_t host_most = 1 << 30, host_bytes = int_min(most / 2, host_most);
    bool copies = false;
    *room = (Room){.device = bench->device, .bytes = most + MOST_ARRAYS * (ALIGNMENT + SKEW) + (1 << 20)};
    room->memory = device_allocate(bench->device, room->bytes, error);
    if (!room->memory) return false;
    if (!is_gpu(bench->device)) {
        bool plain = ((const MemoryOptions *)bench->options)->pages == PAGES_PLAIN;
        if (plain) madvise(room->memory, (size_t)room->bytes, MADV_NOHUGEPAGE); /* a hint that may fail */
        touch(room->memory, room->bytes);
    }
    for (Kernel kernel = UPLOAD; kernel < KERNEL_COUNT; kernel++) copies = copies || wants_kernel(bench, kernel);
    if (!copies) return true;
    room->host_bytes = host_bytes;
    room->pageable = memory_map((size_t)host_bytes, error);
    room->pinned = room->pageable ? device_allocate_host(bench->device, host_bytes, error) : NULL;
    if (!room->pinned) return false;
    memset(room->pageable, 1, (size_t)host_bytes);
    memset(room->pinned, 1, (size_t)host_bytes);
    return true;
}

static void close_room(Room *room) {
    if (room->pageable) memory_unmap(room->pageable, (size_t)room->host_bytes);
    if (room->pinned) device_free_host(room->device, room->pinned, room->host_bytes);
    if (room->memory) device_free(room->device, room->memory, room->bytes);
}

static bool run_memory(Bench *bench, Error *error) {
    const MemoryOptions *options = bench->options;
    const int64_t most = (int64_t)1 << 46;
    if (!bench_open_device(bench, PRECISION_BF16, error)) return false;
    if (options->kernel > DRIVER_COPY && !is_gpu(bench->device))
        return error_set(
            error, ERROR_USAGE, "kernel=%s needs a GPU: choose a kernel from copy to write", kernels[options->kernel - 1].name);
    BenchList sizes;
    if (!*options->bytes) default_sizes(&sizes, bench->device);
    else if (!bench_list(&sizes, "bytes", options->bytes, most, error)) return false;
    int64_t largest = 0;
    for (int i = 0; i < sizes.count; i++) largest = int_max(largest, sizes.numbers[i]);
    SCOPED(close_room) Room room = {0};
    if (!bench_fits(bench->device, largest, "bytes=", "fewer", error) || !open_room(&room, bench, largest, error)) return false;
    for (int i = 0; i < sizes.count; i++)
        for (Kernel kernel = 0; kernel < KERNEL_COUNT; kernel++)
            if (wants_kernel(bench, kernel) &&
                !(kernel < DRIVER_COPY ? measure_kernel : measure_copy)(bench, &room, sizes.numbers[i], kernel, error))
                return false;
    return true;
}

const Benchmark bench_memory = {
    .name = "memory",
    .summary = "bandwidth: copy, scale, add, triad, read, write; host and GPU",
    .explanation = "Measures STREAM's kernels, and pure reads and writes, over working sets from the first-level cache to most of memory. "
                   "Bytes are counted as in STREAM.\n"
                   "On a GPU, it also measures the driver's copy, and copies from pageable host memory (upload), to it (download), and the "
                   "same with pinned memory.\n",
    BENCH_PARTS(MemoryOptions, run_memory),
    .plot = {"Memory bandwidth", "bytes", "gbps", {"kernel"}, "total bytes of all arrays", "GB/s", .x_logarithmic = true},
};
