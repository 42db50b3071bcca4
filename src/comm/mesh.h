/* The ranks of a run as a grid of axes, and the groups of ranks along some of them. A rank's number has its coordinates
 * as digits, the first axis the slowest: the ranks of a tensor-parallel group are neighbours, which share a node, then
 * come experts and context, then pipeline stages, then copies of the model.
 *
 * A user's layout.dp is REPLICA x DP, where ZeRO shares out among the DP ranks of a replica; layout.tp is TP x COPY,
 * where COPY exceeds 1 only for a model with fewer key heads than layout.tp: these are cut by TP alone.
 *
 * A mesh without groups serves plans, for any rank of ranks that need not exist. Sizes and coordinates are plain
 * fields; groups belong to the mesh. Opened by the session. */
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
    int size[AXIS_COUNT], at[AXIS_COUNT]; /* of this rank: 0 <= at < size */
    int row_blocks; /* a microbatch's rows are in so many blocks, each shared out over AXES_TENSOR (ops/collective/collective.h) */
    bool ring;      /* over AXIS_CP keys go round the ranks instead of being gathered (ops/attention/ring.c) */
    bool direct;    /* small collectives are kernels (ops/collective/gpu.c): where nothing runs beside collectives */
    Comm *all;      /* borrowed; NULL: a plan */
    Comm *ends;     /* of the first and the last stage of a pipeline: mesh_ends */
    Comm *groups[1 << AXIS_COUNT]; /* by axes of more than one rank; NULL: none was opened */
    Comm *inner[1 << AXIS_COUNT];  /* the same for collectives inside of programs (mesh_open_inner) */
} Mesh;

/* A mesh of one rank, without groups. */
extern const Mesh mesh_alone;

/* How many ranks differ from this one on these axes alone, itself included; and its number among them. */
int mesh_size(const Mesh *mesh, MeshAxes axes);
int mesh_index(const Mesh *mesh, MeshAxes axes);
/* The axes of the set that have more than one rank: sets with the same of them have the same ranks. */
MeshAxes mesh_significant(const Mesh *mesh, MeshAxes axes);
/* Sets `at` to the coordinates of a rank of the whole mesh. */
void mesh_place(Mesh *mesh, int rank);
/* The rank in the run that this mesh is for. */
static inline int mesh_rank(const Mesh *mesh) { return mesh_index(mesh, AXES_ALL); }

/* A sequence is in 2 cp equal chunks, of which a rank of AXIS_CP has two, one of the beginning and one of the end, since
 * rows look at all rows before them: the number of its first (which = 0) or second (1). Its rows are these chunks of each
 * sequence, sequence after sequence. Without context parallelism the chunks are the halves, in their order. */
static inline int mesh_chunk(const Mesh *mesh, int which) {
    int cp = mesh->size[AXIS_CP], at = mesh->at[AXIS_CP];
    return which ? 2 * cp - 1 - at : at;
}

/* The mesh of the ranks that have the same place on an axis as this one, for programs whose work the axis does not share
 * out. Its groups are those of `mesh`. */
Mesh mesh_without(const Mesh *mesh, MeshAxis axis);

/* Opens the groups of all sets in `axes` over `comm`, whose ranks are the mesh's. Collective. ERROR_COMMUNICATION. */
bool mesh_open(Mesh *mesh, Comm *comm, const MeshAxes *axes, int count, Error *error);
/* After mesh_open, and collective: opens the groups of these sets once more, for the collectives of programs, which computing waits for. On
 * GPUs these then do not queue behind gradients and weights, which travel between the same ranks. */
bool mesh_open_inner(Mesh *mesh, const MeshAxes *axes, int count, Error *error);
void mesh_close(Mesh *mesh);
/* The group of these axes, which was opened; comm_alone where it has one rank. */
Comm *mesh_group(const Mesh *mesh, MeshAxes axes);
/* The one for collectives of programs; the same as mesh_group where none of its own was opened. */
Comm *mesh_inner_group(const Mesh *mesh, MeshAxes axes);

/* A group's name, "cp.tp"; the axes of which a group has this name, and whether a rank is in this rank's group of these axes.
 * With MESH_INNER the axes stand for an inner group, "inner.cp.tp". */
enum { MESH_INNER = 1 << AXIS_COUNT };
void mesh_name_group(MeshAxes axes, char *name, size_t size);
MeshAxes mesh_find_axes(const Mesh *mesh, const char *group);
bool mesh_has(const Mesh *mesh, MeshAxes axes, int rank);
/* "rank 5 (dp 1, pp 0, tp 1)", by the user's words for axes; "rank 5" where there is one axis at most. */
void mesh_describe_rank(const Mesh *mesh, int rank, char *text, size_t size);
/* Ranks that hold one copy of the model together: all but those along dp. */
int mesh_copy_ranks(const Mesh *mesh);

/* This rank and the one at the other end of the pipeline, the first stage being number 0; on stages between them the rank
 * alone. */
Comm *mesh_ends(const Mesh *mesh);

/* "tp", "dp" ...: the user's word for an axis. */
const char *mesh_axis_name(MeshAxis axis);
