/* What the CPU and GPU forms of rope and rope_table share: attributes, and the frequencies. */
#ifndef SMELT_OP_ROPE_H
#define SMELT_OP_ROPE_H

#include "op/kernel.h"

typedef struct RopeAttributes { Heads heads; double sign; } RopeAttributes; /* sign -1 turns back */

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

#endif
