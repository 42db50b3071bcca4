/* Checks of the system: processors, NUMA, memory and its limits. Owns nothing. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "advise/doctor.h"
#include "token/tokenizer.h"

/* -- System and processors ----------------------------------------------------------------------------------------- */

/* Finds the value of KEY in lines of "KEY<separator>value", without quotes; "" if KEY is
 * missing. */
static void find_value(const char *text, const char *key, char *value, size_t size) {
    size_t length = strlen(key);
    value[0] = '\0';
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (strncmp(line, key, length)) continue;
        const char *start = line + length + strspn(line + length, " \t:=\"");
        snprintf(value, size, "%.*s", (int)strcspn(start, "\"\n"), start);
        return;
    }
}

static void check_machine(Doctor *doctor) {
    char text[4096];
    char cpu[128] = "", system[128] = "";
    struct utsname names;
    if (doctor_read(doctor, text, sizeof text, "/proc/cpuinfo")) find_value(text, "model name", cpu, sizeof cpu);
    if (doctor_read(doctor, text, sizeof text, "/etc/os-release")) find_value(text, "PRETTY_NAME", system, sizeof system);
    bool named = uname(&names) == 0;
    doctor_ok(doctor, "system", "%s, Linux %s", *system ? system : "unknown distribution", named ? names.release : "unknown");
    doctor_ok(doctor, "cpu", "%ld x %s", sysconf(_SC_NPROCESSORS_ONLN), *cpu ? cpu : "unknown processor");
    tokenizer_unicode(text, sizeof text);
    doctor_ok(doctor, "unicode", "%s; text with newer characters may be split differently than by other tokenizers", text);
}

static void check_affinity(Doctor *doctor) {
    cpu_set_t allowed;
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
    int count = CPU_COUNT(&allowed);
    if (count < online)
        doctor_warn(doctor, "cpu.affinity", "allow more processors: srun --cpus-per-task=N, taskset, or docker run --cpuset-cpus",
            "this process can use %d of %ld processors", count, online);
    else doctor_ok(doctor, "cpu.affinity", "this process can use all %d processors", count);
}

static void check_load(Doctor *doctor) {
    double load = -1;
    char text[128];
    if (doctor_read(doctor, text, sizeof text, "/proc/loadavg")) load = atof(text);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (load < 0) return;
    bool busy = load > 0.5 * (double)online;
    doctor_warn_if(doctor, busy, "cpu.load", "check which other programs run: top", "%.1f of %ld processors were busy in the last minute",
        load, online);
}

static void check_governor(Doctor *doctor) {
    char governor[64];
    bool known = doctor_read(doctor, governor, sizeof governor, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    if (!known) doctor_ok(doctor, "cpu.governor", "unknown: the system does not report it, as is usual in virtual machines");
    else if (!strcmp(governor, "performance")) doctor_ok(doctor, "cpu.governor", "clock governor '%s'", governor);
    else
        doctor_warn(doctor, "cpu.governor", "sudo cpupower frequency-set -g performance",
            "clock governor '%s': kernel launches and data loading slow down when the clock drops", governor);
}

static void check_numa(Doctor *doctor) {
    char nodes[64][DOCTOR_NAME], text[32];
    int count = 0, listed = doctor_list(doctor, nodes, 64, "/sys/devices/system/node");
    for (int i = 0; i < listed; i++) count += !strncmp(nodes[i], "node", 4);
    bool known = doctor_read(doctor, text, sizeof text, "/proc/sys/kernel/numa_balancing"), on = known && strcmp(text, "0");
    if (!known) doctor_ok(doctor, "numa.balancing", "this kernel has none (%d NUMA node%s)", count, count == 1 ? "" : "s");
    else if (on && (count > 1 || doctor->gpu_count > 0))
        doctor_warn(doctor, "numa.balancing", "sudo sysctl kernel.numa_balancing=0",
            "automatic NUMA balancing is on (%s): it unmaps pages that GPUs and network cards use, which stalls them", text);
    else
        doctor_ok(doctor, "numa.balancing", "%s (%d NUMA node%s)", on ? "on, which is harmless with one NUMA node and no GPU" : "off",
            count, count == 1 ? "" : "s");
}

void doctor_check_system(Doctor *doctor) {
    check_machine(doctor);
    check_affinity(doctor);
    check_load(doctor);
    check_governor(doctor);
    check_numa(doctor);
}

/* -- Memory and limits --------------------------------------------------------------------------------------------- */

static int64_t meminfo(const char *text, const char *key) {
    char value[64];
    find_value(text, key, value, sizeof value);
    return *value ? strtoll(value, NULL, 10) * 1024 : -1;
}

static void check_available(Doctor *doctor) {
    char text[4096], have[32], all[32];
    if (!doctor_read(doctor, text, sizeof text, "/proc/meminfo")) {
        doctor_warn(doctor, "memory.available", "mount /proc", "unknown: /proc/meminfo is not readable");
        return;
    }
    int64_t total = meminfo(text, "MemTotal"), available = memory_available_under(doctor->root),
            swap = meminfo(text, "SwapTotal") - meminfo(text, "SwapFree");
    log_format_bytes((double)available, have);
    log_format_bytes((double)total, all);
    bool little = available >= 0 && available < total / 10;
    doctor_warn_if(doctor, little, "memory.available",
        "end other programs, or raise the limit of the container or the job (--memory, --mem)",
        "this process can use %s of %s (cgroup limits included)", available < 0 ? "an unknown part" : have, all);
    if (swap <= total / 100) return;
    log_format_bytes((double)swap, have);
    doctor_warn(doctor, "memory.swap", "sudo swapoff -a && sudo swapon -a, after freeing memory", "%s are swapped out", have);
}

static void check_huge_pages(Doctor *doctor) {
    char text[128];
    if (!doctor_read(doctor, text, sizeof text, "/sys/kernel/mm/transparent_hugepage/enabled"))
        doctor_ok(doctor, "memory.huge_pages", "unknown: this kernel does not report it");
    else if (strstr(text, "[never]"))
        doctor_warn(doctor, "memory.huge_pages", "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
            "transparent huge pages are off: CPU training and staging buffers have more TLB misses");
    else doctor_ok(doctor, "memory.huge_pages", "transparent huge pages: %s", text);
}

static void check_shared(Doctor *doctor) {
    struct statvfs status;
    SCOPED_FREE char *path = doctor_path(doctor, "/dev/shm");
    char room[32];
    if (statvfs(path, &status)) {
        doctor_warn(doctor, "memory.shared", "mount a tmpfs at /dev/shm",
            "/dev/shm is missing: RCCL, NCCL and MPI use it to exchange data within a node");
        return;
    }
    double bytes = (double)status.f_blocks * (double)status.f_frsize;
    bool small = bytes < (double)(1LL << 30);
    log_format_bytes(bytes, room);
    doctor_warn_if(doctor, small, "memory.shared", "docker run --shm-size=16g (or --ipc=host), or sudo mount -o remount,size=16G /dev/shm",
        "/dev/shm has %s%s", room, small ? ": RCCL, NCCL and MPI may fail with a bus error" : "");
}

static void check_limits(Doctor *doctor) {
    struct rlimit locked, files;
    bool cards = doctor_exists(doctor, "/sys/class/infiniband");
    if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0) {
        char text[32];
        log_format_bytes((double)locked.rlim_cur, text);
        bool unlimited = locked.rlim_cur == RLIM_INFINITY, bad = !unlimited && (cards || doctor->gpu_count > 0);
        doctor_warn_if(doctor, bad, "limits.locked_memory",
            "ulimit -l unlimited (limits.conf: '* - memlock unlimited'; docker run --ulimit memlock=-1)", "%s can be locked%s",
            unlimited ? "any amount" : text, bad ? ": registering more memory with network cards fails" : "");
    }
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        bool few = files.rlim_cur < 4096;
        doctor_warn_if(doctor, few, "limits.open_files", "ulimit -n 65536", "%llu files can be open", (unsigned long long)files.rlim_cur);
    }
}

void doctor_check_memory(Doctor *doctor) {
    check_available(doctor);
    check_huge_pages(doctor);
    check_shared(doctor);
    check_limits(doctor);
}
