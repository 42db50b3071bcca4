/* Sums of doubles that keep the rounding errors. A sum has about 106 bits, so its value in double
 * does not depend on the order or the grouping of the terms. */
#pragma once

#include <math.h>

/* The sum is high + low. `high` is the plain sum, even for infinities and NaN, for which `low` is
 * undefined. */
typedef struct PreciseSum { double high, low; } PreciseSum;

/* Adds a term: the error of the addition of high is exact (Knuth, TAOCP 2, 4.2.2). */
static inline void precise_add(PreciseSum *sum, double term) {
    double high = sum->high + term, part = high - sum->high;
    sum->low += (sum->high - (high - part)) + (term - part);
    sum->high = high;
}

static inline void precise_join(PreciseSum *sum, PreciseSum other) {
    precise_add(sum, other.high);
    sum->low += other.low;
}

static inline double precise_value(PreciseSum sum) { return isfinite(sum.high) ? sum.high + sum.low : sum.high; }
