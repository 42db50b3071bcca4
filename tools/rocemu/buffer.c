/* Buffer memory: accesses through a descriptor in four scalar registers, which bounds them; out of bounds, loads
 * give 0 and stores do nothing, as on hardware. What is within bounds must still lie in an allocation. Swizzled and
 * structured-with-index-swizzle descriptors are not supported and stop the kernel. */
#include "hip.h"
#include "memory.h"

typedef struct Descriptor {
    uint64_t base;
    uint32_t stride, records;
    bool swizzled;
} Descriptor;

static Descriptor read_descriptor(const Wave *wave, const Operand *operand) {
    const uint32_t *word = &wave->scalar[operand->index];
    return (Descriptor){word[0] | (uint64_t)(word[1] & 0xffff) << 32, word[1] >> 16 & 0x3fff, word[2], word[1] >> 31};
}

/* Lane addresses; `inside` gets the lanes within bounds. */
static bool buffer_addresses(
    Wave *wave, const Instruction *in, const Operand *operand, uint64_t exec, unsigned bytes, uint64_t to[LANES], uint64_t *inside) {
    Descriptor descriptor = read_descriptor(wave, &operand[1]);
    uint32_t scalar = (uint32_t)operand_scalar(wave, &operand[2]);
    const Operand *vector = &operand[0];
    if (descriptor.swizzled) {
        check_report(wave, in, -1, HIP_ERROR_NOT_SUPPORTED, "a swizzled buffer, which the emulator does not have");
        return false;
    }
    if (vector->kind == OPERAND_VECTOR && !undefined_check(wave, in, vector->index, vector->registers, ~0u, exec, "an address"))
        return false;
    for (int i = 1; i < 3; i++)
        if (!undefined_check_scalar(wave, in, &operand[i], "an address")) return false;
    if (in->to_lds && !undefined_check_m0(wave, in)) return false;
    *inside = 0;
    for (int lane = 0; lane < LANES; lane++) {
        uint32_t index = in->indexed ? wave->vector[vector->index][lane] : 0;
        uint32_t offset = (uint32_t)in->offset + (in->scalar_offset_enabled ? wave->vector[vector->index + in->indexed][lane] : 0);
        bool within = descriptor.stride && in->indexed ? index < descriptor.records && offset + bytes <= descriptor.stride
                                                       : (uint64_t)offset + (uint64_t)index * descriptor.stride + bytes <=
                                                             (uint64_t)descriptor.records * (descriptor.stride ? descriptor.stride : 1);
        to[lane] = descriptor.base + scalar + offset + (uint64_t)index * descriptor.stride;
        *inside |= (uint64_t)within << lane;
    }
    return true;
}

static void execute_load(Wave *wave, const Instruction *in) {
    uint64_t address[LANES], inside, exec = wave_exec(wave);
    unsigned bytes = (unsigned)in->operation->argument;
    int to = in->operand[0].index;
    static const uint32_t zero[4];
    if (!buffer_addresses(wave, in, &in->operand[in->to_lds ? 0 : 1], exec, bytes, address, &inside)) return;
    note_global(wave, address, exec & inside, bytes, LOCAL_READ);
    for (uint64_t left = exec; left; left &= left - 1) {
        int lane = __builtin_ctzll(left);
        bool within = inside >> lane & 1;
        if (within && !check_global(wave, in, lane, address[lane], bytes, false)) return;
        const void *from = within ? (const void *)address[lane] : zero;
        if (in->to_lds) {
            uint32_t local = wave->scalar[M0] + (uint32_t)in->offset + bytes * (uint32_t)lane;
            if (!check_local(wave, in, lane, local, bytes, LOCAL_WRITE)) return;
            memcpy(wave->group->lds + local, from, bytes);
            undefined_overwrite(wave, local, bytes);
        } else {
            load_lane(wave, to, lane, from, bytes, (Extension)in->operation->argument2);
        }
    }
    if (!in->to_lds) undefined_loaded(wave, in, to, bytes, exec, (Extension)in->operation->argument2);
}

static void execute_store(Wave *wave, const Instruction *in) {
    uint64_t address[LANES], inside, exec = wave_exec(wave);
    unsigned bytes = (unsigned)in->operation->argument;
    int from = in->operand[0].index;
    if (!buffer_addresses(wave, in, &in->operand[1], exec, bytes, address, &inside)) return;
    uint64_t marked = undefined_lanes(wave, from, (int)(bytes + 3) / 4);
    note_global(wave, address, exec & inside, bytes, LOCAL_WRITE);
    for (uint64_t left = exec & inside; left; left &= left - 1) {
        int lane = __builtin_ctzll(left);
        if (!check_global(wave, in, lane, address[lane], bytes, true)) return;
        void *to = (void *)address[lane];
        if (marked >> lane & 1 && !undefined_store(wave, in, from, lane, to, bytes, (Extension)in->operation->argument2)) return;
        store_lane(wave, from, lane, to, bytes, (Extension)in->operation->argument2);
    }
}

static const Operation rows[] = {
#define X(name, bytes, extension) {"buffer_load_" #name, "d:IIi", execute_load, NULL, NULL, OPERATION_MEMORY, bytes, extension},
    X(ubyte, 1, EXTEND_ZERO) X(sbyte, 1, EXTEND_SIGN) X(ushort, 2, EXTEND_ZERO) X(sshort, 2, EXTEND_SIGN) X(dword, 4, EXTEND_ZERO)
        X(dwordx2, 8, EXTEND_ZERO) X(dwordx3, 12, EXTEND_ZERO) X(dwordx4, 16, EXTEND_ZERO) X(short_d16, 2, EXTEND_LOW_HALF) X(
            short_d16_hi, 2, EXTEND_HIGH_HALF)
#undef X
#define X(name, bytes, extension) {"buffer_store_" #name, ":iIIi", execute_store, NULL, NULL, OPERATION_MEMORY, bytes, extension},
            X(byte, 1, EXTEND_ZERO) X(short, 2, EXTEND_ZERO) X(dword, 4, EXTEND_ZERO) X(dwordx2, 8, EXTEND_ZERO) X(dwordx3, 12, EXTEND_ZERO)
                X(dwordx4, 16, EXTEND_ZERO) X(byte_d16_hi, 1, EXTEND_HIGH_HALF) X(short_d16_hi, 2, EXTEND_HIGH_HALF)
#undef X
};
const OperationTable buffer_operations = {rows, sizeof rows / sizeof *rows};
