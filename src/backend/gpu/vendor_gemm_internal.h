/* GEMM by the GPU vendors' libraries, cuBLASLt and hipBLASLt, behind one interface; opened at run time, so where they
 * are missing smelt's kernels serve. When a shape runs for the first time, up to eight algorithms of the library and
 * smelt's kernel are timed on it. The fastest algorithm is verified against smelt's kernel on a sample of rows, and for
 * giving the same bits twice; one that fails is banned with a warning. The choice is kept for the process and, on
 * request, in a file (autotune_cache_internal.h): only with the file do two processes choose alike for sure, and so get
 * the same bits. Algorithms that add to C with atomics are never asked for.
 *
 * Opened and called by gpu_device.c, on the device's stream. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"
#include "device/gemm.h"

typedef struct VendorGemm VendorGemm;

/* What it needs of the device: memory, copies and the timer, which the first run of a shape uses, and the stream. */
typedef struct VendorGemmHost {
    Device *device;
    void *stream;
    const char *cache_path;                              /* of the autotune cache; NULL: none */
    bool (*reference)(Device *device, const Gemm *gemm); /* smelt's kernel, which algorithms are compared with; false: none */
    bool reference_races;                                /* it is timed too: shapes that it computes faster are declined */
} VendorGemmHost;

/* NULL when the library is missing, too old or refuses, with the reason in *error. Takes 64 MiB of the device. */
VendorGemm *vendor_gemm_open(const VendorGemmHost *host, Error *error);
void vendor_gemm_close(VendorGemm *vendor);
/* "cuBLASLt 130100" */
const char *vendor_gemm_name(const VendorGemm *vendor);

/* Launches the GEMM. False, with nothing done to C, when it declines: inputs other than bf16 and fp8, m, n or k of 0, a
 * shape that the library has no trusted algorithm for or that smelt's kernel computes faster, or one that never ran
 * before while `recording`, when nothing can be measured. Where cuBLASLt writes C in bf16 it takes the bias rounded to
 * bf16.
 *
 * In fp8 (the device's formats) it takes scales of tensors and, where the library has them, of lines of both operands, no
 * bias, and n and k that are multiples of 16; what it can compute, it does, however fast smelt's kernel is. cuBLASLt sums
 * e4m3 in the matrix unit alone, and e5m2 by adding to fp32 from time to time. */
bool vendor_gemm_run(VendorGemm *vendor, const Gemm *gemm, bool recording);
