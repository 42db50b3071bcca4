/* linear on a GPU: the GEMMs are device_gemm's; a WIDE gradient is cast first. The kernels here sum columns, for the
 * gradient of a bias: blocks of REDUCE_ROWS rows leave partial sums, which gpu_add_partials adds in order. They run
 * at the speed of memory. Scratch is the call's. */
#include "backend/gpu/vector.h"

enum {
    THREADS = 256,
    SUM_LANES = 32,                  /* threads along a row, 8 columns each */
    SUM_LINES = THREADS / SUM_LANES, /* rows that a block reads at once */
};

typedef struct ColumnSumsArguments {
    float GLOBAL *partials;
    const bf16 GLOBAL *rows;
    int64_t count, columns;
    int32_t block_rows;
} ColumnSumsArguments;

#ifdef GPU_DEVICE

/* Sums a block's rows over SUM_LANES * 8 columns; the matrix has a multiple of 8. Line l of threads adds rows l, l +
 * SUM_LINES, ...; then the lines' sums are added in order. */
KERNEL(column_sums_8, ColumnSumsArguments) {
    static SHARED float sums[SUM_LINES][SUM_LANES * 8];
    int lane = thread_id() % SUM_LANES, line = thread_id() / SUM_LANES;
    int64_t first = (int64_t)block_y() * a.block_rows, left = a.count - first, column = ((int64_t)block_x() * SUM_LANES + lane) * 8;
    int rows = left < a.block_rows ? (int)left : a.block_rows;
    f32x8 sum = 0;
    if (column < a.columns) {
        const bf16 GLOBAL *at = a.rows + first * a.columns + column;
        _Pragma("clang loop unroll_count(8)") for (int row = line; row < rows; row += SUM_LINES) sum += load8_bf16(at + row * a.columns, 8);
    }
    UNROLL for (int i = 0; i < 8; i++) sums[line][lane * 8 + i] = sum[i];
    barrier();
    column = (int64_t)block_x() * SUM_LANES * 8 + thread_id();
    if (column >= a.columns) return;
    float total = 0;
    UNROLL for (int i = 0; i < SUM_LINES; i++) total += sums[i][thread_id()];
    a.partials[block_y() * a.columns + column] = total;
}

/* column_sums_8 for any number of columns: one column per thread. */
KERNEL(column_sums_1, ColumnSumsArguments) {
    int64_t first = (int64_t)block_y() * a.block_rows, left = a.count - first, column = (int64_t)block_x() * THREADS + thread_id();
    int rows = left < a.block_rows ? (int)left : a.block_rows;
    if (column >= a.columns) return;
    const bf16 GLOBAL *at = a.rows + first * a.columns + column;
    float sum = 0;
    _Pragma("clang loop unroll_count(8)") for (int row = 0; row < rows; row++) sum += to_float(at[row * a.columns]);
    a.partials[block_y() * a.columns + column] = sum;
}

#else

#include "backend/gpu/kernel_launch.h"
#include "ops/linear/linear.h"

LAUNCHERS(column_sums, ColumnSumsArguments, column_sums_1, column_sums_8)

static_assert(SUM_LANES * 8 == THREADS, "each thread of column_sums_8 ends with one column");

/* d_bias += the column sums of d_y [rows, columns]. */
static void bias_grad(Device *device, float *d_bias, const bf16 *d_y, float *partials, int64_t rows, int64_t columns) {
    int64_t blocks = divide_up(rows, REDUCE_ROWS);
    LaunchShape shape = {.x = divide_up(columns, THREADS), .y = blocks, .threads = THREADS};
    ColumnSumsArguments arguments = {.partials = partials, .rows = d_y, .count = rows, .columns = columns, .block_rows = REDUCE_ROWS};
    launch_column_sums(device, columns % 8 == 0, shape, &arguments);
    gpu_add_partials(device, d_bias, partials, blocks, columns);
}

GPU_OP(linear) {
    const LinearAttributes *attributes = call->attributes;
    const int64_t *x_shape = call->in_shape[LINEAR_X], *w_shape = call->in_shape[LINEAR_W];
    LinearShape shape = {.rows = x_shape[0], .in = x_shape[1], .out = w_shape[0]};
    Gemm gemm = linear_gemm(shape, GEMM_BF16, call->in[LINEAR_X], call->in[LINEAR_W], call->out[LINEAR_Y]);
    if (attributes->wide) gemm.output = GEMM_F32;
    gemm.bias = call->in[LINEAR_BIAS];
    device_gemm(call->device, &gemm);
}

/* Bytes of d_y in bf16, where it is WIDE; a multiple of 256, so that what follows is aligned. */
static int64_t cast_bytes(const LinearAttributes *attributes, LinearShape shape) {
    return attributes->wide ? divide_up(shape.rows * shape.out * (int64_t)sizeof(bf16), 256) * 256 : 0;
}

static int64_t cast_workspace(const Graph *graph, const Node *node) { return cast_bytes(node->attributes, linear_node_shape(graph, node)); }

/* d_y in bf16; `buffer` takes it where it is WIDE. */
static const bf16 *cast_gradient(const OpCall *call, const void *d_y, LinearShape shape, bf16 *buffer) {
    const LinearAttributes *attributes = call->attributes;
    if (!attributes->wide) return d_y;
    device_cast_to_bf16(call->device, buffer, d_y, shape.rows * shape.out);
    return buffer;
}

GPU_OP(linear_grad_input, cast_workspace) {
    const int64_t *y_shape = call->in_shape[LINEAR_GRAD_INPUT_D_Y], *w_shape = call->in_shape[LINEAR_GRAD_INPUT_W];
    LinearShape shape = {.rows = y_shape[0], .in = w_shape[1], .out = y_shape[1]};
    const bf16 *d_y = cast_gradient(call, call->in[LINEAR_GRAD_INPUT_D_Y], shape, call->workspace);
    Gemm gemm = linear_grad_input_gemm(shape, GEMM_BF16, d_y, call->in[LINEAR_GRAD_INPUT_W], call->out[LINEAR_GRAD_INPUT_D_X]);
    device_gemm(call->device, &gemm);
}

static int64_t weight_workspace(const Graph *graph, const Node *node) {
    LinearShape shape = linear_node_shape(graph, node);
    int64_t partials = divide_up(shape.rows, REDUCE_ROWS) * shape.out * (int64_t)sizeof(float);
    return cast_bytes(node->attributes, shape) + (node->out[LINEAR_GRAD_WEIGHT_D_BIAS] ? partials : 0);
}

/* Workspace: d_y in bf16 where it is WIDE, then partial sums of d_bias, if it is given. */
GPU_OP(linear_grad_weight, weight_workspace) {
    const int64_t *y_shape = call->in_shape[LINEAR_GRAD_WEIGHT_D_Y], *x_shape = call->in_shape[LINEAR_GRAD_WEIGHT_X];
    LinearShape shape = {.rows = y_shape[0], .in = x_shape[1], .out = y_shape[1]};
    const bf16 *d_y = cast_gradient(call, call->in[LINEAR_GRAD_WEIGHT_D_Y], shape, call->workspace);
    float *d_bias = call->out[LINEAR_GRAD_WEIGHT_D_BIAS];
    Gemm gemm =
        linear_grad_weight_gemm(shape, GEMM_BF16, d_y, call->in[LINEAR_GRAD_WEIGHT_X], call->out[LINEAR_GRAD_WEIGHT_D_W], call->overwrite);
    gemm.output = gpu_gradient_type(call);
    device_gemm(call->device, &gemm);
    if (!d_bias) return;
    float *partials = (float *)((char *)call->workspace + cast_bytes(call->attributes, shape));
    bias_grad(call->device, d_bias, d_y, partials, shape.rows, shape.out);
}

#endif
