/* The kernels of the backward pass of cca on a GPU (mathematics in rule.c):
 *   1. cca_grad_norm: through RoPE, temperature and norm to g [rows, C] in bf16; bound by memory
 *      bandwidth;
 *   2. cca_grad_bias: the gradients of both biases and the temperature, from sums over rows. g goes
 *      through both taps of the grouped weight into the depthwise output of some row or of the
 *      padding, each of which contains the bias: so the depthwise bias gets the sum of g times the
 *      sum of both taps;
 *   3. cca_grad_input: back through the grouped weight, held in registers as in the forward pass,
 *      with (g_r, g_{r+1}) side by side as its tile; then through depthwise convolution and mean to
 *      du. For heads of 128 channels on NVIDIA it is cca_grad_input_fragments, in which a warp
 *      keeps its rows in registers (gpu_fragments_kernels.h);
 *   4. cca_grad_weight: the gradient of the grouped weight, from g and the pairs, recomputed from
 *      u;
 *   5. cca_grad_halo, if there is a halo: what the first row of each chunk sends back to it.
 * Sums over rows are computed per chunk of rows and added in chunk order. Scratch: g and these sums
 * (GradGpuLayout). */
#include "ops/cca/gpu_fragments_kernels.h"

enum {
    NORM_THREADS = 256,
    NORM_ROWS = 64,   /* per block, loaded together */
    BIAS_PARTS = 8,   /* threads that share a column in cca_grad_bias */
    INPUT_BLOCKS = 2, /* of cca_grad_input_fragments per multiprocessor: a lane has 255 registers */
    WEIGHT_THREADS = 256,
    WEIGHT_STEP = 64,    /* rows per tile */
    WEIGHT_COLUMNS = 128 /* columns of pairs per tile: two for each channel */
};

/* Tiles of a block of cca_grad_input, by the lanes of a wave: 16,384 rows of 10 heads of 128
 * channels give 590 blocks on AMD, two per MI300X compute unit, and 260 on NVIDIA. */
#define INPUT_TILES(wave) ((wave) == 64 ? 9 : 21)

/* `y` and `units` are the forward outputs qkv and unit_keys; sums are per block of NORM_ROWS. */
typedef struct CcaNormGradArguments {
    CcaInput in;
    const bf16 GLOBAL *dy, *y, *units;
    const float GLOBAL *table, *temperature, *scales;
    bf16 GLOBAL *du, *g;
    float GLOBAL *bias_sums, *temperature_sums; /* [blocks, convolved], [blocks, kv_heads] */
} CcaNormGradArguments;

typedef struct CcaBiasGradArguments {
    const bf16 GLOBAL *grouped;
    const float GLOBAL *bias_sums, *temperature_sums;
    float GLOBAL *depthwise_bias, *grouped_bias, *temperature;
    int64_t convolved;
    int32_t blocks, heads, kv_heads, dim;
} CcaBiasGradArguments;

typedef struct CcaInputGradArguments {
    CcaInput in;
    const bf16 GLOBAL *g;
    bf16 GLOBAL *du;
    float GLOBAL *tap_sums; /* [chunks, convolved, 2] */
    int32_t block_rows;     /* rows of a block of cca_grad_input_fragments */
} CcaInputGradArguments;

typedef struct CcaHaloGradArguments {
    CcaInput in;
    const bf16 GLOBAL *g, *dy;
    bf16 GLOBAL *d_halo;
    float GLOBAL *tap_sums; /* [chunks of u, convolved, 2] */
} CcaHaloGradArguments;

typedef struct CcaWeightGradArguments {
    CcaInput in;
    const bf16 GLOBAL *g;
    float GLOBAL *sums; /* [chunks, convolved, 2 * dim] */
    int32_t block_rows; /* rows of a chunk, a multiple of WEIGHT_STEP */
    int32_t parts;      /* blocks per head's columns */
} CcaWeightGradArguments;

#ifdef GPU_DEVICE

/* -- Through rotation, temperature and norm ------------------------------------------------------------------------ */

/* One head's rows of dy and of the rotated, normalized vectors. */
typedef struct NormRow {
    const bf16 GLOBAL *dy, *y;
    float pull, scale;
} NormRow;

/* Gradient through the norm: scale (dy - y * pull) of eight channels, in the rotated frame, because
 * a rotation keeps lengths. */
INLINE f32x8 undo_norm(const NormRow *row, int channel, int left, bool whole) {
    return (load_channels(row->dy + channel, left, whole) - load_channels(row->y + channel, left, whole) * row->pull) * row->scale;
}

/* Gradient through RoPE: `own`, eight channels of undo_norm, rotated back by the angles. */
INLINE f32x8 undo_rotation(const NormRow *row, f32x8 own, int channel, const CcaInput *in, const float GLOBAL *angles) {
    int half = in->rotated / 2;
    if (channel >= in->rotated) return own;
    if (in->whole) {
        bool second = channel >= half;
        int angle = second ? channel - half : channel;
        f32x8 other = undo_norm(row, second ? angle : channel + half, CHUNK, true);
        f32x8 cosine = load_wide(angles + angle, CHUNK, true), sine = load_wide(angles + half + angle, CHUNK, true);
        return own * cosine + other * (second ? -sine : sine);
    }
    UNROLL for (int i = 0; i < CHUNK; i++) {
        int c = channel + i, angle = c < half ? c : c - half, other = c < half ? c + half : c - half;
        if (c >= in->rotated) continue;
        float sine = c < half ? angles[half + angle] : -angles[half + angle];
        own[i] = own[i] * angles[angle] + (to_float(row->dy[other]) - to_float(row->y[other]) * row->pull) * row->scale * sine;
    }
    return own;
}

/* The inputs of a thread for its chunk of a row: dy and y of its channels and of their RoPE
 * partners. */
typedef struct NormChunk {
    NormRow row;
    u32x4 dy, y, other_dy, other_y;
    float scale;
    int position;
} NormChunk;

/* Returns the RoPE partners of eight channels from `channel` on; `channel` if they are not
 * rotated. */
INLINE int paired(const CcaInput *in, int channel) {
    int half = in->rotated / 2;
    return channel >= in->rotated ? channel : channel < half ? channel + half : channel - half;
}

INLINE NormChunk load_norm_chunk(const CcaNormGradArguments *a, int r, int head, int channel) {
    const CcaInput *in = &a->in;
    int own = r < in->rows ? r : in->rows - 1, key = head - in->heads, left = in->dim - channel, other = paired(in, channel);
    const bf16 GLOBAL *dy = a->dy + offset_of(own, in->columns) + head * in->dim;
    const bf16 GLOBAL *y =
        key < 0 ? a->y + offset_of(own, in->columns) + head * in->dim : a->units + offset_of(own, in->values) + key * in->dim;
    return (NormChunk){.row = {.dy = dy, .y = y},
        .dy = load_chunk(dy + channel, left, in->whole),
        .y = load_chunk(y + channel, left, in->whole),
        .other_dy = in->whole ? load_chunk(dy + other, left, true) : (u32x4)0,
        .other_y = in->whole ? load_chunk(y + other, left, true) : (u32x4)0,
        .scale = a->scales[offset_of(own, in->heads + in->kv_heads) + head],
        .position = in->positions[own]};
}

/* undo_rotation with the loaded values. */
INLINE f32x8 undo_loaded_rotation(const NormChunk *chunk, f32x8 own, int channel, const CcaInput *in, const float GLOBAL *table) {
    const float GLOBAL *angles = table + offset_of(chunk->position, in->rotated);
    if (!in->whole || !in->rotated) return undo_rotation(&chunk->row, own, channel, in, angles);
    int half = in->rotated / 2, angle = channel < half ? channel : channel < in->rotated ? channel - half : 0;
    f32x8 cosine = load8_wide(angles + angle, CHUNK), sine = load8_wide(angles + half + angle, CHUNK);
    f32x8 other = (to_float8(chunk->other_dy) - to_float8(chunk->other_y) * chunk->row.pull) * chunk->row.scale;
    return channel >= in->rotated ? own : own * cosine + other * (channel < half ? sine : -sine);
}

/* Computes g of a thread's chunks of NORM_ROWS rows, stores it and adds it to `sum`, and adds the
 * rows' products with dy to `dot_sum`. */
INLINE void norm_rows_grad(const CcaNormGradArguments *a, f32x8 *sum, float *dot_sum, int group, int head, int channel, const int DIM) {
    enum { MOST = NORM_ROWS / (NORM_THREADS / (CCA_MAX_DIM / CHUNK)) };
    const int groups = NORM_THREADS / (DIM / CHUNK), steps = NORM_ROWS / groups;
    const CcaInput *in = &a->in;
    int first = block_x() * NORM_ROWS + group, key = head - in->heads;
    float temperature = key < 0 ? 1 : a->temperature[key];
    NormChunk chunks[MOST];
    UNROLL for (int i = 0; i < steps; i++) chunks[i] = load_norm_chunk(a, first + i * groups, head, channel);
    UNROLL for (int i = 0; i < steps; i++) {
        NormChunk *chunk = &chunks[i];
        int r = first + i * groups;
        f32x8 dy = to_float8(chunk->dy), y = to_float8(chunk->y);
        float along = 0;
        UNROLL for (int j = 0; j < CHUNK; j++) along += dy[j] * y[j];
        along = sum_of_row(along, DIM);
        bool normal = chunk->scale * CCA_LEAST_NORM < 0.9999f * fast_sqrt((float)in->dim); /* up to rounding */
        chunk->row.pull = normal ? along / (float)in->dim : 0;
        chunk->row.scale = chunk->scale * temperature;
        f32x8 g = undo_loaded_rotation(chunk, (dy - y * chunk->row.pull) * chunk->row.scale, channel, in, a->table);
        if (r >= in->rows) continue;
        *sum += g;
        *dot_sum += along;
        store_channels(a->g + offset_of(r, in->convolved) + head * in->dim + channel, g, in->dim - channel, in->whole);
    }
}

/* Computes g of one head and NORM_ROWS rows, and its sums; DIM / CHUNK threads take a row. */
INLINE void norm_head_grad(const CcaNormGradArguments *a, int head, LOCAL float *sums, LOCAL float *dots, const int DIM) {
    const int groups = NORM_THREADS / (DIM / CHUNK);
    const CcaInput *in = &a->in;
    int group = thread_id() / (DIM / CHUNK), channel = chunk_channel(DIM), key = head - in->heads;
    float dot_sum = 0;
    f32x8 sum = (f32x8)0;
    norm_rows_grad(a, &sum, &dot_sum, group, head, channel, DIM);
    UNROLL for (int i = 0; i < CHUNK; i++) sums[group * DIM + channel + i] = sum[i];
    if (channel == 0) dots[group] = dot_sum;
    barrier();
    for (int c = thread_id(); c < in->dim; c += NORM_THREADS) {
        float total = 0;
        UNROLL for (int i = 0; i < groups; i++) total += sums[i * DIM + c];
        a->bias_sums[block_x() * in->convolved + head * in->dim + c] = total;
    }
    if (key < 0 || thread_id() > 0) return;
    float total = 0;
    UNROLL for (int i = 0; i < groups; i++) total += dots[i];
    a->temperature_sums[block_x() * in->kv_heads + key] = total;
}

/* Computes the gradient of the value columns: the next row read this row's delayed columns. */
INLINE void shift_values_grad(const CcaNormGradArguments *a) {
    const CcaInput *in = &a->in;
    int values = (int)in->values, current = (int)in->current, chunks = (values + CHUNK - 1) / CHUNK;
    for (int i = thread_id(); i < NORM_ROWS * chunks; i += NORM_THREADS) {
        int column = i % chunks * CHUNK, left = values - column;
        int64_t r = (int64_t)block_x() * NORM_ROWS + i / chunks, at = r * in->columns + in->convolved + column;
        if (r >= in->rows) return;
        f32x8 own = load_channels(a->dy + at, left, in->whole), next = (f32x8)0;
        if (follows_in_document(in, r + 1)) next = load_channels(a->dy + at + in->columns, left, in->whole);
        UNROLL for (int j = 0; j < CHUNK; j++) own[j] = column + j < current ? own[j] : next[j];
        store_channels(a->du + at, own, left, in->whole);
    }
}

#define CCA_GRAD_NORM(name, DIM, in_chunks)                                                                                                \
    KERNEL(name, CcaNormGradArguments) {                                                                                                   \
        static SHARED float sums[NORM_THREADS * CHUNK], dots[NORM_THREADS / (DIM / CHUNK)];                                              \
        CcaNormGradArguments own = a;                                                                                                      \
        own.in.whole = in_chunks;                                                                                                          \
        if (block_y() == a.in.heads + a.in.kv_heads) shift_values_grad(&own);                                                              \
        else norm_head_grad(&own, block_y(), sums, dots, DIM);                                                                           \
    }
CCA_GRAD_NORM(cca_grad_norm_64, 64, true)
CCA_GRAD_NORM(cca_grad_norm_128, 128, true)
CCA_GRAD_NORM(cca_grad_norm_any, CCA_MAX_DIM, false)

/* Returns the sum of a thread's rows of a column of the blocks' sums, from row b on, with eight
 * loads in flight. */
INLINE float sum_of_blocks(const CcaBiasGradArguments *a, int b, int64_t column) {
    const int step = BIAS_PARTS;
    float sum = 0;
    for (; b + 7 * step < a->blocks; b += 8 * step) {
        float x[8];
        UNROLL for (int i = 0; i < 8; i++) x[i] = a->bias_sums[(b + i * step) * a->convolved + column];
        UNROLL for (int i = 0; i < 8; i++) sum += x[i];
    }
    for (; b < a->blocks; b += step) sum += a->bias_sums[b * a->convolved + column];
    return sum;
}

/* Returns the sum of both taps of channel c's column of the weight times the rows' totals, over a
 * thread's rows from row k on. */
INLINE float sum_of_taps(const CcaBiasGradArguments *a, LOCAL const float *total, int head, int k, int c) {
    const int step = BIAS_PARTS;
    float sum = 0;
    for (; k + 7 * step < a->dim; k += 8 * step) {
        uint32_t taps[8];
        UNROLL for (int i = 0; i < 8; i++) taps[i] =
            *(const uint32_t GLOBAL *)(a->grouped + ((int64_t)(head * a->dim + k + i * step) * a->dim + c) * 2);
        UNROLL for (int i = 0; i < 8; i++) sum += total[k + i * step] * (to_float_low(taps[i]) + to_float_high(taps[i]));
    }
    for (; k < a->dim; k += step) {
        uint32_t taps = *(const uint32_t GLOBAL *)(a->grouped + ((int64_t)(head * a->dim + k) * a->dim + c) * 2);
        sum += total[k] * (to_float_low(taps) + to_float_high(taps));
    }
    return sum;
}

/* Adds all parts to the first two. */
INLINE void join_bias_parts(LOCAL float (*parts)[CCA_MAX_DIM], int part, int c) {
    float sum = parts[part][c];
    if (part < 2) UNROLL for (int i = 2; i < BIAS_PARTS; i += 2) sum += parts[i + part][c];
    barrier();
    if (part < 2) parts[part][c] = sum;
    barrier();
}

/* Computes gradients of biases and temperature. A block has one head, and BIAS_PARTS threads share
 * a channel: each sums every BIAS_PARTS-th block and row of the weight. */
KERNEL(cca_grad_bias, CcaBiasGradArguments) {
    WAVE_BOUNDS(BIAS_PARTS * CCA_MAX_DIM, 4);
    static SHARED float parts[BIAS_PARTS][CCA_MAX_DIM], total[CCA_MAX_DIM];
    int c = thread_id() % CCA_MAX_DIM, part = thread_id() / CCA_MAX_DIM, head = block_x(), key = head - a.heads;
    int64_t column = head * a.dim + c;
    bool there = c < a.dim;
    float sum = 0;
    if (there) sum = sum_of_blocks(&a, part, column);
    parts[part][c] = sum;
    barrier();
    join_bias_parts(parts, part, c);
    if (part == 0) total[c] = parts[0][c] + parts[1][c];
    barrier();
    sum = 0;
    if (there) sum = sum_of_taps(&a, total, head, part, c);
    parts[part][c] = sum;
    barrier();
    join_bias_parts(parts, part, c);
    if (part == 0 && there) {
        a.grouped_bias[column] += total[c];
        a.depthwise_bias[column] += parts[0][c] + parts[1][c];
    }
    if (key < 0 || wave_id() > 0) return;
    sum = 0;
    for (int b = lane_id(); b < a.blocks; b += WAVE) sum += a.temperature_sums[(int64_t)b * a.kv_heads + key];
    sum = wave_sum(sum);
    if (lane_id() == 0) a.temperature[key] += sum;
}

/* -- Through the convolutions -------------------------------------------------------------------------------------- */

/* The lower (upper) halves of eight words: the earlier (later) taps. */
INLINE u32x4 lower_taps(const TapWords *taps) {
    u32x4 x;
    UNROLL for (int i = 0; i < 4; i++) x[i] = (taps->word[i / 2][i % 2 * 2] & 0xffff) | taps->word[i / 2][i % 2 * 2 + 1] << 16;
    return x;
}

INLINE u32x4 upper_taps(const TapWords *taps) {
    u32x4 x;
    UNROLL for (int i = 0; i < 4; i++) x[i] = taps->word[i / 2][i % 2 * 2] >> 16 | (taps->word[i / 2][i % 2 * 2 + 1] & 0xffff0000u);
    return x;
}

/* Loads the columns of the head's weights for each wave's channels, transposed: the later tap, then
 * the earlier one. The tile holds MMA rows per tap. */
INLINE void load_transposed_weights(Operand *weights, const CcaInput *in, int head, LOCAL bf16 *tile, const int DIM) {
    LOCAL bf16 *earlier = tile + MMA * DIM;
    UNROLL for (int k = 0; k < DIM / MMA; k++) {
        for (int i = thread_id(); i < MMA * DIM / CHUNK; i += CCA_THREADS) {
            int row = i / (DIM / CHUNK), channel = i % (DIM / CHUNK) * CHUNK, out = k * MMA + row;
            TapWords taps = load_taps(
                in->grouped + ((int64_t)(head * in->dim + out) * in->dim + channel) * 2, out < in->dim ? in->dim - channel : 0, in->whole);
            *(LOCAL u32x4 *)(tile + tile_at(DIM, row, channel)) = upper_taps(&taps);
            *(LOCAL u32x4 *)(earlier + tile_at(DIM, row, channel)) = lower_taps(&taps);
        }
        barrier();
        UNROLL for (int n = 0; n < DIM; n += MMA) if (cca_wave_column(DIM) == n) {
            operand_load_transposed(&weights[k], tile, DIM, 0, n);
            operand_load_transposed(&weights[DIM / MMA + k], earlier, DIM, 0, n);
        }
        barrier();
    }
}

/* Gradients of the depthwise weights of one thread's channels. */
typedef struct TapSums { f32x8 earlier, later; } TapSums;

/* Adds the threads' sums of each channel in order and stores them. */
INLINE void store_tap_sums(const CcaInputGradArguments *a, const TapSums *sums, LOCAL float *scratch, int head, const int DIM) {
    const int groups = CCA_THREADS / (DIM / CHUNK);
    LOCAL float *later = scratch + groups * DIM;
    int at = cca_chunk_row(0, DIM) * DIM + chunk_channel(DIM);
    barrier();
    UNROLL for (int i = 0; i < CHUNK; i++) {
        scratch[at + i] = sums->earlier[i];
        later[at + i] = sums->later[i];
    }
    barrier();
    for (int c = thread_id(); c < a->in.dim; c += CCA_THREADS) {
        f32x2 total = (f32x2)0;
        UNROLL for (int i = 0; i < groups; i++) total += (f32x2){scratch[i * DIM + c], later[i * DIM + c]};
        *(f32x2 GLOBAL *)(a->tap_sums + (block_x() * a->in.convolved + head * a->in.dim + c) * 2) = total;
    }
}

/* Returns whether row r + 1, at `after`, exists and continues the document and the chunk of row r. */
INLINE bool next_follows(const CcaInput *in, int r, RowPlace after) {
    return (r + 1 < in->rows) & (after.place > 0) & (after.position > 0);
}

#if defined __AMDGCN__
/* The loads of a chunk of a tile: g of its row, of the next row and of the head of its keys, and u
 * of its row and of the previous one. They start while the previous tile is computed, so that a
 * wave rarely waits for them. */
typedef struct InputChunk {
    u32x4 own, next, keys, u, before;
    RowPlace row, after;
} InputChunk;

INLINE InputChunk load_input_chunk(const CcaInputGradArguments *a, int r, int head, int channel) {
    const CcaInput *in = &a->in;
    int left = in->dim - channel, keys = head < in->heads ? in->heads + head / in->group : head, whole = in->whole;
    RowPlace row = tile_place_row(in, r), after = tile_place_row(in, r + 1);
    const bf16 GLOBAL *g = a->g + offset_of(row.row, in->convolved) + channel;
    int column = head * in->dim + channel;
    return (InputChunk){.own = load_chunk(g + head * in->dim, left, whole),
        .next = load_chunk(a->g + offset_of(after.row, in->convolved) + column, left, whole),
        .keys = load_chunk(g + keys * in->dim, left, whole),
        .u = load_chunk(in->u + offset_of(row.row, in->columns) + column, left, whole),
        .before = load_chunk(placed_before(in, row, 1) + column, left, whole),
        .row = row,
        .after = after};
}

/* Computes gradients through the qk-mean of this thread's chunks. */
INLINE void mean_grads(f32x8 *means, const CcaInputGradArguments *a, const InputChunk *chunks, int head, int channel) {
    const CcaInput *in = &a->in;
    UNROLL for (int i = 0; i < CCA_CHUNKS; i++) means[i] = to_float8(chunks[i].own);
    if (head >= in->heads)
        UNROLL for (int i = 0; i < CCA_CHUNKS; i++) means[i] = add_all_queries(means[i],
            a->g + offset_of(chunks[i].row.row, in->convolved) + (head - in->heads) * in->group * in->dim + channel, in, in->dim - channel);
    float of_keys = head < in->heads ? 0.5f / (float)in->group : 0;
    UNROLL for (int i = 0; i < CCA_CHUNKS; i++) means[i] = means[i] * 0.5f + to_float8(chunks[i].keys) * of_keys;
}

/* Computes du of row r, and its terms of the sums, from the gradients of rows `row` and `row` + 1
 * of the depthwise convolution in the tile. */
INLINE void depthwise_grad(const CcaInputGradArguments *a, TapSums *sums, const InputChunk *chunk, f32x8 mean, const TapWords *taps,
    LOCAL const float *products, int row, int64_t r, int head, int channel, const int DIM) {
    const CcaInput *in = &a->in;
    f32x8 d = load_products(products, row, channel, DIM), following = load_products(products, row + 1, channel, DIM);
    following = next_follows(in, (int)r, chunk->after) ? following : (f32x8)0;
    f32x8 du = mean + later_taps(taps) * d + earlier_taps(taps) * following;
    store_channels(a->du + r * in->columns + head * in->dim + channel, du, in->dim - channel, in->whole);
    sums->later += d * to_float8(chunk->u);
    sums->earlier += history_of(in, chunk->row) > 0 ? d * to_float8(chunk->before) : (f32x8)0;
}

/* Processes the tiles of a block, rows `first` to `end`. */
INLINE void input_grad_tiles(const CcaInputGradArguments *a, TapSums *sums, int64_t first, int64_t end, LOCAL bf16 *tile,
    LOCAL float *products, const Operand *weights, int head, const int DIM) {
    const CcaInput *in = &a->in;
    const int rows = CCA_TILE / DIM - 1;
    int channel = chunk_channel(DIM), left = in->dim - channel;
    TapWords taps = load_taps(in->depthwise + 2 * (head * in->dim + channel), left, in->whole);
    InputChunk ahead[CCA_CHUNKS];
    UNROLL for (int i = 0; i < CCA_CHUNKS; i++) ahead[i] = load_input_chunk(a, (int)first + cca_chunk_row(i, DIM), head, channel);
    for (; first < end; first += rows) {
        InputChunk chunks[CCA_CHUNKS];
        f32x8 means[CCA_CHUNKS];
        UNROLL for (int i = 0; i < CCA_CHUNKS; i++) {
            int row = cca_chunk_row(i, DIM), r = (int)first + row;
            chunks[i] = ahead[i];
            bool follows = next_follows(in, r, chunks[i].after);
            *(LOCAL u32x4 *)(tile + tile_at(2 * DIM, row, channel)) = r < in->rows ? chunks[i].own : (u32x4)0;
            *(LOCAL u32x4 *)(tile + tile_at(2 * DIM, row, DIM + channel)) = follows ? chunks[i].next : (u32x4)0;
        }
        mean_grads(means, a, chunks, head, channel);
        UNROLL for (int i = 0; i < CCA_CHUNKS; i++) ahead[i] =
            load_input_chunk(a, (int)first + rows + cca_chunk_row(i, DIM), head, channel);
        barrier();
        multiply_tile(products, tile, weights, false, DIM);
        barrier();
        UNROLL for (int i = 0; i < CCA_CHUNKS; i++) {
            int row = cca_chunk_row(i, DIM);
            if (row < rows && first + row < end)
                depthwise_grad(a, sums, &chunks[i], means[i], &taps, products, row, first + row, head, channel, DIM);
        }
    }
}

/* Runs cca_grad_input of a block. The last row of a tile only serves the previous row. */
INLINE void input_grad(const CcaInputGradArguments *a, LOCAL bf16 *tile, LOCAL float *products, const int DIM) {
    const CcaInput *in = &a->in;
    const int rows = CCA_TILE / DIM - 1;
    int head = block_y();
    int64_t first = (int64_t)block_x() * INPUT_TILES(WAVE) * rows,
            end = first + INPUT_TILES(WAVE) * rows < in->rows ? first + INPUT_TILES(WAVE) * rows : in->rows;
    Operand weights[2 * CCA_MAX_DIM / MMA];
    TapSums sums = {(f32x8)0, (f32x8)0};
    load_transposed_weights(weights, in, head, tile, DIM);
    input_grad_tiles(a, &sums, first, end, tile, products, weights, head, DIM);
    store_tap_sums(a, &sums, products, head, DIM);
}

#else
/* Sets row `row` of the tile to g of row r, followed by g of row r + 1 if that row continues the
 * document. */
INLINE void store_gradients(
    LOCAL bf16 *tile, int row, int channel, const CcaInput *in, const bf16 GLOBAL *g, int64_t r, int left, const int DIM) {
    int64_t last = in->rows - 1;
    u32x4 own = load_chunk(g + (r < last ? r : last) * in->convolved, left, in->whole);
    u32x4 next = load_chunk(g + (r < last ? r + 1 : last) * in->convolved, left, in->whole);
    *(LOCAL u32x4 *)(tile + tile_at(2 * DIM, row, channel)) = r < in->rows ? own : (u32x4)0;
    *(LOCAL u32x4 *)(tile + tile_at(2 * DIM, row, DIM + channel)) = follows_in_document(in, r + 1) ? next : (u32x4)0;
}

/* Returns the gradient through the qk-mean of eight channels of head `head` of row r. */
INLINE f32x8 mean_grad(const CcaInput *in, const bf16 GLOBAL *g, int64_t r, int head, int channel) {
    int left = in->dim - channel;
    bool whole = in->whole;
    const bf16 GLOBAL *row = g + r * in->convolved + channel, *keys = row + in->heads * in->dim;
    if (head < in->heads)
        return load_channels(row + head * in->dim, left, whole) * 0.5f +
               load_channels(keys + head / in->group * in->dim, left, whole) * (0.5f / (float)in->group);
    int key = head - in->heads;
    f32x8 sum = load_channels(keys + key * in->dim, left, whole);
    for (int h = 0; h < in->group; h++) sum += load_channels(row + (key * in->group + h) * in->dim, left, whole);
    return sum * 0.5f;
}

/* Computes du of row r, and its terms of the sums, from the gradients of rows `row` and `row` + 1
 * of the depthwise convolution in the tile. */
INLINE void depthwise_grad(
    const CcaInputGradArguments *a, TapSums *sums, LOCAL const float *products, int row, int64_t r, int head, int channel, const int DIM) {
    const CcaInput *in = &a->in;
    int left = in->dim - channel;
    int64_t column = head * in->dim + channel;
    bool whole = in->whole;
    f32x8 mean = mean_grad(in, a->g, r, head, channel), u = load_channels(row_of_u(in, r) + column, left, whole);
    f32x8 before = load_channels(row_before(in, r, 1) + column, left, whole);
    TapWords taps = load_taps(in->depthwise + 2 * column, left, whole);
    f32x8 d = load_products(products, row, channel, DIM), following = load_products(products, row + 1, channel, DIM);
    following = follows_in_document(in, r + 1) ? following : (f32x8)0;
    store_channels(a->du + r * in->columns + column, mean + later_taps(&taps) * d + earlier_taps(&taps) * following, left, whole);
    sums->later += d * u;
    sums->earlier += history(in, r) > 0 ? d * before : (f32x8)0;
}

/* Runs cca_grad_input of a block. The last row of a tile only serves the previous row. */
INLINE void input_grad(const CcaInputGradArguments *a, LOCAL bf16 *tile, LOCAL float *products, const int DIM) {
    const CcaInput *in = &a->in;
    const int rows = CCA_TILE / DIM - 1;
    int head = block_y(), channel = chunk_channel(DIM), left = in->dim - channel;
    int64_t first = (int64_t)block_x() * INPUT_TILES(WAVE) * rows,
            end = first + INPUT_TILES(WAVE) * rows < in->rows ? first + INPUT_TILES(WAVE) * rows : in->rows;
    const bf16 GLOBAL *g = a->g + head * in->dim + channel;
    Operand weights[2 * CCA_MAX_DIM / MMA];
    TapSums sums = {(f32x8)0, (f32x8)0};
    load_transposed_weights(weights, in, head, tile, DIM);
    for (; first < end; first += rows) {
        UNROLL for (int i = 0; i < CCA_CHUNKS; i++)
            store_gradients(tile, cca_chunk_row(i, DIM), channel, in, g, first + cca_chunk_row(i, DIM), left, DIM);
        barrier();
        multiply_tile(products, tile, weights, false, DIM);
        barrier();
        _Pragma("clang loop unroll_count(2)") for (int i = 0; i < CCA_CHUNKS; i++) {
            int row = cca_chunk_row(i, DIM);
            if (row < rows && first + row < end) depthwise_grad(a, &sums, products, row, first + row, head, channel, DIM);
        }
    }
    store_tap_sums(a, &sums, products, head, DIM);
}
#endif

#define CCA_GRAD_INPUT(name, DIM, in_chunks)                                                                                               \
    KERNEL(name, CcaInputGradArguments) {                                                                                                  \
        WAVE_BOUNDS(256, 2);                                                                                                               \
        static SHARED __attribute__((aligned(CCA_ALIGNMENT))) bf16 tile[2 * CCA_TILE];                                                     \
        static SHARED __attribute__((aligned(CCA_ALIGNMENT))) float products[CCA_TILE];                                                    \
        CcaInputGradArguments own = a;                                                                                                     \
        own.in.whole = in_chunks;                                                                                                          \
        if (fills(&own.in, DIM)) {                                                                                                         \
            own.in.dim = DIM;                                                                                                              \
            input_grad(&own, tile, products, DIM);                                                                                         \
        } else {                                                                                                                           \
            input_grad(&own, tile, products, DIM);                                                                                         \
        }                                                                                                                                  \
    }
CCA_GRAD_INPUT(cca_grad_input_64, 64, true)
CCA_GRAD_INPUT(cca_grad_input_128, 128, true)
CCA_GRAD_INPUT(cca_grad_input_any, CCA_MAX_DIM, false)

#if defined __NVPTX__
/* -- Heads of 128 channels on NVIDIA ------------------------------------------------------------------------------- */

enum { FRAGMENT_KEPT = FRAGMENT_ROWS - 1 }; /* the last row of a tile serves only the row before it */

/* Stores the head's weights transposed: the later tap in the first half of the steps along k, the
 * earlier one in the second half. */
INLINE void load_transposed_fragments(const CcaInput *in, int head) {
    int channel = thread_id(), column = channel / 32 * 4 + channel % CHUNK / 2, g = channel % 32 / CHUNK * 2 + channel % 2;
    _Pragma("clang loop unroll_count(4)") for (int k = 0; k < FRAGMENT_DIM / CHUNK; k++) {
        TapWords taps;
        UNROLL for (int i = 0; i < CHUNK; i++) taps.word[i / 4][i % 4] =
            *(const uint32_t GLOBAL *)(in->grouped + ((int64_t)(head * FRAGMENT_DIM + k * CHUNK + i) * FRAGMENT_DIM + channel) * 2);
        fragment_weights[fragment_at(column, k / 4, g * 4 + k % 4)] = upper_taps(&taps);
        fragment_weights[fragment_at(column, FRAGMENT_CHUNKS + k / 4, g * 4 + k % 4)] = lower_taps(&taps);
    }
}

/* Both rows of a lane, and the rows after them. Masks have all bits set if true, and select without
 * a branch, because clang does not move loads across branches. They say whether the next row
 * follows, whether this tile computes du of the row, and if so, whether the previous row belongs to
 * the row's document. */
typedef struct FragmentPlaces {
    RowPlace row[2], after[2];
    uint32_t follows[2], kept[2], continues[2];
} FragmentPlaces;

INLINE FragmentPlaces place_fragments(const CcaInput *in, int first, int end) {
    FragmentPlaces places;
    if (end > first + FRAGMENT_KEPT) end = first + FRAGMENT_KEPT;
    UNROLL for (int r = 0; r < 2; r++) {
        int own = first + fragment_row(r);
        places.row[r] = tile_place_row(in, own);
        places.after[r] = tile_place_row(in, own + 1);
        places.follows[r] = next_follows(in, own, places.after[r]) ? ~0u : 0;
        places.kept[r] = own < end ? ~0u : 0;
        places.continues[r] = history_of(in, places.row[r]) > 0 ? places.kept[r] : 0;
    }
    return places;
}

/* A lane's rows, all loaded before the first matmul of a tile: g of the head and of the first head
 * that shares its mean, and u. */
typedef struct InputRows {
    FragmentPlaces places;
    FragmentRows own, other, u;
} InputRows;

/* Returns the first head whose g contributes to head `head` through the mean: for a query head its
 * key head, for a key head its first query head. */
INLINE int first_other(const CcaInput *in, int head) {
    return head < in->heads ? in->heads + head / in->group : (head - in->heads) * in->group;
}

INLINE InputRows load_input_rows(const CcaInputGradArguments *a, int first, int end, int head) {
    const CcaInput *in = &a->in;
    InputRows rows = {.places = place_fragments(in, first, end)};
    const RowPlace *place = rows.places.row;
    load_fragment_rows(&rows.own, a->g, place, in->convolved, head);
    load_fragment_rows(&rows.other, a->g, place, in->convolved, first_other(in, head));
    load_fragment_rows(&rows.u, in->u, place, in->columns, head);
    return rows;
}

INLINE void multiply_chunk(FragmentSums *sums, u32x4 x, u32x4 y, int step) {
    uint32_t a[4] = {x.x, y.x, x.y, y.y}, b[4] = {x.z, y.z, x.w, y.w};
    fragment_multiply(sums, a, b, step);
}

/* Sets sums to the gradients of the depthwise convolution, from g of the rows and of the next rows. */
INLINE void multiply_fragments(FragmentSums *sums, const CcaInputGradArguments *a, const InputRows *rows, int head) {
    const FragmentPlaces *places = &rows->places;
    const CcaInput *in = &a->in;
    const bf16 GLOBAL *g = a->g + head * FRAGMENT_DIM;
    FragmentRows next;
    UNROLL for (int r = 0; r < 2; r++) UNROLL for (int q = 0; q < FRAGMENT_CHUNKS; q++) next.x[r][q] =
        *(const u32x4 GLOBAL *)(g + offset_of(places->after[r].row, in->convolved) + fragment_channel(q));
    UNROLL for (int j = 0; j < FRAGMENT_COLUMNS; j++) sums->x[j] = (f32x4)0;
    UNROLL for (int q = 0; q < FRAGMENT_CHUNKS; q++) multiply_chunk(sums, rows->own.x[0][q], rows->own.x[1][q], q);
    UNROLL for (int q = 0; q < FRAGMENT_CHUNKS; q++)
        multiply_chunk(sums, next.x[0][q] & places->follows[0], next.x[1][q] & places->follows[1], FRAGMENT_CHUNKS + q);
}

/* Returns the gradient through the qk-mean of chunk q of row r of a lane. Here and below, callers
 * pass a constant as `is_key`: whether the head is a key head. */
INLINE f32x8 fragment_mean_grad(const CcaInputGradArguments *a, const InputRows *rows, int head, int r, int q, const bool is_key) {
    const CcaInput *in = &a->in;
    f32x8 own = to_float8(rows->own.x[r][q]), other = to_float8(rows->other.x[r][q]);
    if (!is_key) return own * 0.5f + other * (0.5f / (float)in->group);
    const bf16 GLOBAL *g =
        a->g + offset_of(rows->places.row[r].row, in->convolved) + fragment_channel(q) + first_other(in, head) * FRAGMENT_DIM;
    for (int h = 1; h < in->group; h++) other += load_channels(g + h * FRAGMENT_DIM, CHUNK, true);
    return (own + other) * 0.5f;
}

/* Returns `yes` if all bits of the mask are set, `no` if none is. */
INLINE float choose(uint32_t mask, float yes, float no) {
    return __builtin_bit_cast(float, (__builtin_bit_cast(uint32_t, yes) & mask) | (__builtin_bit_cast(uint32_t, no) & ~mask));
}

/* Returns chunk q of the row after row r of a lane, or zeros if that row does not follow. The second
 * row of lanes 0 to 3 follows the first row of lanes 28 to 31. */
INLINE f32x8 following_chunk(const FragmentSums *sums, const FragmentPlaces *places, int q, int r) {
    f32x8 first = fragment_chunk(sums, q, 0), second = fragment_chunk(sums, q, 1), following;
    uint32_t sends_second = r > 0 || lane_id() < 4 ? ~0u : 0;
    UNROLL for (int i = 0; i < CHUNK; i++) {
        float next = shuffle_float(choose(sends_second, second[i], first[i]), (lane_id() + 4) % WAVE);
        following[i] = choose(places->follows[r], next, 0);
    }
    return following;
}

/* Sums over the eight lanes that share these channels, and returns two sums to each lane: of the
 * later tap's eight sums followed by the earlier tap's, lanes 4 g to 4 g + 3 get sums 2 g and
 * 2 g + 1. */
INLINE f32x2 scatter_sums(f32x8 later, f32x8 earlier) {
    float x[16];
    UNROLL for (int i = 0; i < 8; i++) x[i] = later[i], x[8 + i] = earlier[i];
    UNROLL for (int half = 8; half > 1; half /= 2) {
        uint32_t upper = lane_id() & 2 * half ? ~0u : 0;
        UNROLL for (int i = 0; i < half; i++) x[i] =
            choose(upper, x[half + i], x[i]) + shuffle_xor(choose(upper, x[i], x[half + i]), 2 * half);
    }
    return (f32x2){x[0], x[1]};
}

/* Stores du of chunk q of both rows, and returns the terms for the sums over rows (scatter_sums). */
INLINE f32x2 finish_fragment_grads(
    const CcaInputGradArguments *a, const FragmentSums *d_sums, const InputRows *rows, int head, const int q, const bool is_key) {
    const FragmentPlaces *places = &rows->places;
    const CcaInput *in = &a->in;
    int column = head * FRAGMENT_DIM + fragment_channel(q);
    f32x8 later = (f32x8)0, earlier = (f32x8)0;
    TapWords taps = load_taps(in->depthwise + 2 * column, CHUNK, true);
    UNROLL for (int r = 0; r < 2; r++) {
        RowPlace row = places->row[r];
        u32x4 before = load_chunk(placed_before(in, row, 1) + column, CHUNK, true); /* in the first-level cache, with u */
        f32x8 d = fragment_chunk(d_sums, q, r), following = following_chunk(d_sums, places, q, r);
        f32x8 du = fragment_mean_grad(a, rows, head, r, q, is_key) + later_taps(&taps) * d + earlier_taps(&taps) * following;
        if (places->kept[r]) store_channels(a->du + offset_of(row.row, in->columns) + column, du, CHUNK, true);
        later += d * to_float8(rows->u.x[r][q] & places->kept[r]);
        earlier += d * to_float8(before & places->continues[r]);
    }
    return scatter_sums(later, earlier);
}

/* Adds the warps' sums of each channel in order and stores them. They are exchanged through the
 * memory of the weights, indexed by warp and tap. */
INLINE void store_fragment_taps(const CcaInputGradArguments *a, const f32x2 sums[FRAGMENT_CHUNKS], int head) {
    LOCAL float *shared = (LOCAL float *)fragment_weights;
    int g = lane_id() / 4, tap = g / 4, channel = g % 4 * 2, c = thread_id();
    barrier();
    UNROLL for (int q = 0; q < FRAGMENT_CHUNKS; q++) *
        (LOCAL f32x2 *)(shared + (wave_id() * 2 + tap) * FRAGMENT_DIM + fragment_channel(q) + channel) = sums[q];
    barrier();
    f32x2 total = (f32x2)0;
    UNROLL for (int w = 0; w < FRAGMENT_WARPS; w++) total +=
        (f32x2){shared[(w * 2 + 1) * FRAGMENT_DIM + c], shared[w * 2 * FRAGMENT_DIM + c]};
    *(f32x2 GLOBAL *)(a->tap_sums + (block_x() * a->in.convolved + head * FRAGMENT_DIM + c) * 2) = total;
}

/* Runs cca_grad_input_fragments of a block: its warps take tiles in turn. */
INLINE void input_grad_fragments(const CcaInputGradArguments *a, int head, const bool is_key) {
    int block = block_x() * a->block_rows, end = block + a->block_rows < a->in.rows ? block + a->block_rows : a->in.rows;
    f32x2 sums[FRAGMENT_CHUNKS];
    UNROLL for (int q = 0; q < FRAGMENT_CHUNKS; q++) sums[q] = (f32x2)0;
    load_transposed_fragments(&a->in, head);
    barrier();
    for (int first = block + wave_id() * FRAGMENT_KEPT; first < end; first += FRAGMENT_WARPS * FRAGMENT_KEPT) {
        FragmentSums d;
        InputRows rows = load_input_rows(a, first, end, head);
        multiply_fragments(&d, a, &rows, head);
        UNROLL for (int q = 0; q < FRAGMENT_CHUNKS; q++) sums[q] += finish_fragment_grads(a, &d, &rows, head, q, is_key);
    }
    store_fragment_taps(a, sums, head);
}

KERNEL(cca_grad_input_fragments, CcaInputGradArguments) {
    BLOCK_BOUNDS(FRAGMENT_THREADS, INPUT_BLOCKS);
    CcaInputGradArguments own = a;
    own.in.whole = true;
    own.in.dim = FRAGMENT_DIM;
    if (block_y() < own.in.heads) input_grad_fragments(&own, block_y(), false);
    else input_grad_fragments(&own, block_y(), true);
}
#endif

/* Computes what the pairs of row r, the first of a chunk, send back for their previous row: to the
 * depthwise convolution of that row (`d`), and through it to the halo. The convolution of row r
 * (`current`) reads the halo too. One block per chunk and head, one thread per channel. */
INLINE void head_halo_grad(const CcaHaloGradArguments *a, int64_t r, int64_t known, int head, int c) {
    const CcaInput *in = &a->in;
    int64_t column = head * in->dim + c;
    const bf16 GLOBAL *g = a->g + r * in->convolved + head * in->dim;
    bool next = follows_in_document(in, r + 1);
    float d = 0, current = 0;
    for (int k = 0; k < in->dim; k++) {
        uint32_t taps = *(const uint32_t GLOBAL *)(in->grouped + ((int64_t)(head * in->dim + k) * in->dim + c) * 2);
        float own = to_float(g[k]), earlier = to_float_low(taps);
        d += own * earlier;
        current += own * to_float_high(taps) + (next ? to_float(g[in->convolved + k]) * earlier : 0);
    }
    uint32_t taps = *(const uint32_t GLOBAL *)(in->depthwise + 2 * column);
    float earlier = to_float_low(taps), later = to_float_high(taps);
    bf16 GLOBAL *older = a->d_halo + (int64_t)block_x() * HALO_ROWS * in->columns + column;
    *older = to_bf16(known > 1 ? earlier * d : 0);
    older[in->columns] = to_bf16(known > 0 ? later * d + earlier * current : 0);
    *(f32x2 GLOBAL *)(a->tap_sums + (block_x() * in->convolved + column) * 2) =
        (f32x2){known > 1 ? d * to_float(row_before(in, r, 2)[column]) : 0, known > 0 ? d * to_float(row_before(in, r, 1)[column]) : 0};
}

KERNEL(cca_grad_halo, CcaHaloGradArguments) {
    const CcaInput *in = &a.in;
    int64_t r = (int64_t)block_x() * in->chunk, known = history(in, r);
    if (block_y() < in->heads + in->kv_heads) {
        if (thread_id() < in->dim) head_halo_grad(&a, r, known, block_y(), thread_id());
        return;
    }
    for (int64_t c = thread_id(); c < in->values; c += CCA_MAX_DIM) {
        bf16 GLOBAL *older = a.d_halo + (int64_t)block_x() * HALO_ROWS * in->columns + in->convolved + c;
        older[0] = 0;
        older[in->columns] = known > 0 && c >= in->current ? a.dy[r * in->columns + in->convolved + c] : 0;
    }
}

/* A wave's part of a block's sums, in MMAs: wave % 2 selects WEIGHT_SIDE columns, and wave / 2
 * selects WEIGHT_OUTPUTS outputs of the head. */
enum { WEIGHT_SIDE = 2, WEIGHT_OUTPUTS = CCA_MAX_DIM / MMA * 2 * WAVE / WEIGHT_THREADS };

/* Number of tiles of g. NVIDIA copies into a second tile while it multiplies the first. AMD keeps
 * copies in flight in registers. */
enum { WEIGHT_BUFFERS = WAVE == 64 ? 1 : 2, WEIGHT_TILE = WEIGHT_STEP * CCA_MAX_DIM };

/* Adds the products of a tile's rows to a wave's sums. */
INLINE void multiply_weight_tile(
    Accumulator sums[WEIGHT_OUTPUTS][WEIGHT_SIDE], LOCAL const bf16 *gradients, LOCAL const bf16 *pairs, int row, int column) {
    _Pragma("clang loop unroll(disable)") for (int k = 0; k < WEIGHT_STEP; k += MMA) {
        Operand right[WEIGHT_SIDE];
        UNROLL for (int n = 0; n < WEIGHT_SIDE; n++)
            operand_load_transposed_from(&right[n], pairs + k * WEIGHT_COLUMNS, column, WEIGHT_COLUMNS, 0, n * MMA);
        UNROLL for (int m = 0; m < WEIGHT_OUTPUTS; m++) {
            Operand left;
            operand_load_transposed_from(&left, gradients + k * CCA_MAX_DIM, row, CCA_MAX_DIM, 0, m * MMA);
            UNROLL for (int n = 0; n < WEIGHT_SIDE; n++) mma(&sums[m][n], &left, &right[n]);
        }
    }
}

/* Runs cca_grad_weight of a block: all rows and WEIGHT_COLUMNS columns of the head's gradient, a
 * part per wave. Loads of the next step start while this one is computed. */
INLINE void weight_grad(const CcaWeightGradArguments *a, LOCAL bf16 *gradients, LOCAL bf16 *pairs) {
    enum { CHANNELS = WEIGHT_COLUMNS / 2, PAIR_ROWS = WEIGHT_THREADS / (CHANNELS / CHUNK), CHUNKS = WEIGHT_STEP / PAIR_ROWS };
    const CcaInput *in = &a->in;
    int head = block_y() / a->parts, offset = block_y() % a->parts * CHANNELS, row = wave_id() / 2 * WEIGHT_OUTPUTS * MMA,
        column = wave_id() % 2 * WEIGHT_SIDE * MMA;
    int64_t first = (int64_t)block_x() * a->block_rows, end = first + a->block_rows < in->rows ? first + a->block_rows : in->rows;
    Accumulator sums[WEIGHT_OUTPUTS][WEIGHT_SIDE];
    UNROLL for (int m = 0; m < WEIGHT_OUTPUTS; m++) UNROLL for (int n = 0; n < WEIGHT_SIDE; n++) accumulator_clear(&sums[m][n]);
    int at = thread_id() % (CHANNELS / CHUNK) * CHUNK, channels = in->dim - offset - at, row_of_pairs = thread_id() / (CHANNELS / CHUNK);
    PairWeights weights = load_pair_weights(in, head * in->dim + offset + at, channels);
    PairChunk chunks[CHUNKS];
    Source source = {a->g + first * in->convolved + head * in->dim, in->convolved, (int)(end - first), in->dim};
    Stage stage;
    LOCAL bf16 *next = gradients + (WEIGHT_BUFFERS - 1) * WEIGHT_TILE;
    stage_begin(&stage, gradients, CCA_MAX_DIM, WEIGHT_STEP, WEIGHT_THREADS, &source);
    UNROLL for (int i = 0; i < CHUNKS; i++) chunks[i] =
        load_pair_chunk(in, (int)first + row_of_pairs + i * PAIR_ROWS, head * in->dim + offset + at, channels);
    for (; first < end; first += WEIGHT_STEP) {
        stage_end(&stage, gradients, CCA_MAX_DIM, WEIGHT_STEP, WEIGHT_THREADS, &source, 0);
        if (WAVE == 32) weights = load_pair_weights(in, head * in->dim + offset + at, channels); /* too few registers to keep them */
        UNROLL for (int i = 0; i < CHUNKS; i++) {
            int pair = row_of_pairs + i * PAIR_ROWS;
            store_loaded_pairs(pairs, WEIGHT_COLUMNS, pair, at, in, first + pair < in->rows, &chunks[i], &weights);
        }
        source.from += WEIGHT_STEP * in->convolved;
        source.rows -= WEIGHT_STEP;
        stage_begin(&stage, next, CCA_MAX_DIM, WEIGHT_STEP, WEIGHT_THREADS, &source);
        UNROLL for (int i = 0; i < CHUNKS; i++) chunks[i] =
            load_pair_chunk(in, (int)first + WEIGHT_STEP + row_of_pairs + i * PAIR_ROWS, head * in->dim + offset + at, channels);
        barrier();
        multiply_weight_tile(sums, gradients, pairs, row, column);
        barrier();
        LOCAL bf16 *spent = gradients;
        gradients = next;
        next = spent;
    }
    float GLOBAL *to = a->sums + (block_x() * in->convolved + head * in->dim) * 2 * in->dim;
    UNROLL for (int m = 0; m < WEIGHT_OUTPUTS; m++) UNROLL for (int n = 0; n < WEIGHT_SIDE; n++) UNROLL for (int r = 0; r < LANE_ROWS; r++)
        UNROLL for (int c = 0; c < LANE_COLUMNS; c++) {
        int out = row + m * MMA + accumulator_row(r), pair = 2 * offset + column + n * MMA + accumulator_column(c);
        if (out < in->dim && pair < 2 * in->dim) to[out * 2 * in->dim + pair] = accumulator_get(&sums[m][n], r, c);
    }
}

#define CCA_GRAD_WEIGHT(name, in_chunks)                                                                                                   \
    KERNEL(name, CcaWeightGradArguments) {                                                                                                 \
        BLOCK_BOUNDS(WEIGHT_THREADS, 2);                                                                                                   \
        static SHARED __attribute__((aligned(CCA_ALIGNMENT))) bf16 gradients[WEIGHT_BUFFERS * WEIGHT_TILE];                                \
        static SHARED __attribute__((aligned(CCA_ALIGNMENT))) bf16 pairs[WEIGHT_STEP * WEIGHT_COLUMNS];                                     \
        CcaWeightGradArguments own = a;                                                                                                    \
        own.in.whole = in_chunks;                                                                                                          \
        weight_grad(&own, gradients, pairs);                                                                                               \
    }
CCA_GRAD_WEIGHT(cca_grad_weight_128, true)
CCA_GRAD_WEIGHT(cca_grad_weight_any, false)

#else

LAUNCHERS(cca_grad_norm, CcaNormGradArguments, cca_grad_norm_64, cca_grad_norm_128, cca_grad_norm_any)
LAUNCHER(cca_grad_bias, CcaBiasGradArguments)
LAUNCHER(cca_grad_halo, CcaHaloGradArguments)
LAUNCHERS(cca_grad_input, CcaInputGradArguments, cca_grad_input_64, cca_grad_input_128, cca_grad_input_any)
LAUNCHER(cca_grad_input_fragments, CcaInputGradArguments)
LAUNCHERS(cca_grad_weight, CcaWeightGradArguments, cca_grad_weight_any, cca_grad_weight_128)

/* The workspace, as byte offsets: g [rows, convolved] in bf16, then the sums of each kernel. */
typedef struct GradGpuLayout {
    int64_t norm_blocks, input_chunks, tap_sums, weight_chunks, bias, temperature, taps, weight, bytes;
} GradGpuLayout;

static int64_t align_workspace(int64_t bytes) { return divide_up(bytes, 256) * 256; }

/* Rows of a block of cca_grad_input and of cca_grad_weight. */
typedef struct GradRows { int64_t input, weight; } GradRows;

/* The fewest rows of any form of the kernels on any GPU. */
static const GradRows least_grad_rows = {INPUT_TILES(64) * (CCA_TILE / CCA_MAX_DIM - 1), 640};

/* Returns the rows of a block of whole tiles of `tile` rows: those of cca_tiles_per_block, and at least `least`. */
static int64_t rows_of_block(const CcaInput *in, int64_t tile, int64_t tasks, int64_t most, int64_t least) {
    int64_t tiles = cca_tiles_per_block(in, tile, tasks, most), fewest = divide_up(least, tile);
    return tile * (tiles > fewest ? tiles : fewest);
}

/* On AMD, 16,384 rows of 10 heads of 128 channels give 590 blocks of cca_grad_input, two per
 * compute unit of an MI300X, and 480 of cca_grad_weight. */
static GradRows cca_grad_rows(const Device *device, const CcaInput *in) {
    const DeviceInfo *info = device_info(device);
    int64_t heads = in->heads + in->kv_heads, parts = divide_up(2 * in->dim, WEIGHT_COLUMNS);
    GradRows rows = {INPUT_TILES(info->wave) * (cca_tile_rows(in) - 1), 704};
    if (info->wave == 64) return rows;
    rows.weight = rows_of_block(in, WEIGHT_STEP, heads * parts, 2 * info->processors, least_grad_rows.weight);
    if (!cca_in_fragments(device, in)) return rows;
    const int64_t round = FRAGMENT_WARPS * (FRAGMENT_ROWS - 1);
    rows.input = rows_of_block(in, round, heads, INPUT_BLOCKS * info->processors, least_grad_rows.input);
    return rows;
}

static GradGpuLayout cca_grad_gpu_layout(CcaShape s, int64_t halo_rows, GradRows rows) {
    const int64_t wide = sizeof(float);
    GradGpuLayout l = {.norm_blocks = divide_up(s.rows, NORM_ROWS),
        .input_chunks = divide_up(s.rows, rows.input),
        .weight_chunks = divide_up(s.rows, rows.weight),
        .bias = align_workspace(s.rows * s.convolved * (int64_t)sizeof(bf16))};
    l.tap_sums = l.input_chunks + halo_rows / HALO_ROWS;
    l.temperature = l.bias + align_workspace(l.norm_blocks * s.convolved * wide);
    l.taps = l.temperature + align_workspace(l.norm_blocks * s.kv_heads * wide);
    l.weight = l.taps + align_workspace(l.tap_sums * s.convolved * 2 * wide);
    l.bytes = l.weight + align_workspace(l.weight_chunks * s.convolved * 2 * s.dim * wide);
    return l;
}

static void launch_input_gradient(Device *device, const CcaInputGradArguments *arguments, int64_t chunks) {
    const CcaInput *in = &arguments->in;
    LaunchShape shape = {.x = chunks, .y = in->heads + in->kv_heads, .threads = CCA_WAVES * device_info(device)->wave};
    if (cca_in_fragments(device, in)) {
        shape.shared = FRAGMENT_WEIGHTS;
        launch_cca_grad_input_fragments(device, shape, arguments);
    } else {
        launch_cca_grad_input(device, cca_form(in), shape, arguments);
    }
}

/* Returns enough for every form of the kernels and every GPU. */
static int64_t cca_grad_gpu_workspace(const Graph *graph, const Node *node) {
    int64_t halo_rows = node->in[CCA_HALO] ? graph_rows(graph, node->in[CCA_HALO]) : 0;
    return cca_grad_gpu_layout(cca_node_shape(graph, node), halo_rows, least_grad_rows).bytes;
}

/* Adds the sums over chunks to the gradients of both weights. */
static void add_sums(const OpCall *call, const CcaInput *in, const GradGpuLayout *l) {
    const char *at = call->workspace;
    gpu_add_partials_to_gradient(
        call, call->out[CCA_GRAD_D_DEPTHWISE_WEIGHT], (const float *)(at + l->taps), l->tap_sums, in->convolved * 2);
    gpu_add_partials_to_gradient(
        call, call->out[CCA_GRAD_D_GROUPED_WEIGHT], (const float *)(at + l->weight), l->weight_chunks, in->convolved * 2 * in->dim);
}

GPU_OP(cca_grad, cca_grad_gpu_workspace) {
    Device *device = call->device;
    CcaInput in = cca_input(call);
    GradRows rows = cca_grad_rows(device, &in);
    GradGpuLayout l = cca_grad_gpu_layout(cca_shape(call->attributes, in.rows), call->in_shape[CCA_HALO][0], rows);
    int64_t heads = in.heads + in.kv_heads;
    char *at = call->workspace;
    bf16 *g = call->workspace;
    float *bias_sums = (float *)(at + l.bias), *temperature_sums = (float *)(at + l.temperature);
    CcaNormGradArguments norm = {.in = in,
        .dy = call->in[CCA_GRAD_D_QKV],
        .y = call->in[CCA_GRAD_QKV],
        .units = call->in[CCA_GRAD_UNIT_KEYS],
        .table = call->in[CCA_ROPE_TABLE],
        .temperature = call->in[CCA_TEMPERATURE],
        .scales = call->in[CCA_GRAD_HEAD_SCALES],
        .du = call->out[CCA_GRAD_D_U],
        .g = g,
        .bias_sums = bias_sums,
        .temperature_sums = temperature_sums};
    CcaBiasGradArguments bias = {.grouped = in.grouped,
        .bias_sums = bias_sums,
        .temperature_sums = temperature_sums,
        .depthwise_bias = call->out[CCA_GRAD_D_DEPTHWISE_BIAS],
        .grouped_bias = call->out[CCA_GRAD_D_GROUPED_BIAS],
        .temperature = call->out[CCA_GRAD_D_TEMPERATURE],
        .convolved = in.convolved,
        .blocks = (int32_t)l.norm_blocks,
        .heads = in.heads,
        .kv_heads = in.kv_heads,
        .dim = in.dim};
    CcaInputGradArguments input = {
        .in = in, .g = g, .du = call->out[CCA_GRAD_D_U], .tap_sums = (float *)(at + l.taps), .block_rows = (int32_t)rows.input};
    CcaHaloGradArguments halo = {.in = in,
        .g = g,
        .dy = call->in[CCA_GRAD_D_QKV],
        .d_halo = call->out[CCA_GRAD_D_HALO],
        .tap_sums = input.tap_sums + l.input_chunks * in.convolved * 2};
    CcaWeightGradArguments weight = {.in = in,
        .g = g,
        .sums = (float *)(at + l.weight),
        .block_rows = (int32_t)rows.weight,
        .parts = (int32_t)divide_up(2 * in.dim, WEIGHT_COLUMNS)};
    LaunchShape weight_shape = {.x = l.weight_chunks, .y = heads * weight.parts, .threads = WEIGHT_THREADS};
    launch_cca_grad_norm(device, cca_form(&in), (LaunchShape){.x = l.norm_blocks, .y = heads + 1, .threads = NORM_THREADS}, &norm);
    if (call->out[CCA_GRAD_D_DEPTHWISE_WEIGHT])
        launch_cca_grad_bias(device, (LaunchShape){.x = heads, .threads = BIAS_PARTS * CCA_MAX_DIM}, &bias);
    launch_input_gradient(device, &input, l.input_chunks);
    if (halo.d_halo) launch_cca_grad_halo(device, (LaunchShape){.x = in.rows / in.chunk, .y = heads + 1, .threads = CCA_MAX_DIM}, &halo);
    if (!call->out[CCA_GRAD_D_DEPTHWISE_WEIGHT]) return; /* all parameters are frozen */
    launch_cca_grad_weight(device, in.whole, weight_shape, &weight);
    add_sums(call, &in, &l);
}

#endif
