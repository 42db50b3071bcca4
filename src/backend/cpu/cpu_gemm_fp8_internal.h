/* GEMM of fp8 on the CPU, for its device. */
#pragma once

#include "device/gemm.h"

/* C = A B (+ C) (+ bias) for A in e4m3 or e5m2 and B in e4m3, of the FNUZ form or OCP's; C and bias fp32, or C bf16. Runs
 * on all threads; the same bits for the same arguments. */
void cpu_gemm_fp8(const Gemm *gemm, bool fnuz);
