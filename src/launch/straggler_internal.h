/* Straggler detection. Ranks wait for each other in every step, so all take as long as the slowest one. A rank's
 * busy time is what a step takes it without that waiting: the rank that is busy longest makes the others wait.
 * Waiting is the time in which the host stood still in collectives and, on a GPU, in which the device's stream did
 * (events before and after each). Stages of a pipeline compute different things: ranks are compared with those of their
 * own. Ranks exchange their busy times every few steps, and rank 0 names the straggler.
 * Called by the watchdog, on the training thread. */
#pragma once

#include "comm/comm.h"

typedef struct StragglerDetector {
    Comm *comm;
    int stage;           /* of the pipeline: ranks of others compute something else */
    double last, waited; /* at the last mark: the time, and the seconds waited until then */
    double busy;         /* seconds of a step without waiting, smoothed; 0: not known */
    int64_t steps;
    int slow, repeats; /* the last straggler, or -1; comparisons in a row before that named it too */
} StragglerDetector;

/* A step starts now: the time since the last one does not count. */
void straggler_mark(StragglerDetector *straggler);
/* A step is done. Call it on all ranks: every few steps it is a collective. */
void straggler_step(StragglerDetector *straggler);
/* The rank that is busy longest, when that is over 1.5 times the median of the others of its stage, else -1. *ratio: its
 * busy time over that median, 0 if unknown. */
int straggler_slowest(const double *busy, const int *stages, int ranks, double *ratio);
