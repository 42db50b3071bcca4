/* The memory benchmark's kernels, which bench_memory.c launches: STREAM's four, and reading and
 * writing alone. Owns no memory. */
#include "bench/stream_internal.h"

#ifdef GPU_DEVICE

enum { IN_FLIGHT = 4, FLOATS = 4, TILE = IN_FLIGHT * STREAM_THREADS }; /* a tile in vectors of 4 floats */

typedef const f32x4 GLOBAL *StreamSource;
typedef f32x4 GLOBAL *StreamTarget;

/* A thread processes one vector at a time, and only one in total if there are enough blocks. A few
 * blocks per processor copied 5% less on an H100, with 1 to 8 vectors in flight. */
#define STREAM(name, to, value)                                                                                                                       \
    KERNEL(name, StreamArguments) {                                                                                                                   \
        for (int64_t i = (int64_t)block_x() * STREAM_THREADS + thread_id(); i < a.count / FLOATS; i += (int64_t)a.blocks * STREAM_THREADS)            \
            ((StreamTarget)a.to)[i] = value;                                                                                                                \
    }
#define AT(from) ((StreamSource)a.from)[i]

STREAM(stream_copy, c, AT(a))
STREAM(stream_scale, b, AT(c) * a.factor)
STREAM(stream_add, c, AT(a) + AT(b))
STREAM(stream_triad, a, AT(b) + AT(c) * a.factor)
STREAM(stream_write, a, (f32x4)a.factor)

KERNEL(stream_read, StreamArguments) {
    static SHARED float sums[STREAM_THREADS / WAVE];
    StreamSource source = (StreamSource)a.b;
    int64_t vectors = a.count / FLOATS;
    f32x4 sum = 0;
    for (int64_t tile = (int64_t)block_x() * TILE; tile < vectors; tile += (int64_t)a.blocks * TILE) {
        int64_t first = tile + thread_id();
        f32x4 x[IN_FLIGHT] = {0};
        UNROLL for (int j = 0; j < IN_FLIGHT; j++) if (first + j * STREAM_THREADS < vectors) x[j] = source[first + j * STREAM_THREADS];
        UNROLL for (int j = 0; j < IN_FLIGHT; j++) sum += x[j];
    }
    float total = block_sum(sum[0] + sum[1] + sum[2] + sum[3], sums, STREAM_THREADS);
    if (thread_id() == 0) a.a[block_x()] = total;
}

#endif
