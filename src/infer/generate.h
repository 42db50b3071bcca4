/* Generation: a model, its caches and the tokens so far. Tokens are fed or drawn one after another.
 * A token's keys, values and convolution state stay in the cache, so that each new token costs one
 * row. Without the cache the whole sequence is recomputed for each token, which is slow and serves
 * to check the cache. Called by `smelt generate`.
 *
 * On a mesh all ranks make the same calls with the same tokens. The ranks of AXIS_CP shard the
 * caches by position (op_attention_cached); the ranks of AXES_TENSOR shard weights and caches by
 * heads. Every rank gets the logits, and the token that rank 0 draws: GPUs may round a GEMM
 * differently, and ranks that drew different tokens would diverge. */
#pragma once

#include "config/config.h"
#include "graph/graph.h"

typedef struct Sampling {
    double temperature; /* 0: the most likely token */
    int64_t top_k;      /* consider only this many of the most likely tokens; 0: all */
    double top_p;       /* then the fewest most likely tokens whose probabilities sum to this (arXiv 1904.09751); 1: all */
    double min_p;       /* then those of at least this share of the largest probability; 0: all. For src/engine */
    uint64_t seed;
} Sampling;

typedef struct Generator Generator;

/* Allocates weights (zero) and caches for config->context positions. `mesh` (NULL: one rank),
 * `config` and the device must outlive the generator; the mesh has a group of AXIS_CP and one of
 * AXES_TENSOR. Without the cache: one rank. Collective. ERROR_MEMORY on all ranks if one rank lacks
 * the memory; the message suggests what would fit. */
Generator *generator_create(const Mesh *mesh, const ModelConfig *config, Precision precision, Device *device, bool cache, Error *error);
void generator_free(Generator *generator); /* NULL is allowed */

/* For setting the weights directly: the graph that describes the WIDE arena, and the arenas, device
 * memory. session/weights.h fills both from a run or a model folder. */
const Graph *generator_graph(const Generator *generator);
void *generator_master(Generator *generator);
void *generator_weights(Generator *generator);

/* Returns the free positions of the context. */
int64_t generator_room(const Generator *generator);
/* Appends tokens. ERROR_USAGE if one is outside the vocabulary, they do not fit into the context, or
 * a cache with dynamic scaling or longrope cannot take as many at once; then none is appended. */
bool generator_feed(Generator *generator, const int32_t *tokens, int64_t count, Error *error);
/* Drops all tokens: the next ones begin a text. */
void generator_restart(Generator *generator);
/* Computes the appended tokens and returns the logits [vocabulary] of the next token, valid until
 * the next call. There must be a token. ERROR_NUMERICS if a logit is not finite; ERROR_MEMORY
 * without the cache; ERROR_COMMUNICATION if a rank is lost. */
const double *generator_logits(Generator *generator, Error *error);
/* Draws the next token from the first `limit` tokens of the vocabulary and appends it; there must
 * be room. The draw depends only on seed and position. ERROR_COMMUNICATION if the ranks drew
 * different tokens before. */
bool generator_next(Generator *generator, const Sampling *sampling, int64_t limit, int32_t *token, Error *error);

/* -- Choosing the next token from logits (sample.c) ---------------------------------------------------------------- */

/* Returns one of the `count` tokens of the logits; `uniform` in [0, 1) decides. A tie goes to the
 * lower token. Logits must be finite. */
int32_t sample_token(const double *logits, int64_t count, const Sampling *sampling, double uniform);
