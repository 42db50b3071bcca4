/* linear on a GPU: device_gemm computes the GEMMs; a WIDE gradient is cast first. The kernels
 * here sum columns for the gradient of a bias: blocks of REDUCE_ROWS rows write partial sums,
 * which gpu_add_partials adds in order. They are bound by memory bandwidth. Scratch belongs to
 * the call. */
#include "backend/gpu/vector.h"

enum {
    THREADS = 256,
    SUM_LANES = 32,                  /* threads along a row, 8 columns each */
    SUM_LINES = THREADS / SUM_LANES, /* rows that a block reads at once */
};

typedef struct ColumnSumsArguments {
    float GLOBAL *partials;
    const bf16 GLOBAL *rows;
    int64_t count, columns, stride; /* stride: elements between rows */
    int32_t block_rows;
} ColumnSumsArguments;

#ifdef GPU_DEVICE

/* Sums a block's rows over SUM_LANES * 8 columns; columns and stride are multiples of 8. Line l of
 * threads adds rows l, l + SUM_LINES, ...; then the lines' sums are added in order. */
KERNEL(column_sums_8, ColumnSumsArguments) {
    static SHARED float sums[SUM_LINES][SUM_LANES * 8];
    int lane = thread_id() % SUM_LANES, line = thread_id() / SUM_LANES;
    int64_t first = (int64_t)block_y() * a.block_rows, left = a.count - first, column = ((int64_t)block_x() * SUM_LANES + lane) * 8;
    int rows = left < a.block_rows ? (int)left : a.block_rows;
    f32x8 sum = 0;
    if (column < a.columns) {
        const bf16 GLOBAL *at = a.rows + first * a.stride + column;
        _Pragma("clang loop unroll_count(8)") for (int row = line; row < rows; row += SUM_LINES) sum += load8_bf16(at + row * a.stride, 8);
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
    const bf16 GLOBAL *at = a.rows + first * a.stride + column;
    float sum = 0;
    _Pragma("clang loop unroll_count(8)") for (int row = 0; row < rows; row++) sum += to_float(at[row * a.stride]);
    a.partials[block_y() * a.columns + column] = sum;
}

#else

#include "backend/gpu/kernel_launch.h"
#include "ops/linear/linear.h"

LAUNCHERS(column_sums, ColumnSumsArguments, column_sums_1, column_sums_8)

static_assert(SUM_LANES * 8 == THREADS, "each thread of column_sums_8 ends with one column");

/* d_bias += the column sums of d_y [rows, columns], whose rows are `stride` elements apart. */
static void add_column_sums(
    Device *device, float *d_bias, const bf16 *d_y, int64_t stride, float *partials, int64_t rows, int64_t columns) {
    int64_t blocks = divide_up(rows, REDUCE_ROWS);
    LaunchShape shape = {.x = divide_up(columns, THREADS), .y = blocks, .threads = THREADS};
    ColumnSumsArguments arguments = {
        .partials = partials, .rows = d_y, .count = rows, .columns = columns, .stride = stride, .block_rows = REDUCE_ROWS};
    bool aligned = columns % 8 == 0 && stride % 8 == 0 && (uintptr_t)d_y % 16 == 0;
    launch_column_sums(device, aligned, shape, &arguments);
    gpu_add_partials(device, d_bias, partials, blocks, columns);
}

GPU_OP(linear) {
    const LinearAttributes *attributes = call->attributes;
    const int64_t *x_shape = call->in_shape[LINEAR_X];
    size_t element = attributes->wide ? sizeof(float) : sizeof(bf16);
    char *y = call->out[LINEAR_Y];
    for (int i = 0; i < LINEAR_PARTS && call->in[LINEAR_W + i]; i++) {
        LinearShape shape = {.rows = x_shape[0], .in = x_shape[1], .out = call->in_shape[LINEAR_W + i][0]};
        Gemm gemm = linear_gemm(shape, GEMM_BF16, call->in[LINEAR_X], call->in[LINEAR_W + i], y);
        if (attributes->wide) gemm.output = GEMM_F32;
        gemm.b_lasts = attributes->lasts;
        gemm.ldc = call->out_shape[LINEAR_Y][1];
        gemm.bias = linear_has_bias(call) ? call->in[LINEAR_BIAS + i] : NULL;
        device_gemm(call->device, &gemm);
        y += shape.out * element;
    }
}

/* Returns the bytes of d_y in bf16 if it is WIDE; a multiple of 256, so that the following data is
 * aligned. */
static int64_t cast_scratch_bytes(const LinearAttributes *attributes, LinearShape shape) {
    return attributes->wide ? divide_up(shape.rows * shape.out * (int64_t)sizeof(bf16), 256) * 256 : 0;
}

static int64_t cast_workspace(const Graph *graph, const Node *node) {
    return cast_scratch_bytes(node->attributes, linear_node_shape(graph, node));
}

/* Returns the part's columns of d_y in bf16; `buffer` receives them if d_y is WIDE, which has one
 * part. */
static const bf16 *cast_gradient(const OpCall *call, const void *d_y, LinearShape shape, bf16 *buffer) {
    const LinearAttributes *attributes = call->attributes;
    if (!attributes->wide) return (const bf16 *)d_y + attributes->first;
    device_cast_to_bf16(call->device, buffer, d_y, shape.rows * shape.out);
    return buffer;
}

GPU_OP(linear_grad_input, cast_workspace) {
    const int64_t *y_shape = call->in_shape[LINEAR_GRAD_INPUT_D_Y], *w_shape = call->in_shape[LINEAR_GRAD_INPUT_W];
    LinearShape shape = {.rows = y_shape[0], .in = w_shape[1], .out = w_shape[0]};
    const bf16 *d_y = cast_gradient(call, call->in[LINEAR_GRAD_INPUT_D_Y], shape, call->workspace);
    Gemm gemm = linear_grad_input_gemm(shape, GEMM_BF16, d_y, call->in[LINEAR_GRAD_INPUT_W], call->out[LINEAR_GRAD_INPUT_D_X]);
    gemm.lda = y_shape[1];
    device_gemm(call->device, &gemm);
}

static int64_t weight_workspace(const Graph *graph, const Node *node) {
    LinearShape shape = linear_node_shape(graph, node);
    int64_t partials = divide_up(shape.rows, REDUCE_ROWS) * shape.out * (int64_t)sizeof(float);
    return cast_scratch_bytes(node->attributes, shape) + (node->out[LINEAR_GRAD_WEIGHT_D_BIAS] ? partials : 0);
}

/* Workspace: d_y in bf16 if it is WIDE, then partial sums of d_bias, if there is one. */
GPU_OP(linear_grad_weight, weight_workspace) {
    const int64_t *y_shape = call->in_shape[LINEAR_GRAD_WEIGHT_D_Y], *x_shape = call->in_shape[LINEAR_GRAD_WEIGHT_X];
    LinearShape shape = {.rows = y_shape[0], .in = x_shape[1], .out = call->out_shape[LINEAR_GRAD_WEIGHT_D_W][0]};
    const bf16 *d_y = cast_gradient(call, call->in[LINEAR_GRAD_WEIGHT_D_Y], shape, call->workspace);
    float *d_bias = call->out[LINEAR_GRAD_WEIGHT_D_BIAS];
    Gemm gemm =
        linear_grad_weight_gemm(shape, GEMM_BF16, d_y, call->in[LINEAR_GRAD_WEIGHT_X], call->out[LINEAR_GRAD_WEIGHT_D_W], call->overwrite);
    gemm.output = gpu_gradient_type(call);
    gemm.lda = y_shape[1];
    device_gemm(call->device, &gemm);
    if (!d_bias || !linear_has_bias(call)) return;
    float *partials = (float *)((char *)call->workspace + cast_scratch_bytes(call->attributes, shape));
    add_column_sums(call->device, d_bias, d_y, y_shape[1], partials, shape.rows, shape.out);
}

static int64_t bias_workspace(const Graph *graph, const Node *node) {
    TensorId d_y = node->in[BIAS_GRAD_D_Y];
    return divide_up(graph_rows(graph, d_y), REDUCE_ROWS) * graph_columns(graph, d_y) * (int64_t)sizeof(float);
}

/* Workspace: partial sums. */
GPU_OP(bias_grad, bias_workspace) {
    const int64_t *shape = call->in_shape[BIAS_GRAD_D_Y];
    if (linear_has_bias(call))
        add_column_sums(call->device, call->out[BIAS_GRAD_D_BIAS], call->in[BIAS_GRAD_D_Y], shape[1], call->workspace, shape[0], shape[1]);
}

#endif
