/* add and scale_add on a GPU: 8 or 4 columns per thread. For the gradient of scale, a block sums
 * the columns of REDUCE_ROWS rows; gpu_add_partials adds the blocks' sums in order. Scratch belongs
 * to the call. */
#include "backend/gpu/vector.h"

typedef struct AddArguments {
    const void GLOBAL *x, *y;
    void GLOBAL *sum;
    int64_t count;
} AddArguments;
typedef struct ScaleAddArguments {
    const float GLOBAL *x, *previous, *scale;
    float GLOBAL *sum;
    Tiling tiling;
} ScaleAddArguments;
/* A block takes a tile of block_rows rows; the sums of its rows go to partials
 * [blocks, columns]. */
typedef struct ScaleAddGradArguments {
    const float GLOBAL *d_sum, *previous, *scale;
    float GLOBAL *d_previous, *partials;
    int64_t block_rows;
    Tiling tiling;
} ScaleAddGradArguments;

#ifdef GPU_DEVICE

INLINE void add_bf16_at(const AddArguments *a, int64_t at, int unit) {
    const bf16 GLOBAL *x = a->x, *y = a->y;
    store8_bf16((bf16 GLOBAL *)a->sum + at, load8_bf16(x + at, unit) + load8_bf16(y + at, unit), unit);
}

INLINE void add_fp32_at(const AddArguments *a, int64_t at, int unit) {
    const float GLOBAL *x = a->x, *y = a->y;
    store8_wide((float GLOBAL *)a->sum + at, load8_wide(x + at, unit) + load8_wide(y + at, unit), unit);
}

FLAT_KERNEL(add_bf16, AddArguments, add_bf16_at)
FLAT_KERNEL(add_fp32, AddArguments, add_fp32_at)

INLINE void scale_add_unit(const ScaleAddArguments *a, int unit) {
    UnitPlace place = place_in(a->tiling, unit);
    if (!place.inside) return;
    int64_t at = place.row * a->tiling.columns + place.column;
    f32x4 scaled = load4_wide(a->previous + at, unit) * load4_wide(a->scale + place.column, unit);
    store4_wide(a->sum + at, load4_wide(a->x + at, unit) + scaled, unit);
}

UNIT_KERNELS(scale_add, ScaleAddArguments, scale_add_unit, 4)

/* Threads of a block that share columns take every `height`-th row. */
INLINE void scale_add_grad_unit(const ScaleAddGradArguments *a, int unit) {
    static SHARED f32x4 sums[TILE_THREADS];
    int width = 1 << a->tiling.shift, height = TILE_THREADS >> a->tiling.shift, block = block_x() / a->tiling.tiles;
    int line = thread_id() >> a->tiling.shift, lane = thread_id() & (width - 1);
    int64_t columns = a->tiling.columns, column = (int64_t)((block_x() - block * a->tiling.tiles) * width + lane) * unit;
    int64_t end = (block + 1) * a->block_rows < a->tiling.rows ? (block + 1) * a->block_rows : a->tiling.rows;
    f32x4 sum = 0;
    if (column < columns) {
        f32x4 scale = load4_wide(a->scale + column, unit);
        for (int64_t row = block * a->block_rows + line; row < end; row += height) {
            f32x4 d = load4_wide(a->d_sum + row * columns + column, unit);
            sum += d * load4_wide(a->previous + row * columns + column, unit);
            store4_wide(a->d_previous + row * columns + column, d * scale, unit);
        }
    }
    sums[thread_id()] = sum;
    barrier();
    if (line > 0 || column >= columns) return;
    for (int i = 1; i < height; i++) sum += sums[i * width + lane];
    store4_wide(a->partials + block * columns + column, sum, unit);
}

UNIT_KERNELS(scale_add_grad, ScaleAddGradArguments, scale_add_grad_unit, 4)

#else

#include "ops/add/add.h"

LAUNCHERS(add, AddArguments, add_bf16, add_fp32)
TILED_LAUNCHER(scale_add, ScaleAddArguments, 4)
LAUNCHERS(scale_add_grad, ScaleAddGradArguments, scale_add_grad_4, scale_add_grad_1)

GPU_OP(add) {
    const AddAttributes *attributes = call->attributes;
    const int64_t *shape = call->in_shape[ADD_A];
    AddArguments arguments = {
        .x = call->in[ADD_A], .y = call->in[ADD_B], .sum = call->out[ADD_SUM], .count = shape[0] * shape[1] * shape[2] * shape[3]};
    launch_add(call->device, attributes->wide, flat_shape(arguments.count), &arguments);
}

GPU_OP(scale_add) {
    const int64_t *shape = call->in_shape[SCALE_ADD_X];
    ScaleAddArguments arguments = {.x = call->in[SCALE_ADD_X],
        .previous = call->in[SCALE_ADD_PREVIOUS],
        .scale = call->in[SCALE_ADD_SCALE],
        .sum = call->out[SCALE_ADD_SUM],
        .tiling = tile_matrix(shape[0], shape[1], 4)};
    launch_scale_add(call->device, &arguments);
}

static int64_t add_grad_gpu_workspace(const Graph *graph, const Node *node) {
    TensorId d_sum = node->in[SCALE_ADD_GRAD_D_SUM];
    return divide_up(graph_rows(graph, d_sum), REDUCE_ROWS) * graph_columns(graph, d_sum) * (int64_t)sizeof(float);
}

GPU_OP(scale_add_grad, add_grad_gpu_workspace) {
    int64_t rows = call->in_shape[SCALE_ADD_GRAD_D_SUM][0], columns = call->in_shape[SCALE_ADD_GRAD_D_SUM][1];
    int64_t blocks = divide_up(rows, REDUCE_ROWS);
    ScaleAddGradArguments arguments = {.d_sum = call->in[SCALE_ADD_GRAD_D_SUM],
        .previous = call->in[SCALE_ADD_GRAD_PREVIOUS],
        .scale = call->in[SCALE_ADD_GRAD_SCALE],
        .d_previous = call->out[SCALE_ADD_GRAD_D_PREVIOUS],
        .partials = call->workspace,
        .block_rows = REDUCE_ROWS,
        .tiling = tile_matrix(rows, columns, 4)};
    LaunchShape shape = {.x = blocks * arguments.tiling.tiles, .threads = TILE_THREADS};
    launch_scale_add_grad(call->device, arguments.tiling.unit == 1, shape, &arguments);
    gpu_add_partials(call->device, call->out[SCALE_ADD_GRAD_D_SCALE], call->workspace, blocks, columns);
}

#endif
