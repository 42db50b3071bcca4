/* What meetings over TCP are made of: sockets that notice a silent peer, and moves that end at a time. For the ranks
 * (tcp_meet.c) and for the supervisors of a run's nodes (launch/rendezvous.c). Nothing here is owned; the caller
 * closes what it is given. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "base/error.h"

/* Messages leave at once; a peer without a sign of life for `lost` seconds is reported by the kernel. */
void socket_prepare(int socket, double lost);
/* Whether `events` of poll came before the time (log_seconds) was over. */
bool socket_await(int socket, short events, double until);
/* All bytes, of a socket that does not block. False when the time is over or the connection ended. */
bool socket_send(int socket, const void *data, size_t bytes, double until);
bool socket_receive(int socket, void *data, size_t bytes, double until);

/* The first address of a host (a name or a number). ERROR_COMMUNICATION. */
bool socket_resolve(const char *host, int port, struct sockaddr_storage *address, Error *error);
void socket_set_port(struct sockaddr_storage *address, int port);
int socket_port(const struct sockaddr_storage *address);
/* Whether a host is this machine's loopback by name: then nobody else need reach it. */
bool socket_is_loopback(const char *host);
/* Listens at `port` (0: any) of all interfaces, or of the loopback alone. -1 with errno. */
int socket_listen(int family, bool loopback, int port);
/* -1 when nobody answers there. Does not block afterwards. */
int socket_connect(const struct sockaddr_storage *address, double lost, double until);
