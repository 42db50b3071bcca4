/* Owns the listener, its server, the connection to the collector and the thread. */
#include "run/exporter.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/curl.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/thread.h"
#include "http/http.h"
#include "run/export.h"

static const char plain[] = "text/plain; charset=utf-8";
/* Environment variables that Kubeflow Trainer sets in a TrainJob's containers, so that they can post their progress. */
static const char status_url[] = "KUBEFLOW_TRAINER_SERVER_URL", status_authorities[] = "KUBEFLOW_TRAINER_SERVER_CA_CERT",
                  status_token[] = "KUBEFLOW_TRAINER_SERVER_TOKEN"; /* path of a token file, which is replaced each hour */
enum { CONNECTIONS = 32, IDLE_SECONDS = 10, POST_SECONDS = 10, STATUS_SECONDS = 5, MOST_TOKEN = 1 << 14 };

struct Exporter {
    const Config *config;
    char *name; /* of the run */
    HttpListener listener;
    struct MHD_Daemon *server; /* NULL: none */
    CurlApi curl;
    char *url;          /* of the collector; NULL: none */
    const char *status; /* address of Kubeflow's server; NULL: none */
    double next_status; /* log_seconds() of the earliest next post */
    pthread_t thread;
    bool runs;
    atomic_bool ends;
    bool warned;
};

/* -- Answers ------------------------------------------------------------------------------------------------------- */

static enum MHD_Result answer_health(const HttpListener *listener, const HttpCall *call, const ExportedRun *runs, int count) {
    char *text = NULL;
    size_t size;
    bool healthy = true;
    FILE *out = open_memstream(&text, &size);
    if (!out) return MHD_NO;
    for (int i = 0; i < count; i++) {
        char state_text[RUN_STATE_TEXT];
        run_state_describe(runs[i].state, log_unix_seconds(), state_text);
        fprintf(out, "%s: %s\n", runs[i].name, state_text);
        healthy = healthy && export_is_healthy(runs[i].state);
    }
    fclose(out);
    blank_controls(text, '?', true);
    enum MHD_Result result = http_reply(listener, call->connection, healthy ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE, plain, text);
    free(text);
    return result;
}

enum MHD_Result exporter_answer(const HttpListener *listener, const HttpCall *call, const ExportedRun *runs, int count) {
    const char *host = listener->api.lookup_connection_value(call->connection, MHD_HEADER_KIND, "Host");
    if (listener->loopback && !http_host_is_ours(listener, host))
        return http_reply(listener, call->connection, MHD_HTTP_FORBIDDEN, plain, "This host name is not served.\n");
    if (strcmp(call->method, "GET") != 0 && strcmp(call->method, "HEAD") != 0)
        return http_reply(listener, call->connection, MHD_HTTP_METHOD_NOT_ALLOWED, plain, "Only GET and HEAD are supported.\n");
    if (strcmp(call->path, "/healthz") == 0) return answer_health(listener, call, runs, count);
    if (strcmp(call->path, "/metrics") != 0)
        return http_reply(listener, call->connection, MHD_HTTP_NOT_FOUND, plain, "Only /metrics and /healthz exist.\n");
    SCOPED_FREE char *text = export_prometheus(runs, count);
    return http_reply(listener, call->connection, MHD_HTTP_OK, EXPORT_PROMETHEUS_TYPE, text);
}

static enum MHD_Result answer_scrape(void *context, const HttpCall *call) {
    const Exporter *exporter = context;
    SCOPED(run_state_free) RunState state = run_state_read(exporter->config->run, exporter->config, log_unix_seconds());
    return exporter_answer(&exporter->listener, call, &(ExportedRun){exporter->name, &state}, 1);
}

static bool open_server(Exporter *exporter, Error *error) {
    const char *listen = exporter->config->metrics.listen, *colon = strrchr(listen, ':');
    struct MHD_OptionItem options[] = {
        {MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS, NULL}, {MHD_OPTION_CONNECTION_TIMEOUT, IDLE_SECONDS, NULL}, {MHD_OPTION_END, 0, NULL}};
    if (!*listen) return true;
    char *end = NULL;
    long port = colon ? strtol(colon + 1, &end, 10) : -1;
    if (!colon || colon == listen || !colon[1] || *end || port < 0 || port > 65535)
        return error_set(error, ERROR_USAGE, "metrics.listen=%s is not ADDRESS:PORT: use 127.0.0.1:9400, or 0.0.0.0:9400", listen);
    SCOPED_FREE char *host = memory_format("%.*s", (int)(colon - listen), listen);
    if (!http_open(&exporter->listener, "metrics.listen", &(HttpPlace){host, (int)port, "metrics.listen"}, CONNECTIONS, error))
        return false;
    exporter->server = http_start(&exporter->listener, MHD_USE_EPOLL, answer_scrape, exporter, options, error);
    if (exporter->server) log_info("metrics at %smetrics", exporter->listener.url);
    return exporter->server;
}

/* -- Files and posts ----------------------------------------------------------------------------------------------- */

static void warn_once(Exporter *exporter, const char *setting, const char *reason) {
    if (!exporter->warned) log_warn("%s: %s; training continues, and later failures are not reported", setting, reason);
    exporter->warned = true;
}

static void write_file(Exporter *exporter, const ExportedRun *run) {
    Error error = {0};
    SCOPED_FREE char *text = export_prometheus(run, 1);
    if (!file_write(exporter->config->metrics.file, text, (int64_t)strlen(text), &error))
        warn_once(exporter, "metrics.file", error.message);
}

static void post_numbers(Exporter *exporter, const ExportedRun *run) {
    Error error = {0};
    SCOPED_FREE char *body = export_otlp(run, log_unix_seconds());
    const CurlPost post = {.url = exporter->url, .body = body, .seconds = POST_SECONDS};
    if (!curl_post_json(&exporter->curl, &post, &error)) warn_once(exporter, "metrics.otlp", error.message);
}

/* Reads the token that the environment asks for, if any, into `token`, and checks the file of authorities. Without them nothing
 * may be posted. */
static bool read_credentials(Exporter *exporter, const char *authorities, char token[static MOST_TOKEN]) {
    const char *file = getenv(status_token);
    char reason[256];
    token[0] = 0;
    if (authorities && access(authorities, R_OK) != 0) {
        snprintf(reason, sizeof reason, "cannot read %s: %s; no progress is posted to %s", authorities, strerror(errno), exporter->status);
        warn_once(exporter, status_authorities, reason);
        return false;
    }
    if (!file || !*file) return true;
    bool read = file_read_start(file, token, MOST_TOKEN) >= 0;
    const char *cause = read ? "it begins with an empty line" : strerror(errno);
    token[strcspn(token, "\r\n")] = 0;
    if (*token) return true;
    snprintf(reason, sizeof reason, "cannot read a token from %s: %s; no progress is posted to %s", file, cause, exporter->status);
    warn_once(exporter, status_token, reason);
    return false;
}

static void post_status(Exporter *exporter, const ExportedRun *run) {
    Error error = {0};
    char token[MOST_TOKEN];
    const char *authorities = getenv(status_authorities);
    if (authorities && !*authorities) authorities = NULL;
    exporter->next_status = log_seconds() + STATUS_SECONDS;
    if (!read_credentials(exporter, authorities, token)) return;
    SCOPED_FREE char *body = export_kubeflow(run, log_unix_seconds());
    const CurlPost post = {
        .url = exporter->status, .body = body, .authorities = authorities, .token = *token ? token : NULL, .seconds = POST_SECONDS};
    if (!curl_post_json(&exporter->curl, &post, &error)) warn_once(exporter, status_url, error.message);
}

static void export_now(Exporter *exporter) {
    SCOPED(run_state_free) RunState state = run_state_read(exporter->config->run, exporter->config, log_unix_seconds());
    const ExportedRun run = {exporter->name, &state};
    if (exporter->config->metrics.file[0]) write_file(exporter, &run);
    if (exporter->url) post_numbers(exporter, &run);
    if (exporter->status && (log_seconds() >= exporter->next_status || atomic_load(&exporter->ends))) post_status(exporter, &run);
}

/* -- The thread ---------------------------------------------------------------------------------------------------- */

static void *export_numbers(void *context) {
    Exporter *exporter = context;
    const double slice = 0.2;
    for (double due = log_seconds(); !atomic_load(&exporter->ends);) {
        if (log_seconds() >= due) {
            export_now(exporter);
            due = log_seconds() + exporter->config->metrics.every;
        }
        if (!exporter->server || exporter->listener.api.run_wait(exporter->server, (int32_t)(1e3 * slice)) == MHD_NO) thread_sleep(slice);
    }
    export_now(exporter);
    return NULL;
}

/* Kubeflow sets its variables in every TrainJob, so a missing library must not stop a training. */
static void find_status_server(Exporter *exporter) {
    Error error = {0};
    const char *url = getenv(status_url);
    if (!url || !*url) return;
    if (curl_open(&exporter->curl, status_url, &error)) exporter->status = url;
    else warn_once(exporter, status_url, error.message);
}

bool exporter_open(const Config *config, Exporter **exporter, Error *error) {
    const MetricsConfig *metrics = &config->metrics;
    *exporter = NULL;
    const char *status = getenv(status_url);
    if (!metrics->listen[0] && !metrics->file[0] && !metrics->otlp[0] && !(status && *status)) return true;
    char *real = realpath(config->run, NULL);
    const char *slash = real ? strrchr(real, '/') : NULL;
    Exporter *made = memory_allocate(sizeof *made);
    *made = (Exporter){.config = config, .name = memory_copy_string(slash && slash[1] ? slash + 1 : config->run), .listener.socket = -1};
    free(real);
    if (metrics->otlp[0]) made->url = memory_format("%.*s/v1/metrics", (int)path_length(metrics->otlp), metrics->otlp);
    bool good = (!made->url || curl_open(&made->curl, "metrics.otlp", error)) && open_server(made, error);
    if (good) find_status_server(made);
    if (good) made->runs = thread_start(&made->thread, export_numbers, made) == 0;
    if (good && !made->runs)
        error_set(error, ERROR_INTERNAL, "cannot start a thread for metrics: raise the limit on processes (ulimit -u)");
    if (made->runs) *exporter = made;
    else exporter_close(made);
    return made == *exporter;
}

void exporter_close(Exporter *exporter) {
    if (!exporter) return;
    atomic_store(&exporter->ends, true);
    if (exporter->runs) pthread_join(exporter->thread, NULL);
    if (exporter->server) exporter->listener.api.stop_daemon(exporter->server);
    http_close(&exporter->listener);
    free(exporter->url);
    free(exporter->name);
    free(exporter);
}
