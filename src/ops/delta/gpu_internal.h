/* Scratch of the gated delta rule on a GPU, and host functions that both passes use. */
#pragma once

#include "ops/delta/delta.h"
#include "ops/delta/gpu_chunk_kernels.h"

_Static_assert((int)WIDTH == (int)DELTA_MOST_DIM, "kernels pad channels to WIDTH");

/* Offsets in bytes, multiples of 128. C: chunks of all heads and sequences; names are those of rule.c. */
typedef struct DeltaGpuScratch {
    int64_t scales;             /* fp32 [R, key_heads, 2]: 1 / length of queries, with their root, and of keys */
    int64_t products, factors;  /* fp32 [R, key_heads]: k . q; [R, heads, 2]: log2 of the decay, and beta */
    int64_t numbers;            /* [C] */
    int64_t solved, own;        /* bf16 [C, CHUNK, WIDTH]: the factor of a state, and the term without a state */
    int64_t updates;            /* the same of U, or in the backward pass of d U / |k| */
    int64_t states;             /* bf16 [C, WIDTH, WIDTH]: S before each chunk, transposed */
    int64_t d_recalled, d_outs; /* like own: dM, and c dY / |q| */
    int64_t d_states;           /* like states: dS after each chunk */
    int64_t d_carried;          /* fp32 [R, values] */
    int64_t d_queries, d_keys;  /* fp32 [R, heads, key_dim], without the term of the token's own update */
    int64_t d_factors;          /* fp32 [R, heads, 3]: dG, d_beta and u . d_y */
    int64_t d_after;            /* fp32 [C]: the product of S and dS after the chunk */
    int64_t sums;               /* fp32 [sequences * chunks, 2, heads]: for rates and bias */
    int64_t bytes;
} DeltaGpuScratch;

/* Which arrays exist: those of rows, of a forward pass in chunks, or of a backward pass. */
typedef enum DeltaArrays { DELTA_ROWS, DELTA_FORWARD, DELTA_BACKWARD } DeltaArrays;

static inline int64_t delta_chunks_of(const DeltaShape *s) { return divide_up(s->length, CHUNK); }

static inline DeltaGpuScratch delta_gpu_scratch(const DeltaShape *s, DeltaArrays arrays) {
    enum { FLOAT = sizeof(float), TILE = TILE_ELEMENTS * sizeof(bf16), STATE = STATE_ELEMENTS * sizeof(bf16) };
    int64_t chunks = s->sequences * delta_chunks_of(s), of_heads = chunks * s->heads, entries = s->rows * s->heads;
    DeltaGpuScratch at;
    const struct {
        int64_t *offset, bytes;
        DeltaArrays least;
    } all[] = {
        {&at.scales, s->rows * s->key_heads * 2 * FLOAT, DELTA_ROWS},
        {&at.products, s->rows * s->key_heads * FLOAT, DELTA_ROWS},
        {&at.factors, entries * 2 * FLOAT, DELTA_ROWS},
        {&at.numbers, of_heads * (int64_t)sizeof(DeltaNumbers), DELTA_FORWARD},
        {&at.solved, of_heads * TILE, DELTA_FORWARD},
        {&at.own, of_heads * TILE, DELTA_FORWARD},
        {&at.updates, of_heads * TILE, DELTA_FORWARD},
        {&at.states, of_heads * STATE, DELTA_FORWARD},
        {&at.d_recalled, of_heads * TILE, DELTA_BACKWARD},
        {&at.d_outs, of_heads * TILE, DELTA_BACKWARD},
        {&at.d_states, of_heads * STATE, DELTA_BACKWARD},
        {&at.d_carried, s->rows * s->values * FLOAT, DELTA_BACKWARD},
        {&at.d_queries, entries * s->key_dim * FLOAT, DELTA_BACKWARD},
        {&at.d_keys, entries * s->key_dim * FLOAT, DELTA_BACKWARD},
        {&at.d_factors, entries * 3 * FLOAT, DELTA_BACKWARD},
        {&at.d_after, of_heads * FLOAT, DELTA_BACKWARD},
        {&at.sums, chunks * 2 * s->heads * FLOAT, DELTA_BACKWARD},
    };
    at.bytes = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        *all[i].offset = at.bytes;
        if (all[i].least <= arrays) at.bytes += round_up(all[i].bytes, 128);
    }
    return at;
}

DeltaArguments delta_gpu_arguments(const OpCall *call, const DeltaShape *s, DeltaArrays arrays);
/* Computes what all kernels of chunks read: scales, products, factors and numbers. */
void delta_gpu_number(const OpCall *call, const DeltaShape *s, const DeltaArguments *arguments);
