/* The experts of one row, as in generation: two kernels that read the row's choices and multiply
 * only by the weights of these experts (backend/gpu/gemv.h). They replace ten kernels (a sort,
 * copies to slots and back, batches of GEMMs, and zeroing of unused slots), or twelve with biases.
 * Choice j has slot j.
 * Called by moe_combine, the last of these nodes (ops/moe/gpu.c); no scratch. */
#include "backend/gpu/formulas.h"
#include "backend/gpu/gemv.h"

typedef struct MoeRowArguments {
    Gemv layer;                  /* of expert 0: its b holds all experts, one after another */
    const int32_t GLOBAL *index; /* [k]: chosen experts; `experts` and more: skipped */
    const float GLOBAL *gate;    /* [k]; for the second layer */
    const float GLOBAL *bias;    /* [experts, n]; NULL: none */
    bf16 GLOBAL *y;              /* [k, n / 2]; for the second layer [n] */
    int32_t experts, k;
    float alpha, limit; /* ActivationTerms */
} MoeRowArguments;

#ifdef GPU_DEVICE

INLINE Gemv expert_gemv(const MoeRowArguments *a, int32_t expert) {
    Gemv layer = a->layer;
    layer.b += (int64_t)expert * layer.n * layer.ldb;
    return layer;
}

/* Returns a sum as the layer stores it, and then its operation of biases. */
INLINE float add_bias(const MoeRowArguments *a, float sum, int32_t expert, int32_t column) {
    float y = to_float(to_bf16(sum));
    return a->bias ? to_float(to_bf16(y + a->bias[(int64_t)expert * a->layer.n + column])) : y;
}

/* y = the sum over choices that are not skipped, in order, of gate x[choice] B for the choice's
 * expert. */
INLINE void down(const MoeRowArguments *a, const int lines) {
    static SHARED GemvParts parts[2]; /* in turn */
    int32_t first = block_x() * lines, turn = 0;
    float total = 0;
    await_kernel_ahead();
    for (int32_t j = 0; j < a->k; j++) {
        int32_t expert = a->index[j];
        if (expert >= a->experts) continue;
        Gemv layer = expert_gemv(a, expert);
        layer.x += (int64_t)j * layer.k;
        float sum = multiply_group(&layer, block_x(), 0, lines, &parts[turn ^= 1]);
        if (thread_id() < lines && first + thread_id() < a->layer.n) total += a->gate[j] * add_bias(a, sum, expert, first + thread_id());
    }
    if (thread_id() < lines && first + thread_id() < a->layer.n) a->y[first + thread_id()] = to_bf16(total);
}

/* Defines kernels NAME_4 and NAME_8: y[choice] = the gated function of x B for its expert; 0 if the
 * expert is skipped. */
#define ACTIVATION(...)
#define GATED(name, hf, value, d_gate, d_up) \
    INLINE void name##_row(const MoeRowArguments *a, const int lines) { \
        static SHARED GemvParts parts; \
        await_kernel_ahead(); \
        int32_t expert = a->index[block_y()], width = a->layer.n / 2, column = block_x() * (lines / 2) + thread_id(); \
        GemvPair pair = {0, 0}; \
        if (expert < a->experts) { \
            Gemv layer = expert_gemv(a, expert); \
            pair = pair_of_sums(multiply_group(&layer, block_x(), width, lines, &parts), lines); \
        } \
        if (thread_id() >= lines / 2) return; \
        float gate = 0, up = 0; \
        const float alpha = a->alpha, limit = a->limit; \
        (void)alpha, (void)limit; \
        if (expert < a->experts) { \
            gate = add_bias(a, pair.first, expert, column); \
            up = add_bias(a, pair.second, expert, width + column); \
        } \
        a->y[(int64_t)block_y() * width + column] = to_bf16(value); \
    } \
    KERNEL(name##_4, MoeRowArguments) { name##_row(&a, 4); } \
    KERNEL(name##_8, MoeRowArguments) { name##_row(&a, 8); }
#include "config/activation_list.h"

KERNEL(down_4, MoeRowArguments) { down(&a, 4); }
KERNEL(down_8, MoeRowArguments) { down(&a, 8); }

#else

#include "backend/gpu/kernel_launch.h"
#include "ops/activation/activation.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/moe/moe.h"

static const GpuKernel gated[ACTIVATION_COUNT][2] = {
#define ACTIVATION(...)
#define GATED(name, ...) [ACTIVATION_##name] = {{GPU_MODULE, #name "_4"}, {GPU_MODULE, #name "_8"}},
#include "config/activation_list.h"
};
LAUNCHERS(down, MoeRowArguments, down_4, down_8)

/* The nodes before moe_combine, by their distance from it: without biases, and with biases of both
 * layers. NO_BIAS: not there. */
enum { NO_BIAS = 0 };
typedef struct Distances { int down_bias, down, function, gate_up_bias, gate_up, permute, sort; } Distances;
static const Distances distances[] = {
    {.down = 1, .function = 2, .gate_up = 3, .permute = 4, .sort = 5},
    {.down_bias = 1, .down = 2, .function = 3, .gate_up_bias = 4, .gate_up = 5, .permute = 6, .sort = 7},
};

static bool is_layer(const Graph *graph, const Node *node, TensorId x) {
    if (node->op != OP_grouped_linear || node->in[GROUPED_LINEAR_X] != x || node->in[GROUPED_LINEAR_SUM]) return false;
    const Tensor *w = graph_get(graph, node->in[GROUPED_LINEAR_W]);
    return w->shape[1] % 8 == 0 && gemv_reads(w->shape[2], w->offset);
}

/* Returns the result of a layer, of its biases if it has some; TENSOR_NONE: `bias` is not there, but
 * should be. */
static TensorId layer_result(const Node *combine, int layer, int bias) {
    TensorId y = (combine - layer)->out[GROUPED_LINEAR_Y];
    const Node *node = combine - bias;
    if (bias == NO_BIAS) return y;
    return node->op == OP_grouped_bias && node->in[GROUPED_BIAS_X] == y ? node->out[GROUPED_BIAS_Y] : TENSOR_NONE;
}

static bool is_row(const Graph *graph, const Node *combine, const Distances *d) {
    const Node *sort = combine - d->sort, *permute = combine - d->permute, *function = combine - d->function;
    return sort->op == OP_moe_sort && permute->op == OP_moe_permute && function->op == OP_gated_activation &&
           permute->in[MOE_PERMUTE_SLOT] == sort->out[MOE_SORT_SLOT] && combine->in[MOE_COMBINE_SLOT] == sort->out[MOE_SORT_SLOT] &&
           is_layer(graph, combine - d->gate_up, permute->out[MOE_PERMUTE_X_SLOTS]) &&
           function->in[ACTIVATION_X] == layer_result(combine, d->gate_up, d->gate_up_bias) &&
           is_layer(graph, combine - d->down, function->out[ACTIVATION_Y]) &&
           combine->in[MOE_COMBINE_Y_SLOTS] == layer_result(combine, d->down, d->down_bias);
}

int moe_absorbs_row(const Backend *backend, const Graph *graph, int index) {
    if (device_info(backend->device)->exact) return 0;
    const Node *combine = &graph->nodes[index];
    if (graph_rows(graph, combine->in[MOE_COMBINE_SLOT]) != 1) return 0;
    for (size_t i = 0; i < sizeof distances / sizeof *distances; i++)
        if (index >= distances[i].sort && is_row(graph, combine, &distances[i])) return distances[i].sort;
    return 0;
}

static MoeRowArguments experts_row_arguments(const OpCall *layer, const OpCall *bias, const OpCall *sort, const void *x, void *y) {
    const int64_t *w_shape = layer->in_shape[GROUPED_LINEAR_W];
    return (MoeRowArguments){.layer = gemv_of(x, layer->in[GROUPED_LINEAR_W], w_shape[1], w_shape[2], false),
        .index = sort->in[MOE_SORT_INDEX],
        .bias = bias && grouped_bias_is_added(bias) ? bias->in[GROUPED_BIAS_BIAS] : NULL,
        .y = y,
        .experts = (int32_t)w_shape[0],
        .k = (int32_t)sort->in_shape[MOE_SORT_INDEX][1]};
}

void moe_launch_row(const OpCall *call) {
    const Distances *d = distances;
    while (d->sort != call->absorbs) d++;
    const OpCall *sort = call - d->sort, *function = call - d->function;
    const OpCall *biases[] = {d->gate_up_bias ? call - d->gate_up_bias : NULL, d->down_bias ? call - d->down_bias : NULL};
    const ActivationAttributes *activation = function->attributes;
    void *hidden = function->out[ACTIVATION_Y];
    MoeRowArguments both = experts_row_arguments(call - d->gate_up, biases[0], sort, (call - d->permute)->in[MOE_PERMUTE_X], hidden);
    MoeRowArguments last = experts_row_arguments(call - d->down, biases[1], sort, hidden, call->out[MOE_COMBINE_Y]);
    LaunchShape wide = {.x = divide_up(both.layer.n, gemv_lines(both.layer.k)), .y = both.k, .threads = GEMV_THREADS},
                narrow = {.x = divide_up(last.layer.n, gemv_lines(last.layer.k)), .threads = GEMV_THREADS};
    both.alpha = (float)activation->terms.alpha, both.limit = (float)activation->terms.limit;
    last.gate = call->in[MOE_COMBINE_GATE];
    gpu_launch(call->device, &gated[activation->function][gemv_lines(both.layer.k) == 8], wide, &both);
    launch_down(call->device, gemv_lines(last.layer.k) == 8, narrow, &last);
}

#endif
