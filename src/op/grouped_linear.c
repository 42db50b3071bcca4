/* One linear layer per expert over rows sorted by expert: y[s] = x[s] w[e]^T for the slots from offset[e] up to
 * offset[e + 1] of each expert. Offsets are read when the kernel runs; every form is one batch of matrix products, one
 * per expert, described in the workspace. Slots past the last offset have no expert and give zero. */
#include "op/kernel.h"

#ifdef KERNEL_VARIANT

/* The products of the experts differ in their number of slots, which is m, or k in the gradient of the weight, and in
 * their operands, which move on by slots or by experts. */
typedef struct Grouped {
    Gemm product;                         /* that of expert 0, without its number of slots */
    int64_t a_row, b_row, c_row;          /* bytes from slot to slot, 0 where the operand is a weight */
    int64_t a_expert, b_expert, c_expert; /* bytes from expert to expert, 0 where the operand has slots */
    bool slots_are_depth;
} Grouped;

static void grouped_run(const Grouped *grouped, const OpCall *call, const int32_t *offset, int64_t experts) {
    Gemm *products = call->workspace;
    for (int64_t e = 0; e < experts; e++) {
        Gemm *product = &products[e];
        *product = grouped->product;
        product->a = (const char *)product->a + offset[e] * grouped->a_row + e * grouped->a_expert;
        product->b = (const char *)product->b + offset[e] * grouped->b_row + e * grouped->b_expert;
        product->c = (char *)product->c + offset[e] * grouped->c_row + e * grouped->c_expert;
        *(grouped->slots_are_depth ? &product->k : &product->m) = offset[e + 1] - offset[e];
    }
    gemm_batch(products, experts);
}

void KERNEL(grouped_linear)(const OpCall *call) {
    int64_t experts = call->in_shape[1][0], out = call->in_shape[1][1], in = call->in_shape[1][2];
    Grouped grouped = {
        .product = {.transpose_b = true, .input = KERNEL_GEMM_COMPUTE, .output = KERNEL_GEMM_COMPUTE, .n = out, .k = in,
                    .a = call->in[0], .lda = in, .b = call->in[1], .ldb = in, .c = call->out[0], .ldc = out},
        .a_row = in * (int64_t)sizeof(T), .b_expert = out * in * (int64_t)sizeof(T), .c_row = out * (int64_t)sizeof(T)};
    grouped_run(&grouped, call, call->in[2], experts);
    kernel_zero_unused(call->out[0], call->in[2], experts, call->in_shape[0][0], out);
}

void KERNEL(grouped_linear_grad_input)(const OpCall *call) {
    int64_t experts = call->in_shape[1][0], out = call->in_shape[1][1], in = call->in_shape[1][2];
    Grouped grouped = {
        .product = {.input = KERNEL_GEMM_COMPUTE, .output = KERNEL_GEMM_COMPUTE, .n = in, .k = out,
                    .a = call->in[0], .lda = out, .b = call->in[1], .ldb = in, .c = call->out[0], .ldc = in},
        .a_row = out * (int64_t)sizeof(T), .b_expert = out * in * (int64_t)sizeof(T), .c_row = in * (int64_t)sizeof(T)};
    grouped_run(&grouped, call, call->in[2], experts);
    kernel_zero_unused(call->out[0], call->in[2], experts, call->in_shape[0][0], in);
}

void KERNEL(grouped_linear_grad_weight)(const OpCall *call) {
    int64_t experts = call->out_shape[0][0], out = call->out_shape[0][1], in = call->out_shape[0][2];
    Grouped grouped = {
        .product = {.transpose_a = true, .accumulate = !call->fresh, .input = KERNEL_GEMM_COMPUTE, .output = kernel_gemm_kept(call),
                    .m = out, .n = in,
                    .a = call->in[0], .lda = out, .b = call->in[1], .ldb = in, .c = call->out[0], .ldc = in},
        .a_row = out * (int64_t)sizeof(T), .b_row = in * (int64_t)sizeof(T), .c_expert = out * in * (int64_t)(call->narrow ? sizeof(T) : sizeof(W)),
        .slots_are_depth = true};
    grouped_run(&grouped, call, call->in[2], experts);
}

#else

TensorId op_grouped_linear(Graph *graph, TensorId x_slots, TensorId w, TensorId offset) {
    const Tensor *weight = graph_get(graph, w);
    assert(weight->rank == 3 && weight->type == TYPE_COMPUTE && graph_get(graph, x_slots)->type == TYPE_COMPUTE);
    assert(weight->shape[2] == graph_columns(graph, x_slots) && weight->shape[0] + 1 == graph_elements(graph, offset));
    int64_t shape[] = {graph_rows(graph, x_slots), weight->shape[1]};
    TensorId y = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "y_slots");
    graph_node(graph, OP_grouped_linear, (TensorId[]){x_slots, w, offset}, 3, &y, 1, NULL, 0);
    return y;
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    if (d_out[0] == TENSOR_NONE) return;
    TensorId x = node->in[0], w = node->in[1], offset = node->in[2], d_w = graph_parameter_gradient(graph, w);
    d_in[0] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, graph_get(graph, x)->shape, "d_x_slots");
    graph_node(graph, OP_grouped_linear_grad_input, (TensorId[]){d_out[0], w, offset}, 3, &d_in[0], 1, NULL, 0);
    if (d_w) graph_node(graph, OP_grouped_linear_grad_weight, (TensorId[]){d_out[0], x, offset}, 3, &d_w, 1, NULL, 0);
}

static int64_t experts_of(const Graph *graph, const Node *node) { return graph_elements(graph, node->in[2]) - 1; }

/* Every slot is counted, as if no row skipped its experts, and meets one matrix of in * out weights. */
static Cost cost(const Graph *graph, const Node *node) {
    TensorId w = node->op == OP_grouped_linear_grad_weight ? node->out[0] : node->in[1];
    double weights = (double)graph_elements(graph, w) / experts_of(graph, node);
    return (Cost){.flops = 2 * graph_rows(graph, node->in[0]) * weights, .bytes = op_tensor_bytes(graph, node)};
}

static int64_t workspace(const Graph *graph, const Node *node) {
    return experts_of(graph, node) * (int64_t)sizeof(Gemm);
}

const Op op_rule_grouped_linear = {.name = "grouped_linear", .gradient = gradient, .cost = cost,
                                   .workspace = workspace};
const Op op_rule_grouped_linear_grad_input = {.name = "grouped_linear_grad_input", .cost = cost,
                                              .workspace = workspace};
const Op op_rule_grouped_linear_grad_weight = {.name = "grouped_linear_grad_weight", .adds_to = 1, .begins = 1, .cost = cost,
                                               .workspace = workspace};

#endif
