/* Cuts the layers by their time in a graph of the whole model, which also gives the costs of the
 * parts. Owns the lists of the plan. Called when a session is planned. */
#include "layout/pipeline_plan.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "config/layout_rules.h"
#include "graph/op.h"

static PartKind kind_of_node(const Graph *graph, const Node *node, bool splits_backward) {
    if (!node->backward) return PART_FORWARD;
    return splits_backward && graph_only_adds_to_gradients(graph, node) ? PART_WEIGHTS : PART_BACKWARD;
}

/* Returns the cost of each layer, followed by the costs of the embedding and of the head. Nodes
 * outside the layers belong to the head if they are between forward and backward pass. Other
 * nodes belong to the embedding, because the program begins and ends with it. */
static PieceCost *list_costs(const Graph *graph, int layers, bool splits_backward) {
    PieceCost *costs = memory_allocate((size_t)(layers + 2) * sizeof *costs);
    NodeSpan inside = NEVER;
    for (int i = 0; i < graph->node_count; i++)
        if (graph->nodes[i].layer >= 0) inside = (NodeSpan){span_is_empty(inside) ? i : inside.first, i};
    for (int i = 0; i < graph->node_count; i++) {
        const Node *node = &graph->nodes[i];
        int at = node->layer >= 0 ? node->layer : i < inside.first || i > inside.last ? layers : layers + 1;
        if (op_table[node->op]->once) continue;
        costs[at].part[kind_of_node(graph, node, splits_backward)] += (double)op_time(graph, node);
        costs[at].flops += op_cost(graph, node).flops;
    }
    return costs;
}

static void add_cost(PieceCost *to, const PieceCost *cost) {
    for (int part = 0; part < PART_KINDS; part++) to->part[part] += cost->part[part];
    to->flops += cost->flops;
}

static double all_parts(const PieceCost *cost) { return cost->part[PART_FORWARD] + cost->part[PART_BACKWARD] + cost->part[PART_WEIGHTS]; }

PieceCost pipeline_stage_cost(const PipelinePlan *plan, int stage) {
    PieceCost sum = {0};
    for (int piece = stage; piece < pipeline_pieces(&plan->shape); piece += plan->shape.stages) add_cost(&sum, &plan->costs[piece]);
    return sum;
}

/* Cuts the layers of the whole model by the costs of its layers, embedding and head. */
static void cut_layers(PipelinePlan *plan, const Mesh *mesh, const Config *config) {
    int pieces = pipeline_pieces(&plan->shape), count = (int)config->model.layers;
    Mesh whole = *mesh;
    whole.size[AXIS_PP] = 1, whole.at[AXIS_PP] = 0;
    SCOPED(model_free)
    Model model = model_build_adapted(&whole, &config->model, &config->lora, config->precision, MODEL_TRAIN, config->batch.sequences,
        config->data.length, config_recompute(config));
    SCOPED_FREE PieceCost *costs = list_costs(model.graph, count, plan->cut.splits_backward);
    SCOPED_FREE double *layers = memory_allocate((size_t)count * sizeof *layers);
    const PieceCost *embedding = &costs[count], *head = embedding + 1;
    for (int i = 0; i < count; i++) layers[i] = all_parts(&costs[i]);
    plan->cut.begin = memory_allocate((size_t)(pieces + 1) * sizeof *plan->cut.begin);
    const LayerCosts whole_costs = {layers, count, all_parts(embedding), all_parts(head)};
    pipeline_cut_layers(&whole_costs, plan->shape.stages, pieces, plan->cut.begin);
    plan->costs = memory_allocate((size_t)pieces * sizeof *plan->costs);
    for (int piece = 0; piece < pieces; piece++)
        for (int i = plan->cut.begin[piece]; i < plan->cut.begin[piece + 1]; i++) add_cost(&plan->costs[piece], &costs[i]);
    add_cost(&plan->costs[0], embedding);
    add_cost(&plan->costs[pieces - 1], head);
}

/* Returns enough slots for any number of microbatches. The last step of a phase and the steps of a
 * growing batch have fewer microbatches than others. Beyond a few microbatches per piece the number
 * of slots is constant. Below that it grows, not quite evenly, so every remainder modulo the stages
 * is tried. */
static int count_slots(const PipelinePlan *plan, PipelineKind kind, int stage) {
    int most = 1, stages = plan->shape.stages, few = 4 * stages, many = 4 * pipeline_pieces(&plan->shape);
    PipelineShape shape = plan->shape;
    shape.kind = kind;
    for (shape.microbatches = 1; shape.microbatches <= many; shape.microbatches++)
        if (shape.microbatches <= few || shape.microbatches > many - stages) most = pipeline_slots(&shape, plan->costs, stage, most);
    shape.microbatches = plan->shape.microbatches;
    return pipeline_slots(&shape, plan->costs, stage, most);
}

PipelinePlan *pipeline_plan_create(const Mesh *mesh, const Config *config, int microbatches) {
    if (mesh->size[AXIS_PP] == 1) return NULL;
    PipelinePlan *plan = memory_allocate(sizeof *plan);
    plan->shape = (PipelineShape){.kind = (PipelineKind)config->layout.pp_schedule,
        .stages = mesh->size[AXIS_PP],
        .chunks = (int)layout_chunks(&config->layout),
        .microbatches = microbatches};
    plan->cut = (ModelCut){.chunks = plan->shape.chunks, .splits_backward = plan->shape.kind == PIPELINE_ZERO_BUBBLE};
    cut_layers(plan, mesh, config);
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

/* "0-3", "0-1 4-5", "head" */
static void describe_layers(const PipelinePlan *plan, int stage, char *text, size_t size) {
    size_t length = 0;
    text[0] = 0;
    for (int chunk = 0; chunk < plan->shape.chunks && length < size; chunk++) {
        const int *begin = &plan->cut.begin[chunk * plan->shape.stages + stage];
        const char *space = chunk ? " " : "";
        length += (size_t)(begin[0] < begin[1] ? snprintf(text + length, size - length, "%s%d-%d", space, begin[0], begin[1] - 1)
                                               : snprintf(text + length, size - length, "%shead", space));
    }
}

void pipeline_plan_print(const PipelinePlan *plan, FILE *file) {
    const PipelineShape *shape = &plan->shape;
    PipelineSchedule *schedule = pipeline_schedule_create(shape, plan->costs, PIPELINE_ALL_STAGES);
    fprintf(file,
        "pipeline    %d stages, %s, %d microbatch%s: the busiest stage is idle for %.1f%% of the step (%.1f%% if all stages took the same "
        "time)\n",
        shape->stages, pipeline_kind_name(shape->kind), shape->microbatches, shape->microbatches == 1 ? "" : "es",
        100 * schedule->bubble / schedule->length, 100 * schedule->formula / (schedule->formula + schedule->length - schedule->bubble));
    if (shape->microbatches < shape->stages) fprintf(file, "            fewer microbatches than stages: some stages always wait\n");
    double whole = 0;
    for (int stage = 0; stage < shape->stages; stage++) {
        PieceCost cost = pipeline_stage_cost(plan, stage);
        whole += all_parts(&cost);
    }
    fprintf(file, "  %-6s %-16s %12s %9s %9s %9s %7s %7s\n", "stage", "layers", "arithmetic", "forward", "backward", "weights", "slots",
        "idle");
    for (int stage = 0; stage < shape->stages; stage++) {
        char layers[64], flops[32];
        PieceCost cost = pipeline_stage_cost(plan, stage);
        describe_layers(plan, stage, layers, sizeof layers);
        log_format_count(cost.flops, flops);
        fprintf(file, "  %-6d %-16s %7s FLOP %8.1f%% %8.1f%% %8.1f%% %7d %6.1f%%\n", stage, layers, flops,
            100 * cost.part[PART_FORWARD] / whole, 100 * cost.part[PART_BACKWARD] / whole, 100 * cost.part[PART_WEIGHTS] / whole,
            schedule->stages[stage].slots, 100 * (1 - schedule->stages[stage].busy / schedule->length));
    }
    fprintf(file, "  forward, backward, weights: shares of the computing time of all stages, estimated with fixed rates\n");
    fprintf(file, "\n");
    pipeline_schedule_free(schedule);
}
