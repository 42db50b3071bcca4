/* What strangers cannot do to a channel and to an acceptor, and where smelt finds the secret and listens. Both ends
 * of a channel are in this process, and the stranger between them sees and sends what it likes. */
#include <netinet/in.h>
#include <poll.h>
#include <sys/stat.h>

#include "support/mentions.h"
#include "support/process.h"

#include "comm/acceptor.h"

typedef struct Message {
    int32_t number;
    char text[28];
} Message;

static const Secret secret = {.bytes = "what the processes of a job know"}, other = {.bytes = "what those of an older job knew"};
static const Message hello = {1, "hello"};
enum { FIRST_BYTES = sizeof(Opening) + 8 + sizeof(Message) + SECRET_BYTES };

static double soon(void) { return log_seconds() + WAIT_LIMIT; }

/* -- A client and a server ----------------------------------------------------------------------------------------- */

typedef struct Pair {
    int server_socket;
    Opening opening; /* the server's */
    Channel client, server;
} Pair;

/* The client has greeted with its secret; what it sent waits at the server's socket. */
static Pair greet(const Secret *client_secret, ChannelService client_service) {
    int ends[2];
    Pair pair = {0};
    Error error = {0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    pair.server_socket = ends[1];
    assert_true(channel_opening(CHANNEL_RANKS, &pair.opening, &error));
    assert_true(socket_send(ends[1], &pair.opening, sizeof pair.opening, soon()));
    if (!channel_greet(&pair.client, ends[0], client_secret, client_service, &hello, sizeof hello, soon(), &error))
        assert_int_equal(error.code, ERROR_COMMUNICATION);
    return pair;
}

static void read_first(const Pair *pair, char first[FIRST_BYTES]) {
    assert_int_equal(channel_first_bytes(sizeof hello), FIRST_BYTES);
    assert_true(socket_receive(pair->server_socket, first, FIRST_BYTES, soon()));
}

static bool accept_first(Pair *pair, const char first[FIRST_BYTES], Message *said) {
    bool accepted = channel_accept(&pair->server, &secret, &pair->opening, first, said, sizeof *said);
    pair->server.socket = pair->server_socket;
    pair->server.open = accepted;
    return accepted;
}

static void part(Pair *pair) {
    channel_close(&pair->client);
    close(pair->server_socket);
}

static Pair meet(void) {
    char first[FIRST_BYTES];
    Error error = {0};
    Message said;
    Pair pair = greet(&secret, CHANNEL_RANKS);
    read_first(&pair, first);
    assert_true(accept_first(&pair, first, &said));
    assert_memory_equal(&said, &hello, sizeof said);
    assert_true(channel_answer(&pair.server, CHANNEL_WELCOME, "", soon()));
    assert_true(channel_await_welcome(&pair.client, soon(), &error));
    return pair;
}

static void both_ends_hear_what_the_other_says(void **state) {
    (void)state;
    Pair pair = meet();
    for (int i = 0; i < 3; i++) {
        Message sent = {i, "reply"}, heard;
        assert_true(channel_send(&pair.server, &sent, sizeof sent, soon()));
        assert_true(channel_receive(&pair.client, &heard, sizeof heard, soon()));
        assert_memory_equal(&heard, &sent, sizeof heard);
    }
    assert_true(channel_is_alive(&pair.client));
    close(pair.server_socket);
    assert_false(channel_is_alive(&pair.client));
    channel_close(&pair.client);
}

static void a_client_hears_why_it_is_not_welcome(void **state) {
    (void)state;
    static const struct {
        ChannelVerdict verdict;
        ErrorCode code;
    } cases[] = {{CHANNEL_LATER, ERROR_COMMUNICATION}, {CHANNEL_REFUSED, ERROR_USAGE}};
    for (int i = 0; i < 2; i++) {
        char first[FIRST_BYTES];
        Error error = {0};
        Message said;
        Pair pair = greet(&secret, CHANNEL_RANKS);
        read_first(&pair, first);
        assert_true(accept_first(&pair, first, &said));
        assert_true(channel_answer(&pair.server, cases[i].verdict, "the seat is taken", soon()));
        assert_false(channel_await_welcome(&pair.client, soon(), &error));
        assert_string_equal(error.message, "the seat is taken");
        assert_int_equal(error.code, cases[i].code);
    }
}

/* -- Strangers ----------------------------------------------------------------------------------------------------- */

static void another_secret_proves_nothing(void **state) {
    (void)state;
    char first[FIRST_BYTES];
    Error error = {0};
    Message said;
    Pair pair = greet(&other, CHANNEL_RANKS);
    read_first(&pair, first);
    assert_false(accept_first(&pair, first, &said));
    close(pair.server_socket);
    assert_false(channel_await_welcome(&pair.client, soon(), &error));
    assert_mentions(error.message, "SMELT_SECRET");
}

static void a_recorded_hello_proves_nothing_on_another_connection(void **state) {
    (void)state;
    char recorded[FIRST_BYTES];
    Message said;
    Pair pair = greet(&secret, CHANNEL_RANKS);
    read_first(&pair, recorded);
    assert_true(accept_first(&pair, recorded, &said));
    Pair later = greet(&secret, CHANNEL_RANKS);
    assert_false(accept_first(&later, recorded, &said));
    part(&pair);
    part(&later);
}

/* Every byte that a client sends first counts. */
static void a_changed_byte_proves_nothing(void **state) {
    (void)state;
    char first[FIRST_BYTES];
    Message said;
    Pair pair = greet(&secret, CHANNEL_RANKS);
    read_first(&pair, first);
    for (int i = 0; i < FIRST_BYTES; i++) {
        first[i] ^= 1;
        assert_false(accept_first(&pair, first, &said));
        first[i] ^= 1;
    }
    assert_true(accept_first(&pair, first, &said));
    part(&pair);
}

static void a_message_sent_twice_counts_once(void **state) {
    (void)state;
    char frame[8 + sizeof(Message) + SECRET_BYTES];
    Message sent = {7, "reply"}, heard;
    Pair pair = meet();
    assert_true(channel_send(&pair.server, &sent, sizeof sent, soon()));
    assert_true(socket_receive(pair.client.socket, frame, sizeof frame, soon())); /* the stranger in between */
    for (int i = 0; i < 2; i++) {
        assert_true(socket_send(pair.server_socket, frame, sizeof frame, soon()));
        assert_true(channel_receive(&pair.client, &heard, sizeof heard, soon()) == (i == 0));
    }
    part(&pair);
}

static void a_message_sent_back_to_its_sender_is_none(void **state) {
    (void)state;
    char frame[8 + sizeof(Message) + SECRET_BYTES];
    Message sent = {7, "reply"}, heard;
    Pair pair = meet();
    assert_int_equal(pair.server.sent, pair.server.received); /* the number is right in both directions */
    assert_true(channel_send(&pair.server, &sent, sizeof sent, soon()));
    assert_true(socket_receive(pair.client.socket, frame, sizeof frame, soon()));
    assert_true(socket_send(pair.client.socket, frame, sizeof frame, soon()));
    assert_false(channel_receive(&pair.server, &heard, sizeof heard, soon()));
    part(&pair);
}

static void the_servers_opening_sent_back_proves_nothing(void **state) {
    (void)state;
    char first[FIRST_BYTES];
    Message said;
    Pair pair = greet(&secret, CHANNEL_RANKS);
    read_first(&pair, first);
    memcpy(first, &pair.opening, sizeof pair.opening);
    assert_false(accept_first(&pair, first, &said));
    part(&pair);
}

static void another_length_than_the_expected_one_is_refused_before_it_is_read(void **state) {
    (void)state;
    uint32_t length = UINT32_MAX;
    char first[FIRST_BYTES];
    Message sent = {7, "reply"}, heard;
    Pair pair = meet(), unread = greet(&secret, CHANNEL_RANKS);
    read_first(&unread, first);
    assert_true(channel_may_begin(first, sizeof(Opening) + 8, CHANNEL_RANKS, sizeof hello));
    memcpy(first + sizeof(Opening) + 4, &length, sizeof length);
    assert_false(channel_may_begin(first, sizeof(Opening) + 8, CHANNEL_RANKS, sizeof hello));
    assert_true(channel_send(&pair.server, &sent, sizeof sent, soon()));
    assert_false(channel_receive(&pair.client, &heard, sizeof heard - 1, soon()));
    part(&pair);
    part(&unread);
}

static void another_version_or_service_is_named(void **state) {
    (void)state;
    Pair pair = greet(&secret, CHANNEL_NODES);
    assert_false(pair.client.open);
    Opening opening;
    Error error = {0};
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    assert_true(channel_opening(CHANNEL_RANKS, &opening, &error));
    opening.version++;
    assert_true(socket_send(ends[1], &opening, sizeof opening, soon()));
    assert_false(channel_greet(&pair.client, ends[0], &secret, CHANNEL_RANKS, &hello, sizeof hello, soon(), &error));
    assert_mentions(error.message, "version");
    assert_false(channel_may_begin(&opening, sizeof opening, CHANNEL_RANKS, sizeof hello));
    close(ends[1]);
    close(pair.server_socket);
}

/* -- The acceptor -------------------------------------------------------------------------------------------------- */

static struct sockaddr_storage address_of(const char *host, int port) {
    struct sockaddr_storage address = {0};
    Error error = {0};
    assert_true(socket_resolve(host, port, &address, &error));
    return address;
}

/* A client as a child of its own, which ends with 0 once it is welcome. */
static pid_t start_client(int port) {
    pid_t child = fork();
    if (child != 0) return child;
    Error error = {0};
    Channel channel = {0};
    struct sockaddr_storage address = address_of("127.0.0.1", port);
    int made = socket_connect(&address, WAIT_LIMIT, soon());
    _exit(made < 0 || !channel_greet(&channel, made, &secret, CHANNEL_RANKS, &hello, sizeof hello, soon(), &error) ||
          !channel_await_welcome(&channel, soon(), &error));
}

static void more_silent_connections_than_there_are_places_keep_no_client_out(void **state) {
    (void)state;
    enum { SILENT = 400 };
    int silent[SILENT], status;
    struct sockaddr_storage address = address_of("127.0.0.1", 0);
    Acceptor *acceptor = acceptor_open(&(AcceptorOptions){&secret, CHANNEL_RANKS, "127.0.0.1", &address, WAIT_LIMIT, sizeof hello});
    assert_non_null(acceptor);
    int port = acceptor_port(acceptor);
    address = address_of("127.0.0.1", port);
    for (int i = 0; i < SILENT; i++) assert_true((silent[i] = socket_connect(&address, WAIT_LIMIT, soon())) >= 0);
    pid_t client = start_client(port);
    Channel channel;
    Message said;
    assert_true(acceptor_next(acceptor, soon(), &channel, &said));
    assert_memory_equal(&said, &hello, sizeof said);
    assert_true(channel_answer(&channel, CHANNEL_WELCOME, "", soon()));
    assert_int_equal(waitpid(client, &status, 0), client);
    assert_int_equal(status, 0);
    assert_true(poll(&(struct pollfd){silent[SILENT - 1], POLLRDHUP, 0}, 1, 0) == 0); /* nobody waited for it to time out */
    assert_false(acceptor_next(acceptor, 0, &channel, &said));
    for (int i = 0; i < SILENT; i++) close(silent[i]);
    channel_close(&channel);
    acceptor_close(acceptor);
}

/* -- Where it listens ---------------------------------------------------------------------------------------------- */

static bool listens_on_all(const char *host, const char *number) {
    struct sockaddr_storage address = address_of(number, 0);
    socklen_t size = sizeof address;
    int listener = socket_listen_for(host, &address);
    assert_true(listener >= 0 && getsockname(listener, (struct sockaddr *)&address, &size) == 0);
    close(listener);
    return ((struct sockaddr_in *)&address)->sin_addr.s_addr == INADDR_ANY;
}

static void a_port_is_open_on_the_named_interface_alone(void **state) {
    (void)state;
    assert_false(listens_on_all("127.0.0.1", "127.0.0.1"));
    assert_false(listens_on_all("localhost", "127.0.0.1"));
    assert_false(listens_on_all("127.0.0.2", "127.0.0.2"));
    assert_true(listens_on_all("node7", "127.0.1.1"));     /* as Debian's /etc/hosts has it: others do not reach it */
    assert_true(listens_on_all("192.0.2.1", "192.0.2.1")); /* of another machine, or behind address translation */
}

/* -- The secret ---------------------------------------------------------------------------------------------------- */

static char path[64];

static int make_file(void **state) {
    (void)state;
    snprintf(path, sizeof path, "/tmp/smelt-test-secret-XXXXXX");
    int file = mkstemp(path);
    unsetenv("SMELT_SECRET");
    unsetenv("SMELT_SECRET_FILE");
    return file < 0 || write(file, "0123456789abcdef0123\n", 21) != 21 || close(file) != 0;
}

static int remove_file(void **state) {
    (void)state;
    unsetenv("SMELT_SECRET");
    unsetenv("SMELT_SECRET_FILE");
    return unlink(path);
}

static Secret found(void) {
    Secret result;
    Error error = {0};
    if (!secret_find("2 ranks", &result, &error)) fail_msg("%s", error.message);
    return result;
}

static void expect_none(const char *text) {
    Secret result;
    Error error = {0};
    assert_false(secret_find("2 ranks", &result, &error));
    assert_int_equal(error.code, ERROR_USAGE);
    if (!mentions(error.message, text)) fail_msg("no '%s' in: %s", text, error.message);
}

static void the_secret_comes_from_the_environment_or_a_file_of_ones_own(void **state) {
    (void)state;
    expect_none("2 ranks secret");
    setenv("SMELT_SECRET_FILE", path, 1);
    Secret in_file = found();
    setenv("SMELT_SECRET", "0123456789abcdef0123", 1);
    Secret in_variable = found();
    assert_true(secret_equal(&in_file, &in_variable));
    setenv("SMELT_SECRET", "0123456789abcdef0124", 1); /* wins over the file */
    in_variable = found();
    assert_false(secret_equal(&in_file, &in_variable));
    unsetenv("SMELT_SECRET");
    assert_int_equal(chmod(path, 0640), 0);
    expect_none("read chmod 600");
    assert_int_equal(chmod(path, 0600), 0);
    setenv("SMELT_SECRET_FILE", "/nonexistent/secret", 1);
    expect_none("/nonexistent/secret");
}

static void a_short_secret_is_refused_and_not_shown(void **state) {
    (void)state;
    Secret result;
    Error error = {0};
    setenv("SMELT_SECRET", "hunter2", 1);
    expect_none("SMELT_SECRET has 7 characters");
    assert_false(secret_find("2 ranks", &result, &error));
    assert_null(strstr(error.message, "hunter2"));
}

static void children_get_a_secret_that_only_this_text_makes(void **state) {
    (void)state;
    Secret made, again;
    Error error = {0};
    assert_true(secret_random(&made, sizeof made, &error) && secret_random(&again, sizeof again, &error));
    assert_false(secret_equal(&made, &again));
    char *variable = secret_variable(&made);
    assert_int_equal(strlen(variable), strlen("SMELT_SECRET=") + 2 * SECRET_BYTES);
    setenv("SMELT_SECRET", variable + strlen("SMELT_SECRET="), 1);
    Secret one = found(), two = found();
    assert_true(secret_equal(&one, &two));
    free(variable);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ends_hear_what_the_other_says),
        cmocka_unit_test(a_client_hears_why_it_is_not_welcome),
        cmocka_unit_test(another_secret_proves_nothing),
        cmocka_unit_test(a_recorded_hello_proves_nothing_on_another_connection),
        cmocka_unit_test(a_changed_byte_proves_nothing),
        cmocka_unit_test(a_message_sent_twice_counts_once),
        cmocka_unit_test(a_message_sent_back_to_its_sender_is_none),
        cmocka_unit_test(the_servers_opening_sent_back_proves_nothing),
        cmocka_unit_test(another_length_than_the_expected_one_is_refused_before_it_is_read),
        cmocka_unit_test(another_version_or_service_is_named),
        cmocka_unit_test(more_silent_connections_than_there_are_places_keep_no_client_out),
        cmocka_unit_test(a_port_is_open_on_the_named_interface_alone),
        cmocka_unit_test_setup_teardown(the_secret_comes_from_the_environment_or_a_file_of_ones_own, make_file, remove_file),
        cmocka_unit_test_setup_teardown(a_short_secret_is_refused_and_not_shown, make_file, remove_file),
        cmocka_unit_test_setup_teardown(children_get_a_secret_that_only_this_text_makes, make_file, remove_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
