/* A worker whose rewards a long-lived child computes: it writes requests to the child's stdin and reads
 * answers from its stdout, one JSON object a line. Every fault of a child ends it: the next job gets a
 * new one. Owns the child and its pipes, and the jobs that the child has. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/array.h"
#include "base/child.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "rl/reward_internal.h"

enum { ANSWER_BYTES = 1 << 20, FAULT_BYTES = 512 };
static const double leave_seconds = 2;
static const char shell_characters[] = "\"'`$&|;()<>*?[]#~={}%\\!\n";
static const char closed_output[] = "closed its output before it answered";

typedef struct RewardBytes {
    char *bytes;
    size_t size, capacity;
} RewardBytes;

typedef struct RewardChild {
    RewardPart *part;
    pid_t id; /* 0: there is none */
    int input, output;
    RewardJob *jobs; /* without an answer */
    int64_t job_count;
    RewardBytes unsent, received;
    int64_t requested;       /* bytes of all requests */
    char fault[FAULT_BYTES]; /* why the child is of no more use; empty: it is */
    bool final;              /* another child would have the same fault */
} RewardChild;

static void child_fault(RewardChild *child, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void child_fault(RewardChild *child, const char *format, ...) {
    va_list arguments;
    if (*child->fault) return;
    va_start(arguments, format);
    vsnprintf(child->fault, sizeof child->fault, format, arguments);
    va_end(arguments);
}

/* -- Starting and ending ------------------------------------------------------------------------------------------- */

/* The text of reward_shim.py, which serves a function of a Python file. */
__asm__(".section .rodata\nreward_shim:\n.incbin \"src/rl/reward_shim.py\"\n.byte 0\n.text\n");
extern const char reward_shim[];

/* Tests of code end after CODE_PATIENCE times their limit, and have some more for a busy machine. */
static double answer_seconds(const RewardPart *part) {
    const RewardLimits *limits = reward_limits(part);
    return part->kind->compute ? fmax(limits->seconds, 2 * CODE_PATIENCE * limits->code_seconds) : limits->seconds;
}

bool reward_python_check(RewardPart *part, Error *error) {
    size_t length = strcspn(part->argument, ":");
    SCOPED_FREE char *file = memory_format("%.*s", (int)length, part->argument);
    return access(file, R_OK) == 0 || error_set(error, ERROR_USAGE, "cannot read %s: %s", file, strerror(errno));
}

/* Starts the program of a part: this one for `code`, python3 for `python`, else a command of the shell. */
static pid_t start_program(const RewardPart *part, int input, int output) {
    const RewardLimits *limits = reward_limits(part);
    SCOPED_FREE char *file = memory_copy_string(part->argument),
                     *reward = memory_format("rl.reward=code%s%s", *part->argument ? ":" : "", part->argument);
    SCOPED_FREE char *seconds = memory_format("rl.code_seconds=%.17g", limits->code_seconds);
    SCOPED_FREE char *bytes = memory_format("rl.code_memory=%" PRId64, limits->code_bytes);
    char *function = strchr(file, ':'), *standard = limits->environment ? "environment" : "reward";
    if (function) *function++ = '\0';
    char *python[] = {"sh", "-c", "exec python3 -c \"$0\" \"$@\"", (char *)reward_shim, file, function ? function : standard, NULL};
    char *code[] = {"smelt", "reward", reward, "serve=true", seconds, bytes, NULL}, *shell[] = {"sh", "-c", part->argument, NULL};
    /* The shell waits for a command, unless it becomes it: then a signal or an end reaches this process as it is. */
    SCOPED_FREE char *simple = strpbrk(part->argument, shell_characters) ? NULL : memory_format("exec %s", part->argument);
    if (simple) shell[2] = simple;
    bool is_code = part->kind->compute, is_python = !strcmp(part->kind->name, "python");
    return child_start(&(ChildOptions){.arguments = is_code     ? code
                                                    : is_python ? python
                                                                : shell,
        .program = is_code ? "/proc/self/exe" : "/bin/sh",
        .input = input,
        .output = output});
}

static void start_child(RewardChild *child) {
    int in[2] = {-1, -1}, out[2] = {-1, -1};
    pid_t id = -1;
    if (pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0) id = start_program(child->part, in[0], out[1]);
    int code = errno;
    close(in[0]);
    close(out[1]);
    if (id > 0) {
        child->id = id;
        child->input = in[1];
        child->output = out[0];
        fcntl(child->input, F_SETFL, O_NONBLOCK);
        fcntl(child->output, F_SETFL, O_NONBLOCK);
        return;
    }
    close(in[1]);
    close(out[0]);
    child_fault(child, "could not be started: %s", strerror(code));
}

/* Ends the child and its group, after waiting `patience` seconds for it to end. Returns whether it
 * ended by itself, with its status. */
static bool end_child(RewardChild *child, double patience, int *status) {
    struct pollfd file = {child_open_end(child->id), POLLIN, 0};
    bool ended = file.fd >= 0 && poll(&file, 1, (int)(patience * 1e3)) > 0;
    if (file.fd >= 0) close(file.fd);
    kill(-child->id, SIGKILL);
    kill(child->id, SIGKILL); /* it may not have its group yet */
    while (waitpid(child->id, status, 0) < 0 && errno == EINTR) continue;
    close(child->output);
    child->id = 0;
    child->requested = 0;
    child->unsent.size = child->received.size = 0;
    return ended;
}

/* Marks the jobs whose request the child did not begin to read. Returns whether it read none. */
static bool mark_unread(const RewardChild *child) {
    int waiting = 0;
    bool none = true;
    if (ioctl(child->input, FIONREAD, &waiting) != 0) waiting = 0;
    int64_t read = child->requested - (int64_t)child->unsent.size - waiting;
    for (RewardJob *job = child->jobs; job; job = job->next) {
        job->unread = job->start >= read;
        none &= job->unread;
    }
    return none;
}

/* The shell ends with 128 + N if signal N killed its command. */
static void describe_end(RewardChild *child, int status, bool unread) {
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0, number = WIFSIGNALED(status) ? WTERMSIG(status) : code > 128 ? code - 128 : 0;
    child->final = code == 127;
    if (number) snprintf(child->fault, FAULT_BYTES, "was killed by signal %d (%s)", number, strsignal(number));
    else if (child->final) snprintf(child->fault, FAULT_BYTES, "was not found (exit code 127): check the command");
    else if (unread)
        snprintf(child->fault, FAULT_BYTES,
            "ended with exit code %d before it read its next request: it must stay and read further lines; read its messages above", code);
    else snprintf(child->fault, FAULT_BYTES, "ended with exit code %d before it answered: read its messages above", code);
}

/* Ends a child that has a fault, and gives its jobs back. */
static void drop_child(RewardChild *child) {
    int status;
    bool silent = !strcmp(child->fault, closed_output);
    if (child->id) {
        bool unread = silent && mark_unread(child);
        close(child->input);
        if (end_child(child, silent ? leave_seconds : 0, &status) && silent) describe_end(child, status, unread);
    }
    reward_jobs_fail(child->part, child->jobs, child->fault, child->final);
    child->jobs = NULL;
    child->job_count = 0;
    child->final = false;
    *child->fault = '\0';
}

/* -- Requests and answers ------------------------------------------------------------------------------------------ */

static void append_bytes(RewardBytes *to, const char *bytes, size_t size) {
    array_reserve(to->bytes, to->capacity, to->size + size);
    memcpy(to->bytes + to->size, bytes, size);
    to->size += size;
}

static void drop_bytes(RewardBytes *from, size_t size) {
    from->size -= size;
    memmove(from->bytes, from->bytes + size, from->size);
}

static RewardJob *find_job(RewardChild *child, int64_t number) {
    for (RewardJob **at = &child->jobs; *at; at = &(*at)->next) {
        RewardJob *job = *at;
        if (job->number != number) continue;
        *at = job->next;
        child->job_count--;
        return job;
    }
    return NULL;
}

static void take_line_of_child(RewardChild *child, const char *line, size_t size) {
    Error error;
    RewardAnswer answer;
    if (size == 0) return;
    if (!reward_answer_read(line, size, reward_limits(child->part)->environment, &answer, &error)) {
        child_fault(child, "%s", error.message);
        return;
    }
    RewardJob *job = find_job(child, answer.id);
    if (job) {
        reward_job_finish(child->part, job, answer);
        return;
    }
    if (answer.id < 0 && answer.failure) child->final = true, child_fault(child, "cannot work: %s", answer.failure);
    else if (answer.id < 0) child_fault(child, "answered without \"id\": copy that of the request");
    else child_fault(child, "answered id %" PRId64 ", which it has not, or has answered already: answer each request once", answer.id);
    reward_answer_free(&answer);
}

static void receive_answers(RewardChild *child) {
    char bytes[1 << 16], *end;
    ssize_t size = read(child->output, bytes, sizeof bytes);
    if (size == 0) child_fault(child, "%s", closed_output);
    if (size <= 0) return;
    append_bytes(&child->received, bytes, (size_t)size);
    RewardBytes *received = &child->received;
    while (!*child->fault && (end = memchr(received->bytes, '\n', received->size))) {
        take_line_of_child(child, received->bytes, (size_t)(end - received->bytes));
        drop_bytes(received, (size_t)(end + 1 - received->bytes));
    }
    if (received->size > ANSWER_BYTES) child_fault(child, "wrote a line of more than %d bytes: shorten its answers", ANSWER_BYTES);
}

/* A child that reads no more may have said why. */
static void send_requests(RewardChild *child) {
    ssize_t size = write(child->input, child->unsent.bytes, child->unsent.size);
    if (size > 0) drop_bytes(&child->unsent, (size_t)size);
    else if (errno != EAGAIN && errno != EINTR) receive_answers(child), child_fault(child, "%s", closed_output);
}

/* Takes a job from the queue and sends it to the child, which is started if there is none. */
static void accept_job(RewardChild *child) {
    RewardJob *job = reward_job_take(child->part);
    if (!job) return;
    job->until = log_seconds() + answer_seconds(child->part);
    job->next = child->jobs;
    child->jobs = job;
    child->job_count++;
    if (!child->id) start_child(child);
    if (*child->fault) return;
    SCOPED_FREE char *line = memory_format("{\"id\": %" PRId64 ", %s\n", job->number, job->entry->request + 1);
    job->start = child->requested;
    child->requested += (int64_t)strlen(line);
    append_bytes(&child->unsent, line, strlen(line));
    send_requests(child);
}

/* Returns the milliseconds until the first job is too late; -1: there is none. */
static int time_left(const RewardChild *child) {
    double until = INFINITY;
    for (const RewardJob *job = child->jobs; job; job = job->next) until = fmin(until, job->until);
    return child->jobs ? (int)fmin(1e6, fmax(0, ceil((until - log_seconds()) * 1e3))) : -1;
}

void *reward_program_work(void *context) {
    RewardPart *part = ((RewardWorker *)context)->part;
    const RewardLimits *limits = reward_limits(part);
    RewardChild child = {.part = part};
    int status;
    for (bool stop = false; !stop;) {
        struct pollfd files[] = {{part->stop, POLLIN, 0}, {child.job_count < limits->in_flight ? part->arrived : -1, POLLIN, 0},
            {child.id ? child.output : -1, POLLIN, 0}, {child.unsent.size ? child.input : -1, POLLOUT, 0}};
        poll(files, sizeof files / sizeof *files, time_left(&child));
        stop = files[0].revents;
        if (files[2].revents) receive_answers(&child);
        if (files[3].revents && !*child.fault) send_requests(&child);
        if (files[1].revents && !*child.fault) accept_job(&child);
        if (time_left(&child) == 0)
            child_fault(&child, "gave no answer in %g seconds: raise rl.reward_seconds if it needs more", answer_seconds(part));
        if (*child.fault && !stop) drop_child(&child);
    }
    if (child.id) {
        close(child.input);
        end_child(&child, leave_seconds, &status);
    }
    for (RewardJob *job = child.jobs, *next; job; job = next) next = job->next, free(job);
    free(child.unsent.bytes);
    free(child.received.bytes);
    return NULL;
}
