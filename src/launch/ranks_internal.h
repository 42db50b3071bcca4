/* The ranks of one attempt: processes that start together; their output is read and their ends are
 * noted. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "comm/secret.h"
#include "launch/heartbeat_internal.h"

enum { STREAMS = 2, LINE_BYTES = 4096, TAIL_BYTES = 32768 };

typedef struct Stream {
    int file; /* read end of its pipe; -1: closed */
    size_t length;
    char line[LINE_BYTES];
} Stream;

typedef struct Rank {
    pid_t id;     /* 0: ended */
    bool killed;  /* by ranks_signal */
    bool stopped; /* by a signal such as SIGSTOP, and not continued since */
    double since; /* log_seconds() when it was stopped */
    int status;
    Stream streams[STREAMS]; /* stdout, stderr */
    size_t tail_length;
    char tail[TAIL_BYTES]; /* the last output */
} Rank;

/* The position of this node's ranks in the run: first + count <= total. */
typedef struct RankPlan {
    char **command;          /* argv[0] first, NULL last */
    int count, first, total; /* ranks of this node, the run's number of the first of them, ranks of the run */
    int node;                /* index among the nodes that take part */
    const char *address;     /* where rank 0 listens */
    int port;
    Secret secret; /* authenticates the ranks of this attempt to each other */
    char *devices; /* for the vendors' variables; NULL: unchanged */
    bool show_all;
    bool whole_lines; /* the ranks do not wrap lines at the terminal's width */
} RankPlan;

typedef struct Ranks {
    const RankPlan *plan;
    Rank *ranks;
    Heartbeat *heartbeats;
    int heartbeat_file;
    /* Called with each complete line of every rank. */
    void (*on_line)(void *context, int rank, const char *line);
    void *context;
} Ranks;

bool ranks_start(Ranks *ranks, const RankPlan *plan, Error *error);
/* Waits at most `milliseconds` for output or an end; returns the number of live ranks. */
int ranks_poll(Ranks *ranks, int milliseconds);
/* Returns the number in the whole run of a rank of this node. */
int ranks_number(const RankPlan *plan, int rank);
void ranks_signal(Ranks *ranks, int number);
/* Prints the last output of a rank to stderr, unless it was shown or equals the output of the shown
 * rank. */
void ranks_print_tail(const Ranks *ranks, int rank);
void ranks_free(Ranks *ranks); /* all ranks have ended */
