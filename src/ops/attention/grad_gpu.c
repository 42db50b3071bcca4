/* The gradient of attention on a GPU (FlashAttention-2, arXiv 2307.08691), in two passes that each
 * recompute the weights from the results that the forward pass kept. Every output has one owner, so
 * sums have one order and nothing is added across blocks:
 *     P = exp(S - log_sum),  dP = dO V^T,  dS = P * (dP - delta),  delta = rowsum(dO * O)
 *     keys pass:    dV = P^T dO, dK = dS^T Q   a block owns keys, iterates over queries of all heads of its group
 *     queries pass: dQ = dS K                  a block owns queries of a head, iterates over keys
 * A first kernel computes delta and, for each tile of queries, the bounds of the keys that they
 * see; the keys pass uses them to skip tiles.
 *
 * The keys pass works on transposed scores, [key][query]: then P^T and dS^T are operands without
 * leaving registers. If sums of all columns of dK and dV do not fit in registers, `split` waves
 * share 32 keys: each computes the scores of its 32 queries of a tile and owns its share of the
 * columns, and they exchange P^T and dS^T through shared memory in register layout. On AMD two
 * waves share 32 keys in another way (gpu_grad_pairs_kernels.h); for narrow heads a wave has 16
 * keys (gpu_grad_waves_kernels.h). Results of more than 128 columns are cut into blocks of 128 in
 * both passes. NVIDIA's Hopper has other kernels for the widths in hopper_index
 * (gpu_grad_hopper_kernels.h, gpu_grad_wide_hopper_kernels.h). Scratch: delta (on AMD, TileNumbers
 * of each tile of queries), and two bounds per tile; on Hopper mainly dQ in fp32; on AMD and Hopper
 * also parts of dK and dV. */
#include "ops/attention/gpu_tile_kernels.h"
#include "ops/attention/gpu_grad_wide_hopper_kernels.h"

/* Queries of a tile in the keys pass, and words of a tile's numbers on AMD. */
#define GRAD_TILE(wave) ((wave) == 64 ? 32 : 64)
enum { GRAD_NUMBERS = 4 * 32 + 4 };

typedef struct AttentionGrad {
    Attention attention;
    GLOBAL const bf16 *d_out, *out;
    GLOBAL const float *log_sum;
    GLOBAL float *delta;                        /* [rows][heads]; on AMD TileNumbers */
    GLOBAL int32_t *reach;                      /* [sequences][tiles][2]: smallest and largest first key of a tile */
    GLOBAL bf16 *d_queries, *d_keys, *d_values; /* strides as for queries and keys */
    int32_t tiles;                              /* per sequence */
    int32_t parts;                              /* blocks that divide the heads of a group */
    int64_t rows;                               /* rows of keys, of all sequences */
    GLOBAL float *partial_keys;                 /* [parts][rows][kv_heads * (qk_dim + v_dim)] if parts > 1: dK and dV */
} AttentionGrad;

/* The gradient of sinks (scores.h), in two kernels. */
typedef struct AttentionSinks {
    GLOBAL const bf16 *d_out, *out;
    GLOBAL const float *log_sum, *sinks;
    GLOBAL float *parts, *d_sinks; /* [chunks][heads]; [heads], which is added to */
    int64_t rows;
    int32_t heads, v_dim, chunks;
} AttentionSinks;

enum { SINK_ROWS = 128 /* of a chunk */, SINK_THREADS = 256 };

#ifdef GPU_DEVICE

enum { MOST_WIDTH = ATTENTION_MOST_WIDTH, MOST_COLUMNS = ATTENTION_PART, TILE = GRAD_TILE(WAVE), DELTA_WAVES = 4 };

/* On AMD a wave holds the operands of its rows in registers. NVIDIA has too few registers, so it
 * reads them from shared memory each time. */
#define HOLDS (WAVE == 64)

/* -- Before both passes -------------------------------------------------------------------------------------------- */

#if defined __AMDGCN__

/* Numbers of the queries of a tile and a head for both passes, [sequences][heads][tiles] at
 * AttentionGrad.delta; infinity and zeros for missing queries. Last keys ascend. The log2-sum-exp
 * and delta of a query are at its number_place: eight of them in the order of a lane's eight
 * columns of an Accumulator. */
typedef struct TileNumbers {
    float log_sum[TILE], delta[TILE];
    int low[TILE], high[TILE];        /* first and last key */
    int low_max, first_high, none[2]; /* bounds of the keys that all queries see */
} TileNumbers;
_Static_assert(sizeof(TileNumbers) == GRAD_NUMBERS * sizeof(float), "the host's scratch has room for them");

INLINE int number_place(int query) { return query / 8 * 8 + accumulator_place(query % 8); }
INLINE GLOBAL TileNumbers *tile_numbers(const AttentionGrad *g, int sequence, int head, int tile) {
    return (GLOBAL TileNumbers *)g->delta + ((int64_t)sequence * g->attention.heads + head) * g->tiles + tile;
}

/* Stores all fields except delta, for the tile that begins with row `first`. */
INLINE void store_numbers(const AttentionGrad *g, GLOBAL TileNumbers *numbers, int64_t base, int head, int first, int low_max) {
    const Attention *a = &g->attention;
    int i = thread_id(), row = first + i;
    bool there = row < a->query_rows.rows;
    if (i >= TILE) return;
    RowInterval seen = attention_interval(a, base, there ? row : first);
    numbers->log_sum[number_place(i)] = there ? attention_log_sum(g->log_sum[(base + row) * a->heads + head]) : __builtin_inff();
    numbers->low[i] = there ? seen.low : 0;
    numbers->high[i] = seen.high;
    if (i == 0) numbers->low_max = low_max, numbers->first_high = seen.high;
}

/* Stores delta of as many rows at once as waves have lanes for: a lane takes eight columns. */
INLINE void store_deltas(const AttentionGrad *g, GLOBAL TileNumbers *numbers, int64_t base, int head, int first) {
    const Attention *a = &g->attention;
    int lanes = attention_width(a->v_dim, a->v_dim) / 8, rows = WAVE / lanes, column = lane_id() % lanes * 8;
    for (int i = wave_id() * rows + lane_id() / lanes; i < TILE; i += DELTA_WAVES * rows) {
        bool there = first + i < a->query_rows.rows && column < a->v_dim;
        int64_t at = ((base + first + i) * a->heads + head) * a->v_dim + column;
        float sum = 0;
        if (there && a->v_dim % 8 == 0) {
            u32x4 x = *(GLOBAL const u32x4 *)(g->d_out + at), y = *(GLOBAL const u32x4 *)(g->out + at);
            UNROLL for (int j = 0; j < 4; j++) sum += to_float_low(x[j]) * to_float_low(y[j]) + to_float_high(x[j]) * to_float_high(y[j]);
        } else if (there) {
            for (int j = 0; j < min_int(8, a->v_dim - column); j++) sum += to_float(g->d_out[at + j]) * to_float(g->out[at + j]);
        }
        for (int mask = lanes / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
        if (column == 0) numbers->delta[number_place(i)] = sum;
    }
}

#endif

/* Computes delta of each row and head, and bounds of each tile; one block per tile of queries and
 * head. */
KERNEL(attention_delta, AttentionGrad) {
    int sequence = block_x() / a.tiles, tile = block_x() % a.tiles, length = a.attention.query_rows.rows, first = tile * TILE;
    int64_t base = (int64_t)sequence * length;
    KeyBounds seen = attention_bounds(&a.attention, base, first, TILE, length);
    if (block_y() == 0 && thread_id() == 0) a.reach[2 * block_x()] = seen.low_min, a.reach[2 * block_x() + 1] = seen.low_max;
#if defined __AMDGCN__
    GLOBAL TileNumbers *numbers = tile_numbers(&a, sequence, block_y(), tile);
    store_numbers(&a, numbers, base, block_y(), first, seen.low_max);
    store_deltas(&a, numbers, base, block_y(), first);
#else
    for (int row = first + wave_id(); row < min_int(first + TILE, length); row += DELTA_WAVES) {
        int64_t at = (base + row) * a.attention.heads + block_y();
        GLOBAL const bf16 *d_out = a.d_out + at * a.attention.v_dim, *out = a.out + at * a.attention.v_dim;
        float sum = 0;
        if (a.attention.v_dim % 2 == 0) {
            for (int i = lane_id(); i < a.attention.v_dim / 2; i += WAVE) {
                uint32_t x = ((GLOBAL const uint32_t *)d_out)[i], y = ((GLOBAL const uint32_t *)out)[i];
                sum += to_float_low(x) * to_float_low(y) + to_float_high(x) * to_float_high(y);
            }
        } else {
            for (int i = lane_id(); i < a.attention.v_dim; i += WAVE) sum += to_float(d_out[i]) * to_float(out[i]);
        }
        sum = wave_sum(sum);
        if (lane_id() == 0) a.delta[at] = sum;
    }
#endif
}

/* Computes S and dP of a wave's 32 rows with 32 others, both sums over `width`. The wave's operands
 * are held in registers (held_x, held_y) or read from own_x, own_y. */
INLINE void scores_and_d_weights(Accumulator *scores, Accumulator *d_weights, const int width, const Operand *held_x, const Operand *held_y,
    LOCAL const bf16 *own_x, LOCAL const bf16 *own_y, LOCAL const bf16 *x, LOCAL const bf16 *y) {
    accumulator_clear(scores);
    accumulator_clear(d_weights);
    UNROLL for (int k = 0; k < width / MMA; k++) {
        Operand own, other;
        if (HOLDS) own = held_x[k];
        else operand_load(&own, own_x, width, 0, k * MMA);
        operand_load(&other, x, width, 0, k * MMA);
        mma(scores, &own, &other);
    }
    UNROLL for (int k = 0; k < width / MMA; k++) {
        Operand own, other;
        if (HOLDS) own = held_y[k];
        else operand_load(&own, own_y, width, 0, k * MMA);
        operand_load(&other, y, width, 0, k * MMA);
        mma(d_weights, &own, &other);
    }
}

/* Loads the wave's rows of a matrix into registers, through shared memory at `tile`. */
INLINE void load_held_rows(Operand *held, LOCAL bf16 *tile, const int width, const int rows, const int threads, const Source *source) {
    tile_load(tile, width, rows, threads, source);
    barrier();
    UNROLL for (int k = 0; k < width / MMA; k++) operand_load(&held[k], tile + wave_id() * MMA * width, width, 0, k * MMA);
    barrier();
}

/* -- The order of blocks ------------------------------------------------------------------------------------------- */

#if defined __gfx942__ || defined __gfx950__

/* Compute units of the target's usual card. Other cards with the target only get a less balanced
 * order. */
#if defined __gfx942__
enum { PROCESSORS = 304, CHIPLETS = 8 };
#else
enum { PROCESSORS = 256, CHIPLETS = 8 };
#endif

/* Blocks are assigned to chiplets and compute units in turn, longest first. If nearly all run at
 * once, the compute unit of the longest block would get the longest blocks of all rounds. So every
 * second round is reversed within each chiplet, whose caches hold its heads. Returns the number of
 * the block's work, of `count`. */
INLINE int balanced_number(const int number, const int count) {
    int round = number / PROCESSORS, place = number % PROCESSORS;
    if (round % 2 == 1 && (round + 1) * PROCESSORS <= count)
        place = (PROCESSORS / CHIPLETS - 1 - place / CHIPLETS) * CHIPLETS + place % CHIPLETS;
    return round * PROCESSORS + place;
}

#endif

/* -- Gradients of queries ------------------------------------------------------------------------------------------ */

INLINE int query_tiles(const Attention *a, const int rows) { return (a->query_rows.rows + rows - 1) / rows; }

/* The sequence and head that a block works on, and its tile of queries: tile 0 has the most
 * keys. */
#if defined __gfx942__ || defined __gfx950__ /* with the order of balanced_number, one die of gfx90a took 2% longer */
INLINE int query_columns(const AttentionGrad *g) { return (int)(g->rows / g->attention.key_rows.rows) * g->attention.heads; }
INLINE int query_number(const AttentionGrad *g, const int rows) {
    int columns = query_columns(g);
    return balanced_number(opaque_of_wave(block_y()) * columns + opaque_of_wave(block_x()), columns * query_tiles(&g->attention, rows));
}
INLINE int query_x(const AttentionGrad *g, const int rows, const int width) {
    return width <= 64 ? query_number(g, rows) % query_columns(g) : opaque_of_wave(block_x());
}
INLINE int query_y(const AttentionGrad *g, const int rows, const int width) {
    return width <= 64 ? query_number(g, rows) / query_columns(g) : opaque_of_wave(block_y());
}
#else
INLINE int query_x(const AttentionGrad *g, const int rows, const int width) {
    (void)g, (void)rows, (void)width;
    return opaque_of_wave(block_x());
}
INLINE int query_y(const AttentionGrad *g, const int rows, const int width) {
    (void)g, (void)rows, (void)width;
    return opaque_of_wave(block_y());
}
#endif

typedef struct QueryPlace {
    int64_t base, key_base;
    int head, kv_head, first, part;
} QueryPlace;

INLINE QueryPlace query_place(const AttentionGrad *g, const int rows, const int width) {
    const Attention *a = &g->attention;
    int x = query_x(g, rows, width), head = x % a->heads;
    return (QueryPlace){.base = (int64_t)(x / a->heads) * a->query_rows.rows,
        .key_base = (int64_t)(x / a->heads) * a->key_rows.rows,
        .head = head,
        .kv_head = head / (a->heads / a->kv_heads),
        .first = (query_tiles(a, rows) - 1 - query_y(g, rows, width)) * rows,
        .part = opaque_of_wave(block_z())};
}

INLINE Source matrix_rows(GLOBAL const bf16 *matrix, int64_t stride, int64_t row, int64_t column, int rows, int columns) {
    return (Source){matrix + row * stride + column, stride, rows, columns};
}

/* Soft-caps scores and converts dP to (dP - delta) times the derivative, before masks. */
INLINE void cap_rows(const Attention *a, Accumulator *scores, Accumulator *d_weights, const float *delta) {
    UNROLL for (int r = 0; r < LANE_ROWS; r++) UNROLL for (int c = 0; c < LANE_COLUMNS; c++)
        attention_cap_pair(a, scores, d_weights, r, c, delta[r]);
}

/* Converts scores from S to dS with the log-sum-exps and deltas of the rows; after cap_rows, deltas
 * are 0. */
INLINE void score_gradients(Accumulator *scores, const Accumulator *d_weights, float scale, const float *log_sum, const float *delta) {
    UNROLL for (int r = 0; r < LANE_ROWS; r++) UNROLL for (int c = 0; c < LANE_COLUMNS; c++) {
        float weight = fast_exp2(__builtin_fmaf(accumulator_get(scores, r, c), scale, -log_sum[r]));
        accumulator_set(scores, r, c, weight * (accumulator_get(d_weights, r, c) - delta[r]));
    }
}

INLINE void gradient_of_queries(const AttentionGrad *g, const int width, const int columns, const int waves, const bool capped) {
    const int rows = waves * MMA, threads = waves * WAVE, buffers = HOLDS ? 1 : 2;
    const Attention *a = &g->attention;
    QueryPlace place = query_place(g, rows, width);
    LOCAL bf16 *queries = attention_tiles, *d_outs = queries + (HOLDS ? 0 : rows * width), *tiles = d_outs + (HOLDS ? 0 : rows * width);
    int first = place.first + wave_id() * MMA;
    const int length = a->query_rows.rows;
    KeyBounds block = attention_bounds(a, place.base, place.first, rows, length);
    KeyBounds wave = attention_bounds(a, place.base, first, MMA, length);

    Operand held_queries[MOST_WIDTH / MMA], held_d_outs[MOST_WIDTH / MMA];
    int64_t row = place.base + place.first, out_stride = (int64_t)a->heads * a->v_dim;
    Source q = matrix_rows(a->queries, a->query_stride, row, place.head * a->qk_dim, length - place.first, a->qk_dim);
    Source d = matrix_rows(g->d_out, out_stride, row, place.head * a->v_dim, length - place.first, a->v_dim);
    if (HOLDS)
        load_held_rows(held_queries, queries, width, rows, threads, &q), load_held_rows(held_d_outs, d_outs, width, rows, threads, &d);
    else tile_load(queries, width, rows, threads, &q), tile_load(d_outs, width, rows, threads, &d);
    float log_sum[LANE_ROWS], delta[LANE_ROWS];
    UNROLL for (int r = 0; r < LANE_ROWS; r++) {
        int row = min_int(first + accumulator_row(r), length - 1);
#if defined __AMDGCN__
        GLOBAL const TileNumbers *numbers = tile_numbers(g, (int)(place.base / a->query_rows.rows), place.head, row / TILE);
        log_sum[r] = numbers->log_sum[number_place(row % TILE)];
        delta[r] = numbers->delta[number_place(row % TILE)];
#else
        int64_t number = (place.base + row) * a->heads + place.head;
        log_sum[r] = attention_log_sum(g->log_sum[number]);
        delta[r] = g->delta[number];
#endif
    }
    Accumulator sums[MOST_COLUMNS / MMA];
    UNROLL for (int n = 0; n < columns / MMA; n++) accumulator_clear(&sums[n]);

    int key = block.low_min / MMA * MMA, last = block.high_max;
    int64_t key_column = place.kv_head * a->qk_dim, value_column = place.kv_head * a->v_dim;
    Stage k_stage, v_stage;
    LOCAL bf16 *keys = tiles, *values = tiles + MMA * width;
    Source k = matrix_rows(a->keys, a->key_stride, place.key_base + key, key_column, last + 1 - key, a->qk_dim);
    Source v = matrix_rows(a->values, a->key_stride, place.key_base + key, value_column, last + 1 - key, a->v_dim);
    if (key <= last) {
        stage_begin(&k_stage, keys, width, MMA, threads, &k);
        stage_begin(&v_stage, values, width, MMA, threads, &v);
    }
    for (int buffer = 0; key <= last; key += MMA) {
        stage_end(&k_stage, keys, width, MMA, threads, &k, 0);
        stage_end(&v_stage, values, width, MMA, threads, &v, 0);
        barrier();
        buffer = (buffer + 1) % buffers;
        LOCAL bf16 *next = tiles + buffer * 2 * MMA * width;
        if (key + MMA <= last) {
            k = matrix_rows(
                a->keys, a->key_stride, place.key_base + opaque_of_wave(key) + MMA, key_column, last + 1 - key - MMA, a->qk_dim);
            v = matrix_rows(
                a->values, a->key_stride, place.key_base + opaque_of_wave(key) + MMA, value_column, last + 1 - key - MMA, a->v_dim);
            stage_begin(&k_stage, next, width, MMA, threads, &k);
            stage_begin(&v_stage, next + MMA * width, width, MMA, threads, &v);
        }
        if (bounds_touch(&wave, key, key + MMA - 1)) {
            Accumulator scores, d_weights;
            int own = wave_id() * MMA * width;
            scores_and_d_weights(&scores, &d_weights, width, held_queries, held_d_outs, queries + own, d_outs + own, keys, values);
            if (capped) cap_rows(a, &scores, &d_weights, delta);
            if (a->alibi > 0 || !bounds_cover(&wave, key, key + MMA - 1)) {
                const Attention *call = arguments_again(a);
                QueryPlace again = query_place(arguments_again(g), rows, width);
                attention_mask(&scores, 1, MMA, call, again.base, again.head, again.first + opaque_of_wave(wave_id()) * MMA,
                    call->query_rows.rows, key);
            }
            score_gradients(&scores, &d_weights, a->scale, log_sum, capped ? (float[LANE_ROWS]){0} : delta);
            Operand d_scores, operand;
            operand_of(&d_scores, &scores);
            LOCAL const bf16 *part = keys + block_z() * columns;
            UNROLL for (int n = 0; n < columns / MMA; n++) {
                operand_load_transposed(&operand, part, width, 0, n * MMA);
                mma(&sums[n], &d_scores, &operand);
            }
        }
        if (buffers == 1) barrier();
        keys = next, values = next + MMA * width;
    }
    g = arguments_again(g), a = &g->attention;
    place = query_place(g, rows, width);
    UNROLL for (int r = 0; r < LANE_ROWS; r++) {
        int row = place.first + wave_id() * MMA + accumulator_row(r);
        GLOBAL bf16 *to = g->d_queries + (place.base + row) * a->query_stride + place.head * a->qk_dim;
        UNROLL for (int n = 0; n < columns / MMA; n++) attention_store(
            to, a->query_stride, &sums[n], r, place.part * columns + n * MMA, a->qk_dim, a->scale * LN_2, row < a->query_rows.rows);
    }
}

/* -- Gradients of keys and values ---------------------------------------------------------------------------------- */

INLINE GLOBAL const int32_t *reach_of(const AttentionGrad *g, int sequence, int tile) {
    return g->reach + 2 * ((int64_t)sequence * g->tiles + tile);
}

/* Returns the last tile from `first` on that sees a key up to `last_key`, or -1. */
INLINE int last_touched_tile(const AttentionGrad *g, int sequence, int first, int last_key) {
    int last = -1;
    for (int tile = first + lane_id(); tile < g->tiles; tile += WAVE)
        if (reach_of(g, sequence, tile)[0] <= last_key) last = tile;
    UNROLL for (int mask = WAVE / 2; mask > 0; mask /= 2) last = max_int(last, (int)shuffle(last, lane_id() ^ mask));
    return last;
}

#if defined __NVPTX__

/* Iteration of the keys pass: over the heads of the group, and within each over the tiles of
 * queries in order. */
typedef struct KeyWalk { int sequence, head, heads_left, first_tile, tile, last_tile; } KeyWalk;

INLINE bool walk_next(KeyWalk *walk) {
    if (walk->tile++ < walk->last_tile) return true;
    walk->tile = walk->first_tile;
    walk->head++;
    return --walk->heads_left > 0;
}

/* Numbers of a tile's queries in shared memory. Last keys ascend. */
typedef struct RowTile {
    float log_sum[TILE], delta[TILE];
    int low[TILE], high[TILE];
} RowTile;
/* Adds the ALiBi bias to transposed scores [32 keys][32 queries] and sets masked ones to -inf;
 * queries start at `query`, row `at` of the tile. */
INLINE void mask_keys(Accumulator *scores, const Attention *a, int head, int key, int query, LOCAL const RowTile *rows, int at) {
    float slope = attention_slope(a, head);
    if (a->alibi > 0) UNROLL for (int c = 0; c < LANE_COLUMNS; c++) UNROLL for (int r = 0; r < LANE_ROWS; r++) {
            int token = token_of_row(&a->key_rows, key + accumulator_row(r));
            int distance = token - token_of_row(&a->query_rows, query + accumulator_column(c));
            accumulator_set(scores, r, c, accumulator_get(scores, r, c) + slope * (float)distance);
        }
    UNROLL for (int c = 0; c < LANE_COLUMNS; c++) {
        int column = at + accumulator_column(c), low = rows->low[column], high = rows->high[column];
        UNROLL for (int r = 0; r < LANE_ROWS; r++) {
            int number = key + accumulator_row(r);
            accumulator_set(scores, r, c, number >= low && number <= high ? accumulator_get(scores, r, c) : -__builtin_inff());
        }
    }
}

/* A tile in flight: one query's numbers in each thread, and the largest first key of all
 * queries. */
typedef struct QueryStage {
    Stage queries, d_outs;
    Source q, d;
    float log_sum, delta;
    int low, low_max;
} QueryStage;

/* Queries after the last one get weights of zero. */
INLINE void query_stage_begin(
    QueryStage *stage, LOCAL bf16 *tile, const int width, const int threads, const AttentionGrad *g, const KeyWalk *walk) {
    const Attention *a = &g->attention;
    int first = opaque_of_wave(walk->tile) * TILE, length = a->query_rows.rows, rows = length - first, row = first + thread_id() % TILE;
    int64_t base = (int64_t)walk->sequence * length, at = (base + row) * a->heads + walk->head;
    stage->q = matrix_rows(a->queries, a->query_stride, base + first, walk->head * a->qk_dim, rows, a->qk_dim);
    stage->d = matrix_rows(g->d_out, (int64_t)a->heads * a->v_dim, base + first, walk->head * a->v_dim, rows, a->v_dim);
    stage_begin(&stage->queries, tile, width, TILE, threads, &stage->q);
    stage_begin(&stage->d_outs, tile + TILE * width, width, TILE, threads, &stage->d);
    stage->log_sum = row < length ? attention_log_sum(g->log_sum[at]) : __builtin_inff();
    stage->delta = row < length ? g->delta[at] : 0;
    stage->low = row < length ? attention_interval(a, base, row).low : 0;
    stage->low_max = reach_of(g, walk->sequence, walk->tile)[1];
}
/* `first` is the tile's first query. */
INLINE void query_stage_end(
    const QueryStage *stage, LOCAL bf16 *tile, LOCAL RowTile *rows, const int width, const int threads, const Attention *a, int first) {
    stage_end(&stage->queries, tile, width, TILE, threads, &stage->q, 0);
    stage_end(&stage->d_outs, tile + TILE * width, width, TILE, threads, &stage->d, 0);
    if (thread_id() >= TILE) return;
    rows->log_sum[thread_id()] = stage->log_sum;
    rows->delta[thread_id()] = stage->delta;
    rows->low[thread_id()] = stage->low;
    rows->high[thread_id()] = attention_last_key(a, token_of_row(&a->query_rows, first + thread_id()));
}

/* cap_rows for transposed scores. */
INLINE void cap_columns(const Attention *a, Accumulator *scores, Accumulator *d_weights, LOCAL const RowTile *rows, int at) {
    UNROLL for (int c = 0; c < LANE_COLUMNS; c++) UNROLL for (int r = 0; r < LANE_ROWS; r++)
        attention_cap_pair(a, scores, d_weights, r, c, rows->delta[at + accumulator_column(c)]);
}

/* Converts transposed scores to P^T and dS^T as operands. */
INLINE void weights_and_gradients(Accumulator *scores, Accumulator *d_weights, float scale, LOCAL const RowTile *rows, int at,
    const bool capped, Operand *weights, Operand *d_scores) {
    UNROLL for (int c = 0; c < LANE_COLUMNS; c++) {
        int column = at + accumulator_column(c);
        float log_sum = rows->log_sum[column], delta = capped ? 0 : rows->delta[column];
        UNROLL for (int r = 0; r < LANE_ROWS; r++) {
            float weight = fast_exp2(__builtin_fmaf(accumulator_get(scores, r, c), scale, -log_sum));
            accumulator_set(d_weights, r, c, weight * (accumulator_get(d_weights, r, c) - delta));
            accumulator_set(scores, r, c, weight);
        }
    }
    operand_of(weights, scores);
    operand_of(d_scores, d_weights);
}

/* d_values += P^T dO and d_keys += dS^T Q over 32 queries, for `columns` columns from `queries` and
 * `d_outs` on. */
INLINE void add_key_gradients(Accumulator *d_keys, Accumulator *d_values, const Operand *weights, const Operand *d_scores,
    LOCAL const bf16 *queries, LOCAL const bf16 *d_outs, const int width, const int columns) {
    UNROLL for (int n = 0; n < columns / MMA; n++) {
        Operand operand;
        operand_load_transposed(&operand, d_outs, width, 0, n * MMA);
        mma(&d_values[n], weights, &operand);
    }
    UNROLL for (int n = 0; n < columns / MMA; n++) {
        Operand operand;
        operand_load_transposed(&operand, queries, width, 0, n * MMA);
        mma(&d_keys[n], d_scores, &operand);
    }
}

/* Constants of a keys pass: `split` waves share 32 keys, each with columns / split of the block's
 * `columns`; split is 1, or 2 with tiles of 64 queries. `capped`: scores have a soft-cap. */
typedef struct KeysShape {
    int width, columns, waves, split, buffers;
    bool capped;
} KeysShape;

/* Runs the keys pass of a block. */
INLINE void gradient_of_keys(const AttentionGrad *g, const KeysShape s) {
    const int width = s.width, columns = s.columns, waves = s.waves, split = s.split, buffers = s.buffers;
    const int rows = waves / split * MMA, threads = waves * WAVE, own_columns = columns / split;
    const bool early = buffers == 2; /* the next tile can be in flight while this one is processed */
    const Attention *a = &g->attention;
    int sequence = block_x() / a->kv_heads, kv_head = block_x() % a->kv_heads, group = a->heads / a->kv_heads, first_key = block_y() * rows;
    int64_t base = (int64_t)sequence * a->key_rows.rows;
    int share = wave_id() % split, own = wave_id() / split * MMA, key = first_key + own;

    LOCAL bf16 *keys = attention_tiles, *values = keys + rows * width, *tiles = values + rows * width;
    LOCAL u32x4 *exchange = (LOCAL u32x4 *)(tiles + buffers * 2 * TILE * width);
    LOCAL RowTile *row_tiles = (LOCAL RowTile *)(exchange + (split > 1 ? waves * 2 * sizeof(Operand) / 16 * WAVE : 0));
    Operand held_keys[MOST_WIDTH / MMA], held_values[MOST_WIDTH / MMA];
    Source k = matrix_rows(a->keys, a->key_stride, base + first_key, kv_head * a->qk_dim, a->key_rows.rows - first_key, a->qk_dim);
    Source v = matrix_rows(a->values, a->key_stride, base + first_key, kv_head * a->v_dim, a->key_rows.rows - first_key, a->v_dim);
    tile_load(keys, width, rows, threads, &k);
    tile_load(values, width, rows, threads, &v);

    Accumulator d_keys[MOST_COLUMNS / MMA], d_values[MOST_COLUMNS / MMA];
    UNROLL for (int n = 0; n < own_columns / MMA; n++) accumulator_clear(&d_keys[n]), accumulator_clear(&d_values[n]);

    int first_tile = attention_first_query(a, first_key) / TILE;
    KeyWalk walk = {.sequence = sequence, .head = kv_head * group, .heads_left = group, .first_tile = first_tile, .tile = first_tile};
    walk.last_tile = last_touched_tile(g, sequence, walk.first_tile, first_key + rows - 1);
    QueryStage stage;
    LOCAL bf16 *tile = tiles;
    bool more = walk.last_tile >= walk.first_tile;
    if (more) query_stage_begin(&stage, tile, width, threads, g, &walk);
    for (int buffer = 0; more;) {
        LOCAL RowTile *row_tile = row_tiles + buffer;
        query_stage_end(&stage, tile, row_tile, width, threads, a, walk.tile * TILE);
        barrier();
        int query = walk.tile * TILE, head = walk.head, low_max = stage.low_max;
        buffer = (buffer + 1) % buffers;
        LOCAL bf16 *next = tiles + buffer * 2 * TILE * width;
        more = walk_next(&walk);
        if (early && more) query_stage_begin(&stage, next, width, threads, g, &walk);

        LOCAL const bf16 *queries = tile, *d_outs = tile + TILE * width;
        const int column = block_z() * columns + share * own_columns;
        Operand weights, d_scores;
        for (int at = share * MMA; at < (split > 1 ? share + 1 : TILE / MMA) * MMA; at += MMA) {
            Accumulator scores, d_weights;
            scores_and_d_weights(&scores, &d_weights, width, held_keys, held_values, keys + own * width, values + own * width,
                queries + at * width, d_outs + at * width);
            if (s.capped) cap_columns(a, &scores, &d_weights, row_tile, at);
            if (a->alibi > 0 || key < low_max || key + MMA - 1 > row_tile->high[at])
                mask_keys(&scores, a, head, key, query + at, row_tile, at);
            weights_and_gradients(&scores, &d_weights, a->scale, row_tile, at, s.capped, &weights, &d_scores);
            if (split > 1) {
                operand_to_shared(exchange + wave_id() * 2 * sizeof(Operand) / 16 * WAVE, &weights);
                operand_to_shared(exchange + (wave_id() * 2 + 1) * sizeof(Operand) / 16 * WAVE, &d_scores);
            }
            add_key_gradients(
                d_keys, d_values, &weights, &d_scores, queries + at * width + column, d_outs + at * width + column, width, own_columns);
        }
        if (split > 1) {
            int other = wave_id() ^ 1, at = (share ^ 1) * MMA;
            barrier();
            operand_from_shared(&weights, exchange + other * 2 * sizeof(Operand) / 16 * WAVE);
            operand_from_shared(&d_scores, exchange + (other * 2 + 1) * sizeof(Operand) / 16 * WAVE);
            add_key_gradients(
                d_keys, d_values, &weights, &d_scores, queries + at * width + column, d_outs + at * width + column, width, own_columns);
        }
        if (buffers == 1) barrier();
        if (!early && more) query_stage_begin(&stage, next, width, threads, g, &walk);
        tile = next;
    }
    UNROLL for (int r = 0; r < LANE_ROWS; r++) {
        int at = key + accumulator_row(r);
        GLOBAL bf16 *keys_to = g->d_keys + (base + at) * a->key_stride + kv_head * a->qk_dim;
        GLOBAL bf16 *values_to = g->d_values + (base + at) * a->key_stride + kv_head * a->v_dim;
        UNROLL for (int n = 0; n < own_columns / MMA; n++) {
            int column = block_z() * columns + share * own_columns + n * MMA;
            attention_store(keys_to, a->key_stride, &d_keys[n], r, column, a->qk_dim, a->scale * LN_2, at < a->key_rows.rows);
            attention_store(values_to, a->key_stride, &d_values[n], r, column, a->v_dim, 1, at < a->key_rows.rows);
        }
    }
}

#endif

#include "ops/attention/gpu_grad_pairs_kernels.h"
#include "ops/attention/gpu_grad_waves_kernels.h"

/* Kernels exist once per width, and once with a soft-cap. `share`: waves that share a SIMD on AMD. */
#define QUERIES_PASS(width, columns, waves, share)              \
    KERNEL(attention_queries_##width, AttentionGrad) {          \
        WAVE_BOUNDS((waves) * WAVE, share);                     \
        gradient_of_queries(&a, width, columns, waves, false);  \
    }                                                           \
    KERNEL(attention_queries_capped_##width, AttentionGrad) {   \
        WAVE_BOUNDS((waves) * WAVE, share);                     \
        gradient_of_queries(&a, width, columns, waves, true);   \
    }

QUERIES_PASS(32, 32, 4, 2)
QUERIES_PASS(64, 64, 4, 3)
QUERIES_PASS(128, 128, 4, SHARE_OF_128)
QUERIES_PASS(256, 128, 2, 1)
#if defined __AMDGCN__
#define KEYS_PASS(width, columns, pairs, buffers)                        \
    KERNEL(attention_keys_##width, AttentionGrad) {                      \
        WAVE_BOUNDS(2 * (pairs) * WAVE, 2);                              \
        gradient_of_pairs(&a, width, columns, pairs, buffers, false);    \
    }                                                                    \
    KERNEL(attention_keys_capped_##width, AttentionGrad) {               \
        WAVE_BOUNDS(2 * (pairs) * WAVE, 2);                              \
        gradient_of_pairs(&a, width, columns, pairs, buffers, true);     \
    }
#define NARROW_KEYS_PASS(width)                              \
    KERNEL(attention_keys_##width, AttentionGrad) {          \
        WAVE_BOUNDS(4 * WAVE, 4);                            \
        gradient_of_waves(&a, width, 4, false);              \
    }                                                        \
    KERNEL(attention_keys_capped_##width, AttentionGrad) {   \
        WAVE_BOUNDS(4 * WAVE, 4);                            \
        gradient_of_waves(&a, width, 4, true);               \
    }
NARROW_KEYS_PASS(32)
NARROW_KEYS_PASS(64)
KEYS_PASS(128, 128, 4, 2)
KEYS_PASS(256, 128, 4, 1)
#else
#define KEYS_PASS(width, columns, waves, split, buffers)                                                                           \
    KERNEL(attention_keys_##width, AttentionGrad) { gradient_of_keys(&a, (KeysShape){width, columns, waves, split, buffers, false}); }          \
    KERNEL(attention_keys_capped_##width, AttentionGrad) { gradient_of_keys(&a, (KeysShape){width, columns, waves, split, buffers, true}); }
KEYS_PASS(32, 32, 4, 1, 2)
KEYS_PASS(64, 64, 4, 1, 2)
KEYS_PASS(128, 128, 8, 2, 2)
KEYS_PASS(256, 128, 4, 2, 1)
#endif

/* -- Gradients of sinks -------------------------------------------------------------------------------------------- */

/* Sums exp(sink - log_sum) * delta over a chunk of rows of a head: a wave takes every n-th row. */
KERNEL(attention_sink_parts, AttentionSinks) {
    static SHARED float sums[SINK_THREADS / WAVE];
    int64_t first = (int64_t)block_x() * SINK_ROWS, head = block_y();
    float sink = a.sinks[head] * LOG2_E, sum = 0;
    for (int64_t row = first + wave_id(); row < first + SINK_ROWS && row < a.rows; row += SINK_THREADS / WAVE) {
        int64_t at = row * a.heads + head;
        GLOBAL const bf16 *d_out = a.d_out + at * a.v_dim, *out = a.out + at * a.v_dim;
        float delta = 0;
        for (int i = lane_id(); i < a.v_dim; i += WAVE) delta += to_float(d_out[i]) * to_float(out[i]);
        sum += fast_exp2(sink - a.log_sum[at] * LOG2_E) * wave_sum(delta);
    }
    if (lane_id() == 0) sums[wave_id()] = sum;
    barrier();
    if (thread_id() > 0) return;
    for (int i = 1; i < SINK_THREADS / WAVE; i++) sum += sums[i];
    a.parts[block_x() * (int64_t)a.heads + head] = sum;
}

/* Adds the chunks of a head; one wave per head. */
KERNEL(attention_sink_sums, AttentionSinks) {
    float sum = 0;
    for (int i = lane_id(); i < a.chunks; i += WAVE) sum += a.parts[(int64_t)i * a.heads + block_x()];
    sum = wave_sum(sum);
    if (lane_id() == 0) a.d_sinks[block_x()] -= sum;
}

/* -- After a pass over keys whose heads were shared out ------------------------------------------------------------- */

/* Adds the parts of eight columns of a row in order. */
KERNEL(attention_key_sums, AttentionGrad) {
    const Attention *h = &a.attention;
    int64_t columns = (int64_t)h->kv_heads * (h->qk_dim + h->v_dim), number = ((int64_t)block_x() * 256 + thread_id()) * 8;
    if (number >= a.rows * columns) return;
    GLOBAL const float *from = a.partial_keys + number;
    GLOBAL bf16 *to = a.d_keys + number / columns * h->key_stride + number % columns;
    UNROLL for (int i = 0; i < 2; i++) {
        f32x4 sum = 0;
        for (int part = 0; part < a.parts; part++) sum += *(GLOBAL const f32x4 *)(from + part * a.rows * columns + i * 4);
        *(GLOBAL u32x2 *)(to + i * 4) = (u32x2){to_bf16_pair(sum.x, sum.y), to_bf16_pair(sum.z, sum.w)};
    }
}

#if defined __CUDA_ARCH_FEAT_SM90_ALL
#define HOPPER(width)                                                                                                               \
    KERNEL(attention_rows_hopper_##width, AttentionGradHopper) { hopper_rows(&a, width, grad_shape(width).tile); }                  \
    KERNEL(attention_items_hopper_##width, AttentionGradHopper) { hopper_items(&a, grad_shape(width)); }                            \
    KERNEL(attention_grad_hopper_##width, AttentionGradHopper) {                                                                    \
        BLOCK_BOUNDS((GRAD_GROUPS + 1) * WARPGROUP, 1);                                                                             \
        hopper_gradient(&a, ARGUMENTS_ADDRESS(attention_grad_hopper_##width), grad_shape(width), false);                            \
    }                                                                                                                               \
    KERNEL(attention_grad_hopper_capped_##width, AttentionGradHopper) {                                                             \
        BLOCK_BOUNDS((GRAD_GROUPS + 1) * WARPGROUP, 1);                                                                             \
        hopper_gradient(&a, ARGUMENTS_ADDRESS(attention_grad_hopper_capped_##width), grad_shape(width), true);                      \
    }                                                                                                                               \
    KERNEL(attention_round_hopper_##width, AttentionGradHopper) { hopper_queries_round(&a, grad_shape(width)); }
HOPPER(64)
HOPPER(128)
#define WIDE(name, qk_dim, v_dim, capped)                                                                           \
    KERNEL(attention_wide_keys_##name, AttentionGradHopper) {                                                       \
        BLOCK_BOUNDS((GRAD_GROUPS + 1) * WARPGROUP, 1);                                                             \
        wide_keys_pass(&a, ARGUMENTS_ADDRESS(attention_wide_keys_##name), hopper_shape(qk_dim, v_dim, HOPPER_GROUPS), capped);     \
    }                                                                                                               \
    KERNEL(attention_wide_queries_##name, AttentionGradHopper) {                                                    \
        BLOCK_BOUNDS((GRAD_GROUPS + 1) * WARPGROUP, 1);                                                             \
        wide_queries_pass(&a, ARGUMENTS_ADDRESS(attention_wide_queries_##name), hopper_shape(qk_dim, v_dim, HOPPER_GROUPS), capped); \
    }
WIDE(192, 192, 128, false)
WIDE(256, 256, 256, false)
WIDE(capped_192, 192, 128, true)
WIDE(capped_256, 256, 256, true)
KERNEL(attention_wide_rows_192, AttentionGradHopper) { hopper_rows(&a, 128, WIDE_TILE); }
KERNEL(attention_wide_rows_256, AttentionGradHopper) { hopper_rows(&a, 256, WIDE_TILE); }
#endif

#else

#include "ops/attention/attention.h"

LAUNCHER(attention_delta, AttentionGrad)
LAUNCHER(attention_key_sums, AttentionGrad)
LAUNCHER(attention_sink_parts, AttentionSinks)
LAUNCHER(attention_sink_sums, AttentionSinks)
LAUNCHERS(queries, AttentionGrad, attention_queries_32, attention_queries_64, attention_queries_128, attention_queries_256,
    attention_queries_capped_32, attention_queries_capped_64, attention_queries_capped_128, attention_queries_capped_256)
LAUNCHERS(keys, AttentionGrad, attention_keys_32, attention_keys_64, attention_keys_128, attention_keys_256, attention_keys_capped_32,
    attention_keys_capped_64, attention_keys_capped_128, attention_keys_capped_256)
LAUNCHERS(hopper_rows, AttentionGradHopper, attention_rows_hopper_64, attention_rows_hopper_128)
LAUNCHERS(hopper_items, AttentionGradHopper, attention_items_hopper_64, attention_items_hopper_128)
LAUNCHERS(hopper_grad, AttentionGradHopper, attention_grad_hopper_64, attention_grad_hopper_128, attention_grad_hopper_capped_64,
    attention_grad_hopper_capped_128)
LAUNCHERS(hopper_round, AttentionGradHopper, attention_round_hopper_64, attention_round_hopper_128)
LAUNCHERS(wide_rows, AttentionGradHopper, attention_wide_rows_192, attention_wide_rows_256)
LAUNCHERS(wide_queries, AttentionGradHopper, attention_wide_queries_192, attention_wide_queries_256, attention_wide_queries_capped_192,
    attention_wide_queries_capped_256)
LAUNCHERS(wide_keys, AttentionGradHopper, attention_wide_keys_192, attention_wide_keys_256, attention_wide_keys_capped_192,
    attention_wide_keys_capped_256)

/* Constants of the keys passes above, which determine the shared memory of a block. */
typedef struct KeysPass { int waves, split, buffers; } KeysPass;

static KeysPass keys_constants(int wave, int width) {
    static const KeysPass amd[] = {{4, 2, 2}, {4, 2, 2}, {8, 2, 2}, {8, 2, 1}}, nvidia[] = {{4, 1, 2}, {4, 1, 2}, {8, 2, 2}, {4, 2, 1}};
    return (wave == 64 ? amd : nvidia)[attention_width_index(width)];
}

/* The number of blocks that divide the heads of a group on AMD: several if one per group leaves
 * compute units idle, more if blocks are short. Their sums take about as much memory as those of
 * Hopper's kernels. */
static bool can_part(const Heads *heads) { return heads->heads / heads->kv_heads % 4 == 0 && (heads->qk_dim | heads->v_dim) % 8 == 0; }
static int32_t most_parts(const Heads *heads) { return !can_part(heads) ? 1 : attention_width(heads->qk_dim, heads->v_dim) <= 64 ? 4 : 2; }
static int32_t parts_of(const Device *device, const AttentionGrad *g, int64_t blocks) {
    const Attention *a = &g->attention;
    Heads heads = {a->heads, a->kv_heads, a->qk_dim, a->v_dim};
    bool few = blocks < 4 * (int64_t)device_info(device)->processors;
    return device_info(device)->wave == 64 && few && a->key_stride % 8 == 0 ? most_parts(&heads) : 1;
}

static void queries_pass(Device *device, const AttentionGrad *g, int64_t sequences) {
    const Attention *a = &g->attention;
    int wave = device_info(device)->wave, width = attention_width(a->qk_dim, a->v_dim), waves = width == 256 ? 2 : 4,
        rows = waves * ATTENTION_ROWS;
    int elements = wave == 64 ? rows * width : 2 * rows * width + 2 * 2 * ATTENTION_ROWS * width;
    LaunchShape shape = {.x = sequences * a->heads,
        .y = divide_up(a->query_rows.rows, rows),
        .z = attention_parts(width, a->qk_dim),
        .threads = waves * wave,
        .shared = elements * (int)sizeof(bf16)};
    launch_queries(device, attention_kernel_index(a, width), shape, g);
}

static void add_parts(Device *device, const AttentionGrad *g) {
    int64_t elements = g->rows * g->attention.kv_heads * (g->attention.qk_dim + g->attention.v_dim);
    if (g->parts > 1) launch_attention_key_sums(device, (LaunchShape){.x = divide_up(elements, 8 * 256), .threads = 256}, g);
}

static void keys_pass(Device *device, const AttentionGrad *g, int64_t sequences) {
    const Attention *a = &g->attention;
    int wave = device_info(device)->wave, width = attention_width(a->qk_dim, a->v_dim), tile = GRAD_TILE(wave);
    KeysPass pass = keys_constants(wave, width);
    int rows = pass.waves / pass.split * ATTENTION_ROWS;
    int tiles = pass.buffers * 2 * tile * width * (int)sizeof(bf16), own = rows * width * (int)sizeof(bf16);
    int exchange = pass.split == 1 || (wave == 64 && width <= 64)
                       ? 0
                       : rows * ATTENTION_ROWS * (int)(wave == 64 ? 2 * sizeof(float) : 4 * sizeof(bf16));
    int queries = wave == 64 ? 0 : pass.buffers * tile * (int)(2 * sizeof(float) + 2 * sizeof(int32_t)),
        others = tiles + exchange + queries;
    LaunchShape shape = {.x = sequences * a->kv_heads,
        .y = divide_up(a->key_rows.rows, rows),
        .z = attention_parts(width, (int)int_max(a->qk_dim, a->v_dim)),
        .threads = pass.waves * wave,
        .shared = wave == 64 ? int_max(own, others) : 2 * own + others};
    AttentionGrad parted = *g;
    parted.parts = parts_of(device, g, shape.x * shape.y * shape.z);
    shape.x *= parted.parts;
    launch_keys(device, attention_kernel_index(a, width), shape, &parted);
    add_parts(device, &parted);
}

/* Return whether heads use the passes of gpu_grad_wide_hopper_kernels.h; the keys of a block; the
 * queries of a tile. */
static bool is_wide(int64_t qk_dim) { return qk_dim > 128; }
static int hopper_block_keys(const Heads *heads) { return is_wide(heads->qk_dim) ? WIDE_KEYS : GRAD_KEYS; }
static int hopper_tile(const Heads *heads) { return is_wide(heads->qk_dim) ? WIDE_TILE : grad_shape((int)heads->qk_dim).tile; }

/* Returns the parts that divide the heads of a group on Hopper: as many as give two blocks of keys
 * per multiprocessor, so that each gets a mix of short and long blocks. */
static int32_t hopper_parts(int64_t sequences, int64_t keys, const Heads *heads) {
    enum { ENOUGH = 2 * 128 };
    int64_t blocks = sequences * heads->kv_heads * divide_up(keys, hopper_block_keys(heads));
    int32_t parts = 1, group = heads->heads / heads->kv_heads;
    while (parts * blocks < ENOUGH && group % (2 * parts) == 0) parts *= 2;
    return parts;
}

/* Scratch of the Hopper kernels: sums of dQ at 0, then byte offsets of the list of items,
 * HopperRows, marks with the next item, and parts of dK and dV. Wide heads have only HopperRows and
 * parts. */
typedef struct HopperScratch { int64_t places, list_at, rows_at, marks_at, parts_at, bytes; } HopperScratch;
static HopperScratch hopper_scratch(int64_t sequences, int64_t queries, int64_t keys, const Heads *heads) {
    bool wide = is_wide(heads->qk_dim);
    int tile = hopper_tile(heads);
    int64_t parts = hopper_parts(sequences, keys, heads), blocks = sequences * heads->kv_heads * parts * divide_up(keys, GRAD_KEYS);
    HopperScratch s = {.places = sequences * heads->heads * divide_up(queries, tile)};
    s.list_at = wide ? 0 : s.places * GRAD_GROUPS * GRAD_PART * (int64_t)sizeof(float);
    s.rows_at = s.list_at + (wide ? 0 : blocks * (int64_t)sizeof(GradItem));
    s.marks_at = s.rows_at + s.places * (tile / 64) * (int64_t)sizeof(HopperRows);
    s.parts_at = round_up(s.marks_at + (wide ? 0 : (s.places + 1) * (int64_t)sizeof(int32_t)), 16);
    s.bytes = s.parts_at + (parts > 1 ? parts * sequences * keys * heads_kv_columns(heads) * (int64_t)sizeof(float) : 0);
    return s;
}

/* Returns all fields except the tensor maps. */
static AttentionGradHopper hopper_arguments(const AttentionGrad *g, char *scratch, int64_t sequences, int processors) {
    const Attention *a = &g->attention;
    const Heads heads = {a->heads, a->kv_heads, a->qk_dim, a->v_dim};
    HopperScratch at = hopper_scratch(sequences, a->query_rows.rows, a->key_rows.rows, &heads);
    int32_t parts = hopper_parts(sequences, a->key_rows.rows, &heads);
    int64_t groups = sequences * a->kv_heads * parts, blocks = divide_up(a->key_rows.rows, hopper_block_keys(&heads));
    /* The number of concurrent groups that fill the multiprocessors: more would not stay in the
     * cache. Twice as many if a group is one head, because such groups wait less. */
    int64_t fill = processors * (a->heads == a->kv_heads * parts ? 2 : 1) / blocks, at_once = fill > 0 ? fill : 1;
    int64_t head_bytes = (a->qk_dim + a->v_dim) * (int64_t)sizeof(bf16), group = a->heads / a->kv_heads;
    return (AttentionGradHopper){.attention = *a,
        .d_out = g->d_out,
        .out = g->out,
        .log_sum = g->log_sum,
        .sums = (float *)scratch,
        .list = (GradItem *)(scratch + at.list_at),
        .rows = (HopperRows *)(scratch + at.rows_at),
        .marks = is_wide(a->qk_dim) ? NULL : (int32_t *)(scratch + at.marks_at),
        .partial_keys = (float *)(scratch + at.parts_at),
        .key_rows = sequences * a->key_rows.rows,
        .parts = parts,
        .next = (int32_t *)(scratch + at.marks_at) + at.places,
        .d_queries = g->d_queries,
        .d_keys = g->d_keys,
        .tiles = (int32_t)divide_up(a->query_rows.rows, hopper_tile(&heads)),
        .blocks = (int32_t)blocks,
        .items = (int32_t)(groups * blocks),
        .chunks = (int32_t)(2 * divide_up(groups, 2 * at_once)),
        .all_heads = (int32_t)(sequences * a->heads),
        .query_section = attention_section(a->key_rows.rows * head_bytes, group, sequences * a->heads),
        .section = attention_section(a->query_rows.rows * head_bytes * (group / parts), 1, groups)};
}

/* Launches the one pass of narrow heads, and its kernels before and after. */
static void launch_narrow(Device *device, const AttentionGradHopper *hopper, int64_t sequences, int processors) {
    const Attention *a = &hopper->attention;
    int index = a->qk_dim == 128;
    GradShape shape = grad_shape(a->qk_dim);
    LaunchShape rows = {.x = sequences * hopper->tiles * (shape.tile / 64), .y = a->heads, .threads = 128};
    LaunchShape items = {.x = hopper->items, .threads = 32};
    LaunchShape pass = {
        .x = hopper->items < processors ? hopper->items : processors, .threads = (GRAD_GROUPS + 1) * 128, .shared = grad_shared(shape)};
    LaunchShape round = {.x = sequences * hopper->tiles, .y = a->heads, .threads = GRAD_GROUPS * 128};
    launch_hopper_rows(device, index, rows, hopper);
    launch_hopper_items(device, index, items, hopper);
    launch_hopper_grad(device, index + 2 * (a->limit > 0), pass, hopper);
    launch_hopper_round(device, index, round, hopper);
}

/* Launches both passes of wide heads. */
static void launch_wide(Device *device, const AttentionGradHopper *hopper, int64_t sequences) {
    const Attention *a = &hopper->attention;
    HopperShape shape = hopper_shape(a->qk_dim, a->v_dim, HOPPER_GROUPS);
    int index = a->qk_dim == 256, capped = 2 * (a->limit > 0), threads = (GRAD_GROUPS + 1) * 128;
    LaunchShape rows = {.x = sequences * hopper->tiles, .y = a->heads, .threads = 128};
    LaunchShape queries = {.x = hopper->all_heads * divide_up(a->query_rows.rows, HOPPER_ROWS), .threads = threads};
    LaunchShape keys = {.x = hopper->items, .threads = threads, .shared = wide_keys_shared(shape)};
    queries.shared = wide_queries_shared(shape);
    launch_wide_rows(device, index, rows, hopper);
    launch_wide_queries(device, index + capped, queries, hopper);
    launch_wide_keys(device, index + capped, keys, hopper);
}

/* Launches the Hopper kernels; returns false if device or shape do not allow them. */
static bool launch_grad_on_hopper(const OpCall *call, const AttentionGrad *g, int64_t sequences) {
    const Attention *a = &g->attention;
    int processors = device_info(call->device)->processors;
    bool recovers = a->limit <= 0 || a->alibi <= 0; /* the soft-cap's derivative from weights (cap_slope) */
    bool fits = recovers && hopper_index(a->qk_dim, a->v_dim) >= 0 &&
                ((uintptr_t)g->out | (uintptr_t)g->d_queries | (uintptr_t)call->workspace) % 16 == 0;
    int64_t columns = (int64_t)a->heads * a->v_dim;
    TensorMap queries, keys, d_out;
    if (!fits || !attention_maps(call->device, &queries, &keys, a, sequences) ||
        !attention_map(call->device, &d_out, g->d_out, a->query_rows.rows, columns, columns, sequences))
        return false;
    AttentionGradHopper hopper = hopper_arguments(g, call->workspace, sequences, processors);
    hopper.queries = queries, hopper.keys = keys, hopper.d_out_map = d_out;
    if (is_wide(a->qk_dim)) launch_wide(call->device, &hopper, sequences);
    else launch_narrow(call->device, &hopper, sequences, processors);
    AttentionGrad parted = *g;
    parted.parts = hopper.parts;
    parted.partial_keys = hopper.partial_keys;
    add_parts(call->device, &parted);
    return true;
}

/* Scratch of the other kernels: byte offsets of the bounds of tiles (enough for the smallest tiles)
 * and of parts of sums. */
typedef struct GradScratch { int64_t reach_at, parts_at, bytes; } GradScratch;
static GradScratch grad_scratch(int64_t sequences, int64_t queries, int64_t keys, const Heads *heads) {
    GradScratch s = {.reach_at = sequences * divide_up(queries, 32) * heads->heads * GRAD_NUMBERS * (int64_t)sizeof(float)};
    s.parts_at = round_up(s.reach_at + sequences * divide_up(queries, 32) * 2 * (int64_t)sizeof(int32_t), 16);
    s.bytes = s.parts_at + (can_part(heads) ? most_parts(heads) * sequences * keys * heads_kv_columns(heads) * (int64_t)sizeof(float) : 0);
    return s;
}

/* Returns scratch for the most demanding pass, because the device is not known here. */
static int64_t attention_grad_gpu_workspace(const Graph *graph, const Node *node) {
    const AttentionSpec *spec = node->attributes;
    int64_t queries = token_rows(spec->length, spec->queries.ranks, spec->queries.rank).rows,
            keys = token_rows(spec->length, spec->keys.ranks, spec->keys.rank).rows;
    int64_t sequences = graph_rows(graph, node->in[ATTENTION_QKV]) / queries;
    int64_t bytes = grad_scratch(sequences, queries, keys, &spec->heads).bytes;
    if (hopper_index((int)spec->heads.qk_dim, (int)spec->heads.v_dim) < 0) return bytes;
    int64_t hopper = hopper_scratch(sequences, queries, keys, &spec->heads).bytes;
    return hopper > bytes ? hopper : bytes;
}

/* Adds the gradients of the sinks. Their scratch is that of later passes, which need more. */
static void add_sink_gradients(const OpCall *call, int64_t rows) {
    const Heads *h = &((const AttentionSpec *)call->attributes)->heads;
    AttentionSinks sinks = {.d_out = call->in[ATTENTION_GRAD_D_OUT],
        .out = call->in[ATTENTION_GRAD_OUT],
        .log_sum = call->in[ATTENTION_GRAD_LOG_SUM],
        .sinks = call->in[ATTENTION_SINKS],
        .parts = call->workspace,
        .d_sinks = call->out[ATTENTION_GRAD_D_SINKS],
        .rows = rows,
        .heads = (int32_t)h->heads,
        .v_dim = (int32_t)h->v_dim,
        .chunks = (int32_t)divide_up(rows, SINK_ROWS)};
    launch_attention_sink_parts(call->device, (LaunchShape){.x = sinks.chunks, .y = h->heads, .threads = SINK_THREADS}, &sinks);
    launch_attention_sink_sums(call->device, (LaunchShape){.x = h->heads, .threads = device_info(call->device)->wave}, &sinks);
}

GPU_OP(attention_grad, attention_grad_gpu_workspace) {
    Attention attention = attention_of(call);
    int64_t rows = call->in_shape[ATTENTION_QKV][0], length = attention.query_rows.rows, sequences = rows / length,
            queries = (int64_t)attention.heads * attention.qk_dim;
    int tile = GRAD_TILE(device_info(call->device)->wave);
    bf16 *d_qkv = call->out[ATTENTION_GRAD_D_QKV], *d_kv = call->out[ATTENTION_GRAD_D_KV];
    bf16 *d_keys = d_kv ? d_kv : d_qkv + queries;
    const GradScratch at = grad_scratch(sequences, length, attention.key_rows.rows, &((const AttentionSpec *)call->attributes)->heads);
    char *scratch = call->workspace;
    AttentionGrad g = {.attention = attention,
        .d_out = call->in[ATTENTION_GRAD_D_OUT],
        .out = call->in[ATTENTION_GRAD_OUT],
        .log_sum = call->in[ATTENTION_GRAD_LOG_SUM],
        .delta = (float *)scratch,
        .reach = (int32_t *)(scratch + at.reach_at),
        .d_queries = d_qkv,
        .d_keys = d_keys,
        .d_values = d_keys + attention.kv_heads * attention.qk_dim,
        .tiles = (int32_t)divide_up(length, tile),
        .rows = sequences * attention.key_rows.rows,
        .parts = 1,
        .partial_keys = (float *)(scratch + at.parts_at)};
    if (attention.sinks && call->out[ATTENTION_GRAD_D_SINKS]) add_sink_gradients(call, rows);
    if (launch_grad_on_hopper(call, &g, sequences)) return;
    LaunchShape shape = {.x = sequences * g.tiles, .y = attention.heads, .threads = 4 * device_info(call->device)->wave};
    launch_attention_delta(call->device, shape, &g);
    queries_pass(call->device, &g, sequences);
    keys_pass(call->device, &g, sequences);
}

#endif
