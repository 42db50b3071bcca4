/* What a model says of generation: the tokens that end a text, padding, and sampling settings, in the form of
 * generation_config.json. A run keeps what the model that it began with says, and adds the ends that it trains. */
#pragma once

#include <jansson.h>

#include "config/config.h"
#include "token/tokenizer.h"

/* Of a model folder its generation_config.json, else the tokens of its config.json; of a GGUF file those of its keys; of
 * adapters their base's; of a run, whose configuration is `config`, those of its init with the tokens in eos_token_id that
 * end its documents and answers. Empty where nothing is known. The caller owns the reference. NULL with an error for a file
 * that is there and cannot be read. */
json_t *generation_settings(const char *folder, const Config *config, Error *error);
/* Appends the tokens that end a text: eos_token_id of these, else the tokenizer's own (NULL: none). */
bool generation_end_tokens(const char *folder, const Config *config, const Tokenizer *tokenizer, TokenIds *ends, Error *error);
/* Writes what config->init says to RUN/generation_config.json, at the start of a run. */
bool generation_keep(const Config *config, Error *error);
