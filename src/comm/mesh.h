/* The ranks of a run as a grid of axes, and the groups of ranks along some of these axes. A rank's
 * number has its coordinates as digits, the first axis being the slowest. The ranks of a
 * tensor-parallel group are therefore neighbors on one node; experts and context come next, then
 * pipeline stages, then copies of the model.
 *
 * The user's layout.dp is REPLICA x DP; ZeRO shards among the DP ranks of a replica. The user's
 * layout.tp is TP x COPY. COPY exceeds 1 only for a model with fewer key heads than layout.tp; TP
 * alone cuts the key heads.
 *
 * A mesh without groups serves plans, for any rank of a run that need not exist. Sizes and
 * coordinates are plain fields; groups belong to the mesh. Opened by the session. */
#pragma once

#include "comm/comm.h"

typedef enum MeshAxis { AXIS_REPLICA, AXIS_DP, AXIS_PP, AXIS_CP, AXIS_EP, AXIS_TP, AXIS_COPY, AXIS_COUNT } MeshAxis;

/* Sets of axes: MESH(AXIS_TP) | MESH(AXIS_COPY). */
typedef unsigned MeshAxes;
#define MESH(axis) (1u << (axis))
enum {
    AXES_ALL = (1 << AXIS_COUNT) - 1,
    AXES_TENSOR = 1 << AXIS_TP | 1 << AXIS_COPY,                 /* the same rows, other heads and columns */
    AXES_DATA = 1 << AXIS_REPLICA | 1 << AXIS_DP | 1 << AXIS_EP, /* other sequences */
    AXES_EXPERTS = 1 << AXIS_EP | AXES_TENSOR,                   /* other rows and other experts */
    AXES_ROWS = 1 << AXIS_CP | AXES_TENSOR,                      /* other rows of the same sequences */
};

typedef struct Mesh {
    int size[AXIS_COUNT], at[AXIS_COUNT]; /* coordinates of this rank: 0 <= at < size */
    int row_blocks; /* a microbatch's rows are in this many blocks, each sharded over AXES_TENSOR (ops/collective/collective.h) */
    bool ring;      /* keys travel in a ring over AXIS_CP instead of being gathered (ops/attention/ring.c) */
    bool direct;    /* small collectives are kernels (ops/collective/gpu.c); set if nothing runs concurrently with collectives */
    Comm *all;      /* borrowed; NULL: a plan */
    Comm *ends;     /* the first and the last stage of a pipeline: mesh_ends */
    Comm *groups[1 << AXIS_COUNT]; /* by axes with more than one rank; NULL: not opened */
    Comm *inner[1 << AXIS_COUNT];  /* the same for collectives inside programs (mesh_open_inner) */
} Mesh;

/* A mesh of one rank, without groups. */
extern const Mesh mesh_alone;

/* Return the number of ranks whose coordinates differ from this rank's only on these axes,
 * including this rank; and this rank's index among them. */
int mesh_size(const Mesh *mesh, MeshAxes axes);
int mesh_index(const Mesh *mesh, MeshAxes axes);
/* Returns the axes of the set that have more than one rank. Sets with equal results have the same
 * ranks. */
MeshAxes mesh_significant(const Mesh *mesh, MeshAxes axes);
/* Sets `at` to the coordinates of a rank of the whole mesh. */
void mesh_place(Mesh *mesh, int rank);
/* Returns the rank in the run that this mesh is for. */
static inline int mesh_rank(const Mesh *mesh) { return mesh_index(mesh, AXES_ALL); }

/* Returns the number of a rank's first (which = 0) or second (1) chunk. A sequence has 2 cp equal
 * chunks. A rank of AXIS_CP has one chunk near the beginning and one near the end, because
 * attention to all earlier rows makes late rows cost more. A rank's rows are these two chunks of
 * each sequence, sequence after sequence. Without context parallelism the chunks are the two halves
 * in order. */
static inline int mesh_chunk(const Mesh *mesh, int which) {
    int cp = mesh->size[AXIS_CP], at = mesh->at[AXIS_CP];
    return which ? 2 * cp - 1 - at : at;
}

/* Returns the mesh of the ranks with this rank's coordinate on an axis, for programs whose work the
 * axis does not share out. Its groups are those of `mesh`. */
Mesh mesh_without(const Mesh *mesh, MeshAxis axis);

/* Opens the groups of all sets in `axes` over `comm`, which has the mesh's ranks. Collective.
 * ERROR_COMMUNICATION. */
bool mesh_open(Mesh *mesh, Comm *comm, const MeshAxes *axes, int count, Error *error);
/* Opens a second group for each of these sets, for the collectives of programs, which compute waits
 * for. On GPUs these collectives then do not queue after gradients and weights between the same
 * ranks. Collective; call it after mesh_open. */
bool mesh_open_inner(Mesh *mesh, const MeshAxes *axes, int count, Error *error);
void mesh_close(Mesh *mesh);
/* Returns the opened group of these axes, or comm_alone if it has one rank. */
Comm *mesh_group(const Mesh *mesh, MeshAxes axes);
/* Returns the group for collectives of programs; equal to mesh_group if no inner group was
 * opened. */
Comm *mesh_inner_group(const Mesh *mesh, MeshAxes axes);

/* Convert between axes and a group's name, "cp.tp"; mesh_has returns whether a rank is in this
 * rank's group of these axes. With MESH_INNER the axes mean an inner group, "inner.cp.tp". */
enum { MESH_INNER = 1 << AXIS_COUNT };
void mesh_name_group(MeshAxes axes, char *name, size_t size);
MeshAxes mesh_find_axes(const Mesh *mesh, const char *group);
bool mesh_has(const Mesh *mesh, MeshAxes axes, int rank);
/* Writes "rank 5 (dp 1, pp 0, tp 1)", with the user's names of axes; "rank 5" if there is at most
 * one axis. */
void mesh_describe_rank(const Mesh *mesh, int rank, char *text, size_t size);
/* Returns the number of ranks that hold one copy of the model together: the ranks along all axes
 * except dp. */
int mesh_copy_ranks(const Mesh *mesh);

/* Returns the group of this rank and the one at the other end of the pipeline (first stage: number
 * 0). Stages in between get a group of this rank alone. */
Comm *mesh_ends(const Mesh *mesh);

/* Returns the user's name of an axis: "tp", "dp" ... */
const char *mesh_axis_name(MeshAxis axis);
