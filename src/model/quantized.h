/* Frozen matrices that a program holds quantized (lora.base; Parameter.quantization): filling them
 * with values. */
#pragma once

#include "graph/graph.h"

/* Quantizes the values of parameter `p`, [count] in fp32 on the host, into the executor's device.
 * ERROR_NUMERICS if one is not finite. */
bool quantized_put(const Executor *executor, const Parameter *p, const float *values, Error *error);
/* Fills all quantized matrices with the repeated quantized values of some normal numbers, so that a
 * model that is not loaded, as in benchmarks, computes with finite numbers. */
void quantized_fill(const Executor *executor);
