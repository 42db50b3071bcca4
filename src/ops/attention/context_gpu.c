/* The operations around attention over ranks on a GPU: copies of rows, with eight columns per
 * thread if widths allow, and sums over blocks of keys. */
#include "backend/gpu/gpu.h"
#include "ops/attention/tokens.h"

/* Copies units of `unit` columns. Row r in rank order goes to row ordered_row(r), or comes from
 * there. */
typedef struct AttentionCopy {
    GLOBAL const bf16 *from;
    GLOBAL bf16 *to;
    int64_t rows, from_stride, to_stride, units; /* units per row */
    int64_t length, ranks;                       /* as in AttentionOrder; ranks 1: rows stay in order */
    int32_t back;
} AttentionCopy;

/* Pointers may be NULL (ops/attention/attention.h). */
typedef struct AttentionSum {
    GLOBAL const float *sum, *log, *part_log;
    GLOBAL const bf16 *part;
    GLOBAL float *next, *next_log;
    GLOBAL bf16 *last;
    int64_t count; /* elements of the part */
    int32_t width; /* columns of a head */
} AttentionSum;

enum { COPY_THREADS = 256 };

#ifdef GPU_DEVICE

INLINE void copy_unit(const AttentionCopy *a, const int unit) {
    int64_t i = (int64_t)block_x() * COPY_THREADS + thread_id(), row = i / a->units, column = i % a->units * unit;
    if (row >= a->rows) return;
    int64_t at = ordered_row(a->rows, a->length, a->ranks, row);
    GLOBAL const bf16 *from = a->from + (a->back ? at : row) * a->from_stride + column;
    GLOBAL bf16 *to = a->to + (a->back ? row : at) * a->to_stride + column;
    if (unit == 8) *(GLOBAL u32x4 *)to = *(GLOBAL const u32x4 *)from;
    else *to = *from;
}

KERNEL(attention_copy_8, AttentionCopy) { copy_unit(&a, 8); }
KERNEL(attention_copy_1, AttentionCopy) { copy_unit(&a, 1); }

/* Adds the sum so far and a part, weighted by their log-sum-exps. */
KERNEL(attention_sum, AttentionSum) {
    int64_t i = (int64_t)block_x() * COPY_THREADS + thread_id(), head = i / a.width;
    if (i >= a.count) return;
    float old = 1, new = 1;
    if (a.part_log) {
        float before = a.log ? a.log[head] * LOG2_E : -__builtin_inff(), own = a.part_log[head] * LOG2_E;
        float most = __builtin_fmaxf(before, own), base = most == -__builtin_inff() ? 0 : most;
        old = fast_exp2(before - base), new = fast_exp2(own - base);
        float total = old + new, factor = total == 0 ? 0 : 1 / total;
        if (i % a.width == 0) a.next_log[head] = (base + fast_log2(total)) * LN_2;
        old *= factor, new *= factor;
    }
    float x = new * to_float(a.part[i]) + (a.sum ? old * a.sum[i] : 0);
    if (a.next) a.next[i] = x;
    else a.last[i] = to_bf16(x);
}

#else

#include "backend/gpu/kernel_launch.h"
#include "ops/attention/attention.h"

LAUNCHERS(copy, AttentionCopy, attention_copy_8, attention_copy_1)
LAUNCHER(attention_sum, AttentionSum)

static void copy_columns(const OpCall *call, AttentionCopy a, int64_t columns) {
    bool wide = ((uintptr_t)a.from | (uintptr_t)a.to) % 16 == 0 && (columns | a.from_stride | a.to_stride) % 8 == 0;
    a.units = wide ? columns / 8 : columns;
    if (a.ranks == 0) a.length = a.ranks = 1;
    launch_copy(call->device, !wide, (LaunchShape){.x = divide_up(a.rows * a.units, COPY_THREADS), .threads = COPY_THREADS}, &a);
}

GPU_OP(attention_split) {
    const bf16 *qkv = call->in[ATTENTION_SPLIT_QKV];
    int64_t rows = call->in_shape[ATTENTION_SPLIT_QKV][0], all = call->in_shape[ATTENTION_SPLIT_QKV][1];
    int64_t queries = call->out_shape[ATTENTION_SPLIT_QUERIES][1], kv = all - queries;
    AttentionCopy to_queries = {qkv, call->out[ATTENTION_SPLIT_QUERIES], .rows = rows, .from_stride = all, .to_stride = queries};
    AttentionCopy to_kv = {qkv + queries, call->out[ATTENTION_SPLIT_KV], .rows = rows, .from_stride = all, .to_stride = kv};
    copy_columns(call, to_queries, queries);
    copy_columns(call, to_kv, kv);
}

GPU_OP(attention_join) {
    bf16 *qkv = call->out[ATTENTION_JOIN_QKV];
    int64_t rows = call->out_shape[ATTENTION_JOIN_QKV][0], all = call->out_shape[ATTENTION_JOIN_QKV][1];
    int64_t queries = call->in_shape[ATTENTION_JOIN_QUERIES][1], kv = all - queries;
    AttentionCopy from_queries = {call->in[ATTENTION_JOIN_QUERIES], qkv, .rows = rows, .from_stride = queries, .to_stride = all};
    AttentionCopy from_kv = {call->in[ATTENTION_JOIN_KV], qkv + queries, .rows = rows, .from_stride = kv, .to_stride = all};
    copy_columns(call, from_queries, queries);
    copy_columns(call, from_kv, kv);
}

GPU_OP(attention_order) {
    const AttentionOrder *order = call->attributes;
    int64_t rows = call->in_shape[ATTENTION_ORDER_X][0], columns = call->in_shape[ATTENTION_ORDER_X][1];
    AttentionCopy a = {
        call->in[ATTENTION_ORDER_X], call->out[ATTENTION_ORDER_Y], .rows = rows, .from_stride = columns, .to_stride = columns};
    a.length = order->length, a.ranks = order->ranks, a.back = order->back;
    copy_columns(call, a, columns);
}

GPU_OP(attention_sum) {
    const int64_t *shape = call->in_shape[ATTENTION_SUM_PART];
    int64_t heads = call->in[ATTENTION_SUM_PART_LOG] ? call->in_shape[ATTENTION_SUM_PART_LOG][1] : 1;
    AttentionSum a = {.sum = call->in[ATTENTION_SUM_SUM],
        .log = call->in[ATTENTION_SUM_LOG],
        .part_log = call->in[ATTENTION_SUM_PART_LOG],
        .part = call->in[ATTENTION_SUM_PART],
        .next = call->out[ATTENTION_SUM_NEXT],
        .next_log = call->out[ATTENTION_SUM_NEXT_LOG],
        .last = call->out[ATTENTION_SUM_LAST],
        .count = shape[0] * shape[1],
        .width = (int32_t)(shape[1] / heads)};
    launch_attention_sum(call->device, (LaunchShape){.x = divide_up(a.count, COPY_THREADS), .threads = COPY_THREADS}, &a);
}

#endif
