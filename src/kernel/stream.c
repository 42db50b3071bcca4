/* The memory benchmark's kernels (src/bench/memory.c launches them): STREAM's four, and reading and writing alone. A block goes over the arrays in tiles, the grid
 * strides over them; each thread has four 16-byte accesses of each array in flight. Owns no memory. */
#include "bench/stream.h"

#ifdef GPU_DEVICE

enum { IN_FLIGHT = 4, FLOATS = 4, TILE = IN_FLIGHT * STREAM_THREADS }; /* a tile in vectors of 4 floats */

typedef const f32x4 GLOBAL *Source;
typedef f32x4 GLOBAL *Target;

typedef enum Kind { STREAM_COPY, STREAM_SCALE, STREAM_ADD, STREAM_TRIAD, STREAM_WRITE } Kind;

INLINE f32x4 result_of(Kind kind, f32x4 x, f32x4 y, float factor) {
    switch (kind) {
    case STREAM_COPY: return x;
    case STREAM_SCALE: return x * factor;
    case STREAM_ADD: return x + y;
    case STREAM_TRIAD: return x + y * factor;
    case STREAM_WRITE: break;
    }
    return (f32x4)factor;
}

/* `count` vectors from `first` on, a block's width apart; all that a thread needs is loaded before it stores. `kind` is a constant and folds away. */
INLINE void stream_vectors(Kind kind, Target to, Source from, Source other, int64_t first, int count, float factor) {
    f32x4 x[IN_FLIGHT] = {0}, y[IN_FLIGHT] = {0};
    UNROLL for (int j = 0; j < count; j++) {
        if (kind != STREAM_WRITE) x[j] = from[first + j * STREAM_THREADS];
        if (kind == STREAM_ADD || kind == STREAM_TRIAD) y[j] = other[first + j * STREAM_THREADS];
    }
    UNROLL for (int j = 0; j < count; j++) to[first + j * STREAM_THREADS] = result_of(kind, x[j], y[j], factor);
}

INLINE void stream(const StreamArguments *a, Kind kind, Target to, Source from, Source other) {
    int64_t vectors = a->count / FLOATS;
    for (int64_t tile = (int64_t)block_x() * TILE; tile < vectors; tile += (int64_t)a->blocks * TILE) {
        int64_t first = tile + thread_id();
        if (tile + TILE <= vectors) stream_vectors(kind, to, from, other, first, IN_FLIGHT, a->factor);
        else for (int64_t i = first; i < vectors; i += STREAM_THREADS) stream_vectors(kind, to, from, other, i, 1, a->factor);
    }
}

KERNEL(stream_copy, StreamArguments) { stream(&a, STREAM_COPY, (Target)a.c, (Source)a.a, 0); }
KERNEL(stream_scale, StreamArguments) { stream(&a, STREAM_SCALE, (Target)a.b, (Source)a.c, 0); }
KERNEL(stream_add, StreamArguments) { stream(&a, STREAM_ADD, (Target)a.c, (Source)a.a, (Source)a.b); }
KERNEL(stream_triad, StreamArguments) { stream(&a, STREAM_TRIAD, (Target)a.a, (Source)a.b, (Source)a.c); }
KERNEL(stream_write, StreamArguments) { stream(&a, STREAM_WRITE, (Target)a.a, 0, 0); }

KERNEL(stream_read, StreamArguments) {
    static SHARED float sums[STREAM_THREADS / WAVE];
    Source source = (Source)a.b;
    int64_t vectors = a.count / FLOATS;
    f32x4 sum = 0;
    for (int64_t tile = (int64_t)block_x() * TILE; tile < vectors; tile += (int64_t)a.blocks * TILE) {
        int64_t first = tile + thread_id();
        f32x4 x[IN_FLIGHT] = {0};
        UNROLL for (int j = 0; j < IN_FLIGHT; j++)
            if (first + j * STREAM_THREADS < vectors) x[j] = source[first + j * STREAM_THREADS];
        UNROLL for (int j = 0; j < IN_FLIGHT; j++) sum += x[j];
    }
    float total = block_sum(sum[0] + sum[1] + sum[2] + sum[3], sums, STREAM_THREADS);
    if (thread_id() == 0) a.a[block_x()] = total;
}

#endif
