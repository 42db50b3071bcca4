/* Building blocks of TCP rendezvous: sockets that notice a silent peer, and transfers with a time
 * limit. Used by channels (channel.h) between ranks (tcp_meet.c) and between the supervisors of a
 * run's nodes (launch/rendezvous.c). Nothing here is owned; the caller closes each socket that it
 * receives. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "base/error.h"

/* Makes messages leave at once, and makes the kernel report a peer that shows no sign of life for
 * `lost` seconds. */
void socket_prepare(int socket, double lost);
/* Makes the kernel reset and forget the connection when the socket is closed, including by the
 * death of its process. */
void socket_reset_at_close(int socket);
/* Returns whether `events` of poll came before the time (log_seconds) was over. */
bool socket_await(int socket, short events, double until);
/* Transfers all bytes over a nonblocking socket. Returns false if the time is over or the
 * connection ended. */
bool socket_send(int socket, const void *data, size_t bytes, double until);
bool socket_receive(int socket, void *data, size_t bytes, double until);

/* Finds the first address of a host (a name or a number). ERROR_COMMUNICATION. */
bool socket_resolve(const char *host, int port, struct sockaddr_storage *address, Error *error);
void socket_set_port(struct sockaddr_storage *address, int port);
int socket_port(const struct sockaddr_storage *address);
/* Returns whether only this machine can reach the address. */
bool socket_is_loopback(const struct sockaddr_storage *address);
/* Writes the bare address for people: "10.0.0.7". */
enum { SOCKET_TEXT = 64 };
void socket_describe(const struct sockaddr_storage *address, char text[SOCKET_TEXT]);
void socket_describe_peer(int socket, char text[SOCKET_TEXT]); /* "?" if the peer is gone */
/* Returns this machine's address on the route to `address`, with port 0; the loopback address if
 * none is known. */
struct sockaddr_storage socket_local_address(const struct sockaddr_storage *address);

/* Returns a free port of this machine, or 0 if there is none. */
int socket_free_port(void);
/* Listens at an address of this machine, on its interface alone; port 0: any. `host` is the name
 * that was resolved to the address. If other machines cannot reach `host` there, it listens on all
 * interfaces, with a warning. (The address may belong to another machine, or be a loopback address
 * although the name is not the loopback's.) Accepting does not block. Returns -1 with errno. */
int socket_listen_for(const char *host, const struct sockaddr_storage *address);
/* Returns a nonblocking socket, or -1 if nobody answers there. */
int socket_connect(const struct sockaddr_storage *address, double lost, double until);
