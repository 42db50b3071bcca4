/* Gradients of keys and values on AMD, for grad_gpu.c: the same sums as there, with two waves for 32 keys. One of them computes the
 * scores and their weights P^T and owns dV, the other computes dP^T and owns dK:
 *     first:   S^T = K Q^T,    P^T = exp(S^T - log_sum),       dV += P^T dO
 *     second:  dP^T = V dO^T,  dS^T = P^T * (dP^T - delta),    dK += dS^T Q
 * P^T goes from one to the other through shared memory, in fp32. So a wave holds one operand and one sum, two waves share a SIMD, and
 * one of them multiplies while the other computes weights. Tiles of 32 queries have two buffers where shared memory allows it: while
 * one is in use the next one is on its way.
 *
 * Where keys have too few blocks to fill the processors, the heads of a group are shared out to `parts` blocks, whose sums in fp32 a
 * last kernel adds in their order. Scratch: these sums. */
#pragma once

#if defined __AMDGCN__

enum { PAIR_ROUND = sizeof(Accumulator) / 16 }; /* 16-byte chunks of a lane's weights */

/* Of a tile in shared memory. */
typedef struct PairRows {
    RowTile rows;
    int low_max[4]; /* the greatest first key, and nothing */
} PairRows;

/* A tile in flight, and one query's numbers in each lane of the first wave, as loaded: the log-sum-exp to base e, and the position. */
typedef struct PairStage {
    Stage queries, d_outs;
    Source q, d;
    float log_sum, delta;
    int position, low_max;
} PairStage;

INLINE void pair_stage_begin(
    PairStage *stage, LOCAL bf16 *tile, const int width, const int threads, const AttentionGrad *g, const Walk *walk) {
    const Attention *a = &g->attention;
    int first = walk->tile * TILE, length = a->query_rows.rows;
    int64_t base = (int64_t)walk->sequence * length;
    stage->q = rows_of(a->queries, a->query_stride, base + first, walk->head * a->head_dim, length - first, a->head_dim);
    stage->d = rows_of(g->d_out, (int64_t)a->heads * a->head_dim, base + first, walk->head * a->head_dim, length - first, a->head_dim);
    stage_begin(&stage->queries, tile, width, TILE, threads, &stage->q);
    stage_begin(&stage->d_outs, tile + TILE * width, width, TILE, threads, &stage->d);
    if (of_wave(wave_id()) > 0) return;
    int64_t row = base + min_int(first + lane_id() % TILE, length - 1), number = row * a->heads + walk->head;
    stage->log_sum = g->log_sum[number];
    stage->delta = g->delta[number];
    stage->position = a->positions[row];
    stage->low_max =
        reach_of(g, walk->sequence, walk->tile)[opaque(1)]; /* a wave would wait for what it knows to be the same in all lanes */
}
/* `first` is the tile's first query. Queries past the last one get weights of zero. */
INLINE void pair_stage_end(
    const PairStage *stage, LOCAL bf16 *tile, LOCAL PairRows *pair, const int width, const int threads, const Attention *a, int first) {
    LOCAL RowTile *rows = &pair->rows;
    stage_end(&stage->queries, tile, width, TILE, threads, &stage->q, 0);
    stage_end(&stage->d_outs, tile + TILE * width, width, TILE, threads, &stage->d, 0);
    if (of_wave(wave_id()) > 0 || lane_id() >= TILE) return;
    int row = first + lane_id();
    bool there = row < a->query_rows.rows;
    rows->log_sum[lane_id()] = there ? attention_log_sum(stage->log_sum) : __builtin_inff();
    rows->delta[lane_id()] = there ? stage->delta : 0;
    rows->low[lane_id()] = there ? attention_interval_at(a, row, &stage->position).low : 0;
    rows->high[lane_id()] = attention_last_key(a, token_of_row(&a->query_rows, row));
    pair->low_max[0] = stage->low_max;
}

/* A wave's part in its pair, and where it finds what. */
typedef struct PairWave {
    bool owns_values;
    int key;                /* its first one */
    LOCAL u32x4 *exchange;  /* of the pair */
    int scored, transposed; /* from a tile: the matrix that it scores its rows with, and the one that it sums rows of */
} PairWave;

/* The weights of the pair's first wave, which its second one gets. */
INLINE void pair_weights(Accumulator *scores, float scale, LOCAL const RowTile *rows, LOCAL u32x4 *exchange) {
    UNROLL for (int c = 0; c < LANE_COLUMNS; c++) {
        float log_sum = rows->log_sum[accumulator_column(c)];
        UNROLL for (int r = 0; r < LANE_ROWS; r++)
            accumulator_set(scores, r, c, fast_exp2(__builtin_fmaf(accumulator_get(scores, r, c), scale, -log_sum)));
    }
    struct { u32x4 x[PAIR_ROUND]; } chunks;
    chunks = __builtin_bit_cast(__typeof__(chunks), *scores);
    UNROLL for (int i = 0; i < PAIR_ROUND; i++) exchange[i * WAVE + lane_id()] = chunks.x[i];
}
/* d_weights: dP^T -> dS^T. */
INLINE void pair_gradients(Accumulator *d_weights, LOCAL const RowTile *rows, LOCAL const u32x4 *exchange) {
    struct { u32x4 x[PAIR_ROUND]; } chunks;
    UNROLL for (int i = 0; i < PAIR_ROUND; i++) chunks.x[i] = exchange[i * WAVE + lane_id()];
    Accumulator weights = __builtin_bit_cast(Accumulator, chunks);
    UNROLL for (int c = 0; c < LANE_COLUMNS; c++) {
        float delta = rows->delta[accumulator_column(c)];
        UNROLL for (int r = 0; r < LANE_ROWS; r++)
            accumulator_set(d_weights, r, c, accumulator_get(&weights, r, c) * (accumulator_get(d_weights, r, c) - delta));
    }
}

/* Stores a wave's sums: to bf16 rows of the result, or to fp32 rows of its part. */
INLINE void pair_store(const AttentionGrad *g, const PairWave *wave, const Accumulator *sums, int64_t base, int kv_head, int part,
    int column, const int columns) {
    const Attention *a = &g->attention;
    float factor = wave->owns_values ? 1 : a->scale * LN_2;
    int64_t kv_columns = (int64_t)a->kv_heads * a->head_dim;
    UNROLL for (int r = 0; r < LANE_ROWS; r++) {
        int row = wave->key + accumulator_row(r);
        bool there = row < a->key_rows.rows;
        if (g->parts == 1) {
            GLOBAL bf16 *to = (wave->owns_values ? g->d_values : g->d_keys) + (base + row) * a->key_stride + kv_head * a->head_dim;
            UNROLL for (int n = 0; n < columns / MMA; n++) attention_store(to, &sums[n], r, column + n * MMA, a->head_dim, factor, there);
            continue;
        }
        GLOBAL float *to = g->partial_keys + ((part * g->rows + base + row) * 2 + wave->owns_values) * kv_columns + kv_head * a->head_dim;
        UNROLL for (int n = 0; n < columns / MMA; n++) UNROLL for (int c = 0; c < LANE_COLUMNS; c++) {
            int at = column + n * MMA + accumulator_column(c);
            if (there && at < a->head_dim) to[at] = accumulator_get(&sums[n], r, c) * factor;
        }
    }
}

/* The keys pass of a block of 2 * `pairs` waves, for 32 keys of each pair. */
INLINE void gradient_of_pairs(const AttentionGrad *g, const int width, const int columns, const int pairs, const int buffers) {
    const int rows = pairs * MMA, threads = 2 * pairs * WAVE, tile_elements = 2 * TILE * width;
    const Attention *a = &g->attention;
    int part = block_x() % g->parts, head = block_x() / g->parts, sequence = head / a->kv_heads, kv_head = head % a->kv_heads;
    int heads = a->heads / a->kv_heads / g->parts, first_key = block_y() * rows, pair = of_wave(wave_id()) % pairs;
    int64_t base = (int64_t)sequence * a->key_rows.rows;

    LOCAL bf16 *tiles = attention_tiles;
    LOCAL u32x4 *exchange = (LOCAL u32x4 *)(tiles + buffers * tile_elements);
    LOCAL PairRows *row_tiles = (LOCAL PairRows *)(exchange + pairs * PAIR_ROUND * WAVE);
    PairWave wave = {
        .owns_values = of_wave(wave_id()) < pairs, .key = first_key + pair * MMA, .exchange = exchange + pair * PAIR_ROUND * WAVE};
    wave.scored = wave.owns_values ? 0 : TILE * width;
    wave.transposed = TILE * width - wave.scored + block_z() * columns;

    Operand held[MOST_WIDTH / MMA];
    for (int of_values = 0; of_values < 2; of_values++) {
        Source source = rows_of(of_values ? a->values : a->keys, a->key_stride, base + first_key, kv_head * a->head_dim,
            a->key_rows.rows - first_key, a->head_dim);
        tile_load(tiles, width, rows, threads, &source);
        barrier();
        if (wave.owns_values != of_values)
            UNROLL for (int k = 0; k < width / MMA; k++) operand_load(&held[k], tiles + pair * MMA * width, width, 0, k * MMA);
        barrier();
    }
    Accumulator sums[MOST_COLUMNS / MMA];
    UNROLL for (int n = 0; n < columns / MMA; n++) accumulator_clear(&sums[n]);

    int first_tile = attention_first_query(a, first_key) / TILE, first_head = kv_head * heads * g->parts + part * heads;
    Walk walk = {.sequence = sequence, .head = first_head, .heads_left = heads, .first_tile = first_tile, .tile = first_tile};
    walk.last_tile = of_wave(last_touched_tile(g, sequence, walk.first_tile, first_key + rows - 1));
    PairStage stage;
    bool more = walk.last_tile >= walk.first_tile;
    if (more) pair_stage_begin(&stage, tiles, width, threads, g, &walk);
    for (int buffer = 0; more; buffer = (buffer + 1) % buffers) {
        LOCAL bf16 *tile = tiles + buffer * tile_elements;
        LOCAL RowTile *row_tile = &row_tiles[buffer].rows;
        int query = walk.tile * TILE, query_head = walk.head;
        pair_stage_end(&stage, tile, row_tiles + buffer, width, threads, a, query);
        barrier();
        more = walk_next(&walk);
        if (more) pair_stage_begin(&stage, tile, width, threads, g, &walk);

        Accumulator scores;
        accumulator_clear(&scores);
        UNROLL for (int k = 0; k < width / MMA; k++) {
            Operand operand;
            operand_load(&operand, tile + wave.scored, width, 0, k * MMA);
            mma(&scores, &held[k], &operand);
        }
        if (wave.owns_values) {
            if (a->alibi > 0 || of_wave(wave.key < row_tiles[buffer].low_max[0] || wave.key + MMA - 1 > row_tile->high[0]))
                mask_keys(&scores, arguments_again(a), query_head, wave.key, query, row_tile, 0);
            pair_weights(&scores, a->scale, row_tile, wave.exchange);
        }
        const int early = width > 128 ? 1 : columns / MMA; /* operands that fit in registers before they can be used */
        Operand operands[MOST_COLUMNS / MMA];
        UNROLL for (int n = 0; n < early; n++) operand_load_transposed(&operands[n], tile + wave.transposed, width, 0, n * MMA);
        barrier();
        if (!wave.owns_values) pair_gradients(&scores, row_tile, wave.exchange);
        Operand weights;
        operand_of(&weights, &scores);
        UNROLL for (int n = 0; n < columns / MMA; n++) {
            if (n >= early) operand_load_transposed(&operands[n], tile + wave.transposed, width, 0, n * MMA);
            mma(&sums[n], &weights, &operands[n]);
        }
        if (buffers == 1) barrier();
    }
    pair_store(arguments_again(g), &wave, sums, base, kv_head, part, block_z() * columns, columns);
}

/* Adds the parts of eight columns of a row, in their order. */
KERNEL(attention_key_sums, AttentionGrad) {
    const Attention *h = &a.attention;
    int64_t columns = 2 * (int64_t)h->kv_heads * h->head_dim, number = ((int64_t)block_x() * 256 + thread_id()) * 8;
    if (number >= a.rows * columns) return;
    GLOBAL const float *from = a.partial_keys + number;
    GLOBAL bf16 *to = a.d_keys + number / columns * h->key_stride + number % columns;
    UNROLL for (int i = 0; i < 2; i++) {
        f32x4 sum = 0;
        for (int part = 0; part < a.parts; part++) sum += *(GLOBAL const f32x4 *)(from + part * a.rows * columns + i * 4);
        *(GLOBAL u32x2 *)(to + i * 4) = (u32x2){to_bf16_pair(sum.x, sum.y), to_bf16_pair(sum.z, sum.w)};
    }
}

#endif
