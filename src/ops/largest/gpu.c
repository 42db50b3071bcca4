/* largest on a GPU: one block per part of a row, whose threads compare their results in shared
 * memory. No scratch. */
#include "backend/gpu/gpu.h"

enum { THREADS = 256, PARTS = 32, VALUES = 2 };

typedef struct LargestArguments {
    const float GLOBAL *x;
    const int32_t GLOBAL *limit;
    float GLOBAL *y;
    int64_t columns, part_columns, first; /* first: of x's columns among all ranks' columns */
} LargestArguments;

#ifdef GPU_DEVICE

/* The result of some columns; NaN if one of them is not finite. */
typedef struct LargestFound {
    float element;
    int32_t column;
} LargestFound;

/* Returns the larger of both, the first of equals; NaN precedes all. */
INLINE LargestFound larger_found(LargestFound a, LargestFound b) {
    bool second = b.element > a.element || (b.element == a.element && b.column < a.column) || b.element != b.element;
    return a.element == a.element && second ? b : a;
}

KERNEL(largest, LargestArguments) {
    static SHARED LargestFound found[THREADS];
    int64_t first = block_y() * a.part_columns, end = first + a.part_columns, limit = *a.limit - a.first;
    const float GLOBAL *x = a.x + block_x() * a.columns;
    LargestFound mine = {-__builtin_inff(), (int32_t)first};
    if (end > a.columns) end = a.columns;
    if (end > limit) end = limit;
    for (int64_t j = first + thread_id(); j < end; j += THREADS) {
        LargestFound next = {x[j] + 0 * x[j], (int32_t)j};
        mine = larger_found(mine, next);
    }
    found[thread_id()] = mine;
    for (int step = THREADS / 2; step > 0; step /= 2) {
        barrier();
        if (thread_id() < step) found[thread_id()] = larger_found(found[thread_id()], found[thread_id() + step]);
    }
    if (thread_id() > 0) return;
    float GLOBAL *y = a.y + ((int64_t)block_x() * PARTS + block_y()) * VALUES;
    y[0] = found[0].element;
    y[1] = (float)(a.first + found[0].column);
}

#else

#include "backend/gpu/kernel_launch.h"
#include "ops/largest/largest.h"

static_assert((int)PARTS == LARGEST_PARTS && (int)VALUES == LARGEST_VALUES && LARGEST_ELEMENT == 0, "what a block writes");

LAUNCHER(largest, LargestArguments)

GPU_OP(largest) {
    const int64_t *shape = call->in_shape[LARGEST_X];
    LargestArguments arguments = {.x = call->in[LARGEST_X],
        .limit = call->in[LARGEST_LIMIT],
        .y = call->out[LARGEST_Y],
        .columns = shape[1],
        .part_columns = divide_up(shape[1], PARTS),
        .first = ((const LargestAttributes *)call->attributes)->first};
    launch_largest(call->device, (LaunchShape){.x = shape[0], .y = PARTS, .threads = THREADS}, &arguments);
}

#endif
