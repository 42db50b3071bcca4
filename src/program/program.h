/* A program: the graph of a model for one microbatch, its plan, and what runs it. The life of a
 * program has three steps. The owner sets `model` and, if a layout spreads the weights over ranks,
 * `layout` and `pipeline`. program_plan decides where everything lies and allocates nothing.
 * program_start allocates the arenas. Training, evaluation, samples, generation, benchmarks and
 * tests run their graphs this way. */
#pragma once

#include "layout/exchange.h"
#include "layout/pipeline_plan.h"
#include "model/model.h"

typedef struct PipelineRun PipelineRun;

/* Owns everything that is not marked borrowed. The mesh of the graph outlives the program. */
typedef struct Program {
    Model model;                  /* a graph of single operations is a model with only `graph` */
    const Layout *layout;         /* borrowed; NULL: the program needs no exchange */
    const PipelinePlan *pipeline; /* borrowed; NULL: the model is not cut into stages */
    bool hosts_saved;             /* activations wait in host memory for the backward pass (graph_host_saved); not with `pipeline` */
    Backend backend;              /* from program_plan on, like plan and schedule */
    Plan plan;
    CommSchedule *schedule; /* with a layout */
    Executor *executor;     /* from program_start on, like exchange and stages */
    Exchange *exchange;     /* with a layout */
    PipelineRun *stages;    /* with a pipeline */
} Program;

/* Plans the graph for the device, in the graph's precision; the layout has placed the graph's
 * parameters. The device outlives the program. ERROR_USAGE. */
bool program_plan(Program *program, Device *device, Error *error);
/* Allocates a planned program. The arenas in `shared` (NULL, or by Arena as in executor_create)
 * are borrowed. ERROR_MEMORY. */
bool program_start(Program *program, void *const *shared, Error *error);
/* Starts a planned program with the weights of `owner`, a started program of the same model. They
 * also share activations if those of `owner` are large enough, so they cannot run concurrently. */
bool program_start_beside(Program *program, const Program *owner, Error *error);
/* Frees what program_start has made; the program stays planned. */
void program_stop(Program *program);
/* Accepts a program in any state. */
void program_free(Program *program);

/* Writes the inputs of multi-token prediction, if the program has it, for a microbatch of `rows`; NULL: an
 * empty one. Write Model.scale before this call. */
void program_put_prediction(const Program *program, const TextRows *rows, double weight);

/* The microbatches of a step, and what is done before and after each of them. */
typedef struct ProgramWork {
    int64_t microbatches;
    void (*load)(void *context, int64_t microbatch); /* writes the inputs of one microbatch; NULL: they are written */
    void (*ran)(void *context, int64_t microbatch);  /* called after each run, but not in a pipeline; NULL: none */
    void *context;
    ExecutorHook hook; /* NULL: none. If it stops a run, the next microbatch follows, because other stages wait for it */
    void *hook_context;
} ProgramWork;

/* Runs a step: zeroes gradients and metrics, then runs all microbatches, and reduces gradients in
 * the last run. Collective over the layout's ranks. On a GPU it returns before the work is done. */
void program_run(const Program *program, const ProgramWork *work);
