/* Which rank holds what. Data parallelism keeps a copy of the program on every rank; ZeRO (arXiv 1910.02054) spreads what belongs to the parameters:
 *   stage 0   nothing: gradients are summed on all ranks, and every rank makes every update;
 *   stage 1   master weights and optimizer state: gradients are reduce-scattered, updated weights all-gathered;
 *   stage 2   gradients too;
 *   stage 3   weights too: gathered for each bucket when the program needs it.
 *
 * Arenas are cut into buckets, what one collective moves, and every bucket into one piece for each rank. From stage 1 on the parameters lie in this order, each
 * class in layer order and in buckets of its own:
 *   vectors   (read in the WIDE type: norms, biases, controllers) on every rank, since they are few; updated everywhere alike;
 *   AdamW's   equal pieces, buckets padded so that they are;
 *   Muon's    pieces that end where a matrix ends, so that an update needs no other rank; chosen so that the work of all buckets together is even;
 *   frozen    matrices (beside adapters: model/lora.c), on every rank and in the arena of weights alone. Frozen vectors lie among the vectors, which are few.
 * Instead of all ranks, groups of some consecutive ones (of a node) can share these things out among themselves: "replicas" of each other, between which only
 * gradients are summed. Ranks and sizes below are those inside such a group.
 *
 * Arenas and offsets count units (graph.h), which are elements but for vectors in pure bf16.
 *
 * A rank's own arenas (master weights, optimizer state) hold the vectors and its pieces of all buckets, one after another: "local" offsets. The names and shapes
 * of parameters do not change, so that a checkpoint of one layout is read by any other through the list of what a rank holds.
 *
 * The layout owns its lists; graphs that it has placed must all describe the same parameters. Made by session_plan. */
#pragma once

#include "config/config.h"
#include "graph/graph.h"
#include "optim/optim.h"

enum {
    LAYOUT_ALIGNMENT = 64
}; /* units: buckets start at multiples of it, and local offsets have the same distance from one as the whole arenas' */

typedef struct LayoutBucket {
    int64_t begin, end; /* units of the whole arenas */
    bool vectors;       /* all in it is read in the WIDE type; else all in the COMPUTE type */
    bool sharded;       /* false: every rank holds it all */
    bool frozen;        /* nothing in it is trained: it is in the arena of weights alone */
    int64_t *pieces;    /* [size + 1] ascending offsets from `begin`: piece r belongs to rank r. NULL unless sharded */
    int64_t local;      /* where this rank's piece, or all of it, begins in the rank's own arenas */
} LayoutBucket;

typedef struct Layout {
    int rank, size;
    int replica, replicas; /* the group's number, and how many there are; 0 and 1 in stage 0 */
    int stage;             /* 0 where one rank has all */
    int64_t extent;        /* units of the whole arenas, padding included */
    int64_t trained;       /* of these, what lies before frozen matrices: where arenas of masters, gradients and the optimizer end */
    int64_t local_extent;  /* units of this rank's own arenas; `trained` in stage 0 */
    LayoutBucket *buckets;
    int bucket_count;
    bool narrows;           /* gradients that are fp32 travel in bf16 */
    double muon_balance;    /* Muon's work of the busiest rank over the mean; 0: none is shared out */
    int64_t *offsets;       /* per parameter, in the whole arenas */
    OptimizerPiece *pieces; /* what this rank holds of the master weights, and updates */
    int piece_count;
} Layout;

/* The layout of the graph's parameters for one of `ranks`, with the graph placed. `bucket_bytes` are of gradients. config->shard divides `ranks`. */
Layout *layout_create(
    Graph *graph, const OptimizerConfig *optimizer, const LayoutConfig *config, int64_t bucket_bytes, int rank, int ranks);
void layout_free(Layout *layout);
/* Moves the parameters of another graph of the same model to where the layout has them; before graph_plan. */
void layout_place(const Layout *layout, Graph *graph);

/* What this rank's optimizer updates. Its lists are the layout's. */
OptimizerPart layout_part(const Layout *layout);

/* Of all replicas. */
static inline int layout_all_ranks(const Layout *layout) { return layout->size * layout->replicas; }

/* This rank's piece of a sharded bucket, or all of it: units of the whole arenas. */
static inline int64_t layout_own_begin(const Layout *layout, const LayoutBucket *bucket) {
    return bucket->begin + (bucket->sharded ? bucket->pieces[layout->rank] : 0);
}
static inline int64_t layout_own_end(const Layout *layout, const LayoutBucket *bucket) {
    return bucket->sharded ? bucket->begin + bucket->pieces[layout->rank + 1] : bucket->end;
}
