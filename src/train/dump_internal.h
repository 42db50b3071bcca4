/* Dumps of a step for comparison with other programs. */
#pragma once

#include "eval/pairs.h"
#include "session/session.h"

/* Between a step's gradients and its update: writes FOLDER/step.safetensors (tokens, targets,
 * positions, loss, logits), and weights.safetensors and gradients.safetensors under the parameters'
 * names. `logits`: the program's logits of all rows, WIDE [inputs->rows, vocabulary].
 * ERROR_CHECKPOINT. */
bool dump_step(const Session *session, const char *folder, const StepInputs *inputs, const char *logits, Error *error);
