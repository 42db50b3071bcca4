/* The rendezvous of a run's nodes. Before every attempt each node's supervisor reports its state to
 * the supervisor of node 0. When all expected nodes have reported, or the time is over, node 0
 * answers every node: which nodes take part and under which numbers, or that the run is over. A
 * node that comes while ranks run waits for the next rendezvous. All nodes prove the job's secret
 * (comm/channel.h). One node decides, so two halves of a broken network never train at once; the
 * price is that the run ends with node 0's supervisor. Node 0's ranks may be left out like those of
 * any other node. */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "base/stop.h"
#include "comm/secret.h"

typedef struct Rendezvous Rendezvous;

typedef struct RendezvousPlace {
    int node, nodes, least; /* least: nodes that the run needs to go on */
    const char *address;    /* of node 0 */
    int port;
    const Secret *secret;    /* the same on all nodes */
    double away;             /* seconds that the others wait for a node, and a node for node 0 */
    char *const *command;    /* the same on all nodes */
    const StopRequest *stop; /* ends all waiting */
} RendezvousPlace;

typedef enum NodeState {
    NODE_READY, /* can run its ranks */
    NODE_SICK,  /* must not take part; `reason` says why */
    NODE_ENDS,  /* from a node that took part: the run is over, with `code` and `reason` */
} NodeState;

/* The state of a node. `port` is free on it, in case the run's rank 0 becomes one of its ranks. */
typedef struct NodeReport {
    int32_t state, ranks, port, code;
    int32_t copy; /* ranks of one copy of the model: ranks start in multiples of it */
    char name[64], reason[188];
} NodeReport;

typedef enum RendezvousVerdict {
    RENDEZVOUS_START,    /* this is node `member` of `members`; its first rank is `first` of `ranks` */
    RENDEZVOUS_LEFT_OUT, /* the others continue without this node, which may report again */
    RENDEZVOUS_OVER,     /* the run ended with `code` and `reason` */
    RENDEZVOUS_AGAIN,    /* nothing was decided within `timeout` seconds */
    RENDEZVOUS_STOPPED,  /* by place.stop */
} RendezvousVerdict;

/* Unique to each start of ranks. */
typedef struct AttemptId { uint32_t supervisor[3], number; /* random, made by node 0's supervisor */ } AttemptId;

typedef struct RendezvousAnswer {
    int32_t members, member, ranks, first, port, code;
    AttemptId attempt;
    char address[256], reason[512]; /* address: of rank 0. reason: for RENDEZVOUS_START the missing nodes, or "" */
} RendezvousAnswer;

/* The pointers in `place` must outlive the rendezvous. On node 0 the rendezvous listens from now
 * on. ERROR_COMMUNICATION. */
Rendezvous *rendezvous_open(const RendezvousPlace *place, Error *error);
/* Waits for the verdict of the next rendezvous; `timeout` in seconds, 0: forever. On nodes other
 * than 0, returns RENDEZVOUS_OVER with ERROR_COMMUNICATION if node 0 was unreachable for `away`
 * seconds. */
RendezvousVerdict rendezvous_join(Rendezvous *rendezvous, const NodeReport *own, double timeout, RendezvousAnswer *answer);
/* On node 0, welcomes the nodes that have come, without waiting; elsewhere, and with NULL, does
 * nothing. Call it while no rendezvous waits: a node that is not welcomed for `away` seconds gives
 * up. */
void rendezvous_tend(Rendezvous *rendezvous);
/* Announces that the run is over: on node 0 to all who come, for a while; on another node to node
 * 0, which ends the run at the next rendezvous. */
void rendezvous_end(Rendezvous *rendezvous, int code, const char *reason);
void rendezvous_close(Rendezvous *rendezvous); /* NULL is fine */
