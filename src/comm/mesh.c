/* Coordinates of ranks in the mesh, and its groups. Sets of axes with the same ranks share one
 * group. Owns the groups. Called by the code that lays out a run. */
#include "comm/mesh.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/scope.h"
#include "comm/trace.h"

const Mesh mesh_alone = {.size = {1, 1, 1, 1, 1, 1, 1}, .row_blocks = 1};

static const char *const names[] = {"replica", "dp", "pp", "cp", "ep", "tp", "copy"};
static_assert(sizeof names / sizeof *names == AXIS_COUNT, "every axis has a name");

const char *mesh_axis_name(MeshAxis axis) { return names[axis]; }

int mesh_size(const Mesh *mesh, MeshAxes axes) {
    int size = 1;
    for (MeshAxis axis = 0; axis < AXIS_COUNT; axis++)
        if (axes & MESH(axis)) size *= mesh->size[axis];
    return size;
}

int mesh_index(const Mesh *mesh, MeshAxes axes) {
    int index = 0;
    for (MeshAxis axis = 0; axis < AXIS_COUNT; axis++)
        if (axes & MESH(axis)) index = index * mesh->size[axis] + mesh->at[axis];
    return index;
}

void mesh_place(Mesh *mesh, int rank) {
    for (int axis = AXIS_COUNT - 1; axis >= 0; axis--) {
        mesh->at[axis] = rank % mesh->size[axis];
        rank /= mesh->size[axis];
    }
    assert(rank == 0);
}

/* -- Groups -------------------------------------------------------------------------------------------------------- */

MeshAxes mesh_significant(const Mesh *mesh, MeshAxes axes) {
    for (MeshAxis axis = 0; axis < AXIS_COUNT; axis++)
        if (mesh->size[axis] == 1) axes &= ~MESH(axis);
    return axes;
}

/* "cp.tp"; "copy" is part of the user's tp. */
void mesh_name_group(MeshAxes axes, char *name, size_t size) {
    size_t used = (size_t)snprintf(name, size, "%s", axes & MESH_INNER ? "inner" : "");
    for (MeshAxis axis = 0; axis < AXIS_COUNT && used < size; axis++)
        if (axes & MESH(axis)) used += (size_t)snprintf(name + used, size - used, "%s%s", used ? "." : "", names[axis]);
}

/* Returns the ranks of this rank's group, for the caller to free. */
static int *list_members(const Mesh *mesh, MeshAxes axes) {
    int *ranks = memory_allocate((size_t)mesh_size(mesh, axes) * sizeof *ranks), count = 0;
    for (int rank = 0; rank < mesh_size(mesh, AXES_ALL); rank++)
        if (mesh_has(mesh, axes, rank)) ranks[count++] = rank;
    return ranks;
}

/* A rehearsal knows its groups without asking other ranks. */
static Comm *open_divided_group(const Mesh *mesh, MeshAxes axes, const char *name, Error *error) {
    if (!comm_is_rehearsal(mesh->all)) return comm_split(mesh->all, mesh_index(mesh, AXES_ALL & ~axes), name, error);
    SCOPED_FREE int *ranks = list_members(mesh, axes);
    return comm_rehearse_group(mesh->all, ranks, mesh_size(mesh, axes), name);
}

/* Opens the group of Mesh.ends. */
static Comm *open_end_group(const Mesh *mesh, Error *error) {
    int last = mesh->size[AXIS_PP] - 1, own = mesh_rank(mesh);
    bool end = mesh->at[AXIS_PP] == 0 || mesh->at[AXIS_PP] == last;
    if (!comm_is_rehearsal(mesh->all)) return comm_split(mesh->all, end ? mesh_index(mesh, AXES_ALL & ~MESH(AXIS_PP)) : -1, "ends", error);
    SCOPED_FREE int *stages = list_members(mesh, MESH(AXIS_PP));
    const int ends[] = {stages[0], stages[last]};
    return end ? comm_rehearse_group(mesh->all, ends, 2, "ends") : comm_rehearse_group(mesh->all, &own, 1, "ends");
}

static bool open_group(const Mesh *mesh, Comm **groups, MeshAxes axes, MeshAxes named, Error *error) {
    char name[COMM_GROUP_NAME];
    if (!axes || groups[axes]) return true;
    mesh_name_group(axes | named, name, sizeof name);
    return (groups[axes] = open_divided_group(mesh, axes, name, error)) != NULL;
}

bool mesh_open(Mesh *mesh, Comm *comm, const MeshAxes *axes, int count, Error *error) {
    assert(comm_size(comm) == mesh_size(mesh, AXES_ALL) && comm_rank(comm) == mesh_rank(mesh));
    mesh->all = comm;
    for (int i = 0; i < count; i++) {
        MeshAxes significant = mesh_significant(mesh, axes[i]);
        bool all = significant == mesh_significant(mesh, AXES_ALL);
        if (!all && !open_group(mesh, mesh->groups, significant, 0, error)) return false;
    }
    comm_use_own_stream(mesh->groups[MESH(AXIS_PP)]);
    if (mesh->size[AXIS_PP] > 1) mesh->ends = open_end_group(mesh, error);
    return mesh->size[AXIS_PP] == 1 || mesh->ends;
}

bool mesh_open_inner(Mesh *mesh, const MeshAxes *axes, int count, Error *error) {
    for (int i = 0; i < count; i++) {
        MeshAxes significant = mesh_significant(mesh, axes[i]);
        if (!open_group(mesh, mesh->inner, significant, MESH_INNER, error)) return false;
        comm_use_own_stream(mesh->inner[significant]);
    }
    return true;
}

void mesh_close(Mesh *mesh) {
    for (MeshAxes axes = 0; axes <= AXES_ALL; axes++) {
        comm_close(mesh->inner[axes]);
        comm_close(mesh->groups[axes]);
        mesh->inner[axes] = mesh->groups[axes] = NULL;
    }
    comm_close(mesh->ends);
    mesh->ends = NULL;
    mesh->all = NULL;
}

Comm *mesh_ends(const Mesh *mesh) { return mesh->ends ? mesh->ends : comm_alone(); }

Comm *mesh_group(const Mesh *mesh, MeshAxes axes) {
    axes = mesh_significant(mesh, axes);
    if (!axes) return comm_alone();
    Comm *group = mesh->groups[axes] ? mesh->groups[axes] : mesh->all;
    assert(group && comm_size(group) == mesh_size(mesh, axes));
    return group;
}

Comm *mesh_inner_group(const Mesh *mesh, MeshAxes axes) {
    Comm *inner = mesh->inner[mesh_significant(mesh, axes)];
    return inner ? inner : mesh_group(mesh, axes);
}

Mesh mesh_without(const Mesh *mesh, MeshAxis axis) {
    Mesh rest = *mesh;
    rest.size[axis] = 1;
    rest.at[axis] = 0;
    return rest;
}

/* -- For reports --------------------------------------------------------------------------------------------------- */

MeshAxes mesh_find_axes(const Mesh *mesh, const char *group) {
    for (MeshAxes axes = 1; axes <= (AXES_ALL | MESH_INNER); axes++) {
        char name[COMM_GROUP_NAME];
        if (mesh_significant(mesh, axes) != axes) continue;
        mesh_name_group(axes, name, sizeof name);
        if (!strcmp(name, group)) return axes;
    }
    return AXES_ALL; /* the group of all ranks has its own name */
}

bool mesh_has(const Mesh *mesh, MeshAxes axes, int rank) {
    Mesh other = *mesh;
    mesh_place(&other, rank);
    return mesh_index(&other, AXES_ALL & ~axes) == mesh_index(mesh, AXES_ALL & ~axes);
}

int mesh_copy_ranks(const Mesh *mesh) { return mesh_size(mesh, AXES_ALL & ~(MESH(AXIS_REPLICA) | MESH(AXIS_DP))); }

void mesh_describe_rank(const Mesh *mesh, int rank, char *text, size_t size) {
    static const struct {
        const char *name;
        MeshAxes axes;
    } words[] = {{"dp", MESH(AXIS_REPLICA) | MESH(AXIS_DP)}, {"pp", MESH(AXIS_PP)}, {"cp", MESH(AXIS_CP)}, {"ep", MESH(AXIS_EP)},
        {"tp", AXES_TENSOR}};
    char places[96] = "";
    size_t used = 0;
    int count = 0;
    Mesh other = *mesh;
    mesh_place(&other, rank);
    for (size_t i = 0; i < sizeof words / sizeof *words && used < sizeof places; i++) {
        if (mesh_size(mesh, words[i].axes) == 1) continue;
        used += (size_t)snprintf(
            places + used, sizeof places - used, "%s%s %d", count++ ? ", " : "", words[i].name, mesh_index(&other, words[i].axes));
    }
    snprintf(text, size, count > 1 ? "rank %d (%s)" : "rank %d", rank, places);
}
