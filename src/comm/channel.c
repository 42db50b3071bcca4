/* Authenticated connections: openings, proofs and messages. A channel owns its socket. Called by
 * the acceptor on the server's side, and by every client that connects. */
#include "comm/channel.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/scope.h"
#include "comm/socket.h"

typedef enum MessageKind { HELLO = 1, VERDICT, DATA } MessageKind;

/* Precedes the content of a message. */
typedef struct Header { uint32_t kind, bytes; } Header;

/* Covered by a proof in addition to the message itself. */
typedef struct Context { uint64_t from_server, number; } Context;

typedef struct HandshakeVerdict {
    int32_t verdict;
    char reason[252];
} HandshakeVerdict;
_Static_assert(sizeof(Header) == 8 && sizeof(Context) == 16 && sizeof(HandshakeVerdict) == 256, "messages have no padding");

/* -- Openings ------------------------------------------------------------------------------------------------------ */

bool channel_opening(ChannelService service, Opening *opening, Error *error) {
    *opening = (Opening){.magic = CHANNEL_MAGIC, .version = CHANNEL_VERSION, .service = (uint16_t)service};
    return secret_random(&opening->nonce, sizeof opening->nonce, error);
}

static Channel make_channel(const Secret *secret, const Opening *server, const Opening *client, bool is_server) {
    const Opening both[] = {*server, *client};
    return (Channel){.socket = -1, .server = is_server, .key = secret_sign(secret, both, sizeof both)};
}

/* -- Messages ------------------------------------------------------------------------------------------------------ */

/* Returns the message in its wire format, for the caller to free; its length goes to *total. */
static char *wrap(const Channel *channel, MessageKind kind, const void *data, size_t bytes, size_t *total) {
    Context context = {channel->server, channel->sent};
    Header header = {kind, (uint32_t)bytes};
    size_t signed_bytes = sizeof context + sizeof header + bytes;
    char *whole = memory_allocate(signed_bytes + SECRET_BYTES);
    memcpy(whole, &context, sizeof context);
    memcpy(whole + sizeof context, &header, sizeof header);
    memcpy(whole + sizeof context + sizeof header, data, bytes);
    Secret proof = secret_sign(&channel->key, whole, signed_bytes);
    memcpy(whole + signed_bytes, &proof, sizeof proof);
    *total = sizeof header + bytes + sizeof proof;
    memmove(whole, whole + sizeof context, *total);
    return whole;
}

static bool header_fits(const Header *header, MessageKind kind, size_t bytes) { return header->kind == kind && header->bytes == bytes; }

/* Returns whether `message`, in its wire format, is the peer's next one and has this kind and
 * length. If so, fills `data`. */
static bool unwrap(Channel *channel, MessageKind kind, const char *message, void *data, size_t bytes) {
    Context context = {!channel->server, channel->received};
    size_t signed_bytes = sizeof(Header) + bytes;
    Header header;
    Secret proof;
    memcpy(&header, message, sizeof header);
    memcpy(&proof, message + signed_bytes, sizeof proof);
    SCOPED_FREE char *whole = memory_allocate(sizeof context + signed_bytes);
    memcpy(whole, &context, sizeof context);
    memcpy(whole + sizeof context, message, signed_bytes);
    Secret expected = secret_sign(&channel->key, whole, sizeof context + signed_bytes);
    if (!header_fits(&header, kind, bytes) || !secret_equal(&proof, &expected)) return false;
    memcpy(data, message + sizeof header, bytes);
    channel->received++;
    return true;
}

static bool send_message(Channel *channel, MessageKind kind, const void *data, size_t bytes, double until) {
    size_t total;
    SCOPED_FREE char *message = wrap(channel, kind, data, bytes, &total);
    channel->sent++;
    return channel->open && socket_send(channel->socket, message, total, until);
}

/* Allocates only the expected length, whatever length the peer claims. */
static bool receive_message(Channel *channel, MessageKind kind, void *data, size_t bytes, double until) {
    size_t rest = bytes + SECRET_BYTES;
    Header header;
    if (!channel->open || !socket_receive(channel->socket, &header, sizeof header, until) || !header_fits(&header, kind, bytes))
        return false;
    SCOPED_FREE char *message = memory_allocate(sizeof header + rest);
    memcpy(message, &header, sizeof header);
    return socket_receive(channel->socket, message + sizeof header, rest, until) && unwrap(channel, kind, message, data, bytes);
}

bool channel_send(Channel *channel, const void *data, size_t bytes, double until) {
    return send_message(channel, DATA, data, bytes, until);
}

bool channel_receive(Channel *channel, void *data, size_t bytes, double until) {
    return receive_message(channel, DATA, data, bytes, until);
}

bool channel_is_alive(const Channel *channel) {
    struct pollfd ready = {channel->socket, POLLRDHUP, 0};
    return channel->open && !(poll(&ready, 1, 0) > 0 && ready.revents);
}

void channel_close(Channel *channel) {
    if (channel->open) close(channel->socket);
    *channel = (Channel){.socket = -1};
}

/* -- The client ---------------------------------------------------------------------------------------------------- */

static bool channel_fail(Channel *channel, Error *error, const char *reason) {
    channel_close(channel);
    return error_set(error, ERROR_COMMUNICATION, "%s", reason);
}

bool channel_greet(Channel *channel, int socket, const Secret *secret, ChannelService service, const void *hello, size_t bytes,
    double until, Error *error) {
    Opening server, client;
    *channel = (Channel){.socket = socket, .open = true};
    if (!socket_receive(socket, &server, sizeof server, until))
        return channel_fail(channel, error, "it is busy, or a different program is listening on that port");
    if (server.magic != CHANNEL_MAGIC || server.service != service)
        return channel_fail(channel, error, "a different program is listening on that port");
    if (server.version != CHANNEL_VERSION) {
        channel_close(channel);
        return error_set(error, ERROR_COMMUNICATION, "its smelt has wire version %d, but this one has %d: use the same build on all nodes",
            server.version, CHANNEL_VERSION);
    }
    if (!channel_opening(service, &client, error)) {
        channel_close(channel);
        return false;
    }
    *channel = make_channel(secret, &server, &client, false);
    channel->socket = socket;
    channel->open = true;
    return (socket_send(socket, &client, sizeof client, until) && send_message(channel, HELLO, hello, bytes, until)) ||
           channel_fail(channel, error, "it closed the connection");
}

bool channel_await_welcome(Channel *channel, double until, Error *error) {
    HandshakeVerdict verdict;
    if (!receive_message(channel, VERDICT, &verdict, sizeof verdict, until))
        return channel_fail(channel, error, "the secrets differ: SMELT_SECRET must be the same for all ranks");
    if (verdict.verdict == CHANNEL_WELCOME) return true;
    verdict.reason[sizeof verdict.reason - 1] = 0;
    channel_fail(channel, error, verdict.reason);
    return verdict.verdict == CHANNEL_REFUSED ? error_recode(error, ERROR_USAGE) : false;
}

/* -- The server ---------------------------------------------------------------------------------------------------- */

size_t channel_first_bytes(size_t bytes) { return sizeof(Opening) + sizeof(Header) + bytes + SECRET_BYTES; }

bool channel_may_begin(const void *first, size_t count, ChannelService service, size_t bytes) {
    Opening client;
    Header header;
    if (count < sizeof client) return true;
    memcpy(&client, first, sizeof client);
    if (client.magic != CHANNEL_MAGIC || client.version != CHANNEL_VERSION || client.service != service) return false;
    if (count < sizeof client + sizeof header) return true;
    memcpy(&header, (const char *)first + sizeof client, sizeof header);
    return header_fits(&header, HELLO, bytes);
}

bool channel_accept(Channel *channel, const Secret *secret, const Opening *opening, const void *first, void *hello, size_t bytes) {
    Opening client;
    memcpy(&client, first, sizeof client);
    *channel = make_channel(secret, opening, &client, true);
    return channel_may_begin(first, channel_first_bytes(bytes), (ChannelService)opening->service, bytes) &&
           unwrap(channel, HELLO, (const char *)first + sizeof client, hello, bytes);
}

bool channel_answer(Channel *channel, ChannelVerdict verdict, const char *reason, double until) {
    HandshakeVerdict message = {.verdict = (int32_t)verdict};
    snprintf(message.reason, sizeof message.reason, "%s", reason);
    bool sent = send_message(channel, VERDICT, &message, sizeof message, until);
    if (!sent || verdict != CHANNEL_WELCOME) channel_close(channel);
    return sent;
}
