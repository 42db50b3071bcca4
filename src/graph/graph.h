/* The static program of a training step.
 *
 * A model is a C function that appends fused operations to a Graph: nodes over tensors, in
 * execution order, for one microbatch. Differentiation appends the backward nodes, the recompute
 * policy clones forward nodes into the backward part, the planner turns lifetimes into byte
 * offsets, and the executor replays the result. Nothing is decided afterwards.
 *
 * A tensor is a shape, a type class and an offset in an arena. Types are classes, not formats:
 * COMPUTE is bf16, fp32 or fp64 according to the run's precision; WIDE is fp32 (fp64 when precision
 * is fp64). One graph thus serves every precision. The state dtype of a parameter is the type of
 * its master weight, gradient and optimizer state. It is WIDE, except in pure bf16: there it is the
 * type in which the program reads the parameter, so matrices have no separate master weights.
 *
 * All offsets and extents are bytes. Three arenas hold parameters:
 *     MASTER    parameters in their state dtypes, in one order; Parameter.offset is an offset here
 *     GRADIENT  the layout of MASTER, byte for byte; the optimizer's momentum has it too
 *     WEIGHT    matrices in the COMPUTE type, in the same order. Element k of a matrix has the same
 *               element index from the arena's start as in MASTER. In bf16 an element takes 2 bytes
 *               here and 4 there, so offsets are half as large; in every other precision the arenas
 *               have the same layout
 * precision_weight_offset and graph_state_span convert from MASTER to WEIGHT and back; no other
 * code does. Layouts over several ranks (layout/layout.h) and the optimizer speak of offsets in
 * MASTER. Names of element counts say so: `count` of a parameter, `first` and `count` of an
 * interval of it.
 *
 * The graph owns nodes, tensors, parameters, attributes and names. Misuse by our own code is
 * asserted. */
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
/* Operands of a node, indexed by the enum of its operation; absent operands are TENSOR_NONE. */
typedef TensorId Inputs[NODE_MAX_INPUTS], Outputs[NODE_MAX_OUTPUTS];

typedef enum TypeClass { TYPE_COMPUTE, TYPE_WIDE, TYPE_INT32, TYPE_FP8, TYPE_BYTE } TypeClass; /* FP8: values of base/float8.h */
size_t precision_bytes(Precision precision, TypeClass type);
const char *precision_name(Precision precision);
static inline bool precision_is_bf16(Precision precision) { return precision == PRECISION_BF16 || precision == PRECISION_PURE_BF16; }
/* Returns the precision that computes the same bits without master weights, for programs that do
 * not train. */
static inline Precision precision_for_inference(Precision precision) {
    return precision == PRECISION_BF16 ? PRECISION_PURE_BF16 : precision;
}
/* Return the state dtype of a parameter that the program reads as `type`, and the bytes of one
 * element. */
static inline TypeClass precision_state_type(Precision precision, TypeClass type) {
    return precision == PRECISION_PURE_BF16 ? type : TYPE_WIDE;
}
static inline int64_t precision_state_bytes(Precision precision, TypeClass type) {
    return (int64_t)precision_bytes(precision, precision_state_type(precision, type));
}
/* Converts an offset in MASTER to the offset of the same element in WEIGHT. */
static inline int64_t precision_weight_offset(Precision precision, int64_t offset) {
    return offset / precision_state_bytes(precision, TYPE_COMPUTE) * (int64_t)precision_bytes(precision, TYPE_COMPUTE);
}
/* Returns the alignment of parameters, buckets and shards in MASTER: 64 elements of a matrix, at
 * least 128 bytes. */
static inline int64_t precision_alignment(Precision precision) { return 64 * precision_state_bytes(precision, TYPE_COMPUTE); }

typedef enum Arena {
    ARENA_INPUT,       /* written by the caller before a run */
    ARENA_CONSTANT,    /* written once, by nodes without inputs, when the executor is created */
    ARENA_WEIGHT,      /* matrix parameters in the COMPUTE type; the master arena itself if the types agree */
    ARENA_MASTER,      /* every parameter except frozen matrices, in its state dtype; vectors are read from here */
    ARENA_GRADIENT,    /* the same types and offsets as MASTER; zeroed at the start of a step, then added to */
    ARENA_METRIC,      /* WIDE accumulators (losses, loads); zeroed at the start of a step */
    ARENA_STATE,       /* lives from run to run: caches of generation */
    ARENA_QUANTIZED,   /* quantized values and scales of frozen matrices (Parameter.quantization), written when weights are loaded */
    ARENA_HOST_MASTER, /* with offload: MASTER after its vectors, in pinned host memory; MASTER then has only the vectors */
    ARENA_HOST,        /* pinned host memory that nodes write and that host and device read: sizes known only at run time */
    ARENA_ACTIVATION,  /* planned: alive from its producer to its last reader, whose output may reuse the memory */
    ARENA_STASH,       /* planned: tensors that one part of a pipeline's program leaves to another, once per slot */
    ARENA_SAVED,       /* with offload: activations that wait in pinned host memory for the backward pass (HostedTensor) */
    ARENA_COUNT
} Arena;
const char *arena_name(Arena arena);

/* Invariants, asserted by graph_check: a tensor of the ACTIVATION or CONSTANT arena has one
 * producer, before all its readers; after planning it lies inside its arena. No two activations
 * that are alive at once overlap, except an output that takes the memory of an input (Op.in_place).
 * Views of parameters and their gradients share the parameters' memory. */
typedef struct Tensor {
    char *name;
    Arena arena;
    TypeClass type;
    int rank;
    int64_t shape[TENSOR_MAX_RANK];
    int64_t offset;    /* bytes from the arena's start; the planner sets it outside the parameters' arenas */
    int producer;      /* index of the node that makes it, or -1 */
    bool keep;         /* alive to the end of the program, for callers that read it */
    bool elided;       /* has no memory: its only reader absorbs its producer; set by graph_plan */
    bool frozen;       /* an untrained parameter, or an input declared with one: it has no gradient */
    bool trains;       /* set by differentiation: depends on a source that has a gradient, so it needs a gradient too */
    TensorId gradient; /* set by differentiation; for a parameter, its tensor in the gradient arena */
} Tensor;

/* How the optimizer treats a parameter. */
typedef enum ParameterKind {
    PARAMETER_MATRIX,       /* hidden 2-D weights (3-D: a stack of them): Muon or AdamW, with weight decay */
    PARAMETER_EMBEDDING,    /* token tables and output heads: AdamW with weight decay */
    PARAMETER_CONVOLUTION,  /* AdamW with weight decay */
    PARAMETER_NORM,         /* gains, residual scales, temperatures: AdamW */
    PARAMETER_BIAS,         /* AdamW */
    PARAMETER_VALUE_HEAD,   /* of PPO, not exported with the model: AdamW with weight decay, at rl.value_lr if it is set */
    PARAMETER_BALANCE_BIAS, /* load-balancing biases: AdamW with its own settings; their gradient is load - 1/E */
    PARAMETER_KIND_COUNT
} ParameterKind;

/* How ranks divide a parameter. Dimension `dimension` of the whole shape consists of `blocks`
 * blocks of rows[i] rows. Rank i of the n ranks on `axes` holds rows [i B / n, (i + 1) B / n) of
 * each block of B rows. Without axes, every rank holds the whole parameter. */
enum { CUT_MAX_BLOCKS = 4 };
typedef struct Cut {
    MeshAxes axes;
    int dimension, blocks;
    int64_t rows[CUT_MAX_BLOCKS]; /* by block, of the whole parameter */
} Cut;
/* The share of `count` rows that index `index` of `size` holds. */
typedef struct CutShare { int64_t first, count; } CutShare;
static inline CutShare cut_share(int64_t count, int index, int size) {
    return (CutShare){index * count / size, (index + 1) * count / size - index * count / size};
}

/* Returns the rows of all blocks that index `index` of `size` holds. */
static inline int64_t cut_rows(const Cut *cut, int index, int size) {
    int64_t rows = 0;
    for (int i = 0; i < cut->blocks; i++) rows += cut_share(cut->rows[i], index, size).count;
    return rows;
}

/* A parameter's name is its tensor name in the family's Hugging Face folder. Parameters are stored
 * in declaration order. Each starts at a multiple of precision_alignment, unless it is `fused` to
 * the previous one. */
typedef struct Parameter {
    char *name;
    ParameterKind kind;
    int rank;
    int64_t shape[TENSOR_MAX_RANK]; /* of this rank's share */
    int64_t whole[TENSOR_MAX_RANK]; /* of the whole parameter; names, files and initial values refer to it */
    Cut cut;
    int projections; /* number of projections that a matrix stacks along its rows, such as q, k and v, or gate and up; 1: a single one */
    int64_t projection_rows[CUT_MAX_BLOCKS];
    int64_t offset;        /* in the MASTER arena */
    int64_t count;         /* elements of this rank's share */
    int64_t element_bytes; /* of the state dtype */
    double init_mean, init_std;
    bool fused;  /* no gap before it, so that graph_fuse can view both as one matrix */
    bool frozen; /* keeps its loaded value: no gradient, no update */
    bool ends;   /* both the first and the last stage of a pipeline hold it */
    bool coded;  /* the program reads its fp8 values, which ranks gather from their shards (layout/quantized_weights_internal.h) */
    /* The folder holds [in, out] and our matrix is [out, in] (GPT-2's Conv1D): reading and writing
     * transpose. */
    bool transposed;
    /* Folders store the rows of the first and second half of each matrix (or elements of each vector)
     * in turn: gate and up projections. */
    bool alternates;
    /* A frozen matrix that is held as quantized values and scales, BYTE tensors of ARENA_QUANTIZED
     * (op_dequantize). Its `tensor` then only marks its place among the parameters and has no
     * memory. */
    Quantization quantization;
    TensorId quantized, scales;
    TensorId tensor;
} Parameter;

/* Returns the address of a parameter in an arena with the layout of MASTER. */
static inline void *parameter_in(const Parameter *parameter, const void *arena) { return (char *)arena + parameter->offset; }

/* Elements [first, first + count) of a parameter. */
typedef struct ParameterInterval {
    int parameter; /* index in the graph */
    int64_t first, count;
} ParameterInterval;

/* Bytes [begin, end) of an arena. */
typedef struct ByteSpan { int64_t begin, end; } ByteSpan;

/* One call of an operation. Operands are indexed by its enums (ops/NAME/NAME.h); an absent optional
 * operand is TENSOR_NONE. Invariants, asserted by graph_check: inputs are produced by earlier nodes
 * or lie in arenas that callers fill; an output that the operation does not add to (Op.adds_to) has
 * this node as its producer; the scratch overlaps no activation that is alive at this node. */
typedef struct Node {
    int op;              /* OpId of graph/op.h */
    int inputs, outputs; /* operand counts, up to the last operand that is present */
    Inputs in;
    Outputs out;
    const void *attributes; /* the operation's attribute struct, owned by the graph */
    int layer;              /* -1 outside the layers */
    int part;               /* part of a pipeline's program (graph_part); 0 in others */
    bool backward;
    int clone_of;      /* the forward node that this one recomputes, or -1 */
    bool overwrites;   /* the first node to touch the gradient of its output in Op.overwrites (graph_differentiate) */
    int64_t workspace; /* offset of its scratch in the activation arena */
    int absorbs;       /* how many preceding nodes its kernel computes as well (OpKernel.absorbs); set by graph_plan */
    int absorber;      /* the later node that computes this one; 0: none */
    char *name;
} Node;

/* A pipeline's program has parts, which run one by one. Each chunk of layers has a forward pass and
 * a backward pass. If Graph.splits_backward is set, it also has a part of weight gradients, which
 * no node of the program waits for. A part is a span of nodes; forward parts come first, then the
 * backward parts from the last chunk on. Other microbatches run between the parts of a chunk:
 * ARENA_STASH holds what a part leaves to another, in the microbatch's slot. */
typedef enum PartKind { PART_FORWARD, PART_BACKWARD, PART_WEIGHTS, PART_KINDS } PartKind;

/* An activation whose memory is in use during two spans of the program: from its producer to node
 * `stowed` - 1 (or its last reader in the forward pass), and from node `fetch` to node `last`. In
 * between, its values are in host memory. Copies start and are waited for before a node runs.
 * Invariant: producer < stow < stowed < fetch < fetched <= last (graph_host_saved). */
typedef struct HostedTensor {
    TensorId tensor;
    int stow, stowed;      /* the copy to the host starts; it has ended */
    int fetch, fetched;    /* the copy back starts; it has ended: `fetched` is the first reader of the group in the backward pass */
    int forward_end, last; /* the last readers in the forward and in the backward pass */
    int64_t offset;        /* in ARENA_SAVED */
} HostedTensor;

/* A program under construction. Invariants: nodes run in array order; forward nodes come before
 * backward nodes; indices of nodes, tensors and parameters never change, but pointers to them
 * change when an array grows. */
typedef struct Graph {
    Node *nodes;
    int node_count;
    Tensor *tensors;
    int tensor_count; /* tensors[TENSOR_NONE] is a placeholder */
    Parameter *parameters;
    int parameter_count;
    HostedTensor *hosted; /* by `fetched`; set by graph_host_saved */
    int hosted_count;
    int64_t parameter_bytes;   /* of MASTER for all parameters, gaps included */
    int64_t trained_bytes;     /* bytes of MASTER that training changes; a layout puts frozen matrices after them */
    int64_t stored_bytes;      /* bytes of MASTER that have memory; a layout puts quantized matrices last */
    bool frozen;               /* applies to new parameters */
    Quantization quantization; /* applies to new frozen matrices */
    Precision precision;
    const Mesh *mesh; /* the rank's mesh; mesh_alone unless the builder of a model sets another */
    bool training;    /* false: builders may skip nodes that only gradients need */
    int layer;        /* applies to new nodes */
    int part;         /* applies to new nodes */
    int chunks;       /* number of chunks of layers in a pipeline's program; 0: the program is one part */
    bool splits_backward;
    bool backward;
    char scope[64]; /* prefix of the names of new tensors and nodes */
    void **owned;
    int owned_count;
} Graph;

Graph *graph_create(Precision precision, bool training);
void graph_free(Graph *graph);

/* The number of a part; the maximum number of parts; the chunk that a part belongs to; the nodes of
 * a part. */
int graph_part(const Graph *graph, PartKind kind, int chunk);
int graph_parts(const Graph *graph);
int graph_part_chunk(const Graph *graph, int part);

/* Sets the layer index (-1: none) and the name prefix of the nodes and tensors that are appended
 * next. */
void graph_scope(Graph *graph, int layer, const char *prefix);

/* Appends a tensor in any arena except WEIGHT, MASTER and GRADIENT. */
TensorId graph_tensor(Graph *graph, Arena arena, TypeClass type, int rank, const int64_t *shape, const char *name);
/* Append an activation [rows, columns], or one of the shape of another tensor. */
TensorId graph_activation(Graph *graph, TypeClass type, int64_t rows, int64_t columns, const char *name);
TensorId graph_activation_like(Graph *graph, TypeClass type, TensorId like, const char *name);
/* Declares a parameter. The program reads MATRIX, EMBEDDING and CONVOLUTION in the COMPUTE type,
 * the other kinds in the WIDE type. */
TensorId graph_parameter(
    Graph *graph, const char *name, ParameterKind kind, int rank, const int64_t *shape, double init_mean, double init_std, bool fused);
/* Declares a parameter that the ranks of graph->mesh divide by `cut`. `whole` is the shape of
 * the whole parameter; this rank holds its share. */
TensorId graph_cut_parameter(Graph *graph, const char *name, ParameterKind kind, int rank, const int64_t *whole, const Cut *cut,
    double init_mean, double init_std, bool fused);
/* Declares that a matrix, or each matrix of a stack, holds `count` projections one after another; projection i has
 * rows[i] rows. A matrix that is cut along its rows has the blocks of its cut as projections. */
void graph_set_projections(Graph *graph, TensorId parameter, const int64_t *rows, int count);
/* Returns the axes over which a parameter's gradient is summed: all axes that do not cut it, except
 * the pipeline axis, because each stage has its own parameters. */
static inline MeshAxes parameter_sum_axes(const Parameter *parameter) { return AXES_ALL & ~MESH(AXIS_PP) & ~parameter->cut.axes; }
/* Returns a view of consecutive fused parameters as one tensor; their trailing dimensions agree,
 * the leading ones add up. */
TensorId graph_fuse(Graph *graph, const TensorId *parts, int count);
/* Returns a view of rows first .. first + count - 1 of a matrix or of such a view. */
TensorId graph_slice(Graph *graph, TensorId parameter, int64_t first, int64_t count);
/* Returns the gradient tensor of a parameter or view. Returns TENSOR_NONE for TENSOR_NONE, a frozen
 * parameter, or an output of op_dequantize. */
TensorId graph_parameter_gradient(Graph *graph, TensorId parameter);
bool graph_is_parameter(const Graph *graph, TensorId tensor);
/* Returns the index of the parameter of this name, or -1. */
int graph_find_parameter(const Graph *graph, const char *name);
/* Returns whether the rank holds every parameter in full. */
static inline bool graph_is_whole(const Graph *graph) { return mesh_size(graph->mesh, MESH(AXIS_PP) | AXES_EXPERTS) == 1; }
/* Returns the slice of the whole parameter that the first elements of `rest` are, and moves `rest`
 * past it. `rest` is not empty. A rank's share of a cut parameter is one slice if the cut has one
 * block. Otherwise it is one slice for each block and each index of the dimensions before the cut
 * one. */
Slice graph_take_slice(const Graph *graph, ParameterInterval *rest);

/* Appends a node:
 *     graph_node(graph, OP_add, (Inputs){[ADD_A] = a, [ADD_B] = b}, (Outputs){[ADD_SUM] = sum}, &spec, sizeof spec);
 * Outputs are new activation tensors or tensors that the op adds to. The graph copies
 * `attribute_bytes` bytes of attributes; 0: the node shares the attributes of another node, or has
 * none. Returns the node's index, not a pointer, because the array moves when it grows. */
int graph_node(Graph *graph, int op, const Inputs in, const Outputs out, const void *attributes, size_t attribute_bytes);

/* Appends a complete node, as graph_node does, for rewrites that move nodes. */
int graph_append(Graph *graph, const Node *node);

static inline const Tensor *graph_get(const Graph *graph, TensorId id) { return &graph->tensors[id]; }
/* Returns whether the kernel of `node` issues collectives (Op.communicates). A direct node
 * (Op.direct) does not, nor does any node in a mesh whose ranks divide only data. */
bool graph_communicates(const Graph *graph, int node);
/* Returns the node before which a collective that `node` started has ended (graph_communicates):
 * the first node that reads an output of `node`, or node_count. */
int graph_await(const Graph *graph, int node);
/* Returns the last node during which `node` works on its operands and scratch: itself, its
 * graph_await, or its absorber. */
int graph_node_end(const Graph *graph, int node);
/* Return the size of a tensor; 0 for TENSOR_NONE. */
int64_t graph_elements(const Graph *graph, TensorId tensor);
int64_t graph_bytes(const Graph *graph, TensorId tensor);
/* Returns the bytes of MASTER, and of arenas with its layout, that belong to a parameter, a view of
 * parameters, or their gradient. */
ByteSpan graph_state_span(const Graph *graph, TensorId tensor);
/* Returns whether the parameter is a frozen matrix: it lies only in the arena of weights. */
bool graph_is_base(const Graph *graph, const Parameter *parameter);
/* Returns the state dtype of a parameter. */
TypeClass graph_state_type(const Graph *graph, const Parameter *parameter);
/* Return the product of all dimensions except the last, and the last dimension. */
int64_t graph_rows(const Graph *graph, TensorId tensor);
int64_t graph_columns(const Graph *graph, TensorId tensor);

/* -- Differentiation (differentiate.c) ---------------------------------------------------------------------------- */

/* d(objective)/d(tensor) that the caller supplies, for tests. `gradient` has the shape and type of
 * `tensor`. */
typedef struct Seed { TensorId tensor, gradient; } Seed;

typedef enum RecomputePolicy {
    RECOMPUTE_NONE,      /* keep every activation that a backward node reads */
    RECOMPUTE_NORM,      /* recompute norms and activation functions */
    RECOMPUTE_ATTENTION, /* also recompute the attention block between its projections */
    RECOMPUTE_BLOCK,     /* keep only tensors that cross from layer to layer */
} RecomputePolicy;

/* Appends the backward nodes: the gradient of the sum of all losses (Op.loss: each seeds itself)
 * and the seeds. Afterwards tensors[i].gradient is set wherever a gradient flows. Gradients of
 * parameters are added to the GRADIENT arena; the first node to touch one may overwrite it
 * (Node.overwrites). Clones of the forward nodes recompute the tensors that the policy drops, so
 * bits do not depend on the policy. */
void graph_differentiate(Graph *graph, RecomputePolicy policy, const Seed *seeds, int seed_count);

/* Returns whether the node only adds to parameter gradients, which no node of the program reads. */
bool graph_only_adds_to_gradients(const Graph *graph, const Node *node);

/* -- What a graph runs on ------------------------------------------------------------------------------------------ */

struct OpKernel;

/* A device and its kernels for one precision, by OpId; NULL: the device lacks the kernel
 * (backend/backend.h). */
typedef struct Backend {
    Device *device;
    const struct OpKernel *const *kernels;
} Backend;

/* -- Planning (plan.c) -------------------------------------------------------------------------------------------- */

/* Sizes and costs of a planned graph. Tensors lie inside bytes[arena]; activation_floor <= bytes[ARENA_ACTIVATION]. */
typedef struct Plan {
    int64_t bytes[ARENA_COUNT]; /* per arena, without optimizer state */
    int slots;                  /* copies of the INPUT, HOST and STASH arenas in `bytes`: microbatches in flight */
    int64_t workspace;          /* the largest scratch of any node, inside the activation arena */
    double flops;               /* of one run, by op_cost, without recomputed nodes */
    double traffic;             /* bytes that one run moves, by op_cost, with recomputed nodes */
    int64_t activation_floor;   /* the most bytes alive at once: a lower bound of any placement */
} Plan;

/* Nodes first .. last of a program; empty if first > last. */
typedef struct NodeSpan { int first, last; } NodeSpan;
#define NEVER {INT32_MAX, -1}
static inline bool span_is_empty(NodeSpan span) { return span.first > span.last; }

NodeSpan graph_part_span(const Graph *graph, int part);

/* Memory that is in use during up to two spans of a program. */
typedef struct PlanBlock {
    int64_t bytes, offset;
    NodeSpan life[2]; /* the first span is not empty */
    int64_t *target;  /* receives the offset */
} PlanBlock;
/* Places blocks so that blocks in use at the same time do not overlap; sorts them. Every offset is
 * a multiple of any number that divides all sizes. Returns the end of the highest block. */
int64_t plan_blocks(PlanBlock *blocks, int count);

/* Lets activations wait in host memory between the passes of a training program that is not a
 * pipeline's (host_saved.c). Call it after op_absorb and before graph_plan. Returns the bytes of
 * ARENA_SAVED, which the caller adds to the plan. */
int64_t graph_host_saved(Graph *graph);

/* Gives every tensor its offset, a multiple of 256 bytes outside the parameters' arenas. Places
 * activations best fit by lifetime, some of them in the memory of the input that their node reads
 * last (Op.in_place). */
Plan graph_plan(Graph *graph, const Backend *backend);
/* Makes room for `slots` microbatches in flight in a plan that has one slot. */
void plan_set_slots(Plan *plan, int slots);
/* Plans without activations, scratch and costs: a lower bound of the memory that the program needs,
 * known at once. Placing the activations of a model of thousands of layers takes a minute, which is
 * too long to wait for a refusal. */
Plan graph_plan_lasting(Graph *graph);
/* Asserts the invariants of a planned graph (check.c); graph_plan calls it. */
void graph_check(const Graph *graph, const Backend *backend, const Plan *plan);
/* Prints the program, one line per node: number, pass, op, name, inputs -> outputs with shapes and
 * offsets, flops, bytes. */
void graph_print(const Graph *graph, FILE *file);

/* -- Execution (execute.c) ---------------------------------------------------------------------------------------- */

typedef struct Executor Executor;

/* Called after each node, which took `seconds`; returning false stops the run (tracing, NaN search, profiles). */
typedef bool (*ExecutorHook)(void *context, const Graph *graph, int node, double seconds);

/* Allocates every arena on the backend's device and binds one call per node. Several executors may
 * share weights: the executor uses the arenas in `shared` (NULL, or by Arena with NULL for an arena
 * that is not shared) and does not free them. Shared constants must be equal to this graph's, and
 * another executor must have written them. The graph must be planned for the backend and
 * outlive the executor. ERROR_MEMORY; ERROR_USAGE if the backend lacks a kernel. */
Executor *executor_create(const Graph *graph, const Plan *plan, const Backend *backend, void *const *shared, Error *error);
void executor_free(Executor *executor);
/* Sets the comm points, at which communication is started or waited for: every run calls
 * comm_point(context, i) before node points[i] (ascending; node_count: after the last node). Call
 * it before the first run. The list is copied. */
typedef void (*ExecutorCommPoint)(void *context, int index);
void executor_set_comm_points(Executor *executor, const int *points, int count, ExecutorCommPoint comm_point, void *context);
/* Selects the slot of later runs, reads and writes; 0 initially. */
void executor_set_slot(Executor *executor, int slot);
/* Runs a part of the program in the slot. Forward parts take the slot's inputs. */
void executor_run_part(Executor *executor, int part);
/* Runs a part and calls the hook after each node. Returns the node at which the hook stopped the run, or -1. */
int executor_run_part_hooked(Executor *executor, int part, ExecutorHook hook, void *context);
/* The same for a program of one part. On a GPU they return before the work is done; from the third
 * run on they replay recordings. */
void executor_run(Executor *executor);
int executor_run_hooked(Executor *executor, ExecutorHook hook, void *context);
/* Waits for all runs; metrics may be read afterwards. Returns false if the device failed:
 * ERROR_DEVICE. */
bool executor_finish(Executor *executor, Error *error);
/* Starts a step: the next run overwrites gradients and metrics, and later runs add to them. */
void executor_zero(Executor *executor);

/* Returns the device memory of an arena. */
void *executor_arena(const Executor *executor, Arena arena);
/* Returns the address of an offset of MASTER, which with offload may be in host memory, and whether
 * it is. The device accesses either. */
void *executor_master(const Executor *executor, int64_t offset);
bool executor_hosts_master(const Executor *executor, int64_t offset);
/* Returns the memory of a tensor. INPUT and METRIC tensors are in host memory, written before a run
 * and read after executor_finish. Other tensors are in device memory; activations are valid only
 * while they are alive or kept. */
void *executor_tensor(const Executor *executor, TensorId tensor);
/* Returns the device memory of a tensor of any arena. */
void *executor_device_tensor(const Executor *executor, TensorId tensor);
/* Copies any tensor to host memory. */
void executor_read(const Executor *executor, TensorId tensor, void *to);
/* Sets elements first .. first + count - 1 of a real INPUT tensor, rounded to its type. */
void executor_set_values(Executor *executor, TensorId tensor, int64_t first, const float *values, int64_t count);
/* Set an INPUT tensor of one WIDE element; read an element of a METRIC tensor. */
void executor_set_scalar(Executor *executor, TensorId tensor, double value);
double executor_get_metric(const Executor *executor, TensorId tensor, int64_t index);
const Backend *executor_backend(const Executor *executor);
const Graph *executor_graph(const Executor *executor);
