/* Traces of traced workgroups: for each wavefront the instructions it executed, and what its accesses touched, as
 * whole lines. A trace is the plan's that made its block; it belongs to the one thread that runs the workgroup. */
#include <stdlib.h>
#include <string.h>

#include "timing.h"

bool trace_begin(BlockTrace *block, int waves, const Launch *launch, const Machine *machine) {
    block->wave = calloc((size_t)waves, sizeof *block->wave);
    if (!block->wave) return false;
    block->waves = waves;
    for (int i = 0; i < waves; i++) block->wave[i].launch = launch, block->wave[i].machine = machine;
    return true;
}

WaveTrace *timing_wave(BlockTrace *block, int wave) { return &block->wave[wave]; }

void block_trace_free(BlockTrace *block) {
    for (int i = 0; i < block->waves; i++) {
        free(block->wave[i].run);
        free(block->wave[i].value);
        free(block->wave[i].access);
        free(block->wave[i].line);
    }
    free(block->wave);
    block->wave = NULL;
    block->waves = 0;
}

/* Room for `more` further elements, else false and the trace has failed. */
static bool reserve(WaveTrace *trace, void **array, size_t count, size_t *capacity, size_t more, size_t size) {
    if (count + more <= *capacity) return true;
    size_t larger = 2 * *capacity > 256 ? 2 * *capacity : 256;
    void *memory = realloc(*array, larger * size);
    if (!memory) {
        trace->failed = true;
        return false;
    }
    *array = memory;
    *capacity = larger;
    return true;
}

void trace_instruction(WaveTrace *trace, const Instruction *in, uint32_t slot) {
    trace->executed++;
    if (trace->runs && slot == trace->next_slot) {
        trace->run[trace->runs - 1].count++;
        trace->run[trace->runs - 1].end = slot + in->words;
    } else {
        if (!reserve(trace, (void **)&trace->run, trace->runs, &trace->run_capacity, 1, sizeof *trace->run)) return;
        trace->run[trace->runs++] = (TraceRun){slot, slot + in->words, 1};
    }
    trace->next_slot = slot + in->words;
    if (in->operation && in->operation->flags & OPERATION_MEMORY &&
        reserve(trace, (void **)&trace->value, trace->values, &trace->value_capacity, 1, sizeof *trace->value))
        trace->value[trace->values++] = 0;
}

/* Adds what is not there yet of `list`, whose first `count` elements are searched from the end. */
static unsigned add_distinct(uint64_t *list, unsigned count, uint64_t value) {
    unsigned i = count;
    while (i && list[i - 1] != value) i--;
    if (!i) list[count++] = value;
    return count;
}

/* Arguments and the dispatch packet lie wherever the host had memory; a trace has them at the same places every time. */
static uint64_t traced_address(const Launch *launch, uint64_t address) {
    enum { PACKET = 2048, ARGUMENTS = 4096 };
    uint64_t argument = address - (uint64_t)launch->kernarg, packet = address - (uint64_t)launch->packet;
    if (packet < sizeof launch->packet) return PACKET + packet;
    return argument < launch->kernel->kernarg_bytes ? ARGUMENTS + argument : address;
}

enum { MOST_LINES = 2 * LANES, LANE_CYCLES = 16 };

/* A wave-wide access passes 16 addresses, or a segment of 64 bytes, per cycle. */
void trace_global(WaveTrace *trace, const uint64_t address[LANES], uint64_t exec, unsigned bytes, LocalAccess kind) {
    uint64_t segment[MOST_LINES];
    unsigned segments = 0, lines = 0;
    if (!reserve(trace, (void **)&trace->access, trace->accesses, &trace->access_capacity, 1, sizeof *trace->access) ||
        !reserve(trace, (void **)&trace->line, trace->lines, &trace->line_capacity, MOST_LINES, sizeof *trace->line))
        return;
    uint64_t *line = trace->line + trace->lines;
    for (uint64_t left = exec; left; left &= left - 1) {
        uint64_t from = traced_address(trace->launch, address[__builtin_ctzll(left)]), last = from + bytes - 1;
        segments = add_distinct(segment, segments, from / SEGMENT_BYTES);
        lines = add_distinct(line, lines, from / LINE_BYTES);
        if (last / SEGMENT_BYTES == from / SEGMENT_BYTES) continue;
        segments = add_distinct(segment, segments, last / SEGMENT_BYTES);
        lines = add_distinct(line, lines, last / LINE_BYTES);
    }
    unsigned lanes = (unsigned)__builtin_popcountll(exec), cycles = (lanes + LANE_CYCLES - 1) / LANE_CYCLES;
    trace->access[trace->accesses++] = (Access){
        .first_line = trace->lines, .lines = lines, .cycles = (uint16_t)(segments > cycles ? segments : cycles), .kind = (uint8_t)kind};
    trace->lines += lines;
    if (trace->values) trace->value[trace->values - 1] = (uint32_t)trace->accesses;
}

void trace_scalar(WaveTrace *trace, uint64_t address, unsigned bytes) {
    uint64_t lanes[LANES] = {address};
    trace_global(trace, lanes, 1, bytes, LOCAL_READ);
    if (!trace->failed) trace->access[trace->accesses - 1].scalar = true;
}

/* An instruction with two accesses adds up their cycles. */
void trace_local(WaveTrace *trace, const uint32_t address[LANES], uint64_t exec, unsigned bytes, LocalAccess kind) {
    if (!trace->values) return;
    uint32_t cycles = machine_local_cycles(trace->machine, address, exec, bytes, kind);
    trace->value[trace->values - 1] += cycles;
    trace->local_cycles += local_cycles_of(cycles, BOUND_MODEL);
}
