/* Instructions as the emulator of AMD's GPUs (tools/rocemu) executes them: each against a C expression on random and
 * special values, moves between lanes and through memory, matrix instructions against a plain loop. Kernels of many,
 * HIP and wrong kernels are in test_rocemu_hip.c. */
#include <math.h>

#include "base/bf16.h"
#include "base/float8.h"
#include "rocemu/library.h"
#include "rocemu/operations.h"

static struct { void *operations, *lanes, *matrix; } modules;

/* -- Values -------------------------------------------------------------------------------------------------------- */

static double g(u64 bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static u64 gb(double x) {
    u64 bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static double g64(float x) { return (double)x; }
static float h(u32 bits) {
    uint16_t half = (uint16_t)bits;
    _Float16 x;
    memcpy(&x, &half, sizeof x);
    return (float)x;
}
static u32 hb(float x) {
    _Float16 half = (_Float16)x;
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}
static u32 pair(u32 low, u32 high) { return (low & 0xffff) | high << 16; }

/* What the rows of operations.h call. */
static u32 reversed(u32 x) {
    u32 result = 0;
    for (int i = 0; i < 32; i++) result |= (x >> i & 1) << (31 - i);
    return result;
}
static int sign24(u32 x) { return (int)(x << 8) >> 8; }
static int median(int a, int b, int c) { return a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b); }
static u32 signed_field(u32 x, u32 offset, u32 width) {
    u32 part = x >> offset & ((1u << width) - 1);
    return width && part >> (width - 1) ? part | ~0u << width : part;
}
/* v_perm_b32: bytes 0 to 3 are b's, 4 to 7 a's; 8 to 11 repeat the signs of the four halves; 12 is 0, more is 255. */
static u32 bytes_of(u32 a, u32 b, u32 selectors) {
    u32 result = 0;
    for (int i = 0; i < 4; i++) {
        u32 s = selectors >> 8 * i & 255, half = s == 8 ? b & 0xffff : s == 9 ? b >> 16 : s == 10 ? a & 0xffff : a >> 16;
        u32 byte = s < 4 ? b >> 8 * s & 255 : s < 8 ? a >> 8 * (s - 4) & 255 : s < 12 ? (half & 0x8000 ? 255 : 0) : s == 12 ? 0 : 255;
        /* Selectors have their low three bits for bytes 0 to 7 only. */
        result |= byte << 8 * i;
    }
    return result;
}
static u32 largest_half(u32 a, u32 b, u32 c) {
    u32 x = a & 0xffff, y = b & 0xffff, z = c & 0xffff, larger = x > y ? x : y;
    return larger > z ? larger : z;
}
static u32 dot_bytes(u32 a, u32 b) {
    u32 sum = 0;
    for (int i = 0; i < 32; i += 8) sum += (a >> i & 255) * (b >> i & 255);
    return sum;
}
static u32 sum_differences(u32 a, u32 b) {
    u32 sum = 0;
    for (int i = 0; i < 32; i += 8) sum += (u32)abs((int)(a >> i & 255) - (int)(b >> i & 255));
    return sum;
}
static u64 quads(u64 x) {
    u64 result = 0;
    for (int i = 0; i < 64; i += 4)
        if (x >> i & 15) result |= 15ull << i;
    return result;
}
static float clamped(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }
static float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
static float mantissa(float x) {
    int exponent;
    return isfinite(x) ? frexpf(x, &exponent) : x;
}
static bool signaling(float x) { return x != x && !(fb(x) & 0x400000); }
/* maxNum of IEEE 754-2008: a signaling NaN wins, a quiet one loses, +0 is more than -0. */
static float larger(float a, float b) {
    if (signaling(a) || signaling(b)) return NAN;
    if (a != a || b != b) return a != a ? b : a;
    return a > b || (a == b && !signbit(a)) ? a : b;
}
static float smaller(float a, float b) { return -larger(-a, -b); }
/* Beside a NaN the smaller of the other two. */
static float middle(float a, float b, float c) {
    if (a != a || b != b || c != c) return smaller(smaller(a, b), c);
    return a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
}
/* Bit 4 x + 2 y + z of the table for each bit x of a, y of b and z of c. */
static u32 by_truth_table(u32 a, u32 b, u32 c, u32 table) {
    u32 result = 0;
    for (int i = 0; i < 32; i++) result |= (table >> ((a >> i & 1) * 4 + (b >> i & 1) * 2 + (c >> i & 1)) & 1) << i;
    return result;
}
/* What would be rounded to more than the largest number is infinite, or NaN where the format has no infinity, as long as no
 * mode asks for that number. */
static u32 fp8_code(float x, Fp8Kind kind) {
    bool fnuz = !on_gfx950(), finite = kind == FP8_E5M2 ? fabsf(x) < 61440 : fnuz ? fabsf(x) < 248 : fabsf(x) <= 464;
    u32 sign = signbit(x) ? 0x80 : 0, too_large = kind == FP8_E5M2 && x == x ? 0x7c : 0x7f;
    return finite ? fp8_from_float(x, fp8_format(kind, fnuz)) : fnuz ? 0x80 : sign | too_large;
}
static u32 e4m3_pair(float a, float b) { return fp8_code(a, FP8_E4M3) | fp8_code(b, FP8_E4M3) << 8; }
static u32 e5m2_pair(float a, float b) { return fp8_code(a, FP8_E5M2) | fp8_code(b, FP8_E5M2) << 8; }
static long long saturated(double x, double low, double high) {
    return x != x ? 0 : x < low ? (long long)low : x > high ? (long long)high : (long long)x;
}
/* The bit of v_cmp_class: signaling and quiet NaN, -inf, -normal, -denormal, -0, then the same upwards. */
static u32 class_bit(int class, bool negative, bool is_signaling) {
    int size = class == FP_INFINITE ? 3 : class == FP_NORMAL ? 2 : class == FP_SUBNORMAL ? 1 : 0;
    if (class == FP_NAN) return is_signaling ? 1 : 2;
    return 1u << (negative ? 5 - size : 6 + size);
}
static u32 class_of(float x) { return class_bit(fpclassify(x), signbit(x), signaling(x)); }
static u32 class_of_double(double x) { return class_bit(fpclassify(x), signbit(x), !(gb(x) >> 51 & 1)); }

/* -- Instructions -------------------------------------------------------------------------------------------------- */

enum { CASES = 4096 };
typedef struct Operands { u64 a[CASES], b[CASES], c[CASES]; } Operands;

/* Zeros, infinities, NaNs, denormals, powers, limits of integers and shift counts, of both widths; then bits at
 * random, every second time with a moderate exponent. */
static u64 operand(int i) {
    static const u32 special[] = {0, 1, 2, 31, 32, 33, 63, 64, 255, 0x7fff, 0x8000, 0xffff, 0x10000, 0x7fffffff, 0x80000000, 0x80000001,
        0xffffffff, 0xfffffff0, 0x3f800000, 0xbf800000, 0x3f000000, 0x40490fdb, 0x00800000, 0x007fffff, 0x00000003, 0x80400000, 0x7f7fffff,
        0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffc12345, 0x4f000000, 0xcf000000, 0x4f7fffff, 0x3c003c00, 0x7c00fc00,
        0x7e000001, 0x03ff8001, 0x0706050c, 0x0d080b0a};
    enum { COUNT = sizeof special / sizeof *special };
    if (i < COUNT) return special[i] | (u64)special[(i * 7 + 3) % COUNT] << 32;
    u64 bits = random_bits();
    return i % 2 ? bits : (bits & 0x807fffff807fffffull) | (u64)(0x3f000000 + (bits >> 40 & 3) * 0x00800000) * 0x100000001ull;
}

static Operands *make_operands(void) {
    enum { SPECIALS = 42 };
    Operands *operands = malloc(sizeof *operands);
    assert_non_null(operands);
    random_state = 1;
    for (int i = 0; i < CASES; i++) {
        bool all_pairs = i < SPECIALS * SPECIALS;
        operands->a[i] = operand(all_pairs ? i % SPECIALS : i);
        operands->b[i] = operand(all_pairs ? i / SPECIALS : i + 1);
        operands->c[i] = operand(i % 3 ? i + 2 : i / 3 % SPECIALS);
    }
    return operands;
}

/* Distance of two fp32 in steps of the number line. */
static u32 ulp_distance(u32 x, u32 y) {
    int64_t a = x & 0x80000000 ? -(int64_t)(x & 0x7fffffff) : (int64_t)x, b = y & 0x80000000 ? -(int64_t)(y & 0x7fffffff) : (int64_t)y;
    return (u32)llabs(a - b);
}

static bool results_agree(char kind, u32 ulps, u64 expected, u64 actual) {
    switch (kind) {
    case 'F':
        return (f((u32)expected) != f((u32)expected) && f((u32)actual) != f((u32)actual)) ||
               ulp_distance((u32)expected, (u32)actual) <= ulps;
    case 'G': return (g(expected) != g(expected) && g(actual) != g(actual)) || expected == actual;
    case 'H': return (h((u32)expected) != h((u32)expected) && h((u32)actual) != h((u32)actual)) || (u32)expected == (u32)actual;
    case 'B':
        for (int i = 0; i < 2; i++)
            if (!results_agree('F', 0, expected >> 16 * i << 16, actual >> 16 * i << 16)) return false;
        return true;
    case 'P':
        return results_agree('H', 0, expected & 0xffff, actual & 0xffff) &&
               results_agree('H', 0, expected >> 16 & 0xffff, actual >> 16 & 0xffff);
    }
    return expected == actual;
}

typedef struct Row {
    const char *name;
    char kind;
    u32 ulps;
    u64 (*expected)(u64 a, u64 b, u64 c);
} Row;

#define X(name, kind, D, A, B, C, assembly, ulps, expression)             \
    static u64 expected_##name(u64 wide_a, u64 wide_b, u64 wide_c)        \
    {                                                                     \
        A a = (A)wide_a;                                                  \
        B b = (B)wide_b;                                                  \
        C c = (C)wide_c;                                                  \
        (void)a, (void)b, (void)c;                                        \
        return (D)(expression);                                           \
    }
VECTOR_INTEGER(X)
VECTOR_PACKED_INTEGER(X)
VECTOR_FLOAT(X)
VECTOR_HALF(X)
VECTOR_COMPARE(X)
VECTOR_GFX950(X)
#undef X
#define X(name, D, A, B, assembly, expression)                            \
    static u64 expected_##name(u64 wide_a, u64 wide_b, u64 wide_c)        \
    {                                                                     \
        A a = (A)wide_a;                                                  \
        B b = (B)wide_b;                                                  \
        (void)a, (void)b, (void)wide_c;                                   \
        return (D)(expression);                                           \
    }
SCALAR_OPERATIONS(X)
#undef X

static void check_rows(const char *prefix, const Row *rows, size_t count) {
    Operands *operands = make_operands();
    bool scalar = !strcmp(prefix, "scalar");
    u64 *a = device_copy(operands->a, sizeof operands->a), *b = device_copy(operands->b, sizeof operands->b),
        *c = device_copy(operands->c, sizeof operands->c);
    u64 *out = device_memory(sizeof operands->a), *actual = malloc(sizeof operands->a);
    void *arguments[] = {&out, &a, &b, &c};
    for (size_t r = 0; r < count; r++) {
        char name[64];
        snprintf(name, sizeof name, "%s_%s", prefix, rows[r].name);
        assert_int_equal(launch(modules.operations, name, scalar ? line(CASES, 1) : line(CASES / 256, 256), arguments, NULL), 0);
        assert_int_equal(hip.hipMemcpyDtoH(actual, out, sizeof operands->a), 0);
        for (int i = 0; i < CASES; i++) {
            u64 expected = rows[r].expected(operands->a[i], operands->b[i], operands->c[i]);
            if (!results_agree(rows[r].kind, rows[r].ulps, expected, actual[i]))
                fail_msg(
                    "%s(%llx, %llx, %llx) = %llx, not %llx", name, operands->a[i], operands->b[i], operands->c[i], actual[i], expected);
        }
    }
    assert_int_equal(hip.hipFree(a) | hip.hipFree(b) | hip.hipFree(c) | hip.hipFree(out), 0);
    free(actual);
    free(operands);
}

#define X(name, kind, D, A, B, C, assembly, ulps, expression) {#name, #kind[0], ulps, expected_##name},
#define VECTOR_TEST(test, list)                                      \
    static void test(void **state)                                   \
    {                                                                \
        static const Row rows[] = {list(X)};                         \
        (void)state;                                                 \
        check_rows("vector", rows, sizeof rows / sizeof *rows);      \
    }
VECTOR_TEST(vector_integer_instructions_compute_what_c_does, VECTOR_INTEGER)
VECTOR_TEST(packed_and_sub_dword_instructions_compute_what_c_does, VECTOR_PACKED_INTEGER)
VECTOR_TEST(vector_float_instructions_compute_what_c_does, VECTOR_FLOAT)
VECTOR_TEST(vector_half_instructions_compute_what_c_does, VECTOR_HALF)
VECTOR_TEST(vector_comparisons_compute_what_c_does, VECTOR_COMPARE)
static void vector_instructions_of_gfx950_compute_what_c_does(void **state) {
    static const Row rows[] = {VECTOR_GFX950(X)};
    (void)state;
    if (!on_gfx950()) skip();
    check_rows("vector", rows, sizeof rows / sizeof *rows);
}
#undef X

static void scalar_instructions_compute_what_c_does(void **state) {
#define X(name, D, A, B, assembly, expression) {#name, 'I', 0, expected_##name},
    static const Row rows[] = {SCALAR_OPERATIONS(X)};
#undef X
    (void)state;
    check_rows("scalar", rows, sizeof rows / sizeof *rows);
}

/* -- Lanes --------------------------------------------------------------------------------------------------------- */

static u32 lane_value(int lane) { return (u32)lane * 3 + 100; }

static void run_lanes(const char *name, const u32 in[LANES], u32 out[LANES]) {
    u32 *from = device_copy(in, LANES * sizeof *in), *to = device_memory(LANES * sizeof *out);
    void *arguments[] = {&to, &from};
    assert_int_equal(launch(modules.lanes, name, line(1, LANES), arguments, NULL), 0);
    assert_int_equal(hip.hipMemcpyDtoH(out, to, LANES * sizeof *out), 0);
    assert_int_equal(hip.hipFree(from) | hip.hipFree(to), 0);
}

/* `source` gives the lane that each reads; -1 keeps 1000, -2 gives 0. */
static void check_moves(const char *name, int (*source)(int lane)) {
    u32 in[LANES], out[LANES];
    for (int lane = 0; lane < LANES; lane++) in[lane] = lane_value(lane);
    run_lanes(name, in, out);
    for (int lane = 0; lane < LANES; lane++) {
        int from = source(lane);
        u32 expected = from == -1 ? 1000 : from == -2 ? 0 : lane_value(from);
        if (out[lane] != expected) fail_msg("%s: lane %d got %u, not %u", name, lane, out[lane], expected);
    }
}

static int from_quad_reversed(int lane) { return lane ^ 3; }
static int from_row_next(int lane) { return lane % 16 < 15 ? lane + 1 : -1; }
static int from_row_third_before(int lane) { return lane % 16 >= 3 ? lane - 3 : -2; }
static int from_row_turned(int lane) { return lane / 16 * 16 + (lane + 11) % 16; }
static int from_row_mirrored(int lane) { return lane / 16 * 16 + 15 - lane % 16; }
static int from_half_row_mirrored(int lane) { return lane / 8 * 8 + 7 - lane % 8; }
static int from_last_of_row_before(int lane) { return lane / 16 % 2 ? lane / 16 * 16 - 1 : -1; }
static int from_lane_31(int lane) { return lane >= 32 ? 31 : -1; }
static int from_sixth_of_row(int lane) { return lane / 16 * 16 + 6; }
static int from_lane_before(int lane) { return lane ? lane - 1 : -1; }
static int from_masked_quad(int lane) { return lane / 4 % 2 ? -1 : lane ^ 3; }
static int from_fifth(int lane) { return (lane * 5 + 3) % 64; }
static int from_opposite(int lane) { return 63 - lane; }
static int from_exclusive_or(int lane) { return lane ^ 5; }
static int from_even_row_opposite(int lane) { return lane / 16 % 2 ? 63 - (lane - 16) : lane; }
static int from_odd_row(int lane) { return lane / 16 % 2 ? 63 - lane : lane + 16; }
static int from_lower_half_opposite(int lane) { return lane / 32 ? 63 - (lane - 32) : lane; }
static int from_upper_half(int lane) { return lane / 32 ? 63 - lane : lane + 32; }
static int from_next_in_quad(int lane) { return lane / 4 * 4 + (lane + 1) % 4; }

static void lanes_move_as_the_modifiers_say(void **state) {
    (void)state;
    check_moves("quad_perm", from_quad_reversed);
    check_moves("row_shl_1", from_row_next);
    check_moves("row_shr_3_zero", from_row_third_before);
    check_moves("row_ror_5", from_row_turned);
    check_moves("row_mirror", from_row_mirrored);
    check_moves("row_half_mirror", from_half_row_mirrored);
    check_moves("row_bcast_15", from_last_of_row_before);
    check_moves("row_bcast_31", from_lane_31);
    check_moves("row_newbcast_6", from_sixth_of_row);
    check_moves("wave_shr_1", from_lane_before);
    check_moves("bank_mask_5", from_masked_quad);
    check_moves("bpermute", from_fifth);
    check_moves("permute", from_opposite);
    check_moves("swizzle_xor", from_exclusive_or);
    check_moves("swizzle_quad", from_next_in_quad);
    if (!on_gfx950()) return;
    check_moves("permlane16_first", from_even_row_opposite);
    check_moves("permlane16_second", from_odd_row);
    check_moves("permlane32_first", from_lower_half_opposite);
    check_moves("permlane32_second", from_upper_half);
}

static void arithmetic_takes_permuted_sources(void **state) {
    u32 in[LANES], out[LANES];
    (void)state;
    for (int lane = 0; lane < LANES; lane++) in[lane] = lane_value(lane);
    run_lanes("add_dpp", in, out);
    for (int lane = 0; lane < LANES; lane++) assert_int_equal(out[lane], lane % 16 ? lane_value(lane - 1) + lane_value(lane) : 7);
    run_lanes("dpp_from_inactive", in, out);
    for (int lane = 0; lane < LANES; lane++) assert_int_equal(out[lane], lane % 2 ? 2000 : lane_value(lane));
}

static void lanes_and_scalars_exchange_values(void **state) {
    u32 in[LANES], out[LANES];
    u64 mask = 0;
    (void)state;
    for (int lane = 0; lane < LANES; lane++) {
        in[lane] = lane_value(lane) + (u32)(lane % 5);
        mask |= (u64)(in[lane] % 3 == 0) << lane;
    }
    run_lanes("read_lane", in, out);
    for (int lane = 0; lane < LANES; lane++) assert_int_equal(out[lane], in[lane] + in[17]);
    run_lanes("read_first_active", in, out);
    for (int lane = 0; lane < LANES; lane++) assert_int_equal(out[lane], lane >= 9 ? in[9] : 0);
    run_lanes("ballot", in, out);
    for (int lane = 0; lane < LANES; lane++) assert_int_equal(out[lane], (u32)(lane < 32 ? mask : mask >> 32));
    run_lanes("count_below", in, out);
    for (int lane = 0; lane < LANES; lane++) assert_int_equal(out[lane], __builtin_popcountll(mask & ((1ull << lane) - 1)));
}

static void the_mode_register_says_how_floats_are_rounded_and_flushed(void **state) {
    u32 in[LANES], out[LANES];
    (void)state;
    for (int lane = 0; lane < LANES; lane++) in[lane] = (u32)(lane + 1) << 17;
    run_lanes("flushed_sum", in, out);
    for (int lane = 0; lane < LANES; lane++) assert_int_equal(out[lane], in[lane] < 0x800000 ? 0 : in[lane] + 0x800000);
    for (int lane = 0; lane < LANES; lane++) in[lane] = fb(0x1.fp-24f * (float)(lane + 1)); /* between the 24-bit neighbors of 1 */
    run_lanes("truncated_sum", in, out);
    for (int lane = 0; lane < LANES; lane++) assert_int_equal(out[lane], 0x3f800000 + (u32)floor(ldexp((double)f(in[lane]), 23)));
}

/* -- Memory -------------------------------------------------------------------------------------------------------- */

static void expect_read_pairs(int lane, const u32 *x, u32 *out) { (void)lane, out[0] = x[3], out[1] = x[1], out[2] = x[0], out[3] = x[2]; }
static void expect_write_pairs(int lane, const u32 *x, u32 *out) { (void)lane, out[1] = x[0], out[2] = x[2] & 0xffff, out[3] = x[1]; }
static void expect_write_strides(int lane, const u32 *x, u32 *out) {
    (void)lane, out[0] = x[1], out[1] = x[0], out[2] = x[2], out[3] = x[3];
}
static void expect_write_two(int lane, const u32 *x, u32 *out) { (void)lane, out[0] = x[2], out[1] = x[3], out[2] = x[0], out[3] = x[1]; }
static void expect_read_half(int lane, const u32 *x, u32 *out) { (void)lane, out[0] = x[1] >> 16, out[1] = x[0] & 0xffff; }
static void expect_add(int lane, const u32 *x, u32 *out) { (void)lane, out[1] = x[0], out[2] = x[0] + x[1]; }
static void expect_accumulators(int lane, const u32 *x, u32 *out) { (void)lane, out[0] = x[0], out[1] = 7; }
static void expect_write_lane(int lane, const u32 *x, u32 *out) { out[0] = lane == 9 ? 5 : x[0]; }
static void expect_buffer(int lane, const u32 *x, u32 *out) {
    for (int i = 0; i < 4 && lane < 32; i++) out[i] = x[i];
}
static void expect_buffer_write(int lane, const u32 *x, u32 *out) {
    for (int i = 0; i < 4 && lane < 32; i++) out[i] = i ? x[i] : ~x[i];
}
static void expect_store_three(int lane, const u32 *x, u32 *out) { (void)lane, memcpy(out, x, 16), out[0] = ~x[0]; }
static void expect_scalar(int lane, const u32 *x, u32 *out) {
    const u32 *first = x - 4 * lane + 4;
    out[0] = first[0], out[1] = first[15], out[2] = first[7], out[3] = first[8];
}
static void expect_branches(int lane, const u32 *x, u32 *out) { (void)lane, (void)x, out[1] = 2; }
/* Halves of 4 rows of 16, a row in 4 lanes: this lane gets a column of the lanes' first 8 bytes, then one of the others. */
static void expect_transposed(int lane, const u32 *x, u32 *out) {
    const u32 *first = x - 4 * (lane % 16);
    for (int i = 0; i < 8; i++) {
        const u32 *from = first + 4 * (i % 4 * 4 + lane % 16 / 4) + i / 4 * 2;
        out[i / 2] |= (from[lane % 4 / 2] >> lane % 2 * 16 & 0xffff) << i % 2 * 16;
    }
}
static void expect_other_half(int lane, const u32 *x, u32 *out) { memcpy(out, lane < 32 ? x + 4 * 32 : x - 4 * 32, 16); }
static void expect_bytes(int lane, const u32 *x, u32 *out) {
    out[0] = ((u32)(signed char)x[0] & 0xffffff) | (x[0] >> 16 & 255) << 24, out[1] = x[0] >> 8 & 255, out[2] = (u32)lane * 3,
    out[3] = ((u32)lane << 8) + 7;
}
static void expect_halves(int lane, const u32 *x, u32 *out) {
    (void)lane;
    for (int i = 0; i < 4; i++) out[i] = x[i] << 16 | x[i] >> 16;
}

static void loads_and_stores_of_every_form_move_what_they_say(void **state) {
    static const struct {
        const char *kernel;
        void (*expect)(int lane, const u32 *x, u32 *out);
        bool gfx950;
    } moves[] = {{"lds_read_pairs", expect_read_pairs}, {"lds_write_pairs", expect_write_pairs},
        {"lds_write_strides", expect_write_strides}, {"lds_write_two", expect_write_two}, {"lds_write_two_strides", expect_write_two},
        {"lds_read_two", expect_write_two}, {"lds_read_half", expect_read_half}, {"lds_add", expect_add},
        {"accumulators", expect_accumulators}, {"write_lane", expect_write_lane}, {"buffer_read", expect_buffer},
        {"buffer_write", expect_buffer_write}, {"store_three", expect_store_three}, {"scalar_read", expect_scalar},
        {"branch_on_vcc", expect_branches}, {"halves", expect_halves}, {"bytes", expect_bytes},
        {"lds_read_transposed", expect_transposed, true}, {"buffer_to_lds", expect_other_half, true},
        {"global_to_lds", expect_other_half, true}};
    u32 in[4 * LANES], out[4 * LANES];
    (void)state;
    random_state = 4;
    for (int i = 0; i < 4 * LANES; i++) in[i] = (u32)random_bits();
    void *device_in = device_copy(in, sizeof in), *device_out = device_memory(sizeof out);
    void *arguments[] = {&device_out, &device_in};
    for (size_t m = 0; m < sizeof moves / sizeof *moves; m++) {
        if (moves[m].gfx950 && !on_gfx950()) continue;
        assert_int_equal(launch(hip.memory, moves[m].kernel, line(1, LANES), arguments, NULL), 0);
        assert_int_equal(hip.hipMemcpyDtoH(out, device_out, sizeof out), 0);
        for (int lane = 0; lane < LANES; lane++) {
            u32 expected[4] = {0};
            moves[m].expect(lane, in + 4 * lane, expected);
            for (int i = 0; i < 4; i++)
                if (out[4 * lane + i] != expected[i])
                    fail_msg("%s: dword %d of lane %d is %x, not %x", moves[m].kernel, i, lane, out[4 * lane + i], expected[i]);
        }
    }
    assert_int_equal(hip.hipFree(device_in) | hip.hipFree(device_out), 0);
}

static void lds_is_as_large_as_the_gpu_has_it(void **state) {
    enum { LDS_PER_BLOCK = 74 };
    u32 in[LANES], out[LANES];
    int bytes = 0, expected = on_gfx950() ? 163840 : 65536;
    (void)state;
    assert_int_equal(hip.hipDeviceGetAttribute(&bytes, LDS_PER_BLOCK, 0), 0);
    assert_int_equal(bytes, expected);
    if (!on_gfx950()) return;
    for (int lane = 0; lane < LANES; lane++) in[lane] = lane_value(lane);
    u32 *from = device_copy(in, sizeof in), *to = device_memory(sizeof out);
    void *arguments[] = {&to, &from};
    assert_int_equal(launch(hip.memory, "lds_of_160_kib", line(1, LANES), arguments, NULL), 0);
    assert_int_equal(hip.hipMemcpyDtoH(out, to, sizeof out), 0);
    assert_memory_equal(out, in, sizeof in);
    Shape more = line(1, LANES);
    more.shared = 4;
    assert_int_not_equal(launch(hip.memory, "lds_of_160_kib", more, arguments, NULL), 0);
    assert_int_equal(hip.hipFree(from) | hip.hipFree(to), 0);
}

/* -- Matrix instructions ------------------------------------------------------------------------------------------- */

typedef enum Element { BF16, F16, F32, I8, FP8, BF8 } Element;
typedef struct MatrixShape {
    const char *name;
    Element element, right; /* of A, of B */
    int size, depth, blocks, per_lane;
    bool gfx950;
} MatrixShape;

static void store_element(Element element, uint8_t *lane, int j, int value) {
    uint16_t half = element == BF16 ? to_bf16((float)value) : (uint16_t)hb((float)value);
    float single = (float)value;
    switch (element) {
    case BF16:
    case F16: memcpy(lane + 2 * j, &half, 2); break;
    case F32: memcpy(lane + 4 * j, &single, 4); break;
    case I8: lane[j] = (uint8_t)value; break;
    case FP8: lane[j] = (uint8_t)fp8_code(single, FP8_E4M3); break;
    case BF8: lane[j] = (uint8_t)fp8_code(single, FP8_E5M2); break;
    }
}

/* A lane's values are one row of A (or column of B) of one block, at depths that follow one another. */
static void pack_matrix(const MatrixShape *m, Element element, uint8_t *lanes, int lane_bytes, int seed) {
    int groups = m->depth / m->per_lane;
    for (int lane = 0; lane < LANES; lane++) {
        int row = lane % m->size, group = lane / m->size, block = group / groups;
        for (int j = 0; j < m->per_lane; j++) {
            int k = group % groups * m->per_lane + j;
            store_element(element, lanes + lane * lane_bytes, j, small_value((block * m->size + row) * m->depth + k, seed));
        }
    }
}

static void check_matrix(const MatrixShape *m) {
    int registers = m->size * m->size * m->blocks / LANES, lane_bytes = m->element == F32 ? 4 : m->gfx950 ? 16 : 8;
    uint8_t a[LANES * 16] = {0}, b[LANES * 16] = {0};
    u32 c[32 * LANES], d[32 * LANES];
    pack_matrix(m, m->element, a, lane_bytes, 1);
    pack_matrix(m, m->right, b, lane_bytes, 2);
    for (int i = 0; i < registers * LANES; i++) c[i] = m->element == I8 ? (u32)small_value(i, 3) : fb((float)small_value(i, 3));
    void *device_a = device_copy(a, sizeof a), *device_b = device_copy(b, sizeof b), *device_c = device_copy(c, sizeof c),
         *device_d = device_memory(sizeof d);
    void *arguments[] = {&device_d, &device_a, &device_b, &device_c};
    assert_int_equal(launch(modules.matrix, m->name, line(1, LANES), arguments, NULL), 0);
    assert_int_equal(hip.hipMemcpyDtoH(d, device_d, sizeof(u32) * (size_t)(registers * LANES)), 0);
    for (int r = 0; r < registers; r++)
        for (int lane = 0; lane < LANES; lane++) {
            int column = lane % m->size, block = m->size == 4 ? lane / 4 : r * LANES / (m->size * m->size);
            int row = m->size == 32 ? 8 * (r % 16 / 4) + 4 * (lane / 32) + r % 4 : m->size == 16 ? 4 * (lane / 16) + r % 4 : r;
            int sum = small_value(r * LANES + lane, 3);
            for (int k = 0; k < m->depth; k++)
                sum += small_value((block * m->size + row) * m->depth + k, 1) * small_value((block * m->size + column) * m->depth + k, 2);
            u32 expected = m->element == I8 ? (u32)sum : fb((float)sum);
            if (d[r * LANES + lane] != expected)
                fail_msg("%s: register %d, lane %d holds %x, not %x", m->name, r, lane, d[r * LANES + lane], expected);
        }
    assert_int_equal(hip.hipFree(device_a) | hip.hipFree(device_b) | hip.hipFree(device_c) | hip.hipFree(device_d), 0);
}

static void every_matrix_shape_agrees_with_a_plain_loop(void **state) {
    static const MatrixShape shapes[] = {{"bf16_32x32x8", BF16, BF16, 32, 8, 1, 4}, {"bf16_16x16x16", BF16, BF16, 16, 16, 1, 4},
        {"bf16_32x32x4_2", BF16, BF16, 32, 4, 2, 4}, {"bf16_16x16x4_4", BF16, BF16, 16, 4, 4, 4},
        {"bf16_4x4x4_16", BF16, BF16, 4, 4, 16, 4}, {"f16_32x32x8", F16, F16, 32, 8, 1, 4}, {"f16_16x16x16", F16, F16, 16, 16, 1, 4},
        {"f32_32x32x2", F32, F32, 32, 2, 1, 1}, {"f32_16x16x4", F32, F32, 16, 4, 1, 1}, {"i8_32x32x16", I8, I8, 32, 16, 1, 8},
        {"i8_16x16x32", I8, I8, 16, 32, 1, 8}, {"fp8_32x32x16", FP8, FP8, 32, 16, 1, 8}, {"fp8_16x16x32", FP8, FP8, 16, 32, 1, 8},
        {"fp8_bf8_16x16x32", FP8, BF8, 16, 32, 1, 8}, {"bf16_32x32x16", BF16, BF16, 32, 16, 1, 8, true},
        {"bf16_16x16x32", BF16, BF16, 16, 32, 1, 8, true}, {"f16_32x32x16", F16, F16, 32, 16, 1, 8, true},
        {"f16_16x16x32", F16, F16, 16, 32, 1, 8, true}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (!shapes[i].gfx950 || on_gfx950()) check_matrix(&shapes[i]);
}

/* Element (line, k) and the exponent of the scale of its 32 elements along k, of A (seed 1) and B (2). */
static int scaled_value(int line, int k, int seed) { return small_value(line * 128 + k, seed); }
static int scale_exponent(int line, int k, int seed) { return (line * 3 + k / 32 * 5 + seed) % 7 - 3; }

/* A lane's 32 bytes are elements of line lane % size: 16 of the first half of the depth, then 16 of the second. Its scale, in byte
 * `which` of a dword whose other bytes must not be read, is that of elements 32 (lane / size) .. of the line. */
static void pack_scaled(int size, Fp8Kind kind, int seed, int which, uint8_t bytes[LANES][32], u32 scales[LANES]) {
    int depth = size == 16 ? 128 : 64;
    for (int lane = 0; lane < LANES; lane++) {
        int line = lane % size, group = lane / size;
        for (int j = 0; j < 32; j++)
            bytes[lane][j] = (uint8_t)fp8_code((float)scaled_value(line, j / 16 * depth / 2 + group * 16 + j % 16, seed), kind);
        scales[lane] = (0xaaaaaaaa & ~(255u << 8 * which)) | (u32)(127 + scale_exponent(line, group * 32, seed)) << 8 * which;
    }
}

static void check_scaled(const char *name, int size, Fp8Kind kind_a, Fp8Kind kind_b, bool scaled, int which_a, int which_b) {
    uint8_t a[LANES][32], b[LANES][32];
    u32 a_scales[LANES], b_scales[LANES], c[16 * LANES], d[16 * LANES];
    int registers = size * size / LANES, depth = size == 16 ? 128 : 64;
    pack_scaled(size, kind_a, 1, which_a, a, a_scales);
    pack_scaled(size, kind_b, 2, which_b, b, b_scales);
    for (int i = 0; i < registers * LANES; i++) c[i] = fb((float)small_value(i, 3));
    void *memory[] = {device_memory(sizeof d), device_copy(a, sizeof a), device_copy(b, sizeof b), device_copy(c, sizeof c),
        device_copy(a_scales, sizeof a_scales), device_copy(b_scales, sizeof b_scales)};
    void *arguments[] = {&memory[0], &memory[1], &memory[2], &memory[3], &memory[4], &memory[5]};
    assert_int_equal(launch(modules.matrix, name, line(1, LANES), arguments, NULL), 0);
    assert_int_equal(hip.hipMemcpyDtoH(d, memory[0], sizeof(u32) * (size_t)(registers * LANES)), 0);
    for (int i = 0; i < registers * LANES; i++) {
        int r = i / LANES, lane = i % LANES, column = lane % size,
            row = size == 32 ? 8 * (r / 4) + 4 * (lane / 32) + r % 4 : 4 * (lane / 16) + r % 4;
        double sum = small_value(i, 3); /* exact in fp32: sums of multiples of 2^-6 below 2^15 */
        for (int k = 0; k < depth; k++)
            sum += ldexp(scaled_value(row, k, 1) * scaled_value(column, k, 2),
                scaled ? scale_exponent(row, k, 1) + scale_exponent(column, k, 2) : 0);
        if (f(d[i]) != (float)sum) fail_msg("%s: row %d, column %d is %g, not %g", name, row, column, (double)f(d[i]), sum);
    }
    for (int i = 0; i < 6; i++) assert_int_equal(hip.hipFree(memory[i]), 0);
}

static void blocks_of_32_elements_have_scales(void **state) {
    (void)state;
    if (!on_gfx950()) skip();
    check_scaled("e4m3_16x16x128", 16, FP8_E4M3, FP8_E4M3, false, 0, 0);
    check_scaled("e4m3_e5m2_16x16x128", 16, FP8_E4M3, FP8_E5M2, false, 0, 0);
    check_scaled("e5m2_e4m3_32x32x64", 32, FP8_E5M2, FP8_E4M3, false, 0, 0);
    check_scaled("scaled_16x16x128", 16, FP8_E4M3, FP8_E4M3, true, 1, 2);
    check_scaled("scaled_32x32x64", 32, FP8_E4M3, FP8_E4M3, true, 0, 3);
}

static bool open_modules(void) {
    return open_library() && (modules.operations = load("operations")) && (modules.lanes = load("lanes")) &&
           (modules.matrix = load("matrix"));
}

int main(void) {
    struct CMUnitTest tests[] = {
        cmocka_unit_test(vector_integer_instructions_compute_what_c_does),
        cmocka_unit_test(packed_and_sub_dword_instructions_compute_what_c_does),
        cmocka_unit_test(vector_float_instructions_compute_what_c_does),
        cmocka_unit_test(vector_half_instructions_compute_what_c_does),
        cmocka_unit_test(vector_comparisons_compute_what_c_does),
        cmocka_unit_test(vector_instructions_of_gfx950_compute_what_c_does),
        cmocka_unit_test(scalar_instructions_compute_what_c_does),
        cmocka_unit_test(lanes_move_as_the_modifiers_say),
        cmocka_unit_test(arithmetic_takes_permuted_sources),
        cmocka_unit_test(lanes_and_scalars_exchange_values),
        cmocka_unit_test(the_mode_register_says_how_floats_are_rounded_and_flushed),
        cmocka_unit_test(loads_and_stores_of_every_form_move_what_they_say),
        cmocka_unit_test(lds_is_as_large_as_the_gpu_has_it),
        cmocka_unit_test(every_matrix_shape_agrees_with_a_plain_loop),
        cmocka_unit_test(blocks_of_32_elements_have_scales),
    };
    if (emulator_is_given() && !open_modules()) return 1;
    return run_on_emulator(tests, sizeof tests / sizeof *tests);
}
