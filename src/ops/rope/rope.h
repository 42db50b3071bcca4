/* rope: builders, and what the rule and the kernels of both back ends share. */
#pragma once

#include <math.h>

#include "graph/op.h"
#include "ops/heads.h"

/* Cosines then sines of all positions: CONSTANT WIDE [positions, dimensions]; dimensions = rotated channels of a head.
 * Frequencies: theta^(-2i/dimensions), then Llama-3 scaling when factor > 1 (arXiv 2407.21783; the original context and the two
 * cut-offs as in Hugging Face's `rope_type: llama3`). */
typedef struct RopeSpec {
    double theta;
    int64_t dimensions, positions;
    double factor, low_frequency, high_frequency;
    int64_t original_positions;
} RopeSpec;
TensorId op_rope_table(Graph *graph, const RopeSpec *spec);

/* Rotates the first `dimensions` channels of every query and key head (rotate-half pairing i, i + dimensions/2); values pass through. */
TensorId op_rope(Graph *graph, TensorId qkv, TensorId positions, TensorId table, const Heads *heads);

typedef struct RopeAttributes {
    Heads heads;
    double sign;
} RopeAttributes; /* sign -1 turns back */

/* Radians per position of channel pair i. The Llama-3 rule: wavelengths that fitted `low_frequency` times or less into the original context are
 * stretched by `factor`, those that fitted `high_frequency` times or more stay, and between the two the frequency is interpolated. */
static inline double rope_frequency(const RopeSpec *spec, int64_t i) {
    double frequency = pow(spec->theta, -2.0 * i / spec->dimensions);
    if (!(spec->factor > 1)) return frequency;
    double turns = spec->original_positions * frequency / (2 * M_PI);
    if (turns < spec->low_frequency) return frequency / spec->factor;
    if (turns > spec->high_frequency) return frequency;
    double smooth = (turns - spec->low_frequency) / (spec->high_frequency - spec->low_frequency);
    return (1 - smooth) * frequency / spec->factor + smooth * frequency;
}
