/* The rendezvous of nodes over short TCP connections: a node connects, reports, and keeps the connection until it
 * has its answer. Owns node 0's listening socket and the seats of all nodes. Called by the supervisor. The network
 * is trusted: checks keep mistakes out, not attackers. */
#include "launch/rendezvous_internal.h"

#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "comm/socket.h"

enum { MAGIC = 0x726f6c6c, LOST_SECONDS = 60, HELLO_SECONDS = 2, END_SECONDS = 30, MOST_RANKS = 1024 };
static const double slice = 0.1; /* seconds between two looks at place.stop */

typedef struct Hello {
    uint32_t magic;
    int32_t node, nodes, unused;
    uint64_t job;
    NodeReport report;
} Hello;

typedef struct Reply {
    uint32_t magic;
    int32_t verdict;
    RendezvousAnswer answer;
} Reply;

_Static_assert(sizeof(Hello) == 296 && sizeof(Reply) == 800, "messages have no padding: they are the same on every host");

/* A node's place at node 0. */
typedef struct Seat {
    int socket;  /* -1: none, as of node 0 itself */
    bool here;   /* it has reported and waits for the answer */
    bool member; /* took part in the last attempt; before the first one all nodes count as members */
    NodeReport report;
    char address[NI_MAXHOST];
} Seat;

struct Rendezvous {
    RendezvousPlace place;
    uint64_t job;
    struct sockaddr_storage first; /* node 0's address */
    int listener;                  /* on node 0, else -1 */
    Seat *seats;                   /* on node 0 */
    double began;                  /* when the first member came; 0: none has yet */
};

/* Nodes of another run have another command or another job. */
static uint64_t job_of(char *const *command) {
    const char *job = getenv("SLURM_JOB_ID");
    SCOPED_FREE char *text = memory_copy_string(job ? job : "");
    for (; *command; command++) {
        SCOPED_FREE char *before = text;
        text = memory_format("%s\n%s", before, *command);
    }
    return hash_bytes(text, strlen(text));
}

Rendezvous *rendezvous_open(const RendezvousPlace *place, Error *error) {
    assert(place->node >= 0 && place->node < place->nodes && place->least <= place->nodes);
    Rendezvous *rendezvous = memory_allocate(sizeof *rendezvous);
    *rendezvous = (Rendezvous){.place = *place, .job = job_of(place->command), .listener = -1};
    bool opened = socket_resolve(place->address, place->port, &rendezvous->first, error);
    if (opened && place->node == 0) {
        double until = log_seconds() + LOST_SECONDS; /* an earlier run may be about to end */
        while ((rendezvous->listener = socket_listen(rendezvous->first.ss_family, socket_is_loopback(place->address), place->port)) < 0 &&
               errno == EADDRINUSE && log_seconds() < until && !place->stop->signal)
            usleep((useconds_t)(slice * 1e6));
        opened =
            rendezvous->listener >= 0 || error_set(error, ERROR_COMMUNICATION,
                                             "node 0 cannot listen at port %d: %s; give another MASTER_PORT", place->port, strerror(errno));
        rendezvous->seats = memory_allocate((size_t)place->nodes * sizeof *rendezvous->seats);
        for (int node = 0; node < place->nodes; node++) rendezvous->seats[node] = (Seat){.socket = -1, .member = true};
    }
    if (opened) return rendezvous;
    rendezvous_close(rendezvous);
    return NULL;
}

void rendezvous_close(Rendezvous *rendezvous) {
    if (!rendezvous) return;
    for (int node = 0; rendezvous->seats && node < rendezvous->place.nodes; node++)
        if (rendezvous->seats[node].socket >= 0) close(rendezvous->seats[node].socket);
    if (rendezvous->listener >= 0) close(rendezvous->listener);
    free(rendezvous->seats);
    free(rendezvous);
}

/* -- Node 0: who is here ------------------------------------------------------------------------------------------- */

static void leave_seat(Seat *seat) {
    if (seat->socket >= 0) close(seat->socket);
    seat->socket = -1;
    seat->here = false;
}

static void take_seat(Seat *seat, int socket, const NodeReport *report) {
    leave_seat(seat); /* of a supervisor that died, or that reports again */
    seat->socket = socket;
    seat->here = true;
    seat->report = *report;
    seat->report.name[sizeof report->name - 1] = seat->report.reason[sizeof report->reason - 1] = 0;
}

static bool is_sound(const Rendezvous *rendezvous, const Hello *hello) {
    const NodeReport *report = &hello->report;
    return hello->node > 0 && hello->node < rendezvous->place.nodes && report->state >= NODE_READY && report->state <= NODE_ENDS &&
           report->ranks > 0 && report->ranks <= MOST_RANKS && report->port > 0 && report->port < 65536 && report->code >= 0 &&
           report->code < 128;
}

static void refuse(int socket) {
    Reply reply = {.magic = MAGIC, .verdict = RENDEZVOUS_OVER, .answer = {.code = ERROR_USAGE}};
    snprintf(reply.answer.reason, sizeof reply.answer.reason, "node 0 runs another command, or with another number of nodes");
    socket_send(socket, &reply, sizeof reply, log_seconds() + HELLO_SECONDS);
    close(socket);
}

/* Where the others reach a node: at the address that node 0 sees, or at node 0's address when both are on one host. */
static void note_address(const Rendezvous *rendezvous, Seat *seat) {
    struct sockaddr_storage from = {0};
    socklen_t size = sizeof from;
    seat->address[0] = 0;
    if (getpeername(seat->socket, (struct sockaddr *)&from, &size) == 0)
        getnameinfo((struct sockaddr *)&from, size, seat->address, sizeof seat->address, NULL, 0, NI_NUMERICHOST);
    if (!seat->address[0] || socket_is_loopback(seat->address))
        snprintf(seat->address, sizeof seat->address, "%s", rendezvous->place.address);
}

/* Accepts the reports of nodes that have connected, for `slice` seconds. */
static void accept_reports(Rendezvous *rendezvous) {
    for (double until = log_seconds() + slice; socket_await(rendezvous->listener, POLLIN, until);) {
        Hello hello = {0};
        int taken = accept4(rendezvous->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (taken < 0) continue;
        socket_prepare(taken, LOST_SECONDS);
        if (!socket_receive(taken, &hello, sizeof hello, log_seconds() + HELLO_SECONDS) || hello.magic != MAGIC) close(taken);
        else if (hello.job != rendezvous->job || hello.nodes != rendezvous->place.nodes || !is_sound(rendezvous, &hello)) refuse(taken);
        else {
            take_seat(&rendezvous->seats[hello.node], taken, &hello.report);
            note_address(rendezvous, &rendezvous->seats[hello.node]);
        }
    }
}

/* Nodes send nothing after their report, so a readable connection has ended: the node is gone. A report of the end
 * stays valid. */
static void notice_lost_nodes(Rendezvous *rendezvous) {
    for (int node = 1; node < rendezvous->place.nodes; node++) {
        Seat *seat = &rendezvous->seats[node];
        if (seat->here && seat->report.state != NODE_ENDS && socket_await(seat->socket, POLLIN, log_seconds() + 1e-3)) leave_seat(seat);
    }
}

/* -- Node 0: what becomes of the run ------------------------------------------------------------------------------- */

/* The report of a member that the run is over, or NULL. */
static const NodeReport *find_end(const Rendezvous *rendezvous) {
    for (int node = 0; node < rendezvous->place.nodes; node++) {
        const Seat *seat = &rendezvous->seats[node];
        if (seat->here && seat->member && seat->report.state == NODE_ENDS) return &seat->report;
    }
    return NULL;
}

static bool takes_part(const Seat *seat) { return seat->here && seat->report.state == NODE_READY; }

/* Which nodes are missing and why, for people. */
static void describe_absent(const Rendezvous *rendezvous, char *text, size_t size) {
    size_t length = 0;
    text[0] = 0;
    for (int node = 0; node < rendezvous->place.nodes && length < size; node++) {
        const Seat *seat = &rendezvous->seats[node];
        char why[sizeof seat->report.name + sizeof seat->report.reason + 8];
        if (takes_part(seat)) continue;
        if (seat->here) snprintf(why, sizeof why, "(%s): %s", seat->report.name, seat->report.reason);
        else if (seat->member) snprintf(why, sizeof why, "did not come in %.0f s", rendezvous->place.away);
        else snprintf(why, sizeof why, "is still away");
        length += (size_t)snprintf(text + length, size - length, "%snode %d %s", length ? "; " : "", node, why);
    }
}

/* The part of the answer that is the same for all members. */
static RendezvousAnswer count_members(const Rendezvous *rendezvous) {
    RendezvousAnswer answer = {0};
    for (int node = 0; node < rendezvous->place.nodes; node++) {
        const Seat *seat = &rendezvous->seats[node];
        if (!takes_part(seat)) continue;
        if (!answer.members) {
            answer.port = seat->report.port;
            snprintf(answer.address, sizeof answer.address, "%.255s", node ? seat->address : rendezvous->place.address);
        }
        answer.members++;
        answer.ranks += seat->report.ranks;
    }
    describe_absent(rendezvous, answer.reason, sizeof answer.reason);
    return answer;
}

static void reply(Seat *seat, RendezvousVerdict verdict, const RendezvousAnswer *answer) {
    Reply message = {.magic = MAGIC, .verdict = (int32_t)verdict, .answer = *answer};
    if (seat->socket >= 0) socket_send(seat->socket, &message, sizeof message, log_seconds() + HELLO_SECONDS);
    leave_seat(seat);
}

/* Answers every node that has reported; returns the verdict for node 0. */
static RendezvousVerdict answer_all(Rendezvous *rendezvous, RendezvousVerdict all, const RendezvousAnswer *common, RendezvousAnswer *own) {
    RendezvousAnswer answer = *common;
    RendezvousVerdict own_verdict = all;
    answer.member = answer.first = 0;
    for (int node = 0; node < rendezvous->place.nodes; node++) {
        Seat *seat = &rendezvous->seats[node];
        int ranks = seat->report.ranks;
        bool starts = all == RENDEZVOUS_START && takes_part(seat);
        RendezvousVerdict verdict = all == RENDEZVOUS_START && !starts ? RENDEZVOUS_LEFT_OUT : all;
        if (node == 0) *own = answer, own_verdict = verdict;
        if (seat->here) reply(seat, verdict, &answer);
        if (all == RENDEZVOUS_START) seat->member = starts;
        if (starts) answer.member++, answer.first += ranks;
    }
    rendezvous->began = 0;
    return own_verdict;
}

static RendezvousVerdict decide(Rendezvous *rendezvous, RendezvousAnswer *own) {
    const NodeReport *end = find_end(rendezvous);
    RendezvousAnswer answer = count_members(rendezvous);
    if (end) {
        answer.code = end->code;
        snprintf(answer.reason, sizeof answer.reason, "%s", end->reason);
    } else if (answer.members < rendezvous->place.least) {
        char absent[sizeof answer.reason];
        memcpy(absent, answer.reason, sizeof absent);
        answer.code = ERROR_COMMUNICATION;
        snprintf(answer.reason, sizeof answer.reason, "%d of %d nodes can go on, and %d are needed (least=): %.400s", answer.members,
            rendezvous->place.nodes, rendezvous->place.least, absent);
    }
    return answer_all(rendezvous, end || answer.members < rendezvous->place.least ? RENDEZVOUS_OVER : RENDEZVOUS_START, &answer, own);
}

static RendezvousVerdict join_as_first(Rendezvous *rendezvous, const NodeReport *own, double timeout, RendezvousAnswer *answer) {
    double start = log_seconds();
    take_seat(&rendezvous->seats[0], -1, own);
    while (!rendezvous->place.stop->signal) {
        bool any = false, all = true;
        accept_reports(rendezvous);
        notice_lost_nodes(rendezvous);
        for (int node = 0; node < rendezvous->place.nodes; node++) {
            const Seat *seat = &rendezvous->seats[node];
            any = any || (seat->here && seat->member);
            all = all && (seat->here || !seat->member);
        }
        double now = log_seconds();
        if (any && !rendezvous->began) rendezvous->began = now;
        if (all || find_end(rendezvous) || (rendezvous->began && now - rendezvous->began > rendezvous->place.away))
            return decide(rendezvous, answer);
        if (timeout > 0 && now - start > timeout) return RENDEZVOUS_AGAIN;
    }
    return RENDEZVOUS_STOPPED;
}

/* -- The other nodes ----------------------------------------------------------------------------------------------- */

/* Returns the connection, or -1 when node 0 cannot be reached now. */
static int report_to_first(const Rendezvous *rendezvous, const NodeReport *own) {
    Hello hello = {
        .magic = MAGIC, .node = rendezvous->place.node, .nodes = rendezvous->place.nodes, .job = rendezvous->job, .report = *own};
    double until = log_seconds() + HELLO_SECONDS;
    int made = socket_connect(&rendezvous->first, LOST_SECONDS, until);
    if (made < 0 || socket_send(made, &hello, sizeof hello, until)) return made;
    close(made);
    return -1;
}

static bool hear(int socket, RendezvousVerdict *verdict, RendezvousAnswer *answer) {
    Reply message;
    if (!socket_receive(socket, &message, sizeof message, log_seconds() + HELLO_SECONDS) || message.magic != MAGIC ||
        message.verdict < RENDEZVOUS_START || message.verdict > RENDEZVOUS_OVER)
        return false;
    *verdict = (RendezvousVerdict)message.verdict;
    *answer = message.answer;
    answer->address[sizeof answer->address - 1] = answer->reason[sizeof answer->reason - 1] = 0;
    return answer->member >= 0 && answer->first >= 0 && answer->ranks >= 0 && answer->code >= 0 && answer->code < 128;
}

static RendezvousVerdict first_is_lost(const Rendezvous *rendezvous, RendezvousAnswer *answer) {
    *answer = (RendezvousAnswer){.code = ERROR_COMMUNICATION};
    snprintf(answer->reason, sizeof answer->reason, "node 0 at %.200s:%d was not there for %.0f s", rendezvous->place.address,
        rendezvous->place.port, rendezvous->place.away);
    return RENDEZVOUS_OVER;
}

static RendezvousVerdict join_as_other(Rendezvous *rendezvous, const NodeReport *own, double timeout, RendezvousAnswer *answer) {
    double start = log_seconds(), heard = start;
    int connection = -1;
    RendezvousVerdict verdict = RENDEZVOUS_STOPPED;
    while (!rendezvous->place.stop->signal) {
        double now = log_seconds();
        if (connection < 0) connection = report_to_first(rendezvous, own);
        if (connection < 0 && now - heard > rendezvous->place.away) return first_is_lost(rendezvous, answer);
        if (connection < 0) {
            usleep((useconds_t)(slice * 1e6));
            continue;
        }
        heard = now;
        if (socket_await(connection, POLLIN, now + slice)) {
            if (hear(connection, &verdict, answer)) break;
            close(connection);
            connection = -1;
        } else if (timeout > 0 && now - start > timeout) {
            verdict = RENDEZVOUS_AGAIN;
            break;
        }
    }
    if (connection >= 0) close(connection);
    return verdict;
}

RendezvousVerdict rendezvous_join(Rendezvous *rendezvous, const NodeReport *own, double timeout, RendezvousAnswer *answer) {
    return rendezvous->seats ? join_as_first(rendezvous, own, timeout, answer) : join_as_other(rendezvous, own, timeout, answer);
}

/* -- The end ------------------------------------------------------------------------------------------------------- */

static void tell_all(Rendezvous *rendezvous, const RendezvousAnswer *end) {
    double until = log_seconds() + (end->code == ERROR_NONE ? 0 : END_SECONDS);
    for (bool untold = true; untold;) {
        RendezvousAnswer own;
        accept_reports(rendezvous);
        untold = false;
        for (int node = 1; node < rendezvous->place.nodes; node++) {
            rendezvous->seats[node].member = rendezvous->seats[node].member && !rendezvous->seats[node].here;
            untold = untold || rendezvous->seats[node].member;
        }
        answer_all(rendezvous, RENDEZVOUS_OVER, end, &own);
        untold = untold && log_seconds() < until && !rendezvous->place.stop->signal;
    }
}

void rendezvous_end(Rendezvous *rendezvous, int code, const char *reason) {
    NodeReport report = {.state = NODE_ENDS, .ranks = 1, .port = 1, .code = code};
    RendezvousAnswer end = {.code = code};
    snprintf(report.reason, sizeof report.reason, "%s", reason);
    snprintf(end.reason, sizeof end.reason, "%s", reason);
    if (rendezvous->seats) {
        tell_all(rendezvous, &end);
        return;
    }
    int connection = report_to_first(rendezvous, &report);
    if (connection >= 0) close(connection);
}
