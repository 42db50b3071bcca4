/* Parts of rewards: kinds, jobs, answers, workers. A worker is a thread that has one child or one
 * connection. The lock of RewardSet protects queues, entries and counts. */
#pragma once

#include <pthread.h>

#include "base/curl.h"
#include "base/match.h"
#include "rl/reward.h"

typedef struct RewardKind RewardKind;
typedef struct RewardPart RewardPart;

/* What a reward gives for a sample. */
typedef struct RewardAnswer {
    int64_t id; /* -1: none */
    double value;
    json_t *metrics; /* NULL: none */
    json_t *append;  /* of an environment; NULL: none */
    char *note;      /* NULL: none */
    char *failure;   /* NULL: `value` is the reward */
} RewardAnswer;
void reward_answer_free(RewardAnswer *answer);
/* Reads one line of a program or the body of a server's answer, which may append if it is that of an
 * environment. ERROR_DATA if it is not an answer at all; a reward that is missing or not finite is the
 * failure of that sample. */
bool reward_answer_read(const char *text, size_t size, bool environment, RewardAnswer *answer, Error *error);

/* A submitted sample. */
typedef struct RewardEntry {
    RewardResult result;
    RewardAnswer *answers; /* one for each part */
    char *request;         /* the sample as a JSON object; NULL: no part has a program */
    int left;              /* parts without an answer */
    struct RewardEntry *next;
} RewardEntry;

/* One part of a sample, for a program. */
typedef struct RewardJob {
    RewardEntry *entry;
    int64_t number; /* by which the program names it: each attempt of a part has its own */
    int attempts;   /* that have failed */
    double until;   /* log_seconds() */
    int64_t start;  /* of its request, in the bytes that the program was sent */
    bool unread;    /* the program ended before it read the request: no attempt */
    struct RewardJob *next;
} RewardJob;

typedef struct RewardWorker {
    RewardPart *part;
    pthread_t thread;
    bool started;
} RewardWorker;

struct RewardPart {
    RewardSet *rewards;
    const RewardKind *kind;
    double weight;
    char *name, *argument;
    double numbers[2]; /* of the argument */
    MatchRegex *pattern;
    CurlApi *curl;
    RewardWorker *workers;
    RewardJob *queue, **queue_end; /* jobs that no worker has */
    int arrived, stop;             /* eventfds: one unit for each job of the queue; readable when workers are to end */
    int64_t next_number;
    int faults;     /* without an answer in between */
    char *given_up; /* why nothing is sent to the program any more; NULL: it is in use */
};

struct RewardKind {
    const char *name;
    bool takes_argument, needs_argument;
    bool compares; /* with the answer of the record */
    bool (*parse)(RewardPart *part, Error *error);
    bool (*check)(const RewardPart *part, const json_t *record, Error *error);
    /* Computes the value in the calling thread. NULL: a program does. */
    bool (*compute)(const RewardPart *part, const RewardSample *sample, const char *answer, RewardAnswer *result, Error *error);
    void *(*work)(void *worker); /* the thread of a worker; NULL: `compute` only */
};

/* The kind that a text begins with; NULL: none. */
const RewardKind *reward_kind(const char *text);
char *reward_kind_names(void); /* the caller frees */

const RewardLimits *reward_limits(const RewardPart *part);
bool reward_part_computes(const RewardPart *part); /* in the caller's thread */

/* For workers. Takes a job from the queue; NULL: none. */
RewardJob *reward_job_take(RewardPart *part);
/* Stores the answer of a job and frees the job. The part owns the answer's content from then on. */
void reward_job_finish(RewardPart *part, RewardJob *job, RewardAnswer answer);
/* Notes a fault of the program, which is a clause without its subject ("ended with ..."), and gives the
 * jobs that it had back to the queue, and counts an attempt at those that it read. Jobs that were attempted too often get it as their failure. After
 * too many faults in a row, or one that is `final`, the program is given up. */
void reward_jobs_fail(RewardPart *part, RewardJob *jobs, const char *fault, bool final);

enum { CODE_PATIENCE = 10 /* a test that waits is ended after this multiple of the limit of CPU time */ };

/* The sample as a JSON object in one line; the caller frees it. */
char *reward_request_write(const RewardSample *sample);

/* Computes the ratio of Python's difflib.SequenceMatcher(None, a, b), with its rule for texts of 200 or
 * more characters. Texts are Unicode code points. */
double reward_similarity(const int32_t *a, size_t a_count, const int32_t *b, size_t b_count);

/* Parts of the table of kinds that start programs. */
void *reward_program_work(void *worker);
bool reward_python_check(RewardPart *part, Error *error); /* the file can be read */
void *reward_http_work(void *worker);
bool reward_http_open(RewardPart *part, Error *error); /* finds libcurl */
bool reward_code_open(RewardPart *part, Error *error);
bool reward_code_check(const RewardPart *part, const json_t *record, Error *error);
bool reward_code_compute(const RewardPart *part, const RewardSample *sample, const char *answer, RewardAnswer *result, Error *error);
