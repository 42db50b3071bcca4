/* Plays the traces of all ranks of a run (comm/trace.h) on a virtual clock. It refuses ranks that issue
 * different collectives, orders or sizes in a group, and ranks that wait for each other.
 *
 * The clock has the rules of comm: a rank's collectives run in issue order on the stream of
 * their group, concurrently with its compute; a collective starts when every rank of the group has
 * reached it; a message needs both ends. The result does not depend on the order in which ranks are
 * played. */
#pragma once

#include "comm/mesh.h"
#include "comm/trace.h"

/* A collective, or a message of an exchange, to be timed. */
typedef struct ReplayTransfer {
    const Trace *trace; /* of one of its ranks */
    const TraceCall *call;
    MeshAxes axes; /* of its group */
    int from, to;  /* ranks of a message in the run; -1: a collective */
} ReplayTransfer;

typedef struct ReplayRun {
    const Mesh *mesh;           /* sizes of all axes */
    const Trace *const *traces; /* by rank; ranks may share one: its groups then stand for groups of the same axes */
    bool one_queue;             /* all groups share one stream, as on a CPU */
    /* Returns the seconds of a rank's work that takes `seconds` on an ordinary rank. NULL: `seconds`. */
    double (*work)(void *context, int rank, double seconds);
    /* Returns the seconds of a transfer. NULL: 0. */
    double (*transfer)(void *context, const ReplayTransfer *transfer);
    void (*progress)(void *context, double part); /* NULL: none */
    void *context;
    double copy_rate;    /* bytes per second between device and host memory in one direction; 0: copies take no time */
    double interference; /* seconds that compute loses per hidden second of the shared stream */
} ReplayRun;

enum { REPLAY_NAMES = 32, REPLAY_OPERATIONS = BARRIER + 1 };

/* A rank's sums between the last two meetings, for one operation in the groups of one name. */
typedef struct ReplayShare {
    double transfer; /* seconds of transfers */
    double exposed;  /* seconds of transfers in which the rank waits */
    double waiting;  /* seconds in which the rank waits for others to reach the collective */
    double bytes;    /* sent */
    int64_t count;
} ReplayShare;

typedef struct ReplayRank {
    double work, interference, meeting;                   /* meeting: seconds of waiting for the slowest rank at the end of a step */
    double copies;                                        /* seconds of waiting for copies of offload */
    ReplayShare shares[REPLAY_NAMES * REPLAY_OPERATIONS]; /* by name, then operation */
} ReplayRank;

typedef struct ReplayResult {
    double step;       /* seconds between the last two meetings (TRACE_MEET); without two, of the last step on all ranks */
    ReplayRank *ranks; /* by rank */
    int names;
    char name[REPLAY_NAMES][COMM_GROUP_NAME];
} ReplayResult;

/* ERROR_USAGE names the ranks, operations and sizes of traces that disagree or deadlock. The caller
 * frees result->ranks. */
bool replay_run(const ReplayRun *run, ReplayResult *result, Error *error);
