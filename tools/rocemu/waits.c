/* Missing waits: what a load returns is there only after an s_waitcnt that covers it, so an instruction that uses such a
 * register before is wrong, even if here, where loads are done at once, it gets the right value. So is a barrier before a wait
 * that covers the wave's own reads and writes of LDS. Vector memory and LDS return in order, so a wait for all but the last n covers what
 * is older; scalar loads do not, and only a wait for all covers them. Loads to LDS are not followed. */
#include <stdlib.h>
#include <string.h>

#include "emulator.h"
#include "hip.h"

enum { WAIT_VECTOR_MEMORY, WAIT_LDS, WAIT_SCALAR };

static bool starts(const char *name, const char *prefix) { return !strncmp(name, prefix, strlen(prefix)); }

uint8_t wait_limit(const char *text, const char *counter) {
    const char *at = strstr(text, counter);
    return at ? (uint8_t)atoi(at + strlen(counter)) : NO_WAIT;
}

/* Operands before the colon of the format are results; atomics that return have theirs first as well. */
int instruction_results(const Instruction *in) {
    const char *format = in->operation->format, *colon = strchr(format, ':');
    if (in->to_lds) return 0;
    int results = colon ? (int)(colon - format) : 0;
    return !results && in->returns && strstr(in->operation->name, "_atomic_") ? 1 : results;
}

WaitKind wait_kind(const Instruction *in) {
    const char *name = in->operation->name;
    if (starts(name, "s_waitcnt")) return WAIT_FOR;
    if (!strcmp(name, "s_barrier")) return WAIT_AT_BARRIER;
    if (!strcmp(name, "s_endpgm")) return WAIT_AT_END;
    if (starts(name, "s_load_") || starts(name, "s_buffer_load_") || starts(name, "s_mem")) return WAIT_SCALAR_LOAD;
    if (!strcmp(in->operation->format, ":")) return WAIT_NONE;
    if (starts(name, "ds_")) return in->operation->flags & OPERATION_MEMORY ? WAIT_LDS_ACCESS : WAIT_LANE_EXCHANGE;
    return starts(name, "global_") || starts(name, "buffer_") || starts(name, "flat_") || starts(name, "scratch_") ? WAIT_MEMORY_ACCESS
                                                                                                                   : WAIT_NONE;
}

/* s_waitcnt: vmcnt counts vector memory; lgkmcnt LDS and scalar loads together, in no order once there are scalar ones. */
static void wait_for(Outstanding *o, const Instruction *in) {
    if (in->vmcnt != NO_WAIT && o->issued[WAIT_VECTOR_MEMORY] > o->done[WAIT_VECTOR_MEMORY] + in->vmcnt)
        o->done[WAIT_VECTOR_MEMORY] = o->issued[WAIT_VECTOR_MEMORY] - in->vmcnt;
    if (in->lgkmcnt == NO_WAIT) return;
    bool scalars = o->issued[WAIT_SCALAR] > o->done[WAIT_SCALAR];
    if (!in->lgkmcnt) o->done[WAIT_SCALAR] = o->issued[WAIT_SCALAR];
    if ((!scalars || !in->lgkmcnt) && o->issued[WAIT_LDS] > o->done[WAIT_LDS] + in->lgkmcnt)
        o->done[WAIT_LDS] = o->issued[WAIT_LDS] - in->lgkmcnt;
}

void waits_begin(Outstanding *o) {
    memset(o->issued, 0, sizeof o->issued);
    memset(o->done, 0, sizeof o->done);
    memset(o->loads, 0, sizeof o->loads);
    o->lds_access = 0;
    o->open = false;
}

static int first_register(const Operand *operand) {
    return operand->kind == OPERAND_VECTOR ? operand->index : VECTOR_REGISTERS + operand->index;
}
static bool is_register(const Operand *operand) { return operand->kind == OPERAND_VECTOR || operand->kind == OPERAND_SCALAR; }

static bool report(Wave *wave, const Instruction *in, int r, const Due *due) {
    static const char *const waits[] = {"vmcnt", "lgkmcnt", "lgkmcnt(0)"};
    const Instruction *load = &wave->program[due->slot];
    bool vector = r < VECTOR_REGISTERS, accumulator = vector && r >= FIRST_ACCUMULATOR;
    check_report(wave, in, -1, HIP_ERROR_LAUNCH_FAILURE,
        "a missing wait: register %c%d is used before an s_waitcnt %s covers 0x%x `%.100s`",
        !vector       ? 's'
        : accumulator ? 'a'
                      : 'v',
        !vector       ? r - VECTOR_REGISTERS
        : accumulator ? r - FIRST_ACCUMULATOR
                      : r,
        waits[due->counter], load->address, load->text);
    return false;
}

/* Loads that return in order may write a register after one another without a wait, such as the halves of one. */
static bool may_use(Wave *wave, const Instruction *in, const Operand *operand, bool result, int counter) {
    Outstanding *o = &wave->outstanding;
    for (int r = first_register(operand), end = r + operand->registers; r < end && r < REGISTERS; r++) {
        const Due *due = &o->due[r];
        if (!(o->loads[r / 64] >> r % 64 & 1)) continue;
        if (due->number <= o->done[due->counter]) o->loads[r / 64] &= ~(1ull << r % 64);
        else if (!result || due->counter != counter || counter == WAIT_SCALAR) return report(wave, in, r, due);
    }
    return true;
}

static bool any_open(const Outstanding *o) {
    bool open = false;
    for (int c = 0; c < WAIT_COUNTERS; c++) open |= o->issued[c] > o->done[c];
    return open;
}

void waits_note_uses(Instruction *in) {
    for (int i = 0; i < in->operands; i++)
        for (int r = first_register(&in->operand[i]), end = r + in->operand[i].registers;
            is_register(&in->operand[i]) && r < end && r < REGISTERS; r++)
            in->uses[r / 64] |= 1ull << r % 64;
}

/* After a barrier, other waves read what this one wrote, and overwrite what it read. */
static bool may_pass_barrier(Wave *wave, const Instruction *in) {
    const Outstanding *o = &wave->outstanding;
    if (o->lds_access <= o->done[WAIT_LDS]) return true;
    const Instruction *access = &wave->program[o->lds_access_slot];
    check_report(wave, in, -1, HIP_ERROR_LAUNCH_FAILURE,
        "a missing wait: a barrier is reached before an s_waitcnt lgkmcnt covers 0x%x `%.100s`", access->address, access->text);
    return false;
}

int wait_counter(WaitKind kind) {
    if (kind == WAIT_MEMORY_ACCESS) return WAIT_VECTOR_MEMORY;
    if (kind == WAIT_LDS_ACCESS || kind == WAIT_LANE_EXCHANGE) return WAIT_LDS;
    return kind == WAIT_SCALAR_LOAD ? WAIT_SCALAR : WAIT_COUNTERS;
}

bool waits_check(Wave *wave, const Instruction *in) {
    Outstanding *o = &wave->outstanding;
    bool reports = wave->group->launch->check == CHECK_ALL;
    if (in->wait == WAIT_AT_BARRIER) return !reports || may_pass_barrier(wave, in);
    if (in->wait == WAIT_FOR) wait_for(o, in);
    /* s_endpgm waits for everything, as AMD's ISA documents say. */
    if (in->wait == WAIT_AT_END) memcpy(o->done, o->issued, sizeof o->done);
    if (in->wait == WAIT_FOR || in->wait == WAIT_AT_END) {
        o->open = any_open(o);
        return true;
    }
    int counter = wait_counter(in->wait);
    bool loads = in->wait != WAIT_NONE;
    for (int i = 0; reports && o->open && i < in->operands; i++)
        if (is_register(&in->operand[i]) && !may_use(wave, in, &in->operand[i], i < in->results && loads, counter)) return false;
    if (!loads) return true;
    o->issued[counter]++;
    o->open = true;
    if (in->wait == WAIT_LDS_ACCESS) o->lds_access = o->issued[counter], o->lds_access_slot = (uint32_t)(in - wave->program);
    for (int i = 0; i < in->results; i++)
        for (int r = first_register(&in->operand[i]), end = r + in->operand[i].registers; r < end && r < REGISTERS; r++) {
            o->due[r] = (Due){o->issued[counter], (uint32_t)(in - wave->program), (uint8_t)counter};
            o->loads[r / 64] |= 1ull << r % 64;
        }
    return true;
}
