/* Planning, the memory budget, and bringing a session to life. */
#include "train/session.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "op/op.h"

bool session_plan(Session *session, const Config *config, Device *device, Error *error) {
    *session = (Session){.config = config};
    Precision precision = config->precision;
    if (!op_backend(&session->backend, device, precision, "", error)) return false;
    session->model = model_build(&config->model, precision, MODEL_TRAIN, config->batch.sequences, config->data.length, config->recompute);
    session->plan = graph_plan(session->model.graph, &session->backend);
    session->evaluation = model_build(&config->model, precision, MODEL_EVALUATE, config->batch.sequences, config->data.length, RECOMPUTE_NONE);
    session->evaluation_plan = graph_plan(session->evaluation.graph, &session->backend);
    return true;
}

static int64_t small_arenas(const Plan *plan) {
    return plan->bytes[ARENA_INPUT] + plan->bytes[ARENA_CONSTANT] + plan->bytes[ARENA_METRIC] + plan->bytes[ARENA_STATE];
}

Budget session_budget(const Session *session) {
    const Plan *plan = &session->plan, *evaluation = &session->evaluation_plan;
    const OptimizerConfig *optimizer = &session->config->optimizer;
    int64_t step_tokens = session->config->batch.tokens * 3 * (int64_t)sizeof(int32_t);
    Budget budget = {
        .weights = plan->bytes[ARENA_WEIGHT],
        .master = plan->bytes[ARENA_MASTER],
        .gradients = plan->bytes[ARENA_GRADIENT],
        .optimizer = optimizer_state_bytes(session->model.graph, optimizer),
        .activations = plan->bytes[ARENA_ACTIVATION],
        .scratch = optimizer_workspace_bytes(session->model.graph, optimizer, device_is_gpu(session->backend.device)),
        /* Evaluation runs in the training activations where they are large enough. */
        .evaluation = evaluation->bytes[ARENA_ACTIVATION] > plan->bytes[ARENA_ACTIVATION] ? evaluation->bytes[ARENA_ACTIVATION] : 0,
        .other = small_arenas(plan) + small_arenas(evaluation) + step_tokens,
        .activation_floor = plan->activation_floor,
    };
    budget.total = budget.weights + budget.master + budget.gradients + budget.optimizer + budget.activations + budget.scratch + budget.evaluation + budget.other;
    return budget;
}

static void print_row(FILE *file, const char *name, int64_t bytes, int64_t total, const char *note) {
    char text[32];
    log_format_bytes((double)bytes, text);
    fprintf(file, "  %-22s %12s %5.1f%%  %s\n", name, text, total ? 100.0 * bytes / total : 0, note);
}

void budget_print(const Budget *budget, FILE *file) {
    char floor[96], text[32];
    log_format_bytes((double)budget->activation_floor, text);
    snprintf(floor, sizeof floor, "one microbatch; at least %s alive at once", text);
    fprintf(file, "memory\n");
    print_row(file, "weights", budget->weights, budget->total, budget->weights ? "in the compute type" : "the master weights serve");
    print_row(file, "master weights", budget->master, budget->total, "");
    print_row(file, "gradients", budget->gradients, budget->total, "");
    print_row(file, "optimizer state", budget->optimizer, budget->total, "");
    print_row(file, "activations", budget->activations, budget->total, floor);
    print_row(file, "optimizer scratch", budget->scratch, budget->total, "");
    print_row(file, "evaluation", budget->evaluation, budget->total, "what does not fit into the activations");
    print_row(file, "inputs and constants", budget->other, budget->total, "");
    print_row(file, "total", budget->total, budget->total, "");
}

void session_print_plan(const Session *session, FILE *file) {
    const Graph *graph = session->model.graph;
    const ModelConfig *model = &session->config->model;
    double tokens = (double)session->model.sequences * session->model.length;
    Budget budget = session_budget(session);
    fprintf(file, "program of one microbatch (%lld sequences x %lld tokens)\n", (long long)session->model.sequences, (long long)session->model.length);
    graph_print(graph, file);
    fprintf(file, "\nparameters             %lld\n", (long long)model_parameters(graph));
    fprintf(file, "active per token       %lld\n", (long long)model_active_parameters(graph, model));
    fprintf(file, "operations per token   %.4g\n", session->plan.flops / tokens);
    fprintf(file, "nodes                  %d\n\n", graph->node_count);
    budget_print(&budget, file);
}

/* The first of these changes that fits: recompute more, then smaller microbatches with the most recomputation. */
static bool find_fitting(const Config *config, Device *device, int64_t available, char *change, size_t size) {
    static const char *const policies[] = {"none", "norm", "attention", "block"};
    Config trial = *config;
    for (;;) {
        for (int policy = config->recompute + (trial.batch.sequences == config->batch.sequences); policy <= RECOMPUTE_BLOCK; policy++) {
            Session session;
            trial.recompute = policy;
            Error ignored = {0};
            if (!session_plan(&session, &trial, device, &ignored)) return false;
            bool fits = session_budget(&session).total <= available;
            session_free(&session);
            if (!fits) continue;
            int used = policy == config->recompute ? 0 : snprintf(change, size, "recompute=%s ", policies[policy]);
            if (trial.batch.sequences != config->batch.sequences) snprintf(change + used, size - used, "batch.sequences=%lld", (long long)trial.batch.sequences);
            return true;
        }
        if (trial.batch.sequences % 2) return false;
        trial.batch.sequences /= 2;
    }
}

bool session_check_memory(const Session *session, int64_t available, Error *error) {
    Budget budget = session_budget(session);
    if (available < 0 || budget.total <= available) return true;
    char needed[32], have[32], change[128] = "";
    log_format_bytes((double)budget.total, needed);
    log_format_bytes((double)available, have);
    budget_print(&budget, stderr);
    if (find_fitting(session->config, session->backend.device, available, change, sizeof change))
        return error_set(error, ERROR_MEMORY, "the plan needs %s and %s are available: it fits with %s", needed, have, change);
    return error_set(error, ERROR_MEMORY,
                     "the plan needs %s and %s are available, and no recomputation or smaller microbatch makes it fit: use a machine with more memory, "
                     "a smaller model, or a shorter data.length", needed, have);
}

bool session_start(Session *session, Error *error) {
    const Config *config = session->config;
    session->executor = executor_create(session->model.graph, &session->plan, &session->backend, NULL, error);
    if (!session->executor) return false;
    void *shared[ARENA_COUNT] = {
        [ARENA_WEIGHT] = executor_arena(session->executor, ARENA_WEIGHT),
        [ARENA_MASTER] = executor_arena(session->executor, ARENA_MASTER),
    };
    if (session->evaluation_plan.bytes[ARENA_ACTIVATION] <= session->plan.bytes[ARENA_ACTIVATION])
        shared[ARENA_ACTIVATION] = executor_arena(session->executor, ARENA_ACTIVATION);
    session->evaluator = executor_create(session->evaluation.graph, &session->evaluation_plan, &session->backend, shared, error);
    session->optimizer = session->evaluator ? optimizer_create(session->model.graph, &config->optimizer, session->backend.device, error) : NULL;
    if (!session->optimizer) return false;
    return model_initialize_on(session->model.graph, &config->model, config->seed, session->backend.device, executor_arena(session->executor, ARENA_MASTER),
                               executor_arena(session->executor, ARENA_WEIGHT), error);
}

void session_free(Session *session) {
    optimizer_free(session->optimizer);
    executor_free(session->evaluator);
    executor_free(session->executor);
    model_free(&session->evaluation);
    model_free(&session->model);
    *session = (Session){0};
}
