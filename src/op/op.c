/* The table of operations, the choice of kernels for a device, and what the host halves share. */
#include "op/op.h"

#include <string.h>

#include "kernel/launch.h"
#include "op/kernel.h"

#define OP(name) extern const Op op_rule_##name;
#include "op/list.h"
#undef OP

const Op *const op_table[OP_COUNT] = {
#define OP(name) &op_rule_##name,
#include "op/list.h"
#undef OP
};

extern const OpKernel kernel_table_generic_fp64[], kernel_table_generic_fp32[], kernel_table_generic_bf16[];
#ifdef __x86_64__
extern const OpKernel kernel_table_avx2_fp32[], kernel_table_avx2_bf16[];
extern const OpKernel kernel_table_avx512_fp32[], kernel_table_avx512_bf16[];
#endif

static const OpKernel *cpu_kernels(Precision precision, const char *isa) {
    if (precision == PRECISION_FP64) return kernel_table_generic_fp64;
    bool bf16 = precision_is_bf16(precision), any = isa == NULL || isa[0] == '\0';
    (void)any;
#ifdef __x86_64__
    if ((any || !strcmp(isa, "avx512")) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return bf16 ? kernel_table_avx512_bf16 : kernel_table_avx512_fp32;
    if ((any || !strcmp(isa, "avx2")) && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi2"))
        return bf16 ? kernel_table_avx2_bf16 : kernel_table_avx2_fp32;
#endif
    return bf16 ? kernel_table_generic_bf16 : kernel_table_generic_fp32;
}

static int64_t cpu_workspace(const Graph *graph, const Node *node) {
    return op_table[node->op]->workspace ? op_table[node->op]->workspace(graph, node) : 0;
}

bool op_backend(Backend *backend, Device *device, Precision precision, const char *isa, Error *error) {
    *backend = (Backend){.device = device, .kernels = gpu_kernels, .workspace = gpu_workspace};
    if (!device_is_gpu(device)) *backend = (Backend){.device = device, .kernels = cpu_kernels(precision, isa), .workspace = cpu_workspace};
    else if (!precision_is_bf16(precision)) return error_set(error, ERROR_USAGE, "GPUs compute in bf16: give precision=bf16 or pure_bf16, or device=cpu");
    return true;
}

Backend op_cpu_backend(Precision precision) {
    return (Backend){.device = device_cpu(), .kernels = cpu_kernels(precision, ""), .workspace = cpu_workspace};
}

bool op_in_place(const Graph *graph, const Node *node) {
    int index = op_table[node->op]->in_place - 1;
    if (index < 0 || !node->in[index] || !node->out[0]) return false;
    const Tensor *from = graph_get(graph, node->in[index]), *to = graph_get(graph, node->out[0]);
    return from->arena == ARENA_ACTIVATION && to->arena == ARENA_ACTIVATION && to->offset >= 0 && from->offset == to->offset;
}

static double tensor_bytes(const Graph *graph, TensorId tensor) {
    if (tensor == TENSOR_NONE) return 0;
    return (double)graph_elements(graph, tensor) * precision_bytes(graph->precision, graph_get(graph, tensor)->type);
}

double op_tensor_bytes(const Graph *graph, const Node *node) {
    double bytes = 0;
    for (int i = 0; i < node->inputs; i++) bytes += tensor_bytes(graph, node->in[i]);
    for (int i = 0; i < node->outputs; i++)
        bytes += tensor_bytes(graph, node->out[i]) * (op_table[node->op]->adds_to >> i & 1 ? 2 : 1);
    return bytes;
}

int64_t op_partials_bytes(const Graph *graph, int64_t rows, int64_t columns) {
    return kernel_blocks(rows) * columns * (int64_t)precision_bytes(graph->precision, TYPE_WIDE);
}
