/* Communication between the processes ("ranks") of one training run: groups of ranks, and collectives in one fixed
 * order.
 *
 * How a process was started is found in its environment: the torchrun variables RANK, WORLD_SIZE, LOCAL_RANK,
 * MASTER_ADDR, MASTER_PORT (also set by `smelt launch`), mpirun, or Slurm's variables; none of them means one
 * process. Between hosts and between CPU ranks bytes travel over MPI (opened at run time) or over TCP connections of
 * our own, whose ends recognise each other by SMELT_SECRET (comm/secret.h); between GPUs over NCCL or RCCL (opened at
 * run time), which is introduced over one of those.
 *
 * Order. All ranks of a group issue the same collectives with the same sizes in the same order, from one thread.
 * Each is queued and runs in issue order, beside the computing: on a GPU on a stream of its own, after what the
 * device's stream holds at that moment; on the CPU on one worker thread. The buffers belong to it until its ticket
 * was waited for. Groups of one process share the queue, so the order of issue must be possible for all ranks
 * together. A collective carries a sequence number, its name and its size; ranks that disagree on any of them get an
 * error, not wrong numbers.
 *
 * Bits. Sums are added in rank order, f32 in double, bf16 in fp32, and rounded once, so a layout gives the same bits
 * each time. NCCL and RCCL choose order and precision themselves, the same ones each time for one layout.
 *
 * Failures. A lost peer, a disagreement or a timeout shows late and stays: everything after it is skipped, buffers
 * are then undefined, and comm_ok tells, with ERROR_COMMUNICATION. A network that is away for less than
 * CommOptions.lost is survived.
 *
 * Calls come from one thread, but for comm_abort, comm_recent and the queries of rank and size, which any thread may
 * make. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "device/device.h"

typedef struct Comm Comm;
enum { COMM_GROUP_NAME = 32 }; /* bytes of a group's name */

typedef enum CommType { COMM_F32, COMM_F64, COMM_BF16, COMM_I64, COMM_U8 } CommType;
/* Of real numbers of 2, 4 or 8 bytes. */
static inline CommType comm_real_type(int64_t bytes) { return bytes == 8 ? COMM_F64 : bytes == 4 ? COMM_F32 : COMM_BF16; }
/* Sums of COMM_U8 wrap around; NaN in, NaN out. */
typedef enum CommReduce { COMM_SUM, COMM_MAX, COMM_MIN } CommReduce;
typedef int64_t CommTicket; /* of a queued collective; 0: nothing to wait for */

typedef enum CommTransport { COMM_AUTO, COMM_TCP, COMM_MPI } CommTransport;

typedef struct CommOptions {
    CommTransport transport; /* COMM_AUTO: MPI under mpirun, else TCP */
    double appear;           /* seconds for all ranks to appear at the start; 0: 300 */
    double lost;             /* seconds without a sign of life after which a peer is lost; 0: 60 */
    double timeout;          /* seconds that a collective waits for a peer that is alive; 0: 1800 */
    /* Is called with each environment variable that AMD recommends for the hardware of this node, before HIP and
     * RCCL are opened: shall set it unless the user did. NULL: the environment stays as it is. */
    void (*recommend)(const char *name, const char *value);
} CommOptions;

/* -- Groups -------------------------------------------------------------------------------------------------------- */

/* All ranks of the run. NULL options: the defaults. ERROR_USAGE (variables that contradict each other, no MPI),
 * ERROR_COMMUNICATION (a rank did not appear). */
Comm *comm_open(const CommOptions *options, Error *error);
/* A group of this process alone, on the CPU: always there, needs no closing. Every collective on it is done at once. */
Comm *comm_alone(void);
/* From now on buffers are memory of this device, which outlives the comm; until then, and without this call, the
 * CPU's. Collective; before comm_split. ERROR_USAGE when NCCL or RCCL is missing, ERROR_COMMUNICATION. */
bool comm_use_device(Comm *comm, Device *device, Error *error);
/* The ranks that gave the same colour, in their order in `comm`. Collective over `comm`. A negative colour joins
 * nobody and gets a group of its own. The group is closed before `comm`. NULL after a failure. */
Comm *comm_split(Comm *comm, int colour, const char *name, Error *error);
/* On GPUs the group's collectives run beside those of other groups, in the order of issue among themselves alone, and come
 * before kernels that wait for a place on the device: for transfers that computing waits for soon, or that wait for other
 * ranks' computing. Elsewhere nothing changes. NULL is fine. */
void comm_use_own_stream(Comm *comm);
/* Of the first group also ends the connections: call it on every rank, after the last collective. NULL and
 * comm_alone are fine. */
void comm_close(Comm *comm);

int comm_rank(const Comm *comm);
int comm_size(const Comm *comm);
/* How many ranks the environment says were started, before they have met; 0: it does not say, or is wrong. */
int comm_started_ranks(void);
/* Of this process in the whole run, whichever group is asked: its number on its node, ranks on the node, the node's
 * number, nodes. */
int comm_local_rank(const Comm *comm);
int comm_local_size(const Comm *comm);
int comm_node(const Comm *comm);
int comm_nodes(const Comm *comm);
/* For people: "4 ranks on 2 nodes over TCP, NCCL 2.21.5". */
void comm_describe(const Comm *comm, char *text, size_t size);

/* -- Collectives, queued ------------------------------------------------------------------------------------------- */

/* Counts and offsets are in elements; buffers are memory of the comm's device. `name` says in logs what travels
 * ("gradient.3"); at most 31 bytes are kept. `shards` has comm_size + 1 offsets into the buffer, ascending: shard r,
 * which belongs to rank r, is [shards[r], shards[r + 1]). Shards may differ in size and may be empty; equal ones are
 * fastest on GPUs. The array is copied. */

CommTicket comm_all_reduce(Comm *comm, const char *name, void *buffer, int64_t count, CommType type, CommReduce reduce);
/* In place: afterwards this rank's shard is reduced over all ranks; the other shards are undefined. */
CommTicket comm_reduce_scatter(Comm *comm, const char *name, void *buffer, const int64_t *shards, CommType type, CommReduce reduce);
/* The same, but the reduced shard goes to `result`, and the buffer stays as it is. Of more than one rank. */
CommTicket comm_reduce_scatter_to(
    Comm *comm, const char *name, const void *buffer, void *result, const int64_t *shards, CommType type, CommReduce reduce);
/* In place: every rank brings its shard and has all of them afterwards. */
CommTicket comm_all_gather(Comm *comm, const char *name, void *buffer, const int64_t *shards, CommType type);
CommTicket comm_broadcast(Comm *comm, const char *name, void *buffer, int64_t count, CommType type, int root);
/* Rank r gets shard r of `send`; what rank r sends lands in shard r of `receive`. */
CommTicket comm_all_to_all(Comm *comm, const char *name, const void *send, const int64_t *send_shards, void *receive,
    const int64_t *receive_shards, CommType type);
/* Only between the ranks that take part: sends to rank `to` and receives from rank `from` at once, so that rings do
 * not block; -1: no such half. */
CommTicket comm_exchange(Comm *comm, const char *name, const void *send, int64_t send_count, int to, void *receive, int64_t receive_count,
    int from, CommType type);

/* Collectives of one group that are queued between the two need nothing of each other, nor what the device's stream is
 * given between. On GPUs they are one launch then, and end together: the ticket of one is that of all. */
void comm_begin_together(Comm *comm);
void comm_end_together(Comm *comm);

/* What is queued on the device afterwards runs after this collective; on the CPU the caller waits for it. Tickets
 * may be waited for in any order, more than once. */
void comm_wait(Comm *comm, CommTicket ticket);
/* False after a failure, which it describes. */
bool comm_ok(Comm *comm, Error *error);

/* -- Collectives in host memory ------------------------------------------------------------------------------------ */

/* For small things that the host itself needs: scalars, names, agreement. They run over TCP or MPI also where the
 * device is a GPU, in the same order as all others, and are complete on return. False after a failure, which they
 * describe. */

bool comm_host_all_reduce(Comm *comm, const char *name, void *values, int64_t count, CommType type, CommReduce reduce, Error *error);
/* `values` has comm_size shards of `count` elements. */
bool comm_host_all_gather(Comm *comm, const char *name, void *values, int64_t count, CommType type, Error *error);
bool comm_host_broadcast(Comm *comm, const char *name, void *values, int64_t count, CommType type, int root, Error *error);
/* comm_host_broadcast that goes on beside the caller, until comm_wait for its ticket; comm_ok tells how it went. */
CommTicket comm_host_begin_broadcast(Comm *comm, const char *name, void *values, int64_t count, CommType type, int root);
bool comm_barrier(Comm *comm, const char *name, Error *error);

/* The first host of Slurm's compressed list ("node[07-12,15],login" is node07). False when it is not one. For
 * launchers. */
bool comm_first_host(const char *list, char *host, size_t size);
/* The number that a variable of the environment gives; one that is missing or empty changes nothing. ERROR_USAGE. */
bool comm_read_number(const char *name, long least, long most, int *number, Error *error);

/* -- Windows ------------------------------------------------------------------------------------------------------- */

/* Memory of each GPU of a group, on one node, that the group's other GPUs write: for collectives so small that they are
 * kernels of the device's own stream (ops/collective/gpu.c), which wait for nothing but each other. */
enum { COMM_MOST_WINDOWS = 8 /* ranks */ };
typedef struct CommWindows {
    int size, rank;
    void *window[COMM_MOST_WINDOWS]; /* of each rank, zeroed when it was opened, as this rank's kernels reach it */
    const uint32_t *stop;            /* not 0: the group has failed; kernels that wait end. Reached by host and device */
} CommWindows;
/* Opens windows of `bytes`, where there are none yet and all GPUs of the group reach each other; collective. False after a
 * failure of the group alone: comm_windows tells whether there are windows. */
bool comm_open_windows(Comm *comm, int64_t bytes, Error *error);
/* NULL: none. Of all ranks or of none. */
const CommWindows *comm_windows(const Comm *comm);

/* -- For the watchdog and for reports ------------------------------------------------------------------------------ */

/* Makes every collective of this process, queued or to come, of whatever group, fail with ERROR_COMMUNICATION and
 * `reason`. */
void comm_abort(Comm *comm, const char *reason);

typedef enum CommState { COMM_QUEUED, COMM_RUNNING, COMM_DONE, COMM_FAILED } CommState;
typedef struct CommRecord {
    char group[COMM_GROUP_NAME], operation[16], name[32];
    uint64_t sequence; /* in its group; exchanges have numbers of their own */
    int64_t bytes;     /* of this rank's buffer */
    CommState state;
    double queued, started, finished; /* log_seconds(); 0: not yet. On a GPU when it was issued and noticed to end */
} CommRecord;
enum { COMM_RECORDS = 64 };
/* The newest collectives of this process, all groups, newest first; returns how many. */
int comm_recent(Comm *comm, CommRecord *records, int most);

typedef struct CommTotals {
    int64_t collectives;
    int64_t bytes;  /* that this rank sent */
    double waited;  /* seconds in which the caller waited for those in host memory */
    double stalled; /* seconds in which the device's stream waited for those of GPUs, as far as it has come */
} CommTotals;
/* Of this process, all groups, since it started: take differences. On the thread that computes. */
CommTotals comm_totals(Comm *comm);
