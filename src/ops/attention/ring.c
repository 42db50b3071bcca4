/* Ring attention (arXiv 2310.01889): keys and values of all ranks rotate around the ring, one
 * rank's block at a time. In step s a rank has the block of the rank s before it, while the next
 * block is in transfer. Results of blocks are added in fp32, weighted by their log-sum-exps. In the
 * backward pass the blocks rotate again. The sums of their gradients follow one step later, and
 * each rank adds its part; the rank's own part is added last, at home.
 *
 * With the order of tokens in ops/attention/tokens.h, each step costs every rank the same: half a
 * block of queries times keys, without masked pairs. The kernels of op attention and attention_sum
 * compute. */
#include "ops/attention/ring.h"

#include "base/math.h"
#include "ops/attention/rule_internal.h"

/* -- Rules --------------------------------------------------------------------------------------------------------- */

TensorId op_attention_ring(Graph *graph, TensorId queries, TensorId positions, TensorId kv, const AttentionSpec *spec) {
    int64_t rows = graph_rows(graph, queries);
    assert(graph_rows(graph, kv) == rows && spec->queries.ranks == mesh_size(graph->mesh, MESH(AXIS_CP)));
    Inputs in = {
        [ATTENTION_QKV] = queries,
        [ATTENTION_POSITIONS] = positions,
        [ATTENTION_KV] = kv,
        [ATTENTION_SINKS] = spec->scores.sinks,
    };
    Outputs out = {
        [ATTENTION_OUT] = graph_activation(graph, TYPE_COMPUTE, rows, heads_out_columns(&spec->heads), "attended"),
        [ATTENTION_LOG_SUM] = graph_activation(graph, TYPE_WIDE, rows, spec->heads.heads, "log_sum_exp"),
    };
    graph_node(graph, OP_attention_ring, in, out, spec, sizeof *spec);
    return out[ATTENTION_OUT];
}

static void append_ring_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    attention_append_gradient(graph, OP_attention_ring_grad, node, d_out, d_in);
}

/* Returns the bytes of a block, which goes to the next rank in every step except the last. */
static double sent(const Graph *graph, const Node *node) {
    return (mesh_size(graph->mesh, MESH(AXIS_CP)) - 1) * (double)graph_bytes(graph, node->in[ATTENTION_KV]);
}
static Traffic ring_traffic(const Graph *graph, const Node *node) { return (Traffic){MESH(AXIS_CP), sent(graph, node)}; }
static Traffic grad_traffic(const Graph *graph, const Node *node) {
    double ratio = (double)precision_bytes(graph->precision, TYPE_WIDE) / (double)precision_bytes(graph->precision, TYPE_COMPUTE);
    return (Traffic){MESH(AXIS_CP), (1 + ratio) * sent(graph, node)};
}

/* In the backward pass the sums of gradients are messages of their own. */
int64_t ring_messages(const Graph *graph, const Node *node) {
    int64_t steps = mesh_size(graph->mesh, MESH(AXIS_CP)) - 1;
    return node->op == OP_attention_ring ? steps : node->op == OP_attention_ring_grad ? 2 * steps : 0;
}

const Op op_rule_attention_ring = {.name = "attention_ring",
    .class = OP_CLASS_ATTENTION,
    .communicates = true,
    .traffic = ring_traffic,
    .gradient = append_ring_gradient,
    .flops = attention_flops};
const Op op_rule_attention_ring_grad = {.name = "attention_ring_grad",
    .adds_to = OPERAND(ATTENTION_GRAD_D_SINKS),
    .communicates = true,
    .traffic = grad_traffic,
    .flops = attention_grad_flops};

/* -- Steps --------------------------------------------------------------------------------------------------------- */

/* Memory of a pass, in its scratch. Blocks and their gradients have two buffers, which alternate
 * between steps. */
typedef struct RingMemory {
    char *keys[2], *part, *sum;        /* COMPUTE [R, kv columns]; COMPUTE and WIDE [R, columns of the result] */
    char *part_log, *logs[2];          /* forward: WIDE [R, heads] */
    char *d_keys_part, *d_keys_sum[2]; /* backward: COMPUTE and WIDE [R, kv columns] */
    char *scratch;                     /* of the kernels of attention */
} RingMemory;

typedef struct RingRun {
    const OpCall *call;
    const RingKernels *by;
    Comm *group;
    AttentionSpec spec;
    RingMemory memory;
    int64_t rows, columns, keys, heads; /* R; columns of the result: out, or d_queries; of keys and values */
    int rank, size;
} RingRun;

static char *take_room(uintptr_t *at, int64_t bytes) {
    char *memory = (char *)*at;
    *at += (uintptr_t)round_up(bytes, 256);
    return memory;
}

/* Places the memory from `at` on; it ends where `scratch` begins. */
static RingMemory place_buffers(
    uintptr_t at, int64_t rows, int64_t columns, int64_t keys, int64_t heads, const RingKernels *by, bool backward) {
    RingMemory m = {0};
    for (int i = 0; i < 2; i++) m.keys[i] = take_room(&at, rows * keys * by->compute);
    m.part = take_room(&at, rows * columns * by->compute);
    m.sum = take_room(&at, rows * columns * by->wide);
    if (!backward) {
        m.part_log = take_room(&at, rows * heads * by->wide);
        for (int i = 0; i < 2; i++) m.logs[i] = take_room(&at, rows * heads * by->wide);
    } else {
        m.d_keys_part = take_room(&at, rows * keys * by->compute);
        for (int i = 0; i < 2; i++) m.d_keys_sum[i] = take_room(&at, rows * keys * by->wide);
    }
    m.scratch = (char *)at;
    return m;
}

/* Returns the attributes of attention with the keys of rank `keys`. */
static AttentionSpec spec_of_block(const AttentionSpec *spec, int keys) {
    AttentionSpec block = *spec;
    block.keys.rank = keys, block.keys.ranks = spec->queries.ranks;
    return block;
}

static int64_t ring_workspace_of(const Graph *graph, const Node *node, const RingKernels *by, OpId op) {
    AttentionSpec spec = spec_of_block(node->attributes, 0);
    Node block = *node;
    block.attributes = &spec;
    bool backward = op == OP_attention_grad;
    int64_t rows = graph_rows(graph, node->in[ATTENTION_QKV]), keys = graph_columns(graph, node->in[ATTENTION_KV]);
    int64_t columns = graph_columns(graph, node->out[backward ? ATTENTION_GRAD_D_QKV : ATTENTION_OUT]);
    RingMemory m = place_buffers(0, rows, columns, keys, spec.heads.heads, by, backward);
    const OpKernel *kernel = by->kernels[op];
    return (int64_t)(uintptr_t)m.scratch + (kernel->workspace ? kernel->workspace(graph, &block) : 0);
}

int64_t ring_workspace(const Graph *graph, const Node *node, const RingKernels *by) {
    return ring_workspace_of(graph, node, by, OP_attention);
}
int64_t ring_gradient_workspace(const Graph *graph, const Node *node, const RingKernels *by) {
    return ring_workspace_of(graph, node, by, OP_attention_grad);
}

static RingRun ring_of(const OpCall *call, const RingKernels *by, bool backward) {
    const int64_t *result = call->out_shape[backward ? ATTENTION_GRAD_D_QKV : ATTENTION_OUT];
    RingRun r = {.call = call,
        .by = by,
        .group = mesh_inner_group(call->mesh, MESH(AXIS_CP)),
        .rank = mesh_index(call->mesh, MESH(AXIS_CP)),
        .size = mesh_size(call->mesh, MESH(AXIS_CP)),
        .rows = result[0],
        .columns = result[1],
        .keys = call->in_shape[ATTENTION_KV][1],
        .heads = ((const AttentionSpec *)call->attributes)->heads.heads};
    r.memory = place_buffers((uintptr_t)call->workspace, r.rows, r.columns, r.keys, r.heads, by, backward);
    return r;
}

/* Returns the block of a step. */
static void *block_of(const RingRun *r, int step) { return step == 0 ? r->call->in[ATTENTION_KV] : r->memory.keys[step % 2]; }

/* Sends to the next rank and receives from the previous one. */
static CommTicket pass_block_on(const RingRun *r, const char *name, const void *from, void *to, int64_t bytes) {
    return comm_exchange(r->group, name, from, bytes, (r->rank + 1) % r->size, to, bytes, (r->rank + r->size - 1) % r->size, COMM_U8);
}
static CommTicket next_block(const RingRun *r, int step) {
    if (step + 1 == r->size) return 0;
    return pass_block_on(r, "keys", block_of(r, step), r->memory.keys[(step + 1) % 2], r->rows * r->keys * r->by->compute);
}
static void await_ticket(const RingRun *r, CommTicket ticket) {
    if (ticket) comm_wait(r->group, ticket);
}

static void set_shape(int64_t *shape, int64_t rows, int64_t columns) { shape[0] = rows, shape[1] = columns, shape[2] = shape[3] = 1; }

/* Returns the call of an attention kernel for the block of a step; *spec receives its
 * attributes. The first block counts the sinks, and makes their gradient. */
static OpCall call_of_block(const RingRun *r, int step, AttentionSpec *spec) {
    *spec = spec_of_block(r->call->attributes, (r->rank + r->size - step) % r->size);
    OpCall call = *r->call;
    call.attributes = spec;
    call.workspace = r->memory.scratch;
    call.in[ATTENTION_KV] = block_of(r, step);
    if (step > 0) call.in[ATTENTION_SINKS] = NULL;
    return call;
}

/* Arguments of attention_sum: next or last = sum + part, weighted by their log-sum-exps if there
 * are any. */
typedef struct RingSum { void *sum, *log, *part, *part_log, *next, *next_log, *last; } RingSum;
static void add_ring_part(const RingRun *r, const RingSum *s, int64_t columns) {
    OpCall call = {.device = r->call->device,
        .in = {[ATTENTION_SUM_SUM] = s->sum,
            [ATTENTION_SUM_LOG] = s->log,
            [ATTENTION_SUM_PART] = s->part,
            [ATTENTION_SUM_PART_LOG] = s->part_log},
        .out = {[ATTENTION_SUM_NEXT] = s->next, [ATTENTION_SUM_NEXT_LOG] = s->next_log, [ATTENTION_SUM_LAST] = s->last}};
    set_shape(call.in_shape[ATTENTION_SUM_PART], r->rows, columns);
    set_shape(call.in_shape[ATTENTION_SUM_PART_LOG], r->rows, r->heads);
    r->by->kernels[OP_attention_sum]->run(&call);
}

/* -- Passes -------------------------------------------------------------------------------------------------------- */

void ring_attend(const OpCall *call, const RingKernels *by) {
    RingRun r = ring_of(call, by, false);
    const RingMemory *m = &r.memory;
    for (int step = 0; step < r.size; step++) {
        bool first = step == 0, last = step + 1 == r.size;
        CommTicket arriving = next_block(&r, step);
        AttentionSpec spec;
        OpCall block = call_of_block(&r, step, &spec);
        block.out[ATTENTION_OUT] = m->part, block.out[ATTENTION_LOG_SUM] = m->part_log;
        by->kernels[OP_attention]->run(&block);
        RingSum sum = {.sum = first ? NULL : m->sum,
            .log = first ? NULL : m->logs[step % 2],
            .part = m->part,
            .part_log = m->part_log,
            .next = last ? NULL : m->sum,
            .last = last ? call->out[ATTENTION_OUT] : NULL,
            .next_log = last ? call->out[ATTENTION_LOG_SUM] : m->logs[(step + 1) % 2]};
        add_ring_part(&r, &sum, r.columns);
        await_ticket(&r, arriving);
    }
}

void ring_gradient(const OpCall *call, const RingKernels *by) {
    RingRun r = ring_of(call, by, true);
    const RingMemory *m = &r.memory;
    CommTicket sums_arriving = 0;
    for (int step = 0; step < r.size; step++) {
        bool first = step == 0, last = step + 1 == r.size;
        CommTicket arriving = next_block(&r, step);
        AttentionSpec spec;
        OpCall block = call_of_block(&r, step, &spec);
        block.out[ATTENTION_GRAD_D_QKV] = m->part;
        block.out[ATTENTION_GRAD_D_KV] = first ? call->out[ATTENTION_GRAD_D_KV] : m->d_keys_part;
        by->kernels[OP_attention_grad]->run(&block);
        RingSum queries = {.sum = first ? NULL : m->sum,
            .part = m->part,
            .next = last ? NULL : m->sum,
            .last = last ? call->out[ATTENTION_GRAD_D_QKV] : NULL};
        add_ring_part(&r, &queries, r.columns);
        await_ticket(&r, arriving);
        if (first) continue;
        await_ticket(&r, sums_arriving);
        RingSum keys = {.sum = step == 1 ? NULL : m->d_keys_sum[1], .part = m->d_keys_part, .next = m->d_keys_sum[0]};
        add_ring_part(&r, &keys, r.keys);
        sums_arriving = pass_block_on(&r, "d_keys", m->d_keys_sum[0], m->d_keys_sum[1], r.rows * r.keys * by->wide);
    }
    if (r.size == 1) return;
    await_ticket(&r, sums_arriving);
    void *own = call->out[ATTENTION_GRAD_D_KV];
    add_ring_part(&r, &(RingSum){.sum = m->d_keys_sum[1], .part = own, .last = own}, r.keys);
}

/* -- Rehearsals ---------------------------------------------------------------------------------------------------- */

/* A rank computes one of its blocks while the next one is in transfer. */
static void rehearse_block(const OpCall *call) { device_rehearse(call->device, call->node, 1.0 / mesh_size(call->mesh, MESH(AXIS_CP))); }
static void rehearse_sum(const OpCall *call) { (void)call; }

static const OpKernel block_kernel = {rehearse_block}, sum_kernel = {rehearse_sum};
static const OpKernel *const rehearsing[OP_COUNT] = {
    [OP_attention] = &block_kernel, [OP_attention_grad] = &block_kernel, [OP_attention_sum] = &sum_kernel};

void ring_rehearse(const OpCall *call, const RingKernels *by) { ring_attend(call, &(RingKernels){rehearsing, by->compute, by->wide}); }

void ring_rehearse_gradient(const OpCall *call, const RingKernels *by) {
    ring_gradient(call, &(RingKernels){rehearsing, by->compute, by->wide});
}
