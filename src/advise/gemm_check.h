/* Checking what a device makes of a GEMM against sums in double: the benchmark of GEMMs and the doctor's self-test. */
#pragma once

#include "device/device.h"
#include "device/gemm.h"

/* Whether element [row, column] of C is right within what `device` may round, for random operands of about one size.
 * `gemm` has A and B in host memory; `c` is that row of C, also there. */
bool gemm_element_is_right(const Gemm *gemm, const Device *device, int64_t row, int64_t column, const void *c);
