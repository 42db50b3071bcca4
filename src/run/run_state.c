/* Finds the state of a run. The files may be damaged or from another version: what they do not say is unknown. A
 * RunState owns its records. Called by readers of runs and by exports, each second. */
#include "run/run_state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "ckpt/lease.h"
#include "run/run.h"

enum { TAIL_BYTES = 1 << 16, LOG_BYTES = 1 << 13 };
static const double lease_patience = 90;   /* seconds: three beats of a lease */
static const double silence_seconds = 60;  /* a run may always be silent for this long */
static const double restart_seconds = 600; /* in which smelt launch starts a run again */

/* -- Names --------------------------------------------------------------------------------------------------------- */

#define STATUS_NAME(NAME, name) [RUN_IS_##NAME] = name,

const char *run_status_name(RunStatus status) {
    static const char *const names[] = {RUN_STATUS_LIST(STATUS_NAME)};
    return names[status];
}

static RunStatus status_named(const char *name) {
    for (RunStatus status = 0; name && status < RUN_STATUS_COUNT; status++)
        if (!strcmp(name, run_status_name(status))) return status;
    return RUN_IS_STOPPED;
}

RunStatus run_status_of_end(int code, int64_t step, int64_t steps, bool supervised) {
    switch (code) {
    case ERROR_NONE: return steps == 0 || step >= steps ? RUN_IS_FINISHED : RUN_IS_STOPPED;
    case ERROR_PREEMPTED: return RUN_IS_PAUSED;
    case ERROR_USAGE:
    case ERROR_DATA:
    case ERROR_MEMORY:
    case ERROR_CHECKPOINT: return RUN_IS_STOPPED;
    case ERROR_COMMUNICATION: return supervised ? RUN_IS_WAITING : RUN_IS_FAILED;
    default: return RUN_IS_FAILED;
    }
}

/* -- The ends of files --------------------------------------------------------------------------------------------- */

char *run_read_tail(const char *path, int64_t bytes, bool *whole) {
    SCOPED(file_close) File file = {0};
    Error ignored = {0};
    *whole = true;
    if (!file_open(&file, path, &ignored)) return NULL;
    int64_t from = file.bytes > bytes ? file.bytes - bytes : 0;
    char *text = memory_allocate((size_t)(file.bytes - from) + 1);
    if (!file_read_at(&file, text, file.bytes - from, from, &ignored)) {
        free(text);
        return NULL;
    }
    text[file.bytes - from] = '\0';
    *whole = from == 0;
    char *line = from ? strchr(text, '\n') : NULL;
    if (line) memmove(text, line + 1, strlen(line + 1) + 1);
    return text;
}

/* -- Records ------------------------------------------------------------------------------------------------------- */

/* What the last records say about the newest process. */
typedef struct Tail {
    double started, newest;     /* times of its start and of the newest record; NaN: unknown */
    double first_time, longest; /* time of its first step, and seconds of its longest step */
    double pause;               /* seconds of the newest evaluation */
    int64_t first, step;        /* its first step among these, and the newest step; 0: none */
    double step_time;
    json_t *end; /* how it ended; NULL: not known. Owned */
    bool any;
} Tail;

static double number(const json_t *record, const char *name) {
    const json_t *value = json_object_get(record, name);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void take_start(Tail *tail, int64_t step, const json_t *record) {
    json_decref(tail->end);
    *tail = (Tail){.started = number(record, "time"), .newest = tail->newest, .first_time = NAN, .step = step, .any = true};
}

static void take_step(Tail *tail, int64_t step, const json_t *record) {
    double seconds = number(record, "milliseconds") * 1e-3;
    tail->step_time = number(record, "time");
    if (!tail->first) tail->first = step, tail->first_time = tail->step_time;
    if (seconds > tail->longest) tail->longest = seconds;
    tail->step = step;
}

static void take_record(RunState *state, Tail *tail, json_t *record) {
    static const char *const kinds[] = {[RUN_RECORD_STEP] = "step",
        [RUN_RECORD_EVALUATION] = "evaluation",
        [RUN_RECORD_CHECKPOINT] = "checkpoint",
        [RUN_RECORD_SYSTEM] = "system"};
    const char *kind = json_string_value(json_object_get(record, "kind"));
    int64_t step = json_integer_value(json_object_get(record, "step"));
    if (!kind) return;
    tail->any = true;
    tail->newest = fmax(tail->newest, number(record, "time")); /* fmax ignores NaN */
    if (!strcmp(kind, "start")) take_start(tail, step, record);
    if (!strcmp(kind, "step")) take_step(tail, step, record);
    if (!strcmp(kind, "evaluation")) tail->pause = fmax(0, number(record, "milliseconds") * 1e-3);
    if (!strcmp(kind, "end")) json_decref(tail->end), tail->end = json_incref(record);
    for (size_t i = 0; i < RUN_RECORD_COUNT; i++) {
        if (strcmp(kind, kinds[i]) != 0) continue;
        json_decref(state->records[i]);
        state->records[i] = json_incref(record);
    }
}

/* Reads more of the file if the last records are so large that no step is among them. */
static Tail read_records(const char *run, RunState *state) {
    SCOPED_FREE char *path = memory_format("%s/metrics.jsonl", run);
    Tail tail = {.started = NAN, .newest = NAN, .first_time = NAN};
    bool whole = false;
    for (int64_t bytes = TAIL_BYTES; !whole && !tail.step && !tail.end && bytes <= 2 * (int64_t)FILE_LINE_LIMIT; bytes *= 8) {
        SCOPED_FREE char *text = run_read_tail(path, bytes, &whole);
        for (char *line = text, *next; line && (next = strchr(line, '\n')); line = next + 1) {
            json_t *record = json_loadb(line, (size_t)(next - line), 0, NULL);
            if (json_is_object(record)) take_record(state, &tail, record);
            json_decref(record);
        }
    }
    return tail;
}

/* -- The log ------------------------------------------------------------------------------------------------------- */

/* Returns whether a line begins with the time stamp of log.txt, "2026-01-31T12:00:00Z ". */
static bool is_stamped(const char *line) {
    static const char form[] = "0000-00-00T00:00:00Z ";
    for (size_t i = 0; i < sizeof form - 1; i++)
        if (form[i] == '0' ? line[i] < '0' || line[i] > '9' : line[i] != form[i]) return false;
    return true;
}

/* Copies the error or the pause that ends log.txt; returns the status that it means, or `otherwise`. */
static RunStatus read_last_words(const char *run, RunStatus otherwise, char *message, size_t size) {
    static const struct {
        const char *start;
        RunStatus status;
    } words[] = {{"error: ", RUN_IS_FAILED}, {"paused by ", RUN_IS_PAUSED}};
    enum { STAMP = 21 };
    SCOPED_FREE char *path = memory_format("%s/log.txt", run);
    bool whole;
    SCOPED_FREE char *text = run_read_tail(path, LOG_BYTES, &whole);
    const char *last = NULL;
    for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (is_stamped(line)) last = line + STAMP;
    for (size_t i = 0; last && i < sizeof words / sizeof *words; i++) {
        if (!starts_with(last, words[i].start)) continue;
        const char *said = last + (words[i].status == RUN_IS_FAILED ? strlen(words[i].start) : 0);
        SCOPED_FREE char *line = memory_format("%.*s", (int)strcspn(said, "\n"), said);
        copy_cut(message, size, line);
        return words[i].status;
    }
    return otherwise;
}

/* -- The state ----------------------------------------------------------------------------------------------------- */

static void say(RunState *state, const char *text) { copy_cut(state->message, sizeof state->message, text); }

double run_patience(double longest_step, double evaluation) { return silence_seconds + 10 * longest_step + 3 * evaluation; }

/* A process that holds the lease, or may hold it. */
static RunStatus judge_living(RunState *state, const Tail *tail, const LeaseSign *lease, double now) {
    bool started = tail->any && !tail->end && !(tail->started < lease->taken);
    double patience = run_patience(tail->longest, tail->pause);
    if (lease->life == LEASE_UNKNOWN && now - state->sign > fmax(lease_patience, patience)) return RUN_IS_SILENT;
    if (!started) {
        say(state, "it prepares data, loads weights or waits for other ranks");
        return RUN_IS_WAITING;
    }
    if (tail->first && now - tail->newest > patience) {
        say(state, "its process lives, but no step ends");
        return RUN_IS_SILENT;
    }
    return RUN_IS_TRAINING;
}

static RunStatus judge_end(RunState *state, const Tail *tail, double now) {
    const char *message = json_string_value(json_object_get(tail->end, "message"));
    RunStatus status = status_named(json_string_value(json_object_get(tail->end, "state")));
    say(state, message ? message : "");
    return status == RUN_IS_WAITING && now - state->sign > restart_seconds ? RUN_IS_SILENT : status;
}

/* Returns whether the newest process has recorded its end. Without times in the lease, a living holder is another one. */
static bool has_told_end(const Tail *tail, const LeaseSign *lease) {
    bool dated = lease->life != LEASE_HELD || isfinite(lease->taken);
    return tail->end && dated && !(lease->taken > number(tail->end, "time"));
}

/* Builds before 1.1 recorded no end, and a killed process cannot. */
static RunStatus judge_unexplained(const char *run, RunState *state, const LeaseSign *lease) {
    if (state->steps && state->step >= state->steps && lease->life == LEASE_ABSENT) return RUN_IS_FINISHED;
    bool killed = lease->life == LEASE_ENDED;
    say(state, killed ? "its process was killed, or crashed, without a message" : "its process ended without a record of the reason");
    return read_last_words(run, killed ? RUN_IS_FAILED : RUN_IS_STOPPED, state->message, sizeof state->message);
}

static RunStatus judge(const char *run, RunState *state, const Tail *tail, const LeaseSign *lease, double now) {
    if (has_told_end(tail, lease)) return judge_end(state, tail, now);
    if (lease->life == LEASE_HELD || lease->life == LEASE_UNKNOWN) return judge_living(state, tail, lease, now);
    return tail->any ? judge_unexplained(run, state, lease) : RUN_IS_PLANNED;
}

/* Returns the mean time from step to step of the newest process, or else the time of its longest step. */
static double mean_step_seconds(const Tail *tail) {
    double steps = (double)(tail->step - tail->first), seconds = tail->step_time - tail->first_time;
    if (tail->first && steps > 0 && seconds > 0) return seconds / steps;
    return tail->longest > 0 ? tail->longest : NAN;
}

RunState run_state_read(const char *run, const Config *config, double now) {
    RunState state = {.steps = config ? config->steps : 0};
    Tail tail = read_records(run, &state);
    LeaseSign lease = lease_look(config ? run_checkpoints(run, config) : run, run);
    state.step = tail.step;
    state.sign = fmax(tail.newest, lease.renewed);
    state.step_seconds = mean_step_seconds(&tail);
    state.status = judge(run, &state, &tail, &lease, now);
    bool goes_on = state.status == RUN_IS_TRAINING && state.steps > state.step;
    state.seconds_left = goes_on ? (double)(state.steps - state.step) * state.step_seconds : NAN;
    json_decref(tail.end);
    return state;
}

void run_state_free(RunState *state) {
    for (size_t i = 0; i < RUN_RECORD_COUNT; i++) json_decref(state->records[i]);
    *state = (RunState){0};
}

void run_state_describe(const RunState *state, double now, char text[RUN_STATE_TEXT]) {
    char of[48] = "", where[96] = "", left[48] = "", duration[32];
    if (state->steps) snprintf(of, sizeof of, " of %lld", (long long)state->steps);
    if (state->step)
        snprintf(where, sizeof where, "%sstep %lld%s", state->status == RUN_IS_TRAINING ? ", " : " after ", (long long)state->step, of);
    log_format_duration(state->status == RUN_IS_SILENT ? now - state->sign : state->seconds_left, duration);
    if (isfinite(state->seconds_left)) snprintf(left, sizeof left, ", %s left", duration);
    if (state->status == RUN_IS_SILENT) snprintf(left, sizeof left, ": no sign for %s", duration);
    snprintf(text, RUN_STATE_TEXT, "%s%s%s%s%s", run_status_name(state->status), where, left, *state->message ? ": " : "", state->message);
}
