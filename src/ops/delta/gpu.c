/* The gated delta rule on a GPU: the forward pass. Training computes chunks of 64 tokens (rule.c, gpu_chunk_kernels.h):
 * delta_chunks solves the triangular system of each chunk for its own tokens and for a state that is not known yet,
 * delta_scan goes from chunk to chunk with the state of 64 value columns of a head, and delta_read computes y. Generation
 * and device_set_exact go from token to token (delta_tokens): a block takes SCAN_COLUMNS columns of a head's state.
 * SCAN_PARTS threads share a column and keep it in registers, so that no sum leaves neighboring lanes. The block stages
 * SCAN_STEPS tokens at a time in shared memory. Scratch: DeltaGpuScratch. */
#include "backend/gpu/formulas.h"
#include "backend/gpu/vector.h"
#include "ops/delta/gpu_chunk_kernels.h"

enum { SCAN_THREADS = 256, SCAN_PARTS = 4, SCAN_COLUMNS = SCAN_THREADS / SCAN_PARTS, SCAN_STEPS = 16 };

/* Shared memory of chunks: tiles, a matrix and numbers. */
enum {
    SYSTEM_BYTES = (2 * TILE_ELEMENTS + SQUARE_ELEMENTS) * 2 + CHUNK * MATRIX_ROW * 4 + (int)sizeof(DeltaNumbers),
    SCAN_BYTES = (3 * TILE_ELEMENTS + SQUARE_ELEMENTS) * 2 + 2 * (int)sizeof(DeltaNumbers),
    READ_BYTES = (3 * TILE_ELEMENTS + SQUARE_ELEMENTS) * 2 + (int)sizeof(DeltaNumbers),
};

#ifdef GPU_DEVICE

enum { SCAN_UNITS = WIDTH / SCAN_PARTS / 4, UNITS = WIDTH / 4 };
enum { QUERY, KEY };

static const float epsilon = 1e-6f;

/* -- What both forms read ------------------------------------------------------------------------------------------ */

INLINE float soft_plus(float x) { return x > 20 ? x : LN_2 * fast_log2(1 + fast_exp(x)); }

/* scales, products, and factors: the base-2 logarithm of the decay, and beta. */
KERNEL(delta_prepare, DeltaArguments) {
    int64_t row = block_x();
    for (int h = wave_id(); h < a.key_heads; h += TILE_THREADS / WAVE) {
        const bf16 GLOBAL *queries = a.x + row * a.columns + (int64_t)h * a.key_dim, *keys = queries + a.keys;
        float lengths[2] = {0, 0}, product = 0;
        for (int i = lane_id(); i < a.key_dim; i += WAVE) {
            float q = to_float(queries[i]), k = to_float(keys[i]);
            lengths[QUERY] += q * q, lengths[KEY] += k * k, product += q * k;
        }
        float query = fast_rsqrt(wave_sum(lengths[QUERY]) + epsilon) / a.root, key = fast_rsqrt(wave_sum(lengths[KEY]) + epsilon);
        product = wave_sum(product) * query * key;
        float GLOBAL *to = a.scales + (row * a.key_heads + h) * 2;
        if (lane_id() == 0) to[QUERY] = query, to[KEY] = key, a.products[row * a.key_heads + h] = product;
    }
    for (int h = thread_id(); h < a.heads; h += TILE_THREADS) {
        const bf16 GLOBAL *gate = a.gates + row * 2 * a.heads + h;
        float GLOBAL *to = a.factors + (row * a.heads + h) * 2;
        to[0] = -LOG2_E * fast_exp(a.rates[h]) * soft_plus(to_float(gate[a.heads]) + a.bias[h]);
        to[1] = sigmoid(to_float(gate[0]));
    }
}

/* The numbers of a chunk of a head, a thread per token. */
KERNEL(delta_number, DeltaArguments) {
    static SHARED float decay[2][CHUNK], start[2][CHUNK];
    const ChunkPlace p = chunk_place(&a, block_z(), block_y(), block_x());
    int i = thread_id(), now = 0;
    bool there = i < p.rows;
    int64_t row = p.row + (there ? i : 0), factor = (row * a.heads + p.head) * 2, scale = row * a.key_heads + p.key_head;
    decay[0][i] = there ? a.factors[factor] : 0;
    start[0][i] = there && a.positions[row] == 0 ? i : -1;
    for (int step = 1; step < CHUNK; step *= 2, now ^= 1) {
        barrier();
        float sum = decay[now][i], most = start[now][i];
        if (i >= step) sum += decay[now][i - step], most = __builtin_fmaxf(most, start[now][i - step]);
        decay[now ^ 1][i] = sum, start[now ^ 1][i] = most;
    }
    DeltaNumbers GLOBAL *to = a.numbers + p.index;
    to->decay[i] = decay[now][i], to->start[i] = start[now][i];
    to->beta[i] = there ? a.factors[factor + 1] : 0;
    to->query[i] = there ? a.scales[scale * 2 + QUERY] : 0;
    to->key[i] = there ? a.scales[scale * 2 + KEY] : 0;
    to->product[i] = there ? a.products[scale] : 0;
}

/* -- Chunks -------------------------------------------------------------------------------------------------------- */

/* With A = L diag(beta) and T = (I + A)^-1, M = (I - T) V + T c K S: stores own = (I - T) V and solved = T c K. */
KERNEL(delta_chunks, DeltaArguments) {
    LOCAL bf16 *keys = delta_tiles, *values = keys + TILE_ELEMENTS, *square = values + TILE_ELEMENTS;
    const ChunkSystem system = chunk_system(square);
    LOCAL float *matrix = system.matrix;
    LOCAL DeltaNumbers *n = system.numbers;
    const ChunkPlace p = chunk_place(&a, block_z(), block_y(), block_x());
    Source of_keys = chunk_keys(&a, &p), of_values = chunk_values(&a, &p);
    numbers_load(n, &a, p.index);
    tile_load(keys, WIDTH, CHUNK, CHUNK_THREADS, &of_keys);
    tile_load(values, WIDTH, CHUNK, CHUNK_THREADS, &of_values);
    barrier();
    Accumulator products;
    accumulator_clear(&products);
    multiply_rows(&products, keys, keys, WIDTH);
    FOR_SUM_ROWS(r) FOR_COLUMNS(c) {
        int i = sum_row_at(r), j = sum_column_at(c);
        float factor = j < i ? decay_between(n, i, j) * n->key[i] * n->key[j] * n->beta[j] : 0;
        matrix[i * MATRIX_ROW + j] = factor * accumulator_get(&products, r, c);
    }
    invert_matrix(matrix);
    store_solution(a.solved + p.index * TILE_ELEMENTS, &system, OF_CARRIED_KEYS, false, keys);
    barrier();
    store_solution(a.own + p.index * TILE_ELEMENTS, &system, OF_OTHERS, false, values);
}

/* The elements of own and of V that a lane of a scan reads of a chunk, in pairs. */
typedef struct ScanRows {
    uint32_t own[SUM_LANE_ROWS][PAIRS], values[SUM_LANE_ROWS][PAIRS];
    int first; /* column of the block */
} ScanRows;

INLINE ScanRows scan_rows(const DeltaArguments *a, const ChunkPlace *p, int first) {
    ScanRows rows = {.first = first};
    const bf16 GLOBAL *own = a->own + p->index * TILE_ELEMENTS + first, *values = chunk_values(a, p).from;
    bool paired = (a->columns | a->value_dim) % 2 == 0;
    FOR_SUM_ROWS(r) UNROLL for (int c = 0; c < PAIRS; c++) {
        int i = sum_row_at(r), j = sum_column_at(2 * c);
        const bf16 GLOBAL *value = values + (int64_t)i * a->columns + first + j;
        bool low = i < p->rows && first + j < a->value_dim, high = i < p->rows && first + j + 1 < a->value_dim;
        rows.own[r][c] = *(const uint32_t GLOBAL *)(own + i * WIDTH + j);
        if (paired) rows.values[r][c] = low ? *(const uint32_t GLOBAL *)value : 0;
        else rows.values[r][c] = (low ? (uint32_t)value[0] : 0) | (high ? (uint32_t)value[1] << 16 : 0);
    }
    return rows;
}
INLINE float half_of_pair(uint32_t pair, int c) { return c % 2 ? to_float_high(pair) : to_float_low(pair); }

/* From sums = solved S to M, then U: stores M in recalled, U in updates, and d U / |k| as halves. */
INLINE void scan_updates(const DeltaArguments *a, const ChunkPlace *p, Accumulator *sums, const ScanRows *rows, LOCAL const DeltaNumbers *n,
    LOCAL bf16 *halves) {
    int first = rows->first;
    float GLOBAL *recalled = a->recalled + p->row * a->values + p->head * a->value_dim + first;
    FOR_SUM_ROWS(r) {
        int i = sum_row_at(r);
        float beta = n->beta[i];
        FOR_COLUMNS(c) {
            float m = accumulator_get(sums, r, c) + half_of_pair(rows->own[r][c / 2], c);
            int j = sum_column_at(c);
            if (a->recalled && i < p->rows && first + j < a->value_dim) recalled[(int64_t)i * a->values + j] = m;
            accumulator_set(sums, r, c, beta * (half_of_pair(rows->values[r][c / 2], c) - m));
        }
        bf16 GLOBAL *update = a->updates + p->index * TILE_ELEMENTS + i * WIDTH + first + sum_block() * MMA;
        *(u32x4 GLOBAL *)(update + accumulator_chunk()) = accumulator_pack(sums, r);
        accumulator_scale(sums, r, decay_left(n, i) * n->key[i]);
        put_sum_row(halves, sums, r);
    }
}

/* Stores the state before each chunk. */
KERNEL(delta_scan, DeltaArguments) {
    LOCAL bf16 *solved = delta_tiles, *keys = solved + TILE_ELEMENTS, *state = keys + TILE_ELEMENTS, *halves = state + TILE_ELEMENTS;
    LOCAL DeltaNumbers *numbers = (LOCAL DeltaNumbers *)(halves + SQUARE_ELEMENTS);
    int first = block_x() * SCAN_WIDTH;
    ChunkPlace p = chunk_place(&a, block_z(), block_y(), 0);
    bf16 GLOBAL *states = a.states + p.index * STATE_ELEMENTS + first * WIDTH;
    Accumulator sums, columns[WIDE_BLOCKS];
    Stage stage;
    Source source = chunk_scratch(a.solved, TILE_ELEMENTS, &p, 0, CHUNK);
    wide_clear(columns);
    put_state(state, states, columns);
    numbers_load(numbers, &a, p.index);
    ScanRows rows = scan_rows(&a, &p, first);
    stage_begin(&stage, solved, WIDTH, CHUNK, CHUNK_THREADS, &source);
    stage_end(&stage, solved, WIDTH, CHUNK, CHUNK_THREADS, &source, 0);
    for (int chunk = 0; chunk < a.chunks; chunk++) {
        LOCAL const DeltaNumbers *n = numbers + chunk % 2;
        bool more = chunk + 1 < a.chunks;
        barrier();
        source = chunk_keys(&a, &p);
        stage_begin(&stage, keys, WIDTH, CHUNK, CHUNK_THREADS, &source);
        accumulator_clear(&sums);
        multiply_rows(&sums, solved, state, WIDTH);
        scan_updates(&a, &p, &sums, &rows, n, halves);
        stage_end(&stage, keys, WIDTH, CHUNK, CHUNK_THREADS, &source, 0);
        barrier();
        if (!more) break;
        p = chunk_place(&a, block_z(), block_y(), chunk + 1);
        source = chunk_scratch(a.solved, TILE_ELEMENTS, &p, 0, CHUNK);
        stage_begin(&stage, solved, WIDTH, CHUNK, CHUNK_THREADS, &source);
        rows = scan_rows(&a, &p, first);
        numbers_load(numbers + (chunk + 1) % 2, &a, p.index);
        wide_scale(columns, decay_carried(n, CHUNK - 1));
        add_to_state(columns, halves, keys);
        put_state(state, states + (int64_t)(chunk + 1) * STATE_ELEMENTS, columns);
        stage_end(&stage, solved, WIDTH, CHUNK, CHUNK_THREADS, &source, 0);
    }
}

/* Y = c Q S + P U for SCAN_WIDTH columns of a chunk. */
KERNEL(delta_read, DeltaArguments) {
    LOCAL bf16 *queries = delta_tiles, *keys = queries + TILE_ELEMENTS, *state = keys + TILE_ELEMENTS, *updates = state + TILE_ELEMENTS,
               *square = keys;
    LOCAL DeltaNumbers *n = (LOCAL DeltaNumbers *)(updates + SQUARE_ELEMENTS);
    const ChunkPlace p = chunk_place(&a, block_z(), block_y(), block_x() / a.parts);
    int first = block_x() % a.parts * SCAN_WIDTH;
    Source of_queries = chunk_queries(&a, &p), of_keys = chunk_keys(&a, &p);
    Source of_state = chunk_scratch(a.states, STATE_ELEMENTS, &p, first * WIDTH, SCAN_WIDTH);
    of_state.columns = WIDTH;
    numbers_load(n, &a, p.index);
    tile_load(queries, WIDTH, CHUNK, CHUNK_THREADS, &of_queries);
    tile_load(keys, WIDTH, CHUNK, CHUNK_THREADS, &of_keys);
    tile_load(state, WIDTH, SCAN_WIDTH, CHUNK_THREADS, &of_state);
    UNROLL for (int half = 0; half < 2; half++) {
        Source of_updates = chunk_scratch(a.updates, TILE_ELEMENTS, &p, first + half * MMA, CHUNK);
        tile_load(updates + half * HALF_ELEMENTS, MMA, CHUNK, CHUNK_THREADS, &of_updates);
    }
    barrier();
    Accumulator products, sums;
    accumulator_clear(&products), accumulator_clear(&sums);
    multiply_rows(&products, queries, keys, WIDTH);
    multiply_rows(&sums, queries, state, WIDTH);
    barrier();
    FOR_SUM_ROWS(r) {
        int i = sum_row_at(r);
        accumulator_scale(&sums, r, decay_carried(n, i) * n->query[i]);
        FOR_COLUMNS(c) {
            int j = sum_column_at(c);
            float x = accumulator_get(&products, r, c) * (decay_between(n, i, j) * n->query[i] * n->key[j]);
            accumulator_set(&products, r, c, x);
        }
        put_sum_row(square, &products, r);
    }
    barrier();
    UNROLL for (int k = 0; k < CHUNK; k += MMA) {
        Operand left, right;
        load_sum_rows(&left, square + k / MMA * HALF_ELEMENTS, MMA, 0);
        operand_load_transposed(&right, updates + sum_block() * HALF_ELEMENTS, MMA, k, 0);
        mma_rows(&sums, &left, &right, SUM_ROWS);
    }
    FOR_SUM_ROWS(r) FOR_COLUMNS(c) {
        int i = sum_row_at(r), j = first + sum_column_at(c);
        if (i < p.rows && j < a.value_dim) a.y[(p.row + i) * a.values + (int64_t)p.head * a.value_dim + j] = accumulator_get(&sums, r, c);
    }
}

/* -- Token by token ------------------------------------------------------------------------------------------------ */

/* Tokens of a tile: normalized queries and keys, values of each column, and decay, beta, k . q and whether the document
 * begins. */
typedef struct ScanTile {
    f32x4 vectors[SCAN_STEPS][2][UNITS];
    float values[SCAN_STEPS][SCAN_COLUMNS];
    float decay[SCAN_STEPS], beta[SCAN_STEPS], product[SCAN_STEPS], begins[SCAN_STEPS];
} ScanTile;

typedef struct Scan {
    int head, key_head, column, part;
    int64_t first; /* row of the sequence */
} Scan;

INLINE Scan scan_begin(const DeltaArguments *a) {
    return (Scan){.head = block_y(),
        .key_head = block_y() / a->group,
        .column = block_x() * SCAN_COLUMNS + thread_id() / SCAN_PARTS,
        .part = thread_id() % SCAN_PARTS,
        .first = (int64_t)block_z() * a->length};
}

/* Stages normalized queries or keys of the tile's steps; zeros after the last one. */
INLINE void stage_units(const DeltaArguments *a, const Scan *s, LOCAL ScanTile *tile, int step, int v) {
    for (int e = thread_id(); e < SCAN_STEPS * WIDTH; e += SCAN_THREADS) {
        int i = e / WIDTH, column = e % WIDTH;
        int64_t row = s->first + step + i;
        const bf16 GLOBAL *from = a->x + row * a->columns + v * a->keys + s->key_head * a->key_dim;
        bool inside = step + i < a->length && column < a->key_dim;
        ((LOCAL float *)tile->vectors[i][v])[column] =
            inside ? to_float(from[column]) * a->scales[(row * a->key_heads + s->key_head) * 2 + v] : 0;
    }
}

INLINE void stage_values(const DeltaArguments *a, const Scan *s, LOCAL ScanTile *tile, int step) {
    const bf16 GLOBAL *from = a->x + 2 * a->keys + (int64_t)s->head * a->value_dim;
    for (int e = thread_id(); e < SCAN_STEPS * SCAN_COLUMNS; e += SCAN_THREADS) {
        int i = e / SCAN_COLUMNS, within = e % SCAN_COLUMNS, column = block_x() * SCAN_COLUMNS + within;
        bool inside = step + i < a->length && column < a->value_dim;
        tile->values[i][within] = inside ? to_float(from[(s->first + step + i) * a->columns + column]) : 0;
    }
}

INLINE void stage_factors(const DeltaArguments *a, const Scan *s, LOCAL ScanTile *tile, int step) {
    int i = thread_id();
    if (i >= SCAN_STEPS || step + i >= a->length) return;
    int64_t row = s->first + step + i;
    tile->decay[i] = fast_exp2(a->factors[(row * a->heads + s->head) * 2]);
    tile->beta[i] = a->factors[(row * a->heads + s->head) * 2 + 1];
    tile->product[i] = a->products[row * a->key_heads + s->key_head];
    tile->begins[i] = a->positions[row] == 0;
}

#define FOR_STATE(i) UNROLL for (int i = 0; i < SCAN_UNITS; i++)

/* Returns this thread's part i of a staged vector. */
INLINE f32x4 vector_part(LOCAL const f32x4 *vector, const Scan *s, int i) { return vector[i * SCAN_PARTS + s->part]; }

/* Returns the state's column times a vector, in all threads of the column. */
INLINE float state_dot(const f32x4 *state, LOCAL const f32x4 *vector, const Scan *s) {
    f32x4 sum = 0;
    FOR_STATE(i) sum += state[i] * vector_part(vector, s, i);
    float x = sum4(sum);
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}

/* state = keep state + factor vector */
INLINE void state_add(f32x4 *state, float keep, float factor, LOCAL const f32x4 *vector, const Scan *s) {
    FOR_STATE(i) state[i] = keep * state[i] + factor * vector_part(vector, s, i);
}

INLINE void state_clear(f32x4 *state) { FOR_STATE(i) state[i] = (f32x4)0; }

/* Returns the address of this thread's column of a stored state, or NULL. */
INLINE float GLOBAL *stored_state(const DeltaArguments *a, const Scan *s) {
    int64_t slot = a->slots ? a->slots[block_z()] : 0;
    bool inside = a->state && s->column < a->value_dim;
    return inside ? a->state + (slot * a->heads + s->head) * a->key_dim * a->value_dim + s->column : 0;
}

/* Copies this thread's part of the column from a stored state, or to it. */
INLINE void state_copy(const DeltaArguments *a, const Scan *s, f32x4 *state, float GLOBAL *stored, bool to) {
    FOR_STATE(i) {
        UNROLL for (int c = 0; c < 4; c++) {
            int row = (i * SCAN_PARTS + s->part) * 4 + c;
            if (row >= a->key_dim) continue;
            if (to) stored[(int64_t)row * a->value_dim] = state[i][c];
            else state[i][c] = stored[(int64_t)row * a->value_dim];
        }
    }
}

KERNEL(delta_tokens, DeltaArguments) {
    static SHARED ScanTile tile;
    Scan s = scan_begin(&a);
    f32x4 state[SCAN_UNITS];
    float GLOBAL *stored = stored_state(&a, &s);
    int last = a.lasts ? a.lasts[block_z()] : a.length - 1, within = thread_id() / SCAN_PARTS;
    state_clear(state);
    if (stored) state_copy(&a, &s, state, stored, false);
    for (int step = 0; step < a.length; step += SCAN_STEPS) {
        barrier();
        stage_units(&a, &s, &tile, step, QUERY);
        stage_units(&a, &s, &tile, step, KEY);
        stage_values(&a, &s, &tile, step);
        stage_factors(&a, &s, &tile, step);
        barrier();
        for (int i = 0; i < SCAN_STEPS && step + i < a.length; i++) {
            if (tile.begins[i] != 0) state_clear(state);
            float decay = tile.decay[i], recalled = decay * state_dot(state, tile.vectors[i][KEY], &s);
            float update = tile.beta[i] * (tile.values[i][within] - recalled);
            float y = decay * state_dot(state, tile.vectors[i][QUERY], &s) + tile.product[i] * update;
            state_add(state, decay, update, tile.vectors[i][KEY], &s);
            int64_t at = (s.first + step + i) * a.values + (int64_t)s.head * a.value_dim + s.column;
            if (s.part == 0 && s.column < a.value_dim) a.y[at] = y;
            if (s.part == 1 && s.column < a.value_dim && a.recalled) a.recalled[at] = recalled;
            if (stored && step + i == last) state_copy(&a, &s, state, stored, true);
        }
    }
}

#else

#include <math.h>

#include "backend/gpu/kernel_launch.h"
#include "ops/delta/gpu_internal.h"

LAUNCHERS(delta_rows, DeltaArguments, delta_prepare, delta_number)
LAUNCHERS(delta_chunks, DeltaArguments, delta_chunks, delta_scan, delta_read)
LAUNCHER(delta_tokens, DeltaArguments)

enum { PREPARE, NUMBER };
enum { CHUNKS, SCAN, READ };

DeltaArguments delta_gpu_arguments(const OpCall *call, const DeltaShape *s, DeltaArrays arrays) {
    DeltaGpuScratch at = delta_gpu_scratch(s, arrays);
    char *scratch = call->workspace;
    return (DeltaArguments){.x = call->in[DELTA_X],
        .gates = call->in[DELTA_GATES],
        .rates = call->in[DELTA_RATES],
        .bias = call->in[DELTA_BIAS],
        .positions = call->in[DELTA_POSITIONS],
        .scales = (float *)(scratch + at.scales),
        .products = (float *)(scratch + at.products),
        .factors = (float *)(scratch + at.factors),
        .numbers = (DeltaNumbers *)(scratch + at.numbers),
        .solved = (bf16 *)(scratch + at.solved),
        .own = (bf16 *)(scratch + at.own),
        .updates = (bf16 *)(scratch + at.updates),
        .states = (bf16 *)(scratch + at.states),
        .d_recalled = (bf16 *)(scratch + at.d_recalled),
        .d_outs = (bf16 *)(scratch + at.d_outs),
        .d_states = (bf16 *)(scratch + at.d_states),
        .d_carried = (float *)(scratch + at.d_carried),
        .d_queries = (float *)(scratch + at.d_queries),
        .d_keys = (float *)(scratch + at.d_keys),
        .d_factors = (float *)(scratch + at.d_factors),
        .d_after = (float *)(scratch + at.d_after),
        .sums = (float *)(scratch + at.sums),
        .length = (int32_t)s->length,
        .chunks = (int32_t)delta_chunks_of(s),
        .key_heads = (int32_t)s->key_heads,
        .heads = (int32_t)s->heads,
        .group = (int32_t)s->group,
        .key_dim = (int32_t)s->key_dim,
        .value_dim = (int32_t)s->value_dim,
        .keys = (int32_t)s->keys,
        .values = (int32_t)s->values,
        .columns = (int32_t)s->columns,
        .parts = (int32_t)divide_up(s->value_dim, SCAN_WIDTH),
        .root = sqrtf((float)s->key_dim)};
}

static void delta_gpu_prepare(const OpCall *call, const DeltaShape *s, const DeltaArguments *arguments) {
    launch_delta_rows(call->device, PREPARE, (LaunchShape){.x = s->rows, .threads = TILE_THREADS}, arguments);
}

void delta_gpu_number(const OpCall *call, const DeltaShape *s, const DeltaArguments *arguments) {
    LaunchShape shape = {.x = arguments->chunks, .y = s->heads, .z = s->sequences, .threads = CHUNK};
    delta_gpu_prepare(call, s, arguments);
    launch_delta_rows(call->device, NUMBER, shape, arguments);
}

static int64_t delta_gpu_workspace(const Graph *graph, const Node *node) {
    DeltaShape s = delta_shape(node->attributes, graph_rows(graph, node->in[DELTA_X]));
    return delta_gpu_scratch(&s, node->out[DELTA_STATE] ? DELTA_ROWS : DELTA_FORWARD).bytes;
}

static void run_tokens(const OpCall *call, const DeltaShape *s, DeltaArguments *arguments) {
    LaunchShape shape = {.x = divide_up(s->value_dim, SCAN_COLUMNS), .y = s->heads, .z = s->sequences, .threads = SCAN_THREADS};
    arguments->slots = call->in[DELTA_SLOTS], arguments->lasts = call->in[DELTA_LASTS], arguments->state = call->out[DELTA_STATE];
    delta_gpu_prepare(call, s, arguments);
    launch_delta_tokens(call->device, shape, arguments);
}

static void run_chunks(const OpCall *call, const DeltaShape *s, const DeltaArguments *arguments) {
    LaunchShape shape = {.x = arguments->chunks, .y = s->heads, .z = s->sequences, .threads = CHUNK_THREADS, .shared = SYSTEM_BYTES};
    delta_gpu_number(call, s, arguments);
    launch_delta_chunks(call->device, CHUNKS, shape, arguments);
    shape.x = arguments->parts, shape.shared = SCAN_BYTES;
    launch_delta_chunks(call->device, SCAN, shape, arguments);
    shape.x = (int64_t)arguments->chunks * arguments->parts, shape.shared = READ_BYTES;
    launch_delta_chunks(call->device, READ, shape, arguments);
}

GPU_OP(delta, delta_gpu_workspace) {
    DeltaShape s = delta_call_shape(call);
    bool tokens = device_info(call->device)->exact || call->out[DELTA_STATE];
    DeltaArguments arguments = delta_gpu_arguments(call, &s, tokens ? DELTA_ROWS : DELTA_FORWARD);
    arguments.y = call->out[DELTA_Y], arguments.recalled = call->out[DELTA_RECALLED];
    if (tokens) run_tokens(call, &s, &arguments);
    else run_chunks(call, &s, &arguments);
}

#endif
