/* The experts of one row, as in generation: two kernels that read the row's choices and multiply
 * only by the weights of these experts (backend/gpu/gemv.h). They replace ten kernels: a sort,
 * copies to slots and back, batches of GEMMs, and zeroing of unused slots. Choice j has slot j.
 * Called by moe_combine, the last of these nodes (ops/moe/gpu.c); no scratch. */
#include "backend/gpu/formulas.h"
#include "backend/gpu/gemv.h"

typedef struct MoeRowArguments {
    Gemv layer;                  /* of expert 0: its b holds all experts, one after another */
    const int32_t GLOBAL *index; /* [k]: chosen experts; `experts` and more: skipped */
    const float GLOBAL *gate;    /* [k]; for the second layer */
    bf16 GLOBAL *y;              /* [k, n / 2]; for the second layer [n] */
    int32_t experts, k;
} MoeRowArguments;

#ifdef GPU_DEVICE

INLINE Gemv expert_gemv(const MoeRowArguments *a, int32_t expert) {
    Gemv layer = a->layer;
    layer.b += (int64_t)expert * layer.n * layer.ldb;
    return layer;
}

/* y = the sum over choices that are not skipped, in order, of gate x[choice] B for the choice's
 * expert. */
INLINE void down(const MoeRowArguments *a, const int lines) {
    int32_t first = block_x() * lines;
    float total = 0;
    await_kernel_ahead();
    for (int32_t j = 0; j < a->k; j++) {
        int32_t expert = a->index[j];
        if (expert >= a->experts) continue;
        Gemv layer = expert_gemv(a, expert);
        float sums[GEMV_MOST_LINES];
        layer.x += (int64_t)j * layer.k;
        gemv_block(&layer, first, lines, sums);
        barrier(); /* the sums of the previous choice have been read */
        total += a->gate[j] * to_float(to_bf16(add_threads(sums, lines)));
    }
    if (thread_id() < lines && first + thread_id() < a->layer.n) a->y[first + thread_id()] = to_bf16(total);
}

/* Defines kernels NAME_4 and NAME_8: y[choice] = the gated function of x B for its expert; 0 if the
 * expert is skipped. */
#define ACTIVATION(...)
#define GATED(name, hf, value, d_gate, d_up) \
    INLINE void name##_row(const MoeRowArguments *a, const int lines) { \
        await_kernel_ahead(); \
        int32_t expert = a->index[block_y()], width = a->layer.n / 2, column = block_x() * (lines / 2) + thread_id(); \
        GemvPair pair = {0, 0}; \
        if (expert < a->experts) { \
            Gemv layer = expert_gemv(a, expert); \
            pair = multiply_pairs(&layer, width, lines); \
        } \
        if (thread_id() >= lines / 2) return; \
        float gate = to_float(to_bf16(pair.first)), up = to_float(to_bf16(pair.second)); \
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

/* The nodes before moe_combine, by their distance from it. */
enum { DOWN = 1, GATED_ACTIVATION, GATE_UP, PERMUTE, SORT };

static bool is_layer(const Graph *graph, const Node *node, TensorId x) {
    if (node->op != OP_grouped_linear || node->in[GROUPED_LINEAR_X] != x || node->in[GROUPED_LINEAR_SUM]) return false;
    const Tensor *w = graph_get(graph, node->in[GROUPED_LINEAR_W]);
    return w->shape[1] % 8 == 0 && gemv_reads(w->shape[2], w->offset);
}

int moe_absorbs_row(const Backend *backend, const Graph *graph, int index) {
    (void)backend;
    const Node *n = &graph->nodes[index];
    if (index < SORT || graph_rows(graph, n->in[MOE_COMBINE_SLOT]) != 1) return 0;
    const Node *sort = n - SORT, *permute = n - PERMUTE, *function = n - GATED_ACTIVATION;
    bool sorted = sort->op == OP_moe_sort && permute->op == OP_moe_permute && function->op == OP_gated_activation &&
                  permute->in[MOE_PERMUTE_SLOT] == sort->out[MOE_SORT_SLOT] && n->in[MOE_COMBINE_SLOT] == sort->out[MOE_SORT_SLOT];
    if (!sorted || !is_layer(graph, n - GATE_UP, permute->out[MOE_PERMUTE_X_SLOTS])) return 0;
    if (function->in[ACTIVATION_X] != (n - GATE_UP)->out[GROUPED_LINEAR_Y] || !is_layer(graph, n - DOWN, function->out[ACTIVATION_Y]))
        return 0;
    return n->in[MOE_COMBINE_Y_SLOTS] == (n - DOWN)->out[GROUPED_LINEAR_Y] ? SORT : 0;
}

static MoeRowArguments experts_row_arguments(const OpCall *layer, const OpCall *sort, const void *x, void *y) {
    const int64_t *w_shape = layer->in_shape[GROUPED_LINEAR_W];
    return (MoeRowArguments){.layer = gemv_of(x, layer->in[GROUPED_LINEAR_W], w_shape[1], w_shape[2], false),
        .index = sort->in[MOE_SORT_INDEX],
        .y = y,
        .experts = (int32_t)w_shape[0],
        .k = (int32_t)sort->in_shape[MOE_SORT_INDEX][1]};
}

void moe_launch_row(const OpCall *call) {
    const OpCall *sort = call - SORT, *function = call - GATED_ACTIVATION;
    MoeRowArguments both = experts_row_arguments(call - GATE_UP, sort, (call - PERMUTE)->in[MOE_PERMUTE_X], function->out[ACTIVATION_Y]);
    MoeRowArguments last = experts_row_arguments(call - DOWN, sort, function->out[ACTIVATION_Y], call->out[MOE_COMBINE_Y]);
    LaunchShape shape = gemv_shape(&both.layer);
    shape.y = both.k;
    last.gate = call->in[MOE_COMBINE_GATE];
    Activation activation = ((const ActivationAttributes *)function->attributes)->function;
    gpu_launch(call->device, &gated[activation][gemv_is_shallow(both.layer.k)], shape, &both);
    launch_down(call->device, gemv_is_shallow(last.layer.k), gemv_shape(&last.layer), &last);
}

#endif
