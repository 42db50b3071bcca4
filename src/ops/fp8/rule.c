/* Linear layers in fp8: which operands each recipe makes of x, w and d_y, the GEMMs over them, and their gradients.
 *
 * The recipes: `tensor` has one scale for a matrix, e4m3, and e5m2 for d_y, whose range is larger (arXiv 2209.05433);
 * `row` has a scale for each line of each operand; `row_gw_hp` likewise, but weight gradients in COMPUTE and one scale for
 * w in d_x (torchao's rowwise_with_gw_hp); `block` has scales of 1 x 128 elements of x and d_y and of 128 x 128 of w
 * (arXiv 2412.19437, 3.3.2). Casting is a straight-through estimator: the gradient of a matrix is that of its operand. */
#include "ops/fp8/fp8.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/linear/linear.h"

/* What x, w and d_y are cast to. `weights`: d_w is computed in fp8 too. */
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
};

/* -- Casting ------------------------------------------------------------------------------------------------------- */

static TensorId append_amax(Graph *graph, TensorId x) {
    const Tensor *t = graph_get(graph, x);
    int64_t count = fp8_stack(t->shape, t->rank).count;
    Arena arena = graph_is_parameter(graph, x) ? ARENA_STATE : ARENA_ACTIVATION;
    TensorId amax = graph_tensor(graph, arena, TYPE_WIDE, 1, &count, "amax");
    graph_node(graph, OP_fp8_amax, (Inputs){[FP8_AMAX_X] = x}, (Outputs){[FP8_AMAX_Y] = amax}, NULL, 0);
    return amax;
}

static void append_operand(Graph *graph, Outputs out, int codes, const Tensor *x, int64_t lines, int64_t k, GemmScaling scaling) {
    int64_t count = fp8_stack(x->shape, x->rank).count, scales = count * gemm_scale_count(scaling, lines, k);
    int64_t shape[] = {count, lines, k};
    int skip = x->rank == 3 ? 0 : 1;
    bool rows = codes == FP8_CAST_ROWS;
    if (scaling == GEMM_SCALE_ONE) return;
    out[codes] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_FP8, 3 - skip, shape + skip, rows ? "fp8" : "fp8_columns");
    out[codes + 1] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 1, &scales, rows ? "scales" : "column_scales");
}

/* Casts x, whose `amax` is known or TENSOR_NONE; the node. */
static int append_cast(Graph *graph, TensorId x, TensorId amax, const Fp8CastAttributes *attributes) {
    Outputs out = {0};
    const Tensor t = *graph_get(graph, x);
    Fp8Stack s = fp8_stack(t.shape, t.rank);
    assert(t.type == TYPE_COMPUTE && s.columns % 16 == 0 && (attributes->columns == GEMM_SCALE_ONE || s.rows % 16 == 0));
    bool tensor = attributes->rows == GEMM_SCALE_TENSOR || attributes->columns == GEMM_SCALE_TENSOR;
    if (tensor && !amax) amax = append_amax(graph, x);
    append_operand(graph, out, FP8_CAST_ROWS, &t, s.rows, s.columns, attributes->rows);
    append_operand(graph, out, FP8_CAST_COLUMNS, &t, s.columns, s.rows, attributes->columns);
    return graph_node(
        graph, OP_fp8_cast, (Inputs){[FP8_CAST_X] = x, [FP8_CAST_AMAX] = tensor ? amax : TENSOR_NONE}, out, attributes, sizeof *attributes);
}

/* The cast that made an operand. */
static Node cast_of(const Graph *graph, TensorId codes) {
    Node node = graph->nodes[graph_get(graph, codes)->producer];
    assert(node.op == OP_fp8_cast);
    return node;
}

TensorId fp8_linear_weight(const Graph *graph, const Node *node) { return cast_of(graph, node->in[FP8_LINEAR_B]).in[FP8_CAST_X]; }

static void cast_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    if (!graph_is_parameter(graph, node->in[FP8_CAST_X])) d_in[FP8_CAST_X] = d_out[FP8_CAST_ROWS];
}

/* -- Multiplying --------------------------------------------------------------------------------------------------- */

/* Operands by rows or, with `columns`, by columns of the casts `a` and `b`. */
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

/* Of rows of x or d_y with the weights, by rows or by columns. */
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

static TensorId append(Graph *graph, TensorId x, TensorId w, TensorId bias, TensorId offset, const Fp8LinearAttributes *like) {
    const Recipe *recipe = &recipes[like->recipe];
    Fp8CastAttributes x_cast = recipe->x;
    assert(like->recipe != FP8_NONE && graph_is_parameter(graph, w) && graph_columns(graph, x) == graph_columns(graph, w));
    if (!graph->training || graph_get(graph, w)->frozen || offset) x_cast.columns = GEMM_SCALE_ONE;
    int x_node = append_cast(graph, x, TENSOR_NONE, &x_cast), w_node = append_cast(graph, w, TENSOR_NONE, &recipe->w);
    return append_product(graph, x_node, w_node, false, bias, offset, like, "linear");
}

TensorId op_fp8_linear(Graph *graph, TensorId x, TensorId w, TensorId bias, MeshAxes sum, Fp8Recipe recipe) {
    return append(graph, x, w, bias, TENSOR_NONE, &(Fp8LinearAttributes){.recipe = recipe, .sum = sum, .rows = graph_rows(graph, x)});
}

TensorId op_fp8_grouped_linear(Graph *graph, TensorId x_slots, TensorId w, const Dispatch *dispatch, Fp8Recipe recipe) {
    return append(graph, x_slots, w, TENSOR_NONE, dispatch->offset, &(Fp8LinearAttributes){.recipe = recipe, .rows = dispatch->rows});
}

/* In COMPUTE, from x and d_y themselves. */
static void append_weight_gradient(Graph *graph, TensorId x, TensorId d_y, TensorId d_w, TensorId d_bias, MeshAxes sum) {
    graph_node(graph, OP_linear_grad_weight, (Inputs){[LINEAR_GRAD_WEIGHT_D_Y] = d_y, [LINEAR_GRAD_WEIGHT_X] = x},
        (Outputs){[LINEAR_GRAD_WEIGHT_D_W] = d_w, [LINEAR_GRAD_WEIGHT_D_BIAS] = d_bias}, &(LinearAttributes){.sum = sum},
        sizeof(LinearAttributes));
}

static void append_expert_gradient(Graph *graph, TensorId x, TensorId d_y, TensorId offset, TensorId d_w, int64_t rows) {
    Inputs in = {[GROUPED_LINEAR_GRAD_WEIGHT_D_Y] = d_y, [GROUPED_LINEAR_GRAD_WEIGHT_X] = x, [GROUPED_LINEAR_GRAD_WEIGHT_OFFSET] = offset};
    graph_node(graph, OP_grouped_linear_grad_weight, in, (Outputs){[GROUPED_LINEAR_GRAD_WEIGHT_D_W] = d_w},
        &(GroupedLinearAttributes){.rows = rows}, sizeof(GroupedLinearAttributes));
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    const Fp8LinearAttributes *like = node->attributes;
    const Recipe *recipe = &recipes[like->recipe];
    TensorId d_y = d_out[FP8_LINEAR_C], offset = node->in[FP8_LINEAR_OFFSET];
    Node x_cast = cast_of(graph, node->in[FP8_LINEAR_A]), w_cast = cast_of(graph, node->in[FP8_LINEAR_B]);
    TensorId x = x_cast.in[FP8_CAST_X], w = w_cast.in[FP8_CAST_X];
    TensorId d_w = graph_parameter_gradient(graph, w), d_bias = graph_parameter_gradient(graph, node->in[FP8_LINEAR_BIAS]);
    bool fp8_weights = recipe->weights && !offset && d_w;
    Fp8CastAttributes d_y_cast = recipe->d_y;
    if (!fp8_weights) d_y_cast.columns = GEMM_SCALE_ONE;
    int d_y_node = append_cast(graph, d_y, TENSOR_NONE, &d_y_cast);
    if (fp8_weights) {
        Inputs in = {0};
        int x_node = graph_get(graph, node->in[FP8_LINEAR_A])->producer;
        Fp8LinearAttributes attributes = set_operands(graph, d_y_node, x_node, true, true, in);
        attributes.recipe = like->recipe;
        graph_node(graph, OP_fp8_linear_grad_weight, in, (Outputs){[FP8_LINEAR_C] = d_w}, &attributes, sizeof attributes);
        if (d_bias)
            graph_node(graph, OP_bias_grad, (Inputs){[BIAS_GRAD_D_Y] = d_y}, (Outputs){[BIAS_GRAD_D_BIAS] = d_bias},
                &(LinearAttributes){.sum = like->sum}, sizeof(LinearAttributes));
    } else if (d_w) {
        if (offset) append_expert_gradient(graph, x, d_y, offset, d_w, like->rows);
        else append_weight_gradient(graph, x, d_y, d_w, d_bias, like->sum);
    }
    int w_node = append_cast(graph, w, w_cast.in[FP8_CAST_AMAX], &recipe->w_backward);
    d_in[FP8_LINEAR_A] = append_product(
        graph, d_y_node, w_node, true, TENSOR_NONE, offset, &(Fp8LinearAttributes){.recipe = like->recipe, .rows = like->rows}, "d_x");
}

/* -- Costs --------------------------------------------------------------------------------------------------------- */

static double flops(const Graph *graph, const Node *node) {
    const Fp8LinearAttributes *attributes = node->attributes;
    const Tensor *b = graph_get(graph, node->in[FP8_LINEAR_B]);
    return 2.0 * (double)attributes->rows * (double)b->shape[b->rank - 2] * (double)b->shape[b->rank - 1];
}

static double weight_flops(const Graph *graph, const Node *node) {
    return 2.0 * (double)graph_elements(graph, node->in[FP8_LINEAR_A]) * (double)graph_rows(graph, node->in[FP8_LINEAR_B]);
}

Gemm fp8_call_gemm(const OpCall *call, GemmType output) {
    const Fp8LinearAttributes *attributes = call->attributes;
    const int64_t *b_shape = call->in_shape[FP8_LINEAR_B];
    bool grouped = call->in[FP8_LINEAR_OFFSET] != NULL;
    return (Gemm){
        .transpose_b = true,
        .input = attributes->kind == FP8_E5M2 ? GEMM_E5M2 : GEMM_E4M3,
        .output = output,
        .m = call->in_shape[FP8_LINEAR_A][0],
        .n = b_shape[grouped],
        .k = b_shape[grouped + 1],
        .a = call->in[FP8_LINEAR_A],
        .lda = b_shape[grouped + 1],
        .b = call->in[FP8_LINEAR_B],
        .ldb = b_shape[grouped + 1],
        .c = call->out[FP8_LINEAR_C],
        .ldc = b_shape[grouped],
        .bias = mesh_index(call->mesh, attributes->sum) == 0 ? call->in[FP8_LINEAR_BIAS] : NULL,
        .scaling_a = attributes->scaling_a,
        .scaling_b = attributes->scaling_b,
        .scale_a = call->in[FP8_LINEAR_A_SCALES],
        .scale_b = call->in[FP8_LINEAR_B_SCALES],
    };
}

/* A comparison for each element, and in a cast a product and a conversion besides. */
enum { AMAX_FLOPS = 0, CAST_FLOPS = 3 };

const Op op_rule_fp8_amax = {.name = "fp8_amax", .once_a_step = true, .element_flops = AMAX_FLOPS};
const Op op_rule_fp8_cast = {.name = "fp8_cast", .class = OP_CLASS_NORM, .gradient = cast_gradient, .element_flops = CAST_FLOPS};
const Op op_rule_fp8_linear = {.name = "fp8_linear", .gradient = gradient, .flops = flops};
const Op op_rule_fp8_linear_grad_weight = {
    .name = "fp8_linear_grad_weight",
    .adds_to = OPERAND(FP8_LINEAR_C),
    .overwrites = OPERAND(FP8_LINEAR_C),
    .flops = weight_flops,
};
