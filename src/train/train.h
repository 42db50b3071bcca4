/* Training: the loop, and the modules of it that have no header: data, evaluation, dumps, NaN search. */
#pragma once

#include "base/stop.h"
#include "data/data.h"
#include "images/images.h"
#include "launch/watchdog.h"
#include "train/console.h"
#include "train/phases.h"
#include "train/reference.h"
#include "train/session.h"

/* What training needs of its process. */
typedef struct TrainHost {
    const Config *said; /* what the start says (config/needs.h) */
    StopRequest *stop;  /* heeded from the first step on */
    HangActions hang;
    Console *console;
    double peak_flops; /* the vendor's figure for the device in the precision of the run's GEMMs, per second; NAN: unknown */
} TrainHost;

/* Whether all ranks of `comm` have the same settings and program: ERROR_USAGE. Comes before anything that they decide. */
bool train_settings_agree(const Config *config, Comm *comm, Error *error);
/* Bytes of the device for the plan of this rank (< 0: unknown). The ranks of a node share host memory, less what each process
 * takes beside its plan. */
int64_t train_memory(const Comm *comm, const Device *device);
/* Trains as configured on the device with all ranks of `comm`, which agree on the settings (train_settings_agree),
 * resuming the run folder when it holds checkpoints.
 * ERROR_PREEMPTED after a request to stop, when a checkpoint was written. */
bool train(const Config *config, Device *device, Comm *comm, const TrainHost *host, Error *error);

/* -- Data of a run (corpus.c) -------------------------------------------------------------------------------------- */

typedef struct Corpus {
    ShardSet *train; /* [train_count]: the sources of the mixture, or data.train alone; owned */
    BinPlan *bins;   /* [train_count], with data.packing=best_fit; else NULL; owned */
    int train_count; /* 0 where the model makes images */
    ShardSet valid;
    BinPlan valid_bins;                   /* of a validation part of pairs */
    Reference reference, valid_reference; /* of pairs; not open until it was computed (loop_make_reference) */
    bool has_valid;
    EncodingSet images, valid_images; /* of a model of images, in place of train and valid; owned */
    int64_t image_length;             /* tokens that an image and its text take of the order: data.length; 0: text */
    Tokenizer *tokenizer;             /* of data.tokenizer; NULL: bytes, or it is not known */
    bool bytes;                       /* made by the byte tokenizer */
} Corpus;

/* What data.tokenizer is called where shards do not record theirs. */
#define NO_TOKENIZER "none"
/* The byte tokenizer by name, where an empty data.tokenizer would leave the choice to something else. */
#define BYTE_TOKENIZER "bytes"
/* Before config_check: sets what the settings leave to the data. BYTE_TOKENIZER becomes "". data.tokenizer, when it is
 * empty, becomes the one that the shard of data.train records, or NO_TOKENIZER; text is bytes then. model.vocabulary 0
 * becomes the tokens of a tokenizer, rounded up to a multiple of 64. ERROR_USAGE when a shard records another
 * tokenizer. */
bool corpus_resolve(Config *config, OptionStrings *strings, Error *error);

/* What RUN/data holds: nothing that binds, what an earlier start packed, or what another process has just packed. */
typedef enum CorpusState { CORPUS_NEW, CORPUS_PACKED, CORPUS_MADE } CorpusState;
/* Opens data.train and data.valid: shards as they are, text after packing it into RUN/data (until the first
 * checkpoint). RUN/tokenizer holds a copy of data.tokenizer, so that the run no longer needs the original. */
bool corpus_open(Corpus *corpus, const Config *config, const Phases *phases, CorpusState state, Error *error);
/* Tokens of a source that can be inputs, of bins and of images with their padding, for its order. */
int64_t corpus_inputs(const Corpus *corpus, int source);
/* The prefix of the validation shard of a run that has started, for the caller to free; NULL: it has none
 * (FINDING_ABSENT), or that cannot be read now. */
char *corpus_valid(const Config *config, Error *error);
/* Whether RUN/data holds the packed copy of data.train, or, unless `valid` is NULL, of the validation text of that
 * absolute path. */
bool corpus_keeps(const char *run, const char *valid);
/* Maps the training part where it is packed already (*found): a shard, or RUN/data. */
bool corpus_map_train(ShardSet *train, const Config *config, bool *found, Error *error);
/* Whether data of this path is text, which a run packs. */
bool corpus_is_text(const char *path);
/* Whether training data is text, any of it. */
bool corpus_has_text(const Config *config);
/* Gives a fork the packed text and the tokenizer of the run that it is forked from (links, or copies). */
bool corpus_fork(const Config *config, Error *error);
/* The files of the references of data.train and data.valid in RUN/data, for the caller to free. */
char *corpus_reference_path(const Config *config, bool valid);
/* Opens those of them that are there. */
bool corpus_open_references(Corpus *corpus, const Config *config, Error *error);
/* Sets config->steps and batch.last of a run that has come to `from`. They follow from config->tokens, or from
 * config->epochs over `inputs` inputs of training data; both are 0 afterwards. Then runs config_check. Without
 * inputs, epochs stay. ERROR_USAGE. */
bool corpus_resolve_steps(Config *config, int64_t inputs, Position from, Error *error);
/* Whether a run of config->steps reads no source of its mixture more often than that allows, as far as sources are
 * packed: ERROR_USAGE, ERROR_DATA. A start checks all of them by itself. */
bool corpus_check_epochs(const Config *config, Error *error);
/* The error of data that `failed` of the ranks cannot read; `unread` is why this rank could not, or ERROR_NONE. Always
 * false: ERROR_DATA. */
bool corpus_refuse_unread(const Error *unread, int64_t failed, const Comm *comm, Error *error);
void corpus_close(Corpus *corpus);

/* -- Evaluation (evaluate.c) --------------------------------------------------------------------------------------- */

/* bits_per_byte is NaN where the tokenizer is not known; `stopped`: not all was read. */
typedef struct Evaluation {
    double loss, bits_per_byte;
    int64_t tokens;
    Rewards rewards;
    double seconds;
    bool stopped;
} Evaluation;

/* A MODEL_EVALUATE program with weights in place, and its data. */
typedef struct EvaluationInput {
    const Model *model;
    Executor *executor;
    PipelineRun *run; /* of a stage of a pipeline; NULL: the executor's program is the whole model */
    const ShardSet *set;
    const BinPlan *bins;        /* of a set of pairs; else NULL */
    const Reference *reference; /* of these; NULL: log-probabilities of 0 */
    /* Is given the log-probabilities of each pair of answers on the ranks that have them; NULL: nobody asks. */
    void (*take_answers)(void *context, int64_t token, double chosen, double rejected);
    void *take_context;
    const char *label;             /* of the progress; NULL: "evaluating" */
    int64_t vocabulary, sequences; /* the first ones of the set; sequences 0: all */
    Comm *comm;                    /* the ranks of the model's mesh; all of them get the result */
    const Tokenizer *tokenizer;    /* of the set; NULL: with `bytes` the byte tokenizer, else unknown */
    bool bytes, document_mask;
    Watchdog *watchdog; /* gets a sign of life at `step` with every batch; NULL: none */
    int64_t step;
    const StopRequest *stop; /* made on any rank: the rest is left out; NULL: nothing stops it */
} EvaluationInput;
bool evaluate_set(const EvaluationInput *input, Evaluation *result, Error *error);

/* The log-probabilities of all pairs of a set with the session's weights, in the order of their tokens, on all ranks; the caller
 * frees. Collective. NULL: failure, or a request to stop (ERROR_PREEMPTED). */
ReferencePair *evaluate_reference(Session *session, const Corpus *corpus, bool valid, const StopRequest *stop, Error *error);
/* A session's model on the validation part of its corpus. */
bool evaluate(Session *session, const Corpus *corpus, Watchdog *watchdog, const StopRequest *stop, Evaluation *result, Error *error);
/* Whether `evaluate` can use the validation part: data that is too short or of another tokenizer is refused before
 * the first step, not after the last. */
bool evaluate_check(const Config *config, const Corpus *corpus, Error *error);

/* -- Images (image_training.c) ------------------------------------------------------------------------------------- */

/* corpus_open of a model of images: data.train and data.valid are encodings. corpus_close in any case. */
bool image_corpus_open(Corpus *corpus, const Config *config, Error *error);
/* evaluate of a model of images, on fixed noise: the mean squared error of a value of the velocity, each sample at one of
 * eight times. Seeds do not enter, so that runs compare. */
bool evaluate_images(Session *session, const Corpus *corpus, Watchdog *watchdog, const StopRequest *stop, Evaluation *result, Error *error);

/* -- Text samples (text_sample.c) ---------------------------------------------------------------------------------- */

/* Rows of the program that writes samples: 0 where a run of these settings makes none. */
int64_t text_sample_rows(const Config *config);
/* Appends the tokens that samples go on from: those of eval.prompt, else the first ones of the validation data; none
 * where the run makes no samples. ERROR_USAGE, ERROR_DATA. */
bool text_sample_prompt(const Session *session, const Corpus *corpus, TokenIds *prompt, Error *error);

typedef struct TextSampleInput {
    Session *session;
    const Corpus *corpus;
    const TokenIds *prompt; /* at least one token */
    Watchdog *watchdog;     /* gets a sign of life with every token */
    const StopRequest *stop;
} TextSampleInput;
typedef struct TextSample {
    char *prompt, *text; /* UTF-8 */
    int64_t tokens;      /* of `text` */
    double seconds;
    bool stopped; /* by a request, before its end */
} TextSample;
/* Writes a text with the session's weights. Collective; the same on all ranks. text_sample_free in any case. */
bool text_sample(const TextSampleInput *input, TextSample *sample, Error *error);
void text_sample_free(TextSample *sample);

/* -- Dumps (dump.c) ------------------------------------------------------------------------------------------------ */

/* All rows of a step, microbatch after microbatch; of a loss over pairs also, of each microbatch, PreferenceInputs.pairs and
 * .reference. */
typedef struct StepInputs {
    int32_t *tokens, *targets, *positions;
    int64_t rows;
    int32_t *pairs;
    double *reference;
} StepInputs;
/* Between a step's gradients and its update: writes FOLDER/step.safetensors (tokens, targets, positions, loss,
 * logits), weights.safetensors and gradients.safetensors, these two under the parameters' names. `logits` are those that
 * the program kept of all rows, WIDE [inputs->rows, vocabulary]. ERROR_CHECKPOINT. */
bool dump_step(const Session *session, const char *folder, const StepInputs *inputs, const char *logits, Error *error);

/* -- Pairs of answers (pairs.c); of other losses these do nothing ---------------------------------------------------- */

void pairs_allocate(StepInputs *inputs, const Model *model, int64_t microbatches);
void pairs_free(StepInputs *inputs);
/* Takes the pairs of a batch (NULL: none) that begin before `rows`, with what a reference (NULL: zeros) knows of them; how
 * many there are. */
int64_t pairs_take(
    StepInputs *inputs, const Model *model, int64_t microbatch, const Batch *batch, int64_t rows, const Reference *reference);
/* Hands those of a microbatch to the program; -1: none. */
void pairs_load(const StepInputs *inputs, const Model *model, Executor *executor, int64_t microbatch);
/* Adds what the program's runs came to. */
void pairs_add_rewards(const Model *model, const Executor *executor, double sums[REWARD_COUNT]);
Rewards pairs_mean(const double sums[REWARD_COUNT], int64_t pairs);

/* -- NaN search (numerics.c) --------------------------------------------------------------------------------------- */

/* Runs the microbatch whose inputs are in place again and describes the first parameter or tensor with a NaN or
 * infinity; where there is none, or `text` holds one already, leaves it as it is. */
void numerics_find(const Session *session, char *text, size_t size);
/* The same for all microbatches of a step in this stage of a pipeline. Collective. */
void numerics_find_in_stage(const Session *session, int64_t microbatches, const PipelineWork *work, char *text, size_t size);
/* ERROR_NUMERICS where weights of this rank, frozen ones included, are NaN or infinite. */
bool numerics_check_parameters(const Session *session, Error *error);
/* The first parameter with a NaN or infinity in this rank's shard, or NULL. */
const char *numerics_bad_parameter(const Session *session);
