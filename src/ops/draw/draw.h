/* Draws the next token of each row on the device that has the logits, after penalties of tokens that
 * the text has: builders and operands, for the rules and the kernels of both back ends. */
#pragma once

#include "graph/op.h"

/* How a row is drawn. temperature >= 0; 0: the largest logit, and the other values have no effect.
 * top_k >= 0; 0: off. top_p in [0, 1]; 1: off. min_p in [0, 1]; 0: off. uniform in [0, 1).
 * given: 0, or 1 + a token, which is taken in place of a draw. penalized: 1 to draw from the
 * penalized logits, 0 from the logits. top: the number of likeliest tokens to list. */
typedef enum DrawChoice {
    DRAW_TEMPERATURE,
    DRAW_TOP_K,
    DRAW_TOP_P,
    DRAW_MIN_P,
    DRAW_UNIFORM,
    DRAW_GIVEN,
    DRAW_PENALIZED,
    DRAW_TOP,
    DRAW_CHOICE_VALUES,
} DrawChoice;
/* The token, and the likeliest one below the limit, with their log-probabilities. Then come the
 * likeliest tokens below the limit, by log-probability, equal ones by token: pairs of both values;
 * after `top` of them, or all, the token -1. */
typedef enum DrawValue {
    DRAW_TOKEN,
    DRAW_LOG_PROBABILITY,
    DRAW_LIKELIEST,
    DRAW_LIKELIEST_LOG_PROBABILITY,
    DRAW_VALUES,
} DrawValue;
enum { DRAW_MOST_TOP = 20 };
static inline int64_t draw_columns(int64_t most_top) { return DRAW_VALUES + 2 * most_top; }

/* Computes from logits WIDE [R, V] and choice WIDE [R, DRAW_CHOICE_VALUES] the values of each row,
 * WIDE [R, draw_columns(most_top)], with 0 <= most_top <= DRAW_MOST_TOP and DRAW_TOP <= most_top.
 * Tokens from limit[0] on (INT32 [1], >= 1) are not drawn. `penalized`, like the logits, is what
 * tokens with DRAW_PENALIZED are drawn from; it may be `logits`. Log-probabilities are those of the
 * logits among all V tokens at temperature 1, without penalties. If a row has NaN or +infinity or only -infinity,
 * they are NaN, and a drawn token is any below the limit. A
 * result depends only on its own row: the bits are the same in every batch. No gradient. */
TensorId op_draw(Graph *graph, TensorId logits, TensorId penalized, TensorId choice, TensorId limit, int64_t most_top);

typedef enum DrawOperand {
    DRAW_LOGITS, /* WIDE [R, V] */
    DRAW_FROM,   /* WIDE [R, V] */
    DRAW_CHOICE, /* WIDE [R, DRAW_CHOICE_VALUES] */
    DRAW_LIMIT,  /* INT32 [1] */
    DRAW_Y = 0,  /* WIDE [R, draw_columns(most_top)] */
} DrawOperand;

/* How the logits of a row are penalized. used: 0: they are not, and the row's result and state are
 * not touched. counted: 1 if the row's token was drawn; it is counted first. repetition > 0 divides
 * positive logits of tokens that the text has, and multiplies others (arXiv 1909.05858, as in
 * transformers). frequency and presence are subtracted from the logits of drawn tokens, the first as
 * often as a token was drawn (as at OpenAI). */
typedef enum PenaltyChoice {
    PENALTY_USED,
    PENALTY_COUNTED,
    PENALTY_REPETITION,
    PENALTY_PRESENCE,
    PENALTY_FREQUENCY,
    PENALTY_CHOICE_VALUES,
} PenaltyChoice;
/* The rows of a slot's state: what is added to a logit before penalties; and how often its token was
 * drawn, plus 0.5 if the prompt has it. */
typedef enum PenaltyState { PENALTY_BIAS, PENALTY_COUNT, PENALTY_STATE_ROWS } PenaltyState;

/* Computes penalized logits WIDE [R, V] from logits WIDE [R, V], the tokens before them INT32 [R],
 * their slots INT32 [R], and choice WIDE [R, PENALTY_CHOICE_VALUES]. Counts tokens in the state WIDE
 * [slots * PENALTY_STATE_ROWS, V] in ARENA_STATE. Rows that are used have different slots. No
 * gradient. */
TensorId op_penalize(Graph *graph, TensorId logits, TensorId tokens, TensorId slots, TensorId choice, TensorId state);

typedef enum PenalizeOperand {
    PENALIZE_LOGITS, /* WIDE [R, V] */
    PENALIZE_TOKENS, /* INT32 [R] */
    PENALIZE_SLOTS,  /* INT32 [R] */
    PENALIZE_CHOICE, /* WIDE [R, PENALTY_CHOICE_VALUES] */
    PENALIZE_Y = 0,  /* WIDE [R, V] */
    PENALIZE_STATE,  /* WIDE [slots * PENALTY_STATE_ROWS, V] */
} PenalizeOperand;
