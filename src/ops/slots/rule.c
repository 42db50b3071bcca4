/* Copies of rows between the states of slots and a program's activations. */
#include "ops/slots/slots.h"

TensorId op_slot_read(Graph *graph, TensorId state, TensorId slots, int64_t rows) {
    assert(graph_get(graph, state)->type == TYPE_COMPUTE && rows > 0 && graph_rows(graph, state) % rows == 0);
    TensorId y = graph_activation(graph, TYPE_COMPUTE, graph_elements(graph, slots) * rows, graph_columns(graph, state), "slot_history");
    graph_node(
        graph, OP_slot_read, (Inputs){[SLOT_READ_STATE] = state, [SLOT_READ_SLOTS] = slots}, (Outputs){[SLOT_READ_ROWS] = y}, NULL, 0);
    return y;
}

void op_slot_write(Graph *graph, TensorId state, TensorId slots, TensorId lasts, TensorId history, TensorId x) {
    int64_t sequences = graph_elements(graph, slots);
    assert(graph_get(graph, state)->arena == ARENA_STATE && graph_elements(graph, lasts) == sequences);
    assert(graph_columns(graph, x) == graph_columns(graph, state) && graph_columns(graph, history) == graph_columns(graph, state));
    assert(graph_rows(graph, history) % sequences == 0 && graph_rows(graph, x) % sequences == 0);
    Inputs in = {[SLOT_WRITE_SLOTS] = slots, [SLOT_WRITE_LASTS] = lasts, [SLOT_WRITE_HISTORY] = history, [SLOT_WRITE_X] = x};
    graph_node(graph, OP_slot_write, in, (Outputs){[SLOT_WRITE_STATE] = state}, NULL, 0);
}

const Op op_rule_slot_read = {.name = "slot_read"};
const Op op_rule_slot_write = {.name = "slot_write", .adds_to = OPERAND(SLOT_WRITE_STATE)};
