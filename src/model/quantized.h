/* Frozen matrices that a program holds as codes (lora.base; Parameter.quantization): where their values come from. */
#pragma once

#include "graph/graph.h"

/* Rounds the values of parameter `p`, [count] in fp32 of the host, to its codes on the executor's device. ERROR_NUMERICS where one
 * is not finite. */
bool quantized_put(const Executor *executor, const Parameter *p, const float *values, Error *error);
/* Fills all of them with codes of some normal values, repeated: a model that is not loaded, as in benchmarks, computes with numbers. */
void quantized_fill(const Executor *executor);
