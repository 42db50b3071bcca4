/* The table of operations that have a GPU form, from kernel/list.h. */
#include "kernel/launch.h"

#define KERNEL_LIST(name, scratch) GPU_OP(name);
#include "kernel/list.h"
#undef KERNEL_LIST

const OpKernel gpu_kernels[OP_COUNT] = {
#define KERNEL_LIST(name, scratch) [OP_##name] = gpu_##name,
#include "kernel/list.h"
#undef KERNEL_LIST
};

/* Declares the rule of an operation that needs scratch. */
#define SCRATCH_0(name)
#define SCRATCH_1(name) GPU_SCRATCH(name);
#define KERNEL_LIST(name, scratch) SCRATCH_##scratch(name)
#include "kernel/list.h"
#undef KERNEL_LIST
#undef SCRATCH_1

#define SCRATCH_1(name) [OP_##name] = gpu_scratch_##name,
static int64_t (*const scratch_rules[OP_COUNT])(const Graph *graph, const Node *node) = {
#define KERNEL_LIST(name, scratch) SCRATCH_##scratch(name)
#include "kernel/list.h"
#undef KERNEL_LIST
};

int64_t gpu_workspace(const Graph *graph, const Node *node) { return scratch_rules[node->op] ? scratch_rules[node->op](graph, node) : 0; }
