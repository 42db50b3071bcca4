/* GEMM by the GPU vendors' libraries, cuBLASLt and hipBLASLt, behind one interface. They are opened
 * at run time; if they are missing, smelt's kernels run. When a shape runs for the first time, up
 * to eight algorithms of the library and smelt's kernel are timed on it. The fastest algorithm is
 * verified against smelt's kernel on a sample of rows, and must give the same bits twice; an
 * algorithm that fails is banned with a warning. The choice is kept for the process and, on
 * request, in a file (autotune_cache_internal.h): only with the file are two processes sure to
 * choose alike and get the same bits. Algorithms that add to C with atomics are never requested.
 *
 * Opened and called by gpu_device.c, on the device's stream. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"
#include "device/gemm.h"

typedef struct VendorGemm VendorGemm;

/* The most memory of the device that a trial of a shape takes, which it frees at its end. */
enum { VENDOR_GEMM_TRIAL_BYTES = 640 << 20 };

/* The parts of the GPU's back end that vendor_gemm.c uses: the device, its stream, the file of
 * the autotune cache, and smelt's own kernel. */
typedef struct VendorGemmHost {
    Device *device;
    void *stream;
    const char *cache_path;                              /* of the autotune cache; NULL: none */
    bool (*reference)(Device *device, const Gemm *gemm); /* smelt's kernel, to compare algorithms with; false: there is none */
    bool reference_races;                                /* the reference is timed too: shapes that it computes faster are declined */
} VendorGemmHost;

/* Returns NULL if the library is missing, too old or refuses; *error gives the reason. Takes 65 MiB
 * of the device. */
VendorGemm *vendor_gemm_open(const VendorGemmHost *host, Error *error);
void vendor_gemm_close(VendorGemm *vendor);
/* "cuBLASLt 130100" */
const char *vendor_gemm_name(const VendorGemm *vendor);

/* Launches the GEMM. Returns false and does not change C if it declines: inputs other than bf16 and
 * fp8; m, n or k of 0; a shape without a trusted algorithm; a shape that smelt's kernel computes
 * faster; or, while `recording`, a shape that never ran before, because nothing can be measured
 * then. If cuBLASLt writes C in bf16, it takes the bias rounded to bf16.
 *
 * In fp8 (the device's formats) it accepts scales of tensors and, if the library has them, of lines
 * of both operands; no bias; n and k must be multiples of 16. It computes all that it accepts, even
 * if smelt's kernel is faster. cuBLASLt sums e4m3 only in the matrix unit; for e5m2 it adds to fp32
 * at intervals. */
bool vendor_gemm_run(VendorGemm *vendor, const Gemm *gemm, bool recording);
