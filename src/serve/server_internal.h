/* A server, shared by its two threads: libmicrohttpd's (connections.c) and the engine's (serve_work.c). */
#pragma once

#include "base/thread.h"
#include "comm/secret.h"
#include "http/http.h"
#include "serve/answer_internal.h"

typedef enum ServeExchangeState {
    EXCHANGE_READING, /* of the thread of HTTP alone, as is EXCHANGE_DONE */
    EXCHANGE_ARRIVED, /* from here on in the server's list */
    EXCHANGE_RUNNING, /* the engine has its samples */
    EXCHANGE_DONE,    /* out of the list: all samples have ended, or there is a fault */
} ServeExchangeState;

typedef struct ServeExchangePrompt {
    struct ServeExchange *exchange;
    size_t first_sample;
} ServeExchangePrompt;

/* A request and its answer. The thread of HTTP creates and frees it; if it is in the list when its
 * connection ends, the engine's thread frees it. */
typedef struct ServeExchange {
    Server *server;
    const struct ServeRoute *route;
    struct MHD_Connection *connection;
    int socket;
    char *body;
    size_t body_size, body_capacity;
    bool too_large, crowded; /* the body exceeds the limit of one, or of all */
    bool read;               /* the body is complete */

    /* Under the lock from EXCHANGE_ARRIVED on. */
    ServeExchangeState state;
    ServeFault fault;
    ServeAnswer answer;
    ServeExchangePrompt *prompts; /* the contexts of the engine's requests */
    size_t ended;                 /* samples */
    bool suspended;               /* the connection waits for the engine */
    bool gone;                    /* the connection has ended */
    struct ServeExchange *next;

    ServeOutput output; /* of events; of the thread of HTTP */
    bool finished;      /* the last event is in the output */
} ServeExchange;

/* Statuses that are counted. */
#define SERVE_STATUSES {200, 400, 401, 403, 404, 405, 413, 429, 500, 503}
enum { SERVE_STATUS_COUNT = 10 };

typedef struct ServeCounts {
    int64_t statuses[SERVE_STATUS_COUNT], canceled; /* answers; requests whose client went away */
    int64_t held, running;                          /* samples: in exchanges; that have tokens and have not ended */
    EngineCounts engine;
} ServeCounts;

struct Server {
    const ServeModel *model;
    ServeModel served; /* the same, with the engine's positions */
    const ServeSettings *settings;
    HttpListener listener;
    struct MHD_Daemon *daemon;
    Secret nonce, key; /* of the key that clients send */
    Engine *engine;
    int64_t bodies;      /* bytes; of the thread of HTTP */
    uint64_t number;     /* of the next answer; of the thread of HTTP */
    uint64_t first_seed; /* of requests without one, with their number added */

    pthread_mutex_t lock;
    pthread_cond_t arrived;
    ServeExchange *first, **end; /* the list, by arrival */
    int64_t exchanges;           /* all, to wait for the last answers */
    bool stopping;
    ServeCounts counts;
};

/* -- connections.c: the thread of HTTP ----------------------------------------------------------------------------- */

bool server_listen(Server *server, Error *error);
void serve_exchange_free(ServeExchange *exchange); /* under the lock */

/* -- serve_work.c: under the lock ---------------------------------------------------------------------------------- */

void server_queue(Server *server, ServeExchange *exchange);
/* Lets the thread of HTTP go on with a connection that waits. */
void serve_exchange_resume(ServeExchange *exchange);

/* -- serve_page.c -------------------------------------------------------------------------------------------------- */

extern const char serve_page[]; /* HTML */

/* -- serve_metrics.c ----------------------------------------------------------------------------------------------- */

void serve_count_status(Server *server, int status);
char *serve_metrics_text(const Server *server); /* the caller frees */
