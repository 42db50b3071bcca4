/* A libFuzzer entry for what strangers send over the network: as clients to an acceptor, and as servers to what
 * connects to them. Any bytes must be refused, by every length that they come in, and none may prove a secret. Owns
 * nothing beyond one call. */
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "comm/channel.h"
#include "comm/socket.h"
#include "fuzz.h"

enum { CHANNEL_HELLO = 24, CHANNEL_LIMIT = 4096 };
static const Secret channel_secret = {.bytes = "what strangers do not know"};

/* What cannot begin a message cannot begin a longer one either. */
static void as_client(const uint8_t *data, size_t size) {
    uint8_t hello[CHANNEL_HELLO];
    Channel channel;
    Opening opening = {.magic = CHANNEL_MAGIC, .version = CHANNEL_VERSION, .service = CHANNEL_RANKS};
    size_t whole = channel_first_bytes(CHANNEL_HELLO);
    bool possible = true;
    for (size_t count = 0; count <= size && count <= whole; count++) {
        bool may = channel_may_begin(data, count, CHANNEL_RANKS, CHANNEL_HELLO);
        require(possible || !may);
        possible = may;
    }
    if (size >= whole) require(!channel_accept(&channel, &channel_secret, &opening, data, hello, CHANNEL_HELLO));
}

static void as_server(const uint8_t *data, size_t size) {
    static const uint8_t hello[CHANNEL_HELLO];
    uint8_t reply[CHANNEL_HELLO];
    int ends[2];
    Error error = {0};
    Channel channel = {0};
    if (size > CHANNEL_LIMIT || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) return;
    double until = log_seconds() + 60;
    require(socket_send(ends[1], data, size, until) && shutdown(ends[1], SHUT_WR) == 0);
    if (channel_greet(&channel, ends[0], &channel_secret, CHANNEL_RANKS, hello, sizeof hello, until, &error)) {
        Channel other = channel;
        require(!channel_receive(&other, reply, sizeof reply, until));
        require(!channel_await_welcome(&channel, until, &error));
    }
    require(error.code == ERROR_COMMUNICATION && !channel.open);
    close(ends[1]);
}

FUZZ(channel) {
    as_client(data, size);
    as_server(data, size);
}
