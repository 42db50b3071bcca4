/* fp8 GEMM on the CPU, for its device. */
#pragma once

#include "device/gemm.h"

/* C = A B (+ C) (+ bias) for A in e4m3 or e5m2 and B in e4m3, in the FNUZ or OCP formats; C and
 * bias in fp32, or C in bf16. Runs on all threads; the same arguments give the same bits. */
void cpu_gemm_fp8(const Gemm *gemm, bool fnuz);
