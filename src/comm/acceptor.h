/* Accepts the connections of one port and hands out those that prove the job's secret (channel.h). All connections
 * are read at once, so that one which says nothing delays no other. One that has not proved the secret holds one of a
 * few hundred places, for ACCEPTOR_SECONDS at most; where all are taken, the oldest makes room. The first stranger,
 * the tenth, the hundredth is warned of. */
#pragma once

#include "comm/channel.h"

enum { ACCEPTOR_SECONDS = 10 };

typedef struct AcceptorOptions {
    const Secret *secret;
    ChannelService service;
    const char *host;                       /* as the user named it */
    const struct sockaddr_storage *address; /* what it resolved to, with the port (0: any) */
    double lost;                            /* of socket_prepare */
    size_t hello_bytes;                     /* that every client sends */
} AcceptorOptions;
typedef struct Acceptor Acceptor;

/* Listens. What the options point to outlives the acceptor. NULL with errno. */
Acceptor *acceptor_open(const AcceptorOptions *options);
int acceptor_port(const Acceptor *acceptor);
/* The next connection that proves the secret, with its hello; false when none did until that time (log_seconds()). The
 * caller answers it (channel_answer) and owns the channel. With a time in the past it looks at what has come, and does
 * not wait. */
bool acceptor_next(Acceptor *acceptor, double until, Channel *channel, void *hello);
void acceptor_close(Acceptor *acceptor); /* NULL is fine */
