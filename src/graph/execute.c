/* Runs a planned graph. All pointers are bound when the executor is made, so a run is a loop over
 * kernel calls. On a GPU the loop is recorded once, one segment between consecutive stops, and
 * replayed. The executor owns the arenas that are not shared with it; on a GPU it also owns host
 * copies of the inputs and metrics. Called by train and infer. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/element.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "graph/graph.h"
#include "graph/op.h"

/* An interruption of the program before a node: to call comm point `point` (-1: none), to wait for
 * the collectives that the node needs, and to run the node by itself if it communicates (`runs`).
 * The collective that it starts ends before node `end`. */
typedef struct Stop {
    int node, point;
    bool runs;
    int end;
} Stop;

/* Copies of activations to host memory and back (host_saved.c). A stream works in order, and a group
 * is waited for before the next one is copied, so the latest event of a stream is the one to wait
 * for. */
typedef struct HostCopies {
    DeviceStream *uploads, *downloads;       /* NULL on a CPU */
    DeviceEvent *reached, *stowed, *fetched; /* of the program's stream, and of the last copies */
} HostCopies;

/* Nodes [first, end) of a part, and the stops [first_stop, end_stop) among and after them. */
typedef struct PartRange { int first, end, first_stop, end_stop; } PartRange;

/* Invariants: calls[i] of a slot is node i with its pointers bound; every byte of the gradient
 * arena either lies in a gap or is written by a node of Node.overwrites before any other node adds
 * to it. */
struct Executor {
    const Graph *graph;
    Backend backend;
    void *arena[ARENA_COUNT];
    bool owned[ARENA_COUNT];
    int64_t bytes[ARENA_COUNT];
    void *host[ARENA_COUNT];  /* INPUT and METRIC as callers write and read them; on the CPU the arena itself */
    int slots, slot;          /* microbatches in flight, and the current slot */
    OpCall *calls;            /* by slot, then by node */
    int *points, point_count; /* the comm points */
    Stop *stops;              /* segment s ends before node stops[s].node; the last segment ends after the last node */
    int stop_count;
    HostCopies copies;
    CommTicket *tickets; /* by node: the collective that it started; 0: none */
    ExecutorCommPoint comm_point;
    void *comm_point_context;
    PartRange *parts;
    int part_count;
    bool *overwrite; /* by part: its next run is the first of a step, or of all */
    ByteSpan *gaps;  /* parts of the gradient arena that no node of Node.overwrites writes; executor_zero zeroes them */
    int gap_count;
    int run_count;                   /* number of part runs */
    int *runs[2];                    /* number of runs without a hook, by `overwrite`; by slot, then by part */
    DeviceRecording **recordings[2]; /* by `overwrite`; by slot, then by segment; NULL: not recorded */
};

static bool on_host(Arena arena) { return arena == ARENA_INPUT || arena == ARENA_METRIC; }

const Backend *executor_backend(const Executor *executor) { return &executor->backend; }
const Graph *executor_graph(const Executor *executor) { return executor->graph; }
void *executor_arena(const Executor *executor, Arena arena) { return executor->arena[arena]; }

bool executor_hosts_master(const Executor *executor, int64_t offset) {
    return executor->bytes[ARENA_HOST_MASTER] && offset >= executor->bytes[ARENA_MASTER];
}

void *executor_master(const Executor *executor, int64_t offset) {
    if (!executor_hosts_master(executor, offset)) return (char *)executor->arena[ARENA_MASTER] + offset;
    return (char *)executor->arena[ARENA_HOST_MASTER] + offset - executor->bytes[ARENA_MASTER];
}

static bool has_slots(Arena arena) { return arena == ARENA_INPUT || arena == ARENA_HOST || arena == ARENA_STASH; }

/* Returns the offset of the slot's copy of an arena. */
static int64_t slot_offset(const Executor *executor, Arena arena) {
    return has_slots(arena) ? executor->bytes[arena] / executor->slots * executor->slot : 0;
}

static void *in_arena(const Executor *executor, void *const *arenas, TensorId id) {
    const Tensor *tensor = graph_get(executor->graph, id);
    if (id == TENSOR_NONE || tensor->elided) return NULL;
    return (char *)arenas[tensor->arena] + slot_offset(executor, tensor->arena) + tensor->offset;
}

void *executor_tensor(const Executor *executor, TensorId id) {
    return in_arena(executor, on_host(graph_get(executor->graph, id)->arena) ? executor->host : executor->arena, id);
}

void *executor_device_tensor(const Executor *executor, TensorId id) { return in_arena(executor, executor->arena, id); }

void executor_read(const Executor *executor, TensorId id, void *to) {
    device_download(executor->backend.device, to, in_arena(executor, executor->arena, id), graph_bytes(executor->graph, id));
}

void executor_set_values(Executor *executor, TensorId tensor, int64_t first, const float *values, int64_t count) {
    size_t bytes = precision_bytes(executor->graph->precision, graph_get(executor->graph, tensor)->type);
    void *data = executor_tensor(executor, tensor);
    switch (bytes) { /* loops with a constant size vectorize */
    case sizeof(float): memcpy((float *)data + first, values, (size_t)count * bytes); break;
    case sizeof(uint16_t):
        for (int64_t i = 0; i < count; i++) element_set(sizeof(uint16_t), data, first + i, values[i]);
        break;
    default:
        for (int64_t i = 0; i < count; i++) element_set(bytes, data, first + i, values[i]);
    }
}

void executor_set_scalar(Executor *executor, TensorId tensor, double value) {
    void *data = executor_tensor(executor, tensor);
    element_set(precision_bytes(executor->graph->precision, TYPE_WIDE), data, 0, value);
}

double executor_get_metric(const Executor *executor, TensorId tensor, int64_t index) {
    const void *data = executor_tensor(executor, tensor);
    return element_get(precision_bytes(executor->graph->precision, TYPE_WIDE), data, index);
}

void executor_set_slot(Executor *executor, int slot) {
    assert(slot >= 0 && slot < executor->slots);
    executor->slot = slot;
}

static OpCall *call_of(const Executor *executor, int node) {
    return &executor->calls[(int64_t)executor->slot * executor->graph->node_count + node];
}

/* Returns whether the node has nothing to do in the current run: an earlier run did it, or another
 * node computes it. */
static bool is_done(const Executor *executor, int node) {
    const Node *n = &executor->graph->nodes[node];
    return op_table[n->op]->once || n->absorber || (op_runs_once_a_step(executor->graph, n) && !executor->overwrite[n->part]);
}

static void run_nodes(Executor *executor, int first, int end) {
    const Graph *graph = executor->graph;
    for (int i = first; i < end; i++)
        if (!is_done(executor, i)) executor->backend.kernels[graph->nodes[i].op]->run(call_of(executor, i));
}

/* -- Creation ------------------------------------------------------------------------------------------------------ */

static void bind_slot(Executor *executor) {
    const Graph *graph = executor->graph;
    for (int i = 0; i < graph->node_count; i++) {
        const Node *node = &graph->nodes[i];
        OpCall *call = call_of(executor, i);
        for (int j = 0; j < node->inputs; j++) {
            call->in[j] = in_arena(executor, executor->arena, node->in[j]);
            if (node->in[j]) memcpy(call->in_shape[j], graph_get(graph, node->in[j])->shape, sizeof call->in_shape[j]);
        }
        for (int j = 0; j < node->outputs; j++) {
            call->out[j] = in_arena(executor, executor->arena, node->out[j]);
            if (node->out[j]) memcpy(call->out_shape[j], graph_get(graph, node->out[j])->shape, sizeof call->out_shape[j]);
        }
        call->attributes = node->attributes;
        call->compute_gradients = precision_state_type(graph->precision, TYPE_COMPUTE) == TYPE_COMPUTE;
        call->workspace = (char *)executor->arena[ARENA_ACTIVATION] + node->workspace;
        call->device = executor->backend.device;
        call->mesh = graph->mesh;
        call->direct = op_is_direct(graph, node);
        call->absorbs = node->absorbs;
        call->kernel = executor->backend.kernels[node->op];
        call->node = i + 1;
        call->ticket = &executor->tickets[i];
    }
}

static void bind(Executor *executor) {
    executor->calls = memory_allocate(((int64_t)executor->slots * executor->graph->node_count + 1) * sizeof *executor->calls);
    for (executor->slot = executor->slots - 1;; executor->slot--) {
        bind_slot(executor);
        if (executor->slot == 0) return;
    }
}

/* -- First accumulation into gradients ----------------------------------------------------------------------------- */

static int compare_spans(const void *a, const void *b) {
    const ByteSpan *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Finds the gaps of the gradient arena that no node overwrites. Gradients that share a slot in turn
 * (layout/comm_schedule.h) overlap. */
static void find_gaps(Executor *executor) {
    const Graph *graph = executor->graph;
    int64_t at = 0, end = executor->bytes[ARENA_GRADIENT];
    int count = 0;
    SCOPED_FREE ByteSpan *written = memory_allocate((graph->node_count + 1) * sizeof *written);
    for (int i = 0; i < graph->node_count; i++)
        if (graph->nodes[i].overwrites) written[count++] = graph_state_span(graph, op_overwritten(&graph->nodes[i]));
    executor->gaps = memory_allocate((count + 1) * sizeof *executor->gaps);
    qsort(written, count, sizeof *written, compare_spans);
    for (int i = 0; i <= count; i++) {
        int64_t next = i < count ? written[i].begin : end;
        if (at < next) executor->gaps[executor->gap_count++] = (ByteSpan){at, next};
        if (i < count) at = int_max(at, written[i].end);
    }
}

/* Sets whether the kernels of a part's next run overwrite gradients or add to them. */
static void set_overwrites(Executor *executor, int part) {
    for (int i = executor->parts[part].first; i < executor->parts[part].end; i++)
        call_of(executor, i)->overwrite = executor->overwrite[part] && executor->graph->nodes[i].overwrites;
}

static bool check_kernels(const Executor *executor, Error *error) {
    const Graph *graph = executor->graph;
    for (int i = 0; i < graph->node_count; i++)
        if (!executor->backend.kernels[graph->nodes[i].op])
            return error_set(error, ERROR_USAGE, "operation %s has no kernel for %s: give device=cpu", op_table[graph->nodes[i].op]->name,
                device_info(executor->backend.device)->name);
    return true;
}

static bool is_pinned_arena(Arena arena) { return arena == ARENA_HOST || arena == ARENA_HOST_MASTER || arena == ARENA_SAVED; }

static void *allocate_arena(const Executor *executor, Arena arena, Error *error) {
    Device *device = executor->backend.device;
    int64_t bytes = executor->bytes[arena];
    return is_pinned_arena(arena) ? device_allocate_host(device, bytes, error) : device_allocate(device, bytes, error);
}

static void free_arena(const Executor *executor, Arena arena) {
    (is_pinned_arena(arena) ? device_free_host : device_free)(executor->backend.device, executor->arena[arena], executor->bytes[arena]);
}

static bool map_arenas(Executor *executor, void *const *shared, Error *error) {
    const DeviceInfo *info = device_info(executor->backend.device);
    bool serves_host = info->host_memory && !info->rehearses;
    for (Arena arena = 0; arena < ARENA_COUNT; arena++) {
        executor->owned[arena] = !(shared && shared[arena]) && executor->bytes[arena];
        executor->arena[arena] = executor->owned[arena] ? allocate_arena(executor, arena, error) : shared ? shared[arena] : NULL;
        if (executor->owned[arena] && !executor->arena[arena]) return error_context(error, "the arena of %s", arena_name(arena));
        if (on_host(arena)) executor->host[arena] = serves_host ? executor->arena[arena] : memory_allocate(executor->bytes[arena] + 1);
    }
    if (!executor->arena[ARENA_WEIGHT]) executor->arena[ARENA_WEIGHT] = executor->arena[ARENA_MASTER];
    return true;
}

static void open_copies(Executor *executor) {
    Device *device = executor->backend.device;
    HostCopies *copies = &executor->copies;
    if (!executor->graph->hosted_count) return;
    *copies = (HostCopies){device_stream_open(device, true), device_stream_open(device, true), device_event_open(device, false),
        device_event_open(device, false), device_event_open(device, false)};
}

static void close_copies(Executor *executor) {
    Device *device = executor->backend.device;
    HostCopies *copies = &executor->copies;
    DeviceEvent *events[] = {copies->reached, copies->stowed, copies->fetched};
    for (int i = 0; i < 3; i++)
        if (events[i]) device_event_close(device, events[i]);
    if (copies->uploads) device_stream_close(device, copies->uploads);
    if (copies->downloads) device_stream_close(device, copies->downloads);
}

/* Loads all kernels at once with a dry run of all nodes. */
static void prepare_program(Executor *executor) {
    if (!device_prepare_begin(executor->backend.device)) return;
    for (int i = 0; i < executor->graph->node_count; i++)
        if (!graph_communicates(executor->graph, i)) run_nodes(executor, i, i + 1);
    device_prepare_end(executor->backend.device);
}

Executor *executor_create(const Graph *graph, const Plan *plan, const Backend *backend, void *const *shared, Error *error) {
    Executor *executor = memory_allocate(sizeof *executor);
    executor->graph = graph;
    executor->backend = *backend;
    memcpy(executor->bytes, plan->bytes, sizeof executor->bytes);
    if (!check_kernels(executor, error) || !map_arenas(executor, shared, error)) {
        executor_free(executor);
        return NULL;
    }
    executor->slots = plan->slots;
    executor->tickets = memory_allocate((graph->node_count + 1) * sizeof *executor->tickets);
    executor_set_comm_points(executor, NULL, 0, NULL, NULL);
    bind(executor);
    find_gaps(executor);
    open_copies(executor);
    prepare_program(executor);
    bool written = shared && shared[ARENA_CONSTANT];
    for (int i = 0; i < graph->node_count && !written; i++)
        if (op_table[graph->nodes[i].op]->once) backend->kernels[graph->nodes[i].op]->run(&executor->calls[i]);
    return executor;
}

void executor_free(Executor *executor) {
    if (!executor) return;
    Device *device = executor->backend.device;
    for (int overwrite = 0; overwrite < 2; overwrite++) {
        for (int i = 0; i < (executor->stop_count + 1) * executor->slots && executor->recordings[overwrite]; i++)
            device_recording_free(device, executor->recordings[overwrite][i]);
        free(executor->recordings[overwrite]);
        free(executor->runs[overwrite]);
    }
    for (Arena arena = 0; arena < ARENA_COUNT; arena++) {
        if (executor->host[arena] != executor->arena[arena]) free(executor->host[arena]);
        if (executor->owned[arena] && executor->arena[arena]) free_arena(executor, arena);
    }
    close_copies(executor);
    free(executor->parts);
    free(executor->overwrite);
    free(executor->gaps);
    free(executor->points);
    free(executor->stops);
    free(executor->tickets);
    free(executor->calls);
    free(executor);
}

/* -- Runs ---------------------------------------------------------------------------------------------------------- */

/* Uploads the slot's inputs. */
static void upload_inputs(Executor *executor) {
    int64_t begin = slot_offset(executor, ARENA_INPUT);
    if (executor->host[ARENA_INPUT] != executor->arena[ARENA_INPUT])
        device_upload(executor->backend.device, (char *)executor->arena[ARENA_INPUT] + begin,
            (const char *)executor->host[ARENA_INPUT] + begin, executor->bytes[ARENA_INPUT] / executor->slots);
}

static bool communicates(const Executor *executor, int node) {
    return node < executor->graph->node_count && graph_communicates(executor->graph, node);
}

static bool ends_part(const Graph *graph, int node) { return node > 0 && graph->nodes[node].part != graph->nodes[node - 1].part; }

/* Lists one stop for each node that needs one. */
static void list_stops(Executor *executor) {
    const Graph *graph = executor->graph;
    int nodes = graph->node_count, point = 0;
    SCOPED_FREE bool *awaits = memory_allocate(nodes + 1);
    for (int i = 0; i < nodes; i++)
        if (communicates(executor, i)) awaits[graph_await(graph, i)] = true;
    for (int i = 0; i < graph->hosted_count; i++) {
        const HostedTensor *hosted = &graph->hosted[i];
        awaits[hosted->stow] = awaits[hosted->stowed] = awaits[hosted->fetch] = awaits[hosted->fetched] = true;
    }
    free(executor->stops);
    executor->stops = memory_allocate((nodes + 1) * sizeof *executor->stops);
    executor->stop_count = 0;
    for (int i = 0; i <= nodes; i++) {
        bool calls = point < executor->point_count && executor->points[point] == i;
        if (calls || awaits[i] || communicates(executor, i) || (i < nodes && ends_part(graph, i)))
            executor->stops[executor->stop_count++] = (Stop){.node = i,
                .point = calls ? point : -1,
                .runs = communicates(executor, i),
                .end = i < nodes ? graph_await(graph, i) : nodes};
        point += calls;
    }
}

static void list_parts(Executor *executor) {
    executor->part_count = graph_parts(executor->graph);
    free(executor->parts);
    executor->parts = memory_allocate(executor->part_count * sizeof *executor->parts);
    for (int p = 0; p < executor->part_count; p++) {
        NodeSpan span = graph_part_span(executor->graph, p);
        PartRange *part = &executor->parts[p];
        if (span_is_empty(span)) continue;
        *part = (PartRange){.first = span.first, .end = span.last + 1};
        while (part->first_stop < executor->stop_count && executor->stops[part->first_stop].node < part->first) part->first_stop++;
        part->end_stop = part->first_stop;
        while (part->end_stop < executor->stop_count && executor->stops[part->end_stop].node <= part->end) part->end_stop++;
    }
}

/* Waits for the collective that a node started, if it still runs. */
static void await_node(Executor *executor, int node) {
    CommTicket *ticket = &executor->tickets[node];
    if (*ticket) comm_wait(executor->graph->mesh->all, *ticket);
    *ticket = 0;
}

/* Starts the copy of an activation on a stream, after the program's work up to here. */
static void start_copy(const Executor *executor, const HostedTensor *hosted, bool back) {
    Device *device = executor->backend.device;
    const HostCopies *copies = &executor->copies;
    char *kept = (char *)executor->arena[ARENA_SAVED] + hosted->offset;
    void *memory = executor_device_tensor(executor, hosted->tensor);
    int64_t bytes = graph_bytes(executor->graph, hosted->tensor);
    DeviceStream *stream = back ? copies->uploads : copies->downloads;
    device_event_record(device, copies->reached, NULL);
    device_event_wait(device, copies->reached, stream);
    if (back) device_stream_upload(device, memory, kept, bytes, stream);
    else device_stream_download(device, kept, memory, bytes, stream);
    device_event_record(device, back ? copies->fetched : copies->stowed, stream);
}

/* Waits for copies that must have ended before the node, then starts those that begin there. */
static void copy_saved(const Executor *executor, int node) {
    const Graph *graph = executor->graph;
    bool stowed = false, fetched = false;
    for (int i = 0; i < graph->hosted_count; i++) {
        stowed |= graph->hosted[i].stowed == node;
        fetched |= graph->hosted[i].fetched == node;
    }
    if (stowed) device_event_wait(executor->backend.device, executor->copies.stowed, NULL);
    if (fetched) device_event_wait(executor->backend.device, executor->copies.fetched, NULL);
    for (int i = 0; i < graph->hosted_count; i++) {
        if (graph->hosted[i].stow == node) start_copy(executor, &graph->hosted[i], false);
        if (graph->hosted[i].fetch == node) start_copy(executor, &graph->hosted[i], true);
    }
}

/* Does the work of a stop, except running its node. */
static void prepare_stop(Executor *executor, const Stop *stop) {
    if (stop->point >= 0) executor->comm_point(executor->comm_point_context, stop->point);
    for (const Stop *before = executor->stops; before < stop; before++)
        if (before->runs && before->end == stop->node) await_node(executor, before->node);
    copy_saved(executor, stop->node);
}

void executor_set_comm_points(Executor *executor, const int *points, int count, ExecutorCommPoint comm_point, void *context) {
    assert(executor->run_count == 0);
    free(executor->points);
    executor->points = memory_allocate((count + 1) * sizeof *executor->points);
    if (count) memcpy(executor->points, points, count * sizeof *points);
    executor->point_count = count;
    list_stops(executor);
    list_parts(executor);
    for (int overwrite = 0; overwrite < 2; overwrite++) {
        free(executor->recordings[overwrite]);
        free(executor->runs[overwrite]);
        executor->recordings[overwrite] = memory_allocate((executor->stop_count + 1) * executor->slots * sizeof(DeviceRecording *));
        executor->runs[overwrite] = memory_allocate(executor->part_count * executor->slots * sizeof(int));
    }
    free(executor->overwrite);
    executor->overwrite = memory_allocate(executor->part_count);
    memset(executor->overwrite, true, executor->part_count);
    executor->comm_point = comm_point;
    executor->comm_point_context = context;
}

/* Recordings are kept by Executor.overwrite. The first run of each kind autotunes GEMMs, so the
 * second one is recorded. */
static void run_segment(Executor *executor, int part, int segment, int first, int end) {
    Device *device = executor->backend.device;
    bool overwrite = executor->overwrite[part];
    DeviceRecording **recording = &executor->recordings[overwrite][executor->slot * (executor->stop_count + 1) + segment];
    if (first >= end) return;
    if (executor->runs[overwrite][executor->slot * executor->part_count + part] == 1 && device_record_begin(device)) {
        run_nodes(executor, first, end);
        *recording = device_record_end(device);
    }
    if (*recording) device_replay(device, *recording);
    else run_nodes(executor, first, end);
}

static void begin_part(Executor *executor, int part) {
    executor->run_count++;
    if (!executor->graph->nodes[executor->parts[part].first].backward) upload_inputs(executor);
    set_overwrites(executor, part);
}

/* Waits for the collectives whose results another part reads, because other microbatches run
 * between the parts. */
static void end_part(Executor *executor, int part) {
    for (int i = executor->parts[part].first; i < executor->parts[part].end && executor->part_count > 1; i++) await_node(executor, i);
    executor->overwrite[part] = false;
}

void executor_run_part(Executor *executor, int part) {
    const PartRange *range = &executor->parts[part];
    int first = range->first;
    if (range->first == range->end) return;
    begin_part(executor, part);
    for (int i = range->first_stop; i < range->end_stop; i++) {
        const Stop *stop = &executor->stops[i];
        run_segment(executor, part, i, first, stop->node);
        prepare_stop(executor, stop);
        if (stop->runs && stop->node < range->end) run_nodes(executor, stop->node, stop->node + 1);
        first = stop->node + stop->runs;
    }
    run_segment(executor, part, range->end_stop, first, range->end);
    executor->runs[executor->overwrite[part]][executor->slot * executor->part_count + part]++;
    end_part(executor, part);
}

int executor_run_part_hooked(Executor *executor, int part, ExecutorHook hook, void *context) {
    const Graph *graph = executor->graph;
    Device *device = executor->backend.device;
    const PartRange *range = &executor->parts[part];
    int stop = range->first_stop, stopped_at = -1;
    if (range->first == range->end) return -1;
    begin_part(executor, part);
    for (int i = range->first; stopped_at < 0; i++) {
        for (; stop < range->end_stop && executor->stops[stop].node == i; stop++) prepare_stop(executor, &executor->stops[stop]);
        if (i == range->end) break;
        if (is_done(executor, i)) continue;
        device_timer_start(device);
        executor->backend.kernels[graph->nodes[i].op]->run(call_of(executor, i));
        await_node(executor, i);
        double seconds = device_timer_stop(device);
        if (!hook(context, graph, i, seconds)) stopped_at = i;
    }
    end_part(executor, part);
    return stopped_at;
}

void executor_run(Executor *executor) {
    assert(executor->part_count == 1);
    executor_run_part(executor, 0);
}

int executor_run_hooked(Executor *executor, ExecutorHook hook, void *context) {
    assert(executor->part_count == 1);
    return executor_run_part_hooked(executor, 0, hook, context);
}

bool executor_finish(Executor *executor, Error *error) {
    if (executor->host[ARENA_METRIC] != executor->arena[ARENA_METRIC])
        device_download(
            executor->backend.device, executor->host[ARENA_METRIC], executor->arena[ARENA_METRIC], executor->bytes[ARENA_METRIC]);
    return device_ok(executor->backend.device, error);
}

void executor_zero(Executor *executor) {
    Device *device = executor->backend.device;
    for (int i = 0; i < executor->gap_count; i++) {
        ByteSpan gap = executor->gaps[i];
        device_fill(device, (char *)executor->arena[ARENA_GRADIENT] + gap.begin, 0, gap.end - gap.begin);
    }
    device_fill(device, executor->arena[ARENA_METRIC], 0, executor->bytes[ARENA_METRIC]);
    for (int part = 0; part < executor->part_count; part++) executor->overwrite[part] = true;
}
