/* The static program of a training step.
 *
 * A model is a C function that appends fused operations to a Graph: nodes over tensors, in execution order, for one
 * microbatch. Differentiation appends the backward nodes, the recompute policy clones forward nodes into the
 * backward part, the planner turns lifetimes into byte offsets, and the executor replays the result. Nothing is
 * decided after that.
 *
 * A tensor is a shape, a type class and an offset in an arena. Types are classes, not formats: COMPUTE is bf16, fp32
 * or fp64 as the run's precision says, WIDE is fp32 (fp64 when precision is fp64), so one graph serves every
 * precision. The state dtype of a parameter is that of its master weight, gradient and optimizer state: WIDE, but in
 * pure bf16 the type in which the parameter is read, so that matrices have no separate masters.
 *
 * All offsets and extents are bytes. Three arenas hold parameters:
 *     MASTER    parameters in their state dtypes, in one order; Parameter.offset is an offset in this arena
 *     GRADIENT  the layout of MASTER, byte for byte; so has the optimizer's momentum
 *     WEIGHT    matrices in the COMPUTE type, in the same order. Element k of a matrix is as many elements from the
 *               arena's start as in MASTER, so in bf16, where an element takes 2 bytes here and 4 there, offsets are
 *               half as large; in every other precision the arenas have the same layout
 * precision_weight_offset and graph_state_span convert from MASTER to WEIGHT and back; no other code does.
 * Layouts over several ranks (layout/layout.h) and the optimizer speak of offsets in MASTER. Where elements are
 * counted, the name says so: `count` of a parameter, `first` and `count` of an interval of it.
 *
 * The graph owns nodes, tensors, parameters, attributes and names. Misuse by our own code is an assert. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "base/precision.h"
#include "base/quantize.h"
#include "base/slice.h"
#include "comm/mesh.h"
#include "device/device.h"

typedef int TensorId;
enum { TENSOR_NONE = 0, TENSOR_MAX_RANK = 4, NODE_MAX_INPUTS = 12, NODE_MAX_OUTPUTS = 12 };
/* Operands of a node by the enum of its operation; those that are absent are TENSOR_NONE. */
typedef TensorId Inputs[NODE_MAX_INPUTS], Outputs[NODE_MAX_OUTPUTS];

typedef enum TypeClass { TYPE_COMPUTE, TYPE_WIDE, TYPE_INT32, TYPE_FP8, TYPE_BYTE } TypeClass; /* FP8: codes of base/float8.h */
size_t precision_bytes(Precision precision, TypeClass type);
const char *precision_name(Precision precision);
static inline bool precision_is_bf16(Precision precision) { return precision == PRECISION_BF16 || precision == PRECISION_PURE_BF16; }
/* What computes the same bits where nothing is trained, and no masters are needed. */
static inline Precision precision_for_inference(Precision precision) {
    return precision == PRECISION_BF16 ? PRECISION_PURE_BF16 : precision;
}
/* The state dtype of parameters that are read as `type`, and the bytes of an element of it. */
static inline TypeClass precision_state_type(Precision precision, TypeClass type) {
    return precision == PRECISION_PURE_BF16 ? type : TYPE_WIDE;
}
static inline int64_t precision_state_bytes(Precision precision, TypeClass type) {
    return (int64_t)precision_bytes(precision, precision_state_type(precision, type));
}
/* Where the WEIGHT arena has what MASTER has at `offset`. */
static inline int64_t precision_weight_offset(Precision precision, int64_t offset) {
    return offset / precision_state_bytes(precision, TYPE_COMPUTE) * (int64_t)precision_bytes(precision, TYPE_COMPUTE);
}
/* Parameters, buckets and shards start at multiples of it in MASTER: 64 elements of a matrix, at least 128 bytes. */
static inline int64_t precision_alignment(Precision precision) { return 64 * precision_state_bytes(precision, TYPE_COMPUTE); }

typedef enum Arena {
    ARENA_INPUT,      /* written by the caller before a run */
    ARENA_CONSTANT,   /* written once, by nodes without inputs, when the executor is made */
    ARENA_WEIGHT,     /* matrix parameters in the COMPUTE type; the master arena itself where the types agree */
    ARENA_MASTER,     /* every parameter, but for frozen matrices, in its state dtype; vectors are read from here */
    ARENA_GRADIENT,   /* in the same types at the same offsets; zeroed at the start of a step, then added to */
    ARENA_METRIC,     /* WIDE accumulators (losses, loads); zeroed at the start of a step */
    ARENA_STATE,      /* lives from run to run: caches of generation */
    ARENA_QUANTIZED,  /* codes and scales of frozen matrices (Parameter.quantization): written when weights are loaded */
    ARENA_HOST,       /* made by nodes and read by host and device alike, in pinned host memory: sizes known only then */
    ARENA_ACTIVATION, /* planned: alive from its producer to its last reader, which may put its own output there */
    ARENA_STASH,      /* planned: what one part of a pipeline's program leaves to another, once for each slot */
    ARENA_COUNT
} Arena;
const char *arena_name(Arena arena);

/* Invariants, asserted by graph_check: a tensor of the ACTIVATION or CONSTANT arena has one producer, before all its
 * readers; once planned it lies inside its arena, and no two activations that are alive at once overlap, but for
 * outputs that take the memory of an input (Op.in_place). Views and their gradients share that of parameters. */
typedef struct Tensor {
    char *name;
    Arena arena;
    TypeClass type;
    int rank;
    int64_t shape[TENSOR_MAX_RANK];
    int64_t offset;    /* bytes from the arena's start; the planner sets those outside parameters' arenas */
    int producer;      /* index of the node that makes it, or -1 */
    bool keep;         /* alive to the end of the program, for callers that read it */
    bool elided;       /* no memory holds it: the absorber of its producer alone reads it, and does without; set by graph_plan */
    bool frozen;       /* a parameter that is not trained, or an input beside such: it has no gradient */
    bool trains;       /* set by differentiation: what has a gradient is before it, so that its own is wanted */
    TensorId gradient; /* set by differentiation; for a parameter, its tensor in the gradient arena */
} Tensor;

/* What the optimizer does with a parameter. */
typedef enum ParameterKind {
    PARAMETER_MATRIX,       /* hidden 2-D weights (3-D: a stack of them): Muon or AdamW, decayed */
    PARAMETER_EMBEDDING,    /* token tables and output heads: AdamW, decayed */
    PARAMETER_CONVOLUTION,  /* AdamW, decayed */
    PARAMETER_NORM,         /* gains, residual scales, temperatures: AdamW */
    PARAMETER_BIAS,         /* AdamW */
    PARAMETER_BALANCE_BIAS, /* load-balancing biases: AdamW with its own settings, on load - 1/E as their gradient */
    PARAMETER_KIND_COUNT
} ParameterKind;
const char *parameter_kind_name(ParameterKind kind);

/* How ranks share a parameter out. Dimension `dimension` of its whole shape consists of `blocks` blocks of so many rows,
 * and of each block the rank that is number i of n on `axes` has rows [i B / n, (i + 1) B / n). Without axes every rank
 * has it whole. */
enum { CUT_MAX_BLOCKS = 4 };
typedef struct Cut {
    MeshAxes axes;
    int dimension, blocks;
    int64_t rows[CUT_MAX_BLOCKS]; /* of the whole parameter */
} Cut;
/* The share of `count` rows that number `index` of `size` has. */
typedef struct CutShare { int64_t first, count; } CutShare;
static inline CutShare cut_share(int64_t count, int index, int size) {
    return (CutShare){index * count / size, (index + 1) * count / size - index * count / size};
}

/* The rows of all blocks that number `index` of `size` has. */
static inline int64_t cut_rows(const Cut *cut, int index, int size) {
    int64_t rows = 0;
    for (int i = 0; i < cut->blocks; i++) rows += cut_share(cut->rows[i], index, size).count;
    return rows;
}

/* A parameter's name is its tensor name in the family's Hugging Face folder. Parameters lie one after another in
 * declaration order; each starts at a multiple of precision_alignment unless it is `fused` to the one before it. */
typedef struct Parameter {
    char *name;
    ParameterKind kind;
    int rank;
    int64_t shape[TENSOR_MAX_RANK]; /* of what this rank has of it */
    int64_t whole[TENSOR_MAX_RANK]; /* of the whole one, which names, files and initial values are about */
    Cut cut;
    int projections; /* that a matrix stacks along its rows, such as q, k and v, or gate and up; 1: it is one */
    int64_t projection_rows[CUT_MAX_BLOCKS];
    int64_t offset;        /* in the MASTER arena */
    int64_t count;         /* elements */
    int64_t element_bytes; /* of the state dtype */
    double init_mean, init_std;
    bool fused;  /* no gap before it, so that graph_fuse can view both as one matrix */
    bool frozen; /* stays as it was loaded: no gradient, no update */
    bool ends;   /* the first and the last stage of a pipeline both have it */
    bool coded;  /* the program reads its codes of fp8, which ranks gather from their shards (layout/weight_codes_internal.h) */
    /* The folder holds [in, out] where our matrix is [out, in] (GPT-2's Conv1D): reading and writing transpose. */
    bool transposed;
    /* A frozen matrix that is held as codes and scales, BYTE tensors of ARENA_QUANTIZED (op_dequantize). Its `tensor` then
     * stands for its place among the parameters, where no memory is. */
    Quantization quantization;
    TensorId codes, scales;
    TensorId tensor;
} Parameter;

/* Where a parameter lies in an arena with the layout of MASTER. */
static inline void *parameter_in(const Parameter *parameter, const void *arena) { return (char *)arena + parameter->offset; }

/* Elements [first, first + count) of a parameter. */
typedef struct ParameterInterval {
    int parameter; /* index in the graph */
    int64_t first, count;
} ParameterInterval;

/* Bytes [begin, end) of an arena. */
typedef struct ByteSpan { int64_t begin, end; } ByteSpan;

/* One call of an operation. Operands are indexed by its enums (ops/NAME/NAME.h); an optional one that is absent is
 * TENSOR_NONE. Invariants, asserted by graph_check: inputs are produced by earlier nodes or lie in arenas that callers
 * fill; an output that the operation does not add to (Op.adds_to) has this node as its producer; the scratch overlaps
 * no activation that is alive at this node. */
typedef struct Node {
    int op;              /* OpId of graph/op.h */
    int inputs, outputs; /* numbers of operands, up to the last one that is present */
    Inputs in;
    Outputs out;
    const void *attributes; /* the operation's attribute struct, owned by the graph */
    int layer;              /* -1 outside the layers */
    int part;               /* of a pipeline's program (graph_part); 0 in others */
    bool backward;
    int clone_of;      /* the forward node that this one recomputes, or -1 */
    bool overwrites;   /* the first to touch the gradient of its output in Op.overwrites (graph_differentiate) */
    int64_t workspace; /* offset of its scratch in the activation arena */
    int absorbs;       /* how many of the nodes right before it its kernel computes too (OpKernel.absorbs); set by graph_plan */
    int absorber;      /* the later node that computes this one; 0: none */
    char *name;
} Node;

/* A pipeline's program has parts, which are run one by one: for each chunk of layers the forward pass, the backward pass,
 * and where the graph splits that (Graph.splits_backward) the gradients of weights, which nothing in the program waits for. A
 * part is a span of nodes; forward parts come first, then those of the backward pass from the last chunk on. Between the
 * parts of a chunk other microbatches run: what a part leaves to another is in ARENA_STASH, in the microbatch's slot. */
typedef enum PartKind { PART_FORWARD, PART_BACKWARD, PART_WEIGHTS, PART_KINDS } PartKind;

/* A program under construction. Invariants: nodes run in array order; forward nodes come before backward ones;
 * indices of nodes, tensors and parameters never change, but pointers to them do when an array grows. */
typedef struct Graph {
    Node *nodes;
    int node_count;
    Tensor *tensors;
    int tensor_count; /* tensors[TENSOR_NONE] stands for none */
    Parameter *parameters;
    int parameter_count;
    int64_t parameter_bytes;   /* of MASTER for all parameters, gaps included */
    int64_t trained_bytes;     /* of these, what training changes: a layout puts frozen matrices behind it */
    int64_t stored_bytes;      /* of these, what has memory: a layout puts quantized matrices last */
    bool frozen;               /* given to new parameters */
    Quantization quantization; /* given to new frozen matrices */
    Precision precision;
    const Mesh *mesh; /* of the rank that it is for; mesh_alone unless the builder of a model has another */
    bool training;    /* builders may skip what only gradients need */
    int layer;        /* given to new nodes */
    int part;         /* given to new nodes */
    int chunks;       /* of layers in a pipeline's program; 0: the program is one part */
    bool splits_backward;
    bool backward;
    char scope[64]; /* put before the names of new tensors and nodes */
    void **owned;
    int owned_count;
} Graph;

Graph *graph_create(Precision precision, bool training);
void graph_free(Graph *graph);

/* The number of a part, and how many there may be; the chunk that a part belongs to; its nodes. */
int graph_part(const Graph *graph, PartKind kind, int chunk);
int graph_parts(const Graph *graph);
int graph_part_chunk(const Graph *graph, int part);

/* Layer index (-1: none) and name prefix of what is appended next. */
void graph_scope(Graph *graph, int layer, const char *prefix);

/* A new tensor in any arena but WEIGHT, MASTER and GRADIENT. */
TensorId graph_tensor(Graph *graph, Arena arena, TypeClass type, int rank, const int64_t *shape, const char *name);
/* A new activation [rows, columns], or one of the shape of another tensor. */
TensorId graph_activation(Graph *graph, TypeClass type, int64_t rows, int64_t columns, const char *name);
TensorId graph_activation_like(Graph *graph, TypeClass type, TensorId like, const char *name);
/* Declares a parameter. MATRIX, EMBEDDING and CONVOLUTION are read in the COMPUTE type, the others in the WIDE type. */
TensorId graph_parameter(
    Graph *graph, const char *name, ParameterKind kind, int rank, const int64_t *shape, double init_mean, double init_std, bool fused);
/* The same, of which this rank has the share that `cut` gives it in graph->mesh; `whole` is the shape of all of it. */
TensorId graph_cut_parameter(Graph *graph, const char *name, ParameterKind kind, int rank, const int64_t *whole, const Cut *cut,
    double init_mean, double init_std, bool fused);
/* Declares that a matrix, or each matrix of a stack, holds `count` projections one after another; projection i has
 * rows[i] rows. A matrix that is cut along its rows has the blocks of its cut as projections. */
void graph_set_projections(Graph *graph, TensorId parameter, const int64_t *rows, int count);
/* The axes over which a parameter's gradient is summed: it is partial on each rank of those that do not cut it. Stages of
 * a pipeline have parameters of their own. */
static inline MeshAxes parameter_sum_axes(const Parameter *parameter) { return AXES_ALL & ~MESH(AXIS_PP) & ~parameter->cut.axes; }
/* A view of consecutive fused parameters as one tensor; their trailing dimensions agree, the leading ones add up. */
TensorId graph_fuse(Graph *graph, const TensorId *parts, int count);
/* A view of rows first .. first + count - 1 of a matrix, or of such a view. */
TensorId graph_slice(Graph *graph, TensorId parameter, int64_t first, int64_t count);
/* The gradient tensor over the elements of a parameter or view; TENSOR_NONE for TENSOR_NONE and where frozen, which the output
 * of op_dequantize is too. */
TensorId graph_parameter_gradient(Graph *graph, TensorId parameter);
bool graph_is_parameter(const Graph *graph, TensorId tensor);
/* The index of the parameter of this name, or -1. */
int graph_find_parameter(const Graph *graph, const char *name);
/* Whether the rank has every parameter, and whole. */
static inline bool graph_is_whole(const Graph *graph) { return mesh_size(graph->mesh, MESH(AXIS_PP) | AXES_EXPERTS) == 1; }
/* Which elements of the whole parameter the first elements of `rest` are, which is not empty; `rest` moves behind them.
 * What a rank has of a cut parameter is one slice where the cut has one block, else one for each block and index of the
 * dimensions before the one that is cut. */
Slice graph_take_slice(const Graph *graph, ParameterInterval *rest);

/* Appends a node:
 *     graph_node(graph, OP_add, (Inputs){[ADD_A] = a, [ADD_B] = b}, (Outputs){[ADD_SUM] = sum}, &spec, sizeof spec);
 * Outputs are new activation tensors or ones that the op adds to. `attribute_bytes` of attributes are copied; 0: the
 * node shares the attributes of another node, or has none. Returns its index, since the array moves when it grows. */
int graph_node(Graph *graph, int op, const Inputs in, const Outputs out, const void *attributes, size_t attribute_bytes);

/* Appends a complete node, as graph_node does: for rewrites that move nodes. */
int graph_append(Graph *graph, const Node *node);

static inline const Tensor *graph_get(const Graph *graph, TensorId id) { return &graph->tensors[id]; }
/* Whether the kernel of `node` issues collectives (Op.communicates): not where it is direct (Op.direct), nor
 * in a mesh whose ranks share out data alone. */
bool graph_communicates(const Graph *graph, int node);
/* The node before which a collective has ended that `node` started (graph_communicates): the first one that reads an output
 * of it, or node_count. */
int graph_await(const Graph *graph, int node);
/* The last node during which `node` works on its operands and scratch: itself, the one of graph_await, or its absorber. */
int graph_node_end(const Graph *graph, int node);
/* Size of a tensor; 0 for TENSOR_NONE. */
int64_t graph_elements(const Graph *graph, TensorId tensor);
int64_t graph_bytes(const Graph *graph, TensorId tensor);
/* The bytes of MASTER, and of arenas with its layout, that belong to a parameter, a view of some, or their gradient. */
ByteSpan graph_state_span(const Graph *graph, TensorId tensor);
/* Whether it is a frozen matrix: its place is in the arena of weights alone. */
bool graph_is_base(const Graph *graph, const Parameter *parameter);
/* The state dtype of a parameter. */
TypeClass graph_state_type(const Graph *graph, const Parameter *parameter);
/* Product of all dimensions but the last; and the last. */
int64_t graph_rows(const Graph *graph, TensorId tensor);
int64_t graph_columns(const Graph *graph, TensorId tensor);

/* -- Differentiation (differentiate.c) ---------------------------------------------------------------------------- */

/* d(objective)/d(tensor) given from outside, for tests: `gradient` has the shape and type of `tensor`. */
typedef struct Seed { TensorId tensor, gradient; } Seed;

typedef enum RecomputePolicy {
    RECOMPUTE_NONE,      /* keep every activation that a backward node reads */
    RECOMPUTE_NORM,      /* norms and activation functions are computed again */
    RECOMPUTE_ATTENTION, /* also the attention block between its projections */
    RECOMPUTE_BLOCK,     /* keep only what crosses from layer to layer */
} RecomputePolicy;

/* Appends the backward nodes: the gradient of the sum of all losses (Op.loss: each seeds itself) and the seeds.
 * Afterwards tensors[i].gradient is set wherever a gradient flows; gradients of parameters are added to the GRADIENT
 * arena, which the first node to touch one may overwrite (Node.overwrites). What the policy drops is computed again by clones
 * of the same nodes, so bits do not depend on the policy. */
void graph_differentiate(Graph *graph, RecomputePolicy policy, const Seed *seeds, int seed_count);

/* Whether all that the node does is to add to gradients of parameters, which no node of the program reads. */
bool graph_only_adds_to_gradients(const Graph *graph, const Node *node);

/* -- What a graph runs on ------------------------------------------------------------------------------------------ */

struct OpKernel;

/* A device and its kernels for one precision, by OpId; NULL where it has none (backend/backend.h). */
typedef struct Backend {
    Device *device;
    const struct OpKernel *const *kernels;
} Backend;

/* -- Planning (plan.c) -------------------------------------------------------------------------------------------- */

/* Sizes and costs of a planned graph. Tensors lie inside bytes[arena]; activation_floor <= bytes[ARENA_ACTIVATION]. */
typedef struct Plan {
    int64_t bytes[ARENA_COUNT]; /* per arena; without optimizer state */
    int slots;                  /* copies of the INPUT, HOST and STASH arenas in these bytes: microbatches in flight */
    int64_t workspace;          /* the largest scratch of any node, inside the activation arena */
    double flops;               /* of one run, by op_cost; recomputed nodes are not counted */
    double traffic;             /* bytes that one run moves, by op_cost; recomputed nodes are counted */
    int64_t activation_floor;   /* the most bytes alive at once: no placement can need less */
} Plan;

/* Nodes first .. last of a program; first > last: none. */
typedef struct NodeSpan { int first, last; } NodeSpan;
#define NEVER {INT32_MAX, -1}
static inline bool span_is_empty(NodeSpan span) { return span.first > span.last; }

NodeSpan graph_part_span(const Graph *graph, int part);

/* Memory that is in use during up to two spans of a program. */
typedef struct PlanBlock {
    int64_t bytes, offset;
    NodeSpan life[2]; /* the first is not empty */
    int64_t *target;  /* receives the offset */
} PlanBlock;
/* Places blocks so that those in use at the same time do not overlap, and sorts them. Offsets are multiples of any
 * number that all sizes are multiples of. Returns the end of the highest block. */
int64_t plan_blocks(PlanBlock *blocks, int count);

/* Gives every tensor its offset, a multiple of 256 bytes outside the parameters' arenas. Activations are placed best
 * fit by lifetime, some in the memory of the input that their node reads last (Op.in_place). */
Plan graph_plan(Graph *graph, const Backend *backend);
/* Makes room for so many microbatches in flight in a plan that has one. */
void plan_set_slots(Plan *plan, int slots);
/* graph_plan without activations, scratch and costs: the least that the program needs, known at once. Placing the
 * activations of a model of thousands of layers takes a minute, which is too long to wait for a refusal. */
Plan graph_plan_lasting(Graph *graph);
/* Asserts the invariants of a planned graph (check.c); graph_plan calls it. */
void graph_check(const Graph *graph, const Backend *backend, const Plan *plan);
/* The program, one line per node: number, pass, op, name, inputs -> outputs with shapes and offsets, flops, bytes. */
void graph_print(const Graph *graph, FILE *file);

/* -- Execution (execute.c) ---------------------------------------------------------------------------------------- */

typedef struct Executor Executor;

/* Called after each node, which took `seconds`; returning false stops the run (tracing, NaN search, profiles). */
typedef bool (*ExecutorHook)(void *context, const Graph *graph, int node, double seconds);

/* Memory for every arena on the backend's device and one bound call per node. Several executors may share weights:
 * arenas in `shared` (NULL, or by Arena with NULL where not shared) are used and not freed. The graph must be planned
 * for the backend and outlive the executor. ERROR_MEMORY; ERROR_USAGE where the backend lacks a kernel. */
Executor *executor_create(const Graph *graph, const Plan *plan, const Backend *backend, void *const *shared, Error *error);
void executor_free(Executor *executor);
/* Sets the comm points, where communication is started or waited for: every run calls comm_point(context, i) before
 * node points[i] (ascending; node_count: after the last node). Call it before the first run. The list is copied. */
typedef void (*ExecutorCommPoint)(void *context, int index);
void executor_set_comm_points(Executor *executor, const int *points, int count, ExecutorCommPoint comm_point, void *context);
/* Chooses the slot of the runs, reads and writes that follow; 0 at first. */
void executor_set_slot(Executor *executor, int slot);
/* Runs a part of the program in the slot. Forward parts take the slot's inputs. */
void executor_run_part(Executor *executor, int part);
/* Runs a part and calls the hook after each node. Returns the node at which the hook stopped the run, or -1. */
int executor_run_part_hooked(Executor *executor, int part, ExecutorHook hook, void *context);
/* The same for a program of one part: on a GPU it returns before the work is done; from the third run on it replays recordings. */
void executor_run(Executor *executor);
int executor_run_hooked(Executor *executor, ExecutorHook hook, void *context);
/* Waits for all runs; metrics may be read afterwards. False when the device failed: ERROR_DEVICE. */
bool executor_finish(Executor *executor, Error *error);
/* Starts a step: the next run overwrites gradients and metrics, later ones add to them. */
void executor_zero(Executor *executor);

/* Memory of the device. */
void *executor_arena(const Executor *executor, Arena arena);
/* The memory of a tensor: of INPUT and METRIC tensors host memory, written before a run and read after executor_finish;
 * of others device memory, valid for activations only while they are alive or kept. */
void *executor_tensor(const Executor *executor, TensorId tensor);
/* Its memory of the device, whatever its arena. */
void *executor_device_tensor(const Executor *executor, TensorId tensor);
/* Copies any tensor to host memory. */
void executor_read(const Executor *executor, TensorId tensor, void *to);
/* Elements first .. first + count - 1 of a real INPUT tensor, rounded to its type. */
void executor_set_values(Executor *executor, TensorId tensor, int64_t first, const float *values, int64_t count);
/* An INPUT tensor of one WIDE element; an element of a METRIC tensor. */
void executor_set_scalar(Executor *executor, TensorId tensor, double value);
double executor_get_metric(const Executor *executor, TensorId tensor, int64_t index);
const Backend *executor_backend(const Executor *executor);
const Graph *executor_graph(const Executor *executor);
