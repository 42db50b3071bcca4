/* RMSNorm and LayerNorm of rows on a GPU, shared by gpu.c, residual_gpu.c and qk_gpu.c; formulas
 * are in norm.h and, for the backward pass, in cpu_rows_kernels.h. A team of threads, a wave or the whole
 * block, holds a row in registers, so memory is read once. Each of NORM_WIDTHS has its kernels.
 * Rows that are wider, or not a multiple of 4 columns, use the kernels for any width, which read a
 * row once per sum over it.
 *
 * A residual add of two branches may precede the norm (residual_gpu.c). In the forward pass each
 * team takes every `teams`-th row. In the backward pass a block takes NORM_GRAD_ROWS rows and
 * writes their column sums to partials [blocks, sums, columns], in the order gain, bias (of
 * LayerNorm), then the vectors of an affine residual add in the order of AffineVector. */
#pragma once

#include "backend/gpu/fp8_output.h"
#include "backend/gpu/vector.h"
#include "ops/norm/affine.h"

enum { NORM_THREADS = 256, NORM_UNITS = 8, NORM_WAVE_COLUMNS = 512 };
/* Rows of a block in the backward pass, by the lanes of a wave. */
#define NORM_GRAD_ROWS(wave) ((wave) == 64 ? 9 : 32)

/* X(most columns, threads of a team, units: groups of 4 columns per thread) */
#define NORM_WIDTHS(X) X(512, WAVE, 128 / WAVE) X(1024, 256, 1) X(2048, 256, 2) X(4096, 256, 4) X(8192, 256, 8)

typedef enum ResidualAdd { RESIDUAL_NONE, RESIDUAL_SUM, RESIDUAL_AFFINE } ResidualAdd;

typedef struct NormArguments {
    const bf16 GLOBAL *block;
    const float GLOBAL *stream; /* without a residual add: the input of the norm */
    const float GLOBAL *affine[AFFINE_VECTORS];
    const float GLOBAL *gain, *bias;
    float GLOBAL *residual, *statistics;
    bf16 GLOBAL *normed;
    int64_t rows, teams;
    int32_t columns, layer, add; /* layer, add: for the kernel for any width */
    float epsilon;
    Fp8Output to; /* for normed, which is NULL if it is not read as bf16 */
} NormArguments;

typedef struct NormGradArguments {
    const float GLOBAL *d_residual; /* NULL: zero */
    const bf16 GLOBAL *d_normed;    /* NULL: zero */
    const bf16 GLOBAL *block;       /* block and stream: only for an affine residual add */
    const float GLOBAL *stream;
    const float GLOBAL *residual; /* the input of the norm */
    const float GLOBAL *statistics, *gain;
    const float GLOBAL *affine[AFFINE_VECTORS];
    bf16 GLOBAL *d_block;
    float GLOBAL *d_stream, *partials;
    int64_t rows;
    int32_t columns, layer, add; /* layer, add: for the kernels for any width */
    Fp8Output to;                /* for d_block, which is NULL if it is not read as bf16 */
} NormGradArguments;

#ifdef GPU_DEVICE

/* -- Teams and their rows ------------------------------------------------------------------------------------------ */

/* `threads` and `units` are constants, so that a Row stays in registers. */
typedef struct Team {
    int threads, units, lane, columns;
    float share; /* 1 / columns */
} Team;
typedef f32x4 Row[NORM_UNITS];
typedef u32x2 Bf16Row[NORM_UNITS]; /* cast to float at its use: half the registers */

/* Returns the first column of the thread's unit i, even after the end of the row. */
INLINE int unit_begin(Team t, int i) { return (i * t.threads + t.lane) * 4; }
INLINE bool inside(Team t, int i) { return unit_begin(t, i) < t.columns; }

/* The thread's units. If a row is narrower than its team, the last units are outside it. NVIDIA
 * skips them with predicates. AMD would need branches, and loads in a branch wait for each other.
 * So on AMD such a unit loads the last columns, counts as zero in sums over the row, and is not
 * stored. */
#ifdef __NVPTX__
#define FOR_UNITS(team)                                                                                                                    \
    UNROLL for (int i = 0; i < (team).units; i++)                                                                                          \
        if (inside(team, i))
INLINE int column_of(Team t, int i) { return unit_begin(t, i); }
#else
#define FOR_UNITS(team) UNROLL for (int i = 0; i < (team).units; i++)
INLINE int column_of(Team t, int i) { return inside(t, i) ? unit_begin(t, i) : t.columns - 4; }
#endif

INLINE Team make_team(int threads, int units, int columns) {
    return (Team){.threads = threads, .units = units, .lane = thread_id() % threads, .columns = columns, .share = 1.0f / (float)columns};
}

/* Returns the index of this thread's team in the grid. */
INLINE int64_t team_index(Team t) { return (int64_t)block_x() * (NORM_THREADS / t.threads) + thread_id() / t.threads; }

INLINE float team_sum(Team t, float x) {
    static SHARED float scratch[NORM_THREADS / WAVE];
    if (t.threads > WAVE) return block_sum(x, scratch, t.threads);
    UNROLL for (int mask = t.threads / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
    return x;
}

/* Returns two sums over the team with one exchange, each in the tree order of team_sum. */
INLINE f32x2 team_sums(Team t, f32x2 x) {
    static SHARED f32x2 scratch[NORM_THREADS / WAVE];
    UNROLL for (int mask = (t.threads > WAVE ? WAVE : t.threads) / 2; mask > 0; mask /= 2) x +=
        (f32x2){shuffle_xor(x.x, mask), shuffle_xor(x.y, mask)};
    if (t.threads <= WAVE) return x;
    barrier();
    if (lane_id() == 0) scratch[wave_id()] = x;
    barrier();
    f32x2 sum = 0;
    for (int i = 0; i < t.threads / WAVE; i++) sum += scratch[i];
    return sum;
}

INLINE void load_row_wide(Team t, Row row, const float GLOBAL *from) { FOR_UNITS(t) row[i] = load4_wide(from + column_of(t, i), 4); }
INLINE void load_row_bf16(Team t, Bf16Row row, const bf16 GLOBAL *from) {
    FOR_UNITS(t) row[i] = *(const u32x2 GLOBAL *)(from + column_of(t, i));
}
INLINE void clear_row(Team t, Row row) { UNROLL for (int i = 0; i < t.units; i++) row[i] = (f32x4)0; }

INLINE void store_wide_unit(Team t, int i, float GLOBAL *to, f32x4 x) {
    if (inside(t, i)) store4_wide(to + column_of(t, i), x, 4);
}
INLINE void store_bf16_unit(Team t, int i, bf16 GLOBAL *to, f32x4 x) {
    if (inside(t, i)) store4_bf16(to + column_of(t, i), x, 4);
}
/* Stores unit i of the row that begins at element `at`. */
INLINE void fp8_store_unit(Team t, int i, Fp8Writer *writer, bf16 GLOBAL *made, int64_t at, f32x4 x, const bool e5m2) {
    if (inside(t, i)) fp8_store4(writer, made, at + column_of(t, i), x, 4, e5m2);
}
/* Returns x, or zero outside the row: for sums. */
INLINE f32x4 counted(Team t, int i, f32x4 x) { return inside(t, i) ? x : (f32x4)0; }

/* to[j] = sum over the block's teams of their row[j]. All threads of the block call it. */
INLINE void store_block_sums(Team t, float GLOBAL *to, const Row row) {
    static SHARED f32x4 groups[NORM_THREADS / WAVE * NORM_WAVE_COLUMNS / 4];
    LOCAL float *parts = (LOCAL float *)groups;
    if (t.threads == NORM_THREADS) {
        FOR_UNITS(t) store_wide_unit(t, i, to, row[i]);
        return;
    }
    int width = t.threads * t.units * 4;
    barrier();
    FOR_UNITS(t) groups[(thread_id() / t.threads * width + unit_begin(t, i)) / 4] = row[i];
    barrier();
    for (int j = thread_id(); j < t.columns; j += NORM_THREADS) {
        float sum = parts[j];
        for (int team = 1; team < NORM_THREADS / t.threads; team++) sum += parts[team * width + j];
        to[j] = sum;
    }
}

/* -- The formulas -------------------------------------------------------------------------------------------------- */

typedef struct Statistics { float rstd, mean; } Statistics;

INLINE Statistics row_statistics(Team t, const Row x, bool layer, float epsilon) {
    Statistics s = {0};
    f32x4 sum = 0, squares = 0;
    if (layer) {
        FOR_UNITS(t) sum += counted(t, i, x[i]);
        s.mean = team_sum(t, sum4(sum)) * t.share;
    }
    FOR_UNITS(t) squares += counted(t, i, (x[i] - s.mean) * (x[i] - s.mean));
    s.rstd = fast_rsqrt(team_sum(t, sum4(squares)) * t.share + epsilon);
    return s;
}

INLINE void store_statistics(float GLOBAL *statistics, int64_t row, Statistics s, bool layer) {
    statistics[layer ? 2 * row : row] = s.rstd;
    if (layer) statistics[2 * row + 1] = s.mean;
}

INLINE Statistics load_statistics(const float GLOBAL *statistics, int64_t row, bool layer) {
    return layer ? (Statistics){statistics[2 * row], statistics[2 * row + 1]} : (Statistics){statistics[row], 0};
}

INLINE f32x4 normalize(f32x4 x, Statistics s, f32x4 gain, f32x4 bias) { return (x - s.mean) * s.rstd * gain + bias; }

/* The two means over a row in its gradient, with n = (x - mean) * rstd: shift = mean(g), pull =
 * mean(g * n) * rstd, where g = dy * gain. */
typedef struct Means { float shift, pull; } Means;

INLINE Means row_means(Team t, float sum, float dot, Statistics s, bool layer) {
    f32x2 sums = layer ? team_sums(t, (f32x2){sum, dot}) : (f32x2){0, team_sum(t, dot)};
    return (Means){.shift = sums.x * t.share, .pull = sums.y * s.rstd * s.rstd * t.share};
}

INLINE f32x4 normalize_grad(f32x4 dy, f32x4 x, f32x4 gain, Statistics s, Means m) {
    return s.rstd * (dy * gain - m.shift - (x - s.mean) * m.pull);
}

INLINE f32x4 add_residual(ResidualAdd add, f32x4 block, f32x4 stream, const f32x4 affine[AFFINE_VECTORS]) {
    if (add == RESIDUAL_SUM) return block + stream;
    return (block + affine[BLOCK_BIAS]) * affine[BLOCK_SCALE] + (stream + affine[STREAM_BIAS]) * affine[STREAM_SCALE];
}

/* -- Forward ------------------------------------------------------------------------------------------------------- */

/* `to` is &a->to or AS_BF16, here and below (backend/gpu/fp8_output.h). */
INLINE void norm_rows(const NormArguments *a, bool layer, ResidualAdd add, int threads, int units, const Fp8Output *to) {
    Team t = make_team(threads, units, a->columns);
    Row gain, bias, affine[AFFINE_VECTORS], x;
    Bf16Row block;
    Fp8Writer writer = fp8_writer(to);
    clear_row(t, bias);
    load_row_wide(t, gain, a->gain);
    if (layer && a->bias) load_row_wide(t, bias, a->bias);
    bool held = add == RESIDUAL_AFFINE && units <= 4; /* registers do not suffice for 8 units */
    if (held) UNROLL for (int p = 0; p < AFFINE_VECTORS; p++) load_row_wide(t, affine[p], a->affine[p]);
    for (int64_t row = team_index(t); row < a->rows; row += a->teams) {
        int64_t at = row * t.columns;
        load_row_wide(t, x, a->stream + at);
        if (add != RESIDUAL_NONE) {
            load_row_bf16(t, block, a->block + at);
            FOR_UNITS(t) {
                f32x4 at_column[AFFINE_VECTORS];
                if (add == RESIDUAL_AFFINE)
                    UNROLL for (int p = 0; p < AFFINE_VECTORS; p++) at_column[p] =
                        held ? affine[p][i] : load4_wide(a->affine[p] + column_of(t, i), 4);
                x[i] = add_residual(add, to_float4(block[i]), x[i], at_column);
                store_wide_unit(t, i, a->residual + at, x[i]);
            }
        }
        Statistics s = row_statistics(t, x, layer, a->epsilon);
        if (t.lane == 0) store_statistics(a->statistics, row, s, layer);
        FOR_UNITS(t) fp8_store_unit(t, i, &writer, a->normed, at, normalize(x[i], s, gain[i], bias[i]), false);
    }
    fp8_writer_end(&writer);
}

/* Returns element j of a vector; 0 for NULL. */
INLINE f32x4 load_parameter(const float GLOBAL *from, int64_t j) { return from ? load4_wide(from + j, 1) : (f32x4)0; }

/* Returns column j of the residual add's row that begins at element `at`. */
INLINE f32x4 residual_at(const NormArguments *a, int64_t at, int64_t j) {
    f32x4 stream = load4_wide(a->stream + at + j, 1), affine[AFFINE_VECTORS];
    if (a->add == RESIDUAL_NONE) return stream;
    UNROLL for (int p = 0; p < AFFINE_VECTORS; p++) affine[p] = load_parameter(a->affine[p], j);
    return add_residual(a->add, load4_bf16(a->block + at + j, 1), stream, affine);
}

/* Processes rows of any width, one per block. */
INLINE void norm_rows_any(const NormArguments *a, const Fp8Output *to) {
    Team t = make_team(NORM_THREADS, 1, a->columns);
    Fp8Writer writer = fp8_writer(to);
    for (int64_t row = block_x(); row < a->rows; row += a->teams) {
        int64_t at = row * t.columns;
        Statistics s = {0};
        float sum = 0, squares = 0;
        for (int64_t j = t.lane; j < t.columns; j += NORM_THREADS) {
            float x = residual_at(a, at, j).x;
            if (a->add != RESIDUAL_NONE) a->residual[at + j] = x;
            sum += x;
        }
        if (a->layer) s.mean = team_sum(t, sum) * t.share;
        const float GLOBAL *residual = a->stream + at;
        if (a->add != RESIDUAL_NONE) residual = a->residual + at;
        for (int64_t j = t.lane; j < t.columns; j += NORM_THREADS) squares += (residual[j] - s.mean) * (residual[j] - s.mean);
        s.rstd = fast_rsqrt(team_sum(t, squares) * t.share + a->epsilon);
        if (t.lane == 0) store_statistics(a->statistics, row, s, a->layer);
        for (int64_t j = t.lane; j < t.columns; j += NORM_THREADS) {
            f32x4 normed = normalize(load4_wide(residual + j, 1), s, load_parameter(a->gain, j), load_parameter(a->bias, j));
            fp8_store4(&writer, a->normed, at + j, normed, 1, false);
        }
    }
    fp8_writer_end(&writer);
}

/* -- Backward ------------------------------------------------------------------------------------------------------ */

/* Column sums of a team: of dy * n, dy, ds * block, ds * stream, ds; and the state for writing its
 * d_block. */
typedef struct RowSums {
    Row gain, bias, block, stream, residual;
    Fp8Writer writer;
} RowSums;

/* Gain and affine vectors: held in registers if this leaves room for two blocks on a multiprocessor
 * (AMD has twice as many registers); otherwise loaded at each use, from the L1 cache. */
typedef struct Parameters {
    bool held;
    Row gain, affine[AFFINE_VECTORS];
} Parameters;

INLINE void load_parameters(const NormGradArguments *a, ResidualAdd add, Team t, Parameters *parameters) {
    parameters->held = t.units <= (add == RESIDUAL_AFFINE && WAVE == 32 ? 1 : 2);
    if (!parameters->held) return;
    load_row_wide(t, parameters->gain, a->gain);
    if (add == RESIDUAL_AFFINE) UNROLL for (int p = 0; p < AFFINE_VECTORS; p++) load_row_wide(t, parameters->affine[p], a->affine[p]);
}
INLINE f32x4 gain_at(const NormGradArguments *a, Team t, const Parameters *held, int i) {
    return held->held ? held->gain[i] : load4_wide(a->gain + column_of(t, i), 4);
}
INLINE f32x4 affine_at(const NormGradArguments *a, Team t, const Parameters *held, int which, int i) {
    return held->held ? held->affine[which][i] : load4_wide(a->affine[which] + column_of(t, i), 4);
}

/* Computes the gradients of both branches and the column sums from ds, the gradient of the residual
 * add's result. */
INLINE void split_branches(const NormGradArguments *a, ResidualAdd add, Team t, const Parameters *parameters, int64_t at, const Row ds,
    const Bf16Row block, const Row stream, RowSums *sums) {
    FOR_UNITS(t) {
        f32x4 d_block = ds[i], d_stream = ds[i];
        if (add == RESIDUAL_AFFINE) {
            sums->block[i] += ds[i] * to_float4(block[i]);
            sums->stream[i] += ds[i] * stream[i];
            sums->residual[i] += ds[i];
            d_block *= affine_at(a, t, parameters, BLOCK_SCALE, i);
            d_stream *= affine_at(a, t, parameters, STREAM_SCALE, i);
        }
        if (add != RESIDUAL_NONE) fp8_store_unit(t, i, &sums->writer, a->d_block, at, d_block, true);
        store_wide_unit(t, i, a->d_stream + at, d_stream);
    }
}

/* Recomputes an affine residual add, with the same bits, because both branches are read anyway. */
INLINE void load_residual(const NormGradArguments *a, ResidualAdd add, Team t, const Parameters *parameters, int64_t at, Row residual,
    Bf16Row block, Row stream) {
    if (add != RESIDUAL_AFFINE) {
        load_row_wide(t, residual, a->residual + at);
        return;
    }
    load_row_bf16(t, block, a->block + at);
    load_row_wide(t, stream, a->stream + at);
    FOR_UNITS(t) {
        f32x4 affine[AFFINE_VECTORS];
        UNROLL for (int p = 0; p < AFFINE_VECTORS; p++) affine[p] = affine_at(a, t, parameters, p, i);
        residual[i] = add_residual(add, to_float4(block[i]), stream[i], affine);
    }
}

INLINE void norm_grad_row(
    const NormGradArguments *a, bool layer, ResidualAdd add, Team t, const Parameters *parameters, int64_t row, RowSums *sums) {
    int64_t at = row * t.columns;
    Row x, ds, stream;
    Bf16Row dy, block;
    clear_row(t, ds);
    UNROLL for (int i = 0; i < t.units; i++) dy[i] = (u32x2)0;
    if (a->d_normed) load_row_bf16(t, dy, a->d_normed + at);
    if (add != RESIDUAL_NONE && a->d_residual) load_row_wide(t, ds, a->d_residual + at);
    Statistics s = load_statistics(a->statistics, row, layer);
    load_residual(a, add, t, parameters, at, x, block, stream);
    f32x4 sum = 0, dot = 0;
    FOR_UNITS(t) {
        f32x4 g = to_float4(dy[i]) * gain_at(a, t, parameters, i);
        sum += counted(t, i, g);
        dot += counted(t, i, g * (x[i] - s.mean));
    }
    Means m = row_means(t, sum4(sum), sum4(dot), s, layer);
    FOR_UNITS(t) {
        ds[i] += normalize_grad(to_float4(dy[i]), x[i], gain_at(a, t, parameters, i), s, m);
        sums->gain[i] += to_float4(dy[i]) * (x[i] - s.mean) * s.rstd;
        if (layer) sums->bias[i] += to_float4(dy[i]);
    }
    split_branches(a, add, t, parameters, at, ds, block, stream, sums);
}

/* Stores gradients of one branch's scale and bias, from `weighted` = sum of ds * branch and `sum` =
 * sum of ds over rows. */
INLINE void store_affine_sums(const NormGradArguments *a, Team t, float GLOBAL *to, const Row weighted, const Row sum,
    const float GLOBAL *scale, const float GLOBAL *bias) {
    Row d_scale, d_bias;
    FOR_UNITS(t) {
        d_scale[i] = weighted[i] + load4_wide(bias + column_of(t, i), 4) * sum[i];
        d_bias[i] = load4_wide(scale + column_of(t, i), 4) * sum[i];
    }
    store_block_sums(t, to, d_scale);
    store_block_sums(t, to + a->columns, d_bias);
}

INLINE void norm_grad_rows(const NormGradArguments *a, bool layer, ResidualAdd add, int threads, int units, const Fp8Output *made) {
    Team t = make_team(threads, units, a->columns);
    Parameters parameters;
    RowSums sums;
    load_parameters(a, add, t, &parameters);
    clear_row(t, sums.gain);
    clear_row(t, sums.bias);
    clear_row(t, sums.block);
    clear_row(t, sums.stream);
    clear_row(t, sums.residual);
    sums.writer = fp8_writer(made);
    int64_t begin = (int64_t)block_x() * NORM_GRAD_ROWS(WAVE),
            end = begin + NORM_GRAD_ROWS(WAVE) < a->rows ? begin + NORM_GRAD_ROWS(WAVE) : a->rows;
    for (int64_t row = begin + thread_id() / threads; row < end; row += NORM_THREADS / threads)
        norm_grad_row(a, layer, add, t, &parameters, row, &sums);
    fp8_writer_end(&sums.writer);
    float GLOBAL *to = a->partials + (int64_t)block_x() * (1 + layer + (add == RESIDUAL_AFFINE ? AFFINE_VECTORS : 0)) * a->columns;
    store_block_sums(t, to, sums.gain);
    if (layer) store_block_sums(t, to + a->columns, sums.bias);
    if (add != RESIDUAL_AFFINE) return;
    store_affine_sums(
        a, t, to + (1 + layer + BLOCK_SCALE) * a->columns, sums.block, sums.residual, a->affine[BLOCK_SCALE], a->affine[BLOCK_BIAS]);
    store_affine_sums(
        a, t, to + (1 + layer + STREAM_SCALE) * a->columns, sums.stream, sums.residual, a->affine[STREAM_SCALE], a->affine[STREAM_BIAS]);
}

/* First half for rows of any width: writes ds to d_stream; one block per row. */
INLINE void norm_grad_rows_any(const NormGradArguments *a) {
    Team t = make_team(NORM_THREADS, 1, a->columns);
    int64_t row = block_x(), at = row * t.columns;
    Statistics s = load_statistics(a->statistics, row, a->layer);
    float sum = 0, dot = 0;
    for (int64_t j = t.lane; a->d_normed && j < t.columns; j += NORM_THREADS) {
        float g = to_float(a->d_normed[at + j]) * a->gain[j];
        sum += g;
        dot += g * (a->residual[at + j] - s.mean);
    }
    Means m = row_means(t, sum, dot, s, a->layer);
    for (int64_t j = t.lane; j < t.columns; j += NORM_THREADS) {
        f32x4 dy = a->d_normed ? load4_bf16(a->d_normed + at + j, 1) : (f32x4)0, x = load4_wide(a->residual + at + j, 1);
        float ds = normalize_grad(dy, x, load_parameter(a->gain, j), s, m).x;
        a->d_stream[at + j] = a->d_residual ? a->d_residual[at + j] + ds : ds;
    }
}

/* Second half for rows of any width: computes the gradients of both branches from ds in d_stream,
 * and the column sums; one thread per column of NORM_GRAD_ROWS rows. */
INLINE void norm_grad_column_any(const NormGradArguments *a, int64_t block, int64_t j, Fp8Writer *writer) {
    int64_t columns = a->columns;
    bool affine = a->add == RESIDUAL_AFFINE;
    float block_scale = affine ? a->affine[BLOCK_SCALE][j] : 1, stream_scale = affine ? a->affine[STREAM_SCALE][j] : 1;
    float gain_sum = 0, bias_sum = 0, block_sum = 0, stream_sum = 0, residual_sum = 0;
    for (int64_t row = block * NORM_GRAD_ROWS(WAVE); row < (block + 1) * NORM_GRAD_ROWS(WAVE) && row < a->rows; row++) {
        int64_t at = row * columns + j;
        Statistics s = load_statistics(a->statistics, row, a->layer);
        float dy = a->d_normed ? to_float(a->d_normed[at]) : 0, ds = a->d_stream[at];
        gain_sum += dy * (a->residual[at] - s.mean) * s.rstd;
        bias_sum += dy;
        if (a->add != RESIDUAL_NONE) fp8_store4(writer, a->d_block, at, (f32x4){ds * block_scale}, 1, true);
        if (!affine) continue;
        block_sum += ds * to_float(a->block[at]);
        stream_sum += ds * a->stream[at];
        residual_sum += ds;
        a->d_stream[at] = ds * stream_scale;
    }
    float GLOBAL *to = a->partials + block * (1 + a->layer + (affine ? AFFINE_VECTORS : 0)) * columns + j;
    to[0] = gain_sum;
    if (a->layer) to[columns] = bias_sum;
    if (!affine) return;
    to += (1 + a->layer) * columns;
    to[BLOCK_SCALE * columns] = block_sum + a->affine[BLOCK_BIAS][j] * residual_sum;
    to[BLOCK_BIAS * columns] = block_scale * residual_sum;
    to[STREAM_SCALE * columns] = stream_sum + a->affine[STREAM_BIAS][j] * residual_sum;
    to[STREAM_BIAS * columns] = stream_scale * residual_sum;
}

INLINE void norm_grad_columns_any(const NormGradArguments *a, const Fp8Output *to) {
    int64_t tiles = (a->columns + NORM_THREADS - 1) / NORM_THREADS, block = block_x() / tiles;
    int64_t j = block_x() % tiles * NORM_THREADS + thread_id();
    Fp8Writer writer = fp8_writer(to);
    if (j < a->columns) norm_grad_column_any(a, block, j, &writer);
    fp8_writer_end(&writer);
}

#else

#include "backend/gpu/kernel_launch.h"

/* Index of a kernel: as in NORM_WIDTHS, then any width. */
#define NORM_COUNT_WIDTH(width, threads, units) +1
enum { NORM_ANY = NORM_WIDTHS(NORM_COUNT_WIDTH) };

static inline int norm_width(int64_t columns) {
    int width = 0;
    for (int64_t most = NORM_WAVE_COLUMNS; width < NORM_ANY && columns > most; most *= 2) width++;
    return columns % 4 ? NORM_ANY : width;
}

/* Returns the grid of the forward pass: enough blocks to fill the device several times over. Sets
 * arguments->teams. */
static inline LaunchShape norm_shape(Device *device, int width, NormArguments *arguments) {
    int64_t teams_of_block = width == 0 ? NORM_THREADS / device_info(device)->wave : 1, most = 8 * device_info(device)->processors;
    int64_t blocks = divide_up(arguments->rows, teams_of_block);
    if (blocks > most) blocks = most;
    arguments->teams = blocks * teams_of_block;
    return (LaunchShape){.x = blocks, .threads = NORM_THREADS};
}

/* norm_absorbs_sum: residual_norm absorbs the preceding sum over ranks (OpKernel.absorbs).
 * norm_launch_sum launches both, and does not read norm->block (sum_gpu.c). */
int norm_absorbs_sum(const Backend *backend, const Graph *graph, int index);
void norm_launch_sum(const OpCall *call, int width, const NormArguments *norm);

/* The grid of the backward pass, and of the second half for any width. */
static inline LaunchShape norm_grad_shape(Device *device, const NormGradArguments *arguments) {
    return (LaunchShape){.x = divide_up(arguments->rows, NORM_GRAD_ROWS(device_info(device)->wave)), .threads = NORM_THREADS};
}
static inline LaunchShape norm_grad_columns_shape(Device *device, const NormGradArguments *arguments) {
    int64_t blocks = divide_up(arguments->rows, NORM_GRAD_ROWS(device_info(device)->wave)),
            tiles = divide_up(arguments->columns, NORM_THREADS);
    return (LaunchShape){.x = blocks * tiles, .threads = NORM_THREADS};
}

/* Returns the scratch for `sums` column sums of every block. It suffices for AMD, whose blocks have
 * fewer rows. */
static inline int64_t norm_grad_scratch(int64_t rows, int64_t columns, int sums) {
    return divide_up(rows, NORM_GRAD_ROWS(64)) * sums * columns * (int64_t)sizeof(float);
}

#endif
