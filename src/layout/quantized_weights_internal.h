/* Weights that are gathered as FP8 quantized values (FP8_WEIGHTS_GATHERED). With ZeRO stage 3 and
 * the recipe `tensor`, a rank quantizes its shards of the weights of FP8 layers, and a bucket is
 * gathered in half the bytes of bf16. Gathering first and then quantizing would give the same
 * values, because all ranks use the same amax. The amax comes from previous steps, in the program's
 * inputs, or from the current weights. For current weights, the ranks that shard a weight agree on
 * the amax once a step. Owned by the exchange of a program. */
#pragma once

#include "layout/comm_schedule.h"

typedef struct QuantizedWeights QuantizedWeights;

/* Returns NULL without an error if the program reads no quantized weights; the functions below then
 * do nothing. ERROR_MEMORY. */
QuantizedWeights *quantized_weights_create(const Layout *layout, const CommSchedule *schedule, Executor *executor, Error *error);
void quantized_weights_free(QuantizedWeights *quantized);
/* Returns the device memory of one QuantizedWeights. */
int64_t quantized_weights_bytes(const Layout *layout, const CommSchedule *schedule, const Graph *graph);

/* Computes the amax of the current weights. Collective. */
bool quantized_weights_find_amax(QuantizedWeights *quantized, Error *error);
/* Writes the amax to the inputs of the next run. */
void quantized_weights_put_amax(const QuantizedWeights *quantized);
/* Quantizes the rank's shard of a bucket into its place in the bucket's slot. */
void quantized_weights_cast(const QuantizedWeights *quantized, int bucket);
