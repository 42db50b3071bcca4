/* The CPU with two streams beside its own, for tests of copies between device and host memory. A copy, or an event's
 * record, is queued and done only when something waits for it, so that a program without a wait that it needs has wrong
 * bits. */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/cpu/cpu_device.h"
#include "base/memory.h"
#include "support/check.h"

/* `eager`: a stream does what it can at once, as a GPU may. */
typedef struct QueuedWork {
    void *to;
    const void *from; /* NULL: an event */
    int64_t bytes;
    DeviceEvent *records, *awaits;
} QueuedWork;

enum { MOST_QUEUED = 4096 };
struct DeviceStream {
    QueuedWork work[MOST_QUEUED];
    int first, end;
    bool eager;
};
struct DeviceEvent {
    DeviceStream *stream; /* of the latest record; NULL: the main one, or never */
    int records, done;    /* how many were queued, and have happened */
};

static int late_streams; /* the number that was opened; every other one is eager */

static inline void work_off(DeviceStream *stream, const DeviceEvent *until);

static inline void await_late(const DeviceEvent *event, int records) {
    while (event->done < records) work_off(event->stream, event);
}

/* Does the work of a stream up to the next record of an event, or all. */
static inline void work_off(DeviceStream *stream, const DeviceEvent *until) {
    while (stream->first < stream->end) {
        QueuedWork *work = &stream->work[stream->first++];
        if (work->awaits) await_late(work->awaits, (int)work->bytes);
        else if (work->records) work->records->done++;
        else memcpy(work->to, work->from, (size_t)work->bytes);
        if (until && work->records == until) return;
    }
}

static inline void queue_work(DeviceStream *stream, QueuedWork work) {
    if (stream->first == stream->end) stream->first = stream->end = 0;
    assert_true(stream->end < MOST_QUEUED);
    stream->work[stream->end++] = work;
    /* Work stays queued if it waits for late work of the other stream. */
    if (stream->eager && !(work.awaits && work.awaits->done < (int)work.bytes) && stream->end - stream->first == 1) work_off(stream, NULL);
}

static inline void late_copy(Device *device, void *to, const void *from, int64_t bytes, DeviceStream *stream) {
    (void)device;
    queue_work(stream, (QueuedWork){.to = to, .from = from, .bytes = bytes});
}
static inline DeviceStream *late_stream_open(Device *device, bool urgent) {
    (void)device, (void)urgent;
    DeviceStream *stream = memory_allocate(sizeof *stream);
    stream->eager = late_streams++ % 2 == 0;
    return stream;
}
static inline void late_stream_close(Device *device, DeviceStream *stream) {
    (void)device;
    free(stream);
}
static inline DeviceEvent *late_event_open(Device *device, bool timed) {
    (void)device, (void)timed;
    return memory_allocate(sizeof(DeviceEvent));
}
static inline void late_event_close(Device *device, DeviceEvent *event) {
    (void)device;
    free(event);
}
/* The main stream works at once. */
static inline void late_event_record(Device *device, DeviceEvent *event, DeviceStream *stream) {
    (void)device;
    event->stream = stream;
    event->records++;
    if (stream) queue_work(stream, (QueuedWork){.records = event});
    else event->done = event->records;
}
static inline void late_event_wait(Device *device, DeviceEvent *event, DeviceStream *stream) {
    (void)device;
    if (stream) queue_work(stream, (QueuedWork){.awaits = event, .bytes = event->records});
    else await_late(event, event->records);
}

static inline Device *late_device(void) {
    static DeviceMethods methods;
    static Device device;
    device = *device_cpu();
    methods = *device.methods;
    methods.stream_upload = methods.stream_download = late_copy;
    methods.stream_open = late_stream_open, methods.stream_close = late_stream_close;
    methods.event_open = late_event_open, methods.event_close = late_event_close;
    methods.event_record = late_event_record, methods.event_wait = late_event_wait;
    device.methods = &methods;
    late_streams = 0;
    return &device;
}
