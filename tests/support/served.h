/* A process that serves a run, and its HTTP client. Everything is static inline, so a test
 * program uses what it needs. */
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>

#include "base/scope.h"
#include "train_run.h"

typedef struct Server {
    Process process;
    int port;
} Server;

typedef struct Reply {
    int status;
    char *text; /* head and body */
    const char *body;
} Reply;

/* Waits until a started process has printed its address. */
static inline Server await_server(Process process) {
    Server server = {.process = process};
    char *text = process_text(server.process.output);
    WAIT_UNTIL(
        (free(text), text = process_text(server.process.output), *text) || process_has_ended(&server.process), "nothing was printed");
    const char *address = strstr(text, "http://127.0.0.1:");
    if (!address) fail_msg("no address in '%s': %s", text, process_text(server.process.errors));
    server.port = atoi(address + strlen("http://127.0.0.1:"));
    free(text);
    return server;
}

/* Serves the run `r`. */
static inline Server serve(const char *settings) {
    SCOPED_FREE char *words = memory_format("serve r port=0 device=cpu threads=1 template=chatml %s", settings);
    return await_server(smelt_start(words));
}

/* Ends the server by a signal; demands success and an empty log. */
static inline void end(Server *server) {
    kill(server->process.id, SIGTERM);
    ProcessResult result = process_finish(&server->process);
    assert_int_equal(result.signal, 0);
    assert_int_equal(result.code, 0);
    assert_string_equal(result.errors, "");
    process_free(&result);
}

/* -- HTTP ---------------------------------------------------------------------------------------------------------- */

static inline int open_connection(const Server *server) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)server->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(connection, (struct sockaddr *)&to, sizeof to), 0);
    return connection;
}

static inline void send_text(int connection, const char *text, size_t size) {
    for (ssize_t sent; size > 0; text += sent, size -= (size_t)sent) {
        sent = send(connection, text, size, MSG_NOSIGNAL);
        if (sent <= 0) return; /* the server may answer before it has read all */
    }
}

/* HTTP/1.0: the answer ends with the connection. */
static inline void send_post(int connection, const char *path, const char *body) {
    SCOPED_FREE char *text =
        memory_format("POST %s HTTP/1.0\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s", path, strlen(body), body);
    send_text(connection, text, strlen(text));
}

/* Reads up to the end of the connection, and closes it. */
static inline Reply receive(int connection) {
    size_t length = 0;
    Reply reply = {.text = memory_allocate(1)};
    for (ssize_t got = 1; got > 0; length += (size_t)(got > 0 ? got : 0)) {
        reply.text = memory_resize(reply.text, length + (1 << 16) + 1);
        got = recv(connection, reply.text + length, 1 << 16, 0);
    }
    reply.text[length] = '\0';
    close(connection);
    sscanf(reply.text, "HTTP/1.%*d %d", &reply.status);
    reply.body = strstr(reply.text, "\r\n\r\n");
    reply.body = reply.body ? reply.body + 4 : "";
    return reply;
}

static inline Reply ask(const Server *server, const char *request) {
    int connection = open_connection(server);
    send_text(connection, request, strlen(request));
    return receive(connection);
}

static inline Reply post(const Server *server, const char *path, const char *body) {
    int connection = open_connection(server);
    send_post(connection, path, body);
    return receive(connection);
}

/* The parsed answer, which must be good; the caller releases it. */
static inline json_t *answer_to(const Server *server, const char *path, const char *body) {
    Reply reply = post(server, path, body);
    json_t *json = json_loads(reply.body, JSON_ALLOW_NUL, NULL);
    if (reply.status != 200 || !json) fail_msg("%s: %s", body, reply.text);
    free(reply.text);
    return json;
}

static inline json_t *choice(const json_t *answer, size_t index) { return json_array_get(json_object_get(answer, "choices"), index); }

/* The value of a metric. */
static inline long metric(const Server *server, const char *name) {
    Reply reply = ask(server, "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n");
    SCOPED_FREE char *start = memory_format("\n%s ", name);
    const char *found = strstr(reply.body, start);
    if (!found) fail_msg("no %s in %s", name, reply.text);
    long value = atol(found + strlen(start));
    free(reply.text);
    return value;
}
