/* Shared by generate and chat, which write text with a model: their options, a generator with the
 * model's weights, and the output of tokens to stdout. */
#pragma once

#include "app/inference.h"
#include "chat/chat.h"
#include "engine/engine.h"
#include "infer/generate.h"
#include "infer/generated_text.h"
#include "session/adapter_set.h"
#include "token/tokenizer.h"

/* Options of image models. */
typedef struct ImageOptions {
    const char *out, *png, *vae;
    bool overwrite; /* replace existing out and png */
    int64_t steps, height, width;
    double guidance, shift;
} ImageOptions;

typedef struct GenerationOptions {
    ImageOptions images; /* only generate, which also uses `out` and `overwrite` for a file of prompts */
    int64_t samples, slots, top_logprobs;
    bool ids; /* write them */
    LayoutConfig layout;
    Fp8Config fp8;
    int64_t tokens, top_k, seed, context, threads;
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    bool text, cache, exact; /* text: only generate; other fields belong to the commands that have an option for them */
    bool special;
    const char *system, *template, *stop, *logit_bias, *adapters;
    int device, precision;
} GenerationOptions;

/* Options of both commands. FIELD(name) is offsetof(GenerationOptions, name). */
#define GENERATION_SAMPLING(initial_temperature)                                                                                         \
    REAL_OPTION(temperature, initial_temperature, 0, 100, "",                                                                             \
        "scale of randomness, a divisor of the logits; 0: always the most likely token"),                                               \
        INT_OPTION(top_k, "0", 0, 1e9, "tokens", "sample from this many most likely tokens; 0: all"),                              \
        REAL_OPTION(top_p, "1", 0, 1, "", "sample from the smallest set of most likely tokens with at least this total probability"),               \
        INT_OPTION(seed, "1", 0, 1e15, "", "seed; the same seed gives the same text")
#define GENERATION_MACHINE                                                                                                                \
    INT_OPTION(threads, "0", 0, 4096, "threads", "CPU threads; 0: all"),                                                                  \
        CHOICE_OPTION(device, "auto", "auto|cpu|hip|cuda", "device to generate on"),                                                         \
        CHOICE_OPTION(precision, "same", "same|bf16|fp32|fp64", "type of weights and activations; same: as in training"),                \
        INFERENCE_ARITHMETIC_OPTIONS

#define ADAPTERS_HELP                                                                                        \
    "JSON object of names and adapters, runs or PEFT folders, that requests choose from, unmerged: '{\"chat\": \"runs/chat\"}'"

/* Reduces the model's context to `context` (0: as it is), unless its positions are learned. */
void generation_limit_context(Config *config, int64_t context);
/* Returns the sampling that the options describe. */
Sampling generation_sampling(const GenerationOptions *options);
/* Opens the device, and a generator with the weights of `folder`, whose configuration is `config`.
 * layout.tp ranks divide the model, and the remaining ranks share the cache. NULL: the error gives
 * the reason. */
Generator *generation_open(Inference *inference, const char *folder, Config *config, const GenerationOptions *options, Error *error);

/* The output format of tokens, and the tokens that end a text. */
typedef struct ModelText {
    bool numbers;
    bool printed;         /* this rank prints, for all */
    bool terminal;        /* stdout is a terminal */
    Tokenizer *tokenizer; /* NULL: the byte tokenizer */
    TokenizerEncoder *encoder;
    TokenizerDecoder decoder;
    Utf8Stream stream;
    TokenIds ends;
} ModelText;
/* Opens the model's tokenizer; the caller has set the first three members. */
bool model_text_open(ModelText *text, const char *folder, const Config *config, Error *error);
void model_text_close(ModelText *text);                      /* also for a zeroed struct */
bool model_text_stops(const ModelText *text, int32_t token); /* whether it ends a text */
int64_t model_text_limit(const ModelText *text);             /* tokens from this one on are not used in a text */
/* Returns the bytes that a token adds, as text. */
const char *model_text_bytes(ModelText *text, int32_t token, char *byte, size_t *length);
void model_text_put(ModelText *text, int32_t token, bool first);
void model_text_end(ModelText *text); /* prints a newline */
bool model_text_flush(const ModelText *text, Error *error);

/* The chat template of a model. Zero-initialize. */
typedef struct ModelChat {
    Chat *chat;
    ChatEncoder *encoder;
} ModelChat;
/* Opens the model's template, or that of options->template; the other members of `options` but
 * `special` are set here. The token after the template's answers then ends a text too. There may be
 * no template (chat_has_template). The text must be open, and outlive the chat. */
bool model_chat_open(ModelChat *chat, ModelText *text, const char *folder, const Config *config, const ChatOptions *options, Error *error);
void model_chat_close(ModelChat *chat); /* also for a zeroed struct */

/* Appends the tokens of a prompt: text, or numbers if text->numbers is set. ERROR_USAGE if it is
 * empty. */
bool generation_read_prompt(const char *prompt, const ModelText *text, TokenIds *tokens, Error *error);
/* Adds the texts of an option stop=: one text, or a JSON list of texts. ERROR_USAGE. */
bool generation_read_stops(const char *option, StopTexts *stops, Error *error);
/* Opens the device, and an engine with the weights of `folder`, whose configuration is `config`. The
 * caller then fills adapters of `sizes` (generation_load_adapters). */
Engine *generation_open_engine(
    Inference *inference, const char *folder, Config *config, const GenerationOptions *options, EngineSizes sizes, Error *error);
bool generation_load_adapters(
    const Inference *inference, const Config *config, const NamedAdapters *adapters, Engine *engine, Error *error);

/* -- Files of prompts (generate_batch.c) --------------------------------------------------------------------------- */

/* `smelt generate` with the words MODEL and PROMPTS.jsonl: writes a JSON line for each sample of each
 * prompt. */
bool generate_batch(
    Inference *inference, const char *const words[2], Config *config, const GenerationOptions *options, ModelText *text, Error *error);

/* -- Images (generate_images.c) ------------------------------------------------------------------------------------- */

/* `smelt generate` with an image model: makes an image for each text of the file or folder
 * `encodings`. */
bool generate_images(
    Inference *inference, const char *folder, const char *encodings, Config *config, const GenerationOptions *options, Error *error);
