/* One block's part of a GEMM: bf16 tiles of A and B go from global to shared memory, and the sums
 * of a tile of C stay in registers. For gpu_gemm_block_kernels.h; the Hopper kernels
 * (gpu_gemm_hopper_kernels.h) share the arguments.
 *
 * A stage is TILE_DEPTH steps along k of the lines (rows of A, columns of B) of a tile. On NVIDIA
 * it is stored in swizzled rows of shared memory (mma.h); a row is a line, or one step along k of a
 * panel of 32 lines. On AMD it is stored by lines for any layout in memory (lines_at in mma.h):
 * operands whose lines are adjacent in memory are transposed on the way.
 *
 * A wave sums wave_rows of a tile of C in blocks of 32 x 32 (mma.h). At the end it writes its sums
 * to shared memory, row by row, in several passes. */
#pragma once

#include "backend/gpu/mma.h"

/* The size of a tile of C, a constant at every call on the device. Only AMD has the sizes that
 * blocks of eight waves sum. Large tiles may have fewer rows than tile_rows (GemmLarge). Split
 * tiles are as large as small ones, but each half of the waves sums every second stage: they are
 * for problems with fewer tiles than compute units. */
typedef enum TileSize { TILE_SMALL, TILE_SPLIT, TILE_LARGE } TileSize;
static inline int tile_rows(TileSize size) { return size == TILE_LARGE ? 256 : 128; }
static inline int tile_columns(TileSize size) { return size == TILE_LARGE ? 256 : 128; }
static inline int tile_threads(TileSize size) { return size == TILE_SMALL ? 256 : 512; }
/* Returns the rows of a tile that one wave sums. */
static inline int wave_rows(TileSize size) { return size == TILE_LARGE ? 128 : 64; }
/* Waves in each half of a block that sums a split tile. */
enum { SPLIT_WAVES = 4 };
/* Large tiles have LARGE_LEAST_ROWS rows, or more in steps of LARGE_STEP: then each of the two rows
 * of waves has whole halves of blocks. */
enum { LARGE_LEAST_ROWS = 128, LARGE_STEP = 32 };

/* Steps along k of a stage, and stages in shared memory. The Hopper kernels use NVIDIA's numbers
 * too. */
enum { AMD_DEPTH = 32, AMD_STAGES = 2, NVIDIA_DEPTH = 64, NVIDIA_STAGES = 3 };
#if defined GPU_DEVICE && defined __AMDGCN__
enum { TILE_DEPTH = AMD_DEPTH, STAGES = AMD_STAGES, MOST_BLOCKS = 4 };
#else
enum { TILE_DEPTH = NVIDIA_DEPTH, STAGES = NVIDIA_STAGES, MOST_BLOCKS = 2 };
#endif

/* C = alpha A B + beta D + bias. */
typedef struct GemmArguments {
    GLOBAL const bf16 *a, *b;
    GLOBAL void *c;
    GLOBAL const void *d;         /* like C, or NULL */
    GLOBAL const float *bias;     /* or NULL */
    GLOBAL const int32_t *offset; /* of the experts' slots, or NULL */
    int64_t lda, ldb, ldc, stride_a, stride_b, stride_c;
    int32_t m, n, k;         /* with `offset`, m (or k with slots_are_depth) is not used */
    int32_t problems, tiles; /* tiles of one problem, if its size does not depend on `offset` */
    float alpha, beta;
    /* Booleans: */
    int32_t transpose_a, transpose_b; /* read only by gemm_any */
    int32_t slots_are_depth, symmetric;
    int32_t wide;  /* C and D are fp32 */
    int32_t fours; /* C, D and bias allow access to four aligned columns, and C to four rows if it is symmetric */
} GemmArguments;

/* How problems are cut into large tiles, in units of LARGE_STEP rows: evenly, into the fewest tiles
 * with at most `units` units in the first `columns` columns of tiles, and at most `units` - 1 in
 * the others. */
enum { LEAST_UNITS = LARGE_LEAST_ROWS / LARGE_STEP, MOST_UNITS = 8 };
typedef struct RowCut { int32_t units, columns; } RowCut;

/* For kernels of large tiles, whose blocks go from tile to tile. With experts, only the device
 * knows how many rows each has, so blocks choose the cut there. Symmetric problems have tiles of
 * MOST_UNITS units, except in the last row. */
typedef struct GemmLarge {
    GemmArguments gemm;
    RowCut cut;
    int32_t blocks; /* blocks in the grid */
} GemmLarge;

/* Lower limit of units when experts' tiles are cut smaller to fill the last round: smaller tiles
 * read too much. */
enum { EXPERTS_LEAST_UNITS = 7 };

/* Returns the cut that fills the rounds of large tiles. tiles[u] is the number of tiles in one
 * column of tiles of all problems, with at most u units each; there are `columns` columns. */
static inline __attribute__((always_inline)) RowCut choose_cut(const int32_t tiles[MOST_UNITS + 1], int32_t columns, int32_t blocks) {
    int32_t rounds = (tiles[MOST_UNITS] * columns + blocks - 1) / blocks;
    RowCut cut = {MOST_UNITS, columns};
    for (int units = MOST_UNITS; units >= EXPERTS_LEAST_UNITS; units--) {
        int32_t left = rounds * blocks - tiles[units] * columns, more = tiles[units - 1] - tiles[units];
        if (left < 0) break;
        int32_t shorter = more > 0 ? left / more : columns;
        cut = (RowCut){units, columns - (shorter < columns ? shorter : columns)};
    }
    return cut;
}

#ifdef GPU_DEVICE

INLINE int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }
INLINE int32_t divide_up(int32_t a, int32_t b) { return (a + b - 1) / b; }

INLINE bool slots_are_rows(const GemmArguments *g) { return g->offset && !g->slots_are_depth; }

/* Returns the offset of element (row, column) of C or D of a problem whose first slot is `slot`. */
INLINE int64_t tile_place(const GemmArguments *g, int64_t slot, int32_t problem, int32_t row, int32_t column) {
    return (slots_are_rows(g) ? slot * g->ldc : problem * g->stride_c) + row * g->ldc + column;
}

/* Computes row and column, in tiles, of tile `index` if tiles are numbered in bands of `band_rows`
 * rows, column by column. */
INLINE void place_in_band(int32_t index, int32_t band_rows, int32_t rows, int32_t columns, int32_t *row, int32_t *column) {
    int32_t band = index / (band_rows * columns), height = least(band_rows, rows - band * band_rows),
            inner = index - band * band_rows * columns;
    *row = band * band_rows + inner % height;
    *column = inner / height;
}

/* Computes row and column, in tiles, of tile `index` among those on or below the diagonal; row p
 * has p + 1 of them. */
INLINE void place_below_diagonal(int32_t index, int32_t *row, int32_t *column) {
    int32_t p = (int32_t)(0.5f * (fast_sqrt(8.0f * (float)index + 1) - 1));
    while (p > 0 && p * (p + 1) / 2 > index) p--;
    while ((p + 1) * (p + 2) / 2 <= index) p++;
    *row = p;
    *column = index - p * (p + 1) / 2;
}

#if defined __NVPTX__
/* Prefetches into the L2 cache. */
INLINE void prefetch(GLOBAL const void *data) { __asm__ volatile("prefetch.global.L2 [%0];" : : "l"(data)); }
#endif

/* Elements of a stage of A, and of both operands; the stages are consecutive. */
INLINE int a_elements(TileSize size) { return tile_rows(size) * TILE_DEPTH; }
INLINE int both_elements(TileSize size) { return (tile_rows(size) + tile_columns(size)) * TILE_DEPTH; }

/* Returns the steps along k from a wave's stage to its next one. */
INLINE int depth_to_next(TileSize size) { return size == TILE_SPLIT ? 2 * TILE_DEPTH : TILE_DEPTH; }

extern LOCAL bf16 stages[] __attribute__((aligned(1024)));

/* -- From global to shared memory ---------------------------------------------------------------------------------- */

/* The contiguous dimension in memory, in aligned chunks of eight: steps along k, or lines.
 * LAYOUT_ELEMENTS: neither. */
typedef enum TileLayout { LAYOUT_DEPTH, LAYOUT_LINES, LAYOUT_ELEMENTS } TileLayout;

enum { CHUNKS = WAVE == 64 ? 2 : 4 }; /* chunks that a thread reads per stage of one operand */

/* Reads an operand, stage after stage along k. Lines after the last repeat the last line: their
 * sums are never stored. Steps after k are zero. */
typedef struct Reader {
    GLOBAL const bf16 *data;                  /* line 0 of the next stage */
    int64_t step;                             /* to the next stage, in elements */
    int32_t left;                             /* remaining steps along k */
    int32_t offset[CHUNKS];                   /* from `data` to this thread's chunks; not for LAYOUT_ELEMENTS */
    int32_t line_stride, depth_stride, lines; /* only for LAYOUT_ELEMENTS */
} Reader;

#if defined __AMDGCN__

/* Returns the thread's index among those that read the same stage. */
INLINE unsigned chunk_thread(TileSize size) { return size == TILE_SPLIT ? thread_id() % (SPLIT_WAVES * WAVE) : thread_id(); }
/* The first line and the first step, in memory, of a thread's chunk i of a stage of `lines` lines.
 * For LAYOUT_LINES a thread has two steps of the same eight lines, and a wave four pairs of steps
 * of 128 lines, so its transposed writes cover every bank. */
INLINE int chunk_line(TileSize size, TileLayout layout, int lines, int i) {
    unsigned thread = chunk_thread(size);
    return (int)(layout == LAYOUT_DEPTH ? thread / 4 + i * lines / CHUNKS : thread / 4 % (lines / 8) * 8);
}
INLINE int chunk_depth(TileSize size, TileLayout layout, int lines, int i) {
    unsigned thread = chunk_thread(size);
    return (int)(layout == LAYOUT_DEPTH ? thread % 4 * 8 : (thread % 4 + thread / (lines / 2) * 4) * 2 + i);
}
/* Returns the offset from line 0 and step 0 of the stage, in elements; `lines` lines exist. Each
 * half of the stage has `half` lines, followed by copies of the last one. */
INLINE int32_t chunk_offset(
    TileSize size, TileLayout layout, int count, int half, int i, int64_t line_stride, int64_t depth_stride, int32_t lines) {
    int line = chunk_line(size, layout, count, i), depth = chunk_depth(size, layout, count, i), of_chunk = layout == LAYOUT_DEPTH ? 1 : 8;
    int32_t in_memory = least(line / (count / 2) * half + least(line % (count / 2), half - of_chunk), lines - of_chunk);
    return layout == LAYOUT_DEPTH ? in_memory * (int32_t)line_stride + depth : depth * (int32_t)depth_stride + in_memory;
}
INLINE LOCAL bf16 *chunk_of_line(LOCAL bf16 *stage, int line, int depth) { return stage + lines_at(line, depth / 8); }

#elif defined __NVPTX__

enum { PANEL_LINES = 32 }; /* a wave reads constant parts of a panel */

/* Return the number of elements in a row of shared memory, and for a thread's chunk i its row
 * and its first column in that row. */
INLINE int row_width(TileLayout layout) { return layout == LAYOUT_LINES ? PANEL_LINES : TILE_DEPTH; }
INLINE int chunk_row(TileLayout layout, int i) { return (thread_id() + i * tile_threads(TILE_SMALL)) / (row_width(layout) / 8); }
INLINE int chunk_column(TileLayout layout) { return thread_id() % (row_width(layout) / 8) * 8; }
INLINE LOCAL bf16 *chunk_at(LOCAL bf16 *tile, TileLayout layout, int i) {
    int width = row_width(layout), rows = tile_threads(TILE_SMALL) / (width / 8);
    return tile + tile_at(width, chunk_row(layout, 0), chunk_column(layout)) +
           i * rows * width; /* rows are a multiple of the swizzle's period */
}
INLINE int chunk_depth(TileLayout layout, int i) {
    return layout == LAYOUT_DEPTH ? chunk_column(layout) : chunk_row(layout, i) % TILE_DEPTH;
}
INLINE int32_t chunk_offset(
    TileSize size, TileLayout layout, int count, int half, int i, int64_t line_stride, int64_t depth_stride, int32_t lines) {
    int row = chunk_row(layout, i), column = chunk_column(layout);
    (void)size, (void)count, (void)half;
    return layout == LAYOUT_DEPTH ? least(row, lines - 1) * (int32_t)line_stride + column
                                  : row % TILE_DEPTH * (int32_t)depth_stride + least(row / TILE_DEPTH * PANEL_LINES + column, lines - 8);
}
INLINE LOCAL bf16 *chunk_of_line(LOCAL bf16 *stage, int line, int depth) { return stage + tile_at(TILE_DEPTH, line, depth); }

#endif

/* Returns a reader. `data` is line 0 at k = 0 of a tile of `count` lines, of which 2 `half` are
 * used; `lines` and `depth` are the lines and steps along k that exist from there on. */
INLINE Reader reader_at(TileSize size, TileLayout layout, int count, int half, GLOBAL const bf16 *data, int64_t line_stride,
    int64_t depth_stride, int32_t lines, int32_t depth) {
    Reader r = {.data = data, .step = depth_to_next(size) * depth_stride, .left = depth};
    if (layout == LAYOUT_ELEMENTS) {
        r.line_stride = (int32_t)line_stride, r.depth_stride = (int32_t)depth_stride, r.lines = lines;
    } else {
        UNROLL for (int i = 0; i < CHUNKS; i++) r.offset[i] = chunk_offset(size, layout, count, half, i, line_stride, depth_stride, lines);
    }
    return r;
}

INLINE void reader_advance(Reader *r, TileSize size) {
    r->data += r->step;
    r->left -= depth_to_next(size);
}

/* Reads a whole stage, element by element; lanes read adjacent memory. */
INLINE void reader_gather(Reader *r, LOCAL bf16 *stage, int count, int threads) {
    enum { ACROSS = TILE_DEPTH / 8 };
    _Pragma("clang loop unroll(disable)") for (int i = thread_id(); i < count * ACROSS; i += threads) {
        int line = r->depth_stride == 1 ? i / ACROSS : i % count, depth = (r->depth_stride == 1 ? i % ACROSS : i / count) * 8;
        u32x4 chunk = {0, 0, 0, 0};
        UNROLL for (int e = 0; e < 8; e++) if (line < r->lines && depth + e < r->left) chunk[e / 2] |=
            (uint32_t)r->data[line * r->line_stride + (depth + e) * r->depth_stride] << e % 2 * 16;
        *(LOCAL u32x4 *)chunk_of_line(stage, line, depth) = chunk;
    }
    reader_advance(r, TILE_SMALL);
}

#if defined __AMDGCN__

/* A stage of an operand in flight, in registers. */
typedef struct Fetched { u32x4 chunk[CHUNKS]; } Fetched;

/* Fetches the next stage. The buffer descriptor ends after k, so that later steps read zeros:
 * with LAYOUT_LINES their offsets are beyond its end, and otherwise they are replaced by -1,
 * which is too. */
INLINE void reader_fetch(Reader *r, Fetched *fetched, TileSize size, TileLayout layout, int count) {
    if (layout == LAYOUT_ELEMENTS) return;
    int bytes = r->left >= TILE_DEPTH    ? -1
                : r->left <= 0           ? 0
                : layout == LAYOUT_LINES ? r->left * (int)(r->step / depth_to_next(size)) * 2
                                         : -2;
    __amdgpu_buffer_rsrc_t buffer = __builtin_amdgcn_make_buffer_rsrc((void *)r->data, 0, bytes, 0x00020000);
    UNROLL for (int i = 0; i < CHUNKS; i++) {
        bool there = layout == LAYOUT_LINES || chunk_depth(size, layout, count, i) < r->left;
        fetched->chunk[i] = __builtin_amdgcn_raw_buffer_load_b128(buffer, there ? r->offset[i] * 2 : -1, 0, 0);
    }
    reader_advance(r, size);
}

INLINE void reader_put(Reader *r, const Fetched *fetched, LOCAL bf16 *stage, TileSize size, TileLayout layout, int count) {
    int line = chunk_line(size, layout, count, 0), depth = chunk_depth(size, layout, count, 0);
    if (layout == LAYOUT_ELEMENTS) reader_gather(r, stage, count, tile_threads(size));
    else if (layout == LAYOUT_LINES) lines_put_transposed(stage, line, depth / 2, fetched->chunk[0], fetched->chunk[1]);
    else
        UNROLL for (int i = 0; i < CHUNKS; i++) * (LOCAL u32x4 *)(stage + lines_at(line, depth / 8) + i * count / CHUNKS * TILE_DEPTH) =
            fetched->chunk[i];
}

#elif defined __NVPTX__

INLINE void reader_copy(Reader *r, LOCAL bf16 *tile, TileLayout layout, int count) {
    if (layout == LAYOUT_ELEMENTS) {
        reader_gather(r, tile, count, tile_threads(TILE_SMALL));
        return;
    }
    UNROLL for (int i = 0; i < CHUNKS; i++) copy_chunk(chunk_at(tile, layout, i), r->data + r->offset[i], chunk_depth(layout, i) < r->left);
    reader_advance(r, TILE_SMALL);
}

#endif

/* -- Passes -------------------------------------------------------------------------------------------------------- */

/* The sums that a wave writes to shared memory at once: 1,024 or 2,048 in fp32, with swizzled
 * 16-byte chunks. */
enum { PASS_ROWS = MMA, PASS_COLUMNS = WAVE == 64 ? 64 : 32 };

INLINE int pass_at(int row, int column) { return row * PASS_COLUMNS + ((column / 4 ^ ((row ^ row >> 3) & 7)) * 4 | column % 4); }

/* Adjacent columns that a lane holds (mma.h). */
#if defined __AMDGCN__
enum { PASS_RUN = 4 };
typedef f32x4 PassRun;
#else
enum { PASS_RUN = 2 };
typedef f32x2 PassRun;
#endif

/* -- Sums -------------------------------------------------------------------------------------------------------- */

enum { BLOCKS_ACROSS = PASS_COLUMNS / MMA }; /* per wave, which sums PASS_COLUMNS columns */

/* Blocks of a wave; the first blocks_down rows of them are used. */
typedef struct Sums { Accumulator block[MOST_BLOCKS][BLOCKS_ACROSS]; } Sums;
typedef struct Operands { Operand left[MOST_BLOCKS], right[BLOCKS_ACROSS]; } Operands;

INLINE int blocks_down(TileSize size) { return wave_rows(size) / MMA; }
/* Returns the wave's index among those that sum different parts of a tile. */
INLINE int wave_of(TileSize size) { return size == TILE_SPLIT ? wave_id() % SPLIT_WAVES : wave_id(); }
/* The wave's first row and column in the tile. */
INLINE int wave_row(TileSize size) { return wave_of(size) / (tile_columns(size) / PASS_COLUMNS) * blocks_down(size) * MMA; }
INLINE int wave_column(TileSize size) { return wave_of(size) % (tile_columns(size) / PASS_COLUMNS) * BLOCKS_ACROSS * MMA; }
/* Returns the first row of the wave's pass i. */
INLINE int pass_row(TileSize size, int i) { return (wave_id() / (tile_columns(size) / PASS_COLUMNS) * blocks_down(size) + i) * MMA; }

#if defined __AMDGCN__

/* The rows of a block that a lane has in the left Operands, and so in the sums: those of mma.h,
 * except in large tiles. A large tile may end in the middle of a block, so its half[s] has the rows
 * from 16 s on. */
INLINE int left_step(TileSize size) { return size == TILE_LARGE ? MMA / 2 : OPERAND_STEP; }
INLINE int sum_row(TileSize size, int r) { return size == TILE_LARGE ? lane_id() % 16 + r * (MMA / 2) : accumulator_row(r); }

/* The places, from the start of a stage, at which a lane reads its operands (mma.h): the same in
 * all stages. */
typedef struct OperandPlaces { unsigned left, right; } OperandPlaces;
INLINE OperandPlaces operand_places(TileSize size) {
    unsigned left = lines_lane((unsigned)sum_row(size, 0)) + (unsigned)(wave_row(size) * TILE_DEPTH),
             right = lines_lane(operand_row((unsigned)lane_id() % 16)) + (unsigned)(a_elements(size) + wave_column(size) * TILE_DEPTH);
    return (OperandPlaces){(unsigned)opaque((int)left), (unsigned)opaque((int)right)};
}
/* Reads the operands of `rows` rows of the wave. */
INLINE void operands_read(Operands *o, LOCAL const bf16 *stage, TileSize size, OperandPlaces at, const int rows) {
    UNROLL for (int i = 0; i * MMA < rows; i++) operand_load_lines(&o->left[i], stage, at.left, i, left_step(size));
    UNROLL for (int j = 0; j < BLOCKS_ACROSS; j++) operand_load_lines(&o->right[j], stage, at.right, j, OPERAND_STEP);
}

#elif defined __NVPTX__

INLINE int sum_row(TileSize size, int r) { return (void)size, accumulator_row(r); }

/* Reads 32 lines from `line` on, at step `depth`. */
INLINE void operand_read(Operand *o, LOCAL const bf16 *stage, TileLayout layout, int line, const int depth) {
    if (layout == LAYOUT_LINES) operand_load_transposed(o, stage + line * TILE_DEPTH, PANEL_LINES, depth, 0);
    else operand_load(o, stage + line * TILE_DEPTH, TILE_DEPTH, 0, depth);
}
INLINE void operands_read(Operands *o, LOCAL const bf16 *stage, TileSize size, TileLayout a, TileLayout b, const int depth) {
    int row = wave_row(size), column = wave_column(size);
    UNROLL for (int i = 0; i < blocks_down(size); i++) operand_read(&o->left[i], stage, a, row + i * MMA, depth);
    UNROLL for (int j = 0; j < BLOCKS_ACROSS; j++) operand_read(&o->right[j], stage + a_elements(size), b, column + j * MMA, depth);
}

#endif

INLINE void sums_clear(Sums *sums, TileSize size) {
    UNROLL for (int i = 0; i < blocks_down(size); i++) UNROLL for (int j = 0; j < BLOCKS_ACROSS; j++) accumulator_clear(&sums->block[i][j]);
}

/* Adds the products of `rows` rows of the wave, a multiple of 16. */
INLINE void sums_add(Sums *sums, const Operands *o, const int rows) {
    UNROLL for (int i = 0; i * MMA < rows; i++) UNROLL for (int j = 0; j < BLOCKS_ACROSS; j++)
        mma_rows(&sums->block[i][j], &o->left[i], &o->right[j], rows - i * MMA < MMA ? MMA / 2 : MMA);
}

/* Writes pass i, which is row i of the blocks, to shared memory. */
INLINE void pass_write(const Sums *sums, TileSize size, LOCAL float *pass, int i) {
    int zero = opaque(0);
    UNROLL for (int j = 0; j < BLOCKS_ACROSS; j++) {
        const Accumulator *block = &sums->block[i][j];
        UNROLL for (int r = 0; r < LANE_ROWS; r++) UNROLL for (int c = 0; c < LANE_COLUMNS; c += PASS_RUN) {
            PassRun run;
            UNROLL for (int e = 0; e < PASS_RUN; e++) run[e] = accumulator_get(block, r, c + e);
            *(LOCAL PassRun *)(pass + pass_at(sum_row(size, r) + zero, j * MMA + accumulator_column(c) + zero)) = run;
        }
    }
}

#endif
