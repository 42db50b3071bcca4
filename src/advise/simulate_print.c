/* Prints a simulation: the step beside its forecast, the parts of its time on an average rank, what
 * limits it, a slow node and a lost rank. Owns nothing. */
#include "advise/simulate.h"

#include <string.h>

#include "advise/forecast_internal.h"
#include "advise/traffic.h"
#include "base/log.h"
#include "base/math.h"

/* A row of the table: an operation over the groups of some axes, on an average rank. */
typedef struct SimulatedRow {
    char name[64];
    double transfer, exposed, waiting, bytes, count; /* seconds; bytes sent; calls */
} SimulatedRow;

enum { MOST_ROWS = 64 };
typedef struct SimulatedParts {
    SimulatedRow rows[MOST_ROWS];
    int count;
    double work, most_work, interference, meeting, copies, exposed,
        waiting; /* seconds of an average rank; most_work: of the busiest rank */
} SimulatedParts;

static SimulatedRow *row_of(SimulatedParts *parts, const Mesh *mesh, const char *group, Operation operation) {
    char name[64], axes[32];
    bool ends = !strcmp(group, "ends");
    traffic_name_axes(mesh, ends ? MESH(AXIS_PP) : mesh_find_axes(mesh, group) & AXES_ALL, axes, sizeof axes);
    snprintf(name, sizeof name, "%s over %s", operation_name(operation), axes);
    int i = 0;
    while (i < parts->count && strcmp(parts->rows[i].name, name)) i++;
    if (i == MOST_ROWS) return NULL;
    if (i == parts->count) snprintf(parts->rows[parts->count++].name, sizeof name, "%s", name);
    return &parts->rows[i];
}

static void add_share(SimulatedParts *parts, const Mesh *mesh, const ReplayResult *result, int share, double ranks) {
    double transfer = 0, exposed = 0, waiting = 0, bytes = 0, count = 0;
    for (int rank = 0; rank < (int)ranks; rank++) {
        const ReplayShare *own = &result->ranks[rank].shares[share];
        transfer += own->transfer / ranks, exposed += own->exposed / ranks, waiting += own->waiting / ranks;
        bytes += own->bytes / ranks, count += (double)own->count / ranks;
    }
    SimulatedRow *row = count > 0 ? row_of(parts, mesh, result->name[share / REPLAY_OPERATIONS], share % REPLAY_OPERATIONS) : NULL;
    if (!row) return;
    row->transfer += transfer, row->exposed += exposed, row->waiting += waiting, row->bytes += bytes, row->count += count;
    parts->exposed += exposed, parts->waiting += waiting;
}

static SimulatedParts sum_simulated_parts(const SimulatedRun *simulation, const ReplayResult *result) {
    SimulatedParts parts = {0};
    int ranks = mesh_size(&simulation->mesh, AXES_ALL);
    for (int rank = 0; rank < ranks; rank++) {
        const ReplayRank *own = &result->ranks[rank];
        parts.work += own->work / ranks;
        if (own->work > parts.most_work) parts.most_work = own->work;
        parts.interference += own->interference / ranks;
        parts.meeting += own->meeting / ranks;
        parts.copies += own->copies / ranks;
    }
    for (int share = 0; share < result->names * REPLAY_OPERATIONS; share++) add_share(&parts, &simulation->mesh, result, share, ranks);
    return parts;
}

static void print_part(FILE *file, const char *name, double seconds, double step) {
    if (seconds > 5e-8) fprintf(file, "  %-42s %9.1f ms %6.1f%%\n", name, 1e3 * seconds, 100 * seconds / step);
}

static void print_simulated_parts(const SimulatedParts *parts, double step, FILE *file) {
    fprintf(file, "time of a step, of an average rank\n");
    print_part(file, "compute and update", parts->work, step);
    print_part(file, "compute beside transfers, slower", parts->interference, step);
    print_part(file, "transfers, not hidden", parts->exposed, step);
    print_part(file, "copies of offload, not hidden", parts->copies, step);
    print_part(file, "waiting for other ranks or stages", parts->waiting, step);
    print_part(file, "waiting at the end of the step", parts->meeting, step);
    print_part(file, "step", step, step);
    fprintf(file, "\n");
}

static void print_rows(const SimulatedParts *parts, FILE *file) {
    if (parts->count) fprintf(file, "collectives of an average rank         number      sends  transfer   exposed   waiting\n");
    for (int i = 0; i < parts->count; i++) {
        const SimulatedRow *row = &parts->rows[i];
        char bytes[32];
        log_format_bytes(row->bytes, bytes);
        fprintf(file, "  %-34s %8.0f %10s %9.4f %9.4f %9.4f\n", row->name, row->count, bytes, row->transfer, row->exposed, row->waiting);
    }
    if (parts->count) fprintf(file, "\n");
}

/* Names the largest parts of the step. */
static void print_limits(const SimulatedParts *parts, const Forecast *forecast, double step, FILE *file) {
    const SimulatedRow *exposed = NULL, *waiting = NULL;
    int class = 0;
    for (int i = 1; i < WORK_CLASSES; i++)
        if (forecast->work.seconds[i] > forecast->work.seconds[class]) class = i;
    for (int i = 0; i < parts->count; i++) {
        if (!exposed || parts->rows[i].exposed > exposed->exposed) exposed = &parts->rows[i];
        if (!waiting || parts->rows[i].waiting > waiting->waiting) waiting = &parts->rows[i];
    }
    fprintf(file, "what limits it: compute is %.1f%% of the step (%s %.1f%% of compute)", 100 * parts->work / step,
        work_class_name((WorkClass)class), 100 * forecast->work.seconds[class] / forecast->work.total);
    if (exposed && exposed->exposed > 0)
        fprintf(file, "; the longest exposed transfer is %s, %.1f%%", exposed->name, 100 * exposed->exposed / step);
    if (waiting && waiting->waiting > 0)
        fprintf(file, "; the longest waiting is in %s, %.1f%%", waiting->name, 100 * waiting->waiting / step);
    if (parts->most_work > 1.005 * parts->work)
        fprintf(file, "; the busiest rank computes %.1f%% longer than the average one", 100 * (parts->most_work / parts->work - 1));
    fprintf(file, "\n\n");
}

static void print_slow(const SimulatedRun *simulation, const Topology *topology, FILE *file) {
    if (topology->slow.node < 0) return;
    SimulatedParts parts = sum_simulated_parts(simulation, &simulation->slow);
    double step = simulation->slow.step;
    fprintf(file, "node %lld slower by %.0f%%: a step of %.1f ms, %+.1f%%; an average rank waits %.1f%% of it for others\n",
        (long long)topology->slow.node, 100 * (topology->slow.factor - 1), 1e3 * step, 100 * (step / simulation->step.step - 1),
        100 * (parts.waiting + parts.meeting) / step);
}

static void print_lost(const SimulatedRun *simulation, const Config *config, const Cluster *cluster, const Topology *topology, FILE *file) {
    char bytes[32], sum[32], rank[96];
    if (topology->lost.rank < 0) return;
    double steps = topology_repeated_steps(topology, config->checkpoint.every, config->steps);
    double local = (double)int_min(cluster->per_node, cluster->gpus), state = local * simulation->state;
    double reading = state / (1e9 * topology->storage), again = steps * simulation->step.step;
    double all = topology->lost.detect + topology->lost.start + reading + again;
    mesh_describe_rank(&simulation->mesh, (int)topology->lost.rank, rank, sizeof rank);
    log_format_bytes(state, bytes);
    log_format_duration(all, sum);
    fprintf(file,
        "%s is lost %.0f steps after a checkpoint: %.0f s until it is noticed, %.0f s to start, %.0f s to read %s a node, %.0f s for the "
        "steps again: %s\n",
        rank, steps, topology->lost.detect, topology->lost.start, reading, bytes, again, sum);
}

void simulation_print(const SimulatedRun *simulation, const Forecast *forecast, const Config *config, const Cluster *cluster,
    const Topology *topology, FILE *file) {
    SimulatedParts parts = sum_simulated_parts(simulation, &simulation->step);
    double step = simulation->step.step;
    char calls[32];
    log_format_count((double)simulation->calls, calls);
    fprintf(file, "\nsimulated, not measured: %lld ranks with %d different program%s on a virtual clock (%.1f s on this machine)\n",
        (long long)cluster->gpus, simulation->programs, simulation->programs == 1 ? "" : "s", simulation->seconds);
    fprintf(file, "order of collectives: checked on every rank, %s in a step; none differs or deadlocks\n\n", calls);
    print_simulated_parts(&parts, step, file);
    print_rows(&parts, file);
    print_limits(&parts, forecast, step, file);
    fprintf(file, "step %.1f ms, forecast %.1f ms (%+.1f%%); tokens/s of a GPU %.0f, forecast %.0f\n", 1e3 * step, 1e3 * forecast->step,
        100 * (step / forecast->step - 1), forecast->tokens / step / (double)cluster->gpus, forecast->tokens_per_second);
    print_slow(simulation, topology, file);
    print_lost(simulation, config, cluster, topology, file);
    fprintf(file,
        "- assumptions of the simulation: those of the forecast; ranks compute %.0f%% longer than alone; a transfer of gradients or "
        "weights beside compute costs half of its time; transfers on different streams do not slow each other; the host's own "
        "collectives take no time\n",
        100 * forecast_skew);
}
