/* Runs a program whose system calls on files fail as if its disk did:
 *
 *     fault_calls FOLDER LOG [KEY=VALUE...] -- PROGRAM [ARGUMENT...]
 *
 * The kernel asks this process before each call (seccomp's user notification), of the program and of all that it starts.
 * LOG receives a line "SECONDS KIND PATH ERROR" for each call on a path in FOLDER; ERROR is 0 for one that was made.
 * Digits of temporary names are "*" in PATH, so that a call has the same name in each run. The call number `call` of
 * `kind` on `path` fails, and then other ones as `for` and `scope` say. The exit code is the program's, or 128 and its
 * signal; 125: no such filter is permitted here. io_faults.py starts it.
 *
 * kind=KIND path=PATH call=N     the first call that fails; N counts from 1
 * error=NUMBER                   the errno that the calls fail with
 * for=TIMES | for=SECONDSs       how many calls fail, or for how long after the first
 * scope=kind | all               fail calls of that kind on any path in FOLDER, or of all kinds
 * only=NAME=VALUE                record and fail the calls of processes with this environment variable alone
 * pace=MILLISECONDS:PATH         each write to PATH takes that long: a run of few steps that lasts for seconds */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/seccomp.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/array.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "support/system_calls.h"

enum { CANNOT = 125 };

static const char *const kind_names[CALL_KINDS + 1] = {[CALL_OPEN] = "open",
    [CALL_WRITE] = "write",
    [CALL_RESIZE] = "resize",
    [CALL_RENAME] = "rename",
    [CALL_LINK] = "link",
    [CALL_REMOVE] = "remove",
    [CALL_MAKE_FOLDER] = "mkdir",
    [CALL_SYNC] = "sync",
    [CALL_SYNC_ALL] = "sync",
    [CALL_READ] = "read",
    [CALL_LIST] = "list",
    [CALL_STATUS] = "stat",
    [CALL_LOCK] = "lock",
    [CALL_CLOSE] = "close",
    [CALL_MAP] = "map",
    [CALL_SPACE] = "space",
    [CALL_KINDS] = "create"};

/* The calls that fail. */
typedef struct Fault {
    const char *kind, *path, *only, *pace_path;
    int call, error, times;
    double seconds; /* INFINITY: `times` decides */
    bool all;
    int pace; /* milliseconds */
} Fault;

/* A call whose answer waits. */
typedef struct Delayed {
    uint64_t id;
    double due;
} Delayed;

typedef struct Supervisor {
    Fault fault;
    char *root;
    FILE *log;
    int listener;
    pid_t program;
    int code;            /* of the program; -1: it runs */
    double start, first; /* when the first call failed; 0: none did */
    int seen, failed;
    Delayed *delayed;
    size_t delayed_count;
} Supervisor;

/* -- Names of calls ------------------------------------------------------------------------------------------------ */

/* Replaces "/proc/THREAD/cwd/..." and "/proc/THREAD/fd/N..." by where these links lead. NULL: nowhere. The caller
 * frees. */
static char *resolve(const SystemCall *call, char *path) {
    SCOPED_FREE char *given = path, *own = memory_format("/proc/%d/", call->thread);
    char target[PATH_MAX];
    if (!starts_with(given, own)) return memory_copy_string(given);
    char *end = given + strlen(own);
    end += starts_with(end, "fd/") ? 3 : 0;
    end += strcspn(end, "/");
    SCOPED_FREE char *link = memory_format("%.*s", (int)(end - given), given);
    ssize_t length = readlink(link, target, sizeof target);
    return length > 0 ? memory_format("%.*s%s", (int)length, target, end) : NULL;
}

/* "name.partial-123" becomes "name.partial-*", and so do the names of mkostemp: they differ from run to run. */
static void hide_numbers(char *path) {
    static const char *const marks[] = {".partial-", ".smelt-"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        for (char *at = path; (at = strstr(at, marks[i])) != NULL;) {
            at += strlen(marks[i]);
            size_t length = strcspn(at, "/. ");
            if (length == 0) continue;
            *at = '*';
            memmove(at + 1, at + length, strlen(at + length) + 1);
        }
}

/* The path below the root that a call is about; NULL: it is about another one. The caller frees. */
static char *name_call(const Supervisor *supervisor, const SystemCall *call) {
    const CallRow *row = call->row;
    int path = row->to_path != NO_ARGUMENT ? row->to_path : row->path, folder = row->to_path != NO_ARGUMENT ? row->to_folder : row->folder;
    if (path == NO_ARGUMENT && row->descriptor == NO_ARGUMENT) return NULL;
    int descriptor = path == NO_ARGUMENT ? (int)call->arguments[row->descriptor] : 0;
    if (descriptor < 0) return NULL; /* memory without a file */
    SCOPED_FREE char *full = resolve(call, path == NO_ARGUMENT ? call_descriptor_path(call, descriptor) : call_path(call, folder, path));
    size_t length = strlen(supervisor->root);
    if (!full || !starts_with(full, supervisor->root) || (full[length] != '/' && full[length])) return NULL;
    char *name = memory_copy_string(full[length] ? full + length + 1 : ".");
    hide_numbers(name);
    return name;
}

static const char *kind_of(const SystemCall *call) {
    bool creates = call->row->kind == CALL_OPEN && call->arguments[call->row->flags] & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC);
    return kind_names[creates ? CALL_KINDS : call->row->kind];
}

/* -- Which calls fail ---------------------------------------------------------------------------------------------- */

/* Returns true if a process has "NAME=VALUE" in its environment. */
static bool has_variable(pid_t thread, const char *wanted) {
    char path[64], *word = NULL;
    size_t capacity = 0;
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/environ", thread);
    FILE *file = fopen(path, "re");
    while (file && !found && getdelim(&word, &capacity, '\0', file) > 0) found = !strcmp(word, wanted);
    if (file) fclose(file);
    free(word);
    return found;
}

static bool fails(Supervisor *supervisor, const char *kind, const char *path) {
    const Fault *fault = &supervisor->fault;
    if (!fault->kind) return false;
    bool same = !strcmp(kind, fault->kind);
    if (supervisor->first == 0) {
        if (!same || strcmp(path, fault->path) || ++supervisor->seen < fault->call) return false;
        supervisor->first = log_seconds();
    }
    if (!same && !fault->all) return false;
    return supervisor->failed < fault->times && log_seconds() - supervisor->first <= fault->seconds;
}

/* -- Answers ------------------------------------------------------------------------------------------------------- */

/* A close that fails has closed its file: the descriptor is given another one. */
static void close_anyway(const Supervisor *supervisor, uint64_t id, int descriptor) {
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct seccomp_notif_addfd other = {
        .id = id, .flags = SECCOMP_ADDFD_FLAG_SETFD, .srcfd = (uint32_t)null, .newfd = (uint32_t)descriptor, .newfd_flags = O_CLOEXEC};
    ioctl(supervisor->listener, SECCOMP_IOCTL_NOTIF_ADDFD, &other);
    close(null);
}

/* The thread may have been killed meanwhile: then there is nobody to answer. */
static void answer(const Supervisor *supervisor, uint64_t id, int error) {
    struct seccomp_notif_resp response = {.id = id, .error = -error, .flags = error ? 0 : SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    ioctl(supervisor->listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
}

/* Answers the calls that have waited long enough. Returns the milliseconds until the next one; -1: there is none. */
static int answer_delayed(Supervisor *supervisor) {
    double now = log_seconds(), next = INFINITY;
    size_t left = 0;
    for (size_t i = 0; i < supervisor->delayed_count; i++) {
        Delayed *delayed = &supervisor->delayed[i];
        if (delayed->due <= now) {
            answer(supervisor, delayed->id, 0);
            continue;
        }
        next = fmin(next, delayed->due);
        supervisor->delayed[left++] = *delayed;
    }
    supervisor->delayed_count = left;
    return left ? (int)ceil((next - now) * 1e3) : -1;
}

static void supervise_call(Supervisor *supervisor, const SystemCall *call, uint64_t id) {
    const Fault *fault = &supervisor->fault;
    SCOPED_FREE char *path = name_call(supervisor, call);
    if (!path) return answer(supervisor, id, 0);
    const char *kind = kind_of(call);
    bool meant = !fault->only || has_variable(call->thread, fault->only);
    int error = meant && fails(supervisor, kind, path) ? fault->error : 0;
    supervisor->failed += error != 0;
    if (meant) fprintf(supervisor->log, "%.3f %s %s %d\n", log_seconds() - supervisor->start, kind, path, error);
    if (error && call->row->kind == CALL_CLOSE) close_anyway(supervisor, id, (int)call->arguments[0]);
    if (!error && fault->pace && call->row->kind == CALL_WRITE && !strcmp(path, fault->pace_path))
        array_append(supervisor->delayed, supervisor->delayed_count, ((Delayed){id, log_seconds() + fault->pace * 1e-3}));
    else answer(supervisor, id, error);
}

static void receive(Supervisor *supervisor) {
    struct seccomp_notif asked = {0};
    if (ioctl(supervisor->listener, SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0) return;
    SystemCall call = {.thread = (pid_t)asked.pid, .row = call_row((uint64_t)asked.data.nr)};
    memcpy(call.arguments, asked.data.args, sizeof call.arguments);
    supervise_call(supervisor, &call, asked.id);
}

/* Programs that have ended hold their filter until somebody waits for them. */
static void reap(Supervisor *supervisor) {
    int status;
    for (pid_t child; (child = waitpid(-1, &status, WNOHANG)) > 0;)
        if (child == supervisor->program) supervisor->code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Until all programs have ended. */
static void supervise(Supervisor *supervisor) {
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    struct pollfd events[] = {
        {.fd = supervisor->listener, .events = POLLIN}, {.fd = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK), .events = POLLIN}};
    for (;;) {
        struct signalfd_siginfo ended;
        poll(events, 2, answer_delayed(supervisor));
        if (events[1].revents & POLLIN && read(events[1].fd, &ended, sizeof ended) > 0) reap(supervisor);
        if (events[0].revents & POLLIN) receive(supervisor);
        else if (events[0].revents & POLLHUP) break;
    }
    while (supervisor->code < 0) reap(supervisor);
    close(events[1].fd);
}

/* -- The program --------------------------------------------------------------------------------------------------- */

static void send_descriptor(int socket, int descriptor) {
    char byte = 0, control[CMSG_SPACE(sizeof descriptor)] = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof descriptor)};
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    if (sendmsg(socket, &message, 0) < 0) _exit(CANNOT);
}

/* -1: none came. */
static int receive_descriptor(int socket) {
    int descriptor = -1;
    char byte, control[CMSG_SPACE(sizeof descriptor)];
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&message))
        memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    return descriptor;
}

static bool program_start(Supervisor *supervisor, char *const *arguments) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return false;
    supervisor->program = fork();
    if (supervisor->program == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        int listener = call_filter(CALL_KINDS, SECCOMP_RET_USER_NOTIF, SECCOMP_FILTER_FLAG_NEW_LISTENER);
        if (listener < 0) _exit(CANNOT);
        fcntl(listener, F_SETFD, FD_CLOEXEC);
        send_descriptor(ends[1], listener);
        execv(arguments[0], arguments);
        _exit(CANNOT);
    }
    close(ends[1]);
    supervisor->listener = supervisor->program > 0 ? receive_descriptor(ends[0]) : -1;
    close(ends[0]);
    return supervisor->listener >= 0;
}

/* -- Options ------------------------------------------------------------------------------------------------------- */

static bool is_key(const char *word, const char *key, const char **value) {
    size_t length = strlen(key);
    if (strncmp(word, key, length) != 0 || word[length] != '=') return false;
    *value = word + length + 1;
    return true;
}

static bool fault_option(Fault *fault, const char *word) {
    const char *value;
    if (is_key(word, "kind", &fault->kind) || is_key(word, "path", &fault->path) || is_key(word, "only", &fault->only)) return true;
    if (is_key(word, "call", &value)) return (fault->call = atoi(value)) > 0;
    if (is_key(word, "error", &value)) return (fault->error = atoi(value)) > 0;
    if (is_key(word, "scope", &value)) return (fault->all = !strcmp(value, "all")) || !strcmp(value, "kind");
    if (is_key(word, "pace", &value)) return (fault->pace = atoi(value)) > 0 && (fault->pace_path = strchr(value, ':') + 1) != NULL;
    if (!is_key(word, "for", &value)) return false;
    bool seconds = strchr(value, 's') != NULL;
    fault->seconds = seconds ? atof(value) : INFINITY;
    fault->times = seconds ? INT_MAX : atoi(value);
    return true;
}

int main(int count, char **words) {
    int at = 3;
    Supervisor supervisor = {.code = -1, .start = log_seconds(), .fault = {.times = INT_MAX, .seconds = INFINITY}};
    while (at < count && fault_option(&supervisor.fault, words[at])) at++;
    if (at >= count - 1 || strcmp(words[at], "--") != 0) return fprintf(stderr, "fault_calls: see its source for what it takes\n"), CANNOT;
    sigset_t children;
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    supervisor.root = realpath(words[1], NULL);
    supervisor.log = fopen(words[2], "we");
    if (!supervisor.root || !supervisor.log || !program_start(&supervisor, words + at + 1)) return CANNOT;
    supervise(&supervisor);
    fclose(supervisor.log);
    free(supervisor.root);
    free(supervisor.delayed);
    return supervisor.code;
}
