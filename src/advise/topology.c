/* The table of a topology's settings, and messages between two ranks. Collectives of groups use
 * cluster.c. Owns nothing. */
#include "advise/topology.h"

#include <math.h>
#include <stddef.h>

#include "base/scope.h"

#define FIELD(path) offsetof(Topology, path)
static const Option rows[] = {
    INT_OPTION(node.gpus, "0", 0, 1024, "GPUs", "GPUs of a node; 0: the usual number of the GPU"),
    CHOICE_OPTION(node.links, "usual", "usual|mesh|switch",
        "links inside a node: mesh joins each pair of GPUs by one link (xGMI); switch gives any two the whole rate (NVLink)"),
    REAL_OPTION(node.rate, "0", 0, 1e5, "GB/s", "bus bandwidth of a GPU in large collectives of a node; 0: that of the GPU's row"),
    REAL_OPTION(node.latency, "0", 0, 1, "seconds", "of a collective beyond bytes / rate; 0: that of the GPU's row"),
    REAL_OPTION(network.card, "0", 0, 1e4, "GB/s", "rate of a network card: 50 for 400 Gb/s; 0: that of usual clusters"),
    INT_OPTION(network.cards, "0", 0, 1024, "cards", "cards of a node; 0: one per GPU"),
    BOOL_OPTION(network.rails, "true",
        "cards of equal number are joined by their own switches (rails), and other traffic passes the spine; false: one network"),
    REAL_OPTION(network.spine, "1", 0.01, 1, "", "the spine's rate as a fraction of the cards' rate"),
    INT_OPTION(slow.node, "-1", -1, 1000000, "", "index of a slow node; -1: none"),
    REAL_OPTION(slow.factor, "1.1", 1, 100, "", "its compute time over that of other nodes"),
    INT_OPTION(lost.rank, "-1", -1, 1000000, "", "a rank that is lost; -1: none"),
    INT_OPTION(
        lost.step, "-1", -1, 1e9, "steps", "from the checkpoint to the loss; -1: half of checkpoint.every, or of all steps without it"),
    REAL_OPTION(lost.detect, "60", 0, 1e5, "seconds", "until a lost rank is noticed; 60: a node that vanishes, 1: a process that dies"),
    REAL_OPTION(lost.start, "30", 0, 1e5, "seconds", "to start all processes, their GPUs and groups again"),
    REAL_OPTION(storage, "2", 0.001, 1e5, "GB/s", "rate at which a node reads a checkpoint while all nodes read"),
};
#undef FIELD
const OptionTable topology_table = OPTION_TABLE(rows);

static const double giga = 1e9;

/* The GB/s that a link or a card may have. Other values come from another unit: a card of 400 Gb/s is 50. */
typedef struct RateRange {
    const char *name;
    double least, most;
} RateRange;

static bool check_rate(double value, const RateRange *range, const char *path, Error *error) {
    return value == 0 || (value >= range->least && value <= range->most) ||
           error_set(error, ERROR_USAGE,
               "%s=%g of topology=%s is not a rate in GB/s (gigabytes per second): use %g to %g, or 0 for the usual one", range->name,
               value, path, range->least, range->most);
}

/* Refuses values that no cluster has, with which a simulation would be meaningless. */
static bool check_absurd(const Topology *topology, const char *path, const Cluster *cluster, Error *error) {
    enum { MOST_CARDS = 4 /* per GPU */ };
    static const RateRange link = {"node.rate", 0.1, 10000}, card = {"network.card", 0.01, 200};
    const double most_latency = 0.01;
    int64_t cards = topology->network.cards, most_cards = MOST_CARDS * cluster->per_node;
    if (!check_rate(topology->node.rate, &link, path, error) || !check_rate(topology->network.card, &card, path, error)) return false;
    if (topology->node.latency > most_latency || (topology->node.latency > 0 && topology->node.latency < 1e-9))
        return error_set(error, ERROR_USAGE,
            "node.latency=%g of topology=%s is not a latency in seconds: use 1e-9 to %g, or 0 for the usual one", topology->node.latency,
            path, most_latency);
    return cards <= most_cards ||
           error_set(error, ERROR_USAGE, "network.cards=%lld of topology=%s is more than %d per GPU of a node of %lld: use at most %lld",
               (long long)cards, path, MOST_CARDS, (long long)cluster->per_node, (long long)most_cards);
}

static bool check_named_ranks(const Topology *topology, const char *path, const Cluster *cluster, Error *error) {
    int64_t nodes = (cluster->gpus + cluster->per_node - 1) / cluster->per_node;
    if (topology->slow.node >= nodes)
        return error_set(error, ERROR_USAGE, "slow.node=%lld of topology=%s is not one of the %lld nodes: use 0 to %lld",
            (long long)topology->slow.node, path, (long long)nodes, (long long)nodes - 1);
    if (topology->lost.step >= 0 && topology->lost.rank < 0)
        return error_set(error, ERROR_USAGE, "lost.step=%lld of topology=%s has no effect without lost.rank: set lost.rank, or remove it",
            (long long)topology->lost.step, path);
    return topology->lost.rank < cluster->gpus ||
           error_set(error, ERROR_USAGE, "lost.rank=%lld of topology=%s is not one of the %lld ranks: use 0 to %lld",
               (long long)topology->lost.rank, path, (long long)cluster->gpus, (long long)cluster->gpus - 1);
}

bool topology_read(Topology *topology, const char *path, Cluster *cluster, Error *error) {
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Hardware *hardware = &cluster->hardware;
    options_defaults(&topology_table, topology, &strings);
    if (path[0] && !options_read_yaml(&topology_table, topology, &strings, path, error)) return false;
    if (topology->node.gpus) cluster->per_node = topology->node.gpus;
    if (!check_absurd(topology, path, cluster, error)) return false;
    if (topology->node.links) hardware->switched = topology->node.links == LINKS_SWITCH;
    if (topology->node.rate > 0) hardware->best_link = topology->node.rate * giga;
    if (topology->node.rate > 0 && hardware->link <= 0) hardware->link = hardware->best_link;
    if (topology->node.latency > 0) hardware->latency = topology->node.latency;
    hardware->per_node = (int)cluster->per_node;
    double card = topology->network.card > 0 ? topology->network.card * giga : hardware->network;
    double cards = topology->network.cards ? (double)topology->network.cards : (double)cluster->per_node;
    hardware->network = card * cards / (double)cluster->per_node;
    return check_named_ranks(topology, path, cluster, error);
}

double topology_repeated_steps(const Topology *topology, int64_t every, int64_t steps) {
    if (topology->lost.step >= 0) return (double)topology->lost.step;
    return (double)(every > 0 && every < steps ? every : steps) / 2;
}

double topology_message_seconds(const Topology *topology, const Cluster *cluster, int64_t from, int64_t to, double bytes) {
    int64_t local = cluster->per_node;
    double latency = cluster->hardware.latency, rate = cluster_network_bandwidth(cluster);
    if (from / local == to / local) return latency + bytes / cluster_node_bandwidth(cluster, 2);
    if (topology->network.rails && from % local != to % local) rate *= topology->network.spine;
    return latency + bytes / rate;
}
