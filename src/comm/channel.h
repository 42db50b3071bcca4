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
 * Every message after the openings carries a proof: HMAC-SHA256 under a key that is made from the secret and both
 * openings, over the direction, the message's number, its kind, length and content. So a recorded message proves
 * nothing on another connection, nor in another place of the same one, nor sent back to its sender, nor to another
 * service. What is sent can be read by all who see the network: it is proved, not hidden. */
#pragma once

#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "comm/secret.h"

/* What a port serves. */
typedef enum ChannelService { CHANNEL_NODES = 1, CHANNEL_RANKS } ChannelService;

enum { CHANNEL_MAGIC = 0x6d656c74, CHANNEL_VERSION = 1 };
/* The first bytes in both directions, in the byte order of all hosts that smelt runs on. */
typedef struct Opening {
    uint32_t magic;
    uint16_t version, service;
    Secret nonce; /* of this connection alone */
} Opening;
_Static_assert(sizeof(Opening) == 40, "openings have no padding: they are the same on every host");

/* An authenticated connection. Zeroed, it is none. */
typedef struct Channel {
    int socket;
    bool open, server;
    Secret key;
    uint64_t sent, received;
} Channel;

/* A new opening of this service. ERROR_INTERNAL. */
bool channel_opening(ChannelService service, Opening *opening, Error *error);

/* -- The client ---------------------------------------------------------------------------------------------------- */

/* Awaits the server's opening on a connected socket, sends the client's and a hello of `bytes` bytes. The channel
 * owns the socket from now on, and is closed on failure. ERROR_COMMUNICATION says what is there instead of the
 * server. */
bool channel_greet(Channel *channel, int socket, const Secret *secret, ChannelService service, const void *hello, size_t bytes,
    double until, Error *error);
/* Awaits the verdict. ERROR_COMMUNICATION: not now, and later perhaps; ERROR_USAGE: never, the server says why. The
 * channel is closed then. */
bool channel_await_welcome(Channel *channel, double until, Error *error);

/* -- The server ---------------------------------------------------------------------------------------------------- */

typedef enum ChannelVerdict { CHANNEL_WELCOME, CHANNEL_LATER, CHANNEL_REFUSED } ChannelVerdict;

/* Bytes that a client sends first: its opening, and a hello of `bytes` bytes. */
size_t channel_first_bytes(size_t bytes);
/* Whether `count` of these bytes can be the start of what a client sends, as far as one sees without the secret. */
bool channel_may_begin(const void *first, size_t count, ChannelService service, size_t bytes);
/* Whether all of them prove the secret, on a connection that began with `opening`. Then *channel is made, but for its
 * socket, and `hello` filled. */
bool channel_accept(Channel *channel, const Secret *secret, const Opening *opening, const void *first, void *hello, size_t bytes);
/* Tells the client; closes the channel unless it is welcome. False when it is gone. */
bool channel_answer(Channel *channel, ChannelVerdict verdict, const char *reason, double until);

/* -- Both ---------------------------------------------------------------------------------------------------------- */

/* One message whose length the receiver knows. False when the peer is lost, the time (log_seconds()) is over, or the
 * message is not the peer's. */
bool channel_send(Channel *channel, const void *data, size_t bytes, double until);
bool channel_receive(Channel *channel, void *data, size_t bytes, double until);
/* Whether there is a connection and the other end has not ended it. */
bool channel_is_alive(const Channel *channel);
void channel_close(Channel *channel); /* also of a zeroed one */
