/* The tiles of a dispatch: a table that the casts of x and d_y of all its layers read, and where the tiles of each expert begin,
 * which their gradients of weights read. Made once a dispatch, from the offsets of its experts, since only these know how many slots
 * an expert has; how many tiles there can be follows from shapes. */
#include "ops/fp8/fp8.h"

/* The last node for these offsets; TENSOR_NONE: there is none. */
static TensorId find_tiles(const Graph *graph, TensorId offset) {
    for (int i = graph->node_count - 1; i > graph_get(graph, offset)->producer; i--) {
        const Node *node = &graph->nodes[i];
        if (node->op == OP_fp8_tiles && node->in[FP8_TILES_OFFSET] == offset) return node->out[FP8_TILES_TABLE];
    }
    return TENSOR_NONE;
}

TensorId fp8_tiles(Graph *graph, const Dispatch *dispatch, int64_t slots) {
    TensorId tiles = find_tiles(graph, dispatch->offset);
    int64_t begins = graph_elements(graph, dispatch->offset);
    if (tiles) return tiles;
    Outputs out = {[FP8_TILES_TABLE] = graph_activation(graph, TYPE_INT32, fp8_most_tiles(slots, begins - 1), 2, "tiles"),
        [FP8_TILES_BEGIN] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_INT32, 1, &begins, "begin")};
    graph_node(graph, OP_fp8_tiles, (Inputs){[FP8_TILES_OFFSET] = dispatch->offset}, out, NULL, 0);
    return out[FP8_TILES_TABLE];
}

const Op op_rule_fp8_tiles = {.name = "fp8_tiles"};
