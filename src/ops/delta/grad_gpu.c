/* The backward pass of the gated delta rule on a GPU, in chunks of 64 tokens (rule.c, gpu_chunk_kernels.h).
 * delta_chunks_back solves each chunk's triangular system, delta_scan_back goes from the last chunk to the first with dS,
 * and delta_scan_again from the first on with S, which the forward pass does not keep. Both store their states, from
 * which delta_units_back computes the gradients of queries, keys and decays. Other kernels take a row each, and for the
 * gates a chunk of a head.
 *
 * The gradient of the logarithm of a decay is the sum of all that passes through it. With w_ij = F_ij (q_i . k_j) +
 * E_ij (k_i . k_j), r_i what token i reads of the state before the chunk, and l_j what the state after the chunk has of
 * token j, it is the sum of w_ij over j < t <= i, of r_i over i >= t, of l_j over j < t, and of c_last S . dS. Every term
 * is in both sums with the same bits, so that rounding errors neither add up over tokens nor over chunks. rule.c's dG,
 * whose terms cancel, is not exact enough in bf16. */
#include "backend/gpu/formulas.h"
#include "backend/gpu/vector.h"
#include "ops/delta/gpu_chunk_kernels.h"

/* Shared memory: tiles, a matrix and numbers. On AMD, scans with dS use memory twice. */
enum {
    SYSTEM_BYTES = (2 * TILE_ELEMENTS + SQUARE_ELEMENTS) * 2 + CHUNK * MATRIX_ROW * 4 + (int)sizeof(DeltaNumbers),
    AGAIN_BYTES = (TILE_ELEMENTS + SQUARE_ELEMENTS) * 2 + 2 * (int)sizeof(DeltaNumbers),
    UNITS_BYTES = (2 * TILE_ELEMENTS + 3 * SQUARE_ELEMENTS) * 2 + (int)sizeof(DeltaNumbers) + (8 * CHUNK + 8) * 4,
};
#define BACK_BYTES(wave) (((wave) == 64 ? 3 * TILE_ELEMENTS : 4 * TILE_ELEMENTS + 2 * SQUARE_ELEMENTS) * 2 + 2 * (int)sizeof(DeltaNumbers))

#ifdef GPU_DEVICE

/* -- Chunks -------------------------------------------------------------------------------------------------------- */

/* Stores L diag(beta) in the matrix, by rows, and in halves the strictly lower factor of C: P' - diag(beta p) L. */
INLINE void back_squares(
    LOCAL float *matrix, LOCAL bf16 *halves, LOCAL const bf16 *queries, LOCAL const bf16 *keys, LOCAL const DeltaNumbers *n) {
    Accumulator of_keys, of_queries;
    accumulator_clear(&of_keys), accumulator_clear(&of_queries);
    multiply_rows(&of_keys, keys, keys, WIDTH);
    multiply_rows(&of_queries, queries, keys, WIDTH);
    FOR_SUM_ROWS(r) {
        int i = sum_row_at(r);
        FOR_COLUMNS(c) {
            int j = sum_column_at(c);
            float factor = j < i ? decay_between(n, i, j) * n->key[j] : 0;
            float l = factor * n->key[i] * n->beta[i] * accumulator_get(&of_keys, r, c);
            matrix[i * MATRIX_ROW + j] = l;
            accumulator_set(&of_queries, r, c, factor * n->query[i] * accumulator_get(&of_queries, r, c) - n->product[i] * l);
        }
        put_sum_row(halves, &of_queries, r);
    }
}

/* Loads dY as a tile; stores c dY / |q| and d U / |k|. */
INLINE void back_values(const DeltaArguments *a, const ChunkPlace *p, LOCAL bf16 *tile, LOCAL const DeltaNumbers *n) {
    for (int e = thread_id(); e < TILE_ELEMENTS / 8; e += CHUNK_THREADS) {
        int i = e / (WIDTH / 8), column = e % (WIDTH / 8) * 8;
        bool there = i < p->rows;
        int64_t at = (p->row + i) * a->values + (int64_t)p->head * a->value_dim;
        f32x8 d_y = load8_within(a->d_y + at, column, a->value_dim, there), m = load8_within(a->recalled + at, column, a->value_dim, there);
        f32x8 v = load8_bf16_within(chunk_values(a, p).from + (int64_t)i * a->columns, a->columns, column, a->value_dim, there);
        int64_t to = p->index * TILE_ELEMENTS + i * WIDTH + column;
        *(LOCAL u32x4 *)(tile + tile_at(WIDTH, i, column)) = pack8(d_y);
        *(u32x4 GLOBAL *)(a->d_outs + to) = pack8(d_y * (decay_carried(n, i) * n->query[i]));
        *(u32x4 GLOBAL *)(a->updates + to) = pack8((v - m) * (n->beta[i] * decay_left(n, i) * n->key[i]));
    }
}

/* With A = diag(beta) L and T = (I + A)^-1, C = T^T (P' - diag(beta p) L)^T dY + T^T d K dS: stores the first term as own, and
 * T^T d K as solved. */
KERNEL(delta_chunks_back, DeltaArguments) {
    LOCAL bf16 *keys = delta_tiles, *queries = keys + TILE_ELEMENTS, *square = queries + TILE_ELEMENTS, *outs = queries;
    const ChunkSystem system = chunk_system(square);
    LOCAL float *matrix = system.matrix;
    LOCAL DeltaNumbers *n = system.numbers;
    const ChunkPlace p = chunk_place(&a, block_z(), block_y(), block_x());
    Source of_keys = chunk_keys(&a, &p), of_queries = chunk_queries(&a, &p);
    numbers_load(n, &a, p.index);
    tile_load(keys, WIDTH, CHUNK, CHUNK_THREADS, &of_keys);
    tile_load(queries, WIDTH, CHUNK, CHUNK_THREADS, &of_queries);
    barrier();
    back_squares(matrix, square, queries, keys, n);
    barrier();
    back_values(&a, &p, outs, n);
    invert_matrix(matrix);
    Accumulator sums[WIDE_BLOCKS];
    wide_clear(sums);
    multiply_square(sums, square, true, outs);
    barrier();
    put_wide(outs, sums);
    store_solution(a.own + p.index * TILE_ELEMENTS, &system, OF_ALL, true, outs);
    barrier();
    store_solution(a.solved + p.index * TILE_ELEMENTS, &system, OF_LEFT_KEYS, true, keys);
}

/* -- Scans --------------------------------------------------------------------------------------------------------- */

/* Starts and ends the copy of 64 columns of a chunk's tile to halves. */
typedef struct HalvesStage { Stage half[2]; } HalvesStage;
INLINE Source halves_source(const bf16 GLOBAL *array, const ChunkPlace *p, int from) {
    return chunk_scratch(array, TILE_ELEMENTS, p, from, CHUNK);
}
INLINE void halves_begin(HalvesStage *stage, LOCAL bf16 *halves, const bf16 GLOBAL *array, const ChunkPlace *p, int first) {
    UNROLL for (int h = 0; h < 2; h++) {
        Source source = halves_source(array, p, first + h * MMA);
        stage_begin(&stage->half[h], halves + h * HALF_ELEMENTS, MMA, CHUNK, CHUNK_THREADS, &source);
    }
}
INLINE void halves_end(HalvesStage *stage, LOCAL bf16 *halves, const bf16 GLOBAL *array, const ChunkPlace *p, int first) {
    UNROLL for (int h = 0; h < 2; h++) {
        Source source = halves_source(array, p, first + h * MMA);
        stage_end(&stage->half[h], halves + h * HALF_ELEMENTS, MMA, CHUNK, CHUNK_THREADS, &source, 0);
    }
}

/* The elements of own, in pairs, and of dY that a lane reads of a chunk. */
typedef struct BackRows {
    uint32_t own[SUM_LANE_ROWS][PAIRS];
    float d_y[SUM_LANE_ROWS][LANE_COLUMNS];
} BackRows;

INLINE BackRows back_rows(const DeltaArguments *a, const ChunkPlace *p, int first) {
    BackRows rows;
    const bf16 GLOBAL *own = a->own + p->index * TILE_ELEMENTS + first;
    const float GLOBAL *d_y = a->d_y + p->row * a->values + (int64_t)p->head * a->value_dim + first;
    FOR_SUM_ROWS(r) FOR_COLUMNS(c) {
        int i = sum_row_at(r), j = sum_column_at(c);
        if (c % 2 == 0) rows.own[r][c / 2] = *(const uint32_t GLOBAL *)(own + i * WIDTH + j);
        rows.d_y[r][c] = i < p->rows && first + j < a->value_dim ? d_y[(int64_t)i * a->values + j] : 0;
    }
    return rows;
}

/* From sums = solved dS to C, then dM: stores C in d_carried and dM in d_recalled. `sums` becomes c dM / |k|. */
INLINE void scan_d_recalled(
    const DeltaArguments *a, const ChunkPlace *p, Accumulator *sums, const BackRows *rows, LOCAL const DeltaNumbers *n, int first) {
    float GLOBAL *d_carried = a->d_carried + p->row * a->values + (int64_t)p->head * a->value_dim + first;
    FOR_SUM_ROWS(r) {
        int i = sum_row_at(r);
        FOR_COLUMNS(c) {
            int j = sum_column_at(c);
            uint32_t own = rows->own[r][c / 2];
            float carried = accumulator_get(sums, r, c) + (c % 2 ? to_float_high(own) : to_float_low(own));
            if (i < p->rows && first + j < a->value_dim) d_carried[(int64_t)i * a->values + j] = carried;
            accumulator_set(sums, r, c, -n->beta[i] * (carried + n->product[i] * rows->d_y[r][c]));
        }
        bf16 GLOBAL *to = a->d_recalled + p->index * TILE_ELEMENTS + i * WIDTH + first + sum_block() * MMA;
        *(u32x4 GLOBAL *)(to + accumulator_chunk()) = accumulator_pack(sums, r);
        accumulator_scale(sums, r, decay_carried(n, i) * n->key[i]);
    }
}

/* On AMD dM and dY take the memory of the state, and queries that of `solved`, after all waves have read both. */
enum { SHARES_MEMORY = WAVE == 64 };

/* Stores dS after each chunk. */
KERNEL(delta_scan_back, DeltaArguments) {
    LOCAL bf16 *solved = delta_tiles, *keys = solved + TILE_ELEMENTS, *state = keys + TILE_ELEMENTS;
    LOCAL bf16 *queries = SHARES_MEMORY ? solved : state + TILE_ELEMENTS, *halves = SHARES_MEMORY ? state : queries + TILE_ELEMENTS,
               *outs = halves + SQUARE_ELEMENTS;
    LOCAL DeltaNumbers *numbers = (LOCAL DeltaNumbers *)(SHARES_MEMORY ? state + TILE_ELEMENTS : outs + SQUARE_ELEMENTS);
    int first = block_x() * SCAN_WIDTH;
    ChunkPlace p = chunk_place(&a, block_z(), block_y(), a.chunks - 1);
    Accumulator sums, columns[WIDE_BLOCKS];
    Stage of_solved, of_keys, of_queries;
    HalvesStage of_outs;
    Source source = chunk_scratch(a.solved, TILE_ELEMENTS, &p, 0, CHUNK);
    wide_clear(columns);
    put_state(state, a.d_states + p.index * STATE_ELEMENTS + first * WIDTH, columns);
    numbers_load(numbers + (a.chunks - 1) % 2, &a, p.index);
    BackRows rows = back_rows(&a, &p, first);
    stage_begin(&of_solved, solved, WIDTH, CHUNK, CHUNK_THREADS, &source);
    stage_end(&of_solved, solved, WIDTH, CHUNK, CHUNK_THREADS, &source, 0);
    for (int chunk = a.chunks - 1; chunk >= 0; chunk--) {
        LOCAL const DeltaNumbers *n = numbers + chunk % 2;
        Source key_source = chunk_keys(&a, &p), query_source = chunk_queries(&a, &p);
        barrier();
        stage_begin(&of_keys, keys, WIDTH, CHUNK, CHUNK_THREADS, &key_source);
        stage_begin(&of_queries, queries, WIDTH, CHUNK, CHUNK_THREADS, &query_source);
        halves_begin(&of_outs, outs, a.d_outs, &p, first);
        accumulator_clear(&sums);
        multiply_rows(&sums, solved, state, WIDTH);
        scan_d_recalled(&a, &p, &sums, &rows, n, first);
        if (SHARES_MEMORY) barrier();
        FOR_SUM_ROWS(r) put_sum_row(halves, &sums, r);
        stage_end(&of_keys, keys, WIDTH, CHUNK, CHUNK_THREADS, &key_source, 0);
        stage_end(&of_queries, queries, WIDTH, CHUNK, CHUNK_THREADS, &query_source, 0);
        halves_end(&of_outs, outs, a.d_outs, &p, first);
        barrier();
        if (chunk == 0) break;
        p = chunk_place(&a, block_z(), block_y(), chunk - 1);
        source = chunk_scratch(a.solved, TILE_ELEMENTS, &p, 0, CHUNK);
        stage_begin(&of_solved, solved, WIDTH, CHUNK, CHUNK_THREADS, &source);
        rows = back_rows(&a, &p, first);
        numbers_load(numbers + (chunk - 1) % 2, &a, p.index);
        wide_scale(columns, decay_carried(n, CHUNK - 1));
        add_to_state(columns, outs, queries);
        add_to_state(columns, halves, keys);
        if (SHARES_MEMORY) barrier();
        put_state(state, a.d_states + p.index * STATE_ELEMENTS + first * WIDTH, columns);
        stage_end(&of_solved, solved, WIDTH, CHUNK, CHUNK_THREADS, &source, 0);
    }
}

/* Stores S before each chunk. */
KERNEL(delta_scan_again, DeltaArguments) {
    LOCAL bf16 *keys = delta_tiles, *halves = keys + TILE_ELEMENTS;
    LOCAL DeltaNumbers *numbers = (LOCAL DeltaNumbers *)(halves + SQUARE_ELEMENTS);
    int first = block_x() * SCAN_WIDTH;
    Accumulator columns[WIDE_BLOCKS];
    wide_clear(columns);
    for (int chunk = 0; chunk < a.chunks; chunk++) {
        const ChunkPlace p = chunk_place(&a, block_z(), block_y(), chunk);
        Stage stage;
        HalvesStage of_updates;
        Source source = chunk_keys(&a, &p);
        store_wide(a.states + p.index * STATE_ELEMENTS + first * WIDTH, columns);
        barrier();
        stage_begin(&stage, keys, WIDTH, CHUNK, CHUNK_THREADS, &source);
        halves_begin(&of_updates, halves, a.updates, &p, first);
        numbers_load(numbers, &a, p.index);
        stage_end(&stage, keys, WIDTH, CHUNK, CHUNK_THREADS, &source, 0);
        halves_end(&of_updates, halves, a.updates, &p, first);
        barrier();
        wide_scale(columns, decay_carried(numbers, CHUNK - 1));
        add_to_state(columns, halves, keys);
    }
}

/* -- Gradients of queries and keys --------------------------------------------------------------------------------- */

/* Loads 64 columns of U, dM and dY as tiles of 64 columns. */
INLINE void units_values(const DeltaArguments *a, const ChunkPlace *p, LOCAL bf16 *tiles, LOCAL const DeltaNumbers *n, int first) {
    for (int e = thread_id(); e < SQUARE_ELEMENTS / 8; e += CHUNK_THREADS) {
        int i = e / (SCAN_WIDTH / 8), column = e % (SCAN_WIDTH / 8) * 8;
        bool there = i < p->rows;
        int64_t at = (p->row + i) * a->values + (int64_t)p->head * a->value_dim;
        f32x8 d_y = load8_within(a->d_y + at, first + column, a->value_dim, there);
        f32x8 m = load8_within(a->recalled + at, first + column, a->value_dim, there);
        f32x8 v = load8_bf16_within(chunk_values(a, p).from + (int64_t)i * a->columns, a->columns, first + column, a->value_dim, there);
        LOCAL bf16 *to = tiles + tile_at(SCAN_WIDTH, i, column);
        *(LOCAL u32x4 *)to = pack8((v - m) * n->beta[i]);
        *(LOCAL u32x4 *)(to + SQUARE_ELEMENTS) =
            *(const u32x4 GLOBAL *)(a->d_recalled + p->index * TILE_ELEMENTS + i * WIDTH + first + column);
        *(LOCAL u32x4 *)(to + 2 * SQUARE_ELEMENTS) = pack8(d_y);
    }
}

/* Waves divide E and F: a wave has block square_block of SQUARES of them, of E first. */
enum { SQUARES = 8 / CHUNK_WAVES };
INLINE int square_row(void) { return of_wave(wave_id()) % 2 * MMA; }
INLINE int square_column(void) { return of_wave(wave_id()) / 2 % 2 * MMA; }
INLINE int square_kind(int m) { return of_wave(wave_id()) / 4 + m; }

/* squares += dM U^T and dY U^T */
INLINE void add_squares(Accumulator *squares, LOCAL const bf16 *tiles) {
    UNROLL for (int k = 0; k < SCAN_WIDTH; k += MMA) {
        Operand left, right;
        operand_load(&right, tiles + square_column() * SCAN_WIDTH, SCAN_WIDTH, 0, k);
        UNROLL for (int m = 0; m < SQUARES; m++) {
            operand_load(&left, tiles + (1 + square_kind(m)) * SQUARE_ELEMENTS + square_row() * SCAN_WIDTH, SCAN_WIDTH, 0, k);
            mma(&squares[m], &left, &right);
        }
    }
}

/* Stores the strictly lower parts of E and F, times D and 1 / the length of the row's or of the column's vector, in halves. */
INLINE void put_squares(LOCAL bf16 *to, const Accumulator *squares, LOCAL const DeltaNumbers *n, const bool of_columns) {
    UNROLL for (int m = 0; m < SQUARES; m++) FOR_ROWS(r) {
        Accumulator scaled;
        int i = square_row() + accumulator_row(r);
        float of_row = square_kind(m) ? n->query[i] : n->key[i];
        FOR_COLUMNS(c) {
            int j = square_column() + accumulator_column(c);
            float factor = j < i ? decay_between(n, i, j) * (of_columns ? n->key[j] : of_row) : 0;
            accumulator_set(&scaled, r, c, factor * accumulator_get(&squares[m], r, c));
        }
        *(LOCAL u32x4 *)(to + square_kind(m) * SQUARE_ELEMENTS + square_column() / MMA * HALF_ELEMENTS +
                         tile_at(MMA, i, accumulator_chunk())) = accumulator_pack(&scaled, r);
    }
}

/* sums += values states, over 64 columns: `values` a tile of 64 columns, `states` rows of WIDTH. */
INLINE void multiply_states(Accumulator *sums, LOCAL const bf16 *values, LOCAL const bf16 *states) {
    UNROLL for (int k = 0; k < SCAN_WIDTH; k += MMA) {
        Operand left, right;
        operand_load(&left, values + wide_group() * MMA * SCAN_WIDTH, SCAN_WIDTH, 0, k);
        FOR_WIDE(i) {
            operand_load_transposed_from(&right, states, wide_from(), WIDTH, k, i * MMA);
            mma(&sums[i], &left, &right);
        }
    }
}

INLINE void store_units(const DeltaArguments *a, const ChunkPlace *p, float GLOBAL *to, const Accumulator *sums) {
    FOR_WIDE(m) FOR_ROWS(r) FOR_COLUMNS(c) {
        int i = wide_row(r), j = wide_from() + m * MMA + accumulator_column(c);
        if (i < p->rows && j < a->key_dim) to[((p->row + i) * a->heads + p->head) * a->key_dim + j] = accumulator_get(&sums[m], r, c);
    }
}

/* Numbers of delta_units_back in shared memory: by groups of waves, what tokens read of the state before the chunk less
 * what the state after it has of them, and the latter. */
typedef struct UnitsSums { float flow[4][CHUNK], left[4][CHUNK], scratch[CHUNK_WAVES]; } UnitsSums;

/* Returns a thread's part of the product of S and dS, two tiles of states. */
INLINE float states_product(LOCAL const bf16 *states, LOCAL const bf16 *d_states) {
    float sum = 0;
    for (int e = thread_id() * 8; e < TILE_ELEMENTS; e += CHUNK_THREADS * 8) {
        u32x4 x = *(LOCAL const u32x4 *)(states + e), y = *(LOCAL const u32x4 *)(d_states + e);
        UNROLL for (int w = 0; w < 4; w++) sum += to_float_low(x[w]) * to_float_low(y[w]) + to_float_high(x[w]) * to_float_high(y[w]);
    }
    return sum;
}

INLINE float tile_element(LOCAL const bf16 *tile, int row, int column) { return to_float(tile[tile_at(WIDTH, row, column) + column % 8]); }

/* Stores r - l and l of rows: products of the terms of states with queries and keys. Adds the terms of dS to d_keys. */
INLINE void put_flows(LOCAL UnitsSums *to, const Accumulator *d_queries, Accumulator *d_keys, const Accumulator *written,
    LOCAL const bf16 *keys, LOCAL const DeltaNumbers *n) {
    LOCAL const bf16 *queries = keys + TILE_ELEMENTS;
    FOR_ROWS(r) {
        int i = wide_row(r);
        float flow = 0, left = 0;
        FOR_WIDE(m) FOR_COLUMNS(c) {
            int j = wide_from() + m * MMA + accumulator_column(c);
            float key = tile_element(keys, i, j) * n->key[i], writes = accumulator_get(&written[m], r, c);
            flow += accumulator_get(&d_queries[m], r, c) * tile_element(queries, i, j) * n->query[i];
            flow += accumulator_get(&d_keys[m], r, c) * key;
            left += writes * key;
            accumulator_set(&d_keys[m], r, c, accumulator_get(&d_keys[m], r, c) + writes);
        }
        flow = lanes_sum(flow), left = lanes_sum(left);
        to->flow[of_wave(wave_id()) / 2][i] = flow - left, to->left[of_wave(wave_id()) / 2][i] = left;
    }
}

/* Stores w in a matrix by rows of MATRIX_ROW, zeros above its diagonal. Begins and ends with a barrier. */
INLINE void put_pairs(
    LOCAL float *matrix, const Accumulator *squares, LOCAL const bf16 *queries, LOCAL const bf16 *keys, LOCAL const DeltaNumbers *n) {
    UNROLL for (int kind = 0; kind < 2; kind++) {
        barrier();
        UNROLL for (int m = 0; m < SQUARES; m++) {
            if (square_kind(m) != kind) continue;
            Accumulator products;
            LOCAL const bf16 *units = kind ? queries : keys;
            accumulator_clear(&products);
            UNROLL for (int k = 0; k < WIDTH; k += MMA) {
                Operand left, right;
                operand_load(&left, units + square_row() * WIDTH, WIDTH, 0, k);
                operand_load(&right, keys + square_column() * WIDTH, WIDTH, 0, k);
                mma(&products, &left, &right);
            }
            FOR_ROWS(r) FOR_COLUMNS(c) {
                int i = square_row() + accumulator_row(r), j = square_column() + accumulator_column(c);
                LOCAL float *to = &matrix[i * MATRIX_ROW + j];
                float factor = j < i ? decay_between(n, i, j) * (kind ? n->query[i] : n->key[i]) * n->key[j] : 0;
                float w = factor * accumulator_get(&squares[m], r, c) * accumulator_get(&products, r, c);
                *to = kind ? *to + w : w;
            }
        }
    }
    barrier();
}

/* Stores dG in d_factors: the flow from earlier tokens to a token minus the flow from it to later ones. */
INLINE void store_flows(const DeltaArguments *a, const ChunkPlace *p, LOCAL const float *matrix, LOCAL const UnitsSums *sums) {
    enum { SHARE = CHUNK_THREADS / CHUNK, TERMS = CHUNK / SHARE };
    int t = thread_id() / SHARE, part = thread_id() % SHARE;
    float flow = 0;
    for (int i = part * TERMS; i < (part + 1) * TERMS; i++) flow += matrix[t * MATRIX_ROW + i] - matrix[i * MATRIX_ROW + t];
    flow += shuffle_xor(flow, 1);
    flow += shuffle_xor(flow, 2);
    for (int g = 0; g < CHUNK_WAVES / 2; g++) flow += sums->flow[g][t];
    if (part == 0 && t < p->rows) a->d_factors[((p->row + t) * a->heads + p->head) * 3] = flow;
}

/* Stores in d_after the product of S and dS after the chunk, from that before the chunk and from what tokens wrote. */
INLINE void store_after(const DeltaArguments *a, const ChunkPlace *p, float before, LOCAL UnitsSums *sums, LOCAL const DeltaNumbers *n) {
    float after = before * decay_carried(n, CHUNK - 1);
    if (thread_id() < CHUNK)
        for (int g = 0; g < CHUNK_WAVES / 2; g++) after += sums->left[g][thread_id()];
    after = block_sum(after, sums->scratch, CHUNK_THREADS);
    if (thread_id() == 0) a->d_after[p->index] = after;
}

/* d_queries = F' K + c dY S^T; d_keys = c dM S^T + d U dS^T + F'^T Q + (E + E^T) K; dG. */
KERNEL(delta_units_back, DeltaArguments) {
    LOCAL bf16 *tiles = delta_tiles, *states = tiles + 3 * SQUARE_ELEMENTS, *d_states = states + TILE_ELEMENTS;
    LOCAL DeltaNumbers *n = (LOCAL DeltaNumbers *)(d_states + TILE_ELEMENTS);
    LOCAL UnitsSums *unit_sums = (LOCAL UnitsSums *)(n + 1);
    const ChunkPlace p = chunk_place(&a, block_z(), block_y(), block_x());
    Accumulator squares[SQUARES], d_queries[WIDE_BLOCKS], d_keys[WIDE_BLOCKS], written[WIDE_BLOCKS];
    float before = 0;
    UNROLL for (int m = 0; m < SQUARES; m++) accumulator_clear(&squares[m]);
    wide_clear(d_queries), wide_clear(d_keys), wide_clear(written);
    numbers_load(n, &a, p.index);
    for (int part = 0; part < a.parts; part++) {
        int first = part * SCAN_WIDTH;
        Source of_states = chunk_scratch(a.states, STATE_ELEMENTS, &p, 0, SCAN_WIDTH), of_d_states = of_states;
        of_states.from += first * WIDTH;
        of_d_states.from = a.d_states + p.index * STATE_ELEMENTS + first * WIDTH;
        barrier();
        units_values(&a, &p, tiles, n, first);
        tile_load(states, WIDTH, SCAN_WIDTH, CHUNK_THREADS, &of_states);
        tile_load(d_states, WIDTH, SCAN_WIDTH, CHUNK_THREADS, &of_d_states);
        barrier();
        add_squares(squares, tiles);
        multiply_states(written, tiles, d_states);
        multiply_states(d_keys, tiles + SQUARE_ELEMENTS, states);
        multiply_states(d_queries, tiles + 2 * SQUARE_ELEMENTS, states);
        before += states_product(states, d_states);
    }
    FOR_WIDE(m) FOR_ROWS(r) {
        float carried = decay_carried(n, wide_row(r));
        accumulator_scale(&d_queries[m], r, carried);
        accumulator_scale(&d_keys[m], r, carried);
        accumulator_scale(&written[m], r, decay_left(n, wide_row(r)));
    }
    LOCAL bf16 *keys = states, *queries = d_states, *of_e = tiles, *of_f = tiles + SQUARE_ELEMENTS;
    Source of_keys = chunk_keys(&a, &p), of_queries = chunk_queries(&a, &p);
    barrier();
    tile_load(keys, WIDTH, CHUNK, CHUNK_THREADS, &of_keys);
    tile_load(queries, WIDTH, CHUNK, CHUNK_THREADS, &of_queries);
    barrier();
    put_flows(unit_sums, d_queries, d_keys, written, keys, n);
    put_pairs((LOCAL float *)tiles, squares, queries, keys, n);
    store_flows(&a, &p, (LOCAL const float *)tiles, unit_sums);
    store_after(&a, &p, before, unit_sums, n);
    put_squares(tiles, squares, n, false);
    barrier();
    multiply_square(d_keys, of_e, true, keys);
    multiply_square(d_keys, of_f, true, queries);
    barrier();
    put_squares(tiles, squares, n, true);
    barrier();
    multiply_square(d_keys, of_e, false, keys);
    multiply_square(d_queries, of_f, false, keys);
    store_units(&a, &p, a.d_queries, d_queries);
    store_units(&a, &p, a.d_keys, d_keys);
}

/* -- Gradients of gates and inputs --------------------------------------------------------------------------------- */

/* d_beta and u . d_y of a row, in d_factors. */
KERNEL(delta_dots, DeltaArguments) {
    int64_t row = block_x();
    for (int h = wave_id(); h < a.heads; h += TILE_THREADS / WAVE) {
        const bf16 GLOBAL *v = a.x + row * a.columns + 2 * a.keys + (int64_t)h * a.value_dim;
        int64_t value = row * a.values + (int64_t)h * a.value_dim;
        float beta = a.factors[(row * a.heads + h) * 2 + 1], product = a.products[row * a.key_heads + h / a.group], d_beta = 0, own = 0;
        for (int i = lane_id(); i < a.value_dim; i += WAVE) {
            float d_y = a.d_y[value + i], error = to_float(v[i]) - a.recalled[value + i];
            d_beta += (a.d_carried[value + i] + product * d_y) * error;
            own += beta * error * d_y;
        }
        d_beta = wave_sum(d_beta), own = wave_sum(own);
        float GLOBAL *to = a.d_factors + (row * a.heads + h) * 3;
        if (lane_id() == 0) to[1] = d_beta, to[2] = own;
    }
}

/* Returns the sum of dG from token i to the end of its document; `after` is the part after the chunk. */
INLINE float decay_gradient(LOCAL const float *d_decay, LOCAL const DeltaNumbers *n, int i, float after) {
    float sum = 0;
    int j = i;
    for (; j < CHUNK && n->start[j] == n->start[i]; j++) sum += d_decay[j];
    return j == CHUNK ? sum + after : sum;
}

/* d_gates of a chunk of a head. The first token of a document has no decay, so that its gradient is 0. */
KERNEL(delta_gates_back, DeltaArguments) {
    static SHARED DeltaNumbers numbers;
    static SHARED float d_decay[CHUNK], scratch[CHUNK_THREADS / WAVE];
    const ChunkPlace p = chunk_place(&a, block_z(), block_y(), block_x());
    float after = a.d_after[p.index], d_rate = 0, d_bias = 0;
    int i = thread_id();
    bool there = i < p.rows;
    int64_t row = p.row + (there ? i : 0), at = row * a.heads + p.head;
    numbers_load(&numbers, &a, p.index);
    if (i < CHUNK) d_decay[i] = there ? a.d_factors[at * 3] : 0;
    barrier();
    if (there) {
        const bf16 GLOBAL *gate = a.gates + row * 2 * a.heads + p.head;
        bf16 GLOBAL *to = a.d_gates + row * 2 * a.heads + p.head;
        float rate = fast_exp(a.rates[p.head]), in = to_float(gate[a.heads]) + a.bias[p.head], beta = numbers.beta[i];
        float d_log = a.positions[row] == 0 ? 0 : decay_gradient(d_decay, &numbers, i, after);
        float softened = in > 20 ? in : LN_2 * fast_log2(1 + fast_exp(in));
        d_bias = -d_log * rate * sigmoid(in);
        d_rate = -d_log * rate * softened;
        to[0] = to_bf16(a.d_factors[at * 3 + 1] * beta * (1 - beta));
        to[a.heads] = to_bf16(d_bias);
    }
    d_rate = block_sum(d_rate, scratch, CHUNK_THREADS);
    d_bias = block_sum(d_bias, scratch, CHUNK_THREADS);
    float GLOBAL *sums = a.sums + ((int64_t)block_z() * a.chunks + block_x()) * 2 * a.heads + p.head;
    if (thread_id() == 0) sums[0] = d_rate, sums[a.heads] = d_bias;
}

/* Returns channel i of the gradient of a normalized query or key, the sum over its value heads. A token also reads what it
 * writes itself. */
INLINE float unit_gradient(const DeltaArguments *a, int64_t row, int key_head, bool is_key, int i) {
    int64_t head = row * a->heads + key_head * a->group;
    const bf16 GLOBAL *other = a->x + row * a->columns + (is_key ? 0 : a->keys) + (int64_t)key_head * a->key_dim;
    float unit = to_float(other[i]) * a->scales[(row * a->key_heads + key_head) * 2 + !is_key], sum = 0;
    for (int g = 0; g < a->group; g++, head++)
        sum += (is_key ? a->d_keys : a->d_queries)[head * a->key_dim + i] + a->d_factors[head * 3 + 2] * unit;
    return sum;
}

/* d_x of a row: through the division by lengths for queries and keys, beta du for values. */
KERNEL(delta_finish, DeltaArguments) {
    int64_t row = block_x();
    for (int h = wave_id(); h < 2 * a.key_heads; h += TILE_THREADS / WAVE) {
        const bf16 GLOBAL *x = a.x + row * a.columns + (int64_t)h * a.key_dim;
        bf16 GLOBAL *to = a.d_x + row * a.columns + (int64_t)h * a.key_dim;
        bool is_key = h >= a.key_heads;
        int key_head = is_key ? h - a.key_heads : h;
        float scale = a.scales[(row * a.key_heads + key_head) * 2 + is_key], along = 0;
        float inverse = is_key ? scale : scale * a.root;
        for (int i = lane_id(); i < a.key_dim; i += WAVE) along += to_float(x[i]) * unit_gradient(&a, row, key_head, is_key, i);
        along = wave_sum(along) * inverse * inverse;
        for (int i = lane_id(); i < a.key_dim; i += WAVE)
            to[i] = to_bf16(scale * (unit_gradient(&a, row, key_head, is_key, i) - to_float(x[i]) * along));
    }
    for (int j = thread_id(); j < a.values; j += TILE_THREADS) {
        int head = j / a.value_dim;
        int64_t at = row * a.values + j;
        float beta = a.factors[(row * a.heads + head) * 2 + 1], product = a.products[row * a.key_heads + head / a.group];
        a.d_x[row * a.columns + 2 * a.keys + j] = to_bf16(beta * (a.d_carried[at] + product * a.d_y[at]));
    }
}

#else

#include "backend/gpu/kernel_launch.h"
#include "ops/delta/gpu_internal.h"

LAUNCHERS(delta_row_back, DeltaArguments, delta_dots, delta_finish)
LAUNCHERS(delta_chunk_back, DeltaArguments, delta_chunks_back, delta_scan_back, delta_scan_again, delta_units_back, delta_gates_back)

enum { DOTS, FINISH };
enum { CHUNKS, SCAN, AGAIN, UNITS, GATES };

static int64_t delta_grad_gpu_workspace(const Graph *graph, const Node *node) {
    DeltaShape s = delta_shape(node->attributes, graph_rows(graph, node->in[DELTA_X]));
    return delta_gpu_scratch(&s, DELTA_BACKWARD).bytes;
}

static void launch_backward(const OpCall *call, const DeltaShape *s, int form, const DeltaArguments *arguments) {
    const int bytes[] = {SYSTEM_BYTES, BACK_BYTES(device_info(call->device)->wave), AGAIN_BYTES, UNITS_BYTES, 0};
    bool scans = form == SCAN || form == AGAIN;
    LaunchShape shape = {.x = scans ? arguments->parts : arguments->chunks, .y = s->heads, .z = s->sequences, .threads = CHUNK_THREADS};
    shape.shared = bytes[form];
    launch_delta_chunk_back(call->device, form, shape, arguments);
}

GPU_OP(delta_grad, delta_grad_gpu_workspace) {
    DeltaShape s = delta_call_shape(call);
    LaunchShape rows = {.x = s.rows, .threads = TILE_THREADS};
    DeltaArguments arguments = delta_gpu_arguments(call, &s, DELTA_BACKWARD);
    arguments.d_y = call->in[DELTA_GRAD_D_Y], arguments.recalled = call->in[DELTA_GRAD_RECALLED];
    arguments.d_x = call->out[DELTA_GRAD_D_X], arguments.d_gates = call->out[DELTA_GRAD_D_GATES];
    delta_gpu_number(call, &s, &arguments);
    for (int form = CHUNKS; form <= UNITS; form++) launch_backward(call, &s, form, &arguments);
    launch_delta_row_back(call->device, DOTS, rows, &arguments);
    launch_backward(call, &s, GATES, &arguments);
    launch_delta_row_back(call->device, FINISH, rows, &arguments);
    float *targets[] = {call->out[DELTA_GRAD_D_RATES], call->out[DELTA_GRAD_D_BIAS]};
    gpu_add_partial_sums(call->device, targets, 2, arguments.sums, s.sequences * arguments.chunks, s.heads);
}

#endif
