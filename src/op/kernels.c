/* The CPU kernels of one variant as an array in the order of OpId. Compiled once per variant, like the kernels. */
#include "op/kernel.h"

#define OP(name) void KERNEL(name)(const OpCall *call);
#include "op/list.h"
#undef OP

extern const OpKernel KERNEL(table)[OP_COUNT];
const OpKernel KERNEL(table)[OP_COUNT] = {
#define OP(name) KERNEL(name),
#include "op/list.h"
#undef OP
};
