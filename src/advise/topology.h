/* A description of a cluster: nodes, links, network, a slow node and a lost rank. A table of options
 * reads it from a small YAML file (docs/forecast.md has examples). */
#pragma once

#include "advise/cluster.h"
#include "base/options.h"

typedef enum TopologyLinks { LINKS_USUAL, LINKS_MESH, LINKS_SWITCH } TopologyLinks;

typedef struct Topology {
    struct {
        int64_t gpus;
        int links;            /* TopologyLinks */
        double rate, latency; /* GB/s of a GPU inside the node in large collectives; seconds */
    } node;
    struct {
        double card;   /* GB/s */
        int64_t cards; /* per node */
        bool rails;    /* cards of equal number reach each other without the spine */
        double spine;  /* part of the cards' rate that the spine has for traffic between rails */
    } network;
    struct {
        int64_t node;  /* -1: none */
        double factor; /* its compute time over that of other nodes */
    } slow;
    struct {
        int64_t rank, step;   /* -1: none; steps since the last checkpoint, -1: as topology_repeated_steps says */
        double detect, start; /* seconds until the loss is noticed; of starting the processes again */
    } lost;
    double storage; /* GB/s that a node reads of checkpoints */
} Topology;

extern const OptionTable topology_table;

/* Reads `path` over the defaults ("": defaults alone), and gives the cluster the topology's nodes and
 * links. ERROR_USAGE. */
bool topology_read(Topology *topology, const char *path, Cluster *cluster, Error *error);

/* Returns the steps that a run repeats after the loss: the given ones, or on average half of those
 * between two checkpoints. With every=0 there is one checkpoint, after all `steps`. */
double topology_repeated_steps(const Topology *topology, int64_t every, int64_t steps);
/* Returns the seconds that a message of `bytes` takes from rank `from` to rank `to`. */
double topology_message_seconds(const Topology *topology, const Cluster *cluster, int64_t from, int64_t to, double bytes);
