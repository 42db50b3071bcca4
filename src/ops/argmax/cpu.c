/* argmax on a CPU: threads divide the parts of all rows. No scratch. */
#include "backend/cpu/kernel.h"
#include "ops/argmax/argmax.h"

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
    y[ARGMAX_ELEMENT] = largest + zeros;
    y[ARGMAX_COLUMN] = (W)(first + at);
}

CPU_OP(argmax) {
    const int64_t first = ((const ArgmaxAttributes *)call->attributes)->first;
    const W *x = call->in[ARGMAX_X];
    const int32_t *limit = call->in[ARGMAX_LIMIT];
    W *y = call->out[ARGMAX_Y];
    int64_t rows = call->in_shape[ARGMAX_X][0], columns = call->in_shape[ARGMAX_X][1];
    int64_t width = divide_up(columns, ARGMAX_PARTS), wanted = int_min(columns, *limit - first);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows * ARGMAX_PARTS; i++) {
        int64_t begin = i % ARGMAX_PARTS * width;
        find_largest(x + i / ARGMAX_PARTS * columns + begin, int_min(width, wanted - begin), first + begin, y + i * ARGMAX_VALUES);
    }
}
