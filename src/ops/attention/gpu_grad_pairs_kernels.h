/* Gradients of keys and values on AMD for heads of more than 64 columns, for grad_gpu.c: the same
 * sums, with two waves for 32 keys. The first wave computes the scores and their weights P^T and
 * owns dV; the second computes dP^T and owns dK:
 *     first:   S^T = K Q^T,    P^T = exp(S^T - log_sum),       dV += P^T dO
 *     second:  dP^T = V dO^T,  dS^T = P^T * (dP^T - delta),    dK += dS^T Q
 * P^T goes to both waves through shared memory, in fp32. With a soft-cap, a word is a pair of bf16
 * instead: P^T for the first wave, and times the derivative for the second. So a wave holds one operand and one sum,
 * and two waves share a SIMD. They sum one tile of 32 queries while they score the next one:
 * neither waits for the other within a tile, P^T of two tiles fits, and one barrier per tile
 * suffices. Tiles have two buffers, one in use and one being filled. With heads of 256 only one
 * fits: a tile is summed after it has been scored, with a second barrier in between.
 *
 * If keys have too few blocks to fill the compute units, the heads of a group are divided among
 * `parts` blocks, and a last kernel adds their fp32 sums in order. Scratch: these sums. */
#pragma once

#if defined __AMDGCN__

enum { PAIR_ROUND = sizeof(Accumulator) / 16 }; /* 16-byte chunks of a lane's weights */

/* Constants of a pass; `chunks`: queries and dO are copied in chunks of 16 bytes; `capped`: scores
 * have a soft-cap. */
typedef struct PairShape {
    int width, columns, pairs, buffers;
    bool chunks, capped;
} PairShape;

INLINE int pair_threads(PairShape s) { return s.pairs * WAVE; } /* threads that fetch a matrix */
/* Offsets from a tile of queries and rows of dO: the matrix that a wave fetches and scores its rows
 * with, and the matrix whose rows it sums. */
INLINE int pair_scored(PairShape s, bool owns_values) { return owns_values ? 0 : TILE * s.width; }
INLINE int pair_summed(PairShape s, bool owns_values) { return pair_scored(s, !owns_values); }
INLINE int pair_tile(PairShape s, int number) { return number % s.buffers * 2 * TILE * s.width; }
INLINE int pair_exchange(PairShape s, int number) { return number % 2 * s.pairs * PAIR_ROUND * WAVE; }

/* Returns whether queries and dO are copied in chunks of 16 bytes. */
INLINE bool pair_in_chunks(const Attention *a) { return ((int)a->query_stride | a->qk_dim | a->v_dim) % 8 == 0; }

/* The matrix that a wave fetches. */
typedef struct PairMatrix {
    GLOBAL const bf16 *from;
    int64_t stride;
    int columns;
    bool owns_values;
} PairMatrix;
INLINE PairMatrix pair_matrix(const AttentionGrad *g, bool owns_values) {
    const Attention *a = &g->attention;
    if (owns_values) return (PairMatrix){a->queries, a->query_stride, a->qk_dim, true};
    return (PairMatrix){g->d_out, (int64_t)a->heads * a->v_dim, a->v_dim, false};
}

/* The tile to fetch next: its first row of the matrix, the rows that remain from there, and its
 * numbers. */
typedef struct PairWalk {
    GLOBAL const bf16 *from;
    GLOBAL const TileNumbers *numbers;
    int rows, sequence, head, heads_left, first_tile, tile, last_tile;
} PairWalk;

/* Moves the walk to the first tile of its head. */
INLINE void pair_walk_head(PairWalk *walk, const AttentionGrad *g, const PairMatrix *m) {
    const Attention *a = &g->attention;
    int first = walk->first_tile * TILE;
    walk->tile = walk->first_tile;
    walk->from = m->from + ((int64_t)walk->sequence * a->query_rows.rows + first) * m->stride + walk->head * m->columns;
    walk->rows = a->query_rows.rows - first;
    walk->numbers = tile_numbers(g, walk->sequence, walk->head, walk->tile);
}
/* Opens the walk of a block over all tiles that see one of its `rows` keys, in its part of the
 * heads of a group. It starts before the first tile. */
INLINE PairWalk pair_walk_open(const AttentionGrad *g, int sequence, int kv_head, int part, int first_key, int rows) {
    const Attention *a = &g->attention;
    int heads = a->heads / a->kv_heads / g->parts;
    PairWalk walk = {.sequence = sequence,
        .head = kv_head * heads * g->parts + part * heads,
        .heads_left = heads,
        .first_tile = attention_first_query(a, first_key) / TILE};
    walk.last_tile = of_wave(last_touched_tile(g, sequence, walk.first_tile, first_key + rows - 1));
    return walk;
}
/* Returns false if there is no other tile; the walk then stays at the last one. */
INLINE bool pair_walk_next(PairWalk *walk, const AttentionGrad *g, const PairMatrix *m) {
    if (walk->tile < walk->last_tile) {
        walk->tile++;
        walk->from += TILE * m->stride;
        walk->rows -= TILE;
        walk->numbers++;
        return true;
    }
    if (walk->heads_left == 1) return false;
    walk->heads_left--;
    walk->head++;
    pair_walk_head(walk, g, m);
    return true;
}

/* A tile in flight: a wave's chunks of its matrix. */
typedef struct PairStage { u32x4 chunk[4]; } PairStage;

INLINE void pair_stage_begin(PairStage *stage, const PairWalk *walk, const PairMatrix *m, PairShape s) {
    if (!s.chunks) return;
    const Source source = {walk->from, m->stride, walk->rows, m->columns};
    __amdgpu_buffer_rsrc_t buffer = source_buffer(&source, TILE);
    UNROLL for (int i = 0; i < stage_chunks(s.width, TILE, pair_threads(s)); i++) {
        StagePlace place = stage_place(thread_id() % pair_threads(s), s.width, pair_threads(s), i);
        stage->chunk[i] = __builtin_amdgcn_raw_buffer_load_b128(buffer, source_offset(&source, place.row, place.column), 0, 0);
    }
}
INLINE void pair_stage_end(const PairStage *stage, LOCAL bf16 *tile, const PairWalk *walk, const PairMatrix *m, PairShape s) {
    int thread = thread_id() % pair_threads(s);
    tile += pair_scored(s, m->owns_values);
    if (!s.chunks) {
        for (int i = thread; i < TILE * s.width; i += pair_threads(s)) {
            int row = i / s.width, column = i % s.width;
            bool there = row < walk->rows && column < m->columns;
            tile[tile_at(s.width, row, column) + column % 8] = there ? walk->from[row * m->stride + column] : 0;
        }
    } else if (stage_takes_part(thread, s.width, TILE, pair_threads(s))) {
        UNROLL for (int i = 0; i < stage_chunks(s.width, TILE, pair_threads(s)); i++) *
            (LOCAL u32x4 *)(tile + stage_place(thread, s.width, pair_threads(s), i).at) = stage->chunk[i];
    }
}

/* A wave's numbers of the queries in a lane's columns, in Accumulator order: log2-sum-exps if it
 * owns values, deltas if it owns keys. Also bounds of what the tile's queries see. */
typedef struct PairNumbers {
    f32x4 x[2];
    int low_max, first_high;
} PairNumbers;

INLINE void pair_numbers(PairNumbers *numbers, const PairWalk *walk, bool owns_values) {
    GLOBAL const float *from = (owns_values ? walk->numbers->log_sum : walk->numbers->delta) + accumulator_first();
    UNROLL for (int t = 0; t < 2; t++) numbers->x[t] = *(GLOBAL const f32x4 *)(from + 4 * t);
    GLOBAL const int *bounds = &walk->numbers->low_max + opaque(0); /* opaque: a wave would wait for values known to be uniform */
    numbers->low_max = bounds[0], numbers->first_high = bounds[1];
}

/* Adds the ALiBi bias to scaled, transposed scores [rows keys][32 queries] and sets masked ones to
 * -inf; keys start at `key`, queries at `query`. */
INLINE void mask_pair(
    Accumulator *scores, const int rows, const Attention *a, GLOBAL const TileNumbers *numbers, int head, int key, int query) {
    const TokenRows keys = a->key_rows, queries = a->query_rows;
    float slope = attention_slope(a, head) * a->scale;
    if (a->alibi > 0) UNROLL for (int c = 0; c < LANE_COLUMNS; c++) UNROLL for (int r = 0; r < lane_rows(rows); r++) {
            int distance = token_of_row(&keys, key + lane_row(rows, r)) - token_of_row(&queries, query + accumulator_column(c));
            accumulator_set(scores, r, c, accumulator_get(scores, r, c) + slope * (float)distance);
        }
    UNROLL for (int c = 0; c < LANE_COLUMNS; c++) {
        int low = numbers->low[accumulator_column(c)], high = numbers->high[accumulator_column(c)];
        UNROLL for (int r = 0; r < lane_rows(rows); r++) {
            int number = key + lane_row(rows, r);
            accumulator_set(scores, r, c, number >= low && number <= high ? accumulator_get(scores, r, c) : -__builtin_inff());
        }
    }
}

/* A wave's operands and sums. For the tile that it scored last, also the rows to sum and, in the
 * wave that owns keys, dP^T - delta. */
typedef struct PairPass {
    const Attention *attention;
    int key; /* the wave's first key */
    LOCAL u32x4 *exchange;
    Operand held[MOST_WIDTH / MMA], rows[MOST_COLUMNS / MMA];
    Accumulator scores, sums[MOST_COLUMNS / MMA];
} PairPass;

/* Sums tile `number` with P^T or dS^T. */
INLINE void pair_sum(PairPass *p, int number, bool owns_values, PairShape s) {
    LOCAL const u32x4 *place = p->exchange + pair_exchange(s, number);
    Accumulator x;
    UNROLL for (int i = 0; i < PAIR_ROUND; i++) {
        u32x4 words = place[i * WAVE + lane_id()];
        if (s.capped) words = owns_values ? words << 16 : words & 0xffff0000;
        x.x[i / 2][i % 2] = __builtin_bit_cast(f32x4, words);
    }
    if (!owns_values) UNROLL for (int i = 0; i < PAIR_ROUND; i++) x.x[i / 2][i % 2] *= p->scores.x[i / 2][i % 2];
    Operand weights;
    operand_of(&weights, &x);
    UNROLL for (int n = 0; n < s.columns / MMA; n++) mma(&p->sums[n], &weights, &p->rows[n]);
}

/* Computes factor * scores - numbers of `tile`, and loads its rows to sum. */
INLINE void pair_score(PairPass *p, LOCAL const bf16 *tile, float factor, const PairNumbers *numbers, bool owns_values, PairShape s) {
    accumulator_clear(&p->scores);
    UNROLL for (int k = 0; k < s.width / MMA; k++) {
        Operand operand;
        operand_load(&operand, tile + pair_scored(s, owns_values), s.width, 0, k * MMA);
        mma(&p->scores, &p->held[k], &operand);
    }
    LOCAL const bf16 *summed = tile + pair_summed(s, owns_values) + (s.columns < s.width ? block_z() * s.columns : 0);
    UNROLL for (int n = 0; n < s.columns / MMA; n++) operand_load_transposed(&p->rows[n], summed, s.width, 0, n * MMA);
    if (s.capped && opaque_of_wave(owns_values)) attention_cap_scores(&p->scores, 1, MMA, p->attention);
    UNROLL for (int r = 0; r < LANE_ROWS; r++) UNROLL for (int t = 0; t < 2; t++) p->scores.x[r][t] =
        p->scores.x[r][t] * factor - numbers->x[t];
}

/* Stores P^T of scores, for both waves. */
INLINE void store_weights(LOCAL u32x4 *place, const Accumulator *scores) {
    UNROLL for (int i = 0; i < PAIR_ROUND; i++) {
        f32x4 x = scores->x[i / 2][i % 2];
        UNROLL for (int j = 0; j < 4; j++) x[j] = fast_exp2(x[j]);
        place[i * WAVE + lane_id()] = __builtin_bit_cast(u32x4, x);
    }
}
/* The same with a soft-cap, as pairs. Capped scores are recovered from `scores`, which are not masked
 * yet. A weight of 0 has any derivative. */
INLINE void store_capped_weights(
    LOCAL u32x4 *place, const Attention *a, const Accumulator *scores, const Accumulator *masked, const PairNumbers *numbers) {
    float per_limit = fast_reciprocal(a->limit * a->scale);
    UNROLL for (int i = 0; i < PAIR_ROUND; i++) {
        u32x4 words;
        UNROLL for (int j = 0; j < 4; j++) {
            float weight = fast_exp2(masked->x[i / 2][i % 2][j]);
            float part = (scores->x[i / 2][i % 2][j] + numbers->x[i % 2][j]) * per_limit;
            words[j] = to_bf16_pair(weight, weight > 0 ? weight * SCORE_CAP_SLOPE(part) : 0);
        }
        place[i * WAVE + lane_id()] = words;
    }
}
/* Stores P^T of tile `number`; `walk` is the position at which it was fetched. */
INLINE void pair_weights(const PairPass *p, const Attention *a, int number, const PairNumbers *numbers, const PairWalk *walk, PairShape s) {
    LOCAL u32x4 *place = p->exchange + pair_exchange(s, number);
    if (a->alibi > 0 || p->key < of_wave(numbers->low_max) || p->key + MMA - 1 > of_wave(numbers->first_high)) {
        Accumulator masked = p->scores;
        mask_pair(&masked, MMA, arguments_again(a), walk->numbers, walk->head, p->key, walk->tile * TILE);
        if (s.capped) store_capped_weights(place, a, &p->scores, &masked, numbers);
        else store_weights(place, &masked);
        __asm__ volatile(""); /* otherwise the compiler would join both branches and copy the scores in each */
    } else if (s.capped) {
        store_capped_weights(place, a, &p->scores, &p->scores, numbers);
    } else {
        store_weights(place, &p->scores);
    }
}

/* Stores a wave's sums of `wave_rows` keys: to bf16 rows of the result, or to fp32 rows of its
 * part. */
INLINE void pair_store(const AttentionGrad *g, bool owns_values, const int wave_rows, int key, const Accumulator *sums, int64_t base,
    int kv_head, int part, int column, const int columns) {
    const Attention *a = &g->attention;
    float factor = owns_values ? 1 : a->scale * LN_2;
    int dim = owns_values ? a->v_dim : a->qk_dim;
    int64_t kv_columns = (int64_t)a->kv_heads * (a->qk_dim + a->v_dim), start = owns_values ? (int64_t)a->kv_heads * a->qk_dim : 0;
    UNROLL for (int r = 0; r < lane_rows(wave_rows); r++) {
        int row = key + lane_row(wave_rows, r);
        bool there = row < a->key_rows.rows;
        if (g->parts == 1) {
            GLOBAL bf16 *to = (owns_values ? g->d_values : g->d_keys) + (base + row) * a->key_stride + kv_head * dim;
            UNROLL for (int n = 0; n < columns / MMA; n++)
                attention_store(to, a->key_stride, &sums[n], r, column + n * MMA, dim, factor, there);
            continue;
        }
        GLOBAL float *to = g->partial_keys + (part * g->rows + base + row) * kv_columns + start + kv_head * dim;
        UNROLL for (int n = 0; n < columns / MMA; n++) UNROLL for (int c = 0; c < LANE_COLUMNS; c++) {
            int at = column + n * MMA + accumulator_column(c);
            if (there && at < dim) to[at] = accumulator_get(&sums[n], r, c) * factor;
        }
    }
}

/* Runs the pass of a block of 2 * s.pairs waves, with 32 keys per pair. It begins with a tile
 * before the first one, whose weights are zero. */
INLINE void pass_of_pairs(const AttentionGrad *g, PairShape s) {
    const int rows = s.pairs * MMA, threads = 2 * s.pairs * WAVE;
    const Attention *a = &g->attention;
    int part = block_x() % g->parts, head = block_x() / g->parts, sequence = head / a->kv_heads, kv_head = head % a->kv_heads;
    int first_key = block_y() * rows, pair = of_wave(wave_id()) % s.pairs;
    int64_t base = (int64_t)sequence * a->key_rows.rows;
    const bool owns_values = of_wave(wave_id()) < s.pairs;

    LOCAL bf16 *tiles = attention_tiles;
    PairPass p = {.attention = a, .key = first_key + pair * MMA};
    p.exchange = (LOCAL u32x4 *)(tiles + s.buffers * 2 * TILE * s.width) + pair * PAIR_ROUND * WAVE;
    for (int of_values = 0; of_values < 2; of_values++) {
        int dim = of_values ? a->v_dim : a->qk_dim;
        Source source =
            matrix_rows(of_values ? a->values : a->keys, a->key_stride, base + first_key, kv_head * dim, a->key_rows.rows - first_key, dim);
        tile_load(tiles, s.width, rows, threads, &source);
        barrier();
        if (owns_values != of_values)
            UNROLL for (int k = 0; k < s.width / MMA; k++) operand_load(&p.held[k], tiles + pair * MMA * s.width, s.width, 0, k * MMA);
        barrier();
    }
    UNROLL for (int n = 0; n < s.columns / MMA; n++) accumulator_clear(&p.sums[n]), p.rows[n] = (Operand){0};
    accumulator_clear(&p.scores);
    if (owns_values)
        UNROLL for (int i = 0; i < PAIR_ROUND; i++) p.exchange[pair_exchange(s, 1) + i * WAVE + lane_id()] = (u32x4){0, 0, 0, 0};

    const PairMatrix matrix = pair_matrix(g, owns_values);
    PairWalk walk = pair_walk_open(g, sequence, kv_head, part, first_key, rows);
    PairStage stage;
    PairNumbers numbers;
    bool more = walk.last_tile >= walk.first_tile;
    if (more) {
        pair_walk_head(&walk, g, &matrix);
        pair_stage_begin(&stage, &walk, &matrix, s);
        pair_numbers(&numbers, &walk, owns_values);
        pair_stage_end(&stage, tiles, &walk, &matrix, s);
    }
    const float factor = owns_values ? a->scale : 1;
    int number = 0;
    for (; more; number++) {
        const PairWalk at = walk;
        barrier();
        more = pair_walk_next(&walk, g, &matrix);
        pair_stage_begin(&stage, &walk, &matrix, s);
        if (s.buffers == 2) pair_sum(&p, number + 1, opaque_of_wave(owns_values), s);
        pair_score(&p, tiles + pair_tile(s, number), factor, &numbers, owns_values, s);
        if (opaque_of_wave(owns_values)) pair_weights(&p, a, number, &numbers, &at, s);
        if (s.buffers == 1) {
            barrier();
            pair_sum(&p, number, opaque_of_wave(owns_values), s);
        }
        pair_numbers(&numbers, &walk, owns_values);
        pair_stage_end(&stage, tiles + pair_tile(s, number + 1), &walk, &matrix, s);
    }
    barrier();
    if (s.buffers == 2) pair_sum(&p, number + 1, owns_values, s);
    pair_store(arguments_again(g), owns_values, MMA, p.key, p.sums, base, kv_head, part, block_z() * s.columns, s.columns);
}

INLINE void gradient_of_pairs(
    const AttentionGrad *g, const int width, const int columns, const int pairs, const int buffers, const bool capped) {
    if (pair_in_chunks(&g->attention)) pass_of_pairs(g, (PairShape){width, columns, pairs, buffers, true, capped});
    else pass_of_pairs(g, (PairShape){width, columns, pairs, buffers, false, capped});
}

#endif
