/* The gated delta rule (arXiv 2412.06464): builder, operands and shapes of op delta and its gradient. */
#pragma once

#include "graph/op.h"

enum { DELTA_MOST_DIM = 128 };

/* Heads of a row: each of `key_heads` queries and keys serves value_heads / key_heads consecutive value heads. Rows are
 * `sequences` sequences of equally many. */
typedef struct DeltaSpec { int64_t key_heads, value_heads, key_dim, value_dim, sequences; } DeltaSpec;

/* For each value head a state S [key_dim, value_dim] goes from token to token of a document:
 *     S = decay S;  error = v - S^T k;  S = S + k (beta error)^T;  y = S^T q
 * with q and k normalized to length 1, q divided by sqrt(key_dim) besides, beta = sigmoid(b) and decay =
 * exp(-exp(rates) softplus(a + bias)). x COMPUTE [R, columns] has rows [q | k | v] of all heads, gates COMPUTE
 * [R, 2 value_heads] rows [b | a]; rates and bias are WIDE parameters [value_heads]. The result is WIDE
 * [R value_heads, value_dim].
 *
 * In generation, `state` WIDE [slots * value_heads * key_dim, value_dim] in the state arena has S of each slot, transposed to
 * rows of keys. `slots` and `lasts` INT32 [sequences] are as in op_slot_write (ops/slots); TENSOR_NONE: slot 0, and all
 * rows are in use. A row with position 0 starts with S = 0. */
typedef struct DeltaState { TensorId state, slots, lasts; } DeltaState;
typedef struct DeltaInputs { TensorId x, gates, positions, rates, bias; } DeltaInputs;
TensorId op_delta(Graph *graph, const DeltaInputs *inputs, const DeltaState *state, const DeltaSpec *spec);

enum { DELTA_X, DELTA_GATES, DELTA_POSITIONS, DELTA_RATES, DELTA_BIAS, DELTA_SLOTS, DELTA_LASTS };
/* recalled, only in training: WIDE [R, value_heads * value_dim], S^T k before the update */
enum { DELTA_Y, DELTA_RECALLED, DELTA_STATE };
/* The inputs of delta before DELTA_SLOTS, so that both passes use the same names; d_y like y; recalled */
enum { DELTA_GRAD_D_Y = DELTA_SLOTS, DELTA_GRAD_RECALLED };
/* d_x, d_gates; gradients of rates and bias, which are added to */
enum { DELTA_GRAD_D_X, DELTA_GRAD_D_GATES, DELTA_GRAD_D_RATES, DELTA_GRAD_D_BIAS };

/* Columns: keys of all key heads, values of all value heads, a row of x. `group` value heads share a key head. */
typedef struct DeltaShape {
    int64_t rows, length, sequences, key_heads, heads, group, key_dim, value_dim, keys, values, columns;
} DeltaShape;

static inline DeltaShape delta_shape(const DeltaSpec *spec, int64_t rows) {
    int64_t keys = spec->key_heads * spec->key_dim, values = spec->value_heads * spec->value_dim;
    return (DeltaShape){.rows = rows,
        .length = rows / spec->sequences,
        .sequences = spec->sequences,
        .key_heads = spec->key_heads,
        .heads = spec->value_heads,
        .group = spec->value_heads / spec->key_heads,
        .key_dim = spec->key_dim,
        .value_dim = spec->value_dim,
        .keys = keys,
        .values = values,
        .columns = 2 * keys + values};
}
static inline DeltaShape delta_call_shape(const OpCall *call) { return delta_shape(call->attributes, call->in_shape[DELTA_X][0]); }

/* Scratch of a CPU in elements of WIDE, one array after another; the first three are in both passes. Names are those of
 * rule.c. */
typedef struct DeltaScratch {
    int64_t units;                           /* [R, 2, keys]: normalized queries and keys */
    int64_t products;                        /* [R, key_heads]: k . q */
    int64_t factors;                         /* [R, heads, 2]: decay and beta */
    int64_t d_carried;                       /* [R, values] */
    int64_t d_queries, d_reading, d_writing; /* [R, heads, key_dim] */
    int64_t d_factors;                       /* [R, heads, 3]: dG, d_beta and u . d_y */
    int64_t sums;                            /* [sequences, 2, heads]: for rates and bias */
    int64_t elements;
} DeltaScratch;

static inline DeltaScratch delta_scratch(const DeltaShape *s, bool backward) {
    DeltaScratch at = {.products = s->rows * 2 * s->keys};
    at.factors = at.products + s->rows * s->key_heads;
    at.elements = at.d_carried = at.factors + s->rows * s->heads * 2;
    if (!backward) return at;
    at.d_queries = at.d_carried + s->rows * s->values;
    at.d_reading = at.d_queries + s->rows * s->heads * s->key_dim;
    at.d_writing = at.d_reading + s->rows * s->heads * s->key_dim;
    at.d_factors = at.d_writing + s->rows * s->heads * s->key_dim;
    at.sums = at.d_factors + s->rows * s->heads * 3;
    at.elements = at.sums + s->sequences * 2 * s->heads;
    return at;
}

/* Queries and keys are divided by the root of their squares' sum plus this, as in transformers. */
static const double delta_epsilon = 1e-6;
