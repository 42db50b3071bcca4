/* Shared by the GPU kernels of the gated delta rule: arguments, scratch, and products of chunks of 64 tokens (formulas in
 * rule.c). Matrix cores multiply x itself in bf16; its lengths, betas and decays are fp32 factors of rows and columns.
 * Channels are padded to WIDTH and rows to CHUNK, with zeros. A chunk of a head has number chunk_index in arrays of
 * chunks. Owns no memory. */
#pragma once

#include "backend/gpu/gpu.h"

enum { CHUNK = 64, WIDTH = 128, SCAN_WIDTH = 64, CHUNK_THREADS = 256 };
enum { TILE_ELEMENTS = CHUNK * WIDTH, SQUARE_ELEMENTS = CHUNK * CHUNK, STATE_ELEMENTS = WIDTH * WIDTH, MATRIX_ROW = CHUNK + 1 };

/* Numbers of the tokens of a chunk: the base-2 logarithm of the decay from before the chunk to the token, the token at
 * which its document begins (-1: before the chunk), beta, 1 / length of the query (with its root) and of the key, k . q. */
typedef struct DeltaNumbers { float decay[CHUNK], start[CHUNK], beta[CHUNK], query[CHUNK], key[CHUNK], product[CHUNK]; } DeltaNumbers;

typedef struct DeltaArguments {
    const bf16 GLOBAL *x, *gates;
    const float GLOBAL *rates, *bias, *d_y;
    const int32_t GLOBAL *positions, *slots, *lasts;
    float GLOBAL *y, *recalled, *state; /* y only forward; recalled and state may be NULL forward */
    float GLOBAL *scales, *products, *factors, *d_carried, *d_queries, *d_keys, *d_factors, *d_after, *sums;
    DeltaNumbers GLOBAL *numbers;
    bf16 GLOBAL *solved, *own, *updates, *d_recalled, *d_outs, *states, *d_states;
    bf16 GLOBAL *d_x, *d_gates;
    int32_t length, chunks, key_heads, heads, group, key_dim, value_dim, keys, values, columns, parts;
    float root; /* of key_dim */
} DeltaArguments;

#ifdef GPU_DEVICE

#include "backend/gpu/mma.h"
#include "backend/gpu/vector.h"

extern __attribute__((aligned(128))) LOCAL bf16 delta_tiles[]; /* dynamic shared memory */

/* -- Places -------------------------------------------------------------------------------------------------------- */

/* A chunk of a head of a sequence. `rows` of its rows exist. */
typedef struct ChunkPlace {
    int head, key_head, rows;
    int64_t row, index;
} ChunkPlace;

INLINE ChunkPlace chunk_place(const DeltaArguments *a, int sequence, int head, int chunk) {
    int left = a->length - chunk * CHUNK;
    return (ChunkPlace){.head = head,
        .key_head = head / a->group,
        .rows = left < CHUNK ? left : CHUNK,
        .row = (int64_t)sequence * a->length + chunk * CHUNK,
        .index = ((int64_t)sequence * a->heads + head) * a->chunks + chunk};
}

/* Queries, keys or values of a chunk in x, from channel `from` on. */
INLINE Source chunk_queries(const DeltaArguments *a, const ChunkPlace *p) {
    return (Source){a->x + p->row * a->columns + p->key_head * a->key_dim, a->columns, p->rows, a->key_dim};
}
INLINE Source chunk_keys(const DeltaArguments *a, const ChunkPlace *p) {
    Source source = chunk_queries(a, p);
    source.from += a->keys;
    return source;
}
INLINE Source chunk_values(const DeltaArguments *a, const ChunkPlace *p) {
    return (Source){a->x + p->row * a->columns + 2 * a->keys + p->head * a->value_dim, a->columns, p->rows, a->value_dim};
}
/* A chunk's tile in scratch: `rows` rows of WIDTH, from column `from` on. */
INLINE Source chunk_scratch(const bf16 GLOBAL *array, int64_t elements, const ChunkPlace *p, int from, int rows) {
    return (Source){array + p->index * elements + from, WIDTH, rows, WIDTH - from};
}

INLINE void numbers_load(LOCAL DeltaNumbers *to, const DeltaArguments *a, int64_t index) {
    const float GLOBAL *from = (const float GLOBAL *)(a->numbers + index);
    for (int i = thread_id(); i < (int)(sizeof(DeltaNumbers) / sizeof(float)); i += CHUNK_THREADS) ((LOCAL float *)to)[i] = from[i];
}

/* D of rule.c, c and d. */
INLINE float decay_between(LOCAL const DeltaNumbers *n, int i, int j) {
    return j <= i && (float)j >= n->start[i] ? fast_exp2(n->decay[i] - n->decay[j]) : 0;
}
INLINE float decay_carried(LOCAL const DeltaNumbers *n, int i) { return n->start[i] < 0 ? fast_exp2(n->decay[i]) : 0; }
INLINE float decay_left(LOCAL const DeltaNumbers *n, int j) { return decay_between(n, CHUNK - 1, j); }

/* -- Products of squares ------------------------------------------------------------------------------------------- */

/* Waves divide a product of CHUNK rows and 64 columns: a wave has SUM_ROWS rows from sum_row on and MMA columns from
 * MMA * sum_block on. */
enum { CHUNK_WAVES = CHUNK_THREADS / WAVE, SUM_ROWS = WAVE == 64 ? 32 : 16, SUM_GROUPS = CHUNK / SUM_ROWS };
INLINE int sum_row(void) { return of_wave(wave_id()) % SUM_GROUPS * SUM_ROWS; }
INLINE int sum_block(void) { return of_wave(wave_id()) / SUM_GROUPS; }
/* The row and the column of element (r, c) of a lane's sums. */
INLINE int sum_row_at(int r) { return sum_row() + lane_row(SUM_ROWS, r); }
INLINE int sum_column_at(int c) { return sum_block() * MMA + accumulator_column(c); }
#define FOR_SUM_ROWS(r) UNROLL for (int r = 0; r < lane_rows(SUM_ROWS); r++)
#define FOR_COLUMNS(c) UNROLL for (int c = 0; c < LANE_COLUMNS; c++)

INLINE void load_sum_rows(Operand *o, LOCAL const bf16 *tile, const int width, const int column) {
    if (SUM_ROWS == MMA) operand_load(o, tile + sum_row() * width, width, 0, column);
    else operand_load_half(o, tile + sum_row() * width, width, 0, column);
}

/* sums += rows of a times rows of b, over `width` columns. */
INLINE void multiply_rows(Accumulator *sums, LOCAL const bf16 *a, LOCAL const bf16 *b, const int width) {
    UNROLL for (int k = 0; k < width; k += MMA) {
        Operand left, right;
        load_sum_rows(&left, a, width, k);
        operand_load(&right, b + sum_block() * MMA * width, width, 0, k);
        mma_rows(sums, &left, &right, SUM_ROWS);
    }
}

/* A square or a tile of 64 columns in two halves: of 32 columns each, one after the other. */
enum { HALF_ELEMENTS = CHUNK * MMA };
INLINE int halves_at(int row, int column) { return column / MMA * HALF_ELEMENTS + tile_at(MMA, row, column % MMA) + column % 8; }
/* Stores the eight columns of a lane's row r in halves. */
INLINE void put_sum_row(LOCAL bf16 *halves, const Accumulator *sums, int r) {
    *(LOCAL u32x4 *)(halves + sum_block() * HALF_ELEMENTS + tile_at(MMA, sum_row_at(r), accumulator_chunk())) = accumulator_pack(sums, r);
}

/* Waves divide a product of 64 rows and WIDTH columns: a wave has MMA rows from MMA * wide_group on and WIDE_BLOCKS blocks
 * of columns from wide_from on. */
enum { WIDE_BLOCKS = 8 / CHUNK_WAVES };
INLINE int wide_group(void) { return of_wave(wave_id()) % 2; }
INLINE int wide_from(void) { return of_wave(wave_id()) / 2 * WIDE_BLOCKS * MMA; }
INLINE int wide_row(int r) { return wide_group() * MMA + accumulator_row(r); }
#define FOR_WIDE(n) UNROLL for (int n = 0; n < WIDE_BLOCKS; n++)
#define FOR_ROWS(r) UNROLL for (int r = 0; r < LANE_ROWS; r++)

INLINE void wide_clear(Accumulator *sums) { FOR_WIDE(n) accumulator_clear(&sums[n]); }
/* Multiplies rows by factors. */
INLINE void wide_scale(Accumulator *sums, float factor) { FOR_WIDE(n) FOR_ROWS(r) accumulator_scale(&sums[n], r, factor); }

/* sums += square tile, or with `transposed` square^T tile. `square` is in halves, `tile` has WIDTH columns. */
INLINE void multiply_square(Accumulator *sums, LOCAL const bf16 *square, const bool transposed, LOCAL const bf16 *tile) {
    UNROLL for (int k = 0; k < CHUNK; k += MMA) {
        Operand left, right;
        if (transposed) operand_load_transposed(&left, square + wide_group() * HALF_ELEMENTS, MMA, k, 0);
        else operand_load(&left, square + k / MMA * HALF_ELEMENTS + wide_group() * MMA * MMA, MMA, 0, 0);
        FOR_WIDE(n) {
            operand_load_transposed_from(&right, tile, wide_from(), WIDTH, k, n * MMA);
            mma(&sums[n], &left, &right);
        }
    }
}

/* Stores sums as bf16 rows of WIDTH in scratch, or in a tile. */
INLINE void store_wide(bf16 GLOBAL *to, const Accumulator *sums) {
    FOR_WIDE(n) FOR_ROWS(r) {
        int at = wide_row(r) * WIDTH + wide_from() + n * MMA + accumulator_chunk();
        *(u32x4 GLOBAL *)(to + at) = accumulator_pack(&sums[n], r);
    }
}
INLINE void put_wide(LOCAL bf16 *tile, const Accumulator *sums) {
    FOR_WIDE(n) FOR_ROWS(r) {
        int at = tile_at(WIDTH, wide_row(r), wide_from() + n * MMA + accumulator_chunk());
        *(LOCAL u32x4 *)(tile + at) = accumulator_pack(&sums[n], r);
    }
}

/* -- The triangular system of a chunk ------------------------------------------------------------------------------- */

/* Replaces the blocks of 16 on the diagonal of a strictly lower A by the inverse of I + A, without its diagonal. */
INLINE void invert_blocks(LOCAL float *matrix) {
    int block = thread_id() / 16, column = thread_id() % 16;
    LOCAL float *at = matrix + block * 16 * (MATRIX_ROW + 1);
    float x[16];
    if (thread_id() < CHUNK) UNROLL for (int i = 0; i < 16; i++) {
            float sum = i == column;
            UNROLL for (int k = 0; k < i; k++) sum -= at[i * MATRIX_ROW + k] * x[k];
            x[i] = sum;
        }
    barrier();
    if (thread_id() < CHUNK) UNROLL for (int i = 0; i < 16; i++) if (i > column) at[i * MATRIX_ROW + column] = x[i];
    barrier();
}

/* Joins pairs of inverted blocks of `size`: the block below the diagonal becomes -T2 A T1. The block above it has the
 * product in between. */
INLINE void invert_pairs(LOCAL float *matrix, int size) {
    int count = CHUNK / 2 * size;
    for (int e = thread_id(); e < count; e += CHUNK_THREADS) {
        int i = e / size % size, j = e % size;
        LOCAL float *first = matrix + e / size / size * 2 * size * (MATRIX_ROW + 1), *below = first + size * MATRIX_ROW + i * MATRIX_ROW;
        float sum = below[j];
        for (int k = j + 1; k < size; k++) sum += below[k] * first[k * MATRIX_ROW + j];
        first[i * MATRIX_ROW + size + j] = sum;
    }
    barrier();
    for (int e = thread_id(); e < count; e += CHUNK_THREADS) {
        int i = e / size % size, j = e % size;
        LOCAL float *first = matrix + e / size / size * 2 * size * (MATRIX_ROW + 1), *second = first + size * (MATRIX_ROW + 1);
        float sum = first[i * MATRIX_ROW + size + j];
        for (int k = 0; k < i; k++) sum += second[i * MATRIX_ROW + k] * first[k * MATRIX_ROW + size + j];
        first[(size + i) * MATRIX_ROW + j] = -sum;
    }
    barrier();
}

/* Replaces a strictly lower A [CHUNK, CHUNK] by the inverse of I + A, without its diagonal. Above the diagonal remains
 * scratch. Begins and ends with a barrier. */
INLINE void invert_matrix(LOCAL float *matrix) {
    barrier();
    invert_blocks(matrix);
    for (int size = 16; size < CHUNK; size *= 2) invert_pairs(matrix, size);
}

/* The multiple of an inverse T that square_put stores: c_j T_ij / |k_j|; I - T; T; or d_i T_ij / |k_i|. */
enum { OF_CARRIED_KEYS, OF_OTHERS, OF_ALL, OF_LEFT_KEYS };
INLINE float square_factor(LOCAL const DeltaNumbers *n, int kind, int i, int j) {
    if (kind == OF_CARRIED_KEYS) return decay_carried(n, j) * n->key[j];
    if (kind == OF_LEFT_KEYS) return decay_left(n, i) * n->key[i];
    return kind == OF_OTHERS ? -1 : 1;
}
/* Stores a multiple of an inverse in halves. */
INLINE void square_put(LOCAL bf16 *halves, LOCAL const float *matrix, LOCAL const DeltaNumbers *n, const int kind) {
    for (int e = thread_id(); e < SQUARE_ELEMENTS; e += CHUNK_THREADS) {
        int i = e / CHUNK, j = e % CHUNK;
        float diagonal = kind == OF_OTHERS ? 0 : 1, x = j < i ? matrix[i * MATRIX_ROW + j] : j == i ? diagonal : 0;
        halves[halves_at(i, j)] = to_bf16(x * square_factor(n, kind, i, j));
    }
}

/* Shared memory for the triangular system of a chunk. */
typedef struct ChunkSystem {
    LOCAL bf16 *square;
    LOCAL float *matrix;
    LOCAL DeltaNumbers *numbers;
} ChunkSystem;

/* Returns the system in the shared memory from `square` on. */
INLINE ChunkSystem chunk_system(LOCAL bf16 *square) {
    LOCAL float *matrix = (LOCAL float *)(square + SQUARE_ELEMENTS);
    return (ChunkSystem){square, matrix, (LOCAL DeltaNumbers *)(matrix + CHUNK * MATRIX_ROW)};
}

/* Stores the product of a tile and a multiple of the inverse, or of its transpose. Overwrites the square. */
INLINE void store_solution(bf16 GLOBAL *to, const ChunkSystem *system, const int kind, const bool transposed, LOCAL const bf16 *tile) {
    Accumulator sums[WIDE_BLOCKS];
    square_put(system->square, system->matrix, system->numbers, kind);
    barrier();
    wide_clear(sums);
    multiply_square(sums, system->square, transposed, tile);
    store_wide(to, sums);
}

/* -- Scans of states ------------------------------------------------------------------------------------------------ */

/* Rows, and pairs of columns, of a chunk that a lane of a scan reads. */
enum { SUM_LANE_ROWS = SUM_ROWS == MMA ? LANE_ROWS : LANE_ROWS / 2, PAIRS = LANE_COLUMNS / 2 };

/* A state, transposed: a wave has MMA value columns from MMA * wide_group on, and WIDE_BLOCKS blocks of keys. */

/* sums += values^T tile: `values` [CHUNK, SCAN_WIDTH] in halves, `tile` [CHUNK, WIDTH]. */
INLINE void add_to_state(Accumulator *sums, LOCAL const bf16 *values, LOCAL const bf16 *tile) { multiply_square(sums, values, true, tile); }

/* Stores a state in a tile and in scratch. */
INLINE void put_state(LOCAL bf16 *tile, bf16 GLOBAL *to, const Accumulator *sums) {
    put_wide(tile, sums);
    store_wide(to, sums);
}

/* -- Numbers in fp32 ------------------------------------------------------------------------------------------------ */

/* Returns columns `column` .. + 7 of a row of `dim` floats; zeros after its end or if it is not `there`. */
INLINE f32x8 load8_within(const float GLOBAL *row, int column, int dim, bool there) {
    f32x8 x = 0;
    if (!there) return x;
    if (column + 8 <= dim && dim % 8 == 0) return load8_wide(row + column, 8);
    UNROLL for (int i = 0; i < 8; i++) if (column + i < dim) x[i] = row[column + i];
    return x;
}
/* The same of bf16, of rows `stride` apart. */
INLINE f32x8 load8_bf16_within(const bf16 GLOBAL *row, int stride, int column, int dim, bool there) {
    f32x8 x = 0;
    if (!there) return x;
    if (column + 8 <= dim && (dim | stride) % 8 == 0) return load8_bf16(row + column, 8);
    UNROLL for (int i = 0; i < 8; i++) if (column + i < dim) x[i] = to_float(row[column + i]);
    return x;
}
INLINE u32x4 pack8(f32x8 x) {
    return (u32x4){to_bf16_pair(x[0], x[1]), to_bf16_pair(x[2], x[3]), to_bf16_pair(x[4], x[5]), to_bf16_pair(x[6], x[7])};
}

#endif
