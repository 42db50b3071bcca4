/* Token embedding: its builder and operands, for its rule and the kernels of both back ends. */
#pragma once

#include "graph/op.h"

/* stream[r] = (table[tokens[r]] + bias) * scale. bias and scale are both given or both TENSOR_NONE. Row `padding` of
 * the table (-1: none) gets no gradient, as padding_idx of torch.nn.Embedding has it; bias and scale get theirs. */
TensorId op_embed(Graph *graph, TensorId tokens, TensorId table, TensorId bias, TensorId scale, int64_t padding);
typedef struct EmbedAttributes { int64_t padding; } EmbedAttributes;

typedef enum EmbedOperand {
    EMBED_TOKENS,     /* INT32 [R] */
    EMBED_TABLE,      /* COMPUTE [vocabulary, D] */
    EMBED_BIAS,       /* WIDE [D], optional */
    EMBED_SCALE,      /* WIDE [D], optional */
    EMBED_STREAM = 0, /* WIDE [R, D] */
} EmbedOperand;

typedef enum EmbedGradOperand {
    EMBED_GRAD_D_STREAM, /* WIDE [R, D] */
    EMBED_GRAD_TOKENS,   /* these four like the inputs of embed */
    EMBED_GRAD_TABLE,
    EMBED_GRAD_BIAS,
    EMBED_GRAD_SCALE,
    EMBED_GRAD_D_TABLE = 0, /* gradients of the three parameters, added to */
    EMBED_GRAD_D_BIAS,
    EMBED_GRAD_D_SCALE
} EmbedGradOperand;
