/* The prologue of compressed convolutional attention on a CPU (formulas in rule.c). A task is
 * CCA_BLOCK rows of one head, or of the values; tasks are independent. While a task's rows are in
 * cache they are convolved twice (depthwise, then a GEMM), mixed with the qk-mean, normalized and
 * rotated (RoPE). Scratch: that of each thread (CcaScratch). */
#include <omp.h>

#include "backend/cpu/kernel.h"
#include "ops/cca/cpu_shared_kernels.h"
#include "ops/cca/cca.h"

/* Returns the number of tasks: a task is a block of rows of one head, or of the values. */
static int64_t task_count(const CcaShape *s) { return cca_blocks(s->rows, CCA_BLOCK) * (s->heads + s->kv_heads + 1); }

static CcaScratch forward_scratch(const CcaShape *s, int64_t compute, int64_t wide) {
    int64_t tall = int_min(s->rows, CCA_BLOCK);
    return cca_scratch(s->dim, tall, tall, s->dim, compute, wide);
}

static int64_t cca_cpu_workspace(const Graph *graph, const Node *node) {
    CcaShape s = cca_node_shape(graph, node);
    int64_t compute = precision_bytes(graph->precision, TYPE_COMPUTE), wide = precision_bytes(graph->precision, TYPE_WIDE);
    return cca_threads(task_count(&s)) * forward_scratch(&s, compute, wide).bytes;
}

/* y += the mean of q and k before the convolutions, for head `head` of the row. */
static void add_qk_mean(W *restrict y, const T *restrict u, int64_t head, const CcaShape *s) {
    const T *keys = u + s->heads * s->dim;
    int64_t dim = s->dim;
    if (head < s->heads) {
        const T *q = u + head * dim, *k = keys + head / s->group * dim;
        for (int64_t i = 0; i < dim; i++) y[i] += (to_wide(q[i]) + to_wide(k[i])) / 2;
        return;
    }
    const T *k = keys + (head - s->heads) * dim, *q = u + (head - s->heads) * s->group * dim;
    W share = (W)0.5 / s->group;
    for (int64_t i = 0; i < dim; i++) y[i] += to_wide(k[i]) / 2;
    for (int64_t h = 0; h < s->group; h++, q += dim)
        for (int64_t i = 0; i < dim; i++) y[i] += to_wide(q[i]) * share;
}

static W sum_of_squares(const W *restrict y, int64_t dim) {
    W sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < dim; i++) sum += y[i] * y[i];
    return sum;
}

/* out = y * scale, with the first `rotated` channels rotated by the angles of one row of the
 * table. */
static void rotate_head(T *restrict out, const W *restrict y, W scale, const W *restrict table, int64_t rotated, int64_t dim) {
    int64_t half = rotated / 2;
#pragma omp simd simdlen(8)
    for (int64_t i = 0; i < half; i++) {
        W a = y[i] * scale, b = y[half + i] * scale, c = table[i], s = table[half + i];
        out[i] = to_compute(a * c - b * s);
        out[half + i] = to_compute(b * c + a * s);
    }
    for (int64_t i = rotated; i < dim; i++) out[i] = to_compute(y[i] * scale);
}

/* Operands of a call; `units` and `scales` are NULL outside training. */
typedef struct Forward {
    CcaShape s;
    CcaRows rows;
    const T *depthwise, *grouped;
    const W *table, *depthwise_bias, *grouped_bias, *temperature;
    int64_t rotated;
    T *qkv, *units;
    W *scales;
} Forward;

/* Normalizes and rotates row y of one head, and stores it to qkv. */
static void finish_cca_row(const Forward *f, W *y, int64_t r, int64_t head) {
    const CcaShape *s = &f->s;
    const W *angles = f->table + f->rows.positions[r] * f->rotated;
    W length = wide_sqrt(sum_of_squares(y, s->dim)), least = (W)cca_least_norm(sizeof(T));
    W scale = wide_sqrt(s->dim) / (length > least ? length : least);
    if (f->scales) f->scales[r * (s->heads + s->kv_heads) + head] = scale;
    T *out = f->qkv + r * s->columns + head * s->dim;
    if (head < s->heads) {
        rotate_head(out, y, scale, angles, f->rotated, s->dim);
        return;
    }
    int64_t g = head - s->heads;
    if (f->units) rotate_head(f->units + r * s->values + g * s->dim, y, scale, angles, f->rotated, s->dim);
    rotate_head(out, y, scale * f->temperature[g], angles, f->rotated, s->dim);
}

static void shift_values(const Forward *f, int64_t r) {
    const CcaShape *s = &f->s;
    int64_t current = s->current, delayed_bytes = (s->values - current) * (int64_t)sizeof(T);
    T *out = f->qkv + r * s->columns + s->convolved;
    memcpy(out, cca_row(&f->rows, r) + s->convolved, current * sizeof(T));
    if (cca_history(&f->rows, r)) memcpy(out + current, cca_row_before(&f->rows, r, 1) + s->convolved + current, delayed_bytes);
    else memset(out + current, 0, delayed_bytes);
}

static void convolve_block(const Forward *f, int64_t first, int64_t end, int64_t head, char *scratch, const CcaScratch *layout) {
    int64_t dim = f->s.dim, column = head * dim;
    W *taps = (W *)(scratch + layout->taps), *products = (W *)(scratch + layout->products);
    T *pairs = (T *)(scratch + layout->pairs), *zeros = (T *)(scratch + layout->zeros);
    cca_split_taps(taps, f->depthwise + 2 * column, dim);
    memset(zeros, 0, dim * sizeof(T));
    cca_pairs(pairs, &f->rows, column, first, end, taps, f->depthwise_bias + column, dim, (T *)(scratch + layout->rows), zeros);
    gemm_serial(&(Gemm){.transpose_b = true,
        .input = KERNEL_GEMM_COMPUTE,
        .output = KERNEL_GEMM_WIDE,
        .m = end - first,
        .n = dim,
        .k = 2 * dim,
        .a = pairs,
        .lda = 2 * dim,
        .b = f->grouped + column * 2 * dim,
        .ldb = 2 * dim,
        .c = products,
        .ldc = dim,
        .bias = f->grouped_bias + column});
    for (int64_t r = first; r < end; r++) add_qk_mean(products + (r - first) * dim, cca_row(&f->rows, r), head, &f->s);
    for (int64_t r = first; r < end; r++) {
        if (r + CCA_PREFETCH_ROWS < end) kernel_prefetch(f->qkv + (r + CCA_PREFETCH_ROWS) * f->s.columns + column, dim);
        finish_cca_row(f, products + (r - first) * dim, r, head);
    }
}

/* state = the last two rows of (state, u). */
static void update_state(T *state, const T *u, const CcaShape *s) {
    if (s->rows == 1) memcpy(state, state + s->columns, s->columns * sizeof(T));
    int64_t kept = int_min(s->rows, 2);
    memcpy(state + (2 - kept) * s->columns, u + (s->rows - kept) * s->columns, kept * s->columns * sizeof(T));
}

CPU_OP(cca, cca_cpu_workspace) {
    CcaShape s = cca_shape(call->attributes, call->in_shape[CCA_U][0]);
    Forward f = {.s = s,
        .rows = cca_rows(call),
        .table = call->in[CCA_ROPE_TABLE],
        .rotated = call->in_shape[CCA_ROPE_TABLE][1],
        .depthwise = call->in[CCA_DEPTHWISE_WEIGHT],
        .depthwise_bias = call->in[CCA_DEPTHWISE_BIAS],
        .grouped = call->in[CCA_GROUPED_WEIGHT],
        .grouped_bias = call->in[CCA_GROUPED_BIAS],
        .temperature = call->in[CCA_TEMPERATURE],
        .qkv = call->out[CCA_QKV],
        .units = call->out[CCA_UNIT_KEYS],
        .scales = call->out[CCA_HEAD_SCALES]};
    CcaScratch layout = forward_scratch(&s, sizeof(T), sizeof(W));
    int64_t tasks = task_count(&s), next = 0;
#pragma omp parallel if (cca_parallel(&s))
    if (omp_get_thread_num() < cca_threads(tasks)) {
        char *scratch = (char *)call->workspace + omp_get_thread_num() * layout.bytes;
        for (int64_t task; (task = cca_next_task(&next)) < tasks;) {
            int64_t head = task % (s.heads + s.kv_heads + 1), first = task / (s.heads + s.kv_heads + 1) * CCA_BLOCK;
            int64_t end = int_min(s.rows, first + CCA_BLOCK);
            if (head < s.heads + s.kv_heads) convolve_block(&f, first, end, head, scratch, &layout);
            else
                for (int64_t r = first; r < end; r++) shift_values(&f, r);
        }
    }
    if (call->out[CCA_STATE]) update_state(call->out[CCA_STATE], f.rows.u, &s);
}
