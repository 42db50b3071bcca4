/* Rewards of completions for reinforcement learning, and the programs that compute them.
 *
 * A text names the rewards of a run, separated by commas, each with an optional weight:
 * "boxed, 0.2*format:<think>.*</think>". An argument that contains a comma stands in double quotes,
 * in which \" is a quote. docs/rewards.md lists the rewards and the protocol of reward programs.
 *
 * The reward of a sample is a function of the sample alone. Results come in the order in which
 * samples were submitted, whatever the order in which programs answer; from an environment, in which
 * samples wait for each other's answers, as soon as they are there. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "config/config.h"

typedef struct RewardSet RewardSet;

typedef struct RewardLimits {
    int64_t copies;      /* children of each program, and requests to a server, at once */
    int64_t in_flight;   /* requests that one child has at once; it may answer them in any order */
    int64_t attempts;    /* for a sample whose program fails, before the sample has failed */
    double seconds;      /* for the answer of a program or a server */
    double code_seconds; /* CPU time for the tests of generated code */
    int64_t code_bytes;  /* address space for generated code */
    bool skip;           /* a sample without a reward is reported and excluded; otherwise it is an error */
    bool here;           /* compute `code` in this process, which should be small: it forks for each test */
    bool environment;    /* the text is one program, whose answers may append to a sample (rl.environment) */
} RewardLimits;

/* One completion of a prompt. All pointers are borrowed during the call. */
typedef struct RewardSample {
    const char *prompt, *completion; /* bytes, which need not be UTF-8 */
    size_t prompt_size, completion_size;
    const int32_t *prompt_ids, *completion_ids; /* completion_ids NULL: the number of tokens is unknown */
    size_t prompt_count, completion_count;
    const char *finish;   /* "stop" or "length"; NULL: unknown */
    const json_t *record; /* the object of the prompt's line of JSON; its "answer" is compared */
    const json_t *turns;  /* of a sample with an environment, whose last turn is the completion; else NULL */
    bool last;            /* no more can be appended */
} RewardSample;

typedef struct RewardResult {
    int64_t id;
    double total;    /* sum of weight times value */
    double *values;  /* one for each reward of the text, in its order */
    json_t *metrics; /* numbers that programs reported, as {"NAME.METRIC": number}; NULL: none */
    json_t *append;  /* what an environment appends: a text or a list of messages; NULL: the sample has ended */
    char *note;      /* what a program remarked on the sample; NULL: nothing */
    char *failure;   /* with `skip`: the reason for a missing reward, whose `total` is 0; NULL: the sample has one */
} RewardResult;
void reward_result_free(RewardResult *result);

RewardLimits rewards_limits(const RlConfig *rl);

/* Reads the text and compiles its patterns. Programs start with the first sample. ERROR_USAGE. */
RewardSet *rewards_create(const char *text, RewardLimits limits, Error *error);
/* Ends programs: closes their input, and kills those that do not end. NULL is allowed. */
void rewards_free(RewardSet *rewards);

int rewards_count(const RewardSet *rewards);
/* Returns the name of a reward in metrics: its kind, with a number from the second of a kind on. */
const char *rewards_name(const RewardSet *rewards, int index);

/* Checks that a prompt's record has the fields that the rewards read, before anything is generated
 * for it. ERROR_DATA. */
bool rewards_check_record(const RewardSet *rewards, const json_t *record, Error *error);

/* Reads a sample from a JSON object with "completion", and perhaps "prompt" (or "prompt_text"), "completion_ids", "finish"
 * and "record", which is the object itself by default. The sample borrows its texts and `*ids`, which
 * the caller frees. ERROR_DATA. */
bool reward_sample_read(const json_t *object, RewardSample *sample, int32_t **ids, Error *error);

/* Begins to compute the reward of a sample. Rewards without a program are computed in this call. */
void rewards_submit(RewardSet *rewards, int64_t id, const RewardSample *sample);
/* Returns whether the result that rewards_take gives is there, for which it waits at most `seconds`. */
bool rewards_wait(RewardSet *rewards, double seconds);
/* Waits for the oldest submitted sample, with an environment for any, and takes its result, which the
 * caller frees. Without `skip`, a sample whose reward cannot be computed is an error, of a program
 * ERROR_DATA. */
bool rewards_take(RewardSet *rewards, RewardResult *result, Error *error);
/* Reports that a sample has no reward: an error, or with `skip` a warning and true. */
bool rewards_exclude(const RewardSet *rewards, int64_t id, const char *failure, Error *error);
