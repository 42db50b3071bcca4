/* Builds a graph: nodes, tensors and parameters in growing arrays, names and attributes owned by
 * the graph. Models and gradient rules call it; their mistakes are ours, so they are asserted. */
#include "graph/graph.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/math.h"
#include "graph/op.h"

size_t precision_bytes(Precision precision, TypeClass type) {
    if (type == TYPE_FP8 || type == TYPE_BYTE) return 1;
    if (type == TYPE_INT32) return 4;
    if (precision == PRECISION_FP64) return 8;
    return type == TYPE_COMPUTE && precision_is_bf16(precision) ? 2 : 4;
}

const char *precision_name(Precision precision) {
    static const char *const names[] = {
        [PRECISION_BF16] = "bf16", [PRECISION_FP32] = "fp32", [PRECISION_FP64] = "fp64", [PRECISION_PURE_BF16] = "pure_bf16"};
    return names[precision];
}

const char *arena_name(Arena arena) {
    static const char *const names[ARENA_COUNT] = {"inputs", "constants", "weights", "master", "gradients", "metrics", "state", "quantized",
        "master weights in host memory", "host", "activations", "stash", "activations in host memory"};
    return names[arena];
}

static void *own(Graph *graph, void *block) { return array_append(graph->owned, graph->owned_count, block); }

Graph *graph_create(Precision precision, bool training) {
    Graph *graph = memory_allocate(sizeof *graph);
    graph->precision = precision;
    graph->training = training;
    graph->mesh = &mesh_alone;
    graph->layer = -1;
    array_append(graph->tensors, graph->tensor_count, (Tensor){.name = own(graph, memory_copy_string("none")), .producer = -1});
    return graph;
}

void graph_free(Graph *graph) {
    if (!graph) return;
    for (int i = 0; i < graph->owned_count; i++) free(graph->owned[i]);
    free(graph->owned);
    free(graph->nodes);
    free(graph->tensors);
    free(graph->parameters);
    free(graph->hosted);
    free(graph);
}

/* -- Parts --------------------------------------------------------------------------------------------------------- */

int graph_part(const Graph *graph, PartKind kind, int chunk) {
    if (kind == PART_FORWARD || !graph->chunks) return chunk;
    bool weights = kind == PART_WEIGHTS && graph->splits_backward;
    return graph->chunks + 2 * (graph->chunks - 1 - chunk) + weights;
}

int graph_parts(const Graph *graph) { return graph->chunks ? 3 * graph->chunks : 1; }

int graph_part_chunk(const Graph *graph, int part) { return part < graph->chunks ? part : graph->chunks - 1 - (part - graph->chunks) / 2; }

NodeSpan graph_part_span(const Graph *graph, int part) {
    NodeSpan span = NEVER;
    for (int i = 0; i < graph->node_count; i++) {
        if (graph->nodes[i].part != part) continue;
        if (span_is_empty(span)) span.first = i;
        span.last = i;
    }
    return span;
}

void graph_scope(Graph *graph, int layer, const char *prefix) {
    graph->layer = layer;
    snprintf(graph->scope, sizeof graph->scope, "%s", prefix);
}

static TensorId append_tensor(Graph *graph, Tensor tensor, const int64_t *shape) {
    /* copied before the array moves, because `shape` may point into it */
    for (int i = 0; i < TENSOR_MAX_RANK; i++) tensor.shape[i] = i < tensor.rank ? shape[i] : 1;
    tensor.producer = -1;
    array_append(graph->tensors, graph->tensor_count, tensor);
    return graph->tensor_count - 1;
}

TensorId graph_tensor(Graph *graph, Arena arena, TypeClass type, int rank, const int64_t *shape, const char *name) {
    assert(arena != ARENA_WEIGHT && arena != ARENA_MASTER && arena != ARENA_GRADIENT && rank <= TENSOR_MAX_RANK);
    char *full = own(graph, memory_format("%s%s", graph->scope, name));
    bool frozen = graph->frozen && arena == ARENA_INPUT;
    return append_tensor(graph, (Tensor){.name = full, .arena = arena, .type = type, .rank = rank, .offset = -1, .frozen = frozen}, shape);
}

TensorId graph_activation(Graph *graph, TypeClass type, int64_t rows, int64_t columns, const char *name) {
    return graph_tensor(graph, ARENA_ACTIVATION, type, 2, (int64_t[]){rows, columns}, name);
}

TensorId graph_activation_like(Graph *graph, TypeClass type, TensorId like, const char *name) {
    Tensor tensor = *graph_get(graph, like);
    return graph_tensor(graph, ARENA_ACTIVATION, type, tensor.rank, tensor.shape, name);
}

static void cut_shape(const Mesh *mesh, const Cut *cut, int64_t *shape) {
    int index = mesh_index(mesh, cut->axes), size = mesh_size(mesh, cut->axes);
    if (size > 1) shape[cut->dimension] = cut_rows(cut, index, size);
}

TensorId graph_parameter(
    Graph *graph, const char *name, ParameterKind kind, int rank, const int64_t *shape, double init_mean, double init_std, bool fused) {
    return graph_cut_parameter(graph, name, kind, rank, shape, &(Cut){0}, init_mean, init_std, fused);
}

/* Gives a frozen matrix tensors of quantized values and scales if the graph quantizes. */
static void quantize_parameter(Graph *graph, Parameter *p) {
    int64_t quantized = quantized_code_bytes(graph->quantization, p->count),
            scales = quantized_scale_bytes(graph->quantization, p->count, p->shape[p->rank - 1]);
    p->quantization = graph->quantization;
    if (!p->quantization) return;
    p->quantized = graph_tensor(graph, ARENA_QUANTIZED, TYPE_BYTE, 1, &quantized, "quantized");
    p->scales = graph_tensor(graph, ARENA_QUANTIZED, TYPE_BYTE, 1, &scales, "scales");
}

static void set_projections(Parameter *parameter, const int64_t *rows, int count) {
    int64_t sum = 0;
    assert(parameter->rank >= 2 && count >= 1 && count <= CUT_MAX_BLOCKS);
    parameter->projections = count;
    for (int i = 0; i < count; i++) sum += parameter->projection_rows[i] = rows[i];
    assert(sum == parameter->whole[parameter->rank - 2]);
}

TensorId graph_cut_parameter(Graph *graph, const char *name, ParameterKind kind, int rank, const int64_t *whole, const Cut *cut,
    double init_mean, double init_std, bool fused) {
    int64_t shape[TENSOR_MAX_RANK];
    for (int i = 0; i < TENSOR_MAX_RANK; i++) shape[i] = i < rank ? whole[i] : 1;
    cut_shape(graph->mesh, cut, shape);
    bool compute = kind == PARAMETER_MATRIX || kind == PARAMETER_EMBEDDING || kind == PARAMETER_CONVOLUTION || kind == PARAMETER_VALUE_HEAD;
    int64_t offset = graph->parameter_bytes, alignment = precision_alignment(graph->precision), count = 1;
    if (!fused) offset = (offset + alignment - 1) / alignment * alignment;
    for (int i = 0; i < rank; i++) count *= shape[i];
    TypeClass type = compute ? TYPE_COMPUTE : TYPE_WIDE;
    Parameter parameter = {.name = own(graph, memory_copy_string(name)),
        .kind = kind,
        .rank = rank,
        .offset = offset,
        .count = count,
        .element_bytes = precision_state_bytes(graph->precision, type),
        .init_mean = init_mean,
        .init_std = init_std,
        .fused = fused,
        .cut = *cut,
        .frozen = graph->frozen};
    parameter.cut.axes = mesh_significant(graph->mesh, cut->axes);
    memcpy(parameter.shape, shape, sizeof shape);
    for (int i = 0; i < TENSOR_MAX_RANK; i++) parameter.whole[i] = i < rank ? whole[i] : 1;
    parameter.tensor = append_tensor(graph,
        (Tensor){.name = parameter.name,
            .arena = compute ? ARENA_WEIGHT : ARENA_MASTER,
            .type = type,
            .rank = rank,
            .offset = compute ? precision_weight_offset(graph->precision, offset) : offset,
            .frozen = graph->frozen},
        shape);
    if (graph->frozen && kind == PARAMETER_MATRIX) quantize_parameter(graph, &parameter);
    if (rank >= 2) {
        bool blocks = cut->blocks && cut->dimension == rank - 2;
        set_projections(&parameter, blocks ? cut->rows : &whole[rank - 2], blocks ? cut->blocks : 1);
    }
    array_append(graph->parameters, graph->parameter_count, parameter);
    graph->parameter_bytes = graph->trained_bytes = graph->stored_bytes = offset + count * parameter.element_bytes;
    return parameter.tensor;
}

void graph_set_projections(Graph *graph, TensorId parameter, const int64_t *rows, int count) {
    set_projections(&graph->parameters[graph_find_parameter(graph, graph_get(graph, parameter)->name)], rows, count);
}

Slice graph_take_slice(const Graph *graph, ParameterInterval *rest) {
    const Parameter *p = &graph->parameters[rest->parameter];
    const Cut *cut = &p->cut;
    int size = mesh_size(graph->mesh, cut->axes), index = mesh_index(graph->mesh, cut->axes), block = 0;
    if (size == 1) {
        Slice slice = {.first = rest->first, .count = rest->count};
        rest->first += rest->count;
        rest->count = 0;
        return slice;
    }
    int64_t inner = 1; /* elements per row */
    for (int i = cut->dimension + 1; i < p->rank; i++) inner *= p->whole[i];
    int64_t held = p->shape[cut->dimension] * inner, stride = p->whole[cut->dimension] * inner;
    int64_t at = rest->first % held, begin = rest->first / held * stride; /* offset in the block; first element of the block */
    CutShare share = cut_share(cut->rows[0], index, size);
    for (; at >= share.count * inner; share = cut_share(cut->rows[++block], index, size)) {
        at -= share.count * inner;
        begin += cut->rows[block] * inner;
    }
    int64_t run = share.count * inner, taken = cut->blocks == 1 ? rest->count : int_min(rest->count, run - at);
    Slice runs = {.first = begin + share.first * inner, .count = at + taken, .run = run, .stride = stride};
    rest->first += taken;
    rest->count -= taken;
    return slice_part(&runs, at, taken);
}

TensorId graph_fuse(Graph *graph, const TensorId *parts, int count) {
    Tensor view = *graph_get(graph, parts[0]);
    for (int i = 1; i < count; i++) {
        const Tensor *part = graph_get(graph, parts[i]);
        assert(part->arena == view.arena && part->rank == view.rank && part->frozen == view.frozen);
        assert(graph_state_span(graph, parts[i]).begin == graph_state_span(graph, parts[i - 1]).end);
        view.shape[0] += part->shape[0];
    }
    return append_tensor(graph, view, view.shape);
}

TensorId graph_slice(Graph *graph, TensorId parameter, int64_t first, int64_t count) {
    Tensor view = *graph_get(graph, parameter);
    assert(graph_is_parameter(graph, parameter) && first >= 0 && first + count <= view.shape[0]);
    view.offset += graph_bytes(graph, parameter) / view.shape[0] * first;
    view.shape[0] = count;
    view.gradient = TENSOR_NONE;
    return append_tensor(graph, view, view.shape);
}

bool graph_is_parameter(const Graph *graph, TensorId tensor) {
    Arena arena = graph_get(graph, tensor)->arena;
    return tensor != TENSOR_NONE && (arena == ARENA_WEIGHT || arena == ARENA_MASTER);
}

int graph_find_parameter(const Graph *graph, const char *name) {
    for (int i = 0; i < graph->parameter_count; i++)
        if (!strcmp(graph->parameters[i].name, name)) return i;
    return -1;
}

TensorId graph_parameter_gradient(Graph *graph, TensorId parameter) {
    if (parameter == TENSOR_NONE) return TENSOR_NONE;
    Tensor *tensor = &graph->tensors[parameter];
    if (tensor->gradient || tensor->frozen) return tensor->gradient;
    assert(graph_is_parameter(graph, parameter));
    Tensor gradient = {.name = own(graph, memory_format("d_%s", tensor->name)),
        .arena = ARENA_GRADIENT,
        .type = precision_state_type(graph->precision, tensor->type),
        .rank = tensor->rank,
        .offset = graph_state_span(graph, parameter).begin};
    int64_t shape[TENSOR_MAX_RANK];
    memcpy(shape, tensor->shape, sizeof shape);
    TensorId id = append_tensor(graph, gradient, shape);
    return graph->tensors[parameter].gradient = id;
}

int graph_append(Graph *graph, const Node *node) {
    int index = graph->node_count;
    array_append(graph->nodes, graph->node_count, *node);
    for (int i = 0; i < node->outputs; i++)
        if (!operand_in(op_table[node->op]->adds_to, i) && node->out[i]) graph->tensors[node->out[i]].producer = index;
    return index;
}

static int operand_count(const TensorId *operands, int count) {
    while (count > 0 && operands[count - 1] == TENSOR_NONE) count--;
    return count;
}

int graph_node(Graph *graph, int op, const Inputs in, const Outputs out, const void *attributes, size_t attribute_bytes) {
    Node node = {
        .op = op, .attributes = attributes, .layer = graph->layer, .part = graph->part, .backward = graph->backward, .clone_of = -1};
    memcpy(node.in, in, sizeof node.in);
    memcpy(node.out, out, sizeof node.out);
    node.inputs = operand_count(in, NODE_MAX_INPUTS), node.outputs = operand_count(out, NODE_MAX_OUTPUTS);
    if (attribute_bytes) node.attributes = memcpy(own(graph, memory_allocate(attribute_bytes)), attributes, attribute_bytes);
    node.name = own(graph, memory_format("%s%s", graph->scope, op_table[op]->name));
    return graph_append(graph, &node);
}

static bool reads_any(const Node *node, const TensorId *tensors, int count) {
    for (int i = 0; i < node->inputs; i++)
        for (int j = 0; j < count && node->in[i]; j++)
            if (node->in[i] == tensors[j]) return true;
    return false;
}

bool graph_communicates(const Graph *graph, int node) {
    const Op *op = op_table[graph->nodes[node].op];
    return op->communicates && mesh_size(graph->mesh, AXES_ROWS | AXES_EXPERTS) > 1 && !op_is_direct(graph, &graph->nodes[node]);
}

int graph_await(const Graph *graph, int node) {
    const Node *starting = &graph->nodes[node];
    int at = node + 1;
    while (at < graph->node_count && !reads_any(&graph->nodes[at], starting->out, starting->outputs)) at++;
    return at;
}

int graph_node_end(const Graph *graph, int node) {
    if (graph->nodes[node].absorber) return graph->nodes[node].absorber;
    int end = graph_communicates(graph, node) ? graph_await(graph, node) : node;
    return end < graph->node_count ? end : graph->node_count - 1;
}

int64_t graph_elements(const Graph *graph, TensorId tensor) {
    const Tensor *t = graph_get(graph, tensor);
    return t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3];
}

int64_t graph_bytes(const Graph *graph, TensorId tensor) {
    return graph_elements(graph, tensor) * (int64_t)precision_bytes(graph->precision, graph_get(graph, tensor)->type);
}

ByteSpan graph_state_span(const Graph *graph, TensorId tensor) {
    const Tensor *t = graph_get(graph, tensor);
    int64_t element = precision_state_bytes(graph->precision, t->type), begin = t->offset;
    assert(t->arena == ARENA_GRADIENT || graph_is_parameter(graph, tensor));
    if (t->arena == ARENA_WEIGHT) begin = begin / (int64_t)precision_bytes(graph->precision, TYPE_COMPUTE) * element;
    return (ByteSpan){begin, begin + graph_elements(graph, tensor) * element};
}

bool graph_is_base(const Graph *graph, const Parameter *parameter) {
    return parameter->frozen && graph_get(graph, parameter->tensor)->arena == ARENA_WEIGHT;
}

TypeClass graph_state_type(const Graph *graph, const Parameter *parameter) {
    return precision_state_type(graph->precision, graph_get(graph, parameter->tensor)->type);
}

int64_t graph_columns(const Graph *graph, TensorId tensor) {
    const Tensor *t = graph_get(graph, tensor);
    return t->shape[t->rank - 1];
}

int64_t graph_rows(const Graph *graph, TensorId tensor) { return graph_elements(graph, tensor) / graph_columns(graph, tensor); }
