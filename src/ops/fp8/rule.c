/* Linear layers in fp8: the operands that each recipe makes from x, w and d_y, the GEMMs over them,
 * and their gradients.
 *
 * The recipes: `tensor` has one scale per matrix, in e4m3, and in e5m2 for d_y, whose range is
 * larger (arXiv 2209.05433); `row` has a scale per line of each operand; `row_gw_hp` is like `row`
 * with weight gradients in COMPUTE and one scale for w in d_x (torchao's rowwise_with_gw_hp);
 * `block` has one scale per 1 x 128 elements of x and d_y and per 128 x 128 elements of w (arXiv
 * 2412.19437, 3.3.2); `mxfp8` has one scale per 32 elements along each sum, in e4m3 throughout
 * (arXiv 2506.08027). Casting is a straight-through estimator: a matrix gets the gradient of its
 * operand.
 *
 * A weight is cast by rows for y, and by columns for d_x. With FP8_WEIGHTS_KEPT it is cast once per
 * step, both ways, into the state arena, and all microbatches and recomputation read it there. With
 * FP8_WEIGHTS_GATHERED the quantized values come from the ranks that have shards of the weight, and
 * are only transposed. These ranks know the weight's amax too: the caller supplies it.
 *
 * Experts' layers are cast and multiplied like other layers. Their weight gradients sum over slots,
 * which are stored by columns in the tiles of the dispatch (tiles_rule.c), the same tiles for x and
 * d_y of all its layers. */
#include "ops/fp8/fp8.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/linear/linear.h"

/* The casts of x, w and d_y. `weights`: d_w is computed in fp8 too. */
typedef struct Recipe {
    Fp8CastAttributes x, w, w_backward, d_y;
    bool weights;
} Recipe;

#define CAST(kind, rows, columns) {kind, GEMM_SCALE_##rows, GEMM_SCALE_##columns}
static const Recipe recipes[] = {
    [FP8_TENSOR] = {CAST(FP8_E4M3, TENSOR, TENSOR), CAST(FP8_E4M3, TENSOR, ONE), CAST(FP8_E4M3, ONE, TENSOR),
        CAST(FP8_E5M2, TENSOR, TENSOR), true},
    [FP8_ROW] = {CAST(FP8_E4M3, LINE, LINE), CAST(FP8_E4M3, LINE, ONE), CAST(FP8_E4M3, ONE, LINE), CAST(FP8_E4M3, LINE, LINE), true},
    [FP8_ROW_GW_HP] = {CAST(FP8_E4M3, LINE, ONE), CAST(FP8_E4M3, LINE, ONE), CAST(FP8_E4M3, ONE, TENSOR), CAST(FP8_E4M3, LINE, ONE), false},
    [FP8_BLOCK] = {CAST(FP8_E4M3, GROUP, GROUP), CAST(FP8_E4M3, BLOCK, ONE), CAST(FP8_E4M3, ONE, BLOCK), CAST(FP8_E4M3, GROUP, GROUP),
        true},
    [FP8_MXFP8] = {CAST(FP8_E4M3, MX, MX), CAST(FP8_E4M3, MX, ONE), CAST(FP8_E4M3, ONE, MX), CAST(FP8_E4M3, MX, MX), true},
};

/* -- Casting ------------------------------------------------------------------------------------------------------- */

/* Returns the amax of x, computed by the node that makes x, or by a pass over x. */
static TensorId append_amax(Graph *graph, TensorId x) {
    TensorId found = op_find_amax(graph, x);
    if (found) return found;
    const Tensor *t = graph_get(graph, x);
    int64_t count = fp8_stack(t->shape, t->rank).count;
    Arena arena = graph_is_parameter(graph, x) ? ARENA_STATE : ARENA_ACTIVATION;
    TensorId amax = graph_tensor(graph, arena, TYPE_WIDE, 1, &count, "amax");
    graph_node(graph, OP_fp8_amax, (Inputs){[FP8_AMAX_X] = x}, (Outputs){[FP8_AMAX_Y] = amax}, NULL, 0);
    return amax;
}

/* Appends a tensor with one amax per matrix of x, in an arena that the caller reads or writes. */
static TensorId append_amax_tensor(Graph *graph, Arena arena, TensorId x, const char *name) {
    const Tensor *t = graph_get(graph, x);
    int64_t count = fp8_stack(t->shape, t->rank).count;
    return graph_tensor(graph, arena, TYPE_WIDE, 1, &count, name);
}

static void append_operand(
    Graph *graph, Arena arena, Outputs out, int quantized, const Tensor *x, int64_t lines, int64_t k, GemmScaling scaling) {
    if (scaling == GEMM_SCALE_ONE) return;
    int64_t count = fp8_stack(x->shape, x->rank).count, scales = count * gemm_scale_count(scaling, lines, k);
    int64_t shape[] = {count, lines, k};
    int skip = x->rank == 3 ? 0 : 1;
    bool rows = quantized == FP8_CAST_ROWS;
    out[quantized] = graph_tensor(graph, arena, TYPE_FP8, 3 - skip, shape + skip, rows ? "fp8" : "fp8_columns");
    out[quantized + 1] = graph_tensor(graph, arena, TYPE_WIDE, 1, &scales, rows ? "scales" : "column_scales");
}

/* Casts x into operands in `arena`. `amax` is known or TENSOR_NONE; with `delayed` it is an input,
 * and the cast also computes the next amax. `tiles` belong to slots of experts; TENSOR_NONE for
 * other rows. Returns the node. */
static int append_cast(
    Graph *graph, Arena arena, TensorId x, TensorId amax, TensorId tiles, bool delayed, const Fp8CastAttributes *attributes) {
    Inputs in = {[FP8_CAST_X] = x, [FP8_CAST_TILES] = tiles};
    Outputs out = {0};
    const Tensor t = *graph_get(graph, x);
    Fp8Stack s = fp8_stack(t.shape, t.rank);
    int64_t depth = tiles ? graph_rows(graph, tiles) * FP8_TILE_SLOTS : s.rows; /* along k of the operand by columns */
    assert(t.type == TYPE_COMPUTE && s.columns % 16 == 0 && (attributes->columns == GEMM_SCALE_ONE || depth % 16 == 0));
    bool tensor = attributes->rows == GEMM_SCALE_TENSOR || attributes->columns == GEMM_SCALE_TENSOR;
    if (tensor && !amax) amax = delayed || attributes->coded ? append_amax_tensor(graph, ARENA_INPUT, x, "amax") : append_amax(graph, x);
    if (delayed && attributes->coded) in[FP8_CAST_FOUND] = append_amax_tensor(graph, ARENA_INPUT, x, "amax_found");
    if (delayed) out[FP8_CAST_SEEN] = append_amax_tensor(graph, ARENA_METRIC, x, "amax_seen");
    append_operand(graph, arena, out, FP8_CAST_ROWS, &t, s.rows, s.columns, attributes->rows);
    append_operand(graph, arena, out, FP8_CAST_COLUMNS, &t, s.columns, depth, attributes->columns);
    if (tensor) in[FP8_CAST_AMAX] = amax;
    return graph_node(graph, OP_fp8_cast, in, out, attributes, sizeof *attributes);
}

/* Returns the cast that made an operand. */
static Node cast_of(const Graph *graph, TensorId quantized) {
    Node node = graph->nodes[graph_get(graph, quantized)->producer];
    assert(node.op == OP_fp8_cast);
    return node;
}

TensorId fp8_cast_input(const Graph *graph, TensorId quantized) { return cast_of(graph, quantized).in[FP8_CAST_X]; }

TensorId fp8_linear_weight(const Graph *graph, const Node *node) { return fp8_cast_input(graph, node->in[FP8_LINEAR_B]); }

int fp8_append_cast(Graph *graph, TensorId x, bool columns, bool kept) {
    Fp8CastAttributes attributes = CAST(FP8_E4M3, TENSOR, TENSOR);
    if (!columns) attributes.columns = GEMM_SCALE_ONE;
    return append_cast(graph, kept ? ARENA_STATE : ARENA_ACTIVATION, x, TENSOR_NONE, TENSOR_NONE, false, &attributes);
}

static void fp8_cast_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    if (!graph_is_parameter(graph, node->in[FP8_CAST_X])) d_in[FP8_CAST_X] = d_out[FP8_CAST_ROWS];
}

/* -- Multiplying --------------------------------------------------------------------------------------------------- */

/* Sets operands by rows or, with `columns`, by columns of the casts `a` and `b`. */
static Fp8LinearAttributes set_operands(const Graph *graph, int a, int b, bool a_columns, bool b_columns, Inputs in) {
    const Node *left = &graph->nodes[a], *right = &graph->nodes[b];
    const Fp8CastAttributes *of_a = left->attributes, *of_b = right->attributes;
    in[FP8_LINEAR_A] = left->out[a_columns ? FP8_CAST_COLUMNS : FP8_CAST_ROWS];
    in[FP8_LINEAR_A_SCALES] = left->out[a_columns ? FP8_CAST_COLUMN_SCALES : FP8_CAST_ROW_SCALES];
    in[FP8_LINEAR_B] = right->out[b_columns ? FP8_CAST_COLUMNS : FP8_CAST_ROWS];
    in[FP8_LINEAR_B_SCALES] = right->out[b_columns ? FP8_CAST_COLUMN_SCALES : FP8_CAST_ROW_SCALES];
    assert(of_b->kind == FP8_E4M3);
    return (Fp8LinearAttributes){
        .kind = of_a->kind, .scaling_a = a_columns ? of_a->columns : of_a->rows, .scaling_b = b_columns ? of_b->columns : of_b->rows};
}

/* Appends the product of rows of x or d_y with the weights, by rows or by columns. */
static TensorId append_product(
    Graph *graph, int a, int w, bool w_columns, TensorId bias, TensorId offset, const Fp8LinearAttributes *like, const char *name) {
    Inputs in = {0};
    Fp8LinearAttributes attributes = set_operands(graph, a, w, false, w_columns, in);
    const Tensor *b = graph_get(graph, in[FP8_LINEAR_B]);
    attributes.recipe = like->recipe, attributes.sum = like->sum, attributes.rows = like->rows;
    in[FP8_LINEAR_BIAS] = bias, in[FP8_LINEAR_OFFSET] = offset;
    TensorId c = graph_activation(graph, TYPE_COMPUTE, graph_rows(graph, in[FP8_LINEAR_A]), b->shape[b->rank - 2], name);
    graph_node(graph, OP_fp8_linear, in, (Outputs){[FP8_LINEAR_C] = c}, &attributes, sizeof attributes);
    return c;
}

/* Marks the parameters of a weight as gathered in quantized form; returns false if this rank has
 * them whole. */
static bool gathers_quantized(Graph *graph, TensorId w) {
    int i = graph_find_parameter(graph, graph_get(graph, w)->name);
    MeshAxes sharing = parameter_sum_axes(&graph->parameters[i]) & ~MESH(AXIS_REPLICA);
    if (mesh_size(graph->mesh, sharing) == 1 || graph_get(graph, w)->frozen) return false;
    for (int64_t rest = graph_elements(graph, w); rest > 0; rest -= graph->parameters[i++].count) graph->parameters[i].coded = true;
    return true;
}

/* Appends the cast of a weight for y, and for d_x too if the quantized values are kept. */
static int append_weight(Graph *graph, TensorId w, bool delayed, Fp8Weights weights, const Recipe *recipe) {
    Fp8CastAttributes attributes = recipe->w;
    attributes.coded = weights == FP8_WEIGHTS_GATHERED && gathers_quantized(graph, w);
    if (weights == FP8_WEIGHTS_KEPT) attributes.columns = recipe->w_backward.columns;
    Arena arena = weights == FP8_WEIGHTS_KEPT ? ARENA_STATE : ARENA_ACTIVATION;
    return append_cast(graph, arena, w, TENSOR_NONE, TENSOR_NONE, delayed, &attributes);
}

/* Appends the cast of the weight for d_x; `forward` is the cast for y. */
static int append_weight_backward(Graph *graph, int forward, const Recipe *recipe) {
    const Node *cast = &graph->nodes[forward];
    Fp8CastAttributes attributes = recipe->w_backward;
    attributes.coded = ((const Fp8CastAttributes *)cast->attributes)->coded;
    return cast->out[FP8_CAST_COLUMNS]
               ? forward
               : append_cast(graph, ARENA_ACTIVATION, cast->in[FP8_CAST_X], cast->in[FP8_CAST_AMAX], TENSOR_NONE, false, &attributes);
}

static TensorId append_fp8(
    Graph *graph, TensorId x, TensorId w, TensorId bias, const Dispatch *dispatch, const Fp8Config *fp8, const Fp8LinearAttributes *like) {
    const Recipe *recipe = &recipes[like->recipe];
    Fp8CastAttributes x_cast = recipe->x;
    assert(like->recipe != FP8_NONE && graph_is_parameter(graph, w) && graph_columns(graph, x) == graph_columns(graph, w));
    if (!graph->training || graph_get(graph, w)->frozen) x_cast.columns = GEMM_SCALE_ONE;
    bool delayed = graph->training && fp8->scaling == FP8_DELAYED, tiled = dispatch && x_cast.columns != GEMM_SCALE_ONE;
    TensorId tiles = tiled ? fp8_tiles(graph, dispatch, graph_rows(graph, x)) : TENSOR_NONE;
    int x_node = append_cast(graph, ARENA_ACTIVATION, x, TENSOR_NONE, tiles, delayed, &x_cast);
    int w_node = append_weight(graph, w, delayed, graph->training ? (Fp8Weights)fp8->weights : FP8_WEIGHTS_CAST, recipe);
    return append_product(graph, x_node, w_node, false, bias, dispatch ? dispatch->offset : TENSOR_NONE, like, "linear");
}

TensorId op_fp8_linear(Graph *graph, TensorId x, TensorId w, TensorId bias, MeshAxes sum, const Fp8Config *fp8) {
    Fp8LinearAttributes like = {.recipe = (Fp8Recipe)fp8->recipe, .sum = sum, .rows = graph_rows(graph, x)};
    return append_fp8(graph, x, w, bias, NULL, fp8, &like);
}

TensorId op_fp8_grouped_linear(Graph *graph, TensorId x_slots, TensorId w, const Dispatch *dispatch, const Fp8Config *fp8) {
    Fp8LinearAttributes like = {.recipe = (Fp8Recipe)fp8->recipe, .rows = dispatch->rows};
    return append_fp8(graph, x_slots, w, TENSOR_NONE, dispatch, fp8, &like);
}

/* Appends the weight gradient in COMPUTE, from x and d_y themselves. */
static void append_quantized_weight_gradient(Graph *graph, TensorId x, TensorId d_y, TensorId d_w, TensorId d_bias, MeshAxes sum) {
    graph_node(graph, OP_linear_grad_weight, (Inputs){[LINEAR_GRAD_WEIGHT_D_Y] = d_y, [LINEAR_GRAD_WEIGHT_X] = x},
        (Outputs){[LINEAR_GRAD_WEIGHT_D_W] = d_w, [LINEAR_GRAD_WEIGHT_D_BIAS] = d_bias}, &(LinearAttributes){.sum = sum},
        sizeof(LinearAttributes));
}

static void append_expert_gradient(Graph *graph, TensorId x, TensorId d_y, TensorId offset, TensorId d_w, int64_t rows) {
    Inputs in = {[GROUPED_LINEAR_GRAD_WEIGHT_D_Y] = d_y, [GROUPED_LINEAR_GRAD_WEIGHT_X] = x, [GROUPED_LINEAR_GRAD_WEIGHT_OFFSET] = offset};
    graph_node(graph, OP_grouped_linear_grad_weight, in, (Outputs){[GROUPED_LINEAR_GRAD_WEIGHT_D_W] = d_w},
        &(GroupedLinearAttributes){.rows = rows}, sizeof(GroupedLinearAttributes));
}

/* Appends the weight gradient in fp8, from x and d_y by columns. */
static void append_fp8_weight_gradient(Graph *graph, int d_y, int x, TensorId d_w, const Fp8LinearAttributes *like) {
    Inputs in = {0};
    TensorId tiles = graph->nodes[x].in[FP8_CAST_TILES];
    Fp8LinearAttributes attributes = set_operands(graph, d_y, x, true, true, in);
    attributes.recipe = like->recipe, attributes.rows = like->rows;
    if (tiles) in[FP8_LINEAR_OFFSET] = graph->nodes[graph_get(graph, tiles)->producer].out[FP8_TILES_BEGIN];
    graph_node(graph, OP_fp8_linear_grad_weight, in, (Outputs){[FP8_LINEAR_C] = d_w}, &attributes, sizeof attributes);
}

static void fp8_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    const Fp8LinearAttributes *like = node->attributes;
    const Recipe *recipe = &recipes[like->recipe];
    TensorId d_y = d_out[FP8_LINEAR_C], offset = node->in[FP8_LINEAR_OFFSET];
    Node x_cast = cast_of(graph, node->in[FP8_LINEAR_A]);
    TensorId x = x_cast.in[FP8_CAST_X], w = fp8_linear_weight(graph, node);
    bool delayed = x_cast.out[FP8_CAST_SEEN];
    TensorId d_w = graph_parameter_gradient(graph, w), d_bias = graph_parameter_gradient(graph, node->in[FP8_LINEAR_BIAS]);
    bool fp8_weights = recipe->weights && d_w;
    Fp8CastAttributes d_y_cast = recipe->d_y;
    if (!fp8_weights) d_y_cast.columns = GEMM_SCALE_ONE;
    int d_y_node = append_cast(graph, ARENA_ACTIVATION, d_y, TENSOR_NONE, x_cast.in[FP8_CAST_TILES], delayed, &d_y_cast);
    if (fp8_weights) {
        append_fp8_weight_gradient(graph, d_y_node, graph_get(graph, node->in[FP8_LINEAR_A])->producer, d_w, like);
        if (d_bias)
            graph_node(graph, OP_bias_grad, (Inputs){[BIAS_GRAD_D_Y] = d_y}, (Outputs){[BIAS_GRAD_D_BIAS] = d_bias},
                &(LinearAttributes){.sum = like->sum}, sizeof(LinearAttributes));
    } else if (d_w) {
        if (offset) append_expert_gradient(graph, x, d_y, offset, d_w, like->rows);
        else append_quantized_weight_gradient(graph, x, d_y, d_w, d_bias, like->sum);
    }
    int w_node = append_weight_backward(graph, graph_get(graph, node->in[FP8_LINEAR_B])->producer, recipe);
    d_in[FP8_LINEAR_A] = append_product(
        graph, d_y_node, w_node, true, TENSOR_NONE, offset, &(Fp8LinearAttributes){.recipe = like->recipe, .rows = like->rows}, "d_x");
}

/* -- Scales that the caller gives ----------------------------------------------------------------------------------- */

static int note_operand(const Graph *graph, Fp8Operand *operands, int count, TensorId weight, Fp8Role role, TensorId quantized) {
    Node cast = cast_of(graph, quantized);
    const Fp8CastAttributes *attributes = cast.attributes;
    TensorId amax = cast.in[FP8_CAST_AMAX], found = cast.in[FP8_CAST_FOUND];
    if (!amax || cast.backward != (role == FP8_ROLE_D_Y) || graph_get(graph, amax)->arena != ARENA_INPUT) return count;
    if (!found && attributes->coded) found = amax;
    if (operands) operands[count] = (Fp8Operand){weight, role, attributes->kind, amax, cast.out[FP8_CAST_SEEN], found};
    return count + 1;
}

int fp8_operands(const Graph *graph, Fp8Operand *operands) {
    int count = 0;
    for (int i = 0; i < graph->node_count; i++) {
        const Node *node = &graph->nodes[i];
        if (node->op != OP_fp8_linear || node->clone_of >= 0) continue;
        TensorId weight = fp8_linear_weight(graph, node);
        count = note_operand(graph, operands, count, weight, node->backward ? FP8_ROLE_D_Y : FP8_ROLE_X, node->in[FP8_LINEAR_A]);
        if (!node->backward) count = note_operand(graph, operands, count, weight, FP8_ROLE_W, node->in[FP8_LINEAR_B]);
    }
    return count;
}

/* Returns the elements as a matrix with rows as wide as a tile, or half a tile. */
static Fp8Stack flat_dispatch(int64_t count) {
    int64_t columns = count % GEMM_SCALE_GROUP_SIZE ? GEMM_SCALE_GROUP_SIZE / 2 : GEMM_SCALE_GROUP_SIZE;
    assert(count % columns == 0);
    return (Fp8Stack){1, count / columns, columns};
}

void fp8_amax_run(const Backend *backend, const void *x, int64_t count, float *amax) {
    Fp8Stack s = flat_dispatch(count);
    OpCall call = {.in = {[FP8_AMAX_X] = (void *)x},
        .out = {[FP8_AMAX_Y] = amax},
        .in_shape = {[FP8_AMAX_X] = {s.rows, s.columns, 1, 1}},
        .device = backend->device};
    backend->kernels[OP_fp8_amax]->run(&call);
}

void fp8_cast_run(const Backend *backend, const void *x, int64_t count, const float *amax, void *quantized, float *scale) {
    Fp8Stack s = flat_dispatch(count);
    OpCall call = {.in = {[FP8_CAST_X] = (void *)x, [FP8_CAST_AMAX] = (void *)amax},
        .out = {[FP8_CAST_ROWS] = quantized, [FP8_CAST_ROW_SCALES] = scale},
        .in_shape = {[FP8_CAST_X] = {s.rows, s.columns, 1, 1}},
        .attributes = &(Fp8CastAttributes){FP8_E4M3, GEMM_SCALE_TENSOR, GEMM_SCALE_ONE, false},
        .device = backend->device};
    backend->kernels[OP_fp8_cast]->run(&call);
}

/* -- Costs --------------------------------------------------------------------------------------------------------- */

static double fp8_rows(const Node *node) { return (double)((const Fp8LinearAttributes *)node->attributes)->rows; }

static double fp8_flops(const Graph *graph, const Node *node) {
    const Tensor *b = graph_get(graph, node->in[FP8_LINEAR_B]);
    return 2.0 * fp8_rows(node) * (double)b->shape[b->rank - 2] * (double)b->shape[b->rank - 1];
}

static double weight_flops(const Graph *graph, const Node *node) {
    return 2.0 * fp8_rows(node) * (double)graph_rows(graph, node->in[FP8_LINEAR_A]) * (double)graph_rows(graph, node->in[FP8_LINEAR_B]);
}

Gemm fp8_call_gemm(const OpCall *call, GemmType output) {
    const Fp8LinearAttributes *attributes = call->attributes;
    Fp8Stack b = fp8_call_stack(call->in_shape[FP8_LINEAR_B]);
    return (Gemm){
        .transpose_b = true,
        .input = attributes->kind == FP8_E5M2 ? GEMM_E5M2 : GEMM_E4M3,
        .output = output,
        .m = call->in_shape[FP8_LINEAR_A][0],
        .n = b.rows,
        .k = b.columns,
        .a = call->in[FP8_LINEAR_A],
        .lda = b.columns,
        .b = call->in[FP8_LINEAR_B],
        .ldb = b.columns,
        .c = call->out[FP8_LINEAR_C],
        .ldc = b.rows,
        .bias = mesh_index(call->mesh, attributes->sum) == 0 ? call->in[FP8_LINEAR_BIAS] : NULL,
        .scaling_a = attributes->scaling_a,
        .scaling_b = attributes->scaling_b,
        .scale_a = call->in[FP8_LINEAR_A_SCALES],
        .scale_b = call->in[FP8_LINEAR_B_SCALES],
    };
}

/* x is read in quantized form if it arrives quantized, or if its producer has written the quantized
 * values, for the operand by columns. */
static double cast_bytes(const Graph *graph, const Node *node) {
    TensorId x = node->in[FP8_CAST_X];
    bool coded = ((const Fp8CastAttributes *)node->attributes)->coded, moves = coded || (node->absorbs && node->out[FP8_CAST_COLUMNS]);
    double as_bf16 = graph_get(graph, x)->elided ? 0 : (double)graph_bytes(graph, x);
    return op_tensor_bytes(graph, node) - (coded || node->absorbs ? as_bf16 : 0) + (moves ? (double)graph_elements(graph, x) : 0);
}

/* One comparison per element; a cast also takes a product and a conversion. */
enum { AMAX_FLOPS = 0, CAST_FLOPS = 3 };

const Op op_rule_fp8_amax = {.name = "fp8_amax", .once_a_step = true, .element_flops = AMAX_FLOPS};
const Op op_rule_fp8_cast = {.name = "fp8_cast",
    .class = OP_CLASS_NORM,
    .adds_to = OPERAND(FP8_CAST_SEEN),
    .once_a_step = true,
    .bytes = cast_bytes,
    .gradient = fp8_cast_gradient,
    .element_flops = CAST_FLOPS};
const Op op_rule_fp8_linear = {.name = "fp8_linear", .gradient = fp8_gradient, .flops = fp8_flops, .teraflops = 1000};
const Op op_rule_fp8_linear_grad_weight = {
    .name = "fp8_linear_grad_weight",
    .adds_to = OPERAND(FP8_LINEAR_C),
    .overwrites = OPERAND(FP8_LINEAR_C),
    .flops = weight_flops,
    .teraflops = 1000,
};
