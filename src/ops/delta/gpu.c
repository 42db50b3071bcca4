/* The gated delta rule on a GPU. One kernel per scan (rule.c): a block takes SCAN_COLUMNS columns of a head's state, or
 * rows, and goes through the tokens of a sequence. SCAN_PARTS threads share a column and keep it in registers, so that no
 * sum leaves neighboring lanes. The block stages SCAN_STEPS tokens at a time in shared memory. Other kernels take a row
 * each, and for the gates a head of a sequence. Scratch: DeltaScratch. */
#include "backend/gpu/formulas.h"
#include "backend/gpu/vector.h"

typedef struct DeltaArguments {
    const bf16 GLOBAL *x, *gates;
    const float GLOBAL *rates, *bias, *d_y;
    const int32_t GLOBAL *positions, *slots, *lasts;
    float GLOBAL *y, *recalled, *state; /* y only forward; recalled and state may be NULL forward */
    float GLOBAL *units, *products, *factors, *d_carried, *d_queries, *d_reading, *d_writing, *d_factors, *sums;
    bf16 GLOBAL *d_x, *d_gates;
    int32_t length, key_heads, heads, group, key_dim, value_dim, keys, values, columns;
    float root; /* of key_dim */
} DeltaArguments;

enum { SCAN_THREADS = 256, SCAN_PARTS = 4, SCAN_COLUMNS = SCAN_THREADS / SCAN_PARTS, SCAN_STEPS = 16 };

#ifdef GPU_DEVICE

enum { MOST_DIM = 128, SCAN_UNITS = MOST_DIM / SCAN_PARTS / 4, UNITS = MOST_DIM / 4 };
enum { SCAN_VECTORS = 3, SCAN_SCALARS = 2 };
enum { QUERY, KEY };            /* vectors or scalars of scans */
enum { D_Y, UPDATE, D_UPDATE }; /* vectors: d_y, u and du */

static const float epsilon = 1e-6f;

/* -- What scans read ----------------------------------------------------------------------------------------------- */

INLINE float soft_plus(float x) { return x > 20 ? x : LN_2 * fast_log2(1 + fast_exp(x)); }

/* Returns 1 / the length of a head of x, in every lane of the wave. */
INLINE float inverse_head_length(const bf16 GLOBAL *x, int count) {
    float sum = 0;
    for (int i = lane_id(); i < count; i += WAVE) sum += to_float(x[i]) * to_float(x[i]);
    return fast_rsqrt(wave_sum(sum) + epsilon);
}

KERNEL(delta_prepare, DeltaArguments) {
    int64_t row = block_x();
    for (int h = wave_id(); h < a.key_heads; h += TILE_THREADS / WAVE) {
        const bf16 GLOBAL *from = a.x + row * a.columns + (int64_t)h * a.key_dim;
        float GLOBAL *to = a.units + row * 2 * a.keys + (int64_t)h * a.key_dim;
        float query_scale = inverse_head_length(from, a.key_dim) / a.root, key_scale = inverse_head_length(from + a.keys, a.key_dim),
              product = 0;
        for (int i = lane_id(); i < a.key_dim; i += WAVE) {
            float q = query_scale * to_float(from[i]), k = key_scale * to_float(from[a.keys + i]);
            to[i] = q, to[a.keys + i] = k;
            product += q * k;
        }
        product = wave_sum(product);
        if (lane_id() == 0) a.products[row * a.key_heads + h] = product;
    }
    for (int h = thread_id(); h < a.heads; h += TILE_THREADS) {
        const bf16 GLOBAL *gate = a.gates + row * 2 * a.heads + h;
        float GLOBAL *to = a.factors + (row * a.heads + h) * 2;
        to[0] = fast_exp(-fast_exp(a.rates[h]) * soft_plus(to_float(gate[a.heads]) + a.bias[h]));
        to[1] = sigmoid(to_float(gate[0]));
    }
}

/* -- Scans --------------------------------------------------------------------------------------------------------- */

/* Tokens of a tile: vectors along the state's inner dimension, scalars of each column, and decay, beta, k . q and whether
 * the document begins. */
typedef struct ScanTile {
    f32x4 vectors[SCAN_STEPS][SCAN_VECTORS][UNITS];
    float scalars[SCAN_STEPS][SCAN_SCALARS][SCAN_COLUMNS];
    float decay[SCAN_STEPS], beta[SCAN_STEPS], product[SCAN_STEPS], begins[SCAN_STEPS];
} ScanTile;

typedef struct Scan {
    int head, key_head, column, part;
    int64_t first; /* row of the sequence */
    bool back;
} Scan;

INLINE Scan scan_begin(const DeltaArguments *a, bool back) {
    return (Scan){.head = block_y(),
        .key_head = block_y() / a->group,
        .column = block_x() * SCAN_COLUMNS + thread_id() / SCAN_PARTS,
        .part = thread_id() % SCAN_PARTS,
        .first = (int64_t)block_z() * a->length,
        .back = back};
}

/* Returns the row of step `i` of the scan. */
INLINE int64_t step_row(const DeltaArguments *a, const Scan *s, int i) { return s->first + (s->back ? a->length - 1 - i : i); }

/* `dim` numbers of each row of the sequences: those of row r begin at at + r * stride. */
typedef struct ScanSource {
    const float GLOBAL *at;
    int64_t stride;
    int dim;
} ScanSource;

/* Returns number `column` of step `step`; zero after the last one. */
INLINE float tile_number(const DeltaArguments *a, const Scan *s, const ScanSource *from, int step, int column) {
    bool inside = step < a->length && column < from->dim;
    return inside ? from->at[step_row(a, s, step) * from->stride + column] : 0;
}

/* Stages vector `v`, or scalar `v` of the block's columns, for the tile's steps. */
INLINE void stage_vector(const DeltaArguments *a, const Scan *s, LOCAL ScanTile *tile, int step, int v, ScanSource from) {
    for (int e = thread_id(); e < SCAN_STEPS * MOST_DIM; e += SCAN_THREADS) {
        int i = e / MOST_DIM, column = e % MOST_DIM;
        ((LOCAL float *)tile->vectors[i][v])[column] = tile_number(a, s, &from, step + i, column);
    }
}
INLINE void stage_scalars(const DeltaArguments *a, const Scan *s, LOCAL ScanTile *tile, int step, int v, ScanSource from) {
    for (int e = thread_id(); e < SCAN_STEPS * SCAN_COLUMNS; e += SCAN_THREADS) {
        int i = e / SCAN_COLUMNS, within = e % SCAN_COLUMNS;
        tile->scalars[i][v][within] = tile_number(a, s, &from, step + i, block_x() * SCAN_COLUMNS + within);
    }
}

/* Stages the values of the head as scalar 0. */
INLINE void stage_values(const DeltaArguments *a, const Scan *s, LOCAL ScanTile *tile, int step) {
    const bf16 GLOBAL *from = a->x + 2 * a->keys + (int64_t)s->head * a->value_dim;
    for (int e = thread_id(); e < SCAN_STEPS * SCAN_COLUMNS; e += SCAN_THREADS) {
        int i = e / SCAN_COLUMNS, within = e % SCAN_COLUMNS, column = block_x() * SCAN_COLUMNS + within;
        bool inside = step + i < a->length && column < a->value_dim;
        tile->scalars[i][0][within] = inside ? to_float(from[step_row(a, s, step + i) * a->columns + column]) : 0;
    }
}

INLINE void stage_factors(const DeltaArguments *a, const Scan *s, LOCAL ScanTile *tile, int step) {
    int i = thread_id();
    if (i >= SCAN_STEPS || step + i >= a->length) return;
    int64_t row = step_row(a, s, step + i);
    tile->decay[i] = a->factors[(row * a->heads + s->head) * 2];
    tile->beta[i] = a->factors[(row * a->heads + s->head) * 2 + 1];
    tile->product[i] = a->products[row * a->key_heads + s->key_head];
    tile->begins[i] = a->positions[row] == 0;
}

/* Stages normalized queries and keys as vectors 0 and 1, or as scalars 0 and 1. */
INLINE void stage_units(const DeltaArguments *a, const Scan *s, LOCAL ScanTile *tile, int step, bool scalars) {
    ScanSource from = {a->units + (int64_t)s->key_head * a->key_dim, 2 * a->keys, a->key_dim};
    for (int v = QUERY; v <= KEY; v++, from.at += a->keys) (scalars ? stage_scalars : stage_vector)(a, s, tile, step, v, from);
}

/* A value column of a row in the backward pass: d_y, u and du. */
typedef struct DeltaGrad { float d_y, update, d_update; } DeltaGrad;
INLINE DeltaGrad delta_grad_at(const DeltaArguments *a, int64_t row, int head, int column) {
    int64_t at = row * a->values + (int64_t)head * a->value_dim + column;
    float v = to_float(a->x[row * a->columns + 2 * a->keys + (int64_t)head * a->value_dim + column]);
    float beta = a->factors[(row * a->heads + head) * 2 + 1], product = a->products[row * a->key_heads + head / a->group];
    return (DeltaGrad){a->d_y[at], beta * (v - a->recalled[at]), a->d_carried[at] + product * a->d_y[at]};
}

/* Stages the vectors of the backward pass. */
INLINE void stage_gradients(const DeltaArguments *a, const Scan *s, LOCAL ScanTile *tile, int step) {
    for (int e = thread_id(); e < SCAN_STEPS * MOST_DIM; e += SCAN_THREADS) {
        int i = e / MOST_DIM, column = e % MOST_DIM;
        bool inside = step + i < a->length && column < a->value_dim;
        DeltaGrad of = {0};
        if (inside) of = delta_grad_at(a, step_row(a, s, step + i), s->head, column);
        ((LOCAL float *)tile->vectors[i][D_Y])[column] = of.d_y;
        ((LOCAL float *)tile->vectors[i][UPDATE])[column] = of.update;
        ((LOCAL float *)tile->vectors[i][D_UPDATE])[column] = of.d_update;
    }
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

KERNEL(delta_forward, DeltaArguments) {
    static SHARED ScanTile tile;
    Scan s = scan_begin(&a, false);
    f32x4 state[SCAN_UNITS];
    float GLOBAL *stored = stored_state(&a, &s);
    int last = a.lasts ? a.lasts[block_z()] : a.length - 1, within = thread_id() / SCAN_PARTS;
    state_clear(state);
    if (stored) state_copy(&a, &s, state, stored, false);
    for (int step = 0; step < a.length; step += SCAN_STEPS) {
        barrier();
        stage_units(&a, &s, &tile, step, false);
        stage_values(&a, &s, &tile, step);
        stage_factors(&a, &s, &tile, step);
        barrier();
        for (int i = 0; i < SCAN_STEPS && step + i < a.length; i++) {
            if (tile.begins[i] != 0) state_clear(state);
            float decay = tile.decay[i], recalled = decay * state_dot(state, tile.vectors[i][KEY], &s);
            float update = tile.beta[i] * (tile.scalars[i][0][within] - recalled);
            float y = decay * state_dot(state, tile.vectors[i][QUERY], &s) + tile.product[i] * update;
            state_add(state, decay, update, tile.vectors[i][KEY], &s);
            int64_t at = (s.first + step + i) * a.values + (int64_t)s.head * a.value_dim + s.column;
            if (s.part == 0 && s.column < a.value_dim) a.y[at] = y;
            if (s.part == 1 && s.column < a.value_dim && a.recalled) a.recalled[at] = recalled;
            if (stored && step + i == last) state_copy(&a, &s, state, stored, true);
        }
    }
}

/* Scan 1. */
KERNEL(delta_back_values, DeltaArguments) {
    static SHARED ScanTile tile;
    Scan s = scan_begin(&a, true);
    f32x4 state[SCAN_UNITS];
    int within = thread_id() / SCAN_PARTS;
    state_clear(state);
    for (int step = 0; step < a.length; step += SCAN_STEPS) {
        barrier();
        stage_units(&a, &s, &tile, step, false);
        stage_scalars(&a, &s, &tile, step, 0, (ScanSource){a.d_y + (int64_t)s.head * a.value_dim, a.values, a.value_dim});
        stage_factors(&a, &s, &tile, step);
        barrier();
        for (int i = 0; i < SCAN_STEPS && step + i < a.length; i++) {
            float decay = tile.decay[i], d_y = tile.scalars[i][0][within], carried = state_dot(state, tile.vectors[i][KEY], &s);
            if (s.part == 0 && s.column < a.value_dim)
                a.d_carried[step_row(&a, &s, step + i) * a.values + (int64_t)s.head * a.value_dim + s.column] = carried;
            state_add(state, 1, d_y, tile.vectors[i][QUERY], &s);
            state_add(state, decay, -decay * tile.beta[i] * (carried + tile.product[i] * d_y), tile.vectors[i][KEY], &s);
            if (tile.begins[i] != 0) state_clear(state);
        }
    }
}

/* Scan 2. */
KERNEL(delta_again, DeltaArguments) {
    static SHARED ScanTile tile;
    Scan s = scan_begin(&a, false);
    f32x4 state[SCAN_UNITS];
    int within = thread_id() / SCAN_PARTS;
    state_clear(state);
    for (int step = 0; step < a.length; step += SCAN_STEPS) {
        barrier();
        stage_gradients(&a, &s, &tile, step);
        stage_units(&a, &s, &tile, step, true);
        stage_factors(&a, &s, &tile, step);
        barrier();
        for (int i = 0; i < SCAN_STEPS && step + i < a.length; i++) {
            if (tile.begins[i] != 0) state_clear(state);
            float decay = tile.decay[i], reading = -decay * tile.beta[i] * state_dot(state, tile.vectors[i][D_UPDATE], &s);
            float query = decay * state_dot(state, tile.vectors[i][D_Y], &s);
            state_add(state, decay, tile.scalars[i][KEY][within], tile.vectors[i][UPDATE], &s);
            int64_t at = ((s.first + step + i) * a.heads + s.head) * a.key_dim + s.column;
            if (s.part == 0 && s.column < a.key_dim) a.d_reading[at] = reading;
            if (s.part == 1 && s.column < a.key_dim) a.d_queries[at] = query;
        }
    }
}

/* Scan 3. */
KERNEL(delta_back_keys, DeltaArguments) {
    static SHARED ScanTile tile;
    Scan s = scan_begin(&a, true);
    f32x4 state[SCAN_UNITS];
    int within = thread_id() / SCAN_PARTS;
    state_clear(state);
    for (int step = 0; step < a.length; step += SCAN_STEPS) {
        barrier();
        stage_gradients(&a, &s, &tile, step);
        stage_units(&a, &s, &tile, step, true);
        stage_factors(&a, &s, &tile, step);
        barrier();
        for (int i = 0; i < SCAN_STEPS && step + i < a.length; i++) {
            float decay = tile.decay[i];
            state_add(state, 1, tile.scalars[i][QUERY][within], tile.vectors[i][D_Y], &s);
            float writing = state_dot(state, tile.vectors[i][UPDATE], &s);
            if (s.part == 0 && s.column < a.key_dim)
                a.d_writing[(step_row(&a, &s, step + i) * a.heads + s.head) * a.key_dim + s.column] = writing;
            state_add(state, decay, -decay * tile.beta[i] * tile.scalars[i][KEY][within], tile.vectors[i][D_UPDATE], &s);
            if (tile.begins[i] != 0) state_clear(state);
        }
    }
}

/* -- After the scans ----------------------------------------------------------------------------------------------- */

/* d_factors of a row. */
KERNEL(delta_dots, DeltaArguments) {
    int64_t row = block_x();
    for (int h = wave_id(); h < a.heads; h += TILE_THREADS / WAVE) {
        const float GLOBAL *q = a.units + row * 2 * a.keys + (int64_t)(h / a.group) * a.key_dim;
        const bf16 GLOBAL *v = a.x + row * a.columns + 2 * a.keys + (int64_t)h * a.value_dim;
        int64_t key = (row * a.heads + h) * a.key_dim, value = row * a.values + (int64_t)h * a.value_dim;
        float beta = a.factors[(row * a.heads + h) * 2 + 1], product = a.products[row * a.key_heads + h / a.group];
        float read = 0, written = 0, d_beta = 0, own = 0;
        for (int i = lane_id(); i < a.key_dim; i += WAVE) read += q[i] * a.d_queries[key + i];
        for (int i = lane_id(); i < a.value_dim; i += WAVE) {
            float d_y = a.d_y[value + i], recalled = a.recalled[value + i], carried = a.d_carried[value + i];
            float error = to_float(v[i]) - recalled;
            written += product * recalled * d_y + to_float(v[i]) * carried;
            d_beta += (carried + product * d_y) * error;
            own += beta * error * d_y;
        }
        read = wave_sum(read), written = wave_sum(written), d_beta = wave_sum(d_beta), own = wave_sum(own);
        float GLOBAL *to = a.d_factors + (row * a.heads + h) * 3;
        if (lane_id() == 0) to[0] = read - beta * written, to[1] = d_beta, to[2] = own;
    }
}

/* d_gates of a head of a sequence. Threads take spans of rows, and pass on the sum that enters a span from its end. */
KERNEL(delta_gates_grad, DeltaArguments) {
    static SHARED float carried[TILE_THREADS], cut[TILE_THREADS], scratch[TILE_THREADS / WAVE];
    int head = block_x(), span = (a.length + TILE_THREADS - 1) / TILE_THREADS, begin = thread_id() * span, end = begin + span;
    int64_t first = (int64_t)block_y() * a.length;
    float rate = fast_exp(a.rates[head]), bias = a.bias[head], sum = 0, begins = 0, d_rate = 0, d_bias = 0;
    if (end > a.length) end = a.length;
    for (int i = end - 1; i >= begin; i--) {
        sum += a.d_factors[((first + i) * a.heads + head) * 3];
        if (a.positions[first + i] == 0) sum = 0, begins = 1;
    }
    carried[thread_id()] = sum, cut[thread_id()] = begins;
    barrier();
    sum = 0;
    if (thread_id() == 0)
        for (int t = TILE_THREADS - 1; t >= 0; t--) {
            float own = carried[t];
            carried[t] = sum;
            sum = own + (cut[t] != 0 ? 0 : sum);
        }
    barrier();
    sum = carried[thread_id()];
    for (int i = end - 1; i >= begin; i--) {
        int64_t at = (first + i) * a.heads + head;
        const bf16 GLOBAL *gate = a.gates + (first + i) * 2 * a.heads + head;
        bf16 GLOBAL *to = a.d_gates + (first + i) * 2 * a.heads + head;
        float beta = a.factors[at * 2 + 1], in = to_float(gate[a.heads]) + bias;
        sum += a.d_factors[at * 3];
        float d_in = -sum * rate * sigmoid(in);
        d_rate -= sum * rate * soft_plus(in);
        d_bias += d_in;
        to[0] = to_bf16(a.d_factors[at * 3 + 1] * beta * (1 - beta));
        to[a.heads] = to_bf16(d_in);
        if (a.positions[first + i] == 0) sum = 0;
    }
    d_rate = block_sum(d_rate, scratch, TILE_THREADS);
    d_bias = block_sum(d_bias, scratch, TILE_THREADS);
    float GLOBAL *sums = a.sums + (int64_t)block_y() * 2 * a.heads + head;
    if (thread_id() == 0) sums[0] = d_rate, sums[a.heads] = d_bias;
}

/* Returns channel i of the gradient of a normalized query or key: the sum over its value heads. */
INLINE float unit_gradient(const DeltaArguments *a, int64_t row, int key_head, bool is_key, int i) {
    int64_t head = row * a->heads + key_head * a->group;
    float k = a->units[row * 2 * a->keys + a->keys + (int64_t)key_head * a->key_dim + i], sum = 0;
    for (int g = 0; g < a->group; g++, head++) {
        int64_t at = head * a->key_dim + i;
        sum += is_key ? a->d_reading[at] + a->d_writing[at] : a->d_queries[at] + a->d_factors[head * 3 + 2] * k;
    }
    return sum;
}

/* d_x of a row: through the division by lengths for queries and keys, beta du for values. */
KERNEL(delta_finish, DeltaArguments) {
    int64_t row = block_x();
    for (int h = wave_id(); h < 2 * a.key_heads; h += TILE_THREADS / WAVE) {
        const bf16 GLOBAL *x = a.x + row * a.columns + (int64_t)h * a.key_dim;
        bf16 GLOBAL *to = a.d_x + row * a.columns + (int64_t)h * a.key_dim;
        bool is_key = h >= a.key_heads;
        int key_head = is_key ? h - a.key_heads : h;
        float inverse = inverse_head_length(x, a.key_dim), scale = is_key ? inverse : inverse / a.root, along = 0;
        for (int i = lane_id(); i < a.key_dim; i += WAVE) along += to_float(x[i]) * unit_gradient(&a, row, key_head, is_key, i);
        along = wave_sum(along) * inverse * inverse;
        for (int i = lane_id(); i < a.key_dim; i += WAVE)
            to[i] = to_bf16(scale * (unit_gradient(&a, row, key_head, is_key, i) - to_float(x[i]) * along));
    }
    for (int j = thread_id(); j < a.values; j += TILE_THREADS)
        a.d_x[row * a.columns + 2 * a.keys + j] = to_bf16(
            a.factors[(row * a.heads + j / a.value_dim) * 2 + 1] * delta_grad_at(&a, row, j / a.value_dim, j % a.value_dim).d_update);
}

#else

#include <math.h>

#include "ops/delta/delta.h"

LAUNCHERS(delta_row, DeltaArguments, delta_prepare, delta_dots, delta_finish)
LAUNCHERS(delta_scan, DeltaArguments, delta_forward, delta_back_values, delta_again, delta_back_keys)
LAUNCHER(delta_gates_grad, DeltaArguments)

enum { PREPARE, DOTS, FINISH };
enum { FORWARD, BACK_VALUES, AGAIN, BACK_KEYS };

static DeltaArguments delta_arguments(const OpCall *call, const DeltaShape *s, bool backward) {
    DeltaScratch at = delta_scratch(s, backward);
    float *scratch = call->workspace;
    return (DeltaArguments){.x = call->in[DELTA_X],
        .gates = call->in[DELTA_GATES],
        .rates = call->in[DELTA_RATES],
        .bias = call->in[DELTA_BIAS],
        .positions = call->in[DELTA_POSITIONS],
        .units = scratch + at.units,
        .products = scratch + at.products,
        .factors = scratch + at.factors,
        .d_carried = scratch + at.d_carried,
        .d_queries = scratch + at.d_queries,
        .d_reading = scratch + at.d_reading,
        .d_writing = scratch + at.d_writing,
        .d_factors = scratch + at.d_factors,
        .sums = scratch + at.sums,
        .length = (int32_t)s->length,
        .key_heads = (int32_t)s->key_heads,
        .heads = (int32_t)s->heads,
        .group = (int32_t)s->group,
        .key_dim = (int32_t)s->key_dim,
        .value_dim = (int32_t)s->value_dim,
        .keys = (int32_t)s->keys,
        .values = (int32_t)s->values,
        .columns = (int32_t)s->columns,
        .root = sqrtf((float)s->key_dim)};
}

static void launch_rows(const OpCall *call, int form, const DeltaShape *s, const DeltaArguments *arguments) {
    launch_delta_row(call->device, form, (LaunchShape){.x = s->rows, .threads = TILE_THREADS}, arguments);
}

static void launch_scan(const OpCall *call, int form, const DeltaShape *s, const DeltaArguments *arguments) {
    int64_t columns = form == FORWARD || form == BACK_VALUES ? s->value_dim : s->key_dim;
    LaunchShape shape = {.x = divide_up(columns, SCAN_COLUMNS), .y = s->heads, .z = s->sequences, .threads = SCAN_THREADS};
    launch_delta_scan(call->device, form, shape, arguments);
}

static int64_t delta_gpu_workspace(const Graph *graph, const Node *node) {
    DeltaShape s = delta_shape(node->attributes, graph_rows(graph, node->in[DELTA_X]));
    return delta_scratch(&s, node->op == OP_delta_grad).elements * (int64_t)sizeof(float);
}

GPU_OP(delta, delta_gpu_workspace) {
    DeltaShape s = delta_call_shape(call);
    DeltaArguments arguments = delta_arguments(call, &s, false);
    arguments.slots = call->in[DELTA_SLOTS], arguments.lasts = call->in[DELTA_LASTS];
    arguments.y = call->out[DELTA_Y], arguments.recalled = call->out[DELTA_RECALLED], arguments.state = call->out[DELTA_STATE];
    launch_rows(call, PREPARE, &s, &arguments);
    launch_scan(call, FORWARD, &s, &arguments);
}

GPU_OP(delta_grad, delta_gpu_workspace) {
    DeltaShape s = delta_call_shape(call);
    DeltaArguments arguments = delta_arguments(call, &s, true);
    arguments.d_y = call->in[DELTA_GRAD_D_Y], arguments.recalled = call->in[DELTA_GRAD_RECALLED];
    arguments.d_x = call->out[DELTA_GRAD_D_X], arguments.d_gates = call->out[DELTA_GRAD_D_GATES];
    launch_rows(call, PREPARE, &s, &arguments);
    for (int form = BACK_VALUES; form <= BACK_KEYS; form++) launch_scan(call, form, &s, &arguments);
    launch_rows(call, DOTS, &s, &arguments);
    launch_delta_gates_grad(call->device, (LaunchShape){.x = s.heads, .y = s.sequences, .threads = TILE_THREADS}, &arguments);
    launch_rows(call, FINISH, &s, &arguments);
    gpu_add_partial_sums(
        call->device, (float *[]){call->out[DELTA_GRAD_D_RATES], call->out[DELTA_GRAD_D_BIAS]}, 2, arguments.sums, s.sequences, s.heads);
}

#endif
