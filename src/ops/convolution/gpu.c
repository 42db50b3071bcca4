/* Convolutions on a GPU. A thread takes one channel: of a row forward and for d_x, and of REDUCE_ROWS rows for the
 * gradient of the weight. Threads of a wave take neighboring channels. Scratch: the sums of each REDUCE_ROWS rows. */
#include "backend/gpu/formulas.h"
#include "backend/gpu/vector.h"

typedef struct ConvolutionArguments {
    const bf16 GLOBAL *x, *weight, *d_y, *history; /* history NULL: none */
    const int32_t GLOBAL *positions;
    bf16 GLOBAL *y; /* or d_x, or the state */
    float GLOBAL *partials;
    int64_t rows;
    int32_t columns, length, taps, sum_rows;
} ConvolutionArguments;

#ifdef GPU_DEVICE

enum { MOST_TAPS = 8 };

/* Returns the number of rows before `row` that its sums read. */
INLINE int taps_before(const ConvolutionArguments *a, int64_t row) {
    int position = a->positions[row], within = (int)(row % a->length), most = a->taps - 1;
    if (position < most) most = position;
    return a->history || within > most ? most : within;
}

/* Returns the sum of channel c of a row before SiLU. */
INLINE float convolution_sum(const ConvolutionArguments *a, int64_t row, int c) {
    int before = taps_before(a, row), within = (int)(row % a->length);
    float sum = 0;
    for (int k = 0; k <= before; k++) {
        const bf16 GLOBAL *from = a->x + (row - k) * a->columns;
        if (k > within) from = a->history + ((row / a->length + 1) * (a->taps - 1) + within - k) * a->columns;
        sum += to_float(a->weight[(int64_t)c * a->taps + a->taps - 1 - k]) * to_float(from[c]);
    }
    return sum;
}

/* Returns the gradient of that sum. */
INLINE float convolution_slope(const ConvolutionArguments *a, int64_t row, int c) {
    float z = convolution_sum(a, row, c);
    return to_float(a->d_y[row * a->columns + c]) * over_sigmoid_slope(z, sigmoid(z), 1);
}

KERNEL(convolution, ConvolutionArguments) {
    int64_t row = block_x();
    int c = block_y() * TILE_THREADS + thread_id();
    if (c >= a.columns) return;
    float sum = convolution_sum(&a, row, c);
    a.y[row * a.columns + c] = to_bf16(over_sigmoid(sum, sum));
}

/* The last rows of (state, x) become the state: a thread moves its channel, earlier rows first. */
KERNEL(convolution_state, ConvolutionArguments) {
    int c = block_x() * TILE_THREADS + thread_id(), past = a.taps - 1;
    if (c >= a.columns) return;
    for (int i = 0; i < past; i++) {
        int64_t from = a.rows - past + i;
        a.y[(int64_t)i * a.columns + c] = from < 0 ? a.y[(from + past) * a.columns + c] : a.x[from * a.columns + c];
    }
}

KERNEL(convolution_grad, ConvolutionArguments) {
    int64_t row = block_x();
    int c = block_y() * TILE_THREADS + thread_id(), left = a.length - (int)(row % a.length);
    if (c >= a.columns) return;
    float sum = 0;
    for (int k = 0; k < a.taps && k < left && a.positions[row + k] >= k; k++)
        sum += to_float(a.weight[(int64_t)c * a.taps + a.taps - 1 - k]) * convolution_slope(&a, row + k, c);
    a.y[row * a.columns + c] = to_bf16(sum);
}

KERNEL(convolution_weight_grad, ConvolutionArguments) {
    int64_t first = (int64_t)block_x() * a.sum_rows, end = first + a.sum_rows < a.rows ? first + a.sum_rows : a.rows;
    int c = block_y() * TILE_THREADS + thread_id();
    float sums[MOST_TAPS] = {0};
    if (c >= a.columns) return;
    for (int64_t row = first; row < end; row++) {
        float dz = convolution_slope(&a, row, c);
        int before = taps_before(&a, row);
        UNROLL for (int k = 0; k < MOST_TAPS; k++) if (k <= before) sums[k] += dz * to_float(a.x[(row - k) * a.columns + c]);
    }
    float GLOBAL *to = a.partials + ((int64_t)block_x() * a.columns + c) * a.taps;
    UNROLL for (int k = 0; k < MOST_TAPS; k++) if (k < a.taps) to[a.taps - 1 - k] = sums[k];
}

#else

#include "ops/convolution/convolution.h"

LAUNCHER(convolution, ConvolutionArguments)
LAUNCHER(convolution_state, ConvolutionArguments)
LAUNCHER(convolution_grad, ConvolutionArguments)
LAUNCHER(convolution_weight_grad, ConvolutionArguments)

static ConvolutionArguments convolution_arguments(const OpCall *call, int x, int weight, int positions) {
    const ConvolutionAttributes *a = call->attributes;
    return (ConvolutionArguments){.x = call->in[x],
        .weight = call->in[weight],
        .positions = call->in[positions],
        .rows = a->rows,
        .columns = (int32_t)a->columns,
        .length = (int32_t)a->length,
        .taps = (int32_t)a->taps,
        .sum_rows = REDUCE_ROWS};
}

static LaunchShape convolution_shape(const ConvolutionArguments *a, int64_t rows) {
    return (LaunchShape){.x = rows, .y = divide_up(a->columns, TILE_THREADS), .threads = TILE_THREADS};
}

GPU_OP(convolution) {
    ConvolutionArguments arguments = convolution_arguments(call, CONVOLUTION_X, CONVOLUTION_WEIGHT, CONVOLUTION_POSITIONS);
    arguments.history = call->in[CONVOLUTION_HISTORY];
    arguments.y = call->out[CONVOLUTION_Y];
    launch_convolution(call->device, convolution_shape(&arguments, arguments.rows), &arguments);
    if (!call->out[CONVOLUTION_STATE]) return;
    arguments.y = call->out[CONVOLUTION_STATE];
    launch_convolution_state(
        call->device, (LaunchShape){.x = divide_up(arguments.columns, TILE_THREADS), .threads = TILE_THREADS}, &arguments);
}

static int64_t convolution_partials(const Graph *graph, const Node *node) {
    (void)graph;
    const ConvolutionAttributes *a = node->attributes;
    return divide_up(a->rows, REDUCE_ROWS) * a->columns * a->taps * (int64_t)sizeof(float);
}

GPU_OP(convolution_grad, convolution_partials) {
    ConvolutionArguments arguments = convolution_arguments(call, CONVOLUTION_GRAD_X, CONVOLUTION_GRAD_WEIGHT, CONVOLUTION_GRAD_POSITIONS);
    int64_t blocks = divide_up(arguments.rows, REDUCE_ROWS);
    arguments.d_y = call->in[CONVOLUTION_GRAD_D_Y];
    arguments.y = call->out[CONVOLUTION_GRAD_D_X];
    arguments.partials = call->workspace;
    launch_convolution_grad(call->device, convolution_shape(&arguments, arguments.rows), &arguments);
    if (!call->out[CONVOLUTION_GRAD_D_WEIGHT]) return;
    launch_convolution_weight_grad(call->device, convolution_shape(&arguments, blocks), &arguments);
    gpu_add_partials_to_gradient(
        call, call->out[CONVOLUTION_GRAD_D_WEIGHT], arguments.partials, blocks, (int64_t)arguments.columns * arguments.taps);
}

#endif
