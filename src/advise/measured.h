/* Results of `smelt bench gemm` and `bench memory` on a machine, which replace the rules and rates of the table. */
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
    double bandwidth; /* bytes/s of the best copy in memory; 0: none was measured */
} Measured;

/* Reads the JSON of `smelt bench`: a list of rows, or an object whose "rows" or "results" is one. Rows with m, n, k
 * and tflops (and a `type` of bf16, where it is given) are GEMMs; rows with a kernel "copy", level "memory" and gbps
 * are copies. ERROR_DATA when it holds neither or is no such file. */
bool measured_read(Measured *measured, const char *path, Error *error);
void measured_free(Measured *measured);
/* The measured shape nearest to m x n x k in ratio, NULL when all three ratios together are more than a factor of 4
 * away. */
const MeasuredGemm *measured_find(const Measured *measured, int64_t m, int64_t n, int64_t k);
