/* Forecasts. The programs are built and planned as for training, for one rank of each pipeline stage, on a description
 * of the processor, so memory is the planner's own and cannot drift from it. Time is that of the program's nodes in
 * their order at the processor's rates, with collectives beside them as the executor runs them, plus the optimizer, plus
 * what of the exchange of gradients and weights cannot hide. Owns nothing that outlives a call. */
#include "advise/forecast.h"

#include <math.h>

#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "config/layout_rules.h"

static const double hidden = 0.5; /* of the exchange of gradients and weights, behind computing, where there is enough of it */

double forecast_all_gather(const Cluster *cluster, double bytes) {
    Mesh mesh = mesh_alone;
    mesh.size[AXIS_DP] = (int)cluster->gpus;
    Traffic traffic = cluster_gather(&mesh, MESH(AXIS_DP), bytes);
    return cluster_seconds(cluster, &mesh, &traffic);
}

/* -- A microbatch -------------------------------------------------------------------------------------------------- */

/* One run of a program. Its collectives run one after the other beside its computing, each from its node on until the
 * node that waits for it. */
typedef struct ProgramTimes {
    WorkTimes work;
    double communication, waits;
} ProgramTimes;

static ProgramTimes time_program(const Graph *graph, const Cluster *cluster) {
    ProgramTimes times = {.work = work_times(graph, &cluster->hardware, cluster->measured)};
    SCOPED_FREE double *ready = memory_allocate((size_t)(graph->node_count + 1) * sizeof *ready); /* when what a node waits for has ended */
    double now = 0, free_at = 0, computing = 0;
    for (int i = 0; i <= graph->node_count; i++) {
        now = fmax(now, ready[i]);
        if (i == graph->node_count) break;
        const Node *node = &graph->nodes[i];
        const Op *op = op_table[node->op];
        if (op->once) continue;
        if (!work_is_collective(graph, node)) {
            Work work = work_of_node(graph, node);
            double seconds = work_seconds(&work, &cluster->hardware, cluster->measured);
            now += seconds;
            computing += seconds;
        }
        if (!op->communicates) continue;
        Traffic traffic = op->traffic(graph, node);
        double seconds = cluster_seconds(cluster, graph->mesh, &traffic), *end = &ready[graph_await(graph, i)];
        times.communication += seconds;
        free_at = fmax(now, free_at) + seconds;
        *end = fmax(*end, free_at);
    }
    times.waits = now - computing;
    return times;
}

/* -- The update ---------------------------------------------------------------------------------------------------- */

/* Of one Newton-Schulz step on a matrix: X X^T and its square at half cost, since they are symmetric, and the GEMM
 * that updates X (optim/muon.c). / */
static double newton_schulz_flops(double rows, double columns) {
    double order = fmin(rows, columns), other = fmax(rows, columns);
    return 3 * order * order * other + order * order * order;
}

/* Ranks that share out the updates of a parameter. */
static double sharing_ranks(const Session *session, const Parameter *p) {
    bool vector = graph_get(session->model.graph, p->tensor)->type == TYPE_WIDE;
    return session->layout->stage && !vector ? mesh_size(session->mesh, parameter_sum_axes(p) & ~MESH(AXIS_REPLICA)) : 1;
}

/* Reads and writes of an update for each parameter: gradient (once more for its norm), master, momentum, variance,
 * weight. */
static double optimizer_seconds(const Session *session, const Rates *rates) {
    const Graph *graph = session->model.graph;
    const OptimizerConfig *config = &session->config->optimizer;
    double compute = (double)precision_bytes(graph->precision, TYPE_COMPUTE), seconds = 0, steps = (double)config->newton_schulz_steps;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        double count = (double)p->count, sharing = sharing_ranks(session, p);
        if (p->frozen) continue;
        double bytes = count * (8 * (double)p->element_bytes + (graph->precision == PRECISION_BF16 ? compute : 0)), flops = 0;
        if (config->name == OPTIMIZER_MUON && p->kind == PARAMETER_MATRIX) {
            double rows = (double)p->shape[p->rank - 2], columns = (double)p->shape[p->rank - 1], stack = count / (rows * columns);
            flops = stack * steps * newton_schulz_flops(rows, columns);
            bytes += stack * steps * compute * (4 * rows * columns + 6 * pow(fmin(rows, columns), 2));
        }
        seconds += (flops / rates->muon + bytes / rates->optimizer) / sharing;
    }
    return seconds;
}

/* -- Gradients and weights ----------------------------------------------------------------------------------------- */

/* The larger part of what overlaps, but never more than the computing that it runs beside. */
static double exposed_part(double communication, double beside) { return communication - fmin(hidden * communication, beside); }

typedef struct ExchangeTimes { double communication, exposed; } ExchangeTimes;

static ExchangeTimes time_exchange(const Session *session, const Cluster *cluster, const WorkTimes *work, double count) {
    const Layout *layout = session->layout;
    double reduce = 0, gather = 0, backward = work->backward, forward = work->total - backward;
    for (int b = 0; b < layout->bucket_count; b++) {
        BucketTraffic traffic = traffic_of_bucket(layout, &layout->buckets[b], session->config->precision);
        reduce += cluster_seconds(cluster, layout->mesh, &traffic.reduce) + cluster_seconds(cluster, layout->mesh, &traffic.replicas);
        gather += cluster_seconds(cluster, layout->mesh, &traffic.gather);
    }
    if (layout->stage < 3) { /* 0, 1: of the last microbatch's gradients, 2: of each one's; then the new weights come back */
        double reduces = layout->stage < 2 ? 1 : count;
        return (ExchangeTimes){reduces * reduce + gather, reduces * exposed_part(reduce, backward) + exposed_part(gather, forward)};
    }
    return (ExchangeTimes){
        count * (reduce + 2 * gather), count * (exposed_part(gather, forward) + exposed_part(gather + reduce, backward))};
}

/* -- Layouts ------------------------------------------------------------------------------------------------------- */

Config forecast_apply(const Config *config, const ForecastLayout *layout) {
    Config applied = *config;
    applied.layout = layout->ranks;
    applied.batch.sequences = layout->sequences;
    applied.recompute = layout->recompute;
    return applied;
}

/* Stages between the second, which holds more microbatches than those behind it, and the last are like the second. */
static int next_stage(int stage, int stages) { return stage == 1 && stages > 3 ? stages - 1 : stage + 1; }

/* The bubble over the work of the busiest stage, as the schedule is simulated for planning; no stage's actions matter. */
static double idle_part(const PipelinePlan *plan) {
    PipelineSchedule *schedule = pipeline_schedule_create(&plan->shape, plan->costs, 0);
    double part = schedule->bubble / (schedule->length - schedule->bubble);
    pipeline_schedule_free(schedule);
    return part;
}

/* Takes in a stage, of which all wait for the slowest. */
static void add_stage(Forecast *forecast, const Session *session, const Cluster *cluster, int stage) {
    int alike = next_stage(stage, session->mesh->size[AXIS_PP]) - stage;
    double count = (double)forecast->microbatches;
    Budget memory = session_budget(session);
    ProgramTimes program = time_program(session->model.graph, cluster);
    ExchangeTimes exchange = time_exchange(session, cluster, &program.work, count);
    double optimizer = optimizer_seconds(session, &cluster->hardware.rates);
    if (memory.total > forecast->memory.total) {
        forecast->memory = memory;
        forecast->stage = stage;
    }
    if (session->pipeline && stage == 0) forecast->bubble = idle_part(session->pipeline);
    forecast->flops += alike * session->plan.flops * count; /* of all stages, until they are known */
    forecast->optimizer = fmax(forecast->optimizer, optimizer);
    forecast->exposed = fmax(forecast->exposed, exchange.exposed);
    if (stage > 0 && program.work.total + program.waits <= forecast->work.total + forecast->waits / count) return;
    forecast->work = program.work;
    forecast->waits = count * program.waits;
    forecast->communication = count * program.communication + exchange.communication;
    traffic_count(&forecast->traffic, session);
    forecast->mesh = *session->mesh;
}

static void finish(Forecast *forecast, const Config *config, const Cluster *cluster) {
    double count = (double)forecast->microbatches, stages = (double)config->layout.pp;
    forecast->memory.total += (int64_t)cluster->hardware.runtime;
    forecast->fits = cluster->hardware.memory <= 0 || (double)forecast->memory.total <= cluster->hardware.memory;
    forecast->bubble *= count * forecast->work.total + forecast->waits;
    forecast->step = count * forecast->work.total + forecast->waits + forecast->bubble + forecast->optimizer + forecast->exposed;
    forecast->tokens_per_second = forecast->tokens / forecast->step / (double)cluster->gpus;
    forecast->flops /= stages * forecast->step;
}

bool forecast_layout(Forecast *forecast, const Config *config, const Cluster *cluster, const ForecastLayout *layout, Error *error) {
    Config rank = forecast_apply(config, layout);
    LayoutConfig *ranks = &rank.layout;
    ranks->dp = int_max(cluster->gpus / layout_copy_ranks(ranks), 1);
    int64_t together = ranks->dp * ranks->ep, microbatch = layout->sequences * config->data.length, round = microbatch * together;
    *forecast =
        (Forecast){.layout = {*ranks, layout->recompute, layout->sequences}, .microbatches = divide_up(config->batch.tokens, round)};
    forecast->tokens = (double)forecast->microbatches * (double)round;
    rank.batch.tokens = forecast->microbatches * round;
    Device *device = hardware_device(&cluster->hardware);
    bool planned = true;
    for (int stage = 0; stage < ranks->pp && planned; stage = next_stage(stage, (int)ranks->pp)) {
        SCOPED(session_free) Session session = {0};
        int first = stage * (int)(ranks->cp * ranks->ep * ranks->tp);
        planned = session_plan_rank(&session, &rank, device, first, (int)cluster->gpus, error);
        if (planned) add_stage(forecast, &session, cluster, stage);
    }
    device_close(device);
    if (planned) finish(forecast, &rank, cluster);
    return planned;
}
