/* The supervisor runs attempts one after the other. An attempt starts all ranks of this node,
 * watches them, and ends with a verdict by the rules. On several nodes each node has a supervisor.
 * Ranks that lose a rank on another node end too, so all nodes end together, and the next attempt
 * begins with a rendezvous. Owns the attempt's ranks, the counters and the rendezvous. */
#include <regex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "comm/comm.h"
#include "comm/socket.h"
#include "launch/health_internal.h"
#include "launch/launch.h"
#include "launch/node_internal.h"
#include "launch/ranks_internal.h"
#include "launch/rendezvous_internal.h"
#include "launch/rules_internal.h"
#include "launch/self_test_internal.h"

enum { POLL_MILLISECONDS = 100, HEALTH_SECONDS = 10, LEAVE_SECONDS = 15, RETEST_SECONDS = 60, MOST_PAUSE = 32 };

#define FIELD(name) offsetof(LaunchOptions, name)
static const Option rows[] = {
    INT_OPTION(ranks, "0", 0, 1024, "ranks",
        "processes on this node, one per GPU; -n N is the short form; 0: from PET_NPROC_PER_NODE or SKYPILOT_NUM_GPUS_PER_NODE, else 1"),
    CHOICE_OPTION(output, "first", "first|all", "ranks whose output is shown; for other ranks, only the last lines after a failure"),
    INT_OPTION(restarts, "3", 0, 1e6, "",
        "restarts in a row without progress before giving up; only for train: other commands end at their first failure"),
    REAL_OPTION(grace, "120", 0, 86400, "s", "time for the ranks to write a checkpoint after a request to stop"),
    REAL_OPTION(hang, "1800", 0, 864000, "s",
        "time without a heartbeat after which a rank counts as hung; commands other than train have none, but a rank that SIGSTOP "
        "suspends counts too; 0: never"),
    CHOICE_OPTION(on_nan, "stop", "stop|skip", "after NaN: stop, or return to the last checkpoint and continue with on_nan=skip"),
    BOOL_OPTION(shrink, "false",
        "exclude a rank that failed twice in a row without progress, and continue with whole copies of the model (one node only)"),
    BOOL_OPTION(self_test, "true",
        "test the node (smelt doctor self_test=true) after failures that hardware may have caused; on several nodes also before the first "
        "start"),
    INT_OPTION(least, "0", 0, 1 << 16, "nodes",
        "several nodes: minimum to continue with when others are missing, fail the self-test, or fail twice in a row without progress; 0: "
        "all"),
    REAL_OPTION(away, "300", 1, 86400, "s", "several nodes: time to wait for a node before the others continue"),
    STRING_OPTION(restart_on, "", "", "restart when a line of output matches this regular expression"),
    STRING_OPTION(stop_on, "", "", "stop when a line of output matches this regular expression"),
};
const OptionTable launch_table = OPTION_TABLE(rows);

/* The end of an attempt, by the rank that is nearest to the cause. */
typedef struct RuleVerdict {
    const Rule *rule;
    int rank, value; /* exit code or signal */
    bool shared;     /* other ranks of this node ended alike, and any of them may be the first */
} RuleVerdict;

/* A regular expression for lines of output. If it is not present, no line matches. */
typedef struct LinePattern {
    bool present;
    regex_t expression;
} LinePattern;

/* rendezvous is NULL exactly when place.nodes == 1. The device of rank r of this node is devices[r], for r < plan.count <= left. */
typedef struct Supervisor {
    const LaunchOptions *options;
    bool resumes; /* LaunchCommand.resumes */
    const StopRequest *stop;
    RankPlan plan; /* owns command and devices; the command ends with on_nan=skip once that is needed */
    NodePlace place;
    Secret secret;          /* of the job, on several nodes; the ranks of each attempt have a separate secret */
    Rendezvous *rendezvous; /* NULL: one node */
    RendezvousAnswer part;  /* of this node in the attempt, on several nodes */
    int fewest;             /* fewest nodes that ever took part */
    int local_failures;     /* failures in a row, without progress, caused by a rank of this node */
    bool suspect;           /* the node must pass its self-test before ranks start */
    bool over;              /* node 0 has said that the run is over */
    int devices[1024], failed_device, failures;
    int left;          /* usable devices; plan.count of them are used */
    Mesh mesh;         /* of the latest attempt that had one, else mesh_alone */
    int64_t best_step; /* over all attempts */
    Ranks ranks;
    RuleVerdict verdict;
    LinePattern restart_on, stop_on;
    Health *health;
    double next_health;
} Supervisor;

/* -- Verdicts ------------------------------------------------------------------------------------------------------ */

static void judge_event(Supervisor *supervisor, Event event, int value, int rank) {
    const Rule *rule = rules_find(event, value, supervisor->options);
    RuleVerdict *verdict = &supervisor->verdict;
    if (!verdict->rule || rule < verdict->rule) *verdict = (RuleVerdict){rule, rank, value, false};
    else if (rule == verdict->rule && value == verdict->value && rank != verdict->rank) verdict->shared = true;
}

static bool line_matches(const LinePattern *pattern, const char *line) {
    return pattern->present && regexec(&pattern->expression, line, 0, NULL, 0) == 0;
}

static void judge_line(void *context, int rank, const char *line) {
    Supervisor *supervisor = context;
    if (line_matches(&supervisor->stop_on, line)) judge_event(supervisor, EVENT_STOP_LINE, 0, rank);
    if (line_matches(&supervisor->restart_on, line)) judge_event(supervisor, EVENT_RESTART_LINE, 0, rank);
}

/* Returns the exit code of a rank that has ended; -1: a signal ended it. */
static int exit_code(const Rank *rank) { return WIFEXITED(rank->status) ? WEXITSTATUS(rank->status) : -1; }

/* Judges the ends of all ranks. A rank that the supervisor killed is not the cause, unless all
 * ranks were killed. */
static void judge_ends(Supervisor *supervisor) {
    for (int rank = 0; rank < supervisor->plan.count; rank++) {
        const Rank *r = &supervisor->ranks.ranks[rank];
        if (exit_code(r) >= 0) judge_event(supervisor, EVENT_EXIT, exit_code(r), rank);
        else if (!r->killed) judge_event(supervisor, EVENT_SIGNAL, WTERMSIG(r->status), rank);
    }
    if (!supervisor->verdict.rule) judge_event(supervisor, EVENT_SIGNAL, SIGKILL, 0);
}

/* Returns the last sign of life of a rank; 0: it gives none. Only training has heartbeats. In other
 * commands, the last sign of life of a suspended rank is the moment at which it stopped. */
static double last_life(const Supervisor *supervisor, int rank) {
    const Rank *r = &supervisor->ranks.ranks[rank];
    double alive = supervisor->ranks.heartbeats[rank].alive;
    return alive <= 0 && r->stopped ? r->since : alive;
}

/* Judges hangs. One rank that hangs makes the others wait: it is the one that has been silent
 * longest. */
static void judge_hangs(Supervisor *supervisor) {
    double oldest = log_seconds() - supervisor->options->hang;
    int silent = -1;
    for (int rank = 0; supervisor->options->hang > 0 && rank < supervisor->plan.count; rank++) {
        double alive = last_life(supervisor, rank);
        if (!supervisor->ranks.ranks[rank].id || alive <= 0 || alive > oldest) continue;
        oldest = alive;
        silent = rank;
    }
    if (silent >= 0) judge_event(supervisor, EVENT_HANG, 0, silent);
}

static bool ended_with(const RuleVerdict *verdict, ErrorCode code) {
    return verdict->rule->event == EVENT_EXIT && verdict->value == (int)code;
}

/* Returns whether a rank has failed while others run. */
static bool has_failed(const Supervisor *supervisor) {
    for (int rank = 0; rank < supervisor->plan.count; rank++) {
        const Rank *r = &supervisor->ranks.ranks[rank];
        if (!r->id && exit_code(r) != ERROR_NONE && exit_code(r) != ERROR_PREEMPTED) return true;
    }
    return false;
}

/* -- An attempt ---------------------------------------------------------------------------------------------------- */

/* Receives signs of failing hardware. After one, the node is tested before the next start, whatever
 * causes that start. */
static void report_health(void *context, const char *line) {
    Supervisor *supervisor = context;
    log_warn("%s", line);
    supervisor->suspect = true;
}

static void look_at_health(Supervisor *supervisor) {
    if (log_seconds() < supervisor->next_health) return;
    supervisor->next_health = log_seconds() + HEALTH_SECONDS;
    health_look(supervisor->health, (HealthListener){report_health, supervisor});
}

/* Passes requests to stop to the ranks. The first request starts the grace time. A second one may
 * have the same origin (Ctrl-C twice, or Slurm in addition to the user), so only the third one
 * interrupts checkpoints. */
static void pass_stop_on(Supervisor *supervisor, int seen, double *until) {
    enum { LAST = 3 };
    int count = supervisor->stop->count;
    const char *purpose = supervisor->resumes ? "for a checkpoint" : "to end";
    const char *loss = supervisor->resumes ? "; their steps after the last checkpoint are lost" : "";
    if (seen == 0) *until = log_seconds() + supervisor->options->grace;
    if (count >= LAST) *until = log_seconds();
    if (count >= LAST) log_warn("third request to stop: killing the ranks%s", loss);
    else if (count > 1)
        log_warn("second request to stop: the ranks still have %.0f s %s; a third request kills them", *until - log_seconds(), purpose);
    else log_info("request to stop: the ranks have %.0f s %s", supervisor->options->grace, purpose);
    ranks_signal(&supervisor->ranks, supervisor->stop->signal);
}

/* Returns whether all ranks have ended except stopped ones. A rank that a signal such as SIGSTOP
 * has stopped cannot end by itself. */
static bool only_held_remain(const Supervisor *supervisor) {
    bool ended = false;
    for (int rank = 0; rank < supervisor->plan.count; rank++) {
        const Rank *r = &supervisor->ranks.ranks[rank];
        if (r->id && (!r->stopped || r->killed)) return false;
        ended |= !r->id;
    }
    return ended;
}

static void report_held(const Supervisor *supervisor) {
    for (int rank = 0; rank < supervisor->plan.count; rank++)
        if (supervisor->ranks.ranks[rank].id)
            log_warn("rank %d was suspended (SIGSTOP) while all other ranks exited: killing it", ranks_number(&supervisor->plan, rank));
}

/* Returns when all ranks have ended. After a failure the other ranks have LEAVE_SECONDS to notice
 * and to report it. After a request to stop they have the grace time, unless only ranks remain that
 * cannot use it. */
static void watch_ranks(Supervisor *supervisor) {
    int seen = 0;     /* requests that were passed on */
    double until = 0; /* when the ranks that still run are killed; 0: never */
    Ranks *ranks = &supervisor->ranks;
    while (ranks_poll(ranks, POLL_MILLISECONDS) > 0) {
        look_at_health(supervisor);
        rendezvous_tend(supervisor->rendezvous);
        judge_hangs(supervisor);
        if (supervisor->stop->count > seen) pass_stop_on(supervisor, seen, &until);
        seen = supervisor->stop->count;
        if (!until && has_failed(supervisor)) until = log_seconds() + LEAVE_SECONDS;
        if (supervisor->verdict.rule && !seen) until = log_seconds();
        if (seen && only_held_remain(supervisor)) {
            report_held(supervisor);
            until = log_seconds();
        }
        if (until && log_seconds() >= until) ranks_signal(ranks, SIGKILL);
    }
}

static int64_t last_reported_step(const Supervisor *supervisor) {
    int64_t step = 0;
    for (int rank = 0; rank < supervisor->plan.count; rank++)
        if (supervisor->ranks.heartbeats[rank].step > step) step = supervisor->ranks.heartbeats[rank].step;
    return step;
}

/* Returns a free port for an attempt. The previous attempt's port may still be in use. */
static int choose_port(void) {
    int port = socket_free_port();
    return port ? port : NODE_PORT;
}

/* Describes a rank. A rank that is lost before it has laid out the run has only a number, because
 * the latest known layout may be of other ranks. */
static void name_rank(const Supervisor *supervisor, int rank, char *text, size_t size) {
    int number = ranks_number(&supervisor->plan, rank);
    if (mesh_size(&supervisor->mesh, AXES_ALL) != supervisor->plan.total) snprintf(text, size, "rank %d", number);
    else mesh_describe_rank(&supervisor->mesh, number, text, size);
}

static void describe_end(const Supervisor *supervisor, char text[256]) {
    const RuleVerdict *verdict = &supervisor->verdict;
    char name[128];
    name_rank(supervisor, verdict->rank, name, sizeof name);
    int length = snprintf(text, 256, "%s %s", name, verdict->rule->meaning), left = 256 - length;
    if (verdict->rule->event == EVENT_SIGNAL)
        snprintf(text + length, (size_t)left, " by signal %d (%s)", verdict->value, strsignal(verdict->value));
    if (verdict->rule->event == EVENT_EXIT)
        snprintf(text + length, (size_t)left, " (exit code %d%s)", verdict->value, verdict->shared ? ", like others" : "");
}

static void print_tails(const Supervisor *supervisor) {
    int first = supervisor->verdict.rank;
    ranks_print_tail(&supervisor->ranks, first);
    for (int rank = 0; rank < supervisor->plan.count; rank++)
        if (rank != first && exit_code(&supervisor->ranks.ranks[rank]) > ERROR_NONE) ranks_print_tail(&supervisor->ranks, rank);
}

/* Runs all ranks once. Returns the step that they reached, or -1 with *error if they could not be
 * started. */
static int64_t attempt(Supervisor *supervisor, Error *error) {
    supervisor->verdict = (RuleVerdict){0};
    supervisor->ranks = (Ranks){.on_line = judge_line, .context = supervisor};
    if (!ranks_start(&supervisor->ranks, &supervisor->plan, error)) return -1;
    watch_ranks(supervisor);
    int64_t step = last_reported_step(supervisor);
    Mesh mesh;
    if (heartbeat_get_mesh(&supervisor->ranks.heartbeats[0], &mesh)) supervisor->mesh = mesh;
    judge_ends(supervisor);
    if (supervisor->verdict.rule->action != ACTION_NONE && !ended_with(&supervisor->verdict, ERROR_PREEMPTED)) print_tails(supervisor);
    ranks_free(&supervisor->ranks);
    return step;
}

/* -- Between attempts ---------------------------------------------------------------------------------------------- */

/* Returns the name of a device in the environment's list of visible devices, else its number. */
static char *device_name(int device) {
    const char *name = getenv("HIP_VISIBLE_DEVICES") ? getenv("HIP_VISIBLE_DEVICES") : getenv("CUDA_VISIBLE_DEVICES");
    for (int skip = device; name && skip > 0; skip--) name = strchr(name, ',') ? strchr(name, ',') + 1 : NULL;
    return name && *name ? memory_format("%.*s", (int)strcspn(name, ","), name) : memory_format("%d", device);
}

/* Removes the rank's device from the used devices. Ranks start in whole copies of the model;
 * devices beyond them stay in reserve. */
static void leave_rank_out(Supervisor *supervisor, int rank, const char *reason) {
    RankPlan *plan = &supervisor->plan;
    char *visible = NULL;
    int copy = mesh_copy_ranks(&supervisor->mesh), left = --supervisor->left;
    plan->count = left / copy * copy;
    log_warn("excluding rank %d, %s: continuing with %d rank%s", rank, reason, plan->count, plural(plan->count));
    if (plan->count < left) log_warn("a copy of the model needs %d ranks: %d other devices stay in reserve", copy, left - plan->count);
    supervisor->failures = 0;
    memmove(supervisor->devices + rank, supervisor->devices + rank + 1, (size_t)(left - rank) * sizeof *supervisor->devices);
    for (int i = 0; i < plan->count; i++) {
        SCOPED_FREE char *name = device_name(supervisor->devices[i]), *before = visible;
        visible = before ? memory_format("%s,%s", before, name) : memory_copy_string(name);
    }
    free(plan->devices);
    plan->devices = visible;
}

static bool may_shrink(const Supervisor *supervisor) {
    return supervisor->options->shrink && supervisor->place.nodes == 1 && supervisor->left - 1 >= mesh_copy_ranks(&supervisor->mesh);
}

/* Returns the command of the ranks, with room for skip_nan, for the caller to free. */
static char **rank_command(char *const *command) {
    size_t count = 0;
    while (command[count]) count++;
    char **copy = memory_allocate((count + 3) * sizeof *copy);
    copy[0] = "smelt";
    memcpy(copy + 1, command, count * sizeof *copy);
    return copy;
}

static void skip_nan(char **command) {
    while (command[1]) command++;
    if (strcmp(*command, "on_nan=skip")) command[1] = "on_nan=skip";
}

/* Pauses before a start. The pause doubles with every failure in a row; a request to stop ends
 * it. */
static void wait_before_start(const Supervisor *supervisor) {
    int failures = supervisor->failures, seconds = failures < 2 ? 0 : failures < 7 ? 1 << (failures - 2) : MOST_PAUSE;
    for (double until = log_seconds() + seconds; !supervisor->stop->signal && log_seconds() < until;) {
        rendezvous_tend(supervisor->rendezvous);
        usleep(POLL_MILLISECONDS * 1000);
    }
}

/* Returns whether the cause lies on this node. Ranks that lose another rank, or hang, do so on all
 * nodes together. */
static bool is_local(const RuleVerdict *verdict) {
    return verdict->rule->event == EVENT_SIGNAL || (verdict->rule->event == EVENT_EXIT && verdict->value != ERROR_COMMUNICATION);
}

/* Returns the error code of a run that the verdict ends. A rank counts as lost if it hangs or a
 * signal ends it. */
static ErrorCode code_of(const RuleVerdict *verdict) {
    Event event = verdict->rule->event;
    if (event == EVENT_HANG || event == EVENT_SIGNAL) return ERROR_COMMUNICATION;
    bool known = event == EVENT_EXIT && verdict->value != ERROR_NONE && verdict->value <= ERROR_DEVICE;
    return known ? (ErrorCode)verdict->value : ERROR_INTERNAL;
}

/* Returns whether all ranks start again; if not, *error says how the run ended. */
static bool start_again(Supervisor *supervisor, int64_t step, Error *error) {
    const RuleVerdict *verdict = &supervisor->verdict;
    const LaunchOptions *options = supervisor->options;
    bool progress = step > supervisor->best_step, same = supervisor->failed_device == supervisor->devices[verdict->rank];
    char end[256];
    describe_end(supervisor, end);
    ErrorCode code = code_of(verdict);
    supervisor->failures = progress ? 1 : supervisor->failures + 1;
    if (progress) supervisor->best_step = step;
    step = supervisor->best_step;
    if (verdict->rule->action == ACTION_STOP)
        return error_set(error, code, "after step %lld %s: a restart would not help", (long long)step, end);
    if (supervisor->failures > options->restarts)
        return error_set(error, code, "after step %lld %s; giving up after %d failure%s in a row without progress (restarts=%lld)",
            (long long)step, end, supervisor->failures, plural(supervisor->failures), (long long)options->restarts);
    log_warn("after step %lld %s: restarting all ranks, failure %d of %lld without progress", (long long)step, end, supervisor->failures,
        (long long)options->restarts);
    if (may_shrink(supervisor) && !progress && same)
        leave_rank_out(supervisor, verdict->rank, "which failed twice in a row without progress");
    supervisor->failed_device = supervisor->devices[verdict->rank];
    if (verdict->rule->action == ACTION_RESTART_SKIPPING) skip_nan(supervisor->plan.command);
    supervisor->suspect = supervisor->suspect || verdict->rule->action == ACTION_TEST_AND_RESTART;
    if (progress) supervisor->local_failures = 0;
    if (is_local(verdict)) supervisor->local_failures++;
    return true;
}

/* -- Who takes part ------------------------------------------------------------------------------------------------ */

static bool passes_test(Supervisor *supervisor, char *reason, size_t size) {
    if (!supervisor->options->self_test || !supervisor->suspect) return true;
    supervisor->suspect = !self_test(supervisor->plan.devices, supervisor->rendezvous, supervisor->stop, reason, size);
    if (supervisor->suspect) log_warn("node %d failed its self-test: %s", supervisor->place.node, reason);
    else log_info("node %d passed its self-test", supervisor->place.node);
    return !supervisor->suspect;
}

/* Prepares an attempt on one node. With shrink=true, a node that fails its self-test starts without
 * the rank that failed, if it passes the test without this rank's device. */
static bool prepare_alone(Supervisor *supervisor, Error *error) {
    RankPlan *plan = &supervisor->plan;
    char reason[192];
    bool fit = passes_test(supervisor, reason, sizeof reason);
    if (!fit && may_shrink(supervisor)) {
        leave_rank_out(supervisor, supervisor->verdict.rank, "which failed");
        fit = passes_test(supervisor, reason, sizeof reason);
    }
    plan->port = choose_port();
    plan->total = plan->count;
    if (!fit) return error_set(error, ERROR_DEVICE, "giving up, because this node failed its self-test: %s", reason);
    return secret_random(&plan->secret, sizeof plan->secret, error);
}

static NodeReport report_node(Supervisor *supervisor) {
    NodeReport report = {
        .state = NODE_READY, .ranks = supervisor->plan.count, .port = choose_port(), .copy = mesh_copy_ranks(&supervisor->mesh)};
    if (gethostname(report.name, sizeof report.name - 1) != 0) report.name[0] = 0;
    bool unsteady =
        supervisor->local_failures > 1 && supervisor->options->least > 0 && supervisor->options->least < supervisor->place.nodes;
    if (unsteady) snprintf(report.reason, sizeof report.reason, "its ranks failed twice in a row without progress");
    if (unsteady || !passes_test(supervisor, report.reason, sizeof report.reason)) report.state = NODE_SICK;
    return report;
}

static void report_part(Supervisor *supervisor, const RendezvousAnswer *answer) {
    RankPlan *plan = &supervisor->plan;
    bool fewer = answer->members < supervisor->place.nodes;
    if (fewer)
        log_warn("continuing with %d of %d nodes, %d ranks: %s", answer->members, supervisor->place.nodes, answer->ranks, answer->reason);
    else if (supervisor->part.members && supervisor->part.members < answer->members)
        log_info("all %d nodes are in the run again", answer->members);
    if (answer->members < supervisor->fewest) supervisor->failures = 0;
    if (answer->members < supervisor->fewest) supervisor->fewest = answer->members;
    supervisor->part = *answer;
    plan->node = answer->member;
    plan->first = answer->first;
    plan->total = answer->ranks;
    plan->address = supervisor->part.address;
    plan->port = answer->port;
    plan->secret = secret_sign(&supervisor->secret, &answer->attempt, sizeof answer->attempt);
}

/* Describes the effect of a start after a stop. */
static const char *next_start(const Supervisor *supervisor) {
    return supervisor->resumes ? "the same command continues" : "the same command starts from the beginning";
}

/* Prepares an attempt on one of several nodes; returns true when this node takes part. False: the
 * run is over, with *error unless it completed. A node that was left out reports again once it
 * passes its self-test, and waits for the next rendezvous. */
static bool prepare_with_others(Supervisor *supervisor, Error *error) {
    while (!supervisor->stop->signal) {
        RendezvousAnswer answer;
        NodeReport report = report_node(supervisor);
        switch (rendezvous_join(supervisor->rendezvous, &report, report.state == NODE_SICK ? RETEST_SECONDS : 0, &answer)) {
        case RENDEZVOUS_START: report_part(supervisor, &answer); return true;
        case RENDEZVOUS_OVER:
            supervisor->over = true;
            if (answer.code != ERROR_NONE)
                return error_set(error, (ErrorCode)answer.code, "the other nodes ended the run: %s", answer.reason);
            log_info("the other nodes finished the run");
            return false;
        case RENDEZVOUS_LEFT_OUT:
            log_warn("node %d is excluded: %s; it rejoins at the next start after it passes its self-test", supervisor->place.node,
                *report.reason ? report.reason : answer.reason);
            supervisor->local_failures = 0;
            break;
        case RENDEZVOUS_AGAIN:
        case RENDEZVOUS_STOPPED: break;
        }
        supervisor->suspect = true;
    }
    return error_set(error, ERROR_PREEMPTED, "stopped between two starts: %s", next_start(supervisor));
}

/* Tells the other nodes that the run is over. If this node alone gives up, the others continue,
 * unless it is node 0. */
static void report_ranks_end(const Supervisor *supervisor, bool done, const Error *error) {
    bool for_all = done || supervisor->place.node == 0 || (supervisor->verdict.rule && supervisor->verdict.rule->action == ACTION_STOP);
    if (supervisor->rendezvous && !supervisor->over && for_all)
        rendezvous_end(supervisor->rendezvous, done ? ERROR_NONE : (int)error->code, done ? "" : error->message);
}

/* -- The run ------------------------------------------------------------------------------------------------------- */

/* Reports a stop. Ranks that had the time to write a checkpoint report the step themselves. */
static bool report_stop(const Supervisor *supervisor, int64_t step, Error *error) {
    char after[48] = "before the first step";
    if (!supervisor->resumes) snprintf(after, sizeof after, "before the end");
    else if (step > 0) snprintf(after, sizeof after, "after step %lld", (long long)step);
    if (ended_with(&supervisor->verdict, ERROR_PREEMPTED))
        return error_set(error, ERROR_PREEMPTED, "all ranks exited: %s", next_start(supervisor));
    return error_set(error, ERROR_PREEMPTED, "stopped %s: %s", after, next_start(supervisor));
}

static bool run_attempt(Supervisor *supervisor, Error *error) {
    for (;;) {
        if (!(supervisor->rendezvous ? prepare_with_others : prepare_alone)(supervisor, error)) return error->code == ERROR_NONE;
        int64_t step = attempt(supervisor, error);
        if (step < 0) return false;
        if (supervisor->verdict.rule->action == ACTION_NONE) return true;
        if (supervisor->stop->signal) return report_stop(supervisor, step, error);
        if (!start_again(supervisor, step, error)) return false;
        wait_before_start(supervisor);
        if (supervisor->stop->signal) return report_stop(supervisor, step, error);
    }
}

/* -- Start --------------------------------------------------------------------------------------------------------- */

/* Opens the rendezvous of several nodes; each node is tested before its first start. */
static bool open_rendezvous(Supervisor *supervisor, Error *error) {
    char who[32];
    int64_t least = supervisor->options->least;
    if (least > supervisor->place.nodes)
        return error_set(error, ERROR_USAGE, "least=%lld exceeds the %d nodes of the run", (long long)least, supervisor->place.nodes);
    if (supervisor->place.nodes == 1) return true;
    if (supervisor->options->shrink)
        return error_set(error, ERROR_USAGE,
            "shrink=true works only on one node, but the run has %d: set least=N to continue without failed nodes",
            supervisor->place.nodes);
    snprintf(who, sizeof who, "%d nodes", supervisor->place.nodes);
    if (!secret_find(who, &supervisor->secret, error)) return false;
    supervisor->fewest = supervisor->place.nodes;
    supervisor->suspect = true;
    supervisor->rendezvous = rendezvous_open(&(RendezvousPlace){.node = supervisor->place.node,
                                                 .nodes = supervisor->place.nodes,
                                                 .least = least ? (int)least : supervisor->place.nodes,
                                                 .address = supervisor->place.address,
                                                 .port = supervisor->place.port,
                                                 .secret = &supervisor->secret,
                                                 .away = supervisor->options->away,
                                                 .command = supervisor->plan.command,
                                                 .stop = supervisor->stop},
        error);
    return supervisor->rendezvous != NULL;
}

static bool compile_pattern(const char *name, const char *text, LinePattern *pattern, Error *error) {
    char reason[128];
    if (!*text) return true;
    int result = regcomp(&pattern->expression, text, REG_EXTENDED | REG_NOSUB);
    pattern->present = result == 0;
    if (result == 0) return true;
    regerror(result, &pattern->expression, reason, sizeof reason);
    return error_set(error, ERROR_USAGE, "%s=%s: %s", name, text, reason);
}

bool launch(const LaunchOptions *options, const LaunchCommand *command, const StopRequest *stop, Error *error) {
    const int ranks = options->ranks ? (int)options->ranks : node_ranks(error);
    if (!ranks) return false;
    Supervisor *supervisor = memory_allocate(sizeof *supervisor);
    *supervisor = (Supervisor){.options = options, .resumes = command->resumes, .stop = stop, .failed_device = -1};
    supervisor->plan = (RankPlan){.command = rank_command(command->arguments),
        .address = supervisor->place.address,
        .count = ranks,
        .show_all = options->output == LAUNCH_OUTPUT_ALL,
        .whole_lines = *options->restart_on || *options->stop_on};
    supervisor->left = supervisor->plan.count;
    supervisor->mesh = mesh_alone;
    for (int i = 0; i < supervisor->left; i++) supervisor->devices[i] = i;
    supervisor->health = health_open("");
    bool done = node_find(&supervisor->place, error) && open_rendezvous(supervisor, error) &&
                compile_pattern("restart_on", options->restart_on, &supervisor->restart_on, error) &&
                compile_pattern("stop_on", options->stop_on, &supervisor->stop_on, error) && run_attempt(supervisor, error);
    report_ranks_end(supervisor, done, error);
    rendezvous_close(supervisor->rendezvous);
    health_close(supervisor->health);
    if (supervisor->restart_on.present) regfree(&supervisor->restart_on.expression);
    if (supervisor->stop_on.present) regfree(&supervisor->stop_on.expression);
    free(supervisor->plan.devices);
    free(supervisor->plan.command);
    free(supervisor);
    return done;
}
