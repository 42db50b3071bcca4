/* Lets collectives of the forward pass run beside computing. Where ranks of AXES_TENSOR gather and scatter rows, a run of
 * nodes that make each row, or each sequence, by itself is cut into two halves of the rows: while the rows of one half
 * travel, those of the other are computed. Called by graph_differentiate; owns nothing that outlives the call.
 *
 *     norm, gather, linear ...    becomes    norm 0, gather 0, norm 1, gather 1, linear 0 ..., linear 1 ...
 *
 * Tensors stay whole, and halves write their rows of them, so that other nodes, above all the backward pass, know nothing of
 * halves, and memory is that of whole tensors. A node that is computed again is cut if it was cut at first: GEMMs of other
 * sizes may round otherwise.
 *
 * A mesh says that there are halves (Mesh.row_blocks), and whether they are of whole sequences; where they are not, nodes
 * that make sequences are not cut. */
#include <string.h>

#include "base/memory.h"
#include "base/scope.h"
#include "graph/graph_internal.h"
#include "graph/op.h"

enum { HALVES = 2 };
/* Bytes at which halves begin: of operands of GEMMs, as tensors do, and of others, which kernels read 16 bytes at a time. */
enum { GEMM_ALIGNMENT = 256, OTHER_ALIGNMENT = 16 };
typedef TensorId Rows[HALVES];

typedef struct Cutting {
    Graph *graph;
    Node *nodes; /* as they were */
    int count, forward;
    bool *cut;  /* by node: it is cut */
    int *moved; /* by node: its new index, or that of its first half */
    Rows *rows; /* by tensor as they were: its halves, or TENSOR_NONE */
} Cutting;

/* Nodes [first, end). */
typedef struct Run { int first, end; } Run;

/* -- What is cut --------------------------------------------------------------------------------------------------- */

static bool halves_are_aligned(const Graph *graph, TensorId tensor) {
    const Tensor *t = graph_get(graph, tensor);
    int64_t alignment = t->type == TYPE_COMPUTE ? GEMM_ALIGNMENT : OTHER_ALIGNMENT;
    return !tensor || (t->shape[0] % HALVES == 0 && graph_bytes(graph, tensor) % (HALVES * alignment) == 0);
}

static bool can_be_cut(const Graph *graph, const Node *node) {
    const Op *op = op_table[node->op];
    if (!op->by_rows || (op->by_sequences && graph->mesh->cuts_sequences)) return false;
    if (op->communicates && op->traffic(graph, node).axes != AXES_TENSOR) return false;
    for (int i = 0; i < node->inputs; i++)
        if (operand_in(op->by_rows, i) && !halves_are_aligned(graph, node->in[i])) return false;
    for (int i = 0; i < node->outputs; i++)
        if (!halves_are_aligned(graph, node->out[i])) return false;
    return true;
}

static bool reads(const Node *reader, const Node *node) {
    for (int i = 0; i < reader->inputs; i++)
        if (reader->in[i] && reader->in[i] == node->out[MAIN_OUTPUT]) return true;
    return false;
}

/* Of the nodes from `first` on that can be cut, those up to the first that waits for the last collective; empty where there
 * is no collective, or nothing beside it. */
static Run find_run(const Cutting *c, int first) {
    int last = -1, end = first, computing = 0;
    while (end < c->forward && c->nodes[end].part == c->nodes[first].part && can_be_cut(c->graph, &c->nodes[end])) {
        if (op_table[c->nodes[end].op]->communicates) last = end;
        end++;
    }
    if (last < 0) return (Run){end, end};
    for (int i = last + 1; i < end; i++)
        if (reads(&c->nodes[i], &c->nodes[last])) end = i + 1;
    if (end > last + 1 && !reads(&c->nodes[end - 1], &c->nodes[last])) end = last + 1;
    for (int i = first; i < end; i++) computing += !op_table[c->nodes[i].op]->communicates;
    return computing ? (Run){first, end} : (Run){end, end};
}

static void choose(Cutting *c) {
    for (int i = 0; i < c->forward;) {
        Run run = find_run(c, i);
        for (int j = run.first; j < run.end; j++) c->cut[j] = true;
        i = run.end > i ? run.end : i + 1;
    }
    for (int i = c->forward; i < c->count; i++) {
        int original = c->nodes[i].clone_of;
        c->cut[i] = original >= 0 && c->cut[original] && can_be_cut(c->graph, &c->nodes[i]);
    }
}

/* -- Cutting ------------------------------------------------------------------------------------------------------- */

static TensorId rows_of(Cutting *c, TensorId tensor, int half) {
    Graph *graph = c->graph;
    int64_t count = graph_get(graph, tensor)->shape[0] / HALVES;
    if (!tensor) return TENSOR_NONE;
    if (!c->rows[tensor][half]) c->rows[tensor][half] = graph_take_rows(graph, tensor, half * count, count);
    return c->rows[tensor][half];
}

static void append(Cutting *c, int index) {
    Node node = c->nodes[index];
    if (node.clone_of >= 0) node.clone_of = c->moved[node.clone_of];
    c->moved[index] = graph_append(c->graph, &node);
}

static void append_half(Cutting *c, int index, int half) {
    Node node = c->nodes[index];
    uint32_t by_rows = op_table[node.op]->by_rows;
    for (int i = 0; i < node.inputs; i++)
        if (operand_in(by_rows, i)) node.in[i] = rows_of(c, node.in[i], half);
    for (int i = 0; i < node.outputs; i++) node.out[i] = rows_of(c, node.out[i], half);
    node.half = true;
    if (node.clone_of >= 0) node.clone_of = c->moved[node.clone_of];
    int moved = graph_append(c->graph, &node);
    if (half == 0) c->moved[index] = moved;
}

/* Nodes from `first` on that are cut, up to the first collective among them. */
static int append_halves(Cutting *c, int first) {
    int end = first;
    while (end < c->count && c->cut[end] && c->nodes[end].part == c->nodes[first].part)
        if (op_table[c->nodes[end++].op]->communicates) break;
    for (int half = 0; half < HALVES; half++)
        for (int i = first; i < end; i++) append_half(c, i, half);
    return end;
}

void graph_cut_halves(Graph *graph, int forward) {
    int count = graph->node_count;
    if (graph->mesh->row_blocks != HALVES || mesh_size(graph->mesh, AXES_TENSOR) == 1) return;
    SCOPED_FREE Node *nodes = memory_allocate((size_t)(count + 1) * sizeof *nodes);
    SCOPED_FREE bool *cut = memory_allocate((size_t)count + 1);
    SCOPED_FREE int *moved = memory_allocate((size_t)(count + 1) * sizeof *moved);
    SCOPED_FREE Rows *rows = memory_allocate((size_t)graph->tensor_count * sizeof *rows);
    Cutting c = {.graph = graph, .nodes = nodes, .count = count, .forward = forward, .cut = cut, .moved = moved, .rows = rows};
    memcpy(nodes, graph->nodes, (size_t)count * sizeof *nodes);
    choose(&c);
    graph->node_count = 0;
    for (int i = 0; i < count;) {
        if (cut[i]) i = append_halves(&c, i);
        else append(&c, i++);
    }
}
