/* Which rank holds what. Data parallelism keeps a copy of the program on every rank; ZeRO (arXiv 1910.02054) shards
 * what belongs to the parameters:
 *   stage 0   nothing: gradients are all-reduced, and every rank makes every update;
 *   stage 1   master weights and optimizer state: gradients are reduce-scattered, updated weights all-gathered;
 *   stage 2   gradients too;
 *   stage 3   weights too: gathered for each bucket when the program needs it.
 *
 * Parameters lie in buckets, a bucket being what one collective moves, and a bucket is cut into one shard for each
 * rank. The parameters are ordered by class, each class in layer order and in buckets of its own:
 * vectors   (read in the WIDE type: norms, biases, load-balancing biases) whole on every rank, as they are small;
 * updated everywhere
 *             alike;
 *   AdamW's   equal shards, buckets padded so that they are;
 *   Muon's    shards that end where a matrix ends, so that an update needs no other rank; chosen so that the work of all
 *             buckets together is even;
 *   frozen    matrices (beside adapters: model/lora.c), whole on every rank and in the WEIGHT arena alone. Frozen
 *             vectors lie among the vectors;
 *   quantized frozen matrices that are held as codes (ARENA_QUANTIZED): here they have places and no memory.
 * Which ranks share a bucket out depends on the mesh (comm/mesh.h): those of the axes over which its gradients are summed
 * (parameter_sum_axes), so buckets are of one such set of axes each. The axis REPLICA is no part of that: replicas have
 * shards of their own, between which only gradients are summed.
 *
 * Stages of a pipeline have parameters of their own, but for a tied embedding, which the first and the last hold and update
 * alike. Its gradients are summed over both. Parts of many microbatches run in turn there, so gradients are whole until the
 * step ends, in every ZeRO stage.
 *
 * Offsets are bytes of the MASTER arena (graph.h), either of the whole model's or of the rank's own, which is called
 * local: it holds the vectors and the rank's shards of all buckets, one after another. Names and shapes of parameters
 * do not change, so any layout reads a checkpoint of any other through the list of intervals that a rank holds.
 *
 * The layout owns its lists; graphs that it has placed must all describe the same parameters. Made by session_plan. */
#pragma once

#include "config/config.h"
#include "graph/graph.h"
#include "optim/optim.h"

/* Buckets cover [0, bytes) without overlap, in ascending order; begin and end are multiples of precision_alignment.
 * Local offsets have the same distance from such a multiple as the offsets in the whole arena, so that vector loads
 * stay aligned. */
typedef struct LayoutBucket {
    int64_t begin, end;    /* in the whole MASTER arena */
    int64_t element_bytes; /* of the state dtype of its parameters, which is one */
    bool vectors;          /* its parameters are read in the WIDE type; else in the COMPUTE type */
    bool sharded;          /* false: every rank holds it all */
    bool frozen;           /* nothing in it is trained: it is in the WEIGHT arena alone */
    bool coded;            /* training gathers its parameters' codes of fp8 (Parameter.coded), a byte an element */
    bool ends;             /* of a parameter that the first and the last stage of a pipeline both hold (Parameter.ends) */
    MeshAxes axes;         /* over which its gradients are summed */
    int size, rank;        /* of the ranks of these axes but REPLICA, which share it out: how many, and this one's number */
    int64_t *shards; /* [size + 1] ascending elements from the bucket's begin: rank r has [shards[r], shards[r + 1]). NULL unless sharded */
    int64_t local;   /* where this rank's shard, or all of it, begins in its own arenas */
} LayoutBucket;

typedef struct Layout {
    const Mesh *mesh;
    int stage;             /* 0 where no ranks share anything out */
    int64_t bytes;         /* of the whole MASTER arena, padding included */
    int64_t trained_bytes; /* of these, what lies before frozen matrices: where arenas of masters, gradients and the optimizer end */
    int64_t stored_bytes;  /* of these, what lies before quantized matrices: where the arena of weights ends */
    LayoutBucket *buckets;
    int bucket_count;
    bool in_backward;     /* weights are updated within the backward pass: a gradient is in memory until then alone */
    bool reduces_in_bf16; /* fp32 gradients of matrices are cast to bf16 before they are sent */
    double muon_balance;  /* Muon's work of the busiest rank over the mean; 0: Muon's matrices are not sharded */
    int64_t *offsets;     /* per parameter, in the whole arenas */
    OptimizerShard shard; /* what this rank holds of the master weights, and updates; its list is the layout's */
} Layout;

/* The mesh of a run of `ranks` for the first of them, without groups; the layout breaks no rule. */
Mesh layout_mesh_of(const Config *config, int ranks);
/* The mesh of a run of `ranks` for one of them, without groups. ERROR_USAGE when they cannot be laid out so. */
bool layout_mesh(Mesh *mesh, const Config *config, int rank, int ranks, Error *error);
/* The groups of ranks in which nodes of programs communicate; and those between which parameters and layers are cut. */
enum { LAYOUT_PROGRAM_GROUPS = 4, LAYOUT_CUT_GROUPS = 4 };
extern const MeshAxes layout_program_groups[LAYOUT_PROGRAM_GROUPS], layout_cut_groups[LAYOUT_CUT_GROUPS];
/* The mesh of all ranks of `comm` with the groups of programs. Collective. ERROR_USAGE, ERROR_COMMUNICATION. */
bool layout_open_mesh(Mesh *mesh, const Config *config, Comm *comm, Error *error);
/* A layout without buckets, which owns nothing: what is shared out on this mesh, whatever the model. */
Layout layout_empty(const Mesh *mesh, const LayoutConfig *config, Precision precision);
/* The layout of the graph's parameters for the rank that the graph's mesh is for, with the graph placed. `bucket_bytes` are
 * of gradients. */
Layout *layout_create(Graph *graph, const OptimizerConfig *optimizer, const LayoutConfig *config, int64_t bucket_bytes);
void layout_free(Layout *layout);
/* Moves the parameters of another graph of the same model to where the layout has them; before graph_plan. */
void layout_place(const Layout *layout, Graph *graph);

static inline int layout_all_ranks(const Layout *layout) { return mesh_size(layout->mesh, AXES_ALL); }

/* This rank's shard of a bucket, or all of one that is not sharded: bytes of the whole MASTER arena. */
static inline ByteSpan layout_bucket_shard(const LayoutBucket *bucket) {
    if (!bucket->sharded) return (ByteSpan){bucket->begin, bucket->end};
    return (ByteSpan){bucket->begin + bucket->shards[bucket->rank] * bucket->element_bytes,
        bucket->begin + bucket->shards[bucket->rank + 1] * bucket->element_bytes};
}
