/* The engine: generation of many sequences at once with one model. A sequence that is being
 * generated has a slot, and consecutive rows of the caches, which all slots share. A step computes
 * the prompts of new sequences in blocks, short prompts together, then one token of every sequence, in
 * one program for each power of two of sequences. When a sequence ends, the next one takes its slot.
 *
 * A request asks for one or more samples of one prompt. The prompt is computed once and copied to
 * the caches of its samples. A sequence begins with rows for a part of the tokens that it may get.
 * If a sequence needs more rows and none are free, the youngest sequence gives up its rows and is
 * recomputed from its tokens later (engine_internal.h). Every sequence ends.
 *
 * A sample may wait after a token that ends it, until its owner appends tokens to it, such as the answer
 * of a tool, or ends it. Meanwhile other sequences go on.
 *
 * An engine may have several adapters, apart from the weights; a request uses one or none. A step
 * sorts its rows by adapter, so that a kernel computes each adapter's rows together.
 *
 * The tokens of a sample depend on the weights, its adapter, its prompt, its sampling and its number.
 * They do not depend on other sequences, except through the rounding of kernels that depend on the
 * number of rows.
 *
 * Ranks over which tensor parallelism divides a model each have an engine, with the same requests and
 * steps, and get the same tokens. The caller gives all ranks the same requests, or rank 0 leads
 * (engine_lead). */
#pragma once

#include <jansson.h>

#include "config/config.h"
#include "graph/graph.h"
#include "infer/generate.h"
#include "program/program.h"

typedef struct EngineSizes {
    int64_t slots;       /* most sequences at once, up to ENGINE_MOST_SLOTS */
    int64_t cache_rows;  /* useful rows of the caches; 0: slots * context. If memory is short there are fewer */
    int64_t longest;     /* most tokens of a sequence: there is memory for one at least; 0: the context */
    int64_t limit;       /* tokens from this one on are not drawn */
    bool scores;         /* requests may have EngineRequest.scored */
    bool penalties;      /* requests may have EngineRequest.penalties */
    int64_t top;         /* most of EngineRequest.top, up to ENGINE_MOST_TOP */
    AdapterSet adapters; /* that requests choose from, at most ENGINE_MOST_ADAPTERS; only for an engine with its own weights */
} EngineSizes;
enum { ENGINE_MOST_SLOTS = 1024, ENGINE_MOST_TOP = 20, ENGINE_MOST_ADAPTERS = 64 };

typedef enum EngineEnd {
    ENGINE_STOP,   /* an end token, which is not among the sample's tokens, or EngineRequest.token said so */
    ENGINE_LENGTH, /* as many tokens as asked for */
} EngineEnd;

/* A token in the place of another, with its log-probability. */
typedef struct EngineScore {
    int32_t token;
    double log_probability;
} EngineScore;

/* A token, and the likeliest ones in its place, with the natural log-probabilities that the model gives
 * them at temperature 1, without penalties. */
typedef struct EngineToken {
    int32_t token, likeliest;
    double log_probability, likeliest_log_probability;
    const EngineScore *top; /* EngineRequest.top, the likeliest first; valid during the call */
    int64_t top_count;      /* fewer than asked for only if the vocabulary has fewer */
} EngineToken;

/* What is added to the logit of a token. */
typedef struct EngineBias {
    int32_t token;
    double bias;
} EngineBias;

/* Reads a member of OpenAI's logit_bias: a token id, and a number from -100 to 100. ERROR_USAGE. */
bool engine_bias(const char *name, const json_t *number, EngineBias *bias, Error *error);

/* Changes of the logits that tokens are drawn from. Biases come first, then the penalties of tokens
 * that the text has, as in op_penalize. All zero: none. */
typedef struct EnginePenalties {
    double repetition;          /* of tokens of prompt and sample; 0 or 1: none */
    double presence, frequency; /* of tokens of the sample; 0: none */
    const EngineBias *biases;   /* borrowed like the prompt; those of one token add up */
    int64_t bias_count;
} EnginePenalties;

typedef struct EngineRequest {
    const int32_t *prompt; /* borrowed until the last sample ends */
    int64_t prompt_count;  /* at least 1 */
    int64_t tokens;        /* most tokens of a sample, with appended ones; at least 1, or 0 with `scored` */
    int samples;           /* at least 1 */
    Sampling sampling;
    EnginePenalties penalties;
    int64_t top;         /* the number of likeliest tokens in EngineToken */
    int adapter;         /* 0: none; else 1 + an index of EngineSizes.adapters */
    uint64_t number;     /* of the first sample: sample i draws with number + i */
    const int32_t *ends; /* tokens that end a sample; borrowed like the prompt */
    int64_t end_count;
    /* Called for every token of a sample in order; false ends the sample. Then `end` is called once.
     * None of these calls the engine. */
    bool (*token)(void *context, int sample, const EngineToken *token);
    /* NULL, or called for every token of the prompt but the first, in order, before the first sample's
     * `token`. */
    void (*scored)(void *context, const EngineToken *token);
    void (*end)(void *context, int sample, EngineEnd end);
    /* NULL, or called when a token has ended a sample, before `end`. True: the sample waits instead, for
     * engine_extend. Not with penalties. */
    bool (*wait)(void *context, int sample);
    void *context;
} EngineRequest;

typedef struct Engine Engine;

/* The ranks, precision and device of an engine. The device and the mesh (NULL: one rank) outlive it. */
typedef struct EnginePlace {
    const Mesh *mesh;
    Precision precision;
    Device *device;
} EnginePlace;

/* Allocates weights (zero) and caches. `config` outlives the engine. ERROR_MEMORY if not even one sequence of the context, or all useful rows, would fit. */
Engine *engine_create(const ModelConfig *config, EnginePlace place, EngineSizes sizes, Error *error);
/* The owner of the weights with which an engine generates: a started program of the same model and
 * precision, with whole weights, and what it was built with. Borrowed; it outlives the engine and does
 * not run while the engine does. */
typedef struct EngineOwner {
    const Program *program;
    const Layout *layout;
    const LoraConfig *lora; /* without a rank: no adapters */
} EngineOwner;
/* Creates an engine like engine_create that has no weights of its own. */
Engine *engine_create_beside(
    const ModelConfig *config, Precision precision, const EngineOwner *owner, Device *device, EngineSizes sizes, Error *error);
/* Bytes that an engine needs with caches for one sequence of the context, and for all slots. */
typedef struct EngineNeeds { int64_t least, most; } EngineNeeds;
/* Plans the engine; allocates nothing. The owner's program must be planned, but need not have started. */
bool engine_plan_beside(
    const ModelConfig *config, const EngineOwner *owner, EnginePlace place, EngineSizes sizes, EngineNeeds *needs, Error *error);
void engine_free(Engine *engine); /* NULL is allowed */

/* For setting the weights, as in infer/generate.h. */
const Graph *engine_graph(const Engine *engine);
void *engine_master(Engine *engine);
void *engine_weights(Engine *engine);
/* For loading adapters: the model with their places (Model.places), and a table in device memory. */
const Model *engine_model(const Engine *engine);
void *engine_table(Engine *engine, TensorId table);

/* Returns the most tokens of a prompt and its answer together. */
int64_t engine_positions(const Engine *engine);
/* Adds a request to the queue. ERROR_USAGE: a token is outside the vocabulary; prompt and tokens
 * exceed the context or the caches; or the prompt is too long for growing RoPE. */
bool engine_submit(Engine *engine, const EngineRequest *request, Error *error);
/* Ends all samples of the requests with this context, or of all requests (NULL), without calling their
 * `end`, and forgets the requests. Not to be called by `token` and `end`. */
void engine_cancel(Engine *engine, const void *context);
/* Appends `count` tokens, at most EngineRequest.tokens - 1 with those before, to a sample that waits, and
 * goes on with the token after them. 0 tokens: ends the sample; does nothing if it does not wait. */
void engine_extend(Engine *engine, const void *context, int sample, const int32_t *tokens, int64_t count);
/* Returns whether a request is unfinished. */
bool engine_busy(const Engine *engine);
/* Returns whether the last step computed nothing, because all sequences wait. */
bool engine_waits(const Engine *engine);
/* Computes the next token of every sequence. ERROR_NUMERICS if a logit is not finite, ERROR_DEVICE,
 * ERROR_COMMUNICATION. */
bool engine_step(Engine *engine, Error *error);

/* Rank 0 of `comm` calls engine_lead on an idle engine, and then decides what all ranks compute. Each
 * engine_step sends rank 0's calls since the last step to the other ranks, which are in engine_follow,
 * and all ranks compute the step. Call engine_step at least once a minute, even without work, to keep
 * the connections alive. EngineRequest.wait must be NULL. After a rank is lost, steps return
 * ERROR_COMMUNICATION. No effect if `comm` has one rank. */
void engine_lead(Engine *engine, Comm *comm);
/* Makes engine_follow return on the other ranks. */
bool engine_dismiss(Engine *engine, Error *error);
/* Repeats rank 0's calls and steps until it dismisses this rank. An ERROR_NUMERICS of a step does not
 * end it: rank 0 has the same error, and decides. */
bool engine_follow(Engine *engine, Comm *comm, Error *error);

/* Sums since the engine was created. */
typedef struct EngineCounts {
    int64_t prompt_tokens, copied_tokens; /* computed, including appended and recomputed tokens; copied between samples */
    int64_t fills;                        /* runs of programs that computed prompts */
    int64_t tokens;                       /* drawn */
    int64_t steps, sequences;             /* steps that drew tokens, and sequences in them */
    int64_t moved, suspended;             /* sequences moved to other cache rows; sequences suspended for lack of rows */
} EngineCounts;
EngineCounts engine_counts(const Engine *engine);
