/* Rows of slots on a CPU: threads divide the rows. No scratch. */
#include "backend/cpu/kernel.h"
#include "ops/slots/slots.h"

CPU_OP(slot_read) {
    const T *state = call->in[SLOT_READ_STATE];
    const int32_t *slots = call->in[SLOT_READ_SLOTS];
    T *y = call->out[SLOT_READ_ROWS];
    int64_t columns = call->out_shape[SLOT_READ_ROWS][1], all = call->out_shape[SLOT_READ_ROWS][0];
    int64_t rows = all / call->in_shape[SLOT_READ_SLOTS][0];
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < all; i++) memcpy(y + i * columns, state + (slots[i / rows] * rows + i % rows) * columns, columns * sizeof(T));
}

CPU_OP(slot_write) {
    const int32_t *slots = call->in[SLOT_WRITE_SLOTS], *lasts = call->in[SLOT_WRITE_LASTS];
    const T *history = call->in[SLOT_WRITE_HISTORY], *x = call->in[SLOT_WRITE_X];
    T *state = call->out[SLOT_WRITE_STATE];
    int64_t sequences = call->in_shape[SLOT_WRITE_SLOTS][0], columns = call->in_shape[SLOT_WRITE_X][1];
    int64_t length = call->in_shape[SLOT_WRITE_X][0] / sequences, rows = call->in_shape[SLOT_WRITE_HISTORY][0] / sequences;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < sequences * rows; i++) {
        int64_t s = i / rows, from = slot_source(i % rows, rows, lasts[s]);
        const T *row = from < 0 ? history + ((s + 1) * rows + from) * columns : x + (s * length + from) * columns;
        memcpy(state + (slots[s] * rows + i % rows) * columns, row, columns * sizeof(T));
    }
}
