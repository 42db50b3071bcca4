/* Sends the events of a run. Owns the queue of lines and the thread that delivers them. Called by rank 0's training
 * loop. */
#include "run/events.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/curl.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/thread.h"

enum { QUEUE = 64, DELIVERY_SECONDS = 30, CLOSE_SECONDS = 30 };
static const double least_pause = 60; /* seconds between events of one kind */

typedef struct EventRate {
    double sent; /* log_seconds(); 0: never */
    int64_t suppressed;
} EventRate;

struct EventQueue {
    const Config *config;
    char *run; /* its real path */
    char host[256];
    pthread_t thread;
    bool runs; /* the thread */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* Protected by the lock: */
    char *lines[QUEUE]; /* waiting, oldest first */
    size_t count;
    EventRate rates[RUN_EVENT_KINDS];
    int64_t step;
    double due; /* log_seconds() from which on the run is stuck */
    bool closing;
    double until; /* log_seconds() when delivery ends; used if closing */
    /* Used by the thread: */
    bool warned;
    CurlApi curl; /* if on_event is an address */
};

static bool is_address(const char *text) { return starts_with(text, "http://") || starts_with(text, "https://"); }

#define EVENT_NAME(NAME, name) [RUN_EVENT_##NAME] = name,
const char *events_name(RunEventKind kind) {
    static const char *const names[] = {RUN_EVENT_LIST(EVENT_NAME)};
    return names[kind];
}

/* -- Delivery ------------------------------------------------------------------------------------------------------ */

static void warn_once(EventQueue *events, const char *reason) {
    if (!events->warned)
        log_warn("on_event=%s: %s; training continues, and later failures are not reported", events->config->on_event, reason);
    events->warned = true;
}

static void post_event(EventQueue *events, const char *line, double until) {
    Error error = {0};
    const CurlPost post = {.url = events->config->on_event, .body = line, .seconds = (int)fmax(1, ceil(until - log_seconds()))};
    if (!curl_post_json(&events->curl, &post, &error)) warn_once(events, error.message);
}

/* Starts the command with the line as its stdin, and waits for it. A line fits into the pipe. */
static void run_command(EventQueue *events, const char *line, double until) {
    int ends[2], status = 0;
    char reason[96];
    char *arguments[] = {"sh", "-c", (char *)events->config->on_event, NULL};
    if (pipe2(ends, O_CLOEXEC) != 0) {
        warn_once(events, strerror(errno));
        return;
    }
    const double start = log_seconds();
    pid_t child = child_start(&(ChildOptions){.program = "sh", .arguments = arguments, .input = ends[0], .output = STDERR_FILENO});
    close(ends[0]);
    ssize_t ignored = child > 0 ? write(ends[1], line, strlen(line)) : 0; /* a command need not read it */
    (void)ignored;
    close(ends[1]);
    if (child < 0) {
        warn_once(events, strerror(errno));
        return;
    }
    bool in_time = child_wait(child, until, &status);
    int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (!in_time) snprintf(reason, sizeof reason, "it was killed after %.0f s, with the processes that it started", log_seconds() - start);
    else if (signal) snprintf(reason, sizeof reason, "signal %d ended it", signal);
    else snprintf(reason, sizeof reason, "it ended with exit code %d", WEXITSTATUS(status));
    if (status || !in_time) warn_once(events, reason);
}

static char *event_line(
    const EventQueue *events, RunEventKind kind, const char *name, int64_t step, const char *message, int64_t suppressed) {
    const char *is = name ? name : events_name(kind);
    SCOPED_FREE char *text = memory_format("%s, step %lld: %s%s%s", events->run, (long long)step, is, *message ? ": " : "", message);
    json_auto_t *event = json_pack("{s:s, s:s*, s:s, s:I, s:I, s:f, s:s*, s:I, s:s*}", "event", is, "run", events->run, "host",
        events->host, "step", (json_int_t)step, "steps", (json_int_t)events->config->steps, "time", log_unix_seconds(), "message", message,
        "suppressed", (json_int_t)suppressed, "text", text);
    SCOPED_FREE char *line = json_dumps(event, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15));
    return memory_format("%s\n", line ? line : "{\"event\":\"damaged\"}");
}

/* Queues an event with the lock held; returns false if one of its kind was sent recently. */
static bool queue_event(EventQueue *events, RunEventKind kind, const char *name, int64_t step, const char *message) {
    EventRate *rate = &events->rates[kind];
    double now = log_seconds();
    if (rate->sent > 0 && now - rate->sent < least_pause && kind != RUN_EVENT_END) {
        rate->suppressed++;
        return false;
    }
    if (events->runs && events->count < QUEUE)
        events->lines[events->count++] = event_line(events, kind, name, step, message, rate->suppressed);
    *rate = (EventRate){now, 0};
    pthread_cond_signal(&events->changed);
    return true;
}

static void check_progress(EventQueue *events) {
    if (log_seconds() < events->due) return;
    char message[128];
    snprintf(
        message, sizeof message, "no step has ended since step %lld, for longer than ten of the longest steps", (long long)events->step);
    events->due = INFINITY;
    queue_event(events, RUN_EVENT_STUCK, NULL, events->step, message);
}

static void *deliver(void *context) {
    EventQueue *events = context;
    pthread_mutex_lock(&events->lock);
    while (events->count || !events->closing) {
        if (events->closing && log_seconds() > events->until) break;
        if (!events->closing) check_progress(events);
        if (!events->count) {
            thread_wait_until(&events->changed, &events->lock, log_seconds() + 1);
            continue;
        }
        SCOPED_FREE char *line = events->lines[0];
        memmove(events->lines, events->lines + 1, --events->count * sizeof *events->lines);
        const double limit = log_seconds() + DELIVERY_SECONDS, until = events->closing ? fmin(limit, events->until) : limit;
        pthread_mutex_unlock(&events->lock);
        (is_address(events->config->on_event) ? post_event : run_command)(events, line, until);
        pthread_mutex_lock(&events->lock);
    }
    pthread_mutex_unlock(&events->lock);
    return NULL;
}

/* -- The interface ------------------------------------------------------------------------------------------------- */

EventQueue *events_open(const Config *config, Error *error) {
    EventQueue *events = memory_allocate(sizeof *events);
    char *real = realpath(config->run, NULL);
    *events = (EventQueue){.config = config, .run = real ? real : memory_copy_string(config->run), .due = INFINITY};
    gethostname(events->host, sizeof events->host - 1);
    pthread_mutex_init(&events->lock, NULL);
    pthread_cond_init(&events->changed, NULL);
    if (!config->on_event[0]) return events;
    if (is_address(config->on_event) && !curl_open(&events->curl, "on_event", error)) {
        events_close(events);
        return NULL;
    }
    events->runs = thread_start(&events->thread, deliver, events) == 0;
    if (events->runs) return events;
    events_close(events);
    error_set(error, ERROR_INTERNAL, "cannot start a thread for on_event: raise the limit on processes (ulimit -u)");
    return NULL;
}

void events_alive(EventQueue *events, int64_t step, double patience) {
    if (!events) return;
    pthread_mutex_lock(&events->lock);
    events->step = step;
    events->due = log_seconds() + patience;
    pthread_mutex_unlock(&events->lock);
}

bool events_send(EventQueue *events, RunEventKind kind, const char *name, int64_t step, const char *message) {
    if (!events) return false;
    pthread_mutex_lock(&events->lock);
    bool sent = queue_event(events, kind, name, step, message);
    pthread_mutex_unlock(&events->lock);
    return sent;
}

void events_close(EventQueue *events) {
    if (!events) return;
    pthread_mutex_lock(&events->lock);
    events->closing = true;
    events->until = log_seconds() + CLOSE_SECONDS;
    pthread_cond_signal(&events->changed);
    pthread_mutex_unlock(&events->lock);
    if (events->runs) pthread_join(events->thread, NULL);
    if (events->count)
        log_warn("on_event=%s: %zu events were not sent, because earlier ones took %d s", events->config->on_event, events->count,
            CLOSE_SECONDS);
    for (size_t i = 0; i < events->count; i++) free(events->lines[i]);
    pthread_cond_destroy(&events->changed);
    pthread_mutex_destroy(&events->lock);
    free(events->run);
    free(events);
}
