/* The straggler of a run's ranks. All ranks take as long for a step as the slowest, because they wait for each other; a rank's straggler is what a step takes it
 * without its waiting, and the rank that waits least makes the others wait. Waiting is the time that the host stood still in collectives and, on a GPU,
 * that the device's stream did, by events before and after it. The ranks tell each other their straggler every few steps; rank 0 says who is slow. Used by the
 * watchdog, on the training thread. */
#pragma once

#include "comm/comm.h"

typedef struct StragglerDetector {
    Comm *comm;
    double last, waited; /* at the last mark: the time, the seconds waited so far */
    double busy;         /* seconds of a step without waiting, smoothed; 0: not known */
    int64_t steps;
    int slow, looks; /* the rank that was slow at the last comparison, or -1, and at how many in a row before */
} StragglerDetector;

/* A step begins now: what happened since the last one is no part of it. */
void straggler_mark(StragglerDetector *straggler);
/* A step is done, on all ranks alike: collective now and then. */
void straggler_step(StragglerDetector *straggler);
/* The rank that is busy longest, when that is over 1.5 times the median of the others, else -1; *ratio says how much. */
int straggler_slowest(const double *busy, int ranks, double *ratio);
