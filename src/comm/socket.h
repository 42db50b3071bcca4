/* What meetings over TCP are made of: sockets that notice a silent peer, and moves that end at a time. For channels
 * (channel.h) between the ranks (tcp_meet.c) and between the supervisors of a run's nodes (launch/rendezvous.c).
 * Nothing here is owned; the caller closes what it is given. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#include "base/error.h"

/* Messages leave at once; a peer without a sign of life for `lost` seconds is reported by the kernel. */
void socket_prepare(int socket, double lost);
/* The kernel resets the connection when the socket is closed, also by the death of its process, and forgets it. */
void socket_reset_at_close(int socket);
/* Whether `events` of poll came before the time (log_seconds) was over. */
bool socket_await(int socket, short events, double until);
/* All bytes, of a socket that does not block. False when the time is over or the connection ended. */
bool socket_send(int socket, const void *data, size_t bytes, double until);
bool socket_receive(int socket, void *data, size_t bytes, double until);

/* The first address of a host (a name or a number). ERROR_COMMUNICATION. */
bool socket_resolve(const char *host, int port, struct sockaddr_storage *address, Error *error);
void socket_set_port(struct sockaddr_storage *address, int port);
int socket_port(const struct sockaddr_storage *address);
/* Whether only this machine reaches an address. */
bool socket_is_loopback(const struct sockaddr_storage *address);
/* A number and nothing else, for people: "10.0.0.7". */
enum { SOCKET_TEXT = 64 };
void socket_describe(const struct sockaddr_storage *address, char text[SOCKET_TEXT]);
void socket_describe_peer(int socket, char text[SOCKET_TEXT]); /* "?" when it is gone */
/* The address of this machine from which an address is reached, with port 0; of the loopback when none is known. */
struct sockaddr_storage socket_local_address(const struct sockaddr_storage *address);

/* A port of this machine that nobody listens on; 0 when there is none. */
int socket_free_port(void);
/* Listens at an address of this machine, on its interface alone; port 0: any. `host` is the name that it was resolved
 * from. Where other machines cannot reach `host` there (it is no address of this machine, or one of the loopback
 * though the name is not the loopback's) it listens on all interfaces, with a warning. Accepting does not block. -1
 * with errno. */
int socket_listen_for(const char *host, const struct sockaddr_storage *address);
/* -1 when nobody answers there. Does not block afterwards. */
int socket_connect(const struct sockaddr_storage *address, double lost, double until);
