/* squared_error on a GPU: a wave per row, then one block that adds the rows' losses in thread
 * order. Scratch: these losses. */
#include "backend/gpu/vector.h"

typedef struct SquaredArguments {
    const float GLOBAL *x, *target, *weights, *scale;
    float GLOBAL *d_x, *losses, *loss; /* d_x NULL: not wanted */
    int64_t rows, columns;
} SquaredArguments;

enum { THREADS = 256 };

#ifdef GPU_DEVICE

KERNEL(squared_error, SquaredArguments) {
    int64_t row = (int64_t)block_x() * (THREADS / WAVE) + wave_id();
    if (row >= a.rows) return;
    float sum = 0, weight = a.weights[row], factor = *a.scale * weight * 2 / (float)a.columns;
    for (int64_t i = row * a.columns + lane_id(); i < (row + 1) * a.columns; i += WAVE) {
        float difference = a.x[i] - a.target[i];
        sum += difference * difference;
        if (a.d_x) a.d_x[i] = factor * difference;
    }
    sum = wave_sum(sum);
    if (lane_id() == 0) a.losses[row] = weight * sum / (float)a.columns;
}

KERNEL(add_squared_errors, SquaredArguments) {
    static SHARED float scratch[THREADS / WAVE];
    float sum = 0;
    for (int64_t r = thread_id(); r < a.rows; r += THREADS) sum += a.losses[r];
    sum = block_sum(sum, scratch, THREADS);
    if (thread_id() == 0) a.loss[0] += *a.scale * sum;
}

#else

#include "ops/loss/loss.h"

LAUNCHER(squared_error, SquaredArguments)
LAUNCHER(add_squared_errors, SquaredArguments)

static int64_t squared_gpu_workspace(const Graph *graph, const Node *node) {
    return graph_rows(graph, node->in[SQUARED_X]) * (int64_t)sizeof(float);
}

GPU_OP(squared_error, squared_gpu_workspace) {
    const int64_t *shape = call->in_shape[SQUARED_X];
    SquaredArguments arguments = {.x = call->in[SQUARED_X],
        .target = call->in[SQUARED_TARGET],
        .weights = call->in[SQUARED_WEIGHTS],
        .scale = call->in[SQUARED_SCALE],
        .d_x = call->out[SQUARED_D_X],
        .losses = call->workspace,
        .loss = call->out[SQUARED_LOSS],
        .rows = shape[0],
        .columns = shape[1]};
    int64_t waves = THREADS / device_info(call->device)->wave;
    launch_squared_error(call->device, (LaunchShape){.x = divide_up(shape[0], waves), .threads = THREADS}, &arguments);
    launch_add_squared_errors(call->device, (LaunchShape){.x = 1, .threads = THREADS}, &arguments);
}

#endif
