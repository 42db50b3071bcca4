/* The meeting of TCP ranks. Rank 0 listens at the run's address; every other rank listens at a port of its own and tells rank 0; when all have come,
 * rank 0 sends everyone the table, and the ranks above 0 connect to each other, each to those below it. A stranger, or a rank of another job, is sent
 * away. The network is trusted: this keeps mistakes out, not attackers. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "comm/tcp.h"

enum { RETRY_MILLISECONDS = 100, HELLO_SECONDS = 5, KEEPALIVE_SECONDS = 5 };

typedef struct Hello {
    uint32_t magic, port; /* where the sender listens */
    uint64_t job;
    int32_t rank, size;
} Hello;

/* Where a rank listens, as rank 0 sees it; an IPv4 address is the end of `address`. */
typedef struct Entry { uint16_t family, port; uint8_t address[16]; } Entry;

typedef struct Meeting {
    const Place *place;
    const CommOptions *options;
    double until; /* log_seconds() */
    int *sockets;
    int listener;
    Entry *table;
} Meeting;

/* -- Sockets -------------------------------------------------------------------------------------------------------- */

static void set_option(int socket, int level, int option, int value) { (void)!setsockopt(socket, level, option, &value, sizeof value); }

/* With no time to linger, the kernel resets the connections of a process that dies. */
static void prepare(int socket, const CommOptions *options) {
    struct linger reset = {.l_onoff = 1};
    (void)!setsockopt(socket, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(options->lost * 1000));
    set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_SECONDS);
    set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_SECONDS);
    set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, (int)(options->lost / KEEPALIVE_SECONDS) + 1);
}

/* Whether `events` came before the time was over. */
static bool await(int socket, short events, double until) {
    struct pollfd ready = {socket, events, 0};
    for (double left; (left = until - log_seconds()) > 0;)
        if (poll(&ready, 1, (int)(left * 1000) + 1) > 0) return true;
    return false;
}

static bool transmit(int socket, bool receive, void *data, size_t bytes, double until) {
    for (char *at = data; bytes;) {
        if (!await(socket, receive ? POLLIN : POLLOUT, until)) return false;
        ssize_t moved = receive ? recv(socket, at, bytes, MSG_DONTWAIT) : send(socket, at, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (moved == 0 || (moved < 0 && errno != EAGAIN && errno != EINTR)) return false;
        if (moved > 0) at += moved, bytes -= (size_t)moved;
    }
    return true;
}

static void set_port(struct sockaddr_storage *address, int port) {
    if (address->ss_family == AF_INET6) ((struct sockaddr_in6 *)address)->sin6_port = htons((uint16_t)port);
    else ((struct sockaddr_in *)address)->sin_port = htons((uint16_t)port);
}

static int port_of(const struct sockaddr_storage *address) {
    return ntohs(address->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)address)->sin6_port : ((const struct sockaddr_in *)address)->sin_port);
}

static bool is_loopback_name(const char *name) { return !strcmp(name, "localhost") || !strcmp(name, "127.0.0.1") || !strcmp(name, "::1"); }

static bool resolve(const Place *place, struct sockaddr_storage *address, Error *error) {
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int result = getaddrinfo(place->address, NULL, &wanted, &found);
    if (result != 0) return error_set(error, ERROR_COMMUNICATION, "MASTER_ADDR=%s: %s", place->address, gai_strerror(result));
    memcpy(address, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    set_port(address, place->port);
    return true;
}

/* Listens at `port` (0: any) of all interfaces, or of the loopback alone where the run's address is one. -1 with errno. */
static int listen_at(const Place *place, int family, int port) {
    struct sockaddr_storage address = {.ss_family = (sa_family_t)family};
    bool local = is_loopback_name(place->address);
    if (family == AF_INET6) ((struct sockaddr_in6 *)&address)->sin6_addr = local ? in6addr_loopback : in6addr_any;
    else ((struct sockaddr_in *)&address)->sin_addr.s_addr = htonl(local ? INADDR_LOOPBACK : INADDR_ANY);
    set_port(&address, port);
    int listener = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0) return -1;
    set_option(listener, SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, SOMAXCONN) == 0) return listener;
    int number = errno;
    close(listener);
    errno = number;
    return -1;
}

/* -1 when nobody answers there. */
static int connect_to(const struct sockaddr_storage *address, const CommOptions *options, double until) {
    int result = 0, made = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t size = sizeof result;
    if (made < 0) return -1;
    prepare(made, options);
    bool connected = connect(made, (const struct sockaddr *)address, sizeof *address) == 0;
    if (!connected && errno == EINPROGRESS)
        connected = await(made, POLLOUT, until) && getsockopt(made, SOL_SOCKET, SO_ERROR, &result, &size) == 0 && result == 0;
    if (connected) return made;
    close(made);
    return -1;
}

/* -- Greetings ------------------------------------------------------------------------------------------------------ */

static bool greet(Meeting *meeting, int socket, int port) {
    Hello hello = {LABEL_MAGIC, (uint32_t)port, meeting->place->job, meeting->place->rank, meeting->place->size};
    return transmit(socket, false, &hello, sizeof hello, meeting->until);
}

/* Takes the next connection that comes and is of a rank above this one. False at the end of the time. */
static bool accept_rank(Meeting *meeting, Hello *hello) {
    const Place *place = meeting->place;
    if (!await(meeting->listener, POLLIN, meeting->until)) return false;
    hello->rank = -1;
    int taken = accept4(meeting->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (taken < 0) return true;
    prepare(taken, meeting->options);
    bool known = transmit(taken, true, hello, sizeof *hello, log_seconds() + HELLO_SECONDS) && hello->magic == LABEL_MAGIC &&
                 hello->job == place->job &&
                 hello->size == place->size && hello->rank > place->rank && hello->rank < place->size && hello->port < 65536;
    if (known) {
        if (meeting->sockets[hello->rank] >= 0) close(meeting->sockets[hello->rank]); /* it gave up the first connection */
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
        Entry *entry = &meeting->table[hello.rank];
        *entry = (Entry){.family = from.ss_family, .port = (uint16_t)hello.port};
        if (from.ss_family == AF_INET6) memcpy(entry->address, &((struct sockaddr_in6 *)&from)->sin6_addr, 16);
        else memcpy(entry->address + 12, &((struct sockaddr_in *)&from)->sin_addr, 4);
    }
}

/* -- Rank 0 --------------------------------------------------------------------------------------------------------- */

static bool listen_as_first(Meeting *meeting, int family, Error *error) {
    const Place *place = meeting->place;
    double until = log_seconds() + meeting->options->appear;
    while ((meeting->listener = listen_at(place, family, place->port)) < 0 && errno == EADDRINUSE && log_seconds() < until)
        usleep(RETRY_MILLISECONDS * 1000);
    return meeting->listener >= 0 || error_set(error, ERROR_COMMUNICATION, "rank 0 cannot listen at port %d: %s; give another MASTER_PORT",
                                               place->port, strerror(errno));
}

static bool meet_as_first(Meeting *meeting, const struct sockaddr_storage *address, Error *error) {
    size_t bytes = (size_t)meeting->place->size * sizeof *meeting->table;
    if (!listen_as_first(meeting, address->ss_family, error) || !accept_all(meeting, true, error)) return false;
    for (int rank = 1; rank < meeting->place->size; rank++)
        if (!transmit(meeting->sockets[rank], false, meeting->table, bytes, meeting->until))
            return error_set(error, ERROR_COMMUNICATION, "rank %d went away while the others appeared", rank);
    return true;
}

/* -- The others ----------------------------------------------------------------------------------------------------- */

/* Rank 0 may not listen yet, or may be that of an earlier attempt that is about to end: tries until it hands out the table. */
static bool reach_first(Meeting *meeting, const struct sockaddr_storage *address, int port, Error *error) {
    size_t bytes = (size_t)meeting->place->size * sizeof *meeting->table;
    while (log_seconds() < meeting->until) {
        int made = connect_to(address, meeting->options, meeting->until);
        if (made >= 0 && greet(meeting, made, port) && transmit(made, true, meeting->table, bytes, meeting->until)) {
            meeting->sockets[0] = made;
            return true;
        }
        if (made >= 0) close(made);
        usleep(RETRY_MILLISECONDS * 1000);
    }
    return error_set(error, ERROR_COMMUNICATION,
                     "rank %d did not hear from rank 0 at %s:%d in %.0f s: did all %d ranks start, and does the network reach it?",
                     meeting->place->rank, meeting->place->address, meeting->place->port, meeting->options->appear, meeting->place->size);
}

/* A rank that rank 0 reached over the loopback is on the host of rank 0. */
static struct sockaddr_storage address_of(const Entry *entry, const struct sockaddr_storage *first) {
    struct sockaddr_storage address = {.ss_family = entry->family};
    if (entry->family == AF_INET6) memcpy(&((struct sockaddr_in6 *)&address)->sin6_addr, entry->address, 16);
    else memcpy(&((struct sockaddr_in *)&address)->sin_addr, entry->address + 12, 4);
    bool loopback = entry->family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)&address)->sin6_addr) : entry->address[12] == 127;
    if (loopback) address = *first;
    set_port(&address, entry->port);
    return address;
}

static bool meet_as_other(Meeting *meeting, const struct sockaddr_storage *first, Error *error) {
    const Place *place = meeting->place;
    struct sockaddr_storage own = {0};
    socklen_t size = sizeof own;
    meeting->listener = listen_at(place, first->ss_family, 0);
    if (meeting->listener < 0 || getsockname(meeting->listener, (struct sockaddr *)&own, &size) != 0)
        return error_set(error, ERROR_COMMUNICATION, "rank %d cannot listen: %s", place->rank, strerror(errno));
    if (!reach_first(meeting, first, port_of(&own), error)) return false;
    for (int rank = 1; rank < place->rank; rank++) {
        struct sockaddr_storage address = address_of(&meeting->table[rank], first);
        meeting->sockets[rank] = connect_to(&address, meeting->options, meeting->until);
        if (meeting->sockets[rank] < 0 || !greet(meeting, meeting->sockets[rank], 0)) {
            char host[INET6_ADDRSTRLEN + 1] = "?";
            getnameinfo((struct sockaddr *)&address, sizeof address, host, sizeof host, NULL, 0, NI_NUMERICHOST);
            return error_set(error, ERROR_COMMUNICATION,
                             "rank %d does not reach rank %d at %s:%d: the network must let all ranks connect to each other", place->rank, rank,
                             host, meeting->table[rank].port);
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
    bool met = resolve(place, &first, error) && (place->rank == 0 ? meet_as_first(&meeting, &first, error) : meet_as_other(&meeting, &first, error));
    for (int rank = 0; !met && rank < place->size; rank++)
        if (meeting.sockets[rank] >= 0) close(meeting.sockets[rank]);
    if (meeting.listener >= 0) close(meeting.listener);
    free(meeting.table);
    if (met) return meeting.sockets;
    free(meeting.sockets);
    return NULL;
}
