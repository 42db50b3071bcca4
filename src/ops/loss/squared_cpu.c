/* squared_error on a CPU, one thread per row; the losses of rows are summed in order, in double.
 * Scratch: these losses. */
#include "backend/cpu/kernel.h"
#include "ops/loss/loss.h"

static int64_t squared_cpu_workspace(const Graph *graph, const Node *node) {
    return graph_rows(graph, node->in[SQUARED_X]) * (int64_t)precision_bytes(graph->precision, TYPE_WIDE);
}

CPU_OP(squared_error, squared_cpu_workspace) {
    const W *x = call->in[SQUARED_X], *target = call->in[SQUARED_TARGET], *weights = call->in[SQUARED_WEIGHTS],
            *scale = call->in[SQUARED_SCALE];
    W *loss = call->out[SQUARED_LOSS], *d_x = call->out[SQUARED_D_X], *losses = call->workspace;
    int64_t rows = call->in_shape[SQUARED_X][0], columns = call->in_shape[SQUARED_X][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        W sum = 0, factor = scale[0] * weights[r] * 2 / columns;
        for (int64_t i = r * columns; i < (r + 1) * columns; i++) {
            W difference = x[i] - target[i];
            sum += difference * difference;
            if (d_x) d_x[i] = factor * difference;
        }
        losses[r] = weights[r] * sum / columns;
    }
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) sum += losses[r];
    loss[0] += (W)(scale[0] * sum);
}
