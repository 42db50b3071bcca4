/* Atomic operations on memory, shared by LDS and device memory: workgroups run on several threads of the host, so
 * each is a compare-and-swap loop. */
#include "memory.h"

static uint16_t bf16_round(float x) {
    uint32_t bits = float_bits(x);
    return (uint16_t)(x != x ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint64_t apply_float(AtomicKind kind, uint64_t old, uint64_t operand, unsigned bytes) {
    if (bytes == 8) {
        double a = bits_double(old), b = bits_double(operand);
        return double_bits(kind == ATOMIC_ADD_FLOAT ? a + b : kind == ATOMIC_MIN_FLOAT ? fmin(a, b) : fmax(a, b));
    }
    uint32_t x = (uint32_t)old, y = (uint32_t)operand;
    float a = bits_float(x), b = bits_float(y);
    switch (kind) {
    case ATOMIC_ADD_FLOAT: return float_bits(a + b);
    case ATOMIC_MIN_FLOAT: return float_bits(float_min(a, b));
    case ATOMIC_MAX_FLOAT: return float_bits(float_max(a, b));
    case ATOMIC_ADD_HALVES:
        return half_bits((_Float16)(half_float((uint16_t)x) + half_float((uint16_t)y))) |
               (uint32_t)half_bits((_Float16)(half_float(x >> 16) + half_float(y >> 16))) << 16;
    default:
        return bf16_round(bits_float(x << 16) + bits_float(y << 16)) |
               (uint32_t)bf16_round(bits_float(x & 0xffff0000) + bits_float(y & 0xffff0000)) << 16;
    }
}

static uint64_t apply(AtomicKind kind, uint64_t old, uint64_t operand, uint64_t compare, unsigned bytes) {
    bool wide = bytes == 8;
    int64_t a = wide ? (int64_t)old : (int32_t)old, b = wide ? (int64_t)operand : (int32_t)operand;
    switch (kind) {
    case ATOMIC_ADD: return old + operand;
    case ATOMIC_SUB: return old - operand;
    case ATOMIC_RSUB: return operand - old;
    case ATOMIC_INC: return old >= operand ? 0 : old + 1;
    case ATOMIC_DEC: return old == 0 || old > operand ? operand : old - 1;
    case ATOMIC_SMIN: return (uint64_t)(a < b ? a : b);
    case ATOMIC_SMAX: return (uint64_t)(a > b ? a : b);
    case ATOMIC_UMIN: return old < operand ? old : operand;
    case ATOMIC_UMAX: return old > operand ? old : operand;
    case ATOMIC_AND: return old & operand;
    case ATOMIC_OR: return old | operand;
    case ATOMIC_XOR: return old ^ operand;
    case ATOMIC_SWAP: return operand;
    case ATOMIC_CMPSWAP: return old == compare ? operand : old;
    default: return apply_float(kind, old, operand, bytes);
    }
}

uint64_t atomic_apply(AtomicKind kind, void *memory, unsigned bytes, uint64_t operand, uint64_t compare) {
    if (bytes == 8) {
        uint64_t *word = memory, old = __atomic_load_n(word, __ATOMIC_RELAXED);
        while (!__atomic_compare_exchange_n(word, &old, apply(kind, old, operand, compare, 8), true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {}
        return old;
    }
    uint32_t *word = memory, old = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(
        word, &old, (uint32_t)apply(kind, old, (uint32_t)operand, (uint32_t)compare, 4), true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {}
    return old;
}
