/* Operations, each fused to the size of a good kernel. An operation and the operations of its
 * gradient are one folder, src/ops/NAME/:
 *     NAME.h  builders for models, attributes, and one enum per operation that names its inputs and outputs
 *     rule.c  what it computes: the builder with its shape checks, the gradient, the cost, and its Op
 *     cpu.c   the CPU kernel, compiled once per precision and instruction set (backend/cpu/kernel.h)
 *     gpu.c   the GPU kernels and their launches (backend/gpu/kernel_launch.h)
 * To add an operation: write this folder and add one line to graph/op_list.h. No other code knows
 * its operands.
 *
 * Shapes in comments: R is the number of rows (tokens of the microbatch, sequence after sequence),
 * D the number of columns. Vectors (norm gains, biases) are WIDE parameters; matrices are COMPUTE
 * parameters. Builders assert shapes. */
#pragma once

#include <assert.h>

#include "graph/graph.h"

typedef enum OpId {
#define OP(name) OP_##name,
#include "graph/op_list.h"
#undef OP
    OP_COUNT
} OpId;

/* Arguments of a kernel. Operands are indexed by the operation's enums; an absent operand is NULL
 * of shape 0. */
typedef struct OpCall {
    void *in[NODE_MAX_INPUTS], *out[NODE_MAX_OUTPUTS];
    /* unused dimensions are 1 */
    int64_t in_shape[NODE_MAX_INPUTS][TENSOR_MAX_RANK], out_shape[NODE_MAX_OUTPUTS][TENSOR_MAX_RANK];
    const void *attributes;
    void *workspace;                   /* scratch of OpKernel.workspace bytes */
    bool overwrite;                    /* the output in Op.overwrites is uninitialized: write it instead of adding to it */
    bool compute_gradients;            /* gradients of COMPUTE parameters are COMPUTE too, not WIDE */
    Device *device;                    /* owns the memory of all operands */
    const Mesh *mesh;                  /* the groups of ranks */
    bool direct;                       /* op_is_direct of the node */
    int absorbs;                       /* number of preceding calls that this kernel computes as well (OpKernel.absorbs) */
    const struct OpKernel *kernel;     /* the kernel that runs the call */
    const struct Fp8Output *quantized; /* destination of the quantized output in Op.measured (OpKernel.quantizes), or NULL */
    int node;                          /* its number in the program, from 1; 0: a call outside a program */
    CommTicket *ticket;                /* set by a communicating operation that leaves a collective running */
} OpCall;

/* How one back end runs an operation. cpu.c and gpu.c each define one OpKernel per operation, with
 * CPU_OP and GPU_OP. */
typedef struct OpKernel {
    void (*run)(const OpCall *call);
    int64_t (*workspace)(const Graph *graph, const Node *node); /* bytes of scratch; NULL: none */
    /* Returns how many of the nodes right before node `index` this kernel can compute as well, to
     * fuse them into one kernel. NULL: none. The executor does not run absorbed nodes: their calls
     * are call[-1], call[-2] and so on. Results that absorbed nodes make only for each other need
     * not be written. */
    int (*absorbs)(const Backend *backend, const Graph *graph, int index);
    /* The kernel writes the outputs of absorbed nodes, except its own inputs that no later node
     * reads: they have no memory (Tensor.elided). If `elides` is false, no other node may read the
     * outputs of absorbed nodes, except those in Op.kept. */
    bool elides;
    /* Mask of FP8_KIND: the kinds of fp8 in which the kernel can write the quantized values of the
     * output in Op.measured, exactly as its cast would. A cast that absorbs the node uses this
     * (backend/gpu/fp8_output.h). */
    uint32_t quantizes;
    /* For an operation that communicates: issues the collectives of `run`, and names its compute
     * with device_rehearse, on a device that computes nothing (backend/idle_device.h). It may be
     * `run` itself if that touches no memory. */
    void (*rehearse)(const OpCall *call);
} OpKernel;
#define FP8_KIND(kind) (1u << (kind))

/* Returns the bytes of scratch that a node needs on a back end. */
int64_t op_workspace(const Backend *backend, const Graph *graph, const Node *node);
/* Sets Node.absorbs, Node.absorber and Tensor.elided from OpKernel.absorbs of a back end. A node
 * that finds an amax absorbs none. graph_plan calls it; code that needs the fields before planning
 * calls it too. */
void op_absorb(const Backend *backend, Graph *graph);

/* Bytes that this rank sends to other ranks of the group of `axes` in one run of a node. */
typedef struct Traffic {
    MeshAxes axes;
    double bytes;
    bool pairwise; /* each other rank gets different bytes, as in all-to-all */
} Traffic;

/* Cost of one run of a node according to its rule: arithmetic, and bytes moved. */
typedef struct Cost { double flops, bytes; } Cost;
Cost op_cost(const Graph *graph, const Node *node);
/* Estimates the nanoseconds that a GPU takes for a node, from fixed rates of an H100, so that every
 * rank and machine gets the same number. Only the order and the division of work depend on it;
 * results do not. */
int64_t op_time(const Graph *graph, const Node *node);
/* Returns the FLOPs of all nodes of a run, including recomputed nodes. */
double graph_flops(const Graph *graph);
/* Returns the nanoseconds of all nodes of a run, as op_time estimates them. */
double graph_time(const Graph *graph);

/* Returns whether Op.direct holds for the node. */
bool op_is_direct(const Graph *graph, const Node *node);
/* Returns whether the node runs only in the first run of a step (Op.once_a_step). */
bool op_runs_once_a_step(const Graph *graph, const Node *node);

/* Classes for the recompute policies. Gathered tensors are gathered again under every policy. */
typedef enum OpClass { OP_CLASS_OTHER, OP_CLASS_NORM, OP_CLASS_ATTENTION, OP_CLASS_GATHER } OpClass;

/* The rule of an operation. Masks select operands: OPERAND(LINEAR_X) | ... Invariants: `overwrites`
 * is a subset of `adds_to`; `overwrites` and `in_place` hold at most one operand each. */
typedef struct Op {
    const char *name;
    OpClass class;
    /* Outputs that the kernel adds to or updates: gradients, metrics, states. They are never
     * recomputed. */
    uint32_t adds_to;
    /* The output that the kernel writes in full when OpCall.overwrite is set, which saves zeroing
     * and reading it. */
    uint32_t overwrites;
    /* The input whose memory output 0 may take if no later node reads the input. It is as large as
     * output 0. Each thread reads an element before it writes that element, and no other thread
     * reads it. */
    uint32_t in_place;
    /* `measured` is the COMPUTE [R, D] output whose amax the kernel can compute while it writes the
     * output. `amax` is the output that receives it: WIDE [1], NaN if any element is NaN; present
     * if op_find_amax requested it. The amax is never recomputed. */
    uint32_t measured, amax;
    /* Outputs that every kernel that absorbs the node writes, so that later nodes may read them. */
    uint32_t kept;
    bool once;        /* has no run-time inputs: runs when the executor is created, outputs in the constant arena */
    bool once_a_step; /* if output 0 is in the state arena (cached for the step): runs only in the first run of a step */
    bool loss;        /* adds to a loss metric: differentiation starts here */
    /* The kernel issues collectives if graph_communicates; all ranks of a group issue the same
     * ones. It is not recorded then. One collective may still run when the kernel returns, as
     * OpCall.ticket: no operand may be touched before the first node that reads an output. */
    bool communicates;
    /* Returns whether the node's kernel exchanges words itself and so needs no collectives
     * (OpCall.direct). The node then runs like a local one. NULL: never. */
    bool (*direct)(const Graph *graph, const Node *node);
    Traffic (*traffic)(const Graph *graph, const Node *node); /* for plans and forecasts; set for every operation that communicates */
    /* Appends the backward nodes of `node`, a copy. d_out[i] is the gradient of output i or
     * TENSOR_NONE. Sets d_in[i] to the gradient of input i, or leaves TENSOR_NONE if there is none
     * or if the backward node adds it to a parameter's gradient. NULL: no gradient flows. */
    void (*gradient)(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in);
    /* Appends a cheaper node that makes output `index` again, bit for bit, and returns the new
     * tensor. NULL: the node is cloned. */
    TensorId (*recompute)(Graph *graph, const Node *node, int index);
    double element_flops; /* FLOPs per element of output 0, unless the operation has `flops` */
    double (*flops)(const Graph *graph, const Node *node);
    double (*bytes)(const Graph *graph, const Node *node); /* NULL: op_tensor_bytes */
    int teraflops;                                         /* rate that GPUs reach, for op_time; 0: the rate of a bf16 GEMM */
} Op;

/* Masks of operands, as in Op.adds_to. */
#define OPERAND(index) (1u << (index))
#define OPERANDS(first, last) ((2u << (last)) - (1u << (first))) /* first .. last, inclusive */
static inline bool operand_in(uint32_t mask, int index) { return mask & OPERAND(index); }

extern const Op *const op_table[OP_COUNT]; /* by OpId */

/* -- For rules (op.c) ---------------------------------------------------------------------------------------------- */

enum { MAIN_OUTPUT = 0 }; /* the output of Op.in_place and Op.element_flops */
/* Returns the input of Op.in_place, or TENSOR_NONE. */
TensorId op_in_place_input(const Node *node);
/* Returns the output of Op.overwrites, or TENSOR_NONE. */
TensorId op_overwritten(const Node *node);
/* Returns the output of Op.amax, or TENSOR_NONE. */
TensorId op_amax(const Node *node);
/* Returns how many node inputs read a tensor, plus 1 if the tensor is kept. */
int op_readers(const Graph *graph, TensorId tensor);
/* Returns the output of Op.measured, or TENSOR_NONE. */
TensorId op_measured(const Node *node);
/* Makes the producer of x compute the amax of x. Returns the amax, or TENSOR_NONE if the producer
 * cannot. */
TensorId op_find_amax(Graph *graph, TensorId x);
/* Returns whether the planner gave output 0 the memory of the input of Op.in_place; false before
 * planning. */
bool op_in_place(const Graph *graph, const Node *node);
/* Returns a + b of the same shape and type (ops/add/): sums the gradients from several readers of a
 * tensor. */
TensorId op_add(Graph *graph, TensorId a, TensorId b);
/* Returns the bytes of all tensors of a node, each counted once. An output that is added to counts
 * twice (read and written); an elided tensor counts zero. */
double op_tensor_bytes(const Graph *graph, const Node *node);
