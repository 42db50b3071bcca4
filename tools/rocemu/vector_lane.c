/* Vector instructions that move values between lanes and scalar registers. */
#include "hip.h"
#include "lanes.h"

static int first_lane(uint64_t exec) { return exec ? __builtin_ctzll(exec) : 0; }

static void read_lane(Wave *wave, const Instruction *in, int lane) {
    const Operand *from = &in->operand[1];
    int to = in->operand[0].index;
    bool vector = from->kind == OPERAND_VECTOR;
    wave->scalar[to] = vector ? wave->vector[from->index][lane] : (uint32_t)operand_scalar(wave, from);
    scalar_set_defined(wave, to, 1, vector ? wave->defined[from->index] >> lane & 1 : operand_scalar_defined(wave, from));
}

static void execute_readfirstlane(Wave *wave, const Instruction *in) { read_lane(wave, in, first_lane(wave_exec(wave))); }
static void execute_readlane(Wave *wave, const Instruction *in) {
    read_lane(wave, in, (int)(operand_scalar(wave, &in->operand[2]) & (LANES - 1)));
}

static void execute_writelane(Wave *wave, const Instruction *in) {
    int lane = (int)(operand_scalar(wave, &in->operand[2]) & (LANES - 1)), to = in->operand[0].index;
    wave->vector[to][lane] = (uint32_t)operand_scalar(wave, &in->operand[1]);
    wave->defined[to] |= 1ull << lane;
}

static void execute_swap(Wave *wave, const Instruction *in) {
    uint64_t exec = wave_exec(wave);
    uint32_t *a = wave->vector[in->operand[0].index], *b = wave->vector[in->operand[1].index];
    for (int lane = 0; lane < LANES; lane++) {
        if (!(exec >> lane & 1)) continue;
        uint32_t x = a[lane];
        a[lane] = b[lane];
        b[lane] = x;
    }
    uint64_t *first = &wave->defined[in->operand[0].index], *second = &wave->defined[in->operand[1].index],
             difference = (*first ^ *second) & exec;
    *first ^= difference;
    *second ^= difference;
}

static void exchange(Wave *wave, int a, int lane_a, int b, int lane_b) {
    uint32_t x = wave->vector[a][lane_a];
    uint64_t defined_a = wave->defined[a] >> lane_a & 1, defined_b = wave->defined[b] >> lane_b & 1;
    wave->vector[a][lane_a] = wave->vector[b][lane_b];
    wave->vector[b][lane_b] = x;
    wave->defined[a] = (wave->defined[a] & ~(1ull << lane_a)) | defined_b << lane_a;
    wave->defined[b] = (wave->defined[b] & ~(1ull << lane_b)) | defined_a << lane_b;
}

/* Of rows of `argument` lanes, exchanges the odd ones of the first register with the even ones of the second. */
static void execute_swap_rows(Wave *wave, const Instruction *in) {
    int row = in->operation->argument;
    if (wave_exec(wave) != ~0ull) {
        check_report(wave, in, -1, HIP_ERROR_NOT_SUPPORTED, "rows exchanged with lanes switched off, which the emulator does not have");
        return;
    }
    for (int lane = 0; lane < LANES; lane++)
        if (lane / row % 2) exchange(wave, in->operand[0].index, lane, in->operand[1].index, lane - row);
}

static void execute_nop(Wave *wave, const Instruction *in) { (void)wave, (void)in; }

static const Operation rows[] = {
    {"v_readfirstlane_b32", "s:i", execute_readfirstlane, NULL, NULL, 0, 0, 0},
    {"v_readlane_b32", "s:ii", execute_readlane, NULL, NULL, 0, 0, 0},
    {"v_writelane_b32", "d:ii", execute_writelane, NULL, NULL, 0, 0, 0},
    {"v_swap_b32", "d:i", execute_swap, NULL, NULL, 0, 0, 0},
    {"v_permlane16_swap_b32", "d:i", execute_swap_rows, NULL, NULL, 0, 16, 0},
    {"v_permlane32_swap_b32", "d:i", execute_swap_rows, NULL, NULL, 0, 32, 0},
    {"v_nop", ":", execute_nop, NULL, NULL, 0, 0, 0},
};
const OperationTable vector_lane_operations = {rows, sizeof rows / sizeof *rows};
