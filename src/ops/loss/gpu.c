/* linear_cross_entropy on a GPU, one chunk of rows at a time: a GEMM computes the chunk's logits in
 * bf16; one kernel replaces each row by its loss and, in the same memory, its gradient; two GEMMs
 * use the gradient. In fp8 the kernel writes the quantized gradient instead, which is then
 * transposed into the logits' memory for d_w. Also last_row. Scratch belongs to the call.
 *
 * Ranks that divide the vocabulary exchange the peak of every row of a chunk between two kernels,
 * one for the peaks and one for losses and gradients: the second reads the logits from memory
 * again.
 *
 * The lower bound, for ZAYA1's 262,272 x 2,048 head and a chunk of 4,096 rows (2.15 GB of logits):
 * 13.2 TFLOP of GEMMs take 17 ms at 780 TFLOP/s. The row kernel reads and writes the logits once,
 * 1.4 ms at 3 TB/s. d_w, in fp32, is read and written once per chunk, another 1.4 ms that the GEMM
 * hides in part. So chunks are few and large: chunks of 1,024 rows would move d_w four times as
 * often and take up to a fifth longer.
 *
 * A row of 524 KB does not fit any multiprocessor's cache. On Hopper a cluster of multiprocessors
 * holds it (gpu_cluster_kernels.h). Elsewhere, and if ranks divide the vocabulary, a row is read
 * twice: forwards for its maximum and sum, and backwards for the gradient. Few rows are in flight
 * at once, so much of the second read hits the GPU's last-level cache. The kernels _capped apply a
 * soft-cap to logits as they read them, and round the result to bf16; there are none for
 * clusters. Also soft_cap. */
#include "backend/gpu/vector.h"
#include "ops/loss/gpu_cluster_kernels.h"

enum {
    AMD_THREADS = 256,
    NVIDIA_THREADS = 512,
    AHEAD = 4, /* vectors of 8 logits in flight per thread */
    ADD_THREADS = 256,
};

/* The numbers that ranks that divide the vocabulary exchange per row: log2 of the sum of e^x over
 * their logits, and the target's logit, or -infinity without it. */
typedef struct GpuPeak { float log2_sum, target; } GpuPeak;

/* `logits` as above, with this rank's columns; targets count from `first`; peaks [ranks, count]. */
typedef struct SharedLossArguments {
    RowLossArguments row;
    GpuPeak GLOBAL *peaks;
    int32_t first, rank, ranks;
} SharedLossArguments;

typedef struct AddLossesArguments {
    float GLOBAL *loss;
    const float GLOBAL *losses, *scale;
    int64_t count;
} AddLossesArguments;
typedef struct SoftCapArguments {
    const float GLOBAL *x;
    float GLOBAL *y;
    int64_t count;
    float cap;
} SoftCapArguments;
typedef struct LastRowArguments {
    bf16 GLOBAL *to;
    const bf16 GLOBAL *from;
    int64_t columns;
} LastRowArguments;

#ifdef GPU_DEVICE

#ifdef __NVPTX__
enum { THREADS = NVIDIA_THREADS };
#else
enum { THREADS = AMD_THREADS };
#endif
enum { STEP = THREADS * AHEAD, WAVES = THREADS / WAVE };

/* cap * tanh(x / cap), with tanh(z) = 1 - 2 / (1 + e^2z). */
INLINE float soft_cap(float x, float cap) { return cap - 2 * cap * fast_reciprocal(1 + fast_exp2(2 * LOG2_E / cap * x)); }
INLINE uint32_t soft_cap_pair(uint32_t pair, float cap) {
    return to_bf16_pair(soft_cap(to_float_low(pair), cap), soft_cap(to_float_high(pair), cap));
}
/* Returns dy / dx of a capped logit y; 1 without a cap. */
INLINE float soft_cap_slope(float y, float cap) { return cap > 0 ? 1 - y / cap * (y / cap) : 1; }

/* For the logits read so far: their maximum, and the sums of e^(x - most) over low and over high
 * halves. */
typedef struct LossSoftmax { float most, low, high; } LossSoftmax;

INLINE void softmax_raise(LossSoftmax *s, float most) {
    float factor = power(s->most, most);
    *s = (LossSoftmax){most, s->low * factor, s->high * factor};
}

INLINE void softmax_add(LossSoftmax *s, const u32x4 values[AHEAD]) {
    float most = s->most;
    UNROLL for (int k = 0; k < AHEAD; k++) UNROLL for (int i = 0; i < 4; i++) most =
        __builtin_fmaxf(most, __builtin_fmaxf(to_float_low(values[k][i]), to_float_high(values[k][i])));
    softmax_raise(s, most);
    UNROLL for (int k = 0; k < AHEAD; k++) UNROLL for (int i = 0; i < 4; i++) {
        s->low += power(to_float_low(values[k][i]), most);
        s->high += power(to_float_high(values[k][i]), most);
    }
}

INLINE void softmax_add_one(LossSoftmax *s, float x) {
    softmax_raise(s, __builtin_fmaxf(s->most, x));
    s->low += power(x, s->most);
}

/* Returns log2 of the sum of e^x over the block's logits, in every thread. */
INLINE float softmax_log2(LossSoftmax s) {
    static SHARED float mosts[WAVES], sums[WAVES];
    softmax_raise(&s, wave_max(s.most));
    float sum = wave_sum(s.low + s.high), most = FAR_BELOW, total = 0;
    barrier();
    if (lane_id() == 0) {
        mosts[wave_id()] = s.most;
        sums[wave_id()] = sum;
    }
    barrier();
    UNROLL for (int i = 0; i < WAVES; i++) most = __builtin_fmaxf(most, mosts[i]);
    UNROLL for (int i = 0; i < WAVES; i++) total += sums[i] * power(mosts[i], most);
    return most * LOG2_E + fast_log2(total);
}

/* How threads divide a row: thread v % THREADS takes vector v, in whole groups of STEP and one
 * partial group; then fewer than 8 single logits. */
typedef struct LossRow {
    const float GLOBAL *wide; /* NULL, or the logits before they are rounded, in place of `logits` */
    bf16 GLOBAL *logits;
    u32x4 GLOBAL *vectors;
    RowGradients gradients;
    int32_t count, whole, rest;
    float cap; /* the constant 0 in kernels without a cap */
} LossRow;

INLINE LossRow loss_row(const RowLossArguments *a, int64_t row, const bool coded, const bool capped) {
    bf16 GLOBAL *logits = a->logits + row * a->stride;
    int32_t count = a->vocabulary / 8;
    return (LossRow){.logits = logits,
        .vectors = (u32x4 GLOBAL *)logits,
        .gradients = row_gradients(a, row, 0, coded),
        .count = count,
        .whole = count / STEP * STEP,
        .rest = a->vocabulary % 8,
        .cap = capped ? a->cap : 0};
}

INLINE float row_logit(const LossRow *row, int32_t at) {
    float x = to_float(row->wide ? to_bf16(row->wide[at]) : row->logits[at]);
    return row->cap > 0 ? to_float(to_bf16(soft_cap(x, row->cap))) : x;
}

INLINE u32x4 row_vector(const LossRow *row, int32_t v) {
    if (!row->wide) return row->vectors[v];
    u32x4 x;
    UNROLL for (int i = 0; i < 4; i++) x[i] = to_bf16_pair(row->wide[v * 8 + 2 * i], row->wide[v * 8 + 2 * i + 1]);
    return x;
}

/* `cut` is a constant in every caller: whether vectors may be after the end. */
INLINE void row_load(const LossRow *row, int32_t first, bool cut, u32x4 values[AHEAD]) {
    UNROLL for (int k = 0; k < AHEAD; k++) {
        int32_t v = first + k * THREADS + thread_id();
        bool inside = !cut || v < row->count;
        values[k] = inside ? row_vector(row, v) : (u32x4)NO_LOGITS;
        if (inside && row->cap > 0) UNROLL for (int i = 0; i < 4; i++) values[k][i] = soft_cap_pair(values[k][i], row->cap);
    }
}

INLINE float row_log2(const LossRow *row) {
    LossSoftmax s = {FAR_BELOW, 0, 0};
    u32x4 values[AHEAD];
    for (int32_t first = 0; first < row->whole; first += STEP) {
        row_load(row, first, false, values);
        softmax_add(&s, values);
    }
    row_load(row, row->whole, true, values);
    softmax_add(&s, values);
    if (thread_id() < row->rest) softmax_add_one(&s, row_logit(row, row->count * 8 + thread_id()));
    return softmax_log2(s);
}

/* `wanted` is 1 for the target's logit, else 0. */
INLINE float gradient_of(const LossRow *row, float x, float log2_sum, float wanted, float scale) {
    return (fast_exp2(x * LOG2_E - log2_sum) - wanted) * scale * soft_cap_slope(x, row->cap);
}

INLINE void write_group(const LossRow *row, int32_t first, bool cut, float log2_sum, float scale, const bool coded) {
    u32x4 values[AHEAD];
    row_load(row, first, cut, values);
    UNROLL for (int k = 0; k < AHEAD; k++) {
        int32_t v = first + k * THREADS + thread_id();
        u32x4 out;
        UNROLL for (int i = 0; i < 4; i++) out[i] = to_bf16_pair(gradient_of(row, to_float_low(values[k][i]), log2_sum, 0, scale),
            gradient_of(row, to_float_high(values[k][i]), log2_sum, 0, scale));
        if (!cut || v < row->count) put_gradients(&row->gradients, v, out, coded);
    }
}

/* Writes (softmax - one hot of target) * scale. A target that is not in the row is ignored. */
INLINE void write_gradient(
    const LossRow *row, int32_t vocabulary, float log2_sum, float scale, int32_t target, float x_target, const bool coded) {
    int32_t single = row->count * 8 + thread_id();
    if (thread_id() < row->rest) put_gradient(&row->gradients, single, gradient_of(row, row_logit(row, single), log2_sum, 0, scale), coded);
    write_group(row, row->whole, true, log2_sum, scale, coded);
    for (int32_t first = row->whole - STEP; first >= 0; first -= STEP) write_group(row, first, false, log2_sum, scale, coded);
    if (target < 0 || target >= vocabulary) return;
    /* by the thread that wrote there before, so the order is certain */
    int32_t writer = target < row->count * 8 ? target / 8 % THREADS : target % 8;
    if (thread_id() == writer) put_gradient(&row->gradients, target, gradient_of(row, x_target, log2_sum, 1, scale), coded);
}

INLINE void write_zeros(const LossRow *row, const bool coded) {
    for (int32_t v = thread_id(); v < row->count; v += THREADS) put_gradients(&row->gradients, v, (u32x4)0, coded);
    if (thread_id() < row->rest) put_gradient(&row->gradients, row->count * 8 + thread_id(), 0, coded);
}

INLINE void rows_loss(const RowLossArguments *a, const bool coded, const bool capped) {
    for (int64_t i = block_x(); i < a->count; i += a->blocks) {
        LossRow row = loss_row(a, i, coded, capped);
        int32_t target = a->targets[i];
        float loss = 0;
        if (target >= 0) {
            float x_target = row_logit(&row, target), log2_sum = row_log2(&row);
            loss = loss_of(log2_sum, x_target);
            if (a->gradient) write_gradient(&row, a->vocabulary, log2_sum, a->scale[i * a->scale_step], target, x_target, coded);
        } else if (a->gradient) {
            write_zeros(&row, coded);
        }
        if (thread_id() == 0) a->losses[i] = loss;
    }
}

KERNEL(row_loss, RowLossArguments) { rows_loss(&a, false, false); }
KERNEL(row_loss_capped, RowLossArguments) { rows_loss(&a, false, true); }
#if GPU_MULTIPLIES_FP8
KERNEL(row_fp8, RowLossArguments) { rows_loss(&a, true, false); }
KERNEL(row_fp8_capped, RowLossArguments) { rows_loss(&a, true, true); }
#endif

KERNEL(drawn_loss, DrawnLossArguments) {
    int32_t count = a.vocabulary / 8;
    LossRow row = {
        .wide = a.logits + (int64_t)block_x() * a.vocabulary, .count = count, .whole = count / STEP * STEP, .rest = a.vocabulary % 8};
    float log2_sum = row_log2(&row);
    float GLOBAL *drawn = a.drawn + (int64_t)block_x() * a.values; /* pairs of a token and its log-probability */
    for (int i = 2 * thread_id(); i < a.values; i += 2 * THREADS) {
        bool valid = drawn[i] >= 0 && drawn[i + 1] == drawn[i + 1];
        if (valid) drawn[i + 1] = -loss_of(log2_sum, row_logit(&row, (int32_t)drawn[i]));
    }
}

#if defined __CUDA_ARCH_FEAT_SM90_ALL
ROW_LOSS_CLUSTER(1)
ROW_LOSS_CLUSTER(2)
ROW_LOSS_CLUSTER(4)
ROW_LOSS_CLUSTER(8)
#endif

/* Computes this rank's peaks. */
INLINE void rows_peaks(const SharedLossArguments *a, const bool capped) {
    for (int64_t i = block_x(); i < a->row.count; i += a->row.blocks) {
        LossRow row = loss_row(&a->row, i, false, capped);
        int32_t target = a->row.targets[i] - a->first;
        float x_target = target >= 0 && target < a->row.vocabulary ? row_logit(&row, target) : -__builtin_inff();
        float log2_sum = row_log2(&row);
        if (thread_id() == 0) a->peaks[a->rank * a->row.count + i] = (GpuPeak){log2_sum, x_target};
    }
}

KERNEL(row_peaks, SharedLossArguments) { rows_peaks(&a, false); }
KERNEL(row_peaks_capped, SharedLossArguments) { rows_peaks(&a, true); }

/* Returns the peak of a row over all ranks, in rank order. */
INLINE GpuPeak merge_peaks(const SharedLossArguments *a, int64_t row) {
    GpuPeak all = a->peaks[row];
    for (int r = 1; r < a->ranks; r++) {
        GpuPeak next = a->peaks[r * a->row.count + row];
        float most = __builtin_fmaxf(all.log2_sum, next.log2_sum);
        all.log2_sum = most + fast_log2(fast_exp2(all.log2_sum - most) + fast_exp2(next.log2_sum - most));
        all.target = __builtin_fmaxf(all.target, next.target);
    }
    return all;
}

/* Computes loss and gradient after all peaks have arrived. */
INLINE void shared_rows_loss(const SharedLossArguments *a, const bool coded, const bool capped) {
    const RowLossArguments *rows = &a->row;
    for (int64_t i = block_x(); i < rows->count; i += rows->blocks) {
        LossRow row = loss_row(rows, i, coded, capped);
        GpuPeak all = merge_peaks(a, i);
        int32_t target = rows->targets[i];
        if (thread_id() == 0) rows->losses[i] = target >= 0 ? loss_of(all.log2_sum, all.target) : 0;
        if (rows->gradient && target >= 0)
            write_gradient(&row, rows->vocabulary, all.log2_sum, rows->scale[i * rows->scale_step], target - a->first, all.target, coded);
        else if (rows->gradient) write_zeros(&row, coded);
    }
}

KERNEL(shared_row_loss, SharedLossArguments) { shared_rows_loss(&a, false, false); }
KERNEL(shared_row_loss_capped, SharedLossArguments) { shared_rows_loss(&a, false, true); }
#if GPU_MULTIPLIES_FP8
KERNEL(shared_row_fp8, SharedLossArguments) { shared_rows_loss(&a, true, false); }
KERNEL(shared_row_fp8_capped, SharedLossArguments) { shared_rows_loss(&a, true, true); }
#endif

/* Runs in one block. */
KERNEL(add_losses, AddLossesArguments) {
    static SHARED float scratch[ADD_THREADS / WAVE];
    float sum = 0;
    _Pragma("clang loop unroll_count(8)") for (int64_t i = thread_id(); i < a.count; i += ADD_THREADS) sum += a.losses[i];
    sum = block_sum(sum, scratch, ADD_THREADS);
    if (thread_id() == 0) *a.loss += sum * *a.scale;
}

INLINE void soft_cap_at(const SoftCapArguments *a, int64_t at, int unit) {
    f32x8 x = load8_wide(a->x + at, unit), y = 0;
    UNROLL for (int i = 0; i < unit; i++) y[i] = soft_cap(x[i], a->cap);
    store8_wide(a->y + at, y, unit);
}

FLAT_KERNEL(soft_cap_logits, SoftCapArguments, soft_cap_at)

KERNEL(copy_row, LastRowArguments) {
    int64_t column = (int64_t)block_x() * ADD_THREADS + thread_id();
    if (column < a.columns) a.to[column] = a.from[column];
}

#else

#include <string.h>

#include "backend/gpu/kernel_launch.h"
#include "base/math.h"
#include "ops/fp8/fp8.h"
#include "ops/linear_gemm.h"
#include "ops/loss/loss_fp8.h"

LAUNCHERS(row_loss, RowLossArguments, row_loss, row_fp8, row_loss_capped, row_fp8_capped)
LAUNCHERS(row_loss_cluster, RowLossArguments, row_loss_cluster_1, row_loss_cluster_2, row_loss_cluster_4, row_loss_cluster_8,
    row_fp8_cluster_1, row_fp8_cluster_2, row_fp8_cluster_4, row_fp8_cluster_8)
LAUNCHERS(row_peaks, SharedLossArguments, row_peaks, row_peaks_capped)
LAUNCHERS(shared_row_loss, SharedLossArguments, shared_row_loss, shared_row_fp8, shared_row_loss_capped, shared_row_fp8_capped)
LAUNCHER(add_losses, AddLossesArguments)
LAUNCHER(soft_cap_logits, SoftCapArguments)
LAUNCHER(copy_row, LastRowArguments)
LAUNCHER(drawn_loss, DrawnLossArguments)

static int loss_threads(const Device *device) { return device_info(device)->wave == 32 ? NVIDIA_THREADS : AMD_THREADS; }

void loss_of_draws(Device *device, const LossOfDraws *draws) {
    DrawnLossArguments arguments = {
        .logits = draws->logits, .drawn = draws->drawn, .vocabulary = (int32_t)draws->vocabulary, .values = (int32_t)draws->values};
    launch_drawn_loss(device, (LaunchShape){.x = draws->rows, .threads = loss_threads(device)}, &arguments);
}

/* Returns the rows of a chunk, which depend only on shapes: half a billion logits (1 GiB), but at
 * least 4,096 rows, in equal shares. In fp8 half as many, because the quantized d_logits and w take
 * memory too. */
static int64_t chunk_rows(int64_t rows, int64_t vocabulary, int ranks, bool coded) {
    enum { LEAST = 4096, TILE = 128 };
    int64_t most = int_max(((int64_t)1 << 29) / loss_largest_share(vocabulary, ranks), LEAST) / (coded ? 2 : 1);
    return rows <= most ? rows : divide_up(divide_up(rows, divide_up(rows, most)), TILE) * TILE;
}

/* Returns the elements between rows of logits: rows are aligned to 128 bytes. */
static int64_t stride_of(int64_t vocabulary) { return divide_up(vocabulary, 64) * 64; }

/* Returns the blocks, and thus rows, in flight at once: as few as keep memory busy, up to twice as
 * many if their rows fit the last-level cache (H100's, MI300X's). */
static int64_t blocks_of(const DeviceInfo *info, int64_t row_bytes) {
    bool nvidia = info->wave == 32;
    int64_t least = nvidia ? 1 : 2, cache = (int64_t)(nvidia ? 50 : 256) << 20, fit = cache / (row_bytes * info->processors);
    return info->processors * (fit < least ? least : fit > 2 * least ? 2 * least : fit);
}

/* The workspace, as byte offsets after the logits bf16 [chunk, stride]: in fp8 the quantized
 * d_logits by rows [chunk, stride] and their scale (those by columns use the logits' memory); peaks
 * [ranks, chunk] for several ranks; losses [R]. */
typedef struct LossWorkspace { int64_t quantized, quantized_scale, peaks, losses, bytes; } LossWorkspace;

static LossWorkspace loss_gpu_layout(int64_t chunk, int64_t stride, int64_t rows, int ranks, bool coded) {
    enum { SCALE_BYTES = 256 };
    LossWorkspace l = {.quantized = chunk * stride * (int64_t)sizeof(bf16)};
    l.quantized_scale = l.quantized + (coded ? chunk * stride : 0);
    l.peaks = l.quantized_scale + (coded ? SCALE_BYTES : 0);
    l.losses = l.peaks + (ranks > 1 ? ranks * chunk * (int64_t)sizeof(GpuPeak) : 0);
    l.bytes = l.losses + rows * (int64_t)sizeof(float);
    return l;
}

/* Returns the arguments for the rows of `quantized`. */
static RowLossArguments loss_arguments(const OpCall *call, bf16 *logits, float *losses, const LossFp8 *quantized) {
    const DeviceInfo *info = device_info(call->device);
    int64_t vocabulary = call->in_shape[LOSS_W][0], blocks = blocks_of(info, stride_of(vocabulary) * (int64_t)sizeof *logits);
    int64_t first = quantized->first, count = quantized->rows;
    int32_t scale_step = call->in_shape[LOSS_SCALE][0] > 1;
    return (RowLossArguments){.logits = logits,
        .targets = (const int32_t *)call->in[LOSS_TARGETS] + first,
        .scale = (const float *)call->in[LOSS_SCALE] + first * scale_step,
        .scale_step = scale_step,
        .losses = losses + first,
        .count = count,
        .stride = stride_of(vocabulary),
        .vocabulary = (int32_t)vocabulary,
        .gradient = call->out[LOSS_D_X] != NULL,
        .blocks = (int32_t)(count < blocks ? count : blocks),
        .quantized = call->in[LOSS_X_SCALE] ? quantized->by_rows : NULL,
        .quantized_scale = quantized->scale,
        .largest = fp8_largest(FP8_E5M2, info->fp8_fnuz),
        .cap = (float)((const LossAttributes *)call->attributes)->cap};
}

/* Computes losses and d_logits with clusters that hold a row in shared memory; returns false if
 * there are no clusters, a row is too long, logits have a cap, or drawn_loss must give the same bits. */
static bool finish_by_clusters(Device *device, const RowLossArguments *rows) {
    if (strcmp(device_info(device)->target, "sm_90a") || rows->cap > 0 || device_info(device)->exact) return false;
    enum { CLUSTER_FORMS = 4 };
    int form = 0;
    while (slice_vectors(rows->vocabulary, 1 << form) > SLICE_VECTORS)
        if (1 << ++form > MOST_BLOCKS) return false;
    LaunchShape shape = {.x = rows->count << form,
        .threads = CLUSTER_THREADS,
        .shared = (int)slice_vectors(rows->vocabulary, 1 << form) * 8 * (int)sizeof *rows->logits};
    launch_row_loss_cluster(device, form + (rows->quantized ? CLUSTER_FORMS : 0), shape, rows);
    return true;
}

static const LossPeak gpu_peak = {COMM_F32, sizeof(GpuPeak) / sizeof(float)};

/* Computes the losses of a chunk, and its d_logits in place of the logits, or their quantized
 * values. `peaks` is scratch [ranks, rows of the chunk]. */
static void finish_chunk(const OpCall *call, const RowLossArguments *rows, GpuPeak *peaks) {
    const LossAttributes *attributes = call->attributes;
    int ranks = mesh_size(call->mesh, AXES_TENSOR), rank = mesh_index(call->mesh, AXES_TENSOR);
    LaunchShape shape = {.x = rows->blocks, .threads = loss_threads(call->device)};
    bool capped = rows->cap > 0;
    int form = (rows->quantized != NULL) + 2 * capped;
    if (ranks <= 1) {
        if (!finish_by_clusters(call->device, rows)) launch_row_loss(call->device, form, shape, rows);
        return;
    }
    SharedLossArguments arguments = {
        .row = *rows, .peaks = peaks, .first = (int32_t)cut_share(attributes->vocabulary, rank, ranks).first, .rank = rank, .ranks = ranks};
    launch_row_peaks(call->device, capped, shape, &arguments);
    loss_gather_peaks(call->mesh, peaks, rows->count, gpu_peak);
    launch_shared_row_loss(call->device, form, shape, &arguments);
}

static int64_t loss_gpu_workspace(const Graph *graph, const Node *node) {
    const LossAttributes *attributes = node->attributes;
    int ranks = mesh_size(graph->mesh, AXES_TENSOR);
    int64_t rows = graph_rows(graph, node->in[LOSS_X]), stride = stride_of(graph_rows(graph, node->in[LOSS_W]));
    bool coded = node->in[LOSS_X_SCALE];
    return loss_gpu_layout(chunk_rows(rows, attributes->vocabulary, ranks, coded), stride, rows, ranks, coded).bytes;
}

static void run_gemm_gpu(const OpCall *call, const Gemm *gemm) {
    if (gemm_is_fp8(gemm->input)) fp8_multiply_on_gpu(call, gemm);
    else device_gemm(call->device, gemm);
}

/* Adds the gradient of trained rows of w, from their columns of d_logits. */
static void add_row_gradients(const OpCall *call, LinearShape shape, const bf16 *d_logits, const bf16 *x) {
    const TokenRuns *runs = &((const LossAttributes *)call->attributes)->runs;
    int64_t bytes = shape.in * (int64_t)(call->compute_gradients ? sizeof(bf16) : sizeof(float));
    for (const TokenRun *run = runs->items; run < runs->items + runs->count; run++) {
        LinearShape part = {.rows = shape.rows, .in = shape.in, .out = run->count};
        char *d_rows = (char *)call->out[LOSS_D_TOKENS] + run->row * bytes;
        Gemm g = linear_grad_weight_gemm(part, GEMM_BF16, d_logits + run->first, x, d_rows, false);
        g.lda = stride_of(shape.out);
        g.output = gpu_gradient_type(call);
        device_gemm(call->device, &g);
    }
}

/* Gradients of x and w, of a chunk's d_logits. */
static void add_gradients(const OpCall *call, LinearShape shape, int64_t first, bf16 *d_logits) {
    bf16 *d_x = (bf16 *)call->out[LOSS_D_X] + first * shape.in;
    Gemm grad_input = linear_grad_input_gemm(shape, GEMM_BF16, d_logits, call->in[LOSS_W], d_x);
    grad_input.lda = stride_of(shape.out);
    device_gemm(call->device, &grad_input);
    const bf16 *x = (const bf16 *)call->in[LOSS_X] + first * shape.in;
    if (call->out[LOSS_D_TOKENS]) add_row_gradients(call, shape, d_logits, x);
    if (!call->out[LOSS_D_W]) return;
    Gemm grad_weight = linear_grad_weight_gemm(shape, GEMM_BF16, d_logits, x, call->out[LOSS_D_W], first == 0 && call->overwrite);
    grad_weight.output = gpu_gradient_type(call);
    grad_weight.lda = stride_of(shape.out);
    device_gemm(call->device, &grad_weight);
}

/* The same from quantized d_logits. */
static void add_fp8_gradients(const OpCall *call, const LossFp8 *quantized) {
    Gemm grad_input = loss_fp8_grad_input(call, quantized, (bf16 *)call->out[LOSS_D_X] + quantized->first * call->in_shape[LOSS_X][1]);
    grad_input.output = GEMM_BF16;
    fp8_multiply_on_gpu(call, &grad_input);
    if (!call->out[LOSS_D_W]) return;
    fp8_transpose_on_gpu(
        call->device, quantized->by_rows, quantized->rows, call->in_shape[LOSS_W][0], quantized->stride, quantized->by_columns);
    Gemm grad_weight = loss_fp8_grad_weight(call, quantized);
    grad_weight.output = gpu_gradient_type(call);
    fp8_multiply_on_gpu(call, &grad_weight);
}

static void cap_wide(const OpCall *call, const float *x, float *y, int64_t count, double cap) {
    SoftCapArguments arguments = {.x = x, .y = y, .count = count, .cap = (float)cap};
    launch_soft_cap_logits(call->device, flat_shape(count), &arguments);
}

static void run_head(const OpCall *call) {
    const LossAttributes *attributes = call->attributes;
    int ranks = mesh_size(call->mesh, AXES_TENSOR);
    int64_t rows = call->in_shape[LOSS_X][0], columns = call->in_shape[LOSS_X][1], vocabulary = call->in_shape[LOSS_W][0];
    bool coded = call->in[LOSS_X_SCALE];
    int64_t chunk = chunk_rows(rows, attributes->vocabulary, ranks, coded), stride = stride_of(vocabulary);
    LossWorkspace l = loss_gpu_layout(chunk, stride, rows, ranks, coded);
    char *at = call->workspace;
    bf16 *logits = call->workspace;
    float *kept = call->out[LOSS_LOGITS], *losses = call->out[LOSS_ROWS] ? call->out[LOSS_ROWS] : (float *)(at + l.losses);
    for (int64_t first = 0; first < rows; first += chunk) {
        LinearShape shape = {.rows = rows - first < chunk ? rows - first : chunk, .in = columns, .out = vocabulary};
        LossFp8 quantized = {.first = first,
            .rows = shape.rows,
            .stride = stride,
            .by_rows = (uint8_t *)at + l.quantized,
            .by_columns = (uint8_t *)logits,
            .scale = (float *)(at + l.quantized_scale)};
        Gemm forward = coded ? loss_fp8_forward(call, &quantized, logits)
                             : linear_gemm(shape, GEMM_BF16, (const bf16 *)call->in[LOSS_X] + first * columns, call->in[LOSS_W], logits);
        forward.output = GEMM_BF16, forward.ldc = stride;
        run_gemm_gpu(call, &forward);
        if (kept) {
            float *logits_kept = kept + first * vocabulary;
            forward.c = logits_kept, forward.output = GEMM_F32, forward.ldc = vocabulary;
            run_gemm_gpu(call, &forward);
            if (attributes->cap > 0) cap_wide(call, logits_kept, logits_kept, shape.rows * vocabulary, attributes->cap);
        }
        RowLossArguments arguments = loss_arguments(call, logits, losses, &quantized);
        finish_chunk(call, &arguments, (GpuPeak *)(at + l.peaks));
        if (!call->out[LOSS_D_X]) continue;
        if (coded) add_fp8_gradients(call, &quantized);
        else add_gradients(call, shape, first, logits);
    }
    if (!call->out[LOSS_LOSS] || mesh_index(call->mesh, AXES_TENSOR) > 0) return;
    launch_add_losses(call->device, (LaunchShape){.x = 1, .threads = ADD_THREADS},
        &(AddLossesArguments){.loss = call->out[LOSS_LOSS], .losses = losses, .scale = call->in[LOSS_SCALE], .count = rows});
}

static void rehearse_head(const OpCall *call) {
    const LossAttributes *attributes = call->attributes;
    bool coded = call->in[LOSS_X_SCALE];
    loss_rehearse(call, chunk_rows(call->in_shape[LOSS_X][0], attributes->vocabulary, mesh_size(call->mesh, AXES_TENSOR), coded), gpu_peak);
}

GPU_OP(linear_cross_entropy, loss_gpu_workspace, .rehearse = rehearse_head) { run_head(call); }
GPU_OP(fp8_linear_cross_entropy, loss_gpu_workspace, .rehearse = rehearse_head) { run_head(call); }

GPU_OP(soft_cap) {
    const int64_t *shape = call->in_shape[SOFT_CAP_X];
    const SoftCapAttributes *attributes = call->attributes;
    cap_wide(call, call->in[SOFT_CAP_X], call->out[SOFT_CAP_Y], shape[0] * shape[1], attributes->cap);
}

GPU_OP(last_row) {
    const bf16 *x = call->in[LAST_ROW_X];
    int64_t rows = call->in_shape[LAST_ROW_X][0], columns = call->in_shape[LAST_ROW_X][1];
    LastRowArguments arguments = {.to = call->out[LAST_ROW_Y], .from = x + (rows - 1) * columns, .columns = columns};
    launch_copy_row(call->device, (LaunchShape){.x = divide_up(columns, ADD_THREADS), .threads = ADD_THREADS}, &arguments);
}

#endif
