/* The run folder: RUN/config.yaml, metrics.jsonl, checkpoints/, data/, tensorboard/, report.html. */
#ifndef SMELT_TRAIN_RUN_H
#define SMELT_TRAIN_RUN_H

#include "config.h"

/* Makes the folder and its config.yaml; in an existing run demands that every setting that decides results is the same, and
 * names those that are not (ERROR_USAGE). */
bool run_open(const Config *config, Error *error);
/* Reads RUN/config.yaml; strings go to `strings`. ERROR_CHECKPOINT when it is missing. */
bool run_read_config(const char *run, Config *config, OptionStrings *strings, Error *error);
/* "Intel Xeon ..., 2 cores"; the caller frees. */
char *run_describe_machine(void);

#endif
