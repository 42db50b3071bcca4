/* Accepts the connections of one port and hands out the ones that prove the job's secret
 * (channel.h). All connections are read at once, so that a silent one does not delay the others. A
 * connection that has not proved the secret holds one of a few hundred places for at most
 * ACCEPTOR_SECONDS. If all places are taken, the oldest connection is dropped. Strangers are logged
 * at the 1st, 10th, 100th ... one. */
#pragma once

#include "comm/channel.h"

enum { ACCEPTOR_SECONDS = 10 };

typedef struct AcceptorOptions {
    const Secret *secret;
    ChannelService service;
    const char *host;                       /* as the user named it */
    const struct sockaddr_storage *address; /* its resolved address, with the port (0: any) */
    double lost;                            /* of socket_prepare */
    size_t hello_bytes;                     /* bytes of the hello that every client sends */
} AcceptorOptions;
typedef struct Acceptor Acceptor;

/* Starts to listen. The options' pointers must outlive the acceptor. Returns NULL with errno. */
Acceptor *acceptor_open(const AcceptorOptions *options);
int acceptor_port(const Acceptor *acceptor);
/* Returns the next connection that proves the secret, with its hello; false if none did before
 * `until` (log_seconds()). The caller answers it (channel_answer) and owns the channel. With a time
 * in the past, the call only checks what has arrived and does not wait. */
bool acceptor_next(Acceptor *acceptor, double until, Channel *channel, void *hello);
void acceptor_close(Acceptor *acceptor); /* NULL is fine */
