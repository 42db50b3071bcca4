/* Plays the traces of all ranks of a run (comm/trace.h) on a virtual clock, and checks on the way
 * that the ranks can follow them: the same collectives in the same order with the same sizes in each
 * group, and no ranks that wait for each other.
 *
 * The rules of the clock are those of comm: a rank's collectives run in issue order on the stream of
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
    const Trace *const *traces; /* by rank; ranks may share one, whose groups are then those of the same axes */
    bool one_queue;             /* all groups share one stream, as on a CPU */
    /* Return the seconds of a rank's work that takes `seconds` on an ordinary rank, and of a
     * transfer. NULL: 0. */
    double (*work)(void *context, int rank, double seconds);
    double (*transfer)(void *context, const ReplayTransfer *transfer);
    void (*progress)(void *context, double part); /* NULL: none */
    void *context;
    double interference; /* seconds that a hidden second of the shared stream costs compute */
} ReplayRun;

enum { REPLAY_NAMES = 32, REPLAY_OPERATIONS = BARRIER + 1 };

/* Sums of one operation in the groups of one name, of a rank between the last two meetings. */
typedef struct ReplayShare {
    double transfer; /* seconds of transfers */
    double exposed;  /* of these, seconds in which the rank waits */
    double waiting;  /* seconds in which the rank waits for others to reach the collective */
    double bytes;    /* sent */
    int64_t count;
} ReplayShare;

typedef struct ReplayRank {
    double work, interference, meeting;                   /* meeting: seconds of waiting for the slowest rank at the end of a step */
    ReplayShare shares[REPLAY_NAMES * REPLAY_OPERATIONS]; /* by name, then operation */
} ReplayRank;

typedef struct ReplayResult {
    double step;       /* seconds between the last two meetings (TRACE_MEET); without two, of the last step on all ranks */
    ReplayRank *ranks; /* by rank */
    int names;
    char name[REPLAY_NAMES][COMM_GROUP_NAME];
} ReplayResult;

/* ERROR_USAGE if the traces disagree or deadlock: names ranks, operations and sizes. The caller
 * frees result->ranks. */
bool replay_run(const ReplayRun *run, ReplayResult *result, Error *error);
