/* Optimizer state in host memory, streamed through two device buffers (offload_internal.h explains
 * how). Owns the host arena of the state, the buffers, streams and events. Called by optimizer.c. */
#include "optim/offload_internal.h"

#include <assert.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/math.h"
#include "base/memory.h"
#include "optim/quantized_moments_internal.h"

enum { PLACE_ALIGNMENT = 256 }; /* a span's place in the buffer equals its place in the array modulo this */

/* -- Portions ------------------------------------------------------------------------------------------------------ */

static void widen_span(ByteSpan *span, int64_t begin, int64_t bytes) {
    bool empty = span->begin == span->end;
    *span = (ByteSpan){empty ? begin : int_min(span->begin, begin), empty ? begin + bytes : int_max(span->end, begin + bytes)};
}

static void add_chunk(const Optimizer *o, const Segment *segment, const Chunk *chunk, ByteSpan spans[HOSTED_COUNT]) {
    const OptimizerRule *rule = optimizer_rules[segment->optimizer];
    const int64_t width = (int64_t)optim_state_bytes(o, segment), at = chunk->index * width, bytes = chunk->count * width;
    const int64_t scale = (int64_t)sizeof(float);
    if (o->shard.offload.masters) widen_span(&spans[HOSTED_MASTER], at, bytes);
    if (!rule->quantizes_moments) {
        widen_span(&spans[HOSTED_MOMENTUM], at + segment->momentum_shift, bytes);
        if (rule->keeps_variance) widen_span(&spans[HOSTED_VARIANCE], chunk->second_index * width, bytes);
        return;
    }
    for (HostedArray values = HOSTED_MOMENTUM_VALUES; values <= HOSTED_VARIANCE_VALUES; values++)
        widen_span(&spans[values], chunk->second_index, chunk->count);
    for (HostedArray scales = HOSTED_MOMENTUM_SCALES; scales <= HOSTED_VARIANCE_SCALES; scales++)
        widen_span(&spans[scales], chunk->second_index / MOMENT_BLOCK * scale, divide_up(chunk->count, MOMENT_BLOCK) * scale);
}

/* Places the spans in a buffer; returns the bytes that it needs. */
static int64_t place_spans(HostedPortion *portion) {
    int64_t end = 0;
    for (int i = 0; i < HOSTED_COUNT; i++) {
        const ByteSpan *span = &portion->spans[i];
        portion->places[i] = round_up(end, PLACE_ALIGNMENT) + span->begin % PLACE_ALIGNMENT;
        if (span->begin < span->end) end = portion->places[i] + span->end - span->begin;
    }
    return round_up(end, PLACE_ALIGNMENT);
}

static void append_portion(Offload *offload, HostedPortion portion) {
    portion.turn = -1;
    offload->buffer_bytes = int_max(offload->buffer_bytes, place_spans(&portion));
    array_append(offload->portions, offload->portion_count, portion);
}

static HostedPortion empty_portion(const Optimizer *o, int segment) {
    return (HostedPortion){.bucket = o->segments[segment].bucket,
        .first_segment = segment,
        .end_segment = segment + 1,
        .first = o->segments[segment].first,
        .end = o->segments[segment].first};
}

/* Cuts a segment of elements into portions of at most `portion_bytes`, and at least one chunk. */
static void cut_segment(Offload *offload, const Optimizer *o, int index) {
    const Segment *segment = &o->segments[index];
    HostedPortion portion = empty_portion(o, index);
    for (int64_t i = segment->first; i < segment->end; i++) {
        HostedPortion longer = portion;
        add_chunk(o, segment, &o->chunks[i], longer.spans);
        longer.end = i + 1;
        if (portion.first < portion.end && place_spans(&longer) > o->shard.offload.portion_bytes) {
            append_portion(offload, portion);
            portion = empty_portion(o, index);
            portion.first = portion.end = i--;
        } else portion = longer;
    }
    if (portion.first < portion.end) append_portion(offload, portion);
}

/* Appends all of a bucket's matrices of Muon, from segment `first` on, as one portion, because the
 * passes over matrices do not follow the order of their memory. Returns the end of the segments. */
static int join_matrices(Offload *offload, const Optimizer *o, int first) {
    HostedPortion portion = empty_portion(o, first);
    int end = first;
    for (; end < o->segment_count && o->segments[end].bucket == portion.bucket; end++)
        for (int64_t i = o->segments[end].first; i < o->segments[end].end; i++)
            add_chunk(o, &o->segments[end], &o->chunks[i], portion.spans);
    portion.end_segment = end;
    portion.end = o->segments[end - 1].end;
    append_portion(offload, portion);
    return end;
}

Offload *offload_lay_out(const Optimizer *o) {
    const OptimizerOffload *shard = &o->shard.offload;
    if (!shard->portion_bytes) return NULL;
    Offload *offload = memory_allocate(sizeof *offload);
    for (int i = 0; i < o->shard.interval_count && o->shard.intervals[i].offset < shard->resident; i++) {
        const ShardInterval *interval = &o->shard.intervals[i];
        int64_t bytes = interval->elements.count * o->graph->parameters[interval->elements.parameter].element_bytes;
        offload->resident_momentum = int_max(offload->resident_momentum, o->places[i].momentum + bytes);
        if (o->places[i].variance >= 0) offload->resident_variance = o->places[i].variance + bytes;
    }
    for (int i = o->balance_segments; i < o->element_segments; i++)
        if (o->segments[i].hosted) cut_segment(offload, o, i);
    for (int i = o->element_segments; i < o->segment_count;) i = join_matrices(offload, o, i);
    return offload;
}

/* -- Memory -------------------------------------------------------------------------------------------------------- */

/* Counts the bytes of the host arena, and places the arrays in it if it is allocated. */
static void place_arrays(Offload *offload, const Optimizer *o) {
    const int64_t values = o->coded, scales = o->coded / MOMENT_BLOCK * (int64_t)sizeof(float);
    const ByteSpan spans[HOSTED_COUNT] = {[HOSTED_MOMENTUM] = {offload->resident_momentum, o->momentum_bytes},
        [HOSTED_VARIANCE] = {offload->resident_variance, o->variance_bytes},
        [HOSTED_MOMENTUM_VALUES] = {0, values},
        [HOSTED_VARIANCE_VALUES] = {0, values},
        [HOSTED_MOMENTUM_SCALES] = {0, scales},
        [HOSTED_VARIANCE_SCALES] = {0, scales}};
    offload->host_bytes = 0;
    for (int i = HOSTED_MOMENTUM; i < HOSTED_COUNT; i++) {
        if (offload->memory) offload->arrays[i] = offload->memory + offload->host_bytes - spans[i].begin;
        offload->host_bytes += round_up(int_max(spans[i].end - spans[i].begin, 0), PLACE_ALIGNMENT);
    }
}

int64_t offload_host_bytes(Offload *offload, const Optimizer *o) {
    place_arrays(offload, o);
    return offload->host_bytes;
}

static void open_streams(Offload *offload) {
    offload->uploads = device_stream_open(offload->device, true);
    offload->downloads = device_stream_open(offload->device, true);
    for (int i = 0; i < 2; i++) {
        offload->filled[i] = device_event_open(offload->device, false);
        offload->updated[i] = device_event_open(offload->device, false);
        offload->emptied[i] = device_event_open(offload->device, false);
    }
}

bool offload_start(Offload *offload, const Optimizer *o, Error *error) {
    offload->device = o->device;
    place_arrays(offload, o);
    if (!(offload->memory = device_allocate_host(o->device, offload->host_bytes, error)))
        return error_context(error, "optimizer state in host memory (offload)");
    place_arrays(offload, o);
    for (int i = 0; i < 2; i++)
        if (!(offload->buffers[i] = device_allocate(o->device, offload->buffer_bytes, error)))
            return error_context(error, "buffers of offload");
    open_streams(offload);
    return device_ok(o->device, error);
}

void offload_free(Offload *offload) {
    Device *device = offload ? offload->device : NULL;
    for (int i = 0; device && i < 2; i++) {
        if (offload->buffers[i]) device_free(device, offload->buffers[i], offload->buffer_bytes);
        if (offload->filled[i]) device_event_close(device, offload->filled[i]);
        if (offload->updated[i]) device_event_close(device, offload->updated[i]);
        if (offload->emptied[i]) device_event_close(device, offload->emptied[i]);
    }
    if (device) {
        device_stream_close(device, offload->uploads);
        device_stream_close(device, offload->downloads);
        if (offload->memory) device_free_host(device, offload->memory, offload->host_bytes);
    }
    if (offload) free(offload->portions);
    free(offload);
}

/* -- Copies -------------------------------------------------------------------------------------------------------- */

static void *in_buffer(const Offload *offload, const HostedPortion *portion, int slot, HostedArray array) {
    return offload->buffers[slot] + portion->places[array] - portion->spans[array].begin;
}

static void copy_portion(const Offload *offload, const HostedPortion *portion, int slot, bool back) {
    for (int i = 0; i < HOSTED_COUNT; i++) {
        const ByteSpan *span = &portion->spans[i];
        char *buffer = offload->buffers[slot] + portion->places[i], *host = offload->arrays[i] + span->begin;
        if (span->begin == span->end) continue;
        assert(offload->arrays[i]);
        if (back) device_stream_download(offload->device, host, buffer, span->end - span->begin, offload->downloads);
        else device_stream_upload(offload->device, buffer, host, span->end - span->begin, offload->uploads);
    }
}

/* Lets the upload wait until the buffer's previous portion has been copied back. If the other buffer
 * had this portion last, its copy back must have ended too. */
static void await_copies_back(const Offload *offload, const HostedPortion *portion, int slot) {
    if (offload->turn >= 2) device_event_wait(offload->device, offload->emptied[slot], offload->uploads);
    if (portion->turn >= 0 && portion->turn == offload->turn - 1)
        device_event_wait(offload->device, offload->emptied[1 - slot], offload->uploads);
}

Optimizer offload_begin(const Optimizer *o, HostedPortion *portion, void **master) {
    Offload *offload = o->offload;
    Optimizer view = *o;
    int slot = (int)(offload->turn % 2);
    await_copies_back(offload, portion, slot);
    copy_portion(offload, portion, slot, false);
    device_event_record(o->device, offload->filled[slot], offload->uploads);
    device_event_wait(o->device, offload->filled[slot], NULL);
    if (o->shard.offload.masters) *master = in_buffer(offload, portion, slot, HOSTED_MASTER);
    view.momentum = in_buffer(offload, portion, slot, HOSTED_MOMENTUM);
    view.variance = in_buffer(offload, portion, slot, HOSTED_VARIANCE);
    view.quantized = (QuantizedMoments){in_buffer(offload, portion, slot, HOSTED_MOMENTUM_VALUES),
        in_buffer(offload, portion, slot, HOSTED_VARIANCE_VALUES), in_buffer(offload, portion, slot, HOSTED_MOMENTUM_SCALES),
        in_buffer(offload, portion, slot, HOSTED_VARIANCE_SCALES)};
    portion->turn = offload->turn++;
    return view;
}

void offload_finish(const Optimizer *o, HostedPortion *portion) {
    const Offload *offload = o->offload;
    int slot = (int)(portion->turn % 2);
    device_event_record(o->device, offload->updated[slot], NULL);
    device_event_wait(o->device, offload->updated[slot], offload->downloads);
    copy_portion(offload, portion, slot, true);
    device_event_record(o->device, offload->emptied[slot], offload->downloads);
}

void optimizer_settle(const Optimizer *o) {
    const Offload *offload = o->offload;
    for (int i = 0; offload && i < 2 && i < offload->turn; i++) device_event_wait(o->device, offload->emptied[i], NULL);
    if (offload) device_synchronize(o->device);
}
