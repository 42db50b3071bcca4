/* Linear layers whose GEMMs multiply 8-bit floating-point numbers (base/float8.h): recipes,
 * builders, operands and attributes, for their rules and the kernels of both back ends.
 *
 * fp8_cast converts a matrix to an operand: quantized values and scales. An element is
 * approximately its quantized value times its scale. All three GEMMs of a layer y [R, out] = x
 * [R, in] w [out, in]^T need operands whose lines, the elements of one sum, are contiguous
 * (device/gemm.h):
 *
 *     y   = x   w^T     lines: rows of x,      rows of w
 *     d_x = d_y w       lines: rows of d_y,    columns of w
 *     d_w = d_y^T x     lines: columns of d_y, columns of x
 *
 * So fp8_cast writes a matrix by rows, by columns (transposed), or both. Slots of experts
 * (ops/moe/) by columns are stored in tiles of 128 (fp8_tiles). Each tile belongs to one expert and
 * is padded with zeros, so that an expert's d_w sums over whole tiles for any number of slots.
 * Scales follow from the amax: scale = 1 / m with m = largest number of the format / amax. m is
 * rounded down to a power of two, unless one scale covers the whole matrix.
 *
 * With delayed scaling (FP8_DELAYED, for whole matrices) the amax comes from the history of
 * previous steps. The caller writes it to an INPUT tensor before each run, and the cast updates a
 * METRIC tensor with the amax of its matrix in the same pass: fp8_operands lists both
 * (session/amax_history.h). */
#pragma once

#include "base/float8.h"
#include "config/config.h"
#include "device/gemm.h"
#include "graph/op.h"
#include "ops/moe/moe.h"

/* y = x w^T + bias in fp8 with a recipe other than FP8_NONE; bias may be TENSOR_NONE. x COMPUTE
 * [R, in], w a parameter [out, in], y COMPUTE [R, out]; in and out are multiples of 16, and R too
 * in training. If y is a partial sum over the ranks of `sum`, the first of them adds the bias.
 * Programs that do not train scale by the current amax, and cast weights when they need them. */
TensorId op_fp8_linear(Graph *graph, TensorId x, TensorId w, TensorId bias, MeshAxes sum, const Fp8Config *fp8);
/* One layer per expert (ops/grouped_linear/): x [slots, in], w [experts, out, in]. A scale of a
 * whole matrix, or of a whole line, covers the slots of all experts. */
TensorId op_fp8_grouped_linear(Graph *graph, TensorId x_slots, TensorId w, const Dispatch *dispatch, const Fp8Config *fp8);
/* Casts x [rows, columns], or a parameter, to e4m3 by rows and, with `columns`, by columns, with
 * one scale from its current amax; returns the node. `kept`: a parameter's quantized values last
 * for the whole step. */
int fp8_append_cast(Graph *graph, TensorId x, bool columns, bool kept);
/* Returns the tensor that was cast to `quantized`. */
TensorId fp8_cast_input(const Graph *graph, TensorId quantized);

/* -- fp8_tiles: the places of expert slots in values quantized by columns ------------------------------------------ */

/* An expert without slots has one tile of zeros, so that the kernels that sum over slots need no
 * special case. */
typedef enum Fp8TilesOperand {
    FP8_TILES_OFFSET,    /* INT32 [experts + 1]: Dispatch.offset */
    FP8_TILES_TABLE = 0, /* INT32 [tiles, 2]: the first slot of a tile, and its number of slots; -1: no expert has the tile */
    FP8_TILES_BEGIN,     /* INT32 [experts + 1]: the first tile of each expert, in pairs of fp8 values, in which fp8 GEMMs count k */
} Fp8TilesOperand;

enum { FP8_TILE_SLOTS = GEMM_SCALE_GROUP_SIZE, FP8_TILE_PAIRS = FP8_TILE_SLOTS / 2 };
/* Return the most tiles that `slots` slots need, and the tiles of `slots` slots of one expert. */
static inline int64_t fp8_most_tiles(int64_t slots, int64_t experts) { return slots / FP8_TILE_SLOTS + experts; }
static inline int32_t fp8_expert_tiles(int32_t slots) { return slots > 0 ? (slots + FP8_TILE_SLOTS - 1) / FP8_TILE_SLOTS : 1; }

/* Returns the table of tiles of a dispatch with `slots` slots; appends the node if the graph has
 * none yet. */
TensorId fp8_tiles(Graph *graph, const Dispatch *dispatch, int64_t slots);

/* -- fp8_amax: the amax of each matrix of a stack ------------------------------------------------------------------ */

/* For tensors whose amax no other node computes (op_find_amax): parameters, results of attention
 * and collectives, sums. */
typedef enum Fp8AmaxOperand {
    FP8_AMAX_X,     /* COMPUTE [rows, columns] or [matrices, rows, columns] */
    FP8_AMAX_Y = 0, /* WIDE [matrices]; NaN if an element is NaN. For a parameter it is computed once per step */
} Fp8AmaxOperand;

/* The same immediately, outside a graph, for `count` elements, a multiple of 64; all memory is on
 * the device. */
void fp8_amax_run(const Backend *backend, const void *x, int64_t count, float *amax);
/* Casts x with a given amax to `quantized` in e4m3. */
void fp8_cast_run(const Backend *backend, const void *x, int64_t count, const float *amax, void *quantized, float *scale);

/* -- fp8_cast: the operands that a matrix, or each of a stack, becomes --------------------------------------------- */

typedef enum Fp8CastOperand {
    FP8_CAST_X,          /* COMPUTE [rows, columns] or [matrices, rows, columns] */
    FP8_CAST_AMAX,       /* WIDE [matrices], if a scaling is GEMM_SCALE_TENSOR: from fp8_amax, or an input */
    FP8_CAST_TILES,      /* INT32 [tiles, 2]: from fp8_tiles, if x is slots of experts and values by columns are wanted */
    FP8_CAST_FOUND,      /* WIDE [matrices]: for quantized x, the amax of the unquantized x; present with FP8_CAST_SEEN */
    FP8_CAST_ROWS = 0,   /* FP8, like x; optional, as are all outputs */
    FP8_CAST_ROW_SCALES, /* WIDE [matrices * gemm_scale_count()]; present with the quantized values */
    FP8_CAST_COLUMNS,    /* FP8 [columns, rows] or [matrices, columns, rows]; for slots of experts [columns, tiles * 128] */
    FP8_CAST_COLUMN_SCALES,
    FP8_CAST_SEEN, /* WIDE [matrices], optional: becomes the larger of itself and the amax, NaN above all */
} Fp8CastOperand;

/* `rows` and `columns` are GEMM_SCALE_ONE if there are no such outputs. `coded`: x is already
 * quantized by rows, with this amax; both scalings are of whole matrices. */
typedef struct Fp8CastAttributes {
    Fp8Kind kind;
    GemmScaling rows, columns;
    bool coded;
} Fp8CastAttributes;

/* x as a stack: `count` matrices of rows x columns. */
typedef struct Fp8Stack { int64_t count, rows, columns; } Fp8Stack;
static inline Fp8Stack fp8_stack(const int64_t *shape, int rank) {
    return rank == 3 ? (Fp8Stack){shape[0], shape[1], shape[2]} : (Fp8Stack){1, shape[0], shape[1]};
}
/* The stack of a kernel's operand: dimensions that a tensor lacks are 1. */
static inline Fp8Stack fp8_call_stack(const int64_t shape[TENSOR_MAX_RANK]) { return fp8_stack(shape, shape[2] > 1 ? 3 : 2); }

/* -- fp8_linear, fp8_linear_grad_weight: C = A B^T ----------------------------------------------------------------- */

/* With experts, fp8_linear multiplies rows offset[e] .. offset[e + 1] - 1 of A by matrix e of B
 * [experts, n, k]. fp8_linear_grad_weight multiplies elements 2 offset[e] .. 2 offset[e + 1] - 1
 * along k of A and B into matrix e of C [experts, m, n]. */

typedef enum Fp8LinearOperand {
    FP8_LINEAR_A,        /* FP8 [m, k] */
    FP8_LINEAR_A_SCALES, /* from fp8_cast */
    FP8_LINEAR_B,        /* FP8 e4m3 [n, k], or [experts, n, k] */
    FP8_LINEAR_B_SCALES,
    FP8_LINEAR_BIAS,   /* WIDE [n], optional */
    FP8_LINEAR_OFFSET, /* INT32 [experts + 1], with experts: Dispatch.offset; for fp8_linear_grad_weight FP8_TILES_BEGIN */
    FP8_LINEAR_C = 0,  /* COMPUTE [m, n]; for fp8_linear_grad_weight the gradient of the weight, added to */
} Fp8LinearOperand;

typedef struct Fp8LinearAttributes {
    Fp8Recipe recipe;
    Fp8Kind kind; /* of A */
    GemmScaling scaling_a, scaling_b;
    MeshAxes sum; /* as in op_fp8_linear */
    int64_t rows; /* rows of x that are expected to be used, for costs: Dispatch.rows with experts */
} Fp8LinearAttributes;

/* Returns the parameter that an fp8_linear node multiplies by. */
TensorId fp8_linear_weight(const Graph *graph, const Node *node);
/* Returns the GEMM of a call: over all rows of A, or all of k, and with the first expert. */
Gemm fp8_call_gemm(const OpCall *call, GemmType output);
/* Transposes fp8 values [rows, columns], rows `stride` apart, both multiples of 16, to
 * [columns, rows] immediately on a GPU. */
void fp8_transpose_on_gpu(Device *device, const uint8_t *quantized, int64_t rows, int64_t columns, int64_t stride, uint8_t *to);
/* Computes an fp8 GEMM on the call's GPU. The run ends if the GPU has no kernel for it. */
void fp8_multiply_on_gpu(const OpCall *call, const Gemm *gemm);

/* -- Scales that the caller gives ---------------------------------------------------------------------------------- */

typedef enum Fp8Role { FP8_ROLE_X, FP8_ROLE_W, FP8_ROLE_D_Y, FP8_ROLES } Fp8Role;
/* An operand of a layer whose amax is an input of the program. */
typedef struct Fp8Operand {
    TensorId weight; /* of the layer */
    Fp8Role role;
    Fp8Kind kind;
    TensorId amax, seen; /* FP8_CAST_AMAX in the INPUT arena; FP8_CAST_SEEN, TENSOR_NONE if scales follow the current amax */
    TensorId found;      /* for gathered weights: the INPUT tensor for the weight's own amax, which is `amax` without `seen` */
} Fp8Operand;
/* Lists the operands of all layers in program order; returns their number. `operands` NULL: only
 * counts. */
int fp8_operands(const Graph *graph, Fp8Operand *operands);
