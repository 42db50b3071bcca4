/* The operations around attention over ranks on a CPU: copies of rows, and sums over blocks of
 * keys. */
#include "backend/cpu/kernel.h"
#include "ops/attention/attention.h"

static void copy_columns(T *to, int64_t to_stride, const T *from, int64_t from_stride, int64_t columns, int64_t rows) {
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) memcpy(to + r * to_stride, from + r * from_stride, columns * sizeof(T));
}

CPU_OP(attention_split) {
    const T *qkv = call->in[ATTENTION_SPLIT_QKV];
    int64_t rows = call->in_shape[ATTENTION_SPLIT_QKV][0], all = call->in_shape[ATTENTION_SPLIT_QKV][1];
    int64_t queries = call->out_shape[ATTENTION_SPLIT_QUERIES][1];
    copy_columns(call->out[ATTENTION_SPLIT_QUERIES], queries, qkv, all, queries, rows);
    copy_columns(call->out[ATTENTION_SPLIT_KV], all - queries, qkv + queries, all, all - queries, rows);
}

CPU_OP(attention_join) {
    T *qkv = call->out[ATTENTION_JOIN_QKV];
    int64_t rows = call->out_shape[ATTENTION_JOIN_QKV][0], all = call->out_shape[ATTENTION_JOIN_QKV][1];
    int64_t queries = call->in_shape[ATTENTION_JOIN_QUERIES][1];
    copy_columns(qkv, all, call->in[ATTENTION_JOIN_QUERIES], queries, queries, rows);
    copy_columns(qkv + queries, all, call->in[ATTENTION_JOIN_KV], all - queries, all - queries, rows);
}

CPU_OP(attention_order) {
    const AttentionOrder *order = call->attributes;
    const T *x = call->in[ATTENTION_ORDER_X];
    T *y = call->out[ATTENTION_ORDER_Y];
    int64_t rows = call->in_shape[ATTENTION_ORDER_X][0], columns = call->in_shape[ATTENTION_ORDER_X][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = ordered_row(rows, order->length, order->ranks, r);
        memcpy(y + (order->back ? r : at) * columns, x + (order->back ? at : r) * columns, columns * sizeof(T));
    }
}

/* wide or compute, whichever is not NULL, = a * sum + b * part for one head. */
static void sum_head(W *wide, T *compute, W a, const W *sum, W b, const T *part, int64_t count) {
    assert((wide == NULL) != (compute == NULL));
    for (int64_t j = 0; j < count; j++) {
        W x = b * to_wide(part[j]) + (sum ? a * sum[j] : 0);
        if (wide) wide[j] = x;
        else compute[j] = to_compute(x);
    }
}

CPU_OP(attention_sum) {
    const W *sum = call->in[ATTENTION_SUM_SUM], *old_log = call->in[ATTENTION_SUM_LOG], *part_log = call->in[ATTENTION_SUM_PART_LOG];
    const T *part = call->in[ATTENTION_SUM_PART];
    W *next = call->out[ATTENTION_SUM_NEXT], *next_log = call->out[ATTENTION_SUM_NEXT_LOG];
    T *last = call->out[ATTENTION_SUM_LAST];
    int64_t rows = call->in_shape[ATTENTION_SUM_PART][0], columns = call->in_shape[ATTENTION_SUM_PART][1];
    int64_t heads = part_log ? call->in_shape[ATTENTION_SUM_PART_LOG][1] : 1, width = columns / heads;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows * heads; i++) {
        W a = 1, b = 1;
        if (part_log) {
            double before = old_log ? old_log[i] : -INFINITY, base = fmax(before, part_log[i]);
            double old = base == -INFINITY ? 0 : exp(before - base), new = base == -INFINITY ? 0 : exp(part_log[i] - base);
            a = (W)(old / fmax(old + new, 1)), b = (W)(new / fmax(old + new, 1));
            next_log[i] = (W)(base + log1p(fmin(old, new)));
        }
        sum_head(
            next ? next + i * width : NULL, last ? last + i * width : NULL, a, sum ? sum + i * width : NULL, b, part + i * width, width);
    }
}
