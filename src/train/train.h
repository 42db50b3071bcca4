/* Training: the loop, and its modules without a header: data, evaluation, dumps, NaN search. */
#pragma once

#include "base/stop.h"
#include "data/data.h"
#include "images/images.h"
#include "launch/watchdog.h"
#include "train/console.h"
#include "train/phases.h"
#include "train/reference.h"
#include "train/session.h"

/* The process's services for training. */
typedef struct TrainHost {
    const Config *said; /* what the start prints (config/needs.h) */
    StopRequest *stop;  /* handled from the first step on */
    HangActions hang;
    Console *console;
    double peak_flops; /* FLOP/s, the vendor's value for the device in the precision of the run's GEMMs; NAN: unknown */
} TrainHost;

/* Checks that all ranks of `comm` have the same settings and program: ERROR_USAGE. Call it before
 * anything that depends on them. */
bool train_settings_agree(const Config *config, Comm *comm, Error *error);
/* Returns the device bytes for this rank's plan (< 0: unknown). The ranks of a node share host
 * memory, minus what each process takes besides its plan. */
int64_t train_memory(const Comm *comm, const Device *device);
/* Trains on the device with all ranks of `comm`, which agree on the settings
 * (train_settings_agree); resumes the run folder if it has checkpoints. ERROR_PREEMPTED after a
 * request to stop, if a checkpoint was written. */
bool train(const Config *config, Device *device, Comm *comm, const TrainHost *host, Error *error);

/* -- Data of a run (corpus.c) -------------------------------------------------------------------------------------- */

typedef struct Corpus {
    ShardSet *train; /* [train_count]: the sources of the mixture, or data.train alone; owned */
    BinPlan *bins;   /* [train_count], with data.packing=best_fit; else NULL; owned */
    int train_count; /* 0 if the model makes images */
    ShardSet valid;
    BinPlan valid_bins;                   /* of a validation part of pairs */
    Reference reference, valid_reference; /* of pairs; not open before they are computed (loop_make_reference) */
    bool has_valid;
    EncodingSet images, valid_images; /* of an image model, instead of train and valid; owned */
    int64_t image_length;             /* tokens per image and its text in the order: data.length; 0: text */
    Tokenizer *tokenizer;             /* of data.tokenizer; NULL: bytes, or unknown */
    bool bytes;                       /* made by the byte tokenizer */
} Corpus;

/* The name of data.tokenizer if shards do not record theirs. */
#define NO_TOKENIZER "none"
/* The byte tokenizer's name, for when an empty data.tokenizer would leave the choice open. */
#define BYTE_TOKENIZER "bytes"
/* Sets what the settings leave to the data, before config_check. BYTE_TOKENIZER becomes "". An
 * empty data.tokenizer becomes the one that the shard of data.train records, or NO_TOKENIZER; text
 * is then bytes. model.vocabulary 0 becomes the tokens of a tokenizer, rounded up to a multiple of
 * 64. ERROR_USAGE if a shard records another tokenizer. */
bool corpus_resolve(Config *config, OptionStrings *strings, Error *error);

/* The state of RUN/data: nothing binding, packed by an earlier start, or just packed by another
 * process. */
typedef enum CorpusState { CORPUS_NEW, CORPUS_PACKED, CORPUS_MADE } CorpusState;
/* Opens data.train and data.valid: shards as they are, text after packing it into RUN/data (until
 * the first checkpoint). RUN/tokenizer holds a copy of data.tokenizer, so that the run no longer
 * needs the original. */
bool corpus_open(Corpus *corpus, const Config *config, const Phases *phases, CorpusState state, Error *error);
/* Returns the tokens of a source that can be inputs, for its order; padding of bins and of images
 * counts. */
int64_t corpus_inputs(const Corpus *corpus, int source);
/* Returns the prefix of the validation shard of a started run, for the caller to free. NULL: it has
 * none (FINDING_ABSENT), or this cannot be read now. */
char *corpus_valid(const Config *config, Error *error);
/* Returns whether RUN/data holds the packed copy of data.train, or, if `valid` is not NULL, of the
 * validation text with that absolute path. */
bool corpus_keeps(const char *run, const char *valid);
/* Maps the training part if it is already packed (*found): a shard, or RUN/data. */
bool corpus_map_train(ShardSet *train, const Config *config, bool *found, Error *error);
/* Returns whether data of this path is text, which a run packs. */
bool corpus_is_text(const char *path);
/* Returns whether any training data is text. */
bool corpus_has_text(const Config *config);
/* Gives a fork the packed text and the tokenizer of its origin (links, or copies). */
bool corpus_fork(const Config *config, Error *error);
/* Returns the file of the reference of data.train or data.valid in RUN/data, for the caller to
 * free. */
char *corpus_reference_path(const Config *config, bool valid);
/* Opens the references that exist. */
bool corpus_open_references(Corpus *corpus, const Config *config, Error *error);
/* Sets config->steps and batch.last of a run that has reached `from`. They follow from
 * config->tokens, or from config->epochs over `inputs` inputs of training data; both are 0
 * afterwards. Then runs config_check. Without inputs, epochs are unchanged. ERROR_USAGE. */
bool corpus_resolve_steps(Config *config, int64_t inputs, Position from, Error *error);
/* Checks that a run of config->steps reads no source of its mixture more often than allowed, as far
 * as sources are packed: ERROR_USAGE, ERROR_DATA. A start checks all sources itself. */
bool corpus_check_epochs(const Config *config, Error *error);
/* Sets the error of data that `failed` of the ranks cannot read; `unread` is why this rank could
 * not, or ERROR_NONE. Always returns false: ERROR_DATA. */
bool corpus_refuse_unread(const Error *unread, int64_t failed, const Comm *comm, Error *error);
void corpus_close(Corpus *corpus);

/* -- Evaluation (evaluate.c) --------------------------------------------------------------------------------------- */

/* bits_per_byte is NaN if the tokenizer is unknown; `stopped`: not everything was read. */
typedef struct Evaluation {
    double loss, bits_per_byte;
    int64_t tokens;
    Rewards rewards;
    double seconds;
    bool stopped;
} Evaluation;

/* A MODEL_EVALUATE program with its weights set, and its data. */
typedef struct EvaluationInput {
    const Model *model;
    Executor *executor;
    PipelineRun *run; /* of a stage of a pipeline; NULL: the executor's program is the whole model */
    const ShardSet *set;
    const BinPlan *bins;        /* of a set of pairs; else NULL */
    const Reference *reference; /* of these pairs; NULL: log-probabilities of 0 */
    /* Called with the log-probabilities of each preference pair, on the ranks that have them; NULL:
     * not needed. */
    void (*take_answers)(void *context, int64_t token, double chosen, double rejected);
    void *take_context;
    const char *label;             /* of the progress; NULL: "evaluating" */
    int64_t vocabulary, sequences; /* sequences: the first ones of the set; 0: all */
    Comm *comm;                    /* the ranks of the model's mesh; all of them get the result */
    const Tokenizer *tokenizer;    /* of the set; NULL: with `bytes` the byte tokenizer, else unknown */
    bool bytes, document_mask;
    Watchdog *watchdog; /* receives a sign of life at `step` with every batch; NULL: none */
    int64_t step;
    const StopRequest *stop; /* requested on any rank: the rest is skipped; NULL: never */
} EvaluationInput;
bool evaluate_set(const EvaluationInput *input, Evaluation *result, Error *error);

/* Returns the log-probabilities of all pairs of a set with the session's weights, sorted by token,
 * on all ranks; the caller frees them. Collective. NULL: failure, or a request to stop
 * (ERROR_PREEMPTED). */
ReferencePair *evaluate_reference(Session *session, const Corpus *corpus, bool valid, const StopRequest *stop, Error *error);
/* Evaluates a session's model on the validation part of its corpus. */
bool evaluate(Session *session, const Corpus *corpus, Watchdog *watchdog, const StopRequest *stop, Evaluation *result, Error *error);
/* Checks that `evaluate` can use the validation part: data that is too short or of another
 * tokenizer is refused before the first step, not after the last. */
bool evaluate_check(const Config *config, const Corpus *corpus, Error *error);

/* -- Images (image_training.c) ------------------------------------------------------------------------------------- */

/* Like corpus_open, for an image model: data.train and data.valid are encodings. Always call
 * corpus_close. */
bool image_corpus_open(Corpus *corpus, const Config *config, Error *error);
/* Like evaluate, for an image model, on fixed noise: the mean squared error of a velocity value,
 * each sample at one of eight times. It does not depend on seeds, so runs are comparable. */
bool evaluate_images(Session *session, const Corpus *corpus, Watchdog *watchdog, const StopRequest *stop, Evaluation *result, Error *error);

/* -- Text samples (text_sample.c) ---------------------------------------------------------------------------------- */

/* Returns the rows of the program that writes samples: 0 if a run with these settings writes
 * none. */
int64_t text_sample_rows(const Config *config);
/* Appends the tokens that samples continue: those of eval.prompt, else the first ones of the
 * validation data; none if the run writes no samples. ERROR_USAGE, ERROR_DATA. */
bool text_sample_prompt(const Session *session, const Corpus *corpus, TokenIds *prompt, Error *error);

typedef struct TextSampleInput {
    Session *session;
    const Corpus *corpus;
    const TokenIds *prompt; /* at least one token */
    Watchdog *watchdog;     /* receives a sign of life with every token */
    const StopRequest *stop;
} TextSampleInput;
typedef struct TextSample {
    char *prompt, *text; /* UTF-8 */
    int64_t tokens;      /* of `text` */
    double seconds;
    bool stopped; /* by a request, before its end */
} TextSample;
/* Writes a text with the session's weights. Collective; the same on all ranks. Always call
 * text_sample_free. */
bool text_sample(const TextSampleInput *input, TextSample *sample, Error *error);
void text_sample_free(TextSample *sample);

/* -- Dumps (dump.c) ------------------------------------------------------------------------------------------------ */

/* All rows of a step, microbatch after microbatch; with a pair loss also PreferenceInputs.pairs and
 * .reference of each microbatch. */
typedef struct StepInputs {
    int32_t *tokens, *targets, *positions;
    int64_t rows;
    int32_t *pairs;
    double *reference;
} StepInputs;
/* Between a step's gradients and its update: writes FOLDER/step.safetensors (tokens, targets,
 * positions, loss, logits), and weights.safetensors and gradients.safetensors under the parameters'
 * names. `logits` are those that the program kept of all rows, WIDE [inputs->rows, vocabulary].
 * ERROR_CHECKPOINT. */
bool dump_step(const Session *session, const char *folder, const StepInputs *inputs, const char *logits, Error *error);

/* -- Pairs of answers (pairs.c); of other losses these do nothing ---------------------------------------------------- */

void pairs_allocate(StepInputs *inputs, const Model *model, int64_t microbatches);
void pairs_free(StepInputs *inputs);
/* Takes the pairs of a batch (NULL: none) that begin before `rows`, with their values in a
 * reference (NULL: zeros); returns their number. */
int64_t pairs_take(
    StepInputs *inputs, const Model *model, int64_t microbatch, const Batch *batch, int64_t rows, const Reference *reference);
/* Copies the pairs of a microbatch to the program; -1: none. */
void pairs_load(const StepInputs *inputs, const Model *model, Executor *executor, int64_t microbatch);
/* Adds the rewards of the program's runs. */
void pairs_add_rewards(const Model *model, const Executor *executor, double sums[REWARD_COUNT]);
Rewards pairs_mean(const double sums[REWARD_COUNT], int64_t pairs);

/* -- NaN search (numerics.c) --------------------------------------------------------------------------------------- */

/* Runs the present microbatch again and describes the first parameter or tensor with a NaN or
 * infinity. Leaves `text` unchanged if there is none, or if it is not empty. */
void numerics_find(const Session *session, char *text, size_t size);
/* The same for all microbatches of a step in this stage of a pipeline. Collective. */
void numerics_find_in_stage(const Session *session, int64_t microbatches, const PipelineWork *work, char *text, size_t size);
/* ERROR_NUMERICS if weights of this rank, frozen ones included, are NaN or infinite. */
bool numerics_check_parameters(const Session *session, Error *error);
/* Returns the first parameter with a NaN or infinity in this rank's shard, or NULL. */
const char *numerics_bad_parameter(const Session *session);
