/* The place of this process in the run, read from the environment that its launcher left. Owns
 * nothing. Called by comm_open, and by callers that need the number of ranks before. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/strings.h"
#include "comm/comm_internal.h"

enum { PORT_BASE = 20000, PORT_SPAN = 20000, MOST_RANKS = 1 << 20 };

static bool present(const char *name) {
    const char *value = getenv(name);
    return value && *value;
}

bool comm_read_number(const char *name, long least, long most, int *number, Error *error) {
    char shown[100], *end;
    const char *text = getenv(name);
    if (!present(name)) return true;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (!errno && !*end && value >= least && value <= most) {
        *number = (int)value;
        return true;
    }
    snprintf(shown, sizeof shown, "%s", text);
    return error_set(
        error, ERROR_USAGE, "the environment variable %s=%s must be a number from %ld to %ld", name, one_line(shown), least, most);
}

static bool copy_variable(const char *name, char text[PLACE_TEXT], Error *error) {
    if (strlen(getenv(name)) >= PLACE_TEXT)
        return error_set(error, ERROR_USAGE, "the environment variable %s is longer than %d bytes", name, PLACE_TEXT - 1);
    snprintf(text, PLACE_TEXT, "%s", getenv(name));
    return true;
}

static bool read_rank_variables(const char *rank, const char *size, Place *place, Error *error) {
    if (!comm_read_number(size, 1, MOST_RANKS, &place->size, error)) return false;
    if (!present(rank)) return error_set(error, ERROR_USAGE, "the environment variable %s is set, but %s is not: set both", size, rank);
    return comm_read_number(rank, 0, place->size - 1, &place->rank, error);
}

/* -- Slurm --------------------------------------------------------------------------------------------------------- */

bool comm_first_host(const char *list, char *host, size_t size) {
    size_t length = strcspn(list, ",["), digits = 0;
    const char *number = list + length;
    if (*number == '[') {
        number++;
        digits = strspn(number, "0123456789");
        if (!digits || !strchr(",-]", number[digits]) || !number[digits]) return false;
    }
    return length + digits > 0 && snprintf(host, size, "%.*s%.*s", (int)length, list, (int)digits, digits ? number : "") < (int)size;
}

/* All ranks of a job step derive the same port; steps of one job get different ones. */
static int slurm_port(void) {
    const char *job = getenv("SLURM_JOB_ID"), *step = getenv("SLURM_STEP_ID");
    unsigned long number = (job ? strtoul(job, NULL, 10) : 0) * 7 + (step ? strtoul(step, NULL, 10) : 0);
    return PORT_BASE + (int)(number % PORT_SPAN);
}

/* Reads the variables of a job step. A batch script itself also has SLURM_PROCID, and is one
 * process. */
static bool read_slurm(Place *place, Error *error) {
    const char *list = present("SLURM_STEP_NODELIST")  ? getenv("SLURM_STEP_NODELIST")
                       : present("SLURM_JOB_NODELIST") ? getenv("SLURM_JOB_NODELIST")
                                                       : "";
    place->transport = COMM_TCP;
    place->port = slurm_port();
    if (!read_rank_variables("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", place, error)) return false;
    if (!comm_read_number("SLURM_LOCALID", 0, place->size - 1, &place->local_rank, error)) return false;
    if (present("SLURM_NODEID")) snprintf(place->node, sizeof place->node, "%.200s", getenv("SLURM_NODEID"));
    if (present("MASTER_ADDR")) {
        if (!copy_variable("MASTER_ADDR", place->address, error)) return false;
    } else if (!comm_first_host(list, place->address, PLACE_TEXT)) {
        return error_set(error, ERROR_USAGE, "SLURM_STEP_NODELIST contains no host: set MASTER_ADDR to the host of rank 0");
    }
    return comm_read_number("MASTER_PORT", 1, 65535, &place->port, error);
}

/* -- torchrun and smelt launch ------------------------------------------------------------------------------------- */

static bool read_torchrun(Place *place, Error *error) {
    place->transport = COMM_TCP;
    place->port = 29500;
    if (!read_rank_variables("RANK", "WORLD_SIZE", place, error) ||
        !comm_read_number("LOCAL_RANK", 0, place->size - 1, &place->local_rank, error))
        return false;
    if (place->size > 1 && !present("MASTER_ADDR"))
        return error_set(error, ERROR_USAGE, "RANK and WORLD_SIZE are set, but MASTER_ADDR is not: set it to the host of rank 0");
    if (present("MASTER_ADDR") && !copy_variable("MASTER_ADDR", place->address, error)) return false;
    if (!comm_read_number("MASTER_PORT", 1, 65534, &place->port, error)) return false;
    /* torchrun's agent listens on the port itself. */
    if (present("TORCHELASTIC_USE_AGENT_STORE") && !strcmp(getenv("TORCHELASTIC_USE_AGENT_STORE"), "True")) place->port++;
    if (present("GROUP_RANK")) snprintf(place->node, sizeof place->node, "%.200s", getenv("GROUP_RANK"));
    return true;
}

/* -- mpirun -------------------------------------------------------------------------------------------------------- */

static bool read_mpi(Place *place, Error *error) {
    place->transport = COMM_MPI; /* MPI itself gives rank and size */
    place->size = 2;
    return comm_read_number("OMPI_COMM_WORLD_LOCAL_RANK", 0, INT_MAX, &place->local_rank, error);
}

/* -- The choice ---------------------------------------------------------------------------------------------------- */

static uint64_t job_of_environment(void) {
    static const char *const names[] = {"SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID"};
    char text[sizeof names / sizeof *names * PLACE_TEXT];
    size_t length = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        length += (size_t)snprintf(text + length, PLACE_TEXT, "%.200s/", present(names[i]) ? getenv(names[i]) : "");
    return hash_bytes(text, length);
}

bool place_find(CommTransport wanted, Place *place, Error *error) {
    *place = (Place){.size = 1, .local_rank = -1, .job = job_of_environment()};
    bool torchrun = present("WORLD_SIZE") && present("RANK"), mpi = present("OMPI_COMM_WORLD_SIZE"),
         slurm = present("SLURM_STEP_NUM_TASKS");
    bool found = true;
    if (gethostname(place->node, sizeof place->node - 1) != 0) place->node[0] = 0;
    if (wanted == COMM_MPI || (wanted == COMM_AUTO && mpi && !torchrun)) found = read_mpi(place, error);
    else if (torchrun) found = read_torchrun(place, error);
    else if (slurm) found = read_slurm(place, error);
    else if (wanted == COMM_TCP)
        return error_set(
            error, ERROR_USAGE, "TCP needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT: start with smelt launch, torchrun or srun");
    if (found && place->size == 1) place->transport = COMM_AUTO;
    return found;
}

int comm_started_ranks(void) {
    Place place;
    Error ignored = {0};
    bool known = place_find(COMM_AUTO, &place, &ignored);
    if (known && place.transport == COMM_MPI) known = comm_read_number("OMPI_COMM_WORLD_SIZE", 1, MOST_RANKS, &place.size, &ignored);
    return known ? place.size : 0;
}
