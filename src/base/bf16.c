/* Converts arrays between bf16 and fp32. Owns no memory. Called by readers and writers of model folders. */
#include "base/bf16.h"

void bf16_from_floats(uint16_t *to, const float *from, int64_t count) {
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < count; i++) to[i] = bf16_from_float(from[i]);
}

void bf16_to_floats(float *to, const uint16_t *from, int64_t count) {
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < count; i++) to[i] = bf16_to_float(from[i]);
}
