/* The LM head and cross-entropy in one operation, chunk by chunk of rows: logits = x w^T of a chunk, [chunk,
 * vocabulary], become
 *     d_logits = scale * (softmax(logits) - one hot of target),
 * from which d_x = d_logits w and d_w += d_logits^T x follow at once. All logits never exist together (262,272
 * columns would be gigabytes), and nothing is computed twice: three GEMMs where head, loss and recomputation take
 * four. Differentiation starts at the loss, so its gradient is the scale, which is known in the forward pass.
 *
 * A loss that weighs rows by the losses of others, such as one over pairs of answers, cannot know the scale: it takes the
 * rows' losses from a first pass and gives each row its scale in a second, which computes the logits again.
 *
 * Where ranks share the vocabulary out, each has its own columns of a chunk's logits. They tell each other a few numbers
 * for every row, of which the softmax over all columns follows: no logits travel. */
#include "ops/loss/loss.h"

/* The node with these inputs and outputs, and in training, if they are wanted, the gradients. */
static void append(Graph *graph, Inputs in, Outputs out, bool gradients, int64_t vocabulary) {
    TensorId x = in[LOSS_X], w = in[LOSS_W];
    int64_t rows = graph_rows(graph, x), columns = graph_columns(graph, x);
    const Mesh *mesh = graph->mesh;
    assert(graph_columns(graph, w) == columns && graph_elements(graph, in[LOSS_TARGETS]) == rows);
    assert(graph_rows(graph, w) == cut_share(vocabulary, mesh_index(mesh, AXES_TENSOR), mesh_size(mesh, AXES_TENSOR)).count);
    if (gradients) {
        out[LOSS_D_X] = graph_activation(graph, TYPE_COMPUTE, rows, columns, "d_x");
        out[LOSS_D_W] = graph_parameter_gradient(graph, w);
    }
    LossAttributes attributes = {.vocabulary = vocabulary};
    graph_node(graph, OP_linear_cross_entropy, in, out, &attributes, sizeof attributes);
}

void op_linear_cross_entropy(Graph *graph, TensorId x, TensorId w, TensorId targets, TensorId scale, TensorId loss, int64_t vocabulary) {
    Inputs in = {[LOSS_X] = x, [LOSS_W] = w, [LOSS_TARGETS] = targets, [LOSS_SCALE] = scale};
    append(graph, in, (Outputs){[LOSS_LOSS] = loss}, graph->training, vocabulary);
}

TensorId op_token_losses(Graph *graph, TensorId x, TensorId w, TensorId targets, int64_t vocabulary) {
    int64_t rows = graph_rows(graph, x);
    TensorId losses = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 1, &rows, "token_losses");
    append(graph, (Inputs){[LOSS_X] = x, [LOSS_W] = w, [LOSS_TARGETS] = targets}, (Outputs){[LOSS_ROWS] = losses}, false, vocabulary);
    return losses;
}

void op_token_losses_gradient(Graph *graph, TensorId x, TensorId w, TensorId targets, TensorId weights, int64_t vocabulary) {
    assert(graph->training && graph_elements(graph, weights) == graph_rows(graph, x));
    append(graph, (Inputs){[LOSS_X] = x, [LOSS_W] = w, [LOSS_TARGETS] = targets, [LOSS_SCALE] = weights}, (Outputs){0}, true, vocabulary);
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    (void)graph;
    (void)d_out;
    d_in[LOSS_X] = node->out[LOSS_D_X];
}

static double flops(const Graph *graph, const Node *node) {
    double rows = graph_rows(graph, node->in[LOSS_X]), columns = graph_columns(graph, node->in[LOSS_X]);
    double vocabulary = graph_rows(graph, node->in[LOSS_W]);
    double gemms = 1 + (node->out[LOSS_D_X] != TENSOR_NONE) + (node->out[LOSS_D_W] != TENSOR_NONE);
    return gemms * 2 * rows * columns * vocabulary;
}

/* Three numbers for every row, to each rank. */
static Traffic traffic(const Graph *graph, const Node *node) {
    double others = mesh_size(graph->mesh, AXES_TENSOR) - 1;
    return (Traffic){
        AXES_TENSOR, 3 * others * (double)(graph_rows(graph, node->in[LOSS_X]) * precision_bytes(graph->precision, TYPE_WIDE))};
}

TensorId op_last_row(Graph *graph, TensorId x) {
    assert(graph_get(graph, x)->type == TYPE_COMPUTE);
    TensorId y = graph_activation(graph, TYPE_COMPUTE, 1, graph_columns(graph, x), "last_row");
    graph_node(graph, OP_last_row, (Inputs){[LAST_ROW_X] = x}, (Outputs){[LAST_ROW_Y] = y}, NULL, 0);
    return y;
}

const Op op_rule_linear_cross_entropy = {
    .name = "linear_cross_entropy",
    .adds_to = OPERAND(LOSS_LOSS) | OPERAND(LOSS_D_W),
    .overwrites = OPERAND(LOSS_D_W),
    .loss = true,
    .communicates = true,
    .traffic = traffic,
    .gradient = gradient,
    .flops = flops,
    .teraflops = 700,
};
const Op op_rule_last_row = {.name = "last_row"};
