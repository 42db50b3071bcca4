/* The source of each row of a slot's state. The kernels of every device include this file. */
#pragma once

#include <stdint.h>

/* Returns where the state's row `row` comes from, when the last row in use is `last` of a sequence:
 * its row of x, or, negative, its row of the history less `rows`. */
static inline int64_t slot_source(int64_t row, int64_t rows, int64_t last) { return last + 1 - rows + row; }
