/* Serves the page. The caller's thread runs the server between updates of the report, so no locks
 * are needed. A Watch owns the socket, the server and the library. Called by `smelt watch`. */
#include "report/watch.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/array.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/thread.h"
#include "http/http.h"
#include "report/page_files_internal.h"
#include "run/exporter.h"

enum { WATCHED_PAGES = 16 /* one is the first page; the page that was asked the longest time ago gives way */ };
static const double forgotten_seconds = 60; /* after its last request a page is not updated */
enum { CONNECTIONS = 256, SPARE_CONNECTIONS = 32, IDLE_SECONDS = 10 };

/* An open connection. */
typedef struct Caller {
    int descriptor;
    uint64_t asked; /* increases with each connection and request; 0: this entry is free; or CLOSING */
} Caller;
#define CLOSING UINT64_MAX

/* A page: the given runs, or runs of the folder that a browser has chosen ("a/b", names between slashes). */
typedef struct WatchedPage {
    char *chosen; /* "": the first page */
    Report *report;
    double asked; /* log_seconds() of the last request */
} WatchedPage;

struct Watch {
    WatchedPage pages[WATCHED_PAGES]; /* the first one is always there */
    int page_count;
    HttpListener listener;
    struct MHD_Daemon *server;
    Caller callers[CONNECTIONS];
    int caller_count;
    uint64_t asked;
};

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

/* -- Pages --------------------------------------------------------------------------------------------------------- */

static void forget_page(WatchedPage *page) {
    report_close(page->report);
    free(page->chosen);
}

/* Returns the place for another page. */
static WatchedPage *free_page(Watch *watch) {
    if (watch->page_count < WATCHED_PAGES) return &watch->pages[watch->page_count++];
    WatchedPage *oldest = &watch->pages[1];
    for (WatchedPage *page = oldest; page < watch->pages + WATCHED_PAGES; page++)
        if (page->asked < oldest->asked) oldest = page;
    forget_page(oldest);
    return oldest;
}

/* Opens the report of the chosen runs, which must be runs of the folder. NULL: they are not. */
static Report *open_chosen(const Watch *watch, const char *chosen) {
    const char *folders[REPORT_RUNS];
    int count = 0;
    Error ignored = {0};
    SCOPED_FREE char *names = memory_copy_string(chosen);
    char *rest = names;
    for (char *name; (name = strsep(&rest, "/"));) {
        if (count == REPORT_RUNS || !(folders[count++] = report_find_run(watch->pages->report, name))) return NULL;
    }
    return report_open(folders, count, &ignored);
}

/* Keeps a page up to date from now on. */
static void ask_page(WatchedPage *page) {
    double now = log_seconds();
    if (now - page->asked > forgotten_seconds) report_update(page->report);
    page->asked = now;
}

/* Returns the page that a request names; NULL: there is no such run. */
static WatchedPage *find_page(Watch *watch, struct MHD_Connection *connection) {
    const char *chosen = watch->listener.api.lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "runs");
    WatchedPage *found = NULL;
    if (!chosen) chosen = "";
    for (int i = 0; i < watch->page_count && !found; i++)
        if (!strcmp(watch->pages[i].chosen, chosen)) found = &watch->pages[i];
    if (!found) {
        Report *report = open_chosen(watch, chosen);
        if (!report) return NULL;
        found = free_page(watch);
        *found = (WatchedPage){memory_copy_string(chosen), report, -INFINITY};
    }
    ask_page(found);
    return found;
}

void watch_update(Watch *watch) {
    double now = log_seconds();
    for (int i = 0; i < watch->page_count; i++)
        if (now - watch->pages[i].asked < forgotten_seconds) report_update(watch->pages[i].report);
}

static enum MHD_Result reply_page(Watch *watch, const Report *report, struct MHD_Connection *connection) {
    SCOPED_FREE char *page = NULL;
    size_t length;
    FILE *out = open_memstream(&page, &length);
    if (!out) return MHD_NO;
    report_print(report, "<script src=\"/page.js\" defer></script>\n<script src=\"/watch.js\" defer></script>\n", "", out);
    fclose(out);
    return reply_to_browser(watch, connection, MHD_HTTP_OK, "text/html; charset=utf-8", page);
}

/* Returns a number of the request's query; 0: it has none. */
static long long number_asked(Watch *watch, struct MHD_Connection *connection, const char *name) {
    const char *text = watch->listener.api.lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, name);
    return text ? strtoll(text, NULL, 10) : 0;
}

static enum MHD_Result reply_changes(Watch *watch, const Report *report, struct MHD_Connection *connection) {
    const long long version = number_asked(watch, connection, "from");
    json_auto_t *changes = json_pack("{s:I, s:{}}", "version", (json_int_t)report_version(report), "parts");
    int count;
    const ReportPart *parts = report_parts(report, &count);
    for (int i = 0; i < count; i++)
        if (parts[i].version > version) json_object_set_new(json_object_get(changes, "parts"), parts[i].id, json_string(parts[i].html));
    SCOPED_FREE char *text = json_dumps(changes, JSON_COMPACT);
    return text ? reply_to_browser(watch, connection, MHD_HTTP_OK, "application/json", text) : MHD_NO;
}

static enum MHD_Result reply_points(Watch *watch, const Report *report, struct MHD_Connection *connection) {
    SCOPED_FREE char *points = NULL;
    size_t length;
    FILE *out = open_memstream(&points, &length);
    if (!out) return MHD_NO;
    report_print_points(report, number_asked(watch, connection, "from"), number_asked(watch, connection, "to"), out);
    fclose(out);
    return reply_to_browser(watch, connection, MHD_HTTP_OK, "text/html; charset=utf-8", points);
}

static enum MHD_Result reply_numbers(Watch *watch, const HttpCall *call) {
    SCOPED_FREE ExportedRun *runs = NULL;
    int count = 0;
    ask_page(watch->pages);
    for (ExportedRun run; report_run(watch->pages->report, count, &run);) array_append(runs, count, run);
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
    static const struct {
        const char *path;
        enum MHD_Result (*reply)(Watch *watch, const Report *report, struct MHD_Connection *connection);
    } replies[] = {{"/", reply_page}, {"/changes", reply_changes}, {"/points", reply_points}};
    for (size_t i = 0; i < sizeof replies / sizeof *replies; i++) {
        if (strcmp(path, replies[i].path) != 0) continue;
        const WatchedPage *page = find_page(watch, connection);
        if (page) return replies[i].reply(watch, page->report, connection);
    }
    const char *script = strcmp(path, "/page.js") == 0 ? page_script : strcmp(path, "/watch.js") == 0 ? watch_script : NULL;
    if (script) return reply_to_browser(watch, connection, MHD_HTTP_OK, "text/javascript; charset=utf-8", script);
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

Watch *watch_open(Report *report, const char *host, int port, Error *error) {
    Watch *watch = memory_allocate(sizeof *watch);
    watch->pages[watch->page_count++] = (WatchedPage){memory_copy_string(""), report, log_seconds()};
    if (http_open(&watch->listener, "smelt watch without terminal=true", &(HttpPlace){host, port, NULL}, CONNECTIONS, error) &&
        open_server(watch, error)) {
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
    for (int i = 1; i < watch->page_count; i++) forget_page(&watch->pages[i]);
    free(watch->pages->chosen); /* the caller owns the first report */
    free(watch);
}

const char *watch_url(const Watch *watch) { return watch->listener.url; }

void watch_serve(Watch *watch, double seconds, const StopRequest *stop) {
    const double slice = 0.2, end = log_seconds() + seconds;
    for (double left; stop->count == 0 && (left = end - log_seconds()) > 0;)
        if (watch->listener.api.run_wait(watch->server, (int32_t)ceil(1e3 * fmin(left, slice))) == MHD_NO) thread_sleep(slice);
}
