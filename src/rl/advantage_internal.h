/* Advantages of samples from their rewards. */
#pragma once

#include <stdint.h>

#include "config/policy_rule.h"

/* Computes the advantage of each sample of `groups` groups of `samples` samples. A reward of NaN is
 * left out, and its advantage is 0. For ADVANTAGE_TEACHER all are 0, because tokens have their own. */
void policy_advantages(PolicyAdvantage kind, const double *rewards, int64_t groups, int64_t samples, double *advantages);
/* Returns whether rewards of a group, but NaN, differ. */
bool policy_group_varies(const double *rewards, int64_t samples);
/* Returns what a sample of `tokens` tokens loses: over the last `overlong` of `most` tokens the penalty
 * rises linearly from 0 to 1 (DAPO, arXiv 2503.14476, equation 13). */
double policy_overlong_penalty(int64_t tokens, int64_t most, int64_t overlong);
