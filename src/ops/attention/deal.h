/* How the ranks of AXIS_CP share a key-value cache: blocks of DEAL_BLOCK positions go round, block b to rank b % ranks,
 * where it follows the rank's block before it. So every rank holds as much of a sequence as the others, whatever its
 * length, and of every window that spans some blocks; a new token goes to one rank and moves nothing; and positions
 * from `low` to `high` are consecutive rows of each rank's part. Read by the kernels of every device. */
#pragma once

#include <stdint.h>

/* The keys that a kernel masks at once, a tile or half of one, lie inside a block: their positions are consecutive. */
enum { DEAL_BLOCK = 64 };

typedef struct Deal { int32_t rank, ranks; } Deal;

/* How many of the first `positions` positions the rank holds: the row of the next one that it gets. Of 32 bits, as positions
 * are: a division of 64 bits is a function call on a GPU, which makes wgmma wait (backend/gpu/hopper.h). */
static inline int32_t deal_rows(Deal deal, int32_t positions) {
    int32_t round = DEAL_BLOCK * deal.ranks, rest = positions % round - DEAL_BLOCK * deal.rank;
    return positions / round * DEAL_BLOCK + (rest < 0 ? 0 : rest < DEAL_BLOCK ? rest : DEAL_BLOCK);
}
/* The position of a row of the rank's part. */
static inline int32_t deal_position(Deal deal, int32_t row) {
    return (row / DEAL_BLOCK * deal.ranks + deal.rank) * DEAL_BLOCK + row % DEAL_BLOCK;
}
static inline int deal_has(Deal deal, int32_t position) { return position / DEAL_BLOCK % deal.ranks == deal.rank; }
