/* llm.c's GPT-2 files (model_*.bin, gpt2_124M.bin): a header of 256 int32 and all parameters end to end, kind by kind over the layers, in fp32 (version 3)
 * or bf16 (version 5). Matrices are [out, in]; the embedding has rows of zeros up to a multiple of 128. */
#ifndef SMELT_MODEL_LLMC_H
#define SMELT_MODEL_LLMC_H

#include "model/model.h"

/* Whether `path` is a file that opens with llm.c's number. */
bool llmc_is_model(const char *path);
/* ERROR_CHECKPOINT when header and size of the file do not agree or are none of a GPT-2. */
bool llmc_read(const char *path, ModelConfig *model, Precision *precision, Error *error);
/* Fills `master`, the WIDE arena of a graph of the file's model. ERROR_CHECKPOINT. */
bool llmc_load_weights(const char *path, const Graph *graph, void *master, Error *error);
/* Writes version 3 for FP32 and version 5 for BF16, under a temporary name first. ERROR_USAGE when the model is no GPT-2 as llm.c has it, or the file
 * exists and `overwrite` is false; ERROR_CHECKPOINT. */
bool llmc_write(const char *path, const ModelConfig *model, Precision precision, const float *master, bool overwrite, Error *error);

#endif
