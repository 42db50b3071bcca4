/* Mixtures of corpora, and the order in which a run reads them.
 *
 * A mixture is a YAML file (data.train=MIXTURE.yaml). It names *sources* (a token shard, a folder of
 * shards, or text) and *phases*. A phase has a number of tokens, the share of each source in them,
 * the length of its sequences, and a few training settings that change with the phase:
 *
 *     sources:
 *       - {name: web, path: /data/web, epochs: 1}
 *       - {name: code, path: /data/code, epochs: 4}
 *     phases:
 *       - {name: pretrain, tokens: 8T, length: 4096, weights: {web: 90, code: 10}}
 * - {name: midtrain, tokens: 1.2T, length: 32768, rope_theta: 1M, batch: {tokens: 16Mi}, weights: {web: 30, code: 70}}
 *
 * The *order* gives sample n of a run: its source, and its tokens in the source. It is a pure
 * function of the seed, the mixture and the sizes of the sources, and does not depend on ranks,
 * threads, microbatches or prefetching. Nothing is stored per sample, and any n is found in
 * O(sources). docs/data.md gives the formulas. mixture.c reads the file; order.c is the order. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/options.h"

/* -- The file (mixture.c) ------------------------------------------------------------------------------------------- */

enum { MIXTURE_MOST_SOURCES = 256, MIXTURE_MOST_PHASES = 64 };

typedef struct MixtureSource {
    const char *name; /* letters, digits, "_" and "-"; the phases' weights refer to it */
    const char *path; /* a shard, a folder of shards, or text; absolute, or a URL. The file may give it relative to its own folder */
    double epochs;    /* limit: how many times the run may read it */
} MixtureSource;

typedef struct MixturePhase {
    const char *name;
    int64_t tokens;                       /* of the phase, padding included; 0, only in the last phase: until the run ends */
    int64_t length;                       /* tokens per sequence; 0: data.length */
    double rope_theta;                    /* 0: model.rope_theta */
    int64_t batch_tokens;                 /* per step; 0: batch.tokens */
    int64_t sequences;                    /* per microbatch; 0: the number that keeps its tokens, at least one */
    int64_t ramp_tokens, ramp_steps;      /* like batch.ramp_tokens and batch.ramp_steps, from the phase's first step on; 0: no ramp */
    double weights[MIXTURE_MOST_SOURCES]; /* each source's share in the phase's tokens: at least 0, with any sum above 0 */
} MixturePhase;

typedef struct Mixture {
    MixtureSource *sources; /* [source_count], at least 1 */
    MixturePhase *phases;   /* [phase_count], at least 1 */
    int source_count, phase_count;
    OptionStrings strings; /* owns the strings */
} Mixture;

/* Returns whether data.train names a mixture: by its ending, .yaml or .yml. */
bool mixture_is(const char *path);
/* Refuses a mixture if the caller needs a token shard or text (ERROR_USAGE); any other file or
 * folder passes, including other YAML. */
bool mixture_refuse(const char *path, Error *error);
/* Reads and checks a file: ERROR_USAGE with file, line, key, value and the allowed values. Paths
 * are not opened. */
bool mixture_read(Mixture *mixture, const char *path, Error *error);
void mixture_free(Mixture *mixture); /* also for a zeroed or failed mixture */

/* -- The order (order.c) -------------------------------------------------------------------------------------------- */

/* Number of samples in a block. Weights are rounded to whole samples of a block, by the largest
 * remainder. Every whole block has exactly these counts, and the rest after the last whole block
 * has its own. */
enum { ORDER_BLOCK = 65536 };

/* A phase for the order. */
typedef struct OrderPhase {
    const char *name;      /* for messages */
    int64_t samples;       /* at least 1; 0, only in the last phase: unlimited */
    int64_t length;        /* tokens per sequence, at least 1 */
    const double *weights; /* [source_count], checked by mixture_read; copied */
} OrderPhase;

typedef struct OrderOptions {
    uint64_t seed;
    bool shuffle; /* false (evaluation; only one source and one phase): the source's tokens in order, repeatedly */
    int source_count, phase_count;
    const int64_t *inputs;    /* [source_count]: input tokens of each source: all except the last, which is only a target */
    const char *const *names; /* [source_count], for messages; copied */
    const OrderPhase *phases; /* [phase_count] */
} OrderOptions;

/* A sample: the tokens [start, start + count) of a source. They are inputs, and the token after
 * each is its target. If count is below the phase's length, the rest of the sequence is padding: at
 * the end of the source, or when an earlier phase with shorter sequences has read the beginning. */
typedef struct Draw {
    int phase, source;
    int64_t epoch; /* how many times the source was read before */
    int64_t start, count;
} Draw;

typedef struct Order Order;
/* Creates an order. ERROR_USAGE if a length does not divide the longest length at which its source
 * is read; ERROR_DATA if a source does not fill one sequence. */
Order *order_create(const OrderOptions *options, Error *error);
/* Creates the order of one source in one unlimited phase. */
Order *order_of_one(uint64_t seed, bool shuffle, const char *name, int64_t inputs, int64_t length, Error *error);
void order_free(Order *order); /* NULL is fine */
/* Returns sample n of the run, from 0 to below order_phase_start(order, phase_count). */
Draw order_draw(const Order *order, int64_t n);
/* Return the phase of sample n, and the first sample of a phase (for phase_count: the number of
 * samples; INT64_MAX if unlimited). */
int order_phase(const Order *order, int64_t n);
int64_t order_phase_start(const Order *order, int phase);
int64_t order_phase_length(const Order *order, int phase);
int order_sources(const Order *order);
/* Returns the number of sequences in an epoch of `tokens`; the last one may be padded. */
int64_t order_sequences(int64_t tokens, int64_t length);
/* Return the tokens of the first n samples, padding included, and the number of these samples that
 * are from `source`. Inside a block of several sources, order_samples computes up to ORDER_BLOCK
 * permutations. */
int64_t order_tokens(const Order *order, int64_t n);
int64_t order_samples(const Order *order, int source, int64_t n);
/* Returns how many times the first n samples read `source`: 1.5 means all of it and half of it
 * again. */
double order_epochs(const Order *order, int source, int64_t n);
/* Refuses a run of n samples that reads a source more than `allowed[source]` times (ERROR_USAGE
 * with the numbers, and the longest run that would fit). */
bool order_check_epochs(const Order *order, const double *allowed, int64_t n, Error *error);
