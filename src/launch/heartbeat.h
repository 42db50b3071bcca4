/* What ranks show to the supervisor of their node: a page of shared memory with one beacon for each local rank, in which the rank writes how far it
 * is. The supervisor makes the page, the ranks inherit it (SMELT_HEARTBEATS); a rank without a supervisor has a beacon of its own. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "base/error.h"

typedef struct Heartbeat {
    _Atomic int64_t step; /* the last completed one */
    _Atomic double alive; /* log_seconds() of the last sign of life; 0: none yet */
} Heartbeat;

/* For `ranks` ranks, zeroed; *file is for heartbeat_inherit. ERROR_MEMORY. */
Heartbeat *heartbeat_create(int ranks, int *file, Error *error);
/* In the child, before it becomes a rank. */
void heartbeat_inherit(int file);
/* In a rank: the page of SMELT_HEARTBEATS up to and with the rank's own beacon, which is the last of *ranks; else a new page with one. ERROR_MEMORY. */
Heartbeat *heartbeat_join(int local_rank, int *ranks, Error *error);
void heartbeat_close(Heartbeat *heartbeats, int ranks);
