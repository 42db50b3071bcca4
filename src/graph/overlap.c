/* Overlaps collectives of the backward pass with weight gradients, which no node of the program
 * waits for. A node that only adds to weight gradients is held back until the program would wait
 * for a collective. Then the held node whose time is nearest to the wait runs. Called by
 * graph_differentiate; owns nothing that outlives the call.
 *
 * Times are estimates at the rates of a GPU and its links. They decide only the order of nodes. The
 * terms of each gradient keep their order, so bits do not depend on the rates.
 *
 * All ranks must reduce gradient buckets in the same order. Programs of AXES_TENSOR ranks may
 * differ in parameters that are not cut over these ranks (ZAYA1's values), so a gradient that is
 * summed over AXES_TENSOR is never held back. Times are integer nanoseconds: the difference of two
 * times then does not depend on earlier times, which may differ by rank (for example for an uneven
 * shard of the vocabulary). */
#include <stdlib.h>
#include <string.h>

#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "graph/graph_internal.h"
#include "graph/op.h"

/* LINK_BYTES: link bandwidth in bytes per nanosecond. LATENCY: nanoseconds that each collective
 * takes in addition. */
enum { LINK_BYTES = 300, LATENCY = 20 * 1000 };
/* Maximum number of held nodes. Each one keeps its operands alive. */
enum { MOST_HELD = 6 };
/* If the wait is shorter than LONG_WAIT nanoseconds, a node that takes more than MOST_WAITS times
 * the wait stays held for a longer wait. */
enum { LONG_WAIT = 100 * 1000, MOST_WAITS = 4 };

typedef struct Held {
    Node node;
    int64_t time;
} Held;

typedef struct OverlapOrder {
    Graph *graph;
    Held held[MOST_HELD]; /* in program order */
    int count;
    int64_t now, links_free; /* nanoseconds */
    int64_t *ready;          /* by tensor: the time at which its collective ends; 0: no collective makes it */
} OverlapOrder;

/* -- Times --------------------------------------------------------------------------------------------------------- */

/* Returns the time of the bytes that the node sends; 0: it sends none. */
static int64_t link_time(const Graph *graph, const Node *node) {
    const Op *op = op_table[node->op];
    if (!op->communicates) return 0;
    Traffic traffic = op->traffic(graph, node);
    return mesh_size(graph->mesh, traffic.axes) > 1 ? LATENCY + (int64_t)(traffic.bytes / LINK_BYTES) : 0;
}

/* Returns how long the node would wait for its inputs if it ran now. */
static int64_t wait_time(const OverlapOrder *order, const Node *node) {
    int64_t ready = 0;
    for (int i = 0; i < node->inputs; i++) ready = int_max(ready, order->ready[node->in[i]]);
    return int_max(0, ready - order->now);
}

static void append_node(OverlapOrder *order, const Node *node) {
    int64_t link = link_time(order->graph, node);
    order->now += wait_time(order, node) + op_time(order->graph, node);
    graph_append(order->graph, node);
    if (!link) return;
    order->links_free = int_max(order->links_free, order->now) + link;
    for (int i = 0; i < node->outputs; i++)
        if (node->out[i]) order->ready[node->out[i]] = order->links_free;
}

/* -- Holding back -------------------------------------------------------------------------------------------------- */

bool graph_only_adds_to_gradients(const Graph *graph, const Node *node) {
    for (int i = 0; i < node->outputs; i++)
        if (node->out[i] && graph_get(graph, node->out[i])->arena != ARENA_GRADIENT) return false;
    return node->outputs > 0;
}

/* Returns whether the ranks of AXES_TENSOR divide the parameter whose gradient the node makes. */
static bool is_shared_out(const Graph *graph, const Node *node) {
    for (int i = 0; i < node->outputs; i++) {
        if (!node->out[i]) continue;
        int64_t begin = graph_state_span(graph, node->out[i]).begin;
        for (int p = 0; p < graph->parameter_count; p++) {
            const Parameter *parameter = &graph->parameters[p];
            bool holds = parameter->offset <= begin && begin < parameter->offset + parameter->count * parameter->element_bytes;
            if (holds && mesh_size(graph->mesh, parameter_sum_axes(parameter) & AXES_TENSOR) == 1) return true;
        }
    }
    return false;
}

static bool may_run_later(const Graph *graph, const Node *node) {
    return graph_only_adds_to_gradients(graph, node) && is_shared_out(graph, node);
}

static void release_node(OverlapOrder *order, int index) {
    Node node = order->held[index].node;
    memmove(order->held + index, order->held + index + 1, (size_t)(--order->count - index) * sizeof *order->held);
    append_node(order, &node);
}

static bool is_gradient(const Graph *graph, TensorId tensor) { return tensor && graph_get(graph, tensor)->arena == ARENA_GRADIENT; }

static bool add_to_the_same(const Graph *graph, const Node *a, const Node *b) {
    for (int i = 0; i < a->outputs; i++)
        for (int j = 0; j < b->outputs; j++) {
            if (!is_gradient(graph, a->out[i]) || !is_gradient(graph, b->out[j])) continue;
            ByteSpan x = graph_state_span(graph, a->out[i]), y = graph_state_span(graph, b->out[j]);
            if (x.begin < y.end && y.begin < x.end) return true;
        }
    return false;
}

static void release_all(OverlapOrder *order) {
    while (order->count) release_node(order, 0);
}

/* Releases all held nodes before a node that adds to the same gradient as one of them, so that each
 * sum keeps its order. */
static void keep_order_of_sums(OverlapOrder *order, const Node *node) {
    for (int i = 0; i < order->count; i++)
        if (add_to_the_same(order->graph, &order->held[i].node, node)) {
            release_all(order);
            return;
        }
}

/* Returns the shortest held node that would not wait for its inputs; the oldest if all would
 * wait. */
static int least_useful(const OverlapOrder *order) {
    int least = -1;
    for (int i = 0; i < order->count; i++)
        if (!wait_time(order, &order->held[i].node) && (least < 0 || order->held[i].time < order->held[least].time)) least = i;
    return least < 0 ? 0 : least;
}

static void hold(OverlapOrder *order, const Node *node) {
    if (order->count == MOST_HELD) release_node(order, least_useful(order));
    order->held[order->count++] = (Held){*node, op_time(order->graph, node)};
}

/* Returns the held node that fits the wait best, or -1. */
static int fitting(const OverlapOrder *order, int64_t wait) {
    int best = -1;
    for (int i = 0; i < order->count; i++) {
        int64_t time = order->held[i].time;
        if ((wait < LONG_WAIT && time > MOST_WAITS * wait) || wait_time(order, &order->held[i].node)) continue;
        if (best < 0 || llabs(time - wait) < llabs(order->held[best].time - wait)) best = i;
    }
    return best;
}

static void append_beside_others(OverlapOrder *order, const Node *node) {
    for (int64_t wait; (wait = wait_time(order, node)) > 0;) {
        int beside = fitting(order, wait);
        if (beside < 0) break;
        release_node(order, beside);
    }
    append_node(order, node);
}

void graph_overlap_collectives(Graph *graph, int forward) {
    int backward = graph->node_count - forward, part = -1;
    if (mesh_size(graph->mesh, AXES_ROWS | AXES_EXPERTS) == 1) return;
    OverlapOrder order = {.graph = graph};
    SCOPED_FREE Node *nodes = memory_allocate((size_t)(backward + 1) * sizeof *nodes);
    SCOPED_FREE int64_t *ready = order.ready = memory_allocate((size_t)graph->tensor_count * sizeof *ready);
    memcpy(nodes, graph->nodes + forward, (size_t)backward * sizeof *nodes);
    graph->node_count = forward;
    for (int i = 0; i < backward; i++) {
        if (nodes[i].part != part) release_all(&order);
        part = nodes[i].part;
        keep_order_of_sums(&order, &nodes[i]);
        if (may_run_later(graph, &nodes[i])) hold(&order, &nodes[i]);
        else append_beside_others(&order, &nodes[i]);
    }
    release_all(&order);
}
