/* Operations, each fused to the size of a good kernel. One operation is one file, src/op/NAME.c, of two halves:
 *   - the host half, compiled once: the builder (shape rule), the gradient rule, the cost, and its row of the table;
 *   - the CPU kernels, under `#ifdef KERNEL_VARIANT`, compiled once per precision and instruction set (op/kernel.h).
 * To add an operation is to add its file and one line in op/list.h.
 *
 * Shapes: rows are tokens of the microbatch, all sequences after one another; R rows, D columns. Vectors (norm gains,
 * biases) are WIDE parameters, matrices COMPUTE ones. Builders assert shapes, since models are our own code and
 * configurations are checked before. */
#pragma once

#include <assert.h>

#include "graph/graph.h"

typedef enum OpId {
#define OP(name) OP_##name,
#include "graph/op_list.h"
#undef OP
    OP_COUNT
} OpId;

/* What a kernel sees: memory and shapes of its tensors (NULL and zeros where absent), its attributes, its scratch. */
typedef struct OpCall {
    void *in[NODE_MAX_INPUTS], *out[NODE_MAX_OUTPUTS];
    int64_t in_shape[NODE_MAX_INPUTS][TENSOR_MAX_RANK], out_shape[NODE_MAX_OUTPUTS][TENSOR_MAX_RANK]; /* unused dimensions are 1 */
    const void *attributes;
    void *workspace;
    bool overwrite;         /* the output in Op.overwrites holds nothing yet: write it instead of adding to it */
    bool compute_gradients; /* gradients of COMPUTE parameters are COMPUTE too, not WIDE */
    Device *device;         /* whose memory it is */
} OpCall;

/* How one back end runs an operation: ops/NAME/cpu.c and gpu.c each define one (CPU_OP, GPU_OP). */
typedef struct OpKernel {
    void (*run)(const OpCall *call);
    int64_t (*workspace)(const Graph *graph, const Node *node); /* bytes of OpCall.workspace that it needs; NULL: none */
} OpKernel;

/* Bytes of scratch of a node on this back end. */
int64_t op_workspace(const Backend *backend, const Graph *graph, const Node *node);

typedef struct Cost { double flops, bytes; } Cost;

typedef enum OpClass { OP_CLASS_OTHER, OP_CLASS_NORM, OP_CLASS_ATTENTION } OpClass; /* for the recompute policies */

typedef struct Op {
    const char *name;
    OpClass class;
    uint32_t adds_to; /* outputs that the kernel adds to or updates (gradients, metrics, states); never recomputed */
    uint32_t
        overwrites; /* at most one of adds_to: the kernel writes it whole when OpCall.overwrite is set, which spares zeroing and reading it */
    uint32_t in_place; /* at most one input, as large as output 0, which may take its memory where nothing reads it later: each thread reads
                          * an element before it writes it, and no other thread reads that element */
    bool once;         /* without run-time inputs: run when the executor is made, outputs in the constant arena */
    bool loss;         /* adds to a loss metric: differentiation starts here */
    /* Appends the backward nodes. `node` is a copy. d_out[i] is the gradient of output i or TENSOR_NONE; sets d_in[i] to the
     * gradient of input i, TENSOR_NONE where it has none or where it was added to a parameter's gradient. NULL: no gradient flows. */
    void (*gradient)(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in);
    /* Appends a cheaper or narrower node that makes output `index` again with the same bits. NULL: clone the node. */
    TensorId (*recompute)(Graph *graph, const Node *node, int index);
    /* Default: no flops, and the bytes of all tensors once. */
    Cost (*cost)(const Graph *graph, const Node *node);
} Op;

/* Masks of operands, as in Op.adds_to. */
#define OPERAND(index) (1u << (index))
static inline bool operand_in(uint32_t mask, int index) { return mask & OPERAND(index); }

extern const Op *const op_table[OP_COUNT]; /* by OpId */

/* -- For the host halves of op files (op.c) ------------------------------------------------------------------------ */

enum { IN_PLACE_OUTPUT = 0 }; /* the output that Op.in_place is about */
/* The input of Op.in_place, TENSOR_NONE where there is none. */
TensorId op_in_place_input(const Node *node);
/* Whether the planner gave output 0 the memory of the input of Op.in_place; false before planning. */
bool op_in_place(const Graph *graph, const Node *node);
/* a + b, same shape and type (ops/add): where a tensor has several readers, their gradients meet so. */
TensorId op_add(Graph *graph, TensorId a, TensorId b);
/* Bytes of all tensors of a node, each once (an output that is added to, twice): the default cost. */
double op_tensor_bytes(const Graph *graph, const Node *node);
