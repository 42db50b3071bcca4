/* Rows of slots on a GPU: a thread copies one element, because rows are few. */
#include "backend/gpu/vector.h"

/* Copies between the states of slots and, in the order of sequences, `count` elements of `rows` rows
 * each. Reading takes them from `state`; writing (`lasts` is not NULL) puts them there, from `length`
 * rows of x or from the history (slots.h). */
typedef struct SlotArguments {
    const int32_t GLOBAL *slots, *lasts;
    const bf16 GLOBAL *x, *history;
    bf16 GLOBAL *state, *read;
    int64_t count, columns;
    int32_t length, rows;
} SlotArguments;

#ifdef GPU_DEVICE

#include "ops/slots/slot_source.h"

KERNEL(slot_copy, SlotArguments) {
    int64_t i = (int64_t)block_x() * TILE_THREADS + thread_id(), row = i / a.columns, column = i % a.columns;
    if (i >= a.count) return;
    int64_t sequence = row / a.rows, at = ((int64_t)a.slots[sequence] * a.rows + row % a.rows) * a.columns + column;
    if (!a.lasts) {
        a.read[i] = a.state[at];
        return;
    }
    int64_t from = slot_source(row % a.rows, a.rows, a.lasts[sequence]);
    a.state[at] = from < 0 ? a.history[((sequence + 1) * a.rows + from) * a.columns + column]
                           : a.x[(sequence * a.length + from) * a.columns + column];
}

#else

#include "backend/gpu/kernel_launch.h"
#include "ops/slots/slots.h"

LAUNCHER(slot_copy, SlotArguments)

static void launch_copies(const OpCall *call, SlotArguments *arguments, const int64_t *shape, int64_t sequences) {
    arguments->count = shape[0] * shape[1];
    arguments->columns = shape[1];
    arguments->rows = (int32_t)(shape[0] / sequences);
    launch_slot_copy(call->device, (LaunchShape){.x = divide_up(arguments->count, TILE_THREADS), .threads = TILE_THREADS}, arguments);
}

GPU_OP(slot_read) {
    SlotArguments arguments = {.slots = call->in[SLOT_READ_SLOTS], .state = call->in[SLOT_READ_STATE], .read = call->out[SLOT_READ_ROWS]};
    launch_copies(call, &arguments, call->out_shape[SLOT_READ_ROWS], call->in_shape[SLOT_READ_SLOTS][0]);
}

GPU_OP(slot_write) {
    int64_t sequences = call->in_shape[SLOT_WRITE_SLOTS][0];
    SlotArguments arguments = {.slots = call->in[SLOT_WRITE_SLOTS],
        .lasts = call->in[SLOT_WRITE_LASTS],
        .x = call->in[SLOT_WRITE_X],
        .history = call->in[SLOT_WRITE_HISTORY],
        .state = call->out[SLOT_WRITE_STATE],
        .length = (int32_t)(call->in_shape[SLOT_WRITE_X][0] / sequences)};
    launch_copies(call, &arguments, call->in_shape[SLOT_WRITE_HISTORY], sequences);
}

#endif
