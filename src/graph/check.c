/* Asserts the invariants of a planned graph, which graph.h states above Node, Tensor and Plan.
 * Called by graph_plan; owns nothing. Its time grows with the nodes times the tensors alive at
 * once: a few milliseconds for a large model. */
#include <assert.h>
#include <stdlib.h>

#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "graph/graph.h"
#include "graph/op.h"

/* A range of the activation arena that is in use up to node `last`. */
typedef struct Extent {
    int64_t begin, end;
    int last;
} Extent;

static void check_order(const Graph *graph, int index) {
    const Node *node = &graph->nodes[index];
    assert(op_table[node->op]->communicates == (op_table[node->op]->traffic != NULL));
    for (int i = 0; i < node->inputs; i++) {
        const Tensor *tensor = graph_get(graph, node->in[i]);
        bool made_here = tensor->arena == ARENA_ACTIVATION || tensor->arena == ARENA_CONSTANT;
        assert(node->in[i] == TENSOR_NONE || !made_here || (tensor->producer >= 0 && tensor->producer < index));
        (void)made_here;
    }
    for (int i = 0; i < node->outputs; i++) {
        bool added_to = operand_in(op_table[node->op]->adds_to, i);
        assert(node->out[i] == TENSOR_NONE || added_to || graph_get(graph, node->out[i])->producer == index);
        (void)added_to;
    }
}

/* Skips parameters and their gradients: the layout places them, not the planner. */
static void check_tensor_place(const Graph *graph, const Plan *plan, TensorId id) {
    const Tensor *tensor = graph_get(graph, id);
    if (id == TENSOR_NONE || tensor->elided || tensor->arena == ARENA_WEIGHT || tensor->arena == ARENA_MASTER ||
        tensor->arena == ARENA_GRADIENT)
        return;
    int64_t bytes = graph_bytes(graph, id);
    assert(tensor->offset >= 0 && tensor->offset + bytes <= plan->bytes[tensor->arena]);
    (void)plan, (void)bytes;
}

/* Adds the memory that node `index` starts to use and drops the memory that no node uses any
 * more. */
static int add_extent(Extent *alive, int count, int index, Extent extent) {
    int kept = 0;
    for (int i = 0; i < count; i++)
        if (alive[i].last >= index) alive[kept++] = alive[i];
    for (int i = 0; i < kept; i++) assert(extent.end <= alive[i].begin || alive[i].end <= extent.begin);
    alive[kept] = extent;
    return kept + 1;
}

/* Finds the last node that needs the memory of each tensor. If node i takes the memory in place,
 * this is node i - 1. */
static void find_last_uses(const Graph *graph, int *last) {
    for (int i = 0; i < graph->node_count; i++) {
        const Node *node = &graph->nodes[i];
        int end = graph_node_end(graph, i);
        for (int j = 0; j < node->inputs; j++) last[node->in[j]] = int_max(end, last[node->in[j]]);
        for (int j = 0; j < node->outputs; j++) last[node->out[j]] = int_max(end, last[node->out[j]]);
        if (op_in_place(graph, node)) last[op_in_place_input(node)] = i - 1;
    }
    for (int i = 1; i < graph->tensor_count; i++)
        if (graph->tensors[i].keep) last[i] = graph->node_count;
}

/* Returns the memory of a tensor up to node `last`. */
static Extent extent_of(const Graph *graph, TensorId id, int last) {
    int64_t begin = graph_get(graph, id)->offset;
    return (Extent){begin, begin + graph_bytes(graph, id), last};
}

/* Adds the memory of tensors that return from host memory before node `index`, with their last uses. */
static int add_fetched(const Graph *graph, Extent *alive, int count, int index, const int *last_fetched) {
    for (int i = 0; i < graph->hosted_count; i++)
        if (graph->hosted[i].fetch == index)
            count = add_extent(alive, count, index, extent_of(graph, graph->hosted[i].tensor, last_fetched[i]));
    return count;
}

/* Ends the first span of tensors that wait in host memory; returns the ends of the second spans. */
static int *split_last_uses(const Graph *graph, int *last) {
    int *last_fetched = memory_allocate((graph->hosted_count + 1) * sizeof *last_fetched);
    for (int i = 0; i < graph->hosted_count; i++) {
        const HostedTensor *hosted = &graph->hosted[i];
        assert(hosted->stow < hosted->stowed && hosted->stowed < hosted->fetch && hosted->fetch < hosted->fetched);
        last_fetched[i] = last[hosted->tensor];
        last[hosted->tensor] = int_max(hosted->stowed - 1, hosted->forward_end);
    }
    return last_fetched;
}

void graph_check(const Graph *graph, const Backend *backend, const Plan *plan) {
    SCOPED_FREE int *last = memory_allocate(graph->tensor_count * sizeof *last);
    int alive_count = 0;
    SCOPED_FREE Extent *alive = memory_allocate((graph->tensor_count + 1) * sizeof *alive);
    find_last_uses(graph, last);
    SCOPED_FREE int *last_fetched = split_last_uses(graph, last);
    for (int i = 0; i < graph->node_count; i++) {
        alive_count = add_fetched(graph, alive, alive_count, i, last_fetched);
        const Node *node = &graph->nodes[i];
        int64_t workspace = op_workspace(backend, graph, node);
        check_order(graph, i);
        for (int j = 0; j < node->inputs; j++) check_tensor_place(graph, plan, node->in[j]);
        for (int j = 0; j < node->outputs; j++) {
            const Tensor *tensor = graph_get(graph, node->out[j]);
            check_tensor_place(graph, plan, node->out[j]);
            if (tensor->elided || tensor->arena != ARENA_ACTIVATION || tensor->producer != i) continue;
            alive_count = add_extent(alive, alive_count, i, extent_of(graph, node->out[j], last[node->out[j]]));
        }
        assert(node->workspace + workspace <= plan->bytes[ARENA_ACTIVATION]);
        if (workspace)
            alive_count =
                add_extent(alive, alive_count, i, (Extent){node->workspace, node->workspace + workspace, graph_node_end(graph, i)});
    }
}
