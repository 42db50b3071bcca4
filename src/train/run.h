/* The run folder: RUN/config.yaml, run.json, metrics.jsonl, checkpoints/, data/, tensorboard/, report.html. */
#pragma once

#include "config/config.h"

/* The format of a run folder: which files it has, what they hold, and the settings that config.yaml may name. It is raised
 * when a build of the format before could not go on with such a folder; docs/checkpoints.md has the history. Every file's
 * own format comes on top: checkpoints say theirs in the manifest. */
enum { RUN_FORMAT = 1 };

/* Makes the folder if need be and keeps other processes from training in it until this one ends, however it ends;
 * `*lock` is a descriptor to close, or -1 where the file system knows no locks. ERROR_USAGE when another process
 * trains there. */
bool run_lock(const char *run, int *lock, Error *error);
/* Whether the folder is absent, or holds nothing but what a training writes there. */
bool run_is_ours(const char *run);
/* Whether there is a checkpoint, good or not. Before the first one nothing binds a run to its settings or its packed
 * text. */
bool run_started(const Config *config, bool *started, Error *error);
/* Where the checkpoints of `run`, configured so, are (ckpt.h). */
const char *run_checkpoints(const char *run, const Config *config);
/* Makes the folder, and, but for a fork, its config.yaml before the first checkpoint. Settings that a run keeps must be
 * those of a config.yaml that is there, but for those that resume.accept names: ERROR_USAGE. */
bool run_open(const Config *config, Error *error);
bool run_write_config(const Config *config, Error *error);
/* Reads RUN/config.yaml, as a run remembers it (options_remember); strings go to `strings`. ERROR_CHECKPOINT when it is
 * missing. */
bool run_read_config(const char *run, Config *config, OptionStrings *strings, Error *error);

/* A checkpoint as commands and init= name it: RUN, its newest good one; RUN@STEP; RUN@best, that with the lowest
 * validation loss; or its folder, RUN/checkpoints/step-00000040, also where checkpoint.store is elsewhere. */
typedef struct RunPoint {
    char *run;    /* what is none of these three: the whole name */
    int64_t step; /* RUN_NEWEST, RUN_BEST, or that of the checkpoint */
} RunPoint;
enum { RUN_NEWEST = 0, RUN_BEST = -1 };
RunPoint run_point(const char *name);
void run_point_free(RunPoint *point);

/* "Intel Xeon ..., 2 cores"; the caller frees. */
char *run_describe_machine(void);
