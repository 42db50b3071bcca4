/* Hugging Face folders: config.json, generation_config.json, model.safetensors and, for the byte tokenizer, tokenizer.json with
 * tokenizer_config.json, as transformers 5 loads them (AutoModelForCausalLM, AutoTokenizer). The classes are ZayaForCausalLM; LlamaForCausalLM, or
 * MistralForCausalLM where Llama's code lacks something that Mistral's has; MixtralForCausalLM for a llama with experts. */
#ifndef SMELT_MODEL_HF_H
#define SMELT_MODEL_HF_H

#include <jansson.h>

#include "model/model.h"

/* The tokenizer's name for BYTE_SEPARATOR. */
#define HF_SEPARATOR "<|separator|>"

typedef struct HfExport {
    const ModelConfig *config;
    Precision precision;  /* BF16 or FP32: the type of the tensors; a zaya router's balancing biases are always fp32 */
    const float *master;  /* the WIDE arena of a graph of `config`, in either of the two precisions */
    bool bytes;           /* the tokens are those of the byte tokenizer: write it too */
} HfExport;

/* ERROR_USAGE naming the setting that the family's class in transformers cannot express. */
bool hf_check(const ModelConfig *config, Error *error);
/* The content of config.json; the caller owns the reference. */
json_t *hf_config(const HfExport *export);
/* The content of tokenizer.json: token b is byte b, without merges; the separator is a special token. */
json_t *hf_tokenizer(void);

/* Writes the folder under a temporary name beside it and renames it, so that it is complete or not there. An existing folder must be empty, or,
 * with `overwrite`, hold nothing but files that an export writes. ERROR_CHECKPOINT when a file cannot be written, ERROR_USAGE when the folder is
 * in use or the model cannot be expressed. */
bool hf_write(const HfExport *export, const char *folder, bool overwrite, Error *error);

#endif
