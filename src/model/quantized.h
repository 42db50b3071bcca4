/* Frozen matrices that a program holds quantized (lora.base; Parameter.quantization): filling them
 * with values. */
#pragma once

#include "graph/graph.h"

/* The bytes [first, first + count) of a tensor that a rank holds, in device memory. */
typedef struct HeldBytes {
    int64_t first, count;
    void *to;
} HeldBytes;
/* The quantized values and scales of a matrix that a rank holds. */
typedef struct QuantizedPlace { HeldBytes values, scales; } QuantizedPlace;
/* Returns the place of a matrix that the executor's rank holds whole. */
QuantizedPlace quantized_whole(const Executor *executor, const Parameter *p);

/* Quantizes the values of parameter `p`, [count] in fp32 on the host, and writes what the rank holds
 * of the result. ERROR_NUMERICS if one is not finite. */
bool quantized_put(const Executor *executor, const Parameter *p, const QuantizedPlace *place, const float *values, Error *error);
/* Fills all quantized matrices with the repeated quantized values of some normal numbers, so that a
 * model that is not loaded, as in benchmarks, computes with finite numbers. `place_of` returns what the
 * rank holds of a parameter's matrix. */
void quantized_fill(const Executor *executor, QuantizedPlace (*place_of)(const void *context, int parameter), const void *context);
