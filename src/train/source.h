/* Where a trained model comes from: a run folder (config.yaml and checkpoints), a Hugging Face folder (config.json and safetensors), or one of llm.c's
 * GPT-2 files. */
#ifndef SMELT_TRAIN_SOURCE_H
#define SMELT_TRAIN_SOURCE_H

#include "config.h"
#include "graph/graph.h"

/* Whether `folder` has a config.yaml. */
bool source_is_run(const char *folder);
/* Reads the configuration of the model in `folder`; strings go to `strings`. Of folders and files that are no runs, model and precision are set and all else has its
 * default. ERROR_CHECKPOINT when the folder is of neither kind, or its model is none of ours. */
bool source_read_config(const char *folder, Config *config, OptionStrings *strings, Error *error);
/* Whether the byte tokenizer makes this model's tokens: assumed of runs with room for it, known of folders. */
bool source_has_byte_tokenizer(const char *folder, const Config *config);
/* Fills `master`, the WIDE arena of a graph of config->model in `precision` (any, whatever the source's is), with the newest weights. `*step` receives the
 * step of a run's checkpoint, 0 for other folders. ERROR_CHECKPOINT. */
bool source_load_weights(const char *folder, const Config *config, Precision precision, void *master, int64_t *step, Error *error);

#endif
