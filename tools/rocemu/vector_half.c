/* Vector arithmetic in fp16: single, packed and mixed with fp32, and dot products of pairs. Sums and products are
 * made in fp32, whose rounding to fp16 afterwards cannot differ from one rounding; fused ones in fp64. */
#include "lanes.h"
#include "undefined.h"

LANE_INLINE uint16_t narrow(float x) { return half_bits((_Float16)x); }
LANE_INLINE uint16_t fused(uint16_t a, uint16_t b, uint16_t c) {
    return half_bits((_Float16)(fma((double)half_float(a), (double)half_float(b), (double)half_float(c))));
}
static float ldexp_half(float x, int n) { return (float)ldexp((double)x, n); }
static float revolutions_sin(float x) { return (float)sin(6.283185307179586 * (double)x); }
static float revolutions_cos(float x) { return (float)cos(6.283185307179586 * (double)x); }

#define HALF_1(X)                                                                                                                        \
    X(v_rcp_f16, 1 / a) X(v_sqrt_f16, sqrtf(a)) X(v_rsq_f16, 1 / sqrtf(a)) X(v_exp_f16, exp2f(a)) X(v_log_f16, log2f(a))                 \
    X(v_floor_f16, floorf(a)) X(v_ceil_f16, ceilf(a)) X(v_trunc_f16, truncf(a)) X(v_rndne_f16, rintf(a)) X(v_fract_f16, a - floorf(a))   \
    X(v_sin_f16, revolutions_sin(a)) X(v_cos_f16, revolutions_cos(a))
#define HALF_2(X)                                                                                                                        \
    X(v_add_f16, a + b) X(v_sub_f16, a - b) X(v_subrev_f16, b - a) X(v_mul_f16, a * b) X(v_min_f16, float_min(a, b)) X(v_max_f16, float_max(a, b))
#define PACKED_2(X) X(v_pk_add_f16, a + b) X(v_pk_mul_f16, a * b) X(v_pk_min_f16, float_min(a, b)) X(v_pk_max_f16, float_max(a, b))

#define X(name, expression)                                              \
    static void core_##name(VectorCall *call) {                          \
        for (int lane = 0; lane < LANES; lane++) {                       \
            float a = half_float((uint16_t)call->s[0][lane]);            \
            call->d[lane] = narrow(expression);                          \
        }                                                                \
    }
HALF_1(X)
#undef X
#define X(name, expression)                                                                                       \
    static void core_##name(VectorCall *call) {                                                                   \
        for (int lane = 0; lane < LANES; lane++) {                                                                \
            float a = half_float((uint16_t)call->s[0][lane]), b = half_float((uint16_t)call->s[1][lane]);         \
            call->d[lane] = narrow(expression);                                                                   \
        }                                                                                                         \
    }
HALF_2(X)
#undef X
#define X(name, expression)                                                                                                \
    LANE_INLINE uint16_t half_##name(float a, float b) { return narrow(expression); }                                      \
    static void core_##name(VectorCall *call) {                                                                            \
        const uint32_t *pa = call->s[0], *pb = call->s[1];                                                                 \
        for (int lane = 0; lane < LANES; lane++)                                                                           \
            call->d[lane] = half_##name(half_float((uint16_t)pa[lane]), half_float((uint16_t)pb[lane])) |                  \
                            (uint32_t)half_##name(half_float(pa[lane] >> 16), half_float(pb[lane] >> 16)) << 16;           \
    }
PACKED_2(X)
#undef X

static void core_v_fma_f16(VectorCall *call) {
    for (int lane = 0; lane < LANES; lane++)
        call->d[lane] = fused((uint16_t)call->s[0][lane], (uint16_t)call->s[1][lane], (uint16_t)call->s[2][lane]);
}
static void core_v_pk_fma_f16(VectorCall *call) {
    for (int lane = 0; lane < LANES; lane++) {
        uint32_t a = call->s[0][lane], b = call->s[1][lane], c = call->s[2][lane];
        call->d[lane] = fused((uint16_t)a, (uint16_t)b, (uint16_t)c) | (uint32_t)fused(a >> 16, b >> 16, c >> 16) << 16;
    }
}
static void core_v_ldexp_f16(VectorCall *call) {
    for (int lane = 0; lane < LANES; lane++)
        call->d[lane] = narrow(ldexp_half(half_float((uint16_t)call->s[0][lane]), (int16_t)call->s[1][lane]));
}
/* Two products of halves and an fp32 addend. */
static void core_v_dot2_f32_f16(VectorCall *call) {
    for (int lane = 0; lane < LANES; lane++) {
        uint32_t a = call->s[0][lane], b = call->s[1][lane];
        float sum = fmaf(half_float((uint16_t)a), half_float((uint16_t)b), bits_float(call->s[2][lane]));
        call->d[lane] = float_bits(fmaf(half_float(a >> 16), half_float(b >> 16), sum));
    }
}

/* v_fma_mix: each source is fp32, or the half of a register that op_sel names where op_sel_hi has its bit. */
static float mixed_source(const Wave *wave, const Instruction *in, int i, int lane) {
    const Operand *operand = &in->source[i];
    uint32_t bits = operand->kind == OPERAND_VECTOR ? wave->vector[operand->index][lane] : (uint32_t)operand_scalar(wave, operand);
    float x = bits_float(bits);
    if (in->op_sel_hi >> i & 1) x = half_float((uint16_t)(in->op_sel >> i & 1 ? bits >> 16 : bits));
    if (operand->absolute) x = fabsf(x);
    return operand->negate ? -x : x;
}

/* The bits of source i that v_fma_mix reads. */
static uint32_t mixed_bits(const Instruction *in, int i) {
    if (!(in->op_sel_hi >> i & 1)) return ~0u;
    return in->op_sel >> i & 1 ? 0xffff0000u : 0xffff;
}

static void mark_mixed(Wave *wave, const Instruction *in, uint64_t exec) {
    static const uint32_t written[] = {~0u, 0xffff, 0xffff0000u}; /* by argument */
    int to = in->destination.index, argument = in->operation->argument;
    uint64_t open = argument ? undefined_lanes(wave, to, 1) : 0;
    for (int i = 0; i < 3; i++) open |= undefined_source_lanes(wave, &in->source[i]);
    wave->defined[to] |= exec & ~open;
    uint32_t origin = exec & open ? undefined_origin(wave, in, exec) : 0;
    for (uint64_t left = exec & open; left; left &= left - 1) {
        int lane = __builtin_ctzll(left);
        uint32_t read = 0;
        for (int i = 0; i < 3; i++) {
            const Operand *operand = &in->source[i];
            uint32_t bits =
                operand->kind == OPERAND_VECTOR ? undefined_bits(wave, operand->index, lane) : (uint32_t)undefined_operand(wave, operand);
            read |= bits & mixed_bits(in, i);
        }
        uint32_t kept = undefined_bits(wave, to, lane) & ~written[argument];
        undefined_set(wave, to, lane, kept | (read ? written[argument] : 0), origin);
    }
}

static void execute_mix(Wave *wave, const Instruction *in) {
    uint64_t exec = wave_exec(wave);
    mark_mixed(wave, in, exec);
    uint32_t *d = wave->vector[in->destination.index];
    for (int lane = 0; lane < LANES; lane++) {
        if (!(exec >> lane & 1)) continue;
        float x = fmaf(mixed_source(wave, in, 0, lane), mixed_source(wave, in, 1, lane), mixed_source(wave, in, 2, lane));
        if (in->clamp) x = x > 0 ? (x < 1 ? x : 1) : 0;
        switch (in->operation->argument) {
        case 0: d[lane] = float_bits(x); break;
        case 1: d[lane] = (d[lane] & 0xffff0000) | narrow(x); break;
        case 2: d[lane] = (d[lane] & 0xffff) | (uint32_t)narrow(x) << 16; break;
        }
    }
}

static const Operation rows[] = {
#define X(name, expression) {#name, "h:h", vector_execute, core_##name, NULL, 0, 0, 0},
    HALF_1(X)
#undef X
#define X(name, expression) {#name, "h:hh", vector_execute, core_##name, NULL, 0, 0, 0},
        HALF_2(X)
#undef X
#define X(name, expression) {#name, "p:pp", vector_execute, core_##name, NULL, 0, 0, 0},
            PACKED_2(X)
#undef X
                {"v_fma_f16", "h:hhh", vector_execute, core_v_fma_f16, NULL, OPERATION_KEEPS_HIGH, 0, 0},
    {"v_pk_fma_f16", "p:ppp", vector_execute, core_v_pk_fma_f16, NULL, 0, 0, 0},
    {"v_ldexp_f16", "h:hw", vector_execute, core_v_ldexp_f16, NULL, 0, 0, 0},
    {"v_dot2_f32_f16", "f:ppf", vector_execute, core_v_dot2_f32_f16, NULL, OPERATION_FLOAT32, 0, 0},
    {"v_fma_mix_f32", "f:fff", execute_mix, NULL, NULL, 0, 0, 0},
    {"v_fma_mixlo_f16", "f:fff", execute_mix, NULL, NULL, 0, 1, 0},
    {"v_fma_mixhi_f16", "f:fff", execute_mix, NULL, NULL, 0, 2, 0},
};
const OperationTable vector_half_operations = {rows, sizeof rows / sizeof *rows};
