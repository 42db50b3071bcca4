/* GEMM of fp8 on AMD's matrix units: gfx942 (MI300X), whose formats are FNUZ, and gfx950 (OCP).
 * For gpu_gemm_fp8.c, which launches these kernels with arguments that count k and leading
 * dimensions in pairs of fp8 values: readers and shared memory treat a pair as a bf16 element.
 * Two stages thus have 128 steps along k, the size of a group or block with one scale. Sums of a
 * group are multiplied by its scales before they are added to other groups' sums. Sums are fp32
 * throughout. */
#pragma once

#include "backend/gpu/gpu_gemm_block_kernels.h"
#include "backend/gpu/gpu_gemm_hopper_kernels.h" /* GemmScales */
#include "device/gemm.h"

typedef struct GemmFp8Amd {
    GemmArguments gemm;
    GemmScales scales;
} GemmFp8Amd;

#if defined GPU_DEVICE && (defined __gfx942__ || defined __gfx950__)

/* Type of A; B is e4m3. */
typedef enum TypeOfA { A_E4M3, A_E5M2 } TypeOfA;

/* c[i][j] += sum over 64 fp8 values of a[i] * b[j]. A lane has 16 bytes of an operand (mma.h):
 * the first 8 are multiplied, then the others. Bytes may stand for any step along k, as long as
 * it is the same for both operands. */
INLINE void mma_fp8(Accumulator *c, const Operand *a, const Operand *b, TypeOfA type) {
    UNROLL for (int part = 0; part < 2; part++) UNROLL for (int s = 0; s < 2; s++) UNROLL for (int t = 0; t < 2; t++) {
        long row = __builtin_bit_cast(long, part ? a->half[s].hi : a->half[s].lo);
        long column = __builtin_bit_cast(long, part ? b->half[t].hi : b->half[t].lo);
        if (type == A_E5M2) c->x[s][t] = __builtin_amdgcn_mfma_f32_16x16x32_fp8_bf8(column, row, c->x[s][t], 0, 0, 0);
        else c->x[s][t] = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(column, row, c->x[s][t], 0, 0, 0);
    }
}

/* -- Scales -------------------------------------------------------------------------------------------------------- */

/* The scales of the wave's row and column with this lane's index. */
typedef struct WaveScales { float row, column; } WaveScales;

enum { GROUP = STAGES * TILE_DEPTH, FP8_TILE = TILE_SMALL };

/* If slots are steps along k, advances A and B to the slots of the tile's problem, whose slots then
 * count from 0. Returns the first of its groups of scales. */
INLINE int32_t begin_at_slot(GemmArguments *g, Tile *t) {
    int32_t slot = g->slots_are_depth ? (int32_t)t->slot : 0;
    g->a += slot, g->b += slot;
    if (g->slots_are_depth) t->slot = 0;
    return slot / GROUP;
}

/* Returns the scales of this lane's row and column of the wave's part: with `groups` those of
 * group or block `group`, otherwise those of whole lines or matrices. Lines after the last one
 * use its scale. */
INLINE WaveScales wave_scales(const GemmFp8Amd *a, const Tile *t, int32_t group, bool groups) {
    const GemmScales *s = &a->scales;
    int64_t row = t->slot + least(t->row + wave_row(FP8_TILE) + lane_id(), t->rows - 1);
    int32_t column = least(t->column + wave_column(FP8_TILE) + lane_id(), a->gemm.n - 1);
    GLOBAL const float *of_b = s->b + (int64_t)t->problem * s->b_stride;
    if (!groups) return (WaveScales){s->a ? s->a[s->by_row ? row : 0] : 1, s->b ? of_b[s->by_column ? column : 0] : 1};
    int32_t count = divide_up(a->gemm.k, GROUP), line = s->by_column ? column : column / BLOCK_LINES;
    return (WaveScales){s->a[row * count + group], of_b[(int64_t)line * count + group]};
}

/* to += from * scales. */
INLINE void sums_add_scaled(Sums *to, const Sums *from, WaveScales scales) {
    UNROLL for (int i = 0; i < blocks_down(FP8_TILE); i++) UNROLL for (int j = 0; j < BLOCKS_ACROSS; j++) {
        Accumulator *sum = &to->block[i][j];
        float columns[LANE_COLUMNS];
        UNROLL for (int c = 0; c < LANE_COLUMNS; c++) columns[c] = shuffle_float(scales.column, j * MMA + accumulator_column(c));
        UNROLL for (int r = 0; r < LANE_ROWS; r++) {
            float row = shuffle_float(scales.row, i * MMA + accumulator_row(r));
            UNROLL for (int c = 0; c < LANE_COLUMNS; c++)
                accumulator_set(sum, r, c, accumulator_get(sum, r, c) + accumulator_get(&from->block[i][j], r, c) * (row * columns[c]));
        }
    }
}

/* -- Kernels ------------------------------------------------------------------------------------------------------- */

INLINE void sums_add_fp8(Sums *sums, const Operands *o, TypeOfA type) {
    UNROLL for (int i = 0; i < blocks_down(FP8_TILE); i++) UNROLL for (int j = 0; j < BLOCKS_ACROSS; j++)
        mma_fp8(&sums->block[i][j], &o->left[i], &o->right[j], type);
}

#if defined __gfx950__

/* Scales of 32 elements along k, as gfx950's matrix unit takes them: 2^(code - 127), the exponent
 * bits of fp32 powers of two. Lane 16 q + m has the scales of elements 32 q .. 32 q + 31 of a
 * group, for the row of an Operand's half[s] (mma_gfx950_kernels.h). */
typedef struct ScaleExponents { int half[2]; } ScaleExponents;

/* Returns the scales of the block of 32 lines from `line` on; `lines` lines exist. Lines after the
 * last use the last one's scales; steps after the last group use its scales, because elements are
 * zero there. */
INLINE ScaleExponents scale_exponents(GLOBAL const float *scales, int32_t line, int32_t lines, int32_t groups, int32_t step) {
    ScaleExponents quantized;
    int32_t group = least(step * (2 * GROUP / GEMM_SCALE_MX_SIZE) + lane_id() / 16, groups - 1);
    UNROLL for (int s = 0; s < 2; s++) {
        int32_t at = least(line + (int32_t)operand_row(lane_id() % 16) + 4 * s, lines - 1);
        quantized.half[s] = __builtin_bit_cast(int, scales[(int64_t)at * groups + group]) >> 23;
    }
    return quantized;
}

/* The 32 bytes of a lane that MFMA takes: 16 of each half of 128 elements along k. */
typedef int MfmaBytes __attribute__((ext_vector_type(8)));
INLINE MfmaBytes mfma_bytes(const Operand *parts, const int s) {
    u32x4 first = parts[0].half[s], second = parts[1].half[s];
    return (MfmaBytes){first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
}

/* c[i][j] += sum over 128 fp8 values of a[i] * b[j], both e4m3, times their scales. */
INLINE void mma_scaled(Accumulator *c, const Operand *a, const Operand *b, ScaleExponents of_a, ScaleExponents of_b) {
    UNROLL for (int s = 0; s < 2; s++) UNROLL for (int t = 0; t < 2; t++) c->x[s][t] = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(
        mfma_bytes(b, t), mfma_bytes(a, s), c->x[s][t], 0, 0, 0, of_b.half[t], 0, of_a.half[s]);
}

/* The scales of all the wave's lines, for the steps of STAGES stages. */
typedef struct MxScales { ScaleExponents row[MOST_BLOCKS], column[BLOCKS_ACROSS]; } MxScales;

INLINE void mx_scales(MxScales *scales, const GemmFp8Amd *a, const Tile *t, int32_t step) {
    int32_t groups = divide_up(2 * a->gemm.k, GEMM_SCALE_MX_SIZE);
    GLOBAL const float *of_a = a->scales.a + t->slot * groups, *of_b = a->scales.b + (int64_t)t->problem * a->scales.b_stride;
    UNROLL for (int i = 0; i < blocks_down(FP8_TILE); i++) scales->row[i] =
        scale_exponents(of_a, t->row + wave_row(FP8_TILE) + i * MMA, t->rows, groups, step);
    UNROLL for (int j = 0; j < BLOCKS_ACROSS; j++) scales->column[j] =
        scale_exponents(of_b, t->column + wave_column(FP8_TILE) + j * MMA, a->gemm.n, groups, step);
}

INLINE void sums_add_mx(Sums *sums, const Operands *operands, const MxScales *scales) {
    UNROLL for (int i = 0; i < blocks_down(FP8_TILE); i++) UNROLL for (int j = 0; j < BLOCKS_ACROSS; j++) {
        Operand left[STAGES], right[STAGES];
        UNROLL for (int p = 0; p < STAGES; p++) left[p] = operands[p].left[i], right[p] = operands[p].right[j];
        mma_scaled(&sums->block[i][j], left, right, scales->row[i], scales->column[j]);
    }
}

INLINE void multiply_mx(const GemmFp8Amd *a) {
    BlockWork work;
    Sums sums;
    MxScales scales;
    Tile tile = block_tile(&a->gemm, FP8_TILE);
    if (tile.steps == 0) return;
    GemmArguments gemm = a->gemm;
    int32_t first = begin_at_slot(&gemm, &tile);
    work_open(&work, &gemm, FP8_TILE, &tile, LAYOUT_DEPTH, LAYOUT_DEPTH);
    sums_clear(&sums, FP8_TILE);
    for (int32_t step = 0; step < work.tile.steps; step += STAGES) {
        Operands operands[STAGES];
        mx_scales(&scales, a, &work.tile, first + step / STAGES);
        UNROLL for (int stage = 0; stage < STAGES; stage++) {
            work_begin(&work, FP8_TILE, &operands[stage], stage, LAYOUT_DEPTH, LAYOUT_DEPTH, wave_rows(FP8_TILE));
            if (stage == STAGES - 1) sums_add_mx(&sums, operands, &scales);
            work_end(&work);
        }
    }
    work_close(&work);
    tile_write(&a->gemm, FP8_TILE, &work.tile, &sums, (LOCAL float *)stages);
}

#endif

INLINE void multiply_fp8(const GemmFp8Amd *a, TypeOfA type, bool groups) {
    BlockWork work;
    Sums sums, group;
    Tile tile = block_tile(&a->gemm, FP8_TILE);
    if (tile.steps == 0) return;
    GemmArguments gemm = a->gemm;
    int32_t first = begin_at_slot(&gemm, &tile);
    work_open(&work, &gemm, FP8_TILE, &tile, LAYOUT_DEPTH, LAYOUT_DEPTH);
    sums_clear(&sums, FP8_TILE);
    for (int32_t step = 0; step < work.tile.steps; step += STAGES) {
        WaveScales scales = groups ? wave_scales(a, &work.tile, first + step / STAGES, true) : (WaveScales){0};
        sums_clear(&group, FP8_TILE);
        UNROLL for (int stage = 0; stage < STAGES; stage++) {
            Operands operands;
            work_begin(&work, FP8_TILE, &operands, stage, LAYOUT_DEPTH, LAYOUT_DEPTH, wave_rows(FP8_TILE));
            sums_add_fp8(groups ? &group : &sums, &operands, type);
            work_end(&work);
        }
        if (groups) sums_add_scaled(&sums, &group, scales);
    }
    work_close(&work);
    if (!groups) {
        group = sums;
        sums_clear(&sums, FP8_TILE);
        sums_add_scaled(&sums, &group, wave_scales(a, &work.tile, 0, false));
    }
    tile_write(&a->gemm, FP8_TILE, &work.tile, &sums, (LOCAL float *)stages);
}

#endif
