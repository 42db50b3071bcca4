/* The system calls that have to do with files: which arguments are a path or a descriptor, and what these name in the
 * process that makes the call. The kernel stops a filtered program before each of them, for a tracer (disk_trace.c) or a
 * supervisor (tests/reliability/fault_calls.c). A program's own wrappers would not do: libc opens, reads and removes
 * files inside its own functions. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

typedef enum CallKind {
    /* These may change a disk. */
    CALL_OPEN, /* without O_CREAT or O_TRUNC it changes nothing */
    CALL_WRITE,
    CALL_RESIZE,
    CALL_RENAME,
    CALL_LINK,
    CALL_REMOVE,
    CALL_MAKE_FOLDER,
    CALL_SYNC,
    CALL_SYNC_ALL,
    CALLS_THAT_CHANGE,
    /* These do not. */
    CALL_READ = CALLS_THAT_CHANGE,
    CALL_LIST,
    CALL_STATUS,
    CALL_LOCK,
    CALL_CLOSE,
    CALL_MAP,
    CALL_SPACE,
    CALL_KINDS
} CallKind;

/* Which argument is what; NO_ARGUMENT: there is none. A path without a folder's descriptor is relative to the working
 * folder. Calls without a path have a descriptor. */
enum { NO_ARGUMENT = -1 };
typedef struct CallRow {
    int number;
    CallKind kind;
    int descriptor, folder, path, to_folder, to_path, flags;
    int offset; /* NO_ARGUMENT: reads or writes where the descriptor stands */
} CallRow;

/* A call that a thread is about to make. */
typedef struct SystemCall {
    pid_t thread;
    const CallRow *row;
    uint64_t arguments[6];
} SystemCall;

/* NULL: none of them. */
const CallRow *call_row(uint64_t number);
/* The path that an argument names, as this process can open it; of an empty one, the folder's descriptor. The caller
 * frees. */
char *call_path(const SystemCall *call, int folder, int path);
char *call_descriptor_path(const SystemCall *call, int descriptor);

/* Makes the kernel stop this process, and what it starts, before each call of the first `kinds` kinds. `action` and
 * `flags` are seccomp's: SECCOMP_RET_TRACE or SECCOMP_RET_USER_NOTIF. Returns what seccomp(2) does: a listener's
 * descriptor or 0; -1 where it is not permitted. */
int call_filter(CallKind kinds, uint32_t action, unsigned flags);
