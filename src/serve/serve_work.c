/* The engine's thread: takes exchanges from the list, fills their samples, and ends them. The lock
 * is free while the engine computes. */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/array.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "serve/server_internal.h"

static const double idle_seconds = 0.1, look_seconds = 0.05, grace_seconds = 10, last_answers_seconds = 2;

void serve_exchange_resume(ServeExchange *exchange) {
    if (!exchange->suspended) return;
    exchange->suspended = false;
    exchange->server->listener.api.resume_connection(exchange->connection);
}

void server_queue(Server *server, ServeExchange *exchange) {
    exchange->state = EXCHANGE_ARRIVED;
    *server->end = exchange;
    server->end = &exchange->next;
    pthread_cond_signal(&server->arrived);
}

/* -- Samples ------------------------------------------------------------------------------------------------------- */

static bool take_sample_token(void *context, int index, const EngineToken *token) {
    const ServeExchangePrompt *prompt = context;
    ServeExchange *exchange = prompt->exchange;
    Server *server = exchange->server;
    ServeAnswer *answer = &exchange->answer;
    ServeSample *sample = &answer->samples[prompt->first_sample + (size_t)index];
    pthread_mutex_lock(&server->lock);
    server->counts.running += !sample->begun;
    bool goes_on = serve_sample_add(sample, &answer->request, token);
    if (answer->request.stream && sample->text.shown > sample->sent_bytes) serve_exchange_resume(exchange);
    pthread_mutex_unlock(&server->lock);
    return goes_on;
}

static void take_prompt_score(void *context, const EngineToken *token) {
    const ServeExchangePrompt *prompt = context;
    ServeExchange *exchange = prompt->exchange;
    ServeRequest *request = &exchange->answer.request;
    ServePrompt *scored = &request->prompts[prompt->first_sample / (size_t)request->samples];
    pthread_mutex_lock(&exchange->server->lock);
    serve_scores_add(&scored->scores, token, request->top);
    pthread_mutex_unlock(&exchange->server->lock);
}

static void take_sample_end(void *context, int index, EngineEnd end) {
    const ServeExchangePrompt *prompt = context;
    ServeExchange *exchange = prompt->exchange;
    Server *server = exchange->server;
    ServeSample *sample = &exchange->answer.samples[prompt->first_sample + (size_t)index];
    pthread_mutex_lock(&server->lock);
    server->counts.running -= sample->begun;
    serve_sample_end(sample, end);
    exchange->ended++;
    pthread_mutex_unlock(&server->lock);
}

/* -- ServeExchanges, under the lock ------------------------------------------------------------------------------------- */

static void submit_exchange(Server *server, ServeExchange *exchange) {
    const ServeRequest *request = &exchange->answer.request;
    Error error;
    exchange->state = EXCHANGE_RUNNING;
    const TokenIds *ends = &server->model->ends[request->adapter];
    for (size_t i = 0; i < request->prompt_count && !exchange->fault.status; i++) {
        const ServePrompt *prompt = &request->prompts[i];
        const EngineRequest asked = {.prompt = prompt->ids.items,
            .prompt_count = (int64_t)prompt->ids.count,
            .tokens = serve_request_tokens(request, exchange->answer.model, prompt),
            .samples = (int)request->samples,
            .sampling = request->sampling,
            .penalties = request->penalties,
            .top = int_max(request->top, 0),
            .adapter = request->adapter,
            .number = (uint64_t)i << 16,
            .ends = ends->items,
            .end_count = (int64_t)ends->count,
            .token = take_sample_token,
            .scored = serve_request_scores_prompts(request) ? take_prompt_score : NULL,
            .end = take_sample_end,
            .context = &exchange->prompts[i]};
        if (!engine_submit(server->engine, &asked, &error))
            serve_refuse(&exchange->fault, MHD_HTTP_BAD_REQUEST, NULL, NULL, "prompt %zu: %s", i + 1, error.message);
    }
    if (request->stream) serve_exchange_resume(exchange);
}

static void cancel_exchange(Server *server, ServeExchange *exchange) {
    for (size_t i = 0; i < exchange->answer.request.prompt_count; i++) engine_cancel(server->engine, &exchange->prompts[i]);
    for (size_t i = 0; i < exchange->answer.sample_count; i++) {
        const ServeSample *sample = &exchange->answer.samples[i];
        server->counts.running -= sample->begun && !sample->ended;
    }
}

/* Refuses exchanges whose client has closed its socket: libmicrohttpd does not look at sockets of
 * connections that wait. */
static void look_for_clients(Server *server) {
    for (ServeExchange *exchange = server->first; exchange; exchange = exchange->next) {
        struct pollfd file = {.fd = exchange->socket, .events = POLLRDHUP};
        if (exchange->gone || !exchange->suspended || poll(&file, 1, 0) <= 0 || exchange->fault.status) continue;
        serve_refuse(&exchange->fault, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, NULL, "the client went away");
        server->counts.canceled++;
    }
}

static void refuse_all(Server *server, int status, const char *reason) {
    for (ServeExchange *exchange = server->first; exchange; exchange = exchange->next)
        if (!exchange->fault.status) serve_refuse(&exchange->fault, status, NULL, NULL, "%s", reason);
}

/* Submits new exchanges, and takes those that have ended out of the list. */
static void tend_exchanges(Server *server) {
    ServeExchange **at = &server->first;
    while (*at) {
        ServeExchange *exchange = *at;
        bool wanted = !exchange->gone && !exchange->fault.status;
        if (wanted && exchange->state == EXCHANGE_ARRIVED) submit_exchange(server, exchange);
        bool failed = exchange->gone || exchange->fault.status, ended = exchange->ended == exchange->answer.sample_count;
        if (!failed && !ended) {
            at = &exchange->next;
            continue;
        }
        *at = exchange->next;
        if (failed) cancel_exchange(server, exchange);
        exchange->state = EXCHANGE_DONE;
        if (exchange->gone) serve_exchange_free(exchange);
        else serve_exchange_resume(exchange);
    }
    server->end = at;
}

/* -- Running ------------------------------------------------------------------------------------------------------- */

/* Waits until none of the exchanges is left: their answers are then with the kernel. */
static void await_last_answers(Server *server) {
    double until = log_seconds() + last_answers_seconds;
    pthread_mutex_lock(&server->lock);
    while (server->exchanges > 0 && thread_wait_until(&server->arrived, &server->lock, until)) continue;
    pthread_mutex_unlock(&server->lock);
}

/* Stops to accept connections. */
static void begin_stop(Server *server) {
    int socket = server->listener.api.quiesce_daemon(server->daemon);
    if (socket >= 0) close(socket);
    server->stopping = true;
}

/* Does one step of all work. If there is none, waits, and then makes an empty step, which keeps the
 * connections of the ranks that follow alive. Returns false if the device or a rank fails. */
static bool work(Server *server, double *look, Error *error) {
    pthread_mutex_lock(&server->lock);
    if (log_seconds() >= *look) {
        look_for_clients(server);
        *look = log_seconds() + look_seconds;
    }
    tend_exchanges(server);
    server->counts.engine = engine_counts(server->engine);
    bool busy = engine_busy(server->engine);
    if (!busy) thread_wait_until(&server->arrived, &server->lock, log_seconds() + idle_seconds);
    pthread_mutex_unlock(&server->lock);
    if (engine_step(server->engine, error)) return true;
    bool goes_on = error->code == ERROR_NUMERICS;
    if (goes_on) log_error("%s", error->message);
    pthread_mutex_lock(&server->lock);
    refuse_all(server, MHD_HTTP_INTERNAL_SERVER_ERROR, error->message);
    tend_exchanges(server);
    pthread_mutex_unlock(&server->lock);
    return goes_on;
}

bool server_run(Server *server, Engine *engine, const StopRequest *stop, Error *error) {
    double look = 0, until = INFINITY;
    server->engine = engine;
    server->served.positions = engine_positions(engine);
    bool good = server_listen(server, error);
    while (good) {
        pthread_mutex_lock(&server->lock);
        if (stop->count > 0 && !server->stopping) {
            begin_stop(server);
            until = log_seconds() + grace_seconds;
        }
        bool over = server->stopping && (!server->first || stop->count > 1 || log_seconds() > until);
        pthread_mutex_unlock(&server->lock);
        if (over) break;
        good = work(server, &look, error);
    }
    if (!server->daemon) return false;
    pthread_mutex_lock(&server->lock);
    server->stopping = true;
    refuse_all(server, MHD_HTTP_SERVICE_UNAVAILABLE, "the server stops");
    tend_exchanges(server);
    pthread_mutex_unlock(&server->lock);
    await_last_answers(server);
    server->listener.api.stop_daemon(server->daemon);
    server->daemon = NULL;
    return good;
}
