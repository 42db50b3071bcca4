/* Reads the variables that users, torchrun, Kubeflow, JobSet, SkyPilot and Slurm set for each node. Owns nothing. Called by
 * supervisor.c. */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "launch/node_internal.h"

enum { MOST_NODES = 1 << 16, MOST_RANKS = 1024 };

/* Each list has the variables of one value, and the first variable that is set counts: the user's own, Kubeflow Trainer's (PET_),
 * SkyPilot's, Slurm's. Kubernetes sets JOB_COMPLETION_INDEX in pods of an indexed Job, such as JobSet's. */
static const char *const node_counts[] = {"NNODES", "PET_NNODES", "SKYPILOT_NUM_NODES", "SLURM_STEP_NUM_NODES", NULL},
                         *const node_numbers[] = {"NODE_RANK", "GROUP_RANK", "PET_NODE_RANK", "SKYPILOT_NODE_RANK", "SLURM_NODEID", NULL},
                         *const of_pods[] = {"JOB_COMPLETION_INDEX", NULL}, /* counts only if another variable gives the number of nodes */
                             *const ports[] = {"MASTER_PORT", "PET_MASTER_PORT", NULL},
                         *const addresses[] = {"MASTER_ADDR", "PET_MASTER_ADDR", NULL},
                         *const rank_counts[] = {"PET_NPROC_PER_NODE", "SKYPILOT_NUM_GPUS_PER_NODE", NULL};

/* Returns the first of these variables that is set, or NULL. */
static const char *first_set(const char *const *names) {
    while (*names && !(getenv(*names) && *getenv(*names))) names++;
    return *names;
}

/* Reads the first of these variables that is set. If none is set, *value does not change. */
static bool read_first(const char *const *names, long least, long most, int *value, Error *error) {
    const char *name = first_set(names);
    return !name || comm_read_number(name, least, most, value, error);
}

static bool find_address(NodePlace *place, Error *error) {
    static const char list_of_heads[] = "SKYPILOT_NODE_IPS"; /* a line per node */
    const char *name = first_set(addresses), *heads = getenv(list_of_heads), *list = getenv("SLURM_STEP_NODELIST");
    const size_t size = sizeof place->address;
    if (place->nodes == 1) return snprintf(place->address, size, "127.0.0.1") > 0;
    if (!name && heads && *heads) name = list_of_heads;
    if (!name && list && comm_first_host(list, place->address, size)) return true;
    if (!name) return error_set(error, ERROR_USAGE, "%d nodes need MASTER_ADDR, the host of node 0", place->nodes);
    const size_t length = strcspn(getenv(name), "\n");
    if (length == 0 || length >= size)
        return error_set(error, ERROR_USAGE, "the environment variable %s must begin with a host of 1 to %zu bytes", name, size - 1);
    return snprintf(place->address, size, "%.*s", (int)length, getenv(name)) > 0;
}

bool node_find(NodePlace *place, Error *error) {
    *place = (NodePlace){.nodes = 1, .port = NODE_PORT};
    if (!read_first(node_counts, 1, MOST_NODES, &place->nodes, error)) return false;
    const char *const *numbers = first_set(node_numbers) || place->nodes == 1 ? node_numbers : of_pods;
    if (place->nodes > 1 && !first_set(numbers))
        return error_set(error, ERROR_USAGE, "%s=%d, but no variable has the number of this node: set NODE_RANK, from 0 to %d",
            first_set(node_counts), place->nodes, place->nodes - 1);
    return read_first(numbers, 0, place->nodes - 1, &place->node, error) && read_first(ports, 1, 65535, &place->port, error) &&
           find_address(place, error);
}

/* Counts device files: a container has those of its own GPUs only. */
static int count_gpus(void) {
    static const char *const patterns[] = {"/dev/nvidia[0-9]*", "/dev/dri/renderD*"};
    int count = 0;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns && count == 0; i++) {
        glob_t found;
        if (glob(patterns[i], 0, NULL, &found)) continue;
        count = (int)found.gl_pathc;
        globfree(&found);
    }
    return count;
}

int node_ranks(Error *error) {
    const char *name = first_set(rank_counts);
    int ranks = 0; /* SkyPilot sets 0 on a node without GPUs */
    if (name && !strcmp(getenv(name), "auto")) ranks = count_gpus();
    else if (name && !comm_read_number(name, 0, MOST_RANKS, &ranks, error)) return 0;
    return ranks > 1 ? ranks : 1;
}
