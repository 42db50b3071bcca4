/* Cuts the layers by their cost in a graph of the whole model, and takes the parts' costs from graphs of all stages. Owns
 * the lists of the plan. Called when a session is planned. */
#include "layout/pipeline_plan.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "config/layout_rules.h"
#include "graph/op.h"

static Model build(const Mesh *mesh, const ModelCut *cut, const Config *config) {
    return model_build_stage(mesh, cut, &config->model, &config->lora, config->precision, MODEL_TRAIN, config->batch.sequences,
        config->data.length, config->recompute);
}

static double flops_of(const Graph *graph, int node) {
    return op_table[graph->nodes[node].op]->once ? 0 : op_cost(graph, &graph->nodes[node]).flops;
}

/* Nodes outside the layers belong to the embedding, which is the program's first and last work, or to the head between
 * forward and backward pass. */
static void cut_layers(const Mesh *mesh, const Config *config, int pieces, ModelCut *cut) {
    Mesh whole = *mesh;
    whole.size[AXIS_PP] = 1, whole.at[AXIS_PP] = 0;
    SCOPED(model_free) Model model = build(&whole, NULL, config);
    SCOPED_FREE double *layers = memory_allocate((size_t)config->model.layers * sizeof *layers);
    double embedding = 0, head = 0;
    NodeSpan inside = NEVER;
    for (int i = 0; i < model.graph->node_count; i++)
        if (model.graph->nodes[i].layer >= 0) inside = (NodeSpan){span_is_empty(inside) ? i : inside.first, i};
    for (int i = 0; i < model.graph->node_count; i++) {
        int layer = model.graph->nodes[i].layer;
        double *cost = layer >= 0 ? &layers[layer] : i < inside.first || i > inside.last ? &embedding : &head;
        *cost += flops_of(model.graph, i);
    }
    cut->begin = memory_allocate((size_t)(pieces + 1) * sizeof *cut->begin);
    pipeline_cut_layers(layers, (int)config->model.layers, embedding, head, pieces, cut->begin);
}

static void add_costs(PipelinePlan *plan, const Mesh *mesh, const Config *config, int stage) {
    Mesh at = *mesh;
    at.at[AXIS_PP] = stage;
    SCOPED(model_free) Model model = build(&at, &plan->cut, config);
    const Graph *graph = model.graph;
    for (int i = 0; i < graph->node_count; i++) {
        int part = graph->nodes[i].part, chunk = graph_part_chunk(graph, part);
        PartKind kind = part < graph->chunks                              ? PART_FORWARD
                        : part == graph_part(graph, PART_BACKWARD, chunk) ? PART_BACKWARD
                                                                          : PART_WEIGHTS;
        plan->costs[chunk * plan->shape.stages + stage].part[kind] += flops_of(graph, i);
    }
}

/* The last step of a phase, and those of a growing batch, have fewer microbatches. Beyond a few for each piece their number
 * changes nothing. */
static int count_slots(const PipelinePlan *plan, PipelineKind kind, int stage) {
    int most = 0, few = 4 * pipeline_pieces(&plan->shape), last = (int)int_max(plan->shape.microbatches, few);
    PipelineShape shape = plan->shape;
    shape.kind = kind;
    for (shape.microbatches = 1; shape.microbatches <= last;
        shape.microbatches += shape.microbatches == few && last > few ? last - few : 1) {
        PipelineSchedule *schedule = pipeline_schedule_create(&shape, plan->costs, stage);
        most = (int)int_max(most, schedule->stages[stage].slots);
        pipeline_schedule_free(schedule);
    }
    return most;
}

PipelinePlan *pipeline_plan_create(const Mesh *mesh, const Config *config, int microbatches) {
    if (mesh->size[AXIS_PP] == 1) return NULL;
    PipelinePlan *plan = memory_allocate(sizeof *plan);
    plan->shape = (PipelineShape){.kind = (PipelineKind)config->layout.pp_schedule,
        .stages = mesh->size[AXIS_PP],
        .chunks = (int)layout_chunks(&config->layout),
        .microbatches = microbatches};
    plan->cut = (ModelCut){.chunks = plan->shape.chunks, .splits_backward = plan->shape.kind == PIPELINE_ZERO_BUBBLE};
    plan->costs = memory_allocate((size_t)pipeline_pieces(&plan->shape) * sizeof *plan->costs);
    cut_layers(mesh, config, pipeline_pieces(&plan->shape), &plan->cut);
    for (int stage = 0; stage < plan->shape.stages; stage++) add_costs(plan, mesh, config, stage);
    plan->slots = count_slots(plan, plan->shape.kind, mesh->at[AXIS_PP]);
    plan->forward_slots = count_slots(plan, PIPELINE_FORWARD, mesh->at[AXIS_PP]);
    return plan;
}

void pipeline_plan_free(PipelinePlan *plan) {
    if (!plan) return;
    free(plan->cut.begin);
    free(plan->costs);
    free(plan);
}

/* -- For people ---------------------------------------------------------------------------------------------------- */

/* "0-3", "0-1 4-5" */
static void describe_layers(const PipelinePlan *plan, int stage, char *text, size_t size) {
    size_t length = 0;
    text[0] = 0;
    for (int chunk = 0; chunk < plan->shape.chunks && length < size; chunk++) {
        const int *begin = &plan->cut.begin[chunk * plan->shape.stages + stage];
        length += (size_t)snprintf(text + length, size - length, "%s%d-%d", chunk ? " " : "", begin[0], begin[1] - 1);
    }
}

void pipeline_plan_print(const PipelinePlan *plan, FILE *file) {
    const PipelineShape *shape = &plan->shape;
    PipelineSchedule *schedule = pipeline_schedule_create(shape, plan->costs, PIPELINE_ALL_STAGES);
    fprintf(file, "pipeline    %d stages, %s, %d microbatch%s: idle %.1f%% of the step, %.1f%% by the formula for even stages\n",
        shape->stages, pipeline_kind_name(shape->kind), shape->microbatches, shape->microbatches == 1 ? "" : "es",
        100 * schedule->bubble / schedule->length, 100 * schedule->formula / (schedule->formula + schedule->length - schedule->bubble));
    if (shape->microbatches < shape->stages) fprintf(file, "            fewer microbatches than stages: some always wait\n");
    fprintf(file, "  %-6s %-16s %12s %12s %12s %7s %7s\n", "stage", "layers", "forward", "backward", "weights", "slots", "idle");
    for (int stage = 0; stage < shape->stages; stage++) {
        char layers[64], flops[PART_KINDS][32];
        describe_layers(plan, stage, layers, sizeof layers);
        for (int part = 0; part < PART_KINDS; part++) {
            double sum = 0;
            for (int chunk = 0; chunk < shape->chunks; chunk++) sum += plan->costs[chunk * shape->stages + stage].part[part];
            log_format_count(sum, flops[part]);
        }
        fprintf(file, "  %-6d %-16s %7s FLOP %7s FLOP %7s FLOP %7d %6.1f%%\n", stage, layers, flops[0], flops[1], flops[2],
            schedule->stages[stage].slots, 100 * (1 - schedule->stages[stage].busy / schedule->length));
    }
    fprintf(file, "\n");
    pipeline_schedule_free(schedule);
}
