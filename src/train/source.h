/* Where a trained model comes from: a run folder (config.yaml and checkpoints) or a Hugging Face folder (config.json and safetensors). */
#ifndef SMELT_TRAIN_SOURCE_H
#define SMELT_TRAIN_SOURCE_H

#include "config.h"
#include "graph/graph.h"

/* Whether `folder` has a config.yaml. */
bool source_is_run(const char *folder);
/* Reads the configuration of the model in `folder`; strings go to `strings`. Of a Hugging Face folder, model and precision are set and all else has its
 * default. ERROR_CHECKPOINT when the folder is of neither kind, or its model is none of ours. */
bool source_read_config(const char *folder, Config *config, OptionStrings *strings, Error *error);
/* Fills `master`, the WIDE arena of a graph of config->model in `precision` (any, whatever the source's is), with the newest weights. `*step` receives the
 * step of a run's checkpoint, 0 for other folders. ERROR_CHECKPOINT. */
bool source_load_weights(const char *folder, const Config *config, Precision precision, void *master, int64_t *step, Error *error);

#endif
