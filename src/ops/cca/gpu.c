/* The prologue of compressed convolutional attention on a GPU in one pass (formulas in rule.c). A
 * block takes tiles of one head, `stride` rows apart (gpu_shared_kernels.h): depthwise convolution into
 * pairs, the matmul of the grouped convolution, qk-mean, norm, RoPE. Concurrent blocks of other
 * heads find the shared rows in the cache. One more row of blocks shifts the values. In generation
 * a last kernel updates the state. No scratch. */
#include "ops/cca/gpu_fragments_kernels.h"

/* `units` and `scales` are NULL outside training; `stride` is the number of rows of all concurrent tiles. */
typedef struct CcaArguments {
    CcaInput in;
    const float GLOBAL *table, *grouped_bias, *temperature;
    bf16 GLOBAL *qkv, *units;
    float GLOBAL *scales;
    int64_t stride;
} CcaArguments;

typedef struct CcaStateArguments {
    const bf16 GLOBAL *u;
    bf16 GLOBAL *state;
    int64_t rows, columns;
} CcaStateArguments;

#ifdef GPU_DEVICE

/* Rotates eight channels of row `row`, whose products are complete, by the angles of its
 * position. */
INLINE f32x8 rotate_eight(
    f32x8 own, LOCAL const float *products, int row, int channel, const CcaInput *in, const float GLOBAL *angles, const int DIM) {
    int half = in->rotated / 2;
    if (channel >= in->rotated) return own;
    if (in->whole) {
        bool second = channel >= half;
        int angle = second ? channel - half : channel;
        f32x8 other = load_products(products, row, second ? angle : channel + half, DIM);
        f32x8 cosine = load_wide(angles + angle, CHUNK, true), sine = load_wide(angles + half + angle, CHUNK, true);
        return own * cosine + other * (second ? sine : -sine);
    }
    UNROLL for (int i = 0; i < CHUNK; i++) {
        int c = channel + i, angle = c < half ? c : c - half, other = c < half ? c + half : c - half;
        if (c >= in->rotated) continue;
        float sine = c < half ? -angles[half + angle] : angles[half + angle];
        own[i] = own[i] * angles[angle] + products[product_at(row, other, DIM) + other % 4] * sine;
    }
    return own;
}

/* Stores eight channels of one head times their scale to qkv, and the values that training
 * keeps. */
INLINE void finish_eight(const CcaArguments *a, f32x8 y, float scale, int64_t r, int head, int channel) {
    const CcaInput *in = &a->in;
    int left = in->dim - channel, key = head - in->heads;
    bool whole = in->whole;
    if (a->scales && channel == 0) a->scales[r * (in->heads + in->kv_heads) + head] = scale;
    if (key >= 0) {
        if (a->units) store_channels(a->units + r * in->values + key * in->dim + channel, y * scale, left, whole);
        scale *= a->temperature[key];
    }
    store_channels(a->qkv + r * in->columns + head * in->dim + channel, y * scale, left, whole);
}

#if defined __AMDGCN__
/* The loads of a chunk of a tile: its pairs, and u of the head of its keys. They start while the
 * previous tile is computed, so that a wave rarely waits for them. */
typedef struct TileChunk {
    PairChunk pair;
    u32x4 keys;
} TileChunk;

INLINE TileChunk load_tile_chunk(const CcaInput *in, int r, int head, int channel) {
    int left = in->dim - channel, keys = head < in->heads ? in->heads + head / in->group : head;
    PairChunk pair = load_pair_chunk(in, r, head * in->dim + channel, left);
    const bf16 GLOBAL *u = in->u + offset_of(pair.row.row, in->columns) + channel;
    return (TileChunk){.pair = pair, .keys = load_chunk(u + keys * in->dim, left, in->whole)};
}

/* Returns the qk-mean of a chunk of head `head`. */
INLINE f32x8 loaded_mean(const CcaInput *in, const TileChunk *chunk, int head, int channel) {
    if (head < in->heads) return (to_float8(chunk->pair.own) + to_float8(chunk->keys)) * 0.5f;
    const bf16 GLOBAL *queries = in->u + offset_of(chunk->pair.row.row, in->columns) + (head - in->heads) * in->group * in->dim + channel;
    f32x8 sum = add_all_queries((f32x8)0, queries, in, in->dim - channel);
    return to_float8(chunk->pair.own) * 0.5f + sum * (0.5f / (float)in->group);
}

/* Cosines and sines of eight channels, loaded before the products; for heads in whole chunks. */
typedef struct Angles { f32x8 cosine, sine; } Angles;

INLINE Angles load_angles(const CcaInput *in, const float GLOBAL *angles, int channel) {
    int half = in->rotated / 2, angle = channel < half ? channel : channel < in->rotated ? channel - half : 0;
    return (Angles){load8_wide(angles + angle, CHUNK), load8_wide(angles + half + angle, CHUNK)};
}

/* rotate() with these angles. */
INLINE f32x8 rotate_by(
    const Angles *angles, f32x8 own, LOCAL const float *products, int row, int channel, const CcaInput *in, const int DIM) {
    int half = in->rotated / 2;
    if (channel >= in->rotated) return own;
    f32x8 other = load_products(products, row, channel < half ? channel + half : channel - half, DIM);
    return own * angles->cosine + other * (channel < half ? -angles->sine : angles->sine);
}

/* Applies norm and RoPE to a chunk whose products are complete. */
INLINE void finish_cca_chunk(const CcaArguments *a, const Angles *angles, const float GLOBAL *table, LOCAL const float *products, int row,
    int64_t r, int head, int channel, const int DIM) {
    const CcaInput *in = &a->in;
    f32x8 y = load_products(products, row, channel, DIM);
    float squares = 0;
    UNROLL for (int j = 0; j < CHUNK; j++) squares += y[j] * y[j];
    float scale = fast_sqrt((float)in->dim) * fast_rsqrt(__builtin_fmaxf(sum_of_row(squares, DIM), CCA_LEAST_NORM * CCA_LEAST_NORM));
    if (r >= in->rows) return;
    y = in->whole && in->rotated ? rotate_by(angles, y, products, row, channel, in, DIM)
                                 : rotate_eight(y, products, row, channel, in, table, DIM);
    finish_eight(a, y, scale, r, head, channel);
}

/* Processes the tiles of a block, from row `first` on. Products start with bias and mean. */
INLINE void convolve_tiles(
    const CcaArguments *a, int64_t first, int head, LOCAL bf16 *tile, LOCAL float *products, const Operand *weights, const int DIM) {
    const CcaInput *in = &a->in;
    int channel = chunk_channel(DIM), left = in->dim - channel, column = head * in->dim + channel;
    bool by_chunks = in->whole && in->rotated;
    PairWeights pair_weights = load_pair_weights(in, column, left);
    f32x8 bias = load_wide(a->grouped_bias + column, left, in->whole);
    TileChunk ahead[CCA_CHUNKS];
    UNROLL for (int i = 0; i < CCA_CHUNKS; i++) ahead[i] = load_tile_chunk(in, (int)first + cca_chunk_row(i, DIM), head, channel);
    for (; first < in->rows; first += a->stride) {
        Angles angles[CCA_CHUNKS] = {0};
        const float GLOBAL *table[CCA_CHUNKS];
        UNROLL for (int i = 0; i < CCA_CHUNKS; i++) {
            int row = cca_chunk_row(i, DIM);
            table[i] = a->table + offset_of(ahead[i].pair.row.position, in->rotated);
            store_loaded_pairs(tile, 2 * DIM, row, channel, in, first + row < in->rows, &ahead[i].pair, &pair_weights);
            store_products(products, row, channel, bias + loaded_mean(in, &ahead[i], head, channel), DIM);
        }
        UNROLL for (int i = 0; i < CCA_CHUNKS; i++) {
            if (by_chunks) angles[i] = load_angles(in, table[i], channel);
            int64_t next = first + a->stride + cca_chunk_row(i, DIM);
            ahead[i] = load_tile_chunk(in, (int)(next < in->rows ? next : in->rows - 1), head, channel);
        }
        barrier();
        multiply_tile(products, tile, weights, true, DIM);
        barrier();
        UNROLL for (int i = 0; i < CCA_CHUNKS; i++) {
            int row = cca_chunk_row(i, DIM);
            finish_cca_chunk(a, &angles[i], table[i], products, row, first + row, head, channel, DIM);
        }
        barrier();
    }
}
#else
/* Returns the qk-mean of eight channels of head `head` of row r. */
INLINE f32x8 mean_of(const CcaInput *in, int64_t r, int head, int channel) {
    int left = in->dim - channel;
    bool whole = in->whole;
    const bf16 GLOBAL *row = row_of_u(in, r) + channel, *keys = row + in->heads * in->dim;
    if (head < in->heads)
        return (load_channels(row + head * in->dim, left, whole) + load_channels(keys + head / in->group * in->dim, left, whole)) * 0.5f;
    int key = head - in->heads;
    f32x8 sum = (f32x8)0;
    for (int h = 0; h < in->group; h++) sum += load_channels(row + (key * in->group + h) * in->dim, left, whole);
    return load_channels(keys + key * in->dim, left, whole) * 0.5f + sum * (0.5f / (float)in->group);
}

/* Processes one tile of one head, rows from `first` on. Products start with bias and mean, so that
 * all loads from global memory are in flight at once. */
INLINE void convolve_tile(
    const CcaArguments *a, int64_t first, int head, LOCAL bf16 *tile, LOCAL float *products, const Operand *weights, const int DIM) {
    const CcaInput *in = &a->in;
    int channel = chunk_channel(DIM), left = in->dim - channel;
    int64_t column = head * in->dim + channel;
    UNROLL for (int i = 0; i < CCA_CHUNKS; i++) {
        int row = cca_chunk_row(i, DIM);
        store_pairs(tile, 2 * DIM, row, channel, in, first + row, column, left);
        store_products(
            products, row, channel, load_wide(a->grouped_bias + column, left, in->whole) + mean_of(in, first + row, head, channel), DIM);
    }
    barrier();
    multiply_tile(products, tile, weights, true, DIM);
    barrier();
    UNROLL for (int i = 0; i < CCA_CHUNKS; i++) {
        int row = cca_chunk_row(i, DIM);
        int64_t r = first + row;
        f32x8 y = load_products(products, row, channel, DIM);
        float squares = 0;
        UNROLL for (int j = 0; j < CHUNK; j++) squares += y[j] * y[j];
        float scale = fast_sqrt((float)in->dim) * fast_rsqrt(__builtin_fmaxf(sum_of_row(squares, DIM), CCA_LEAST_NORM * CCA_LEAST_NORM));
        if (r >= in->rows) continue;
        y = rotate_eight(y, products, row, channel, in, a->table + (int64_t)in->positions[r] * in->rotated, DIM);
        finish_eight(a, y, scale, r, head, channel);
    }
    barrier();
}

INLINE void convolve_tiles(
    const CcaArguments *a, int64_t first, int head, LOCAL bf16 *tile, LOCAL float *products, const Operand *weights, const int DIM) {
    for (; first < a->in.rows; first += a->stride) convolve_tile(a, first, head, tile, products, weights, DIM);
}
#endif

/* Loads the rows of the weights that each wave multiplies by, through the tile. */
INLINE void load_weights(Operand *weights, const CcaInput *in, int head, LOCAL bf16 *tile, const int DIM) {
    for (int n = 0; n < DIM; n += MMA) {
        Source source = {in->grouped + (int64_t)(head * in->dim + n) * 2 * in->dim, 2 * in->dim, in->dim - n, 2 * in->dim};
        Stage stage;
        stage_begin(&stage, tile, 2 * DIM, MMA, CCA_THREADS, &source);
        stage_end(&stage, tile, 2 * DIM, MMA, CCA_THREADS, &source, 0);
        barrier();
        if (cca_wave_column(DIM) == n) UNROLL for (int k = 0; k < 2 * DIM / MMA; k++) operand_load(&weights[k], tile, 2 * DIM, 0, k * MMA);
        barrier();
    }
}

/* Stores value columns: the first `current` from this row, the others from the previous row. */
INLINE void shift_values(const CcaArguments *a, int64_t first, int rows) {
    const CcaInput *in = &a->in;
    int values = (int)in->values, current = (int)in->current, chunks = (values + CHUNK - 1) / CHUNK;
    for (int i = thread_id(); i < rows * chunks; i += CCA_THREADS) {
        int column = i % chunks * CHUNK, left = values - column;
        int64_t r = first + i / chunks;
        if (r >= in->rows) return;
        f32x8 own = load_channels(in->u + r * in->columns + in->convolved + column, left, in->whole), before = (f32x8)0;
        if (history(in, r)) before = load_channels(row_before(in, r, 1) + in->convolved + column, left, in->whole);
        UNROLL for (int j = 0; j < CHUNK; j++) own[j] = column + j < current ? own[j] : before[j];
        store_channels(a->qkv + r * in->columns + in->convolved + column, own, left, in->whole);
    }
}

INLINE void convolve_rows(const CcaArguments *a, LOCAL bf16 *tile, LOCAL float *products, const int DIM) {
    int head = block_y();
    int64_t first = (int64_t)block_x() * (CCA_TILE / DIM);
    if (head == a->in.heads + a->in.kv_heads) {
        for (; first < a->in.rows; first += a->stride) shift_values(a, first, CCA_TILE / DIM);
        return;
    }
    Operand weights[2 * CCA_MAX_DIM / MMA];
    load_weights(weights, &a->in, head, tile, DIM);
    convolve_tiles(a, first, head, tile, products, weights, DIM);
}

#define CCA(name, DIM, in_chunks)                                                                                                          \
    KERNEL(name, CcaArguments) {                                                                                                           \
        WAVE_BOUNDS(256, 2);                                                                                                               \
        static SHARED __attribute__((aligned(CCA_ALIGNMENT))) bf16 tile[2 * CCA_TILE];                                                     \
        static SHARED __attribute__((aligned(CCA_ALIGNMENT))) float products[CCA_TILE];                                                    \
        CcaArguments own = a;                                                                                                              \
        own.in.whole = in_chunks;                                                                                                          \
        if (fills(&own.in, DIM)) {                                                                                                         \
            own.in.dim = DIM;                                                                                                              \
            convolve_rows(&own, tile, products, DIM);                                                                                           \
        } else {                                                                                                                           \
            convolve_rows(&own, tile, products, DIM);                                                                                           \
        }                                                                                                                                  \
    }
CCA(cca_64, 64, true)
CCA(cca_128, 128, true)
CCA(cca_any, CCA_MAX_DIM, false)

#if defined __NVPTX__
/* -- Heads of 128 channels on NVIDIA ------------------------------------------------------------------------------- */

/* Starts to copy the head's weights to shared memory: a chunk is the taps of four channels. */
INLINE void begin_fragment_weights(const CcaInput *in, int head) {
    for (int i = thread_id(); i < FRAGMENT_COLUMNS * FRAGMENT_STEPS * WAVE; i += FRAGMENT_THREADS) {
        int column = i / (FRAGMENT_STEPS * WAVE), step = i / WAVE % FRAGMENT_STEPS, g = i % WAVE / 4, t = i % 4;
        int out = column / 4 * 32 + g / 2 * CHUNK + column % 4 * 2 + g % 2, channel = step / 2 * 32 + t * CHUNK + step % 2 * 4;
        copy_chunk((LOCAL bf16 *)(fragment_weights + i), in->grouped + ((head * FRAGMENT_DIM + out) * FRAGMENT_DIM + channel) * 2, true);
    }
    copies_commit();
}

/* Runs shift_values for all rows, divided among all threads; a chunk is entirely delayed or not. */
INLINE void shift_all_values(const CcaArguments *a, int thread, int threads) {
    enum { TOGETHER = 4 };
    const CcaInput *in = &a->in;
    int chunks = (int)in->values / CHUNK, count = in->rows * chunks;
    for (int first = thread; first < count; first += TOGETHER * threads) {
        u32x4 x[TOGETHER];
        UNROLL for (int k = 0; k < TOGETHER; k++) {
            int i = first + k * threads < count ? first + k * threads : first, column = i % chunks * CHUNK;
            RowPlace row = tile_place_row(in, i / chunks);
            bool delayed = column >= in->current;
            const bf16 GLOBAL *from = delayed ? placed_before(in, row, 1) : in->u + offset_of(row.row, in->columns);
            x[k] = *(const u32x4 GLOBAL *)(from + in->convolved + column);
            if (delayed && history_of(in, row) == 0) x[k] = (u32x4)0;
        }
        UNROLL for (int k = 0; k < TOGETHER; k++) {
            int i = first + k * threads;
            if (i < count) *(u32x4 GLOBAL *)(a->qkv + offset_of(i / chunks, in->columns) + in->convolved + i % chunks * CHUNK) = x[k];
        }
    }
}

/* Initializes sums with bias and qk-mean. */
INLINE void begin_fragment_sums(FragmentSums *sums, const CcaArguments *a, const RowPlace row[2], int head) {
    const CcaInput *in = &a->in;
    FragmentRows own;
    float of_others = 0.5f;
    UNROLL for (int j = 0; j < FRAGMENT_COLUMNS; j++) sums->x[j] = (f32x4)0;
    load_fragment_rows(&own, in->u, row, in->columns, head);
    if (head < in->heads) {
        add_fragment_rows(sums, in->u, row, in->columns, in->heads + head / in->group);
    } else {
        add_fragment_queries(sums, in, in->u, row, in->columns, head - in->heads);
        of_others /= (float)in->group;
    }
    UNROLL for (int q = 0; q < FRAGMENT_CHUNKS; q++) {
        f32x8 bias = load8_wide(a->grouped_bias + head * FRAGMENT_DIM + fragment_channel(q), CHUNK);
        UNROLL for (int r = 0; r < 2; r++)
            fragment_set(sums, q, r, bias + (to_float8(own.x[r][q]) * 0.5f + fragment_chunk(sums, q, r) * of_others));
    }
}

/* Adds the grouped convolution of the warp's rows. A chunk is loaded while the previous one is
 * multiplied. */
INLINE void convolve_fragments(FragmentSums *sums, const CcaInput *in, int first, int head) {
    int column = head * FRAGMENT_DIM + fragment_channel(0);
    PairChunk ahead[2];
    UNROLL for (int r = 0; r < 2; r++) ahead[r] = load_pair_chunk(in, first + fragment_row(r), column, CHUNK);
    _Pragma("clang loop unroll(disable)") for (int q = 0; q < FRAGMENT_CHUNKS; q++) {
        PairWeights weights = load_pair_weights(in, column, CHUNK);
        u32x4 words[2][2];
        UNROLL for (int r = 0; r < 2; r++) loaded_pairs(words[r], in, true, &ahead[r], &weights);
        if (q + 1 < FRAGMENT_CHUNKS) column += 32;
        UNROLL for (int r = 0; r < 2; r++) ahead[r] = load_pair_chunk(in, first + fragment_row(r), column, CHUNK);
        UNROLL for (int i = 0; i < 2; i++) {
            uint32_t a[4] = {words[0][i].x, words[1][i].x, words[0][i].y, words[1][i].y};
            uint32_t b[4] = {words[0][i].z, words[1][i].z, words[0][i].w, words[1][i].w};
            fragment_multiply(sums, a, b, q * 2 + i);
        }
    }
}

/* Rotates chunk `low` of a row with chunk `high`, by the angles of its position. */
INLINE void rotate_fragment(FragmentSums *sums, int r, const float GLOBAL *angles, int low, int high, const int half) {
    f32x8 x = fragment_chunk(sums, low, r), y = fragment_chunk(sums, high, r);
    f32x8 cosine = load8_wide(angles + fragment_channel(low), CHUNK), sine = load8_wide(angles + half + fragment_channel(low), CHUNK);
    fragment_set(sums, low, r, x * cosine - y * sine);
    fragment_set(sums, high, r, y * cosine + x * sine);
}

INLINE void finish_fragments(const CcaArguments *a, FragmentSums *sums, const RowPlace row[2], int64_t first, int head) {
    const CcaInput *in = &a->in;
    UNROLL for (int r = 0; r < 2; r++) {
        float squares = 0;
        UNROLL for (int j = 0; j < FRAGMENT_COLUMNS; j++) squares +=
            sums->x[j][2 * r] * sums->x[j][2 * r] + sums->x[j][2 * r + 1] * sums->x[j][2 * r + 1];
        float scale = fast_sqrt((float)FRAGMENT_DIM) * fast_rsqrt(__builtin_fmaxf(lanes_sum(squares), CCA_LEAST_NORM * CCA_LEAST_NORM));
        const float GLOBAL *angles = a->table + offset_of(row[r].position, in->rotated);
        if (in->rotated == FRAGMENT_DIM) {
            rotate_fragment(sums, r, angles, 0, 2, 64);
            rotate_fragment(sums, r, angles, 1, 3, 64);
        } else if (in->rotated) {
            rotate_fragment(sums, r, angles, 0, 1, 32);
        }
        int64_t own = first + fragment_row(r);
        if (own >= in->rows) continue;
        UNROLL for (int q = 0; q < FRAGMENT_CHUNKS; q++) finish_eight(a, fragment_chunk(sums, q, r), scale, own, head, fragment_channel(q));
    }
}

/* Runs cca_fragments of a block: every `stride`-th tile of its warps. */
INLINE void fragment_tiles(const CcaArguments *a) {
    const CcaInput *in = &a->in;
    int head = block_y(), heads = in->heads + in->kv_heads, across = (int)(a->stride / (FRAGMENT_WARPS * FRAGMENT_ROWS));
    begin_fragment_weights(in, head);
    shift_all_values(a, (block_x() * heads + head) * FRAGMENT_THREADS + thread_id(), across * heads * FRAGMENT_THREADS);
    copies_wait(0);
    barrier();
    for (int64_t first = (block_x() * FRAGMENT_WARPS + wave_id()) * FRAGMENT_ROWS; first < in->rows; first += a->stride) {
        FragmentSums sums;
        RowPlace row[2];
        UNROLL for (int r = 0; r < 2; r++) row[r] = tile_place_row(in, (int)first + fragment_row(r));
        begin_fragment_sums(&sums, a, row, head);
        convolve_fragments(&sums, in, (int)first, head);
        finish_fragments(a, &sums, row, first, head);
    }
}

KERNEL(cca_fragments, CcaArguments) {
    BLOCK_BOUNDS(FRAGMENT_THREADS, FRAGMENT_BLOCKS);
    CcaArguments own = a;
    own.in.whole = true;
    own.in.dim = FRAGMENT_DIM;
    fragment_tiles(&own);
}
#endif

/* state = the last two rows of (state, u). */
KERNEL(cca_state, CcaStateArguments) {
    int64_t column = (int64_t)block_x() * CCA_THREADS + thread_id();
    if (column >= a.columns) return;
    a.state[column] = a.rows > 1 ? a.u[(a.rows - 2) * a.columns + column] : a.state[a.columns + column];
    a.state[a.columns + column] = a.u[(a.rows - 1) * a.columns + column];
}

#else

LAUNCHERS(cca, CcaArguments, cca_64, cca_128, cca_any)
LAUNCHER(cca_fragments, CcaArguments)
LAUNCHER(cca_state, CcaStateArguments)

enum { RESIDENT = 2 }; /* blocks that fit on a multiprocessor */

static void launch_fragments(Device *device, CcaArguments *arguments) {
    const CcaInput *in = &arguments->in;
    int64_t rows = FRAGMENT_WARPS * FRAGMENT_ROWS, heads = in->heads + in->kv_heads;
    LaunchShape shape = {.x = divide_up(divide_up(in->rows, rows),
                             cca_tiles_per_block(in, rows, heads, FRAGMENT_BLOCKS * (int64_t)device_info(device)->processors)),
        .y = heads,
        .threads = FRAGMENT_THREADS,
        .shared = FRAGMENT_WEIGHTS};
    arguments->stride = shape.x * rows;
    launch_cca_fragments(device, shape, arguments);
}

static void launch_tiles(Device *device, CcaArguments *arguments) {
    const CcaInput *in = &arguments->in;
    int64_t tiles = divide_up(in->rows, cca_tile_rows(in)), tasks = in->heads + in->kv_heads + 1;
    int64_t most = RESIDENT * device_info(device)->processors / tasks; /* all at once */
    if (most < 1) most = 1;
    LaunchShape shape = {.x = tiles < most ? tiles : most, .y = tasks, .threads = CCA_WAVES * device_info(device)->wave};
    arguments->stride = shape.x * cca_tile_rows(in);
    launch_cca(device, cca_form(in), shape, arguments);
}

GPU_OP(cca) {
    CcaArguments arguments = {.in = cca_input(call),
        .table = call->in[CCA_ROPE_TABLE],
        .grouped_bias = call->in[CCA_GROUPED_BIAS],
        .temperature = call->in[CCA_TEMPERATURE],
        .qkv = call->out[CCA_QKV],
        .units = call->out[CCA_UNIT_KEYS],
        .scales = call->out[CCA_HEAD_SCALES]};
    const CcaInput *in = &arguments.in;
    if (cca_in_fragments(call->device, in)) launch_fragments(call->device, &arguments);
    else launch_tiles(call->device, &arguments);
    if (!call->out[CCA_STATE]) return;
    CcaStateArguments state = {.u = in->u, .state = call->out[CCA_STATE], .rows = in->rows, .columns = in->columns};
    int threads = CCA_WAVES * device_info(call->device)->wave;
    launch_cca_state(call->device, (LaunchShape){.x = divide_up(in->columns, threads), .threads = threads}, &state);
}

#endif
