/* llm.c's check of a training step, made with its own files: a model and the state that PyTorch left of one batch
 * (model/llmc.h). */
#pragma once

#include "config/config.h"
#include "graph/graph.h"

enum { DEBUG_STATE_STEPS = 10 };

typedef struct DebugStateCheck {
    const char *model, *state; /* for source_load_weights, and a file of llm.c */
    const Config *config;      /* of the model */
    Precision precision;       /* to compute in */
    const double *losses;      /* [DEBUG_STATE_STEPS] that ten steps should have, or NULL: they are only printed */
} DebugStateCheck;

/* Prints to `report` how logits, loss and every gradient compare with those of the state, and the losses before each
 * of ten steps on its batch: AdamW as train_gpt2.py sets it up by default (rate 1e-4, betas 0.9 and 0.95, no decay,
 * gradients clipped to norm 1). `*differences` receives how many comparisons are beyond their limit: in bf16 a
 * relative error of 0.05 and of a loss 0.05; else 1e-4 and 1e-5. ERROR_CHECKPOINT, ERROR_MEMORY. */
bool debug_state_check(const DebugStateCheck *check, FILE *report, int *differences, Error *error);
