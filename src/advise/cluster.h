/* GPUs of several nodes and a bandwidth model for collectives between them, for any group of a
 * mesh. */
#pragma once

#include "advise/hardware.h"
#include "advise/measured.h"
#include "advise/routed.h"
#include "graph/op.h"

typedef struct Cluster {
    Hardware hardware;
    const Measured *measured;    /* NULL: the table's rates */
    const RoutedExperts *routed; /* NULL: experts get equal numbers of rows */
    int64_t gpus, per_node;      /* in total; per node, at most */
} Cluster;

/* Returns the bytes/s that a GPU sends inside a node in a collective of `local` of its GPUs. */
double cluster_node_bandwidth(const Cluster *cluster, int64_t local);
/* Returns the bytes/s that a GPU sends to other nodes. */
double cluster_network_bandwidth(const Cluster *cluster);
/* Returns the seconds of this traffic if every rank of the mesh sends it to the others of its
 * group. Consecutive ranks share a node. */
double cluster_seconds(const Cluster *cluster, const Mesh *mesh, const Traffic *traffic);
/* Returns the seconds of this traffic if every rank sends it to the next one of its group, in `messages`
 * one after the other. All ranks wait for the slowest pair, and two GPUs have only the link between
 * them, unless a switch joins them. */
double cluster_ring_seconds(const Cluster *cluster, const Mesh *mesh, const Traffic *traffic, double messages);
/* Returns what a rank sends when a group gathers, or reduces and scatters, `bytes` in total. */
Traffic cluster_gather(const Mesh *mesh, MeshAxes axes, double bytes);
