/* The mesh that a configuration asks for. Owns nothing. Called by all code that plans ranks. */
#include "config/layout_rules.h"
#include "layout/layout.h"

/* Returns the number of tensor-parallel ranks that have their own key heads; the other ranks copy
 * them. */
static int64_t key_groups(const Config *config) {
    int64_t tp = config->layout.tp, heads = config->model.kv_heads;
    return heads < tp && tp % heads == 0 ? heads : tp;
}

Mesh layout_mesh_of(const Config *config, int ranks) {
    const LayoutConfig *layout = &config->layout;
    Mesh mesh = mesh_alone;
    int64_t dp = ranks / layout_copy_ranks(layout), shard = layout->shard ? layout->shard : dp;
    mesh.size[AXIS_REPLICA] = (int)(dp / shard);
    mesh.size[AXIS_DP] = (int)shard;
    mesh.size[AXIS_PP] = (int)layout->pp;
    mesh.size[AXIS_CP] = (int)layout->cp;
    mesh.size[AXIS_EP] = (int)layout->ep;
    mesh.size[AXIS_TP] = (int)key_groups(config);
    mesh.size[AXIS_COPY] = (int)(layout->tp / key_groups(config));
    mesh.ring = layout->cp_exchange == CP_RING;
    return mesh;
}

bool layout_mesh(Mesh *mesh, const Config *config, int rank, int ranks, Error *error) {
    *mesh = mesh_alone;
    if (!layout_check(config, ranks, error)) return false;
    *mesh = layout_mesh_of(config, ranks);
    mesh_place(mesh, rank);
    return true;
}

const MeshAxes layout_program_groups[LAYOUT_PROGRAM_GROUPS] = {AXES_TENSOR, AXES_EXPERTS, AXES_ROWS, MESH(AXIS_CP)};
const MeshAxes layout_cut_groups[LAYOUT_CUT_GROUPS] = {AXES_TENSOR, AXES_EXPERTS, MESH(AXIS_TP), MESH(AXIS_PP)};

bool layout_open_mesh(Mesh *mesh, const Config *config, Comm *comm, Error *error) {
    return layout_mesh(mesh, config, comm_rank(comm), comm_size(comm), error) &&
           mesh_open(mesh, comm, layout_program_groups, LAYOUT_PROGRAM_GROUPS, error);
}
