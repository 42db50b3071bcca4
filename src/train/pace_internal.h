/* Estimates the time of the rest of a run from the steps and evaluations so far. The first step of
 * a process is ignored once there is another, because it loads kernels and touches memory for the
 * first time. */
#pragma once

#include <math.h>
#include <stdint.h>

/* Zeroed: unknown. */
typedef struct Pace {
    int64_t steps;
    double token_seconds;      /* smoothed over about ten steps */
    double evaluation_seconds; /* of the latest one */
} Pace;

static inline void pace_step(Pace *pace, int64_t tokens, double seconds) {
    const double least = 0.1;
    double weight = ++pace->steps <= 2 ? 1 : fmax(least, 1.0 / (double)(pace->steps - 1));
    pace->token_seconds += (seconds / (double)tokens - pace->token_seconds) * weight;
}

/* Returns seconds. */
static inline double pace_left(const Pace *pace, int64_t tokens, int64_t evaluations) {
    return pace->token_seconds * (double)tokens + pace->evaluation_seconds * (double)evaluations;
}
