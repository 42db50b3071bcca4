/* Reads /proc for processors, memory, disks and networks; sensors_gpu.c reads GPUs. Owns the counters of the previous
 * reading. */
#include "launch/sensors_internal.h"

#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"

enum { PROC_BYTES = 1 << 16, SECTOR_BYTES = 512, INFINIBAND_BYTES = 4 /* unit of its counters */ };

/* Counters that only grow. NaN: unknown. */
typedef struct MachineCounters {
    double busy, all; /* ticks of all processors */
    double read_bytes, written_bytes, received_bytes, sent_bytes;
} MachineCounters;

struct Sensors {
    char *root;
    GpuSensors *gpus;
    MachineCounters counters;
    double time; /* log_seconds() of the previous reading */
};

/* Returns a file of /proc; the caller frees. Empty if it cannot be read. */
static char *read_proc(const Sensors *sensors, const char *name) {
    SCOPED_FREE char *path = memory_format("%s%s", sensors->root, name);
    char *text = memory_allocate(PROC_BYTES);
    if (file_read_start(path, text, PROC_BYTES) < 0) *text = 0;
    return text;
}

/* The first line has the ticks user, nice, system, idle, iowait, irq, softirq, steal. */
static void count_ticks(const Sensors *sensors, MachineCounters *counters) {
    enum { FIELDS = 8, IDLE = 3, WAITING = 4 };
    SCOPED_FREE char *text = read_proc(sensors, "/proc/stat");
    if (!starts_with(text, "cpu ")) return;
    char *at = text + strlen("cpu ");
    counters->busy = counters->all = 0;
    for (int i = 0; i < FIELDS; i++) {
        double ticks = strtod(at, &at);
        counters->all += ticks;
        if (i != IDLE && i != WAITING) counters->busy += ticks;
    }
}

static double memory_in_use(const Sensors *sensors) {
    SCOPED_FREE char *text = read_proc(sensors, "/proc/meminfo");
    const char *total = strstr(text, "MemTotal:"), *available = strstr(text, "MemAvailable:");
    if (!total || !available) return NAN;
    return 1024 * (strtod(strchr(total, ':') + 1, NULL) - strtod(strchr(available, ':') + 1, NULL));
}

/* Counts whole disks only: partitions, and devices that consist of other devices, would count twice. */
static bool is_disk(const Sensors *sensors, const char *name) {
    static const char *const made[] = {"loop", "ram", "zram", "dm-", "md", "sr", "fd"};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        if (starts_with(name, made[i])) return false;
    SCOPED_FREE char *path = memory_format("%s/sys/block/%s", sensors->root, name);
    return file_exists(path);
}

static void count_disks(const Sensors *sensors, MachineCounters *counters) {
    SCOPED_FREE char *text = read_proc(sensors, "/proc/diskstats");
    if (*text) counters->read_bytes = counters->written_bytes = 0;
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));) {
        char name[64];
        unsigned long long read, written;
        if (sscanf(line, "%*d %*d %63s %*u %*u %llu %*u %*u %*u %llu", name, &read, &written) != 3 || !is_disk(sensors, name)) continue;
        counters->read_bytes += (double)SECTOR_BYTES * (double)read;
        counters->written_bytes += (double)SECTOR_BYTES * (double)written;
    }
}

/* Returns the sum of the numbers in all files that match. */
static double sum_of_files(const Sensors *sensors, const char *pattern) {
    SCOPED_FREE char *whole = memory_format("%s%s", sensors->root, pattern);
    glob_t found = {0};
    double sum = 0;
    char text[64];
    glob(whole, 0, NULL, &found); /* without a match the list is empty */
    for (size_t i = 0; i < found.gl_pathc; i++)
        if (file_read_start(found.gl_pathv[i], text, sizeof text) > 0) sum += strtod(text, NULL);
    globfree(&found);
    return sum;
}

/* /proc/net/dev does not count InfiniBand and RoCE traffic that bypasses the kernel. */
static void count_networks(const Sensors *sensors, MachineCounters *counters) {
    SCOPED_FREE char *text = read_proc(sensors, "/proc/net/dev");
    if (*text) counters->received_bytes = counters->sent_bytes = 0;
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));) {
        char name[64];
        unsigned long long received, sent;
        if (sscanf(line, " %63[^:]: %llu %*u %*u %*u %*u %*u %*u %*u %llu", name, &received, &sent) != 3 || !strcmp(name, "lo")) continue;
        counters->received_bytes += (double)received;
        counters->sent_bytes += (double)sent;
    }
    counters->received_bytes += INFINIBAND_BYTES * sum_of_files(sensors, "/sys/class/infiniband/*/ports/*/counters/port_rcv_data");
    counters->sent_bytes += INFINIBAND_BYTES * sum_of_files(sensors, "/sys/class/infiniband/*/ports/*/counters/port_xmit_data");
}

static MachineCounters count_all(const Sensors *sensors) {
    MachineCounters counters = {NAN, NAN, NAN, NAN, NAN, NAN};
    count_ticks(sensors, &counters);
    count_disks(sensors, &counters);
    count_networks(sensors, &counters);
    return counters;
}

/* If a counter was reset, its rate is unknown for one reading. */
static double rate(double now, double before, double seconds) { return now >= before && seconds > 0 ? (now - before) / seconds : NAN; }

Sensors *sensors_open(const char *root) {
    Sensors *sensors = memory_allocate(sizeof *sensors);
    *sensors = (Sensors){.root = memory_copy_string(root), .gpus = gpu_sensors_open(root), .time = log_seconds()};
    sensors->counters = count_all(sensors);
    return sensors;
}

void sensors_read(Sensors *sensors, SensorReading *reading) {
    const MachineCounters before = sensors->counters, now = count_all(sensors);
    const double time = log_seconds(), seconds = time - sensors->time;
    *reading = (SensorReading){.cpu_percent = 100 * rate(now.busy, before.busy, now.all - before.all),
        .memory_bytes = memory_in_use(sensors),
        .read_bytes = rate(now.read_bytes, before.read_bytes, seconds),
        .written_bytes = rate(now.written_bytes, before.written_bytes, seconds),
        .received_bytes = rate(now.received_bytes, before.received_bytes, seconds),
        .sent_bytes = rate(now.sent_bytes, before.sent_bytes, seconds),
        .joules = NAN};
    gpu_sensors_read(sensors->gpus, seconds, reading);
    sensors->counters = now;
    sensors->time = time;
}

void sensors_close(Sensors *sensors) {
    if (!sensors) return;
    gpu_sensors_close(sensors->gpus);
    free(sensors->root);
    free(sensors);
}
