/* Heartbeats: a page of shared memory with one heartbeat per rank of a node. The rank writes its
 * progress there and the supervisor reads it. The supervisor makes the page and the ranks inherit
 * its descriptor (SMELT_HEARTBEATS=NUMBER). A rank without a supervisor has its own page. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "base/error.h"
#include "comm/mesh.h"

typedef struct Heartbeat {
    _Atomic int64_t step;             /* the last completed step */
    _Atomic double alive;             /* log_seconds() of the last sign of life; 0: none yet */
    _Atomic uint64_t waits;           /* the collective that the rank waits in, by heartbeat_wait; 0: none */
    _Atomic int32_t axes[AXIS_COUNT]; /* sizes of the run's mesh; 0: not known yet */
} Heartbeat;

/* Encodes a collective as the axes of its group and its number in the group. */
static inline uint64_t heartbeat_wait(MeshAxes axes, uint64_t number) { return (uint64_t)axes << 56 | (number & 0xffffffffffffff); }
static inline MeshAxes heartbeat_wait_axes(uint64_t wait) { return (MeshAxes)(wait >> 56); }
static inline uint64_t heartbeat_wait_number(uint64_t wait) { return wait & 0xffffffffffffff; }

/* Write and read the sizes of the run's mesh; reading returns false while they are unknown. */
void heartbeat_set_mesh(Heartbeat *heartbeat, const Mesh *mesh);
bool heartbeat_get_mesh(const Heartbeat *heartbeat, Mesh *mesh);

/* Makes a zeroed page for `ranks` ranks. Each rank must inherit the descriptor *file, with its
 * number in SMELT_HEARTBEATS. ERROR_MEMORY. */
Heartbeat *heartbeat_create(int ranks, int *file, Error *error);
/* Called in a rank. Returns the page of SMELT_HEARTBEATS with the node's *ranks heartbeats, *own
 * being this rank's index, or a new page with one heartbeat. ERROR_MEMORY. */
Heartbeat *heartbeat_join(int local_rank, int *own, int *ranks, Error *error);
void heartbeat_close(Heartbeat *heartbeats, int ranks);
