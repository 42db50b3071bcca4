/* delta: the gated delta rule. With S before the token, m = decay S^T k (`recalled`), error = v - m and u = beta error, a
 * token has
 *     y = decay S^T q + (k . q) u,  S = decay S + k u^T.
 * Generation and device_set_exact compute this form, so that the bits of a token do not depend on the tokens before it in
 * the call. The backward pass over one head is three scans, with dm = -beta du:
 *   1. from the last token to the first, with dS:  d_carried = dS^T k;  du = d_carried + (k . q) d_y;
 *      dS = decay (dS + q d_y^T + k dm^T).  d_v = beta du, and d_beta = du . error; d_carried is kept;
 *   2. from the first token on, with S:  d_queries = decay S d_y;  d_reading = decay S dm;  S = decay S + k u^T;
 *   3. from the last token to the first, with dS as in 1 (from du):  d_writing = (dS + q d_y^T) u.
 * Then d_q = d_queries + k (u . d_y) and d_k = d_reading + d_writing. The loss depends on the running sum G of the
 * logarithms of decays through q e^G, k e^G in reading, and k e^-G in writing; what a token reads of its own writing
 * cancels:  dG = q . d_queries - beta (k . q) (m . d_y) - beta (v . d_carried).  The gradient of one logarithm is the sum of
 * dG from its token to the end of the document. Every term has a decay as a factor, so that the sum stays exact where
 * decays, and their gradients, are small.
 *
 * Otherwise chunks of 64 tokens are computed with products of matrices (arXiv 2406.06484, 2412.06464). With D_ij the product of
 * the decays after token j up to token i of a chunk (0 if a document begins between them), c_i the one from the chunk's first
 * state S to token i, d_j the one from token j to the chunk's end, L_ij = D_ij (k_i . k_j) for j < i, and P_ij = D_ij (q_i . k_j)
 * for j <= i, the rows of all tokens are
 *     M = c K S + L U,  U = beta (V - M),  Y = c Q S + P U,  S after the chunk = c_last S + (d K)^T U.
 * L is lower triangular, so rows of M and U follow one after another. No sum divides by decays. With dS after the chunk,
 * and P' = P without its diagonal:
 *     C = d K dS + P'^T dY + L^T dM,  dM = -beta (C + diag(P) dY)                              C: d_carried
 *     E_ij = D_ij (dM_i . u_j) for j < i,  F_ij = D_ij (dY_i . u_j) for j <= i,  F' without its diagonal
 *     d_writing = d U dS^T + F^T Q + (E + E^T) K,  d_queries = F' K + c dY S^T,  d_reading = c dM S^T
 *     dS before the chunk = c_last dS + (c Q)^T dY + (c K)^T dM.
 * One pass goes from the last token to the first with dS, and one from the first to the last with S, which is recomputed
 * because the forward pass does not store it.
 *
 * CPUs solve for rows of M and C one after another. GPUs multiply by inverses, so that all chunks begin at once. With the
 * diagonal p of P:
 *     M = (I - T) V + T c K S with T = (I + L diag(beta))^-1,
 *     C = T^T (P' - diag(beta p) L)^T dY + T^T d K dS with T = (I + diag(beta) L)^-1. */
#include "ops/delta/delta.h"

static void assert_shapes(const Graph *graph, const DeltaInputs *in, const DeltaState *state, const DeltaSpec *spec) {
    DeltaShape s = delta_shape(spec, graph_rows(graph, in->x));
    assert(s.length * s.sequences == s.rows && s.group * s.key_heads == s.heads && graph_columns(graph, in->x) == s.columns);
    assert(s.key_dim <= DELTA_MOST_DIM && s.value_dim <= DELTA_MOST_DIM);
    assert(graph_rows(graph, in->gates) == s.rows && graph_columns(graph, in->gates) == 2 * s.heads);
    assert(graph_elements(graph, in->positions) == s.rows);
    assert(graph_elements(graph, in->rates) == s.heads && graph_elements(graph, in->bias) == s.heads);
    assert(!state->state || graph_get(graph, state->state)->type == TYPE_WIDE);
    assert(!state->state || state->slots || s.sequences == 1);
}

TensorId op_delta(Graph *graph, const DeltaInputs *inputs, const DeltaState *state, const DeltaSpec *spec) {
    assert_shapes(graph, inputs, state, spec);
    DeltaShape s = delta_shape(spec, graph_rows(graph, inputs->x));
    Inputs in = {[DELTA_X] = inputs->x, [DELTA_GATES] = inputs->gates, [DELTA_POSITIONS] = inputs->positions};
    in[DELTA_RATES] = inputs->rates, in[DELTA_BIAS] = inputs->bias;
    in[DELTA_SLOTS] = state->slots, in[DELTA_LASTS] = state->lasts;
    Outputs out = {[DELTA_Y] = graph_activation(graph, TYPE_WIDE, s.rows * s.heads, s.value_dim, "read"), [DELTA_STATE] = state->state};
    if (graph->training) out[DELTA_RECALLED] = graph_activation(graph, TYPE_WIDE, s.rows, s.values, "recalled");
    graph_node(graph, OP_delta, in, out, spec, sizeof *spec);
    return out[DELTA_Y];
}

static void delta_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    assert(!node->out[DELTA_STATE]);
    Inputs in = {[DELTA_GRAD_D_Y] = d_out[DELTA_Y], [DELTA_GRAD_RECALLED] = node->out[DELTA_RECALLED]};
    for (int i = DELTA_X; i <= DELTA_BIAS; i++) in[i] = node->in[i];
    d_in[DELTA_X] = graph_activation_like(graph, TYPE_COMPUTE, node->in[DELTA_X], "d_x");
    d_in[DELTA_GATES] = graph_activation_like(graph, TYPE_COMPUTE, node->in[DELTA_GATES], "d_gates");
    Outputs out = {[DELTA_GRAD_D_X] = d_in[DELTA_X], [DELTA_GRAD_D_GATES] = d_in[DELTA_GATES]};
    out[DELTA_GRAD_D_RATES] = graph_parameter_gradient(graph, node->in[DELTA_RATES]);
    out[DELTA_GRAD_D_BIAS] = graph_parameter_gradient(graph, node->in[DELTA_BIAS]);
    graph_node(graph, OP_delta_grad, in, out, node->attributes, 0);
}

static double delta_flops(const Graph *graph, const Node *node) {
    DeltaShape s = delta_shape(node->attributes, graph_rows(graph, node->in[DELTA_X]));
    return 7.0 * (double)(s.rows * s.values * s.key_dim); /* token by token */
}
static double delta_grad_flops(const Graph *graph, const Node *node) { return 3 * delta_flops(graph, node); }

const Op op_rule_delta = {.name = "delta",
    .class = OP_CLASS_ATTENTION,
    .adds_to = OPERAND(DELTA_STATE),
    .gradient = delta_gradient,
    .flops = delta_flops,
    .teraflops = 10};
const Op op_rule_delta_grad = {
    .name = "delta_grad", .adds_to = OPERANDS(DELTA_GRAD_D_RATES, DELTA_GRAD_D_BIAS), .flops = delta_grad_flops, .teraflops = 10};
