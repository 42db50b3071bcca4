/* Adapters on a frozen base: runs that train adapters (lora.rank) on the model of init=FOLDER, and
 * PEFT's folders of adapters. A folder of adapters is named ADAPTER, or ADAPTER@BASE if the base is
 * not in the folder that adapter_config.json names. */
#pragma once

#include "formats/hf.h"
#include "session/session.h"
#include "session/weights.h"

/* Fills the frozen parameters of a session, and the initial values of trained tables, from the
 * model in `folder`, whose configuration is `origin`. ERROR_CHECKPOINT; ERROR_USAGE if that model
 * has adapters itself. */
bool adapter_load_base(Session *session, const char *folder, const Config *origin, Error *error);
/* Fills this rank's part of the adapters from the folder or the run that lora.start names. The
 * caller then calls session_spread_weights. ERROR_USAGE if they do not fit the configuration. */
bool adapter_load_start(Session *session, Error *error);
/* Opens the newest adapters of a run, or the adapters of a folder, in `precision`, without the values of
 * their base. Their graph also has the base's parameters, whose pages are never touched. The caller closes `adapters`, also after a failure. */
bool adapter_load_alone(HostModel *adapters, const char *name, const Config *config, Precision precision, int64_t *step, Error *error);
/* Returns whether the last parts of two folder paths, or of two Hugging Face names, are equal. */
bool adapter_same_name(const char *a, const char *b);
/* Loads the weights of a run with adapters, or of a folder of adapters, as an ordinary model: W +
 * factor B A of the base and the newest adapters. They go to `master`, host memory of the MASTER
 * arena of `graph`, of config->model in fp32 or fp64. */
bool adapter_load_merged(const char *name, const Config *config, const Graph *graph, void *master, int64_t *step, Error *error);
/* The results of base and adapters for a few tokens, with which merged weights are compared:
 * fp32 logits, or velocities of images. */
typedef struct MergedCheck {
    float *expected; /* NULL: not enough memory to compare */
    int64_t count;
    double largest;
} MergedCheck;
/* Warns if the memory does not suffice for base and adapters. Always call adapter_check_end. */
bool adapter_check_start(MergedCheck *check, const char *name, const Config *config, Error *error);
void adapter_check_end(MergedCheck *check);
/* Computes the same results with merged weights, `master` in fp32. ERROR_NUMERICS if they differ
 * from `check` by more than rounding. */
bool adapter_check_merged(const MergedCheck *check, const char *name, const Config *config, void *master, Error *error);
/* Reads the weights back from the files in `out`, of any type, into `master`, the MASTER arena
 * of `graph` in fp32. Prints how far their results differ from `check`. */
bool adapter_check_written(const MergedCheck *check, const char *out, const Config *config, const Graph *graph, void *master, Error *error);
/* Writes the newest adapters of a run as PEFT's folder: adapter_config.json and
 * adapter_model.safetensors, in fp32, and the files of `tokenizer` (NULL: none). The folder appears
 * atomically. It must not exist or must be empty; with `overwrite` it may hold these files, but
 * nothing else. */
bool adapter_write(
    const char *run, const Config *config, const HfExport *tokenizer, const char *folder, bool overwrite, int64_t *step, Error *error);
/* Sets *differs if a run with adapters has another tokenizer or other chat templates than its base,
 * or if its base cannot be read. ERROR_DATA if a file of a tokenizer cannot be read. */
bool adapter_tokenizer_differs(const char *run, const Config *config, bool *differs, Error *error);
