/* argmax on a GPU: one block per part of a row, whose threads compare their results in shared
 * memory. No scratch. */
#include "backend/gpu/gpu.h"

enum { THREADS = 256, PARTS = 32, VALUES = 2 };

typedef struct ArgmaxArguments {
    const float GLOBAL *x;
    const int32_t GLOBAL *limit;
    float GLOBAL *y;
    int64_t columns, part_columns, first; /* first: of x's columns among all ranks' columns */
} ArgmaxArguments;

#ifdef GPU_DEVICE

/* The result of some columns; NaN if one of them is not finite. */
typedef struct ArgmaxFound {
    float element;
    int32_t column;
} ArgmaxFound;

/* Returns the larger of both, the first of equals; NaN precedes all. */
INLINE ArgmaxFound larger_found(ArgmaxFound a, ArgmaxFound b) {
    bool second = b.element > a.element || (b.element == a.element && b.column < a.column) || b.element != b.element;
    return a.element == a.element && second ? b : a;
}

KERNEL(argmax, ArgmaxArguments) {
    static SHARED ArgmaxFound found[THREADS];
    int64_t first = block_y() * a.part_columns, end = first + a.part_columns, limit = *a.limit - a.first;
    const float GLOBAL *x = a.x + block_x() * a.columns;
    ArgmaxFound mine = {-__builtin_inff(), (int32_t)first};
    if (end > a.columns) end = a.columns;
    if (end > limit) end = limit;
    for (int64_t j = first + thread_id(); j < end; j += THREADS) {
        ArgmaxFound next = {x[j] + 0 * x[j], (int32_t)j};
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
#include "ops/argmax/argmax.h"

static_assert((int)PARTS == ARGMAX_PARTS && (int)VALUES == ARGMAX_VALUES && ARGMAX_ELEMENT == 0, "what a block writes");

LAUNCHER(argmax, ArgmaxArguments)

GPU_OP(argmax) {
    const int64_t *shape = call->in_shape[ARGMAX_X];
    ArgmaxArguments arguments = {.x = call->in[ARGMAX_X],
        .limit = call->in[ARGMAX_LIMIT],
        .y = call->out[ARGMAX_Y],
        .columns = shape[1],
        .part_columns = divide_up(shape[1], PARTS),
        .first = ((const ArgmaxAttributes *)call->attributes)->first};
    launch_argmax(call->device, (LaunchShape){.x = shape[0], .y = PARTS, .threads = THREADS}, &arguments);
}

#endif
