/* The norm of a block's output and its residual add on a GPU: teams of gpu_rows_kernels.h hold a row in
 * registers, once per width. `normed` is the rounded sum. Scratch: the column sums of each block in
 * the backward pass. */
#include "ops/norm/gpu_rows_kernels.h"

#ifdef GPU_DEVICE

INLINE void post_rows(const NormArguments *a, int threads, int units) {
    Team t = make_team(threads, units, a->columns);
    Row gain, x, stream;
    Bf16Row block;
    load_row_wide(t, gain, a->gain);
    for (int64_t row = team_index(t); row < a->rows; row += a->teams) {
        int64_t at = row * t.columns;
        load_row_bf16(t, block, a->block + at);
        load_row_wide(t, stream, a->stream + at);
        FOR_UNITS(t) x[i] = to_float4(block[i]);
        Statistics s = row_statistics(t, x, false, a->epsilon);
        if (t.lane == 0) store_statistics(a->statistics, row, s, false);
        FOR_UNITS(t) {
            f32x4 sum = stream[i] + normalize(x[i], s, gain[i], (f32x4)0);
            store_wide_unit(t, i, a->residual + at, sum);
            store_bf16_unit(t, i, a->normed + at, sum);
        }
    }
}

INLINE void post_grad_row(const NormGradArguments *a, Team t, const Row gain, int64_t row, Row gain_sum) {
    int64_t at = row * t.columns;
    Row ds;
    Bf16Row block, narrow;
    clear_row(t, ds);
    if (a->d_residual) load_row_wide(t, ds, a->d_residual + at);
    if (a->d_normed) {
        load_row_bf16(t, narrow, a->d_normed + at);
        FOR_UNITS(t) ds[i] += to_float4(narrow[i]);
    }
    load_row_bf16(t, block, a->block + at);
    Statistics s = load_statistics(a->statistics, row, false);
    f32x4 dot = 0;
    FOR_UNITS(t) dot += counted(t, i, ds[i] * gain[i] * to_float4(block[i]));
    Means m = row_means(t, 0, sum4(dot), s, false);
    FOR_UNITS(t) {
        f32x4 x = to_float4(block[i]);
        store_bf16_unit(t, i, a->d_block + at, normalize_grad(ds[i], x, gain[i], s, m));
        store_wide_unit(t, i, a->d_stream + at, ds[i]);
        gain_sum[i] += ds[i] * x * s.rstd;
    }
}

INLINE void post_grad_rows(const NormGradArguments *a, int threads, int units) {
    Team t = make_team(threads, units, a->columns);
    Row gain, gain_sum;
    load_row_wide(t, gain, a->gain);
    clear_row(t, gain_sum);
    int64_t begin = (int64_t)block_x() * NORM_GRAD_ROWS(WAVE),
            end = begin + NORM_GRAD_ROWS(WAVE) < a->rows ? begin + NORM_GRAD_ROWS(WAVE) : a->rows;
    for (int64_t row = begin + thread_id() / threads; row < end; row += NORM_THREADS / threads) post_grad_row(a, t, gain, row, gain_sum);
    store_block_sums(t, a->partials + (int64_t)block_x() * a->columns, gain_sum);
}

#define KERNELS(width, threads, units)                                                                                                     \
    KERNEL(post_##width, NormArguments) { post_rows(&a, threads, units); }                                                                 \
    KERNEL(post_grad_##width, NormGradArguments) { post_grad_rows(&a, threads, units); }
NORM_WIDTHS(KERNELS)

#else

#include "ops/norm/norm.h"

LAUNCHERS(post, NormArguments, post_512, post_1024, post_2048, post_4096, post_8192)
LAUNCHERS(post_grad, NormGradArguments, post_grad_512, post_grad_1024, post_grad_2048, post_grad_4096, post_grad_8192)

GPU_OP(post_norm) {
    const NormAttributes *attributes = call->attributes;
    NormArguments arguments = {.block = call->in[POST_NORM_BLOCK],
        .stream = call->in[POST_NORM_STREAM],
        .gain = call->in[POST_NORM_GAIN],
        .residual = call->out[POST_NORM_RESIDUAL],
        .normed = call->out[POST_NORM_NARROW],
        .statistics = call->out[POST_NORM_STATISTICS],
        .rows = call->in_shape[POST_NORM_STREAM][0],
        .columns = call->in_shape[POST_NORM_STREAM][1],
        .epsilon = attributes->epsilon};
    int width = norm_width(arguments.columns);
    LaunchShape shape = norm_shape(call->device, width, &arguments);
    launch_post(call->device, width, shape, &arguments);
}

static int64_t grad_workspace(const Graph *graph, const Node *node) {
    TensorId block = node->in[POST_NORM_GRAD_BLOCK];
    return norm_grad_scratch(graph_rows(graph, block), graph_columns(graph, block), 1);
}

GPU_OP(post_norm_grad, grad_workspace) {
    NormGradArguments arguments = {.d_residual = call->in[POST_NORM_GRAD_D_RESIDUAL],
        .d_normed = call->in[POST_NORM_GRAD_D_NARROW],
        .block = call->in[POST_NORM_GRAD_BLOCK],
        .gain = call->in[POST_NORM_GRAD_GAIN],
        .statistics = call->in[POST_NORM_GRAD_STATISTICS],
        .d_block = call->out[POST_NORM_GRAD_D_BLOCK],
        .d_stream = call->out[POST_NORM_GRAD_D_STREAM],
        .partials = call->workspace,
        .rows = call->in_shape[POST_NORM_GRAD_BLOCK][0],
        .columns = call->in_shape[POST_NORM_GRAD_BLOCK][1]};
    LaunchShape shape = norm_grad_shape(call->device, &arguments);
    launch_post_grad(call->device, norm_width(arguments.columns), shape, &arguments);
    float *targets[] = {call->out[POST_NORM_GRAD_D_GAIN]};
    gpu_add_partial_sums(call->device, targets, 1, call->workspace, shape.x, arguments.columns);
}

#endif
