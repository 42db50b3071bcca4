/* What ranks show to the supervisor of their node: a page of shared memory with one beacon for each local rank, in which the rank writes how far it
 * is. The supervisor makes the page, the ranks inherit it (SMELT_BEACONS); a rank without a supervisor has a beacon of its own. */
#ifndef SMELT_LAUNCH_BEACON_H
#define SMELT_LAUNCH_BEACON_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/error.h"

typedef struct Beacon {
    _Atomic int64_t step;    /* the last completed one */
    _Atomic double alive;    /* log_seconds() of the last sign of life; 0: none yet */
    _Atomic double busy;     /* seconds of a step in which it did not wait for others, smoothed; 0: not known */
} Beacon;

/* For `ranks` ranks, zeroed; *file is for beacon_inherit. ERROR_MEMORY. */
Beacon *beacon_create(int ranks, int *file, Error *error);
/* In the child, before it becomes a rank. */
void beacon_inherit(int file);
/* In a rank: the page of SMELT_BEACONS up to and with the rank's own beacon, which is the last of *ranks; else a new page with one. ERROR_MEMORY. */
Beacon *beacon_join(int local_rank, int *ranks, Error *error);
/* The rank that is busy longest, when that is over 1.5 times the median of the others, else -1; *ratio says how much. Fewer than 3 ranks have no
 * median. */
int beacon_straggler(const Beacon *beacons, int ranks, double *ratio);
void beacon_close(Beacon *beacons, int ranks);

#endif
