/* What the files of src/comm share. comm.c holds groups and the public functions, queue.c the worker that runs
 * collectives in order, host.c the collectives over messages, reduce.c the sums, tcp.c and mpi.c the messages,
 * tcp_meet.c how ranks find each other over authenticated channels (secret.c, channel.c, acceptor.c), nccl.c the
 * collectives of GPUs, windows.c memory that GPUs write in each other, nccl_settings.c the environment that RCCL should find, place.c the place of this process in the
 * run. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "comm/comm.h"
#include "comm/secret.h"

/* -- Where this process stands in the run (place.c) ---------------------------------------------------------------- */

enum { PLACE_TEXT = 256 };
typedef struct Place {
    CommTransport transport; /* COMM_AUTO: one process */
    int rank, size;
    int local_rank;        /* -1: to be counted */
    char node[PLACE_TEXT]; /* ranks with the same text share a node */
    char address[PLACE_TEXT];
    int port;      /* of rank 0, for COMM_TCP */
    uint64_t job;  /* of Slurm or torchrun: ranks of another job have another */
    Secret secret; /* for COMM_TCP: what the ranks of this run know, and nobody else */
} Place;
bool place_find(CommTransport wanted, Place *place, Error *error);

/* -- Messages (tcp.c, mpi.c) --------------------------------------------------------------------------------------- */

typedef enum Operation { ALL_REDUCE = 1, REDUCE_SCATTER, ALL_GATHER, BROADCAST, ALL_TO_ALL, EXCHANGE, BARRIER } Operation;

enum { NAME_BYTES = 32 };
/* Travels before every message, so that ranks which disagree find out. Same byte order everywhere. */
typedef struct Label {
    uint32_t magic, group;
    uint64_t sequence;
    int64_t total, bytes;                   /* of the whole collective (0: differs among ranks), of this message */
    uint8_t operation, type, reduce, phase; /* phase: of a collective that takes several rounds of messages */
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
    int64_t moved; /* of label and data together, by the transport */
} Transfer;

typedef struct Interval { int64_t start, count; } Interval; /* of elements */
static inline Interval shard_of(const int64_t *shards, int rank) { return (Interval){shards[rank], shards[rank + 1] - shards[rank]}; }

struct Engine;
/* One way for messages to travel. Used by one thread at a time. Messages of one pair of ranks arrive in order. */
typedef struct Transport {
    const char *name;
    /* All transfers at once, at most one to and one from each peer; returns when all are complete. Fails when a
     * label is not the expected one, a peer is lost, or engine_stopped says so. */
    bool (*exchange)(struct Transport *transport, Transfer *transfers, int count, Error *error);
    /* Between collectives: whether all peers live. */
    bool (*watch)(struct Transport *transport, Error *error);
    void (*close)(struct Transport *transport, bool orderly);
    struct Engine *engine;
} Transport;
/* Connects all ranks of the run with each other (tcp_meet.c): they meet at rank 0's address and port, which tells
 * everyone where the others listen. Returns one socket for each rank (-1 for this one), which the caller closes and
 * frees. ERROR_COMMUNICATION when one has not appeared in options->appear seconds. */
int *tcp_meet(const Place *place, const CommOptions *options, Error *error);
Transport *tcp_open(struct Engine *engine, Error *error);
Transport *mpi_open(struct Engine *engine, Error *error); /* completes engine->place */
/* Whether the received label is as expected; else says who is where. */
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
    char *buffer;                        /* in place; of ALL_TO_ALL and EXCHANGE what is received */
    char *result;                        /* of REDUCE_SCATTER: where this rank's shard goes; NULL: in place */
    const char *send;
    int64_t count, send_count;           /* elements */
    const int64_t *shards, *send_shards; /* owned once queued */
    int root, to, from;
} Task;

/* What all groups of a process share. */
typedef struct Engine {
    Place place;
    CommOptions options;
    Transport *transport; /* NULL: one process */
    int nodes, node, local_rank, local_size;

    pthread_t worker;
    pthread_mutex_t lock; /* of all below */
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
    struct Nccl *nccl;        /* NULL: all collectives are the worker's */
    _Atomic(uint32_t *) stop; /* CommWindows.stop of all groups; NULL: no group has windows */
} Engine;

struct Comm {
    Engine *engine; /* NULL: comm_alone */
    uint32_t id;
    char name[COMM_GROUP_NAME];
    int rank, size;
    int *ranks; /* in the run */
    uint64_t sequence, splits;
    uint64_t *sent, *received; /* exchanges with each rank */
    void *nccl;                /* the library's communicator; NULL: none */
    DeviceStream *stream;      /* of its own for GPUs; NULL: that of all groups */
    CommWindows *windows;      /* NULL: none */
};

void engine_start(Engine *engine);
void engine_stop(Engine *engine); /* after everything queued */
/* Gives the task its ticket and its place in the records, and owns it from now on. */
CommTicket engine_queue(Engine *engine, Task *task);
/* Until the ticket's collective is done or failed. */
void engine_wait(Engine *engine, CommTicket ticket);
/* Notes the first failure; every later collective is skipped. */
void engine_fail(Engine *engine, const Error *error);
/* False after a failure, which it describes. */
bool engine_ok(Engine *engine, Error *error);
/* Whether waiting since `since` (log_seconds) must end: aborted or over the time. */
bool engine_stopped(Engine *engine, double since, const Transfer *transfer, Error *error);
/* For collectives that run elsewhere: takes the record's number, and notes how it goes. */
int64_t engine_record(Engine *engine, const Task *task, CommState state);
void engine_record_state(Engine *engine, int64_t record, CommState state);
void task_free(Task *task);
/* What this rank sends to a peer and receives from it in an ALL_TO_ALL or EXCHANGE; a count of -1: no message. */
Interval task_sends(const Task *task, int peer);
Interval task_receives(const Task *task, int peer);
int64_t task_bytes(const Task *task);
const char *operation_name(Operation operation);

/* -- Collectives of GPUs (nccl.c) ---------------------------------------------------------------------------------- */

/* Opens the library that suits the engine's device. ERROR_USAGE. */
bool nccl_open(Engine *engine, Error *error);
void nccl_close(Engine *engine);
/* Introduces the group's ranks to each other; collective. */
bool nccl_join(Comm *comm, Error *error);
void nccl_leave(Comm *comm);
/* Issues the collective and frees the task. Its ticket is negative. */
CommTicket nccl_queue(Task *task);
void nccl_wait(Engine *engine, CommTicket ticket);
/* What is queued between the two is one launch, and has one ticket. */
void nccl_begin_together(Engine *engine);
void nccl_end_together(Engine *engine);
/* In which the device's stream waited, as far as it has come. On the thread that computes. */
double nccl_seconds_stalled(Engine *engine);
/* On the worker, now and then: notes what is done, and what failed or takes too long; after a failure ends all that
 * still runs. */
void nccl_watch(Engine *engine);
/* "NCCL 2.21.5" */
void nccl_describe(const Engine *engine, char *text, size_t size);

/* -- Windows (windows.c) ------------------------------------------------------------------------------------------- */

/* On the worker, after a failure: ends the kernels that wait. */
void windows_stop(Engine *engine);
/* Those of a group; NULL is fine. */
void windows_close(Comm *comm);
/* After the groups' were closed. */
void windows_end(Engine *engine);

/* -- Settings (nccl_settings.c) ------------------------------------------------------------------------------------ */

/* Calls `recommend` (NULL: nothing is done) with the environment variables that AMD recommends, for the hardware
 * whose files are below `root` ("" in life). */
void settings_recommend(const char *root, void (*recommend)(const char *name, const char *value));
/* RCCL's channels, where fewer than 8 MI300X of a node take part. */
void settings_recommend_ranks(const Device *device, int local_size, void (*recommend)(const char *name, const char *value));
/* "NAME=value NAME=value ...", of all settings that this process has, for people. */
void settings_describe(char *text, size_t size);

/* -- Collectives over messages (host.c, reduce.c) ------------------------------------------------------------------ */

int64_t type_bytes(CommType type);
bool host_run(const Task *task, Error *error);
/* result[i] = input[0][i] + input[1][i] ... added in this order. `result` may be one of the inputs. */
void reduce_inputs(CommType type, CommReduce reduce, int64_t count, int inputs, const void *const *input, void *result);
