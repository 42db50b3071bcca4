/* The table of operations by OpId, from graph/op_list.h, and what their rules share. Owns nothing. */
#include "graph/op.h"

#include "base/math.h"

#define OP(name) extern const Op op_rule_##name;
#include "graph/op_list.h"
#undef OP

const Op *const op_table[OP_COUNT] = {
#define OP(name) &op_rule_##name,
#include "graph/op_list.h"
#undef OP
};

int64_t op_workspace(const Backend *backend, const Graph *graph, const Node *node) {
    const OpKernel *kernel = backend->kernels[node->op];
    return kernel && kernel->workspace ? kernel->workspace(graph, node) : 0;
}

/* Whether nothing but nodes up to `end` reads what a node makes. */
static bool is_read_up_to(const Graph *graph, int index, int end) {
    const Node *node = &graph->nodes[index];
    for (int o = 0; o < node->outputs; o++) {
        const Tensor *made = graph_get(graph, node->out[o]);
        if (node->out[o] && (made->arena != ARENA_ACTIVATION || made->keep)) return false;
        for (int i = end + 1; i < graph->node_count && node->out[o]; i++)
            for (int j = 0; j < graph->nodes[i].inputs; j++)
                if (graph->nodes[i].in[j] == node->out[o]) return false;
    }
    return true;
}

void op_absorb(const Backend *backend, Graph *graph) {
    for (int i = 0; i < graph->node_count; i++) graph->nodes[i].absorbs = graph->nodes[i].absorber = 0;
    for (int i = 0; i < graph->node_count; i++) {
        const OpKernel *kernel = backend->kernels[graph->nodes[i].op];
        int count = kernel && kernel->absorbs && !op_amax(&graph->nodes[i]) ? kernel->absorbs(graph, i) : 0;
        for (int j = i - count; j < i; j++) {
            const Node *node = &graph->nodes[j];
            if (node->part != graph->nodes[i].part || node->absorbs || !is_read_up_to(graph, j, i)) count = 0;
        }
        graph->nodes[i].absorbs = count;
        for (int j = 1; j <= count; j++) graph->nodes[i - j].absorber = i;
    }
}

Cost op_cost(const Graph *graph, const Node *node) {
    const Op *op = op_table[node->op];
    return (Cost){.flops = op->flops ? op->flops(graph, node) : op->element_flops * graph_elements(graph, node->out[MAIN_OUTPUT]),
        .bytes = op->bytes ? op->bytes(graph, node) : op_tensor_bytes(graph, node)};
}

int64_t op_time(const Graph *graph, const Node *node) {
    enum { USUAL_TERAFLOPS = 600, BYTES = 2600, LAUNCH = 4 * 1000 }; /* bytes of a nanosecond */
    const Op *op = op_table[node->op];
    Cost cost = op_cost(graph, node);
    if (op->communicates) cost.bytes = 0;                                      /* those that it sends */
    double flops = 1000.0 * (op->teraflops ? op->teraflops : USUAL_TERAFLOPS); /* of a nanosecond */
    return LAUNCH + int_max((int64_t)(cost.flops / flops), (int64_t)(cost.bytes / BYTES));
}

static double node_flops(const Graph *graph, const Node *node) { return op_cost(graph, node).flops; }
static double node_time(const Graph *graph, const Node *node) { return (double)op_time(graph, node); }

static double sum_of_run(const Graph *graph, double (*of)(const Graph *graph, const Node *node)) {
    double sum = 0;
    for (int i = 0; i < graph->node_count; i++)
        if (!op_table[graph->nodes[i].op]->once) sum += of(graph, &graph->nodes[i]);
    return sum;
}

double graph_flops(const Graph *graph) { return sum_of_run(graph, node_flops); }

double graph_time(const Graph *graph) { return sum_of_run(graph, node_time); }

bool op_runs_once_a_step(const Graph *graph, const Node *node) {
    return op_table[node->op]->once_a_step && graph_get(graph, node->out[MAIN_OUTPUT])->arena == ARENA_STATE;
}

bool op_is_direct(const Graph *graph, const Node *node) {
    const Op *op = op_table[node->op];
    return op->direct && op->direct(graph, node);
}

TensorId op_in_place_input(const Node *node) {
    uint32_t mask = op_table[node->op]->in_place;
    return mask ? node->in[__builtin_ctz(mask)] : TENSOR_NONE;
}

TensorId op_overwritten(const Node *node) {
    uint32_t mask = op_table[node->op]->overwrites;
    return mask ? node->out[__builtin_ctz(mask)] : TENSOR_NONE;
}

TensorId op_amax(const Node *node) {
    uint32_t mask = op_table[node->op]->amax;
    return mask ? node->out[__builtin_ctz(mask)] : TENSOR_NONE;
}

TensorId op_find_amax(Graph *graph, TensorId x) {
    int producer = graph_get(graph, x)->producer;
    if (producer < 0) return TENSOR_NONE;
    const Op *op = op_table[graph->nodes[producer].op];
    if (!op->amax || graph->nodes[producer].out[__builtin_ctz(op->measured)] != x) return TENSOR_NONE;
    int at = __builtin_ctz(op->amax);
    if (graph->nodes[producer].out[at]) return graph->nodes[producer].out[at];
    TensorId amax = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 1, &(int64_t){1}, "amax");
    Node *node = &graph->nodes[producer];
    node->out[at] = amax;
    if (node->outputs <= at) node->outputs = at + 1;
    graph->tensors[amax].producer = producer;
    return amax;
}

bool op_in_place(const Graph *graph, const Node *node) {
    TensorId input = op_in_place_input(node), output = node->out[MAIN_OUTPUT];
    const Tensor *from = graph_get(graph, input), *to = graph_get(graph, output);
    return input && output && from->arena == ARENA_ACTIVATION && to->arena == ARENA_ACTIVATION && to->offset >= 0 &&
           from->offset == to->offset;
}

double op_tensor_bytes(const Graph *graph, const Node *node) {
    double bytes = 0;
    for (int i = 0; i < node->inputs; i++) bytes += (double)graph_bytes(graph, node->in[i]);
    for (int i = 0; i < node->outputs; i++)
        bytes += (double)graph_bytes(graph, node->out[i]) * (operand_in(op_table[node->op]->adds_to, i) ? 2 : 1);
    return bytes;
}
