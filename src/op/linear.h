/* What op/linear.c and kernel/linear.c share. */
#ifndef SMELT_OP_LINEAR_H
#define SMELT_OP_LINEAR_H

#include <stdbool.h>

typedef struct LinearAttributes { bool wide; } LinearAttributes; /* y is WIDE, and so is its gradient */

#endif
