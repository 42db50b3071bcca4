/* Limits a process by resource limits and a filter of system calls (seccomp), which need no privilege
 * and which it cannot remove. The filter refuses calls that reach other processes, the network or
 * files for writing, and calls that are newer than its table. Owns nothing. */
#include "rl/reward_sandbox_internal.h"

#include <asm/ioctls.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define NATIVE_ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define NATIVE_ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

#ifdef NATIVE_ARCHITECTURE

/* The last call of Linux 6.1 by number, which is the same on all architectures. */
enum { LAST_CALL = 450, FILTER_WORDS = 1024 };

static const uint16_t refused[] = {
    /* processes */
    SYS_kill,
    SYS_tkill,
    SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo,
    SYS_pidfd_send_signal,
    SYS_pidfd_open,
    SYS_pidfd_getfd,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_process_madvise,
    SYS_process_mrelease,
    SYS_kcmp,
    SYS_setpgid,
    SYS_setsid,
    SYS_unshare,
    SYS_setns,
    SYS_setpriority,
    SYS_ioprio_set,
    SYS_sched_setscheduler,
    SYS_sched_setparam,
    SYS_sched_setattr,
    SYS_sched_setaffinity,
    SYS_setrlimit,
    SYS_migrate_pages,
    SYS_move_pages,
    SYS_personality,
    SYS_execveat,
    /* network and other ways to talk to processes */
    SYS_socket,
    SYS_connect,
    SYS_bind,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    SYS_sendmsg,
    SYS_sendmmsg,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_shmget,
    SYS_shmat,
    SYS_shmctl,
    SYS_shmdt,
    SYS_msgget,
    SYS_msgsnd,
    SYS_msgrcv,
    SYS_msgctl,
    SYS_semget,
    SYS_semop,
    SYS_semctl,
    SYS_semtimedop,
    SYS_mq_open,
    SYS_mq_unlink,
    SYS_add_key,
    SYS_request_key,
    SYS_keyctl,
    /* files */
    SYS_truncate,
    SYS_ftruncate,
    SYS_fallocate,
    SYS_renameat,
    SYS_renameat2,
    SYS_linkat,
    SYS_symlinkat,
    SYS_unlinkat,
    SYS_mkdirat,
    SYS_mknodat,
    SYS_fchmod,
    SYS_fchmodat,
    SYS_fchown,
    SYS_fchownat,
    SYS_utimensat,
    SYS_setxattr,
    SYS_lsetxattr,
    SYS_fsetxattr,
    SYS_removexattr,
    SYS_lremovexattr,
    SYS_fremovexattr,
    SYS_flock,
    SYS_memfd_create,
    SYS_memfd_secret,
    SYS_fanotify_init,
    SYS_fanotify_mark,
    SYS_open_by_handle_at,
    SYS_mount,
    SYS_umount2,
    SYS_move_mount,
    SYS_open_tree,
    SYS_fsopen,
    SYS_fsmount,
    SYS_fspick,
    SYS_fsconfig,
    SYS_mount_setattr,
    SYS_pivot_root,
    SYS_chroot,
    SYS_swapon,
    SYS_swapoff,
    SYS_quotactl,
    SYS_quotactl_fd,
    SYS_sync,
    SYS_syncfs,
    SYS_acct,
    /* the machine */
    SYS_reboot,
    SYS_kexec_load,
    SYS_kexec_file_load,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_syslog,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_clock_adjtime,
    SYS_adjtimex,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_vhangup,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_nfsservctl,
    SYS_lookup_dcookie,
    SYS_mlock,
    SYS_mlock2,
    SYS_mlockall,
#ifdef __x86_64__
    SYS_fork,
    SYS_vfork,
    SYS_creat,
    SYS_rename,
    SYS_link,
    SYS_symlink,
    SYS_unlink,
    SYS_mkdir,
    SYS_rmdir,
    SYS_mknod,
    SYS_chmod,
    SYS_chown,
    SYS_lchown,
    SYS_utime,
    SYS_utimes,
    SYS_futimesat,
    SYS_iopl,
    SYS_ioperm,
    SYS_modify_ldt,
    SYS_uselib,
    SYS__sysctl,
    SYS_create_module,
    SYS_get_kernel_syms,
    SYS_query_module,
#endif
};

/* Newer forms of calls, whose arguments are in memory, where a filter cannot see them. The C library
 * uses the older forms if these do not exist. */
static const uint16_t absent[] = {SYS_clone3, SYS_openat2};

/* A filter under construction. Each rule begins with the number of the call in the accumulator and ends
 * likewise. */
typedef struct SandboxFilter {
    struct sock_filter code[FILTER_WORDS];
    unsigned short count;
} SandboxFilter;

static void add_filter(SandboxFilter *filter, int code, uint32_t value, int on_true, int on_false) {
    assert(filter->count < FILTER_WORDS && on_true < 256 && on_false < 256);
    filter->code[filter->count++] = (struct sock_filter){(uint16_t)code, (uint8_t)on_true, (uint8_t)on_false, value};
}

static void load_filter_word(SandboxFilter *filter, size_t offset) { add_filter(filter, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0); }
static void load_call(SandboxFilter *filter) { load_filter_word(filter, offsetof(struct seccomp_data, nr)); }
static void refuse_with(SandboxFilter *filter, int code) { add_filter(filter, BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)code, 0, 0); }

static void refuse_call(SandboxFilter *filter, int call, int code) {
    add_filter(filter, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1);
    refuse_with(filter, code);
}

/* Compares the bits of `mask` in half an argument of a call: `half` 0 of argument 0 is its lower half. */
typedef struct SandboxRule {
    int call, half;
    uint32_t mask, value;
    bool equal; /* refuses the call if they equal the value; otherwise refuses it if they do not */
} SandboxRule;

static void load_half(SandboxFilter *filter, int half) { /* of little-endian numbers */
    load_filter_word(filter, offsetof(struct seccomp_data, args) + (size_t)half * sizeof(uint32_t));
}

static void refuse_argument(SandboxFilter *filter, SandboxRule rule) {
    add_filter(filter, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)rule.call, 0, 5);
    load_half(filter, rule.half);
    add_filter(filter, BPF_ALU | BPF_AND | BPF_K, rule.mask, 0, 0);
    add_filter(filter, BPF_JMP | BPF_JEQ | BPF_K, rule.value, rule.equal ? 0 : 1, rule.equal ? 1 : 0);
    refuse_with(filter, EPERM);
    load_call(filter);
}

/* The second argument of the call must be one of the values. */
static void allow_only(SandboxFilter *filter, int call, const uint32_t *values, int count) {
    add_filter(filter, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, count + 3);
    load_half(filter, 2);
    for (int i = 0; i < count; i++) add_filter(filter, BPF_JMP | BPF_JEQ | BPF_K, values[i], count - i, 0);
    refuse_with(filter, EPERM);
    load_call(filter);
}

static void build_filter(SandboxFilter *filter) {
    static const uint32_t controls[] = {TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX, FIONCLEX};
    static const uint32_t file_controls[] = {F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL, F_SETFL};
    const uint32_t writes = O_WRONLY | O_RDWR | O_CREAT | O_TRUNC, own = (uint32_t)getpid();
    load_filter_word(filter, offsetof(struct seccomp_data, arch));
    add_filter(filter, BPF_JMP | BPF_JEQ | BPF_K, NATIVE_ARCHITECTURE, 1, 0);
    add_filter(filter, BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS, 0, 0);
    load_call(filter);
    add_filter(filter, BPF_JMP | BPF_JGT | BPF_K, LAST_CALL, 0, 1);
    refuse_with(filter, ENOSYS);
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) refuse_call(filter, absent[i], ENOSYS);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) refuse_call(filter, refused[i], EPERM);
    const SandboxRule rules[] = {
        {SYS_clone, 0, CLONE_THREAD, CLONE_THREAD, false}, /* threads only */
        {SYS_tgkill, 0, UINT32_MAX, own, false},           /* abort() and pthread_kill() */
        {SYS_prlimit64, 4, UINT32_MAX, 0, false},          /* a pointer to new limits */
        {SYS_prlimit64, 5, UINT32_MAX, 0, false},
        {SYS_sendto, 8, UINT32_MAX, 0, false}, /* a pointer to an address */
        {SYS_sendto, 9, UINT32_MAX, 0, false},
        {SYS_prctl, 0, UINT32_MAX, PR_SET_PDEATHSIG, true},
        {SYS_openat, 4, writes, 0, false},
#ifdef __x86_64__
        {SYS_open, 2, writes, 0, false},
#endif
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) refuse_argument(filter, rules[i]);
    allow_only(filter, SYS_ioctl, controls, sizeof controls / sizeof *controls);
    allow_only(filter, SYS_fcntl, file_controls, sizeof file_controls / sizeof *file_controls);
    add_filter(filter, BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
}

static bool limit_resource(int resource, int64_t most) {
    struct rlimit limit = {(rlim_t)most, (rlim_t)most}, now;
    if (getrlimit(resource, &now) != 0) return false;
    if (now.rlim_max != RLIM_INFINITY && now.rlim_max < limit.rlim_max) limit = (struct rlimit){now.rlim_max, now.rlim_max};
    return setrlimit(resource, &limit) == 0;
}

const char *sandbox_enter(void *context) {
    enum { FILES = 256 };
    const SandboxLimits *limits = context;
    SandboxFilter filter = {0};
    build_filter(&filter);
    const struct sock_fprog program = {filter.count, filter.code};
    if (!limit_resource(RLIMIT_CPU, limits->cpu_seconds) || !limit_resource(RLIMIT_AS, limits->memory_bytes) ||
        !limit_resource(RLIMIT_FSIZE, limits->file_bytes) || !limit_resource(RLIMIT_CORE, 0) || !limit_resource(RLIMIT_NOFILE, FILES))
        return "the system refuses resource limits";
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) != 0)
        return "the system refuses a filter of system calls (seccomp)";
    return NULL;
}

#else

const char *sandbox_enter(void *context) {
    (void)context;
    return "there is no filter of system calls for this processor";
}

#endif
