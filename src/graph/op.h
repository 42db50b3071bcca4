/* Operations, each fused to the size of a good kernel. An operation and the operations of its gradient are one folder,
 * src/ops/NAME/:
 *     NAME.h  builders for models, attributes, and one enum per operation that names its inputs and outputs
 *     rule.c  what it computes: the builder with its shape checks, the gradient, the cost, and its Op
 *     cpu.c   the CPU kernel, compiled once per precision and instruction set (backend/cpu/kernel.h)
 *     gpu.c   the GPU kernels and their launches (backend/gpu/kernel_launch.h)
 * To add an operation: write this folder and add one line to graph/op_list.h. Nobody else knows its operands.
 *
 * Shapes in comments: R rows, the tokens of the microbatch, sequence after sequence; D columns. Vectors (norm gains,
 * biases) are WIDE parameters, matrices COMPUTE ones. Builders assert shapes. */
#pragma once

#include <assert.h>

#include "graph/graph.h"

typedef enum OpId {
#define OP(name) OP_##name,
#include "graph/op_list.h"
#undef OP
    OP_COUNT
} OpId;

/* What a kernel is given. Operands are indexed by the operation's enums; an absent one is NULL of shape 0. */
typedef struct OpCall {
    void *in[NODE_MAX_INPUTS], *out[NODE_MAX_OUTPUTS];
    /* unused dimensions are 1 */
    int64_t in_shape[NODE_MAX_INPUTS][TENSOR_MAX_RANK], out_shape[NODE_MAX_OUTPUTS][TENSOR_MAX_RANK];
    const void *attributes;
    void *workspace;               /* as many bytes as OpKernel.workspace says */
    bool overwrite;                /* the output in Op.overwrites holds nothing yet: write it instead of adding to it */
    bool compute_gradients;        /* gradients of COMPUTE parameters are COMPUTE too, not WIDE */
    Device *device;                /* whose memory it is */
    const Mesh *mesh;              /* groups of ranks */
    bool direct;                   /* Op.direct says so */
    int absorbs;                   /* the calls before this one that its kernel computes too (OpKernel.absorbs) */
    const struct OpKernel *kernel; /* that runs it */
    const struct Fp8Codes *codes;  /* of the output in Op.measured, to be written too (OpKernel.codes); NULL: none */
    CommTicket *ticket;            /* of an operation that communicates: a collective that has not ended yet, if it starts one */
} OpCall;

/* How one back end runs an operation. cpu.c and gpu.c each define one per operation, by CPU_OP and GPU_OP. */
typedef struct OpKernel {
    void (*run)(const OpCall *call);
    int64_t (*workspace)(const Graph *graph, const Node *node); /* bytes of scratch; NULL: none */
    /* How many of the nodes right before node `index` its kernel can compute as well, so that kernels become one; NULL:
     * none. These are not run: their calls are call[-1], call[-2] and so on. What they make for each
     * other need not be written. */
    int (*absorbs)(const Backend *backend, const Graph *graph, int index);
    /* It writes what absorbed nodes make, but for its inputs that no later node reads, which have no memory (Tensor.elided). Without
     * it nothing but itself may read what they make. */
    bool elides;
    /* Kinds of fp8, FP8_KIND of each, whose codes it can write of the output in Op.measured, as its cast would: for a cast that
     * absorbs the node (backend/gpu/fp8_codes.h). */
    uint32_t codes;
} OpKernel;
#define FP8_KIND(kind) (1u << (kind))

/* Bytes of scratch that a node needs on a back end. */
int64_t op_workspace(const Backend *backend, const Graph *graph, const Node *node);
/* Sets Node.absorbs, Node.absorber and Tensor.elided as the kernels of a back end ask for, where the absorber has no amax to find.
 * graph_plan calls it; before that, who asks when nodes run. */
void op_absorb(const Backend *backend, Graph *graph);

/* What this rank sends to others of the group of `axes` in one run of a node. */
typedef struct Traffic {
    MeshAxes axes;
    double bytes;
    bool pairwise; /* each of the others gets bytes of its own, as in all-to-all */
} Traffic;

/* What one run of a node costs, by its rule: arithmetic, and bytes that it moves. */
typedef struct Cost { double flops, bytes; } Cost;
Cost op_cost(const Graph *graph, const Node *node);
/* Nanoseconds that a node takes a GPU to compute: a guess by fixed rates, those of an H100, which is the same on every rank and
 * machine. Work is ordered and shared out by it; what is computed does not depend on it. */
int64_t op_time(const Graph *graph, const Node *node);
/* FLOPs of all nodes of a run, recomputed ones too. */
double graph_flops(const Graph *graph);
/* Likewise nanoseconds, as op_time guesses them. */
double graph_time(const Graph *graph);

/* Whether the node is of Op.direct and runs so. */
bool op_is_direct(const Graph *graph, const Node *node);
/* Whether the node is of Op.once_a_step and runs so. */
bool op_runs_once_a_step(const Graph *graph, const Node *node);

/* For the recompute policies. What is gathered from other ranks is gathered again under each of them. */
typedef enum OpClass { OP_CLASS_OTHER, OP_CLASS_NORM, OP_CLASS_ATTENTION, OP_CLASS_GATHER } OpClass;

/* The rule of an operation. Masks are of operands: OPERAND(LINEAR_X) | ...
 * Invariants: `overwrites` is in `adds_to`; `overwrites` and `in_place` are one operand or none. */
typedef struct Op {
    const char *name;
    OpClass class;
    /* Outputs that the kernel adds to or updates: gradients, metrics, states. They are never recomputed. */
    uint32_t adds_to;
    /* The output that the kernel writes whole when OpCall.overwrite is set, which spares zeroing and reading it. */
    uint32_t overwrites;
    /* The input, as large as output 0, whose memory output 0 may take where nothing reads it later: each thread reads
     * an element before it writes it, and no other thread reads that element. */
    uint32_t in_place;
    /* The output, COMPUTE [R, D], whose largest magnitude the kernel can find as it makes it, and the output that takes this: WIDE
     * [1], NaN where an element is NaN; present where op_find_amax asks for it. It is never recomputed. */
    uint32_t measured, amax;
    bool once;        /* without run-time inputs: run when the executor is made, outputs in the constant arena */
    bool once_a_step; /* where output 0 is in the state arena, which holds what parameters give: run in a step's first run alone */
    bool loss;        /* adds to a loss metric: differentiation starts here */
    /* Its kernel issues collectives where there are ranks for them (graph_communicates), the same on all ranks of their
     * groups, and is not recorded then. One may be under way when the kernel returns, given by OpCall.ticket: until the
     * first node that reads an output, nothing that it works on is touched. */
    bool communicates;
    /* Whether the node's kernel needs no collectives though it communicates, as it exchanges words itself: then it is as any
     * other (OpCall.direct). NULL: never. */
    bool (*direct)(const Graph *graph, const Node *node);
    Traffic (*traffic)(const Graph *graph, const Node *node); /* of each that communicates: for plans and forecasts */
    /* Appends the backward nodes of `node`, a copy. d_out[i] is the gradient of output i or TENSOR_NONE. Sets
     * d_in[i] to the gradient of input i, or leaves TENSOR_NONE where there is none or where it was added to a
     * parameter's gradient. NULL: no gradient flows. */
    void (*gradient)(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in);
    /* Appends a cheaper node that makes output `index` again, bit for bit; the new tensor. NULL: a clone serves. */
    TensorId (*recompute)(Graph *graph, const Node *node, int index);
    double element_flops; /* of one element of output 0: all of the operation's flops, unless it has `flops` */
    double (*flops)(const Graph *graph, const Node *node);
    double (*bytes)(const Graph *graph, const Node *node); /* NULL: op_tensor_bytes */
    int teraflops;                                         /* that GPUs reach at it, for op_time; 0: as at a GEMM of bf16 */
} Op;

/* Masks of operands, as in Op.adds_to. */
#define OPERAND(index) (1u << (index))
#define OPERANDS(first, last) ((2u << (last)) - (1u << (first))) /* first .. last */
static inline bool operand_in(uint32_t mask, int index) { return mask & OPERAND(index); }

extern const Op *const op_table[OP_COUNT]; /* by OpId */

/* -- For rules (op.c) ---------------------------------------------------------------------------------------------- */

enum { MAIN_OUTPUT = 0 }; /* the output that Op.in_place and Op.element_flops are about */
/* The input of Op.in_place, TENSOR_NONE where there is none. */
TensorId op_in_place_input(const Node *node);
/* The output of Op.overwrites, TENSOR_NONE where there is none. */
TensorId op_overwritten(const Node *node);
/* The output of Op.amax, TENSOR_NONE where there is none. */
TensorId op_amax(const Node *node);
/* The output of Op.measured, TENSOR_NONE where there is none. */
TensorId op_measured(const Node *node);
/* The largest magnitude of x, found by the node that makes it; TENSOR_NONE where that cannot. */
TensorId op_find_amax(Graph *graph, TensorId x);
/* Whether the planner gave output 0 the memory of the input of Op.in_place; false before planning. */
bool op_in_place(const Graph *graph, const Node *node);
/* a + b, of the same shape and type (ops/add/): the sum of the gradients that the readers of a tensor send back. */
TensorId op_add(Graph *graph, TensorId a, TensorId b);
/* Bytes of all tensors of a node, each once; an output that is added to counts twice, being read and written, and what is elided not. */
double op_tensor_bytes(const Graph *graph, const Node *node);
