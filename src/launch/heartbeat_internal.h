/* Heartbeats: a page of shared memory with one heartbeat for each rank of a node, in which the rank writes its
 * progress and the supervisor reads it. The supervisor makes the page, the ranks inherit its descriptor
 * (SMELT_HEARTBEATS=NUMBER); a rank without a supervisor has a page of its own. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "base/error.h"
#include "comm/mesh.h"

typedef struct Heartbeat {
    _Atomic int64_t step;             /* the last completed one */
    _Atomic double alive;             /* log_seconds() of the last sign of life; 0: none yet */
    _Atomic uint64_t waits;           /* the collective that it waits in, by heartbeat_wait; 0: none */
    _Atomic int32_t axes[AXIS_COUNT]; /* sizes of the run's mesh; 0: not known yet */
} Heartbeat;

/* A collective, by its group's axes and its number there. */
static inline uint64_t heartbeat_wait(MeshAxes axes, uint64_t number) { return (uint64_t)axes << 56 | (number & 0xffffffffffffff); }
static inline MeshAxes heartbeat_wait_axes(uint64_t wait) { return (MeshAxes)(wait >> 56); }
static inline uint64_t heartbeat_wait_number(uint64_t wait) { return wait & 0xffffffffffffff; }

/* Writes and reads the sizes of the run's mesh; false where they are not known yet. */
void heartbeat_set_mesh(Heartbeat *heartbeat, const Mesh *mesh);
bool heartbeat_get_mesh(const Heartbeat *heartbeat, Mesh *mesh);

/* For `ranks` ranks, zeroed. Each rank must inherit the descriptor *file, with its number in SMELT_HEARTBEATS.
 * ERROR_MEMORY. */
Heartbeat *heartbeat_create(int ranks, int *file, Error *error);
/* In a rank: the page of SMELT_HEARTBEATS with the heartbeats of the node's *ranks, the rank's being number *own; else a
 * new page with one. ERROR_MEMORY. */
Heartbeat *heartbeat_join(int local_rank, int *own, int *ranks, Error *error);
void heartbeat_close(Heartbeat *heartbeats, int ranks);
