/* Forecasts. The programs are built and planned as for training, for one rank of each pipeline
 * stage, on a description of the processor, so the forecast's memory is always the planner's. The
 * time is the sum of the program's nodes in order at the processor's rates, with collectives
 * running concurrently as in the executor, plus the optimizer, plus the part of the exchange of
 * gradients and weights that compute cannot hide. Owns nothing that outlives a call. */
#include "advise/forecast_internal.h"

#include <math.h>

#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "config/layout_rules.h"
#include "ops/attention/attention.h"

const double forecast_skew = 0.03; /* fraction of compute time that ranks wait for the slowest rank (docs/forecast.md) */
static const double hidden = 0.5;  /* fraction of the exchange of gradients and weights that compute hides, if there is enough compute */

/* -- A microbatch -------------------------------------------------------------------------------------------------- */

/* Returns the time of a node on the rank with the most rows for its experts, divided by its time with an even load. */
static double load_of_experts(const Graph *graph, const Node *node, WorkClass class, const RoutedExperts *routed) {
    bool uneven = class == WORK_EXPERTS || class == WORK_EXPERT_WEIGHTS || node->op == OP_moe_send || node->op == OP_moe_send_back;
    return uneven ? routed_load(routed, node->layer, mesh_size(graph->mesh, AXES_EXPERTS)) : 1;
}

/* Adds seconds to those of a node's class. */
static void lengthen_work(WorkTimes *times, const Node *node, WorkClass class, double seconds) {
    times->seconds[class] += seconds;
    times->total += seconds;
    if (node->backward) times->backward += seconds;
}

ProgramTimes forecast_program(const Graph *graph, const Cluster *cluster) {
    ProgramTimes times = {.work = work_times(graph, &cluster->hardware, cluster->measured)};
    SCOPED_FREE double *ready = memory_allocate((size_t)(graph->node_count + 1) * sizeof *ready); /* when a node's input is complete */
    double now = 0, free_at = 0, computing = 0;
    for (int i = 0; i <= graph->node_count; i++) {
        now = fmax(now, ready[i]);
        if (i == graph->node_count) break;
        const Node *node = &graph->nodes[i];
        const Op *op = op_table[node->op];
        double start = now;
        if (op->once || op_runs_once_a_step(graph, node)) continue;
        Work work = work_of_node(graph, node);
        double load = load_of_experts(graph, node, work.class, cluster->routed);
        if (!work_is_collective(graph, node)) {
            double seconds = work_seconds(&work, &cluster->hardware, cluster->measured);
            lengthen_work(&times.work, node, work.class, (load - 1) * seconds);
            now += load * seconds;
            computing += load * seconds;
        }
        if (!op->communicates) continue;
        Traffic traffic = op->traffic(graph, node);
        traffic.bytes *= load;
        double messages = (double)ring_messages(graph, node), *end = &ready[graph_await(graph, i)];
        double seconds =
            messages > 0 ? cluster_ring_seconds(cluster, graph->mesh, &traffic, messages) : cluster_seconds(cluster, graph->mesh, &traffic);
        times.communication += seconds;
        free_at = fmax(messages > 0 ? start : now, free_at) + seconds;
        double last =
            messages > 0 ? (now - start) / mesh_size(graph->mesh, traffic.axes) : 0; /* a ring computes its last block at the end */
        *end = fmax(*end, free_at + last);
    }
    times.waits = now - computing;
    return times;
}

/* -- The update ---------------------------------------------------------------------------------------------------- */

/* Returns the FLOPs of one Newton-Schulz step on a matrix: X X^T and its square at half cost, since
 * both are symmetric, and the GEMM that updates X (optim/muon.c). */
static double newton_schulz_flops(double rows, double columns) {
    double order = fmin(rows, columns), other = fmax(rows, columns);
    return 3 * order * order * other + order * order * order;
}

/* Returns the number of ranks that share the updates of a parameter. */
static double sharing_ranks(const Session *session, const Parameter *p) {
    bool vector = graph_get(session->training.model.graph, p->tensor)->type == TYPE_WIDE;
    return session->layout->stage && !vector ? mesh_size(session->mesh, parameter_sum_axes(p) & ~MESH(AXIS_REPLICA)) : 1;
}

/* Returns the seconds of the optimizer's update of `p`. It reads or writes gradient, master
 * weights, states and weights, and reads the gradient once more for the norm. */
double forecast_update(const Graph *graph, const Parameter *p, const OptimizerConfig *config, const Rates *rates) {
    double compute = (double)precision_bytes(graph->precision, TYPE_COMPUTE), steps = (double)config->newton_schulz_steps;
    double count = (double)p->count,
           bytes = count * (optimizer_moves(config, p) * (double)p->element_bytes + (graph->precision == PRECISION_BF16 ? compute : 0));
    double flops = 0;
    if (p->frozen) return 0;
    if (optimizer_takes_matrices(config, p)) {
        double rows = (double)p->shape[p->rank - 2], columns = (double)p->shape[p->rank - 1], stack = count / (rows * columns);
        for (int i = 0; i < p->projections; i++) {
            double own = rows * (double)p->projection_rows[i] / (double)p->whole[p->rank - 2];
            flops += stack * steps * newton_schulz_flops(own, columns);
            bytes += stack * steps * compute * (4 * own * columns + 6 * pow(fmin(own, columns), 2));
        }
    }
    return flops / rates->muon + bytes / rates->optimizer;
}

double forecast_rank_update(const Session *session, int parameter, const Rates *rates) {
    const Graph *graph = session->training.model.graph;
    const Parameter *p = &graph->parameters[parameter];
    return forecast_update(graph, p, &session->config->optimizer, rates) / sharing_ranks(session, p);
}

static double optimizer_seconds(const Session *session, const Rates *rates) {
    double seconds = 0;
    for (int i = 0; i < session->training.model.graph->parameter_count; i++) seconds += forecast_rank_update(session, i, rates);
    return seconds;
}

/* -- Gradients and weights ----------------------------------------------------------------------------------------- */

/* Returns the part of communication that compute does not hide. At most the fraction `hidden`
 * overlaps, and at most the compute that runs concurrently. */
static double exposed_part(double communication, double beside) { return communication - fmin(hidden * communication, beside); }

ExchangeTimes forecast_exchange(
    const Layout *layout, Precision precision, const Cluster *cluster, double forward, double backward, double count) {
    double reduce = 0, gather = 0, reduces = traffic_reductions(layout, count);
    for (int b = 0; b < layout->bucket_count; b++) {
        BucketTraffic traffic = traffic_of_bucket(layout, &layout->buckets[b], precision);
        reduce += cluster_seconds(cluster, layout->mesh, &traffic.reduce) + cluster_seconds(cluster, layout->mesh, &traffic.replicas);
        gather += cluster_seconds(cluster, layout->mesh, &traffic.gather);
    }
    if (layout->stage < 3) /* the new weights return once */
        return (ExchangeTimes){reduces * reduce + gather, reduces * exposed_part(reduce, backward) + exposed_part(gather, forward)};
    return (ExchangeTimes){reduces * reduce + 2 * count * gather, count * exposed_part(gather, forward) +
                                                                      reduces * exposed_part(gather + reduce, backward) +
                                                                      (count - reduces) * exposed_part(gather, backward)};
}

/* Seconds of work that copies overlap: of a microbatch's passes, and of a step's update. */
typedef struct OffloadTimes { double forward, backward, update; } OffloadTimes;

/* Returns the seconds per step of offload's copies that nothing hides. Copies in opposite directions do
 * not slow each other. A step copies all optimizer state to the device and back; the update hides these
 * copies, and with in_backward so does the backward pass. Each of `count` microbatches copies its saved
 * activations to the host during the forward pass, and back during the backward pass. */
static double exposed_copies(const Session *session, const Hardware *hardware, const OffloadTimes *times, double count) {
    Budget memory = session_budget(session);
    if (hardware->host_link <= 0) return 0;
    double state = (double)memory.hosted / hardware->host_link, saved = (double)memory.saved / hardware->host_link;
    double stowing = count * fmax(0, saved - times->forward);
    if (session->layout->in_backward) return stowing + fmax(0, state + saved - times->update - times->backward);
    return stowing + fmax(0, state - times->update) + count * fmax(0, saved - times->backward);
}

/* -- Layouts ------------------------------------------------------------------------------------------------------- */

Config forecast_apply(const Config *config, const ForecastLayout *layout) {
    Config applied = *config;
    applied.layout = layout->ranks;
    applied.batch.sequences = layout->sequences;
    applied.recompute = layout->recompute;
    return applied;
}

static double stage_flops(const PipelinePlan *plan, int stage) { return pipeline_stage_cost(plan, stage).flops; }

/* Returns the next stage to evaluate. A middle stage with no more layers than an earlier one also
 * keeps no more microbatches, so it is skipped. */
static int next_stage(const PipelinePlan *plan, int stage) {
    int next = stage + 1;
    while (plan && stage > 0 && next < plan->shape.stages - 1 && stage_flops(plan, next) <= stage_flops(plan, stage)) next++;
    return next;
}

/* Returns the bubble as a fraction of the busiest stage's work. The schedule is simulated as in
 * planning, without a list of actions. */
static double idle_part(const PipelinePlan *plan) {
    PipelineSchedule *schedule = pipeline_schedule_create(&plan->shape, plan->costs, PIPELINE_NO_STAGE);
    double part = schedule->bubble / (schedule->length - schedule->bubble);
    pipeline_schedule_free(schedule);
    return part;
}

/* Adds a stage to the forecast; all stages wait for the slowest. */
static void add_stage(Forecast *forecast, const Session *session, const Cluster *cluster, int stage) {
    const PipelinePlan *pipeline = session->pipeline;
    double count = (double)forecast->microbatches;
    Budget memory = session_budget(session);
    ProgramTimes program = forecast_program(session->training.model.graph, cluster);
    double backward = program.work.backward, forward = program.work.total - backward;
    ExchangeTimes exchange = forecast_exchange(session->layout, session->config->precision, cluster, forward, backward, count);
    double optimizer = optimizer_seconds(session, &cluster->hardware.rates);
    if (memory.total > forecast->memory.total) {
        forecast->memory = memory;
        forecast->stage = stage;
    }
    if (pipeline && stage == 0) forecast->bubble = idle_part(pipeline);
    for (int like = stage; like < next_stage(pipeline, stage); like++) /* of all stages so far */
        forecast->flops +=
            session->training.plan.flops * count * (pipeline ? stage_flops(pipeline, like) / stage_flops(pipeline, stage) : 1);
    forecast->optimizer = fmax(forecast->optimizer, optimizer);
    forecast->exposed = fmax(forecast->exposed, exchange.exposed);
    forecast->offload =
        fmax(forecast->offload, exposed_copies(session, &cluster->hardware, &(OffloadTimes){forward, backward, optimizer}, count));
    if (stage > 0 && program.work.total + program.waits <= forecast->work.total + forecast->waits / count) return;
    forecast->work = program.work;
    forecast->waits = count * program.waits;
    forecast->communication = count * program.communication + exchange.communication;
    traffic_count(&forecast->traffic, session);
    forecast->mesh = *session->mesh;
}

static void finish_forecast(Forecast *forecast, const Config *config, const Cluster *cluster) {
    double count = (double)forecast->microbatches, stages = (double)config->layout.pp;
    forecast->memory.total += (int64_t)cluster->hardware.runtime;
    forecast->fits = cluster->hardware.memory <= 0 || (double)forecast->memory.total <= cluster->hardware.memory;
    if (cluster->gpus > 1) forecast->waits += forecast_skew * count * forecast->work.total;
    forecast->bubble *= count * forecast->work.total + forecast->waits;
    forecast->step = count * forecast->work.total + forecast->work.once + forecast->waits + forecast->bubble + forecast->optimizer +
                     forecast->offload + forecast->exposed;
    forecast->tokens_per_second = forecast->tokens / forecast->step / (double)cluster->gpus;
    double busy = forecast->tokens / (double)config->batch.tokens; /* copies without a microbatch compute nothing */
    forecast->flops *= busy / (stages * forecast->step);
}

Config forecast_rank(const Config *config, const Cluster *cluster, const ForecastLayout *layout, int64_t *microbatches) {
    Config rank = forecast_apply(config, layout);
    LayoutConfig *ranks = &rank.layout;
    ranks->dp = int_max(cluster->gpus / layout_copy_ranks(ranks), 1);
    int64_t round = layout->sequences * config->data.length * ranks->dp * ranks->ep;
    *microbatches = divide_up(config->batch.tokens, round);
    rank.batch.tokens = *microbatches * round;
    return rank;
}

bool forecast_layout(Forecast *forecast, const Config *config, const Cluster *cluster, const ForecastLayout *layout, Error *error) {
    int64_t microbatches;
    Config rank = forecast_rank(config, cluster, layout, &microbatches);
    const LayoutConfig *ranks = &rank.layout;
    *forecast = (Forecast){.layout = {*ranks, layout->recompute, layout->sequences}, .microbatches = microbatches};
    forecast->tokens = (double)config->batch.tokens;
    forecast->copies = ranks->dp * ranks->ep;
    forecast->idle = (rank.batch.tokens - config->batch.tokens) / (layout->sequences * config->data.length);
    Device *device = hardware_device(&cluster->hardware);
    bool planned = true;
    for (int stage = 0; stage < ranks->pp && planned;) {
        SCOPED(session_free) Session session = {0};
        int first = stage * (int)(ranks->cp * ranks->ep * ranks->tp);
        planned = session_plan_rank(&session, &rank, device, first, (int)cluster->gpus, error);
        if (!planned) break;
        add_stage(forecast, &session, cluster, stage);
        stage = next_stage(session.pipeline, stage);
    }
    device_close(device);
    if (planned) finish_forecast(forecast, &rank, cluster);
    return planned;
}
