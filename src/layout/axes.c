/* The mesh that a configuration asks for. Owns nothing. Called wherever ranks are planned. */
#include "layout/layout.h"

/* How many of the ranks of tensor parallelism have key heads of their own; the others copy them. */
static int64_t key_groups(const Config *config) {
    int64_t tp = config->layout.tp, heads = config->model.kv_heads;
    return heads < tp && tp % heads == 0 ? heads : tp;
}

bool layout_mesh(Mesh *mesh, const Config *config, int rank, int ranks, Error *error) {
    const LayoutConfig *layout = &config->layout;
    int64_t inner = layout->pp * layout->cp * layout->ep * layout->tp, dp = layout->dp ? layout->dp : ranks / inner;
    *mesh = mesh_alone;
    if (inner == 1 && dp != ranks)
        return error_set(
            error, ERROR_USAGE, "layout.dp=%lld but there are %d ranks: start as many as that, or leave it out", (long long)dp, ranks);
    if (dp * inner != ranks)
        return error_set(error, ERROR_USAGE,
            "layout.pp=%lld x cp=%lld x ep=%lld x tp=%lld with %d ranks leaves no whole number for layout.dp%s: start a multiple of %lld "
            "ranks",
            (long long)layout->pp, (long long)layout->cp, (long long)layout->ep, (long long)layout->tp, ranks,
            layout->dp ? " as it was given" : "", (long long)(layout->dp ? dp * inner : inner));
    int64_t shard = layout->shard ? layout->shard : dp;
    if (dp % shard)
        return error_set(error, ERROR_USAGE,
            "layout.shard=%lld does not divide the %lld ranks: groups of that size share out what ZeRO spreads", (long long)shard,
            (long long)dp);
    mesh->size[AXIS_REPLICA] = (int)(dp / shard);
    mesh->size[AXIS_DP] = (int)shard;
    mesh->size[AXIS_PP] = (int)layout->pp;
    mesh->size[AXIS_CP] = (int)layout->cp;
    mesh->size[AXIS_EP] = (int)layout->ep;
    mesh->size[AXIS_TP] = (int)key_groups(config);
    mesh->size[AXIS_COPY] = (int)(layout->tp / key_groups(config));
    mesh_place(mesh, rank);
    return true;
}
