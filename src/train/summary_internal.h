/* What a training says of itself at its start and at its end, on the console. */
#pragma once

#include "train/console.h"
#include "train/train.h"

/* Run, model, device, data, steps and memory, a line each. `available` bytes are there for this rank; < 0: unknown. */
void summary_start(Console *console, const Session *session, const Corpus *corpus, int64_t available);

/* "smelt train RUN" with more words, for a shell, and with as many ranks as there are; the caller frees. */
char *summary_command(const Config *config, const Comm *comm, const char *words);

/* What was done since the process started. */
typedef struct SummaryEnd {
    int64_t first, step, tokens; /* the step that it continued from, the last one; tokens between them */
    double seconds;
    Validation validation;
    bool exhausted; /* it stopped by eval.patience */
} SummaryEnd;
/* Result, and the commands that come next. */
void summary_end(Console *console, const Config *config, const Comm *comm, const SummaryEnd *end);
