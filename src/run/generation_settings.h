/* The generation settings of a model: the tokens that end a text, padding, and sampling settings, in the form of
 * generation_config.json. A run keeps the settings of the model that it began with, and adds the end tokens that it
 * trains. */
#pragma once

#include <jansson.h>

#include "config/config.h"
#include "token/tokenizer.h"

/* Reads the settings of a model. A model folder gives its generation_config.json, or else the
 * tokens of its config.json. A GGUF file gives the tokens of its keys. Adapters give the
 * generation_config.json in their folder, or else the settings of their base. A run with the
 * configuration `config` gives the settings of its init, and adds to eos_token_id the tokens that end
 * its documents and answers. `tokenizer` is the model's own if the
 * caller has it open; if it is NULL, a run opens it. The result is empty if nothing is known. The
 * caller owns the reference. NULL: a file exists but cannot be read. */
json_t *generation_settings(const char *folder, const Config *config, const Tokenizer *tokenizer, Error *error);
/* Appends the tokens that end a text: eos_token_id of these settings, else the tokenizer's own.
 * `tokenizer` NULL: the caller has no tokenizer. */
bool generation_end_tokens(const char *folder, const Config *config, const Tokenizer *tokenizer, TokenIds *ends, Error *error);
/* Writes the settings of config->init to RUN/generation_config.json, at the start of a run. */
bool generation_keep(const Config *config, Error *error);
