/* A training session: everything that is in memory while a configuration trains. Made after its plan was found to fit, so that a refusal
 * costs nothing. Owned by the command that trains; the loop, evaluation, checkpoints and the NaN search work on it. */
#pragma once

#include "ckpt/ckpt.h"
#include "config/config.h"
#include "layout/exchange.h"
#include "model/model.h"
#include "optim/optim.h"

typedef struct Saver Saver;

typedef struct Session {
    const Config *config;
    Backend backend; /* its device belongs to who planned the session */
    Comm *comm;      /* belongs to who started it; NULL before */
    Ranks ranks;     /* its groups */
    Layout *
        layout; /* what this rank holds of the arenas: in its master arena, which has local offsets from stage 1 on, and of the optimizer's state */
    CommSchedule *schedule, *evaluation_schedule;
    Model model, evaluation;
    Plan plan, evaluation_plan;
    Executor *executor, *evaluator;
    Exchange *exchange, *evaluation_exchange;
    Optimizer *optimizer;
    Saver *saver; /* what saves need (state.c); NULL before session_resume */
    int64_t step; /* completed */
} Session;

/* Bytes that a session takes of one rank, by category. */
typedef struct Budget {
    int64_t weights, master, gradients, optimizer, activations, scratch, evaluation, other, total;
    int64_t copy; /* of what a checkpoint takes, in host memory: part of the total on the CPU */
    int64_t activation_floor;
} Budget;

/* Builds and plans both programs (nothing is allocated but the description) for one of `size` ranks. The device outlives the session. ERROR_USAGE. */
bool session_plan_rank(Session *session, const Config *config, Device *device, int rank, int size, Error *error);
/* For a single one. */
bool session_plan(Session *session, const Config *config, Device *device, Error *error);
Budget session_budget(const Session *session);
/* Rows (tokens) of the largest step that this rank takes, in whole microbatches. */
int64_t session_step_rows(const Session *session);
void budget_print(const Budget *budget, FILE *file);
/* Parameters, program and memory table, for plan=true. */
void session_print_plan(const Session *session, FILE *file);
/* Fails with ERROR_MEMORY when the budget exceeds what this process may take, naming a change that would fit. */
bool session_check_memory(const Session *session, int64_t available, Error *error);

/* Allocates everything and sets the initial weights. `comm` has the ranks that the session was planned for, and outlives it. */
bool session_start(Session *session, Comm *comm, Error *error);
void session_free(Session *session);

/* Copies this rank's part of `master`, host memory with the offsets of `graph`'s parameters, into its master arena; then session_spread_weights. */
bool session_set_master(Session *session, const Graph *graph, const void *master, Error *error);
/* After something other than the optimizer wrote master weights: makes the weights on all ranks from them. Collective. */
void session_spread_weights(Session *session);

/* The type of a file in which a parameter, its gradient and its state are written as they are kept. */
StoredType session_stored_type(const Parameter *parameter);

/* -- Checkpoints: parameters, optimizer state, step (state.c) ------------------------------------------------------ */

/* Gets ready to save beside what the program does: called after the first step, which shall not wait for it. */
void session_prepare_save(Session *session);
/* Begins to save the step: returns when this rank's part is copied, and may be changed again. The save before must have ended. Collective. */
bool session_save_start(Session *session, Error *error);

/* How a save went: on rank 0 that of the whole checkpoint, on other ranks that of their part. */
typedef struct SaveReport {
    int64_t step, bytes, shared; /* shared: bytes that an older checkpoint had already */
    double seconds, stall;       /* from start to end; in which training stood still */
    bool saved;
    Error error; /* when not saved: older checkpoints are untouched */
} SaveReport;
/* Whether a save of this rank's part is under way; and whether it reads the state itself, for lack of a copy, so that no step may follow yet. */
bool session_is_saving(const Session *session);
bool session_save_holds(const Session *session);
/* Whether a save has ended since the last call. */
bool session_save_end(Session *session, SaveReport *report);

/* Loads the newest good checkpoint of the run, if there is one (session->step stays 0 otherwise). Collective. */
bool session_resume(Session *session, Error *error);
/* Loads only the weights of the newest checkpoint of `run`, configured so, into `master` (a WIDE arena of `graph`); but for what is frozen, which is in none. */
bool session_load_weights(const Graph *graph, const Config *config, const char *run, void *master, int64_t *step, Error *error);

/* Host memory for saves of a rank that holds so many bytes; waits for a save under way and gives it back. */
int64_t session_copy_bytes(const Config *config, const Layout *layout, int64_t master, int64_t optimizer);
void session_close_saver(Session *session);
