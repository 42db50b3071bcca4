/* The part of mma.h for AMD's gfx950 (MI355X), included only by mma.h: MFMA of 16 x 16 x 32,
 * transposing reads of shared memory, casts of pairs to bf16, and exchanges of rows of lanes. mma.h
 * explains the names.
 *
 * In MFMA, lane 16 q + m supplies row m of a factor, k = 8 q .. 8 q + 7, and receives column m and
 * rows 4 q .. 4 q + 3 of the product. The mapping from rows of an Operand to rows of MFMA is free.
 * We use four of eight rows, alternating. Then a lane of an Accumulator has eight adjacent columns,
 * which are its chunk as an Operand, and a transposing read finds four columns in a row. */
#pragma once

#include "backend/gpu/mma_tile.h"

#if defined GPU_DEVICE && defined __gfx950__

enum { LANE_ROWS = 2 };
typedef __bf16 Bf16x8 __attribute__((ext_vector_type(8)));
typedef __bf16 Bf16x4 __attribute__((ext_vector_type(4)));

/* With lane = 16 q + m: half[s] is row operand_row(m) + 4 s, k = 8 q .. 8 q + 7. */
typedef struct Operand { u32x4 half[2]; } Operand;
/* x[s][t][r] is row operand_row(m) + 4 s, column 8 q + 4 t + r. */
typedef struct Accumulator { f32x4 x[2][2]; } Accumulator;

INLINE unsigned operand_row(unsigned m) { return m / 4 * 8 + m % 4; }
enum { OPERAND_STEP = 4 }; /* from the rows of half[0] to those of half[1] */

INLINE int accumulator_row(int r) { return operand_row(lane_id() % 16) + 4 * r; }
INLINE int half_row(int r) { return lane_id() % 16 + r; }
INLINE int accumulator_step(int c) { return c; }
INLINE int accumulator_first(void) { return lane_id() / 16 * 8; }
INLINE int accumulator_place(int c) { return c; } /* of column c among the eight of a row */
INLINE float accumulator_get(const Accumulator *a, int r, int c) { return a->x[r][c / 4][c % 4]; }
INLINE void accumulator_set(Accumulator *a, int r, int c, float value) { a->x[r][c / 4][c % 4] = value; }

/* Returns x of the lanes 16 or 32 further on in one instruction. After an exchange with itself, one
 * of the two results is x. */
typedef struct Exchanged { float a, b; } Exchanged;
INLINE Exchanged exchange_rows(float x, const int lanes) {
    uint32_t bits = __builtin_bit_cast(uint32_t, x);
    __typeof__(__builtin_amdgcn_permlane16_swap(0, 0, 0, 0)) both =
        lanes == 16 ? __builtin_amdgcn_permlane16_swap(bits, bits, 0, 0) : __builtin_amdgcn_permlane32_swap(bits, bits, 0, 0);
    uint32_t a = both[0], b = both[1];
    return (Exchanged){__builtin_bit_cast(float, a), __builtin_bit_cast(float, b)};
}
INLINE float lanes_sum(float x) {
    UNROLL for (int lanes = 16; lanes <= 32; lanes *= 2) {
        Exchanged e = exchange_rows(x, lanes);
        x = e.a + e.b;
    }
    return x;
}
INLINE float lanes_max(float x) {
    UNROLL for (int lanes = 16; lanes <= 32; lanes *= 2) {
        Exchanged e = exchange_rows(x, lanes);
        x = __builtin_fmaxf(e.a, e.b);
    }
    return x;
}

INLINE void mma_rows(Accumulator *c, const Operand *a, const Operand *b, const int rows) {
    UNROLL for (int s = 0; s < rows / 16; s++) UNROLL for (int t = 0; t < 2; t++) c->x[s][t] = __builtin_amdgcn_mfma_f32_16x16x32_bf16(
        __builtin_bit_cast(Bf16x8, b->half[t]), __builtin_bit_cast(Bf16x8, a->half[s]), c->x[s][t], 0, 0, 0);
}

INLINE void operand_load(Operand *o, LOCAL const bf16 *tile, int width, int row, int column) {
    unsigned lane = lane_id(), first = tile_lane(width, operand_row(lane % 16), lane / 16);
    UNROLL for (int s = 0; s < 2; s++) o->half[s] =
        *(LOCAL const u32x4 *)(tile + (first ^ tile_xor_row(width, 4 * s) ^ tile_xor(width, column)) + 4 * s * width +
                               tile_block(width, row, column));
}

INLINE void operand_load_half(Operand *o, LOCAL const bf16 *tile, int width, int row, int column) {
    unsigned lane = lane_id(), first = tile_lane(width, lane % 16, lane / 16);
    o->half[0] = *(LOCAL const u32x4 *)(tile + (first ^ tile_xor(width, column)) + tile_block(width, row, column));
}

/* A transposing read takes 8 bytes from each lane. 16 lanes read 4 rows of 16 elements, 4 lanes per
 * row; lane i gets column i. */
INLINE void operand_load_transposed_from(Operand *o, LOCAL const bf16 *tile, int from, int width, int row, int column) {
    unsigned lane = lane_id(), first = tile_lane(width, lane / 16 * 8 + lane % 16 / 4, lane % 4) ^ tile_xor(width, from);
    tile += from - tile_xor(width, from);
    UNROLL for (int s = 0; s < 2; s++) UNROLL for (int p = 0; p < 2; p++) {
        LOCAL const bf16 *at =
            tile + (first ^ tile_xor_row(width, 4 * p) ^ tile_xor(width, column)) + 4 * p * width + 4 * s + tile_block(width, row, column);
        u32x2 four = __builtin_bit_cast(u32x2, __builtin_amdgcn_ds_read_tr16_b64_v4bf16((LOCAL Bf16x4 *)at));
        o->half[s][2 * p] = four.x, o->half[s][2 * p + 1] = four.y;
    }
}

INLINE void operand_load_transposed(Operand *o, LOCAL const bf16 *tile, int width, int row, int column) {
    operand_load_transposed_from(o, tile, 0, width, row, column);
}

INLINE u32x4 accumulator_pack(const Accumulator *a, int r) {
    u32x4 packed;
    UNROLL for (int i = 0; i < 4; i++) packed[i] = to_bf16_pair(accumulator_get(a, r, 2 * i), accumulator_get(a, r, 2 * i + 1));
    return packed;
}
INLINE int accumulator_chunk(void) { return accumulator_first(); }
INLINE void operand_of(Operand *o, const Accumulator *a) { UNROLL for (int s = 0; s < 2; s++) o->half[s] = accumulator_pack(a, s); }

#endif
