/* Scalar loads, plain and through a buffer descriptor: whole dwords from memory into scalar registers. */
#include <string.h>

#include "undefined.h"

/* Offset of the text's operands after the base: an immediate, a register, or both. */
static uint64_t load_offset(const Wave *wave, const Instruction *in) {
    uint64_t offset = in->operands > 2 ? operand_scalar(wave, &in->operand[2]) : 0;
    return offset + (uint64_t)(int64_t)in->offset;
}

static void load(Wave *wave, const Instruction *in, uint64_t address, int dwords) {
    int to = in->operand[0].index;
    if (!check_global(wave, in, -1, address, 4u * (unsigned)dwords, false)) return;
    memcpy(&wave->scalar[to], (const void *)address, 4u * (unsigned)dwords);
    undefined_clear_scalars(wave, to, dwords);
    if (wave->trace) trace_scalar(wave->trace, address, 4u * (unsigned)dwords);
    if (wave->group->statistics) wave->group->statistics->read_bytes += 4u * (unsigned)dwords;
}

static bool address_is_defined(Wave *wave, const Instruction *in) {
    for (int i = 1; i < in->operands; i++)
        if (!undefined_check_scalar(wave, in, &in->operand[i], "an address")) return false;
    return true;
}

static void execute_load(Wave *wave, const Instruction *in) {
    if (!address_is_defined(wave, in)) return;
    load(wave, in, (wave_pair(wave, in->operand[1].index) + load_offset(wave, in)) & ~3ull, in->operation->argument);
}

/* Reads beyond the descriptor's size give 0. */
static void execute_buffer_load(Wave *wave, const Instruction *in) {
    if (!address_is_defined(wave, in)) return;
    const uint32_t *descriptor = &wave->scalar[in->operand[1].index];
    uint64_t base = descriptor[0] | (uint64_t)(descriptor[1] & 0xffff) << 32, offset = load_offset(wave, in) & ~3ull;
    int dwords = in->operation->argument, to = in->operand[0].index;
    uint64_t stride = descriptor[1] >> 16 & 0x3fff, bytes = descriptor[2] * (stride ? stride : 1);
    if (offset + 4u * (unsigned)dwords <= bytes) {
        load(wave, in, base + offset, dwords);
        return;
    }
    memset(&wave->scalar[to], 0, 4u * (unsigned)dwords);
    undefined_clear_scalars(wave, to, dwords);
}

static const Operation rows[] = {
    {"s_load_dword", "s:Ii", execute_load, NULL, NULL, OPERATION_MEMORY, 1, 0},
    {"s_load_dwordx2", "S:Ii", execute_load, NULL, NULL, OPERATION_MEMORY, 2, 0},
    {"s_load_dwordx4", "S:Ii", execute_load, NULL, NULL, OPERATION_MEMORY, 4, 0},
    {"s_load_dwordx8", "S:Ii", execute_load, NULL, NULL, OPERATION_MEMORY, 8, 0},
    {"s_load_dwordx16", "S:Ii", execute_load, NULL, NULL, OPERATION_MEMORY, 16, 0},
    {"s_buffer_load_dword", "s:Ii", execute_buffer_load, NULL, NULL, OPERATION_MEMORY, 1, 0},
    {"s_buffer_load_dwordx2", "S:Ii", execute_buffer_load, NULL, NULL, OPERATION_MEMORY, 2, 0},
    {"s_buffer_load_dwordx4", "S:Ii", execute_buffer_load, NULL, NULL, OPERATION_MEMORY, 4, 0},
    {"s_buffer_load_dwordx8", "S:Ii", execute_buffer_load, NULL, NULL, OPERATION_MEMORY, 8, 0},
    {"s_buffer_load_dwordx16", "S:Ii", execute_buffer_load, NULL, NULL, OPERATION_MEMORY, 16, 0},
};
const OperationTable memory_scalar_operations = {rows, sizeof rows / sizeof *rows};
