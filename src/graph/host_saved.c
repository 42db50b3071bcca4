/* Chooses the activations that wait in host memory for the backward pass, and when they are copied.
 * With recompute=block these are the inputs of the layers. They are grouped by the layer whose
 * backward pass reads them. The copy of a group to the host starts when its tensors are produced and
 * may take until the next group is produced, so that it overlaps a layer's forward pass; two groups
 * share the device memory. The copy back starts when the backward pass begins to read the group that
 * it reads before, and overlaps a layer's backward pass. The group that the backward pass reads
 * first stays in device memory. The executor makes the copies (execute.c). Owns nothing; the graph
 * owns the list. */
#include <assert.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "graph/graph.h"
#include "graph/op.h"

enum { HOSTED_ALIGNMENT = 256, SMALL_PART = 16 }; /* a tensor below 1/16 of the largest one is not worth a copy */

/* The nodes that read a tensor. */
typedef struct Readers { int forward_end, first, last; } Readers; /* backward: first and last; INT32_MAX and -1: none */

static Readers *find_readers(const Graph *graph) {
    Readers *readers = memory_allocate(graph->tensor_count * sizeof *readers);
    for (int i = 0; i < graph->tensor_count; i++) readers[i] = (Readers){-1, INT32_MAX, -1};
    for (int i = 0; i < graph->node_count; i++)
        for (int j = 0; j < graph->nodes[i].inputs; j++) {
            Readers *of = &readers[graph->nodes[i].in[j]];
            int end = graph_node_end(graph, i);
            if (!graph->nodes[i].backward) of->forward_end = int_max(of->forward_end, end);
            else *of = (Readers){of->forward_end, int_min(of->first, i), int_max(of->last, end)};
        }
    return readers;
}

static bool may_wait(const Graph *graph, TensorId id, const Readers *readers) {
    const Tensor *tensor = graph_get(graph, id);
    return tensor->arena == ARENA_ACTIVATION && tensor->producer >= 0 && !graph->nodes[tensor->producer].backward && !tensor->keep &&
           !tensor->elided && readers->last >= 0 && !op_table[graph->nodes[tensor->producer].op]->once;
}

/* Returns the node before which the tensor is complete. */
static int node_after_producer(const Graph *graph, TensorId id) {
    int producer = graph_get(graph, id)->producer, end = graph_node_end(graph, producer);
    return graph_communicates(graph, producer) ? end : end + 1;
}

static int earlier_fetch(const void *a, const void *b) {
    const HostedTensor *x = a, *y = b;
    if (x->fetched != y->fetched) return x->fetched < y->fetched ? -1 : 1;
    return (x->tensor > y->tensor) - (x->tensor < y->tensor);
}

/* Lists the tensors that may wait, by their first reader in the backward pass. */
static void list_waiting(Graph *graph) {
    SCOPED_FREE Readers *readers = find_readers(graph);
    int64_t largest = 0;
    for (int i = 1; i < graph->tensor_count; i++)
        if (may_wait(graph, i, &readers[i])) largest = int_max(largest, graph_bytes(graph, i));
    for (int i = 1; i < graph->tensor_count; i++) {
        if (!may_wait(graph, i, &readers[i]) || graph_bytes(graph, i) < largest / SMALL_PART) continue;
        HostedTensor hosted = {.tensor = i,
            .stow = node_after_producer(graph, i),
            .forward_end = readers[i].forward_end,
            .fetched = readers[i].first,
            .last = readers[i].last};
        array_append(graph->hosted, graph->hosted_count, hosted);
    }
    qsort(graph->hosted, graph->hosted_count, sizeof *graph->hosted, earlier_fetch);
}

/* Returns the end of the group that begins at `first`: tensors that one layer's backward pass reads first. */
static int end_of_group(const Graph *graph, int first) {
    int end = first, layer = graph->nodes[graph->hosted[first].fetched].layer;
    while (end < graph->hosted_count && graph->nodes[graph->hosted[end].fetched].layer == layer) end++;
    return end;
}

/* Sets the points of each group from those of the group that the backward pass reads before it,
 * and removes the first group. */
static void set_points(Graph *graph) {
    int first = 0, before_stow = 0, before_fetched = 0, kept = 0;
    for (int end; first < graph->hosted_count; first = end) {
        end = end_of_group(graph, first);
        int stow = INT32_MAX, fetched = graph->hosted[first].fetched, last_stow = 0;
        for (int i = first; i < end; i++) {
            stow = int_min(stow, graph->hosted[i].stow);
            last_stow = int_max(last_stow, graph->hosted[i].stow);
        }
        for (int i = first; i < end; i++) {
            HostedTensor hosted = graph->hosted[i];
            hosted.stowed = int_max(before_stow, last_stow + 1);
            hosted.fetched = fetched;
            hosted.fetch = before_fetched;
            if (first > 0 && hosted.stowed < hosted.fetch) graph->hosted[kept++] = hosted;
        }
        before_stow = stow;
        before_fetched = fetched;
    }
    graph->hosted_count = kept;
}

int64_t graph_host_saved(Graph *graph) {
    int64_t bytes = 0;
    assert(graph->training && !graph->chunks && !graph->hosted);
    list_waiting(graph);
    set_points(graph);
    for (int i = 0; i < graph->hosted_count; i++) {
        graph->hosted[i].offset = bytes;
        bytes += round_up(graph_bytes(graph, graph->hosted[i].tensor), HOSTED_ALIGNMENT);
    }
    return bytes;
}
