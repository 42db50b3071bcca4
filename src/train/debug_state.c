/* Three comparisons on one batch: logits of a scoring program, loss and gradients of the training program, and the
 * losses of ten updates. Errors are of whole tensors, as the norm of the difference over the norm of what is
 * expected: in bf16 0.05 is a cosine of 0.999. Owns its programs while it runs. */
#include "train/debug_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/element.h"
#include "base/memory.h"
#include "base/scope.h"
#include "model/llmc.h"
#include "graph/op.h"
#include "optim/optim.h"
#include "train/source.h"
#include "train/train.h"
#include "backend/backend.h"

typedef struct Limits { double tensor, loss; } Limits;

typedef struct Check {
    const DebugStateCheck *given;
    LlmcState state;
    Model model;
    Executor *executor;
    FILE *report;
    Limits limits;
    int differences;
} Check;

static double wide(const Check *c, const void *values, int64_t index) {
    return element_get(precision_bytes(c->given->precision, TYPE_WIDE), values, index);
}

/* -- Comparing ----------------------------------------------------------------------------------------------------- */

static const char *judge(Check *c, bool good) {
    c->differences += !good;
    return good ? "ok" : "DIFFERS";
}

/* `expected` is of type `type`: that of a state, or that of an arena which the state was converted into. */
static void compare_tensor(Check *c, const char *name, const void *ours, const void *expected, Precision type, int64_t count) {
    double difference = 0, norm = 0, largest = 0;
    for (int64_t i = 0; i < count; i++) {
        double theirs = element_get(precision_bytes(type, TYPE_WIDE), expected, i), off = wide(c, ours, i) - theirs;
        difference += off * off;
        norm += theirs * theirs;
        largest = fabs(off) > largest || isnan(off) ? fabs(off) : largest;
    }
    double relative = difference > 0 ? sqrt(difference / norm) : difference;
    fprintf(c->report, "%-44s %12.3e %12.3e  %s\n", name, largest, relative, judge(c, relative <= c->limits.tensor));
}

static void compare_loss(Check *c, const char *name, double ours, double expected) {
    fprintf(c->report, "%-44s %12.6f %12.6f  %s\n", name, ours, expected, judge(c, fabs(ours - expected) <= c->limits.loss));
}

/* -- Steps --------------------------------------------------------------------------------------------------------- */

static void load_batch(const Check *c) {
    int64_t rows = c->state.sequences * c->state.length, targets = 0;
    int32_t *positions = executor_tensor(c->executor, c->model.positions);
    memcpy(executor_tensor(c->executor, c->model.tokens), c->state.tokens, rows * sizeof(int32_t));
    memcpy(executor_tensor(c->executor, c->model.targets), c->state.targets, rows * sizeof(int32_t));
    for (int64_t i = 0; i < rows; i++) {
        positions[i] = (int32_t)(i % c->state.length);
        targets += c->state.targets[i] >= 0;
    }
    executor_set_scalar(c->executor, c->model.scale, 1.0 / targets);
    executor_set_scalar(c->executor, c->model.share, 1);
}

static double run_step(const Check *c) {
    executor_zero(c->executor);
    executor_run(c->executor);
    return wide(c, executor_tensor(c->executor, c->model.loss), 0);
}

static bool check_logits(Check *c, Error *error) {
    const LlmcState *state = &c->state;
    const ModelConfig *config = &c->given->config->model;
    int64_t rows = state->sequences * state->length, count = rows * config->vocabulary;
    SCOPED_FREE char *logits = memory_allocate(count * precision_bytes(c->given->precision, TYPE_WIDE));
    StepInputs inputs = {.tokens = state->tokens, .positions = executor_tensor(c->executor, c->model.positions), .rows = rows};
    if (!compute_logits(c->executor, config, NULL, state->sequences, state->length, &inputs, logits, error)) return false;
    compare_tensor(c, "logits", logits, state->logits, PRECISION_FP32, count);
    return true;
}

static bool check_gradients(Check *c, Error *error) {
    const Graph *graph = c->model.graph;
    size_t bytes = graph->parameter_bytes;
    char *expected = memory_map(bytes, error);
    if (!expected) return error_context(error, "the gradients to compare with");
    llmc_state_gradients(&c->state, graph, &c->given->config->model, expected);
    const void *ours = executor_arena(c->executor, ARENA_GRADIENT);
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        compare_tensor(c, p->name, parameter_in(p, ours), parameter_in(p, expected), graph->precision, p->count);
    }
    memory_unmap(expected, bytes);
    return true;
}

static const OptimizerConfig optimizer_settings = {
    .name = OPTIMIZER_ADAMW, .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .clip = 1};

static void update(const Check *c, Optimizer *optimizer, int step) {
    const void *gradients = executor_arena(c->executor, ARENA_GRADIENT);
    double norm = optimizer_gradient_norm(optimizer, gradients), clip = optimizer_settings.clip;
    optimizer_step(optimizer, executor_arena(c->executor, ARENA_MASTER), executor_arena(c->executor, ARENA_WEIGHT), gradients, step,
        optimizer_settings.lr, norm > clip ? clip / norm : 1);
}

static bool check_steps(Check *c, Error *error) {
    Optimizer *optimizer = optimizer_create(c->model.graph, &optimizer_settings, NULL, device_cpu(), error);
    for (int step = 1; step <= DEBUG_STATE_STEPS && optimizer; step++) {
        char name[32];
        double loss = run_step(c);
        snprintf(name, sizeof name, "loss before step %d", step);
        if (c->given->losses) compare_loss(c, name, loss, c->given->losses[step - 1]);
        else fprintf(c->report, "%-44s %12.6f\n", name, loss);
        update(c, optimizer, step);
    }
    bool done = optimizer != NULL;
    optimizer_free(optimizer);
    return done;
}

/* -- The whole ----------------------------------------------------------------------------------------------------- */

/* The training program, the gradients to compare with, and the optimizer. */
static bool check_memory(const Check *c, const Plan *plan, Error *error) {
    int64_t bytes = plan->bytes[ARENA_GRADIENT] + optimizer_state_bytes(c->model.graph, &optimizer_settings, NULL);
    for (Arena arena = 0; arena < ARENA_COUNT; arena++) bytes += plan->bytes[arena];
    return memory_check(bytes, "the check", "use a machine with more memory, or the state of a smaller batch", error);
}

static bool start(Check *c, Error *error) {
    const DebugStateCheck *given = c->given;
    c->model = model_build(&given->config->model, given->precision, MODEL_TRAIN, c->state.sequences, c->state.length, RECOMPUTE_NONE);
    Backend backend = op_cpu_backend(given->precision);
    Plan plan = graph_plan(c->model.graph, &backend);
    bool fits = check_memory(c, &plan, error);
    c->executor = fits ? executor_create(c->model.graph, &plan, &backend, NULL, error) : NULL;
    if (!c->executor || !source_load_program(given->model, given->config, c->executor, error)) return false;
    load_batch(c);
    return true;
}

static bool check_batch(Check *c, Error *error) {
    fprintf(c->report, "%-44s %12s %12s\n", "", "difference", "relative");
    if (!check_logits(c, error)) return false;
    double loss = run_step(c);
    if (!check_gradients(c, error)) return false;
    fprintf(c->report, "\n%-44s %12s %12s\n", "", "smelt", "expected");
    compare_loss(c, "loss", loss, c->state.loss);
    return check_steps(c, error);
}

bool debug_state_check(const DebugStateCheck *given, FILE *report, int *differences, Error *error) {
    bool rough = given->precision == PRECISION_BF16;
    Check check = {.given = given, .report = report, .limits = rough ? (Limits){0.05, 0.05} : (Limits){1e-4, 1e-5}};
    bool done =
        llmc_state_open(&check.state, given->state, &given->config->model, error) && start(&check, error) && check_batch(&check, error);
    executor_free(check.executor);
    model_free(&check.model);
    llmc_state_close(&check.state);
    *differences = check.differences;
    return done;
}
