/* Adaptive LayerNorm on a GPU, with the teams and rows of gpu_rows.h: once per width, with and without a merge and a norm.
 * Backward, a block takes NORM_GRAD_ROWS rows of one sample and writes their column sums for gate, scale and shift to partials
 * [S, blocks of a sample, 3, D], which a second kernel adds in order. Scratch: these. */
#include "ops/norm/gpu_rows.h"

enum { SUMS = 3 };

typedef struct AdaptiveArguments {
    const bf16 GLOBAL *block;                          /* NULL: no merge */
    const float GLOBAL *gate, *stream, *shift, *scale; /* scale NULL: no norm */
    float GLOBAL *merged, *statistics;
    bf16 GLOBAL *normed;
    int64_t rows, teams, sample_rows;
    int32_t columns;
    float epsilon;
} AdaptiveArguments;

typedef struct AdaptiveGradArguments {
    const float GLOBAL *d_merged; /* NULL: zero */
    const bf16 GLOBAL *d_normed;  /* NULL: no norm */
    const bf16 GLOBAL *block;     /* NULL: no merge */
    const float GLOBAL *gate, *merged, *scale, *statistics;
    bf16 GLOBAL *d_block;
    float GLOBAL *d_stream, *partials; /* d_stream NULL: it is d_merged */
    int64_t sample_rows, blocks;       /* of a sample */
    int32_t columns;
} AdaptiveGradArguments;

typedef struct AdaptiveSumArguments {
    const float GLOBAL *partials;
    float GLOBAL *targets[SUMS]; /* NULL: not wanted */
    int64_t samples, blocks, columns;
} AdaptiveSumArguments;

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
                store_wide_unit(t, i, a->merged + at, x[i]);
            }
        }
        if (!a->scale) continue;
        Statistics s = row_statistics(t, x, true, a->epsilon);
        if (t.lane == 0) store_statistics(a->statistics, row, s, true);
        FOR_UNITS(t) {
            f32x4 gain = 1 + load4_wide(a->scale + vector + column_of(t, i), 4), shift = load4_wide(a->shift + vector + column_of(t, i), 4);
            store_bf16_unit(t, i, a->normed + at, normalise(x[i], s, gain, shift));
        }
    }
}

/* ds of a row from that of its norm. */
INLINE void adaptive_norm_row(const AdaptiveGradArguments *a, Team t, int64_t row, int64_t vector, Row ds, Row scales, Row shifts) {
    Row x;
    Bf16Row dy;
    int64_t at = row * t.columns;
    load_row_bf16(t, dy, a->d_normed + at);
    load_row_wide(t, x, a->merged + at);
    Statistics s = load_statistics(a->statistics, row, true);
    f32x4 sum = 0, dot = 0;
    FOR_UNITS(t) {
        f32x4 g = to_float4(dy[i]) * (1 + load4_wide(a->scale + vector + column_of(t, i), 4));
        sum += counted(t, i, g);
        dot += counted(t, i, g * (x[i] - s.mean));
    }
    Means m = row_means(t, sum4(sum), sum4(dot), s, true);
    FOR_UNITS(t) {
        ds[i] += normalise_grad(to_float4(dy[i]), x[i], 1 + load4_wide(a->scale + vector + column_of(t, i), 4), s, m);
        scales[i] += to_float4(dy[i]) * (x[i] - s.mean) * s.rstd;
        shifts[i] += to_float4(dy[i]);
    }
}

INLINE void adaptive_grad_rows(const AdaptiveGradArguments *a, const int threads, const int units) {
    Team t = make_team(threads, units, a->columns);
    Row gates, scales, shifts, ds;
    Bf16Row block;
    int64_t sample = block_x() / a->blocks, first = block_x() % a->blocks * NORM_GRAD_ROWS, vector = sample * t.columns;
    int64_t end = first + NORM_GRAD_ROWS < a->sample_rows ? first + NORM_GRAD_ROWS : a->sample_rows, base = sample * a->sample_rows;
    clear_row(t, gates);
    clear_row(t, scales);
    clear_row(t, shifts);
    for (int64_t row = base + first + thread_id() / threads; row < base + end; row += NORM_THREADS / threads) {
        int64_t at = row * t.columns;
        clear_row(t, ds);
        if (a->d_merged) load_row_wide(t, ds, a->d_merged + at);
        if (a->d_normed) adaptive_norm_row(a, t, row, vector, ds, scales, shifts);
        if (a->block) load_row_bf16(t, block, a->block + at);
        FOR_UNITS(t) {
            if (a->d_stream) store_wide_unit(t, i, a->d_stream + at, ds[i]);
            if (!a->block) continue;
            gates[i] += ds[i] * to_float4(block[i]);
            store_bf16_unit(t, i, a->d_block + at, ds[i] * load4_wide(a->gate + vector + column_of(t, i), 4));
        }
    }
    float GLOBAL *to = a->partials + (int64_t)block_x() * SUMS * a->columns;
    if (a->block) store_block_sums(t, to, gates);
    if (!a->d_normed) return;
    store_block_sums(t, to + a->columns, scales);
    store_block_sums(t, to + 2 * a->columns, shifts);
}

#define KERNELS(width, threads, units)                                                                   \
    KERNEL(adaptive_##width, AdaptiveArguments) { adaptive_rows(&a, threads, units); }                   \
    KERNEL(adaptive_grad_##width, AdaptiveGradArguments) { adaptive_grad_rows(&a, threads, units); }
NORM_WIDTHS(KERNELS)

KERNEL(adaptive_sum, AdaptiveSumArguments) {
    int64_t i = (int64_t)block_x() * NORM_THREADS + thread_id(), sample = i / a.columns, column = i % a.columns;
    float GLOBAL *target = a.targets[block_y()];
    if (sample >= a.samples || !target) return;
    const float GLOBAL *from = a.partials + (sample * a.blocks * SUMS + block_y()) * a.columns + column;
    float sum = 0;
    for (int64_t b = 0; b < a.blocks; b++) sum += from[b * SUMS * a.columns];
    target[i] = sum;
}

#else

#include "ops/norm/norm.h"

LAUNCHERS(adaptive, AdaptiveArguments, adaptive_512, adaptive_1024, adaptive_2048, adaptive_4096, adaptive_8192)
LAUNCHERS(
    adaptive_grad, AdaptiveGradArguments, adaptive_grad_512, adaptive_grad_1024, adaptive_grad_2048, adaptive_grad_4096, adaptive_grad_8192)
LAUNCHER(adaptive_sum, AdaptiveSumArguments)

/* Enough blocks to fill the device several times over. Sets arguments->teams. */
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
        .merged = call->out[ADAPTIVE_NORM_MERGED],
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

/* Blocks of the backward pass for each sample. */
static int64_t sample_blocks(int64_t rows, int64_t samples) { return divide_up(rows / samples, NORM_GRAD_ROWS); }

static int64_t grad_workspace(const Graph *graph, const Node *node) {
    bool norms = node->in[ADAPTIVE_NORM_GRAD_SCALE] != TENSOR_NONE;
    TensorId vectors = node->in[norms ? ADAPTIVE_NORM_GRAD_SCALE : ADAPTIVE_NORM_GRAD_GATE];
    int64_t rows = graph_rows(graph, node->in[norms ? ADAPTIVE_NORM_GRAD_MERGED : ADAPTIVE_NORM_GRAD_BLOCK]);
    return sample_blocks(rows, graph_rows(graph, vectors)) * SUMS * graph_elements(graph, vectors) * (int64_t)sizeof(float);
}

GPU_OP(adaptive_norm_grad, grad_workspace) {
    bool norms = call->in[ADAPTIVE_NORM_GRAD_SCALE] != NULL;
    const int64_t *shape = call->in_shape[norms ? ADAPTIVE_NORM_GRAD_MERGED : ADAPTIVE_NORM_GRAD_BLOCK];
    int64_t samples = call->in_shape[norms ? ADAPTIVE_NORM_GRAD_SCALE : ADAPTIVE_NORM_GRAD_GATE][0];
    AdaptiveGradArguments arguments = {.d_merged = call->in[ADAPTIVE_NORM_GRAD_D_MERGED],
        .d_normed = call->in[ADAPTIVE_NORM_GRAD_D_NORMED],
        .block = call->in[ADAPTIVE_NORM_GRAD_BLOCK],
        .gate = call->in[ADAPTIVE_NORM_GRAD_GATE],
        .merged = call->in[ADAPTIVE_NORM_GRAD_MERGED],
        .scale = call->in[ADAPTIVE_NORM_GRAD_SCALE],
        .statistics = call->in[ADAPTIVE_NORM_GRAD_STATISTICS],
        .d_block = call->out[ADAPTIVE_NORM_GRAD_D_BLOCK],
        .d_stream = call->out[ADAPTIVE_NORM_GRAD_D_STREAM],
        .partials = call->workspace,
        .sample_rows = shape[0] / samples,
        .blocks = sample_blocks(shape[0], samples),
        .columns = (int32_t)shape[1]};
    LaunchShape rows = {.x = samples * arguments.blocks, .threads = NORM_THREADS};
    launch_adaptive_grad(call->device, norm_width(shape[1]), rows, &arguments);
    AdaptiveSumArguments sums = {.partials = call->workspace,
        .targets = {call->out[ADAPTIVE_NORM_GRAD_D_GATE], call->out[ADAPTIVE_NORM_GRAD_D_SCALE], call->out[ADAPTIVE_NORM_GRAD_D_SHIFT]},
        .samples = samples,
        .blocks = arguments.blocks,
        .columns = shape[1]};
    LaunchShape columns = {.x = divide_up(samples * shape[1], NORM_THREADS), .y = SUMS, .threads = NORM_THREADS};
    launch_adaptive_sum(call->device, columns, &sums);
}

#endif
