/* The tokens of a sequence that the rows of a tensor hold. Under context parallelism with n ranks a
 * sequence consists of 2 n equal chunks, and rank r has chunk r, then chunk 2 n - 1 - r, so every
 * rank has the same amount of causal attention to compute. Tokens ascend with rows, so the keys
 * that a query sees are an interval of rows too. For host and GPU code. */
#pragma once

#include <stdint.h>

/* Rows of each sequence. Row r is token r + first of the sequence if r < half, else token r +
 * second. */
typedef struct TokenRows { int32_t rows, half, first, second; } TokenRows;

/* Returns the rows of `rank` of `ranks`; all `length` tokens if ranks is 0 or 1. */
static inline TokenRows token_rows(int64_t length, int64_t ranks, int64_t rank) {
    if (ranks <= 1) return (TokenRows){(int32_t)length, (int32_t)length, 0, 0};
    int32_t chunk = (int32_t)(length / (2 * ranks));
    return (TokenRows){2 * chunk, chunk, (int32_t)rank * chunk, (int32_t)(2 * ranks - 2 - rank) * chunk};
}

static inline int32_t token_of_row(const TokenRows *x, int32_t row) { return row + (row < x->half ? x->first : x->second); }

/* Returns the first row whose token is `token` or a later one; x->rows: none. */
static inline int32_t row_from_token(const TokenRows *x, int32_t token) {
    int32_t row = token - x->first;
    if (row >= x->half) row = token - x->second > x->half ? token - x->second : x->half;
    return row < 0 ? 0 : row < x->rows ? row : x->rows;
}

/* Maps row `row` of `rows` rows in rank order (all rows of rank 0, then of rank 1, ...) to its row
 * in consecutive sequences. */
static inline int64_t ordered_row(int64_t rows, int64_t length, int64_t ranks, int64_t row) {
    int64_t own = rows / ranks, at = row % own;
    TokenRows tokens = token_rows(length, ranks, row / own);
    return at / tokens.rows * length + token_of_row(&tokens, (int32_t)(at % tokens.rows));
}
