/* ROCEMU_ARRIVAL: when accesses of a wave reach memory and registers.
 *
 *     early    each at its instruction (the default)
 *     late     each as late as hardware allows: at the s_waitcnt that covers it, or at the end of the wave
 *     both     the first launch of each kernel late, about half of the others
 *
 * A late access is executed at its wait, on the registers that it had at its instruction. Other waves and kernels thus see
 * stores, and change what loads read, at the last possible moment; a missing wait gives other results than early arrival.
 * Each wave owns its outstanding accesses. Accesses of one counter arrive in order. */
#include <stdlib.h>
#include <string.h>

#include "hip.h"
#include "lanes.h"

enum { MAX_VECTORS = 8, MAX_SCALARS = 16 };
/* Registers that an instruction reads, as they were then; undefined bits and origins as in Wave. */
typedef struct SavedVector {
    int index;
    bool is_result; /* the instruction also writes it */
    uint32_t origin;
    uint64_t defined, partly;
    uint32_t lanes[LANES], undefined[LANES]; /* `undefined`: valid where `defined` lacks lanes */
} SavedVector;
typedef struct SavedScalar {
    int index;
    bool is_result;
    uint32_t value, undefined, origin;
} SavedScalar;

struct Arrival {
    Arrival *next;
    const Instruction *instruction;
    uint32_t number; /* among the accesses of its counter, as in Outstanding */
    uint64_t exec;
    int vectors, scalars;
    SavedScalar scalar[MAX_SCALARS];
    SavedVector vector[MAX_VECTORS];
};

bool arrivals_are_late(uint64_t launches) {
    const char *mode = getenv("ROCEMU_ARRIVAL");
    if (!mode || !strcmp(mode, "early")) return false;
    /* The sequence of Thue and Morse has no period: runs of the same launches get both. */
    return strcmp(mode, "both") || !__builtin_parityll(launches);
}

/* -- Registers ----------------------------------------------------------------------------------------------------- */

#define SWAP(x, y)                 \
    do {                           \
        __typeof__(x) kept_x = x;  \
        x = y, y = kept_x;         \
    } while (0)

typedef struct LanesSwap { uint32_t *x, *y; } LanesSwap;
CORE swap_all(LanesSwap *swap) {
    uint32_t *x = swap->x, *y = swap->y;
    FOR_LANES SWAP(x[lane], y[lane]);
}

static void swap_lanes(uint32_t x[LANES], uint32_t y[LANES], uint64_t lanes) {
    if (lanes == ~0ull) swap_all(&(LanesSwap){x, y});
    else
        for (uint64_t left = lanes; left; left &= left - 1) SWAP(x[__builtin_ctzll(left)], y[__builtin_ctzll(left)]);
}

/* Swaps those lanes of the wave's register and of the saved one. */
static void swap_vector(Wave *wave, SavedVector *saved, uint64_t lanes) {
    if (!lanes) return;
    swap_lanes(wave->vector[saved->index], saved->lanes, lanes);
    if (~(wave->defined[saved->index] & saved->defined)) swap_lanes(wave->undefined[saved->index], saved->undefined, lanes);
    uint64_t defined = (wave->defined[saved->index] ^ saved->defined) & lanes,
             partly = (wave->partly[saved->index] ^ saved->partly) & lanes;
    wave->defined[saved->index] ^= defined, saved->defined ^= defined;
    wave->partly[saved->index] ^= partly, saved->partly ^= partly;
    if (lanes == ~0ull) SWAP(wave->origin[saved->index], saved->origin);
}

static void swap_scalar(Wave *wave, SavedScalar *saved) {
    SWAP(wave->scalar[saved->index], saved->value);
    SWAP(wave->scalar_undefined[saved->index], saved->undefined);
    SWAP(wave->scalar_origin[saved->index], saved->origin);
}

static bool is_result(const Instruction *in, OperandKind kind, int index) {
    for (int i = 0; i < in->results; i++)
        if (in->operand[i].kind == kind && index >= in->operand[i].index && index < in->operand[i].index + in->operand[i].registers)
            return true;
    return false;
}

static void save_vector(Arrival *arrival, const Wave *wave, int index) {
    SavedVector *saved = &arrival->vector[arrival->vectors++];
    saved->index = index;
    saved->is_result = is_result(arrival->instruction, OPERAND_VECTOR, index);
    saved->origin = wave->origin[index];
    saved->defined = wave->defined[index], saved->partly = wave->partly[index];
    memcpy(saved->lanes, wave->vector[index], sizeof saved->lanes);
    if (~saved->defined) memcpy(saved->undefined, wave->undefined[index], sizeof saved->undefined);
}

static void save_scalar(Arrival *arrival, const Wave *wave, int index) {
    arrival->scalar[arrival->scalars++] = (SavedScalar){index, is_result(arrival->instruction, OPERAND_SCALAR, index), wave->scalar[index],
        wave->scalar_undefined[index], wave->scalar_origin[index]};
}

/* -- Accesses ------------------------------------------------------------------------------------------------------ */

static void put_off(Wave *wave, const Instruction *in, int counter) {
    Arrival *arrival = wave->arrivals.spare;
    if (arrival) wave->arrivals.spare = arrival->next;
    else if (!(arrival = malloc(sizeof *arrival))) {
        check_report(wave, in, -1, HIP_ERROR_OUT_OF_MEMORY, "no memory for an access that arrives late");
        return;
    }
    arrival->next = NULL;
    arrival->instruction = in;
    arrival->number = wave->outstanding.issued[counter];
    arrival->exec = wave_exec(wave);
    arrival->vectors = arrival->scalars = 0;
    for (int r = M0; r < EXEC + 2; r++) save_scalar(arrival, wave, r);
    for (int i = in->results; i < in->operands; i++)
        for (int r = in->operand[i].index, end = r + in->operand[i].registers; r < end; r++)
            if (in->operand[i].kind == OPERAND_VECTOR) save_vector(arrival, wave, r);
            else if (in->operand[i].kind == OPERAND_SCALAR) save_scalar(arrival, wave, r);
    Arrival **last = &wave->arrivals.first[counter];
    if (*last) last = &wave->arrivals.last[counter]->next;
    *last = wave->arrivals.last[counter] = arrival;
}

static void arrive(Wave *wave, Arrival *arrival) {
    for (int i = 0; i < arrival->vectors; i++) swap_vector(wave, &arrival->vector[i], ~0ull);
    for (int i = 0; i < arrival->scalars; i++) swap_scalar(wave, &arrival->scalar[i]);
    arrival->instruction->execute(wave, arrival->instruction);
    /* In reverse, since a register may be saved twice. */
    for (int i = arrival->vectors; i-- > 0;) swap_vector(wave, &arrival->vector[i], arrival->vector[i].is_result ? ~arrival->exec : ~0ull);
    for (int i = arrival->scalars; i-- > 0;)
        if (!arrival->scalar[i].is_result) swap_scalar(wave, &arrival->scalar[i]);
}

/* Takes those of a counter that are done, or all, off the list. */
static void arrive_done(Wave *wave, int counter) {
    Arrival *arrival;
    while ((arrival = wave->arrivals.first[counter]) && arrival->number <= wave->outstanding.done[counter]) {
        wave->arrivals.first[counter] = arrival->next;
        if (wave->state == WAVE_RUNNING) arrive(wave, arrival);
        arrival->next = wave->arrivals.spare;
        wave->arrivals.spare = arrival;
    }
}

void arrivals_execute(Wave *wave, const Instruction *in) {
    int counter = wait_counter(in->wait);
    if (counter < WAIT_COUNTERS) {
        put_off(wave, in, counter);
        return;
    }
    if (in->wait != WAIT_NONE)
        for (int c = 0; c < WAIT_COUNTERS; c++) arrive_done(wave, c);
    if (wave->state == WAVE_RUNNING) in->execute(wave, in);
}

void arrivals_destroy(Arrivals *arrivals) {
    for (int c = 0; c <= WAIT_COUNTERS; c++)
        for (Arrival *next, *arrival = c < WAIT_COUNTERS ? arrivals->first[c] : arrivals->spare; arrival; arrival = next) {
            next = arrival->next;
            free(arrival);
        }
}
