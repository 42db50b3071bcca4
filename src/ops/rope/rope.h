/* Rotary position embedding: builders, attributes and operands of ops rope_table, rope and query_scale, and the
 * frequency formula that both back ends use. */
#pragma once

#include <math.h>

#include "config/config.h"
#include "graph/op.h"
#include "ops/heads.h"

enum { ROPE_AXES = 3 };

/* The channels that are rotated together, i < dimensions / 2: i and i + dimensions / 2, or 2 i and
 * 2 i + 1. */
typedef enum RopePairs { ROPE_HALVES, ROPE_NEIGHBORS } RopePairs;

/* The table holds a row per position: dimensions / 2 cosines, then as many sines, all times
 * attention_factor. `dimensions` is the number of rotated channels of a head. Frequencies are
 * theta^(-2i / dimensions), i < dimensions / 2; `scaling` changes them if factor > 1
 * (rope_frequency). */
typedef struct RopeSpec {
    double theta;
    int64_t dimensions, positions;
    RopeScaling scaling;
    double factor;
    int64_t original_positions;           /* context before scaling; linear: not read */
    double low_frequency, high_frequency; /* llama3: in turns within the original context */
    double beta_fast, beta_slow;          /* yarn: in turns within the original context */
    bool truncate;                        /* yarn: round the resulting bounds to whole channels */
    double attention_factor;              /* yarn, longrope; 0: 1 */
    RealList short_factors, long_factors; /* longrope: divisors of the frequencies, [dimensions / 2] */
    /* Positions with several coordinates: the first axes[0] / 2 pairs of channels belong to the
     * first axis, the next axes[1] / 2 to the second, and so on. Each axis has its own frequencies
     * and coordinate. Position p is (0, p / grid, p % grid). grid 0: one coordinate. */
    int64_t axes[ROPE_AXES], grid;
    int64_t length; /* dynamic, longrope: length of the sequences; 0: a cache, whose row p is written when the sequence has p + 1 tokens */
} RopeSpec;
TensorId op_rope_table(Graph *graph, const RopeSpec *spec);

/* Rotates the first `dimensions` channels of every query and key head; values are copied. */
TensorId op_rope(Graph *graph, TensorId qkv, TensorId positions, TensorId table, const Heads *heads, RopePairs pairs);

/* A temperature of attention that grows with a query's position (Llama 4): queries are multiplied by
 * 1 + beta ln(1 + floor(position / period)). */
typedef struct QueryScale {
    double beta;
    int64_t period;
} QueryScale;
/* Scales the queries of packed qkv; keys and values are copied. */
TensorId op_query_scale(Graph *graph, TensorId qkv, TensorId positions, const Heads *heads, const QueryScale *scale);

/* -> table CONSTANT WIDE [positions, dimensions] */
enum { ROPE_TABLE_OUT };

/* x COMPUTE [R, heads_columns], positions int32 [R] as rows of the table, table -> y like x. x is
 * packed qkv, or its gradient: the gradient of a rotation is the rotation by the negative angle, so
 * one op serves both passes. Optional, WIDE [1], the amax of y (Op.amax) */
enum { ROPE_X, ROPE_POSITIONS, ROPE_TABLE };
enum { ROPE_Y, ROPE_AMAX };
typedef struct RopeAttributes {
    Heads heads;
    double sign; /* of the angle: 1 in the forward pass, -1 in the backward pass */
    RopePairs pairs;
} RopeAttributes;

/* x COMPUTE [R, heads_columns], positions int32 [R] -> y like x. The gradient is the same operation. */
enum { QUERY_SCALE_X, QUERY_SCALE_POSITIONS };
enum { QUERY_SCALE_Y };
typedef struct QueryScaleAttributes {
    QueryScale scale;
    int64_t columns; /* of the queries */
} QueryScaleAttributes;

/* -- Frequencies, for both back ends ------------------------------------------------------------------------------- */

/* Llama 3 (arXiv 2407.21783): wavelengths that fit at most `low_frequency` times into the original
 * context are stretched by `factor`; those that fit at least `high_frequency` times are kept;
 * between the two the frequency is interpolated. */
static inline double rope_llama3(const RopeSpec *spec, double frequency) {
    double turns = spec->original_positions * frequency / (2 * M_PI);
    if (turns < spec->low_frequency) return frequency / spec->factor;
    if (turns > spec->high_frequency) return frequency;
    double smooth = (turns - spec->low_frequency) / (spec->high_frequency - spec->low_frequency);
    return (1 - smooth) * frequency / spec->factor + smooth * frequency;
}

/* Returns the channel pair, as a real number, whose frequency makes `turns` turns in the original
 * context. */
static inline double rope_pair_of_turns(const RopeSpec *spec, double turns) {
    return spec->dimensions * log(spec->original_positions / (turns * 2 * M_PI)) / (2 * log(spec->theta));
}

/* YaRN (arXiv 2309.00071, section 3.2): frequencies of pairs up to that of beta_fast turns are
 * kept, and those from beta_slow turns on are divided by `factor`, with a linear ramp between. */
static inline double rope_yarn(const RopeSpec *spec, double frequency, int64_t i) {
    double low = rope_pair_of_turns(spec, spec->beta_fast), high = rope_pair_of_turns(spec, spec->beta_slow);
    if (spec->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, spec->dimensions - 1);
    if (low == high) high += 0.001;
    double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
    return frequency / spec->factor * ramp + frequency * (1 - ramp);
}

/* Dynamic NTK scaling: if `length` exceeds the original context, theta grows by the factor (factor
 * * length / original - (factor - 1))^(d / (d - 2)) with d = dimensions. */
static inline double rope_dynamic_theta(const RopeSpec *spec, int64_t length) {
    double d = (double)spec->dimensions, longer = fmax(length, spec->original_positions) / (double)spec->original_positions;
    return spec->theta * pow(spec->factor * longer - (spec->factor - 1), d / (d - 2));
}

/* LongRoPE (arXiv 2402.13753): each frequency has its own divisor, and another one in sequences that
 * exceed the original context. */
static inline double rope_longrope(const RopeSpec *spec, double frequency, int64_t i, int64_t length) {
    return frequency / (length > spec->original_positions ? &spec->long_factors : &spec->short_factors)->items[i];
}

/* Returns the axis of channel pair i, and replaces i by its index among the pairs of that axis. */
static inline int rope_axis(const RopeSpec *spec, int64_t *i) {
    int axis = 0;
    for (; axis + 1 < ROPE_AXES && *i >= spec->axes[axis] / 2; axis++) *i -= spec->axes[axis] / 2;
    return axis;
}

/* Returns radians per position of channel pair i in a sequence of `length`, which only dynamic
 * scaling and longrope use. The formulas are those of transformers' `rope_type`s of the same names
 * (modeling_rope_utils.py). */
static inline double rope_frequency(const RopeSpec *spec, int64_t i, int64_t length) {
    if (spec->grid) {
        int axis = rope_axis(spec, &i);
        return pow(spec->theta, -2.0 * i / spec->axes[axis]);
    }
    bool scaled = spec->factor > 1, dynamic = scaled && spec->scaling == ROPE_DYNAMIC;
    double frequency = pow(dynamic ? rope_dynamic_theta(spec, length) : spec->theta, -2.0 * i / spec->dimensions);
    if (!scaled || dynamic) return frequency;
    if (spec->scaling == ROPE_LINEAR) return frequency / spec->factor;
    if (spec->scaling == ROPE_LONGROPE) return rope_longrope(spec, frequency, i, length);
    return spec->scaling == ROPE_YARN ? rope_yarn(spec, frequency, i) : rope_llama3(spec, frequency);
}

static inline double rope_attention_factor(const RopeSpec *spec) { return spec->attention_factor > 0 ? spec->attention_factor : 1; }

/* Returns the angle of pair i at a position, given its frequency in sequences of spec->length. In a
 * cache with dynamic scaling or longrope, a row after the original context has the frequency of the
 * sequence length at the time it was written. */
static inline double rope_angle(const RopeSpec *spec, int64_t i, int64_t position, double frequency) {
    if (spec->grid) {
        int axis = rope_axis(spec, &i);
        return frequency * (axis == 0 ? 0 : axis == 1 ? position / spec->grid : position % spec->grid);
    }
    bool grows = spec->factor > 1 && (spec->scaling == ROPE_DYNAMIC || spec->scaling == ROPE_LONGROPE);
    bool grown = grows && spec->length == 0 && position >= spec->original_positions;
    return position * (grown ? rope_frequency(spec, i, position + 1) : frequency);
}
