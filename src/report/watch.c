/* Serves the page. The caller's thread runs the server between updates of the report, so no locks
 * are needed. A Watch owns the socket, the server and the library. Called by `smelt watch`. */
#include "report/watch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/library.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/thread.h"
#include "comm/socket.h"

enum { CONNECTIONS = 256, SPARE_CONNECTIONS = 32, IDLE_SECONDS = 10 };

/* The functions of libmicrohttpd that are used, and their types. */
#define HTTP_API(CALL)                                                                                                    \
    CALL(start_daemon, struct MHD_Daemon *,                                                                               \
        (unsigned flags, uint16_t port, MHD_AcceptPolicyCallback accept, void *accept_context, MHD_AccessHandlerCallback answer, \
            void *context, ...))                                                                                          \
    CALL(stop_daemon, void, (struct MHD_Daemon *))                                                                        \
    CALL(run_wait, enum MHD_Result, (struct MHD_Daemon *, int32_t milliseconds))                                          \
    CALL(get_connection_info, const union MHD_ConnectionInfo *,                                                          \
        (struct MHD_Connection *, enum MHD_ConnectionInfoType kind, ...))                                                 \
    CALL(lookup_connection_value, const char *, (struct MHD_Connection *, enum MHD_ValueKind, const char *name))          \
    CALL(create_response_from_buffer, struct MHD_Response *, (size_t bytes, void *text, enum MHD_ResponseMemoryMode))     \
    CALL(add_response_header, enum MHD_Result, (struct MHD_Response *, const char *name, const char *value))              \
    CALL(queue_response, enum MHD_Result, (struct MHD_Connection *, unsigned status, struct MHD_Response *))              \
    CALL(destroy_response, void, (struct MHD_Response *))

typedef struct HttpApi { HTTP_API(LIBRARY_TYPED_FIELD) } HttpApi;
#define HTTP_NAME(name, type, arguments) "MHD_" #name,

/* An open connection. */
typedef struct Caller {
    int descriptor;
    uint64_t asked; /* increases with each connection and request; 0: this entry is free; or CLOSING */
} Caller;
#define CLOSING UINT64_MAX

struct Watch {
    const Report *report;
    char *host, *url;
    void *library;
    HttpApi http;
    int socket; /* -1: closed, or owned by the server */
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
    "        state.textContent = 'live';\n"
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
    *caller = (Caller){watch->http.get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd, ++watch->asked};
    *socket_context = caller;
    watch->caller_count++;
    make_room(watch);
}

/* -- Answers ------------------------------------------------------------------------------------------------------- */

static enum MHD_Result reply_to_browser(
    Watch *watch, struct MHD_Connection *connection, unsigned status, const char *type, const char *text) {
    static const char *const headers[][2] = {
        {"Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; base-uri "
                                    "'none'; form-action 'none'; frame-ancestors 'none'"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
        {"X-Content-Type-Options", "nosniff"},
        {"Referrer-Policy", "no-referrer"},
        {"Cache-Control", "no-store"},
    };
    const HttpApi *http = &watch->http;
    struct MHD_Response *response = http->create_response_from_buffer(strlen(text), (void *)text, MHD_RESPMEM_MUST_COPY);
    if (!response) return MHD_NO;
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) http->add_response_header(response, headers[i][0], headers[i][1]);
    http->add_response_header(response, "Content-Type", type);
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED) http->add_response_header(response, "Allow", "GET, HEAD");
    enum MHD_Result result = http->queue_response(connection, status, response);
    http->destroy_response(response);
    return result;
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
    const char *from = watch->http.lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "from");
    const long long version = from ? strtoll(from, NULL, 10) : 0;
    json_auto_t *changes = json_pack("{s:I, s:{}}", "version", (json_int_t)report_version(watch->report), "parts");
    int count;
    const ReportPart *parts = report_parts(watch->report, &count);
    for (int i = 0; i < count; i++)
        if (parts[i].version > version) json_object_set_new(json_object_get(changes, "parts"), parts[i].id, json_string(parts[i].html));
    SCOPED_FREE char *text = json_dumps(changes, JSON_COMPACT);
    return text ? reply_to_browser(watch, connection, MHD_HTTP_OK, "application/json", text) : MHD_NO;
}

/* Returns true if `text` is empty or ":DIGITS". */
static bool is_port(const char *text) { return *text == '\0' || (*text == ':' && text[1 + strspn(text + 1, "0123456789")] == '\0'); }

/* Returns whether `host` names this server. `host` is "NAME", "NAME:PORT", "[ADDRESS]" or
 * "[ADDRESS]:PORT". The port is not compared, because ssh -L changes it. */
static bool host_is_ours(const Watch *watch, const char *host) {
    struct in6_addr address;
    char name[256];
    bool bracket = host && *host == '[';
    size_t length = host ? strcspn(host += bracket, bracket ? "]" : ":") : 0;
    if (length == 0 || length >= sizeof name || (bracket && host[length] != ']') || !is_port(host + length + bracket)) return false;
    memcpy(name, host, length);
    name[length] = '\0';
    return inet_pton(bracket ? AF_INET6 : AF_INET, name, &address) == 1 || strcasecmp(name, "localhost") == 0 ||
           strcasecmp(name, watch->host) == 0;
}

static enum MHD_Result answer_request(void *context, struct MHD_Connection *connection, const char *path, const char *method,
    const char *version, const char *upload, size_t *upload_bytes, void **request) {
    static const char plain[] = "text/plain; charset=utf-8";
    Watch *watch = context;
    (void)version, (void)upload, (void)upload_bytes, (void)request;
    Caller *caller = watch->http.get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    if (caller->asked != CLOSING) caller->asked = ++watch->asked;
    if (!host_is_ours(watch, watch->http.lookup_connection_value(connection, MHD_HEADER_KIND, "Host")))
        return reply_to_browser(watch, connection, MHD_HTTP_FORBIDDEN, plain,
            "This host name is not served: open the address that smelt watch printed, or start it with host=NAME.\n");
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return reply_to_browser(watch, connection, MHD_HTTP_METHOD_NOT_ALLOWED, plain, "Only GET and HEAD are supported.\n");
    if (strcmp(path, "/") == 0) return reply_page(watch, connection);
    if (strcmp(path, "/watch.js") == 0) return reply_to_browser(watch, connection, MHD_HTTP_OK, "text/javascript; charset=utf-8", script);
    if (strcmp(path, "/changes") == 0) return reply_changes(watch, connection);
    return reply_to_browser(watch, connection, MHD_HTTP_NOT_FOUND, plain, "Only the page at / exists.\n");
}

/* -- Opening ------------------------------------------------------------------------------------------------------- */

static bool open_microhttpd(Watch *watch, Error *error) {
    static const char *const files[] = {"libmicrohttpd.so.12", NULL}, *const names[] = {HTTP_API(HTTP_NAME)};
    watch->library = library_open(files, RTLD_NOW | RTLD_LOCAL);
    if (!watch->library)
        return error_set(error, ERROR_USAGE, "smelt watch needs libmicrohttpd: install it (Debian: libmicrohttpd12), or set terminal=true");
    return !library_find(watch->library, names, &watch->http) ||
           error_set(error, ERROR_USAGE, "libmicrohttpd.so.12 is too old: smelt watch needs 0.9.73 or newer");
}

static bool is_any(const struct sockaddr_storage *address) {
    if (address->ss_family == AF_INET6) return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)address)->sin6_addr);
    return ((const struct sockaddr_in *)address)->sin_addr.s_addr == htonl(INADDR_ANY);
}

/* Returns the URL for a browser. 0.0.0.0 means all addresses of this machine and cannot be opened
 * itself. */
static char *describe_url(const struct sockaddr_storage *address) {
    char number[SOCKET_TEXT];
    bool wide = address->ss_family == AF_INET6;
    struct sockaddr_storage seen = *address, elsewhere;
    Error ignored = {0};
    if (is_any(address) && socket_resolve(wide ? "2001:db8::1" : "192.0.2.1", 0, &elsewhere, &ignored))
        seen = socket_local_address(&elsewhere);
    socket_describe(&seen, number);
    return memory_format(wide ? "http://[%s]:%d/" : "http://%s:%d/", number, socket_port(address));
}

/* Listens at this address alone. */
static bool open_socket(Watch *watch, int port, Error *error) {
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    const int on = 1;
    if (!socket_resolve(watch->host, port, &address, error)) return error_recode(error, ERROR_USAGE);
    watch->socket = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (watch->socket < 0 || setsockopt(watch->socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(watch->socket, (const struct sockaddr *)&address, bytes) != 0 || listen(watch->socket, CONNECTIONS) != 0)
        return error_set(error, ERROR_USAGE, "cannot listen on port %d of %s: %s; %s", port, watch->host, strerror(errno),
            errno == EADDRINUSE ? "set another port, or port=0 for any free port" : "set host to an address of this machine");
    if (getsockname(watch->socket, (struct sockaddr *)&address, &bytes) != 0)
        return error_set(error, ERROR_INTERNAL, "cannot read the port number: %s", strerror(errno));
    watch->url = describe_url(&address);
    if (!socket_is_loopback(&address))
        log_warn("host=%s: everyone who reaches this machine over the network can read the page, without a password", watch->host);
    return true;
}

static bool open_server(Watch *watch, Error *error) {
    watch->server = watch->http.start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, answer_request, watch, MHD_OPTION_LISTEN_SOCKET, watch->socket,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS,
        MHD_OPTION_NOTIFY_CONNECTION, note_connection, watch, MHD_OPTION_END);
    if (!watch->server) return error_set(error, ERROR_INTERNAL, "libmicrohttpd cannot start a server at %s", watch->url);
    watch->socket = -1; /* the server closes it */
    return true;
}

Watch *watch_open(const Report *report, const char *host, int port, Error *error) {
    Watch *watch = memory_allocate(sizeof *watch);
    watch->report = report;
    watch->host = memory_copy_string(host);
    watch->socket = -1;
    if (open_microhttpd(watch, error) && open_socket(watch, port, error) && open_server(watch, error)) return watch;
    watch_close(watch);
    return NULL;
}

void watch_close(Watch *watch) {
    if (!watch) return;
    if (watch->server) watch->http.stop_daemon(watch->server);
    if (watch->socket >= 0) close(watch->socket);
    if (watch->library) dlclose(watch->library);
    free(watch->host);
    free(watch->url);
    free(watch);
}

const char *watch_url(const Watch *watch) { return watch->url; }

void watch_serve(Watch *watch, double seconds, const StopRequest *stop) {
    const double slice = 0.2, end = log_seconds() + seconds;
    for (double left; stop->count == 0 && (left = end - log_seconds()) > 0;)
        if (watch->http.run_wait(watch->server, (int32_t)ceil(1e3 * fmin(left, slice))) == MHD_NO) thread_sleep(slice);
}
