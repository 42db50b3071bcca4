/* Text that the model writes at an evaluation. */
#pragma once

#include "base/stop.h"
#include "launch/watchdog.h"
#include "run/corpus.h"
#include "session/session.h"

/* Appends the prompt of samples: the tokens of eval.prompt, else the first tokens of the validation
 * data; nothing if the run writes no samples. ERROR_USAGE, ERROR_DATA. */
bool text_sample_prompt(const Session *session, const Corpus *corpus, TokenIds *prompt, Error *error);

typedef struct TextSampleInput {
    Session *session;
    const Corpus *corpus;
    const TokenIds *prompt; /* at least one token */
    Watchdog *watchdog;     /* receives a heartbeat with every token */
    const StopRequest *stop;
} TextSampleInput;
typedef struct TextSample {
    char *prompt, *text; /* UTF-8 */
    int64_t tokens;      /* of `text` */
    double seconds;
    bool stopped; /* by a request, before its end */
} TextSample;
/* Writes a text with the session's weights. Collective; the same on all ranks. Always call
 * text_sample_free. */
bool text_sample(const TextSampleInput *input, TextSample *sample, Error *error);
void text_sample_free(TextSample *sample);
