/* Three comparisons on one batch: the logits of the training program, its loss and gradients, and
 * the losses of ten updates. The error of a tensor is the norm of the difference over the norm of
 * the expected values. In bf16, an error of 0.05 is a cosine of 0.999. Owns its training session
 * while it runs. */
#include "eval/debug_state.h"

#include <math.h>
#include <string.h>

#include "backend/backend.h"
#include "base/element.h"
#include "base/memory.h"
#include "base/scope.h"
#include "formats/llmc.h"
#include "session/session.h"
#include "session/weights.h"

typedef struct Limits { double tensor, loss; } Limits;

typedef struct Check {
    const DebugStateCheck *given;
    LlmcState state;
    Config config; /* the model's configuration, with the state's batch */
    Session session;
    FILE *report;
    Limits limits;
    int differences;
} Check;

static double wide(const Check *c, const void *values, int64_t index) {
    return element_get(precision_bytes(c->given->precision, TYPE_WIDE), values, index);
}

/* -- Comparing ----------------------------------------------------------------------------------------------------- */

static const char *judge_difference(Check *c, bool good) {
    c->differences += !good;
    return good ? "ok" : "DIFFERS";
}

/* `expected` has type `type`: the type of a state, or of an arena that the state was converted
 * into. */
static void compare_tensor(Check *c, const char *name, const void *ours, const void *expected, Precision type, int64_t count) {
    double difference = 0, norm = 0, largest = 0;
    for (int64_t i = 0; i < count; i++) {
        double theirs = element_get(precision_bytes(type, TYPE_WIDE), expected, i), off = wide(c, ours, i) - theirs;
        difference += off * off;
        norm += theirs * theirs;
        largest = fabs(off) > largest || isnan(off) ? fabs(off) : largest;
    }
    double relative = difference > 0 ? sqrt(difference / norm) : difference;
    fprintf(c->report, "%-44s %12.3e %12.3e  %s\n", name, largest, relative, judge_difference(c, relative <= c->limits.tensor));
}

static void compare_loss(Check *c, const char *name, double ours, double expected) {
    fprintf(c->report, "%-44s %12.6f %12.6f  %s\n", name, ours, expected, judge_difference(c, fabs(ours - expected) <= c->limits.loss));
}

/* -- Steps --------------------------------------------------------------------------------------------------------- */

static void load_batch(const Check *c) {
    int64_t rows = c->state.sequences * c->state.length, targets = 0;
    const Model *model = &c->session.training.model;
    Executor *executor = c->session.training.executor;
    int32_t *positions = executor_tensor(executor, model->positions);
    memcpy(executor_tensor(executor, model->tokens), c->state.tokens, rows * sizeof(int32_t));
    memcpy(executor_tensor(executor, model->targets), c->state.targets, rows * sizeof(int32_t));
    for (int64_t i = 0; i < rows; i++) {
        positions[i] = (int32_t)(i % c->state.length);
        targets += c->state.targets[i] >= 0;
    }
    executor_set_scalar(executor, model->scale, 1.0 / targets);
    executor_set_scalar(executor, model->share, 1);
}

static double run_checked_step(const Check *c) {
    program_run(&c->session.training, &(ProgramWork){.microbatches = 1});
    return wide(c, executor_tensor(c->session.training.executor, c->session.training.model.loss), 0);
}

static void check_logits(Check *c) {
    const Executor *executor = c->session.training.executor;
    TensorId logits = c->session.training.model.logits;
    compare_tensor(c, "logits", executor_tensor(executor, logits), c->state.logits, PRECISION_FP32,
        graph_elements(c->session.training.model.graph, logits));
}

static bool check_gradients(Check *c, Error *error) {
    const Graph *graph = c->session.training.model.graph;
    size_t bytes = graph->parameter_bytes;
    char *expected = memory_map(bytes, error);
    if (!expected) return error_context(error, "the gradients to compare with");
    llmc_state_gradients(&c->state, graph, &c->given->config->model, expected);
    const void *ours = executor_arena(c->session.training.executor, ARENA_GRADIENT);
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        compare_tensor(c, p->name, parameter_in(p, ours), parameter_in(p, expected), graph->precision, p->count);
    }
    memory_unmap(expected, bytes);
    return true;
}

static const OptimizerConfig optimizer_settings = {
    .name = OPTIMIZER_adamw, .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .clip = 1};

static void check_ten_steps(Check *c) {
    for (int step = 1; step <= DEBUG_STATE_STEPS; step++) {
        char name[32];
        double loss = run_checked_step(c);
        snprintf(name, sizeof name, "loss before step %d", step);
        if (c->given->losses) compare_loss(c, name, loss, c->given->losses[step - 1]);
        else fprintf(c->report, "%-44s %12.6f\n", name, loss);
        session_begin_step(&c->session, step, optimizer_settings.lr, c->config.batch.tokens);
        session_update(&c->session, sqrt(precise_value(session_gradient_squares(&c->session))));
    }
}

/* -- The whole ----------------------------------------------------------------------------------------------------- */

static bool start_session(Check *c, Error *error) {
    const DebugStateCheck *given = c->given;
    int64_t rows = c->state.sequences * c->state.length;
    c->config = (Config){.model = given->config->model,
        .precision = given->precision,
        .optimizer = optimizer_settings,
        .batch = {.sequences = c->state.sequences, .tokens = rows},
        .data.length = c->state.length,
        .dump = "logits", /* makes the program keep the logits */
        .layout = {.tp = 1, .pp = 1, .cp = 1, .ep = 1}};
    if (!session_plan(&c->session, &c->config, device_cpu(), error)) return false;
    int64_t bytes =
        session_budget(&c->session).total + c->session.training.plan.bytes[ARENA_GRADIENT]; /* of the session and the expected values */
    if (!memory_check(bytes, "the check", "use a machine with more memory, or the state of a smaller batch", error) ||
        !session_start(&c->session, comm_alone(), error) ||
        !weights_load_program(given->model, given->config, c->session.training.executor, error))
        return false;
    load_batch(c);
    return true;
}

static bool check_state_batch(Check *c, Error *error) {
    fprintf(c->report, "%-44s %12s %12s\n", "", "difference", "relative");
    double loss = run_checked_step(c);
    check_logits(c);
    if (!check_gradients(c, error)) return false;
    fprintf(c->report, "\n%-44s %12s %12s\n", "", "smelt", "expected");
    compare_loss(c, "loss", loss, c->state.loss);
    check_ten_steps(c);
    return true;
}

bool debug_state_check(const DebugStateCheck *given, FILE *report, int *differences, Error *error) {
    bool rough = given->precision == PRECISION_BF16;
    Check check = {.given = given, .report = report, .limits = rough ? (Limits){0.05, 0.05} : (Limits){1e-4, 1e-5}};
    bool done = llmc_state_open(&check.state, given->state, &given->config->model, error) && start_session(&check, error) &&
                check_state_batch(&check, error);
    session_free(&check.session);
    llmc_state_close(&check.state);
    *differences = check.differences;
    return done;
}
