/* Matrix instructions (MFMA): D = A B + C over all 64 lanes, whatever EXEC says. A lane holds, of the M x K matrix
 * A, row lane % M and the columns (lane / M) * n ... of its n values; B is held likewise by columns; where K / n is
 * fewer than 64 / M, the groups of lanes are separate blocks. The M x M result:
 *     32 x 32: register r holds row 8 * (r / 4) + 4 * (lane / 32) + r % 4, column lane % 32
 *     16 x 16: row 4 * (lane / 16) + r % 4, column lane % 16          4 x 4: row r, column lane % 4, block lane / 4
 * with the registers of block after block. Products are exact and added in the order of k in fp32, one rounding
 * each; hardware's order is its own. */
#include <stdlib.h>

#include "fp8.h"
#include "hip.h"
#include "undefined.h"

/* ELEMENT_FP8 + i is the Fp8Type i. */
typedef enum ElementType { ELEMENT_F32, ELEMENT_F16, ELEMENT_BF16, ELEMENT_I8, ELEMENT_XF32, ELEMENT_FP8 } ElementType;
enum { MAX_ELEMENTS = 2048 };

/* argument packs the shape: M, K, blocks; argument2 the types of A and B and values per lane. */
#define SHAPE(m, k, blocks) ((m) | (k) << 8 | (blocks) << 16)
#define ELEMENTS(a, b, per_lane) ((a) | (b) << 8 | (per_lane) << 16)

typedef struct MatrixCall {
    int size, depth, blocks;
    /* A as [block][k][row], B as [block][k][column]. */
    _Alignas(64) float a[MAX_ELEMENTS];
    _Alignas(64) float b[MAX_ELEMENTS];
    const uint32_t (*c)[LANES]; /* d, or registers apart from it */
    uint32_t (*d)[LANES];
} MatrixCall;

/* Which of a lane's registers has its element j, and the element in there. */
LANE_INLINE int element_register(ElementType type, int j) {
    switch (type) {
    case ELEMENT_F32:
    case ELEMENT_XF32: return j;
    case ELEMENT_F16:
    case ELEMENT_BF16: return j / 2;
    default: return j / 4;
    }
}
LANE_INLINE float element(uint32_t word, ElementType type, int j) {
    switch (type) {
    case ELEMENT_F32: return bits_float(word);
    case ELEMENT_XF32: return bits_float(word & 0xffffe000);
    case ELEMENT_F16: return half_float((uint16_t)(word >> (16 * (j % 2))));
    case ELEMENT_BF16: return bits_float(word >> (16 * (j % 2)) << 16);
    case ELEMENT_I8: return (float)((int32_t)(word << (24 - 8 * (j % 4))) >> 24);
    default: return fp8_to_float(word >> (8 * (j % 4)), (Fp8Type)(type - ELEMENT_FP8));
    }
}

/* One operand as [block][k][row or column]: neighboring lanes hold neighboring rows of one k, and a lane's elements are of
 * neighboring k, `piece` of them at a time. Type and size are constants in each copy. */
typedef struct GatherCall {
    const uint32_t (*from)[LANES];
    int per_lane, piece;
    float *to;
} GatherCall;
LANE_INLINE void gather_operand(const GatherCall *call, ElementType type, int size) {
    int per_lane = call->per_lane, piece = call->piece, groups = LANES / size;
    for (int group = 0; group < groups; group++)
        for (int j = 0; j < per_lane; j++) {
            int k = (j / piece * groups + group) * piece + j % piece;
            const uint32_t *from = call->from[element_register(type, j)] + group * size;
            float *to = call->to + k * size;
#pragma omp simd
            for (int row = 0; row < size; row++) to[row] = element(from[row], type, j);
        }
}
#define GATHER(name, type)                                                                \
    CORE gather_##name##_32(GatherCall *call) { gather_operand(call, type, 32); } \
    CORE gather_##name##_16(GatherCall *call) { gather_operand(call, type, 16); } \
    CORE gather_##name##_4(GatherCall *call) { gather_operand(call, type, 4); }
GATHER(f32, ELEMENT_F32)
GATHER(f16, ELEMENT_F16)
GATHER(bf16, ELEMENT_BF16)
GATHER(i8, ELEMENT_I8)
GATHER(xf32, ELEMENT_XF32)
GATHER(fp8_fnuz, ELEMENT_FP8 + FP8_FNUZ)
GATHER(bf8_fnuz, ELEMENT_FP8 + BF8_FNUZ)
GATHER(fp8_ocp, ELEMENT_FP8 + FP8_OCP)
GATHER(bf8_ocp, ELEMENT_FP8 + BF8_OCP)

static void gather_type(const Wave *wave, int index, int type, int size, int per_lane, int piece, float *to) {
#define SIZES(name) {gather_##name##_32, gather_##name##_16, gather_##name##_4}
    static void (*const gathers[][3])(GatherCall *) = {[ELEMENT_F32] = SIZES(f32),
        [ELEMENT_F16] = SIZES(f16),
        [ELEMENT_BF16] = SIZES(bf16),
        [ELEMENT_I8] = SIZES(i8),
        [ELEMENT_XF32] = SIZES(xf32),
        [ELEMENT_FP8 + FP8_FNUZ] = SIZES(fp8_fnuz),
        [ELEMENT_FP8 + BF8_FNUZ] = SIZES(bf8_fnuz),
        [ELEMENT_FP8 + FP8_OCP] = SIZES(fp8_ocp),
        [ELEMENT_FP8 + BF8_OCP] = SIZES(bf8_ocp)};
#undef SIZES
    gathers[type][size == 32   ? 0
                  : size == 16 ? 1
                               : 2](&(GatherCall){.from = &wave->vector[index], .per_lane = per_lane, .piece = piece, .to = to});
}

static void gather(const Wave *wave, const Instruction *in, MatrixCall *call) {
    int shape = in->operation->argument, elements = in->operation->argument2, per_lane = elements >> 16;
    call->size = shape & 255, call->depth = shape >> 8 & 255, call->blocks = shape >> 16;
    gather_type(wave, in->operand[1].index, elements & 255, call->size, per_lane, per_lane, call->a);
    gather_type(wave, in->operand[2].index, elements >> 8 & 255, call->size, per_lane, per_lane, call->b);
}

/* Row and block of what register r holds in the lanes `group` * size ... */
LANE_INLINE int result_row(int size, int r, int group) {
    return size == 32 ? 8 * (r % 16 / 4) + 4 * group + r % 4 : size == 16 ? 4 * group + r % 4 : r;
}
LANE_INLINE int result_block(int size, int r, int group) { return size == 32 ? r / 16 : size == 16 ? r / 4 : group; }
static int result_registers(int size, int blocks) { return size * size * blocks / LANES; }

/* Four registers at once: their rows follow one another, and their sums are independent. */
LANE_INLINE void multiply_floats(MatrixCall *call, int size) {
    int registers = result_registers(size, call->blocks), depth = call->depth;
    for (int r = 0; r < registers; r += 4)
        for (int group = 0; group < LANES / size; group++) {
            int block = result_block(size, r, group);
            const float *a = call->a + block * depth * size + result_row(size, r, group), *b = call->b + block * depth * size;
            const uint32_t *c = call->c[r] + group * size;
            uint32_t *d = call->d[r] + group * size;
            float sum[4][32];
            for (int i = 0; i < 4; i++)
#pragma omp simd
                for (int column = 0; column < size; column++) sum[i][column] = bits_float(c[i * LANES + column]);
            for (int k = 0; k < depth; k++)
                for (int i = 0; i < 4; i++)
#pragma omp simd
                    for (int column = 0; column < size; column++)
                        sum[i][column] = fmaf(a[k * size + i], b[k * size + column], sum[i][column]);
            for (int i = 0; i < 4; i++)
#pragma omp simd
                for (int column = 0; column < size; column++) d[i * LANES + column] = float_bits(sum[i][column]);
        }
}
/* Products of bytes are whole numbers that fp32 holds. */
LANE_INLINE void multiply_integers(MatrixCall *call, int size) {
    int registers = result_registers(size, call->blocks), depth = call->depth;
    for (int r = 0; r < registers; r++)
        for (int group = 0; group < LANES / size; group++) {
            int block = result_block(size, r, group);
            const float *a = call->a + block * depth * size + result_row(size, r, group), *b = call->b + block * depth * size;
            uint32_t *d = call->d[r] + group * size;
            memmove(d, call->c[r] + group * size, (size_t)size * sizeof *d);
            for (int k = 0; k < depth; k++)
                for (int column = 0; column < size; column++) d[column] += (uint32_t)(int32_t)(a[k * size] * b[k * size + column]);
        }
}
#define MULTIPLY(size) \
    CORE multiply_floats_##size(MatrixCall *call) { multiply_floats(call, size); } \
    CORE multiply_integers_##size(MatrixCall *call) { multiply_integers(call, size); }
MULTIPLY(32)
MULTIPLY(16)
MULTIPLY(4)

/* A result is defined where its row of A, its column of B and its C are. */
static void define_results(Wave *wave, const Instruction *in, const MatrixCall *call) {
    const Operand *a = &in->operand[1], *b = &in->operand[2], *c = &in->operand[3];
    int size = call->size, registers = result_registers(size, call->blocks), d = in->operand[0].index;
    uint64_t from_a = ~0ull, from_b = ~0ull, row_defined = ~0ull, column_defined = ~0ull;
    for (int r = 0; r < a->registers; r++) from_a &= wave->defined[a->index + r];
    for (int r = 0; r < b->registers; r++) from_b &= wave->defined[b->index + r];
    int groups = call->depth / (in->operation->argument2 >> 16);
    for (int lane = 0; lane < LANES && (~from_a || ~from_b); lane++) {
        uint64_t bit = 1ull << (lane / size / groups * size + lane % size);
        if (!(from_a >> lane & 1)) row_defined &= ~bit;
        if (!(from_b >> lane & 1)) column_defined &= ~bit;
    }
    for (int r = 0; r < registers; r++) {
        uint64_t defined = c->kind == OPERAND_VECTOR ? wave->defined[c->index + r] : ~0ull;
        for (int lane = 0; lane < LANES && (~row_defined || ~column_defined); lane++) {
            int group = lane / size, base = result_block(size, r, group) * size;
            if (!(row_defined >> (base + result_row(size, r, group)) & 1) || !(column_defined >> (base + lane % size) & 1))
                defined &= ~(1ull << lane);
        }
        wave->defined[d + r] = defined;
        if (~defined) {
            wave->partly[d + r] &= defined;
            wave->origin[d + r] = undefined_origin(wave, in, ~defined);
        }
    }
}

/* Dense teraoperations per second of an MI300X. */
static double published_rate(ElementType type) {
    switch (type) {
    case ELEMENT_F32: return 163.4;
    case ELEMENT_XF32: return 653.7;
    case ELEMENT_F16:
    case ELEMENT_BF16: return 1307.4;
    default: return 2614.9;
    }
}

MatrixShape matrix_shape(const Instruction *in) {
    static const unsigned bits[ELEMENT_FP8] = {
        [ELEMENT_F32] = 32, [ELEMENT_F16] = 16, [ELEMENT_BF16] = 16, [ELEMENT_I8] = 8, [ELEMENT_XF32] = 19};
    unsigned shape = (unsigned)in->operation->argument, elements = (unsigned)in->operation->argument2, size = shape & 255,
             depth = shape >> 8 & 255, blocks = shape >> 16;
    unsigned type = elements & 255;
    return (MatrixShape){2 * size * size * depth * blocks, type < ELEMENT_FP8 ? bits[type] : 8, elements >> 16, blocks};
}

/* D = the product of what `call` has gathered + C. */
static void finish_matrix(Wave *wave, const Instruction *in, MatrixCall *call) {
    int registers = result_registers(call->size, call->blocks), to = in->operand[0].index;
    const Operand *c = &in->operand[3];
    define_results(wave, in, call);
    call->c = call->d = &wave->vector[to];
    if (c->kind != OPERAND_VECTOR) {
        uint32_t value = (uint32_t)operand_scalar(wave, c);
        for (int r = 0; r < registers; r++)
            for (int lane = 0; lane < LANES; lane++) wave->vector[to + r][lane] = value;
    } else if (abs(c->index - to) >= registers) {
        call->c = &wave->vector[c->index];
    } else if (c->index != to) {
        memmove(wave->vector[to], wave->vector[c->index], (size_t)registers * sizeof wave->vector[0]);
    }
    bool integers = (in->operation->argument2 & 255) == ELEMENT_I8;
    (call->size == 32      ? (integers ? multiply_integers_32 : multiply_floats_32)
        : call->size == 16 ? (integers ? multiply_integers_16 : multiply_floats_16)
                           : (integers ? multiply_integers_4 : multiply_floats_4))(call);
    if (wave->group->statistics)
        statistics_matrix(wave->group->statistics, 2ull * (unsigned)(call->size * call->size * call->depth * call->blocks),
            published_rate((ElementType)(in->operation->argument2 & 255)));
}

static void execute_matrix(Wave *wave, const Instruction *in) {
    if (in->broadcast_size || in->broadcast_block || in->block_pattern) {
        check_report(wave, in, -1, HIP_ERROR_NOT_SUPPORTED,
            "a matrix instruction with broadcast or permuted blocks, which the emulator does not have");
        return;
    }
    MatrixCall call;
    gather(wave, in, &call);
    finish_matrix(wave, in, &call);
}

/* -- gfx950's f8f6f4: types of A and B by modifiers, and scales ------------------------------------------------------ */

/* 2^(code - 127), or NaN: e8m0 of the OCP Microscaling Formats Specification 1.0. */
static float e8m0_value(uint32_t code) { return code == 255 ? NAN : bits_float(code ? code << 23 : 0x00400000); }

/* A lane's 32 bytes are of one row, half of them in the first half of K and half in the second: bytes 16 i .. 16 i + 15 begin at
 * k = K / 2 i + 16 (lane / M). Of a row, the scale of k = 32 b .. 32 b + 31 is the byte `which` of `scales`, or NULL, in lane M b + row. */
static void gather_scaled(const Wave *wave, int index, Fp8Type type, const MatrixCall *call, const Operand *scales, int which, float *to) {
    float scale[LANES];
    gather_type(wave, index, ELEMENT_FP8 + (int)type, call->size, 32, 16, to);
    if (!scales) return;
    for (int lane = 0; lane < LANES; lane++) {
        uint32_t word = scales->kind == OPERAND_VECTOR ? wave->vector[scales->index][lane] : (uint32_t)operand_scalar(wave, scales);
        scale[lane] = e8m0_value(word >> 8 * which & 255);
    }
    for (int k = 0; k < call->depth; k++)
        for (int row = 0; row < call->size; row++) to[k * call->size + row] *= scale[k / 32 * call->size + row];
}

/* The formats' numbers are those of the modifiers cbsz (of A) and blgp (of B): e4m3, e5m2; then formats of 6 and 4 bits. */
static void execute_f8f6f4(Wave *wave, const Instruction *in) {
    bool scaled = in->operands == 6;
    if (in->broadcast_size > 1 || in->block_pattern > 1) {
        check_report(
            wave, in, -1, HIP_ERROR_NOT_SUPPORTED, "a matrix instruction on formats below 8 bits, which the emulator does not have");
        return;
    }
    int which[2];
    for (int i = 0; i < 2; i++) which[i] = (in->op_sel >> i & 1) | (in->op_sel_hi >> i & 1) << 1;
    for (int i = 4; i < in->operands; i++)
        if (in->operand[i].kind == OPERAND_VECTOR &&
            !undefined_check(wave, in, in->operand[i].index, 1, 0xffu << 8 * which[i - 4], ~0ull, "a scale"))
            return;
    MatrixCall call;
    int shape = in->operation->argument;
    call.size = shape & 255, call.depth = shape >> 8 & 255, call.blocks = 1;
    const Operand *scale = scaled ? &in->operand[4] : NULL;
    gather_scaled(wave, in->operand[1].index, in->broadcast_size ? BF8_OCP : FP8_OCP, &call, scale, which[0], call.a);
    gather_scaled(wave, in->operand[2].index, in->block_pattern ? BF8_OCP : FP8_OCP, &call, scale ? scale + 1 : NULL, which[1], call.b);
    finish_matrix(wave, in, &call);
}

#define MATRIX(name, m, k, blocks, a, b, per_lane) {name, "d:iif", execute_matrix, NULL, NULL, OPERATION_MATRIX, SHAPE(m, k, blocks), ELEMENTS(a, b, per_lane)},
/* Types of 16 bits: the names of gfx942 and of gfx90a. */
#define HALF_SHAPES(new_type, old_type, element)                                                                                                              \
    MATRIX("v_mfma_f32_32x32x8_" new_type, 32, 8, 1, element, element, 4) MATRIX("v_mfma_f32_32x32x8" old_type, 32, 8, 1, element, element, 4)                \
    MATRIX("v_mfma_f32_16x16x16_" new_type, 16, 16, 1, element, element, 4) MATRIX("v_mfma_f32_16x16x16" old_type, 16, 16, 1, element, element, 4)            \
    MATRIX("v_mfma_f32_32x32x4_2b_" new_type, 32, 4, 2, element, element, 4) MATRIX("v_mfma_f32_32x32x4" old_type, 32, 4, 2, element, element, 4)             \
    MATRIX("v_mfma_f32_16x16x4_4b_" new_type, 16, 4, 4, element, element, 4) MATRIX("v_mfma_f32_16x16x4" old_type, 16, 4, 4, element, element, 4)             \
    MATRIX("v_mfma_f32_4x4x4_16b_" new_type, 4, 4, 16, element, element, 4) MATRIX("v_mfma_f32_4x4x4" old_type, 4, 4, 16, element, element, 4)                \
    MATRIX("v_mfma_f32_32x32x16_" new_type, 32, 16, 1, element, element, 8) MATRIX("v_mfma_f32_16x16x32_" new_type, 16, 32, 1, element, element, 8)
#define BYTE_SHAPES(types, a, b) \
    MATRIX("v_mfma_f32_32x32x16_" types, 32, 16, 1, a, b, 8) MATRIX("v_mfma_f32_16x16x32_" types, 16, 32, 1, a, b, 8)
#define FP8_SHAPES(form, fp8, bf8)                                                                                    \
    BYTE_SHAPES("fp8_fp8" form, ELEMENT_FP8 + fp8, ELEMENT_FP8 + fp8) BYTE_SHAPES("fp8_bf8" form, ELEMENT_FP8 + fp8, ELEMENT_FP8 + bf8) \
    BYTE_SHAPES("bf8_fp8" form, ELEMENT_FP8 + bf8, ELEMENT_FP8 + fp8) BYTE_SHAPES("bf8_bf8" form, ELEMENT_FP8 + bf8, ELEMENT_FP8 + bf8)
#define SCALED(name, format, m, k) \
    {name, format, execute_f8f6f4, NULL, NULL, OPERATION_MATRIX, SHAPE(m, k, 1), ELEMENTS(ELEMENT_FP8 + FP8_OCP, ELEMENT_FP8 + FP8_OCP, 32)},
#define SCALED_SHAPES                                                                                                   \
    SCALED("v_mfma_f32_16x16x128_f8f6f4", "d:iif", 16, 128) SCALED("v_mfma_scale_f32_16x16x128_f8f6f4", "d:iifii", 16, 128) \
    SCALED("v_mfma_f32_32x32x64_f8f6f4", "d:iif", 32, 64) SCALED("v_mfma_scale_f32_32x32x64_f8f6f4", "d:iifii", 32, 64)
#define SINGLE_SHAPES(X)                                                                                              \
    X("v_mfma_i32_32x32x16_i8", 32, 16, 1, ELEMENT_I8, 8) X("v_mfma_i32_16x16x32_i8", 16, 32, 1, ELEMENT_I8, 8)       \
    X("v_mfma_f32_32x32x2_f32", 32, 2, 1, ELEMENT_F32, 1) X("v_mfma_f32_32x32x2f32", 32, 2, 1, ELEMENT_F32, 1)        \
    X("v_mfma_f32_16x16x4_f32", 16, 4, 1, ELEMENT_F32, 1) X("v_mfma_f32_16x16x4f32", 16, 4, 1, ELEMENT_F32, 1)        \
    X("v_mfma_f32_32x32x1_2b_f32", 32, 1, 2, ELEMENT_F32, 1) X("v_mfma_f32_16x16x1_4b_f32", 16, 1, 4, ELEMENT_F32, 1) \
    X("v_mfma_f32_4x4x1_16b_f32", 4, 1, 16, ELEMENT_F32, 1)                                                           \
    X("v_mfma_f32_32x32x4_xf32", 32, 4, 1, ELEMENT_XF32, 2) X("v_mfma_f32_16x16x8_xf32", 16, 8, 1, ELEMENT_XF32, 2)

static const Operation rows[] = {
#define X(name, m, k, blocks, element, per_lane) MATRIX(name, m, k, blocks, element, element, per_lane)
    HALF_SHAPES("bf16", "bf16_1k", ELEMENT_BF16) HALF_SHAPES("f16", "f16", ELEMENT_F16) FP8_SHAPES("", FP8_FNUZ, BF8_FNUZ)
        FP8_SHAPES(" ocp", FP8_OCP, BF8_OCP) SINGLE_SHAPES(X) SCALED_SHAPES
#undef X
};
const OperationTable matrix_operations = {rows, sizeof rows / sizeof *rows};
