/* Convolutions on a GPU. Both passes are bound by memory: a thread takes 4 channels (one, if 4 do not divide them) and walks
 * down a run of up to RUN_ROWS rows of one sequence, so that it reads every row once. It keeps as many rows as there
 * are taps in registers; kernels for few and for many taps have windows of different sizes. Scratch: the sums of each
 * run for the gradient of the weight. */
#include "backend/gpu/formulas.h"
#include "backend/gpu/vector.h"

typedef struct ConvolutionArguments {
    Tiling tiling;                                 /* of runs and channels */
    const bf16 GLOBAL *x, *weight, *d_y, *history; /* history NULL: none */
    const int32_t GLOBAL *positions;
    bf16 GLOBAL *y;         /* or d_x, or the state */
    float GLOBAL *partials; /* NULL: the gradient of the weight is not wanted */
    int64_t rows;
    int32_t columns, length, taps, runs; /* runs: of a sequence */
} ConvolutionArguments;

enum { RUN_ROWS = 64, FEW_TAPS = 4, MOST_TAPS = 8 };

#ifdef GPU_DEVICE

/* A thread's channels from `column` on, in the rows [begin, end) of a sequence. `weights[k]` and `window[k]` belong to
 * the row k rows before the current one. The window's size, and the unit of channels, are constants at every call. */
typedef struct ConvolutionRun {
    int64_t sequence;
    int begin, end, column;
    f32x4 weights[MOST_TAPS], window[MOST_TAPS];
} ConvolutionRun;

INLINE int64_t run_offset(const ConvolutionArguments *a, const ConvolutionRun *run, int within) {
    return (run->sequence * a->length + within) * a->columns + run->column;
}

/* Returns x in a row of the sequence; rows before its begin are in the history, or zero. */
INLINE f32x4 run_row(const ConvolutionArguments *a, const ConvolutionRun *run, int within, int unit) {
    if (within >= 0) return load4_bf16(a->x + run_offset(a, run, within), unit);
    if (!a->history) return (f32x4){0};
    int64_t row = (run->sequence + 1) * (a->taps - 1) + within;
    return load4_bf16(a->history + row * a->columns + run->column, unit);
}

/* Begins a run: the window has the rows before its first row. */
INLINE ConvolutionRun run_begin(const ConvolutionArguments *a, UnitPlace place, int unit, int size) {
    int64_t sequence = place.row / a->runs;
    int begin = (int)(place.row - sequence * a->runs) * RUN_ROWS;
    ConvolutionRun run = {.sequence = sequence, .begin = begin, .end = begin + RUN_ROWS, .column = place.column};
    if (run.end > a->length) run.end = a->length;
    const bf16 GLOBAL *newest = a->weight + (int64_t)run.column * a->taps + a->taps - 1;
    UNROLL for (int k = 0; k < size; k++) {
        f32x4 weights = {0};
        UNROLL for (int i = 0; i < unit; i++) weights[i] = k < a->taps ? to_float(newest[i * a->taps - k]) : 0;
        run.weights[k] = weights;
        run.window[k] = k < a->taps - 1 ? run_row(a, &run, begin - 1 - k, unit) : (f32x4){0};
    }
    return run;
}

/* Moves a row into the window. Returns the sums before SiLU, and in *before the number of earlier rows that they read. */
INLINE f32x4 run_step(const ConvolutionArguments *a, ConvolutionRun *run, int within, f32x4 x, int size, int *before) {
    int position = a->positions[run->sequence * a->length + within];
    *before = position < a->taps - 1 ? position : a->taps - 1;
    if (!a->history && within < *before) *before = within;
    f32x4 sum = {0};
    UNROLL for (int k = size - 1; k > 0; k--) run->window[k] = run->window[k - 1];
    run->window[0] = x;
    UNROLL for (int k = 0; k < size; k++) if (k <= *before) sum += run->weights[k] * run->window[k];
    return sum;
}

INLINE void convolve_run(const ConvolutionArguments *a, int unit, int size) {
    UnitPlace place = place_in(a->tiling, unit);
    if (!place.inside) return;
    ConvolutionRun run = run_begin(a, place, unit, size);
    f32x4 next = run_row(a, &run, run.begin, unit);
    for (int within = run.begin, before; within < run.end; within++) {
        f32x4 x = next;
        if (within + 1 < run.end) next = run_row(a, &run, within + 1, unit);
        f32x4 sum = run_step(a, &run, within, x, size, &before);
        UNROLL for (int i = 0; i < unit; i++) sum[i] = over_sigmoid(sum[i], sum[i]);
        store4_bf16(a->y + run_offset(a, &run, within), sum, unit);
    }
}

/* d_x of a row is complete taps - 1 rows later, which may be rows of the next run. */
INLINE void convolve_run_back(const ConvolutionArguments *a, int unit, int size) {
    UnitPlace place = place_in(a->tiling, unit);
    if (!place.inside) return;
    ConvolutionRun run = run_begin(a, place, unit, size);
    f32x4 d_x[MOST_TAPS] = {0}, d_weights[MOST_TAPS] = {0}; /* d_x[k]: of the row k rows before the current one */
    for (int within = run.begin; within < run.end + a->taps - 1; within++) {
        UNROLL for (int k = size - 1; k > 0; k--) d_x[k] = d_x[k - 1];
        d_x[0] = (f32x4){0};
        if (within < a->length) {
            int before;
            f32x4 d_y = load4_bf16(a->d_y + run_offset(a, &run, within), unit);
            f32x4 sum = run_step(a, &run, within, run_row(a, &run, within, unit), size, &before);
            UNROLL for (int i = 0; i < unit; i++) d_y[i] *= over_sigmoid_slope(sum[i], sigmoid(sum[i]), 1);
            UNROLL for (int k = 0; k < size; k++) if (k <= before) {
                d_x[k] += run.weights[k] * d_y;
                if (within < run.end) d_weights[k] += d_y * run.window[k];
            }
        }
        int row = within - (a->taps - 1);
        UNROLL for (int k = 1; k < size; k++) if (k == a->taps - 1 && row >= run.begin)
            store4_bf16(a->y + run_offset(a, &run, row), d_x[k], unit);
    }
    if (!a->partials) return;
    float GLOBAL *to = a->partials + (place.row * a->columns + run.column) * a->taps;
    UNROLL for (int k = 0; k < size; k++) UNROLL for (int i = 0; i < unit; i++) if (k < a->taps) to[i * a->taps + a->taps - 1 - k] =
        d_weights[k][i];
}

INLINE void convolve_few(const ConvolutionArguments *a, int unit) { convolve_run(a, unit, FEW_TAPS); }
INLINE void convolve_many(const ConvolutionArguments *a, int unit) { convolve_run(a, unit, MOST_TAPS); }
INLINE void convolve_few_back(const ConvolutionArguments *a, int unit) { convolve_run_back(a, unit, FEW_TAPS); }
INLINE void convolve_many_back(const ConvolutionArguments *a, int unit) { convolve_run_back(a, unit, MOST_TAPS); }
UNIT_KERNELS(convolution_few, ConvolutionArguments, convolve_few, 4)
UNIT_KERNELS(convolution_many, ConvolutionArguments, convolve_many, 4)
UNIT_KERNELS(convolution_few_grad, ConvolutionArguments, convolve_few_back, 4)
UNIT_KERNELS(convolution_many_grad, ConvolutionArguments, convolve_many_back, 4)

/* The last rows of (state, x) become the state: a thread moves its channel, earlier rows first. */
KERNEL(convolution_state, ConvolutionArguments) {
    int c = block_x() * TILE_THREADS + thread_id(), past = a.taps - 1;
    if (c >= a.columns) return;
    for (int i = 0; i < past; i++) {
        int64_t from = a.rows - past + i;
        a.y[(int64_t)i * a.columns + c] = from < 0 ? a.y[(from + past) * a.columns + c] : a.x[from * a.columns + c];
    }
}

#else

#include "ops/convolution/convolution.h"

LAUNCHER(convolution_state, ConvolutionArguments)
LAUNCHERS(convolution, ConvolutionArguments, convolution_few_4, convolution_few_1, convolution_many_4, convolution_many_1)
LAUNCHERS(convolution_grad, ConvolutionArguments, convolution_few_grad_4, convolution_few_grad_1, convolution_many_grad_4,
    convolution_many_grad_1)

static int64_t convolution_runs(const ConvolutionAttributes *a) { return a->rows / a->length * divide_up(a->length, RUN_ROWS); }

static ConvolutionArguments convolution_arguments(const OpCall *call, int x, int weight, int positions) {
    const ConvolutionAttributes *a = call->attributes;
    return (ConvolutionArguments){.tiling = tile_matrix(convolution_runs(a), a->columns, 4),
        .x = call->in[x],
        .weight = call->in[weight],
        .positions = call->in[positions],
        .rows = a->rows,
        .columns = (int32_t)a->columns,
        .length = (int32_t)a->length,
        .taps = (int32_t)a->taps,
        .runs = (int32_t)divide_up(a->length, RUN_ROWS)};
}

/* Returns the index of a kernel in its launcher's list. */
static int convolution_form(const ConvolutionArguments *a) { return (a->taps > FEW_TAPS) * 2 + (a->tiling.unit == 1); }

GPU_OP(convolution) {
    ConvolutionArguments arguments = convolution_arguments(call, CONVOLUTION_X, CONVOLUTION_WEIGHT, CONVOLUTION_POSITIONS);
    arguments.history = call->in[CONVOLUTION_HISTORY];
    arguments.y = call->out[CONVOLUTION_Y];
    launch_convolution(call->device, convolution_form(&arguments), tiling_shape(arguments.tiling), &arguments);
    if (!call->out[CONVOLUTION_STATE]) return;
    arguments.y = call->out[CONVOLUTION_STATE];
    launch_convolution_state(
        call->device, (LaunchShape){.x = divide_up(arguments.columns, TILE_THREADS), .threads = TILE_THREADS}, &arguments);
}

static int64_t convolution_partials(const Graph *graph, const Node *node) {
    (void)graph;
    const ConvolutionAttributes *a = node->attributes;
    return convolution_runs(a) * a->columns * a->taps * (int64_t)sizeof(float);
}

GPU_OP(convolution_grad, convolution_partials) {
    ConvolutionArguments arguments = convolution_arguments(call, CONVOLUTION_GRAD_X, CONVOLUTION_GRAD_WEIGHT, CONVOLUTION_GRAD_POSITIONS);
    arguments.d_y = call->in[CONVOLUTION_GRAD_D_Y];
    arguments.y = call->out[CONVOLUTION_GRAD_D_X];
    if (call->out[CONVOLUTION_GRAD_D_WEIGHT]) arguments.partials = call->workspace;
    launch_convolution_grad(call->device, convolution_form(&arguments), tiling_shape(arguments.tiling), &arguments);
    if (!arguments.partials) return;
    gpu_add_partials_to_gradient(
        call, call->out[CONVOLUTION_GRAD_D_WEIGHT], arguments.partials, arguments.tiling.rows, (int64_t)arguments.columns * arguments.taps);
}

#endif
