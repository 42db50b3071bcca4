/* The step that tests of records and of the console report. */
#pragma once

#include "run/metrics.h"

static const StepMetrics plain = {.step = 3,
    .steps = 10,
    .loss = 2.5,
    .auxiliary = 0.01,
    .gradient_norm = 0.75,
    .lr = 1e-3,
    .seconds = 0.5,
    .tokens = 1000,
    .tokens_seen = 3000,
    .flops = 1e12,
    .peak_flops = 8e12,
    .measured_flops = 4e12,
    .memory = 3LL << 29,
    .seconds_left = 90};
