/* y = x w^T + bias and its two gradients on a GPU (op/linear.c): the products are device_gemm's; here are the column sums of a bias's gradient, at the speed of
 * memory. Scratch is the call's. */
#include "backend/gpu/vector.h"

enum {
    THREADS = 256,
    SUM_LANES = 32,                  /* threads side by side in a row, 8 columns each */
    SUM_PARTS = THREADS / SUM_LANES, /* rows that are read at once */
};

typedef struct ColumnSumsArguments {
    float GLOBAL *partials;
    const bf16 GLOBAL *rows;
    int64_t count, columns;
    int32_t block_rows;
} ColumnSumsArguments;

#ifdef GPU_DEVICE

/* The sums of block_y's rows over SUM_LANES * 8 columns, which are a multiple of 8 in all. Part p adds rows p, p + SUM_PARTS, ...; then the parts are added in
 * order. */
KERNEL(column_sums_8, ColumnSumsArguments) {
    static SHARED float sums[SUM_PARTS][SUM_LANES * 8];
    int lane = thread_id() % SUM_LANES, part = thread_id() / SUM_LANES;
    int64_t first = (int64_t)block_y() * a.block_rows, left = a.count - first, column = ((int64_t)block_x() * SUM_LANES + lane) * 8;
    int rows = left < a.block_rows ? (int)left : a.block_rows;
    f32x8 sum = 0;
    if (column < a.columns) {
        const bf16 GLOBAL *at = a.rows + first * a.columns + column;
        _Pragma("clang loop unroll_count(8)") for (int row = part; row < rows; row += SUM_PARTS) sum += load8_bf16(at + row * a.columns, 8);
    }
    UNROLL for (int i = 0; i < 8; i++) sums[part][lane * 8 + i] = sum[i];
    barrier();
    column = (int64_t)block_x() * SUM_LANES * 8 + thread_id();
    if (column >= a.columns) return;
    float total = 0;
    UNROLL for (int i = 0; i < SUM_PARTS; i++) total += sums[i][thread_id()];
    a.partials[block_y() * a.columns + column] = total;
}

/* Any number of columns, one per thread. */
KERNEL(column_sums, ColumnSumsArguments) {
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

LAUNCHER(column_sums_8, ColumnSumsArguments)
LAUNCHER(column_sums, ColumnSumsArguments)

static_assert(SUM_LANES * 8 == THREADS, "each thread of column_sums_8 ends with one column");

/* d_bias += the column sums of d_y [rows, columns]. */
static void bias_grad(Device *device, float *d_bias, const bf16 *d_y, float *partials, int64_t rows, int64_t columns) {
    int64_t blocks = divide_up(rows, REDUCE_ROWS);
    LaunchShape shape = {.x = divide_up(columns, THREADS), .y = blocks, .threads = THREADS};
    ColumnSumsArguments arguments = {.partials = partials, .rows = d_y, .count = rows, .columns = columns, .block_rows = REDUCE_ROWS};
    if (columns % 8 == 0) launch_column_sums_8(device, shape, &arguments);
    else launch_column_sums(device, shape, &arguments);
    gpu_add_partials(device, d_bias, partials, blocks, columns);
}

GPU_OP(linear) {
    const LinearAttributes *attributes = call->attributes;
    int64_t rows = call->in_shape[0][0], in = call->in_shape[0][1], out = call->in_shape[1][0];
    device_gemm(call->device, &(Gemm){.transpose_b = true,
                                  .input = GEMM_BF16,
                                  .output = attributes->wide ? GEMM_F32 : GEMM_BF16,
                                  .m = rows,
                                  .n = out,
                                  .k = in,
                                  .a = call->in[0],
                                  .lda = in,
                                  .b = call->in[1],
                                  .ldb = in,
                                  .c = call->out[0],
                                  .ldc = out,
                                  .bias = call->in[2]});
}

/* The gradient of y in bf16; `buffer` takes it where it is WIDE. */
static const bf16 *narrowed(const OpCall *call, bf16 *buffer) {
    const LinearAttributes *attributes = call->attributes;
    if (!attributes->wide) return call->in[0];
    gpu_cast_to_bf16(call->device, buffer, call->in[0], call->in_shape[0][0] * call->in_shape[0][1]);
    return buffer;
}

/* Scratch of a WIDE gradient's bf16 form, in bytes that leave what follows aligned. */
static int64_t narrowed_bytes(const LinearAttributes *attributes, int64_t rows, int64_t columns) {
    return attributes->wide ? divide_up(rows * columns * (int64_t)sizeof(bf16), 256) * 256 : 0;
}

static int64_t gpu_scratch_linear_grad_input(const Graph *graph, const Node *node) {
    return narrowed_bytes(node->attributes, graph_rows(graph, node->in[0]), graph_columns(graph, node->in[0]));
}

GPU_OP(linear_grad_input, gpu_scratch_linear_grad_input) {
    int64_t rows = call->in_shape[0][0], out = call->in_shape[0][1], in = call->in_shape[1][1];
    device_gemm(call->device, &(Gemm){.input = GEMM_BF16,
                                  .output = GEMM_BF16,
                                  .m = rows,
                                  .n = in,
                                  .k = out,
                                  .a = narrowed(call, call->workspace),
                                  .lda = out,
                                  .b = call->in[1],
                                  .ldb = in,
                                  .c = call->out[0],
                                  .ldc = in});
}

static int64_t gpu_scratch_linear_grad_weight(const Graph *graph, const Node *node) {
    int64_t rows = graph_rows(graph, node->in[0]), columns = graph_columns(graph, node->in[0]);
    int64_t partials = node->out[1] ? divide_up(rows, REDUCE_ROWS) * columns * (int64_t)sizeof(float) : 0;
    return narrowed_bytes(node->attributes, rows, columns) + partials;
}

GPU_OP(linear_grad_weight, gpu_scratch_linear_grad_weight) {
    int64_t rows = call->in_shape[0][0], out = call->in_shape[0][1], in = call->in_shape[1][1];
    const bf16 *d_y = narrowed(call, call->workspace);
    device_gemm(call->device, &(Gemm){.transpose_a = true,
                                  .accumulate = !call->overwrite,
                                  .input = GEMM_BF16,
                                  .output = gpu_gradient_type(call),
                                  .m = out,
                                  .n = in,
                                  .k = rows,
                                  .a = d_y,
                                  .lda = out,
                                  .b = call->in[1],
                                  .ldb = in,
                                  .c = call->out[0],
                                  .ldc = in});
    float *partials = (float *)((char *)call->workspace + narrowed_bytes(call->attributes, rows, out));
    if (call->out[1]) bias_grad(call->device, call->out[1], d_y, partials, rows, out);
}

#endif
