/* Straggler detection. Ranks wait for each other in every step, so all take as long as the slowest
 * rank. A rank's busy time is its step time without this waiting; the rank with the longest busy
 * time makes the others wait. Waiting is the time that the host stood still in collectives and, on
 * a GPU, that the device's stream did (events before and after each collective). Stages of a
 * pipeline compute different things, so a rank is compared with the ranks of its own stage. Ranks
 * exchange their busy times every few steps, and rank 0 names the straggler. Called by the
 * watchdog, on the training thread. */
#pragma once

#include "comm/comm.h"

typedef struct StragglerDetector {
    Comm *comm;
    int stage;           /* of the pipeline; ranks of other stages compute something else */
    double last, waited; /* the time of the last mark, and the total seconds waited until then */
    double busy;         /* seconds of a step without waiting, smoothed; 0: unknown */
    int64_t steps;
    int slow, repeats; /* the latest straggler, or -1; earlier comparisons in a row that also named it */
} StragglerDetector;

/* Starts a step: the time since the last one does not count. */
void straggler_mark(StragglerDetector *straggler);
/* Ends a step. Call it on all ranks: every few steps it is a collective. */
void straggler_step(StragglerDetector *straggler);
/* Returns the straggler that several comparisons in a row have named; -1: none. */
int straggler_confirmed(const StragglerDetector *straggler);
/* Returns the rank that is busy longest if its busy time exceeds 1.5 times the median of the others
 * of its stage, else -1. *ratio: its busy time over that median; 0: unknown. */
int straggler_slowest(const double *busy, const int *stages, int ranks, double *ratio);
