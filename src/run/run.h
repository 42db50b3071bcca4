/* The run folder: RUN/config.yaml, run.json, metrics.jsonl, checkpoints/, data/, tensorboard/, report.html. */
#pragma once

#include "config/config.h"

/* The format of a run folder: its files, their contents, and the settings that config.yaml may
 * name. It is raised when a build of the previous format could not continue such a folder;
 * docs/checkpoints.md has the history. Each file also has its own format: checkpoints state theirs
 * in the manifest. */
enum { RUN_FORMAT = 1 };

/* Makes the folder if needed and keeps other processes from training in it until this process ends,
 * in any way. `*lock` is a descriptor to close, or -1 if the file system has no locks. ERROR_USAGE
 * if another process trains there. */
bool run_lock(const char *run, int *lock, Error *error);
/* Returns whether the folder is absent, or holds only files that a training writes. */
bool run_is_ours(const char *run);
/* Returns where the checkpoints of `run` with this configuration are (ckpt.h). */
const char *run_checkpoints(const char *run, const Config *config);
/* Makes the folder and, except for a fork, its config.yaml before the first checkpoint. Settings
 * that must stay the same have to equal those of an existing config.yaml, unless resume.accept
 * names them: ERROR_USAGE. */
bool run_open(const Config *config, Error *error);
bool run_write_config(const Config *config, Error *error);
/* Reads RUN/config.yaml, as a run remembers it (options_remember); strings go to `strings`.
 * ERROR_CHECKPOINT if it is missing. */
bool run_read_config(const char *run, Config *config, OptionStrings *strings, Error *error);

/* A checkpoint, as commands and init= name it. RUN: its newest good one; RUN@STEP; RUN@best: the
 * one with the lowest validation loss; or its folder, RUN/checkpoints/step-00000040, even if
 * checkpoint.store is elsewhere. */
typedef struct RunPoint {
    char *run;    /* the whole name if it has none of these forms */
    int64_t step; /* RUN_NEWEST, RUN_BEST, or the checkpoint's step */
} RunPoint;
enum { RUN_NEWEST = 0, RUN_BEST = -1 };
RunPoint run_point(const char *name);
void run_point_free(RunPoint *point);

/* Returns "Intel Xeon ..., 2 cores"; the caller frees it. */
char *run_describe_machine(void);
