/* llm.c's GPT-2 files (model_*.bin, gpt2_124M.bin): a header of 256 int32, then all parameters
 * without gaps, sorted by kind: all layers of one kind before the next kind. They are fp32
 * (version 3) or bf16 (version 5). Matrices are [out, in]; the embedding is padded with rows of
 * zeros to a multiple of 128. */
#pragma once

#include "base/file.h"
#include "model/model.h"

/* Returns whether `path` is a file that starts with llm.c's magic number. */
bool llmc_is_model(const char *path);
/* ERROR_CHECKPOINT if header and file size do not agree or do not describe a GPT-2. */
bool llmc_read(const char *path, ModelConfig *model, Precision *precision, Error *error);
/* Fills `master`, the WIDE arena of a graph of the file's model. ERROR_CHECKPOINT. */
bool llmc_load_weights(const char *path, const Graph *graph, void *master, Error *error);
/* Writes version 3 for FP32 and version 5 for BF16, under a temporary name first. ERROR_USAGE if
 * llm.c cannot express the model, or if the file exists and `overwrite` is false;
 * ERROR_CHECKPOINT. */
bool llmc_write(const char *path, const ModelConfig *model, Precision precision, const float *master, bool overwrite, Error *error);

/* -- States -------------------------------------------------------------------------------------------------------- */

/* The state that llm.c's train_gpt2.py writes beside a model (*_debug_state.bin, version 2): a
 * batch and PyTorch's results for it, in fp32. After the same header come tokens, targets, logits,
 * the loss, and the gradients in the order of the model's parameters. */
typedef struct LlmcState {
    int64_t sequences, length;
    const int32_t *tokens, *targets; /* [sequences * length]; -1: no target */
    const float *logits;             /* [sequences * length, vocabulary] */
    float loss;                      /* the mean over all targets */
    FileMap map;
} LlmcState;

/* Returns whether `path` is a file that starts with the magic number of a state. */
bool llmc_is_state(const char *path);
/* ERROR_CHECKPOINT if the file is not a state, or not a state of `model`. The file must not be
 * overwritten in place while it is open. */
bool llmc_state_open(LlmcState *state, const char *path, const ModelConfig *model, Error *error);
/* Fills `gradients`, which has the layout of the gradient arena of `graph`, a graph of `model`. */
void llmc_state_gradients(const LlmcState *state, const Graph *graph, const ModelConfig *model, void *gradients);
void llmc_state_close(LlmcState *state); /* also accepts a zeroed or failed state */
