/* What a training says of itself at its start and at its end, on the console. */
#pragma once

#include "train/loop_internal.h"

/* Run, model, device, data, steps and memory, a line each; sources and phases too where there is a mixture. */
void summary_start(const Loop *loop);
/* The phase of a mixture that begins at the loop's position. */
void summary_phase(const Loop *loop);

/* "smelt train RUN" with more words, for a shell, and with as many ranks as there are, where it is given on each of
 * several nodes with words that say so; the caller frees. */
char *summary_command(const Config *config, const Comm *comm, const char *words);

/* What was done since the process started. */
typedef struct SummaryEnd {
    int64_t first, step, tokens; /* the step that it continued from, the last one; tokens between them */
    double seconds;
    Validation validation;
    bool exhausted; /* it stopped by eval.patience */
} SummaryEnd;
/* Result, what was read of a mixture, and the commands that come next. */
void summary_end(const Loop *loop, const SummaryEnd *end);
