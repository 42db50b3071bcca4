/* Operations, each fused to the size of a good kernel. One operation is one file, src/op/NAME.c, of two halves:
 *   - the host half, compiled once: the builder (shape rule), the gradient rule, the cost, and its row of the table;
 *   - the CPU kernels, under `#ifdef KERNEL_VARIANT`, compiled once per precision and instruction set (op/kernel.h).
 * To add an operation is to add its file and one line in op/list.h.
 *
 * Shapes: rows are tokens of the microbatch, all sequences after one another; R rows, D columns. Vectors (norm gains,
 * biases) are WIDE parameters, matrices COMPUTE ones. Builders assert shapes, since models are our own code and
 * configurations are checked before. */
#ifndef SMELT_OP_OP_H
#define SMELT_OP_OP_H

#include <assert.h>

#include "graph/graph.h"

typedef enum OpId {
#define OP(name) OP_##name,
#include "op/list.h"
#undef OP
    OP_COUNT
} OpId;

/* What a kernel sees: memory and shapes of its tensors (NULL and zeros where absent), its attributes, its scratch. */
typedef struct OpCall {
    void *in[NODE_MAX_INPUTS], *out[NODE_MAX_OUTPUTS];
    int64_t in_shape[NODE_MAX_INPUTS][TENSOR_MAX_RANK], out_shape[NODE_MAX_OUTPUTS][TENSOR_MAX_RANK]; /* unused dimensions are 1 */
    const void *attributes;
    void *workspace;
    bool fresh;     /* output Op.begins holds nothing yet: write it instead of adding to it */
    bool narrow;    /* gradients of COMPUTE parameters are COMPUTE too, not WIDE */
    Device *device; /* whose memory it is */
} OpCall;

typedef struct Cost { double flops, bytes; } Cost;

typedef enum OpClass { OP_CLASS_OTHER, OP_CLASS_NORM, OP_CLASS_ATTENTION } OpClass; /* for the recompute policies */

typedef struct Op {
    const char *name;
    OpClass class;
    uint32_t adds_to; /* bit i: output i is added to (gradients, metrics, states), never overwritten; not recomputed */
    int begins;       /* 1 + the output of adds_to that the kernel writes whole when OpCall.fresh says so, which spares zeroing and reading it; 0: none */
    int in_place;     /* 1 + the input whose memory output 0 may take, being as large, where nothing reads it later: the kernel reads each element before anything
                       * writes it, in the thread that writes it; 0: none */
    bool once;        /* without run-time inputs: run when the executor is made, outputs in the constant arena */
    bool loss;        /* adds to a loss metric: differentiation starts here */
    /* Appends the backward nodes. `node` is a copy. d_out[i] is the gradient of output i or TENSOR_NONE; sets d_in[i] to the
     * gradient of input i, TENSOR_NONE where it has none or where it was added to a parameter's gradient. NULL: no gradient flows. */
    void (*gradient)(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in);
    /* Appends a cheaper or narrower node that makes output `index` again with the same bits. NULL: clone the node. */
    TensorId (*recompute)(Graph *graph, const Node *node, int index);
    /* Default: no flops, and the bytes of all tensors once. */
    Cost (*cost)(const Graph *graph, const Node *node);
    /* Bytes of scratch that the CPU kernel needs; NULL: none. */
    int64_t (*workspace)(const Graph *graph, const Node *node);
} Op;

extern const Op *const op_table[OP_COUNT]; /* by OpId */

/* The kernels of a device for a precision. On the CPU those for the best instruction set that it has and `isa` names: "" or "avx512", "avx2", "generic".
 * GPUs have them for PRECISION_BF16: ERROR_USAGE. */
bool op_backend(Backend *backend, Device *device, Precision precision, const char *isa, Error *error);
/* The CPU's, which cannot fail. */
Backend op_cpu_backend(Precision precision);

/* -- For the host halves of op files (op.c) ------------------------------------------------------------------------ */

/* Whether the planner gave output 0 the memory of the input of Op.in_place; false before planning. */
bool op_in_place(const Graph *graph, const Node *node);
/* Bytes of all tensors of a node, each once (an output that is added to, twice): the default cost. */
double op_tensor_bytes(const Graph *graph, const Node *node);
/* Scratch for one WIDE partial sum of `columns` per KERNEL_BLOCK rows. */
int64_t op_partials_bytes(const Graph *graph, int64_t rows, int64_t columns);

/* -- Builders ------------------------------------------------------------------------------------------------------ */

/* h[r] = (table[token[r]] + bias) * scale, WIDE [R, D]. bias and scale [D] are both given or both TENSOR_NONE. */
TensorId op_embed(Graph *graph, TensorId tokens, TensorId table, TensorId bias, TensorId scale);

/* NORM_RMS: y = x / sqrt(mean(x^2) + epsilon) * gain. NORM_LAYER: y = (x - mean(x)) / sqrt(variance(x) + epsilon) * gain + bias, the bias may be
 * TENSOR_NONE. */
typedef enum NormKind { NORM_RMS, NORM_LAYER } NormKind;
typedef struct Norm { NormKind kind; TensorId gain, bias; double epsilon; } Norm;
/* Of the rows of x, WIDE [R, D]; COMPUTE. */
TensorId op_norm(Graph *graph, TensorId x, const Norm *norm);

/* The merge of a block's output with the residual stream and the norm that follows, in one pass:
 * stream' = (block + block_bias) * block_scale + (stream + stream_bias) * stream_scale, WIDE; normed = norm(stream') COMPUTE.
 * `affine` holds block_scale, block_bias, stream_scale, stream_bias, or is NULL for a plain sum. */
typedef struct ResidualNorm { TensorId stream, normed; } ResidualNorm;
ResidualNorm op_residual_norm(Graph *graph, TensorId block, TensorId stream, const TensorId affine[4], const Norm *norm);

/* y = x w^T + bias; x COMPUTE [R, in], w [out, in], bias WIDE [out] or TENSOR_NONE; y COMPUTE, or WIDE when asked. */
TensorId op_linear(Graph *graph, TensorId x, TensorId w, TensorId bias, bool wide);

/* An adapter's way back up (op/lora.c): y + [u_1 b_1^T | u_2 b_2^T | ...]; y COMPUTE [R, out] in `parts` parts of so many columns, at most LORA_PARTS; u COMPUTE
 * [R, parts * rank], b [out, rank]. */
enum { LORA_PARTS = 4 };
TensorId op_lora(Graph *graph, TensorId y, TensorId u, TensorId b, const int64_t *columns, int parts);

/* a + b, same shape and type. */
TensorId op_add(Graph *graph, TensorId a, TensorId b);

/* x + previous * scale, WIDE [R, D], scale [D]: the router's depth averaging. */
TensorId op_scale_add(Graph *graph, TensorId x, TensorId previous, TensorId scale);

/* GELU, COMPUTE: x * Phi(x), or GPT-2's form of it, 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). */
typedef enum GeluKind { GELU_EXACT, GELU_TANH } GeluKind;
TensorId op_gelu(Graph *graph, TensorId x, GeluKind kind);

/* x cut to -limit .. limit, COMPUTE; the gradient of what was cut is zero. */
TensorId op_clamp(Graph *graph, TensorId x, double limit);

/* factor * x, COMPUTE. */
TensorId op_scale(Graph *graph, TensorId x, double factor);

/* silu(x[:, :F]) * x[:, F:], COMPUTE [R, 2F] -> [R, F]. */
TensorId op_swiglu(Graph *graph, TensorId x);

/* Cosines then sines of all positions: CONSTANT WIDE [positions, dimensions]; dimensions = rotated channels of a head.
 * Frequencies: theta^(-2i/dimensions), then Llama-3 scaling when factor > 1 (arXiv 2407.21783; the original context and the two
 * cut-offs as in Hugging Face's `rope_type: llama3`). */
typedef struct RopeSpec {
    double theta;
    int64_t dimensions, positions;
    double factor, low_frequency, high_frequency;
    int64_t original_positions;
} RopeSpec;
TensorId op_rope_table(Graph *graph, const RopeSpec *spec);

/* Rows of one packed COMPUTE tensor [R, (heads + 2 kv_heads) * head_dim]: queries, keys, values. */
typedef struct Heads { int64_t heads, kv_heads, head_dim; } Heads;

/* Rotates the first `dimensions` channels of every query and key head (rotate-half pairing i, i + dimensions/2); values pass through. */
TensorId op_rope(Graph *graph, TensorId qkv, TensorId positions, TensorId table, const Heads *heads);

/* Norms of queries and keys; values pass through. The gain of `query` (`key`) tells the columns of one norm: head_dim for a norm per head (Qwen3), all of the
 * heads' columns for one norm over them together (MPT), or any divisor of these. */
TensorId op_qk_norm(Graph *graph, TensorId qkv, const Norm *query, const Norm *key, const Heads *heads);

/* Compressed convolutional attention's prologue (arXiv 2510.04476, as in the ZAYA1 code): from raw projections
 * u = [q | k | v of this token | v of the next] to rotated, normalised, packed qkv. Depthwise then grouped causal convolution over time (kernel 2 each),
 * qk-mean, L2 norm to sqrt(head_dim), key temperature, partial rotary embedding, value shift by one token; all reset where
 * positions[r] is 0. `state` (TENSOR_NONE in training): STATE COMPUTE [2, columns of u], the two rows before row 0, replaced by the last two. */
typedef struct CcaParameters {
    TensorId depthwise_weight, depthwise_bias; /* [C, 1, 2] and [C]; C = (heads + kv_heads) * head_dim; tap 1 is the current token */
    TensorId grouped_weight, grouped_bias;     /* [C, head_dim, 2] and [C]; one group per head */
    TensorId temperature;                      /* [kv_heads] */
} CcaParameters;
TensorId op_cca(Graph *graph, TensorId u, TensorId positions, TensorId rope_table, const CcaParameters *parameters, TensorId state,
                const Heads *heads);

/* Causal attention with grouped queries over packed qkv; row r attends to rows r - positions[r] .. r of its sequence (that is the document mask), at
 * most `window` of them when window > 0. Memory is linear in `length`. COMPUTE [R, heads * head_dim]. With alibi > 0 the score of a key that lies d rows back
 * is lowered by d times the head's slope (ALiBi, arXiv 2108.12409): with n the least power of two that is not below `heads`, slopes are
 * 2^(-alibi * i / n) for i = 1 .. n, of which n != heads takes those of even i first, then those of odd i (as MPT does). */
typedef struct AttentionSpec {
    Heads heads;
    int64_t length, window;
    double scale; /* of scores; 0: 1 / sqrt(head_dim) */
    double alibi; /* 0: no bias */
} AttentionSpec;
TensorId op_attention(Graph *graph, TensorId qkv, TensorId positions, const AttentionSpec *spec);

/* The same for new rows of one sequence in generation: appends their keys and values to `cache`, STATE COMPUTE [context, 2 * kv_heads * head_dim], at
 * row positions[r], and attends to all earlier ones. */
TensorId op_attention_cached(Graph *graph, TensorId qkv, TensorId positions, TensorId cache, const AttentionSpec *spec);

/* Picks experts. probabilities = softmax(logits) over E experts (and the skip class when `skip`, the last column); chosen = the top k of
 * probabilities + bias; gate = their unbiased probabilities, renormalised to sum 1 when asked. Adds to bias_gradient (graph_parameter_gradient of bias) the
 * microbatch's share of (fraction of tokens sent to e) / k - 1/E for the balancing controller, for the E experts. With auxiliary > 0 it is also a loss:
 * auxiliary * E * sum_e f_e P_e / k (Switch, arXiv 2101.03961), added to loss[1]. share: INPUT WIDE [1], 1 / microbatches in the step. */
typedef struct RouterSpec { int64_t experts, k; bool skip, renormalise; double auxiliary; } RouterSpec;
typedef struct Routing { TensorId index, gate; } Routing; /* INT32 and WIDE [R, k]; index == experts means skipped */
Routing op_router(Graph *graph, TensorId logits, TensorId bias, TensorId share, TensorId loss, const RouterSpec *spec);

/* Rows sorted by expert, in row order within an expert; skipped rows have no slot. slot INT32 [R, k] (-1: none), offset INT32 [experts + 1]: where each
 * expert's slots begin. Slots from offset[experts] on have no row and are zero in every tensor of slots. */
typedef struct Dispatch { TensorId slot, offset; } Dispatch;
Dispatch op_moe_sort(Graph *graph, TensorId index, int64_t experts);
/* x_slots[slot[r, j]] = x[r]: COMPUTE [R, D] -> [R * k, D]. */
TensorId op_moe_permute(Graph *graph, TensorId x, const Dispatch *dispatch);
/* y[s] = x[s] w[e]^T for the slots of each expert; w [E, out, in]. */
TensorId op_grouped_linear(Graph *graph, TensorId x_slots, TensorId w, TensorId offset);
/* y[r] = sum over k of gate[r, k] * y_slots[slot[r, k]]: COMPUTE [R, D]. */
TensorId op_moe_combine(Graph *graph, TensorId y_slots, TensorId gate, const Dispatch *dispatch);

/* loss[0] += scale[0] * sum over rows with target >= 0 of -log softmax(x w^T)[target]. A chunk of rows at a time, so all logits never
 * exist at once. In training it makes the gradients in the same pass: dx (COMPUTE) and an addition to w's gradient. scale: INPUT WIDE [1]. */
void op_linear_cross_entropy(Graph *graph, TensorId x, TensorId w, TensorId targets, TensorId scale, TensorId loss);

/* The last row of x: [1, D]. */
TensorId op_last_row(Graph *graph, TensorId x);

#endif
