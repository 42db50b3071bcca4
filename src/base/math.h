/* Integer arithmetic that <math.h> lacks. Arguments are not negative, and divisors are positive. */
#pragma once

#include <stdint.h>

static inline int64_t int_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t int_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
/* Returns the smallest multiple of `unit` that is at least a. */
static inline int64_t round_up(int64_t a, int64_t unit) { return divide_up(a, unit) * unit; }
