/* Forecasts. The program is built and planned as for training, on a description of the processor, so memory is the
 * planner's own and cannot drift from it; time is the sum over the program's nodes at the processor's rates, plus
 * the optimizer, plus what of the collectives cannot hide. Owns nothing that outlives a call. */
#include "advise/forecast.h"

#include <math.h>

#include "base/math.h"

static const double bucket = 256 << 20;   /* bytes of one collective: large ones reach the measured bandwidth */
static const double latency = 50e-6;      /* of one over a node: AMD's all-reduces on 8 MI300X beyond bytes / bandwidth */
static const double node_latency = 10e-6; /* more, each time that the nodes double */
static const double usual_link = 0.72;    /* of a link's peak without a measurement: H200 0.78, MI300X 0.70 */
static const double network_part = 0.94;  /* of a card's rate: RCCL's send and receive over 400 Gb/s cards */
static const double hidden = 0.5;         /* of collectives, behind computing, where there is enough of it */

/* -- Collectives --------------------------------------------------------------------------------------------------- */

/* Links that join GPUs one to one are of use only to the others that take part; a switch gives all of it to any two. */
double forecast_node_bandwidth(const Cluster *cluster) {
    const Hardware *hardware = &cluster->hardware;
    int64_t local = int_min(cluster->per_node, cluster->gpus);
    double whole = hardware->best_link > 0 ? hardware->best_link : usual_link * hardware->link;
    return hardware->switched || hardware->per_node < 2 ? whole : whole * (double)(local - 1) / (hardware->per_node - 1);
}

/* Inside and between nodes at the same time, since collectives are pipelined: every GPU passes on (n - 1) / n of the
 * bytes over its links, and of what the GPUs of a node share out among their cards, its own part. The 330 to 350
 * GB/s of 16 MI300X on two nodes come out of it. */
double forecast_all_gather(const Cluster *cluster, double bytes) {
    if (cluster->gpus <= 1) return 0;
    double gpus = (double)cluster->gpus, inside = 0, between = 0;
    int64_t local = int_min(cluster->per_node, cluster->gpus), nodes = divide_up(cluster->gpus, local);
    if (local > 1) inside = bytes * (gpus - 1) / gpus / forecast_node_bandwidth(cluster);
    if (nodes > 1) between = bytes / (double)local * (double)(nodes - 1) / (double)nodes / (network_part * cluster->hardware.network);
    return fmax(inside, between) + ceil(bytes / bucket) * (latency + node_latency * log2((double)nodes));
}

/* -- Time ---------------------------------------------------------------------------------------------------------- */

/* Of one Newton-Schulz step on a matrix: X X^T and its square at half cost, since they are symmetric, and the GEMM
 * that updates X (optim/muon.c). / */
static double newton_schulz_flops(double rows, double columns) {
    double order = fmin(rows, columns), other = fmax(rows, columns);
    return 3 * order * order * other + order * order * order;
}

/* Reads and writes of an update for each parameter: gradient (once more for its norm), master, momentum, variance,
 * weight. */
static double optimizer_seconds(const Session *session, const Cluster *cluster, int zero) {
    const Graph *graph = session->model.graph;
    const OptimizerConfig *config = &session->config->optimizer;
    double compute = (double)precision_bytes(graph->precision, TYPE_COMPUTE);
    double bytes = 0, flops = 0, steps = (double)config->newton_schulz_steps;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        double count = (double)p->count;
        if (p->frozen) continue;
        bytes += count * (8 * (double)p->element_bytes + (graph->precision == PRECISION_BF16 ? compute : 0));
        if (config->name != OPTIMIZER_MUON || p->kind != PARAMETER_MATRIX) continue;
        double rows = (double)p->shape[p->rank - 2], columns = (double)p->shape[p->rank - 1], stack = count / (rows * columns);
        flops += stack * steps * newton_schulz_flops(rows, columns);
        bytes += stack * steps * compute * (4 * rows * columns + 6 * pow(fmin(rows, columns), 2));
    }
    const Rates *rates = &cluster->hardware.rates;
    double seconds = flops / rates->muon + bytes / rates->optimizer;
    return zero >= 1 ? seconds / (double)cluster->gpus : seconds;
}

/* The larger part of what overlaps, but never more than the computing that it runs beside. */
static double exposed_part(double communication, double beside) { return communication - fmin(hidden * communication, beside); }

static void add_communication(Forecast *forecast, const Session *session, const Cluster *cluster) {
    const Graph *graph = session->model.graph;
    double gradients = (double)graph->trained_bytes, weights = (double)precision_weight_offset(graph->precision, graph->trained_bytes);
    double count = (double)forecast->microbatches;
    double reduce = forecast_all_gather(cluster, gradients), gather = forecast_all_gather(cluster, weights);
    double backward = forecast->work.backward, forward = forecast->work.total - backward;
    int zero = forecast->layout.zero;
    if (zero == 0) { /* of the last microbatch's gradients, whose sums come back */
        forecast->communication = 2 * reduce;
        forecast->exposed = exposed_part(2 * reduce, backward);
    } else if (zero < 3) { /* 1: of the last microbatch's, 2: of each one's; then the new weights come back */
        double reduces = zero == 1 ? 1 : count;
        forecast->communication = reduces * reduce + gather;
        forecast->exposed = reduces * exposed_part(reduce, backward) + exposed_part(gather, forward);
    } else {
        forecast->communication = count * (reduce + 2 * gather);
        forecast->exposed = count * (exposed_part(gather, forward) + exposed_part(gather + reduce, backward));
    }
}

static void add_time(Forecast *forecast, const Session *session, const Cluster *cluster) {
    const Hardware *hardware = &cluster->hardware;
    forecast->work = work_times(session->model.graph, hardware, cluster->measured);
    forecast->optimizer = optimizer_seconds(session, cluster, forecast->layout.zero);
    add_communication(forecast, session, cluster);
    forecast->step = (double)forecast->microbatches * forecast->work.total + forecast->optimizer + forecast->exposed;
    forecast->tokens_per_second = forecast->tokens / forecast->step / (double)cluster->gpus;
    forecast->flops = session->plan.flops * (double)forecast->microbatches / forecast->step;
}

/* -- Layouts ------------------------------------------------------------------------------------------------------- */

bool forecast_layout(Forecast *forecast, const Config *config, const Cluster *cluster, const ForecastLayout *layout, Error *error) {
    int64_t microbatch = layout->sequences * config->data.length, round = microbatch * cluster->gpus;
    *forecast = (Forecast){.layout = *layout, .microbatches = divide_up(config->batch.tokens, round)};
    forecast->tokens = (double)forecast->microbatches * (double)round;
    Config rank = *config;
    rank.batch.sequences = layout->sequences;
    rank.recompute = layout->recompute;
    rank.batch.tokens = forecast->microbatches * round;
    rank.layout.dp = 0; /* as many as there are GPUs */
    rank.layout.zero = layout->zero;
    Device *device = hardware_device(&cluster->hardware);
    Session session;
    bool planned = session_plan_rank(&session, &rank, device, 0, (int)cluster->gpus, error);
    if (planned) {
        forecast->memory = session_budget(&session);
        forecast->memory.total += (int64_t)cluster->hardware.runtime;
        forecast->fits = cluster->hardware.memory <= 0 || (double)forecast->memory.total <= cluster->hardware.memory;
        add_time(forecast, &session, cluster);
        session_free(&session);
    }
    device_close(device);
    return planned;
}

static bool is_better(const Forecast *a, const Forecast *b) {
    if (a->fits != b->fits) return a->fits;
    return a->fits ? a->tokens_per_second > b->tokens_per_second : a->memory.total < b->memory.total;
}

/* More than a rank's share of the batch in one microbatch would make the step larger than asked for. */
static int64_t most_sequences(const Config *config, const Cluster *cluster) {
    int64_t share = config->batch.tokens / config->data.length / cluster->gpus, most = 1;
    while (2 * most <= share && 2 * most * config->data.length < INT32_MAX / (config->model.experts ? config->model.experts_per_token : 1))
        most *= 2;
    return most;
}

bool forecast_best(Forecast *best, const Config *config, const Cluster *cluster, int zero, bool search, Error *error) {
    int64_t most = search ? most_sequences(config, cluster) : config->batch.sequences;
    bool found = false;
    for (int64_t sequences = search ? 1 : most; sequences <= most; sequences *= 2) {
        bool smallest_fits = false;
        for (int recompute = search ? RECOMPUTE_NONE : config->recompute; recompute <= (search ? RECOMPUTE_BLOCK : config->recompute);
            recompute++)
            for (int stage = zero < 0 ? 0 : zero; stage <= (zero < 0 ? 3 : zero); stage++) {
                Forecast trial;
                if (!forecast_layout(&trial, config, cluster, &(ForecastLayout){stage, recompute, sequences}, error)) return false;
                smallest_fits |= trial.fits;
                if (!found || is_better(&trial, best)) *best = trial;
                found = true;
            }
        if (!smallest_fits) break; /* larger microbatches need more */
    }
    return true;
}
