/* Advantages: pure functions of rewards, the same on all ranks. Deviations are unbiased, as in TRL. */
#include "rl/advantage_internal.h"

#include <math.h>

#include "base/math.h"

typedef struct RewardMoments {
    double mean, deviation;
    int64_t count;
} RewardMoments;

/* Adds differences from the first reward, so that equal rewards have exactly their value as the mean.
 * Otherwise their advantages were rounding errors, which an optimizer enlarges if there is nothing else. */
static RewardMoments reward_moments(const double *rewards, int64_t count) {
    RewardMoments moments = {0};
    double first = NAN, above = 0, squares = 0;
    for (int64_t i = 0; i < count; i++) {
        if (isnan(rewards[i])) continue;
        if (!moments.count++) first = rewards[i];
        above += rewards[i] - first;
    }
    if (moments.count) moments.mean = first + above / (double)moments.count;
    for (int64_t i = 0; i < count; i++)
        if (!isnan(rewards[i])) squares += (rewards[i] - moments.mean) * (rewards[i] - moments.mean);
    moments.deviation = moments.count > 1 ? sqrt(squares / (double)(moments.count - 1)) : 0;
    return moments;
}

static double advantage_in(PolicyAdvantage kind, double reward, const RewardMoments *among) {
    const double least = 1e-4;
    double above = reward - among->mean;
    if (isnan(reward)) return 0;
    switch (kind) {
    case ADVANTAGE_SCALED:
    case ADVANTAGE_OF_BATCH: return above / (among->deviation + least);
    case ADVANTAGE_CENTERED: return above;
    case ADVANTAGE_LEFT_OUT: return among->count > 1 ? above * (double)among->count / (double)(among->count - 1) : 0;
    case ADVANTAGE_OVER_MEAN: return among->mean > 0 ? above / among->mean : 0;
    case ADVANTAGE_TEACHER:
    case ADVANTAGE_OF_VALUES: break;
    }
    return 0;
}

void policy_advantages(PolicyAdvantage kind, const double *rewards, int64_t groups, int64_t samples, double *advantages) {
    int64_t among = kind == ADVANTAGE_OF_BATCH ? groups * samples : samples;
    for (int64_t first = 0; first < groups * samples; first += among) {
        RewardMoments moments = reward_moments(rewards + first, among);
        for (int64_t i = first; i < first + among; i++) advantages[i] = advantage_in(kind, rewards[i], &moments);
    }
}

void policy_estimate(Discounts discounts, const double *rewards, const double *values, int64_t count, double *advantages) {
    double later = 0;
    for (int64_t t = count - 1; t >= 0; t--) {
        double next = t + 1 < count ? values[t + 1] : 0, error = rewards[t] + discounts.gamma * next - values[t];
        advantages[t] = later = error + discounts.gamma * discounts.lambda * later;
    }
}

void policy_whiten(double *numbers, int64_t count) {
    RewardMoments moments = reward_moments(numbers, count);
    double deviation = sqrt(moments.deviation * moments.deviation + 1e-8);
    for (int64_t i = 0; i < count; i++) numbers[i] = (numbers[i] - moments.mean) / deviation;
}

bool policy_group_varies(const double *rewards, int64_t samples) {
    double first = NAN;
    for (int64_t i = 0; i < samples; i++) {
        if (isnan(rewards[i])) continue;
        if (!isnan(first) && rewards[i] != first) return true;
        first = rewards[i];
    }
    return false;
}

double policy_overlong_penalty(int64_t tokens, int64_t most, int64_t overlong) {
    int64_t beyond = tokens - (most - overlong);
    return overlong && beyond > 0 ? fmin(1, (double)beyond / (double)overlong) : 0;
}
