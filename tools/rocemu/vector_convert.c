/* Vector conversions between fp64, fp32, fp16, integers, normalised integers and the FNUZ forms of fp8 that gfx942
 * has. Conversions to integers truncate and saturate; NaN gives 0. */
#include "lanes.h"

LANE_INLINE int32_t to_signed(double x) { return x != x ? 0 : x <= -2147483648.0 ? INT32_MIN : x >= 2147483647.0 ? INT32_MAX : (int32_t)x; }
LANE_INLINE uint32_t to_unsigned(double x) { return x != x || x <= 0 ? 0 : x >= 4294967295.0 ? UINT32_MAX : (uint32_t)(int64_t)x; }
LANE_INLINE uint32_t to_normal(float x, float scale, bool is_signed) {
    float y = x != x ? 0 : x > 1 ? 1 : x < (is_signed ? -1.0f : 0.0f) ? (is_signed ? -1.0f : 0.0f) : x;
    return (uint32_t)(int32_t)rintf(y * scale) & 0xffff;
}
/* fp16 pair rounded towards zero, as v_cvt_pkrtz does. */
static uint32_t half_towards_zero(float x) {
    uint32_t nearest = half_bits((_Float16)x);
    if (x != x || isinf(x)) return nearest;
    return fabsf(half_float((uint16_t)nearest)) > fabsf(x) ? nearest - 1 : nearest;
}

/* fp8 in the FNUZ forms (bias one more than OCP's, no infinities, NaN is 0x80): e4m3 has bias 8, e5m2 bias 16. */
static float fp8_to_float(uint8_t x, int mantissa_bits, int bias) {
    if (x == 0x80) return NAN;
    int exponent = (x & 0x7f) >> mantissa_bits, mantissa = x & ((1 << mantissa_bits) - 1);
    float magnitude = exponent ? ldexpf((float)(mantissa + (1 << mantissa_bits)), exponent - bias - mantissa_bits)
                               : ldexpf((float)mantissa, 1 - bias - mantissa_bits);
    return x & 0x80 ? -magnitude : magnitude;
}
/* To nearest even; NaN stays NaN, -0 becomes +0. Too large values become NaN: MODE.FP16_OVFL, with which they would
 * become the largest number, is clear. */
static uint8_t fp8_from_float(float x, int mantissa_bits, int bias) {
    if (x != x || isinf(x)) return 0x80;
    float magnitude = fabsf(x);
    int exponent = 0;
    frexpf(magnitude, &exponent);
    int scale = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    float steps = rintf(ldexpf(magnitude, mantissa_bits - scale));
    /* A whole number of steps of the exponent `scale`; carries run into the next exponent by themselves. */
    uint32_t bits = (uint32_t)steps + ((uint32_t)(scale + bias - 1) << mantissa_bits);
    if (magnitude == 0 || bits == 0) return 0;
    return (uint8_t)(bits > 0x7f ? 0x80 : bits | (x < 0 ? 0x80 : 0));
}

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
    X(v_cvt_i16_f16, "w:h", uint32_t, 32, uint32_t, 32, (uint32_t)imax(imin(to_signed((double)half_float((uint16_t)a)), 32767), -32768) & 0xffff) \
    X(v_cvt_f32_fp8, "f:i", float, 32, uint32_t, 32, fp8_to_float((uint8_t)a, 3, 8)) X(v_cvt_f32_bf8, "f:i", float, 32, uint32_t, 32, fp8_to_float((uint8_t)a, 2, 16)) \
    X(v_cvt_pk_f32_fp8, "P:i", uint64_t, 64, uint32_t, 32, float_bits(fp8_to_float((uint8_t)a, 3, 8)) | (uint64_t)float_bits(fp8_to_float((uint8_t)(a >> 8), 3, 8)) << 32) \
    X(v_cvt_pk_f32_bf8, "P:i", uint64_t, 64, uint32_t, 32, float_bits(fp8_to_float((uint8_t)a, 2, 16)) | (uint64_t)float_bits(fp8_to_float((uint8_t)(a >> 8), 2, 16)) << 32)
#define PAIRS(X)                                                                                                                           \
    X(v_cvt_pkrtz_f16_f32, "d:ff", float, half_towards_zero(a) | half_towards_zero(b) << 16)                                               \
    X(v_cvt_pknorm_i16_f32, "d:ff", float, to_normal(a, 32767, true) | to_normal(b, 32767, true) << 16)                                    \
    X(v_cvt_pknorm_u16_f32, "d:ff", float, to_normal(a, 65535, false) | to_normal(b, 65535, false) << 16)                                  \
    X(v_cvt_pk_u16_u32, "d:ii", uint32_t, umin(a, 0xffff) | umin(b, 0xffff) << 16)                                                         \
    X(v_cvt_pk_i16_i32, "d:ii", int32_t, ((uint32_t)imax(imin(a, 32767), -32768) & 0xffff) | (uint32_t)imax(imin(b, 32767), -32768) << 16)

#define X(name, format, D, R, A, SA, expression) CORE1(name, D, R, A, SA, expression)
CONVERSIONS(X)
#undef X
#define X(name, format, A, expression) CORE2(name, uint32_t, 32, A, 32, A, 32, expression)
PAIRS(X)
#undef X

/* Two fp32 to two fp8 bytes, in the half of the destination that op_sel names; the other half stays. */
static void execute_pack_fp8(Wave *wave, const Instruction *in) {
    uint64_t exec = wave_exec(wave);
    uint32_t *d = wave->vector[in->destination.index];
    int mantissa_bits = in->operation->argument, bias = in->operation->argument2, shift = in->op_sel & 8 ? 16 : 0;
    uint64_t defined = exec;
    for (int i = 0; i < 2; i++)
        if (in->source[i].kind == OPERAND_VECTOR) defined &= wave->defined[in->source[i].index];
    for (int lane = 0; lane < LANES; lane++) {
        if (!(exec >> lane & 1)) continue;
        uint32_t pair = 0;
        for (int i = 0; i < 2; i++) {
            const Operand *operand = &in->source[i];
            float x =
                bits_float(operand->kind == OPERAND_VECTOR ? wave->vector[operand->index][lane] : (uint32_t)operand_scalar(wave, operand));
            x = operand->absolute ? fabsf(x) : x;
            pair |= (uint32_t)fp8_from_float(operand->negate ? -x : x, mantissa_bits, bias) << (8 * i);
        }
        d[lane] = (d[lane] & ~(0xffffu << shift)) | pair << shift;
    }
    /* Programs build a register from an undefined one in two steps, so the other half is taken as defined. */
    wave->defined[in->destination.index] = (wave->defined[in->destination.index] & ~exec) | defined;
}

static const Operation rows[] = {
#define X(name, format, D, R, A, SA, expression) {#name, format, vector_execute, core_##name, NULL, 0, 0, 0},
    CONVERSIONS(X)
#undef X
#define X(name, format, A, expression) {#name, format, vector_execute, core_##name, NULL, 0, 0, 0},
        PAIRS(X)
#undef X
            {"v_cvt_pk_fp8_f32", "d:ff", execute_pack_fp8, NULL, NULL, 0, 3, 8},
    {"v_cvt_pk_bf8_f32", "d:ff", execute_pack_fp8, NULL, NULL, 0, 2, 16},
};
const OperationTable vector_convert_operations = {rows, sizeof rows / sizeof *rows};
