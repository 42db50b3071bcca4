/* How inner loops over 64 lanes are written, so that the host's compiler makes vector code of them: one function per
 * operation, compiled for several instruction sets of which the loader picks one. An operation is one row of a list,
 * NAME(expression of a, b, c), of which both function and table row are made. */
#ifndef ROCEMU_LANES_H
#define ROCEMU_LANES_H

#include <math.h>
#include <string.h>

#include "emulator.h"

#if defined __x86_64__ && !defined __SANITIZE_ADDRESS__ && !defined __clang__
#define CORE static __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"))) void
#else
#define CORE static void
#endif
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif
#define FOR_LANES INDEPENDENT for (int lane = 0; lane < LANES; lane++)
/* Both halves of a pair of registers. */
#define FOR_HALVES INDEPENDENT for (int i = 0; i < 2 * LANES; i++)
#define LANE_INLINE static inline __attribute__((always_inline))

/* Values are reinterpreted all the time; the files that include this are compiled with -fno-strict-aliasing. */
LANE_INLINE float bits_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
LANE_INLINE uint32_t float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
LANE_INLINE double bits_double(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
LANE_INLINE uint64_t double_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
LANE_INLINE float half_float(uint16_t bits) {
    _Float16 x;
    memcpy(&x, &bits, sizeof x);
    return (float)x;
}
LANE_INLINE uint16_t half_bits(_Float16 x) {
    uint16_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

LANE_INLINE uint32_t to_bits_uint32_t(uint32_t x) { return x; }
LANE_INLINE uint32_t from_bits_uint32_t(uint32_t x) { return x; }
LANE_INLINE uint32_t to_bits_int32_t(int32_t x) { return (uint32_t)x; }
LANE_INLINE int32_t from_bits_int32_t(uint32_t x) { return (int32_t)x; }
LANE_INLINE uint32_t to_bits_float(float x) { return float_bits(x); }
LANE_INLINE float from_bits_float(uint32_t x) { return bits_float(x); }
LANE_INLINE uint64_t to_bits_double(double x) { return double_bits(x); }
LANE_INLINE double from_bits_double(uint64_t x) { return bits_double(x); }
LANE_INLINE uint64_t to_bits_uint64_t(uint64_t x) { return x; }
LANE_INLINE uint64_t from_bits_uint64_t(uint64_t x) { return x; }
LANE_INLINE uint64_t to_bits_int64_t(int64_t x) { return (uint64_t)x; }
LANE_INLINE int64_t from_bits_int64_t(uint64_t x) { return (int64_t)x; }
LANE_INLINE uint64_t pair_load(const uint32_t *p, int lane) { return p[lane] | (uint64_t)p[LANES + lane] << 32; }
LANE_INLINE void pair_store(uint32_t *p, int lane, uint64_t x) {
    p[lane] = (uint32_t)x;
    p[LANES + lane] = (uint32_t)(x >> 32);
}

#define LOAD32(T, p) from_bits_##T((p)[lane])
#define LOAD64(T, p) from_bits_##T(pair_load(p, lane))
#define STORE32(T, p, x) ((p)[lane] = to_bits_##T(x))
#define STORE64(T, p, x) pair_store(p, lane, to_bits_##T(x))

/* A function core_NAME: result of type D, sources of types A, B, C; R, SA, SB, SC are 32 or 64. */
#define CORE1(name, D, R, A, SA, expression)                                                  \
    CORE core_##name(VectorCall *call) {                                                      \
        uint32_t *d = call->d;                                                                \
        const uint32_t *pa = call->s[0];                                                      \
        FOR_LANES {                                                                           \
            A a = LOAD##SA(A, pa);                                                            \
            STORE##R(D, d, (D)(expression));                                                  \
        }                                                                                     \
    }
#define CORE2(name, D, R, A, SA, B, SB, expression)                                           \
    CORE core_##name(VectorCall *call) {                                                      \
        uint32_t *d = call->d;                                                                \
        const uint32_t *pa = call->s[0], *pb = call->s[1];                                    \
        FOR_LANES {                                                                           \
            A a = LOAD##SA(A, pa);                                                            \
            B b = LOAD##SB(B, pb);                                                            \
            STORE##R(D, d, (D)(expression));                                                  \
        }                                                                                     \
    }
#define CORE3(name, D, R, A, SA, B, SB, C, SC, expression)                                    \
    CORE core_##name(VectorCall *call) {                                                      \
        uint32_t *d = call->d;                                                                \
        const uint32_t *pa = call->s[0], *pb = call->s[1], *pc = call->s[2];                  \
        FOR_LANES {                                                                           \
            A a = LOAD##SA(A, pa);                                                            \
            B b = LOAD##SB(B, pb);                                                            \
            C c = LOAD##SC(C, pc);                                                            \
            STORE##R(D, d, (D)(expression));                                                  \
        }                                                                                     \
    }

/* One bit per lane of bytes that are 0 or 1. */
LANE_INLINE uint64_t mask_pack(const uint8_t flag[LANES]) {
    uint64_t mask = 0;
    for (int i = 0; i < LANES / 8; i++) {
        uint64_t eight;
        memcpy(&eight, flag + 8 * i, 8);
        mask |= (eight * 0x0102040810204080ull >> 56) << (8 * i);
    }
    return mask;
}
/* The lanes that are not 0. */
LANE_INLINE uint64_t mask_nonzero(const uint32_t x[LANES]) {
    uint8_t flag[LANES];
    for (int lane = 0; lane < LANES; lane++) flag[lane] = x[lane] != 0;
    return mask_pack(flag);
}
/* 0 or ~0 per lane. */
LANE_INLINE void mask_expand(uint64_t mask, uint32_t expanded[LANES]) {
    uint32_t half[2] = {(uint32_t)mask, (uint32_t)(mask >> 32)};
    for (int lane = 0; lane < 32; lane++) {
        expanded[lane] = -(half[0] >> lane & 1);
        expanded[lane + 32] = -(half[1] >> lane & 1);
    }
}

LANE_INLINE bool float_is_nan(uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000; }
LANE_INLINE bool float_is_signaling(uint32_t bits) { return float_is_nan(bits) & !(bits & 0x400000); }
LANE_INLINE float float_quiet(float x) { return bits_float(float_bits(x) | 0x400000); }
LANE_INLINE uint32_t umin(uint32_t a, uint32_t b) { return a < b ? a : b; }
LANE_INLINE uint32_t umax(uint32_t a, uint32_t b) { return a > b ? a : b; }
LANE_INLINE int32_t imin(int32_t a, int32_t b) { return a < b ? a : b; }
LANE_INLINE int32_t imax(int32_t a, int32_t b) { return a > b ? a : b; }
/* v_min and v_max in IEEE mode: a signaling NaN gives its quiet form, else a NaN gives the other operand; -0 is less
 * than +0. One choice after another, the last the strongest, since compilers make no vectors of nested ones. */
LANE_INLINE float float_choose(uint32_t x, uint32_t y, bool first) {
    uint32_t chosen = first ? x : y;
    chosen = float_is_nan(y) ? x : chosen;
    chosen = float_is_nan(x) ? y : chosen;
    chosen = float_is_signaling(y) ? y | 0x400000 : chosen;
    return bits_float(float_is_signaling(x) ? x | 0x400000 : chosen);
}
LANE_INLINE float float_min(float a, float b) {
    uint32_t x = float_bits(a), y = float_bits(b);
    return float_choose(x, y, (a < b) | ((a == b) & (x >> 31)));
}
LANE_INLINE float float_max(float a, float b) {
    uint32_t x = float_bits(a), y = float_bits(b);
    return float_choose(x, y, (a > b) | ((a == b) & !(x >> 31)));
}

#endif
