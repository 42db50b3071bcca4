/* Serves the page. The caller's thread runs the server between updates of the report, so no locks
 * are needed. A Watch owns the socket, the server and the library. Called by `smelt watch`. */
#include "report/watch.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/thread.h"
#include "http/http.h"
#include "run/exporter.h"

enum { CONNECTIONS = 256, SPARE_CONNECTIONS = 32, IDLE_SECONDS = 10 };

/* An open connection. */
typedef struct Caller {
    int descriptor;
    uint64_t asked; /* increases with each connection and request; 0: this entry is free; or CLOSING */
} Caller;
#define CLOSING UINT64_MAX

struct Watch {
    const Report *report;
    HttpListener listener;
    struct MHD_Daemon *server;
    Caller callers[CONNECTIONS];
    int caller_count;
    uint64_t asked;
};

/* The script polls every second, or every five seconds in the background. After a failure it polls
 * again. The answer may come from a new process, because versions only grow. */
static const char script[] =
    "'use strict';\n"
    "let version = 0;\n"
    "const state = document.createElement('p');\n"
    "state.className = 'live';\n"
    "state.setAttribute('role', 'status');\n"
    "document.querySelector('main').prepend(state);\n"
    "async function refresh() {\n"
    "    try {\n"
    "        const answer = await fetch('/changes?from=' + version, {cache: 'no-store', signal: AbortSignal.timeout(10000)});\n"
    "        if (!answer.ok) throw new Error(answer.status);\n"
    "        const changes = await answer.json();\n"
    "        for (const [id, html] of Object.entries(changes.parts)) document.getElementById(id).innerHTML = html;\n"
    "        version = changes.version;\n"
    "        state.textContent = 'connected';\n"
    "        state.classList.remove('lost');\n"
    "    } catch {\n"
    "        state.textContent = 'smelt watch does not answer: these are the last figures';\n"
    "        state.classList.add('lost');\n"
    "    }\n"
    "    setTimeout(refresh, document.hidden ? 5000 : 1000);\n"
    "}\n"
    "refresh();\n";

/* -- Callers ------------------------------------------------------------------------------------------------------- */

/* Returns the open connection whose last request is the oldest. */
static Caller *oldest_caller(Watch *watch) {
    Caller *oldest = NULL;
    for (Caller *caller = watch->callers; caller < watch->callers + CONNECTIONS; caller++)
        if (caller->asked && (!oldest || caller->asked < oldest->asked)) oldest = caller;
    return oldest;
}

/* Keeps connections free for real requests, because anybody may open connections and send nothing.
 * libmicrohttpd closes sockets that were shut down. */
static void make_room(Watch *watch) {
    Caller *oldest = watch->caller_count > CONNECTIONS - SPARE_CONNECTIONS ? oldest_caller(watch) : NULL;
    if (!oldest) return;
    shutdown(oldest->descriptor, SHUT_RDWR);
    oldest->asked = CLOSING;
}

static void note_connection(
    void *context, struct MHD_Connection *connection, void **socket_context, enum MHD_ConnectionNotificationCode code) {
    Watch *watch = context;
    Caller *caller = *socket_context;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        *caller = (Caller){0};
        watch->caller_count--;
        return;
    }
    for (caller = watch->callers; caller->asked;) caller++; /* libmicrohttpd opens at most this many */
    *caller = (Caller){watch->listener.api.get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd, ++watch->asked};
    *socket_context = caller;
    watch->caller_count++;
    make_room(watch);
}

/* -- Answers ------------------------------------------------------------------------------------------------------- */

static enum MHD_Result reply_to_browser(
    Watch *watch, struct MHD_Connection *connection, unsigned status, const char *type, const char *text) {
    return http_reply(&watch->listener, connection, status, type, text);
}

static enum MHD_Result reply_page(Watch *watch, struct MHD_Connection *connection) {
    SCOPED_FREE char *page = NULL;
    size_t length;
    FILE *out = open_memstream(&page, &length);
    if (!out) return MHD_NO;
    report_print(watch->report, "<script src=\"/watch.js\" defer></script>\n", out);
    fclose(out);
    return reply_to_browser(watch, connection, MHD_HTTP_OK, "text/html; charset=utf-8", page);
}

static enum MHD_Result reply_changes(Watch *watch, struct MHD_Connection *connection) {
    const char *from = watch->listener.api.lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "from");
    const long long version = from ? strtoll(from, NULL, 10) : 0;
    json_auto_t *changes = json_pack("{s:I, s:{}}", "version", (json_int_t)report_version(watch->report), "parts");
    int count;
    const ReportPart *parts = report_parts(watch->report, &count);
    for (int i = 0; i < count; i++)
        if (parts[i].version > version) json_object_set_new(json_object_get(changes, "parts"), parts[i].id, json_string(parts[i].html));
    SCOPED_FREE char *text = json_dumps(changes, JSON_COMPACT);
    return text ? reply_to_browser(watch, connection, MHD_HTTP_OK, "application/json", text) : MHD_NO;
}

static enum MHD_Result reply_numbers(Watch *watch, const HttpCall *call) {
    ExportedRun runs[REPORT_RUNS];
    int count = 0;
    for (; report_run(watch->report, count, &runs[count]); count++) {}
    return exporter_answer(&watch->listener, call, runs, count);
}

static enum MHD_Result answer_request(void *context, const HttpCall *call) {
    static const char plain[] = "text/plain; charset=utf-8";
    Watch *watch = context;
    struct MHD_Connection *connection = call->connection;
    const char *path = call->path, *method = call->method;
    Caller *caller = watch->listener.api.get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    if (caller->asked != CLOSING) caller->asked = ++watch->asked;
    if (strcmp(path, "/metrics") == 0 || strcmp(path, "/healthz") == 0) return reply_numbers(watch, call);
    if (!http_host_is_ours(&watch->listener, watch->listener.api.lookup_connection_value(connection, MHD_HEADER_KIND, "Host")))
        return reply_to_browser(watch, connection, MHD_HTTP_FORBIDDEN, plain,
            "This host name is not served: open the address that smelt watch printed, or start it with host=NAME.\n");
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return reply_to_browser(watch, connection, MHD_HTTP_METHOD_NOT_ALLOWED, plain, "Only GET and HEAD are supported.\n");
    if (strcmp(path, "/") == 0) return reply_page(watch, connection);
    if (strcmp(path, "/watch.js") == 0) return reply_to_browser(watch, connection, MHD_HTTP_OK, "text/javascript; charset=utf-8", script);
    if (strcmp(path, "/changes") == 0) return reply_changes(watch, connection);
    return reply_to_browser(watch, connection, MHD_HTTP_NOT_FOUND, plain, "Only /, /metrics and /healthz exist.\n");
}

/* -- Opening ------------------------------------------------------------------------------------------------------- */

static bool open_server(Watch *watch, Error *error) {
    struct MHD_OptionItem options[] = {
        {MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS, NULL},
        {MHD_OPTION_CONNECTION_TIMEOUT, IDLE_SECONDS, NULL},
        {MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)note_connection, watch},
        {MHD_OPTION_END, 0, NULL},
    };
    watch->server = http_start(&watch->listener, MHD_USE_EPOLL, answer_request, watch, options, error);
    return watch->server;
}

Watch *watch_open(const Report *report, const char *host, int port, Error *error) {
    Watch *watch = memory_allocate(sizeof *watch);
    watch->report = report;
    if (http_open(&watch->listener, "smelt watch without terminal=true", host, port, CONNECTIONS, error) && open_server(watch, error)) {
        if (!watch->listener.loopback)
            log_warn("host=%s: everyone who reaches this machine over the network can read the page, without a password", host);
        return watch;
    }
    watch_close(watch);
    return NULL;
}

void watch_close(Watch *watch) {
    if (!watch) return;
    if (watch->server) watch->listener.api.stop_daemon(watch->server);
    http_close(&watch->listener);
    free(watch);
}

const char *watch_url(const Watch *watch) { return watch->listener.url; }

void watch_serve(Watch *watch, double seconds, const StopRequest *stop) {
    const double slice = 0.2, end = log_seconds() + seconds;
    for (double left; stop->count == 0 && (left = end - log_seconds()) > 0;)
        if (watch->listener.api.run_wait(watch->server, (int32_t)ceil(1e3 * fmin(left, slice))) == MHD_NO) thread_sleep(slice);
}
