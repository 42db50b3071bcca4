/* The state of a running training, shared by its files: start.c sets it up and frees it, step.c
 * makes one step, train.c does everything between steps. */
#pragma once

#include <jansson.h>

#include "eval/evaluate.h"
#include "eval/pairs.h"
#include "rl/rollout.h"
#include "run/corpus.h"
#include "run/events.h"
#include "run/exporter.h"
#include "run/sampler.h"
#include "run/lineage.h"
#include "run/metrics.h"
#include "run/phases.h"
#include "session/session.h"
#include "train/pace_internal.h"
#include "train/profile.h"
#include "train/routing_trace.h"
#include "train/train.h"

/* Chooses this rank's microbatches in the global order of the data; called by the loader's thread.
 * `next` is the rank's next microbatch of the phase's step `step`, whose first microbatch is the
 * loader's microbatch `first`: next % size == rank. */
typedef struct BatchPicker {
    const Config *config;
    int rank, size;
    int64_t step, first, next;
} BatchPicker;

/* Seconds that steps of this start waited for their data: the first step, and the later ones. */
typedef struct DataWait {
    double first, later, longest;
    int64_t steps;
} DataWait;

/* Smoothed over about fifty steps. */
typedef struct LossTrend {
    int64_t steps;
    double mean, variance;
} LossTrend;

/* Owns every field that is not marked as borrowed. */
typedef struct Loop {
    Config settings; /* as given, with the resulting steps */
    Phases phases;
    int phase;            /* the session's phase */
    const Config *config; /* of that phase; before there are phases, the settings */
    Device *device;
    Comm *comm;
    const TrainHost *host;
    int lock;        /* descriptor of the run folder's lock; -1: none */
    bool new_folder; /* this start made the run folder, and removes it if the start fails */
    Session session;
    Fp8Use fp8; /* of the phase, over all stages */
    Corpus corpus;
    Order *order;     /* of the corpus's samples */
    Origin origin;    /* rank 0's, the same on every rank */
    json_t *identity; /* of the run; borrowed by the session, like the lease */
    Lease *lease;     /* of the run's store, on rank 0; NULL: none */
    json_t *changes;  /* since the newest checkpoint (lineage.h) */
    BatchPicker picker;
    Loader *loader;
    RolloutSampler *rollouts; /* of reinforcement learning; NULL: other training, like the next fields */
    Rollout rollout;          /* whose samples are being trained */
    int64_t next_group;       /* the first of its groups that the present epoch has not trained */
    int64_t updates_left;     /* steps that train the rest of it */
    bool first_update;        /* the present step is the first one of its rollout */
    SampleBatch batch;        /* of the present step */
    int64_t sample_tokens;    /* of the batches of this start, without padding */
    int policy_faults[8];     /* rollouts in a row with each fault (policy_steps.c) */
    Watchdog *watchdog;       /* NULL until the first step can start */
    Metrics *metrics;         /* NULL on ranks other than 0, and while profiling: nothing is recorded */
    EventQueue *events;       /* NULL like `metrics` */
    Exporter *exporter;       /* NULL: none */
    Sampler *sampler;         /* NULL: none */
    LossTrend trend;
    double longest_step;   /* seconds of the longest of the latest steps */
    int64_t save_bytes;    /* of a checkpoint, of all ranks */
    int slow_rank;         /* the straggler that was reported; -1: none */
    TokenIds prompt;       /* for text samples; empty: no samples */
    StepInputs inputs;     /* this rank's share of the step, fetched first so that targets can be counted */
    double measured_flops; /* per second and rank: of a large GEMM, or of the fastest step */
    Pace pace;
    int64_t available; /* free memory for this rank before it allocated any; -1: unknown */
    bool dumped;
    char *logits;            /* of the step to be dumped, until it is dumped; or NULL */
    RoutingRecorder routing; /* for routing_trace, until it is written */
    bool untrained;          /* a step without trained tokens was reported */
    bool unread;             /* some rank could not read its data */
    bool unrecorded;         /* the last record could not be written */
    bool unevaluated;        /* the last evaluation was stopped by a signal */
    Error save_failure;      /* of the last save that ended */
    double save_wait;        /* seconds that training waited for saves and that are not reported yet */
    DataWait data_wait;
    double waited;   /* seconds that this rank has waited for collectives, up to the last reported step */
    Profile profile; /* used if config->profile is set */
} Loop;

static inline bool loop_leads(const Loop *loop) { return comm_rank(loop->comm) == 0; }

static inline const Phase *loop_phase(const Loop *loop) { return &loop->phases.items[loop->phase]; }
static inline Position loop_position(const Loop *loop) {
    return (Position){loop->session.step, loop->session.samples, loop->session.phase_step};
}

/* Returns whether the next step belongs to another phase than the session's. */
static inline bool loop_ends_phase(const Loop *loop) { return loop->session.samples == phase_end(loop_phase(loop)); }

/* Returns whether `good` is true on all ranks, with the same answer on each. A rank with `good`
 * false keeps its error, which must be set. The others get an error with its code, or
 * ERROR_COMMUNICATION if a restart may help. */
bool loop_agree(const Loop *loop, const char *name, bool good, Error *error);
/* Notes whether a record was written: a full disk costs records, not the run. Clears the error. */
void loop_note_record(Loop *loop, bool written, Error *error);

/* Records the warnings since the last call as events of this step. */
void loop_report_warnings(Loop *loop, int64_t step);

/* Records the sample of the machine since the last call, if there is one; `now` takes one. */
void loop_report_machine(Loop *loop, int64_t step, bool now);

/* Records the norms of layers if metrics.layers asks for them in this step, between backward pass and update. Collective. */
void loop_report_layers(Loop *loop, int64_t step);

/* Records an event and sends it to on_event. */
void loop_alarm(Loop *loop, RunEventKind kind, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Returns whether the step that the run continues from must still be evaluated, because its
 * process ended before the evaluation was done and stored in the checkpoint. */
bool loop_owes_evaluation(const Loop *loop);

/* -- Start and end (start.c, start_reference.c) --------------------------------------------------------------------------------------- */

/* Does everything up to the first step: all ranks agree on settings and data, the run folder is
 * opened, and the newest checkpoint or the weights of init= are loaded. */
bool loop_start(Loop *loop, Error *error);
/* Makes a session for the next phase, after the last step of a phase was saved, and loads that
 * checkpoint. */
bool loop_next_phase(Loop *loop, Error *error);
/* Frees everything in the loop, even if it did not start. */
void loop_close(Loop *loop);

/* Sets *has to whether the run's preference pairs have references, computed with its initial
 * weights; true if it needs none. Records their checksum for checkpoints. Equal on all ranks. */
bool loop_has_reference(Loop *loop, bool *has, Error *error);
/* Computes the missing references with the session's weights, which are the first ones.
 * Collective. */
bool loop_make_reference(Loop *loop, Error *error);

/* -- Steps (step.c) ------------------------------------------------------------------------------------------------ */

/* Prepares the data of the rank's steps, from the session's step on. */
bool loop_open_loader(Loop *loop, Error *error);
void loop_close_loader(Loop *loop); /* fine if none is open */
/* Fills the program with images of a microbatch of the next step, which has `samples` samples. The
 * rest of the last microbatch is empty, and so are later microbatches (image_steps.c). */
void loop_put_images(const Loop *loop, int64_t microbatch, int64_t samples);
/* Describes the first NaN or infinity in the encodings of such a microbatch; leaves `text`
 * unchanged if there is none. */
void loop_find_bad_image(const Loop *loop, int64_t microbatch, int64_t samples, char *text, size_t size);
/* For reinforcement learning (policy_steps.c). Open the rewards, before the model is loaded, and later the engine. Both do
 * nothing in other training. Collective. */
bool loop_open_rewards(Loop *loop, Error *error);
bool loop_open_rollouts(Loop *loop, Error *error);
void loop_close_rollouts(Loop *loop);
/* Returns whether a rollout has samples that are not trained yet: the state between two such steps is
 * not saved. */
bool loop_within_rollout(const Loop *loop);
/* Makes the batch of the next step, after a new rollout if the last one is trained. Sets loop->unread if
 * the samples cannot be had. Collective. */
bool loop_take_samples(Loop *loop, Error *error);
/* Describes the rollout, and the step with these sums over its tokens. */
void loop_describe_policy(const Loop *loop, const double sums[POLICY_SUMS], PolicyMetrics *metrics);
/* Judges answers to the validation prompts. The loss is the negative mean reward. Collective. */
bool loop_evaluate_policy(Loop *loop, Evaluation *result, Error *error);
/* Makes the next step and reports it. Afterwards the session is in the state of a whole step. */
bool loop_step(Loop *loop, Error *error);
/* Sets the error of a run that skips too many updates. */
bool loop_refuse_skips(const Skips *skips, int64_t step, Error *error);
