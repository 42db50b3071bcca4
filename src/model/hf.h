/* Models of others: Hugging Face folders and GGUF files, which are read in the same way: `folder` is the name of either.
 * A folder has config.json, model.safetensors or its shards with an index, generation_config.json and, for
 * the byte tokenizer, tokenizer.json with tokenizer_config.json, as transformers 5 loads them (AutoModelForCausalLM,
 * AutoTokenizer). The classes are ZayaForCausalLM; LlamaForCausalLM, or MistralForCausalLM where Llama's code lacks
 * something that Mistral's has; MixtralForCausalLM for a llama with experts. Zyphra's first ZAYA1 folders, with
 * attention and experts as layers of their own, are read too. */
#pragma once

#include <jansson.h>

#include "gguf/gguf.h"
#include "model/model.h"

/* -- Reading (hf_read.c) ------------------------------------------------------------------------------------------- */

typedef struct HfModel {
    ModelConfig config;
    Precision precision; /* BF16 for folders of bf16 or fp16 weights, else FP32 */
    bool bytes;          /* its tokenizer.json is the byte tokenizer's */
    json_t *content;     /* of config.json */
    char *warnings;      /* one line about fields of it without effect; NULL: none */
} HfModel;

/* Whether `folder` has a config.json, or is a GGUF file. */
bool hf_is_model(const char *folder);
/* Reads config.json as transformers does (hf_fields.c), or the keys of a GGUF file (gguf_config.c); what our models
 * cannot compute is refused by field and file. ERROR_CHECKPOINT. */
bool hf_read(const char *folder, HfModel *model, Error *error);
void hf_release(HfModel *model);

/* The weights of a folder, to be read parameter by parameter. */
typedef struct HfReader HfReader;
/* Maps the files. `graph`, of the folder's model in any precision, outlives the reader. Every tensor of the model
 * must be there with its shape, in fp32, fp16 or bf16, and no other. NULL with ERROR_CHECKPOINT naming file and
 * tensor. */
HfReader *hf_reader_open(const char *folder, const ModelConfig *config, const Graph *graph, Error *error);
/* Converts parameter `parameter` of the graph into `values`, of the WIDE type. */
void hf_reader_load(const HfReader *reader, int parameter, void *values);
/* Rounds a matrix, table or convolution to bf16. */
void hf_reader_load_bf16(const HfReader *reader, int parameter, uint16_t *values);
void hf_reader_close(HfReader *reader);
/* Fills `master`, the WIDE arena of `graph`, with all of them. */
bool hf_load_weights(const char *folder, const ModelConfig *config, const Graph *graph, void *master, Error *error);

/* -- Writing (hf.c) ------------------------------------------------------------------------------------------------ */

typedef struct HfExport {
    const ModelConfig *config;
    Precision precision;    /* BF16 or FP32: the type of the tensors, but of balancing biases, which are fp32 */
    const float *master;    /* the WIDE arena of a graph of `config` in either precision, or NULL with a reader */
    const HfReader *reader; /* the weights of another folder, read as they are written; NULL with a master */
    bool keep;              /* with a reader: tensors keep their types; what must be rearranged and is not bf16 becomes fp32 */
    bool fp8;               /* linear layers in FP8 (hf_fp8.c), as they would round from these types; the rest as it would be */
    bool bytes;             /* the tokens are those of the byte tokenizer: write it too */
    const char *new_tokens; /* texts with commas between, which the tokenizer gets as special tokens from `first_new` on; NULL: none */
    int32_t first_new;
    int64_t shard_bytes;  /* of tensors in a file, at most, unless one tensor is larger; 0: one file */
    const char *source;   /* a folder whose tokenizer's files are copied, and ... */
    const json_t *origin; /* ... its config.json, which is kept, or an object of eos_token_id and eos_token; both NULL when there is none */
    const json_t *generation; /* generation_config.json, where `source` has none; NULL: it is made of `origin` */
} HfExport;

/* ERROR_USAGE naming the setting that the family's class in transformers cannot express, or llama.cpp cannot compute. */
bool hf_check(const ModelConfig *config, Error *error);
bool gguf_check(const ModelConfig *config, Error *error);
/* ERROR_USAGE naming why vLLM or transformers cannot read the model in FP8. */
bool hf_check_fp8(const ModelConfig *config, Error *error);
/* The content of config.json; the caller owns the reference. */
json_t *hf_config(const HfExport *export);

/* Matrices that folders hold the other way round (Parameter.transposed): `rows` x `columns` elements of `unit` bytes
 * become columns x rows. */
void hf_transpose(const char *from, char *to, int64_t rows, int64_t columns, size_t unit);

/* Writes the folder under a temporary name beside it and renames it, so that it is complete or not there. An
 * existing folder must be empty, or, with `overwrite`, hold nothing but files that an export writes.
 * ERROR_CHECKPOINT when a file cannot be written, ERROR_USAGE when the folder is in use or the model cannot be
 * expressed. */
bool hf_write(const HfExport *export, const char *folder, bool overwrite, Error *error);

/* Writes a GGUF file whose matrices have `type`, one with an encoder (gguf_export.c). `source` may be a GGUF file.
 * `keep`, `precision` and `shard_bytes` mean nothing. ERROR_USAGE naming what llama.cpp cannot compute or tokenize, or
 * when the file is there and `overwrite` is false; ERROR_NUMERICS when a value is not finite or too large for the type. */
bool hf_write_gguf(const HfExport *export, const GgufType *type, const char *path, bool overwrite, Error *error);
