/* The loss of a model on held-out data: tokens, pairs of answers, or images. */
#pragma once

#include "base/stop.h"
#include "launch/watchdog.h"
#include "run/corpus.h"
#include "session/session.h"

/* bits_per_byte is NaN if the tokenizer is unknown; `stopped`: not everything was read. */
typedef struct Evaluation {
    double loss, bits_per_byte;
    int64_t tokens;
    int64_t missing; /* prompts of reinforcement learning without a reward */
    Rewards rewards;
    double seconds;
    bool stopped;
} Evaluation;

/* A MODEL_EVALUATE program with its weights set, and its data. */
typedef struct EvaluationInput {
    const Program *program;
    const ShardSet *set;
    const BinPlan *bins;        /* of a set of pairs; else NULL */
    int64_t stride;             /* from the start of a sequence to that of the next; 0: the length. Without bins */
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
/* With a stride below the length, sequences overlap, and a target counts in the first one that has it:
 * it then follows at least length - stride other tokens. */
bool evaluate_set(const EvaluationInput *input, Evaluation *result, Error *error);

/* Returns the log-probabilities of all pairs of a set with the session's weights, sorted by token,
 * on all ranks; the caller frees them. Collective. NULL: failure, or a request to stop
 * (ERROR_PREEMPTED). */
ReferencePair *evaluate_reference(Session *session, const Corpus *corpus, bool valid, const StopRequest *stop, Error *error);
/* Evaluates a session's model on the validation part of its corpus. */
bool evaluate(Session *session, const Corpus *corpus, Watchdog *watchdog, const StopRequest *stop, Evaluation *result, Error *error);
/* Checks that `evaluate` can use the validation data. If the data is too short or belongs to
 * another tokenizer, the run ends before the first step, not after the last. */
bool evaluate_check(const Config *config, const Corpus *corpus, Error *error);
