/* How the ranks of AXIS_CP divide a key-value cache: block-cyclic, in blocks of BLOCK_CYCLIC_ROWS
 * positions. Rank b % ranks has block b, stored after the rank's previous block. Every rank thus
 * holds an equal share of a sequence of any length, and of every window that spans several blocks.
 * A new token goes to one rank and moves nothing. Positions from `low` to `high` are consecutive
 * rows of each rank's part. The kernels of every device include this file. */
#pragma once

#include <stdint.h>

/* The keys that a kernel masks at once, a tile or half of one, are inside one block: their
 * positions are consecutive. */
enum { BLOCK_CYCLIC_ROWS = 64 };

typedef struct BlockCyclic { int32_t rank, ranks; } BlockCyclic;

/* Returns how many of the first `positions` positions the rank holds, which is the row of its next
 * position. It uses 32 bits, as positions do: a 64-bit division is a function call on a GPU, which
 * makes wgmma wait (backend/gpu/hopper.h). */
static inline int32_t block_cyclic_rows(BlockCyclic cyclic, int32_t positions) {
    int32_t round = BLOCK_CYCLIC_ROWS * cyclic.ranks, rest = positions % round - BLOCK_CYCLIC_ROWS * cyclic.rank;
    return positions / round * BLOCK_CYCLIC_ROWS + (rest < 0 ? 0 : rest < BLOCK_CYCLIC_ROWS ? rest : BLOCK_CYCLIC_ROWS);
}
/* Returns the position of a row of the rank's part. */
static inline int32_t block_cyclic_position(BlockCyclic cyclic, int32_t row) {
    return (row / BLOCK_CYCLIC_ROWS * cyclic.ranks + cyclic.rank) * BLOCK_CYCLIC_ROWS + row % BLOCK_CYCLIC_ROWS;
}
static inline int block_cyclic_has(BlockCyclic cyclic, int32_t position) {
    return position / BLOCK_CYCLIC_ROWS % cyclic.ranks == cyclic.rank;
}
