/* A training session: everything that is in memory while a configuration trains. Made after its plan was found to
 * fit, so that a refusal costs nothing. Owned by the command that trains; the loop, evaluation, checkpoints and the
 * NaN search work on it. */
#pragma once

#include "ckpt/ckpt.h"
#include "config/config.h"
#include "layout/pipeline_run.h"
#include "model/model.h"
#include "optim/optim.h"
#include "train/amax_history.h"

typedef struct Saver Saver;

/* Updates that on_nan=skip left out, in a row until now and in the whole run; `sound` is the newest checkpoint that was
 * saved with row 0 (0: none), which later ones do not push out. Checkpoints keep this. */
typedef struct Skips { int64_t row, all, sound; } Skips;

/* What evaluations came to, the same on all ranks; checkpoints keep this. Losses compare over the same targets in
 * sequences of the same length alone: other data, eval.sequences or phases of another length begin anew. Steps are 0
 * where there is none. */
typedef struct Validation {
    int64_t step, best_step; /* of the newest evaluation, and of that with the lowest loss */
    double loss, best_loss;  /* nats per token */
    int64_t tokens, length;  /* targets of each, and tokens of the sequences that they were in */
    int64_t waited;          /* evaluations since the best one */
    int64_t kept;            /* the newest step that was saved as the best one so far */
} Validation;

/* The update of the step that runs. */
typedef struct StepUpdate {
    int64_t step;
    double lr;
    double load_unit; /* a load error of 1 in a gradient of a balancing bias */
    double seconds;   /* that it took within the program, in a profile */
    bool judged;      /* optimizer.in_backward: the step's loss is known */
    bool made;        /* and it is finite, so that the program's run updates weights */
} StepUpdate;

typedef struct Session {
    const Config *config;
    Backend backend;        /* its device is the planner's */
    Comm *comm;             /* of who started the session; NULL before */
    Mesh *mesh;             /* of the layout; with groups from session_start on */
    Mesh *whole;            /* the same without AXIS_CP, for sequences that every rank has whole */
    PipelinePlan *pipeline; /* NULL: the model is not cut in stages, nor are there the runs below */
    Layout *layout;         /* this rank's shards of arenas and optimizer state */
    CommSchedule *schedule, *evaluation_schedule, *sampling_schedule;
    Model model, evaluation, sampling; /* sampling: no graph where the run writes no samples of text */
    ModelSize size;                    /* of the whole model; from session_start on */
    Plan plan, evaluation_plan, sampling_plan;
    Executor *executor, *evaluator, *sampler; /* sampler: NULL until the first sample (text_sample.c) */
    Exchange *exchange, *evaluation_exchange, *sampling_exchange;
    PipelineRun *run, *evaluation_run, *sampling_run; /* made with the exchanges */
    Optimizer *optimizer;
    AmaxHistory *history;   /* of fp8.scaling=delayed, NULL: there is none; from session_start on */
    Saver *saver;           /* what saves need (state.c); NULL before session_resume */
    int64_t step;           /* completed */
    int64_t samples;        /* consumed by these steps: the position in the data */
    int64_t phase_step;     /* as in Position (phases.h) */
    int begun;              /* phases of the run's mixture that these steps have begun; 0: it has none */
    int64_t parent;         /* the newest checkpoint that this state continues from; 0: none */
    const json_t *identity; /* of the run, for its checkpoints (identity_internal.h); of who started the session; NULL: none */
    Lease *lease;           /* of the run's store, on rank 0 (ckpt/lease.h); of who started the session; NULL: none */
    StepUpdate update;
    Skips skips;
    Validation validation;
    int64_t evaluated; /* the newest step whose evaluation the checkpoint that was loaded knows, on whatever data */
} Session;

/* Bytes of a rank's memory that a session takes, by category. */
typedef struct Budget {
    int64_t weights, codes, master, gradients, optimizer, activations, scratch, evaluation, other, total;
    int64_t copy; /* of the state, for asynchronous checkpoints, in host memory: in `total` with `host` only */
    bool host;    /* the device's memory is the host's */
    bool updated; /* gradients are those until their weights are updated: optimizer.in_backward */
    int64_t activation_floor;
} Budget;

/* Builds and plans the programs (nothing is allocated but the description) for one of `size` ranks. The device
 * outlives the session. ERROR_USAGE. */
bool session_plan_rank(Session *session, const Config *config, Device *device, int rank, int size, Error *error);
/* ERROR_USAGE where the configuration has fp8.recipe and the device no GEMMs of fp8. */
bool session_check_fp8(const Config *config, const Device *device, Error *error);
/* session_plan_rank for a single rank. */
bool session_plan(Session *session, const Config *config, Device *device, Error *error);
/* Of the whole model, by the plan of a rank that has all of it, else by a graph that is built for the purpose. */
ModelSize session_size(const Session *session);
Budget session_budget(const Session *session);
/* The runs of the session's stage, where there is a pipeline; else NULL. */
PipelineRun *session_run(const Session *session, PipelineKind kind, const Model *model, Executor *executor, Exchange *exchange);
/* Rows (tokens) of the largest step that this rank takes, in whole microbatches. */
int64_t session_step_rows(const Session *session);
/* A table; `available` bytes are there, < 0: unknown. */
void budget_print(const Budget *budget, int64_t available, FILE *file);
/* Fails with ERROR_MEMORY when the budget exceeds what this process may take, naming a change that would fit (fit.h);
 * rank 0 prints all of them. */
bool session_check_memory(const Session *session, int64_t available, Error *error);

/* Allocates everything and sets the initial weights. `comm` has the ranks that the session was planned for, and
 * outlives it. */
bool session_start(Session *session, Comm *comm, Error *error);
void session_free(Session *session);
/* Before the runs of a step: how its update is made, at the rate `lr`. With optimizer.in_backward it is made while the last of
 * them goes on, unless the loss of a rank is NaN or infinite: then the weights stay (StepUpdate.made). `rows` are those of
 * the step's microbatches on all ranks. */
void session_begin_step(Session *session, int64_t step, double lr, int64_t rows);
/* The sum of squares of this rank's gradients of the step, by optimizer_gradient_squares; NaN if an update was left
 * out. */
PreciseSum session_gradient_squares(Session *session);
/* The update by the gradients that are complete, whose norm over all ranks is `norm`: clipped. Nothing with
 * optimizer.in_backward. */
void session_update(Session *session, double norm);

/* After something other than the optimizer wrote master weights: makes the weights on all ranks from them.
 * Collective. */
void session_spread_weights(Session *session);

/* The type of a file in which a parameter, its gradient and its state are written as they are kept. */
StoredType session_stored_type(const Parameter *parameter);

/* -- Checkpoints: parameters, optimizer state, step (state.c) ------------------------------------------------------ */

/* Allocates the copy in the background: called after the first step, which does not wait for it. */
void session_prepare_save(Session *session);
/* Starts to save the step: returns when this rank's shard is copied, and may change again. The save before must have
 * ended. Collective. */
bool session_save_start(Session *session, Error *error);

/* The result of a save: on rank 0 of the whole checkpoint, on other ranks of their shard. */
typedef struct SaveReport {
    int64_t step;
    CheckpointStats files;
    double stall; /* seconds in which training stood still */
    bool saved;
    Error error; /* when not saved: older checkpoints are untouched */
} SaveReport;
/* Whether a save of this rank's shard is under way; and whether it reads the state itself, having no copy, so that
 * no step may run yet. */
bool session_is_saving(const Session *session);
bool session_save_holds(const Session *session);
/* Why this rank's shard could not be written in the newest save; NULL: it could, or all ranks know of one that failed. */
const Error *session_failed_shard(const Session *session);
/* On all ranks, once one of them has told the others: rank 0 waits for the shards no longer, and its save fails with the
 * reason. */
void session_give_up_shard(Session *session, const char *reason);
/* Whether a save has ended since the last call; *report says how. */
bool session_save_end(Session *session, SaveReport *report);

/* For a step that was saved, or is being saved, before it was evaluated: keeps what the evaluation came to, until
 * session_write_note adds it to the checkpoint. */
void session_note_validation(Session *session);
/* Adds to the checkpoint what was noted, unless its save is under way or has failed. A failure costs the note. */
bool session_write_note(Session *session, Error *error);

/* Loads the newest good checkpoint of the run, which is at `where` (ckpt.h), if there is one (session->step stays 0
 * otherwise); with `only`, of another run the checkpoint of that step, or fails. Collective. */
bool session_resume(Session *session, const char *where, int64_t only, Error *error);
/* Loads only the weights of the checkpoint `name` (RunPoint), of a run configured so, into `master` (a WIDE arena of
 * `graph`); but for what is frozen, which is in none. */
bool session_load_weights(const Graph *graph, const Config *config, const char *name, void *master, int64_t *step, Error *error);

/* Host memory for saves of a rank that holds so many bytes, `alone` such that only one rank writes; waits for a save under
 * way and gives it back. */
int64_t session_copy_bytes(const Config *config, const Layout *layout, int64_t master, int64_t optimizer, int64_t alone);
void session_close_saver(Session *session);
