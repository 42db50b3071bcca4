/* Attention over a key-value cache, or a rank's part of one, on a GPU. A first kernel writes the
 * new rows' keys and values to the cache (append_gpu.c). A forward pass then uses the cache as its
 * keys, with all heads of a group packed into a tile, so that even one new row reads each key only
 * once. A last kernel joins the results over chunks of keys, and over ranks.
 *
 * Many rows, as in a prompt, use the forward pass of gpu.c. Up to 16 packed rows, as for one new
 * token, use the pass of this file (flash decoding). It is bound by memory bandwidth, which needs
 * tens of KB in flight on each multiprocessor. So each wave of a block has all rows and its own
 * tiles of keys, which it copies without waiting for other waves, and the block joins its waves'
 * results in order.
 *
 * The keys that a row sees are cut into as many chunks as fill the GPU once, however full the cache
 * is. So bits depend on shapes, the row's position and the number of multiprocessors of the GPU. With
 * device_set_exact there is one chunk, and the forward pass of gpu.c for any number of rows: its tiles of
 * keys begin at the sequence's first key, so a row has the bits of the pass without a cache. Without
 * device_set_exact, many rows in one chunk also use the pass of gpu.c.
 * Scratch: the output and log-sum-exp of each chunk. */
#include "backend/gpu/vector.h"
#include "ops/attention/gpu_forward_kernels.h"
#include "ops/attention/append.h"

/* Results over parts of the keys, for chunks or ranks: outputs [parts][rows][heads][v_dim] and
 * their log2-sum-exp2 [parts][rows][heads]. Strides between parts and between rows are in elements.
 * The joined result goes to `out`, or to `part` (op_attention_part) if that is not NULL. */
typedef struct AttentionJoin {
    GLOBAL const float *outs, *sums;
    GLOBAL const float *sinks; /* of the heads, which the result counts; NULL: none */
    int64_t part_of_outs, row_of_outs, part_of_sums, row_of_sums;
    GLOBAL bf16 *out;
    GLOBAL float *part;
    int32_t heads, v_dim, parts;
} AttentionJoin;

enum {
    JOIN_THREADS = 256,
    FEW_ROWS = 16,   /* packed rows per wave */
    FEW_KEYS = 32,   /* keys in a wave's tile */
    FEW_STRIDE = 36, /* floats between rows when a block joins its waves; not 32, to avoid bank conflicts in shared memory */
    PLACES = 2,      /* blocks per processor */
};

/* few_waves: waves of a block for few rows, by the width of its tiles. few_tiles: tiles per wave.
 * NVIDIA has three: one of keys and one of values in use or in flight, and one of the next keys.
 * AMD, where copies in flight are in registers, has only the one in use. For widths from 128 on, a
 * block has 96 KB and 32 KB. */
static inline int few_waves(int width) { return width == 256 ? 2 : 4; }
static inline int few_tiles(int wave) { return wave == 64 ? 1 : 3; }

#ifdef GPU_DEVICE

_Static_assert(
    (int)ATTENTION_KEYS == BLOCK_CYCLIC_ROWS && BLOCK_CYCLIC_ROWS % FEW_KEYS == 0, "positions of a tile of keys are consecutive");
_Static_assert((int)FEW_KEYS == MMA, "one block of scores");

/* -- Few rows ------------------------------------------------------------------------------------------------------ */

/* Stores the sum over waves, in order, of column `column` of row `row`: as the result, or, if chunks
 * are joined, as the chunk's part. The waves' parts are in `outs`, FEW_STRIDE * FEW_ROWS apart,
 * weighted by their maxima and sums [waves][FEW_ROWS]. */
INLINE void store_few(const AttentionForward *f, const AttentionPlace *p, LOCAL const float *maxima, LOCAL const float *sums,
    LOCAL const float *outs, const int waves, int row, int column) {
    const Attention *a = &f->attention;
    float largest = -__builtin_inff(), total = 0, out = 0;
    UNROLL for (int w = 0; w < waves; w++) largest = __builtin_fmaxf(largest, maxima[w * FEW_ROWS + row]);
    float base = largest == -__builtin_inff() ? 0 : largest * a->scale;
    UNROLL for (int w = 0; w < waves; w++) {
        float weight = fast_exp2(maxima[w * FEW_ROWS + row] * a->scale - base);
        total += weight * sums[w * FEW_ROWS + row];
        out += weight * outs[w * FEW_ROWS * FEW_STRIDE];
    }
    int64_t at = ((int64_t)p->chunk * f->rows + place_row(p, a, row)) * a->heads + place_head(p, a, row);
    if (f->partial_out) {
        if (column < a->v_dim) f->partial_out[at * a->v_dim + column] = total == 0 ? 0 : out / total;
        if (column == 0) f->partial_sum[at] = total == 0 ? -__builtin_inff() : base + fast_log2(total);
    } else if (column < a->v_dim) {
        float share = a->sinks ? score_sink(base + fast_log2(total), a->sinks[place_head(p, a, row)] * LOG2_E).share : 1;
        f->out[at * a->v_dim + column] = to_bf16(total == 0 ? 0 : out / total * share);
    }
}

/* Joins the waves of a block, MMA columns at a time, through the memory of their tiles. */
INLINE void join_waves(
    const AttentionForward *f, const AttentionPlace *p, const Softmax *softmax, const Accumulator *out, const int width, const int waves) {
    LOCAL float *maxima = (LOCAL float *)attention_tiles, *sums = maxima + waves * FEW_ROWS, *outs = sums + waves * FEW_ROWS;
    int own = wave_id() * FEW_ROWS;
    barrier();
    UNROLL for (int r = 0; r < lane_rows(FEW_ROWS); r++) {
        float sum = lanes_sum(softmax->sum[r]);
        if (accumulator_first() == 0) maxima[own + lane_row(FEW_ROWS, r)] = softmax->maximum[r], sums[own + lane_row(FEW_ROWS, r)] = sum;
    }
    UNROLL for (int n = 0; n < width / MMA; n++) {
        UNROLL for (int r = 0; r < lane_rows(FEW_ROWS); r++) UNROLL for (int c = 0; c < LANE_COLUMNS; c++)
            outs[(own + lane_row(FEW_ROWS, r)) * FEW_STRIDE + accumulator_column(c)] = accumulator_get(&out[n], r, c);
        barrier();
        for (int i = thread_id(); i < p->total * MMA; i += waves * WAVE)
            store_few(f, p, maxima, sums, outs + i / MMA * FEW_STRIDE + i % MMA, waves, i / MMA, n * MMA + i % MMA);
        barrier();
    }
}

/* Runs the forward pass of a block over its chunk of keys; the waves take its tiles in turn. */
INLINE void attend_few(const AttentionForward *f, const int width, const int waves, const bool capped) {
    const int step = waves * FEW_KEYS, size = FEW_KEYS * width, tiles = few_tiles(WAVE);
    const Attention *a = &f->attention;
    const AttentionPlace place = place_of_block(a, FEW_ROWS, ATTENTION_PART);
    KeyBounds seen = attention_bounds(a, place.base, 0, FEW_ROWS, place.total);
    RowInterval chunk = keys_of_chunk(f, &seen, place.chunk, FEW_KEYS);
    int key = of_wave(chunk.low + wave_id() * FEW_KEYS);

    /* Tiles: current keys, values, next keys. */
    LOCAL bf16 *keys = attention_tiles + wave_id() * tiles * size, *values = keys + 1 % tiles * size, *next = keys + 2 % tiles * size;
    Stage keys_stage, values_stage;
    Source keys_source = keys_at(a, &place, key, chunk.high), values_source = values_at(a, &place, key, chunk.high, 0, width);
    stage_begin(&keys_stage, keys, width, FEW_KEYS, WAVE, &keys_source);
    columns_begin(&values_stage, values, width, FEW_KEYS, WAVE, &values_source);

    /* Queries pass through the memory for the first wave's next keys. */
    Operand queries[MOST_WIDTH / MMA];
    LOCAL bf16 *passage = attention_tiles + (tiles - 1) * size;
    load_queries(passage, width, FEW_ROWS, waves * WAVE, a, &place);
    barrier();
    UNROLL for (int k = 0; k < width / MMA; k++) operand_load_half(&queries[k], passage, width, 0, k * MMA);
    barrier();
    Softmax softmax;
    softmax_clear(&softmax);
    Accumulator out[MOST_WIDTH / MMA];
    UNROLL for (int n = 0; n < width / MMA; n++) accumulator_clear(&out[n]);
    for (; key <= chunk.high; key += step) {
        stage_end(&keys_stage, keys, width, FEW_KEYS, WAVE, &keys_source, 1);
        wave_barrier();
        keys_source = keys_at(a, &place, key + step, chunk.high);
        stage_begin(&keys_stage, next, width, FEW_KEYS, WAVE, &keys_source);
        Accumulator scores;
        compute_scores(&scores, 1, FEW_ROWS, queries, NULL, keys, width);
        if (capped) attention_cap_scores(&scores, 1, FEW_ROWS, a);
        wave_barrier();
        columns_end(&values_stage, values, width, FEW_KEYS, WAVE, &values_source, 1);
        wave_barrier();
        values_source = values_at(a, &place, key + step, chunk.high, 0, width);
        columns_begin(&values_stage, keys, width, FEW_KEYS, WAVE, &values_source);
        if (a->alibi > 0 || !bounds_cover(&seen, key, key + FEW_KEYS - 1))
            attention_mask(&scores, 1, FEW_ROWS, a, place.base, place.head, 0, place.total, key);
        Operand weights;
        softmax_step(&softmax, &scores, &weights, 1, FEW_ROWS, a->scale, out, width / MMA);
        add_weighted_values(out, &weights, 1, FEW_ROWS, values, width);
        wave_barrier();
        LOCAL bf16 *used = values;
        values = keys, keys = next, next = used;
    }
    columns_end(&values_stage, values, width, FEW_KEYS, WAVE, &values_source, 0); /* zeros after the last key */
    join_waves(f, &place, &softmax, out, width, waves);
}

#define FEW(width)                                           \
    KERNEL(attention_few_##width, AttentionForward) {        \
        WAVE_BOUNDS(256, width == 256 ? 1 : PLACES);         \
        attend_few(&a, width, few_waves(width), false);      \
    }                                                        \
    KERNEL(attention_few_capped_##width, AttentionForward) { \
        WAVE_BOUNDS(256, width == 256 ? 1 : PLACES);         \
        attend_few(&a, width, few_waves(width), true);       \
    }
FEW(32)
FEW(64)
FEW(128)
FEW(256)

/* -- Joining ------------------------------------------------------------------------------------------------------- */

/* out = sum over parts of their output, weighted by their share of the sum of exponentials, which
 * is 0 without a key; one block per row and head. Its threads form n groups. Each group covers all
 * columns, `unit` per thread, and adds every n-th part; then the first group adds the groups' sums
 * in order. */
INLINE void join_parts(const AttentionJoin *a, const int unit) {
    static SHARED f32x4 group_sums[JOIN_THREADS];
    static SHARED float group_totals[JOIN_THREADS];
    int64_t row = block_x() / a->heads, head = block_x() % a->heads;
    int units = a->v_dim / unit, groups = JOIN_THREADS / units, group = thread_id() / units, column = thread_id() % units * unit;
    GLOBAL const float *sums = a->sums + row * a->row_of_sums + head, *outs = a->outs + row * a->row_of_outs + head * a->v_dim + column;
    float largest = -__builtin_inff(), total = 0;
    for (int i = lane_id(); i < a->parts; i += WAVE) largest = __builtin_fmaxf(largest, sums[i * a->part_of_sums]);
    largest = wave_max(largest);
    float base = largest == -__builtin_inff() ? 0 : largest;
    f32x4 sum = {0, 0, 0, 0};
    if (group < groups) {
        _Pragma("clang loop unroll_count(4)") for (int i = group; i < a->parts; i += groups) {
            float weight = fast_exp2(sums[i * a->part_of_sums] - base);
            total += weight;
            sum += weight * load4_wide(outs + i * a->part_of_outs, unit);
        }
    }
    group_sums[thread_id()] = sum;
    group_totals[thread_id()] = total;
    barrier();
    if (group > 0) return;
    for (int i = 1; i < groups; i++) {
        sum += group_sums[i * units + thread_id()];
        total += group_totals[i * units];
    }
    float factor = total == 0 ? 0 : 1 / total, log_sum = base + fast_log2(total);
    if (a->sinks) {
        ScoreSink joined = score_sink(log_sum, a->sinks[head] * LOG2_E);
        factor *= joined.share, log_sum = joined.log_sum;
    }
    sum *= factor;
    GLOBAL float *part = a->part + row * a->heads * (a->v_dim + 1);
    if (a->part) store4_wide(part + head * a->v_dim + column, sum, unit);
    else store4_bf16(a->out + (int64_t)block_x() * a->v_dim + column, sum, unit);
    if (a->part && thread_id() == 0) part[(int64_t)a->heads * a->v_dim + head] = log_sum;
}

UNIT_KERNELS(attention_join, AttentionJoin, join_parts, 4)

#else

#include "ops/attention/attention.h"

enum { MOST_PLACES = 640 /* of any GPU; scratch must suffice for all */ };

LAUNCHERS(attention_few, AttentionForward, attention_few_32, attention_few_64, attention_few_128, attention_few_256,
    attention_few_capped_32, attention_few_capped_64, attention_few_capped_128, attention_few_capped_256)
LAUNCHERS(attention_join, AttentionJoin, attention_join_1, attention_join_4)

/* Returns whether the rows of each sequence are few. */
static bool are_few(const AttentionSpec *spec) { return spec->length * (spec->heads.heads / spec->heads.kv_heads) <= FEW_ROWS; }

/* Returns the number of chunks into which the keys of a cache of `context` rows are cut for the new
 * rows of `sequences` sequences, if a GPU has room for `places` blocks; it does not decrease with
 * `places`. Returns one if many rows' blocks take at least a quarter of the places: joining costs
 * more. */
static int64_t chunks_of(const AttentionSpec *spec, int64_t sequences, int64_t context, int64_t places) {
    const Heads *heads = &spec->heads;
    bool few = are_few(spec);
    int64_t tiles = divide_up(spec->length * (heads->heads / heads->kv_heads), few ? FEW_ROWS : ATTENTION_WAVES * ATTENTION_ROWS),
            blocks = tiles * heads->kv_heads * sequences;
    int64_t most = divide_up(context, ATTENTION_CHUNK_TILES * (few ? FEW_KEYS : ATTENTION_KEYS));
    if (!few && 4 * blocks >= places) return 1;
    return int_max(int_min(places / blocks, most), 1);
}

/* Returns whether a kernel joins results of chunks, or writes a single one as a rank's part. */
static bool are_joined(int64_t chunks, BlockCyclic cyclic) { return chunks > 1 || cyclic.ranks > 1; }

static int64_t cached_gpu_workspace(const Graph *graph, const Node *node) {
    const AttentionSpec *spec = node->attributes;
    int64_t rows = graph_rows(graph, node->in[ATTENTION_QKV]), context = graph_rows(graph, node->out[ATTENTION_CACHED_CACHE]);
    int64_t chunks = chunks_of(spec, rows / spec->length, context, MOST_PLACES);
    if (!are_joined(chunks, attention_block_cyclic(graph->mesh))) return 0;
    return chunks * rows * attention_part_columns(&spec->heads) * (int64_t)sizeof(float);
}

static void launch_few(Device *device, const AttentionForward *forward, int64_t sequences) {
    const Attention *a = &forward->attention;
    int wave = device_info(device)->wave, width = attention_width(a->qk_dim, a->v_dim), waves = few_waves(width);
    int tiles = waves * few_tiles(wave) * FEW_KEYS * width * (int)sizeof(bf16),
        sums = waves * FEW_ROWS * (FEW_STRIDE + 2) * (int)sizeof(float);
    LaunchShape shape = {
        .x = sequences * a->kv_heads, .z = forward->chunks, .threads = waves * wave, .shared = tiles > sums ? tiles : sums};
    launch_attention_few(device, attention_kernel_index(a, width), shape, forward);
}

/* Uses four columns per thread if all rows are aligned to four. */
static void join_rows(Device *device, int64_t rows, const AttentionJoin *join) {
    int64_t part_columns = join->part ? (int64_t)join->heads * (join->v_dim + 1) : 0;
    bool fours = (join->v_dim | join->row_of_outs | join->part_of_outs | part_columns) % 4 == 0;
    launch_attention_join(device, fours, (LaunchShape){.x = rows * join->heads, .threads = JOIN_THREADS}, join);
}

/* Launches the pass that op attention has on this device if it takes a cache and is not attention_launch. */
static bool launch_whole(Device *device, AttentionForward forward, int64_t sequences, int64_t context) {
    if (forward.attention.query_rows.rows > 1) forward.attention.packed = 1;
    return attention_launch_hopper(device, &forward, sequences, context);
}

GPU_OP(attention_cached, cached_gpu_workspace, attention_append_absorbs) {
    const AttentionSpec *spec = call->attributes;
    const Heads *h = &spec->heads;
    int64_t rows = call->in_shape[ATTENTION_QKV][0], sequences = rows / spec->length, context = call->out_shape[ATTENTION_CACHED_CACHE][0],
            columns = heads_kv_columns(h), places = PLACES * (int64_t)device_info(call->device)->processors;
    const BlockCyclic cyclic = attention_block_cyclic(call->mesh);
    AttentionForward forward = {.attention = attention_of(call), .out = call->out[ATTENTION_CACHED_OUT], .rows = (int32_t)rows};
    Attention *a = &forward.attention;
    a->first_rows = call->in[ATTENTION_CACHED_FIRST_ROWS];
    a->query_rows = token_rows(spec->length, 1, 0);
    attention_append(call, a);
    a->keys = call->out[ATTENTION_CACHED_CACHE];
    a->values = a->keys + heads_key_columns(h);
    a->key_stride = columns;
    a->key_rows = token_rows(INT32_MAX, 1, 0);
    a->cached = 1;
    if (cyclic.ranks > 1) a->cyclic = cyclic;
    a->packed = (int32_t)(h->heads / h->kv_heads);
    bool exact = device_info(call->device)->exact && cyclic.ranks == 1;
    forward.chunks = exact ? 1 : (int32_t)chunks_of(spec, sequences, context, int_min(places, MOST_PLACES));
    bool few = !exact && are_few(spec), joined = are_joined(forward.chunks, cyclic);
    if (joined) {
        forward.partial_out = call->workspace;
        forward.partial_sum = forward.partial_out + forward.chunks * rows * heads_out_columns(h);
    }
    if (!few && !joined && launch_whole(call->device, forward, sequences, context)) return;
    if (few) launch_few(call->device, &forward, sequences);
    else attention_launch(call->device, &forward, sequences);
    if (!joined) return;
    bool whole = cyclic.ranks == 1;
    join_rows(call->device, rows,
        &(AttentionJoin){.outs = forward.partial_out,
            .sums = forward.partial_sum,
            .sinks = cyclic.rank == 0 ? call->in[ATTENTION_SINKS] : NULL,
            .part_of_outs = rows * heads_out_columns(h),
            .row_of_outs = heads_out_columns(h),
            .part_of_sums = rows * h->heads,
            .row_of_sums = h->heads,
            .out = whole ? call->out[ATTENTION_CACHED_OUT] : NULL,
            .part = whole ? NULL : call->out[ATTENTION_CACHED_OUT],
            .heads = (int32_t)h->heads,
            .v_dim = (int32_t)h->v_dim,
            .parts = forward.chunks});
}

GPU_OP(attention_combine) {
    const Heads *h = &((const AttentionSpec *)call->attributes)->heads;
    int64_t rows = call->out_shape[ATTENTION_COMBINE_OUT][0], columns = attention_part_columns(h);
    const float *parts = call->in[ATTENTION_COMBINE_PARTS];
    join_rows(call->device, rows,
        &(AttentionJoin){.outs = parts,
            .sums = parts + heads_out_columns(h),
            .part_of_outs = rows * columns,
            .row_of_outs = columns,
            .part_of_sums = rows * columns,
            .row_of_sums = columns,
            .out = call->out[ATTENTION_COMBINE_OUT],
            .heads = (int32_t)h->heads,
            .v_dim = (int32_t)h->v_dim,
            .parts = attention_block_cyclic(call->mesh).ranks});
}

#endif
