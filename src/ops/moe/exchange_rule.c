/* Experts on other ranks: a rank's slots are sorted by expert, and thus by rank, so the slots for
 * each rank are one contiguous run, and one all-to-all sends all slots to their experts.
 *
 * moe_offsets gathers the offsets of all ranks into host memory, because the host needs the numbers
 * of rows to start the all-to-alls. moe_arrivals converts them to a sort of the arriving rows.
 * moe_send and moe_send_back are the all-to-alls. Their kernels are the same for every device,
 * because the comm works on the device's memory. */
#include <string.h>

#include "base/math.h"
#include "ops/moe/moe.h"

/* -- Builders ------------------------------------------------------------------------------------------------------ */

ExpertExchange op_moe_exchange(Graph *graph, const Dispatch *dispatch) {
    int64_t ranks = mesh_size(graph->mesh, AXES_EXPERTS), experts = graph_elements(graph, dispatch->offset) - 1;
    int64_t own = experts / ranks, offsets = own + 1;
    if (ranks == 1) return (ExpertExchange){.local = *dispatch};
    assert(experts % ranks == 0);
    int64_t rows = graph_rows(graph, dispatch->slot), chosen = int_min(graph_columns(graph, dispatch->slot), own);
    int64_t arrivals = ranks * rows * chosen; /* a row chooses an expert at most once */
    assert(arrivals <= INT32_MAX);
    ExpertExchange exchange = {.offsets = graph_tensor(graph, ARENA_HOST, TYPE_INT32, 2, (int64_t[]){ranks, experts + 1}, "offsets"),
        .local = {.slot = graph_activation(graph, TYPE_INT32, arrivals, 1, "slot"),
            .offset = graph_tensor(graph, ARENA_ACTIVATION, TYPE_INT32, 1, &offsets, "offset"),
            .rows = dispatch->rows}};
    MoeOffsetsAttributes own_slots = {.slots = graph_elements(graph, dispatch->slot)};
    graph_node(graph, OP_moe_offsets, (Inputs){[MOE_OFFSETS_OFFSET] = dispatch->offset},
        (Outputs){[MOE_OFFSETS_OFFSETS] = exchange.offsets}, &own_slots, sizeof own_slots);
    MoeArrivalsAttributes attributes = {.first = mesh_index(graph->mesh, AXES_EXPERTS) * own};
    graph_node(graph, OP_moe_arrivals, (Inputs){[MOE_ARRIVALS_OFFSETS] = exchange.offsets},
        (Outputs){[MOE_ARRIVALS_SLOT] = exchange.local.slot, [MOE_ARRIVALS_OFFSET] = exchange.local.offset}, &attributes,
        sizeof attributes);
    return exchange;
}

/* Appends a send of x to `rows` slots of other ranks or of this one. */
static TensorId append_send(Graph *graph, int op, TensorId x, TensorId offsets, int64_t rows) {
    TensorId y = graph_activation(graph, TYPE_COMPUTE, rows, graph_columns(graph, x), op == OP_moe_send ? "arrived" : "returned");
    assert(graph_get(graph, x)->type == TYPE_COMPUTE);
    graph_node(graph, op, (Inputs){[MOE_SEND_X] = x, [MOE_SEND_OFFSETS] = offsets}, (Outputs){[MOE_SEND_Y] = y}, NULL, 0);
    return y;
}

TensorId op_moe_dispatch(Graph *graph, TensorId x_slots, const ExpertExchange *exchange) {
    if (!exchange->offsets) return x_slots;
    TensorId arrived = append_send(graph, OP_moe_send, x_slots, exchange->offsets, graph_rows(graph, exchange->local.slot));
    return op_moe_permute(graph, arrived, &exchange->local);
}

TensorId op_moe_return(Graph *graph, TensorId y_slots, const ExpertExchange *exchange, const Dispatch *dispatch) {
    if (!exchange->offsets) return y_slots;
    TensorId leaving = op_moe_unpermute(graph, y_slots, &exchange->local);
    return append_send(graph, OP_moe_send_back, leaving, exchange->offsets, graph_elements(graph, dispatch->slot));
}

static void send_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    int other = node->op == OP_moe_send ? OP_moe_send_back : OP_moe_send;
    if (d_out[MOE_SEND_Y])
        d_in[MOE_SEND_X] =
            append_send(graph, other, d_out[MOE_SEND_Y], node->in[MOE_SEND_OFFSETS], graph_rows(graph, node->in[MOE_SEND_X]));
}

/* -- Kernels ------------------------------------------------------------------------------------------------------- */

int64_t moe_offsets_workspace(const Graph *graph, const Node *node) { return graph_bytes(graph, node->out[MOE_OFFSETS_OFFSETS]); }

/* After a failure nothing is sent any more, and all offsets are 0, so that later nodes stay inside
 * their buffers. */
void moe_offsets_run(const OpCall *call) {
    Comm *group = mesh_inner_group(call->mesh, AXES_EXPERTS);
    int64_t ranks = call->out_shape[MOE_OFFSETS_OFFSETS][0], bytes = call->in_shape[MOE_OFFSETS_OFFSET][0] * (int64_t)sizeof(int32_t);
    int64_t shards[ranks + 1];
    char *gathered = call->workspace;
    Error error = {0};
    for (int64_t i = 0; i <= ranks; i++) shards[i] = i * bytes;
    device_copy(call->device, gathered + mesh_index(call->mesh, AXES_EXPERTS) * bytes, call->in[MOE_OFFSETS_OFFSET], bytes);
    comm_wait(group, comm_all_gather(group, "expert offsets", gathered, shards, COMM_U8));
    device_download(call->device, call->out[MOE_OFFSETS_OFFSETS], gathered, ranks * bytes);
    if (!comm_ok(group, &error)) memset(call->out[MOE_OFFSETS_OFFSETS], 0, (size_t)(ranks * bytes));
}

void moe_offsets_rehearse(const OpCall *call) {
    int64_t ranks = call->out_shape[MOE_OFFSETS_OFFSETS][0], row = call->out_shape[MOE_OFFSETS_OFFSETS][1];
    const MoeOffsetsAttributes *attributes = call->attributes;
    int32_t *offsets = call->out[MOE_OFFSETS_OFFSETS];
    moe_offsets_run(call);
    for (int64_t i = 0; i < ranks * row; i++) offsets[i] = (int32_t)(attributes->slots * (i % row) / (row - 1));
}

/* The slots of a rank for the experts of rank `to`: begin and end. */
typedef struct Run { int64_t begin, end; } Run;
static Run exchange_run(const OpCall *call, int64_t from, int64_t to) {
    int64_t ranks = call->in_shape[MOE_SEND_OFFSETS][0], row = call->in_shape[MOE_SEND_OFFSETS][1], own = (row - 1) / ranks;
    const int32_t *offset = (const int32_t *)call->in[MOE_SEND_OFFSETS] + from * row;
    return (Run){offset[to * own], offset[(to + 1) * own]};
}

void moe_send_run(const OpCall *call, bool back, size_t compute) {
    int64_t ranks = call->in_shape[MOE_SEND_OFFSETS][0], rank = mesh_index(call->mesh, AXES_EXPERTS);
    int64_t row_bytes = call->in_shape[MOE_SEND_X][1] * (int64_t)compute, bytes = call->out_shape[MOE_SEND_Y][0] * row_bytes;
    int64_t slots[ranks + 1], arrivals[ranks + 1]; /* for each rank's experts; from each rank */
    slots[0] = arrivals[0] = 0;
    for (int64_t i = 0; i < ranks; i++) {
        Run arriving = exchange_run(call, i, rank);
        slots[i + 1] = exchange_run(call, rank, i).end * row_bytes;
        arrivals[i + 1] = arrivals[i] + (arriving.end - arriving.begin) * row_bytes;
    }
    const int64_t *sent = back ? arrivals : slots, *received = back ? slots : arrivals;
    char *y = call->out[MOE_SEND_Y];
    *call->ticket = comm_all_to_all(
        mesh_inner_group(call->mesh, AXES_EXPERTS), back ? "rows back" : "rows", call->in[MOE_SEND_X], sent, y, received, COMM_U8);
    device_fill(call->device, y + received[ranks], 0, bytes - received[ranks]);
}

/* -- Rules --------------------------------------------------------------------------------------------------------- */

static Traffic offsets_traffic(const Graph *graph, const Node *node) {
    return (Traffic){
        AXES_EXPERTS, (double)(mesh_size(graph->mesh, AXES_EXPERTS) - 1) * (double)graph_bytes(graph, node->in[MOE_OFFSETS_OFFSET])};
}

/* With balanced experts all slots except one of n parts leave the rank, and as many arrive. */
static Traffic send_traffic(const Graph *graph, const Node *node) {
    double ranks = mesh_size(graph->mesh, AXES_EXPERTS);
    int64_t bytes = int_min(graph_bytes(graph, node->in[MOE_SEND_X]), graph_bytes(graph, node->out[MOE_SEND_Y]));
    return (Traffic){AXES_EXPERTS, (ranks - 1) / ranks * (double)bytes};
}

const Op op_rule_moe_offsets = {.name = "moe_offsets", .communicates = true, .traffic = offsets_traffic};
const Op op_rule_moe_arrivals = {.name = "moe_arrivals"};
const Op op_rule_moe_send = {.name = "moe_send", .communicates = true, .traffic = send_traffic, .gradient = send_gradient};
const Op op_rule_moe_send_back = {.name = "moe_send_back", .communicates = true, .traffic = send_traffic, .gradient = send_gradient};
