/* What one block does of a GEMM: bf16 tiles of A and B go from global to shared memory, and the sums of a tile of C
 * stay in registers. For gpu_gemm_block_internal.h; the Hopper kernels (gpu_gemm_hopper_internal.h) share
 * the arguments.
 *
 * A tile of an operand has `count` lines (rows of A, columns of B) and TILE_DEPTH steps along k, in swizzled rows of
 * shared memory (mma.h). A row is either a line, or one step along k of a panel of 32 or 64 lines; a panel then has
 * TILE_DEPTH rows.
 *
 * A wave sums 64 rows of a tile of C in blocks of 32 x 32 (mma.h). At the end it writes its sums to shared memory, row
 * by row, in several passes. */
#pragma once

#include "backend/gpu/mma.h"

enum { GEMM_THREADS = 256, TILE_ROWS = 128, TILE_COLUMNS = 128, TILE_DEPTH = 64 };

/* C = alpha A B + beta D + bias. */
typedef struct GemmArguments {
    GLOBAL const bf16 *a, *b;
    GLOBAL void *c;
    GLOBAL const void *d;         /* as C, or NULL */
    GLOBAL const float *bias;     /* or NULL */
    GLOBAL const int32_t *offset; /* of the experts' slots, or NULL */
    int64_t lda, ldb, ldc, stride_a, stride_b, stride_c;
    int32_t m, n, k;         /* m, or k with slots_are_depth, is not used with offset */
    int32_t problems, tiles; /* tiles of one problem, where its size does not depend on offset */
    float alpha, beta;
    /* Booleans: */
    int32_t transpose_a, transpose_b; /* read by gemm_any alone */
    int32_t slots_are_depth, symmetric;
    int32_t wide;  /* C and D are fp32 */
    int32_t fours; /* C, D and bias can be accessed by four aligned columns, and C by four rows if it is symmetric */
} GemmArguments;

#ifdef GPU_DEVICE

INLINE int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }
INLINE int32_t divide_up(int32_t a, int32_t b) { return (a + b - 1) / b; }

INLINE bool slots_are_rows(const GemmArguments *g) { return g->offset && !g->slots_are_depth; }

/* Offset of element (row, column) of C or D of a problem whose first slot is `slot`. */
INLINE int64_t place_of(const GemmArguments *g, int64_t slot, int32_t problem, int32_t row, int32_t column) {
    return (slots_are_rows(g) ? slot * g->ldc : problem * g->stride_c) + row * g->ldc + column;
}

/* Row and column, in tiles, of tile `index` where tiles are numbered by bands of `band_rows` rows, column by column. */
INLINE void place_in_band(int32_t index, int32_t band_rows, int32_t rows, int32_t columns, int32_t *row, int32_t *column) {
    int32_t band = index / (band_rows * columns), height = least(band_rows, rows - band * band_rows),
            inner = index - band * band_rows * columns;
    *row = band * band_rows + inner % height;
    *column = inner / height;
}

/* Row and column, in tiles, of tile `index` among those on or below the diagonal, of which row p has p + 1. */
INLINE void place_below_diagonal(int32_t index, int32_t *row, int32_t *column) {
    int32_t p = (int32_t)(0.5f * (fast_sqrt(8.0f * (float)index + 1) - 1));
    while (p > 0 && p * (p + 1) / 2 > index) p--;
    while ((p + 1) * (p + 2) / 2 <= index) p++;
    *row = p;
    *column = index - p * (p + 1) / 2;
}

#if defined __NVPTX__
/* Into the second-level cache. */
INLINE void prefetch(GLOBAL const void *data) { __asm__ volatile("prefetch.global.L2 [%0];" : : "l"(data)); }
enum { STAGES = 3 };
#else
enum { STAGES = 1 };
#endif

enum {
    A_ELEMENTS = TILE_ROWS * TILE_DEPTH,
    STAGE_ELEMENTS = A_ELEMENTS + TILE_COLUMNS * TILE_DEPTH,
    PANEL_LINES = WAVE == 32 ? 32 : 64,                    /* a wave reads constant parts of a panel */
    CHUNKS = TILE_COLUMNS * TILE_DEPTH / 8 / GEMM_THREADS, /* most that a thread reads of a tile */
};

/* -- From global to shared memory ---------------------------------------------------------------------------------- */

/* What is contiguous in memory, in aligned chunks of eight: steps along k, or lines. LAYOUT_ELEMENTS: nothing. */
typedef enum Layout { LAYOUT_DEPTH, LAYOUT_LINES, LAYOUT_ELEMENTS } Layout;

/* Reads an operand, tile after tile along k. Lines beyond the last are read from the last: their sums are never stored.
 * Steps beyond k are zero. */
typedef struct Reader {
    GLOBAL const bf16 *data;                  /* line 0 of the next tile */
    int64_t step;                             /* to the next tile, in elements */
    int32_t left;                             /* steps along k from data on */
    int32_t offset[CHUNKS];                   /* from data to this thread's chunks; not of LAYOUT_ELEMENTS */
    int32_t line_stride, depth_stride, lines; /* of LAYOUT_ELEMENTS only */
} Reader;

INLINE int chunks_of(int count) { return count * TILE_DEPTH / 8 / GEMM_THREADS; }

/* Elements in a row of shared memory; and the row, and the first element in it, of a thread's chunk i. */
INLINE int row_width(Layout layout) { return layout == LAYOUT_LINES ? PANEL_LINES : TILE_DEPTH; }
INLINE int chunk_row(Layout layout, int i) { return (thread_id() + i * GEMM_THREADS) / (row_width(layout) / 8); }
INLINE int chunk_column(Layout layout) { return thread_id() % (row_width(layout) / 8) * 8; }
INLINE LOCAL bf16 *chunk_at(LOCAL bf16 *tile, Layout layout, int i) {
    int width = row_width(layout), rows = GEMM_THREADS / (width / 8);
    return tile + tile_at(width, chunk_row(layout, 0), chunk_column(layout)) +
           i * rows * width; /* rows are a multiple of the swizzle's period */
}

/* `data` is line 0 of the tile at k = 0; `lines` and `depth` are the lines and steps along k from there on. */
INLINE Reader reader_at(
    Layout layout, int count, GLOBAL const bf16 *data, int64_t line_stride, int64_t depth_stride, int32_t lines, int32_t depth) {
    Reader r = {.data = data, .step = TILE_DEPTH * depth_stride, .left = depth};
    if (layout == LAYOUT_ELEMENTS) {
        r.line_stride = (int32_t)line_stride, r.depth_stride = (int32_t)depth_stride, r.lines = lines;
    } else UNROLL for (int i = 0; i < chunks_of(count); i++) {
            int row = chunk_row(layout, i), column = chunk_column(layout);
            if (layout == LAYOUT_DEPTH) r.offset[i] = least(row, lines - 1) * (int32_t)line_stride + column;
            else r.offset[i] = row % TILE_DEPTH * (int32_t)depth_stride + least(row / TILE_DEPTH * PANEL_LINES + column, lines - 8);
        }
    return r;
}

INLINE void reader_advance(Reader *r) {
    r->data += r->step;
    r->left -= TILE_DEPTH;
}

INLINE bool chunk_exists(const Reader *r, Layout layout, int i) {
    return (layout == LAYOUT_DEPTH ? chunk_column(layout) : chunk_row(layout, i) % TILE_DEPTH) < r->left;
}

/* A whole tile with depth along its rows, element by element; lanes read what is side by side in memory. */
INLINE void reader_gather(Reader *r, LOCAL bf16 *tile, int count) {
    _Pragma("clang loop unroll(disable)") for (int i = thread_id(); i < count * 8; i += GEMM_THREADS) {
        int line = r->depth_stride == 1 ? i / 8 : i % count, depth = (r->depth_stride == 1 ? i % 8 : i / count) * 8;
        u32x4 chunk = {0, 0, 0, 0};
        UNROLL for (int e = 0; e < 8; e++) if (line < r->lines && depth + e < r->left) chunk[e / 2] |=
            (uint32_t)r->data[line * r->line_stride + (depth + e) * r->depth_stride] << e % 2 * 16;
        *(LOCAL u32x4 *)(tile + tile_at(TILE_DEPTH, line, depth)) = chunk;
    }
    reader_advance(r);
}

#if defined __AMDGCN__

/* A tile under way, in registers. */
typedef struct Fetched { u32x4 chunk[CHUNKS]; } Fetched;

/* Through a buffer descriptor without bounds of its own, to which -1 is out of bounds: such loads give 0. */
INLINE void reader_fetch(Reader *r, Fetched *fetched, Layout layout, int count) {
    if (layout == LAYOUT_ELEMENTS) return;
    __amdgpu_buffer_rsrc_t buffer = __builtin_amdgcn_make_buffer_rsrc((void *)r->data, 0, 0x7fffffff, 0x00020000);
    UNROLL for (int i = 0; i < chunks_of(count); i++) fetched->chunk[i] =
        __builtin_amdgcn_raw_buffer_load_b128(buffer, chunk_exists(r, layout, i) ? r->offset[i] * 2 : -1, 0, 0);
    reader_advance(r);
}

INLINE void reader_put(Reader *r, const Fetched *fetched, LOCAL bf16 *tile, Layout layout, int count) {
    if (layout == LAYOUT_ELEMENTS) reader_gather(r, tile, count);
    else UNROLL for (int i = 0; i < chunks_of(count); i++) * (LOCAL u32x4 *)chunk_at(tile, layout, i) = fetched->chunk[i];
}

#elif defined __NVPTX__

INLINE void reader_copy(Reader *r, LOCAL bf16 *tile, Layout layout, int count) {
    if (layout == LAYOUT_ELEMENTS) {
        reader_gather(r, tile, count);
        return;
    }
    UNROLL for (int i = 0; i < chunks_of(count); i++)
        copy_chunk(chunk_at(tile, layout, i), r->data + r->offset[i], chunk_exists(r, layout, i));
    reader_advance(r);
}
INLINE void copies_commit(void) { __asm__ volatile("cp.async.commit_group;" : : : "memory"); }
/* All but the last committed group of copies have arrived. */
INLINE void copies_wait(void) { __asm__ volatile("cp.async.wait_group 1;" : : : "memory"); }

#endif

/* -- Passes -------------------------------------------------------------------------------------------------------- */

/* Sums that a wave writes to shared memory at once, 1,024 or 2,048 in fp32, their 16-byte chunks swizzled. */
enum { PASS_ROWS = MMA, PASS_COLUMNS = WAVE == 64 ? 64 : 32 };
enum { PASSES = TILE_ROWS * TILE_COLUMNS * WAVE / GEMM_THREADS / PASS_ROWS / PASS_COLUMNS };

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

enum {
    WAVE_ROWS = 64 / MMA, /* blocks of a wave */
    WAVE_COLUMNS = TILE_ROWS * TILE_COLUMNS * WAVE / GEMM_THREADS / 64 / MMA,
    WAVES_ACROSS = TILE_COLUMNS / MMA / WAVE_COLUMNS,
    PASS_BLOCKS = WAVE_COLUMNS, /* side by side */
};

typedef struct Sums { Accumulator block[WAVE_ROWS][WAVE_COLUMNS]; } Sums;

INLINE void operand_read(Operand *o, LOCAL const bf16 *tile, Layout layout, int line, const int depth) {
    if (layout == LAYOUT_LINES && PANEL_LINES == MMA) operand_load_transposed(o, tile + line * TILE_DEPTH, PANEL_LINES, depth, 0);
    else if (layout == LAYOUT_LINES)
        operand_load_transposed(o, tile + line / PANEL_LINES * PANEL_LINES * TILE_DEPTH, PANEL_LINES, depth, line % PANEL_LINES);
    else operand_load(o, tile + line * TILE_DEPTH, TILE_DEPTH, 0, depth);
}

INLINE void sums_clear(Sums *sums) {
    UNROLL for (int i = 0; i < WAVE_ROWS; i++) UNROLL for (int j = 0; j < WAVE_COLUMNS; j++) accumulator_clear(&sums->block[i][j]);
}

INLINE void sums_add(Sums *sums, LOCAL const bf16 *stage, Layout a, Layout b) {
    int row = wave_id() / WAVES_ACROSS * WAVE_ROWS * MMA, column = wave_id() % WAVES_ACROSS * WAVE_COLUMNS * MMA;
    UNROLL for (int depth = 0; depth < TILE_DEPTH; depth += MMA) {
        Operand left[WAVE_ROWS], right[WAVE_COLUMNS];
        UNROLL for (int i = 0; i < WAVE_ROWS; i++) operand_read(&left[i], stage, a, row + i * MMA, depth);
        UNROLL for (int j = 0; j < WAVE_COLUMNS; j++) operand_read(&right[j], stage + A_ELEMENTS, b, column + j * MMA, depth);
        UNROLL for (int i = 0; i < WAVE_ROWS; i++) UNROLL for (int j = 0; j < WAVE_COLUMNS; j++)
            mma(&sums->block[i][j], &left[i], &right[j]);
    }
}

/* Writes pass i to shared memory; its upper left sum is that of (pass_row(i), pass_column(i)) of the tile. */
INLINE void pass_write(const Sums *sums, LOCAL float *pass, int i) {
    int zero = opaque(0);
    UNROLL for (int j = 0; j < PASS_BLOCKS; j++) {
        const Accumulator *block = &sums->block[i * PASS_BLOCKS / WAVE_COLUMNS][i * PASS_BLOCKS % WAVE_COLUMNS + j];
        UNROLL for (int r = 0; r < LANE_ROWS; r++) UNROLL for (int c = 0; c < LANE_COLUMNS; c += PASS_RUN) {
            PassRun run;
            UNROLL for (int e = 0; e < PASS_RUN; e++) run[e] = accumulator_get(block, r, c + e);
            *(LOCAL PassRun *)(pass + pass_at(accumulator_row(r) + zero, j * MMA + accumulator_column(c) + zero)) = run;
        }
    }
}
INLINE int pass_row(int i) { return (wave_id() / WAVES_ACROSS * WAVE_ROWS + i * PASS_BLOCKS / WAVE_COLUMNS) * MMA; }
INLINE int pass_column(int i) { return (wave_id() % WAVES_ACROSS * WAVE_COLUMNS + i * PASS_BLOCKS % WAVE_COLUMNS) * MMA; }

#endif
