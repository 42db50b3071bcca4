/* Results of `smelt bench gemm` and `bench memory` on a machine; they replace the rules and rates
 * of the table. */
#pragma once

#include "base/error.h"

#include <stdint.h>

typedef struct MeasuredGemm {
    int64_t m, n, k;
    double tflops;
} MeasuredGemm;

typedef struct Measured {
    char source[256];    /* the file */
    MeasuredGemm *gemms; /* bf16 */
    int count;
    double best;      /* FLOP/s of the best GEMM */
    double bandwidth; /* bytes/s of the best memory copy; 0: not measured */
} Measured;

/* Reads the JSON of `smelt bench`: a list of rows, or an object whose "rows" or "results" is such a
 * list. Rows with m, n, k and tflops (and a `type` of bf16, if given) are GEMMs. Rows with a kernel
 * "copy", level "memory" and gbps are copies. ERROR_DATA if the file has neither or is not such a
 * file. */
bool measured_read(Measured *measured, const char *path, Error *error);
void measured_free(Measured *measured);
/* Returns the measured shape nearest to m x n x k in ratio; NULL if the three ratios together
 * exceed a factor of 4. */
const MeasuredGemm *measured_find(const Measured *measured, int64_t m, int64_t n, int64_t k);
