/* The gradients of keys and values on AMD for heads of at most 64 columns: a wave owns dV and dK of
 * 16 keys, whose sums fit with everything else into a quarter of a SIMD's registers. Waves exchange
 * nothing, so that products of one wave overlap with exponentials of another. The tiles of queries
 * and dO are loaded as in gpu_grad_pairs_kernels.h, with one barrier per tile. Owns no memory. */
#pragma once

#if defined __AMDGCN__

enum { WAVE_KEYS = 16 };

/* A wave's numbers of the queries in a lane's columns, in Accumulator order, and bounds of what
 * they see. */
typedef struct WaveNumbers {
    f32x4 log_sum[2], delta[2];
    int low_max, first_high;
} WaveNumbers;
INLINE void wave_numbers(WaveNumbers *numbers, const PairWalk *walk) {
    GLOBAL const float *log_sum = walk->numbers->log_sum + accumulator_first(), *delta = walk->numbers->delta + accumulator_first();
    UNROLL for (int t = 0; t < 2; t++) {
        numbers->log_sum[t] = *(GLOBAL const f32x4 *)(log_sum + 4 * t);
        numbers->delta[t] = *(GLOBAL const f32x4 *)(delta + 4 * t);
    }
    GLOBAL const int *bounds = &walk->numbers->low_max + opaque(0); /* opaque: a wave would wait for values known to be uniform */
    numbers->low_max = bounds[0], numbers->first_high = bounds[1];
}

/* x = held times the transposed tile: [16 keys][32 queries]. */
INLINE void wave_products(Accumulator *x, const Operand *held, LOCAL const bf16 *tile, const int width) {
    UNROLL for (int t = 0; t < 2; t++) x->x[0][t] = 0;
    UNROLL for (int k = 0; k < width / MMA; k++) {
        Operand operand;
        operand_load(&operand, tile, width, 0, k * MMA);
        mma_rows(x, &held[k], &operand, WAVE_KEYS);
    }
}
/* sums += x, cast to bf16, times the tile. */
INLINE void wave_sums(Accumulator *sums, const Accumulator *x, LOCAL const bf16 *tile, const int width) {
    Operand weights;
    operand_of(&weights, x);
    UNROLL for (int n = 0; n < width / MMA; n++) {
        Operand operand;
        operand_load_transposed(&operand, tile, width, 0, n * MMA);
        mma_rows(&sums[n], &weights, &operand, WAVE_KEYS);
    }
}

/* Converts transposed scores (scaled, with their log-sum-exps) and dP^T to P^T and dS^T. */
INLINE void wave_weights(Accumulator *scores, Accumulator *d_weights, const WaveNumbers *numbers) {
    UNROLL for (int t = 0; t < 2; t++) {
        UNROLL for (int i = 0; i < 4; i++) scores->x[0][t][i] = fast_exp2(scores->x[0][t][i]);
        d_weights->x[0][t] = scores->x[0][t] * (d_weights->x[0][t] - numbers->delta[t]);
    }
}

/* Soft-caps scores and multiplies dP^T - delta by the derivative; deltas become 0. */
INLINE void wave_cap(const Attention *a, Accumulator *scores, Accumulator *d_weights, WaveNumbers *numbers) {
    UNROLL for (int c = 0; c < LANE_COLUMNS; c++)
        attention_cap_pair(a, scores, d_weights, 0, c, numbers->delta[accumulator_place(c) / 4][accumulator_place(c) % 4]);
    UNROLL for (int t = 0; t < 2; t++) numbers->delta[t] = 0;
}

/* Runs the pass of a block of 2 * s.pairs waves, with 16 keys each; half of the waves fetch each
 * matrix. */
INLINE void pass_of_waves(const AttentionGrad *g, PairShape s, const bool capped) {
    const int rows = 2 * s.pairs * WAVE_KEYS, threads = 2 * s.pairs * WAVE;
    const Attention *a = &g->attention;
    int part = block_x() % g->parts, head = block_x() / g->parts, sequence = head / a->kv_heads, kv_head = head % a->kv_heads;
    int first_key = block_y() * rows, wave = of_wave(wave_id()), key = first_key + wave * WAVE_KEYS;
    int64_t base = (int64_t)sequence * a->key_rows.rows;

    LOCAL bf16 *tiles = attention_tiles;
    Operand held[2][MOST_WIDTH / MMA];
    UNROLL for (int of_values = 0; of_values < 2; of_values++) {
        int dim = of_values ? a->v_dim : a->qk_dim;
        Source source =
            matrix_rows(of_values ? a->values : a->keys, a->key_stride, base + first_key, kv_head * dim, a->key_rows.rows - first_key, dim);
        tile_load(tiles, s.width, rows, threads, &source);
        barrier();
        UNROLL for (int k = 0; k < s.width / MMA; k++)
            operand_load_half(&held[of_values][k], tiles + wave * WAVE_KEYS * s.width, s.width, 0, k * MMA);
        barrier();
    }
    Accumulator d_keys[MOST_COLUMNS / MMA], d_values[MOST_COLUMNS / MMA];
    UNROLL for (int n = 0; n < s.width / MMA; n++) accumulator_clear(&d_keys[n]), accumulator_clear(&d_values[n]);

    const PairMatrix matrix = pair_matrix(g, wave < s.pairs);
    PairWalk walk = pair_walk_open(g, sequence, kv_head, part, first_key, rows);
    PairStage stage;
    WaveNumbers numbers;
    bool more = walk.last_tile >= walk.first_tile;
    if (more) {
        pair_walk_head(&walk, g, &matrix);
        pair_stage_begin(&stage, &walk, &matrix, s);
        wave_numbers(&numbers, &walk);
        pair_stage_end(&stage, tiles, &walk, &matrix, s);
    }
    for (int number = 0; more; number++) {
        const PairWalk at = walk;
        barrier();
        more = pair_walk_next(&walk, g, &matrix);
        pair_stage_begin(&stage, &walk, &matrix, s);
        LOCAL const bf16 *queries = tiles + pair_tile(s, number), *d_outs = queries + TILE * s.width;
        Accumulator scores, d_weights;
        wave_products(&scores, held[0], queries, s.width);
        wave_products(&d_weights, held[1], d_outs, s.width);
        if (capped) wave_cap(a, &scores, &d_weights, &numbers);
        UNROLL for (int t = 0; t < 2; t++) scores.x[0][t] = scores.x[0][t] * a->scale - numbers.log_sum[t];
        if (a->alibi > 0 || key < of_wave(numbers.low_max) || key + WAVE_KEYS - 1 > of_wave(numbers.first_high))
            mask_pair(&scores, WAVE_KEYS, arguments_again(a), at.numbers, at.head, key, at.tile * TILE);
        wave_weights(&scores, &d_weights, &numbers);
        wave_sums(d_values, &scores, d_outs, s.width);
        wave_sums(d_keys, &d_weights, queries, s.width);
        wave_numbers(&numbers, &walk);
        pair_stage_end(&stage, tiles + pair_tile(s, number + 1), &walk, &matrix, s);
    }
    g = arguments_again(g);
    pair_store(g, true, WAVE_KEYS, key, d_values, base, kv_head, part, 0, s.width);
    pair_store(g, false, WAVE_KEYS, key, d_keys, base, kv_head, part, 0, s.width);
}

INLINE void gradient_of_waves(const AttentionGrad *g, const int width, const int waves, const bool capped) {
    if (pair_in_chunks(&g->attention)) pass_of_waves(g, (PairShape){width, width, waves / 2, 2, true}, capped);
    else pass_of_waves(g, (PairShape){width, width, waves / 2, 2, false}, capped);
}

#endif
