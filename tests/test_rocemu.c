/* The emulator of AMD's GPUs (tools/rocemu) by itself: instructions against C expressions, matrix instructions against a plain product, lane permutations, whole
 * kernels through the HIP functions, and wrong kernels that must be caught. Takes the library from ROCEMU_LIBRARY and the code objects of tests/rocemu from the
 * folder ROCEMU_KERNELS. A kernel that fails spoils its process, so those run in children: this program again, as `test_rocemu fault NAME`. */
#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rocemu/operations.h"

typedef uint32_t u32;
typedef unsigned long long u64;

/* -- The library ---------------------------------------------------------------------------------------------------- */

#define HIP_FUNCTIONS(X)                                                                                                                     \
    X(hipGetDeviceCount, (int *))                                                                                                            \
    X(hipDeviceGetName, (char *, int, int))                                                                                                  \
    X(hipDeviceGetAttribute, (int *, int, int))                                                                                              \
    X(hipMalloc, (void **, size_t))                                                                                                          \
    X(hipFree, (void *))                                                                                                                     \
    X(hipMemcpyHtoD, (void *, const void *, size_t))                                                                                         \
    X(hipMemcpyDtoH, (void *, const void *, size_t))                                                                                         \
    X(hipMemsetD32Async, (void *, int, size_t, void *))                                                                                      \
    X(hipStreamCreate, (void **))                                                                                                            \
    X(hipStreamDestroy, (void *))                                                                                                            \
    X(hipStreamBeginCapture, (void *, int))                                                                                                  \
    X(hipStreamEndCapture, (void *, void **))                                                                                                \
    X(hipGraphInstantiateWithFlags, (void **, void *, unsigned long long))                                                                   \
    X(hipGraphLaunch, (void *, void *))                                                                                                      \
    X(hipGraphDestroy, (void *))                                                                                                             \
    X(hipGraphExecDestroy, (void *))                                                                                                         \
    X(hipDeviceSynchronize, (void))                                                                                                          \
    X(hipModuleLoadData, (void **, const void *))                                                                                            \
    X(hipModuleUnload, (void *))                                                                                                             \
    X(hipModuleGetFunction, (void **, void *, const char *))                                                                                 \
    X(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor, (int *, void *, int, size_t))                                                      \
    X(hipModuleLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))

typedef struct Hip {
    void *library;
#define X(name, parameters) int(*name) parameters;
    HIP_FUNCTIONS(X)
#undef X
    void *basic, *operations, *lanes, *matrix, *faults; /* modules */
} Hip;
static Hip hip; /* set once, before the tests */

static char *read_object(const char *name, size_t *bytes)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s.co", getenv("ROCEMU_KERNELS"), name);
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *object = malloc(*bytes);
    if (object && fread(object, 1, *bytes, file) != *bytes)
        *object = 0;
    fclose(file);
    return object;
}

static void *load(const char *name)
{
    size_t bytes;
    void *module = NULL;
    char *object = read_object(name, &bytes);
    if (object && hip.hipModuleLoadData(&module, object))
        module = NULL;
    if (!module)
        fprintf(stderr, "the code object %s cannot be loaded from the folder ROCEMU_KERNELS\n", name);
    free(object);
    return module;
}

static bool open_library(void)
{
    hip.library = dlopen(getenv("ROCEMU_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    if (!hip.library) {
        fprintf(stderr, "%s\n", dlerror());
        return false;
    }
#define X(name, parameters)                                       \
    if (!(*(void **)&hip.name = dlsym(hip.library, #name))) {     \
        fprintf(stderr, "the library has no %s\n", #name);        \
        return false;                                             \
    }
    HIP_FUNCTIONS(X)
#undef X
    return (hip.basic = load("basic")) && (hip.operations = load("operations")) && (hip.lanes = load("lanes")) && (hip.matrix = load("matrix")) &&
           (hip.faults = load("faults"));
}

static void *device_memory(size_t bytes)
{
    void *memory = NULL;
    assert_int_equal(hip.hipMalloc(&memory, bytes), 0);
    return memory;
}

static void *device_copy(const void *from, size_t bytes)
{
    void *memory = device_memory(bytes);
    assert_int_equal(hip.hipMemcpyHtoD(memory, from, bytes), 0);
    return memory;
}

typedef struct Shape {
    unsigned x, y, z, threads_x, threads_y, threads_z, shared;
} Shape;

static int launch(void *module, const char *name, Shape s, void **arguments, void *stream)
{
    void *function = NULL;
    int error = hip.hipModuleGetFunction(&function, module, name);
    return error ? error
                 : hip.hipModuleLaunchKernel(function, s.x, s.y, s.z, s.threads_x, s.threads_y, s.threads_z, s.shared, stream, arguments, NULL);
}
static Shape line(unsigned blocks, unsigned threads) { return (Shape){blocks, 1, 1, threads, 1, 1, 0}; }

/* -- Values --------------------------------------------------------------------------------------------------------- */

static u64 random_state;
static u64 random_bits(void)
{
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (random_state >> 33) ^ random_state << 31;
}

static float f(u32 bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static u32 fb(float x)
{
    u32 bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static double g(u64 bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static u64 gb(double x)
{
    u64 bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static double g64(float x) { return (double)x; }
static float h(u32 bits)
{
    uint16_t half = (uint16_t)bits;
    _Float16 x;
    memcpy(&x, &half, sizeof x);
    return (float)x;
}
static u32 hb(float x)
{
    _Float16 half = (_Float16)x;
    uint16_t bits;
    memcpy(&bits, &half, sizeof bits);
    return bits;
}
static u32 pair(u32 low, u32 high) { return (low & 0xffff) | high << 16; }
static float bf16(uint16_t bits) { return f((u32)bits << 16); }
static uint16_t to_bf16(float x) { return (uint16_t)(fb(x) >> 16); }

/* What the rows of operations.h call. */
static u32 reversed(u32 x)
{
    u32 result = 0;
    for (int i = 0; i < 32; i++)
        result |= (x >> i & 1) << (31 - i);
    return result;
}
static int sign24(u32 x) { return (int)(x << 8) >> 8; }
static int median(int a, int b, int c) { return a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b); }
static u32 signed_field(u32 x, u32 offset, u32 width)
{
    u32 part = x >> offset & ((1u << width) - 1);
    return width && part >> (width - 1) ? part | ~0u << width : part;
}
/* v_perm_b32: bytes 0 to 3 are b's, 4 to 7 a's; 8 to 11 repeat the signs of the four halves; 12 is 0, more is 255. */
static u32 bytes_of(u32 a, u32 b, u32 selectors)
{
    u32 result = 0;
    for (int i = 0; i < 4; i++) {
        u32 s = selectors >> 8 * i & 255, half = s == 8 ? b & 0xffff : s == 9 ? b >> 16 : s == 10 ? a & 0xffff : a >> 16;
        u32 byte = s < 4 ? b >> 8 * s & 255 : s < 8 ? a >> 8 * (s - 4) & 255 : s < 12 ? (half & 0x8000 ? 255 : 0) : s == 12 ? 0 : 255;
        /* Selectors have their low three bits for bytes 0 to 7 only. */
        result |= byte << 8 * i;
    }
    return result;
}
static u32 dot_bytes(u32 a, u32 b)
{
    u32 sum = 0;
    for (int i = 0; i < 32; i += 8)
        sum += (a >> i & 255) * (b >> i & 255);
    return sum;
}
static u32 sum_differences(u32 a, u32 b)
{
    u32 sum = 0;
    for (int i = 0; i < 32; i += 8)
        sum += (u32)abs((int)(a >> i & 255) - (int)(b >> i & 255));
    return sum;
}
static u64 quads(u64 x)
{
    u64 result = 0;
    for (int i = 0; i < 64; i += 4)
        if (x >> i & 15)
            result |= 15ull << i;
    return result;
}
static float clamped(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }
static float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
static float mantissa(float x)
{
    int exponent;
    return isfinite(x) ? frexpf(x, &exponent) : x;
}
static bool signaling(float x) { return x != x && !(fb(x) & 0x400000); }
/* maxNum of IEEE 754-2008: a signaling NaN wins, a quiet one loses, +0 is more than -0. */
static float larger(float a, float b)
{
    if (signaling(a) || signaling(b))
        return NAN;
    if (a != a || b != b)
        return a != a ? b : a;
    return a > b || (a == b && !signbit(a)) ? a : b;
}
static long long saturated(double x, double low, double high) { return x != x ? 0 : x < low ? (long long)low : x > high ? (long long)high : (long long)x; }
/* The bit of v_cmp_class: signaling and quiet NaN, -inf, -normal, -denormal, -0, then the same upwards. */
static u32 class_of(float x)
{
    int size = 0;
    switch (fpclassify(x)) {
    case FP_NAN: return signaling(x) ? 1 : 2;
    case FP_INFINITE: size = 3; break;
    case FP_NORMAL: size = 2; break;
    case FP_SUBNORMAL: size = 1; break;
    }
    return 1u << (signbit(x) ? 5 - size : 6 + size);
}

/* -- Instructions --------------------------------------------------------------------------------------------------- */

enum { CASES = 4096 };
typedef struct Operands {
    u64 a[CASES], b[CASES], c[CASES];
} Operands;

/* Zeros, infinities, NaNs, denormals, powers, limits of integers and shift counts, of both widths; then bits at random, every second time with a moderate exponent. */
static u64 operand(int i)
{
    static const u32 special[] = {0,          1,          2,          31,         32,         33,         63,         64,         255,        0x7fff,     0x8000,     0xffff,
                                  0x10000,    0x7fffffff, 0x80000000, 0x80000001, 0xffffffff, 0xfffffff0, 0x3f800000, 0xbf800000, 0x3f000000, 0x40490fdb, 0x00800000, 0x007fffff,
                                  0x00000003, 0x80400000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffc12345, 0x4f000000, 0xcf000000, 0x4f7fffff,
                                  0x3c003c00, 0x7c00fc00, 0x7e000001, 0x03ff8001, 0x0706050c, 0x0d080b0a};
    enum { COUNT = sizeof special / sizeof *special };
    if (i < COUNT)
        return special[i] | (u64)special[(i * 7 + 3) % COUNT] << 32;
    u64 bits = random_bits();
    return i % 2 ? bits : (bits & 0x807fffff807fffffull) | (u64)(0x3f000000 + (bits >> 40 & 3) * 0x00800000) * 0x100000001ull;
}

static Operands *make_operands(void)
{
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
static u32 ulp_distance(u32 x, u32 y)
{
    int64_t a = x & 0x80000000 ? -(int64_t)(x & 0x7fffffff) : (int64_t)x, b = y & 0x80000000 ? -(int64_t)(y & 0x7fffffff) : (int64_t)y;
    return (u32)llabs(a - b);
}

static bool results_agree(char kind, u32 ulps, u64 expected, u64 actual)
{
    switch (kind) {
    case 'F': return (f((u32)expected) != f((u32)expected) && f((u32)actual) != f((u32)actual)) || ulp_distance((u32)expected, (u32)actual) <= ulps;
    case 'G': return (g(expected) != g(expected) && g(actual) != g(actual)) || expected == actual;
    case 'H': return (h((u32)expected) != h((u32)expected) && h((u32)actual) != h((u32)actual)) || (u32)expected == (u32)actual;
    case 'P': return results_agree('H', 0, expected & 0xffff, actual & 0xffff) && results_agree('H', 0, expected >> 16 & 0xffff, actual >> 16 & 0xffff);
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

static void check_rows(const char *prefix, const Row *rows, size_t count)
{
    Operands *operands = make_operands();
    bool scalar = !strcmp(prefix, "scalar");
    u64 *a = device_copy(operands->a, sizeof operands->a), *b = device_copy(operands->b, sizeof operands->b), *c = device_copy(operands->c, sizeof operands->c);
    u64 *out = device_memory(sizeof operands->a), *actual = malloc(sizeof operands->a);
    void *arguments[] = {&out, &a, &b, &c};
    for (size_t r = 0; r < count; r++) {
        char name[64];
        snprintf(name, sizeof name, "%s_%s", prefix, rows[r].name);
        assert_int_equal(launch(hip.operations, name, scalar ? line(CASES, 1) : line(CASES / 256, 256), arguments, NULL), 0);
        assert_int_equal(hip.hipMemcpyDtoH(actual, out, sizeof operands->a), 0);
        for (int i = 0; i < CASES; i++) {
            u64 expected = rows[r].expected(operands->a[i], operands->b[i], operands->c[i]);
            if (!results_agree(rows[r].kind, rows[r].ulps, expected, actual[i]))
                fail_msg("%s(%llx, %llx, %llx) = %llx, not %llx", name, operands->a[i], operands->b[i], operands->c[i], actual[i], expected);
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
#undef X

static void scalar_instructions_compute_what_c_does(void **state)
{
#define X(name, D, A, B, assembly, expression) {#name, 'I', 0, expected_##name},
    static const Row rows[] = {SCALAR_OPERATIONS(X)};
#undef X
    (void)state;
    check_rows("scalar", rows, sizeof rows / sizeof *rows);
}

/* -- Lanes ---------------------------------------------------------------------------------------------------------- */

enum { LANES = 64 };
static u32 lane_value(int lane) { return (u32)lane * 3 + 100; }

static void run_lanes(const char *name, const u32 in[LANES], u32 out[LANES])
{
    u32 *from = device_copy(in, LANES * sizeof *in), *to = device_memory(LANES * sizeof *out);
    void *arguments[] = {&to, &from};
    assert_int_equal(launch(hip.lanes, name, line(1, LANES), arguments, NULL), 0);
    assert_int_equal(hip.hipMemcpyDtoH(out, to, LANES * sizeof *out), 0);
    assert_int_equal(hip.hipFree(from) | hip.hipFree(to), 0);
}

/* `source` gives the lane that each reads; -1 keeps 1000, -2 gives 0. */
static void check_moves(const char *name, int (*source)(int lane))
{
    u32 in[LANES], out[LANES];
    for (int lane = 0; lane < LANES; lane++)
        in[lane] = lane_value(lane);
    run_lanes(name, in, out);
    for (int lane = 0; lane < LANES; lane++) {
        int from = source(lane);
        u32 expected = from == -1 ? 1000 : from == -2 ? 0 : lane_value(from);
        if (out[lane] != expected)
            fail_msg("%s: lane %d got %u, not %u", name, lane, out[lane], expected);
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
static int from_next_in_quad(int lane) { return lane / 4 * 4 + (lane + 1) % 4; }

static void lanes_move_as_the_modifiers_say(void **state)
{
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
}

static void arithmetic_takes_permuted_sources(void **state)
{
    u32 in[LANES], out[LANES];
    (void)state;
    for (int lane = 0; lane < LANES; lane++)
        in[lane] = lane_value(lane);
    run_lanes("add_dpp", in, out);
    for (int lane = 0; lane < LANES; lane++)
        assert_int_equal(out[lane], lane % 16 ? lane_value(lane - 1) + lane_value(lane) : 7);
    run_lanes("dpp_from_inactive", in, out);
    for (int lane = 0; lane < LANES; lane++)
        assert_int_equal(out[lane], lane % 2 ? 2000 : lane_value(lane));
}

static void lanes_and_scalars_exchange_values(void **state)
{
    u32 in[LANES], out[LANES];
    u64 mask = 0;
    (void)state;
    for (int lane = 0; lane < LANES; lane++) {
        in[lane] = lane_value(lane) + (u32)(lane % 5);
        mask |= (u64)(in[lane] % 3 == 0) << lane;
    }
    run_lanes("read_lane", in, out);
    for (int lane = 0; lane < LANES; lane++)
        assert_int_equal(out[lane], in[lane] + in[17]);
    run_lanes("read_first_active", in, out);
    for (int lane = 0; lane < LANES; lane++)
        assert_int_equal(out[lane], lane >= 9 ? in[9] : 0);
    run_lanes("ballot", in, out);
    for (int lane = 0; lane < LANES; lane++)
        assert_int_equal(out[lane], (u32)(lane < 32 ? mask : mask >> 32));
    run_lanes("count_below", in, out);
    for (int lane = 0; lane < LANES; lane++)
        assert_int_equal(out[lane], __builtin_popcountll(mask & ((1ull << lane) - 1)));
}

static void the_mode_register_says_how_floats_are_rounded_and_flushed(void **state)
{
    u32 in[LANES], out[LANES];
    (void)state;
    for (int lane = 0; lane < LANES; lane++)
        in[lane] = (u32)(lane + 1) << 17;
    run_lanes("flushed_sum", in, out);
    for (int lane = 0; lane < LANES; lane++)
        assert_int_equal(out[lane], in[lane] < 0x800000 ? 0 : in[lane] + 0x800000);
    for (int lane = 0; lane < LANES; lane++)
        in[lane] = fb(0x1.fp-24f * (float)(lane + 1)); /* between the 24-bit neighbours of 1 */
    run_lanes("truncated_sum", in, out);
    for (int lane = 0; lane < LANES; lane++)
        assert_int_equal(out[lane], 0x3f800000 + (u32)floor(ldexp((double)f(in[lane]), 23)));
}

/* -- Matrix instructions -------------------------------------------------------------------------------------------- */

static float fp8(uint8_t bits) /* e4m3 FNUZ: bias 8, no infinity */
{
    int exponent = bits >> 3 & 15, mantissa_bits = bits & 7;
    float x = exponent ? ldexpf(1 + (float)mantissa_bits / 8, exponent - 8) : ldexpf((float)mantissa_bits / 8, -7);
    return bits & 128 ? -x : x;
}

typedef enum Element { BF16, F16, F32, I8, FP8 } Element;
typedef struct MatrixShape {
    const char *name;
    Element element;
    int size, depth, blocks, per_lane;
} MatrixShape;

/* A small whole number, exact in every type, so that the order of sums cannot matter. */
static int small_value(int i, int seed) { return (i * 7 + seed * 5 + i / 9) % 9 - 4; }

static void store_element(Element element, uint8_t *lane, int j, int value)
{
    static const uint8_t fp8_of[5] = {0x00, 0x40, 0x48, 0x4c, 0x50}; /* 0 to 4 */
    uint16_t half = element == BF16 ? to_bf16((float)value) : (uint16_t)hb((float)value);
    float single = (float)value;
    switch (element) {
    case BF16:
    case F16: memcpy(lane + 2 * j, &half, 2); break;
    case F32: memcpy(lane + 4 * j, &single, 4); break;
    case I8: lane[j] = (uint8_t)value; break;
    case FP8: lane[j] = (uint8_t)(fp8_of[abs(value)] | (value < 0 ? 128 : 0)); break;
    }
}

/* A lane's values are one row of A (or column of B) of one block, at depths that follow one another. */
static void pack_matrix(const MatrixShape *m, uint8_t *lanes, int lane_bytes, int seed)
{
    int groups = m->depth / m->per_lane;
    for (int lane = 0; lane < LANES; lane++) {
        int row = lane % m->size, group = lane / m->size, block = group / groups;
        for (int j = 0; j < m->per_lane; j++) {
            int k = group % groups * m->per_lane + j;
            store_element(m->element, lanes + lane * lane_bytes, j, small_value((block * m->size + row) * m->depth + k, seed));
        }
    }
}

static void check_matrix(const MatrixShape *m)
{
    int registers = m->size * m->size * m->blocks / LANES, lane_bytes = m->element == F32 ? 4 : 8;
    uint8_t a[LANES * 8] = {0}, b[LANES * 8] = {0};
    u32 c[32 * LANES], d[32 * LANES];
    pack_matrix(m, a, lane_bytes, 1);
    pack_matrix(m, b, lane_bytes, 2);
    for (int i = 0; i < registers * LANES; i++)
        c[i] = m->element == I8 ? (u32)small_value(i, 3) : fb((float)small_value(i, 3));
    void *device_a = device_copy(a, sizeof a), *device_b = device_copy(b, sizeof b), *device_c = device_copy(c, sizeof c), *device_d = device_memory(sizeof d);
    void *arguments[] = {&device_d, &device_a, &device_b, &device_c};
    assert_int_equal(launch(hip.matrix, m->name, line(1, LANES), arguments, NULL), 0);
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

static void every_matrix_shape_agrees_with_a_plain_product(void **state)
{
    static const MatrixShape shapes[] = {
        {"bf16_32x32x8", BF16, 32, 8, 1, 4},   {"bf16_16x16x16", BF16, 16, 16, 1, 4}, {"bf16_32x32x4_2", BF16, 32, 4, 2, 4}, {"bf16_16x16x4_4", BF16, 16, 4, 4, 4},
        {"bf16_4x4x4_16", BF16, 4, 4, 16, 4},  {"f16_32x32x8", F16, 32, 8, 1, 4},     {"f16_16x16x16", F16, 16, 16, 1, 4},   {"f32_32x32x2", F32, 32, 2, 1, 1},
        {"f32_16x16x4", F32, 16, 4, 1, 1},     {"i8_32x32x16", I8, 32, 16, 1, 8},     {"i8_16x16x32", I8, 16, 32, 1, 8},     {"fp8_32x32x16", FP8, 32, 16, 1, 8},
        {"fp8_16x16x32", FP8, 16, 32, 1, 8}};
    (void)state;
    assert_float_equal(fp8(0x4c), 3, 0); /* the table of store_element against the format */
    assert_float_equal(fp8(0x50), 4, 0);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_matrix(&shapes[i]);
}

/* -- Whole kernels -------------------------------------------------------------------------------------------------- */

static void a_grid_adds_vectors_and_leaves_the_rest(void **state)
{
    enum { COUNT = 1000 };
    float a[COUNT], b[COUNT], c[COUNT + 24];
    int count = COUNT;
    (void)state;
    for (int i = 0; i < COUNT; i++)
        a[i] = (float)i, b[i] = (float)i * 0.7f;
    for (int i = 0; i < COUNT + 24; i++)
        c[i] = -1;
    float *device_a = device_copy(a, sizeof a), *device_b = device_copy(b, sizeof b), *device_c = device_copy(c, sizeof c);
    void *arguments[] = {&device_c, &device_a, &device_b, &count};
    assert_int_equal(launch(hip.basic, "vector_add", line(4, 256), arguments, NULL), 0);
    hip.hipMemcpyDtoH(c, device_c, sizeof c);
    for (int i = 0; i < COUNT + 24; i++)
        assert_true(c[i] == (i < COUNT ? a[i] + b[i] / 3.0f : -1));
    assert_int_equal(hip.hipFree(device_a) | hip.hipFree(device_b) | hip.hipFree(device_c), 0);
}

static void a_workgroup_sums_through_lds_and_lane_permutations(void **state)
{
    enum { ROWS = 7, COLUMNS = 1000 };
    static float rows[ROWS * COLUMNS];
    float sum[ROWS];
    int columns = COLUMNS;
    (void)state;
    for (int i = 0; i < ROWS * COLUMNS; i++)
        rows[i] = (float)(i % 13);
    float *device_rows = device_copy(rows, sizeof rows), *device_sum = device_memory(sizeof sum);
    void *arguments[] = {&device_sum, &device_rows, &columns};
    assert_int_equal(launch(hip.basic, "row_sum", line(ROWS, 256), arguments, NULL), 0);
    hip.hipMemcpyDtoH(sum, device_sum, sizeof sum);
    for (int r = 0; r < ROWS; r++) {
        float expected = 0;
        for (int i = 0; i < COLUMNS; i++)
            expected += rows[r * COLUMNS + i];
        assert_true(sum[r] == expected); /* whole numbers: exact */
    }
    assert_int_equal(hip.hipFree(device_rows) | hip.hipFree(device_sum), 0);
}

static void check_product(const char *kernel, int tile)
{
    enum { M = 64, N = 96, K = 48 };
    static uint16_t a[M * K], b[N * K];
    static float c[M * N];
    int k = K, n = N;
    for (int i = 0; i < M * K; i++)
        a[i] = to_bf16((float)small_value(i, 1));
    for (int i = 0; i < N * K; i++)
        b[i] = to_bf16((float)small_value(i, 2));
    void *device_a = device_copy(a, sizeof a), *device_b = device_copy(b, sizeof b), *device_c = device_memory(sizeof c);
    void *arguments[] = {&device_c, &device_a, &device_b, &k, &n};
    assert_int_equal(launch(hip.basic, kernel, (Shape){N / (unsigned)tile, M / (unsigned)tile, 1, LANES, 1, 1, 0}, arguments, NULL), 0);
    hip.hipMemcpyDtoH(c, device_c, sizeof c);
    for (int i = 0; i < M * N; i++) {
        float expected = 0;
        for (int j = 0; j < K; j++)
            expected += bf16(a[i / N * K + j]) * bf16(b[i % N * K + j]);
        assert_true(c[i] == expected);
    }
    assert_int_equal(hip.hipFree(device_a) | hip.hipFree(device_b) | hip.hipFree(device_c), 0);
}

static void tiles_multiply_matrices(void **state)
{
    (void)state;
    check_product("product_32", 32);
    check_product("product_16", 16);
}

static void work_items_know_their_place_in_three_dimensions(void **state)
{
    enum { WIDTH = 5, HEIGHT = 4, DEPTH = 6, GROUPS = 12, COUNT = GROUPS * WIDTH * HEIGHT * DEPTH };
    u32 out[COUNT];
    u32 *device_out = device_memory(sizeof out);
    void *arguments[] = {&device_out};
    (void)state;
    assert_int_equal(launch(hip.basic, "ids", (Shape){3, 2, 2, WIDTH, HEIGHT, DEPTH, 0}, arguments, NULL), 0);
    hip.hipMemcpyDtoH(out, device_out, sizeof out);
    for (u32 i = 0; i < COUNT; i++)
        assert_int_equal(out[i], i % WIDTH | i / WIDTH % HEIGHT << 8 | i / (WIDTH * HEIGHT) % DEPTH << 16 | i / (WIDTH * HEIGHT * DEPTH) << 24);
    hip.hipFree(device_out);
}

static void atomics_of_all_workgroups_add_up(void **state)
{
    enum { COUNT = 16 * 256 };
    u32 values[COUNT], bins[16] = {0}, expected[16] = {0};
    (void)state;
    random_state = 2;
    for (int i = 0; i < COUNT; i++)
        expected[(values[i] = (u32)random_bits()) % 16]++;
    u32 *device_values = device_copy(values, sizeof values), *device_bins = device_copy(bins, sizeof bins);
    void *arguments[] = {&device_bins, &device_values};
    assert_int_equal(launch(hip.basic, "histogram", line(16, 256), arguments, NULL), 0);
    hip.hipMemcpyDtoH(bins, device_bins, sizeof bins);
    assert_memory_equal(bins, expected, sizeof bins);
    assert_int_equal(hip.hipFree(device_values) | hip.hipFree(device_bins), 0);
}

static void dynamic_lds_scratch_and_calls_work(void **state)
{
    float in[256], out[256];
    u32 index[LANES], picked[LANES];
    int terms = 5;
    (void)state;
    for (int i = 0; i < 256; i++)
        in[i] = (float)i;
    for (int i = 0; i < LANES; i++)
        index[i] = (u32)(i * 11);
    float *device_in = device_copy(in, sizeof in), *device_out = device_memory(sizeof out);
    u32 *device_index = device_copy(index, sizeof index), *device_picked = device_memory(sizeof picked);
    void *reverse[] = {&device_out, &device_in}, *scratch[] = {&device_picked, &device_index}, *calls[] = {&device_out, &terms};
    assert_int_equal(launch(hip.basic, "reverse", (Shape){1, 1, 1, 256, 1, 1, 1024}, reverse, NULL), 0);
    hip.hipMemcpyDtoH(out, device_out, sizeof out);
    for (int i = 0; i < 256; i++)
        assert_true(out[i] == in[255 - i]);
    assert_int_equal(launch(hip.basic, "scratch", line(1, LANES), scratch, NULL), 0);
    hip.hipMemcpyDtoH(picked, device_picked, sizeof picked);
    for (int i = 0; i < LANES; i++)
        assert_int_equal(picked[i], index[i] % 32 * 1000 + (u32)i);
    assert_int_equal(launch(hip.basic, "calls", line(1, LANES), calls, NULL), 0);
    hip.hipMemcpyDtoH(out, device_out, LANES * sizeof *out);
    for (int i = 0; i < LANES; i++) {
        float x = (float)i / 64;
        assert_float_equal(out[i], 4 + x * (3 + x * (2 + x)) + 6.125f - 0.5f * 0, 1e-6); /* rounding of four terms */
    }
    assert_int_equal(hip.hipFree(device_in) | hip.hipFree(device_out) | hip.hipFree(device_index) | hip.hipFree(device_picked), 0);
}

/* -- HIP ------------------------------------------------------------------------------------------------------------ */

static void the_device_says_what_it_is(void **state)
{
    char name[64];
    int count = 0, units = 0, wave = 0, major = 0, lds = 0;
    (void)state;
    assert_int_equal(hip.hipGetDeviceCount(&count), 0);
    assert_int_equal(count, 1);
    hip.hipDeviceGetName(name, sizeof name, 0);
    assert_non_null(strstr(name, "emulated"));
    hip.hipDeviceGetAttribute(&units, 63, 0); /* hipDeviceAttributeMultiprocessorCount */
    hip.hipDeviceGetAttribute(&wave, 87, 0);  /* hipDeviceAttributeWarpSize */
    hip.hipDeviceGetAttribute(&major, 23, 0); /* hipDeviceAttributeComputeCapabilityMajor */
    hip.hipDeviceGetAttribute(&lds, 74, 0);   /* hipDeviceAttributeMaxSharedMemoryPerBlock */
    assert_int_equal(units, 304);
    assert_int_equal(wave, 64);
    assert_int_equal(major, 9);
    assert_int_equal(lds, 65536);
}

static void a_captured_graph_replays_launches_and_fills(void **state)
{
    enum { COUNT = 256 };
    float ones[COUNT], out[COUNT];
    int count = COUNT;
    void *stream, *graph, *executable;
    (void)state;
    for (int i = 0; i < COUNT; i++)
        ones[i] = 3;
    float *a = device_copy(ones, sizeof ones), *b = device_copy(ones, sizeof ones);
    void *arguments[] = {&a, &a, &b, &count}; /* a += b / 3 */
    assert_int_equal(hip.hipStreamCreate(&stream), 0);
    assert_int_equal(hip.hipStreamBeginCapture(stream, 0), 0);
    assert_int_equal(hip.hipMemsetD32Async(a, 0x40800000, 1, stream), 0); /* a[0] = 4 */
    assert_int_equal(launch(hip.basic, "vector_add", line(1, 256), arguments, stream), 0);
    assert_int_equal(hip.hipStreamEndCapture(stream, &graph), 0);
    hip.hipMemcpyDtoH(out, a, sizeof out);
    assert_memory_equal(out, ones, sizeof out); /* nothing ran yet */
    assert_int_equal(hip.hipGraphInstantiateWithFlags(&executable, graph, 0), 0);
    assert_int_equal(hip.hipGraphDestroy(graph), 0);
    assert_int_equal(hip.hipGraphLaunch(executable, stream), 0);
    assert_int_equal(hip.hipGraphLaunch(executable, stream), 0);
    hip.hipMemcpyDtoH(out, a, sizeof out);
    assert_true(out[0] == 5);
    assert_true(out[1] == 5);
    assert_int_equal(hip.hipGraphExecDestroy(executable) | hip.hipStreamDestroy(stream) | hip.hipFree(a) | hip.hipFree(b), 0);
}

static void copies_beyond_an_allocation_and_double_frees_are_refused(void **state)
{
    char bytes[128] = {0};
    void *memory = device_memory(100);
    (void)state;
    assert_int_equal(hip.hipMemcpyHtoD(memory, bytes, 100), 0);
    assert_int_not_equal(hip.hipMemcpyHtoD(memory, bytes, 101), 0);
    assert_int_not_equal(hip.hipMemcpyDtoH(bytes, (char *)memory + 50, 51), 0);
    assert_int_equal(hip.hipFree(memory), 0);
    assert_int_not_equal(hip.hipFree(memory), 0);
    assert_int_not_equal(hip.hipMemcpyDtoH(bytes, memory, 1), 0);
}

static void launches_beyond_the_limits_are_refused(void **state)
{
    float *memory = device_memory(4096);
    void *arguments[] = {&memory, &memory};
    (void)state;
    assert_int_not_equal(launch(hip.basic, "reverse", (Shape){1, 1, 1, 256, 1, 1, 65537}, arguments, NULL), 0);
    assert_int_not_equal(launch(hip.basic, "reverse", (Shape){1, 1, 1, 2048, 1, 1, 0}, arguments, NULL), 0);
    assert_int_not_equal(launch(hip.basic, "reverse", (Shape){0, 1, 1, 64, 1, 1, 0}, arguments, NULL), 0);
    assert_int_not_equal(launch(hip.basic, "no_such_kernel", line(1, 64), arguments, NULL), 0);
    assert_int_equal(hip.hipFree(memory), 0);
}

static void occupancy_follows_registers_and_lds(void **state)
{
    void *function;
    int blocks = 0;
    (void)state;
    assert_int_equal(hip.hipModuleGetFunction(&function, hip.basic, "reverse"), 0);
    assert_int_equal(hip.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 256, 32768), 0);
    assert_int_equal(blocks, 2);
    assert_int_equal(hip.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 256, 0), 0);
    assert_int_equal(blocks, 8);
}

static void code_for_other_gpus_and_other_files_is_refused(void **state)
{
    enum { FLAGS = 48 };
    size_t bytes;
    void *module;
    (void)state;
    char *object = read_object("basic", &bytes);
    assert_non_null(object);
    object[FLAGS] = 0x41; /* EF_AMDGPU_MACH of gfx1100 */
    assert_int_equal(hip.hipModuleLoadData(&module, object), 209); /* hipErrorNoBinaryForGpu */
    object[0] = 'X';
    assert_int_equal(hip.hipModuleLoadData(&module, object), 200); /* hipErrorInvalidImage */
    free(object);
}

/* Headers give the file's size, so damage begins behind them. */
static void damaged_code_objects_do_not_break_the_loader(void **state)
{
    enum { HEADER = 64, ROUNDS = 300 };
    size_t bytes;
    (void)state;
    char *object = read_object("basic", &bytes), *damaged = malloc(bytes);
    assert_non_null(object);
    assert_non_null(damaged);
    random_state = 3;
    for (int round = 0; round < ROUNDS; round++) {
        void *module = NULL, *function;
        memcpy(damaged, object, bytes);
        for (int i = 0; i < 1 + round % 8; i++)
            damaged[HEADER + random_bits() % (round % 2 ? 2048 : bytes - HEADER)] = (char)random_bits();
        if (!hip.hipModuleLoadData(&module, damaged)) {
            hip.hipModuleGetFunction(&function, module, "vector_add");
            hip.hipModuleUnload(module);
        }
    }
    free(damaged);
    free(object);
}

/* -- Wrong kernels -------------------------------------------------------------------------------------------------- */

/* What each must be told, and that it is told with a place. */
static const struct { const char *kernel, *message; } faults[] = {
    {"read_past_the_end", "out-of-bounds read of 4 bytes"}, {"write_past_the_end", "out-of-bounds write"}, {"misaligned_write", "misaligned write of 4 bytes"},
    {"atomic_past_the_end", "out-of-bounds"}, {"freed", "that was freed"}, {"lds_past_the_end", "out-of-bounds LDS write of 4 bytes at 512"},
    {"misaligned_lds", "misaligned LDS write"}, {"unwritten_lds", "a read of LDS byte 4, which nothing wrote"}, {"unwritten_register", "holds nothing that was written"},
    {"unwritten_address", "an address from register v77"}, {"undefined_through_lds", "which nothing wrote"},
    {"race_read_after_write", "reads byte"}, {"race_write_after_read", "writes byte"}, {"race_of_writes", "writes byte 0 that wavefront 0 wrote"},
    {"divergent_barrier", "a divergent barrier: 32 of the wavefront's 64 lanes"}, {"barriers_apart", "waits at another one"},
    {"ended_wavefront", "wavefront 1 does not come to"}, {"unknown_instruction", "v_mqsad_pk_u16_u8"}, {"trap", "trapped"}};

/* In the child: runs the kernel and then asks for anything at all, which must be refused too. */
static int run_fault(const char *kernel)
{
    u32 zeros[256] = {0};
    u32 *buffer = device_copy(zeros, sizeof zeros), *gone = buffer;
    void *arguments[] = {&gone};
    bool freed = !strcmp(kernel, "freed");
    if (freed)
        hip.hipFree(buffer);
    int error = launch(hip.faults, freed ? "write_past_the_end" : kernel, line(1, 128), arguments, NULL);
    return error && hip.hipDeviceSynchronize() == error ? 0 : 3;
}

static char program[512];
static void run_child(const char *kernel, const char *environment, char output[4096])
{
    char command[1024];
    snprintf(command, sizeof command, "%s '%s' fault %s 2>&1", environment, program, kernel);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    output[fread(output, 1, 4095, pipe)] = 0;
    if (pclose(pipe))
        fail_msg("%s was not caught, or later calls did not fail: %s", kernel, output);
}

static void every_wrong_kernel_is_caught_with_its_place(void **state)
{
    char output[4096];
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        const char *kernel = strcmp(faults[i].kernel, "freed") ? faults[i].kernel : "write_past_the_end";
        run_child(faults[i].kernel, "", output);
        if (!strstr(output, faults[i].message) || !strstr(output, kernel) || !strstr(output, "at 0x") || !strstr(output, "workgroup (0, 0, 0)"))
            fail_msg("%s was reported as: %s", faults[i].kernel, output);
    }
}

static void statistics_name_the_kernel_and_the_modelled_bound(void **state)
{
    char output[4096];
    (void)state;
    run_child("write_past_the_end", "ROCEMU_STATS=1", output);
    assert_non_null(strstr(output, "write_past_the_end: 1 launches, 1 workgroups"));
    assert_non_null(strstr(output, "modelled for a full MI300X, not measured"));
}

int main(int count, char **arguments)
{
    const char *library = getenv("ROCEMU_LIBRARY"), *kernels = getenv("ROCEMU_KERNELS");
    if (!library || !kernels) {
        printf("test_rocemu is skipped: ROCEMU_LIBRARY and ROCEMU_KERNELS are not set (make test-amd sets them)\n");
        return 0;
    }
    snprintf(program, sizeof program, "%s", arguments[0]);
    if (!open_library())
        return 1;
    if (count == 3 && !strcmp(arguments[1], "fault"))
        return run_fault(arguments[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vector_integer_instructions_compute_what_c_does),
        cmocka_unit_test(packed_and_sub_dword_instructions_compute_what_c_does),
        cmocka_unit_test(vector_float_instructions_compute_what_c_does),
        cmocka_unit_test(vector_half_instructions_compute_what_c_does),
        cmocka_unit_test(vector_comparisons_compute_what_c_does),
        cmocka_unit_test(scalar_instructions_compute_what_c_does),
        cmocka_unit_test(lanes_move_as_the_modifiers_say),
        cmocka_unit_test(arithmetic_takes_permuted_sources),
        cmocka_unit_test(lanes_and_scalars_exchange_values),
        cmocka_unit_test(the_mode_register_says_how_floats_are_rounded_and_flushed),
        cmocka_unit_test(every_matrix_shape_agrees_with_a_plain_product),
        cmocka_unit_test(a_grid_adds_vectors_and_leaves_the_rest),
        cmocka_unit_test(a_workgroup_sums_through_lds_and_lane_permutations),
        cmocka_unit_test(tiles_multiply_matrices),
        cmocka_unit_test(work_items_know_their_place_in_three_dimensions),
        cmocka_unit_test(atomics_of_all_workgroups_add_up),
        cmocka_unit_test(dynamic_lds_scratch_and_calls_work),
        cmocka_unit_test(the_device_says_what_it_is),
        cmocka_unit_test(a_captured_graph_replays_launches_and_fills),
        cmocka_unit_test(copies_beyond_an_allocation_and_double_frees_are_refused),
        cmocka_unit_test(launches_beyond_the_limits_are_refused),
        cmocka_unit_test(occupancy_follows_registers_and_lds),
        cmocka_unit_test(code_for_other_gpus_and_other_files_is_refused),
        cmocka_unit_test(damaged_code_objects_do_not_break_the_loader),
        cmocka_unit_test(every_wrong_kernel_is_caught_with_its_place),
        cmocka_unit_test(statistics_name_the_kernel_and_the_modelled_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
