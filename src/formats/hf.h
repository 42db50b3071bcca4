/* Hugging Face folders and GGUF files, which are read in the same way: `folder` is the name of
 * either. A folder has config.json, model.safetensors or its shards with an index,
 * generation_config.json and, for the byte tokenizer, tokenizer.json with tokenizer_config.json, as
 * transformers 5 loads them (AutoModelForCausalLM, AutoTokenizer). Each family lists its classes
 * (FamilyRule.classes). Zyphra's first ZAYA1 folders, with attention and experts as separate layers,
 * are read too. */
#pragma once

#include <jansson.h>

#include "gguf/gguf.h"
#include "model/model.h"

/* -- Reading (hf_read.c) ------------------------------------------------------------------------------------------- */

typedef struct HfModel {
    ModelConfig config;
    Precision precision; /* BF16 for folders of bf16 or fp16 weights, otherwise FP32 */
    bool bytes;          /* its tokenizer.json is the byte tokenizer's */
    json_t *content;     /* of config.json */
    char *warnings;      /* one line about its fields without effect; NULL: none */
    char *unread;        /* one line about tensors that smelt leaves out; NULL: none */
} HfModel;

/* Returns whether `folder` has a config.json or is a GGUF file. */
bool hf_is_model(const char *folder);
/* Reads config.json as transformers does (hf_fields.c), or the keys of a GGUF file (gguf_config.c).
 * Refuses settings that our models cannot compute, with field and file. ERROR_CHECKPOINT. */
bool hf_read(const char *folder, HfModel *model, Error *error);
void hf_release(HfModel *model);

/* The weights of a folder, read parameter by parameter. */
typedef struct HfReader HfReader;
/* Maps the files. `graph`, a graph of the folder's model in any precision, must outlive the reader.
 * Every tensor of the model must be there with its shape, in fp32, fp16 or bf16, and no others.
 * NULL with ERROR_CHECKPOINT, which names file and tensor. */
HfReader *hf_reader_open(const char *folder, const ModelConfig *config, const Graph *graph, Error *error);
/* Converts parameter `parameter` of the graph into `values`, of the WIDE type. */
void hf_reader_load(const HfReader *reader, int parameter, void *values);
/* Rounds a matrix, table or convolution to bf16. */
void hf_reader_load_bf16(const HfReader *reader, int parameter, uint16_t *values);
void hf_reader_close(HfReader *reader);
/* Fills `master`, the WIDE arena of `graph`, with all parameters. */
bool hf_load_weights(const char *folder, const ModelConfig *config, const Graph *graph, void *master, Error *error);

/* -- Writing (hf.c) ------------------------------------------------------------------------------------------------ */

typedef struct HfExport {
    const ModelConfig *config;
    Precision precision; /* BF16 or FP32: the type of the tensors, except balancing biases, which are fp32 */
    /* The weights come from `master` or from `reader`; the other is NULL. If both are NULL, they are the
     * initial weights of a training run with `seed`, computed one parameter at a time. */
    const float *master;    /* the WIDE arena of a graph of `config` in either precision */
    const HfReader *reader; /* the weights of another folder, read while they are written */
    uint64_t seed;
    bool keep;              /* with a reader: tensors keep their types; rearranged ones become fp32 unless they are bf16 */
    bool mxfp4;             /* experts in MXFP4 (hf_mxfp4.c), as with fp8 */
    bool fp8;               /* linear layers in FP8 (hf_fp8.c), quantized from these types; other tensors are not affected */
    bool bytes;             /* the tokens are the byte tokenizer's: write it too */
    const char *new_tokens; /* comma-separated texts that the tokenizer gets as special tokens from `first_new` on; NULL: none */
    int32_t first_new;
    int64_t shard_bytes;      /* maximum bytes of tensors per file, unless one tensor is larger; 0: one file */
    const char *source;       /* a folder whose tokenizer files are copied, or a file with a tokenizer; NULL: none */
    const json_t *origin;     /* its config.json, which is kept, or an object of eos_token_id and eos_token; NULL without `source` */
    const json_t *generation; /* generation_config.json if `source` has none; NULL: made from `origin` */
} HfExport;

/* ERROR_USAGE names a setting that the family's class in transformers, or llama.cpp, does not
 * support. */
bool hf_check(const ModelConfig *config, Error *error);
bool gguf_check(const ModelConfig *config, Error *error);
/* ERROR_USAGE names the reason why vLLM or transformers cannot read the model in FP8. */
bool hf_check_fp8(const ModelConfig *config, Error *error);
/* ERROR_USAGE names the reason why transformers cannot read the model with experts in MXFP4. */
bool hf_check_mxfp4(const ModelConfig *config, Error *error);
/* The content of config.json; the caller owns the reference. */
json_t *hf_config(const HfExport *export);

/* Returns whether folders store a parameter in another order (Parameter.transposed, alternates). */
static inline bool hf_reorders(const Parameter *parameter) { return parameter->transposed || parameter->alternates; }
/* Copies a parameter of elements of `unit` bytes to the order of folders. */
void hf_reorder(const Parameter *parameter, const char *from, char *to, size_t unit);

/* Writes the folder under a temporary name beside it and renames it, so that it is complete or
 * absent. An existing folder must be empty, or, with `overwrite`, hold only files that an export
 * writes. ERROR_CHECKPOINT if a file cannot be written; ERROR_USAGE if the folder is in use or the
 * class cannot express the model. */
bool hf_write(const HfExport *export, const char *folder, bool overwrite, Error *error);
/* Writes only the files of the tokenizer and generation_config.json, into an existing folder. Weights
 * and types of `export` are not read. */
bool hf_write_tokenizer(const HfExport *export, const char *folder, Error *error);
/* Returns whether hf_write_tokenizer may write a file of this name. */
bool hf_is_tokenizer_file(const char *name);

/* Writes a GGUF file with matrices of type `type`, which must have an encoder (gguf_export.c).
 * `source` may be a GGUF file. `keep`, `precision` and `shard_bytes` are ignored. ERROR_USAGE if
 * llama.cpp does not support the model or its tokenizer, or if the file exists and `overwrite` is
 * false; ERROR_NUMERICS if a value is not finite or too large for the type. */
bool hf_write_gguf(const HfExport *export, const GgufType *type, const char *path, bool overwrite, Error *error);
