/* Plans and rehearses each different program of a layout, and replays all ranks. Copies of the model
 * differ only in their data, so the first copy has all programs. Owns traces and sessions during a
 * call. */
#include "advise/simulate.h"

#include <math.h>
#include <stdlib.h>

#include "advise/forecast_internal.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "config/layout_rules.h"
#include "session/rehearsal.h"

/* Compute loses half of the seconds of hidden transfers of gradients and weights: a forecast hides
 * half of them. */
static const double interference = 0.5;

/* The rate of one copy of offload over Hardware.host_link, which is that of whole updates: their portions
 * have different sizes, so one direction of the link is often idle. Fitted to the four rows of 8B in
 * docs/finetune.md, which are then within 3%. */
static const double link_part = 1.3;

typedef struct Simulating {
    SimulatedRun *simulation;
    const Config *config; /* of a rank */
    const Cluster *cluster;
    const Topology *topology;
    Trace *traces;         /* by program */
    const Trace **by_rank; /* the trace of each rank */
    bool slow;             /* with the slow node */
    Progress progress;
} Simulating;

/* -- Times --------------------------------------------------------------------------------------------------------- */

static double simulated_work(void *context, int rank, double seconds) {
    const Simulating *simulating = context;
    const Cluster *cluster = simulating->cluster;
    bool slow = simulating->slow && rank / cluster->per_node == simulating->topology->slow.node;
    return seconds * (cluster->gpus > 1 ? 1 + forecast_skew : 1) * (slow ? simulating->topology->slow.factor : 1);
}

static double simulated_transfer(void *context, const ReplayTransfer *transfer) {
    const Simulating *simulating = context;
    const TraceCall *call = transfer->call;
    double bytes = trace_sent_bytes(transfer->trace, call), seconds;
    if (call->host) return 0;
    if (transfer->to >= 0) {
        int64_t count = call->to >= 0 ? call->sent : call->count;
        seconds = topology_message_seconds(
            simulating->topology, simulating->cluster, transfer->from, transfer->to, (double)(count * trace_type_bytes(call->type)));
    } else {
        Traffic traffic = {.axes = transfer->axes, .bytes = bytes, .pairwise = call->operation == ALL_TO_ALL};
        seconds = cluster_seconds(simulating->cluster, &simulating->simulation->mesh, &traffic);
    }
    return call->joined && seconds > simulating->cluster->hardware.latency ? seconds - simulating->cluster->hardware.latency : seconds;
}

static void show_replay_progress(void *context, double part) {
    Simulating *simulating = context;
    progress_update(&simulating->progress, (int64_t)(part * (double)simulating->progress.total));
}

/* Returns the seconds of one run of each node, for the caller to free. */
static double *time_nodes(const Session *session, const Cluster *cluster) {
    const Graph *graph = session->training.model.graph;
    double *seconds = memory_allocate((size_t)(graph->node_count + 1) * sizeof *seconds);
    for (int i = 0; i < graph->node_count; i++) {
        Work work = work_of_node(graph, &graph->nodes[i]);
        if (!work_is_collective(graph, &graph->nodes[i])) seconds[i] = work_seconds(&work, &cluster->hardware, cluster->measured);
    }
    return seconds;
}

/* Returns the seconds of each bucket's update, for the caller to free. */
static double *time_updates(const Session *session, const Rates *rates) {
    const Layout *layout = session->layout;
    const Graph *graph = session->training.model.graph;
    double *seconds = memory_allocate((size_t)(layout->bucket_count + 1) * sizeof *seconds);
    for (int i = 0; i < graph->parameter_count; i++)
        seconds[layout_bucket_at(layout, graph->parameters[i].offset)] += forecast_rank_update(session, i, rates);
    return seconds;
}

/* -- Programs ------------------------------------------------------------------------------------------------------ */

enum { REHEARSED_STEPS = 2 }; /* the first step leaves transfers running, with which the second one begins */

static bool rehearse_rank(const Simulating *simulating, Device *device, int rank, Error *error) {
    const Cluster *cluster = simulating->cluster;
    SimulatedRun *simulation = simulating->simulation;
    SCOPED(session_free) Session session = {0};
    if (!session_plan_rank(&session, simulating->config, device, rank, (int)cluster->gpus, error)) return false;
    SCOPED_FREE double *nodes = time_nodes(&session, cluster), *updates = time_updates(&session, &cluster->hardware.rates);
    const RehearsalTimes times = {nodes, updates};
    Budget budget = session_budget(&session);
    simulation->state = fmax(simulation->state, (double)(budget.master + budget.optimizer));
    simulation->mesh = *session.mesh;
    return session_rehearse(&session, &times, REHEARSED_STEPS, &simulating->traces[rank], error);
}

static bool rehearse_programs(const Simulating *simulating, Error *error) {
    const Cluster *cluster = simulating->cluster;
    SimulatedRun *simulation = simulating->simulation;
    Device *device = hardware_device(&cluster->hardware);
    Progress progress = progress_start("planning", "programs", simulation->programs);
    bool done = true;
    for (int i = 0; i < simulation->programs && done; i++) {
        done = rehearse_rank(simulating, device, i, error);
        progress_update(&progress, i + 1);
        simulation->calls += cluster->gpus / simulation->programs * simulating->traces[i].call_count / REHEARSED_STEPS;
    }
    progress_finish(&progress);
    device_close(device);
    return done;
}

/* -- The step ------------------------------------------------------------------------------------------------------ */

static bool replay_step(Simulating *simulating, bool slow, ReplayResult *result, Error *error) {
    const ReplayRun run = {.mesh = &simulating->simulation->mesh,
        .traces = simulating->by_rank,
        .one_queue = simulating->cluster->hardware.host_memory,
        .work = simulated_work,
        .transfer = simulated_transfer,
        .progress = show_replay_progress,
        .context = simulating,
        .copy_rate = link_part * simulating->cluster->hardware.host_link,
        .interference = interference};
    simulating->slow = slow;
    simulating->progress = progress_start("replaying", "events", 1000);
    bool done = replay_run(&run, result, error);
    progress_finish(&simulating->progress);
    return done;
}

static void free_traces(Trace *traces, int count) {
    for (int i = 0; i < count; i++) trace_free(&traces[i]);
    free(traces);
}

bool simulate_layout(SimulatedRun *simulation, const Config *config, const Cluster *cluster, const Topology *topology,
    const ForecastLayout *layout, Error *error) {
    int64_t microbatches;
    double start = log_seconds();
    Config rank_config = forecast_rank(config, cluster, layout, &microbatches);
    *simulation = (SimulatedRun){.programs = (int)layout_copy_ranks(&rank_config.layout)};
    Trace *traces = memory_allocate((size_t)simulation->programs * sizeof *traces);
    SCOPED_FREE const Trace **by_rank = memory_allocate((size_t)cluster->gpus * sizeof *by_rank);
    for (int64_t rank = 0; rank < cluster->gpus; rank++) by_rank[rank] = &traces[rank % simulation->programs];
    Simulating simulating = {
        .simulation = simulation, .config = &rank_config, .cluster = cluster, .topology = topology, .traces = traces, .by_rank = by_rank};
    bool done = rehearse_programs(&simulating, error) && replay_step(&simulating, false, &simulation->step, error) &&
                (topology->slow.node < 0 || replay_step(&simulating, true, &simulation->slow, error));
    free_traces(traces, simulation->programs);
    simulation->seconds = log_seconds() - start;
    return done;
}

void simulation_free(SimulatedRun *simulation) {
    free(simulation->step.ranks);
    free(simulation->slow.ranks);
    *simulation = (SimulatedRun){0};
}
