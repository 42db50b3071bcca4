/* The sources of a trained model: a checkpoint of a run (RunPoint: RUN, RUN@STEP, RUN@best, or its
 * folder), a Hugging Face folder (config.json and safetensors), a GGUF file, or one of llm.c's
 * GPT-2 files. `folder` is its name. */
#pragma once

#include "config/config.h"
#include "data/data.h"
#include "infer/generate.h"
#include "formats/hf.h"
#include "model/model.h"
#include "token/tokenizer.h"
#include "train/session.h"

/* Returns whether it is a checkpoint of a run, or a run. */
bool source_is_run(const char *folder);
/* Returns whether it is a Hugging Face folder or a GGUF file, and not a run. */
bool source_is_model_folder(const char *folder);
/* Checks that `run` is not the model of init=, and that the folder holds no model file unless it is
 * already a run: its name would then mean the run. ERROR_USAGE. */
bool source_check_run(const char *run, const char *init, Error *error);
/* Checks that a run's folder does not also hold a model. ERROR_CHECKPOINT, whose message says what
 * to do. */
bool source_check_run_alone(const char *run, Error *error);
/* Reads the configuration of the model in `folder`; strings go to `strings`. For a folder or file
 * that is not a run, model and precision are set and all else has its default. ERROR_CHECKPOINT if
 * the folder is of no known kind, or smelt does not support its model. */
bool source_read_config(const char *folder, Config *config, OptionStrings *strings, Error *error);
/* Returns the model's tokenizer: a path for tokenizer_open, "" for the byte tokenizer, or NULL if
 * it is unknown. A tokenizer in a folder of adapters has priority over that of the base. The caller
 * frees it. */
char *source_tokenizer(const char *folder, const Config *config);
/* Checks that a model with `rows` rows of the embedding can belong to `tokenizer` (NULL: bytes),
 * called `name` in messages: each token has a row, and there are at most as many padding rows.
 * ERROR_USAGE, which ends in `cure`. */
bool source_check_rows(int64_t rows, const Tokenizer *tokenizer, const char *name, const char *cure, Error *error);
/* Warns, or with `refuse` fails with ERROR_USAGE, if the documents of a set, called `name` in
 * messages, do not begin as `bos` says. Only the first document is checked; conversations are not
 * checked. ERROR_DATA: it cannot be read. `tokenizer` may be NULL. */
bool source_check_bos(const ShardSet *set, const char *name, const Tokenizer *tokenizer, TokenizerBos bos, bool refuse, Error *error);
/* Sets *begins to whether a set of texts begins with these ids. */
bool source_begins_with(const ShardSet *set, const TokenIds *ids, bool *begins, Error *error);
/* Fills `master`, host memory of the size of the MASTER arena of `graph`, with the weights. `graph`
 * is of config->model in any precision, whatever the source's is. `*step` (`step` may be NULL)
 * receives the step of a run's checkpoint, 0 for other folders. ERROR_CHECKPOINT. */
bool source_load_weights(const char *folder, const Config *config, const Graph *graph, void *master, int64_t *step, Error *error);
/* Copies the trained parameters from a MASTER arena of a whole model to that of a graph, which may
 * have another precision and be cut. Both are host memory. */
void source_convert(const Graph *to, void *target, const Graph *from, const void *source);
/* Fills both weight arenas of a planned program on its device. Model folders are read parameter by
 * parameter. */
bool source_load_arenas(
    const char *folder, const Config *config, const Graph *graph, Device *device, void *master, void *weights, Error *error);
/* The source of whole parameters: a model folder's reader, or a MASTER arena of the host. */
typedef struct WeightSource {
    const HfReader *reader; /* opened for `graph`; or NULL */
    const Graph *graph;     /* of the whole model */
    const char *master;
} WeightSource;
/* Fills device memory with an interval of a parameter of `graph`, which may be cut. The values are
 * in bf16 with `as_bf16`, else in the parameter's state dtype, which must be the source's. */
void source_take(const WeightSource *source, const Graph *graph, ParameterInterval elements, bool as_bf16, Device *device, void *to);
/* Fills this rank's part of the trained parameters that the source has and does not freeze; they
 * are not spread yet. */
void source_take_shards(Session *session, const WeightSource *source);
/* Opens a generator (generator_create) with the newest weights of a run or model folder, whose
 * configuration is `config`. */
Generator *source_open_generator(
    const char *folder, const Mesh *mesh, const Config *config, Precision precision, Device *device, bool cache, Error *error);
bool source_load_program(const char *folder, const Config *config, Executor *executor, Error *error);

/* The parameters of a model in host memory, with the offsets of the graph that describes them.
 * Zero-initialize. */
typedef struct HostModel {
    Model model;
    char *master; /* a MASTER arena, zeroed */
} HostModel;
/* Opens the model, with adapters if `lora` (may be NULL) has a rank. ERROR_MEMORY. */
bool host_model_open(HostModel *host, const ModelConfig *config, const LoraConfig *lora, Precision precision, Error *error);
void host_model_close(HostModel *host);
