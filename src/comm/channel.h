/* Connections of one job: both ends prove that they know its secret, and every message proves who sent it. Used by
 * the supervisors of a run's nodes (launch/rendezvous.c) and by its ranks while they meet (tcp_meet.c).
 *
 *     server                              client
 *     opening: version, nonce       --->
 *                                   <---  opening: version, nonce
 *                                   <---  hello: who it is
 *     verdict: welcome, later, no   --->
 *     messages                      --->
 *
 * Every message after the openings carries a proof. The proof is an HMAC-SHA256 over the direction,
 * the message's number, its kind, length and content; its key is made from the secret and both
 * openings. A recorded message is therefore invalid on another connection, at another position of
 * the same connection, when sent back to its sender, and at another service. Messages are
 * authenticated but not encrypted: everyone who sees the network can read them. */
#pragma once

#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "comm/secret.h"

/* The service behind a port. */
typedef enum ChannelService { CHANNEL_NODES = 1, CHANNEL_RANKS } ChannelService;

enum { CHANNEL_MAGIC = 0x6d656c74, CHANNEL_VERSION = 1 };
/* The first bytes in both directions, in the byte order of all hosts that smelt runs on. */
typedef struct Opening {
    uint32_t magic;
    uint16_t version, service;
    Secret nonce; /* of this connection alone */
} Opening;
_Static_assert(sizeof(Opening) == 40, "openings have no padding: they are the same on every host");

/* An authenticated connection. A zeroed channel is closed. */
typedef struct Channel {
    int socket;
    bool open, server;
    Secret key;
    uint64_t sent, received;
} Channel;

/* Makes a new opening for this service. ERROR_INTERNAL. */
bool channel_opening(ChannelService service, Opening *opening, Error *error);

/* -- The client ---------------------------------------------------------------------------------------------------- */

/* Waits for the server's opening on a connected socket, then sends the client's opening and a hello
 * of `bytes` bytes. The channel takes ownership of the socket and is closed on failure.
 * ERROR_COMMUNICATION describes what answered instead of the server. */
bool channel_greet(Channel *channel, int socket, const Secret *secret, ChannelService service, const void *hello, size_t bytes,
    double until, Error *error);
/* Waits for the verdict. ERROR_COMMUNICATION: not now, perhaps later. ERROR_USAGE: never; the
 * server gives the reason. On either error the channel is closed. */
bool channel_await_welcome(Channel *channel, double until, Error *error);

/* -- The server ---------------------------------------------------------------------------------------------------- */

typedef enum ChannelVerdict { CHANNEL_WELCOME, CHANNEL_LATER, CHANNEL_REFUSED } ChannelVerdict;

/* Returns the bytes that a client sends first: its opening, and a hello of `bytes` bytes. */
size_t channel_first_bytes(size_t bytes);
/* Returns whether `count` of these bytes can be the start of a client's message, as far as this can
 * be checked without the secret. */
bool channel_may_begin(const void *first, size_t count, ChannelService service, size_t bytes);
/* Returns whether all of these bytes prove the secret, on a connection that began with `opening`.
 * If so, initializes *channel except for its socket, and fills `hello`. */
bool channel_accept(Channel *channel, const Secret *secret, const Opening *opening, const void *first, void *hello, size_t bytes);
/* Sends the verdict to the client; closes the channel unless the client is welcome. Returns false
 * if the client is gone. */
bool channel_answer(Channel *channel, ChannelVerdict verdict, const char *reason, double until);

/* -- Both ---------------------------------------------------------------------------------------------------------- */

/* Sends or receives one message whose length the receiver knows. Returns false if the peer is lost,
 * the time (log_seconds()) is over, or the message is not the peer's. */
bool channel_send(Channel *channel, const void *data, size_t bytes, double until);
bool channel_receive(Channel *channel, void *data, size_t bytes, double until);
/* Returns whether the channel is open and the other end has not closed it. */
bool channel_is_alive(const Channel *channel);
void channel_close(Channel *channel); /* a zeroed channel is fine */
