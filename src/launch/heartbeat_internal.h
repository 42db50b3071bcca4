/* Heartbeats: a page of shared memory with one heartbeat for each rank of a node, in which the rank writes its
 * progress and the supervisor reads it. The supervisor makes the page, the ranks inherit its descriptor
 * (SMELT_HEARTBEATS=NUMBER); a rank without a supervisor has a page of its own. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "base/error.h"

typedef struct Heartbeat {
    _Atomic int64_t step; /* the last completed one */
    _Atomic double alive; /* log_seconds() of the last sign of life; 0: none yet */
} Heartbeat;

/* For `ranks` ranks, zeroed. Each rank must inherit the descriptor *file, with its number in SMELT_HEARTBEATS.
 * ERROR_MEMORY. */
Heartbeat *heartbeat_create(int ranks, int *file, Error *error);
/* In a rank: the page of SMELT_HEARTBEATS, of which the rank's heartbeat is the last of *ranks; else a new page with
 * one. ERROR_MEMORY. */
Heartbeat *heartbeat_join(int local_rank, int *ranks, Error *error);
void heartbeat_close(Heartbeat *heartbeats, int ranks);
