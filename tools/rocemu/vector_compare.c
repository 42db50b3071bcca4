/* Vector comparisons: a bit per lane into VCC or a pair of scalar registers; the v_cmpx forms also into EXEC. */
#include "lanes.h"

#define UNORDERED(a, b) ((a) != (a) || (b) != (b))
#define FLOAT_COMPARISONS(X, type)                                                                                                    \
    X(f, type, 0) X(lt, type, a < b) X(eq, type, a == b) X(le, type, a <= b) X(gt, type, a > b) X(lg, type, a < b || a > b)           \
    X(ge, type, a >= b) X(o, type, !UNORDERED(a, b)) X(u, type, UNORDERED(a, b)) X(nge, type, !(a >= b)) X(nlg, type, !(a < b || a > b)) \
    X(ngt, type, !(a > b)) X(nle, type, !(a <= b)) X(neq, type, !(a == b)) X(nlt, type, !(a < b)) X(tru, type, 1)
#define INTEGER_COMPARISONS(X, type)                                                                                                  \
    X(f, type, 0) X(lt, type, a < b) X(eq, type, a == b) X(le, type, a <= b) X(gt, type, a > b) X(ne, type, a != b) X(ge, type, a >= b) X(t, type, 1)

#define VALUE_f32(p) bits_float((p)[lane])
#define VALUE_f64(p) bits_double(pair_load(p, lane))
#define VALUE_f16(p) half_float((uint16_t)(p)[lane])
#define VALUE_i16(p) ((int16_t)(p)[lane])
#define VALUE_u16(p) ((uint16_t)(p)[lane])
#define VALUE_i32(p) ((int32_t)(p)[lane])
#define VALUE_u32(p) ((p)[lane])
#define VALUE_i64(p) ((int64_t)pair_load(p, lane))
#define VALUE_u64(p) pair_load(p, lane)

#define X(name, type, condition)                                   \
    CORE core_##name##_##type(VectorCall *call) {                  \
        uint8_t flag[LANES];                                       \
        const uint32_t *pa = call->s[0], *pb = call->s[1];         \
        FOR_LANES {                                                \
            __auto_type a = VALUE_##type(pa);                      \
            __auto_type b = VALUE_##type(pb);                      \
            (void)a, (void)b;                                      \
            flag[lane] = (condition);                              \
        }                                                          \
        call->result = mask_pack(flag);                            \
    }
FLOAT_COMPARISONS(X, f32)
FLOAT_COMPARISONS(X, f64)
FLOAT_COMPARISONS(X, f16)
INTEGER_COMPARISONS(X, i16)
INTEGER_COMPARISONS(X, u16)
INTEGER_COMPARISONS(X, i32)
INTEGER_COMPARISONS(X, u32)
INTEGER_COMPARISONS(X, i64)
INTEGER_COMPARISONS(X, u64)
#undef X

/* The bit of v_cmp_class that a value belongs to: signaling NaN, quiet NaN, -inf, -normal, -denormal, -0, +0,
 * +denormal, +normal, +inf. */
static int float_class(uint64_t bits, int exponent_bits, int mantissa_bits) {
    uint64_t mantissa = bits & ((1ull << mantissa_bits) - 1), exponent = bits >> mantissa_bits & ((1ull << exponent_bits) - 1);
    bool negative = bits >> (exponent_bits + mantissa_bits) & 1;
    if (exponent == (1ull << exponent_bits) - 1 && mantissa) return mantissa >> (mantissa_bits - 1) ? 1 : 0;
    int size = exponent == (1ull << exponent_bits) - 1 ? 3 : exponent ? 2 : mantissa ? 1 : 0;
    return negative ? 5 - size : 6 + size;
}
#define CLASS(type, expression, exponent_bits, mantissa_bits)                                                        \
    static void core_class_##type(VectorCall *call) {                                                                \
        const uint32_t *pa = call->s[0], *pb = call->s[1];                                                           \
        for (int lane = 0; lane < LANES; lane++)                                                                     \
            call->result |= (uint64_t)(pb[lane] >> float_class(expression, exponent_bits, mantissa_bits) & 1) << lane; \
    }
CLASS(f32, pa[lane], 8, 23)
CLASS(f64, pair_load(pa, lane), 11, 52)
CLASS(f16, pa[lane] & 0xffff, 5, 10)

#define FORMAT_f32 "m:ff"
#define FORMAT_f64 "m:FF"
#define FORMAT_f16 "m:hh"
#define FORMAT_i16 "m:ww"
#define FORMAT_u16 "m:ww"
#define FORMAT_i32 "m:ii"
#define FORMAT_u32 "m:ii"
#define FORMAT_i64 "m:II"
#define FORMAT_u64 "m:II"
/* How undefined bits decide. */
#define ORDER_i16 UNDEFINED_MONOTONE_SIGNED
#define ORDER_i32 UNDEFINED_MONOTONE_SIGNED
#define ORDER_i64 UNDEFINED_MONOTONE_SIGNED
#define ORDER_u16 UNDEFINED_MONOTONE
#define ORDER_u32 UNDEFINED_MONOTONE
#define ORDER_u64 UNDEFINED_MONOTONE
#define RULE_f(type) ORDER_##type
#define RULE_lt(type) ORDER_##type
#define RULE_eq(type) UNDEFINED_EQUAL
#define RULE_le(type) ORDER_##type
#define RULE_gt(type) ORDER_##type
#define RULE_ne(type) UNDEFINED_EQUAL
#define RULE_ge(type) ORDER_##type
#define RULE_t(type) ORDER_##type
static const Operation rows[] = {
#define ROWS(name, type, rule)                                                                            \
    {"v_cmp_" #name "_" #type, FORMAT_##type, vector_execute, core_##name##_##type, NULL, 0, 0, 0, rule}, \
        {"v_cmpx_" #name "_" #type, FORMAT_##type, vector_execute, core_##name##_##type, NULL, OPERATION_WRITES_EXEC, 0, 0, rule},
#define X(name, type, condition) ROWS(name, type, UNDEFINED_WHOLE)
    FLOAT_COMPARISONS(X, f32) FLOAT_COMPARISONS(X, f64) FLOAT_COMPARISONS(X, f16)
#undef X
#define X(name, type, condition) ROWS(name, type, RULE_##name(type))
        INTEGER_COMPARISONS(X, i16) INTEGER_COMPARISONS(X, u16) INTEGER_COMPARISONS(X, i32) INTEGER_COMPARISONS(X, u32)
            INTEGER_COMPARISONS(X, i64) INTEGER_COMPARISONS(X, u64)
#undef X
                {"v_cmp_class_f32", "m:fi", vector_execute, core_class_f32, NULL, 0, 0, 0},
    {"v_cmp_class_f64", "m:Fi", vector_execute, core_class_f64, NULL, 0, 0, 0},
    {"v_cmp_class_f16", "m:hi", vector_execute, core_class_f16, NULL, 0, 0, 0},
    {"v_cmpx_class_f32", "m:fi", vector_execute, core_class_f32, NULL, OPERATION_WRITES_EXEC, 0, 0},
};
const OperationTable vector_compare_operations = {rows, sizeof rows / sizeof *rows};
