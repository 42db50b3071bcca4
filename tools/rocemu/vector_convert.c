/* Vector conversions between fp64, fp32, fp16, integers, normalized integers and fp8. Conversions to integers truncate and saturate; NaN gives 0. */
#include "fp8.h"
#include "undefined.h"

LANE_INLINE int32_t to_signed(double x) { return x != x ? 0 : x <= -2147483648.0 ? INT32_MIN : x >= 2147483647.0 ? INT32_MAX : (int32_t)x; }
LANE_INLINE uint32_t to_unsigned(double x) { return x != x || x <= 0 ? 0 : x >= 4294967295.0 ? UINT32_MAX : (uint32_t)(int64_t)x; }
LANE_INLINE uint32_t to_normal(float x, float scale, bool is_signed) {
    float y = x != x ? 0 : x > 1 ? 1 : x < (is_signed ? -1.0f : 0.0f) ? (is_signed ? -1.0f : 0.0f) : x;
    return (uint32_t)(int32_t)rintf(y * scale) & 0xffff;
}
/* To nearest even; a NaN stays one. */
LANE_INLINE uint32_t to_bf16(float x) {
    uint32_t bits = float_bits(x);
    return x != x ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
/* fp16 pair rounded towards zero, as v_cvt_pkrtz does. */
static uint32_t half_towards_zero(float x) {
    uint32_t nearest = half_bits((_Float16)x);
    if (x != x || isinf(x)) return nearest;
    return fabsf(half_float((uint16_t)nearest)) > fabsf(x) ? nearest - 1 : nearest;
}

LANE_INLINE uint32_t fp8_to_bits(uint32_t code, Fp8Type type) { return float_bits(fp8_to_float(code, type)); }

#define CONVERSIONS(X)                                                                                                                     \
    X(v_cvt_f32_i32, "f:i", float, 32, int32_t, 32, a) X(v_cvt_f32_u32, "f:i", float, 32, uint32_t, 32, a)                                 \
    X(v_cvt_i32_f32, "d:f", int32_t, 32, float, 32, to_signed((double)a)) X(v_cvt_u32_f32, "d:f", uint32_t, 32, float, 32, to_unsigned((double)a)) \
    X(v_cvt_f32_ubyte0, "f:i", float, 32, uint32_t, 32, a & 0xff) X(v_cvt_f32_ubyte1, "f:i", float, 32, uint32_t, 32, a >> 8 & 0xff)       \
    X(v_cvt_f32_ubyte2, "f:i", float, 32, uint32_t, 32, a >> 16 & 0xff) X(v_cvt_f32_ubyte3, "f:i", float, 32, uint32_t, 32, a >> 24)       \
    X(v_cvt_f64_f32, "F:f", double, 64, float, 32, a) X(v_cvt_f32_f64, "f:F", float, 32, double, 64, a)                                    \
    X(v_cvt_f64_i32, "F:i", double, 64, int32_t, 32, a) X(v_cvt_f64_u32, "F:i", double, 64, uint32_t, 32, a)                               \
    X(v_cvt_i32_f64, "d:F", int32_t, 32, double, 64, to_signed(a)) X(v_cvt_u32_f64, "d:F", uint32_t, 32, double, 64, to_unsigned(a))       \
    X(v_cvt_rpi_i32_f32, "d:f", int32_t, 32, float, 32, to_signed(floor((double)a + 0.5)))                                                 \
    X(v_cvt_flr_i32_f32, "d:f", int32_t, 32, float, 32, to_signed(floor((double)a)))                                                       \
    X(v_cvt_f16_f32, "h:f", uint32_t, 32, float, 32, half_bits((_Float16)a)) X(v_cvt_f32_f16, "f:h", float, 32, uint32_t, 32, half_float((uint16_t)a)) \
    X(v_cvt_f16_u16, "h:w", uint32_t, 32, uint32_t, 32, half_bits((_Float16)(float)(uint16_t)a))                                           \
    X(v_cvt_f16_i16, "h:w", uint32_t, 32, uint32_t, 32, half_bits((_Float16)(float)(int16_t)a))                                            \
    X(v_cvt_u16_f16, "w:h", uint32_t, 32, uint32_t, 32, umin(to_unsigned((double)half_float((uint16_t)a)), 0xffff))                        \
    X(v_cvt_i16_f16, "w:h", uint32_t, 32, uint32_t, 32, (uint32_t)imax(imin(to_signed((double)half_float((uint16_t)a)), 32767), -32768) & 0xffff)
#define PAIRS(X)                                                                                                                           \
    X(v_cvt_pkrtz_f16_f32, "d:ff", float, half_towards_zero(a) | half_towards_zero(b) << 16)                                               \
    X(v_cvt_pknorm_i16_f32, "d:ff", float, to_normal(a, 32767, true) | to_normal(b, 32767, true) << 16)                                    \
    X(v_cvt_pknorm_u16_f32, "d:ff", float, to_normal(a, 65535, false) | to_normal(b, 65535, false) << 16)                                  \
    X(v_cvt_pk_u16_u32, "d:ii", uint32_t, umin(a, 0xffff) | umin(b, 0xffff) << 16)                                                         \
    X(v_cvt_pk_i16_i32, "d:ii", int32_t, ((uint32_t)imax(imin(a, 32767), -32768) & 0xffff) | (uint32_t)imax(imin(b, 32767), -32768) << 16)

#define X(name, format, D, R, A, SA, expression) CORE1(name, D, R, A, SA, expression)
CONVERSIONS(X)
#undef X
CORE2(v_cvt_pk_bf16_f32, uint32_t, 32, float, 32, float, 32, to_bf16(a) | to_bf16(b) << 16)
#define FROM_FP8(form, fp8, bf8)                                                                                                           \
    CORE1(from_fp8_##form, uint32_t, 32, uint32_t, 32, fp8_to_bits(a, fp8))                                                                \
    CORE1(from_bf8_##form, uint32_t, 32, uint32_t, 32, fp8_to_bits(a, bf8))                                                                \
    CORE1(pair_from_fp8_##form, uint64_t, 64, uint32_t, 32, fp8_to_bits(a, fp8) | (uint64_t)fp8_to_bits(a >> 8, fp8) << 32)                \
    CORE1(pair_from_bf8_##form, uint64_t, 64, uint32_t, 32, fp8_to_bits(a, bf8) | (uint64_t)fp8_to_bits(a >> 8, bf8) << 32)
FROM_FP8(fnuz, FP8_FNUZ, BF8_FNUZ)
FROM_FP8(ocp, FP8_OCP, BF8_OCP)
#define X(name, format, A, expression) CORE2(name, uint32_t, 32, A, 32, A, 32, expression)
PAIRS(X)
#undef X

static uint64_t source_lanes(const Wave *wave, const Instruction *in) {
    uint64_t lanes = 0;
    for (int i = 0; i < 2; i++) lanes |= undefined_source_lanes(wave, &in->source[i]);
    return lanes;
}

/* Of the result of execute_pack_fp8, a source makes a byte. */
static void mark_packed(Wave *wave, const Instruction *in, uint64_t exec, int shift) {
    uint32_t bits[LANES], origin = undefined_origin(wave, in, exec);
    undefined_get_lanes(wave, in->destination.index, bits);
    for (int lane = 0; lane < LANES; lane++) bits[lane] &= ~(0xffffu << shift);
    for (int i = 0; i < 2; i++)
        for (uint64_t left = undefined_source_lanes(wave, &in->source[i]); left; left &= left - 1)
            bits[__builtin_ctzll(left)] |= 0xffu << (shift + 8 * i);
    undefined_set_lanes(wave, in->destination.index, exec, bits, origin);
}

/* Two fp32 to two fp8 bytes, in the half of the destination that op_sel names; the other half stays. */
static void execute_pack_fp8(Wave *wave, const Instruction *in) {
    uint64_t exec = wave_exec(wave);
    uint32_t *d = wave->vector[in->destination.index];
    Fp8Type type = (Fp8Type)in->operation->argument;
    int shift = in->op_sel & 8 ? 16 : 0;
    if ((undefined_lanes(wave, in->destination.index, 1) | source_lanes(wave, in)) & exec) mark_packed(wave, in, exec, shift);
    for (int lane = 0; lane < LANES; lane++) {
        if (!(exec >> lane & 1)) continue;
        uint32_t pair = 0;
        for (int i = 0; i < 2; i++) {
            const Operand *operand = &in->source[i];
            float x =
                bits_float(operand->kind == OPERAND_VECTOR ? wave->vector[operand->index][lane] : (uint32_t)operand_scalar(wave, operand));
            x = operand->absolute ? fabsf(x) : x;
            pair |= (uint32_t)fp8_from_float(operand->negate ? -x : x, type) << (8 * i);
        }
        d[lane] = (d[lane] & ~(0xffffu << shift)) | pair << shift;
    }
}

static const Operation rows[] = {
#define X(name, format, D, R, A, SA, expression) {#name, format, vector_execute, core_##name, NULL, 0, 0, 0},
    CONVERSIONS(X)
#undef X
#define X(name, format, A, expression) {#name, format, vector_execute, core_##name, NULL, 0, 0, 0, UNDEFINED_PACKS},
        PAIRS(X)
#undef X
            {"v_cvt_pk_bf16_f32", "d:ff", vector_execute, core_v_cvt_pk_bf16_f32, NULL, 0, 0, 0, UNDEFINED_PACKS},
#define FP8_FORM(suffix, form, fp8, bf8)                                                        \
    {"v_cvt_f32_fp8" suffix, "f:i", vector_execute, core_from_fp8_##form, NULL, 0, 0, 0},       \
    {"v_cvt_f32_bf8" suffix, "f:i", vector_execute, core_from_bf8_##form, NULL, 0, 0, 0},       \
    {"v_cvt_pk_f32_fp8" suffix, "P:i", vector_execute, core_pair_from_fp8_##form, NULL, 0, 0, 0}, \
    {"v_cvt_pk_f32_bf8" suffix, "P:i", vector_execute, core_pair_from_bf8_##form, NULL, 0, 0, 0}, \
    {"v_cvt_pk_fp8_f32" suffix, "d:ff", execute_pack_fp8, NULL, NULL, 0, fp8, 0},               \
    {"v_cvt_pk_bf8_f32" suffix, "d:ff", execute_pack_fp8, NULL, NULL, 0, bf8, 0},
    FP8_FORM("", fnuz, FP8_FNUZ, BF8_FNUZ) FP8_FORM(" ocp", ocp, FP8_OCP, BF8_OCP)};
const OperationTable vector_convert_operations = {rows, sizeof rows / sizeof *rows};
