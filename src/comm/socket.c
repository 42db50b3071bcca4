/* Sockets for TCP rendezvous. Owns nothing. */
#include "comm/socket.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
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

void socket_reset_at_close(int socket) {
    struct linger reset = {.l_onoff = 1};
    (void)!setsockopt(socket, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
}

bool socket_await(int socket, short events, double until) {
    struct pollfd ready = {socket, events, 0};
    for (double left; (left = until - log_seconds()) > 0;)
        if (poll(&ready, 1, (int)(left * 1000) + 1) > 0) return true;
    return false;
}

static bool move_all(int socket, bool receive, char *data, size_t bytes, double until) {
    while (bytes > 0) {
        if (!socket_await(socket, receive ? POLLIN : POLLOUT, until)) return false;
        ssize_t moved = receive ? recv(socket, data, bytes, MSG_DONTWAIT) : send(socket, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
        if ((receive && moved == 0) || (moved < 0 && errno != EAGAIN && errno != EINTR)) return false;
        if (moved > 0) data += moved, bytes -= (size_t)moved;
    }
    return true;
}

bool socket_send(int socket, const void *data, size_t bytes, double until) { return move_all(socket, false, (char *)data, bytes, until); }

bool socket_receive(int socket, void *data, size_t bytes, double until) { return move_all(socket, true, data, bytes, until); }

/* -- Addresses ----------------------------------------------------------------------------------------------------- */

void socket_set_port(struct sockaddr_storage *address, int port) {
    if (address->ss_family == AF_INET6) ((struct sockaddr_in6 *)address)->sin6_port = htons((uint16_t)port);
    else ((struct sockaddr_in *)address)->sin_port = htons((uint16_t)port);
}

int socket_port(const struct sockaddr_storage *address) {
    return ntohs(address->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)address)->sin6_port
                                                : ((const struct sockaddr_in *)address)->sin_port);
}

bool socket_is_loopback(const struct sockaddr_storage *address) {
    if (address->ss_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
    return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

void socket_describe(const struct sockaddr_storage *address, char text[SOCKET_TEXT]) {
    if (getnameinfo((const struct sockaddr *)address, sizeof *address, text, SOCKET_TEXT, NULL, 0, NI_NUMERICHOST) != 0)
        snprintf(text, SOCKET_TEXT, "?");
}

void socket_describe_peer(int socket, char text[SOCKET_TEXT]) {
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof address;
    (void)!getpeername(socket, (struct sockaddr *)&address, &size);
    socket_describe(&address, text);
}

bool socket_resolve(const char *host, int port, struct sockaddr_storage *address, Error *error) {
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int result = getaddrinfo(host, NULL, &wanted, &found);
    if (result != 0) return error_set(error, ERROR_COMMUNICATION, "the host %.255s: %s", host, gai_strerror(result));
    memcpy(address, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    socket_set_port(address, port);
    return true;
}

/* -- Connections --------------------------------------------------------------------------------------------------- */

static struct sockaddr_storage any_address(sa_family_t family) { return (struct sockaddr_storage){.ss_family = family}; }

/* Uses the route that packets to the address would take; no packet is sent. */
struct sockaddr_storage socket_local_address(const struct sockaddr_storage *address) {
    struct sockaddr_storage own = any_address(address->ss_family);
    socklen_t size = sizeof own;
    int made = socket(address->ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (made < 0 || connect(made, (const struct sockaddr *)address, sizeof *address) != 0 ||
        getsockname(made, (struct sockaddr *)&own, &size) != 0) {
        if (own.ss_family == AF_INET6) ((struct sockaddr_in6 *)&own)->sin6_addr = in6addr_loopback;
        else ((struct sockaddr_in *)&own)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    }
    if (made >= 0) close(made);
    socket_set_port(&own, 0);
    return own;
}

static int bind_to(const struct sockaddr_storage *address) {
    int made = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (made < 0) return -1;
    set_option(made, SOL_SOCKET, SO_REUSEADDR, 1);
    if (bind(made, (const struct sockaddr *)address, sizeof *address) == 0) return made;
    int number = errno;
    close(made);
    errno = number;
    return -1;
}

int socket_free_port(void) {
    struct sockaddr_storage address = any_address(AF_INET);
    socklen_t size = sizeof address;
    int made = bind_to(&address), port = 0;
    if (made >= 0 && getsockname(made, (struct sockaddr *)&address, &size) == 0) port = socket_port(&address);
    if (made >= 0) close(made);
    return port;
}

static int listen_at(const struct sockaddr_storage *address) {
    int listener = bind_to(address);
    if (listener < 0 || listen(listener, SOMAXCONN) == 0) return listener;
    int number = errno;
    close(listener);
    errno = number;
    return -1;
}

static bool names_loopback(const char *host) { return !strcmp(host, "localhost") || !strncmp(host, "127.", 4) || !strcmp(host, "::1"); }

int socket_listen_for(const char *host, const struct sockaddr_storage *address) {
    bool hidden = socket_is_loopback(address) && !names_loopback(host);
    int listener = hidden ? -1 : listen_at(address);
    if (!hidden && (listener >= 0 || errno != EADDRNOTAVAIL)) return listener;
    char number[SOCKET_TEXT];
    struct sockaddr_storage any = any_address(address->ss_family);
    socket_set_port(&any, socket_port(address));
    socket_describe(address, number);
    listener = listen_at(&any);
    if (listener >= 0)
        log_warn("MASTER_ADDR=%.255s (%s on this machine) is %s: listening on all interfaces; set it to the address of one interface to "
                 "listen only there",
            host, number, hidden ? "not reachable from other machines" : "not an address of this machine");
    return listener;
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
