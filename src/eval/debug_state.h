/* llm.c's check of a training step, with its own files: a model, and PyTorch's state for one batch
 * (formats/llmc.h). */
#pragma once

#include "config/config.h"
#include "graph/graph.h"

enum { DEBUG_STATE_STEPS = 10 };

typedef struct DebugStateCheck {
    const char *model, *state; /* for weights_load; an llm.c file */
    const Config *config;      /* of the model */
    Precision precision;       /* of the computation */
    const double *losses;      /* [DEBUG_STATE_STEPS] expected losses of ten steps, or NULL: they are only printed */
} DebugStateCheck;

/* Prints to `report` how logits, loss and every gradient compare with the state, and the losses
 * before each of ten steps on its batch. The steps use AdamW with the defaults of train_gpt2.py
 * (rate 1e-4, betas 0.9 and 0.95, no decay, gradients clipped to norm 1). `*differences` receives
 * the number of comparisons beyond their limit: in bf16 a relative error of 0.05 and of a loss
 * 0.05; else 1e-4 and 1e-5. ERROR_CHECKPOINT, ERROR_MEMORY. */
bool debug_state_check(const DebugStateCheck *check, FILE *report, int *differences, Error *error);
