/* A model with a larger vocabulary: rows of the token table and of the head for new tokens. A new row is the mean of
 * the rows of all existing tokens, sum(row(i), i < tokens) / tokens. transformers' resize_token_embeddings uses the
 * same mean and adds noise with 1e-9 of their deviation. Called by `smelt convert`. */
#pragma once

#include "config/config.h"
#include "graph/graph.h"

/* The sizes before and after. Rows below `tokens` belong to tokens; the other rows are padding. */
typedef struct VocabularyGrowth {
    int64_t tokens, added;    /* the tokenizer's tokens, and the new ones after them */
    int64_t rows, grown_rows; /* of the tables, before and after: padding is used first, then multiples of 64 are added */
} VocabularyGrowth;
VocabularyGrowth vocabulary_growth(int64_t rows, int64_t tokens, int64_t added);
/* Fills `master`, the MASTER arena of `graph` with the grown rows, with the weights of `folder`, a
 * model of `config` with the original rows. ERROR_CHECKPOINT; ERROR_MEMORY. */
bool vocabulary_grow(
    const char *folder, const Config *config, const VocabularyGrowth *growth, const Graph *graph, float *master, Error *error);
