/* linear_cross_entropy on a CPU, one chunk of rows at a time: a GEMM to WIDE logits, a thread
 * per row for its loss and gradient, and two GEMMs that use the gradient. Ranks that divide the
 * vocabulary first exchange the peak of every row of a chunk; chunks are the same on all ranks.
 * The losses of rows are summed in order, in double. In fp8 the gradient is cast first. Also
 * last_row and soft_cap. */
#include "backend/cpu/kernel.h"
#include "base/float8.h"
#include "ops/exponentials.h"
#include "ops/linear_gemm.h"
#include "ops/loss/loss_fp8.h"

enum { PEAK_NUMBERS = 3 };

/* Returns the rows of a chunk: about four million logits; depends only on shapes. */
static inline int64_t chunk_rows(int64_t rows, int64_t vocabulary, int ranks) {
    return int_min(rows, int_max(16, int_min(1024, ((int64_t)1 << 22) / loss_largest_share(vocabulary, ranks))));
}

static int64_t chunk_rows_of(const Graph *graph, const Node *node) {
    const LossAttributes *attributes = node->attributes;
    return chunk_rows(graph_rows(graph, node->in[LOSS_X]), attributes->vocabulary, mesh_size(graph->mesh, AXES_TENSOR));
}

static int64_t loss_cpu_workspace(const Graph *graph, const Node *node) {
    int64_t rows = graph_rows(graph, node->in[LOSS_X]), vocabulary = graph_rows(graph, node->in[LOSS_W]),
            chunk = chunk_rows_of(graph, node);
    int64_t wide = precision_bytes(graph->precision, TYPE_WIDE), compute = precision_bytes(graph->precision, TYPE_COMPUTE);
    int64_t peaks = mesh_size(graph->mesh, AXES_TENSOR) * chunk * PEAK_NUMBERS;
    return (chunk * vocabulary + rows + peaks) * wide + (node->out[LOSS_D_X] ? chunk * vocabulary * compute : 0);
}

/* Adds the quantized d_logits by rows and by columns, and their scale, at the end. */
static int64_t codes_workspace(const Graph *graph, const Node *node) {
    int64_t quantized = chunk_rows_of(graph, node) * graph_rows(graph, node->in[LOSS_W]);
    return loss_cpu_workspace(graph, node) + (int64_t)sizeof(float) + (node->out[LOSS_D_X] ? 2 * quantized : 0);
}

/* For some logits of a row: the largest, the sum of e^(logit - most), and the target's logit, or
 * -infinity without it. */
typedef struct CpuPeak { W most, sum, picked; } CpuPeak;
static_assert(sizeof(CpuPeak) == PEAK_NUMBERS * sizeof(W), "ranks exchange it as numbers");

/* Replaces logits by e^(logit - most). */
static CpuPeak find_peak(W *restrict logits, int64_t target, int64_t vocabulary) {
    W most = logits[0], picked = target >= 0 && target < vocabulary ? logits[target] : (W)-INFINITY;
#pragma omp simd reduction(max : most)
    for (int64_t j = 0; j < vocabulary; j++) most = logits[j] > most ? logits[j] : most;
    return (CpuPeak){most, exponentials_sum(logits, vocabulary, most, logits), picked};
}

/* Returns the peak of all logits of a row from the peaks of `count` ranks, `stride` peaks apart. */
static CpuPeak merge_peaks(const CpuPeak *peaks, int count, int64_t stride) {
    CpuPeak all = peaks[0];
    for (int i = 1; i < count; i++) {
        const CpuPeak *next = &peaks[i * stride];
        W most = next->most > all.most ? next->most : all.most;
        all.sum = all.sum * wide_exp(all.most - most) + next->sum * wide_exp(next->most - most);
        all.most = most;
        all.picked = next->picked > all.picked ? next->picked : all.picked;
    }
    return all;
}

/* The work on a chunk of rows. Targets count from the rank's first row of the vocabulary. */
typedef struct LossChunk {
    W *logits, *losses;
    T *d_logits; /* NULL: not wanted */
    const int32_t *targets;
    int64_t rows, vocabulary, first_token;
    const W *scale; /* of row r: scale[r * scale_step] */
    int scale_step;
    W cap; /* of logits; 0: none */
} LossChunk;

/* Replaces logits by cap * tanh(logits / cap), and sets d_logits to the derivatives. */
static void cap_chunk(const LossChunk *c) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < c->rows * c->vocabulary; i++) {
        W part = wide_tanh(c->logits[i] / c->cap);
        c->logits[i] = c->cap * part;
        if (c->d_logits) c->d_logits[i] = to_compute(1 - part * part);
    }
}

/* Writes the gradient of -log softmax(logits)[target] times the row's scale; the row's logits are the
 * values of find_peak, which returned `own`. */
static void row_gradient(const LossChunk *c, int64_t r, const CpuPeak *own, const CpuPeak *all) {
    T *restrict d_logits = c->d_logits + r * c->vocabulary;
    const W *restrict powers = c->logits + r * c->vocabulary;
    W share = wide_exp(own->most - all->most), scale = c->scale[r * c->scale_step], factor = share * scale / all->sum;
    int64_t target = c->targets[r] - c->first_token;
    bool here = target >= 0 && target < c->vocabulary;
    W at_target = here ? (powers[target] * share / all->sum - 1) * scale : 0;
    if (c->cap > 0) {
        if (here) at_target *= to_wide(d_logits[target]);
        for (int64_t j = 0; j < c->vocabulary; j++) d_logits[j] = to_compute(powers[j] * factor * to_wide(d_logits[j]));
    } else
        for (int64_t j = 0; j < c->vocabulary; j++) d_logits[j] = to_compute(powers[j] * factor);
    if (here) d_logits[target] = to_compute(at_target);
}

static void finish_row(const LossChunk *c, int64_t r, const CpuPeak *own, const CpuPeak *all) {
    c->losses[r] = -exponentials_log_share(all->picked, all->most, all->sum);
    if (c->d_logits) row_gradient(c, r, own, all);
}

/* Skips a row without a target. */
static void skip_row(const LossChunk *c, int64_t r) {
    c->losses[r] = 0;
    if (c->d_logits) memset(c->d_logits + r * c->vocabulary, 0, c->vocabulary * sizeof(T));
}

static void finish_chunk(const LossChunk *c) {
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < c->rows; r++) {
        if (c->targets[r] < 0) skip_row(c, r);
        else {
            CpuPeak peak = find_peak(c->logits + r * c->vocabulary, c->targets[r] - c->first_token, c->vocabulary);
            finish_row(c, r, &peak, &peak);
        }
    }
}

/* finish_chunk for ranks that divide the vocabulary. `peaks` is [ranks, rows]. */
static void finish_shared_chunk(const LossChunk *c, const Mesh *mesh, CpuPeak *peaks) {
    int size = mesh_size(mesh, AXES_TENSOR);
    CpuPeak *own = peaks + mesh_index(mesh, AXES_TENSOR) * c->rows;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < c->rows; r++) own[r] = find_peak(c->logits + r * c->vocabulary, c->targets[r] - c->first_token, c->vocabulary);
    loss_gather_peaks(mesh, peaks, c->rows, (LossPeak){comm_real_type(sizeof(W)), PEAK_NUMBERS});
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < c->rows; r++) {
        CpuPeak all = merge_peaks(peaks + r, size, c->rows);
        if (c->targets[r] < 0) skip_row(c, r);
        else finish_row(c, r, &own[r], &all);
    }
}

/* Casts d_logits, whose amax is at most the loss's scale. */
static void cast_gradients(const OpCall *call, const T *d_logits, const LossFp8 *quantized) {
    bool fnuz = device_info(call->device)->fp8_fnuz;
    Fp8Format format = fp8_format(FP8_E5M2, fnuz);
    int64_t vocabulary = call->in_shape[LOSS_W][0];
    float m = fp8_multiplier((float)*(const W *)call->in[LOSS_SCALE], fp8_largest(FP8_E5M2, fnuz), false);
    *quantized->scale = 1 / m;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < quantized->rows; r++) {
        uint8_t *restrict row = quantized->by_rows + r * quantized->stride;
#pragma omp simd
        for (int64_t j = 0; j < vocabulary; j++) row[j] = fp8_from_float((float)to_wide(d_logits[r * vocabulary + j]) * m, format);
    }
#pragma omp parallel for schedule(static)
    for (int64_t j = 0; j < vocabulary; j++)
        for (int64_t r = 0; r < quantized->rows; r++)
            quantized->by_columns[j * quantized->rows + r] = quantized->by_rows[r * quantized->stride + j];
}

static void run_gemm_cpu(const OpCall *call, const Gemm *g) {
    if (gemm_is_fp8(g->input)) device_gemm_fp8(call->device, g);
    else gemm(g);
}

/* Adds the gradient of trained rows of w, from their columns of d_logits. */
static void add_row_gradients(const OpCall *call, const LossChunk *c, const T *x) {
    const TokenRuns *runs = &((const LossAttributes *)call->attributes)->runs;
    int64_t columns = call->in_shape[LOSS_X][1], bytes = columns * (int64_t)(call->compute_gradients ? sizeof(T) : sizeof(W));
    for (const TokenRun *run = runs->items; run < runs->items + runs->count; run++) {
        LinearShape shape = {.rows = c->rows, .in = columns, .out = run->count};
        char *d_rows = (char *)call->out[LOSS_D_TOKENS] + run->row * bytes;
        Gemm g = linear_grad_weight_gemm(shape, KERNEL_GEMM_COMPUTE, c->d_logits + run->first, x, d_rows, false);
        g.lda = c->vocabulary;
        g.output = kernel_gradient_type(call);
        gemm(&g);
    }
}

/* The gradients of x and w, of a chunk's d_logits. */
static void add_gradients(const OpCall *call, const LossChunk *c, const LossFp8 *quantized) {
    int64_t columns = call->in_shape[LOSS_X][1];
    LinearShape shape = {.rows = c->rows, .in = columns, .out = c->vocabulary};
    T *d_x = (T *)call->out[LOSS_D_X] + quantized->first * columns;
    bool coded = call->in[LOSS_X_SCALE];
    if (coded) cast_gradients(call, c->d_logits, quantized);
    Gemm grad_input = coded ? loss_fp8_grad_input(call, quantized, d_x)
                            : linear_grad_input_gemm(shape, KERNEL_GEMM_COMPUTE, c->d_logits, call->in[LOSS_W], d_x);
    grad_input.output = KERNEL_GEMM_COMPUTE;
    run_gemm_cpu(call, &grad_input);
    if (call->out[LOSS_D_TOKENS]) add_row_gradients(call, c, (const T *)call->in[LOSS_X] + quantized->first * columns);
    if (!call->out[LOSS_D_W]) return;
    Gemm grad_weight =
        coded ? loss_fp8_grad_weight(call, quantized)
              : linear_grad_weight_gemm(shape, KERNEL_GEMM_COMPUTE, c->d_logits, (const T *)call->in[LOSS_X] + quantized->first * columns,
                    call->out[LOSS_D_W], quantized->first == 0 && call->overwrite);
    grad_weight.output = kernel_gradient_type(call);
    run_gemm_cpu(call, &grad_weight);
}

/* Workspace: logits WIDE [chunk, vocabulary], losses WIDE [R], peaks WIDE
 * [ranks, chunk, PEAK_NUMBERS], d_logits COMPUTE [chunk, vocabulary]; in fp8 also their scale and
 * quantized values by rows and by columns. */
static void run_head(const OpCall *call) {
    const LossAttributes *attributes = call->attributes;
    const int32_t *targets = call->in[LOSS_TARGETS];
    const W *scale = call->in[LOSS_SCALE];
    W *loss = call->out[LOSS_LOSS], *kept = call->out[LOSS_LOGITS];
    int64_t rows = call->in_shape[LOSS_X][0], columns = call->in_shape[LOSS_X][1], vocabulary = call->in_shape[LOSS_W][0];
    int ranks = mesh_size(call->mesh, AXES_TENSOR), scale_step = call->in_shape[LOSS_SCALE][0] > 1;
    int64_t chunk = chunk_rows(rows, attributes->vocabulary, ranks);
    int64_t first_token = cut_share(attributes->vocabulary, mesh_index(call->mesh, AXES_TENSOR), ranks).first;
    bool trains = call->out[LOSS_D_X];
    W *logits = call->workspace, *scratch = logits + chunk * vocabulary;
    W *row_losses = call->out[LOSS_ROWS] ? call->out[LOSS_ROWS] : scratch;
    CpuPeak *peaks = (CpuPeak *)(scratch + rows);
    T *d_logits = (T *)(peaks + ranks * chunk);
    float *quantized_scale = (float *)(d_logits + (trains ? chunk * vocabulary : 0));
    uint8_t *by_rows = (uint8_t *)(quantized_scale + 1);
    for (int64_t first = 0; first < rows; first += chunk) {
        LossFp8 quantized = {.first = first,
            .rows = int_min(chunk, rows - first),
            .stride = vocabulary,
            .by_rows = by_rows,
            .by_columns = by_rows + chunk * vocabulary,
            .scale = quantized_scale};
        LinearShape shape = {.rows = quantized.rows, .in = columns, .out = vocabulary};
        Gemm forward = call->in[LOSS_X_SCALE] ? loss_fp8_forward(call, &quantized, logits)
                                              : linear_gemm(shape, KERNEL_GEMM_COMPUTE, (const T *)call->in[LOSS_X] + first * columns,
                                                    call->in[LOSS_W], logits);
        forward.output = KERNEL_GEMM_WIDE;
        run_gemm_cpu(call, &forward);
        LossChunk work = {logits, row_losses + first, trains ? d_logits : NULL, targets + first, quantized.rows, vocabulary, first_token,
            scale + first * scale_step, scale_step, (W)attributes->cap};
        if (work.cap > 0) cap_chunk(&work);
        if (kept) memcpy(kept + first * vocabulary, logits, (size_t)(quantized.rows * vocabulary) * sizeof *logits);
        if (ranks == 1) finish_chunk(&work);
        else finish_shared_chunk(&work, call->mesh, peaks);
        if (trains) add_gradients(call, &work, &quantized);
    }
    if (!loss || mesh_index(call->mesh, AXES_TENSOR) > 0) return;
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) sum += row_losses[r];
    *loss += (W)(sum * *scale);
}

static void rehearse_head(const OpCall *call) {
    const LossAttributes *attributes = call->attributes;
    int64_t chunk = chunk_rows(call->in_shape[LOSS_X][0], attributes->vocabulary, mesh_size(call->mesh, AXES_TENSOR));
    loss_rehearse(call, chunk, (LossPeak){comm_real_type(sizeof(W)), PEAK_NUMBERS});
}

CPU_OP(linear_cross_entropy, loss_cpu_workspace, .rehearse = rehearse_head) { run_head(call); }
CPU_OP(fp8_linear_cross_entropy, codes_workspace, .rehearse = rehearse_head) { run_head(call); }

CPU_OP(soft_cap) {
    const W *x = call->in[SOFT_CAP_X], cap = (W)((const SoftCapAttributes *)call->attributes)->cap;
    W *y = call->out[SOFT_CAP_Y];
    int64_t count = call->in_shape[SOFT_CAP_X][0] * call->in_shape[SOFT_CAP_X][1];
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++) y[i] = cap * wide_tanh(x[i] / cap);
}

CPU_OP(last_row) {
    const T *x = call->in[LAST_ROW_X];
    int64_t rows = call->in_shape[LAST_ROW_X][0], columns = call->in_shape[LAST_ROW_X][1];
    memcpy(call->out[LAST_ROW_Y], x + (rows - 1) * columns, columns * sizeof(T));
}
