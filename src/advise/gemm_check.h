/* Checks a device's GEMM against sums in double, for the benchmark of GEMMs and the doctor's
 * self-test. */
#pragma once

#include "device/device.h"
#include "device/gemm.h"

/* Returns whether element [row, column] of C is correct within the rounding of `device`, for random
 * operands of about one size. `gemm` has A and B in host memory; `c` is that row of C, also in host
 * memory. */
bool gemm_element_is_right(const Gemm *gemm, const Device *device, int64_t row, int64_t column, const void *c);
