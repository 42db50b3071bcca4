/* moe_sort, moe_permute and moe_combine on a CPU. The sort counts and then places blocks of
 * SORT_BLOCK rows, one thread each; the other operations divide rows among threads. A row is read
 * once for all its slots: scattered writes cost less than scattered reads. */
#include "backend/cpu/kernel.h"
#include "ops/moe/moe.h"

enum { SORT_BLOCK = 2048 }; /* rows; fewer are counted faster than threads start */

static int64_t sort_workspace(const Graph *graph, const Node *node) {
    int64_t blocks = (graph_rows(graph, node->in[MOE_SORT_INDEX]) + SORT_BLOCK - 1) / SORT_BLOCK;
    return blocks * ((const MoeSortAttributes *)node->attributes)->experts * (int64_t)sizeof(int32_t);
}

/* Converts begin [blocks, experts] from the counts of each block to the first slot of its rows for
 * each expert. */
static void sort_offsets(int32_t *restrict offset, int32_t *restrict begin, int64_t blocks, int64_t experts) {
    int32_t total = 0;
    for (int64_t e = 0; e < experts; e++) {
        offset[e] = total;
        for (int64_t block = 0; block < blocks; block++) {
            int32_t count = begin[block * experts + e];
            begin[block * experts + e] = total;
            total += count;
        }
    }
    offset[experts] = total;
}

CPU_OP(moe_sort, sort_workspace) {
    int64_t experts = ((const MoeSortAttributes *)call->attributes)->experts;
    const int32_t *index = call->in[MOE_SORT_INDEX];
    int32_t *slot = call->out[MOE_SORT_SLOT], *offset = call->out[MOE_SORT_OFFSET], *begins = call->workspace;
    int64_t rows = call->in_shape[MOE_SORT_INDEX][0], k = call->in_shape[MOE_SORT_INDEX][1], blocks = (rows + SORT_BLOCK - 1) / SORT_BLOCK;
#pragma omp parallel for schedule(static) if (blocks > 1)
    for (int64_t block = 0; block < blocks; block++) {
        int32_t *count = begins + block * experts;
        memset(count, 0, experts * sizeof *count);
        for (int64_t i = block * SORT_BLOCK * k; i < int_min(rows, (block + 1) * SORT_BLOCK) * k; i++)
            if (index[i] < experts) count[index[i]]++;
    }
    sort_offsets(offset, begins, blocks, experts);
#pragma omp parallel for schedule(static) if (blocks > 1)
    for (int64_t block = 0; block < blocks; block++) {
        int32_t *next = begins + block * experts;
        for (int64_t r = block * SORT_BLOCK; r < int_min(rows, (block + 1) * SORT_BLOCK); r++)
            for (int64_t i = r * k; i < (r + 1) * k; i++) slot[i] = index[i] < experts ? next[index[i]]++ : -1;
    }
}

CPU_OP(moe_permute) {
    const T *x = call->in[MOE_PERMUTE_X];
    const int32_t *slot = call->in[MOE_PERMUTE_SLOT], *offset = call->in[MOE_PERMUTE_OFFSET];
    T *x_slots = call->out[MOE_PERMUTE_X_SLOTS];
    int64_t rows = call->in_shape[MOE_PERMUTE_X][0], columns = call->in_shape[MOE_PERMUTE_X][1];
    int64_t k = call->in_shape[MOE_PERMUTE_SLOT][1], experts = call->in_shape[MOE_PERMUTE_OFFSET][0] - 1;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = r * k; i < (r + 1) * k; i++)
            if (slot[i] >= 0) memcpy(x_slots + slot[i] * columns, x + r * columns, columns * sizeof(T));
    kernel_zero_unused(x_slots, offset, experts, rows * k, columns);
    kernel_put_amax(call, MOE_PERMUTE_X_SLOTS, MOE_PERMUTE_AMAX);
}

/* y [columns] = sum over j of gate[j] * slots[slot[j]]; gates are 1 if `gate` is NULL. */
static void sum_slots(T *restrict y, const T *restrict slots, const int32_t *slot, const W *gate, int64_t k, int64_t columns) {
    enum { CHUNK = 256 };
    W sum[CHUNK];
    if (k == 1 && slot[0] >= 0) { /* top-1 models: without the buffer this is as fast as a copy */
        const T *row = slots + slot[0] * columns;
        W weight = gate ? gate[0] : 1;
        for (int64_t i = 0; i < columns; i++) y[i] = to_compute(weight * to_wide(row[i]));
        return;
    }
    for (int64_t first = 0; first < columns; first += CHUNK) {
        int64_t width = int_min(CHUNK, columns - first);
        memset(sum, 0, sizeof sum);
        for (int64_t j = 0; j < k; j++) {
            if (slot[j] < 0) continue;
            const T *row = slots + slot[j] * columns + first;
            W weight = gate ? gate[j] : 1;
            for (int64_t i = 0; i < width; i++) sum[i] += weight * to_wide(row[i]);
        }
        for (int64_t i = 0; i < width; i++) y[first + i] = to_compute(sum[i]);
    }
}

CPU_OP(moe_unpermute) {
    const T *x_slots = call->in[MOE_UNPERMUTE_X_SLOTS];
    const int32_t *slot = call->in[MOE_UNPERMUTE_SLOT];
    T *x = call->out[MOE_UNPERMUTE_X];
    int64_t rows = call->out_shape[MOE_UNPERMUTE_X][0], columns = call->out_shape[MOE_UNPERMUTE_X][1];
    int64_t k = call->in_shape[MOE_UNPERMUTE_SLOT][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) sum_slots(x + r * columns, x_slots, slot + r * k, NULL, k, columns);
}

CPU_OP(moe_combine) {
    const T *y_slots = call->in[MOE_COMBINE_Y_SLOTS];
    const W *gate = call->in[MOE_COMBINE_GATE];
    const int32_t *slot = call->in[MOE_COMBINE_SLOT];
    T *y = call->out[MOE_COMBINE_Y];
    int64_t rows = call->out_shape[MOE_COMBINE_Y][0], columns = call->out_shape[MOE_COMBINE_Y][1];
    int64_t k = call->in_shape[MOE_COMBINE_SLOT][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) sum_slots(y + r * columns, y_slots, slot + r * k, gate + r * k, k, columns);
}

/* d_y_slot = gate * d_y; returns <d_y, y_slot>, the gradient of the gate. */
static W combine_slot_grad(T *restrict d_y_slot, const T *restrict d_y, const T *restrict y_slot, W gate, int64_t columns) {
    W dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < columns; i++) {
        W value = to_wide(d_y[i]);
        dot += value * to_wide(y_slot[i]);
        d_y_slot[i] = to_compute(gate * value);
    }
    return dot;
}

CPU_OP(moe_combine_grad) {
    const T *d_y = call->in[MOE_COMBINE_GRAD_D_Y], *y_slots = call->in[MOE_COMBINE_GRAD_Y_SLOTS];
    const W *gate = call->in[MOE_COMBINE_GRAD_GATE];
    const int32_t *slot = call->in[MOE_COMBINE_GRAD_SLOT], *offset = call->in[MOE_COMBINE_GRAD_OFFSET];
    T *d_y_slots = call->out[MOE_COMBINE_GRAD_D_Y_SLOTS];
    W *d_gate = call->out[MOE_COMBINE_GRAD_D_GATE];
    int64_t rows = call->in_shape[MOE_COMBINE_GRAD_D_Y][0], columns = call->in_shape[MOE_COMBINE_GRAD_D_Y][1];
    int64_t k = call->in_shape[MOE_COMBINE_GRAD_SLOT][1], experts = call->in_shape[MOE_COMBINE_GRAD_OFFSET][0] - 1;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = r * k; i < (r + 1) * k; i++) {
            int64_t at = slot[i] * columns;
            d_gate[i] = 0;
            if (slot[i] < 0) continue;
            d_gate[i] = combine_slot_grad(d_y_slots + at, d_y + r * columns, y_slots + at, gate[i], columns);
        }
    kernel_zero_unused(d_y_slots, offset, experts, rows * k, columns);
    kernel_put_amax(call, MOE_COMBINE_GRAD_D_Y_SLOTS, MOE_COMBINE_GRAD_AMAX);
}
