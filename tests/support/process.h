/* Running programs from tests. Output and errors of a child go to files in memory, so that nothing has to be read
 * while it runs and a child that is killed loses nothing. Everything is static inline, so a test program uses what
 * it needs. */
#pragma once

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/memory.h"
#include "comm/socket.h"
#include "mentions.h"

typedef struct Process {
    pid_t id;
    int output, errors; /* files in memory */
} Process;

typedef struct ProcessResult {
    int code;   /* exit code; -1: ended by `signal` */
    int signal; /* 0: it ended by itself */
    char *output, *errors;
    int64_t peak_bytes; /* largest resident set */
} ProcessResult;

/* Seconds that tests wait for an event. Waiting ends with the event, so the limit is only reached by what hangs, on
 * a busy machine too. */
enum { WAIT_LIMIT = 600 };

/* By which children that meet recognize each other, unless a test sets SMELT_SECRET itself. */
#define PROCESS_SECRET "the secret of all tests"

/* Waits until the condition holds, which is evaluated again and again; at the limit the test fails with the
 * formatted message. */
#define WAIT_UNTIL(condition, ...)                                                                                                         \
    do {                                                                                                                                   \
        double wait_start = log_seconds();                                                                                                 \
        while (!(condition)) {                                                                                                             \
            if (log_seconds() - wait_start > WAIT_LIMIT) fail_msg(__VA_ARGS__);                                                            \
            process_sleep(1e-3);                                                                                                           \
        }                                                                                                                                  \
    } while (0)

/* The program under test: $SMELT, else build/smelt; as an absolute path, since tests change folders. The caller
 * frees. */
static inline char *process_smelt(void) {
    const char *given = getenv("SMELT");
    char *path = realpath(given && *given ? given : "build/smelt", NULL);
    if (!path) fail_msg("there is no %s: build it, or set SMELT to the program", given ? given : "build/smelt");
    return path;
}

/* In a child: signals have their usual effect, also where the tests were started by nohup, or in the background. */
static inline void process_heed_signals(void) {
    static const int signals[] = {SIGHUP, SIGINT, SIGQUIT};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) signal(signals[i], SIG_DFL);
}

/* Threads and ranks that wait leave the processors to others: tests start more of them than a machine has. Open MPI yields in
 * each poll if ranks share a processor, which costs a time slice; smelt sleeps between polls itself (src/comm/mpi.c). */
static inline void process_wait_idly(void) {
    setenv("OMP_WAIT_POLICY", "passive", 1);
    setenv("OMPI_MCA_mpi_yield_when_idle", "0", 1);
}

static inline Process process_start(char *const *arguments) {
    Process process = {.output = memfd_create("output", MFD_CLOEXEC), .errors = memfd_create("errors", MFD_CLOEXEC)};
    assert_true(process.output >= 0 && process.errors >= 0);
    fflush(NULL);
    process.id = fork();
    assert_true(process.id >= 0);
    if (process.id > 0) return process;
    process_heed_signals();
    process_wait_idly();
    setenv("SMELT_SECRET", PROCESS_SECRET, 0);
    if (dup2(process.output, STDOUT_FILENO) >= 0 && dup2(process.errors, STDERR_FILENO) >= 0) execv(arguments[0], arguments);
    _exit(127);
}

static inline char *process_text(int file) {
    off_t length = lseek(file, 0, SEEK_END);
    assert_true(length >= 0);
    char *text = memory_allocate((size_t)length + 1);
    assert_int_equal(pread(file, text, (size_t)length, 0), length);
    return text;
}

static inline void process_sleep(double seconds) {
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

/* Waits for the end; a child that is still running at the limit is killed, and the test fails. */
static inline ProcessResult process_finish(Process *process) {
    ProcessResult result = {0};
    struct rusage usage;
    int status;
    double start = log_seconds();
    while (wait4(process->id, &status, WNOHANG, &usage) == 0) {
        if (log_seconds() - start > WAIT_LIMIT) {
            kill(process->id, SIGKILL);
            waitpid(process->id, &status, 0);
            fail_msg("a child was still running after %d s", WAIT_LIMIT);
        }
        process_sleep(0.5e-3);
    }
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    result.output = process_text(process->output);
    result.errors = process_text(process->errors);
    result.peak_bytes = (int64_t)usage.ru_maxrss * 1024;
    close(process->output);
    close(process->errors);
    return result;
}

static inline void process_free(ProcessResult *result) {
    free(result->output);
    free(result->errors);
}

/* How many lines of a text begin with `start`, which may be "". */
static inline int process_lines(const char *text, const char *start) {
    int count = 0;
    for (const char *line = text; *line;) {
        count += strncmp(line, start, strlen(start)) == 0;
        const char *end = strchr(line, '\n');
        line = end ? end + 1 : line + strlen(line);
    }
    return count;
}

static inline bool process_has_ended(const Process *process) {
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)process->id, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

/* How many lines of steps the output of a training has: they begin with blanks and a digit. */
static inline int process_steps(const char *text) {
    int count = 0;
    for (const char *line = text; *line;) {
        const char *word = line + strspn(line, " "), *end = strchr(line, '\n');
        count += word > line && *word >= '0' && *word <= '9';
        line = end ? end + 1 : line + strlen(line);
    }
    return count;
}

/* Waits until the child has printed the lines of so many steps, or has ended. */
static inline void process_await_steps(const Process *process, int steps) {
    for (bool ended = false, printed = false; !ended && !printed;) {
        ended = process_has_ended(process);
        char *text = process_text(process->output);
        printed = process_steps(text) >= steps;
        free(text);
        if (!ended && !printed) process_sleep(0.3e-3);
    }
}

/* Returns whether at least `times` lines of the child's output and errors together mention the values. */
static inline bool process_has_said(const Process *process, const char *values, int times) {
    int found = 0;
    for (int i = 0; i < 2; i++) {
        char *printed = process_text(i ? process->errors : process->output);
        char *rest = NULL;
        for (char *line = strtok_r(printed, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) found += mentions(line, values);
        free(printed);
    }
    return found >= times;
}

/* Waits until the child has printed the text so many times; fails when the child ends without. */
static inline void process_await_text(const Process *process, const char *text, int times) {
    bool ended = false;
    double start = log_seconds();
    while (!process_has_said(process, text, times) && !ended && log_seconds() - start < WAIT_LIMIT) {
        ended = process_has_ended(process);
        process_sleep(1e-3);
    }
    if (process_has_said(process, text, times)) return;
    char *printed = process_text(process->errors);
    fail_msg("a child %s '%s' %d times: %s", ended ? "ended before it printed" : "has not printed", text, times, printed);
}

/* A port of this machine that nobody listens on, for children that meet there. */
static inline int process_free_port(void) {
    int port = socket_free_port();
    assert_true(port > 0);
    return port;
}

/* Whether this machine has a TCP socket (version 4) in this state of /proc/net/tcp whose local port, or whose peer's, is
 * the given one. */
static inline bool process_has_socket(unsigned state, unsigned local, unsigned remote) {
    char line[512];
    bool found = false;
    FILE *file = fopen("/proc/net/tcp", "r");
    assert_non_null(file);
    while (!found && fgets(line, sizeof line, file)) {
        unsigned has_local, has_remote, has_state;
        found = sscanf(line, " %*d: %*x:%x %*x:%x %x", &has_local, &has_remote, &has_state) == 3 && has_state == state &&
                (has_local == local || has_remote == remote);
    }
    fclose(file);
    return found;
}

enum { PROCESS_ESTABLISHED = 1, PROCESS_LISTENS = 10, PROCESS_NO_PORT = 1 << 16 };
/* Whether somebody of this machine has an open connection to the port, accepted or not; whether somebody listens. */
static inline bool process_port_has_caller(int port) { return process_has_socket(PROCESS_ESTABLISHED, PROCESS_NO_PORT, (unsigned)port); }
static inline bool process_port_has_listener(int port) { return process_has_socket(PROCESS_LISTENS, (unsigned)port, PROCESS_NO_PORT); }

static inline void process_set_number(const char *name, int number) {
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

/* Gives the processes that are started from now on so many emulated cards, with the emulator's hipBLASLt and RCCL, where there is the
 * emulator. */
static inline void process_offer_cards(const char *cards) {
    const char *library = getenv("ROCEMU_LIBRARY");
    if (!library) return;
    int folder = (int)(strrchr(library, '/') - library);
    char *libraries = memory_format("%.*s:%.*s/rocm", folder, library, folder, library);
    setenv("LD_LIBRARY_PATH", libraries, 1);
    setenv("ROCEMU_CARDS", cards, 1);
    free(libraries);
}
