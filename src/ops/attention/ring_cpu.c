/* Ring attention with the kernels of this variant. */
#include "backend/cpu/kernel.h"
#include "ops/attention/ring.h"

extern const OpKernel *const KERNEL(table)[OP_COUNT];
static const RingKernels by = {KERNEL(table), sizeof(T), sizeof(W)};

static int64_t ring_cpu_workspace(const Graph *graph, const Node *node) { return ring_workspace(graph, node, &by); }
static int64_t ring_grad_cpu_workspace(const Graph *graph, const Node *node) { return ring_gradient_workspace(graph, node, &by); }

static void rehearse_cpu(const OpCall *call) { ring_rehearse(call, &by); }
static void rehearse_grad_cpu(const OpCall *call) { ring_rehearse_gradient(call, &by); }

CPU_OP(attention_ring, ring_cpu_workspace, .rehearse = rehearse_cpu) { ring_attend(call, &by); }
CPU_OP(attention_ring_grad, ring_grad_cpu_workspace, .rehearse = rehearse_grad_cpu) { ring_gradient(call, &by); }
