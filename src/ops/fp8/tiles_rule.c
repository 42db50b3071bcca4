/* The tiles of a dispatch: a table that the casts of x and d_y of all its layers read, and the
 * first tile of each expert, which their weight gradients read. It is made once per dispatch, from
 * the offsets of its experts, because only they give the number of slots of an expert. The maximum
 * number of tiles follows from shapes. */
#include "ops/fp8/fp8.h"

/* Returns the last node for these offsets, or TENSOR_NONE. */
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
