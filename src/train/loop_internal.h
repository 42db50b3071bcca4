/* The state of a training while it runs, and what its files share: start.c brings it up and takes it down, step.c makes
 * one step, train.c does what comes between steps. */
#pragma once

#include <jansson.h>

#include "train/lineage.h"
#include "train/metrics_internal.h"
#include "train/pace_internal.h"
#include "train/phases.h"
#include "train/profile.h"
#include "train/train.h"

/* Chooses this rank's microbatches in the global order of the data, called by the loader's thread. `next` is the rank's
 * next microbatch of the `step` of the phase, whose first one is the loader's microbatch `first`: next % size == rank. */
typedef struct BatchPicker {
    const Config *config;
    int rank, size;
    int64_t step, first, next;
} BatchPicker;

/* Seconds that steps of this start waited for their data: the first one, and those after it. */
typedef struct DataWait {
    double first, later, longest;
    int64_t steps;
} DataWait;

/* Owns everything but what its comments except. */
typedef struct Loop {
    Config settings; /* as given, with the steps that they come to */
    Phases phases;
    int phase;            /* that the session is made for */
    const Config *config; /* of that phase; before there are phases, the settings */
    Device *device;
    Comm *comm;
    const TrainHost *host;
    int lock;        /* a descriptor: of the run folder; -1: none */
    bool new_folder; /* this start made the run folder, which goes again with a start that fails */
    Session session;
    Fp8Use fp8; /* of the phase, of all stages */
    Corpus corpus;
    Order *order;     /* of the corpus's samples */
    Origin origin;    /* rank 0's is every rank's */
    json_t *identity; /* of the run; the session borrows it, and the lease */
    Lease *lease;     /* of the run's store, on rank 0; NULL: none */
    json_t *changes;  /* since the newest checkpoint (lineage.h) */
    BatchPicker picker;
    Loader *loader;
    Watchdog *watchdog;    /* NULL until the first step can start */
    Metrics *metrics;      /* NULL on ranks other than 0, and while profiling: nothing is recorded */
    TokenIds prompt;       /* of text samples; none: no samples are made */
    StepInputs inputs;     /* this rank's share of the step, so that targets can be counted first */
    double measured_flops; /* per second and rank: of a large GEMM, or of the quickest step */
    Pace pace;
    int64_t available; /* bytes of memory for this rank before it took any; -1: unknown */
    bool dumped;
    char *logits;       /* of the step that is dumped, until it is; or NULL */
    bool untrained;     /* a step of which no token is trained was reported */
    bool unread;        /* data could not be read, on any rank */
    bool unrecorded;    /* the last record could not be written */
    bool unevaluated;   /* the last evaluation was given up for a signal */
    Error save_failure; /* of the last save that ended */
    double save_wait;   /* seconds that training stood still for saves, beside what reports know */
    DataWait data_wait;
    double waited;   /* seconds for which this rank has waited for collectives, as far as steps were reported */
    Profile profile; /* used when config->profile asks for it */
} Loop;

static inline bool loop_leads(const Loop *loop) { return comm_rank(loop->comm) == 0; }

static inline const Phase *loop_phase(const Loop *loop) { return &loop->phases.items[loop->phase]; }
static inline Position loop_position(const Loop *loop) {
    return (Position){loop->session.step, loop->session.samples, loop->session.phase_step};
}

/* Whether the next step is of another phase than the session is made for. */
static inline bool loop_ends_phase(const Loop *loop) { return loop->session.samples == phase_end(loop_phase(loop)); }

/* Whether `good` is true on all ranks: the same answer on each. A rank with `good` false keeps its error, which is set;
 * the others get one with its code, or ERROR_COMMUNICATION where starting again may help. */
bool loop_agree(const Loop *loop, const char *name, bool good, Error *error);
/* Takes note of whether a record was written: a full disk costs records, not the run. Clears the error. */
void loop_note_record(Loop *loop, bool written, Error *error);

/* Whether the step that the run continues from is still to be evaluated: its process ended before that was done or known
 * to the checkpoint. */
bool loop_owes_evaluation(const Loop *loop);

/* -- Start and end (start.c, start_reference.c) --------------------------------------------------------------------------------------- */

/* Everything up to the first step: all ranks agree on settings and data, the run folder is opened, the newest
 * checkpoint or the weights of init= are loaded. */
bool loop_start(Loop *loop, Error *error);
/* After the last step of a phase, which has been saved: a session for the next one, with the state of that checkpoint. */
bool loop_next_phase(Loop *loop, Error *error);
/* Frees everything in the loop, also of one that did not start. */
void loop_close(Loop *loop);

/* Whether the references of the run's pairs of answers are there (also where it has none), computed with its first weights. Sets
 * what checkpoints are to know of them. On all ranks the same. */
bool loop_has_reference(Loop *loop, bool *has, Error *error);
/* Computes those that are not, with the weights of the session, which are the first ones. Collective. */
bool loop_make_reference(Loop *loop, Error *error);

/* -- Steps (step.c) ------------------------------------------------------------------------------------------------ */

/* Prepares the data of the rank's steps, from the session's step on. */
bool loop_open_loader(Loop *loop, Error *error);
void loop_close_loader(Loop *loop); /* also where none is open */
/* Fills the program with images: those of a microbatch of the next step, which has so many samples; the rest of the last
 * microbatch is empty, and so are those behind it (image_training.c). */
void loop_put_images(const Loop *loop, int64_t microbatch, int64_t samples);
/* Describes the first NaN or infinity in the encodings of such a microbatch; without one leaves `text` as it is. */
void loop_find_bad_image(const Loop *loop, int64_t microbatch, int64_t samples, char *text, size_t size);
/* Makes the next step and reports it. Afterwards the session is that of a whole step. */
bool loop_step(Loop *loop, Error *error);
/* The error of a run that skips too many updates. */
bool loop_refuse_skips(const Skips *skips, int64_t step, Error *error);
