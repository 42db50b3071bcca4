/* Pieces that LDS and device memory instructions share: how a loaded value lies in registers, and the arithmetic of
 * atomic operations. */
#ifndef ROCEMU_MEMORY_H
#define ROCEMU_MEMORY_H

#include <string.h>

#include "lanes.h"
#include "undefined.h"

/* How fewer than 4 bytes become a register: whole; sign-extended; or into one half, which keeps the other. Also used
 * for what part of a register is stored. */
typedef enum Extension {
    EXTEND_ZERO,
    EXTEND_SIGN,
    EXTEND_LOW_HALF,
    EXTEND_HIGH_HALF,
    EXTEND_LOW_HALF_SIGN,
    EXTEND_HIGH_HALF_SIGN
} Extension;

static inline bool extension_keeps_half(Extension extension) { return extension >= EXTEND_LOW_HALF; }

static inline uint32_t extend(uint32_t old, uint32_t loaded, unsigned bytes, Extension extension) {
    bool sign = extension == EXTEND_SIGN || extension == EXTEND_LOW_HALF_SIGN || extension == EXTEND_HIGH_HALF_SIGN;
    if (sign) loaded = bytes == 1 ? (uint32_t)(int8_t)loaded : (uint32_t)(int16_t)loaded;
    if (extension == EXTEND_LOW_HALF || extension == EXTEND_LOW_HALF_SIGN) return (old & 0xffff0000) | (loaded & 0xffff);
    if (extension == EXTEND_HIGH_HALF || extension == EXTEND_HIGH_HALF_SIGN) return (old & 0xffff) | loaded << 16;
    return loaded;
}

/* 8 aligned bytes are read and written as one, as on the card: other processes may share the memory. */
static inline bool is_one_access(const void *memory, unsigned bytes) { return bytes == 8 && (uintptr_t)memory % 8 == 0; }

static inline void load_lane(Wave *wave, int to, int lane, const void *from, unsigned bytes, Extension extension) {
    if (bytes < 4) {
        uint32_t value = 0;
        memcpy(&value, from, bytes);
        wave->vector[to][lane] = extend(wave->vector[to][lane], value, bytes, extension);
        return;
    }
    if (is_one_access(from, bytes)) {
        uint64_t value = __atomic_load_n((const uint64_t *)from, __ATOMIC_RELAXED);
        wave->vector[to][lane] = (uint32_t)value, wave->vector[to + 1][lane] = (uint32_t)(value >> 32);
        return;
    }
    const uint8_t *source = from;
    for (unsigned i = 0; i < bytes / 4; i++) memcpy(&wave->vector[to + (int)i][lane], source + 4 * i, 4);
}

static inline void store_lane(const Wave *wave, int from, int lane, void *to, unsigned bytes, Extension extension) {
    if (bytes < 4) {
        uint32_t value = wave->vector[from][lane] >> (extension == EXTEND_HIGH_HALF ? 16 : 0);
        memcpy(to, &value, bytes);
        return;
    }
    if (is_one_access(to, bytes)) {
        __atomic_store_n((uint64_t *)to, (uint64_t)wave->vector[from + 1][lane] << 32 | wave->vector[from][lane], __ATOMIC_RELAXED);
        return;
    }
    uint8_t *target = to;
    for (unsigned i = 0; i < bytes / 4; i++) memcpy(target + 4 * i, &wave->vector[from + (int)i][lane], 4);
}

/* Marks registers that a load of defined bytes fills in the lanes of exec. */
void undefined_loaded(Wave *wave, const Instruction *instruction, int to, unsigned bytes, uint64_t exec, Extension extension);
/* After that: what was undefined in `memory`, which may be LDS or scratch, is so in the register. */
void undefined_load(Wave *wave, const Instruction *instruction, int to, int lane, const void *memory, unsigned bytes, Extension extension);
/* Bytes of LDS are defined from now on. */
void undefined_overwrite(Wave *wave, uint32_t address, unsigned bytes);
/* False after reporting that undefined bits of a register are stored where other kernels read. */
bool undefined_store(Wave *wave, const Instruction *instruction, int from, int lane, void *memory, unsigned bytes, Extension extension);

typedef enum AtomicKind {
    ATOMIC_ADD,
    ATOMIC_SUB,
    ATOMIC_RSUB,
    ATOMIC_INC,
    ATOMIC_DEC,
    ATOMIC_SMIN,
    ATOMIC_UMIN,
    ATOMIC_SMAX,
    ATOMIC_UMAX,
    ATOMIC_AND,
    ATOMIC_OR,
    ATOMIC_XOR,
    ATOMIC_SWAP,
    ATOMIC_CMPSWAP,
    ATOMIC_ADD_FLOAT,
    ATOMIC_MIN_FLOAT,
    ATOMIC_MAX_FLOAT,
    ATOMIC_ADD_HALVES,
    ATOMIC_ADD_BF16
} AtomicKind;

/* Applies the operation to memory of 4 or 8 bytes as one step and returns what was there. */
uint64_t atomic_apply(AtomicKind kind, void *memory, unsigned bytes, uint64_t operand, uint64_t compare);

#endif
