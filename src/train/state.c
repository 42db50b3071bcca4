/* A session as a checkpoint: every parameter in the WIDE type under its own name, optimizer state under optimizer/KIND/NAME, and the step. The data
 * cursor and the schedule are functions of step and configuration, so nothing else is needed to continue bit for bit. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "ckpt/ckpt.h"
#include "train/session.h"

static Interval parameter_interval(const Graph *graph, int index, char *name, void *data) {
    const Parameter *p = &graph->parameters[index];
    Interval interval = {.name = name, .type = graph->precision == PRECISION_FP64 ? STORED_F64 : STORED_F32, .rank = p->rank, .count = p->count, .data = data};
    memcpy(interval.shape, p->shape, sizeof p->shape);
    return interval;
}

static void *element(const Graph *graph, void *arena, int64_t offset) {
    return (char *)arena + offset * precision_bytes(graph->precision, TYPE_WIDE);
}

/* Intervals of tensors in memory of a device; their data are views of it. */
typedef struct IntervalList { Interval *items; void **memory; size_t count; } IntervalList;

static void append(IntervalList *list, Interval interval) {
    list->items = memory_resize(list->items, (list->count + 1) * sizeof *list->items);
    list->memory = memory_resize(list->memory, (list->count + 1) * sizeof *list->memory);
    list->memory[list->count] = interval.data;
    list->items[list->count++] = interval;
}

static void append_weights(IntervalList *list, const Graph *graph, void *master) {
    for (int i = 0; i < graph->parameter_count; i++)
        append(list, parameter_interval(graph, i, memory_copy_string(graph->parameters[i].name), element(graph, master, graph->parameters[i].offset)));
}

static void append_optimizer(IntervalList *list, const Graph *graph, const Optimizer *optimizer) {
    size_t count = optimizer_states(optimizer, NULL, 0);
    OptimizerState *states = memory_allocate((count + 1) * sizeof *states);
    optimizer_states(optimizer, states, count);
    for (size_t i = 0; i < count; i++) {
        char *name = memory_format("optimizer/%s/%s", states[i].kind, graph->parameters[states[i].parameter].name);
        append(list, parameter_interval(graph, states[i].parameter, name, states[i].data));
    }
    free(states);
}

static int64_t interval_bytes(const Interval *interval) { return interval->count * (interval->type == STORED_F64 ? 8 : 4); }

static bool list_view(IntervalList *list, Device *device, ViewAccess access, Error *error) {
    for (size_t i = 0; i < list->count; i++) list->items[i].data = NULL;
    for (size_t i = 0; i < list->count; i++) {
        list->items[i].data = device_view(device, list->memory[i], interval_bytes(&list->items[i]), access, error);
        if (!list->items[i].data) return error_context(error, "the host's copy of %s", list->items[i].name);
    }
    return device_ok(device, error);
}

/* What was loaded goes to the device with VIEW_WRITE. */
static void list_free(IntervalList *list, Device *device, ViewAccess access) {
    for (size_t i = 0; i < list->count; i++) {
        device_view_close(device, list->items[i].data, list->memory[i], interval_bytes(&list->items[i]), access);
        free((char *)list->items[i].name);
    }
    free(list->items);
    free(list->memory);
}

static IntervalList session_intervals(const Session *session) {
    IntervalList list = {0};
    append_weights(&list, session->model.graph, executor_arena(session->executor, ARENA_MASTER));
    append_optimizer(&list, session->model.graph, session->optimizer);
    return list;
}

bool session_save(Session *session, double *seconds, int64_t *bytes, Error *error) {
    const Config *config = session->config;
    IntervalList list = session_intervals(session);
    json_t *metadata = json_pack("{s:I, s:I}", "step", (json_int_t)session->step, "samples",
                                 (json_int_t)schedule_samples_before(&config->batch, config->data.length, session->step + 1));
    CheckpointStats stats = {0};
    Device *device = session->backend.device;
    bool saved = list_view(&list, device, VIEW_READ, error) && checkpoint_save(config->run, session->step, list.items, list.count, metadata, (int)config->checkpoint_keep, &stats, error);
    json_decref(metadata);
    list_free(&list, device, VIEW_READ);
    *seconds = stats.seconds;
    *bytes = stats.bytes;
    return saved;
}

/* -1 with *failed when checkpoints exist but none is good; -1 alone when there is none. */
static int64_t newest(const char *run, bool *failed, Error *error) {
    *failed = false;
    return checkpoint_latest(run, failed, error);
}

bool session_resume(Session *session, Error *error) {
    bool failed;
    int64_t step = newest(session->config->run, &failed, error);
    if (failed) return false;
    if (step < 0) return true;
    IntervalList list = session_intervals(session);
    Device *device = session->backend.device;
    bool loaded = list_view(&list, device, VIEW_WRITE, error) && checkpoint_load(session->config->run, step, list.items, list.count, NULL, error);
    list_free(&list, device, VIEW_WRITE);
    if (!loaded) return false;
    session->step = step;
    model_cast_weights(session->model.graph, device, executor_arena(session->executor, ARENA_MASTER), executor_arena(session->executor, ARENA_WEIGHT));
    return true;
}

bool session_load_weights(const Graph *graph, const char *run, void *master, int64_t *step, Error *error) {
    bool failed;
    *step = newest(run, &failed, error);
    if (failed) return false;
    if (*step < 0) return error_set(error, ERROR_CHECKPOINT, "%s has no checkpoint: train it first, or give another folder", run);
    IntervalList list = {0};
    append_weights(&list, graph, master);
    bool loaded = checkpoint_load(run, *step, list.items, list.count, NULL, error);
    list_free(&list, device_cpu(), VIEW_WRITE);
    return loaded;
}
