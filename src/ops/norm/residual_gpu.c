/* The residual add and the following norm on a GPU: the kernels of gpu_rows_kernels.h, once per width, kind
 * and residual add. The kernels for any width also serve an affine residual add before a LayerNorm,
 * which no model has, and the gradient of an affine residual add of more than 4,096 columns, whose
 * sums do not fit in a thread's registers. Scratch: the column sums of each block in the backward
 * pass. */
#include "ops/norm/gpu_rows_kernels.h"

#ifdef GPU_DEVICE

#define KERNELS(width, threads, units)                                                                                                     \
    KERNEL(rms_##width, NormArguments) { norm_rows(&a, false, RESIDUAL_SUM, threads, units, AS_BF16); }                                       \
    KERNEL(layer_##width, NormArguments) { norm_rows(&a, true, RESIDUAL_SUM, threads, units, AS_BF16); }                                      \
    KERNEL(affine_##width, NormArguments) { norm_rows(&a, false, RESIDUAL_AFFINE, threads, units, AS_BF16); }                                 \
    KERNEL(rms_fp8_##width, NormArguments) { norm_rows(&a, false, RESIDUAL_SUM, threads, units, &a.to); }                                     \
    KERNEL(layer_fp8_##width, NormArguments) { norm_rows(&a, true, RESIDUAL_SUM, threads, units, &a.to); }                                    \
    KERNEL(affine_fp8_##width, NormArguments) { norm_rows(&a, false, RESIDUAL_AFFINE, threads, units, &a.to); }                               \
    KERNEL(rms_grad_##width, NormGradArguments) { norm_grad_rows(&a, false, RESIDUAL_SUM, threads, units, AS_BF16); }                         \
    KERNEL(layer_grad_##width, NormGradArguments) { norm_grad_rows(&a, true, RESIDUAL_SUM, threads, units, AS_BF16); }                        \
    KERNEL(rms_grad_fp8_##width, NormGradArguments) { norm_grad_rows(&a, false, RESIDUAL_SUM, threads, units, &a.to); }                       \
    KERNEL(layer_grad_fp8_##width, NormGradArguments) { norm_grad_rows(&a, true, RESIDUAL_SUM, threads, units, &a.to); }
NORM_WIDTHS(KERNELS)
KERNEL(affine_grad_1024, NormGradArguments) { norm_grad_rows(&a, false, RESIDUAL_AFFINE, 256, 1, AS_BF16); }
KERNEL(affine_grad_2048, NormGradArguments) {
    BLOCK_BOUNDS(NORM_THREADS, 2); /* spills 8 bytes; a single block would leave memory idle */
    norm_grad_rows(&a, false, RESIDUAL_AFFINE, 256, 2, AS_BF16);
}
KERNEL(affine_grad_4096, NormGradArguments) { norm_grad_rows(&a, false, RESIDUAL_AFFINE, 256, 4, AS_BF16); }
KERNEL(affine_grad_fp8_1024, NormGradArguments) { norm_grad_rows(&a, false, RESIDUAL_AFFINE, 256, 1, &a.to); }
KERNEL(affine_grad_fp8_2048, NormGradArguments) {
    BLOCK_BOUNDS(NORM_THREADS, 2); /* as for affine_grad_2048 */
    norm_grad_rows(&a, false, RESIDUAL_AFFINE, 256, 2, &a.to);
}
KERNEL(affine_grad_fp8_4096, NormGradArguments) { norm_grad_rows(&a, false, RESIDUAL_AFFINE, 256, 4, &a.to); }
KERNEL(any, NormArguments) { norm_rows_any(&a, AS_BF16); }
KERNEL(any_fp8, NormArguments) { norm_rows_any(&a, &a.to); }
KERNEL(any_grad_rows, NormGradArguments) { norm_grad_rows_any(&a); }
KERNEL(any_grad_columns, NormGradArguments) { norm_grad_columns_any(&a, AS_BF16); }
KERNEL(any_grad_columns_fp8, NormGradArguments) { norm_grad_columns_any(&a, &a.to); }

#else

#include "backend/gpu/gemv.h"
#include "ops/norm/norm.h"

LAUNCHERS(rms, NormArguments, rms_512, rms_1024, rms_2048, rms_4096, rms_8192, any)
LAUNCHERS(layer, NormArguments, layer_512, layer_1024, layer_2048, layer_4096, layer_8192, any)
LAUNCHERS(affine, NormArguments, affine_512, affine_1024, affine_2048, affine_4096, affine_8192, any)
LAUNCHERS(rms_fp8, NormArguments, rms_fp8_512, rms_fp8_1024, rms_fp8_2048, rms_fp8_4096, rms_fp8_8192, any_fp8)
LAUNCHERS(layer_fp8, NormArguments, layer_fp8_512, layer_fp8_1024, layer_fp8_2048, layer_fp8_4096, layer_fp8_8192, any_fp8)
LAUNCHERS(affine_fp8, NormArguments, affine_fp8_512, affine_fp8_1024, affine_fp8_2048, affine_fp8_4096, affine_fp8_8192, any_fp8)
LAUNCHERS(rms_grad, NormGradArguments, rms_grad_512, rms_grad_1024, rms_grad_2048, rms_grad_4096, rms_grad_8192)
LAUNCHERS(layer_grad, NormGradArguments, layer_grad_512, layer_grad_1024, layer_grad_2048, layer_grad_4096, layer_grad_8192)
LAUNCHERS(affine_grad, NormGradArguments, affine_grad_1024, affine_grad_1024, affine_grad_2048, affine_grad_4096)
LAUNCHERS(rms_grad_fp8, NormGradArguments, rms_grad_fp8_512, rms_grad_fp8_1024, rms_grad_fp8_2048, rms_grad_fp8_4096, rms_grad_fp8_8192)
LAUNCHERS(layer_grad_fp8, NormGradArguments, layer_grad_fp8_512, layer_grad_fp8_1024, layer_grad_fp8_2048, layer_grad_fp8_4096,
    layer_grad_fp8_8192)
LAUNCHERS(affine_grad_fp8, NormGradArguments, affine_grad_fp8_1024, affine_grad_fp8_1024, affine_grad_fp8_2048, affine_grad_fp8_4096)
LAUNCHER(any_grad_rows, NormGradArguments)
LAUNCHERS(any_grad_columns, NormGradArguments, any_grad_columns, any_grad_columns_fp8)

GPU_OP(residual_norm, .absorbs = norm_absorbs_sum, .quantizes = FP8_KIND(FP8_E4M3)) {
    const NormAttributes *attributes = call->attributes;
    bool layer = attributes->kind == NORM_LAYER, affine = call->in[RESIDUAL_NORM_AFFINE] != NULL;
    int width = layer && affine ? NORM_ANY : norm_width(call->in_shape[RESIDUAL_NORM_STREAM][1]);
    NormArguments arguments = {
        .block = call->in[RESIDUAL_NORM_BLOCK],
        .stream = call->in[RESIDUAL_NORM_STREAM],
        .gain = call->in[RESIDUAL_NORM_GAIN],
        .bias = call->in[RESIDUAL_NORM_BIAS],
        .residual = call->out[RESIDUAL_NORM_RESIDUAL],
        .normed = call->out[RESIDUAL_NORM_NORMED],
        .statistics = call->out[RESIDUAL_NORM_STATISTICS],
        .rows = call->in_shape[RESIDUAL_NORM_STREAM][0],
        .columns = call->in_shape[RESIDUAL_NORM_STREAM][1],
        .layer = layer,
        .add = affine ? RESIDUAL_AFFINE : RESIDUAL_SUM,
        .epsilon = attributes->epsilon,
        .to = fp8_output_of(call, RESIDUAL_NORM_AMAX),
    };
    for (int i = 0; i < AFFINE_VECTORS; i++) arguments.affine[i] = call->in[RESIDUAL_NORM_AFFINE + i];
    if (call->absorbs) {
        norm_launch_sum(call, width, &arguments);
        return;
    }
    LaunchShape shape = norm_shape(call->device, width, &arguments);
    if (fp8_is_wanted(&arguments.to))
        (affine ? launch_affine_fp8 : layer ? launch_layer_fp8 : launch_rms_fp8)(call->device, width, shape, &arguments);
    else (affine ? launch_affine : layer ? launch_layer : launch_rms)(call->device, width, shape, &arguments);
}

void norm_of_row(const OpCall *norm, GemvNorm *operands) {
    *operands = (GemvNorm){.block = norm->in[RESIDUAL_NORM_BLOCK],
        .stream = norm->in[RESIDUAL_NORM_STREAM],
        .gain = norm->in[RESIDUAL_NORM_GAIN],
        .residual = norm->out[RESIDUAL_NORM_RESIDUAL],
        .epsilon = (float)((const NormAttributes *)norm->attributes)->epsilon};
}

static int sums(bool layer, bool affine) { return 1 + layer + (affine ? AFFINE_VECTORS : 0); }

static int64_t residual_grad_gpu_workspace(const Graph *graph, const Node *node) {
    const NormAttributes *attributes = node->attributes;
    int64_t rows = graph_rows(graph, node->in[RESIDUAL_NORM_GRAD_RESIDUAL]),
            columns = graph_columns(graph, node->in[RESIDUAL_NORM_GRAD_RESIDUAL]);
    return norm_grad_scratch(rows, columns, sums(attributes->kind == NORM_LAYER, node->in[RESIDUAL_NORM_GRAD_AFFINE] != TENSOR_NONE));
}

static void add_residual_sums(const OpCall *call, bool layer, bool affine, int64_t blocks, int64_t columns) {
    float *targets[2 + AFFINE_VECTORS];
    int count = 0;
    targets[count++] = call->out[RESIDUAL_NORM_GRAD_D_GAIN];
    if (layer) targets[count++] = call->out[RESIDUAL_NORM_GRAD_D_BIAS];
    for (int i = 0; affine && i < AFFINE_VECTORS; i++) targets[count++] = call->out[RESIDUAL_NORM_GRAD_D_AFFINE + i];
    gpu_add_partial_sums(call->device, targets, count, call->workspace, blocks, columns);
}

GPU_OP(residual_norm_grad, residual_grad_gpu_workspace, .quantizes = FP8_KIND(FP8_E5M2)) {
    const NormAttributes *attributes = call->attributes;
    bool layer = attributes->kind == NORM_LAYER, affine = call->in[RESIDUAL_NORM_GRAD_AFFINE] != NULL;
    NormGradArguments arguments = {
        .d_residual = call->in[RESIDUAL_NORM_GRAD_D_RESIDUAL],
        .d_normed = call->in[RESIDUAL_NORM_GRAD_D_NORMED],
        .block = call->in[RESIDUAL_NORM_GRAD_BLOCK],
        .stream = call->in[RESIDUAL_NORM_GRAD_STREAM],
        .residual = call->in[RESIDUAL_NORM_GRAD_RESIDUAL],
        .statistics = call->in[RESIDUAL_NORM_GRAD_STATISTICS],
        .gain = call->in[RESIDUAL_NORM_GRAD_GAIN],
        .d_block = call->out[RESIDUAL_NORM_GRAD_D_BLOCK],
        .d_stream = call->out[RESIDUAL_NORM_GRAD_D_STREAM],
        .partials = call->workspace,
        .rows = call->in_shape[RESIDUAL_NORM_GRAD_RESIDUAL][0],
        .columns = call->in_shape[RESIDUAL_NORM_GRAD_RESIDUAL][1],
        .layer = layer,
        .add = affine ? RESIDUAL_AFFINE : RESIDUAL_SUM,
        .to = fp8_output_of(call, RESIDUAL_NORM_GRAD_AMAX),
    };
    for (int i = 0; i < AFFINE_VECTORS; i++) arguments.affine[i] = call->in[RESIDUAL_NORM_GRAD_AFFINE + i];
    LaunchShape shape = norm_grad_shape(call->device, &arguments);
    bool fp8 = fp8_is_wanted(&arguments.to);
    int width = norm_width(arguments.columns);
    if (width == NORM_ANY || (affine && (layer || arguments.columns > 4096))) {
        launch_any_grad_rows(call->device, (LaunchShape){.x = arguments.rows, .threads = NORM_THREADS}, &arguments);
        launch_any_grad_columns(call->device, fp8, norm_grad_columns_shape(call->device, &arguments), &arguments);
    } else if (fp8)
        (affine ? launch_affine_grad_fp8 : layer ? launch_layer_grad_fp8 : launch_rms_grad_fp8)(call->device, width, shape, &arguments);
    else (affine ? launch_affine_grad : layer ? launch_layer_grad : launch_rms_grad)(call->device, width, shape, &arguments);
    add_residual_sums(call, layer, affine, shape.x, arguments.columns);
}

#endif
