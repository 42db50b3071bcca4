/* How the ranks of AXIS_CP divide a key-value cache: block-cyclic, in blocks of DEAL_BLOCK
 * positions. Rank b % ranks has block b, stored after the rank's previous block. Every rank thus
 * holds an equal share of a sequence of any length, and of every window that spans several blocks.
 * A new token goes to one rank and moves nothing. Positions from `low` to `high` are consecutive
 * rows of each rank's part. The kernels of every device include this file. */
#pragma once

#include <stdint.h>

/* The keys that a kernel masks at once, a tile or half of one, are inside one block: their
 * positions are consecutive. */
enum { DEAL_BLOCK = 64 };

typedef struct Deal { int32_t rank, ranks; } Deal;

/* Returns how many of the first `positions` positions the rank holds, which is the row of its next
 * position. It uses 32 bits, as positions do: a 64-bit division is a function call on a GPU, which
 * makes wgmma wait (backend/gpu/hopper.h). */
static inline int32_t deal_rows(Deal deal, int32_t positions) {
    int32_t round = DEAL_BLOCK * deal.ranks, rest = positions % round - DEAL_BLOCK * deal.rank;
    return positions / round * DEAL_BLOCK + (rest < 0 ? 0 : rest < DEAL_BLOCK ? rest : DEAL_BLOCK);
}
/* Returns the position of a row of the rank's part. */
static inline int32_t deal_position(Deal deal, int32_t row) {
    return (row / DEAL_BLOCK * deal.ranks + deal.rank) * DEAL_BLOCK + row % DEAL_BLOCK;
}
static inline int deal_has(Deal deal, int32_t position) { return position / DEAL_BLOCK % deal.ranks == deal.rank; }
