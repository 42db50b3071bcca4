/* Sums of doubles with the rounding errors kept: a sum has about 106 bits, so its value in double does not show in which
 * order, and in which parts, terms were added. */
#pragma once

#include <math.h>

/* The sum is high + low; high is what plain addition gives, also of infinities and NaN, which leave low undefined. */
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
