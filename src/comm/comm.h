/* Communication between the processes ("ranks") of one training run: groups of ranks, and
 * collectives in one fixed order.
 *
 * The environment says how a process was started: the torchrun variables RANK, WORLD_SIZE,
 * LOCAL_RANK, MASTER_ADDR, MASTER_PORT (also set by `smelt launch`), mpirun, or Slurm's variables.
 * Without any of them the run is one process. Hosts and CPU ranks exchange bytes over MPI (opened
 * at run time) or over our own TCP connections, whose ends authenticate each other by SMELT_SECRET
 * (comm/secret.h). GPUs use NCCL or RCCL (opened at run time); its ranks are introduced over MPI or
 * TCP.
 *
 * Order. All ranks of a group issue the same collectives with the same sizes in the same order,
 * from one thread. Collectives are queued and run in issue order, concurrently with compute. On a
 * GPU they run on their own stream, after all work that the device's stream holds at issue. On the
 * CPU they run on one worker thread. A collective owns its buffers until the caller has waited for
 * its ticket. The groups of a process share the queue, so all ranks together must be able to follow
 * the issue order. A collective carries a sequence number, its name and its size; ranks that
 * disagree on one of them get an error, not wrong numbers.
 *
 * Bits. Sums are added in rank order (f32 in double, bf16 in fp32) and rounded once, so a layout
 * gives the same bits each time. NCCL and RCCL choose order and precision themselves, but always
 * the same ones for one layout.
 *
 * Failures. A lost peer, a disagreement or a timeout is detected late and is permanent: all later
 * collectives are skipped, their buffers are undefined, and comm_ok reports ERROR_COMMUNICATION. A
 * network outage shorter than CommOptions.lost is survived.
 *
 * All calls come from one thread, except comm_abort, comm_recent and the queries of rank and size,
 * which any thread may make. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "device/device.h"

typedef struct Comm Comm;
enum { COMM_GROUP_NAME = 32 }; /* bytes of a group's name */

typedef enum CommType { COMM_F32, COMM_F64, COMM_BF16, COMM_I64, COMM_U8 } CommType;
/* Returns the type of real numbers of 2, 4 or 8 bytes. */
static inline CommType comm_real_type(int64_t bytes) { return bytes == 8 ? COMM_F64 : bytes == 4 ? COMM_F32 : COMM_BF16; }
/* Sums of COMM_U8 wrap around; NaN in, NaN out. */
typedef enum CommReduce { COMM_SUM, COMM_MAX, COMM_MIN } CommReduce;
typedef int64_t CommTicket; /* identifies a queued collective; 0: nothing to wait for */

typedef enum CommTransport { COMM_AUTO, COMM_TCP, COMM_MPI } CommTransport;

typedef struct CommOptions {
    CommTransport transport; /* COMM_AUTO: MPI under mpirun, else TCP */
    double appear;           /* seconds for all ranks to appear at the start; 0: 300 */
    double lost;             /* seconds without a sign of life after which a peer is lost; 0: 60 */
    double timeout;          /* seconds that a collective waits for a peer that is alive; 0: 1800 */
    /* Called with each environment variable that AMD recommends for the hardware of this node,
     * before HIP and RCCL are opened. Must set the variable unless the user did. NULL: the
     * environment is not changed. */
    void (*recommend)(const char *name, const char *value);
} CommOptions;

/* -- Groups -------------------------------------------------------------------------------------------------------- */

/* Opens the group of all ranks of the run. NULL options: the defaults. ERROR_USAGE (contradictory
 * variables, no MPI), ERROR_COMMUNICATION (a rank did not appear). */
Comm *comm_open(const CommOptions *options, Error *error);
/* Returns a group of this process alone, on the CPU. It always exists and needs no closing. Its
 * collectives complete immediately. */
Comm *comm_alone(void);
/* Makes buffers memory of this device from now on; before this call they are CPU memory. The device
 * outlives the comm. Collective; call it before comm_split. ERROR_USAGE (NCCL or RCCL is missing),
 * ERROR_COMMUNICATION. */
bool comm_use_device(Comm *comm, Device *device, Error *error);
/* Returns the group of the ranks that gave the same color, in the order of `comm`. Collective over
 * `comm`. A rank with a negative color gets a group of its own. Close the group before `comm`.
 * Returns NULL after a failure. */
Comm *comm_split(Comm *comm, int color, const char *name, Error *error);
/* Gives the group its own stream on GPUs. Its collectives then run concurrently with other groups'
 * collectives, and before kernels that wait for a place on the device. For transfers that compute
 * waits for soon, or that wait for other ranks' compute. No effect elsewhere. NULL is fine. */
void comm_use_own_stream(Comm *comm);
/* Closes a group. Closing the first group also ends the connections: call it on every rank, after
 * the last collective. NULL and comm_alone are fine. */
void comm_close(Comm *comm);

int comm_rank(const Comm *comm);
int comm_size(const Comm *comm);
/* Returns the number of ranks that the environment says were started, before they have met; 0 if
 * the environment does not say or is invalid. */
int comm_started_ranks(void);
/* Describe this process in the whole run, for any of its groups: its number on its node, the ranks
 * on the node, the node's number, the number of nodes. */
int comm_local_rank(const Comm *comm);
int comm_local_size(const Comm *comm);
int comm_node(const Comm *comm);
int comm_nodes(const Comm *comm);
/* Writes a description for people: "4 ranks on 2 nodes over TCP, NCCL 2.21.5". */
void comm_describe(const Comm *comm, char *text, size_t size);

/* -- Collectives, queued ------------------------------------------------------------------------------------------- */

/* Counts and offsets are in elements; buffers are memory of the comm's device. `name` appears in
 * logs ("gradient.3"); at most 31 bytes are kept. `shards` has comm_size + 1 offsets into the
 * buffer, ascending: shard r, which belongs to rank r, is [shards[r], shards[r + 1]). Shards may
 * differ in size and may be empty; equal shards are fastest on GPUs. The array is copied. */

CommTicket comm_all_reduce(Comm *comm, const char *name, void *buffer, int64_t count, CommType type, CommReduce reduce);
/* In place: afterwards this rank's shard is reduced over all ranks; the other shards are undefined. */
CommTicket comm_reduce_scatter(Comm *comm, const char *name, void *buffer, const int64_t *shards, CommType type, CommReduce reduce);
/* Like comm_reduce_scatter, but writes the reduced shard to `result` and leaves the buffer
 * unchanged. For groups of more than one rank. */
CommTicket comm_reduce_scatter_to(
    Comm *comm, const char *name, const void *buffer, void *result, const int64_t *shards, CommType type, CommReduce reduce);
/* In place: every rank contributes its shard and has all shards afterwards. */
CommTicket comm_all_gather(Comm *comm, const char *name, void *buffer, const int64_t *shards, CommType type);
CommTicket comm_broadcast(Comm *comm, const char *name, void *buffer, int64_t count, CommType type, int root);
/* Sends shard r of `send` to rank r, and receives rank r's message in shard r of `receive`. */
CommTicket comm_all_to_all(Comm *comm, const char *name, const void *send, const int64_t *send_shards, void *receive,
    const int64_t *receive_shards, CommType type);
/* Involves only the ranks that take part: sends to rank `to` and receives from rank `from` at once,
 * so that rings do not block. -1: do not send, or do not receive. */
CommTicket comm_exchange(Comm *comm, const char *name, const void *send, int64_t send_count, int to, void *receive, int64_t receive_count,
    int from, CommType type);

/* Bracket independent collectives of one group. They must depend neither on each other nor on work
 * that the device's stream receives in between. On GPUs they become one launch and end together:
 * each of their tickets stands for all of them. */
void comm_begin_together(Comm *comm);
void comm_end_together(Comm *comm);

/* Makes later work of the device's stream run after this collective; on the CPU the caller waits.
 * Tickets may be waited for in any order, more than once. */
void comm_wait(Comm *comm, CommTicket ticket);
/* Returns false after a failure and describes it. */
bool comm_ok(Comm *comm, Error *error);

/* -- Collectives in host memory ------------------------------------------------------------------------------------ */

/* For small data that the host itself needs: scalars, names, agreement. These collectives run over
 * TCP or MPI even if the device is a GPU, in the same order as all others, and are complete on
 * return. They return false after a failure and describe it. */

bool comm_host_all_reduce(Comm *comm, const char *name, void *values, int64_t count, CommType type, CommReduce reduce, Error *error);
/* `values` has comm_size shards of `count` elements. */
bool comm_host_all_gather(Comm *comm, const char *name, void *values, int64_t count, CommType type, Error *error);
bool comm_host_broadcast(Comm *comm, const char *name, void *values, int64_t count, CommType type, int root, Error *error);
/* Like comm_host_broadcast, but continues in the background until comm_wait for its ticket; comm_ok
 * reports failures. */
CommTicket comm_host_begin_broadcast(Comm *comm, const char *name, void *values, int64_t count, CommType type, int root);
bool comm_barrier(Comm *comm, const char *name, Error *error);

/* Finds the first host of Slurm's compressed list ("node[07-12,15],login" gives node07). Returns
 * false if the text is not such a list. For launchers. */
bool comm_first_host(const char *list, char *host, size_t size);
/* Reads a number from an environment variable; a missing or empty variable leaves *number
 * unchanged. ERROR_USAGE. */
bool comm_read_number(const char *name, long least, long most, int *number, Error *error);

/* -- Windows ------------------------------------------------------------------------------------------------------- */

/* Memory of each GPU of a group on one node, written by the group's other GPUs. Collectives too
 * small for NCCL use it. They are kernels of the device's own stream (ops/collective/gpu.c), which
 * wait only for each other. */
enum { COMM_MOST_WINDOWS = 8 /* ranks */ };
typedef struct CommWindows {
    int size, rank;
    void *window[COMM_MOST_WINDOWS]; /* window of each rank, zeroed at opening, at the address that this rank's kernels use */
    const uint32_t *stop;            /* nonzero after a failure of the group: waiting kernels end. Read by host and device */
} CommWindows;
/* Opens windows of `bytes` if there are none yet and all GPUs of the group reach each other.
 * Collective. Returns false only after a failure of the group; comm_windows says whether there are
 * windows. */
bool comm_open_windows(Comm *comm, int64_t bytes, Error *error);
/* Returns the group's windows, or NULL if there are none. Either all ranks have windows or none
 * has. */
const CommWindows *comm_windows(const Comm *comm);

/* -- For the watchdog and for reports ------------------------------------------------------------------------------ */

/* Makes all collectives of this process, queued or future, in every group, fail with
 * ERROR_COMMUNICATION and `reason`. */
void comm_abort(Comm *comm, const char *reason);

typedef enum CommState { COMM_QUEUED, COMM_RUNNING, COMM_DONE, COMM_FAILED } CommState;
typedef struct CommRecord {
    char group[COMM_GROUP_NAME], operation[16], name[32];
    uint64_t sequence; /* in its group; exchanges have numbers of their own */
    int64_t bytes;     /* of this rank's buffer */
    CommState state;
    double queued, started, finished; /* log_seconds(); 0: not yet. On a GPU: when it was issued and when its end was noticed */
} CommRecord;
enum { COMM_RECORDS = 64 };
/* Copies the newest collectives of this process, all groups, newest first; returns their number. */
int comm_recent(Comm *comm, CommRecord *records, int most);

typedef struct CommTotals {
    int64_t collectives;
    int64_t bytes;  /* sent by this rank */
    double waited;  /* seconds that the caller waited for collectives in host memory */
    double stalled; /* seconds that the device's stream waited for GPU collectives, as far as it has run */
} CommTotals;
/* Returns totals of this process, all groups, since its start: take differences. Call it on the
 * compute thread. */
CommTotals comm_totals(Comm *comm);
