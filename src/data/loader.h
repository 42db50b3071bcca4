/* Batches of sequences. The order in which sequences are cut from one or several datasets is a pure
 * function (mixture.h). It does not depend on the world size, and resuming needs one integer: the
 * number of samples drawn. */
#pragma once

#include "base/stop.h"
#include "data/bins.h"
#include "data/mixture.h"

/* A pair of answers: the places [first, middle) of the batch are the chosen answer, [middle, end)
 * the rejected one. */
typedef struct BatchPair {
    int32_t first, middle, end;
    int64_t token; /* the first token of the pair in the set */
} BatchPair;

/* `sequences` x length tokens of the phase; the loader owns the arrays, which are valid until the
 * batch is released. */
typedef struct Batch {
    const int32_t *tokens;  /* [sequences][length] */
    const int32_t *targets; /* the next token; -1 if there is none, if it is untrained, or, with document_mask, at a document's end */
    /* Position inside its document, counted from the start of the sequence if the document began
     * earlier. The document of token t starts at t - positions[t], so positions give both document
     * mask and RoPE position. */
    const int32_t *positions;
    int64_t first_sample;   /* index of the first sequence in the order */
    const BatchPair *pairs; /* [pair_count], for sets of pairs */
    int64_t pair_count;
} Batch; /* padding is token 0, target -1, position 0 */

/* A source of an Order. */
typedef struct LoaderSource {
    const ShardSet *set;
    const BinPlan *bins; /* NULL: sequences are cut from the stream; otherwise sample i is bin i, and document_mask is true */
} LoaderSource;

typedef struct LoaderOptions {
    const Order *order;          /* must outlive the loader, like sets and bins */
    int phase;                   /* of the order: batches have its length, and samples after its last one are padding */
    int64_t end;                 /* samples from this one on are padding too; 0: only the phase ends them */
    const LoaderSource *sources; /* [number of the order's sources], copied */
    int64_t sequences;
    int32_t vocabulary; /* tokens must be below it; otherwise ERROR_DATA with the value */
    int32_t separator;  /* the token that ends a document in the stream, or -1. The shard's document
                         * index is used in both cases. Only used with document_mask */
    bool document_mask; /* false: positions run 0..length-1 over the whole sequence */
    /* If several loaders share the batches, one thread calls `pick` for each batch in order; it
     * returns the number of the batch, counted from the first sample. NULL: all batches. */
    int64_t (*pick)(void *context);
    void *pick_context;
    const StopRequest *stop; /* after a stop request, no call waits for data; NULL: none */
} LoaderOptions;

typedef struct Loader Loader;
/* Starts a thread that prepares batches ahead, beginning with sample first_sample of the order,
 * which must be in the phase. */
Loader *loader_open(const LoaderOptions *options, int64_t first_sample, Error *error);
/* Waits for the next batch; the previous one is released. NULL with ERROR_DATA if its data cannot
 * be read, after which no batch follows, or if it is not ready when a stop is requested. */
const Batch *loader_next(Loader *loader, Error *error);
void loader_close(Loader *loader); /* at any time; NULL is allowed */
