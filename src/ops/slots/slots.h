/* Slots: the states that generation keeps for several sequences at once. A state has a fixed number
 * of rows for each slot; a program works on the slots of its sequences. Each sequence has equally
 * many rows in the program, and the last ones may be padding. Builders and operands. */
#pragma once

#include "graph/op.h"
#include "ops/slots/slot_source.h"

/* Reads the states of the sequences in their order: `state` COMPUTE [slots * rows, C], `slots` INT32
 * [S] -> COMPUTE [S * rows, C]. No gradient. */
TensorId op_slot_read(Graph *graph, TensorId state, TensorId slots, int64_t rows);

/* Replaces the states by the last rows of (history, x) before padding: `history` COMPUTE [S * rows,
 * C], as read, x COMPUTE [S * L, C], `lasts` INT32 [S], the index of the last of a sequence's L rows
 * that is not padding. Two sequences with one slot leave it undefined. */
void op_slot_write(Graph *graph, TensorId state, TensorId slots, TensorId lasts, TensorId history, TensorId x);

enum { SLOT_READ_STATE, SLOT_READ_SLOTS };
enum { SLOT_READ_ROWS };
enum { SLOT_WRITE_SLOTS, SLOT_WRITE_LASTS, SLOT_WRITE_HISTORY, SLOT_WRITE_X };
enum { SLOT_WRITE_STATE };
