/* Reads and writes single elements of bf16, fp32 or fp64 arrays, by their size in bytes (2, 4, 8).
 * For code that converts or compares; a loop with a constant size vectorizes. */
#pragma once

#include <stddef.h>

#include "base/bf16.h"

static inline double element_get(size_t bytes, const void *values, int64_t index) {
    return bytes == 8   ? ((const double *)values)[index]
           : bytes == 4 ? ((const float *)values)[index]
                        : bf16_to_float(((const uint16_t *)values)[index]);
}

/* Rounds to nearest even. */
static inline void element_set(size_t bytes, void *values, int64_t index, double value) {
    if (bytes == 8) ((double *)values)[index] = value;
    else if (bytes == 4) ((float *)values)[index] = (float)value;
    else ((uint16_t *)values)[index] = bf16_from_float((float)value);
}
