/* Records what a program does to files: the kernel stops it before each system call that may change one (seccomp) and
 * again after it (ptrace), and the tracer looks what has changed. Only one thread at a time is between these two stops,
 * so that the log has one order, in which each change is whole. A file is known by its device and inode: names change,
 * descriptors are duplicated. */
#include "support/disk_log_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/array.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "support/process.h"
#include "support/system_calls.h"

/* -- Tracing ------------------------------------------------------------------------------------------------------- */

typedef struct Identity {
    dev_t device;
    ino_t inode;
} Identity;

/* The one call that has begun and not returned. */
typedef struct Call {
    SystemCall made;   /* without a thread: no call */
    bool existed;      /* CALL_OPEN: whether the file did */
    char *path;        /* CALL_OPEN, CALL_MAKE_FOLDER: as the tracer opens it */
    DiskChange change; /* as far as it is known */
} Call;

typedef struct Tracer {
    DiskLog *log;
    Identity *identities; /* by object; those of removed objects go to whatever is made with the same inode */
    int identity_count;
    pid_t program;
    int output; /* what the program prints, a file in memory */
    Call call;
    pid_t *held; /* threads that wait until the call has returned */
    size_t held_count;
} Tracer;

static Identity identity_of(const struct stat *status) { return (Identity){status->st_dev, status->st_ino}; }

static int object_find(const Tracer *tracer, const struct stat *status) {
    for (int i = tracer->identity_count; i-- > 0;)
        if (tracer->identities[i].device == status->st_dev && tracer->identities[i].inode == status->st_ino) return i;
    return DISK_NOTHING;
}

/* The object at a path or behind a link of /proc; DISK_NOTHING outside of the root. */
static int object_at(const Tracer *tracer, const char *path) {
    struct stat status;
    return stat(path, &status) == 0 ? object_find(tracer, &status) : DISK_NOTHING;
}

static int object_make(Tracer *tracer, const char *path) {
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    array_append(tracer->identities, tracer->identity_count, identity_of(&status));
    return disk_log_add_object(tracer->log, S_ISDIR(status.st_mode));
}

/* -- What was there before ----------------------------------------------------------------------------------------- */

static void describe_contents(Tracer *tracer, int file, const char *path) {
    int64_t bytes;
    Error error = {0};
    char *data = file_read(path, INT64_MAX - 1, &bytes, &error);
    if (!data) fail_msg("%s", error.message);
    disk_log_add(tracer->log, (DiskChange){.kind = DISK_WRITE, .object = file, .bytes = bytes, .data = data});
}

static void describe_folder(Tracer *tracer, int folder, const char *path) {
    SCOPED(file_list_free) FileList list = {0};
    Error error = {0};
    if (!file_list(path, &list, &error)) fail_msg("%s", error.message);
    for (size_t i = 0; i < list.count; i++) {
        SCOPED_FREE char *below = memory_format("%s/%s", path, list.entries[i].name);
        int object = object_at(tracer, below);
        bool known = object != DISK_NOTHING; /* by another name */
        if (!known) object = object_make(tracer, below);
        DiskName name = {folder, memory_copy_string(list.entries[i].name), object};
        disk_log_add(tracer->log, (DiskChange){.kind = DISK_NAMES, .object = DISK_NOTHING, .names = {name}, .name_count = 1});
        if (list.entries[i].kind == FILE_FOLDER) describe_folder(tracer, object, below);
        else if (!known) describe_contents(tracer, object, below);
    }
}

/* -- Arguments ----------------------------------------------------------------------------------------------------- */

/* The folder and the name that a path ends in; the folder is DISK_NOTHING outside of the root. */
static DiskName name_at(const Tracer *tracer, const char *path, int object) {
    const char *slash = strrchr(path, '/');
    SCOPED_FREE char *parent = memory_format("%.*s", (int)(slash + 1 - path), path);
    return (DiskName){object_at(tracer, parent), memory_copy_string(slash + 1), object};
}

static void add_name(Call *call, DiskName name) { call->change.names[call->change.name_count++] = name; }

/* -- The beginning of a call --------------------------------------------------------------------------------------- */

/* All names must lie below the root: moving in or out is not modeled. */
static bool names_are_ours(const DiskChange *change) {
    for (int i = 0; i < change->name_count; i++)
        if (change->names[i].folder == DISK_NOTHING) return false;
    return true;
}

static bool begin_open(Tracer *tracer, Call *call) {
    int flags = (int)call->made.arguments[call->made.row->flags];
    if (!(flags & (O_CREAT | O_TRUNC))) return false;
    call->path = call_path(&call->made, call->made.row->folder, call->made.row->path);
    call->existed = access(call->path, F_OK) == 0;
    if (call->existed && !(flags & O_TRUNC)) return false;
    if (call->existed) return (call->change.object = object_at(tracer, call->path)) != DISK_NOTHING;
    add_name(call, name_at(tracer, call->path, DISK_NOTHING));
    return names_are_ours(&call->change);
}

static bool begin_rename(Tracer *tracer, Call *call) {
    const CallRow *row = call->made.row;
    SCOPED_FREE char *from = call_path(&call->made, row->folder, row->path), *to = call_path(&call->made, row->to_folder, row->to_path);
    bool exchanges = row->flags != NO_ARGUMENT && call->made.arguments[row->flags] & RENAME_EXCHANGE;
    add_name(call, name_at(tracer, from, exchanges ? object_at(tracer, to) : DISK_NOTHING));
    add_name(call, name_at(tracer, to, object_at(tracer, from)));
    return names_are_ours(&call->change);
}

static bool begin_paths(Tracer *tracer, Call *call) {
    const CallRow *row = call->made.row;
    char *path = call_path(&call->made, row->folder, row->path);
    if (row->kind == CALL_LINK) {
        SCOPED_FREE char *to = call_path(&call->made, row->to_folder, row->to_path);
        add_name(call, name_at(tracer, to, object_at(tracer, path)));
    } else {
        add_name(call, name_at(tracer, path, DISK_NOTHING));
    }
    call->path = path;
    return names_are_ours(&call->change);
}

static bool begin_descriptor(Tracer *tracer, Call *call) {
    SCOPED_FREE char *path = call_descriptor_path(&call->made, (int)call->made.arguments[0]);
    call->change.object = object_at(tracer, path);
    return call->change.object != DISK_NOTHING;
}

/* Whether the call may change what is below the root. */
static bool call_begin(Tracer *tracer, Call *call) {
    struct stat printed;
    static const DiskChangeKind kinds[] = {[CALL_OPEN] = DISK_NAMES,
        [CALL_WRITE] = DISK_WRITE,
        [CALL_RESIZE] = DISK_RESIZE,
        [CALL_RENAME] = DISK_NAMES,
        [CALL_LINK] = DISK_NAMES,
        [CALL_REMOVE] = DISK_NAMES,
        [CALL_MAKE_FOLDER] = DISK_NAMES,
        [CALL_SYNC] = DISK_SYNC,
        [CALL_SYNC_ALL] = DISK_SYNC_ALL};
    assert_int_equal(fstat(tracer->output, &printed), 0);
    call->change = (DiskChange){.kind = kinds[call->made.row->kind], .object = DISK_NOTHING, .printed = printed.st_size};
    switch (call->made.row->kind) {
    case CALL_OPEN: return begin_open(tracer, call);
    case CALL_RENAME: return begin_rename(tracer, call);
    case CALL_LINK:
    case CALL_REMOVE:
    case CALL_MAKE_FOLDER: return begin_paths(tracer, call);
    case CALL_SYNC_ALL: return true;
    default: return begin_descriptor(tracer, call);
    }
}

static void call_drop(Call *call) {
    for (int i = 0; i < call->change.name_count; i++) free(call->change.names[i].name);
    free(call->path);
    *call = (Call){0};
}

/* -- The end of a call --------------------------------------------------------------------------------------------- */

static int64_t descriptor_position(const Call *call) {
    long long position = -1;
    SCOPED_FREE char *path = memory_format("/proc/%d/fdinfo/%d", call->made.thread, (int)call->made.arguments[0]);
    char text[256];
    assert_true(file_read_start(path, text, sizeof text) > 0 && sscanf(text, "pos: %lld", &position) == 1);
    return position;
}

/* What a call wrote is what the file holds there: nobody else writes meanwhile. */
static void end_write(const Call *call, DiskChange *change, int64_t written) {
    SCOPED_FREE char *path = call_descriptor_path(&call->made, (int)call->made.arguments[0]);
    int offset = call->made.row->offset, file = open(path, O_RDONLY | O_CLOEXEC);
    change->bytes = written;
    change->offset = offset != NO_ARGUMENT ? (int64_t)call->made.arguments[offset] : descriptor_position(call) - written;
    change->data = memory_allocate((size_t)written + 1);
    assert_true(file >= 0);
    assert_int_equal(pread(file, change->data, (size_t)written, change->offset), written);
    close(file);
}

static void end_resize(const Call *call, DiskChange *change, int descriptor) {
    SCOPED_FREE char *path = call_descriptor_path(&call->made, descriptor);
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    change->kind = DISK_RESIZE;
    change->bytes = status.st_size;
}

static void call_end(Tracer *tracer, int64_t result) {
    Call *call = &tracer->call;
    DiskChange *change = &call->change;
    if (result >= 0) {
        if (call->made.row->kind == CALL_WRITE) end_write(call, change, result);
        if (call->made.row->kind == CALL_RESIZE) end_resize(call, change, (int)call->made.arguments[0]);
        if (call->made.row->kind == CALL_OPEN && call->existed) end_resize(call, change, (int)result);
        else if (call->made.row->kind == CALL_OPEN || call->made.row->kind == CALL_MAKE_FOLDER)
            change->names[0].object = object_make(tracer, call->path);
        disk_log_add(tracer->log, *change);
        change->name_count = 0; /* the log owns them */
    }
    call_drop(call);
}

/* -- Stops --------------------------------------------------------------------------------------------------------- */

static void resume(const Tracer *tracer, pid_t thread, int signal) {
    /* A thread that was killed meanwhile cannot be resumed, and need not. */
    ptrace(thread == tracer->call.made.thread ? PTRACE_SYSCALL : PTRACE_CONT, thread, NULL, (void *)(intptr_t)signal);
}

/* A thread is about to make one of the calls. */
static void thread_calls(Tracer *tracer, pid_t thread) {
    struct __ptrace_syscall_info info = {0};
    if (tracer->call.made.thread) {
        array_append(tracer->held, tracer->held_count, thread);
        return;
    }
    if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info) > 0) {
        Call call = {.made = {.thread = thread, .row = call_row(info.seccomp.nr)}};
        memcpy(call.made.arguments, info.seccomp.args, sizeof call.made.arguments);
        if (call.made.row && call_begin(tracer, &call)) tracer->call = call;
        else call_drop(&call);
    }
    resume(tracer, thread, 0);
}

static void release_held(Tracer *tracer) {
    pid_t *held = tracer->held;
    size_t count = tracer->held_count;
    tracer->held = NULL;
    tracer->held_count = 0;
    for (size_t i = 0; i < count; i++) thread_calls(tracer, held[i]);
    free(held);
}

static void thread_returns(Tracer *tracer, pid_t thread) {
    struct __ptrace_syscall_info info = {0};
    bool known = ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info) > 0 && info.op == PTRACE_SYSCALL_INFO_EXIT;
    if (known && thread == tracer->call.made.thread) call_end(tracer, info.exit.rval);
    resume(tracer, thread, 0);
    release_held(tracer);
}

static void thread_ends(Tracer *tracer, pid_t thread, int status) {
    if (thread == tracer->program) tracer->log->code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (thread != tracer->call.made.thread) return;
    call_drop(&tracer->call);
    release_held(tracer);
}

static void thread_stops(Tracer *tracer, pid_t thread, int status) {
    int event = status >> 16, signal = WSTOPSIG(status);
    if (event == PTRACE_EVENT_SECCOMP) thread_calls(tracer, thread);
    else if (signal == (SIGTRAP | 0x80)) thread_returns(tracer, thread);
    else resume(tracer, thread, event ? 0 : signal);
}

/* -- The program --------------------------------------------------------------------------------------------------- */

/* Starts a child that waits for the tracer and becomes the program; -1 where it cannot be traced. */
static pid_t program_start(char *const *arguments, int output) {
    int gate[2];
    assert_int_equal(pipe2(gate, O_CLOEXEC), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char byte;
        close(gate[1]);
        setenv("OMP_WAIT_POLICY", "passive", 1);
        setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* looking for leaks takes ptrace */
        if (read(gate[0], &byte, 1) == 1 && dup2(output, STDOUT_FILENO) >= 0 && dup2(output, STDERR_FILENO) >= 0 &&
            call_filter(CALLS_THAT_CHANGE, SECCOMP_RET_TRACE, 0) == 0)
            execv(arguments[0], arguments);
        _exit(127);
    }
    long options = PTRACE_O_TRACESECCOMP | PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK |
                   PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
    bool traced = ptrace(PTRACE_SEIZE, child, NULL, (void *)options) == 0;
    if (traced) assert_int_equal(write(gate[1], "g", 1), 1);
    close(gate[0]);
    close(gate[1]);
    if (traced) return child;
    waitpid(child, NULL, 0);
    return -1;
}

DiskLog *disk_log_record(const char *root, char *const *arguments) {
    DiskLog *log = memory_allocate(sizeof *log);
    Tracer tracer = {.log = log, .output = memfd_create("output", MFD_CLOEXEC)};
    int status;
    log->root = memory_copy_string(root);
    describe_folder(&tracer, object_make(&tracer, root), root);
    log->before = log->count;
    tracer.program = program_start(arguments, tracer.output);
    alarm(WAIT_LIMIT); /* ends the tests, and the program with them, should it hang */
    for (pid_t thread; (thread = waitpid(-1, &status, __WALL)) > 0;) {
        if (WIFSTOPPED(status)) thread_stops(&tracer, thread, status);
        else thread_ends(&tracer, thread, status);
    }
    alarm(0);
    log->output = process_text(tracer.output);
    close(tracer.output);
    free(tracer.identities);
    free(tracer.held);
    if (tracer.program > 0) return log;
    disk_log_free(log);
    return NULL;
}
