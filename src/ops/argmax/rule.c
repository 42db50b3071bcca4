/* argmax computes, for each part of a row, its largest element, y[2 p] = max x[j], and the first
 * column that has it, y[2 p + 1] = j, which WIDE numbers represent exactly. Reading these few
 * numbers instead of all logits saves time per token, in the transfer and on the host. */
#include "ops/collective/collective.h"
#include "ops/argmax/argmax.h"

enum { MOST_COLUMNS = 1 << 24 }; /* integers that fp32 represents */

TensorId op_argmax(Graph *graph, TensorId x, TensorId limit, int64_t columns, MeshAxes axes) {
    int64_t ranks = mesh_size(graph->mesh, axes), values = ARGMAX_PARTS * ARGMAX_VALUES;
    CutShare share = cut_share(columns, mesh_index(graph->mesh, axes), (int)ranks);
    ArgmaxAttributes attributes = {.first = share.first};
    assert(graph_get(graph, x)->type == TYPE_WIDE && graph_columns(graph, x) == share.count && columns <= MOST_COLUMNS);
    TensorId y = graph_activation(graph, TYPE_WIDE, graph_rows(graph, x), values, "argmax");
    graph_node(
        graph, OP_argmax, (Inputs){[ARGMAX_X] = x, [ARGMAX_LIMIT] = limit}, (Outputs){[ARGMAX_Y] = y}, &attributes, sizeof attributes);
    return op_gather_columns(graph, y, ranks * values, axes);
}

const Op op_rule_argmax = {.name = "argmax", .element_flops = 1};
