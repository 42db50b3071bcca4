/* GEMM of fp8 on AMD's matrix units: gfx942 (MI300X), whose formats are FNUZ, and gfx950 (OCP). For gpu_gemm_fp8.c, which
 * launches these kernels with arguments that count k and leading dimensions in pairs of codes: to readers and to shared
 * memory a pair is an element in bf16. So a stage has 128 steps along k, the size of a group or block of scales, whose
 * sums are multiplied by them before they are added to those of other groups. Sums are fp32 throughout. */
#pragma once

#include "backend/gpu/gpu_gemm_block_internal.h"
#include "backend/gpu/gpu_gemm_hopper_internal.h" /* GemmScales */

typedef struct GemmFp8Amd {
    GemmArguments gemm;
    GemmScales scales;
} GemmFp8Amd;

#if defined GPU_DEVICE && (defined __gfx942__ || defined __gfx950__)

/* Type of A; B is e4m3. */
typedef enum CodesOfA { A_E4M3, A_E5M2 } CodesOfA;

/* c[i][j] += sum over 64 codes of a[i] * b[j]. Of an operand's 16 bytes in a lane (mma.h) the first 8 are multiplied, then the
 * others: which step along k a byte is of does not matter, as it is the same for both operands. */
INLINE void mma_codes(Accumulator *c, const Operand *a, const Operand *b, CodesOfA type) {
    UNROLL for (int part = 0; part < 2; part++) UNROLL for (int s = 0; s < 2; s++) UNROLL for (int t = 0; t < 2; t++) {
        long row = __builtin_bit_cast(long, part ? a->half[s].hi : a->half[s].lo);
        long column = __builtin_bit_cast(long, part ? b->half[t].hi : b->half[t].lo);
        if (type == A_E5M2) c->x[s][t] = __builtin_amdgcn_mfma_f32_16x16x32_fp8_bf8(column, row, c->x[s][t], 0, 0, 0);
        else c->x[s][t] = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(column, row, c->x[s][t], 0, 0, 0);
    }
}

/* -- Scales -------------------------------------------------------------------------------------------------------- */

/* Of the wave's row and column of this lane's number. */
typedef struct WaveScales { float row, column; } WaveScales;

INLINE int wave_row(void) { return wave_id() / WAVES_ACROSS * WAVE_ROWS * MMA; }
INLINE int wave_column(void) { return wave_id() % WAVES_ACROSS * WAVE_COLUMNS * MMA; }

/* Beyond the last row or column those of the last. `groups`: scales are those of groups and blocks of stage `step`. */
INLINE WaveScales wave_scales(const GemmFp8Amd *a, const Tile *t, int32_t step, bool groups) {
    const GemmScales *s = &a->scales;
    int64_t row = t->slot + least(t->row + wave_row() + lane_id(), t->rows - 1);
    int32_t column = least(t->column + wave_column() + lane_id(), a->gemm.n - 1);
    GLOBAL const float *of_b = s->b + (int64_t)t->problem * s->b_stride;
    if (!groups) return (WaveScales){s->a ? s->a[s->by_row ? row : 0] : 1, s->b ? of_b[s->by_column ? column : 0] : 1};
    int32_t count = divide_up(a->gemm.k, TILE_DEPTH), line = s->by_column ? column : column / BLOCK_LINES;
    return (WaveScales){s->a[row * count + step], of_b[(int64_t)line * count + step]};
}

/* to += from * scales, for block (i, j) of the wave's. */
INLINE void block_add_scaled(Accumulator *to, const Accumulator *from, WaveScales scales, int i, int j) {
    float columns[LANE_COLUMNS];
    UNROLL for (int c = 0; c < LANE_COLUMNS; c++) columns[c] = shuffle_float(scales.column, j * MMA + accumulator_column(c));
    UNROLL for (int r = 0; r < LANE_ROWS; r++) {
        float row = shuffle_float(scales.row, i * MMA + accumulator_row(r));
        UNROLL for (int c = 0; c < LANE_COLUMNS; c++)
            accumulator_set(to, r, c, accumulator_get(to, r, c) + accumulator_get(from, r, c) * (row * columns[c]));
    }
}

/* -- Kernels ------------------------------------------------------------------------------------------------------- */

/* Adds a stage, or with `groups` its sums times their scales. */
INLINE void sums_add_codes(Sums *sums, LOCAL const bf16 *stage, CodesOfA type, bool groups, WaveScales scales) {
    enum { PARTS = TILE_DEPTH / MMA };
    Operand left[WAVE_ROWS][PARTS], right[WAVE_COLUMNS][PARTS];
    UNROLL for (int p = 0; p < PARTS; p++) {
        UNROLL for (int i = 0; i < WAVE_ROWS; i++) operand_read(&left[i][p], stage, LAYOUT_DEPTH, wave_row() + i * MMA, p * MMA);
        UNROLL for (int j = 0; j < WAVE_COLUMNS; j++)
            operand_read(&right[j][p], stage + A_ELEMENTS, LAYOUT_DEPTH, wave_column() + j * MMA, p * MMA);
    }
    UNROLL for (int i = 0; i < WAVE_ROWS; i++) UNROLL for (int j = 0; j < WAVE_COLUMNS; j++) {
        Accumulator group, *to = groups ? &group : &sums->block[i][j];
        accumulator_clear(&group);
        UNROLL for (int p = 0; p < PARTS; p++) mma_codes(to, &left[i][p], &right[j][p], type);
        if (groups) block_add_scaled(&sums->block[i][j], &group, scales, i, j);
    }
}

INLINE void sums_scale(Sums *sums, WaveScales scales) {
    UNROLL for (int i = 0; i < WAVE_ROWS; i++) UNROLL for (int j = 0; j < WAVE_COLUMNS; j++) {
        Accumulator scaled;
        accumulator_clear(&scaled);
        block_add_scaled(&scaled, &sums->block[i][j], scales, i, j);
        sums->block[i][j] = scaled;
    }
}

INLINE void multiply_fp8(const GemmFp8Amd *a, CodesOfA type, bool groups) {
    static SHARED bf16 stage[STAGE_ELEMENTS] __attribute__((aligned(16)));
    Work work;
    Sums sums;
    WaveScales scales = {0};
    if (!work_open(&work, &a->gemm, LAYOUT_DEPTH, LAYOUT_DEPTH)) return;
    sums_clear(&sums);
    for (int32_t step = 0; step < work.tile.steps; step++) {
        if (groups) scales = wave_scales(a, &work.tile, step, true);
        work_advance(&work, stage, LAYOUT_DEPTH, LAYOUT_DEPTH);
        sums_add_codes(&sums, stage, type, groups, scales);
    }
    if (!groups) sums_scale(&sums, wave_scales(a, &work.tile, 0, false));
    barrier();
    tile_write(&a->gemm, &work.tile, &sums, (LOCAL float *)stage);
}

#endif
