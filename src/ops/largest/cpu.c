/* largest on a CPU: threads divide the parts of all rows. No scratch. */
#include "backend/cpu/kernel.h"
#include "ops/largest/largest.h"

/* 0 x is NaN if x is not finite. There are two passes: the first has no condition on columns, so
 * compilers vectorize it. */
static void find_largest(const W *x, int64_t count, int64_t first, W *y) {
    W largest = -INFINITY, zeros = 0;
    int64_t at = 0;
#pragma omp simd reduction(max : largest) reduction(+ : zeros)
    for (int64_t j = 0; j < count; j++) {
        zeros += 0 * x[j];
        largest = x[j] > largest ? x[j] : largest;
    }
    while (at < count && x[at] != largest) at++;
    y[LARGEST_ELEMENT] = largest + zeros;
    y[LARGEST_COLUMN] = (W)(first + at);
}

CPU_OP(largest) {
    const int64_t first = ((const LargestAttributes *)call->attributes)->first;
    const W *x = call->in[LARGEST_X];
    const int32_t *limit = call->in[LARGEST_LIMIT];
    W *y = call->out[LARGEST_Y];
    int64_t rows = call->in_shape[LARGEST_X][0], columns = call->in_shape[LARGEST_X][1];
    int64_t width = divide_up(columns, LARGEST_PARTS), wanted = int_min(columns, *limit - first);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows * LARGEST_PARTS; i++) {
        int64_t begin = i % LARGEST_PARTS * width;
        find_largest(x + i / LARGEST_PARTS * columns + begin, int_min(width, wanted - begin), first + begin, y + i * LARGEST_VALUES);
    }
}
