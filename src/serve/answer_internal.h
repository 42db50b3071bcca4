/* Answers as JSON, in the shapes of OpenAI: whole, or as server-sent events. */
#pragma once

#include "serve/serve_sample_internal.h"

/* A request and its samples. Borrows the model. */
typedef struct ServeAnswer {
    const ServeModel *model;
    ServeRequest request;
    ServeSample *samples; /* [prompt_count, request.samples] */
    size_t sample_count;
    char id[40];
    json_int_t created; /* seconds since 1970 */
} ServeAnswer;
void serve_answer_free(ServeAnswer *answer);

/* Text that is to be sent; zero-initialize. */
typedef struct ServeOutput {
    char *bytes;
    size_t size, capacity, at; /* at: bytes that have been sent */
} ServeOutput;
void serve_output_event(ServeOutput *output, const json_t *data); /* NULL: [DONE] */

/* Returns the JSON text of a whole answer or of a fault, for the caller to free. */
char *serve_answer_whole(const ServeAnswer *answer);
char *serve_fault_text(const ServeFault *fault);
/* Appends events with what the samples have got since the last call. */
void serve_answer_events(ServeAnswer *answer, ServeOutput *output);
/* Appends the events after all samples have ended. */
void serve_answer_finish(ServeAnswer *answer, ServeOutput *output);
/* Appends the event of a failure. */
void serve_fault_event(const ServeFault *fault, ServeOutput *output);
