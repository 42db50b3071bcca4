/* The CPU kernels of one variant in the order of OpId, for backend/backend.c. Compiled once per variant. */
#include "backend/cpu/kernel.h"

#define OP(name) extern const OpKernel KERNEL(name);
#include "graph/op_list.h"
#undef OP

extern const OpKernel *const KERNEL(table)[OP_COUNT];
const OpKernel *const KERNEL(table)[OP_COUNT] = {
#define OP(name) &KERNEL(name),
#include "graph/op_list.h"
#undef OP
};
