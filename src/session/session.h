/* A training session: everything in memory while a configuration trains. It is made after its plan
 * was found to fit, so that a refusal costs nothing. Owned by the command that trains; the loop,
 * evaluation, checkpoints and the NaN search work on it. */
#pragma once

#include "ckpt/ckpt.h"
#include "config/config.h"
#include "engine/engine.h"
#include "model/quantized.h"
#include "optim/optim.h"
#include "program/program.h"
#include "session/amax_history.h"

typedef struct Saver Saver;

/* Counts of updates that on_nan=skip skipped: consecutive ones up to now, and all of the run.
 * `sound` is the newest checkpoint that was saved with `row` 0 (0: none). Pruning keeps it.
 * Checkpoints store this struct. */
typedef struct Skips { int64_t row, all, sound; } Skips;

/* Results of evaluations, the same on all ranks; checkpoints keep this. Losses are comparable only
 * over the same targets in sequences of the same length: other data, eval.sequences or phases of
 * another length start anew. Steps are 0 if there is none. */
typedef struct Validation {
    int64_t step, best_step; /* of the newest evaluation, and of the one with the lowest loss */
    double loss, best_loss;  /* nats per token */
    int64_t tokens, length;  /* targets of each, and tokens per sequence */
    int64_t waited;          /* evaluations since the best one */
    int64_t kept;            /* the newest step that was saved as the best so far */
} Validation;

/* The update of the present step. */
typedef struct StepUpdate {
    int64_t step;
    double lr;
    double load_unit; /* the value of a load error of 1 in a balancing bias's gradient */
    double seconds;   /* its time within the program, in a profile */
    bool judged;      /* optimizer.in_backward: whether the step's loss is known */
    bool made;        /* and is finite, so that the program's run updates weights */
} StepUpdate;

enum { SAMPLE_PROMPT_TOKENS = 32 }; /* of text samples that continue the validation data */

typedef struct Session {
    const Config *config;
    Device *device;         /* borrowed */
    Comm *comm;             /* the caller's; NULL before session_start */
    Mesh *mesh;             /* of the layout; has groups from session_start on */
    Mesh *whole;            /* the same without AXIS_CP, for sequences that every rank has whole */
    PipelinePlan *pipeline; /* NULL: the model is not cut into stages */
    Layout *layout;         /* this rank's shards of arenas and optimizer state */
    Program training;
    /* These use training's weights. sampling has no graph if the run writes no samples, and starts with the first
     * sample (text_sample.c). In reinforcement learning, evaluation is the reference of adapters. scoring computes
     * the values of samples; it has no graph if the loss needs no values. */
    Program evaluation, sampling, scoring;
    EngineNeeds generation; /* of reinforcement learning, beside the session; from session_plan on */
    ModelSize size;         /* of the whole model; from session_start on */
    Optimizer *optimizer;
    AmaxHistory *history;   /* of fp8.scaling=delayed; from session_start on; NULL: none */
    Saver *saver;           /* state for saves (state.c); NULL before session_resume */
    int64_t step;           /* completed */
    int64_t samples;        /* consumed by these steps: the position in the data */
    int64_t phase_step;     /* as in Position (phases.h) */
    int begun;              /* begun phases of the run's mixture; 0: no mixture */
    int64_t parent;         /* the newest checkpoint that this state continues from; 0: none */
    const json_t *identity; /* of the run, for its checkpoints (identity.h); borrowed; NULL: none */
    Lease *lease;           /* of the run's store, on rank 0 (ckpt/lease.h); borrowed; NULL: none */
    StepUpdate update;
    Skips skips;
    Validation validation;
    int64_t evaluated; /* the newest evaluated step that the loaded checkpoint knows, on any data */
} Session;

/* Bytes of a rank's memory that a session takes, by category. */
typedef struct Budget {
    int64_t weights, quantized, master, gradients, optimizer, activations, scratch, evaluation, other, total;
    int64_t generation, generation_most; /* of reinforcement learning: with caches for one sequence (part of `total`), and for all slots */
    int64_t collectives;                 /* a margin for the buffers of NCCL or RCCL */
    int64_t trials;                      /* of the vendor's GEMM algorithms, in the first step */
    int64_t hosted;                      /* pinned host memory of offload: optimizer state and master weights; not in `total` */
    int64_t saved;                       /* the same: activations; not in `total` */
    int64_t copy;                        /* of the state, for asynchronous checkpoints, in host memory; in `total` only with `host` */
    bool host;                           /* the device's memory is the host's */
    bool updated;                        /* gradients live until their weights are updated: optimizer.in_backward */
    int64_t activation_floor;
} Budget;

/* Builds and plans the programs for one of `size` ranks; allocates only the description. The
 * session must not move once it has started, and the device outlives it. ERROR_USAGE. */
bool session_plan_rank(Session *session, const Config *config, Device *device, int rank, int size, Error *error);
/* ERROR_USAGE if the configuration has fp8.recipe and the device has no FP8 GEMMs. */
bool session_check_fp8(const Config *config, const Device *device, Error *error);
/* Like session_plan_rank, for a single rank. */
bool session_plan(Session *session, const Config *config, Device *device, Error *error);
/* Returns how many sequences a rank generates at once in rollouts, and to answer `judged` prompts (0: unknown). */
int64_t session_rollout_slots(const Session *session, int64_t judged);
/* Returns the size of the whole model, from the plan of a rank that has all of it, else from a
 * graph built for this purpose. */
ModelSize session_size(const Session *session);
Budget session_budget(const Session *session);
/* Returns the microbatches of the largest step on this rank, and their rows (tokens). */
int64_t session_step_microbatches(const Session *session);
int64_t session_step_rows(const Session *session);
/* Prints a table; `available` in bytes, < 0: unknown. */
void budget_print(const Budget *budget, int64_t available, FILE *file);
/* Fails with ERROR_MEMORY if the budget exceeds the memory of this process, and names a change that
 * would fit (fit.h). Rank 0 prints all such changes. */
bool session_check_memory(const Session *session, int64_t available, Error *error);

/* Fails with ERROR_MEMORY if offload needs more host memory than the machine has for this process
 * and the others of `local_ranks`. Before session_start of any of them. */
bool session_check_host_memory(const Session *session, int local_ranks, Error *error);

/* Allocates everything and sets the initial weights. `comm` has the ranks that the session was
 * planned for, and outlives the session. */
bool session_start(Session *session, Comm *comm, Error *error);
void session_free(Session *session);
/* Runs the training program over the microbatches of a step and reduces the gradients. Collective. */
bool session_run(Session *session, const ProgramWork *work, Error *error);
/* Sets how the step's update is made, at the rate `lr`, before the step's runs. With
 * optimizer.in_backward the update is made during the last run, unless the loss of a rank is NaN or
 * infinite: then the weights are unchanged (StepUpdate.made). `rows` counts the rows of the step's
 * microbatches on all ranks. */
void session_begin_step(Session *session, int64_t step, double lr, int64_t rows);
/* Returns the sum of squares of this rank's gradients of the step, by optimizer_gradient_squares;
 * NaN if an update was skipped. */
PreciseSum session_gradient_squares(Session *session);
/* Updates the weights by the complete gradients, clipped; `norm` is their norm over all ranks. Does
 * nothing with optimizer.in_backward. */
void session_update(Session *session, double norm);

/* Makes the weights on all ranks from master weights that something other than the optimizer wrote.
 * Collective. */
void session_spread_weights(Session *session);

/* The part of a frozen matrix that this rank holds, and its place in the WEIGHT arena; count 0: none of it. */
typedef struct HeldMatrix {
    ParameterInterval elements;
    void *weights;
} HeldMatrix;
/* Return the place of a frozen matrix of the training program (graph_is_base) that is not quantized, and of one that is. */
HeldMatrix session_held_matrix(const Session *session, int parameter);
QuantizedPlace session_quantized_place(const Session *session, int parameter);

/* Returns the file type in which a parameter, its gradient and its state are stored without
 * conversion. */
StoredType session_stored_type(const Parameter *parameter);

/* -- Checkpoints: parameters, optimizer state, step (state.c) ------------------------------------------------------ */

/* Allocates the copy in the background; called after the first step, which does not wait for it. */
void session_prepare_save(Session *session);
/* Starts to save the step. Returns when this rank's shard is copied and may change again. The
 * previous save must have ended. Collective. */
bool session_save_start(Session *session, Error *error);

/* The result of a save: on rank 0 of the whole checkpoint, on other ranks of their shard. */
typedef struct SaveReport {
    int64_t step;
    CheckpointStats files;
    double stall; /* seconds that training waited */
    bool saved;
    Error error; /* if not saved; older checkpoints are untouched */
} SaveReport;
/* Return whether a save of this rank's shard is in progress; and whether it reads the state itself,
 * without a copy, so that no step may run yet. */
bool session_is_saving(const Session *session);
bool session_save_holds(const Session *session);
/* Returns why this rank's shard could not be written in the newest save; NULL: it could be written,
 * or all ranks know of a failed shard. */
const Error *session_failed_shard(const Session *session);
/* Called on all ranks after one rank has reported a failure: rank 0 stops waiting for the shards,
 * and its save fails with the reason. */
void session_give_up_shard(Session *session, const char *reason);
/* Returns whether a save has ended since the last call; *report has its result. */
bool session_save_end(Session *session, SaveReport *report);

/* For a step that was saved, or is being saved, before its evaluation: keeps the result of the
 * evaluation until session_write_note adds it to the checkpoint. */
void session_note_validation(Session *session);
/* Adds the noted result to the checkpoint, unless its save is in progress or has failed. A failure
 * loses only the note. */
bool session_write_note(Session *session, Error *error);

/* Loads the newest good checkpoint of the run at `where` (ckpt.h), if there is one; otherwise
 * session->step stays 0. With `only`, loads another run's checkpoint of that step, or fails.
 * Collective. */
bool session_resume(Session *session, const char *where, int64_t only, Error *error);
/* Loads only the weights of the checkpoint `name` (RunPoint), of a run with this configuration,
 * into `master` (a WIDE arena of `graph`). Checkpoints have no frozen weights. */
bool session_load_weights(const Graph *graph, const Config *config, const char *name, void *master, int64_t *step, Error *error);

/* Returns the host memory for the saves of a rank with `master` and `optimizer` bytes, and `alone`
 * bytes that only one rank writes. session_close_saver waits for a save in progress and frees that
 * memory. */
int64_t session_copy_bytes(const Config *config, const Layout *layout, int64_t master, int64_t optimizer, int64_t alone);
void session_close_saver(Session *session);
/* Returns the bytes that this rank writes to a checkpoint. */
int64_t session_save_bytes(const Session *session);
