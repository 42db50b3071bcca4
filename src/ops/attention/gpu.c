/* The forward pass of attention on a GPU (FlashAttention-2, arXiv 2307.08691): a block owns a tile of queries of one
 * head, 32 of them per wave, and iterates over tiles of 64 keys and values with a running softmax. Scores never leave
 * registers: the accumulator of the first matmul becomes an operand of the second. Keys and values have one buffer
 * each: values arrive while scores are computed, the next keys while values are used.
 *
 * Heads wider than 128 are cut into parts of 128 output columns, one block each, that each compute the scores: sums of
 * 256 columns do not fit in registers. Heads of 64 and 128 have separate kernels on NVIDIA's Hopper (gpu_hopper.h).
 * Launched for op attention and, over a cache and in chunks of keys, by cached_gpu.c. No scratch. */
#include "ops/attention/gpu_tile.h"
#include "ops/attention/gpu_hopper.h"

#ifdef GPU_DEVICE

enum { MOST_WIDTH = 256, MOST_COLUMNS = 128, KEY_BLOCKS = ATTENTION_KEYS / MMA };

/* -- The queries of a block ---------------------------------------------------------------------------------------- */

typedef struct Place {
    int64_t base;      /* first row of the sequence */
    int64_t key_base;  /* its first row of keys */
    int head, kv_head; /* first head of the tile */
    int first, total;  /* first row of the tile; rows of the sequence, of all packed heads */
    int part, chunk;
} Place;

/* Later tiles see more keys, so they come first. Cheap enough to be computed again after the loop over keys, instead
 * of held in registers. */
INLINE Place place_of_block(const Attention *a, int rows, int parts) {
    int x = opaque(block_x()), groups = a->heads / a->packed, head = x % groups * a->packed, total = a->query_rows.rows * a->packed;
    return (Place){.base = (int64_t)(x / groups) * a->query_rows.rows,
        .key_base = a->cached ? 0 : (int64_t)(x / groups) * a->key_rows.rows,
        .head = head,
        .kv_head = head / (a->heads / a->kv_heads),
        .first = ((total + rows - 1) / rows - 1 - opaque(block_y())) * rows,
        .total = total,
        .part = opaque(block_z()) % parts,
        .chunk = opaque(block_z()) / parts};
}

INLINE int64_t place_row(const Place *p, const Attention *a, int row) { return p->base + attention_token(a, row); }
INLINE int place_head(const Place *p, const Attention *a, int row) { return p->head + attention_packed_head(a, row); }

/* Loads the tile's queries, zero beyond the last row and column. */
INLINE void load_queries(LOCAL bf16 *tile, const int width, const int rows, const int threads, const Attention *a, const Place *p) {
    const int step = a->head_dim % 8 == 0 ? 8 : 1;
    for (int i = thread_id() * step; i < rows * width; i += threads * step) {
        int row = p->first + i / width, column = i % width;
        bool there = row < p->total && column < a->head_dim;
        GLOBAL const bf16 *from = a->queries + place_row(p, a, row) * a->query_stride + place_head(p, a, row) * a->head_dim + column;
        LOCAL bf16 *to = tile + tile_at(width, i / width, column) + column % 8;
        if (step == 8) *(LOCAL u32x4 *)to = there ? *(GLOBAL const u32x4 *)from : (u32x4){0, 0, 0, 0};
        else *to = there ? *from : 0;
    }
}

/* -- The softmax of a wave ----------------------------------------------------------------------------------------- */

/* For the rows of a lane: the running maximum of raw scores, and this lane's share of the running sum. */
typedef struct Softmax { float maximum[LANE_ROWS], sum[LANE_ROWS]; } Softmax;

/* Raw scores of the next keys become weights, as operands, and `out` is rescaled to the new maximum. A row that has
 * seen no key has maximum -inf and weights 0. */
INLINE void softmax_step(Softmax *softmax, Accumulator *scores, Operand *weights, float scale, Accumulator *out, const int out_blocks) {
    UNROLL for (int r = 0; r < LANE_ROWS; r++) {
        float maximum = softmax->maximum[r], sum = 0;
        UNROLL for (int n = 0; n < KEY_BLOCKS; n++) UNROLL for (int c = 0; c < LANE_COLUMNS; c++) maximum =
            __builtin_fmaxf(maximum, accumulator_get(&scores[n], r, c));
        maximum = lanes_max(maximum);
        float base = maximum == -__builtin_inff() ? 0 : maximum * scale;
        float rescale = fast_exp2(softmax->maximum[r] * scale - base);
        UNROLL for (int n = 0; n < KEY_BLOCKS; n++) UNROLL for (int c = 0; c < LANE_COLUMNS; c++) {
            float weight = fast_exp2(__builtin_fmaf(accumulator_get(&scores[n], r, c), scale, -base));
            accumulator_set(&scores[n], r, c, weight);
            sum += weight;
        }
        softmax->maximum[r] = maximum;
        softmax->sum[r] = softmax->sum[r] * rescale + sum;
        UNROLL for (int n = 0; n < out_blocks; n++) accumulator_scale(&out[n], r, rescale);
    }
    UNROLL for (int n = 0; n < KEY_BLOCKS; n++) operand_of(&weights[n], &scores[n]);
}

/* -- The pass ------------------------------------------------------------------------------------------------------ */

/* Stores the output rows of a wave. */
INLINE void store_rows(const AttentionForward *f, const Place *p, const Softmax *softmax, const Accumulator *out, const int columns) {
    const Attention *a = &f->attention;
    int first = p->first + opaque(wave_id()) * ATTENTION_ROWS;
    UNROLL for (int r = 0; r < LANE_ROWS; r++) {
        int row = first + accumulator_row(r);
        bool there = row < p->total;
        float sum = lanes_sum(softmax->sum[r]), inverse = sum == 0 ? 0 : 1 / sum, log_sum = softmax->maximum[r] * a->scale + fast_log2(sum);
        int64_t at = place_row(p, a, row) * a->heads + place_head(p, a, row);
        bool first_of_row = there && accumulator_chunk() == 0 && p->part == 0;
        if (f->chunks == 1) {
            if (first_of_row && f->log_sum) f->log_sum[at] = log_sum * LN_2;
            UNROLL for (int n = 0; n < columns / MMA; n++)
                attention_store(f->out + at * a->head_dim, &out[n], r, p->part * columns + n * MMA, a->head_dim, inverse, there);
            continue;
        }
        at += (int64_t)p->chunk * a->query_rows.rows * a->heads;
        if (first_of_row) f->partial_sum[at] = sum == 0 ? -__builtin_inff() : log_sum;
        UNROLL for (int n = 0; n < columns / MMA; n++) UNROLL for (int c = 0; c < LANE_COLUMNS; c++) {
            int column = p->part * columns + n * MMA + accumulator_column(c);
            if (there && column < a->head_dim) f->partial_out[at * a->head_dim + column] = accumulator_get(&out[n], r, c) * inverse;
        }
    }
}

/* Rows `key` .. `last` of keys or values, from column `column` of a head on; the head begins `start` elements into the
 * matrix. */
INLINE Source source_at(const Attention *a, GLOBAL const bf16 *from, int64_t start, int key, int last, int column) {
    return (Source){from + start + opaque(key) * a->key_stride + column, a->key_stride, last + 1 - key, a->head_dim - column};
}

/* The forward pass of a block: `width` columns of queries and keys, `columns` of the output. The three numbers are
 * constants at every call. */
INLINE void attend(const AttentionForward *f, const int width, const int columns, const int waves) {
    const int rows = waves * ATTENTION_ROWS, threads = waves * WAVE;
    const Attention *a = &f->attention;
    const Place place = place_of_block(a, rows, width / columns);
    LOCAL bf16 *keys = attention_tiles, *values = keys + ATTENTION_KEYS * width;
    LOCAL bf16 *queries = attention_holds(width) ? attention_tiles : values + ATTENTION_KEYS * columns;
    LOCAL const bf16 *own = queries + wave_id() * ATTENTION_ROWS * width;
    int first = place.first + wave_id() * ATTENTION_ROWS;
    KeyBounds block = attention_bounds(a, place.base, place.first, rows, place.total);
    KeyBounds wave = attention_bounds(a, place.base, first, ATTENTION_ROWS, place.total);
    int key = max_int(block.low_min, place.chunk * f->chunk) / ATTENTION_KEYS * ATTENTION_KEYS;
    int last = f->chunks == 1 ? block.high_max : min_int(block.high_max, place.chunk * f->chunk + f->chunk - 1);

    Operand held[MOST_WIDTH / MMA];
    load_queries(queries, width, rows, threads, a, &place);
    if (attention_holds(width)) {
        barrier();
        UNROLL for (int k = 0; k < width / MMA; k++) operand_load(&held[k], own, width, 0, k * MMA);
        barrier();
    }
    Softmax softmax;
    UNROLL for (int r = 0; r < LANE_ROWS; r++) softmax.maximum[r] = -__builtin_inff(), softmax.sum[r] = 0;
    Accumulator out[MOST_COLUMNS / MMA];
    UNROLL for (int n = 0; n < columns / MMA; n++) accumulator_clear(&out[n]);

    int64_t start = place.key_base * a->key_stride + place.kv_head * a->head_dim;
    Stage keys_stage, values_stage;
    Source next = source_at(a, a->keys, start, key, last, 0);
    if (key <= last) stage_begin(&keys_stage, keys, width, ATTENTION_KEYS, threads, &next);
    for (; key <= last; key += ATTENTION_KEYS) {
        stage_end(&keys_stage, keys, width, ATTENTION_KEYS, threads, &next, 0);
        barrier();
        next = source_at(a, a->values, start, key, last, place.part * columns);
        stage_begin(&values_stage, values, columns, ATTENTION_KEYS, threads, &next);
        bool touched = bounds_touch(&wave, key, key + ATTENTION_KEYS - 1);
        Accumulator scores[KEY_BLOCKS];
        UNROLL for (int n = 0; n < KEY_BLOCKS; n++) accumulator_clear(&scores[n]);
        UNROLL for (int k = 0; k < width / MMA; k++) {
            Operand query;
            if (attention_holds(width)) query = held[k];
            else operand_load(&query, own, width, 0, k * MMA);
            UNROLL for (int n = 0; n < KEY_BLOCKS; n++) {
                Operand operand;
                operand_load(&operand, keys, width, n * MMA, k * MMA);
                mma(&scores[n], &query, &operand);
            }
        }
        stage_end(&values_stage, values, columns, ATTENTION_KEYS, threads, &next, 0);
        barrier();
        next = source_at(a, a->keys, start, key + ATTENTION_KEYS, last, 0);
        if (key + ATTENTION_KEYS <= last) stage_begin(&keys_stage, keys, width, ATTENTION_KEYS, threads, &next);
        if (!touched) continue;
        if (a->alibi > 0 || !bounds_cover(&wave, key, key + ATTENTION_KEYS - 1)) {
            Place again = place_of_block(a, rows, width / columns);
            attention_mask(
                scores, KEY_BLOCKS, a, again.base, again.head, again.first + opaque(wave_id()) * ATTENTION_ROWS, again.total, key);
        }
        Operand weights[KEY_BLOCKS];
        softmax_step(&softmax, scores, weights, a->scale, out, columns / MMA);
        UNROLL for (int k = 0; k < KEY_BLOCKS; k++) UNROLL for (int n = 0; n < columns / MMA; n++) {
            Operand operand;
            operand_load_transposed(&operand, values, columns, k * MMA, n * MMA);
            mma(&out[n], &weights[k], &operand);
        }
    }
    Place again = place_of_block(a, rows, width / columns);
    store_rows(f, &again, &softmax, out, columns);
}

#define WAVES_OF_256 (WAVE == 64 ? 2 : 4) /* on AMD queries pass through the shared memory of keys and values */

KERNEL(attention_32, AttentionForward) { attend(&a, 32, 32, 4); }
KERNEL(attention_64, AttentionForward) { attend(&a, 64, 64, 4); }
KERNEL(attention_128, AttentionForward) { attend(&a, 128, 128, 4); }
KERNEL(attention_256, AttentionForward) { attend(&a, 256, 128, WAVES_OF_256); }
#if defined __CUDA_ARCH_FEAT_SM90_ALL
#define HOPPER(width)                                                                               \
    KERNEL(attention_hopper_##width, AttentionHopper) {                                             \
        BLOCK_BOUNDS(HOPPER_GROUPS * WARPGROUP, hopper_blocks(width));                              \
        attend_hopper(&a, ARGUMENTS_ADDRESS(attention_hopper_##width), width, hopper_keys(width));  \
    }
HOPPER(64)
HOPPER(128)
#endif

#else

#include "ops/attention/attention.h"

#include <math.h>

LAUNCHERS(attention, AttentionForward, attention_32, attention_64, attention_128, attention_256)
LAUNCHERS(attention_hopper, AttentionHopper, attention_hopper_64, attention_hopper_128)

Attention attention_of(const OpCall *call) {
    const AttentionSpec *spec = call->attributes;
    const Heads *h = &spec->heads;
    bool packed = !call->in[ATTENTION_KV];
    const bf16 *queries = call->in[ATTENTION_QKV], *keys = packed ? queries + h->heads * h->head_dim : call->in[ATTENTION_KV];
    double scale = spec->scale > 0 ? spec->scale : 1 / sqrt((double)h->head_dim);
    int32_t slopes = 1;
    while (slopes < attention_all_heads(spec)) slopes *= 2;
    assert(h->head_dim <= 256);
    return (Attention){.queries = queries,
        .keys = keys,
        .values = keys + h->kv_heads * h->head_dim,
        .positions = call->in[ATTENTION_POSITIONS],
        .query_stride = call->in_shape[ATTENTION_QKV][1],
        .key_stride = call->in_shape[packed ? ATTENTION_QKV : ATTENTION_KV][1],
        .query_rows = token_rows(spec->length, spec->queries.ranks, spec->queries.rank),
        .key_rows = token_rows(spec->length, spec->keys.ranks, spec->keys.rank),
        .heads = (int32_t)h->heads,
        .kv_heads = (int32_t)h->kv_heads,
        .head_dim = (int32_t)h->head_dim,
        .window = (int32_t)spec->window,
        .packed = 1,
        .slopes = slopes,
        .first_head = (int32_t)spec->first_head,
        .all_heads = (int32_t)attention_all_heads(spec),
        .scale = (float)(M_LOG2E * scale),
        .alibi = (float)spec->alibi};
}

bool attention_map(Device *device, TensorMap *map, const void *data, int64_t rows, int64_t columns, int64_t stride, int64_t sequences) {
    return (uintptr_t)data % 16 == 0 &&
           gpu_tensor_map(device, map, data, (int64_t[]){columns, rows, sequences}, (int64_t[]){stride, rows * stride});
}

bool attention_maps(Device *device, TensorMap *queries, TensorMap *keys, const Attention *a, int64_t sequences) {
    int64_t columns = (int64_t)a->heads * a->head_dim, key_columns = (int64_t)a->kv_heads * a->head_dim * 2;
    return attention_map(device, queries, a->queries, a->query_rows.rows, columns, a->query_stride, sequences) &&
           attention_map(device, keys, a->keys, a->key_rows.rows, key_columns, a->key_stride, sequences);
}

/* Rows of queries of a block. */
static int tile_rows(const Device *device, int width) { return ATTENTION_ROWS * (width == 256 && device_info(device)->wave == 64 ? 2 : 4); }

void attention_launch(Device *device, const AttentionForward *forward, int64_t sequences) {
    const Attention *a = &forward->attention;
    int wave = device_info(device)->wave, width = attention_width(a->head_dim), parts = (int)divide_up(width, 128), columns = width / parts;
    int rows = tile_rows(device, width), others = ATTENTION_KEYS * (width + columns), own = rows * width;
    bool holds = wave == 64 || width <= 64;
    LaunchShape shape = {.x = sequences * (a->heads / a->packed),
        .y = divide_up((int64_t)a->query_rows.rows * a->packed, rows),
        .z = parts * forward->chunks,
        .threads = rows / ATTENTION_ROWS * wave,
        .shared = (!holds            ? own + others
                      : own > others ? own
                                     : others) *
                  (int)sizeof(bf16)};
    launch_attention(device, attention_width_index(width), shape, forward);
}

/* Launches the Hopper kernel; false where device or shape rule it out. */
static bool launch_hopper(const OpCall *call, const AttentionForward *forward) {
    const Attention *a = &forward->attention;
    int64_t sequences = call->in_shape[ATTENTION_QKV][0] / a->query_rows.rows;
    int width = a->head_dim;
    AttentionHopper hopper = {.attention = *a, .out = forward->out, .log_sum = forward->log_sum};
    bool fits = (width == 64 || width == 128) && (uintptr_t)forward->out % 16 == 0;
    if (!fits || !attention_maps(call->device, &hopper.queries, &hopper.keys, a, sequences)) return false;
    LaunchShape shape = {.x = sequences * a->heads,
        .y = divide_up(a->query_rows.rows, HOPPER_ROWS),
        .threads = HOPPER_GROUPS * 128,
        .shared = hopper_shared(width)};
    launch_attention_hopper(call->device, width == 128, shape, &hopper);
    return true;
}

GPU_OP(attention) {
    AttentionForward forward = {
        .attention = attention_of(call), .out = call->out[ATTENTION_OUT], .log_sum = call->out[ATTENTION_LOG_SUM], .chunks = 1};
    if (launch_hopper(call, &forward)) return;
    attention_launch(call->device, &forward, call->in_shape[ATTENTION_QKV][0] / forward.attention.query_rows.rows);
}

#endif
