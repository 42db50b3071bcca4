/* Collectives over groups of the mesh: all_gather and reduce_scatter of rows, and all_reduce of a
 * whole tensor. Kernels start the collective and leave its ticket with the executor. The code is
 * the same for every device, because the comm works on the device's memory. */
#include "ops/collective/collective.h"

#include "base/math.h"

/* -- Builders ------------------------------------------------------------------------------------------------------ */

static TensorId append_collective(Graph *graph, int op, TensorId x, MeshAxes axes, int64_t rows, const char *name) {
    const Tensor *tensor = graph_get(graph, x);
    int64_t shape[TENSOR_MAX_RANK] = {rows, graph_columns(graph, x)};
    CollectiveAttributes attributes = {.axes = axes, .blocks = axes == AXES_TENSOR ? graph->mesh->row_blocks : 1, .type = tensor->type};
    assert(tensor->rank <= 2);
    TensorId y = graph_tensor(graph, ARENA_ACTIVATION, tensor->type, 2, shape, name);
    graph_node(graph, op, (Inputs){[COLLECTIVE_X] = x}, (Outputs){[COLLECTIVE_Y] = y}, &attributes, sizeof attributes);
    return y;
}

TensorId op_all_gather(Graph *graph, TensorId x, MeshAxes axes) {
    int size = mesh_size(graph->mesh, axes);
    return size == 1 ? x : append_collective(graph, OP_all_gather, x, axes, graph_rows(graph, x) * size, "gathered");
}

TensorId op_reduce_scatter(Graph *graph, TensorId x, MeshAxes axes) {
    int size = mesh_size(graph->mesh, axes);
    assert(graph_rows(graph, x) % ((int64_t)size * graph->mesh->row_blocks) == 0 || axes != AXES_TENSOR);
    return size == 1 ? x : append_collective(graph, OP_reduce_scatter, x, axes, graph_rows(graph, x) / size, "scattered");
}

TensorId op_all_reduce(Graph *graph, TensorId x, MeshAxes axes) {
    return mesh_size(graph->mesh, axes) == 1 ? x : append_collective(graph, OP_all_reduce, x, axes, graph_rows(graph, x), "reduced");
}

TensorId op_gather_columns(Graph *graph, TensorId x, int64_t columns, MeshAxes axes) {
    int64_t shape[] = {graph_rows(graph, x), columns};
    CollectiveAttributes attributes = {.axes = axes, .blocks = 1, .type = graph_get(graph, x)->type};
    if (mesh_size(graph->mesh, axes) == 1) return x;
    TensorId y = graph_tensor(graph, ARENA_ACTIVATION, attributes.type, 2, shape, "gathered");
    graph_node(graph, OP_gather_columns, (Inputs){[COLLECTIVE_X] = x}, (Outputs){[COLLECTIVE_Y] = y}, &attributes, sizeof attributes);
    return y;
}

static void gather_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    const CollectiveAttributes *attributes = node->attributes;
    if (attributes->type != TYPE_INT32) d_in[COLLECTIVE_X] = op_reduce_scatter(graph, d_out[COLLECTIVE_Y], attributes->axes);
}

static void scatter_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    const CollectiveAttributes *attributes = node->attributes;
    d_in[COLLECTIVE_X] = op_all_gather(graph, d_out[COLLECTIVE_Y], attributes->axes);
}

static void reduce_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    const CollectiveAttributes *attributes = node->attributes;
    d_in[COLLECTIVE_X] = op_all_reduce(graph, d_out[COLLECTIVE_Y], attributes->axes);
}

/* -- Kernels ------------------------------------------------------------------------------------------------------- */

/* The parameters of a call for the kernels. */
typedef struct Collective {
    Comm *group;
    int size, index, blocks;
    CommType type;
    int64_t columns, element; /* per row; bytes */
} Collective;

static Collective collective_of(const OpCall *call, size_t compute, size_t wide) {
    const CollectiveAttributes *attributes = call->attributes;
    size_t bytes = attributes->type == TYPE_COMPUTE ? compute : attributes->type == TYPE_WIDE ? wide : 1;
    const int64_t *shape = call->in_shape[COLLECTIVE_X];
    return (Collective){.group = mesh_inner_group(call->mesh, attributes->axes),
        .size = mesh_size(call->mesh, attributes->axes),
        .index = mesh_index(call->mesh, attributes->axes),
        .blocks = attributes->blocks,
        .type = attributes->type == TYPE_INT32 ? COMM_U8 : comm_real_type((int64_t)bytes),
        .columns = attributes->type == TYPE_INT32 ? shape[1] * (int64_t)sizeof(int32_t) : shape[1],
        .element = (int64_t)bytes};
}

/* Returns the elements of one rank's part of a block of `rows` rows, and sets the shards of all
 * ranks. */
static int64_t cut_block(const Collective *c, int64_t rows, int64_t *shards) {
    int64_t part = rows / c->blocks / c->size * c->columns;
    for (int i = 0; i <= c->size; i++) shards[i] = i * part;
    return part;
}

void collective_all_gather(const OpCall *call, size_t compute, size_t wide) {
    Collective c = collective_of(call, compute, wide);
    int64_t shards[c.size + 1], part = cut_block(&c, call->out_shape[COLLECTIVE_Y][0], shards), bytes = part * c.element;
    const char *x = call->in[COLLECTIVE_X];
    char *y = call->out[COLLECTIVE_Y];
    for (int b = 0; b < c.blocks; b++) device_copy(call->device, y + bytes * (b * c.size + c.index), x + bytes * b, bytes);
    comm_begin_together(c.group);
    for (int b = 0; b < c.blocks; b++) *call->ticket = comm_all_gather(c.group, "gather", y + bytes * c.size * b, shards, c.type);
    comm_end_together(c.group);
}

int64_t collective_columns_workspace(const Graph *graph, const Node *node) { return graph_bytes(graph, node->out[COLLECTIVE_Y]); }

void collective_gather_columns(const OpCall *call, size_t compute, size_t wide) {
    Collective c = collective_of(call, compute, wide);
    int64_t rows = call->out_shape[COLLECTIVE_Y][0], columns = call->out_shape[COLLECTIVE_Y][1], shards[c.size + 1];
    assert(c.size > 1);
    char *shares = call->workspace, *y = call->out[COLLECTIVE_Y];
    for (int i = 0; i <= c.size; i++) shards[i] = rows * cut_share(columns, i, c.size).first;
    device_copy(call->device, shares + shards[c.index] * c.element, call->in[COLLECTIVE_X], rows * c.columns * c.element);
    comm_wait(c.group, comm_all_gather(c.group, "columns", shares, shards, c.type));
    for (int i = 0; i < c.size; i++) {
        CutShare share = cut_share(columns, i, c.size);
        for (int64_t r = 0; r < rows; r++)
            device_copy(call->device, y + (r * columns + share.first) * c.element, shares + (shards[i] + r * share.count) * c.element,
                share.count * c.element);
    }
}

void collective_reduce_scatter(const OpCall *call, size_t compute, size_t wide) {
    Collective c = collective_of(call, compute, wide);
    int64_t shards[c.size + 1], part = cut_block(&c, call->in_shape[COLLECTIVE_X][0], shards), bytes = part * c.element;
    const char *x = call->in[COLLECTIVE_X];
    char *y = call->out[COLLECTIVE_Y];
    comm_begin_together(c.group);
    for (int b = 0; b < c.blocks; b++, x += bytes * c.size, y += bytes)
        *call->ticket = comm_reduce_scatter_to(c.group, "scatter", x, y, shards, c.type, COMM_SUM);
    comm_end_together(c.group);
}

void collective_all_reduce(const OpCall *call, size_t compute, size_t wide) {
    Collective c = collective_of(call, compute, wide);
    int64_t count = call->in_shape[COLLECTIVE_X][0] * c.columns;
    device_copy(call->device, call->out[COLLECTIVE_Y], call->in[COLLECTIVE_X], count * c.element);
    *call->ticket = comm_all_reduce(c.group, "reduce", call->out[COLLECTIVE_Y], count, c.type, COMM_SUM);
}

/* -- Rules --------------------------------------------------------------------------------------------------------- */

/* Returns the same on all ranks of the group, though their shares differ. */
static bool are_direct(const Graph *graph, const Node *node, int64_t bytes) {
    const CollectiveAttributes *attributes = node->attributes;
    const Mesh *mesh = graph->mesh;
    return mesh->direct && comm_windows(mesh_group(mesh, attributes->axes)) && bytes <= COLLECTIVE_DIRECT_BYTES &&
           bytes % (int64_t)sizeof(uint32_t) == 0;
}

static bool is_reduced_directly(const Graph *graph, const Node *node) {
    return are_direct(graph, node, graph_bytes(graph, node->in[COLLECTIVE_X]));
}

static bool is_gathered_directly(const Graph *graph, const Node *node) {
    const CollectiveAttributes *attributes = node->attributes;
    return attributes->blocks == 1 && are_direct(graph, node, graph_bytes(graph, node->in[COLLECTIVE_X]));
}

/* Gathers one row of 4-byte words. */
static bool are_columns_direct(const Graph *graph, const Node *node) {
    const CollectiveAttributes *attributes = node->attributes;
    TensorId whole = node->out[COLLECTIVE_Y];
    int64_t columns = divide_up(graph_columns(graph, whole), mesh_size(graph->mesh, attributes->axes));
    return attributes->type == TYPE_WIDE && graph_rows(graph, whole) == 1 && are_direct(graph, node, columns * (int64_t)sizeof(float));
}

/* A rank sends the whole tensor except one of n parts; twice if the tensor is reduced and then
 * gathered. */
static Traffic whole_traffic(const Graph *graph, const Node *node, TensorId whole, int times) {
    const CollectiveAttributes *attributes = node->attributes;
    double size = mesh_size(graph->mesh, attributes->axes);
    return (Traffic){attributes->axes, times * (size - 1) / size * (double)graph_bytes(graph, whole)};
}

static Traffic gather_traffic(const Graph *graph, const Node *node) { return whole_traffic(graph, node, node->out[COLLECTIVE_Y], 1); }
static Traffic scatter_traffic(const Graph *graph, const Node *node) { return whole_traffic(graph, node, node->in[COLLECTIVE_X], 1); }
static Traffic reduce_traffic(const Graph *graph, const Node *node) { return whole_traffic(graph, node, node->out[COLLECTIVE_Y], 2); }

const Op op_rule_all_gather = {.name = "all_gather",
    .class = OP_CLASS_GATHER,
    .communicates = true,
    .direct = is_gathered_directly,
    .traffic = gather_traffic,
    .gradient = gather_gradient};
const Op op_rule_gather_columns = {.name = "gather_columns", .communicates = true, .direct = are_columns_direct, .traffic = gather_traffic};
const Op op_rule_reduce_scatter = {
    .name = "reduce_scatter", .communicates = true, .traffic = scatter_traffic, .gradient = scatter_gradient};
const Op op_rule_all_reduce = {
    .name = "all_reduce", .communicates = true, .direct = is_reduced_directly, .traffic = reduce_traffic, .gradient = reduce_gradient};
