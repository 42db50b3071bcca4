/* Generation: a model, its caches and the tokens so far. Tokens are fed or drawn one after another; a token's keys,
 * values and convolution state stay in the cache, so that each new one costs one row. Without the cache the whole
 * sequence is computed again for each token: slow, and the check on the cache. Called by `smelt generate`.
 *
 * On a mesh of several ranks all of them make the same calls with the same tokens. The ranks of AXIS_CP share the caches by
 * position (op_attention_cached), those of AXES_TENSOR weights and caches by heads. Every rank gets logits, and the token
 * that rank 0 draws: GPUs may round a GEMM differently, and ranks that drew different tokens would go apart. */
#pragma once

#include "config/config.h"
#include "graph/graph.h"

typedef struct Sampling {
    double temperature; /* 0: the most likely token */
    int64_t top_k;      /* only this many of the most likely tokens; 0: all */
    double top_p;       /* then the fewest likely ones with this probability together (arXiv 1904.09751); 1: all */
    uint64_t seed;
} Sampling;

typedef struct Generator Generator;

/* Allocates weights (zero) and caches for config->context positions. `mesh` (NULL: one rank), `config` and the device must
 * outlive the generator; the mesh has a group of AXIS_CP and one of AXES_TENSOR. Without the cache: one rank. Collective:
 * ERROR_MEMORY on all ranks when that does not fit on one, with what would. */
Generator *generator_create(const Mesh *mesh, const ModelConfig *config, Precision precision, Device *device, bool cache, Error *error);
void generator_free(Generator *generator); /* NULL is allowed */

/* To set the weights by hand: the graph that describes the WIDE arena, the arena (the device's memory), and the call
 * that puts its values into use. train/source.h fills both arenas from a run or a model folder. */
const Graph *generator_graph(const Generator *generator);
void *generator_master(Generator *generator);
void *generator_weights(Generator *generator);
void generator_use_weights(Generator *generator);

/* Positions that are left of the context. */
int64_t generator_room(const Generator *generator);
/* Appends tokens. ERROR_USAGE when one is outside the vocabulary or they do not fit into the context; then nothing
 * is appended. */
bool generator_feed(Generator *generator, const int32_t *tokens, int64_t count, Error *error);
/* Forgets all tokens: the next ones begin a text. */
void generator_restart(Generator *generator);
/* Computes what was appended and gives the logits [vocabulary] of the next token, valid until the next call. There
 * must be a token. ERROR_NUMERICS when one is not finite; ERROR_MEMORY without the cache; ERROR_COMMUNICATION when a rank
 * is lost. */
const double *generator_logits(Generator *generator, Error *error);
/* Draws the next token out of the first `limit` of the vocabulary and appends it; there must be room. The draw
 * depends on seed and position alone. ERROR_COMMUNICATION when the ranks drew different ones before. */
bool generator_next(Generator *generator, const Sampling *sampling, int64_t limit, int32_t *token, Error *error);

/* -- Choosing the next token from logits (sample.c) ---------------------------------------------------------------- */

/* One of the `count` tokens that the logits belong to; `uniform` in [0, 1) decides. A tie goes to the lower token.
 * Logits are finite. */
int32_t sample_token(const double *logits, int64_t count, const Sampling *sampling, double uniform);
