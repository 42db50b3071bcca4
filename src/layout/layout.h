/* Decides which rank holds what. Data parallelism keeps a copy of the program on every rank; ZeRO
 * (arXiv 1910.02054) shards the data of the parameters:
 *   stage 0   nothing: gradients are all-reduced, and every rank makes every update;
 *   stage 1   master weights and optimizer state: gradients are reduce-scattered, updated weights all-gathered;
 *   stage 2   gradients too;
 *   stage 3   weights too: each bucket is gathered when the program needs it.
 *
 * A bucket holds the parameters that one collective moves. It is cut into one shard per rank.
 * Parameters are ordered by class; each class is in layer order and has its own buckets:
 *   vectors   (read in the WIDE type: norms, biases, load-balancing biases) whole on every rank, because they are small;
 *             every rank updates them alike;
 *   elements  AdamW's and Lion's: equal shards; buckets are padded to make them equal;
 *   Muon's    shards that end at the end of a matrix, so that an update needs no other rank; chosen so that the work
 *             of all buckets together is even;
 *   frozen    matrices (next to adapters: model/lora.c), in the WEIGHT arena alone; in stage 3 in equal shards, else whole
 *             on every rank. Frozen vectors are among the vectors;
 *   quantized frozen matrices that are held as quantized values (ARENA_QUANTIZED): in MASTER and WEIGHT they have offsets
 *             but no memory. In stage 3 a bucket of them is packed: quantized values and scales, one matrix after
 *             another, are cut into equal shards of bytes.
 * The mesh (comm/mesh.h) decides which ranks shard a bucket: the ranks along the axes over which
 * its gradients are summed (parameter_sum_axes). All parameters of a bucket therefore have the same
 * set of axes. The axis REPLICA is excluded: each replica has its own shards, and only gradients
 * are summed between replicas.
 *
 * Each stage of a pipeline has its own parameters. The exception is a tied embedding: the first and
 * the last stage hold it, sum its gradients over both, and update it alike. A stage runs parts of
 * many microbatches in turn, so gradients are whole until the step ends, in every ZeRO stage.
 *
 * Offsets are bytes of the MASTER arena (graph.h). They refer either to the whole model's arena or
 * to the rank's own arena, called local, which holds the vectors and the rank's shards of all
 * buckets, one after another. Names and shapes of parameters do not depend on the layout, so any
 * layout reads a checkpoint of any other through the list of intervals that a rank holds.
 *
 * The layout owns its lists; all graphs that it has placed must describe the same parameters. Made
 * by session_plan. */
#pragma once

#include "config/config.h"
#include "graph/graph.h"
#include "optim/optim.h"

/* Buckets cover [0, bytes) without overlap, in ascending order; begin and end are multiples of
 * precision_alignment. A local offset is at the same distance from such a multiple as the offset in
 * the whole arena, so that vector loads stay aligned. */
typedef struct LayoutBucket {
    int64_t begin, end;    /* in the whole MASTER arena */
    int64_t element_bytes; /* of the state dtype that all its parameters have */
    bool vectors;          /* its parameters are read in the WIDE type; else in the COMPUTE type */
    bool sharded;          /* false: every rank holds all of it */
    bool frozen;           /* nothing in it is trained: it has memory in the WEIGHT arena alone, or in QUANTIZED */
    int64_t packed_bytes;  /* bytes in QUANTIZED, which `shards` and `local` then count; 0: the bucket is not packed */
    bool coded;            /* training gathers its parameters as FP8 quantized values (Parameter.coded), one byte per element */
    bool ends;             /* holds a parameter that the first and the last stage of a pipeline share (Parameter.ends) */
    MeshAxes axes;         /* over which its gradients are summed */
    int size, rank;        /* number of ranks that shard the bucket (along `axes` except REPLICA), and this rank's index */
    int64_t *shards; /* [size + 1] ascending elements from the bucket's begin: rank r has [shards[r], shards[r + 1]). NULL unless sharded */
    int64_t local;   /* offset of this rank's shard, or of the whole bucket, in its own arenas */
} LayoutBucket;

/* Offsets of a matrix's quantized values and scales in its packed bucket. */
typedef struct PackedOffsets { int64_t values, scales; } PackedOffsets;

typedef struct Layout {
    const Mesh *mesh;
    int stage;             /* ZeRO stage; 0 if the ranks shard nothing */
    int64_t bytes;         /* of the whole MASTER arena, padding included */
    int64_t trained_bytes; /* of these, the bytes before frozen matrices: the end of the arenas of masters, gradients and the optimizer */
    int64_t stored_bytes;  /* of these, the bytes before quantized matrices: the end of the weight arena */
    int64_t local_weights; /* in stage 3: bytes that the elements of the shards in WEIGHT have in MASTER */
    int64_t local_packed;  /* bytes of the shards of packed buckets in QUANTIZED */
    LayoutBucket *buckets;
    int bucket_count;
    bool in_backward; /* weights are updated within the backward pass: each gradient is in memory only until then */
    bool
        gathers_masters; /* stage 3 with weights in the type of their masters: weights are gathered from MASTER, and WEIGHT has no shards of them */
    bool reduces_in_bf16;  /* fp32 gradients of matrices are cast to bf16 before they are sent */
    double muon_balance;   /* Muon's work on the busiest rank over the mean; 0: Muon's matrices are not sharded */
    int64_t *offsets;      /* per parameter, in the whole arenas */
    PackedOffsets *packed; /* per parameter */
    OptimizerShard shard;  /* the master weights that this rank holds and updates; the layout owns its list */
} Layout;

/* Returns the mesh of a run of `ranks` for its first rank, without groups. The configuration must
 * break no layout rule. */
Mesh layout_mesh_of(const Config *config, int ranks);
/* Makes the mesh of a run of `ranks` for one of them, without groups. ERROR_USAGE if they cannot be
 * laid out so. */
bool layout_mesh(Mesh *mesh, const Config *config, int rank, int ranks, Error *error);
/* The groups of ranks in which nodes of programs communicate, and the groups between which
 * parameters and layers are cut. */
enum { LAYOUT_PROGRAM_GROUPS = 4, LAYOUT_CUT_GROUPS = 4 };
extern const MeshAxes layout_program_groups[LAYOUT_PROGRAM_GROUPS], layout_cut_groups[LAYOUT_CUT_GROUPS];
/* Makes the mesh of all ranks of `comm`, with the groups of programs. Collective. ERROR_USAGE,
 * ERROR_COMMUNICATION. */
bool layout_open_mesh(Mesh *mesh, const Config *config, Comm *comm, Error *error);
/* Returns a layout without buckets, which owns nothing: the settings of this mesh for any model. */
Layout layout_empty(const Mesh *mesh, const OptimizerConfig *optimizer, const LayoutConfig *config, Precision precision);
/* Makes the layout of the graph's parameters for the rank of the graph's mesh, and places the
 * graph. `bucket_bytes` counts gradients. */
Layout *layout_create(Graph *graph, const OptimizerConfig *optimizer, const LayoutConfig *config, int64_t bucket_bytes);
/* Keeps optimizer state, and master weights that the program does not read, in host memory
 * (OptimizerOffload). Call it before programs are planned. */
void layout_offload(Layout *layout, Precision precision, int64_t portion_bytes);
void layout_free(Layout *layout);
/* Moves the parameters of another graph of the same model to the layout's offsets. Call it before
 * graph_plan. */
void layout_place(const Layout *layout, Graph *graph);

static inline int layout_all_ranks(const Layout *layout) { return mesh_size(layout->mesh, AXES_ALL); }

/* Returns the arena of the weights of this rank's shard of a bucket in stage 3. */
static inline Arena layout_local_arena(const Layout *layout, const LayoutBucket *bucket) {
    if (bucket->packed_bytes) return ARENA_QUANTIZED;
    return layout->gathers_masters && !bucket->frozen ? ARENA_MASTER : ARENA_WEIGHT;
}

/* Returns the bucket of the byte `offset` of MASTER. */
static inline int layout_bucket_at(const Layout *layout, int64_t offset) {
    int b = layout->bucket_count - 1;
    while (b > 0 && layout->buckets[b].begin > offset) b--;
    return b;
}

/* Returns this rank's shard of a bucket, or all of an unsharded bucket, in bytes of the whole
 * MASTER arena. */
static inline ByteSpan layout_bucket_shard(const LayoutBucket *bucket) {
    if (!bucket->sharded) return (ByteSpan){bucket->begin, bucket->end};
    return (ByteSpan){bucket->begin + bucket->shards[bucket->rank] * bucket->element_bytes,
        bucket->begin + bucket->shards[bucket->rank + 1] * bucket->element_bytes};
}
