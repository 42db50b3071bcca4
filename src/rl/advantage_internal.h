/* Advantages of samples from their rewards. */
#pragma once

#include <stdint.h>

#include "config/policy_rule.h"

/* Computes the advantage of each sample of `groups` groups of `samples` samples. A reward of NaN is
 * left out, and its advantage is 0. For ADVANTAGE_TEACHER and ADVANTAGE_OF_VALUES all are 0, because each token has its own
 * advantage. */
void policy_advantages(PolicyAdvantage kind, const double *rewards, int64_t groups, int64_t samples, double *advantages);
/* Computes the advantages of `count` tokens that end an episode: generalized advantage estimation (arXiv
 * 1506.02438, equation 16) of their rewards and of the values before each of them. The value after the last
 * token is 0. */
typedef struct Discounts { double gamma, lambda; } Discounts;
void policy_estimate(Discounts discounts, const double *rewards, const double *values, int64_t count, double *advantages);
/* Scales numbers to mean 0 and standard deviation 1, as TRL does. Equal numbers become 0. */
void policy_whiten(double *numbers, int64_t count);
/* Returns whether rewards of a group, but NaN, differ. */
bool policy_group_varies(const double *rewards, int64_t samples);
/* Returns what a sample of `tokens` tokens loses: over the last `overlong` of `most` tokens the penalty
 * rises linearly from 0 to 1 (DAPO, arXiv 2503.14476, equation 13). */
double policy_overlong_penalty(int64_t tokens, int64_t most, int64_t overlong);
