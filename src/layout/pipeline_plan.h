/* The plan of a pipeline's stages: which layers each stage has, what their parts cost, and how many
 * microbatches are in flight. A pure function of configuration and mesh, the same on all ranks.
 * Owned by the session, which plans it before its programs. */
#pragma once

#include "config/config.h"
#include "layout/pipeline_schedule.h"
#include "model/model.h"

typedef struct PipelinePlan {
    PipelineShape shape; /* its `microbatches` is the maximum of a step */
    ModelCut cut;
    PieceCost *costs;         /* by piece, of one microbatch, in nanoseconds as op_time estimates them */
    int slots, forward_slots; /* of the stage that the mesh is for, in its own order and in PIPELINE_FORWARD's: enough for any
                               * number of microbatches */
} PipelinePlan;

/* Returns NULL if the mesh has no pipeline. `microbatches`: the maximum of a step. The caller frees
 * the plan. */
PipelinePlan *pipeline_plan_create(const Mesh *mesh, const Config *config, int microbatches);
/* Returns the cost of all chunks of a stage. */
PieceCost pipeline_stage_cost(const PipelinePlan *plan, int stage);
void pipeline_plan_free(PipelinePlan *plan);
/* Prints a table of the stages, and the bubble next to the formula's. */
void pipeline_plan_print(const PipelinePlan *plan, FILE *file);
