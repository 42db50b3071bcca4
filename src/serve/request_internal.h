/* The body of a request: JSON in, prompts as tokens and settings out. A field that would change the
 * answer and is not supported is refused by name, never ignored. */
#pragma once

#include "infer/generated_text.h"
#include "serve/serve.h"

typedef enum ServeKind { SERVE_COMPLETION, SERVE_CHAT } ServeKind;

/* A refusal, in the terms of OpenAI's errors. */
typedef struct ServeFault {
    int status;       /* of HTTP; 0: no fault */
    const char *code; /* NULL: none */
    char field[64];   /* of the body; "": none. This and the message need not be UTF-8, if they quote a body */
    char message[1024];
} ServeFault;
/* Sets a fault and returns false. `field` NULL: none. */
bool serve_refuse(ServeFault *fault, int status, const char *code, const char *field, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* Tokens with their log-probabilities. Zero-initialize. */
typedef struct ServeScores {
    EngineToken *tokens; /* without EngineToken.top */
    size_t count;
    EngineScore *top; /* [count, ServeRequest.top]; the token -1: the vocabulary has fewer */
    size_t top_count;
} ServeScores;
/* Appends a token and the `top` likeliest ones in its place; top < 0 counts as 0. */
void serve_scores_add(ServeScores *scores, const EngineToken *token, int64_t top);
void serve_scores_free(ServeScores *scores);

typedef struct ServePrompt {
    TokenIds ids;
    char *text; /* with `echo`; UTF-8 */
    size_t size;
    ServeScores scores; /* of all ids but the first, once the engine has them; serve_request_scores_prompts */
} ServePrompt;

/* Zero-initialize, free with serve_request_free. */
typedef struct ServeRequest {
    ServeKind kind;
    int adapter; /* of EngineRequest */
    ServePrompt *prompts;
    size_t prompt_count;
    int64_t tokens;  /* most tokens of a sample; 0: as many as fit */
    int64_t samples; /* of each prompt */
    Sampling sampling;
    EnginePenalties penalties; /* owns its biases */
    int64_t seed;              /* -1: the server draws one */
    StopTexts stops;
    bool stream, usage, echo, ids;
    bool scores; /* chat: log-probabilities are wanted */
    int64_t top; /* likeliest tokens that are listed beside each token; -1: no log-probabilities */
} ServeRequest;
bool serve_request_read(ServeRequest *request, ServeKind kind, const ServeModel *model, const char *body, size_t size, ServeFault *fault);
void serve_request_free(ServeRequest *request);
/* Returns the name that a request chose, for an EngineRequest.adapter. */
const char *serve_model_name(const ServeModel *model, int adapter);
/* Returns whether the answer has log-probabilities of its prompts. */
bool serve_request_scores_prompts(const ServeRequest *request);
/* Returns the most tokens that a sample of a prompt may get. */
int64_t serve_request_tokens(const ServeRequest *request, const ServeModel *model, const ServePrompt *prompt);
