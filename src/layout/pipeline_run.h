/* Runs a stage of a pipeline: executes the parts of a program by a schedule, and receives and sends
 * the data between chunks of layers. Owned by the session; the plan, the model, the mesh with its
 * groups and the executor outlive it. */
#pragma once

#include "layout/exchange.h"
#include "layout/pipeline_plan.h"

typedef struct PipelineRun PipelineRun;

/* `kind` is the plan's, or PIPELINE_FORWARD for a program without a backward pass. */
PipelineRun *pipeline_run_create(const PipelinePlan *plan, PipelineKind kind, const Model *model, Executor *executor, Exchange *exchange);
void pipeline_run_free(PipelineRun *run);

/* The work of a step on its microbatches. */
typedef struct PipelineWork {
    void (*load)(void *context, int64_t microbatch); /* writes the inputs of one microbatch to the executor's slot */
    void *context;
    ExecutorHook hook; /* NULL: none. If it stops a part, the run continues, because other stages wait for it */
    void *hook_context;
} PipelineWork;

/* Runs microbatches 0 .. count - 1 through this stage. Collective over the stages. On a GPU it returns before the work is
 * done. */
void pipeline_run_step(PipelineRun *run, int64_t count, const PipelineWork *work);
