/* Sockets of meetings over TCP. Owns nothing. */
#include "comm/socket.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

enum { KEEPALIVE_SECONDS = 5 };

static void set_option(int socket, int level, int option, int value) { (void)!setsockopt(socket, level, option, &value, sizeof value); }

void socket_prepare(int socket, double lost) {
    set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(lost * 1000));
    set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_SECONDS);
    set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_SECONDS);
    set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, (int)(lost / KEEPALIVE_SECONDS) + 1);
}

bool socket_await(int socket, short events, double until) {
    struct pollfd ready = {socket, events, 0};
    for (double left; (left = until - log_seconds()) > 0;)
        if (poll(&ready, 1, (int)(left * 1000) + 1) > 0) return true;
    return false;
}

static bool move(int socket, bool receive, char *data, size_t bytes, double until) {
    while (bytes > 0) {
        if (!socket_await(socket, receive ? POLLIN : POLLOUT, until)) return false;
        ssize_t moved = receive ? recv(socket, data, bytes, MSG_DONTWAIT) : send(socket, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if ((receive && moved == 0) || (moved < 0 && errno != EAGAIN && errno != EINTR)) return false;
        if (moved > 0) data += moved, bytes -= (size_t)moved;
    }
    return true;
}

bool socket_send(int socket, const void *data, size_t bytes, double until) { return move(socket, false, (char *)data, bytes, until); }

bool socket_receive(int socket, void *data, size_t bytes, double until) { return move(socket, true, data, bytes, until); }

/* -- Addresses ----------------------------------------------------------------------------------------------------- */

void socket_set_port(struct sockaddr_storage *address, int port) {
    if (address->ss_family == AF_INET6) ((struct sockaddr_in6 *)address)->sin6_port = htons((uint16_t)port);
    else ((struct sockaddr_in *)address)->sin_port = htons((uint16_t)port);
}

int socket_port(const struct sockaddr_storage *address) {
    return ntohs(address->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)address)->sin6_port
                                                : ((const struct sockaddr_in *)address)->sin_port);
}

bool socket_is_loopback(const char *host) { return !strcmp(host, "localhost") || !strcmp(host, "127.0.0.1") || !strcmp(host, "::1"); }

bool socket_resolve(const char *host, int port, struct sockaddr_storage *address, Error *error) {
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int result = getaddrinfo(host, NULL, &wanted, &found);
    if (result != 0) return error_set(error, ERROR_COMMUNICATION, "MASTER_ADDR=%.255s: %s", host, gai_strerror(result));
    memcpy(address, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    socket_set_port(address, port);
    return true;
}

/* -- Connections --------------------------------------------------------------------------------------------------- */

int socket_listen(int family, bool loopback, int port) {
    struct sockaddr_storage address = {.ss_family = (sa_family_t)family};
    if (family == AF_INET6) ((struct sockaddr_in6 *)&address)->sin6_addr = loopback ? in6addr_loopback : in6addr_any;
    else ((struct sockaddr_in *)&address)->sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
    socket_set_port(&address, port);
    int listener = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0) return -1;
    set_option(listener, SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, SOMAXCONN) == 0) return listener;
    int number = errno;
    close(listener);
    errno = number;
    return -1;
}

int socket_connect(const struct sockaddr_storage *address, double lost, double until) {
    int result = 0, made = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t size = sizeof result;
    if (made < 0) return -1;
    socket_prepare(made, lost);
    bool connected = connect(made, (const struct sockaddr *)address, sizeof *address) == 0;
    if (!connected && errno == EINPROGRESS)
        connected = socket_await(made, POLLOUT, until) && getsockopt(made, SOL_SOCKET, SO_ERROR, &result, &size) == 0 && result == 0;
    if (connected) return made;
    close(made);
    return -1;
}
