/* Draws the next token of each row on the device that has the logits: builder and operands, for the
 * rule and the kernels of both back ends. */
#pragma once

#include "graph/op.h"

/* How a row is drawn. temperature >= 0; 0: the largest logit, and the other values have no effect.
 * top_k >= 0; 0: off. top_p in [0, 1]; 1: off. min_p in [0, 1]; 0: off. uniform in [0, 1).
 * given: 0, or 1 + a token, which is taken in place of a draw. */
typedef enum DrawChoice {
    DRAW_TEMPERATURE,
    DRAW_TOP_K,
    DRAW_TOP_P,
    DRAW_MIN_P,
    DRAW_UNIFORM,
    DRAW_GIVEN,
    DRAW_CHOICE_VALUES,
} DrawChoice;
/* The token, and the likeliest one below the limit, with their log-probabilities. */
typedef enum DrawValue {
    DRAW_TOKEN,
    DRAW_LOG_PROBABILITY,
    DRAW_LIKELIEST,
    DRAW_LIKELIEST_LOG_PROBABILITY,
    DRAW_VALUES,
} DrawValue;

/* Computes from logits WIDE [R, V] and choice WIDE [R, DRAW_CHOICE_VALUES] the values of each row,
 * WIDE [R, DRAW_VALUES]. Tokens from limit[0] on (INT32 [1], >= 1) are not drawn. Log-probabilities
 * are those among all V tokens at temperature 1. If a row has NaN or +infinity or only -infinity,
 * they are NaN, and a drawn token is any below the limit. A
 * result depends only on its own row: the bits are the same in every batch. No gradient. */
TensorId op_draw(Graph *graph, TensorId logits, TensorId choice, TensorId limit);

typedef enum DrawOperand {
    DRAW_LOGITS, /* WIDE [R, V] */
    DRAW_CHOICE, /* WIDE [R, DRAW_CHOICE_VALUES] */
    DRAW_LIMIT,  /* INT32 [1] */
    DRAW_Y = 0,  /* WIDE [R, DRAW_VALUES] */
} DrawOperand;
