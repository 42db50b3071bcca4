/* Messages over TCP: one connection per pair of ranks. An exchange moves bytes on all
 * connections that are ready. The kernel resends through network outages that are shorter than
 * CommOptions.lost, and reports a peer that shows no sign of life for longer. A process that
 * dies resets its connections, which the peers notice at once. Owns the sockets. Made by
 * comm_open from the connections of tcp_meet.c, used by the worker. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "comm/comm_internal.h"

enum { POLL_MILLISECONDS = 100, MOST_AT_ONCE = 1 << 20 };

typedef struct Tcp {
    Transport transport;
    int size;
    int *sockets; /* by rank; this rank's own is -1 */
} Tcp;

bool label_check(const Transfer *transfer, Error *error) {
    const Label *wanted = &transfer->label, *seen = &transfer->seen;
    if (!memcmp(wanted, seen, sizeof *wanted)) return true;
    if (seen->magic != LABEL_MAGIC) return error_set(error, ERROR_COMMUNICATION, "rank %d sent an invalid message", transfer->peer);
    char name[NAME_BYTES + 1];
    snprintf(name, sizeof name, "%.*s", NAME_BYTES, seen->name);
    return error_set(error, ERROR_COMMUNICATION,
        "rank %d is in a different collective: %s '%s' (number %llu) with %lld elements in a message of %lld bytes, but this rank expects "
        "%lld elements, %lld bytes (its group %08x, type %d, reduction %d, phase %d; this rank's %08x, %d, %d, %d): the ranks do not run "
        "the same program",
        transfer->peer, operation_name(seen->operation), one_line(name), (unsigned long long)seen->sequence, (long long)seen->total,
        (long long)seen->bytes, (long long)wanted->total, (long long)wanted->bytes, seen->group, seen->type, seen->reduce, seen->phase,
        wanted->group, wanted->type, wanted->reduce, wanted->phase);
}

static bool lost(int peer, int number, Error *error) {
    if (number == 0) return error_set(error, ERROR_COMMUNICATION, "rank %d already exited: the ranks do not run the same program", peer);
    if (number == ECONNRESET || number == EPIPE)
        return error_set(error, ERROR_COMMUNICATION, "rank %d closed its connection: it failed or was killed; see its own messages", peer);
    return error_set(error, ERROR_COMMUNICATION, "rank %d is lost: %s; check its host and the network", peer, strerror(number));
}

/* -- Messages ------------------------------------------------------------------------------------------------------ */

enum { LABEL_BYTES = sizeof(Label) };

static bool finished(const Transfer *transfer) { return transfer->moved == LABEL_BYTES + transfer->bytes; }

/* Lists the rest of the label, then the rest of the data. */
static int remaining(Transfer *transfer, Label *label, struct iovec *parts) {
    int count = 0;
    int64_t at = transfer->moved - LABEL_BYTES, left = transfer->bytes - (at > 0 ? at : 0);
    if (at < 0) parts[count++] = (struct iovec){(char *)label + transfer->moved, (size_t)-at};
    if (left > 0 && (at >= 0 || !transfer->receive))
        parts[count++] = (struct iovec){transfer->data + (at > 0 ? at : 0), (size_t)(left < MOST_AT_ONCE ? left : MOST_AT_ONCE)};
    return count;
}

/* Makes one system call. Data is received only after its label was checked. */
static bool move_some(Transfer *transfer, int socket, Error *error) {
    struct iovec parts[2];
    struct msghdr message = {.msg_iov = parts};
    bool labeled = transfer->moved >= LABEL_BYTES;
    message.msg_iovlen = (size_t)remaining(transfer, transfer->receive ? &transfer->seen : &transfer->label, parts);
    ssize_t bytes = transfer->receive ? recvmsg(socket, &message, MSG_DONTWAIT) : sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (bytes <= 0) return lost(transfer->peer, bytes < 0 ? errno : 0, error);
    transfer->moved += bytes;
    return !transfer->receive || labeled || transfer->moved < LABEL_BYTES || label_check(transfer, error);
}

static bool tcp_exchange(Transport *transport, Transfer *transfers, int count, Error *error) {
    Tcp *tcp = (Tcp *)transport;
    double start = log_seconds();
    SCOPED_FREE struct pollfd *ready = memory_allocate((size_t)(count + 1) * sizeof *ready);
    for (int i = 0; i < count; i++) ready[i] = (struct pollfd){tcp->sockets[transfers[i].peer], transfers[i].receive ? POLLIN : POLLOUT, 0};
    for (;;) {
        int waiting = -1;
        for (int i = 0; i < count; i++) {
            if (ready[i].revents && !move_some(&transfers[i], ready[i].fd, error)) return false;
            if (finished(&transfers[i])) ready[i].fd = -1;
            else waiting = i;
        }
        if (waiting < 0) return true;
        if (engine_stopped(transport->engine, start, &transfers[waiting], error)) return false;
        if (poll(ready, (nfds_t)count, POLL_MILLISECONDS) < 0)
            for (int i = 0; i < count; i++) ready[i].revents = 0;
    }
}

/* Detects dead peers. tcp_meet.c makes a process that dies reset its connections; tcp_close does
 * not reset them. */
static bool watch_tcp(Transport *transport, Error *error) {
    Tcp *tcp = (Tcp *)transport;
    for (int peer = 0; peer < tcp->size; peer++) {
        struct pollfd ready = {tcp->sockets[peer], 0, 0};
        int number = 0;
        socklen_t size = sizeof number;
        if (ready.fd < 0 || poll(&ready, 1, 0) <= 0 || !(ready.revents & POLLERR)) continue;
        getsockopt(ready.fd, SOL_SOCKET, SO_ERROR, &number, &size);
        return lost(peer, number ? number : ECONNRESET, error);
    }
    return true;
}

static void tcp_close(Transport *transport, bool orderly) {
    Tcp *tcp = (Tcp *)transport;
    struct linger in_order = {0};
    for (int peer = 0; peer < tcp->size; peer++) {
        if (tcp->sockets[peer] < 0) continue;
        if (orderly) (void)!setsockopt(tcp->sockets[peer], SOL_SOCKET, SO_LINGER, &in_order, sizeof in_order);
        close(tcp->sockets[peer]);
    }
    free(tcp->sockets);
    free(tcp);
}

Transport *tcp_open(CommEngine *engine, Error *error) {
    char who[32];
    snprintf(who, sizeof who, "%d ranks", engine->place.size);
    if (!secret_find(who, &engine->place.secret, error)) return NULL;
    Tcp *tcp = memory_allocate(sizeof *tcp);
    *tcp = (Tcp){.transport = {.name = "TCP", .exchange = tcp_exchange, .watch = watch_tcp, .close = tcp_close, .engine = engine},
        .size = engine->place.size};
    tcp->sockets = tcp_meet(&engine->place, &engine->options, error);
    if (tcp->sockets) return &tcp->transport;
    free(tcp);
    return NULL;
}
