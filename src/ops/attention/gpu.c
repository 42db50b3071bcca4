/* The forward pass of attention on a GPU (FlashAttention-2, arXiv 2307.08691): a block owns a tile
 * of queries of one head, 32 per wave, and iterates over tiles of 64 keys and values with a running
 * softmax. Scores never leave registers: the accumulator of the first matmul becomes an operand of
 * the second. Keys and values have one buffer each: values arrive while scores are computed, the
 * next keys while values are used. AMD's pass (gpu_forward_amd_kernels.h) requests both earlier,
 * and uses tiles of 128 keys for narrow heads.
 *
 * Values of more than 128 columns are cut into parts of 128, one block each; every block computes
 * the scores, because sums of 256 columns do not fit in registers. NVIDIA's Hopper has kernels of
 * its own (gpu_hopper_kernels.h). Launched for op attention and by cached_gpu.c: over a cache, for
 * the rows of a prompt and in chunks of keys. No scratch. */
#include "ops/attention/gpu_forward_kernels.h"
#include "ops/attention/gpu_hopper_kernels.h"

#ifdef GPU_DEVICE

enum { MOST_COLUMNS = ATTENTION_PART, KEY_BLOCKS = ATTENTION_KEYS / MMA };

/* -- The pass ------------------------------------------------------------------------------------------------------ */

/* Stores the output rows of a wave. */
INLINE void store_attended_rows(
    const AttentionForward *f, const AttentionPlace *p, const Softmax *softmax, const Accumulator *out, const int columns) {
    const Attention *a = &f->attention;
    int first = p->first + opaque_of_wave(wave_id()) * ATTENTION_ROWS;
    uint32_t most = 0;
    UNROLL for (int r = 0; r < LANE_ROWS; r++) {
        int row = first + accumulator_row(r);
        bool there = row < p->total;
        float sum = lanes_sum(softmax->sum[r]), inverse = sum == 0 ? 0 : 1 / sum, log_sum = softmax->maximum[r] * a->scale + fast_log2(sum);
        int64_t at = place_row(p, a, row) * a->heads + place_head(p, a, row);
        if (a->sinks && !f->partial_out) {
            ScoreSink joined = score_sink(log_sum, a->sinks[place_head(p, a, row)] * LOG2_E);
            inverse *= joined.share, log_sum = joined.log_sum;
        }
        bool first_of_row = there && accumulator_chunk() == 0 && p->part == 0;
        if (!f->partial_out) {
            if (first_of_row && f->log_sum) f->log_sum[at] = log_sum * LN_2;
            UNROLL for (int n = 0; n < columns / MMA; n++) most = larger(
                most, attention_store(f->out + at * a->v_dim, a->v_dim, &out[n], r, p->part * columns + n * MMA, a->v_dim, inverse, there));
            continue;
        }
        at += (int64_t)p->chunk * f->rows * a->heads;
        if (first_of_row) f->partial_sum[at] = sum == 0 ? -__builtin_inff() : log_sum;
        UNROLL for (int n = 0; n < columns / MMA; n++) UNROLL for (int c = 0; c < LANE_COLUMNS; c++) {
            int column = p->part * columns + n * MMA + accumulator_column(c);
            if (there && column < a->v_dim) f->partial_out[at * a->v_dim + column] = accumulator_get(&out[n], r, c) * inverse;
        }
    }
    if (f->amax) record_amax_of_wave(f->amax, most);
}

#include "ops/attention/gpu_forward_amd_kernels.h"

#if defined __NVPTX__

/* Runs the forward pass of a block: `width` columns of queries and keys, `columns` of the output.
 * All but `f` are constants at every call. */
INLINE void attend(const AttentionForward *f, const int width, const int columns, const int waves, const bool capped) {
    const int rows = waves * ATTENTION_ROWS, threads = waves * WAVE;
    const Attention *a = &f->attention;
    const AttentionPlace place = place_of_block(a, rows, width);
    LOCAL bf16 *keys = attention_tiles, *values = keys + ATTENTION_KEYS * width;
    LOCAL bf16 *queries = attention_holds(width) ? attention_tiles : values + ATTENTION_KEYS * columns;
    LOCAL const bf16 *own = queries + wave_id() * ATTENTION_ROWS * width;
    int first = place.first + wave_id() * ATTENTION_ROWS;
    KeyBounds block = attention_bounds(a, place.base, place.first, rows, place.total);
    KeyBounds wave = attention_bounds(a, place.base, first, ATTENTION_ROWS, place.total);
    RowInterval chunk = keys_of_chunk(f, &block, place.chunk, ATTENTION_KEYS);
    int key = chunk.low, last = chunk.high;

    Operand held[MOST_WIDTH / MMA];
    load_queries(queries, width, rows, threads, a, &place);
    if (attention_holds(width)) {
        barrier();
        UNROLL for (int k = 0; k < width / MMA; k++) operand_load(&held[k], own, width, 0, k * MMA);
        barrier();
    }
    Softmax softmax;
    softmax_clear(&softmax);
    Accumulator out[MOST_COLUMNS / MMA];
    UNROLL for (int n = 0; n < columns / MMA; n++) accumulator_clear(&out[n]);

    Stage keys_stage, values_stage;
    Source next = keys_at(a, &place, key, last);
    if (key <= last) stage_begin(&keys_stage, keys, width, ATTENTION_KEYS, threads, &next);
    for (; key <= last; key += ATTENTION_KEYS) {
        stage_end(&keys_stage, keys, width, ATTENTION_KEYS, threads, &next, 0);
        barrier();
        next = values_at(a, &place, key, last, place.part * columns, width);
        columns_begin(&values_stage, values, columns, ATTENTION_KEYS, threads, &next);
        bool touched = bounds_touch(&wave, key, key + ATTENTION_KEYS - 1);
        Accumulator scores[KEY_BLOCKS];
        compute_scores(scores, KEY_BLOCKS, ATTENTION_ROWS, attention_holds(width) ? held : NULL, own, keys, width);
        columns_end(&values_stage, values, columns, ATTENTION_KEYS, threads, &next, 0);
        barrier();
        next = keys_at(a, &place, key + ATTENTION_KEYS, last);
        if (key + ATTENTION_KEYS <= last) stage_begin(&keys_stage, keys, width, ATTENTION_KEYS, threads, &next);
        if (!touched) continue;
        if (capped) attention_cap_scores(scores, KEY_BLOCKS, ATTENTION_ROWS, a);
        if (a->alibi > 0 || !bounds_cover(&wave, key, key + ATTENTION_KEYS - 1)) {
            const Attention *call = arguments_again(a);
            AttentionPlace again = place_of_block(call, rows, width);
            attention_mask(scores, KEY_BLOCKS, ATTENTION_ROWS, call, again.base, again.head,
                again.first + opaque_of_wave(wave_id()) * ATTENTION_ROWS, again.total, key);
        }
        Operand weights[KEY_BLOCKS];
        softmax_step(&softmax, scores, weights, KEY_BLOCKS, ATTENTION_ROWS, a->scale, out, columns / MMA);
        add_weighted_values(out, weights, KEY_BLOCKS, ATTENTION_ROWS, values, columns);
    }
    f = arguments_again(f);
    AttentionPlace again = place_of_block(&f->attention, rows, width);
    store_attended_rows(f, &again, &softmax, out, columns);
}

#endif

/* `waves`: waves per block; `share_of_waves`: waves per SIMD on AMD; `share`: waves per SIMD of the kernel
 * with soft-capped scores. */
#define FORWARD_PASS(width, columns, waves, share_of_waves, share) \
    KERNEL(attention_##width, AttentionForward) {            \
        WAVE_BOUNDS(64 * (waves), share_of_waves);           \
        attend(&a, width, columns, waves, false);            \
    }                                                        \
    KERNEL(attention_capped_##width, AttentionForward) {     \
        WAVE_BOUNDS(256, share);                             \
        attend(&a, width, columns, ATTENTION_WAVES, true);   \
    }
FORWARD_PASS(32, 32, ATTENTION_WAVES, 2, 2)
FORWARD_PASS(64, 64, ATTENTION_WAVES, 2, 2)
FORWARD_PASS(128, 128, WAVES_OF_128, SHARE_IN_TURNS, SHARE_OF_128)
FORWARD_PASS(256, 128, ATTENTION_WAVES, 1, 1)
#if defined __CUDA_ARCH_FEAT_SM90_ALL
#define HOPPER(name, qk_dim, v_dim, capped)                                                              \
    KERNEL(attention_hopper_##name, AttentionHopper) {                                                   \
        const HopperShape shape = hopper_shape(qk_dim, v_dim, HOPPER_GROUPS);                            \
        BLOCK_BOUNDS(hopper_threads(shape), hopper_blocks(shape));                                       \
        attend_hopper(&a, ARGUMENTS_ADDRESS(attention_hopper_##name), shape, capped);                    \
    }                                                                                                    \
    KERNEL(attention_packed_##name, AttentionHopper) {                                                   \
        const HopperShape shape = hopper_shape(qk_dim, v_dim, 1);                                        \
        BLOCK_BOUNDS(hopper_threads(shape), hopper_blocks(shape));                                       \
        attend_packed(&a, ARGUMENTS_ADDRESS(attention_packed_##name), shape, capped);                    \
    }
HOPPER(64, 64, 64, false)
HOPPER(128, 128, 128, false)
HOPPER(192, 192, 128, false)
HOPPER(256, 256, 256, false)
HOPPER(capped_64, 64, 64, true)
HOPPER(capped_128, 128, 128, true)
HOPPER(capped_192, 192, 128, true)
HOPPER(capped_256, 256, 256, true)
#endif

#else

#include "ops/attention/attention.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

LAUNCHERS(attention, AttentionForward, attention_32, attention_64, attention_128, attention_256, attention_capped_32, attention_capped_64,
    attention_capped_128, attention_capped_256)
LAUNCHERS(attention_hopper, AttentionHopper, attention_hopper_64, attention_hopper_128, attention_hopper_192, attention_hopper_256,
    attention_hopper_capped_64, attention_hopper_capped_128, attention_hopper_capped_192, attention_hopper_capped_256)
LAUNCHERS(attention_packed, AttentionHopper, attention_packed_64, attention_packed_128, attention_packed_192, attention_packed_256,
    attention_packed_capped_64, attention_packed_capped_128, attention_packed_capped_192, attention_packed_capped_256)

/* Fails the device's calls if no kernel takes the widths of heads. */
static void check_widths(Device *device, const Heads *h) {
    char message[256];
    if (h->qk_dim <= ATTENTION_MOST_WIDTH && h->v_dim <= ATTENTION_MOST_WIDTH) return;
    snprintf(message, sizeof message,
        "attention heads with %lld channels of queries and keys and %lld of values have no kernel on a GPU: each is at most %d. Use "
        "narrower heads, or device=cpu",
        (long long)h->qk_dim, (long long)h->v_dim, ATTENTION_MOST_WIDTH);
    gpu_fail(device, message);
}

Attention attention_of(const OpCall *call) {
    const AttentionSpec *spec = call->attributes;
    const Heads *h = &spec->heads;
    bool packed = !call->in[ATTENTION_KV];
    const bf16 *queries = call->in[ATTENTION_QKV], *keys = packed ? queries + heads_query_columns(h) : call->in[ATTENTION_KV];
    double scale = score_scale(&spec->scores, h->qk_dim, 1);
    check_widths(call->device, h);
    int32_t slopes = 1;
    while (slopes < attention_all_heads(spec)) slopes *= 2;
    return (Attention){.queries = queries,
        .keys = keys,
        .values = keys + heads_key_columns(h),
        .positions = call->in[ATTENTION_POSITIONS],
        .query_stride = call->in_shape[ATTENTION_QKV][1],
        .key_stride = call->in_shape[packed ? ATTENTION_QKV : ATTENTION_KV][1],
        .query_rows = token_rows(spec->length, spec->queries.ranks, spec->queries.rank),
        .key_rows = token_rows(spec->length, spec->keys.ranks, spec->keys.rank),
        .heads = (int32_t)h->heads,
        .kv_heads = (int32_t)h->kv_heads,
        .qk_dim = (int32_t)h->qk_dim,
        .v_dim = (int32_t)h->v_dim,
        .window = (int32_t)spec->scores.window,
        .bidirectional = spec->bidirectional,
        .packed = 1,
        .slopes = slopes,
        .first_head = (int32_t)spec->first_head,
        .all_heads = (int32_t)attention_all_heads(spec),
        .scale = (float)(M_LOG2E * scale),
        .alibi = (float)spec->scores.alibi,
        .limit = (float)score_limit(&spec->scores, scale),
        .steepness = (float)score_steepness(&spec->scores, scale),
        .sinks = call->in[ATTENTION_SINKS]};
}

bool attention_map(Device *device, TensorMap *map, const void *data, int64_t rows, int64_t columns, int64_t stride, int64_t sequences) {
    return (uintptr_t)data % 16 == 0 &&
           gpu_tensor_map(device, map, data, (int64_t[]){columns, rows, sequences}, (int64_t[]){stride, rows * stride});
}

bool attention_maps(Device *device, TensorMap *queries, TensorMap *keys, const Attention *a, int64_t sequences) {
    int64_t columns = (int64_t)a->heads * a->qk_dim, key_columns = (int64_t)a->kv_heads * (a->qk_dim + a->v_dim);
    return attention_map(device, queries, a->queries, a->query_rows.rows, columns, a->query_stride, sequences) &&
           attention_map(device, keys, a->keys, a->key_rows.rows, key_columns, a->key_stride, sequences);
}

int32_t attention_section(int64_t bytes, int64_t group, int64_t count) {
    enum { CACHE = 16 << 20 }; /* bytes of the L2 cache for one section */
    return (int32_t)int_min(int_max(CACHE / bytes, 1) * group, count);
}

/* Returns the waves per block, as FORWARD_PASS compiles the kernel for the device. */
static int forward_waves(const Device *device, const Attention *a, int width) {
    bool in_turns = width == 128 && a->limit <= 0 && !strcmp(device_info(device)->target, "gfx90a");
    return in_turns ? ATTENTION_WAVES_IN_TURNS : ATTENTION_WAVES;
}

void attention_launch(Device *device, const AttentionForward *forward, int64_t sequences) {
    const Attention *a = &forward->attention;
    int wave = device_info(device)->wave, width = attention_width(a->qk_dim, a->v_dim), columns = (int)int_min(width, ATTENTION_PART);
    int waves = forward_waves(device, a, width), rows = waves * ATTENTION_ROWS;
    int tiles = attention_keys(wave, width) * (width + columns) * (waves / ATTENTION_WAVES), queries = rows * width;
    /* Queries have a tile of their own, or pass through the tiles of keys and values, or go
     * directly into registers. */
    if (wave != 64) tiles = width > 64 ? tiles + queries : (int)int_max(tiles, queries);
    LaunchShape shape = {.x = sequences * (a->heads / a->packed),
        .y = divide_up((int64_t)a->query_rows.rows * a->packed, rows),
        .z = attention_parts(width, a->v_dim) * forward->chunks,
        .threads = waves * wave,
        .shared = tiles * (int)sizeof(bf16)};
    launch_attention(device, attention_kernel_index(a, width), shape, forward);
}

/* Makes the maps of the forward pass over `cache_rows` rows of a cache, or over the sequences' own keys if that is 0. */
static bool map_forward(Device *device, AttentionHopper *hopper, int64_t sequences, int64_t cache_rows) {
    const Attention *a = &hopper->attention;
    if (!cache_rows) return attention_maps(device, &hopper->queries, &hopper->keys, a, sequences);
    int64_t key_columns = (int64_t)a->kv_heads * (a->qk_dim + a->v_dim);
    bool packed = a->packed > 1;
    int64_t sizes[] = {packed ? a->qk_dim : (int64_t)a->heads * a->qk_dim, packed ? a->heads : a->query_rows.rows, sequences},
            strides[] = {packed ? a->qk_dim : a->query_stride, a->query_stride * a->query_rows.rows};
    assert(!packed || a->query_rows.rows == 1);
    return (uintptr_t)a->queries % 16 == 0 && gpu_tensor_map(device, &hopper->queries, a->queries, sizes, strides) &&
           attention_map(device, &hopper->keys, a->keys, cache_rows, key_columns, a->key_stride, 1);
}

bool attention_launch_hopper(Device *device, const AttentionForward *forward, int64_t sequences, int64_t cache_rows) {
    const Attention *a = &forward->attention;
    int index = hopper_index(a->qk_dim, a->v_dim);
    int64_t rows = (int64_t)a->query_rows.rows * a->packed;
    bool few = cache_rows && rows <= HOPPER_ROWS / HOPPER_GROUPS;
    HopperShape shape = hopper_shape(a->qk_dim, a->v_dim, few ? 1 : HOPPER_GROUPS);
    AttentionHopper hopper = {.attention = *a, .out = forward->out, .log_sum = forward->log_sum, .amax = forward->amax};
    bool fits = index >= 0 && (uintptr_t)forward->out % 16 == 0;
    if (!fits || !map_forward(device, &hopper, sequences, cache_rows)) return false;
    int64_t bytes = (int64_t)a->key_rows.rows * (a->qk_dim + a->v_dim) * (int64_t)sizeof(bf16);
    hopper.heads = (int32_t)(sequences * (a->heads / a->packed));
    hopper.section = attention_section(bytes, a->heads / a->kv_heads, hopper.heads);
    int64_t places = (int64_t)device_info(device)->processors * hopper_blocks(shape);
    LaunchShape launch = {.x = few ? int_min(hopper.heads, places) : hopper.heads * divide_up(rows, HOPPER_ROWS),
        .threads = hopper_threads(shape),
        .shared = hopper_shared(shape)};
    (few ? launch_attention_packed : launch_attention_hopper)(device, index + 4 * (a->limit > 0), launch, &hopper);
    return true;
}

GPU_OP(attention) {
    AttentionForward forward = {
        .attention = attention_of(call), .out = call->out[ATTENTION_OUT], .log_sum = call->out[ATTENTION_LOG_SUM], .chunks = 1};
    forward.amax = amax_to_record(call, ATTENTION_AMAX);
    int64_t sequences = call->in_shape[ATTENTION_QKV][0] / forward.attention.query_rows.rows;
    if (!attention_launch_hopper(call->device, &forward, sequences, 0)) attention_launch(call->device, &forward, sequences);
}

#endif
