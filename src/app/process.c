/* The state of the process. Signal and exit handlers have no context argument, so their state is
 * global in this file: whether the end has been explained, the request to stop, and the semaphore
 * of stacks. Called by main and the commands. */
#include "app/process.h"

#include <execinfo.h>
#include <omp.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/scope.h"

enum { MOST_FRAMES = 48, STACK_SECONDS = 2, MOST_THREADS_EACH = 4 /* per processor, without a warning */ };

/* -- Start --------------------------------------------------------------------------------------------------------- */

/* Shortens the spinning of libgomp's threads, which spin for many milliseconds while they wait. If
 * any other process is busy, a waiting thread keeps the core from the thread that it waits for:
 * steps took 2.8 s instead of 0.65 s with both cores of a machine in use. A short spin costs
 * nothing on an idle machine. The library reads its settings before main, so the program must be
 * restarted. The user's settings have precedence. */
void process_shorten_spinning(char **argv) {
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
    if (setenv("GOMP_SPINCOUNT", "1000", 1) == 0) execv("/proc/self/exe", argv);
}

/* Async-signal-safe: one system call, no memory. A bus error outside mapped files is a fault of the
 * program or the machine: the signal is raised again, with its default action. */
static void on_bus_error(int number, siginfo_t *info, void *context) {
    (void)context;
    static const char
        before[] = "error: cannot read ",
        after[] =
            ": it was truncated or replaced while in use, or its disk failed; saved files are intact: restore the file and start again\n";
    const char *path = file_mapped_at(info->si_addr);
    if (!path) {
        signal(number, SIG_DFL);
        return;
    }
    const struct iovec parts[] = {
        {(void *)before, sizeof before - 1},
        {(void *)path, strlen(path)},
        {(void *)after, sizeof after - 1},
    };
    ssize_t ignored = writev(STDERR_FILENO, parts, 3);
    (void)ignored;
    _exit(ERROR_DATA);
}

void process_catch_file_faults(void) {
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, NULL);
    signal(SIGXFSZ, SIG_IGN);
}

void process_open_many_files(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

void process_set_threads(int64_t threads, int ranks) {
    int processors = omp_get_num_procs();
    if (threads > (int64_t)MOST_THREADS_EACH * processors)
        log_warn("threads=%lld on %d processors makes steps many times slower than threads=%d", (long long)threads, processors, processors);
    bool shared = ranks > 1 && !getenv("OMP_NUM_THREADS") && processors == sysconf(_SC_NPROCESSORS_ONLN);
    if (threads) omp_set_num_threads((int)threads);
    else if (shared) omp_set_num_threads(processors > ranks ? processors / ranks : 1);
}

void process_recommend(const char *name, const char *value) { setenv(name, value, 0); }

static bool end_explained;

static void explain_end(int code, void *context) {
    (void)context;
    if (code && !end_explained)
        log_error("a library ended smelt with exit code %d; its message, if any, is above. If the system refused to create a thread, raise "
                  "the limits on memory and processes (ulimit -v, ulimit -u) or set a smaller threads",
            code);
}

void process_explain_end(void) { on_exit(explain_end, NULL); }

int process_end_explained(int code) {
    end_explained = true;
    return code;
}

/* Prints to stderr, which is unbuffered, so that no memory is allocated. */
void process_end_without_memory(size_t bytes) {
    fprintf(stderr, "error: out of memory: the system refused %zu bytes: free memory on this machine and start again\n", bytes);
    exit(process_end_explained(ERROR_MEMORY));
}

/* -- Requests to stop ---------------------------------------------------------------------------------------------- */

static StopRequest *stop_request;

/* Before the first step of a training there is nothing to save, and the current work, such as
 * packing text, may take long. */
static void on_stop(int number) {
    static const char text[] = "stopped by a signal before the first step: nothing is lost; run the same command again\n";
    if (!stop_request->heeded) {
        ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
        (void)ignored;
        _exit(ERROR_PREEMPTED);
    }
    stop_request->signal = number;
    stop_request->count++;
}

void process_catch_stop(StopRequest *stop, bool hangup) {
    struct sigaction action = {.sa_handler = on_stop, .sa_flags = SA_RESTART}, before;
    stop_request = stop;
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    bool ignored = sigaction(SIGHUP, NULL, &before) != 0 || before.sa_handler == SIG_IGN; /* by the parent, for example nohup */
    if (hangup && !ignored) sigaction(SIGHUP, &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* the reader of the output may leave */
}

static void on_interrupt(int number) {
    stop_request->signal = number;
    stop_request->count++;
}

void process_catch_interrupt(StopRequest *stop) {
    struct sigaction action = {.sa_handler = on_interrupt}; /* without SA_RESTART, a read that waits for input ends with EINTR */
    stop_request = stop;
    sigaction(SIGINT, &action, NULL);
}

/* -- Hangs --------------------------------------------------------------------------------------------------------- */

static sem_t stack_printed;

static void on_print_stack(int number) {
    (void)number;
    void *frames[MOST_FRAMES];
    backtrace_symbols_fd(frames, backtrace(frames, MOST_FRAMES), STDERR_FILENO);
    sem_post(&stack_printed);
}

/* Interrupts one thread after the other; each prints its stack. */
static void print_stacks(void) {
    struct sigaction action = {.sa_handler = on_print_stack, .sa_flags = SA_RESTART}, before;
    void *frame[1];
    backtrace(frame, 1); /* loads its library now, not in the handler */
    SCOPED(file_list_free) FileList threads = {0};
    Error ignored;
    if (!file_list("/proc/self/task", &threads, &ignored) || sem_init(&stack_printed, 0, 0) != 0 ||
        sigaction(SIGUSR2, &action, &before) != 0)
        return;
    for (size_t i = 0; i < threads.count; i++) {
        struct timespec until;
        int thread = atoi(threads.entries[i].name);
        if (thread <= 0 || thread == gettid()) continue;
        fprintf(stderr, "stack of thread %d:\n", thread);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += STACK_SECONDS;
        if (syscall(SYS_tgkill, getpid(), thread, SIGUSR2) != 0 || sem_timedwait(&stack_printed, &until) != 0)
            fprintf(stderr, "  (no answer)\n");
    }
}

const HangActions process_hang_actions = {.print_stacks = print_stacks, .end = _exit};
