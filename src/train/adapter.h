/* Adapters beside a frozen base: runs that train them (lora.rank), whose base is that of init=FOLDER, and PEFT's folders of
 * adapters, whose name is ADAPTER, or ADAPTER@BASE where the base is not in the folder that adapter_config.json names. */
#pragma once

#include "train/session.h"

/* Whether the name is that of a folder of adapters. */
bool adapter_is_folder(const char *name);
/* The folder itself, for the caller to free. */
char *adapter_folder(const char *name);
/* The configuration of its base, with the base as init and lora.* as the adapters are. ERROR_CHECKPOINT. */
bool adapter_read_config(const char *name, Config *config, OptionStrings *strings, Error *error);

/* Fills what is frozen in a session from the model in `folder`, configured so. ERROR_CHECKPOINT, ERROR_USAGE when
 * that has adapters of its own. */
bool adapter_load_base(Session *session, const char *folder, const Config *origin, Error *error);
/* Fills what this rank holds of the adapters from the folder that lora.start names; they are not spread yet. ERROR_USAGE when
 * they are not as the configuration says. */
bool adapter_load_start(Session *session, Error *error);
/* The weights of a run with adapters, or of a folder of them, as those of an ordinary model: W + factor B A of the base and the
 * newest adapters, in `master`, host memory of the MASTER arena of `graph`, of config->model in fp32 or fp64. */
bool adapter_load_merged(const char *name, const Config *config, const Graph *graph, void *master, int64_t *step, Error *error);
/* The logits, or velocities of images, that base and adapters give in fp32 for a few tokens. */
typedef struct MergedCheck {
    float *expected; /* NULL: memory is too small to compare */
    int64_t count;
    double largest;
} MergedCheck;
/* Warns if memory does not suffice for base and adapters. Call adapter_check_end in any case. */
bool adapter_check_start(MergedCheck *check, const char *name, const Config *config, Error *error);
void adapter_check_end(MergedCheck *check);
/* Compares what merged weights, `master` in fp32, give. ERROR_NUMERICS when it differs by more than rounding. */
bool adapter_check_merged(const MergedCheck *check, const char *name, const Config *config, void *master, Error *error);
/* Reads the weights back from what was written to `out`, in whatever type, into `master`, the MASTER arena of `graph` in fp32, and
 * reports by how much they differ. */
bool adapter_check_written(const MergedCheck *check, const char *out, const Config *config, const Graph *graph, void *master, Error *error);
/* Writes the newest adapters of a run as PEFT's folder: adapter_config.json and adapter_model.safetensors, in fp32. The
 * folder appears whole or not at all. It must not exist or be empty, or with `overwrite` hold adapters alone. */
bool adapter_write(const char *run, const Config *config, const char *folder, bool overwrite, int64_t *step, Error *error);
