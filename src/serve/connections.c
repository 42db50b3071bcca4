/* The thread of HTTP: checks requests, reads their bodies, and sends answers. A connection whose
 * answer is not ready is suspended until the engine's thread resumes it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "serve/server_internal.h"

enum { SERVE_CONNECTIONS = 1024, SERVE_IDLE_SECONDS = 60, SERVE_BODIES = 8, EVENT_BLOCK = 8192, BODY_STEP = 1 << 16 };
enum { BODY_TOO_LARGE = 413 /* its name depends on the version of libmicrohttpd */ };

/* -- ServeExchanges ----------------------------------------------------------------------------------------------------- */

static void free_body(ServeExchange *exchange) {
    exchange->server->bodies -= (int64_t)exchange->body_capacity;
    free(exchange->body);
    exchange->body = NULL;
    exchange->body_size = exchange->body_capacity = 0;
}

void serve_exchange_free(ServeExchange *exchange) {
    Server *server = exchange->server;
    server->counts.held -= (int64_t)exchange->answer.sample_count;
    server->exchanges--;
    if (server->stopping) pthread_cond_signal(&server->arrived);
    serve_answer_free(&exchange->answer);
    free(exchange->prompts);
    free(exchange->output.bytes);
    free(exchange);
}

static ServeExchange *open_exchange(Server *server, struct MHD_Connection *connection) {
    ServeExchange *exchange = memory_allocate(sizeof *exchange);
    *exchange = (ServeExchange){.server = server, .connection = connection, .answer.model = &server->served};
    exchange->socket = server->listener.api.get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    pthread_mutex_lock(&server->lock);
    server->exchanges++;
    pthread_mutex_unlock(&server->lock);
    return exchange;
}

/* The end of a request, also by the client. */
static void note_completed(void *context, struct MHD_Connection *connection, void **request, enum MHD_RequestTerminationCode code) {
    Server *server = context;
    ServeExchange *exchange = *request;
    (void)connection, (void)code;
    if (!exchange) return;
    free_body(exchange);
    pthread_mutex_lock(&server->lock);
    if (exchange->state == EXCHANGE_ARRIVED || exchange->state == EXCHANGE_RUNNING) {
        exchange->gone = true;
        server->counts.canceled++;
        pthread_cond_signal(&server->arrived);
    } else serve_exchange_free(exchange);
    pthread_mutex_unlock(&server->lock);
    *request = NULL;
}

/* -- Answers ------------------------------------------------------------------------------------------------------- */

/* Sends a response, which it releases. */
static enum MHD_Result reply_with(ServeExchange *exchange, int status, const char *type, struct MHD_Response *response) {
    const HttpApi *http = &exchange->server->listener.api;
    if (!response) return MHD_NO;
    http->add_response_header(response, "Content-Type", type);
    http->add_response_header(response, "Cache-Control", "no-store");
    http->add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (status == MHD_HTTP_UNAUTHORIZED) http->add_response_header(response, "WWW-Authenticate", "Bearer");
    if (status == MHD_HTTP_TOO_MANY_REQUESTS || status == MHD_HTTP_SERVICE_UNAVAILABLE)
        http->add_response_header(response, "Retry-After", "1");
    enum MHD_Result result = http->queue_response(exchange->connection, (unsigned)status, response);
    http->destroy_response(response);
    pthread_mutex_lock(&exchange->server->lock);
    serve_count_status(exchange->server, status);
    pthread_mutex_unlock(&exchange->server->lock);
    return result;
}

/* Sends a text, which it frees. */
static enum MHD_Result reply_text(ServeExchange *exchange, int status, const char *type, char *text) {
    const HttpApi *http = &exchange->server->listener.api;
    return reply_with(exchange, status, type, http->create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE));
}

static enum MHD_Result reply_fault(ServeExchange *exchange) {
    return reply_text(exchange, exchange->fault.status, "application/json", serve_fault_text(&exchange->fault));
}

static enum MHD_Result reply_json(ServeExchange *exchange, json_t *json) {
    char *text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    return text ? reply_text(exchange, MHD_HTTP_OK, "application/json", text) : MHD_NO;
}

static enum MHD_Result reply_health(ServeExchange *exchange) { return reply_json(exchange, json_pack("{ss}", "status", "ok")); }

static enum MHD_Result reply_models(ServeExchange *exchange) {
    const ServeModel *model = exchange->server->model;
    json_t *list = json_array();
    for (int i = 0; i <= model->adapter_count; i++)
        json_array_append_new(list, json_pack("{ss ss sI ss ss* sI sb}", "id", serve_model_name(model, i), "object", "model", "created",
                                        (json_int_t)0, "owned_by", "smelt", "parent", i ? model->name : NULL, "max_model_len",
                                        (json_int_t)exchange->server->served.positions, "chat", model->chat != NULL));
    return reply_json(exchange, json_pack("{ss so}", "object", "list", "data", list));
}

static enum MHD_Result reply_metrics(ServeExchange *exchange) {
    Server *server = exchange->server;
    pthread_mutex_lock(&server->lock);
    char *text = serve_metrics_text(server);
    pthread_mutex_unlock(&server->lock);
    return reply_text(exchange, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", text);
}

/* The page may run its own script and send requests to this server, and nothing else. */
static enum MHD_Result reply_page(ServeExchange *exchange) {
    const HttpApi *http = &exchange->server->listener.api;
    struct MHD_Response *response = http->create_response_from_buffer(strlen(serve_page), (char *)serve_page, MHD_RESPMEM_PERSISTENT);
    if (response)
        http->add_response_header(response, "Content-Security-Policy",
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action "
            "'none'; frame-ancestors 'none'");
    return reply_with(exchange, MHD_HTTP_OK, "text/html; charset=utf-8", response);
}

/* Fills the output with new events; suspends the connection if there are none. Returns false then. */
static bool await_events(ServeExchange *exchange) {
    Server *server = exchange->server;
    ServeOutput *output = &exchange->output;
    pthread_mutex_lock(&server->lock);
    output->size = output->at = 0;
    if (exchange->fault.status) serve_fault_event(&exchange->fault, output);
    else serve_answer_events(&exchange->answer, output);
    if (exchange->state == EXCHANGE_DONE) {
        if (!exchange->fault.status) serve_answer_finish(&exchange->answer, output);
        exchange->finished = true;
    }
    exchange->suspended = output->size == 0;
    if (exchange->suspended) server->listener.api.suspend_connection(exchange->connection);
    pthread_mutex_unlock(&server->lock);
    return output->size > 0;
}

static ssize_t read_events(void *context, uint64_t position, char *block, size_t most) {
    ServeExchange *exchange = context;
    ServeOutput *output = &exchange->output;
    (void)position;
    if (output->at == output->size && exchange->finished) return MHD_CONTENT_READER_END_OF_STREAM;
    if (output->at == output->size && !await_events(exchange)) return 0;
    size_t bytes = output->size - output->at < most ? output->size - output->at : most;
    memcpy(block, output->bytes + output->at, bytes);
    output->at += bytes;
    return (ssize_t)bytes;
}

/* Sends an answer whose time has come, or suspends the connection. */
static enum MHD_Result continue_exchange(ServeExchange *exchange) {
    Server *server = exchange->server;
    const HttpApi *http = &server->listener.api;
    pthread_mutex_lock(&server->lock);
    bool stream = exchange->answer.request.stream, done = exchange->state == EXCHANGE_DONE;
    bool ready = done || (stream && exchange->state == EXCHANGE_RUNNING), failed = exchange->fault.status;
    exchange->suspended = !ready;
    if (!ready) http->suspend_connection(exchange->connection);
    pthread_mutex_unlock(&server->lock);
    if (!ready) return MHD_YES;
    if (failed && done) return reply_fault(exchange);
    if (!stream) return reply_text(exchange, MHD_HTTP_OK, "application/json", serve_answer_whole(&exchange->answer));
    return reply_with(exchange, MHD_HTTP_OK, "text/event-stream; charset=utf-8",
        http->create_response_from_callback(MHD_SIZE_UNKNOWN, EVENT_BLOCK, read_events, exchange, NULL));
}

/* -- Requests ------------------------------------------------------------------------------------------------------ */

typedef struct ServeRoute {
    const char *path;
    enum MHD_Result (*reply)(ServeExchange *exchange); /* NULL: a POST */
    ServeKind kind;
    bool open; /* needs no key */
} ServeRoute;

static const ServeRoute serve_routes[] = {
    {"/", reply_page, .open = true},
    {"/health", reply_health, .open = true},
    {"/metrics", reply_metrics},
    {"/v1/models", reply_models},
    {"/v1/completions", NULL, SERVE_COMPLETION},
    {"/v1/chat/completions", NULL, SERVE_CHAT},
};

static const char *header(const ServeExchange *exchange, const char *name) {
    return exchange->server->listener.api.lookup_connection_value(exchange->connection, MHD_HEADER_KIND, name);
}

/* Compares in constant time. */
static bool has_key(const ServeExchange *exchange) {
    static const char scheme[] = "Bearer ";
    const Server *server = exchange->server;
    const char *given = header(exchange, MHD_HTTP_HEADER_AUTHORIZATION);
    if (!given || strncasecmp(given, scheme, strlen(scheme)) != 0) return false;
    Secret key = secret_sign(&server->nonce, given + strlen(scheme), strlen(given + strlen(scheme)));
    return secret_equal(&key, &server->key);
}

/* Returns whether a request comes from no page, or from the page of this server. */
static bool is_own_origin(const ServeExchange *exchange) {
    const char *origin = header(exchange, MHD_HTTP_HEADER_ORIGIN), *host = header(exchange, MHD_HTTP_HEADER_HOST);
    return !origin || (starts_with(origin, "http://") && !strcmp(origin + strlen("http://"), host));
}

/* Without a key, pages of other sites in a browser of this machine could send requests. */
static bool check_caller(ServeExchange *exchange) {
    const Server *server = exchange->server;
    ServeFault *fault = &exchange->fault;
    if (*server->settings->key)
        return exchange->route->open || has_key(exchange) ||
               serve_refuse(
                   fault, MHD_HTTP_UNAUTHORIZED, "invalid_api_key", NULL, "the request needs the server's key: Authorization: Bearer KEY");
    if (!http_host_is_ours(&server->listener, header(exchange, MHD_HTTP_HEADER_HOST)))
        return serve_refuse(
            fault, MHD_HTTP_FORBIDDEN, NULL, NULL, "this host name is not served without a key: set SMELT_API_KEY at the server");
    return is_own_origin(exchange) || serve_refuse(fault, MHD_HTTP_FORBIDDEN, NULL, NULL,
                                          "pages of other sites are not served without a key: set SMELT_API_KEY at the server");
}

static bool check_route(ServeExchange *exchange, const char *path, const char *method) {
    ServeFault *fault = &exchange->fault;
    for (size_t i = 0; i < sizeof serve_routes / sizeof *serve_routes; i++)
        if (!strcmp(path, serve_routes[i].path)) exchange->route = &serve_routes[i];
    if (!exchange->route) return serve_refuse(fault, MHD_HTTP_NOT_FOUND, NULL, NULL, "there is no such path");
    bool fits = exchange->route->reply ? !strcmp(method, "GET") || !strcmp(method, "HEAD") : !strcmp(method, "POST");
    return fits || serve_refuse(fault, MHD_HTTP_METHOD_NOT_ALLOWED, NULL, NULL, "%s takes only %s", exchange->route->path,
                       exchange->route->reply ? "GET" : "POST");
}

static bool refuse_size(ServeExchange *exchange) {
    return serve_refuse(&exchange->fault, BODY_TOO_LARGE, NULL, NULL, "the body has more than %" PRId64 " bytes, the limit of this server",
        exchange->server->settings->body_bytes);
}

static bool check_size(ServeExchange *exchange) {
    const char *length = header(exchange, MHD_HTTP_HEADER_CONTENT_LENGTH);
    return !length || strtoull(length, NULL, 10) <= (uint64_t)exchange->server->settings->body_bytes || refuse_size(exchange);
}

/* Takes a part of the body, or drops it if the body is refused. */
static void take_body(ServeExchange *exchange, const char *bytes, size_t size) {
    Server *server = exchange->server;
    size_t needed = (size_t)round_up((int64_t)(exchange->body_size + size), BODY_STEP);
    int64_t more = needed > exchange->body_capacity ? (int64_t)(needed - exchange->body_capacity) : 0;
    exchange->too_large |= exchange->body_size + size > (size_t)server->settings->body_bytes;
    exchange->crowded |= server->bodies + more > SERVE_BODIES * server->settings->body_bytes;
    if (exchange->too_large || exchange->crowded) {
        free_body(exchange);
        return;
    }
    if (more) exchange->body = memory_resize(exchange->body, exchange->body_capacity = needed);
    server->bodies += more;
    memcpy(exchange->body + exchange->body_size, bytes, size);
    exchange->body_size += size;
}

static void prepare_answer(ServeExchange *exchange) {
    Server *server = exchange->server;
    ServeAnswer *answer = &exchange->answer;
    ServeRequest *request = &answer->request;
    uint64_t number = server->number++;
    snprintf(
        answer->id, sizeof answer->id, "%s-%016" PRIx64, request->kind == SERVE_CHAT ? "chatcmpl" : "cmpl", server->first_seed + number);
    answer->created = (json_int_t)time(NULL);
    request->sampling.seed = request->seed < 0 ? server->first_seed + number : (uint64_t)request->seed;
    answer->sample_count = request->prompt_count * (size_t)request->samples;
    answer->samples = memory_allocate(answer->sample_count * sizeof *answer->samples);
    exchange->prompts = memory_allocate(request->prompt_count * sizeof *exchange->prompts);
    for (size_t i = 0; i < answer->sample_count; i++) serve_sample_begin(&answer->samples[i], answer->model);
    for (size_t i = 0; i < request->prompt_count; i++) exchange->prompts[i] = (ServeExchangePrompt){exchange, i * (size_t)request->samples};
}

/* Queues an exchange, unless the server is full or stops. */
static bool admit(ServeExchange *exchange) {
    Server *server = exchange->server;
    ServeFault *fault = &exchange->fault;
    size_t samples = exchange->answer.request.prompt_count * (size_t)exchange->answer.request.samples;
    pthread_mutex_lock(&server->lock);
    bool full = server->counts.held + (int64_t)samples > server->settings->queue, admitted = !full && !server->stopping;
    if (server->stopping) serve_refuse(fault, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, NULL, "the server stops");
    else if (full)
        serve_refuse(fault, MHD_HTTP_TOO_MANY_REQUESTS, NULL, NULL, "the queue of %" PRId64 " samples is full: try again later",
            server->settings->queue);
    else {
        prepare_answer(exchange);
        server->counts.held += (int64_t)samples;
        server_queue(server, exchange);
    }
    pthread_mutex_unlock(&server->lock);
    return admitted;
}

/* Reads the complete body and queues the request. */
static bool start_exchange(ServeExchange *exchange) {
    Server *server = exchange->server;
    ServeFault *fault = &exchange->fault;
    if (exchange->too_large) return refuse_size(exchange);
    if (exchange->crowded)
        return serve_refuse(
            fault, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, NULL, "the bodies that arrive now fill the memory for them: try again later");
    bool good =
        serve_request_read(&exchange->answer.request, exchange->route->kind, &server->served, exchange->body, exchange->body_size, fault);
    free_body(exchange);
    return good && admit(exchange);
}

static enum MHD_Result answer_call(void *context, const HttpCall *call) {
    ServeExchange *exchange = *call->request;
    if (!exchange) {
        *call->request = exchange = open_exchange(context, call->connection);
        if (!check_route(exchange, call->path, call->method) || !check_caller(exchange) || !check_size(exchange))
            return reply_fault(exchange);
        return exchange->route->reply ? exchange->route->reply(exchange) : MHD_YES;
    }
    if (*call->upload_bytes) {
        take_body(exchange, call->upload, *call->upload_bytes);
        *call->upload_bytes = 0;
        return MHD_YES;
    }
    if (!exchange->read) {
        exchange->read = true;
        if (!start_exchange(exchange)) return reply_fault(exchange);
    }
    return continue_exchange(exchange);
}

/* -- Opening ------------------------------------------------------------------------------------------------------- */

bool server_listen(Server *server, Error *error) {
    struct MHD_OptionItem options[] = {
        {MHD_OPTION_CONNECTION_LIMIT, SERVE_CONNECTIONS, NULL},
        {MHD_OPTION_CONNECTION_TIMEOUT, SERVE_IDLE_SECONDS, NULL},
        {MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)note_completed, server},
        {MHD_OPTION_END, 0, NULL},
    };
    server->daemon =
        http_start(&server->listener, MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, answer_call, server, options, error);
    return server->daemon;
}

Server *server_open(const ServeModel *model, const ServeSettings *settings, Error *error) {
    Server *server = memory_allocate(sizeof *server);
    *server = (Server){.model = model, .served = *model, .settings = settings, .end = &server->first};
    server->served.samples = settings->queue;
    pthread_mutex_init(&server->lock, NULL);
    pthread_cond_init(&server->arrived, NULL);
    bool good = http_open(&server->listener, "smelt serve", &(HttpPlace){settings->host, settings->port, NULL}, SERVE_CONNECTIONS, error) &&
                secret_random(&server->nonce, sizeof server->nonce, error) &&
                secret_random(&server->first_seed, sizeof server->first_seed, error);
    server->key = secret_sign(&server->nonce, settings->key, strlen(settings->key));
    if (good && !server->listener.loopback && !*settings->key)
        good = error_set(error, ERROR_USAGE,
            "host=%s lets other machines send requests, but there is no key: set SMELT_API_KEY to a long random text, or use "
            "host=127.0.0.1",
            settings->host);
    if (good) return server;
    server_close(server);
    return NULL;
}

void server_close(Server *server) {
    if (!server) return;
    http_close(&server->listener);
    pthread_cond_destroy(&server->arrived);
    pthread_mutex_destroy(&server->lock);
    free(server);
}

const char *server_url(const Server *server) { return server->listener.url; }
