/* The programs of an engine: one for each power of two of sequences that get their next token, and a
 * few that compute blocks of a prompt. All share weights, caches and the memory of activations. */
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

/* Returns how many of the next `count` tokens of a prompt to fill at once, at most ENGINE_LONGEST_BLOCK. */
enum { ENGINE_LONGEST_BLOCK = 2048 };
int64_t engine_programs_block(const EnginePrograms *programs, int64_t count);
/* Fills the caches with row->count tokens of a prompt, as many as engine_programs_block returned. One
 * more position of the sequence is reserved after them, which padding overwrites. */
void engine_programs_fill(EnginePrograms *programs, const EngineRow *row);
/* Fills the caches with tokens of a prompt, at most ENGINE_SCORE_BLOCK, and scores the token after each
 * of them: scores[row->count]. The prompt has one token more. For EngineSizes.scores. ERROR_DEVICE,
 * ERROR_COMMUNICATION. */
enum { ENGINE_SCORE_BLOCK = 256 };
bool engine_programs_score(EnginePrograms *programs, const EngineRow *row, EngineToken *scores, Error *error);
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
