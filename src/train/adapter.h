/* Runs that train adapters (lora.rank): the base that they share with init=FOLDER, and what becomes of both. */
#pragma once

#include "train/session.h"

/* Fills what is frozen in a session from the model in `folder`, configured so. ERROR_CHECKPOINT, ERROR_USAGE when
 * that has adapters of its own. */
bool adapter_load_base(Session *session, const char *folder, const Config *origin, Error *error);
/* The weights of such a run as those of an ordinary model: W + (alpha / rank) B A of the base and the newest
 * adapters, in `master`, host memory of the MASTER arena of `graph`, of config->model in fp32 or fp64. */
bool adapter_load_merged(const char *run, const Config *config, const Graph *graph, void *master, int64_t *step, Error *error);
/* Writes the newest adapters as PEFT's folder: adapter_config.json and adapter_model.safetensors, in fp32. The
 * folder must not exist, or be empty. */
bool adapter_write(const char *run, const Config *config, const char *folder, int64_t *step, Error *error);
