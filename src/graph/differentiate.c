/* Reverse-mode differentiation of a graph, and recomputation (activation checkpointing, arXiv
 * 1604.06174). Called once per program, by models; owns nothing that outlives the call.
 *
 * The backward nodes are appended by the operations' gradient rules, last forward node first. The
 * gradient of a tensor with several readers is the sum of their contributions. A tensor that
 * depends on no trained parameter gets no gradient, as in the first layers of a frozen model.
 * Recomputation then rewrites the backward nodes: if a node reads a forward activation that the
 * policy drops, the activation's producers are cloned just before the reader. A clone runs the same
 * kernel on the same inputs, so it gives the same bits. Then the backward nodes are reordered so
 * that collectives overlap with compute (overlap.c), and the first node to touch each gradient is
 * marked. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/scope.h"
#include "graph/graph_internal.h"
#include "graph/op.h"

static bool trains_any(const Graph *graph, const Node *node) {
    for (int i = 0; i < node->inputs; i++)
        if (graph->tensors[node->in[i]].trains) return true;
    return false;
}

/* Marks tensors that depend on a trainable parameter. */
static void mark_trained(Graph *graph, int forward) {
    for (TensorId i = 1; i < graph->tensor_count; i++)
        graph->tensors[i].trains = graph->tensors[i].producer < 0 && !graph->tensors[i].frozen;
    for (int i = 0; i < forward; i++) {
        const Node *node = &graph->nodes[i];
        bool trains = trains_any(graph, node);
        for (int j = 0; j < node->outputs; j++)
            if (node->out[j]) graph->tensors[node->out[j]].trains |= trains;
    }
}

static void add_gradient(Graph *graph, TensorId tensor, TensorId gradient) {
    TensorId before = graph->tensors[tensor].gradient;
    TensorId sum = before ? op_add(graph, before, gradient) : gradient;
    graph->tensors[tensor].gradient = sum;
}

static void differentiate_node(Graph *graph, int index) {
    Node node = graph->nodes[index];
    const Op *op = op_table[node.op];
    if (!op->gradient || !trains_any(graph, &node)) return;
    TensorId d_out[NODE_MAX_OUTPUTS] = {0}, d_in[NODE_MAX_INPUTS] = {0};
    bool reached = op->loss;
    for (int i = 0; i < node.outputs; i++)
        if (node.out[i] && !operand_in(op->adds_to, i)) reached |= (d_out[i] = graph->tensors[node.out[i]].gradient) != TENSOR_NONE;
    if (!reached) return;
    char scope[sizeof graph->scope];
    snprintf(scope, sizeof scope, "%.*s", (int)(strlen(node.name) - strlen(op->name)), node.name);
    graph_scope(graph, node.layer, scope);
    graph->part = graph->chunks ? graph_part(graph, PART_BACKWARD, node.part) : 0;
    op->gradient(graph, &node, d_out, d_in);
    for (int i = 0; i < node.inputs; i++)
        if (d_in[i] && graph->tensors[node.in[i]].trains) add_gradient(graph, node.in[i], d_in[i]);
}

typedef struct Recompute {
    Graph *graph;
    RecomputePolicy policy;
    int forward;     /* number of forward nodes, which come first */
    bool *crosses;   /* by tensor: a forward node of another layer reads it */
    TensorId *again; /* by tensor: its recomputed copy, or TENSOR_NONE */
    int tensors;     /* number of tensors before the first clone */
} Recompute;

static bool any_output_crosses(const Recompute *r, const Node *node) {
    for (int i = 0; i < node->outputs; i++)
        if (r->crosses[node->out[i]]) return true;
    return false;
}

static bool policy_drops(const Recompute *r, const Node *node) {
    OpClass class = op_table[node->op]->class;
    if (class == OP_CLASS_GATHER) return true;
    switch (r->policy) {
    case RECOMPUTE_NONE: return false;
    case RECOMPUTE_NORM: return class == OP_CLASS_NORM;
    case RECOMPUTE_ATTENTION: return class != OP_CLASS_OTHER;
    case RECOMPUTE_BLOCK: return node->layer >= 0;
    }
    return false;
}

static TensorId recomputed(Recompute *r, TensorId tensor);

static void clone_node(Recompute *r, int index) {
    Graph *graph = r->graph;
    Node node = graph->nodes[index];
    Inputs in = {0};
    Outputs out = {0};
    for (int i = 0; i < node.inputs; i++) in[i] = recomputed(r, node.in[i]);
    graph_scope(graph, node.layer, "again.");
    for (int i = 0; i < node.outputs; i++) {
        if (!node.out[i] || operand_in(op_table[node.op]->adds_to | op_table[node.op]->amax, i)) continue;
        Tensor old = graph->tensors[node.out[i]];
        out[i] = graph_tensor(graph, ARENA_ACTIVATION, old.type, old.rank, old.shape, old.name);
        r->again[node.out[i]] = out[i];
    }
    int clone = graph_node(graph, node.op, in, out, node.attributes, 0);
    graph->nodes[clone].clone_of = index;
}

/* Returns the tensor that a backward node reads in place of `tensor`: a recomputed copy, or
 * `tensor` itself if it is kept. */
static TensorId recomputed(Recompute *r, TensorId tensor) {
    Graph *graph = r->graph;
    if (tensor >= r->tensors) return tensor;
    if (r->again[tensor]) return r->again[tensor];
    const Tensor *t = graph_get(graph, tensor);
    if (tensor == TENSOR_NONE || t->arena != ARENA_ACTIVATION || t->keep || t->producer < 0 || t->producer >= r->forward) return tensor;
    int producer = t->producer;
    Node node = graph->nodes[producer];
    const Op *op = op_table[node.op];
    if (!policy_drops(r, &node) || tensor == op_amax(&node)) return tensor;
    bool crosses = any_output_crosses(r, &node);
    if (op->recompute && (crosses || r->policy != RECOMPUTE_BLOCK)) {
        int output = 0;
        while (node.out[output] != tensor) output++;
        graph_scope(graph, node.layer, "again.");
        int first = graph->node_count;
        TensorId copy = op->recompute(graph, &node, output);
        for (int i = first; i < graph->node_count; i++) graph->nodes[i].clone_of = producer;
        return r->again[tensor] = copy ? copy : tensor;
    }
    if (crosses) return tensor;
    clone_node(r, producer);
    return r->again[tensor];
}

static void mark_crossing(Recompute *r) {
    for (int i = 0; i < r->forward; i++) {
        const Node *node = &r->graph->nodes[i];
        for (int j = 0; j < node->inputs; j++) {
            int producer = r->graph->tensors[node->in[j]].producer;
            if (producer >= 0 && r->graph->nodes[producer].layer != node->layer) r->crosses[node->in[j]] = true;
        }
    }
}

/* The all-gather of a recomputed tensor starts EARLIER nodes before its reader, so that it overlaps
 * with compute. */
enum { EARLIER = 2 };

/* Appends the collective that gathers `tensor` again. */
static void begin_regathering(Recompute *r, TensorId tensor) {
    int producer = graph_get(r->graph, tensor)->producer;
    if (producer < 0 || producer >= r->forward) return;
    Node node = r->graph->nodes[producer];
    const Op *op = op_table[node.op];
    if (op->class != OP_CLASS_GATHER) return;
    if (op->communicates) recomputed(r, tensor);
    for (int i = 0; i < node.inputs && !op->communicates; i++) begin_regathering(r, node.in[i]);
}

static void recompute(Graph *graph, RecomputePolicy policy, int forward) {
    int backward = graph->node_count - forward;
    SCOPED_FREE Node *nodes = memory_allocate((backward + 1) * sizeof *nodes);
    memcpy(nodes, graph->nodes + forward, backward * sizeof *nodes);
    Recompute r = {.graph = graph,
        .policy = policy,
        .forward = forward,
        .tensors = graph->tensor_count,
        .crosses = memory_allocate(graph->tensor_count * sizeof(bool)),
        .again = memory_allocate(graph->tensor_count * sizeof(TensorId))};
    mark_crossing(&r);
    graph->node_count = forward;
    for (int i = 0; i < backward; i++) {
        graph->part = nodes[i].part;
        for (int j = i; j <= i + EARLIER && j < backward && nodes[j].part == nodes[i].part; j++)
            for (int k = 0; k < nodes[j].inputs; k++) begin_regathering(&r, nodes[j].in[k]);
        for (int j = 0; j < nodes[i].inputs; j++) nodes[i].in[j] = recomputed(&r, nodes[i].in[j]);
        graph_append(graph, &nodes[i]);
    }
    free(r.crosses);
    free(r.again);
}

/* -- Parts --------------------------------------------------------------------------------------------------------- */

/* Moves the nodes that only make weight gradients after the other backward nodes of their chunk,
 * into a part of their own. */
static void split_backward(Graph *graph, int forward) {
    int backward = graph->node_count - forward;
    SCOPED_FREE Node *nodes = memory_allocate((backward + 1) * sizeof *nodes);
    memcpy(nodes, graph->nodes + forward, backward * sizeof *nodes);
    for (int i = 0; i < backward; i++)
        if (graph_only_adds_to_gradients(graph, &nodes[i])) nodes[i].part++;
    graph->node_count = forward;
    for (int part = graph->chunks; part < graph_parts(graph); part++)
        for (int i = 0; i < backward; i++)
            if (nodes[i].part == part) graph_append(graph, &nodes[i]);
    assert(graph->node_count == forward + backward);
}

/* -- First accumulation into gradients ----------------------------------------------------------------------------- */

static bool overlaps_any(const ByteSpan *spans, int count, ByteSpan span) {
    for (int i = 0; i < count; i++)
        if (spans[i].begin < span.end && span.begin < spans[i].end) return true;
    return false;
}

/* Sets Node.overwrites. Each parameter's gradient still has its own place here. */
static void mark_overwrites(Graph *graph) {
    SCOPED_FREE ByteSpan *seen = memory_allocate((graph->node_count * NODE_MAX_OUTPUTS + 1) * sizeof *seen);
    int count = 0;
    for (int i = 0; i < graph->node_count; i++) {
        Node *node = &graph->nodes[i];
        TensorId overwritten = op_overwritten(node);
        for (int j = 0; j < node->outputs; j++) {
            TensorId output = node->out[j];
            if (output == TENSOR_NONE || graph_get(graph, output)->arena != ARENA_GRADIENT) continue;
            ByteSpan span = graph_state_span(graph, output);
            if (output == overwritten) node->overwrites = !overlaps_any(seen, count, span);
            seen[count++] = span;
        }
    }
}

void graph_differentiate(Graph *graph, RecomputePolicy policy, const Seed *seeds, int seed_count) {
    int forward = graph->node_count;
    graph->backward = true;
    mark_trained(graph, forward);
    for (int i = 0; i < seed_count; i++) add_gradient(graph, seeds[i].tensor, seeds[i].gradient);
    for (int i = forward - 1; i >= 0; i--) differentiate_node(graph, i);
    recompute(graph, policy, forward);
    if (graph->splits_backward) split_backward(graph, forward);
    else graph_overlap_collectives(graph, forward);
    mark_overwrites(graph);
    graph->backward = false;
    graph->part = 0;
    graph_scope(graph, -1, "");
}
