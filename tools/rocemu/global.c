/* Device memory: loads, stores and atomics of the global, flat and scratch families. Every lane's address is checked
 * against the table of allocations. */
#include <sched.h>

#include "hip.h"
#include "memory.h"

typedef enum Space { SPACE_GLOBAL, SPACE_FLAT, SPACE_SCRATCH } Space;
/* argument: bytes, or the atomic's kind | bytes << 8; argument2: the extension | space << 8. */
static unsigned access_bytes(const Instruction *in) { return (unsigned)in->operation->argument; }
static Extension access_extension(const Instruction *in) { return (Extension)(in->operation->argument2 & 0xff); }
static Space access_space(const Instruction *in) { return (Space)(in->operation->argument2 >> 8); }

/* Addresses of all lanes from a vector operand (64 bits, 32 bits as an offset, or none), a scalar operand and the
 * instruction's offset. */
static bool global_addresses(
    Wave *wave, const Instruction *in, const Operand *vector, const Operand *scalar, uint64_t exec, uint64_t to[LANES]) {
    if (vector->kind == OPERAND_VECTOR && !undefined_check(wave, in, vector->index, vector->registers, ~0u, exec, "an address"))
        return false;
    if (!undefined_check_scalar(wave, in, scalar, "an address")) return false;
    uint64_t base = (scalar->kind == OPERAND_NONE ? 0 : operand_scalar(wave, scalar)) + (uint64_t)(int64_t)in->offset;
    const uint32_t *low = vector->kind == OPERAND_VECTOR ? wave->vector[vector->index] : NULL;
    bool wide = vector->registers == 2;
    for (int lane = 0; lane < LANES; lane++) to[lane] = base + (low ? (wide ? pair_load(low, lane) : low[lane]) : 0);
    return true;
}

/* The host's memory behind a lane's address, or NULL after a report. */
static void *resolve(Wave *wave, const Instruction *in, int lane, uint64_t address, unsigned bytes, LocalAccess access) {
    Space space = access_space(in);
    uint32_t aperture = (uint32_t)(address >> 32);
    if (space == SPACE_SCRATCH || (space == SPACE_FLAT && aperture == PRIVATE_APERTURE))
        return check_scratch(wave, in, lane, (uint32_t)address, bytes);
    if (space == SPACE_FLAT && aperture == SHARED_APERTURE)
        return check_local(wave, in, lane, (uint32_t)address, bytes, access) ? wave->group->lds + (uint32_t)address : NULL;
    return check_global(wave, in, lane, address, bytes, access != LOCAL_READ) ? (void *)address : NULL;
}

static void count(Wave *wave, const Instruction *in, const uint64_t address[LANES], uint64_t exec, unsigned bytes, LocalAccess access) {
    if (access_space(in) != SPACE_SCRATCH) note_global(wave, address, exec, bytes, access);
}

/* Whether all lanes are within the allocation of the latest access, once the first of them has been checked: most accesses are. */
static bool within_recent(const Wave *wave, const uint64_t address[LANES], unsigned bytes) {
    const Allocation *recent = &wave->recent;
    uint64_t furthest = 0, low_bits = 0;
    for (int lane = 0; lane < LANES; lane++) {
        uint64_t distance = address[lane] - recent->base;
        furthest = distance > furthest ? distance : furthest;
        low_bits |= address[lane];
    }
    return bytes >= 4 && !(low_bits & 3) && bytes <= recent->bytes && furthest <= recent->bytes - bytes;
}

/* Whether all lanes are on, and what each accesses is device memory of one allocation: then resolve() would give the addresses as they
 * are. Reports an access of the first lane that is wrong. */
static bool all_in_memory(Wave *wave, const Instruction *in, const uint64_t address[LANES], uint64_t exec, unsigned bytes, bool write) {
    return access_space(in) == SPACE_GLOBAL && exec == ~0ull && check_global(wave, in, 0, address[0], bytes, write) &&
           within_recent(wave, address, bytes);
}

static void execute_load(Wave *wave, const Instruction *in) {
    uint64_t address[LANES], exec = wave_exec(wave);
    unsigned bytes = access_bytes(in);
    int to = in->operand[0].index;
    if (!global_addresses(wave, in, &in->operand[1], &in->operand[2], exec, address)) return;
    if (in->returns) sched_yield(); /* past the caches: it may look for what another process writes, which needs a processor for that */
    count(wave, in, address, exec, bytes, LOCAL_READ);
    undefined_loaded(wave, in, to, bytes, exec, access_extension(in));
    if (all_in_memory(wave, in, address, exec, bytes, false)) {
        for (int lane = 0; lane < LANES; lane++) load_lane(wave, to, lane, (const void *)address[lane], bytes, EXTEND_ZERO);
        for (int lane = 0; wave->recent.shared && lane < LANES && peers_read(wave, in, lane, address[lane], to, bytes);) lane++;
        return;
    }
    for (uint64_t left = wave->state == WAVE_RUNNING ? exec : 0; left; left &= left - 1) {
        int lane = __builtin_ctzll(left);
        const void *from = resolve(wave, in, lane, address[lane], bytes, LOCAL_READ);
        if (!from) return;
        load_lane(wave, to, lane, from, bytes, access_extension(in));
        if (wave->recent.shared && !peers_read(wave, in, lane, address[lane], to, bytes)) return;
        if (access_space(in) != SPACE_GLOBAL) undefined_load(wave, in, to, lane, from, bytes, access_extension(in));
    }
}

/* ROCEMU_PLANT=KERNEL, a fault that tests must find: the last value that the first active lane stores has the wrong sign. */
static void plant_wrong_sign(const Wave *wave, void *stored, unsigned bytes) {
    if (wave->group->launch->planted) ((uint8_t *)stored)[bytes - 1] ^= 0x80;
}

static void execute_store(Wave *wave, const Instruction *in) {
    uint64_t address[LANES], exec = wave_exec(wave);
    unsigned bytes = access_bytes(in);
    int from = in->operand[1].index;
    if (!global_addresses(wave, in, &in->operand[0], &in->operand[2], exec, address)) return;
    uint64_t marked = access_space(in) == SPACE_GLOBAL ? undefined_lanes(wave, from, (int)(bytes + 3) / 4) : ~0ull;
    count(wave, in, address, exec, bytes, LOCAL_WRITE);
    if (!marked && all_in_memory(wave, in, address, exec, bytes, true)) {
        for (int lane = 0; lane < LANES; lane++) store_lane(wave, from, lane, (void *)address[lane], bytes, EXTEND_ZERO);
        plant_wrong_sign(wave, (void *)address[0], bytes);
        for (int lane = 0; wave->recent.shared && lane < LANES; lane++) peers_wrote(wave, in, address[lane], bytes);
        return;
    }
    for (uint64_t left = wave->state == WAVE_RUNNING ? exec : 0; left; left &= left - 1) {
        int lane = __builtin_ctzll(left);
        void *to = resolve(wave, in, lane, address[lane], bytes, LOCAL_WRITE);
        if (!to) return;
        if (marked >> lane & 1 && !undefined_store(wave, in, from, lane, to, bytes, access_extension(in))) return;
        store_lane(wave, from, lane, to, bytes, access_extension(in));
        if (left == exec) plant_wrong_sign(wave, to, bytes);
        if (wave->recent.shared) peers_wrote(wave, in, address[lane], bytes);
    }
}

static uint64_t lane_value(const Wave *wave, int index, int lane, unsigned bytes) {
    return wave->vector[index][lane] | (bytes == 8 ? (uint64_t)wave->vector[index + 1][lane] << 32 : 0);
}

static void execute_atomic(Wave *wave, const Instruction *in) {
    AtomicKind kind = (AtomicKind)(in->operation->argument & 0xff);
    unsigned bytes = (unsigned)in->operation->argument >> 8;
    const Operand *operand = &in->operand[in->returns];
    uint64_t address[LANES], exec = wave_exec(wave);
    int data = operand[1].index, to = in->operand[0].index;
    if (!global_addresses(wave, in, &operand[0], &operand[2], exec, address) ||
        !undefined_check(wave, in, data, operand[1].registers, ~0u, exec, "an atomic operand"))
        return;
    count(wave, in, address, exec, bytes, LOCAL_ATOMIC);
    for (uint64_t left = exec; left; left &= left - 1) {
        int lane = __builtin_ctzll(left);
        if (address[lane] % bytes) {
            check_report(wave, in, lane, HIP_ERROR_ILLEGAL_ADDRESS, "a misaligned atomic operation of %u bytes at 0x%llx", bytes,
                (unsigned long long)address[lane]);
            return;
        }
        void *memory = resolve(wave, in, lane, address[lane], bytes, LOCAL_ATOMIC);
        if (!memory) return;
        uint64_t compare = kind == ATOMIC_CMPSWAP ? lane_value(wave, data + (int)bytes / 4, lane, bytes) : 0;
        if (wave->recent.shared) peers_wrote(wave, in, address[lane], bytes);
        uint64_t old = atomic_apply(kind, memory, bytes, lane_value(wave, data, lane, bytes), compare);
        if (!in->returns) continue;
        wave->vector[to][lane] = (uint32_t)old;
        if (bytes == 8) wave->vector[to + 1][lane] = (uint32_t)(old >> 32);
    }
    if (in->returns) undefined_loaded(wave, in, to, bytes, exec, EXTEND_ZERO);
}

/* From device memory into LDS at M0 + offset + 4 lane, past the registers. */
static void execute_load_to_lds(Wave *wave, const Instruction *in) {
    uint64_t address[LANES], exec = wave_exec(wave);
    unsigned bytes = access_bytes(in);
    if (!global_addresses(wave, in, &in->operand[0], &in->operand[1], exec, address) || !undefined_check_m0(wave, in)) return;
    count(wave, in, address, exec, bytes, LOCAL_READ);
    for (uint64_t left = exec; left; left &= left - 1) {
        int lane = __builtin_ctzll(left);
        uint32_t to = wave->scalar[M0] + (uint32_t)in->offset + bytes * (uint32_t)lane;
        if (!check_global(wave, in, lane, address[lane], bytes, false) || !check_local(wave, in, lane, to, bytes, LOCAL_WRITE)) return;
        memcpy(wave->group->lds + to, (const void *)address[lane], bytes);
        undefined_overwrite(wave, to, bytes);
    }
}

static void execute_nothing(Wave *wave, const Instruction *in) { (void)wave, (void)in; }

#define LOADS(X, space)                                                                                                                                   \
    X(space, ubyte, 1, EXTEND_ZERO) X(space, sbyte, 1, EXTEND_SIGN) X(space, ushort, 2, EXTEND_ZERO) X(space, sshort, 2, EXTEND_SIGN)                     \
    X(space, dword, 4, EXTEND_ZERO) X(space, dwordx2, 8, EXTEND_ZERO) X(space, dwordx3, 12, EXTEND_ZERO) X(space, dwordx4, 16, EXTEND_ZERO)               \
    X(space, ubyte_d16, 1, EXTEND_LOW_HALF) X(space, ubyte_d16_hi, 1, EXTEND_HIGH_HALF) X(space, sbyte_d16, 1, EXTEND_LOW_HALF_SIGN)                      \
    X(space, sbyte_d16_hi, 1, EXTEND_HIGH_HALF_SIGN) X(space, short_d16, 2, EXTEND_LOW_HALF) X(space, short_d16_hi, 2, EXTEND_HIGH_HALF)
#define STORES(X, space)                                                                                                                                  \
    X(space, byte, 1, EXTEND_ZERO) X(space, short, 2, EXTEND_ZERO) X(space, dword, 4, EXTEND_ZERO) X(space, dwordx2, 8, EXTEND_ZERO)                      \
    X(space, dwordx3, 12, EXTEND_ZERO) X(space, dwordx4, 16, EXTEND_ZERO) X(space, byte_d16_hi, 1, EXTEND_HIGH_HALF) X(space, short_d16_hi, 2, EXTEND_HIGH_HALF)
#define ATOMICS(X, space)                                                                                                                                 \
    X(space, swap, ATOMIC_SWAP, 4) X(space, cmpswap, ATOMIC_CMPSWAP, 4) X(space, add, ATOMIC_ADD, 4) X(space, sub, ATOMIC_SUB, 4)                         \
    X(space, smin, ATOMIC_SMIN, 4) X(space, umin, ATOMIC_UMIN, 4) X(space, smax, ATOMIC_SMAX, 4) X(space, umax, ATOMIC_UMAX, 4)                           \
    X(space, and, ATOMIC_AND, 4) X(space, or, ATOMIC_OR, 4) X(space, xor, ATOMIC_XOR, 4) X(space, inc, ATOMIC_INC, 4) X(space, dec, ATOMIC_DEC, 4)        \
    X(space, swap_x2, ATOMIC_SWAP, 8) X(space, cmpswap_x2, ATOMIC_CMPSWAP, 8) X(space, add_x2, ATOMIC_ADD, 8) X(space, sub_x2, ATOMIC_SUB, 8)             \
    X(space, smin_x2, ATOMIC_SMIN, 8) X(space, umin_x2, ATOMIC_UMIN, 8) X(space, smax_x2, ATOMIC_SMAX, 8) X(space, umax_x2, ATOMIC_UMAX, 8)               \
    X(space, and_x2, ATOMIC_AND, 8) X(space, or_x2, ATOMIC_OR, 8) X(space, xor_x2, ATOMIC_XOR, 8) X(space, inc_x2, ATOMIC_INC, 8)                         \
    X(space, dec_x2, ATOMIC_DEC, 8) X(space, add_f32, ATOMIC_ADD_FLOAT, 4) X(space, add_f64, ATOMIC_ADD_FLOAT, 8) X(space, min_f64, ATOMIC_MIN_FLOAT, 8)  \
    X(space, max_f64, ATOMIC_MAX_FLOAT, 8) X(space, pk_add_f16, ATOMIC_ADD_HALVES, 4) X(space, pk_add_bf16, ATOMIC_ADD_BF16, 4)
#define SPACE_global SPACE_GLOBAL
#define SPACE_flat SPACE_FLAT
#define SPACE_scratch SPACE_SCRATCH

static const Operation rows[] = {
#define X(space, name, bytes, extension) {#space "_load_" #name, "d:II", execute_load, NULL, NULL, OPERATION_MEMORY, bytes, (extension) | SPACE_##space << 8},
    LOADS(X, global) LOADS(X, flat) LOADS(X, scratch)
#undef X
#define X(space, name, bytes, extension) {#space "_store_" #name, ":IiI", execute_store, NULL, NULL, OPERATION_MEMORY, bytes, (extension) | SPACE_##space << 8},
        STORES(X, global) STORES(X, flat) STORES(X, scratch)
#undef X
#define X(space, name, kind, bytes) {#space "_atomic_" #name, ":IIII", execute_atomic, NULL, NULL, OPERATION_MEMORY, (kind) | (bytes) << 8, SPACE_##space << 8},
            ATOMICS(X, global) ATOMICS(X, flat)
#undef X
                {"global_load_lds_dword", ":II", execute_load_to_lds, NULL, NULL, OPERATION_MEMORY, 4, 0},
    {"global_load_lds_dwordx4", ":II", execute_load_to_lds, NULL, NULL, OPERATION_MEMORY, 16, 0},
    {"buffer_wbl2", ":", execute_nothing, NULL, NULL, 0, 0, 0},
    {"buffer_inv", ":", execute_nothing, NULL, NULL, 0, 0, 0},
    {"buffer_invl2", ":", execute_nothing, NULL, NULL, 0, 0, 0},
    {"buffer_wbinvl1", ":", execute_nothing, NULL, NULL, 0, 0, 0},
    {"buffer_wbinvl1_vol", ":", execute_nothing, NULL, NULL, 0, 0, 0},
};
const OperationTable global_operations = {rows, sizeof rows / sizeof *rows};
