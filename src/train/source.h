/* Where the commands that use a trained model get it from: a run folder (config.yaml and checkpoints). */
#ifndef SMELT_INFER_SOURCE_H
#define SMELT_INFER_SOURCE_H

#include "config.h"
#include "graph/graph.h"

/* Reads the configuration of the model in `folder`; strings go to `strings`. ERROR_CHECKPOINT when that is not a run folder. */
bool source_read_config(const char *folder, Config *config, OptionStrings *strings, Error *error);
/* Fills `master`, the WIDE arena of a graph of config->model in `precision` (any, whatever the run's was), with the weights of the newest
 * checkpoint. ERROR_CHECKPOINT. */
bool source_load_weights(const char *folder, const Config *config, Precision precision, void *master, int64_t *step, Error *error);

#endif
