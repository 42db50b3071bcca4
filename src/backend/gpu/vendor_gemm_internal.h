/* Matrix products of the GPU vendors' libraries, cuBLASLt and hipBLASLt, behind one interface; opened at run time, so
 * where they are missing smelt's own kernels serve. The first time that a product of some shape runs, up to eight
 * algorithms of the library are timed on the product itself and the quickest is checked against smelt's own kernel on a
 * sample of rows, and for giving the same bits twice; one that fails is passed over with a warning. Smelt's own kernel
 * takes part where it may. The choice is remembered for the process and, on request, in a file (autotune_cache.h); only
 * with the file do two processes choose alike for sure, and so get the same bits. Algorithms that add to C with atomics
 * are never asked for.
 *
 * Made and called by gpu_device.c, on the one stream of the device. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"
#include "device/gemm.h"

typedef struct VendorGemm VendorGemm;

/* What it needs of its surroundings. `device` gives memory, copies and the timer, which a first run of a shape uses;
 * `stream` is the device's. */
typedef struct VendorGemmHost {
    Device *device;
    void *stream;
    void (*own)(Device *device, const Gemm *product); /* the judge of the library's; NULL: nothing is judged */
    bool own_races;                                   /* and it is timed like them: what it does quicker is declined */
    void (*cast)(Device *device, uint16_t *to, const float *from, int64_t count); /* fp32 to bf16 on the device */
    const char *cache_path;                                                       /* of the autotune cache; NULL: none */
} VendorGemmHost;

/* NULL when the library is missing, too old or refuses, with the reason in *error. Takes 64 MiB of device memory for
 * the library's partial sums. */
VendorGemm *vendor_gemm_open(const VendorGemmHost *host, Error *error);
void vendor_gemm_close(VendorGemm *vendor);
/* "cuBLASLt 130100" */
const char *vendor_gemm_name(const VendorGemm *vendor);

/* Launches the product; false when it declines, with nothing done to C: inputs other than bf16 and fp8, an empty
 * product, a shape that the library has no trusted algorithm for or that smelt's own kernel does quicker, or one that
 * was never run before while `recording`, when nothing can be measured. Where cuBLASLt writes C in bf16 it takes the
 * bias rounded to bf16. Products of fp8 (the device's own e4m3, scales of one, no bias, not added to C) are trusted
 * when they give the same bits twice: smelt has no kernel to judge them by. Hopper's library has them where A is
 * straight, B is transposed and all dimensions are multiples of 16. */
bool vendor_gemm_run(VendorGemm *vendor, const Gemm *product, bool recording);
