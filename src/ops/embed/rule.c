/* Token embedding into the WIDE residual stream: stream[r] = (table[tokens[r]] + bias) * scale,
 * stream [R, D], table [entries, D], for ZAYA1 with its learned bias and scale [D]; for other
 * models table[tokens[r]] * factor. With S the sum of d_stream over the rows of a token, its entry gets
 * scale * S or factor * S, d_bias gets scale * S, and d_scale gets S * (entry + bias). The gradient first adds
 * the rows of each token, in row order, and then updates its entry once. The entry of the padding
 * token gets no gradient.
 *
 * If ranks divide the table, the rank that has a row's token makes that row of the stream, and it
 * is zero on the others: the stream is their sum. The gradients of bias and scale are sums over
 * ranks too. */
#include "ops/embed/embed.h"

TensorId op_embed(Graph *graph, TensorId tokens, TensorId table, TensorId bias, TensorId scale, TensorId rows, const EmbedSpec *spec) {
    assert((bias == TENSOR_NONE) == (scale == TENSOR_NONE) && (bias == TENSOR_NONE || embed_factor(spec) == 1));
    TensorId stream = graph_activation(graph, TYPE_WIDE, graph_elements(graph, tokens), graph_columns(graph, table), "embedded");
    Inputs in = {[EMBED_TOKENS] = tokens, [EMBED_TABLE] = table, [EMBED_BIAS] = bias, [EMBED_SCALE] = scale, [EMBED_ROWS] = rows};
    graph_node(graph, OP_embed, in, (Outputs){[EMBED_STREAM] = stream}, spec, sizeof *spec);
    return stream;
}

/* Appends the gradients of a table or of its trained rows, and of bias and scale, unless they are
 * frozen. */
static void append_gradient(Graph *graph, const Node *node, TensorId d_stream, TensorId table, const EmbedSpec *spec) {
    TensorId bias = node->in[EMBED_BIAS], scale = node->in[EMBED_SCALE];
    Inputs in = {
        [EMBED_GRAD_D_STREAM] = d_stream,
        [EMBED_GRAD_TOKENS] = node->in[EMBED_TOKENS],
        [EMBED_GRAD_TABLE] = table,
        [EMBED_GRAD_BIAS] = bias,
        [EMBED_GRAD_SCALE] = scale,
    };
    Outputs out = {
        [EMBED_GRAD_D_TABLE] = graph_parameter_gradient(graph, table),
        [EMBED_GRAD_D_BIAS] = graph_parameter_gradient(graph, bias),
        [EMBED_GRAD_D_SCALE] = graph_parameter_gradient(graph, scale),
    };
    assert(out[EMBED_GRAD_D_TABLE] || (!out[EMBED_GRAD_D_BIAS] && !out[EMBED_GRAD_D_SCALE]));
    if (out[EMBED_GRAD_D_TABLE]) graph_node(graph, OP_embed_grad, in, out, spec, sizeof *spec);
}

static void embed_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    (void)d_in;
    const EmbedSpec *spec = node->attributes;
    TensorId rows = node->in[EMBED_ROWS];
    append_gradient(graph, node, d_out[EMBED_STREAM], node->in[EMBED_TABLE], spec);
    for (int i = 0; i < spec->runs.count && rows; i++) {
        const TokenRun *run = &spec->runs.items[i];
        EmbedSpec of_run = {.padding = spec->padding, .first = spec->first + run->first, .factor = spec->factor};
        append_gradient(graph, node, d_out[EMBED_STREAM], graph_slice(graph, rows, run->row, run->count), &of_run);
    }
}

void op_put_rows(Graph *graph, TensorId rows, TensorId table, const TokenRuns *runs) {
    assert(graph_get(graph, table)->frozen && graph_columns(graph, rows) == graph_columns(graph, table));
    graph_node(graph, OP_put_rows, (Inputs){[PUT_ROWS_ROWS] = rows}, (Outputs){[PUT_ROWS_TABLE] = table}, runs, sizeof *runs);
}

/* Counts each row as read and written. */
static double embed_put_bytes(const Graph *graph, const Node *node) { return 2.0 * (double)graph_bytes(graph, node->in[PUT_ROWS_ROWS]); }

/* Bytes of as many rows of the table as there are tokens: the rest of it is not touched. */
static double row_bytes(const Graph *graph, TensorId tokens, TensorId table, TypeClass type) {
    return (double)graph_elements(graph, tokens) * graph_columns(graph, table) * precision_bytes(graph->precision, type);
}

static double embed_bytes(const Graph *graph, const Node *node) {
    TensorId tokens = node->in[EMBED_TOKENS], table = node->in[EMBED_TABLE];
    return row_bytes(graph, tokens, table, TYPE_COMPUTE) + row_bytes(graph, tokens, table, TYPE_WIDE);
}

static double grad_bytes(const Graph *graph, const Node *node) {
    TensorId tokens = node->in[EMBED_GRAD_TOKENS], table = node->in[EMBED_GRAD_TABLE];
    return row_bytes(graph, tokens, table, TYPE_COMPUTE) + 3 * row_bytes(graph, tokens, table, TYPE_WIDE);
}
static double embed_grad_flops(const Graph *graph, const Node *node) { return 5.0 * graph_elements(graph, node->in[EMBED_GRAD_D_STREAM]); }

const Op op_rule_embed = {.name = "embed", .gradient = embed_gradient, .element_flops = 2, .bytes = embed_bytes};
const Op op_rule_embed_grad = {
    .name = "embed_grad",
    .adds_to = OPERAND(EMBED_GRAD_D_TABLE) | OPERAND(EMBED_GRAD_D_BIAS) | OPERAND(EMBED_GRAD_D_SCALE),
    .flops = embed_grad_flops,
    .bytes = grad_bytes,
};
const Op op_rule_put_rows = {.name = "put_rows", .adds_to = OPERAND(PUT_ROWS_TABLE), .bytes = embed_put_bytes};
