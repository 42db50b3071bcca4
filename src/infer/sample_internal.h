/* Choosing the next token from logits. */
#pragma once

#include <stdint.h>

typedef struct Sampling {
    double temperature; /* 0: the most likely token */
    int64_t top_k;      /* only this many of the most likely tokens; 0: all */
    double top_p;       /* then the fewest likely ones with this probability together (arXiv 1904.09751); 1: all */
    uint64_t seed;
} Sampling;

/* One of the `count` tokens that the logits belong to; `uniform` in [0, 1) decides. A tie goes to the lower token.
 * Logits are finite. */
int32_t sample_token(const double *logits, int64_t count, const Sampling *sampling, double uniform);
