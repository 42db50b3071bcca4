/* Vector arithmetic in fp32 and fp64, packed fp32 included. v_exp, v_log, v_rcp, v_rsq, v_sqrt, v_sin and v_cos are
 * approximations of 1 ulp on hardware, with rounding of their own; here they are the exact value rounded (to about
 * 2^-45 before rounding), with denormal inputs and results flushed as hardware's fp32 forms do. */
#include "lanes.h"

/* -- Exact values of the approximate instructions ------------------------------------------------------------------ */

LANE_INLINE float flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

/* 2^x for |x| <= 0.5 by its series; the first term left out is below 2^-45. */
LANE_INLINE double exp2_fraction(double x) {
    double y = x * 0.69314718055994530942;
    return 1 +
           y * (1 + y * (1 / 2. +
                            y * (1 / 6. +
                                    y * (1 / 24. + y * (1 / 120. +
                                                           y * (1 / 720. + y * (1 / 5040. + y * (1 / 40320. +
                                                                                                    y * (1 / 362880. +
                                                                                                            y * (1 / 3628800. +
                                                                                                                    y / 39916800.))))))))));
}

LANE_INLINE float exact_exp2(float input) {
    float x = flush(input), clamped = x < -1000 ? -1000 : x > 1000 ? 1000 : x;
    double whole = rint((double)clamped);
    int64_t exponent = (int64_t)whole + 1023;
    double power = bits_double((uint64_t)exponent << 52) * exp2_fraction((double)clamped - whole);
    return x != x ? float_quiet(input) : flush((float)power);
}

LANE_INLINE float exact_log2(float input) {
    float x = flush(input);
    uint64_t bits = double_bits((double)x), mantissa = (bits & 0xfffffffffffffull) | 0x3ff0000000000000ull;
    int64_t exponent = (int64_t)(bits >> 52 & 0x7ff) - 1023;
    double m = bits_double(mantissa);
    bool upper = m > 1.4142135623730951;
    m = upper ? m * 0.5 : m;
    double whole = (double)(exponent + upper), s = (m - 1) / (m + 1), t = s * s;
    double series =
        1 +
        t * (1 / 3. +
                t * (1 / 5. +
                        t * (1 / 7. +
                                t * (1 / 9. + t * (1 / 11. + t * (1 / 13. + t * (1 / 15. + t * (1 / 17. + t * (1 / 19. + t / 21.)))))))));
    float result = (float)(whole + 2.8853900817779268147 * s * series);
    result = x == INFINITY ? x : result;
    result = x == 0 ? -INFINITY : x < 0 ? bits_float(0x7fc00000) : result;
    return x != x ? float_quiet(input) : result;
}

LANE_INLINE float exact_rcp(float x) { return x != x ? float_quiet(x) : flush((float)(1 / (double)flush(x))); }
LANE_INLINE float exact_sqrt(float x) { return x != x ? float_quiet(x) : flush((float)sqrt((double)flush(x))); }
LANE_INLINE float exact_rsq(float x) { return x != x ? float_quiet(x) : flush((float)(1 / sqrt((double)flush(x)))); }
/* The argument is in revolutions. */
static float exact_sin(float x) { return (float)sin(6.283185307179586 * (x - floor((double)x))); }
static float exact_cos(float x) { return (float)cos(6.283185307179586 * (x - floor((double)x))); }

/* -- Shared pieces ------------------------------------------------------------------------------------------------- */

/* Whole numbers in the order of floats, with -0 before +0; its own inverse. */
LANE_INLINE int32_t float_order(int32_t bits) { return bits ^ (bits >> 31 & 0x7fffffff); }
LANE_INLINE float med3(float a, float b, float c) {
    int32_t x = float_order((int32_t)float_bits(a)), y = float_order((int32_t)float_bits(b)), z = float_order((int32_t)float_bits(c));
    int32_t middle = float_order(imax(imin(x, y), imin(imax(x, y), z)));
    return a != a || b != b || c != c ? float_min(float_min(a, b), c) : bits_float((uint32_t)middle);
}
LANE_INLINE float fract32(float x) { return float_min(x - floorf(x), 0x1.fffffep-1f); }
LANE_INLINE double fract64(double x) { return fmin(x - floor(x), 0x1.fffffffffffffp-1); }
/* ldexp with one rounding, in steps that no power of two leaves. */
LANE_INLINE float ldexp32(float x, int32_t n) {
    int32_t e = n < -400 ? -400 : n > 400 ? 400 : n;
    double power = bits_double((uint64_t)(int64_t)(e + 1023) << 52);
    return (float)((double)x * power);
}
static double ldexp64(double x, int32_t n) { return ldexp(x, n < -5000 ? -5000 : n > 5000 ? 5000 : n); }
LANE_INLINE int float_exponent(float x) { return (int)(float_bits(x) >> 23 & 0xff); }
static float mantissa32(float x) {
    int e;
    return isfinite(x) ? frexpf(x, &e) : x;
}
static int32_t exponent32(float x) {
    int e = 0;
    if (isfinite(x)) frexpf(x, &e);
    return e;
}
static double mantissa64(double x) {
    int e;
    return isfinite(x) ? frexp(x, &e) : x;
}
static int32_t exponent64(double x) {
    int e = 0;
    if (isfinite(x)) frexp(x, &e);
    return e;
}
LANE_INLINE float mul_legacy(float a, float b) { return a == 0 || b == 0 ? 0 : a * b; }
LANE_INLINE float mad_flushed(float a, float b, float c) { return flush(flush(flush(a) * flush(b)) + flush(c)); }

/* The last step of a division p / q, given a quotient that is right but for special values. */
LANE_INLINE float div_fixup32(float quotient, float q, float p) {
    uint32_t sign = (float_bits(q) ^ float_bits(p)) & 0x80000000u;
    if (p != p) return float_quiet(p);
    if (q != q) return float_quiet(q);
    if ((p == 0 && q == 0) || (isinf(p) && isinf(q))) return bits_float(0xffc00000);
    if (q == 0 || isinf(p)) return bits_float(sign | 0x7f800000);
    if (isinf(q) || p == 0) return bits_float(sign);
    if (float_exponent(p) - float_exponent(q) < -150) return bits_float(sign);
    if (quotient != quotient) return bits_float(sign | 0x7f800000); /* the steps before overflowed */
    return bits_float((float_bits(quotient) & 0x7fffffff) | sign);
}
LANE_INLINE double div_fixup64(double quotient, double q, double p) {
    uint64_t sign = (double_bits(q) ^ double_bits(p)) & 1ull << 63;
    if (p != p || q != q) return p + q;
    if ((p == 0 && q == 0) || (isinf(p) && isinf(q))) return -NAN;
    if (q == 0 || isinf(p)) return bits_double(sign | 0x7ffull << 52);
    if (isinf(q) || p == 0) return bits_double(sign);
    if (quotient != quotient) return bits_double(sign | 0x7ffull << 52);
    return bits_double((double_bits(quotient) & ~(1ull << 63)) | sign);
}

/* v_div_scale: the source a (numerator c or denominator b) scaled so that the division's steps neither overflow nor
 * lose bits; true when the result needs scaling back. Where both 1 / b and c / b are denormal, b is scaled down: the
 * manual's text scales it up, which would overflow. */
#define DIV_SCALE(T, EXPONENT, BIAS, UP, DENORMAL)                                                             \
    LANE_INLINE bool div_scale_##T(T a, T b, T c, T *result) {                                                 \
        int difference = EXPONENT(c) - EXPONENT(b);                                                            \
        bool scaled = false, denominator = !memcmp(&a, &b, sizeof a);                                          \
        *result = a;                                                                                           \
        if (b == 0 || c == 0) {                                                                                \
            *result = (T)NAN;                                                                                  \
        } else if (difference >= BIAS - 31 - (BIAS > 127 ? 224 : 0)) {                                         \
            scaled = true;                                                                                     \
            if (denominator) *result = a * UP;                                                                 \
        } else if (fabs((double)b) < DENORMAL) {                                                               \
            *result = a * UP;                                                                                  \
        } else if (fabs(1 / (double)b) < DENORMAL && fabs((double)(T)(c / b)) < DENORMAL) {                    \
            scaled = true;                                                                                     \
            if (denominator) *result = a / UP;                                                                 \
        } else if (fabs(1 / (double)b) < DENORMAL) {                                                           \
            *result = a / UP;                                                                                  \
        } else if (fabs((double)(T)(c / b)) < DENORMAL) {                                                      \
            scaled = true;                                                                                     \
            if (!denominator) *result = a * UP;                                                                \
        } else if (EXPONENT(c) <= (BIAS > 127 ? 53 : 23)) {                                                    \
            *result = a * UP;                                                                                  \
        }                                                                                                      \
        return scaled;                                                                                         \
    }
LANE_INLINE int double_exponent(double x) { return (int)(double_bits(x) >> 52 & 0x7ff); }
DIV_SCALE(float, float_exponent, 127, 0x1p64f, 0x1p-126)
DIV_SCALE(double, double_exponent, 1023, 0x1p128, 0x1p-1022)

static void core_v_div_scale_f32(VectorCall *call) {
    for (int lane = 0; lane < LANES; lane++) {
        float x;
        bool scaled = div_scale_float(bits_float(call->s[0][lane]), bits_float(call->s[1][lane]), bits_float(call->s[2][lane]), &x);
        call->d[lane] = float_bits(x);
        call->result |= (uint64_t)scaled << lane;
    }
}
static void core_v_div_scale_f64(VectorCall *call) {
    for (int lane = 0; lane < LANES; lane++) {
        double x;
        bool scaled = div_scale_double(bits_double(pair_load(call->s[0], lane)), bits_double(pair_load(call->s[1], lane)),
            bits_double(pair_load(call->s[2], lane)), &x);
        pair_store(call->d, lane, double_bits(x));
        call->result |= (uint64_t)scaled << lane;
    }
}
static void core_v_div_fmas_f32(VectorCall *call) {
    for (int lane = 0; lane < LANES; lane++) {
        float a = bits_float(call->s[0][lane]), b = bits_float(call->s[1][lane]), c = bits_float(call->s[2][lane]);
        if (call->mask >> lane & 1) /* in double, so that a denormal result is rounded once */
            call->d[lane] = float_bits((float)(fma((double)a, (double)b, (double)c) * (float_exponent(c) > 127 ? 0x1p64 : 0x1p-64)));
        else call->d[lane] = float_bits(fmaf(a, b, c));
    }
}
static void core_v_div_fmas_f64(VectorCall *call) {
    for (int lane = 0; lane < LANES; lane++) {
        double c = bits_double(pair_load(call->s[2], lane)),
               x = fma(bits_double(pair_load(call->s[0], lane)), bits_double(pair_load(call->s[1], lane)), c);
        if (call->mask >> lane & 1) x = double_exponent(c) > 1023 ? x * 0x1p128 : x * 0x1p-128;
        pair_store(call->d, lane, double_bits(x));
    }
}

/* -- Lists: NAME, expression --------------------------------------------------------------------------------------- */

#define FLOAT_1(X)                                                                                                                       \
    X(v_exp_f32, exact_exp2(a)) X(v_log_f32, exact_log2(a)) X(v_rcp_f32, exact_rcp(a)) X(v_rcp_iflag_f32, exact_rcp(a))                  \
    X(v_rsq_f32, exact_rsq(a)) X(v_sqrt_f32, exact_sqrt(a)) X(v_sin_f32, exact_sin(a)) X(v_cos_f32, exact_cos(a))                        \
    X(v_trunc_f32, truncf(a)) X(v_ceil_f32, ceilf(a)) X(v_rndne_f32, rintf(a)) X(v_floor_f32, floorf(a)) X(v_fract_f32, fract32(a))      \
    X(v_frexp_mant_f32, mantissa32(a))
#define FLOAT_2(X)                                                                                                                       \
    X(v_add_f32, a + b) X(v_sub_f32, a - b) X(v_subrev_f32, b - a) X(v_mul_f32, a * b) X(v_mul_legacy_f32, mul_legacy(a, b))             \
    X(v_min_f32, float_min(a, b)) X(v_max_f32, float_max(a, b))
#define FLOAT_3(X)                                                                                                                       \
    X(v_fma_f32, fmaf(a, b, c)) X(v_mad_f32, mad_flushed(a, b, c)) X(v_min3_f32, float_min(float_min(a, b), c))                          \
    X(v_max3_f32, float_max(float_max(a, b), c)) X(v_med3_f32, med3(a, b, c)) X(v_div_fixup_f32, div_fixup32(a, b, c))                   \
    X(v_fmaak_f32, fmaf(a, b, c)) X(v_fmamk_f32, fmaf(a, b, c)) X(v_madak_f32, mad_flushed(a, b, c)) X(v_madmk_f32, mad_flushed(a, b, c))
/* The destination is the third source. */
#define FLOAT_ACCUMULATE(X) X(v_fmac_f32, fmaf(a, b, c)) X(v_mac_f32, mad_flushed(a, b, c))
#define DOUBLE_1(X)                                                                                                                      \
    X(v_rcp_f64, 1 / a) X(v_rsq_f64, 1 / sqrt(a)) X(v_sqrt_f64, sqrt(a)) X(v_trunc_f64, trunc(a)) X(v_ceil_f64, ceil(a))                 \
    X(v_rndne_f64, rint(a)) X(v_floor_f64, floor(a)) X(v_fract_f64, fract64(a)) X(v_frexp_mant_f64, mantissa64(a))
#define DOUBLE_2(X) X(v_add_f64, a + b) X(v_mul_f64, a * b) X(v_min_f64, fmin(a, b)) X(v_max_f64, fmax(a, b))
#define DOUBLE_3(X) X(v_fma_f64, fma(a, b, c)) X(v_div_fixup_f64, div_fixup64(a, b, c))
#define PACKED_2(X) X(v_pk_add_f32, a + b) X(v_pk_mul_f32, a * b)

#define X(name, expression) CORE1(name, float, 32, float, 32, expression)
FLOAT_1(X)
#undef X
#define X(name, expression) CORE2(name, float, 32, float, 32, float, 32, expression)
FLOAT_2(X)
#undef X
#define X(name, expression) CORE3(name, float, 32, float, 32, float, 32, float, 32, expression)
FLOAT_3(X)
FLOAT_ACCUMULATE(X)
#undef X
#define X(name, expression) CORE1(name, double, 64, double, 64, expression)
DOUBLE_1(X)
#undef X
#define X(name, expression) CORE2(name, double, 64, double, 64, double, 64, expression)
DOUBLE_2(X)
#undef X
#define X(name, expression) CORE3(name, double, 64, double, 64, double, 64, double, 64, expression)
DOUBLE_3(X)
CORE3(v_fmac_f64, double, 64, double, 64, double, 64, double, 64, fma(a, b, c))
#undef X
#define X(name, expression)                                                \
    CORE core_##name(VectorCall *call) {                                   \
        const uint32_t *pa = call->s[0], *pb = call->s[1];                 \
        uint32_t *d = call->d;                                             \
        FOR_HALVES {                                                       \
            float a = bits_float(pa[i]), b = bits_float(pb[i]);            \
            d[i] = float_bits(expression);                                 \
        }                                                                  \
    }
PACKED_2(X)
#undef X
CORE core_v_pk_fma_f32(VectorCall *call) {
    const uint32_t *pa = call->s[0], *pb = call->s[1], *pc = call->s[2];
    uint32_t *d = call->d;
    FOR_HALVES d[i] = float_bits(fmaf(bits_float(pa[i]), bits_float(pb[i]), bits_float(pc[i])));
}
CORE core_v_pk_mov_b32(VectorCall *call) {
    const uint32_t *pa = call->s[0], *pb = call->s[1];
    uint32_t *d = call->d;
    FOR_LANES {
        uint32_t low = pa[lane], high = pb[lane]; /* op_sel says which half of each */
        d[lane] = low;
        d[LANES + lane] = high;
    }
}
CORE2(v_ldexp_f32, float, 32, float, 32, int32_t, 32, ldexp32(a, b))
CORE2(v_ldexp_f64, double, 64, double, 64, int32_t, 32, ldexp64(a, b))
CORE1(v_frexp_exp_i32_f32, int32_t, 32, float, 32, exponent32(a))
CORE1(v_frexp_exp_i32_f64, int32_t, 32, double, 64, exponent64(a))

static const Operation rows[] = {
#define X(name, expression) {#name, "f:f", vector_execute, core_##name, NULL, OPERATION_FLOAT32, 0, 0},
    FLOAT_1(X)
#undef X
#define X(name, expression) {#name, "f:ff", vector_execute, core_##name, NULL, OPERATION_FLOAT32, 0, 0},
        FLOAT_2(X)
#undef X
#define X(name, expression) {#name, "f:fff", vector_execute, core_##name, NULL, OPERATION_FLOAT32, 0, 0},
            FLOAT_3(X)
#undef X
#define X(name, expression) {#name, "f:ff", vector_execute, core_##name, NULL, OPERATION_FLOAT32 | OPERATION_ACCUMULATES, 0, 0},
                FLOAT_ACCUMULATE(X)
#undef X
#define X(name, expression) {#name, "F:F", vector_execute, core_##name, NULL, OPERATION_FLOAT64, 0, 0},
                    DOUBLE_1(X)
#undef X
#define X(name, expression) {#name, "F:FF", vector_execute, core_##name, NULL, OPERATION_FLOAT64, 0, 0},
                        DOUBLE_2(X)
#undef X
#define X(name, expression) {#name, "F:FFF", vector_execute, core_##name, NULL, OPERATION_FLOAT64, 0, 0},
                            DOUBLE_3(X)
#undef X
#define X(name, expression) {#name, "P:PP", vector_execute, core_##name, NULL, OPERATION_FLOAT32, 0, 0},
                                PACKED_2(X)
#undef X
                                    {"v_fmac_f64", "F:FF", vector_execute, core_v_fmac_f64, NULL, OPERATION_FLOAT64 | OPERATION_ACCUMULATES,
                                        0, 0},
    {"v_pk_fma_f32", "P:PPP", vector_execute, core_v_pk_fma_f32, NULL, OPERATION_FLOAT32, 0, 0},
    {"v_pk_mov_b32", "P:PP", vector_execute, core_v_pk_mov_b32, NULL, 0, 0, 0, UNDEFINED_BITS},
    {"v_ldexp_f32", "f:fi", vector_execute, core_v_ldexp_f32, NULL, OPERATION_FLOAT32, 0, 0},
    {"v_ldexp_f64", "F:Fi", vector_execute, core_v_ldexp_f64, NULL, OPERATION_FLOAT64, 0, 0},
    {"v_frexp_exp_i32_f32", "d:f", vector_execute, core_v_frexp_exp_i32_f32, NULL, OPERATION_FLOAT32, 0, 0},
    {"v_frexp_exp_i32_f64", "d:F", vector_execute, core_v_frexp_exp_i32_f64, NULL, OPERATION_FLOAT64, 0, 0},
    {"v_div_scale_f32", "fm:fff", vector_execute, core_v_div_scale_f32, NULL, OPERATION_FLOAT32, 0, 0},
    {"v_div_scale_f64", "Fm:FFF", vector_execute, core_v_div_scale_f64, NULL, OPERATION_FLOAT64, 0, 0},
    {"v_div_fmas_f32", "f:fff", vector_execute, core_v_div_fmas_f32, NULL, OPERATION_FLOAT32 | OPERATION_USES_VCC, 0, 0},
    {"v_div_fmas_f64", "F:FFF", vector_execute, core_v_div_fmas_f64, NULL, OPERATION_FLOAT64 | OPERATION_USES_VCC, 0, 0},
};
const OperationTable vector_float_operations = {rows, sizeof rows / sizeof *rows};
