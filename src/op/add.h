/* What add knows of its tensors, for its CPU and GPU forms. */
#ifndef SMELT_OP_ADD_H
#define SMELT_OP_ADD_H

#include <stdbool.h>

typedef struct AddAttributes { bool wide; } AddAttributes; /* WIDE tensors, or COMPUTE ones */

#endif
