/* Records of the collectives that a rank issues, in order, with the work between them. A rehearsal
 * (session/rehearsal.h) issues the collectives of a step over groups that move no data, only to
 * record them; a test records those of a real run. Two traces of one rank compare call by call.
 *
 * The owner frees a trace with trace_free. */
#pragma once

#include "comm/comm.h"

typedef enum Operation { ALL_REDUCE = 1, REDUCE_SCATTER, ALL_GATHER, BROADCAST, ALL_TO_ALL, EXCHANGE, BARRIER } Operation;
const char *operation_name(Operation operation);

typedef struct TraceGroup {
    char name[COMM_GROUP_NAME]; /* "cp.tp", as mesh_find_axes reads it */
    uint32_t id;
    int size, rank;
    int *ranks;      /* [size] in the run */
    bool own_stream; /* comm_use_own_stream */
} TraceGroup;

/* One collective as this rank issues it. Counts are in elements. */
typedef struct TraceCall {
    char name[32];
    Operation operation;
    CommType type;
    CommReduce reduce;
    int group;           /* index in Trace.groups */
    int root, to, from;  /* of a broadcast and of an exchange */
    int64_t count, sent; /* of the whole collective; an exchange receives `count` and sends `sent` */
    uint64_t shards;     /* hash of the ranks' shares; 0: none, or they depend on the data (ALL_TO_ALL) */
    bool host;           /* in host memory */
    bool joined;         /* part of the launch of the call before (comm_begin_together) */
} TraceCall;

typedef enum TraceAct {
    TRACE_COMPUTE, /* `amount` seconds of work */
    TRACE_CALL,    /* issues calls[call] */
    TRACE_WAIT,    /* later work follows the end of calls[call] */
    TRACE_MEET,    /* all ranks meet on the host, as they do to add up a step's loss */
    TRACE_STEP,    /* a step begins */
    TRACE_COPY,    /* copies `amount` bytes between device and host on copy stream `stream` */
    TRACE_RECORD,  /* marker `call` happens when the stream has done its work so far */
    TRACE_FOLLOW,  /* later work of the stream follows marker `call` */
} TraceAct;
/* Streams of copies, and markers that order them with the rank's work (TRACE_MAIN). */
enum { TRACE_MAIN = -1, TRACE_COPY_STREAMS = 8, TRACE_MARKERS = 64 };
typedef struct TraceEvent {
    TraceAct act;
    int call, stream;
    double amount; /* seconds, or bytes of a copy */
} TraceEvent;

typedef struct Trace {
    TraceGroup *groups;
    TraceCall *calls;
    TraceEvent *events;
    int group_count, call_count, event_count;
    size_t call_room, event_room;
    bool together, joins; /* between comm_begin_together and comm_end_together; and after the first call there */
} Trace;
void trace_free(Trace *trace);
/* Forgets calls and events; groups stay. */
void trace_clear(Trace *trace);
/* Append an event. Work without calls in between is one event. */
void trace_compute(Trace *trace, double seconds);
void trace_mark(Trace *trace, TraceAct act);
void trace_copy(Trace *trace, int stream, double bytes);
void trace_order(Trace *trace, TraceAct act, int marker, int stream); /* TRACE_RECORD, TRACE_FOLLOW */

/* Returns the bytes that an element takes. */
int64_t trace_type_bytes(CommType type);
/* Returns the bytes that this rank sends to others, as Traffic.bytes counts them (graph/op.h). */
double trace_sent_bytes(const Trace *trace, const TraceCall *call);
/* Writes "all_gather 'weights.3' of 4096 bf16 in group cp.tp". */
enum { TRACE_TEXT = 192 };
void trace_describe(const Trace *trace, const TraceCall *call, char text[TRACE_TEXT]);
/* Returns whether ranks that issue `a` and `b` in one group as the same number take part in one
 * collective. The calls of an exchange are compared with their other ends instead. */
bool trace_calls_agree(const TraceCall *a, const TraceCall *b);
/* Returns whether the send of `a` is what `b` receives. */
bool trace_ends_agree(const TraceCall *a, const TraceCall *b);

/* Opens the group of all `size` ranks for a rehearsal by `rank`: collectives are recorded and do
 * nothing else. comm_split cannot divide it. Close it with comm_close. */
Comm *comm_rehearse(Trace *trace, int rank, int size);
bool comm_is_rehearsal(const Comm *comm);
/* Returns the group of these ranks, which include the rehearsing one. */
Comm *comm_rehearse_group(Comm *comm, const int *ranks, int size, const char *name);
