/* The built-in byte tokenizer: token b is byte b; 256 separates documents. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"

enum { BYTE_VOCABULARY = 257, BYTE_SEPARATOR = 256 };
#define BYTE_SEPARATOR_TEXT "<|separator|>" /* its name in tokenizer.json */
/* Returns the content of its tokenizer.json: token b is byte b, without merges; the separator is a
 * special token. */
json_t *byte_tokenizer(void);
/* Sets *is if a tokenizer.json, or that in a folder, is the byte tokenizer, or a GGUF file has it. */
bool byte_tokenizer_is(const char *place, bool *is, Error *error);
/* Sets *differs as tokenizer_differs does, but a place that has the byte tokenizer counts as "". Use
 * it for a shard's record, which never names the byte tokenizer's folder. */
bool byte_tokenizer_differs(const char *record, const char *other, bool *differs, Error *error);
