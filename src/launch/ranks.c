/* Starts ranks and reads their output. Shows the output of rank 0 as it is, or with output=all the
 * output of every rank with its number before each line. Keeps the last lines of output that is not
 * shown. Owns the processes, pipes and heartbeats of an attempt. Called by the supervisor. */
#include "launch/ranks_internal.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/wrap.h"

int ranks_number(const RankPlan *plan, int rank) { return plan->first + rank; }

/* -- Starting ------------------------------------------------------------------------------------------------------ */

/* Tells a rank the width of the terminal. Its output reaches the terminal through a pipe and this
 * process, after its number with output=all. Lines are not wrapped if patterns are searched in
 * them. */
static void describe_terminal(const RankPlan *plan, int rank, ChildVariables *variables) {
    int number = plan->show_all ? snprintf(NULL, 0, "[%d] ", ranks_number(plan, rank)) : 0;
    for (int file = STDOUT_FILENO; file <= STDERR_FILENO; file++) {
        int columns = plan->whole_lines ? 0 : wrap_columns(file);
        child_set_variable(variables, memory_format("%s=%d", wrap_variable(file), columns > number ? columns - number : 0));
    }
}

/* Describes a rank in torchrun's variables, and sets its secret, devices, threads and heartbeat. */
static ChildVariables describe_rank(const Ranks *ranks, int rank) {
    const RankPlan *plan = ranks->plan;
    ChildVariables variables = {0};
    int threads = (int)sysconf(_SC_NPROCESSORS_ONLN) / plan->count;
    child_set_variable(&variables, memory_format("RANK=%d", ranks_number(plan, rank)));
    child_set_variable(&variables, memory_format("WORLD_SIZE=%d", plan->total));
    child_set_variable(&variables, memory_format("LOCAL_RANK=%d", rank));
    child_set_variable(&variables, memory_format("LOCAL_WORLD_SIZE=%d", plan->count));
    child_set_variable(&variables, memory_format("GROUP_RANK=%d", plan->node));
    child_set_variable(&variables, memory_format("MASTER_ADDR=%s", plan->address));
    child_set_variable(&variables, memory_format("MASTER_PORT=%d", plan->port));
    child_set_variable(&variables, secret_variable(&plan->secret));
    if (plan->devices) child_set_variable(&variables, memory_format("HIP_VISIBLE_DEVICES=%s", plan->devices));
    if (plan->devices) child_set_variable(&variables, memory_format("CUDA_VISIBLE_DEVICES=%s", plan->devices));
    if (!getenv("OMP_NUM_THREADS")) child_set_variable(&variables, memory_format("OMP_NUM_THREADS=%d", threads > 1 ? threads : 1));
    describe_terminal(plan, rank, &variables);
    child_set_variable(&variables, memory_format("SMELT_HEARTBEATS=%d", ranks->heartbeat_file));
    return variables;
}

static bool start_rank(Ranks *ranks, int rank, Error *error) {
    int pipes[STREAMS][2];
    Rank *r = &ranks->ranks[rank];
    for (int i = 0; i < STREAMS; i++) {
        if (pipe2(pipes[i], O_CLOEXEC) != 0)
            return error_set(error, ERROR_INTERNAL, "cannot create a pipe for rank %d: %s", rank, strerror(errno));
        fcntl(pipes[i][0], F_SETFL, O_NONBLOCK);
        r->streams[i].file = pipes[i][0];
    }
    SCOPED(child_free_variables) ChildVariables variables = describe_rank(ranks, rank);
    pid_t id = child_start(&(ChildOptions){.arguments = ranks->plan->command,
        .variables = &variables,
        .output = pipes[0][1],
        .errors = pipes[1][1],
        .kept = ranks->heartbeat_file});
    int code = errno;
    for (int i = 0; i < STREAMS; i++) close(pipes[i][1]);
    if (id > 0) r->id = id;
    return id > 0 || error_set(error, ERROR_INTERNAL, "cannot start a process for rank %d: %s", rank, strerror(code));
}

bool ranks_start(Ranks *ranks, const RankPlan *plan, Error *error) {
    assert(plan->count > 0 && plan->first >= 0 && plan->first + plan->count <= plan->total);
    ranks->plan = plan;
    ranks->ranks = memory_allocate((size_t)plan->count * sizeof *ranks->ranks);
    for (int rank = 0; rank < plan->count; rank++) ranks->ranks[rank].streams[0].file = ranks->ranks[rank].streams[1].file = -1;
    ranks->heartbeats = heartbeat_create(plan->count, &ranks->heartbeat_file, error);
    bool started = ranks->heartbeats != NULL;
    for (int rank = 0; started && rank < plan->count; rank++) started = start_rank(ranks, rank, error);
    if (started) return true;
    ranks_signal(ranks, SIGKILL);
    while (ranks_poll(ranks, 100) > 0) {}
    ranks_free(ranks);
    return false;
}

void ranks_free(Ranks *ranks) {
    for (int rank = 0; rank < ranks->plan->count; rank++)
        for (int i = 0; i < STREAMS; i++)
            if (ranks->ranks[rank].streams[i].file >= 0) close(ranks->ranks[rank].streams[i].file);
    if (ranks->heartbeats) close(ranks->heartbeat_file);
    heartbeat_close(ranks->heartbeats, ranks->plan->count);
    free(ranks->ranks);
}

/* -- Output -------------------------------------------------------------------------------------------------------- */

static bool shows_rank(const Ranks *ranks, int rank) { return ranks->plan->show_all || ranks_number(ranks->plan, rank) == 0; }

static void write_to_terminal(int file, const char *text, size_t length) {
    while (length) {
        ssize_t written = write(file, text, length);
        if (written < 0 && errno != EINTR) return;
        if (written > 0) text += written, length -= (size_t)written;
    }
}

static void keep_line(Rank *rank, const char *line, size_t length) {
    if (rank->tail_length + length + 1 > TAIL_BYTES) {
        size_t dropped = TAIL_BYTES / 2 < rank->tail_length ? TAIL_BYTES / 2 : rank->tail_length;
        memmove(rank->tail, rank->tail + dropped, rank->tail_length - dropped);
        rank->tail_length -= dropped;
    }
    memcpy(rank->tail + rank->tail_length, line, length);
    rank->tail_length += length;
    rank->tail[rank->tail_length++] = '\n';
}

static void end_rank_line(Ranks *ranks, int rank, int stream) {
    Stream *s = &ranks->ranks[rank].streams[stream];
    char text[LINE_BYTES + 32];
    s->line[s->length] = 0;
    int length = snprintf(text, sizeof text, "[%d] %s\n", ranks_number(ranks->plan, rank), s->line);
    if (ranks->plan->show_all) write_to_terminal(stream + 1, text, (size_t)length);
    else keep_line(&ranks->ranks[rank], s->line, s->length);
    if (ranks->on_line) ranks->on_line(ranks->context, rank, s->line);
    s->length = 0;
}

static void read_rank_stream(Ranks *ranks, int rank, int stream) {
    Stream *s = &ranks->ranks[rank].streams[stream];
    char text[LINE_BYTES];
    ssize_t length;
    while ((length = read(s->file, text, sizeof text)) > 0) {
        if (shows_rank(ranks, rank) && !ranks->plan->show_all) write_to_terminal(stream + 1, text, (size_t)length);
        for (ssize_t i = 0; i < length; i++) {
            if (text[i] != '\n') s->line[s->length++] = text[i];
            if (text[i] == '\n' || s->length == LINE_BYTES - 1) end_rank_line(ranks, rank, stream);
        }
    }
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (s->length) end_rank_line(ranks, rank, stream);
    close(s->file);
    s->file = -1;
}

/* Returns whether the rank's last output was shown. All ranks print the same text about a wrong
 * setting, and once is enough. The shown rank is the first of its node. */
static bool was_shown(const Ranks *ranks, int rank) {
    const Rank *r = &ranks->ranks[rank], *first = &ranks->ranks[0];
    bool same = r->tail_length == first->tail_length && !memcmp(r->tail, first->tail, r->tail_length);
    return shows_rank(ranks, rank) || (shows_rank(ranks, 0) && same);
}

void ranks_print_tail(const Ranks *ranks, int rank) {
    const Rank *r = &ranks->ranks[rank];
    if (!r->tail_length || was_shown(ranks, rank)) return;
    log_info("the last output of rank %d:", ranks_number(ranks->plan, rank));
    write_to_terminal(STDERR_FILENO, r->tail, r->tail_length);
}

/* -- Ends ---------------------------------------------------------------------------------------------------------- */

/* Notes the end of a rank. A process that the rank started may still hold its pipe open, so only
 * the pipe's present content is read. */
static void reap(Ranks *ranks, int rank) {
    Rank *r = &ranks->ranks[rank];
    int status;
    if (!r->id || waitpid(r->id, &status, WNOHANG | WUNTRACED | WCONTINUED) != r->id) return;
    r->stopped = WIFSTOPPED(status);
    r->since = log_seconds();
    if (WIFSTOPPED(status) || WIFCONTINUED(status)) return;
    r->status = status;
    r->id = 0;
    for (int i = 0; i < STREAMS; i++)
        if (r->streams[i].file >= 0) read_rank_stream(ranks, rank, i);
}

int ranks_poll(Ranks *ranks, int milliseconds) {
    int count = ranks->plan->count, alive = 0;
    SCOPED_FREE struct pollfd *ready = memory_allocate((size_t)(count * STREAMS) * sizeof *ready);
    for (int i = 0; i < count * STREAMS; i++) ready[i] = (struct pollfd){ranks->ranks[i / STREAMS].streams[i % STREAMS].file, POLLIN, 0};
    int found = poll(ready, (nfds_t)(count * STREAMS), milliseconds);
    for (int i = 0; found > 0 && i < count * STREAMS; i++)
        if (ready[i].revents) read_rank_stream(ranks, i / STREAMS, i % STREAMS);
    for (int rank = 0; rank < count; rank++) {
        reap(ranks, rank);
        alive += ranks->ranks[rank].id != 0;
    }
    return alive;
}

void ranks_signal(Ranks *ranks, int number) {
    for (int rank = 0; rank < ranks->plan->count; rank++) {
        Rank *r = &ranks->ranks[rank];
        if (!r->id) continue;
        kill(r->id, number);
        r->killed = r->killed || number == SIGKILL;
    }
}
