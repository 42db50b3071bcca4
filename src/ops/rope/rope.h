/* Rotary position embedding: builders, attributes and operands of ops rope_table and rope, and the frequency formula
 * that both back ends use. */
#pragma once

#include <math.h>

#include "graph/op.h"
#include "ops/heads.h"

/* The table holds a row per position: dimensions / 2 cosines, then as many sines. `dimensions` is the number of
 * rotated channels of a head. Frequencies are theta^(-2i / dimensions), i < dimensions / 2, with Llama-3 scaling when
 * factor > 1 (arXiv 2407.21783; original_positions and the two cut-offs as in Hugging Face's `rope_type: llama3`). */
typedef struct RopeSpec {
    double theta;
    int64_t dimensions, positions;
    double factor, low_frequency, high_frequency;
    int64_t original_positions;
} RopeSpec;
TensorId op_rope_table(Graph *graph, const RopeSpec *spec);

/* Rotates the first `dimensions` channels of every query and key head, channel i paired with i + dimensions / 2;
 * values are copied. */
TensorId op_rope(Graph *graph, TensorId qkv, TensorId positions, TensorId table, const Heads *heads);

/* -> table CONSTANT WIDE [positions, dimensions] */
enum { ROPE_TABLE_OUT };

/* x COMPUTE [R, heads_columns], positions int32 [R] as rows of the table, table -> y like x. x is packed qkv, or its
 * gradient: the gradient of a rotation is the rotation by the negative angle, so one op serves both passes. */
enum { ROPE_X, ROPE_POSITIONS, ROPE_TABLE };
enum { ROPE_Y };
typedef struct RopeAttributes {
    Heads heads;
    double sign; /* of the angle: 1 forward, -1 in the backward pass */
} RopeAttributes;

/* Radians per position of channel pair i. The Llama-3 rule: wavelengths that fit `low_frequency` times or less into
 * the original context are stretched by `factor`, those that fit `high_frequency` times or more stay, and between the
 * two the frequency is interpolated. */
static inline double rope_frequency(const RopeSpec *spec, int64_t i) {
    double frequency = pow(spec->theta, -2.0 * i / spec->dimensions);
    if (!(spec->factor > 1)) return frequency;
    double turns = spec->original_positions * frequency / (2 * M_PI);
    if (turns < spec->low_frequency) return frequency / spec->factor;
    if (turns > spec->high_frequency) return frequency;
    double smooth = (turns - spec->low_frequency) / (spec->high_frequency - spec->low_frequency);
    return (1 - smooth) * frequency / spec->factor + smooth * frequency;
}
