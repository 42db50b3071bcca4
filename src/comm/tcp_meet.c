/* How TCP ranks connect to each other. Rank 0 listens at the run's address; every other rank listens at a port of
 * its own and tells rank 0; when all have come, rank 0 sends everyone the table, and the ranks above 0 connect to
 * each other, each to those below it. A stranger, or a rank of another job, is sent away. The network is trusted:
 * this keeps mistakes out, not attackers. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "comm/comm_internal.h"
#include "comm/socket.h"

enum { RETRY_MILLISECONDS = 100, HELLO_SECONDS = 5 };

typedef struct Hello {
    uint32_t magic, port; /* where the sender listens */
    uint64_t job;
    int32_t rank, size;
} Hello;

/* Where a rank listens, as rank 0 sees it: a sockaddr_in or sockaddr_in6, as its family says. */
typedef struct sockaddr_in6 Entry;

typedef struct Meeting {
    const Place *place;
    const CommOptions *options;
    double until; /* log_seconds() */
    int *sockets;
    int listener;
    Entry *table;
} Meeting;

/* With no time to linger, the kernel resets the connections of a process that dies. */
static void reset_at_death(int socket) {
    struct linger reset = {.l_onoff = 1};
    (void)!setsockopt(socket, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
}

static int connect_to(const struct sockaddr_storage *address, const CommOptions *options, double until) {
    int made = socket_connect(address, options->lost, until);
    if (made >= 0) reset_at_death(made);
    return made;
}

/* -- Greetings ----------------------------------------------------------------------------------------------------- */

static bool greet(Meeting *meeting, int socket, int port) {
    Hello hello = {LABEL_MAGIC, (uint32_t)port, meeting->place->job, meeting->place->rank, meeting->place->size};
    return socket_send(socket, &hello, sizeof hello, meeting->until);
}

/* Takes the next connection that comes and is of a rank above this one. False at the end of the time. */
static bool accept_rank(Meeting *meeting, Hello *hello) {
    const Place *place = meeting->place;
    if (!socket_await(meeting->listener, POLLIN, meeting->until)) return false;
    hello->rank = -1;
    int taken = accept4(meeting->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (taken < 0) return true;
    socket_prepare(taken, meeting->options->lost);
    reset_at_death(taken);
    bool known = socket_receive(taken, hello, sizeof *hello, log_seconds() + HELLO_SECONDS) && hello->magic == LABEL_MAGIC &&
                 hello->job == place->job && hello->size == place->size && hello->rank > place->rank && hello->rank < place->size &&
                 hello->port < 65536;
    if (known) {
        if (meeting->sockets[hello->rank] >= 0) close(meeting->sockets[hello->rank]); /* an abandoned one */
        meeting->sockets[hello->rank] = taken;
    } else {
        hello->rank = -1;
        close(taken);
    }
    return true;
}

static bool accept_all(Meeting *meeting, bool note, Error *error) {
    const Place *place = meeting->place;
    for (;;) {
        Hello hello;
        int missing = 0, first = -1;
        for (int rank = place->size - 1; rank > place->rank; rank--)
            if (meeting->sockets[rank] < 0) missing++, first = rank;
        if (!missing) return true;
        if (!accept_rank(meeting, &hello))
            return error_set(error, ERROR_COMMUNICATION,
                "%d of %d ranks did not reach rank %d in %.0f s, the first of them rank %d: did it start, and does its network reach %s?",
                missing, place->size, place->rank, meeting->options->appear, first, place->address);
        if (!note || hello.rank < 0) continue;
        struct sockaddr_storage from = {0};
        socklen_t size = sizeof from;
        getpeername(meeting->sockets[hello.rank], (struct sockaddr *)&from, &size);
        socket_set_port(&from, (int)hello.port);
        memcpy(&meeting->table[hello.rank], &from, sizeof *meeting->table);
    }
}

/* -- Rank 0 -------------------------------------------------------------------------------------------------------- */

static bool listen_as_first(Meeting *meeting, int family, Error *error) {
    const Place *place = meeting->place;
    double until = log_seconds() + meeting->options->appear;
    bool loopback = socket_is_loopback(place->address);
    while ((meeting->listener = socket_listen(family, loopback, place->port)) < 0 && errno == EADDRINUSE && log_seconds() < until)
        usleep(RETRY_MILLISECONDS * 1000);
    return meeting->listener >= 0 || error_set(error, ERROR_COMMUNICATION, "rank 0 cannot listen at port %d: %s; give another MASTER_PORT",
                                         place->port, strerror(errno));
}

static bool meet_as_first(Meeting *meeting, const struct sockaddr_storage *address, Error *error) {
    size_t bytes = (size_t)meeting->place->size * sizeof *meeting->table;
    if (!listen_as_first(meeting, address->ss_family, error) || !accept_all(meeting, true, error)) return false;
    for (int rank = 1; rank < meeting->place->size; rank++)
        if (!socket_send(meeting->sockets[rank], meeting->table, bytes, meeting->until))
            return error_set(error, ERROR_COMMUNICATION, "rank %d went away while the others appeared", rank);
    return true;
}

/* -- The others ---------------------------------------------------------------------------------------------------- */

/* Rank 0 may not listen yet, or may be that of an earlier attempt that is about to end: tries until it hands out the
 * table. */
static bool reach_first(Meeting *meeting, const struct sockaddr_storage *address, int port, Error *error) {
    size_t bytes = (size_t)meeting->place->size * sizeof *meeting->table;
    while (log_seconds() < meeting->until) {
        int made = connect_to(address, meeting->options, meeting->until);
        if (made >= 0 && greet(meeting, made, port) && socket_receive(made, meeting->table, bytes, meeting->until)) {
            meeting->sockets[0] = made;
            return true;
        }
        if (made >= 0) close(made);
        usleep(RETRY_MILLISECONDS * 1000);
    }
    return error_set(error, ERROR_COMMUNICATION,
        "rank %d did not hear from rank 0 at %s:%d in %.0f s: did all %d ranks start, and does the network reach it?", meeting->place->rank,
        meeting->place->address, meeting->place->port, meeting->options->appear, meeting->place->size);
}

/* A rank that rank 0 reached over the loopback is on the host of rank 0. */
static struct sockaddr_storage address_of(const Entry *entry, const struct sockaddr_storage *first) {
    struct sockaddr_storage address = {0};
    memcpy(&address, entry, sizeof *entry);
    bool loopback = entry->sin6_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&entry->sin6_addr)
                                                   : *(uint8_t *)&((struct sockaddr_in *)&address)->sin_addr == 127;
    if (!loopback) return address;
    int port = socket_port(&address);
    address = *first;
    socket_set_port(&address, port);
    return address;
}

static bool meet_as_other(Meeting *meeting, const struct sockaddr_storage *first, Error *error) {
    const Place *place = meeting->place;
    struct sockaddr_storage own = {0};
    socklen_t size = sizeof own;
    meeting->listener = socket_listen(first->ss_family, socket_is_loopback(place->address), 0);
    if (meeting->listener < 0 || getsockname(meeting->listener, (struct sockaddr *)&own, &size) != 0)
        return error_set(error, ERROR_COMMUNICATION, "rank %d cannot listen: %s", place->rank, strerror(errno));
    if (!reach_first(meeting, first, socket_port(&own), error)) return false;
    for (int rank = 1; rank < place->rank; rank++) {
        struct sockaddr_storage address = address_of(&meeting->table[rank], first);
        meeting->sockets[rank] = connect_to(&address, meeting->options, meeting->until);
        if (meeting->sockets[rank] < 0 || !greet(meeting, meeting->sockets[rank], 0)) {
            char host[INET6_ADDRSTRLEN + 1] = "?";
            getnameinfo((struct sockaddr *)&address, sizeof address, host, sizeof host, NULL, 0, NI_NUMERICHOST);
            return error_set(error, ERROR_COMMUNICATION,
                "rank %d does not reach rank %d at %s:%d: the network must let all ranks connect to each other", place->rank, rank, host,
                socket_port(&address));
        }
    }
    return accept_all(meeting, false, error);
}

int *tcp_meet(const Place *place, const CommOptions *options, Error *error) {
    Meeting meeting = {.place = place, .options = options, .until = log_seconds() + options->appear, .listener = -1};
    struct sockaddr_storage first = {0};
    meeting.sockets = memory_allocate((size_t)place->size * sizeof *meeting.sockets);
    meeting.table = memory_allocate((size_t)place->size * sizeof *meeting.table);
    for (int rank = 0; rank < place->size; rank++) meeting.sockets[rank] = -1;
    bool met = socket_resolve(place->address, place->port, &first, error) &&
               (place->rank == 0 ? meet_as_first : meet_as_other)(&meeting, &first, error);
    for (int rank = 0; !met && rank < place->size; rank++)
        if (meeting.sockets[rank] >= 0) close(meeting.sockets[rank]);
    if (meeting.listener >= 0) close(meeting.listener);
    free(meeting.table);
    if (met) return meeting.sockets;
    free(meeting.sockets);
    return NULL;
}
