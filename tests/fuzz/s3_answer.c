/* A libFuzzer entry for the answers of S3 servers: the first byte chooses what is asked of a bucket, the rest is what the
 * server sends, with a head of its own or, by the second byte, behind one of HTTP. A request fails with one line or gives
 * what was asked for; no name has a control character. Owns a server on the loopback as long as the program lives. */
#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>

#include "ckpt/store_internal.h"
#include "fuzz.h"

typedef struct Answer {
    const uint8_t *data;
    size_t size;
    const char *head; /* sent before the data; "": none */
    int listener, port;
    pthread_mutex_t lock; /* held while an answer is sent, and while another one is put in its place */
} Answer;

/* Reads until the head of a request is over, and its body as far as it has come; answers, and closes. */
static void answer_one(Answer *answer, int peer) {
    char request[1 << 14], head[128];
    size_t length = 0;
    for (ssize_t got = 1; got > 0 && length < sizeof request - 1 && !memmem(request, length, "\r\n\r\n", 4); length += (size_t)got)
        if ((got = recv(peer, request + length, sizeof request - 1 - length, 0)) <= 0) break;
    pthread_mutex_lock(&answer->lock);
    int bytes = snprintf(head, sizeof head, answer->head, answer->size);
    if (send(peer, head, (size_t)bytes, MSG_NOSIGNAL) == bytes && send(peer, answer->data, answer->size, MSG_NOSIGNAL) >= 0)
        shutdown(peer, SHUT_WR);
    pthread_mutex_unlock(&answer->lock);
    while (recv(peer, request, sizeof request, 0) > 0) {}
    close(peer);
}

static void *serve(void *context) {
    for (Answer *answer = context;;) {
        int peer = accept(answer->listener, NULL, NULL);
        if (peer >= 0) answer_one(answer, peer);
    }
    return NULL;
}

static void serve_in_thread(Answer *answer) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    pthread_t thread;
    answer->listener = socket(AF_INET, SOCK_STREAM, 0);
    require(bind(answer->listener, (struct sockaddr *)&address, size) == 0 && listen(answer->listener, 8) == 0);
    require(getsockname(answer->listener, (struct sockaddr *)&address, &size) == 0);
    answer->port = ntohs(address.sin_port);
    require(pthread_create(&thread, NULL, serve, answer) == 0);
}

static Store *open_bucket(const Answer *answer) {
    char url[64];
    Error error = {0};
    snprintf(url, sizeof url, "http://127.0.0.1:%d", answer->port);
    setenv("AWS_ENDPOINT_URL", url, 1);
    setenv("AWS_ACCESS_KEY_ID", "key", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    setenv("AWS_MAX_ATTEMPTS", "1", 1);
    Store *store = store_open("s3://bucket/run", &error);
    require(store != NULL);
    return store;
}

static bool list_bucket(Store *store, Error *error) {
    FileList list;
    bool listed = store_list(store, "checkpoints", &list, error);
    for (size_t i = 0; listed && i < list.count; i++)
        for (const char *c = list.entries[i].name; *c; c++) require((unsigned char)*c >= ' ' && *c != 127);
    if (listed) file_list_free(&list);
    return listed;
}

static bool get_object(Store *store, Error *error) {
    int64_t length;
    char *text = store_get(store, "manifest.json", 1 << 16, &length, error);
    bool got = text != NULL;
    volatile char last = got && length > 0 ? text[length - 1] : 0;
    (void)last;
    free(text);
    return got;
}

static bool create_object(Store *store, Error *error) {
    bool exists;
    return store_create(store, "lease.json", &(StoreSpan){.data = "{}", .bytes = 2}, &exists, error);
}

static bool ask(Store *store, int what, Error *error) {
    static const StoreSpan span = {.data = "text", .bytes = 4};
    switch (what % 7) {
    case 0: return list_bucket(store, error);
    case 1: return get_object(store, error);
    case 2: return store_put(store, "object", &span, 1, error);
    case 3: return store_remove(store, "checkpoints/step-00000001", error);
    case 4: return store_clean(store, "checkpoints", "attempt", error);
    case 5: return store_link(store, "a", "b", error);
    default: return create_object(store, error);
    }
}

/* libcurl before 8.1.1 reads freed memory when the first header of an answer on a kept handle continues another one
 * (https://github.com/curl/curl/pull/11103). */
static bool continues_a_header(const uint8_t *data, size_t size) { return memmem(data, size, "\n ", 2) || memmem(data, size, "\n\t", 2); }

FUZZ(s3_answer) {
    static const char *const heads[] = {"HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n",
        "HTTP/1.1 404 Not Found\r\nContent-Length: %zu\r\n\r\n", "HTTP/1.1 412 Precondition Failed\r\nContent-Length: %zu\r\n\r\n", ""};
    static Answer answer = {.lock = PTHREAD_MUTEX_INITIALIZER};
    static Store *store;
    Error error = {0};
    if (size < 2 || continues_a_header(data, size)) return;
    if (!store) {
        serve_in_thread(&answer);
        store = open_bucket(&answer);
    }
    pthread_mutex_lock(&answer.lock);
    answer.head = heads[data[1] % 4];
    answer.data = data + 2;
    answer.size = size - 2;
    pthread_mutex_unlock(&answer.lock);
    if (!ask(store, data[0], &error)) require_line(&error);
    pthread_mutex_lock(&answer.lock); /* the former answer may still be on its way */
    answer.data = NULL;
    answer.size = 0;
    pthread_mutex_unlock(&answer.lock);
}
