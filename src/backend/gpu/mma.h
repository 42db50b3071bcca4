/* Matrix tiles in registers and in shared memory, for kernels that use matrix cores: attention, cca
 * and GEMM. One set of names over AMD's MFMA (16x16x16, on gfx950 16x16x32) and NVIDIA's mma.sync
 * (m16n8k16); bf16 operands, fp32 accumulators. Owns no memory: tiles are the caller's.
 *
 * A wave works in blocks of 32 x 32 x 32. An Operand holds 32 rows of 32 elements along k and
 * serves as the left or the right factor:
 *     mma(&c, &a, &b):  c[i][j] += sum over k of a[i][k] * b[j][k]
 * Which lane holds which element depends on the vendor. Code that needs single elements of an
 * Accumulator uses these names: a lane has LANE_ROWS rows of LANE_COLUMNS columns each, and element
 * (r, c) is that of row accumulator_row(r), column accumulator_column(c). lanes_max and lanes_sum
 * reduce over the lanes that share rows. An Accumulator becomes the Operand of the same rows, its
 * columns along k, without data leaving the lane (operand_of).
 *
 * If a wave has few rows, half an Accumulator and half a left Operand suffice: rows 0 .. 15 of a
 * block, for functions that take `rows`, 16 or 32. A lane then has lane_rows(rows) rows, and row r
 * of them is lane_row(rows, r).
 *
 * Tiles in shared memory are bf16 [rows][width], width a multiple of 32, aligned to 128 bytes. The
 * 16-byte chunks of a row are swizzled against bank conflicts: element (row, column) is at tile_at.
 * Operands are read from blocks at multiples of 32, as stored or transposed. stage_begin starts the
 * copy of a tile, stage_end waits for it. Tiles belong to a block, whose threads fill them
 * together, or, with `threads` = WAVE, to the wave that fills them.
 *
 * `width`, `rows`, `threads` and the place of an operand are constants at every call; offsets that
 * change at run time go into the pointer `tile`, in whole blocks of rows. All lanes of a wave call
 * these functions; all threads of a block call those of staging. */
#pragma once

#include "backend/gpu/mma_gfx950_kernels.h"
#include "backend/gpu/mma_tile.h"

#ifdef GPU_DEVICE

enum { MMA = 32, LANE_COLUMNS = 8 };

/* -- AMD ----------------------------------------------------------------------------------------------------------- */

#if defined __AMDGCN__ && !defined __gfx950__ /* gfx950 has mma_gfx950_kernels.h */

enum { LANE_ROWS = 2 };
typedef short Bf16x4 __attribute__((ext_vector_type(4)));

/* With lane = 16 q + m: half[s] is row 2 m + s, k = 8 q .. 8 q + 7. */
typedef struct Operand { u32x4 half[2]; } Operand;
/* x[s][t][r] is row 2 m + s, column 8 q + 2 r + t. */
typedef struct Accumulator { f32x4 x[2][2]; } Accumulator;

INLINE unsigned operand_row(unsigned m) { return 2 * m; }
enum { OPERAND_STEP = 1 }; /* from the rows of half[0] to those of half[1] */

INLINE int accumulator_row(int r) { return lane_id() % 16 * 2 + r; }
INLINE int half_row(int r) { return lane_id() % 16 + r; }
INLINE int accumulator_step(int c) { return c; }
INLINE int accumulator_first(void) { return lane_id() / 16 * 8; }
INLINE int accumulator_place(int c) { return c % 2 * 4 + c / 2; } /* of column c among the eight of a row */
INLINE float accumulator_get(const Accumulator *a, int r, int c) { return a->x[r][c % 2][c / 2]; }
INLINE void accumulator_set(Accumulator *a, int r, int c, float value) { a->x[r][c % 2][c / 2] = value; }
INLINE float lanes_sum(float x) {
    x += shuffle_xor(x, 16);
    return x + shuffle_xor(x, 32);
}
INLINE float lanes_max(float x) {
    x = __builtin_fmaxf(x, shuffle_xor(x, 16));
    return __builtin_fmaxf(x, shuffle_xor(x, 32));
}

INLINE void mma_rows(Accumulator *c, const Operand *a, const Operand *b, const int rows) {
    UNROLL for (int part = 0; part < 2; part++) UNROLL for (int s = 0; s < rows / 16; s++) UNROLL for (int t = 0; t < 2; t++) {
        Bf16x4 row = __builtin_bit_cast(Bf16x4, part ? a->half[s].hi : a->half[s].lo);
        Bf16x4 column = __builtin_bit_cast(Bf16x4, part ? b->half[t].hi : b->half[t].lo);
        c->x[s][t] = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(column, row, c->x[s][t], 0, 0, 0);
    }
}

/* Returns four words whose upper halves are x rounded to nearest, ties away from zero. gfx942 adds
 * to two of them at once: only a NaN carries into its neighbor. */
INLINE u32x4 rounded(f32x4 x) {
#if defined __gfx942__
    typedef uint64_t Pairs __attribute__((ext_vector_type(2)));
    return __builtin_bit_cast(u32x4, __builtin_bit_cast(Pairs, x) + 0x0000800000008000);
#else
    return __builtin_bit_cast(u32x4, x) + 0x8000;
#endif
}

INLINE void operand_load(Operand *o, LOCAL const bf16 *tile, int width, int row, int column) {
    unsigned lane = lane_id(), first = tile_lane(width, lane % 16 * 2, lane / 16);
    UNROLL for (int s = 0; s < 2; s++) o->half[s] =
        *(LOCAL const u32x4 *)(tile + (first ^ tile_xor_row(width, s) ^ tile_xor(width, column)) + s * width +
                               tile_block(width, row, column));
}

INLINE void operand_load_half(Operand *o, LOCAL const bf16 *tile, int width, int row, int column) {
    unsigned lane = lane_id(), first = tile_lane(width, lane % 16, lane / 16);
    o->half[0] = *(LOCAL const u32x4 *)(tile + (first ^ tile_xor(width, column)) + tile_block(width, row, column));
}

INLINE void operand_load_transposed(Operand *o, LOCAL const bf16 *tile, int width, int row, int column) {
    unsigned lane = lane_id(), first = tile_lane(width, lane / 16 * 8, lane % 16 / 4) + lane % 4 * 2;
    uint32_t pair[8];
    UNROLL for (int i = 0; i < 8; i++) pair[i] =
        *(LOCAL const uint32_t *)(tile + (first ^ tile_xor_row(width, i) ^ tile_xor(width, column)) + i * width +
                                  tile_block(width, row, column));
    UNROLL for (int i = 0; i < 4; i++) {
        o->half[0][i] = lower_halves(pair[2 * i], pair[2 * i + 1]);
        o->half[1][i] = upper_halves(pair[2 * i], pair[2 * i + 1]);
    }
}

INLINE void operand_of(Operand *o, const Accumulator *a) {
    UNROLL for (int s = 0; s < 2; s++) {
        u32x4 even = rounded(a->x[s][0]), odd = rounded(a->x[s][1]);
        UNROLL for (int r = 0; r < 4; r++) o->half[s][r] = upper_halves(even[r], odd[r]);
    }
}

INLINE int accumulator_chunk(void) { return lane_id() / 16 * 8; }
INLINE u32x4 accumulator_pack(const Accumulator *a, int r) {
    u32x4 packed;
    UNROLL for (int i = 0; i < 4; i++) packed[i] = to_bf16_pair(a->x[r][0][i], a->x[r][1][i]);
    return packed;
}

/* -- NVIDIA -------------------------------------------------------------------------------------------------------- */

#elif defined __NVPTX__

enum { LANE_ROWS = 4 };

/* x[s][h] is the 16 x 16 block of rows 16 s .., k = 16 h .., as ldmatrix returns it: its 8 x 8
 * quarters upper left, lower left, upper right, lower right. With lane = 4 g + t, a word of a
 * quarter is row g, columns 2 t and 2 t + 1. */
typedef struct Operand { uint32_t x[2][2][4]; } Operand;
/* x[s][n] is the 16 x 8 block of rows 16 s .., columns 8 n ..: row g, columns 2 t and 2 t + 1, then row g + 8. */
typedef struct Accumulator { f32x4 x[2][4]; } Accumulator;

INLINE int accumulator_row(int r) { return lane_id() / 4 + r * 8; }
INLINE int half_row(int r) { return accumulator_row(r); }
INLINE int accumulator_step(int c) { return c / 2 * 8 + c % 2; }
INLINE int accumulator_first(void) { return lane_id() % 4 * 2; }
INLINE float accumulator_get(const Accumulator *a, int r, int c) { return a->x[r / 2][c / 2][r % 2 * 2 + c % 2]; }
INLINE void accumulator_set(Accumulator *a, int r, int c, float value) { a->x[r / 2][c / 2][r % 2 * 2 + c % 2] = value; }
INLINE float lanes_sum(float x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}
INLINE float lanes_max(float x) {
    x = __builtin_fmaxf(x, shuffle_xor(x, 1));
    return __builtin_fmaxf(x, shuffle_xor(x, 2));
}

INLINE f32x4 mma_16x8x16(f32x4 c, const uint32_t *a, uint32_t b0, uint32_t b1) {
    __asm__ volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c.x), "+f"(c.y), "+f"(c.z), "+f"(c.w)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    return c;
}
INLINE void mma_rows(Accumulator *c, const Operand *a, const Operand *b, const int rows) {
    UNROLL for (int h = 0; h < 2; h++) UNROLL for (int n = 0; n < 4; n++) UNROLL for (int s = 0; s < rows / 16; s++) c->x[s][n] =
        mma_16x8x16(c->x[s][n], a->x[s][h], b->x[n / 2][h][n % 2], b->x[n / 2][h][n % 2 + 2]);
}

INLINE uint32_t shared_address(LOCAL const void *pointer) { return (uint32_t)(uintptr_t)pointer; }
/* Loads four 8 x 8 quarters. Lanes 8 i .. 8 i + 7 supply the addresses of the rows of quarter i;
 * the constant `offset` (elements) is added to them. */
INLINE void load_matrices(uint32_t *x, uint32_t address, const int offset) {
    __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4 + %5];"
        : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
        : "r"(address), "n"(offset * 2));
}
INLINE void load_matrices_transposed(uint32_t *x, uint32_t address, const int offset) {
    __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4 + %5];"
        : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
        : "r"(address), "n"(offset * 2));
}
/* Tiles are aligned to 128 bytes, so XOR works on an address as on a place in the tile: one
 * register per tile. */
INLINE uint32_t lane_address(LOCAL const bf16 *tile, int width, int column, int lane_row, int lane_chunk) {
    return (uint32_t)opaque((int)shared_address(tile + tile_lane(width, lane_row, lane_chunk))) ^ (uint32_t)tile_xor(width, column) * 2;
}

INLINE void operand_load(Operand *o, LOCAL const bf16 *tile, const int width, const int row, const int column) {
    int lane = lane_id();
    UNROLL for (int h = 0; h < 2; h++) {
        uint32_t address = lane_address(tile, width, column + h * 16, lane % 16, lane / 16);
        UNROLL for (int s = 0; s < 2; s++) load_matrices(o->x[s][h], address, tile_block(width, row + s * 16, column + h * 16));
    }
}
INLINE void operand_load_half(Operand *o, LOCAL const bf16 *tile, const int width, const int row, const int column) {
    int lane = lane_id();
    UNROLL for (int h = 0; h < 2; h++) load_matrices(
        o->x[0][h], lane_address(tile, width, column + h * 16, lane % 16, lane / 16), tile_block(width, row, column + h * 16));
}
INLINE void operand_load_transposed(Operand *o, LOCAL const bf16 *tile, const int width, const int row, const int column) {
    int lane = lane_id();
    UNROLL for (int s = 0; s < 2; s++) {
        uint32_t address = lane_address(tile, width, column + s * 16, lane / 16 * 8 + lane % 8, lane / 8 % 2);
        UNROLL for (int h = 0; h < 2; h++) load_matrices_transposed(o->x[s][h], address, tile_block(width, row + h * 16, column + s * 16));
    }
}

INLINE void operand_of(Operand *o, const Accumulator *a) {
    UNROLL for (int s = 0; s < 2; s++) UNROLL for (int n = 0; n < 4; n++) {
        o->x[s][n / 2][n % 2 * 2] = to_bf16_pair(a->x[s][n].x, a->x[s][n].y);
        o->x[s][n / 2][n % 2 * 2 + 1] = to_bf16_pair(a->x[s][n].z, a->x[s][n].w);
    }
}

INLINE int accumulator_chunk(void) { return lane_id() % 4 * 8; }
/* Transposes 2 x 2 words across the lanes l and l ^ step: lanes without bit `step` get the
 * neighbor's *a as *b, lanes with it the neighbor's *b as *a. */
INLINE void exchange_words(uint32_t *a, uint32_t *b, int step) {
    uint32_t first = *a, second = *b;
    bool upper = lane_id() & step;
    uint32_t got = shuffle(upper ? first : second, lane_id() ^ step);
    *a = upper ? got : first;
    *b = upper ? second : got;
}
/* The four lanes of a row transpose their 4 x 4 words in two steps. */
INLINE u32x4 accumulator_pack(const Accumulator *a, int r) {
    uint32_t w[4];
    UNROLL for (int n = 0; n < 4; n++) w[n] = to_bf16_pair(accumulator_get(a, r, 2 * n), accumulator_get(a, r, 2 * n + 1));
    UNROLL for (int i = 0; i < 2; i++) exchange_words(&w[2 * i], &w[2 * i + 1], 1);
    UNROLL for (int i = 0; i < 2; i++) exchange_words(&w[i], &w[i + 2], 2);
    return (u32x4){w[0], w[1], w[2], w[3]};
}

#endif

#if defined __AMDGCN__

/* A tile of lines with MMA elements along k, for GEMM: two lines form a row of 128 bytes. Its
 * chunks of eight elements are swizzled so that neither reads of an Operand nor either kind of
 * writes below cause bank conflicts. */
INLINE unsigned lines_swizzle(unsigned pair) { return (pair & 7) ^ (pair >> 3 & 3); }
INLINE unsigned lines_at(unsigned line, unsigned chunk) { return line / 2 * 64 + ((line % 2 * 4 + chunk) ^ lines_swizzle(line / 2)) * 8; }

/* half[s] of a lane is line `line` + s * step of block `block` of 32 lines. `step` is OPERAND_STEP
 * and `line` is operand_row, or the equivalents for other rows of a left Operand
 * (gpu_gemm_tile_kernels.h). `at` is lines_lane plus the place of block 0, which starts at a
 * multiple of 64 lines. */
INLINE unsigned lines_lane(unsigned line) { return lines_at(line, (unsigned)lane_id() / 16); }
INLINE void operand_load_lines(Operand *o, LOCAL const bf16 *tile, unsigned at, const unsigned block, const unsigned step) {
    UNROLL for (unsigned s = 0; s < 2; s++) {
        unsigned line = s * step, change = lines_at(line, 0) ^ line / 2 * 64 ^ block % 2 * 16;
        o->half[s] = *(LOCAL const u32x4 *)(tile + (at ^ change) + line / 2 * 64 + block * MMA * MMA);
    }
}

/* Writes steps 2 step and 2 step + 1 of the eight lines that start at `line`, a multiple of 8. */
INLINE void lines_put_transposed(LOCAL bf16 *tile, unsigned line, unsigned step, u32x4 even, u32x4 odd) {
    unsigned first = lines_at(line, step / 4) + step % 4 * 2;
    UNROLL for (unsigned i = 0; i < 8; i++) * (LOCAL uint32_t *)(tile + (first ^ (i % 2 * 4 ^ i / 2) * 8) + i / 2 * 64) =
        i % 2 ? upper_halves(even[i / 2], odd[i / 2]) : lower_halves(even[i / 2], odd[i / 2]);
}

#endif

/* All sections define these functions:
 *   operand_load(o, tile, width, row, column)             o[i][k] = tile[row + i][column + k]
 *   operand_load_half(o, tile, width, row, column)        the same for i < 16 only, as mma_rows takes it for 16 rows
 *   operand_load_transposed(o, tile, width, row, column)  o[i][k] = tile[row + k][column + i]
 *   operand_load_transposed_from(o, tile, from, width, row, column)   the same at column + from, known at run time: a
 *                                                         multiple of 64, or on NVIDIA of 32 if column is one of 64
 *   operand_of(o, a)                                      o[i][k] = a[i][k], cast to bf16
 *   accumulator_pack(a, r)    eight adjacent columns of row accumulator_row(r) from accumulator_chunk() on, as bf16 */

#if defined __NVPTX__
INLINE void operand_load_transposed_from(Operand *o, LOCAL const bf16 *tile, int from, const int width, const int row, const int column) {
    int lane = lane_id(), half = from % 64; /* 32 flips one bit of the swizzled place, like each bit of tile_xor */
    UNROLL for (int s = 0; s < 2; s++) {
        uint32_t address =
            lane_address(tile + from - half, width, column + s * 16, lane / 16 * 8 + lane % 8, lane / 8 % 2) ^ (uint32_t)half * 2;
        UNROLL for (int h = 0; h < 2; h++) load_matrices_transposed(o->x[s][h], address, tile_block(width, row + h * 16, column + s * 16));
    }
}
#elif !defined __gfx950__
INLINE void operand_load_transposed_from(Operand *o, LOCAL const bf16 *tile, int from, const int width, const int row, const int column) {
    operand_load_transposed(o, tile + from, width, row, column);
}
#endif

INLINE void mma(Accumulator *c, const Operand *a, const Operand *b) { mma_rows(c, a, b, MMA); }
INLINE int lane_rows(int rows) { return rows == MMA ? LANE_ROWS : LANE_ROWS / 2; }
INLINE int lane_row(int rows, int r) { return rows == MMA ? accumulator_row(r) : half_row(r); }

/* Returns the column of element c of a lane: the lane's first column plus a constant. */
INLINE int accumulator_column(int c) { return accumulator_first() + accumulator_step(c); }

/* Pass an operand between waves through shared memory, in register layout: sizeof(Operand) / 16
 * chunks per lane. */
typedef struct OperandChunks { u32x4 x[sizeof(Operand) / 16]; } OperandChunks;
INLINE void operand_to_shared(LOCAL u32x4 *place, const Operand *o) {
    OperandChunks chunks = __builtin_bit_cast(OperandChunks, *o);
    UNROLL for (unsigned i = 0; i < sizeof(Operand) / 16; i++) place[i * WAVE + lane_id()] = chunks.x[i];
}
INLINE void operand_from_shared(Operand *o, LOCAL const u32x4 *place) {
    OperandChunks chunks;
    UNROLL for (unsigned i = 0; i < sizeof(Operand) / 16; i++) chunks.x[i] = place[i * WAVE + lane_id()];
    *o = __builtin_bit_cast(Operand, chunks);
}

INLINE void accumulator_clear(Accumulator *a) {
    UNROLL for (int r = 0; r < LANE_ROWS; r++) UNROLL for (int c = 0; c < LANE_COLUMNS; c++) accumulator_set(a, r, c, 0);
}

/* Multiplies row accumulator_row(r) by `factor`. */
INLINE void accumulator_scale(Accumulator *a, int r, float factor) {
    UNROLL for (int c = 0; c < LANE_COLUMNS; c++) accumulator_set(a, r, c, accumulator_get(a, r, c) * factor);
}

#if defined __AMDGCN__
/* accumulator_scale for a rarely taken branch, in the registers of the sums: the compiler would
 * take other registers and copy the sums even if the branch is not taken. The compiler does not
 * know that this reads the sums, so `factor` must depend on a wait after the products that made
 * them, as the result of a shuffle does. */
INLINE void accumulator_scale_in_place(Accumulator *a, int r, float factor) {
    UNROLL for (int t = 0; t < 2; t++) {
        f32x2 low = a->x[r][t].lo, high = a->x[r][t].hi, both = {factor, factor};
        __asm__("v_pk_mul_f32 %0, %0, %1" : "+v"(low) : "v"(both));
        __asm__("v_pk_mul_f32 %0, %0, %1" : "+v"(high) : "v"(both));
        a->x[r][t] = (f32x4){low.x, low.y, high.x, high.y};
    }
}
#endif

/* -- From global memory -------------------------------------------------------------------------------------------- */

/* A bf16 matrix, `stride` elements (below 2^23) between rows, of which `rows` and `columns` exist:
 * the rest of a tile is filled with zeros. If stride and columns are multiples of 8 (`from` is then
 * 16-byte aligned), it is copied in 16-byte chunks; otherwise element by element, slowly. */
typedef struct Source {
    GLOBAL const bf16 *from;
    int64_t stride;
    int rows, columns;
} Source;

INLINE bool source_in_chunks(const Source *source) { return (source->stride | source->columns) % 8 == 0; }

/* Returns the index of this thread among the `threads` that fill a tile. */
INLINE int stage_thread(int threads) {
    int thread = threads == WAVE ? lane_id() : thread_id();
    return WAVE == 64 ? thread : opaque(thread);
}

INLINE void stage_elements(LOCAL bf16 *tile, int width, int rows, int threads, const Source *source) {
    for (int i = stage_thread(threads); i < rows * width; i += threads) {
        int row = i / width, column = i % width;
        bool there = row < source->rows && column < source->columns;
        tile[tile_at(width, row, column) + column % 8] = there ? source->from[row * source->stride + column] : 0;
    }
}

/* Fills a tile synchronously, for data that is loaded once; complete after a barrier. */
INLINE void tile_load(LOCAL bf16 *tile, int width, int rows, int threads, const Source *source) {
    if (!source_in_chunks(source)) {
        stage_elements(tile, width, rows, threads, source);
        return;
    }
    for (int i = thread_id(); i < rows * width / 8; i += threads) {
        int row = i / (width / 8), column = i % (width / 8) * 8;
        bool there = row < source->rows && column < source->columns;
        u32x4 chunk = {0, 0, 0, 0};
        if (there) chunk = *(GLOBAL const u32x4 *)(source->from + row * source->stride + column);
        *(LOCAL u32x4 *)(tile + tile_at(width, row, column)) = chunk;
    }
}

/* Returns the chunks per thread; if there are fewer chunks than threads, the first threads take
 * them. */
INLINE int stage_chunks(int width, int rows, int threads) { return (rows * width / 8 + threads - 1) / threads; }
INLINE bool stage_takes_part(int thread, int width, int rows, int threads) {
    return rows * width / 8 % threads == 0 || thread < rows * width / 8;
}
/* Row, column and place of chunk i of `thread`. If one chunk of every thread fills whole periods of
 * the swizzle, these are the first chunk's plus constants. */
typedef struct StagePlace { int row, column, at; } StagePlace;
INLINE StagePlace stage_place(unsigned thread, int width, int threads, int i) {
    unsigned per_row = width / 8, step = threads / per_row;
    if (threads % per_row == 0 && step % (WAVE / 4) == 0) {
        int row = thread / per_row, column = thread % per_row * 8;
        return (StagePlace){row + i * step, column, tile_at(width, row, column) + i * step * width};
    }
    int row = (thread + i * threads) / per_row, column = (thread + i * threads) % per_row * 8;
    return (StagePlace){row, column, tile_at(width, row, column)};
}

#if defined __AMDGCN__

enum { STAGE_CHUNKS = 16 }; /* most chunks per thread */
/* A copy in flight, in registers. */
typedef struct Stage { u32x4 chunk[STAGE_CHUNKS]; } Stage;

/* Returns the existing part of a tile of `rows` rows (at most 128) as a buffer: reads after its end
 * return zeros. */
INLINE __amdgpu_buffer_rsrc_t source_buffer(const Source *source, const int rows) {
    int there = source->rows < rows ? source->rows : rows;
    int bytes = there <= 0 ? 0 : ((there - 1) * (int)source->stride + source->columns) * (int)sizeof(bf16);
    return __builtin_amdgcn_make_buffer_rsrc((void *)source->from, 0, bytes, 0x00020000);
}
/* Returns the offset of a chunk in that buffer; out of range for columns that do not exist. */
INLINE int source_offset(const Source *source, int row, int column) {
    return column < source->columns ? (row * (int)source->stride + column) * (int)sizeof(bf16) : INT32_MIN;
}

INLINE void stage_begin(Stage *stage, LOCAL bf16 *tile, int width, int rows, int threads, const Source *source) {
    (void)tile;
    if (!source_in_chunks(source)) return;
    int thread = stage_thread(threads);
    if (!stage_takes_part(thread, width, rows, threads)) return;
    __amdgpu_buffer_rsrc_t buffer = source_buffer(source, rows);
    UNROLL for (int i = 0; i < stage_chunks(width, rows, threads); i++) {
        StagePlace place = stage_place(thread, width, threads, i);
        stage->chunk[i] = __builtin_amdgcn_raw_buffer_load_b128(buffer, source_offset(source, place.row, place.column), 0, 0);
    }
}

/* `later`: number of later stage_begin calls whose copies may stay in flight. */
INLINE void stage_end(const Stage *stage, LOCAL bf16 *tile, int width, int rows, int threads, const Source *source, const int later) {
    (void)later;
    if (!source_in_chunks(source)) {
        stage_elements(tile, width, rows, threads, source);
        return;
    }
    int thread = stage_thread(threads);
    if (!stage_takes_part(thread, width, rows, threads)) return;
    UNROLL for (int i = 0; i < stage_chunks(width, rows, threads); i++) *
        (LOCAL u32x4 *)(tile + stage_place(thread, width, threads, i).at) = stage->chunk[i];
}

#if !defined __gfx950__ /* gfx950 has transposing reads */

#define COLUMNS_BY_LINES 1
/* Tiles of columns are stored as lines of MMA rows each, transposed on the way. Returns the place
 * of element (row, column). */
INLINE int columns_at(int width, int row, int column) { return row / MMA * MMA * width + (int)lines_at(column, row % MMA / 8) + row % 8; }
/* A thread takes pairs of rows of eight columns; returns where its pair i begins. The lanes of a
 * wave have four or eight pairs of all columns of tiles 128 or 64 wide, so their writes cover every
 * bank. */
typedef struct ColumnsPlace { int row, column; } ColumnsPlace;
INLINE int columns_pairs(int width, int rows, int threads) { return (rows * width / 16 + threads - 1) / threads; }
INLINE ColumnsPlace columns_place(int thread, int width, int threads, int i) {
    unsigned number = thread + i * threads, across = width / 8;
    return (ColumnsPlace){(int)(number % 4 + number / 4 / across * 4) * 2, (int)(number / 4 % across * 8)};
}

INLINE void columns_begin(Stage *stage, LOCAL bf16 *tile, const int width, const int rows, const int threads, const Source *source) {
    (void)tile;
    if (!source_in_chunks(source)) return;
    __amdgpu_buffer_rsrc_t buffer = source_buffer(source, rows);
    UNROLL for (int i = 0; i < 2 * columns_pairs(width, rows, threads); i++) {
        ColumnsPlace place = columns_place(stage_thread(threads), width, threads, i / 2);
        bool there = rows * width / 16 % threads == 0 || place.row < rows;
        int offset = there ? source_offset(source, place.row + i % 2, place.column) : INT32_MIN;
        stage->chunk[i] = __builtin_amdgcn_raw_buffer_load_b128(buffer, offset, 0, 0);
    }
}
INLINE void columns_end(
    const Stage *stage, LOCAL bf16 *tile, const int width, const int rows, const int threads, const Source *source, const int later) {
    (void)later;
    if (!source_in_chunks(source)) {
        for (int i = stage_thread(threads); i < rows * width; i += threads) {
            int row = i / width, column = i % width;
            bool there = row < source->rows && column < source->columns;
            tile[columns_at(width, row, column)] = there ? source->from[row * source->stride + column] : 0;
        }
        return;
    }
    UNROLL for (int i = 0; i < columns_pairs(width, rows, threads); i++) {
        ColumnsPlace place = columns_place(stage_thread(threads), width, threads, i);
        if (rows * width / 16 % threads != 0 && place.row >= rows) return;
        lines_put_transposed(
            tile + place.row / MMA * MMA * width, place.column, place.row % MMA / 2, stage->chunk[2 * i], stage->chunk[2 * i + 1]);
    }
}
INLINE void operand_load_columns(Operand *o, LOCAL const bf16 *tile, const int width, const int row, const int column) {
    unsigned lane = lines_lane(operand_row((unsigned)lane_id() % 16));
    operand_load_lines(o, tile + row * width + column / 64 * 64 * MMA, lane, column % 64 / MMA, OPERAND_STEP);
}

#endif

#elif defined __NVPTX__

typedef struct Stage {
} Stage; /* cp.async copies directly into the tile */

/* Copies 16 bytes; writes zeros if not `there`. */
INLINE void copy_chunk(LOCAL bf16 *to, GLOBAL const bf16 *from, bool there) {
    __asm__ volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
        :
        : "r"(shared_address(to)), "l"(from), "r"(there ? 16 : 0)
        : "memory");
}

/* Ends a group of a thread's copies; waits until at most `later` of its groups are in flight. */
INLINE void copies_commit(void) { __asm__ volatile("cp.async.commit_group;" : : : "memory"); }
INLINE void copies_wait(const int later) { __asm__ volatile("cp.async.wait_group %0;" : : "n"(later) : "memory"); }

INLINE void stage_begin(Stage *stage, LOCAL bf16 *tile, int width, int rows, int threads, const Source *source) {
    (void)stage;
    int thread = stage_thread(threads);
    if (!source_in_chunks(source)) stage_elements(tile, width, rows, threads, source);
    else if (stage_takes_part(thread, width, rows, threads)) UNROLL for (int i = 0; i < stage_chunks(width, rows, threads); i++) {
            StagePlace place = stage_place(thread, width, threads, i);
            bool there = place.row < source->rows && place.column < source->columns;
            copy_chunk(tile + place.at, source->from + (there ? place.row * (int)source->stride + place.column : 0), there);
        }
    copies_commit();
}

INLINE void stage_end(const Stage *stage, LOCAL bf16 *tile, int width, int rows, int threads, const Source *source, const int later) {
    (void)stage, (void)tile, (void)width, (void)rows, (void)threads, (void)source;
    copies_wait(later);
}

#endif

/* A tile of columns: only transposed operands are read from it. It is filled like other tiles, by
 * functions of its own:
 *   operand_load_columns(o, tile, width, row, column)     o[i][k] = tile[row + k][column + i] */
#if !defined COLUMNS_BY_LINES
INLINE void columns_begin(Stage *stage, LOCAL bf16 *tile, const int width, const int rows, const int threads, const Source *source) {
    stage_begin(stage, tile, width, rows, threads, source);
}
INLINE void columns_end(
    const Stage *stage, LOCAL bf16 *tile, const int width, const int rows, const int threads, const Source *source, const int later) {
    stage_end(stage, tile, width, rows, threads, source, later);
}
INLINE void operand_load_columns(Operand *o, LOCAL const bf16 *tile, const int width, const int row, const int column) {
    operand_load_transposed(o, tile, width, row, column);
}
#endif

/* When stage_begin is called, no thread may use the tile any more. The tile is complete after
 * stage_end and a barrier (for a wave's own tile, the wave's barrier). On AMD the tile is in use
 * only from stage_end on, so two copies may share one tile. `stage` must live from stage_begin to
 * stage_end. */

#endif
