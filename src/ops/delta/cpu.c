/* The gated delta rule on a CPU: a thread takes a head of a sequence, whose state stays in its cache. Scratch:
 * DeltaScratch, then a state and the vectors of a token per thread. */
#include <omp.h>

#include "backend/cpu/kernel.h"
#include "ops/delta/delta.h"

enum { STATE_ELEMENTS = DELTA_MOST_DIM * DELTA_MOST_DIM };

typedef struct DeltaCall {
    DeltaShape s;
    const T *x;
    const int32_t *positions;
    W *units, *products, *factors, *recalled; /* recalled NULL: not wanted */
    W *y;                                     /* or d_y */
    W *d_carried, *d_queries, *d_reading, *d_writing, *states;
} DeltaCall;

/* One head of one sequence: its rows, and its key head. */
typedef struct DeltaTask {
    int64_t first, end, head, key_head;
    W *state; /* [key_dim, value_dim] */
} DeltaTask;

static int64_t delta_threads(const DeltaShape *s) { return int_min(s->sequences * s->heads, omp_get_max_threads()); }

static int64_t delta_bytes(const Graph *graph, const Node *node, bool backward) {
    DeltaShape s = delta_shape(node->attributes, graph_rows(graph, node->in[DELTA_X]));
    return (delta_scratch(&s, backward).elements + delta_threads(&s) * STATE_ELEMENTS) *
           (int64_t)precision_bytes(graph->precision, TYPE_WIDE);
}
static int64_t delta_cpu_workspace(const Graph *graph, const Node *node) { return delta_bytes(graph, node, false); }
static int64_t delta_grad_cpu_workspace(const Graph *graph, const Node *node) { return delta_bytes(graph, node, true); }

static DeltaCall delta_call(const OpCall *call, bool backward) {
    DeltaCall c = {.s = delta_call_shape(call), .x = call->in[DELTA_X], .positions = call->in[DELTA_POSITIONS]};
    DeltaScratch at = delta_scratch(&c.s, backward);
    W *scratch = call->workspace;
    c.units = scratch + at.units, c.products = scratch + at.products, c.factors = scratch + at.factors;
    c.d_carried = scratch + at.d_carried, c.d_queries = scratch + at.d_queries;
    c.d_reading = scratch + at.d_reading, c.d_writing = scratch + at.d_writing, c.states = scratch + at.elements;
    return c;
}

static DeltaTask delta_task(const DeltaCall *c, int64_t index) {
    int64_t sequence = index / c->s.heads, head = index % c->s.heads;
    return (DeltaTask){.first = sequence * c->s.length,
        .end = (sequence + 1) * c->s.length,
        .head = head,
        .key_head = head / c->s.group,
        .state = c->states + omp_get_thread_num() * STATE_ELEMENTS};
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

/* -- What scans read ----------------------------------------------------------------------------------------------- */

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

/* -- Steps of states ----------------------------------------------------------------------------------------------- */

/* state = decay state + k u^T */
static void add_outer(W *restrict state, W decay, const W *restrict k, const W *restrict u, int64_t keys, int64_t values) {
    for (int64_t i = 0; i < keys; i++)
        for (int64_t j = 0; j < values; j++) state[i * values + j] = decay * state[i * values + j] + k[i] * u[j];
}

/* to = state^T k */
static void recall(W *restrict to, const W *restrict state, const W *restrict k, int64_t keys, int64_t values) {
    for (int64_t j = 0; j < values; j++) to[j] = 0;
    for (int64_t i = 0; i < keys; i++)
        for (int64_t j = 0; j < values; j++) to[j] += k[i] * state[i * values + j];
}

/* to = state v */
static void recall_keys(W *restrict to, const W *restrict state, const W *restrict v, int64_t keys, int64_t values) {
    for (int64_t i = 0; i < keys; i++) {
        W sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < values; j++) sum += state[i * values + j] * v[j];
        to[i] = sum;
    }
}

static void clear_delta(W *state, const DeltaShape *s) { memset(state, 0, s->key_dim * s->value_dim * sizeof(W)); }

/* -- Forward ------------------------------------------------------------------------------------------------------- */

/* Computes y and m of a row from the state of the row before. */
static void delta_step(const DeltaCall *c, const DeltaTask *t, int64_t r) {
    const DeltaShape *s = &c->s;
    const W *k = key_of(c, t, r), *factors = factors_of(c, r, t->head);
    const T *v = head_values(c, t, r);
    W recalled[DELTA_MOST_DIM], update[DELTA_MOST_DIM], *y = value_row(c->y, c, t, r), product = product_of(c, t, r);
    if (c->positions[r] == 0) clear_delta(t->state, s);
    recall(recalled, t->state, k, s->key_dim, s->value_dim);
    recall(y, t->state, query_of(c, t, r), s->key_dim, s->value_dim);
    for (int64_t j = 0; j < s->value_dim; j++) {
        recalled[j] *= factors[0];
        update[j] = factors[1] * (to_wide(v[j]) - recalled[j]);
        y[j] = factors[0] * y[j] + product * update[j];
    }
    add_outer(t->state, factors[0], k, update, s->key_dim, s->value_dim);
    if (c->recalled) memcpy(value_row(c->recalled, c, t, r), recalled, s->value_dim * sizeof(W));
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
        int64_t sequence = index / s->heads, size = s->key_dim * s->value_dim;
        int64_t last = lasts ? t.first + lasts[sequence] : t.end - 1;
        W *own = stored ? stored + ((slots ? slots[sequence] : 0) * s->heads + t.head) * size : NULL;
        if (own) memcpy(t.state, own, size * sizeof(W));
        else clear_delta(t.state, s);
        for (int64_t r = t.first; r < t.end; r++) {
            delta_step(&c, &t, r);
            if (own && r == last) memcpy(own, t.state, size * sizeof(W));
        }
    }
}

/* -- Backward ------------------------------------------------------------------------------------------------------ */

/* The vectors of a row that scans read: u, du and dm decay. */
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
        of.d_recalled[j] = -factors[0] * factors[1] * of.d_update[j];
    }
    return of;
}

/* Scans 1 and 3 (rule.c). */
static void scan_back(const DeltaCall *c, const DeltaTask *t) {
    const DeltaShape *s = &c->s;
    clear_delta(t->state, s);
    for (int64_t r = t->end - 1; r >= t->first; r--) {
        const W *k = key_of(c, t, r);
        recall(value_row(c->d_carried, c, t, r), t->state, k, s->key_dim, s->value_dim);
        DeltaVectors of = vectors_of(c, t, r);
        add_outer(t->state, 1, query_of(c, t, r), value_row(c->y, c, t, r), s->key_dim, s->value_dim);
        recall_keys(key_row(c->d_writing, c, r, t->head), t->state, of.update, s->key_dim, s->value_dim);
        add_outer(t->state, factors_of(c, r, t->head)[0], k, of.d_recalled, s->key_dim, s->value_dim);
        if (c->positions[r] == 0) clear_delta(t->state, s);
    }
}

/* Scan 2. */
static void scan_again(const DeltaCall *c, const DeltaTask *t) {
    const DeltaShape *s = &c->s;
    clear_delta(t->state, s);
    for (int64_t r = t->first; r < t->end; r++) {
        W decay = factors_of(c, r, t->head)[0], *d_query = key_row(c->d_queries, c, r, t->head);
        DeltaVectors of = vectors_of(c, t, r);
        if (c->positions[r] == 0) clear_delta(t->state, s);
        recall_keys(key_row(c->d_reading, c, r, t->head), t->state, of.d_recalled, s->key_dim, s->value_dim);
        recall_keys(d_query, t->state, value_row(c->y, c, t, r), s->key_dim, s->value_dim);
        for (int64_t i = 0; i < s->key_dim; i++) d_query[i] *= decay;
        add_outer(t->state, decay, key_of(c, t, r), of.update, s->key_dim, s->value_dim);
    }
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
        W *of_sequence = sums + index / s->heads * 2 * s->heads + t.head;
        scan_back(&c, &t);
        scan_again(&c, &t);
        finish_gates(call, &c, &t, of_sequence, of_sequence + s->heads);
    }
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < s->rows; r++) finish_inputs(call, &c, r);
    for (int64_t i = 0; i < s->sequences; i++) {
        kernel_add_partials(call->out[DELTA_GRAD_D_RATES], sums + 2 * i * s->heads, 1, s->heads);
        kernel_add_partials(call->out[DELTA_GRAD_D_BIAS], sums + (2 * i + 1) * s->heads, 1, s->heads);
    }
}
