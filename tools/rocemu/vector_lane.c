/* Vector instructions that move values between lanes and scalar registers. */
#include "hip.h"
#include "lanes.h"
#include "undefined.h"

static int first_lane(uint64_t exec) { return exec ? __builtin_ctzll(exec) : 0; }

static void read_lane(Wave *wave, const Instruction *in, int lane) {
    const Operand *from = &in->operand[1];
    int to = in->operand[0].index;
    bool vector = from->kind == OPERAND_VECTOR;
    wave->scalar[to] = vector ? wave->vector[from->index][lane] : (uint32_t)operand_scalar(wave, from);
    uint64_t undefined = vector ? undefined_bits(wave, from->index, lane) : undefined_operand(wave, from);
    if (undefined) undefined_set_scalars(wave, in, to, 1, undefined, undefined_origin(wave, in, 1ull << lane));
    else undefined_clear_scalars(wave, to, 1);
}

static void execute_readfirstlane(Wave *wave, const Instruction *in) { read_lane(wave, in, first_lane(wave_exec(wave))); }
static void execute_readlane(Wave *wave, const Instruction *in) {
    if (!undefined_check_scalar(wave, in, &in->operand[2], "a lane number")) return;
    read_lane(wave, in, (int)(operand_scalar(wave, &in->operand[2]) & (LANES - 1)));
}

static void execute_writelane(Wave *wave, const Instruction *in) {
    if (!undefined_check_scalar(wave, in, &in->operand[2], "a lane number")) return;
    int lane = (int)(operand_scalar(wave, &in->operand[2]) & (LANES - 1)), to = in->operand[0].index;
    wave->vector[to][lane] = (uint32_t)operand_scalar(wave, &in->operand[1]);
    undefined_set(wave, to, lane, (uint32_t)undefined_operand(wave, &in->operand[1]), undefined_origin(wave, in, 0));
}

static void exchange(Wave *wave, const Instruction *in, int a, int lane_a, int b, int lane_b) {
    uint32_t x = wave->vector[a][lane_a], undefined_a = undefined_bits(wave, a, lane_a), undefined_b = undefined_bits(wave, b, lane_b),
             origin = undefined_a | undefined_b ? undefined_origin(wave, in, 1ull << lane_a | 1ull << lane_b) : 0;
    wave->vector[a][lane_a] = wave->vector[b][lane_b];
    wave->vector[b][lane_b] = x;
    undefined_set(wave, a, lane_a, undefined_b, origin);
    undefined_set(wave, b, lane_b, undefined_a, origin);
}

static void execute_swap(Wave *wave, const Instruction *in) {
    for (uint64_t left = wave_exec(wave); left; left &= left - 1) {
        int lane = __builtin_ctzll(left);
        exchange(wave, in, in->operand[0].index, lane, in->operand[1].index, lane);
    }
}

/* Of rows of `argument` lanes, exchanges the odd ones of the first register with the even ones of the second. */
static void execute_swap_rows(Wave *wave, const Instruction *in) {
    int row = in->operation->argument;
    if (wave_exec(wave) != ~0ull) {
        check_report(wave, in, -1, HIP_ERROR_NOT_SUPPORTED, "rows exchanged with lanes switched off, which the emulator does not have");
        return;
    }
    for (int lane = 0; lane < LANES; lane++)
        if (lane / row % 2) exchange(wave, in, in->operand[0].index, lane, in->operand[1].index, lane - row);
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
