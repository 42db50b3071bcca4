/* See idle_device.h. One kernel stands for all: it issues the collectives of the real kernel
 * (OpKernel.rehearse), or reports its work. Owns the device. */
#include "backend/idle_device.h"

#include <stdlib.h>

#include "base/memory.h"
#include "graph/op.h"

typedef struct IdleDevice {
    Device device; /* first */
    const OpKernel *const *real;
    OpKernel stand_ins[OP_COUNT]; /* by operation: a stand-in's index is its operation */
    const OpKernel *table[OP_COUNT];
    IdleReports reports;
    void *context;
    int streams, events; /* opened so far */
    uintptr_t next;      /* the next address to allocate */
} IdleDevice;

/* -- Kernels ------------------------------------------------------------------------------------------------------- */

static void run_rehearsal(const OpCall *call) {
    if (!call->node) return;
    const IdleDevice *rehearsal = (const IdleDevice *)call->device;
    const OpKernel *real = rehearsal->real[call->kernel - rehearsal->stand_ins];
    if (real->rehearse) real->rehearse(call);
    else rehearsal->reports.work(rehearsal->context, call->node, 1);
}

/* -- The device ---------------------------------------------------------------------------------------------------- */

static void close_rehearsal(Device *device) { free(device); }
static int64_t unknown_memory(const Device *device) { return (void)device, -1; }

static void *allocate_address(Device *device, int64_t bytes, Error *error) {
    enum { ALIGNMENT = 256 };
    IdleDevice *rehearsal = (IdleDevice *)device;
    uintptr_t address = rehearsal->next;
    (void)error;
    rehearsal->next += ((uintptr_t)bytes / ALIGNMENT + 1) * ALIGNMENT;
    return (void *)address;
}
static void free_address(Device *device, void *memory, int64_t bytes) { (void)device, (void)memory, (void)bytes; }

/* Larger blocks of host memory are addresses only: the host does not read the state of offload, for
 * which this machine may not have the memory. */
static const int64_t MOST_ON_HOST = 64 << 20;

static void *allocate_on_host(Device *device, int64_t bytes, Error *error) {
    return bytes > MOST_ON_HOST ? allocate_address(device, bytes, error) : memory_allocate((size_t)bytes + 1);
}
static void free_on_host(Device *device, void *memory, int64_t bytes) {
    (void)device;
    if (bytes <= MOST_ON_HOST) free(memory);
}

static void fill_nothing(Device *device, void *memory, int byte, int64_t bytes) { (void)device, (void)memory, (void)byte, (void)bytes; }
static void move_nothing(Device *device, void *to, const void *from, int64_t bytes) { (void)device, (void)to, (void)from, (void)bytes; }

/* Handles are numbers from 1 on. */
static int number_of(const void *handle) { return (int)(uintptr_t)handle - 1; }
static DeviceStream *open_numbered_stream(Device *device, bool urgent) {
    (void)urgent;
    return (DeviceStream *)(uintptr_t)++((IdleDevice *)device)->streams;
}
static void close_numbered_stream(Device *device, DeviceStream *stream) { (void)device, (void)stream; }
static DeviceEvent *open_numbered_event(Device *device, bool timed) {
    (void)timed;
    return (DeviceEvent *)(uintptr_t)++((IdleDevice *)device)->events;
}
static void close_numbered_event(Device *device, DeviceEvent *event) { (void)device, (void)event; }

static void report_copy(Device *device, void *to, const void *from, int64_t bytes, DeviceStream *stream) {
    const IdleDevice *rehearsal = (const IdleDevice *)device;
    (void)to, (void)from;
    rehearsal->reports.copy(rehearsal->context, number_of(stream), bytes);
}
static void report_record(Device *device, DeviceEvent *event, DeviceStream *stream) {
    const IdleDevice *rehearsal = (const IdleDevice *)device;
    rehearsal->reports.order(rehearsal->context, true, number_of(event), number_of(stream));
}
static void report_wait(Device *device, DeviceEvent *event, DeviceStream *stream) {
    const IdleDevice *rehearsal = (const IdleDevice *)device;
    rehearsal->reports.order(rehearsal->context, false, number_of(event), number_of(stream));
}
static void cast_nothing(Device *device, uint16_t *to, const float *from, int64_t count) {
    (void)device, (void)to, (void)from, (void)count;
}
static void cast_nothing_back(Device *device, float *to, const uint16_t *from, int64_t count) {
    (void)device, (void)to, (void)from, (void)count;
}

static void name_work(Device *device, int node, double part) {
    const IdleDevice *rehearsal = (const IdleDevice *)device;
    if (node) rehearsal->reports.work(rehearsal->context, node, part);
}

static const DeviceMethods methods = {.close = close_rehearsal,
    .available = unknown_memory,
    .allocate = allocate_address,
    .free = free_address,
    .allocate_host = allocate_on_host,
    .free_host = free_on_host,
    .fill = fill_nothing,
    .upload = move_nothing,
    .download = move_nothing,
    .copy = move_nothing,
    .stream_open = open_numbered_stream,
    .stream_close = close_numbered_stream,
    .stream_upload = report_copy,
    .stream_download = report_copy,
    .event_open = open_numbered_event,
    .event_close = close_numbered_event,
    .event_record = report_record,
    .event_wait = report_wait,
    .cast_to_bf16 = cast_nothing,
    .cast_to_float = cast_nothing_back,
    .rehearse = name_work};

Backend idle_device_open(const Backend *real, const IdleReports *reports, void *context) {
    const uintptr_t first = (uintptr_t)1 << 40; /* an address that no process has */
    IdleDevice *rehearsal = memory_allocate(sizeof *rehearsal);
    *rehearsal = (IdleDevice){.device = {.info = *device_info(real->device), .methods = &methods},
        .real = real->kernels,
        .reports = *reports,
        .context = context,
        .next = first};
    rehearsal->device.info.rehearses = true;
    rehearsal->device.info.records = false;
    for (int op = 0; op < OP_COUNT; op++) {
        rehearsal->stand_ins[op] = (OpKernel){.run = run_rehearsal};
        rehearsal->table[op] = real->kernels[op] ? &rehearsal->stand_ins[op] : NULL;
    }
    return (Backend){&rehearsal->device, rehearsal->table};
}
