/* The table of system calls, and the arguments of a stopped thread, which are read from its memory. */
#include "support/system_calls.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/memory.h"

enum { NONE = NO_ARGUMENT };
#define AT_PATH(folder, path) NONE, folder, path, NONE, NONE
#define AT_PATHS(folder, path, to_folder, to_path) NONE, folder, path, to_folder, to_path
#define DESCRIPTOR(argument) argument, NONE, NONE, NONE, NONE
static const CallRow rows[] = {
    {SYS_openat, CALL_OPEN, AT_PATH(0, 1), 2, NONE},
    {SYS_write, CALL_WRITE, DESCRIPTOR(0), NONE, NONE},
    {SYS_writev, CALL_WRITE, DESCRIPTOR(0), NONE, NONE},
    {SYS_pwrite64, CALL_WRITE, DESCRIPTOR(0), NONE, 3},
    {SYS_ftruncate, CALL_RESIZE, DESCRIPTOR(0), NONE, NONE},
    {SYS_fallocate, CALL_RESIZE, DESCRIPTOR(0), NONE, NONE},
    {SYS_renameat2, CALL_RENAME, AT_PATHS(0, 1, 2, 3), 4, NONE},
    {SYS_linkat, CALL_LINK, AT_PATHS(0, 1, 2, 3), NONE, NONE},
    {SYS_unlinkat, CALL_REMOVE, AT_PATH(0, 1), NONE, NONE},
    {SYS_mkdirat, CALL_MAKE_FOLDER, AT_PATH(0, 1), NONE, NONE},
    {SYS_fsync, CALL_SYNC, DESCRIPTOR(0), NONE, NONE},
    {SYS_fdatasync, CALL_SYNC, DESCRIPTOR(0), NONE, NONE},
    {SYS_sync, CALL_SYNC_ALL, DESCRIPTOR(NONE), NONE, NONE},
    {SYS_syncfs, CALL_SYNC_ALL, DESCRIPTOR(0), NONE, NONE},
    {SYS_read, CALL_READ, DESCRIPTOR(0), NONE, NONE},
    {SYS_readv, CALL_READ, DESCRIPTOR(0), NONE, NONE},
    {SYS_pread64, CALL_READ, DESCRIPTOR(0), NONE, 3},
    {SYS_getdents64, CALL_LIST, DESCRIPTOR(0), NONE, NONE},
    {SYS_newfstatat, CALL_STATUS, AT_PATH(0, 1), NONE, NONE},
    {SYS_fstat, CALL_STATUS, DESCRIPTOR(0), NONE, NONE},
    {SYS_statx, CALL_STATUS, AT_PATH(0, 1), NONE, NONE},
    {SYS_faccessat, CALL_STATUS, AT_PATH(0, 1), NONE, NONE},
    {SYS_faccessat2, CALL_STATUS, AT_PATH(0, 1), NONE, NONE},
    {SYS_readlinkat, CALL_STATUS, AT_PATH(0, 1), NONE, NONE},
    {SYS_flock, CALL_LOCK, DESCRIPTOR(0), NONE, NONE},
    {SYS_close, CALL_CLOSE, DESCRIPTOR(0), NONE, NONE},
    {SYS_mmap, CALL_MAP, DESCRIPTOR(4), NONE, NONE},
    {SYS_statfs, CALL_SPACE, AT_PATH(NONE, 0), NONE, NONE},
    {SYS_fstatfs, CALL_SPACE, DESCRIPTOR(0), NONE, NONE},
#ifdef SYS_renameat
    {SYS_renameat, CALL_RENAME, AT_PATHS(0, 1, 2, 3), NONE, NONE},
#endif
#ifdef SYS_open /* newer processors do not have these */
    {SYS_open, CALL_OPEN, AT_PATH(NONE, 0), 1, NONE},
    {SYS_rename, CALL_RENAME, AT_PATHS(NONE, 0, NONE, 1), NONE, NONE},
    {SYS_link, CALL_LINK, AT_PATHS(NONE, 0, NONE, 1), NONE, NONE},
    {SYS_unlink, CALL_REMOVE, AT_PATH(NONE, 0), NONE, NONE},
    {SYS_rmdir, CALL_REMOVE, AT_PATH(NONE, 0), NONE, NONE},
    {SYS_mkdir, CALL_MAKE_FOLDER, AT_PATH(NONE, 0), NONE, NONE},
    {SYS_stat, CALL_STATUS, AT_PATH(NONE, 0), NONE, NONE},
    {SYS_lstat, CALL_STATUS, AT_PATH(NONE, 0), NONE, NONE},
    {SYS_access, CALL_STATUS, AT_PATH(NONE, 0), NONE, NONE},
    {SYS_readlink, CALL_STATUS, AT_PATH(NONE, 0), NONE, NONE},
#endif
};
enum { ROWS = sizeof rows / sizeof *rows };

const CallRow *call_row(uint64_t number) {
    for (int i = 0; i < ROWS; i++)
        if ((uint64_t)rows[i].number == number) return &rows[i];
    return NULL;
}

/* A string in the memory of a thread, up to the end of what can be read. */
static void read_string(pid_t thread, uint64_t address, char *text, size_t size) {
    char memory[64];
    snprintf(memory, sizeof memory, "/proc/%d/mem", thread);
    int file = open(memory, O_RDONLY | O_CLOEXEC);
    ssize_t got = file >= 0 ? pread(file, text, size - 1, (off_t)address) : -1;
    text[got > 0 ? got : 0] = '\0';
    if (file >= 0) close(file);
}

char *call_descriptor_path(const SystemCall *call, int descriptor) { return memory_format("/proc/%d/fd/%d", call->thread, descriptor); }

char *call_path(const SystemCall *call, int folder, int path) {
    char text[PATH_MAX];
    read_string(call->thread, call->arguments[path], text, sizeof text);
    size_t length = strlen(text);
    while (length > 1 && text[length - 1] == '/') text[--length] = '\0';
    if (text[0] == '/') return memory_copy_string(text);
    int descriptor = folder == NONE ? AT_FDCWD : (int)call->arguments[folder];
    if (descriptor == AT_FDCWD) return memory_format("/proc/%d/cwd/%s", call->thread, text);
    return memory_format("/proc/%d/fd/%d%s%s", call->thread, descriptor, *text ? "/" : "", text);
}

int call_filter(CallKind kinds, uint32_t action, unsigned flags) {
    struct sock_filter code[2 * ROWS + 2];
    unsigned short count = 0;
    code[count++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < ROWS; i++) {
        if (rows[i].kind >= kinds) continue;
        code[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)rows[i].number, 0, 1);
        code[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action);
    }
    code[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = count, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}
