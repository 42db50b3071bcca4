/* Turns lifetimes into offsets. An activation is alive from its producer to its last reader; an
 * output may take the memory of the input that its node is the last to read (Op.in_place); a node's
 * scratch is alive during that node. Blocks are placed largest first, best fit: each into the
 * smallest gap between the blocks already placed whose lifetimes overlap its own, or above them.
 * The result is close to the floor, the most bytes alive at once, which the plan also reports. The
 * communication schedule places its receive buffers by the same function (layout/comm_schedule.c).
 * In a program of several parts, activations that one part leaves to another are placed in a slot
 * of the stash. All chunks use the same bytes of a slot. Also prints the program. Owns nothing that
 * outlives a call. */
#include <assert.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "graph/graph.h"
#include "graph/op.h"

enum { ALIGNMENT = 256 }; /* bytes; a multiple of the cache line of every GPU, so that blocks share no line */

static int64_t align(int64_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static int64_t tensor_bytes(const Graph *graph, TensorId tensor) { return align(graph_bytes(graph, tensor)); }

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
            if (!span_is_empty(a->life[i]) && !span_is_empty(b->life[j]) && a->life[i].first <= b->life[j].last &&
                b->life[j].first <= a->life[i].last)
                return true;
    return false;
}

/* Finds the best fit for `block` among the placed blocks that overlap it in time. */
static int64_t find_offset(const PlanBlock *block, PlanBlock *placed, int count, PlanBlock **overlapping) {
    int n = 0;
    for (int i = 0; i < count; i++)
        if (overlap(block, &placed[i])) overlapping[n++] = &placed[i];
    qsort(overlapping, n, sizeof *overlapping, lower_first);
    int64_t end = 0, best = -1, best_gap = INT64_MAX;
    for (int i = 0; i < n; i++) {
        int64_t gap = overlapping[i]->offset - end;
        if (gap >= block->bytes && gap < best_gap) {
            best = end;
            best_gap = gap;
        }
        int64_t block_end = overlapping[i]->offset + overlapping[i]->bytes;
        if (block_end > end) end = block_end;
    }
    return best >= 0 ? best : end;
}

int64_t plan_blocks(PlanBlock *blocks, int count) {
    SCOPED_FREE PlanBlock **overlapping = memory_allocate((count + 1) * sizeof *overlapping);
    int64_t most = 0;
    qsort(blocks, count, sizeof *blocks, larger_first);
    for (int i = 0; i < count; i++) {
        *blocks[i].target = blocks[i].offset = find_offset(&blocks[i], blocks, i, overlapping);
        int64_t end = blocks[i].offset + blocks[i].bytes;
        if (end > most) most = end;
    }
    return most;
}

static int64_t most_alive(const PlanBlock *blocks, int count, int nodes) {
    int64_t *change = memory_allocate((nodes + 2) * sizeof *change), alive = 0, most = 0;
    for (int i = 0; i < 2 * count; i++) {
        NodeSpan life = blocks[i / 2].life[i % 2];
        if (span_is_empty(life)) continue;
        change[life.first] += blocks[i / 2].bytes;
        change[life.last + 1] -= blocks[i / 2].bytes;
    }
    for (int i = 0; i <= nodes; i++) {
        alive += change[i];
        if (alive > most) most = alive;
    }
    free(change);
    return most;
}

/* Returns the input whose memory output 0 of a node takes (Op.in_place) if the node is its last
 * reader; otherwise TENSOR_NONE. */
static TensorId overwritten(const Graph *graph, int index, const int *last) {
    const Node *node = &graph->nodes[index];
    TensorId input = op_in_place_input(node), output = node->out[MAIN_OUTPUT];
    const Tensor *from = graph_get(graph, input), *to = graph_get(graph, output);
    bool planned =
        !from->elided && from->arena == ARENA_ACTIVATION && from->producer >= 0 && to->arena == ARENA_ACTIVATION && to->producer == index;
    bool free = input && planned && !from->keep && last[input] == (node->absorber ? node->absorber : index) &&
                tensor_bytes(graph, input) == tensor_bytes(graph, output);
    return free ? input : TENSOR_NONE;
}

/* The blocks of a graph while they are listed. The arrays except `blocks` are indexed by tensor. */
typedef struct PlanListing {
    PlanBlock *blocks;
    int count;
    int *last;                   /* last node that works on the tensor */
    int *block;                  /* index of the tensor's block */
    TensorId *source;            /* the tensor whose memory this one takes, or TENSOR_NONE */
    const HostedTensor **hosted; /* NULL: not in host memory between the passes */
} PlanListing;

/* Ends the latest span of a block. */
static void extend_life(PlanBlock *block, int end) {
    NodeSpan *life = span_is_empty(block->life[1]) ? &block->life[0] : &block->life[1];
    life->last = end;
}

/* Frees the block's memory while the tensor is in host memory. */
static void split_life(PlanBlock *block, const HostedTensor *hosted) {
    block->life[0].last = int_max(hosted->stowed - 1, hosted->forward_end);
    block->life[1] = (NodeSpan){hosted->fetch, hosted->last};
}

static void list_output(PlanListing *list, Graph *graph, int node, int index) {
    TensorId id = graph->nodes[node].out[index];
    Tensor *tensor = &graph->tensors[id];
    if (!id || tensor->elided || tensor->arena != ARENA_ACTIVATION || tensor->producer != node) return;
    int end = tensor->keep ? graph->node_count - 1 : list->last[id] > node ? list->last[id] : node;
    list->source[id] = index == 0 ? overwritten(graph, node, list->last) : TENSOR_NONE;
    list->block[id] = list->source[id] ? list->block[list->source[id]] : list->count++;
    PlanBlock *block = &list->blocks[list->block[id]];
    if (list->source[id]) extend_life(block, end);
    else *block = (PlanBlock){.bytes = tensor_bytes(graph, id), .life = {{node, end}, NEVER}, .target = &tensor->offset};
    if (list->hosted[id]) split_life(block, list->hosted[id]);
}

/* Lists one block per scratch and per activation. Activations that take each other's memory share
 * one block. */
static void list_blocks(PlanListing *list, Graph *graph, const Backend *backend, int64_t *workspace) {
    for (int i = 0; i < graph->node_count; i++) {
        int end = graph_node_end(graph, i);
        for (int j = 0; j < graph->nodes[i].inputs; j++)
            list->last[graph->nodes[i].in[j]] = int_max(end, list->last[graph->nodes[i].in[j]]);
        for (int j = 0; j < graph->nodes[i].outputs; j++)
            list->last[graph->nodes[i].out[j]] = int_max(end, list->last[graph->nodes[i].out[j]]);
    }
    for (int i = 0; i < graph->node_count; i++) {
        for (int j = 0; j < graph->nodes[i].outputs; j++) list_output(list, graph, i, j);
        int64_t bytes = align(op_workspace(backend, graph, &graph->nodes[i]));
        if (bytes > *workspace) *workspace = bytes;
        if (bytes)
            list->blocks[list->count++] =
                (PlanBlock){.bytes = bytes, .life = {{i, graph_node_end(graph, i)}, NEVER}, .target = &graph->nodes[i].workspace};
    }
}

/* -- The stash ----------------------------------------------------------------------------------------------------- */

/* Moves activations that a node of another part reads to the stash. */
static void find_stash(Graph *graph) {
    for (int i = 0; i < graph->node_count && graph->chunks; i++)
        for (int j = 0; j < graph->nodes[i].inputs; j++) {
            Tensor *tensor = &graph->tensors[graph->nodes[i].in[j]];
            if (tensor->arena == ARENA_ACTIVATION && graph->nodes[tensor->producer].part != graph->nodes[i].part)
                tensor->arena = ARENA_STASH;
        }
}

/* Lists the span during which a slot holds each tensor of the stash. A tensor without a producer is
 * received before the part that first reads it. A kept tensor lasts to the end of its part because
 * it is sent. A kept tensor without a producer lasts to the end of its chunk. The span is empty if
 * no node touches the tensor. */
static NodeSpan *list_lives(const Graph *graph) {
    NodeSpan *lives = memory_allocate(graph->tensor_count * sizeof *lives);
    for (int i = 0; i < graph->tensor_count; i++) lives[i] = (NodeSpan)NEVER;
    for (int i = 0; i < graph->node_count; i++) {
        const Node *node = &graph->nodes[i];
        int last = graph_node_end(graph, i);
        for (int j = 0; j < node->outputs; j++) lives[node->out[j]] = (NodeSpan){int_min(i, lives[node->out[j]].first), last};
        for (int j = 0; j < node->inputs; j++) {
            NodeSpan *life = &lives[node->in[j]];
            if (span_is_empty(*life)) life->first = graph_part_span(graph, node->part).first;
            life->last = int_max(last, life->last);
        }
    }
    for (int i = 1; i < graph->tensor_count; i++) {
        const Tensor *tensor = &graph->tensors[i];
        if (tensor->arena != ARENA_STASH || !tensor->keep || span_is_empty(lives[i])) continue;
        int part = graph->nodes[lives[i].first].part, chunk = graph_part_chunk(graph, part);
        for (int n = lives[i].first; n < graph->node_count; n++)
            if (tensor->producer < 0 ? graph_part_chunk(graph, graph->nodes[n].part) == chunk : graph->nodes[n].part == part)
                lives[i].last = int_max(n, lives[i].last);
    }
    return lives;
}

/* Returns the bytes of a slot. */
static int64_t place_stash(Graph *graph) {
    if (!graph->chunks) return 0;
    SCOPED_FREE PlanBlock *blocks = memory_allocate((graph->tensor_count + 1) * sizeof *blocks);
    SCOPED_FREE NodeSpan *lives = list_lives(graph);
    int64_t most = 0;
    for (int chunk = 0; chunk < graph->chunks; chunk++) {
        int count = 0;
        for (int i = 1; i < graph->tensor_count; i++) {
            Tensor *tensor = &graph->tensors[i];
            if (tensor->arena != ARENA_STASH || span_is_empty(lives[i])) continue;
            if (graph_part_chunk(graph, graph->nodes[lives[i].first].part) != chunk) continue;
            blocks[count++] = (PlanBlock){.bytes = tensor_bytes(graph, i), .life = {lives[i], NEVER}, .target = &tensor->offset};
        }
        most = int_max(most, plan_blocks(blocks, count));
    }
    return most;
}

void plan_set_slots(Plan *plan, int slots) {
    assert(plan->slots == 1);
    plan->slots = slots;
    plan->bytes[ARENA_INPUT] *= slots;
    plan->bytes[ARENA_HOST] *= slots;
    plan->bytes[ARENA_STASH] *= slots;
}

/* ------------------------------------------------------------------------------------------------------------------ */

static void place_activations(Graph *graph, const Backend *backend, Plan *plan) {
    PlanListing list = {.blocks = memory_allocate((graph->tensor_count + graph->node_count + 1) * sizeof *list.blocks),
        .last = memory_allocate(graph->tensor_count * sizeof *list.last),
        .block = memory_allocate(graph->tensor_count * sizeof *list.block),
        .source = memory_allocate(graph->tensor_count * sizeof *list.source),
        .hosted = memory_allocate(graph->tensor_count * sizeof *list.hosted)};
    for (int i = 0; i < graph->hosted_count; i++) list.hosted[graph->hosted[i].tensor] = &graph->hosted[i];
    list_blocks(&list, graph, backend, &plan->workspace);
    plan->activation_floor = most_alive(list.blocks, list.count, graph->node_count);
    plan->bytes[ARENA_ACTIVATION] = plan_blocks(list.blocks, list.count);
    for (int i = 0; i < graph->node_count; i++) { /* a source is produced before the output that takes its memory */
        TensorId first = graph->nodes[i].out[MAIN_OUTPUT];
        if (first && list.source[first]) graph->tensors[first].offset = graph->tensors[list.source[first]].offset;
    }
    free(list.blocks);
    free(list.last);
    free(list.block);
    free(list.source);
    free(list.hosted);
}

Plan graph_plan_lasting(Graph *graph) {
    Plan plan = {.slots = 1};
    bool backward = false;
    for (int i = 1; i < graph->tensor_count; i++) {
        Tensor *tensor = &graph->tensors[i];
        backward |= tensor->arena == ARENA_GRADIENT;
        if (tensor->arena == ARENA_INPUT || tensor->arena == ARENA_CONSTANT || tensor->arena == ARENA_METRIC ||
            tensor->arena == ARENA_STATE || tensor->arena == ARENA_QUANTIZED || tensor->arena == ARENA_HOST) {
            tensor->offset = plan.bytes[tensor->arena];
            plan.bytes[tensor->arena] += tensor_bytes(graph, i);
        }
    }
    bool copies = graph->precision == PRECISION_BF16; /* the weights have an arena of their own */
    plan.bytes[ARENA_MASTER] = copies ? graph->trained_bytes : graph->stored_bytes;
    plan.bytes[ARENA_WEIGHT] = copies ? precision_weight_offset(graph->precision, graph->stored_bytes) : 0;
    plan.bytes[ARENA_GRADIENT] = backward ? graph->trained_bytes : 0;
    return plan;
}

Plan graph_plan(Graph *graph, const Backend *backend) {
    Plan plan = graph_plan_lasting(graph);
    op_absorb(backend, graph);
    find_stash(graph);
    plan.bytes[ARENA_STASH] = place_stash(graph);
    place_activations(graph, backend, &plan);
    for (int i = 0; i < graph->node_count; i++) {
        const Node *node = &graph->nodes[i];
        Cost cost = op_cost(graph, node);
        if (op_table[node->op]->once) continue;
        if (node->clone_of < 0) plan.flops += cost.flops;
        plan.traffic += cost.bytes;
    }
    graph_check(graph, backend, &plan);
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
        Cost cost = op_cost(graph, node);
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
