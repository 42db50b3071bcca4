/* Shared by gpu.c and grad_gpu.c: access to rows in chunks of eight channels, the pairs that are
 * the input of the grouped convolution (see cpu_shared_kernels.h), and a matmul whose weights stay in
 * registers. Owns no memory.
 *
 * A block owns one head and one tile of rows at a time. Its four waves hold the head's weights as
 * operands: they are read once, then multiplied with tile after tile. A row of a tile has `dim`
 * channels of the head padded with zeros to the constant DIM (64 or 128). A tile has CCA_TILE
 * elements; twice as many if both taps are side by side. Results go to shared memory, because later
 * steps work on whole rows. Each kernel exists three times: for heads of up to 64 and up to 128
 * channels with 16-byte accesses, and for any number of channels up to 128. */
#pragma once

#include "backend/gpu/mma.h"
#include "backend/gpu/vector.h"

enum {
    CCA_WAVES = 4,
    CCA_TILE = 4096, /* elements: 32 rows of 128 channels, 64 of 64 */
    CCA_MAX_DIM = 128,
    CCA_ALIGNMENT = 128, /* of tiles in shared memory, in bytes */
    CHUNK = 8,           /* channels of a 16-byte access */
    HALO_ROWS = 2,       /* CCA_HALO_ROWS */
};

#define CCA_LEAST_NORM 0x1p-7f /* cca_least_norm of bf16 */

/* `halo` holds the `reach` rows before each chunk of `chunk` rows, each of `halo_columns` columns;
 * without a halo (0 columns) it is any memory. Row r is in chunk r * chunk_factor >> chunk_shift.
 * `whole`: dim is a multiple of CHUNK, and so is half the number of rotated channels; kernels set
 * it to their compile-time constant. */
typedef struct CcaInput {
    const bf16 GLOBAL *u, *halo, *depthwise, *grouped;
    const int32_t GLOBAL *positions;
    const float GLOBAL *depthwise_bias;
    int64_t halo_columns, columns, convolved, values, current; /* of a row of u; queries and keys; values, and values not delayed */
    uint32_t chunk_factor;
    int32_t chunk_shift, chunk, reach, rows, heads, kv_heads, group, dim, rotated, whole;
} CcaInput;

#ifdef GPU_DEVICE

enum { CCA_THREADS = CCA_WAVES * WAVE, CCA_CHUNKS = CCA_TILE / CHUNK / CCA_THREADS /* chunks of a tile per thread */ };

/* Returns whether heads fill DIM channels. AMD kernels have separate code for this case, with the
 * number of channels as a constant: no branch separates loads, so all loads start at once. */
INLINE bool fills(const CcaInput *in, const int DIM) { return WAVE == 64 && in->whole && in->dim == DIM; }

/* -- Rows in global memory ----------------------------------------------------------------------------------------- */

/* In the functions below, channels from `left` on of the eight do not exist: they are read as zero
 * and not written. */

INLINE u32x4 load_chunk(const bf16 GLOBAL *from, int left, bool whole) {
    u32x4 chunk = (u32x4)0;
    if (left <= 0) return chunk;
    if (whole) return *(const u32x4 GLOBAL *)from;
    UNROLL for (int i = 0; i < CHUNK; i++) chunk[i / 2] |= (uint32_t)(i < left ? from[i] : 0) << i % 2 * 16;
    return chunk;
}

INLINE f32x8 load_channels(const bf16 GLOBAL *from, int left, bool whole) {
    u32x4 chunk = load_chunk(from, left, whole);
    return join(to_float4(chunk.lo), to_float4(chunk.hi));
}

INLINE f32x8 load_wide(const float GLOBAL *from, int left, bool whole) {
    f32x8 x = (f32x8)0;
    if (left <= 0) return x;
    if (whole) return load8_wide(from, CHUNK);
    UNROLL for (int i = 0; i < CHUNK; i++) x[i] = i < left ? from[i] : 0;
    return x;
}

INLINE void store_channels(bf16 GLOBAL *to, f32x8 x, int left, bool whole) {
    if (left <= 0) return;
    if (whole) store8_bf16(to, x, CHUNK);
    else UNROLL for (int i = 0; i < CHUNK; i++) if (i < left) to[i] = to_bf16(x[i]);
}

/* Both taps of eight channels, one word each: the earlier tap in the lower half. */
typedef struct TapWords { u32x4 word[2]; } TapWords;

INLINE TapWords load_taps(const bf16 GLOBAL *from, int left, bool whole) {
    TapWords taps = {{(u32x4)0, (u32x4)0}};
    if (left <= 0) return taps;
    UNROLL for (int i = 0; i < 2; i++) {
        if (whole) taps.word[i] = *(const u32x4 GLOBAL *)(from + i * CHUNK);
        else
            UNROLL for (int j = 0; j < 4; j++) taps.word[i][j] =
                i * 4 + j < left ? *(const uint32_t GLOBAL *)(from + i * CHUNK + j * 2) : 0;
    }
    return taps;
}

INLINE f32x8 earlier_taps(const TapWords *taps) {
    f32x8 x;
    UNROLL for (int i = 0; i < CHUNK; i++) x[i] = to_float_low(taps->word[i / 4][i % 4]);
    return x;
}

INLINE f32x8 later_taps(const TapWords *taps) {
    f32x8 x;
    UNROLL for (int i = 0; i < CHUNK; i++) x[i] = to_float_high(taps->word[i / 4][i % 4]);
    return x;
}

/* The chunk of row r, and the row's index in the chunk. Here and below there are no branches, so
 * that loads start at once. */
INLINE int64_t chunk_of_row(const CcaInput *in, int64_t r) {
    return (int64_t)((uint64_t)(uint32_t)r * in->chunk_factor >> in->chunk_shift);
}
INLINE int64_t place_in_sequence(const CcaInput *in, int64_t r) { return r - chunk_of_row(in, r) * in->chunk; }

/* Returns the number of rows before row r that belong to its document and are available. */
INLINE int64_t history(const CcaInput *in, int64_t r) {
    int64_t rows = place_in_sequence(in, r) + in->reach, position = in->positions[r];
    return position < rows ? position : rows;
}

/* Returns whether row r exists and belongs to the document and the chunk of row r - 1, so that it
 * sends gradients back to it. */
INLINE bool follows_in_document(const CcaInput *in, int64_t r) {
    return r < in->rows && place_in_sequence(in, r) > 0 && in->positions[r] > 0;
}

/* Return row r of u, and the row `back` rows before it; any readable row if it does not exist. */
INLINE const bf16 GLOBAL *row_of_u(const CcaInput *in, int64_t r) { return in->u + (r < in->rows ? r : in->rows - 1) * in->columns; }
INLINE const bf16 GLOBAL *row_before(const CcaInput *in, int64_t r, int back) {
    r = r < in->rows ? r : in->rows - 1;
    int64_t at = place_in_sequence(in, r) - back, in_halo = (chunk_of_row(in, r) + 1) * HALO_ROWS + at;
    return at >= 0 ? in->u + (r - back) * in->columns : in->halo + in_halo * in->halo_columns;
}

/* A row computed without branches and in 32 bits, so that loads of it and of its neighbors start at
 * once: an existing row (`row`; the last one for rows after it), the number of rows before it in
 * its chunk, and its position. */
typedef struct RowPlace { int32_t row, place, position; } RowPlace;

INLINE RowPlace tile_place_row(const CcaInput *in, int r) {
    int row = r < in->rows ? r : in->rows - 1;
    int chunk = (int)((uint64_t)(uint32_t)row * in->chunk_factor >> in->chunk_shift);
    return (RowPlace){row, row - chunk * in->chunk, in->positions[row]};
}
INLINE int history_of(const CcaInput *in, RowPlace p) {
    int rows = p.place + in->reach;
    return p.position < rows ? p.position : rows;
}
INLINE int64_t offset_of(int row, int64_t columns) { return (int64_t)((uint64_t)(uint32_t)row * (uint32_t)columns); }
/* Returns row_before of such a row. */
INLINE const bf16 GLOBAL *placed_before(const CcaInput *in, RowPlace p, int back) {
    bool inside = p.place >= back;
    int in_halo = (int)((uint64_t)(uint32_t)p.row * in->chunk_factor >> in->chunk_shift) * HALO_ROWS + HALO_ROWS + p.place - back;
    const bf16 GLOBAL *from = inside ? in->u : in->halo;
    return from + offset_of(inside ? p.row - back : in_halo, inside ? in->columns : in->halo_columns);
}

INLINE f32x8 to_float8(u32x4 bits) { return join(to_float4(bits.lo), to_float4(bits.hi)); }

/* Adds the channels of `count` heads, at most 4, starting at `from`, to sum, with all loads in
 * flight at once. */
INLINE f32x8 add_queries(f32x8 sum, const bf16 GLOBAL *from, const CcaInput *in, int left, const int count) {
    u32x4 row[4];
    UNROLL for (int i = 0; i < count; i++) row[i] = load_chunk(from + i * in->dim, left, in->whole);
    UNROLL for (int i = 0; i < count; i++) sum += to_float8(row[i]);
    return sum;
}

/* Adds the channels of all heads that share keys. */
INLINE f32x8 add_all_queries(f32x8 sum, const bf16 GLOBAL *from, const CcaInput *in, int left) {
    int h = 0;
    for (; h + 4 <= in->group; h += 4) sum = add_queries(sum, from + h * in->dim, in, left, 4);
    for (; h < in->group; h++) sum = add_queries(sum, from + h * in->dim, in, left, 1);
    return sum;
}

/* -- Tiles --------------------------------------------------------------------------------------------------------- */

/* Chunk i of this thread: its row of the tile and its first channel, which is the same for every i.
 * The DIM / CHUNK lanes of a row are adjacent. */
INLINE int cca_chunk_row(int i, const int DIM) { return (thread_id() + i * CCA_THREADS) / (DIM / CHUNK); }
INLINE int chunk_channel(const int DIM) { return thread_id() % (DIM / CHUNK) * CHUNK; }

INLINE float sum_of_row(float x, const int DIM) {
    UNROLL for (int mask = DIM / CHUNK / 2; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
    return x;
}

/* Sets row `row` of a tile, from column 2 * `channel` on, to (c_{r-1}, c_r) for eight channels from
 * `column` of u on, where c is the depthwise convolution. Rows before a document are zeros, so c is
 * its bias there. All loads start at once; rows that do not count are replaced by zeros later. */
INLINE void store_pairs(LOCAL bf16 *tile, int width, int row, int channel, const CcaInput *in, int64_t r, int64_t column, int left) {
    bool whole = in->whole, there = r < in->rows;
    f32x8 u0 = load_channels(row_of_u(in, r) + column, left, whole), u1 = load_channels(row_before(in, r, 1) + column, left, whole);
    f32x8 u2 = load_channels(row_before(in, r, 2) + column, left, whole), bias = load_wide(in->depthwise_bias + column, left, whole);
    TapWords taps = load_taps(in->depthwise + 2 * column, left, whole);
    f32x8 earlier = earlier_taps(&taps), later = later_taps(&taps);
    int64_t before = there ? history(in, r) : 0;
    u1 = before > 0 ? u1 : (f32x8)0;
    u2 = before > 1 ? u2 : (f32x8)0;
    f32x8 previous = bias + earlier * u2 + later * u1, current = bias + earlier * u1 + later * u0;
    u32x4 pairs[2];
    UNROLL for (int i = 0; i < CHUNK; i++) pairs[i / 4][i % 4] = there ? to_bf16_pair(previous[i], current[i]) : 0;
    UNROLL for (int i = 0; i < 2; i++) * (LOCAL u32x4 *)(tile + tile_at(width, row, 2 * channel + i * CHUNK)) = pairs[i];
}

/* store_pairs in two steps: the loads of a thread's chunk, started ahead, and the rest. */
typedef struct PairChunk {
    u32x4 own, before, older;
    RowPlace row;
} PairChunk;

INLINE PairChunk load_pair_chunk(const CcaInput *in, int r, int column, int left) {
    RowPlace row = tile_place_row(in, r);
    return (PairChunk){.own = load_chunk(in->u + offset_of(row.row, in->columns) + column, left, in->whole),
        .before = load_chunk(placed_before(in, row, 1) + column, left, in->whole),
        .older = load_chunk(placed_before(in, row, 2) + column, left, in->whole),
        .row = row};
}

/* The depthwise convolution weights of a thread's channels. */
typedef struct PairWeights {
    TapWords taps;
    f32x8 bias;
} PairWeights;

INLINE PairWeights load_pair_weights(const CcaInput *in, int column, int left) {
    return (PairWeights){load_taps(in->depthwise + 2 * column, left, in->whole), load_wide(in->depthwise_bias + column, left, in->whole)};
}

/* Computes the pairs of a thread's chunk, one word each; zeros unless `there`. */
INLINE void loaded_pairs(u32x4 pairs[2], const CcaInput *in, bool there, const PairChunk *chunk, const PairWeights *weights) {
    f32x8 earlier = earlier_taps(&weights->taps), later = later_taps(&weights->taps);
    int history = history_of(in, chunk->row);
    f32x8 u1 = to_float8(history > 0 ? chunk->before : (u32x4)0), u2 = to_float8(history > 1 ? chunk->older : (u32x4)0);
    f32x8 previous = weights->bias + earlier * u2 + later * u1, current = weights->bias + earlier * u1 + later * to_float8(chunk->own);
    UNROLL for (int i = 0; i < CHUNK; i++) pairs[i / 4][i % 4] = there ? to_bf16_pair(previous[i], current[i]) : 0;
}

INLINE void store_loaded_pairs(
    LOCAL bf16 *tile, int width, int row, int channel, const CcaInput *in, bool there, const PairChunk *chunk, const PairWeights *weights) {
    u32x4 pairs[2];
    loaded_pairs(pairs, in, there, chunk, weights);
    UNROLL for (int i = 0; i < 2; i++) * (LOCAL u32x4 *)(tile + tile_at(width, row, 2 * channel + i * CHUNK)) = pairs[i];
}

/* -- Matmul of a tile ---------------------------------------------------------------------------------------------- */

/* Each wave computes an MMA x MMA block of the tile's products. */
INLINE int cca_wave_row(const int DIM) { return wave_id() / (DIM / MMA) * MMA; }
INLINE int cca_wave_column(const int DIM) { return wave_id() % (DIM / MMA) * MMA; }

/* Returns the place of four products, swizzled against bank conflicts. */
INLINE int product_at(int row, int column, const int DIM) { return row * DIM + (column / 4 ^ (row & 7)) * 4; }

INLINE f32x8 load_products(LOCAL const float *products, int row, int channel, const int DIM) {
    return join(*(LOCAL const f32x4 *)(products + product_at(row, channel, DIM)),
        *(LOCAL const f32x4 *)(products + product_at(row, channel + 4, DIM)));
}

INLINE void store_products(LOCAL float *products, int row, int channel, f32x8 x, const int DIM) {
    *(LOCAL f32x4 *)(products + product_at(row, channel, DIM)) = x.lo;
    *(LOCAL f32x4 *)(products + product_at(row, channel + 4, DIM)) = x.hi;
}

/* Stores the products of a wave whose lanes have eight adjacent columns, with 16-byte accesses;
 * `onto`: adds them. */
INLINE void spread_products(LOCAL float *products, const Accumulator *sum, const bool onto, const int DIM) {
    int column = cca_wave_column(DIM) + accumulator_column(0);
    UNROLL for (int r = 0; r < LANE_ROWS; r++) {
        int row = cca_wave_row(DIM) + accumulator_row(r);
        f32x8 own = onto ? load_products(products, row, column, DIM) : (f32x8)0;
        UNROLL for (int c = 0; c < LANE_COLUMNS; c++) own[c] += accumulator_get(sum, r, c);
        store_products(products, row, column, own, DIM);
    }
}

/* products = tile [rows, 2 * DIM] times the transposed weights; a wave holds the rows of the
 * weights for its columns. `onto`: adds to products. */
INLINE void multiply_tile(LOCAL float *products, LOCAL const bf16 *tile, const Operand *weights, const bool onto, const int DIM) {
    Accumulator sum;
    accumulator_clear(&sum);
    UNROLL for (int k = 0; k < 2 * DIM / MMA; k++) {
        Operand rows;
        operand_load(&rows, tile + cca_wave_row(DIM) * 2 * DIM, 2 * DIM, 0, k * MMA);
        mma(&sum, &rows, &weights[k]);
    }
    if (WAVE == 64) { /* a lane has eight adjacent columns */
        spread_products(products, &sum, onto, DIM);
        return;
    }
    UNROLL for (int r = 0; r < LANE_ROWS; r++) UNROLL for (int c = 0; c < LANE_COLUMNS; c++) {
        int column = cca_wave_column(DIM) + accumulator_column(c);
        LOCAL float *product = &products[product_at(cca_wave_row(DIM) + accumulator_row(r), column, DIM) + column % 4];
        *product = (onto ? *product : 0) + accumulator_get(&sum, r, c);
    }
}

#else

#include "backend/gpu/kernel_launch.h"
#include "ops/cca/cca.h"

static_assert((int)HALO_ROWS == (int)CCA_HALO_ROWS, "a halo is the same for both sides");

/* Returns the inputs of both passes. */
static inline CcaInput cca_input(const OpCall *call) {
    CcaShape s = cca_shape(call->attributes, call->in_shape[CCA_U][0]);
    int64_t rotated = call->in_shape[CCA_ROPE_TABLE][1], chunks = call->in_shape[CCA_HALO][0] / CCA_HALO_ROWS;
    int64_t chunk = chunks ? s.rows / chunks : s.rows, bits = 0;
    while (chunk > 1LL << bits) bits++;
    assert(s.dim <= CCA_MAX_DIM);
    return (CcaInput){.u = call->in[CCA_U],
        .halo = chunks ? call->in[CCA_HALO] : call->in[CCA_U],
        .halo_columns = chunks ? s.columns : 0,
        .chunk_factor = (uint32_t)(((1LL << (31 + bits)) + chunk - 1) / chunk), /* exact below 2^31 rows */
        .chunk_shift = (int32_t)(31 + bits),
        .chunk = (int32_t)chunk,
        .reach = chunks ? HALO_ROWS : 0,
        .positions = call->in[CCA_POSITIONS],
        .depthwise = call->in[CCA_DEPTHWISE_WEIGHT],
        .depthwise_bias = call->in[CCA_DEPTHWISE_BIAS],
        .grouped = call->in[CCA_GROUPED_WEIGHT],
        .columns = s.columns,
        .convolved = s.convolved,
        .values = s.values,
        .current = s.current,
        .rows = (int32_t)s.rows,
        .heads = (int32_t)s.heads,
        .kv_heads = (int32_t)s.kv_heads,
        .group = (int32_t)s.group,
        .dim = (int32_t)s.dim,
        .rotated = (int32_t)rotated,
        .whole = s.dim % CHUNK == 0 && rotated % (2 * CHUNK) == 0};
}

/* Returns the form of the kernels: 0 for up to 64 channels, 1 for up to 128, 2 for any number. */
static inline int cca_form(const CcaInput *in) { return !in->whole ? 2 : in->dim > 64; }
/* Returns the tiles of `rows` rows per block. If possible, the blocks of all `tasks` tasks, at most `most`, run
 * at once and have equally many tiles. */
static inline int64_t cca_tiles_per_block(const CcaInput *in, int64_t rows, int64_t tasks, int64_t most) {
    return divide_up(divide_up(in->rows, rows), most < tasks ? 1 : most / tasks);
}
static inline int64_t cca_tile_rows(const CcaInput *in) { return CCA_TILE / (cca_form(in) == 0 ? 64 : 128); }

#endif
