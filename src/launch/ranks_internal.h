/* The ranks of one attempt: processes that are started together, whose output is read and whose ends are noted. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "comm/secret.h"
#include "launch/heartbeat_internal.h"

enum { STREAMS = 2, LINE_BYTES = 4096, TAIL_BYTES = 32768 };

typedef struct Stream {
    int file; /* the reading end of its pipe; -1: closed */
    size_t length;
    char line[LINE_BYTES];
} Stream;

typedef struct Rank {
    pid_t id;     /* 0: ended */
    bool killed;  /* by ranks_signal */
    bool stopped; /* by a signal such as SIGSTOP, and not continued */
    int status;
    Stream streams[STREAMS]; /* stdout, stderr */
    size_t tail_length;
    char tail[TAIL_BYTES]; /* the last output */
} Rank;

/* The place of this node's ranks in the run: first + count <= total. */
typedef struct RankPlan {
    char **command;          /* argv[0] first, NULL last */
    int count, first, total; /* ranks here, the number of the first of them in the run, ranks of the run */
    int node;                /* among those that take part */
    const char *address;     /* where rank 0 listens */
    int port;
    Secret secret; /* by which the ranks of this attempt recognise each other */
    char *devices; /* for the vendors' variables; NULL: as they are */
    bool show_all;
    bool whole_lines; /* the ranks break no line where the terminal ends */
} RankPlan;

typedef struct Ranks {
    const RankPlan *plan;
    Rank *ranks;
    Heartbeat *heartbeats;
    int heartbeat_file;
    /* Called with every whole line of every rank. */
    void (*on_line)(void *context, int rank, const char *line);
    void *context;
} Ranks;

bool ranks_start(Ranks *ranks, const RankPlan *plan, Error *error);
/* Waits at most so long for output or an end; returns how many ranks are alive. */
int ranks_poll(Ranks *ranks, int milliseconds);
/* Of a rank of this node in the whole run. */
int ranks_number(const RankPlan *plan, int rank);
void ranks_signal(Ranks *ranks, int number);
/* The last output of a rank to stderr, unless it was shown or is that of the rank that was. */
void ranks_print_tail(const Ranks *ranks, int rank);
void ranks_free(Ranks *ranks); /* all have ended */
