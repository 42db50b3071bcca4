/* Forks children and prepares them to run something else. Owns only the texts of ChildVariables.
 * Called by the launcher (ranks, self-test), the doctor (collectives, libraries that may crash),
 * ranks that start MPI, rewards, and events of a run. */
#include "base/child.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"

void child_set_variable(ChildVariables *variables, char *item) {
    assert(variables->count < CHILD_VARIABLES);
    variables->items[variables->count++] = item;
}

void child_free_variables(ChildVariables *variables) {
    for (int i = 0; i < variables->count; i++) free(variables->items[i]);
    *variables = (ChildVariables){0};
}

/* Ends a child that has not started its program yet. */
static _Noreturn void child_fail(const ChildOptions *options, const char *reason, int code) {
    dprintf(options->failures ? options->failures : STDERR_FILENO, "error: process %d could not start: %s\n", (int)getpid(), reason);
    _exit(code);
}

static void replace_environment(const ChildOptions *options) {
    if (options->no_environment) clearenv();
    for (int i = 0; options->variables && i < options->variables->count; i++) putenv(options->variables->items[i]);
}

static void connect_files(const ChildOptions *options) {
    if (options->input) dup2(options->input, STDIN_FILENO);
    if (options->output) dup2(options->output, STDOUT_FILENO);
    if (options->errors) dup2(options->errors, STDERR_FILENO);
    if (options->program) close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
    if (options->kept) fcntl(options->kept, F_SETFD, 0);
}

/* Runs in the child, which has one thread. Signals that its parent handles get their default action. */
static _Noreturn void become(const ChildOptions *options, pid_t parent) {
    if (!options->outlives) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) child_fail(options, "its parent exited before the child started", 1);
    }
    setpgid(0, 0);
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    if (options->program) {
        sigset_t none; /* a thread that blocks signals may have started it */
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        signal(SIGPIPE, SIG_DFL);
    }
    alarm((unsigned)options->limit_seconds);
    replace_environment(options);
    connect_files(options);
    if (options->run) _exit(options->run(options->context));
    const char *reason = options->limit ? options->limit(options->context) : NULL;
    if (reason) child_fail(options, reason, 126);
    execvp(options->program ? options->program : "/proc/self/exe", options->arguments);
    child_fail(options, strerror(errno), 127);
}

pid_t child_start(const ChildOptions *options) {
    assert(!options->arguments != !options->run);
    pid_t parent = getpid();
    fflush(NULL); /* otherwise both processes would write the buffered output */
    pid_t child = fork();
    if (child == 0) become(options, parent);
    return child;
}

/* Called by number: glibc has pidfd_open only since 2.36, and a program that links to it does not start with an older glibc. */
int child_open_end(pid_t id) { return (int)syscall(SYS_pidfd_open, id, 0); }

bool child_wait(pid_t id, double until, int *status) {
    enum { SLICE = 100 }; /* milliseconds; also the delay before Linux 5.3 */
    int end = child_open_end(id);
    pid_t ended;
    while ((ended = waitpid(id, status, WNOHANG)) == 0 && log_seconds() < until)
        poll(&(struct pollfd){.fd = end, .events = POLLIN}, 1, SLICE);
    if (end >= 0) close(end);
    if (ended != 0) return true;
    kill(-id, SIGKILL);
    while (waitpid(id, status, 0) < 0 && errno == EINTR) {}
    return false;
}
