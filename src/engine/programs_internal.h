/* The programs of an engine: one for each power of two of sequences that get their next token, and a
 * few that compute blocks of one prompt or of several. All share weights, caches and the memory of activations. */
#pragma once

#include "engine/engine.h"
#include "program/program.h"

/* A sequence in a run of a program. */
typedef struct EngineRow {
    int64_t slot, first_row; /* the cache row of position 0 */
    const int32_t *tokens;   /* `count` tokens, the first of which is at `position` */
    int64_t count, position;
    const Sampling *sampling;         /* of the next token, */
    double uniform;                   /* and its random number; unused for prompts */
    const EnginePenalties *penalties; /* NULL: none */
    bool counted;                     /* the token was drawn, and counts for the penalties */
    int64_t top;                      /* of EngineToken */
    int adapter;                      /* of EngineRequest */
    EngineToken drawn;                /* the result; its log-probabilities are NaN if a logit is not finite */
} EngineRow;

typedef struct EnginePrograms EnginePrograms;

/* `owner` NULL: the programs have their own weights. */
EnginePrograms *engine_programs_create(
    const ModelConfig *config, const EngineOwner *owner, EnginePlace place, EngineSizes *sizes, Error *error);
/* Implements engine_plan_beside. */
bool engine_programs_plan(
    const ModelConfig *config, const EngineOwner *owner, EnginePlace place, EngineSizes sizes, EngineNeeds *needs, Error *error);
void engine_programs_free(EnginePrograms *programs);
const Graph *engine_programs_graph(const EnginePrograms *programs);
void *engine_programs_arena(const EnginePrograms *programs, Arena arena);
const Model *engine_programs_model(const EnginePrograms *programs);
void *engine_programs_table(const EnginePrograms *programs, TensorId table);

enum { ENGINE_LONGEST_BLOCK = 2048, ENGINE_SCORE_BLOCK = 256, ENGINE_MOST_TOGETHER = 16 };

/* The next tokens of a prompt that a program computes at once. Prompts whose blocks have the same
 * `length` and `scored` can be computed together. */
typedef struct EngineBlock {
    bool scored;    /* with the log-probability of the token after each; only with EngineSizes.scores */
    int64_t length; /* of the program's sequences */
    int64_t count;  /* tokens: at most `length`, which is at most ENGINE_LONGEST_BLOCK, or ENGINE_SCORE_BLOCK if scored */
} EngineBlock;
/* Returns the block for the next of `count` tokens of a prompt. */
EngineBlock engine_programs_block(const EnginePrograms *programs, bool scored, int64_t count);
/* Returns how many of `sequences` blocks like `block` to compute together, at most
 * ENGINE_MOST_TOGETHER. */
int64_t engine_programs_together(const EnginePrograms *programs, const EngineBlock *block, int64_t sequences);
/* Fills the caches with tokens of `count` prompts, as many as engine_programs_together returned:
 * rows[i].count of prompt i, at most block->length. One more position of each sequence is reserved after
 * them, which padding overwrites. */
void engine_programs_fill(EnginePrograms *programs, const EngineBlock *block, const EngineRow *rows, int64_t count);
/* The same, and scores the token after each of them: `scores` has those of prompt 0 first, then those of
 * prompt 1, and so on. Each prompt has one token more. ERROR_DEVICE, ERROR_COMMUNICATION. */
bool engine_programs_score(
    EnginePrograms *programs, const EngineBlock *block, const EngineRow *rows, int64_t count, EngineToken *scores, Error *error);
/* Computes one token of each of `count` sequences and draws the next ones. ERROR_DEVICE,
 * ERROR_COMMUNICATION. */
bool engine_programs_next(EnginePrograms *programs, EngineRow *rows, int64_t count, Error *error);
/* Keeps the state of a slot whose prompt has just been filled, for engine_programs_copy_prompt. */
void engine_programs_keep_prompt(EnginePrograms *programs, int64_t slot);
/* Moves `positions` positions of a sequence to cache rows that do not overlap. */
void engine_programs_move(EnginePrograms *programs, int64_t to_row, int64_t from_row, int64_t positions);
/* Copies a prompt of `positions` positions from a sequence to one that has not begun. */
void engine_programs_copy_prompt(EnginePrograms *programs, const EngineRow *from, const EngineRow *to, int64_t positions);
/* Initializes the penalties of a slot for a sequence of `request`: counts the tokens of the prompt, and
 * the `count` tokens that the sequence has drawn. */
void engine_programs_begin_penalties(
    EnginePrograms *programs, int64_t slot, const EngineRequest *request, const int32_t *tokens, int64_t count);
