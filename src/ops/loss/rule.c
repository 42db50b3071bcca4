/* The LM head and cross-entropy in one operation, chunk by chunk of rows: logits = x w^T of a
 * chunk, [chunk, vocabulary], become
 *     d_logits = scale * (softmax(logits) - one hot of target),
 * which gives d_x = d_logits w and d_w += d_logits^T x at once. The full logits never exist
 * (262,272 columns would take gigabytes), and nothing is computed twice: it takes three GEMMs,
 * while head, loss and recomputation would take four. Differentiation starts at the loss, so its
 * gradient is the scale, which is known in the forward pass.
 *
 * A loss that weights rows by the losses of other rows, such as a loss over pairs of answers, does
 * not know the scale. A first pass computes the rows' losses. A second pass recomputes the logits,
 * with a scale for each row.
 *
 * If ranks divide the vocabulary, each has its own columns of a chunk's logits. They exchange a few
 * numbers per row, which determine the softmax over all columns; logits are not sent.
 *
 * With a soft-cap (Gemma 2, arXiv 2408.00118) the loss reads y = cap tanh(x w^T / cap), and d_logits
 * is multiplied by 1 - (y / cap)^2.
 *
 * In fp8 (fp8_linear_cross_entropy) the three GEMMs multiply quantized values: x and w are cast
 * beforehand, d_logits while they are computed. Probabilities are at most 1, so the largest
 * possible amax of d_logits is known beforehand: the scale of the loss. */
#include "ops/loss/loss.h"

#include "base/math.h"
#include "ops/fp8/fp8.h"

/* Appends either operation with these inputs and outputs and, if `gradients`, the gradients of x
 * and of the parameter w. */
static void append_loss_node(Graph *graph, int op, Inputs in, Outputs out, TensorId w, bool gradients, int64_t vocabulary) {
    int64_t rows = graph_rows(graph, in[LOSS_X]), columns = graph_columns(graph, in[LOSS_X]);
    const Mesh *mesh = graph->mesh;
    assert(graph_columns(graph, w) == columns && graph_elements(graph, in[LOSS_TARGETS]) == rows);
    assert(graph_rows(graph, w) == cut_share(vocabulary, mesh_index(mesh, AXES_TENSOR), mesh_size(mesh, AXES_TENSOR)).count);
    if (gradients) {
        out[LOSS_D_X] = graph_activation(graph, TYPE_COMPUTE, rows, columns, "d_x");
        out[LOSS_D_W] = graph_parameter_gradient(graph, w);
    }
    LossAttributes attributes = {.vocabulary = vocabulary};
    graph_node(graph, op, in, out, &attributes, sizeof attributes);
}

void op_linear_cross_entropy(Graph *graph, TensorId x, TensorId w, TensorId targets, TensorId scale, TensorId loss, int64_t vocabulary) {
    Inputs in = {[LOSS_X] = x, [LOSS_W] = w, [LOSS_TARGETS] = targets, [LOSS_SCALE] = scale};
    append_loss_node(graph, OP_linear_cross_entropy, in, (Outputs){[LOSS_LOSS] = loss}, w, graph->training, vocabulary);
}

void op_fp8_linear_cross_entropy(
    Graph *graph, TensorId x, TensorId w, TensorId targets, TensorId scale, TensorId loss, int64_t vocabulary, const Fp8Config *fp8) {
    bool trains = graph->training;
    int of_x = fp8_append_cast(graph, x, trains && !graph_get(graph, w)->frozen, false),
        of_w = fp8_append_cast(graph, w, trains, trains && fp8->weights == FP8_WEIGHTS_KEPT);
    const TensorId *x_quantized = graph->nodes[of_x].out, *w_quantized = graph->nodes[of_w].out;
    Inputs in = {[LOSS_X] = x_quantized[FP8_CAST_ROWS],
        [LOSS_X_SCALE] = x_quantized[FP8_CAST_ROW_SCALES],
        [LOSS_X_COLUMNS] = x_quantized[FP8_CAST_COLUMNS],
        [LOSS_W] = w_quantized[FP8_CAST_ROWS],
        [LOSS_W_SCALE] = w_quantized[FP8_CAST_ROW_SCALES],
        [LOSS_W_COLUMNS] = w_quantized[FP8_CAST_COLUMNS],
        [LOSS_TARGETS] = targets,
        [LOSS_SCALE] = scale};
    append_loss_node(graph, OP_fp8_linear_cross_entropy, in, (Outputs){[LOSS_LOSS] = loss}, w, trains, vocabulary);
}

TensorId loss_weight(const Graph *graph, const Node *node) {
    TensorId w = node->in[LOSS_W];
    return node->op == OP_fp8_linear_cross_entropy ? fp8_cast_input(graph, w) : w;
}

TensorId op_token_losses(Graph *graph, TensorId x, TensorId w, TensorId targets, int64_t vocabulary) {
    int64_t rows = graph_rows(graph, x);
    TensorId losses = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 1, &rows, "token_losses");
    Inputs in = {[LOSS_X] = x, [LOSS_W] = w, [LOSS_TARGETS] = targets};
    append_loss_node(graph, OP_linear_cross_entropy, in, (Outputs){[LOSS_ROWS] = losses}, w, false, vocabulary);
    return losses;
}

void op_token_losses_gradient(Graph *graph, TensorId x, TensorId w, TensorId targets, TensorId weights, int64_t vocabulary) {
    assert(graph->training && graph_elements(graph, weights) == graph_rows(graph, x));
    Inputs in = {[LOSS_X] = x, [LOSS_W] = w, [LOSS_TARGETS] = targets, [LOSS_SCALE] = weights};
    append_loss_node(graph, OP_linear_cross_entropy, in, (Outputs){0}, w, true, vocabulary);
}

static bool is_head(const Node *node) { return node->op == OP_linear_cross_entropy || node->op == OP_fp8_linear_cross_entropy; }

void op_cap_losses(Graph *graph, double cap) {
    for (int i = 0; i < graph->node_count; i++)
        if (is_head(&graph->nodes[i])) ((LossAttributes *)graph->nodes[i].attributes)->cap = cap; /* the graph's own copy */
}

void op_train_head_rows(Graph *graph, TensorId rows, const TokenRuns *runs) {
    for (int i = 0; i < graph->node_count; i++) {
        Node *node = &graph->nodes[i];
        if (node->op != OP_linear_cross_entropy || !node->out[LOSS_D_X]) continue;
        ((LossAttributes *)node->attributes)->runs = *runs; /* the graph's own copy */
        node->out[LOSS_D_TOKENS] = graph_parameter_gradient(graph, rows);
        node->outputs = (int)int_max(node->outputs, LOSS_D_TOKENS + 1);
    }
}

/* If a loss that weighs rows has two heads, the first has the losses. */
TensorId op_keep_logits(Graph *graph) {
    for (int i = 0; i < graph->node_count; i++) {
        const Node *node = &graph->nodes[i];
        if (!is_head(node)) continue;
        int64_t rows = graph_rows(graph, node->in[LOSS_X]), columns = graph_rows(graph, node->in[LOSS_W]);
        TensorId logits = graph_activation(graph, TYPE_WIDE, rows, columns, "logits");
        graph->nodes[i].out[LOSS_LOGITS] = logits;
        graph->nodes[i].outputs = LOSS_LOGITS + 1;
        graph->tensors[logits].producer = i;
        graph->tensors[logits].keep = true;
        return logits;
    }
    return TENSOR_NONE;
}

static void loss_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    (void)graph;
    (void)d_out;
    d_in[LOSS_X] = node->out[LOSS_D_X];
}

static double loss_flops(const Graph *graph, const Node *node) {
    double rows = graph_rows(graph, node->in[LOSS_X]), columns = graph_columns(graph, node->in[LOSS_X]);
    double vocabulary = graph_rows(graph, node->in[LOSS_W]);
    double gemms = 1 + (node->out[LOSS_D_X] != TENSOR_NONE) + (node->out[LOSS_D_W] != TENSOR_NONE);
    return gemms * 2 * rows * columns * vocabulary;
}

void loss_gather_peaks(const Mesh *mesh, void *peaks, int64_t rows, LossPeak peak) {
    Comm *group = mesh_inner_group(mesh, AXES_TENSOR);
    int ranks = mesh_size(mesh, AXES_TENSOR);
    int64_t shards[ranks + 1];
    for (int i = 0; i <= ranks; i++) shards[i] = i * rows * peak.numbers;
    comm_wait(group, comm_all_gather(group, "softmax", peaks, shards, peak.type));
}

void loss_rehearse(const OpCall *call, int64_t chunk, LossPeak peak) {
    int64_t rows = call->in_shape[LOSS_X][0];
    for (int64_t first = 0; first < rows; first += chunk) {
        int64_t count = rows - first < chunk ? rows - first : chunk;
        device_rehearse(call->device, call->node, (double)count / (double)rows);
        if (mesh_size(call->mesh, AXES_TENSOR) > 1) loss_gather_peaks(call->mesh, call->workspace, count, peak);
    }
}

/* Each rank receives three numbers per row. */
static Traffic loss_traffic(const Graph *graph, const Node *node) {
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

TensorId op_soft_cap(Graph *graph, TensorId logits, double cap) {
    assert(graph_get(graph, logits)->type == TYPE_WIDE && cap > 0);
    TensorId y = graph_activation_like(graph, TYPE_WIDE, logits, "capped_logits");
    SoftCapAttributes attributes = {cap};
    graph_node(graph, OP_soft_cap, (Inputs){[SOFT_CAP_X] = logits}, (Outputs){[SOFT_CAP_Y] = y}, &attributes, sizeof attributes);
    return y;
}

#define HEAD_RULE(its_name, rate) \
    {.name = its_name, \
        .adds_to = OPERAND(LOSS_LOSS) | OPERAND(LOSS_D_W) | OPERAND(LOSS_D_TOKENS), \
        .overwrites = OPERAND(LOSS_D_W), \
        .loss = true, \
        .communicates = true, \
        .traffic = loss_traffic, \
        .gradient = loss_gradient, \
        .flops = loss_flops, \
        .teraflops = rate}
const Op op_rule_linear_cross_entropy = HEAD_RULE("linear_cross_entropy", 700);
const Op op_rule_fp8_linear_cross_entropy = HEAD_RULE("fp8_linear_cross_entropy", 1000);
const Op op_rule_last_row = {.name = "last_row"};
const Op op_rule_soft_cap = {.name = "soft_cap", .in_place = OPERAND(SOFT_CAP_X), .element_flops = 25};
