/* The sources of a trained model: a checkpoint of a run (RunPoint: RUN, RUN@STEP, RUN@best, or its
 * folder), a Hugging Face folder (config.json and safetensors), a GGUF file, one of llm.c's GPT-2
 * files, or PEFT's folder of adapters. `folder` is its name. A folder of adapters is named ADAPTER,
 * or ADAPTER@BASE if the base is not in the folder that adapter_config.json names. */
#pragma once

#include "config/config.h"
#include "data/shard_set.h"
#include "formats/peft.h"
#include "token/tokenizer.h"

/* Returns whether it is a checkpoint of a run, or a run. */
bool source_is_run(const char *folder);
/* Returns whether it is a Hugging Face folder or a GGUF file, and not a run. */
bool source_is_model_folder(const char *folder);
/* Checks that `run` is not the model of init=. Unless `run` is already a run, checks also that the
 * folder holds no model file, because its name would then mean the run. ERROR_USAGE. */
bool source_check_run(const char *run, const char *init, Error *error);
/* Checks that a run's folder does not also hold a model. ERROR_CHECKPOINT suggests a remedy. */
bool source_check_run_alone(const char *run, Error *error);
/* Reads the configuration of the model in `folder`; strings go to `strings`. For a folder or file
 * that is not a run, model and precision are set and all else has its default. ERROR_CHECKPOINT if
 * the kind of the folder is unknown, or smelt does not support its model. */
bool source_read_config(const char *folder, Config *config, OptionStrings *strings, Error *error);
/* Returns whether `path` is a configuration file: its name ends in .yaml or .yml, and it is not a run. */
bool source_is_configuration(const char *path);
/* Reads the model of a configuration file with the "key=value" of `settings`. The model has no weights yet. Model, precision, seed and data.tokenizer are set ("bytes" if neither the tokenizer nor the
 * vocabulary is given, since training would then read bytes) and all else has its default.
 * ERROR_USAGE if a training would refuse the settings, if the model's weights are those of init=, or if
 * it has adapters. */
bool source_read_untrained(const char *path, const OptionStrings *settings, Config *config, OptionStrings *strings, Error *error);
/* Returns the model's tokenizer: a path for tokenizer_open, "" for the byte tokenizer, or NULL if
 * it is unknown. A tokenizer in a folder of adapters has priority over the base's. The caller frees
 * it. */
char *source_tokenizer(const char *folder, const Config *config);
/* Checks that a model with `rows` rows of the embedding can belong to `tokenizer` (NULL: bytes),
 * called `name` in messages: each token has a row, and there are at most as many padding rows.
 * ERROR_USAGE, which ends in `cure`. */
bool source_check_rows(int64_t rows, const Tokenizer *tokenizer, const char *name, const char *cure, Error *error);
/* Warns, or with `refuse` fails with ERROR_USAGE, if the documents of a set, called `name` in
 * messages, do not begin as `bos` says. Only the first document is checked; conversations are not
 * checked. ERROR_DATA: it cannot be read. `tokenizer` may be NULL. */
bool source_check_bos(const ShardSet *set, const char *name, const Tokenizer *tokenizer, TokenizerBos bos, bool refuse, Error *error);
/* Returns whether a model was trained with other beginnings of texts (data.bos) than this tokenizer
 * makes. NULL (bytes): false. */
bool source_begins_otherwise(const Config *config, const Tokenizer *tokenizer);
/* Sets *begins to whether a set of texts begins with these ids. */
bool source_begins_with(const ShardSet *set, const TokenIds *ids, bool *begins, Error *error);

/* Returns whether the name is a folder of adapters. */
bool adapter_is_folder(const char *name);
/* Returns the folder itself, for the caller to free. */
char *adapter_folder(const char *name);
/* Reads the configuration of its base, with the base as init and lora.* from the adapters.
 * ERROR_CHECKPOINT. */
bool adapter_read_config(const char *name, Config *config, OptionStrings *strings, Error *error);
/* Opens the folder of adapters and returns its base, for the caller to free. NULL on failure. */
char *adapter_open(PeftFolder *peft, const char *name, Error *error);
