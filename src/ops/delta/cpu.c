/* The gated delta rule on a CPU (formulas in rule.c): a thread takes one head of one sequence and computes its chunks in order;
 * the blocks of a chunk stay in the thread's cache. In generation and with device_set_exact a chunk has one token, so that the
 * bits of a token do not depend on the tokens before it in the call. Scratch: DeltaScratch, then a DeltaTile per thread. */
#include <omp.h>

#include "backend/cpu/cpu_tile.h"
#include "device/device.h"
#include "ops/delta/delta.h"

enum {
    CHUNK = 64,
    GROUP = 16, /* rows and columns of blocks that are computed together; row widths are multiples of it */
    STEP = 8,   /* rows per step of the forward substitution */
    WIDTH = DELTA_MOST_DIM,
    TILE_ELEMENTS = 2 * WIDTH * WIDTH + 9 * CHUNK * WIDTH + 5 * CHUNK * CHUNK,
    ALIGNED = 64 / sizeof(W),
};

typedef struct DeltaCall {
    DeltaShape s;
    int64_t chunk;
    const T *x;
    const int32_t *positions;
    W *units, *products, *factors, *recalled; /* recalled NULL: not wanted */
    W *y;                                     /* or d_y */
    W *d_carried, *d_queries, *d_reading, *d_writing, *tiles;
} DeltaCall;

/* The scratch of a thread. Rows of keys have key_width columns and rows of values value_width, zero after their dims. */
typedef struct DeltaTile {
    int64_t key_width, value_width;
    W *state;                                            /* [key_dim, value_width]: S, or dS in the pass from the end */
    W *turned;                                           /* [value_width, key_width]: dS transposed; in the last pass S transposed */
    W *keys, *queries, *key_sums;                        /* [CHUNK, key_width] */
    W *updates, *d_y, *values, *d_recalled, *value_sums; /* [CHUNK, value_width] */
    W *columns;                                          /* [width, CHUNK]: keys or updates, transposed */
    W *decays, *of_keys, *of_queries, *d_of_keys, *d_of_queries; /* [CHUNK, CHUNK]: D, L, P and their gradients */
    W carry[CHUNK];                                              /* the decay from the chunk's first state to each token */
    W left[CHUNK];                                               /* the decay from each token to the chunk's end */
    W whole[WIDTH];                                              /* the decay over the chunk, repeated */
} DeltaTile;

/* One head of one sequence: its rows, and its key head. */
typedef struct DeltaTask { int64_t first, end, head, key_head; } DeltaTask;

static int64_t delta_threads(const DeltaShape *s) { return int_min(s->sequences * s->heads, omp_get_max_threads()); }

static int64_t delta_bytes(const Graph *graph, const Node *node, bool backward) {
    DeltaShape s = delta_shape(node->attributes, graph_rows(graph, node->in[DELTA_X]));
    return (round_up(delta_scratch(&s, backward).elements, ALIGNED) + delta_threads(&s) * TILE_ELEMENTS) *
           (int64_t)precision_bytes(graph->precision, TYPE_WIDE);
}
static int64_t delta_cpu_workspace(const Graph *graph, const Node *node) { return delta_bytes(graph, node, false); }
static int64_t delta_grad_cpu_workspace(const Graph *graph, const Node *node) { return delta_bytes(graph, node, true); }

static DeltaCall delta_call(const OpCall *call, bool backward) {
    DeltaCall c = {.s = delta_call_shape(call), .x = call->in[DELTA_X], .positions = call->in[DELTA_POSITIONS]};
    DeltaScratch at = delta_scratch(&c.s, backward);
    W *scratch = call->workspace;
    c.chunk = device_info(call->device)->exact || (!backward && call->out[DELTA_STATE]) ? 1 : CHUNK;
    c.units = scratch + at.units, c.products = scratch + at.products, c.factors = scratch + at.factors;
    c.d_carried = scratch + at.d_carried, c.d_queries = scratch + at.d_queries;
    c.d_reading = scratch + at.d_reading, c.d_writing = scratch + at.d_writing;
    c.tiles = scratch + round_up(at.elements, ALIGNED);
    return c;
}

static DeltaTask delta_task(const DeltaCall *c, int64_t index) {
    int64_t sequence = index / c->s.heads, head = index % c->s.heads;
    return (DeltaTask){.first = sequence * c->s.length, .end = (sequence + 1) * c->s.length, .head = head, .key_head = head / c->s.group};
}

static DeltaTile delta_tile(const DeltaCall *c) {
    DeltaTile tile = {.key_width = round_up(c->s.key_dim, GROUP), .value_width = round_up(c->s.value_dim, GROUP)};
    W *at = c->tiles + omp_get_thread_num() * TILE_ELEMENTS;
    W **const rows[] = {&tile.keys, &tile.queries, &tile.key_sums, &tile.updates, &tile.d_y, &tile.values, &tile.d_recalled,
        &tile.value_sums, &tile.columns};
    W **const squares[] = {&tile.decays, &tile.of_keys, &tile.of_queries, &tile.d_of_keys, &tile.d_of_queries};
    tile.state = at, tile.turned = at + WIDTH * WIDTH, at += 2 * WIDTH * WIDTH;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++, at += CHUNK * WIDTH) *rows[i] = at;
    for (size_t i = 0; i < sizeof squares / sizeof *squares; i++, at += CHUNK * CHUNK) *squares[i] = at;
    return tile;
}

static const W *query_of(const DeltaCall *c, const DeltaTask *t, int64_t r) {
    return c->units + 2 * r * c->s.keys + t->key_head * c->s.key_dim;
}
static const W *key_of(const DeltaCall *c, const DeltaTask *t, int64_t r) { return query_of(c, t, r) + c->s.keys; }
static W *factors_of(const DeltaCall *c, int64_t r, int64_t head) { return c->factors + (r * c->s.heads + head) * 2; }
static W product_of(const DeltaCall *c, const DeltaTask *t, int64_t r) { return c->products[r * c->s.key_heads + t->key_head]; }
static const T *head_values(const DeltaCall *c, const DeltaTask *t, int64_t r) {
    return c->x + r * c->s.columns + 2 * c->s.keys + t->head * c->s.value_dim;
}
static W *value_row(W *values, const DeltaCall *c, const DeltaTask *t, int64_t r) {
    return values + r * c->s.values + t->head * c->s.value_dim;
}
static W *key_row(W *keys, const DeltaCall *c, int64_t r, int64_t head) { return keys + (r * c->s.heads + head) * c->s.key_dim; }

static W dot_product(const W *a, const W *b, int64_t count) {
    W sum = 0;
    for (int64_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* -- Inputs of chunks ----------------------------------------------------------------------------------------------- */

static W softplus(W x) { return x > 20 ? x : (W)log1p(exp((double)x)); }

static W inverse_length(const T *x, int64_t count) {
    W sum = 0;
    for (int64_t i = 0; i < count; i++) sum += to_wide(x[i]) * to_wide(x[i]);
    return 1 / wide_sqrt(sum + (W)delta_epsilon);
}

static void prepare_units(const OpCall *call, const DeltaCall *c) {
    const DeltaShape *s = &c->s;
    const T *gates = call->in[DELTA_GATES];
    const W *rates = call->in[DELTA_RATES], *bias = call->in[DELTA_BIAS];
    W root = wide_sqrt((W)s->key_dim);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < s->rows; r++) {
        for (int64_t h = 0; h < 2 * s->key_heads; h++) {
            const T *from = c->x + r * s->columns + h * s->key_dim;
            W *to = c->units + 2 * r * s->keys + h * s->key_dim, scale = inverse_length(from, s->key_dim);
            if (h < s->key_heads) scale /= root;
            for (int64_t i = 0; i < s->key_dim; i++) to[i] = scale * to_wide(from[i]);
        }
        for (int64_t h = 0; h < s->key_heads; h++) {
            const W *q = c->units + 2 * r * s->keys + h * s->key_dim;
            c->products[r * s->key_heads + h] = dot_product(q, q + s->keys, s->key_dim);
        }
        for (int64_t h = 0; h < s->heads; h++) {
            const T *gate = gates + r * 2 * s->heads + h;
            W *to = factors_of(c, r, h);
            to[0] = (W)exp(-exp((double)rates[h]) * (double)softplus(to_wide(gate[s->heads]) + bias[h]));
            to[1] = 1 / (1 + wide_exp(-to_wide(gate[0])));
        }
    }
}

/* -- Products of blocks -------------------------------------------------------------------------------------------- */

/* The terms of row i in a sum over p: all terms; the terms of its own and earlier groups of rows; or of its own and later groups. */
typedef enum Terms { ALL, UP_TO, FROM } Terms;

/* A product c[rows, columns] += a b with `depth` terms. `columns` is a multiple of GROUP. Sums start at zero if `clears`, else at
 * c, times scale[i] unless `scale` is NULL. */
typedef struct Product {
    W *c;
    int64_t c_row;
    TileRows a;
    const W *b;
    int64_t b_row, rows, columns, depth;
    Terms terms;
    bool clears;
    const W *scale;
} Product;

static const W zeros[TILE_VECTORS * TILE_LANES] __attribute__((aligned(64)));

static inline __attribute__((always_inline)) void multiply_panel(const Product *p, int64_t column, const int vectors) {
    const int together = TILE_ROWS(vectors);
    const W *start = p->clears ? zeros : NULL;
    for (int64_t i = 0; i < p->rows;) {
        int64_t group = i / GROUP * GROUP;
        TileRange range = {p->terms == FROM ? (int)group : 0, (int)(p->terms == UP_TO ? int_min(group + GROUP, p->depth) : p->depth)};
        TileRows a = {p->a.at + i * p->a.row, p->a.row, p->a.step};
        W *c = p->c + i * p->c_row + column;
        const W *scale = p->scale ? p->scale + i : NULL, *b = p->b + column;
        if (i + together <= p->rows) {
            tile_matmul(c, p->c_row, start, scale, a, b, p->b_row, range, together, vectors);
            i += together;
        } else tile_matmul(c, p->c_row, start, scale, a, b, p->b_row, range, 1, vectors), i++;
    }
}

static void multiply(const Product *p) {
    int64_t left = p->columns / TILE_LANES, column = 0;
    for (; left >= TILE_VECTORS; left -= TILE_VECTORS, column += TILE_VECTORS * TILE_LANES) multiply_panel(p, column, TILE_VECTORS);
#if defined __AVX512F__
    if (left == 3) multiply_panel(p, column, 3);
    if (left == 2) multiply_panel(p, column, 2);
    if (left == 1) multiply_panel(p, column, 1);
#endif
}

/* to[i][j] = D[i][j] a_i . columns_j for j <= i, and 0 for later j of the group of i. */
static void multiply_decayed(const DeltaTile *tile, W *to, TileRows a, int64_t rows, int64_t depth) {
    for (int64_t i = 0; i < rows; i += GROUP) {
        int64_t count = int_min(rows - i, GROUP);
        multiply(&(Product){.c = to + i * CHUNK,
            .c_row = CHUNK,
            .a = {a.at + i * a.row, a.row, a.step},
            .b = tile->columns,
            .b_row = CHUNK,
            .rows = count,
            .columns = i + GROUP,
            .depth = depth,
            .clears = true});
        for (int64_t r = i; r < i + count; r++) {
            for (int64_t j = 0; j <= r; j++) to[r * CHUNK + j] *= tile->decays[r * CHUNK + j];
            for (int64_t j = r + 1; j < i + GROUP; j++) to[r * CHUNK + j] = 0;
        }
    }
}
static void set_diagonal(W *square, int64_t rows, W value) {
    for (int64_t i = 0; i < rows; i++) square[i * CHUNK + i] = value;
}

/* -- Loading a chunk ----------------------------------------------------------------------------------------------- */

/* The decay of a row. It is 0 at the first token of a document, which clears the state of the previous document. */
static W decay_of(const DeltaCall *c, const DeltaTask *t, int64_t r) { return c->positions[r] == 0 ? 0 : factors_of(c, r, t->head)[0]; }

/* Products of decays below 2^-100 count as 0: multiply-adds of subnormal numbers take a hundred times as long. */
static W flush(W product) { return product < (W)0x1p-100 ? 0 : product; }

/* D[i][j] is the product of the decays after token j up to token i: not a quotient of long products, which could underflow. */
static void load_decays(const DeltaCall *c, const DeltaTask *t, DeltaTile *tile, int64_t first, int64_t rows) {
    W carry = 1;
    for (int64_t i = 0; i < rows; i++) {
        W decay = decay_of(c, t, first + i), *row = tile->decays + i * CHUNK;
        tile->carry[i] = carry = flush(carry * decay);
        for (int64_t j = 0; j < i; j++) row[j] = flush(decay * row[j - CHUNK]);
        row[i] = 1;
    }
    memcpy(tile->left, tile->decays + (rows - 1) * CHUNK, rows * sizeof(W));
    for (int64_t i = 0; i < WIDTH; i++) tile->whole[i] = carry;
}

/* Copies `rows` rows `from_row` elements apart, and adds zero rows up to a multiple of GROUP. */
static void load_rows(W *to, int64_t width, const W *from, int64_t from_row, int64_t dim, int64_t rows) {
    for (int64_t i = 0; i < rows; i++) {
        memcpy(to + i * width, from + i * from_row, dim * sizeof(W));
        memset(to + i * width + dim, 0, (width - dim) * sizeof(W));
    }
    memset(to + rows * width, 0, (round_up(rows, GROUP) - rows) * width * sizeof(W));
}

static void load_units(const DeltaCall *c, const DeltaTask *t, DeltaTile *tile, int64_t first, int64_t rows) {
    load_rows(tile->keys, tile->key_width, key_of(c, t, first), 2 * c->s.keys, c->s.key_dim, rows);
    load_rows(tile->queries, tile->key_width, query_of(c, t, first), 2 * c->s.keys, c->s.key_dim, rows);
}

/* L, with a diagonal of 0, and P, without its diagonal, which the caller sets. */
static void load_squares(const DeltaCall *c, DeltaTile *tile, int64_t rows) {
    tile_transpose(tile->columns, CHUNK, tile->keys, tile->key_width, round_up(rows, GROUP), tile->key_width);
    multiply_decayed(tile, tile->of_keys, (TileRows){tile->keys, tile->key_width, 1}, rows, c->s.key_dim);
    multiply_decayed(tile, tile->of_queries, (TileRows){tile->queries, tile->key_width, 1}, rows, c->s.key_dim);
    set_diagonal(tile->of_keys, rows, 0);
}

static void clear_state(W *state) { memset(state, 0, WIDTH * WIDTH * sizeof(W)); }

/* c[rows, columns of b] += a b */
#define MULTIPLY(...) multiply(&(Product){__VA_ARGS__})

/* -- Forward ------------------------------------------------------------------------------------------------------- */

/* Computes m and u from carry_i (S^T k_i) in tile->values. Terms of earlier tokens of the chunk are added group by group. */
static void solve_updates(const DeltaCall *c, const DeltaTask *t, DeltaTile *tile, int64_t first, int64_t rows) {
    int64_t width = tile->value_width, dim = c->s.value_dim;
    for (int64_t begin = 0; begin < rows; begin += STEP) {
        int64_t end = int_min(begin + STEP, rows);
        if (begin)
            MULTIPLY(.c = tile->values + begin * width, .c_row = width, .a = {tile->of_keys + begin * CHUNK, CHUNK, 1}, .b = tile->updates,
                .b_row = width, .rows = end - begin, .columns = width, .depth = begin);
        for (int64_t i = begin; i < end; i++) {
            W *restrict recalled = tile->values + i * width, beta = factors_of(c, first + i, t->head)[1];
            W *restrict update = tile->updates + i * width;
            const T *v = head_values(c, t, first + i);
            for (int64_t j = begin; j < i; j++)
                for (int64_t k = 0; k < width; k++) recalled[k] += tile->of_keys[i * CHUNK + j] * tile->updates[j * width + k];
            for (int64_t k = 0; k < dim; k++) update[k] = beta * (to_wide(v[k]) - recalled[k]);
            for (int64_t k = dim; k < width; k++) update[k] = 0;
        }
    }
}

/* Computes y and m of a chunk from the state before it, and the state after it. */
static void delta_chunk(const DeltaCall *c, const DeltaTask *t, DeltaTile *tile, int64_t first, int64_t rows) {
    const int64_t key_dim = c->s.key_dim, value_dim = c->s.value_dim, width = tile->value_width;
    load_decays(c, t, tile, first, rows);
    load_units(c, t, tile, first, rows);
    if (rows > 1) load_squares(c, tile, rows);
    for (int64_t i = 0; i < rows; i++) tile->of_queries[i * CHUNK + i] = product_of(c, t, first + i);
    MULTIPLY(.c = tile->values, .c_row = width, .a = {tile->keys, tile->key_width, 1}, .b = tile->state, .b_row = width, .rows = rows,
        .columns = width, .depth = key_dim, .clears = true);
    MULTIPLY(.c = tile->value_sums, .c_row = width, .a = {tile->queries, tile->key_width, 1}, .b = tile->state, .b_row = width,
        .rows = rows, .columns = width, .depth = key_dim, .clears = true);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < width; k++) tile->values[i * width + k] *= tile->carry[i];
    solve_updates(c, t, tile, first, rows);
    MULTIPLY(.c = tile->value_sums, .c_row = width, .a = {tile->of_queries, CHUNK, 1}, .b = tile->updates, .b_row = width, .rows = rows,
        .columns = width, .depth = rows, .terms = UP_TO, .scale = tile->carry);
    for (int64_t i = 0; i < rows; i++) {
        memcpy(value_row(c->y, c, t, first + i), tile->value_sums + i * width, value_dim * sizeof(W));
        if (c->recalled) memcpy(value_row(c->recalled, c, t, first + i), tile->values + i * width, value_dim * sizeof(W));
        for (int64_t k = 0; k < width; k++) tile->updates[i * width + k] *= tile->left[i];
    }
    MULTIPLY(.c = tile->state, .c_row = width, .a = {tile->keys, 1, tile->key_width}, .b = tile->updates, .b_row = width, .rows = key_dim,
        .columns = width, .depth = rows, .scale = tile->whole);
}

/* Copies a slot's state [key_dim, value_dim] to the tile, or back. */
static void copy_slot_state(const DeltaShape *s, const DeltaTile *tile, W *slot, bool loads) {
    for (int64_t i = 0; i < s->key_dim; i++) {
        W *row = tile->state + i * tile->value_width, *stored = slot + i * s->value_dim;
        memcpy(loads ? row : stored, loads ? stored : row, s->value_dim * sizeof(W));
    }
}

CPU_OP(delta, delta_cpu_workspace) {
    DeltaCall c = delta_call(call, false);
    const DeltaShape *s = &c.s;
    const int32_t *slots = call->in[DELTA_SLOTS], *lasts = call->in[DELTA_LASTS];
    W *stored = call->out[DELTA_STATE];
    c.y = call->out[DELTA_Y], c.recalled = call->out[DELTA_RECALLED];
    prepare_units(call, &c);
#pragma omp parallel for schedule(dynamic) num_threads((int)delta_threads(s))
    for (int64_t index = 0; index < s->sequences * s->heads; index++) {
        DeltaTask t = delta_task(&c, index);
        DeltaTile tile = delta_tile(&c);
        int64_t sequence = index / s->heads, size = s->key_dim * s->value_dim;
        int64_t last = lasts ? t.first + lasts[sequence] : t.end - 1;
        W *own = stored ? stored + ((slots ? slots[sequence] : 0) * s->heads + t.head) * size : NULL;
        clear_state(tile.state);
        if (own) copy_slot_state(s, &tile, own, true);
        for (int64_t r = t.first; r < t.end; r += c.chunk) {
            delta_chunk(&c, &t, &tile, r, int_min(c.chunk, t.end - r));
            if (own && r == last) copy_slot_state(s, &tile, own, false);
        }
    }
}

/* -- Backward ------------------------------------------------------------------------------------------------------ */

/* Vectors of a row: u, du and dm. */
typedef struct DeltaVectors { W update[DELTA_MOST_DIM], d_update[DELTA_MOST_DIM], d_recalled[DELTA_MOST_DIM]; } DeltaVectors;

static DeltaVectors vectors_of(const DeltaCall *c, const DeltaTask *t, int64_t r) {
    DeltaVectors of;
    const W *factors = factors_of(c, r, t->head), *d_y = value_row(c->y, c, t, r), *d_carried = value_row(c->d_carried, c, t, r);
    const W *recalled = value_row(c->recalled, c, t, r);
    const T *v = head_values(c, t, r);
    W product = product_of(c, t, r);
    for (int64_t j = 0; j < c->s.value_dim; j++) {
        of.update[j] = factors[1] * (to_wide(v[j]) - recalled[j]);
        of.d_update[j] = d_carried[j] + product * d_y[j];
        of.d_recalled[j] = -factors[1] * of.d_update[j];
    }
    return of;
}

/* Loads u and d_y of a chunk, and adds zero rows up to a multiple of GROUP. */
static void load_outputs(const DeltaCall *c, const DeltaTask *t, DeltaTile *tile, int64_t first, int64_t rows) {
    const int64_t width = tile->value_width;
    load_rows(tile->d_y, width, value_row(c->y, c, t, first), c->s.values, c->s.value_dim, rows);
    memset(tile->updates, 0, round_up(rows, GROUP) * width * sizeof(W));
    for (int64_t i = 0; i < rows; i++) {
        const W *recalled = value_row(c->recalled, c, t, first + i), beta = factors_of(c, first + i, t->head)[1];
        const T *v = head_values(c, t, first + i);
        for (int64_t k = 0; k < c->s.value_dim; k++) tile->updates[i * width + k] = beta * (to_wide(v[k]) - recalled[k]);
    }
}

static void multiply_rows_by(W *rows, int64_t width, const W *factors, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = 0; k < width; k++) rows[i * width + k] *= factors[i];
}

/* Computes d_carried and dm from the terms of d_y and dS in tile->values, from the last token to the first. */
static void solve_carried(const DeltaCall *c, const DeltaTask *t, DeltaTile *tile, int64_t first, int64_t rows) {
    const int64_t width = tile->value_width;
    for (int64_t begin = (rows - 1) / STEP * STEP; begin >= 0; begin -= STEP) {
        int64_t end = int_min(begin + STEP, rows);
        if (end < rows)
            MULTIPLY(.c = tile->values + begin * width, .c_row = width, .a = {tile->of_keys + end * CHUNK + begin, 1, CHUNK},
                .b = tile->d_recalled + end * width, .b_row = width, .rows = end - begin, .columns = width, .depth = rows - end);
        for (int64_t i = end - 1; i >= begin; i--) {
            W *restrict carried = tile->values + i * width, *restrict d_recalled = tile->d_recalled + i * width;
            W beta = factors_of(c, first + i, t->head)[1], product = product_of(c, t, first + i);
            for (int64_t j = i + 1; j < end; j++)
                for (int64_t k = 0; k < width; k++) carried[k] += tile->of_keys[j * CHUNK + i] * tile->d_recalled[j * width + k];
            for (int64_t k = 0; k < width; k++) d_recalled[k] = -beta * (carried[k] + product * tile->d_y[i * width + k]);
            memcpy(value_row(c->d_carried, c, t, first + i), carried, c->s.value_dim * sizeof(W));
        }
    }
}

/* d_queries and d_writing of a chunk, without the terms of the state before it. */
static void multiply_unit_gradients(const DeltaCall *c, const DeltaTask *t, DeltaTile *tile, int64_t first, int64_t rows) {
    const int64_t width = tile->key_width, padded = round_up(rows, GROUP);
    tile_transpose(tile->columns, CHUNK, tile->updates, tile->value_width, padded, tile->value_width);
    tile_transpose(tile->turned, width, tile->state, tile->value_width, width, tile->value_width);
    multiply_decayed(tile, tile->d_of_keys, (TileRows){tile->d_recalled, tile->value_width, 1}, rows, c->s.value_dim);
    multiply_decayed(tile, tile->d_of_queries, (TileRows){tile->d_y, tile->value_width, 1}, rows, c->s.value_dim);
    set_diagonal(tile->d_of_keys, rows, 0);
    MULTIPLY(.c = tile->key_sums, .c_row = width, .a = {tile->updates, tile->value_width, 1}, .b = tile->turned, .b_row = width,
        .rows = rows, .columns = width, .depth = c->s.value_dim, .clears = true);
    MULTIPLY(.c = tile->key_sums, .c_row = width, .a = {tile->d_of_queries, 1, CHUNK}, .b = tile->queries, .b_row = width, .rows = rows,
        .columns = width, .depth = rows, .terms = FROM, .scale = tile->left);
    MULTIPLY(.c = tile->key_sums, .c_row = width, .a = {tile->d_of_keys, 1, CHUNK}, .b = tile->keys, .b_row = width, .rows = rows,
        .columns = width, .depth = rows, .terms = FROM);
    MULTIPLY(.c = tile->key_sums, .c_row = width, .a = {tile->d_of_keys, CHUNK, 1}, .b = tile->keys, .b_row = width, .rows = rows,
        .columns = width, .depth = rows, .terms = UP_TO);
    for (int64_t i = 0; i < rows; i++)
        memcpy(key_row(c->d_writing, c, first + i, t->head), tile->key_sums + i * width, c->s.key_dim * sizeof(W));
    set_diagonal(tile->d_of_queries, rows, 0); /* finish_gates adds these terms */
    MULTIPLY(.c = tile->key_sums, .c_row = width, .a = {tile->d_of_queries, CHUNK, 1}, .b = tile->keys, .b_row = width, .rows = rows,
        .columns = width, .depth = rows, .terms = UP_TO, .clears = true);
    for (int64_t i = 0; i < rows; i++)
        memcpy(key_row(c->d_queries, c, first + i, t->head), tile->key_sums + i * width, c->s.key_dim * sizeof(W));
}

/* The pass from the last token to the first, with dS. */
static void delta_chunk_back(const DeltaCall *c, const DeltaTask *t, DeltaTile *tile, int64_t first, int64_t rows) {
    const int64_t key_dim = c->s.key_dim, width = tile->value_width;
    load_decays(c, t, tile, first, rows);
    load_units(c, t, tile, first, rows);
    load_outputs(c, t, tile, first, rows);
    load_squares(c, tile, rows);
    set_diagonal(tile->of_queries, rows, 0);
    memset(tile->d_recalled, 0, round_up(rows, GROUP) * width * sizeof(W));
    MULTIPLY(.c = tile->values, .c_row = width, .a = {tile->keys, tile->key_width, 1}, .b = tile->state, .b_row = width, .rows = rows,
        .columns = width, .depth = key_dim, .clears = true);
    MULTIPLY(.c = tile->values, .c_row = width, .a = {tile->of_queries, 1, CHUNK}, .b = tile->d_y, .b_row = width, .rows = rows,
        .columns = width, .depth = rows, .terms = FROM, .scale = tile->left);
    solve_carried(c, t, tile, first, rows);
    multiply_unit_gradients(c, t, tile, first, rows);
    multiply_rows_by(tile->d_y, width, tile->carry, rows);
    multiply_rows_by(tile->d_recalled, width, tile->carry, rows);
    MULTIPLY(.c = tile->state, .c_row = width, .a = {tile->queries, 1, tile->key_width}, .b = tile->d_y, .b_row = width, .rows = key_dim,
        .columns = width, .depth = rows, .scale = tile->whole);
    MULTIPLY(.c = tile->state, .c_row = width, .a = {tile->keys, 1, tile->key_width}, .b = tile->d_recalled, .b_row = width,
        .rows = key_dim, .columns = width, .depth = rows);
}

/* The pass from the first token on, with S transposed: the terms of the state before the chunk. */
static void delta_chunk_again(const DeltaCall *c, const DeltaTask *t, DeltaTile *tile, int64_t first, int64_t rows) {
    const int64_t width = tile->key_width, value_width = tile->value_width, value_dim = c->s.value_dim;
    load_decays(c, t, tile, first, rows);
    load_units(c, t, tile, first, rows);
    load_outputs(c, t, tile, first, rows);
    for (int64_t i = 0; i < rows; i++) {
        DeltaVectors of = vectors_of(c, t, first + i);
        for (int64_t k = 0; k < value_dim; k++) {
            tile->d_recalled[i * value_width + k] = tile->carry[i] * of.d_recalled[k];
            tile->d_y[i * value_width + k] *= tile->carry[i];
        }
    }
    MULTIPLY(.c = tile->key_sums, .c_row = width, .a = {tile->d_recalled, value_width, 1}, .b = tile->turned, .b_row = width, .rows = rows,
        .columns = width, .depth = value_dim, .clears = true);
    for (int64_t i = 0; i < rows; i++)
        memcpy(key_row(c->d_reading, c, first + i, t->head), tile->key_sums + i * width, c->s.key_dim * sizeof(W));
    MULTIPLY(.c = tile->key_sums, .c_row = width, .a = {tile->d_y, value_width, 1}, .b = tile->turned, .b_row = width, .rows = rows,
        .columns = width, .depth = value_dim, .clears = true);
    for (int64_t i = 0; i < rows; i++) {
        W *d_query = key_row(c->d_queries, c, first + i, t->head);
        for (int64_t k = 0; k < c->s.key_dim; k++) d_query[k] += tile->key_sums[i * width + k];
    }
    multiply_rows_by(tile->updates, value_width, tile->left, rows);
    MULTIPLY(.c = tile->turned, .c_row = width, .a = {tile->updates, 1, value_width}, .b = tile->keys, .b_row = width, .rows = value_dim,
        .columns = width, .depth = rows, .scale = tile->whole);
}

/* d_gates of a head of a sequence, and its sums for rates and bias. Completes d_queries. */
static void finish_gates(const OpCall *call, const DeltaCall *c, const DeltaTask *t, W *d_rate, W *d_bias) {
    const DeltaShape *s = &c->s;
    const T *gates = call->in[DELTA_GATES];
    T *d_gates = call->out[DELTA_GRAD_D_GATES];
    W rate = (W)exp((double)((const W *)call->in[DELTA_RATES])[t->head]), bias = ((const W *)call->in[DELTA_BIAS])[t->head], sum = 0;
    *d_rate = *d_bias = 0;
    for (int64_t r = t->end - 1; r >= t->first; r--) {
        DeltaVectors of = vectors_of(c, t, r);
        const W *k = key_of(c, t, r), *d_y = value_row(c->y, c, t, r), *d_carried = value_row(c->d_carried, c, t, r);
        const T *v = head_values(c, t, r);
        W beta = factors_of(c, r, t->head)[1], in = to_wide(gates[r * 2 * s->heads + s->heads + t->head]) + bias, along = 0;
        W *d_query = key_row(c->d_queries, c, r, t->head), own = dot_product(of.update, d_y, s->value_dim);
        for (int64_t j = 0; j < s->value_dim; j++) along += to_wide(v[j]) * d_carried[j];
        sum += dot_product(query_of(c, t, r), d_query, s->key_dim) -
               beta * (product_of(c, t, r) * dot_product(value_row(c->recalled, c, t, r), d_y, s->value_dim) + along);
        for (int64_t i = 0; i < s->key_dim; i++) d_query[i] += own * k[i];
        W d_in = -sum * rate / (1 + wide_exp(-in)), d_beta = 0;
        for (int64_t j = 0; j < s->value_dim; j++) d_beta += of.d_update[j] * (to_wide(v[j]) - value_row(c->recalled, c, t, r)[j]);
        *d_rate -= sum * rate * softplus(in);
        *d_bias += d_in;
        d_gates[r * 2 * s->heads + t->head] = to_compute(d_beta * beta * (1 - beta));
        d_gates[r * 2 * s->heads + s->heads + t->head] = to_compute(d_in);
        if (c->positions[r] == 0) sum = 0;
    }
}

/* d_x of `count` elements from the gradient of x scale / length: (d - unit (unit . d) / scale^2) scale / length. */
static void finish_unit(T *d_x, const T *x, const W *d, W scale, int64_t count) {
    W inverse = inverse_length(x, count), along = 0;
    for (int64_t i = 0; i < count; i++) along += to_wide(x[i]) * d[i];
    along *= inverse * inverse;
    for (int64_t i = 0; i < count; i++) d_x[i] = to_compute(scale * inverse * (d[i] - to_wide(x[i]) * along));
}

static void finish_inputs(const OpCall *call, const DeltaCall *c, int64_t r) {
    const DeltaShape *s = &c->s;
    T *d_x = (T *)call->out[DELTA_GRAD_D_X] + r * s->columns;
    const T *x = c->x + r * s->columns;
    W root = wide_sqrt((W)s->key_dim);
    for (int64_t h = 0; h < s->key_heads; h++) {
        W d_query[DELTA_MOST_DIM] = {0}, d_key[DELTA_MOST_DIM] = {0};
        for (int64_t head = h * s->group; head < (h + 1) * s->group; head++)
            for (int64_t i = 0; i < s->key_dim; i++) {
                d_query[i] += key_row(c->d_queries, c, r, head)[i];
                d_key[i] += key_row(c->d_reading, c, r, head)[i] + key_row(c->d_writing, c, r, head)[i];
            }
        finish_unit(d_x + h * s->key_dim, x + h * s->key_dim, d_query, 1 / root, s->key_dim);
        finish_unit(d_x + s->keys + h * s->key_dim, x + s->keys + h * s->key_dim, d_key, 1, s->key_dim);
    }
    for (int64_t j = 0; j < s->values; j++) {
        int64_t head = j / s->value_dim, at = r * s->values + j;
        W d_update = c->d_carried[at] + c->products[r * s->key_heads + head / s->group] * c->y[at];
        d_x[2 * s->keys + j] = to_compute(factors_of(c, r, head)[1] * d_update);
    }
}

CPU_OP(delta_grad, delta_grad_cpu_workspace) {
    DeltaCall c = delta_call(call, true);
    const DeltaShape *s = &c.s;
    W *sums = (W *)call->workspace + delta_scratch(s, true).sums;
    c.y = call->in[DELTA_GRAD_D_Y], c.recalled = call->in[DELTA_GRAD_RECALLED];
    prepare_units(call, &c);
#pragma omp parallel for schedule(dynamic) num_threads((int)delta_threads(s))
    for (int64_t index = 0; index < s->sequences * s->heads; index++) {
        DeltaTask t = delta_task(&c, index);
        DeltaTile tile = delta_tile(&c);
        W *of_sequence = sums + index / s->heads * 2 * s->heads + t.head;
        clear_state(tile.state);
        for (int64_t r = t.first + (s->length - 1) / c.chunk * c.chunk; r >= t.first; r -= c.chunk)
            delta_chunk_back(&c, &t, &tile, r, int_min(c.chunk, t.end - r));
        clear_state(tile.turned);
        for (int64_t r = t.first; r < t.end; r += c.chunk) delta_chunk_again(&c, &t, &tile, r, int_min(c.chunk, t.end - r));
        finish_gates(call, &c, &t, of_sequence, of_sequence + s->heads);
    }
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < s->rows; r++) finish_inputs(call, &c, r);
    for (int64_t i = 0; i < s->sequences; i++) {
        kernel_add_partials(call->out[DELTA_GRAD_D_RATES], sums + 2 * i * s->heads, 1, s->heads);
        kernel_add_partials(call->out[DELTA_GRAD_D_BIAS], sums + (2 * i + 1) * s->heads, 1, s->heads);
    }
}
