/* Executes the stage's list of actions. The buffers of a transfer are in its slot, so it needs no
 * copy. A part waits for the data received into its slot; a forward pass also waits for the
 * previous sends from the slot. Owns schedules and tickets. */
#include "program/pipeline_run_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"

struct PipelineRun {
    const Program *program;
    PipelineKind kind;
    PipelineSchedule *schedule;  /* for the latest number of microbatches */
    CommTicket *received, *sent; /* by slot: the latest one */
};

PipelineRun *pipeline_run_create(const Program *program) {
    PipelineRun *run = memory_allocate(sizeof *run);
    size_t slots = (size_t)program->plan.slots;
    *run = (PipelineRun){.program = program, .kind = program->model.graph->training ? program->pipeline->shape.kind : PIPELINE_FORWARD};
    run->received = memory_allocate(slots * sizeof *run->received);
    run->sent = memory_allocate(slots * sizeof *run->sent);
    return run;
}

void pipeline_run_free(PipelineRun *run) {
    if (!run) return;
    pipeline_schedule_free(run->schedule);
    free(run->received);
    free(run->sent);
    free(run);
}

static const Mesh *mesh_of(const PipelineRun *run) { return run->program->model.graph->mesh; }

static void choose_schedule(PipelineRun *run, int64_t count) {
    PipelineShape shape = run->program->pipeline->shape;
    int stage = mesh_of(run)->at[AXIS_PP];
    if (run->schedule && run->schedule->shape.microbatches == count) return;
    pipeline_schedule_free(run->schedule);
    shape.kind = run->kind;
    shape.microbatches = (int)count;
    run->schedule = pipeline_schedule_create(&shape, run->program->pipeline->costs, stage);
    assert(run->schedule->stages[stage].slots <= run->program->plan.slots);
}

/* Returns the tensors of an action. In the forward pass a chunk receives its input and sends its
 * output; in the backward pass it receives the output's gradient and sends the input's gradient. */
static const TensorId *edge_of(const PipelineRun *run, const PipelineAction *action) {
    const ModelChunk *chunk = &run->program->model.chunks[action->chunk];
    bool sends = action->act == PIPELINE_SEND;
    return action->part == PART_FORWARD ? (sends ? chunk->out : chunk->in) : (sends ? chunk->d_in : chunk->d_out);
}

/* Transfers all tensors of an edge, in the same order on both ends. */
static void transfer(PipelineRun *run, const PipelineAction *action) {
    static const char *const names[] = {"stream", "router_state", "loads"};
    const Graph *graph = run->program->model.graph;
    const TensorId *edge = edge_of(run, action);
    Comm *comm = mesh_group(mesh_of(run), MESH(AXIS_PP));
    CommType type = comm_real_type((int64_t)precision_bytes(graph->precision, TYPE_WIDE));
    for (int i = 0; i < EDGE_TENSORS; i++) {
        if (!edge[i]) continue;
        char name[32];
        void *data = executor_tensor(run->program->executor, edge[i]);
        int64_t count = graph_elements(graph, edge[i]);
        snprintf(name, sizeof name, "%s%s.%d", action->part == PART_FORWARD ? "" : "d_", names[i], action->microbatch);
        if (action->act == PIPELINE_SEND) run->sent[action->slot] = comm_exchange(comm, name, data, count, action->peer, NULL, 0, -1, type);
        else run->received[action->slot] = comm_exchange(comm, name, NULL, 0, -1, data, count, action->peer, type);
    }
}

static void wait_for(PipelineRun *run, CommTicket *ticket) {
    if (*ticket) comm_wait(mesh_of(run)->all, *ticket);
    *ticket = 0;
}

static void run_part(PipelineRun *run, const PipelineAction *action, const ProgramWork *work) {
    int part = graph_part(run->program->model.graph, action->part, action->chunk);
    wait_for(run, &run->received[action->slot]);
    if (action->part == PART_FORWARD) {
        wait_for(run, &run->sent[action->slot]);
        work->load(work->context, action->microbatch);
    }
    exchange_set_part(run->program->exchange, part, action->last);
    if (work->hook) executor_run_part_hooked(run->program->executor, part, work->hook, work->hook_context);
    else executor_run_part(run->program->executor, part);
}

void pipeline_run_step(PipelineRun *run, const ProgramWork *work) {
    Executor *executor = run->program->executor;
    choose_schedule(run, work->microbatches);
    const PipelineStage *stage = &run->schedule->stages[mesh_of(run)->at[AXIS_PP]];
    for (int i = 0; i < stage->count; i++) {
        const PipelineAction *action = &stage->actions[i];
        executor_set_slot(executor, action->slot);
        if (action->act == PIPELINE_RUN) run_part(run, action, work);
        else transfer(run, action);
    }
    executor_set_slot(executor, 0);
}
