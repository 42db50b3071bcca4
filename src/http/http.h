/* What HTTP servers share: libmicrohttpd, which is opened at run time, a socket that listens at one
 * address, and the check of a request's host. Called by `smelt watch` and `smelt serve`. */
#pragma once

#include <microhttpd.h>
#include <stdbool.h>

#include "base/error.h"
#include "base/library.h"

/* The functions of libmicrohttpd that are used, and their types. */
#define HTTP_API(CALL)                                                                                                    \
    CALL(start_daemon, struct MHD_Daemon *,                                                                               \
        (unsigned flags, uint16_t port, MHD_AcceptPolicyCallback accept, void *accept_context, MHD_AccessHandlerCallback answer, \
            void *context, ...))                                                                                          \
    CALL(stop_daemon, void, (struct MHD_Daemon *))                                                                        \
    CALL(quiesce_daemon, int, (struct MHD_Daemon *))                                                                      \
    CALL(run_wait, enum MHD_Result, (struct MHD_Daemon *, int32_t milliseconds))                                          \
    CALL(suspend_connection, void, (struct MHD_Connection *))                                                             \
    CALL(resume_connection, void, (struct MHD_Connection *))                                                              \
    CALL(get_connection_info, const union MHD_ConnectionInfo *,                                                          \
        (struct MHD_Connection *, enum MHD_ConnectionInfoType kind, ...))                                                 \
    CALL(lookup_connection_value, const char *, (struct MHD_Connection *, enum MHD_ValueKind, const char *name))          \
    CALL(create_response_from_buffer, struct MHD_Response *, (size_t bytes, void *text, enum MHD_ResponseMemoryMode))     \
    CALL(create_response_from_callback, struct MHD_Response *,                                                            \
        (uint64_t bytes, size_t block, MHD_ContentReaderCallback reader, void *context, MHD_ContentReaderFreeCallback free)) \
    CALL(add_response_header, enum MHD_Result, (struct MHD_Response *, const char *name, const char *value))              \
    CALL(queue_response, enum MHD_Result, (struct MHD_Connection *, unsigned status, struct MHD_Response *))              \
    CALL(destroy_response, void, (struct MHD_Response *))

typedef struct HttpApi { HTTP_API(LIBRARY_TYPED_FIELD) } HttpApi;

/* A call of libmicrohttpd about a request: first without, then with parts of the body, then with none. */
typedef struct HttpCall {
    struct MHD_Connection *connection;
    const char *path, *method, *upload;
    size_t *upload_bytes;
    void **request; /* the server's own, NULL at first */
} HttpCall;
typedef enum MHD_Result HttpAnswer(void *context, const HttpCall *call);

typedef struct HttpListener {
    HttpApi api;
    void *library;
    char *host, *url; /* "http://127.0.0.1:6160/" */
    int socket;       /* -1: closed, or owned by the server */
    bool loopback;    /* only this machine can reach it */
    HttpAnswer *answer;
    void *context;
} HttpListener;

/* The address of a listener. */
typedef struct HttpPlace {
    const char *host;    /* a name or an address */
    int port;            /* 0: any free one */
    const char *setting; /* has both as HOST:PORT; NULL: the settings host and port have them. For messages */
} HttpPlace;

/* Opens the library and listens at `place` alone. Close it even after a failure. ERROR_USAGE if the library is missing or
 * the address is unavailable; `command` ("smelt watch") appears in messages. */
bool http_open(HttpListener *listener, const char *command, const HttpPlace *place, int connections, Error *error);
/* Starts a server that owns the socket and calls `answer`. `options` ends with MHD_OPTION_END. NULL:
 * ERROR_INTERNAL. */
struct MHD_Daemon *http_start(
    HttpListener *listener, unsigned flags, HttpAnswer *answer, void *context, struct MHD_OptionItem *options, Error *error);
void http_close(HttpListener *listener);
/* Answers with a copy of `text`. The headers forbid foreign scripts, frames and caches. */
enum MHD_Result http_reply(
    const HttpListener *listener, struct MHD_Connection *connection, unsigned status, const char *type, const char *text);
/* Returns whether a Host header names this server: an address, localhost, or the name that it was
 * started with. So a page of another site cannot read data by DNS rebinding. The port is not
 * compared, because ssh -L changes it. `host` may be NULL. */
bool http_host_is_ours(const HttpListener *listener, const char *host);
