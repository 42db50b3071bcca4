/* Shared by the files of src/comm. comm.c has groups and the public functions, queue.c the worker
 * that runs collectives in order, host.c the collectives over messages, reduce.c the sums, tcp.c
 * and mpi.c the messages, tcp_meet.c the rendezvous of ranks over authenticated channels (secret.c,
 * channel.c, acceptor.c), nccl.c the collectives of GPUs, windows.c the memory that GPUs write in
 * each other, nccl_settings.c the recommended environment of RCCL, place.c the place of this
 * process in the run, trace.c records of collectives. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "comm/comm.h"
#include "comm/secret.h"
#include "comm/trace.h"

/* -- Where this process stands in the run (place.c) ---------------------------------------------------------------- */

enum { PLACE_TEXT = 256 };
typedef struct Place {
    CommTransport transport; /* COMM_AUTO: one process */
    int rank, size;
    int local_rank;        /* -1: to be counted */
    char node[PLACE_TEXT]; /* ranks with the same text share a node */
    char address[PLACE_TEXT];
    int port;      /* of rank 0, for COMM_TCP */
    uint64_t job;  /* id of the Slurm or torchrun job, which differs between jobs */
    Secret secret; /* for COMM_TCP: known only to the ranks of this run */
} Place;
bool place_find(CommTransport wanted, Place *place, Error *error);

/* -- Messages (tcp.c, mpi.c) --------------------------------------------------------------------------------------- */

enum { NAME_BYTES = 32 };
/* Precedes every message, so that ranks that disagree find out. All hosts have the same byte
 * order. */
typedef struct Label {
    uint32_t magic, group;
    uint64_t sequence;
    int64_t total, bytes;                   /* of the whole collective (0: differs among ranks), of this message */
    uint8_t operation, type, reduce, phase; /* phase: round of a collective that takes several rounds of messages */
    uint32_t unused;
    char name[NAME_BYTES];
} Label;
_Static_assert(sizeof(Label) == 72, "labels have no padding: they are the same on every host");
enum { LABEL_MAGIC = 0x736d6c74 };

typedef struct Transfer {
    bool receive;
    int peer; /* rank in the run */
    char *data;
    int64_t bytes;
    Label label;   /* as sent, or as expected */
    Label seen;    /* as received */
    int64_t moved; /* bytes of label and data together that the transport has moved */
} Transfer;

typedef struct ByteInterval { int64_t start, count; } ByteInterval; /* of elements */
static inline ByteInterval shard_of(const int64_t *shards, int rank) {
    return (ByteInterval){shards[rank], shards[rank + 1] - shards[rank]};
}

struct CommEngine;
/* A transport for messages. Used by one thread at a time. Messages between two ranks arrive in
 * order. */
typedef struct Transport {
    const char *name;
    /* Runs all transfers at once, at most one to and one from each peer; returns when all are
     * complete. Fails if a label is not the expected one, a peer is lost, or engine_stopped returns
     * true. */
    bool (*exchange)(struct Transport *transport, Transfer *transfers, int count, Error *error);
    /* Called between collectives: returns whether all peers are alive. */
    bool (*watch)(struct Transport *transport, Error *error);
    void (*close)(struct Transport *transport, bool orderly);
    struct CommEngine *engine;
} Transport;
/* Connects all ranks of the run with each other (tcp_meet.c). They meet at rank 0's address and
 * port, and rank 0 tells everyone where the others listen. Returns one socket per rank (-1 for this
 * one), which the caller closes and frees. ERROR_COMMUNICATION if a rank has not appeared after
 * options->appear seconds. */
int *tcp_meet(const Place *place, const CommOptions *options, Error *error);
Transport *tcp_open(struct CommEngine *engine, Error *error);
Transport *mpi_open(struct CommEngine *engine, Error *error); /* completes engine->place */
/* Returns whether the received label is the expected one; if not, the error says where each rank
 * is. */
bool label_check(const Transfer *transfer, Error *error);

/* -- The queue (queue.c) ------------------------------------------------------------------------------------------- */

typedef struct Task {
    struct Task *next;
    Comm *comm;
    CommTicket ticket;
    Operation operation;
    CommType type;
    CommReduce reduce;
    char name[NAME_BYTES];
    uint64_t sequence, receive_sequence; /* these differ for exchanges only */
    int64_t record;                      /* its number among all records */
    char *buffer;                        /* in place; for ALL_TO_ALL and EXCHANGE the receive buffer */
    char *result;                        /* for REDUCE_SCATTER: destination of this rank's shard; NULL: in place */
    const char *send;
    int64_t count, send_count;           /* elements */
    const int64_t *shards, *send_shards; /* owned once queued */
    int root, to, from;
} Task;

/* Shared by all groups of a process. */
typedef struct CommEngine {
    Place place;
    CommOptions options;
    Transport *transport; /* NULL: one process */
    int nodes, node, local_rank, local_size;

    pthread_t worker;
    pthread_mutex_t lock; /* protects everything below */
    pthread_cond_t queued, finished;
    bool working, closing;
    Task *first, *last;
    CommTicket issued, completed;
    Error failure;
    atomic_bool failed;
    CommRecord records[COMM_RECORDS];
    int64_t recorded;
    CommTotals totals;

    Device *device;
    struct Nccl *nccl;        /* NULL: the worker runs all collectives */
    Trace *trace;             /* records all collectives, in a rehearsal or for a test; NULL: none */
    bool rehearsal;           /* collectives are only recorded: the engine has no transport and no worker */
    _Atomic(uint32_t *) stop; /* CommWindows.stop of all groups; NULL: no group has windows */
} CommEngine;

struct Comm {
    CommEngine *engine; /* NULL: comm_alone */
    uint32_t id;
    char name[COMM_GROUP_NAME];
    int rank, size;
    int *ranks; /* in the run */
    uint64_t sequence, splits;
    uint64_t *sent, *received; /* exchanges with each rank so far */
    void *nccl;                /* the library's communicator; NULL: none */
    DeviceStream *stream;      /* the group's own stream on GPUs; NULL: the stream that groups share */
    CommWindows *windows;      /* NULL: none */
};

void engine_start(CommEngine *engine);
void engine_stop(CommEngine *engine); /* after everything queued */
/* Takes ownership of the task and gives it a ticket and a record. */
CommTicket engine_queue(CommEngine *engine, Task *task);
/* Waits until the ticket's collective is done or has failed. */
void engine_wait(CommEngine *engine, CommTicket ticket);
/* Stores the first failure; all later collectives are skipped. */
void engine_fail(CommEngine *engine, const Error *error);
/* Returns false after a failure and describes it. */
bool engine_ok(CommEngine *engine, Error *error);
/* Returns whether waiting since `since` (log_seconds) must end, because of an abort or a
 * timeout. */
bool engine_stopped(CommEngine *engine, double since, const Transfer *transfer, Error *error);
/* For collectives that run elsewhere: returns the record's number. engine_record_state updates the
 * record. */
int64_t engine_record(CommEngine *engine, const Task *task, CommState state);
void engine_record_state(CommEngine *engine, int64_t record, CommState state);
void task_free(Task *task);
/* Return the elements that this rank sends to or receives from a peer in an ALL_TO_ALL or EXCHANGE;
 * a count of -1: no message. */
ByteInterval task_sends(const Task *task, int peer);
ByteInterval task_receives(const Task *task, int peer);

/* -- Traces (trace.c) ---------------------------------------------------------------------------------------------- */

/* Notes a task and returns its number from 1. */
int trace_note(Trace *trace, const Task *task, bool host);
void trace_wait(Trace *trace, CommTicket ticket);
/* Brackets tasks that form one launch. */
void trace_join(Trace *trace, bool together);
void trace_use_own_stream(Trace *trace, const Comm *comm);
/* Returns a group whose ranks in the run the caller fills in (comm.c). */
Comm *comm_new_group(CommEngine *engine, uint32_t id, const char *name, int rank, int size);

/* -- Collectives of GPUs (nccl.c) ---------------------------------------------------------------------------------- */

/* Opens NCCL or RCCL, as the engine's device requires. ERROR_USAGE. */
bool nccl_open(CommEngine *engine, Error *error);
void nccl_close(CommEngine *engine);
/* Introduces the group's ranks to each other; collective. */
bool nccl_join(Comm *comm, Error *error);
void nccl_leave(Comm *comm);
/* Issues the collective and frees the task. Its ticket is negative. */
CommTicket nccl_queue(Task *task);
void nccl_wait(CommEngine *engine, CommTicket ticket);
/* Collectives queued between these calls form one launch with one ticket. */
void nccl_begin_together(CommEngine *engine);
void nccl_end_together(CommEngine *engine);
/* Returns the seconds that the device's stream waited, as far as it has run. Call it on the compute
 * thread. */
double nccl_seconds_stalled(CommEngine *engine);
/* Called periodically on the worker: notes collectives that are done, have failed or take too long.
 * After a failure it ends all that still run. */
void nccl_watch(CommEngine *engine);
/* "NCCL 2.21.5" */
void nccl_describe(const CommEngine *engine, char *text, size_t size);

/* -- Windows (windows.c) ------------------------------------------------------------------------------------------- */

/* Called on the worker after a failure: ends the kernels that wait. */
void windows_stop(CommEngine *engine);
/* Closes a group's windows; NULL is fine. */
void windows_close(Comm *comm);
/* Call it after all groups' windows were closed. */
void windows_end(CommEngine *engine);

/* -- Settings (nccl_settings.c) ------------------------------------------------------------------------------------ */

/* Calls `recommend` with each environment variable that AMD recommends for the hardware whose files
 * are below `root` ("" in production). NULL: does nothing. */
void settings_recommend(const char *root, void (*recommend)(const char *name, const char *value));
/* Recommends RCCL's number of channels if fewer than 8 MI300X of a node take part. */
void settings_recommend_ranks(const Device *device, int local_size, void (*recommend)(const char *name, const char *value));
/* Writes "NAME=value NAME=value ..." with all settings that are in this process's environment, for
 * people. */
void settings_describe(char *text, size_t size);

/* -- Collectives over messages (host.c, reduce.c) ------------------------------------------------------------------ */

int64_t type_bytes(CommType type);
bool host_run(const Task *task, Error *error);
/* Computes result[i] = input[0][i] + input[1][i] ... in this order. `result` may be one of the
 * inputs. */
void reduce_inputs(CommType type, CommReduce reduce, int64_t count, int inputs, const void *const *input, void *result);
