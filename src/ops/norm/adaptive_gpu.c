/* Adaptive LayerNorm on a GPU, with the teams and rows of gpu_rows_kernels.h: once per width, with and
 * without residual add and norm. In the backward pass a block takes adjacent rows of one sample and
 * writes their column sums for gate, scale and shift to partials [S, blocks per sample, 3, D],
 * which are then added in order. Scratch: these partials. Rows are divided among about GRAD_BLOCKS
 * blocks: a block waits for memory at each of its rows, so every multiprocessor needs at least two
 * blocks at once, and all need equally many. */
#include "ops/norm/gpu_rows_kernels.h"

/* Widths of the backward pass: those of NORM_WIDTHS, and FLUX.1's own, for which one unit less
 * leaves registers for a second block on an NVIDIA multiprocessor. */
#define GRAD_WIDTHS(X) X(512, WAVE, 128 / WAVE) X(1024, 256, 1) X(2048, 256, 2) X(3072, 256, 3) X(4096, 256, 4) X(8192, 256, 8)

enum { SUMS = 3, GRAD_BLOCKS = 512, GRAD_LEAST_ROWS = 4 };

typedef struct AdaptiveArguments {
    const bf16 GLOBAL *block;                          /* NULL: no residual add */
    const float GLOBAL *gate, *stream, *shift, *scale; /* scale NULL: no norm */
    float GLOBAL *residual, *statistics;
    bf16 GLOBAL *normed;
    int64_t rows, teams, sample_rows;
    int32_t columns;
    float epsilon;
} AdaptiveArguments;

typedef struct AdaptiveGradArguments {
    const float GLOBAL *d_residual; /* NULL: zero */
    const bf16 GLOBAL *d_normed;    /* NULL: no norm */
    const bf16 GLOBAL *block;       /* NULL: no residual add */
    const float GLOBAL *gate, *residual, *scale, *statistics;
    bf16 GLOBAL *d_block;
    float GLOBAL *d_stream, *partials; /* d_stream NULL: it is d_residual */
    int64_t sample_rows, blocks;       /* per sample */
    int64_t block_rows;
    int32_t columns;
} AdaptiveGradArguments;

#ifdef GPU_DEVICE

INLINE void adaptive_rows(const AdaptiveArguments *a, const int threads, const int units) {
    Team t = make_team(threads, units, a->columns);
    Row x;
    Bf16Row block;
    for (int64_t row = team_index(t); row < a->rows; row += a->teams) {
        int64_t at = row * t.columns, vector = row / a->sample_rows * t.columns;
        load_row_wide(t, x, a->stream + at);
        if (a->block) {
            load_row_bf16(t, block, a->block + at);
            FOR_UNITS(t) {
                x[i] += load4_wide(a->gate + vector + column_of(t, i), 4) * to_float4(block[i]);
                store_wide_unit(t, i, a->residual + at, x[i]);
            }
        }
        if (!a->scale) continue;
        Statistics s = row_statistics(t, x, true, a->epsilon);
        if (t.lane == 0) store_statistics(a->statistics, row, s, true);
        FOR_UNITS(t) {
            f32x4 gain = 1 + load4_wide(a->scale + vector + column_of(t, i), 4), shift = load4_wide(a->shift + vector + column_of(t, i), 4);
            store_bf16_unit(t, i, a->normed + at, normalize(x[i], s, gain, shift));
        }
    }
}

/* The inputs of a row's gradient. All loads start before the first use, so that a row waits for
 * memory once. */
typedef struct GradRow {
    Row ds, x;
    Bf16Row dy, block;
    Statistics statistics;
} GradRow;

INLINE void load_grad_row(const AdaptiveGradArguments *a, Team t, int64_t row, GradRow *r) {
    int64_t at = row * t.columns;
    clear_row(t, r->ds);
    if (a->d_residual) load_row_wide(t, r->ds, a->d_residual + at);
    if (a->block) load_row_bf16(t, r->block, a->block + at);
    if (!a->d_normed) return;
    load_row_bf16(t, r->dy, a->d_normed + at);
    load_row_wide(t, r->x, a->residual + at);
    r->statistics = load_statistics(a->statistics, row, true);
}

/* Adds the gradient of the row's norm to ds. */
INLINE void adaptive_norm_row(const AdaptiveGradArguments *a, Team t, int64_t vector, GradRow *r, Row scales, Row shifts) {
    Statistics s = r->statistics;
    f32x4 sum = 0, dot = 0;
    FOR_UNITS(t) {
        f32x4 g = to_float4(r->dy[i]) * (1 + load4_wide(a->scale + vector + column_of(t, i), 4));
        sum += counted(t, i, g);
        dot += counted(t, i, g * (r->x[i] - s.mean));
    }
    Means m = row_means(t, sum4(sum), sum4(dot), s, true);
    FOR_UNITS(t) {
        f32x4 dy = to_float4((u32x2){opaque(r->dy[i].x), opaque(r->dy[i].y)}); /* cast again: floats would stay in registers */
        r->ds[i] += normalize_grad(dy, r->x[i], 1 + load4_wide(a->scale + vector + column_of(t, i), 4), s, m);
        scales[i] += dy * (r->x[i] - s.mean) * s.rstd;
        shifts[i] += dy;
    }
}

INLINE void adaptive_grad_rows(const AdaptiveGradArguments *a, const int threads, const int units) {
    Team t = make_team(threads, units, a->columns);
    Row gates, scales, shifts;
    int64_t sample = block_x() / a->blocks, first = block_x() % a->blocks * a->block_rows, vector = sample * t.columns;
    int64_t end = first + a->block_rows < a->sample_rows ? first + a->block_rows : a->sample_rows, base = sample * a->sample_rows;
    clear_row(t, gates);
    clear_row(t, scales);
    clear_row(t, shifts);
    for (int64_t row = base + first + thread_id() / threads; row < base + end; row += NORM_THREADS / threads) {
        int64_t at = row * t.columns;
        GradRow r;
        load_grad_row(a, t, row, &r);
        if (a->d_normed) adaptive_norm_row(a, t, vector, &r, scales, shifts);
        FOR_UNITS(t) {
            if (a->d_stream) store_wide_unit(t, i, a->d_stream + at, r.ds[i]);
            if (!a->block) continue;
            gates[i] += r.ds[i] * to_float4(r.block[i]);
            store_bf16_unit(t, i, a->d_block + at, r.ds[i] * load4_wide(a->gate + vector + column_of(t, i), 4));
        }
    }
    float GLOBAL *to = a->partials + (int64_t)block_x() * SUMS * a->columns;
    if (a->block) store_block_sums(t, to, gates);
    if (!a->d_normed) return;
    store_block_sums(t, to + a->columns, scales);
    store_block_sums(t, to + 2 * a->columns, shifts);
}

#define KERNELS(width, threads, units)                                                                                                     \
    KERNEL(adaptive_##width, AdaptiveArguments) { adaptive_rows(&a, threads, units); }
NORM_WIDTHS(KERNELS)

/* Two blocks share an NVIDIA multiprocessor if 128 registers suffice. */
#define GRAD_KERNELS(width, threads, units)                                                                                                \
    KERNEL(adaptive_grad_##width, AdaptiveGradArguments) {                                                                                 \
        BLOCK_BOUNDS(NORM_THREADS, units > 3 ? 1 : 2);                                                                                     \
        adaptive_grad_rows(&a, threads, units);                                                                                            \
    }
GRAD_WIDTHS(GRAD_KERNELS)

#else

#include "ops/norm/norm.h"

LAUNCHERS(adaptive, AdaptiveArguments, adaptive_512, adaptive_1024, adaptive_2048, adaptive_4096, adaptive_8192)
LAUNCHERS(adaptive_grad, AdaptiveGradArguments, adaptive_grad_512, adaptive_grad_1024, adaptive_grad_2048, adaptive_grad_3072,
    adaptive_grad_4096, adaptive_grad_8192)

/* Returns the index of a kernel in GRAD_WIDTHS. */
#define MOST_COLUMNS(width, threads, units) width,
static int grad_width(int64_t columns) {
    static const int most[] = {GRAD_WIDTHS(MOST_COLUMNS)};
    int width = 0;
    while (columns > most[width]) width++;
    return width;
}

/* Uses enough blocks to fill the device several times over. Sets arguments->teams. */
static LaunchShape forward_shape(Device *device, int width, AdaptiveArguments *arguments) {
    NormArguments rows = {.rows = arguments->rows};
    LaunchShape shape = norm_shape(device, width, &rows);
    arguments->teams = rows.teams;
    return shape;
}

GPU_OP(adaptive_norm) {
    const NormAttributes *attributes = call->attributes;
    const int64_t *shape = call->in_shape[ADAPTIVE_NORM_STREAM];
    int64_t samples = call->in_shape[call->in[ADAPTIVE_NORM_BLOCK] ? ADAPTIVE_NORM_GATE : ADAPTIVE_NORM_SCALE][0];
    AdaptiveArguments arguments = {.block = call->in[ADAPTIVE_NORM_BLOCK],
        .gate = call->in[ADAPTIVE_NORM_GATE],
        .stream = call->in[ADAPTIVE_NORM_STREAM],
        .shift = call->in[ADAPTIVE_NORM_SHIFT],
        .scale = call->in[ADAPTIVE_NORM_SCALE],
        .residual = call->out[ADAPTIVE_NORM_RESIDUAL],
        .normed = call->out[ADAPTIVE_NORM_NORMED],
        .statistics = call->out[ADAPTIVE_NORM_STATISTICS],
        .rows = shape[0],
        .sample_rows = shape[0] / samples,
        .columns = (int32_t)shape[1],
        .epsilon = (float)attributes->epsilon};
    int width = norm_width(shape[1]);
    assert(width != NORM_ANY);
    LaunchShape launch = forward_shape(call->device, width, &arguments);
    launch_adaptive(call->device, width, launch, &arguments);
}

/* The rows of a block in the backward pass, and the blocks per sample. */
static int64_t adaptive_block_rows(int64_t rows) { return int_max(divide_up(rows, GRAD_BLOCKS), GRAD_LEAST_ROWS); }
static int64_t sample_blocks(int64_t rows, int64_t samples) { return divide_up(rows / samples, adaptive_block_rows(rows)); }

static int64_t adaptive_grad_gpu_workspace(const Graph *graph, const Node *node) {
    bool norms = node->in[ADAPTIVE_NORM_GRAD_SCALE] != TENSOR_NONE;
    TensorId vectors = node->in[norms ? ADAPTIVE_NORM_GRAD_SCALE : ADAPTIVE_NORM_GRAD_GATE];
    int64_t rows = graph_rows(graph, node->in[norms ? ADAPTIVE_NORM_GRAD_RESIDUAL : ADAPTIVE_NORM_GRAD_BLOCK]);
    return sample_blocks(rows, graph_rows(graph, vectors)) * SUMS * graph_elements(graph, vectors) * (int64_t)sizeof(float);
}

GPU_OP(adaptive_norm_grad, adaptive_grad_gpu_workspace) {
    bool norms = call->in[ADAPTIVE_NORM_GRAD_SCALE] != NULL;
    const int64_t *shape = call->in_shape[norms ? ADAPTIVE_NORM_GRAD_RESIDUAL : ADAPTIVE_NORM_GRAD_BLOCK];
    int64_t samples = call->in_shape[norms ? ADAPTIVE_NORM_GRAD_SCALE : ADAPTIVE_NORM_GRAD_GATE][0];
    AdaptiveGradArguments arguments = {.d_residual = call->in[ADAPTIVE_NORM_GRAD_D_RESIDUAL],
        .d_normed = call->in[ADAPTIVE_NORM_GRAD_D_NORMED],
        .block = call->in[ADAPTIVE_NORM_GRAD_BLOCK],
        .gate = call->in[ADAPTIVE_NORM_GRAD_GATE],
        .residual = call->in[ADAPTIVE_NORM_GRAD_RESIDUAL],
        .scale = call->in[ADAPTIVE_NORM_GRAD_SCALE],
        .statistics = call->in[ADAPTIVE_NORM_GRAD_STATISTICS],
        .d_block = call->out[ADAPTIVE_NORM_GRAD_D_BLOCK],
        .d_stream = call->out[ADAPTIVE_NORM_GRAD_D_STREAM],
        .partials = call->workspace,
        .sample_rows = shape[0] / samples,
        .blocks = sample_blocks(shape[0], samples),
        .block_rows = adaptive_block_rows(shape[0]),
        .columns = (int32_t)shape[1]};
    LaunchShape rows = {.x = samples * arguments.blocks, .threads = NORM_THREADS};
    launch_adaptive_grad(call->device, grad_width(shape[1]), rows, &arguments);
    float *targets[SUMS] = {
        call->out[ADAPTIVE_NORM_GRAD_D_GATE], call->out[ADAPTIVE_NORM_GRAD_D_SCALE], call->out[ADAPTIVE_NORM_GRAD_D_SHIFT]};
    if (targets[0] || targets[1] || targets[2])
        gpu_put_partial_sums(call->device, targets, SUMS, call->workspace, samples, arguments.blocks, shape[1]);
}

#endif
