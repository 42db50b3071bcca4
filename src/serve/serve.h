/* `smelt serve`: an HTTP server of one model with the interface of OpenAI. libmicrohttpd's thread
 * reads requests: it parses a body, makes tokens of its prompts, and queues it. The caller's thread
 * runs the engine and fills the samples. One lock guards what both threads read.
 *
 *     /v1/completions, /v1/chat/completions    answers, whole or as server-sent events
 *     /v1/models                               the model's name
 *     /                                        a page for browsers
 *     /health, /metrics                        for supervisors, and for Prometheus
 *
 * A model may have adapters. Requests choose one by its name.
 *
 * The memory of requests is limited by the bytes of bodies, the number of connections, and the
 * number of samples that wait, run or have not been fetched. */
#pragma once

#include "base/stop.h"
#include "chat/chat.h"
#include "engine/engine.h"
#include "token/tokenizer.h"

/* The model as requests see it; borrowed by a server. */
typedef struct ServeModel {
    const char *name;
    const char *const *adapters; /* names; a request for the one at i has EngineRequest.adapter i + 1 */
    int adapter_count;
    const Tokenizer *tokenizer; /* NULL: bytes */
    TokenizerEncoder *encoder;  /* NULL: bytes; used by the thread of HTTP alone, as is `chat` */
    ChatEncoder *chat;          /* NULL: the model has no chat template */
    const TokenIds *ends;       /* [1 + adapter_count]: tokens that end an answer, by EngineRequest.adapter */
    int64_t positions;          /* most tokens of a prompt and its answer; set by server_run */
    int64_t samples;            /* most samples of a request; set by server_open */
} ServeModel;

typedef struct ServeSettings {
    const char *host;
    int port;
    const char *key;    /* the key that requests must have; "": none */
    int64_t body_bytes; /* of a request; at most eight times as many of all requests that arrive at once */
    int64_t queue;      /* most samples that wait, run, or have not been fetched */
} ServeSettings;

typedef struct Server Server;
/* Listens; requests wait until server_run. Both arguments must outlive the server. ERROR_USAGE if
 * libmicrohttpd is missing, the address is unavailable, or other machines can reach it and there is
 * no key. */
Server *server_open(const ServeModel *model, const ServeSettings *settings, Error *error);
void server_close(Server *server);            /* NULL is allowed */
const char *server_url(const Server *server); /* "http://127.0.0.1:8000/" */
/* Serves until a stop is requested; then refuses new requests, and ends when the others have ended,
 * after ten seconds, or at the second request to stop. Returns false if the device or another rank
 * fails. */
bool server_run(Server *server, Engine *engine, const StopRequest *stop, Error *error);
