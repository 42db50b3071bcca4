/* The NaN search: finds the origin of the first NaN. Parameters are checked first, then the
 * microbatches are run again, node by node. */
#include "train/numerics_internal.h"

#include <math.h>
#include <stdio.h>

#include "base/element.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"

/* Returns the index of the first NaN or infinity, or -1. */
static int64_t first_bad(const Graph *graph, const void *data, TypeClass type, int64_t count) {
    size_t bytes = precision_bytes(graph->precision, type);
    for (int64_t i = 0; i < count && type != TYPE_INT32 && type != TYPE_FP8 && type != TYPE_BYTE; i++)
        if (!isfinite(element_get(bytes, data, i))) return i;
    return -1;
}

static int64_t count_bad(const void *data, size_t bytes, int64_t count) {
    int64_t bad = 0;
#pragma omp parallel for schedule(static) reduction(+ : bad)
    for (int64_t i = 0; i < count; i++) bad += !isfinite(element_get(bytes, data, i));
    return bad;
}

/* Counts the NaN and infinite elements in device memory, which are read block by block into host
 * memory. */
static int64_t count_bad_on_device(const Session *session, const char *values, int64_t element, int64_t total) {
    const int64_t block_bytes = 64 << 20, most = block_bytes / element;
    int64_t bad = 0;
    SCOPED_FREE void *block = memory_allocate((size_t)block_bytes);
    for (int64_t at = 0; at < total; at += most) {
        int64_t count = int_min(total - at, most);
        device_download(session->device, block, values + at * element, count * element);
        bad += count_bad(block, (size_t)element, count);
    }
    return bad;
}

/* Parameters with NaN or infinite values on this rank. */
typedef struct BadParameters {
    const char *first;
    int64_t values, count; /* bad values of the first one; number of bad parameters */
} BadParameters;

static void note_bad(BadParameters *bad, const char *name, int64_t values) {
    if (!values) return;
    if (!bad->count++) *bad = (BadParameters){name, values, 1};
}

/* Finds bad trained parameters, until there are `most`. */
static BadParameters find_bad_parameters(const Session *session, int64_t most) {
    const Executor *executor = session->training.executor;
    BadParameters bad = {0};
    if (optimizer_is_finite(session->optimizer, executor_arena(executor, ARENA_MASTER))) return bad;
    for (int i = 0; i < session->layout->shard.interval_count && bad.count < most; i++) {
        const ShardInterval *interval = &session->layout->shard.intervals[i];
        const Parameter *p = &session->training.model.graph->parameters[interval->elements.parameter];
        const char *values = executor_master(executor, interval->offset);
        bool in_host = executor_hosts_master(executor, interval->offset);
        note_bad(&bad, p->name,
            in_host ? count_bad(values, (size_t)p->element_bytes, interval->elements.count)
                    : count_bad_on_device(session, values, p->element_bytes, interval->elements.count));
    }
    return bad;
}

const char *numerics_bad_parameter(const Session *session) { return find_bad_parameters(session, 1).first; }

/* Adds the bad parameters that are not trained; their matrices are in the weight arena alone. */
static void add_bad_frozen(const Session *session, BadParameters *bad) {
    const Graph *graph = session->training.model.graph;
    char *master = executor_arena(session->training.executor, ARENA_MASTER);
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        bool base = graph_is_base(graph, p);
        if (p->quantization) continue; /* quantized values cannot be NaN */
        HeldMatrix held = {{i, 0, p->count}, parameter_in(p, master)};
        if (base) held = session_held_matrix(session, i);
        int64_t element = base ? (int64_t)precision_bytes(graph->precision, TYPE_COMPUTE) : p->element_bytes;
        if (p->frozen) note_bad(bad, p->name, count_bad_on_device(session, held.weights, element, held.elements.count));
    }
}

bool numerics_check_parameters(const Session *session, Error *error) {
    char others[64] = "";
    BadParameters bad = find_bad_parameters(session, INT64_MAX);
    add_bad_frozen(session, &bad);
    if (!bad.count) return true;
    if (bad.count > 1) snprintf(others, sizeof others, ", like %lld more tensor%s", (long long)bad.count - 1, plural(bad.count - 1));
    return error_set(error, ERROR_NUMERICS, "tensor %s contains %lld NaN or infinite value%s%s: use another model or checkpoint", bad.first,
        (long long)bad.values, plural(bad.values), others);
}

typedef struct NanSearch {
    const Session *session;
    int node;
    TensorId tensor;
    int64_t index;
} NanSearch; /* node -1: none so far */

static void inspect_node(NanSearch *search, const Graph *graph, int node) {
    for (int i = 0; i < graph->nodes[node].outputs && search->node < 0; i++) {
        TensorId tensor = graph->nodes[node].out[i];
        const Tensor *t = graph_get(graph, tensor);
        if (tensor == TENSOR_NONE || t->elided) continue;
        SCOPED_FREE void *values = memory_allocate(graph_bytes(graph, tensor));
        executor_read(search->session->training.executor, tensor, values);
        search->index = first_bad(graph, values, t->type, graph_elements(graph, tensor));
        search->tensor = tensor;
        if (search->index >= 0) search->node = node;
    }
}

/* Stops at the first NaN, unless there are other ranks, whose remaining collectives need this rank.
 * Nodes absorbed by this node ran with it; their outputs may not be written unless the kernel
 * elides. */
static bool inspect(void *context, const Graph *graph, int node, double seconds) {
    NanSearch *search = context;
    bool alone = layout_all_ranks(search->session->layout) == 1;
    const OpKernel *kernel = search->session->training.backend.kernels[graph->nodes[node].op];
    (void)seconds;
    for (int i = node - (kernel->elides ? graph->nodes[node].absorbs : 0); i <= node; i++) inspect_node(search, graph, i);
    return search->node < 0 || !alone;
}

/* Writes "tensor NAME[3], made by NODE". */
static void describe_found(const NanSearch *search, char *text, size_t size) {
    const Graph *graph = search->session->training.model.graph;
    if (search->node < 0 || text[0]) return;
    snprintf(text, size, "tensor %s[%lld], computed by %s%s", graph_get(graph, search->tensor)->name, (long long)search->index,
        graph->nodes[search->node].backward ? "the backward pass of " : "", graph->nodes[search->node].name);
}

void numerics_find(const Session *session, const ProgramWork *work, char *text, size_t size) {
    const char *parameter = numerics_bad_parameter(session);
    NanSearch search = {.session = session, .node = -1};
    ProgramWork inspected = *work;
    inspected.hook = inspect;
    inspected.hook_context = &search;
    if (parameter) snprintf(text, size, "parameter %s", parameter);
    program_run(&session->training, &inspected);
    exchange_finish_gradients(session->training.exchange); /* pending gradients would be added to the next step's */
    describe_found(&search, text, size);
}
