/* Mixtures of corpora, and the order in which a run reads them.
 *
 * A mixture is a YAML file (data.train=MIXTURE.yaml). It names *sources* (a token shard, a folder of shards, or text)
 * and *phases*; a phase is a number of tokens with the share that each source has in them, the length of its sequences
 * and a few settings of training that change with it:
 *
 *     sources:
 *       - {name: web, path: /data/web, epochs: 1}
 *       - {name: code, path: /data/code, epochs: 4}
 *     phases:
 *       - {name: pretrain, tokens: 8T, length: 4096, weights: {web: 90, code: 10}}
 * - {name: midtrain, tokens: 1.2T, length: 32768, rope_theta: 1M, batch: {tokens: 16Mi}, weights: {web: 30, code: 70}}
 *
 * The *order* says what sample n of a run is: which source, and which of its tokens. It is a pure function of the seed,
 * the mixture and the sizes of the sources; ranks, threads, microbatches and prefetching do not enter, nothing is stored
 * per sample, and any n is found in O(sources). docs/data.md gives the formulas. The file is read by mixture.c, the order
 * is order.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/options.h"

/* -- The file (mixture.c) ------------------------------------------------------------------------------------------- */

enum { MIXTURE_MOST_SOURCES = 256, MIXTURE_MOST_PHASES = 64 };

typedef struct MixtureSource {
    const char *name; /* letters, digits, "_" and "-"; the phases' weights refer to it */
    const char *path; /* of a shard, a folder of shards, or text; absolute, or a URL. The file may give it relative to its own folder */
    double epochs;    /* the run may read it at most so often */
} MixtureSource;

typedef struct MixturePhase {
    const char *name;
    int64_t tokens;                       /* of the phase, padding included; 0, for the last phase alone: until the run ends */
    int64_t length;                       /* tokens of a sequence; 0: data.length */
    double rope_theta;                    /* 0: model.rope_theta */
    int64_t batch_tokens;                 /* of a step; 0: batch.tokens */
    int64_t sequences;                    /* of a microbatch; 0: as many as keep its tokens, at least one */
    int64_t ramp_tokens, ramp_steps;      /* as batch.ramp_tokens and batch.ramp_steps, from the phase's first step on; 0: no ramp */
    double weights[MIXTURE_MOST_SOURCES]; /* the share in the phase's tokens of each source: at least 0, of any sum above 0 */
} MixturePhase;

typedef struct Mixture {
    MixtureSource *sources; /* [source_count], at least 1 */
    MixturePhase *phases;   /* [phase_count], at least 1 */
    int source_count, phase_count;
    OptionStrings strings; /* owns the texts */
} Mixture;

/* Whether data.train names a mixture: by its ending, .yaml or .yml. */
bool mixture_is(const char *path);
/* Refuses a mixture where a token shard or text is wanted (ERROR_USAGE); any other file or folder passes, also other
 * YAML. */
bool mixture_refuse(const char *path, Error *error);
/* Reads and checks a file: ERROR_USAGE with file, line, key, value and what is allowed. Paths are not opened. */
bool mixture_read(Mixture *mixture, const char *path, Error *error);
void mixture_free(Mixture *mixture); /* also of a zeroed or failed one */

/* -- The order (order.c) -------------------------------------------------------------------------------------------- */

/* Samples of a phase come in blocks of so many. Weights are rounded to whole samples of a block, by the largest
 * remainder; every block has exactly these counts, and so has what is left behind the last whole one. */
enum { ORDER_BLOCK = 65536 };

/* A phase as the order needs it. */
typedef struct OrderPhase {
    const char *name;      /* for messages */
    int64_t samples;       /* at least 1; 0, for the last phase alone: without end */
    int64_t length;        /* tokens of a sequence, at least 1 */
    const double *weights; /* [source_count], as mixture_read checks them; copied */
} OrderPhase;

typedef struct OrderOptions {
    uint64_t seed;
    bool shuffle; /* false (evaluation; one source and one phase only): a source's tokens in order, then again */
    int source_count, phase_count;
    const int64_t *inputs;    /* [source_count]: of each source, the tokens that can be inputs: all but the last, which is only a target */
    const char *const *names; /* [source_count], for messages; copied */
    const OrderPhase *phases; /* [phase_count] */
} OrderOptions;

/* What a sample is: the tokens [start, start + count) of a source. They are inputs, and the token behind each is its
 * target. count is below the phase's length, and the rest of the sequence is padding, where the source ends, or where an
 * earlier phase with shorter sequences has read the beginning. */
typedef struct Draw {
    int phase, source;
    int64_t epoch; /* how often the source was read before, from 0 */
    int64_t start, count;
} Draw;

typedef struct Order Order;
/* ERROR_USAGE for lengths that do not divide the longest in which their source is read; ERROR_DATA for a source
 * that does not fill one sequence. */
Order *order_create(const OrderOptions *options, Error *error);
/* The order of one source in one phase without end. */
Order *order_of_one(uint64_t seed, bool shuffle, const char *name, int64_t inputs, int64_t length, Error *error);
void order_free(Order *order); /* NULL is fine */
/* Sample n of the run, from 0 and below order_phase_start(order, phase_count). */
Draw order_draw(const Order *order, int64_t n);
/* The phase of sample n, and the first sample of a phase (of phase_count: the number of samples; INT64_MAX without
 * end). */
int order_phase(const Order *order, int64_t n);
int64_t order_phase_start(const Order *order, int phase);
int64_t order_phase_length(const Order *order, int phase);
int order_sources(const Order *order);
/* The sequences that an epoch of `tokens` has, the last of which may be padded. */
int64_t order_sequences(int64_t tokens, int64_t length);
/* The tokens of the first n samples, padding included, and how many of the samples are of `source`. Inside a block of
 * several sources the latter asks for up to ORDER_BLOCK permutations. */
int64_t order_tokens(const Order *order, int64_t n);
int64_t order_samples(const Order *order, int source, int64_t n);
/* How often the first n samples read `source`: 1.5 is all of it and half of it again. */
double order_epochs(const Order *order, int source, int64_t n);
/* Refuses a run of n samples that reads a source more often than `allowed[source]` (ERROR_USAGE with the numbers, and the
 * longest run that would fit). */
bool order_check_epochs(const Order *order, const double *allowed, int64_t n, Error *error);
