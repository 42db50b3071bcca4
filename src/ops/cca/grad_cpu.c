/* The backward pass of cca on a CPU (mathematics in rule.c). Step 1 runs over blocks of
 * KERNEL_BLOCK rows, step 2 over tasks of CCA_CHUNK rows x one head, CCA_BLOCK rows at a time. The
 * rows after a block send gradients back to it, so its GEMM takes two more rows. Step 3 adds the
 * sums of blocks and chunks in order. Scratch: g, all sums, and each thread's scratch (Layout). */
#include <omp.h>

#include "backend/cpu/kernel.h"
#include "ops/cca/cpu_shared_kernels.h"
#include "ops/cca/cca.h"

enum { CCA_CHUNK = 1024 }; /* rows whose parameter gradients one task sums */

/* The workspace, as byte offsets: g COMPUTE [rows, convolved]; the sums of step 1 per KERNEL_BLOCK rows, those of step
 * 2 per chunk; then scratch of threads. */
typedef struct GradCpuLayout { int64_t g, temperature, grouped_bias, grouped, depthwise, depthwise_bias, scratch, bytes; } GradCpuLayout;

static int64_t grad_task_count(const CcaShape *s) { return cca_blocks(s->rows, CCA_CHUNK) * (s->heads + s->kv_heads); }

static CcaScratch thread_scratch(const CcaShape *s, int64_t compute, int64_t wide) {
    int64_t tall = int_min(s->rows, CCA_BLOCK);
    return cca_scratch(s->dim, tall, tall + 2, 2 * s->dim, compute, wide);
}

static GradCpuLayout cca_grad_cpu_layout(const CcaShape *s, int64_t compute, int64_t wide) {
    int64_t blocks = kernel_blocks(s->rows), chunks = cca_blocks(s->rows, CCA_CHUNK);
    GradCpuLayout l = {.temperature = cca_align(s->rows * s->convolved * compute)};
    l.grouped_bias = l.temperature + cca_align(blocks * s->kv_heads * wide);
    l.grouped = l.grouped_bias + cca_align(blocks * s->convolved * wide);
    l.depthwise = l.grouped + cca_align(chunks * s->convolved * 2 * s->dim * wide);
    l.depthwise_bias = l.depthwise + cca_align(chunks * s->convolved * 2 * wide);
    l.scratch = l.depthwise_bias + cca_align(chunks * s->convolved * wide);
    l.bytes = l.scratch + cca_threads(grad_task_count(s)) * thread_scratch(s, compute, wide).bytes;
    return l;
}

static int64_t cca_grad_cpu_workspace(const Graph *graph, const Node *node) {
    CcaShape s = cca_node_shape(graph, node);
    return cca_grad_cpu_layout(&s, precision_bytes(graph->precision, TYPE_COMPUTE), precision_bytes(graph->precision, TYPE_WIDE)).bytes;
}

/* Operands of a call, and its workspace. `y` and `units` are the forward outputs qkv and
 * unit_keys. */
typedef struct Backward {
    CcaShape s;
    CcaRows rows;
    const T *dy, *depthwise, *grouped, *y, *units;
    const W *table, *depthwise_bias, *temperature, *scales;
    int64_t rotated;
    T *du, *d_halo, *g; /* d_halo may be NULL */
    W *temperature_sums, *grouped_bias_sums, *grouped_sums, *depthwise_sums, *depthwise_bias_sums;
} Backward;

/* -- Step 1 -------------------------------------------------------------------------------------------------------- */

static W dot(const T *restrict a, const T *restrict b, int64_t count) {
    W sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) sum += to_wide(a[i]) * to_wide(b[i]);
    return sum;
}

/* g = scale (dy - y * pull), rotated back by the angles; total += g. */
static void normalize_grad(T *restrict g, W *restrict total, const T *restrict dy, const T *restrict y, W scale, W pull,
    const W *restrict table, int64_t rotated, int64_t dim) {
    int64_t half = rotated / 2;
#pragma omp simd simdlen(8)
    for (int64_t i = 0; i < half; i++) {
        W a = (to_wide(dy[i]) - to_wide(y[i]) * pull) * scale, b = (to_wide(dy[half + i]) - to_wide(y[half + i]) * pull) * scale;
        W c = table[i], s = table[half + i], first = a * c + b * s, second = b * c - a * s;
        g[i] = to_compute(first);
        g[half + i] = to_compute(second);
        total[i] += first;
        total[half + i] += second;
    }
    for (int64_t i = rotated; i < dim; i++) {
        W value = (to_wide(dy[i]) - to_wide(y[i]) * pull) * scale;
        g[i] = to_compute(value);
        total[i] += value;
    }
}

static void normalize_row_grad(const Backward *b, int64_t r, W *temperature_sum, W *bias_sum) {
    const CcaShape *s = &b->s;
    const W *angles = b->table + b->rows.positions[r] * b->rotated, *scales = b->scales + r * (s->heads + s->kv_heads);
    for (int64_t head = 0; head < s->heads + s->kv_heads; head++) {
        int64_t column = head * s->dim, group = head - s->heads;
        const T *dy = b->dy + r * s->columns + column;
        const T *y = group < 0 ? b->y + r * s->columns + column : b->units + r * s->values + group * s->dim;
        W along = dot(dy, y, s->dim), scale = scales[head];
        bool normal = scale < wide_sqrt(s->dim) / (W)cca_least_norm(sizeof(T)); /* the norm is above the lower limit */
        if (group >= 0) {
            temperature_sum[group] += along;
            scale *= b->temperature[group];
        }
        normalize_grad(
            b->g + r * s->convolved + column, bias_sum + column, dy, y, scale, normal ? along / s->dim : 0, angles, b->rotated, s->dim);
    }
}

/* Returns whether row r belongs to the document and the chunk of row r - 1, so that it sends
 * gradients back to it. */
static bool row_follows(const Backward *b, int64_t r) { return r < b->s.rows && cca_place(&b->rows, r) > 0 && b->rows.positions[r] > 0; }

/* Returns the destination of the gradient of the older of the two rows before row r; NULL unless r
 * is the first row of a chunk. */
static T *halo_of(const Backward *b, int64_t r) {
    if (!b->d_halo || cca_place(&b->rows, r) > 0) return NULL;
    return b->d_halo + r / b->rows.chunk * CCA_HALO_ROWS * b->s.columns;
}

/* Computes the gradient of the value columns: the next row read this row's delayed columns. */
static void shift_values_grad(const Backward *b, int64_t r) {
    const CcaShape *s = &b->s;
    int64_t current = s->current, delayed_bytes = (s->values - current) * (int64_t)sizeof(T);
    const T *dy = b->dy + r * s->columns + s->convolved;
    T *du = b->du + r * s->columns + s->convolved, *halo = halo_of(b, r);
    memcpy(du, dy, current * sizeof(T));
    if (row_follows(b, r + 1)) memcpy(du + current, dy + s->columns + current, delayed_bytes);
    else memset(du + current, 0, delayed_bytes);
    if (!halo) return;
    memset(halo + s->convolved, 0, s->values * sizeof(T));
    memset(halo + s->columns + s->convolved, 0, s->values * sizeof(T));
    if (cca_history(&b->rows, r)) memcpy(halo + s->columns + s->convolved + current, dy + current, delayed_bytes);
}

static void normalize_block_grad(const Backward *b, int64_t block) {
    const CcaShape *s = &b->s;
    W *temperature_sum = b->temperature_sums + block * s->kv_heads, *bias_sum = b->grouped_bias_sums + block * s->convolved;
    memset(temperature_sum, 0, s->kv_heads * sizeof(W));
    memset(bias_sum, 0, s->convolved * sizeof(W));
    for (int64_t r = block * KERNEL_BLOCK; r < int_min(s->rows, (block + 1) * KERNEL_BLOCK); r++) {
        normalize_row_grad(b, r, temperature_sum, bias_sum);
        shift_values_grad(b, r);
    }
}

/* -- Step 2 -------------------------------------------------------------------------------------------------------- */

/* One head of one chunk, with its thread's scratch and the task's sums. */
typedef struct GradTask {
    int64_t head, column, first, end;     /* first column of the head; rows of the current block */
    W *taps, *mean, *current, *following; /* rows of scratch */
    const W *zeros;
    T *pairs;
    W *d_pairs;                           /* gradient of `pairs`, from row `first` on */
    W *grouped_sum, *tap_sums, *bias_sum; /* tap_sums in the order of cca_split_taps */
} GradTask;

/* d = gradient of row r of the depthwise convolution's output, which pairs row r reads as current
 * and row r + 1 as previous. */
static void depthwise_output_grad(W *restrict d, const Backward *b, const GradTask *t, int64_t r) {
    int64_t dim = b->s.dim;
    const W *restrict own = t->d_pairs + (r - t->first) * 2 * dim, *restrict next = own + 2 * dim;
    if (row_follows(b, r + 1))
        for (int64_t i = 0; i < dim; i++) d[i] = own[2 * i + 1] + next[2 * i];
    else
        for (int64_t i = 0; i < dim; i++) d[i] = own[2 * i + 1];
}

/* d = gradient through the qk-mean of this head's columns of row r. */
static void mean_row_grad(W *restrict d, const Backward *b, int64_t head, int64_t r) {
    const CcaShape *s = &b->s;
    int64_t dim = s->dim;
    const T *row = b->g + r * s->convolved, *keys = row + s->heads * dim;
    if (head < s->heads) {
        const T *q = row + head * dim, *k = keys + head / s->group * dim;
        W share = (W)0.5 / s->group;
        for (int64_t i = 0; i < dim; i++) d[i] = to_wide(q[i]) / 2 + to_wide(k[i]) * share;
        return;
    }
    const T *k = keys + (head - s->heads) * dim, *q = row + (head - s->heads) * s->group * dim;
    for (int64_t i = 0; i < dim; i++) d[i] = to_wide(k[i]) / 2;
    for (int64_t h = 0; h < s->group; h++, q += dim)
        for (int64_t i = 0; i < dim; i++) d[i] += to_wide(q[i]) / 2;
}

/* Computes what pairs row r, the first of a chunk, sends back for its previous row: to the
 * depthwise convolution of that row, and through it to the halo. The convolution of row r
 * (`current`) reads the halo too. */
static void halo_grad(const Backward *b, const GradTask *t, int64_t r, const W *restrict current, T *restrict halo) {
    int64_t dim = b->s.dim, history = cca_history(&b->rows, r);
    const T *restrict older = history > 1 ? cca_row_before(&b->rows, r, 2) + t->column : (const T *)t->zeros;
    const T *restrict newer = history > 0 ? cca_row_before(&b->rows, r, 1) + t->column : (const T *)t->zeros;
    const W *restrict d = t->d_pairs + (r - t->first) * 2 * dim, *restrict tap0 = t->taps, *restrict tap1 = tap0 + dim;
    W *restrict sum0 = t->tap_sums, *restrict sum1 = sum0 + dim;
    for (int64_t i = 0; i < dim; i++) {
        halo[t->column + i] = to_compute(history > 1 ? tap0[i] * d[2 * i] : 0);
        halo[b->s.columns + t->column + i] = to_compute(history > 0 ? tap1[i] * d[2 * i] + tap0[i] * current[i] : 0);
        sum0[i] += d[2 * i] * to_wide(older[i]);
        sum1[i] += d[2 * i] * to_wide(newer[i]);
    }
}

/* Computes du of row r, and adds to the sums of the depthwise weights and bias, from the gradients
 * of rows r (`current`) and r + 1 (`following`) of the depthwise convolution. */
static void depthwise_row_grad(const Backward *b, const GradTask *t, int64_t r, const W *restrict current, const W *restrict following) {
    int64_t dim = b->s.dim;
    bool starts = cca_history(&b->rows, r) == 0;
    const T *restrict u = cca_row(&b->rows, r) + t->column;
    const T *restrict before = starts ? (const T *)t->zeros : cca_row_before(&b->rows, r, 1) + t->column;
    const W *restrict mean = t->mean, *restrict tap0 = t->taps, *restrict tap1 = tap0 + dim;
    W *restrict sum0 = t->tap_sums, *restrict sum1 = sum0 + dim, *restrict bias = t->bias_sum;
    T *restrict du = b->du + r * b->s.columns + t->column, *halo = halo_of(b, r);
#pragma omp simd
    for (int64_t i = 0; i < dim; i++) {
        W d = current[i];
        du[i] = to_compute(mean[i] + tap1[i] * d + tap0[i] * following[i]);
        sum0[i] += d * to_wide(before[i]);
        sum1[i] += d * to_wide(u[i]);
        bias[i] += d;
    }
    if (!starts && !halo) return;
    const W *restrict padding = t->d_pairs + (r - t->first) * 2 * dim;
    for (int64_t i = 0; i < dim; i++) bias[i] += padding[2 * i];
    if (halo) halo_grad(b, t, r, current, halo);
}

static void convolve_block_grad(const Backward *b, GradTask *t, bool accumulate, T *rows) {
    const CcaShape *s = &b->s;
    int64_t dim = s->dim, count = t->end - t->first;
    const T *g = b->g + t->first * s->convolved + t->column;
    cca_pairs(t->pairs, &b->rows, t->column, t->first, t->end, t->taps, b->depthwise_bias + t->column, dim, rows, (const T *)t->zeros);
    gemm_serial(&(Gemm){.transpose_a = true,
        .accumulate = accumulate,
        .input = KERNEL_GEMM_COMPUTE,
        .output = KERNEL_GEMM_WIDE,
        .m = dim,
        .n = 2 * dim,
        .k = count,
        .a = g,
        .lda = s->convolved,
        .b = t->pairs,
        .ldb = 2 * dim,
        .c = t->grouped_sum,
        .ldc = 2 * dim});
    gemm_serial(&(Gemm){.input = KERNEL_GEMM_COMPUTE,
        .output = KERNEL_GEMM_WIDE,
        .m = int_min(s->rows, t->end + 2) - t->first,
        .n = 2 * dim,
        .k = dim,
        .a = g,
        .lda = s->convolved,
        .b = b->grouped + t->column * 2 * dim,
        .ldb = 2 * dim,
        .c = t->d_pairs,
        .ldc = 2 * dim});
    depthwise_output_grad(t->current, b, t, t->first);
    for (int64_t r = t->first; r < t->end; r++) {
        bool followed = row_follows(b, r + 1);
        if (r + 1 < s->rows) depthwise_output_grad(t->following, b, t, r + 1);
        if (r + CCA_PREFETCH_ROWS < t->end) kernel_prefetch(b->du + (r + CCA_PREFETCH_ROWS) * s->columns + t->column, dim);
        mean_row_grad(t->mean, b, t->head, r);
        depthwise_row_grad(b, t, r, t->current, followed ? t->following : t->zeros);
        W *spare = t->current;
        t->current = t->following;
        t->following = spare;
    }
}

static void convolve_chunk_grad(const Backward *b, int64_t chunk, int64_t head, char *scratch, const CcaScratch *layout) {
    const CcaShape *s = &b->s;
    int64_t dim = s->dim, column = head * dim, channel = chunk * s->convolved + column;
    W *rows = (W *)(scratch + layout->rows);
    GradTask t = {.head = head,
        .column = column,
        .taps = (W *)(scratch + layout->taps),
        .mean = rows,
        .current = rows + dim,
        .following = rows + 2 * dim,
        .zeros = (W *)(scratch + layout->zeros),
        .pairs = (T *)(scratch + layout->pairs),
        .d_pairs = (W *)(scratch + layout->products),
        .grouped_sum = b->grouped_sums + channel * 2 * dim,
        .tap_sums = b->depthwise_sums + channel * 2,
        .bias_sum = b->depthwise_bias_sums + channel};
    cca_split_taps(t.taps, b->depthwise + 2 * column, dim);
    memset(t.tap_sums, 0, 2 * dim * sizeof(W));
    memset(t.bias_sum, 0, dim * sizeof(W));
    int64_t begin = chunk * CCA_CHUNK, end = int_min(s->rows, begin + CCA_CHUNK);
    for (t.first = begin; t.first < end; t.first = t.end) {
        t.end = int_min(end, t.first + CCA_BLOCK);
        convolve_block_grad(b, &t, t.first > begin, (T *)rows);
    }
}

/* -- Step 3 -------------------------------------------------------------------------------------------------------- */

/* Adds the `count` sums of every chunk to those of the first. */
static void sum_chunks(W *restrict sums, int64_t chunks, int64_t count) {
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < count; first += KERNEL_BLOCK)
        for (int64_t chunk = 1; chunk < chunks; chunk++)
            for (int64_t i = first; i < int_min(count, first + KERNEL_BLOCK); i++) sums[i] += sums[chunk * count + i];
}

/* Adds the sums of the depthwise weights, which are separate by tap for each head, to the
 * parameter's gradient, which interleaves taps. */
static void add_taps(const OpCall *call, W *sums, int64_t chunks, const CcaShape *s) {
    sum_chunks(sums, chunks, 2 * s->convolved);
    for (int64_t column = 0; column < s->convolved; column += s->dim, sums += 2 * s->dim)
        for (int64_t i = 0; i < s->dim; i++)
            kernel_add_to_gradient(call, call->out[CCA_GRAD_D_DEPTHWISE_WEIGHT], 2 * (column + i), (W[]){sums[i], sums[s->dim + i]}, 2);
}

CPU_OP(cca_grad, cca_grad_cpu_workspace) {
    CcaShape s = cca_shape(call->attributes, call->in_shape[CCA_U][0]);
    GradCpuLayout l = cca_grad_cpu_layout(&s, sizeof(T), sizeof(W));
    CcaScratch layout = thread_scratch(&s, sizeof(T), sizeof(W));
    char *at = call->workspace;
    Backward b = {.s = s,
        .rows = cca_rows(call),
        .dy = call->in[CCA_GRAD_D_QKV],
        .table = call->in[CCA_ROPE_TABLE],
        .rotated = call->in_shape[CCA_ROPE_TABLE][1],
        .depthwise = call->in[CCA_DEPTHWISE_WEIGHT],
        .depthwise_bias = call->in[CCA_DEPTHWISE_BIAS],
        .grouped = call->in[CCA_GROUPED_WEIGHT],
        .temperature = call->in[CCA_TEMPERATURE],
        .y = call->in[CCA_GRAD_QKV],
        .units = call->in[CCA_GRAD_UNIT_KEYS],
        .scales = call->in[CCA_GRAD_HEAD_SCALES],
        .du = call->out[CCA_GRAD_D_U],
        .d_halo = call->out[CCA_GRAD_D_HALO],
        .g = (T *)(at + l.g),
        .temperature_sums = (W *)(at + l.temperature),
        .grouped_bias_sums = (W *)(at + l.grouped_bias),
        .grouped_sums = (W *)(at + l.grouped),
        .depthwise_sums = (W *)(at + l.depthwise),
        .depthwise_bias_sums = (W *)(at + l.depthwise_bias)};
    int64_t blocks = kernel_blocks(s.rows), chunks = cca_blocks(s.rows, CCA_CHUNK), all_heads = s.heads + s.kv_heads;
    int64_t tasks = grad_task_count(&s), next = 0;
#pragma omp parallel for schedule(static) if (cca_parallel(&s))
    for (int64_t block = 0; block < blocks; block++) normalize_block_grad(&b, block);
#pragma omp parallel if (cca_parallel(&s))
    if (omp_get_thread_num() < cca_threads(tasks)) {
        char *scratch = at + l.scratch + omp_get_thread_num() * layout.bytes;
        memset(scratch + layout.zeros, 0, s.dim * sizeof(W));
        for (int64_t task; (task = cca_next_task(&next)) < tasks;)
            convolve_chunk_grad(&b, task / all_heads, task % all_heads, scratch, &layout);
    }
    add_taps(call, b.depthwise_sums, chunks, &s);
    kernel_add_partials(call->out[CCA_GRAD_D_DEPTHWISE_BIAS], b.depthwise_bias_sums, chunks, s.convolved);
    sum_chunks(b.grouped_sums, chunks, s.convolved * 2 * s.dim);
    kernel_add_to_gradient(call, call->out[CCA_GRAD_D_GROUPED_WEIGHT], 0, b.grouped_sums, s.convolved * 2 * s.dim);
    kernel_add_partials(call->out[CCA_GRAD_D_GROUPED_BIAS], b.grouped_bias_sums, blocks, s.convolved);
    kernel_add_partials(call->out[CCA_GRAD_D_TEMPERATURE], b.temperature_sums, blocks, s.kv_heads);
}
