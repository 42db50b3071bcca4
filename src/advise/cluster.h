/* GPUs of several nodes and what collectives between them take: a model of bandwidth, for any group of a mesh. */
#pragma once

#include "advise/hardware.h"
#include "advise/measured.h"
#include "graph/op.h"

typedef struct Cluster {
    Hardware hardware;
    const Measured *measured; /* NULL: the table's rates */
    int64_t gpus, per_node;   /* in all; of a node, at most */
} Cluster;

/* Bytes/s that a GPU passes on inside a node in a collective of `local` of its GPUs. */
double cluster_node_bandwidth(const Cluster *cluster, int64_t local);
/* Seconds in which every rank of the mesh sends this to others of its group; the ranks of a node are neighbours. */
double cluster_seconds(const Cluster *cluster, const Mesh *mesh, const Traffic *traffic);
/* What a rank sends where a group gathers `bytes` in all, or reduces and scatters as many. */
Traffic cluster_gather(const Mesh *mesh, MeshAxes axes, double bytes);
