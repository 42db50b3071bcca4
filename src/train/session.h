/* A training session: everything that is in memory while a configuration trains. Made after its plan was found to fit, so that a refusal
 * costs nothing. Owned by the command that trains; the loop, evaluation, checkpoints and the NaN search work on it. */
#ifndef SMELT_TRAIN_SESSION_H
#define SMELT_TRAIN_SESSION_H

#include "config.h"
#include "model/model.h"
#include "optim/optim.h"

typedef struct Session {
    const Config *config;
    Backend backend; /* its device belongs to who planned the session */
    Model model, evaluation;
    Plan plan, evaluation_plan;
    Executor *executor, *evaluator;
    Optimizer *optimizer;
    int64_t step; /* completed */
} Session;

/* Bytes that a session takes, by category. */
typedef struct Budget {
    int64_t weights, master, gradients, optimizer, activations, scratch, evaluation, other, total;
    int64_t activation_floor;
} Budget;

/* Builds and plans both programs (nothing is allocated but the description). The device outlives the session. ERROR_USAGE. */
bool session_plan(Session *session, const Config *config, Device *device, Error *error);
Budget session_budget(const Session *session);
void budget_print(const Budget *budget, FILE *file);
/* Parameters, program and memory table, for plan=true. */
void session_print_plan(const Session *session, FILE *file);
/* Fails with ERROR_MEMORY when the budget exceeds what this process may take, naming a change that would fit. */
bool session_check_memory(const Session *session, int64_t available, Error *error);

/* Allocates everything and sets the initial weights. */
bool session_start(Session *session, Error *error);
void session_free(Session *session);

/* Checkpoints: parameters, optimizer state, step (src/train/state.c). */
bool session_save(Session *session, double *seconds, int64_t *bytes, Error *error);
/* Loads the newest good checkpoint of the run, if there is one (session->step stays 0 otherwise). */
bool session_resume(Session *session, Error *error);
/* Loads only the weights of a run's newest checkpoint into `master` (a WIDE arena of `graph`). */
bool session_load_weights(const Graph *graph, const char *run, void *master, int64_t *step, Error *error);

#endif
