/* Weights that are gathered as FP8 quantized values (FP8_WEIGHTS_GATHERED). With ZeRO stage 3 and
 * the recipe `tensor`, a rank quantizes its shards of the weights of FP8 layers, and a bucket is
 * gathered in half the bytes of bf16. Gathering first and then quantizing would give the same
 * values, because all ranks use the same amax. The amax comes from previous steps, in the program's
 * inputs, or from the current weights. For current weights, the ranks that shard a weight agree on
 * the amax once a step. Owned by the exchange of a program. */
#pragma once

#include "layout/comm_schedule.h"

typedef struct WeightCodes WeightCodes;

/* Returns NULL without an error if the program reads no quantized weights; the functions below then
 * do nothing. ERROR_MEMORY. */
WeightCodes *weight_codes_create(const Layout *layout, const CommSchedule *schedule, Executor *executor, Error *error);
void weight_codes_free(WeightCodes *codes);
/* Returns the device memory of one WeightCodes. */
int64_t weight_codes_bytes(const Layout *layout, const CommSchedule *schedule, const Graph *graph);

/* Computes the amax of the current weights. Collective. */
bool weight_codes_find(WeightCodes *codes, Error *error);
/* Writes the amax to the inputs of the next run. */
void weight_codes_put(const WeightCodes *codes);
/* Quantizes the rank's shard of a bucket into its place in the bucket's slot. */
void weight_codes_cast(const WeightCodes *codes, int bucket);
