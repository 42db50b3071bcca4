/* Collectives are pipelined, so they run inside and between nodes at the same time. Every GPU sends
 * its data over its links, and the GPUs of a node share the traffic of the node's network cards.
 * The model gives the measured 330 to 350 GB/s of 16 MI300X on two nodes. Owns nothing. */
#include "advise/cluster.h"

#include <math.h>

#include "base/math.h"

static const double bucket = 256 << 20;   /* bytes of one collective; large collectives reach the measured bandwidth */
static const double node_latency = 10e-6; /* added to each collective, per doubling of the nodes */
static const double usual_link = 0.72;    /* fraction of a link's peak, if nothing was measured: H200 0.78, MI300X 0.70 */
static const double network_part = 0.94;  /* fraction of a card's rate: RCCL's send and receive over 400 Gb/s cards */

/* Point-to-point links carry only traffic between the GPUs that they join, so they count only if
 * both take part. A switch gives its whole bandwidth to any two GPUs. */
double cluster_node_bandwidth(const Cluster *cluster, int64_t local) {
    const Hardware *hardware = &cluster->hardware;
    if (hardware->link <= 0) return network_part * hardware->network; /* CPUs */
    double whole = hardware->best_link > 0 ? hardware->best_link : usual_link * hardware->link;
    return hardware->switched || hardware->per_node < 2 ? whole : whole * (double)(local - 1) / (hardware->per_node - 1);
}

double cluster_network_bandwidth(const Cluster *cluster) { return network_part * cluster->hardware.network; }

/* Returns how many ranks of a group share a node. Along an axis whose neighbors are `distance`
 * ranks apart, these are at most per_node / distance. */
static int64_t local_ranks(const Mesh *mesh, MeshAxes axes, int64_t per_node) {
    int64_t local = 1, distance = 1;
    for (int axis = AXIS_COUNT - 1; axis >= 0; axis--) {
        if (axes & MESH(axis)) local *= int_min(int_max(per_node / distance, 1), mesh->size[axis]);
        distance *= mesh->size[axis];
    }
    return local;
}

double cluster_seconds(const Cluster *cluster, const Mesh *mesh, const Traffic *traffic) {
    int64_t ranks = mesh_size(mesh, traffic->axes), local = local_ranks(mesh, traffic->axes, cluster->per_node);
    double nodes = (double)ranks / (double)local, inside = 0, between = 0, others = (double)(ranks - 1);
    if (ranks == 1) return 0;
    /* In a collective, the node's `local` network cards share the traffic. In pairwise traffic,
     * each rank sends through its own card. */
    double outside = traffic->pairwise ? (double)(ranks - local) / others : (double)ranks / others * (nodes - 1) / nodes / (double)local;
    if (local > 1) inside = traffic->bytes / cluster_node_bandwidth(cluster, local);
    if (nodes > 1) between = traffic->bytes * outside / cluster_network_bandwidth(cluster);
    return fmax(inside, between) + ceil(traffic->bytes / bucket) * (cluster->hardware.latency + node_latency * log2(nodes));
}

double cluster_ring_seconds(const Cluster *cluster, const Mesh *mesh, const Traffic *traffic, double messages) {
    int64_t ranks = mesh_size(mesh, traffic->axes), local = local_ranks(mesh, traffic->axes, cluster->per_node);
    double rate = local > 1 ? cluster_node_bandwidth(cluster, 2) : INFINITY;
    if (local < ranks) rate = fmin(rate, cluster_network_bandwidth(cluster));
    return messages * cluster->hardware.latency + traffic->bytes / rate;
}

Traffic cluster_gather(const Mesh *mesh, MeshAxes axes, double bytes) {
    double ranks = mesh_size(mesh, axes);
    return (Traffic){.axes = axes, .bytes = bytes * (ranks - 1) / ranks};
}
