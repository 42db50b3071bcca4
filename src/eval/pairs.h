/* Inputs of steps and evaluations, with the additional inputs of a loss over pairs of answers. For
 * other losses the functions do nothing. */
#pragma once

#include "data/loader.h"
#include "program/program.h"
#include "run/reference.h"

/* All rows of a step, microbatch after microbatch; with a pair loss also PreferenceInputs.pairs and
 * .reference of each microbatch. */
typedef struct StepInputs {
    int32_t *tokens, *targets, *positions;
    int64_t rows;
    int32_t *pairs;
    double *reference;
} StepInputs;
void pairs_allocate(StepInputs *inputs, const Model *model, int64_t microbatches);
void pairs_free(StepInputs *inputs);
/* Takes the pairs of a batch (NULL: none) that begin before `rows`, with their values in a
 * reference (NULL: zeros); returns their number. */
int64_t pairs_take(
    StepInputs *inputs, const Model *model, int64_t microbatch, const Batch *batch, int64_t rows, const Reference *reference);
/* Copies the pairs of a microbatch to the program; -1: none. */
void pairs_load(const StepInputs *inputs, const Program *program, int64_t microbatch);
/* Adds the rewards of the program's runs. */
void pairs_add_rewards(const Program *program, double sums[REWARD_COUNT]);
Rewards pairs_mean(const double sums[REWARD_COUNT], int64_t pairs);
