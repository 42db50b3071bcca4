/* Finding, reading and writing tiles of C, independent of the multiplication: for gpu_gemm.c and,
 * on AMD, for gpu_gemm_fp8_amd_kernels.h. gpu_gemm.c explains the order and the sizes of tiles. */
#pragma once

#include "backend/gpu/gpu_gemm_tile_kernels.h"

#ifdef GPU_DEVICE

/* -- Tiles --------------------------------------------------------------------------------------------------------- */

enum { BAND = 8 }; /* rows of tiles: makes the tiles in flight about square */

typedef struct Tile {
    int32_t problem, row, column; /* of C */
    int32_t rows, depth;          /* m and k of the problem */
#if defined __AMDGCN__
    int32_t height; /* rows of the tile; the problem may have fewer */
#endif
    int32_t steps; /* stages along k, at least one; 0: no such tile */
    int64_t slot;  /* first slot of the problem */
} Tile;

/* Position in the list of tiles: a problem and the index of its first tile. */
typedef struct Walk { int32_t problem, first; } Walk;

/* Tiles have `height` rows: tile_rows(size), or fewer for some large tiles. */
INLINE int32_t tiles_of(const GemmArguments *g, TileSize size, int32_t height, int32_t problem) {
    if (!g->offset) return g->tiles;
    int32_t slots = g->offset[problem + 1] - g->offset[problem];
    if (g->slots_are_depth) return slots > 0 || !g->d ? g->tiles : 0;
    return divide_up(slots, height) * divide_up(g->n, tile_columns(size));
}

/* Advances to the problem of tile `index`, which must not decrease; goes past the last problem if
 * there is none. */
INLINE void walk_to(const GemmArguments *g, TileSize size, int32_t height, Walk *walk, int32_t index) {
    if (!g->offset) {
        walk->problem = index / g->tiles;
        walk->first = walk->problem * g->tiles;
    } else
        while (walk->problem < g->problems) {
            int32_t tiles = tiles_of(g, size, height, walk->problem);
            if (index < walk->first + tiles) break;
            walk->first += tiles;
            walk->problem++;
        }
}

INLINE Tile tile_find(const GemmArguments *g, TileSize size, int32_t height, Walk *walk, int32_t index) {
    Tile tile = {.rows = g->m, .depth = g->k};
    walk_to(g, size, height, walk, index);
    if (walk->problem >= g->problems) return tile;
    tile.problem = walk->problem;
    if (g->offset) {
        tile.slot = g->offset[tile.problem];
        int32_t slots = g->offset[tile.problem + 1] - (int32_t)tile.slot;
        if (g->slots_are_depth) tile.depth = slots;
        else tile.rows = slots;
    }
    if (g->symmetric) place_below_diagonal(index - walk->first, &tile.row, &tile.column);
    else
        place_in_band(
            index - walk->first, BAND, divide_up(tile.rows, height), divide_up(g->n, tile_columns(size)), &tile.row, &tile.column);
    tile.row *= height;
    tile.column *= tile_columns(size);
    tile.steps = tile.depth > TILE_DEPTH ? divide_up(tile.depth, TILE_DEPTH) : 1;
    return tile;
}

/* -- Reading ------------------------------------------------------------------------------------------------------- */

#if defined __AMDGCN__
INLINE int height_of(const Tile *t, TileSize size) { return (void)size, t->height; }
#elif defined __NVPTX__
INLINE int height_of(const Tile *t, TileSize size) { return (void)t, tile_rows(size); }
#endif

INLINE Reader reader_of_a(const GemmArguments *g, TileSize size, const Tile *t, TileLayout layout) {
    bool lines = layout == LAYOUT_LINES || (layout == LAYOUT_ELEMENTS && g->transpose_a);
    GLOBAL const bf16 *data = g->a + (g->offset ? t->slot * g->lda : t->problem * g->stride_a);
    return reader_at(size, layout, tile_rows(size), height_of(t, size) / 2, data + t->row * (lines ? 1 : g->lda), lines ? 1 : g->lda,
        lines ? g->lda : 1, t->rows - t->row, t->depth);
}

INLINE Reader reader_of_b(const GemmArguments *g, TileSize size, const Tile *t, TileLayout layout) {
    bool lines = layout == LAYOUT_LINES || (layout == LAYOUT_ELEMENTS && !g->transpose_b);
    GLOBAL const bf16 *data = g->b + (g->slots_are_depth ? t->slot * g->ldb : t->problem * g->stride_b);
    return reader_at(size, layout, tile_columns(size), tile_columns(size) / 2, data + t->column * (lines ? 1 : g->ldb), lines ? 1 : g->ldb,
        lines ? g->ldb : 1, g->n - t->column, t->depth);
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

/* Writes the sums of a pass, whose element (0, 0) is (row, column) of C, element by element. */
INLINE void write_elements(const GemmArguments *g, const Tile *t, int32_t row, int32_t column, LOCAL const float *pass) {
    _Pragma("clang loop unroll(disable)") for (int i = lane_id(); i < PASS_ROWS * PASS_COLUMNS; i += WAVE) {
        int32_t r = row + i / PASS_COLUMNS, c = column + i % PASS_COLUMNS;
        if (r >= t->rows || c >= g->n || (g->symmetric && r < c)) continue;
        int64_t at = tile_place(g, t->slot, t->problem, r, c);
        float x = g->alpha * pass[pass_at(i / PASS_COLUMNS, i % PASS_COLUMNS)];
        if (g->bias) x += g->bias[c];
        if (g->d) x += g->beta * (g->wide ? ((GLOBAL const float *)g->d)[at] : to_float(((GLOBAL const bf16 *)g->d)[at]));
        write_one(g->c, at, x, g->wide);
        if (g->symmetric && r > c) write_one(g->c, tile_place(g, t->slot, t->problem, c, r), x, g->wide);
    }
}

enum {
    FOURS_ACROSS = PASS_COLUMNS / 4,         /* groups of four columns */
    FOURS_DOWN = PASS_ROWS / 4,              /* groups of four rows */
    FOURS = PASS_ROWS * FOURS_ACROSS / WAVE, /* per lane, all in the same columns */
    FOURS_STEP = WAVE / FOURS_ACROSS,        /* rows from one to the next */
};

/* Writes the sums of a pass four columns at a time (g->fours). All of D is loaded before any of it
 * is used. If C is symmetric, the written values also replace the sums, for write_mirrored. */
INLINE void write_fours(const GemmArguments *g, const Tile *t, int32_t row, int32_t column, LOCAL float *pass, bool wide) {
    int lane = opaque(lane_id()), down = lane / FOURS_ACROSS, across = lane % FOURS_ACROSS * 4;
    int32_t rows = column + across < g->n ? t->rows - row - down : 0;
    int64_t at = tile_place(g, t->slot, t->problem, row + down, column + across), step = FOURS_STEP * g->ldc;
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

/* Writes columns of the pass as rows of C, in bf16: the mirror image of a block below the
 * diagonal. */
INLINE void write_mirrored(const GemmArguments *g, const Tile *t, int32_t row, int32_t column, LOCAL const float *pass) {
    _Pragma("clang loop unroll(disable)") for (int i = lane_id(); i < PASS_COLUMNS * FOURS_DOWN; i += WAVE) {
        int across = i / FOURS_DOWN, down = i % FOURS_DOWN * 4;
        f32x4 x;
        UNROLL for (int e = 0; e < 4; e++) x[e] = pass[pass_at(down + e, across)];
        if (column + across < g->n && row + down < t->rows)
            write_four(g->c, tile_place(g, t->slot, t->problem, column + across, row + down), x, false);
    }
}

#if defined __AMDGCN__

/* Aligned like four floats. */
typedef f32x8 f32x8_aligned_16 __attribute__((aligned(16)));

/* Rows of C or D as a buffer that ends after the last one: loads after its end return 0, and stores
 * do nothing. */
typedef __amdgpu_buffer_rsrc_t StageBuffer;
INLINE StageBuffer buffer_of(GLOBAL const void *data, int64_t offset, int32_t bytes) {
    return __builtin_amdgcn_make_buffer_rsrc((void *)((GLOBAL const char *)data + offset), 0, bytes, 0x00020000);
}
enum { BEYOND = INT32_MIN, HALF_OF_EIGHT = 16 }; /* beyond the end of all buffers; bytes */

/* Eight adjacent elements as stored in memory; `high` only for fp32. */
typedef struct Eight { u32x4 low, high; } Eight;
INLINE Eight eight_load(StageBuffer from, int32_t at, bool wide) {
    Eight e = {__builtin_amdgcn_raw_buffer_load_b128(from, at, 0, 0), 0};
    if (wide) e.high = __builtin_amdgcn_raw_buffer_load_b128(from, at + HALF_OF_EIGHT, 0, 0);
    return e;
}
INLINE f32x8 eight_floats(Eight e, bool wide) {
    if (wide) return __builtin_shufflevector(__builtin_bit_cast(f32x4, e.low), __builtin_bit_cast(f32x4, e.high), 0, 1, 2, 3, 4, 5, 6, 7);
    f32x8 x;
    UNROLL for (int i = 0; i < 4; i++) x[2 * i] = to_float_low(e.low[i]), x[2 * i + 1] = to_float_high(e.low[i]);
    return x;
}
/* `numbers`: none is NaN, so the cast takes fewer instructions. */
INLINE void eight_store(StageBuffer to, int32_t at, f32x8 x, bool wide, bool numbers) {
    u32x4 pairs;
    UNROLL for (int i = 0; i < 4; i++) pairs[i] = (numbers ? numbers_to_bf16_pair : to_bf16_pair)(x[2 * i], x[2 * i + 1]);
    f32x4 low = x.lo, high = x.hi; /* clang miscompiles bit casts of parts of vectors */
    __builtin_amdgcn_raw_buffer_store_b128(wide ? __builtin_bit_cast(u32x4, low) : pairs, to, at, 0, 0);
    if (wide) __builtin_amdgcn_raw_buffer_store_b128(__builtin_bit_cast(u32x4, high), to, at + HALF_OF_EIGHT, 0, 0);
}

/* Groups of eight of a lane in a row of the wave's blocks: adjacent columns of one row each. */
typedef struct Eights { Eight x[LANE_ROWS][BLOCKS_ACROSS]; } Eights;
typedef struct Places { int32_t at[LANE_ROWS][BLOCKS_ACROSS]; } Places; /* in bytes, from the blocks' first row and column */

/* Loads D, of which `bytes` bytes remain: 0 if there is no D. This avoids a branch, at which the
 * compiler would wait for all loads. */
INLINE void eights_load(Eights *d, const GemmArguments *g, int64_t offset, int32_t bytes, const Places *places, bool wide) {
    StageBuffer from = buffer_of(g->d, offset, g->d ? bytes : 0);
    UNROLL for (int r = 0; r < LANE_ROWS; r++) UNROLL for (int j = 0; j < BLOCKS_ACROSS; j++) d->x[r][j] =
        eight_load(from, places->at[r][j], wide);
}

/* Writes the sums of a wave, whose part of C is `part`, from registers. `plain`: C = A B, without
 * NaN if C is bf16. All of D for a row of blocks is loaded before it is used. */
INLINE void write_eights(const GemmArguments *g, TileSize size, const Tile *part, const Sums *sums, bool wide, bool plain) {
    int32_t width = wide ? 4 : 2, row_bytes = (int32_t)g->ldc * width, rows = part->rows - part->row;
    int64_t first = tile_place(g, part->slot, part->problem, part->row, part->column) * width;
    Places places;
    f32x8 bias[BLOCKS_ACROSS];
    UNROLL for (int j = 0; j < BLOCKS_ACROSS; j++) {
        int32_t across = j * MMA + accumulator_chunk();
        bool there = part->column + across < g->n;
        UNROLL for (int r = 0; r < LANE_ROWS; r++) places.at[r][j] = there ? sum_row(size, r) * row_bytes + across * width : BEYOND;
        bias[j] = 0;
        if (!plain && g->bias && there) bias[j] = *(GLOBAL const f32x8_aligned_16 *)(g->bias + part->column + across);
    }
    Eights d = {0};
    UNROLL for (int i = 0; i < blocks_down(size); i++) {
        int32_t left = rows - i * MMA;
        int64_t offset = first + (int64_t)i * MMA * row_bytes;
        if (left <= 0) continue; /* the loop must be unrolled, so no break */
        if (!plain) eights_load(&d, g, offset, least(left, MMA) * row_bytes, &places, wide);
        StageBuffer to = buffer_of(g->c, offset, least(left, MMA) * row_bytes);
        UNROLL for (int r = 0; r < LANE_ROWS; r++) UNROLL for (int j = 0; j < BLOCKS_ACROSS; j++) {
            f32x8 x;
            UNROLL for (int c = 0; c < LANE_COLUMNS; c++) x[c] = accumulator_get(&sums->block[i][j], r, c);
            if (!plain) x = g->alpha * x + g->beta * eight_floats(d.x[r][j], wide) + bias[j];
            eight_store(to, places.at[r][j], x, wide, plain);
        }
    }
}

INLINE bool in_eights(const GemmArguments *g) {
    return g->fours && !g->symmetric && (g->n | (int32_t)g->ldc | (int32_t)g->stride_c) % 8 == 0;
}

/* Returns whether none of the wave's sums is NaN. */
INLINE bool sums_are_numbers(const Sums *sums, TileSize size) {
    bool not_a_number = false;
    UNROLL for (int i = 0; i < blocks_down(size); i++) UNROLL for (int j = 0; j < BLOCKS_ACROSS; j++)
        UNROLL for (int r = 0; r < LANE_ROWS; r++) UNROLL for (int c = 0; c < LANE_COLUMNS; c++) {
        float x = accumulator_get(&sums->block[i][j], r, c);
        not_a_number |= x != x;
    }
    return __builtin_amdgcn_ballot_w64(not_a_number) == 0;
}

INLINE void tile_write_eights(const GemmArguments *g, TileSize size, const Tile *part, const Sums *sums) {
    bool plain = g->alpha == 1 && !g->d && !g->bias;
    if (g->wide && plain) write_eights(g, size, part, sums, true, true);
    else if (g->wide) write_eights(g, size, part, sums, true, false);
    else if (plain && sums_are_numbers(sums, size)) write_eights(g, size, part, sums, false, true);
    else write_eights(g, size, part, sums, false, false);
}

/* Returns the rows and columns of a tile that the wave sums; `rows` is the end of its rows. */
INLINE Tile wave_part(const Tile *t, TileSize size) {
    int32_t wave = __builtin_amdgcn_readfirstlane(wave_id()), across = tile_columns(size) / PASS_COLUMNS, half = t->height / 2;
    Tile part = *t;
    part.row += wave / across * half;
    part.column += wave % across * PASS_COLUMNS;
    part.rows = least(part.rows, part.row + half);
    return part;
}
/* The first row and column of a wave's pass i. */
INLINE int32_t pass_first_row(const Tile *part, TileSize size, int i) { return (void)size, part->row + i * PASS_ROWS; }
INLINE int32_t pass_first_column(const Tile *part, TileSize size) { return (void)size, part->column; }

#elif defined __NVPTX__

/* Waves count rows and columns from those of the tile. */
INLINE Tile wave_part(const Tile *t, TileSize size) { return (void)size, *t; }
INLINE int32_t pass_first_row(const Tile *part, TileSize size, int i) { return part->row + pass_row(size, i); }
INLINE int32_t pass_first_column(const Tile *part, TileSize size) { return part->column + wave_column(size); }

#endif

/* Writes a tile of C. `room` is shared memory that no wave uses any more, PASS_ROWS * PASS_COLUMNS
 * floats per wave. If C is symmetric, 64 x 64 blocks above the diagonal mirror those below. */
INLINE void tile_write(const GemmArguments *g, TileSize size, const Tile *t, const Sums *sums, LOCAL float *room) {
    Tile part = wave_part(t, size);
#if defined __AMDGCN__
    if (in_eights(g)) {
        tile_write_eights(g, size, &part, sums);
        return;
    }
#endif
    LOCAL float *pass = room + wave_id() * PASS_ROWS * PASS_COLUMNS;
    _Pragma("clang loop unroll(disable)") for (int i = 0; i < blocks_down(size); i++) {
        int32_t row = pass_first_row(&part, size, i), column = pass_first_column(&part, size), from_diagonal = row / 64 - column / 64;
        wave_barrier();
        UNROLL for (int j = 0; j < blocks_down(size); j++) if (i == j) pass_write(sums, size, pass, j);
        wave_barrier();
        if (!g->fours) {
            write_elements(g, &part, row, column, pass);
        } else if (g->wide) {
            write_fours(g, &part, row, column, pass, true);
        } else if (!g->symmetric || from_diagonal >= 0) {
            write_fours(g, &part, row, column, pass, false);
            wave_barrier();
            if (g->symmetric && from_diagonal > 0) write_mirrored(g, &part, row, column, pass);
        }
    }
}

/* -- Blocks on AMD ------------------------------------------------------------------------------------------------- */

#if defined __AMDGCN__

/* Blocks are assigned to chiplets round-robin, and each chiplet has its own L2 cache, so adjacent
 * tiles go to the same chiplet. */
#if defined __gfx942__ || defined __gfx950__
enum { CHIPLETS = 8 };
#else
enum { CHIPLETS = 1 };
#endif

/* Returns the tile of a block that has only one; without steps if there is none. */
INLINE Tile block_tile(const GemmArguments *g, TileSize size) {
    int32_t height = tile_rows(size), index = block_x();
    Walk walk = {0};
    if (CHIPLETS > 1) {
        int32_t tiles = g->offset ? 0 : g->problems * g->tiles;
        for (int32_t i = 0; g->offset && i < g->problems; i++) tiles += tiles_of(g, size, height, i);
        int32_t share = divide_up(tiles, CHIPLETS), of_share = block_x() / CHIPLETS;
        index = of_share < share ? block_x() % CHIPLETS * share + of_share : tiles;
    }
    Tile tile = tile_find(g, size, height, &walk, index);
    tile.height = height;
    return tile;
}

/* -- Large tiles on AMD -------------------------------------------------------------------------------------------- */

/* The large tiles of a block, round after round. */
typedef struct Round {
    RowCut cut;
    int32_t columns, tiles; /* of all problems */
    int32_t number, shift;  /* of the round, and of the blocks' places in it */
    Walk walk;
} Round;

/* Returns units / most, rounded up; `most` is at most MOST_UNITS and known at run time. */
INLINE int32_t units_up(int32_t units, int32_t most) {
    uint32_t reciprocal = 0;
    UNROLL for (int i = 2; i <= MOST_UNITS; i++) if (i == most) reciprocal = UINT32_MAX / i + 1;
    return (int32_t)((uint64_t)(uint32_t)(units + most - 1) * reciprocal >> 32);
}

/* Return the rows of a problem in units of LARGE_STEP, 0 if there is nothing to do; and the same
 * for problem `first` + lane. */
INLINE int32_t problem_units(const GemmArguments *g, int32_t problem) {
    int32_t slots = g->offset ? g->offset[problem + 1] - g->offset[problem] : 0;
    if (slots_are_rows(g)) return divide_up(slots, LARGE_STEP);
    return g->offset && slots == 0 && g->d ? 0 : divide_up(g->m, LARGE_STEP);
}
INLINE int32_t lanes_units(const GemmArguments *g, int32_t first) {
    int32_t problem = first + lane_id();
    return problem < g->problems ? problem_units(g, problem) : 0;
}
INLINE int32_t large_tiles(const Round *round, int32_t units) {
    int32_t columns = round->cut.columns;
    return columns * units_up(units, round->cut.units) + (round->columns - columns) * units_up(units, round->cut.units - 1);
}

INLINE int32_t sum_of_lanes(int32_t x) {
    UNROLL for (int step = 1; step < WAVE; step *= 2) x += (int32_t)shuffle((uint32_t)x, lane_id() ^ step);
    return of_wave(x);
}

INLINE Round rounds_open(const GemmLarge *l) {
    const GemmArguments *g = &l->gemm;
    Round round = {.cut = l->cut, .columns = divide_up(g->n, tile_columns(TILE_LARGE))};
    int32_t tiles[MOST_UNITS + 1] = {0};
    if (!g->offset) {
        round.tiles = g->problems * g->tiles;
        return round;
    }
    for (int32_t first = 0; first < g->problems; first += WAVE) {
        int32_t units = lanes_units(g, first);
        UNROLL for (int most = EXPERTS_LEAST_UNITS - 1; most <= MOST_UNITS; most++) tiles[most] += divide_up(units, most);
    }
    UNROLL for (int most = EXPERTS_LEAST_UNITS - 1; most <= MOST_UNITS; most++) tiles[most] = sum_of_lanes(tiles[most]);
    round.cut = choose_cut(tiles, round.columns, l->blocks);
    UNROLL for (int most = EXPERTS_LEAST_UNITS - 1; most <= MOST_UNITS; most++) {
        if (most == round.cut.units) round.tiles += tiles[most] * round.cut.columns;
        if (most == round.cut.units - 1) round.tiles += tiles[most] * (round.columns - round.cut.columns);
    }
    return round;
}

/* Advances to the problem of tile `index`. */
INLINE void rounds_walk(Round *round, const GemmArguments *g, int32_t index) {
    if (!g->offset) {
        if (g->problems > 1) round->walk = (Walk){index / g->tiles, index / g->tiles * g->tiles};
        return;
    }
    int32_t chunk = round->walk.problem / WAVE * WAVE, units = lanes_units(g, chunk);
    for (;; round->walk.problem++) {
        if (round->walk.problem - chunk == WAVE) chunk += WAVE, units = lanes_units(g, chunk);
        int32_t tiles = large_tiles(round, __builtin_amdgcn_readlane(units, round->walk.problem - chunk));
        if (index < round->walk.first + tiles) return;
        round->walk.first += tiles;
    }
}

/* Computes the rows of tile `index` of a problem, in units: [first, end). */
INLINE void large_place(const GemmArguments *g, const Round *round, int32_t index, int32_t units, Tile *tile) {
    int32_t row, rows, column = 0, columns = round->cut.columns, most = round->cut.units;
    rows = units_up(units, most);
    if (g->symmetric) {
        place_below_diagonal(index, &row, &column);
        tile->row = row * MOST_UNITS, tile->rows = tile->row + MOST_UNITS;
    } else {
        bool shorter = index >= columns * rows;
        if (shorter) index -= columns * rows, rows = units_up(units, most - 1);
        place_in_band(index, BAND, rows, shorter ? round->columns - columns : columns, &row, &column);
        if (shorter) column += columns;
        int32_t least_units = units / rows, taller = units % rows; /* the first rows of tiles have one unit more */
        tile->row = row * least_units + least(row, taller), tile->rows = tile->row + least_units + (row < taller);
    }
    tile->column = column * tile_columns(TILE_LARGE);
}

/* Finds the next tile of this block; returns false if there are no more. Every chiplet has
 * adjacent tiles. The assignment rotates from round to round, so that no block always gets the
 * tallest tile. */
INLINE bool rounds_next(Round *round, const GemmLarge *l, Tile *tile) {
    enum { TURN = 11 };
    const GemmArguments *g = &l->gemm;
    int32_t share = divide_up(round->tiles, CHIPLETS), chiplet = block_x() % CHIPLETS, blocks = divide_up(l->blocks - chiplet, CHIPLETS);
    for (;; round->number++) {
        int32_t place = block_x() / CHIPLETS + round->shift, first = round->number * blocks;
        int32_t in_share = first + (place < blocks ? place : place - blocks), index = chiplet * share + in_share;
        if (first >= share) return false;
        round->shift = round->shift + TURN < blocks ? round->shift + TURN : 0;
        if (in_share >= share || index >= round->tiles) continue;
        rounds_walk(round, g, index);
        int32_t problem = round->walk.problem, rows = g->m, slots = 0;
        *tile = (Tile){.problem = problem, .depth = g->k};
        if (g->offset) {
            tile->slot = g->offset[problem];
            slots = g->offset[problem + 1] - (int32_t)tile->slot;
            if (g->slots_are_depth) tile->depth = slots;
            else rows = slots;
        }
        large_place(g, round, index - round->walk.first, divide_up(rows, LARGE_STEP), tile);
        int32_t units = tile->rows - tile->row;
        tile->height = (units < LEAST_UNITS ? LEAST_UNITS : units) * LARGE_STEP;
        tile->row *= LARGE_STEP, tile->rows = least(tile->rows * LARGE_STEP, rows);
        tile->steps = tile->depth > TILE_DEPTH ? divide_up(tile->depth, TILE_DEPTH) : 1;
        round->number++;
        return true;
    }
}

/* -- The stages of a tile on AMD ------------------------------------------------------------------------------------ */

/* A block's tile, and its stages in flight from memory. While a stage is multiplied, the next one
 * goes to shared memory, and two more are in flight. Every wave has two phases per stage: in one it
 * reads its operands and writes the next stage, in the other it multiplies. Blocks of eight waves
 * have two waves on every SIMD. The later ones run one phase behind, so that one wave multiplies
 * while the other accesses memory (as in HazyResearch's HipKittens). With blocks of four waves, two
 * blocks share a compute unit and interleave in much the same way. */
typedef struct BlockWork {
    Tile tile;
    LOCAL bf16 *stages; /* the wave's */
    Reader left, right;
    Fetched left_on_its_way[STAGES], right_on_its_way[STAGES];
    OperandPlaces places;
    bool in_turns, later;
} BlockWork;

/* A barrier across which the compiler moves nothing. Above all, it must not move products to a
 * place where they would wait for their operands. */
INLINE void phase_barrier(void) {
    __builtin_amdgcn_sched_barrier(0);
    barrier();
    __builtin_amdgcn_sched_barrier(0);
}

/* Writes a stage to place `at` of the STAGES, and starts to fetch the stage that is STAGES
 * later. */
INLINE void work_advance(BlockWork *w, TileSize size, const int at, TileLayout a, TileLayout b) {
    LOCAL bf16 *stage = w->stages + at * both_elements(size);
    reader_put(&w->left, &w->left_on_its_way[at], stage, size, a, tile_rows(size));
    reader_put(&w->right, &w->right_on_its_way[at], stage + a_elements(size), size, b, tile_columns(size));
    reader_fetch(&w->left, &w->left_on_its_way[at], size, a, tile_rows(size));
    reader_fetch(&w->right, &w->right_on_its_way[at], size, b, tile_columns(size));
}

/* Gives each half of the waves every second stage. */
INLINE void reader_split(Reader *r, bool later) {
    if (!later) return;
    r->data += r->step / 2;
    r->left -= TILE_DEPTH;
}
INLINE void work_split(BlockWork *w) {
    reader_split(&w->left, w->later);
    reader_split(&w->right, w->later);
    w->tile.steps = divide_up(w->tile.steps, 2);
    if (w->later) w->stages += STAGES * both_elements(TILE_SPLIT);
}

/* Adds the later waves' sums of a split tile to those of the others, through shared memory, which
 * they fill. */
INLINE void work_join(const BlockWork *w, Sums *sums) {
    LOCAL f32x4 *room = (LOCAL f32x4 *)stages + chunk_thread(TILE_SPLIT);
    UNROLL for (int i = 0; i < blocks_down(TILE_SPLIT); i++) UNROLL for (int j = 0; j < BLOCKS_ACROSS; j++)
        UNROLL for (int part = 0; part < 4; part++) if (w->later) room[((i * BLOCKS_ACROSS + j) * 4 + part) * SPLIT_WAVES * WAVE] =
            sums->block[i][j].x[part / 2][part % 2];
    phase_barrier();
    UNROLL for (int i = 0; i < blocks_down(TILE_SPLIT); i++) UNROLL for (int j = 0; j < BLOCKS_ACROSS; j++)
        UNROLL for (int part = 0; part < 4; part++) if (!w->later) sums->block[i][j]
            .x[part / 2][part % 2] += room[((i * BLOCKS_ACROSS + j) * 4 + part) * SPLIT_WAVES * WAVE];
    phase_barrier();
}

/* Starts with a tile. */
INLINE void work_open(BlockWork *w, const GemmArguments *g, TileSize size, const Tile *tile, TileLayout a, TileLayout b) {
    w->tile = *tile;
    w->left = reader_of_a(g, size, &w->tile, a), w->right = reader_of_b(g, size, &w->tile, b);
    w->in_turns = size != TILE_SMALL,
    w->later = __builtin_amdgcn_readfirstlane(wave_id()) >= 4; /* known to be the wave's: a branch without a mask */
    w->stages = stages;
    if (size == TILE_SPLIT) work_split(w);
    w->places = operand_places(size);
    UNROLL for (int i = 0; i < STAGES; i++) {
        reader_fetch(&w->left, &w->left_on_its_way[i], size, a, tile_rows(size));
        reader_fetch(&w->right, &w->right_on_its_way[i], size, b, tile_columns(size));
    }
    work_advance(w, size, 0, a, b);
    phase_barrier();
    __builtin_amdgcn_s_setprio(0); /* tells the emulator that waves wait at different barriers */
    if (w->in_turns && w->later) phase_barrier();
}

/* Reads the operands of the next stage, in place `at` of the STAGES, for `rows` rows of the wave.
 * Afterwards it is the wave's turn at the matrix unit. */
INLINE void work_begin(BlockWork *w, TileSize size, Operands *operands, const int at, TileLayout a, TileLayout b, const int rows) {
    operands_read(operands, w->stages + at * both_elements(size), size, w->places, rows);
    work_advance(w, size, (at + 1) % STAGES, a, b);
    phase_barrier();
    __builtin_amdgcn_s_setprio(1);
}
INLINE void work_end(const BlockWork *w) {
    __builtin_amdgcn_s_setprio(0);
    if (w->in_turns) phase_barrier();
    else __builtin_amdgcn_sched_barrier(0);
}

/* Ends the last stage: all waves have used the stages. */
INLINE void work_close(const BlockWork *w) {
    if (w->in_turns && !w->later) phase_barrier();
    phase_barrier();
}

#endif

#endif
