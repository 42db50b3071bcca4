/* A libFuzzer entry for the environment that Slurm, torchrun and people give to ranks: the input is one word, which
 * takes the place of each variable in turn. It is refused, or the rank has a place. Changes the environment. */
#include "base/memory.h"
#include "comm/comm_internal.h"
#include "fuzz.h"
#include "launch/node_internal.h"

static const char *const place_variables[][2] = {{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "1"}, {"SLURM_LOCALID", "1"},
    {"SLURM_NODEID", "1"}, {"SLURM_STEP_NODELIST", "node[1-2]"}, {"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "1"},
    {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}, {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"GROUP_RANK", "0"},
    {"TORCHELASTIC_RUN_ID", "run"}, {"SMELT_SECRET", "the secret of all tests"}};
enum { SLURM_VARIABLES = 7, PLACE_VARIABLES = sizeof place_variables / sizeof *place_variables };

/* Slurm's variables alone, or torchrun's, which win; without MASTER_ADDR the list of nodes tells the first. */
static void require_place(const char *word, int first, int last) {
    for (int changed = first; changed < last; changed++) {
        Place place;
        Secret secret;
        Error error = {0};
        for (int i = 0; i < PLACE_VARIABLES; i++)
            if (i < first || i >= last) unsetenv(place_variables[i][0]);
            else setenv(place_variables[i][0], i == changed ? word : place_variables[i][1], 1);
        if (!place_find(COMM_AUTO, &place, &error)) require_line(&error);
        else require(place.rank >= 0 && place.rank < place.size && place.local_rank < place.size && place.port >= 0 && place.port < 65536);
        error = (Error){0};
        if (!secret_find("4 ranks", &secret, &error)) require_line(&error);
    }
}

static const char *const node_variables[][2] = {{"NNODES", ""}, {"PET_NNODES", "3"}, {"SKYPILOT_NUM_NODES", ""}, {"NODE_RANK", ""},
    {"PET_NODE_RANK", "1"}, {"SKYPILOT_NODE_RANK", ""}, {"JOB_COMPLETION_INDEX", "2"}, {"PET_MASTER_ADDR", "head"},
    {"PET_MASTER_PORT", "29400"}, {"PET_NPROC_PER_NODE", "2"}, {"SKYPILOT_NUM_GPUS_PER_NODE", ""},
    {"SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2"}};
enum { NODE_VARIABLES = sizeof node_variables / sizeof *node_variables };

/* Sets each variable of nodes in turn to the word, beside the variables of ranks. */
static void require_node(const char *word) {
    for (int changed = 0; changed < NODE_VARIABLES; changed++) {
        NodePlace place;
        Error error = {0};
        for (int i = 0; i < NODE_VARIABLES; i++) setenv(node_variables[i][0], i == changed ? word : node_variables[i][1], 1);
        if (!node_find(&place, &error)) require_line(&error);
        else require(place.node >= 0 && place.node < place.nodes && place.port > 0 && place.port < 65536 && *place.address);
        error = (Error){0};
        int ranks = node_ranks(&error);
        if (!ranks) require_line(&error);
        else require(ranks > 0);
    }
    for (int i = 0; i < NODE_VARIABLES; i++) unsetenv(node_variables[i][0]);
}

FUZZ(place) {
    char *word = strndup((const char *)data, size), host[64];
    require_place(word, 0, SLURM_VARIABLES);
    require_place(word, SLURM_VARIABLES, PLACE_VARIABLES);
    require_node(word);
    if (comm_first_host(word, host, sizeof host)) require(*host && strlen(host) < sizeof host);
    free(word);
}
