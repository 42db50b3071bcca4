/* The rendezvous of nodes over authenticated connections (comm/channel.h): a node connects, reports, and keeps the
 * connection until it has its answer. Owns node 0's acceptor and the seats of all nodes. Called by the supervisor. */
#include "launch/rendezvous_internal.h"

#include <assert.h>
#include <errno.h>
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
#include "comm/acceptor.h"
#include "comm/socket.h"

enum { LOST_SECONDS = 60, HELLO_SECONDS = 2, END_SECONDS = 30, MOST_RANKS = 1024, MOST_COPY = 1 << 20 };
static const double slice = 0.1; /* seconds between two checks of place.stop */

typedef struct NodeHello {
    int32_t node, nodes;
    uint64_t job;
    NodeReport report;
} NodeHello;

typedef struct Reply {
    int32_t verdict;
    RendezvousAnswer answer;
} Reply;

_Static_assert(sizeof(NodeHello) == 288 && sizeof(Reply) == 812, "messages have no padding: they are the same on every host");

/* A node's state at node 0. */
typedef struct Seat {
    Channel channel; /* closed: no connection, as for node 0 itself */
    bool here;       /* has reported and waits for the answer */
    bool member;     /* took part in the last attempt; before the first one all nodes count as members */
    NodeReport report;
    char address[256];
} Seat;

struct Rendezvous {
    RendezvousPlace place;
    uint64_t job;
    struct sockaddr_storage first; /* node 0's address */
    Acceptor *acceptor;            /* on node 0 */
    Seat *seats;                   /* on node 0 */
    AttemptId attempt;             /* on node 0: the latest one */
    double began;                  /* when the first member came; 0: none yet */
};

/* Returns a hash of the command and the Slurm job. Nodes of another run with the same secret differ
 * in one of them. */
static uint64_t job_of(char *const *command) {
    const char *job = getenv("SLURM_JOB_ID");
    SCOPED_FREE char *text = memory_copy_string(job ? job : "");
    for (; *command; command++) {
        SCOPED_FREE char *before = text;
        text = memory_format("%s\n%s", before, *command);
    }
    return hash_bytes(text, strlen(text));
}

static bool listen_for_nodes(Rendezvous *rendezvous, Error *error) {
    const RendezvousPlace *place = &rendezvous->place;
    AcceptorOptions options = {.secret = place->secret,
        .service = CHANNEL_NODES,
        .host = place->address,
        .address = &rendezvous->first,
        .lost = LOST_SECONDS,
        .hello_bytes = sizeof(NodeHello)};
    double until = log_seconds() + LOST_SECONDS; /* an earlier run may be about to end */
    while (!(rendezvous->acceptor = acceptor_open(&options)) && errno == EADDRINUSE && log_seconds() < until && !place->stop->signal)
        usleep((useconds_t)(slice * 1e6));
    return rendezvous->acceptor || error_set(error, ERROR_COMMUNICATION, "node 0 cannot listen on port %d: %s; set another MASTER_PORT",
                                       place->port, strerror(errno));
}

Rendezvous *rendezvous_open(const RendezvousPlace *place, Error *error) {
    assert(place->node >= 0 && place->node < place->nodes && place->least <= place->nodes);
    Rendezvous *rendezvous = memory_allocate(sizeof *rendezvous);
    *rendezvous = (Rendezvous){.place = *place, .job = job_of(place->command)};
    bool opened = socket_resolve(place->address, place->port, &rendezvous->first, error);
    if (opened && place->node == 0) {
        opened = listen_for_nodes(rendezvous, error) &&
                 secret_random(rendezvous->attempt.supervisor, sizeof rendezvous->attempt.supervisor, error);
        rendezvous->seats = memory_allocate((size_t)place->nodes * sizeof *rendezvous->seats);
        for (int node = 0; node < place->nodes; node++) rendezvous->seats[node].member = true;
    }
    if (opened) return rendezvous;
    rendezvous_close(rendezvous);
    return NULL;
}

void rendezvous_close(Rendezvous *rendezvous) {
    if (!rendezvous) return;
    for (int node = 0; rendezvous->seats && node < rendezvous->place.nodes; node++) channel_close(&rendezvous->seats[node].channel);
    acceptor_close(rendezvous->acceptor);
    free(rendezvous->seats);
    free(rendezvous);
}

/* -- Node 0: who is here ------------------------------------------------------------------------------------------- */

static void leave_seat(Seat *seat) {
    channel_close(&seat->channel);
    seat->here = false;
}

static void take_seat(Seat *seat, const Channel *channel, const NodeReport *report) {
    leave_seat(seat); /* of a supervisor that died, or that reports again */
    seat->channel = *channel;
    seat->here = true;
    seat->report = *report;
    seat->report.name[sizeof report->name - 1] = seat->report.reason[sizeof report->reason - 1] = 0;
}

static bool is_sound(const Rendezvous *rendezvous, const NodeHello *hello) {
    const NodeReport *report = &hello->report;
    return hello->job == rendezvous->job && hello->nodes == rendezvous->place.nodes && hello->node > 0 && hello->node < hello->nodes &&
           report->state >= NODE_READY && report->state <= NODE_ENDS && report->ranks > 0 && report->ranks <= MOST_RANKS &&
           report->copy > 0 && report->copy <= MOST_COPY && report->port > 0 && report->port < 65536 && report->code >= 0 &&
           report->code < 128;
}

/* Notes the address at which the others reach a node: the one that node 0 sees, or node 0's address
 * if both are on one host. */
static void note_address(const Rendezvous *rendezvous, Seat *seat) {
    struct sockaddr_storage from = rendezvous->first;
    socklen_t size = sizeof from;
    (void)!getpeername(seat->channel.socket, (struct sockaddr *)&from, &size);
    if (socket_is_loopback(&from)) snprintf(seat->address, sizeof seat->address, "%s", rendezvous->place.address);
    else socket_describe(&from, seat->address);
}

/* Seats a node that connects. A node keeps its seat while its connection lasts, even if another one
 * claims its number. */
static void admit(Rendezvous *rendezvous, Channel *channel, const NodeHello *hello) {
    double until = log_seconds() + HELLO_SECONDS;
    Seat *seat = is_sound(rendezvous, hello) ? &rendezvous->seats[hello->node] : NULL;
    if (!seat) channel_answer(channel, CHANNEL_REFUSED, "node 0 runs a different command or expects a different number of nodes", until);
    else if (channel_is_alive(&seat->channel))
        channel_answer(
            channel, CHANNEL_LATER, "another supervisor has the same node number: set a different NODE_RANK on each node", until);
    else if (channel_answer(channel, CHANNEL_WELCOME, "", until)) {
        take_seat(seat, channel, &hello->report);
        note_address(rendezvous, seat);
    }
}

static void admit_until(Rendezvous *rendezvous, double until) {
    NodeHello hello;
    Channel channel;
    while (acceptor_next(rendezvous->acceptor, until, &channel, &hello)) admit(rendezvous, &channel, &hello);
}

void rendezvous_tend(Rendezvous *rendezvous) {
    if (rendezvous && rendezvous->seats) admit_until(rendezvous, 0);
}

/* Frees the seats of lost nodes. A report that the run is over stays valid after its node is
 * gone. */
static void notice_lost_nodes(Rendezvous *rendezvous) {
    for (int node = 1; node < rendezvous->place.nodes; node++) {
        Seat *seat = &rendezvous->seats[node];
        if (seat->here && seat->report.state != NODE_ENDS && !channel_is_alive(&seat->channel)) leave_seat(seat);
    }
}

/* -- Node 0: what becomes of the run ------------------------------------------------------------------------------- */

/* Returns the report of a member that the run is over, or NULL. */
static const NodeReport *find_end(const Rendezvous *rendezvous) {
    for (int node = 0; node < rendezvous->place.nodes; node++) {
        const Seat *seat = &rendezvous->seats[node];
        if (seat->here && seat->member && seat->report.state == NODE_ENDS) return &seat->report;
    }
    return NULL;
}

static bool takes_part(const Seat *seat) { return seat->here && seat->report.state == NODE_READY; }

/* Puts nodes beyond whole copies of the model in reserve, the last nodes first. */
static void reserve_nodes(Rendezvous *rendezvous) {
    int64_t copy = 1, ranks = 0;
    for (int node = 0; node < rendezvous->place.nodes; node++) {
        const Seat *seat = &rendezvous->seats[node];
        if (!takes_part(seat)) continue;
        ranks += seat->report.ranks;
        if (seat->report.copy > copy) copy = seat->report.copy;
    }
    for (int node = rendezvous->place.nodes; node-- > 0 && ranks % copy;) {
        Seat *seat = &rendezvous->seats[node];
        if (!takes_part(seat)) continue;
        ranks -= seat->report.ranks;
        seat->report.state = NODE_SICK;
        snprintf(seat->report.reason, sizeof seat->report.reason, "in reserve: a copy of the model needs %lld ranks", (long long)copy);
    }
}

/* Lists the missing nodes and the reasons, for people. */
static void describe_absent(const Rendezvous *rendezvous, char *text, size_t size) {
    size_t length = 0;
    text[0] = 0;
    for (int node = 0; node < rendezvous->place.nodes && length < size; node++) {
        const Seat *seat = &rendezvous->seats[node];
        char why[sizeof seat->report.name + sizeof seat->report.reason + 8];
        if (takes_part(seat)) continue;
        if (seat->here) snprintf(why, sizeof why, "(%s): %s", seat->report.name, seat->report.reason);
        else if (seat->member) snprintf(why, sizeof why, "did not connect in %.0f s", rendezvous->place.away);
        else snprintf(why, sizeof why, "is still missing");
        length += (size_t)snprintf(text + length, size - length, "%snode %d %s", length ? "; " : "", node, why);
    }
}

/* Returns the part of the answer that is the same for all members. */
static RendezvousAnswer count_members(const Rendezvous *rendezvous) {
    RendezvousAnswer answer = {0};
    for (int node = 0; node < rendezvous->place.nodes; node++) {
        const Seat *seat = &rendezvous->seats[node];
        if (!takes_part(seat)) continue;
        if (!answer.members) {
            answer.port = seat->report.port;
            snprintf(answer.address, sizeof answer.address, "%s", node ? seat->address : rendezvous->place.address);
        }
        answer.members++;
        answer.ranks += seat->report.ranks;
    }
    describe_absent(rendezvous, answer.reason, sizeof answer.reason);
    return answer;
}

static void reply_to_node(Seat *seat, RendezvousVerdict verdict, const RendezvousAnswer *answer) {
    Reply message = {.verdict = (int32_t)verdict, .answer = *answer};
    channel_send(&seat->channel, &message, sizeof message, log_seconds() + HELLO_SECONDS);
    leave_seat(seat);
}

/* Answers every node that has reported; returns node 0's own verdict. */
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
        if (seat->here) reply_to_node(seat, verdict, &answer);
        if (all == RENDEZVOUS_START) seat->member = starts;
        if (starts) answer.member++, answer.first += ranks;
    }
    rendezvous->began = 0;
    return own_verdict;
}

static RendezvousVerdict decide(Rendezvous *rendezvous, RendezvousAnswer *own) {
    const NodeReport *end = find_end(rendezvous);
    reserve_nodes(rendezvous);
    RendezvousAnswer answer = count_members(rendezvous);
    rendezvous->attempt.number++;
    answer.attempt = rendezvous->attempt;
    if (end) {
        answer.code = end->code;
        snprintf(answer.reason, sizeof answer.reason, "%s", end->reason);
    } else if (answer.members < rendezvous->place.least) {
        char absent[sizeof answer.reason];
        memcpy(absent, answer.reason, sizeof absent);
        answer.code = ERROR_COMMUNICATION;
        snprintf(answer.reason, sizeof answer.reason, "only %d of %d nodes can continue, but %d are needed (least=): %.400s",
            answer.members, rendezvous->place.nodes, rendezvous->place.least, absent);
    }
    return answer_all(rendezvous, end || answer.members < rendezvous->place.least ? RENDEZVOUS_OVER : RENDEZVOUS_START, &answer, own);
}

static RendezvousVerdict join_as_first(Rendezvous *rendezvous, const NodeReport *own, double timeout, RendezvousAnswer *answer) {
    double start = log_seconds();
    take_seat(&rendezvous->seats[0], &(Channel){0}, own);
    while (!rendezvous->place.stop->signal) {
        bool any = false, all = true;
        admit_until(rendezvous, log_seconds() + slice);
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

/* Returns -1 if nobody listens at node 0's address. */
static int connect_to_first(const Rendezvous *rendezvous) {
    return socket_connect(&rendezvous->first, LOST_SECONDS, log_seconds() + HELLO_SECONDS);
}

/* Reports to node 0 over `connection`; -1: there is none. ERROR_COMMUNICATION: node 0 is not there
 * now. ERROR_USAGE: it refuses this node. */
static bool report_missing(const Rendezvous *rendezvous, int connection, const NodeReport *own, Channel *channel, Error *error) {
    const RendezvousPlace *place = &rendezvous->place;
    NodeHello hello = {.node = place->node, .nodes = place->nodes, .job = rendezvous->job, .report = *own};
    double until = log_seconds() + HELLO_SECONDS;
    if (connection < 0) return error_set(error, ERROR_COMMUNICATION, "no answer");
    return channel_greet(channel, connection, place->secret, CHANNEL_NODES, &hello, sizeof hello, until, error) &&
           channel_await_welcome(channel, until, error);
}

static bool hear(Channel *channel, RendezvousVerdict *verdict, RendezvousAnswer *answer) {
    Reply message;
    if (!channel_receive(channel, &message, sizeof message, log_seconds() + HELLO_SECONDS) || message.verdict < RENDEZVOUS_START ||
        message.verdict > RENDEZVOUS_OVER)
        return false;
    *verdict = (RendezvousVerdict)message.verdict;
    *answer = message.answer;
    answer->address[sizeof answer->address - 1] = answer->reason[sizeof answer->reason - 1] = 0;
    return answer->member >= 0 && answer->first >= 0 && answer->ranks >= 0 && answer->code >= 0 && answer->code < 128;
}

static RendezvousVerdict give_up(const Rendezvous *rendezvous, const Error *error, RendezvousAnswer *answer) {
    *answer = (RendezvousAnswer){.code = (int32_t)error->code};
    if (error->code == ERROR_COMMUNICATION)
        snprintf(answer->reason, sizeof answer->reason, "node 0 at %.200s:%d was unreachable for %.0f s: %.200s", rendezvous->place.address,
            rendezvous->place.port, rendezvous->place.away, error->message);
    else snprintf(answer->reason, sizeof answer->reason, "%.500s", error->message);
    return RENDEZVOUS_OVER;
}

/* Joins on a node other than node 0. Only the time in which node 0 has welcomed this node counts as
 * contact, whatever else listens at its address. */
static RendezvousVerdict join_as_other(Rendezvous *rendezvous, const NodeReport *own, double timeout, RendezvousAnswer *answer) {
    double start = log_seconds(), heard = start;
    SCOPED(channel_close) Channel channel = {0};
    RendezvousVerdict verdict;
    while (!rendezvous->place.stop->signal) {
        Error error = {0};
        if (!channel.open && !report_missing(rendezvous, connect_to_first(rendezvous), own, &channel, &error)) {
            if (error.code != ERROR_COMMUNICATION || log_seconds() - heard > rendezvous->place.away)
                return give_up(rendezvous, &error, answer);
            usleep((useconds_t)(slice * 1e6));
            continue;
        }
        heard = log_seconds();
        if (socket_await(channel.socket, POLLIN, heard + slice)) {
            if (hear(&channel, &verdict, answer)) return verdict;
            channel_close(&channel);
        } else if (timeout > 0 && heard - start > timeout) {
            return RENDEZVOUS_AGAIN;
        }
    }
    return RENDEZVOUS_STOPPED;
}

RendezvousVerdict rendezvous_join(Rendezvous *rendezvous, const NodeReport *own, double timeout, RendezvousAnswer *answer) {
    return rendezvous->seats ? join_as_first(rendezvous, own, timeout, answer) : join_as_other(rendezvous, own, timeout, answer);
}

/* -- The end ------------------------------------------------------------------------------------------------------- */

static void tell_all(Rendezvous *rendezvous, const RendezvousAnswer *end) {
    double until = log_seconds() + (end->code == ERROR_NONE ? 0 : END_SECONDS);
    for (bool waiting = true; waiting;) {
        RendezvousAnswer own;
        admit_until(rendezvous, log_seconds() + slice);
        waiting = false;
        for (int node = 1; node < rendezvous->place.nodes; node++) {
            rendezvous->seats[node].member = rendezvous->seats[node].member && !rendezvous->seats[node].here;
            waiting = waiting || rendezvous->seats[node].member;
        }
        answer_all(rendezvous, RENDEZVOUS_OVER, end, &own);
        waiting = waiting && log_seconds() < until && !rendezvous->place.stop->signal;
    }
}

/* Reports the end to node 0, which may be busy for a while. If nobody listens there any more,
 * nobody needs the report. */
static void tell_first(Rendezvous *rendezvous, const NodeReport *end) {
    double until = log_seconds() + END_SECONDS;
    for (int connection; (connection = connect_to_first(rendezvous)) >= 0; usleep((useconds_t)(slice * 1e6))) {
        Error error = {0};
        SCOPED(channel_close) Channel channel = {0};
        bool delivered = report_missing(rendezvous, connection, end, &channel, &error);
        if (delivered || error.code != ERROR_COMMUNICATION || rendezvous->place.stop->signal || log_seconds() > until) return;
    }
}

void rendezvous_end(Rendezvous *rendezvous, int code, const char *reason) {
    NodeReport report = {.state = NODE_ENDS, .ranks = 1, .port = 1, .copy = 1, .code = code};
    RendezvousAnswer end = {.code = code};
    snprintf(report.reason, sizeof report.reason, "%s", reason);
    snprintf(end.reason, sizeof end.reason, "%s", reason);
    if (rendezvous->seats) tell_all(rendezvous, &end);
    else tell_first(rendezvous, &report);
}
