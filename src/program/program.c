/* Plans, starts, runs and frees programs. Owns the fields of Program. */
#include "program/program.h"

#include <string.h>

#include "backend/backend.h"
#include "graph/op.h"
#include "program/pipeline_run_internal.h"

/* Other programs read only the master weights of vectors, from the arena of the training program. */
static void host_masters(Plan *plan, const OptimizerOffload *offload) {
    plan->bytes[ARENA_HOST_MASTER] = plan->bytes[ARENA_MASTER] - offload->resident;
    plan->bytes[ARENA_MASTER] = offload->resident;
}

/* The schedule is made after op_absorb, so that it knows when nodes run. */
bool program_plan(Program *program, Device *device, Error *error) {
    Graph *graph = program->model.graph;
    Plan *plan = &program->plan;
    if (!op_backend(&program->backend, device, graph->precision, error)) return false;
    if (program->layout) {
        op_absorb(&program->backend, graph);
        program->schedule = comm_schedule_create(program->layout, graph);
    }
    int64_t saved_bytes = 0;
    if (program->hosts_saved) {
        op_absorb(&program->backend, graph);
        saved_bytes = graph_host_saved(graph);
    }
    *plan = graph_plan(graph, &program->backend);
    plan->bytes[ARENA_SAVED] = saved_bytes;
    if (program->pipeline) plan_set_slots(plan, graph->training ? program->pipeline->slots : program->pipeline->forward_slots);
    if (!program->layout) return true;
    if (plan->bytes[ARENA_GRADIENT]) plan->bytes[ARENA_GRADIENT] = program->schedule->gradient_bytes;
    if (program->layout->stage) {
        plan->bytes[ARENA_MASTER] = program->layout->shard.bytes;
        plan->bytes[ARENA_WEIGHT] = program->schedule->weight_bytes;
    }
    if (graph->training && program->layout->shard.offload.masters) host_masters(plan, &program->layout->shard.offload);
    if (!program->layout->stage || !program->schedule->quantized_bytes) return true;
    comm_schedule_place_packed(program->schedule, program->layout, graph);
    plan->bytes[ARENA_QUANTIZED] = program->schedule->quantized_bytes;
    return true;
}

bool program_start(Program *program, void *const *shared, Error *error) {
    program->executor = executor_create(program->model.graph, &program->plan, &program->backend, shared, error);
    if (!program->executor || !program->layout) return program->executor != NULL;
    program->exchange = exchange_create(program->layout, program->schedule, program->executor, error);
    if (program->exchange && program->pipeline) program->stages = pipeline_run_create(program);
    return program->exchange != NULL;
}

bool program_start_beside(Program *program, const Program *owner, Error *error) {
    void *shared[ARENA_COUNT] = {
        [ARENA_WEIGHT] = executor_arena(owner->executor, ARENA_WEIGHT),
        [ARENA_MASTER] = executor_arena(owner->executor, ARENA_MASTER),
        [ARENA_QUANTIZED] = executor_arena(owner->executor, ARENA_QUANTIZED),
    };
    if (program->plan.bytes[ARENA_ACTIVATION] <= owner->plan.bytes[ARENA_ACTIVATION])
        shared[ARENA_ACTIVATION] = executor_arena(owner->executor, ARENA_ACTIVATION);
    return program_start(program, shared, error);
}

void program_stop(Program *program) {
    pipeline_run_free(program->stages);
    exchange_free(program->exchange);
    executor_free(program->executor);
    program->stages = NULL;
    program->exchange = NULL;
    program->executor = NULL;
}

void program_free(Program *program) {
    program_stop(program);
    comm_schedule_free(program->schedule);
    model_free(&program->model);
    *program = (Program){0};
}

void program_run(const Program *program, const ProgramWork *work) {
    Executor *executor = program->executor;
    executor_zero(executor);
    if (program->stages) {
        pipeline_run_step(program->stages, work);
        return;
    }
    for (int64_t i = 0; i < work->microbatches; i++) {
        if (work->load) work->load(work->context, i);
        if (program->exchange) exchange_set_last(program->exchange, i == work->microbatches - 1);
        if (work->hook) executor_run_hooked(executor, work->hook, work->hook_context);
        else executor_run(executor);
        if (work->ran) work->ran(work->context, i);
    }
}

void program_put_prediction(const Program *program, const TextRows *rows, double weight) {
    const Model *model = &program->model;
    const PredictionTensors *p = &model->prediction;
    Executor *executor = program->executor;
    if (!p->loss) return;
    int32_t *targets = executor_tensor(executor, p->targets);
    executor_set_scalar(executor, p->scale, weight * executor_get_metric(executor, model->scale, 0));
    if (rows) model_take_prediction(model, rows, executor_tensor(executor, p->tokens), targets);
    else memset(targets, -1, (size_t)model->rows * sizeof *targets);
}
