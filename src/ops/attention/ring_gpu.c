/* Ring attention with the kernels of GPUs. */
#include "backend/gpu/gpu.h"

#ifndef GPU_DEVICE

#include "backend/gpu/kernel_launch.h"
#include "ops/attention/ring.h"

static const RingKernels by = {gpu_kernels, sizeof(bf16), sizeof(float)};

static int64_t ring_gpu_workspace(const Graph *graph, const Node *node) { return ring_workspace(graph, node, &by); }
static int64_t ring_grad_gpu_workspace(const Graph *graph, const Node *node) { return ring_gradient_workspace(graph, node, &by); }

static void rehearse_gpu(const OpCall *call) { ring_rehearse(call, &by); }
static void rehearse_grad_gpu(const OpCall *call) { ring_rehearse_gradient(call, &by); }

GPU_OP(attention_ring, ring_gpu_workspace, .rehearse = rehearse_gpu) { ring_attend(call, &by); }
GPU_OP(attention_ring_grad, ring_grad_gpu_workspace, .rehearse = rehearse_grad_gpu) { ring_gradient(call, &by); }

#endif
