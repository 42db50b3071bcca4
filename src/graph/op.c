/* The table of operations by OpId, from graph/op_list.h, and the functions that their rules share.
 * Owns nothing. */
#include "graph/op.h"

#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"

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

/* Returns whether a tensor is needed after node `end`. last_read is indexed by tensor. */
static bool is_needed(const Graph *graph, TensorId tensor, const int *last_read, int end) {
    const Tensor *t = graph_get(graph, tensor);
    return tensor && (t->arena != ARENA_ACTIVATION || t->keep || last_read[tensor] > end);
}

int op_readers(const Graph *graph, TensorId tensor) {
    int readers = graph_get(graph, tensor)->keep;
    for (int i = 0; i < graph->node_count; i++)
        for (int j = 0; j < graph->nodes[i].inputs; j++) readers += graph->nodes[i].in[j] == tensor;
    return readers;
}

static bool can_absorb(const Graph *graph, const OpKernel *kernel, int index, int absorber, const int *last_read) {
    const Node *node = &graph->nodes[index];
    bool alone = true;
    for (int i = 0; i < node->outputs; i++)
        alone = alone && (operand_in(op_table[node->op]->kept, i) || !is_needed(graph, node->out[i], last_read, absorber));
    return node->part == graph->nodes[absorber].part && !node->absorbs && (alone || kernel->elides);
}

/* Marks tensors that absorbed nodes make only for their absorber. */
static void elide(Graph *graph, int absorber, const int *last_read) {
    const Node *node = &graph->nodes[absorber];
    for (int i = 0; i < node->inputs; i++) {
        Tensor *x = &graph->tensors[node->in[i]];
        bool is_made = node->in[i] && x->producer >= absorber - node->absorbs && x->producer < absorber;
        x->elided = is_made && !is_needed(graph, node->in[i], last_read, absorber);
        if (x->elided) x->offset = -1;
    }
}

void op_absorb(const Backend *backend, Graph *graph) {
    SCOPED_FREE int *last_read = memory_allocate(graph->tensor_count * sizeof *last_read);
    for (int i = 0; i < graph->node_count; i++) {
        graph->nodes[i].absorbs = graph->nodes[i].absorber = 0;
        for (int j = 0; j < graph->nodes[i].inputs; j++) last_read[graph->nodes[i].in[j]] = i;
    }
    for (int i = 0; i < graph->tensor_count; i++) graph->tensors[i].elided = false;
    for (int i = 0; i < graph->node_count; i++) {
        const OpKernel *kernel = backend->kernels[graph->nodes[i].op];
        int wanted = kernel && kernel->absorbs && !op_amax(&graph->nodes[i]) ? kernel->absorbs(backend, graph, i) : 0, count = wanted;
        for (int j = i - wanted; j < i; j++)
            if (!can_absorb(graph, kernel, j, i, last_read)) count = 0;
        graph->nodes[i].absorbs = count;
        for (int j = i - count; j < i; j++) graph->nodes[j].absorber = i;
        if (count && kernel->elides) elide(graph, i, last_read);
    }
}

Cost op_cost(const Graph *graph, const Node *node) {
    const Op *op = op_table[node->op];
    return (Cost){.flops = op->flops ? op->flops(graph, node) : op->element_flops * graph_elements(graph, node->out[MAIN_OUTPUT]),
        .bytes = op->bytes ? op->bytes(graph, node) : op_tensor_bytes(graph, node)};
}

int64_t op_time(const Graph *graph, const Node *node) {
    enum { USUAL_TERAFLOPS = 600, BYTES = 2600, LAUNCH = 4 * 1000 }; /* BYTES: memory bandwidth in bytes per nanosecond */
    const Op *op = op_table[node->op];
    Cost cost = op_cost(graph, node);
    if (op->communicates) cost.bytes = 0;                                      /* communication counts sent bytes */
    double flops = 1000.0 * (op->teraflops ? op->teraflops : USUAL_TERAFLOPS); /* per nanosecond */
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

TensorId op_measured(const Node *node) {
    uint32_t mask = op_table[node->op]->measured;
    return mask ? node->out[__builtin_ctz(mask)] : TENSOR_NONE;
}

TensorId op_find_amax(Graph *graph, TensorId x) {
    int producer = graph_get(graph, x)->producer;
    if (producer < 0 || op_measured(&graph->nodes[producer]) != x) return TENSOR_NONE;
    int at = __builtin_ctz(op_table[graph->nodes[producer].op]->amax);
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
    for (int i = 0; i < node->inputs; i++)
        if (!graph_get(graph, node->in[i])->elided) bytes += (double)graph_bytes(graph, node->in[i]);
    for (int i = 0; i < node->outputs; i++)
        if (!graph_get(graph, node->out[i])->elided)
            bytes += (double)graph_bytes(graph, node->out[i]) * (operand_in(op_table[node->op]->adds_to, i) ? 2 : 1);
    return bytes;
}
