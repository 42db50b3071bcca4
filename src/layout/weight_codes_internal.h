/* Weights that travel as codes of fp8 (FP8_WEIGHTS_GATHERED): with ZeRO stage 3 and the recipe `tensor`, a rank casts its shards
 * of the weights of layers in fp8, and a bucket is gathered as codes, at half of the bytes of bf16. The codes are those of a
 * cast after gathering, since all ranks cast with the same amax: that of steps before, which the program's inputs have, or of
 * the current weights, on which the ranks that share a weight out agree once a step. Owned by the exchange of a program. */
#pragma once

#include "layout/comm_schedule.h"

typedef struct WeightCodes WeightCodes;

/* NULL without an error: the program reads no codes; the functions below do nothing then. ERROR_MEMORY. */
WeightCodes *weight_codes_create(const Layout *layout, const CommSchedule *schedule, Executor *executor, Error *error);
void weight_codes_free(WeightCodes *codes);
/* Device memory of one. */
int64_t weight_codes_bytes(const Layout *layout, const CommSchedule *schedule, const Graph *graph);

/* Finds the largest magnitudes of the current weights. Collective. */
bool weight_codes_find(WeightCodes *codes, Error *error);
/* Writes them to the inputs of the next run. */
void weight_codes_put(const WeightCodes *codes);
/* Casts the rank's shard of a bucket to its place in the bucket's slot. */
void weight_codes_cast(const WeightCodes *codes, int bucket);
