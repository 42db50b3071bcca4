/* What one block does of a matrix product: bf16 tiles of A and B on their way from global to shared memory, and the sums of a tile of C in registers. For
 * gemm.c alone.
 *
 * A tile of an operand has `count` lines (rows of A, columns of B) and TILE_DEPTH of the depth k, in 128-byte rows of shared memory that are permuted as
 * mma.h says, which is also the 128-byte swizzle of Hopper's wgmma. Either a row is a line, or it is one step of the depth for 64 lines; then each 64
 * lines are a panel of TILE_DEPTH rows. Both forms have as many rows as lines.
 *
 * Sums: on AMD and with mma.sync a wave makes 64 rows of a tile of C in blocks of 32 x 32 by mma.h; with wgmma, whose operands come straight from shared
 * memory, four waves make 64 rows together, each 16 of them, in all columns. At the end a wave lays its part out in shared memory, row by row, in several passes. */
#ifndef SMELT_KERNEL_GEMM_H
#define SMELT_KERNEL_GEMM_H

#include "kernel/hopper.h"
#include "kernel/mma.h"

enum { GEMM_THREADS = 256, TILE_ROWS = 128, TILE_DEPTH = 64 };

#ifdef GPU_DEVICE

#if defined __CUDA_ARCH_FEAT_SM90_ALL
#define GEMM_WGMMA
enum { TILE_COLUMNS = 256, STAGES = 4 };
#elif defined __NVPTX__
enum { TILE_COLUMNS = 128, STAGES = 3 };
#else
enum { TILE_COLUMNS = 128, STAGES = 1 };
#endif

enum {
    A_ELEMENTS = TILE_ROWS * TILE_DEPTH,
    STAGE_ELEMENTS = A_ELEMENTS + TILE_COLUMNS * TILE_DEPTH,
    PANEL_LINES = TILE_COLUMNS == 128 && WAVE == 32 ? 32 : 64, /* what a wave reads of a panel must be known at compile time */
    CHUNKS = TILE_COLUMNS * TILE_DEPTH / 8 / GEMM_THREADS,     /* most that a thread reads of a tile */
};

/* -- From global to shared memory ---------------------------------------------------------------------------------- */

/* Which neighbours in memory an operand has side by side: along the depth or from line to line, then in aligned chunks of eight; or it is read element by
 * element. */
typedef enum Layout { LAYOUT_DEPTH, LAYOUT_LINES, LAYOUT_ELEMENTS } Layout;

/* The reading of an operand, tile after tile along the depth. Lines that do not exist are read from the last one that does: their sums are never stored. Depth that
 * does not exist is zero. */
typedef struct Reader {
    GLOBAL const bf16 *data;                  /* line 0 of the next tile */
    int64_t step;                             /* to the next tile, in elements */
    int32_t left;                             /* depth from data on */
    int32_t offset[CHUNKS];                   /* from data to this thread's chunks; not of LAYOUT_ELEMENTS */
    int32_t line_stride, depth_stride, lines; /* of LAYOUT_ELEMENTS only */
} Reader;

INLINE int chunks_of(int count) { return count * TILE_DEPTH / 8 / GEMM_THREADS; }
INLINE int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }

/* Elements in a row of shared memory; and the row, and the first element in it, of a thread's chunk i. */
INLINE int row_width(Layout layout) { return layout == LAYOUT_LINES ? PANEL_LINES : TILE_DEPTH; }
INLINE int chunk_row(Layout layout, int i) { return (thread_id() + i * GEMM_THREADS) / (row_width(layout) / 8); }
INLINE int chunk_column(Layout layout) { return thread_id() % (row_width(layout) / 8) * 8; }
INLINE LOCAL bf16 *chunk_at(LOCAL bf16 *tile, Layout layout, int i) {
    int width = row_width(layout), rows = GEMM_THREADS / (width / 8);
    return tile + tile_at(width, chunk_row(layout, 0), chunk_column(layout)) + i * rows * width; /* rows are a multiple of the permutation's period */
}

/* `data` is line 0 of the tile at depth 0; `lines` and `depth` are what exists from there on. */
INLINE Reader reader_at(Layout layout, int count, GLOBAL const bf16 *data, int64_t line_stride, int64_t depth_stride, int32_t lines, int32_t depth) {
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

INLINE bool chunk_exists(const Reader *r, Layout layout, int i) { return (layout == LAYOUT_DEPTH ? chunk_column(layout) : chunk_row(layout, i) % TILE_DEPTH) < r->left; }

/* A whole tile with depth along its rows, element by element; lanes read what is side by side in memory. */
INLINE void reader_gather(Reader *r, LOCAL bf16 *tile, int count) {
    _Pragma("clang loop unroll(disable)") for (int i = thread_id(); i < count * 8; i += GEMM_THREADS) {
        int line = r->depth_stride == 1 ? i / 8 : i % count, depth = (r->depth_stride == 1 ? i % 8 : i / count) * 8;
        u32x4 chunk = {0, 0, 0, 0};
        UNROLL for (int e = 0; e < 8; e++)
            if (line < r->lines && depth + e < r->left)
                chunk[e / 2] |= (uint32_t)r->data[line * r->line_stride + (depth + e) * r->depth_stride] << e % 2 * 16;
        *(LOCAL u32x4 *)(tile + tile_at(TILE_DEPTH, line, depth)) = chunk;
    }
    reader_advance(r);
}

#if defined __AMDGCN__

/* A tile under way, in registers. */
typedef struct Fetched { u32x4 chunk[CHUNKS]; } Fetched;

/* Through a buffer descriptor without bounds of its own, to which an offset of -1 is out of bounds: such loads give zero. */
INLINE void reader_fetch(Reader *r, Fetched *fetched, Layout layout, int count) {
    if (layout == LAYOUT_ELEMENTS) return;
    __amdgpu_buffer_rsrc_t buffer = __builtin_amdgcn_make_buffer_rsrc((void *)r->data, 0, 0x7fffffff, 0x00020000);
    UNROLL for (int i = 0; i < chunks_of(count); i++)
        fetched->chunk[i] = __builtin_amdgcn_raw_buffer_load_b128(buffer, chunk_exists(r, layout, i) ? r->offset[i] * 2 : -1, 0, 0);
    reader_advance(r);
}

INLINE void reader_put(Reader *r, const Fetched *fetched, LOCAL bf16 *tile, Layout layout, int count) {
    if (layout == LAYOUT_ELEMENTS) reader_gather(r, tile, count);
    else UNROLL for (int i = 0; i < chunks_of(count); i++) *(LOCAL u32x4 *)chunk_at(tile, layout, i) = fetched->chunk[i];
}

#elif defined __NVPTX__

INLINE void reader_copy(Reader *r, LOCAL bf16 *tile, Layout layout, int count) {
    if (layout == LAYOUT_ELEMENTS) {
        reader_gather(r, tile, count);
        return;
    }
    UNROLL for (int i = 0; i < chunks_of(count); i++) copy_chunk(chunk_at(tile, layout, i), r->data + r->offset[i], chunk_exists(r, layout, i));
    reader_advance(r);
}
/* Into the second-level cache. */
INLINE void prefetch(GLOBAL const void *data) { __asm__ volatile("prefetch.global.L2 [%0];" : : "l"(data)); }
INLINE void copies_commit(void) { __asm__ volatile("cp.async.commit_group;" : : : "memory"); }
/* All but the last committed group of copies have arrived. */
INLINE void copies_wait(void) { __asm__ volatile("cp.async.wait_group 1;" : : : "memory"); }

#endif

/* -- Passes -------------------------------------------------------------------------------------------------------- */

/* What a wave lays out at once, 1024 or 2048 sums in fp32, with 16-byte chunks permuted against bank conflicts. */
#if defined GEMM_WGMMA
enum { PASS_ROWS = 16, PASS_COLUMNS = 64 };
#else
enum { PASS_ROWS = MMA, PASS_COLUMNS = WAVE == 64 ? 64 : 32 };
#endif
enum { PASSES = TILE_ROWS * TILE_COLUMNS * WAVE / GEMM_THREADS / PASS_ROWS / PASS_COLUMNS };

INLINE int pass_at(int row, int column) { return row * PASS_COLUMNS + ((column / 4 ^ ((row ^ row >> 3) & 7)) * 4 | column % 4); }

/* Neighbours among the columns that mma.h gives to a lane. */
#if defined __AMDGCN__
enum { PASS_RUN = 4 };
typedef f32x4 PassRun;
#else
enum { PASS_RUN = 2 };
typedef f32x2 PassRun;
#endif

/* All lanes of the wave see what others wrote to shared memory. */
INLINE void wave_barrier(void) {
#if defined __AMDGCN__
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
#else
    __nvvm_bar_warp_sync(~0u);
#endif
}

/* -- Sums by mma.h ------------------------------------------------------------------------------------------------- */

#ifndef GEMM_WGMMA

enum {
    WAVE_ROWS = 64 / MMA, /* blocks of a wave */
    WAVE_COLUMNS = TILE_ROWS * TILE_COLUMNS * WAVE / GEMM_THREADS / 64 / MMA,
    WAVES_ACROSS = TILE_COLUMNS / MMA / WAVE_COLUMNS,
    PASS_BLOCKS = WAVE_COLUMNS, /* side by side */
};

typedef struct Sums { Accumulator block[WAVE_ROWS][WAVE_COLUMNS]; } Sums;

INLINE void operand_read(Operand *o, LOCAL const bf16 *tile, Layout layout, int line, const int depth) {
    if (layout == LAYOUT_LINES && PANEL_LINES == MMA) operand_load_transposed(o, tile + line * TILE_DEPTH, PANEL_LINES, depth, 0);
    else if (layout == LAYOUT_LINES) operand_load_transposed(o, tile + line / PANEL_LINES * PANEL_LINES * TILE_DEPTH, PANEL_LINES, depth, line % PANEL_LINES);
    else operand_load(o, tile + line * TILE_DEPTH, TILE_DEPTH, 0, depth);
}

INLINE void sums_clear(Sums *sums) {
    UNROLL for (int i = 0; i < WAVE_ROWS; i++)
        UNROLL for (int j = 0; j < WAVE_COLUMNS; j++) accumulator_clear(&sums->block[i][j]);
}

INLINE void sums_add(Sums *sums, LOCAL const bf16 *stage, Layout a, Layout b) {
    int row = wave_id() / WAVES_ACROSS * WAVE_ROWS * MMA, column = wave_id() % WAVES_ACROSS * WAVE_COLUMNS * MMA;
    UNROLL for (int depth = 0; depth < TILE_DEPTH; depth += MMA) {
        Operand left[WAVE_ROWS], right[WAVE_COLUMNS];
        UNROLL for (int i = 0; i < WAVE_ROWS; i++) operand_read(&left[i], stage, a, row + i * MMA, depth);
        UNROLL for (int j = 0; j < WAVE_COLUMNS; j++) operand_read(&right[j], stage + A_ELEMENTS, b, column + j * MMA, depth);
        UNROLL for (int i = 0; i < WAVE_ROWS; i++)
            UNROLL for (int j = 0; j < WAVE_COLUMNS; j++) mma(&sums->block[i][j], &left[i], &right[j]);
    }
}

/* Lays out pass i, whose upper left sum is that of (pass_row(i), pass_column(i)) of the tile. */
INLINE void pass_write(const Sums *sums, LOCAL float *pass, int i) {
    int zero = opaque(0);
    UNROLL for (int j = 0; j < PASS_BLOCKS; j++) {
        const Accumulator *block = &sums->block[i * PASS_BLOCKS / WAVE_COLUMNS][i * PASS_BLOCKS % WAVE_COLUMNS + j];
        UNROLL for (int r = 0; r < LANE_ROWS; r++)
            UNROLL for (int c = 0; c < LANE_COLUMNS; c += PASS_RUN) {
                PassRun run;
                UNROLL for (int e = 0; e < PASS_RUN; e++) run[e] = accumulator_get(block, r, c + e);
                *(LOCAL PassRun *)(pass + pass_at(accumulator_row(r) + zero, j * MMA + accumulator_column(c) + zero)) = run;
            }
    }
}
INLINE int pass_row(int i) { return (wave_id() / WAVES_ACROSS * WAVE_ROWS + i * PASS_BLOCKS / WAVE_COLUMNS) * MMA; }
INLINE int pass_column(int i) { return (wave_id() % WAVES_ACROSS * WAVE_COLUMNS + i * PASS_BLOCKS % WAVE_COLUMNS) * MMA; }

#else

/* -- Sums by wgmma ------------------------------------------------------------------------------------------------- */

typedef struct Sums { float x[TILE_COLUMNS / 2]; } Sums;

#define TIED_128(x) TIED_32(x, 0), TIED_32(x, 32), TIED_32(x, 64), TIED_32(x, 96)
#define NAMED_128                                                                                                                          \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, "  \
    "%28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, "   \
    "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "   \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, "   \
    "%105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
    "%127}"

/* A matrix descriptor (PTX ISA, "Matrix Descriptor Format"): 128-byte swizzle, 1024 bytes from eight rows to the next eight, a panel's size from panel to panel. */
INLINE uint64_t descriptor_of(LOCAL const bf16 *tile) {
    const uint64_t swizzle_128 = (uint64_t)1 << 62, eight_rows = (uint64_t)(8 * 128 / 16) << 32, panel = (uint64_t)(TILE_DEPTH * 128 / 16) << 16;
    return swizzle_128 | eight_rows | panel | (shared_address(tile) & 0x3ffff) >> 4;
}
/* 16 steps of the depth further on, in units of 16 bytes: 32 bytes of each row or 16 rows. */
INLINE int descriptor_step(Layout layout) { return layout == LAYOUT_LINES ? 16 * 128 / 16 : 2; }

#define WGMMA_256                                                                                                                          \
    "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 " NAMED_128 ", a, b, add, 1, 1, %132, %133;\n"                                  \
    "add.s64 a, a, %130; add.s64 b, b, %131;\n"

INLINE void sums_clear(Sums *sums) {
    UNROLL for (int i = 0; i < TILE_COLUMNS / 2; i++) sums->x[i] = 0;
}

/* Starts to add the product of a stage. Until sums_wait the registers are the hardware's. */
INLINE void sums_add(Sums *sums, LOCAL const bf16 *stage, Layout a, Layout b) {
    uint64_t left = descriptor_of(stage + thread_id() / 128 * 64 * TILE_DEPTH), right = descriptor_of(stage + A_ELEMENTS);
    __asm__ volatile("{ .reg .pred add; .reg .b64 a, b;\n"
                     "setp.eq.s32 add, 0, 0; mov.b64 a, %128; mov.b64 b, %129;\n"
                     "wgmma.fence.sync.aligned;\n" WGMMA_256 WGMMA_256 WGMMA_256 WGMMA_256
                     "wgmma.commit_group.sync.aligned; }"
                     : TIED_128(sums->x)
                     : "l"(left), "l"(right), "n"(descriptor_step(a)), "n"(descriptor_step(b)), "n"(a == LAYOUT_LINES), "n"(b == LAYOUT_LINES)
                     : "memory");
}
/* All products but the last that was started have read their stages. */
INLINE void sums_wait_for_earlier(void) { __asm__ volatile("wgmma.wait_group.sync.aligned 1;" : : : "memory"); }
INLINE void sums_wait(Sums *sums) { __asm__ volatile("wgmma.wait_group.sync.aligned 0;" : TIED_128(sums->x) : : "memory"); }
INLINE void pass_write(const Sums *sums, LOCAL float *pass, int i) {
    int lane = opaque(lane_id()), row = lane / 4, column = lane % 4 * 2;
    UNROLL for (int n = 0; n < PASS_COLUMNS / 8; n++) {
        const float *x = sums->x + i * PASS_COLUMNS / 2 + n * 4;
        *(LOCAL f32x2 *)(pass + pass_at(row, n * 8 + column)) = (f32x2){x[0], x[1]};
        *(LOCAL f32x2 *)(pass + pass_at(row + 8, n * 8 + column)) = (f32x2){x[2], x[3]};
    }
}
INLINE int pass_row(int i) {
    (void)i;
    return wave_id() * PASS_ROWS;
}
INLINE int pass_column(int i) { return i * PASS_COLUMNS; }

#endif

#endif
#endif
