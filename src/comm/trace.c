/* Traces of collectives: recorded from tasks, compared, described. Owns nothing but what trace_free
 * frees. comm.c notes every task while its engine has a trace; in a rehearsal nothing else happens
 * to the task. */
#include "comm/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/hash.h"
#include "base/memory.h"
#include "comm/comm_internal.h"

static const char *const type_names[] = {
    [COMM_F32] = "fp32", [COMM_F64] = "fp64", [COMM_BF16] = "bf16", [COMM_I64] = "int64", [COMM_U8] = "bytes"};

int64_t trace_type_bytes(CommType type) { return type_bytes(type); }

void trace_free(Trace *trace) {
    for (int i = 0; i < trace->group_count; i++) free(trace->groups[i].ranks);
    free(trace->groups);
    free(trace->calls);
    free(trace->events);
    *trace = (Trace){0};
}

void trace_clear(Trace *trace) { trace->call_count = trace->event_count = 0; }

static void append_event(Trace *trace, TraceEvent event) {
    array_reserve(trace->events, trace->event_room, (size_t)trace->event_count + 1);
    trace->events[trace->event_count++] = event;
}

void trace_compute(Trace *trace, double seconds) {
    TraceEvent *last = trace->event_count ? &trace->events[trace->event_count - 1] : NULL;
    if (last && last->act == TRACE_COMPUTE) last->amount += seconds;
    else append_event(trace, (TraceEvent){.act = TRACE_COMPUTE, .amount = seconds});
}

void trace_mark(Trace *trace, TraceAct act) { append_event(trace, (TraceEvent){.act = act}); }

void trace_copy(Trace *trace, int stream, double bytes) {
    append_event(trace, (TraceEvent){.act = TRACE_COPY, .stream = stream, .amount = bytes});
}

void trace_order(Trace *trace, TraceAct act, int marker, int stream) {
    append_event(trace, (TraceEvent){.act = act, .call = marker, .stream = stream});
}

/* -- Recording ----------------------------------------------------------------------------------------------------- */

/* Returns the index of the comm's group in the trace, which it joins now if it is new. */
static int group_of(Trace *trace, const Comm *comm) {
    for (int i = trace->group_count; i-- > 0;)
        if (trace->groups[i].id == comm->id) return i;
    TraceGroup group = {.id = comm->id, .size = comm->size, .rank = comm->rank};
    size_t bytes = (size_t)comm->size * sizeof *group.ranks;
    memcpy(group.name, comm->name, sizeof group.name);
    group.ranks = memory_allocate(bytes);
    memcpy(group.ranks, comm->ranks, bytes);
    array_append(trace->groups, trace->group_count, group);
    return trace->group_count - 1;
}

static TraceCall call_of_task(const Task *task, int group, bool host) {
    bool exchange = task->operation == EXCHANGE, uneven = task->operation == ALL_TO_ALL;
    TraceCall call = {.operation = task->operation,
        .type = task->type,
        .reduce = task->reduce,
        .group = group,
        .root = task->root,
        .to = exchange ? task->to : -1,
        .from = exchange ? task->from : -1,
        .count = task->count,
        .sent = task->send_count,
        .host = host};
    memcpy(call.name, task->name, sizeof call.name);
    if (task->shards && !uneven) call.shards = hash_bytes(task->shards, (size_t)(task->comm->size + 1) * sizeof *task->shards);
    return call;
}

int trace_note(Trace *trace, const Task *task, bool host) {
    TraceCall call = call_of_task(task, group_of(trace, task->comm), host);
    call.joined = trace->together && trace->joins;
    trace->joins = trace->together;
    array_reserve(trace->calls, trace->call_room, (size_t)trace->call_count + 1);
    trace->calls[trace->call_count] = call;
    append_event(trace, (TraceEvent){.act = TRACE_CALL, .call = trace->call_count});
    return ++trace->call_count;
}

void trace_wait(Trace *trace, CommTicket ticket) { append_event(trace, (TraceEvent){.act = TRACE_WAIT, .call = (int)ticket - 1}); }

void trace_join(Trace *trace, bool together) {
    trace->together = together;
    trace->joins = false;
}

void trace_use_own_stream(Trace *trace, const Comm *comm) { trace->groups[group_of(trace, comm)].own_stream = true; }

/* -- Comparing ----------------------------------------------------------------------------------------------------- */

double trace_sent_bytes(const Trace *trace, const TraceCall *call) {
    double size = trace->groups[call->group].size, bytes = (double)(call->count * type_bytes(call->type)), others = (size - 1) / size;
    switch (call->operation) {
    case ALL_REDUCE: return 2 * bytes * others;
    case REDUCE_SCATTER:
    case ALL_GATHER:
    case BROADCAST: return bytes * others;
    case ALL_TO_ALL: return (double)(call->sent * type_bytes(call->type)) * others;
    case EXCHANGE: return (double)(call->sent * type_bytes(call->type));
    case BARRIER: return 0;
    }
    return 0;
}

void trace_describe(const Trace *trace, const TraceCall *call, char text[TRACE_TEXT]) {
    const TraceGroup *group = &trace->groups[call->group];
    const char *type = type_names[call->type], *operation = operation_name(call->operation);
    if (call->operation == ALL_TO_ALL) snprintf(text, TRACE_TEXT, "%s '%s' of %s in group %s", operation, call->name, type, group->name);
    else if (call->operation != EXCHANGE)
        snprintf(text, TRACE_TEXT, "%s '%s' of %lld %s in group %s", operation, call->name, (long long)call->count, type, group->name);
    else {
        char to[48] = "", from[48] = "";
        if (call->to >= 0) snprintf(to, sizeof to, ", sends %lld to rank %d", (long long)call->sent, group->ranks[call->to]);
        if (call->from >= 0) snprintf(from, sizeof from, ", receives %lld from rank %d", (long long)call->count, group->ranks[call->from]);
        snprintf(text, TRACE_TEXT, "%s '%s' of %s in group %s%s%s", operation, call->name, type, group->name, to, from);
    }
}

static bool are_same_kind(const TraceCall *a, const TraceCall *b) {
    return a->operation == b->operation && a->type == b->type && a->host == b->host && !strcmp(a->name, b->name);
}

bool trace_calls_agree(const TraceCall *a, const TraceCall *b) {
    bool sized = a->operation == ALL_TO_ALL || (a->count == b->count && a->shards == b->shards);
    return are_same_kind(a, b) && a->reduce == b->reduce && a->root == b->root && sized;
}

bool trace_ends_agree(const TraceCall *a, const TraceCall *b) { return are_same_kind(a, b) && a->sent == b->count; }

/* -- Rehearsals ---------------------------------------------------------------------------------------------------- */

Comm *comm_rehearse(Trace *trace, int rank, int size) {
    CommEngine *engine = memory_allocate(sizeof *engine);
    engine->trace = trace;
    engine->rehearsal = true;
    Comm *comm = comm_new_group(engine, 0, "all", rank, size);
    for (int i = 0; i < size; i++) comm->ranks[i] = i;
    return comm;
}

bool comm_is_rehearsal(const Comm *comm) { return comm->engine && comm->engine->rehearsal; }

Comm *comm_rehearse_group(Comm *comm, const int *ranks, int size, const char *name) {
    Trace *trace = comm->engine->trace;
    int rank = 0;
    while (ranks[rank] != comm->ranks[comm->rank]) rank++;
    group_of(trace, comm); /* the group of all ranks has the id 0 */
    Comm *group = comm_new_group(comm->engine, (uint32_t)trace->group_count, name, rank, size);
    memcpy(group->ranks, ranks, (size_t)size * sizeof *ranks);
    group_of(trace, group);
    return group;
}
