/* A lower bound of the time and memory of a layout, a thousand times faster than its forecast.
 * If all layers of a model are alike, programs of three and four layers determine the costs of
 * any number of layers; otherwise the whole model is planned. These programs depend on few
 * settings of a layout, so a search reuses them for many layouts. The bound omits padding,
 * inputs, scratch of the optimizer, gaps between activations, and the uneven split of layers
 * among pipeline stages. Owns nothing. */
#include "advise/forecast_internal.h"

#include <math.h>

#include "base/math.h"
#include "base/scope.h"
#include "config/layout_rules.h"
#include "backend/backend.h"
#include "graph/op.h"
#include "layout/pipeline_schedule.h"

/* -- Small programs ------------------------------------------------------------------------------------------------ */

static ParameterGroup *find_group(ProgramSums *sums, const Graph *graph, const Parameter *p) {
    MeshAxes axes = parameter_sum_axes(p);
    bool vectors = graph_get(graph, p->tensor)->type == TYPE_WIDE;
    int i = 0;
    while (i < sums->group_count &&
           (sums->groups[i].axes != axes || sums->groups[i].vectors != vectors || sums->groups[i].frozen != p->frozen))
        i++;
    assert(i < PROGRAM_GROUPS);
    if (i == sums->group_count) sums->groups[sums->group_count++] = (ParameterGroup){.axes = axes, .vectors = vectors, .frozen = p->frozen};
    return &sums->groups[i];
}

/* Returns the bytes of a quantized parameter. All parameters are counted in bytes of the state
 * dtype: weights of this size take as much memory as the quantized values and scales. */
static double quantized_bytes(const Graph *graph, const Parameter *p) {
    double held = (double)(graph_bytes(graph, p->quantized) + graph_bytes(graph, p->scales));
    return held * (double)precision_state_bytes(graph->precision, TYPE_COMPUTE) / (double)precision_bytes(graph->precision, TYPE_COMPUTE);
}

static void sum_parameters(ProgramSums *sums, const Graph *graph, const OptimizerConfig *optimizer, const Rates *rates) {
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        ParameterGroup *group = find_group(sums, graph, p);
        double bytes = (double)p->count * (double)p->element_bytes;
        if (p->quantization) bytes = quantized_bytes(graph, p);
        group->bytes += bytes;
        group->largest = fmax(group->largest, bytes);
        group->update += forecast_update(graph, p, optimizer, rates);
        if (!p->frozen) group->moments += optimizer_element_bytes(optimizer, p) * (double)p->count;
    }
}

static void sum_output_head(ProgramSums *sums, const Graph *graph, const Cluster *cluster) {
    int last = graph->node_count - 1;
    while (last > 0 && (graph->nodes[last].layer < 0 || graph->nodes[last].backward)) last--; /* the last node of the forward layers */
    for (int i = last + 1; i < graph->node_count && graph->nodes[i].layer < 0; i++) {
        Work work = work_of_node(graph, &graph->nodes[i]);
        if (work_is_collective(graph, &graph->nodes[i])) continue;
        sums->head += work_seconds(&work, &cluster->hardware, cluster->measured);
        sums->head_guess += (double)op_time(graph, &graph->nodes[i]);
    }
}

static ProgramSums sum_program(const Config *config, const Mesh *mesh, const Backend *backend, const Cluster *cluster) {
    ProgramSums sums = {0};
    ModelConfig cheapest = config->model;
    if (cheapest.fp8.keep_weights) cheapest.fp8.weights = FP8_WEIGHTS_KEPT;
    SCOPED(model_free)
    Model model = model_build_adapted(mesh, &cheapest, &config->lora, config->precision, MODEL_TRAIN, config->batch.sequences,
        config->data.length, config_recompute(config));
    ProgramTimes times = forecast_program(model.graph, cluster);
    sums.backward = times.work.backward;
    sums.forward = times.work.total - sums.backward;
    sums.waits = times.waits;
    sum_output_head(&sums, model.graph, cluster);
    if (config_offloads_saved(config) && !cluster->hardware.host_memory) {
        op_absorb(backend, model.graph);
        graph_host_saved(model.graph);
    }
    sums.activations = (double)graph_plan(model.graph, backend).activation_floor;
    sums.guess = graph_time(model.graph);
    sum_parameters(&sums, model.graph, &config->optimizer, &cluster->hardware.rates);
    return sums;
}

bool small_programs(
    SmallPrograms *small, const Config *config, Device *device, const Cluster *cluster, const ForecastLayout *layout, Error *error) {
    Cluster even = *cluster;
    even.routed = NULL; /* an uneven load takes longer, and differs from layer to layer */
    Config few = forecast_apply(config, layout);
    Backend backend;
    few.layout.pp = few.layout.dp = 1;
    few.layout.shard = 0;
    Mesh mesh = layout_mesh_of(&few, (int)layout_copy_ranks(&few.layout));
    *small = (SmallPrograms){0};
    if (!op_backend(&backend, device, config->precision, error)) return false;
    for (int i = 0; i < 2; i++) {
        /* if layers are of two kinds, the whole model stands for both programs */
        bool alike = model_has_equal_layers(&config->model);
        few.model.layers = small->layers[i] = alike ? int_min(config->model.layers, 3 + i) : config->model.layers;
        small->sums[i] = sum_program(&few, &mesh, &backend, &even);
    }
    return true;
}

/* -- Any number of layers ------------------------------------------------------------------------------------------ */

/* Returns the difference that one layer makes between two programs. */
static double slope(const SmallPrograms *small, double first, double second) {
    return small->layers[1] > small->layers[0] ? (second - first) / (double)(small->layers[1] - small->layers[0]) : 0;
}

/* Returns the even share of one of `stages` stages of a model with `layers` layers. Activations
 * are those of all stages. */
static ProgramSums program_share(const SmallPrograms *small, double layers, double stages) {
    const ProgramSums *a = &small->sums[0], *b = &small->sums[1];
    ProgramSums share = *a;
    double more = layers - (double)small->layers[0];
#define EXTEND(field) (a->field + more * slope(small, a->field, b->field))
    share.forward = EXTEND(forward) / stages;
    share.backward = EXTEND(backward) / stages;
    share.waits = EXTEND(waits) / stages;
    share.activations = EXTEND(activations);
    for (int i = 0; i < share.group_count; i++) {
        share.groups[i].bytes = EXTEND(groups[i].bytes) / stages;
        share.groups[i].moments = EXTEND(groups[i].moments) / stages;
        share.groups[i].update = EXTEND(groups[i].update) / stages;
    }
#undef EXTEND
    return share;
}

/* -- Memory -------------------------------------------------------------------------------------------------------- */

/* Returns the number of ranks that shard a group's parameters. */
static double group_sharing_ranks(const Layout *layout, const ParameterGroup *group) {
    return layout->stage && !group->vectors && (!group->frozen || layout->stage >= 3)
               ? mesh_size(layout->mesh, group->axes & ~MESH(AXIS_REPLICA))
               : 1;
}

/* Returns the bytes of weights, masters, gradients and moments. Data that is gathered, summed or
 * updated bucket by bucket counts as its largest bucket. */
static double parameter_bytes(const ProgramSums *share, const Layout *layout, Precision precision) {
    const OptimizerOffload *offload = &layout->shard.offload;
    double all = 0, weights = 0, gradients = 0,
           cast = (double)precision_weight_offset(precision, precision_alignment(precision)) / (double)precision_alignment(precision);
    bool copies = (layout->stage || precision == PRECISION_BF16) && !layout->gathers_masters; /* weights have their own arena */
    for (int i = 0; i < share->group_count; i++) {
        const ParameterGroup *group = &share->groups[i];
        double ranks = group_sharing_ranks(layout, group), trained = group->frozen ? 0 : group->bytes;
        if (copies || (layout->gathers_masters && group->frozen)) all += cast * group->bytes / (layout->shard.local_weights ? ranks : 1);
        if (group->vectors || !offload->portion_bytes) all += group->moments / ranks;
        if (group->vectors || !offload->masters) all += trained / ranks;
        if (!layout->in_backward) all += trained / (layout->shard.local_gradients ? ranks : 1);
        else if (!group->frozen) gradients = fmax(gradients, group->largest);
        if (ranks > 1 && layout->shard.local_weights) weights = fmax(weights, cast * group->largest);
        if (ranks > 1 && layout->shard.local_gradients) gradients = fmax(gradients, group->largest);
    }
    return all + weights + gradients;
}

/* Returns the activations that a pipeline's first stage holds for the backward passes of its
 * layers. The first stage keeps the most microbatches. */
static double activation_bytes(const SmallPrograms *small, const ProgramSums *share, const PipelineShape *shape, double layers) {
    if (shape->stages == 1) return share->activations;
    double kept = slope(small, small->sums[0].activations, small->sums[1].activations);
    int64_t slots = int_min(pipeline_warmup(shape, 0) + 1, (int64_t)shape->microbatches * shape->chunks);
    return (double)slots * kept * layers / (double)pipeline_pieces(shape);
}

/* -- Time ---------------------------------------------------------------------------------------------------------- */

/* Times one bucket per group. They send as many bytes as the buckets of a plan, in fewer
 * collectives. */
static ExchangeTimes time_groups(const ProgramSums *share, Layout *layout, Precision precision, const Cluster *cluster, double count) {
    LayoutBucket buckets[PROGRAM_GROUPS];
    layout->buckets = buckets;
    layout->bucket_count = share->group_count;
    for (int i = 0; i < share->group_count; i++) {
        const ParameterGroup *group = &share->groups[i];
        double ranks = group_sharing_ranks(layout, group);
        buckets[i] = (LayoutBucket){.end = (int64_t)group->bytes,
            .vectors = group->vectors,
            .frozen = group->frozen,
            .sharded = ranks > 1,
            .axes = group->axes,
            .size = (int)ranks};
    }
    ExchangeTimes times = forecast_exchange(layout, precision, cluster, share->forward, share->backward, count);
    layout->buckets = NULL;
    layout->bucket_count = 0;
    return times;
}

/* Whole programs may be slightly faster than small ones predict: collectives overlap differently,
 * and a stage may skip the residual add and norm at its borders. The largest difference among
 * hundreds of layouts of Llama-3.1-70B and ZAYA1-8B was 0.3%. */
static const double least_part = 0.99;

static double seconds_of(const ProgramSums *sums) { return sums->forward + sums->backward + sums->waits; }

/* Returns a lower bound of the seconds in which a pipeline runs its microbatches. Layers are not
 * cut, and the last stage also has the head, so the minimum over its possible numbers of layers is
 * taken. The busiest stage must run all microbatches. The last stage must run them too, between the
 * first microbatch's way to it and the last one's way back, without weight gradients, which other
 * schedules defer. A forecast takes these ways from the estimates that cut the stages; their ratio
 * to real time is smallest either in layers or in the head. */
static double pipeline_seconds(const SmallPrograms *small, const PipelineShape *shape, int64_t layers) {
    const ProgramSums *a = &small->sums[0], *b = &small->sums[1];
    double layer = slope(small, seconds_of(a), seconds_of(b)), guess = slope(small, a->guess, b->guess), least = INFINITY;
    double rate = fmin(layer / guess, a->head / a->head_guess), count = shape->microbatches;
    for (int64_t last = 0; last < layers; last++) {
        double others = (double)divide_up(layers - last, shape->stages - 1) * layer;
        double busiest = count * fmax(a->head + (double)last * layer, others);
        double way = shape->kind == PIPELINE_ZERO_BUBBLE ? 0 : (double)(layers - last) * guess / shape->chunks;
        least = fmin(least, fmax(busiest, rate * (way + count * (a->head_guess + (double)last * guess))));
    }
    return least;
}

static double computing(const SmallPrograms *small, const ProgramSums *share, const PipelineShape *shape, int64_t layers) {
    if (shape->stages == 1) return shape->microbatches * seconds_of(share);
    return layers > small->layers[0] ? pipeline_seconds(small, shape, layers) : 0; /* fewer layers have no separate estimate */
}

ForecastBound forecast_bound(const SmallPrograms *small, const Config *config, const Cluster *cluster, const ForecastLayout *layout) {
    int64_t microbatches, layers = config->model.layers;
    Config rank = forecast_rank(config, cluster, layout, &microbatches);
    PipelineShape shape = {.kind = (PipelineKind)rank.layout.pp_schedule,
        .stages = (int)rank.layout.pp,
        .chunks = (int)layout_chunks(&rank.layout),
        .microbatches = (int)microbatches};
    Mesh mesh = layout_mesh_of(&rank, (int)cluster->gpus);
    Layout empty = layout_empty(&mesh, &config->optimizer, &rank.layout, config->precision);
    if (config_offloads_state(config) && !cluster->hardware.host_memory) layout_offload(&empty, config->precision, 1);
    double count = (double)microbatches, update = 0;
    ProgramSums share = program_share(small, (double)layers, shape.stages);
    ExchangeTimes exchange = time_groups(&share, &empty, config->precision, cluster, count);
    for (int i = 0; i < share.group_count; i++) update += share.groups[i].update / group_sharing_ranks(&empty, &share.groups[i]);
    ForecastBound bound = {.seconds = least_part * computing(small, &share, &shape, layers) + update + exchange.exposed};
    /* if the layers do not divide evenly, a stage has one layer fewer */
    double whole = (double)(layers / pipeline_pieces(&shape) * pipeline_pieces(&shape));
    share = program_share(small, whole, shape.stages);
    bound.memory =
        cluster->hardware.runtime + parameter_bytes(&share, &empty, config->precision) + activation_bytes(small, &share, &shape, whole);
    return bound;
}
