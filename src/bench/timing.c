/* Timing, and memory that is cold when it is read. Used by benchmarks; owns only the contents of a
 * BenchArena. */
#include <math.h>
#include <stdlib.h>

#include "base/float8.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/sort.h"
#include "bench/bench.h"

/* -- Sizes --------------------------------------------------------------------------------------------------------- */

const BenchSizes *bench_sizes(const Device *device) {
    /* Fields: gemm_m, attention_lengths, collective_bytes; attention_heads, attention_tokens,
     * optimizer_parameters; memory_least; best_gemm */
    static const BenchSizes cpu = {"256..2048", "256..2048", "1Ki..64Mi", 8, 4096, 32000000, 16 << 10, {512, 1024}};
    static const BenchSizes massively_parallel = {"1024..8192", "1024..16384", "1Ki..1Gi", 32, 32768, 1000000000, 1 << 20, {4096, 8192}};
    return device_info(device)->massively_parallel ? &massively_parallel : &cpu;
}

/* -- Time ---------------------------------------------------------------------------------------------------------- */

static double time_calls(Device *device, BenchWork work, void *context, int64_t first, int64_t count) {
    device_timer_start(device);
    for (int64_t i = 0; i < count; i++) work(context, first + i);
    return device_timer_stop(device);
}

int64_t bench_calls(const BenchOptions *options, double seconds) {
    enum { MOST_CALLS = 1 << 20 };
    return (int64_t)fmin(fmax(options->seconds / (double)options->repeats / fmax(seconds, 1e-9), 1), MOST_CALLS);
}

bool bench_time(Bench *bench, BenchWork work, void *context, BenchTime *time, Error *error) {
    const BenchOptions *options = bench->options;
    int64_t repeats = options->repeats;
    SCOPED_FREE double *samples = memory_allocate((size_t)repeats * sizeof *samples);
    time_calls(bench->device, work, context, 0, 1);
    int64_t calls = bench_calls(options, time_calls(bench->device, work, context, 1, 1));
    int64_t done = 2 + (repeats + 1) / 2 * calls;
    time_calls(bench->device, work, context, 2, done - 2);
    for (int64_t i = 0; i < repeats; i++, done += calls) samples[i] = time_calls(bench->device, work, context, done, calls) / (double)calls;
    double median = sort_median(samples, repeats);
    *time = (BenchTime){.seconds = median, .best = samples[0], .calls = done};
    return device_ok(bench->device, error);
}

/* -- Cold memory --------------------------------------------------------------------------------------------------- */

/* A prime number of random values is repeated over the memory. Powers of two and their small
 * multiples have large remainders modulo it, so no row or column of a matrix equals another one,
 * or one of the other operand. */
enum { POOL = 2592487 };

/* Uploads FP8 values, which no device generates, in e4m3; their bits are also finite in e5m2. */
static void upload_fp8(const BenchArena *arena, int64_t count) {
    SCOPED_FREE float *values = memory_allocate((size_t)count * sizeof *values);
    SCOPED_FREE uint8_t *quantized = memory_allocate((size_t)count);
    rng_normals(1, RNG_STREAM_BENCH, 0, count, values);
    for (int64_t i = 0; i < count; i++)
        quantized[i] = fp8_from_float(values[i], fp8_format(FP8_E4M3, device_info(arena->device)->fp8_fnuz));
    device_upload(arena->device, arena->memory, quantized, count);
}

static void fill_arena(const BenchArena *arena, GemmType type) {
    const Normals normals = {.seed = 1, .stream = RNG_STREAM_BENCH, .deviation = 1};
    int64_t size = bench_type_bytes(type), count = int_min(arena->bytes / size, POOL), filled = count * size;
    if (gemm_is_fp8(type)) upload_fp8(arena, count);
    else device_normals(arena->device, arena->memory, (int)size, &(Slice){.count = count}, &normals);
    for (int64_t more; filled < arena->bytes; filled += more) {
        more = int_min(arena->bytes - filled, filled);
        device_copy(arena->device, arena->memory + filled, arena->memory, more);
    }
    device_synchronize(arena->device);
}

bool bench_fits(const Device *device, int64_t bytes, const char *what, const char *less, Error *error) {
    int64_t available = device_available(device);
    return available < 0 || bytes <= available ||
           error_set(error, ERROR_MEMORY, "%s needs %lld bytes, but only %lld are free: use %s", what, (long long)bytes,
               (long long)available, less);
}

bool bench_arena_open(BenchArena *arena, Device *device, int64_t set_bytes, bool cold, GemmType type, Error *error) {
    int64_t rotation = cold ? 2 * device_info(device)->cache_bytes : 0;
    *arena = (BenchArena){.device = device, .bytes = rotation > set_bytes ? rotation : set_bytes};
    if (!bench_fits(device, arena->bytes, "a set of operands", "smaller sizes, or cache=hot", error)) return false;
    arena->memory = device_allocate(device, arena->bytes, error);
    if (!arena->memory) return false;
    fill_arena(arena, type);
    return device_ok(device, error);
}

void bench_arena_close(BenchArena *arena) {
    if (arena->memory) device_free(arena->device, arena->memory, arena->bytes);
    *arena = (BenchArena){0};
}

char *bench_arena_set(const BenchArena *arena, int64_t set_bytes, int64_t call) {
    int64_t sets = arena->bytes / set_bytes;
    return arena->memory + call % sets * set_bytes;
}
