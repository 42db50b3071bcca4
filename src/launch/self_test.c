/* Runs the doctor as a child process and reads its lines. Owns the child and the pipe during the
 * test. */
#include "launch/self_test_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"

enum { LIMIT_SECONDS = 120, POLL_MILLISECONDS = 100, LEAVE_SECONDS = 5, OUTPUT_BYTES = 1 << 16 };

static pid_t start_doctor(const char *devices, int pipe) {
    SCOPED(child_free_variables) ChildVariables variables = {0};
    if (devices) child_set_variable(&variables, memory_format("HIP_VISIBLE_DEVICES=%s", devices));
    if (devices) child_set_variable(&variables, memory_format("CUDA_VISIBLE_DEVICES=%s", devices));
    return child_start(&(ChildOptions){.arguments = (char *[]){"smelt", "doctor", "self_test=true", "folder=", NULL},
        .variables = &variables,
        .output = pipe,
        .errors = pipe});
}

/* Reads the child's output until it closes its pipe; returns false after LIMIT_SECONDS or a request
 * to stop. */
static bool read_output(int pipe, Rendezvous *rendezvous, const StopRequest *stop, char output[OUTPUT_BYTES]) {
    size_t length = 0;
    double until = log_seconds() + LIMIT_SECONDS;
    while (!stop->signal && log_seconds() < until) {
        char rest[4096]; /* output beyond OUTPUT_BYTES */
        bool room = length < OUTPUT_BYTES - 1;
        struct pollfd ready = {pipe, POLLIN, 0};
        rendezvous_tend(rendezvous);
        if (poll(&ready, 1, POLL_MILLISECONDS) <= 0) continue;
        ssize_t bytes = read(pipe, room ? output + length : rest, room ? OUTPUT_BYTES - 1 - length : sizeof rest);
        if (bytes > 0 && room) length += (size_t)bytes;
        output[length] = 0;
        if (bytes == 0) return true;
    }
    return false;
}

/* Copies the first line that begins with "error", without the table's padding. */
static void find_error(const char *output, char *reason, size_t size) {
    const char *line = output;
    size_t length = 0;
    while (line && strncmp(line, "error ", 6)) line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL;
    for (; line && *line && *line != '\n' && length < size - 1; line++)
        if (*line != ' ' || line[1] != ' ') reason[length++] = *line;
    reason[length] = 0;
}

/* Waits for the child. A process that a broken driver holds cannot be killed and is abandoned. */
static void reap_test(pid_t child, bool killed, int *status) {
    setpgid(child, child); /* in case the child has not done this yet */
    if (killed) kill(-child, SIGKILL);
    for (double until = log_seconds() + LEAVE_SECONDS; waitpid(child, status, WNOHANG) == 0 && log_seconds() < until;) usleep(1000);
}

bool self_test(const char *devices, Rendezvous *rendezvous, const StopRequest *stop, char *reason, size_t size) {
    int ends[2], status = 0;
    reason[0] = 0;
    if (pipe2(ends, O_CLOEXEC) != 0) return snprintf(reason, size, "cannot create a pipe: %s", strerror(errno)) < 0;
    SCOPED_FREE char *output = memory_allocate(OUTPUT_BYTES);
    pid_t child = start_doctor(devices, ends[1]);
    int code = errno; /* why no process could be started */
    close(ends[1]);
    bool ended = child > 0 && read_output(ends[0], rendezvous, stop, output);
    if (child > 0) reap_test(child, !ended, &status);
    close(ends[0]);
    bool passed = stop->signal || (ended && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    if (child < 0) snprintf(reason, size, "cannot start a process: %s", strerror(code));
    else if (!ended) snprintf(reason, size, "its self-test did not finish in %d s", LIMIT_SECONDS);
    else if (!passed && WIFSIGNALED(status))
        snprintf(reason, size, "its self-test was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (!passed) find_error(output, reason, size);
    if (!passed && !*reason) snprintf(reason, size, "its self-test failed with exit code %d", WEXITSTATUS(status));
    return passed;
}
