/* Losses: the LM head with cross-entropy, and the squared error of a prediction; builders and operands, for the rules and
 * the kernels of both back ends. */
#pragma once

#include "config/config.h"
#include "device/device.h"
#include "graph/op.h"

/* loss[0] += scale[0] * sum over rows with target >= 0 of -log softmax(x w^T)[target]. In training
 * the gradients are computed in the same pass: d_x, and an addition to w's gradient unless w is
 * frozen.
 *
 * The ranks of AXES_TENSOR divide w, which has `vocabulary` rows in total, by cut_share. All ranks
 * have the same x. Each computes a partial sum of d_x; the first rank adds to the loss. */
void op_linear_cross_entropy(Graph *graph, TensorId x, TensorId w, TensorId targets, TensorId scale, TensorId loss, int64_t vocabulary);

/* The same with the three GEMMs in fp8 (ops/fp8/), with one scale per matrix in any recipe: x and w
 * in e4m3, scaled by their current amax, and gradients of logits in e5m2. Each rank's rows of w
 * must be a multiple of 16; in training also those of x. */
void op_fp8_linear_cross_entropy(
    Graph *graph, TensorId x, TensorId w, TensorId targets, TensorId scale, TensorId loss, int64_t vocabulary, const Fp8Config *fp8);

/* The two halves of a loss that needs -log softmax(x w^T)[target] of all rows before it knows their
 * weights. op_token_losses computes them, WIDE [R], 0 without a target; no gradient flows through
 * it. op_token_losses_gradient, in training, computes the gradients of their sum, weighted per row
 * by WIDE [R]: d_x, and an addition to w's gradient. Ranks divide w as above, and all have all
 * rows. */
TensorId op_token_losses(Graph *graph, TensorId x, TensorId w, TensorId targets, int64_t vocabulary);
void op_token_losses_gradient(Graph *graph, TensorId x, TensorId w, TensorId targets, TensorId weights, int64_t vocabulary);

/* loss[0] += scale[0] * sum over rows of weight * mean over columns of (x - target)^2. In training
 * d_x is computed in the same pass. */
void op_squared_error(Graph *graph, TensorId x, TensorId target, TensorId weights, TensorId scale, TensorId loss);

/* Trains `rows` [N, D], which op_put_rows writes into the frozen head at `runs`: the heads of a
 * graph that is not differentiated yet add to the gradient of these rows. Not in fp8. */
void op_train_head_rows(Graph *graph, TensorId rows, const TokenRuns *runs);

/* Makes the losses of heads in a graph that is not differentiated yet take
 * cap * tanh(logits / cap) in place of the logits. */
void op_cap_losses(Graph *graph, double cap);

/* Makes the head's node in a graph that is not planned yet keep the logits of its losses, for
 * dumps: WIDE [R, this rank's vocabulary]; TENSOR_NONE if the graph has no head with a loss. On a
 * GPU they are the GEMM's results before it rounds to bf16. A soft-cap is applied to them. */
TensorId op_keep_logits(Graph *graph);

/* Draws (op_draw): WIDE logits [rows, vocabulary], and results [rows, values]. */
typedef struct LossOfDraws {
    const float *logits;
    float *drawn;
    int64_t rows, vocabulary, values;
} LossOfDraws;
/* On a GPU: replaces the log-probabilities of the draws by those that the losses above give for the
 * logits in bf16, in the same bits. NaN stays. */
void loss_of_draws(Device *device, const LossOfDraws *draws);

/* Returns the last row of x, [1, D], which generation feeds to the head. */
TensorId op_last_row(Graph *graph, TensorId x);

/* Returns cap * tanh(logits / cap) of WIDE logits, in their memory, without a gradient. */
TensorId op_soft_cap(Graph *graph, TensorId logits, double cap);

typedef enum LossOperand {
    LOSS_X,         /* COMPUTE [R, D] */
    LOSS_W,         /* COMPUTE [this rank's vocabulary, D] */
    LOSS_TARGETS,   /* INT32 [R]; negative: none */
    LOSS_SCALE,     /* INPUT WIDE [1], or WIDE [R], one per row; absent if only LOSS_ROWS is made */
    LOSS_X_SCALE,   /* this and the next three for fp8_linear_cross_entropy, whose x and w are FP8 e4m3: WIDE [1] */
    LOSS_W_SCALE,   /* WIDE [1] */
    LOSS_X_COLUMNS, /* FP8 [D, R]; for d_w */
    LOSS_W_COLUMNS, /* FP8 [D, this rank's vocabulary]; for d_x */
    LOSS_LOSS = 0,  /* METRIC WIDE [1 or more]; the first is added to; absent with op_token_losses */
    LOSS_D_X,       /* COMPUTE, like x; in training */
    LOSS_D_W,       /* gradient of w, added to; in training, unless w is frozen */
    LOSS_ROWS,      /* WIDE [R]: the loss of each row, not scaled; op_token_losses */
    LOSS_D_TOKENS,  /* gradient of trained rows [N, D], added to; op_train_head_rows */
    LOSS_LOGITS,    /* WIDE [R, this rank's vocabulary]; op_keep_logits */
} LossOperand;

/* Returns the parameter that a node of either operation multiplies by. */
TensorId loss_weight(const Graph *graph, const Node *node);

typedef struct LossAttributes {
    int64_t vocabulary; /* of all ranks */
    TokenRuns runs;     /* for LOSS_D_TOKENS, counted from the rank's first row of w */
    double cap;         /* of logits (op_cap_losses); 0: none */
} LossAttributes;
/* The numbers of each row that ranks exchange if they divide the vocabulary; a back end sets their form. */
typedef struct LossPeak {
    CommType type;
    int64_t numbers;
} LossPeak;
/* Gathers the peaks [ranks, rows] of these ranks. */
void loss_gather_peaks(const Mesh *mesh, void *peaks, int64_t rows, LossPeak peak);
/* OpKernel.rehearse of a kernel that computes `chunk` rows at a time. */
void loss_rehearse(const OpCall *call, int64_t chunk, LossPeak peak);
/* The vocabulary of the rank that has most of it: by it all ranks cut their rows into the same chunks. */
static inline int64_t loss_largest_share(int64_t vocabulary, int ranks) { return (vocabulary + ranks - 1) / ranks; }

typedef enum SquaredOperand {
    SQUARED_X,        /* WIDE [R, C] */
    SQUARED_TARGET,   /* like x */
    SQUARED_WEIGHTS,  /* WIDE [R] */
    SQUARED_SCALE,    /* INPUT WIDE [1] */
    SQUARED_LOSS = 0, /* METRIC WIDE [1 or more]; the first is added to */
    SQUARED_D_X,      /* like x; in training */
} SquaredOperand;

typedef enum SoftCapOperand {
    SOFT_CAP_X,     /* WIDE [R, V] */
    SOFT_CAP_Y = 0, /* like x */
} SoftCapOperand;
typedef struct SoftCapAttributes { double cap; } SoftCapAttributes;

typedef enum LastRowOperand {
    LAST_ROW_X,     /* COMPUTE [R, D] */
    LAST_ROW_Y = 0, /* COMPUTE [1, D] */
} LastRowOperand;
