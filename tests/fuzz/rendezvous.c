/* A libFuzzer entry for what the supervisors of other nodes say once they have proved the secret: the input is the hello
 * of node 1 to node 0. It is refused, or node 0 decides, and the answer has the numbers of a run. Owns a rendezvous on
 * the loopback as long as the program lives. */
#include <pthread.h>
#include <stdatomic.h>

#include "base/log.h"
#include "comm/channel.h"
#include "comm/socket.h"
#include "fuzz.h"
#include "launch/rendezvous_internal.h"

enum { HELLO_OF_NODE = 288, ANSWER_TO_NODE = 812, RANKS_OF_NODE = 2 };

typedef struct Node {
    RendezvousPlace place;
    uint8_t hello[HELLO_OF_NODE];
    atomic_bool answered; /* welcome or not */
} Node;

static void *say_hello(void *context) {
    Node *node = context;
    struct sockaddr_storage address;
    uint8_t reply[ANSWER_TO_NODE];
    Error error = {0};
    Channel channel = {0};
    double until = log_seconds() + 60;
    require(socket_resolve(node->place.address, node->place.port, &address, &error));
    int connection = socket_connect(&address, 60, until);
    require(connection >= 0);
    bool welcome = channel_greet(&channel, connection, node->place.secret, CHANNEL_NODES, node->hello, sizeof node->hello, until, &error) &&
                   channel_await_welcome(&channel, until, &error);
    node->answered = true;
    if (welcome) require(channel_receive(&channel, reply, sizeof reply, until));
    else require_line(&error);
    channel_close(&channel);
    return NULL;
}

FUZZ(rendezvous) {
    static Secret secret = {.bytes = "the secret of two nodes"};
    static StopRequest stop;
    static char *command[] = {"smelt", "train", NULL};
    static Rendezvous *rendezvous;
    static Node node;
    NodeReport own = {.state = NODE_READY, .ranks = RANKS_OF_NODE, .port = 1};
    RendezvousAnswer answer = {0};
    Error error = {0};
    pthread_t thread;
    if (!rendezvous) {
        node.place = (RendezvousPlace){.nodes = 2,
            .least = 1,
            .address = "127.0.0.1",
            .port = socket_free_port(),
            .secret = &secret,
            .away = 0.02,
            .command = command,
            .stop = &stop};
        rendezvous = rendezvous_open(&node.place, &error);
    }
    require(rendezvous != NULL);
    memset(node.hello, 0, sizeof node.hello);
    memcpy(node.hello, data, size < sizeof node.hello ? size : sizeof node.hello);
    node.answered = false;
    require(pthread_create(&thread, NULL, say_hello, &node) == 0);
    while (!node.answered) rendezvous_tend(rendezvous);
    RendezvousVerdict verdict = rendezvous_join(rendezvous, &own, 0, &answer);
    require(verdict == RENDEZVOUS_OVER || (verdict == RENDEZVOUS_START && answer.members >= 1 && answer.members <= 2 &&
                                              answer.ranks >= RANKS_OF_NODE && answer.first == 0));
    require(pthread_join(thread, NULL) == 0);
}
