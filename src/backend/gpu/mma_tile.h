/* The layout of bf16 tiles in shared memory (mma.h explains tiles): rows of 16-byte chunks,
 * swizzled. */
#pragma once

#include "backend/gpu/gpu.h"

#ifdef GPU_DEVICE

/* Swizzle: chunk i of a row is stored at chunk i ^ tile_swizzle. On NVIDIA, reads of an Operand
 * touch the same chunk of 8 consecutive rows. On AMD, they touch a chunk of 4 even or odd rows and
 * the next chunk of the 4 such rows below; transposing reads touch half of a row and half of the
 * row 8 below. If rows are multiples of 128 bytes, each of these sets covers every bank once.
 *
 * gfx950 has 64 banks, 256 bytes: rows that would conflict in a bank get bits of their own. Reads
 * of an Operand touch one chunk of rows 0 .. 3 and the same or the next chunk of rows 8 .. 11;
 * transposing reads touch 8 bytes of 4 chunks of rows 0 .. 3. */
INLINE int tile_swizzle(int width, int row) {
#if defined __gfx950__
    if (width % 128 == 0) return (row & 3) * 4 ^ (row >> 3 & 1) * 2;
    return (width % 64 == 0 ? (row >> 1 & 1) * 4 : 0) ^ (row >> 3 & 1) * 2;
#else
    if (width % 64) return row >> 1 & 3;
    return WAVE == 64 ? (row & 7) ^ (row >> 1 & 4) : row & 7;
#endif
}
/* Returns the place, in elements, of the chunk of eight that starts at `column` of a row. */
INLINE int tile_at(int width, int row, int column) { return row * width + ((column / 8) ^ tile_swizzle(width, row)) * 8; }
/* Three parts of tile_at, for chunk `lane_chunk` of row `lane_row` of the block at (row,
 * column), both multiples of 16: tile_at is (tile_lane ^ tile_xor) + tile_block. Only tile_lane
 * depends on the lane; the others are constants. */
INLINE int tile_lane(int width, int lane_row, int lane_chunk) {
    return lane_row * width + (lane_chunk ^ tile_swizzle(width, lane_row)) * 8;
}
INLINE int tile_period(int width) {
#if defined __gfx950__
    if (width % 128 == 0) return 128;
#endif
    return width % 64 ? 32 : 64;
}
INLINE int tile_xor(int width, int column) { return column % tile_period(width); }
INLINE int tile_block(int width, int row, int column) { return row * width + column - tile_xor(width, column); }

/* Returns the XOR from the place of a chunk of row 0 to its place in row `row`. Places that
 * lanes read differ only by constants, so few address registers serve all operands of tiles of
 * one width. */
INLINE int tile_xor_row(int width, int row) { return (tile_swizzle(width, row) ^ tile_swizzle(width, 0)) * 8; }

#endif
