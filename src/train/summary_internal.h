/* The console output of a training at its start and at its end. */
#pragma once

#include "train/loop_internal.h"

/* Prints run, model, device, data, steps and memory, one line each; also sources and phases of a
 * mixture. */
void summary_start(const Loop *loop);
/* Prints the phase of a mixture that begins at the loop's position. */
void summary_phase(const Loop *loop);

/* Returns "smelt train RUN" with more words, quoted for a shell, and with the present number of
 * ranks; on several nodes also with the words that each node needs. The caller frees it. */
char *summary_command(const Config *config, const Comm *comm, const char *words);

/* The work since the process started. */
typedef struct SummaryEnd {
    int64_t first, step, tokens; /* the step that it continued from, the last step, the tokens in between */
    double seconds;
    Validation validation;
    bool exhausted; /* it stopped by eval.patience */
} SummaryEnd;
/* Prints the result, the amounts read of a mixture, and the next commands. */
void summary_end(const Loop *loop, const SummaryEnd *end);
