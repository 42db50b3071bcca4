/* Sends the last rows of each chunk to the rank that has the next chunk. The gradient that comes
 * back for these rows is added to the gradient of the rows themselves. Only neighbors communicate,
 * and the bytes do not depend on the sequence length. */
#include "ops/halo/halo.h"

TensorId op_halo(Graph *graph, TensorId x, const HaloSpec *spec) {
    if (mesh_size(graph->mesh, MESH(AXIS_CP)) == 1) return TENSOR_NONE;
    int64_t chunks = 2 * spec->sequences;
    assert(graph_rows(graph, x) % chunks == 0 && graph_rows(graph, x) / chunks >= spec->rows);
    HaloAttributes attributes = {.spec = *spec};
    TensorId y = graph_activation(graph, TYPE_COMPUTE, chunks * spec->rows, graph_columns(graph, x), "halo");
    graph_node(graph, OP_halo, (Inputs){[HALO_X] = x}, (Outputs){[HALO_Y] = y}, &attributes, sizeof attributes);
    graph->tensors[y].keep = true; /* only a few rows, which recomputation would send again */
    return y;
}

/* Later readers of x have already sent their gradients, which the sum replaces. */
static void halo_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    (void)d_in;
    TensorId x = node->in[HALO_X], d_x = graph->tensors[x].gradient;
    assert(d_x != TENSOR_NONE);
    HaloAttributes attributes = *(const HaloAttributes *)node->attributes;
    attributes.back = true;
    TensorId ends = graph_activation_like(graph, TYPE_COMPUTE, node->out[HALO_Y], "d_ends");
    graph_node(graph, OP_halo, (Inputs){[HALO_X] = d_out[HALO_Y]}, (Outputs){[HALO_Y] = ends}, &attributes, sizeof attributes);
    TensorId sum = graph_activation_like(graph, TYPE_COMPUTE, d_x, "d_x");
    Inputs in = {[HALO_ADD_X] = d_x, [HALO_ADD_ENDS] = ends};
    graph_node(graph, OP_halo_add, in, (Outputs){[HALO_ADD_SUM] = sum}, &attributes, sizeof attributes);
    graph->tensors[x].gradient = sum;
}

/* A chunk's neighbors: the rank that receives its end, or -1, and the rank whose end arrives here.
 * Indices of first chunks ascend with ranks; those of second chunks descend. */
typedef struct Neighbors {
    bool up;
    int to, from;
} Neighbors;

static Neighbors neighbors_of(const Comm *group, int64_t chunk, bool back) {
    int rank = comm_rank(group), below = rank - 1, above = rank + 1 < comm_size(group) ? rank + 1 : -1;
    bool up = (chunk % 2 == 1) == back;
    return (Neighbors){up, up ? above : below, up ? below : above};
}

void halo_send(const OpCall *call, size_t element) {
    const HaloAttributes *attributes = call->attributes;
    HaloChunks c = halo_chunks(call);
    Comm *group = mesh_inner_group(call->mesh, MESH(AXIS_CP));
    int64_t bytes = c.ends * (int64_t)element, stride = c.chunk * (int64_t)element;
    const char *x = (const char *)call->in[HALO_X] + stride - bytes; /* the end of the first chunk */
    char *y = call->out[HALO_Y];
    comm_begin_together(group);
    for (int64_t i = 0; i < c.count; i++) {
        Neighbors n = neighbors_of(group, i, attributes->back);
        *call->ticket = comm_exchange(group, "halo", x + i * stride, bytes, n.to, y + i * bytes, bytes, n.from, COMM_U8);
    }
    comm_end_together(group);
    for (int64_t i = 0; i < c.count; i++) {
        Neighbors n = neighbors_of(group, i, attributes->back);
        int64_t other = i % 2 ? i - 1 : i + 1; /* the other chunk of this sequence, adjacent to this one on the last rank */
        if (n.from >= 0) continue;
        if (n.up) device_fill(call->device, y + i * bytes, 0, bytes); /* nothing comes before (after) the sequence */
        else device_copy(call->device, y + i * bytes, x + other * stride, bytes);
    }
}

/* Returns the bytes sent, received, and added to. */
static double halo_bytes(const Graph *graph, const Node *node) { return 2.0 * graph_bytes(graph, node->out[HALO_Y]); }

static Traffic halo_traffic(const Graph *graph, const Node *node) {
    return (Traffic){MESH(AXIS_CP), (double)graph_bytes(graph, node->out[HALO_Y])};
}

static double halo_add_bytes(const Graph *graph, const Node *node) {
    double copied = op_in_place(graph, node) ? 0 : 2.0 * graph_bytes(graph, node->in[HALO_ADD_X]);
    return copied + 3.0 * graph_bytes(graph, node->in[HALO_ADD_ENDS]);
}

const Op op_rule_halo = {.name = "halo", .communicates = true, .traffic = halo_traffic, .gradient = halo_gradient, .bytes = halo_bytes};
const Op op_rule_halo_add = {.name = "halo_add", .in_place = OPERAND(HALO_ADD_X), .bytes = halo_add_bytes};
