/* Sorting numbers, and their median. */
#pragma once

#include <stdint.h>
#include <stdlib.h>

/* For qsort: ascending. */
static inline int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts `values` and returns their median; there must be at least one value. The median of an even
 * number is the mean of the two middle values. */
static inline double sort_median(double *values, int64_t count) {
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}
