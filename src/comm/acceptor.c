/* The acceptor: one poll over the listening socket and over every connection that has not yet
 * proved the secret. Owns these sockets. Called by the rendezvous of nodes and by the rendezvous of
 * ranks. */
#include "comm/acceptor.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "comm/socket.h"

enum { HELD = 256, BURST = 64 };
/* The shortest time that a connection keeps its place, even when all places are taken. A process of
 * the run sends its proof within this time, and HELD places still admit thousands of connections
 * per second. */
static const double least_seconds = 0.05;

/* A connection whose first bytes are being read. */
typedef struct Arrival {
    int socket;
    double since; /* log_seconds() */
    Opening opening;
    size_t count; /* bytes received */
    char *first;  /* room for channel_first_bytes() */
} Arrival;

/* Candidates are ordered by age, the oldest first. */
struct Acceptor {
    AcceptorOptions options;
    int listener, count;
    Arrival candidates[HELD];
    int64_t strangers, next_warning;
};

Acceptor *acceptor_open(const AcceptorOptions *options) {
    int listener = socket_listen_for(options->host, options->address);
    if (listener < 0) return NULL;
    Acceptor *acceptor = memory_allocate(sizeof *acceptor);
    *acceptor = (Acceptor){.options = *options, .listener = listener, .next_warning = 1};
    return acceptor;
}

int acceptor_port(const Acceptor *acceptor) {
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof address;
    getsockname(acceptor->listener, (struct sockaddr *)&address, &size);
    return socket_port(&address);
}

/* -- Candidates ---------------------------------------------------------------------------------------------------- */

/* Returns the socket, which stays open. */
static int remove_candidate(Acceptor *acceptor, int at) {
    Arrival *candidate = &acceptor->candidates[at];
    int socket = candidate->socket;
    free(candidate->first);
    memmove(candidate, candidate + 1, (size_t)(--acceptor->count - at) * sizeof *candidate);
    return socket;
}

static void drop(Acceptor *acceptor, int at) { close(remove_candidate(acceptor, at)); }

/* Resets the connection, so that the kernel keeps nothing of it. Logs a warning for the 1st, 10th,
 * 100th ... stranger. */
static void turn_away(Acceptor *acceptor, int at, const char *reason) {
    char from[SOCKET_TEXT];
    socket_describe_peer(acceptor->candidates[at].socket, from);
    socket_reset_at_close(acceptor->candidates[at].socket);
    drop(acceptor, at);
    if (++acceptor->strangers < acceptor->next_warning) return;
    acceptor->next_warning *= 10;
    log_warn("refused %lld connection%s to port %d without this job's secret; the last one, from %s, %s", (long long)acceptor->strangers,
        acceptor->strangers == 1 ? "" : "s", acceptor_port(acceptor), from, reason);
}

static void expire(Acceptor *acceptor) {
    double now = log_seconds();
    while (acceptor->count > 0 && now - acceptor->candidates[0].since > ACCEPTOR_SECONDS) turn_away(acceptor, 0, "took too long");
}

/* True if all places are taken and no place becomes free soon. */
static bool is_full(const Acceptor *acceptor) {
    return acceptor->count == HELD && log_seconds() - acceptor->candidates[0].since < least_seconds;
}

/* Frees a descriptor after EMFILE: drops the oldest candidate, or waits for other code to close
 * one. */
static bool make_descriptor(Acceptor *acceptor) {
    if (errno != EMFILE && errno != ENFILE) return false;
    if (acceptor->count > 0) turn_away(acceptor, 0, "was closed to make room for another");
    else usleep(10000);
    return true;
}

/* Returns false if no connection is waiting. */
static bool accept_candidate(Acceptor *acceptor) {
    Error error = {0};
    int taken = accept4(acceptor->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (taken < 0) return make_descriptor(acceptor);
    if (acceptor->count == HELD) turn_away(acceptor, 0, "was closed to make room for another");
    socket_prepare(taken, acceptor->options.lost);
    Arrival *candidate = &acceptor->candidates[acceptor->count++];
    *candidate =
        (Arrival){.socket = taken, .since = log_seconds(), .first = memory_allocate(channel_first_bytes(acceptor->options.hello_bytes))};
    if (!channel_opening(acceptor->options.service, &candidate->opening, &error) ||
        send(taken, &candidate->opening, sizeof candidate->opening, MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof candidate->opening)
        turn_away(acceptor, acceptor->count - 1, "closed immediately");
    return true;
}

/* -- Reading ------------------------------------------------------------------------------------------------------- */

/* Reads what a candidate has sent. Returns true once the candidate has proved the secret; drops a
 * candidate that can no longer prove it. */
static bool read_candidate(Acceptor *acceptor, int at, Channel *channel, void *hello) {
    const AcceptorOptions *options = &acceptor->options;
    Arrival *candidate = &acceptor->candidates[at];
    size_t wanted = channel_first_bytes(options->hello_bytes);
    ssize_t got = recv(candidate->socket, candidate->first + candidate->count, wanted - candidate->count, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got > 0) candidate->count += (size_t)got;
    if (got <= 0) turn_away(acceptor, at, "closed before it proved the secret");
    else if (!channel_may_begin(candidate->first, candidate->count, options->service, options->hello_bytes))
        turn_away(acceptor, at, "does not speak this version of smelt's protocol");
    else if (candidate->count < wanted) return false;
    else if (!channel_accept(channel, options->secret, &candidate->opening, candidate->first, hello, options->hello_bytes))
        turn_away(acceptor, at, "has a different secret: SMELT_SECRET must be the same for all ranks of a job");
    else {
        channel->socket = remove_candidate(acceptor, at);
        return channel->open = true;
    }
    return false;
}

/* Returns the milliseconds until the first of: the caller's time, the oldest candidate's deadline,
 * the next free place. */
static int poll_timeout(const Acceptor *acceptor, bool full, double until) {
    double oldest = acceptor->candidates[0].since;
    if (acceptor->count > 0 && oldest + ACCEPTOR_SECONDS < until) until = oldest + ACCEPTOR_SECONDS;
    if (full && oldest + least_seconds < until) until = oldest + least_seconds;
    double left = until - log_seconds();
    return left > 0 ? (int)(left * 1000) + 1 : 0;
}

bool acceptor_next(Acceptor *acceptor, double until, Channel *channel, void *hello) {
    do {
        bool full = is_full(acceptor);
        int count = acceptor->count;
        struct pollfd ready[HELD + 1] = {{full ? -1 : acceptor->listener, POLLIN, 0}};
        for (int i = 0; i < count; i++) ready[i + 1] = (struct pollfd){acceptor->candidates[i].socket, POLLIN, 0};
        if (poll(ready, (nfds_t)count + 1, poll_timeout(acceptor, full, until)) < 0) continue;
        for (int i = count - 1; i >= 0; i--)
            if (ready[i + 1].revents && read_candidate(acceptor, i, channel, hello)) return true;
        for (int i = 0; ready[0].revents && i < BURST && !is_full(acceptor); i++)
            if (!accept_candidate(acceptor)) break;
        expire(acceptor);
    } while (log_seconds() < until);
    return false;
}

void acceptor_close(Acceptor *acceptor) {
    if (!acceptor) return;
    while (acceptor->count > 0) drop(acceptor, acceptor->count - 1);
    close(acceptor->listener);
    free(acceptor);
}
