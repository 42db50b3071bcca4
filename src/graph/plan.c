/* Lifetimes to offsets. Every activation lives from its producer to its last reader; a node's scratch lives for that node.
 * Blocks are placed largest first, each into the smallest gap that it fits between the blocks already placed whose
 * lifetimes overlap its own, or on top. The result is close to the floor (most bytes alive at once), which is printed too.
 * What travels between ranks is placed in the same way (layout/timetable.c). */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "graph/graph.h"
#include "op/op.h"

enum { ALIGNMENT = 256 }; /* a line of a GPU's memory, of which each block has whole ones */

static int64_t align(int64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static int64_t tensor_bytes(const Graph *graph, int tensor) {
    return align(graph_elements(graph, tensor) * (int64_t)precision_bytes(graph->precision, graph->tensors[tensor].type));
}

static int larger_first(const void *a, const void *b) {
    const PlanBlock *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return (x->life[0].first > y->life[0].first) - (x->life[0].first < y->life[0].first);
}

static int lower_first(const void *a, const void *b) {
    const PlanBlock *x = *(PlanBlock *const *)a, *y = *(PlanBlock *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static bool overlap(const PlanBlock *a, const PlanBlock *b) {
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++)
            if (!span_is_empty(a->life[i]) && !span_is_empty(b->life[j]) && a->life[i].first <= b->life[j].last && b->life[j].first <= a->life[i].last)
                return true;
    return false;
}

/* Best fit for `block` among the placed ones that it overlaps in time. */
static int64_t find_offset(const PlanBlock *block, PlanBlock *placed, int count, PlanBlock **overlapping) {
    int n = 0;
    for (int i = 0; i < count; i++)
        if (overlap(block, &placed[i])) overlapping[n++] = &placed[i];
    qsort(overlapping, n, sizeof *overlapping, lower_first);
    int64_t end = 0, best = -1, best_gap = INT64_MAX;
    for (int i = 0; i < n; i++) {
        int64_t gap = overlapping[i]->offset - end;
        if (gap >= block->bytes && gap < best_gap) { best = end; best_gap = gap; }
        int64_t block_end = overlapping[i]->offset + overlapping[i]->bytes;
        if (block_end > end) end = block_end;
    }
    return best >= 0 ? best : end;
}

int64_t plan_blocks(PlanBlock *blocks, int count) {
    PlanBlock **overlapping = memory_allocate((count + 1) * sizeof *overlapping);
    int64_t most = 0;
    qsort(blocks, count, sizeof *blocks, larger_first);
    for (int i = 0; i < count; i++) {
        *blocks[i].target = blocks[i].offset = find_offset(&blocks[i], blocks, i, overlapping);
        int64_t end = blocks[i].offset + blocks[i].bytes;
        if (end > most) most = end;
    }
    free(overlapping);
    return most;
}

static int64_t most_alive(const PlanBlock *blocks, int count, int nodes) {
    int64_t *change = memory_allocate((nodes + 2) * sizeof *change), alive = 0, most = 0;
    for (int i = 0; i < count; i++) {
        change[blocks[i].life[0].first] += blocks[i].bytes;
        change[blocks[i].life[0].last + 1] -= blocks[i].bytes;
    }
    for (int i = 0; i <= nodes; i++) {
        alive += change[i];
        if (alive > most) most = alive;
    }
    free(change);
    return most;
}

/* One block per activation tensor and per scratch; offsets are written through `target`. */
static int collect_blocks(Graph *graph, const Backend *backend, PlanBlock *blocks, int64_t *workspace) {
    int *last = memory_allocate(graph->tensor_count * sizeof *last), count = 0;
    for (int i = 0; i < graph->node_count; i++)
        for (int j = 0; j < graph->nodes[i].inputs; j++) last[graph->nodes[i].in[j]] = i;
    for (int i = 1; i < graph->tensor_count; i++) {
        Tensor *tensor = &graph->tensors[i];
        if (tensor->arena != ARENA_ACTIVATION || tensor->producer < 0) continue;
        int end = tensor->keep ? graph->node_count - 1 : last[i] > tensor->producer ? last[i] : tensor->producer;
        blocks[count++] = (PlanBlock){.bytes = tensor_bytes(graph, i), .life = {{tensor->producer, end}, NEVER}, .target = &tensor->offset};
    }
    for (int i = 0; i < graph->node_count; i++) {
        int64_t bytes = align(backend->workspace(graph, &graph->nodes[i]));
        if (bytes > *workspace) *workspace = bytes;
        if (bytes) blocks[count++] = (PlanBlock){.bytes = bytes, .life = {{i, i}, NEVER}, .target = &graph->nodes[i].workspace};
    }
    free(last);
    return count;
}

static void place_activations(Graph *graph, const Backend *backend, Plan *plan) {
    PlanBlock *blocks = memory_allocate((graph->tensor_count + graph->node_count + 1) * sizeof *blocks);
    int count = collect_blocks(graph, backend, blocks, &plan->workspace);
    plan->activation_floor = most_alive(blocks, count, graph->node_count);
    plan->bytes[ARENA_ACTIVATION] = plan_blocks(blocks, count);
    free(blocks);
}

Plan graph_plan(Graph *graph, const Backend *backend) {
    Plan plan = {0};
    bool backward = false;
    for (int i = 0; i < graph->node_count; i++) {
        const Node *node = &graph->nodes[i];
        const Op *op = op_table[node->op];
        Cost cost = op->cost ? op->cost(graph, node) : (Cost){.bytes = op_tensor_bytes(graph, node)};
        if (op->once) continue;
        if (node->clone_of < 0) plan.flops += cost.flops;
        plan.traffic += cost.bytes;
    }
    for (int i = 1; i < graph->tensor_count; i++) {
        Tensor *tensor = &graph->tensors[i];
        backward |= tensor->arena == ARENA_GRADIENT;
        if (tensor->arena == ARENA_INPUT || tensor->arena == ARENA_CONSTANT || tensor->arena == ARENA_METRIC || tensor->arena == ARENA_STATE) {
            tensor->offset = plan.bytes[tensor->arena];
            plan.bytes[tensor->arena] += tensor_bytes(graph, i);
        }
    }
    int64_t wide = precision_bytes(graph->precision, TYPE_WIDE), compute = precision_bytes(graph->precision, TYPE_COMPUTE);
    plan.bytes[ARENA_MASTER] = graph->parameter_extent * wide;
    plan.bytes[ARENA_WEIGHT] = compute == wide ? 0 : graph->parameter_extent * compute;
    plan.bytes[ARENA_GRADIENT] = backward ? graph->parameter_extent * wide : 0;
    place_activations(graph, backend, &plan);
    return plan;
}

static void print_tensor(const Graph *graph, TensorId id, FILE *file) {
    const Tensor *tensor = graph_get(graph, id);
    if (id == TENSOR_NONE) return;
    fprintf(file, " %s[", tensor->name);
    for (int i = 0; i < tensor->rank; i++) fprintf(file, "%s%lld", i ? "x" : "", (long long)tensor->shape[i]);
    fprintf(file, "]");
    if (tensor->arena == ARENA_ACTIVATION) fprintf(file, "@%lld", (long long)tensor->offset);
}

void graph_print(const Graph *graph, FILE *file) {
    for (int i = 0; i < graph->node_count; i++) {
        const Node *node = &graph->nodes[i];
        const Op *op = op_table[node->op];
        Cost cost = op->cost ? op->cost(graph, node) : (Cost){.bytes = op_tensor_bytes(graph, node)};
        char flops[32], bytes[32];
        log_format_count(cost.flops, flops);
        log_format_bytes(cost.bytes, bytes);
        const char *pass = node->clone_of >= 0 ? "again" : node->backward ? "backward" : op->once ? "once" : "forward";
        fprintf(file, "%5d %-8s %-26s %8s flop %11s  ", i, pass, op->name, flops, bytes);
        for (int j = 0; j < node->inputs; j++) print_tensor(graph, node->in[j], file);
        fprintf(file, "  ->");
        for (int j = 0; j < node->outputs; j++) print_tensor(graph, node->out[j], file);
        fprintf(file, "\n");
    }
}
