/* The forward pass of attention on AMD, for gpu.c. A copy from memory stays in registers until its
 * tile may be overwritten, so it starts before the barrier that frees the tile: values before the
 * wait for keys, the next keys before the softmax. Narrow heads leave registers for twice as many
 * keys per tile, which halves the barriers. On gfx90a, heads of 128 columns have blocks of two
 * groups of waves that take turns at the matrix units. Owns no memory. */
#pragma once

#if defined __AMDGCN__

enum { MOST_KEYS = 2 * ATTENTION_KEYS };

/* Loads eight elements of a row as a chunk, one by one; zeros from `there` on. */
INLINE u32x4 load_chunk_by_elements(GLOBAL const bf16 *from, int there) {
    u32x4 chunk = {0, 0, 0, 0};
    _Pragma("clang loop unroll(disable)") for (int i = 0; i < 8; i++) {
        uint32_t element = i < there ? from[i] : 0;
        UNROLL for (int word = 0; word < 4; word++) chunk[word] = chunk[word] >> 16 | (word < 3 ? chunk[word + 1] : element) << 16;
    }
    return chunk;
}

/* Loads the queries of a wave, the rows from `first` on, directly into registers as operands.
 * Columns after the last are zero; rows after the last repeat it and are never stored. */
INLINE void hold_queries(Operand *held, const int width, const Attention *a, const AttentionPlace *p, int first) {
    /* With equal columns of queries and values, qk_dim tells; a test of strides too would spill. */
    bool in_chunks = (width < ATTENTION_MOST_WIDTH ? a->qk_dim : (int)a->query_stride | a->qk_dim) % 8 == 0;
    UNROLL for (int s = 0; s < 2; s++) {
        int row = min_int(first + (int)operand_row((unsigned)lane_id() % 16) + s * OPERAND_STEP, p->total - 1);
        GLOBAL const bf16 *from = a->queries + place_row(p, a, row) * a->query_stride + place_head(p, a, row) * a->qk_dim;
        UNROLL for (int k = 0; k < width / MMA; k++) {
            int column = k * MMA + lane_id() / 16 * 8;
            u32x4 chunk = {0, 0, 0, 0};
            if (!in_chunks) chunk = load_chunk_by_elements(from + column, a->qk_dim - column);
            else if (column < a->qk_dim) chunk = *(GLOBAL const u32x4 *)(from + column);
            held[k].half[s] = chunk;
        }
    }
}

/* Tells the compiler that rows of a source are whole chunks. Columns become a separate scalar:
 * otherwise the compiler would keep, and spill, all arguments that one load brings. */
INLINE void source_know_chunks(Source *source) {
    source->stride &= -8;
    source->columns = opaque_of_wave(source->columns) & -8;
}

/* Advances the source by `rows` rows. */
INLINE void source_advance(Source *source, int rows) {
    source->from += rows * source->stride;
    source->rows -= rows;
}

/* State that a wave keeps between tiles of keys. */
typedef struct Pass {
    Source keys, values;
    Stage keys_stage;
    Operand held[MOST_WIDTH / MMA];
    Softmax softmax;
    Accumulator out[MOST_COLUMNS / MMA];
    KeyBounds wave;
} Pass;

/* Ends products before a branch with a wait state that clang does not count. Where paths join, it
 * counts the wait states after an MFMA along one of them, and leaves one out along another;
 * tools/check-hazards found that in heads of 128 on gfx942. */
INLINE void end_products(void) {
    __builtin_amdgcn_sched_barrier(0);
    __asm__ volatile("s_nop 0");
}

/* Masks the scores of `count` keys in parts of ATTENTION_KEYS, whose positions are consecutive,
 * unless all rows see them. */
INLINE void mask_scores(
    Accumulator *scores, const int count, const Attention *a, const KeyBounds *wave, int key, const int rows, const int width) {
    if (bounds_cover(wave, key, key + count - 1)) return;
    a = arguments_again(a);
    AttentionPlace again = place_of_block(a, rows, width);
    int first = again.first + opaque_of_wave(wave_id()) * ATTENTION_ROWS;
    UNROLL for (int part = 0; part < count / ATTENTION_KEYS; part++) {
        int from = key + part * ATTENTION_KEYS;
        if (!bounds_cover(wave, from, from + ATTENTION_KEYS - 1))
            attention_mask(scores + part * KEY_BLOCKS, KEY_BLOCKS, ATTENTION_ROWS, a, again.base, again.head, first, again.total, from);
    }
}

/* Processes one tile of `count` keys from `key` on. It starts to load the values before it waits
 * for the keys, and the next keys before the softmax: loads into registers need no barrier. */
INLINE void attend_tile(Pass *p, const Attention *a, int key, const int width, const int columns, const int waves, const int count,
    const bool masked, const bool capped) {
    const int rows = waves * ATTENTION_ROWS, threads = waves * WAVE;
    LOCAL bf16 *keys = attention_tiles, *values = keys + count * width;
    Stage values_stage;
    columns_begin(&values_stage, values, columns, count, threads, &p->values);
    stage_end(&p->keys_stage, keys, width, count, threads, &p->keys, 0);
    barrier();
    Accumulator scores[MOST_KEYS / MMA];
    compute_scores(scores, count / MMA, ATTENTION_ROWS, p->held, NULL, keys, width);
    columns_end(&values_stage, values, columns, count, threads, &p->values, 0);
    barrier();
    source_advance(&p->keys, count);
    source_advance(&p->values, count);
    if (capped) attention_cap_scores(scores, count / MMA, ATTENTION_ROWS, a);
    if (masked) {
        end_products();
        mask_scores(scores, count, a, &p->wave, key, rows, width);
    }
    stage_begin(&p->keys_stage, keys, width, count, threads, &p->keys);
    if (masked && !bounds_touch(&p->wave, key, key + count - 1)) return;
    Operand weights[MOST_KEYS / MMA];
    softmax_step(&p->softmax, scores, weights, count / MMA, ATTENTION_ROWS, a->scale, p->out, columns / MMA);
    add_weighted_values(p->out, weights, count / MMA, ATTENTION_ROWS, values, columns);
}

/* -- Two groups of waves in turns ---------------------------------------------------------------------------------- */

/* Ends a turn. The two groups of waves reach a barrier at different places in the code. */
INLINE void end_turn(void) {
    __builtin_amdgcn_sched_barrier(0);
    barrier();
    __builtin_amdgcn_sched_barrier(0);
}

/* The constants of a pass in turns. */
typedef struct TurnShape { int width, columns, waves, count; } TurnShape;
INLINE int turn_threads(TurnShape s) { return s.waves * WAVE; }

/* Tiles of keys and of values are double-buffered, because the first half of a block's waves is a turn
 * ahead of the other half. */
INLINE LOCAL bf16 *turn_keys(int side, TurnShape s) { return attention_tiles + side * s.count * s.width; }
INLINE LOCAL bf16 *turn_values(int side, TurnShape s) { return turn_keys(2, s) + side * s.count * s.columns; }

/* Fills place 0 of the keys, and starts to load the first values and the second keys. */
INLINE void begin_turns(Pass *p, Stage *values_stage, bool later, TurnShape s) {
    stage_end(&p->keys_stage, turn_keys(0, s), s.width, s.count, turn_threads(s), &p->keys, 0);
    source_advance(&p->keys, s.count);
    columns_begin(values_stage, attention_tiles, s.columns, s.count, turn_threads(s), &p->values);
    stage_begin(&p->keys_stage, attention_tiles, s.width, s.count, turn_threads(s), &p->keys);
    end_turn();
    __builtin_amdgcn_s_setprio(0); /* tells the emulator that waves wait at different barriers */
    if (later) end_turn();
}

/* A tile of keys from `key` on, in place `side`. */
typedef struct TurnTile {
    int key, side;
    bool masked, capped;
} TurnTile;

/* Processes a tile in three turns: scores, softmax, products of values. While a wave computes the
 * softmax, the wave of the other group on its SIMD multiplies. Values are stored in the first turn
 * and keys of the next tile in the second: the later group stores its part a turn later, and the
 * first group reads the whole a turn after that. */
INLINE void attend_in_turns(Pass *p, Stage *values_stage, const Attention *a, TurnTile tile, TurnShape s) {
    const int threads = turn_threads(s), blocks = s.count / MMA;
    LOCAL bf16 *values = turn_values(tile.side, s);
    Accumulator scores[MOST_KEYS / MMA];
    Operand weights[MOST_KEYS / MMA];
    __builtin_amdgcn_s_setprio(1);
    columns_end(values_stage, values, s.columns, s.count, threads, &p->values, 0);
    source_advance(&p->values, s.count);
    columns_begin(values_stage, values, s.columns, s.count, threads, &p->values);
    compute_scores(scores, blocks, ATTENTION_ROWS, p->held, NULL, turn_keys(tile.side, s), s.width);
    __builtin_amdgcn_s_setprio(0);
    end_turn();
    stage_end(&p->keys_stage, turn_keys(1 - tile.side, s), s.width, s.count, threads, &p->keys, 0);
    source_advance(&p->keys, s.count);
    stage_begin(&p->keys_stage, attention_tiles, s.width, s.count, threads, &p->keys);
    if (tile.capped) attention_cap_scores(scores, blocks, ATTENTION_ROWS, a);
    if (tile.masked) {
        end_products();
        mask_scores(scores, s.count, a, &p->wave, tile.key, s.waves * ATTENTION_ROWS, s.width);
    }
    const bool touched = !tile.masked || bounds_touch(&p->wave, tile.key, tile.key + s.count - 1);
    if (touched) softmax_step(&p->softmax, scores, weights, blocks, ATTENTION_ROWS, a->scale, p->out, s.columns / MMA);
    end_turn();
    __builtin_amdgcn_s_setprio(1);
    if (touched) add_weighted_values(p->out, weights, blocks, ATTENTION_ROWS, values, s.columns);
    __builtin_amdgcn_s_setprio(0);
    end_turn();
}

/* -- The pass of a block ------------------------------------------------------------------------------------------- */

/* Runs the forward pass of a block: `width` columns of queries and keys, `columns` of the output.
 * Rows of keys and values are copied `in_chunks` of 16 bytes, or slowly by elements, for which
 * smaller tiles suffice. The numbers are constants at every call. Tiles that all rows see have a
 * loop of their own: in a common loop the compiler would copy sums between registers. Blocks of
 * ATTENTION_WAVES_IN_TURNS waves work in turns. */
INLINE void attend_by(
    const AttentionForward *f, const int width, const int columns, const int waves, const bool in_chunks, const bool capped) {
    const int rows = waves * ATTENTION_ROWS, threads = waves * WAVE;
    const int count = in_chunks ? attention_keys(WAVE, width) : ATTENTION_KEYS;
    const Attention *a = &f->attention;
    const AttentionPlace place = place_of_block(a, rows, width);
    int first = place.first + opaque_of_wave(wave_id()) * ATTENTION_ROWS;
    KeyBounds block = attention_bounds(a, place.base, place.first, rows, place.total);
    RowInterval chunk = keys_of_chunk(f, &block, place.chunk, count);
    Pass p = {.keys = keys_at(a, &place, chunk.low, chunk.high),
        .values = values_at(a, &place, chunk.low, chunk.high, place.part * columns, width),
        .wave = attention_bounds(a, place.base, first, ATTENTION_ROWS, place.total)};
    if (a->alibi > 0) block.low_max = p.wave.low_max = INT32_MAX; /* every tile needs its bias */
    if (in_chunks) {
        source_know_chunks(&p.keys);
        source_know_chunks(&p.values);
    }
    hold_queries(p.held, width, a, &place, first);
    stage_begin(&p.keys_stage, attention_tiles, width, count, threads, &p.keys);
    const bool turns = in_chunks && waves == ATTENTION_WAVES_IN_TURNS;
    const bool later = __builtin_amdgcn_readfirstlane(wave_id()) >= waves / 2; /* known to be the wave's: a branch without a mask */
    Stage values_stage;
    const TurnShape shape = {width, columns, waves, count};
    int side = 0;
    if (turns) begin_turns(&p, &values_stage, later, shape);
    softmax_clear(&p.softmax);
    UNROLL for (int n = 0; n < columns / MMA; n++) accumulator_clear(&p.out[n]);
    int seen = in_chunks ? block.low_max : INT32_MAX, seen_last = min_int(chunk.high, block.high_min - count + 1);
    for (int key = chunk.low; key <= chunk.high;) {
        for (; key <= chunk.high && (key < seen || key > seen_last); key += count) {
            if (turns) attend_in_turns(&p, &values_stage, a, (TurnTile){key, side, true, capped}, shape), side ^= 1;
            else attend_tile(&p, a, key, width, columns, waves, count, true, capped);
        }
        for (; in_chunks && key <= seen_last; key += count) {
            if (turns) attend_in_turns(&p, &values_stage, a, (TurnTile){key, side, false, capped}, shape), side ^= 1;
            else attend_tile(&p, a, key, width, columns, waves, count, false, capped);
        }
    }
    if (turns && !later) end_turn();
    f = arguments_again(f);
    AttentionPlace again = place_of_block(&f->attention, rows, width);
    store_attended_rows(f, &again, &p.softmax, p.out, columns);
}

INLINE void attend(const AttentionForward *f, const int width, const int columns, const int waves, const bool capped) {
    const Attention *a = &f->attention;
    const int dims = width < ATTENTION_MOST_WIDTH ? a->qk_dim : a->qk_dim | a->v_dim;
    if ((a->key_stride | dims) % 8 == 0) attend_by(f, width, columns, waves, true, capped);
    else attend_by(f, width, columns, waves, false, capped);
}

#endif
