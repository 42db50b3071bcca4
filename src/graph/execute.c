/* Replaying a planned graph. All pointers are bound when the executor is made, so a run is a loop over kernel calls.
 * The executor owns the arenas that were not handed to it. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "graph/graph.h"
#include "op/op.h"

struct Executor {
    const Graph *graph;
    void *arena[ARENA_COUNT];
    size_t owned_bytes[ARENA_COUNT]; /* 0 where shared or aliased */
    int64_t bytes[ARENA_COUNT];
    OpCall *calls;
    const OpKernel *kernels;
};

void *executor_arena(const Executor *executor, Arena arena) { return executor->arena[arena]; }

void *executor_tensor(const Executor *executor, TensorId id) {
    const Tensor *tensor = graph_get(executor->graph, id);
    if (id == TENSOR_NONE) return NULL;
    bool elements = tensor->arena == ARENA_WEIGHT || tensor->arena == ARENA_MASTER || tensor->arena == ARENA_GRADIENT;
    size_t unit = elements ? precision_bytes(executor->graph->precision, tensor->type) : 1;
    return (char *)executor->arena[tensor->arena] + tensor->offset * unit;
}

static void bind(Executor *executor) {
    const Graph *graph = executor->graph;
    for (int i = 0; i < graph->node_count; i++) {
        const Node *node = &graph->nodes[i];
        OpCall *call = &executor->calls[i];
        for (int j = 0; j < node->inputs; j++) {
            call->in[j] = executor_tensor(executor, node->in[j]);
            if (node->in[j]) memcpy(call->in_shape[j], graph_get(graph, node->in[j])->shape, sizeof call->in_shape[j]);
        }
        for (int j = 0; j < node->outputs; j++) {
            call->out[j] = executor_tensor(executor, node->out[j]);
            if (node->out[j]) memcpy(call->out_shape[j], graph_get(graph, node->out[j])->shape, sizeof call->out_shape[j]);
        }
        call->attributes = node->attributes;
        call->workspace = (char *)executor->arena[ARENA_ACTIVATION] + node->workspace;
    }
}

Executor *executor_create(const Graph *graph, const Plan *plan, const OpKernel *kernels, void *const *shared, Error *error) {
    Executor *executor = memory_allocate(sizeof *executor);
    executor->graph = graph;
    executor->kernels = kernels;
    for (int i = 0; i < ARENA_COUNT; i++) {
        executor->bytes[i] = plan->bytes[i];
        if (shared && shared[i]) {
            executor->arena[i] = shared[i];
        } else if (plan->bytes[i]) {
            executor->arena[i] = memory_map(plan->bytes[i], error);
            if (!executor->arena[i]) {
                error_context(error, "the arena of %s", arena_name(i));
                executor_free(executor);
                return NULL;
            }
            executor->owned_bytes[i] = plan->bytes[i];
        }
    }
    if (!executor->arena[ARENA_WEIGHT]) executor->arena[ARENA_WEIGHT] = executor->arena[ARENA_MASTER];
    executor->calls = memory_allocate((graph->node_count + 1) * sizeof *executor->calls);
    bind(executor);
    for (int i = 0; i < graph->node_count; i++)
        if (op_table[graph->nodes[i].op]->once) kernels[graph->nodes[i].op](&executor->calls[i]);
    return executor;
}

void executor_free(Executor *executor) {
    if (!executor) return;
    for (int i = 0; i < ARENA_COUNT; i++)
        if (executor->owned_bytes[i]) memory_unmap(executor->arena[i], executor->owned_bytes[i]);
    free(executor->calls);
    free(executor);
}

void executor_run(Executor *executor) { executor_run_hooked(executor, NULL, NULL); }

int executor_run_hooked(Executor *executor, ExecutorHook hook, void *context) {
    const Graph *graph = executor->graph;
    for (int i = 0; i < graph->node_count; i++) {
        if (op_table[graph->nodes[i].op]->once) continue;
        double start = hook ? log_seconds() : 0;
        executor->kernels[graph->nodes[i].op](&executor->calls[i]);
        if (hook && !hook(context, graph, i, log_seconds() - start)) return i;
    }
    return -1;
}

void executor_zero(Executor *executor) {
    for (Arena arena = ARENA_GRADIENT; arena <= ARENA_METRIC; arena++) {
        char *start = executor->arena[arena];
        int64_t bytes = executor->bytes[arena];
#pragma omp parallel for schedule(static)
        for (int64_t at = 0; at < bytes; at += 1 << 20) memset(start + at, 0, bytes - at < 1 << 20 ? bytes - at : 1 << 20);
    }
}
