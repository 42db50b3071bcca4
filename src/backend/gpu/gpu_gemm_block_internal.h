/* The tiles of C that blocks find, read and write, whatever multiplies them: for gpu_gemm.c and, on AMD, for
 * gpu_gemm_fp8_amd_internal.h. Order and numbers of tiles are explained in gpu_gemm.c. */
#pragma once

#include "backend/gpu/gpu_gemm_tile_internal.h"

#ifdef GPU_DEVICE

/* -- Tiles --------------------------------------------------------------------------------------------------------- */

enum { BAND = 8 }; /* rows of tiles: about square together with the tiles in flight */

typedef struct Tile {
    int32_t problem, row, column; /* of C */
    int32_t rows, depth;          /* m and k of the problem */
    int32_t steps;                /* stages of TILE_DEPTH along k, at least one; 0: there is no such tile */
    int64_t slot;                 /* first of the problem */
} Tile;

/* Position in the list of tiles: a problem and the number of its first tile. */
typedef struct Walk { int32_t problem, first; } Walk;

INLINE int32_t tiles_of(const GemmArguments *g, int32_t problem) {
    if (!g->offset) return g->tiles;
    int32_t slots = g->offset[problem + 1] - g->offset[problem];
    if (g->slots_are_depth) return slots > 0 || !g->d ? g->tiles : 0;
    return divide_up(slots, TILE_ROWS) * divide_up(g->n, TILE_COLUMNS);
}

/* Advances to the problem of tile `index`, which must not decrease; past the last problem if there is none. */
INLINE void walk_to(const GemmArguments *g, Walk *walk, int32_t index) {
    if (!g->offset) {
        walk->problem = index / g->tiles;
        walk->first = walk->problem * g->tiles;
    } else
        while (walk->problem < g->problems) {
            int32_t tiles = tiles_of(g, walk->problem);
            if (index < walk->first + tiles) break;
            walk->first += tiles;
            walk->problem++;
        }
}

INLINE Tile tile_find(const GemmArguments *g, Walk *walk, int32_t index) {
    Tile tile = {.rows = g->m, .depth = g->k};
    walk_to(g, walk, index);
    if (walk->problem >= g->problems) return tile;
    tile.problem = walk->problem;
    if (g->offset) {
        tile.slot = g->offset[tile.problem];
        int32_t slots = g->offset[tile.problem + 1] - (int32_t)tile.slot;
        if (g->slots_are_depth) tile.depth = slots;
        else tile.rows = slots;
    }
    if (g->symmetric) place_below_diagonal(index - walk->first, &tile.row, &tile.column);
    else place_in_band(index - walk->first, BAND, divide_up(tile.rows, TILE_ROWS), divide_up(g->n, TILE_COLUMNS), &tile.row, &tile.column);
    tile.row *= TILE_ROWS;
    tile.column *= TILE_COLUMNS;
    tile.steps = tile.depth > TILE_DEPTH ? divide_up(tile.depth, TILE_DEPTH) : 1;
    return tile;
}

/* -- Reading ------------------------------------------------------------------------------------------------------- */

INLINE Reader reader_of_a(const GemmArguments *g, const Tile *t, Layout layout) {
    bool lines = layout == LAYOUT_LINES || (layout == LAYOUT_ELEMENTS && g->transpose_a);
    GLOBAL const bf16 *data = g->a + (g->offset ? t->slot * g->lda : t->problem * g->stride_a);
    return reader_at(
        layout, TILE_ROWS, data + t->row * (lines ? 1 : g->lda), lines ? 1 : g->lda, lines ? g->lda : 1, t->rows - t->row, t->depth);
}

INLINE Reader reader_of_b(const GemmArguments *g, const Tile *t, Layout layout) {
    bool lines = layout == LAYOUT_LINES || (layout == LAYOUT_ELEMENTS && !g->transpose_b);
    GLOBAL const bf16 *data = g->b + (g->slots_are_depth ? t->slot * g->ldb : t->problem * g->stride_b);
    return reader_at(
        layout, TILE_COLUMNS, data + t->column * (lines ? 1 : g->ldb), lines ? 1 : g->ldb, lines ? g->ldb : 1, g->n - t->column, t->depth);
}

/* -- Writing ------------------------------------------------------------------------------------------------------- */

INLINE f32x4 read_four(GLOBAL const void *from, int64_t at, bool wide) {
    if (wide) return *(GLOBAL const f32x4 *)((GLOBAL const float *)from + at);
    u32x2 pairs = *(GLOBAL const u32x2 *)((GLOBAL const bf16 *)from + at);
    return (f32x4){to_float_low(pairs.x), to_float_high(pairs.x), to_float_low(pairs.y), to_float_high(pairs.y)};
}
INLINE void write_four(GLOBAL void *to, int64_t at, f32x4 x, bool wide) {
    if (wide) *(GLOBAL f32x4 *)((GLOBAL float *)to + at) = x;
    else *(GLOBAL u32x2 *)((GLOBAL bf16 *)to + at) = (u32x2){to_bf16_pair(x.x, x.y), to_bf16_pair(x.z, x.w)};
}
INLINE void write_one(GLOBAL void *to, int64_t at, float x, bool wide) {
    if (wide) ((GLOBAL float *)to)[at] = x;
    else ((GLOBAL bf16 *)to)[at] = to_bf16(x);
}

/* Writes the sums of a pass, whose element (0, 0) is C's (row, column), element by element. */
INLINE void write_elements(const GemmArguments *g, const Tile *t, int32_t row, int32_t column, LOCAL const float *pass) {
    _Pragma("clang loop unroll(disable)") for (int i = lane_id(); i < PASS_ROWS * PASS_COLUMNS; i += WAVE) {
        int32_t r = row + i / PASS_COLUMNS, c = column + i % PASS_COLUMNS;
        if (r >= t->rows || c >= g->n || (g->symmetric && r < c)) continue;
        int64_t at = place_of(g, t->slot, t->problem, r, c);
        float x = g->alpha * pass[pass_at(i / PASS_COLUMNS, i % PASS_COLUMNS)];
        if (g->bias) x += g->bias[c];
        if (g->d) x += g->beta * (g->wide ? ((GLOBAL const float *)g->d)[at] : to_float(((GLOBAL const bf16 *)g->d)[at]));
        write_one(g->c, at, x, g->wide);
        if (g->symmetric && r > c) write_one(g->c, place_of(g, t->slot, t->problem, c, r), x, g->wide);
    }
}

enum {
    FOURS_ACROSS = PASS_COLUMNS / 4,         /* fours of columns */
    FOURS_DOWN = PASS_ROWS / 4,              /* fours of rows */
    FOURS = PASS_ROWS * FOURS_ACROSS / WAVE, /* of a lane, all in the same columns */
    FOURS_STEP = WAVE / FOURS_ACROSS,        /* rows from one to the next */
};

/* Writes the sums of a pass four columns at a time (g->fours). All of D is loaded before any of it is used. Where C is
 * symmetric, what was written also replaces the sums, for write_mirrored. */
INLINE void write_fours(const GemmArguments *g, const Tile *t, int32_t row, int32_t column, LOCAL float *pass, bool wide) {
    int lane = opaque(lane_id()), down = lane / FOURS_ACROSS, across = lane % FOURS_ACROSS * 4;
    int32_t rows = column + across < g->n ? t->rows - row - down : 0;
    int64_t at = place_of(g, t->slot, t->problem, row + down, column + across), step = FOURS_STEP * g->ldc;
    f32x4 d[FOURS], bias = 0;
    UNROLL for (int i = 0; i < FOURS; i++) {
        d[i] = 0;
        if (g->d && i * FOURS_STEP < rows) d[i] = read_four(g->d, at + i * step, wide);
    }
    if (g->bias && rows > 0) bias = *(GLOBAL const f32x4 *)(g->bias + column + across);
    UNROLL for (int i = 0; i < FOURS; i++) {
        LOCAL f32x4 *sums = (LOCAL f32x4 *)(pass + pass_at(down + i * FOURS_STEP, across));
        f32x4 x = g->alpha * *sums + g->beta * d[i] + bias;
        if (i * FOURS_STEP < rows) write_four(g->c, at + i * step, x, wide);
        if (g->symmetric) *sums = x;
    }
}

/* Writes columns of the pass as rows of C, in bf16: the mirror image of a block below the diagonal. */
INLINE void write_mirrored(const GemmArguments *g, const Tile *t, int32_t row, int32_t column, LOCAL const float *pass) {
    _Pragma("clang loop unroll(disable)") for (int i = lane_id(); i < PASS_COLUMNS * FOURS_DOWN; i += WAVE) {
        int across = i / FOURS_DOWN, down = i % FOURS_DOWN * 4;
        f32x4 x;
        UNROLL for (int e = 0; e < 4; e++) x[e] = pass[pass_at(down + e, across)];
        if (column + across < g->n && row + down < t->rows)
            write_four(g->c, place_of(g, t->slot, t->problem, column + across, row + down), x, false);
    }
}

/* Writes a tile of C. `room` is shared memory that no wave uses any more, PASS_ROWS * PASS_COLUMNS floats for each.
 * Where C is symmetric, blocks of 64 x 64 above the diagonal mirror those below. */
INLINE void tile_write(const GemmArguments *g, const Tile *t, const Sums *sums, LOCAL float *room) {
    LOCAL float *pass = room + wave_id() * PASS_ROWS * PASS_COLUMNS;
    _Pragma("clang loop unroll(disable)") for (int i = 0; i < PASSES; i++) {
        int32_t row = t->row + pass_row(i), column = t->column + pass_column(i), from_diagonal = row / 64 - column / 64;
        wave_barrier();
        UNROLL for (int j = 0; j < PASSES; j++) if (i == j) pass_write(sums, pass, j);
        wave_barrier();
        if (!g->fours) {
            write_elements(g, t, row, column, pass);
        } else if (g->wide) {
            write_fours(g, t, row, column, pass, true);
        } else if (!g->symmetric || from_diagonal >= 0) {
            write_fours(g, t, row, column, pass, false);
            wave_barrier();
            if (g->symmetric && from_diagonal > 0) write_mirrored(g, t, row, column, pass);
        }
    }
}

/* -- Blocks on AMD ------------------------------------------------------------------------------------------------- */

#if defined __AMDGCN__

/* Blocks go to chiplets round-robin, and each chiplet has its own L2 cache: gives every chiplet adjacent tiles. */
INLINE int32_t first_tile(const GemmArguments *g) {
#if defined __gfx942__ || defined __gfx950__
    enum { CHIPLETS = 8 };
    int32_t tiles = g->offset ? 0 : g->problems * g->tiles;
    for (int32_t i = 0; g->offset && i < g->problems; i++) tiles += tiles_of(g, i);
    int32_t share = divide_up(tiles, CHIPLETS), index = block_x() / CHIPLETS;
    return index < share ? block_x() % CHIPLETS * share + index : tiles;
#else
    (void)g;
    return block_x();
#endif
}

/* A block's tile, and the stages of it that are on their way. */
typedef struct Work {
    Tile tile;
    Reader left, right;
    Fetched next_left, next_right;
} Work;

/* False where there is no tile for this block. */
INLINE bool work_open(Work *w, const GemmArguments *g, Layout a, Layout b) {
    Walk walk = {0};
    w->tile = tile_find(g, &walk, first_tile(g));
    if (w->tile.steps == 0) return false;
    w->left = reader_of_a(g, &w->tile, a), w->right = reader_of_b(g, &w->tile, b);
    reader_fetch(&w->left, &w->next_left, a, TILE_ROWS);
    reader_fetch(&w->right, &w->next_right, b, TILE_COLUMNS);
    return true;
}

/* Puts the next stage into shared memory, and starts to fetch the one after it. */
INLINE void work_advance(Work *w, LOCAL bf16 *stage, Layout a, Layout b) {
    barrier();
    reader_put(&w->left, &w->next_left, stage, a, TILE_ROWS);
    reader_put(&w->right, &w->next_right, stage + A_ELEMENTS, b, TILE_COLUMNS);
    barrier();
    reader_fetch(&w->left, &w->next_left, a, TILE_ROWS);
    reader_fetch(&w->right, &w->next_right, b, TILE_COLUMNS);
    __builtin_amdgcn_sched_barrier(0); /* else the compiler sinks the loads below the sums to save registers */
}

#endif

#endif
